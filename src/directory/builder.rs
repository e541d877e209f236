//! Builds a directory from chunk headers: for an import as it writes them, for a rebuild as it finds them.

use zerocopy::IntoBytes;

use crate::directory::columns::{Checkpoint, Columns, LOST, PAGE, RawChunk, STRIDE, Walk};
use crate::directory::deleted::Bits;
use crate::directory::labels::{LabelRange, Labels, NO_LABEL};
use crate::directory::names::Names;
use crate::directory::tree::{Tree, TreeEntry};
use crate::directory::{Directory, ImageMetadata, Learned};
use crate::format::checksum::fingerprint;
use crate::format::error::{at_most, equal};
use crate::format::geometry::MAX_SAMPLES;
use crate::format::{CellRange, ChunkHeader, FormatError, ImageLayout, Part, Placement};
use crate::units::{Generation, SampleId, Slot};

/// Collects the chunks of a generation in the order of their slots.
///
/// An import adds each header as its chunk is finished; an append or a purge first copies the chunks to
/// keep from the previous directory ([`copy_chunk`](Self::copy_chunk)); a rebuild adds the headers that it
/// read. All of them fill the same columns, so a rebuilt directory equals the imported one byte for byte.
///
/// Memory while building: about 60 bytes a sample plus twice its name.
#[derive(Debug)]
pub struct DirectoryBuilder {
    layout: ImageLayout,
    parts: Vec<Part>,
    /// Time of the oldest chunk of each part.
    started_ns: Vec<u64>,
    chunks: Vec<RawChunk>,
    checkpoints: Vec<Checkpoint>,
    lengths: Vec<u8>,
    checksums: Vec<u8>,
    /// By slot, like the four fields after it.
    ids: Vec<u64>,
    labels: Vec<i64>,
    name_ends: Vec<u64>,
    is_deleted: Vec<bool>,
    name_text: Vec<u8>,
    label_range: LabelRange,
    fields: Vec<Vec<u8>>,
    classes: Vec<Vec<u8>>,
    deleted: Vec<(u64, u64)>,
    freed: Vec<CellRange>,
}

/// A sample to be added to the columns.
struct NewSample<'a> {
    id: u64,
    len: u32,
    crc: u32,
    label: Option<i64>,
    name: &'a [u8],
    deleted: bool,
}

