//! Calls that would change something: below a mount they fail, as on a file system mounted read-only.

use std::ffi::{c_int, c_uint, c_void};

use libc::{AT_FDCWD, gid_t, mode_t, size_t, uid_t};

use super::{Text, mounted, returned};
use crate::inside;
use crate::paths::MountedPath;

/// Answers a change of a file or folder, which must exist.
fn change(mounted: &MountedPath) -> c_int {
    returned(inside::run(|| mounted.node().and(Err(libc::EROFS))))
}

/// Answers the removal of a name. Only its folder must exist: the kernel, too, checks for a read-only file
/// system before it looks up the name.
fn remove_name(mounted: &MountedPath) -> c_int {
    let path = &mounted.path;
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..end].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let folder = MountedPath { mount: mounted.mount, path: [&path[..slash], b"/"].concat() };
    change(&folder)
}

/// Answers the creation of a file or folder, which must not exist.
fn make(mounted: &MountedPath) -> c_int {
    returned(inside::run(|| match mounted.node() {
        Ok(_) => Err(libc::EEXIST),
        Err(libc::ENOENT) => Err(libc::EROFS),
        Err(errno) => Err(errno),
    }))
}

/// Functions that change one path. Each line: the answer below a mount, names and arguments, the folder to which the
/// path is relative, and the path.
macro_rules! writes {
    ($($what:ident $($name:ident)|+ ($($argument:ident: $kind:ty),*), $folder:expr, $path:ident;)*) => {$(
        instead! {
            fn $($name)|+ ($($argument: $kind),*) -> c_int {
                mounted($folder, $path).map_or_else(|| real($($argument),*), |mounted| $what(&mounted))
            }
        }
    )*};
}

writes! {
    remove_name unlink | remove | rmdir(path: Text), AT_FDCWD, path;
    remove_name unlinkat(folder: c_int, path: Text, flags: c_int), folder, path;
    make mkdir | mkfifo(path: Text, mode: mode_t), AT_FDCWD, path;
    make mkdirat(folder: c_int, path: Text, mode: mode_t), folder, path;
    make mknod(path: Text, mode: mode_t, device: libc::dev_t), AT_FDCWD, path;
    make symlink(to: Text, path: Text), AT_FDCWD, path;
    make symlinkat(to: Text, folder: c_int, path: Text), folder, path;
    change truncate | truncate64(path: Text, len: libc::off_t), AT_FDCWD, path;
    change chmod(path: Text, mode: mode_t), AT_FDCWD, path;
    change fchmodat(folder: c_int, path: Text, mode: mode_t, flags: c_int), folder, path;
    change chown | lchown(path: Text, owner: uid_t, group: gid_t), AT_FDCWD, path;
    change fchownat(folder: c_int, path: Text, owner: uid_t, group: gid_t, flags: c_int), folder, path;
    change utimensat(folder: c_int, path: Text, times: *const libc::timespec, flags: c_int), folder, path;
    change setxattr | lsetxattr(path: Text, name: Text, value: *const c_void, len: size_t, flags: c_int),
        AT_FDCWD, path;
    change removexattr | lremovexattr(path: Text, name: Text), AT_FDCWD, path;
}

/// Answers a call with two paths, if one is ours: EROFS below one mount, EXDEV between two file systems.
fn two(from: Option<MountedPath>, to: Option<MountedPath>) -> Option<c_int> {
    match (from, to) {
        (None, None) => None,
        (Some(from), Some(to)) if std::ptr::eq(from.mount, to.mount) => Some(remove_name(&from)),
        (Some(from), _) => Some(returned(inside::run(|| from.node().and(Err(libc::EXDEV))))),
        (None, Some(_)) => Some(returned(Err(libc::EXDEV))),
    }
}

/// Functions that link or move a path to another one. Each line: names and arguments, then folder and path of both.
macro_rules! moves {
    ($($($name:ident)|+ ($($argument:ident: $kind:ty),*), $old:expr, $from:ident, $new:expr, $to:ident;)*) => {$(
        instead! {
            fn $($name)|+ ($($argument: $kind),*) -> c_int {
                let answer = two(mounted($old, $from), mounted($new, $to));
                answer.unwrap_or_else(|| real($($argument),*))
            }
        }
    )*};
}

moves! {
    link | rename(from: Text, to: Text), AT_FDCWD, from, AT_FDCWD, to;
    linkat(old: c_int, from: Text, new: c_int, to: Text, flags: c_int), old, from, new, to;
    renameat(old: c_int, from: Text, new: c_int, to: Text), old, from, new, to;
    renameat2(old: c_int, from: Text, new: c_int, to: Text, flags: c_uint), old, from, new, to;
}
