//! Mappings: the memory of pools, of large buffers and of shared files, in huge pages where available.
//!
//! A [`Mapping`] is private memory of this process, memory of a device driver ([`PageSource`]), or memory of a file.
//! The file is a `memfd` of sealed length that other processes map, too, or any other file. `registration.rs` registers
//! mappings with the driver of an accelerator.
#![allow(unsafe_code)] // maps memory, and promises that it stays mapped while a driver knows it

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::registration::{Registrar, Registration};
use crate::error::{Error, ErrorKind, Result};

/// The kind of pages that a pool uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// Reserved pages of 2 MiB (`vm.nr_hugepages`).
    Huge,
    /// Transparent huge pages of 2 MiB, which the kernel creates if it can (`madvise`).
    Transparent,
    /// Pages of 4 KiB.
    Base,
    /// Memory of a device driver, for DMA: see [`PageSource`].
    Driver,
}

/// A driver's source of pages for DMA.
///
/// # Safety
/// [`PageSource::allocate`] returns zeroed memory of at least `len` bytes, aligned to 4,096, that nobody
/// else uses until [`PageSource::free`].
pub unsafe trait PageSource: Sync {
    /// Allocates `len` bytes; `None` if no memory is left.
    fn allocate(&self, len: usize) -> Option<NonNull<u8>>;

    /// Frees memory of [`PageSource::allocate`].
    ///
    /// # Safety
    /// `start` came from [`PageSource::allocate`], is freed once, and nobody uses it any more.
    unsafe fn free(&self, start: NonNull<u8>);

    /// Returns whether the memory belongs to the parent process, so that this forked child must not write
    /// to it.
    fn is_foreign(&self) -> bool;
}

/// Makes later pools of 1 MiB or more with [`super::HugePages::Auto`] allocate from `source` while it has
/// memory. Only the first call has an effect.
pub fn use_pages_of(source: &'static dyn PageSource) {
    let _ = SOURCE.set(source); // the first driver stays: another one copies data of these pages
}

/// The driver from which pools allocate.
static SOURCE: OnceLock<&'static dyn PageSource> = OnceLock::new();

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pages::Huge => "huge pages",
            Pages::Transparent => "transparent huge pages",
            Pages::Base => "4 KiB pages",
            Pages::Driver => "the driver's memory",
        })
    }
}

/// Mapped memory, private or shared with other processes by a file; dropping it unmaps it, or returns it to the driver.
pub(super) struct Mapping {
    /// The whole mapping: up to 2 MiB longer than the memory asked for, if that is aligned to 2 MiB.
    mapped: NonNull<c_void>,
    mapped_len: usize,
    /// The first byte of the memory asked for.
    start: NonNull<u8>,
    pub(super) pages: Pages,
    /// The source to which the memory returns; `None`: the operating system.
    source: Option<&'static dyn PageSource>,
    /// True for memory of a file, which children share unless [`Mapping::keep_from_children`].
    is_shared: bool,
    /// Set once a driver knows the memory.
    registration: OnceLock<Registration>,
}

// SAFETY: plain memory, whose owner decides who may access which bytes; `source` is `Sync`.
unsafe impl Send for Mapping {}

