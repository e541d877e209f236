//! Memory that devices may write into: owned windows, shared slices, and the pool they come from.
//!
//! A *run* is a piece of memory with a count of the handles on it: an allocation of its own
//! ([`IoBuf::zeroed`]) or neighbouring slots of a [`Pool`]. An [`IoBuf`] is a window of a run: the only
//! owner of its bytes, so that it may be given to a device and written by it. [`IoBuf::freeze`] turns
//! a window into a [`SharedBuf`], which may be cloned and sliced but not written, until one handle is
//! left and [`SharedBuf::thaw`] takes it back. The run goes back to where it came from when its last
//! window is gone.
//!
//! Invariants: windows of one run never overlap; every byte of every run is initialised, if only with
//! what its last owner left there; starts of runs are multiples of 4,096.
//!
//!
//! Not here: which bytes of a window mean something (the I/O's completion says so), locking into
//! memory, and any waiting for memory to become free (a pool that is empty says `None`).
//!
//! Read `run.rs` first, it is where memory is counted; then this file; then `pool.rs`.
#![allow(unsafe_code)] // one of the homes of `unsafe`: owned, aligned memory handed out in windows

mod pages;
mod pool;
mod run;
mod shared;
mod slots;

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

pub use pages::{PageSource, Pages, use_pages_of};
pub use pool::{HugePages, Pool, PoolOptions};
pub use shared::SharedBuf;

use run::{MAPPED_FROM_LEN, PASSING_MAPPED_FROM_LEN, Run};

/// Owned bytes that move with their I/O: a whole run of memory, or a window of one.
///
/// Windows of one run are disjoint, and each has one owner. An empty window holds no memory.
pub struct IoBuf {
    run: Option<Run>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an `IoBuf` is the only owner of its window, so it may go to another thread as a `Vec` may;
// `Run` may as well.
unsafe impl Send for IoBuf {}
// SAFETY: `&IoBuf` gives `&[u8]` only.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// A buffer of length 0 that owns no memory.
    pub fn empty() -> IoBuf {
        IoBuf { run: None, start: NonNull::dangling(), len: 0 }
    }

    /// A stand-alone buffer of `len` zero bytes whose start is aligned to 4,096.
    ///
    /// Allocates; the read path takes its buffers from a [`Pool`] instead.
    pub fn zeroed(len: usize) -> IoBuf {
        IoBuf::allocated(len, MAPPED_FROM_LEN)
    }

    /// As [`IoBuf::zeroed`], for what comes and goes by the megabyte and in varying lengths: the system has
    /// it back when it is dropped, where an allocator would keep it, and map more for what does not fit.
    pub fn passing(len: usize) -> IoBuf {
        IoBuf::allocated(len, PASSING_MAPPED_FROM_LEN)
    }

    fn allocated(len: usize, mapped_from_len: usize) -> IoBuf {
        if len == 0 {
            return IoBuf::empty();
        }
        let (run, start) = Run::allocate_zeroed(len, mapped_from_len);
        IoBuf { run: Some(run), start, len }
    }

    /// The first `len` bytes of `run`, which begins at `start`.
    ///
    /// # Safety
    /// `run` is the only handle on its memory, and `start..start + len` is initialised memory of it.
    unsafe fn of_run(run: Run, start: NonNull<u8>, len: usize) -> IoBuf {
        IoBuf { run: Some(run), start, len }
    }

    /// Splits at `at`: `self` keeps the bytes before it, the rest is returned as its own window.
    ///
    /// # Panics
    /// `at` lies past the end.
    #[must_use = "the rest of the window is given up when it is dropped"]
    pub fn split_off(&mut self, at: usize) -> IoBuf {
        assert!(at <= self.len, "split past the end");
        if at == 0 {
            return std::mem::take(self);
        }
        if at == self.len {
            return IoBuf::empty();
        }
        // SAFETY: `at` is within this window, which lies in one run.
        let start = unsafe { self.start.add(at) };
        let rest = IoBuf { run: self.run.clone(), start, len: self.len - at };
        self.len = at;
        rest
    }

    /// Gives up the bytes from `len` on; nothing happens when there are none.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            drop(self.split_off(len));
        }
    }

    /// Takes back the window that begins where this one ends: the inverse of [`IoBuf::split_off`].
    ///
    /// An empty window joins with any other.
    ///
    /// # Errors
    /// `other` itself, when it is not the next window of the same run.
    pub fn unsplit(&mut self, other: IoBuf) -> Result<(), IoBuf> {
        if other.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            *self = other;
            return Ok(());
        }
        // SAFETY: one past the end of this window is still in, or one past, its run.
        let end = unsafe { self.start.add(self.len) };
        if self.run != other.run || end != other.start {
            return Err(other);
        }
        self.len += other.len;
        Ok(())
    }

    /// As [`IoBuf::unsplit`]; where other memory has taken the place of a window, which a lost device may
    /// still write to, both are copied into new memory.
    pub fn rejoin(&mut self, other: IoBuf) {
        if let Err(other) = self.unsplit(other) {
            let mut whole = IoBuf::zeroed(self.len + other.len);
            whole[..self.len].copy_from_slice(self);
            whole[self.len..].copy_from_slice(&other);
            *self = whole;
        }
    }

    /// Whether it lies in memory of a device driver's, which its devices reach: see [`PageSource`].
    pub fn is_of_driver(&self) -> bool {
        self.run.as_ref().is_some_and(Run::is_of_driver)
    }

    /// Ends writing: the same bytes, to be shared.
    pub fn freeze(self) -> SharedBuf {
        // SAFETY: this window was the only owner of its bytes, and it ends here, so nobody can write
        // them any more; they are initialised, and the handle keeps them alive.
        unsafe { SharedBuf::of_window(self.run, self.start, self.len) }
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the window is initialised memory of a run that `self.run` keeps alive, and nobody
        // else has it; an empty window has a dangling but aligned start, as an empty slice may.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Default for IoBuf {
    fn default() -> IoBuf {
        IoBuf::empty()
    }
}

impl std::fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoBuf({} bytes)", self.len)
    }
}

/// Asks for the first bytes of `bytes` to be on their way when they are read: the processor then
/// notices a sequence and fetches the rest by itself.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(CACHE_LINE_BYTES).take(PREFETCHED_LINES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint that reads nothing and cannot fault, whatever the address; every x86-64
        // processor has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes; // a hint only
}

#[cfg(target_arch = "x86_64")]
const CACHE_LINE_BYTES: usize = 64;

/// By measurement: 8 to 32 are alike, and all 64 lines of a 4 KiB block cost a fifth more.
#[cfg(target_arch = "x86_64")]
const PREFETCHED_LINES: usize = 16;

#[cfg(test)]
mod tests;
