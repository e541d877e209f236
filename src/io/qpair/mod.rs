//! Polled queue pairs: the I/O trait of dlfs ([`QueuePair`]) and its engines.
//!
//! An I/O owns its buffer, and its completion returns the buffer. The trait has no lifetimes and no callbacks.
//! No method blocks, except that `transfer.rs` waits for the file system in `poll`. The trait transfers blocks
//! and knows nothing of samples.
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
pub mod file;
pub mod folder;
pub mod group;
pub mod mem;
mod options;
pub mod pcie;
#[doc(hidden)]
pub mod pieces;
pub mod readiness;
mod remote;
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
pub use device::{Capabilities, Device, Fence, PairScope, ambiguous};
pub use options::{ConnectOptions, Direct, SpdkOptions};
pub use remote::host_identity;
#[doc(hidden)]
pub use remote::{hostnqn, machine_uuid};

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use dlfs_base::buf::{IoBuf, Pool, SharedBuf};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::Lba;
use dlfs_nvme::nvme::Status;
use readiness::Registry;

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
    /// Whole blocks, at most [`Namespace::max_transfer_bytes`]; empty for a flush.
    pub buf: IoBuf,
    /// A number of the caller's choice, which the completion returns.
    pub tag: u64,
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

/// Errors of an I/O.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The controller answered with an error status.
    #[error("the controller answered {0}")]
    Status(Status),
    /// The connection was lost, and reconnecting failed until its timeout.
    #[error("disconnected: {0}")]
    Disconnected(String),
    /// The target reported success with fewer bytes than requested.
    #[error("only {found} of {expected} bytes arrived, without an error: the rest is missing")]
    Short {
        /// Bytes requested.
        expected: u64,
        /// Bytes that arrived.
        found: u64,
    },
    /// The data digest of the transfer differs.
    #[error("the data digest of the transfer differs")]
    DataDigest,
    /// The operating system reports more bytes than it was asked to transfer, so no byte can be trusted.
    #[error("the operating system moved {found} bytes where {expected} were asked for")]
    Excess {
        /// Bytes requested.
        expected: u64,
        /// Bytes reported.
        found: u64,
    },
    /// The thread that ran the I/O panicked with this message.
    #[error("{0}")]
    Panicked(String),
    /// The system call failed with this error number.
    #[error("operating system error {0} ({name})", name = std::io::Error::from_raw_os_error(*.0))]
    Os(i32),
    /// The fence of the writer was closed before the write was sent, see [`Fence`].
    #[error("the write was not sent: the time of its writer has passed")]
    Fenced,
    /// A file of a folder namespace has changed since it was listed; the text names it.
    #[error("{0} has changed since the folder was listed: open the folder again")]
    Changed(String),
    /// A mistake of the caller: the request is not whole blocks, passes the end of the namespace, is too large,
    /// writes to a read-only namespace, or is a flush with bytes.
    #[error("{0}")]
    Invalid(&'static str),
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

/// The engine of shards that are decoded as they are read. A read takes a store's delay, and decodes a whole run in any
/// case, so a run is read at once, and several at a time.
pub const SHARDS: &str = "shards";

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

impl Io {
    /// The I/O's completion with this result.
    pub fn end(self, result: Result<(), IoError>) -> Completion {
        Completion { tag: self.tag, buf: self.buf, result }
    }
}

impl IoError {
    /// Checks the total number of bytes that the operating system has transferred: `found` must equal
    /// `expected`.
    ///
    /// # Errors
    /// The numbers differ.
    pub fn check_count(expected: u64, found: u64) -> Result<(), IoError> {
        match found.cmp(&expected) {
            Ordering::Equal => Ok(()),
            Ordering::Less => Err(IoError::Short { expected, found }),
            Ordering::Greater => Err(IoError::Excess { expected, found }),
        }
    }

    /// Returns whether the failure concerns only these blocks: a medium error, or bytes that arrived
    /// damaged. Otherwise the namespace as a whole is out of reach, or the request was wrong.
    pub(crate) fn is_of_the_blocks(&self) -> bool {
        match self {
            IoError::Short { .. } | IoError::DataDigest => true,
            IoError::Status(status) => {
                const OF_THE_BLOCKS: [Status; 2] =
                    [Status::INTERNAL_ERROR, Status::DATA_TRANSFER_ERROR];
                // Status code types 2h, media and data integrity errors, and 7h, vendor specific.
                matches!(status.sct, 2 | 7) || OF_THE_BLOCKS.iter().any(|of| status.is(*of))
            }
            // For a device's medium error, Linux answers ENODATA, EREMOTEIO or EIO, for wrong protection
            // information EILSEQ; file systems answer EBADMSG or EUCLEAN for damaged data.
            IoError::Os(errno) => [
                libc::EIO,
                libc::EILSEQ,
                libc::ENODATA,
                libc::EREMOTEIO,
                libc::EBADMSG,
                libc::EUCLEAN,
            ]
            .contains(errno),
            _ => false,
        }
    }

    /// The error kind that a caller can act on. Only this function maps I/O errors to kinds.
    pub fn kind(&self) -> ErrorKind {
        match self {
            // Status code type 2h: media and data integrity errors.
            IoError::Status(status) if status.sct == 2 => ErrorKind::Corrupt,
            IoError::Status(_) => ErrorKind::Refused,
            IoError::Disconnected(_) | IoError::Fenced => ErrorKind::Disconnected,
            IoError::Short { .. } | IoError::DataDigest => ErrorKind::Corrupt,
            IoError::Os(libc::ENOSPC | libc::EDQUOT) => ErrorKind::NoSpace,
            IoError::Os(errno) => Error::from(std::io::Error::from_raw_os_error(*errno)).kind(),
            IoError::Excess { .. } => ErrorKind::Io,
            IoError::Panicked(_) => ErrorKind::Internal,
            IoError::Changed(_) => ErrorKind::Stale,
            IoError::Invalid(_) => ErrorKind::InvalidArgument,
        }
    }

    /// The library's error for a failed I/O on `namespace`.
    #[doc(hidden)]
    pub fn on(self, namespace: &Namespace) -> Error {
        Error::new(self.kind(), "an I/O failed").target(namespace.address.clone()).source(self)
    }

    /// The library's error for a failed I/O on `namespace` at `slba`.
    pub fn at(self, namespace: &Namespace, slba: Lba) -> Error {
        self.on(namespace).lba(slba)
    }
}

/// Separates failures of single blocks from others: `Ok(Err(text))` says why the blocks cannot be read, see
/// [`IoError::is_of_the_blocks`].
///
/// # Errors
/// The namespace as a whole cannot be read.
#[doc(hidden)]
pub fn or_unreadable<T>(result: dlfs_base::Result<T>) -> dlfs_base::Result<Result<T, String>> {
    let error = match result {
        Ok(found) => return Ok(Ok(found)),
        Err(error) => error,
    };
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<IoError>());
    match cause.filter(|cause| cause.is_of_the_blocks()) {
        Some(cause) => Ok(Err(cause.to_string())),
        None => Err(error),
    }
}

