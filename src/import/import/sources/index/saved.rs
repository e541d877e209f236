//! Encoding of rows of an index, for the plan of an import that many processes share. A process reads few of them at
//! a time; what all rows share is in the head of the plan.

use super::{Index, MAX_NAME_BYTES, Payload};
use dlfs_format::format::FormatError;
use dlfs_format::format::cursor::{Cursor, label_code, label_of, put_number, put_string};
use dlfs_format::format::error::at_most;

impl Index {
    /// Appends the rows `rows`, in this order, with the data to read their payloads; leaves out the values of typed
    /// columns.
    pub(crate) fn save_rows(&self, rows: impl Iterator<Item = u64>, out: &mut Vec<u8>) {
        for row in rows {
            put_string(out, self.name(row));
            put_number(out, label_code(self.label(row)));
            put_number(out, self.payloads(row).len() as u64);
            for Payload { field, len_bytes, offset_or_stamp, container } in self.payloads(row) {
                for number in [field.into(), len_bytes.into(), offset_or_stamp, container.into()] {
                    put_number(out, number);
                }
                put_string(out, self.value(row, field).unwrap_or_default());
            }
        }
    }

    /// Reads `count` rows that [`save_rows`](Self::save_rows) wrote. They use the containers, fields and classes of
    /// this index.
    ///
    /// # Errors
    /// The bytes are not rows, or not rows of this index.
    pub(crate) fn load_rows(
        &self,
        count: u64,
        from: &mut Cursor<'_>,
    ) -> Result<Index, FormatError> {
        let below = |what, number: u64, count: usize| {
            at_most(what, number.saturating_add(1), count as u64).map(|next| next - 1)
        };
        let mut index = self.select(std::iter::empty());
        for row in 0..count {
            let name = from.string()?;
            at_most("length of a name", name.len() as u64, MAX_NAME_BYTES as u64)?;
            index.push(name, label_of(from.number()?));
            for _ in 0..from.count(5)? {
                let field = below("field of a payload", from.number()?, self.fields.len())?;
                let len_bytes = at_most("length of a payload", from.number()?, u32::MAX.into())?;
                let offset_or_stamp = from.number()?;
                let containers = self.containers.len();
                let container = below("container of a payload", from.number()?, containers)?;
                index.push_payload(Payload {
                    field: field as u16,
                    len_bytes: len_bytes as u32,
                    offset_or_stamp,
                    container: container as u32,
                });
                let value = from.string()?;
                at_most("length of a value", value.len() as u64, MAX_VALUE_BYTES)?;
                if !value.is_empty() {
                    index.replace(row, index.payloads.len() - 1, value);
                }
            }
        }
        if index.payloads.len() as u64 != count && index.payload_starts.is_empty() {
            index.begin_payload_starts();
        }
        Ok(index)
    }
}

/// Maximum length of a value that replaces a payload: it is one number.
const MAX_VALUE_BYTES: u64 = 64;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Container;
    use super::*;

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
                if field == fields[0] {
                    index.replace(row as u64, index.payloads.len() - 1, &[row as u8; 8]);
                }
            }
        }
        index
    }

    fn saved(index: &Index) -> Vec<u8> {
        let mut bytes = Vec::new();
        index.save_rows(0..index.len(), &mut bytes);
        bytes
    }

    fn load(count: u64, from: &mut Cursor<'_>) -> Result<Index, FormatError> {
        index().load_rows(count, from)
    }

    #[test]
    fn an_index_reads_back() {
        let bytes = saved(&index());
        let mut from = Cursor::new("index", &bytes);
        let loaded = load(100, &mut from).unwrap();
        assert_eq!((from.len(), saved(&loaded)), (0, bytes));
        assert_eq!(loaded.fingerprint(), index().fingerprint());
    }

    #[test]
    fn rows_without_payloads_read_back_wherever_they_are() {
        let mut rows = index().select(std::iter::empty());
        for (row, payloads) in [0, 1, 0, 1, 0].into_iter().enumerate() {
            rows.push(format!("row{row}").as_bytes(), None);
            for _ in 0..payloads {
                let payload = Payload { field: 0, len_bytes: 1, offset_or_stamp: 2, container: 0 };
                rows.push_payload(payload);
            }
        }
        let loaded = load(5, &mut Cursor::new("index", &saved(&rows))).unwrap();
        let counts: Vec<usize> = (0..5).map(|row| loaded.payloads(row).len()).collect();
        assert_eq!(counts, [0, 1, 0, 1, 0]);
    }

    #[test]
    fn selected_rows_are_those_rows_in_the_order_asked_for() {
        let all = index();
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
        assert_eq!(saved(&load(3, &mut Cursor::new("index", &bytes)).unwrap()), bytes);
    }

    #[test]
    fn damaged_bytes_never_panic_and_what_is_loaded_can_be_read() {
        let bytes = saved(&index());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(loaded) = load(100, &mut Cursor::new("index", &damaged)) else { continue };
            for row in 0..loaded.len() {
                let payloads = loaded.payloads(row).filter(|payload| {
                    loaded.value(row, payload.field).is_some_and(|value| value.len() > 1 << 20)
                });
                assert!(loaded.name(row).len() <= MAX_NAME_BYTES && payloads.count() == 0);
            }
        }
        for len in 0..bytes.len() {
            assert!(load(100, &mut Cursor::new("index", &bytes[..len])).is_err());
        }
    }
}
