//! Writes an image sample by sample, or as one import by many processes; deletes samples and frees their space.

use std::ffi::{c_char, c_int};

use dlfs::address::Address;
use dlfs::dataset::{Watch, cataloging};
use dlfs::format::columns::{ColumnSpec, Value};
use dlfs::format::field_type::FieldType;
use dlfs::format::{FieldTypes, Pack};
use dlfs::import::many::{
    Output, PartPlace, PartWriter, WritePlan, commit_import, import_part, plan_import,
};
use dlfs::import::{
    self, EditOptions, ImportOptions, Label, NewSample, OnError, Onto, PlacementOrder, WriteOrder,
    WriterOptions,
};
use dlfs::qpair::ConnectOptions;
use parking_lot::Mutex;

use crate::batch::DLFS_NO_LABEL;
use crate::column::{
    DLFS_COLUMN_BOOL, DLFS_COLUMN_F32, DLFS_COLUMN_FLOAT, DLFS_COLUMN_INT, DLFS_COLUMN_STR,
};
use crate::error::{Failure, guard};
use crate::options::{MountOptions, flag, or, to_write, unknown};
use crate::structs::{
    self, Handle, Struct, array, get, names, optional_text, path, put, put_if_asked, strings, take,
    take_or_zeroed, utf8,
};

/// Deletes `count` samples of the image at `addresses` in one generation, and stores in `*deleted`,
/// which may be NULL, how many there were: either `ids` or `names` says which, and the other is NULL.
///
/// Mounts see the generation that they opened; the bytes stay until dlfs_purge. A sample that is
/// deleted already may be deleted again by its id, and so counts as there. `options` may be NULL; only
/// its options for connections apply. `accept_older_generation` 1: overwrite a bad superblock copy even
/// if that may lose a newer generation; otherwise 0. Any thread.
///
/// DLFS_E_NOT_FOUND: the image never had some of these ids, or has no such names; dlfs_last_error lists
/// up to 20, and nothing is deleted. DLFS_E_BUSY: another process is changing the image.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_delete(
    addresses: *const c_char,
    options: *const MountOptions,
    accept_older_generation: u32,
    ids: *const u64,
    names: *const *const c_char,
    count: usize,
    deleted: *mut u64,
) -> c_int {
    guard(|| {
        if ids.is_null() == names.is_null() && count > 0 {
            return Err(Failure::invalid("either ids or names says which samples, and not both"));
        }
        // SAFETY: by the header strings end with NUL, `options` is NULL or a struct of the size that it
        // states, the array has `count` elements, `deleted` is NULL or points to a number, and nothing of this
        // changes during the call.
        unsafe {
            let edit = edit_options(accept_older_generation)?;
            let image = structs::addresses(addresses, "addresses")?;
            let (connect, _) = to_write(options)?;
            let report = if names.is_null() {
                import::delete_ids(&image, &structs::ids(ids, count)?, &edit, &connect)?
            } else {
                let names = structs::names(names, count, "names", "a name")?;
                import::delete(&image, &names, &edit, &connect)?
            };
            cataloging::committed(&image, report.generation, &connect, "delete");
            put_if_asked(deleted, report.samples, "the result")
        }
    })
}

/// Frees the space of deleted samples of the image at `addresses`, and stores in `*freed_bytes`, which
/// may be NULL, how many bytes can be reused two generations later.
///
/// A file becomes as small as an import of its samples would make it. Mounts of earlier generations have
/// to be opened again. `options` and `accept_older_generation` as for dlfs_delete; `should_stop` of the
/// options ends it with DLFS_E_INTERRUPTED, and the image stays whole. Any thread.
///
/// DLFS_E_CORRUPT: a sample to be kept is damaged. DLFS_E_NO_SPACE: there is no room for one chunk.
/// DLFS_E_BUSY: another process is changing the image.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_purge(
    addresses: *const c_char,
    options: *const MountOptions,
    accept_older_generation: u32,
    freed_bytes: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `addresses` ends with NUL, `options` is NULL or a struct of the size that it
        // states, `freed_bytes` is NULL or points to a number, and nothing of this changes during the call.
        unsafe {
            let edit = edit_options(accept_older_generation)?;
            let image = structs::addresses(addresses, "addresses")?;
            let (connect, mut stop) = to_write(options)?;
            let report =
                import::purge(&image, &edit, &connect, &mut (&mut stop as &mut dyn Watch))?;
            cataloging::committed(&image, report.generation, &connect, "purge");
            put_if_asked(freed_bytes, report.freed_bytes, "the result")
        }
    })
}

