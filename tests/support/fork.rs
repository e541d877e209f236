//! A forked child process without exec, as data loaders create their workers.
#![allow(unsafe_code)] // one of the homes of `unsafe`: fork has no safe form

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Runs `work` in a forked child; returns whether it returned true and the child ended within
/// four minutes.
///
/// The child has only the calling thread. It neither prints nor returns.
pub fn in_child(work: impl FnOnce() -> bool) -> bool {
    ends_well(spawn_child(work))
}

/// Waits until a forked child ends, four minutes at most; returns whether its work returned true.
pub fn ends_well(child: Pid) -> bool {
    let limit = Instant::now() + Duration::from_secs(240);
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            return status.exit_status() == Some(0);
        }
        if Instant::now() > limit {
            kill_process(child, Signal::KILL).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Starts `work` in a forked child, which exits with 0 if it returns true.
///
/// `work` may borrow only what lies on the calling thread's stack or on the heap: the C library of the
/// child takes the stacks of all other threads for new threads.
pub fn spawn_child(work: impl FnOnce() -> bool) -> Pid {
    // SAFETY: the child calls nothing but `work` and `_exit`. Like a forked data loader it relies on
    // the C library's promise that its allocator works after a fork, and takes no other lock that
    // another thread of the parent may have held.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(true) => 0,
            Ok(false) => 1,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
                let text = format!("in a forked child: {text}\n");
                // SAFETY: writes initialized bytes. What `eprintln` prints would be captured here and lost, and the
                // lock of stderr may be another thread's.
                unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
                2
            }
        };
        // SAFETY: ends the child at once; nothing of the parent's is flushed or torn down twice.
        unsafe { libc::_exit(code) }
    }
    Pid::from_raw(pid).expect("fork works and gives a child")
}
