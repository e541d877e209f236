//! Gives up what the namespaces hold: an image, the other superblock copies, or the plan of an append.

use std::time::Duration;

use crate::import::committed::select_now;
use crate::import::journal::{JOURNAL_OFFSET, Journal};
use crate::import::lease::Lease;
use crate::import::marks::Mark;
use crate::import::media::Media;
use dlfs_base::Result;
use dlfs_format::directory::Directory;
use dlfs_format::format::superblock::{
    COPY_OFFSETS, OTHER_COPY_VOID, SUPERBLOCK_BYTES, copy_index,
};
use dlfs_format::format::{FormatError, Superblock};

/// Erases superblocks and journals, so that the namespaces hold no image. The copies of the committed generation
/// are erased last, so the image stays usable until then. If they were erased first, a power loss could make
/// the previous generation current.
///
/// # Errors
/// Errors of reading and writing.
pub(super) fn discard_image(media: &Media) -> Result<()> {
    if let Ok(opened) = select_now(media)? {
        void_other_copy(&media.in_order(&opened.given), &opened.superblocks)?;
    }
    let mut channel = media.channel();
    for blocks in [&[JOURNAL_OFFSET][..], &COPY_OFFSETS] {
        for namespace in 0..media.len() {
            let len = media.len_bytes(namespace);
            for &at in blocks.iter().filter(|at| **at + SUPERBLOCK_BYTES as u64 <= len) {
                channel.zero(namespace, at, SUPERBLOCK_BYTES as u64)?;
            }
            channel.flush(namespace)?;
        }
    }
    Ok(())
}

/// Declares the other copies of the committed `superblocks` void, then erases them: they count as erased, not as a lost
/// newer generation. Steps that a killed process completed are not written again, but flushed: it may have been killed
/// before its flush.
///
/// # Errors
/// Errors of reading and writing.
pub(super) fn void_other_copy(media: &Media, superblocks: &[Superblock]) -> Result<()> {
    let mut channel = media.channel();
    let generation = superblocks[0].generation;
    let current = copy_index(generation);
    let other = 1 - current;
    let found = media.superblocks()?;
    let is_erased = |at: usize| matches!(found[at].copies[other], Err(FormatError::Blank { .. }));
    // If no other copy exists, there is nothing to declare: the first generation never had one.
    let none_is_there = (0..found.len()).all(is_erased);
    for (superblock, found) in superblocks.iter().zip(&found).rev() {
        let mut superblock = *superblock;
        superblock.optional_features |= OTHER_COPY_VOID;
        // A bad copy is written too: it will be the only copy of its namespace.
        if !none_is_there && found.copies[current] != Ok(superblock) {
            let block = superblock.encode();
            channel.write_bytes(superblock.namespace, COPY_OFFSETS[current], &block)?;
        }
        channel.flush(superblock.namespace)?;
    }
    for namespace in 0..media.len() {
        if !is_erased(usize::from(namespace)) {
            channel.zero(namespace, COPY_OFFSETS[other], SUPERBLOCK_BYTES as u64)?;
        }
        channel.flush(namespace)?;
    }
    Ok(())
}

/// Removes the marks of a plan that appends to the generation `current`, so that no part of the plan writes any
/// more. The caller holds the lease of the image; those of other marked namespaces are taken, for `limit`.
///
/// # Errors
/// `Busy`: a part is being imported, on a namespace without an exclusive lock. Errors of reading and writing.
pub(super) fn give_up_plan(media: &Media, current: &Directory, limit: Duration) -> Result<()> {
    let mut channel = media.channel();
    let mut marked = Vec::new();
    for (namespace, device) in (0..).zip(media.devices.iter()) {
        if Mark::read(&mut channel, namespace)?.is_none() {
            continue;
        }
        let journal = Journal::read(&mut channel, namespace)?;
        // Otherwise the plan is committed, and its commit was killed before it removed the mark.
        if journal.is_some_and(|journal| journal.is_next(current)) {
            // The caller holds the lease of namespace 0.
            let alone = Media::new(vec![device.clone()])?;
            let lease = (namespace > 0).then(|| Lease::take(&alone, limit)).transpose()?;
            marked.push((namespace, lease));
        }
    }
    if !marked.is_empty() {
        tracing::warn!("an append that was planned for several processes is given up");
    }
    // A part that begins later finds no mark, and is refused.
    marked.iter().try_for_each(|(namespace, _)| Mark::remove(&mut channel, *namespace))
}
