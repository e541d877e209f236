//! The head of a chunk: the fixed part of its header. It has the chunk's identity and location, so heads alone are
//! enough to select the chunks for a rebuild.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::format::cursor::read_sealed;
use crate::format::error::{at_most, enough, equal, in_range, out_of_range};
use crate::format::geometry::{FORMAT_VERSION, MAX_SAMPLE_BYTES, MAX_SAMPLES, check_generation};
use crate::format::{CellRange, FormatError, ImageLayout, Part};
use dlfs_base::checksum::crc32c;
use dlfs_base::units::{Generation, Slot};

/// A head on media.
///
/// | bytes    | field            | meaning                                                        |
/// |----------|------------------|----------------------------------------------------------------|
/// | 0..8     | `magic`          | "DLFSCHNK"                                                     |
/// | 8..10    | `version`        | 2                                                              |
/// | 10       | `kind`           | 1 samples, 2 generation record                                 |
/// | 11       | `pack`           | 0 aligned, 1 tight                                             |
/// | 12..16   | `header_len`     | bytes of head and table                                        |
/// | 16..32   | `uuid`           | the image                                                      |
/// | 32..40   | `generation`     | the generation that wrote the chunk                            |
/// | 40..48   | `sequence`       | number of the chunk within the generation, from 0              |
/// | 48..56   | `time_ns`        | time of writing: ns since 1970, never decreasing               |
/// | 56..64   | `first_slot`     | slot of the first sample                                       |
/// | 64..72   | `cell`           | first cell of the chunk                                        |
/// | 72..80   | `data_len`       | bytes of the data behind the padded header                     |
/// | 80..88   | `part_first`     | first id of the part                                           |
/// | 88..96   | `part_seed`      | seed of the part's placement                                   |
/// | 96..104  | `part_window`    | window of the part's placement; 0 is source order              |
/// | 104..108 | `chunk_size`     | maximum bytes of a chunk of several samples                    |
/// | 108..112 | `reserved`       | zero                                                           |
/// | 112..114 | `num_samples`    | samples in the table                                           |
/// | 114..116 | `num_fields`     | field names in the table; 0: samples of one field without name |
/// | 116..118 | `namespace`      | index of the chunk's namespace                                 |
/// | 118..120 | `num_namespaces` | number of namespaces of the image                              |
/// | 120..124 | `table_crc`      | CRC32C of the table                                            |
/// | 124..128 | `head_crc`       | CRC32C of bytes 0..124                                         |
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawHead {
    magic: [u8; 8],
    version: U16,
    kind: u8,
    pack: u8,
    header_len: U32,
    uuid: [u8; 16],
    generation: U64,
    sequence: U64,
    time_ns: U64,
    first_slot: U64,
    cell: U64,
    data_len: U64,
    part_first: U64,
    part_seed: U64,
    part_window: U64,
    chunk_size: U32,
    reserved: U32,
    num_samples: U16,
    num_fields: U16,
    namespace: U16,
    num_namespaces: U16,
    table_crc: U32,
    head_crc: U32,
}
const _: () = assert!(size_of::<RawHead>() == HEAD_BYTES);

/// The kind of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ChunkKind {
    /// Samples.
    Samples = 1,
    /// The metadata of a generation: see [`crate::format::record`].
    Record = 2,
}

/// Identity of a chunk. Sorts by generation, then by sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// The generation that wrote the chunk.
    pub generation: Generation,
    /// Sequence number within the generation.
    pub sequence: u64,
}

/// A head, decoded and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHead {
    /// The layout of the whole image.
    pub layout: ImageLayout,
    /// Samples or generation record.
    pub kind: ChunkKind,
    /// Generation and sequence number.
    pub id: ChunkId,
    /// Time of writing, in ns since 1970.
    pub time_ns: u64,
    /// Index of the chunk's namespace.
    pub namespace: u16,
    /// First cell of the chunk.
    pub cell: u64,
    /// Slot of the first sample.
    pub first_slot: Slot,
    /// Number of samples.
    pub num_samples: u16,
    /// Number of field names in the table.
    pub num_fields: u16,
    /// Bytes of head and table.
    pub header_len: u32,
    /// Bytes of data after the padded header.
    pub data_len: u64,
    /// Part of the chunk, without the part's number of samples.
    pub part: Part,
    /// CRC32C of the table.
    pub table_crc: u32,
}

impl ChunkHead {
    /// Reads a head from the first bytes of a cell; 128 bytes are enough.
    ///
    /// # Errors
    /// `Magic`: no chunk begins here. Other errors: the head is invalid. The table is not checked.
    pub fn parse(bytes: &[u8]) -> Result<ChunkHead, FormatError> {
        read_sealed::<RawHead>("chunk", MAGIC, bytes)?.decode()
    }

    /// Offset of the data from the start of the chunk.
    pub fn data_start(&self) -> u64 {
        padded(u64::from(self.header_len))
    }

    /// Bytes to read for the whole chunk: header and data, padded to 4,096.
    pub fn len_bytes(&self) -> u64 {
        self.data_start() + padded(self.data_len)
    }

    /// The cells of the chunk.
    pub fn cell_range(&self) -> CellRange {
        let cells = self.layout.cells_of(self.len_bytes());
        CellRange { namespace: self.namespace, cell: self.cell, cells }
    }

