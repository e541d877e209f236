//! Rebuilds the directory from chunk headers, when its snapshot or the superblocks are lost.
//!
//! Every cell may hold the head of a chunk, so one block of each cell is read: all of the media since
//! version 2 of the format, whose cells are blocks.
//! [`crate::directory::rebuild`] selects the chunks that make up a generation; their headers are read
//! whole, and the directory is committed again as the same generation, so that training runs continue.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::buf::IoBuf;
use crate::directory::rebuild::{ChunkSelection, Step, newest_record, select_chunks};
use crate::directory::{Directory, DirectoryBuilder};
use crate::format::checksum::crc32c;
use crate::format::chunk::{ChunkId, ChunkKind};
use crate::format::superblock::{COPY_OFFSETS, OTHER_COPY_VOID, SUPERBLOCK_BYTES, copy_index};
use crate::format::superblock_set::{SuperblockCopies, select_generation};
use crate::format::table::min_entry_bytes;
use crate::format::{
    ChunkHead, ChunkHeader, FormatError, GenerationRecord, ImageLayout, Space, Superblock, Uuid,
};
use crate::import::commit;
use crate::import::device::{Meaning, open_image};
use crate::import::give_up::give_up_plan;
use crate::import::lease::Lease;
use crate::import::media::{Channel, Media};
use crate::import::options::{ImportOptions, Progress, Stage};
use crate::import::prepare;
use crate::import::retry::with_retry;
use crate::import::scan::{BLOCK_BYTES, Scan, capacities, each_block, read_twice, scan};
use crate::nvme::Address;
use crate::qpair::{ConnectOptions, Device};
use crate::units::Generation;
use crate::{Error, ErrorKind, Result};

/// The result of a rebuild.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildReport {
    /// The image.
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
    /// Cells whose first block cannot be read: a chunk that begins there is lost.
    pub unreadable_cells: u64,
    /// Superblock copies that were bad and are repaired.
    pub mended_copies: u64,
    /// Whether the generation's record or snapshot was found, which has the deletions and class names.
    /// Without either, deleted samples are live again, and classes have no names.
    pub deletions_known: bool,
}

