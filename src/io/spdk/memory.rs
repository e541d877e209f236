//! DMA memory: pages for `buf`'s pools from SPDK's heap.

use std::ptr::NonNull;

use spdk_sys as sys;

use super::env;
use dlfs_base::buf::PageSource;

/// SPDK's heap as a source of pages.
#[derive(Debug)]
pub struct DriverMemory {
    /// Gives the static a distinct address, by which buffers know their driver.
    _place: u8,
}

static DRIVER_MEMORY: DriverMemory = DriverMemory { _place: 0 };

/// The heap of the environment. Allocate from it only once the environment was started.
pub fn driver_memory() -> &'static DriverMemory {
    &DRIVER_MEMORY
}

// SAFETY: `allocate` returns zeroed memory of at least that length and the requested alignment, which nobody
// else has until `free`. Any thread may call both: DPDK's heap has a lock.
unsafe impl PageSource for DriverMemory {
    fn allocate(&self, len: usize) -> Option<NonNull<u8>> {
        if env::has_forked() {
            return None;
        }
        // SAFETY: the environment runs: `driver_memory` is passed on only after it was started.
        let start = unsafe { sys::spdk_dma_zmalloc(len, ALIGN, std::ptr::null_mut()) };
        NonNull::new(start.cast())
    }

    unsafe fn free(&self, start: NonNull<u8>) {
        if !env::has_forked() {
            // SAFETY: by the contract of `PageSource` it came from `allocate` and is freed once.
            unsafe { sys::spdk_dma_free(start.as_ptr().cast()) };
        }
    }

    fn is_foreign(&self) -> bool {
        // The memory is shared with the parent process, which still uses it.
        env::has_forked()
    }
}

/// The alignment of allocations, in bytes: memory of whole huge pages is registered with devices as one region.
const ALIGN: usize = 2 << 20;
