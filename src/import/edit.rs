//! Deletes samples, and frees the space of deleted ones.
//!
//! A delete writes a record and a snapshot and changes no chunk. A purge rewrites the chunks that have
//! deleted samples, without them, into free cells; ids and slots of all other samples stay. Both create a
//! generation as an import does, and the previous one stays intact until the commit.

use std::sync::Arc;

use crate::buf::IoBuf;
use crate::directory::commit::freed_by_next;
use crate::directory::{Directory, DirectoryBuilder};
use crate::format::Fit;
use crate::format::builder::ChunkLocation;
use crate::format::error::equal;
use crate::format::{
    CellRange, ChunkBuilder, ChunkHeader, ChunkSpec, FinishedChunk, Part, SampleMeta, Space, Uuid,
};
use crate::import::commit;
use crate::import::device::{Meaning, open_image};
use crate::import::lease::Lease;
use crate::import::media::{Channel, Media};
use crate::import::options::{EditOptions, ImportOptions, Progress, Stage};
use crate::import::prepare::{self, Current};
use crate::import::retry::with_retry;
use crate::nvme::Address;
use crate::qpair::{ConnectOptions, Device};
use crate::units::{Generation, Lba, SampleId, Slot};
use crate::{Error, ErrorKind, Result};

/// The result of a delete or purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditReport {
    /// The image.
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

/// As [`delete_ids`] with the default options, on namespaces that are open.
///
/// # Errors
/// As [`delete_ids`].
pub fn delete_ids_on(devices: &[Arc<dyn Device>], ids: &[SampleId]) -> Result<EditReport> {
    delete_with(devices, &EditOptions::default(), |directory| known_ids(directory, ids))
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

/// What is asked for and not there: few examples, and how many.
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
    let kept: Vec<CellRange> = directory.cell_ranges().collect();
    directory.set_freed(freed_by_next(old, &edit.current.superblocks[0], kept));
    let samples = old.num_live() - directory.num_live();
    let result = with_retry(edit.media.retry_budget(), || {
        edit.commit(directory.clone(), &mut edit.free_space(), samples, 0)
    });
    edit.lease.explain(result)
}

