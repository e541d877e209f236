//! The table of a chunk's header: encodes and decodes the metadata of the chunk's samples.
//!
//! The table begins with the names of the fields: for each, a u16 length and the bytes.
//!
//! *Columns* follow: for each, its kind and its length in bytes, both LEB128, and the bytes. Kinds ascend. A reader
//! refuses an unknown kind below `kind::MAY_BE_IGNORED`, and ignores an unknown kind from there on. A column holds one
//! value for each sample, in the order of slots, unless its description in `kind` says otherwise.
//!
//! Ids are not stored: they are computed from the slots by the placement of the part.
//!
//! Names are front-coded: the length of the prefix shared with the previous nonempty name, the length of the rest, and
//! the rest. They are stored in the order of ids or, if that saves space, sorted, so that neighbours share long
//! prefixes. In the second case the column `kind::NAME_ORDER` gives the order.

use crate::format::FormatError;
use crate::format::chunk_head::ChunkHead;
use crate::format::columns::{ColumnBound, ColumnSpec, ColumnTable, RowValues};
use crate::format::cursor::{Cursor, label_code, label_of, number_len, put_number, put_string};
use crate::format::error::{at_most, enough, equal, in_range, out_of_range};
use crate::format::field_type::FieldTypes;
use crate::format::geometry::{MAX_NAME_BYTES, MAX_SAMPLES, Part, Placement};
use crate::format::names::{common, compare};
use crate::format::pieces::{PIECE_BYTES, num_pieces};
use dlfs_base::units::{SampleId, Slot};

/// Kinds of columns.
pub(crate) mod kind {
    /// The number of samples of the part, one LEB128 number. It is needed to compute ids from slots. Absent if the
    /// part's window is 0 or 1: ids and slots are then equal.
    pub(crate) const PART: u64 = 1;
    /// Bytes of the record, LEB128.
    pub(crate) const LENGTHS: u64 = 2;
    /// u32 CRC32C of the record.
    pub(crate) const CHECKSUMS: u64 = 3;
    /// The label, LEB128: 0 for no label, else 2n + 1 for label n >= 0, or -2n for n < 0. Absent if no sample has a
    /// label.
    pub(crate) const LABELS: u64 = 4;
    /// One bit, set if the sample was purged: only its slot is left. Absent if no sample was purged.
    pub(crate) const PURGED: u64 = 5;
    /// For each stored name, in storage order, the u16 index in the chunk of its sample. Absent if names are stored in
    /// the order of ids.
    pub(crate) const NAME_ORDER: u64 = 6;
    /// The names, front-coded.
    pub(crate) const NAMES: u64 = 7;
    /// Readers may ignore columns of this kind and above.
    pub(crate) const MAY_BE_IGNORED: u64 = 64;
    /// The base-2 logarithm of the piece length, LEB128; then, for each record of more than 1 MiB, a u32 CRC32C of each
    /// of its pieces. Absent if no record is that long, if the checksums would not fit into the header, or if an
    /// earlier release wrote the chunk. A reader ignores the column if its piece length differs from the reader's.
    pub(crate) const PIECES: u64 = MAY_BE_IGNORED;
    /// The typed columns of the user: see [`crate::format::columns`]. Absent if the image has none.
    pub(crate) const TYPED: u64 = 65;
    /// The types of the fields: see [`crate::format::field_type`]. Absent if no field has one.
    pub(crate) const FIELD_TYPES: u64 = 66;
}

/// A row of a table: one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: u64,
    pub(crate) label: Option<i64>,
    /// Length of the record in bytes.
    pub(crate) len: u32,
    /// CRC32C of the record.
    pub(crate) crc32c: u32,
    /// Start of the name in [`Table::names`].
    name_at: u32,
    /// Length of the name in bytes.
    name_len: u16,
    /// True if only the slot is left of a deleted sample.
    pub(crate) purged: bool,
}

/// A decoded table without the names of the fields. The rows are in the order of slots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Table {
    pub(crate) rows: Vec<Row>,
    /// The names of all rows, one after the other.
    names: Vec<u8>,
    /// Checksums of the pieces of all large records, one after the other; empty if not known.
    pub(crate) pieces: Vec<u32>,
    /// The typed columns, with a row for each sample even if there are no columns.
    pub(crate) typed: ColumnTable,
    /// The types of the fields.
    pub(crate) field_types: FieldTypes,
}

