//! Batches as C sees them: an array of items that point into memory which the batch keeps.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use dlfs::reader::Batch;

use crate::error::{DLFS_OK, Failure, guard};
use crate::fields::FieldTable;
use crate::handles;
use crate::structs::{Struct, check_out, give, take};

/// The label of a sample that has none, in every function and struct. Python has None for it, and
/// dlfs.NO_LABEL, the same number, in an array of labels.
pub const DLFS_NO_LABEL: i64 = i64::MIN;

/// One field of a sample.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Field {
    /// Its bytes; NULL when this sample does not have the field.
    pub data: *const u8,
    /// How many they are.
    pub len: usize,
}

/// One sample of a batch.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Item {
    /// Which sample of the data set it is; UINT64_MAX when there is none of the name asked for.
    pub id: u64,
    /// Its bytes, verified; NULL when `status` is not DLFS_OK. Where samples have several fields: the one
    /// that dlfs_mount_options named, NULL when none was named or this sample does not have it.
    pub data: *const u8,
    /// Their number.
    pub len: usize,
    /// Its label, or DLFS_NO_LABEL.
    pub label: i64,
    /// Its fields, `num_fields` of them, as dlfs_field_name names them; one, `data`, where samples are not
    /// divided.
    pub fields: *const Field,
    /// How many fields there are.
    pub num_fields: usize,
    /// Its position in what was asked for; in a sequence, in the batch.
    pub index: usize,
    /// DLFS_OK, or why it could not be read. In a batch of a sequence always DLFS_OK, but for a record
    /// that arrived as it was written and whose division into fields makes no sense: DLFS_E_CORRUPT.
    pub status: c_int,
}

/// A batch, in memory of the caller's: set `size` to `sizeof(dlfs_batch)` before it is filled.
///
/// What it points to stays until dlfs_release, whatever else is closed before. A batch that is filled
/// again without that is lost: its memory comes back to nobody. A copy of the struct is the same batch.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BatchOut {
    /// sizeof(dlfs_batch).
    pub size: usize,
    /// The samples, `count` of them.
    pub items: *const Item,
    /// How many there are.
    pub count: usize,
    /// Bytes of all samples, with all their fields.
    pub len_bytes: u64,
    /// The epoch it belongs to; 0 for dlfs_read_batch.
    pub epoch: u64,
    /// 1 when it is the last of its epoch on this rank, else 0.
    pub ends_epoch: u32,
    /// Zero.
    pub reserved: u32,
    /// What dlfs_release closes.
    pub handle: *mut c_void,
}
// SAFETY: numbers and pointers, the size first.
unsafe impl Struct for BatchOut {
    const NAME: &str = "dlfs_batch";
}

/// A batch that C looks at, and the array that it looks at it through.
pub(crate) struct Held {
    /// Where the items' bytes are, unless the caller's memory has them.
    _batch: Option<Batch>,
    _items: Vec<Item>,
    _fields: Vec<Field>,
}

// SAFETY: the pointers lead into this value, which nobody changes, or into memory that the caller has
// lent and looks after; both may be read by any thread.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

/// Has each item with one field show itself as that. To be called where the items stay.
pub(crate) fn show_whole(items: &mut [Item]) {
    const { assert!(offset_of!(Item, len) - offset_of!(Item, data) == offset_of!(Field, len)) };
    const { assert!(offset_of!(Field, data) == 0) };
    for item in items.iter_mut().filter(|item| item.num_fields == 1) {
        let whole = std::ptr::from_mut(item).wrapping_byte_add(offset_of!(Item, data));
        item.fields = whole.cast_const().cast::<Field>();
    }
}

/// The item of the sample at `index` of `batch`; its bytes and fields are still to come.
pub(crate) fn item_of(batch: &Batch, index: usize) -> Item {
    Item {
        id: batch.id(index).0,
        data: std::ptr::null(),
        len: 0,
        label: batch.label(index).unwrap_or(DLFS_NO_LABEL),
        fields: std::ptr::null(),
        num_fields: 0,
        index,
        status: DLFS_OK,
    }
}

/// Gives a batch of `items` to the caller, who releases it.
///
/// # Safety
/// `out` is as [`give`] wants it; the items' memory is that of `batch` or the caller's.
pub(crate) unsafe fn hand_out(
    out: *mut BatchOut,
    batch: Option<Batch>,
    mut items: Vec<Item>,
    fields: FieldTable,
    place: (u64, bool),
) -> Result<(), Failure> {
    show_whole(&mut items);
    let mut value = BatchOut {
        size: 0,
        items: items.as_ptr(),
        count: items.len(),
        len_bytes: items.iter().map(len_bytes).sum(),
        epoch: place.0,
        ends_epoch: place.1.into(),
        reserved: 0,
        handle: std::ptr::null_mut(),
    };
    value.handle =
        handles::insert(Held { _batch: batch, _items: items, _fields: fields.into_fields() })?;
    // SAFETY: `out` is as `give` wants it by this function's own contract, and the memory that `value`
    // points into is held by the handle in it.
    unsafe { give(out, value) }
}

/// Bytes of all fields.
fn len_bytes(item: &Item) -> u64 {
    // SAFETY: an item that is handed out has its fields, in memory that lives as long.
    let fields = unsafe { std::slice::from_raw_parts(item.fields, item.num_fields) };
    fields.iter().map(|field| field.len as u64).sum()
}

/// Gives the memory of `batch` back, and empties the struct. Any thread.
///
/// Items and everything that they point to are gone with it. DLFS_E_HANDLE: it was released before, or
/// never filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_release(batch: *mut BatchOut) -> c_int {
    guard(|| {
        // SAFETY: by the header `batch` is NULL or points to a struct of the size that its first field
        // says, which nobody else looks at meanwhile; only its handle is believed, and that is checked.
        unsafe {
            check_out(batch)?;
            let held = handles::remove::<Held>(take(batch.cast_const())?.handle)?;
            give(batch, BatchOut::empty())?;
            drop(held);
        }
        Ok(DLFS_OK)
    })
}

impl BatchOut {
    pub(crate) fn empty() -> BatchOut {
        BatchOut {
            size: 0,
            items: std::ptr::null(),
            count: 0,
            len_bytes: 0,
            epoch: 0,
            ends_epoch: 0,
            reserved: 0,
            handle: std::ptr::null_mut(),
        }
    }
}
