//! The commit of parts as one generation: it takes effect once, is made under leases, and lists missing parts.

use std::sync::Arc;

use crate::import::commit::listed;
use crate::import::committed::{Current, committed_superblocks, read_directory};
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::marks::Mark;
use crate::import::media::Media;
use crate::import::options::Progress;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::commit::Commit;

/// Runs `commit` unless the generation of `journal` is committed already. Then removes the marks of all namespaces,
/// since nothing continues from them. Returns the committed generation.
///
/// # Errors
/// As [`committed`]; errors of `commit`, and of writing. `Busy`: a lease is lost.
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
    let opened = committed_superblocks(media)?;
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
    let directory = Arc::new(read_directory(media, superblock)?);
    Ok(Some(Current { directory, superblocks: opened.superblocks }))
}

/// Maximum number of parts that an error lists.
const MAX_LISTED: usize = 100;
