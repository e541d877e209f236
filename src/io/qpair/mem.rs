//! A namespace in memory: for tests, for benches, and for a target that serves memory.
//!
//! An I/O is one copy, made in `poll` on the caller's thread. The region is divided into stripes with a lock
//! each, so that queue pairs of many threads read in parallel and a writer blocks few of them.
//!
//! Read-only queue pairs let callers borrow their bytes. A write to a stripe with borrowed bytes goes to a
//! copy of the stripe, which replaces it: borrowed bytes never change. So borrowing suits data that are
//! rarely written, and queue pairs that may write do not offer it. The copies take at most as much memory as
//! the borrowed stripes.
//!
//! [`MemNamespace::shared`] has no stripes: other processes read the same memory, and no lock keeps them from
//! it. What a read returns that overlaps a write is for the caller to discard. Its writer says which blocks are
//! lent: those that it has frozen ([`MemNamespace::freeze`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use super::readiness::Registry;
use super::{
    Capabilities, Completion, Cpus, Device, Fence, Io, IoError, IoOp, Namespace, Notice, PairScope,
    QueuePair,
};
use dlfs_base::buf::{
    HugePages, IoBuf, Lender, Pool, PoolOptions, SharedBuf, SharedBytes, prefetch,
};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::{ALIGN_BYTES, Lba};

/// A namespace in memory. Clones are handles on the same bytes.
///
/// All bytes are zero at first; they are freed with the last handle and queue pair. A flush does nothing.
#[derive(Clone)]
pub struct MemNamespace {
    region: Arc<Region>,
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
        Ok(MemNamespace { region: Arc::new(Region::new(len_bytes)?), namespace })
    }

    /// As [`MemNamespace::new`], in memory that other processes may read: see [`MemNamespace::attach`].
    /// Callers borrow blocks that are frozen, and no others.
    ///
    /// # Errors
    /// As [`MemNamespace::new`].
    pub fn shared(len_bytes: u64, block_len_bytes: u32) -> Result<MemNamespace> {
        let namespace = namespace(len_bytes, block_len_bytes)?;
        let region = Region::Shared(SharedBytes::new(addressable(len_bytes)?)?);
        Ok(MemNamespace { region: Arc::new(region), namespace })
    }

    /// As [`MemNamespace::shared`], with blocks of 4,096 bytes of which no more than `used_bytes` will be
    /// written at a time: only those take memory.
    ///
    /// # Errors
    /// As [`MemNamespace::new`].
    pub fn sparse(len_bytes: u64, used_bytes: u64) -> Result<MemNamespace> {
        let namespace = namespace(len_bytes, ALIGN_BYTES as u32)?;
        let bytes = SharedBytes::sparse(addressable(len_bytes)?, addressable(used_bytes)?)?;
        Ok(MemNamespace { region: Arc::new(Region::Shared(bytes)), namespace })
    }

    /// The read-only namespace in the memory `file`, which another process created with these lengths, with
    /// [`MemNamespace::shared`], or with [`MemNamespace::sparse`] if `pages` is [`HugePages::Off`].
    ///
    /// # Errors
    /// `InvalidArgument`: the file has another length, or could be cut off. As [`MemNamespace::new`].
    pub fn attach(
        file: OwnedFd,
        len_bytes: u64,
        block_len_bytes: u32,
        pages: HugePages,
    ) -> Result<MemNamespace> {
        let namespace = Namespace { read_only: true, ..namespace(len_bytes, block_len_bytes)? };
        let region = Region::Shared(SharedBytes::open(file, addressable(len_bytes)?, pages)?);
        Ok(MemNamespace { region: Arc::new(region), namespace })
    }

    /// From now on the blocks in `range` of a namespace that is shared may be borrowed, and are not written.
    pub fn freeze(&self, range: Range<u64>) {
        if let Region::Shared(bytes) = &*self.region {
            bytes.freeze(range.start as usize, (range.end - range.start) as usize);
        }
    }

    /// Ends the borrowing of the blocks in `range`. `true`: nobody has borrowed any of them, so they may be
    /// written and deallocated. Otherwise ask again later.
    pub fn thaw(&self, range: Range<u64>) -> bool {
        match &*self.region {
            Region::Shared(bytes) => {
                bytes.thaw(range.start as usize, (range.end - range.start) as usize)
            }
            Region::Own(_) => true,
        }
    }

    /// Frees the memory of the blocks in `range` of a namespace that is shared; they then read as zeroes.
    ///
    /// # Errors
    /// `Unsupported`: it is not shared. Errors of the operating system; `EBUSY`: some are frozen, or still
    /// borrowed.
    pub fn deallocate(&self, range: Range<u64>) -> Result<()> {
        match &*self.region {
            Region::Shared(bytes) => {
                let len = (range.end - range.start) as usize;
                Ok(bytes.deallocate(range.start as usize, len)?)
            }
            Region::Own(_) => {
                let text = "memory of one process is not deallocated in parts";
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }

    /// The memory, to be passed to another process; `None` if it is not shared.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &*self.region {
            Region::Shared(bytes) => Some(bytes.file()),
            Region::Own(_) => None,
        }
    }

    /// As [`MemNamespace::new`], but allocates all memory now, near `cpus`: the kernel allocates a page on
    /// the NUMA node of the processor that touches it first, so a thread that is bound to them touches each
    /// page.
    ///
    /// # Errors
    /// As [`MemNamespace::new`]; the thread cannot be started or bound.
    pub fn near(cpus: &Cpus, len_bytes: u64, block_len_bytes: u32) -> Result<MemNamespace> {
        cpus.run(|| {
            let device = MemNamespace::new(len_bytes, block_len_bytes)?;
            device.region.touch();
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
        let taken = VecDeque::with_capacity(usize::from(self.namespace.queue_depth));
        let region = Arc::clone(&self.region);
        let namespace = self.namespace.clone();
        let lender = region.lender();
        Ok(Box::new(MemPair { region, namespace, taken, lender }))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_queue_pairs: usize::MAX,
            can_grow: false,
            is_exclusive: false,
            late_writes: Duration::ZERO,
            checks_writes: true,
            is_page_cached: false,
            local_path: None,
            allocated_bytes: None,
        }
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        self.namespace().must_hold(len_bytes)
    }
}

