//! Files that are opened in place, so that calls that are not interposed read correctly, too.
//!
//! - Of a plain folder without tiers, all files; of a FUSE mount, long files. The kernel reads them, and reads are only
//!   counted.
//! - Of a plain folder with tiers, long files. `read` and `pread` go through the tiers in pieces, and the tiers fetch
//!   the rest in the background. A mapping is of the file itself, since the library cannot see which pages are read; it
//!   only makes the tiers fetch the rest. Once a tier in a folder has the whole file as one file, a later open gives a
//!   descriptor of that copy, and the kernel reads it.
//!
//! A bit for each descriptor number tells only that the number *may* be such a file. If it is set, `fstat`
//! shows whether the file behind the number is still the same. So `close`, `dup` and `fork` need not be
//! intercepted: if a descriptor is missed here, the kernel reads the file itself. The kernel also keeps the position.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_long};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use dlfs::dataset::SampleFile;
use dlfs::posix::{self, Node};
use dlfs::process::Forked;
use dlfs::qpair::folder::LentFile;

use crate::inside;
use crate::memfd::{Kept, Memory};
use crate::mounts::{Mount, Opened};
use crate::syscalls::{self, called};

/// A file that was opened in place.
pub(crate) struct InPlaceFile {
    mount: &'static Mount,
    file: posix::File,
    /// Device and inode number.
    identity: (u64, u64),
    /// Time of the last modification, in seconds and nanoseconds, and length.
    stamp: (i64, i64, i64),
    bytes: Bytes,
    /// Held from reading the descriptor's position until setting it.
    position: Forked<Mutex<()>>,
}

/// The way to read the file's bytes.
enum Bytes {
    /// Through the tiers. The descriptor is of the file with this index in the plain folder.
    Tiers { index: usize, reads: SampleFile },
    /// By the kernel: the descriptor is of the copy in this tier; without a tier, of the folder's own file or
    /// of the file in the FUSE mount.
    Kernel { tier: Option<u8> },
}

/// The files by descriptor.
type Table = Mutex<HashMap<c_int, Arc<InPlaceFile>>>;

/// The table of this process; a forked child begins with a copy of its parent's.
static TABLE: Forked<Table> = Forked::empty();
/// The descriptors that may be in the table, as a bit set.
static MAY_BE: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

impl Mount {
    /// Remembers that `fd` is the file in the plain folder or in the FUSE mount. The caller is
    /// [inside](inside::run).
    pub(crate) fn remember(
        &'static self,
        opened: &'static Opened,
        fd: c_int,
        file: posix::File,
        flags: c_int,
    ) {
        let Some(stat) = syscalls::stat_of(fd).filter(|_| may_hold(fd)) else { return };
        let by_tiers = opened.is_tiered_folder() && flags & (libc::O_DIRECT | libc::O_PATH) == 0;
        let bytes = by_tiers.then(|| through_tiers(opened, fd, file)).flatten();
        self.note(fd, file, &stat, bytes.unwrap_or(Bytes::Kernel { tier: None }));
    }

    /// A descriptor of a tier's copy of the file; `None`: no tier has a complete copy. The caller is
    /// [inside](inside::run).
    pub(crate) fn open_copy(
        &'static self,
        opened: &'static Opened,
        file: posix::File,
        flags: c_int,
    ) -> Option<c_int> {
        if !opened.is_tiered_folder() {
            return None;
        }
        let open = |path: &std::path::Path| {
            let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EIO)?;
            Memory::open(&path, flags)
        };
        let (tier, copy) = opened.files.open_copy(file, open)?;
        let copy = copy.ok()?;
        let stat = syscalls::stat_of(copy.0);
        if let Some(stat) = stat.filter(|_| flags & libc::O_PATH == 0 && may_hold(copy.0)) {
            self.note(copy.0, file, &stat, Bytes::Kernel { tier: Some(tier) });
        }
        Some(copy.into_fd())
    }

    /// Adds a file that was opened as `fd` to the table.
    fn note(&'static self, fd: c_int, file: posix::File, stat: &libc::stat, bytes: Bytes) {
        let identity = syscalls::identity_of(stat);
        let stamp = stamp_of(stat);
        let position = Forked::empty();
        insert(fd, Arc::new(InPlaceFile { mount: self, file, identity, stamp, bytes, position }));
    }
}

/// Adds `fd` to the table.
fn insert(fd: c_int, file: Arc<InPlaceFile>) {
    lock(table()).insert(fd, file);
    MAY_BE[fd as usize / 64].fetch_or(1 << (fd % 64), Ordering::Release);
}

