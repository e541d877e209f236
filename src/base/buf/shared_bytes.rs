//! Bytes shared by several processes: a `memfd` of sealed length that one process writes and others read.
//!
//! Pages are lent without a copy. A page is *frozen* once it holds valid bytes: it may be lent, and nobody writes it.
//! Thawing it ends the lending. The page is writable again when all earlier loans have ended. Nobody blocks on this:
//! the writer asks again.
//!
//! Loans are counted per lender, not per page. A lender has one allocation, and each buffer that it lends
//! is a handle on it. Thawing gives each lender with outstanding buffers a new allocation; the page is
//! writable once all handles on the old ones are dropped. So lending takes one lock, that of the lender,
//! and later loans do not delay the writer.
#![allow(unsafe_code)] // maps memory

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::pages::{Mapping, check_sealed, len_of_file, must_fit};
use super::pool::Allocation;
use super::registration::Registrar;
use super::slots::words_of;
use super::{HugePages, SharedBuf, SharedWords, prefetch_lines};
use crate::error::Result;
use crate::sync::{Mutex, Ordering};

/// Memory mapped by several processes: writable in the process that created it, readable in all others.
/// Forked children share it, unless [`SharedBytes::keep_from_children`].
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
    map: Arc<Mapping>,
    len: usize,
    file: OwnedFd,
    /// The loans of pages; `None` if another process writes.
    lends: Option<Lends>,
}

impl SharedBytes {
    /// Creates `len` zero bytes, in huge pages if available.
    ///
    /// # Errors
    /// `OutOfMemory`: `len` exceeds this machine's memory. Otherwise errors of the operating system.
    pub fn new(len: usize) -> Result<SharedBytes> {
        let (map, file) = Mapping::shared(len)?;
        SharedBytes::writable(map, len, file)
    }

    /// Creates `len` zero bytes, of which at most `used` will be in use at a time. Uses 4 KiB pages, so
    /// that memory is allocated only for pages that are written.
    ///
    /// # Errors
    /// `OutOfMemory`: `used` exceeds this machine's memory, or `len` cannot be mapped. Otherwise errors of
    /// the operating system.
    pub fn sparse(len: usize, used: usize) -> Result<SharedBytes> {
        must_fit(used)?;
        let (map, file) = Mapping::of_new_file(len, MemfdFlags::empty(), false)?;
        SharedBytes::writable(map, len, file)
    }

    fn writable(map: Mapping, len: usize, file: OwnedFd) -> Result<SharedBytes> {
        let lends = Some(Lends::new(len_of_file(len)? / PAGE_LEN)?);
        Ok(SharedBytes { map: Arc::new(map), len, file, lends })
    }

    /// Maps for reading `len` bytes of a file that another process created, with [`SharedBytes::new`],
    /// [`Pool::shared`](super::Pool::shared) or, if `pages` is [`HugePages::Off`], [`SharedBytes::sparse`].
    ///
    /// # Errors
    /// `InvalidArgument`: the file has another length, or its length is not sealed. Otherwise errors of the
    /// operating system.
    pub fn open(file: OwnedFd, len: usize, pages: HugePages) -> Result<SharedBytes> {
        check_sealed(&file, len_of_file(len)?, len)?;
        let map = Arc::new(Mapping::of_file(&file, len, false, pages == HugePages::Auto)?);
        Ok(SharedBytes { map, len, file, lends: None })
    }

    /// Leaves the memory out of children that are forked from now on: an access there ends the child.
    pub fn keep_from_children(&self) {
        self.map.keep_from_children();
    }

    /// Registers the memory with a driver until it is unmapped; at most once, after
    /// [`SharedBytes::keep_from_children`].
    ///
    /// # Errors
    /// The driver's refusal; the memory then stays as it is.
    pub fn register(&self, registrar: &'static dyn Registrar) -> Result<()> {
        self.map.register(registrar, self.len)
    }

    /// The length of the registered memory: all or none.
    pub fn registered_bytes(&self) -> usize {
        self.map.registered_bytes()
    }

    /// The number of bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
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
    /// writes. `ENOMEM`: there is no memory for the bytes. Otherwise errors of the operating system.
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
    /// written; if not, ask again later. If another process writes, does nothing and returns `true`.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn thaw(&self, offset: usize, len: usize) -> bool {
        self.at(offset, len);
        self.lends.as_ref().is_none_or(|lends| lends.thaw(pages(offset, len), || self.lending()))
    }

    /// Begins a loan of ranges that another process writes. That process has promised not to write them until `end` is
    /// dropped, with the [`Loan`] and its last buffer.
    pub fn loan(&self, end: impl Send + Sync + 'static) -> Loan {
        let map = Arc::clone(&self.map);
        let end = Allocation::lending(Arc::new((Arc::clone(&map), end)));
        Loan { map, len: self.len, end }
    }

    /// An allocation without buffers that keeps the memory mapped.
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
        // SAFETY: within the mapping, see above.
        unsafe { self.map.start().add(offset).as_ptr() }
    }
}

/// Ranges that another process has lent to this one.
pub struct Loan {
    map: Arc<Mapping>,
    len: usize,
    /// Keeps the mapping, and the caller's value that ends the loan.
    end: Allocation,
}

impl Loan {
    /// The `len` bytes at `offset`, which must lie in the lent ranges; `None`: the memory is shorter.
    pub fn part(&self, offset: usize, len: usize) -> Option<SharedBuf> {
        offset.checked_add(len).filter(|&end| end <= self.len)?;
        // SAFETY: within the mapping, see above.
        let start = unsafe { self.map.start().add(offset) };
        // SAFETY: mapped as long as `end` has the mapping. The memory is mapped for reading here, and the process that
        // writes it, which is of this user and of this library, has lent the range until `end` is dropped.
        Some(unsafe { SharedBuf::of_range(Some(self.end.clone()), start, len) })
    }
}

