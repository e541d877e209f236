//! Mappings of memory that several processes share: a `memfd` of sealed length.
#![allow(unsafe_code)] // maps memory

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::pages::{HUGE_LEN, Pages, Registrar, Registration, shared_pages};
use crate::error::{Error, ErrorKind, Result};

/// The mapping of shared memory.
pub(super) struct Map {
    /// The whole mapping. It exceeds the used part, which is aligned to 2 MiB.
    mapped: NonNull<c_void>,
    mapped_len: usize,
    start: NonNull<u8>,
    registration: OnceLock<Registration>,
}

// SAFETY: plain mapped memory, used by address. Its owner, a pool or `SharedBytes`, decides who may access which
// bytes.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` zero bytes of a new file for writing, in huge pages if available.
    pub(super) fn new(len: usize) -> Result<(Map, OwnedFd, Pages)> {
        must_fit(len)?;
        // Mapping takes reserved huge pages; if there are too few, other pages are used.
        if len >= HUGE_LEN {
            let kind = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
            if let Ok((map, file)) = Map::create(len, kind, true) {
                return Ok((map, file, Pages::Huge));
            }
        }
        let (map, file) = Map::create(len, MemfdFlags::empty(), true)?;
        Ok((map, file, shared_pages()))
    }

    /// Maps a new file of `len` bytes for writing; `is_huge`: in huge pages, if available.
    pub(super) fn create(len: usize, kind: MemfdFlags, is_huge: bool) -> Result<(Map, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind;
        let file = rustix::fs::memfd_create("dlfs", flags).map_err(std::io::Error::from)?;
        let file_len = len_of_file(len)?;
        rustix::fs::ftruncate(&file, file_len as u64).map_err(std::io::Error::from)?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(std::io::Error::from)?;
        Ok((Map::of(&file, len, true, is_huge)?, file))
    }

    /// Maps the file at an address aligned for huge pages.
    pub(super) fn of(file: &OwnedFd, len: usize, is_writable: bool, is_huge: bool) -> Result<Map> {
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
        let map = Map { mapped, mapped_len, start, registration: OnceLock::new() };
        let write = if is_writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let protection = ProtFlags::READ | write;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let at = start.as_ptr().cast();
        // SAFETY: replaces a part of the mapping made above, to which nobody else has the address; the seals
        // keep the file at its length, so all of it stays backed.
        if let Err(errno) = unsafe { mmap(at, file_len, protection, flags, file, 0) } {
            map.unmap_around(file_len);
            return Err(std::io::Error::from(errno).into());
        }
        let advice = if is_huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range was just mapped; the advice changes no bytes.
        let advised = unsafe { madvise(at, file_len, advice) };
        advised.unwrap_or(()); // without the advice, the kernel chooses the pages
        Ok(map)
    }

    /// Maps `len` bytes of a file of another process for reading and writing, from `offset` on. That process can
    /// truncate the file, which ends this process at the next access, so it must be trusted as far as a device is.
    pub(super) fn of_part(file: &OwnedFd, offset: u64, len: usize) -> Result<Map> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe { mmap(null_mut(), len, protection, MapFlags::SHARED, file, offset) };
        let mapped = NonNull::new(mapped.map_err(std::io::Error::from)?);
        let mapped = mapped.expect("a mapping is not at address 0");
        let start = mapped.cast();
        Ok(Map { mapped, mapped_len: len, start, registration: OnceLock::new() })
    }

    /// Unmaps all but the used part, of `len` bytes: where Linux failed to replace it, nothing is mapped any more, and
    /// another thread may have memory there by now.
    fn unmap_around(self, len: usize) {
        let map = ManuallyDrop::new(self);
        let skip = map.start.addr().get() - map.mapped.addr().get();
        for (offset, len) in [(0, skip), (skip + len, map.mapped_len - skip - len)] {
            if len > 0 {
                // SAFETY: within the mapping that `of` made, and nobody else has the address of these parts.
                let unmapped = unsafe { munmap(map.mapped.byte_add(offset).as_ptr(), len) };
                debug_assert!(unmapped.is_ok(), "unmapping what was mapped");
            }
        }
    }

    /// Leaves the used part, of `len` bytes, out of children that are forked from now on.
    pub(super) fn keep_from_children(&self, len: usize) {
        let at = self.start.as_ptr().cast();
        // SAFETY: the range is mapped, see `of`; the advice changes no bytes of this process.
        let advised = unsafe { madvise(at, len, Advice::LinuxDontFork) };
        advised.unwrap_or(()); // children then see what this process's memory becomes
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Registers the first `len` bytes, once, until the mapping is dropped. Children must not have them, see
    /// [`Map::keep_from_children`].
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn register(&self, registrar: &'static dyn Registrar, len: usize) -> Result<()> {
        // SAFETY: the range is mapped, see `of`, and `drop` ends the registration before the mapping.
        let registration = unsafe { Registration::new(registrar, self.start, len)? };
        assert!(self.registration.set(registration).is_ok(), "registered twice");
        Ok(())
    }

    /// The registration, if the memory has one.
    pub(super) fn registration(&self) -> Option<&Registration> {
        self.registration.get()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.registration.take().is_some_and(|registration| registration.is_foreign()) {
            return; // a forked child: other memory may be there by now
        }
        // SAFETY: mapped in `Map::of` with this length. All users of the address are gone: the pool or
        // `SharedBytes`, its buffers and everything that it lent.
        let unmapped = unsafe { munmap(self.mapped.as_ptr(), self.mapped_len) };
        debug_assert!(unmapped.is_ok(), "unmapping what was mapped");
    }
}

/// Refuses more than this machine's memory.
pub(super) fn must_fit(len: usize) -> Result<()> {
    let memory = rustix::system::sysinfo();
    let most = u128::from(memory.totalram) * u128::from(memory.mem_unit.max(1));
    if len as u128 <= most {
        return Ok(());
    }
    let text = format!("cannot share {len} bytes of memory: this machine has {most}");
    Err(Error::new(ErrorKind::OutOfMemory, text))
}

/// The length of the file: whole huge pages if it may use them.
pub(super) fn len_of_file(len: usize) -> Result<usize> {
    let unit = if len >= HUGE_LEN { HUGE_LEN } else { PAGE_LEN };
    len.max(1).checked_next_multiple_of(unit).ok_or_else(|| too_long(len))
}

fn too_long(len: usize) -> Error {
    Error::new(ErrorKind::OutOfMemory, format!("cannot map {len} bytes of shared memory"))
}

pub(super) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const PAGE_LEN: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// Without reserved huge pages, each mapping fails first, and others of this process map memory meanwhile.
    #[test]
    fn a_mapping_that_fails_takes_no_memory_of_other_threads() {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        drop(Map::new(4 * HUGE_LEN).unwrap());
                    }
                });
            }
            let replaced = (0..500).filter(|_| !keeps_its_bytes()).count();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(replaced, 0, "mappings were replaced");
        });
    }

    fn keeps_its_bytes() -> bool {
        let nothing = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let page = unsafe { mmap_anonymous(null_mut(), HUGE_LEN, nothing.0, nothing.1) };
        let page = page.unwrap().cast::<u64>();
        let keeps = (0..5).all(|number| {
            // SAFETY: mapped above, and unmapped below.
            unsafe { page.write_volatile(number) };
            thread::yield_now();
            // SAFETY: as above.
            unsafe { page.read_volatile() == number }
        });
        // SAFETY: mapped above, and nobody else has the address.
        unsafe { munmap(page.cast(), HUGE_LEN) }.unwrap();
        keeps
    }
}
