//! Polled queue pairs: the I/O trait of dlfs ([`QueuePair`]) and its engines.
//!
//! An I/O owns its buffer, and its completion returns the buffer. The trait has no lifetimes and no callbacks. It
//! transfers blocks and knows nothing of samples.
//!
//! Read [`QueuePair`] below first, then `device.rs`, then `mem.rs`, the smallest engine. `addresses.rs` chooses the
//! engine of an address.

mod addresses;
#[doc(hidden)]
pub mod beside;
pub mod blocking;
#[cfg(debug_assertions)]
mod broken;
pub mod calls;
mod cpus;
mod device;
mod error;
mod fence;
pub mod file;
pub mod folder;
pub mod group;
pub mod mem;
mod options;
mod outstanding;
pub mod pcie;
#[doc(hidden)]
pub mod pieces;
pub mod readiness;
mod remote;
mod scope;
pub mod session;
pub mod shared;
#[cfg(feature = "spdk")]
pub mod spdk;
pub mod tcp;
mod transfer;
mod uring;
mod wake;

pub use addresses::{Engine, engines, open, open_all};
pub use cpus::Cpus;
#[doc(hidden)]
pub use device::open_pairs;
pub use device::{Capabilities, Device, ambiguous};
pub use error::IoError;
#[doc(hidden)]
pub use error::or_unreadable;
pub use fence::Fence;
pub use options::{ConnectOptions, Direct, SpdkOptions};
pub use remote::host_identity;
#[doc(hidden)]
pub use remote::{hostnqn, machine_uuid};
pub use scope::PairScope;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use dlfs_base::buf::{IoBuf, Pool, SharedBuf};
use dlfs_base::units::Lba;
use outstanding::Outstanding;
use readiness::Registry;

/// A polled submission and completion queue pair. One thread at a time uses it.
///
/// Methods return at once, except of some engines: `pread` waits in [`QueuePair::poll`] for the file system, `pcie`
/// for the reset of a controller and for the mapping of new memory, and `spdk` for a device's queue that was lost while
/// it connected.
///
/// The default methods fit an engine that completes I/Os only in [`QueuePair::poll`] and ignores optional requests. A
/// queue pair that wraps another one returns it from `below`; the default methods then forward to it. A queue pair
/// that wraps several ones must implement every method.
pub trait QueuePair: Send {
    /// The only queue pair that this one wraps.
    fn below(&self) -> Option<&dyn QueuePair> {
        None
    }

    /// As [`QueuePair::below`].
    fn below_mut(&mut self) -> Option<&mut dyn QueuePair> {
        None
    }

    /// The namespace. A file may grow; limits may change when the engine reconnects; all else stays.
    fn namespace(&self) -> &Namespace;

    /// Takes I/Os from the front of `pending` while there is room; returns their number.
    ///
    /// Each I/O that was taken gets exactly one [`Completion`], also when the connection dies. Engines may start it
    /// only in the next [`QueuePair::poll`], so poll once before sleeping.
    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize;

    /// Advances I/Os; appends at most `max` completions to `done` and returns their number. It may append fewer than
    /// there are, so that one call takes little time; [`QueuePair::notice`] then asks for another poll. This call also
    /// handles timeouts and reconnecting.
    ///
    /// A completion returns its I/O's buffer. If a lost device may still write to that buffer, the completion has
    /// other memory of equal length; if a parent process keeps the buffer after a fork, it has an empty one.
    ///
    /// Makes no system call on a descriptor that was registered by [`QueuePair::register`] and is not ready.
    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize;

    /// Starts the I/Os that were taken, if the device then transfers bytes without this thread; completes none. Other
    /// engines do nothing here, and start them in the next [`QueuePair::poll`].
    fn start(&mut self) {
        if let Some(below) = self.below_mut() {
            below.start();
        }
    }

    /// Announces that most buffers will come from `pool`. An engine that can use this, for example by
    /// registering the memory, does so and may keep the pool. Buffers from elsewhere stay allowed.
    fn use_pool(&mut self, pool: &Pool) {
        if let Some(below) = self.below_mut() {
            below.use_pool(pool);
        }
    }

    /// Writes submitted from now on are not sent while `fence` is closed: they end with [`IoError::Fenced`].
    /// The engines of files and memory ignore the fence, since writes do not wait there for a connection.
    fn use_fence(&mut self, fence: &Arc<Fence>) {
        if let Some(below) = self.below_mut() {
            below.use_fence(fence);
        }
    }

    /// The number of I/Os taken and not yet completed.
    fn outstanding(&self) -> usize;

    /// Identifies the I/O queue that this queue pair shares with others. Queue pairs with the same value together take
    /// at most one [`Namespace::queue_depth`]. `None`: the queue pair shares no queue.
    fn shared_queue(&self) -> Option<usize> {
        self.below()?.shared_queue()
    }

