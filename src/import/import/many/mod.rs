//! One import by many processes, on up to as many hosts as there are namespaces.
//!
//! # What it is
//! A *plan* prepares the namespaces and holds the data that all parts share. A *part* writes chunks onto one
//! namespace. The *commit* makes the parts one generation. There are two kinds of parts:
//!
//! - Parts from sources: [`plan_import`] indexes the sources and lays out all chunks. A part ([`import_part`])
//!   reads its rows of the plan piece by piece; with shuffled placement, its samples are a random subset of the
//!   source. [`commit_import`] reads the headers of all chunks. The image is byte for byte the one that a
//!   single import or append would have made.
//! - Parts from programs that do not know each other's number of samples: a [`PartWriter`] writes a part of any
//!   length after the complete parts on its namespace. Its chunks number ids and slots from 0.
//!   [`WritePlan::commit`] concatenates the parts: it reads the header of each chunk, and rewrites the chunk's
//!   head. Samples are neither moved nor read.
//!
//! # What it is not
//! It starts no processes: `srun`, MPI, a Kubernetes job or a shell do that. It keeps no state outside the plan
//! and the namespaces. If a program tries a part several times, the caller chooses an attempt by its
//! [`WrittenPart`]; by default the last complete attempt counts.
//!
//! # Invariants
//! - A part holds only the lease of its own namespace, and writes nowhere else. The commit of written parts
//!   holds the leases of all namespaces, the commit of parts from sources that of namespace 0.
//! - A part may be retried any number of times. A part from a source finds the chunks that are on the namespace
//!   already. The cells of a part from a program count as free until the mark names its record. From then to the
//!   commit, nothing overwrites them.
//! - A part counts as complete only by the mark of its namespace (`../marks.rs`), which is written when all chunks
//!   are durable. The mark of written parts names the last of their records.
//! - Until the commit, chunks of written parts have the plan's id in place of the image's UUID, so a rebuild does
//!   not take abandoned attempts for samples of the image. The commit rewrites their heads. A head lies in one
//!   block, and only its first 128 bytes change. The new head depends only on data that the record covers, so
//!   rewriting it twice gives the same bytes.
//! - A plan to append has a mark on each namespace from the beginning. Any other change of the image removes
//!   the marks (`../discard.rs`), under the lease of each namespace, so no part writes to cells that this change
//!   uses.
//!
//! [`filling`] writes shards while they are read for training, without a plan.
//!
//! This file has the steps that all three kinds of commit share: `commit_once` and the checks before it.
//!
//! Read `plan_file.rs` first; then `sourced.rs` for parts from sources, and for parts from programs `write_plan.rs`,
//! `part_writer.rs` and `written.rs`.

pub mod filling;
mod part_writer;
mod plan_file;
mod source_plan;
mod sourced;
mod write_plan;
mod written;

use std::sync::Arc;

pub use part_writer::{Output, PartPlace, PartWriter};
pub use sourced::{PartReport, PlanReport, commit_import, import_part, plan_import};
pub use write_plan::WritePlan;

use crate::import::committed::{Current, committed_superblocks, read_directory};
use crate::import::edit::listed;
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::marks::Mark;
use crate::import::media::Media;
use crate::import::options::Progress;
pub use crate::import::written_part::WrittenPart;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::commit::Commit;

/// Runs `commit` unless the generation of `journal` is committed already. Then removes the marks of all namespaces,
/// since nothing continues from them. Returns the committed generation.
///
/// # Errors
/// As [`committed`]; errors of `commit`, and of writing. `Busy`: a lease is lost.
fn commit_once(
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
fn check_stop(progress: &mut dyn Progress) -> Result<()> {
    if !progress.stop() {
        return Ok(());
    }
    let text = "the commit was stopped before it changed anything that a reader sees";
    Err(Error::new(ErrorKind::Interrupted, text).hint("run it again"))
}

/// Refuses to commit while parts are missing. The error lists the first hundred.
fn all_complete(missing: &[u64], hint: &'static str) -> Result<()> {
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