    /// The slot after the chunk's last sample.
    pub fn end_slot(&self) -> Slot {
        Slot(self.first_slot.0 + u64::from(self.num_samples))
    }

    /// Checks that image and chunk size are those of `layout`, and that the head names the location where it was found.
    ///
    /// # Errors
    /// `OtherImage`. `Mismatch`: the chunk size differs; or the location does, by a misdirected write or a copied
    /// chunk.
    pub fn check_location(
        &self,
        layout: &ImageLayout,
        namespace: u16,
        cell: u64,
    ) -> Result<(), FormatError> {
        let expected = layout.uuid;
        let found = self.layout.uuid;
        if expected != found {
            return Err(FormatError::OtherImage { what: "chunk", expected, found });
        }
        let size = |layout: &ImageLayout| u64::from(layout.chunk_size_bytes);
        equal("chunk size", size(layout), size(&self.layout))?;
        equal("namespace of a chunk", u64::from(namespace), u64::from(self.namespace))?;
        equal("cell of a chunk", cell, self.cell)
    }

    /// The head as on media.
    #[doc(hidden)]
    pub fn to_raw(self) -> RawHead {
        let mut raw = RawHead {
            magic: MAGIC,
            version: FORMAT_VERSION.into(),
            kind: self.kind as u8,
            pack: self.layout.pack.to_byte(),
            header_len: self.header_len.into(),
            uuid: self.layout.uuid.0,
            generation: self.id.generation.0.into(),
            sequence: self.id.sequence.into(),
            time_ns: self.time_ns.into(),
            first_slot: self.first_slot.0.into(),
            cell: self.cell.into(),
            data_len: self.data_len.into(),
            part_first: self.part.first.into(),
            part_seed: self.part.seed.into(),
            part_window: self.part.window.into(),
            chunk_size: self.layout.chunk_size_bytes.into(),
            num_samples: self.num_samples.into(),
            num_fields: self.num_fields.into(),
            namespace: self.namespace.into(),
            num_namespaces: self.layout.num_namespaces.into(),
            table_crc: self.table_crc.into(),
            ..RawHead::new_zeroed()
        };
        raw.head_crc = crc32c(&raw.as_bytes()[..HEAD_BYTES - 4]).into();
        raw
    }

    /// Checks everything that the head alone determines, so that later arithmetic stays in bounds.
    fn check(&self) -> Result<(), FormatError> {
        let namespaces = u64::from(self.layout.num_namespaces);
        at_most("namespace of a chunk", u64::from(self.namespace), namespaces - 1)?;
        let header_len = u64::from(self.header_len);
        enough("chunk header", HEAD_BYTES as u64, self.header_len as usize)?;
        // Far more than any chunk holds; the limit keeps the length of the chunk far below 2^63.
        at_most("data of a chunk", self.data_len, MAX_SAMPLE_BYTES * 2)?;
        let range = self.cell_range();
        let last = range.cell.saturating_add(range.cells - 1);
        self.layout.offset_of(last)?;
        // A record has no slots, but arithmetic on its `first_slot` must not overflow either.
        at_most("first slot of a chunk", self.first_slot.0, MAX_SAMPLES)?;
        at_most("last slot of a chunk", self.end_slot().0, MAX_SAMPLES)?;
        if self.kind == ChunkKind::Record {
            return Ok(());
        }
        at_most("header of a chunk", header_len, u64::from(self.layout.max_header_bytes()))?;
        at_most("first id of a part", self.part.first, self.first_slot.0)?;
        in_range(self.num_samples > 0, "samples of a chunk", 0u64, 65_535)?;
        let chunk_size = u64::from(self.layout.chunk_size_bytes);
        if self.num_samples > 1 {
            at_most("length of a chunk of several samples", self.len_bytes(), chunk_size)?;
        }
        Ok(())
    }
}

impl RawHead {
    fn decode(&self) -> Result<ChunkHead, FormatError> {
        let Self { uuid, chunk_size, pack, num_namespaces, .. } = *self;
        let kind = match self.kind {
            1 => ChunkKind::Samples,
            2 => ChunkKind::Record,
            other => return Err(out_of_range("kind of a chunk", other, 2)),
        };
        let head = ChunkHead {
            layout: ImageLayout::decode(uuid, chunk_size, pack, num_namespaces)?,
            kind,
            id: ChunkId {
                generation: check_generation(self.generation.get())?,
                sequence: self.sequence.get(),
            },
            time_ns: self.time_ns.get(),
            namespace: self.namespace.get(),
            cell: self.cell.get(),
            first_slot: Slot(self.first_slot.get()),
            num_samples: self.num_samples.get(),
            num_fields: self.num_fields.get(),
            header_len: self.header_len.get(),
            data_len: self.data_len.get(),
            part: Part {
                first: self.part_first.get(),
                count: 0,
                seed: self.part_seed.get(),
                window: self.part_window.get(),
            },
            table_crc: self.table_crc.get(),
        };
        head.check()?;
        Ok(head)
    }
}

/// `bytes` rounded up to a multiple of 4,096, for numbers far below 2^63.
pub(crate) fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

/// Length of the head, which contains the length of the whole header.
pub const HEAD_BYTES: usize = 128;
const MAGIC: [u8; 8] = *b"DLFSCHNK";