// SAFETY: as above. `&Mapping` reads the fields only; for `lend_pages`, see there.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes: from 1 MiB on in the best pages that the machine has and `try_huge` permits,
    /// otherwise in base pages.
    pub(super) fn new(len: usize, try_huge: bool) -> Result<Mapping> {
        if try_huge && len >= HUGE_LEN / 2 {
            if let Some(mapping) = SOURCE.get().and_then(|source| Mapping::of(*source, len)) {
                return Ok(mapping);
            }
            if let Some(mapping) = Mapping::huge(len) {
                return Ok(mapping);
            }
            if transparent_is_allowed()
                && let Some(mapping) = Mapping::transparent(len)
            {
                return Ok(mapping);
            }
        }
        let mapped = map(len, MapFlags::empty()).map_err(|errno| {
            let message = format!("cannot map {len} bytes of memory");
            Error::new(ErrorKind::OutOfMemory, message).source(std::io::Error::from(errno))
        })?;
        Ok(Mapping::from_system(mapped, len, mapped.cast(), Pages::Base))
    }

    /// Maps `len` bytes for one buffer, without reserved huge pages, which are left to pools.
    pub(super) fn transparent_or_base(len: usize) -> Result<Mapping> {
        let huge = len >= HUGE_LEN && transparent_is_allowed();
        let transparent = if huge { Mapping::transparent(len) } else { None };
        transparent.map_or_else(|| Mapping::new(len, false), Ok)
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes from `start` to the end of the mapping: at least the length asked for.
    pub(super) fn len(&self) -> usize {
        self.mapped_len - (self.start.addr().get() - self.mapped.addr().get())
    }

    /// Lets the operating system reclaim the pages until they are written again; their contents are not
    /// needed.
    pub(super) fn lend_pages(&self) {
        // SAFETY: the range is mapped. The only caller, `Spares::give_back`, owns the mapping after its last buffer
        // was dropped, so nobody reads the bytes that may turn to zeros.
        let lent = unsafe { madvise(self.start.as_ptr().cast(), self.len(), Advice::LinuxFree) };
        let _ = lent; // on an error the pages just stay
    }

    /// The driver whose memory it is; `None`: the operating system's.
    pub(super) fn source(&self) -> Option<&'static dyn PageSource> {
        self.source
    }

    /// Returns whether the memory belongs to the parent process.
    pub(super) fn is_foreign(&self) -> bool {
        self.source.is_some_and(|source| source.is_foreign())
            || self.registration.get().is_some_and(Registration::is_foreign)
    }

    /// Registers the first `len` bytes until the mapping is dropped, at most once. Keeps private memory from children,
    /// unless it is a driver's. For memory of a file, call [`Mapping::keep_from_children`] before.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn register(&self, registrar: &'static dyn Registrar, len: usize) -> Result<()> {
        assert!(len <= self.len(), "registered past the end");
        let is_inherited = self.source.is_none() && !self.is_shared;
        if is_inherited {
            self.advise(Advice::LinuxDontFork)?;
        }
        // SAFETY: the range is mapped, and `drop` ends the registration before the mapping.
        let registration = unsafe { Registration::new(registrar, self.start, len) };
        let registration = registration.inspect_err(|_| {
            if is_inherited {
                // If this fails, children do without the memory.
                self.advise(Advice::LinuxDoFork).unwrap_or(());
            }
        })?;
        assert!(self.registration.set(registration).is_ok(), "registered twice");
        Ok(())
    }

    /// Gives advice on forks.
    fn advise(&self, advice: Advice) -> std::io::Result<()> {
        // SAFETY: the range is mapped; the advice changes no bytes of this process.
        Ok(unsafe { madvise(self.start.as_ptr().cast(), self.len(), advice) }?)
    }

    /// The length of the registered memory; 0: none is registered.
    pub(super) fn registered_bytes(&self) -> usize {
        self.registration.get().map_or(0, |registration| registration.len)
    }

    /// Allocates `len` bytes of the driver's memory.
    pub(super) fn of(source: &'static dyn PageSource, len: usize) -> Option<Mapping> {
        let start = source.allocate(len)?;
        let mut mapping = Mapping::from_system(start.cast(), len, start, Pages::Driver);
        mapping.source = Some(source);
        Some(mapping)
    }

    fn from_system(
        mapped: NonNull<c_void>,
        mapped_len: usize,
        start: NonNull<u8>,
        pages: Pages,
    ) -> Mapping {
        let registration = OnceLock::new();
        Mapping { mapped, mapped_len, start, pages, source: None, is_shared: false, registration }
    }

    fn huge(len: usize) -> Option<Mapping> {
        let len = len.checked_next_multiple_of(HUGE_LEN)?;
        let mapped = map(len, MapFlags::HUGETLB | MapFlags::HUGE_2MB).ok()?;
        let mapping = Mapping::from_system(mapped, len, mapped.cast(), Pages::Huge);
        // Touches the pages now: exceeding a control group's limit later would raise SIGBUS instead of an
        // error.
        // SAFETY: the range was just mapped and holds nothing yet.
        let populated = unsafe { madvise(mapped.as_ptr(), len, Advice::LinuxPopulateWrite) };
        populated.ok().map(|()| mapping)
    }

    fn transparent(len: usize) -> Option<Mapping> {
        let mapped_len = len.checked_add(HUGE_LEN)?;
        let mapped = map(mapped_len, MapFlags::empty()).ok()?;
        let skip = mapped.cast::<u8>().align_offset(HUGE_LEN);
        // SAFETY: `skip` is below 2 MiB, and 2 MiB more than `len` are mapped.
        let start = unsafe { mapped.cast::<u8>().add(skip) };
        let mapping = Mapping::from_system(mapped, mapped_len, start, Pages::Transparent);
        // SAFETY: `start..start + len` lies in what was just mapped; the advice changes no bytes.
        let advised = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        advised.ok().map(|()| mapping)
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes at {:?})", self.len(), self.start)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.registration.take().is_some_and(|registration| registration.is_foreign()) {
            return; // a forked child: other memory may be there by now
        }
        if let Some(source) = self.source {
            // SAFETY: it came from this source, in `of`, and nobody uses it any more, see below.
            return unsafe { source.free(self.start) };
        }
        // SAFETY: mapped with this length. No buffer is left in it: each keeps alive the pool, the shared bytes or the
        // allocation's header that owns the mapping, and `Spares` own only mappings without buffers.
        let unmapped = unsafe { munmap(self.mapped.as_ptr(), self.mapped_len) };
        debug_assert!(unmapped.is_ok(), "unmapping what was mapped");
    }
}

