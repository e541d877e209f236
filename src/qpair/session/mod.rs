//! Sessions with a controller as pure state machines: time, bytes and failures go in; bytes, I/Os and
//! wishes come out.
//!
//! A *session* is one association with a controller, from its becoming usable to its loss: an admin queue
//! and I/O queues, for a set of namespaces that is the same in each. Each queue has a [`Channel`], which is
//! its connection from the first byte to its use.
//! There is no socket, thread or clock here, so the same code runs below the engine `tcp` and in a
//! simulated network (`tests/netsim`).
//!
//! It knows what to do, never how: who opens sockets, sleeps and wakes is `remote`, and the engine. What it
//! keeps to, and the tests look for, are the rules at the head of `remote/mod.rs`.
//!
//! | file | whose life | who owns it |
//! |---|---|---|
//! | [`connect`] | one connection, from TCP to its use | the two below |
//! | [`controller`] | an admin queue | the keeper's thread |
//! | [`lifecycle`] | the sessions of a set of namespaces: paths, losses, resets, the end | all, by a lock: [`Shared`] |
//! | [`queue`] | an I/O queue: it joins sessions and leaves them | the thread that polls it |
//! | [`Backlog`] | an I/O that is in no connection | the queue |
//!
//! Read [`lifecycle`] first, then [`queue`].

mod backlog;
mod backoff;
pub mod connect;
pub mod controller;
mod durability;
mod failure;
mod identification;
pub mod lifecycle;
pub mod queue;
mod shared;

pub use backlog::{Answer, Attempt, Backlog};
pub use connect::{Channel, ConnectTerms, Credentials};
pub use controller::{Controller, Joint, Terms};
pub use durability::Durability;
pub use failure::Failure;
pub use identification::Goal;
pub use lifecycle::{Lifecycle, Limits, Phase, Session};
pub use queue::{IoQueue, Portal};
pub use shared::{Entrance, Shared};

use super::Namespace;
use crate::nvme::Nqn;
use crate::units::Nsid;

/// Who this host is. One NQN always comes with one identifier.
#[derive(Debug, Clone)]
pub struct HostIdentity {
    /// The host NQN.
    pub nqn: Nqn,
    /// The host identifier.
    pub id: [u8; 16],
    /// What it proves itself with, if a controller wants it to.
    pub credentials: Option<Credentials>,
}

/// What a turn of an admin queue brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing that concerns anybody.
    Quiet,
    /// The goal is reached: the [`Facts`] hold.
    Ready,
    /// Namespaces were identified again after an event: the [`Facts`] are new.
    Changed,
}

/// What was learnt about a controller and its namespaces.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// I/O queues that it grants.
    pub num_io_queues: u16,
    /// Most entries of an I/O queue.
    pub max_entries: u32,
    /// Most data of a command, when the controller says.
    pub max_transfer_bytes: Option<u32>,
    /// Whether completed writes may be lost with it.
    pub has_volatile_write_cache: bool,
    /// Whether headers carry digests.
    pub hdr_digest: bool,
    /// Whether data carry digests.
    pub data_digest: bool,
    /// The namespaces that were asked for, in that order; all of them: by their identifiers.
    pub namespaces: Vec<NamespaceFacts>,
}

/// What was learnt about a namespace.
#[derive(Debug, Clone, Copy, Default)]
pub struct NamespaceFacts {
    /// How commands name it.
    pub nsid: Nsid,
    /// Bytes of a logical block.
    pub block_len_bytes: u32,
    /// Size in logical blocks.
    pub num_blocks: u64,
    /// Whether it takes no writes.
    pub write_protected: bool,
    /// The best identifier there is: NGUID, UUID, EUI-64, or zero.
    pub nguid: [u8; 16],
}

/// A namespace of a session. Its place among the others is the same in all sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// How commands name it.
    pub nsid: Nsid,
    /// What it is.
    pub namespace: Namespace,
}

impl Facts {
    /// What they make of the namespaces, for a host that asks for queues of `queue_size` entries;
    /// `address` is how the user knows a namespace.
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
        let attached = self.namespaces.iter().map(|facts| Attached {
            nsid: facts.nsid,
            namespace: Namespace {
                address: address(facts.nsid),
                block_len_bytes: facts.block_len_bytes,
                num_blocks: facts.num_blocks,
                max_transfer_bytes: most.min(facts.block_len_bytes.saturating_mul(MAX_BLOCKS)),
                queue_depth: (entries - 1) as u16,
                nguid: facts.nguid,
                read_only: facts.write_protected || !writable,
                engine: engine.to_owned(),
            },
        });
        attached.collect()
    }
}

impl Namespace {
    /// What a queue pair calls its namespace in a session that calls it `now`. Callers have cut their I/O
    /// to what it took before, so it never takes less at once: the backlog cuts what a session does not take.
    pub(in crate::qpair) fn in_session(&self, now: &Namespace) -> Namespace {
        let max_transfer_bytes = now.max_transfer_bytes.max(self.max_transfer_bytes);
        Namespace { max_transfer_bytes, ..now.clone() }
    }
}

/// Larger transfers gain nothing, and some targets end the connection over them although they state
/// no limit.
const MAX_TRANSFER_BYTES: u32 = 1 << 20;
/// What the 0-based 16-bit field of a read or write can say.
const MAX_BLOCKS: u32 = 1 << 16;
/// Most entries of a queue here: the CID has 12 bits for the slot.
const MAX_QUEUE_ENTRIES: u32 = 4096;
