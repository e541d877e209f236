//! Buffers for ranges, used again: the pages of a fresh one cost more time than copying a range into it.

use std::sync::Arc;

use parking_lot::Mutex;

use dlfs_base::error::{Result, zeroed_vec};

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
    ///
    /// # Errors
    /// `OutOfMemory`: the system has no such memory.
    pub(super) fn take(self: &Arc<Pool>, len: usize) -> Result<RangeBuf> {
        // A short range would occupy the room of a whole one.
        if len > self.range_bytes || len <= self.range_bytes / 2 {
            return RangeBuf::new(len);
        }
        let kept = self.free.lock().buffers.pop();
        let bytes = kept.unwrap_or_else(|| vec![0; self.range_bytes]);
        Ok(RangeBuf { bytes, filled: 0, len, pool: Some(Arc::clone(self)) })
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

/// The bytes of a range that have come. Dropping it gives its memory back to the pool.
#[derive(Debug)]
pub(super) struct RangeBuf {
    /// The bytes from `filled` on are left from an earlier use.
    bytes: Vec<u8>,
    filled: usize,
    /// How many bytes are to come in all.
    len: usize,
    pool: Option<Arc<Pool>>,
}

impl RangeBuf {
    /// An empty buffer of no pool, with room for `len` bytes.
    ///
    /// # Errors
    /// `OutOfMemory`: the system has no such memory.
    pub(super) fn new(len: usize) -> Result<RangeBuf> {
        let bytes = zeroed_vec(len as u64)?; // as long as an object is said to be
        Ok(RangeBuf { bytes, filled: 0, len, pool: None })
    }

    /// Returns whether all bytes have come.
    pub(super) fn is_full(&self) -> bool {
        self.filled == self.len
    }

    /// The part of the buffer for the bytes that are to come.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..self.len]
    }

    /// So many bytes have come.
    pub(super) fn advance(&mut self, len: usize) {
        self.filled += len;
        assert!(self.filled <= self.len, "within the room");
    }

    /// Adds bytes, for which there is room.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.room()[..bytes.len()].copy_from_slice(bytes);
        self.advance(bytes.len());
    }
}

impl std::ops::Deref for RangeBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.filled]
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
        let mut free = pool.free.lock();
        if free.readers > 0 && free.buffers.len() < pool.most {
            free.buffers.push(std::mem::take(&mut self.bytes));
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
        let mut first = pool.take(1000).unwrap();
        first.extend(&[7; 1000]);
        let at = first.as_ptr();
        drop(first);
        let mut again = pool.take(600).unwrap();
        assert_eq!((again.len(), again.room().len(), again.as_ptr()), (0, 600, at));
        let others = [pool.take(1000).unwrap(), pool.take(1000).unwrap()];
        drop((again, others));
        drop((pool.take(500).unwrap(), pool.take(1001).unwrap()));
        assert_eq!(pool.free.lock().buffers.len(), 2, "short and overlong ones are not kept");
        let late = pool.take(1000).unwrap();
        drop(kept);
        drop(late);
        assert!(pool.free.lock().buffers.is_empty(), "without a reader");
    }
}
