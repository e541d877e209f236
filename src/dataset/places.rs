//! Counters of the places that the bytes of an image came from: tiers, other nodes, and the data set.

use serde::Serialize;

use super::Image;

impl Image {
    /// Counters of the places that bytes came from so far; `None` without tiers.
    pub fn places(&self) -> Option<Places> {
        let cache = self.tiers()?;
        let stats = cache.stats();
        let mut places = Vec::new();
        for tier in &stats.tiers {
            let is_memory = tier.name.starts_with("ram:");
            places.push(Place {
                place: if is_memory { PlaceKind::Memory } else { PlaceKind::Drive },
                name: tier.name.clone(),
                reads: tier.hits,
                bytes: tier.hit_bytes,
                read_s: tier.hit_s,
            });
        }
        let mut all = Places::default();
        if let Some(peers) = self.peers() {
            let of_peers = peers.stats();
            let nodes = (0..).zip(peers.round().nodes()).zip(&of_peers.nodes);
            for ((index, node), stats) in nodes {
                if index != peers.own_node() {
                    places.push(Place {
                        place: PlaceKind::Peer,
                        name: node.host.clone(),
                        reads: stats.reads,
                        bytes: stats.bytes,
                        read_s: stats.read_s,
                    });
                }
            }
            all.not_there_bytes = of_peers.not_there_bytes;
            all.not_there_reads = of_peers.not_there_reads;
            all.rerouted_bytes = of_peers.rerouted_bytes;
            all.mismatched_bytes = of_peers.mismatched_bytes;
        }
        let origin = stats.origin;
        places.push(Place {
            place: PlaceKind::Origin,
            name: String::new(),
            reads: origin.reads + origin.copier_reads,
            bytes: origin.bytes + origin.copier_bytes,
            read_s: origin.read_s,
        });
        Some(Places { places, ..all })
    }
}

/// Counters of the places that bytes came from so far: the same in `dlfs read --json`, Python and C.
///
/// The counters of a tier and of the origin are of all reads of this process, for itself and for its peers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Places {
    /// This node's tiers, fastest first; the other nodes; the data set.
    pub places: Vec<Place>,
    /// Bytes that a peer was asked for and did not deliver.
    pub not_there_bytes: u64,
    /// The reads of those bytes: wrong guesses about a peer's content.
    pub not_there_reads: u64,
    /// Bytes that were read elsewhere after a peer had failed, had lacked them, or had delivered wrong bytes.
    pub rerouted_bytes: u64,
    /// Bytes from a peer that do not match the directory's checksum. The caller never sees them.
    pub mismatched_bytes: u64,
}

impl Places {
    /// The counters as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and names always become JSON")
    }
}

/// One place, and the reads from it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Place {
    /// Its kind.
    pub place: PlaceKind,
    /// The tier as its user wrote it, or the node's name; empty for the origin.
    pub name: String,
    /// Reads from the place; one read of the caller may be several here.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
    /// Total time of the reads, in seconds; for the origin, only reads that somebody waited for.
    pub read_s: f64,
}

/// The kind of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlaceKind {
    /// A tier in this node's memory.
    Memory,
    /// A tier in a file, a drive or a remote namespace of this node.
    Drive,
    /// Another node.
    Peer,
    /// The namespaces of the data set.
    Origin,
}