/// Rewrites the chunks that have deleted samples, without those samples, as a new generation. Does nothing
/// if there are none.
///
/// # Errors
/// `Corrupt`: a sample to be kept is damaged; the error names it, and nothing is changed. `NoSpace`: the
/// new chunks do not fit beside the old ones. Those of [`delete`].
pub fn purge(
    image: &[Address],
    options: &EditOptions,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<EditReport> {
    purge_with(&open_image(image, &writable(connect), Meaning::AllOfImage)?, options, progress)
}

/// As [`purge`] with the default options, on namespaces that are open.
///
/// # Errors
/// As [`purge`].
pub fn purge_on(devices: &[Arc<dyn Device>], progress: &mut dyn Progress) -> Result<EditReport> {
    purge_with(devices, &EditOptions::default(), progress)
}

fn purge_with(
    devices: &[Arc<dyn Device>],
    options: &EditOptions,
    progress: &mut dyn Progress,
) -> Result<EditReport> {
    let edit = Edit::begin(devices, options)?;
    let result = with_retry(edit.media.retry_budget(), || edit.purge(progress));
    edit.lease.explain(result)
}

fn writable(connect: &ConnectOptions) -> ConnectOptions {
    ConnectOptions { writable: true, ..connect.clone() }
}

/// An edit of an image in progress.
struct Edit {
    media: Media,
    lease: Lease,
    current: Current,
}

impl Edit {
    fn begin(devices: &[Arc<dyn Device>], options: &EditOptions) -> Result<Edit> {
        let media = prepare::in_image_order(&Media::new(devices.to_vec())?)?;
        let lease = Lease::take(&media, ImportOptions::default().lease)?;
        let (media, current) = prepare::open_current(&media, options.accept_older_generation)?;
        Ok(Edit { media, lease, current })
    }

    fn next_generation(&self) -> Generation {
        Generation(self.current.directory.generation().0 + 1)
    }

    fn time_ns(&self) -> u64 {
        prepare::time_ns(None).max(self.current.directory.time_ns())
    }

    fn free_space(&self) -> Space {
        prepare::free_space(&self.media, self.current.directory.layout(), Some(&self.current))
    }

    fn commit(
        &self,
        directory: Directory,
        space: &mut Space,
        samples: u64,
        chunks: u64,
    ) -> Result<EditReport> {
        let cell_bytes = directory.layout().cell_bytes();
        let freed_bytes = directory.freed().iter().map(|range| range.cells * cell_bytes).sum();
        let commit = commit::prepare(&self.media, directory, space)?;
        commit::write(&self.media, &self.lease, &commit)?;
        Ok(EditReport {
            uuid: commit.directory.uuid(),
            generation: commit.directory.generation(),
            samples,
            live_samples: commit.directory.num_live(),
            chunks,
            freed_bytes,
        })
    }

    fn purge(&self, progress: &mut dyn Progress) -> Result<EditReport> {
        let old = &*self.current.directory;
        let mut dead = 0;
        let holed = (0..old.num_chunks())
            .map(|chunk| dead_samples(old, chunk).inspect(|count| dead += count).map(|n| n > 0))
            .collect::<Result<Vec<bool>>>()?;
        if dead == 0 {
            return Ok(EditReport {
                uuid: old.uuid(),
                generation: old.generation(),
                samples: 0,
                live_samples: old.num_live(),
                chunks: 0,
                freed_bytes: 0,
            });
        }
        let slots = |chunk: u32| u64::from(old.chunk(chunk).num_slots);
        let rewritten = (0..old.num_chunks()).filter(|&chunk| holed[chunk as usize]);
        progress.stage(Stage::Writing, rewritten.map(slots).sum(), 0);
        let mut purge = Purge::new(self, progress);
        for chunk in 0..old.num_chunks() {
            match holed[chunk as usize] {
                true => purge.rewrite(chunk)?,
                false => {
                    purge.finish_chunk()?;
                    purge.builder.copy_chunk(old, chunk)?;
                }
            }
        }
        purge.finish_chunk()?;
        let Purge { mut builder, mut space, sequence, .. } = purge;
        builder.delete(&old.deleted_ranges());
        builder.set_classes(old.classes().to_vec());
        let kept: Vec<CellRange> = builder.cell_ranges().collect();
        builder.set_freed(freed_by_next(old, &self.current.superblocks[0], kept));
        progress.stage(Stage::Committing, 0, 0);
        let directory = builder.finish(self.next_generation(), self.time_ns())?;
        self.commit(directory, &mut space, dead, sequence)
    }
}

/// Deleted samples of a chunk whose bytes are still on media.
fn dead_samples(directory: &Directory, chunk: u32) -> Result<u64> {
    let info = directory.chunk(chunk);
    if directory.live_in_chunk(chunk) == info.num_slots {
        return Ok(0);
    }
    let mut name = Vec::new();
    let mut dead = 0;
    for slot in info.first_slot.0..info.first_slot.0 + u64::from(info.num_slots) {
        let id = directory.id_at(Slot(slot)).expect("a slot of a chunk has an id");
        // A purge dropped the name together with the bytes.
        dead += u64::from(!directory.is_live(id) && directory.name_into(id, &mut name)?);
    }
    Ok(dead)
}

/// Rewrites chunks.
struct Purge<'a> {
    edit: &'a Edit,
    progress: &'a mut dyn Progress,
    channel: Channel,
    space: Space,
    builder: DirectoryBuilder,
    /// The chunk being filled, and its part. `buf` holds the buffer while there is none.
    open: Option<(ChunkBuilder, Part)>,
    buf: IoBuf,
    sequence: u64,
    time_ns: u64,
}

