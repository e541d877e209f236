//! The head of a directory snapshot: its sections and their locations.
//!
//! A snapshot is this head and the columns of the directory, one *section* each. Columns have the same bytes as in
//! memory, each with its own CRC32C, so loading only reads and verifies them. The lookup tree is one range; the names
//! are at the end, followed only by the origins. So a reader by id reads the two ranges that have neither:
//! [`SnapshotHead::ranges_by_id`].

use std::ops::Range;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, TryFromBytes};

use crate::format::cursor::read_sealed;
use crate::format::error::{at_most, equal};
use crate::format::geometry::{
    FORMAT_VERSION, MAX_NAMESPACE_BYTES, MAX_SAMPLES, check_generation, check_layout,
};
use crate::format::{CellRange, FormatError, ImageLayout, Superblock};
use dlfs_base::checksum::crc32c;
use dlfs_base::units::Generation;

/// The first 4,096 bytes of a snapshot.
///
/// | bytes      | field              | meaning                                                  |
/// |------------|--------------------|----------------------------------------------------------|
/// | 0..8       | `magic`            | "DLFSSNAP"                                               |
/// | 8..10      | `version`          | 2: the format version of the whole image                 |
/// | 10..12     | `num_sections`     | sections in the table, at most 64                        |
/// | 12..14     | `num_namespaces`   | number of namespaces of the image                        |
/// | 14         | `pack`             | 0 aligned, 1 tight                                       |
/// | 15         | `reserved_a`       | zero                                                     |
/// | 16..32     | `uuid`             | the image                                                |
/// | 32..40     | `generation`       | the generation that the snapshot describes               |
/// | 40..48     | `time_ns`          | time of that generation's record, in ns since 1970       |
/// | 48..56     | `len`              | bytes of the whole snapshot                              |
/// | 56..64     | `num_samples`      | ids assigned, deleted samples included                   |
/// | 64..72     | `record_cell`      | first cell of the generation record                      |
/// | 72..80     | `record_cells`     | cells of the generation record                           |
/// | 80..84     | `chunk_size`       | maximum bytes of a chunk of several samples              |
/// | 84..86     | `record_namespace` | index of the namespace with the generation record        |
/// | 86..128    | `reserved_b`       | zero                                                     |
/// | 128..2176  | `sections`         | 64 times a section; unused ones are zero                 |
/// | 2176..4092 | `reserved_c`       | zero                                                     |
/// | 4092..4096 | `crc`              | CRC32C of bytes 0..4092                                  |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSnapshotHead {
    magic: [u8; 8],
    version: U16,
    num_sections: U16,
    num_namespaces: U16,
    pack: u8,
    reserved_a: u8,
    uuid: [u8; 16],
    generation: U64,
    time_ns: U64,
    len: U64,
    num_samples: U64,
    record_cell: U64,
    record_cells: U64,
    chunk_size: U32,
    record_namespace: U16,
    reserved_b: [u8; 42],
    sections: [RawSection; MAX_SECTIONS],
    reserved_c: [u8; 1916],
    crc: U32,
}
const _: () = assert!(size_of::<RawSnapshotHead>() == SNAPSHOT_HEAD_BYTES);

/// One section of a snapshot.
///
/// | bytes  | field    | meaning                                                                |
/// |--------|----------|------------------------------------------------------------------------|
/// | 0..2   | `kind`   | the kind of the content: see [`SectionKind`]                           |
/// | 2..4   | `flags`  | bit 0: a reader that does not know the kind must refuse the snapshot   |
/// | 4..8   | `crc`    | CRC32C of the section's bytes                                          |
/// | 8..16  | `offset` | first byte, from the start of the snapshot                             |
/// | 16..24 | `len`    | length in bytes, without padding                                       |
/// | 24..32 | `param`  | a number whose meaning depends on the kind                             |
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSection {
    kind: U16,
    flags: U16,
    crc: U32,
    offset: U64,
    len: U64,
    param: U64,
}
const _: () = assert!(size_of::<RawSection>() == 32);

/// Kinds of sections, in their order in a snapshot; no section has the number 14. `directory` describes their contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, TryFromBytes)]
#[repr(u16)]
pub enum SectionKind {
    /// The typed columns, by id, and the types of the fields; `param` is the number of bytes before the columns'
    /// values. Absent if the image has neither. Earlier releases ignore this section. Its number is 0 because kinds
    /// ascend, and data read by id must precede the names.
    Typed = 0,
    /// Parts, fields, class names and freed cells, in the encoding of the generation record.
    Facts = 1,
    /// The chunk table.
    Chunks = 2,
    /// The position of every 32nd slot.
    Checkpoints = 3,
    /// u32 length of each sample, by slot.
    Lengths = 4,
    /// u32 CRC32C of each sample, by slot.
    Checksums = 5,
    /// Keys of the lookup tree; `param` is the number of its entries.
    TreeKeys = 6,
    /// Ids of the lookup tree; `param` is the bytes per id.
    TreeIds = 7,
    /// One bit per id, set if deleted. Absent if no sample is deleted.
    DeletedIds = 8,
    /// One bit per slot, set if deleted. Absent if no sample is deleted.
    DeletedSlots = 9,
    /// Label of each sample, by id; `param` is the bytes per label. Absent if no sample has a label.
    Labels = 10,
    /// The start of every 16th name in [`SectionKind::Names`].
    NameBlocks = 11,
    /// The names, front-coded, by id.
    Names = 12,
    /// Ids in the order of names; `param` is the bytes per id. Absent if names ascend with ids.
    NameOrder = 13,
    /// The object-store objects that the image was imported from, as groups of [`crate::format::record`]. Absent if
    /// there are none. Earlier releases ignore this section. It follows the names, since only a listing of origins
    /// reads it.
    Origins = 15,
}

