//! Parts from programs: the plan of their image, the writer of one part, and the commit of all parts as one generation.
//! The writer's thread places full windows in chunks after the parts that its namespace has already, and leaves a
//! record for the commit. A part is complete once the mark of its namespace points to its record; each record points
//! to the previous one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use crate::import::block::Block;
use crate::import::chunk_stream::ChunkStream;
use crate::import::commit::{TemporaryColumn, all_complete, check_stop, commit, once};
use crate::import::device::{open_for_import, or_remove};
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::many::plan_file::{Parts, Plan, WRITTEN, addresses, damaged, not_prepared};
use crate::import::marks::{Lane, Mark, MarkState};
use crate::import::media::{Channel, Media};
use crate::import::options::{ImportOptions, Onto, PlacementOrder, Progress, Stage};
use crate::import::prepare::{self, ImportState};
use crate::import::scan::BLOCK_BYTES;
use crate::import::trim::trim;
use crate::import::writer::{
    self, NewSample, Placer, Started, Thread, Windows, WriteOrder, WriteReport, Writer,
    WriterOptions,
};
use crate::import::written_part::{PartSum, WrittenPart};
use dlfs_base::error::invalid;
use dlfs_base::replace_file::{NewMode, replace_file};
use dlfs_base::units::{SampleId, Slot};
use dlfs_base::{Error, ErrorKind, Result, random};
use dlfs_format::directory::commit::Commit;
use dlfs_format::directory::{Directory, DirectoryBuilder};
use dlfs_format::format::chunk::{ChunkId, HEAD_BYTES};
use dlfs_format::format::{CellRange, ChunkHead, ChunkHeader, ImageLayout, Part, Uuid};
use dlfs_io::address::Address;
use dlfs_io::qpair::file::FileCalls;
use dlfs_io::qpair::{ConnectOptions, Device};

/// The plan that all writers of one image share: the image's location, and the properties of its samples. It
/// has a few thousand bytes, is sent to every writer, and does not change while they write.
#[derive(Debug, Clone)]
pub struct WritePlan(pub(super) Plan<WriterParts>);

/// Options for the placement of samples by writers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WriterParts {
    windows: Windows,
    lease_ms: u64,
}

impl Parts for WriterParts {
    const HEAD: Block = WRITTEN;
    const OTHERWISE: &str = "its parts come from sources: commit them without --parts";
}

