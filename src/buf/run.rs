//! Runs of memory and the count of the handles on each.
//!
//! The count stands in a header beside the memory, not in an `Arc` of its own, so that taking a run
//! from a pool allocates nothing: a pool has one header a slot, made once.
#![allow(unsafe_code)] // counts the owners of raw memory

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

use super::pages::{Mapping, Pages};
use super::pool::Inner;
use crate::units::ALIGN_BYTES;

/// A counted handle on a run. The run goes home when the last handle is dropped.
pub(super) struct Run(NonNull<Header>);

/// The count of a run, and where its memory goes when the count falls to zero.
pub(super) struct Header {
    handles: AtomicUsize,
    home: Home,
}

enum Home {
    /// An allocation of its own; the header is a `Box` of its own.
    Heap { start: NonNull<u8>, layout: Layout },
    /// A mapping of its own, which is undone with the header; the header is a `Box` of its own.
    Mapped { _mapping: Mapping },
    /// Slots of a pool, which also owns the header. Both fields are set when the run is taken: by
    /// the thread that claimed the slots, so nobody else looks at them.
    Pool { pool: AtomicPtr<Inner>, num_slots: AtomicU32 },
}

// SAFETY: the header is atomics and, for the heap, a pointer that only the last handle uses; the
// memory behind it may be freed by any thread.
unsafe impl Send for Run {}
// SAFETY: as above; `&Run` can only clone the handle, which is atomic.
unsafe impl Sync for Run {}
// SAFETY: the pointers in a header are used by the last handle only, see `Run`.
unsafe impl Send for Header {}
// SAFETY: as for `Send`: what `&Header` reaches is atomics, and pointers that the last handle alone uses.
unsafe impl Sync for Header {}

impl Run {
    /// A run of `len` zero bytes of its own, and where it begins: on the heap, unless `len` is at least
    /// `mapped_from_len`.
    pub(super) fn allocate_zeroed(len: usize, mapped_from_len: usize) -> (Run, NonNull<u8>) {
        assert!(len > 0, "an empty window needs no run");
        let mapped = if len >= mapped_from_len { Run::mapped(len) } else { None };
        let (home, start) = mapped.unwrap_or_else(|| Run::on_the_heap(len));
        let header = Box::new(Header { handles: AtomicUsize::new(1), home });
        (Run(NonNull::from(Box::leak(header))), start)
    }

    /// Memory for a large buffer: zero as it is mapped, and in huge pages where the kernel makes
    /// them, since what is large and stays, a directory, is looked up in at random.
    fn mapped(len: usize) -> Option<(Home, NonNull<u8>)> {
        let mapping = Mapping::transparent_or_base(len).ok()?;
        let start = mapping.start();
        Some((Home::Mapped { _mapping: mapping }, start))
    }

    fn on_the_heap(len: usize) -> (Home, NonNull<u8>) {
        let layout = Layout::from_size_align(len, ALIGN_BYTES).expect("length below isize::MAX");
        // SAFETY: the layout has a length above zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        (Home::Heap { start, layout }, start)
    }

    /// The first handle on `num_slots` slots of `pool` that begin at the slot of `header`.
    ///
    /// # Safety
    /// `header` belongs to `pool`, its slots have just been claimed by the caller, and no handle on
    /// them exists.
    pub(super) unsafe fn of_slots(pool: &Arc<Inner>, header: &Header, num_slots: u32) -> Run {
        let Home::Pool { pool: home, num_slots: count } = &header.home else {
            unreachable!("pools are made of pool headers");
        };
        // Relaxed: who gets the handle later gets it over something that orders these too.
        home.store(Arc::into_raw(Arc::clone(pool)).cast_mut(), Ordering::Relaxed);
        count.store(num_slots, Ordering::Relaxed);
        header.handles.store(1, Ordering::Relaxed);
        Run(NonNull::from(header))
    }

    /// Whether no other handle exists. Then none can come, since a handle is made from a handle.
    pub(super) fn is_only_handle(&self) -> bool {
        // Acquire: what handles that are gone did to the bytes happens before what this one does.
        self.header().handles.load(Ordering::Acquire) == 1
    }

    /// Whether the memory is a device driver's own.
    pub(super) fn is_of_driver(&self) -> bool {
        match &self.header().home {
            Home::Pool { pool, .. } => {
                // SAFETY: the run holds a count of the pool, see `of_slots`.
                let pool = unsafe { &*pool.load(Ordering::Relaxed) };
                pool.pages() == Pages::Driver
            }
            Home::Heap { .. } | Home::Mapped { .. } => false,
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: a header lives as long as a handle on its run: a boxed one is freed by the last
        // handle, and a pool's lies in the pool, on which the run holds a count.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for Run {
    fn clone(&self) -> Run {
        // Relaxed: the new handle comes from one that exists, as with `Arc`.
        self.header().handles.fetch_add(1, Ordering::Relaxed);
        Run(self.0)
    }
}

impl PartialEq for Run {
    fn eq(&self, other: &Run) -> bool {
        self.0 == other.0
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Release, then acquire by the last: what other handles did to the bytes happens before the
        // memory is used again.
        if self.header().handles.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        match &self.header().home {
            Home::Heap { start, layout } => {
                let (start, layout) = (*start, *layout);
                // SAFETY: allocated with this layout in `allocate_zeroed`; this was the last handle.
                unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
                // SAFETY: leaked from a `Box` in `allocate_zeroed`, freed once, here; no reference
                // into the header is alive, `start` and `layout` were copied out.
                drop(unsafe { Box::from_raw(self.0.as_ptr()) });
            }
            Home::Mapped { .. } => {
                // SAFETY: leaked from a `Box` in `allocate_zeroed`, freed once, here, with what it
                // maps; no reference into either is alive, this was the last handle.
                drop(unsafe { Box::from_raw(self.0.as_ptr()) });
            }
            Home::Pool { pool, num_slots } => {
                let num_slots = num_slots.load(Ordering::Relaxed);
                // SAFETY: `of_slots` stored a count of the pool for this run, given up once, here.
                let pool = unsafe { Arc::from_raw(pool.load(Ordering::Relaxed).cast_const()) };
                // From here on the slots may be somebody else's run; the header is not read again.
                pool.give_back(self.0, num_slots);
            }
        }
    }
}

impl Header {
    /// The header of a pool's slot that is not in use.
    pub(super) fn of_free_slot() -> Header {
        let home =
            Home::Pool { pool: AtomicPtr::new(std::ptr::null_mut()), num_slots: AtomicU32::new(0) };
        Header { handles: AtomicUsize::new(0), home }
    }
}

/// Buffers of this many bytes and more are mapped: four huge pages.
pub(super) const MAPPED_FROM_LEN: usize = 8 << 20;

/// Of those that come and go, these are: as many as the allocators of C map at first. A process has few
/// mappings (65,530), which smaller ones would use up.
pub(super) const PASSING_MAPPED_FROM_LEN: usize = 128 << 10;
