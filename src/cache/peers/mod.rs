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
//! Read `meeting.rs` (options), `round.rs`, `rendezvous/`, `join.rs`, then `pair.rs` (the path of a read) and
//! `links.rs` (peers that can be asked).

mod chunk_map;
mod job_key;
mod join;
mod launched;
mod links;
mod meeting;
mod pair;
pub mod rendezvous;
mod round;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use dlfs_base::metrics::{self, Measured, Snapshot};

pub(crate) use chunk_map::ChunkPlaces;
pub use chunk_map::{PlanMap, live_page_bytes};
pub use job_key::{JobKey, KeyMark, PeerKeys};
pub use join::{Pass, PeerOptions, Peers, Served, Serving};
pub use launched::Launched;
pub use meeting::{JoinOptions, Means, Meeting};
pub use round::{MAX_RECORD_BYTES, Node, Record, Round};

/// Counters of reads from peers since the start. This rank's cache counts the reads that it serves itself.
pub type PeerStats = PeerCounts<u64, f64>;

/// The counters behind [`PeerStats`]; times are in microseconds.
type Counters = PeerCounts<AtomicU64, AtomicU64>;

/// The counters of reads through peers: values and times, or atomic counters for several threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PeerCounts<T, S> {
    /// Reads from each node of the round, in the order of the round's nodes. Zero for this node.
    pub nodes: Vec<NodeCounts<T, S>>,
    /// Bytes that a peer was asked for and did not have.
    pub not_there_bytes: T,
    /// The reads of `not_there_bytes`: wrong guesses of the data that a peer has.
    pub not_there_reads: T,
    /// Bytes that were read elsewhere after a peer had failed, had lacked them, or had delivered wrong bytes.
    pub rerouted_bytes: T,
    /// Bytes from a peer that differ from the directory's checksum. The caller never gets them.
    pub mismatched_bytes: T,
}

/// Counters of reads from one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct NodeCounts<T, S> {
    /// Number of reads.
    pub reads: T,
    /// Bytes of these reads.
    pub bytes: T,
    /// Total time of these reads, in seconds; in the atomic form, in microseconds.
    pub read_s: S,
}

impl Measured for PeerStats {
    fn measure(&self, snapshot: &mut Snapshot) {
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.reads > 0) {
            let labels = [&*number.to_string()];
            snapshot.count(&metrics::PEER_READS, &labels, node.reads);
            snapshot.count(&metrics::PEER_READ_BYTES, &labels, node.bytes);
            snapshot.seconds(&metrics::PEER_READ_SECONDS, &labels, node.read_s);
        }
        for (metric, value) in [
            (&metrics::PEER_NOT_THERE_READS, self.not_there_reads),
            (&metrics::PEER_NOT_THERE_BYTES, self.not_there_bytes),
            (&metrics::PEER_REROUTED_BYTES, self.rerouted_bytes),
            (&metrics::PEER_MISMATCHED_BYTES, self.mismatched_bytes),
        ] {
            snapshot.count(metric, &[], value);
        }
    }
}

impl Counters {
    fn new(num_nodes: usize) -> Counters {
        let nodes = (0..num_nodes).map(|_| NodeCounts::default()).collect();
        Counters { nodes, ..Counters::default() }
    }

    fn read_from(&self, node: u16, len: usize, took: Duration) {
        let node = &self.nodes[usize::from(node)];
        add(&node.reads, 1);
        add(&node.bytes, len);
        add(&node.read_s, took.as_micros() as usize);
    }

    fn read(&self) -> PeerStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of_node = |node: &NodeCounts<AtomicU64, AtomicU64>| NodeCounts {
            reads: of(&node.reads),
            bytes: of(&node.bytes),
            read_s: Duration::from_micros(of(&node.read_s)).as_secs_f64(),
        };
        PeerStats {
            nodes: self.nodes.iter().map(of_node).collect(),
            not_there_bytes: of(&self.not_there_bytes),
            not_there_reads: of(&self.not_there_reads),
            rerouted_bytes: of(&self.rerouted_bytes),
            mismatched_bytes: of(&self.mismatched_bytes),
        }
    }
}

fn add(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}
