//! Memory for device I/O: owned buffers, shared slices, and the pool they come from.
//!
//! An *allocation* is memory with a reference count: memory of its own ([`IoBuf::zeroed`]), adjacent slots
//! of a [`Pool`], or memory that [`SharedBytes`] lends. An [`IoBuf`] is a range of an allocation and the only
//! owner of its bytes, so that a device may write them. [`IoBuf::freeze`] turns it into a [`SharedBuf`],
//! which can be cloned and sliced, but not written. When only one handle is left, [`SharedBuf::thaw`] makes
//! it writable again, unless its memory is lent. Dropping the last buffer of an allocation returns the memory.
//!
//! Invariants: bytes of an [`IoBuf`] belong to no other buffer; every byte of an allocation is initialised, if
//! only with data of its previous owner; allocations are aligned to 4,096, except those of lent memory.
//!
//! Not handled here: which bytes of a buffer are valid (the I/O's completion tells), locking memory, and
//! waiting for free memory (an exhausted pool returns `None`).
//!
//! Besides, `shared_bytes.rs` and `file_memory.rs` have memory that several processes map, and `registration.rs` lets
//! an accelerator copy from pools and shared memory by DMA.
//!
//! First read this file, then `pool.rs`.
#![allow(unsafe_code)] // one of the homes of `unsafe`: owned, aligned memory handed out in ranges

mod file_memory;
mod handles;
mod pages;
mod pool;
mod registration;
mod shared_bytes;
mod slots;
mod spares;

pub use crate::error::zeroed_vec;
pub use file_memory::{FileMemory, SealedBytes, SealedLocation, SharedWords};
pub use pages::{PageSource, Pages, use_pages_of};
pub use pool::{HugePages, Pool, PoolOptions};
pub use registration::{Registered, Registrar};
pub use shared_bytes::{Lender, Loan, SharedBytes};

use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;

use super::error::{Result, no_memory};
use pool::{Allocation, MAPPED_FROM_LEN, TEMPORARY_MAPPED_FROM_LEN};

/// Owned bytes for I/O: an allocation, or a range of one.
///
/// No other buffer has these bytes, except inside a [`SharedBuf`]. An empty buffer holds no memory.
pub struct IoBuf {
    allocation: Option<Allocation>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an `IoBuf` is the only owner of its bytes, so it may move to another thread like a `Vec`;
// `Allocation` may, too.
unsafe impl Send for IoBuf {}

// SAFETY: through `&IoBuf` the bytes are only read, and `Allocation` is `Sync`.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// An empty buffer without memory.
    pub fn empty() -> IoBuf {
        IoBuf { allocation: None, start: NonNull::dangling(), len: 0 }
    }

    /// A stand-alone buffer of `len` zero bytes, aligned to 4,096.
    ///
    /// Allocates, and aborts the process if there is no memory. The read path takes its buffers from a [`Pool`]
    /// instead. For a length stated by media, a peer or a source, use [`IoBuf::try_zeroed`].
    pub fn zeroed(len: usize) -> IoBuf {
        let of_len = Layout::array::<u8>(len).unwrap_or(Layout::new::<u8>());
        IoBuf::try_zeroed(len).unwrap_or_else(|_| handle_alloc_error(of_len))
    }

    /// [`IoBuf::zeroed`] that may fail.
    ///
    /// # Errors
    /// `OutOfMemory`: the operating system has no memory.
    pub fn try_zeroed(len: usize) -> Result<IoBuf> {
        IoBuf::allocated(len, MAPPED_FROM_LEN)
    }

    /// [`IoBuf::try_zeroed`] for a buffer that is soon dropped: unless it is short, its memory then returns to the
    /// operating system. The heap of the thread would keep it.
    ///
    /// # Errors
    /// `OutOfMemory`: the operating system has no memory.
    pub fn try_temporary(len: usize) -> Result<IoBuf> {
        IoBuf::allocated(len, TEMPORARY_MAPPED_FROM_LEN)
    }

    /// A stand-alone buffer, mapped if `len` is at least `mapped_from_len`, otherwise on the heap.
    fn allocated(len: usize, mapped_from_len: usize) -> Result<IoBuf> {
        if len == 0 {
            return Ok(IoBuf::empty());
        }
        let allocated = Allocation::allocate_zeroed(len, mapped_from_len);
        let (allocation, start) = allocated.ok_or_else(|| no_memory(len, "a buffer"))?;
        Ok(IoBuf { allocation: Some(allocation), start, len })
    }

    /// The first `len` bytes of `allocation`, whose memory begins at `start`.
    ///
    /// # Safety
    /// `allocation` is the only handle on its memory, and `start..start + len` is initialised
    /// memory of it.
    unsafe fn of_allocation(allocation: Allocation, start: NonNull<u8>, len: usize) -> IoBuf {
        IoBuf { allocation: Some(allocation), start, len }
    }

