//! Namespaces in memory, for tiers and stores, tests and benches: in memory of this process alone ([`MemNamespace`]),
//! or in memory that other processes map ([`SharedMemory`]). An I/O is one copy, made in `poll` on the caller's thread.
//!
//! The bytes of a [`MemNamespace`] are divided into stripes with a lock each, so that queue pairs of many threads read
//! in parallel and a writer blocks few of them. Read-only queue pairs let callers borrow their bytes. A write to a
//! stripe with borrowed bytes replaces the stripe by a changed copy: borrowed bytes never change. So borrowing suits
//! data that are rarely written, and queue pairs that may write do not offer it. The copies take at most as much memory
//! as the borrowed stripes.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;

use super::{Completion, Cpus, Device, Io, IoError, IoOp, Namespace, PairScope, QueuePair};
use dlfs_base::buf::{
    HugePages, IoBuf, Lender, Pool, PoolOptions, SharedBuf, SharedBytes, prefetch,
};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::units::{ALIGN_BYTES, Lba};

/// A namespace in memory. Clones are handles on the same bytes.
///
/// All bytes are zero at first; they are freed with the last handle and queue pair. A flush does nothing.
#[derive(Clone)]
pub struct MemNamespace {
    stripes: Arc<Stripes>,
    namespace: Namespace,
}

impl MemNamespace {
    /// Creates a namespace of `len_bytes` zeroes, in huge pages if there are any.
    ///
    /// # Errors
    /// `InvalidArgument`: the block length is no power of two from 512 to 4,096, or the length is not one or
    /// more whole blocks. `OutOfMemory`: the operating system has too little memory.
    pub fn new(len_bytes: u64, block_len_bytes: u32) -> Result<MemNamespace> {
        let namespace = namespace(len_bytes, block_len_bytes)?;
        Ok(MemNamespace { stripes: Arc::new(Stripes::new(len_bytes)?), namespace })
    }

    /// As [`MemNamespace::new`], but allocates all memory now, near `cpus`. The kernel allocates a page on the
    /// NUMA node of the processor that touches it first, so a thread that is bound to `cpus` touches each page.
    ///
    /// # Errors
    /// As [`MemNamespace::new`]; the thread cannot be started or bound.
    pub fn near(cpus: &Cpus, len_bytes: u64, block_len_bytes: u32) -> Result<MemNamespace> {
        cpus.run(|| {
            let device = MemNamespace::new(len_bytes, block_len_bytes)?;
            device.stripes.touch();
            Ok(device)
        })?
    }

    /// Another handle on the same bytes, whose queue pairs refuse writes.
    pub fn read_only(&self) -> MemNamespace {
        let mut handle = self.clone();
        handle.namespace.read_only = true;
        handle
    }

    /// Another handle on the same bytes, with these limits.
    pub fn with_limits(&self, max_transfer_bytes: u32, queue_depth: u16) -> MemNamespace {
        let mut handle = self.clone();
        handle.namespace.max_transfer_bytes = max_transfer_bytes;
        handle.namespace.queue_depth = queue_depth.max(1);
        handle
    }

    /// Another handle on the same bytes, under this identifier.
    pub fn with_nguid(&self, nguid: [u8; 16]) -> MemNamespace {
        let mut handle = self.clone();
        handle.namespace.nguid = nguid;
        handle
    }
}

impl Device for MemNamespace {
    fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let namespace = self.namespace.clone();
        let memory =
            StripedMemory { stripes: Arc::clone(&self.stripes), lends: namespace.read_only };
        Ok(Box::new(MemPair::new(memory, namespace)))
    }
}

