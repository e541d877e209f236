//! Gives what only earlier generations read back to the file systems of image files: the last step of a
//! purge.
//!
//! The other superblock copies are declared void, then they are erased, and only then is space freed: whoever
//! still found the previous generation there would read wrong bytes. A kill may come between any two of these
//! steps; [`is_left`] tells the next purge, which goes on where that one stopped.

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

/// Gives everything back that the current generation does not read. The generation before goes with it:
/// otherwise the old chunks would have to stay.
pub(super) fn give_back(edit: &Edit) -> Result<()> {
    if !can_grow(edit) {
        return Ok(());
    }
    with_retry(edit.media.retry_budget(), || void_other_copy(edit))?;
    trim(&edit.media, &edit.current, &edit.lease)
}

/// Gives the file systems back what `current`, which is committed, does not read.
///
/// # Errors
/// Those of the file systems; `Busy`: the lease is lost.
pub(super) fn trim(media: &Media, current: &Current, lease: &Lease) -> Result<()> {
    let space = read_by(media, current);
    for (namespace, device) in (0..).zip(media.devices()) {
        let (unused, len_bytes) = unused(current.directory.layout(), &space, namespace);
        lease.check()?;
        device.trim(&unused, len_bytes)?;
    }
    Ok(())
}

/// Returns whether a file has space that should have been given back: a purge was killed before it came to that.
///
/// After an append or a delete, the cells that only the previous generation reads do not count: these few are not
/// worth that generation. Nothing counts while an import can be resumed, since its chunks lie in free cells.
pub(super) fn is_left(edit: &Edit) -> Result<bool> {
    if !can_grow(edit) || prepare::has_unfinished_import(&edit.media, &edit.current)? {
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

/// Returns whether a purge made this generation: no other command writes a chunk of which some samples are deleted.
fn is_of_purge(directory: &Directory) -> bool {
    (0..directory.num_chunks()).any(|chunk| {
        directory.chunk_id(chunk).generation == directory.generation()
            && directory.live_in_chunk(chunk) < directory.chunk(chunk).num_slots
    })
}

fn can_grow(edit: &Edit) -> bool {
    edit.media.devices().iter().any(|device| device.capabilities().can_grow)
}

/// All cells that a generation does not read are free.
fn read_by(media: &Media, Current { directory, superblocks }: &Current) -> Space {
    let mut space = Space::new(directory.layout(), &media.capacities());
    let snapshot = superblocks[0].snapshot_range();
    directory.cell_ranges().chain([snapshot]).for_each(|range| space.reserve(range));
    space
}

/// The free bytes of a namespace, and how long it has to be.
fn unused(layout: &ImageLayout, space: &Space, namespace: u16) -> (Vec<Range<u64>>, u64) {
    let bytes = |cell: u64| cell * layout.cell_bytes();
    let free = space.free_below_end(namespace);
    let free = free.map(|cells| bytes(cells.start)..bytes(cells.end)).collect();
    (free, bytes(space.end_cell(namespace)))
}

/// Says that the other superblock copies are void, and then erases them. What a killed purge did already is
/// not written again, but flushed: that purge may not have come to it.
fn void_other_copy(edit: &Edit) -> Result<()> {
    let Edit { media, lease, current } = edit;
    let mut channel = media.channel();
    let generation = current.directory.generation();
    let own = copy_index(generation);
    let other = 1 - copy_index(generation);
    let found = media.superblocks()?;
    let is_erased = |at: usize| matches!(found[at].copies[other], Err(FormatError::Blank { .. }));
    // Without any other copy there is nothing to declare: the first generation never had one.
    let none_is_there = (0..found.len()).all(is_erased);
    for (superblock, found) in current.superblocks.iter().zip(&found).rev() {
        let mut superblock = *superblock;
        superblock.optional_features |= OTHER_COPY_VOID;
        lease.check()?;
        // A bad copy is written too: soon it is the only one of its namespace.
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
