//! Reads and mappings of descriptors.
//!
//! Only [files opened in place](crate::in_place) need these calls; for other descriptors they cost a few loads.
//! Allocators map memory and read files while they start, before this library's constructor. So nothing here looks up a
//! function or allocates, unless the descriptor is this library's.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libc::{iovec, off_t, size_t, ssize_t};

use super::RESOLVED;
use crate::in_place;

/// Functions that read into one buffer. Each line: names and further arguments, the system call, the position (`None`:
/// the descriptor's own), and the length of the buffer.
macro_rules! reads {
    ($($($name:ident)|+ ($($argument:ident: $kind:ty),*), $number:ident, $at:expr, $most:expr;)*) => {$(
        instead! {
            fn $($name)|+ (fd: c_int, out: *mut c_void, len: size_t $(, $argument: $kind)*) -> ssize_t {
                let at: Option<off_t> = $at;
                // Too short a buffer is left to the C library's function, which aborts the program.
                let part = iovec { iov_base: out, iov_len: len };
                let read = if len <= $most { in_place::read(fd, &part, 1, at) } else { None };
                match read {
                    Some(read) => read,
                    None if !RESOLVED.load(Ordering::Acquire) => {
                        libc::syscall(libc::$number, fd, out, len, at.unwrap_or(0)) as ssize_t
                    }
                    None => real(fd, out, len, $($argument),*),
                }
            }
        }
    )*};
}

reads! {
    read | __read(), SYS_read, None, size_t::MAX;
    __read_chk(room: size_t), SYS_read, None, room;
    pread | pread64 | __pread64(at: off_t), SYS_pread64, Some(at), size_t::MAX;
    __pread_chk | __pread64_chk(at: off_t, room: size_t), SYS_pread64, Some(at), room;
}

/// Functions that read into several buffers. Each line: names and further arguments, the system call, the position, and
/// the flags.
macro_rules! parts {
    ($($($name:ident)|+ ($($argument:ident: $kind:ty),*), $number:ident, $at:expr, $flags:expr;)*) => {$(
        instead! {
            fn $($name)|+ (fd: c_int, parts: *const iovec, count: c_int $(, $argument: $kind)*) -> ssize_t {
                let at: Option<off_t> = $at;
                let flags: c_int = $flags;
                let read = if flags == 0 { in_place::read(fd, parts, count, at) } else { None };
                match read {
                    Some(read) => read,
                    None if !RESOLVED.load(Ordering::Acquire) => {
                        let at = at.unwrap_or(-1); // `preadv2`: -1 is the descriptor's own position
                        libc::syscall(libc::$number, fd, parts, count, at, 0, flags) as ssize_t
                    }
                    None => real(fd, parts, count, $($argument),*),
                }
            }
        }
    )*};
}

parts! {
    readv(), SYS_readv, None, 0;
    preadv | preadv64(at: off_t), SYS_preadv, Some(at), 0;
    preadv2 | preadv64v2(at: off_t, flags: c_int), SYS_preadv2, (at != -1).then_some(at), flags;
}

/// Functions that map a file. They make the system call: the C library's function does the same, and need not be looked
/// up.
macro_rules! maps {
    ($($name:ident)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            at: *mut c_void,
            len: size_t,
            access: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            in_place::mapped(fd, offset);
            // SAFETY: the arguments are our caller's, who has the same obligations to the kernel.
            unsafe { libc::syscall(libc::SYS_mmap, at, len, access, flags, fd, offset) as *mut c_void }
        }
    )*};
}

maps! { mmap mmap64 }
