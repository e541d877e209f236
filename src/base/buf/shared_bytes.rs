//! Bytes shared by several processes: a `memfd` of sealed length that one process writes and others read.
#![allow(unsafe_code)] // maps memory

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::allocation::Allocation;
use super::lends::{Lender, Lends};
use super::pages::HUGE_LEN;
use super::{HugePages, SharedBuf, prefetch_lines};
use crate::error::{Error, ErrorKind, Result};

/// Memory mapped by several processes: writable in the process that created it, readable in all others.
/// Forked children share it.
///
/// The memory is freed when the last process drops it. Its length is sealed, so that no process can
/// truncate it while others use it. Pages are allocated when first written, and freed by
/// [`SharedBytes::deallocate`].
///
/// A read that overlaps a write returns any mixture of old and new bytes. The code that decides what is
/// stored where must detect this and discard the bytes: see `dlfs-cache`.
///
/// The writing process may lend frozen pages without a copy ([`SharedBytes::freeze`]). They are written
/// again only after they were thawed and all lent buffers were dropped ([`SharedBytes::thaw`]).
pub struct SharedBytes {
    map: Arc<Map>,
    len: usize,
    file: OwnedFd,
    /// The loans of pages; `None` if another process writes.
    lends: Option<Lends>,
}

/// The mapping.
struct Map {
    /// The whole mapping. It exceeds the used part, which is aligned to 2 MiB.
    mapped: NonNull<c_void>,
    mapped_len: usize,
    start: NonNull<u8>,
}

