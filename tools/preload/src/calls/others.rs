//! Other calls that take a path and write nothing: working folders, links, and real paths.

use std::ffi::{c_char, c_int};

use dlfs::posix::Node;
use libc::{AT_FDCWD, size_t, ssize_t};

use super::{returned, returned_len, returned_pointer};
use crate::paths::Place;
use crate::{files, own, paths, real};

/// As the C library's; a folder of a mount is refused, because the kernel cannot be there. Only the mount's
/// top folder can be entered, where a real folder lies under it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chdir(path: *const c_char) -> c_int {
    // SAFETY: the caller keeps to the C library's rules.
    unsafe {
        if let Some(place) = paths::place(AT_FDCWD, path) {
            match own::inside(|| Ok(place.node()?.1)) {
                Err(errno) => return returned(Err(errno)),
                Ok(Node::File(_)) => return returned(Err(libc::ENOTDIR)),
                Ok(Node::Folder(dlfs::posix::Folder::TOP)) => {}
                Ok(Node::Folder(_)) => return refuse(&place.path),
            }
        }
        let result = real::chdir(path);
        if result == 0 {
            paths::learn_working_folder();
        }
        result
    }
}

/// As [`chdir`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fchdir(fd: c_int) -> c_int {
    match files::identity(fd) {
        Some((_, Node::File(_))) => returned(Err(libc::ENOTDIR)),
        Some((_, Node::Folder(_))) => refuse(b"it"),
        None => {
            // SAFETY: the caller keeps to the C library's rules.
            let result = unsafe { real::fchdir(fd) };
            if result == 0 {
                paths::learn_working_folder();
            }
            result
        }
    }
}

fn refuse(path: &[u8]) -> c_int {
    let path = path.escape_ascii();
    own::say(&format!(
        "{path}: the working folder cannot be inside of a data set that only this program sees"
    ));
    returned(Err(libc::EOPNOTSUPP))
}

/// As the C library's. There are no links.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlink(path: *const c_char, out: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the caller keeps to the C library's rules.
    unsafe {
        match paths::place(AT_FDCWD, path) {
            Some(place) => no_link(&place),
            None => real::readlink(path, out, len),
        }
    }
}

/// As the C library's. There are no links.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlinkat(
    folder: c_int,
    path: *const c_char,
    out: *mut c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: the caller keeps to the C library's rules.
    unsafe {
        match paths::place(folder, path) {
            Some(place) => no_link(&place),
            None => real::readlinkat(folder, path, out, len),
        }
    }
}

fn no_link(place: &Place) -> ssize_t {
    returned_len(own::inside(|| place.node().and(Err(libc::EINVAL))))
}

/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, out: *mut c_char) -> *mut c_char {
    // SAFETY: the caller keeps to the C library's rules.
    unsafe {
        match paths::place(AT_FDCWD, path) {
            Some(place) => real_path(&place, out),
            None => real::realpath(path, out),
        }
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    out: *mut c_char,
    len: size_t,
) -> *mut c_char {
    // SAFETY: the caller keeps to the C library's rules.
    unsafe {
        match paths::place(AT_FDCWD, path) {
            Some(place) => real_path(&place, out),
            None => real::__realpath_chk(path, out, len),
        }
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller keeps to the C library's rules.
    unsafe {
        match paths::place(AT_FDCWD, path) {
            Some(place) => real_path(&place, std::ptr::null_mut()),
            None => real::canonicalize_file_name(path),
        }
    }
}

/// # Safety
/// `out` is NULL or has PATH_MAX bytes.
unsafe fn real_path(place: &Place, out: *mut c_char) -> *mut c_char {
    returned_pointer(own::inside(|| {
        let (opened, node) = place.node()?;
        let below = opened.files.tree().path(node).map_err(|_| libc::EIO)?;
        let mut path = place.mount.prefix().to_vec();
        if !below.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&below);
        path.push(0);
        if path.len() > libc::PATH_MAX as usize {
            return Err(libc::ENAMETOOLONG);
        }
        // SAFETY: memory of that length, or the caller's promise.
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
