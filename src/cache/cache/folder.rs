//! Folder of tiers: one file for each image and generation, with one quota over all files.
//!
//! The header of a file states the file's quota, and the sum over all tiers in a folder never exceeds
//! the folder's quota. A file may be longer than its quota, since it is sparse. A new tier reserves
//! what its data set needs. If the quota leaves less, tiers that no process has open are removed: first
//! older generations of the same image, then the tiers that were opened longest ago. Tiers in use stay,
//! and the new tier gets the rest.
//!
//! The folder itself is locked while files are created and removed. A file that does not begin with the
//! magic number of a tier is not a tier, whatever its name: it is neither counted nor removed.
//!
//! Checks of a tier's storage before it is overwritten: a tier destroys no data that anybody could need.
//!
//! The path of a tier is checked before it is opened for writing: a file without data, a device with zeroes at
//! both ends or an earlier tier may be used. Anything else needs the user's consent for this path
//! (`file:PATH:SIZE:overwrite`). Storage that a file system uses, or that contains the data set itself, is
//! always refused. The same holds for a remote namespace, but for its use by a file system, which cannot be
//! seen from here.
//!
//! Long samples of a plain folder are files of their own ([`OwnFiles`]), so that a program can open the
//! copy. These files lie in a folder beside the tier's own file, `tier-UUID-gGENERATION.files`. The tier's
//! index lists their units like all others; a unit that the index does not list has no copy, whatever
//! the file contains. An evicted copy is unlinked and never changed, so a program that has it open
//! keeps the bytes.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, SeekFrom};
use rustix::io::Errno;

use super::options::TierSpec;
use super::{Cache, Identity, Shared};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::{NotInherited, mark_ours};
use dlfs_format::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs_format::format::superblock_set::SuperblockCopies;
use dlfs_io::qpair::Device;
use dlfs_io::qpair::beside::{BesideFile, WithFiles};
use dlfs_io::qpair::blocking::Blocking;
use dlfs_io::qpair::file::is_without_locks;
use dlfs_order::tier::{
    CopyLocation, CopyTable, Index, Kept, Ledger, LongSample, OWN_FILES_PAGE, PAGE_BYTES, Units,
};

/// Name of the tier of `identity` in its folder.
pub(super) fn file_name(identity: Identity) -> String {
    format!("{PREFIX}{}-g{}{SUFFIX}", identity.uuid, identity.generation)
}

/// Lock on a folder of tiers; held while the files in it are chosen and opened.
pub(super) struct Locked {
    folder: PathBuf,
    _own: NotInherited,
    _lock: File,
}

