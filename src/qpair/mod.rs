//! A polled queue pair: the one I/O trait of dlfs, and its engines.
//!
//! An I/O owns its buffer; its completion gives the buffer back. No lifetime crosses the trait, no
//! callback enters it, no method blocks. It knows blocks, never samples.

mod addresses;
pub mod blocking;
#[cfg(debug_assertions)]
mod broken;
pub mod calls;
mod cpus;
mod device;
mod engines;
mod fence;
pub mod file;
pub mod folder;
pub mod group;
pub mod mem;
mod opening;
mod options;
pub mod plain;
mod pread;
pub mod readiness;
mod remote;
mod scope;
pub mod session;
pub mod shared;
#[cfg(feature = "spdk")]
pub mod spdk;
pub(crate) mod spinning;
pub mod tcp;
mod transfer;
mod uring;
mod wake;

pub use addresses::{open, open_all};
pub use cpus::Cpus;
pub use device::{Capabilities, Device, ambiguous};
pub use engines::{Engine, engines};
pub use fence::Fence;
pub(crate) use opening::open_pairs;
pub use options::{ConnectOptions, Direct, SpdkOptions};
pub use scope::PairScope;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use self::readiness::Registry;
use crate::buf::{IoBuf, Pool, SharedBuf};
use crate::error::{Error, ErrorKind, Result};
use crate::nvme::Status;
use crate::units::Lba;

/// What an [`Io`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoOp {
    /// Fill the buffer from the namespace.
    Read,
    /// Write the buffer to the namespace.
    Write,
    /// Make all completed writes durable; the buffer is empty.
    Flush,
}

/// One I/O, with the buffer that it owns while it runs.
#[derive(Debug)]
pub struct Io {
    /// What to do.
    pub op: IoOp,
    /// First logical block.
    pub slba: Lba,
    /// Whole blocks, at most [`Namespace::max_transfer_bytes`]; empty for a flush.
    pub buf: IoBuf,
    /// The caller's own number; comes back with the completion and means nothing here.
    pub tag: u64,
}

/// The end of one [`Io`]: the buffer, and whether all of it was moved.
#[derive(Debug)]
pub struct Completion {
    /// The tag of the I/O.
    pub tag: u64,
    /// The buffer of the I/O. Its bytes mean something only when `result` is `Ok`.
    pub buf: IoBuf,
    /// `Ok` only when every byte asked for was moved.
    pub result: Result<(), IoError>,
}

/// Why an I/O failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The controller answered with an error status.
    #[error("the controller answered {0}")]
    Status(Status),
    /// The connection is gone; every way to get it back within its time has been tried.
    #[error("disconnected: {0}")]
    Disconnected(String),
    /// The target said success with fewer bytes than asked.
    #[error("only {found} of {expected} bytes came, and no error: the rest is cut off")]
    Short {
        /// Bytes asked for.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// The data digest of the transfer differs.
    #[error("the data digest of the transfer differs")]
    DataDigest,
    /// The operating system says that more bytes were moved than it was asked for: it knows not which.
    #[error("the operating system moved {found} bytes where {expected} were asked for")]
    Excess {
        /// Bytes asked for.
        expected: u64,
        /// Bytes that it counted.
        found: u64,
    },
    /// The thread that ran it panicked; its words.
    #[error("{0}")]
    Panicked(String),
    /// The operating system failed it.
    #[error("operating system error {0} ({name})", name = std::io::Error::from_raw_os_error(*.0))]
    Os(i32),
    /// The fence of the writer was closed, see [`Fence`]: nothing was written that had not left before.
    #[error("it may not be written any more: its writer's time has passed")]
    Fenced,
    /// A file of a folder namespace is not the one that was listed: named here.
    #[error("{0} has changed since the folder was listed: open the folder again")]
    Changed(String),
    /// The call is not whole blocks, or goes past the end, or is too large: the caller's mistake.
    #[error("{0}")]
    Invalid(&'static str),
}

/// What a queue pair's namespace is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// How the user knows it: the address it was opened by.
    pub address: String,
    /// Bytes of a logical block: a power of two, 512 to 4,096.
    pub block_len_bytes: u32,
    /// Size in logical blocks.
    pub num_blocks: u64,
    /// The most that one I/O may carry, in bytes: a multiple of 4,096.
    pub max_transfer_bytes: u32,
    /// The most I/Os that may be outstanding on one queue pair.
    pub queue_depth: u16,
    /// Globally unique identifier, zero when there is none.
    pub nguid: [u8; 16],
    /// Whether writes are refused.
    pub read_only: bool,
    /// The engine at work, for people: `mem`, `file (io_uring, O_DIRECT)`, `tcp`.
    pub engine: String,
}

