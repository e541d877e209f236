//! The C library's functions: where they are, what they return on failure, and types that they take. All of them are
//! looked up before `main`; a call before that looks up the function that it needs.

use std::ffi::{c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::dirent;

/// A function of the C library, or of a library that is loaded after this one.
pub(crate) struct Real {
    /// Ends with NUL.
    name: &'static str,
    address: AtomicPtr<c_void>,
}

impl Real {
    /// The function `name`, which must end with NUL.
    pub(crate) const fn new(name: &'static str) -> Real {
        assert!(matches!(name.as_bytes(), [.., 0]), "C's strings end with NUL");
        Real { name, address: AtomicPtr::new(null_mut()) }
    }

    /// The function's address; NULL if there is none.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Set once all functions are looked up. Before that, calls that allocators make must not look up a function,
/// since a lookup may allocate.
pub(crate) static RESOLVED: AtomicBool = AtomicBool::new(false);

/// The value that a function returns on failure, with `errno` set.
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

/// The caller's filter of a folder's entries; NULL accepts all.
pub(crate) type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
/// The caller's comparison of a folder's entries, to which it gets pointers to pointers, as from `qsort`; NULL leaves
/// the entries in the folder's order.
pub(crate) type Order = Option<unsafe extern "C" fn(*const c_void, *const c_void) -> c_int>;

// Aliases, since the C library has functions and structs of the same names.
pub(crate) type Stat = libc::stat;
pub(crate) type Statx = libc::statx;
pub(crate) type StatFs = libc::statfs;
pub(crate) type StatVfs = libc::statvfs;
