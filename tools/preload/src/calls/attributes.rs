//! Attributes of paths and descriptors.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use dlfs::posix::Node;
use libc::{AT_EMPTY_PATH, AT_FDCWD, size_t, ssize_t};

use super::{Text, returned, text};
use crate::mounts::{Mount, Opened};
use crate::paths::Place;
use crate::real::{Stat, StatFs, StatVfs, Statx};
use crate::stat::Full;
use crate::{files, own, paths, stat as shapes};

/// The subject of the call: a place below a mount, or the node behind a descriptor.
enum Subject {
    Place(Place),
    Known(&'static Mount, Node),
}

impl Subject {
    /// The subject of `path` relative to `folder`; with AT_EMPTY_PATH in `flags` and an empty path, of the
    /// descriptor `folder` itself.
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

    /// Calls `work` with the node, and `put` with the result of `work`, to write it for the caller.
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

    /// As `access`: every node may be read, none written, and only folders may be entered.
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

/// Defines functions like `stat`: each `$argument` stands before the result, `$flags` after it, and `$subject`
/// is the expression of the subject.
macro_rules! stats {
    ($($($name:ident)|+ ($($argument:ident: $kind:ty),*; $($flags:ident)?) $subject:expr;)*) => {$(
        instead! {
            fn $($name)|+ ($($argument: $kind,)* out: *mut Stat $(, $flags: c_int)?) -> c_int {
                match $subject {
                    Some(subject) => subject.tell(Full::of, |full| out.write(full.stat())),
                    None => real($($argument,)* out $(, $flags)?),
                }
            }
        }
    )*};
}

stats! {
    stat | stat64 | lstat | lstat64(path: Text;) at(path);
    __xstat | __xstat64 | __lxstat | __lxstat64(version: c_int, path: Text;) at(path);
    fstat | fstat64(fd: c_int;) Subject::of_descriptor(fd);
    __fxstat | __fxstat64(version: c_int, fd: c_int;) Subject::of_descriptor(fd);
    fstatat | fstatat64(folder: c_int, path: Text; flags) Subject::of(folder, text(path), flags);
    __fxstatat | __fxstatat64(version: c_int, folder: c_int, path: Text; flags)
        Subject::of(folder, text(path), flags);
}

/// The subject of a path that, if it is relative, starts at the working directory.
///
/// # Safety
/// As [`text`].
unsafe fn at(path: Text) -> Option<Subject> {
    // SAFETY: the caller's promise; the string is used only until this returns.
    Subject::of(AT_FDCWD, unsafe { text(path) }, 0)
}

instead! {
    fn statx(folder: c_int, path: Text, flags: c_int, mask: c_uint, out: *mut Statx) -> c_int {
        match Subject::of(folder, text(path), flags) {
            Some(subject) => subject.tell(Full::of, |full| out.write(full.statx())),
            None => real(folder, path, flags, mask, out),
        }
    }

    fn faccessat(folder: c_int, path: Text, mode: c_int, flags: c_int) -> c_int {
        match Subject::of(folder, text(path), flags) {
            Some(subject) => subject.access(mode),
            None => real(folder, path, mode, flags),
        }
    }

    fn access | eaccess | euidaccess(path: Text, mode: c_int) -> c_int {
        at(path).map_or_else(|| real(path, mode), |subject| subject.access(mode))
    }

    fn statfs | statfs64(path: Text, out: *mut StatFs) -> c_int {
        let answer = |subject: Subject| subject.tell(shapes::statfs, |stat| out.write(stat));
        at(path).map_or_else(|| real(path, out), answer)
    }

    fn fstatfs | fstatfs64(fd: c_int, out: *mut StatFs) -> c_int {
        let answer = |subject: Subject| subject.tell(shapes::statfs, |stat| out.write(stat));
        Subject::of_descriptor(fd).map_or_else(|| real(fd, out), answer)
    }

    fn statvfs | statvfs64(path: Text, out: *mut StatVfs) -> c_int {
        let answer = |subject: Subject| subject.tell(shapes::statvfs, |stat| out.write(stat));
        at(path).map_or_else(|| real(path, out), answer)
    }

    fn fstatvfs | fstatvfs64(fd: c_int, out: *mut StatVfs) -> c_int {
        let answer = |subject: Subject| subject.tell(shapes::statvfs, |stat| out.write(stat));
        Subject::of_descriptor(fd).map_or_else(|| real(fd, out), answer)
    }

    fn getxattr | lgetxattr(path: Text, name: Text, out: *mut c_void, len: size_t) -> ssize_t {
        let answer = |subject: Subject| put(subject.xattr(CStr::from_ptr(name)), out, len);
        at(path).map_or_else(|| real(path, name, out, len), answer)
    }

    fn fgetxattr(fd: c_int, name: Text, out: *mut c_void, len: size_t) -> ssize_t {
        let answer = |subject: Subject| put(subject.xattr(CStr::from_ptr(name)), out, len);
        Subject::of_descriptor(fd).map_or_else(|| real(fd, name, out, len), answer)
    }

    fn listxattr | llistxattr(path: Text, out: *mut c_char, len: size_t) -> ssize_t {
        let answer = |subject: Subject| put(subject.xattr_names(), out.cast(), len);
        at(path).map_or_else(|| real(path, out, len), answer)
    }

    fn flistxattr(fd: c_int, out: *mut c_char, len: size_t) -> ssize_t {
        let answer = |subject: Subject| put(subject.xattr_names(), out.cast(), len);
        Subject::of_descriptor(fd).map_or_else(|| real(fd, out, len), answer)
    }
}

/// Copies bytes to the caller; with a length of 0, only returns their number.
///
/// # Safety
/// `out` has `len` bytes.
unsafe fn put(bytes: Result<Vec<u8>, c_int>, out: *mut c_void, len: size_t) -> ssize_t {
    returned(bytes.and_then(|bytes| {
        if len != 0 {
            let enough = bytes.len() <= len;
            // SAFETY: `bytes` fits into the `len` bytes at `out`, and is memory of its own, so they do not overlap.
            let copy = || unsafe {
                out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
            };
            enough.then(copy).ok_or(libc::ERANGE)?;
        }
        Ok(bytes.len() as isize)
    }))
}
