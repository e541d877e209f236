//! Directories made from another one: after a delete, after a purge, and of a view.
//!
//! Ids and slots stay the same. A delete and a view only mark samples as deleted, and share all columns. A purge
//! rewrites chunks without their deleted samples: the columns are copied, the entries of dropped samples are cleared,
//! and chunk table and checkpoints are made anew. The result equals a directory built from all chunks, but making it
//! takes only a few passes over flat columns.

use std::sync::Arc;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::directory::builder::raw_chunk;
use crate::directory::columns::{Checkpoint, Columns, RawChunk, STRIDE, Walk};
use crate::directory::typed::{LabelRange, Labels, NO_LABEL};
use crate::directory::{Bytes, Directory, IdSet, ImageMetadata};
use crate::format::error::{equal, out_of_range};
use crate::format::{CellRange, ChunkHead, FormatError, Pack};
use dlfs_base::units::{Generation, SampleId, Slot};

/// A generation in which some samples have moved to new chunks.
#[derive(Debug, Clone, Copy)]
pub struct Rewrite<'a> {
    /// The new chunks, in the order of slots. Consecutive new chunks together cover exactly the slots of one or more
    /// old chunks.
    pub chunks: &'a [ChunkHead],
    /// The generation.
    pub generation: Generation,
    /// Time of the generation, in ns since 1970.
    pub time_ns: u64,
    /// The first generation of the purge, which may write several generations.
    pub since: Generation,
}

/// Identifies the view that a directory belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewMark {
    /// The hash of the view's set of samples.
    pub hash: [u8; 16],
    /// The number of keyed splits that led to the view.
    pub splits: u32,
}

impl Directory {
    /// This directory with `ids` deleted, as the next `generation`. Shares the columns with this one.
    /// Already deleted ids stay deleted.
    ///
    /// # Errors
    /// `OutOfRange`: an id was not assigned.
    pub fn with_deleted(
        &self,
        ids: &[SampleId],
        generation: Generation,
        time_ns: u64,
    ) -> Result<Directory, FormatError> {
        let len = self.num_samples();
        let mut by_id = self.deleted_ids.to_ids(len);
        let mut by_slot = self.deleted_slots.to_ids(len);
        for &id in ids {
            let unknown = || out_of_range("id of a sample", id.0, len.saturating_sub(1));
            let slot = self.slot_of(id).ok_or_else(unknown)?;
            by_id.insert(id.0);
            by_slot.insert(slot.0);
        }
        let metadata = ImageMetadata { freed: Vec::new(), ..(*self.metadata).clone() };
        Ok(Directory {
            generation,
            time_ns,
            metadata: Arc::new(metadata),
            record_range: CellRange::default(),
            head_crc32c: None,
            deleted_ids: by_id.into(),
            deleted_slots: by_slot.into(),
            ..self.clone()
        })
    }

    /// This directory as another generation, with new chunks. Deleted samples in the slots of the new chunks lose their
    /// length, checksum, name, label and typed values.
    ///
    /// # Errors
    /// `NotLoaded`: names or lookup tree are still on media. `Mismatch`: the new chunks do not replace whole old
    /// chunks. Other errors: a name is damaged.
    pub fn rewritten(&self, rewrite: &Rewrite<'_>) -> Result<Directory, FormatError> {
        let table = self.spliced(rewrite.chunks)?;
        let mut lengths = self.columns.lengths.to_vec();
        let mut checksums = self.columns.checksums.to_vec();
        let dead = rewrite.chunks.iter().flat_map(|head| head.first_slot.0..head.end_slot().0);
        let mut dropped = IdSet::new(self.num_samples());
        for slot in dead.filter(|slot| self.deleted_slots.contains(*slot)) {
            let at = slot as usize * 4;
            lengths[at..at + 4].fill(0);
            checksums[at..at + 4].fill(0);
            let id = self.id_at(Slot(slot)).expect("a slot below the end is of a part");
            dropped.insert(id.0);
        }
        let started_ns = self.started_ns(&table, rewrite);
        let lengths = Bytes::from(lengths);
        let checksums = Bytes::from(checksums);
        let checkpoints = checkpoints(&table, &lengths, self.layout.pack);
        let columns = Columns {
            chunks: table.as_bytes().to_vec().into(),
            checkpoints: checkpoints.as_bytes().to_vec().into(),
            lengths,
            checksums,
            aside: None,
        };
        let metadata = ImageMetadata { started_ns, freed: Vec::new(), ..(*self.metadata).clone() };
        let mut directory = Directory {
            generation: rewrite.generation,
            time_ns: rewrite.time_ns,
            metadata: metadata.into(),
            record_range: CellRange::default(),
            head_crc32c: None,
            columns,
            ..self.clone()
        };
        if !dropped.is_empty() {
            directory.drop_names(&dropped)?;
        }
        Ok(directory)
    }