impl Locked {
    /// Takes the lock, or waits while another process holds it to open a tier.
    ///
    /// # Errors
    /// `Busy`: a process holds the lock for longer than 10 s. Errors of the operating system.
    pub(super) fn new(folder: &Path) -> Result<Locked> {
        let lock = File::open(folder).map_err(|error| Error::from(error).path(folder))?;
        let until = Instant::now() + LOCK_WAIT;
        while !try_lock(&lock).map_err(|error| no_lock(folder, error))? {
            if Instant::now() > until {
                let text =
                    format!("another process has been opening a tier here for {LOCK_WAIT:?}");
                let hint = "fuser names the process; end it, or use another folder";
                return Err(Error::new(ErrorKind::Busy, text).path(folder).hint(hint));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        mark_ours(&lock);
        let own = NotInherited::reopen(lock.as_fd());
        Ok(Locked { folder: folder.to_path_buf(), _own: own, _lock: lock })
    }

    /// Makes room for the tier at `own`, which wants `wanted` bytes. Returns the bytes that it gets: at
    /// most `quota` minus the reservations of the tiers that stay.
    ///
    /// # Errors
    /// The folder cannot be listed, or a tier cannot be removed.
    pub(super) fn reserve(
        &self,
        own: &Path,
        identity: Identity,
        quota: u64,
        wanted: u64,
    ) -> Result<u64> {
        let wanted = wanted.min(quota);
        let mut others = self.others(own, identity)?;
        others.sort_by_key(|other| (!other.is_older, other.opened));
        let mut reserved: u64 = others.iter().map(|other| other.quota).sum();
        for other in &others {
            if reserved.saturating_add(wanted) <= quota {
                break;
            }
            // The lock is held until the file is removed, so nobody opens it meanwhile.
            let Some(_unused) = lock_unused(&other.path) else { continue };
            std::fs::remove_file(&other.path)
                .and_then(|()| remove_beside(&other.path))
                .map_err(|error| Error::from(error).path(&other.path))?;
            reserved -= other.quota;
            tracing::info!(tier = %other.path.display(), "removed for the tier of another data set");
        }
        Ok(wanted.min(quota.saturating_sub(reserved)) / PAGE_BYTES * PAGE_BYTES)
    }

    /// The tiers in the folder except `own`.
    fn others(&self, own: &Path, identity: Identity) -> Result<Vec<Other>> {
        let older = |name: &str| {
            let generation = name.strip_prefix(&format!("{PREFIX}{}-g", identity.uuid))?;
            generation.strip_suffix(SUFFIX)?.parse::<u64>().ok()
        };
        let mut others = Vec::new();
        let entries = std::fs::read_dir(&self.folder)
            .map_err(|error| Error::from(error).path(&self.folder))?;
        for entry in entries {
            let entry = entry.map_err(|error| Error::from(error).path(&self.folder))?;
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_named = name.starts_with(PREFIX) && name.ends_with(SUFFIX);
            // Compared by name: `own` may have another path, through links, or as an absolute path.
            if own.file_name() == Some(&*entry.file_name()) || !is_named {
                continue;
            }
            let Some(head) = head_of_tier(&path) else { continue };
            let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
            let opened = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let is_older = older(&name).is_some_and(|found| found < identity.generation.0);
            let quota = Index::quota_of(&head).unwrap_or(metadata.len());
            others.push(Other { path, quota, opened, is_older });
        }
        Ok(others)
    }
}

/// Another tier of the folder.
struct Other {
    path: PathBuf,
    /// The file's quota in bytes; its length if the header states none.
    quota: u64,
    opened: SystemTime,
    /// Set if it belongs to an older generation of the same image.
    is_older: bool,
}

/// Records the time of this use: the tier that was opened longest ago is removed first.
pub(super) fn note_use(path: &Path) {
    let noted = OpenOptions::new().write(true).open(path);
    if let Err(error) = noted.and_then(|file| file.set_modified(SystemTime::now())) {
        tracing::debug!(path = %path.display(), %error, "the time of this use is not recorded");
    }
}

/// Truncates the tier at `path` to `len_bytes`, unless a process has it open.
pub(super) fn shorten(path: &Path, len_bytes: u64) -> Result<()> {
    let is_longer = std::fs::metadata(path).is_ok_and(|found| found.len() > len_bytes);
    if is_longer
        && head_of_tier(path).is_some()
        && let Some(file) = lock_unused(path)
    {
        file.set_len(len_bytes).map_err(|error| Error::from(error).path(path))?;
    }
    Ok(())
}

/// The first page of a regular file that begins with the magic number of a tier.
fn head_of_tier(path: &Path) -> Option<Vec<u8>> {
    let is_file = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    let mut head = Vec::new();
    is_file.then(|| File::open(path).ok()?.take(PAGE_BYTES).read_to_end(&mut head).ok())??;
    Index::is_tier(&head).then_some(head)
}

/// Returns whether no process has the file open as a tier.
pub(super) fn is_unused(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| try_lock(&file).unwrap_or(true))
}

/// Locks a tier that no process has open; `None` if a process has it open, or if it cannot be opened.
fn lock_unused(path: &Path) -> Option<File> {
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    try_lock(&file).unwrap_or(false).then_some(file)
}

fn try_lock(file: &File) -> Result<bool, Errno> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn no_lock(folder: &Path, errno: Errno) -> Error {
    let error = Error::from(std::io::Error::from(errno)).path(folder);
    if is_without_locks(errno) {
        error.hint("tiers need a file system with locks (flock): use a local folder")
    } else {
        error
    }
}

/// Checks whether a tier may use `path`: a folder (for its file called `name`), a file, or a block device.
/// Returns the path of the file or block device, without symbolic links. For a block device it also returns
/// an exclusively opened file, which prevents mounting and other exclusive use. A file need not exist yet.
///
/// # Errors
/// `NotFound`: the path is missing. `InvalidArgument`: it is the data set itself, lies within it,
/// or is not a folder, file or block device. `Busy`: the block device is mounted or in use.
/// `Refused`: it contains other data, and `overwrite` is not set.
pub(super) fn take_over(
    path: &Path,
    name: &str,
    overwrite: bool,
    origins: &[Arc<dyn Device>],
) -> Result<(PathBuf, Option<File>)> {
    let io = |error: std::io::Error| {
        Error::from(error).path(path).hint("make the folder of a tier before it is used")
    };
    let named = path;
    let mut path = std::fs::canonicalize(named).map_err(io)?;
    if path.is_dir() {
        path = path.join(name);
        match std::fs::canonicalize(&path) {
            Ok(resolved) => path = resolved,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                refuse_own_data(&path, None, origins)?;
                // A dangling symbolic link is not an empty file: opening it would create the link's target.
                if path.is_symlink() {
                    return Err(occupied(named, &path, "a symbolic link that leads nowhere"));
                }
                return Ok((path, None));
            }
            Err(error) => return Err(io(error)),
        }
    }
    let metadata = std::fs::metadata(&path).map_err(io)?;
    refuse_own_data(&path, Some(&metadata), origins)?;
    let exclusive = match metadata.file_type() {
        kind if kind.is_file() => None,
        kind if kind.is_block_device() => Some(open_exclusively(&path)?),
        _ => {
            let text = "a tier is a folder, a file or a block device, and this is none of them";
            return Err(Error::new(ErrorKind::InvalidArgument, text).path(path));
        }
    };
    if !overwrite && let Some(found) = content(&path, &metadata).map_err(io)? {
        return Err(occupied(named, &path, found));
    }
    Ok((path, exclusive))
}