impl WritePlan {
    /// Plans a new image at `image`, and prepares its namespaces. Each namespace takes one part at a time.
    ///
    /// If labels are names, `classes` must list them, so that a class has the same number in all parts.
    ///
    /// # Errors
    /// As [`Writer::create`](crate::import::Writer::create). `InvalidArgument`: the options ask for an append,
    /// a resume, or a shuffle of all samples together.
    pub fn create(
        image: &[Address],
        options: &WriterOptions,
        classes: Vec<Vec<u8>>,
        connect: &ConnectOptions,
    ) -> Result<WritePlan> {
        let refused = match (options.image.onto, options.order) {
            (Onto::Append | Onto::Resume, _) => "a plan is for a new image",
            (_, WriteOrder::Whole { .. }) => {
                "parts are shuffled window by window: nobody knows the number of all samples"
            }
            _ => "",
        };
        if !refused.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, refused));
        }
        or_remove(|created| {
            let devices =
                open_for_import(image, options.image.onto, connect, FileCalls::Pread, created)?;
            WritePlan::prepare(devices, options, classes)
        })
    }

    fn prepare(
        devices: Vec<Arc<dyn Device>>,
        options: &WriterOptions,
        classes: Vec<Vec<u8>>,
    ) -> Result<WritePlan> {
        let media = prepare::in_image_order(&Media::new(devices)?)?;
        let WriterOptions { image, fields, field_types, columns, .. } = options;
        let lease = Lease::take(&media, image.lease)?;
        let layout =
            ImageLayout::new(Uuid([0; 16]), image.chunk_size_bytes, image.pack, media.len())?;
        writer::check(layout, fields, field_types, columns)?;
        let id: [u8; 16] = random::bytes()?;
        let fingerprint = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at: usize| id[at]));
        let in_order = ImportOptions { placement: PlacementOrder::Source, ..image.clone() };
        lease.explain(prepare::prepare(media, &in_order, fingerprint).and_then(|state| {
            let journal = state.journal;
            let plan = Plan {
                id,
                image: addresses(&state.media)?,
                journal,
                fields: fields.clone(),
                field_types: field_types.clone(),
                columns: columns.clone(),
                classes,
                parts: WriterParts {
                    windows: options.windows(),
                    lease_ms: image.lease.as_millis() as u64, // far below 2^64
                },
            };
            let lane = Lane { last_record: 0, end_cell: journal.layout.first_cell() };
            plan.prepare(&state.media, Some(MarkState::Written(lane)))?;
            Ok(WritePlan(plan))
        }))
    }

    /// The namespaces of the image, in the image's order.
    pub fn image(&self) -> &[Address] {
        &self.0.image
    }

    /// The UUID of the new image.
    pub fn uuid(&self) -> Uuid {
        self.0.journal.layout.uuid
    }

    pub(super) fn lease_limit(&self) -> Duration {
        Duration::from_millis(self.0.parts.lease_ms)
    }

    /// The layout of chunks without a final place. It names another image, which is never opened or rebuilt.
    pub(super) fn draft_layout(&self) -> ImageLayout {
        ImageLayout { uuid: Uuid(self.0.id), ..self.0.journal.layout }
    }

    /// The parts on a namespace, if the namespace is prepared for this plan.
    ///
    /// # Errors
    /// As [`Plan::mark`].
    pub(super) fn lane(&self, namespace: u16, channel: &mut Channel) -> Result<Lane> {
        match self.0.mark(namespace, channel)? {
            Some(Mark { state: MarkState::Written(lane), .. }) => Ok(lane),
            _ => Err(not_prepared(channel.media.address(namespace))),
        }
    }

    /// Writes the plan to a file.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn save(&self, path: &Path) -> Result<()> {
        replace_file(path, NewMode::Private, &self.to_bytes())
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes); errors of the file system.
    pub fn load(path: &Path) -> Result<WritePlan> {
        Ok(WritePlan(Plan::read(path)?.0))
    }

    /// Encodes the plan, to be sent to the writers.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&WRITTEN.magic[..], &self.0.tail()].concat()
    }

    /// Decodes a plan.
    ///
    /// # Errors
    /// `InvalidArgument`: `bytes` are not such a plan. `Corrupt`: they are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<WritePlan> {
        let read = |at: u64, out: &mut [u8]| {
            let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.get(..out.len()));
            out.copy_from_slice(rest.ok_or_else(damaged)?);
            Ok(())
        };
        Plan::read_from(bytes.len() as u64, read).map(WritePlan)
    }
}

/// The choice of a namespace for a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PartPlace {
    /// The namespace with the part's number: part `k` goes to number `k` modulo the number of namespaces. A
    /// second attempt while the first one runs is `Busy`.
    #[default]
    Own,
    /// The part's own namespace, or the next one that no other process writes to. For frameworks that run a
    /// part several times at once and then choose an attempt.
    AnyFree,
}

/// Writes the samples of one part. Dropping it without [`finish`](Self::finish) discards them.
#[derive(Debug)]
pub struct PartWriter(Writer);

/// The output of a program that writes samples.
#[derive(Debug)]
pub enum Output {
    /// A generation.
    Image(Box<Writer>),
    /// A part of a generation, to be committed with the others.
    Part(Box<PartWriter>),
}

impl Output {
    /// The writer, to which samples are written.
    pub fn samples(&mut self) -> &mut Writer {
        match self {
            Output::Image(writer) => writer,
            Output::Part(part) => &mut part.0,
        }
    }
}