impl Table {
    /// A table without samples.
    pub(crate) fn new(typed: &[ColumnSpec], field_types: &FieldTypes) -> Table {
        let typed = ColumnTable::new(typed);
        let field_types = field_types.clone();
        Table { typed, field_types, ..Table::default() }
    }

    /// Appends a sample.
    pub(crate) fn push(&mut self, meta: &SampleMeta<'_>, len: u32, crc32c: u32, purged: bool) {
        self.rows.push(Row {
            id: meta.id.0,
            label: meta.label,
            len,
            crc32c,
            name_at: self.names.len() as u32,
            name_len: meta.name.len() as u16,
            purged,
        });
        self.names.extend_from_slice(meta.name);
        self.typed.push(|column| meta.values.get(column));
    }

    /// Appends the checksums of the pieces of the record that was appended last, if it is large.
    pub(crate) fn push_pieces(&mut self, sums: impl Iterator<Item = u32>) {
        if self.rows.last().is_some_and(|row| num_pieces(row.len) > 0) {
            self.pieces.extend(sums);
        }
    }

    pub(crate) fn name(&self, row: &Row) -> &[u8] {
        &self.names[row.name_at as usize..][..usize::from(row.name_len)]
    }

    /// Removes all samples, but keeps the allocated memory.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.names.clear();
        self.pieces.clear();
        self.typed.clear();
    }

    /// Appends the encoded table to `out`, which ends with the names of the fields.
    ///
    /// Omits the checksums of pieces if `out` would have more than `max_len` bytes with them: a record may have very
    /// many pieces.
    pub(crate) fn encode(&self, part: &Part, max_len: usize, out: &mut Vec<u8>) {
        self.encode_columns(part, out);
        let typed = self.encode_typed();
        self.encode_pieces(max_len.saturating_sub(typed.len()), out);
        out.extend_from_slice(&typed);
    }

    /// Decodes the bytes after the names of the fields. Checks every row, and that the records have the
    /// length in `head`.
    ///
    /// # Errors
    /// The bytes are damaged or invalid.
    pub(crate) fn decode(head: &ChunkHead, bytes: &[u8]) -> Result<Table, FormatError> {
        let table = Table::decode_columns(head, bytes)?;
        let mut end = 0;
        for row in &table.rows {
            at_most("id of a sample", row.id, MAX_SAMPLES - 1)?;
            at_most("first id of a part", head.part.first, row.id)?;
            if row.purged {
                equal("length of a purged sample", 0, row.len.into())?;
            }
            if row.len == 0 {
                equal("checksum of an empty sample", 0, row.crc32c.into())?;
            }
            check_name(table.name(row))?;
            check_label(row.label)?;
            end = head.layout.pack.next_start(end, row.len) + u64::from(row.len);
        }
        equal("data of a chunk", end, head.data_len)?;
        Ok(table)
    }

    fn encode_columns(&self, part: &Part, out: &mut Vec<u8>) {
        let mut column = Vec::new();
        let mut put = |kind, fill: &dyn Fn(&mut Vec<u8>)| {
            column.clear();
            fill(&mut column);
            put_number(out, kind);
            put_string(out, &column);
        };
        if part.window > 1 {
            put(kind::PART, &|column| put_number(column, part.count));
        }
        put(kind::LENGTHS, &|column| {
            self.rows.iter().for_each(|row| put_number(column, row.len.into()));
        });
        put(kind::CHECKSUMS, &|column| {
            self.rows.iter().for_each(|row| column.extend_from_slice(&row.crc32c.to_le_bytes()));
        });
        if self.rows.iter().any(|row| row.label.is_some()) {
            put(kind::LABELS, &|column| {
                self.rows.iter().for_each(|row| put_number(column, label_code(row.label)));
            });
        }
        if self.rows.iter().any(|row| row.purged) {
            put(kind::PURGED, &|column| {
                column.resize(self.rows.len().div_ceil(8), 0);
                for (index, _) in self.rows.iter().enumerate().filter(|(_, row)| row.purged) {
                    column[index / 8] |= 1 << (index % 8);
                }
            });
        }
        let (order, is_of_ids) = self.name_order();
        if !is_of_ids {
            put(kind::NAME_ORDER, &|column| {
                order.iter().for_each(|index| column.extend_from_slice(&index.to_le_bytes()));
            });
        }
        put(kind::NAMES, &|column| self.put_names(&order, column));
    }

    /// Appends the column of piece checksums, if there are any and `out` then has at most `max_len` bytes.
    fn encode_pieces(&self, max_len: usize, out: &mut Vec<u8>) {
        let expected: usize = self.rows.iter().map(|row| num_pieces(row.len)).sum();
        if expected == 0 || self.pieces.len() != expected {
            return;
        }
        let mut column = Vec::with_capacity(1 + expected * 4);
        put_number(&mut column, PIECE_BYTES.ilog2().into());
        self.pieces.iter().for_each(|sum| column.extend_from_slice(&sum.to_le_bytes()));
        if out.len() + PIECES_HEAD + column.len() <= max_len {
            put_number(out, kind::PIECES);
            put_string(out, &column);
        }
    }

    /// Encodes the columns `TYPED` and `FIELD_TYPES`, if there are any typed columns and types of fields.
    fn encode_typed(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut column = Vec::new();
        if !self.typed.is_empty() {
            self.typed.encode(&mut column);
            put_number(&mut out, kind::TYPED);
            put_string(&mut out, &column);
        }
        if !self.field_types.is_empty() {
            column.clear();
            self.field_types.encode(&mut column);
            put_number(&mut out, kind::FIELD_TYPES);
            put_string(&mut out, &column);
        }
        out
    }

    /// Decodes the column of piece checksums; ignores it if its pieces have another length.
    fn read_pieces(&mut self, mut from: Cursor<'_>) -> Result<(), FormatError> {
        if from.number()? != u64::from(PIECE_BYTES.ilog2()) {
            return Ok(());
        }
        let expected: usize = self.rows.iter().map(|row| num_pieces(row.len)).sum();
        equal("checksums of pieces of a chunk", expected as u64 * 4, from.len() as u64)?;
        let sums = from.bytes(expected as u64 * 4)?.as_chunks().0;
        self.pieces = sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
        Ok(())
    }

    /// The order in which to store the names, as indexes of rows, and true if it is the order of ids. Names are sorted
    /// only if that saves more bytes than storing the order takes. Sorting is not tried if it could save little.
    fn name_order(&self) -> (Vec<u16>, bool) {
        let by_id = order_of_ids(self.rows.iter().map(|row| row.id));
        let unshared_by_id = self.unshared(&by_id);
        if unshared_by_id <= by_id.len() * 4 {
            return (by_id, true);
        }
        let name = |index: u16| self.name(&self.rows[usize::from(index)]);
        let mut sorted = by_id.clone();
        sorted.sort_by(|&a, &b| compare(name(a), name(b)));
        if self.unshared(&sorted) + sorted.len() * 2 < unshared_by_id {
            (sorted, false)
        } else {
            (by_id, true)
        }
    }

    /// Bytes of all names, stored in this order, without the prefixes shared with the previous names.
    fn unshared(&self, order: &[u16]) -> usize {
        let mut before: &[u8] = b"";
        let mut sum: usize = 0;
        for &index in order {
            let name = self.name(&self.rows[usize::from(index)]);
            if !name.is_empty() {
                sum += name.len() - common(before, name);
                before = name;
            }
        }
        sum
    }

    /// Appends the names in this order, front-coded.
    fn put_names(&self, order: &[u16], out: &mut Vec<u8>) {
        let mut before: &[u8] = b"";
        for &index in order {
            let name = self.name(&self.rows[usize::from(index)]);
            let shared = common(before, name);
            put_number(out, shared as u64);
            put_string(out, &name[shared..]);
            if !name.is_empty() {
                before = name;
            }
        }
    }

    fn decode_columns(head: &ChunkHead, bytes: &[u8]) -> Result<Table, FormatError> {
        let columns = EncodedColumns::split(bytes)?;
        let num_samples = usize::from(head.num_samples);
        let mut lengths = columns.need(kind::LENGTHS)?;
        let mut checksums = columns.need(kind::CHECKSUMS)?;
        let mut labels = columns.find(kind::LABELS);
        let purged = columns.exactly(kind::PURGED, num_samples.div_ceil(8))?.unwrap_or_default();
        let ids = ids_of(head, columns.find(kind::PART))?;
        let mut table = Table::default();
        // Each sample has 4 bytes of checksum in the table, so check the count before it sizes memory.
        enough("checksums of a chunk", num_samples as u64 * 4, checksums.len())?;
        table.rows.reserve_exact(num_samples);
        for (index, id) in ids.into_iter().enumerate() {
            let crc32c = checksums.bytes(4)?.try_into().expect("4 bytes");
            let label = labels.as_mut().map(Cursor::number).transpose()?.and_then(label_of);
            table.rows.push(Row {
                id,
                label,
                len: at_most("length of a sample", lengths.number()?, u32::MAX.into())? as u32,
                crc32c: u32::from_le_bytes(crc32c),
                name_at: 0,
                name_len: 0,
                purged: purged.get(index / 8).is_some_and(|bits| bits >> (index % 8) & 1 == 1),
            });
        }
        let rest = lengths.len() + checksums.len() + labels.map_or(0, |labels| labels.len());
        equal("bytes behind a column of a chunk", 0, rest as u64)?;
        let order = match columns.exactly(kind::NAME_ORDER, num_samples * 2)? {
            Some(order) => read_order(order)?,
            None => order_of_ids(table.rows.iter().map(|row| row.id)),
        };
        let names = columns.need(kind::NAMES)?;
        table.read_names(names, &order, head.layout.max_names_bytes())?;
        if let Some(pieces) = columns.find(kind::PIECES) {
            table.read_pieces(pieces)?;
        }
        table.typed = match columns.bytes(kind::TYPED) {
            Some(typed) => ColumnTable::decode(typed, num_samples)?,
            None => ColumnTable::of_rows(num_samples),
        };
        if let Some(types) = columns.bytes(kind::FIELD_TYPES) {
            table.field_types = FieldTypes::decode(types, head.num_fields.into())?;
        }
        Ok(table)
    }

    fn read_names(
        &mut self,
        mut from: Cursor<'_>,
        order: &[u16],
        limit: u64,
    ) -> Result<(), FormatError> {
        let mut before = 0..0;
        for &index in order {
            let shared = at_most("shared bytes of a name", from.number()?, before.len() as u64)?;
            let rest = from.string()?;
            let len =
                at_most("length of a name", shared + rest.len() as u64, MAX_NAME_BYTES as u64)?;
            let start = self.names.len();
            at_most("length of all names of a chunk", start as u64 + len, limit)?;
            self.names.extend_from_within(before.start..before.start + shared as usize);
            self.names.extend_from_slice(rest);
            let row = &mut self.rows[usize::from(index)];
            (row.name_at, row.name_len) = (start as u32, len as u16);
            if len > 0 {
                before = start..self.names.len();
            }
        }
        equal("bytes behind the names of a chunk", 0, from.len() as u64)
    }
}

