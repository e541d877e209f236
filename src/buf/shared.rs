//! Bytes that nobody writes any more, shared by counting.
#![allow(unsafe_code)] // reads raw memory that a run keeps alive

use std::ops::{Bound, Deref, RangeBounds};
use std::ptr::NonNull;

use super::IoBuf;
use super::run::Run;

/// Read-only bytes: a frozen [`super::IoBuf`], or a part of one.
///
/// A clone or slice costs one atomic increment. The memory goes back to its pool when the last of
/// them, and the last window of the same run, is gone.
#[derive(Clone)]
pub struct SharedBuf {
    run: Option<Run>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are never written again while a `SharedBuf` exists, and the count is atomic.
unsafe impl Send for SharedBuf {}
// SAFETY: as for `Send`: `&SharedBuf` gives `&[u8]`, and clones by an atomic count.
unsafe impl Sync for SharedBuf {}

impl SharedBuf {
    /// No bytes; holds no memory.
    pub fn empty() -> SharedBuf {
        SharedBuf { run: None, start: NonNull::dangling(), len: 0 }
    }

    /// The window `start..start + len` of `run`.
    ///
    /// # Safety
    /// The window is initialised memory that `run` keeps alive, and nobody can write it any more.
    pub(super) unsafe fn of_window(run: Option<Run>, start: NonNull<u8>, len: usize) -> SharedBuf {
        SharedBuf { run, start, len }
    }

    /// The part `range`, sharing the memory. An empty part holds none.
    ///
    /// # Panics
    /// The range is backwards or ends past the end, as with slices.
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
        // SAFETY: `from` is within this window.
        let start = unsafe { self.start.add(from) };
        SharedBuf { run: self.run.clone(), start, len: to - from }
    }

    /// Takes the bytes back for writing: the inverse of [`IoBuf::freeze`].
    ///
    /// # Errors
    /// `self`, while another handle or window of the same run exists.
    pub fn thaw(mut self) -> Result<IoBuf, SharedBuf> {
        match self.run.take() {
            None => Ok(IoBuf::empty()),
            Some(run) if run.is_only_handle() => {
                // SAFETY: the only handle on the run, so nobody else has a window of it; this window
                // is initialised memory of the run, by `of_window`.
                Ok(unsafe { IoBuf::of_run(run, self.start, self.len) })
            }
            run => Err(SharedBuf { run, ..self }),
        }
    }
}

impl Deref for SharedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised memory that `self.run` keeps alive and that nobody writes, by
        // `of_window`; an empty one is dangling but aligned, as an empty slice may be.
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
