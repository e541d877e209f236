//! The return of space to the file systems of image files.
//!
//! A purge, and a commit by many processes, leave cells that only earlier generations or abandoned attempts use. A
//! purge first declares the other superblock copies void, then erases them; only then is space freed. Otherwise a
//! reader might find the previous generation in such a copy and read wrong bytes. The process may be killed between
//! any two of these steps: [`is_trim_left`] tells the next purge to continue.

use std::ops::Range;

use crate::import::committed::Current;
use crate::import::discard::void_other_copy;
use crate::import::edit::Edit;
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::prepare::has_unfinished_import;
use dlfs_base::Result;
use dlfs_format::directory::Directory;
use dlfs_format::format::{ImageLayout, Space};

/// Ends a purge: makes the previous generation unreadable, then frees all space that the current generation does not
/// read. Does nothing if no namespace is a file that can grow.
///
/// # Errors
/// Errors of writing. As [`trim`].
pub(super) fn trim_after_purge(edit: &Edit) -> Result<()> {
    if !edit.media.can_grow() {
        return Ok(());
    }
    let Edit { media, current, .. } = edit;
    media.retry_budget.retry(|| void_other_copy(media, &current.superblocks))?;
    trim(media, current, &edit.lease)
}

/// Frees the space that `current`, a committed generation, does not read.
///
/// # Errors
/// Errors of the file systems. `Busy`: the lease is lost.
pub(super) fn trim(media: &Media, current: &Current, lease: &Lease) -> Result<()> {
    let space = read_by(media, current);
    for (namespace, device) in (0..).zip(media.devices.iter()) {
        let (unused, len_bytes) = unused(current.directory.layout(), &space, namespace);
        lease.check()?;
        device.trim(&unused, len_bytes)?;
    }
    Ok(())
}

/// Returns whether a file has space that a killed purge has not freed.
///
/// After an append or a delete, cells that only the previous generation reads do not count: they are few, and freeing
/// them would destroy that generation. While an import can be resumed, the answer is false, since the chunks of that
/// import are in free cells.
///
/// # Errors
/// Errors of reading, and of the file systems.
pub(super) fn is_trim_left(edit: &Edit) -> Result<bool> {
    if !edit.media.can_grow() || has_unfinished_import(&edit.media, &edit.current)? {
        return Ok(false);
    }
    let space = if is_of_purge(&edit.current.directory) {
        read_by(&edit.media, &edit.current)
    } else {
        edit.free_space()
    };
    for (namespace, device) in (0..).zip(edit.media.devices.iter()) {
        let (unused, len_bytes) = unused(edit.current.directory.layout(), &space, namespace);
        if device.can_trim(&unused, len_bytes)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a purge made this generation. Only a purge writes chunks with deleted samples.
fn is_of_purge(directory: &Directory) -> bool {
    (0..directory.num_chunks()).any(|chunk| {
        directory.chunk_id(chunk).generation == directory.generation()
            && directory.live_in_chunk(chunk) < directory.chunk(chunk).num_slots
    })
}

/// The space of the image in which every cell that the generation does not read is free.
fn read_by(media: &Media, Current { directory, superblocks }: &Current) -> Space {
    let mut space = Space::new(directory.layout(), &media.capacities());
    let snapshot = superblocks[0].snapshot_range();
    directory.cell_ranges().chain([snapshot]).for_each(|range| space.reserve(range));
    space
}

/// The free byte ranges of a namespace, and the length in bytes that its data need.
fn unused(layout: &ImageLayout, space: &Space, namespace: u16) -> (Vec<Range<u64>>, u64) {
    let bytes = |cell: u64| cell * layout.cell_bytes();
    let free = space.free_below_end(namespace);
    let free = free.map(|cells| bytes(cells.start)..bytes(cells.end)).collect();
    (free, bytes(space.end_cell(namespace)))
}