/// The known columns of a table: kind and bytes.
struct EncodedColumns<'a>(Vec<(u64, &'a [u8])>);

impl<'a> EncodedColumns<'a> {
    /// Divides a table into its columns. Refuses unknown kinds that may not be ignored.
    fn split(bytes: &'a [u8]) -> Result<EncodedColumns<'a>, FormatError> {
        let mut cursor = Cursor::new("columns of a chunk", bytes);
        let mut found = Vec::new();
        let mut next = 1;
        while cursor.len() > 0 {
            let kind = cursor.number()?;
            let column = cursor.string()?;
            at_most("kind of the column before", next, kind)?;
            next = kind.saturating_add(1);
            match kind {
                ..=kind::NAMES | kind::PIECES..=kind::FIELD_TYPES => found.push((kind, column)),
                kind::MAY_BE_IGNORED.. => {}
                _ => return Err(out_of_range("kind of a column", kind, kind::NAMES)),
            }
        }
        Ok(EncodedColumns(found))
    }

    fn bytes(&self, kind: u64) -> Option<&'a [u8]> {
        self.0.iter().find(|(own, _)| *own == kind).map(|(_, bytes)| *bytes)
    }

    fn find(&self, kind: u64) -> Option<Cursor<'a>> {
        self.bytes(kind).map(|bytes| Cursor::new("column of a chunk", bytes))
    }

    /// The bytes of a column, if present. Checks that there are `len` bytes.
    fn exactly(&self, kind: u64, len: usize) -> Result<Option<&'a [u8]>, FormatError> {
        let Some(column) = self.bytes(kind) else { return Ok(None) };
        equal("length of a column of a chunk", len as u64, column.len() as u64)?;
        Ok(Some(column))
    }

    fn need(&self, kind: u64) -> Result<Cursor<'a>, FormatError> {
        self.find(kind).ok_or(out_of_range("missing column of a chunk", kind, 0))
    }
}