/// A polled submission and completion queue pair. One thread at a time uses it. No method blocks, but for the
/// engine in `transfer.rs`.
///
/// An engine implements the methods that it needs: by default it completes I/Os only in [`QueuePair::poll`], and
/// ignores optional requests. A queue pair that wraps another one names it in `below`, which then answers the calls
/// that are not implemented; one that wraps several must answer or forward each call.
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
    /// Each I/O that was taken gets exactly one [`Completion`], also when the connection dies. It starts with
    /// the next [`QueuePair::poll`] at the latest: poll once before sleeping.
    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize;

    /// Advances I/Os; appends at most `max` completions to `done` and returns their number. Fewer than `max`
    /// means that there are no more for now. A completion returns its I/O's buffer; if a lost device may still
    /// write to that buffer, it returns other memory of equal length. This call also handles timeouts and
    /// reconnecting.
    ///
    /// Makes no system call on a descriptor that was registered by [`QueuePair::register`] and is not ready.
    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize;

    /// Starts the I/Os that were taken, on devices that transfer bytes by themselves; completes none. Other
    /// engines start them with the next [`QueuePair::poll`].
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
    /// An engine that never holds writes back does nothing.
    fn use_fence(&mut self, fence: &Arc<Fence>) {
        if let Some(below) = self.below_mut() {
            below.use_fence(fence);
        }
    }

    /// The number of I/Os taken and not yet completed.
    fn outstanding(&self) -> usize;

    /// Identifies the I/O queue that this queue pair shares with others of its [`PairScope`]. Queue pairs
    /// with the same value together take at most one [`Namespace::queue_depth`]. `None`: it has a queue of
    /// its own.
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

    /// Borrows the bytes of a read in place, without copying them: `len_bytes` from `slba`, whole blocks
    /// within the namespace.
    ///
    /// Borrowed bytes never change: a later write goes to other memory, or has to wait. `None`: the engine does not
    /// hold these bytes contiguously in memory, so submit a read.
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