/// The pages that contain a range.
fn pages(offset: usize, len: usize) -> Range<usize> {
    offset / PAGE_LEN..(offset + len).div_ceil(PAGE_LEN)
}

/// The loans of one [`SharedBytes`]. Pages are numbered from its start.
pub(super) struct Lends {
    /// One bit per page, set while the page is frozen.
    frozen: SharedWords,
    /// Held while writing pages, and while freezing or thawing them.
    state: Mutex<LendsState>,
}

/// The lenders, and the pages and allocations whose lending has ended but whose buffers may still exist.
#[derive(Default)]
struct LendsState {
    lenders: Vec<Arc<Lender>>,
    /// Replaced allocations that still have buffers, each with the number of the thaw that replaced it.
    ended: Vec<(u64, Allocation)>,
    /// Thawed pages, each with the number of its thaw, until no allocation that this thaw or an earlier one
    /// replaced has buffers.
    thawing: BTreeMap<usize, u64>,
    /// Number of thaws so far that replaced allocations.
    thaws: u64,
}

/// Lends buffers to the users of one queue pair.
pub struct Lender {
    /// Each buffer of the lender is a handle on this allocation. A thaw replaces it.
    allocation: Mutex<Allocation>,
}

impl Lends {
    /// Manages `num_pages` pages, all unfrozen.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn new(num_pages: usize) -> Result<Lends> {
        let frozen = SharedWords::new(num_pages.div_ceil(64).max(1))?;
        Ok(Lends { frozen, state: Mutex::default() })
    }

    /// Adds a lender that starts with this allocation.
    pub(super) fn add(&self, allocation: Allocation) -> Arc<Lender> {
        let lender = Arc::new(Lender { allocation: Mutex::new(allocation) });
        let mut state = self.state.lock();
        // An unused lender is kept until its buffers are dropped.
        let is_used = |lender: &Arc<Lender>| {
            Arc::strong_count(lender) > 1 || !lender.allocation.lock().is_only_handle()
        };
        state.lenders.retain(is_used);
        state.lenders.push(Arc::clone(&lender));
        lender
    }

    /// Lends `pages` if all are frozen: while the returned handle exists, nobody writes them.
    pub(super) fn lend(&self, lender: &Lender, pages: Range<usize>) -> Option<Allocation> {
        let allocation = lender.allocation.lock();
        // Checked under the lock: a thaw clears the bits before it takes this lock. So either the bits are
        // clear here, or the thaw finds the new handle.
        let is_frozen = words_of(pages.start, pages.len()).all(|(word, bits)| {
            let found = self.frozen.as_ref()[word].load(Ordering::Acquire);
            found & bits == bits
        });
        is_frozen.then(|| allocation.clone())
    }

    /// Freezes `pages`, which hold valid bytes.
    pub(super) fn freeze(&self, pages: Range<usize>) {
        let _state = self.state.lock();
        for (word, bits) in words_of(pages.start, pages.len()) {
            self.frozen.as_ref()[word].fetch_or(bits, Ordering::Release);
        }
    }

    /// Ends the lending of `pages`. Returns whether they may be written now; if not, ask again. `begin`
    /// makes a new allocation for a lender.
    pub(super) fn thaw(&self, pages: Range<usize>, begin: impl Fn() -> Allocation) -> bool {
        let mut state = self.state.lock();
        let mut was_frozen = false;
        for (word, bits) in words_of(pages.start, pages.len()) {
            let before = self.frozen.as_ref()[word].fetch_and(!bits, Ordering::AcqRel);
            was_frozen |= before & bits != 0;
        }
        if was_frozen {
            state.end_allocations(begin);
            if !state.ended.is_empty() {
                let thaw = state.thaws;
                state.thawing.extend(pages.clone().map(|page| (page, thaw)));
            }
        }
        state.may_write(pages)
    }

    /// Calls `write` if `pages` may be written. Freezing waits until `write` returns.
    pub(super) fn write<T>(&self, pages: Range<usize>, write: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.state.lock();
        let is_frozen = words_of(pages.start, pages.len())
            .any(|(word, bits)| self.frozen.as_ref()[word].load(Ordering::Acquire) & bits != 0);
        (!is_frozen && state.may_write(pages)).then(write)
    }
}

impl LendsState {
    /// Gives each lender with outstanding buffers a new allocation.
    fn end_allocations(&mut self, begin: impl Fn() -> Allocation) {
        self.thaws += 1;
        for lender in &self.lenders {
            let mut allocation = lender.allocation.lock();
            if !allocation.is_only_handle() {
                self.ended.push((self.thaws, std::mem::replace(&mut *allocation, begin())));
            }
        }
        self.ended.retain(|(_, allocation)| !allocation.is_only_handle());
    }

    /// Returns whether all loans of these unfrozen pages have ended.
    fn may_write(&mut self, pages: Range<usize>) -> bool {
        if self.thawing.range(pages.clone()).next().is_none() {
            return true;
        }
        // An allocation that a thaw replaced may have lent the pages of this thaw and of any later one: they all
        // wait for it.
        self.ended.retain(|(_, allocation)| !allocation.is_only_handle());
        match self.ended.iter().map(|(thaw, _)| *thaw).min() {
            None => self.thawing.clear(),
            Some(oldest) => self.thawing.retain(|_, thaw| *thaw >= oldest),
        }
        self.thawing.range(pages).next().is_none()
    }
}

const PAGE_LEN: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

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