/// The ids of a chunk's samples, in the order of slots.
fn ids_of(head: &ChunkHead, part: Option<Cursor<'_>>) -> Result<Vec<u64>, FormatError> {
    let slots = head.first_slot.0..head.first_slot.0 + u64::from(head.num_samples);
    if head.part.window <= 1 {
        return Ok(slots.collect());
    }
    let mut part = part.ok_or(out_of_range("missing column", kind::PART, 0))?;
    let count = part.number()?;
    equal("bytes behind a column of a chunk", 0, part.len() as u64)?;
    let part = Part { count, ..head.part };
    part.check()?;
    at_most("last slot of a chunk", slots.end, part.first + part.count)?;
    let placement = Placement::new(part);
    Ok(slots.map(|slot| placement.id_at(Slot(slot)).0).collect())
}

/// The indexes of `ids`, sorted by id.
fn order_of_ids(ids: impl Iterator<Item = u64>) -> Vec<u16> {
    // An id has at most 40 bits and an index 16, so both fit into one u64, which sorts by id.
    let mut keys: Vec<u64> = ids.zip(0..).map(|(id, index): (u64, u64)| id << 16 | index).collect();
    if !keys.is_sorted() {
        keys.sort_unstable();
    }
    keys.into_iter().map(|key| key as u16).collect()
}

