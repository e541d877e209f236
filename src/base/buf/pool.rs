//! A pool of fixed-size slots, and the reference-counted allocations that buffers are handles on: ranges of slots, and
//! memory outside a pool.
//!
//! The count of an allocation is in a header outside of its memory. A pool creates one header per slot in
//! advance, so taking slots does not allocate. [`Pool::take`] claims slots (`slots.rs`), [`Pool::outside`] memory for
//! I/O that does not fit (`spares.rs`).
#![allow(unsafe_code)] // hands out ranges of mapped memory, and counts their owners

use std::alloc::Layout;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32};

use rustix::fs::SealFlags;

use super::IoBuf;
use super::handles::Handles;
use super::pages::{HUGE_LEN, Mapping, PageSource, Pages};
use super::registration::Registrar;
use super::slots::Slots;
use super::spares::Spares;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Ordering;
use crate::units::ALIGN_BYTES;

/// A pool's use of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HugePages {
    /// For pools of 1 MiB or more the first that is available of: a driver's memory ([`super::use_pages_of`]),
    /// reserved huge pages, transparent huge pages, 4 KiB pages. For smaller pools 4 KiB pages.
    #[default]
    Auto,
    /// 4 KiB pages.
    Off,
}

/// The size of a pool, and its use of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    /// Total length of all slots; a partial slot at the end is not used.
    pub bytes: usize,
    /// Length of a slot: a multiple of 4,096. Allocations are rounded up to whole slots.
    pub slot_len_bytes: usize,
    /// The use of huge pages by [`Pool::new`]; the other constructors ignore it.
    pub huge_pages: HugePages,
}

/// Memory for I/O: a fixed number of slots, allocated in contiguous ranges and freed by dropping.
///
/// Clones are handles on the same pool; any thread may allocate and drop. The memory is unmapped, or returned
/// to the driver, when the last handle and the last buffer are dropped.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

/// The memory and the slots that all handles on a pool share.
pub(super) struct Inner {
    /// One header per slot; an allocation uses the header of its first slot.
    headers: Box<[Header]>,
    slots: Slots,
    slot_len_bytes: usize,
    mapping: Mapping,
    /// The file of memory that other processes can map; `None` except in [`Pool::shared`].
    file: Option<OwnedFd>,
    /// Memory of dropped buffers outside the pool, for reuse.
    spares: Arc<Spares>,
}

impl Pool {
    /// Maps the memory. The kernel allocates transparent and base pages when they are first touched.
    ///
    /// # Errors
    /// `InvalidArgument`: less than one slot, a slot length that is not a multiple of 4,096, or 2^32 slots or
    /// more. `OutOfMemory`: the operating system does not have that much memory.
    pub fn new(options: PoolOptions) -> Result<Pool> {
        let huge = options.huge_pages == HugePages::Auto;
        Pool::with_pages(options, |len| Ok((Mapping::new(len, huge)?, None)))
    }

