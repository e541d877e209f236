//! Counters of reads through peers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use dlfs_base::metrics::{self, Measured, Snapshot};

/// Counters of reads through peers. This rank's cache counts the reads that it serves itself.
#[derive(Debug, Default)]
pub(super) struct Counters {
    peers: Vec<OfPeer>,
    not_there: AtomicU64,
    not_there_reads: AtomicU64,
    rerouted: AtomicU64,
    mismatched: AtomicU64,
}

#[derive(Debug, Default)]
struct OfPeer {
    reads: AtomicU64,
    bytes: AtomicU64,
    micros: AtomicU64,
}

/// Counters of reads from peers since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PeerStats {
    /// Reads from each node of the round, in the order of [`Round::nodes`](super::Round::nodes). Zero for
    /// this node.
    pub nodes: Vec<NodeStats>,
    /// Bytes that a peer was asked for and did not have.
    pub not_there_bytes: u64,
    /// The reads of `not_there_bytes`: wrong guesses of the data that a peer has.
    pub not_there_reads: u64,
    /// Bytes that were read elsewhere after a peer had failed, had lacked them, or had delivered wrong bytes.
    pub rerouted_bytes: u64,
    /// Bytes from a peer that differ from the directory's checksum. The caller never gets them.
    pub mismatched_bytes: u64,
}

/// Counters of reads from one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct NodeStats {
    /// Number of reads.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
    /// Total time of these reads, in seconds.
    pub read_s: f64,
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
    pub(super) fn new(num_nodes: usize) -> Counters {
        let peers = (0..num_nodes).map(|_| OfPeer::default()).collect();
        Counters { peers, ..Counters::default() }
    }

    pub(super) fn read_from(&self, node: u16, len: usize, took: Duration) {
        let peer = &self.peers[usize::from(node)];
        peer.reads.fetch_add(1, Ordering::Relaxed);
        peer.bytes.fetch_add(len as u64, Ordering::Relaxed);
        peer.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    pub(super) fn not_there(&self, len: usize) {
        self.not_there.fetch_add(len as u64, Ordering::Relaxed);
        self.not_there_reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn rerouted(&self, len: usize) {
        self.rerouted.fetch_add(len as u64, Ordering::Relaxed);
    }

    pub(super) fn mismatched(&self, len: usize) {
        self.mismatched.fetch_add(len as u64, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> PeerStats {
        let of_node = |peer: &OfPeer| NodeStats {
            reads: peer.reads.load(Ordering::Relaxed),
            bytes: peer.bytes.load(Ordering::Relaxed),
            read_s: Duration::from_micros(peer.micros.load(Ordering::Relaxed)).as_secs_f64(),
        };
        PeerStats {
            nodes: self.peers.iter().map(of_node).collect(),
            not_there_bytes: self.not_there.load(Ordering::Relaxed),
            not_there_reads: self.not_there_reads.load(Ordering::Relaxed),
            rerouted_bytes: self.rerouted.load(Ordering::Relaxed),
            mismatched_bytes: self.mismatched.load(Ordering::Relaxed),
        }
    }
}
