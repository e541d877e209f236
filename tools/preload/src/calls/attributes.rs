//! Attributes of paths and descriptors.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use dlfs::posix::Node;
use libc::{AT_EMPTY_PATH, AT_FDCWD, size_t, ssize_t};

use super::{returned, returned_len};
use crate::mounts::{Mount, Opened};
use crate::paths::Place;
use crate::real::{Stat, StatFs, StatVfs, Statx};
use crate::stat::Full;
use crate::{files, own, paths, real, stat as shapes};

/// The file or folder that is asked about: a place, or what a descriptor stands for.
enum Subject {
    Place(Place),
    Known(&'static Mount, Node),
}

impl Subject {
    /// The path, or with an empty one and the flag the descriptor.
    ///
    /// # Safety
    /// `path` is NULL or ends with NUL.
    unsafe fn of(folder: c_int, path: *const c_char, flags: c_int) -> Option<Subject> {
        // SAFETY: the caller's promise.
        let is_empty = flags & AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0);
        if is_empty {
            Subject::of_descriptor(folder)
        } else {
            // SAFETY: as above.
            unsafe { paths::place(folder, path) }.map(Subject::Place)
        }
    }

    fn of_descriptor(fd: c_int) -> Option<Subject> {
        files::identity(fd).map(|(mount, node)| Subject::Known(mount, node))
    }

    fn node(&self) -> Result<(&'static Mount, &'static Opened, Node), c_int> {
        match self {
            Subject::Place(place) => place.node().map(|(opened, node)| (place.mount, opened, node)),
            Subject::Known(mount, node) => Ok((mount, mount.opened()?, *node)),
        }
    }

    fn full(&self) -> Result<Full, c_int> {
        own::inside(|| {
            let (mount, opened, node) = self.node()?;
            shapes::full(mount, opened, node)
        })
    }

    /// # Safety
    /// `out` has room for one.
    unsafe fn stat(&self, out: *mut Stat) -> c_int {
        // SAFETY: the caller's promise.
        returned(self.full().map(|full| unsafe { out.write(full.stat()) }).map(|()| 0))
    }
}

macro_rules! by_path {
    ($($name:ident($($argument:ident: $kind:ty),*), $folder:expr, $flags:expr;)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind,)* path: *const c_char, out: *mut Stat) -> c_int {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                match Subject::of($folder, path, $flags) {
                    Some(subject) => subject.stat(out),
                    None => real::$name($($argument,)* path, out),
                }
            }
        }
    )*};
}

by_path! {
    stat(), AT_FDCWD, 0;
    stat64(), AT_FDCWD, 0;
    lstat(), AT_FDCWD, 0;
    lstat64(), AT_FDCWD, 0;
    __xstat(version: c_int), AT_FDCWD, 0;
    __xstat64(version: c_int), AT_FDCWD, 0;
    __lxstat(version: c_int), AT_FDCWD, 0;
    __lxstat64(version: c_int), AT_FDCWD, 0;
}

macro_rules! by_descriptor {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind,)* fd: c_int, out: *mut Stat) -> c_int {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                match Subject::of_descriptor(fd) {
                    Some(subject) => subject.stat(out),
                    None => real::$name($($argument,)* fd, out),
                }
            }
        }
    )*};
}

by_descriptor! {
    fstat();
    fstat64();
    __fxstat(version: c_int);
    __fxstat64(version: c_int);
}

macro_rules! by_both {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($argument: $kind,)*
            folder: c_int,
            path: *const c_char,
            out: *mut Stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                match Subject::of(folder, path, flags) {
                    Some(subject) => subject.stat(out),
                    None => real::$name($($argument,)* folder, path, out, flags),
                }
            }
        }
    )*};
}

by_both! {
    fstatat();
    fstatat64();
    __fxstatat(version: c_int);
    __fxstatat64(version: c_int);
}

/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    out: *mut Statx,
) -> c_int {
    // SAFETY: the caller keeps to the C library's rules.
    unsafe {
        match Subject::of(folder, path, flags) {
            Some(subject) => {
                returned(subject.full().map(|full| out.write(full.statx())).map(|()| 0))
            }
            None => real::statx(folder, path, flags, mask, out),
        }
    }
}

