//! Views: some of the samples of a mounted data set, as a data set.

use std::ffi::{c_char, c_int};

use dlfs::dataset::{Dataset, save_views};
use dlfs::view::{NamedView, Split, SplitBy};
use parking_lot::Mutex;

use crate::converted::unknown;
use crate::error::{Failure, guard};
use crate::handles::{self, get};
use crate::mount::{Fs, Mount};
use crate::structs::{self, path, utf8};

/// The part follows from the id, which stays when samples are appended, deleted and purged.
pub const DLFS_SPLIT_BY_ID: u32 = 0;

/// The part follows from the name, which also stays in a new import.
pub const DLFS_SPLIT_BY_NAME: u32 = 1;

/// The part follows from the folder of the name: all samples of a folder are in one part.
pub const DLFS_SPLIT_BY_FOLDER: u32 = 2;

/// Stores in `*view` a handle to those samples of `fs` that fit `expression`, over the columns id,
/// label, len, name and the typed ones, as `dlfs select --help` explains it: "label in (3, 7) and len < 4K". It is a
/// data set of its own, to be closed with dlfs_unmount, and shares the connections of `fs`, which
/// may be unmounted before. Reads the names first if the expression compares names. Any thread.
///
/// DLFS_E_INVALID: it is no such expression, and dlfs_last_error says at which character; or no
/// sample fits.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_select(
    fs: *const Fs,
    expression: *const c_char,
    view: *mut *mut Fs,
) -> c_int {
    // SAFETY: by the header `view` is NULL or a place for a handle, and `expression` NULL or ends
    // with NUL and does not change during the call.
    unsafe {
        handles::open(view, "view", || {
            let expression = utf8(expression, "expression")?;
            let mount = get(fs)?;
            let selected = mount.dataset.select(expression, &mut mount.stop.clone())?;
            Ok(viewed(&mount, selected))
        })
    }
}

/// As dlfs_select, for the samples with the `count` ids at `ids`, in any order.
///
/// DLFS_E_NOT_FOUND: one of them is no sample of `fs`. DLFS_E_INVALID: there are none.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_select_ids(
    fs: *const Fs,
    ids: *const u64,
    count: usize,
    view: *mut *mut Fs,
) -> c_int {
    // SAFETY: by the header `view` is NULL or a place for a handle, and `ids` has `count` elements
    // that do not change during the call.
    unsafe {
        handles::open(view, "view", || {
            let ids = structs::ids(ids, count)?;
            let mount = get(fs)?;
            Ok(viewed(&mount, mount.dataset.select_ids(ids)?))
        })
    }
}

/// As dlfs_select, for the samples in `part` of a keyed split into `shares`: "train=0.9,val=0.1". A
/// sample stays in its part when others are appended or deleted. `by`: DLFS_SPLIT_BY_...
///
/// DLFS_E_INVALID: the shares do not sum to 1, or there is no such part, or it has no sample.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_split(
    fs: *const Fs,
    shares: *const c_char,
    seed: u64,
    by: u32,
    part: *const c_char,
    view: *mut *mut Fs,
) -> c_int {
    // SAFETY: by the header `view` is NULL or a place for a handle, and strings are NULL or end with
    // NUL and do not change during the call.
    unsafe {
        handles::open(view, "view", || {
            let by = match by {
                DLFS_SPLIT_BY_ID => SplitBy::Id,
                DLFS_SPLIT_BY_NAME => SplitBy::Name,
                DLFS_SPLIT_BY_FOLDER => SplitBy::Folder,
                other => return Err(unknown("by", other)),
            };
            let split = Split::parse(utf8(shares, "shares")?, seed, by);
            let split = split.map_err(|error| Failure::invalid(error.to_string()))?;
            let part = utf8(part, "part")?;
            let mount = get(fs)?;
            let views = mount.dataset.split(&split, &mut mount.stop.clone())?;
            let found = views.iter().find(|named| named.name == part);
            let named = found
                .ok_or_else(|| Failure::invalid(format!("the split has no part called {part}")))?;
            Ok(viewed(&mount, mount.dataset.viewed(&named.view)?))
        })
    }
}

/// Saves the samples of `fs` as the view `name` in `file`, which it replaces: the option
/// `view` of dlfs_mount opens it. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_save_view(
    fs: *const Fs,
    file: *const c_char,
    name: *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: by the header strings are NULL or end with NUL and do not change during the call.
        let (file, name) = unsafe { (path(file, "path")?, utf8(name, "name")?.to_owned()) };
        let view = get(fs)?.dataset.as_view()?;
        Ok(save_views(file, vec![NamedView { name, made: "from C".to_owned(), view }])?)
    })
}

/// A mount of `dataset`, a view of the data set of `mount`.
fn viewed(mount: &Mount, dataset: Dataset) -> Mount {
    Mount {
        dataset,
        through_peers: Mutex::default(),
        connect: mount.connect.clone(),
        stop: mount.stop,
        division: mount.division,
    }
}
