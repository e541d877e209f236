//! Bytes that several processes share: a sealed `memfd` that one of them writes and the others read.
#![allow(unsafe_code)] // maps memory

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::pages::HUGE_LEN;
use super::{HugePages, prefetch_lines};
use crate::error::{Error, ErrorKind, Result};

/// Memory that other processes map, too: writable in the process that created it, readable in all others.
/// Forked children share it.
///
/// It is gone with the last process that has it. Its length is sealed, so no process can cut it off under
/// another one. Memory is allocated where it is first written, and freed by [`SharedBytes::deallocate`].
///
/// A read that overlaps a write returns any mixture of old and new bytes. Who decides what is read where has
/// to notice that, and to discard them: see `tier`.
#[derive(Debug)]
pub struct SharedBytes {
    /// The whole mapping, which exceeds the used part: that is aligned to 2 MiB.
    mapped: NonNull<c_void>,
    mapped_len: usize,
    start: NonNull<u8>,
    len: usize,
    file: OwnedFd,
    is_writable: bool,
}

// SAFETY: plain mapped memory, which is copied from and to by address; no reference into it exists.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Creates `len` zero bytes, in huge pages if there are any.
    ///
    /// # Errors
    /// `OutOfMemory`: more than this machine's memory. Errors of the operating system.
    pub fn new(len: usize) -> Result<SharedBytes> {
        must_fit(len)?;
        // Reserved pages are taken at the mapping; where there are too few, others do.
        let reserved = len >= HUGE_LEN;
        let kind = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let huge = || SharedBytes::create(len, kind, HugePages::Auto);
        let huge = if reserved { huge().ok() } else { None };
        huge.map_or_else(|| SharedBytes::create(len, MemfdFlags::empty(), HugePages::Auto), Ok)
    }

    /// Creates `len` zero bytes, of which no more than `used` will be written at a time. They are in pages of
    /// 4 KiB, so that memory is allocated only for those that are written.
    ///
    /// # Errors
    /// `OutOfMemory`: `used` is more than this machine's memory, or `len` more than can be mapped. Errors of
    /// the operating system.
    pub fn sparse(len: usize, used: usize) -> Result<SharedBytes> {
        must_fit(used)?;
        SharedBytes::create(len, MemfdFlags::empty(), HugePages::Off)
    }

    fn create(len: usize, kind: MemfdFlags, pages: HugePages) -> Result<SharedBytes> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind;
        let file = rustix::fs::memfd_create("dlfs", flags).map_err(std::io::Error::from)?;
        let file_len = len_of_file(len)?;
        rustix::fs::ftruncate(&file, file_len as u64).map_err(std::io::Error::from)?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(std::io::Error::from)?;
        SharedBytes::map(file, len, true, pages)
    }

    /// Maps the `len` bytes of a file that another process created with [`SharedBytes::new`], or with
    /// [`SharedBytes::sparse`] if `pages` is [`HugePages::Off`], for reading.
    ///
    /// # Errors
    /// `InvalidArgument`: the file has another length, or its length is not sealed.
    pub fn open(file: OwnedFd, len: usize, pages: HugePages) -> Result<SharedBytes> {
        let found = rustix::fs::fstat(&file).map_err(std::io::Error::from)?.st_size as u64;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(std::io::Error::from)?;
        if found != len_of_file(len)? as u64 || !seals.contains(SEALS) {
            let text = format!(
                "the shared memory has {found} bytes in place of {len}, or is not \
                 sealed"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        SharedBytes::map(file, len, false, pages)
    }

    /// Maps the file at an address that is aligned as huge pages are.
    fn map(file: OwnedFd, len: usize, is_writable: bool, pages: HugePages) -> Result<SharedBytes> {
        let file_len = len_of_file(len)?;
        let mapped_len = file_len.checked_add(HUGE_LEN).ok_or_else(|| too_long(len))?;
        let nothing = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe { mmap_anonymous(null_mut(), mapped_len, nothing.0, nothing.1) };
        let mapped = NonNull::new(mapped.map_err(std::io::Error::from)?);
        let mapped = mapped.expect("a mapping is not at address 0");
        let skip = mapped.cast::<u8>().align_offset(HUGE_LEN);
        // SAFETY: `skip` is below 2 MiB, and 2 MiB more than the file's length are mapped.
        let start = unsafe { mapped.cast::<u8>().add(skip) };
        // Unmaps what is mapped, from here on.
        let bytes = SharedBytes { mapped, mapped_len, start, len, file, is_writable };
        let write = if is_writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let (protection, flags) = (ProtFlags::READ | write, MapFlags::SHARED | MapFlags::FIXED);
        let at = start.as_ptr().cast();
        // SAFETY: replaces a part of the mapping made above, to which nobody else has the address; the seals
        // keep the file at its length, so all of it stays backed.
        unsafe { mmap(at, file_len, protection, flags, &bytes.file, 0) }
            .map_err(std::io::Error::from)?;
        let advice = match pages {
            HugePages::Auto => Advice::LinuxHugepage,
            HugePages::Off => Advice::LinuxNoHugepage,
        };
        // SAFETY: the range was just mapped; the advice changes no bytes.
        let advised = unsafe { madvise(at, file_len, advice) };
        advised.unwrap_or(()); // without it, pages of 4 KiB
        Ok(bytes)
    }

    /// The file, to be passed to another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies the bytes from `offset` on into `bytes`.
    ///
    /// # Panics
    /// If they end behind the last byte.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: `at` checked that the range is mapped, which it stays until drop; `bytes` is other memory.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// There is no memory for them; nothing was written. They were mapped for reading.
    ///
    /// # Panics
    /// If they end behind the last byte.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> std::io::Result<()> {
        let to = self.at(offset, bytes.len());
        if !self.is_writable {
            return Err(Errno::ACCESS.into());
        }
        self.allocate(offset, bytes.len())?;
        // SAFETY: as in `read`; it is mapped for writing.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        Ok(())
    }

    /// Frees the memory of a range, which then reads as zeroes.
    ///
    /// # Errors
    /// Those of the operating system.
    ///
    /// # Panics
    /// If it ends behind the last byte.
    pub fn deallocate(&self, offset: usize, len: usize) -> std::io::Result<()> {
        self.at(offset, len);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset as u64, len as u64)?)
    }

    /// Prefetches the first of `len` bytes from `offset` on into the processor's cache.
    ///
    /// # Panics
    /// If they end behind the last byte.
    pub fn prefetch(&self, offset: usize, len: usize) {
        prefetch_lines(self.at(offset, len), len);
    }

    /// Allocates the pages of a range: writing to a page for which there is no memory would be a SIGBUS, not
    /// an error.
    fn allocate(&self, offset: usize, len: usize) -> std::io::Result<()> {
        let first = offset / PAGE_LEN * PAGE_LEN;
        let pages = (offset + len).next_multiple_of(PAGE_LEN) - first;
        let at = self.at(first, 0).cast();
        // SAFETY: the file is whole pages, so the range is mapped; the advice changes no bytes.
        let populated = unsafe { madvise(at, pages, Advice::LinuxPopulateWrite) };
        match populated {
            Ok(()) | Err(Errno::INVAL) => Ok(()), // before Linux 5.14 there is no such advice
            Err(Errno::FAULT) => Err(Errno::NOMEM.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The address of `offset`, which `len` mapped bytes follow.
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{offset} and {len} of {}", self.len);
        // SAFETY: within the mapping, see above.
        unsafe { self.start.add(offset).as_ptr() }
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and nobody else has the address.
        let unmapped = unsafe { munmap(self.mapped.as_ptr(), self.mapped_len) };
        debug_assert!(unmapped.is_ok(), "unmapping what was mapped");
    }
}

/// Refuses more than this machine's memory.
fn must_fit(len: usize) -> Result<()> {
    let memory = rustix::system::sysinfo();
    let most = u128::from(memory.totalram) * u128::from(memory.mem_unit.max(1));
    if len as u128 <= most {
        return Ok(());
    }
    let text = format!("cannot share {len} bytes of memory: this machine has {most}");
    Err(Error::new(ErrorKind::OutOfMemory, text))
}

/// The length of the file: whole huge pages where it may be made of them.
fn len_of_file(len: usize) -> Result<usize> {
    let unit = if len >= HUGE_LEN { HUGE_LEN } else { PAGE_LEN };
    len.max(1).checked_next_multiple_of(unit).ok_or_else(|| too_long(len))
}

fn too_long(len: usize) -> Error {
    Error::new(ErrorKind::OutOfMemory, format!("cannot map {len} bytes of shared memory"))
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const PAGE_LEN: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn duplicate(bytes: &SharedBytes) -> OwnedFd {
        bytes.file().try_clone_to_owned().unwrap()
    }

    #[test]
    fn what_the_creator_writes_others_read_and_cannot_write() {
        for len in [10_000, 5 << 20] {
            let first = SharedBytes::new(len).unwrap();
            let second = SharedBytes::open(duplicate(&first), len, HugePages::Auto).unwrap();
            let mut found = [9; 3];
            second.read(len - 3, &mut found);
            assert_eq!(found, [0; 3]);
            first.write(len - 3, &[1, 2, 3]).unwrap();
            second.prefetch(len - 3, 3);
            second.read(len - 3, &mut found);
            assert_eq!(found, [1, 2, 3]);
            let error = second.write(0, &[1]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            drop(first);
            second.read(len - 3, &mut found);
            assert_eq!(found, [1, 2, 3], "it stays while anybody has it");
        }
    }

    #[test]
    #[should_panic(expected = "9999 and 2 of 10000")]
    fn a_read_past_the_end_panics() {
        SharedBytes::new(10_000).unwrap().read(9_999, &mut [0; 2]);
    }

    #[test]
    fn a_file_of_another_length_or_without_seals_is_refused() {
        let bytes = SharedBytes::new(10_000).unwrap();
        assert!(SharedBytes::open(duplicate(&bytes), 20_000, HugePages::Auto).is_err());
        let unsealed = rustix::fs::memfd_create("dlfs", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 12_288).unwrap();
        assert!(SharedBytes::open(unsealed, 10_000, HugePages::Auto).is_err());
    }

    #[test]
    fn more_memory_than_the_machine_has_is_refused_with_both_sizes() {
        for error in [SharedBytes::new(1 << 60), SharedBytes::sparse(1 << 61, 1 << 60)] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            assert!(error.to_string().contains("1152921504606846976"), "{error}");
        }
    }

    #[test]
    fn sparse_bytes_take_memory_where_they_are_written_until_they_are_deallocated() {
        let bytes = SharedBytes::sparse(64 << 30, 1 << 20).unwrap();
        let reader = SharedBytes::open(duplicate(&bytes), 64 << 30, HugePages::Off).unwrap();
        let taken = || rustix::fs::fstat(bytes.file()).unwrap().st_blocks * 512;
        for page in 0..100 {
            bytes.write(page * (512 << 20), &[7; 4096]).unwrap();
        }
        assert_eq!(taken(), 100 * 4096);
        bytes.deallocate(50 * (512 << 20), 50 * (512 << 20)).unwrap();
        assert_eq!(taken(), 50 * 4096);
        let mut found = [9; 2];
        reader.read(49 * (512 << 20) + 4095, &mut found);
        assert_eq!(found, [7, 0]);
        reader.read(50 * (512 << 20), &mut found);
        assert_eq!(found, [0; 2]);
    }
}
