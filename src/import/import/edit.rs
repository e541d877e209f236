//! Deletion of samples, and the state that it shares with a purge.
//!
//! A delete writes a snapshot without the deleted samples, and changes no chunk. `purge.rs` frees the space of
//! deleted samples. Both create generations as an import does, and the current generation stays intact until the next
//! one is committed.

use std::fmt::Display;
use std::sync::Arc;

use serde::Serialize;

use crate::import::commit;
use crate::import::committed::{Current, free_space, open_current};
use crate::import::device::{Meaning, open_image};
use crate::import::discard::give_up_plan;
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::options::{EditOptions, ImportOptions, as_text};
use crate::import::prepare::{in_image_order, time_ns};
use dlfs_base::units::{Generation, SampleId};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::{Space, Uuid};
use dlfs_io::address::Address;
use dlfs_io::qpair::{ConnectOptions, Device};

/// The result of a delete or purge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EditReport {
    /// The image.
    #[serde(serialize_with = "as_text")]
    pub uuid: Uuid,
    /// Its generation after the edit.
    pub generation: Generation,
    /// Number of samples that were deleted, or whose bytes were dropped.
    pub samples: u64,
    /// Live samples after the edit.
    pub live_samples: u64,
    /// Chunks written.
    pub chunks: u64,
    /// Bytes that become reusable two generations later.
    pub freed_bytes: u64,
}

impl EditReport {
    /// The report of an edit that changed nothing.
    pub(super) fn of(directory: &Directory) -> EditReport {
        EditReport {
            uuid: directory.uuid(),
            generation: directory.generation(),
            samples: 0,
            live_samples: directory.num_live(),
            chunks: 0,
            freed_bytes: 0,
        }
    }
}

/// Deletes the samples with the names `names`, as a new generation.
///
/// # Errors
/// `NotFound`: some names are not in the image; the message lists up to 20 of them, and nothing is deleted.
/// `Busy`: an import is running. `Refused`: a newer generation than the opened one may have been committed, and
/// the options do not accept its loss. Errors of opening and writing.
pub fn delete(
    image: &[Address],
    names: &[Vec<u8>],
    options: &EditOptions,
    connect: &ConnectOptions,
) -> Result<EditReport> {
    let devices = open_image(image, connect, Meaning::AllOfImage)?;
    delete_with(&devices, options, |directory| ids_of(directory, names))
}

/// Deletes the samples with `ids`, as a new generation. Ids of deleted samples are allowed.
///
/// # Errors
/// `NotFound`: the image never had one of the ids; nothing is deleted. Otherwise as [`delete`].
pub fn delete_ids(
    image: &[Address],
    ids: &[SampleId],
    options: &EditOptions,
    connect: &ConnectOptions,
) -> Result<EditReport> {
    let devices = open_image(image, connect, Meaning::AllOfImage)?;
    delete_with(&devices, options, |directory| known_ids(directory, ids))
}

/// Same as [`delete`] with the default options, for open namespaces.
///
/// # Errors
/// As [`delete`].
pub fn delete_on(devices: &[Arc<dyn Device>], names: &[Vec<u8>]) -> Result<EditReport> {
    delete_with(devices, &EditOptions::default(), |directory| ids_of(directory, names))
}

/// The ids of the samples with these names, all of which must exist.
fn ids_of(directory: &Directory, names: &[Vec<u8>]) -> Result<Vec<SampleId>> {
    let mut ids = Vec::with_capacity(names.len());
    let mut missing = Vec::new();
    for name in names {
        match directory.lookup(name)? {
            Some(id) => ids.push(id),
            None => missing.push(name.escape_ascii()),
        }
    }
    none_missing(&missing, "called")?;
    Ok(ids)
}

/// Returns `ids`, all of which the image must have or have had.
fn known_ids(directory: &Directory, ids: &[SampleId]) -> Result<Vec<SampleId>> {
    let missing: Vec<_> = ids.iter().filter(|id| id.0 >= directory.num_samples()).collect();
    none_missing(&missing, "with id")?;
    Ok(ids.to_vec())
}

/// Refuses an edit of samples that the image does not have. `how` says how the user named them.
fn none_missing(missing: &[impl Display], how: &str) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("the image has no samples {how} {}", listed(missing, MOST_SHOWN));
    Err(Error::new(ErrorKind::NotFound, message))
}

/// Lists the first `most` elements, and counts the others.
pub(super) fn listed(all: &[impl Display], most: usize) -> String {
    let shown: Vec<String> = all.iter().take(most).map(ToString::to_string).collect();
    let shown = shown.join(", ");
    if all.len() > most { format!("{shown} and {} more", all.len() - most) } else { shown }
}

/// Maximum number of missing samples that an error lists.
const MOST_SHOWN: usize = 20;

/// Deletes the samples that `select` returns for the current directory.
fn delete_with(
    devices: &[Arc<dyn Device>],
    options: &EditOptions,
    select: impl FnOnce(&Directory) -> Result<Vec<SampleId>>,
) -> Result<EditReport> {
    let edit = Edit::begin(devices, options)?;
    let old = &edit.current.directory;
    let ids = select(old)?;
    let mut directory = old.with_deleted(&ids, edit.next_generation(), edit.time_ns())?;
    directory.set_freed(edit.current.freed(directory.cell_ranges()));
    let samples = old.num_live() - directory.num_live();
    let result = edit
        .media
        .retry_budget
        .retry(|| edit.commit(directory.clone(), &mut edit.free_space(), samples));
    edit.lease.explain(result)
}

/// An edit of an image in progress.
pub(super) struct Edit {
    /// The namespaces, in the image's order.
    pub(super) media: Media,
    pub(super) lease: Lease,
    pub(super) current: Current,
}

impl Edit {
    /// Takes the lease, opens the current generation, and gives up the plan of an append to it.
    ///
    /// # Errors
    /// `Busy`: an import is running. `Refused`: as for [`delete`]. Errors of reading and writing.
    pub(super) fn begin(devices: &[Arc<dyn Device>], options: &EditOptions) -> Result<Edit> {
        let media = in_image_order(&Media::new(devices.to_vec())?)?;
        let lease = Lease::take(&media, ImportOptions::default().lease)?;
        let (media, current) = open_current(&media, options.accept_older_generation)?;
        give_up_plan(&media, &current.directory, ImportOptions::default().lease)?;
        Ok(Edit { media, lease, current })
    }

    /// The generation that the edit makes.
    pub(super) fn next_generation(&self) -> Generation {
        Generation(self.current.directory.generation().0 + 1)
    }

    /// The time stamp of the edit, in ns since 1970: now, but not before that of the current generation.
    pub(super) fn time_ns(&self) -> u64 {
        time_ns(None).max(self.current.directory.time_ns())
    }

    /// The cells that the edit may write.
    pub(super) fn free_space(&self) -> Space {
        free_space(&self.media, self.current.directory.layout(), Some(&self.current))
    }

    /// Commits `directory`, and returns the report of an edit of `samples` samples.
    fn commit(&self, directory: Directory, space: &mut Space, samples: u64) -> Result<EditReport> {
        let cell_bytes = directory.layout().cell_bytes();
        let freed_bytes = directory.freed().iter().map(|range| range.cells * cell_bytes).sum();
        let leases = std::slice::from_ref(&self.lease);
        let commit = commit::commit(&self.media, leases, directory, space)?;
        Ok(EditReport { samples, freed_bytes, ..EditReport::of(&commit.directory) })
    }
}
