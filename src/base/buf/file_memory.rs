//! Memory of a file that several processes map, in three kinds.
//!
//! [`FileMemory`] is memory for DMA that a device, or a process that plays one, also writes. [`SharedWords`] are atomic
//! words of a file of sealed length. [`SealedBytes`] are bytes that no process can change any more.
#![allow(unsafe_code)] // reads mapped memory

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, Stat};
use rustix::mm::{MapFlags, ProtFlags};

use super::pages::{Mapping, check_sealed, len_of_file, sealed_file};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{mark_ours, process_id};
use crate::sync::AtomicU64;

/// Mapped memory of a file, read as atomic words. Forked children do not have it.
pub struct FileMemory {
    /// Not unmapped in a child: other memory may be mapped there by then.
    map: ManuallyDrop<Mapping>,
    file: OwnedFd,
    len: usize,
    /// The process that mapped it.
    pid: u32,
}

impl FileMemory {
    /// At least `len` zero bytes in a new file; from 2 MiB on in huge pages, if available.
    ///
    /// # Errors
    /// `OutOfMemory`: `len` exceeds this machine's memory. Otherwise errors of the operating system.
    pub fn new(len: usize) -> Result<FileMemory> {
        let (map, file) = Mapping::shared(len)?;
        FileMemory::of(map, file, len_of_file(len)?)
    }

    /// Maps `len` bytes of another process's file, from `offset` on, which is a multiple of the page size.
    ///
    /// # Errors
    /// `InvalidArgument`: the range exceeds the file, or `len` is 0 or no multiple of 4,096. Otherwise errors of the
    /// operating system.
    pub fn open(file: OwnedFd, offset: u64, len: usize) -> Result<FileMemory> {
        let found = rustix::fs::fstat(&file).map_err(std::io::Error::from)?.st_size as u64;
        let end = offset.checked_add(len as u64);
        if len == 0 || !len.is_multiple_of(4096) || end.is_none_or(|end| end > found) {
            let text = format!("{len} bytes at {offset} of a shared file of {found} bytes");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        FileMemory::of_device(file, offset, len)
    }

    /// Maps `len` bytes of a device's file, from `offset` on, which is a multiple of the page size. The kernel checks
    /// the range: such a file has no length.
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
    /// `OutOfMemory`: `len` is 0 or too large. Otherwise errors of the operating system.
    pub fn new(len: usize) -> Result<SharedWords> {
        let file = sealed_file(bytes_of(len)?, MemfdFlags::empty())?;
        SharedWords::open(file, len)
    }

    /// Maps the `len` words of a file that another process created with [`SharedWords::new`].
    ///
    /// # Errors
    /// `InvalidArgument`: the file has another length, or its length is not sealed. `OutOfMemory`: `len` is 0 or too
    /// large. Otherwise errors of the operating system.
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

/// Immutable bytes in memory that other processes of the same user can map instead of making their own copy.
///
/// The kernel keeps them unchanged: seals, which nobody can remove, forbid all processes to write the file or
/// change its length. The memory is freed when the last process drops it.
#[derive(Debug)]
pub struct SealedBytes {
    mapping: Mapping,
    len: usize,
    file: OwnedFd,
}

/// The location by which another process opens [`SealedBytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SealedLocation {
    /// A process that has the bytes open.
    pub pid: u32,
    /// The file descriptor in that process.
    pub fd: u32,
    /// The device number of the file.
    pub dev: u64,
    /// The inode of the file. Another inode means that the process has closed the file, or has ended and
    /// another one has its identifier.
    pub ino: u64,
}

impl SealedBytes {
    /// A copy of `bytes`.
    ///
    /// # Errors
    /// Errors of the operating system: no memory, no descriptor, `EINVAL` if `bytes` is empty.
    pub fn of(bytes: &[u8]) -> std::io::Result<SealedBytes> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = std::fs::File::from(rustix::fs::memfd_create("dlfs_snapshot", flags)?);
        std::io::Write::write_all(&mut file, bytes)?;
        rustix::fs::fcntl_add_seals(&file, IMMUTABLE)?;
        SealedBytes::map(file.into(), bytes.len())
    }