/// Decodes an order of names, and checks that it is a permutation.
fn read_order(bytes: &[u8]) -> Result<Vec<u16>, FormatError> {
    let order: Vec<u16> = bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
    let mut is_there = vec![false; order.len()];
    for &index in &order {
        let last = order.len() as u64 - 1;
        at_most("index in the order of names", index.into(), last)?;
        let twice = std::mem::replace(&mut is_there[usize::from(index)], true);
        equal("second name of a sample", 0, twice.into())?;
    }
    Ok(order)
}

/// An upper bound of a table's bytes, without the names and types of the fields. Computed sample by sample; the bound
/// holds for any order of the samples' names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bound {
    /// The most bytes of the lengths, checksums and labels, and of the checksums of pieces.
    numbers: usize,
    num_samples: usize,
    /// Bytes of all names before front coding, and the number of nonempty names.
    names: usize,
    num_names: usize,
    any_label: bool,
    /// The common prefix of all nonempty names.
    prefix: Vec<u8>,
    typed: ColumnBound,
}

impl Bound {
    /// The bound for a table without samples.
    pub(crate) fn new(typed: &[ColumnSpec]) -> Bound {
        Bound { typed: ColumnBound::new(typed), ..Bound::default() }
    }

    /// The bound with one more sample.
    pub(crate) fn with(&self, meta: &SampleMeta<'_>, len: u32) -> usize {
        let prefix = self.prefix_with(meta.name);
        let num_names = self.num_names + usize::from(!meta.name.is_empty());
        let names = self.names + meta.name.len() - num_names.saturating_sub(1) * prefix;
        let num_samples = self.num_samples + 1;
        let any_label = self.any_label || meta.label.is_some();
        // The index in the order, the shared length and the length of the rest take at most 2 bytes each; `PURGED` a
        // bit.
        let each = num_samples * (2 + 2 + 2) + num_samples.div_ceil(8);
        let labels = if any_label { num_samples } else { 0 };
        let numbers = self.numbers + numbers_len(meta, len);
        COLUMN_HEADS + numbers + self.typed.with(&meta.values) + each + labels + names
    }

