//! Caches of a job that serve each other: each node reads from another node's tiers what that one holds.
//!
//! The ranks of a job meet once, when it starts: a *rendezvous* gathers one record of each
//! ([`rendezvous`]), and the records of one start are a [`Round`]. From it every rank computes the same
//! table of which node holds which chunk ([`ChunkHolders`](crate::plan::ChunkHolders)), without a message.
//!
//! Each rank serves its cache by a [`Target`](crate::target::Target): a view of each origin namespace with
//! the origin's size and addresses, so that a reader needs to know nothing but the node. A read goes to the
//! node that holds its chunk. That one answers from its tiers; what they have not got, it reads from the origin
//! and keeps. It never asks another peer. What nobody has room for, the reader reads from the origin itself.
//!
//! A peer that is dead, slow or wrong is never an error of a read: the next node in the chunk's order
//! serves it, and at last the reader's own origin.
//!
//! Read `launcher.rs` (what the launcher says), `record.rs`, `round.rs`, `rendezvous/`, `join.rs`, then
//! `pair.rs` (the way of a read).

mod chunk_map;
mod identity;
mod join;
mod launcher;
mod links;
mod node;
mod pair;
mod record;
pub mod rendezvous;
mod round;
mod stats;
mod view;

pub use chunk_map::{ChunkMap, Span, live_page_bytes};
pub use join::{PeerOptions, Peers, Served, address_towards};
pub use launcher::Launched;
pub use record::{MAX_RECORD_BYTES, Record};
pub use round::{Node, Round};
pub use stats::{NodeStats, PeerStats};
