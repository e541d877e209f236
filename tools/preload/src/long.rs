//! Long files of a plain folder with tiers: the descriptor is the file's own, so that whatever is not interposed is
//! right; `read`, `pread` and `mmap` of it go through the tiers, in pieces, and the tiers fetch the rest behind. Once a
//! tier in a folder has all of it as a file of its own, the descriptor is that file's: then all is the kernel's, and
//! reads are only counted.
//!
//! No state says what a descriptor is, only what it may be: a bit for each number that was given out. Where it is
//! set, the kernel says whether the file behind the number is still that one. So `close`, `dup` and `fork` need not
//! be seen: what this misses, the kernel reads from the file itself. The position is the kernel's, too.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_long, c_void};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use std::sync::Mutex;
use std::time::Instant;

use dlfs::dataset::SampleFile;
use dlfs::posix::{self, Node};
use dlfs::process::Forked;
use dlfs::qpair::folder::LentFile;

use crate::files::{self, Memory};
use crate::mounts::{Mount, Opened};
use crate::own::{self, called, most_descriptors};

/// What a descriptor was opened for.
pub(crate) struct Long {
    mount: &'static Mount,
    file: posix::File,
    /// The device and the inode number.
    identity: (u64, u64),
    /// The time of its last change, and its length.
    stamp: (i64, i64, i64),
    bytes: Bytes,
    /// Held from where the position is asked to where it is set.
    position: Forked<Mutex<()>>,
}

/// How its bytes are read.
enum Bytes {
    /// Through the tiers. The descriptor is that of the folder's file with this number.
    Tiers { index: usize, reads: SampleFile },
    /// By the kernel: the descriptor is that of the copy in this tier.
    Copy { tier: u8 },
}

/// By descriptor.
type Table = Mutex<HashMap<c_int, Arc<Long>>>;

static TABLE: Forked<Table> = Forked::empty();
/// Which descriptors may be in the table.
static MAY_BE: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

impl Mount {
    /// Remembers that `fd` is the folder's own file, if its reads can go through the tiers. The caller is
    /// [inside](own::inside).
    pub(crate) fn remember(
        &'static self,
        opened: &'static Opened,
        fd: c_int,
        file: posix::File,
        flags: c_int,
    ) {
        if flags & (libc::O_DIRECT | libc::O_PATH) != 0 || !may_hold(fd) {
            return;
        }
        let dataset = opened.files.dataset();
        let Some(stat) = files::stat_of(fd) else { return };
        let identity = (stat.st_dev, stat.st_ino);
        let folder = dataset.image().folder();
        let offset = dataset.directory().extent(file.id).map(|extent| extent.offset_bytes);
        let index = folder.zip(offset).and_then(|(folder, at)| folder.index_at(at));
        let (Some(folder), Some(index)) = (folder, index) else { return };
        // Another file, if the name leads elsewhere by now.
        if folder.identity_of(index) != identity {
            return;
        }
        let Ok(reads) = dataset.open_sample(file.id, None, &mut ()) else { return };
        if reads.len_bytes() != stat.st_size as u64 {
            return;
        }
        if let Some(lent) = Lent::new(fd, identity) {
            folder.lend(index, Arc::new(lent));
        }
        self.note(fd, file, &stat, Bytes::Tiers { index, reads });
    }

    /// A descriptor of the file that a tier keeps as its copy, if it has all of it. The caller is
    /// [inside](own::inside).
    pub(crate) fn open_copy(
        &'static self,
        opened: &'static Opened,
        file: posix::File,
        flags: c_int,
    ) -> Option<c_int> {
        if !opened.has_tiers() {
            return None;
        }
        let open = |path: &std::path::Path| {
            let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EIO)?;
            Memory::open(&path, flags)
        };
        let (tier, copy) = opened.files.open_copy(file, open)?;
        let copy = copy.ok()?;
        let stat = files::stat_of(copy.fd());
        if let Some(stat) = stat.filter(|_| flags & libc::O_PATH == 0 && may_hold(copy.fd())) {
            self.note(copy.fd(), file, &stat, Bytes::Copy { tier });
        }
        Some(copy.into_fd())
    }

    fn note(&'static self, fd: c_int, file: posix::File, stat: &libc::stat, bytes: Bytes) {
        let (identity, stamp) = ((stat.st_dev, stat.st_ino), stamp_of(stat));
        let position = Forked::empty();
        let long = Long { mount: self, file, identity, stamp, bytes, position };
        lock(table()).insert(fd, Arc::new(long));
        MAY_BE[fd as usize / 64].fetch_or(1 << (fd % 64), Ordering::Release);
    }
}

/// Says that `new` is what `old` is.
pub(crate) fn duplicated(old: c_int, new: c_int) {
    if may_be(old) && may_hold(new) && !own::is_inside() {
        let before = own::errno();
        if let Some(long) = find(old) {
            lock(table()).insert(new, long);
            MAY_BE[new as usize / 64].fetch_or(1 << (new % 64), Ordering::Release);
        }
        own::set_errno(before);
    }
}