fn map(len: usize, flags: MapFlags) -> rustix::io::Result<NonNull<c_void>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let start = unsafe { mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE | flags)? };
    NonNull::new(start).ok_or(rustix::io::Errno::NOMEM)
}

/// Returns whether `madvise` can enable huge pages, which an administrator may have disabled.
fn transparent_is_allowed() -> bool {
    static ALLOWED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ALLOWED.get_or_init(|| {
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
            .is_ok_and(|modes| !modes.contains("[never]"))
    })
}

/// The pages of shared memory, without reserved huge ones. An administrator enables transparent huge pages of shared
/// memory apart from those of private memory.
fn shared_pages() -> Pages {
    let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let is_huge = modes.is_ok_and(|modes| !modes.contains("[never]") && !modes.contains("[deny]"));
    if is_huge { Pages::Transparent } else { Pages::Base }
}

/// Returns whether the kernel collapses pages of shared memory into huge ones on request (Linux 6.1): it then ignores
/// `shmem_enabled`, except `deny`.
fn can_collapse() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        // SAFETY: the range is empty, so the kernel only checks the advice.
        let checked = unsafe { libc::madvise(null_mut(), 0, libc::MADV_COLLAPSE) };
        checked == 0 && modes.is_ok_and(|modes| !modes.contains("[deny]"))
    })
}

impl Mapping {
    /// Maps `len` zero bytes of a new file for writing; from 2 MiB on in huge pages, if available.
    pub(super) fn shared(len: usize) -> Result<(Mapping, OwnedFd)> {
        must_fit(len)?;
        // Mapping takes reserved huge pages; if there are too few, other pages are used.
        if len >= HUGE_LEN {
            let kind = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
            if let Ok((mut mapping, file)) = Mapping::of_new_file(len, kind, true) {
                mapping.pages = Pages::Huge;
                return Ok((mapping, file));
            }
        }
        let (mut mapping, file) = Mapping::of_new_file(len, MemfdFlags::empty(), true)?;
        mapping.pages = shared_pages();
        Ok((mapping, file))
    }

    /// Notes that [`Mapping::collapse`] will be called for memory of [`Mapping::shared`], if the kernel can do that.
    pub(super) fn will_collapse(&mut self) {
        if self.pages == Pages::Base && self.len() >= HUGE_LEN && can_collapse() {
            self.pages = Pages::Transparent;
        }
    }

    /// Collapses each 2 MiB that end within the `len` bytes from `offset` on into a huge page, if the kernel can.
    /// One of their pages at least must have been touched. Other threads may use the memory meanwhile.
    pub(super) fn collapse(&self, offset: usize, len: usize) {
        if !self.is_shared || self.pages != Pages::Transparent {
            return; // private memory gets huge pages when it is touched
        }
        let end = (offset + len).min(self.len());
        for at in (offset / HUGE_LEN..end / HUGE_LEN).map(|number| number * HUGE_LEN) {
            // SAFETY: these 2 MiB are mapped, see `end`.
            let start = unsafe { self.start.add(at) };
            // SAFETY: as above; the advice changes no bytes.
            let collapsed =
                unsafe { libc::madvise(start.as_ptr().cast(), HUGE_LEN, libc::MADV_COLLAPSE) };
            let _ = collapsed; // on an error the small pages stay
        }
    }

    /// Maps a new file of at least `len` bytes for writing. `kind` may ask for reserved huge pages, `is_huge` for
    /// transparent ones.
    pub(super) fn of_new_file(
        len: usize,
        kind: MemfdFlags,
        is_huge: bool,
    ) -> Result<(Mapping, OwnedFd)> {
        let file = sealed_file(len_of_file(len)?, kind)?;
        Ok((Mapping::of_file(&file, len, true, is_huge)?, file))
    }

    /// Maps a file of sealed length, [`len_of_file`] of `len`, at an address aligned for huge pages. `is_huge`: in
    /// transparent huge pages, if available.
    pub(super) fn of_file(
        file: &OwnedFd,
        len: usize,
        is_writable: bool,
        is_huge: bool,
    ) -> Result<Mapping> {
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
        // From here on, dropping `mapping` unmaps the memory.
        let mut mapping = Mapping::from_system(mapped, mapped_len, start, Pages::Base);
        mapping.is_shared = true;
        let write = if is_writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let protection = ProtFlags::READ | write;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let at = start.as_ptr().cast();
        // SAFETY: replaces a part of the mapping made above, to which nobody else has the address; the seals
        // keep the file at its length, so all of it stays backed.
        if let Err(errno) = unsafe { mmap(at, file_len, protection, flags, file, 0) } {
            mapping.unmap_around(file_len);
            return Err(std::io::Error::from(errno).into());
        }
        let advice = if is_huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range was just mapped; the advice changes no bytes.
        let advised = unsafe { madvise(at, file_len, advice) };
        advised.unwrap_or(()); // without the advice, the kernel chooses the pages
        Ok(mapping)
    }

