//! Calls that resolve paths: working directories, links, real paths.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use libc::{AT_FDCWD, size_t, ssize_t};

use dlfs::posix::{Folder, Node};

use super::{Text, mounted, returned};
use crate::paths::{self, MountedPath};
use crate::{files, inside};

instead! {
    // Changes the working directory. A folder below a mount is refused, because the kernel cannot enter it.
    // Only the mount's top folder can be entered, if there is a real folder with the same path.
    fn chdir(path: Text) -> c_int {
        if let Some(mounted) = mounted(AT_FDCWD, path) {
            match inside::run(|| Ok(mounted.node()?.1)) {
                Err(errno) => return returned(Err(errno)),
                Ok(Node::File(_)) => return returned(Err(libc::ENOTDIR)),
                Ok(Node::Folder(Folder::TOP)) => {}
                Ok(Node::Folder(_)) => return refuse(&mounted.path),
            }
        }
        entered(real(path))
    }

    fn fchdir(fd: c_int) -> c_int {
        match files::node_behind(fd) {
            Some((_, Node::File(_))) => returned(Err(libc::ENOTDIR)),
            Some((_, Node::Folder(_))) => refuse(b"it"),
            None => entered(real(fd)),
        }
    }

    // The C library ends the program if `len` is too short for any path.
    fn __realpath_chk(path: Text, out: *mut c_char, len: size_t) -> *mut c_char {
        if len < libc::PATH_MAX as size_t {
            return real(path, out, len);
        }
        mounted(AT_FDCWD, path).map_or_else(|| real(path, out, len), |mounted| real_path(&mounted, out))
    }
}

answers! {
    readlink(path: Text, out: *mut c_char, len: size_t) -> ssize_t,
        mounted(AT_FDCWD, path), found => no_link(&found);
    readlinkat(folder: c_int, path: Text, out: *mut c_char, len: size_t) -> ssize_t,
        mounted(folder, path), found => no_link(&found);
    realpath(path: Text, out: *mut c_char) -> *mut c_char,
        mounted(AT_FDCWD, path), found => real_path(&found, out);
    canonicalize_file_name(path: Text) -> *mut c_char,
        mounted(AT_FDCWD, path), found => real_path(&found, null_mut());
}

/// Returns the result of changing the working directory; looks the directory up again if it has changed.
fn entered(result: c_int) -> c_int {
    if result == 0 {
        paths::learn_working_folder();
    }
    result
}

/// Refuses to change the working directory to a folder below a mount.
fn refuse(path: &[u8]) -> c_int {
    let path = path.escape_ascii();
    inside::say(&format!(
        "{path}: the working folder cannot be inside of a data set that only this program sees"
    ));
    returned(Err(libc::EOPNOTSUPP))
}

/// Answers `readlink`: the path must exist, and is no link.
fn no_link(mounted: &MountedPath) -> ssize_t {
    returned(inside::run(|| mounted.node().and(Err(libc::EINVAL))))
}

/// As `realpath`.
///
/// # Safety
/// `out` is NULL or has PATH_MAX bytes.
unsafe fn real_path(mounted: &MountedPath, out: *mut c_char) -> *mut c_char {
    returned(inside::run(|| {
        let (opened, node) = mounted.node()?;
        let below = opened.files.tree().path(node).map_err(|_| libc::EIO)?;
        let mut path = mounted.mount.setting.prefix.to_vec();
        if !below.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&below);
        path.push(0);
        if path.len() > libc::PATH_MAX as usize {
            return Err(libc::ENAMETOOLONG);
        }
        // SAFETY: the destination is either the caller's PATH_MAX bytes, which were found above to be enough,
        // or memory just allocated with this length.
        unsafe {
            let out = if out.is_null() { libc::malloc(path.len()).cast() } else { out };
            if out.is_null() {
                return Err(libc::ENOMEM);
            }
            path.as_ptr().copy_to_nonoverlapping(out.cast(), path.len());
            Ok(out)
        }
    }))
}
