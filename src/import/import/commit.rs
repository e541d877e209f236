//! Writes a generation's record, snapshot and superblocks, in this order: after a crash the media hold either
//! the new generation or the previous one.

use crate::import::lease::Lease;
use crate::import::media::{Channel, Media, pieces};
use dlfs_base::buf::IoBuf;
use dlfs_base::{Error, Result};
use dlfs_format::directory::Directory;
use dlfs_format::directory::commit::Commit;
use dlfs_format::format::superblock_set::CommitStep;
use dlfs_format::format::{CellRange, ImageLayout, Space};

/// Allocates cells for `directory`'s record and snapshot, and extends the namespaces as needed.
///
/// # Errors
/// `NoSpace`: they do not fit.
pub(super) fn prepare(media: &Media, directory: Directory, space: &mut Space) -> Result<Commit> {
    let commit = Commit::prepare(directory, space)?;
    for superblock in &commit.superblocks {
        media.grow(superblock.namespace, superblock.used_len_bytes)?;
    }
    Ok(commit)
}

/// Commits a generation whose chunks are written: writes record, snapshot and superblocks.
///
/// # Errors
/// Errors of writing. A reader then opens the previous generation. All writes are idempotent, so the caller may
/// call this again. But after `Disconnected` it must first check everything that was not flushed, chunks
/// included.
pub(super) fn write(media: &Media, lease: &Lease, commit: &Commit) -> Result<()> {
    lease.check()?;
    let mut channel = media.channel();
    let layout = *commit.directory.layout();
    // A rebuild relies on this: a record implies that all chunks of its generation are durable.
    (0..media.len()).try_for_each(|namespace| channel.flush(namespace))?;
    let len = commit.record.len() as u64;
    write_range(&mut channel, &layout, commit.record_range, len, |at, piece| {
        let at = at as usize; // a record is in memory
        piece.copy_from_slice(&commit.record[at..at + piece.len()]);
        Ok(())
    })?;
    let len = commit.snapshot.len_bytes();
    write_range(&mut channel, &layout, commit.snapshot_range, len, |at, piece| {
        commit.snapshot.read_at(at, piece).map_err(Error::from)
    })?;
    for step in commit.steps() {
        lease.check()?;
        match step {
            CommitStep::Flush { namespace } => channel.flush(namespace)?,
            CommitStep::Write { namespace, offset_bytes, block } => {
                channel.write_bytes(namespace, offset_bytes, &block[..])?;
            }
        }
    }
    Ok(())
}

/// Writes `len` bytes, a multiple of 4,096, from the start of a cell range, piece by piece.
fn write_range(
    channel: &mut Channel,
    layout: &ImageLayout,
    range: CellRange,
    len: u64,
    fill: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let start = layout.offset_of(range.cell).map_err(Error::from)?;
    let mut buf = IoBuf::zeroed(len.min(PIECE_BYTES) as usize);
    for (at, piece) in pieces(len, PIECE_BYTES) {
        buf.truncate(piece);
        fill(at, &mut buf)?;
        buf = channel.write(range.namespace, start + at, buf)?;
    }
    Ok(())
}

const PIECE_BYTES: u64 = 4 << 20;
