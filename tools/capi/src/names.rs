//! Names: of one sample, and of all entries of a folder.

use std::ffi::{CString, c_char, c_int, c_void};

use dlfs::directory::EntryKind;
use dlfs::units::SampleId;

use crate::error::{DLFS_E_INTERRUPTED, Failure, guard};
use crate::mount::{Fs, mount_of};
use crate::structs::{give_text, optional_text};

/// The length of the longest name with its NUL, in bytes.
pub const DLFS_NAME_MAX: usize = 4097;

/// The id of a folder in dlfs_list.
pub const DLFS_FOLDER: u64 = u64::MAX;

/// Receives one entry of dlfs_list: its name, which is valid until the function returns, and its
/// id, or DLFS_FOLDER. A value other than zero ends the listing with DLFS_E_INTERRUPTED.
pub type Visit =
    Option<unsafe extern "C" fn(user: *mut c_void, name: *const c_char, id: u64) -> c_int>;

/// Copies the name of sample `id` and a NUL to `name`, which has `len` bytes; DLFS_NAME_MAX is
/// always enough.
///
/// `needed` may be NULL; otherwise it receives the length of the name with its NUL, also with
/// DLFS_E_TOO_SMALL, which leaves `name` unchanged. Reads the names at first use. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_name(
    fs: *const Fs,
    id: u64,
    name: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    guard(|| {
        let mount = mount_of(fs)?;
        let found = mount.dataset.name(SampleId(id), &mut mount.stop.clone())?;
        // SAFETY: by the header `name` is NULL or has `len` bytes, and `needed` is NULL or points to a
        // `size_t`.
        unsafe { give_text(&found, name, len, needed) }
    })
}

/// Calls `visit` for each entry of `folder`, in the order of names; NULL and "" are the top folder.
///
/// `recursive` 0: the direct entries, with subfolders as DLFS_FOLDER, by their names within the
/// folder; 1: all samples below the folder, by their full names. Reads the names at first use. Any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_list(
    fs: *const Fs,
    folder: *const c_char,
    recursive: c_int,
    visit: Visit,
    user: *mut c_void,
) -> c_int {
    guard(|| {
        let mount = mount_of(fs)?;
        let visit = visit.ok_or_else(|| Failure::invalid("visit is NULL"))?;
        // SAFETY: by the header `folder` is NULL or ends with NUL, and does not change during the
        // call.
        let folder = unsafe { optional_text(folder) }.unwrap_or_default();
        mount.dataset.load_names(&mut mount.stop.clone())?;
        let directory = mount.dataset.directory();
        let mut stopped = false;
        let mut show = |name: &[u8], id: u64| {
            let name = CString::new(name).unwrap_or_default(); // names have no zero byte
            // SAFETY: the caller's function with the caller's argument.
            stopped = unsafe { visit(user, name.as_ptr(), id) } != 0;
            !stopped
        };
        let listed = match recursive {
            0 => directory.for_each_in(folder, &mut |entry| match entry.kind {
                EntryKind::Folder => show(&entry.name, DLFS_FOLDER),
                EntryKind::Sample(id) => show(&entry.name, id.0),
            }),
            1 => directory.for_each_below(folder, &mut |id, name| show(name, id.0)),
            other => return Err(Failure::invalid(format!("recursive is {other}, not 0 or 1"))),
        };
        listed.map_err(dlfs::Error::from)?;
        if stopped {
            Err(Failure::new(DLFS_E_INTERRUPTED, "the listing was ended by its caller"))
        } else {
            Ok(())
        }
    })
}
