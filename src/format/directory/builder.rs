//! Builds a directory chunk by chunk: from headers that an import writes or a rebuild reads, from chunks of an older
//! directory, or from samples without headers: the files of a plain folder, or the contents of shards.

use std::sync::Arc;

use zerocopy::{FromZeros, IntoBytes};

use crate::directory::columns::{
    Checkpoint, ChecksumsAside, Columns, KeepsAside, LOST, PAGE, RawChunk, STRIDE, Walk,
};
use crate::directory::ids::DeletedSet;
use crate::directory::names::Names;
use crate::directory::names_writer::NamesWriter;
use crate::directory::tree::{Tree, TreeEntry};
use crate::directory::typed::{LabelRange, Labels, NO_LABEL, TypedColumns};
use crate::directory::{Bytes, Column, Directory, IdSet, ImageMetadata, Learned};
use crate::format::columns::{ColumnSpec, ColumnTable, RowValues, Value};
use crate::format::error::{at_most, equal};
use crate::format::geometry::MAX_SAMPLES;
use crate::format::names::fingerprint;
use crate::format::{
    CellRange, ChunkHead, ChunkHeader, FieldTypes, FormatError, ImageLayout, Part, Placement,
};
use dlfs_base::units::{Generation, SampleId, Slot};

/// Collects the chunks of a generation in the order of their slots.
///
/// An import adds each header when its chunk is finished. An append begins with the previous directory
/// ([`after`](Self::after)) and keeps its columns unchanged. A rebuild adds the headers that it read, and copies
/// chunks of an older directory ([`copy_chunk`](Self::copy_chunk)). All three fill the same columns, so a rebuild that
/// finds all chunks gives the imported directory byte for byte.
///
/// Memory while building, per new sample without label and typed values: about 9 bytes and its front-coded name. The
/// lookup tree takes 16 bytes more at the end; about 8 without a base, from 17 million to 2^32 samples. If slots are
/// not in the order of ids, each sample of the last part also takes 8 bytes for its id, and 8 bytes and its whole name.
/// Earlier parts do not: a part is put in the order of ids when the next part begins. If the caller gives the names at
/// the end ([`without_names`](Self::without_names)), each sample from the first shuffled slot on takes the 8 bytes for
/// its id and no name.
#[derive(Debug, Default)]
pub struct DirectoryBuilder {
    layout: ImageLayout,
    /// The directory that the columns below continue: they have only the slots after those of the base.
    base: Option<Directory>,
    /// All parts, those of the base included.
    parts: Vec<Part>,
    /// The time of the oldest chunk of each part, the fields, the classes, and the cells that this generation frees.
    metadata: ImageMetadata,
    /// The new chunks, in the order of their slots.
    chunks: Vec<RawChunk>,
    /// One for every [`STRIDE`] slots.
    checkpoints: Vec<Checkpoint>,
    /// Lengths in bytes by slot, as u32, little-endian.
    lengths: Vec<u8>,
    /// CRC32Cs by slot, as u32, little-endian; empty with `aside`.
    checksums: Vec<u8>,
    /// External storage that replaces `checksums`.
    aside: Option<ChecksumsAside>,
    /// Labels by slot; empty while no sample has a label.
    labels: Vec<i64>,
    /// The range of `labels`.
    label_range: LabelRange,
    /// The typed columns, by slot.
    typed: ColumnTable,
    /// Names in the order of ids: of all samples, or of the samples before the first slot in `shuffled`.
    names: NamesWriter,
    /// `None` while ids equal slots.
    shuffled: Option<Shuffled>,
    /// Slots below this are done: their ids are checked, and their names are in `names`.
    settled: u64,
    /// Set if the names of shuffled slots come from [`DirectoryBuilder::finish_named`].
    names_come_last: bool,
    /// Slots whose samples were deleted when they were added: purged, lost, left out, or deleted in a copied chunk.
    purged: Vec<u64>,
    /// Set once the base, a chunk or [`DirectoryBuilder::set_fields`] has determined the fields.
    knows_fields: bool,
    /// The imported objects: see [`DirectoryBuilder::add_origins`].
    origins: Vec<u8>,
    /// Deleted ids, as first id and number.
    deleted: Vec<(u64, u64)>,
}

