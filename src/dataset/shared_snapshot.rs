//! The snapshot of an open image, in memory that this process's workers map.

use std::sync::{Arc, OnceLock};

use crate::buf::{SealedBytes, SealedLocation};
use crate::directory::{Bytes, Directory};
use crate::error::Result;
use crate::format::FormatError;
use crate::format::snapshot::SnapshotHead;
use crate::format::superblock_set::SuperblockSet;

/// The bytes that a directory was decoded from. Sharing copies them once, so that workers need no copies.
#[derive(Debug)]
pub(super) struct SharedSnapshot {
    bytes: Bytes,
    sealed: OnceLock<Arc<SealedBytes>>,
}

impl SharedSnapshot {
    pub(super) fn new(bytes: Bytes) -> SharedSnapshot {
        SharedSnapshot { bytes, sealed: OnceLock::new() }
    }

    /// The directory in the snapshot that another process shares at `location`; `None` unless it is the
    /// snapshot that the image has committed. The snapshot is verified as if it was read from the image, so the
    /// sharing process need not be trusted.
    pub(super) fn open(
        location: &SealedLocation,
        opened: &SuperblockSet,
    ) -> Option<(Directory, SharedSnapshot)> {
        let unused = |error: &dyn std::fmt::Display| {
            tracing::debug!(
                "reading the snapshot from the image, since the shared one is unusable: {error}"
            );
        };
        let sealed = SealedBytes::open(location).map_err(|error| unused(&error)).ok()?;
        let sealed = Arc::new(sealed);
        let bytes = Bytes::from(Arc::clone(&sealed));
        let directory = decode(&bytes, opened).map_err(|error| unused(&error)).ok()?;
        Some((directory, SharedSnapshot { bytes, sealed: sealed.into() }))
    }

    /// Returns the location where other processes find the snapshot, which the first call shares.
    pub(super) fn share(&self) -> Result<SealedLocation> {
        if let Some(sealed) = self.sealed.get() {
            return Ok(sealed.location()?);
        }
        let copy = Arc::new(SealedBytes::of(&self.bytes)?);
        // Another thread may have shared it first.
        Ok(self.sealed.get_or_init(|| copy).location()?)
    }
}

fn decode(bytes: &Bytes, opened: &SuperblockSet) -> Result<Directory, FormatError> {
    let superblock = opened.superblock();
    let head = SnapshotHead::parse(bytes)?;
    head.check_committed(superblock)?;
    // The whole snapshot if it was read from a file, otherwise the part that reads by id need.
    let directory = if bytes.len() as u64 >= head.len_bytes {
        Directory::from_snapshot(bytes.clone())?
    } else {
        Directory::from_ranges_by_id(bytes.clone())?
    };
    directory.check_current(superblock)?;
    Ok(directory)
}
