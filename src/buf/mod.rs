//! Memory that devices may write into.
#![allow(unsafe_code)] // one of the homes of `unsafe`: owned, aligned memory handed out in windows

use std::alloc::Layout;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::units::ALIGN_BYTES;

/// Owned bytes that move with their I/O: a whole aligned region, or a window of one.
///
/// Windows of one region are disjoint, and each has one owner.
pub struct IoBuf {
    region: Option<Arc<Region>>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an `IoBuf` is the only owner of its window, so it may go to another thread as a `Vec` may.
unsafe impl Send for IoBuf {}
// SAFETY: `&IoBuf` gives `&[u8]` only.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// A buffer of length 0 that owns no memory.
    pub fn empty() -> IoBuf {
        IoBuf { region: None, start: NonNull::dangling(), len: 0 }
    }

    /// A stand-alone buffer of `len` zero bytes whose start is aligned to 4,096.
    pub fn zeroed(len: usize) -> IoBuf {
        if len == 0 {
            return IoBuf::empty();
        }
        let region = Arc::new(Region::zeroed(len));
        IoBuf { start: region.start, region: Some(region), len }
    }

    /// Splits at `at`: `self` keeps the bytes before it, the rest is returned as its own window.
    pub fn split_off(&mut self, at: usize) -> IoBuf {
        assert!(at <= self.len, "split past the end");
        // SAFETY: `at` is within this window, which lies in one region.
        let start = unsafe { self.start.add(at) };
        let rest = IoBuf { region: self.region.clone(), start, len: self.len - at };
        self.len = at;
        rest
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the window is initialised memory of a region that `self.region` keeps alive, and
        // nobody else has it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoBuf({} bytes)", self.len)
    }
}

struct Region {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the region is plain memory; who may touch which bytes is the windows' business.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn zeroed(len: usize) -> Region {
        let layout = Layout::from_size_align(len, ALIGN_BYTES).expect("length below isize::MAX");
        // SAFETY: the layout has a length above zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Region { start, layout }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `zeroed`, and the last window is gone.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}