impl<'a> Purge<'a> {
    fn new(edit: &'a Edit, progress: &'a mut dyn Progress) -> Purge<'a> {
        let layout = *edit.current.directory.layout();
        Purge {
            edit,
            progress,
            channel: edit.media.channel(),
            space: edit.free_space(),
            builder: DirectoryBuilder::new(layout),
            open: None,
            buf: IoBuf::zeroed(ChunkBuilder::buf_len_bytes(&layout)),
            sequence: 0,
            time_ns: edit.time_ns(),
        }
    }

    /// Copies the live samples of a chunk into new chunks; dead slots become empty entries.
    fn rewrite(&mut self, chunk: u32) -> Result<()> {
        let old = &*self.edit.current.directory;
        let info = old.chunk(chunk);
        if old.live_in_chunk(chunk) == 0 {
            for slot in info.first_slot.0..info.first_slot.0 + u64::from(info.num_slots) {
                self.push(Slot(slot), None)?;
            }
        } else {
            let bytes =
                self.channel.read(info.namespace, info.offset_bytes, info.len_bytes as usize)?;
            let header = ChunkHeader::parse(&bytes)?;
            header.head().check_location(
                old.layout(),
                info.namespace,
                self.cell_of(info.offset_bytes),
            )?;
            equal("first slot of a chunk", info.first_slot.0, header.head().first_slot.0)?;
            let found = u64::from(header.head().num_samples);
            equal("samples of a chunk", info.num_slots.into(), found)?;
            let fields = old.fields().iter().map(|name| &name[..]);
            equal("other names of the fields of a chunk", 0, header.fields().ne(fields).into())?;
            for sample in header.samples() {
                let id = old.id_at(sample.slot).map_or(u64::MAX, |id| id.0);
                equal("id of the sample at a slot", id, sample.id.0)?;
                let extent = old.extent(sample.id);
                let Some(extent) = extent else {
                    self.push(sample.slot, None)?;
                    continue;
                };
                let start = sample.offset_bytes as usize;
                let record = bytes.get(start..start.saturating_add(sample.len_bytes as usize));
                let is_right = |record: &&[u8]| {
                    crate::format::checksum::crc32c(record) == extent.crc32c
                        && extent.len_bytes == sample.len_bytes
                };
                let Some(record) = record.filter(is_right) else {
                    return Err(damaged(
                        sample.id,
                        extent.offset_bytes,
                        &self.channel,
                        info.namespace,
                    ));
                };
                let meta = SampleMeta { id: sample.id, name: sample.name, label: sample.label };
                self.push(sample.slot, Some((&meta, record)))?;
            }
        }
        self.progress.advance(u64::from(info.num_slots), info.len_bytes);
        Ok(())
    }

    fn push(&mut self, slot: Slot, sample: Option<(&SampleMeta<'_>, &[u8])>) -> Result<()> {
        loop {
            self.open_chunk(slot)?;
            let (chunk, _) = self.open.as_mut().expect("opened just above");
            let fit = match sample {
                Some((meta, record)) => chunk.push(meta, record)?,
                None => {
                    let old = &self.edit.current.directory;
                    chunk.push_purged(old.id_at(slot).expect("a slot of a chunk has an id"))
                }
            };
            match fit {
                Fit::Here => return Ok(()),
                Fit::NextChunk => self.finish_chunk()?,
                // An oversize sample has a chunk of its own, which is dropped whole.
                Fit::Oversize => {
                    let message = "a sample among others does not fit into a chunk";
                    return Err(Error::new(ErrorKind::Corrupt, message));
                }
            }
        }
    }

    /// Ensures that the chunk being filled continues with `slot`.
    fn open_chunk(&mut self, slot: Slot) -> Result<()> {
        let part = *self.part_of(slot);
        if self.open.as_ref().is_some_and(|(_, open)| *open != part) {
            self.finish_chunk()?;
        }
        if self.open.is_none() {
            let old = &self.edit.current.directory;
            let spec = ChunkSpec {
                layout: *old.layout(),
                generation: self.edit.next_generation(),
                part_first: part.first,
                part_seed: part.seed,
                part_window: part.window,
                part_count: part.count,
                fields: old.fields().to_vec(),
            };
            let buf = std::mem::take(&mut self.buf);
            self.open = Some((ChunkBuilder::new(spec, slot, buf)?, part));
        }
        Ok(())
    }

    fn finish_chunk(&mut self) -> Result<()> {
        let Some((mut chunk, _)) = self.open.take() else { return Ok(()) };
        let layout = *self.edit.current.directory.layout();
        let needed = chunk.cells();
        let cells = self.space.allocate(self.sequence, needed);
        let cells = cells.ok_or_else(|| self.space.no_room(needed))?;
        let end = layout.offset_of(cells.cell)? + cells.cells * layout.cell_bytes();
        self.edit.media.grow(cells.namespace, end)?;
        let location = ChunkLocation {
            sequence: self.sequence,
            time_ns: self.time_ns,
            namespace: cells.namespace,
            cell: cells.cell,
        };
        let finished =
            chunk.finish(location.sequence, location.time_ns, location.namespace, location.cell);
        let FinishedChunk { header, mut buf, range } = finished;
        self.builder.add_chunk(&header)?;
        let tail = buf.split_off(range.end);
        let body = buf.split_off(range.start);
        self.edit.lease.check()?;
        let body = self.channel.write(cells.namespace, layout.offset_of(cells.cell)?, body)?;
        buf.rejoin(body);
        buf.rejoin(tail);
        self.buf = buf;
        self.sequence += 1;
        Ok(())
    }

    fn part_of(&self, slot: Slot) -> &Part {
        let parts = self.edit.current.directory.parts();
        parts.take_while(|part| part.first <= slot.0).last().expect("parts begin with slot 0")
    }

    fn cell_of(&self, offset: u64) -> u64 {
        offset / self.edit.current.directory.layout().cell_bytes()
    }
}

fn damaged(id: SampleId, offset: u64, channel: &Channel, namespace: u16) -> Error {
    let device = channel.media().devices()[usize::from(namespace)].namespace();
    Error::new(ErrorKind::Corrupt, "a sample that is to be kept is damaged")
        .sample(id)
        .target(device.address)
        .lba(Lba(offset / u64::from(device.block_len_bytes)))
}
