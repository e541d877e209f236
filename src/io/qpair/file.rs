//! An image file or a block device as a namespace.
//!
//! Queue pairs transfer bytes by io_uring (`uring.rs`), or by `pread` and `pwrite` (`PreadPair`, below) if io_uring is
//! not available or is slower, as for reads of tmpfs. A file opened with O_DIRECT keeps a second descriptor
//! without it, for the few I/Os whose memory or offset is not aligned for O_DIRECT (`transfer.rs`).
//!
//! A writer holds an exclusive `flock` on the file or block device, so a second writer is refused. If the file
//! system has no locks, like some shared file systems, writers are refused, unless the caller has a lease in the image
//! that excludes others, as on remote namespaces ([`FileOptions::or_lease`]). Readers hold no lock, because generations
//! (see `format`) protect them. A read past the current end of the file is an error; it never returns zeroes.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use super::transfer::{DirectFile, Files, QUEUE_DEPTH, Step, Transfer};
use super::uring::UringPair;
use super::{Capabilities, Completion, Device, Direct, Io, IoOp, Namespace, PairScope, QueuePair};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::process::{NotInherited, mark_ours};
use dlfs_base::units::{Lba, round_up};

/// Options of opening a file as a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileOptions {
    /// Bypass of the page cache.
    pub direct: Direct,
    /// Allow writes; takes the exclusive lock.
    pub writable: bool,
    /// Allow writes also on a file system without locks, because a lease excludes other writers.
    pub or_lease: bool,
    /// Create the file if there is none, and make it at least this many bytes long. Implies `writable`. `None`: the
    /// file must exist.
    pub create_len: Option<u64>,
    /// Only the owner may read or write the file. This also changes an existing file of this user.
    pub private: bool,
    /// The system calls that transfer the bytes.
    pub calls: FileCalls,
}

/// System calls that transfer the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileCalls {
    /// io_uring, or else `pread` and `pwrite`.
    #[default]
    Auto,
    /// `pread` and `pwrite`, each of which blocks the thread that polls.
    Pread,
}

/// An opened image file or block device.
pub struct FileNamespace {
    files: Arc<Files>,
    /// The namespace when it was opened; `files` has the current size.
    namespace: Namespace,
    /// Set if io_uring transfers the bytes, unless no further ring can be created; otherwise `pread` and `pwrite` do.
    uses_uring: bool,
    /// True if this process holds the lock of a writer.
    is_locked: bool,
}

impl FileNamespace {
    /// Opens `path`. If opening fails, a file that this call created is removed, unless another writer has opened
    /// it meanwhile.
    ///
    /// Blocks are 4,096 bytes long, or 512 if the file's length is not a multiple of 4,096 (a partial block
    /// at the end cannot be used); a block device has its own block length.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: errors of the operating system. `InvalidArgument`: neither a file nor a block
    /// device. `Busy`: another writer has it open. `Unsupported`: O_DIRECT is required and not available,
    /// blocks are longer than 4,096 bytes, or a lock is required and the file system has none. `NoSpace`: a
    /// block device is shorter than `create_len`, or the file cannot become that long.
    pub fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<FileNamespace> {
        let path = path.as_ref();
        let writable = options.writable || options.create_len.is_some();
        check_file_type(path)?;
        let is_new = options.create_len.is_some() && !path.exists();
        let buffered = open_file(path, &options, writable, 0).map_err(|e| cannot_open(path, e))?;
        if is_new {
            sync_name(path);
        }
        let opened = FileNamespace::from_file(path, options, writable, buffered);
        // With `Busy`, another writer has opened the new file, so it must stay.
        if is_new && opened.as_ref().is_err_and(|error| error.kind() != ErrorKind::Busy) {
            // If this fails, an empty file is left.
            let _ = std::fs::remove_file(path);
        }
        opened
    }