    /// Adds a sample.
    pub(crate) fn take(&mut self, meta: &SampleMeta<'_>, len: u32) {
        self.numbers += numbers_len(meta, len);
        self.num_samples += 1;
        self.any_label |= meta.label.is_some();
        self.typed.take(&meta.values);
        if meta.name.is_empty() {
            return;
        }
        match self.num_names {
            0 => self.prefix = meta.name.to_vec(),
            _ => self.prefix.truncate(self.prefix_with(meta.name)),
        }
        self.names += meta.name.len();
        self.num_names += 1;
    }

    /// Bytes of all names, before front coding.
    pub(crate) fn names_len(&self) -> usize {
        self.names
    }

    /// Length of the common prefix of all nonempty names, with `name` among them.
    fn prefix_with(&self, name: &[u8]) -> usize {
        match self.num_names {
            0 => name.len(),
            _ if name.is_empty() => self.prefix.len(),
            _ => common(&self.prefix, name),
        }
    }
}

/// Upper bound of the bytes of a sample's length, label, checksum and checksums of pieces. The label's first byte is
/// not counted here, but by [`Bound::with`].
fn numbers_len(meta: &SampleMeta<'_>, len: u32) -> usize {
    let label = number_len(label_code(meta.label)) - 1;
    let pieces = match num_pieces(len) {
        0 => 0,
        count => PIECES_HEAD + 1 + count * 4,
    };
    number_len(len.into()) + 4 + label + pieces
}

/// The metadata of a sample in a chunk's table, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleMeta<'a> {
    /// Id of the sample.
    pub id: SampleId,
    /// Name: up to 4,096 bytes without NUL.
    pub name: &'a [u8],
    /// Label, if any: any number except `i64::MIN`, which the directory uses for "no label".
    pub label: Option<i64>,
    /// Values in the typed columns.
    pub values: RowValues<'a>,
}

impl SampleMeta<'_> {
    /// Checks name, label and values.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), FormatError> {
        check_name(self.name)?;
        check_label(self.label)?;
        self.values.check()
    }
}

/// Checks that a label is not `i64::MIN`, the reserved "no label" value.
#[doc(hidden)]
pub fn check_label(label: Option<i64>) -> Result<(), FormatError> {
    in_range(label != Some(i64::MIN), "label", i64::MIN as u64, i64::MAX as u64)
}

/// Checks that `name` is a valid sample name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FormatError> {
    at_most("length of a name", name.len() as u64, MAX_NAME_BYTES as u64)?;
    in_range(!name.contains(&0), "byte of a name", 0u64, 255)
}

