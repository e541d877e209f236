//! The files of a namespace and the progress of an I/O on them: the common part of `pread` and io_uring.
//!
//! The file engine without io_uring: each I/O is a `pread`, `pwrite` or `fdatasync` in `poll`, which blocks.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use super::{Completion, Io, IoError, IoOp, Namespace, QueuePair};
use dlfs_base::units::Lba;

/// The descriptors of a namespace and the state that its queue pairs share.
pub(super) struct Files {
    pub(super) path: PathBuf,
    pub(super) buffered: File,
    direct: Option<DirectFile>,
    pub(super) is_block_device: bool,
    num_blocks: AtomicU64,
}

/// A descriptor with O_DIRECT.
pub(super) struct DirectFile {
    file: File,
    /// The alignment of memory addresses, and of offsets and lengths.
    mem_align: usize,
    offset_align: u64,
}

impl DirectFile {
    /// Wraps `file`, with the alignment that the kernel reports.
    pub(super) fn new(file: File) -> std::io::Result<DirectFile> {
        let dio_align = StatxFlags::from_bits_retain(STATX_DIOALIGN);
        let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, dio_align)?;
        if stat.stx_mask & STATX_DIOALIGN == 0 {
            // A kernel before 6.1 does not report it; the page size is always enough.
            return Ok(DirectFile { file, mem_align: 4096, offset_align: 4096 });
        }
        if stat.stx_dio_offset_align == 0 {
            return Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let mem_align = stat.stx_dio_mem_align.max(1) as usize;
        Ok(DirectFile { file, mem_align, offset_align: u64::from(stat.stx_dio_offset_align) })
    }
}

impl Files {
    /// Returns whether most I/O bypasses the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    pub(super) fn new(
        path: &Path,
        buffered: File,
        direct: Option<DirectFile>,
        is_block_device: bool,
        num_blocks: u64,
    ) -> Files {
        let path = path.to_owned();
        let num_blocks = AtomicU64::new(num_blocks);
        Files { path, buffered, direct, is_block_device, num_blocks }
    }

    /// Wraps any descriptor.
    #[cfg(test)]
    pub(super) fn of_descriptor(descriptor: std::os::fd::OwnedFd) -> Files {
        Files::new(Path::new("test"), descriptor.into(), None, false, 100)
    }

    /// Updates the size in a queue pair's `namespace`.
    pub(super) fn refresh(&self, namespace: &mut Namespace) {
        namespace.num_blocks = self.num_blocks.load(Ordering::Relaxed);
    }

    /// The descriptors that a ring may register, the one without O_DIRECT first. A writer registers none: a
    /// closed ring releases its descriptors some time later, and with them the writer's lock.
    pub(super) fn to_register(&self, namespace: &Namespace) -> Vec<RawFd> {
        if !namespace.read_only {
            return Vec::new();
        }
        let direct = self.direct.as_ref().map(|direct| direct.file.as_raw_fd());
        [Some(self.buffered.as_raw_fd()), direct].into_iter().flatten().collect()
    }

    /// Drops the cached pages of these blocks, so that they are read from the medium again.
    pub(super) fn drop_cached(&self, slba: Lba, len_bytes: usize, namespace: &Namespace) {
        let offset = slba.0.saturating_mul(u64::from(namespace.block_len_bytes));
        let len = std::num::NonZeroU64::new(len_bytes as u64);
        // Pages that another process uses or has changed may stay cached.
        let _ = rustix::fs::fadvise(&self.buffered, offset, len, rustix::fs::Advice::DontNeed);
    }

    /// Raises the size to `num_blocks`; never lowers it, so that checked I/Os stay within bounds.
    pub(super) fn set_num_blocks(&self, num_blocks: u64) {
        self.num_blocks.fetch_max(num_blocks, Ordering::Relaxed);
    }
}

/// An I/O and its progress.
pub(super) struct Transfer {
    pub(super) io: Io,
    /// Bytes transferred so far.
    pub(super) moved: usize,
    /// The offset of the I/O in bytes.
    start: u64,
    /// Set once O_DIRECT refused the I/O.
    buffered_only: bool,
    retries: u8,
}

