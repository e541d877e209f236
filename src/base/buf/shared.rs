//! Immutable bytes, shared by reference counting.
#![allow(unsafe_code)] // reads raw memory that an allocation keeps alive

use std::ops::{Bound, Deref, RangeBounds};
use std::ptr::NonNull;

use super::IoBuf;
use super::allocation::Allocation;

/// Read-only bytes: a frozen [`super::IoBuf`] or a part of one, or bytes that [`super::SharedBytes`] lends.
///
/// A clone or slice costs one atomic increment. The memory returns to its owner, such as a pool, when the
/// last clone or slice, and the last other buffer of its allocation, is dropped.
///
/// The inner buffer is not the only owner of its bytes: clones may share them, so nobody writes them.
#[derive(Default)]
pub struct SharedBuf(pub(super) IoBuf);

impl SharedBuf {
    /// An empty buffer without memory.
    pub fn empty() -> SharedBuf {
        SharedBuf::default()
    }

    /// The bytes `start..start + len` of `allocation`.
    ///
    /// # Safety
    /// The range is initialised memory that `allocation` keeps alive, and nobody writes it while a handle on
    /// `allocation` exists.
    pub(super) unsafe fn of_range(
        allocation: Option<Allocation>,
        start: NonNull<u8>,
        len: usize,
    ) -> SharedBuf {
        SharedBuf(IoBuf { allocation, start, len })
    }

    /// The part `range`, which shares the memory. An empty part holds no memory.
    ///
    /// # Panics
    /// If the range is reversed or exceeds the buffer, as with slices.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> SharedBuf {
        let from = match range.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&from) => from.checked_add(1).expect("range within the buffer"),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&to) => to.checked_add(1).expect("range within the buffer"),
            Bound::Excluded(&to) => to,
            Bound::Unbounded => self.len(),
        };
        assert!(from <= to && to <= self.len(), "{from}..{to} of {} bytes", self.len());
        if from == to {
            return SharedBuf::empty();
        }
        let IoBuf { allocation, start, .. } = &self.0;
        // SAFETY: `from` is within this buffer.
        let start = unsafe { start.add(from) };
        SharedBuf(IoBuf { allocation: allocation.clone(), start, len: to - from })
    }

    /// Makes the bytes writable again: the inverse of [`IoBuf::freeze`].
    ///
    /// # Errors
    /// `self`, if another handle on the same allocation exists, or if the bytes are lent by
    /// [`super::SharedBytes`].
    pub fn thaw(self) -> Result<IoBuf, SharedBuf> {
        let is_ours = |of: &Allocation| of.is_only_handle() && of.is_owned();
        if self.0.allocation.as_ref().is_none_or(is_ours) { Ok(self.0) } else { Err(self) }
    }
}

impl Clone for SharedBuf {
    fn clone(&self) -> SharedBuf {
        self.slice(..)
    }
}

impl Deref for SharedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedBuf({} bytes)", self.len())
    }
}