fn edit_options(accept_older_generation: u32) -> Result<EditOptions, Failure> {
    let accept_older_generation = flag(accept_older_generation, "accept_older_generation")?;
    Ok(EditOptions { accept_older_generation })
}

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
    pub(crate) image: Vec<Address>,
    pub(crate) connect: ConnectOptions,
    onto: Onto,
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
        structs::open(writer, "writer", || {
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
        let writing = structs::remove(writer)?;
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
    guard(|| structs::remove(writer).map(|writing| drop(writing.taken())))
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

/// Options of an image, however it is written.
fn image_options(
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

/// # Safety
/// The pointers in `given` satisfy the header.
unsafe fn writer_options(given: WriteOptions) -> Result<WriterOptions, Failure> {
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

fn type_of(text: &str) -> Result<FieldType, Failure> {
    text.parse().map_err(|why| Failure::invalid(format!("the type of a field: {why}")))
}

fn column_of(text: &str) -> Result<ColumnSpec, Failure> {
    let wrong = |why: String| Failure::invalid(format!("the column {text:?}: {why}"));
    let (name, kind) =
        text.rsplit_once(':').ok_or_else(|| wrong("is not of the form NAME:TYPE".into()))?;
    Ok(ColumnSpec { name: name.to_owned(), kind: kind.parse().map_err(wrong)? })
}

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

fn over() -> Failure {
    Failure::invalid("this writer is finished or discarded")
}

/// Options of an import that is planned. Set `size` to `sizeof(dlfs_import_options)`, and all fields without
/// a value to zero. The call copies it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ImportOptionsIn {
    /// sizeof(dlfs_import_options).
    pub size: usize,
    /// The kind of the sources, as `dlfs import --from` takes it; NULL: it is detected.
    pub from: *const c_char,
    /// DLFS_WRITE_NEW, DLFS_WRITE_APPEND or DLFS_WRITE_OVERWRITE.
    pub onto: u32,
    /// DLFS_WRITE_SHUFFLED: all samples together; or DLFS_WRITE_IN_ORDER.
    pub order: u32,
    /// Seed of the shuffle.
    pub seed: u64,
    /// Bytes of a chunk, a power of two from 64 KiB to 256 MiB; 0: 4 MiB.
    pub chunk_size: u32,
    /// 1: samples follow each other without padding; 0: small ones avoid crossing blocks.
    pub tight: u32,
    /// 1: entries that cannot be imported are left out; 0: they are an error, which lists them.
    pub skip_bad: u32,
    /// 1: each name begins with its folder, list or shard; 0: only a name that an earlier shard has, too,
    /// begins with its shard.
    pub prefix: u32,
}
// SAFETY: numbers and pointers, the size first.
unsafe impl Struct for ImportOptionsIn {
    const NAME: &str = "dlfs_import_options";
}

/// Plans to import the `num_sources` files or folders in `sources` onto the image at `addresses`, each of
/// whose namespaces is a part, and writes the plan to the file at `plan`, which must not be there. Stores in
/// `*samples`, which may be NULL, how many samples there are.
///
/// Nothing is visible before dlfs_import_commit. Hosts find the plan, the sources and the namespaces by the same
/// names. `options` may be NULL, and of `connection`, which may be NULL, only the options for connections, `links`,
/// `hidden` and `should_stop` apply. Any thread.
///
/// DLFS_E_INVALID: entries cannot be imported, or the source can be read only once. DLFS_E_REFUSED: there is
/// data that `onto` does not allow to overwrite, or a file at `plan`. DLFS_E_BUSY: another process is changing the
/// image.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_import_plan(
    sources: *const *const c_char,
    num_sources: usize,
    addresses: *const c_char,
    options: *const ImportOptionsIn,
    connection: *const MountOptions,
    plan: *const c_char,
    samples: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: by the header strings end with NUL, arrays have as many elements as is said, and structs the
        // size that they state; `samples` is NULL or points to a number; nothing changes during the call.
        unsafe {
            let sources = strings(sources, num_sources, "sources", |&source| {
                Ok(path(source, "a source")?.to_path_buf())
            })?;
            let image = structs::addresses(addresses, "addresses")?;
            let mut options = import_options(take_or_zeroed(options)?)?;
            let (connect, mut stop) = to_write(connection)?;
            options.folders = connect.folders;
            let plan = path(plan, "plan")?;
            let asking = &mut (&mut stop as &mut dyn Watch);
            let report = plan_import(&sources, &image, &options, &connect, plan, asking)?;
            put_if_asked(samples, report.samples, "samples")
        }
    })
}

/// Imports part number `part`, from 0, of the plan in the file at `plan`, and stores in `*samples`, which may
/// be NULL, how many samples it has. May be called again after it failed: what is written is not written again.
/// `connection` as for dlfs_import_plan. Any thread.
///
/// DLFS_E_BUSY: another attempt at it is running. DLFS_E_INVALID: entries have changed since they were planned.
/// DLFS_E_STALE: something else has changed the image that the plan appends to.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_import_part(
    plan: *const c_char,
    part: u32,
    connection: *const MountOptions,
    samples: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: as dlfs_import_plan.
        unsafe {
            let plan = path(plan, "plan")?;
            let (connect, mut stop) = to_write(connection)?;
            let part = u16::try_from(part)
                .map_err(|_| Failure::invalid(format!("an image has no part {part}")))?;
            let report = import_part(plan, part, &connect, &mut (&mut stop as &mut dyn Watch))?;
            put_if_asked(samples, report.samples, "samples")
        }
    })
}