    /// Maps the bytes at `location`, if they still exist.
    ///
    /// # Errors
    /// Errors of the operating system. `InvalidData`: the file is another one, is not sealed, or belongs to
    /// another user.
    pub fn open(location: &SealedLocation) -> std::io::Result<SealedBytes> {
        let path = format!("/proc/{}/fd/{}", location.pid, location.fd);
        // Checked before opening, because opening some devices has side effects.
        location.check(&rustix::fs::stat(&path)?)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&path, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&file)?;
        location.check(&found)?;
        if !rustix::fs::fcntl_get_seals(&file)?.contains(IMMUTABLE) {
            return Err(another("it is not sealed"));
        }
        let len = usize::try_from(found.st_size).map_err(|_| another("it is too long"))?;
        SealedBytes::map(file, len)
    }

    fn map(file: OwnedFd, len: usize) -> std::io::Result<SealedBytes> {
        // Private, since older kernels refuse a shared mapping of a sealed file; clean pages are shared
        // anyway.
        let mapping = Mapping::of_part(&file, 0, len, ProtFlags::READ, MapFlags::PRIVATE)?;
        Ok(SealedBytes { mapping, len, file })
    }

    /// The location by which another process can open the bytes while the calling process holds them.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn location(&self) -> std::io::Result<SealedLocation> {
        let Stat { st_dev, st_ino, .. } = rustix::fs::fstat(&self.file)?;
        let fd = self.file.as_raw_fd() as u32; // an open descriptor is not negative
        Ok(SealedLocation { pid: std::process::id(), fd, dev: st_dev, ino: st_ino })
    }
}

impl SealedLocation {
    fn check(&self, found: &Stat) -> std::io::Result<()> {
        if (found.st_dev, found.st_ino) != (self.dev, self.ino) {
            return Err(another("it is another file"));
        }
        if found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(another("it belongs to another user"));
        }
        Ok(())
    }
}

impl Deref for SealedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped until drop; the seals keep the file at this length and its bytes as they are.
        unsafe { std::slice::from_raw_parts(self.mapping.start().as_ptr(), self.len) }
    }
}

fn another(why: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, format!("not the shared snapshot: {why}"))
}

/// Seals that forbid all changes, also of the seals.
const IMMUTABLE: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

#[cfg(test)]
mod tests {

    use super::*;
    use crate::sync::Ordering;

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

    #[test]
    fn another_handle_maps_the_same_bytes_which_nobody_can_write() {
        let bytes = SealedBytes::of(&[7; 10_000]).unwrap();
        let again = SealedBytes::open(&bytes.location().unwrap()).unwrap();
        assert_eq!(again[..], [7; 10_000]);
        assert!(rustix::io::write(&bytes.file, &[1]).is_err());
        assert!(rustix::fs::ftruncate(&bytes.file, 1).is_err());
        drop(bytes);
        assert_eq!(again[..], [7; 10_000], "it stays while anybody has it");
    }

    #[test]
    fn what_is_not_sealed_or_another_file_or_gone_is_refused() {
        let bytes = SealedBytes::of(&[7; 10_000]).unwrap();
        let location = bytes.location().unwrap();
        let other = SealedLocation { ino: location.ino + 1, ..location };
        assert!(SealedBytes::open(&other).unwrap_err().to_string().contains("another file"));
        let unsealed = rustix::fs::memfd_create("dlfs", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        let found = rustix::fs::fstat(&unsealed).unwrap();
        let fd = unsealed.as_raw_fd() as u32;
        let at = SealedLocation { fd, dev: found.st_dev, ino: found.st_ino, ..location };
        assert!(SealedBytes::open(&at).unwrap_err().to_string().contains("not sealed"));
        assert!(SealedBytes::open(&SealedLocation { fd: u32::MAX, ..location }).is_err());
    }
}
