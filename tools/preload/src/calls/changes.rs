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

/// Answers a call with two paths, if one is below a mount: EROFS within one mount, EXDEV between two file systems.
fn two_paths(from: Option<MountedPath>, to: Option<MountedPath>) -> Option<c_int> {
    match (from, to) {
        (None, None) => None,
        (Some(from), Some(to)) if std::ptr::eq(from.mount, to.mount) => Some(remove_name(&from)),
        (Some(from), _) => Some(returned(inside::run(|| from.node().and(Err(libc::EXDEV))))),
        (None, Some(_)) => Some(returned(Err(libc::EXDEV))),
    }
}

answers! {
    unlink | remove | rmdir(path: Text) -> c_int, mounted(AT_FDCWD, path), found => remove_name(&found);
    unlinkat(folder: c_int, path: Text, flags: c_int) -> c_int, mounted(folder, path), found => remove_name(&found);
    mkdir | mkfifo(path: Text, mode: mode_t) -> c_int, mounted(AT_FDCWD, path), found => make(&found);
    mkdirat | mkfifoat(folder: c_int, path: Text, mode: mode_t) -> c_int, mounted(folder, path), found => make(&found);
    mknod(path: Text, mode: mode_t, device: libc::dev_t) -> c_int, mounted(AT_FDCWD, path), found => make(&found);
    mknodat(folder: c_int, path: Text, mode: mode_t, device: libc::dev_t) -> c_int,
        mounted(folder, path), found => make(&found);
    symlink(to: Text, path: Text) -> c_int, mounted(AT_FDCWD, path), found => make(&found);
    symlinkat(to: Text, folder: c_int, path: Text) -> c_int, mounted(folder, path), found => make(&found);
    truncate | truncate64(path: Text, len: libc::off_t) -> c_int, mounted(AT_FDCWD, path), found => change(&found);
    chmod(path: Text, mode: mode_t) -> c_int, mounted(AT_FDCWD, path), found => change(&found);
    fchmodat(folder: c_int, path: Text, mode: mode_t, flags: c_int) -> c_int,
        mounted(folder, path), found => change(&found);
    chown | lchown(path: Text, owner: uid_t, group: gid_t) -> c_int, mounted(AT_FDCWD, path), found => change(&found);
    fchownat(folder: c_int, path: Text, owner: uid_t, group: gid_t, flags: c_int) -> c_int,
        mounted(folder, path), found => change(&found);
    utimensat(folder: c_int, path: Text, times: *const libc::timespec, flags: c_int) -> c_int,
        mounted(folder, path), found => change(&found);
    utime(path: Text, times: *const libc::utimbuf) -> c_int, mounted(AT_FDCWD, path), found => change(&found);
    utimes | lutimes(path: Text, times: *const libc::timeval) -> c_int,
        mounted(AT_FDCWD, path), found => change(&found);
    futimesat(folder: c_int, path: Text, times: *const libc::timeval) -> c_int,
        mounted(folder, path), found => change(&found);
    setxattr | lsetxattr(path: Text, name: Text, value: *const c_void, len: size_t, flags: c_int) -> c_int,
        mounted(AT_FDCWD, path), found => change(&found);
    removexattr | lremovexattr(path: Text, name: Text) -> c_int, mounted(AT_FDCWD, path), found => change(&found);
    link | rename(from: Text, to: Text) -> c_int,
        two_paths(mounted(AT_FDCWD, from), mounted(AT_FDCWD, to)), answer => answer;
    linkat(old: c_int, from: Text, new: c_int, to: Text, flags: c_int) -> c_int,
        two_paths(mounted(old, from), mounted(new, to)), answer => answer;
    renameat(old: c_int, from: Text, new: c_int, to: Text) -> c_int,
        two_paths(mounted(old, from), mounted(new, to)), answer => answer;
    renameat2(old: c_int, from: Text, new: c_int, to: Text, flags: c_uint) -> c_int,
        two_paths(mounted(old, from), mounted(new, to)), answer => answer;
}
