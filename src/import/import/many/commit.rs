//! The steps that the commits of both kinds of parts share: a commit takes effect once, is made under leases, and
//! lists missing parts in its error.

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

/// Runs `commit` unless the plan is committed already. Then removes the marks, since the plan is of no further
/// use.
///
/// # Errors
/// As [`committed`]; errors of `commit`, and of writing.
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

/// Writes and commits a generation whose chunks are on the media.
///
/// # Errors
/// Errors of writing. `NoSpace`: the image is full.
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

/// Returns an error if the caller wants to stop the commit.
pub(super) fn check_stop(progress: &mut dyn Progress) -> Result<()> {
    if !progress.stop() {
        return Ok(());
    }
    let text = "the commit was stopped before it changed anything that a reader sees";
    Err(Error::new(ErrorKind::Interrupted, text).hint("run it again"))
}

/// The error for missing parts. It lists the first hundred.
pub(super) fn not_complete(missing: &[u64], hint: &'static str) -> Error {
    let text = match missing {
        [one] => format!("part {one} is not complete"),
        _ => format!("the parts {} are not complete", listed(missing, MAX_LISTED)),
    };
    Error::new(ErrorKind::NotFound, text).hint(hint)
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

/// Maximum number of parts that an error lists.
const MAX_LISTED: usize = 100;
