//! Immutable bytes, shared by reference counting.
#![allow(unsafe_code)] // reads raw memory that an allocation keeps alive

use std::ops::{Bound, Deref, RangeBounds};
use std::ptr::NonNull;

use super::IoBuf;
use super::allocation::Allocation;

/// Read-only bytes: a frozen [`super::IoBuf`], or a part of one.
///
/// A clone or slice costs one atomic increment. The memory returns to its pool when the last of
/// them, and the last buffer of the same allocation, is dropped.
#[derive(Clone)]
pub struct SharedBuf {
    allocation: Option<Allocation>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are never written again while a `SharedBuf` exists, and the count is atomic.
unsafe impl Send for SharedBuf {}
// SAFETY: as for `Send`: `&SharedBuf` gives `&[u8]`, and clones by an atomic count.
unsafe impl Sync for SharedBuf {}

impl SharedBuf {
    /// An empty buffer without memory.
    pub fn empty() -> SharedBuf {
        SharedBuf { allocation: None, start: NonNull::dangling(), len: 0 }
    }

    /// The bytes `start..start + len` of `allocation`.
    ///
    /// # Safety
    /// The range is initialised memory that `allocation` keeps alive, and nobody can write it any
    /// more.
    pub(super) unsafe fn of_range(
        allocation: Option<Allocation>,
        start: NonNull<u8>,
        len: usize,
    ) -> SharedBuf {
        SharedBuf { allocation, start, len }
    }

    /// The part `range`, which shares the memory. An empty part holds none.
    ///
    /// # Panics
    /// If the range is reversed or ends past the end, as with slices.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> SharedBuf {
        let from = match range.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&from) => from.checked_add(1).expect("range within the buffer"),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&to) => to.checked_add(1).expect("range within the buffer"),
            Bound::Excluded(&to) => to,
            Bound::Unbounded => self.len,
        };
        assert!(from <= to && to <= self.len, "{from}..{to} of {} bytes", self.len);
        if from == to {
            return SharedBuf::empty();
        }
        // SAFETY: `from` is within this buffer.
        let start = unsafe { self.start.add(from) };
        SharedBuf { allocation: self.allocation.clone(), start, len: to - from }
    }

    /// Makes the bytes writable again: the inverse of [`IoBuf::freeze`].
    ///
    /// # Errors
    /// `self`, if another handle on the same allocation exists, or if the bytes are lent by
    /// [`super::SharedBytes`].
    pub fn thaw(mut self) -> Result<IoBuf, SharedBuf> {
        match self.allocation.take() {
            None => Ok(IoBuf::empty()),
            Some(allocation) if allocation.is_only_handle() && allocation.is_owned() => {
                // SAFETY: the only handle on the allocation, so nobody else has a buffer of it;
                // this buffer is initialised memory of the allocation, by `of_range`.
                Ok(unsafe { IoBuf::of_allocation(allocation, self.start, self.len) })
            }
            allocation => Err(SharedBuf { allocation, ..self }),
        }
    }
}

impl Deref for SharedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised memory that `self.allocation` keeps alive and that nobody writes, by
        // `of_range`; an empty one is dangling but aligned, as an empty slice may be.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for SharedBuf {
    fn default() -> SharedBuf {
        SharedBuf::empty()
    }
}

impl std::fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedBuf({} bytes)", self.len)
    }
}
