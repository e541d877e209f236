//! The system's allocator, which counts the allocations of each thread.
#![allow(unsafe_code)] // an allocator is one
#![allow(dead_code, unreachable_pub)] // a module of several programs, each of which uses a part

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Test programs declare it as `#[global_allocator]`.
pub struct CountingAlloc;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

static ALL_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Allocations that this thread makes while `work` runs.
pub fn allocations_during<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = ALLOCATIONS.get();
    let result = work();
    (ALLOCATIONS.get() - before, result)
}

/// Allocations that any thread of this process makes while `work` runs.
pub fn allocations_of_all_during<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = ALL_ALLOCATIONS.load(Ordering::Relaxed);
    let result = work();
    (ALL_ALLOCATIONS.load(Ordering::Relaxed) - before, result)
}

/// The heap's peak while `work` runs, in bytes above its use before.
pub fn peak_during<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    PEAK_BYTES.store(before, Ordering::Relaxed);
    let result = work();
    (PEAK_BYTES.load(Ordering::Relaxed) - before, result)
}

fn count(grown: usize) {
    // When a thread ends, its counter may be gone already; nobody needs it then.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    ALL_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    let live = LIVE_BYTES.fetch_add(grown, Ordering::Relaxed) + grown;
    PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator with the arguments as they came; counting
// allocates nothing (the counters are constants and have no destructor).
unsafe impl GlobalAlloc for CountingAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: `layout` has a length above zero, as callers of `alloc` promise; it goes on as it came.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: `layout` has a length above zero, as callers of `alloc_zeroed` promise; it goes on as it
        // came.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `start` came from this allocator, so from the system's, with this layout, as callers of
        // `dealloc` promise.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(len);
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `start` came from this allocator, so from the system's, with this layout, and `len` is
        // above zero, as callers of `realloc` promise.
        unsafe { System.realloc(start, layout, len) }
    }
}