/// The location of one section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// The kind of its content.
    pub kind: SectionKind,
    /// First byte, from the start of the snapshot.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// CRC32C of the section's bytes.
    pub crc32c: u32,
    /// A number whose meaning depends on the kind.
    pub param: u64,
}

/// A snapshot's head, decoded and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotHead {
    /// The layout of the whole image.
    pub layout: ImageLayout,
    /// The generation that the snapshot describes.
    pub generation: Generation,
    /// Time of that generation's record, in ns since 1970.
    pub time_ns: u64,
    /// Number of ids assigned, deleted samples included.
    pub num_samples: u64,
    /// The cells of the generation record.
    pub record: CellRange,
    /// Bytes of the whole snapshot.
    pub len_bytes: u64,
    /// The sections, in their order in the snapshot.
    pub sections: Vec<Section>,
}

/// The CRC32C at the end of an encoded head. The superblock stores it to identify the snapshot. (A CRC of the whole
/// head, which ends with its own CRC, would not work: it is the same constant for all heads.)
pub fn head_crc32c(head: &[u8; SNAPSHOT_HEAD_BYTES]) -> u32 {
    let (_, crc) = head.split_last_chunk().expect("4,096 bytes end with 4");
    u32::from_le_bytes(*crc)
}

impl SnapshotHead {
    /// The first 4,096 bytes of the snapshot.
    ///
    /// # Panics
    /// If there are more than 64 sections, which would be a bug of the caller.
    pub fn encode(&self) -> [u8; SNAPSHOT_HEAD_BYTES] {
        let mut sections = [RawSection::new_zeroed(); MAX_SECTIONS];
        for (raw, section) in sections[..self.sections.len()].iter_mut().zip(&self.sections) {
            *raw = RawSection {
                kind: (section.kind as u16).into(),
                flags: match section.kind {
                    SectionKind::Typed | SectionKind::Origins => 0,
                    _ => FLAG_REQUIRED,
                }
                .into(),
                crc: section.crc32c.into(),
                offset: section.offset.into(),
                len: section.len.into(),
                param: section.param.into(),
            };
        }
        let mut raw = RawSnapshotHead {
            magic: MAGIC,
            version: FORMAT_VERSION.into(),
            num_sections: (self.sections.len() as u16).into(),
            num_namespaces: self.layout.num_namespaces.into(),
            pack: self.layout.pack.to_byte(),
            uuid: self.layout.uuid.0,
            generation: self.generation.0.into(),
            time_ns: self.time_ns.into(),
            len: self.len_bytes.into(),
            num_samples: self.num_samples.into(),
            record_cell: self.record.cell.into(),
            record_cells: self.record.cells.into(),
            chunk_size: self.layout.chunk_size_bytes.into(),
            record_namespace: self.record.namespace.into(),
            sections,
            ..RawSnapshotHead::new_zeroed()
        };
        raw.crc = crc32c(&raw.as_bytes()[..SNAPSHOT_HEAD_BYTES - 4]).into();
        zerocopy::transmute!(raw)
    }

    /// Decodes the head from the first 4,096 of `bytes`.
    ///
    /// # Errors
    /// The head is truncated, damaged or invalid.
    pub fn parse(bytes: &[u8]) -> Result<SnapshotHead, FormatError> {
        read_sealed::<RawSnapshotHead>("snapshot", MAGIC, bytes)?.decode()
    }

    /// Checks that this is the head of the snapshot that `superblock` names.
    ///
    /// # Errors
    /// `OtherImage`; `Mismatch`: a fact that both store differs.
    pub fn check_committed(&self, superblock: &Superblock) -> Result<(), FormatError> {
        check_layout("snapshot", &superblock.layout, &self.layout)?;
        equal("generation of the snapshot", superblock.generation.0, self.generation.0)?;
        equal("time of the snapshot", superblock.time_ns, self.time_ns)?;
        equal("length of the snapshot", superblock.snapshot.len_bytes, self.len_bytes)?;
        equal("samples of the snapshot", superblock.num_samples, self.num_samples)
    }

    /// The section of `kind`, if there is one.
    pub fn section(&self, kind: SectionKind) -> Option<&Section> {
        self.sections.iter().find(|section| section.kind == kind)
    }