/// Ids and names by slot, from the first slot on whose id differs from its slot number.
#[derive(Debug, Default)]
struct Shuffled {
    first_slot: u64,
    /// The id of each slot, or `UNKNOWN`.
    ids: Vec<u64>,
    /// The end of each name in `name_text`.
    name_ends: Vec<u64>,
    /// The names, one after the other.
    name_text: Vec<u8>,
}

/// Appends the name of a sample to a buffer.
type GiveName<'a> = dyn FnMut(SampleId, &mut Vec<u8>) -> Result<(), FormatError> + 'a;

/// A sample to add. Callers make it for chunks without a header: see [`DirectoryBuilder::add_run`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RunSample<'a> {
    /// Name of the sample.
    pub name: &'a [u8],
    /// Length of the record in bytes.
    pub len_bytes: u32,
    /// CRC32C of the record; 0 if it is not known.
    pub crc32c: u32,
    /// Label, if the sample has one.
    pub label: Option<i64>,
    /// Values in the typed columns.
    pub values: RowValues<'a>,
    /// True if the sample counts as deleted.
    pub deleted: bool,
}

impl DirectoryBuilder {
    /// A directory without samples.
    pub fn new(layout: ImageLayout) -> DirectoryBuilder {
        DirectoryBuilder { layout, ..DirectoryBuilder::default() }
    }

    /// Starts with all chunks, deletions, fields, classes and origins of `base`, to append chunks after them.
    ///
    /// Same columns as after copying `base` chunk by chunk, but faster: they are copied as plain bytes.
    ///
    /// # Errors
    /// `NotLoaded`: names or origins of `base` are still on media. Other errors: its last name is damaged.
    pub fn after(base: &Directory) -> Result<DirectoryBuilder, FormatError> {
        let mut typed = ColumnTable::default();
        typed.grow(base.columns().iter().map(Column::spec))?;
        Ok(DirectoryBuilder {
            parts: base.parts().copied().collect(),
            metadata: ImageMetadata { freed: Vec::new(), ..(*base.metadata).clone() },
            names: NamesWriter::after(base.names()?)?,
            typed,
            knows_fields: base.num_chunks() > 0,
            origins: base.origins()?.to_vec(),
            base: Some(base.clone()),
            ..DirectoryBuilder::new(base.layout)
        })
    }

    /// Does not keep the names of shuffled slots, which take most of the memory. The caller has the names anyway, and
    /// passes them to [`finish_named`](Self::finish_named).
    pub fn without_names(self) -> DirectoryBuilder {
        DirectoryBuilder { names_come_last: true, ..self }
    }

    /// Keeps the checksums, 4 bytes a sample, in `kept` instead of memory. The directory can then be committed, but
    /// not read before it is opened again.
    ///
    /// # Panics
    /// If the builder has samples already.
    pub fn with_checksums_aside(self, kept: Box<dyn KeepsAside>) -> DirectoryBuilder {
        assert!(self.next_slot() == Slot(0), "all checksums are kept in the same storage");
        DirectoryBuilder { aside: Some(ChecksumsAside::new(kept)), ..self }
    }

    /// The first slot of the next chunk; also the number of samples so far.
    pub fn next_slot(&self) -> Slot {
        Slot(self.first_new() + (self.lengths.len() / 4) as u64)
    }

    /// The first slot after the slots of the base.
    fn first_new(&self) -> u64 {
        self.base.as_ref().map_or(0, Directory::num_samples)
    }

    fn num_chunks(&self) -> u32 {
        self.base.as_ref().map_or(0, Directory::num_chunks) + self.chunks.len() as u32
    }

