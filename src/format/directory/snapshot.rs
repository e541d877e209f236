//! Snapshots of a directory: decodes, encodes and checks them.
//!
//! A directory that is decoded from only some ranges of a snapshot gets its lookup tree, names and origins later
//! (`attach_*`).

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::directory::columns::{ChecksumsAside, Columns};
use crate::directory::ids::DeletedSet;
use crate::directory::names::Names;
use crate::directory::tree::{Tree, id_width};
use crate::directory::typed::{Labels, TypedColumns};
use crate::directory::{Bytes, Directory, ImageMetadata};
use crate::format::cursor::{Cursor, check_crc32c};
use crate::format::error::{at_most, enough, equal, out_of_range};
use crate::format::geometry::check_layout;
use crate::format::record::{
    put_cell_ranges, put_parts, put_strings, read_cell_ranges, read_parts, read_strings,
    visit_origins,
};
use crate::format::snapshot::{
    SNAPSHOT_HEAD_BYTES, Section, SectionKind, SnapshotHead, head_crc32c, section_alignment,
};
use crate::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES, SnapshotLocation};
use crate::format::superblock_set::SuperblockSet;
use crate::format::{FieldTypes, FormatError, Part, Placement, Superblock};
use dlfs_base::checksum::crc32c;
use dlfs_base::units::{ALIGN_BYTES, SampleId};

impl Directory {
    /// Decodes a directory from the bytes of its snapshot: all bytes, or the first
    /// [`SnapshotHead::core_len`] bytes. In the second case names and origins stay on media.
    ///
    /// Copies no column: all are slices of `bytes`. Verifies the CRC32C of every section in `bytes`, and checks for
    /// every sample that it lies within its chunk.
    ///
    /// # Errors
    /// The snapshot is truncated, damaged or inconsistent.
    pub fn from_snapshot(bytes: impl Into<Bytes>) -> Result<Directory, FormatError> {
        let bytes = bytes.into();
        let head = SnapshotHead::parse(&bytes)?;
        let whole = bytes.len() as u64 >= head.len_bytes;
        enough("snapshot", if whole { head.len_bytes } else { head.core_len() }, bytes.len())?;
        let source = Source { head: &head, bytes: &bytes, base: 0, gap: 0..0 };
        let directory = Directory::decode(&source)?;
        directory.attach(&directory.tree, |_| read_tree(&source))?;
        if whole {
            let rest = |range: Range<u64>| {
                let slice = bytes.slice(range.start as usize..range.end as usize);
                slice.expect("the whole snapshot is there")
            };
            directory.attach_names(rest(head.names_range()))?;
            directory.attach_origins(rest(head.origins_range()))?;
        }
        Ok(directory)
    }

    /// As [`from_snapshot`](Self::from_snapshot), but `bytes` are only the two ranges in
    /// [`SnapshotHead::ranges_by_id`], one after the other. Lookup tree, names and origins stay on media: they are most
    /// of a snapshot, and training needs none of them.
    ///
    /// # Errors
    /// The errors of [`from_snapshot`](Self::from_snapshot).
    pub fn from_ranges_by_id(bytes: impl Into<Bytes>) -> Result<Directory, FormatError> {
        let bytes = bytes.into();
        let head = SnapshotHead::parse(&bytes)?;
        let [first, second] = head.ranges_by_id();
        enough("snapshot", first.end + (second.end - second.start), bytes.len())?;
        Directory::decode(&Source {
            head: &head,
            bytes: &bytes,
            base: 0,
            gap: first.end..second.start,
        })
    }