fn occupied(named: &Path, path: &Path, found: &str) -> Error {
    let text = format!("a tier would destroy what lies here: {found}");
    let hint = format!("use another path, or say file:{}:SIZE:overwrite", named.display());
    Error::new(ErrorKind::Refused, text).path(path).hint(hint)
}

/// Refuses the data set itself, through any link: a tier must not overwrite its own origin.
fn refuse_own_data(
    path: &Path,
    found: Option<&Metadata>,
    origins: &[Arc<dyn Device>],
) -> Result<()> {
    for origin in origins {
        let Some(data) = origin.capabilities().local_path else { continue };
        let Ok(of_data) = std::fs::metadata(&data) else { continue };
        let same = found.is_some_and(|found| is_same(found, &of_data));
        let is_within = of_data.is_dir()
            && std::fs::canonicalize(&data).is_ok_and(|data| path.starts_with(data));
        if same || is_within {
            let where_ = if is_within { "lies within" } else { "is" };
            let text = format!("the tier {where_} the data set that it caches");
            let hint = "a tier needs a folder, file or device of its own";
            return Err(Error::new(ErrorKind::InvalidArgument, text).path(path).hint(hint));
        }
    }
    Ok(())
}

/// Returns whether both are the same file, or device nodes of the same device.
fn is_same(a: &Metadata, b: &Metadata) -> bool {
    let devices = a.file_type().is_block_device() && b.file_type().is_block_device();
    if devices { a.rdev() == b.rdev() } else { (a.dev(), a.ino()) == (b.dev(), b.ino()) }
}

/// Opens a block device exclusively. The kernel refuses this if the device is mounted or part of a volume,
/// and prevents both while it is open (`open(2)`, O_EXCL).
fn open_exclusively(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            let text = "the block device is mounted, or part of a volume";
            Error::new(ErrorKind::Busy, text).path(path).hint("use a device that nobody else uses")
        }
        _ => Error::from(error).path(path),
    })
}

/// Describes existing data that somebody could need; `None` if there are no data, or an earlier tier.
fn content(path: &Path, metadata: &Metadata) -> std::io::Result<Option<&'static str>> {
    let mut file = File::open(path)?;
    let len = std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0))?;
    let mut head = vec![0; len.min(LOOK_BYTES) as usize];
    file.read_exact_at(&mut head, 0)?;
    if Index::is_tier(&head) {
        return Ok(None);
    }
    if !superblocks(&head).is_blank() {
        return Ok(Some("a dlfs image"));
    }
    if metadata.is_file() {
        // A tier that was created but not written yet has a length, but no data.
        let has_data = match rustix::fs::seek(&file, SeekFrom::Data(0)) {
            Ok(_) => true,
            Err(Errno::NXIO) => false,
            Err(_) => len > 0,
        };
        return Ok(has_data.then_some("a file with content"));
    }
    // File systems, partition tables and volumes have their labels at either end.
    let mut tail = vec![0; head.len()];
    file.read_exact_at(&mut tail, len - head.len() as u64)?;
    let is_blank = head.iter().chain(&tail).all(|&byte| byte == 0);
    Ok((!is_blank).then_some("a block device with content"))
}

