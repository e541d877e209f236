//! Memory in a file that this process and a device of another process map, for DMA.
#![allow(unsafe_code)] // reads mapped memory as words

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::mm::{MapFlags, ProtFlags};

use super::pages::{Mapping, len_of_file};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{mark_ours, process_id};

/// Mapped memory of a file, as atomic words. Forked children do not have it.
pub struct FileMemory {
    /// Not unmapped in a child, where other memory may be by then.
    map: ManuallyDrop<Mapping>,
    file: OwnedFd,
    len: usize,
    /// The process that mapped it.
    pid: u32,
}

impl FileMemory {
    /// At least `len` zero bytes in a new file, in huge pages if there are any.
    ///
    /// # Errors
    /// `OutOfMemory`, or another error of the operating system.
    pub fn new(len: usize) -> Result<FileMemory> {
        let (map, file) = Mapping::shared(len)?;
        FileMemory::of(map, file, len_of_file(len)?)
    }

    /// Maps `len` bytes of another process's file, from `offset` on.
    ///
    /// # Errors
    /// `InvalidArgument`: the file is shorter, or they are not whole pages. Errors of the operating system.
    pub fn open(file: OwnedFd, offset: u64, len: usize) -> Result<FileMemory> {
        let found = rustix::fs::fstat(&file).map_err(std::io::Error::from)?.st_size as u64;
        let end = offset.checked_add(len as u64);
        if len == 0 || !len.is_multiple_of(4096) || end.is_none_or(|end| end > found) {
            let text = format!("{len} bytes at {offset} of a shared file of {found} bytes");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        FileMemory::of_device(file, offset, len)
    }

    /// Maps `len` bytes of a device's file, from `offset` on: the kernel knows which it has.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn of_device(file: OwnedFd, offset: u64, len: usize) -> Result<FileMemory> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let map = Mapping::of_part(&file, offset, len, protection, MapFlags::SHARED)?;
        FileMemory::of(map, file, len)
    }

    fn of(map: Mapping, file: OwnedFd, len: usize) -> Result<FileMemory> {
        map.keep_from_children();
        mark_ours(&file);
        Ok(FileMemory { map: ManuallyDrop::new(map), file, len, pid: process_id() })
    }

    /// The file, to be passed to another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.map.start()
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl AsRef<[AtomicU32]> for FileMemory {
    /// # Panics
    /// In a forked child, which does not have the memory.
    fn as_ref(&self) -> &[AtomicU32] {
        assert!(self.pid == process_id(), "memory of the parent process");
        // SAFETY: mapped with at least this length, page-aligned, until drop; an `AtomicU32` is valid with any bytes,
        // and this crate's users and the device access the words as atomics, or as bytes of one owner.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr().cast(), self.len / 4) }
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        if self.pid == process_id() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn both_sides_of_a_file_see_each_others_words() {
        let ours = FileMemory::new(8192).unwrap();
        let file = ours.file().try_clone_to_owned().unwrap();
        let theirs = FileMemory::open(file, 4096, 4096).unwrap();
        ours.as_ref()[1024].store(7, Ordering::Release);
        assert_eq!(theirs.as_ref()[0].load(Ordering::Acquire), 7);
        theirs.as_ref()[1023].store(9, Ordering::Release);
        assert_eq!(ours.as_ref()[2047].load(Ordering::Acquire), 9);
    }

    #[test]
    fn more_than_the_file_has_is_refused() {
        for (offset, len) in [(0, 8192), (4096, 4096), (u64::MAX, 4096), (0, 100), (0, 0)] {
            let file = FileMemory::new(4096).unwrap().file().try_clone_to_owned().unwrap();
            let refused = FileMemory::open(file, offset, len).err().expect("it has 4096 bytes");
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
    }
}
