//! An image file or a block device as a namespace.
//!
//! Queue pairs move bytes by io_uring (`uring.rs`), or by `pread` and `pwrite` where io_uring is
//! refused (`pread.rs`). A device opened for O_DIRECT keeps a second descriptor without it, for the
//! few I/Os whose memory or offset is not aligned as O_DIRECT wants it.
//!
//! A writer holds an exclusive `flock` on the file, so a second one is refused; readers hold none,
//! since generations (see `format`) keep them safe. Nothing past the end that the file has now is
//! ever read as zeroes: that is an error.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, StatxFlags};
use rustix::io::Errno;

use super::pread::PreadPair;
use super::uring::UringPair;
use super::{Device, Direct, Io, IoError, IoOp, Namespace, PairScope, QueuePair};
use crate::error::{Error, ErrorKind, Result};
use crate::units::{Lba, round_up};

/// How to open a file as a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileOptions {
    /// Whether to bypass the page cache.
    pub direct: Direct,
    /// Whether writes are wanted; takes the lock that only one writer can have.
    pub writable: bool,
    /// Create the file if there is none, and make it at least this long. Implies `writable`.
    pub create_len: Option<u64>,
    /// Which system calls move the bytes.
    pub calls: FileCalls,
}

/// Which system calls move the bytes of a file.
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
    namespace: Namespace,
    calls: FileCalls,
}

impl FileNamespace {
    /// Opens `path`.
    ///
    /// Blocks are 4,096 bytes long, or 512 where the file's length is no multiple of 4,096 (a part of
    /// a block at its end is out of reach); those of a block device are its own.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: as the operating system says. `InvalidArgument`: neither a file nor a
    /// block device. `Busy`: another writer has it. `Unsupported`: O_DIRECT was asked for and cannot
    /// be had, or blocks above 4,096 bytes. `NoSpace`: a block device is shorter than `create_len`.
    pub fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<FileNamespace> {
        let path = path.as_ref();
        let writable = options.writable || options.create_len.is_some();
        refuse_what_is_no_medium(path)?;
        let is_new = options.create_len.is_some() && !path.exists();
        let buffered = open_file(path, &options, writable, 0).map_err(|e| cannot_open(path, e))?;
        if is_new {
            sync_name(path);
        }
        if writable {
            lock(&buffered, path)?;
        }
        let is_block_device = is_block_device(&buffered, path)?;
        if let Some(len) = options.create_len {
            grow_file(&buffered, is_block_device, len).map_err(|e| e.path(path))?;
        }
        let len = len_of(&buffered).map_err(|e| cannot_open(path, e))?;
        let block_len_bytes = block_len(&buffered, is_block_device, len, path)?;
        let direct = open_direct(path, &options, writable, is_block_device, len)?;
        let files = Files::new(path, buffered, direct, is_block_device, len / block_len_bytes);
        let calls = match options.calls {
            FileCalls::Auto if !UringPair::is_available() => FileCalls::Pread,
            calls => calls,
        };
        let namespace = Namespace {
            address: path.display().to_string(),
            block_len_bytes: block_len_bytes as u32, // at most 4,096, see `block_len`
            num_blocks: len / block_len_bytes,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            queue_depth: QUEUE_DEPTH,
            nguid: [0; 16],
            read_only: !writable,
            engine: engine(calls, files.direct.is_some()),
        };
        Ok(FileNamespace { files: Arc::new(files), namespace, calls })
    }
}

impl Device for FileNamespace {
    fn namespace(&self) -> Namespace {
        let mut namespace = self.namespace.clone();
        if let Ok(len) = len_of(&self.files.buffered) {
            // A failure leaves the length that was found last: reads past the end fail anyway.
            self.files.set_num_blocks(len / u64::from(namespace.block_len_bytes));
        }
        self.files.refresh(&mut namespace);
        namespace
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let (files, mut namespace) = (Arc::clone(&self.files), self.namespace());
        if self.calls == FileCalls::Auto {
            match UringPair::new(Arc::clone(&files), namespace.clone()) {
                Ok(pair) => return Ok(Box::new(pair)),
                Err(error) => tracing::warn!(%error, "no further io_uring; using pread instead"),
            }
        }
        namespace.engine = engine(FileCalls::Pread, files.direct.is_some());
        Ok(Box::new(PreadPair::new(files, namespace)))
    }

