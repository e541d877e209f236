//! Opening files, reads and mappings of descriptors, calls that would change something, and others: working
//! directories, links, real paths.
//!
//! In C, `mode` of `open` and `openat` is a variadic argument, and may be missing. Here it is an ordinary argument:
//! 64-bit Linux passes both in the same way, and `mode` is only passed on to the C library.
//!
//! Only [files opened in place](crate::long) need the calls that read or map; for other descriptors they cost a few
//! loads. Allocators map memory and read files while they start, before this library's constructor. So nothing here
//! looks up a function or allocates, unless the descriptor is this library's. Calls that would change something below
//! a mount fail, as on a file system mounted read-only.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use libc::{AT_FDCWD, FILE, gid_t, iovec, mode_t, off_t, size_t, ssize_t, uid_t};

use dlfs::posix::{Folder, Node};

use super::{Text, place, returned, text};
use crate::own::{self, RESOLVED};
use crate::paths::{self, Place};
use crate::{files, long};

macro_rules! opens {
    ($($($name:ident)|+ ($($argument:ident: $kind:ty),*), $folder:expr, $path:ident, $flags:expr;)*) => {$(
        instead! {
            fn $($name)|+ ($($argument: $kind),*) -> c_int {
                let answer = |place: Place| returned(own::inside(|| place.open($flags, false)));
                place($folder, $path).map_or_else(|| real($($argument),*), answer)
            }
        }
    )*};
}

opens! {
    open | open64(path: Text, flags: c_int, mode: mode_t), AT_FDCWD, path, flags;
    openat | openat64(folder: c_int, path: Text, flags: c_int, mode: mode_t), folder, path, flags;
    __open_2 | __open64_2(path: Text, flags: c_int), AT_FDCWD, path, flags;
    __openat_2 | __openat64_2(folder: c_int, path: Text, flags: c_int), folder, path, flags;
    creat | creat64(path: Text, mode: mode_t), AT_FDCWD, path, CREATES;
}

const CREATES: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

instead! {
    fn fopen | fopen64(path: Text, mode: Text) -> *mut FILE {
        let answer = |place: Place| returned(own::inside(|| stream(&place, text(mode))));
        place(AT_FDCWD, path).map_or_else(|| real(path, mode), answer)
    }

    fn freopen | freopen64(path: Text, mode: Text, stream: *mut FILE) -> *mut FILE {
        let Some(place) = place(AT_FDCWD, path) else {
            return real(path, mode, stream);
        };
        match own::inside(|| place.open(flags_of(text(mode))?, true)) {
            // Through `/proc`, the kernel opens the memory again, for the C library's stream.
            Ok(fd) => {
                let name = files::path_of(fd);
                let stream = real(name.as_ptr().cast(), mode, stream);
                files::close(fd);
                stream
            }
            Err(errno) => {
                libc::fclose(stream); // as the C library does if it cannot open the path
                returned(Err(errno))
            }
        }
    }
}

fn stream(place: &Place, mode: Option<&CStr>) -> Result<*mut FILE, c_int> {
    let fd = place.open(flags_of(mode)?, true)?;
    // SAFETY: the descriptor is open, and a `CStr` ends with NUL; `flags_of` has refused a NULL mode.
    let stream = unsafe { libc::fdopen(fd, mode.unwrap_or_default().as_ptr()) };
    if stream.is_null() {
        let errno = own::errno();
        files::close(fd);
        return Err(errno);
    }
    Ok(stream)
}

/// The flags of `open` for a stream's mode.
fn flags_of(mode: Option<&CStr>) -> Result<c_int, c_int> {
    let mode = mode.unwrap_or_default().to_bytes();
    let options = mode.split(|byte| *byte == b',').next().unwrap_or_default();
    let has = |letter: u8| options.contains(&letter);
    let flags = match options.first() {
        Some(b'r') => 0,
        Some(b'w') => libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY,
        Some(b'a') => libc::O_CREAT | libc::O_APPEND | libc::O_WRONLY,
        _ => return Err(libc::EINVAL),
    };
    let access = if has(b'+') { flags & !libc::O_WRONLY | libc::O_RDWR } else { flags };
    let exclusive = if has(b'x') { libc::O_EXCL } else { 0 };
    Ok(access | exclusive | if has(b'e') { libc::O_CLOEXEC } else { 0 })
}

