//! Opening files.
//!
//! In C, `mode` of `open` and `openat` is a variadic argument, and may be missing. Here it is an ordinary argument:
//! 64-bit Linux passes both in the same way, and `mode` is only passed on to the C library.

use std::ffi::{CStr, c_int};

use libc::{AT_FDCWD, FILE, mode_t};

use super::{Text, mounted, returned, text};
use crate::paths::MountedPath;
use crate::{inside, syscalls};

answers! {
    open | open64(path: Text, flags: c_int, mode: mode_t) -> c_int,
        mounted(AT_FDCWD, path), found => open_file(&found, flags);
    openat | openat64(folder: c_int, path: Text, flags: c_int, mode: mode_t) -> c_int,
        mounted(folder, path), found => open_file(&found, flags);
    __open_2 | __open64_2(path: Text, flags: c_int) -> c_int,
        mounted(AT_FDCWD, path), found => open_file(&found, flags);
    __openat_2 | __openat64_2(folder: c_int, path: Text, flags: c_int) -> c_int,
        mounted(folder, path), found => open_file(&found, flags);
    creat | creat64(path: Text, mode: mode_t) -> c_int,
        mounted(AT_FDCWD, path), found => open_file(&found, CREATES);
    fopen | fopen64(path: Text, mode: Text) -> *mut FILE,
        mounted(AT_FDCWD, path), found => returned(inside::run(|| stream(&found, text(mode))));
}

/// Opens a file or folder below a mount.
fn open_file(mounted: &MountedPath, flags: c_int) -> c_int {
    returned(inside::run(|| mounted.open(flags, false)))
}

/// The flags of `creat`.
const CREATES: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

instead! {
    fn freopen | freopen64(path: Text, mode: Text, stream: *mut FILE) -> *mut FILE {
        let Some(mounted) = mounted(AT_FDCWD, path) else {
            return real(path, mode, stream);
        };
        match inside::run(|| mounted.open(flags_of(text(mode))?, true)) {
            // The C library opens the memory again through its path in `/proc`, for its stream.
            Ok(fd) => {
                let name = syscalls::path_of(fd);
                let stream = real(name.as_ptr().cast(), mode, stream);
                syscalls::close(fd);
                stream
            }
            Err(errno) => {
                libc::fclose(stream); // as the C library does if it cannot open the path
                returned(Err(errno))
            }
        }
    }
}

/// Opens a stream.
fn stream(mounted: &MountedPath, mode: Option<&CStr>) -> Result<*mut FILE, c_int> {
    let fd = mounted.open(flags_of(mode)?, true)?;
    // SAFETY: the descriptor is open, and a `CStr` ends with NUL; `flags_of` has refused a NULL mode.
    let stream = unsafe { libc::fdopen(fd, mode.unwrap_or_default().as_ptr()) };
    if stream.is_null() {
        let errno = syscalls::errno();
        syscalls::close(fd);
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
