//! Types of fields: the elements and dimensions of their bytes.

use std::ffi::c_int;

use dlfs::format::field_type::{self, Element};

use crate::error::{DLFS_E_NOT_FOUND, Failure};
use crate::handles::get;
use crate::mount::Fs;
use crate::structs::{Struct, fill};

/// The elements of a field without a type: bytes.
pub const DLFS_ELEMENT_BYTES: u32 = 0;
/// Elements of a field: uint8_t.
pub const DLFS_ELEMENT_U8: u32 = 1;
/// Elements of a field: int8_t.
pub const DLFS_ELEMENT_I8: u32 = 2;
/// Elements of a field: uint16_t.
pub const DLFS_ELEMENT_U16: u32 = 3;
/// Elements of a field: int16_t.
pub const DLFS_ELEMENT_I16: u32 = 4;
/// Elements of a field: uint32_t.
pub const DLFS_ELEMENT_U32: u32 = 5;
/// Elements of a field: int32_t.
pub const DLFS_ELEMENT_I32: u32 = 6;
/// Elements of a field: uint64_t.
pub const DLFS_ELEMENT_U64: u32 = 7;
/// Elements of a field: int64_t.
pub const DLFS_ELEMENT_I64: u32 = 8;
/// Elements of a field: IEEE 754 of 16 bits.
pub const DLFS_ELEMENT_F16: u32 = 9;
/// Elements of a field: the upper half of a float.
pub const DLFS_ELEMENT_BF16: u32 = 10;
/// Elements of a field: float.
pub const DLFS_ELEMENT_F32: u32 = 11;
/// Elements of a field: double.
pub const DLFS_ELEMENT_F64: u32 = 12;
/// Elements of a field: 0 and 1, a byte each.
pub const DLFS_ELEMENT_BOOL: u32 = 13;

/// The most dimensions of a field.
pub const DLFS_MAX_DIMS: usize = 16;

/// The type of a field. Set `size` to `sizeof(dlfs_field_type)` before it is filled.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct FieldType {
    /// sizeof(dlfs_field_type).
    pub size: usize,
    /// Type of an element, DLFS_ELEMENT_...: little-endian.
    pub element: u32,
    /// Bytes of an element.
    pub element_len: u32,
    /// The number of dimensions; 0: a single number.
    pub num_dims: u64,
    /// The length of each dimension, in C order; 0 for the first one if it differs from sample to
    /// sample: then it follows from the `len` of a dlfs_field.
    pub dims: [u64; DLFS_MAX_DIMS],
}
// SAFETY: numbers alone, the size first.
unsafe impl Struct for FieldType {
    const NAME: &str = "dlfs_field_type";
}

/// Describes field `index`: what the `data` of its dlfs_field points to. A field without a type is
/// DLFS_ELEMENT_BYTES, with one dimension of length 0. No I/O. Any thread.
///
/// DLFS_E_NOT_FOUND: samples have fewer fields.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_get_field_type(
    fs: *const Fs,
    index: u64,
    r#type: *mut FieldType,
) -> c_int {
    // SAFETY: by the header `type` is NULL or points to a struct of the size in its first
    // field, which nobody else accesses meanwhile.
    unsafe {
        fill(r#type, || {
            let mount = get(fs)?;
            // Samples without named fields have one field, without a name.
            let count = mount.dataset.directory().fields().len().max(1);
            let Some(field) = usize::try_from(index).ok().filter(|index| *index < count) else {
                let text = format!("there is no field {index}, there are {count}");
                return Err(Failure::new(DLFS_E_NOT_FOUND, text));
            };
            Ok(mount.dataset.directory().field_types().of(field).map_or_else(bytes, described))
        })
    }
}

/// The type of a field of bytes.
fn bytes() -> FieldType {
    FieldType { element: DLFS_ELEMENT_BYTES, element_len: 1, num_dims: 1, ..FieldType::zeroed() }
}

/// The type of a field with type `kind`. A dimension that varies from sample to sample has length 0.
fn described(kind: &field_type::FieldType) -> FieldType {
    let mut dims = [0; DLFS_MAX_DIMS];
    for (to, dim) in dims.iter_mut().zip(kind.dims()) {
        *to = dim.unwrap_or(0).into();
    }
    FieldType {
        element: kind.element() as u32 + DLFS_ELEMENT_U8,
        element_len: kind.element().len_bytes(),
        num_dims: kind.dims().len() as u64,
        dims,
        ..FieldType::zeroed()
    }
}

const _: () = assert!(DLFS_MAX_DIMS == field_type::MAX_DIMS);

const _: () = assert!(Element::Bool as u32 + DLFS_ELEMENT_U8 == DLFS_ELEMENT_BOOL);