/// The properties of a writable namespace in memory.
fn namespace(len_bytes: u64, block_len_bytes: u32) -> Result<Namespace> {
    let block_ok = block_len_bytes.is_power_of_two() && (512..=4096).contains(&block_len_bytes);
    let block_len = u64::from(block_len_bytes);
    if !block_ok || len_bytes == 0 || !len_bytes.is_multiple_of(block_len) {
        return Err(invalid(format!(
            "{len_bytes} bytes are not whole blocks of {block_len_bytes}"
        )));
    }
    Ok(Namespace {
        address: "mem".into(),
        block_len_bytes,
        num_blocks: len_bytes / block_len,
        max_transfer_bytes: MAX_TRANSFER_BYTES,
        queue_depth: QUEUE_DEPTH,
        nguid: [0; 16],
        read_only: false,
        engine: "mem".into(),
    })
}

/// A length of the namespace as a length in memory.
fn addressable(len_bytes: u64) -> Result<usize> {
    let too_large = |_| Error::new(ErrorKind::OutOfMemory, "more bytes than can be addressed");
    usize::try_from(len_bytes).map_err(too_large)
}

/// The bytes of one queue pair's namespace. Offsets and lengths are in bytes, and were checked before.
trait Memory: Send {
    /// Reads bytes from this offset on.
    fn read(&self, offset: usize, bytes: &mut [u8]);

    /// Writes bytes from this offset on.
    ///
    /// # Errors
    /// The memory is another process's, some of its blocks are frozen or lent, or there is too little memory.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), IoError>;

    /// Prefetches the start of these `len` bytes into the processor's cache.
    fn prefetch(&self, offset: usize, len: usize);

    /// As [`QueuePair::borrow`].
    fn borrow(&self, offset: usize, len: usize) -> Option<SharedBuf>;
}

/// A queue pair that copies a few I/Os in each turn, so that the caller uses the bytes while they are in the cache.
struct MemPair<M> {
    memory: M,
    namespace: Namespace,
    /// I/Os that were taken and that no turn has copied yet.
    taken: VecDeque<Io>,
}

impl<M: Memory> MemPair<M> {
    fn new(memory: M, namespace: Namespace) -> MemPair<M> {
        let taken = VecDeque::with_capacity(usize::from(namespace.queue_depth));
        MemPair { memory, namespace, taken }
    }

    /// The number of I/Os that one turn copies.
    fn burst(&self) -> usize {
        let mut bytes = 0;
        let fits = |io: &&Io| {
            bytes += io.buf.len();
            bytes <= BURST_BYTES
        };
        self.taken.iter().take_while(fits).count().max(1).min(self.taken.len())
    }

    fn offset_of(&self, slba: Lba) -> usize {
        let offset = slba.0 * u64::from(self.namespace.block_len_bytes);
        usize::try_from(offset).expect("a checked offset lies in memory")
    }

    fn prefetch(&self, io: &Io) {
        if io.op == IoOp::Read && self.namespace.check(io).is_ok() {
            self.memory.prefetch(self.offset_of(io.slba), io.buf.len());
        }
    }

    /// Copies one I/O.
    fn run(&self, io: &mut Io) -> Result<(), IoError> {
        self.namespace.check(io)?;
        match io.op {
            IoOp::Read => self.memory.read(self.offset_of(io.slba), &mut io.buf),
            IoOp::Write => return self.memory.write(self.offset_of(io.slba), &io.buf),
            IoOp::Flush => {}
        }
        Ok(())
    }
}

impl<M: Memory> QueuePair for MemPair<M> {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let room = usize::from(self.namespace.queue_depth) - self.taken.len();
        let count = room.min(pending.len());
        self.taken.extend(pending.drain(..count));
        count
    }

    fn poll(&mut self, _now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let count = max.min(self.burst());
        for index in 0..count {
            if let Some(later) = self.taken.get(LOOK_AHEAD) {
                self.prefetch(later);
            }
            let Some(mut io) = self.taken.pop_front() else { return index };
            let result = self.run(&mut io);
            done.push(io.end(result));
        }
        count
    }

    fn outstanding(&self) -> usize {
        self.taken.len()
    }

    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        self.memory.borrow(self.offset_of(slba), len_bytes)
    }
}

