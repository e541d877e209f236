//! Counters of a loader.

use crate::buf::Pages;
use crate::metrics::{self, Histogram, Measured, Snapshot};
use crate::reader::ReadStats;
use crate::report::Stalls;

/// Counters of a loader.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct LoaderStats {
    /// Counters of reads.
    #[serde(flatten)]
    pub read: ReadStats,
    /// Latency of the read commands, from submission to completion.
    pub latency: Histogram,
    /// Batches delivered.
    pub batches: u64,
    /// Samples delivered.
    pub samples: u64,
    /// Bytes of the delivered samples.
    pub sample_bytes: u64,
    /// Samples skipped because they could not be read.
    pub skipped: u64,
    /// Bytes copied to gather batches into one buffer.
    pub copied_bytes: u64,
    /// Buffers that did not fit the window and were allocated outside it.
    pub over_window: u64,
    /// Samples in kept memory that were overwritten and had to be read again.
    pub rewritten: u64,
    /// Time that consumers have waited for batches, in seconds: the sum of `stalls`.
    pub stall_s: f64,
    /// The consumers' waits, in seconds by cause.
    #[serde(rename = "stalls_s")]
    pub stalls: Stalls,
    /// Time that the loader has slept because ready batches waited for the consumer, or the window was full, in
    /// seconds.
    pub blocked_s: f64,
    /// The memory of the window, in bytes; 0 before the first read.
    pub window_bytes: u64,
    /// Bytes of the window that hold reads, ready batches, and batches that the consumer has.
    pub window_used_bytes: u64,
    /// Bytes of the window that are registered with the driver of accelerators: all or none.
    pub registered_bytes: u64,
    /// Samples whose verified bytes are in the window now; always 0 unless whole chunks are read.
    pub resident: u64,
    /// The pages that back the window; `None` before the first read.
    pub pages: Option<Pages>,
}

impl Measured for LoaderStats {
    fn measure(&self, snapshot: &mut Snapshot) {
        self.read.measure("loader", snapshot);
        snapshot.durations(&metrics::READ_COMMAND_SECONDS, &["loader"], &self.latency);
        for (metric, value) in [
            (&metrics::LOADER_BATCHES, self.batches),
            (&metrics::LOADER_SAMPLES, self.samples),
            (&metrics::LOADER_SAMPLE_BYTES, self.sample_bytes),
            (&metrics::LOADER_SKIPPED, self.skipped),
            (&metrics::LOADER_COPIED_BYTES, self.copied_bytes),
            (&metrics::LOADER_OVER_WINDOW, self.over_window),
            (&metrics::LOADER_REWRITTEN, self.rewritten),
            (&metrics::LOADER_WINDOW_BYTES, self.window_bytes),
            (&metrics::LOADER_WINDOW_USED_BYTES, self.window_used_bytes),
            (&metrics::LOADER_RESIDENT, self.resident),
        ] {
            snapshot.count(metric, &[], value);
        }
        snapshot.seconds(&metrics::LOADER_BLOCKED_SECONDS, &[], self.blocked_s);
        snapshot.seconds(&metrics::LOADER_STALL_SECONDS, &[], self.stall_s);
        for (cause, waited) in self.stalls.each() {
            let waited_s = waited.as_secs_f64();
            snapshot.seconds(&metrics::LOADER_STALLS_SECONDS, &[cause.name()], waited_s);
        }
    }
}

impl LoaderStats {
    /// The counters after the loader has ended: its window and resident samples are gone.
    pub fn ended(self) -> LoaderStats {
        LoaderStats {
            window_bytes: 0,
            window_used_bytes: 0,
            registered_bytes: 0,
            resident: 0,
            ..self
        }
    }
}