fn namespace(len_bytes: u64, block_len_bytes: u32) -> Result<Namespace> {
    let block_ok = block_len_bytes.is_power_of_two() && (512..=4096).contains(&block_len_bytes);
    let block_len = u64::from(block_len_bytes);
    if !block_ok || len_bytes == 0 || !len_bytes.is_multiple_of(block_len) {
        let message = format!("{len_bytes} bytes are not whole blocks of {block_len_bytes}");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
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

fn addressable(len_bytes: u64) -> Result<usize> {
    let too_large = |_| Error::new(ErrorKind::OutOfMemory, "more bytes than can be addressed");
    usize::try_from(len_bytes).map_err(too_large)
}

/// Copies a few I/Os in each turn, so that the caller uses the bytes while they are in the cache.
struct MemPair {
    region: Arc<Region>,
    namespace: Namespace,
    taken: VecDeque<Io>,
    /// Counts what is borrowed from memory that is shared.
    lender: Option<Arc<Lender>>,
}

impl MemPair {
    /// The number of I/Os that one turn copies.
    fn burst(&self) -> usize {
        let mut bytes = 0;
        let fits = |io: &&Io| {
            bytes += io.buf.len();
            bytes <= BURST_BYTES
        };
        self.taken.iter().take_while(fits).count().max(1).min(self.taken.len())
    }

    fn prefetch(&self, io: &Io) {
        if io.op == IoOp::Read && self.namespace.check(io).is_ok() {
            let offset = io.slba.0 * u64::from(self.namespace.block_len_bytes);
            self.region.prefetch(offset, io.buf.len());
        }
    }
}

impl QueuePair for MemPair {
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
            let result = self.namespace.check(&io).and_then(|()| {
                let offset = io.slba.0 * u64::from(self.namespace.block_len_bytes);
                match io.op {
                    IoOp::Read => self.region.read(offset, &mut io.buf),
                    IoOp::Write => return self.region.write(offset, &io.buf),
                    IoOp::Flush => {}
                }
                Ok(())
            });
            done.push(Completion { tag: io.tag, buf: io.buf, result });
        }
        count
    }

    fn outstanding(&self) -> usize {
        self.taken.len()
    }

    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        let offset = slba.0 * u64::from(self.namespace.block_len_bytes);
        match (&*self.region, &self.lender) {
            (Region::Shared(shared), Some(lender)) => {
                shared.lend(lender, offset as usize, len_bytes)
            }
            _ => self.namespace.read_only.then(|| self.region.borrow(offset, len_bytes)).flatten(),
        }
    }

    fn start(&mut self) {}

    fn use_pool(&mut self, _: &Pool) {}

    fn use_fence(&mut self, _: &Arc<Fence>) {}

    /// There is one copy.
    fn report_corrupt(&mut self, _: Lba, _: usize) {}

    fn shared_queue(&self) -> Option<usize> {
        None
    }

    fn register(&mut self, _: &Registry) {}

    fn notice(&self) -> Notice {
        Notice::Poll
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}

/// The bytes.
enum Region {
    /// In this process: stripes of equal length, except a shorter last one.
    Own(Box<[RwLock<SharedBuf>]>),
    /// In memory that other processes read.
    Shared(SharedBytes),
}