impl PartWriter {
    /// Begins to write part number `key` of `plan`.
    ///
    /// # Errors
    /// `Busy`: another attempt, or another part, is being written to the namespace. `InvalidArgument`: the
    /// namespace is not prepared for this plan, or the plan is committed. `Stale`: the image has changed since.
    /// Errors of opening.
    pub fn begin(
        plan: &WritePlan,
        key: u64,
        place: PartPlace,
        connect: &ConnectOptions,
    ) -> Result<PartWriter> {
        let count = plan.image().len() as u64;
        let tries = if place == PartPlace::Own { 1 } else { count };
        let mut busy = None;
        for step in 0..tries {
            let namespace = ((key % count + step) % count) as u16;
            let part = NewPart { plan: plan.clone(), key, namespace };
            let connect = connect.clone();
            let place = move |thread: &Thread| part.place(&connect, thread);
            match Writer::start_part(plan.0.parts.windows, &plan.0.fields, place) {
                Err(error) if error.kind() == ErrorKind::Busy => busy = Some(error),
                begun => return begun.map(PartWriter),
            }
        }
        Err(busy.unwrap_or_else(|| Error::new(ErrorKind::Internal, "a plan has namespaces")))
    }

    /// The writer, to which samples are written. Its ids start at 0 in each part.
    pub fn samples(&mut self) -> &mut Writer {
        &mut self.0
    }

    /// Same as [`Writer::write`]; returns the number of earlier samples of the part.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn write(&mut self, sample: &NewSample<'_>) -> Result<u64> {
        self.0.write(sample).map(|id| id.0)
    }

    /// Writes the remaining samples, and makes the part durable. A part may be empty.
    ///
    /// # Errors
    /// Errors of writing: the part is not complete.
    pub fn finish(self) -> Result<WrittenPart> {
        self.0.finish_part()
    }
}

/// A part to be written onto a namespace, after the parts that the namespace has already.
struct NewPart {
    plan: WritePlan,
    key: u64,
    namespace: u16,
}

impl NewPart {
    /// Writes the part, until it ends, fails, or its writer is dropped. A part that does not end stays free space.
    fn place(&self, connect: &ConnectOptions, thread: &Thread) -> Result<WrittenPart> {
        let media = self.plan.0.open(Some(self.namespace), connect)?;
        let lease = Lease::take(&media, self.plan.lease_limit())?;
        let count = self.plan.0.journal.layout.num_namespaces;
        lease.explain(self.write(media.placed(self.namespace, count)?, &lease, thread))
    }

    fn write(&self, media: Media, lease: &Lease, thread: &Thread) -> Result<WrittenPart> {
        let &NewPart { ref plan, key, namespace } = self;
        let layout = plan.0.journal.layout;
        let lane = {
            let mut channel = media.channel();
            let lane = plan.lane(namespace, &mut channel)?;
            self.check_uncommitted(&mut channel)?;
            lane
        };
        thread.start(Started {
            part: Some(key),
            fields: plan.0.fields.clone(),
            field_types: plan.0.field_types.clone(),
            columns: plan.0.columns.clone(),
            classes: plan.0.classes.clone(),
            ..Started::default()
        })?;
        let next = thread.next()?;
        let part = Part::default();
        let journal = Journal { part, layout: plan.draft_layout(), ..plan.0.journal };
        let state = ImportState { media, current: None, journal, resumed: false, done: false };
        let media = &state.media;
        let mut space = prepare::free_space(media, &layout, None);
        space.reserve(CellRange { namespace, cell: 0, cells: lane.end_cell });
        let mut chunks = ChunkStream::of_part(&state, lease, plan.0.columns.clone(), space);
        chunks.set_fields(&plan.0.fields, plan.0.field_types.clone());
        let windows = plan.0.parts.windows;
        let seed = xxh3_64_with_seed(&key.to_le_bytes(), windows.seed);
        let mut placer = Placer::new(Windows { seed, ..windows }, 0, chunks);
        placer.place_all(thread, next)?;
        let Placer { chunks, sample_bytes, .. } = placer;
        let (heads, mut space) = chunks.end_part("write the part again")?;
        let mut sum = PartSum::default();
        heads.iter().for_each(|head| sum.add(head));
        let range = space.allocate(namespace.into(), RECORD_CELLS);
        let range = range.ok_or_else(|| Error::from(space.no_room(RECORD_CELLS)))?;
        let record = WrittenPart {
            plan: plan.0.id,
            key,
            namespace,
            time_ns: prepare::time_ns(None),
            first_cell: lane.end_cell,
            record_cell: range.cell,
            chunks: sum.chunks,
            samples: sum.samples,
            sample_bytes,
            digest: sum.digest(),
        };
        let mut channel = media.channel(); // only now, when the channel of the chunks is closed
        lease.check()?;
        lane.append(&mut channel, (plan.0.id, namespace), record.record_cell, &record)?;
        Ok(record)
    }

