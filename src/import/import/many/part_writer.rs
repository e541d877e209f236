//! The writer of one part. Its thread places one shuffle window of samples after the other in chunks, behind the parts
//! that the namespace has already, and then writes a record for the commit.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::import::chunk_stream::ChunkStream;
use crate::import::committed::free_space;
use crate::import::journal::Journal;
use crate::import::lease::Lease;
use crate::import::many::write_plan::WritePlan;
use crate::import::media::{Channel, Media};
use crate::import::prepare::{ImportState, time_ns};
use crate::import::writer::{NewSample, Placer, Started, Thread, Windows, Writer};
use crate::import::written_part::{PartSum, WrittenPart};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::{CellRange, Part};
use dlfs_io::qpair::ConnectOptions;

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
            let run = move |thread: &Thread| part.run(&connect, thread);
            match Writer::start_part(plan.0.parts.windows, &plan.0.fields, run) {
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
    /// The number of the part.
    key: u64,
    /// The index of the namespace in the image.
    namespace: u16,
}

impl NewPart {
    /// Writes the part, until it ends, fails, or its writer is dropped. A part that does not end stays free space.
    fn run(&self, connect: &ConnectOptions, thread: &Thread) -> Result<WrittenPart> {
        let media = self.plan.0.open(Some(self.namespace), connect)?;
        let lease = Lease::take(&media, self.plan.lease_limit())?;
        let count = self.plan.0.journal.layout.num_namespaces;
        lease.explain(self.write(media.placed(self.namespace, count)?, &lease, thread))
    }

    /// Writes chunks, then their record. `media` has the namespace at its place in the image.
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
        let mut space = free_space(media, &layout, None);
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
            time_ns: time_ns(None),
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
        Err(Error::new(ErrorKind::InvalidArgument, "the plan is being committed")
            .hint("commit it again, and read the image"))
    }
}

/// Cells of a record, which is shorter than a cell.
const RECORD_CELLS: u64 = 1;
