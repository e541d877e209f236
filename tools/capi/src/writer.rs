//! Writes an image sample by sample.

use std::ffi::{c_char, c_int};

use dlfs::address::Address;
use dlfs::dataset::cataloging;
use dlfs::format::columns::{ColumnSpec, Value};
use dlfs::format::field_type::FieldType;
use dlfs::format::{FieldTypes, Pack};
use dlfs::import::many::Output;
use dlfs::import::{self, ImportOptions, Label, NewSample, Onto, WriteOrder, WriterOptions};
use dlfs::qpair::ConnectOptions;
use parking_lot::Mutex;

use crate::batch::DLFS_NO_LABEL;
use crate::column::{
    DLFS_COLUMN_BOOL, DLFS_COLUMN_F32, DLFS_COLUMN_FLOAT, DLFS_COLUMN_INT, DLFS_COLUMN_STR,
};
use crate::converted::{flag, or, to_write, unknown};
use crate::error::{Failure, guard};
use crate::handles::{self, Handle, get};
use crate::options::MountOptions;
use crate::structs::{
    self, Struct, array, names, optional_text, put, put_if_asked, strings, take, take_or_zeroed,
    utf8,
};

/// A writer of samples: an opaque handle.
pub struct WriterHandle(());

/// Write a new image; what is there must be empty.
pub const DLFS_WRITE_NEW: u32 = 0;

/// Add to the image that is there, as its next generation.
pub const DLFS_WRITE_APPEND: u32 = 1;

/// Discard whatever is there, at once.
pub const DLFS_WRITE_OVERWRITE: u32 = 2;

/// Samples that are written together are shuffled among each other.
pub const DLFS_WRITE_SHUFFLED: u32 = 0;

/// Samples lie on media as they are written.
pub const DLFS_WRITE_IN_ORDER: u32 = 1;

/// Options of a writer. Set `size` to `sizeof(dlfs_writer_options)`, and all fields without a value to
/// zero. The call copies it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct WriteOptions {
    /// sizeof(dlfs_writer_options).
    pub size: usize,
    /// Names of the fields of a sample; NULL: one field without a name, or, with DLFS_WRITE_APPEND,
    /// those of the image.
    pub fields: *const *const c_char,
    /// The number of fields.
    pub num_fields: usize,
    /// The types of the fields, such as "i64", "f32[768]" or "u16[*]", whose bytes are little-endian
    /// elements; NULL for a field of other bytes. NULL: no field has a type.
    pub field_types: *const *const c_char,
    /// Typed columns beside those of the image: "NAME:TYPE" with TYPE int, float, f32, bool or str.
    pub columns: *const *const c_char,
    /// The number of columns.
    pub num_columns: usize,
    /// DLFS_WRITE_NEW, DLFS_WRITE_APPEND or DLFS_WRITE_OVERWRITE.
    pub onto: u32,
    /// DLFS_WRITE_SHUFFLED or DLFS_WRITE_IN_ORDER.
    pub order: u32,
    /// If not 0, the number of samples to write: all of them are shuffled together, and each dlfs_write must
    /// pass the sample with the id that dlfs_writer_next_id stores.
    pub count: u64,
    /// Seed of the shuffle.
    pub seed: u64,
    /// Bytes of samples that are shuffled together; twice as many are in memory. 0: 64 MiB.
    pub shuffle_bytes: u64,
    /// Bytes of a chunk, a power of two from 64 KiB to 256 MiB; 0: 4 MiB.
    pub chunk_size: u32,
    /// 1: samples follow each other without padding; 0: small ones avoid crossing blocks.
    pub tight: u32,
}
// SAFETY: numbers and pointers, the size first.
unsafe impl Struct for WriteOptions {
    const NAME: &str = "dlfs_writer_options";
}

/// The bytes of a field of a sample to be written.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct NewField {
    /// The bytes; NULL: the sample does not have this field.
    pub data: *const u8,
    /// Their number.
    pub len: usize,
}

