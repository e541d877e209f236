//! The files of a namespace, and an I/O on its way to or from them: what `pread` and rings have in common.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use super::{Io, IoError, IoOp, Namespace};
use crate::units::Lba;

/// The descriptors of a namespace and what its queue pairs share.
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
    /// What memory addresses, and offsets and lengths, must be multiples of.
    mem_align: usize,
    offset_align: u64,
}

impl DirectFile {
    /// Of `file`, with the alignment that the kernel says it wants.
    pub(super) fn new(file: File) -> std::io::Result<DirectFile> {
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
}

impl Files {
    /// Whether most I/O goes past the page cache.
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
    pub(super) fn set_num_blocks(&self, num_blocks: u64) {
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

/// I/Os of one queue pair.
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
