//! Sessions with a controller as pure state machines: time, bytes and failures go in; bytes, I/Os and actions
//! come out.
//!
//! A *session* is one association with a controller, from the moment it is usable to its loss: an admin queue
//! and I/O queues, for a fixed set of namespaces. Each queue has a [`Channel`], which is its connection from
//! the first byte on. There is no socket, thread or clock here, so the same code runs below the engine `tcp`
//! and in a simulated network (`tests/all/netsim`).
//!
//! This module decides the next steps. `remote` and the engine open sockets, sleep and wake. `remote/mod.rs`
//! lists the invariants, which the tests check.
//!
//! | file | state of | used by |
//! |---|---|---|
//! | [`connect`] | one connection, from TCP to commands | `controller`, `queue` |
//! | [`controller`] | an admin queue | the keeper's thread, and queries (`qpair/tcp/queries.rs`) |
//! | `identification` | the namespaces that an admin queue identifies, and their ANA state | `controller` |
//! | [`lifecycle`] | the sessions with a set of namespaces: paths, losses, resets | all threads, through `shared` |
//! | `shared` | a lifecycle behind a lock, and the completed writes that no flush has covered yet | all threads |
//! | `keeping` | nothing: it passes events and actions between `shared` and the admin queues | the keeper's thread |
//! | [`queue`] | an I/O queue: it joins sessions and leaves them | the thread that polls it |
//! | `paths` | the load of an I/O queue on each path | `queue` |
//! | `backlog` | the I/Os of a queue that are not on a connection | `queue`, and the queue of SPDK |
//! | `underway` | the writes and flushes on the connections of a session | `lifecycle`, `shared`, `queue` |
//!
//! Read [`lifecycle`] first, then [`queue`].

mod backlog;
pub mod connect;
pub mod controller;
mod identification;
mod keeping;
pub mod lifecycle;
mod paths;
pub mod queue;
mod shared;
mod underway;

pub(crate) use backlog::Backlog;
pub use backlog::{Answer, Attempt};
pub use connect::{Channel, ConnectTerms, Credentials};
pub use controller::{Controller, JoinInfo};
pub use identification::Goal;
pub use keeping::{Keeping, turn};
pub use lifecycle::{Lifecycle, Limits, Phase, Session};
pub use queue::{Carrier, IoQueue, Portal};
pub(crate) use shared::SessionState;
pub use shared::{PathStats, Shared};

use std::fmt;
use std::time::Duration;

use super::Namespace;
use dlfs_base::error::{Error, ErrorKind};
use dlfs_base::units::Nsid;
use dlfs_nvme::auth::TlsPsk;
use dlfs_nvme::nvme::Nqn;
use dlfs_nvme::tcp::{Digests, ProtocolError};

/// The identity of this host. One NQN should always have the same identifier.
#[derive(Debug, Clone)]
pub struct HostIdentity {
    /// The host NQN.
    pub nqn: Nqn,
    /// The host identifier.
    pub id: [u8; 16],
    /// The secrets with which the host authenticates if a controller requires it; `None`: the host cannot.
    pub credentials: Option<Credentials>,
}

/// The parameters of a connection.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The subsystem.
    pub subnqn: Nqn,
    /// The purpose of the admin queue.
    pub goal: Goal,
    /// The identity of this host.
    pub host: HostIdentity,
    /// Digests to ask for.
    pub digests: Digests,
    /// The digests that the target must accept.
    pub required: Digests,
    /// The TLS PSK; `None`: plain TCP.
    pub psk: Option<TlsPsk>,
    /// The same PSK with an identity of version 0, for targets that support only this version.
    pub psk_v0: Option<TlsPsk>,
    /// The number of I/O queues to ask for.
    pub nr_io_queues: u16,
    /// Keep Alive Timeout; zero switches it off.
    pub keep_alive_tmo: Duration,
    /// The timeout of a TCP connect.
    pub tcp_timeout: Duration,
    /// The longest time without progress while commands are outstanding, and the timeout of ICResp.
    pub io_timeout: Duration,
    /// As [`HostOptions::least_progress_bytes`](dlfs_nvme::tcp::host::HostOptions).
    pub least_progress_bytes: u32,
}

/// The result of polling an admin queue.
#[derive(Debug, PartialEq, Eq)]
pub enum AdminEvent {
    /// Nothing has happened that the session or its queues must know.
    Nothing,
    /// The goal is reached: [`Identified`] is complete.
    Ready,
    /// Namespaces were identified again after an asynchronous event: [`Identified`] has changed.
    Changed,
}

/// The facts that a controller reports about itself and its namespaces.
#[derive(Debug, Clone, Default)]
pub struct Identified {
    /// The number of I/O queues that the controller grants, at most those asked for.
    pub num_io_queues: u16,
    /// The most entries of an I/O queue that the controller supports.
    pub max_entries: u32,
    /// The largest transfer of a command, if the controller limits it.
    pub max_transfer_bytes: Option<u32>,
    /// True if completed writes may be lost with the controller.
    pub has_volatile_write_cache: bool,
    /// The digests of the controller's connections.
    pub digests: Digests,
    /// True if the controller's connections use TLS, which detects every change.
    pub is_secured: bool,
    /// True if the ANA state of a namespace is non-optimized on this path.
    pub is_non_optimized: bool,
    /// The failure if a namespace became inaccessible on this path, by its ANA state, after the goal was reached.
    pub inaccessible: Option<Failure>,
    /// The requested namespaces in the order of the request; if all were requested, by ascending NSID.
    pub namespaces: Vec<IdentifiedNamespace>,
}

