//! The library's messages, passed to a function of the program.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use tracing::Level;

use dlfs::error::renamed;
use dlfs::messages::{Message, subscribe};

use crate::error::{DLFS_E_BUSY, FIELDS, Failure, guard};

/// Something failed for good.
pub const DLFS_LOG_ERROR: c_int = 1;
/// Something failed and was recovered, or is slower than necessary.
pub const DLFS_LOG_WARNING: c_int = 2;
/// Information.
pub const DLFS_LOG_INFO: c_int = 3;

/// Receives one message of the library: its level, DLFS_LOG_..., and its text, which is valid until
/// the function returns. Any thread may call it, including the library's own, and several at a
/// time. It must not call the library, and should not wait.
pub type OnLog = Option<unsafe extern "C" fn(user: *mut c_void, level: c_int, text: *const c_char)>;

/// Passes the library's messages to `on_log` from now on, at most a few per second: reconnections,
/// skipped samples, a window that is too small. NULL stops that. By default nothing is written
/// anywhere. Any thread; one function per process. Another thread may still be running the previous
/// function when this returns, so `user` stays valid until the process ends.
///
/// DLFS_E_BUSY: the program has another subscriber for messages, as one in Rust may have.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_log(on_log: OnLog, user: *mut c_void) -> c_int {
    guard(|| {
        if on_log.is_some() && !ensure_installed() {
            let text = "the process has another subscriber of messages";
            return Err(Failure::new(DLFS_E_BUSY, text));
        }
        let next = Box::into_raw(Box::new(Listener { on_log, user, before: null_mut() }));
        let link = |before| {
            // SAFETY: allocated above, and nobody else has it before it is stored.
            unsafe { (*next).before = before };
            Some(next)
        };
        let set = Ordering::AcqRel;
        let seen = Ordering::Acquire;
        let _ = LISTENER.fetch_update(set, seen, link); // `link` never refuses
        Ok(())
    })
}

/// The program's function for messages.
struct Listener {
    on_log: OnLog,
    user: *mut c_void,
    /// The previous listener. It is never freed, since another thread may be about to call it, and this keeps it
    /// reachable, so that no leak checker reports it.
    before: *mut Listener,
}

/// NULL, or a box that is never freed, like all before it. No lock: a fork may happen at any time.
static LISTENER: AtomicPtr<Listener> = AtomicPtr::new(null_mut());

/// Installs the subscriber, unless it is installed. Returns whether the library's messages arrive here.
fn ensure_installed() -> bool {
    // If two first calls come at once, the second waits for the result of the first, which holds for good: a process
    // has one subscriber. Only a child that is forked meanwhile would wait in vain.
    static IS_INSTALLED: OnceLock<bool> = OnceLock::new();
    *IS_INSTALLED.get_or_init(|| subscribe(tell))
}

/// Passes a message of the library to the listener.
fn tell(message: Message) {
    // SAFETY: NULL, or a box that is never freed.
    let listener = unsafe { LISTENER.load(Ordering::Acquire).as_ref() };
    let Some(&Listener { on_log: Some(on_log), user, .. }) = listener else { return };
    let level = match message.level {
        Level::ERROR => DLFS_LOG_ERROR,
        Level::WARN => DLFS_LOG_WARNING,
        _ => DLFS_LOG_INFO,
    };
    let text = renamed(&message.whole(|name| name), &FIELDS).replace('\0', "");
    let text = CString::new(text).expect("zero bytes were taken out");
    // SAFETY: the caller's function with the caller's argument, and a text that outlives the call.
    unsafe { on_log(user, level, text.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_calls_of_several_threads_all_find_the_subscriber_installed() {
        let start = std::sync::Barrier::new(8);
        let first = || {
            start.wait();
            ensure_installed()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(first)).collect();
            assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
        });
    }
}