    /// Refuses to write a part when the plan's commit has written a superblock.
    fn check_uncommitted(&self, channel: &mut Channel) -> Result<()> {
        let newest = channel.superblocks(self.namespace)?.newest().copied();
        if newest.is_none_or(|newest| newest.layout.uuid != self.plan.uuid()) {
            return Ok(());
        }
        let text = "the plan is being committed";
        Err(Error::new(ErrorKind::InvalidArgument, text)
            .hint("commit it again, and read the image"))
    }
}

/// A record is shorter than a cell.
const RECORD_CELLS: u64 = 1;

impl WritePlan {
    /// All complete parts on a namespace, the last one first.
    ///
    /// # Errors
    /// `Corrupt`: a record is damaged. Errors of reading.
    fn parts_on(
        &self,
        lane: Lane,
        namespace: u16,
        channel: &mut Channel,
    ) -> Result<Vec<WrittenPart>> {
        let address = channel.media.address(namespace);
        let damaged = |cell: u64| {
            let text = format!("the record of a written part, in cell {cell}, is damaged");
            Error::new(ErrorKind::Corrupt, text).target(address.clone())
        };
        let plan_and_namespace = (self.0.id, namespace);
        let mut parts = Vec::new();
        for (record, lane) in lane.records(channel, plan_and_namespace, &damaged)? {
            let part: WrittenPart = record.content;
            let cells = (record.previous.end_cell, lane.last_record);
            if (part.plan, part.namespace) != plan_and_namespace
                || (part.first_cell, part.record_cell) != cells
            {
                return Err(damaged(lane.last_record));
            }
            parts.push(part);
        }
        Ok(parts)
    }
}

impl WritePlan {
    /// Commits `parts`, in this order, as one generation. All other attempts become free space. Safe to repeat.
    ///
    /// # Errors
    /// `NotFound`: some parts are not on their namespaces. `InvalidArgument`: a part belongs to another plan,
    /// there is no sample at all, or two samples have the same name. `Busy`: a part is being written.
    /// `Corrupt`: a chunk is not the one that was written.
    pub fn commit(
        &self,
        parts: &[WrittenPart],
        connect: &ConnectOptions,
        progress: &mut dyn Progress,
    ) -> Result<WriteReport> {
        if let Some(other) = parts.iter().find(|part| part.plan != self.0.id) {
            return Err(invalid(format!("the written part {} is of another plan", other.key)));
        }
        self.commit_chosen(connect, progress, |found| {
            let is_missing = |part: &&WrittenPart| !found.contains(part);
            let missing: Vec<u64> = parts.iter().filter(is_missing).map(|part| part.key).collect();
            all_complete(&missing, HINT).map(|()| parts.to_vec())
        })
    }

