//! The storage of a tier: opens and locks it, and identifies the data set of its copies.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Identity;
use super::folder::{self, Locked};
use super::options::{TierKind, TierSpec};
use super::share::{Place, SharedTier};
use super::takeover::{Taken, take_over};
use crate::error::{Error, ErrorKind, Result};
use crate::process::NotInherited;
use crate::qpair::Device;
use crate::qpair::blocking::Blocking;
use crate::qpair::file::{FileNamespace, FileOptions};
use crate::qpair::mem::MemNamespace;
use crate::tier::{Index, IndexError, Kept, PAGE_BYTES, Units};

/// The storage of one tier.
pub(super) struct Media {
    /// Declared before the device, which has the descriptor, so that it is dropped first.
    _lock: Option<NotInherited>,
    /// Its name as the user wrote it.
    pub(super) name: String,
    pub(super) device: Arc<dyn Device>,
    /// Offset of the first copy.
    pub(super) data_offset: u64,
    /// Number of pages for copies.
    pub(super) capacity_pages: u64,
    /// The memory of a tier in shared memory.
    memory: Option<MemNamespace>,
    /// The index that survives a restart; none in memory.
    pub(super) index: Option<Mutex<Index>>,
    /// Prevents mounting a block device meanwhile.
    _claim: Option<File>,
}

impl Media {
    /// What a process needs to read this tier; `None` where it is in memory that others cannot map.
    pub(super) fn shared(&self) -> Option<SharedTier> {
        let memory = self.memory.as_ref().map(|memory| memory.namespace().len_bytes());
        let path = || self.device.capabilities().local_path;
        Some(SharedTier {
            name: self.name.clone(),
            place: memory.map(Place::Memory).or_else(|| path().map(Place::File))?,
            data_offset: self.data_offset,
            capacity_pages: self.capacity_pages,
        })
    }

    /// The memory to pass to processes that attach.
    pub(super) fn memory(&self) -> Option<BorrowedFd<'_>> {
        self.memory.as_ref()?.file()
    }

    /// Removes a unit from the index in memory; its page is written with its next change.
    pub(super) fn forget(&self, unit: u32) {
        if let Some(index) = &self.index {
            index.lock().set(unit, None);
        }
    }

    /// Opens a tier, and returns the copies that its index lists.
    pub(super) fn open(
        number: u8,
        spec: &TierSpec,
        identity: Identity,
        units: &Units,
        origins: &[Arc<dyn Device>],
    ) -> Result<(Media, Vec<Kept>)> {
        let (media, kept) = match &spec.kind {
            TierKind::Ram => (in_memory(spec, units)?, Vec::new()),
            TierKind::File(path) => in_file(path, spec, identity, units, origins)?,
        };
        let smallest = (0..units.len()).map(|unit| u64::from(units.get(unit).pages())).min();
        if smallest.is_some_and(|pages| pages > media.capacity_pages) {
            tracing::warn!(tier = number, name = %media.name, "too small for any sample: it stays empty");
        }
        Ok((media, kept))
    }

    /// A tier in memory that other processes can map, where the operating system has such memory.
    fn of_memory(name: String, capacity_pages: u64) -> Result<Media> {
        let (len_bytes, block_len) =
            ((capacity_pages * PAGE_BYTES).max(PAGE_BYTES), PAGE_BYTES as u32);
        let memory = match MemNamespace::shared(len_bytes, block_len) {
            Ok(memory) => memory,
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Err(error),
            Err(error) => {
                tracing::debug!(tier = %name, error = %error.report(), "no shared memory");
                MemNamespace::new(len_bytes, block_len)?
            }
        };
        Ok(Media {
            _lock: None,
            name,
            device: Arc::new(memory.clone()),
            data_offset: 0,
            capacity_pages,
            memory: memory.file().is_some().then_some(memory),
            index: None,
            _claim: None,
        })
    }
}

/// The tiers that another process owns, for reading; `memory` are those in memory.
pub(super) fn attached(tiers: &[SharedTier], memory: Vec<OwnedFd>) -> Result<Vec<Media>> {
    let mut memory = memory.into_iter();
    let mut media = |tier: &SharedTier| {
        let device: Arc<dyn Device> = match &tier.place {
            Place::File(path) => Arc::new(FileNamespace::open(path, FileOptions::default())?),
            Place::Memory(len_bytes) => {
                let missing =
                    || Error::new(ErrorKind::Internal, "the owner of the tiers sent no memory");
                let file = memory.next().ok_or_else(missing)?;
                Arc::new(MemNamespace::attach(file, *len_bytes, PAGE_BYTES as u32)?)
            }
        };
        Ok(Media {
            _lock: None,
            name: tier.name.clone(),
            device,
            data_offset: tier.data_offset,
            capacity_pages: tier.capacity_pages,
            memory: None,
            index: None,
            _claim: None,
        })
    };
    tiers.iter().map(&mut media).collect()
}

/// A tier in memory, no larger than the data set.
fn in_memory(spec: &TierSpec, units: &Units) -> Result<Media> {
    let capacity_pages = (spec.quota_bytes / PAGE_BYTES).min(units.num_pages());
    Media::of_memory(spec.to_string(), capacity_pages).map_err(|error| {
        error.hint(format!("the tier {spec} has to fit into memory beside everything else"))
    })
}

