//! Memory for DMA: files that a device's process maps, or that the kernel pins for a device, and the source of the
//! pools' pages.
//!
//! A [`DmaRegion`] has a device address that no other region of the process ever has, so a device that is late writes
//! to nobody's memory. Large pools that the process creates once a device was opened take their pages from
//! [`window_memory`], a region for each pool: a driver maps the region once, and data are read into it without a copy.
#![allow(unsafe_code)] // promises that pages are nobody else's

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::area::Area;
use dlfs_base::buf::{FileMemory, PageSource};
use dlfs_base::error::Result;
use dlfs_base::process::process_id;

/// Memory that a device may map.
pub struct DmaRegion {
    memory: FileMemory,
    /// The address by which devices know it.
    address: u64,
}

impl DmaRegion {
    /// Allocates at least `len` zero bytes.
    ///
    /// # Errors
    /// The operating system has too little memory.
    pub fn new(len: usize) -> Result<DmaRegion> {
        let memory = FileMemory::new(len)?;
        let room = memory.len().next_multiple_of(ADDRESS_STEP as usize) as u64;
        let address = NEXT_ADDRESS.fetch_add(room, Ordering::Relaxed);
        Ok(DmaRegion { memory, address })
    }

    /// A new region for queues: its memory as an area, and the region itself, which a device maps.
    ///
    /// # Errors
    /// As [`DmaRegion::new`].
    pub fn for_queues(len: usize) -> Result<(Area, Arc<DmaRegion>)> {
        let region = Arc::new(DmaRegion::new(len)?);
        let words = Arc::new(QueueWords(Arc::clone(&region)));
        Ok((Area::new(words, region.address), region))
    }

    /// The file, to be passed to the device's process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// The address of the first byte in this process.
    pub fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// The address by which devices know it.
    pub fn address(&self) -> u64 {
        self.address
    }
}

/// The words of a region that no pool has.
struct QueueWords(Arc<DmaRegion>);

impl AsRef<[AtomicU32]> for QueueWords {
    fn as_ref(&self) -> &[AtomicU32] {
        self.0.memory.as_ref()
    }
}

/// The source of pages of this process's pools.
pub struct WindowMemory {
    regions: Mutex<Vec<Arc<DmaRegion>>>,
    /// The number of changes of `regions`.
    version: AtomicU64,
    /// The process that uses it; its children have none.
    pid: OnceLock<u32>,
}

static WINDOW_MEMORY: WindowMemory = WindowMemory {
    regions: Mutex::new(Vec::new()),
    version: AtomicU64::new(0),
    pid: OnceLock::new(),
};

/// The source of pages that devices reach. The process that calls this first is the only one that may use it.
pub fn window_memory() -> &'static WindowMemory {
    WINDOW_MEMORY.pid.get_or_init(process_id);
    &WINDOW_MEMORY
}

impl WindowMemory {
    /// A number that changes whenever a region comes or goes.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The regions that pools have now.
    pub fn regions(&self) -> Vec<Arc<DmaRegion>> {
        self.regions.lock().clone()
    }

    /// Changes the list, and with it the version.
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<DmaRegion>>)) {
        let mut regions = self.regions.lock();
        change(&mut regions);
        self.version.fetch_add(1, Ordering::Release);
    }
}

// SAFETY: `allocate` returns the zeroed memory of a new file mapping of at least that length, page-aligned, which
// `FileMemory` keeps mapped while its region is listed, so until `free`; only `for_queues` gives out words of a region,
// and those regions are never listed.
unsafe impl PageSource for WindowMemory {
    fn allocate(&self, len: usize) -> Option<NonNull<u8>> {
        if self.is_foreign() {
            return None;
        }
        let region = Arc::new(DmaRegion::new(len).ok()?);
        let start = region.start();
        self.change(|regions| regions.push(region));
        Some(start)
    }

    unsafe fn free(&self, start: NonNull<u8>) {
        if !self.is_foreign() {
            self.change(|regions| regions.retain(|region| region.start() != start));
        }
    }

    fn is_foreign(&self) -> bool {
        self.pid.get() != Some(&process_id())
    }
}

/// The first device address is above all memory below 4 GiB, where processors keep windows for interrupts.
static NEXT_ADDRESS: AtomicU64 = AtomicU64::new(4 << 30);

/// Regions begin at multiples of a huge page.
const ADDRESS_STEP: u64 = 2 << 20;