/// Closes the library's duplicate before the program locks `fd`: the lock belongs to all duplicates, and would stay as
/// long as the last of them.
pub(crate) fn before_lock(fd: c_int) {
    if !may_be(fd) || own::is_inside() {
        return;
    }
    let before = own::errno();
    let folder = |mount: &Mount| mount.if_opened()?.files.dataset().image().folder();
    if let Some(long) = find(fd)
        && let Bytes::Tiers { index, .. } = long.bytes
        && let Some(folder) = folder(long.mount)
    {
        folder.take_back(index);
    }
    own::set_errno(before);
}

/// What the descriptor stands for, if it is a long file.
pub(crate) fn identity(fd: c_int) -> Option<(&'static Mount, Node)> {
    if !may_be(fd) {
        return None;
    }
    find(fd).map(|long| (long.mount, Node::File(long.file)))
}

/// As `read` or `pread`, through the tiers. `None`: not ours, or better read by the kernel.
///
/// # Safety
/// `out` has `len` bytes.
#[inline]
pub(crate) unsafe fn read(
    fd: c_int,
    out: *mut c_void,
    len: usize,
    at: Option<i64>,
) -> Option<isize> {
    if !may_be(fd) {
        return None;
    }
    let iov = libc::iovec { iov_base: out, iov_len: len };
    // SAFETY: the caller's promise.
    unsafe { read_all(fd, &[iov], at) }
}

/// As `readv` or `preadv`, through the tiers. `None`: not ours, or better read by the kernel.
///
/// # Safety
/// `parts` are `count`, each with its length.
#[inline]
pub(crate) unsafe fn read_parts(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    at: Option<i64>,
) -> Option<isize> {
    if !may_be(fd) || parts.is_null() || !(1..=libc::UIO_MAXIOV).contains(&count) {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { read_all(fd, std::slice::from_raw_parts(parts, count as usize), at) }
}

/// # Safety
/// Each part has its length.
#[cold]
unsafe fn read_all(fd: c_int, parts: &[libc::iovec], at: Option<i64>) -> Option<isize> {
    if own::is_inside() {
        return None;
    }
    let result = own::inside(|| {
        let long = find(fd).ok_or(libc::EBADF)?;
        let reads = match &long.bytes {
            Bytes::Tiers { reads, .. } => reads,
            // SAFETY: the caller's promise.
            Bytes::Copy { tier } => return unsafe { long.read_copy(*tier, fd, parts, at) },
        };
        if let Some(at) = at {
            // The kernel refuses a negative one.
            let at = u64::try_from(at).map_err(|_| libc::EINVAL)?;
            // SAFETY: the caller's promise.
            return unsafe { long.fill(reads, parts, at) };
        }
        let lock = long.position.get_or_init(Mutex::default);
        let _held = lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let from = seek(fd, 0, libc::SEEK_CUR)?;
        // SAFETY: as above.
        let read = unsafe { long.fill(reads, parts, from as u64) }?;
        if read > 0 {
            seek(fd, from + read as c_long, libc::SEEK_SET)?;
        }
        if from as u64 + read as u64 >= reads.len_bytes() {
            reads.release(); // it was read to its end
        }
        Ok(read)
    });
    // Whatever has failed, the kernel knows the file's bytes as they are.
    result.ok()
}

impl Long {
    /// # Safety
    /// Each part has its length.
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
            // SAFETY: the caller's promise. The bytes may never have been written; they are only written here.
            let out = unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), len) };
            let read = reads.read_at(at + done as u64, out, &mut ());
            let read = read.map_err(|error| crate::mounts::errno_of(&error))?;
            done += read;
            if read < len {
                break;
            }
        }
        self.count(done as u64);
        Ok(done as isize)
    }

    /// As the kernel does, and counts it.
    ///
    /// # Safety
    /// Each part has its length.
    unsafe fn read_copy(
        &self,
        tier: u8,
        fd: c_int,
        parts: &[libc::iovec],
        at: Option<i64>,
    ) -> Result<isize, c_int> {
        let (began, first, count) = (Instant::now(), parts.as_ptr(), parts.len());
        // SAFETY: the caller's promise.
        let read = called(unsafe {
            match at {
                Some(at) => libc::syscall(libc::SYS_preadv, fd, first, count, at, 0),
                None => libc::syscall(libc::SYS_readv, fd, first, count),
            }
        })?;
        self.count(read as u64);
        let dataset = self.mount.if_opened().map(|opened| opened.files.dataset());
        if let Some(tiers) = dataset.and_then(|dataset| dataset.image().tiers()) {
            tiers.count_read(tier, read as usize, began.elapsed());
        }
        Ok(read as isize)
    }

    fn count(&self, bytes: u64) {
        let counters = &self.mount.counters;
        counters.reads.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Memory with the `len` bytes of the file at `at`, or fewer where it ends.
    fn copy(&self, reads: &SampleFile, at: u64, len: u64) -> Result<Memory, c_int> {
        let len = len.min(reads.len_bytes().saturating_sub(at));
        let memory = Memory::new(c"dlfs-map", libc::O_CLOEXEC)?;
        let mut piece = vec![0; len.min(PIECE_BYTES) as usize];
        let mut done = 0;
        while done < len {
            let part = &mut piece[..(len - done).min(PIECE_BYTES) as usize];
            let read = reads.read_at(at + done, part, &mut ());
            match read.map_err(|error| crate::mounts::errno_of(&error))? {
                0 => return Err(libc::EIO),
                read => files::write_at(memory.fd(), &part[..read], done)?,
            }
            done += part.len() as u64;
        }
        reads.release();
        self.count(len);
        memory.seal()?;
        Ok(memory)
    }
}