fn in_file(
    path: &Path,
    spec: &TierSpec,
    identity: Identity,
    units: &Units,
    origins: &[Arc<dyn Device>],
) -> Result<(Media, Vec<Kept>)> {
    let name = spec.to_string();
    let data_offset = Index::len_bytes(units.len());
    let quota = spec.quota_bytes / PAGE_BYTES * PAGE_BYTES;
    if quota <= data_offset {
        let text = format!("the tier {name} is smaller than its own index of {data_offset} bytes");
        return Err(Error::new(ErrorKind::InvalidArgument, text).path(path));
    }
    let named = |error: Error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => format!("the folder of the tier {name} is to be made first"),
            ErrorKind::Busy => format!(
                "the process that has the tier {name} does not share it: it is another user's, or reads \
                 another image; name another folder"
            ),
            _ => format!("see the tier {name}"),
        };
        error.hint(hint)
    };
    // Held until the file is open and locked itself, so that nobody removes it in between.
    let folder = if path.is_dir() { Some(Locked::new(path)?) } else { None };
    let Taken { path, claim } =
        take_over(path, &folder::file_name(identity), spec.overwrite, origins)?;
    if folder.is_some() && path.exists() && !folder::is_unused(&path) {
        let text = "another process has this tier";
        return Err(named(Error::new(ErrorKind::Busy, text).path(path)));
    }
    let mut quota = less_than_disk(&path, quota, data_offset, &name)?;
    if let Some(folder) = &folder {
        let wanted = data_offset.saturating_add(units.num_pages() * PAGE_BYTES);
        quota = folder.reserve(&path, identity, quota, wanted)?;
        if quota <= data_offset {
            tracing::warn!(
                tier = %name,
                "other processes use the whole quota for tiers of other data sets: this one stays \
                 empty; raise the quota"
            );
            return Ok((Media::of_memory(name, 0)?, Vec::new()));
        }
    }
    let device = open_file(&path, quota).map_err(named)?;
    let lock = device.keep_lock_from_children();
    if folder.is_some() {
        folder::note_use(&path);
    }
    let mut io = Blocking::new(device.queue_pair()?)?;
    let (index, kept) = read_index(&mut io, &name, identity, units)?;
    let capacity_pages = (quota - data_offset) / PAGE_BYTES;
    let index = Some(Mutex::new(index));
    let media = Media {
        _lock: Some(lock),
        name,
        device: Arc::new(device),
        data_offset,
        capacity_pages,
        memory: None,
        index,
        _claim: claim,
    };
    Ok((media, kept))
}

/// The quota, or the free space of the file system if that is less.
///
/// # Errors
/// `InvalidArgument`: the quota is larger than the whole file system. `NoSpace`: it is full.
fn less_than_disk(path: &Path, quota: u64, data_offset: u64, name: &str) -> Result<u64> {
    let Some(Room { free, all }) = room_on_disk(path) else { return Ok(quota) };
    if quota > all {
        let text = format!("the tier {name} is larger than its whole file system: {all} bytes");
        let hint = "name a quota that fits, or another place";
        return Err(Error::new(ErrorKind::InvalidArgument, text).path(path).hint(hint));
    }
    if quota <= free {
        return Ok(quota);
    }
    tracing::warn!(
        tier = %name,
        quota_bytes = quota,
        free_bytes = free,
        "its file system has less room than the tier may take: it keeps what fits now"
    );
    if free / PAGE_BYTES * PAGE_BYTES <= data_offset {
        let text = format!(
            "the file system has {free} bytes free, less than the index of the tier {name}: \
             {data_offset} bytes"
        );
        let hint = "make room there, or put the tier elsewhere";
        return Err(Error::new(ErrorKind::NoSpace, text).path(path).hint(hint));
    }
    Ok(free / PAGE_BYTES * PAGE_BYTES)
}

/// Reads the index, or writes a new one if there is none of this data set.
fn read_index(
    io: &mut Blocking,
    name: &str,
    identity: Identity,
    units: &Units,
) -> Result<(Index, Vec<Kept>)> {
    let old = io.read(0, Index::len_bytes(units.len()) as usize)?;
    let why = match Index::parse(&old, identity.uuid, identity.generation, units) {
        Ok(found) => return Ok(found),
        Err(why) => why,
    };
    match why {
        IndexError::Newer { found } => tracing::warn!(
            tier = %name,
            "its copies are of generation {found}, the image opened at {}: its newest superblock may \
             be damaged, dlfs verify tells; the tier begins empty",
            identity.generation
        ),
        IndexError::Version { .. } => tracing::info!(tier = %name, "the tier begins empty: {why}"),
        _ => tracing::debug!(tier = %name, "begins empty: {why}"),
    }
    let index = Index::new(identity.uuid, identity.generation, units);
    io.write_at(0, index.header())?;
    // Before the first copy: without the header, copies would be unknown data that nothing may
    // overwrite.
    io.flush()?;
    Ok((index, Vec::new()))
}

/// Bytes of a file system.
struct Room {
    /// Free for the tier's file, including what the file already occupies.
    free: u64,
    all: u64,
}

/// The room of the file system of the tier at `path`; `None` if unknown, or for a block device.
fn room_on_disk(path: &Path) -> Option<Room> {
    let has_bytes = match std::fs::metadata(path) {
        Ok(found) if found.is_file() => found.blocks().saturating_mul(STAT_BLOCK_BYTES),
        Ok(_) => return None,
        Err(_) => 0,
    };
    let stat = rustix::fs::statvfs(path.parent()?).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let free = has_bytes.saturating_add(bytes(stat.f_bavail));
    // Some user-space file systems do not report their size.
    (stat.f_blocks > 0).then(|| Room { free, all: bytes(stat.f_blocks) })
}

/// Opens the tier's file exclusively, and extends it to the quota.
fn open_file(path: &Path, quota: u64) -> Result<FileNamespace> {
    let options = FileOptions { create_len: Some(quota), ..FileOptions::default() };
    FileNamespace::open(path, options)
}

/// `st_blocks` counts in this unit, whatever the block size of the file system (`stat(2)`).
const STAT_BLOCK_BYTES: u64 = 512;
