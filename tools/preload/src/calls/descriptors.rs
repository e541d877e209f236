//! Calls that would close or replace this library's descriptors: a program closes all descriptors that it did
//! not open, or duplicates a descriptor onto a number. The library's descriptors stay; see
//! `dlfs::process::mark_ours`. `flock` is here because of the library's duplicates.
//!
//! `close` is not here, since that would slow down each `close` of every program. Children between `vfork`
//! and `exec` run this code on their parent's memory. So it neither allocates nor locks, except to refuse a
//! `dup2` or `dup3`, and before a `flock` of a [file opened in place](crate::in_place).

use std::ffi::{c_int, c_long, c_uint};

use dlfs::process::{is_ours, mark_ours};

use super::returned;
use crate::syscalls::{self, called};
use crate::{in_place, inside, mounts};

instead! {
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        // CLOSE_RANGE_CLOEXEC only sets a flag of the descriptors, and may set it for ours too.
        if !has_any() || first > last || flags as c_uint & libc::CLOSE_RANGE_CLOEXEC != 0 {
            return real(first, last, flags);
        }
        returned(close_others(first, last, flags).map(|()| 0))
    }

    fn closefrom(first: c_int) -> () {
        if !has_any() {
            return real(first);
        }
        let first = c_uint::try_from(first).unwrap_or(0); // as the C library does
        if close_others(first, c_uint::MAX, 0).is_err() {
            for fd in first as c_int..syscalls::most_descriptors() as c_int {
                if !is_ours(fd) {
                    syscalls::close(fd);
                }
            }
        }
    }

    fn dup2(old: c_int, new: c_int) -> c_int {
        put(old, new, || real(old, new))
    }

    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        put(old, new, || real(old, new, flags))
    }

    // The lock must end when the program closes its descriptors, so the library's duplicate is closed first.
    fn flock(fd: c_int, operation: c_int) -> c_int {
        in_place::before_lock(fd);
        real(fd, operation)
    }
}

/// Duplicates a descriptor onto a number; fails with EBUSY if the number is this library's.
fn put(old: c_int, new: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if old != new && has_any() && is_ours(new) {
        inside::say(&format!("descriptor {new} is in use by an open data set, and stays"));
        return returned(Err(libc::EBUSY));
    }
    let result = real();
    if result == new {
        in_place::duplicated(old, new);
    }
    result
}

/// Returns whether this library may have descriptors, and the call is not its own.
fn has_any() -> bool {
    mounts::all().iter().any(mounts::Mount::is_in_use) && !inside::is_inside()
}

/// Closes the program's descriptors from `first` to `last`: the ranges between this library's.
fn close_others(first: c_uint, last: c_uint, flags: c_int) -> Result<(), c_int> {
    let before = syscalls::errno();
    let mut from = first;
    let mut failed = None;
    each_open(first, last, &mut |fd| {
        if is_ours(fd) {
            let fd = fd.unsigned_abs();
            if fd > from {
                failed = failed.or(close_all(from, fd - 1, flags).err());
            }
            from = fd + 1;
        }
    });
    if from <= last {
        failed = failed.or(close_all(from, last, flags).err());
    }
    syscalls::set_errno(before);
    failed.map_or(Ok(()), Err)
}

/// Closes all descriptors from `first` to `last`.
fn close_all(first: c_uint, last: c_uint, flags: c_int) -> Result<c_long, c_int> {
    // SAFETY: the call touches no memory, and the caller leaves out the library's descriptors.
    called(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })
}

/// Calls `visit` with the open descriptors from `first` to `last` in ascending order, this library's included.
/// Without `/proc`, or if no descriptor is left to list it, visits all these numbers below the limit, open or not.
fn each_open(first: c_uint, last: c_uint, visit: &mut dyn FnMut(c_int)) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let Ok(folder) = syscalls::open(c"/proc/self/fd", flags) else {
        let end = last.saturating_add(1).min(syscalls::most_descriptors() as c_uint);
        (first..end).for_each(|fd| visit(fd as c_int));
        return;
    };
    mark_ours(&folder); // so that the visitor does not close it
    let mut entries = Entries([0; 2048]);
    loop {
        let buffer = &mut entries.0;
        // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
        let len = called(unsafe {
            libc::syscall(libc::SYS_getdents64, folder, buffer.as_mut_ptr(), buffer.len())
        });
        let Ok(len @ 1..) = len else { break };
        let mut rest = &entries.0[..len as usize];
        while rest.len() > NAME_AT {
            let record = usize::from(u16::from_le_bytes([rest[16], rest[17]])).clamp(1, rest.len());
            let name = &rest[NAME_AT..record.max(NAME_AT)];
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
            let fd = digits
                .fold(0u32, |fd, digit| fd.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')));
            if name.first().is_some_and(u8::is_ascii_digit) && (first..=last).contains(&fd) {
                visit(fd as c_int);
            }
            rest = &rest[record..];
        }
    }
    syscalls::close(folder);
}

/// A buffer for `getdents64`, aligned like the entries that the kernel writes to it.
#[repr(align(8))]
struct Entries([u8; 2048]);

/// The offset of the name in an entry.
const NAME_AT: usize = 19;
