//! The file engine with io_uring: one system call starts and completes any number of I/Os.
//!
//! The ring is set up so that the kernel processes completions when this thread enters it anyway
//! (COOP_TASKRUN), and reports when entering is useful (TASKRUN_FLAG). It does not use SINGLE_ISSUER with
//! DEFER_TASKRUN, which bind a ring to the thread that created it: a queue pair may move to another thread,
//! even with outstanding I/O.
//!
//! Buffers of the pool that the queue pair knows are registered with the ring when they are first used
//! ([`Pinned`]): then the kernel neither looks up their pages nor, with O_DIRECT, pins them. Small reads
//! from the page cache then take less processor time than `pread`; without registration they take slightly
//! more. A poll starts one burst that fits in the second-level cache, so that bytes from the page cache are
//! used while they are in the processor's cache. It starts another burst only if no I/O has completed.
#![allow(unsafe_code)] // the kernel reads and writes buffers that the ring owns, and memory registered with it

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, Submitter, opcode, squeue};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use slab::Slab;

use super::readiness::{Registry, Watched};
use super::transfer::{Files, QUEUE_DEPTH, Step, Transfer};
use super::{Completion, Io, IoOp, Namespace, Notice, QueuePair};
use dlfs_base::buf::Pool;
use dlfs_base::process::{Forked, mark_ours};
use dlfs_base::units::Lba;

/// A queue pair on a ring of its own.
pub(super) struct UringPair {
    namespace: Namespace,
    /// Invalid I/Os, which the next poll completes.
    refused: VecDeque<Completion>,
    /// I/Os that were taken and not started.
    unstarted: VecDeque<Transfer>,
    ring: Ring,
}

impl UringPair {
    /// Returns whether the kernel permits this process to use rings.
    pub(super) fn is_available() -> bool {
        build_ring(8).is_ok()
    }

    pub(super) fn new(files: Arc<Files>, namespace: Namespace) -> std::io::Result<UringPair> {
        let refused = VecDeque::new();
        let unstarted = VecDeque::with_capacity(usize::from(QUEUE_DEPTH));
        let ring = Ring::new(files, &namespace)?;
        Ok(UringPair { namespace, refused, unstarted, ring })
    }
}

impl QueuePair for UringPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        self.ring.files.refresh(&mut self.namespace);
        let room = usize::from(self.namespace.queue_depth) - self.outstanding();
        let count = room.min(pending.len());
        for io in pending.drain(..count) {
            match self.namespace.check(&io) {
                Ok(()) => {
                    self.unstarted.push_back(Transfer::new(io, self.namespace.block_len_bytes))
                }
                Err(error) => self.refused.push_back(io.end(Err(error))),
            }
        }
        count
    }

    fn poll(&mut self, _now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let mut count = max.min(self.refused.len());
        done.extend(self.refused.drain(..count));
        loop {
            self.start_burst();
            self.ring.enter();
            count += self.ring.reap(max - count, done);
            if count > 0 || self.unstarted.is_empty() {
                return count; // the next poll, which follows at once, starts the rest
            }
        }
    }

    fn start(&mut self) {
        while self.ring.files.is_direct() && !self.unstarted.is_empty() {
            self.start_burst();
            self.ring.enter();
        }
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.ring.use_pool(pool);
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        self.ring.files.drop_cached(slba, len_bytes, &self.namespace);
    }

    fn outstanding(&self) -> usize {
        self.ring.transfers.len() + self.unstarted.len() + self.refused.len()
    }

    fn register(&mut self, registry: &Registry) {
        self.ring.uring.register_for_sleep(registry);
    }

    /// Completions are in shared memory, so looking costs no system call. I/Os that the kernel does not have yet end no
    /// sleep.
    fn notice(&self) -> Notice {
        let is_started = self.unstarted.is_empty() && !self.ring.has_queued;
        if is_started { Notice::Look } else { Notice::Poll }
    }
}

impl UringPair {
    /// Queues the I/Os of one burst.
    fn start_burst(&mut self) {
        let mut bytes = 0;
        while bytes < BURST_BYTES
            && let Some(transfer) = self.unstarted.pop_front()
        {
            bytes += transfer.io.buf.len();
            self.ring.start(transfer);
        }
    }
}

