//! The files of a namespace, and the progress of one I/O on them: common to `pread` and io_uring.
//!
//! A system call may transfer fewer bytes than asked, be interrupted, or refuse O_DIRECT for an unaligned buffer.
//! [`Transfer`] decides after each call whether and how to continue.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use super::{Io, IoError, IoOp, Namespace};
use dlfs_base::units::Lba;

/// The descriptors of a file or block device, and its size, which its queue pairs share.
pub(super) struct Files {
    pub(super) path: PathBuf,
    /// The descriptor without O_DIRECT.
    pub(super) buffered: File,
    /// The descriptor with O_DIRECT, if the namespace was opened with one.
    direct: Option<DirectFile>,
    pub(super) is_block_device: bool,
    /// The size in blocks, which only grows.
    num_blocks: AtomicU64,
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

    /// Copies the current size into a queue pair's `namespace`.
    pub(super) fn refresh(&self, namespace: &mut Namespace) {
        namespace.num_blocks = self.num_blocks.load(Ordering::Relaxed);
    }

    /// The descriptors that a ring may register: the one without O_DIRECT, then the one with it, if there is one. A
    /// writer registers none: the kernel releases the descriptors of a closed ring some time later, and with them the
    /// writer's lock.
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

/// A descriptor with O_DIRECT.
pub(super) struct DirectFile {
    file: File,
    /// The alignment of memory addresses, in bytes.
    mem_align: usize,
    /// The alignment of offsets and lengths, in bytes.
    offset_align: u64,
}

impl DirectFile {
    /// Wraps `file`, with the alignment that the kernel reports.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the file has no direct I/O. Errors of `statx`.
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

/// An I/O and its progress.
pub(super) struct Transfer {
    pub(super) io: Io,
    /// Bytes transferred so far.
    pub(super) moved: usize,
    /// The offset of the I/O in the file, in bytes.
    start: u64,
    /// Set once O_DIRECT refused the I/O: it continues through the page cache.
    buffered_only: bool,
    /// System calls that were interrupted or answered EAGAIN.
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

    /// The offset of the remaining bytes in the file, in bytes.
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

    /// Returns whether memory, offset and length of the remaining bytes have the alignment that `direct` needs.
    fn is_aligned(&self, direct: &DirectFile) -> bool {
        let rest = &self.io.buf[self.moved..];
        rest.as_ptr().addr().is_multiple_of(direct.mem_align)
            && self.offset().is_multiple_of(direct.offset_align)
            && (rest.len() as u64).is_multiple_of(direct.offset_align)
    }

    /// Handles the result of a system call, which is the number of bytes transferred, or an error.
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

/// The queue depth of a queue pair.
pub(super) const QUEUE_DEPTH: u16 = 128;

/// The most calls of one I/O that are interrupted or answer EAGAIN before it fails.
const MAX_RETRIES: u8 = 100;

/// `STATX_DIOALIGN`, which rustix does not name yet.
const STATX_DIOALIGN: u32 = 0x2000;

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
