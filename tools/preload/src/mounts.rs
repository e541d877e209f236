//! The mounted data sets, each opened at its first use, and the readahead along an order: each file that is ready is a
//! sealed memfd that waits for its `open`.

use std::ffi::{c_int, c_long};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dlfs::address::Address;
use dlfs::cache::{Cache, TierOptions};
use dlfs::dataset::{
    Ahead, Dataset, FileCounts, Files, OnError, OpenOptions, Options, OrderFile, Query,
};
use dlfs::posix::{File, Node};
use dlfs::process::{Forked, mark_ours};
use dlfs::units::Epoch;
use dlfs::{Error, ErrorKind};

use crate::files::{self, Memory};
use crate::own::{self, called, most_descriptors};
use crate::settings::Setting;

/// One prefix, and the data set below it.
pub(crate) struct Mount {
    pub(crate) setting: Setting,
    opened: AtomicPtr<Opened>,
    /// Set when opening begins: from then on the library may have descriptors.
    in_use: AtomicBool,
    /// Held during opening; true once a failure was reported. A forked child has its own lock, since its
    /// parent's may stay locked.
    opening: Forked<Mutex<bool>>,
    pub(crate) counters: Counters,
}

/// An open data set.
pub(crate) struct Opened {
    pub(crate) files: Files,
    /// The plain folder with the files, if the data set is one.
    pub(crate) folder: Option<PathBuf>,
    /// Counters of the files that the kernel opened and read in the plain folder for the program.
    pub(crate) origin: Counters,
    /// Readahead, which begins at the first opened file; `None` if it failed.
    pub(crate) ahead: Forked<Option<Ahead<Held>>>,
    /// The bytes that the data set uses on its namespaces, for `statfs`.
    pub(crate) len_bytes: u64,
}

/// Counters of the program's calls.
#[derive(Default)]
pub(crate) struct Counters {
    /// Files opened.
    pub(crate) opens: AtomicU64,
    /// Files read into memory, and reads of other files.
    pub(crate) reads: AtomicU64,
    /// Bytes of these reads.
    pub(crate) bytes: AtomicU64,
    /// Requests for attributes, by path or descriptor.
    pub(crate) stats: AtomicU64,
    /// Folders opened.
    pub(crate) folders: AtomicU64,
}

static MOUNTS: AtomicPtr<Vec<Mount>> = AtomicPtr::new(null_mut());
static SETTINGS: AtomicU32 = AtomicU32::new(0);

/// All mounts; empty before the settings are read.
#[inline]
pub(crate) fn all() -> &'static [Mount] {
    // SAFETY: the pointer is NULL or was leaked by `set`, so that it is valid for ever.
    unsafe { MOUNTS.load(Ordering::Acquire).as_ref() }.map_or(&[], |mounts| &mounts[..])
}

/// A hash of the settings: a memfd from a program with other settings is not recognised.
pub(crate) fn settings_hash() -> u32 {
    SETTINGS.load(Ordering::Relaxed)
}

/// Sets the mounts, once.
pub(crate) fn set(mounts: Vec<Mount>, hash: u32) {
    SETTINGS.store(hash, Ordering::Relaxed);
    MOUNTS.store(Box::into_raw(Box::new(mounts)), Ordering::Release);
}

/// Writes the tiers' pending data, since the data sets are never dropped.
pub(crate) fn flush() {
    let tiers = |opened: &'static Opened| opened.files.dataset().image().tiers();
    let flushed = own::inside(|| {
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
            counters: Counters::default(),
        }
    }

    /// The rest of `path`, if it is the prefix or below it.
    #[inline]
    pub(crate) fn below<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let rest = path.strip_prefix(&self.setting.prefix[..])?;
        (rest.is_empty() || rest[0] == b'/').then_some(rest)
    }

    /// The index of the mount among all mounts.
    pub(crate) fn index(&self) -> usize {
        all().iter().position(|mount| std::ptr::eq(mount, self)).unwrap_or(0)
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

    /// The data set; opens it if it is not open yet. The caller is [inside](own::inside).
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
        match own::above_low_numbers(|| self.open()) {
            Ok(opened) => {
                self.opened.store(Box::into_raw(Box::new(opened)), Ordering::Release);
                self.if_opened().ok_or(libc::EIO)
            }
            Err(error) => {
                if !std::mem::replace(&mut *has_failed, true) {
                    own::say(&format!(
                        "{}: {}",
                        self.setting.prefix.escape_ascii(),
                        error.report()
                    ));
                }
                Err(errno_of(&error))
            }
        }
    }

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
        // Reads no sample, but makes the first reader: its descriptors, too, are made above the low numbers.
        files.dataset().read(Query::Ids(&[]), OnError::Raise, &mut ())?;
        let origin = Counters::default();
        Ok(Opened { files, folder, origin, ahead: Forked::empty(), len_bytes })
    }
}