    /// Adds the chunk that `header` describes. It must start at the next slot.
    ///
    /// # Errors
    /// The header belongs to another image, does not come next, or contradicts its part, the fields or the typed
    /// columns; or there would be too many samples or typed columns.
    pub fn add_chunk(&mut self, header: &ChunkHeader) -> Result<(), FormatError> {
        let head = header.head();
        head.check_location(&self.layout, head.namespace, head.cell)?;
        equal("first slot of a chunk", self.next_slot().0, head.first_slot.0)?;
        self.check_fields(header)?;
        self.grow_part(head.part, u64::from(head.num_samples), head.time_ns)?;
        self.typed.grow(header.columns())?;
        self.chunks.push(raw_chunk(head));
        let mut walk = Walk::new(self.layout.pack);
        for sample in header.samples() {
            let new = RunSample {
                name: sample.name,
                len_bytes: sample.len_bytes,
                crc32c: sample.crc32c,
                label: sample.label,
                values: sample.values,
                deleted: sample.purged,
            };
            self.push(&mut walk, sample.id.0, &new, |column| new.values.get(column));
        }
        Ok(())
    }

    /// Adds chunk `c` of `from`, the previous generation's directory, unchanged.
    ///
    /// # Errors
    /// The chunk does not start at the next slot, or contradicts its part or the typed columns so far; or the names of
    /// `from` are damaged or not loaded.
    pub fn copy_chunk(&mut self, from: &Directory, c: u32) -> Result<(), FormatError> {
        let info = from.chunk(c);
        equal("first slot of a chunk", self.next_slot().0, info.first_slot.0)?;
        let index = from.part_of(info.first_slot.0).expect("a chunk's slots are of a part");
        let placement = &from.placements[index];
        let started_ns = from.metadata.started_ns[index];
        self.grow_part(*placement.part(), u64::from(info.num_slots), started_ns)?;
        if !self.knows_fields {
            self.knows_fields = true;
            self.metadata.fields = from.fields().to_vec();
            self.metadata.field_types = from.field_types().clone();
        }
        self.typed.grow(from.columns().iter().map(Column::spec))?;
        self.chunks.push(from.columns.table()[c as usize]);
        let mut walk = Walk::new(self.layout.pack);
        let mut name = Vec::new();
        for slot in from.columns.slots_of(c) {
            let id = placement.id_at(Slot(slot));
            from.name_into(id, &mut name)?;
            let new = RunSample {
                name: &name,
                len_bytes: from.columns.len_bytes(Slot(slot)),
                crc32c: from.columns.crc32c(Slot(slot)),
                label: from.labels.as_ref().and_then(|labels| labels.get(id.0)),
                deleted: !from.is_live(id),
                ..RunSample::default()
            };
            let value = |column: &ColumnSpec| from.column(&column.name).map(|own| own.get(id.0));
            self.push(&mut walk, id.0, &new, |column| value(column).unwrap_or(Value::None));
        }
        Ok(())
    }

    /// Adds `count` slots whose chunks are lost. Their samples count as deleted; all other samples keep their slots.
    /// `part` determines how ids map to slots; its count is ignored.
    ///
    /// # Errors
    /// The part does not continue here, or there would be too many samples.
    pub fn add_lost(&mut self, part: Part, count: u64) -> Result<(), FormatError> {
        self.grow_part(part, count, u64::MAX)?;
        for _ in 0..count {
            let slot = self.next_slot().0;
            let chunk = self.chunks.last();
            let is_new_chunk = chunk.is_none_or(|chunk| {
                !chunk.is_lost()
                    || slot - chunk.first_slot.get() >= LOST_CHUNK_SLOTS
                    || chunk.first_slot.get() < part.first
            });
            if is_new_chunk {
                self.chunks.push(RawChunk {
                    first_slot: slot.into(),
                    cell: LOST.into(),
                    ..RawChunk::new_zeroed()
                });
            }
            // The id follows from the part's length, which is known only at the end.
            let lost = RunSample { deleted: true, ..RunSample::default() };
            self.push(&mut Walk::new(self.layout.pack), UNKNOWN, &lost, |_| Value::None);
        }
        Ok(())
    }