/// The next step after a system call.
pub(super) enum Step {
    /// Continue with the remaining bytes.
    Again,
    /// The I/O has ended.
    Ended(Result<(), IoError>),
}

impl Transfer {
    /// Creates the transfer of an I/O that was already checked.
    pub(super) fn new(io: Io, block_len_bytes: u32) -> Transfer {
        let start = io.slba.0 * u64::from(block_len_bytes);
        Transfer { io, moved: 0, start, buffered_only: false, retries: 0 }
    }

    /// The offset of the remaining bytes.
    pub(super) fn offset(&self) -> u64 {
        self.start + self.moved as u64
    }

    /// The index in [`Files::to_register`] of the descriptor for the remaining bytes.
    pub(super) fn file_index(&self, files: &Files) -> usize {
        usize::from(self.direct(files).is_some())
    }

    /// The descriptor for the remaining bytes, chosen by their alignment.
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

    /// Handles the result of a system call: bytes transferred, or an error.
    pub(super) fn advance(&mut self, result: Result<usize, Errno>) -> Step {
        let expected = self.io.buf.len();
        match result {
            _ if self.io.op == IoOp::Flush && result.is_ok() => Step::Ended(Ok(())),
            Ok(0) if self.io.op == IoOp::Write => Step::Ended(Err(os_error(Errno::IO))),
            Ok(0) => Step::Ended(IoError::check_count(expected as u64, self.moved as u64)),
            // After an excessive count, no byte of the buffer can be trusted.
            Ok(count) if count > expected - self.moved => {
                Step::Ended(IoError::check_count((expected - self.moved) as u64, count as u64))
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
                self.buffered_only = true; // the file system requires more alignment than it reported
                Step::Again
            }
            Err(errno) => Step::Ended(Err(os_error(errno))),
        }
    }
}

fn os_error(errno: Errno) -> IoError {
    IoError::Os(errno.raw_os_error())
}

/// A queue pair that makes plain system calls.
pub(super) struct PreadPair {
    files: Arc<Files>,
    namespace: Namespace,
    taken: VecDeque<Io>,
}

impl PreadPair {
    pub(super) fn new(files: Arc<Files>, namespace: Namespace) -> PreadPair {
        let taken = VecDeque::with_capacity(usize::from(namespace.queue_depth));
        PreadPair { files, namespace, taken }
    }

    fn run(&self, io: Io) -> Completion {
        if let Err(error) = self.namespace.check(&io) {
            return Completion { tag: io.tag, buf: io.buf, result: Err(error) };
        }
        let mut transfer = Transfer::new(io, self.namespace.block_len_bytes);
        let result = self.finish(&mut transfer);
        Completion { tag: transfer.io.tag, buf: transfer.io.buf, result }
    }

    fn finish(&self, transfer: &mut Transfer) -> Result<(), IoError> {
        loop {
            let result = self.call(transfer);
            if let Step::Ended(result) = transfer.advance(result) {
                return result;
            }
        }
    }

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

/// The queue depth of a queue pair.
pub(super) const QUEUE_DEPTH: u16 = 128;

/// The most interruptions of one I/O before it fails.
const MAX_RETRIES: u8 = 100;

/// `STATX_DIOALIGN`, which rustix does not name yet.
const STATX_DIOALIGN: u32 = 0x2000;

/// The most I/Os of one `poll`, so that the caller regains control between slow I/Os.
const BURST: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::buf::IoBuf;
    use dlfs_base::units::Lba;

    #[test]
    fn an_impossible_byte_count_is_an_error_not_a_panic() {
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
            // The same holds for the remaining bytes of a partial transfer.
            let mut transfer = transfer(op);
            assert!(matches!(transfer.advance(Ok(4000)), Step::Again));
            let step = transfer.advance(Ok(97));
            let expected = IoError::Excess { expected: 96, found: 97 };
            assert!(matches!(step, Step::Ended(Err(error)) if error == expected));
        }
    }
}
