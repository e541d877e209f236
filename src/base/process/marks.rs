//! Marks on open files that belong to this library.
//!
//! A program that closes "all other" descriptors (`close_range`, `closefrom`) would also close the
//! library's. The next file that it opens would then reuse their numbers. `libdlfs_preload.so` keeps marked
//! descriptors open. The mark is the signal for asynchronous I/O, which this library never enables. The
//! kernel stores it with the open file, so it survives `dup` and needs no list.
#![allow(unsafe_code)] // calls `fcntl` with an unusual command

use std::os::fd::{AsRawFd, RawFd};

/// Marks an open file as belonging to this library. Costs one system call.
pub fn mark_ours(fd: &impl AsRawFd) {
    // SAFETY: the command touches no memory. Where the kernel refuses it, the descriptor stays unmarked.
    unsafe { libc::fcntl(fd.as_raw_fd(), SET_SIGNAL, MARK) };
}

/// Returns whether the descriptor is open and marked. Leaves `errno` undefined.
pub fn is_ours(fd: RawFd) -> bool {
    // SAFETY: as above; a number that is not open is refused.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, GET_SIGNAL) == libc::c_long::from(MARK) }
}

/// `F_SETSIG` and `F_GETSIG`. The crate libc lacks them for some C libraries.
const SET_SIGNAL: i32 = 10;
const GET_SIGNAL: i32 = 11;

/// A real-time signal that C libraries and programs do not use for I/O.
const MARK: i32 = 61;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_belongs_to_the_open_file_and_not_to_its_number() {
        let file = tempfile::tempfile().unwrap();
        assert!(!is_ours(file.as_raw_fd()));
        mark_ours(&file);
        let copy = file.try_clone().unwrap();
        assert!(is_ours(file.as_raw_fd()) && is_ours(copy.as_raw_fd()));
        let again = std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert!(!is_ours(again.as_raw_fd()));
        assert!(!is_ours(-1));
    }

    #[test]
    fn whatever_the_library_opens_can_be_marked() {
        use rustix::event::{EventfdFlags, epoll, eventfd};
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        mark_ours(&epoll);
        mark_ours(&event);
        mark_ours(&one);
        assert!(is_ours(epoll.as_raw_fd()) && is_ours(event.as_raw_fd()));
        assert!(is_ours(one.as_raw_fd()) && !is_ours(other.as_raw_fd()));
    }
}