    /// Decodes everything except tree, names and origins, which are attached later.
    fn decode(source: &Source<'_>) -> Result<Directory, FormatError> {
        let head = source.head;
        let n = head.num_samples;
        let (parts, mut metadata) = read_metadata(source)?;
        let columns = Columns {
            chunks: source.column(SectionKind::Chunks)?,
            checkpoints: source.column(SectionKind::Checkpoints)?,
            lengths: source.column(SectionKind::Lengths)?,
            checksums: source.column(SectionKind::Checksums)?,
            aside: None,
        };
        equal("length of the lengths", n.saturating_mul(4), columns.lengths.len() as u64)?;
        let deleted = |kind| match head.section(kind) {
            Some(section) => DeletedSet::from_bits(source.bytes_of(section)?, n),
            None => Ok(DeletedSet::default()),
        };
        let deleted_ids = deleted(SectionKind::DeletedIds)?;
        let deleted_slots = deleted(SectionKind::DeletedSlots)?;
        let labels = match head.section(SectionKind::Labels) {
            Some(section) => Some(Labels::from_bytes(source.bytes_of(section)?, section.param, n)?),
            None => None,
        };
        let typed = match head.section(SectionKind::Typed) {
            Some(section) => {
                let bytes = source.bytes_of(section)?;
                let num_fields = metadata.fields.len();
                let read = TypedColumns::decode(&bytes, section.param, n, num_fields)?;
                metadata.field_types = read.1;
                read.0
            }
            None => TypedColumns::default(),
        };
        let directory = Directory {
            layout: head.layout,
            generation: head.generation,
            time_ns: head.time_ns,
            placements: parts.into_iter().map(Placement::new).collect(),
            metadata: metadata.into(),
            record_range: head.record,
            learned: None,
            columns,
            tree: Arc::default(),
            deleted_ids,
            deleted_slots,
            labels,
            typed,
            names: Arc::default(),
            origins: Arc::default(),
            on_media: Some(head.clone().into()),
            head_crc32c: source.bytes.first_chunk().map(head_crc32c),
            view: None,
        };
        directory.check()?;
        Ok(directory)
    }

    /// Attaches the lookup tree of a directory that was opened without it: the bytes of its snapshot in
    /// [`SnapshotHead::tree_range`]. Does nothing if the tree is loaded already.
    ///
    /// # Errors
    /// The tree is truncated or damaged.
    pub fn attach_tree(&self, bytes: impl Into<Bytes>) -> Result<(), FormatError> {
        self.attach(&self.tree, |head| {
            let base = head.tree_range().start;
            read_tree(&Source { head, bytes: &bytes.into(), base, gap: 0..0 })
        })
    }

    /// Fills `missing` with the result of `read`, which gets the head of the snapshot that the missing sections are in.
    /// Does nothing if it is filled already.
    fn attach<T>(
        &self,
        missing: &OnceLock<T>,
        read: impl FnOnce(&SnapshotHead) -> Result<T, FormatError>,
    ) -> Result<(), FormatError> {
        if missing.get().is_none() {
            let what = "sections of a snapshot";
            let head = self.on_media.as_deref().ok_or(FormatError::NotLoaded { what })?;
            let _ = missing.set(read(head)?); // another thread may have attached the same bytes first
        }
        Ok(())
    }

    /// Attaches the origins of a directory that was opened without them: the bytes of its snapshot in
    /// [`SnapshotHead::origins_range`]. Does nothing if the origins are loaded already, or if there are none.
    ///
    /// # Errors
    /// The origins are truncated or damaged.
    pub fn attach_origins(&self, bytes: impl Into<Bytes>) -> Result<(), FormatError> {
        if !self.has_origins() {
            return Ok(());
        }
        self.attach(&self.origins, |head| {
            let section = head.section(SectionKind::Origins).expect("there are origins");
            let bytes = bytes.into();
            let source = Source { head, bytes: &bytes, base: section.offset, gap: 0..0 };
            let origins = source.bytes_of(section)?;
            visit_origins(&origins, |_| Ok(()))?;
            Ok(origins)
        })
    }