impl Region {
    fn new(len_bytes: u64) -> Result<Region> {
        let too_large = || Error::new(ErrorKind::OutOfMemory, "more bytes than can be addressed");
        let len = addressable(len_bytes)?;
        let bytes = len.checked_next_multiple_of(STRIPE_LEN_BYTES).ok_or_else(too_large)?;
        let slot_len_bytes = STRIPE_LEN_BYTES;
        let pool = Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages: HugePages::Auto })?;
        let stripe = |start: usize| {
            let len = STRIPE_LEN_BYTES.min(len - start);
            RwLock::new(pool.take(len).expect("as many slots as stripes").freeze())
        };
        Ok(Region::Own((0..len).step_by(STRIPE_LEN_BYTES).map(stripe).collect()))
    }

    /// Counts what one queue pair lends of memory that is shared.
    fn lender(&self) -> Option<Arc<Lender>> {
        match self {
            Region::Own(_) => None,
            Region::Shared(shared) => shared.lender(),
        }
    }

    /// Writes to every page, zeroes all of them.
    fn touch(&self) {
        let Region::Own(stripes) = self else { return };
        for stripe in stripes {
            let mut place = stripe.write();
            let mut bytes =
                std::mem::take(&mut *place).thaw().expect("the bytes are not shared yet");
            bytes.chunks_mut(ALIGN_BYTES).for_each(|page| page[0] = 0);
            *place = bytes.freeze();
        }
    }

    fn read(&self, offset: u64, mut bytes: &mut [u8]) {
        let stripes = match self {
            Region::Own(stripes) => stripes,
            Region::Shared(shared) => return shared.read(offset as usize, bytes), // checked before
        };
        let (mut stripe, mut start) = split_offset(offset);
        while !bytes.is_empty() {
            let source = stripes[stripe].read();
            let count = bytes.len().min(source.len() - start);
            let (now, later) = bytes.split_at_mut(count);
            now.copy_from_slice(&source[start..start + count]);
            (bytes, stripe, start) = (later, stripe + 1, 0);
        }
    }

    /// Prefetches the first of `len` bytes into the processor's cache.
    fn prefetch(&self, offset: u64, len: usize) {
        let stripes = match self {
            Region::Own(stripes) => stripes,
            Region::Shared(shared) => return shared.prefetch(offset as usize, len),
        };
        let (stripe, start) = split_offset(offset);
        let source = stripes[stripe].read();
        prefetch(&source[start..source.len().min(start + len)]);
    }

    fn write(&self, offset: u64, mut bytes: &[u8]) -> Result<(), IoError> {
        let stripes = match self {
            Region::Own(stripes) => stripes,
            Region::Shared(shared) => {
                let no_memory = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
                return shared
                    .write(offset as usize, bytes)
                    .map_err(|error| IoError::Os(no_memory(error)));
            }
        };
        let (mut stripe, mut start) = split_offset(offset);
        while !bytes.is_empty() {
            let mut place = stripes[stripe].write();
            let count = bytes.len().min(place.len() - start);
            let mut destination = std::mem::take(&mut *place).thaw().unwrap_or_else(|lent| {
                let mut copy = IoBuf::zeroed(lent.len());
                copy.copy_from_slice(&lent);
                copy
            });
            destination[start..start + count].copy_from_slice(&bytes[..count]);
            *place = destination.freeze();
            (bytes, stripe, start) = (&bytes[count..], stripe + 1, 0);
        }
        Ok(())
    }

    /// Borrows `len` bytes of this process's own memory in place, unless they lie in two stripes.
    fn borrow(&self, offset: u64, len: usize) -> Option<SharedBuf> {
        let Region::Own(stripes) = self else { return None };
        let (stripe, start) = split_offset(offset);
        let stripe = stripes[stripe].read();
        (start + len <= stripe.len()).then(|| stripe.slice(start..start + len))
    }
}

/// The stripe of `offset`, and the offset within it. The offset was checked before.
fn split_offset(offset: u64) -> (usize, usize) {
    let offset = usize::try_from(offset).expect("a checked offset lies in memory");
    (offset / STRIPE_LEN_BYTES, offset % STRIPE_LEN_BYTES)
}

const STRIPE_LEN_BYTES: usize = 1 << 20;
const MAX_TRANSFER_BYTES: u32 = 1 << 20;
const QUEUE_DEPTH: u16 = 256;

/// The bytes that one turn copies: half of a small second-level cache.
const BURST_BYTES: usize = 128 << 10;

/// How many I/Os ahead memory is prefetched: copying 4 KiB takes longer than fetching its first bytes.
const LOOK_AHEAD: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qpair::IoError;
    use dlfs_base::units::Lba;

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
    fn another_handle_on_shared_memory_reads_what_is_written_and_writes_nothing() {
        let device = MemNamespace::shared(3 << 20, 4096).unwrap();
        let file = device.file().expect("it is shared").try_clone_to_owned().unwrap();
        let attached = MemNamespace::attach(file, 3 << 20, 4096, HugePages::Auto).unwrap();
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
        assert!(MemNamespace::new(4096, 4096).unwrap().file().is_none());
    }

    #[test]
    fn sizes_that_are_not_whole_blocks_are_refused() {
        for (len_bytes, block_len_bytes) in [(0, 512), (513, 512), (4096, 256), (8192, 8192)] {
            let error = MemNamespace::new(len_bytes, block_len_bytes).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
}
