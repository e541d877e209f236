//! The process identifier, cached so that most calls avoid the kernel.
#![allow(unsafe_code)] // registers a handler of forks

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The identifier of the calling process, to tell a forked child from its parent.
///
/// Costs one load, where [`std::process::id`] is a system call: a handler of `pthread_atfork` forgets it in every
/// child. Takes no lock, so a fork at any moment is safe.
pub fn process_id() -> u32 {
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    static HAS_HANDLER: AtomicBool = AtomicBool::new(false);
    if !HAS_HANDLER.load(Ordering::Acquire) {
        // SAFETY: the handler is `extern "C"`, does not unwind, and lives as long as the program. Two threads may both
        // register it, which does no harm.
        let registered = unsafe { libc::pthread_atfork(None, None, Some(forget)) };
        if registered != 0 {
            return std::process::id(); // no memory for it: each call asks the kernel
        }
        HAS_HANDLER.store(true, Ordering::Release);
    }
    let id = std::process::id();
    KNOWN.store(id, Ordering::Relaxed); // another thread would store the same
    id
}

extern "C" fn forget() {
    KNOWN.store(0, Ordering::Relaxed);
}

/// 0: not known.
static KNOWN: AtomicU32 = AtomicU32::new(0);

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
