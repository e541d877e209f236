//! Samples as files: open, read, close.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use dlfs::dataset::{OnError, Query};
use dlfs::reader::Batch;
use dlfs::units::SampleId;

use crate::error::{DLFS_OK, Failure, guard, guard_long};
use crate::handles;
use crate::mount::{Fs, Mount, mount_of};
use crate::structs::{put, text};

/// An open sample: an opaque handle.
pub struct FileHandle(());

/// The object behind a file handle. It has no lock: a fork may happen at any time.
pub(crate) struct File {
    /// `None` in tests of the table alone.
    mount: Option<Arc<Mount>>,
    id: SampleId,
    /// The whole sample in a box of its own, once it was read; NULL before. Never changed once set.
    batch: AtomicPtr<Batch>,
    position: AtomicU64,
}

/// Opens the sample called `name`, and stores its handle in `*file`. Reads nothing, except the
/// names at first use. Any thread.
///
/// If samples have several fields, the file is the field named in dlfs_mount_options;
/// DLFS_E_INVALID: none was named. If the sample does not have that field, reading fails with
/// DLFS_E_NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_open(
    fs: *const Fs,
    name: *const c_char,
    file: *mut *mut FileHandle,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `file` is NULL or a place for a handle, and `name` is NULL or ends
        // with NUL and does not change during the call.
        unsafe {
            put(file, std::ptr::null_mut(), "file")?;
            let (mount, name) = (mount_of(fs)?, text(name, "name")?);
            let id = mount.dataset.lookup(name, &mut mount.stop.clone())?;
            put(file, open(mount, id)?, "file")?;
        }
        Ok(DLFS_OK)
    })
}

/// Opens the sample with this `id`; otherwise like dlfs_open. No I/O. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_open_id(fs: *const Fs, id: u64, file: *mut *mut FileHandle) -> c_int {
    guard(|| {
        // SAFETY: by the header `file` is NULL or a place for a handle.
        unsafe {
            put(file, std::ptr::null_mut(), "file")?;
            let mount = mount_of(fs)?;
            mount.dataset.len_bytes(SampleId(id))?;
            put(file, open(mount, SampleId(id))?, "file")?;
        }
        Ok(DLFS_OK)
    })
}

/// Reads up to `len` bytes from the end of the last dlfs_read of this handle, like read(2): returns
/// their number, 0 at the end, or an error number.
///
/// The first read fetches and verifies the whole sample; later ones copy from it. A failed call
/// does not move the position. Any thread; threads that read from one handle get different ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_read(file: *const FileHandle, buf: *mut c_void, len: usize) -> i64 {
    guard_long(|| {
        let file = handles::get::<File>(file.cast())?;
        if buf.is_null() && len > 0 {
            return Err(Failure::invalid("buf is NULL"));
        }
        let bytes = file.bytes()?;
        let take = |position: u64| Some(position + part(bytes, position, len).len() as u64);
        let from = file.position.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        let from = from.unwrap_or_default(); // `take` never refuses
        // SAFETY: by the header `buf` has `len` bytes, and `part` returns at most the `len` bytes
        // requested.
        unsafe { copy(part(bytes, from, len), buf) }
    })
}

/// Reads up to `len` bytes at `offset`, like pread(2): returns their number, 0 at and after the
/// end, or an error number. Does not move the position of dlfs_read. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_pread(
    file: *const FileHandle,
    buf: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    guard_long(|| {
        let file = handles::get::<File>(file.cast())?;
        // SAFETY: by the header `buf` has `len` bytes, and `part` returns at most the `len` bytes
        // requested.
        unsafe { copy(part(file.bytes()?, offset, len), buf) }
    })
}

/// Closes the handle and releases its memory. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_close(file: *mut FileHandle) -> c_int {
    guard(|| handles::remove::<File>(file.cast::<c_void>()).map(|_| DLFS_OK))
}

fn open(mount: Arc<Mount>, id: SampleId) -> Result<*mut FileHandle, Failure> {
    mount.division.check_one(mount.dataset.fields())?;
    let batch = AtomicPtr::new(null_mut());
    let file = File { mount: Some(mount), id, batch, position: AtomicU64::new(0) };
    Ok(handles::insert(file)?.cast())
}

fn part(bytes: &[u8], from: u64, len: usize) -> &[u8] {
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
    &bytes[from..from.saturating_add(len).min(bytes.len())]
}

/// # Safety
/// `buf` has room for `bytes`, or there are none.
unsafe fn copy(bytes: &[u8], buf: *mut c_void) -> Result<i64, Failure> {
    if bytes.is_empty() {
        return Ok(0);
    }
    if buf.is_null() {
        return Err(Failure::invalid("buf is NULL"));
    }
    // SAFETY: not NULL, and the caller promises as many bytes at `buf` as `bytes` has; the source
    // is the library's own memory, so the two do not overlap.
    unsafe { buf.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(bytes.len() as i64)
}

impl File {
    /// The sample's bytes, read at first use. If two threads read them at the same time, one copy
    /// is kept.
    fn bytes(&self) -> Result<&[u8], Failure> {
        let mount = self.mount.as_ref().ok_or_else(|| Failure::invalid("no data set"))?;
        if let Some(batch) = self.batch() {
            return mount.division.shown(batch.bytes(0));
        }
        let (wanted, stop) = ([self.id], &mut mount.stop.clone());
        let read = mount.dataset.read(Query::Ids(&wanted), OnError::Raise, stop)?;
        let mine = Box::into_raw(Box::new(read.batch));
        let (set, seen) = (Ordering::AcqRel, Ordering::Acquire);
        if self.batch.compare_exchange(null_mut(), mine, set, seen).is_err() {
            // SAFETY: it was allocated above and nobody else has it; the other thread's copy is
            // equal.
            drop(unsafe { Box::from_raw(mine) });
        }
        self.batch().map_or(Ok(&[]), |batch| mount.division.shown(batch.bytes(0)))
    }

    fn batch(&self) -> Option<&Batch> {
        // SAFETY: NULL or a box that `bytes` has set and that stays until this is dropped.
        unsafe { self.batch.load(Ordering::Acquire).as_ref() }
    }

    #[cfg(test)]
    pub(crate) fn of_nothing() -> File {
        let (batch, position) = (AtomicPtr::new(null_mut()), AtomicU64::new(0));
        File { mount: None, id: SampleId(0), batch, position }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let batch = *self.batch.get_mut();
        if !batch.is_null() {
            // SAFETY: a box that `bytes` has set, and nobody has a reference to it any more.
            drop(unsafe { Box::from_raw(batch) });
        }
    }
}
