//! Memory use and allocations of the library: one program, whose allocator counts.
//!
//! The allocator counts for the whole process, so its tests run one after the other. No other test may run beside
//! them: they are not part of the program `all`.

mod allocations;
mod fuzz;
mod import_memory;
mod memory;
mod support;
mod target_process;
#[path = "../fuzz/src/lib.rs"]
#[allow(unreachable_pub)] // their package exports them
mod targets;

use targets::net; // where the control socket of `targets` expects it

use std::sync::{Mutex, MutexGuard};

/// One test at a time: heap, descriptors and forks belong to the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
