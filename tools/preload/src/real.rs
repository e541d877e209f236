//! The C library's own functions. All are found before `main`; a call that comes earlier finds its own.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{DIR, FILE, dirent, mode_t, size_t, ssize_t};

/// One function of the C library, or of a library that is loaded behind this one.
struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr) -> Real {
        Real { name, address: AtomicPtr::new(null_mut()) }
    }

    /// Its address; NULL if there is none.
    fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Returns whether they were found: looking one up may allocate.
pub(crate) fn is_resolved() -> bool {
    RESOLVED.load(Ordering::Acquire)
}

static RESOLVED: AtomicBool = AtomicBool::new(false);

/// The value by which a function says that it has failed; `errno` says why.
pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: c_int = -1;
}

impl Failed for c_long {
    const FAILED: c_long = -1;
}

impl Failed for isize {
    const FAILED: isize = -1;
}

impl Failed for () {
    const FAILED: () = ();
}

impl<T> Failed for *mut T {
    const FAILED: *mut T = null_mut();
}

macro_rules! real {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        $(
            /// The C library's own.
            #[inline]
            pub(crate) unsafe fn $name($($argument: $kind),*) $(-> $result)? {
                type Function = unsafe extern "C" fn($($kind),*) $(-> $result)?;
                let address = table::$name.address();
                if address.is_null() {
                    crate::own::set_errno(libc::ENOSYS);
                    return Failed::FAILED;
                }
                // SAFETY: the C library's function of this name has this type.
                let function: Function = unsafe { std::mem::transmute(address) };
                // SAFETY: the arguments are those of our own caller.
                unsafe { function($($argument),*) }
            }
        )*

        #[allow(non_upper_case_globals)] // they have the functions' names
        mod table {
            use super::Real;
            $(pub(super) static $name: Real = {
                const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero byte"),
                };
                Real::new(NAME)
            };)*
        }

        /// Finds all of them.
        pub(crate) fn resolve() {
            $(table::$name.address();)*
            RESOLVED.store(true, Ordering::Release);
        }
    };
}