    /// Attaches the names of a directory that was opened without them: the bytes of its snapshot in
    /// [`SnapshotHead::names_range`]. Does nothing if the names are loaded already.
    ///
    /// # Errors
    /// The names are truncated or damaged.
    pub fn attach_names(&self, bytes: impl Into<Bytes>) -> Result<(), FormatError> {
        self.attach(&self.names, |head| {
            let bytes = bytes.into();
            let source = Source { head, bytes: &bytes, base: head.core_len(), gap: 0..0 };
            let order = match head.section(SectionKind::NameOrder) {
                Some(section) => Some((source.bytes_of(section)?, section.param)),
                None => None,
            };
            let blocks = source.column(SectionKind::NameBlocks)?;
            let text = source.column(SectionKind::Names)?;
            Names::from_bytes(blocks, text, order, self.num_samples())
        })
    }

    /// The snapshot of this directory, to be written some bytes at a time.
    ///
    /// # Errors
    /// `NotLoaded`: names, lookup tree or origins are still on media.
    pub fn snapshot(&self) -> Result<SnapshotWriter, FormatError> {
        let tree = self.tree()?;
        let names = self.names()?;
        // The kind of each section, its parameter, and its bytes.
        let mut sections: Vec<(SectionKind, u64, Content)> = Vec::new();
        if !self.typed.all().is_empty() || !self.field_types().is_empty() {
            let (bytes, head_len) = self.typed.encode(self.field_types());
            sections.push((SectionKind::Typed, head_len, Bytes::from(bytes).into()));
        }
        let checksums = match &self.columns.aside {
            Some(aside) => Content::Aside(aside.clone()),
            None => self.columns.checksums.clone().into(),
        };
        sections.extend([
            (SectionKind::Facts, 0, Bytes::from(self.encode_facts()).into()),
            (SectionKind::Chunks, 0, self.columns.chunks.clone().into()),
            (SectionKind::Checkpoints, 0, self.columns.checkpoints.clone().into()),
            (SectionKind::Lengths, 0, self.columns.lengths.clone().into()),
            (SectionKind::Checksums, 0, checksums),
            (SectionKind::TreeKeys, tree.len, tree.keys.clone().into()),
            (SectionKind::TreeIds, tree.id_width as u64, tree.ids.clone().into()),
        ]);
        let deleted = [
            (SectionKind::DeletedIds, &self.deleted_ids),
            (SectionKind::DeletedSlots, &self.deleted_slots),
        ];
        for (kind, set) in deleted {
            sections.extend(set.bits().map(|bits| (kind, 0, bits.clone().into())));
        }
        if let Some(labels) = &self.labels {
            let width = labels.width_bytes() as u64;
            sections.push((SectionKind::Labels, width, labels.bytes.clone().into()));
        }
        sections.push((SectionKind::NameBlocks, 0, names.blocks.clone().into()));
        sections.push((SectionKind::Names, 0, names.text.clone().into()));
        if let Some(order) = &names.order {
            let width = id_width(self.num_samples()) as u64;
            sections.push((SectionKind::NameOrder, width, order.clone().into()));
        }
        if !self.origins()?.is_empty()
            && let Some(origins) = self.origins.get()
        {
            sections.push((SectionKind::Origins, 0, origins.clone().into()));
        }
        Ok(SnapshotWriter::new(self, sections))
    }