/// A descriptor to map in place of `fd`, at its first byte, for a mapping that cannot change the file. `None`: not
/// ours, or better mapped by the kernel.
#[inline]
pub(crate) fn mapped(
    fd: c_int,
    at: i64,
    len: usize,
    access: c_int,
    flags: c_int,
) -> Option<Memory> {
    if !may_be(fd) {
        return None;
    }
    copy_to_map(fd, at, len, access, flags)
}

#[cold]
fn copy_to_map(fd: c_int, at: i64, len: usize, access: c_int, flags: c_int) -> Option<Memory> {
    let changes = access & libc::PROT_WRITE != 0 && flags & libc::MAP_PRIVATE == 0;
    let is_odd = flags & (libc::MAP_ANONYMOUS | libc::MAP_SYNC) != 0 || at % PAGE_BYTES != 0;
    if changes || is_odd || access & libc::PROT_EXEC != 0 || own::is_inside() {
        return None;
    }
    own::inside(|| {
        let long = find(fd).ok_or(libc::EBADF)?;
        let at = u64::try_from(at).map_err(|_| libc::EINVAL)?;
        let len = len as u64;
        let Bytes::Tiers { reads, .. } = &long.bytes else { return Err(libc::EINVAL) };
        if len == 0 || at >= reads.len_bytes() || len > long.mount.setting().copy_bytes {
            return Err(libc::EINVAL);
        }
        long.copy(reads, at, len)
    })
    .ok()
}

/// What was opened as `fd`, if that is still the same file and nobody has changed it.
fn find(fd: c_int) -> Option<Arc<Long>> {
    let stat = files::stat_of(fd)?;
    let mut table = lock(table());
    let long = table.get(&fd)?;
    if long.identity == (stat.st_dev, stat.st_ino) {
        return (long.stamp == stamp_of(&stat)).then(|| Arc::clone(long));
    }
    table.remove(&fd);
    MAY_BE[fd as usize / 64].fetch_and(!(1 << (fd % 64)), Ordering::Release);
    None
}

fn table() -> &'static Table {
    TABLE.get_or_init(|| {
        // A forked child has its parent's descriptors.
        let known = TABLE.inherited().and_then(|table| table.try_lock().ok());
        Mutex::new(known.map_or_else(HashMap::new, |known| known.clone()))
    })
}

fn lock(table: &Table) -> std::sync::MutexGuard<'_, HashMap<c_int, Arc<Long>>> {
    table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[inline]
fn may_be(fd: c_int) -> bool {
    let bits = MAY_BE.get(fd as usize / 64).map_or(0, |bits| bits.load(Ordering::Relaxed));
    bits & (1 << (fd & 63)) != 0
}

fn may_hold(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd < MOST)
}

fn stamp_of(stat: &libc::stat) -> (i64, i64, i64) {
    (stat.st_mtime, stat.st_mtime_nsec, stat.st_size)
}

fn seek(fd: c_int, by: c_long, from: c_int) -> Result<c_long, c_int> {
    // SAFETY: the call touches no memory.
    called(unsafe { libc::syscall(libc::SYS_lseek, fd, by, from) })
}

/// A duplicate of a descriptor that the program has, for the library's own reads. The program may close it, too,
/// since it cannot have the library's mark: that belongs to both.
struct Lent {
    fd: c_int,
    identity: (u64, u64),
}

impl Lent {
    fn new(fd: c_int, identity: (u64, u64)) -> Option<Lent> {
        let least = (most_descriptors() / 2).min(MOST / 2) as c_long;
        // SAFETY: the command touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least) };
        called(fd).ok().map(|fd| Lent { fd: fd as c_int, identity })
    }

    fn is_there(&self) -> bool {
        files::stat_of(self.fd).is_some_and(|stat| (stat.st_dev, stat.st_ino) == self.identity)
    }
}

impl LentFile for Lent {
    fn with(&self, work: &mut dyn FnMut(&File)) {
        if self.is_there() {
            // SAFETY: it is open, and not closed when the `File` ends.
            work(&ManuallyDrop::new(unsafe { File::from_raw_fd(self.fd) }));
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.is_there() {
            files::close(self.fd);
        }
    }
}

/// Descriptors from here on are not remembered.
const MOST: usize = 1 << 16;
/// The most that one read returns, as the kernel has it.
const MOST_BYTES: usize = 0x7fff_f000;
/// What is copied at a time for a mapping.
const PIECE_BYTES: u64 = 8 << 20;
/// Mappings begin at multiples of this.
const PAGE_BYTES: i64 = 4096;
