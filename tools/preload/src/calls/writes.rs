//! Calls that would change something: nothing below a mount can be changed.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{AT_FDCWD, gid_t, mode_t, size_t, uid_t};

use super::returned;
use crate::paths::Place;
use crate::{own, paths, real};

/// Changing what is there: it must be there.
fn change(place: &Place) -> c_int {
    returned(own::inside(|| place.node().and(Err(libc::EROFS))))
}

/// Removing a name: only its folder must be there, as the kernel looks at the name after it has asked whether
/// it may write.
fn remove_name(place: &Place) -> c_int {
    let path = &place.path;
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..end].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let folder = Place { mount: place.mount, path: [&path[..slash], b"/"].concat() };
    change(&folder)
}

/// Making something: it must not be there.
fn make(place: &Place) -> c_int {
    returned(own::inside(|| match place.node() {
        Ok(_) => Err(libc::EEXIST),
        Err(libc::ENOENT) => Err(libc::EROFS),
        Err(errno) => Err(errno),
    }))
}

macro_rules! writes {
    ($($what:ident $name:ident($($argument:ident: $kind:ty),*), $($folder:expr, $path:ident),*;)*) => {$(
        /// As the C library's, of a file system that is mounted read-only.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                $(if let Some(place) = paths::place($folder, $path) {
                    return $what(&place);
                })*
                real::$name($($argument),*)
            }
        }
    )*};
}

writes! {
    remove_name unlink(path: *const c_char), AT_FDCWD, path;
    remove_name unlinkat(folder: c_int, path: *const c_char, flags: c_int), folder, path;
    remove_name remove(path: *const c_char), AT_FDCWD, path;
    remove_name rmdir(path: *const c_char), AT_FDCWD, path;
    make mkdir(path: *const c_char, mode: mode_t), AT_FDCWD, path;
    make mkdirat(folder: c_int, path: *const c_char, mode: mode_t), folder, path;
    make mknod(path: *const c_char, mode: mode_t, device: libc::dev_t), AT_FDCWD, path;
    make mkfifo(path: *const c_char, mode: mode_t), AT_FDCWD, path;
    make symlink(to: *const c_char, path: *const c_char), AT_FDCWD, path;
    make symlinkat(to: *const c_char, folder: c_int, path: *const c_char), folder, path;
    change truncate(path: *const c_char, len: libc::off_t), AT_FDCWD, path;
    change truncate64(path: *const c_char, len: libc::off_t), AT_FDCWD, path;
    change chmod(path: *const c_char, mode: mode_t), AT_FDCWD, path;
    change fchmodat(folder: c_int, path: *const c_char, mode: mode_t, flags: c_int), folder, path;
    change chown(path: *const c_char, owner: uid_t, group: gid_t), AT_FDCWD, path;
    change lchown(path: *const c_char, owner: uid_t, group: gid_t), AT_FDCWD, path;
    change fchownat(folder: c_int, path: *const c_char, owner: uid_t, group: gid_t, flags: c_int), folder, path;
    change utimensat(folder: c_int, path: *const c_char, times: *const libc::timespec, flags: c_int), folder, path;
    change setxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int),
        AT_FDCWD, path;
    change lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int),
        AT_FDCWD, path;
    change removexattr(path: *const c_char, name: *const c_char), AT_FDCWD, path;
    change lremovexattr(path: *const c_char, name: *const c_char), AT_FDCWD, path;
}

/// Answers a call with two paths: below one mount nothing changes, and from one file system to another nothing moves.
///
/// # Safety
/// Both end with NUL.
unsafe fn two(old: c_int, from: *const c_char, new: c_int, to: *const c_char) -> Option<c_int> {
    // SAFETY: the caller's promise.
    match unsafe { (paths::place(old, from), paths::place(new, to)) } {
        (None, None) => None,
        (Some(from), Some(to)) if std::ptr::eq(from.mount, to.mount) => Some(remove_name(&from)),
        (Some(from), _) => Some(returned(own::inside(|| from.node().and(Err(libc::EXDEV))))),
        (None, Some(_)) => Some(returned(Err(libc::EXDEV))),
    }
}

macro_rules! moves {
    ($($name:ident($($argument:ident: $kind:ty),*), $old:expr, $from:ident, $new:expr, $to:ident;)*) => {$(
        /// As the C library's, of a file system that is mounted read-only.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe { two($old, $from, $new, $to).unwrap_or_else(|| real::$name($($argument),*)) }
        }
    )*};
}

moves! {
    link(from: *const c_char, to: *const c_char), AT_FDCWD, from, AT_FDCWD, to;
    linkat(old: c_int, from: *const c_char, new: c_int, to: *const c_char, flags: c_int), old, from, new, to;
    rename(from: *const c_char, to: *const c_char), AT_FDCWD, from, AT_FDCWD, to;
    renameat(old: c_int, from: *const c_char, new: c_int, to: *const c_char), old, from, new, to;
    renameat2(old: c_int, from: *const c_char, new: c_int, to: *const c_char, flags: c_uint), old, from, new, to;
}