    /// All bytes of the snapshot.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot); or a column in external storage cannot be read.
    pub fn to_snapshot(&self) -> Result<Vec<u8>, FormatError> {
        let snapshot = self.snapshot()?;
        let mut bytes = vec![0; snapshot.len_bytes() as usize];
        snapshot.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Checks that this is the directory that `superblock` commits. A snapshot that was saved to a file becomes stale
    /// when the image gets a new generation.
    ///
    /// # Errors
    /// `OtherImage`; `Mismatch`: a fact that directory and superblock both store differs.
    pub fn check_current(&self, superblock: &Superblock) -> Result<(), FormatError> {
        check_layout("snapshot", &superblock.layout, &self.layout)?;
        equal("generation of the snapshot", superblock.generation.0, self.generation.0)?;
        equal("time of the snapshot", superblock.time_ns, self.time_ns)?;
        let committed = superblock.snapshot.head_crc32c;
        let found = self.head_crc32c.unwrap_or(committed);
        equal("checksum of the snapshot's head", u64::from(committed), u64::from(found))?;
        equal("samples of the snapshot", superblock.num_samples, self.num_samples())?;
        equal("live samples of the snapshot", superblock.num_live, self.num_live())
    }

    /// Checks that this is the directory of the opened image, and that everything it reads lies within the used length
    /// that each namespace's superblock states. If namespace 0's superblock stands in for a bad one, or the namespace's
    /// own superblock names another snapshot, the used length is taken from the directory instead.
    ///
    /// # Errors
    /// The errors of [`Directory::check_current`]; `OutOfRange`: the directory reads past a used length.
    pub fn check_opened(&self, opened: &mut SuperblockSet) -> Result<(), FormatError> {
        self.check_current(opened.superblock())?;
        let ends = used_lengths(self, &opened.superblock().snapshot)?;
        for (namespace, end) in (0..self.layout.num_namespaces).zip(ends) {
            let stands_in = opened.stands_in(namespace);
            let snapshot = opened.superblock().snapshot;
            let superblock = &mut opened.superblocks[usize::from(namespace)];
            // A rebuild that did not commit may leave superblocks that name another snapshot.
            if stands_in || superblock.snapshot != snapshot {
                superblock.used_len_bytes = end;
            }
            at_most("end of what the directory reads", end, superblock.used_len_bytes)?;
        }
        Ok(())
    }

    /// Checks that the directory is consistent. Both opening and committing require it. Computes the offset of every
    /// sample, and looks up the slot of every deleted one.
    ///
    /// # Errors
    /// `Mismatch` or `OutOfRange` with the facts that contradict each other.
    pub(super) fn check(&self) -> Result<(), FormatError> {
        let end = self.parts().last().map_or(0, |part| part.first + part.count);
        equal("samples of all parts", self.num_samples(), end)?;
        self.columns.check(&self.layout)?;
        self.check_parts()?;
        self.check_deleted()?;
        self.check_lost()
    }

    /// Checks that a chunk begins at the first slot of each part. So a chunk belongs to one part, as `copy_chunk`
    /// requires.
    fn check_parts(&self) -> Result<(), FormatError> {
        let table = self.columns.table();
        self.parts().try_for_each(|part| {
            let chunk = table.partition_point(|chunk| chunk.first_slot.get() < part.first);
            let found = table.get(chunk).map_or(self.num_samples(), |c| c.first_slot.get());
            equal("first slot of a part's first chunk", part.first, found)
        })
    }

    /// Checks that the deleted slots are exactly the slots of the deleted ids. The counts are equal, so it is enough to
    /// check that the slot of every deleted id is deleted.
    fn check_deleted(&self) -> Result<(), FormatError> {
        equal("deleted slots", self.deleted_ids.count(), self.deleted_slots.count())?;
        let is_elsewhere = |id: &u64| {
            let slot = self.slot_of(SampleId(*id));
            !slot.is_some_and(|slot| self.deleted_slots.contains(slot.0))
        };
        let elsewhere = self.deleted_ids.iter().filter(is_elsewhere).count();
        equal("deleted ids whose slot is not deleted", 0, elsewhere as u64)
    }

    /// Checks that all samples of lost chunks are deleted; otherwise they would be read as empty samples.
    fn check_lost(&self) -> Result<(), FormatError> {
        let lost = (0..).zip(self.columns.table()).filter(|(_, chunk)| chunk.is_lost());
        let live: u64 = lost.map(|(c, _)| u64::from(self.live_in_chunk(c))).sum();
        equal("live samples of lost chunks", 0, live)
    }

    /// Encodes the section `Facts`.
    fn encode_facts(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let parts: Vec<Part> = self.parts().copied().collect();
        put_parts(&mut out, &parts, &self.metadata.started_ns);
        put_strings(&mut out, &self.metadata.fields);
        put_strings(&mut out, &self.metadata.classes);
        put_cell_ranges(&mut out, &self.metadata.freed);
        out
    }
}

/// A snapshot whose bytes are copied only on request.
#[derive(Debug)]
pub struct SnapshotWriter {
    head: [u8; SNAPSHOT_HEAD_BYTES],
    /// Each section with its offset, ascending; the gaps between sections are zeroes.
    sections: Vec<(u64, Content)>,
    /// Length of the snapshot in bytes.
    len: u64,
}

/// The bytes of a section.
#[derive(Debug)]
enum Content {
    /// In memory.
    Here(Bytes),
    /// The checksums, in external storage.
    Aside(Arc<ChecksumsAside>),
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Content {
        Content::Here(bytes)
    }
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Content::Here(bytes) => bytes.len() as u64,
            Content::Aside(aside) => aside.len_bytes,
        }
    }

    fn crc32c(&self) -> u32 {
        match self {
            Content::Here(bytes) => crc32c(bytes),
            Content::Aside(aside) => aside.crc32c,
        }
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), FormatError> {
        match self {
            Content::Here(bytes) => {
                out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]);
                Ok(())
            }
            Content::Aside(aside) => aside.kept.read_at(at, out),
        }
    }
}