impl Namespace {
    /// Size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.num_blocks.saturating_mul(u64::from(self.block_len_bytes))
    }

    /// Whether it holds `len_bytes`, for who cannot make it longer.
    ///
    /// # Errors
    /// `NoSpace`: it does not.
    pub fn must_hold(&self, len_bytes: u64) -> Result<()> {
        if len_bytes <= self.len_bytes() {
            return Ok(());
        }
        let message = format!("{len_bytes} bytes are needed, the namespace has a fixed size");
        Err(Error::new(ErrorKind::NoSpace, message).target(self.address.clone()))
    }

    /// Whether this I/O can be: every engine asks before it moves a byte, and completes what cannot
    /// be with the error.
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

impl IoError {
    /// Whether only these blocks cannot be had: the medium fails in one place, or the bytes came damaged.
    /// Otherwise the namespace as a whole is out of reach, or the call was wrong.
    pub fn is_of_the_blocks(&self) -> bool {
        match self {
            IoError::Short { .. } | IoError::DataDigest => true,
            IoError::Status(status) => {
                const OF_THE_BLOCKS: [Status; 2] =
                    [Status::INTERNAL_ERROR, Status::DATA_TRANSFER_ERROR];
                // Media and data integrity errors, and what vendors have of their own.
                matches!(status.sct, 2 | 7) || OF_THE_BLOCKS.iter().any(|of| status.is(*of))
            }
            // A device's medium error is ENODATA, or EREMOTEIO; file systems say EBADMSG or EUCLEAN.
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

    /// What a caller can act on: the one place that says so for an I/O.
    pub fn kind(&self) -> ErrorKind {
        match self {
            // Status code type 2h: media and data integrity errors.
            IoError::Status(status) if status.sct == 2 => ErrorKind::Corrupt,
            IoError::Status(_) => ErrorKind::Refused,
            IoError::Disconnected(_) | IoError::Fenced => ErrorKind::Disconnected,
            IoError::Short { .. } | IoError::DataDigest => ErrorKind::Corrupt,
            IoError::Os(28 | 122) => ErrorKind::NoSpace, // ENOSPC, EDQUOT
            IoError::Os(errno) => Error::from(std::io::Error::from_raw_os_error(*errno)).kind(),
            IoError::Excess { .. } => ErrorKind::Io,
            IoError::Panicked(_) => ErrorKind::Internal,
            IoError::Changed(_) => ErrorKind::Stale,
            IoError::Invalid(_) => ErrorKind::InvalidArgument,
        }
    }

    /// The library's error for this failure of an I/O on `namespace`.
    pub(crate) fn on(self, namespace: &Namespace) -> Error {
        Error::new(self.kind(), "an I/O failed").target(namespace.address.clone()).source(self)
    }

    /// The library's error for this failure of an I/O on `namespace` at `slba`.
    pub fn at(self, namespace: &Namespace, slba: Lba) -> Error {
        self.on(namespace).lba(slba)
    }
}

/// `result`, or else why the blocks that were asked for cannot be had: see
/// [`IoError::is_of_the_blocks`].
///
/// # Errors
/// The namespace as a whole cannot be read.
pub(crate) fn or_unreadable<T>(result: crate::Result<T>) -> crate::Result<Result<T, String>> {
    let is_of_the_blocks = |error: &Error| {
        let cause = std::error::Error::source(error);
        let cause = cause.and_then(|cause| cause.downcast_ref::<IoError>());
        cause.is_some_and(IoError::is_of_the_blocks)
    };
    match result {
        Ok(found) => Ok(Ok(found)),
        Err(error) if is_of_the_blocks(&error) => {
            let cause = std::error::Error::source(&error).expect("looked at just above");
            Ok(Err(cause.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// A polled submission and completion queue pair. One thread at a time; no method blocks.
///
/// No method has a default: a queue pair around another one, or around several, answers or forwards each.
/// An engine without a thing does nothing where it is asked for it.
pub trait QueuePair: Send {
    /// The namespace behind it. May change size or identity only over a reconnect.
    fn namespace(&self) -> &Namespace;

    /// Takes I/O from the front of `pending` while there is room; returns how many it took.
    ///
    /// An I/O that was taken is owed exactly one [`Completion`], also when the connection dies. It
    /// starts with the next [`QueuePair::poll`] at the latest: poll once before sleeping.
    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize;

    /// Moves I/O forward; appends at most `max` completions to `done`, each with its buffer, or with
    /// other memory as long where a device that was lost may still write to that; returns how many.
    /// Fewer than `max`: there are no more for now. Also does what time asks for: deadlines, reconnecting.
    ///
    /// Costs no system call on a descriptor that [`QueuePair::join`] had watched and that is not ready.
    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize;

    /// Starts what was taken where a device moves the bytes by itself, and completes nothing; elsewhere it
    /// starts with the next [`QueuePair::poll`].
    fn start(&mut self);

    /// Most buffers will be windows of `pool`: an engine for which that makes I/O cheaper prepares
    /// it, and may keep the pool. Buffers from elsewhere stay allowed.
    fn use_pool(&mut self, pool: &Pool);

    /// Writes that are submitted from now on are not sent while `fence` is closed: they end with
    /// [`IoError::Fenced`]. Nothing to do for an engine that keeps no write back.
    fn use_fence(&mut self, fence: &Arc<Fence>);

    /// I/Os taken and not yet completed.
    fn outstanding(&self) -> usize;

    /// Names the I/O queue below, where others of its [`PairScope`] share it: queue pairs of the same name
    /// take at most one [`Namespace::queue_depth`] together. `None`: the queue is its own.
    fn shared_queue(&self) -> Option<usize>;

    /// What was read there was wrong: where there is another copy, the next read is of that.
    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize);

    /// The bytes of a read where they lie, in place of a copy of them: `len_bytes` from `slba`, whole
    /// blocks within the namespace.
    ///
    /// What is lent never changes: whoever writes there meanwhile writes to other memory. `None`: the
    /// engine does not hold these bytes as they are, so submit a read.
    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf>;

    /// Has whoever polls from now on watch every descriptor that says when there is something to do:
    /// those of now, and of later connections. Called again after a fork, with the child's registry.
    ///
    /// A queue pair that finds what another one was waiting for marks that one: [`Registry::mark`].
    fn join(&mut self, registry: &Registry);

    /// How its poller learns that an outstanding I/O can be moved forward.
    fn notice(&self) -> Notice;

    /// When `poll` must be called again even if nothing becomes ready.
    fn next_timeout(&self) -> Option<Instant>;
}

/// How a poller learns that a queue pair has something to do. That of several is the largest of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// A descriptor that it registered becomes ready, it is marked, or its [`QueuePair::next_timeout`] has
    /// come.
    Event,
    /// As [`Notice::Event`] says to a sleeper. A look costs no system call, so a poller that does not
    /// sleep looks in every turn.
    Look,
    /// Nothing tells: while I/Os are outstanding it is polled in every turn, and nobody sleeps.
    Poll,
}

/// A file descriptor to sleep on, and for what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// Whether room to write matters too, beside something to read.
    pub writable: bool,
}