    /// Continues to open a namespace, whose descriptor without O_DIRECT is `buffered`.
    fn from_file(
        path: &Path,
        options: FileOptions,
        writable: bool,
        buffered: File,
    ) -> Result<FileNamespace> {
        let is_locked = writable && lock(&buffered, path, options.or_lease)?;
        let is_block_device = is_block_device(&buffered, path)?;
        if let Some(len) = options.create_len {
            grow_file(&buffered, is_block_device, len).map_err(|e| e.path(path))?;
        }
        let len = len_of(&buffered).map_err(|e| cannot_open(path, e))?;
        let block_len_bytes = block_len(&buffered, is_block_device, len, path)?;
        // Under a lease, bypasses the page cache, so that machines see each other's leases.
        let prefers_direct = is_block_device || writable && !is_locked || len > memory_bytes() / 2;
        let direct = open_direct(path, &options, writable, prefers_direct)?;
        let files = Files::new(path, buffered, direct, is_block_device, len / block_len_bytes);
        let uses_uring = options.calls == FileCalls::Auto
            && (writable || !is_in_memory(&files.buffered))
            && UringPair::is_available();
        let namespace = Namespace {
            address: path.display().to_string(),
            block_len_bytes: block_len_bytes as u32, // at most 4,096, see `block_len`
            num_blocks: len / block_len_bytes,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            queue_depth: QUEUE_DEPTH,
            nguid: [0; 16],
            read_only: !writable,
            engine: engine(uses_uring, files.is_direct()),
        };
        Ok(FileNamespace { files: Arc::new(files), namespace, uses_uring, is_locked })
    }

    /// Frees the blocks of a file in `range` (NVMe's Deallocate), which is in bytes and not empty. They then read as
    /// zeroes, and the length of the file stays. A range past the end changes nothing, so it tests whether the file
    /// system supports this.
    ///
    /// # Errors
    /// `Unsupported`: a block device, or the file system cannot. Errors of the operating system.
    pub fn deallocate(&self, range: Range<u64>) -> Result<()> {
        let Files { buffered, is_block_device, path, .. } = &*self.files;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = if *is_block_device {
            Err(Errno::OPNOTSUPP)
        } else {
            let len = range.end - range.start;
            rustix::fs::fallocate(buffered, flags, range.start, len)
        };
        punched.map_err(|errno| match errno {
            Errno::OPNOTSUPP | Errno::NOSYS => {
                let text = "blocks of it cannot be freed one by one";
                Error::new(ErrorKind::Unsupported, text).path(path)
            }
            errno => Error::from(std::io::Error::from(errno)).path(path),
        })
    }

    /// While the result exists, a forked child gets another descriptor, which is read-only and does not hold the lock.
    /// Otherwise a child that outlives this process would keep the lock.
    pub fn keep_lock_from_children(&self) -> NotInherited {
        NotInherited::reopen(self.files.buffered.as_fd())
    }

    /// `len_bytes`, rounded up to whole blocks.
    fn whole_blocks(&self, len_bytes: u64) -> u64 {
        round_up(len_bytes, u64::from(self.namespace.block_len_bytes)).unwrap_or(len_bytes)
    }
}

impl Device for FileNamespace {
    fn namespace(&self) -> Namespace {
        let mut namespace = self.namespace.clone();
        // On failure the last known length stays; reads past the end fail anyway.
        if let Ok(len) = len_of(&self.files.buffered) {
            self.files.set_num_blocks(len / u64::from(namespace.block_len_bytes));
        }
        self.files.refresh(&mut namespace);
        namespace
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let files = Arc::clone(&self.files);
        let mut namespace = self.namespace();
        if self.uses_uring {
            match UringPair::new(Arc::clone(&files), namespace.clone()) {
                Ok(pair) => return Ok(Box::new(pair)),
                Err(error) => tracing::warn!(%error, "cannot create another io_uring; using pread \
                                                      instead"),
            }
        }
        namespace.engine = engine(false, files.is_direct());
        Ok(Box::new(PreadPair::new(files, namespace)))
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        let path = &self.files.path;
        if self.namespace.read_only {
            return Err(invalid("a namespace opened for reading cannot grow").path(path));
        }
        let block_len = u64::from(self.namespace.block_len_bytes);
        let len = round_up(len_bytes, block_len).ok_or_else(|| invalid("no file is that long"))?;
        let Files { buffered, is_block_device, .. } = &*self.files;
        grow_file(buffered, *is_block_device, len).map_err(|e| e.path(path))?;
        self.files.set_num_blocks(len.max(self.namespace.len_bytes()) / block_len);
        Ok(())
    }

