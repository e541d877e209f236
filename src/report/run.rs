//! The contents of a report.

use serde::Serialize;

use super::timeline::Timeline;
use crate::metrics::Histogram;

/// All data of a run's report.
#[derive(Debug, Clone)]
pub struct Report {
    /// The data set, or the data sets of a mixture.
    pub name: String,
    /// Options of the run with their values, as the user would write them.
    pub settings: Vec<(String, String)>,
    /// Facts that follow from the options, for the advice on what to try next.
    pub facts: Facts,
    /// Counters of reads.
    pub reads: Reads,
    /// The tiers, fastest first.
    pub tiers: Vec<TierUse>,
    /// The store of the rank, if it has one.
    pub store: Option<StoreUse>,
    /// Latency of read commands from submission to completion; `None` if it was not measured.
    pub latency: Option<Histogram>,
    /// The course of the run over time.
    pub timeline: Timeline,
}

/// Facts that follow from the options and the data set.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Facts {
    /// Bytes of all samples of the data set.
    pub data_bytes: u64,
    /// Capacity of the window, in bytes.
    pub window_bytes: u64,
    /// True if the order visits whole chunks.
    pub is_grouped: bool,
    /// Queue pairs per namespace.
    pub queue_pairs: u64,
    /// Processors of this machine that the process may use.
    pub cpus: u64,
}

/// Counters of reads and of the window.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Reads {
    /// Read commands completed.
    pub commands: u64,
    /// Bytes that these commands requested.
    pub bytes: u64,
    /// Reads that were repeated after an error or a wrong checksum.
    pub repeated: u64,
    /// Samples left out because they could not be read.
    pub skipped: u64,
    /// Buffers allocated outside the window.
    pub over_window: u64,
    /// Bytes copied to gather batches into one buffer.
    pub copied_bytes: u64,
    /// Samples in cached memory that something had overwritten.
    pub rewritten: u64,
}

/// The store of a rank, and the bytes brought into it since it was opened. The rank reads only from the
/// store.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct StoreUse {
    /// Bytes of the pages that the store holds now.
    pub held_bytes: u64,
    /// Bytes that were brought from the data set before an epoch.
    pub staged_bytes: u64,
    /// Bytes that came from other ranks.
    pub received_bytes: u64,
    /// Bytes of these that came from ranks on the same node.
    pub near_bytes: u64,
    /// Bytes that came from the data set because the rank that held them was late or dead, or a copy was damaged.
    pub from_origin_bytes: u64,
}

/// A tier, and its counters.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TierUse {
    /// The tier's name as the user wrote it.
    pub name: String,
    /// The tier's quota in bytes.
    pub capacity_bytes: u64,
    /// Bytes that are reserved.
    pub used_bytes: u64,
    /// Bytes served by the tier.
    pub hit_bytes: u64,
}