impl SnapshotWriter {
    fn new(directory: &Directory, contents: Vec<(SectionKind, u64, Content)>) -> SnapshotWriter {
        let mut len = SNAPSHOT_HEAD_BYTES as u64;
        let mut sections = Vec::new();
        let mut placed = Vec::new();
        for (kind, param, bytes) in contents {
            let alignment = section_alignment(kind as u16);
            let offset = len.next_multiple_of(alignment);
            let crc32c = bytes.crc32c();
            sections.push(Section { kind, offset, len: bytes.len(), crc32c, param });
            len = offset + bytes.len();
            placed.push((offset, bytes));
        }
        let len = len.next_multiple_of(4096);
        let head = SnapshotHead {
            layout: directory.layout,
            generation: directory.generation,
            time_ns: directory.time_ns,
            num_samples: directory.num_samples(),
            record: directory.record_range,
            len_bytes: len,
            sections,
        };
        SnapshotWriter { head: head.encode(), sections: placed, len }
    }

    /// Length of the whole snapshot, a multiple of 4,096.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// The CRC32C at the end of the head, which the superblock stores to identify the snapshot.
    pub fn head_crc32c(&self) -> u32 {
        head_crc32c(&self.head)
    }

    /// Copies the bytes from `offset` on into `out`; bytes past the end of the snapshot are zeroes.
    ///
    /// # Errors
    /// A column in external storage ([`KeepsAside`](super::KeepsAside)) cannot be read.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), FormatError> {
        out.fill(0);
        if let Some((own, from)) = overlap(offset, out.len(), 0, self.head.len() as u64) {
            let len = own.len();
            out[own].copy_from_slice(&self.head[from as usize..from as usize + len]);
        }
        let end = offset.saturating_add(out.len() as u64);
        let from = self.sections.partition_point(|(at, bytes)| at + bytes.len() <= offset);
        for (at, bytes) in self.sections[from..].iter().take_while(|(at, _)| *at < end) {
            if let Some((own, from)) = overlap(offset, out.len(), *at, bytes.len()) {
                bytes.read_at(from, &mut out[own])?;
            }
        }
        Ok(())
    }
}

/// The overlap of an output buffer of `out_len` bytes, which starts at `offset`, and a section of `len` bytes at `at`:
/// the range in the buffer, and the start in the section. `None` if they do not overlap.
fn overlap(offset: u64, out_len: usize, at: u64, len: u64) -> Option<(Range<usize>, u64)> {
    let start = offset.max(at);
    let end = (offset + out_len as u64).min(at + len);
    (start < end).then(|| ((start - offset) as usize..(end - offset) as usize, start - at))
}

