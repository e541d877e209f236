//! Peers: the nodes of a job serve their tiers to each other, and read each chunk from the node that holds it.
//!
//! The ranks of a job meet once, when it starts: a *rendezvous* gathers one record of each
//! ([`rendezvous`]), and the records of one start are a [`Round`]. From it every rank computes the same
//! table of which node holds which chunk ([`ChunkHolders`](dlfs_order::plan::ChunkHolders)), without a message.
//!
//! Each rank serves its cache by a [`Target`](dlfs_target::Target): a view of each origin namespace with
//! the origin's size and LBAs, so that a reader needs to know only the node. A read goes to the node that
//! holds its chunk. That node answers from its tiers; data that they lack it reads from the origin and keeps.
//! It never asks another peer. Data for which no node has room, the reader reads from the origin itself.
//!
//! A peer that is dead, slow or wrong is never an error of a read: the next node in the chunk's order
//! serves it, and finally the reader's own origin. Copies that this node has then kept it reads before it asks the
//! holder again.
//!
//! With [`Serving::Planned`] who holds what follows from the plan of the run instead ([`PlanMap`]): a node keeps what
//! its own ranks read most often, and others ask it for that. It says itself what is not there (yet), and the
//! reader then goes to the origin.
//!
//! Ranks that have a key of the job ([`JobKey`]) prove themselves to each other, or connect inside TLS.
//!
//! Read `launcher.rs` (the launcher's variables), `meeting.rs` (what a user says), `record.rs`, `round.rs`,
//! `rendezvous/`, `join.rs`, then `pair.rs` (the path of a read), `links.rs` and `presence.rs` (who can be asked).

mod chunk_map;
mod identity;
mod job_key;
mod join;
mod launcher;
mod links;
mod meeting;
mod node;
mod pair;
mod plan_map;
mod presence;
mod record;
pub mod rendezvous;
mod round;
mod serving;
mod stats;

pub(crate) use chunk_map::ChunkPlaces;
pub use chunk_map::live_page_bytes;
pub use job_key::{JobKey, KeyMark, PeerKeys};
pub use join::{Pass, PeerOptions, Peers, Served};
pub use launcher::Launched;
pub use meeting::{JoinOptions, Means, Meeting};
pub use plan_map::PlanMap;
pub use record::{MAX_RECORD_BYTES, Record};
pub use round::{Node, Round};
pub use serving::Serving;
pub use stats::{NodeStats, PeerStats};