/// The value of a sample to be written in a typed column.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct NewValue {
    /// The column's name.
    pub column: *const c_char,
    /// Its type, DLFS_COLUMN_..., which says which of the following holds the value.
    pub r#type: u32,
    /// Reserved: 0.
    pub reserved: u32,
    /// Value of DLFS_COLUMN_INT, and of DLFS_COLUMN_BOOL, 0 or 1.
    pub number: i64,
    /// Value of DLFS_COLUMN_FLOAT and DLFS_COLUMN_F32.
    pub real: f64,
    /// Value of DLFS_COLUMN_STR.
    pub text: *const c_char,
}

/// A sample to be written. Set `size` to `sizeof(dlfs_new_sample)`. The call copies it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct NewSampleIn {
    /// sizeof(dlfs_new_sample).
    pub size: usize,
    /// Its name, unique in the image; NULL: its id, in nine decimal digits or more.
    pub name: *const c_char,
    /// Its fields, in the order of the options.
    pub fields: *const NewField,
    /// Their number: that of the writer, 1 without names.
    pub num_fields: usize,
    /// Its label, or DLFS_NO_LABEL.
    pub label: i64,
    /// The name of its class; then `label` is DLFS_NO_LABEL. Classes are numbered in the order of their first
    /// samples.
    pub class_name: *const c_char,
    /// Its values in typed columns; it has no value in the others.
    pub values: *const NewValue,
    /// Their number.
    pub num_values: usize,
}
// SAFETY: numbers and pointers, the size first.
unsafe impl Struct for NewSampleIn {
    const NAME: &str = "dlfs_new_sample";
}

/// The object behind a writer's handle.
pub(crate) struct Writing {
    /// `None` once it is finished or discarded.
    pub(crate) writer: Mutex<Option<Output>>,
    /// The namespaces of the image, for its catalogue.
    pub(crate) image: Vec<Address>,
    /// The options for connections, to add the new version to a catalogue.
    pub(crate) connect: ConnectOptions,
    /// Says whether a catalogue notes an append or an import.
    pub(crate) onto: Onto,
}

/// Begins to write the image at `addresses`, and stores a handle in `*writer`, to be ended with
/// dlfs_writer_finish or dlfs_writer_discard. A file that does not exist is created. `options` may be NULL,
/// and of `connection`, which may be NULL, only the options for connections apply. Any thread.
///
/// DLFS_E_REFUSED: there is data that `onto` does not allow to overwrite. DLFS_E_BUSY: another process is
/// changing the image. DLFS_E_NOT_FOUND: there is no image to append to.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_writer_open(
    addresses: *const c_char,
    options: *const WriteOptions,
    connection: *const MountOptions,
    writer: *mut *mut WriterHandle,
) -> c_int {
    // SAFETY: by the header `writer` is NULL or a place for a handle, strings end with NUL, arrays have as
    // many elements as is said, and structs the size that they state; nothing changes during the call.
    unsafe {
        handles::open(writer, "writer", || {
            let options = writer_options(take_or_zeroed(options)?)?;
            let (connect, _) = to_write(connection)?;
            let image = structs::addresses(addresses, "addresses")?;
            let onto = options.image.onto;
            let made = Output::Image(Box::new(import::Writer::create(&image, options, &connect)?));
            Ok(Writing { writer: Mutex::new(Some(made)), image, connect, onto })
        })
    }
}

