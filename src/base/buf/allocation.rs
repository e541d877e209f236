//! Reference-counted allocations.
//!
//! A header outside of the memory has the count, as an `Arc` would. A pool creates one header per slot in
//! advance, so taking slots does not allocate.
#![allow(unsafe_code)] // counts the owners of raw memory

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::handles::Handles;
use super::pages::{Mapping, PageSource};
use super::pool::{Inner, Spares};
use crate::units::ALIGN_BYTES;

/// A counted handle on an allocation. Dropping the last handle returns the memory.
pub(super) struct Allocation(NonNull<Header>);

/// The reference count of an allocation, and the owner to which its memory returns.
pub(super) struct Header {
    handles: Handles,
    backing: Backing,
}

enum Backing {
    /// Heap memory; the header is a separate `Box`.
    Heap { start: NonNull<u8>, layout: Layout },
    /// A mapping, which returns to `home` if there is one; otherwise it is unmapped. The header is a separate
    /// `Box`. The mapping is one too: headers of slots are many, and have to be short.
    Mapped { mapping: Box<Mapping>, home: Option<Arc<Spares>> },
    /// Memory owned by somebody else, who lends it. The header, a separate `Box`, keeps it alive.
    Lent { _memory: Arc<dyn Send + Sync> },
    /// Slots of a pool, which also owns the header. The thread that allocated the slots sets both fields,
    /// before anybody else can access them.
    Pool { pool: AtomicPtr<Inner>, num_slots: AtomicU32 },
}

// SAFETY: any thread may use and drop a handle. The count is atomic, and only the last handle frees the memory.
// While a handle exists, nobody changes `backing`: `of_slots` has set it before the first handle existed.
unsafe impl Send for Allocation {}
// SAFETY: as above; through `&Allocation` the count is changed atomically, and `backing` is only read.
unsafe impl Sync for Allocation {}
// SAFETY: `Mapping`, the `Arc`s and the atomics in a header are `Send`; only the last handle uses the heap pointer.
unsafe impl Send for Header {}
// SAFETY: as for `Send`; other handles only read `backing`, and the pool to which it points is `Sync`.
unsafe impl Sync for Header {}

impl Allocation {
    /// Allocates `len` zero bytes: mapped if `len` is at least `mapped_from_len`, on the heap if it is shorter
    /// or mapping fails. Returns the allocation and its start; `None`: the operating system has no memory.
    pub(super) fn allocate_zeroed(
        len: usize,
        mapped_from_len: usize,
    ) -> Option<(Allocation, NonNull<u8>)> {
        assert!(len > 0, "an empty buffer needs no allocation");
        let mapped = if len >= mapped_from_len { Allocation::mapped(len) } else { None };
        let (backing, start) = mapped.or_else(|| Allocation::on_the_heap(len))?;
        let header = Box::new(Header { handles: Handles::new(1), backing });
        Some((Allocation(NonNull::from(Box::leak(header))), start))
    }

    /// Maps memory for a large buffer, in transparent huge pages if available: these make random accesses
    /// to large long-lived data, such as the directory, faster.
    fn mapped(len: usize) -> Option<(Backing, NonNull<u8>)> {
        let mapping = Mapping::transparent_or_base(len).ok()?;
        let start = mapping.start();
        Some((Backing::Mapped { mapping: Box::new(mapping), home: None }, start))
    }

    /// The first handle on memory for `len` bytes with arbitrary contents, which returns to `home` when
    /// dropped. `None`: the operating system has no memory.
    pub(super) fn of_spares(home: &Arc<Spares>, len: usize) -> Option<(Allocation, NonNull<u8>)> {
        let mapping = home.take(len)?;
        let start = mapping.start();
        let mapping = Box::new(mapping);
        let backing = Backing::Mapped { mapping, home: Some(Arc::clone(home)) };
        let header = Box::new(Header { handles: Handles::new(1), backing });
        Some((Allocation(NonNull::from(Box::leak(header))), start))
    }

    fn on_the_heap(len: usize) -> Option<(Backing, NonNull<u8>)> {
        let layout = Layout::from_size_align(len, ALIGN_BYTES).ok()?;
        // SAFETY: the layout has a length above zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start)?;
        Some((Backing::Heap { start, layout }, start))
    }