macro_rules! reads {
    ($($($name:ident)|+ ($($argument:ident: $kind:ty),*), $number:ident, $at:expr, $most:expr;)*) => {$(
        instead! {
            fn $($name)|+ (fd: c_int, out: *mut c_void, len: size_t $(, $argument: $kind)*) -> ssize_t {
                let at: Option<off_t> = $at;
                // Too short a buffer is left to the C library's function, which aborts the program.
                let read = if len <= $most { long::read(fd, out, len, at) } else { None };
                match read {
                    Some(read) => read,
                    None if !RESOLVED.load(Ordering::Acquire) => {
                        libc::syscall(libc::$number, fd, out, len, at.unwrap_or(0)) as ssize_t
                    }
                    None => real(fd, out, len, $($argument),*),
                }
            }
        }
    )*};
}

reads! {
    read | __read(), SYS_read, None, size_t::MAX;
    __read_chk(room: size_t), SYS_read, None, room;
    pread | pread64 | __pread64(at: off_t), SYS_pread64, Some(at), size_t::MAX;
    __pread_chk | __pread64_chk(at: off_t, room: size_t), SYS_pread64, Some(at), room;
}

macro_rules! parts {
    ($($($name:ident)|+ ($($argument:ident: $kind:ty),*), $number:ident, $at:expr, $flags:expr;)*) => {$(
        instead! {
            fn $($name)|+ (fd: c_int, parts: *const iovec, count: c_int $(, $argument: $kind)*) -> ssize_t {
                let at: Option<off_t> = $at;
                let flags: c_int = $flags;
                let read = if flags == 0 { long::read_parts(fd, parts, count, at) } else { None };
                match read {
                    Some(read) => read,
                    None if !RESOLVED.load(Ordering::Acquire) => {
                        let at = at.unwrap_or(-1); // `preadv2`: -1 is the descriptor's own position
                        libc::syscall(libc::$number, fd, parts, count, at, 0, flags) as ssize_t
                    }
                    None => real(fd, parts, count, $($argument),*),
                }
            }
        }
    )*};
}

parts! {
    readv(), SYS_readv, None, 0;
    preadv | preadv64(at: off_t), SYS_preadv, Some(at), 0;
    preadv2 | preadv64v2(at: off_t, flags: c_int), SYS_preadv2, (at != -1).then_some(at), flags;
}

/// Makes the system call: the C library's function does the same, and need not be looked up.
macro_rules! maps {
    ($($name:ident)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            at: *mut c_void,
            len: size_t,
            access: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            long::mapped(fd, offset);
            // SAFETY: the arguments are our caller's, who has the same obligations to the kernel.
            unsafe { libc::syscall(libc::SYS_mmap, at, len, access, flags, fd, offset) as *mut c_void }
        }
    )*};
}

maps! { mmap mmap64 }

/// Answers a change of a file or folder, which must exist.
fn change(place: &Place) -> c_int {
    returned(own::inside(|| place.node().and(Err(libc::EROFS))))
}

/// Answers the removal of a name. Only its folder must exist: the kernel, too, checks for a read-only file
/// system before it looks up the name.
fn remove_name(place: &Place) -> c_int {
    let path = &place.path;
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..end].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let folder = Place { mount: place.mount, path: [&path[..slash], b"/"].concat() };
    change(&folder)
}

/// Answers the creation of a file or folder, which must not exist.
fn make(place: &Place) -> c_int {
    returned(own::inside(|| match place.node() {
        Ok(_) => Err(libc::EEXIST),
        Err(libc::ENOENT) => Err(libc::EROFS),
        Err(errno) => Err(errno),
    }))
}