    /// Maps `len` bytes of a file from `offset` on. If another process truncates the file, the next access ends this
    /// process. So every process that can do that must be trusted as far as a device is.
    pub(super) fn of_part(
        file: &OwnedFd,
        offset: u64,
        len: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> std::io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe { mmap(null_mut(), len, protection, flags, file, offset) }?;
        let mapped = NonNull::new(mapped).expect("a mapping is not at address 0");
        let mut mapping = Mapping::from_system(mapped, len, mapped.cast(), Pages::Base);
        mapping.is_shared = true;
        Ok(mapping)
    }

    /// Unmaps all but the `len` bytes from `start`. Linux failed to replace these, and may have unmapped them; then
    /// another thread may have memory there by now.
    fn unmap_around(self, len: usize) {
        let map = ManuallyDrop::new(self);
        let skip = map.start.addr().get() - map.mapped.addr().get();
        for (offset, len) in [(0, skip), (skip + len, map.mapped_len - skip - len)] {
            if len > 0 {
                // SAFETY: within the mapping that `of_file` made, and nobody else has the address of these parts.
                let unmapped = unsafe { munmap(map.mapped.byte_add(offset).as_ptr(), len) };
                debug_assert!(unmapped.is_ok(), "unmapping what was mapped");
            }
        }
    }

    /// Leaves the memory out of children that are forked from now on.
    pub(super) fn keep_from_children(&self) {
        // Without the advice, children see what this process's memory becomes.
        self.advise(Advice::LinuxDontFork).unwrap_or(());
    }
}

/// A new file of `len` bytes, whose length is sealed.
pub(super) fn sealed_file(len: usize, kind: MemfdFlags) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind;
    let file = rustix::fs::memfd_create("dlfs", flags).map_err(std::io::Error::from)?;
    rustix::fs::ftruncate(&file, len as u64).map_err(std::io::Error::from)?;
    rustix::fs::fcntl_add_seals(&file, LENGTH_SEALED).map_err(std::io::Error::from)?;
    Ok(file)
}

/// Refuses a file that is not `file_len` bytes long, or whose length is not sealed. `len`: the length that the message
/// tells.
pub(super) fn check_sealed(file: &OwnedFd, file_len: usize, len: usize) -> Result<()> {
    let found = rustix::fs::fstat(file).map_err(std::io::Error::from)?.st_size as u64;
    let seals = rustix::fs::fcntl_get_seals(file).map_err(std::io::Error::from)?;
    if found == file_len as u64 && seals.contains(LENGTH_SEALED) {
        return Ok(());
    }
    let text = format!("the shared memory has {found} bytes in place of {len}, or is not sealed");
    Err(Error::new(ErrorKind::InvalidArgument, text))
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

/// The length of a file for `len` bytes: rounded up to 2 MiB from 2 MiB on, otherwise to 4 KiB.
pub(super) fn len_of_file(len: usize) -> Result<usize> {
    let unit = if len >= HUGE_LEN { HUGE_LEN } else { PAGE_LEN };
    len.max(1).checked_next_multiple_of(unit).ok_or_else(|| too_long(len))
}

fn too_long(len: usize) -> Error {
    Error::new(ErrorKind::OutOfMemory, format!("cannot map {len} bytes of shared memory"))
}

/// The size of a huge page: 2 MiB on x86-64.
pub(super) const HUGE_LEN: usize = 2 << 20;
const LENGTH_SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const PAGE_LEN: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn small_or_unwanted_mappings_use_base_pages() {
        assert_eq!(Mapping::new(8192, true).unwrap().pages, Pages::Base);
        assert_eq!(Mapping::new(8 << 20, false).unwrap().pages, Pages::Base);
    }

    #[test]
    fn large_mappings_of_huge_pages_are_aligned_to_them() {
        let mapping = Mapping::new(3 << 20, true).unwrap();
        if mapping.pages != Pages::Base {
            assert_eq!(mapping.start().addr().get() % HUGE_LEN, 0);
        }
    }

    #[test]
    fn more_than_the_address_space_is_an_error() {
        let error = Mapping::new(1 << 60, true).expect_err("no machine has this much");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    }

    /// Without reserved huge pages, each mapping fails first, and others of this process map memory meanwhile.
    #[test]
    fn a_mapping_that_fails_takes_no_memory_of_other_threads() {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        drop(Mapping::shared(4 * HUGE_LEN).unwrap());
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
