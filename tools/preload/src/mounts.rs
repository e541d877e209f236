//! The mounts: made from the settings once, before `main`. A mount opens its data set at the first use, and the data
//! set stays open.

use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use dlfs::address::Address;
use dlfs::cache::{Cache, TierOptions};
use dlfs::dataset::{Dataset, FileCounters, Files, OnError, OpenOptions, Options, Query};
use dlfs::process::Forked;
use dlfs::{Error, ErrorKind};

use crate::ahead::FilesAhead;
use crate::settings::{Setting, from_here, has_more_rights_than_its_caller, parse, variable};
use crate::{inside, paths, report, syscalls};

/// Reads the environment. `DLFS_ORDER` is the order of the first mount, unless that has `;order=`. An error in
/// `DLFS_MOUNTS` is reported in one line, and the program then runs without this library.
pub(crate) fn start() {
    if has_more_rights_than_its_caller() {
        return;
    }
    let Some(text) = variable(c"DLFS_MOUNTS") else { return };
    inside::learn_program();
    match parse(text) {
        Ok(mut settings) => {
            if let (Some(order), Some(first)) = (variable(c"DLFS_ORDER"), settings.first_mut()) {
                first.order.get_or_insert_with(|| from_here(OsStr::from_bytes(order)));
            }
            let hash = text.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            report::set_destination(variable(c"DLFS_REPORT"));
            SETTINGS.store(hash as u32, Ordering::Relaxed);
            let mounts = settings.into_iter().map(Mount::new).collect::<Vec<_>>();
            MOUNTS.store(Box::into_raw(Box::new(mounts)), Ordering::Release);
            paths::learn_working_folder();
        }
        Err(why) => inside::say(&format!("DLFS_MOUNTS is not used: {why}")),
    }
}

/// One prefix, and the data set below it.
pub(crate) struct Mount {
    pub(crate) setting: Setting,
    /// The open data set, which is never dropped; NULL before it is open.
    opened: AtomicPtr<Opened>,
    /// Set when opening begins: from then on the library may have descriptors.
    in_use: AtomicBool,
    /// Locked during opening; true once a failure was reported. A forked child has a lock of its own, since its
    /// parent's may stay locked there.
    opening: Forked<Mutex<bool>>,
    /// The counters of this process: a forked child reports its own calls.
    counters: Forked<Counters>,
}

/// An open data set.
pub(crate) struct Opened {
    pub(crate) files: Files,
    /// The plain folder with the files, if the data set is one.
    pub(crate) folder: Option<PathBuf>,
    /// Counters of the files that the kernel opened and read in the plain folder for this process.
    origin: Forked<FileCounters>,
    /// Readahead, which begins at the first opened file; `None` if it failed.
    pub(crate) ahead: Forked<Option<FilesAhead>>,
    /// The bytes that the data set uses on its namespaces, for `statfs`.
    pub(crate) len_bytes: u64,
}

/// Counters of the program's calls, besides those of files ([`Files::counters`]).
#[derive(Default)]
pub(crate) struct Counters {
    /// Requests for attributes, by path or descriptor.
    pub(crate) stats: AtomicU64,
    /// Folders opened.
    pub(crate) folders: AtomicU64,
}

/// All mounts, which are never dropped; NULL before the settings are read.
static MOUNTS: AtomicPtr<Vec<Mount>> = AtomicPtr::new(null_mut());
/// A hash of the text of `DLFS_MOUNTS`.
static SETTINGS: AtomicU32 = AtomicU32::new(0);

/// All mounts; empty before the settings are read.
#[inline]
pub(crate) fn all() -> &'static [Mount] {
    // SAFETY: the pointer is NULL or was leaked by `start`, so that it is valid for ever.
    unsafe { MOUNTS.load(Ordering::Acquire).as_ref() }.map_or(&[], |mounts| &mounts[..])
}

/// A hash of the text of `DLFS_MOUNTS`: a memfd from a program with another text is not recognised.
pub(crate) fn settings_hash() -> u32 {
    SETTINGS.load(Ordering::Relaxed)
}

/// Writes the tiers' pending data, since the data sets are never dropped.
pub(crate) fn flush() {
    let tiers = |opened: &'static Opened| opened.files.dataset().image().tiers();
    let flushed = inside::run(|| {
        all().iter().filter_map(|mount| tiers(mount.if_opened()?)).for_each(Cache::flush);
        Ok(())
    });
    let _ = flushed; // fails only after a panic, which is already printed
}

impl Mount {
    pub(crate) fn new(setting: Setting) -> Mount {
        Mount {
            setting,
            opened: AtomicPtr::default(),
            in_use: AtomicBool::default(),
            opening: Forked::empty(),
            counters: Forked::new(Counters::default()),
        }
    }

