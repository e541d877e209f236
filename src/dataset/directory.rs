//! Reads the directory of an image from its snapshot.

use std::sync::Arc;

use crate::directory::{Bytes, Directory};
use crate::error::{Error, ErrorKind, Result};
use crate::format::snapshot::{SNAPSHOT_HEAD_BYTES, SnapshotHead};
use crate::format::superblock_set::SuperblockSet;
use crate::format::{FormatError, Superblock};
use crate::qpair::Device;
use crate::reader::RangeReader;
use crate::units::ALIGN_BYTES;

/// Reads the directory without its names. They are stored last, and training never needs them. Also returns the
/// bytes that it is made of.
pub(super) fn read_directory(
    opened: &SuperblockSet,
    devices: &[Arc<dyn Device>],
) -> Result<(Directory, Bytes)> {
    let superblock = opened.superblock();
    let location = superblock.snapshot;
    let device = &devices[usize::from(location.namespace)];
    let damaged =
        |error: FormatError| Error::from(error).target(device.namespace().address).hint(REBUILD);
    twice_if_damaged(|| {
        let mut reader = RangeReader::new(device)?;
        let head = reader.read(location.offset_bytes, SNAPSHOT_HEAD_BYTES as u64)?;
        let head = SnapshotHead::parse(&head).map_err(damaged)?;
        head.check_committed(superblock).map_err(damaged)?;
        let core = reader.read(location.offset_bytes, head.core_len().min(location.len_bytes))?;
        let core = Bytes::from(core);
        Ok((Directory::from_snapshot(core.clone()).map_err(damaged)?, core))
    })
}

/// Reads the names of a directory that was opened without them.
pub(super) fn read_names(
    directory: &Directory,
    superblock: &Superblock,
    devices: &[Arc<dyn Device>],
) -> Result<()> {
    let location = superblock.snapshot;
    let device = &devices[usize::from(location.namespace)];
    let damaged =
        |error: FormatError| Error::from(error).target(device.namespace().address).hint(REBUILD);
    twice_if_damaged(|| {
        let mut reader = RangeReader::new(device)?;
        let head = reader.read(location.offset_bytes, SNAPSHOT_HEAD_BYTES as u64)?;
        let head = SnapshotHead::parse(&head).map_err(damaged)?;
        let from = head.core_len().min(location.len_bytes);
        let skip = from % ALIGN_BYTES as u64;
        let len = location.len_bytes - (from - skip);
        let names = reader.read(location.offset_bytes + from - skip, len)?;
        directory.attach_names(names.slice(skip as usize..)).map_err(damaged)
    })
}

/// Reads a second time if the data is corrupt: it may have been damaged in transit.
fn twice_if_damaged<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    match read() {
        Err(error) if error.kind() == ErrorKind::Corrupt => read(),
        result => result,
    }
}

/// The hint for a damaged directory.
pub(super) const REBUILD: &str = "dlfs rebuild restores the directory from the chunks";