/// Prepares to read a file of the plain folder, open as `fd`, through the tiers. Lends the folder a duplicate of `fd`,
/// with which it reads the file for the tiers.
fn through_tiers(opened: &Opened, fd: c_int, file: posix::File) -> Option<Bytes> {
    let (folder, index) = opened.files.listed(file)?;
    let reads = opened.files.dataset().open_sample(file.id, None, &mut ()).ok()?;
    // The duplicate cannot have the library's mark, which the program's descriptor would share. So the program may
    // close it.
    if let Some(lent) = Kept::new(fd, MOST / 2) {
        folder.lend(index, Arc::new(lent));
    }
    Some(Bytes::Tiers { index, reads })
}

/// Records that `new` is a duplicate of `old`. Does nothing in a child between `vfork` and `exec`: it uses the table of
/// the parent, in which `new` is another file.
pub(crate) fn duplicated(old: c_int, new: c_int) {
    if may_be(old) && may_hold(new) && !inside::is_inside() && !inside::borrows_memory() {
        let before = syscalls::errno();
        if let Some(found) = find(old) {
            insert(new, found);
        }
        syscalls::set_errno(before);
    }
}

/// Closes the library's duplicate before the program locks `fd`: all duplicates share the lock, and it would
/// stay until the last of them is closed.
pub(crate) fn before_lock(fd: c_int) {
    if !may_be(fd) || inside::is_inside() {
        return;
    }
    let before = syscalls::errno();
    let folder = |mount: &Mount| mount.if_opened()?.files.dataset().image().folder();
    if let Some(found) = find(fd)
        && let Bytes::Tiers { index, .. } = found.bytes
        && let Some(folder) = folder(found.mount)
    {
        folder.take_back(index);
    }
    syscalls::set_errno(before);
}

/// The mount and the node behind the descriptor, if it is a file opened in place.
pub(crate) fn node_behind(fd: c_int) -> Option<(&'static Mount, Node)> {
    if !may_be(fd) {
        return None;
    }
    find(fd).map(|found| (found.mount, Node::File(found.file)))
}

/// As `readv` or `preadv`, counted, and through the tiers if there are any. `None`: the C library's function must
/// read, since `fd` is not a file opened in place, or this read failed.
///
/// # Safety
/// `parts` points to `count` parts, each with as many bytes as it says.
#[inline]
pub(crate) unsafe fn read(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    at: Option<i64>,
) -> Option<isize> {
    if !may_be(fd) || parts.is_null() || !(1..=libc::UIO_MAXIOV).contains(&count) {
        return None;
    }
    // SAFETY: `parts` has `count` parts with the bytes that they name, as the caller promises.
    unsafe { read_all(fd, std::slice::from_raw_parts(parts, count as usize), at) }
}

/// As [`read`], for a file that may be in the table.
///
/// # Safety
/// Each part has as many bytes as it says.
#[cold]
unsafe fn read_all(fd: c_int, parts: &[libc::iovec], at: Option<i64>) -> Option<isize> {
    if inside::is_inside() {
        return None;
    }
    let result = inside::run(|| {
        let found = find(fd).ok_or(libc::EBADF)?;
        let reads = match &found.bytes {
            Bytes::Tiers { reads, .. } => reads,
            // SAFETY: each part has its bytes, as the caller promises.
            Bytes::Kernel { tier } => return unsafe { found.read_by_kernel(*tier, fd, parts, at) },
        };
        if let Some(at) = at {
            // A negative position is EINVAL, as in the kernel.
            let at = u64::try_from(at).map_err(|_| libc::EINVAL)?;
            // SAFETY: as above.
            return unsafe { found.fill(reads, parts, at) };
        }
        let lock = found.position.get_or_init(Mutex::default);
        let _held = lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let from = seek(fd, 0, libc::SEEK_CUR)?;
        // SAFETY: as above.
        let read = unsafe { found.fill(reads, parts, from as u64) }?;
        if read > 0 {
            seek(fd, from + read as c_long, libc::SEEK_SET)?;
        }
        if from as u64 + read as u64 >= reads.len_bytes() {
            reads.release(); // the file was read to its end
        }
        Ok(read)
    });
    // After any failure, the kernel reads the bytes from the file itself.
    result.ok()
}