    /// Adds `files`, at most 65,535, each with name, length and label, as one chunk without a header. A plain folder is
    /// presented as an image in this way, with [`Pack::Paged`](crate::format::Pack::Paged): the files lie one after the
    /// other from the start of `cell`, each at a multiple of 4,096 bytes.
    ///
    /// # Errors
    /// There would be too many samples.
    pub fn add_files<'a>(
        &mut self,
        cell: u64,
        files: impl ExactSizeIterator<Item = (&'a [u8], u32, Option<i64>)> + Clone,
    ) -> Result<(), FormatError> {
        let none = RunSample::default();
        let sample = move |(name, len_bytes, label)| RunSample { name, len_bytes, label, ..none };
        self.add_run(cell, files.map(sample))
    }

    /// Sets the fields of all samples, for an image without chunk headers.
    pub fn set_fields(&mut self, fields: Vec<Vec<u8>>, types: FieldTypes) {
        (self.metadata.fields, self.metadata.field_types) = (fields, types);
        self.knows_fields = true;
    }

    /// Adds the typed columns `columns`, for an image without chunk headers.
    ///
    /// # Errors
    /// A column has another type already.
    pub fn grow_columns(&mut self, columns: &[ColumnSpec]) -> Result<(), FormatError> {
        self.typed.grow(columns.iter())
    }

