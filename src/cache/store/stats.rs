//! Counters of a store.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::media::Media;
use dlfs_base::metrics::{self, Measured, Snapshot};
use dlfs_order::tier::PAGE_BYTES;

/// Counters of a store since it was opened: its contents, and its exchanges.
pub type StoreStats = StoreCounts<u64>;

/// The counters behind [`StoreStats`].
pub(super) type Counters = StoreCounts<AtomicU64>;

/// The counters of a store: values, or atomic counters for several threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StoreCounts<T> {
    /// Bytes of the pages that are in the store now.
    pub held_bytes: T,
    /// Maximum of `held_bytes` so far.
    pub peak_bytes: T,
    /// Samples that were in the store when it was opened, and whose checksums matched.
    pub found: T,
    /// Samples that were fetched from the origin before an epoch began.
    pub staged: T,
    /// Bytes of the pages of those samples.
    pub staged_bytes: T,
    /// Samples that were received from other ranks.
    pub received: T,
    /// Bytes of the pages of those samples.
    pub received_bytes: T,
    /// The part of `received_bytes` from ranks on the same node, which crossed no network.
    pub near_bytes: T,
    /// Samples that were fetched from the origin because the rank that had them was late or dead, or because the
    /// rank's or this store's copy was damaged.
    pub from_origin: T,
    /// Bytes of the pages of those samples.
    pub from_origin_bytes: T,
    /// Samples that were deleted after their new ranks had received them, or were gone.
    pub deleted: T,
    /// Samples from a peer with wrong checksums. They are never stored.
    pub mismatched: T,
    /// Steps of exchanges that have become due, including steps in which this rank keeps its own sample.
    pub steps: T,
    /// Reads that waited for a sample that had not arrived.
    pub waits: T,
}

impl Measured for StoreStats {
    fn measure(&self, snapshot: &mut Snapshot) {
        for (metric, value) in [
            (&metrics::STORE_HELD_BYTES, self.held_bytes),
            (&metrics::STORE_PEAK_BYTES, self.peak_bytes),
            (&metrics::STORE_FOUND, self.found),
            (&metrics::STORE_STAGED, self.staged),
            (&metrics::STORE_STAGED_BYTES, self.staged_bytes),
            (&metrics::STORE_RECEIVED, self.received),
            (&metrics::STORE_RECEIVED_BYTES, self.received_bytes),
            (&metrics::STORE_NEAR_BYTES, self.near_bytes),
            (&metrics::STORE_FROM_ORIGIN, self.from_origin),
            (&metrics::STORE_FROM_ORIGIN_BYTES, self.from_origin_bytes),
            (&metrics::STORE_DELETED, self.deleted),
            (&metrics::STORE_MISMATCHED, self.mismatched),
            (&metrics::STORE_STEPS, self.steps),
            (&metrics::STORE_WAITS, self.waits),
        ] {
            snapshot.count(metric, &[], value);
        }
    }
}

impl Counters {
    pub(super) fn read(&self, media: &Media) -> StoreStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (held, peak) = media.pages();
        StoreStats {
            held_bytes: held * PAGE_BYTES,
            peak_bytes: peak * PAGE_BYTES,
            found: of(&self.found),
            staged: of(&self.staged),
            staged_bytes: of(&self.staged_bytes),
            received: of(&self.received),
            received_bytes: of(&self.received_bytes),
            near_bytes: of(&self.near_bytes),
            from_origin: of(&self.from_origin),
            from_origin_bytes: of(&self.from_origin_bytes),
            deleted: of(&self.deleted),
            mismatched: of(&self.mismatched),
            steps: of(&self.steps),
            waits: of(&self.waits),
        }
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
