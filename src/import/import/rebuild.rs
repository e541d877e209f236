//! Rebuilds the directory from chunk headers, if its snapshot or the superblocks are lost.
//!
//! `remains.rs` finds the heads of chunks, selects the chunks of a generation, and reads their headers. The directory
//! that results is committed again as the same generation, so that training runs continue.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::Serialize;

use crate::import::commit;
use crate::import::device::{Meaning, open_image};
use crate::import::discard::give_up_plan;
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::options::{ImportOptions, Progress, Stage, as_text};
use crate::import::prepare::order_of;
use crate::import::remains::Remains;
use crate::import::scan::{BLOCK_BYTES, each_block};
use dlfs_base::units::Generation;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::chunk::ChunkId;
use dlfs_format::format::superblock::{
    COPY_OFFSETS, OTHER_COPY_VOID, SUPERBLOCK_BYTES, copy_index,
};
use dlfs_format::format::superblock_set::{SuperblockCopies, select_generation};
use dlfs_format::format::{ChunkHead, FormatError, ImageLayout, Superblock, Uuid};
use dlfs_io::address::Address;
use dlfs_io::qpair::{ConnectOptions, Device};

/// The result of a rebuild.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RebuildReport {
    /// The image.
    #[serde(serialize_with = "as_text")]
    pub uuid: Uuid,
    /// The generation that was rebuilt.
    pub generation: Generation,
    /// Live samples.
    pub live_samples: u64,
    /// Samples whose chunk was not found.
    pub lost_samples: u64,
    /// Chunk headers that were read.
    pub chunks: u64,
    /// Chunk heads that do not belong to the generation: replaced, or never committed.
    pub unused_chunks: u64,
    /// Cells outside the found chunks that cannot be read. A chunk that begins in such a cell is lost.
    pub unreadable_cells: u64,
    /// Number of bad superblock copies that were repaired.
    pub mended_copies: u64,
    /// Set if the generation's record or snapshot was found, which holds the deletions and the class names.
    /// Without either, deleted samples are live again, and classes have no names.
    pub deletions_known: bool,
    /// The generation whose directory supplied the older chunks. `None`: all headers were read.
    pub base: Option<Generation>,
}