/// Writes a sample, and stores its id in `*id`, which may be NULL. Blocks while two windows wait to be
/// written. Any thread; ids ascend in the order of the calls, except with `count`.
///
/// DLFS_E_INVALID: the sample cannot be written, and dlfs_last_error says why; the writer goes on without
/// it. Any other error: only dlfs_writer_discard is of use any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_write(
    writer: *mut WriterHandle,
    sample: *const NewSampleIn,
    id: *mut u64,
) -> c_int {
    guard(|| {
        let writing = get(writer)?;
        // SAFETY: by the header `sample` is NULL or a struct of the size that it states, strings end with NUL,
        // arrays have as many elements as is said, `id` is NULL or points to a number, and nothing changes during
        // the call.
        unsafe {
            let sample = take(sample)?;
            let fields = array(sample.fields, sample.num_fields, "fields")?.iter();
            let fields = fields.map(|field| {
                if field.data.is_null() {
                    Ok(None)
                } else {
                    array(field.data, field.len, "data").map(Some)
                }
            });
            let fields = fields.collect::<Result<Vec<Option<&[u8]>>, Failure>>()?;
            let values = array(sample.values, sample.num_values, "values")?.iter();
            let values = values.map(|value| value_of(value)).collect::<Result<Vec<_>, _>>()?;
            let new = NewSample {
                name: optional_text(sample.name),
                label: label_of(&sample)?,
                fields: &fields,
                values: &values,
            };
            let written = writing.writer.lock().as_mut().ok_or_else(over)?.samples().write(&new)?;
            put_if_asked(id, written.0, "id")
        }
    })
}

/// Stores the id of the sample to be written next in `*id`. No I/O. Any thread.
///
/// DLFS_E_INVALID: as many are written as `count` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_writer_next_id(writer: *mut WriterHandle, id: *mut u64) -> c_int {
    guard(|| {
        let writing = get(writer)?;
        let next = writing.writer.lock().as_mut().ok_or_else(over)?.samples().next_id();
        let next = next.ok_or_else(|| {
            Failure::invalid("as many samples are written as were announced: finish")
        })?;
        // SAFETY: by the header `id` is NULL or points to a number.
        unsafe { put(id, next.0, "id") }
    })
}

/// Commits what was written as one generation, and stores its number in `*generation`, which may be NULL.
/// Closes the handle, also if it fails; then the image is as it was before. A part of dlfs_writer_open_part is
/// complete then, and its generation, here 0, comes with dlfs_import_commit. Any thread.
///
/// DLFS_E_INVALID: no sample was written, or fewer than `count`.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_writer_finish(writer: *mut WriterHandle, generation: *mut u64) -> c_int {
    guard(|| {
        let writing = handles::remove(writer)?;
        let number = match writing.taken().ok_or_else(over)? {
            Output::Part(part) => {
                part.finish()?;
                0
            }
            Output::Image(writer) => {
                let report = writer.finish()?;
                let made_by = if writing.onto == Onto::Append { "append" } else { "import" };
                cataloging::committed(&writing.image, report.generation, &writing.connect, made_by);
                report.generation.0
            }
        };
        // SAFETY: by the header `generation` is NULL or points to a number.
        unsafe { put_if_asked(generation, number, "generation") }
    })
}

/// Closes the handle, and discards what was written: the image is as it was before. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_writer_discard(writer: *mut WriterHandle) -> c_int {
    guard(|| handles::remove(writer).map(|writing| drop(writing.taken())))
}

impl Handle for WriterHandle {
    type Object = Writing;
    const NAME: &str = "writer";
}

impl Writing {
    /// Takes the output out of the lock, which is free again when this returns.
    fn taken(&self) -> Option<Output> {
        self.writer.lock().take()
    }
}

/// Options of an image, whether samples or sources are written.
pub(crate) fn image_options(
    onto: u32,
    seed: u64,
    chunk_size: u32,
    tight: u32,
) -> Result<ImportOptions, Failure> {
    let onto = match onto {
        DLFS_WRITE_NEW => Onto::Empty,
        DLFS_WRITE_APPEND => Onto::Append,
        DLFS_WRITE_OVERWRITE => Onto::Force,
        other => return Err(unknown("onto", other)),
    };
    let pack = if flag(tight, "tight")? { Pack::Tight } else { Pack::Aligned };
    let default = ImportOptions::default();
    let chunk_size_bytes = or(chunk_size, default.chunk_size_bytes);
    Ok(ImportOptions { onto, seed, pack, chunk_size_bytes, ..default })
}