/// Minimum bytes of a sample in a table: 1 for its length, 4 for its checksum, and 1 for each of two lengths of its
/// name.
pub const MIN_ENTRY_BYTES: u64 = 7;
/// Maximum bytes of the kinds and lengths of all columns up to the names, and of the number of the part's samples. One
/// column more than there are: a smaller bound would move the ends of chunks.
const COLUMN_HEADS: usize = (kind::NAMES as usize + 1) * 6 + 10;
/// Maximum bytes of the kind and length of the column of pieces.
const PIECES_HEAD: usize = 6;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use dlfs_base::units::SampleId;

    #[test]
    fn every_label_has_a_code_of_its_own() {
        for label in [0, 1, -1, 63, -64, i64::MAX, i64::MIN + 1] {
            assert_eq!(label_of(label_code(Some(label))), Some(label), "{label}");
        }
        assert_eq!((label_code(None), label_of(0)), (0, None));
    }

    #[test]
    fn an_unlabelled_sample_of_a_listed_folder_takes_ten_bytes_beside_its_name() {
        let part = Part { first: 0, count: 1 << 20, seed: 3, window: 1 << 20 };
        let placement = Placement::new(part);
        let mut table = Table::default();
        for slot in 0..30_000 {
            let id = placement.id_at(Slot(slot));
            let name = format!("train-00003-of-01024/{:07}", id.0);
            table.push(
                &SampleMeta { id, name: name.as_bytes(), label: None, values: Default::default() },
                100,
                7,
                false,
            );
        }
        let mut columns = Vec::new();
        let mut names = Vec::new();
        table.encode_columns(&part, &mut columns);
        let (order, is_of_ids) = table.name_order();
        assert!(is_of_ids);
        table.put_names(&order, &mut names);
        let beside = (columns.len() - names.len()) as f64 / 30_000.0 + 2.0;
        assert!(beside < 7.1, "{beside} bytes beside the bytes that a name adds");
    }

    proptest! {
        #[test]
        fn columns_read_back_and_stay_within_the_bound(
            samples in prop::collection::vec(
                ("(a/|ab/|)[a-c]{0,3}", prop::option::of(any::<i64>()), 0u32..300, any::<bool>()), 1..80
            ),
            window in 0u64..200, first in 0u64..1000,
        ) {
            let count = samples.len() as u64;
            let part = Part { first, count, seed: 9, window };
            let placement = Placement::new(part);
            let mut table = Table::default();
            let mut bound = Bound::default();
            let mut limit = 0;
            let mut end = 0;
            for (slot, (name, label, len, purged)) in (first..).zip(&samples) {
                let label = label.filter(|label| *label != i64::MIN && !purged);
                let (len, crc) = if *purged { (0, 0) } else { (*len, 77 * u32::from(*len > 0)) };
                let name = if *purged { "" } else { name };
                let id = placement.id_at(Slot(slot));
                let meta = SampleMeta { id: SampleId(id.0), name: name.as_bytes(), label, values: Default::default() };
                limit = bound.with(&meta, len);
                bound.take(&meta, len);
                table.push(&meta, len, crc, *purged);
                end += u64::from(len);
            }
            let mut bytes = Vec::new();
            table.encode_columns(&part, &mut bytes);
            prop_assert!(bytes.len() <= limit, "{} bytes, bound {limit}", bytes.len());
            let head = ChunkHead { data_len: end, ..head(&part, samples.len() as u16) };
            let found = Table::decode(&head, &bytes).unwrap();
            for (found_row, row) in found.rows.iter().zip(&table.rows) {
                prop_assert_eq!(found.name(found_row), table.name(row));
                let same = Row { name_at: row.name_at, ..*found_row };
                prop_assert_eq!(&same, row);
            }
        }
    }

    fn head(part: &Part, num_samples: u16) -> ChunkHead {
        use crate::format::chunk_head::{ChunkId, ChunkKind};
        use crate::format::{ImageLayout, Pack, Uuid};
        use dlfs_base::units::Generation;
        ChunkHead {
            layout: ImageLayout::new(Uuid([3; 16]), 64 << 10, Pack::Tight, 1).unwrap(),
            kind: ChunkKind::Samples,
            id: ChunkId { generation: Generation(1), sequence: 0 },
            time_ns: 0,
            namespace: 0,
            cell: 0,
            first_slot: Slot(part.first),
            num_samples,
            num_fields: 0,
            header_len: 0,
            data_len: 0,
            part: part.uncounted(),
            table_crc: 0,
        }
    }

    #[test]
    fn unknown_columns_are_refused_or_ignored_as_their_kind_says() {
        let part = Part { first: 0, count: 1, seed: 0, window: 0 };
        let mut table = Table::default();
        table.push(
            &SampleMeta {
                id: SampleId(0),
                name: b"n",
                label: Some(-3),
                values: Default::default(),
            },
            0,
            0,
            false,
        );
        let mut bytes = Vec::new();
        table.encode_columns(&part, &mut bytes);
        let head = head(&part, 1);
        let with = |kind| {
            let mut bytes = bytes.clone();
            put_number(&mut bytes, kind);
            put_string(&mut bytes, b"later");
            Table::decode(&head, &bytes)
        };
        assert_eq!(with(64), Ok(table.clone()));
        assert_eq!(with(u64::MAX), Ok(table));
        for kind in [0, 3, 7, 8, 63] {
            assert!(with(kind).is_err(), "kind {kind}");
        }
    }

    #[test]
    fn names_that_unpack_to_more_than_the_limit_are_refused() {
        let part = Part { first: 0, count: 1000, seed: 0, window: 0 };
        let mut table = Table::default();
        for id in 0..1000 {
            table.push(
                &SampleMeta {
                    id: SampleId(id),
                    name: &[b'n'; 4096],
                    label: None,
                    values: Default::default(),
                },
                0,
                0,
                false,
            );
        }
        let mut bytes = Vec::new();
        table.encode_columns(&part, &mut bytes);
        assert!(bytes.len() < 16 << 10);
        let refused = Table::decode(&head(&part, 1000), &bytes).unwrap_err();
        assert!(refused.to_string().contains("length of all names"), "{refused}");
    }
}
