//! Buffers for ranges, used again: the pages of a fresh one cost more time than copying a range into it.

use std::sync::Arc;

use parking_lot::Mutex;

/// Buffers with room for a range that are not in use at the moment; none, while there is no reader.
///
/// No more are made than are in use at once, so they are within the windows of the readers.
#[derive(Debug)]
pub(super) struct Pool {
    range_bytes: usize,
    most: usize,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    readers: usize,
}

impl Pool {
    /// Keeps buffers of `range_bytes`, at most `window_bytes` in all.
    pub(super) fn new(range_bytes: u64, window_bytes: u64) -> Pool {
        let most = (window_bytes / range_bytes.max(1)) as usize;
        Pool { range_bytes: range_bytes as usize, most, free: Mutex::default() }
    }

    /// An empty buffer with room for `len` bytes.
    pub(super) fn take(self: &Arc<Pool>, len: usize) -> RangeBuf {
        // A short range would occupy the room of a whole one.
        if len > self.range_bytes || len <= self.range_bytes / 2 {
            return RangeBuf { bytes: Vec::with_capacity(len), pool: None };
        }
        let kept = self.free.lock().buffers.pop();
        let bytes = kept.unwrap_or_else(|| Vec::with_capacity(self.range_bytes));
        RangeBuf { bytes, pool: Some(Arc::clone(self)) }
    }

    /// A reader begins: buffers are kept until all readers have ended.
    pub(super) fn keep(self: &Arc<Pool>) -> Kept {
        self.free.lock().readers += 1;
        Kept(Arc::clone(self))
    }
}

/// Has the buffers of a pool kept.
#[derive(Debug)]
pub(super) struct Kept(Arc<Pool>);

impl Drop for Kept {
    fn drop(&mut self) {
        let mut free = self.0.free.lock();
        free.readers -= 1;
        if free.readers == 0 {
            free.buffers = Vec::new();
        }
    }
}

/// The bytes of a range. Dropping it gives its memory back to the pool.
#[derive(Debug)]
pub(super) struct RangeBuf {
    bytes: Vec<u8>,
    pool: Option<Arc<Pool>>,
}

impl RangeBuf {
    /// Adds bytes; there is room for as many as were asked for.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

impl std::ops::Deref for RangeBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for RangeBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for RangeBuf {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut free = pool.free.lock();
        if free.readers > 0 && free.buffers.len() < pool.most {
            free.buffers.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_whole_ranges_are_used_again_and_only_as_many_are_kept_as_the_window_has() {
        let pool = Arc::new(Pool::new(1000, 2500));
        let kept = pool.keep();
        let mut first = pool.take(1000);
        first.extend(&[7; 1000]);
        let at = first.as_ptr();
        drop(first);
        let again = pool.take(600);
        assert_eq!((again.len(), again.as_ptr()), (0, at));
        let others = [pool.take(1000), pool.take(1000)];
        drop((again, others));
        drop((pool.take(500), pool.take(1001)));
        assert_eq!(pool.free.lock().buffers.len(), 2, "short and overlong ones are not kept");
        let late = pool.take(1000);
        drop(kept);
        drop(late);
        assert!(pool.free.lock().buffers.is_empty(), "without a reader");
    }
}