    fn local_path(&self) -> Option<PathBuf> {
        Some(self.files.path.clone())
    }

    fn can_grow(&self) -> bool {
        !self.namespace.read_only && !self.files.is_block_device
    }

    fn is_exclusive(&self) -> bool {
        !self.namespace.read_only
    }

    fn is_page_cached(&self) -> bool {
        !self.files.is_direct()
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        let path = &self.files.path;
        if self.namespace.read_only {
            let message = "a namespace opened for reading cannot grow";
            return Err(Error::new(ErrorKind::InvalidArgument, message).path(path));
        }
        let block_len = u64::from(self.namespace.block_len_bytes);
        let len = round_up(len_bytes, block_len)
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "no file is that long"))?;
        let Files { buffered, is_block_device, .. } = &*self.files;
        grow_file(buffered, *is_block_device, len).map_err(|e| e.path(path))?;
        self.files.set_num_blocks(len.max(self.namespace.len_bytes()) / block_len);
        Ok(())
    }
}

/// The descriptors of a namespace and what its queue pairs share.
pub(super) struct Files {
    path: PathBuf,
    buffered: File,
    direct: Option<DirectFile>,
    is_block_device: bool,
    num_blocks: AtomicU64,
}

struct DirectFile {
    file: File,
    /// What memory addresses, and offsets and lengths, must be multiples of.
    mem_align: usize,
    offset_align: u64,
}

impl Files {
    /// Whether most I/O goes past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    fn new(
        path: &Path,
        buffered: File,
        direct: Option<DirectFile>,
        is_block_device: bool,
        num_blocks: u64,
    ) -> Files {
        let (path, num_blocks) = (path.to_owned(), AtomicU64::new(num_blocks));
        Files { path, buffered, direct, is_block_device, num_blocks }
    }

    /// A descriptor of anything.
    #[cfg(test)]
    pub(super) fn of_descriptor(descriptor: std::os::fd::OwnedFd) -> Files {
        Files::new(Path::new("test"), descriptor.into(), None, false, 100)
    }

    /// Brings the size in a queue pair's `namespace` up to date.
    pub(super) fn refresh(&self, namespace: &mut Namespace) {
        namespace.num_blocks = self.num_blocks.load(Ordering::Relaxed);
    }

    /// What a ring may register: the plain descriptor first. None of a writer's: a ring lets go of
    /// what it registered some time after it is closed, and with it of the writer's lock.
    pub(super) fn to_register(&self, namespace: &Namespace) -> Vec<RawFd> {
        if !namespace.read_only {
            return Vec::new();
        }
        let direct = self.direct.as_ref().map(|direct| direct.file.as_raw_fd());
        [Some(self.buffered.as_raw_fd()), direct].into_iter().flatten().collect()
    }

    /// Lets go of the pages that hold these blocks, so that they are read from the medium again.
    pub(super) fn drop_cached(&self, slba: Lba, len_bytes: usize, namespace: &Namespace) {
        let offset = slba.0.saturating_mul(u64::from(namespace.block_len_bytes));
        let len = std::num::NonZeroU64::new(len_bytes as u64);
        // What stays cached is read from there: a page that another process uses, or has changed.
        let _ = rustix::fs::fadvise(&self.buffered, offset, len, rustix::fs::Advice::DontNeed);
    }

    /// Sets the size, which only grows: the bounds of I/Os that were checked stay right.
    fn set_num_blocks(&self, num_blocks: u64) {
        self.num_blocks.fetch_max(num_blocks, Ordering::Relaxed);
    }
}

/// An I/O in the hands of a queue pair, and how far it has come.
pub(super) struct Transfer {
    pub(super) io: Io,
    /// Bytes moved so far.
    pub(super) moved: usize,
    /// Where the I/O begins, in bytes.
    start: u64,
    /// Whether O_DIRECT refused it.
    buffered_only: bool,
    retries: u8,
}

/// What a system call's result means for a transfer.
pub(super) enum Step {
    /// Go on with what is left.
    Again,
    /// It has ended.
    Ended(Result<(), IoError>),
}