macro_rules! of_mount {
    ($($name:ident, $descriptor:ident, $shape:ident: $kind:ty;)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, out: *mut $kind) -> c_int {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                match Subject::of(AT_FDCWD, path, 0) {
                    Some(subject) => of_mount(&subject, |mount, opened| {
                        out.write(shapes::$shape(mount, opened));
                    }),
                    None => real::$name(path, out),
                }
            }
        }

        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $descriptor(fd: c_int, out: *mut $kind) -> c_int {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                match Subject::of_descriptor(fd) {
                    Some(subject) => of_mount(&subject, |mount, opened| {
                        out.write(shapes::$shape(mount, opened));
                    }),
                    None => real::$descriptor(fd, out),
                }
            }
        }
    )*};
}

of_mount! {
    statfs, fstatfs, statfs: StatFs;
    statfs64, fstatfs64, statfs: StatFs;
    statvfs, fstatvfs, statvfs: StatVfs;
    statvfs64, fstatvfs64, statvfs: StatVfs;
}

fn of_mount(subject: &Subject, put: impl FnOnce(&Mount, &Opened)) -> c_int {
    returned(own::inside(|| {
        let (mount, opened, _) = subject.node()?;
        put(mount, opened);
        Ok(0)
    }))
}

/// # Safety
/// `path` is NULL or ends with NUL.
unsafe fn accessed(folder: c_int, path: *const c_char, flags: c_int, mode: c_int) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let subject = unsafe { Subject::of(folder, path, flags) }?;
    Some(returned(own::inside(|| match subject.node()?.2 {
        _ if mode & libc::W_OK != 0 => Err(libc::EROFS),
        Node::File(_) if mode & libc::X_OK != 0 => Err(libc::EACCES),
        _ => Ok(0),
    })))
}

macro_rules! accesses {
    ($($name:ident;)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: c_int) -> c_int {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe { accessed(AT_FDCWD, path, 0, mode).unwrap_or_else(|| real::$name(path, mode)) }
        }
    )*};
}

accesses! {
    access;
    eaccess;
    euidaccess;
}

/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faccessat(
    folder: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller keeps to the C library's rules.
    unsafe {
        let found = accessed(folder, path, flags, mode);
        found.unwrap_or_else(|| real::faccessat(folder, path, mode, flags))
    }
}

/// # Safety
/// `name` ends with NUL, and `out` has `len` bytes.
unsafe fn xattr(subject: &Subject, name: *const c_char, out: *mut c_void, len: size_t) -> ssize_t {
    returned_len(own::inside(|| {
        let (_, opened, node) = subject.node()?;
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let value = opened.files.xattr(node, name).ok_or(libc::ENODATA)?;
        // SAFETY: as above.
        unsafe { put(value.as_bytes(), out, len) }
    }))
}

/// # Safety
/// `out` has `len` bytes.
unsafe fn xattr_names(subject: &Subject, out: *mut c_char, len: size_t) -> ssize_t {
    returned_len(own::inside(|| {
        let (_, opened, node) = subject.node()?;
        // SAFETY: the caller's promise.
        unsafe { put(&opened.files.xattr_names(node), out.cast(), len) }
    }))
}

/// Copies `bytes`, or with a length of 0 only says how many there are.
///
/// # Safety
/// `out` has `len` bytes.
unsafe fn put(bytes: &[u8], out: *mut c_void, len: size_t) -> Result<isize, c_int> {
    match len {
        0 => {}
        _ if len < bytes.len() => return Err(libc::ERANGE),
        // SAFETY: the caller's promise; it was not ours before, so it does not overlap.
        _ => unsafe { out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) },
    }
    Ok(bytes.len() as isize)
}

macro_rules! xattrs {
    ($($name:ident, $list:ident, $subject:expr, $what:ident: $kind:ty;)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $what: $kind,
            name: *const c_char,
            out: *mut c_void,
            len: size_t,
        ) -> ssize_t {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                match $subject($what) {
                    Some(subject) => xattr(&subject, name, out, len),
                    None => real::$name($what, name, out, len),
                }
            }
        }

        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $list($what: $kind, out: *mut c_char, len: size_t) -> ssize_t {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                match $subject($what) {
                    Some(subject) => xattr_names(&subject, out, len),
                    None => real::$list($what, out, len),
                }
            }
        }
    )*};
}

xattrs! {
    getxattr, listxattr, at, path: *const c_char;
    lgetxattr, llistxattr, at, path: *const c_char;
    fgetxattr, flistxattr, Subject::of_descriptor, fd: c_int;
}

/// # Safety
/// `path` is NULL or ends with NUL.
unsafe fn at(path: *const c_char) -> Option<Subject> {
    // SAFETY: the caller's promise.
    unsafe { Subject::of(AT_FDCWD, path, 0) }
}