    fn trim(&self, unused: &[Range<u64>], len_bytes: u64) -> Result<()> {
        let Files { buffered, is_block_device, path, .. } = &*self.files;
        if *is_block_device || self.namespace.read_only {
            return Ok(());
        }
        for range in unused.iter().filter(|range| !range.is_empty()) {
            match self.deallocate(range.clone()) {
                // No holes: the space stays allocated, and later data use it again.
                Err(error) if error.kind() == ErrorKind::Unsupported => break,
                punched => punched?,
            }
        }
        let len = self.whole_blocks(len_bytes);
        let truncate = || if len_of(buffered)? > len { buffered.set_len(len) } else { Ok(()) };
        truncate().map_err(|error| Error::from(error).path(path))
    }

    fn can_trim(&self, unused: &[Range<u64>], len_bytes: u64) -> Result<bool> {
        let Files { buffered, is_block_device, path, .. } = &*self.files;
        if *is_block_device || self.namespace.read_only {
            return Ok(false);
        }
        let would_free = || -> std::io::Result<bool> {
            if len_of(buffered)? > self.whole_blocks(len_bytes) {
                return Ok(true);
            }
            let block_len = rustix::fs::fstat(buffered)?.st_blksize.unsigned_abs();
            let block_len = block_len.max(1).next_power_of_two();
            Ok(unused.iter().any(|range| has_data(buffered, range, block_len)))
        };
        would_free().map_err(|error| Error::from(error).path(path))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            can_grow: !self.namespace.read_only && !self.files.is_block_device,
            is_exclusive: self.is_locked,
            is_page_cached: !self.files.is_direct(),
            local_path: Some(self.files.path.clone()),
            ..Capabilities::default()
        }
    }
}

fn cannot_open(path: &Path, error: std::io::Error) -> Error {
    Error::of_file("cannot open the image", path, error)
}

/// Refuses a path that is neither a file nor a block device. Checked before opening, because opening a FIFO
/// would block until its other end is open.
fn check_file_type(path: &Path) -> Result<()> {
    let kind = match std::fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(_) => return Ok(()), // opening reports why, or creates the file
    };
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    Err(invalid("an image is a file or a block device, and this is neither").path(path))
}

/// Opens a file, and creates it where the options ask for that; `flags` are for `open`.
fn open_file(
    path: &Path,
    options: &FileOptions,
    writable: bool,
    flags: i32,
) -> std::io::Result<File> {
    let create = options.create_len.is_some();
    let file = OpenOptions::new()
        .read(true)
        .write(writable)
        .create(create)
        .mode(if options.private { 0o600 } else { 0o666 })
        .custom_flags(flags)
        .open(path)?;
    mark_ours(&file);
    let found = file.metadata()?;
    if options.private && found.is_file() && found.mode() & 0o077 != 0 {
        // Fails for another user's file, which keeps its permissions.
        let _ = file.set_permissions(std::fs::Permissions::from_mode(0o600));
    }
    Ok(file)
}

/// Makes the name of a new file durable: a flush makes the file's bytes durable, not its directory entry.
fn sync_name(path: &Path) {
    let synced = std::fs::canonicalize(path)
        .and_then(|resolved| File::open(resolved.parent().unwrap_or(Path::new("/"))))
        .and_then(|folder| folder.sync_all());
    if let Err(error) = synced {
        tracing::warn!(path = %path.display(), %error, "after a power loss this new file may be gone");
    }
}