/// Some bytes of a snapshot: those from offset `base` on, without the range `gap`.
struct Source<'a> {
    head: &'a SnapshotHead,
    bytes: &'a Bytes,
    base: u64,
    gap: Range<u64>,
}

impl Source<'_> {
    /// The location of a section that every snapshot has.
    fn need(&self, kind: SectionKind) -> Result<&Section, FormatError> {
        self.head.section(kind).ok_or(out_of_range("missing section", kind as u64, 0))
    }

    /// The bytes of a section that every snapshot has.
    fn column(&self, kind: SectionKind) -> Result<Bytes, FormatError> {
        self.bytes_of(self.need(kind)?)
    }

    /// The bytes of a section, after its checksum is verified.
    fn bytes_of(&self, section: &Section) -> Result<Bytes, FormatError> {
        let skipped = if section.offset < self.gap.end { 0 } else { self.gap.end - self.gap.start };
        let start = section.offset.saturating_sub(self.base + skipped);
        let end = start.saturating_add(section.len);
        enough("section of a snapshot", end, self.bytes.len())?;
        let bytes = self.bytes.slice(start as usize..end as usize).expect("they are there");
        check_crc32c(section_name(section.kind), section.crc32c, &bytes)?;
        Ok(bytes)
    }
}

/// Reads the lookup tree.
fn read_tree(source: &Source<'_>) -> Result<Tree, FormatError> {
    let keys = source.need(SectionKind::TreeKeys)?;
    let ids = source.need(SectionKind::TreeIds)?;
    Tree::from_bytes(source.bytes_of(keys)?, source.bytes_of(ids)?, ids.param, keys.param)
}

/// Reads the section `Facts`.
fn read_metadata(source: &Source<'_>) -> Result<(Vec<Part>, ImageMetadata), FormatError> {
    let bytes = source.column(SectionKind::Facts)?;
    let mut cursor = Cursor::new("facts of a snapshot", &bytes);
    let (parts, started_ns) = read_parts(&mut cursor)?;
    let metadata = ImageMetadata {
        started_ns,
        fields: read_strings(&mut cursor)?,
        field_types: FieldTypes::default(), // read with the typed columns
        classes: read_strings(&mut cursor)?,
        freed: read_cell_ranges(&mut cursor, &source.head.layout)?,
    };
    equal("bytes behind the facts of a snapshot", 0, cursor.len() as u64)?;
    Ok((parts, metadata))
}

fn section_name(kind: SectionKind) -> &'static str {
    match kind {
        SectionKind::Typed => "snapshot, typed columns",
        SectionKind::Facts => "snapshot, facts",
        SectionKind::Chunks => "snapshot, chunk table",
        SectionKind::Checkpoints => "snapshot, checkpoints",
        SectionKind::Lengths => "snapshot, lengths",
        SectionKind::Checksums => "snapshot, checksums",
        SectionKind::TreeKeys => "snapshot, keys of the lookup tree",
        SectionKind::TreeIds => "snapshot, ids of the lookup tree",
        SectionKind::DeletedIds => "snapshot, deleted ids",
        SectionKind::DeletedSlots => "snapshot, deleted slots",
        SectionKind::Labels => "snapshot, labels",
        SectionKind::NameBlocks => "snapshot, name blocks",
        SectionKind::Names => "snapshot, names",
        SectionKind::Origins => "snapshot, origins",
        SectionKind::NameOrder => "snapshot, order of names",
    }
}