    /// Commits the parts 0 to `count` - 1, in this order. If a part has several complete attempts, the last one
    /// counts.
    ///
    /// # Errors
    /// As [`commit`](Self::commit). `InvalidArgument`: a part has a larger number.
    pub fn commit_all(
        &self,
        count: u64,
        connect: &ConnectOptions,
        progress: &mut dyn Progress,
    ) -> Result<WriteReport> {
        self.commit_chosen(connect, progress, |found| {
            let last = last_attempts(found);
            if let Some((key, _)) = last.last_key_value().filter(|(key, _)| **key >= count) {
                let text = format!(
                    "part {key} is there, and the parts 0 to {} are committed",
                    count.saturating_sub(1)
                );
                return Err(Error::invalid(text, "say how many parts there are"));
            }
            let missing: Vec<u64> = (0..count).filter(|key| !last.contains_key(key)).collect();
            all_complete(&missing, HINT).map(|()| last.into_values().collect())
        })
    }

    /// The complete parts. If a part has several complete attempts, the last one is returned.
    ///
    /// # Errors
    /// `Busy`: a part is being written, on a namespace with an exclusive lock.
    pub fn complete(&self, connect: &ConnectOptions) -> Result<Vec<WrittenPart>> {
        let media = self.0.open(None, connect)?;
        let (_, found) = self.read_lanes(&mut media.channel())?;
        Ok(last_attempts(&found).into_values().collect())
    }

    fn commit_chosen(
        &self,
        connect: &ConnectOptions,
        progress: &mut dyn Progress,
        choose: impl Fn(&[WrittenPart]) -> Result<Vec<WrittenPart>>,
    ) -> Result<WriteReport> {
        let media = self.0.open(None, connect)?;
        let leases = Lease::take_all(&media, self.lease_limit())?;
        let done = once(&self.0.journal, &media, &leases, || {
            let (lanes, found) = self.read_lanes(&mut media.channel())?;
            self.commit_parts(&media, &leases, &lanes, &choose(&found)?, progress)
        })?;
        // Frees the space of records, and of attempts that do not count.
        trim(&media, &done, &leases[0])?;
        let len = |id| u64::from(done.directory.len_bytes(SampleId(id)).unwrap_or(0));
        let sample_bytes = (0..done.directory.num_samples()).map(len).sum();
        Ok(WriteReport { sample_bytes, ..WriteReport::of(&done.directory, &done.superblocks) })
    }

    /// Reads all lanes, and the records of the parts on them.
    fn read_lanes(&self, channel: &mut Channel) -> Result<(Vec<Lane>, Vec<WrittenPart>)> {
        let mut lanes = Vec::new();
        let mut found = Vec::new();
        for namespace in 0..channel.media.len() {
            let lane = self.lane(namespace, channel)?;
            found.extend(self.parts_on(lane, namespace, channel)?);
            lanes.push(lane);
        }
        Ok((lanes, found))
    }

    fn commit_parts(
        &self,
        media: &Media,
        leases: &[Lease],
        lanes: &[Lane],
        parts: &[WrittenPart],
        progress: &mut dyn Progress,
    ) -> Result<Commit> {
        let journal = &self.0.journal;
        let samples: u64 = parts.iter().map(|part| part.samples).sum();
        if samples == 0 {
            return Err(invalid("no sample was written"));
        }
        progress.stage(Stage::Committing, samples, 0);
        // Checksums are not read before the snapshot contains them, so they stay out of memory.
        let mut builder = DirectoryBuilder::new(journal.layout)
            .with_checksums_aside(Box::new(TemporaryColumn::default()));
        let mut sequence = 0;
        let mut channel = media.channel();
        for part in parts {
            leases.iter().try_for_each(Lease::check)?;
            self.add(part, sequence, &mut builder, &mut channel)?;
            sequence += part.chunks;
            progress.advance(part.samples, 0);
            check_stop(progress)?;
        }
        builder.set_classes(self.0.classes.clone());
        let directory = builder.finish(journal.generation, journal.time_ns)?;
        check_names(&directory)?;
        // Reserve the written parts: they must stay until the commit, which may be run again.
        let mut space = prepare::free_space(media, &journal.layout, None);
        for (namespace, lane) in (0..).zip(lanes) {
            space.reserve(CellRange { namespace, cell: 0, cells: lane.end_cell });
        }
        commit(media, leases, directory, &mut space)
    }