/// Rebuilds the directory of `image` from its chunk headers, and commits it.
///
/// The result is the generation that the superblocks commit. But if a bad copy may have committed a newer
/// generation, that generation's record exists, and it has lost no more samples, the result is the newer one.
/// This completes an interrupted commit: all data of a generation is durable before its superblock is written.
/// If no superblock of namespace 0 is valid, the result is the newest generation whose record is intact; without any
/// record, the newest one.
///
/// If the record of the committed generation is damaged, its snapshot is used, which has the same information.
/// Without either, deleted samples become live again.
///
/// With `since`, the directory of that generation or of an earlier one supplies the older chunks, and only
/// chunks of later generations are searched. If no such directory can be read, the headers of all chunks are
/// read.
///
/// # Errors
/// `NotFound`: there is no chunk of an image. `InvalidArgument`: the namespaces are not one complete image, or
/// there is no generation `since` yet. `Corrupt`: with `since`, the record of the committed generation is
/// missing. `Busy`: an import is running.
pub fn rebuild(
    image: &[Address],
    since: Option<Generation>,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<RebuildReport> {
    let devices = open_image(image, connect, Meaning::AllOfImage)?;
    rebuild_on(&devices, since, progress)
}

/// Same as [`rebuild`], for open namespaces.
///
/// # Errors
/// As [`rebuild`].
pub fn rebuild_on(
    devices: &[Arc<dyn Device>],
    since: Option<Generation>,
    progress: &mut dyn Progress,
) -> Result<RebuildReport> {
    let (media, layout) = identify(&Media::new(devices.to_vec())?)?;
    let lease = Lease::take(&media, ImportOptions::default().lease)?;
    let mut remains = Remains::read(media, layout)?;
    remains.superblocks().try_for_each(Superblock::check_writable)?;
    remains.base = since.map(|since| remains.base_of(since)).transpose()?.flatten();
    let (scan, found) = remains.search(progress)?;
    let Remains { media, copies, base, .. } = &remains;
    progress.stage(Stage::Committing, 0, 0);
    lease.explain(give_up_plan(media, &found.directory, ImportOptions::default().lease))?;
    let result = media.retry_budget.retry(|| {
        // Snapshots that superblocks name are current until the commit, and chunks of older generations stay. With a
        // base, the scan has not read the heads of the base's chunks; the directory has the cells of these chunks.
        let mut space = remains.free_space(&scan, &found.directory, |_| true);
        scan.heads.iter().for_each(|head| space.reserve(head.cell_range()));
        let prepared = commit::prepare(media, found.directory.clone(), &mut space);
        let mut commit = match prepared {
            // Also overwrites chunks that neither this generation nor the previous one has, and this generation's
            // snapshot. The record holds the same information as the snapshot, so after a power loss the image can
            // still be rebuilt.
            Err(error) if error.kind() == ErrorKind::NoSpace && found.record.is_some() => {
                let generation = found.directory.generation();
                let is_other = |copy: &Superblock| copy.generation != generation;
                let mut space = remains.free_space(&scan, &found.directory, is_other);
                commit::prepare(media, found.directory.clone(), &mut space)?
            }
            prepared => prepared?,
        };
        let bad = void_bad_copies(copies, &mut commit.superblocks);
        commit::write(media, &lease, &commit)?;
        // Erase bad copies last: only now does a superblock declare them void, so that a blank copy does not
        // count as a lost generation.
        let mut channel = media.channel();
        for &(namespace, offset) in &bad {
            lease.check()?;
            channel.zero(namespace, offset, SUPERBLOCK_BYTES as u64)?;
            channel.flush(namespace)?;
        }
        Ok(bad.len() as u64)
    });
    let bad = lease.explain(result)?;
    if !found.deletions_known {
        tracing::warn!(
            "neither record nor snapshot of generation {} is whole: samples that were deleted are \
             back, and names of classes are lost",
            found.directory.generation()
        );
    }
    let committed = copy_index(found.directory.generation());
    let was_bad = |copies: &&SuperblockCopies| copies.copies[committed].is_err();
    Ok(RebuildReport {
        uuid: layout.uuid,
        generation: found.directory.generation(),
        live_samples: found.directory.num_live(),
        lost_samples: found.selection.lost_samples,
        chunks: found.headers_read,
        unused_chunks: found.selection.unused_heads,
        unreadable_cells: scan.unreadable.len() as u64,
        mended_copies: bad + copies.iter().filter(was_bad).count() as u64,
        deletions_known: found.deletions_known,
        base: base.as_ref().map(Directory::generation),
    })
}

/// Assembles the directory from chunk headers, with the time of writing of each chunk, in ns since 1970. Writes
/// nothing. Reads the snapshot only if the generation's record is missing or damaged. For the index of chunks in
/// a catalogue, which is compared with the result or rebuilt from it.
///
/// # Errors
/// As [`rebuild`], except `Busy`.
pub fn read_heads(
    image: &[Address],
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<(Directory, BTreeMap<ChunkId, u64>)> {
    let given = Media::for_reading(open_image(image, connect, Meaning::OfImage)?)?;
    let (media, layout) = identify(&given)?;
    let (scan, found) = Remains::read(media, layout)?.search(progress)?;
    let times = scan.heads.iter().map(|head| (head.id, head.time_ns));
    Ok((found.directory, times.collect()))
}

/// Sets the void bit in the superblocks to write, if one of the other copies is bad. Returns namespace and
/// offset of the copies to erase afterwards.
fn void_bad_copies(copies: &[SuperblockCopies], superblocks: &mut [Superblock]) -> Vec<(u16, u64)> {
    let generation = superblocks[0].generation;
    let other = 1 - copy_index(generation);
    let is_bad = |copies: &SuperblockCopies| copies.copies[other].is_err();
    // The first generation has no other copy anyway.
    if generation > Generation(1) && copies.iter().any(is_bad) {
        for superblock in superblocks {
            superblock.optional_features |= OTHER_COPY_VOID;
        }
    }
    let bad = (0..).zip(copies).filter(|(_, copies)| is_bad(copies));
    bad.filter(|(_, copies)| !matches!(copies.copies[other], Err(FormatError::Blank { .. })))
        .map(|(namespace, _)| (namespace, COPY_OFFSETS[other]))
        .collect()
}

/// Identifies the image. Returns its namespaces in its order, and its layout.
fn identify(media: &Media) -> Result<(Media, ImageLayout)> {
    let copies = media.superblocks()?;
    if let Ok(opened) = select_generation(&copies) {
        return Ok((media.in_order(&opened.given), opened.superblock().layout));
    }
    let mut places = Vec::new();
    for (given, copies) in copies.iter().enumerate() {
        let of_superblock =
            copies.newest().map(|superblock| (superblock.layout, superblock.namespace));
        places.push(of_superblock.map_or_else(|| first_chunk(media, given as u16), Ok)?);
    }
    let order = order_of(&places).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, "the namespaces are not those of one whole image")
    })?;
    Ok((media.in_order(&order), places[0].0))
}

/// The layout and the namespace's number, both from the first chunk of a namespace.
fn first_chunk(media: &Media, namespace: u16) -> Result<(ImageLayout, u16)> {
    let mut channel = media.channel();
    let mut found = None;
    let len = BLOCK_BYTES as u64;
    each_block(&mut channel, namespace, 0..u64::MAX, |at, block| {
        let head = block.ok().and_then(|block| ChunkHead::parse(block).ok());
        found = head
            .filter(|head| at > 0 && head.layout.offset_of(head.cell) == Ok(at))
            .map(|head| (head.layout, head.namespace));
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(at + len) }
    })?;
    let address = || media.address(namespace);
    found.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "there is no chunk of an image here").target(address())
    })
}
