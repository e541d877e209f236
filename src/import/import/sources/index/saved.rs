//! Encoding of an index, for the plan of an import that many processes share.
//!
//! Data that all rows share is stored once; rows are stored in pieces, and a process reads the pieces that it needs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{Container, Index, MAX_NAME_BYTES, NAMES_A_BLOCK, Names, Values};
use dlfs_format::format::FormatError;
use dlfs_format::format::columns::ColumnTable;
use dlfs_format::format::cursor::{Cursor, put_number, put_string};
use dlfs_format::format::error::{at_most, equal};

impl Index {
    /// Appends the data that all rows share: containers, fields and classes.
    pub(crate) fn save_shared(&self, out: &mut Vec<u8>) {
        put_number(out, self.containers.len() as u64);
        for container in &self.containers {
            put_string(out, container.path.as_os_str().as_bytes());
            put_number(out, container.stamp);
            put_number(out, container.len_bytes);
        }
        for list in [&self.fields, &self.classes] {
            put_number(out, list.len() as u64);
            list.iter().for_each(|name| put_string(out, name));
        }
    }

    /// Appends all rows with the data to read their payloads; leaves out the bad entries and the file counts.
    pub(crate) fn save_rows(&self, out: &mut Vec<u8>) {
        put_string(out, &self.names.bytes);
        put_all(out, &self.names.blocks, |number| number.to_le_bytes());
        put_all(out, &self.names.starts, |number| number.to_le_bytes());
        put_all(out, &self.labels, |number| number.to_le_bytes());
        put_all(out, &self.payload_starts, |number| number.to_le_bytes());
        put_all(out, &self.payload_fields, |number| number.to_le_bytes());
        put_all(out, &self.payload_lens, |number| number.to_le_bytes());
        put_all(out, &self.payload_offsets, |number| number.to_le_bytes());
        put_all(out, &self.payload_containers, |number| number.to_le_bytes());
        put_number(out, self.values.len() as u64);
        for values in &self.values {
            put_number(out, values.field.into());
            put_number(out, values.width as u64);
            put_string(out, &values.bytes);
        }
        let mut columns = Vec::new();
        if let Some(table) = &self.columns {
            table.encode(&mut columns);
        }
        put_string(out, &columns);
    }

    /// Reads the output of [`save_shared`](Self::save_shared) into an index without rows.
    ///
    /// # Errors
    /// The bytes are not an index.
    pub(crate) fn load_shared(from: &mut Cursor<'_>) -> Result<Index, FormatError> {
        let mut index = Index::default();
        for _ in 0..from.count(3)? {
            let path = PathBuf::from(OsStr::from_bytes(from.string()?));
            let stamp = from.number()?;
            let len_bytes = from.number()?;
            index.containers.push(Container { path, stamp, len_bytes });
        }
        for list in [&mut index.fields, &mut index.classes] {
            for _ in 0..from.count(1)? {
                list.push(from.string()?.to_vec());
            }
        }
        Ok(index)
    }

    /// Reads the rows that [`save_rows`](Self::save_rows) wrote. They use the containers, fields and classes of this
    /// index.
    ///
    /// # Errors
    /// The bytes are not rows, or not rows of this index.
    pub(crate) fn load_rows(&self, from: &mut Cursor<'_>) -> Result<Index, FormatError> {
        let mut index = self.select(std::iter::empty());
        index.names = Names {
            bytes: from.string()?.to_vec(),
            blocks: take_all(from, u64::from_le_bytes)?,
            starts: take_all(from, u16::from_le_bytes)?,
        };
        index.labels = take_all(from, i64::from_le_bytes)?;
        index.payload_starts = take_all(from, u64::from_le_bytes)?;
        index.payload_fields = take_all(from, u16::from_le_bytes)?;
        index.payload_lens = take_all(from, u32::from_le_bytes)?;
        index.payload_offsets = take_all(from, u64::from_le_bytes)?;
        index.payload_containers = take_all(from, u32::from_le_bytes)?;
        for _ in 0..from.count(3)? {
            let field = at_most("number of a field", from.number()?, u16::MAX.into())? as u16;
            let width = at_most("length of a field", from.number()?, u32::MAX.into())? as usize;
            index.values.push(Values { field, width, bytes: from.string()?.to_vec() });
        }
        let columns = from.string()?;
        if !columns.is_empty() {
            index.columns = Some(ColumnTable::decode(columns, index.names.len())?);
        }
        index.check()?;
        Ok(index)
    }

    /// Checks that the columns fit each other and every reference from a row is in range.
    fn check(&self) -> Result<(), FormatError> {
        self.names.check()?;
        let rows = self.len();
        let payloads = self.payload_lens.len() as u64;
        equal("offsets of payloads", payloads, self.payload_offsets.len() as u64)?;
        let or_none = |what, expected: u64, found: usize| match found {
            0 => Ok(()),
            found => equal(what, expected, found as u64),
        };
        or_none("labels", rows, self.labels.len())?;
        or_none("containers of payloads", payloads, self.payload_containers.len())?;
        or_none("first payloads", rows, self.payload_starts.len())?;
        let one_each = self.payload_starts.is_empty();
        equal("payloads", if one_each { rows } else { payloads }, payloads)?;
        let fields = if one_each { 0 } else { payloads };
        equal("fields of payloads", fields, self.payload_fields.len() as u64)?;
        ascending("first payload of a row", &self.payload_starts, payloads)?;
        let most = |what, numbers: &mut dyn Iterator<Item = u64>, count: usize| match numbers.max()
        {
            Some(most) => at_most(what, most + 1, count as u64).map(drop),
            None => Ok(()),
        };
        let mut containers = self.payload_containers.iter().map(|&number| number.into());
        most("container of a payload", &mut containers, self.containers.len())?;
        let mut fields = self.payload_fields.iter().map(|&number| number.into());
        most("field of a payload", &mut fields, self.fields.len())?;
        let at_least_one = u64::from(payloads > 0);
        at_most("containers", at_least_one, self.containers.len() as u64)?;
        for values in &self.values {
            let width = values.width as u64;
            at_most("values of a field", values.bytes.len() as u64, rows.saturating_mul(width))?;
        }
        Ok(())
    }
}

