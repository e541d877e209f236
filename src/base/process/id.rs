//! The identifier of the process, cached so that most calls avoid the kernel.
#![allow(unsafe_code)] // keeps a page for ever

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The identifier of the calling process, for telling a forked child from its parent.
///
/// Costs two loads instead of the system call in [`std::process::id`]: the identifier is cached in a page
/// that the kernel zeroes in each child (`MADV_WIPEONFORK`, from Linux 4.14 on). Takes no lock, so a fork at
/// any moment is safe.
pub fn process_id() -> u32 {
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        page = make_page();
    }
    if std::ptr::eq(page, &raw const NO_PAGE) {
        return std::process::id();
    }
    // SAFETY: not null and not `NO_PAGE`, so it is the start of the page that `make_page` mapped,
    // which is never unmapped; an `AtomicU32` is valid with any bytes.
    let known = unsafe { &*page };
    match known.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            known.store(id, Ordering::Relaxed); // other threads store the same value
            id
        }
        id => id,
    }
}

/// Maps the page, or records that the kernel does not support such pages. If several threads map at once,
/// the first one's result is used.
fn make_page() -> *mut AtomicU32 {
    let no_page = (&raw const NO_PAGE).cast_mut();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let mapped = unsafe { mmap_anonymous(null_mut(), PAGE_LEN, protection, flags) };
    let page = match mapped {
        // SAFETY: the range was just mapped and holds nothing yet.
        Ok(start) if unsafe { madvise(start, PAGE_LEN, Advice::LinuxWipeOnFork) }.is_ok() => {
            start.cast::<AtomicU32>()
        }
        _ => no_page, // an older kernel: each call makes the system call
    };
    match PAGE.compare_exchange(null_mut(), page, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => page,
        Err(first) => {
            if page != no_page {
                // SAFETY: mapped above with this length, and nobody else has seen it.
                let unmapped = unsafe { munmap(page.cast(), PAGE_LEN) };
                debug_assert!(unmapped.is_ok(), "unmapping what was mapped");
            }
            first
        }
    }
}

/// The page with the cached identifier; null until the first call.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// [`PAGE`] points to this marker if the kernel does not support such pages; its value is unused.
static NO_PAGE: AtomicU32 = AtomicU32::new(0);
const PAGE_LEN: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_sees_the_identifier_that_the_kernel_gives() {
        let threads = (0..8).map(|_| std::thread::spawn(process_id));
        let ids: Vec<u32> = threads.map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ids, [std::process::id(); 8]);
    }
}
