//! Reads an image's directory from its snapshot: the columns at once, the lookup tree and the names on
//! demand.

use std::ops::Range;
use std::sync::Arc;

use crate::buf::SharedBuf;
use crate::directory::{Bytes, Directory};
use crate::error::{Error, ErrorKind, Result};
use crate::format::snapshot::{SNAPSHOT_HEAD_BYTES, SnapshotHead};
use crate::format::superblock::SnapshotLocation;
use crate::format::superblock_set::SuperblockSet;
use crate::format::{FormatError, Superblock};
use crate::qpair::Device;
use crate::reader::RangeReader;
use crate::units::ALIGN_BYTES;

/// Reads the part of the directory that reads by id need: all but the lookup tree and the names, which are
/// most of the snapshot and which training never needs. Also returns the bytes that the directory was decoded
/// from.
pub(super) fn read_directory(
    opened: &SuperblockSet,
    devices: &[Arc<dyn Device>],
) -> Result<(Directory, Bytes)> {
    let superblock = opened.superblock();
    with_head(superblock, devices, |reader, head, damaged| {
        head.check_committed(superblock).map_err(damaged)?;
        let location = superblock.snapshot;
        let ranges = head.ranges_by_id().map(|range| {
            let clip = |at: u64| at.min(location.len_bytes);
            location.offset_bytes + clip(range.start)..location.offset_bytes + clip(range.end)
        });
        let columns = Bytes::from(reader.read_joined(&ranges)?);
        Ok((Directory::from_ranges_by_id(columns.clone()).map_err(damaged)?, columns))
    })
}

/// Reads the lookup tree and the names of a directory that was opened without them.
pub(super) fn read_names(
    directory: &Directory,
    superblock: &Superblock,
    devices: &[Arc<dyn Device>],
) -> Result<()> {
    // A later generation may lie here by now; the checksums detect it, unless its tree and names are the
    // same.
    with_head(superblock, devices, |reader, head, damaged| {
        let mut read = |range| read_part(reader, &superblock.snapshot, range);
        if !directory.has_tree() {
            directory.attach_tree(read(head.tree_range())?).map_err(damaged)?;
        }
        directory.attach_names(read(head.names_range())?).map_err(damaged)
    })
}

/// Reads the origins of a directory that was opened without them.
pub(super) fn read_origins(
    directory: &Directory,
    superblock: &Superblock,
    devices: &[Arc<dyn Device>],
) -> Result<()> {
    with_head(superblock, devices, |reader, head, damaged| {
        let origins = read_part(reader, &superblock.snapshot, head.origins_range())?;
        directory.attach_origins(origins).map_err(damaged)
    })
}

/// Calls `work` with a reader of the snapshot, its head, and a function that turns damaged bytes into errors.
/// Calls it a second time if the data is corrupt, since the damage may be one of transit.
fn with_head<T>(
    superblock: &Superblock,
    devices: &[Arc<dyn Device>],
    mut work: impl FnMut(&mut RangeReader, SnapshotHead, &dyn Fn(FormatError) -> Error) -> Result<T>,
) -> Result<T> {
    let location = superblock.snapshot;
    let device = &devices[usize::from(location.namespace)];
    let damaged =
        |error: FormatError| Error::from(error).target(device.namespace().address).hint(REBUILD);
    let mut read = || {
        let mut reader = RangeReader::new(device)?;
        let head = reader.read(location.offset_bytes, SNAPSHOT_HEAD_BYTES as u64)?;
        work(&mut reader, SnapshotHead::parse(&head).map_err(damaged)?, &damaged)
    };
    match read() {
        Err(error) if error.kind() == ErrorKind::Corrupt => read(),
        result => result,
    }
}

/// Reads a part of a snapshot at any byte offset.
fn read_part(
    reader: &mut RangeReader,
    location: &SnapshotLocation,
    range: Range<u64>,
) -> Result<SharedBuf> {
    let from = range.start.min(location.len_bytes);
    let skip = from % ALIGN_BYTES as u64;
    let len = range.end.min(location.len_bytes).saturating_sub(from - skip);
    Ok(reader.read(location.offset_bytes + from - skip, len)?.slice(skip as usize..))
}

/// The hint for a damaged directory.
pub(super) const REBUILD: &str = "dlfs rebuild restores the directory from the chunks";