    /// A pool whose memory other processes can map for reading: see [`Pool::file`]. Forked children do not have it.
    ///
    /// # Errors
    /// The errors of [`Pool::new`], and of the operating system for files.
    pub fn shared(options: PoolOptions) -> Result<Pool> {
        Pool::with_pages(options, |len| {
            let (mut mapping, file) = Mapping::shared(len)?;
            mapping.will_collapse();
            mapping.keep_from_children();
            // From here on it can be mapped for reading only (Linux 5.1); the mapping of this process stays writable.
            let sealed = rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE);
            sealed.unwrap_or(()); // an older kernel leaves it to the clients to map for reading only
            Ok((mapping, Some(file)))
        })
    }

    /// A pool whose memory comes only from `source`.
    ///
    /// # Errors
    /// The errors of [`Pool::new`]; `OutOfMemory` is that of `source`.
    pub fn of_source(options: PoolOptions, source: &'static dyn PageSource) -> Result<Pool> {
        Pool::with_pages(options, |len| {
            let none = || Error::new(ErrorKind::OutOfMemory, "the driver has no memory left");
            Ok((Mapping::of(source, len).ok_or_else(none)?, None))
        })
    }

    fn with_pages(
        options: PoolOptions,
        map: impl FnOnce(usize) -> Result<(Mapping, Option<OwnedFd>)>,
    ) -> Result<Pool> {
        let PoolOptions { bytes, slot_len_bytes, .. } = options;
        let invalid = |message| Err(Error::new(ErrorKind::InvalidArgument, message));
        if slot_len_bytes == 0 || slot_len_bytes % ALIGN_BYTES != 0 {
            return invalid(format!("a slot of {slot_len_bytes} bytes is not a multiple of 4 KiB"));
        }
        let num_slots = bytes / slot_len_bytes;
        if num_slots == 0 || u32::try_from(num_slots).is_err() {
            return invalid(format!(
                "{bytes} bytes make {num_slots} slots of {slot_len_bytes}: a \
                 pool has 1 to 2^32 - 1"
            ));
        }
        let (mapping, file) = map(num_slots * slot_len_bytes)?;
        let headers = (0..num_slots).map(|_| Header::of_free_slot()).collect();
        let slots = Slots::new(num_slots);
        let spares = Arc::default();
        Ok(Pool(Arc::new(Inner { headers, slots, slot_len_bytes, mapping, file, spares })))
    }

    /// Registers the pool's memory with a driver, and from now on also that of [`Pool::outside`], until it is unmapped.
    /// At most once for each pool, before it is used. Allocates all pages now. In forked children the memory is not
    /// mapped, so reading a buffer of it kills the child; only memory of a driver ([`Pool::of_source`]) stays mapped.
    ///
    /// # Errors
    /// The driver's refusal; the pool then works without it.
    pub fn register(&self, registrar: &'static dyn Registrar) -> Result<()> {
        self.0.mapping.register(registrar, self.capacity_bytes())?;
        self.0.spares.registrar.get_or_init(|| registrar);
        Ok(())
    }

    /// The length of the slots' memory that is registered with a driver: all of it, or 0.
    pub fn registered_bytes(&self) -> usize {
        self.0.mapping.registered_bytes()
    }

    /// A buffer of `len` bytes in contiguous slots, aligned to 4,096, with arbitrary contents.
    /// `None` if no long enough range of slots is free, or another thread takes some of it meanwhile.
    ///
    /// Never blocks, makes no system call and does not allocate from the heap. In a forked child, a pool in
    /// a driver's memory, or registered with one, has no free slot: that memory is the parent's.
    pub fn take(&self, len: usize) -> Option<IoBuf> {
        if len == 0 {
            return Some(IoBuf::empty());
        }
        let inner = &*self.0;
        if inner.mapping.is_foreign() {
            return None;
        }
        let num_slots = len.div_ceil(inner.slot_len_bytes);
        let first = inner.slots.take(num_slots)?;
        Some(self.buffer_on(first, num_slots, len))
    }

    /// A buffer of `len` bytes outside the pool, aligned to 4,096, with arbitrary contents: for I/O that
    /// does not fit the pool. From 2 MiB on, and for a registered pool at any length, such buffers reuse the memory of
    /// dropped ones. That memory is unmapped at the latest with the pool and the last such buffer.
    ///
    /// # Errors
    /// `OutOfMemory`: the operating system has no memory.
    #[doc(hidden)]
    pub fn outside(&self, len: usize) -> Result<IoBuf> {
        let reuses = len >= HUGE_LEN || len > 0 && self.registered_bytes() > 0;
        let spare = if reuses { Allocation::of_spares(&self.0.spares, len) } else { None };
        let Some((allocation, start)) = spare else {
            return IoBuf::allocated(len, TEMPORARY_MAPPED_FROM_LEN);
        };
        // SAFETY: nobody else has a handle, and `of_spares` gives at least `len` bytes, which the kernel zeroed or an
        // earlier buffer wrote.
        Ok(unsafe { IoBuf::of_allocation(allocation, start, len) })
    }

    /// [`Pool::take`] at a fixed location: the first slot is the one that contains `offset`. `None` if `len`
    /// is 0, or the slots do not exist or are not all free.
    #[doc(hidden)]
    pub fn take_at(&self, offset: usize, len: usize) -> Option<IoBuf> {
        let inner = &*self.0;
        let first = offset / inner.slot_len_bytes;
        let num_slots = len.div_ceil(inner.slot_len_bytes);
        if num_slots == 0 || inner.mapping.is_foreign() || !inner.slots.take_at(first, num_slots) {
            return None;
        }
        Some(self.buffer_on(first, num_slots, len))
    }

    /// Faults in the pages of the `len` bytes from `offset` on, in huge pages if available. Does nothing if some of the
    /// slots are taken: their owner faults them in, and returns them soon.
    #[doc(hidden)]
    pub fn fault_in(&self, offset: usize, len: usize) {
        let Some(mut piece) = self.take_at(offset, len) else { return };
        piece.iter_mut().step_by(HUGE_LEN).for_each(|byte| *byte = 0);
        self.0.mapping.collapse(offset, len);
        piece.iter_mut().step_by(ALIGN_BYTES).for_each(|byte| *byte = 0);
    }

    /// A buffer of `len` bytes in slots that the caller has just allocated.
    fn buffer_on(&self, first: usize, num_slots: usize, len: usize) -> IoBuf {
        let inner = &*self.0;
        let num_slots = u32::try_from(num_slots).expect("as many slots as were just taken");
        // SAFETY: the slots were just claimed, so no buffer and no handle of them exists; the
        // header is that of the first.
        let allocation = unsafe { Allocation::of_slots(&self.0, &inner.headers[first], num_slots) };
        // SAFETY: the slots lie within the mapping.
        let start = unsafe { inner.mapping.start().add(first * inner.slot_len_bytes) };
        // SAFETY: `allocation` is the only handle, and its slots hold at least `len` bytes from `start`. These are
        // initialised: they were zeroed when they were mapped.
        unsafe { IoBuf::of_allocation(allocation, start, len) }
    }

    /// Offset of `bytes` in the pool; `None` if they lie outside it.
    pub fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = bytes.as_ptr().addr().checked_sub(self.0.mapping.start().addr().get())?;
        (offset + bytes.len() <= self.capacity_bytes()).then_some(offset)
    }

    /// The address of the byte at `offset`, for a device that registers the whole pool once.
    ///
    /// # Panics
    /// If `offset` is not below [`Pool::capacity_bytes`].
    #[doc(hidden)]
    pub fn address_of(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.capacity_bytes(), "an offset past the end of the pool");
        // SAFETY: the mapping is at least as long as all slots together.
        unsafe { self.0.mapping.start().add(offset) }
    }

    /// The file of a [`Pool::shared`], for [`SharedBytes::open`](super::SharedBytes::open) with
    /// [`Pool::capacity_bytes`] in another process; `None` for other pools.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file.as_ref().map(OwnedFd::as_fd)
    }

    /// Total length of all slots.
    pub fn capacity_bytes(&self) -> usize {
        self.0.slots.num_slots() * self.0.slot_len_bytes
    }

    /// Length of the free slots; may be slightly too high while other threads allocate.
    pub fn free_bytes(&self) -> usize {
        self.0.slots.num_free() * self.0.slot_len_bytes
    }

    /// Length of a slot.
    pub fn slot_len_bytes(&self) -> usize {
        self.0.slot_len_bytes
    }

    /// The kind of pages that the pool uses.
    pub fn pages(&self) -> Pages {
        self.0.mapping.pages
    }

    /// Returns whether pages are allocated when first touched, instead of when the pool is created.
    #[doc(hidden)]
    pub fn pages_come_later(&self) -> bool {
        matches!(self.pages(), Pages::Transparent | Pages::Base)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let free = self.free_bytes();
        let all = self.capacity_bytes();
        write!(f, "Pool({free} of {all} bytes free, {})", self.pages())
    }
}

