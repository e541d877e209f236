//! The commit of parts that programs wrote, as one generation.
//!
//! A part is complete once the mark of its namespace points to its record; each record points to the previous one. The
//! commit reads the header of each chunk, and gives the chunk its ids, slots and number in the image.

use std::collections::BTreeMap;

use zerocopy::IntoBytes;

use crate::import::commit::commit;
use crate::import::committed::free_space;
use crate::import::lease::Lease;
use crate::import::many::write_plan::WritePlan;
use crate::import::many::{all_complete, check_stop, commit_once};
use crate::import::marks::Lane;
use crate::import::media::{Channel, Media};
use crate::import::options::{Progress, Stage};
use crate::import::scan::BLOCK_BYTES;
use crate::import::temporary_column::TemporaryColumn;
use crate::import::trim::trim;
use crate::import::writer::WriteReport;
use crate::import::written_part::{PartSum, WrittenPart};
use dlfs_base::error::invalid;
use dlfs_base::units::{SampleId, Slot};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::commit::Commit;
use dlfs_format::directory::{Directory, DirectoryBuilder};
use dlfs_format::format::chunk::{ChunkId, HEAD_BYTES};
use dlfs_format::format::{CellRange, ChunkHead, ChunkHeader, ImageLayout, Part};
use dlfs_io::qpair::ConnectOptions;

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
    /// `Busy`: a part is being written, on a namespace with an exclusive lock. Otherwise as [`commit`](Self::commit),
    /// for opening and reading.
    pub fn complete(&self, connect: &ConnectOptions) -> Result<Vec<WrittenPart>> {
        let media = self.0.open(None, connect)?;
        let (_, found) = self.read_lanes(&mut media.channel())?;
        Ok(last_attempts(&found).into_values().collect())
    }

    /// Commits the parts that `choose` returns, of all complete ones.
    fn commit_chosen(
        &self,
        connect: &ConnectOptions,
        progress: &mut dyn Progress,
        choose: impl Fn(&[WrittenPart]) -> Result<Vec<WrittenPart>>,
    ) -> Result<WriteReport> {
        let media = self.0.open(None, connect)?;
        let leases = Lease::take_all(&media, self.lease_limit())?;
        let done = commit_once(&self.0.journal, &media, &leases, || {
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

    /// Commits `parts`, whose namespaces have the lanes `lanes`.
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
        let mut space = free_space(media, &journal.layout, None);
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

/// The hint in errors about missing parts.
const HINT: &str = "write each of them, and commit again";