    /// The first handle on bytes that `memory` owns and others may share.
    pub(super) fn lending(memory: Arc<dyn Send + Sync>) -> Allocation {
        let header = Box::new(Header {
            handles: Handles::new(1),
            backing: Backing::Lent { _memory: memory },
        });
        Allocation(NonNull::from(Box::leak(header)))
    }

    /// The first handle on `num_slots` slots of `pool`, starting at the slot of `header`.
    ///
    /// # Safety
    /// `header` belongs to `pool`, its slots have just been claimed by the caller, and no handle on
    /// them exists.
    pub(super) unsafe fn of_slots(
        pool: &Arc<Inner>,
        header: &Header,
        num_slots: u32,
    ) -> Allocation {
        let Backing::Pool { pool: backing, num_slots: count } = &header.backing else {
            unreachable!("pools are made of pool headers");
        };
        // Relaxed: passing the handle to another thread orders these stores, too.
        backing.store(Arc::into_raw(Arc::clone(pool)).cast_mut(), Ordering::Relaxed);
        count.store(num_slots, Ordering::Relaxed);
        header.handles.begin();
        Allocation(NonNull::from(header))
    }

    /// Returns whether this is the only handle. If so, no other can appear, since handles are only cloned
    /// from handles.
    pub(super) fn is_only_handle(&self) -> bool {
        self.header().handles.is_one()
    }

    /// Returns whether a sole handle may write the memory: false for lent memory.
    pub(super) fn is_owned(&self) -> bool {
        !matches!(self.header().backing, Backing::Lent { .. })
    }

    /// The device driver that the memory belongs to.
    pub(super) fn source(&self) -> Option<&'static dyn PageSource> {
        match &self.header().backing {
            Backing::Pool { pool, .. } => {
                // SAFETY: the allocation holds a reference to the pool, see `of_slots`.
                let pool = unsafe { &*pool.load(Ordering::Relaxed) };
                pool.source()
            }
            Backing::Heap { .. } | Backing::Mapped { .. } | Backing::Lent { .. } => None,
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: a header lives as long as a handle on its allocation: a boxed one is freed by the
        // last handle, and a pool's lies in the pool, to which the allocation holds a reference.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for Allocation {
    fn clone(&self) -> Allocation {
        self.header().handles.add();
        Allocation(self.0)
    }
}

impl PartialEq for Allocation {
    fn eq(&self, other: &Allocation) -> bool {
        self.0 == other.0
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.header().handles.remove() {
            return;
        }
        match &self.header().backing {
            Backing::Heap { start, layout } => {
                let start = *start;
                let layout = *layout;
                // SAFETY: allocated with this layout in `on_the_heap`; this was the last handle.
                unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
                // SAFETY: leaked from a `Box` in `allocate_zeroed`, freed once, here; no reference
                // into the header is alive, `start` and `layout` were copied out.
                drop(unsafe { Box::from_raw(self.0.as_ptr()) });
            }
            Backing::Mapped { .. } | Backing::Lent { .. } => {
                // SAFETY: leaked from a `Box` in `allocate_zeroed`, `of_spares` or `lending`, freed once, here, with
                // what it maps or keeps alive; no reference into either is alive, this was the last handle.
                let header = unsafe { Box::from_raw(self.0.as_ptr()) };
                if let Backing::Mapped { mapping, home: Some(home) } = header.backing {
                    home.give_back(*mapping);
                }
            }
            Backing::Pool { pool, num_slots } => {
                let num_slots = num_slots.load(Ordering::Relaxed);
                // SAFETY: `of_slots` stored a reference to the pool for this allocation, released
                // once, here.
                let pool = unsafe { Arc::from_raw(pool.load(Ordering::Relaxed).cast_const()) };
                // From here on, another allocation may use the slots; the header is not read again.
                pool.give_back(self.0, num_slots);
            }
        }
    }
}

impl Header {
    /// The header for a free slot.
    pub(super) fn of_free_slot() -> Header {
        let backing = Backing::Pool {
            pool: AtomicPtr::new(std::ptr::null_mut()),
            num_slots: AtomicU32::new(0),
        };
        Header { handles: Handles::new(0), backing }
    }
}

/// Buffers of this length or more are mapped: four huge pages.
pub(super) const MAPPED_FROM_LEN: usize = 8 << 20;

/// Temporary buffers of this length or more are mapped, as in C allocators. Mapping shorter ones, too, could
/// exhaust the 65,530 mappings that a process may have.
pub(super) const TEMPORARY_MAPPED_FROM_LEN: usize = 128 << 10;