/// The memory of a queue pair on a [`MemNamespace`].
struct StripedMemory {
    stripes: Arc<Stripes>,
    /// True if callers may borrow bytes.
    lends: bool,
}

/// Stripes of equal length, except a shorter last one.
struct Stripes(Box<[RwLock<SharedBuf>]>);

impl Stripes {
    fn new(len_bytes: u64) -> Result<Stripes> {
        let too_large = || Error::new(ErrorKind::OutOfMemory, "more bytes than can be addressed");
        let len = addressable(len_bytes)?;
        let bytes = len.checked_next_multiple_of(STRIPE_LEN_BYTES).ok_or_else(too_large)?;
        let slot_len_bytes = STRIPE_LEN_BYTES;
        let pool = Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages: HugePages::Auto })?;
        let stripe = |start: usize| {
            let len = STRIPE_LEN_BYTES.min(len - start);
            RwLock::new(pool.take(len).expect("as many slots as stripes").freeze())
        };
        Ok(Stripes((0..len).step_by(STRIPE_LEN_BYTES).map(stripe).collect()))
    }

    /// Writes a zero to every page, so that the kernel allocates it now.
    fn touch(&self) {
        for stripe in &self.0 {
            let mut stripe = stripe.write();
            let mut bytes =
                std::mem::take(&mut *stripe).thaw().expect("the bytes are not shared yet");
            bytes.chunks_mut(ALIGN_BYTES).for_each(|page| page[0] = 0);
            *stripe = bytes.freeze();
        }
    }
}

impl Memory for StripedMemory {
    fn read(&self, offset: usize, mut bytes: &mut [u8]) {
        let (mut stripe, mut start) = split_offset(offset);
        while !bytes.is_empty() {
            let source = self.stripes.0[stripe].read();
            let count = bytes.len().min(source.len() - start);
            let (part, rest) = bytes.split_at_mut(count);
            part.copy_from_slice(&source[start..start + count]);
            (bytes, stripe, start) = (rest, stripe + 1, 0);
        }
    }

    fn write(&self, offset: usize, mut bytes: &[u8]) -> Result<(), IoError> {
        let (mut stripe, mut start) = split_offset(offset);
        while !bytes.is_empty() {
            let mut current = self.stripes.0[stripe].write();
            let count = bytes.len().min(current.len() - start);
            let mut changed = std::mem::take(&mut *current).thaw().unwrap_or_else(|lent| {
                let mut copy = IoBuf::zeroed(lent.len());
                copy.copy_from_slice(&lent);
                copy
            });
            changed[start..start + count].copy_from_slice(&bytes[..count]);
            *current = changed.freeze();
            (bytes, stripe, start) = (&bytes[count..], stripe + 1, 0);
        }
        Ok(())
    }

    fn prefetch(&self, offset: usize, len: usize) {
        let (stripe, start) = split_offset(offset);
        let source = self.stripes.0[stripe].read();
        prefetch(&source[start..source.len().min(start + len)]);
    }

    /// Returns `None` if the bytes span two stripes.
    fn borrow(&self, offset: usize, len: usize) -> Option<SharedBuf> {
        let (stripe, start) = split_offset(offset);
        let stripe = self.lends.then(|| self.stripes.0[stripe].read())?;
        (start + len <= stripe.len()).then(|| stripe.slice(start..start + len))
    }
}

/// The stripe of `offset`, and the offset within it.
fn split_offset(offset: usize) -> (usize, usize) {
    (offset / STRIPE_LEN_BYTES, offset % STRIPE_LEN_BYTES)
}

/// A namespace in memory that other processes may map: see [`SharedMemory::attach`]. Clones are handles on the
/// same bytes, which are zero at first. Only frozen blocks can be borrowed.
///
/// The memory has no stripes, because their locks would not exclude other processes. The caller must discard a read
/// that overlaps a write.
#[derive(Clone)]
pub struct SharedMemory {
    bytes: Arc<SharedBytes>,
    namespace: Namespace,
}

