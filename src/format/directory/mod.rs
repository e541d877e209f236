//! The directory: ids, names and locations of an image's samples, all in memory. So finding a sample needs neither a
//! message nor a system call. Pure.
//!
//! # What it is
//! Columns and one search tree. Users see a sample's *id*: its position in the source. Its *slot* is its position on
//! media. The map from id to slot is computed (see [`crate::format::Placement`]), not stored. The columns by slot hold
//! an extent's length and checksum. Its offset is computed from the lengths after the nearest checkpoint; every 32nd
//! slot has a checkpoint. A static search tree maps fingerprints of names to ids; a lookup always compares the name
//! too.
//!
//! | part        | bytes a sample                     | contents                                     |
//! |-------------|------------------------------------|----------------------------------------------|
//! | lengths     | 4                                  | u32 by slot                                  |
//! | checksums   | 4                                  | CRC32C by slot                               |
//! | tree        | 8.13 (9.13 above 2^32 samples)     | fingerprint and id, and 1/31 for inner nodes |
//! | checkpoints | 0.25                               | chunk and offset of every 32nd slot          |
//! | chunk table | 40 / samples a chunk: 0.63 from 64 | location and identity of each chunk          |
//! | deletions   | 0.28, none while nothing is deleted | one bit by id, one by slot, and ranks       |
//!
//! That is at most 17.3 of the 20 bytes that the design allows, up to 2^32 samples and from 64 samples a chunk on.
//! Names, labels and typed columns are extra.
//!
//! The columns have the same bytes in memory as in the snapshot on media, so loading only reads and verifies them.
//! Tree and names may stay on media until the first lookup by name ([`Directory::attach_tree`],
//! [`Directory::attach_names`]). Reading by id, as training does, takes at most 9.2 bytes of memory a sample.
//!
//! # What it is not
//! It is not mutable: a new generation has a new directory, which shares the columns if samples were only deleted. It
//! does no I/O and has no state of readers.
//!
//! # Invariants
//! Every extent lies within its chunk, even if the snapshot is malformed: [`Directory::from_snapshot`] computes the
//! offset of every sample once and rejects a bad snapshot. [`Directory::check_opened`] checks that every chunk lies
//! within the used length of its namespace.
//!
//! Read `columns.rs` first, then `tree.rs`, `names.rs`, `builder.rs`. `snapshot.rs` decodes and encodes a snapshot,
//! `commit.rs` prepares the last writes of an import, and `rebuild.rs` restores the directory without a snapshot.
//! `derived.rs` makes the directories after a delete, after a purge, and of a view. `intact.rs` verifies samples.

mod builder;
mod bytes;
mod columns;
pub mod commit;
mod derived;
mod ids;
mod intact;
mod listing;
mod names;
mod names_writer;
pub mod rebuild;
mod snapshot;
mod tree;
mod typed;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use zerocopy::little_endian::U32;

pub use builder::{DirectoryBuilder, RunSample};
pub use bytes::Bytes;
pub use columns::{ChunkInfo, ChunkSamples, KeepsAside};
pub use derived::{Rewrite, ViewMark};
pub(crate) use ids::Ones;
pub use ids::{IdSet, by_word};
pub use intact::{Intact, Learned};
pub use listing::{Entry, EntryKind};
pub use snapshot::SnapshotWriter;
pub use typed::{Column, Labels};

use crate::format::chunk::ChunkId;
use crate::format::names::fingerprint;
use crate::format::snapshot::{SectionKind, SnapshotHead};
use crate::format::{
    CellRange, Extent, FieldTypes, FormatError, GenerationRecord, ImageLayout, Part, Placement,
    Uuid,
};
use columns::{Columns, PAGE};
use dlfs_base::units::{Generation, SampleId, Slot};
use ids::DeletedSet;
use names::Names;
use tree::Tree;
use typed::TypedColumns;

