//! Samples of several fields: a record on media begins with a table of lengths, which C never sees.
//!
//! Such a sample is represented by the field named when the data set was mounted, or by its fields
//! alone.

use std::ops::Range;

use dlfs::format::fields::{split, table_len};

use crate::batch::{Field, Item};
use crate::error::{DLFS_E_CORRUPT, DLFS_E_NOT_FOUND, DLFS_OK, Failure};

/// How samples are divided, and which field represents the sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Division {
    each: usize,
    chosen: Option<usize>,
}

impl Division {
    /// The division of samples with fields of these `names`; the field called `chosen` represents
    /// the sample.
    pub(crate) fn of(names: &[Vec<u8>], chosen: Option<&[u8]>) -> Result<Division, Failure> {
        let chosen = chosen.map(|name| number_of(names, name)).transpose()?;
        Ok(Division { each: names.len().max(1), chosen })
    }

    /// The length of the table before the fields.
    pub(crate) fn table_len(self) -> usize {
        if self.each > 1 { table_len(self.each) as usize } else { 0 }
    }

    /// The total length of the fields of a sample whose record has `record_len` bytes.
    pub(crate) fn len_of(self, record_len: u32) -> usize {
        (record_len as usize).saturating_sub(self.table_len())
    }

    /// Checks that one buffer can represent a sample.
    ///
    /// # Errors
    /// Samples have several fields, and none was chosen.
    pub(crate) fn check_one(self, names: &[Vec<u8>]) -> Result<(), Failure> {
        if self.each == 1 || self.chosen.is_some() {
            return Ok(());
        }
        let text = format!(
            "samples have several fields, and none is named: {}; name the one that stands for the sample in \
             field of dlfs_mount_options, or read it with dlfs_read_batch",
            listed(names)
        );
        Err(Failure::invalid(text))
    }

    /// The field that represents the sample; `None`: the whole record does.
    pub(crate) fn chosen(self) -> Option<usize> {
        self.chosen
    }
}

/// The number of the field called `name`.
pub(crate) fn number_of(names: &[Vec<u8>], name: &[u8]) -> Result<usize, Failure> {
    let number = names.iter().position(|known| known == name);
    number.ok_or_else(|| {
        let text = format!("samples have no field {}: {}", name.escape_ascii(), listed(names));
        Failure::new(DLFS_E_NOT_FOUND, text)
    })
}

fn listed(names: &[Vec<u8>]) -> String {
    let each: Vec<_> = names.iter().map(|name| name.escape_ascii().to_string()).collect();
    match names {
        [] => "they are not divided into fields".to_owned(),
        _ => format!("they have {}", each.join(", ")),
    }
}

/// The positions of the fields of divided records, in one table for a whole batch. A record that is
/// not divided has one field, equal to the item: see `show_whole`.
pub(crate) struct FieldTable {
    division: Division,
    fields: Vec<Field>,
}

impl FieldTable {
    /// A table for `count` samples; its memory does not move until it is full.
    pub(crate) fn new(division: Division, count: usize) -> FieldTable {
        let room = if division.each == 1 { 0 } else { division.each * count };
        FieldTable { division, fields: Vec::with_capacity(room) }
    }

    pub(crate) fn into_fields(self) -> Vec<Field> {
        self.fields
    }

    /// Sets the bytes and fields of `item`: those of `record`, which are at `body`, without the
    /// table. A damaged record makes the item an error.
    pub(crate) fn add(&mut self, item: &mut Item, record: &[u8], body: *const u8) {
        item.num_fields = self.division.each;
        if self.division.each > 1 {
            self.split(item, record, body);
        } else if item.status == DLFS_OK {
            (item.data, item.len) = (body, record.len());
        }
    }

    fn split(&mut self, item: &mut Item, record: &[u8], body: *const u8) {
        let Division { each, chosen } = self.division;
        let from = self.fields.len();
        let table = self.division.table_len();
        assert!(from + each <= self.fields.capacity(), "more than was made room for");
        if item.status == DLFS_OK {
            match split(record, each) {
                Ok(ranges) => {
                    let placed = ranges.into_iter().map(|range| field(body, table, range));
                    self.fields.extend(placed);
                }
                Err(_) => item.status = DLFS_E_CORRUPT,
            }
        }
        if item.status != DLFS_OK {
            self.fields.truncate(from);
            self.fields.extend((0..each).map(|_| ABSENT));
        }
        let fields = &self.fields[from..];
        item.fields = fields.as_ptr();
        let shown = chosen.map_or(ABSENT, |chosen| fields[chosen]);
        (item.data, item.len) = (shown.data, shown.len);
    }
}

fn field(body: *const u8, table: usize, range: Option<Range<usize>>) -> Field {
    match range {
        Some(range) => Field { data: body.wrapping_add(range.start - table), len: range.len() },
        None => ABSENT,
    }
}

const ABSENT: Field = Field { data: std::ptr::null(), len: 0 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_chosen_by_its_name_and_another_is_refused_with_those_there_are() {
        let names = [b"cls".to_vec(), b"jpg".to_vec()];
        assert!(Division::of(&names, Some(b"jpg")).unwrap().check_one(&names).is_ok());
        let refused = Division::of(&names, Some(b"png")).unwrap_err();
        assert_eq!(refused.code, DLFS_E_NOT_FOUND);
        assert_eq!(refused.text, "samples have no field png: they have cls, jpg");
        let several = Division::of(&names, None).unwrap().check_one(&names).unwrap_err();
        assert!(several.text.contains("they have cls, jpg"), "{}", several.text);
        assert!(Division::of(&[], None).unwrap().check_one(&[]).is_ok());
        assert!(Division::of(&[], Some(b"jpg")).unwrap_err().text.contains("not divided"));
    }
}