impl Names {
    fn check(&self) -> Result<(), FormatError> {
        let blocks = self.starts.len().div_ceil(NAMES_A_BLOCK);
        equal("blocks of names", blocks as u64, self.blocks.len() as u64)?;
        let mut before = 0;
        for row in 0..self.len() {
            let start = self.start(row) as u64;
            at_most("start of a name", before, start)?;
            at_most("length of a name", start - before, MAX_NAME_BYTES as u64)?;
            before = start;
        }
        at_most("start of a name", before, self.bytes.len() as u64)?;
        at_most("length of a name", self.bytes.len() as u64 - before, MAX_NAME_BYTES as u64)?;
        Ok(())
    }
}

fn ascending(what: &'static str, numbers: &[u64], end: u64) -> Result<(), FormatError> {
    let mut before = 0;
    for &number in numbers {
        at_most(what, before, number)?;
        before = number;
    }
    at_most(what, before, end).map(drop)
}

fn put_all<T, const N: usize>(out: &mut Vec<u8>, numbers: &[T], bytes: impl Fn(&T) -> [u8; N]) {
    put_number(out, numbers.len() as u64);
    numbers.iter().for_each(|number| out.extend_from_slice(&bytes(number)));
}

fn take_all<T, const N: usize>(
    from: &mut Cursor<'_>,
    number: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>, FormatError> {
    let count = from.count(N)?;
    let bytes = from.bytes((count * N) as u64)?;
    Ok(bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::Payload;
    use super::*;
    use dlfs_format::format::columns::{ColumnSpec, ColumnType, Value};

    fn index() -> Index {
        let mut index = Index::default();
        for number in 0..2 {
            let path = PathBuf::from(format!("/shard{number}"));
            let stamp = number + 7;
            index.containers.push(Container { path, stamp, len_bytes: 1 << 20 });
        }
        index.classes = vec![b"cat".to_vec()];
        let fields = [b"cls", b"jpg"].map(|name| index.field(name).unwrap());
        for row in 0..100 {
            index.push(format!("row{row}").as_bytes(), (row % 3 == 0).then_some(0));
            for &field in &fields[..1 + row % 2] {
                let len_bytes = row as u32;
                let container = (row % 2) as u32;
                let offset_or_stamp = row as u64 * 512;
                index.push_payload(Payload { field, len_bytes, offset_or_stamp, container });
            }
        }
        index.replace(5, 7, b"12345678");
        let column = ColumnSpec { name: "width".into(), kind: ColumnType::Int };
        let mut columns = ColumnTable::new(&[column]);
        (0..100).for_each(|row| columns.push(|_| Value::Int(row * 3)));
        index.columns = Some(columns);
        index
    }

    fn saved(index: &Index) -> Vec<u8> {
        let mut bytes = Vec::new();
        index.save_shared(&mut bytes);
        index.save_rows(&mut bytes);
        bytes
    }

    fn load(from: &mut Cursor<'_>) -> Result<Index, FormatError> {
        Index::load_shared(from)?.load_rows(from)
    }

    #[test]
    fn an_index_reads_back() {
        let bytes = saved(&index());
        let mut from = Cursor::new("index", &bytes);
        let loaded = load(&mut from).unwrap();
        assert_eq!((from.len(), saved(&loaded)), (0, bytes));
        assert_eq!(loaded.fingerprint(), index().fingerprint());
    }

    #[test]
    fn selected_rows_are_those_rows_in_the_order_asked_for() {
        let all = index();
        // The values of the rows before row 5 are zero.
        let rows = [5, 99, 7];
        let selected = all.select(rows.into_iter());
        assert_eq!(selected.len(), 3);
        for (at, row) in (0..).zip(rows) {
            assert_eq!((selected.name(at), selected.label(at)), (all.name(row), all.label(row)));
            assert_eq!(selected.payloads(at).len(), all.payloads(row).len());
            for (one, other) in selected.payloads(at).zip(all.payloads(row)) {
                assert_eq!(one, other);
                if let Some(value) = all.value(row, other.field) {
                    assert_eq!(selected.value(at, one.field), Some(value));
                }
            }
        }
        let bytes = saved(&selected);
        assert_eq!(saved(&load(&mut Cursor::new("index", &bytes)).unwrap()), bytes);
    }

    #[test]
    fn damaged_bytes_never_panic_and_what_is_loaded_can_be_read() {
        let bytes = saved(&index());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(loaded) = load(&mut Cursor::new("index", &damaged)) else { continue };
            for row in 0..loaded.len() {
                let payloads = loaded.payloads(row).filter(|payload| {
                    loaded.value(row, payload.field).is_some_and(|value| value.len() > 1 << 20)
                });
                assert!(loaded.name(row).len() <= MAX_NAME_BYTES && payloads.count() == 0);
            }
        }
        for len in 0..bytes.len() {
            assert!(load(&mut Cursor::new("index", &bytes[..len])).is_err());
        }
    }
}
