//! The commits of both kinds of parts: once, under leases, with an error that lists the parts that are missing.

use std::sync::Arc;

use crate::import::commit;
use crate::import::edit::listed;
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::mark::Mark;
use crate::import::media::Media;
use crate::import::options::Progress;
use crate::import::prepare::{self, Current};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::Space;

/// Commits by `commit`, unless that was done before, and removes the marks: the plan is of no more use.
///
/// # Errors
/// As [`committed`]; those of `commit`, and of writing.
pub(super) fn once(
    journal: &Journal,
    media: &Media,
    leases: &[Lease],
    commit: impl FnOnce() -> Result<Current>,
) -> Result<Current> {
    let result = match committed(journal, media)? {
        Some(done) => Ok(done),
        None => commit(),
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

/// Writes a generation, whose chunks are on the media.
///
/// # Errors
/// Those of writing, and a full image.
pub(super) fn write(
    directory: Directory,
    media: &Media,
    leases: &[Lease],
    space: &mut Space,
) -> Result<Current> {
    let commit = commit::prepare(media, directory, space)?;
    leases.iter().try_for_each(Lease::check)?;
    commit::write(media, &leases[0], &commit)?;
    Ok(commit.into())
}

/// The error of a commit that the caller wanted to stop.
pub(super) fn check_stop(progress: &mut dyn Progress) -> Result<()> {
    if !progress.stop() {
        return Ok(());
    }
    let text = "the commit was stopped before it changed anything that a reader sees";
    Err(Error::new(ErrorKind::Interrupted, text).hint("run it again"))
}

/// The error of parts that are missing, the first hundred of them listed.
pub(super) fn not_complete(missing: &[u64], hint: &'static str) -> Error {
    let text = match missing {
        [one] => format!("part {one} is not complete"),
        _ => format!("the parts {} are not complete", listed(missing, MAX_LISTED)),
    };
    Error::new(ErrorKind::NotFound, text).hint(hint)
}

/// The generation of a plan, if it is committed already.
///
/// # Errors
/// `Stale`: the image has changed since. Those of reading it.
fn committed(journal: &Journal, media: &Media) -> Result<Option<Current>> {
    let newest = media.channel().superblocks(0)?.newest().copied();
    if newest.is_none_or(|newest| newest.layout.uuid != journal.layout.uuid) {
        return Ok(None);
    }
    let opened = prepare::opened(media)?;
    let superblock = opened.superblock();
    if superblock.generation < journal.generation {
        return Ok(None); // the generation that the plan appends to
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

/// Parts that an error lists.
const MAX_LISTED: usize = 100;
