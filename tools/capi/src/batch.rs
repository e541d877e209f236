//! Batches for C: an array of items that point into memory held by the batch.
//!
//! A sample of several fields, which begins with a table of lengths on media that C never sees, is represented by the
//! field named when the data set was mounted, or by its fields alone.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ops::Range;

use dlfs::format::fields::{split, table_len};
use dlfs::reader::Batch;
use dlfs::units::SampleId;

use crate::error::{DLFS_E_CORRUPT, DLFS_E_NOT_FOUND, DLFS_OK, Failure, guard};
use crate::handles::{self, Handle};
use crate::structs::{Struct, check_out, give, take};

/// The label of a sample without a label, in every function and struct. Python uses None, and
/// dlfs.NO_LABEL, the same number, in arrays of labels.
pub const DLFS_NO_LABEL: i64 = i64::MIN;

/// One field of a sample.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Field {
    /// Its bytes; NULL if this sample does not have the field.
    pub data: *const u8,
    /// Its length in bytes.
    pub len: usize,
}

/// One sample of a batch.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Item {
    /// The id of the sample; UINT64_MAX if no sample has the requested name.
    pub id: u64,
    /// Its verified bytes; NULL if `status` is not DLFS_OK. If samples have several fields: those
    /// of the field named in dlfs_mount_options, NULL if none was named or this sample does not
    /// have it.
    pub data: *const u8,
    /// Their length in bytes.
    pub len: usize,
    /// Its label, or DLFS_NO_LABEL.
    pub label: i64,
    /// Its fields, `num_fields` of them, with the names given by dlfs_field_name; a single one,
    /// equal to `data`, if samples are not divided into fields.
    pub fields: *const Field,
    /// The number of fields.
    pub num_fields: usize,
    /// Its position in the request, or in the batch of a sequence.
    pub index: usize,
    /// DLFS_OK, or why it could not be read. In a batch of a sequence always DLFS_OK, except for a
    /// record with an invalid table of fields: DLFS_E_CORRUPT.
    pub status: c_int,
    /// Number of its data set, from 0, in a sequence over a mixture; otherwise 0.
    pub source: u32,
}

/// A batch, in memory of the caller: set `size` to `sizeof(dlfs_batch)` before it is filled.
///
/// The memory that it points to stays valid until dlfs_release, whatever else is closed before.
/// Filling a batch again without releasing it leaks its memory. A copy of the struct is the same
/// batch.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BatchOut {
    /// sizeof(dlfs_batch).
    pub size: usize,
    /// The samples, `count` of them.
    pub items: *const Item,
    /// The number of samples.
    pub count: usize,
    /// The total length of all samples with all their fields, in bytes.
    pub len_bytes: u64,
    /// Its epoch; 0 for dlfs_read_batch.
    pub epoch: u64,
    /// 1 if it is the last of its epoch on this rank, else 0.
    pub ends_epoch: u32,
    /// Zero.
    pub reserved: u32,
    /// The handle that dlfs_release closes.
    pub handle: *mut c_void,
}
// SAFETY: numbers and pointers, the size first.
unsafe impl Struct for BatchOut {
    const NAME: &str = "dlfs_batch";
}

/// A batch that C can see, and the array that it sees.
struct Held {
    /// The owner of the items' bytes, unless they are in the caller's memory.
    _batch: Option<Batch>,
    _items: Vec<Item>,
    _fields: Vec<Field>,
}

/// The type of `BatchOut::handle`.
enum BatchHandle {}

impl Handle for BatchHandle {
    type Object = Held;
    const NAME: &str = "batch";
}

// SAFETY: the pointers lead into this value, which nobody changes, or into memory that the caller
// has lent and keeps valid; any thread may read both.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

/// Points `fields` of each item with a single field to that item, whose bytes are the field. Call this when the items
/// no longer move.
pub(crate) fn show_whole(items: &mut [Item]) {
    const { assert!(offset_of!(Item, len) - offset_of!(Item, data) == offset_of!(Field, len)) };
    const { assert!(offset_of!(Field, data) == 0) };
    for item in items.iter_mut().filter(|item| item.num_fields == 1) {
        let whole = std::ptr::from_mut(item).wrapping_byte_add(offset_of!(Item, data));
        item.fields = whole.cast_const().cast::<Field>();
    }
}

