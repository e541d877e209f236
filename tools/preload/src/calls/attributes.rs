//! Attributes of paths and descriptors.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use dlfs::posix::Node;
use libc::{AT_EMPTY_PATH, AT_FDCWD, size_t, ssize_t};

use super::{returned, text};
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
    fn of(folder: c_int, path: Option<&CStr>, flags: c_int) -> Option<Subject> {
        if flags & AT_EMPTY_PATH != 0 && path.is_none_or(CStr::is_empty) {
            Subject::of_descriptor(folder)
        } else {
            paths::place(folder, path?).map(Subject::Place)
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

    /// Asks `work` about it, and puts the answer where the caller wants it.
    fn tell<T>(
        &self,
        work: impl FnOnce(&Mount, &Opened, Node) -> Result<T, c_int>,
        put: impl FnOnce(T),
    ) -> c_int {
        returned(own::inside(|| {
            let (mount, opened, node) = self.node()?;
            put(work(mount, opened, node)?);
            Ok(0)
        }))
    }

    /// Returns whether it may be accessed in this way.
    fn access(&self, mode: c_int) -> c_int {
        returned(own::inside(|| match self.node()?.2 {
            _ if mode & libc::W_OK != 0 => Err(libc::EROFS),
            Node::File(_) if mode & libc::X_OK != 0 => Err(libc::EACCES),
            _ => Ok(0),
        }))
    }

    fn xattr(&self, name: &CStr) -> Result<Vec<u8>, c_int> {
        own::inside(|| {
            let (_, opened, node) = self.node()?;
            let value = opened.files.xattr(node, name.to_bytes()).ok_or(libc::ENODATA)?;
            Ok(value.into_bytes())
        })
    }

    fn xattr_names(&self) -> Result<Vec<u8>, c_int> {
        own::inside(|| {
            let (_, opened, node) = self.node()?;
            Ok(opened.files.xattr_names(node))
        })
    }
}

/// `stat` and its kin: `$subject` has the arguments in front of the result, `$behind` the flags behind it.
macro_rules! stats {
    ($($name:ident($($argument:ident: $kind:ty),*; $($flags:ident)?) $subject:expr;)*) => {$(
        instead! {
            fn $name($($argument: $kind,)* out: *mut Stat $(, $flags: c_int)?) -> c_int {
                match $subject {
                    Some(subject) => subject.tell(Full::of, |full| out.write(full.stat())),
                    None => real::$name($($argument,)* out $(, $flags)?),
                }
            }
        }
    )*};
}

type Text = *const c_char;

stats! {
    stat(path: Text;) at(path);
    stat64(path: Text;) at(path);
    lstat(path: Text;) at(path);
    lstat64(path: Text;) at(path);
    __xstat(version: c_int, path: Text;) at(path);
    __xstat64(version: c_int, path: Text;) at(path);
    __lxstat(version: c_int, path: Text;) at(path);
    __lxstat64(version: c_int, path: Text;) at(path);
    fstat(fd: c_int;) Subject::of_descriptor(fd);
    fstat64(fd: c_int;) Subject::of_descriptor(fd);
    __fxstat(version: c_int, fd: c_int;) Subject::of_descriptor(fd);
    __fxstat64(version: c_int, fd: c_int;) Subject::of_descriptor(fd);
    fstatat(folder: c_int, path: Text; flags) Subject::of(folder, text(path), flags);
    fstatat64(folder: c_int, path: Text; flags) Subject::of(folder, text(path), flags);
    __fxstatat(version: c_int, folder: c_int, path: Text; flags) Subject::of(folder, text(path), flags);
    __fxstatat64(version: c_int, folder: c_int, path: Text; flags) Subject::of(folder, text(path), flags);
}

/// The subject of a path alone.
///
/// # Safety
/// As [`text`].
unsafe fn at(path: Text) -> Option<Subject> {
    // SAFETY: the text is dropped before this returns.
    Subject::of(AT_FDCWD, unsafe { text(path) }, 0)
}

instead! {
    fn statx(folder: c_int, path: Text, flags: c_int, mask: c_uint, out: *mut Statx) -> c_int {
        match Subject::of(folder, text(path), flags) {
            Some(subject) => subject.tell(Full::of, |full| out.write(full.statx())),
            None => real::statx(folder, path, flags, mask, out),
        }
    }

    fn faccessat(folder: c_int, path: Text, mode: c_int, flags: c_int) -> c_int {
        match Subject::of(folder, text(path), flags) {
            Some(subject) => subject.access(mode),
            None => real::faccessat(folder, path, mode, flags),
        }
    }
}

macro_rules! of_mount {
    ($($name:ident, $descriptor:ident, $shape:ident: $kind:ty;)*) => {$(
        instead! {
            fn $name(path: Text, out: *mut $kind) -> c_int {
                match at(path) {
                    Some(subject) => subject.tell(shapes::$shape, |stat| out.write(stat)),
                    None => real::$name(path, out),
                }
            }

            fn $descriptor(fd: c_int, out: *mut $kind) -> c_int {
                match Subject::of_descriptor(fd) {
                    Some(subject) => subject.tell(shapes::$shape, |stat| out.write(stat)),
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

macro_rules! accesses {
    ($($name:ident;)*) => {$(
        instead! {
            fn $name(path: Text, mode: c_int) -> c_int {
                at(path).map_or_else(|| real::$name(path, mode), |subject| subject.access(mode))
            }
        }
    )*};
}

accesses! {
    access;
    eaccess;
    euidaccess;
}

/// Copies bytes for the caller, or with a length of 0 only says how many there are.
///
/// # Safety
/// `out` has `len` bytes.
unsafe fn put(bytes: Result<Vec<u8>, c_int>, out: *mut c_void, len: size_t) -> ssize_t {
    returned(bytes.and_then(|bytes| {
        if len != 0 {
            let enough = bytes.len() <= len;
            // SAFETY: no more than `out` has, which the caller had before this memory was allocated.
            let copy = || unsafe {
                out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
            };
            enough.then(copy).ok_or(libc::ERANGE)?;
        }
        Ok(bytes.len() as isize)
    }))
}

macro_rules! xattrs {
    ($($name:ident, $list:ident, $subject:expr, $what:ident: $kind:ty;)*) => {$(
        instead! {
            fn $name($what: $kind, name: Text, out: *mut c_void, len: size_t) -> ssize_t {
                match $subject($what) {
                    Some(subject) => put(subject.xattr(CStr::from_ptr(name)), out, len),
                    None => real::$name($what, name, out, len),
                }
            }

            fn $list($what: $kind, out: *mut c_char, len: size_t) -> ssize_t {
                match $subject($what) {
                    Some(subject) => put(subject.xattr_names(), out.cast(), len),
                    None => real::$list($what, out, len),
                }
            }
        }
    )*};
}

xattrs! {
    getxattr, listxattr, at, path: Text;
    lgetxattr, llistxattr, at, path: Text;
    fgetxattr, flistxattr, Subject::of_descriptor, fd: c_int;
}
