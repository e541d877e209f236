//! Deletes samples.
//!
//! A delete writes a record and a snapshot and changes no chunk; `purge.rs` frees the space of what is
//! deleted. Both create generations as an import does, and the previous one stays intact until the commit.

use std::sync::Arc;

use serde::Serialize;

use crate::import::commit;
use crate::import::device::{Meaning, open_image};
use crate::import::give_up::give_up_plan;
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::options::{EditOptions, ImportOptions, as_text};
use crate::import::prepare::{self, Current};
use crate::import::retry::with_retry;
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
    /// Samples that were deleted, or whose bytes were dropped.
    pub samples: u64,
    /// Live samples after the edit.
    pub live_samples: u64,
    /// Chunks written.
    pub chunks: u64,
    /// Bytes that can be reused two generations later.
    pub freed_bytes: u64,
}

/// Deletes the samples called `names`, as a new generation.
///
/// # Errors
/// `NotFound`: some names are not in the image; the message lists up to 20 of them, and nothing is deleted.
/// `Busy`: an import is running. `Refused`: a newer generation than the opened one may have been committed, and the
/// options do not accept its loss. Errors of opening and writing.
pub fn delete(
    image: &[Address],
    names: &[Vec<u8>],
    options: &EditOptions,
    connect: &ConnectOptions,
) -> Result<EditReport> {
    let devices = open_image(image, &writable(connect), Meaning::AllOfImage)?;
    delete_with(&devices, options, |directory| ids_of(directory, names))
}

/// Deletes the samples with `ids`, as a new generation. Samples that are deleted already count as there.
///
/// # Errors
/// `NotFound`: the image never had an id; nothing is deleted. Otherwise as [`delete`].
pub fn delete_ids(
    image: &[Address],
    ids: &[SampleId],
    options: &EditOptions,
    connect: &ConnectOptions,
) -> Result<EditReport> {
    let devices = open_image(image, &writable(connect), Meaning::AllOfImage)?;
    delete_with(&devices, options, |directory| known_ids(directory, ids))
}

/// As [`delete`] with the default options, on namespaces that are open.
///
/// # Errors
/// As [`delete`].
pub fn delete_on(devices: &[Arc<dyn Device>], names: &[Vec<u8>]) -> Result<EditReport> {
    delete_with(devices, &EditOptions::default(), |directory| ids_of(directory, names))
}

fn ids_of(directory: &Directory, names: &[Vec<u8>]) -> Result<Vec<SampleId>> {
    let mut ids = Vec::with_capacity(names.len());
    let mut missing = Missing::default();
    for name in names {
        match directory.lookup(name)? {
            Some(id) => ids.push(id),
            None => missing.note(|| name.escape_ascii().to_string()),
        }
    }
    missing.none("called")?;
    Ok(ids)
}

fn known_ids(directory: &Directory, ids: &[SampleId]) -> Result<Vec<SampleId>> {
    let mut missing = Missing::default();
    for id in ids.iter().filter(|id| id.0 >= directory.num_samples()) {
        missing.note(|| id.to_string());
    }
    missing.none("with id")?;
    Ok(ids.to_vec())
}

/// Samples that were asked for and are not there: a few examples, and their number.
#[derive(Default)]
struct Missing {
    shown: Vec<String>,
    count: usize,
}

impl Missing {
    fn note(&mut self, what: impl FnOnce() -> String) {
        if self.count < MOST_SHOWN {
            self.shown.push(what());
        }
        self.count += 1;
    }

    fn none(self, how: &str) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let shown = self.shown.join(", ");
        let message = match self.count - self.shown.len() {
            0 => format!("the image has no samples {how} {shown}"),
            more => format!("the image has no samples {how} {shown} and {more} more"),
        };
        Err(Error::new(ErrorKind::NotFound, message))
    }
}

/// How many missing samples an error lists.
const MOST_SHOWN: usize = 20;

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
    let result = with_retry(edit.media.retry_budget(), || {
        edit.commit(directory.clone(), &mut edit.free_space(), samples)
    });
    edit.lease.explain(result)
}

pub(super) fn writable(connect: &ConnectOptions) -> ConnectOptions {
    ConnectOptions { writable: true, ..connect.clone() }
}

/// An edit of an image in progress.
pub(super) struct Edit {
    pub(super) media: Media,
    pub(super) lease: Lease,
    pub(super) current: Current,
}

impl Edit {
    pub(super) fn begin(devices: &[Arc<dyn Device>], options: &EditOptions) -> Result<Edit> {
        let media = prepare::in_image_order(&Media::new(devices.to_vec())?)?;
        let lease = Lease::take(&media, ImportOptions::default().lease)?;
        let (media, current) = prepare::open_current(&media, options.accept_older_generation)?;
        give_up_plan(&media, &current.directory, ImportOptions::default().lease)?;
        Ok(Edit { media, lease, current })
    }

    pub(super) fn next_generation(&self) -> Generation {
        Generation(self.current.directory.generation().0 + 1)
    }

    pub(super) fn time_ns(&self) -> u64 {
        prepare::time_ns(None).max(self.current.directory.time_ns())
    }

    pub(super) fn free_space(&self) -> Space {
        prepare::free_space(&self.media, self.current.directory.layout(), Some(&self.current))
    }

    fn commit(&self, directory: Directory, space: &mut Space, samples: u64) -> Result<EditReport> {
        let cell_bytes = directory.layout().cell_bytes();
        let freed_bytes = directory.freed().iter().map(|range| range.cells * cell_bytes).sum();
        let commit = commit::prepare(&self.media, directory, space)?;
        commit::write(&self.media, &self.lease, &commit)?;
        Ok(EditReport {
            uuid: commit.directory.uuid(),
            generation: commit.directory.generation(),
            samples,
            live_samples: commit.directory.num_live(),
            chunks: 0,
            freed_bytes,
        })
    }
}
