//! The storage of a tier: opens and locks it, and identifies the data set of its copies.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Identity;
use super::options::{TierKind, TierSpec};
use super::takeover::{Taken, take_over};
use crate::error::{Error, ErrorKind, Result};
use crate::qpair::Device;
use crate::qpair::blocking::Blocking;
use crate::qpair::file::{FileNamespace, FileOptions};
use crate::qpair::mem::MemNamespace;
use crate::tier::{Index, IndexError, Kept, PAGE_BYTES, Units};

/// The storage of one tier.
pub(super) struct Media {
    /// Its name as the user wrote it.
    pub(super) name: String,
    pub(super) device: Arc<dyn Device>,
    /// Offset of the first copy.
    pub(super) data_offset: u64,
    /// Number of pages for copies.
    pub(super) capacity_pages: u64,
    /// The index that survives a restart; none in memory.
    pub(super) index: Option<Mutex<Index>>,
    /// Prevents mounting a block device meanwhile.
    _claim: Option<File>,
}

impl Media {
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
        let smallest = (0..units.len()).map(|unit| u64::from(units.get(unit).pages)).min();
        if smallest.is_some_and(|pages| pages > media.capacity_pages) {
            tracing::warn!(tier = number, name = %media.name, "too small for any sample: it stays empty");
        }
        Ok((media, kept))
    }
}

fn in_memory(spec: &TierSpec, units: &Units) -> Result<Media> {
    // No more than the data set: memory is allocated at once.
    let all: u64 = (0..units.len()).map(|unit| u64::from(units.get(unit).pages)).sum();
    let capacity_pages = (spec.quota_bytes / PAGE_BYTES).min(all);
    let len_bytes = (capacity_pages * PAGE_BYTES).max(PAGE_BYTES);
    let device = MemNamespace::new(len_bytes, PAGE_BYTES as u32).map_err(|error| {
        error.hint(format!("the tier {spec} has to fit into memory beside everything else"))
    })?;
    let name = spec.to_string();
    Ok(Media {
        name,
        device: Arc::new(device),
        data_offset: 0,
        capacity_pages,
        index: None,
        _claim: None,
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
    let Some(room) = quota.checked_sub(data_offset).filter(|&room| room > 0) else {
        let text = format!("the tier {name} is smaller than its own index of {data_offset} bytes");
        return Err(Error::new(ErrorKind::InvalidArgument, text).path(path));
    };
    let named = |error: Error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => format!("the folder of the tier {name} is to be made first"),
            _ => format!(
                "see the tier {name}; each process needs its own, and each data set within one too"
            ),
        };
        error.hint(hint)
    };
    let Taken { path, claim } = take_over(path, FILE_NAME, spec.overwrite, origins)?;
    let (quota, room) = match room_on_disk(&path) {
        Some(there) if there < quota => {
            tracing::warn!(
                tier = %name,
                quota_bytes = quota,
                free_bytes = there,
                "its file system has less room than the tier may take: it keeps what fits now"
            );
            let quota = there / PAGE_BYTES * PAGE_BYTES;
            let Some(room) = quota.checked_sub(data_offset).filter(|&room| room > 0) else {
                let text = format!(
                    "the file system has {there} bytes free, less than the index of the tier {name}: \
                     {data_offset} bytes"
                );
                let hint = "make room there, or put the tier elsewhere";
                return Err(Error::new(ErrorKind::NoSpace, text).path(path).hint(hint));
            };
            (quota, room)
        }
        _ => (quota, room),
    };
    let device = open_file(&path, quota).map_err(named)?;
    let mut io = Blocking::new(device.queue_pair()?)?;
    let old = io.read(0, data_offset as usize)?;
    let (index, kept) = match Index::parse(&old, identity.uuid, identity.generation, units) {
        Ok(found) => found,
        Err(why) => {
            match why {
                IndexError::Newer { found } => tracing::warn!(
                    tier = %name,
                    "its copies are of generation {found}, the image opened at {}: its newest \
                     superblock may be damaged, dlfs verify tells; the tier begins empty",
                    identity.generation
                ),
                _ => tracing::debug!(tier = %name, "begins empty: {why}"),
            }
            let index = Index::new(identity.uuid, identity.generation, units);
            io.write_at(0, index.header())?;
            // Before the first copy: without the header, copies would be unknown data that nothing
            // may overwrite.
            io.flush()?;
            (index, Vec::new())
        }
    };
    let capacity_pages = room / PAGE_BYTES;
    let index = Some(Mutex::new(index));
    Ok((Media { name, device, data_offset, capacity_pages, index, _claim: claim }, kept))
}

/// Free space for the tier's file, including what the file already occupies; `None` if unknown, or
/// for a block device.
fn room_on_disk(path: &Path) -> Option<u64> {
    let has_bytes = match std::fs::metadata(path) {
        Ok(found) if found.is_file() => found.blocks().saturating_mul(STAT_BLOCK_BYTES),
        Ok(_) => return None,
        Err(_) => 0,
    };
    let stat = rustix::fs::statvfs(path.parent()?).ok()?;
    // Some user-space file systems do not report their size.
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    (stat.f_blocks > 0).then(|| has_bytes.saturating_add(free))
}

/// Opens the tier's file exclusively, and extends it to the quota.
fn open_file(path: &Path, quota: u64) -> Result<Arc<dyn Device>> {
    let options = FileOptions { create_len: Some(quota), ..FileOptions::default() };
    Ok(Arc::new(FileNamespace::open(path, options)?))
}

/// `st_blocks` counts in this unit, whatever the block size of the file system (`stat(2)`).
const STAT_BLOCK_BYTES: u64 = 512;

/// The only file of a tier in a folder.
const FILE_NAME: &str = "tier.dlfs";
