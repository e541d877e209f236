//! One sample as a file: open, read, close.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use dlfs::dataset::{OnError, Wanted};
use dlfs::reader::Batch;
use dlfs::units::SampleId;

use crate::error::{DLFS_OK, Failure, guard, guard_long};
use crate::handles;
use crate::mount::{Fs, Mount, mount_of};
use crate::structs::{put, text};

/// An open sample. Never looked into: a handle.
pub struct FileHandle(());

/// What a file handle stands for. No lock: a fork may come at any time.
pub(crate) struct File {
    /// `None` in tests of the table alone.
    mount: Option<Arc<Mount>>,
    id: SampleId,
    /// The whole sample in a box of its own, once something has read from it; NULL before, and once set
    /// the same to the end.
    batch: AtomicPtr<Batch>,
    position: AtomicU64,
}

/// Opens the sample called `name` and gives its handle in `*file`. Reads nothing but, once, the names.
/// Any thread.
///
/// Where samples have several fields, the file is the one that dlfs_mount_options named; DLFS_E_INVALID:
/// none was named. A sample that does not have it fails with DLFS_E_NOT_FOUND when it is read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_open(
    fs: *const Fs,
    name: *const c_char,
    file: *mut *mut FileHandle,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `file` is NULL or a place for a handle, and `name` is NULL or ends with NUL
        // and stays as it is during the call.
        unsafe {
            put(file, std::ptr::null_mut(), "file")?;
            let (mount, name) = (mount_of(fs)?, text(name, "name")?);
            let id = mount.dataset.lookup(name, &mut mount.stop.clone())?;
            put(file, open(mount, id)?, "file")?;
        }
        Ok(DLFS_OK)
    })
}

/// Opens the sample `id`, as dlfs_open does. No I/O. Any thread.
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

/// Reads up to `len` bytes from where the last dlfs_read of this handle ended, as read(2) does: returns
/// how many, 0 at the end, or an error's number.
///
/// The first read brings the whole sample, verified, and later ones copy from it. A call that fails
/// does not move where the next goes on. Any thread; threads that read from one handle get different
/// parts.
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
        // SAFETY: by the header `buf` has `len` bytes, and a part is no longer than the `len` that it was
        // asked for.
        unsafe { copy(part(bytes, from, len), buf) }
    })
}

/// Reads up to `len` bytes from byte `offset` on, as pread(2) does: returns how many, 0 at and past the
/// end, or an error's number. Does not move where dlfs_read goes on. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_pread(
    file: *const FileHandle,
    buf: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    guard_long(|| {
        let file = handles::get::<File>(file.cast())?;
        // SAFETY: by the header `buf` has `len` bytes, and a part is no longer than the `len` that it was
        // asked for.
        unsafe { copy(part(file.bytes()?, offset, len), buf) }
    })
}

/// Closes the handle and gives its memory back. Any thread.
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
    // SAFETY: not NULL, and the caller promises as many bytes behind `buf` as `bytes` are; what is copied is
    // the library's own memory, so the two do not overlap.
    unsafe { buf.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(bytes.len() as i64)
}

impl File {
    /// The sample's bytes, read by whoever asks first. Two threads may both read them; one copy stays.
    fn bytes(&self) -> Result<&[u8], Failure> {
        let mount = self.mount.as_ref().ok_or_else(|| Failure::invalid("no data set"))?;
        if let Some(batch) = self.batch() {
            return mount.division.shown(batch.bytes(0));
        }
        let (wanted, stop) = ([self.id], &mut mount.stop.clone());
        let read = mount.dataset.read(Wanted::Ids(&wanted), OnError::Raise, stop)?;
        let mine = Box::into_raw(Box::new(read.batch));
        let (set, seen) = (Ordering::AcqRel, Ordering::Acquire);
        if self.batch.compare_exchange(null_mut(), mine, set, seen).is_err() {
            // SAFETY: it was made above and nobody else has it; another thread's is as good.
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