/// All samples of one generation of an image. Immutable; share it in an `Arc`.
#[derive(Debug, Clone)]
pub struct Directory {
    layout: ImageLayout,
    generation: Generation,
    /// The time of the generation, in ns since 1970.
    time_ns: u64,
    /// The placement of each part, in the order of slots.
    placements: Vec<Placement>,
    metadata: Arc<ImageMetadata>,
    /// The cells of the generation record; none before the commit.
    record_range: CellRange,
    columns: Columns,
    /// Shared like `names`.
    tree: Arc<OnceLock<Tree>>,
    deleted_ids: DeletedSet,
    deleted_slots: DeletedSet,
    labels: Option<Labels>,
    typed: TypedColumns,
    /// Checksums computed at first read; `None` if the checksum column has them.
    learned: Option<Arc<Learned>>,
    /// Shared by all generations and views of the image that have the same names.
    names: Arc<OnceLock<Names>>,
    /// The objects that the image was imported from. Shared like `names`.
    origins: Arc<OnceLock<Bytes>>,
    /// The head of the snapshot, if the directory or the one that it was made from was decoded: tree, names and origins
    /// may still be on media.
    on_media: Option<Arc<SnapshotHead>>,
    /// The CRC32C at the end of the snapshot's head; `None` unless this generation was decoded from a snapshot.
    head_crc32c: Option<u32>,
    /// The view, if this directory has only some of the generation's samples.
    view: Option<ViewMark>,
}

/// Metadata of the whole image: as in a [`GenerationRecord`], which explains each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ImageMetadata {
    started_ns: Vec<u64>,
    fields: Vec<Vec<u8>>,
    field_types: FieldTypes,
    classes: Vec<Vec<u8>>,
    freed: Vec<CellRange>,
}

impl Directory {
    /// UUID of the image.
    pub fn uuid(&self) -> Uuid {
        self.layout.uuid
    }

    /// Properties of the whole image.
    pub fn layout(&self) -> &ImageLayout {
        &self.layout
    }

    /// The generation that this directory describes.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Time of the generation, in ns since 1970.
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// The view, if this directory has only some of the generation's samples.
    pub fn view(&self) -> Option<ViewMark> {
        self.view
    }

    /// Number of ids assigned so far, deleted samples included. All ids are below it.
    pub fn num_samples(&self) -> u64 {
        self.columns.num_slots()
    }

    /// Number of live samples.
    pub fn num_live(&self) -> u64 {
        self.num_samples() - self.deleted_ids.count()
    }

