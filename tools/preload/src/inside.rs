//! Runs the library's own work: marks threads that are inside the library, so that their calls go to the C library,
//! keeps descriptors off low numbers, and prints lines on stderr.

use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use dlfs::process::process_id;

use crate::syscalls::{close, errno, most_descriptors, open, set_errno, write};

thread_local! {
    /// Nesting depth of the library's own work on this thread. Without a destructor, its first use allocates
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

/// Does `work` while the lowest descriptor numbers are occupied, so that its descriptors get higher ones:
/// shells use low numbers freely. Does `work` alone if the program has several threads, which might open
/// descriptors meanwhile, or a low limit of descriptors.
pub(crate) fn above_low_numbers<T>(work: impl FnOnce() -> T) -> T {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // Descriptors of /dev/null on low numbers; -1: none.
    let mut occupied = [-1; LOW as usize];
    if is_single() && most_descriptors() >= 4 * LOW as usize {
        for slot in &mut occupied {
            match open(c"/dev/null", flags) {
                Ok(fd @ 0..LOW) => *slot = fd,
                Ok(fd @ LOW..) => {
                    close(fd);
                    break;
                }
                _ => break,
            }
        }
    }
    let result = work();
    occupied.iter().filter(|fd| **fd >= 0).for_each(|fd| close(*fd));
    result
}

/// Returns whether this process uses its parent's memory: a child between `vfork` and `exec`. The cached
/// identifier is then the parent's.
pub(crate) fn borrows_memory() -> bool {
    process_id() != std::process::id()
}

/// Returns whether the program has one thread, according to the C library.
fn is_single() -> bool {
    // SAFETY: the name ends with NUL; the C library's variable of this name is a `char`.
    unsafe {
        let single = libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr());
        !single.is_null() && single.cast::<u8>().read_volatile() != 0
    }
}

/// Returns whether the name of this thread has the prefix that the library's threads get before their first
/// call.
fn is_thread_of_ours() -> bool {
    let has_our_prefix = || {
        let mut name = [0u8; 16];
        // SAFETY: PR_GET_NAME writes 16 bytes.
        unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
        name.starts_with(b"dlfs-")
    };
    OURS.with(|ours| {
        let is_ours = ours.get().unwrap_or_else(has_our_prefix);
        ours.set(Some(is_ours));
        is_ours
    })
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

/// Descriptor numbers below this are left to the program.
const LOW: c_int = 64;
