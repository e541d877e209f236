//! The used length of each namespace: the end of the bytes that a generation uses.

use crate::directory::Directory;
use crate::format::FormatError;
use crate::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES, SnapshotLocation};
use dlfs_base::units::ALIGN_BYTES;

/// For each namespace, the end of the bytes that a reader of `directory` and its snapshot reads.
pub(super) fn used_lengths(
    directory: &Directory,
    snapshot: &SnapshotLocation,
) -> Result<Vec<u64>, FormatError> {
    let layout = &directory.layout;
    let copies_end = COPY_OFFSETS[1] + SUPERBLOCK_BYTES as u64;
    let mut ends = vec![copies_end; layout.num_namespaces.into()];
    for c in 0..directory.num_chunks() {
        let chunk = directory.chunk(c);
        grow(&mut ends, chunk.namespace, chunk.offset_bytes + chunk.len_bytes);
    }
    let record = directory.record_range;
    if let Some(more) = record.cells.checked_sub(1) {
        // The directory knows the record's cells, not its length: count at least one block of the last cell.
        let last = layout.offset_of(record.cell.saturating_add(more))?;
        grow(&mut ends, record.namespace, last + ALIGN_BYTES as u64);
    }
    let snapshot_end = snapshot.offset_bytes.saturating_add(snapshot.len_bytes);
    grow(&mut ends, snapshot.namespace, snapshot_end);
    Ok(ends)
}

/// Extends the used length of `namespace` to `end`.
pub(super) fn grow(ends: &mut [u64], namespace: u16, end: u64) {
    let known = &mut ends[usize::from(namespace)];
    *known = end.max(*known);
}