    /// Number of bytes before the names; without names, of the whole snapshot.
    pub fn core_len(&self) -> u64 {
        let names = self.section(SectionKind::NameBlocks);
        names.map_or(self.len_bytes, |section| section.offset)
    }

    /// The range of the names, with their blocks and order.
    pub fn names_range(&self) -> Range<u64> {
        let start = self.core_len();
        start..self.origins_range().start.max(start)
    }

    /// The range of the origins, to the end of the snapshot; empty if there are none.
    pub fn origins_range(&self) -> Range<u64> {
        let origins = self.section(SectionKind::Origins);
        origins.map_or(self.len_bytes, |section| section.offset)..self.len_bytes
    }

    /// The range of the lookup tree, from its first section to the end of its last; empty if there is no tree.
    pub fn tree_range(&self) -> Range<u64> {
        let is_tree = |section: &&Section| {
            matches!(section.kind, SectionKind::TreeKeys | SectionKind::TreeIds)
        };
        let mut tree = self.sections.iter().filter(is_tree);
        let Some(first) = tree.next() else { return 0..0 };
        let last = tree.next_back().unwrap_or(first);
        first.offset..last.offset + last.len
    }

    /// The ranges that reading by id needs: everything before the names, except the blocks of 4,096 bytes that hold
    /// only the lookup tree. The second range may be empty.
    pub fn ranges_by_id(&self) -> [Range<u64>; 2] {
        let tree = self.tree_range();
        let end = self.core_len();
        let start = tree.start.next_multiple_of(BLOCK_BYTES);
        let resume = (tree.end.min(end) / BLOCK_BYTES * BLOCK_BYTES).max(start.min(end));
        [0..start.min(end), resume..end]
    }
}

impl RawSnapshotHead {
    fn decode(&self) -> Result<SnapshotHead, FormatError> {
        let Self { uuid, chunk_size, pack, num_namespaces, .. } = *self;
        let layout = ImageLayout::decode(uuid, chunk_size, pack, num_namespaces)?;
        let len_bytes = at_most("length of a snapshot", self.len.get(), MAX_NAMESPACE_BYTES)?;
        at_most("number of samples", self.num_samples.get(), MAX_SAMPLES)?;
        let record = CellRange {
            namespace: self.record_namespace.get(),
            cell: self.record_cell.get(),
            cells: self.record_cells.get(),
        };
        let last = u64::from(layout.num_namespaces) - 1;
        at_most("namespace of the generation record", u64::from(record.namespace), last)?;
        layout.offset_of(record.cell.saturating_add(record.cells))?;
        Ok(SnapshotHead {
            layout,
            generation: check_generation(self.generation.get())?,
            time_ns: self.time_ns.get(),
            num_samples: self.num_samples.get(),
            record,
            len_bytes,
            sections: self.decode_sections(len_bytes)?,
        })
    }

    /// Decodes the section table. Kinds must ascend; sections must not overlap or exceed the snapshot.
    fn decode_sections(&self, len_bytes: u64) -> Result<Vec<Section>, FormatError> {
        let count = u64::from(self.num_sections.get());
        at_most("sections of a snapshot", count, MAX_SECTIONS as u64)?;
        let mut sections = Vec::new();
        let mut end = 0;
        let mut last_kind = 0;
        for raw in &self.sections[..count as usize] {
            let number = raw.kind.get();
            let offset = raw.offset.get();
            let len = raw.len.get();
            let alignment = section_alignment(number);
            at_most("offset of a section within its alignment", offset % alignment, 0)?;
            at_most("end of the section before", end, offset)?;
            at_most("length of a section", len, len_bytes)?;
            at_most("offset of a section", offset, len_bytes - len)?;
            at_most("kind of the section before", last_kind, u64::from(number))?;
            end = offset + len;
            last_kind = u64::from(number) + 1;
            let Ok(kind) = SectionKind::try_read_from_bytes(number.as_bytes()) else {
                // Only a later release knows it.
                let required = raw.flags.get() & FLAG_REQUIRED;
                equal("flags of an unknown section", 0, required.into())?;
                continue;
            };
            let crc32c = raw.crc.get();
            let param = raw.param.get();
            sections.push(Section { kind, offset, len, crc32c, param });
        }
        Ok(sections)
    }
}

/// Alignment of a section's offset, in bytes. Names begin with a block of their own, so that a reader can leave them on
/// media. All other sections are aligned to 128 bytes: a node of the lookup tree.
pub(crate) fn section_alignment(kind: u16) -> u64 {
    if kind == SectionKind::NameBlocks as u16 { BLOCK_BYTES } else { 128 }
}

/// Alignment of the start of each range to read, in bytes.
const BLOCK_BYTES: u64 = 4096;
/// Bytes of the head.
pub const SNAPSHOT_HEAD_BYTES: usize = 4096;
const MAX_SECTIONS: usize = 64;
/// Flag of a section: a reader that does not know the kind must refuse the snapshot.
const FLAG_REQUIRED: u16 = 1;
const MAGIC: [u8; 8] = *b"DLFSSNAP";
