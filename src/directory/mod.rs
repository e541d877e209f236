//! The directory: which samples there are, what they are called, and where they lie. All in memory,
//! so that finding a sample sends no message and makes no system call. Pure.
//!
//! # What it is
//! Columns, and one search tree. A sample has an *id*, its rank in the source; users see ids. It lies
//! at a *slot*, its rank on media, and slot = P(id) is arithmetic (see [`crate::format::Placement`]).
//! So the columns by slot (length, checksum) are all that an extent needs: offsets follow from the
//! lengths, from a checkpoint every 32 slots on. Names lead to ids through a static search tree of
//! fingerprints; a lookup always compares the name.
//!
//! | part        | bytes a sample                     | of                                           |
//! |-------------|------------------------------------|----------------------------------------------|
//! | lengths     | 4                                  | u32 by slot                                  |
//! | checksums   | 4                                  | CRC32C by slot                               |
//! | tree        | 8.13 (9.13 above 2^32 samples)     | fingerprint and id, and 1/31 for inner nodes |
//! | checkpoints | 0.25                               | chunk and offset of every 32nd slot          |
//! | chunk table | 40 / samples a chunk: 0.63 from 64 | place and identity of each chunk             |
//! | deletions   | 0.27, none while nothing is deleted | one bit by id, one by slot, and ranks       |
//!
//! That is at most 17.3 of the 20 bytes that the design allows. Names and labels cost extra.
//!
//! The columns are the bytes of the snapshot on media: loading is reading and checking. Names lie at
//! its end and may stay there until something asks for them ([`Directory::attach_names`]).
//!
//! # What it is not
//! It is not mutable: a new generation makes a new one, which shares the columns that stay. It does no
//! I/O and knows no reader.
//!
//! # Invariants
//! Every extent lies within its chunk and every chunk within its namespace's cells, whatever the
//! snapshot said: [`Directory::from_snapshot`] lays all samples out once and refuses what does not fit.
//!
//! Read [`columns`](self) (`columns.rs`) first, then `tree.rs`, `names.rs`, `builder.rs`; `commit.rs`
//! says what an import writes at its end, `rebuild.rs` how the directory comes back without a snapshot.

mod builder;
mod bytes;
mod columns;
pub mod commit;
mod deleted;
mod labels;
mod learned;
mod listing;
mod names;
pub mod rebuild;
mod snapshot;
mod tree;
mod used_len;

use std::sync::{Arc, OnceLock};

pub use builder::DirectoryBuilder;
pub use bytes::Bytes;
pub use columns::{ChunkInfo, ChunkSamples};
pub use labels::Labels;
pub use learned::Learned;
pub use listing::{Entry, EntryKind};
pub use snapshot::SnapshotWriter;

use crate::format::checksum::fingerprint;
use crate::format::chunk::ChunkId;
use crate::format::{
    CellRange, Extent, FormatError, GenerationRecord, ImageLayout, Part, Placement, Uuid,
};
use crate::units::{Generation, SampleId, Slot};
use columns::Columns;
use deleted::DeletedSet;
use names::Names;
use tree::Tree;

/// All samples of one generation of an image. Immutable; share it in an `Arc`.
#[derive(Debug, Clone)]
pub struct Directory {
    layout: ImageLayout,
    generation: Generation,
    time_ns: u64,
    placements: Vec<Placement>,
    facts: Arc<Facts>,
    record_range: CellRange,
    columns: Columns,
    tree: Tree,
    deleted_ids: DeletedSet,
    deleted_slots: DeletedSet,
    labels: Option<Labels>,
    /// The checksums, where they are not written down anywhere.
    learned: Option<Arc<Learned>>,
    names: OnceLock<Names>,
    /// Where the names lie in the snapshot, while they are not loaded.
    names_on_media: Vec<crate::format::snapshot::Section>,
    /// What the head of the snapshot ends with, if it was read from one.
    head_crc32c: Option<u32>,
}

/// What is said once for the whole image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Facts {
    /// Time of the oldest chunk of each part.
    started_ns: Vec<u64>,
    fields: Vec<Vec<u8>>,
    classes: Vec<Vec<u8>>,
    freed: Vec<CellRange>,
}

impl Directory {
    /// The image.
    pub fn uuid(&self) -> Uuid {
        self.layout.uuid
    }

