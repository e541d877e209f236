//! System calls of the library itself, which no library can interpose; and what they need.

use std::ffi::{CStr, c_int, c_long};
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

/// The error number of this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library's pointer is valid for this thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the error number of this thread.
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

/// Writes a string; failures are ignored.
pub(crate) fn write(fd: c_int, text: &str) {
    // SAFETY: `text` is valid for its length.
    unsafe { libc::syscall(libc::SYS_write, fd, text.as_ptr(), text.len()) };
}

/// Reads the kernel's path of a descriptor into `name`; returns the path's length.
pub(crate) fn name_of_descriptor(fd: c_int, name: &mut [u8]) -> Option<usize> {
    let path = path_of(fd);
    // SAFETY: the path ends with NUL, and the buffer has its length.
    let len = called(unsafe {
        libc::syscall(libc::SYS_readlink, path.as_ptr(), name.as_mut_ptr(), name.len())
    });
    len.ok().map(|len| len as usize).filter(|len| *len > 0)
}

/// `/proc/self/fd/N`, terminated by NUL. Allocates nothing.
pub(crate) fn path_of(fd: c_int) -> [u8; 26] {
    let mut path = [0; 26];
    let _ = write!(&mut path[..], "/proc/self/fd/{fd}"); // 14 bytes, and at most 11 more
    path
}

/// Another descriptor of the file behind `fd`, with a separate position.
pub(crate) fn open_again(fd: c_int, flags: c_int) -> Result<c_int, c_int> {
    let path = path_of(fd);
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| libc::EIO)?;
    open(path, flags)
}

/// Device and inode number.
pub(crate) fn identity_of(stat: &libc::stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The kernel's `stat` of a descriptor.
pub(crate) fn stat_of(fd: c_int) -> Option<libc::stat> {
    // SAFETY: a `stat` of zeroes is valid, and the kernel writes one.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        called(libc::syscall(libc::SYS_fstat, fd, &raw mut stat)).ok()?;
        Some(stat)
    }
}

/// The file behind an open descriptor; the descriptor stays open.
pub(crate) fn file_of(fd: c_int) -> ManuallyDrop<std::fs::File> {
    // SAFETY: the callers keep the descriptor open, and `ManuallyDrop` never closes it.
    ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) })
}

/// Writes all of `bytes` at `at`, by a system call that no library can interpose. The descriptor's position
/// stays at 0.
pub(crate) fn write_at(fd: c_int, bytes: &[u8], at: u64) -> Result<(), c_int> {
    let mut written = 0;
    while written < bytes.len() {
        let rest = &bytes[written..];
        let offset = at as c_long + written as c_long;
        // SAFETY: `rest` has its length.
        let result = called(unsafe {
            libc::syscall(libc::SYS_pwrite64, fd, rest.as_ptr(), rest.len(), offset)
        });
        match result {
            Ok(0) => return Err(libc::EIO),
            Ok(len) => written += len as usize,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Closes a descriptor.
pub(crate) fn close(fd: c_int) {
    // SAFETY: the call touches no memory. The callers pass a descriptor that only this library uses, or one that
    // the program has asked to close.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}