real! {
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    creat(path: *const c_char, mode: mode_t) -> c_int;
    creat64(path: *const c_char, mode: mode_t) -> c_int;
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    read(fd: c_int, out: *mut c_void, len: size_t) -> ssize_t;
    __read(fd: c_int, out: *mut c_void, len: size_t) -> ssize_t;
    __read_chk(fd: c_int, out: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    pread(fd: c_int, out: *mut c_void, len: size_t, at: libc::off_t) -> ssize_t;
    pread64(fd: c_int, out: *mut c_void, len: size_t, at: libc::off_t) -> ssize_t;
    __pread64(fd: c_int, out: *mut c_void, len: size_t, at: libc::off_t) -> ssize_t;
    __pread_chk(fd: c_int, out: *mut c_void, len: size_t, at: libc::off_t, room: size_t) -> ssize_t;
    __pread64_chk(fd: c_int, out: *mut c_void, len: size_t, at: libc::off_t, room: size_t) -> ssize_t;
    readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t;
    preadv(fd: c_int, parts: *const libc::iovec, count: c_int, at: libc::off_t) -> ssize_t;
    preadv64(fd: c_int, parts: *const libc::iovec, count: c_int, at: libc::off_t) -> ssize_t;
    preadv2(fd: c_int, parts: *const libc::iovec, count: c_int, at: libc::off_t, flags: c_int) -> ssize_t;
    preadv64v2(fd: c_int, parts: *const libc::iovec, count: c_int, at: libc::off_t, flags: c_int) -> ssize_t;
    stat(path: *const c_char, out: *mut Stat) -> c_int;
    stat64(path: *const c_char, out: *mut Stat) -> c_int;
    lstat(path: *const c_char, out: *mut Stat) -> c_int;
    lstat64(path: *const c_char, out: *mut Stat) -> c_int;
    fstat(fd: c_int, out: *mut Stat) -> c_int;
    fstat64(fd: c_int, out: *mut Stat) -> c_int;
    fstatat(folder: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int;
    fstatat64(folder: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int;
    __xstat(version: c_int, path: *const c_char, out: *mut Stat) -> c_int;
    __xstat64(version: c_int, path: *const c_char, out: *mut Stat) -> c_int;
    __lxstat(version: c_int, path: *const c_char, out: *mut Stat) -> c_int;
    __lxstat64(version: c_int, path: *const c_char, out: *mut Stat) -> c_int;
    __fxstat(version: c_int, fd: c_int, out: *mut Stat) -> c_int;
    __fxstat64(version: c_int, fd: c_int, out: *mut Stat) -> c_int;
    __fxstatat(version: c_int, folder: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int;
    __fxstatat64(version: c_int, folder: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int;
    statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut Statx) -> c_int;
    statfs(path: *const c_char, out: *mut StatFs) -> c_int;
    statfs64(path: *const c_char, out: *mut StatFs) -> c_int;
    fstatfs(fd: c_int, out: *mut StatFs) -> c_int;
    fstatfs64(fd: c_int, out: *mut StatFs) -> c_int;
    statvfs(path: *const c_char, out: *mut StatVfs) -> c_int;
    statvfs64(path: *const c_char, out: *mut StatVfs) -> c_int;
    fstatvfs(fd: c_int, out: *mut StatVfs) -> c_int;
    fstatvfs64(fd: c_int, out: *mut StatVfs) -> c_int;
    access(path: *const c_char, mode: c_int) -> c_int;
    eaccess(path: *const c_char, mode: c_int) -> c_int;
    euidaccess(path: *const c_char, mode: c_int) -> c_int;
    faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;
    readlink(path: *const c_char, out: *mut c_char, len: size_t) -> ssize_t;
    readlinkat(folder: c_int, path: *const c_char, out: *mut c_char, len: size_t) -> ssize_t;
    getxattr(path: *const c_char, name: *const c_char, out: *mut c_void, len: size_t) -> ssize_t;
    lgetxattr(path: *const c_char, name: *const c_char, out: *mut c_void, len: size_t) -> ssize_t;
    fgetxattr(fd: c_int, name: *const c_char, out: *mut c_void, len: size_t) -> ssize_t;
    listxattr(path: *const c_char, out: *mut c_char, len: size_t) -> ssize_t;
    llistxattr(path: *const c_char, out: *mut c_char, len: size_t) -> ssize_t;
    flistxattr(fd: c_int, out: *mut c_char, len: size_t) -> ssize_t;
    realpath(path: *const c_char, out: *mut c_char) -> *mut c_char;
    __realpath_chk(path: *const c_char, out: *mut c_char, len: size_t) -> *mut c_char;
    canonicalize_file_name(path: *const c_char) -> *mut c_char;
    opendir(path: *const c_char) -> *mut DIR;
    fdopendir(fd: c_int) -> *mut DIR;
    closedir(folder: *mut DIR) -> c_int;
    readdir(folder: *mut DIR) -> *mut dirent;
    readdir64(folder: *mut DIR) -> *mut dirent;
    readdir_r(folder: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int;
    readdir64_r(folder: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int;
    rewinddir(folder: *mut DIR) -> ();
    telldir(folder: *mut DIR) -> c_long;
    seekdir(folder: *mut DIR, position: c_long) -> ();
    dirfd(folder: *mut DIR) -> c_int;
    scandir(path: *const c_char, out: *mut *mut *mut dirent, filter: Filter, order: Order) -> c_int;
    scandir64(path: *const c_char, out: *mut *mut *mut dirent, filter: Filter, order: Order) -> c_int;
    chdir(path: *const c_char) -> c_int;
    fchdir(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int) -> ();
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    flock(fd: c_int, operation: c_int) -> c_int;
    unlink(path: *const c_char) -> c_int;
    unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    remove(path: *const c_char) -> c_int;
    rmdir(path: *const c_char) -> c_int;
    mkdir(path: *const c_char, mode: mode_t) -> c_int;
    mkdirat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int;
    mknod(path: *const c_char, mode: mode_t, device: libc::dev_t) -> c_int;
    mkfifo(path: *const c_char, mode: mode_t) -> c_int;
    symlink(to: *const c_char, path: *const c_char) -> c_int;
    symlinkat(to: *const c_char, folder: c_int, path: *const c_char) -> c_int;
    link(from: *const c_char, path: *const c_char) -> c_int;
    linkat(old: c_int, from: *const c_char, new: c_int, path: *const c_char, flags: c_int) -> c_int;
    rename(from: *const c_char, to: *const c_char) -> c_int;
    renameat(old: c_int, from: *const c_char, new: c_int, to: *const c_char) -> c_int;
    renameat2(old: c_int, from: *const c_char, new: c_int, to: *const c_char, flags: c_uint) -> c_int;
    truncate(path: *const c_char, len: libc::off_t) -> c_int;
    truncate64(path: *const c_char, len: libc::off_t) -> c_int;
    chmod(path: *const c_char, mode: mode_t) -> c_int;
    fchmodat(folder: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int;
    chown(path: *const c_char, owner: libc::uid_t, group: libc::gid_t) -> c_int;
    lchown(path: *const c_char, owner: libc::uid_t, group: libc::gid_t) -> c_int;
    fchownat(folder: c_int, path: *const c_char, owner: libc::uid_t, group: libc::gid_t, flags: c_int) -> c_int;
    utimensat(folder: c_int, path: *const c_char, times: *const libc::timespec, flags: c_int) -> c_int;
    setxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int;
    lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int;
    removexattr(path: *const c_char, name: *const c_char) -> c_int;
    lremovexattr(path: *const c_char, name: *const c_char) -> c_int;
}

/// The caller's choice of entries of a folder; NULL takes all.
pub(crate) type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
/// The caller's order of entries of a folder; NULL keeps that of the folder.
pub(crate) type Order =
    Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

// The C library has functions and structs of the same names.
pub(crate) type Stat = libc::stat;
pub(crate) type Statx = libc::statx;
pub(crate) type StatFs = libc::statfs;
pub(crate) type StatVfs = libc::statvfs;