/// A ring, and the transfers whose buffers the kernel may be using.
///
/// Invariant: from the moment its entry is pushed until its completion is taken from the ring, a
/// transfer stays in `transfers`, and its buffer is neither touched nor freed.
struct Ring {
    uring: Watched<Uring>,
    transfers: Slab<Transfer>,
    /// True while entries are queued that the kernel has not taken.
    has_queued: bool,
    files: Arc<Files>,
    /// True if entries name descriptors by their index in [`Files::to_register`].
    registered: bool,
    /// The registered pool; `None`: no pool was announced, or the kernel registers none.
    pinned: Option<Pinned>,
    /// The user's address of the namespace.
    address: String,
    /// The longest wait for outstanding I/Os when the ring is dropped.
    drain_limit: Duration,
    /// Tells the process that made the ring from a forked child, which must not wait for the parent's I/O.
    process: Forked<()>,
}

impl Ring {
    fn new(files: Arc<Files>, namespace: &Namespace) -> std::io::Result<Ring> {
        let uring = build_ring(u32::from(QUEUE_DEPTH))?;
        mark_ours(&uring);
        let uring = Watched::new(Uring(uring));
        let descriptors = files.to_register(namespace);
        // If this fails, the kernel counts references to the files for each read; all else works.
        let registered =
            !descriptors.is_empty() && uring.0.submitter().register_files(&descriptors).is_ok();
        let transfers = Slab::with_capacity(usize::from(QUEUE_DEPTH));
        let address = namespace.address.clone();
        Ok(Ring {
            uring,
            transfers,
            has_queued: false,
            files,
            registered,
            pinned: None,
            address,
            drain_limit: DRAIN_LIMIT,
            process: Forked::new(()),
        })
    }

    /// Registers the buffers of the first pool that is announced, when they are first used.
    fn use_pool(&mut self, pool: &Pool) {
        if self.pinned.is_none() {
            self.pinned = Pinned::new(pool, &self.uring.0.submitter());
        }
    }

    /// Queues a transfer; `enter` starts it.
    fn start(&mut self, transfer: Transfer) {
        let key = self.transfers.insert(transfer);
        self.push(key);
    }

    /// Queues an entry for the remaining bytes of transfer `key`.
    fn push(&mut self, key: usize) {
        let mut entry = self.entry(key).user_data(key as u64);
        if self.registered {
            entry = entry.flags(squeue::Flags::FIXED_FILE);
        }
        // SAFETY: the entry points to the buffer of a transfer in `transfers`, which keeps it until the completion
        // or, if the ring is dropped before, for ever; and to descriptors that `files` keeps open.
        let pushed = unsafe { self.uring.0.submission().push(&entry) };
        pushed.expect("the queue has an entry for each of the I/Os that may be outstanding");
        self.has_queued = true;
    }

    /// The entry for the remaining bytes of transfer `key`.
    fn entry(&mut self, key: usize) -> squeue::Entry {
        let transfer = &mut self.transfers[key];
        let fd = if self.registered {
            Fd(transfer.file_index(&self.files) as RawFd)
        } else {
            Fd(transfer.file(&self.files).as_raw_fd())
        };
        let offset = transfer.offset();
        let moved = transfer.moved;
        let rest = &mut transfer.io.buf[moved..];
        let len = u32::try_from(rest.len()).expect("at most the largest transfer");
        let pinned = &mut self.pinned;
        let index =
            pinned.as_mut().and_then(|pinned| pinned.index_of(rest, &self.uring.0.submitter()));
        match (transfer.io.op, index) {
            (IoOp::Read, Some(index)) => {
                opcode::ReadFixed::new(fd, rest.as_mut_ptr(), len, index).offset(offset).build()
            }
            (IoOp::Read, None) => {
                opcode::Read::new(fd, rest.as_mut_ptr(), len).offset(offset).build()
            }
            (IoOp::Write, Some(index)) => {
                opcode::WriteFixed::new(fd, rest.as_ptr(), len, index).offset(offset).build()
            }
            (IoOp::Write, None) => {
                opcode::Write::new(fd, rest.as_ptr(), len).offset(offset).build()
            }
            (IoOp::Flush, _) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        }
    }

    /// Enters the kernel if there is something to start or to process.
    fn enter(&mut self) {
        let queue = self.uring.0.submission();
        let idle = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        if !idle {
            // After a failure (a signal, a lack of memory) the entries stay queued for the next turn.
            let _ = self.uring.0.submit();
            self.has_queued = !self.uring.0.submission().is_empty();
        }
    }

    /// Takes at most `max` completions from the ring.
    fn reap(&mut self, max: usize, done: &mut Vec<Completion>) -> usize {
        let mut count = 0;
        while count < max {
            let Some(entry) = self.uring.0.completion().next() else { break };
            let key = entry.user_data() as usize; // as pushed
            match self.transfers[key].advance(result_of(entry.result())) {
                Step::Again => self.push(key),
                Step::Ended(result) => {
                    done.push(self.transfers.remove(key).io.end(result));
                    count += 1;
                }
            }
        }
        count
    }

