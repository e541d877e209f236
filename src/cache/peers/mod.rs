//! Peers: the nodes of a job serve their tiers to each other, and read each chunk from the node that holds
//! it.
//!
//! The ranks of a job meet once, when the job starts: a *rendezvous* gathers one record of each rank
//! ([`rendezvous`]), and the records of one start are a [`Round`]. From the round every rank computes,
//! without a message, the same table of the node that holds each chunk
//! ([`ChunkHolders`](dlfs_order::plan::ChunkHolders)).
//!
//! Each rank serves its cache by a [`Target`](dlfs_target::Target): a view of each origin namespace with the
//! origin's size and offsets, so that a reader only chooses a node. A read goes to the node that holds its
//! chunk. That node answers from its tiers. If its tiers lack the data, it reads the data from the origin and
//! keeps them ([`Serving::ReadThrough`], the default); it never asks another peer. If no node has room for the
//! data, the reader reads them from the origin itself.
//!
//! A peer that is dead or slow never makes a read fail: the next node in the chunk's order serves the read,
//! and finally the reader's own origin. A peer that was wrong is asked once more, and then the reader's own
//! origin. If this node has kept copies while the holder was away, it reads them before it asks the holder
//! again.
//!
//! Under [`Serving::Planned`] the plan of the run determines the holders instead ([`PlanMap`]). A node keeps
//! the data that its own ranks read most often, and other nodes ask it for these data. If it does not have
//! them (yet), it says so, and the reader goes to the origin.
//!
//! Ranks that have a key of the job ([`JobKey`]) authenticate each other, or connect inside TLS.
//!
//! Read `meeting.rs` (the launcher's variables and the user's options), `round.rs`, `rendezvous/`, `join.rs`, then
//! `pair.rs` (the path of a read) and `links.rs` (peers that can be asked).

mod chunk_map;
mod job_key;
mod join;
mod links;
mod meeting;
mod pair;
pub mod rendezvous;
mod round;
mod stats;

pub(crate) use chunk_map::ChunkPlaces;
pub use chunk_map::{PlanMap, live_page_bytes};
pub use job_key::{JobKey, KeyMark, PeerKeys};
pub use join::{Pass, PeerOptions, Peers, Served, Serving};
pub use meeting::{JoinOptions, Launched, Means, Meeting};
pub use round::{MAX_RECORD_BYTES, Node, Record, Round};
pub use stats::{NodeStats, PeerStats};