macro_rules! writes {
    ($($what:ident $($name:ident)|+ ($($argument:ident: $kind:ty),*), $folder:expr, $path:ident;)*) => {$(
        instead! {
            fn $($name)|+ ($($argument: $kind),*) -> c_int {
                place($folder, $path).map_or_else(|| real($($argument),*), |place| $what(&place))
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
fn two(from: Option<Place>, to: Option<Place>) -> Option<c_int> {
    match (from, to) {
        (None, None) => None,
        (Some(from), Some(to)) if std::ptr::eq(from.mount, to.mount) => Some(remove_name(&from)),
        (Some(from), _) => Some(returned(own::inside(|| from.node().and(Err(libc::EXDEV))))),
        (None, Some(_)) => Some(returned(Err(libc::EXDEV))),
    }
}

macro_rules! moves {
    ($($($name:ident)|+ ($($argument:ident: $kind:ty),*), $old:expr, $from:ident, $new:expr, $to:ident;)*) => {$(
        instead! {
            fn $($name)|+ ($($argument: $kind),*) -> c_int {
                let answer = two(place($old, $from), place($new, $to));
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

instead! {
    // Changes the working directory. A folder below a mount is refused, because the kernel cannot enter it.
    // Only the mount's top folder can be entered, if there is a real folder with the same path.
    fn chdir(path: Text) -> c_int {
        if let Some(place) = place(AT_FDCWD, path) {
            match own::inside(|| Ok(place.node()?.1)) {
                Err(errno) => return returned(Err(errno)),
                Ok(Node::File(_)) => return returned(Err(libc::ENOTDIR)),
                Ok(Node::Folder(Folder::TOP)) => {}
                Ok(Node::Folder(_)) => return refuse(&place.path),
            }
        }
        entered(real(path))
    }

    fn fchdir(fd: c_int) -> c_int {
        match files::identity(fd) {
            Some((_, Node::File(_))) => returned(Err(libc::ENOTDIR)),
            Some((_, Node::Folder(_))) => refuse(b"it"),
            None => entered(real(fd)),
        }
    }

    // Fails for every path below a mount: mounts have no links.
    fn readlink(path: Text, out: *mut c_char, len: size_t) -> ssize_t {
        place(AT_FDCWD, path).map_or_else(|| real(path, out, len), |place| no_link(&place))
    }

    fn readlinkat(folder: c_int, path: Text, out: *mut c_char, len: size_t) -> ssize_t {
        place(folder, path).map_or_else(|| real(folder, path, out, len), |place| no_link(&place))
    }

    fn realpath(path: Text, out: *mut c_char) -> *mut c_char {
        place(AT_FDCWD, path).map_or_else(|| real(path, out), |place| real_path(&place, out))
    }

    // The C library ends the program if `len` is too short for any path.
    fn __realpath_chk(path: Text, out: *mut c_char, len: size_t) -> *mut c_char {
        if len < libc::PATH_MAX as size_t {
            return real(path, out, len);
        }
        place(AT_FDCWD, path).map_or_else(|| real(path, out, len), |place| real_path(&place, out))
    }

    fn canonicalize_file_name(path: Text) -> *mut c_char {
        place(AT_FDCWD, path).map_or_else(|| real(path), |place| real_path(&place, null_mut()))
    }
}

/// Returns the result of changing the working directory; looks the directory up again if it has changed.
fn entered(result: c_int) -> c_int {
    if result == 0 {
        paths::learn_working_folder();
    }
    result
}

fn refuse(path: &[u8]) -> c_int {
    let path = path.escape_ascii();
    own::say(&format!(
        "{path}: the working folder cannot be inside of a data set that only this program sees"
    ));
    returned(Err(libc::EOPNOTSUPP))
}

fn no_link(place: &Place) -> ssize_t {
    returned(own::inside(|| place.node().and(Err(libc::EINVAL))))
}

/// As `realpath`.
///
/// # Safety
/// `out` is NULL or has PATH_MAX bytes.
unsafe fn real_path(place: &Place, out: *mut c_char) -> *mut c_char {
    returned(own::inside(|| {
        let (opened, node) = place.node()?;
        let below = opened.files.tree().path(node).map_err(|_| libc::EIO)?;
        let mut path = place.mount.setting.prefix.to_vec();
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