    /// Waits for outstanding I/Os, for at most `limit`: a disk may hang for ever.
    fn drain(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut done = Vec::new();
        loop {
            self.enter();
            self.reap(usize::MAX, &mut done);
            done.clear();
            let left = until.saturating_duration_since(Instant::now());
            if self.transfers.is_empty() || left.is_zero() {
                return;
            }
            let mut fds = [PollFd::new(&*self.uring, PollFlags::IN)];
            // The result does not matter: the loop looks at the ring next. The wait is short, because the kernel may
            // have work for this thread that it does not signal.
            let nap = Timespec::try_from(left.min(DRAIN_NAP)).ok();
            let _ = rustix::event::poll(&mut fds, nap.as_ref());
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.transfers.is_empty() && self.process.is_ours() {
            self.drain(self.drain_limit);
            if !self.transfers.is_empty() {
                tracing::warn!(
                    ios = self.transfers.len(),
                    "{}: no answer for {:?}; the memory of these I/Os is given up, since the kernel may \
                     still write to it",
                    self.address,
                    self.drain_limit,
                );
            }
        }
        if !self.transfers.is_empty() {
            // Memory that the kernel may still write to is never freed.
            std::mem::forget(std::mem::take(&mut self.transfers));
        }
    }
}

/// The kernel's ring, as an owner of a descriptor.
struct Uring(IoUring);

impl AsFd for Uring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring, which outlives the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }
}

/// The kernel's result of an entry: a count, or an error number below zero.
fn result_of(result: i32) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno::from_raw_os_error(result.saturating_neg()))
}

/// Creates a ring, with the setup that the module's page explains if the kernel has it.
fn build_ring(entries: u32) -> std::io::Result<IoUring> {
    let best = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries);
    match best {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(entries), // < 5.19
        result => result,
    }
}

/// The pieces of a pool that the ring has registered, and the kernel has pinned. Buffer index i of the ring is piece i.
///
/// A piece is registered when a buffer in it is first used, so a pool that is never full is never pinned as a whole,
/// and opening an image does not pin it. Pinned memory counts against RLIMIT_MEMLOCK, 8 MiB for ordinary users: once
/// the kernel refuses a piece, all further pieces stay ordinary memory. A fork copies pinned pages at once, not when
/// they are written.
struct Pinned {
    /// Kept as long as the ring, so that its addresses refer to the pages that were registered.
    pool: Pool,
    /// The length of a piece in bytes; the last piece may be shorter.
    piece_len: usize,
    /// For each piece: true if it is registered.
    registered: Vec<bool>,
    /// Set once the kernel has refused a piece.
    refused: bool,
}

impl Pinned {
    /// Prepares the ring for the pieces of `pool`; `None` if the kernel does not support it.
    fn new(pool: &Pool, ring: &Submitter<'_>) -> Option<Pinned> {
        let len = pool.capacity_bytes();
        let piece_len = len.div_ceil(MAX_PIECES).next_power_of_two().max(MIN_PIECE_LEN);
        let piece_len = piece_len.max(pool.slot_len_bytes().next_power_of_two());
        let count = len.div_ceil(piece_len);
        ring.register_buffers_sparse(u32::try_from(count).ok()?).ok()?;
        let registered = vec![false; count];
        Some(Pinned { pool: pool.clone(), piece_len, registered, refused: false })
    }

    /// Returns the piece that contains `bytes`, and registers it if it is not registered yet. `None`: `bytes`
    /// are not in the pool, or cross pieces, or the kernel refuses the piece.
    fn index_of(&mut self, bytes: &[u8], ring: &Submitter<'_>) -> Option<u16> {
        let offset = self.pool.offset_of(bytes)?;
        let piece = offset / self.piece_len;
        let start = piece * self.piece_len;
        if bytes.is_empty() || offset + bytes.len() > start + self.piece_len {
            return None;
        }
        if !self.registered[piece] {
            self.register(piece, ring)?;
        }
        u16::try_from(piece).ok()
    }

    /// Registers a piece; `None` if the kernel refuses it.
    fn register(&mut self, piece: usize, ring: &Submitter<'_>) -> Option<()> {
        if self.refused {
            return None;
        }
        let start = piece * self.piece_len;
        let memory = libc::iovec {
            iov_base: self.pool.address_of(start).as_ptr().cast(),
            iov_len: self.piece_len.min(self.pool.capacity_bytes() - start),
        };
        // SAFETY: the piece lies in the pool's mapping, and stays mapped as long as `self.pool`. The ring writes
        // only into buffers whose I/Os it holds, and these keep the pool, too.
        let result = unsafe { ring.register_buffers_update(piece as u32, &[memory], None) };
        self.refused = result.is_err();
        self.registered[piece] = result.is_ok();
        result.ok()
    }
}

