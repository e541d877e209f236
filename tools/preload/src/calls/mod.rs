//! The functions that replace the C library's, grouped by purpose; and the C library's own, which they call for
//! everything else.
//!
//! The C library's functions are looked up before `main`; a call before that looks up the function that it needs.

/// Defines functions that programs call instead of the C library's functions of the same names. Their bodies
/// may be unsafe; in them, `real` calls the C library's function.
macro_rules! instead {
    () => {};
    (fn $name:ident $(| $more:ident)+ ($($arguments:tt)*) -> $result:ty $body:block $($rest:tt)*) => {
        instead! { fn $name($($arguments)*) -> $result $body }
        instead! { fn $($more)|+ ($($arguments)*) -> $result $body }
        instead! { $($rest)* }
    };
    (fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty $body:block $($rest:tt)*) => {
        /// As the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            #[inline]
            unsafe fn real($($argument: $kind),*) -> $result {
                static REAL: crate::calls::Real = crate::calls::Real::new(concat!(stringify!($name), "\0"));
                // Runs before `START`: numbered sections come first.
                #[used]
                #[unsafe(link_section = ".init_array.00101")]
                static FIND: extern "C" fn() = {
                    extern "C" fn find() {
                        REAL.address();
                    }
                    find
                };
                let address = REAL.address();
                if address.is_null() {
                    crate::syscalls::set_errno(libc::ENOSYS);
                    return crate::calls::Failed::FAILED;
                }
                type Function = unsafe extern "C" fn($($kind),*) -> $result;
                // SAFETY: the C library's function of this name has this type.
                let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(address) };
                // SAFETY: the arguments are our own caller's.
                unsafe { function($($argument),*) }
            }
            // SAFETY: a program calls this as the C library's function of this name, and so meets its manual:
            // strings end with NUL, results have room, and a stream or folder is open. Our own functions need
            // nothing else, and the C library's function gets the same arguments.
            unsafe { $body }
        }
        instead! { $($rest)* }
    };
}

/// Functions that answer about paths and descriptors of mounts, and call the C library's functions for others. Each
/// entry: names and arguments, the subject if there is one, and the answer.
macro_rules! answers {
    ($($($name:ident)|+ ($($argument:ident: $kind:ty),*) -> $result:ty,
        $subject:expr, $bound:ident => $answer:expr;)*) => {$(
        instead! {
            fn $($name)|+ ($($argument: $kind),*) -> $result {
                match $subject {
                    Some($bound) => $answer,
                    None => real($($argument),*),
                }
            }
        }
    )*};
}

mod attributes;
mod changes;
mod descriptors;
mod folders;
mod open;
mod reads;
mod resolve;

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::dirent;

use crate::paths::{self, MountedPath};
use crate::{mounts, syscalls};

/// A C string.
type Text = *const c_char;

/// The string of a path or a mode. `None` for NULL, and if there are no mounts: nobody needs the string then, so
/// its length is not computed.
///
/// # Safety
/// `text` is NULL or ends with NUL, and stays as long as the result is used.
unsafe fn text<'a>(text: Text) -> Option<&'a CStr> {
    let is_wanted = !text.is_null() && !mounts::all().is_empty();
    // SAFETY: not NULL here, so it ends with NUL.
    is_wanted.then(|| unsafe { CStr::from_ptr(text) })
}

/// As [`paths::mounted`], for a string of C.
///
/// # Safety
/// As [`text`].
#[inline]
unsafe fn mounted(folder: c_int, path: Text) -> Option<MountedPath> {
    // SAFETY: the caller's promise; the string is used only until this returns.
    paths::mounted(folder, unsafe { text(path) }?)
}

/// A result in the form that C expects: on error -1 or NULL, with `errno` set.
fn returned<T: Failed>(result: Result<T, c_int>) -> T {
    result.unwrap_or_else(|errno| {
        syscalls::set_errno(errno);
        T::FAILED
    })
}

/// A function of the C library, or of a library that is loaded after this one.
struct Real {
    /// Ends with NUL.
    name: &'static str,
    address: AtomicPtr<c_void>,
}

impl Real {
    /// The function `name`, which must end with NUL.
    const fn new(name: &'static str) -> Real {
        assert!(matches!(name.as_bytes(), [.., 0]), "C's strings end with NUL");
        Real { name, address: AtomicPtr::new(null_mut()) }
    }

    /// The function's address; NULL if there is none.
    fn address(&self) -> *mut c_void {
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
trait Failed {
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
type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
/// The caller's comparison of a folder's entries, to which it gets pointers to pointers, as from `qsort`; NULL leaves
/// the entries in the folder's order.
type Order = Option<unsafe extern "C" fn(*const c_void, *const c_void) -> c_int>;

// Aliases, since the C library has functions and structs of the same names.
type Stat = libc::stat;
type Statx = libc::statx;
type StatFs = libc::statfs;
type StatVfs = libc::statvfs;
