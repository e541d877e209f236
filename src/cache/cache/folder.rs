//! Folder of tiers: one file for each image and generation, with one quota over all files.
//!
//! The header of a file states the file's quota. The quota that a user gives for a folder limits the sum over all its
//! tiers: a tier that is opened reserves what its data set needs, within this limit. If the other tiers leave less,
//! those that no process has open are removed: first older generations of the same image, then the tiers that were
//! opened longest ago. Tiers in use stay, and the tier that is opened gets the rest. If the file system has less room
//! than that quota, what is free there and what the folder's tiers occupy is divided instead. A file may be longer than
//! its quota, since it is sparse.
//!
//! The folder itself is locked while files are created and removed. A file that does not begin with the
//! magic number of a tier is not a tier, whatever its name: it is neither counted nor removed.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::Identity;
use super::own_files::{blocks_bytes, bytes_beside, remove_beside};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::{NotInherited, mark_ours};
use dlfs_io::qpair::file::is_without_locks;
use dlfs_order::tier::{Index, PAGE_BYTES};

/// Name of the tier of `identity` in its folder.
pub(super) fn file_name(identity: Identity) -> String {
    format!("{PREFIX}{}-g{}{SUFFIX}", identity.uuid, identity.generation)
}

/// Lock on a folder: of tiers, while its files are chosen and opened; or of sockets, while a socket is bound.
pub(super) struct FolderLock {
    folder: PathBuf,
    /// Keeps forked children from holding the lock.
    _own: NotInherited,
    _lock: File,
}

impl FolderLock {
    /// Takes the lock, or waits while another process holds it.
    ///
    /// # Errors
    /// `Busy`: a process holds the lock for longer than 10 s. Errors of the operating system.
    pub(super) fn new(folder: &Path) -> Result<FolderLock> {
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
        Ok(FolderLock { folder: folder.to_path_buf(), _own: own, _lock: lock })
    }

    /// Makes room for the tier of `identity` at `own`, which wants `wanted` bytes; the folder's quota is `quota` bytes.
    /// Returns the bytes that the tier gets: whole pages, and at most `quota` minus the quotas of the tiers that stay.
    /// Removes other tiers if necessary: see the module's page.
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

    /// Bytes that the tiers in the folder except `own` occupy on their file system.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub(super) fn bytes_of_others(&self, own: &Path, identity: Identity) -> Result<u64> {
        let bytes = |other: Other| other.occupied.saturating_add(bytes_beside(&other.path));
        Ok(self.others(own, identity)?.into_iter().map(bytes).fold(0, u64::saturating_add))
    }

    /// The tiers in the folder except `own`.
    fn others(&self, own: &Path, identity: Identity) -> Result<Vec<Other>> {
        let generation_of = |name: &str| {
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
            let is_older = generation_of(&name).is_some_and(|found| found < identity.generation.0);
            let quota = Index::quota_of(&head).unwrap_or(metadata.len());
            let occupied = blocks_bytes(&metadata);
            others.push(Other { path, quota, occupied, opened, is_older });
        }
        Ok(others)
    }
}

/// Another tier of the folder.
struct Other {
    path: PathBuf,
    /// The quota in bytes that the file's header states; the file's length if the header states none.
    quota: u64,
    /// Bytes that the file occupies on its file system.
    occupied: u64,
    /// Time of the last use: see [`note_use`].
    opened: SystemTime,
    /// Set if it belongs to an older generation of the same image.
    is_older: bool,
}

/// Records the time of this use as the file's modification time: the tier that was opened longest ago is removed
/// first.
pub(super) fn note_use(path: &Path) {
    let noted = OpenOptions::new().write(true).open(path);
    if let Err(error) = noted.and_then(|file| file.set_modified(SystemTime::now())) {
        tracing::debug!(path = %path.display(), %error, "the time of this use is not recorded");
    }
}

/// Truncates the tier at `path` to `len_bytes` if it is longer, unless a process has it open.
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
    // For writing, since NFS refuses an exclusive lock on a file that is open for reading alone. Not so a block device:
    // when one that was open for writing is closed, udev probes and locks it.
    let is_file = path.is_file();
    let file =
        OpenOptions::new().read(true).write(is_file).open(path).or_else(|_| File::open(path));
    file.is_ok_and(|file| try_lock(&file).unwrap_or(true))
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

/// A tier's file is called `tier-UUID-gGENERATION.dlfs`.
const PREFIX: &str = "tier-";
const SUFFIX: &str = ".dlfs";

/// Timeout of taking the lock.
const LOCK_WAIT: Duration = Duration::from_secs(10);