impl InPlaceFile {
    /// Reads into `parts` through the tiers, from byte `at` of the file on.
    ///
    /// # Safety
    /// Each part has as many bytes as it says.
    unsafe fn fill(
        &self,
        reads: &SampleFile,
        parts: &[libc::iovec],
        at: u64,
    ) -> Result<isize, c_int> {
        let mut done = 0_usize;
        for part in parts {
            let len = part.iov_len.min(MOST_BYTES - done);
            if len == 0 {
                continue;
            }
            if part.iov_base.is_null() {
                return Err(libc::EFAULT); // the kernel then reads, and answers as it does
            }
            // SAFETY: the part has at least `len` bytes, as the caller promises. They may be uninitialised, but
            // are only written here.
            let out = unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), len) };
            let read = reads.read_at(at + done as u64, out, &mut ());
            let read = read.map_err(|error| crate::mounts::errno_of(&error))?;
            done += read;
            if read < len {
                break;
            }
        }
        let opened = self.mount.if_opened();
        opened.into_iter().for_each(|opened| opened.files.counters().read(done as u64));
        Ok(done as isize)
    }

    /// Makes the kernel read, and counts the read.
    ///
    /// # Safety
    /// Each part has as many bytes as it says.
    unsafe fn read_by_kernel(
        &self,
        tier: Option<u8>,
        fd: c_int,
        parts: &[libc::iovec],
        at: Option<i64>,
    ) -> Result<isize, c_int> {
        let began = Instant::now();
        let first = parts.as_ptr();
        let count = parts.len();
        // SAFETY: the kernel writes to the `count` parts at `first`, which have their bytes, as the caller promises.
        let read = called(unsafe {
            match at {
                Some(at) => libc::syscall(libc::SYS_preadv, fd, first, count, at, 0),
                None => libc::syscall(libc::SYS_readv, fd, first, count),
            }
        })?;
        let Some(opened) = self.mount.if_opened() else { return Ok(read as isize) };
        opened.files.counters().read(read as u64);
        match tier.zip(opened.files.dataset().image().tiers()) {
            Some((tier, tiers)) => tiers.count_read(tier, read as usize, began.elapsed()),
            None if opened.folder.is_some() => opened.origin().read(read as u64),
            None => {}
        }
        Ok(read as isize)
    }
}

/// Notes that `fd` is being mapped from byte `at` on: if the file is read through tiers, makes them copy it in
/// the background.
#[inline]
pub(crate) fn mapped(fd: c_int, at: i64) {
    if may_be(fd) {
        read_one(fd, at);
    }
}

/// Reads one byte, which makes the tiers fetch the whole file.
#[cold]
fn read_one(fd: c_int, at: i64) {
    if inside::is_inside() {
        return;
    }
    let read = inside::run(|| {
        let found = find(fd).ok_or(libc::EBADF)?;
        let Bytes::Tiers { reads, .. } = &found.bytes else { return Ok(()) };
        let at = u64::try_from(at).map_err(|_| libc::EINVAL)?;
        let read = reads.read_at(at, &mut [0], &mut ());
        reads.release();
        read.map(|_| ()).map_err(|error| crate::mounts::errno_of(&error))
    });
    let _ = read; // without a copy the mapping is still correct
}

/// The file that was opened as `fd`, if `fd` is still that file and the file is unchanged. Forgets `fd` if it is
/// another file now.
fn find(fd: c_int) -> Option<Arc<InPlaceFile>> {
    let stat = syscalls::stat_of(fd)?;
    let mut table = lock(table());
    let file = table.get(&fd)?;
    if file.identity == syscalls::identity_of(&stat) {
        return (file.stamp == stamp_of(&stat)).then(|| Arc::clone(file));
    }
    table.remove(&fd);
    MAY_BE[fd as usize / 64].fetch_and(!(1 << (fd % 64)), Ordering::Release);
    None
}

/// The table, which the first call makes.
fn table() -> &'static Table {
    TABLE.get_or_init(|| {
        // A forked child inherits its parent's descriptors.
        let known = TABLE.inherited().and_then(|table| table.try_lock().ok());
        Mutex::new(known.map_or_else(HashMap::new, |known| known.clone()))
    })
}

/// Locks the table, also after a panic.
fn lock(table: &Table) -> MutexGuard<'_, HashMap<c_int, Arc<InPlaceFile>>> {
    table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns whether `fd` may be in the table.
#[inline]
fn may_be(fd: c_int) -> bool {
    let bits = MAY_BE.get(fd as usize / 64).map_or(0, |bits| bits.load(Ordering::Relaxed));
    bits & (1 << (fd & 63)) != 0
}

/// Returns whether the table can have `fd`.
fn may_hold(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd < MOST)
}

/// See [`InPlaceFile::stamp`].
fn stamp_of(stat: &libc::stat) -> (i64, i64, i64) {
    (stat.st_mtime, stat.st_mtime_nsec, stat.st_size)
}

/// Moves the position of `fd`; returns the new one.
fn seek(fd: c_int, by: c_long, from: c_int) -> Result<c_long, c_int> {
    // SAFETY: the call touches no memory.
    called(unsafe { libc::syscall(libc::SYS_lseek, fd, by, from) })
}

impl LentFile for Kept {
    fn with(&self, work: &mut dyn FnMut(&File)) {
        if let Some(fd) = self.descriptor() {
            work(&syscalls::file_of(fd));
        }
    }
}

/// Descriptors with this number or above are not remembered.
const MOST: usize = 1 << 16;
/// The most that one read returns, as in the kernel.
const MOST_BYTES: usize = 0x7fff_f000;