// SAFETY: plain mapped memory, which is copied from and to by address. References exist only into frozen pages,
// which `Lends` keeps from being written.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl SharedBytes {
    /// Creates `len` zero bytes, in huge pages if available.
    ///
    /// # Errors
    /// `OutOfMemory`: `len` exceeds this machine's memory. Otherwise errors of the operating system.
    pub fn new(len: usize) -> Result<SharedBytes> {
        must_fit(len)?;
        // Mapping takes reserved huge pages; if there are too few, other pages are used.
        let reserved = len >= HUGE_LEN;
        let kind = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let huge = || SharedBytes::create(len, kind, HugePages::Auto);
        let huge = if reserved { huge().ok() } else { None };
        huge.map_or_else(|| SharedBytes::create(len, MemfdFlags::empty(), HugePages::Auto), Ok)
    }

    /// Creates `len` zero bytes, of which at most `used` will be in use at a time. Uses 4 KiB pages, so
    /// that memory is allocated only for pages that are written.
    ///
    /// # Errors
    /// `OutOfMemory`: `used` exceeds this machine's memory, or `len` cannot be mapped. Otherwise errors of
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

    /// Maps for reading `len` bytes of a file that another process created, with [`SharedBytes::new`] or,
    /// if `pages` is [`HugePages::Off`], with [`SharedBytes::sparse`].
    ///
    /// # Errors
    /// `InvalidArgument`: the file has another length, or its length is not sealed. Otherwise errors of the
    /// operating system.
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

    /// Maps the file at an address aligned for huge pages.
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
        // From here on, dropping `map` unmaps the memory.
        let map = Arc::new(Map { mapped, mapped_len, start });
        let write = if is_writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let protection = ProtFlags::READ | write;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let at = start.as_ptr().cast();
        // SAFETY: replaces a part of the mapping made above, to which nobody else has the address; the seals
        // keep the file at its length, so all of it stays backed.
        unsafe { mmap(at, file_len, protection, flags, &file, 0) }.map_err(std::io::Error::from)?;
        let advice = match pages {
            HugePages::Auto => Advice::LinuxHugepage,
            HugePages::Off => Advice::LinuxNoHugepage,
        };
        // SAFETY: the range was just mapped; the advice changes no bytes.
        let advised = unsafe { madvise(at, file_len, advice) };
        advised.unwrap_or(()); // without the advice, the kernel chooses the pages
        let lends = if is_writable { Some(Lends::new(file_len / PAGE_LEN)?) } else { None };
        Ok(SharedBytes { map, len, file, lends })
    }

    /// The file, to be passed to another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies bytes from `offset` into `bytes`.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: `at` checked that the range is mapped, and it stays mapped until drop; `bytes` is other memory. A
        // writer may change the range meanwhile: any bytes are valid, and the callers detect this, see the type.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// On an error nothing was written. `EBUSY`: some pages are frozen or still lent. `EACCES`: another process
    /// writes. Otherwise there is no memory for the bytes.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> std::io::Result<()> {
        let to = self.at(offset, bytes.len());
        let lends = self.lends.as_ref().ok_or(Errno::ACCESS)?;
        self.allocate(offset, bytes.len())?;
        let written = lends.write(pages(offset, bytes.len()), || {
            // SAFETY: as in `read`. The range is mapped for writing, and nobody has a reference into pages that may
            // be written, nor gets one before this closure returns.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        });
        Ok(written.ok_or(Errno::BUSY)?)
    }

    /// Creates a lender for one queue pair; `None` if another process writes.
    pub fn lender(&self) -> Option<Arc<Lender>> {
        Some(self.lends.as_ref()?.add(self.lending()))
    }

    /// Lends `len` bytes at `offset`, if all of their pages are frozen. The bytes do not change, and stay
    /// mapped, until the last handle on them is dropped.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn lend(&self, lender: &Lender, offset: usize, len: usize) -> Option<SharedBuf> {
        let start = NonNull::new(self.at(offset, len))?;
        let handle = self.lends.as_ref()?.lend(lender, pages(offset, len))?;
        // SAFETY: `handle` keeps the range mapped. While it exists, nobody writes these pages: they are frozen, and
        // `Lends` lets no writer in before the last clone of `handle` is dropped.
        Some(unsafe { SharedBuf::of_range(Some(handle), start, len) })
    }

    /// Freezes the pages of a range: they may be lent, and are not written. Does nothing if another process
    /// writes.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn freeze(&self, offset: usize, len: usize) {
        self.at(offset, len);
        self.lends.iter().for_each(|lends| lends.freeze(pages(offset, len)));
    }

    /// Ends the lending of a range's pages. Returns whether all loans have ended, so that the pages may be
    /// written; if not, ask again later.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn thaw(&self, offset: usize, len: usize) -> bool {
        self.at(offset, len);
        self.lends.as_ref().is_none_or(|lends| lends.thaw(pages(offset, len), || self.lending()))
    }

    fn lending(&self) -> Allocation {
        Allocation::lending(self.map.clone())
    }

    /// Frees the memory of a range, which then reads as zeros.
    ///
    /// # Errors
    /// Errors of the operating system. `EBUSY`: some pages are frozen or still lent. `EACCES`: another process
    /// writes.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn deallocate(&self, offset: usize, len: usize) -> std::io::Result<()> {
        self.at(offset, len);
        let lends = self.lends.as_ref().ok_or(Errno::ACCESS)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let freed = lends.write(pages(offset, len), || {
            rustix::fs::fallocate(&self.file, flags, offset as u64, len as u64)
        });
        Ok(freed.ok_or(Errno::BUSY)??)
    }

    /// Prefetches the start of the `len` bytes at `offset` into the CPU cache.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn prefetch(&self, offset: usize, len: usize) {
        prefetch_lines(self.at(offset, len), len);
    }

    /// Allocates the pages of a range: writing to a page for which there is no memory would raise SIGBUS instead
    /// of returning an error. Does nothing before Linux 5.14.
    fn allocate(&self, offset: usize, len: usize) -> std::io::Result<()> {
        let first = offset / PAGE_LEN * PAGE_LEN;
        let pages = (offset + len).next_multiple_of(PAGE_LEN) - first;
        let at = self.at(first, 0).cast();
        // SAFETY: the file is whole pages, so the range is mapped; the advice changes no bytes.
        let populated = unsafe { madvise(at, pages, Advice::LinuxPopulateWrite) };
        match populated {
            Ok(()) | Err(Errno::INVAL) => Ok(()), // an older kernel does not know this advice
            Err(Errno::FAULT) => Err(Errno::NOMEM.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The address of `offset`, followed by at least `len` mapped bytes.
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{offset} and {len} of {}", self.len);
        // SAFETY: `offset` is at most `self.len`, and as many bytes are mapped from `start`.
        unsafe { self.map.start.add(offset).as_ptr() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `SharedBytes::map` with this length. All users of the address are gone: the
        // `SharedBytes` and everything that it lent, which each had a handle on this `Map`.
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

/// The pages that contain a range.
fn pages(offset: usize, len: usize) -> Range<usize> {
    offset / PAGE_LEN..(offset + len).div_ceil(PAGE_LEN)
}

/// The length of the file: whole huge pages if `len` is at least one, since the file may use them.
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
            let error = error.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            assert!(error.to_string().contains("1152921504606846976"), "{error}");
        }
    }

    #[test]
    fn frozen_bytes_are_lent_and_stay_as_they_are_until_nobody_has_them() {
        let bytes = SharedBytes::new(10 << 20).unwrap();
        let first = bytes.lender().unwrap();
        let second = bytes.lender().unwrap();
        bytes.write(8192, &[1; 8192]).unwrap();
        assert!(bytes.lend(&first, 8192, 4096).is_none(), "they may be written");
        bytes.freeze(8192, 8192);
        assert!(bytes.lend(&first, 4096, 8192).is_none(), "the first page is not frozen");
        let lent = bytes.lend(&first, 12_000, 4000).unwrap();
        let again = bytes.lend(&second, 8192, 8192).unwrap();
        let busy = |error: std::io::Error| error.kind() == std::io::ErrorKind::ResourceBusy;
        assert!(busy(bytes.write(12_288, &[2; 4096]).unwrap_err()));
        assert!(busy(bytes.deallocate(8192, 4096).unwrap_err()));
        // The second page is thawed, the first is still frozen.
        assert!(!bytes.thaw(12_288, 4096));
        assert!(bytes.lend(&first, 12_288, 4096).is_none());
        let later = bytes.lend(&first, 8192, 4096).unwrap();
        drop(lent);
        assert!(!bytes.thaw(12_288, 4096) && busy(bytes.write(12_288, &[2]).unwrap_err()));
        drop(again);
        assert!(bytes.thaw(12_288, 4096), "who came later has no page of it");
        bytes.write(12_288, &[2; 4096]).unwrap();
        assert!(!bytes.thaw(8192, 4096));
        drop(second);
        assert!(later.iter().all(|&byte| byte == 1) && later.len() == 4096);
        let later = later.thaw().unwrap_err();
        drop(bytes);
        assert!(later.iter().all(|&byte| byte == 1), "it keeps the memory");
        assert!(later.thaw().is_err(), "also the last handle only reads");
    }

    #[test]
    fn a_page_waits_for_lends_that_an_earlier_thaw_ended() {
        let bytes = SharedBytes::new(64 << 10).unwrap();
        let lender = bytes.lender().unwrap();
        bytes.freeze(0, 64 << 10);
        let lent = bytes.lend(&lender, 4096, 4096).unwrap();
        assert!(!bytes.thaw(0, 4096), "any page may be lent with it");
        assert!(!bytes.thaw(4096, 4096), "this one is, though by an allocation that has ended");
        assert!(bytes.lend(&lender, 8192, 4096).is_some());
        drop(lender);
        assert!(!bytes.thaw(8192, 4096), "who has lent it is gone, and the buffer is not");
        drop(lent);
        assert!(bytes.thaw(0, 12_288));
        bytes.write(0, &[3; 12_288]).unwrap();
        let lender = bytes.lender().unwrap();
        assert!(bytes.lend(&lender, 0, 4096).is_none());
        bytes.freeze(0, 4096);
        assert_eq!(bytes.lend(&lender, 0, 4096).unwrap()[..], [3; 4096]);
        assert!(bytes.thaw(0, 4096), "nobody has it");
    }

    #[test]
    fn pages_are_lent_and_rewritten_by_threads_and_no_buffer_ever_changes() {
        let seed = 5_u64;
        println!("seed {seed}");
        let bytes = SharedBytes::new(256 << 10).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let bytes = &bytes;
                let stop = &stop;
                scope.spawn(move || {
                    let lender = bytes.lender().unwrap();
                    let mut state = seed + thread;
                    let mut held: Vec<(Vec<u8>, SharedBuf)> = Vec::new();
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let page = (state >> 40) as usize % 61;
                        if let Some(lent) = bytes.lend(&lender, page * 4096, 3 * 4096) {
                            held.push((lent.to_vec(), lent));
                        }
                        if held.len() > 8 {
                            for (then, lent) in held.drain(..) {
                                assert!(then[..] == lent[..], "page {page}");
                            }
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut rewritten = 0;
            let mut refused = 0;
            let mut page = 0;
            while rewritten < 500 || refused < 20 {
                page = (page + 7) % 64;
                if bytes.thaw(page * 4096, 4096) {
                    bytes.write(page * 4096, &[rewritten as u8; 4096]).unwrap();
                    bytes.freeze(page * 4096, 4096);
                    rewritten += 1;
                } else {
                    refused += 1;
                    std::thread::yield_now();
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            println!("{rewritten} pages rewritten, {refused} still lent");
        });
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
