//! The header of a chunk, which describes the chunk's samples. So chunks are self-describing: the directory can be
//! rebuilt from them alone.
//!
//! A header is a [head](RawHead) of 128 bytes, of `chunk_head.rs`, and a [*table*](crate::format::table):
//!
//! ```text
//! head | field names: u16 length, bytes, each | columns: kind, length, bytes, each
//! ```
//!
//! Data begins at the next multiple of 4,096. The samples are laid out there by the rule of
//! [`crate::format::Pack`], so their offsets can be computed from their lengths.
//!
//! A chunk records its image, generation, sequence number and location. So a reader detects a copied chunk, or a stale
//! chunk of an older generation, in place of the expected one.

use zerocopy::IntoBytes;

pub(crate) use crate::format::chunk_head::padded;
pub use crate::format::chunk_head::{ChunkHead, ChunkId, ChunkKind, HEAD_BYTES, RawHead};

use crate::format::FormatError;
use crate::format::columns::{ColumnSpec, RowValues};
use crate::format::cursor::check_crc32c;
use crate::format::error::{enough, in_range};
use crate::format::field_type::FieldTypes;
use crate::format::pieces::num_pieces;
use crate::format::table::Table;
use dlfs_base::units::{SampleId, Slot};

/// One sample of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleEntry<'a> {
    /// Id of the sample.
    pub id: SampleId,
    /// Slot of the sample.
    pub slot: Slot,
    /// Name; empty if the sample was purged.
    pub name: &'a [u8],
    /// Label, if the sample has one.
    pub label: Option<i64>,
    /// Values in the typed columns.
    pub values: RowValues<'a>,
    /// Offset of the record from the start of the chunk, in bytes.
    pub offset_bytes: u64,
    /// Bytes of the record.
    pub len_bytes: u32,
    /// CRC32C of the record.
    pub crc32c: u32,
    /// CRC32C of each [piece](crate::format::pieces) of a large record; empty if not known, or if the record is not
    /// large.
    pub pieces: &'a [u32],
    /// True if the sample was deleted and a purge dropped its bytes: only its slot is left.
    pub purged: bool,
}

/// A chunk header, decoded and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkHeader {
    head: ChunkHead,
    /// The encoded table, as on media.
    encoded: Vec<u8>,
    /// Bytes of the field names at the beginning of `encoded`.
    fields_len: usize,
    table: Table,
}

impl ChunkHeader {
    /// Reads the header of a chunk of samples; `bytes` may continue after it.
    ///
    /// # Errors
    /// `Truncated`: `bytes` are too few; the error has the length that is needed at least. Other errors: the header is
    /// invalid.
    pub fn parse(bytes: &[u8]) -> Result<ChunkHeader, FormatError> {
        let head = ChunkHead::parse(bytes)?;
        let is_of_samples = head.kind == ChunkKind::Samples;
        in_range(is_of_samples, "kind of a chunk of samples", head.kind as u8, 1)?;
        ChunkHeader::from_parts(head, table_of(&head, bytes)?.to_vec())
    }

    /// A header from a head and its encoded table. Checks every entry.
    pub(crate) fn from_parts(
        head: ChunkHead,
        encoded: Vec<u8>,
    ) -> Result<ChunkHeader, FormatError> {
        let mut at = 0;
        for _ in 0..head.num_fields {
            let rest = encoded.get(at..).unwrap_or_default();
            enough("field name", 2, rest.len())?;
            let len = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
            enough("field name", 2 + len as u64, rest.len())?;
            at += 2 + len;
        }
        let table = Table::decode(&head, &encoded[at..])?;
        Ok(ChunkHeader { head, encoded, fields_len: at, table })
    }

    /// The fixed part of the header.
    pub fn head(&self) -> &ChunkHead {
        &self.head
    }

    /// Names of a sample's fields; empty if samples have one field without a name.
    pub fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.encoded[..self.fields_len];
        std::iter::from_fn(move || {
            let (len, behind) = rest.split_first_chunk()?;
            let (name, behind) = behind.split_at(usize::from(u16::from_le_bytes(*len)));
            rest = behind;
            Some(name)
        })
    }

    /// The types of the fields.
    pub fn field_types(&self) -> &FieldTypes {
        &self.table.field_types
    }

    /// The typed columns that the chunk has values of.
    pub fn columns(&self) -> impl Iterator<Item = &ColumnSpec> {
        self.table.typed.specs()
    }

    /// The samples, in the order of slots.
    pub fn samples(&self) -> impl Iterator<Item = SampleEntry<'_>> {
        let pack = self.head.layout.pack;
        let data_start = self.head.data_start();
        let mut end = 0;
        let mut pieces = &self.table.pieces[..];
        let rows = self.table.rows.iter().enumerate();
        (self.head.first_slot.0..).zip(rows).map(move |(slot, (index, row))| {
            let at = pack.next_start(end, row.len);
            end = at + u64::from(row.len);
            let mine = pieces.split_off(..num_pieces(row.len).min(pieces.len()));
            SampleEntry {
                id: SampleId(row.id),
                slot: Slot(slot),
                name: self.table.name(row),
                label: row.label,
                values: self.table.typed.row(index),
                offset_bytes: data_start + at,
                len_bytes: row.len,
                crc32c: row.crc32c,
                pieces: mine.unwrap_or_default(),
                purged: row.purged,
            }
        })
    }

    /// Writes the header, padded to a multiple of 4,096, to the front of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`ChunkHead::data_start`].
    pub fn encode_into(&self, out: &mut [u8]) {
        let out = &mut out[..self.head.data_start() as usize];
        let (head, rest) = out.split_at_mut(HEAD_BYTES);
        head.copy_from_slice(self.head.to_raw().as_bytes());
        let (table, padding) = rest.split_at_mut(self.encoded.len());
        table.copy_from_slice(&self.encoded);
        padding.fill(0);
    }
}

/// The table after `head`. Verifies its checksum.
pub(crate) fn table_of<'a>(head: &ChunkHead, bytes: &'a [u8]) -> Result<&'a [u8], FormatError> {
    enough("chunk header", u64::from(head.header_len), bytes.len())?;
    let table = &bytes[HEAD_BYTES..head.header_len as usize];
    check_crc32c("chunk table", head.table_crc, table)?;
    Ok(table)
}
