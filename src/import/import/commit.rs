//! Writes a generation's record, snapshot and superblocks, in this order: after a crash the media hold either
//! the new generation or the previous one. A commit of parts by many processes takes effect once, is made under
//! leases, and lists missing parts in its error.

use std::fmt::Display;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::marks::Mark;
use crate::import::media::{Media, pieces};
use crate::import::options::Progress;
use crate::import::prepare::{self, Current};
use dlfs_base::buf::IoBuf;
use dlfs_base::nameless_file::nameless_file;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::commit::Commit;
use dlfs_format::directory::{Directory, KeepsAside};
use dlfs_format::format::superblock_set::CommitStep;
use dlfs_format::format::{CellRange, FormatError, Space};

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

const PIECE_BYTES: u64 = 4 << 20;

/// Runs `commit` unless the plan is committed already. Then removes the marks, since the plan is of no further
/// use.
///
/// # Errors
/// As [`committed`]; errors of `commit`, and of writing.
pub(super) fn once(
    journal: &Journal,
    media: &Media,
    leases: &[Lease],
    commit: impl FnOnce() -> Result<Commit>,
) -> Result<Current> {
    let result = match committed(journal, media)? {
        Some(done) => Ok(done),
        None => commit().map(Current::from),
    };
    let done = leases[0].explain(result)?;
    leases.iter().try_for_each(Lease::check)?;
    let mut channel = media.channel();
    for namespace in 0..media.len() {
        if Mark::read(&mut channel, namespace)?.is_some() {
            Mark::remove(&mut channel, namespace)?;
        }
    }
    Ok(done)
}

/// Writes and commits a generation whose chunks are on the media.
///
/// # Errors
/// As [`prepare`] and [`write`].
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

/// Returns an error if the caller wants to stop the commit.
pub(super) fn check_stop(progress: &mut dyn Progress) -> Result<()> {
    if !progress.stop() {
        return Ok(());
    }
    let text = "the commit was stopped before it changed anything that a reader sees";
    Err(Error::new(ErrorKind::Interrupted, text).hint("run it again"))
}

/// Refuses to commit while parts are missing. The error lists the first hundred.
pub(super) fn all_complete(missing: &[u64], hint: &'static str) -> Result<()> {
    let text = match missing {
        [] => return Ok(()),
        [one] => format!("part {one} is not complete"),
        _ => format!("the parts {} are not complete", listed(missing, MAX_LISTED)),
    };
    Err(Error::new(ErrorKind::NotFound, text).hint(hint))
}

/// The generation of a plan, if it is committed.
///
/// # Errors
/// `Stale`: the image has changed since. Errors of reading it.
fn committed(journal: &Journal, media: &Media) -> Result<Option<Current>> {
    let newest = media.channel().superblocks(0)?.newest().copied();
    if newest.is_none_or(|newest| newest.layout.uuid != journal.layout.uuid) {
        return Ok(None);
    }
    let opened = prepare::opened(media)?;
    let superblock = opened.superblock();
    if superblock.generation < journal.generation {
        return Ok(None); // this is the generation that the plan appends to
    }
    if superblock.generation != journal.generation || superblock.time_ns != journal.time_ns {
        let text = format!(
            "the image has changed since the import was planned or committed: it has generation {}",
            superblock.generation
        );
        return Err(Error::new(ErrorKind::Stale, text));
    }
    let directory = Arc::new(prepare::read_directory(media, superblock)?);
    Ok(Some(Current { directory, superblocks: opened.superblocks }))
}

/// Lists the first `most` elements, and counts the others.
pub(super) fn listed(all: &[impl Display], most: usize) -> String {
    let shown: Vec<String> = all.iter().take(most).map(ToString::to_string).collect();
    let shown = shown.join(", ");
    if all.len() > most { format!("{shown} and {} more", all.len() - most) } else { shown }
}

/// Maximum number of parts that an error lists.
const MAX_LISTED: usize = 100;

/// Bytes in a temporary file. If the file cannot take more, the rest stays in memory.
#[derive(Debug, Default)]
pub(super) struct TemporaryColumn {
    file: Option<File>,
    /// Number of bytes in the file.
    in_file: u64,
    /// The bytes after those of the file.
    rest: Vec<u8>,
}

impl TemporaryColumn {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(nameless_file(&std::env::temp_dir())?),
        };
        file.write_all_at(bytes, self.in_file)?;
        self.in_file += bytes.len() as u64;
        Ok(())
    }
}

impl KeepsAside for TemporaryColumn {
    fn append(&mut self, bytes: &[u8]) {
        if self.rest.is_empty() && !bytes.is_empty() {
            let Err(error) = self.write(bytes) else { return };
            tracing::warn!(
                "checksums stay in memory, since there is no temporary file for them: {error}"
            );
        }
        self.rest.extend_from_slice(bytes);
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), FormatError> {
        let in_file = self.in_file.saturating_sub(at).min(out.len() as u64) as usize;
        let (first, rest) = out.split_at_mut(in_file);
        if let Some(file) = self.file.as_ref().filter(|_| in_file > 0) {
            let unread = |error: std::io::Error| FormatError::Unread {
                what: "temporary file of a commit",
                why: error.to_string(),
            };
            file.read_exact_at(first, at).map_err(unread)?;
        }
        if !rest.is_empty() {
            let start = (at + in_file as u64 - self.in_file) as usize;
            rest.copy_from_slice(&self.rest[start..start + rest.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 300 << 10;

    #[test]
    fn bytes_read_back_from_file_and_memory() {
        let mut column = TemporaryColumn::default();
        let all: Vec<u8> = (0..BYTES).map(|at| (at * 31 / 7) as u8).collect();
        let (first, last) = all.split_at(BYTES / 3);
        first.chunks(16 << 10).for_each(|piece| column.append(piece));
        column.rest.extend_from_slice(last);
        assert_eq!(column.in_file, first.len() as u64);
        for (at, len) in [(0, all.len()), (5, 100), (BYTES / 3 - 3, 7), (all.len() - 9, 9)] {
            let mut found = vec![0; len];
            column.read_at(at as u64, &mut found).unwrap();
            assert!(found == all[at..at + len], "{len} bytes at {at}");
        }
    }

    #[test]
    fn what_a_full_file_does_not_take_stays_in_memory() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut column = TemporaryColumn { file: Some(full), ..TemporaryColumn::default() };
        let all: Vec<u8> = (0..BYTES).map(|at| at as u8).collect();
        all.chunks(1000).for_each(|piece| column.append(piece));
        let mut found = vec![0; all.len()];
        column.read_at(0, &mut found).unwrap();
        assert!(found == all && column.in_file == 0);
    }
}