/// The number of bytes with which a burst ends: with their page cache pages, half of a small second-level cache.
const BURST_BYTES: usize = 128 << 10;

/// The longest wait for outstanding I/Os when a queue pair is dropped: longer than a disk takes to spin up.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// The longest single sleep during that wait.
const DRAIN_NAP: Duration = Duration::from_millis(50);

/// The least length of a piece: that of a huge page, so that a piece is pinned and mapped as a whole.
const MIN_PIECE_LEN: usize = 2 << 20;

/// The most pieces: the number of buffers that a ring accepts.
const MAX_PIECES: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::buf::{HugePages, IoBuf, PoolOptions};
    use dlfs_base::units::Lba;

    fn namespace() -> Namespace {
        Namespace {
            address: "a disk that hangs".into(),
            block_len_bytes: 4096,
            num_blocks: 100,
            max_transfer_bytes: 1 << 20,
            queue_depth: QUEUE_DEPTH,
            nguid: [0; 16],
            read_only: false,
            engine: "file".into(),
        }
    }

    /// A ring whose reads never end, because nobody writes into the pipe.
    fn ring_that_hangs(pool: &Pool) -> Option<(std::io::PipeWriter, Ring)> {
        let (reader, writer) = std::io::pipe().unwrap();
        let files = Arc::new(Files::of_descriptor(reader.into()));
        let mut ring = match Ring::new(files, &namespace()) {
            Ok(ring) => ring,
            Err(error) => {
                println!("SKIPPED: no io_uring here ({error})");
                return None;
            }
        };
        ring.use_pool(pool);
        for tag in 0..3 {
            let buf = pool.take(4096).unwrap();
            let io = Io { op: IoOp::Read, slba: Lba(0), buf, tag };
            ring.start(Transfer::new(io, 4096));
        }
        ring.enter();
        Some((writer, ring))
    }

    fn pool() -> Pool {
        let options =
            PoolOptions { bytes: 64 << 10, slot_len_bytes: 4096, huge_pages: HugePages::Off };
        Pool::new(options).unwrap()
    }

    #[test]
    fn dropping_a_ring_waits_a_while_for_a_disk_that_hangs_and_leaks_its_memory() {
        let pool = pool();
        let Some((_writer, mut ring)) = ring_that_hangs(&pool) else { return };
        ring.drain_limit = Duration::from_millis(100);
        drop(ring); // hangs where it waits for an answer
        assert_eq!(pool.free_bytes(), pool.capacity_bytes() - 3 * 4096, "it may be written to yet");
    }

    #[test]
    fn a_late_completion_ends_the_wait_and_returns_the_memory() {
        use std::io::Write;
        let pool = pool();
        let Some((mut writer, ring)) = ring_that_hangs(&pool) else { return };
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            writer.write_all(&[7; 3 * 4096]).unwrap();
        });
        drop(ring);
        late.join().unwrap();
        assert_eq!(pool.free_bytes(), pool.capacity_bytes());
    }

    #[test]
    fn the_rest_of_a_partial_read_is_asked_for_before_the_poller_sleeps() {
        use std::io::Write;
        let (reader, mut writer) = std::io::pipe().unwrap();
        let files = Arc::new(Files::of_descriptor(reader.into()));
        let Ok(mut pair) = UringPair::new(files, namespace()) else {
            return println!("SKIPPED: no io_uring here");
        };
        let io = Io { op: IoOp::Read, slba: Lba(0), buf: IoBuf::zeroed(4096), tag: 0 };
        pair.submit(&mut VecDeque::from([io]));
        let mut done = Vec::new();
        let limit = Instant::now() + Duration::from_secs(60);
        let mut poll_until = |pair: &mut UringPair, wanted| {
            while pair.poll(Instant::now(), 9, &mut done) == 0 && pair.notice() != wanted {
                assert!(Instant::now() < limit);
            }
            done.len()
        };
        assert_eq!(poll_until(&mut pair, Notice::Look), 0, "the kernel has it");
        writer.write_all(&[7; 100]).unwrap();
        assert_eq!(poll_until(&mut pair, Notice::Poll), 0, "the rest is only queued");
        assert_eq!(poll_until(&mut pair, Notice::Look), 0);
        writer.write_all(&[7; 3996]).unwrap();
        assert_eq!(poll_until(&mut pair, Notice::Event), 1);
    }
}