    /// The rest of `path`, if it is the prefix or below it.
    #[inline]
    pub(crate) fn below<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let rest = path.strip_prefix(&self.setting.prefix[..])?;
        (rest.is_empty() || rest[0] == b'/').then_some(rest)
    }

    /// Writes one line about the mount to stderr.
    pub(crate) fn say(&self, text: &str) {
        inside::say(&format!("{}: {text}", self.setting.prefix.escape_ascii()));
    }

    /// The index of the mount among all mounts.
    pub(crate) fn index(&self) -> usize {
        all().iter().position(|mount| std::ptr::eq(mount, self)).unwrap_or(0)
    }

    /// Counters of this process's calls.
    pub(crate) fn counters(&self) -> &Counters {
        self.counters.get_or_init(Counters::default)
    }

    /// Returns whether the library may have descriptors for the mount.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// The data set, if it is already open.
    pub(crate) fn if_opened(&self) -> Option<&'static Opened> {
        // SAFETY: the pointer is NULL or was leaked by `opened`, so that it is valid for ever.
        unsafe { self.opened.load(Ordering::Acquire).as_ref() }
    }

    /// The data set; opens it if it is not open yet. The caller is [inside](inside::run).
    pub(crate) fn opened(&self) -> Result<&'static Opened, c_int> {
        if let Some(opened) = self.if_opened() {
            return Ok(opened);
        }
        let opening = self.opening.get_or_init(|| Mutex::new(false));
        let mut has_failed = opening.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(opened) = self.if_opened() {
            return Ok(opened);
        }
        self.in_use.store(true, Ordering::Release);
        match above_low_numbers(|| self.open()) {
            Ok(opened) => {
                self.opened.store(Box::into_raw(Box::new(opened)), Ordering::Release);
                self.if_opened().ok_or(libc::EIO)
            }
            Err(error) => {
                if !std::mem::replace(&mut *has_failed, true) {
                    self.say(&error.report());
                }
                Err(errno_of(&error))
            }
        }
    }

    /// Opens the data set.
    fn open(&self) -> dlfs::Result<Opened> {
        let tiers = TierOptions { tiers: self.setting.tiers.clone(), ..TierOptions::default() };
        let open = OpenOptions { tiers, ..OpenOptions::default() };
        let options = Options { open, ..Options::default() };
        let addresses = &self.setting.addresses;
        let dataset = Dataset::open(addresses, &options, &mut ())?;
        let superblocks = dataset.image().superblocks();
        let len_bytes = dlfs::format::superblock::used_bytes(superblocks);
        let files = Files::new(dataset, &mut ())?;
        let folder = match &addresses[..] {
            [Address::Path(path)] if path.is_dir() => Some(path.clone()),
            _ => None,
        };
        // Reads no sample, but makes the first reader now: its descriptors then have no low numbers either.
        files.dataset().read(Query::Ids(&[]), OnError::Raise, &mut ())?;
        let origin = Forked::new(FileCounters::default());
        Ok(Opened { files, folder, origin, ahead: Forked::empty(), len_bytes })
    }
}

impl Opened {
    /// Counters of the files that the kernel opened and read in the plain folder for this process.
    pub(crate) fn origin(&self) -> &FileCounters {
        self.origin.get_or_init(FileCounters::default)
    }

    /// Returns whether the data set is a plain folder that is read through tiers.
    pub(crate) fn is_tiered_folder(&self) -> bool {
        self.folder.is_some() && self.files.dataset().image().tiers().is_some()
    }

    /// Returns whether the data set is a plain folder without tiers: the kernel then sees all of its files
    /// too.
    pub(crate) fn is_bare_folder(&self) -> bool {
        self.folder.is_some() && !self.is_tiered_folder()
    }
}

/// Does `work` while the lowest descriptor numbers are occupied, so that its descriptors get higher ones:
/// shells use low numbers freely. Does `work` alone if the program has several threads, which might open
/// descriptors meanwhile, or a low limit of descriptors.
fn above_low_numbers<T>(work: impl FnOnce() -> T) -> T {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // Descriptors of /dev/null on low numbers; -1: none.
    let mut occupied = [-1; LOW as usize];
    if is_single() && syscalls::most_descriptors() >= 4 * LOW as usize {
        for slot in &mut occupied {
            match syscalls::open(c"/dev/null", flags) {
                Ok(fd @ 0..LOW) => *slot = fd,
                Ok(fd @ LOW..) => {
                    syscalls::close(fd);
                    break;
                }
                _ => break,
            }
        }
    }
    let result = work();
    occupied.iter().filter(|fd| **fd >= 0).for_each(|fd| syscalls::close(*fd));
    result
}

/// Returns whether the program has one thread, according to the C library.
fn is_single() -> bool {
    // SAFETY: the name ends with NUL; the C library's variable of this name is a `char`.
    unsafe {
        let single = libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr());
        !single.is_null() && single.cast::<u8>().read_volatile() != 0
    }
}

/// The error number for a program.
pub(crate) fn errno_of(error: &Error) -> c_int {
    match error.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::InvalidArgument => libc::EINVAL,
        ErrorKind::Refused => libc::EACCES,
        ErrorKind::Busy => libc::EBUSY,
        ErrorKind::Stale => libc::ESTALE,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::Disconnected => libc::ENOTCONN,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

/// Descriptor numbers below this are left to the program.
const LOW: c_int = 64;