impl Counters {
    /// Counts a read of `bytes`.
    pub(crate) fn count_read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The counters of opens, reads and bytes of files.
    pub(crate) fn of_files(&self) -> FileCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FileCounts { opens: load(&self.opens), reads: load(&self.reads), bytes: load(&self.bytes) }
    }
}

impl Opened {
    /// Returns whether the data set is a plain folder that is read through tiers.
    pub(crate) fn has_tiers(&self) -> bool {
        self.folder.is_some() && self.files.dataset().image().tiers().is_some()
    }

    /// Returns whether the data set is a plain folder without tiers: the kernel then sees all of its files
    /// too.
    pub(crate) fn is_bare(&self) -> bool {
        self.folder.is_some() && !self.has_tiers()
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

/// The files of one sample.
pub(crate) type Held = Arc<[Waiting]>;

/// A memfd that waits. The program could close `fd` and reuse the number, so the file's identity is stored too.
pub(crate) struct Waiting {
    fd: c_int,
    /// Device and inode number.
    identity: (u64, u64),
    len: u64,
    /// Epoch of the file in the order.
    epoch: Epoch,
}

impl Mount {
    /// Opens a file that was read ahead: returns a new descriptor and the file's epoch in the order. The first
    /// call starts readahead.
    pub(crate) fn read_ahead(
        &'static self,
        opened: &'static Opened,
        file: File,
        flags: c_int,
    ) -> Option<(c_int, Epoch)> {
        let order = self.setting.order.as_ref()?;
        let ahead = opened.ahead.get_or_init(|| {
            let order = OrderFile::load(order);
            let begun = order.and_then(|order| {
                let most = (most_descriptors() / 4).min(MOST_HELD);
                Ahead::start(opened.files.dataset(), &order, most, move |batch, index| {
                    let id = batch.id(index);
                    let fields = opened.files.tree().directory().fields().len().max(1);
                    let files = (0..fields).map(|field| File { id, field: field as u16 });
                    files.map(|file| self.hold(&opened.files, opened, batch, index, file)).collect()
                })
            });
            begun
                .inspect_err(|error| {
                    let prefix = self.setting.prefix.escape_ascii();
                    own::say(&format!("{prefix}: nothing is read ahead: {}", error.report()));
                })
                .ok()
        });
        let held = ahead.as_ref()?.take(file.id)?;
        let waiting = held.get(usize::from(file.field))?;
        let (fd, stat) = waiting.open(flags)?;
        files::note_node(fd, &stat, self, Node::File(file));
        self.counters.count_read(waiting.len);
        Some((fd, waiting.epoch))
    }

    fn hold(
        &self,
        files: &Files,
        opened: &Opened,
        batch: &dlfs::reader::Batch,
        index: usize,
        file: File,
    ) -> Option<Waiting> {
        let bytes = files.bytes(batch, index, file).ok()?;
        let memory = Memory::new(&self.name_of(opened, Node::File(file)), libc::O_CLOEXEC).ok()?;
        memory.fill(&bytes).ok()?;
        // Above the low numbers that programs use: 2048 and up, or from half of the limit.
        let least = (most_descriptors() / 2).min(MOST_HELD) as c_long;
        // SAFETY: the command touches no memory.
        let fd = called(unsafe {
            libc::syscall(libc::SYS_fcntl, memory.0, libc::F_DUPFD_CLOEXEC, least)
        });
        let fd = fd.ok()? as c_int;
        mark_ours(&fd);
        let identity = files::stat_of(fd).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        Some(Waiting { fd, identity, len: bytes.len() as u64, epoch: batch.epoch() })
    }
}

impl Waiting {
    /// A new descriptor for the program, with its own position.
    fn open(&self, flags: c_int) -> Option<(c_int, libc::stat)> {
        let fd = files::open_again(self.fd, libc::O_RDONLY | flags & libc::O_CLOEXEC).ok()?;
        let stat = files::stat_of(fd).filter(|stat| self.is(stat));
        if stat.is_none() {
            files::close(fd); // the program has closed ours and reused its number
        }
        Some((fd, stat?))
    }

    fn is(&self, stat: &libc::stat) -> bool {
        self.identity == (stat.st_dev, stat.st_ino)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if files::stat_of(self.fd).is_some_and(|stat| self.is(&stat)) {
            files::close(self.fd);
        }
    }
}

/// The most samples that wait; also at most a quarter of the limit of descriptors, but at least one batch. A
/// sample takes a descriptor for each of its files.
const MOST_HELD: usize = 2048;
