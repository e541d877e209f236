//! `libdlfs_preload.so`: shows data sets as folders to programs that know only files, through `LD_PRELOAD`.
//!
//! # What it is
//! Replaces the C library's functions that take paths. A path below one of the prefixes in `DLFS_MOUNTS` is answered
//! from a data set; every other path is passed on to the C library. Opening a file gives a *real descriptor*: a sealed
//! memfd with the verified bytes of the whole file. So the kernel itself handles `read`, `mmap`, `sendfile`, `dup`,
//! `fork`, `exec` and `io_uring` correctly. Some files are opened in place instead: all files of a plain folder without
//! tiers, and long files of a plain folder with tiers or of a FUSE mount of the data set. For long files of a folder
//! with tiers, `read` and `pread` go through the tiers (`in_place.rs`), and calls that are not interposed read the file
//! itself.
//!
//! # What it is not
//! It sees calls of programs and libraries to the C library. It does not see calls within the C library
//! (`nftw`, `glob`), raw system calls, static binaries, or Go. It writes nothing: calls that write fail with EROFS.
//!
//! # Invariants
//! - After the settings are read, nothing allocates, waits for a lock, connects or starts a thread until a path
//!   or descriptor is known to belong to a mount. A data set is opened at its first such path or descriptor.
//! - A memfd is identified without state in the process, except a cache: its name identifies the node, and the kernel
//!   keeps that name through `dup`, `fork`, `exec` and `SCM_RIGHTS`. A folder's descriptor is a memfd too, opened with
//!   `O_PATH`: functions that are not interposed fail on it and read nothing. Files opened in place are in a table of
//!   the process.
//! - The library does not answer calls that it makes itself: a thread marks when it is inside the library
//!   (`inside.rs`), and the library's threads are known by their names.
//!
//! # Safety
//! Each function relies on its caller for the obligations of the C library's function of that name: strings
//! end with NUL, and buffers have the lengths that are passed or that their types have.
//!
//! Read `paths.rs` first, then `mounts.rs`, `files.rs`, and one of `calls/`.
#![allow(unsafe_code)] // one of the homes of `unsafe`: it replaces functions of C

mod ahead;
mod calls;
mod files;
mod in_place;
mod inside;
mod memfd;
mod mounts;
mod paths;
mod report;
mod settings;
mod syscalls;

use std::sync::atomic::Ordering;

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_env = "gnu")))]
compile_error!(
    "libdlfs_preload.so knows only glibc on 64-bit Linux, where stat and stat64 are one"
);

/// Runs before `main`, after the functions that look up the C library's own: reads the settings.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        calls::RESOLVED.store(true, Ordering::Release);
        mounts::start();
    }
    start
};

/// Runs when the program ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        report::write_report();
        mounts::flush();
    }
    end
};