impl Transfer {
    /// A transfer of an I/O that has been checked.
    pub(super) fn new(io: Io, block_len_bytes: u32) -> Transfer {
        let start = io.slba.0 * u64::from(block_len_bytes);
        Transfer { io, moved: 0, start, buffered_only: false, retries: 0 }
    }

    /// Where the bytes that are left begin.
    pub(super) fn offset(&self) -> u64 {
        self.start + self.moved as u64
    }

    /// Where the descriptor for the bytes that are left stands in [`Files::to_register`].
    pub(super) fn file_index(&self, files: &Files) -> usize {
        usize::from(self.direct(files).is_some())
    }

    /// The descriptor for the bytes that are left, by their alignment.
    pub(super) fn file<'a>(&self, files: &'a Files) -> BorrowedFd<'a> {
        match self.direct(files) {
            Some(direct) => direct.file.as_fd(),
            None => files.buffered.as_fd(),
        }
    }

    fn direct<'a>(&self, files: &'a Files) -> Option<&'a DirectFile> {
        files.direct.as_ref().filter(|direct| !self.buffered_only && self.is_aligned(direct))
    }

    fn is_aligned(&self, direct: &DirectFile) -> bool {
        let rest = &self.io.buf[self.moved..];
        rest.as_ptr().addr().is_multiple_of(direct.mem_align)
            && self.offset().is_multiple_of(direct.offset_align)
            && (rest.len() as u64).is_multiple_of(direct.offset_align)
    }

    /// Takes in what a system call on what was left said: bytes moved, or why not.
    pub(super) fn advance(&mut self, result: Result<usize, Errno>) -> Step {
        let expected = self.io.buf.len();
        match result {
            _ if self.io.op == IoOp::Flush && result.is_ok() => Step::Ended(Ok(())),
            Ok(0) if self.io.op == IoOp::Write => Step::Ended(Err(os_error(Errno::IO))),
            Ok(0) => {
                let (expected, found) = (expected as u64, self.moved as u64);
                Step::Ended(Err(IoError::Short { expected, found }))
            }
            // Nobody knows what of the buffer means anything then.
            Ok(count) if count > expected - self.moved => {
                let (expected, found) = ((expected - self.moved) as u64, count as u64);
                Step::Ended(Err(IoError::Excess { expected, found }))
            }
            Ok(count) => {
                self.moved += count;
                if self.moved == expected { Step::Ended(Ok(())) } else { Step::Again }
            }
            Err(Errno::INTR | Errno::AGAIN) if self.retries < MAX_RETRIES => {
                self.retries += 1;
                Step::Again
            }
            Err(Errno::INVAL) if !self.buffered_only && self.io.op != IoOp::Flush => {
                self.buffered_only = true; // alignment that the file system did not tell of
                Step::Again
            }
            Err(errno) => Step::Ended(Err(os_error(errno))),
        }
    }
}

fn os_error(errno: Errno) -> IoError {
    IoError::Os(errno.raw_os_error())
}

fn cannot_open(path: &Path, error: std::io::Error) -> Error {
    let kind = Error::from(std::io::Error::from(error.kind())).kind();
    Error::new(kind, "cannot open the image").path(path).source(error)
}

/// Asked before opening, which would wait for the other end of a FIFO.
fn refuse_what_is_no_medium(path: &Path) -> Result<()> {
    let kind = match std::fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(_) => return Ok(()), // opening says why, or creates it
    };
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    let message = "an image is a file or a block device, and this is neither";
    Err(Error::new(ErrorKind::InvalidArgument, message).path(path))
}

fn open_file(
    path: &Path,
    options: &FileOptions,
    writable: bool,
    flags: i32,
) -> std::io::Result<File> {
    let create = options.create_len.is_some();
    OpenOptions::new().read(true).write(writable).create(create).custom_flags(flags).open(path)
}

/// Has the name of a new file survive a power loss: a flush makes its bytes durable, not its name.
fn sync_name(path: &Path) {
    let synced = std::fs::canonicalize(path)
        .and_then(|place| File::open(place.parent().unwrap_or(Path::new("/"))))
        .and_then(|folder| folder.sync_all());
    if let Err(error) = synced {
        tracing::warn!(path = %path.display(), %error, "after a power loss this new file may be gone");
    }
}

