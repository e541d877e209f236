//! Buffers of received ranges, which a pool keeps for reuse: faulting in the pages of a fresh buffer costs more than
//! copying a range into the buffer.

use std::sync::Arc;

use parking_lot::Mutex;

use dlfs_base::error::{Result, zeroed_vec};

/// A pool of free buffers for ranges. It keeps buffers only while a reader exists.
///
/// A new buffer is allocated only if none is free, so there are never more buffers than ranges were held at once.
#[derive(Debug)]
pub(super) struct Pool {
    /// Length of each buffer.
    range_bytes: usize,
    /// Maximum free buffers.
    most: usize,
    free: Mutex<Free>,
}

/// The free buffers of a pool.
#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    /// Number of [`Kept`] handles.
    readers: usize,
}

impl Pool {
    /// Keeps free buffers of `range_bytes`, at most `window_bytes` in total.
    pub(super) fn new(range_bytes: u64, window_bytes: u64) -> Pool {
        let most = (window_bytes / range_bytes.max(1)) as usize;
        Pool { range_bytes: range_bytes as usize, most, free: Mutex::default() }
    }

    /// An empty buffer with room for `len` bytes.
    ///
    /// # Errors
    /// `OutOfMemory`: the operating system has no memory.
    pub(super) fn take(self: &Arc<Pool>, len: usize) -> Result<RangeBuf> {
        // A short range would waste most of a pooled buffer.
        if len > self.range_bytes || len <= self.range_bytes / 2 {
            return RangeBuf::new(len);
        }
        let kept = self.free.lock().buffers.pop();
        let bytes = kept.map_or_else(|| zeroed_vec(self.range_bytes as u64), Ok)?;
        Ok(RangeBuf { bytes, filled: 0, len, pool: Some(Arc::clone(self)) })
    }

    /// A handle that makes the pool keep free buffers while it exists; each reader holds one.
    pub(super) fn keep(self: &Arc<Pool>) -> Kept {
        self.free.lock().readers += 1;
        Kept(Arc::clone(self))
    }
}

/// Makes a pool keep its free buffers.
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

/// The received bytes of a range. Dropping it returns its memory to its pool, if it has one.
#[derive(Debug)]
pub(super) struct RangeBuf {
    /// The buffer; the bytes from `filled` on are stale.
    bytes: Vec<u8>,
    /// Number of bytes received.
    filled: usize,
    /// Length of the range.
    len: usize,
    /// The pool that gets the memory back; `None`: the memory is freed.
    pool: Option<Arc<Pool>>,
}

impl RangeBuf {
    /// An empty buffer outside any pool, with room for `len` bytes.
    ///
    /// # Errors
    /// `OutOfMemory`: the operating system has no memory.
    pub(super) fn new(len: usize) -> Result<RangeBuf> {
        let bytes = zeroed_vec(len as u64)?; // `len` is the length that the store states
        Ok(RangeBuf { bytes, filled: 0, len, pool: None })
    }

    /// Returns whether all bytes have arrived.
    pub(super) fn is_full(&self) -> bool {
        self.filled == self.len
    }

    /// The part of the buffer that is still to be filled.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..self.len]
    }

    /// Notes that `len` more bytes have arrived.
    pub(super) fn advance(&mut self, len: usize) {
        self.filled += len;
        assert!(self.filled <= self.len, "within the room");
    }

    /// Appends bytes, for which there must be room.
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
    use dlfs_base::error::ErrorKind;

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

    #[test]
    fn a_range_for_which_there_is_no_memory_is_an_error() {
        let pool = Arc::new(Pool::new(1 << 62, u64::MAX));
        assert_eq!(pool.take(1 << 62).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }
}
