//! What this library does for itself: when it is inside of its own work, the error number, system calls
//! that nobody can interpose, and lines on stderr.

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// How deep the calling thread is inside of this library's own work. Without a destructor, so that it
    /// allocates nothing.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling thread works for this library, so that its calls are for the C library alone.
pub(crate) fn is_inside() -> bool {
    INSIDE.with(Cell::get) > 0 || is_thread_of_ours()
}

/// Does the library's own work, whose calls are not answered by itself. A panic becomes EIO, and success
/// leaves `errno` as it was.
pub(crate) fn inside<T>(work: impl FnOnce() -> Result<T, c_int>) -> Result<T, c_int> {
    let before = errno();
    INSIDE.with(|depth| depth.set(depth.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(libc::EIO));
    INSIDE.with(|depth| depth.set(depth.get() - 1));
    set_errno(before);
    result
}

/// Threads that the library starts have names with this prefix.
fn is_thread_of_ours() -> bool {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes 16 bytes.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(b"dlfs-")
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the C library's pointer is that of this thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The result of a system call, or its error number.
pub(crate) fn called(result: c_long) -> Result<c_long, c_int> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

/// Writes one line to stderr, and nothing else: no lock, no buffer.
pub(crate) fn say(text: &str) {
    let line = format!("libdlfs_preload.so: {text}\n");
    // SAFETY: the buffer has that length.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}