/// Takes the lock that only one writer can have.
///
/// The ring of a killed process lets go of its files a moment after the process is gone, so a lock
/// that is held is asked for again for a little while.
fn lock(file: &File, path: &Path) -> Result<()> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => {
                let message = "somebody has it open for writing: another process, or another part of this one";
                return Err(Error::new(ErrorKind::Busy, message).path(path));
            }
            Err(errno) => return Err(cannot_open(path, errno.into())),
        }
    }
}

fn is_block_device(file: &File, path: &Path) -> Result<bool> {
    let metadata = file.metadata().map_err(|e| cannot_open(path, e))?;
    Ok(metadata.file_type().is_block_device())
}

/// The end of the file or device: `seek` knows it of both, and the position is not used otherwise.
fn len_of(file: &File) -> std::io::Result<u64> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(std::io::Error::from)
}

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
        Error::new(kind, message).source(error)
    })
}

/// Bytes of a block: a power of two, 512 to 4,096.
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

/// The descriptor with O_DIRECT, if it is wanted and can be had.
fn open_direct(
    path: &Path,
    options: &FileOptions,
    writable: bool,
    is_block_device: bool,
    len: u64,
) -> Result<Option<DirectFile>> {
    let wanted = match options.direct {
        Direct::On => true,
        Direct::Off => false,
        Direct::Auto => is_block_device || len > memory_bytes() / 2,
    };
    if !wanted {
        return Ok(None);
    }
    let opened = open_file(path, options, writable, libc::O_DIRECT).and_then(direct_file);
    match opened {
        Ok(direct) => Ok(Some(direct)),
        Err(_) if options.direct == Direct::Auto => Ok(None),
        Err(error) => {
            let message = "this file system has no direct I/O";
            let error = Error::new(ErrorKind::Unsupported, message).path(path).source(error);
            Err(error.hint("open it with --direct auto"))
        }
    }
}

fn direct_file(file: File) -> std::io::Result<DirectFile> {
    let dio_align = StatxFlags::from_bits_retain(STATX_DIOALIGN);
    let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, dio_align)?;
    if stat.stx_mask & STATX_DIOALIGN == 0 {
        // A kernel before 6.1 does not say; pages suit everybody.
        return Ok(DirectFile { file, mem_align: 4096, offset_align: 4096 });
    }
    if stat.stx_dio_offset_align == 0 {
        return Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let mem_align = stat.stx_dio_mem_align.max(1) as usize;
    Ok(DirectFile { file, mem_align, offset_align: u64::from(stat.stx_dio_offset_align) })
}

fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

fn engine(calls: FileCalls, direct: bool) -> String {
    let calls = match calls {
        FileCalls::Auto => "io_uring",
        FileCalls::Pread => "pread",
    };
    format!("file ({calls}{})", if direct { ", O_DIRECT" } else { "" })
}

/// How long a lock may stay with a process that is gone.
const LOCK_WAIT: Duration = Duration::from_millis(500);

const MAX_TRANSFER_BYTES: u32 = 1 << 20;
pub(super) const QUEUE_DEPTH: u16 = 128;
/// How often one I/O may be interrupted before that counts as a failure.
const MAX_RETRIES: u8 = 100;
/// `STATX_DIOALIGN`, which rustix does not name yet.
const STATX_DIOALIGN: u32 = 0x2000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::IoBuf;
    use crate::units::Lba;

    #[test]
    fn a_count_that_cannot_be_is_an_error_and_no_panic() {
        let transfer = |op| {
            let io = Io { op, slba: Lba(2), buf: IoBuf::zeroed(4096), tag: 0 };
            Transfer::new(io, 512)
        };
        for op in [IoOp::Read, IoOp::Write] {
            for count in [4097, 99_999_999, i32::MAX as usize, usize::MAX] {
                let step = transfer(op).advance(Ok(count));
                let expected = IoError::Excess { expected: 4096, found: count as u64 };
                assert!(matches!(step, Step::Ended(Err(error)) if error == expected));
            }
            // Also of what is left after a part.
            let mut transfer = transfer(op);
            assert!(matches!(transfer.advance(Ok(4000)), Step::Again));
            let step = transfer.advance(Ok(97));
            let expected = IoError::Excess { expected: 96, found: 97 };
            assert!(matches!(step, Step::Ended(Err(error)) if error == expected));
        }
    }
}