/// Checks whether a tier may use the remote namespace that `io` reads; `named` names the tier in errors.
///
/// # Errors
/// `InvalidArgument`: it holds the data set itself. `Refused`: it contains other data, and `overwrite` is not
/// set. Errors of reading.
pub(super) fn take_over_namespace(
    io: &mut Blocking,
    named: &TierSpec,
    identity: Identity,
) -> Result<()> {
    let len = io.namespace().len_bytes();
    let look = len.min(LOOK_BYTES);
    let head = io.read(0, look as usize)?;
    if Index::is_tier(&head) {
        return Ok(());
    }
    let copies = superblocks(&head);
    let is_own = copies.copies.iter().flatten().any(|found| found.layout.uuid == identity.uuid);
    if is_own {
        let text = format!("the tier {named} is the data set that it caches");
        let hint = "a tier needs a namespace of its own";
        return Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint));
    }
    let tail = io.read(len - look, look as usize)?;
    let is_blank = head.iter().chain(&tail[..]).all(|&byte| byte == 0);
    if is_blank || named.overwrite {
        return Ok(());
    }
    let found = if copies.is_blank() { "a namespace with content" } else { "a dlfs image" };
    let text = format!("the tier {named} would destroy what lies there: {found}");
    let hint = "use another namespace, or put :overwrite behind the size";
    Err(Error::new(ErrorKind::Refused, text).hint(hint))
}

/// The copies of the superblock in the first bytes of a namespace.
fn superblocks(head: &[u8]) -> SuperblockCopies {
    let copy = |offset: u64| head.get(offset as usize..offset as usize + SUPERBLOCK_BYTES);
    let [a, b] = COPY_OFFSETS.map(|offset| copy(offset).unwrap_or_default());
    SuperblockCopies::parse(a, b)
}

/// The files of one tier.
pub(super) struct OwnFiles {
    folder: PathBuf,
    samples: Vec<LongSample>,
}

impl OwnFiles {
    /// The files beside the tier at `path`; `None` if the data set has no long sample.
    pub(super) fn beside(path: &Path, units: &Units) -> Option<OwnFiles> {
        let samples = units.long().to_vec();
        (!samples.is_empty()).then(|| OwnFiles { folder: folder_of(path), samples })
    }

    /// Creates the folder, with access for its owner only.
    pub(super) fn create(&self) -> Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(_) if fs::symlink_metadata(&self.folder).is_ok_and(|found| found.is_dir()) => {
                // The folder exists. An earlier version may have given it wider permissions, so they are set
                // again. That fails if another user owns the folder, and its permissions then stay.
                let _ = fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o700));
                Ok(())
            }
            made => made.map_err(|error| Error::from(error).path(&self.folder)),
        }
    }

    /// Returns a device that appends the files to `medium`: the file of a sample begins at the address of the
    /// sample's pages. Copies begin at `data_offset` of the medium.
    pub(super) fn behind(&self, medium: Arc<dyn Device>, data_offset: u64) -> Arc<dyn Device> {
        let file = |sample: &LongSample| BesideFile {
            name: name_of(sample),
            offset_bytes: data_offset + (OWN_FILES_PAGE + sample.page) * PAGE_BYTES,
            len_bytes: sample.len_bytes,
        };
        let files = self.samples.iter().map(file).collect();
        Arc::new(WithFiles::new(medium, self.folder.clone(), files))
    }

    /// The path of a sample's file, which need not exist.
    fn path_of(&self, sample: &LongSample) -> PathBuf {
        self.folder.join(name_of(sample))
    }

    /// Removes the copy of a sample.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn remove(&self, sample: &LongSample) -> Result<()> {
        let path = self.path_of(sample);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::from(error).path(path))
            }
            _ => Ok(()),
        }
    }

    /// Removes all copies without a page in `used`, ascending ranges of pages of the tier.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn remove_all_but(&self, used: &[Range<u64>]) -> Result<()> {
        for sample in &self.samples {
            let start = OWN_FILES_PAGE + sample.page;
            let end = start + sample.len_bytes.div_ceil(PAGE_BYTES);
            let next = used.partition_point(|pages| pages.end <= start);
            if used.get(next).is_none_or(|pages| pages.start >= end) {
                self.remove(sample)?;
            }
        }
        Ok(())
    }
}

/// The folder of the files beside the tier at `path`.
fn folder_of(path: &Path) -> PathBuf {
    path.with_extension("files")
}

fn name_of(sample: &LongSample) -> String {
    format!("copy-{:x}", sample.page)
}

