//! Opening files. `mode` is read where the C library's function takes it as a variadic argument: the two
//! are passed alike on 64-bit Linux, and it only goes on to that function.

use std::ffi::{CStr, c_char, c_int};

use libc::{AT_FDCWD, FILE, mode_t};

use super::{returned, returned_pointer};
use crate::{own, paths, real};

macro_rules! opens {
    ($($name:ident($($argument:ident: $kind:ty),*), $folder:expr, $path:ident, $flags:expr;)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                match paths::place($folder, $path) {
                    Some(place) => returned(own::inside(|| place.open($flags))),
                    None => real::$name($($argument),*),
                }
            }
        }
    )*};
}

opens! {
    open(path: *const c_char, flags: c_int, mode: mode_t), AT_FDCWD, path, flags;
    open64(path: *const c_char, flags: c_int, mode: mode_t), AT_FDCWD, path, flags;
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t), folder, path, flags;
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t), folder, path, flags;
    __open_2(path: *const c_char, flags: c_int), AT_FDCWD, path, flags;
    __open64_2(path: *const c_char, flags: c_int), AT_FDCWD, path, flags;
    __openat_2(folder: c_int, path: *const c_char, flags: c_int), folder, path, flags;
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int), folder, path, flags;
    creat(path: *const c_char, mode: mode_t), AT_FDCWD, path, CREATES;
    creat64(path: *const c_char, mode: mode_t), AT_FDCWD, path, CREATES;
}

const CREATES: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

macro_rules! streams {
    ($($name:ident, $again:ident;)*) => {$(
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                match paths::place(AT_FDCWD, path) {
                    Some(place) => returned_pointer(own::inside(|| stream(&place, mode))),
                    None => real::$name(path, mode),
                }
            }
        }

        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $again(
            path: *const c_char,
            mode: *const c_char,
            stream: *mut FILE,
        ) -> *mut FILE {
            // SAFETY: the caller keeps to the C library's rules.
            unsafe {
                let Some(place) = paths::place(AT_FDCWD, path) else {
                    return real::$again(path, mode, stream);
                };
                match own::inside(|| place.open_whole(flags_of(mode)?)) {
                    // The kernel opens the memory a second time, for the stream that the C library has.
                    Ok(fd) => {
                        let name = crate::files::path_of(fd);
                        let stream = real::$again(name.as_ptr().cast(), mode, stream);
                        crate::files::close(fd);
                        stream
                    }
                    Err(errno) => {
                        libc::fclose(stream); // as the C library does when it cannot open the path
                        returned_pointer(Err(errno))
                    }
                }
            }
        }
    )*};
}

streams! {
    fopen, freopen;
    fopen64, freopen64;
}

/// # Safety
/// `mode` ends with NUL.
unsafe fn stream(place: &paths::Place, mode: *const c_char) -> Result<*mut FILE, c_int> {
    // SAFETY: the caller's promise.
    let fd = place.open_whole(unsafe { flags_of(mode) }?)?;
    // SAFETY: as above; the descriptor is open.
    let stream = unsafe { libc::fdopen(fd, mode) };
    if stream.is_null() {
        let errno = own::errno();
        crate::files::close(fd);
        return Err(errno);
    }
    Ok(stream)
}

/// The flags of `open` that a stream's mode stands for.
///
/// # Safety
/// `mode` ends with NUL.
unsafe fn flags_of(mode: *const c_char) -> Result<c_int, c_int> {
    // SAFETY: the caller's promise.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
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