    /// Id of the live sample with `rank` live samples before it, in the order of ids.
    ///
    /// # Panics
    /// If `rank` is not below [`num_live`](Self::num_live).
    #[inline]
    pub fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(self.deleted_ids.select_live(rank, self.num_samples()))
    }

    /// The number of live samples with a smaller id: the inverse of [`id_of_live`](Self::id_of_live).
    pub fn rank_of(&self, id: SampleId) -> u64 {
        let id = id.0.min(self.num_samples());
        id - self.deleted_ids.before(id)
    }

    /// Returns whether this id was assigned and is not deleted.
    #[inline]
    pub fn is_live(&self, id: SampleId) -> bool {
        id.0 < self.num_samples() && !self.deleted_ids.contains(id.0)
    }

    /// The extent of the sample; `None` if no live sample has this id. At most 31 steps from a checkpoint.
    #[inline]
    pub fn extent(&self, id: SampleId) -> Option<Extent> {
        Some(self.columns.extent(self.live_slot(id)?, &self.layout))
    }

    /// Appends the extents of `ids` to `out`, in the order of `ids`; `None` where no live sample has the id.
    /// `slots` is scratch memory.
    ///
    /// Same results as [`extent`](Self::extent) for each id, but faster: the cache misses of many ids overlap.
    pub fn extents(&self, ids: &[SampleId], slots: &mut Vec<Slot>, out: &mut Vec<Option<Extent>>) {
        slots.clear();
        slots.extend(ids.iter().map(|&id| self.live_slot(id).unwrap_or(NO_SLOT)));
        self.columns.extents(slots, &self.layout, out);
    }

    /// Length of the sample in bytes; `None` if no live sample has this id.
    #[inline]
    pub fn len_bytes(&self, id: SampleId) -> Option<u32> {
        Some(self.columns.len_bytes(self.live_slot(id)?))
    }

    /// The lengths of the samples at `slots` in bytes; also of samples that are not live.
    ///
    /// # Panics
    /// If there are no such slots.
    pub fn lens_bytes(&self, slots: Range<u64>) -> impl Iterator<Item = u32> + '_ {
        let lengths = self.columns.lengths.items::<U32>();
        lengths[slots.start as usize..slots.end as usize].iter().map(|len| len.get())
    }

    /// The CRC32C of the sample at each of `slots`, deleted samples included.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn checksums(&self, slots: Range<u64>) -> impl Iterator<Item = u32> + '_ {
        slots.map(|slot| self.columns.crc32c(Slot(slot)))
    }

    /// The slot of the id; `None` if the id was not assigned.
    #[inline]
    pub fn slot_of(&self, id: SampleId) -> Option<Slot> {
        Some(self.placements[self.part_of(id.0)?].slot_of(id))
    }

    /// The id at `slot`; `None` if there is no such slot.
    #[inline]
    pub fn id_at(&self, slot: Slot) -> Option<SampleId> {
        // A part's ids and its slots are the same range of numbers.
        Some(self.placements[self.part_of(slot.0)?].id_at(slot))
    }

    /// Number of chunks. Chunks are indexed in the order of slots.
    pub fn num_chunks(&self) -> u32 {
        self.columns.table().len() as u32
    }

    /// The location of chunk `c`, and its slots.
    ///
    /// # Panics
    /// If there is no chunk `c`.
    pub fn chunk(&self, c: u32) -> ChunkInfo {
        let slots = self.columns.slots_of(c);
        let chunk = &self.columns.table()[c as usize];
        ChunkInfo {
            namespace: chunk.namespace.get(),
            offset_bytes: chunk.offset_bytes(&self.layout),
            len_bytes: u64::from(chunk.pages.get()) * PAGE,
            header_bytes: chunk.data_start(),
            first_slot: Slot(slots.start),
            num_slots: (slots.end - slots.start) as u32,
        }
    }

    /// The chunk of the id; `None` if the id was not assigned.
    pub fn chunk_of(&self, id: SampleId) -> Option<u32> {
        Some(self.columns.chunk_of(self.slot_of(id)?))
    }

    /// Number of live samples in chunk `c`.
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
        self.id_at(self.slot_in_chunk(c, nth)).expect("a slot below the end is of a part")
    }

    /// The extent of the `nth` live sample of chunk `c`, from 0. Offsets ascend with `nth`.
    ///
    /// # Panics
    /// If chunk `c` has no `nth` live sample.
    pub fn extent_in_chunk(&self, c: u32, nth: u32) -> Extent {
        self.columns.extent(self.slot_in_chunk(c, nth), &self.layout)
    }

    /// The length in bytes of the `nth` live sample of chunk `c`, from 0. Needs no id.
    ///
    /// # Panics
    /// If chunk `c` has no `nth` live sample.
    #[inline]
    pub fn len_in_chunk(&self, c: u32, nth: u32) -> u32 {
        self.columns.len_bytes(self.slot_in_chunk(c, nth))
    }

    #[inline]
    fn slot_in_chunk(&self, c: u32, nth: u32) -> Slot {
        let slots = self.columns.slots_of(c);
        let before = slots.start - self.deleted_slots.before(slots.start);
        let slot = self.deleted_slots.select_live(before + u64::from(nth), self.num_samples());
        assert!(slot < slots.end, "chunk {c} has no live sample {nth}");
        Slot(slot)
    }

    /// The chunk of the live sample `id`, and its 0-based position among the chunk's live samples: the inverse of
    /// [`id_in_chunk`](Self::id_in_chunk). `None` if there is no live sample `id`.
    #[inline]
    pub fn place_in_chunk(&self, id: SampleId) -> Option<(u32, u32)> {
        let slot = self.slot_of(id).filter(|slot| !self.deleted_slots.contains(slot.0))?;
        let c = self.columns.chunk_of(slot);
        let start = self.columns.slots_of(c).start;
        let deleted = self.deleted_slots.before(slot.0) - self.deleted_slots.before(start);
        Some((c, (slot.0 - start - deleted) as u32))
    }

    /// The live samples of chunk `c` with their extents, in the order of slots. Needs no search per sample.
    ///
    /// # Panics
    /// If there is no chunk `c`.
    pub fn samples_in_chunk(&self, c: u32) -> ChunkSamples<'_> {
        ChunkSamples::new(self, c)
    }

    /// The live sample called `name`; the newest one if there are several; `None` if there is none.
    ///
    /// Compares whole names, never only fingerprints. A damaged name matches none.
    ///
    /// # Errors
    /// `NotLoaded`: names or lookup tree are still on media; see [`attach_names`](Self::attach_names) and
    /// [`attach_tree`](Self::attach_tree).
    pub fn lookup(&self, name: &[u8]) -> Result<Option<SampleId>, FormatError> {
        let names = self.names()?;
        let tree = self.tree()?;
        let key = fingerprint(self.layout.uuid.hash_seed(), name);
        let mut found = None;
        for id in tree.candidates(key) {
            if self.is_live(SampleId(id)) && names.is(id, name) {
                found = Some(SampleId(id));
            }
        }
        Ok(found)
    }

    /// Finds two samples with the same name, deleted or not; `None` if all names differ.
    ///
    /// # Errors
    /// `NotLoaded`: names or lookup tree are still on media. Other errors: a name is damaged.
    pub fn find_same_names(&self) -> Result<Option<(SampleId, SampleId)>, FormatError> {
        for ids in self.tree()?.sharing() {
            let mut named = Vec::with_capacity(ids.len());
            for id in ids {
                named.push((self.name(SampleId(id))?, id));
            }
            named.sort_unstable();
            if let Some(pair) = named.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Ok(Some((SampleId(pair[0].1), SampleId(pair[1].1))));
            }
        }
        Ok(None)
    }

    /// Name of the sample, deleted or not; `None` if its id was not assigned, or if its name was lost with its chunk or
    /// dropped by a purge.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: the name is damaged.
    pub fn name(&self, id: SampleId) -> Result<Option<Vec<u8>>, FormatError> {
        let mut name = Vec::new();
        Ok(self.name_into(id, &mut name)?.then_some(name))
    }

    /// As [`name`](Self::name), but writes into a reused buffer. Returns false if there is no name.
    ///
    /// # Errors
    /// As [`name`](Self::name).
    pub fn name_into(&self, id: SampleId, name: &mut Vec<u8>) -> Result<bool, FormatError> {
        let names = self.names()?;
        name.clear();
        if id.0 >= self.num_samples() {
            return Ok(false);
        }
        names.get(id.0, name)?;
        Ok(!name.is_empty() || self.is_live(id))
    }

    /// The direct children of `folder`, subfolders and samples, in the order of names. The empty string is the root
    /// folder; other folders may end with a slash.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: a name is damaged.
    pub fn list(&self, folder: &[u8]) -> Result<Vec<Entry>, FormatError> {
        let mut entries = Vec::new();
        self.for_each_in(folder, &mut |entry| {
            entries.push(entry);
            true
        })?;
        Ok(entries)
    }

    /// Label of the sample; `None` if it has no label, or if no live sample has this id. No I/O.
    #[inline]
    pub fn label(&self, id: SampleId) -> Option<i64> {
        if !self.is_live(id) {
            return None;
        }
        self.labels.as_ref()?.get(id.0)
    }

    /// The label column, by id; `None` if no sample has a label.
    pub fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    /// The typed columns, in the order in which imports added them.
    pub fn columns(&self) -> &[Column] {
        self.typed.all()
    }

    /// The typed column called `name`.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns().iter().find(|column| column.name() == name)
    }

    /// The checksums computed at first read, for a plain folder; `None` if the checksum column has them.
    pub fn learned(&self) -> Option<&Arc<Learned>> {
        self.learned.as_ref()
    }

    /// Names of the classes: labels are indexes into this slice. Empty if labels are plain numbers.
    pub fn classes(&self) -> &[Vec<u8>] {
        &self.metadata.classes
    }

    /// Names of a sample's fields, in their order in its record; empty if samples have one field without a name.
    pub fn fields(&self) -> &[Vec<u8>] {
        &self.metadata.fields
    }

    /// The types of the fields: a field without a type is bytes.
    pub fn field_types(&self) -> &FieldTypes {
        &self.metadata.field_types
    }

    /// The parts of the image, in the order of ids: one per import or append, or several if many processes import or a
    /// program writes samples in windows.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.placements.iter().map(Placement::part)
    }

    /// Deleted ids as ascending ranges of (first, length).
    pub fn deleted_ranges(&self) -> Vec<(u64, u64)> {
        self.deleted_ids.ranges()
    }

    /// The cells that this generation reads, except those of its snapshot, which the superblock names.
    pub fn cell_ranges(&self) -> impl Iterator<Item = CellRange> {
        let record = (self.record_range.cells > 0).then_some(self.record_range);
        self.columns.cell_ranges(&self.layout).chain(record)
    }

    /// The cells that the previous generation reads but this one does not.
    pub fn freed(&self) -> &[CellRange] {
        &self.metadata.freed
    }

    /// Returns whether names and lookup tree are loaded.
    pub fn has_names(&self) -> bool {
        self.names.get().is_some() && self.has_tree()
    }

    /// Returns whether the lookup tree is loaded.
    pub fn has_tree(&self) -> bool {
        self.tree.get().is_some()
    }

    /// The generation record: the metadata that chunks do not hold. It lacks origins that are still on media.
    pub fn record(&self) -> GenerationRecord {
        GenerationRecord {
            layout: self.layout,
            generation: self.generation,
            time_ns: self.time_ns,
            num_chunks: u64::from(self.num_chunks()),
            parts: self.parts().copied().collect(),
            started_ns: self.metadata.started_ns.clone(),
            fields: self.metadata.fields.clone(),
            classes: self.metadata.classes.clone(),
            deleted: self.deleted_ranges(),
            freed: self.metadata.freed.clone(),
            origins: self.origins.get().map(|origins| origins.to_vec()).unwrap_or_default(),
        }
    }

    /// Returns whether the image records the object-store objects that it was imported from.
    pub(crate) fn has_origins(&self) -> bool {
        match self.origins.get() {
            Some(origins) => !origins.is_empty(),
            None => {
                let head = self.on_media.as_ref();
                head.is_some_and(|head| head.section(SectionKind::Origins).is_some())
            }
        }
    }

    /// The object-store objects that the image was imported from, as groups of [`crate::format::record`]; empty for
    /// an image from another source.
    ///
    /// # Errors
    /// `NotLoaded`: the origins are still on media; see [`attach_origins`](Self::attach_origins).
    pub fn origins(&self) -> Result<&[u8], FormatError> {
        match self.origins.get() {
            Some(origins) => Ok(origins),
            None if self.has_origins() => Err(FormatError::NotLoaded { what: "origins" }),
            None => Ok(&[]),
        }
    }

    /// Memory by purpose, in bytes.
    pub fn memory_bytes(&self) -> Memory {
        let (names, name_order) = self.names.get().map_or((0, 0), Names::memory_bytes);
        Memory {
            lengths_and_checksums: self.num_samples() * 8
                + self.learned.as_ref().map_or(0, |learned| learned.memory_bytes()),
            checkpoints: self.columns.checkpoints.len() as u64,
            chunks: self.columns.chunks.len() as u64,
            tree: self.tree.get().map_or(0, |tree| (tree.keys.len() + tree.ids.len()) as u64),
            deletions: self.deleted_ids.memory_bytes() + self.deleted_slots.memory_bytes(),
            labels: self.labels.as_ref().map_or(0, |labels| labels.as_bytes().len() as u64),
            columns: self.typed.memory_bytes(),
            names,
            name_order,
        }
    }

    /// Height of the lookup tree: the number of nodes that a lookup visits. At most `ceil(log32(samples))`, but at
    /// least 1; 0 while the tree is not loaded.
    pub fn tree_height(&self) -> u32 {
        self.tree.get().map_or(0, |tree| tree.levels.len() as u32)
    }

    /// The slot of a live sample; `None` if no live sample has this id.
    #[inline]
    fn live_slot(&self, id: SampleId) -> Option<Slot> {
        if self.is_live(id) { self.slot_of(id) } else { None }
    }

    /// Index of the part that contains this id or slot.
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

    fn tree(&self) -> Result<&Tree, FormatError> {
        self.tree.get().ok_or(FormatError::NotLoaded { what: "lookup tree" })
    }

    /// Identity that the header of chunk `c` must carry.
    ///
    /// # Panics
    /// If there is no chunk `c`.
    pub fn chunk_id(&self, c: u32) -> ChunkId {
        let chunk = &self.columns.table()[c as usize];
        let generation = Generation(chunk.generation.get());
        ChunkId { generation, sequence: chunk.sequence.get() }
    }
}