    /// Adds `samples`, at most 65,535, as one chunk without a header. They lie one after the other from the start of
    /// `cell`, by the image's packing rule.
    ///
    /// # Errors
    /// There would be too many samples.
    pub fn add_run<'a>(
        &mut self,
        cell: u64,
        samples: impl ExactSizeIterator<Item = RunSample<'a>> + Clone,
    ) -> Result<(), FormatError> {
        let part = Part { first: 0, count: 0, seed: 0, window: 0 };
        self.grow_part(part, samples.len() as u64, 0)?;
        let first_slot = self.next_slot().0;
        let mut walk = Walk::new(self.layout.pack);
        let lens = samples.clone().map(|sample| sample.len_bytes);
        let end = lens.fold(0, |_, len| walk.step(len) + u64::from(len));
        self.chunks.push(RawChunk {
            first_slot: first_slot.into(),
            cell: cell.into(),
            generation: 1.into(),
            sequence: u64::from(self.num_chunks()).into(),
            pages: (end.div_ceil(PAGE) as u32).into(),
            ..RawChunk::new_zeroed()
        });
        let mut walk = Walk::new(self.layout.pack);
        for (id, sample) in (first_slot..).zip(samples) {
            self.push(&mut walk, id, &sample, |column| sample.values.get(column));
        }
        Ok(())
    }

    /// As [`DirectoryBuilder::finish`], but for a plain folder: checksums are computed at the first read.
    ///
    /// # Errors
    /// As [`DirectoryBuilder::finish`].
    pub fn finish_unread(self, time_ns: u64) -> Result<Directory, FormatError> {
        let directory = self.finish(Generation(1), time_ns)?;
        let learned = Some(Learned::new(directory.num_samples()).into());
        Ok(Directory { learned, ..directory })
    }

    /// Marks ids as deleted, in ranges of (first, length). [`finish`](Self::finish) checks that they were assigned.
    pub fn delete(&mut self, ranges: &[(u64, u64)]) {
        self.deleted.extend_from_slice(ranges);
    }

    /// Sets the class names, which labels index.
    pub fn set_classes(&mut self, classes: Vec<Vec<u8>>) {
        self.metadata.classes = classes;
    }

    /// Adds the imported objects, as groups of [`crate::format::record`].
    pub fn add_origins(&mut self, groups: &[u8]) {
        self.origins.extend_from_slice(groups);
    }

    /// Sets the cells that this generation frees: see [`crate::format::space::freed`].
    pub fn set_freed(&mut self, freed: Vec<CellRange>) {
        self.metadata.freed = freed;
    }

    /// The cells of the chunks so far.
    pub fn cell_ranges(&self) -> impl Iterator<Item = CellRange> {
        let before = self.base.iter().flat_map(|base| base.columns.cell_ranges(&self.layout));
        let there = self.chunks.iter().filter(|chunk| !chunk.is_lost());
        before.chain(there.map(|chunk| chunk.cell_range(&self.layout)))
    }

    /// Builds the directory of `generation`. The generation record has no location yet: [`super::commit`] assigns one.
    ///
    /// # Errors
    /// A sample is not at the slot that its part's placement gives, a deleted id was never assigned, the chunks are
    /// inconsistent, or the lookup tree of the base is still on media.
    ///
    /// # Panics
    /// After [`without_names`](Self::without_names).
    pub fn finish(self, generation: Generation, time_ns: u64) -> Result<Directory, FormatError> {
        assert!(
            !self.names_come_last,
            "finish_named takes the names that the builder did not keep"
        );
        self.finish_with(generation, time_ns, None)
    }

    /// As [`finish`](Self::finish), but after [`without_names`](Self::without_names): `name` appends the name of a
    /// sample to an empty buffer, the same name that its header had. It is called with ascending ids, and is not
    /// called for the ids before the first shuffled slot.
    ///
    /// # Errors
    /// The errors of [`finish`](Self::finish) and of `name`.
    ///
    /// # Panics
    /// If [`without_names`](Self::without_names) was not called.
    pub fn finish_named(
        self,
        generation: Generation,
        time_ns: u64,
        name: &mut GiveName<'_>,
    ) -> Result<Directory, FormatError> {
        assert!(self.names_come_last, "the builder kept the names of its headers");
        self.finish_with(generation, time_ns, Some(name))
    }

    fn finish_with(
        mut self,
        generation: Generation,
        time_ns: u64,
        given: Option<&mut GiveName<'_>>,
    ) -> Result<Directory, FormatError> {
        let placements: Vec<Placement> = self.parts.iter().map(|p| Placement::new(*p)).collect();
        self.check_ids(&placements)?;
        let (deleted_ids, deleted_slots) = self.deletions(&placements)?;
        // Each step drops its input, so that memory use peaks only once, while the tree is built.
        let labels = self.labels(&placements);
        let typed = self.typed(&placements);
        let names = self.names(&placements, given)?;
        let tree = self.tree(&names)?;
        let base = self.base.as_ref().map(|base| &base.columns);
        let joined = |column: fn(&Columns) -> &Bytes, new| match base {
            Some(base) => Bytes::joined(column(base), new),
            None => new.into(),
        };
        let directory = Directory {
            layout: self.layout,
            generation,
            time_ns,
            metadata: self.metadata.into(),
            record_range: CellRange::default(),
            columns: Columns {
                chunks: joined(|base| &base.chunks, self.chunks.as_bytes().to_vec()),
                checkpoints: joined(|base| &base.checkpoints, self.checkpoints.as_bytes().to_vec()),
                lengths: joined(|base| &base.lengths, self.lengths),
                checksums: joined(|base| &base.checksums, self.checksums),
                aside: self.aside.map(|mut aside| {
                    aside.flush();
                    Arc::new(aside)
                }),
            },
            tree: Arc::new(tree.into()),
            deleted_ids,
            deleted_slots,
            labels,
            typed,
            learned: None,
            names: Arc::new(names.into()),
            origins: Arc::new(Bytes::from(self.origins).into()),
            on_media: None,
            head_crc32c: None,
            view: None,
            placements,
        };
        directory.check()?;
        Ok(directory)
    }

    /// Begins or continues a part.
    fn grow_part(&mut self, part: Part, count: u64, time_ns: u64) -> Result<(), FormatError> {
        let next = self.next_slot().0;
        at_most("number of samples", next.saturating_add(count), MAX_SAMPLES)?;
        match self.parts.last_mut().filter(|last| last.first == part.first) {
            Some(last) => {
                equal("seed of a part", last.seed, part.seed)?;
                equal("window of a part", last.window, part.window)?;
                last.count += count;
                let started = self.metadata.started_ns.last_mut().expect("one for each part");
                *started = time_ns.min(*started);
            }
            None => {
                equal("first id of a part", next, part.first)?;
                self.settle()?;
                self.parts.push(Part { count, ..part });
                self.metadata.started_ns.push(time_ns);
            }
        }
        Ok(())
    }

    /// Takes the fields and their types from the first chunk, and checks that later chunks have the same.
    fn check_fields(&mut self, header: &ChunkHeader) -> Result<(), FormatError> {
        let ImageMetadata { fields, field_types, .. } = &mut self.metadata;
        if !self.knows_fields {
            self.knows_fields = true;
            *fields = header.fields().map(<[u8]>::to_vec).collect();
            field_types.clone_from(header.field_types());
        }
        let same = header.fields().eq(fields.iter().map(|name| &name[..]));
        let expected = fields.len() as u64;
        let found = u64::from(header.head().num_fields);
        if same {
            let differs = *header.field_types() != *field_types;
            return equal("other types of the fields of a chunk", 0, differs.into());
        }
        Err(FormatError::Mismatch { what: "number or names of the fields", expected, found })
    }

    /// Adds a sample to the columns; `value` gives its value for each typed column.
    fn push<'v>(
        &mut self,
        walk: &mut Walk,
        id: u64,
        new: &RunSample<'_>,
        value: impl FnMut(&ColumnSpec) -> Value<'v>,
    ) {
        let slot = self.next_slot().0;
        let at = walk.step(new.len_bytes);
        if slot.is_multiple_of(STRIDE as u64) {
            let chunk = self.num_chunks() - 1;
            self.checkpoints.push(Checkpoint { chunk: chunk.into(), at: (at as u32).into() });
        }
        self.push_label(new.label);
        self.lengths.extend_from_slice(&new.len_bytes.to_le_bytes());
        match &mut self.aside {
            Some(aside) => aside.push(new.len_bytes, new.crc32c),
            None => self.checksums.extend_from_slice(&new.crc32c.to_le_bytes()),
        }
        if self.shuffled.is_none() && id != slot {
            self.shuffled = Some(Shuffled { first_slot: slot, ..Shuffled::default() });
        }
        match &mut self.shuffled {
            None => self.names.push(new.name),
            Some(shuffled) if self.names_come_last => shuffled.ids.push(id),
            Some(shuffled) => shuffled.push(id, new.name),
        }
        if new.deleted {
            self.purged.push(slot);
        }
        self.typed.push(value);
    }

    /// Adds the label of the next slot; the labels of earlier slots too if it is the first label.
    fn push_label(&mut self, label: Option<i64>) {
        let before = self.lengths.len() / 4;
        if label.is_some() && self.labels.is_empty() {
            self.labels.resize(before, NO_LABEL);
        }
        if label.is_some() || !self.labels.is_empty() {
            let label = label.unwrap_or(NO_LABEL);
            self.label_range.take(label);
            self.labels.push(label);
        }
    }

    /// Checks the ids of the complete parts, and moves their names from `shuffled` to `names`, in the order of ids.
    /// Does nothing if no slot is shuffled, or if the names come last.
    fn settle(&mut self) -> Result<(), FormatError> {
        let Some(shuffled) = self.shuffled.as_ref().filter(|_| !self.names_come_last) else {
            return Ok(());
        };
        let first_slot = shuffled.first_slot;
        let before = self.parts.partition_point(|part| part.first + part.count <= first_slot);
        let placements: Vec<_> = self.parts[before..].iter().map(|p| Placement::new(*p)).collect();
        self.check_ids(&placements)?;
        self.settled = self.next_slot().0;
        if let Some(shuffled) = self.shuffled.take() {
            slots_by_id(&placements, first_slot)
                .for_each(|slot| self.names.push(shuffled.name(slot)));
        }
        Ok(())
    }

    /// Checks each id against the placement, and assigns the ids of lost slots.
    fn check_ids(&mut self, placements: &[Placement]) -> Result<(), FormatError> {
        let first_new = self.first_new().max(self.settled);
        for placement in placements {
            let part = placement.part();
            for slot in part.first.max(first_new)..part.first + part.count {
                let id = placement.id_at(Slot(slot)).0;
                let mut own = slot; // the id of a slot that is not shuffled
                let found = match &mut self.shuffled {
                    Some(shuffled) if slot >= shuffled.first_slot => {
                        &mut shuffled.ids[(slot - shuffled.first_slot) as usize]
                    }
                    _ => &mut own,
                };
                if *found == UNKNOWN {
                    *found = id;
                }
                equal("id of the sample at a slot", id, *found)?;
            }
        }
        Ok(())
    }

    /// The sets of deleted ids and of deleted slots.
    fn deletions(
        &mut self,
        placements: &[Placement],
    ) -> Result<(DeletedSet, DeletedSet), FormatError> {
        let num_samples = self.next_slot().0;
        let before = |set: fn(&Directory) -> &DeletedSet| match &self.base {
            Some(base) => set(base).to_ids(num_samples),
            None => IdSet::new(num_samples),
        };
        let mut ids = before(|base| &base.deleted_ids);
        let mut slots = before(|base| &base.deleted_slots);
        for slot in std::mem::take(&mut self.purged) {
            slots.insert(slot);
            ids.insert(placement_of(placements, slot).id_at(Slot(slot)).0);
        }
        for (first, len) in std::mem::take(&mut self.deleted) {
            at_most("deleted id", first.saturating_add(len), num_samples)?;
            for id in first..first + len {
                ids.insert(id);
                slots.insert(placement_of(placements, id).slot_of(SampleId(id)).0);
            }
        }
        Ok((ids.into(), slots.into()))
    }

    fn labels(&mut self, placements: &[Placement]) -> Option<Labels> {
        let first = self.first_new();
        let labels = std::mem::take(&mut self.labels);
        let label = |slot: u64| labels.get((slot - first) as usize).copied().unwrap_or(NO_LABEL);
        let slots = slots_by_id(placements, first).map(label);
        let base = self.base.as_ref().and_then(|base| base.labels.as_ref());
        Labels::extended(base, first, slots, self.label_range)
    }

    fn typed(&mut self, placements: &[Placement]) -> TypedColumns {
        let first = self.first_new();
        let new = std::mem::take(&mut self.typed);
        let none = TypedColumns::default();
        let base = self.base.as_ref().map_or(&none, |base| &base.typed);
        TypedColumns::extended(base, first, &new, || {
            slots_by_id(placements, first).map(|slot| slot - first)
        })
    }

    fn names(
        &mut self,
        placements: &[Placement],
        given: Option<&mut GiveName<'_>>,
    ) -> Result<Names, FormatError> {
        let end = self.next_slot().0;
        let mut names = std::mem::take(&mut self.names);
        // From the first shuffled slot on, ids and slots are the same range of numbers in different orders.
        match (self.shuffled.take(), given) {
            (None, _) => {}
            (Some(Shuffled { first_slot, ids, .. }), Some(name)) => {
                drop(ids); // checked already
                let mut text = Vec::new();
                for id in first_slot..end {
                    text.clear();
                    name(SampleId(id), &mut text)?;
                    names.push(&text);
                }
            }
            (Some(shuffled), None) => slots_by_id(placements, shuffled.first_slot)
                .for_each(|slot| names.push(shuffled.name(slot))),
        }
        names.finish()
    }

    /// The lookup tree of all samples with a name. Deleted samples are included, so that a delete can share the tree.
    fn tree(&self, names: &Names) -> Result<Tree, FormatError> {
        let seed = self.layout.uuid.hash_seed();
        let num_samples = names.num_samples;
        if self.base.is_none() && (ENTRIES_AT_ONCE + 1..=1 << 32).contains(&num_samples) {
            return Tree::in_passes(num_samples, ENTRIES_AT_ONCE, |take| {
                let mut cursor = names.cursor(0)?;
                while cursor.advance()? {
                    if !cursor.name().is_empty() {
                        take(fingerprint(seed, cursor.name()), cursor.id() as u32);
                    }
                }
                Ok(())
            });
        }
        let mut tree = self.base.as_ref().map(|base| base.tree().cloned()).transpose()?;
        let mut start = self.first_new();
        let mut cursor = names.cursor(self.first_new())?;
        loop {
            let end = num_samples.min(start + (1 << 32)); // ids of one step fit into 32 bits
            let mut entries = Vec::new();
            while cursor.next_id < end {
                cursor.advance()?;
                if !cursor.name().is_empty() {
                    let nth = (cursor.id() - start) as u32;
                    entries.push(TreeEntry::new(fingerprint(seed, cursor.name()), nth));
                }
            }
            let grown = Tree::extended(tree.as_ref(), start, entries, num_samples);
            if end == num_samples {
                return Ok(grown);
            }
            (tree, start) = (Some(grown), end);
        }
    }
}