/// For each namespace, the end of the bytes that a reader of `directory` and its snapshot reads.
pub(super) fn used_lengths(
    directory: &Directory,
    snapshot: &SnapshotLocation,
) -> Result<Vec<u64>, FormatError> {
    let layout = &directory.layout;
    let copies_end = COPY_OFFSETS[1] + SUPERBLOCK_BYTES as u64;
    let mut ends = vec![copies_end; layout.num_namespaces.into()];
    for c in 0..directory.num_chunks() {
        let chunk = directory.chunk(c);
        grow(&mut ends, chunk.namespace, chunk.offset_bytes + chunk.len_bytes);
    }
    let record = directory.record_range;
    if let Some(more) = record.cells.checked_sub(1) {
        // The directory knows the record's cells, not its length: count one block of the last cell.
        let last = layout.offset_of(record.cell.saturating_add(more))?;
        grow(&mut ends, record.namespace, last + ALIGN_BYTES as u64);
    }
    let snapshot_end = snapshot.offset_bytes.saturating_add(snapshot.len_bytes);
    grow(&mut ends, snapshot.namespace, snapshot_end);
    Ok(ends)
}

/// Extends the used length of `namespace` to `end`.
pub(super) fn grow(ends: &mut [u64], namespace: u16, end: u64) {
    let known = &mut ends[usize::from(namespace)];
    *known = end.max(*known);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::DirectoryBuilder;
    use crate::format::{ImageLayout, Pack, Uuid};
    use dlfs_base::units::Generation;

    #[test]
    fn a_chunk_that_reaches_into_the_next_part_is_refused() {
        let layout = ImageLayout::new(Uuid([1; 16]), 64 << 10, Pack::Aligned, 1).unwrap();
        let mut builder = DirectoryBuilder::new(layout);
        let files: Vec<(&[u8], u32, Option<i64>)> =
            vec![(b"a", 1, None), (b"b", 2, None), (b"c", 3, None), (b"d", 4, None)];
        builder.add_files(1, files.into_iter()).unwrap();
        let mut directory = builder.finish(Generation(1), 1).unwrap();
        Directory::from_snapshot(directory.to_snapshot().unwrap()).unwrap();
        let part = |first, count| Placement::new(Part { first, count, seed: 0, window: 0 });
        directory.placements = vec![part(0, 3), part(3, 1)];
        directory.metadata =
            ImageMetadata { started_ns: vec![0, 0], ..ImageMetadata::default() }.into();
        let what = "first slot of a part's first chunk";
        let expected = 3;
        let found = 4;
        let refused = Directory::from_snapshot(directory.to_snapshot().unwrap()).unwrap_err();
        assert_eq!(refused, FormatError::Mismatch { what, expected, found });
    }

    /// The counts of deleted ids and slots agree, so only the comparison of each id finds the difference.
    #[test]
    fn deleted_slots_that_are_not_those_of_the_deleted_ids_are_refused() {
        let layout = ImageLayout::new(Uuid([1; 16]), 64 << 10, Pack::Aligned, 1).unwrap();
        let mut builder = DirectoryBuilder::new(layout);
        let names: Vec<String> = (0..100).map(|id| format!("{id:03}")).collect();
        builder.add_files(1, names.iter().map(|name| (name.as_bytes(), 1, None))).unwrap();
        let whole = builder.finish(Generation(1), 1).unwrap();
        let deleted = |id| whole.with_deleted(&[SampleId(id)], Generation(2), 2).unwrap();
        let seven = deleted(7);
        let eight = deleted(8);
        Directory::from_snapshot(seven.to_snapshot().unwrap()).unwrap();
        let lying = Directory { deleted_slots: eight.deleted_slots, ..seven };
        let refused = Directory::from_snapshot(lying.to_snapshot().unwrap()).unwrap_err();
        let what = "deleted ids whose slot is not deleted";
        assert_eq!(refused, FormatError::Mismatch { what, expected: 0, found: 1 });
        let mut space = crate::format::Space::new(&layout, &[1 << 20]);
        let unwritten = crate::directory::commit::Commit::prepare(lying, &mut space).unwrap_err();
        assert_eq!(unwritten, refused, "what would not open is not committed");
    }
}
