//! Writes a generation's record, snapshot and superblocks, in this order: after a crash the media hold either
//! the new generation or the previous one.

use crate::import::lease::Lease;
use crate::import::media::{Media, pieces};
use dlfs_base::Result;
use dlfs_base::buf::IoBuf;
use dlfs_format::directory::Directory;
use dlfs_format::directory::commit::Commit;
use dlfs_format::format::superblock_set::CommitStep;
use dlfs_format::format::{CellRange, Space};

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
    let CellRange { namespace, cell, .. } = commit.record_range;
    channel.write_bytes(namespace, layout.offset_of(cell)?, &commit.record)?;
    let CellRange { namespace, cell, .. } = commit.snapshot_range;
    let start = layout.offset_of(cell)?;
    let len = commit.snapshot.len_bytes();
    let mut buf = IoBuf::zeroed(len.min(PIECE_BYTES) as usize);
    for (at, piece) in pieces(len, PIECE_BYTES) {
        buf.truncate(piece);
        commit.snapshot.read_at(at, &mut buf)?;
        buf = channel.write(namespace, start + at, buf)?;
    }
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

/// Bytes of the snapshot that are written at once.
const PIECE_BYTES: u64 = 4 << 20;

/// Writes and commits a generation whose chunks are on the media. `leases`: that of the image, then any others that
/// the caller holds.
///
/// # Errors
/// As [`prepare`] and [`write`]. `Busy`: one of `leases` is lost.
pub(super) fn commit(
    media: &Media,
    leases: &[Lease],
    directory: Directory,
    space: &mut Space,
) -> Result<Commit> {
    let commit = prepare(media, directory, space)?;
    leases.iter().try_for_each(Lease::check)?;
    write(media, &leases[0], &commit)?;
    Ok(commit)
}