/// A slot that never exists: a data set has at most 2^40 samples.
const NO_SLOT: Slot = Slot(u64::MAX);

/// Memory of a directory in bytes, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Length and checksum columns: 8 bytes a sample; in a plain folder 4.1 more, for checksums computed at first read.
    pub lengths_and_checksums: u64,
    /// The checkpoints: the position of every 32nd slot.
    pub checkpoints: u64,
    /// The chunk table.
    pub chunks: u64,
    /// The lookup tree, if it is loaded.
    pub tree: u64,
    /// Deletion bitmaps and their ranks.
    pub deletions: u64,
    /// The label column.
    pub labels: u64,
    /// The typed columns.
    pub columns: u64,
    /// The names, if they are loaded.
    pub names: u64,
    /// Ids in the order of names; 0 if names are already in the order of ids.
    pub name_order: u64,
}

impl Memory {
    /// Total without names, labels and typed columns, for which the design allows 20 bytes a sample.
    pub fn core(&self) -> u64 {
        let Memory { lengths_and_checksums, checkpoints, chunks, tree, deletions, .. } = *self;
        lengths_and_checksums + checkpoints + chunks + tree + deletions
    }

    /// Total.
    pub fn total(&self) -> u64 {
        self.core() + self.labels + self.columns + self.names + self.name_order
    }
}