/// Takes the exclusive lock of a writer. `false`: the file system has no locks, and a lease replaces the lock.
///
/// The kernel releases the files of a killed process's io_uring shortly after the process has ended, so taking
/// the lock is retried for a short time.
fn lock(file: &File, path: &Path, or_lease: bool) -> Result<bool> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => {
                let message = "somebody has it open for writing: another process, or another part of this one";
                return Err(Error::new(ErrorKind::Busy, message).path(path));
            }
            Err(errno) if is_without_locks(errno) && or_lease => {
                warn_of_lease(path, errno);
                return Ok(false);
            }
            Err(errno) if is_without_locks(errno) => {
                let message =
                    "the file system has no locks (flock), and this file must be ours alone";
                let error = Error::new(ErrorKind::Unsupported, message).path(path);
                return Err(error.source(std::io::Error::from(errno)));
            }
            Err(errno) => return Err(cannot_open(path, errno.into())),
        }
    }
}

/// Returns whether an error of `flock` means that the file system does not support it: Lustre without `-o
/// flock`, some NFS servers, some FUSE file systems.
#[doc(hidden)]
pub fn is_without_locks(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK)
}

/// Warns once that a lease replaces the lock.
fn warn_of_lease(path: &Path, errno: Errno) {
    static WARNED: Once = Once::new();
    let why = std::io::Error::from(errno);
    WARNED.call_once(|| {
        tracing::warn!(
            "{}: the file system has no locks (flock: {why}); a lease in the image keeps other writers away",
            path.display()
        );
    });
}

fn is_block_device(file: &File, path: &Path) -> Result<bool> {
    let metadata = file.metadata().map_err(|e| cannot_open(path, e))?;
    Ok(metadata.file_type().is_block_device())
}

/// The length of the file or device: `seek` reports it for both, and the position is not used otherwise.
fn len_of(file: &File) -> std::io::Result<u64> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(std::io::Error::from)
}

/// Returns whether a file has data in whole blocks of `range`: only whole blocks become holes. True for all bytes of
/// the file if the file system does not report holes; false on errors.
fn has_data(file: &File, range: &Range<u64>, block_len: u64) -> bool {
    let start = round_up(range.start, block_len).unwrap_or(u64::MAX);
    let end = range.end - range.end % block_len;
    let data = || rustix::fs::seek(file, rustix::fs::SeekFrom::Data(start));
    start < end && data().is_ok_and(|data| data < end)
}

/// Makes a file at least `len` bytes long; checks that a block device is.
fn grow_file(file: &File, is_block_device: bool, len: u64) -> Result<()> {
    if len_of(file)? >= len {
        return Ok(());
    }
    if is_block_device {
        return Err(Error::new(ErrorKind::NoSpace, format!("the device is not {len} bytes long")));
    }
    file.set_len(len).map_err(|error| {
        let message = format!("cannot make the image {len} bytes long");
        let kind = match error.raw_os_error() {
            Some(libc::EFBIG | libc::ENOSPC | libc::EDQUOT) => ErrorKind::NoSpace,
            _ => Error::from(std::io::Error::from(error.kind())).kind(),
        };
        let is_limit = error.raw_os_error() == Some(libc::EFBIG);
        let error = Error::new(kind, message).source(error);
        let hint = "the limit is that of the file system or of this shell: ulimit -f";
        if is_limit { error.hint(hint) } else { error }
    })
}

/// The block length in bytes: a power of two, 512 to 4,096.
fn block_len(file: &File, is_block_device: bool, len: u64, path: &Path) -> Result<u64> {
    if !is_block_device {
        return Ok(if len.is_multiple_of(4096) { 4096 } else { 512 });
    }
    let block_len = rustix::fs::ioctl_blksszget(file).map_err(|e| cannot_open(path, e.into()))?;
    if block_len.is_power_of_two() && (512..=4096).contains(&block_len) {
        return Ok(u64::from(block_len));
    }
    let message = format!("logical blocks of {block_len} bytes");
    Err(Error::new(ErrorKind::Unsupported, message).path(path))
}

/// Returns whether the file is in tmpfs. There io_uring passes each read to a kernel thread, which costs more
/// than the read itself. Writes are faster with io_uring.
fn is_in_memory(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type == TMPFS_MAGIC)
}

