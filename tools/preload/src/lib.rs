//! `libdlfs_preload.so`: shows data sets as folders to programs that know only files, through `LD_PRELOAD`.
//!
//! # What it is
//! Functions of the C library that take paths, in front of the C library's own. A path below one of the
//! prefixes in `DLFS_MOUNTS` is answered from a data set; every other path goes on to the C library.
//! Opening a file gives a *real descriptor*: a sealed memfd with the verified bytes of the whole file. So
//! `read`, `mmap`, `sendfile`, `dup`, `fork`, `exec` and `io_uring` are the kernel's own and right. A file of a plain
//! folder without tiers, and a long one with tiers, is its own descriptor, of which `read` and `pread` go through the
//! tiers (`long.rs`); what is not interposed reads the file itself.
//!
//! # What it is not
//! It sees the calls of programs and libraries to the C library. It does not see the C library's own calls
//! (`nftw`, `glob`), raw system calls, static binaries, and Go. It writes nothing: such calls get EROFS.
//!
//! # Invariants
//! - Until a path is known to be below a mount, nothing allocates, locks, connects or starts a thread. A
//!   data set is opened at the first path below its prefix.
//! - No state decides what a descriptor is. What a descriptor of ours stands for is the name of its memfd, which
//!   the kernel keeps through `dup`, `fork`, `exec` and `SCM_RIGHTS`. A folder's descriptor is a memfd too,
//!   opened with `O_PATH`: functions that are not interposed fail on it and read nothing.
//! - The library's own calls are not answered by itself: a thread says when it is inside of it, and threads
//!   of the library are known by their names.
//!
//! # Safety
//! Each function relies on its caller for what the C library's function of that name does: strings end with
//! NUL, and buffers have the lengths that are told or that their types have.
//!
//! Read `paths.rs` first, then `files.rs`, and one of `calls/`.
#![allow(unsafe_code)] // one of the homes of `unsafe`: it stands in for functions of C

mod ahead;
mod calls;
mod files;
mod folders;
mod known;
mod long;
mod mounts;
mod own;
mod paths;
mod real;
mod report;
mod settings;
mod stat;

use std::sync::atomic::Ordering;

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_env = "gnu")))]
compile_error!(
    "libdlfs_preload.so knows only glibc on 64-bit Linux, where stat and stat64 are one"
);

/// Runs before `main`, behind the functions that find the C library's own: reads the settings.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        real::RESOLVED.store(true, Ordering::Release);
        settings::start();
    }
    start
};

/// Runs when the program ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        report::write();
        mounts::flush();
    }
    end
};