    /// Reports that a read of this range returned corrupt data. If there is another copy, the next read of the
    /// range uses it.
    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        if let Some(below) = self.below_mut() {
            below.report_corrupt(slba, len_bytes);
        }
    }

    /// Borrows `len_bytes` from `slba` on, without copying them: whole blocks within the namespace.
    ///
    /// Borrowed bytes never change: a later write goes to other memory, or has to wait. `None`: the engine lends
    /// nothing, or does not hold these bytes contiguously in memory; submit a read instead.
    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        self.below()?.borrow(slba, len_bytes)
    }

    /// Returns whether copies on this machine alone would probably serve a read of these blocks.
    fn has_copies(&self, slba: Lba, len_bytes: usize) -> bool {
        self.below().is_some_and(|below| below.has_copies(slba, len_bytes))
    }

    /// Registers every descriptor that signals work with the poller's `registry`, including those of later
    /// connections. Called again after a fork, with the child's registry.
    ///
    /// A queue pair that receives a completion of another queue pair marks the other one: [`Registry::mark`].
    fn register(&mut self, registry: &Registry) {
        if let Some(below) = self.below_mut() {
            below.register(registry);
        }
    }

    /// The way in which the poller learns that an outstanding I/O can advance.
    fn notice(&self) -> Notice {
        self.below().map_or(Notice::Poll, |below| below.notice())
    }

    /// The time at which `poll` must be called again, even if no descriptor becomes ready.
    fn next_timeout(&self) -> Option<Instant> {
        self.below()?.next_timeout()
    }
}

/// The way in which a poller learns that a queue pair has work. Of several queue pairs, the largest value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// By an event: a registered descriptor becomes ready, the queue pair is marked, or its
    /// [`QueuePair::next_timeout`] expires.
    Event,
    /// By an event, if the poller sleeps. While it does not sleep, it polls the queue pair in every turn, since that
    /// costs no system call.
    Look,
    /// Only by polling: while I/Os are outstanding, the poller polls in every turn and never sleeps.
    Poll,
}

/// The operation of an [`Io`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoOp {
    /// Fill the buffer from the namespace.
    Read,
    /// Write the buffer to the namespace.
    Write,
    /// Make all completed writes durable; the buffer is empty.
    Flush,
}

/// One I/O, which owns its buffer while it runs.
#[derive(Debug)]
pub struct Io {
    /// The operation.
    pub op: IoOp,
    /// First logical block.
    pub slba: Lba,
    /// The bytes of a read or write: whole blocks, at most [`Namespace::max_transfer_bytes`]. Empty for a flush.
    pub buf: IoBuf,
    /// A number of the caller's choice, which the completion returns.
    pub tag: u64,
}

impl Io {
    /// The I/O's completion with this result.
    pub fn end(self, result: Result<(), IoError>) -> Completion {
        Completion { tag: self.tag, buf: self.buf, result }
    }
}

/// The result of one [`Io`], with its buffer.
#[derive(Debug)]
pub struct Completion {
    /// The tag of the I/O.
    pub tag: u64,
    /// The buffer of the I/O, or other memory: see [`QueuePair::poll`]. Its bytes are valid only when `result` is
    /// `Ok`.
    pub buf: IoBuf,
    /// `Ok` only when all bytes were transferred.
    pub result: Result<(), IoError>,
}

/// The properties of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// The address with which the user opened it.
    pub address: String,
    /// Bytes of a logical block: a power of two, 512 to 4,096.
    pub block_len_bytes: u32,
    /// Size in logical blocks.
    pub num_blocks: u64,
    /// The largest transfer of one I/O, in bytes: a multiple of 4,096.
    pub max_transfer_bytes: u32,
    /// The most I/Os that may be outstanding on one queue pair.
    pub queue_depth: u16,
    /// Globally unique identifier, zero when there is none.
    pub nguid: [u8; 16],
    /// True if writes are refused.
    pub read_only: bool,
    /// The engine in use, as text: `mem`, `file (io_uring, O_DIRECT)`, `tcp`.
    pub engine: String,
}

impl Namespace {
    /// Size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.num_blocks.saturating_mul(u64::from(self.block_len_bytes))
    }

    /// Checks an I/O against the namespace. Every engine calls this before it transfers a byte, and completes
    /// an invalid I/O with the error.
    ///
    /// # Errors
    /// `IoError::Invalid` with the reason.
    pub fn check(&self, io: &Io) -> Result<(), IoError> {
        let len = io.buf.len() as u64;
        let block_len = u64::from(self.block_len_bytes);
        let refuse = |reason| Err(IoError::Invalid(reason));
        if io.op == IoOp::Write && self.read_only {
            return refuse("the namespace is read-only");
        }
        if io.op == IoOp::Flush {
            return if len == 0 { Ok(()) } else { refuse("a flush carries no bytes") };
        }
        if len == 0 || !len.is_multiple_of(block_len) {
            return refuse("not one or more whole blocks");
        }
        if len > u64::from(self.max_transfer_bytes) {
            return refuse("more bytes than one I/O may carry");
        }
        match io.slba.0.checked_add(len / block_len) {
            Some(end) if end <= self.num_blocks => Ok(()),
            _ => refuse("past the end of the namespace"),
        }
    }
}

/// [`Namespace::engine`] of shards that are decoded as they are read. Each read waits for a store and decodes a whole
/// run, so readers request whole runs, several at a time.
pub const SHARDS: &str = "shards";