/// Opens the descriptor with O_DIRECT, if the options ask for it and it is available. `Direct::Auto` asks for it if
/// `prefers_direct`.
fn open_direct(
    path: &Path,
    options: &FileOptions,
    writable: bool,
    prefers_direct: bool,
) -> Result<Option<DirectFile>> {
    if options.direct == Direct::Off || options.direct == Direct::Auto && !prefers_direct {
        return Ok(None);
    }
    match open_file(path, options, writable, libc::O_DIRECT).and_then(DirectFile::new) {
        Ok(direct) => Ok(Some(direct)),
        Err(_) if options.direct == Direct::Auto => Ok(None),
        Err(error) => {
            let message = "this file system has no direct I/O";
            let error = Error::new(ErrorKind::Unsupported, message).path(path).source(error);
            Err(error.hint("open it with --direct auto"))
        }
    }
}

impl Direct {
    /// The setting for a sparse file of which `len_bytes` will be used; `Auto` alone would decide
    /// by the file's length.
    pub fn for_sparse(len_bytes: u64) -> Direct {
        if len_bytes > memory_bytes() / 2 { Direct::Auto } else { Direct::Off }
    }
}

/// The size of this machine's memory in bytes.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// A queue pair without io_uring: `poll` runs each I/O to its end by calls of `pread`, `pwrite` or `fdatasync`, which
/// block.
struct PreadPair {
    files: Arc<Files>,
    namespace: Namespace,
    /// I/Os that were taken and that no `poll` has run yet.
    taken: VecDeque<Io>,
}

impl PreadPair {
    fn new(files: Arc<Files>, namespace: Namespace) -> PreadPair {
        let taken = VecDeque::with_capacity(usize::from(namespace.queue_depth));
        PreadPair { files, namespace, taken }
    }

    /// Runs an I/O to its end.
    fn run(&self, io: Io) -> Completion {
        if let Err(error) = self.namespace.check(&io) {
            return io.end(Err(error));
        }
        let mut transfer = Transfer::new(io, self.namespace.block_len_bytes);
        loop {
            let result = self.call(&mut transfer);
            if let Step::Ended(result) = transfer.advance(result) {
                return transfer.io.end(result);
            }
        }
    }

    /// Makes the next system call; returns the bytes that it transferred.
    fn call(&self, transfer: &mut Transfer) -> Result<usize, Errno> {
        let file = transfer.file(&self.files);
        let offset = transfer.offset();
        let moved = transfer.moved;
        match transfer.io.op {
            IoOp::Read => rustix::io::pread(file, &mut transfer.io.buf[moved..], offset),
            IoOp::Write => rustix::io::pwrite(file, &transfer.io.buf[moved..], offset),
            IoOp::Flush => rustix::fs::fdatasync(file).map(|()| 0),
        }
    }
}

impl QueuePair for PreadPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        self.files.refresh(&mut self.namespace);
        let room = usize::from(self.namespace.queue_depth) - self.taken.len();
        let count = room.min(pending.len());
        self.taken.extend(pending.drain(..count));
        count
    }

    fn poll(&mut self, _now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let count = max.min(self.taken.len()).min(BURST);
        for _ in 0..count {
            let io = self.taken.pop_front().expect("counted above");
            done.push(self.run(io));
        }
        count
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        self.files.drop_cached(slba, len_bytes, &self.namespace);
    }

    fn outstanding(&self) -> usize {
        self.taken.len()
    }
}

/// The name of the engine: see [`Namespace::engine`].
fn engine(uses_uring: bool, is_direct: bool) -> String {
    let calls = if uses_uring { "io_uring" } else { "pread" };
    format!("file ({calls}{})", if is_direct { ", O_DIRECT" } else { "" })
}

/// The file system type of tmpfs in statfs(2).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The longest time for which a lock may outlive its process.
const LOCK_WAIT: Duration = Duration::from_millis(500);

const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// The most I/Os of one `poll` of a [`PreadPair`], so that the caller regains control between slow I/Os.
const BURST: usize = 16;
