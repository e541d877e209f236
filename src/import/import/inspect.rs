//! Inspects a committed image without changing it: its snapshot, and its orphans.
//!
//! A snapshot can be saved to a file, with which the image opens without reading the snapshot from the target. Orphans
//! are cells with data that belong to no generation, such as those left by a killed import.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::import::committed::{committed_superblocks, read_directory};
use crate::import::device::{Meaning, open_image};
use crate::import::media::Media;
use crate::import::scan::cells_until;
use dlfs_base::replace_file::{NewMode, replace_file};
use dlfs_base::units::Generation;
use dlfs_base::{Error, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::space::without;
use dlfs_format::format::superblock_set::saved_at_another_generation;
use dlfs_format::format::{CellRange, FormatError, Superblock};
use dlfs_io::address::Address;
use dlfs_io::qpair::{ConnectOptions, Device};

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
    let directory = read_directory(&media, &superblock)?;
    let bytes = directory.to_snapshot()?;
    replace_file(file, NewMode::ByUmask, &bytes)?;
    Ok(report(&directory, bytes.len()))
}

/// Verifies that `file` is a snapshot of the current state of `image`.
///
/// # Errors
/// `Stale`: the image has another generation now. `InvalidArgument`: the snapshot belongs to another image.
/// `Corrupt`: the snapshot is damaged. Errors of opening the image, and of reading `file`.
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
        // In a snapshot of the same image, any other difference means another generation. It may even have the same
        // number: after --accept-older-generation, the number of a lost generation is used again.
        Err(_) => {
            let saved = directory.generation();
            let opened = superblock.generation;
            Err(saved_at_another_generation(saved, opened).path(file))
        }
    }
}

/// Opens the namespaces at `image`, as [`on_devices`].
fn open(image: &[Address], connect: &ConnectOptions) -> Result<(Media, Superblock)> {
    on_devices(open_image(image, connect, Meaning::OfImage)?)
}

/// The namespaces `devices` in the image's order, and the superblock of namespace 0.
fn on_devices(devices: Vec<Arc<dyn Device>>) -> Result<(Media, Superblock)> {
    let media = Media::for_reading(devices)?;
    let opened = committed_superblocks(&media)?;
    Ok((media.in_order(&opened.given), *opened.superblock()))
}

fn report(directory: &Directory, len: usize) -> SnapshotReport {
    SnapshotReport {
        generation: directory.generation(),
        live_samples: directory.num_live(),
        len_bytes: len as u64,
    }
}

/// Returns the cells that are not all zero and that belong neither to the newest generation (chunks, record,
/// snapshot) nor to the previous one (the cells that the newest one freed). These cells are free: the next
/// import may write there.
///
/// Reads all free cells of the namespaces, which takes long on large ones. Use it in tests, or on files, which are no
/// longer than their image.
///
/// # Errors
/// Errors of opening the image, and of reading.
pub fn orphans_on(devices: &[Arc<dyn Device>]) -> Result<Vec<CellRange>> {
    let (media, superblock) = on_devices(devices.to_vec())?;
    let directory = read_directory(&media, &superblock)?;
    let layout = superblock.layout;
    let all = cells_until(&layout, media.num_cells(&layout));
    let in_use = directory.cell_ranges().chain([superblock.snapshot_range()]);
    let free = without(all, in_use.chain(directory.freed().iter().copied()));
    let mut channel = media.channel();
    let mut found = Vec::new();
    let one_by_one = free.into_iter().flat_map(|range| {
        (range.cell..range.cell + range.cells).map(move |cell| (range.namespace, cell))
    });
    for (namespace, cell) in one_by_one {
        let len_bytes = media.len_bytes(namespace);
        let start = layout.offset_of(cell)?;
        let len = layout.cell_bytes().min(len_bytes.saturating_sub(start));
        if len > 0 && channel.read(namespace, start, len as usize)?.iter().any(|byte| *byte != 0) {
            found.push(CellRange { namespace, cell, cells: 1 });
        }
    }
    Ok(found)
}
