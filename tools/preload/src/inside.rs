//! Runs the library's own work: marks threads that are inside the library, so that their calls go to the C library, and
//! prints lines on stderr.

use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dlfs::process::process_id;

use crate::syscalls::{errno, set_errno, write};

thread_local! {
    /// Nesting depth of the library's own work on this thread. It has no destructor, so its first use allocates
    /// nothing.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    /// True if this thread is one of the library's; `None` until that is checked.
    static OURS: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Returns whether the calling thread works for this library; its calls then go to the C library.
pub(crate) fn is_inside() -> bool {
    INSIDE.with(Cell::get) > 0 || is_thread_of_ours()
}

/// Does the library's own work; calls made by `work` go to the C library. A panic becomes EIO. Leaves `errno`
/// unchanged.
pub(crate) fn run<T>(work: impl FnOnce() -> Result<T, c_int>) -> Result<T, c_int> {
    let before = errno();
    INSIDE.with(|depth| depth.set(depth.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(libc::EIO));
    INSIDE.with(|depth| depth.set(depth.get() - 1));
    set_errno(before);
    result
}

/// Returns whether this process uses its parent's memory: a child between `vfork` and `exec`. The cached
/// identifier is then the parent's.
pub(crate) fn borrows_memory() -> bool {
    process_id() != std::process::id()
}

/// The name of the program's first thread, which its other threads inherit: it may begin as the names of the library's
/// threads do.
static PROGRAM: OnceLock<[u8; 16]> = OnceLock::new();

/// Remembers the name of the calling thread as that of the program. Called before `main`.
pub(crate) fn learn_program() {
    let _ = PROGRAM.set(name_of_thread()); // called once
}

/// Returns whether the name of this thread has the prefix that the library's threads get before their first
/// call.
fn is_thread_of_ours() -> bool {
    let has_our_name = || {
        let name = name_of_thread();
        name.starts_with(b"dlfs-") && PROGRAM.get() != Some(&name)
    };
    OURS.with(|ours| {
        let is_ours = ours.get().unwrap_or_else(has_our_name);
        ours.set(Some(is_ours));
        is_ours
    })
}

/// The kernel's name of the calling thread, with zeroes behind it.
fn name_of_thread() -> [u8; 16] {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes 16 bytes.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Writes one line to stderr without lock or buffer. Shows control characters instead of sending them to a
/// terminal.
pub(crate) fn say(text: &str) {
    let shown = |letter: char| {
        if letter.is_control() { letter.escape_debug().to_string() } else { letter.to_string() }
    };
    let text: String = text.chars().map(shown).collect();
    write(2, &format!("libdlfs_preload.so: {text}\n"));
}

/// As [`say`], but only the first call makes its text and writes: for failures that may repeat.
pub(crate) fn say_once(text: impl FnOnce() -> String) {
    static SAYS: AtomicBool = AtomicBool::new(true);
    if SAYS.swap(false, Ordering::Relaxed) {
        say(&text());
    }
}