impl Inner {
    /// Frees the slots of the allocation with this header.
    pub(super) fn give_back(&self, header: NonNull<Header>, num_slots: u32) {
        let offset = header.addr().get() - self.headers.as_ptr().addr();
        self.slots.give_back(offset / size_of::<Header>(), num_slots as usize);
    }
}

/// A counted handle on an allocation. Dropping the last handle returns the memory.
pub(super) struct Allocation(NonNull<Header>);

/// The reference count of an allocation, and the owner that gets its memory back.
pub(super) struct Header {
    handles: Handles,
    backing: Backing,
}

/// The memory of an allocation.
enum Backing {
    /// Heap memory; the header is a separate `Box`.
    Heap { start: NonNull<u8>, layout: Layout },
    /// A mapping, which returns to `home` if there is one; otherwise it is unmapped. The header is a separate
    /// `Box`. The mapping is boxed, too: headers of slots are many, and have to be short.
    Mapped { mapping: Box<Mapping>, home: Option<Arc<Spares>> },
    /// Memory that another owner lends. The header, a separate `Box`, keeps it alive.
    Lent { _memory: Arc<dyn Send + Sync> },
    /// Slots of a pool, which also owns the header. The thread that takes the slots sets both fields, before another
    /// thread can access them.
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
        Some((Allocation::with_own_header(backing), start))
    }

    /// The first handle on memory with a header of its own, in a `Box`.
    fn with_own_header(backing: Backing) -> Allocation {
        let header = Box::new(Header { handles: Handles::new(1), backing });
        Allocation(NonNull::from(Box::leak(header)))
    }

    /// Maps memory for one buffer; from 2 MiB on in transparent huge pages, if available. These make random accesses to
    /// large long-lived data, such as the directory, faster.
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
        let home = Some(Arc::clone(home));
        let backing = Backing::Mapped { mapping: Box::new(mapping), home };
        Some((Allocation::with_own_header(backing), start))
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
        Allocation::with_own_header(Backing::Lent { _memory: memory })
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

    /// Returns whether the only handle may write the memory: false for lent memory.
    pub(super) fn is_owned(&self) -> bool {
        !matches!(self.header().backing, Backing::Lent { .. })
    }

    /// The device driver that the memory belongs to.
    pub(super) fn source(&self) -> Option<&'static dyn PageSource> {
        match &self.header().backing {
            Backing::Pool { pool, .. } => {
                // SAFETY: the allocation holds a reference to the pool, see `of_slots`.
                let pool = unsafe { &*pool.load(Ordering::Relaxed) };
                pool.mapping.source()
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
                // SAFETY: leaked from a `Box` in `with_own_header`, freed once, here; no reference into the header
                // is alive, `start` and `layout` were copied out.
                drop(unsafe { Box::from_raw(self.0.as_ptr()) });
            }
            Backing::Mapped { .. } | Backing::Lent { .. } => {
                // SAFETY: leaked from a `Box` in `with_own_header`, freed once, here, with what it maps or keeps
                // alive; no reference into either is alive, this was the last handle.
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

/// Long-lived buffers of this length or more are mapped: four huge pages.
pub(super) const MAPPED_FROM_LEN: usize = 8 << 20;

/// Short-lived buffers of this length or more are mapped, as in C allocators: dropping one returns its memory to the
/// operating system, where the heap would keep it and map more for the next length. Mapping shorter ones, too, could
/// exhaust the 65,530 mappings that a process may have.
pub(super) const TEMPORARY_MAPPED_FROM_LEN: usize = 128 << 10;