    /// Adds a part to the directory, and gives its chunks their places in the image, from number `first` on.
    fn add(
        &self,
        part: &WrittenPart,
        first: u64,
        builder: &mut DirectoryBuilder,
        channel: &mut Channel,
    ) -> Result<()> {
        let layout = &self.0.journal.layout;
        let draft = self.draft_layout();
        let wrong = |what: String| {
            let text = format!("part {} on namespace {} {what}", part.key, part.namespace);
            Error::new(ErrorKind::Corrupt, text)
                .hint("something else has written there: plan again, and write it again")
        };
        let mut cell = part.first_cell;
        let mut sum = PartSum::default();
        let mut len = BLOCK_BYTES;
        let end = layout.offset_of(part.record_cell)?;
        for sequence in (first..).take(part.chunks as usize) {
            let offset = layout.offset_of(cell)?;
            let first_slot = builder.next_slot();
            // The namespace may end at the record.
            let there = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
            let mut bytes =
                channel.read(part.namespace, offset, len.min(there).max(BLOCK_BYTES))?;
            let head = ChunkHead::parse(&bytes)
                .and_then(|head| {
                    let before = if head.layout.uuid == draft.uuid { &draft } else { layout };
                    head.check_location(before, part.namespace, cell).map(|()| head)
                })
                .map_err(|error| wrong(format!("is damaged: {error}")))?;
            sum.add(&head);
            let padded = (head.data_start() as usize).min(there); // a quarter of a chunk at most
            if bytes.len() < padded {
                bytes = channel.read(part.namespace, offset, padded)?;
            }
            len = padded; // the next chunk's header usually has about the same length
            let placed = placed(head, layout, first_slot, sequence);
            bytes[..HEAD_BYTES].copy_from_slice(placed.to_raw().as_bytes());
            let header = ChunkHeader::parse(&bytes)
                .map_err(|error| wrong(format!("is damaged: {error}")))?;
            builder.add_chunk(&header)?;
            if placed != head {
                channel.write_bytes(part.namespace, offset, &bytes[..BLOCK_BYTES])?;
            }
            cell += head.cell_range().cells;
        }
        let is_whole =
            (sum.samples, sum.digest(), cell) == (part.samples, part.digest, part.record_cell);
        is_whole.then_some(()).ok_or_else(|| wrong("is not the one that was written".into()))
    }
}

/// The head of a chunk at its final place in the image. Safe to apply twice: a head that has its final place is
/// unchanged.
fn placed(head: ChunkHead, layout: &ImageLayout, first_slot: Slot, sequence: u64) -> ChunkHead {
    let first = first_slot.0 - (head.first_slot.0 - head.part.first);
    let part = Part { first, ..head.part };
    let id = ChunkId { sequence, ..head.id };
    ChunkHead { layout: *layout, id, first_slot, part, ..head }
}

/// The last attempt of each part.
fn last_attempts(found: &[WrittenPart]) -> BTreeMap<u64, WrittenPart> {
    let mut found = found.to_vec();
    found.sort_by_key(|part| (part.time_ns, part.namespace, part.record_cell));
    found.into_iter().map(|part| (part.key, part)).collect()
}

/// Refuses two samples with the same name.
fn check_names(directory: &Directory) -> Result<()> {
    let Some((one, other)) = directory.find_same_names()? else { return Ok(()) };
    let name = directory.name(one)?.unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    let text = format!("the samples {} and {} have the same name, {name:?}", one.0, other.0);
    Err(Error::invalid(text, "plan again, and give the samples of all parts names of their own"))
}

const HINT: &str = "write each of them, and commit again";