/// The item of the sample at `index` of `batch`, without its bytes and fields.
pub(crate) fn item_of(batch: &Batch, index: usize) -> Item {
    Item {
        label: batch.label(index).unwrap_or(DLFS_NO_LABEL),
        source: batch.sources().map_or(0, |sources| sources[index]),
        ..Item::new(batch.id(index), index)
    }
}

impl Item {
    /// An item without a label, bytes or fields.
    pub(crate) fn new(id: SampleId, index: usize) -> Item {
        Item {
            id: id.0,
            data: std::ptr::null(),
            len: 0,
            label: DLFS_NO_LABEL,
            fields: std::ptr::null(),
            num_fields: 0,
            index,
            status: DLFS_OK,
            source: 0,
        }
    }
}

/// Passes a batch of `items`, of `epoch`, to the caller, who releases it.
///
/// # Safety
/// `out` satisfies the contract of [`give`]; the items' memory belongs to `batch` or to the caller.
pub(crate) unsafe fn hand_out(
    out: *mut BatchOut,
    batch: Option<Batch>,
    mut items: Vec<Item>,
    fields: FieldTable,
    (epoch, ends_epoch): (u64, bool),
) -> Result<(), Failure> {
    show_whole(&mut items);
    let mut value = BatchOut {
        items: items.as_ptr(),
        count: items.len(),
        len_bytes: items.iter().map(len_bytes).sum(),
        epoch,
        ends_epoch: ends_epoch.into(),
        ..BatchOut::zeroed()
    };
    let held = Held { _batch: batch, _items: items, _fields: fields.fields };
    value.handle = handles::insert::<BatchHandle>(held)?.cast();
    // SAFETY: the caller promises that `out` satisfies the contract of `give`.
    unsafe { give(out, value) }
}

/// The total length of all fields.
fn len_bytes(item: &Item) -> u64 {
    // SAFETY: `FieldTable::add` and `show_whole` have set `fields` to `num_fields` entries, in the table or
    // in the item itself; `hand_out` still owns both.
    let fields = unsafe { std::slice::from_raw_parts(item.fields, item.num_fields) };
    fields.iter().map(|field| field.len as u64).sum()
}

/// Releases the memory of `batch`, and clears the struct. Any thread.
///
/// Its items, and everything that they point to, become invalid. DLFS_E_HANDLE: it was released
/// already, or never filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_release(batch: *mut BatchOut) -> c_int {
    guard(|| {
        // SAFETY: by the header `batch` is NULL or points to a struct of the size in its first
        // field, which nobody else accesses meanwhile; only its handle is used, and that is
        // checked.
        unsafe {
            check_out(batch)?;
            let held = handles::remove(take(batch.cast_const())?.handle.cast::<BatchHandle>())?;
            give(batch, BatchOut::zeroed())?;
            drop(held);
        }
        Ok(())
    })
}

/// How samples are divided, and which field represents the sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Division {
    /// The number of fields of each sample; 1: samples are not divided.
    each: usize,
    /// The number of the field that represents the sample; `None`: none was named.
    pub(crate) chosen: Option<usize>,
}

impl Division {
    /// The division of samples with fields of these `names`; the field called `chosen` represents
    /// the sample.
    pub(crate) fn of(names: &[Vec<u8>], chosen: Option<&[u8]>) -> Result<Division, Failure> {
        let chosen = chosen.map(|name| number_of(names, name)).transpose()?;
        Ok(Division { each: names.len().max(1), chosen })
    }

    /// The length of the table before the fields, in bytes; 0 if samples are not divided.
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

    /// Sets the fields of `item`, and its bytes to those of the chosen field.
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

/// The field in a range of a record whose table has `table` bytes.
fn field(body: *const u8, table: usize, range: Option<Range<usize>>) -> Field {
    match range {
        Some(range) => Field { data: body.wrapping_add(range.start - table), len: range.len() },
        None => ABSENT,
    }
}

/// A field that a sample does not have.
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
