//! One import by many processes: plans, parts and commits, of sources and of samples that programs write.

use std::ffi::{c_char, c_int};

use dlfs::dataset::{Watch, cataloging};
use dlfs::import::many::{
    Output, PartPlace, PartWriter, WritePlan, commit_import, import_part, plan_import,
};
use dlfs::import::{ImportOptions, OnError, Onto, PlacementOrder};
use parking_lot::Mutex;

use crate::converted::{flag, to_write, unknown};
use crate::error::{Failure, guard};
use crate::handles;
use crate::options::MountOptions;
use crate::structs::{self, Struct, names, path, put_if_asked, strings, take_or_zeroed, utf8};
use crate::writer::{
    DLFS_WRITE_IN_ORDER, DLFS_WRITE_SHUFFLED, WriteOptions, WriterHandle, Writing, image_options,
    writer_options,
};

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
        handles::open(writer, "writer", || {
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

/// The options of an import.
///
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
