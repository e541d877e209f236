//! Saves a snapshot of the directory to a file, and verifies such a file. With it, an image can be opened without
//! reading the snapshot from the target.

use std::path::Path;

use serde::Serialize;

use crate::import::device::{Meaning, open_image};
use crate::import::media::Media;
use crate::import::prepare;
use dlfs_base::replace_file::{NewMode, replace_file};
use dlfs_base::units::Generation;
use dlfs_base::{Error, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::superblock_set::saved_at_another_generation;
use dlfs_format::format::{FormatError, Superblock};
use dlfs_io::address::Address;
use dlfs_io::qpair::ConnectOptions;

/// A snapshot that was saved, or found to be current.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotReport {
    /// The generation of the snapshot.
    pub generation: Generation,
    /// Live samples in the snapshot.
    pub live_samples: u64,
    /// Length of the snapshot in bytes.
    pub len_bytes: u64,
}

/// Writes the directory of `image` to `file`, atomically.
///
/// # Errors
/// Errors of opening the image, and of the file.
pub fn snapshot_save(
    image: &[Address],
    file: &Path,
    connect: &ConnectOptions,
) -> Result<SnapshotReport> {
    let (media, superblock) = open(image, connect)?;
    let directory = prepare::read_directory(&media, &superblock)?;
    let bytes = directory.to_snapshot()?;
    replace_file(file, NewMode::ByUmask, &bytes)?;
    Ok(report(&directory, bytes.len()))
}

/// Verifies that `file` is a snapshot of the current state of `image`.
///
/// # Errors
/// `Stale`: the image has another generation now. `InvalidArgument`: the snapshot belongs to another image.
/// `Corrupt`: the snapshot is damaged. Errors of opening the image.
pub fn snapshot_check(
    image: &[Address],
    file: &Path,
    connect: &ConnectOptions,
) -> Result<SnapshotReport> {
    let (_, superblock) = open(image, connect)?;
    let bytes = std::fs::read(file).map_err(|error| Error::from(error).path(file))?;
    let len = bytes.len();
    let damaged = |error: FormatError| Error::from(error).path(file);
    let directory = Directory::from_snapshot(bytes).map_err(damaged)?;
    match directory.check_current(&superblock) {
        Ok(()) => Ok(report(&directory, len)),
        Err(error @ FormatError::OtherImage { .. }) => Err(damaged(error)),
        Err(_) => {
            let saved = directory.generation();
            let opened = superblock.generation;
            Err(saved_at_another_generation(saved, opened).path(file))
        }
    }
}

fn open(image: &[Address], connect: &ConnectOptions) -> Result<(Media, Superblock)> {
    let media = Media::for_reading(open_image(image, connect, Meaning::OfImage)?)?;
    let opened = prepare::opened(&media)?;
    Ok((media.in_order(&opened.given), *opened.superblock()))
}

fn report(directory: &Directory, len: usize) -> SnapshotReport {
    SnapshotReport {
        generation: directory.generation(),
        live_samples: directory.num_live(),
        len_bytes: len as u64,
    }
}
