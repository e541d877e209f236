//! Returns space to the file systems of the image files: space that only earlier generations use. The last step
//! of a purge.
//!
//! The other superblock copies are first declared void, then erased; only then is space freed. Otherwise a
//! reader might find the previous generation in such a copy and read wrong bytes. The process may be killed
//! between any two of these steps. [`is_left`] tells the next purge to continue.

use std::ops::Range;

use crate::import::edit::Edit;
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::prepare::{self, Current};
use crate::import::retry::with_retry;
use dlfs_base::Result;
use dlfs_base::units::Generation;
use dlfs_format::directory::Directory;
use dlfs_format::format::superblock::{OTHER_COPY_VOID, SUPERBLOCK_BYTES, copy_index, copy_offset};
use dlfs_format::format::{FormatError, ImageLayout, Space};

/// Frees all space that the current generation does not read. This destroys the previous generation: otherwise
/// its old chunks would have to stay.
pub(super) fn give_back(edit: &Edit) -> Result<()> {
    if !edit.media.can_grow() {
        return Ok(());
    }
    with_retry(edit.media.retry_budget(), || void_other_copy(edit))?;
    trim(&edit.media, &edit.current, &edit.lease)
}

/// Frees the space that `current`, a committed generation, does not read.
///
/// # Errors
/// Errors of the file systems. `Busy`: the lease is lost.
pub(super) fn trim(media: &Media, current: &Current, lease: &Lease) -> Result<()> {
    let space = read_by(media, current);
    for (namespace, device) in (0..).zip(media.devices()) {
        let (unused, len_bytes) = unused(current.directory.layout(), &space, namespace);
        lease.check()?;
        device.trim(&unused, len_bytes)?;
    }
    Ok(())
}

/// Returns whether a file has space that a purge should have freed: that purge was killed earlier.
///
/// After an append or a delete, the cells that only the previous generation reads do not count: they are few,
/// and freeing them would destroy that generation. While an import can be resumed, the answer is false, since
/// its chunks are in free cells.
pub(super) fn is_left(edit: &Edit) -> Result<bool> {
    if !edit.media.can_grow() || prepare::has_unfinished_import(&edit.media, &edit.current)? {
        return Ok(false);
    }
    let space = if is_of_purge(&edit.current.directory) {
        read_by(&edit.media, &edit.current)
    } else {
        edit.free_space()
    };
    for (namespace, device) in (0..).zip(edit.media.devices()) {
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

/// The free byte ranges of a namespace, and the length that it needs.
fn unused(layout: &ImageLayout, space: &Space, namespace: u16) -> (Vec<Range<u64>>, u64) {
    let bytes = |cell: u64| cell * layout.cell_bytes();
    let free = space.free_below_end(namespace);
    let free = free.map(|cells| bytes(cells.start)..bytes(cells.end)).collect();
    (free, bytes(space.end_cell(namespace)))
}

/// Declares the other superblock copies void, then erases them. Steps that a killed purge completed are not
/// written again, but flushed: that purge may have been killed before its flush.
fn void_other_copy(edit: &Edit) -> Result<()> {
    let Edit { media, lease, current } = edit;
    let mut channel = media.channel();
    let generation = current.directory.generation();
    let own = copy_index(generation);
    let other = 1 - copy_index(generation);
    let found = media.superblocks()?;
    let is_erased = |at: usize| matches!(found[at].copies[other], Err(FormatError::Blank { .. }));
    // If no other copy exists, there is nothing to declare: the first generation never had one.
    let none_is_there = (0..found.len()).all(is_erased);
    for (superblock, found) in current.superblocks.iter().zip(&found).rev() {
        let mut superblock = *superblock;
        superblock.optional_features |= OTHER_COPY_VOID;
        lease.check()?;
        // A bad copy is written too: it will be the only copy of its namespace.
        if !none_is_there && found.copies[own] != Ok(superblock) {
            let block = superblock.encode();
            channel.write_bytes(superblock.namespace, copy_offset(generation), &block)?;
        }
        channel.flush(superblock.namespace)?;
    }
    let offset = copy_offset(Generation(generation.0 - 1));
    for namespace in 0..media.len() {
        lease.check()?;
        if !is_erased(usize::from(namespace)) {
            channel.zero(namespace, offset, SUPERBLOCK_BYTES as u64)?;
        }
        channel.flush(namespace)?;
    }
    Ok(())
}