/// The facts that Identify reports about a namespace.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdentifiedNamespace {
    /// The NSID that commands use.
    pub nsid: Nsid,
    /// Bytes of a logical block.
    pub block_len_bytes: u32,
    /// Size in logical blocks.
    pub num_blocks: u64,
    /// True if the controller refuses writes.
    pub write_protected: bool,
    /// The NGUID, else the UUID, else the EUI-64, else zero.
    pub nguid: [u8; 16],
}

/// Statistics of the sessions with a controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// True while a session is live.
    pub is_live: bool,
    /// Sessions that replaced a lost one.
    pub reconnects: u64,
    /// Times that a lost session left its work to a session that was live on another path.
    pub failovers: u64,
    /// Paths to the controller: the socket addresses to which the given addresses resolve.
    pub paths: u64,
    /// Paths that have failed since a session was last live: on the same path if two sessions are kept, else on any.
    pub failed_paths: u64,
    /// Transfers whose data digest was wrong.
    pub damaged: u64,
    /// Commands that were issued again: reads after a lost connection, and commands that the controller answered with a
    /// status that allows a retry.
    pub retried: u64,
}

/// A namespace of a session. Its index is the same in all sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The NSID that commands use.
    pub nsid: Nsid,
    /// The properties, with the limits of the session.
    pub namespace: Namespace,
}

impl Identified {
    /// The namespaces as queue pairs see them, for a host that asks for queues of `queue_size` entries.
    /// `address` returns the user's address of a namespace.
    pub fn attached(
        &self,
        address: impl Fn(Nsid) -> String,
        engine: &str,
        queue_size: u16,
        writable: bool,
    ) -> Vec<Attached> {
        let entries = u32::from(queue_size).clamp(2, MAX_QUEUE_ENTRIES);
        let entries = entries.min(self.max_entries).max(2);
        let most = self.max_transfer_bytes.unwrap_or(u32::MAX).min(MAX_TRANSFER_BYTES);
        let attached = self.namespaces.iter().map(|namespace| Attached {
            nsid: namespace.nsid,
            namespace: Namespace {
                address: address(namespace.nsid),
                block_len_bytes: namespace.block_len_bytes,
                num_blocks: namespace.num_blocks,
                max_transfer_bytes: most.min(namespace.block_len_bytes.saturating_mul(MAX_BLOCKS)),
                queue_depth: (entries - 1) as u16,
                nguid: namespace.nguid,
                read_only: namespace.write_protected || !writable,
                engine: engine.to_owned(),
            },
        });
        attached.collect()
    }
}

impl Namespace {
    /// The properties that a queue pair reports once it has joined a session with the properties `joined`. Callers have
    /// split their I/Os by the earlier transfer limit, so the limit never shrinks; the backlog splits I/Os that exceed
    /// the session's limit.
    pub(in crate::qpair) fn in_session(&self, joined: &Namespace) -> Namespace {
        let max_transfer_bytes = joined.max_transfer_bytes.max(self.max_transfer_bytes);
        Namespace { max_transfer_bytes, ..joined.clone() }
    }
}

/// A failure that several callers may have to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The kind that a caller acts on.
    pub kind: ErrorKind,
    /// Describes the failure, and the step that failed.
    pub message: String,
    /// Advice for the user.
    pub hint: Option<&'static str>,
    /// The namespace that failed; `None`: the whole controller.
    pub nsid: Option<Nsid>,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), hint: None, nsid: None }
    }

    /// The same failure with a hint for the user.
    pub fn hint(mut self, hint: &'static str) -> Failure {
        self.hint = Some(hint);
        self
    }

    /// The same failure, attributed to one namespace.
    pub fn of(mut self, nsid: Nsid) -> Failure {
        self.nsid = Some(nsid);
        self
    }

    /// The same failure, prefixed by the step that failed.
    pub fn at(mut self, what: impl fmt::Display) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The library's error for `target`.
    pub(crate) fn to_error(&self, target: &str) -> Error {
        let error = Error::new(self.kind, self.message.clone()).target(target);
        match self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ProtocolError> for Failure {
    fn from(error: ProtocolError) -> Failure {
        let failure = |kind| Failure::new(kind, error.to_string());
        match error {
            ProtocolError::TimedOut(_) => failure(ErrorKind::TimedOut),
            ProtocolError::DigestDeclined => {
                failure(ErrorKind::Unsupported).hint("leave out --hdr-digest and --data-digest")
            }
            _ => failure(ErrorKind::Corrupt),
        }
    }
}

/// The largest transfer of an I/O. Larger ones are no faster, and some targets close the connection over them although
/// they state no limit.
const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// The most blocks of a read or write: the range of the 0-based 16-bit block count.
const MAX_BLOCKS: u32 = 1 << 16;

/// The most entries of a queue: the CID has 12 bits for the slot.
const MAX_QUEUE_ENTRIES: u32 = 4096;
