//! Records of several fields: for example an image, its label and its caption in one sample, read at once.
//!
//! A record of one field is the bytes of that field. A record of several fields begins with a table of their lengths, a
//! u32 for each, `u32::MAX` for an absent field; the fields follow in the same order. The sample's CRC32C covers the
//! whole record.

use std::ops::Range;

use crate::format::FormatError;
use crate::format::error::{at_most, enough, equal};

/// The length of a record with fields of these lengths; `None` for an absent field.
///
/// # Errors
/// `OutOfRange`: the record has 4 GiB or more.
pub fn record_len(lens: &[Option<u64>]) -> Result<u32, FormatError> {
    let total =
        lens.iter().flatten().try_fold(table_len(lens.len()), |sum, len| sum.checked_add(*len));
    let total = total.unwrap_or(u64::MAX);
    at_most("length of a sample", total, u64::from(u32::MAX))?;
    Ok(total as u32)
}

/// The length table at the front of a record; empty if there is only one field.
pub fn table(lens: &[Option<u64>]) -> Vec<u8> {
    if lens.len() <= 1 {
        return Vec::new();
    }
    lens.iter().flat_map(|len| len.map_or(ABSENT, |len| len as u32).to_le_bytes()).collect()
}

/// Writes the length table to the front of `record`; returns the range of each field, empty for an absent one.
///
/// # Panics
/// If `record` does not have [`record_len`] bytes.
pub fn put_table(lens: &[Option<u64>], record: &mut [u8]) -> Vec<Range<usize>> {
    let table = table(lens);
    record[..table.len()].copy_from_slice(&table);
    let mut at = table.len();
    let mut ranges = Vec::with_capacity(lens.len());
    for len in lens {
        let end = at + len.unwrap_or(0) as usize;
        ranges.push(at..end);
        at = end;
    }
    assert_eq!(at, record.len(), "a record of the length that its fields need");
    ranges
}

/// The byte range of each field of `record`; `None` for an absent field. `num_fields` 0 and 1 mean the same.
///
/// # Errors
/// The table does not describe the record.
pub fn split(record: &[u8], num_fields: usize) -> Result<Vec<Option<Range<usize>>>, FormatError> {
    if num_fields <= 1 {
        return Ok(vec![Some(0..record.len())]);
    }
    let mut at = table_len(num_fields);
    enough("table of fields", at, record.len())?;
    let mut ranges = Vec::with_capacity(num_fields);
    for len in record[..at as usize].as_chunks().0 {
        let len = u32::from_le_bytes(*len);
        if len == ABSENT {
            ranges.push(None);
            continue;
        }
        let end = at + u64::from(len);
        enough("field of a sample", end, record.len())?;
        ranges.push(Some(at as usize..end as usize));
        at = end;
    }
    equal("length of a sample", record.len() as u64, at)?;
    Ok(ranges)
}

/// The byte range of the field with index `field`, which must be below `num_fields`; `None` if the field is absent.
///
/// # Errors
/// The table does not describe the record.
pub fn find(
    record: &[u8],
    num_fields: usize,
    field: usize,
) -> Result<Option<Range<usize>>, FormatError> {
    // The lengths of the fields add up to the length of the record, so each field lies in it.
    let found = field_range(record, num_fields, field, record.len() as u64)?;
    Ok(found.map(|found| found.start as usize..found.end as usize))
}

/// The byte range of the field with index `field` in a record of `len` bytes; `None` if the field is absent. Needs only
/// the first [`table_len`] bytes of the record: `table`.
///
/// # Errors
/// The table does not describe a record of `len` bytes.
pub fn field_range(
    table: &[u8],
    num_fields: usize,
    field: usize,
    len: u64,
) -> Result<Option<Range<u64>>, FormatError> {
    if num_fields <= 1 {
        return Ok(Some(0..len));
    }
    let mut at = table_len(num_fields);
    enough("table of fields", at, table.len())?;
    let mut found = None;
    for (number, field_len) in table[..at as usize].as_chunks().0.iter().enumerate() {
        let field_len = u32::from_le_bytes(*field_len);
        if field_len == ABSENT {
            continue;
        }
        let end = at + u64::from(field_len);
        if number == field {
            found = Some(at..end);
        }
        at = end;
    }
    equal("length of a sample", len, at)?;
    Ok(found)
}

/// Length of a record's table with this many fields: the overhead of a record.
pub fn table_len(num_fields: usize) -> u64 {
    if num_fields > 1 { num_fields as u64 * 4 } else { 0 }
}

/// The length that marks an absent field. A present field cannot be this long: the record also contains the table.
const ABSENT: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back_unchanged_also_absent_and_empty_ones() {
        let lens = [Some(3), None, Some(0), Some(2)];
        let mut record = vec![0; record_len(&lens).unwrap() as usize];
        let ranges = put_table(&lens, &mut record);
        record[ranges[0].clone()].copy_from_slice(b"abc");
        record[ranges[3].clone()].copy_from_slice(b"de");
        assert_eq!(
            record, b"\x03\0\0\0\xff\xff\xff\xff\0\0\0\0\x02\0\0\0abcde",
            "the table, then the fields"
        );
        let found = split(&record, 4).unwrap();
        assert_eq!(found, [Some(16..19), None, Some(19..19), Some(19..21)]);
        for (field, range) in found.into_iter().enumerate() {
            assert_eq!(find(&record, 4, field), Ok(range));
        }
    }

    #[test]
    fn a_record_of_one_field_has_no_table() {
        assert_eq!(record_len(&[Some(5)]), Ok(5));
        assert_eq!(put_table(&[Some(5)], &mut [0; 5])[0], 0..5);
        assert_eq!(split(b"hello", 1).unwrap(), [Some(0..5)]);
        assert_eq!(split(b"", 0).unwrap(), [Some(0..0)]);
        assert_eq!(find(b"hello", 1, 0), Ok(Some(0..5)));
    }

    #[test]
    fn a_record_ends_at_4_gib_less_one() {
        assert_eq!(record_len(&[Some(u64::from(u32::MAX))]), Ok(u32::MAX));
        assert!(record_len(&[Some(1 << 32)]).is_err());
        assert!(record_len(&[Some(u64::from(u32::MAX) - 7), None]).is_err());
        assert!(record_len(&[Some(u64::MAX), Some(u64::MAX)]).is_err());
    }

    #[test]
    fn a_false_table_of_fields_is_refused() {
        let mut record = b"\x01\0\0\0\x01\0\0\0xy".to_vec();
        let is_refused = |record: &[u8], num_fields| {
            let refused = split(record, num_fields).is_err();
            let finds = (0..num_fields).map(|field| find(record, num_fields, field));
            assert!(finds.into_iter().all(|found| found.is_err() == refused));
            refused
        };
        assert!(!is_refused(&record, 2));
        assert!(is_refused(&record[..9], 2), "cut short");
        assert!(is_refused(&record[..7], 2), "table cut short");
        assert!(is_refused(&record, 3), "another number of fields");
        record.push(b'z');
        assert!(is_refused(&record, 2), "bytes that belong to no field");
        record[0..4].copy_from_slice(&0xffff_fffeu32.to_le_bytes());
        assert!(is_refused(&record, 2), "a length past the end");
    }
}