/// Removes the files beside the tier at `path`.
fn remove_beside(path: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder_of(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Bytes that the files beside the tier at `path` occupy on their file system.
pub(super) fn bytes_beside(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder_of(path)) else { return 0 };
    let blocks = |entry: fs::DirEntry| entry.metadata().map_or(0, |found| found.blocks());
    entries.flatten().map(blocks).sum::<u64>().saturating_mul(512) // `stat(2)`
}

/// Finds long samples of which an earlier run has left only a part: a sample is kept whole or not at all. Reserves
/// room for the missing pages and returns the units of these samples, which the caller must fetch. If the quota has
/// no room, drops the sample instead: removes its units from `to_check`, frees their pages, and calls `forget` with
/// the tier and each unit that has a place.
pub(super) fn complete(
    units: &Units,
    ledger: &mut Ledger,
    copies: &CopyTable,
    to_check: &mut Vec<(u8, Kept)>,
    forget: &dyn Fn(u8, u32),
) -> Vec<Range<u32>> {
    let mut incomplete = Vec::new();
    for sample in units.long() {
        let together = units.together_with(sample.unit);
        let Some(location) = together.clone().find_map(|unit| copies.location(unit)) else {
            continue;
        };
        if !location.is_in_own_file() {
            continue;
        }
        let tier = location.tier;
        let missing = |unit: u32| units.get(unit).all().without(copies.reserved(unit));
        let pages: u64 = together.clone().map(|unit| u64::from(missing(unit).len())).sum();
        if pages == 0 {
            continue;
        }
        if ledger.reserve(sample.unit, tier, pages) {
            for unit in together.clone() {
                copies.place(unit, CopyLocation::in_own_file(tier, units.get(unit).page));
                copies.reserve(unit, units.get(unit).all());
            }
            incomplete.push(together);
            continue;
        }
        to_check.retain(|(_, kept)| !together.contains(&kept.unit));
        for unit in together.filter(|&unit| copies.location(unit).is_some()) {
            ledger.unreserve(unit, tier, copies.reserved(unit).len().into());
            copies.clear(unit);
            forget(tier, unit);
        }
    }
    incomplete
}

impl Cache {
    /// Opens the copy of the sample at `range` of a namespace, if a tier keeps all of the sample as a file of its own.
    /// Calls `open` with the path of the file; returns the result of `open` and the tier's number, and counts an open
    /// of the tier. Also returns `None`, and drops the result of `open`, if the copy was evicted meanwhile.
    ///
    /// The file has exactly the sample's length, and the bytes that came from the origin; after a restart, it is used
    /// only once they match the tier's index. It is unlinked when the copy is evicted, and changes only where a page
    /// was found corrupt and is written again.
    pub fn open_copy<T>(
        &self,
        namespace: u16,
        range: &Range<u64>,
        open: impl FnOnce(&Path) -> T,
    ) -> Option<(u8, T)> {
        let shared = self.tiers.latest();
        let evictions = shared.copies.evictions();
        let (tier, path) = shared.whole_copy(namespace, range)?;
        let opened = open(&path);
        let is_there = shared.whole_copy(namespace, range).is_some_and(|(now, _)| now == tier);
        if !is_there || !shared.is_unchanged_since(evictions) {
            return None;
        }
        shared.counters.count(tier, |of| &of.opens);
        Some((tier, opened))
    }

    /// Counts a read of a copy that [`Cache::open_copy`] has opened.
    pub fn count_read(&self, tier: u8, len: usize, took: Duration) {
        self.tiers.latest().counters.hit(tier, len, took);
    }
}

impl Shared {
    /// The tier and the path of the copy of a long sample, if the copy is complete.
    fn whole_copy(&self, namespace: u16, range: &Range<u64>) -> Option<(u8, PathBuf)> {
        let first = self.units.within(namespace, range).next()?;
        let sample = self.units.long_of(first)?;
        if self.units.get(first).start_bytes() != range.start
            || sample.len_bytes != range.end - range.start
        {
            return None;
        }
        let tier = self.copies_to_read(first)?.0.tier;
        let is_there = |unit: u32| {
            self.copies_to_read(unit).is_some_and(|(location, there)| {
                location.tier == tier
                    && location.is_in_own_file()
                    && self.units.get(unit).all().without(there).is_empty()
            })
        };
        let files = self.media[usize::from(tier)].own_files.as_ref()?;
        let all = self.units.together_with(first).all(is_there);
        all.then(|| (tier, files.path_of(sample)))
    }

    /// Removes the file of a long sample, unless any of its units still has a place.
    pub(super) fn remove_own_file(&self, tier: u8, unit: u32) -> Result<()> {
        let mut together = self.units.together_with(unit);
        let is_gone = together.all(|unit| self.copies.location(unit).is_none());
        match (&self.media[usize::from(tier)].own_files, self.units.long_of(unit)) {
            (Some(files), Some(sample)) if is_gone => files.remove(sample),
            _ => Ok(()),
        }
    }
}

const PREFIX: &str = "tier-";
const SUFFIX: &str = ".dlfs";

const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Bytes that must be zero at either end of a block device.
const LOOK_BYTES: u64 = 1 << 20;