/// The entry of a chunk in the chunk table.
pub(super) fn raw_chunk(head: &ChunkHead) -> RawChunk {
    RawChunk {
        first_slot: head.first_slot.0.into(),
        cell: head.cell.into(),
        generation: head.id.generation.0.into(),
        sequence: head.id.sequence.into(),
        pages: ((head.len_bytes() / PAGE) as u32).into(),
        data_page: ((head.data_start() / PAGE) as u16).into(),
        namespace: head.namespace.into(),
    }
}

impl Shuffled {
    fn push(&mut self, id: u64, name: &[u8]) {
        self.ids.push(id);
        self.name_text.extend_from_slice(name);
        self.name_ends.push(self.name_text.len() as u64);
    }

    fn name(&self, slot: u64) -> &[u8] {
        let index = (slot - self.first_slot) as usize;
        let start = if index == 0 { 0 } else { self.name_ends[index - 1] };
        &self.name_text[start as usize..self.name_ends[index] as usize]
    }
}

/// The slots of the ids from `first` on, in the order of ids.
fn slots_by_id(placements: &[Placement], first: u64) -> impl Iterator<Item = u64> + Clone {
    placements.iter().flat_map(move |placement| {
        let part = *placement.part();
        (part.first.max(first)..part.first + part.count)
            .map(move |id| placement.slot_of(SampleId(id)).0)
    })
}

/// The placement of the part that contains this id. Works for slots too: a part's ids and slots are the same range.
fn placement_of(placements: &[Placement], id: u64) -> &Placement {
    let index = placements.partition_point(|placement| placement.part().first <= id) - 1;
    &placements[index]
}

/// The id of a lost slot until the length of its part is known.
const UNKNOWN: u64 = u64::MAX;
/// Most entries, of 8 bytes each, in memory while a tree is built without a base. Larger trees take several passes over
/// all names, up to 2^32 samples.
const ENTRIES_AT_ONCE: u64 = 1 << 24;
/// Most slots of a placeholder chunk of lost slots.
const LOST_CHUNK_SLOTS: u64 = 65_535;