    /// Splits at `at`: `self` keeps the bytes before it; returns the rest as a buffer of its own.
    ///
    /// # Panics
    /// If `at` is past the end.
    #[must_use = "the rest is dropped if it is not used"]
    pub fn split_off(&mut self, at: usize) -> IoBuf {
        assert!(at <= self.len, "split past the end");
        if at == 0 {
            return std::mem::take(self);
        }
        if at == self.len {
            return IoBuf::empty();
        }
        // SAFETY: `at` is within this buffer, which lies in one allocation.
        let start = unsafe { self.start.add(at) };
        let rest = IoBuf { allocation: self.allocation.clone(), start, len: self.len - at };
        self.len = at;
        rest
    }

    /// Drops the bytes from offset `len` on, if there are any.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            drop(self.split_off(len));
        }
    }

    /// Appends the buffer that begins at the end of this one: the inverse of [`IoBuf::split_off`].
    ///
    /// An empty buffer can be joined with any other.
    ///
    /// # Errors
    /// `other`, if it is not adjacent in the same allocation.
    pub fn unsplit(&mut self, other: IoBuf) -> std::result::Result<(), IoBuf> {
        if other.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            *self = other;
            return Ok(());
        }
        // SAFETY: one past the end of this buffer is still in, or one past, its allocation.
        let end = unsafe { self.start.add(self.len) };
        if self.allocation != other.allocation || end != other.start {
            return Err(other);
        }
        self.len += other.len;
        Ok(())
    }

    /// As [`IoBuf::unsplit`], but copies both buffers into new memory if they are not adjacent. Two parts of a
    /// buffer are not if one was replaced, because a lost device may still write to it.
    pub fn rejoin(&mut self, other: IoBuf) {
        if let Err(other) = self.unsplit(other) {
            let mut whole = IoBuf::zeroed(self.len + other.len);
            whole[..self.len].copy_from_slice(self);
            whole[self.len..].copy_from_slice(&other);
            *self = whole;
        }
    }

    /// Returns whether the memory belongs to a pool whose pages came from `source`, a device driver.
    pub fn is_of(&self, source: &'static dyn PageSource) -> bool {
        let found = self.allocation.as_ref().and_then(Allocation::source);
        found.is_some_and(|found| std::ptr::addr_eq(found, source))
    }

    /// Ends writing: returns the same bytes as a [`SharedBuf`].
    pub fn freeze(self) -> SharedBuf {
        SharedBuf(self)
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer is initialised memory of an allocation that `self.allocation` keeps alive. Nobody
        // writes it: no other buffer has it or, in a `SharedBuf`, all only read it. An empty buffer may have a
        // dangling start; it is aligned, as that of an empty slice must be.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`. `&mut self` makes it exclusive, since a `SharedBuf` gives out no `&mut IoBuf`.
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

/// Prefetches the start of `bytes` into the CPU cache. The processor's own prefetcher then recognises the
/// sequence and fetches the rest.
#[inline]
#[doc(hidden)]
pub fn prefetch(bytes: &[u8]) {
    prefetch_lines(bytes.as_ptr(), bytes.len());
}

/// [`prefetch`] of memory that other threads or processes may write meanwhile.
#[inline]
fn prefetch_lines(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(CACHE_LINE_BYTES).take(PREFETCHED_LINES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint that reads nothing and cannot fault, whatever the address; every x86-64
        // processor has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len); // a hint only
}

/// Read-only bytes: a frozen [`IoBuf`], a slice of one, or bytes that [`SharedBytes`] lends.
///
/// A clone or slice costs one atomic increment. The memory returns to its owner, such as a pool, when the
/// last clone or slice, and the last other buffer of its allocation, is dropped.
///
/// The inner buffer is not the only owner of its bytes: clones may share them, so nobody writes them.
#[derive(Default)]
pub struct SharedBuf(IoBuf);

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
    unsafe fn of_range(
        allocation: Option<Allocation>,
        start: NonNull<u8>,
        len: usize,
    ) -> SharedBuf {
        SharedBuf(IoBuf { allocation, start, len })
    }

    /// The bytes in `range`, which share the memory. An empty slice holds no memory.
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
    /// [`SharedBytes`].
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

#[cfg(target_arch = "x86_64")]
const CACHE_LINE_BYTES: usize = 64;

/// Measured: 8 to 32 lines perform alike; all 64 lines of a 4 KiB block cost a fifth more.
#[cfg(target_arch = "x86_64")]
const PREFETCHED_LINES: usize = 16;

#[cfg(test)]
mod tests;
