//! Caches of a job that serve each other: each node reads from another node's tiers what that one holds.
//!
//! The ranks of a job meet once, when it starts: a *rendezvous* gathers one record of each
//! ([`rendezvous`]), and the records of one start are a [`Round`]. From it every rank computes the same
//! table of which node holds which chunk ([`ChunkHolders`](crate::plan::ChunkHolders)), without a message.
//!
//! Read `launcher.rs` (what the launcher says), `record.rs`, `round.rs`, then `rendezvous/`.

mod launcher;
mod record;
pub mod rendezvous;
mod round;

pub use launcher::Launched;
pub use record::{MAX_RECORD_BYTES, Record};
pub use round::{Node, Round};