/// Commits the parts of the plan in the file at `plan` as one generation, and stores its number in
/// `*generation`, which may be NULL. `num_parts`: 0 for a plan of dlfs_import_plan; for one of dlfs_write_plan,
/// how many parts there are. May be called again. `connection` as for dlfs_import_plan. Any thread.
///
/// DLFS_E_NOT_FOUND: parts are not complete, and dlfs_last_error lists them. DLFS_E_BUSY: one is being written.
/// DLFS_E_STALE: something else has changed the image.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_import_commit(
    plan: *const c_char,
    num_parts: u64,
    connection: *const MountOptions,
    generation: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: as dlfs_import_plan.
        unsafe {
            let plan = path(plan, "plan")?;
            let (connect, mut stop) = to_write(connection)?;
            let asking = &mut (&mut stop as &mut dyn Watch);
            let (report, image) = match num_parts {
                0 => commit_import(plan, &connect, asking)?,
                count => {
                    let plan = WritePlan::load(plan)?;
                    (plan.commit_all(count, &connect, asking)?, plan.image().to_vec())
                }
            };
            cataloging::committed(&image, report.generation, &connect, "import");
            put_if_asked(generation, report.generation.0, "generation")
        }
    })
}

/// Plans a new image at `addresses` whose parts programs write, and writes the plan, some kilobytes, to the file at
/// `plan`. There may be more parts than namespaces, of any length; each namespace takes one at a time. `classes`: the
/// names of all classes, `num_classes` of them. `options` and `connection` as for dlfs_writer_open. Any thread.
///
/// DLFS_E_REFUSED: there is data that `onto` does not allow to overwrite. DLFS_E_INVALID: `options` asks for an
/// append, or has a `count`.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_write_plan(
    addresses: *const c_char,
    options: *const WriteOptions,
    classes: *const *const c_char,
    num_classes: usize,
    connection: *const MountOptions,
    plan: *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: as dlfs_import_plan.
        unsafe {
            let options = writer_options(take_or_zeroed(options)?)?;
            let classes = names(classes, num_classes, "classes", "a class")?;
            let plan = path(plan, "plan")?;
            let (connect, _) = to_write(connection)?;
            let image = structs::addresses(addresses, "addresses")?;
            Ok(WritePlan::create(&image, &options, classes, &connect)?.save(plan)?)
        }
    })
}

/// Begins to write part number `part` of the plan of dlfs_write_plan in the file at `plan`, and stores in
/// `*writer` a handle for dlfs_write; the ids count the samples of the part. dlfs_writer_finish completes the
/// part, and dlfs_writer_discard gives it up. `anywhere` 0: onto namespace `part` modulo their number; 1: or, if that
/// is busy, onto the next free one. `connection` as for dlfs_writer_open. Any thread.
///
/// DLFS_E_BUSY: another part, or another attempt, is being written there.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_writer_open_part(
    plan: *const c_char,
    part: u64,
    anywhere: u32,
    connection: *const MountOptions,
    writer: *mut *mut WriterHandle,
) -> c_int {
    // SAFETY: as dlfs_import_plan; `writer` is NULL or a place for a handle.
    unsafe {
        structs::open(writer, "writer", || {
            let is_anywhere = flag(anywhere, "anywhere")?;
            let place = if is_anywhere { PartPlace::AnyFree } else { PartPlace::Own };
            let (connect, _) = to_write(connection)?;
            let plan = WritePlan::load(path(plan, "plan")?)?;
            let made = Output::Part(Box::new(PartWriter::begin(&plan, part, place, &connect)?));
            let image = plan.image().to_vec();
            Ok(Writing { writer: Mutex::new(Some(made)), image, connect, onto: Onto::Empty })
        })
    }
}

/// # Safety
/// The string in `given` ends with NUL.
unsafe fn import_options(given: ImportOptionsIn) -> Result<ImportOptions, Failure> {
    let image = image_options(given.onto, given.seed, given.chunk_size, given.tight)?;
    let is_skipped = flag(given.skip_bad, "skip_bad")?;
    Ok(ImportOptions {
        from: if given.from.is_null() {
            image.from
        } else {
            // SAFETY: the caller promises that the string ends with NUL.
            unsafe { utf8(given.from, "from")? }.parse()?
        },
        placement: match given.order {
            DLFS_WRITE_SHUFFLED => PlacementOrder::Shuffled,
            DLFS_WRITE_IN_ORDER => PlacementOrder::Source,
            other => return Err(unknown("order", other)),
        },
        on_error: if is_skipped { OnError::Skip } else { OnError::Stop },
        prefix: flag(given.prefix, "prefix")?,
        ..image
    })
}
