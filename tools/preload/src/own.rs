//! Support for the library's own work: the mark of threads inside the library, `errno`, system calls that cannot be
//! interposed, lines on stderr, and the C library's own functions. All of these are looked up before `main`; a call
//! before that looks up the function that it needs.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_long, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::dirent;

use dlfs::process::process_id;

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
pub(crate) fn inside<T>(work: impl FnOnce() -> Result<T, c_int>) -> Result<T, c_int> {
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
    let mut taken = [-1; LOW as usize];
    if is_single() && most_descriptors() >= 4 * LOW as usize {
        for place in &mut taken {
            match open(c"/dev/null", flags) {
                Ok(fd @ 0..LOW) => *place = fd,
                Ok(fd @ LOW..) => {
                    crate::files::close(fd);
                    break;
                }
                _ => break,
            }
        }
    }
    let result = work();
    taken.iter().filter(|fd| **fd >= 0).for_each(|fd| crate::files::close(*fd));
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

/// Descriptor numbers below this are left to the program.
const LOW: c_int = 64;

/// Returns whether the name of this thread has the prefix that the library's threads get before their first
/// call.
fn is_thread_of_ours() -> bool {
    let look = || {
        let mut name = [0u8; 16];
        // SAFETY: PR_GET_NAME writes 16 bytes.
        unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
        name.starts_with(b"dlfs-")
    };
    OURS.with(|ours| {
        let is_ours = ours.get().unwrap_or_else(look);
        ours.set(Some(is_ours));
        is_ours
    })
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the C library's pointer is valid for this thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The limit of descriptors of this process, at most 2^20.
pub(crate) fn most_descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    let none = std::ptr::null::<libc::rlimit>();
    // SAFETY: `limit` is a valid `rlimit64`.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, none, &raw mut limit) };
    limit.rlim_cur.min(1 << 20) as usize
}

/// The result of a system call, or its error number.
pub(crate) fn called(result: c_long) -> Result<c_long, c_int> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

/// Opens a path by a system call, which cannot be interposed.
pub(crate) fn open(path: &CStr, flags: c_int) -> Result<c_int, c_int> {
    // SAFETY: a `CStr` ends with NUL.
    let fd =
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o644) };
    called(fd).map(|fd| fd as c_int)
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

/// Writes a string; failures are ignored.
pub(crate) fn write(fd: c_int, text: &str) {
    // SAFETY: `text` is valid for its length.
    unsafe { libc::syscall(libc::SYS_write, fd, text.as_ptr(), text.len()) };
}

/// A function of the C library, or of a library that is loaded after this one.
pub(crate) struct Real {
    /// Ends with NUL.
    name: &'static str,
    address: AtomicPtr<c_void>,
}

impl Real {
    /// The function `name`, which must end with NUL.
    pub(crate) const fn new(name: &'static str) -> Real {
        assert!(matches!(name.as_bytes(), [.., 0]), "C's strings end with NUL");
        Real { name, address: AtomicPtr::new(null_mut()) }
    }

    /// The function's address; NULL if there is none.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Set once all functions are looked up. Before that, calls that allocators make must not look up a function,
/// since a lookup may allocate.
pub(crate) static RESOLVED: AtomicBool = AtomicBool::new(false);

/// The value that a function returns on failure, with `errno` set.
pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: c_int = -1;
}

impl Failed for c_long {
    const FAILED: c_long = -1;
}

impl Failed for isize {
    const FAILED: isize = -1;
}

impl Failed for () {
    const FAILED: () = ();
}

impl<T> Failed for *mut T {
    const FAILED: *mut T = null_mut();
}

/// The caller's filter of a folder's entries; NULL accepts all.
pub(crate) type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
/// The caller's comparison of a folder's entries; NULL leaves them in the folder's order.
pub(crate) type Order =
    Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

// Aliases, since the C library has functions and structs of the same names.
pub(crate) type Stat = libc::stat;
pub(crate) type Statx = libc::statx;
pub(crate) type StatFs = libc::statfs;
pub(crate) type StatVfs = libc::statvfs;