/// The way in which a poller learns that a queue pair has work. For several queue pairs the largest value
/// holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// A registered descriptor becomes ready, the queue pair is marked, or its [`QueuePair::next_timeout`]
    /// expires.
    Event,
    /// As [`Notice::Event`] for a poller that sleeps. Polling costs no system call, so a poller that does not
    /// sleep polls it in every turn.
    Look,
    /// There is no event: while I/Os are outstanding, the poller polls in every turn and never sleeps.
    Poll,
}

/// The I/Os of one handle that still need a completion.
#[derive(Default)]
struct Outstanding {
    /// The tags of I/Os whose completions were not returned yet. Most complete in this order.
    tags: VecDeque<u64>,
    /// The failures of I/Os that this process cannot continue.
    lost: VecDeque<Completion>,
}

impl Outstanding {
    /// The number of I/Os without a completion.
    fn len(&self) -> usize {
        self.tags.len() + self.lost.len()
    }

    /// Returns whether the next poll has an I/O to fail.
    fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Records the I/Os that `take` takes from the front of `pending`, at most `most`; returns their number.
    fn take(
        &mut self,
        pending: &mut VecDeque<Io>,
        most: usize,
        take: impl FnOnce(&mut VecDeque<Io>) -> usize,
    ) -> usize {
        let before = self.tags.len();
        self.tags.extend(pending.iter().take(most).map(|io| io.tag));
        let count = take(pending);
        self.tags.truncate(before + count);
        count
    }

    /// Fails all outstanding I/Os for this reason; their buffers are lost.
    fn lose(&mut self, reason: &str) {
        let tags = std::mem::take(&mut self.tags);
        self.lost.extend(tags.into_iter().map(|tag| failed(tag, IoBuf::empty(), reason)));
    }

    /// Takes and fails all of `pending` for this reason; returns their number.
    fn refuse(&mut self, pending: &mut VecDeque<Io>, reason: &str) -> usize {
        let count = pending.len();
        self.lost.extend(pending.drain(..).map(|io| failed(io.tag, io.buf, reason)));
        count
    }

    /// Appends at most `max` failures to `done`; returns their number.
    fn fail_lost(&mut self, max: usize, done: &mut Vec<Completion>) -> usize {
        let count = self.lost.len().min(max);
        done.extend(self.lost.drain(..count));
        count
    }

    /// Forgets the I/Os of completions that the caller returns.
    fn forget(&mut self, done: &[Completion]) {
        for completion in done {
            if let Some(at) = self.tags.iter().position(|tag| *tag == completion.tag) {
                self.tags.swap_remove_front(at);
            }
        }
    }
}

fn failed(tag: u64, buf: IoBuf, reason: &str) -> Completion {
    Completion { tag, buf, result: Err(IoError::Disconnected(reason.to_owned())) }
}
