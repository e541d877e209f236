//! Samples as files, which are read like those of POSIX.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlfs::dataset::SampleFile;
use dlfs::units::SampleId;
use once_cell::race::OnceBox;

use crate::error::{Failure, guard, guard_long};
use crate::handles::{self, Handle, get};
use crate::mount::{Fs, Mount};
use crate::structs::text;

/// An open sample: an opaque handle.
pub struct FileHandle(());

/// The object behind a file handle. No call waits for a lock of it, since a fork may happen at any time.
pub(crate) struct File {
    mount: Arc<Mount>,
    id: SampleId,
    /// The open sample, after the first read. Never changed once set.
    opened: OnceBox<SampleFile>,
    /// The offset of the next dlfs_read in the sample, in bytes.
    position: AtomicU64,
}

/// Opens the sample called `name`, and stores its handle in `*file`. Reads nothing, except the
/// names at first use. Any thread.
///
/// If samples have several fields, the file is the field named in dlfs_mount_options;
/// DLFS_E_INVALID: none was named. If the sample does not have that field, reading fails with
/// DLFS_E_NOT_FOUND.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_open(
    fs: *const Fs,
    name: *const c_char,
    file: *mut *mut FileHandle,
) -> c_int {
    // SAFETY: by the header `file` is NULL or a place for a handle, and `name` is NULL or ends
    // with NUL and does not change during the call.
    unsafe {
        handles::open(file, "file", || {
            let mount = get(fs)?;
            let id = mount.dataset.lookup(text(name, "name")?, &mut mount.stop.clone())?;
            File::new(mount, id)
        })
    }
}

/// Opens the sample with this `id`; otherwise like dlfs_open. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_open_id(fs: *const Fs, id: u64, file: *mut *mut FileHandle) -> c_int {
    // SAFETY: by the header `file` is NULL or a place for a handle.
    unsafe {
        handles::open(file, "file", || {
            let mount = get(fs)?;
            mount.dataset.len_bytes(SampleId(id))?;
            File::new(mount, SampleId(id))
        })
    }
}

/// Reads up to `len` bytes from the end of the last dlfs_read of this handle, like read(2): returns
/// their number, 0 at the end, or an error number.
///
/// A sample up to 1 MiB is read and verified whole at first use, and later calls copy from it. Of a
/// larger one, verified pieces of 256 KiB are read, and further ahead the longer it is read in
/// sequence; the handle keeps up to 8 MiB. A failed call does not move the position. Any thread;
/// threads that read from one handle get different ranges.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_read(file: *const FileHandle, buf: *mut c_void, len: usize) -> i64 {
    guard_long(|| {
        let file = get(file)?;
        if buf.is_null() && len > 0 {
            return Err(Failure::invalid("buf is NULL"));
        }
        let mut position = file.position.load(Ordering::Acquire);
        loop {
            // SAFETY: by the header `buf` has `len` bytes.
            let got = unsafe { file.read_at(buf, len, position)? };
            let set = Ordering::AcqRel;
            let seen = Ordering::Acquire;
            let end = position + got.cast_unsigned();
            // Another thread may have taken these bytes meanwhile: then this one reads those behind.
            match file.position.compare_exchange(position, end, set, seen) {
                Ok(_) => return Ok(got),
                Err(moved) => position = moved,
            }
        }
    })
}

/// Reads up to `len` bytes at `offset`, like pread(2): returns their number, 0 at and after the
/// end, or an error number. Does not move the position of dlfs_read. Any thread.
///
/// Of a sample of more than 1 MiB it reads and verifies only the pieces of 256 KiB that the range
/// touches. DLFS_E_CORRUPT: one of these is damaged; other parts may be readable. Images of earlier
/// releases have no checksums of pieces: the first call for a sample reads it whole once. Parts of a
/// file of a plain folder are not verified.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_pread(
    file: *const FileHandle,
    buf: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    guard_long(|| {
        let file = get(file)?;
        // SAFETY: by the header `buf` has `len` bytes.
        unsafe { file.read_at(buf, len, offset) }
    })
}

/// Closes the handle and releases its memory. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_close(file: *mut FileHandle) -> c_int {
    guard(|| handles::remove(file).map(drop))
}

impl Handle for FileHandle {
    type Object = File;
    const NAME: &str = "file";
}

impl File {
    fn new(mount: Arc<Mount>, id: SampleId) -> Result<File, Failure> {
        mount.division.check_one(mount.dataset.directory().fields())?;
        Ok(File { mount, id, opened: OnceBox::new(), position: AtomicU64::new(0) })
    }

    /// Reads up to `len` bytes at `offset` into `buf`.
    ///
    /// # Safety
    /// `buf` is NULL or has `len` bytes.
    unsafe fn read_at(&self, buf: *mut c_void, len: usize, offset: u64) -> Result<i64, Failure> {
        let opened = self.opened()?;
        let len = opened.len_bytes().saturating_sub(offset).min(len as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        if buf.is_null() {
            return Err(Failure::invalid("buf is NULL"));
        }
        // SAFETY: not NULL; the caller promises at least `len` bytes there, which nobody else uses during the
        // call.
        let buf = unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), len) };
        let got = opened.read_at(offset, buf, &mut self.mount.stop.clone())?;
        Ok(got as i64)
    }

    /// The open sample. If two threads open it at the same time, one of them is kept.
    fn opened(&self) -> Result<&SampleFile, Failure> {
        self.opened.get_or_try_init(|| {
            let Mount { dataset, division, stop, .. } = &*self.mount;
            Ok(Box::new(dataset.open_sample(self.id, division.chosen, &mut stop.clone())?))
        })
    }
}