impl SharedMemory {
    /// Creates a namespace of `len_bytes` zeroes.
    ///
    /// # Errors
    /// As [`MemNamespace::new`].
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

/// Length of a stripe: what a write locks, and what it copies if bytes of it are borrowed.
const STRIPE_LEN_BYTES: usize = 1 << 20;
const MAX_TRANSFER_BYTES: u32 = 1 << 20;
const QUEUE_DEPTH: u16 = 256;

/// The bytes that one turn copies: half of a small second-level cache.
const BURST_BYTES: usize = 128 << 10;

/// The prefetch distance in I/Os: copying 4 KiB takes longer than fetching its first bytes.
const LOOK_AHEAD: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pair: &mut dyn QueuePair, op: IoOp, slba: u64, buf: IoBuf) -> Completion {
        let mut pending = VecDeque::from([Io { op, slba: Lba(slba), buf, tag: 1 }]);
        let mut done = Vec::new();
        assert_eq!(pair.submit(&mut pending), 1);
        assert_eq!(pair.poll(Instant::now(), 8, &mut done), 1);
        done.pop().unwrap()
    }

    #[test]
    fn bytes_that_cross_stripes_come_back_as_written_through_another_queue_pair() {
        let device = MemNamespace::new((2 << 20) + 512, 512).unwrap();
        let mut writer = device.queue_pair().unwrap();
        let mut reader = device.read_only().queue_pair().unwrap();
        let mut buf = IoBuf::zeroed(1 << 20);
        buf.iter_mut().zip(0u32..).for_each(|(byte, at)| *byte = (at % 251) as u8);
        let expected = buf.to_vec();
        let slba = (2 << 20 >> 9) + 1 - (1 << 20 >> 9); // ends with the last block
        assert_eq!(run(&mut *writer, IoOp::Write, slba, buf).result, Ok(()));
        let read = run(&mut *reader, IoOp::Read, slba, IoBuf::zeroed(1 << 20));
        assert!(read.result.is_ok() && read.buf[..] == expected[..]);
        let refused = run(&mut *reader, IoOp::Write, 0, IoBuf::zeroed(512));
        assert!(matches!(refused.result, Err(IoError::Invalid(_))));
    }

    #[test]
    fn borrowed_bytes_do_not_change_while_another_handle_writes() {
        let device = MemNamespace::new(3 << 20, 4096).unwrap();
        let mut writer = device.queue_pair().unwrap();
        let mut reader = device.read_only().queue_pair().unwrap();
        let full = |byte: u8| {
            let mut buf = IoBuf::zeroed(8192);
            buf.fill(byte);
            buf
        };
        assert_eq!(run(&mut *writer, IoOp::Write, 256, full(1)).result, Ok(()));
        assert!(
            writer.borrow(Lba(256), 8192).is_none(),
            "a writable queue pair has nothing to borrow"
        );
        assert!(reader.borrow(Lba(255), 8192).is_none(), "these lie in two stripes");
        let lent = reader.borrow(Lba(256), 8192).expect("within one stripe");
        assert_eq!(run(&mut *writer, IoOp::Write, 257, full(2)).result, Ok(()));
        assert!(lent.iter().all(|&byte| byte == 1));
        let read = run(&mut *reader, IoOp::Read, 256, full(0)).buf;
        assert!(read[..4096].iter().all(|&byte| byte == 1));
        assert!(read[4096..].iter().all(|&byte| byte == 2));
        let again = reader.borrow(Lba(256), 8192).expect("within one stripe");
        assert_eq!(again[..], read[..]);
    }

    #[test]
    fn sizes_that_are_not_whole_blocks_are_refused() {
        for (len_bytes, block_len_bytes) in [(0, 512), (513, 512), (4096, 256), (8192, 8192)] {
            let error = MemNamespace::new(len_bytes, block_len_bytes).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }

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
