//! Typed columns: values of samples beside their labels, from a table that the import was given or from a writer.

use std::ffi::{c_char, c_int};

use dlfs::directory::{Column, Directory};
use dlfs::format::columns::ColumnType;
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use crate::batch::DLFS_NO_LABEL;
use crate::error::{DLFS_E_NOT_FOUND, Failure, guard};
use crate::handles::get;
use crate::mount::{Fs, entry};
use crate::structs::{array, fill_text, put, utf8};

/// The type of a typed column: whole numbers.
pub const DLFS_COLUMN_INT: u32 = 1;

/// The type of a typed column: numbers of type double.
pub const DLFS_COLUMN_FLOAT: u32 = 2;

/// The type of a typed column: numbers of type float.
pub const DLFS_COLUMN_F32: u32 = 3;

/// The type of a typed column: 0 and 1.
pub const DLFS_COLUMN_BOOL: u32 = 4;

/// The type of a typed column: texts, each of which has a number.
pub const DLFS_COLUMN_STR: u32 = 5;

/// Looks up the typed column called `name`: stores its number in `*column`, and its type,
/// DLFS_COLUMN_..., in `*type`. Typed columns come from `dlfs import --columns` or a writer.
/// No I/O. Any thread.
///
/// DLFS_E_NOT_FOUND: there is no such column; the error text lists the existing ones.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_column_number(
    fs: *const Fs,
    name: *const c_char,
    column: *mut u64,
    r#type: *mut u32,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `name` is NULL or ends with NUL, and does not change during the call.
        let name = unsafe { utf8(name, "name")? };
        let mount = get(fs)?;
        let columns = mount.dataset.directory().columns();
        let found = columns.iter().position(|column| column.name() == name).ok_or_else(|| {
            let known: Vec<&str> = columns.iter().map(Column::name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let text = format!("there is no typed column {name:?}: there are {known}");
            Failure::new(DLFS_E_NOT_FOUND, text)
        })?;
        // SAFETY: by the header `column` and `type` are NULL or point to numbers of their types.
        unsafe {
            put(column, found as u64, "column")?;
            put(r#type, columns[found].kind() as u32 + DLFS_COLUMN_INT, "type")
        }
    })
}

/// Copies the name of typed column `column`, from 0, like dlfs_name. No I/O. Any thread.
///
/// DLFS_E_NOT_FOUND: there are fewer.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_column_name(
    fs: *const Fs,
    column: u64,
    name: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: by the header `name` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe {
        fill_text(name, len, needed, || {
            Ok(column_of(get(fs)?.dataset.directory(), column)?.name().to_owned())
        })
    }
}

/// Stores the values of the `count` samples with the ids at `ids` in column `column`, of type int, bool or str,
/// in `values`: of str the numbers of texts, and DLFS_NO_LABEL where a sample has none. No I/O. Any thread.
///
/// DLFS_E_NOT_FOUND: no such column or sample. DLFS_E_INVALID: the column is of floating-point numbers.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_column_ints(
    fs: *const Fs,
    column: u64,
    ids: *const u64,
    count: usize,
    values: *mut i64,
) -> c_int {
    guard(|| {
        let mount = get(fs)?;
        let column = column_of(mount.dataset.directory(), column)?;
        if column.kind().is_float() {
            let text = format!("column {} is {}: dlfs_column_floats", column.name(), column.kind());
            return Err(Failure::invalid(text));
        }
        let value = |id| column.int(id).unwrap_or(DLFS_NO_LABEL);
        // SAFETY: by the header `ids` has `count` elements that do not change during the call, and `values` has
        // room for as many.
        unsafe { give_values(mount.dataset.directory(), ids, count, values, value) }
    })
}

/// As dlfs_column_ints, for a column of type float, f32, int or bool; NaN where a sample has no value.
///
/// DLFS_E_NOT_FOUND: no such column or sample. DLFS_E_INVALID: the column is of texts.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_column_floats(
    fs: *const Fs,
    column: u64,
    ids: *const u64,
    count: usize,
    values: *mut f64,
) -> c_int {
    guard(|| {
        let mount = get(fs)?;
        let column = column_of(mount.dataset.directory(), column)?;
        if column.kind() == ColumnType::Text {
            let text = format!("column {} is of texts: dlfs_column_ints", column.name());
            return Err(Failure::invalid(text));
        }
        let whole = |id| column.int(id).map(|number| number as f64);
        let value = |id| column.float(id).or_else(|| whole(id)).unwrap_or(f64::NAN);
        // SAFETY: as in dlfs_column_ints.
        unsafe { give_values(mount.dataset.directory(), ids, count, values, value) }
    })
}

/// Copies text `number` of column `column`, of type str, like dlfs_name. Texts are numbered from 0, in their
/// order. No I/O. Any thread.
///
/// DLFS_E_NOT_FOUND: there is no such column, or it has fewer texts.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_column_text(
    fs: *const Fs,
    column: u64,
    number: u64,
    text: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: by the header `text` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe {
        fill_text(text, len, needed, || {
            let mount = get(fs)?;
            let column = column_of(mount.dataset.directory(), column)?;
            let texts = column.texts();
            let found = usize::try_from(number).ok().and_then(|number| texts.get(number));
            found.map(|found| found.to_string()).ok_or_else(|| {
                let name = column.name();
                let count = texts.len();
                let what = format!("column {name} has no text {number}: there are {count}");
                Failure::new(DLFS_E_NOT_FOUND, what)
            })
        })
    }
}

fn column_of(directory: &Directory, column: u64) -> Result<&Column, Failure> {
    entry(directory.columns(), column, "typed column")
}

/// Stores the value of each id, or none of them.
///
/// # Safety
/// `ids` is NULL or has `count` elements, and `values` is NULL or has room for as many.
unsafe fn give_values<T>(
    directory: &Directory,
    ids: *const u64,
    count: usize,
    values: *mut T,
    value: impl Fn(u64) -> T,
) -> Result<(), Failure> {
    // SAFETY: the caller promises `count` elements, unless `ids` is NULL.
    let ids: &[u64] = unsafe { array(ids, count, "ids")? };
    if let Some(id) = ids.iter().find(|id| !directory.is_live(SampleId(**id))) {
        return Err(Error::new(ErrorKind::NotFound, format!("there is no sample {id}")).into());
    }
    for (at, id) in ids.iter().enumerate() {
        // SAFETY: `at` is less than `count`, and the caller promises room for `count` values. `put` refuses
        // NULL, which only the first address can be.
        unsafe { put(values.wrapping_add(at), value(*id), "values")? };
    }
    Ok(())
}

const _: () = {
    assert!(ColumnType::Int as u32 + DLFS_COLUMN_INT == DLFS_COLUMN_INT);
    assert!(ColumnType::Float as u32 + DLFS_COLUMN_INT == DLFS_COLUMN_FLOAT);
    assert!(ColumnType::Float32 as u32 + DLFS_COLUMN_INT == DLFS_COLUMN_F32);
    assert!(ColumnType::Bool as u32 + DLFS_COLUMN_INT == DLFS_COLUMN_BOOL);
    assert!(ColumnType::Text as u32 + DLFS_COLUMN_INT == DLFS_COLUMN_STR);
};
