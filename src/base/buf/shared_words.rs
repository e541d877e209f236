//! Atomic words shared by several processes: a `memfd` of sealed length that each of them maps.
#![allow(unsafe_code)] // reads mapped memory

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::pages::{Mapping, check_sealed, sealed_file};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::AtomicU64;

/// Atomic words in memory mapped by several processes. Forked children share them.
///
/// The memory is freed when the last process drops it. Its length is sealed, so that no process can
/// truncate it while others use it.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
    len: usize,
    file: OwnedFd,
}

impl SharedWords {
    /// Creates `len` words of zeroes.
    ///
    /// # Errors
    /// Errors of the operating system, including `OutOfMemory`.
    pub fn new(len: usize) -> Result<SharedWords> {
        let file = sealed_file(bytes_of(len)?, MemfdFlags::empty())?;
        SharedWords::open(file, len)
    }

    /// Maps the `len` words of a file that another process created with [`SharedWords::new`].
    ///
    /// # Errors
    /// `InvalidArgument`: the file has another length, or its length is not sealed. Otherwise errors of the
    /// operating system.
    pub fn open(file: OwnedFd, len: usize) -> Result<SharedWords> {
        let bytes = bytes_of(len)?;
        check_sealed(&file, bytes, bytes)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Mapping::of_part(&file, 0, bytes, protection, MapFlags::SHARED)?;
        Ok(SharedWords { mapping, len, file })
    }

    /// The file, to be passed to another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRef<[AtomicU64]> for SharedWords {
    fn as_ref(&self) -> &[AtomicU64] {
        // SAFETY: mapped in `open` with this length, page-aligned, until drop; an `AtomicU64` is
        // valid with any bytes, and other processes access the words as atomics only.
        unsafe { std::slice::from_raw_parts(self.mapping.start().as_ptr().cast(), self.len) }
    }
}

/// Length in bytes of `len` words; refuses zero, since a mapping cannot be empty.
fn bytes_of(len: usize) -> Result<usize> {
    let bytes = len.checked_mul(size_of::<AtomicU64>()).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| Error::new(ErrorKind::OutOfMemory, format!("{len} shared words")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn what_is_stored_in_one_mapping_is_seen_in_the_other() {
        let first = SharedWords::new(1000).unwrap();
        let second = SharedWords::open(first.file().try_clone_to_owned().unwrap(), 1000).unwrap();
        first.as_ref()[999].store(7, Ordering::Release);
        assert_eq!(second.as_ref()[999].load(Ordering::Acquire), 7);
        drop(first);
        assert_eq!(second.as_ref()[999].load(Ordering::Acquire), 7);
    }

    #[test]
    fn a_file_of_another_length_or_without_seals_is_refused() {
        let words = SharedWords::new(4).unwrap();
        let file = || words.file().try_clone_to_owned().unwrap();
        assert!(SharedWords::open(file(), 5).is_err() && SharedWords::open(file(), 0).is_err());
        assert!(rustix::fs::ftruncate(words.file(), 0).is_err(), "the length is sealed");
        let unsealed = rustix::fs::memfd_create("dlfs", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 32).unwrap();
        assert!(SharedWords::open(unsealed, 4).is_err());
    }
}