/// The options of a writer.
///
/// # Safety
/// The pointers in `given` satisfy the header.
pub(crate) unsafe fn writer_options(given: WriteOptions) -> Result<WriterOptions, Failure> {
    let image = image_options(given.onto, given.seed, given.chunk_size, given.tight)?;
    let order = match (given.order, given.count) {
        (DLFS_WRITE_SHUFFLED, 0) => WriteOrder::Windows,
        (DLFS_WRITE_SHUFFLED, count) => WriteOrder::Whole { count },
        (DLFS_WRITE_IN_ORDER, 0) => WriteOrder::Written,
        (DLFS_WRITE_IN_ORDER, _) => {
            return Err(Failure::invalid("count is for samples that are shuffled together"));
        }
        (other, _) => return Err(unknown("order", other)),
    };
    let num_types = if given.field_types.is_null() { 0 } else { given.num_fields };
    let shuffle_bytes = usize::try_from(given.shuffle_bytes).unwrap_or(usize::MAX);
    // SAFETY: the caller promises that the pointers in `given` satisfy the header.
    unsafe {
        let types = strings(given.field_types, num_types, "field_types", |&kind| {
            if kind.is_null() { Ok(None) } else { type_of(utf8(kind, "a type")?).map(Some) }
        });
        Ok(WriterOptions {
            image,
            fields: names(given.fields, given.num_fields, "fields", "a field")?,
            field_types: FieldTypes::new(types?),
            columns: strings(given.columns, given.num_columns, "columns", |&column| {
                column_of(utf8(column, "a column")?)
            })?,
            order,
            window_bytes: or(shuffle_bytes, WriterOptions::default().window_bytes),
        })
    }
}

/// Parses the type of a field.
fn type_of(text: &str) -> Result<FieldType, Failure> {
    text.parse().map_err(|why| Failure::invalid(format!("the type of a field: {why}")))
}

/// Parses a typed column, `NAME:TYPE`.
fn column_of(text: &str) -> Result<ColumnSpec, Failure> {
    let wrong = |why: String| Failure::invalid(format!("the column {text:?}: {why}"));
    let (name, kind) =
        text.rsplit_once(':').ok_or_else(|| wrong("is not of the form NAME:TYPE".into()))?;
    Ok(ColumnSpec { name: name.to_owned(), kind: kind.parse().map_err(wrong)? })
}

/// The column and the value of `value`.
///
/// # Safety
/// The strings of `value` end with NUL, and do not change during `'a`.
unsafe fn value_of<'a>(value: &NewValue) -> Result<(&'a str, Value<'a>), Failure> {
    // SAFETY: the caller promises that the string ends with NUL and does not change during `'a`.
    let column = unsafe { utf8(value.column, "the column of a value")? };
    let found = match value.r#type {
        DLFS_COLUMN_INT => Value::Int(value.number),
        DLFS_COLUMN_BOOL => Value::Bool(value.number != 0),
        DLFS_COLUMN_FLOAT | DLFS_COLUMN_F32 if value.real.is_nan() => Value::None,
        DLFS_COLUMN_FLOAT | DLFS_COLUMN_F32 => Value::Float(value.real),
        // SAFETY: as for the column.
        DLFS_COLUMN_STR => Value::Text(unsafe { utf8(value.text, "the text of a value")? }),
        other => return Err(unknown("the type of a value", other)),
    };
    Ok((column, found))
}

/// The label of `sample`.
///
/// # Safety
/// Its strings end with NUL, and do not change during `'a`.
unsafe fn label_of<'a>(sample: &NewSampleIn) -> Result<Label<'a>, Failure> {
    // SAFETY: the caller promises that the string ends with NUL and does not change during `'a`.
    match (sample.label, unsafe { optional_text(sample.class_name) }) {
        (DLFS_NO_LABEL, None) => Ok(Label::None),
        (DLFS_NO_LABEL, Some(name)) => Ok(Label::Class(name)),
        (number, None) => Ok(Label::Number(number)),
        (_, Some(_)) => {
            let text =
                "a sample has a label or the name of a class: the other is DLFS_NO_LABEL or NULL";
            Err(Failure::invalid(text))
        }
    }
}

/// The error for a writer that has ended.
fn over() -> Failure {
    Failure::invalid("this writer is finished or discarded")
}
