//! Sessions with a controller as pure state machines: time, bytes and failures go in; bytes, I/Os and
//! wishes come out.
//!
//! A *session* is one association with a controller, from its becoming usable to its loss: an admin queue
//! and I/O queues. Each queue has a [`Channel`], which is its connection from the first byte to its use.
//! There is no socket, thread or clock here, so the same code runs below the engine `tcp` and in a
//! simulated network (`tests/netsim`).
//!
//! It knows what to do, never how: who opens sockets, sleeps and wakes is `remote`, and the engine.
//!
//! Read [`connect`] first, then [`controller`].

pub mod connect;
pub mod controller;
mod failure;

pub use connect::{Channel, ConnectTerms};
pub use controller::{Controller, Goal, Joint, Terms};
pub use failure::Failure;

use crate::nvme::Nqn;
use crate::units::Nsid;

/// Who this host is. One NQN always comes with one identifier.
#[derive(Debug, Clone)]
pub struct HostIdentity {
    /// The host NQN.
    pub nqn: Nqn,
    /// The host identifier.
    pub id: [u8; 16],
}

/// What a turn of an admin queue brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing that concerns anybody.
    Quiet,
    /// The goal is reached: the [`Facts`] hold.
    Ready,
    /// The namespace was identified again after an event: the [`Facts`] are new.
    Changed,
}

/// What was learnt about a controller and its namespace.
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
    /// The namespace.
    pub nsid: Nsid,
    /// Bytes of a logical block.
    pub block_len_bytes: u32,
    /// Size in logical blocks.
    pub num_blocks: u64,
    /// Whether it takes no writes.
    pub write_protected: bool,
    /// Whether headers carry digests.
    pub hdr_digest: bool,
    /// Whether data carry digests.
    pub data_digest: bool,
    /// The best identifier there is: NGUID, UUID, EUI-64, or zero.
    pub nguid: [u8; 16],
}