impl DirectoryBuilder {
    /// A directory without samples.
    pub fn new(layout: ImageLayout) -> DirectoryBuilder {
        DirectoryBuilder {
            layout,
            parts: Vec::new(),
            started_ns: Vec::new(),
            chunks: Vec::new(),
            checkpoints: Vec::new(),
            lengths: Vec::new(),
            checksums: Vec::new(),
            ids: Vec::new(),
            labels: Vec::new(),
            name_ends: Vec::new(),
            is_deleted: Vec::new(),
            name_text: Vec::new(),
            label_range: LabelRange::default(),
            fields: Vec::new(),
            classes: Vec::new(),
            deleted: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// The first slot of the next chunk; also the number of samples so far.
    pub fn next_slot(&self) -> Slot {
        Slot(self.ids.len() as u64)
    }

    /// Adds the chunk of a header, which must start at the next slot.
    ///
    /// # Errors
    /// The header belongs to another image, does not come next, or contradicts its part.
    pub fn add_chunk(&mut self, header: &ChunkHeader) -> Result<(), FormatError> {
        let head = header.head();
        head.check_location(&self.layout, head.namespace, head.cell)?;
        equal("first slot of a chunk", self.next_slot().0, head.first_slot.0)?;
        self.check_fields(header)?;
        let part = Part {
            first: head.part_first,
            count: 0,
            seed: head.part_seed,
            window: head.part_window,
        };
        self.grow_part(part, u64::from(head.num_samples), head.time_ns)?;
        self.chunks.push(RawChunk {
            first_slot: head.first_slot.0.into(),
            cell: head.cell.into(),
            generation: head.id.generation.0.into(),
            sequence: head.id.sequence.into(),
            pages: ((head.len_bytes() / PAGE) as u32).into(),
            data_page: ((head.data_start() / PAGE) as u16).into(),
            namespace: head.namespace.into(),
        });
        let mut walk = Walk::new(self.layout.pack);
        for sample in header.samples() {
            let new = NewSample {
                id: sample.id.0,
                len: sample.len_bytes,
                crc: sample.crc32c,
                label: sample.label,
                name: sample.name,
                deleted: sample.purged,
            };
            self.push(&mut walk, new);
        }
        Ok(())
    }

    /// Adds chunk `c` of the previous generation's directory unchanged.
    ///
    /// # Errors
    /// It does not come next, or the names of that directory are not loaded.
    pub fn copy_chunk(&mut self, from: &Directory, c: u32) -> Result<(), FormatError> {
        let info = from.chunk(c);
        equal("first slot of a chunk", self.next_slot().0, info.first_slot.0)?;
        let index = from.part_of(info.first_slot.0).expect("a chunk's slots are of a part");
        let placement = &from.placements[index];
        let started_ns = from.metadata.started_ns[index];
        self.grow_part(*placement.part(), u64::from(info.num_slots), started_ns)?;
        if self.fields.is_empty() {
            self.fields = from.fields().to_vec();
        }
        self.chunks.push(from.columns.table()[c as usize]);
        let (mut walk, mut name) = (Walk::new(self.layout.pack), Vec::new());
        for slot in from.columns.slots_of(c) {
            let id = placement.id_at(Slot(slot));
            from.name_into(id, &mut name)?;
            let new = NewSample {
                id: id.0,
                len: from.columns.len_bytes(Slot(slot)),
                crc: from.columns.crc32c(Slot(slot)),
                label: from.labels.as_ref().and_then(|labels| labels.get(id.0)),
                name: &name,
                deleted: !from.is_live(id),
            };
            self.push(&mut walk, new);
        }
        Ok(())
    }

    /// Adds `count` slots whose chunks are lost: their samples count as deleted, and all others keep their
    /// slots. `part` says how the part's ids map to slots; its count is ignored.
    ///
    /// # Errors
    /// The part does not continue here, or there would be too many samples.
    pub fn add_lost(&mut self, part: Part, count: u64) -> Result<(), FormatError> {
        self.grow_part(part, count, u64::MAX)?;
        for _ in 0..count {
            let slot = self.next_slot().0;
            let chunk = self.chunks.last();
            let fresh = chunk.is_none_or(|chunk| {
                !chunk.is_lost()
                    || slot - chunk.first_slot.get() >= LOST_CHUNK_SLOTS
                    || chunk.first_slot.get() < part.first
            });
            if fresh {
                self.chunks.push(RawChunk {
                    first_slot: slot.into(),
                    cell: LOST.into(),
                    generation: 0.into(),
                    sequence: 0.into(),
                    pages: 0.into(),
                    data_page: 0.into(),
                    namespace: 0.into(),
                });
            }
            // The id follows from the part's length, which is known only at the end.
            let (id, name) = (UNKNOWN, &b""[..]);
            let new = NewSample { id, len: 0, crc: 0, label: None, name, deleted: true };
            self.push(&mut Walk::new(self.layout.pack), new);
        }
        Ok(())
    }

    /// Adds files that follow each other from the start of `cell`, each at a multiple of 4,096, with name,
    /// length and label: the pseudo-chunk of a folder, which has no header.
    ///
    /// # Errors
    /// There would be too many samples.
    pub fn add_files<'a>(
        &mut self,
        cell: u64,
        files: impl ExactSizeIterator<Item = (&'a [u8], u32, Option<i64>)> + Clone,
    ) -> Result<(), FormatError> {
        let part = Part { first: 0, count: 0, seed: 0, window: 0 };
        self.grow_part(part, files.len() as u64, 0)?;
        let first_slot = self.next_slot().0;
        let mut walk = Walk::new(self.layout.pack);
        let end = files.clone().fold(0, |_, (_, len, _)| walk.step(len) + u64::from(len));
        self.chunks.push(RawChunk {
            first_slot: first_slot.into(),
            cell: cell.into(),
            generation: 1.into(),
            sequence: (self.chunks.len() as u64).into(),
            pages: (end.div_ceil(PAGE) as u32).into(),
            data_page: 0.into(),
            namespace: 0.into(),
        });
        let mut walk = Walk::new(self.layout.pack);
        for (id, (name, len, label)) in (first_slot..).zip(files) {
            self.push(&mut walk, NewSample { id, len, crc: 0, label, name, deleted: false });
        }
        Ok(())
    }

    /// As [`DirectoryBuilder::finish`], for files whose checksums are computed at their first read.
    ///
    /// # Errors
    /// As [`DirectoryBuilder::finish`].
    pub fn finish_unread(self, time_ns: u64) -> Result<Directory, FormatError> {
        let directory = self.finish(Generation(1), time_ns)?;
        let learned = Some(Learned::new(directory.num_samples()).into());
        Ok(Directory { learned, ..directory })
    }

    /// Marks ids as deleted, in ranges of (first, length).
    pub fn delete(&mut self, ranges: &[(u64, u64)]) {
        self.deleted.extend_from_slice(ranges);
    }

    /// Sets the class names: labels are indexes into them.
    pub fn set_classes(&mut self, classes: Vec<Vec<u8>>) {
        self.classes = classes;
    }

    /// Sets the cells that this generation frees: see [`crate::format::space::freed`].
    pub fn set_freed(&mut self, freed: Vec<CellRange>) {
        self.freed = freed;
    }

    /// The cells of the chunks so far.
    pub fn cell_ranges(&self) -> impl Iterator<Item = CellRange> {
        let there = self.chunks.iter().filter(|chunk| !chunk.is_lost());
        there.map(|chunk| chunk.cell_range(&self.layout))
    }

    /// Builds the directory of `generation`. Its record has no location yet: [`super::commit`] assigns one.
    ///
    /// # Errors
    /// A sample is not at the slot that its part's placement gives, or a deleted id was never assigned.
    pub fn finish(
        mut self,
        generation: Generation,
        time_ns: u64,
    ) -> Result<Directory, FormatError> {
        let placements: Vec<Placement> = self.parts.iter().map(|p| Placement::new(*p)).collect();
        self.check_ids(&placements)?;
        let num_samples = self.next_slot().0;
        for (first, len) in std::mem::take(&mut self.deleted) {
            at_most("deleted id", first.saturating_add(len), num_samples)?;
            for id in first..first + len {
                self.is_deleted[slot_of(&placements, id)] = true;
            }
        }
        let (mut deleted_ids, mut deleted_slots) = (Bits::new(num_samples), Bits::new(num_samples));
        for slot in (0..self.ids.len()).filter(|slot| self.is_deleted[*slot]) {
            deleted_slots.set(slot as u64);
            deleted_ids.set(self.ids[slot]);
        }
        // One column after the other, dropping its input: memory peaks with the names.
        let tree = self.build_tree();
        drop((std::mem::take(&mut self.ids), std::mem::take(&mut self.is_deleted)));
        let slots_by_id = || placements.iter().flat_map(slots_by_id);
        let labels = std::mem::take(&mut self.labels);
        let labels = Labels::build(slots_by_id().map(|slot| labels[slot]), self.label_range);
        let names = Names::build(slots_by_id().map(|slot| self.name(slot)));
        let metadata = ImageMetadata {
            started_ns: self.started_ns,
            fields: self.fields,
            classes: self.classes,
            freed: self.freed,
        };
        let directory = Directory {
            layout: self.layout,
            generation,
            time_ns,
            metadata: metadata.into(),
            record_range: CellRange::default(),
            columns: Columns {
                chunks: self.chunks.as_bytes().to_vec().into(),
                checkpoints: self.checkpoints.as_bytes().to_vec().into(),
                lengths: self.lengths.into(),
                checksums: self.checksums.into(),
            },
            tree,
            deleted_ids: deleted_ids.finish(),
            deleted_slots: deleted_slots.finish(),
            labels,
            learned: None,
            names: names.into(),
            names_on_media: Vec::new(),
            head_crc32c: None,
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
                let started = self.started_ns.last_mut().expect("one for each part");
                *started = time_ns.min(*started);
            }
            None => {
                equal("first id of a part", next, part.first)?;
                self.parts.push(Part { count, ..part });
                self.started_ns.push(time_ns);
            }
        }
        Ok(())
    }

    /// The first chunk determines the fields; a later chunk with others is an error.
    fn check_fields(&mut self, header: &ChunkHeader) -> Result<(), FormatError> {
        if self.chunks.is_empty() {
            self.fields = header.fields().map(<[u8]>::to_vec).collect();
        }
        let same = header.fields().eq(self.fields.iter().map(|name| &name[..]));
        let (expected, found) = (self.fields.len() as u64, u64::from(header.head().num_fields));
        if same {
            return Ok(());
        }
        Err(FormatError::Mismatch { what: "number or names of the fields", expected, found })
    }

    fn push(&mut self, walk: &mut Walk, new: NewSample<'_>) {
        let at = walk.step(new.len);
        if self.ids.len().is_multiple_of(STRIDE) {
            let chunk = self.chunks.len() as u32 - 1;
            self.checkpoints.push(Checkpoint { chunk: chunk.into(), at: (at as u32).into() });
        }
        self.lengths.extend_from_slice(&new.len.to_le_bytes());
        self.checksums.extend_from_slice(&new.crc.to_le_bytes());
        self.ids.push(new.id);
        let label = new.label.unwrap_or(NO_LABEL);
        self.label_range.take(label);
        self.labels.push(label);
        self.name_text.extend_from_slice(new.name);
        self.name_ends.push(self.name_text.len() as u64);
        self.is_deleted.push(new.deleted);
    }

    fn name(&self, slot: usize) -> &[u8] {
        let start = if slot == 0 { 0 } else { self.name_ends[slot - 1] };
        &self.name_text[start as usize..self.name_ends[slot] as usize]
    }

    /// Compares each id with the one that the placement gives; lost slots get theirs.
    fn check_ids(&mut self, placements: &[Placement]) -> Result<(), FormatError> {
        for placement in placements {
            let part = placement.part();
            for slot in part.first..part.first + part.count {
                let id = placement.id_at(Slot(slot)).0;
                let found = &mut self.ids[slot as usize];
                if *found == UNKNOWN {
                    *found = id;
                }
                equal("id of the sample at a slot", id, *found)?;
            }
        }
        Ok(())
    }

    /// The tree of all named samples, deleted ones included: a delete keeps the tree.
    fn build_tree(&self) -> Tree {
        let seed = self.layout.uuid.hash_seed();
        let named = (0..self.ids.len()).filter(|slot| !self.name(*slot).is_empty());
        let entry = |slot| TreeEntry::new(fingerprint(seed, self.name(slot)), self.ids[slot]);
        Tree::build(named.map(entry).collect(), self.ids.len() as u64)
    }
}

/// The slots of a part, in the order of ids.
fn slots_by_id(placement: &Placement) -> impl Iterator<Item = usize> + Clone {
    let Part { first, count, .. } = *placement.part();
    (first..first + count).map(|id| placement.slot_of(SampleId(id)).0 as usize)
}

fn slot_of(placements: &[Placement], id: u64) -> usize {
    let index = placements.partition_point(|placement| placement.part().first <= id) - 1;
    placements[index].slot_of(SampleId(id)).0 as usize
}

/// The id of a lost slot until the length of its part is known.
const UNKNOWN: u64 = u64::MAX;
/// Slots per chunk that stands for lost ones.
const LOST_CHUNK_SLOTS: u64 = 65_535;
