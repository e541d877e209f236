//! Deletes samples of an image, and frees their space.

use std::ffi::{c_char, c_int};

use dlfs::dataset::{Watch, cataloging};
use dlfs::import::{self, EditOptions};

use crate::converted::{flag, to_write};
use crate::error::{Failure, guard};
use crate::options::MountOptions;
use crate::structs::{self, put_if_asked};

/// Deletes `count` samples of the image at `addresses` in one generation: those with `ids` or those with
/// `names`; the other is NULL. If `count` is 0, both may be NULL or given. Stores in `*deleted`, which may
/// be NULL, how many of them were live until now. An id that was deleted before is no error, and is not
/// counted.
///
/// Mounts see the generation that they opened; the bytes stay until dlfs_purge. `options` may be NULL;
/// only its options for connections apply. `accept_older_generation` 1: overwrite a bad superblock copy
/// even if that may lose a newer generation; otherwise 0. Any thread.
///
/// DLFS_E_NOT_FOUND: the image never had some of these ids, or has no such names; dlfs_last_error lists
/// up to 20, and nothing is deleted. DLFS_E_BUSY: another process is changing the image. DLFS_E_REFUSED:
/// a newer generation may have been committed, and `accept_older_generation` is 0.
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
/// A file becomes about as small as an import of its samples would make it. Mounts of earlier generations have
/// to be opened again. `options` and `accept_older_generation` as for dlfs_delete; `should_stop` of the
/// options ends it with DLFS_E_INTERRUPTED, and the image stays whole. Any thread.
///
/// DLFS_E_CORRUPT: a sample to be kept is damaged. DLFS_E_NO_SPACE: there is no room for a chunk, a record
/// and a snapshot. DLFS_E_BUSY, DLFS_E_REFUSED: as for dlfs_delete.
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