/// Rebuilds the directory of `image` from its chunk headers and commits it.
///
/// The result is the generation that the superblocks commit. If a bad copy may have committed a newer
/// generation, and the record of that one exists, the result is the newer one: everything of a generation
/// is durable before its superblock is written, so this completes an interrupted commit.
///
/// If the record of a committed generation is damaged, its snapshot has the same facts, if it is intact;
/// without either, deleted samples become live again.
///
/// With `since`, only chunks of later generations are searched; the rest comes from the directory of that
/// generation, which must still be readable.
///
/// # Errors
/// `NotFound`: there is no chunk of an image. `InvalidArgument`: the namespaces are not one complete image,
/// or the directory of generation `since` does not exist. `Corrupt`: with `since`, the record of the
/// committed generation is missing. `Busy`: an import is running.
pub fn rebuild(
    image: &[Address],
    since: Option<Generation>,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<RebuildReport> {
    let connect = ConnectOptions { writable: true, ..connect.clone() };
    let devices = open_image(image, &connect, Meaning::AllOfImage)?;
    rebuild_on(&devices, since, progress)
}

/// As [`rebuild`], on namespaces that are open.
///
/// # Errors
/// As [`rebuild`].
pub fn rebuild_on(
    devices: &[Arc<dyn Device>],
    since: Option<Generation>,
    progress: &mut dyn Progress,
) -> Result<RebuildReport> {
    let given = Media::new(devices.to_vec())?;
    let (layout, order) = identify(&given)?;
    let media = given.in_order(&order);
    let lease = Lease::take(&media, ImportOptions::default().lease)?;
    let copies = superblocks(&media)?;
    let mut valid = copies.iter().flat_map(|copies| copies.copies.iter().flatten());
    valid.try_for_each(Superblock::check_writable)?;
    let base = match since {
        Some(generation) => Some(base_of(&media, &copies, generation)?),
        None => None,
    };
    let cells: u64 = capacities(&media, &layout).iter().sum();
    progress.stage(Stage::Indexing, cells, 0);
    let Scan { heads, unreadable } = scan(&media, &layout, progress)?;
    let found = assemble_newest(&media, &layout, &heads, base.as_ref(), &copies)?;
    progress.stage(Stage::Committing, 0, 0);
    lease.explain(give_up_plan(&media, &found.directory, ImportOptions::default().lease))?;
    let result = with_retry(media.retry_budget(), || {
        let mut space = Space::new(&layout, &media.capacities());
        // Every known chunk stays where it is, those of older generations included.
        heads.iter().for_each(|head| space.reserve(head.cell_range()));
        unreadable.iter().for_each(|range| space.reserve(*range));
        // So does a snapshot that a superblock names: it is current until the commit.
        let superblocks = copies.iter().flat_map(|copies| copies.copies.iter().flatten());
        superblocks.for_each(|superblock| space.reserve(superblock.snapshot_range()));
        let mut commit = commit::prepare(&media, found.directory.clone(), &mut space)?;
        let bad = void_bad_copies(&copies, &mut commit.superblocks);
        commit::write(&media, &lease, &commit)?;
        // Last, since the old copies may be the only ones until here.
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
        unreadable_cells: unreadable.len() as u64,
        mended_copies: bad + copies.iter().filter(was_bad).count() as u64,
        deletions_known: found.deletions_known,
    })
}

/// The directory that chunk heads alone yield, and when each chunk was written, in ns since 1970. Nothing is written,
/// and no snapshot is read: this is what an index of chunks is rebuilt from, and compared with.
///
/// # Errors
/// As [`rebuild`], but for `Busy`.
pub fn read_heads(
    image: &[Address],
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<(Directory, BTreeMap<ChunkId, u64>)> {
    let given = Media::for_reading(open_image(image, connect, Meaning::OfImage)?)?;
    let (layout, order) = identify(&given)?;
    let media = given.in_order(&order);
    let copies = superblocks(&media)?;
    progress.stage(Stage::Indexing, capacities(&media, &layout).iter().sum(), 0);
    let Scan { heads, .. } = scan(&media, &layout, progress)?;
    let found = assemble_newest(&media, &layout, &heads, None, &copies)?;
    let times = heads.iter().map(|head| (head.id, head.time_ns));
    Ok((found.directory, times.collect()))
}

/// Sets the void bit in the superblocks to be written, if one of the other copies is bad; returns namespace
/// and offset of the copies to erase then.
fn void_bad_copies(copies: &[SuperblockCopies], superblocks: &mut [Superblock]) -> Vec<(u16, u64)> {
    let generation = superblocks[0].generation;
    let other = 1 - copy_index(generation);
    let is_bad = |copies: &SuperblockCopies| copies.copies[other].is_err();
    // The first generation has no other copy in any case.
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

/// What heads and records yield.
struct Found {
    directory: Directory,
    selection: ChunkSelection,
    headers_read: u64,
    /// Whether the generation's own record listed its contents.
    has_record: bool,
    /// Whether a record or snapshot was found: see [`RebuildReport::deletions_known`].
    deletions_known: bool,
}

/// Identifies the image, and the index in it of each given namespace.
fn identify(media: &Media) -> Result<(ImageLayout, Vec<usize>)> {
    let copies = superblocks(media)?;
    if let Ok(opened) = select_generation(&copies) {
        return Ok((opened.superblock().layout, opened.given));
    }
    let mut places = Vec::new();
    for (given, copies) in copies.iter().enumerate() {
        let of_superblock =
            copies.newest().map(|superblock| (superblock.layout, superblock.namespace));
        let place = match of_superblock {
            Some(place) => place,
            None => first_chunk(media, given as u16)?,
        };
        places.push(place);
    }
    let layout = places[0].0;
    let mut order = vec![usize::MAX; places.len()];
    for (given, (found, namespace)) in places.iter().enumerate() {
        let place = order.get_mut(usize::from(*namespace)).filter(|place| **place == usize::MAX);
        match place {
            Some(place)
                if *found == layout && usize::from(layout.num_namespaces) == places.len() =>
            {
                *place = given;
            }
            _ => {
                let message = "the namespaces are not those of one whole image";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
        }
    }
    Ok((layout, order))
}

fn superblocks(media: &Media) -> Result<Vec<SuperblockCopies>> {
    let mut channel = media.channel();
    (0..media.len()).map(|namespace| channel.superblocks(namespace)).collect()
}

/// The layout in the first chunk of a namespace.
fn first_chunk(media: &Media, namespace: u16) -> Result<(ImageLayout, u16)> {
    let mut channel = media.channel();
    let mut found = None;
    each_block(&mut channel, namespace, BLOCK_BYTES as u64, |at, block| {
        let head = block.ok().and_then(|block| ChunkHead::parse(block).ok());
        found = head
            .filter(|head| at > 0 && head.layout.offset_of(head.cell) == Ok(at))
            .map(|head| (head.layout, head.namespace));
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let address = || media.devices()[usize::from(namespace)].namespace().address;
    found.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "there is no chunk of an image here").target(address())
    })
}

/// The superblock that commits, and the generation that may have been committed after it. Without any valid
/// superblock, both are unknown.
fn committed(copies: &[SuperblockCopies]) -> (Option<Superblock>, Option<Generation>) {
    match select_generation(copies) {
        Ok(opened) => (Some(*opened.superblock()), opened.lost_generation()),
        Err(_) => {
            let newest = copies[0].newest().copied();
            let next = newest.map(|superblock| superblock.generation.next());
            (newest, next.filter(|&next| copies[0].is_bad_at(next)))
        }
    }
}

/// The facts of the committed generation's record, taken from its snapshot, which has the same.
fn record_of_snapshot(
    media: &Media,
    layout: &ImageLayout,
    superblock: &Superblock,
) -> Option<GenerationRecord> {
    if superblock.layout != *layout {
        return None;
    }
    prepare::read_directory(media, superblock).ok().map(|directory| directory.record())
}

/// The directory of an older generation: its snapshot is still where its superblock says.
fn base_of(
    media: &Media,
    copies: &[SuperblockCopies],
    generation: Generation,
) -> Result<Directory> {
    let missing = || {
        let message = format!("the directory of generation {generation} no longer exists");
        Error::new(ErrorKind::InvalidArgument, message).hint("rebuild without --since")
    };
    let superblock = copies[0].of(generation).ok_or_else(missing)?;
    prepare::read_directory(media, superblock).map_err(|error| missing().source(error))
}

/// The generation that a bad superblock copy may have committed, if its record exists and it has lost no
/// more samples than the one before; otherwise the one before.
fn assemble_newest(
    media: &Media,
    layout: &ImageLayout,
    heads: &[ChunkHead],
    base: Option<&Directory>,
    copies: &[SuperblockCopies],
) -> Result<Found> {
    let (superblock, lost) = committed(copies);
    let committed = superblock.map(|superblock| superblock.generation);
    let known = assemble(media, layout, heads, base, (committed, superblock.as_ref()));
    let Some(lost) = lost else { return known };
    let newer = assemble(media, layout, heads, base, (Some(lost), None));
    match (known, newer) {
        (Ok(known), Ok(newer)) => {
            let is_there = newer.directory.generation() == lost && newer.has_record;
            let is_whole = newer.selection.lost_samples <= known.selection.lost_samples;
            if is_there && !is_whole {
                tracing::warn!(
                    "generation {lost} was begun, and {} samples of it are missing: generation {} \
                     is rebuilt",
                    newer.selection.lost_samples,
                    known.directory.generation()
                );
            }
            Ok(if is_there && is_whole { newer } else { known })
        }
        (Err(_), Ok(newer)) if newer.has_record => Ok(newer),
        (known, _) => known,
    }
}

/// Assembles the committed generation, if it is known; else the newest one with an intact record; else the
/// newest one. `superblock` is the one that commits it.
fn assemble(
    media: &Media,
    layout: &ImageLayout,
    heads: &[ChunkHead],
    base: Option<&Directory>,
    (committed, superblock): (Option<Generation>, Option<&Superblock>),
) -> Result<Found> {
    if heads.is_empty() && base.is_none() {
        return Err(Error::new(ErrorKind::NotFound, "no chunk of the image was found"));
    }
    // Each slot that was ever assigned has an entry in the header of some chunk.
    let lens = media.devices().iter().map(|device| device.namespace().len_bytes());
    let most_slots = lens.fold(0, u64::saturating_add) / min_entry_bytes(layout.version);
    let since = base.map_or(Generation(0), Directory::generation);
    // Chunks of a generation that was not committed belong to none.
    let until = committed.unwrap_or(Generation(u64::MAX));
    let wanted = |head: &&ChunkHead| (since < head.id.generation) && head.id.generation <= until;
    let later: Vec<ChunkHead> = heads.iter().filter(wanted).copied().collect();
    let channel = &mut media.channel();
    let mut records = later.clone();
    loop {
        let head = newest_record(&records, committed).copied();
        let record = match &head {
            Some(head) => read_record(channel, layout, head)?,
            None => None,
        };
        if let (Some(head), None) = (&head, &record) {
            // Damaged: try the next one.
            records.retain(|other| other != head);
            continue;
        }
        let record = record
            .or_else(|| record_of_snapshot(media, layout, superblock?))
            .or_else(|| base.map(Directory::record));
        // The base's own record would restore the base.
        if let (Some(record), Some(committed)) = (&record, committed)
            && record.generation < committed
        {
            let message = format!("the record of generation {committed} no longer exists");
            return Err(Error::new(ErrorKind::Corrupt, message).hint("rebuild without --since"));
        }
        let (usable, selection) =
            usable_selection(channel, base, &later, record.as_ref(), most_slots)?;
        let mut builder = DirectoryBuilder::new(*layout);
        carry_out(channel, &selection, &usable, base, &mut builder)?;
        let (generation, time_ns) = match (&record, superblock) {
            (Some(record), _) => (record.generation, record.time_ns),
            // Never less than the committed one: the newer superblock would still be opened.
            (None, Some(superblock)) => (superblock.generation, superblock.time_ns),
            (None, None) => {
                usable.iter().map(|h| (h.id.generation, h.time_ns)).max().unwrap_or_default()
            }
        };
        let deletions_known = record.is_some();
        if let Some(record) = record {
            builder.set_classes(record.classes);
            builder.add_origins(&record.origins);
            builder.delete(&record.deleted);
            builder.set_freed(record.freed);
        }
        let mut directory = builder.finish(generation, time_ns)?;
        let has_record = head.is_some();
        if let Some(head) = head {
            directory.set_record_range(head.cell_range());
        }
        let headers_read =
            selection.steps.iter().filter(|step| matches!(step, Step::Head(_))).count();
        let headers_read = headers_read as u64;
        return Ok(Found { directory, selection, headers_read, has_record, deletions_known });
    }
}

/// A selection in which every header is readable: a damaged header is treated as missing. So is a chunk
/// with damaged samples if another chunk has the same slots: an interrupted edit, followed by another edit
/// of the same generation, may have left it half written.
fn usable_selection(
    channel: &mut Channel,
    base: Option<&Directory>,
    heads: &[ChunkHead],
    record: Option<&GenerationRecord>,
    most_slots: u64,
) -> Result<(Vec<ChunkHead>, ChunkSelection)> {
    let mut usable = heads.to_vec();
    loop {
        let selection = select_chunks(base, &usable, record, most_slots)?;
        let mut damaged = Vec::new();
        for step in &selection.steps {
            let Step::Head(at) = step else { continue };
            let head = &usable[*at];
            let is_usable = match read_header(channel, head)? {
                Some(header) if has_rival(&usable, head) => is_whole(channel, &header)?,
                header => header.is_some(),
            };
            if !is_usable {
                damaged.push(*head);
            }
        }
        if damaged.is_empty() {
            return Ok((usable, selection));
        }
        usable.retain(|head| !damaged.contains(head));
    }
}

/// Whether another chunk has slots in common with this one.
fn has_rival(heads: &[ChunkHead], this: &ChunkHead) -> bool {
    heads.iter().any(|other| {
        other != this
            && other.kind == ChunkKind::Samples
            && other.first_slot.0 < this.end_slot().0
            && this.first_slot.0 < other.end_slot().0
    })
}

/// Whether every sample of a chunk matches its checksum.
fn is_whole(channel: &mut Channel, header: &ChunkHeader) -> Result<bool> {
    let head = header.head();
    let start = head.layout.offset_of(head.cell)?;
    let device = channel.media().devices()[usize::from(head.namespace)].namespace();
    for sample in header.samples().filter(|sample| !sample.purged && sample.len_bytes > 0) {
        let (at, len) = (start + sample.offset_bytes, sample.len_bytes as usize);
        if at.saturating_add(len as u64) > device.len_bytes() {
            return Ok(false);
        }
        let found = read_twice(channel, head.namespace, at, len)?;
        if found.is_err() || found.is_ok_and(|bytes| crc32c(&bytes) != sample.crc32c) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn carry_out(
    channel: &mut Channel,
    selection: &ChunkSelection,
    heads: &[ChunkHead],
    base: Option<&Directory>,
    builder: &mut DirectoryBuilder,
) -> Result<()> {
    for step in &selection.steps {
        match *step {
            Step::Base(chunk) => {
                builder.copy_chunk(base.expect("only a base has base chunks"), chunk)?;
            }
            Step::Head(at) => {
                let header = read_header(channel, &heads[at])?;
                let changed =
                    || Error::new(ErrorKind::Corrupt, "a chunk changed while it was read");
                builder.add_chunk(&header.ok_or_else(changed)?)?;
            }
            Step::Lost { part, count } => builder.add_lost(part, count)?,
        }
    }
    Ok(())
}

fn read_header(channel: &mut Channel, head: &ChunkHead) -> Result<Option<ChunkHeader>> {
    let bytes = read_front(channel, head)?;
    Ok(bytes.and_then(|bytes| ChunkHeader::parse(&bytes).ok()))
}

fn read_record(
    channel: &mut Channel,
    layout: &ImageLayout,
    head: &ChunkHead,
) -> Result<Option<GenerationRecord>> {
    debug_assert!(head.kind == ChunkKind::Record, "asked for a record's head");
    let bytes = read_front(channel, head)?;
    let record = bytes.and_then(|bytes| GenerationRecord::parse(&bytes).ok());
    Ok(record.map(|(_, record)| record).filter(|record| record.layout == *layout))
}

/// Head and table of a chunk or record; `None` if they exceed the namespace.
fn read_front(channel: &mut Channel, head: &ChunkHead) -> Result<Option<IoBuf>> {
    let at = head.layout.offset_of(head.cell)?;
    let len = u64::from(head.header_len).next_multiple_of(BLOCK_BYTES as u64);
    let device = channel.media().devices()[usize::from(head.namespace)].namespace();
    if at + len > device.len_bytes() {
        return Ok(None);
    }
    Ok(read_twice(channel, head.namespace, at, len as usize)?.ok())
}