    /// What the whole image is like.
    pub fn layout(&self) -> &ImageLayout {
        &self.layout
    }

    /// The generation it describes.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Time of that generation, in ns since 1970.
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Ids given out, deleted samples included: ids are below this.
    pub fn num_samples(&self) -> u64 {
        self.columns.num_slots()
    }

    /// Samples there are.
    pub fn num_live(&self) -> u64 {
        self.num_samples() - self.deleted_ids.count()
    }

    /// The live sample with `rank` others before it, in the order of ids.
    ///
    /// # Panics
    /// If `rank` is not below [`num_live`](Self::num_live).
    #[inline]
    pub fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(self.deleted_ids.select_live(rank, self.num_samples()))
    }

    /// How many live samples have a smaller id: the inverse of [`id_of_live`](Self::id_of_live).
    pub fn rank_of(&self, id: SampleId) -> u64 {
        let id = id.0.min(self.num_samples());
        id - self.deleted_ids.before(id)
    }

    /// Whether there is a sample with this id: it was given out and is not deleted.
    #[inline]
    pub fn is_live(&self, id: SampleId) -> bool {
        id.0 < self.num_samples() && !self.deleted_ids.contains(id.0)
    }

    /// Where the sample lies; `None` when there is none with this id. At most 31 steps.
    #[inline]
    pub fn extent(&self, id: SampleId) -> Option<Extent> {
        if !self.is_live(id) {
            return None;
        }
        Some(self.columns.extent(self.slot_of(id)?, &self.layout))
    }

    /// Where each of `ids` lies, appended to `out` in their order; `None` where there is none with
    /// this id. `slots` is scratch.
    ///
    /// As [`extent`](Self::extent) for each, but so that the memory of many is on its way at a time.
    pub fn extents(&self, ids: &[SampleId], slots: &mut Vec<Slot>, out: &mut Vec<Option<Extent>>) {
        slots.clear();
        let there = |&id: &SampleId| if self.is_live(id) { self.slot_of(id) } else { None };
        slots.extend(ids.iter().map(|id| there(id).unwrap_or(NO_SLOT)));
        self.columns.extents(slots, &self.layout, out);
    }

    /// Length of the sample in bytes; `None` when there is none with this id.
    #[inline]
    pub fn len_bytes(&self, id: SampleId) -> Option<u32> {
        if !self.is_live(id) {
            return None;
        }
        Some(self.columns.len_bytes(self.slot_of(id)?))
    }

    /// Where the id lies on media; `None` when it was not given out.
    #[inline]
    pub fn slot_of(&self, id: SampleId) -> Option<Slot> {
        Some(self.placements[self.part_of(id.0)?].slot_of(id))
    }

    /// Which id lies at `slot`; `None` when there is no such slot.
    #[inline]
    pub fn id_at(&self, slot: Slot) -> Option<SampleId> {
        // Ids and slots of a part are the same range.
        Some(self.placements[self.part_of(slot.0)?].id_at(slot))
    }

    /// How many chunks there are. A chunk's index counts them in the order of slots.
    pub fn num_chunks(&self) -> u32 {
        self.columns.num_chunks()
    }

    /// Where chunk `c` lies, and what is in it.
    ///
    /// # Panics
    /// If there is no chunk `c`.
    pub fn chunk(&self, c: u32) -> ChunkInfo {
        self.columns.chunk(c, &self.layout)
    }

    /// The chunk that the id lies in; `None` when it was not given out.
    pub fn chunk_of(&self, id: SampleId) -> Option<u32> {
        Some(self.columns.chunk_of(self.slot_of(id)?))
    }

    /// Live samples of chunk `c`.
    ///
    /// # Panics
    /// If there is no chunk `c`.
    pub fn live_in_chunk(&self, c: u32) -> u32 {
        let slots = self.columns.slots_of(c);
        let deleted = self.deleted_slots.before(slots.end) - self.deleted_slots.before(slots.start);
        (slots.end - slots.start - deleted) as u32
    }

    /// The `nth` live sample of chunk `c`, from 0, in the order of slots.
    ///
    /// # Panics
    /// If chunk `c` has no `nth` live sample.
    #[inline]
    pub fn id_in_chunk(&self, c: u32, nth: u32) -> SampleId {
        let slots = self.columns.slots_of(c);
        let before = slots.start - self.deleted_slots.before(slots.start);
        let slot = self.deleted_slots.select_live(before + u64::from(nth), self.num_samples());
        assert!(slot < slots.end, "chunk {c} has no live sample {nth}");
        self.id_at(Slot(slot)).expect("a slot below the end is of a part")
    }

    /// The live samples of chunk `c` with their extents, in the order of slots; no search for each.
    ///
    /// # Panics
    /// If there is no chunk `c`.
    pub fn samples_in_chunk(&self, c: u32) -> ChunkSamples<'_> {
        ChunkSamples::new(self, c)
    }

    /// The live sample called `name`; the newest one where several are.
    ///
    /// Compares the name itself, never only its fingerprint.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media; see [`attach_names`](Self::attach_names).
    pub fn lookup(&self, name: &[u8]) -> Result<Option<SampleId>, FormatError> {
        let names = self.names()?;
        let key = fingerprint(self.layout.uuid.hash_seed(), name);
        let mut found = None;
        for id in self.tree.candidates(key) {
            if self.is_live(SampleId(id)) && names.is(id, name) {
                found = Some(SampleId(id));
            }
        }
        Ok(found)
    }

    /// Name of the sample, also of a deleted one; `None` when its id was not given out, or when its
    /// name went with a purge.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media.
    pub fn name(&self, id: SampleId) -> Result<Option<Vec<u8>>, FormatError> {
        let mut name = Vec::new();
        Ok(self.name_into(id, &mut name)?.then_some(name))
    }

    /// As [`name`](Self::name), into a buffer that is used again; false when there is none.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media.
    pub fn name_into(&self, id: SampleId, name: &mut Vec<u8>) -> Result<bool, FormatError> {
        let names = self.names()?;
        name.clear();
        if id.0 >= self.num_samples() {
            return Ok(false);
        }
        names.get(id.0, name)?;
        Ok(!name.is_empty() || self.is_live(id))
    }

    /// What lies directly in `folder`: subfolders and samples, in the order of names. The folder of
    /// everything is empty; others are written with or without a slash at their end.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media.
    pub fn list(&self, folder: &[u8]) -> Result<Vec<Entry>, FormatError> {
        let mut entries = Vec::new();
        self.for_each_in(folder, &mut |entry| {
            entries.push(entry);
            true
        })?;
        Ok(entries)
    }

    /// Label of the sample; `None` when it has none, or there is no sample with this id. No I/O.
    #[inline]
    pub fn label(&self, id: SampleId) -> Option<i64> {
        if !self.is_live(id) {
            return None;
        }
        self.labels.as_ref()?.get(id.0)
    }

    /// The column of all labels, by id; `None` when no sample has one.
    pub fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    /// The checksums that are learned at first read; `None` where all of them are on media.
    pub fn learned(&self) -> Option<&Arc<Learned>> {
        self.learned.as_ref()
    }

    /// Names of the classes: a label is an index into it. Empty where labels are numbers.
    pub fn classes(&self) -> &[Vec<u8>] {
        &self.facts.classes
    }

    /// Names of the fields of a sample, in their order in its record; empty for one without a name.
    pub fn fields(&self) -> &[Vec<u8>] {
        &self.facts.fields
    }

    /// Its parts, in the order of ids: what each import or append wrote.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.placements.iter().map(Placement::part)
    }

    /// Deleted ids in ascending ranges of (first, length).
    pub fn deleted_ranges(&self) -> Vec<(u64, u64)> {
        self.deleted_ids.ranges()
    }

    /// The cells that this generation reads, its snapshot not counted (the superblock names that).
    pub fn cell_ranges(&self) -> impl Iterator<Item = CellRange> {
        let record = (self.record_range.cells > 0).then_some(self.record_range);
        self.columns.cell_ranges(&self.layout).chain(record)
    }

    /// The cells that the generation before this one reads and this one does not.
    pub fn freed(&self) -> &[CellRange] {
        &self.facts.freed
    }

    /// Whether the names are in memory.
    pub fn has_names(&self) -> bool {
        self.names.get().is_some()
    }

    /// This directory with `ids` deleted, as the next `generation`. Shares the columns with this one.
    /// Ids that were deleted already stay so.
    ///
    /// # Errors
    /// `OutOfRange`: an id was not given out.
    pub fn with_deleted(
        &self,
        ids: &[SampleId],
        generation: Generation,
        time_ns: u64,
    ) -> Result<Directory, FormatError> {
        let len = self.num_samples();
        let mut by_id = self.deleted_ids.to_bits(len);
        let mut by_slot = self.deleted_slots.to_bits(len);
        for &id in ids {
            let slot = self.slot_of(id).ok_or(FormatError::OutOfRange {
                what: "id of a sample",
                value: id.0,
                limit: self.num_samples().saturating_sub(1),
            })?;
            by_id.set(id.0);
            by_slot.set(slot.0);
        }
        let facts = Facts { freed: Vec::new(), ..(*self.facts).clone() };
        Ok(Directory {
            generation,
            time_ns,
            facts: Arc::new(facts),
            record_range: CellRange::default(),
            head_crc32c: None,
            deleted_ids: by_id.finish(),
            deleted_slots: by_slot.finish(),
            ..self.clone()
        })
    }

    /// The facts that the chunks do not carry, to be written as the generation record.
    pub fn record(&self) -> GenerationRecord {
        GenerationRecord {
            layout: self.layout,
            generation: self.generation,
            time_ns: self.time_ns,
            num_chunks: u64::from(self.num_chunks()),
            parts: self.parts().copied().collect(),
            started_ns: self.facts.started_ns.clone(),
            fields: self.facts.fields.clone(),
            classes: self.facts.classes.clone(),
            deleted: self.deleted_ranges(),
            freed: self.facts.freed.clone(),
        }
    }

    /// Memory by part, in bytes.
    pub fn memory_bytes(&self) -> Memory {
        let (names, name_order) = self.names.get().map_or((0, 0), Names::memory_bytes);
        Memory {
            lengths_and_checksums: self.num_samples() * 8
                + self.learned.as_ref().map_or(0, |learned| learned.memory_bytes()),
            checkpoints: self.columns.checkpoint_bytes(),
            chunks: self.columns.chunk_bytes(),
            tree: self.tree.memory_bytes(),
            deletions: self.deleted_ids.memory_bytes() + self.deleted_slots.memory_bytes(),
            labels: self.labels.as_ref().map_or(0, Labels::memory_bytes),
            names,
            name_order,
        }
    }

    /// Height of the lookup tree: nodes that a lookup visits. At most `ceil(log32(samples))`, and 1.
    pub fn tree_height(&self) -> u32 {
        self.tree.height()
    }

    /// Index of the part that has this id, and equally this slot.
    #[inline]
    fn part_of(&self, id: u64) -> Option<usize> {
        let index = match self.placements.len() {
            1 => 0,
            _ => self.placements.partition_point(|part| part.part().first <= id).checked_sub(1)?,
        };
        self.placements.get(index)?.contains(id).then_some(index)
    }

    fn names(&self) -> Result<&Names, FormatError> {
        self.names.get().ok_or(FormatError::NotLoaded { what: "names" })
    }

    /// Identity of chunk `c` as its header must have it.
    ///
    /// # Panics
    /// If there is no chunk `c`.
    pub fn chunk_id(&self, c: u32) -> ChunkId {
        self.columns.chunk_id(c)
    }
}

/// Stands for a sample that there is not: a data set has at most 2^40.
const NO_SLOT: Slot = Slot(u64::MAX);

/// Bytes of memory that a directory takes, by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Length and checksum columns: 8 bytes a sample.
    pub lengths_and_checksums: u64,
    /// Where every 32nd slot lies.
    pub checkpoints: u64,
    /// The chunk table.
    pub chunks: u64,
    /// The lookup tree.
    pub tree: u64,
    /// Deletion bitmaps and their ranks.
    pub deletions: u64,
    /// The label column.
    pub labels: u64,
    /// The names, if they are loaded.
    pub names: u64,
    /// The order of names, where it is not that of ids.
    pub name_order: u64,
}

impl Memory {
    /// All of it beside names and labels: what the design allows 20 bytes a sample for.
    pub fn core(&self) -> u64 {
        let Memory { lengths_and_checksums, checkpoints, chunks, tree, deletions, .. } = *self;
        lengths_and_checksums + checkpoints + chunks + tree + deletions
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.core() + self.labels + self.names + self.name_order
    }
}