    /// The directory of the samples in `members`, all live in this one. Shares the columns with this one.
    pub(crate) fn viewed(&self, members: &IdSet, mark: ViewMark) -> Directory {
        let len = self.num_samples();
        let mut absent = IdSet::full(len);
        absent.remove_all(members);
        let slot = |id| self.slot_of(SampleId(id)).expect("all ids below the end have a slot").0;
        // Compute the slots of the smaller set: absent ids or members.
        let mut slots = IdSet::new(len);
        if absent.count() <= members.count() {
            absent.iter().for_each(|id| _ = slots.insert(slot(id)));
        } else {
            slots = IdSet::full(len);
            members.iter().for_each(|id| slots.remove(slot(id)));
        }
        Directory {
            deleted_ids: absent.into(),
            deleted_slots: slots.into(),
            view: Some(mark),
            ..self.clone()
        }
    }

    /// The ids of the live samples.
    pub(crate) fn live_ids(&self) -> IdSet {
        let mut live = IdSet::full(self.num_samples());
        live.remove_all(&self.deleted_ids.to_ids(self.num_samples()));
        live
    }

    /// Drops names, labels, values of typed columns and tree entries of the ids in `dropped`.
    fn drop_names(&mut self, dropped: &IdSet) -> Result<(), FormatError> {
        let num_samples = self.num_samples();
        self.names = Arc::new(self.names()?.without(dropped)?.into());
        let tree = self.tree()?.without(num_samples, |id| dropped.contains(id));
        self.tree = Arc::new(tree.into());
        self.typed = self.typed.without(num_samples, &|id| dropped.contains(id));
        let Some(labels) = &self.labels else { return Ok(()) };
        let label =
            |id| if dropped.contains(id) { NO_LABEL } else { labels.get(id).unwrap_or(NO_LABEL) };
        let mut range = LabelRange::default();
        (0..num_samples).for_each(|id| range.take(label(id)));
        self.labels = Labels::extended(None, 0, (0..num_samples).map(label), range);
        Ok(())
    }

    /// The chunk table in which the `new` chunks replace the old chunks of the same slots.
    fn spliced(&self, new: &[ChunkHead]) -> Result<Vec<RawChunk>, FormatError> {
        let old = self.columns.table();
        let mut table = Vec::with_capacity(old.len());
        let mut new = new.iter().peekable();
        let mut next_slot = 0;
        let mut at = 0;
        while next_slot < self.num_samples() {
            if let Some(head) = new.next_if(|head| head.first_slot.0 == next_slot) {
                table.push(raw_chunk(head));
                next_slot = head.end_slot().0;
                continue;
            }
            at += old[at..].partition_point(|chunk| chunk.first_slot.get() < next_slot);
            let slots = match old.get(at) {
                Some(chunk) => chunk.first_slot.get()..self.columns.slots_of(at as u32).end,
                None => self.num_samples()..self.num_samples(),
            };
            equal("first slot of a chunk behind rewritten ones", next_slot, slots.start)?;
            table.push(old[at]);
            next_slot = slots.end;
        }
        equal("rewritten chunks without a place", 0, new.count() as u64)?;
        Ok(table)
    }

    /// The time of the oldest chunk of each part. It becomes the time of this generation if the part has chunks that
    /// are not lost, and the purge rewrote all of them.
    fn started_ns(&self, table: &[RawChunk], rewrite: &Rewrite<'_>) -> Vec<u64> {
        let parts = self.parts().zip(&self.metadata.started_ns);
        let of_part = parts.map(|(part, &started_ns)| {
            let first = |slot| table.partition_point(|chunk| chunk.first_slot.get() < slot);
            let chunks = &table[first(part.first)..first(part.first + part.count)];
            let there = chunks.iter().filter(|chunk| !chunk.is_lost());
            let oldest = there.map(|chunk| chunk.generation.get()).min();
            let is_rewritten = oldest.is_some_and(|oldest| oldest >= rewrite.since.0);
            if is_rewritten { rewrite.time_ns } else { started_ns }
        });
        of_part.collect()
    }
}

/// The checkpoints of samples with these `lengths` in the chunks of `table`.
fn checkpoints(table: &[RawChunk], lengths: &Bytes, pack: Pack) -> Vec<Checkpoint> {
    let lengths = lengths.items::<U32>();
    let mut checkpoints = Vec::with_capacity(lengths.len().div_ceil(STRIDE));
    for (index, chunk) in table.iter().enumerate() {
        let mut walk = Walk::new(pack);
        let end = table.get(index + 1).map_or(lengths.len() as u64, |next| next.first_slot.get());
        for slot in chunk.first_slot.get()..end {
            let at = walk.step(lengths[slot as usize].get());
            if slot.is_multiple_of(STRIDE as u64) {
                let chunk = index as u32;
                checkpoints.push(Checkpoint { chunk: chunk.into(), at: (at as u32).into() });
            }
        }
    }
    checkpoints
}
