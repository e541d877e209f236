//! A namespace in memory that other processes map.
//!
//! The memory has no stripes, because their locks would not exclude other processes. The caller must discard a read
//! that overlaps a write. Only blocks that the writer has frozen can be borrowed.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{MemPair, Memory, addressable, namespace};
use crate::qpair::{Device, IoError, Namespace, PairScope, QueuePair};
use dlfs_base::buf::{HugePages, Lender, SharedBuf, SharedBytes};
use dlfs_base::error::Result;
use dlfs_base::units::ALIGN_BYTES;

/// A namespace in memory that other processes may map: see [`SharedMemory::attach`]. Clones are handles on the
/// same bytes, which are zero at first. Only frozen blocks can be borrowed.
#[derive(Clone)]
pub struct SharedMemory {
    bytes: Arc<SharedBytes>,
    namespace: Namespace,
}

impl SharedMemory {
    /// Creates a namespace of `len_bytes` zeroes.
    ///
    /// # Errors
    /// As [`MemNamespace::new`](super::MemNamespace::new).
    pub fn new(len_bytes: u64, block_len_bytes: u32) -> Result<SharedMemory> {
        let namespace = namespace(len_bytes, block_len_bytes)?;
        let bytes = Arc::new(SharedBytes::new(addressable(len_bytes)?)?);
        Ok(SharedMemory { bytes, namespace })
    }

    /// As [`SharedMemory::new`], with blocks of 4,096 bytes. At most `used_bytes` will be written at a time,
    /// and only written blocks take memory.
    ///
    /// # Errors
    /// As [`SharedMemory::new`].
    pub fn sparse(len_bytes: u64, used_bytes: u64) -> Result<SharedMemory> {
        let namespace = namespace(len_bytes, ALIGN_BYTES as u32)?;
        let bytes = SharedBytes::sparse(addressable(len_bytes)?, addressable(used_bytes)?)?;
        Ok(SharedMemory { bytes: Arc::new(bytes), namespace })
    }

    /// Maps the memory `file` of another process as a read-only namespace. That process created it with the
    /// same lengths, with [`SharedMemory::new`], or with [`SharedMemory::sparse`] if `pages` is
    /// [`HugePages::Off`].
    ///
    /// # Errors
    /// `InvalidArgument`: the file has another length, or could be truncated. Otherwise as
    /// [`SharedMemory::new`].
    pub fn attach(
        file: OwnedFd,
        len_bytes: u64,
        block_len_bytes: u32,
        pages: HugePages,
    ) -> Result<SharedMemory> {
        let namespace = Namespace { read_only: true, ..namespace(len_bytes, block_len_bytes)? };
        let bytes = Arc::new(SharedBytes::open(file, addressable(len_bytes)?, pages)?);
        Ok(SharedMemory { bytes, namespace })
    }

    /// Allows borrowing of the blocks in `range`, in bytes; writes to them fail until [`SharedMemory::thaw`].
    pub fn freeze(&self, range: Range<u64>) {
        self.bytes.freeze(range.start as usize, (range.end - range.start) as usize);
    }

    /// Ends the borrowing of the blocks in `range`, in bytes. `true`: none of them is still borrowed, so they may be
    /// written and deallocated. Otherwise call it again later.
    pub fn thaw(&self, range: Range<u64>) -> bool {
        self.bytes.thaw(range.start as usize, (range.end - range.start) as usize)
    }

    /// Frees the memory of the blocks in `range`, in bytes; they then read as zeroes.
    ///
    /// # Errors
    /// Errors of the operating system; `EBUSY`: some are frozen, or still borrowed.
    pub fn deallocate(&self, range: Range<u64>) -> Result<()> {
        let len = (range.end - range.start) as usize;
        Ok(self.bytes.deallocate(range.start as usize, len)?)
    }

    /// The file descriptor of the memory, to be passed to another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.bytes.file()
    }
}

impl Device for SharedMemory {
    fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let memory = MappedMemory { bytes: Arc::clone(&self.bytes), lender: self.bytes.lender() };
        Ok(Box::new(MemPair::new(memory, self.namespace.clone())))
    }
}

/// The memory of a queue pair on a [`SharedMemory`].
struct MappedMemory {
    bytes: Arc<SharedBytes>,
    /// Counts the blocks that this queue pair lends. `None`: another process writes the memory, so nothing is lent.
    lender: Option<Arc<Lender>>,
}

impl Memory for MappedMemory {
    fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.bytes.read(offset, bytes);
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), IoError> {
        let failed = |error: std::io::Error| IoError::Os(error.raw_os_error().unwrap_or(libc::EIO));
        self.bytes.write(offset, bytes).map_err(failed)
    }

    fn prefetch(&self, offset: usize, len: usize) {
        self.bytes.prefetch(offset, len);
    }

    fn borrow(&self, offset: usize, len: usize) -> Option<SharedBuf> {
        self.bytes.lend(self.lender.as_ref()?, offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::qpair::IoOp;
    use dlfs_base::buf::IoBuf;
    use dlfs_base::units::Lba;

    #[test]
    fn another_handle_on_shared_memory_reads_what_is_written_and_writes_nothing() {
        let device = SharedMemory::new(3 << 20, 4096).unwrap();
        let file = device.file().try_clone_to_owned().unwrap();
        let attached = SharedMemory::attach(file, 3 << 20, 4096, HugePages::Auto).unwrap();
        let mut writer = device.queue_pair().unwrap();
        let mut reader = attached.queue_pair().unwrap();
        let mut buf = IoBuf::zeroed(1 << 20);
        buf.fill(7);
        assert_eq!(run(&mut *writer, IoOp::Write, 512, buf).result, Ok(()));
        let read = run(&mut *reader, IoOp::Read, 511, IoBuf::zeroed(8192));
        assert!(
            read.result.is_ok() && read.buf[..4096] == [0; 4096] && read.buf[4096..] == [7; 4096]
        );
        assert!(reader.borrow(Lba(512), 4096).is_none(), "others may write to it");
        let refused = run(&mut *reader, IoOp::Write, 0, IoBuf::zeroed(4096));
        assert!(matches!(refused.result, Err(IoError::Invalid(_))));
    }
}
