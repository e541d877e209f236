//! Lock-free counters of tiers and of their origin.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use dlfs_base::metrics::{self, Measured, Snapshot};

/// Counters of reads and copies.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CacheStats {
    /// Per tier, fastest first.
    pub tiers: Vec<TierStats>,
    /// Reads from the origin.
    pub origin: OriginStats,
    /// Process id of the owner of the tiers, if this process is attached to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Number of attached processes, if this process owns tiers that are shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attached: Option<usize>,
    /// The error that ended the copier, after which no more copies are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died: Option<String>,
}

impl Measured for CacheStats {
    fn measure(&self, snapshot: &mut Snapshot) {
        self.tiers.iter().for_each(|tier| tier.measure(snapshot));
        self.origin.measure(snapshot);
        snapshot.count(&metrics::TIERS_ATTACHED, &[], self.attached.unwrap_or(0) as u64);
    }
}

impl Measured for TierStats {
    fn measure(&self, snapshot: &mut Snapshot) {
        let labels = [&*self.name];
        for (metric, value) in [
            (&metrics::TIER_CAPACITY_BYTES, self.capacity_bytes),
            (&metrics::TIER_USED_BYTES, self.used_bytes),
            (&metrics::TIER_HELD_BYTES, self.held_bytes),
            (&metrics::TIER_OFF, self.is_off.into()),
            (&metrics::TIER_HITS, self.hits),
            (&metrics::TIER_HIT_BYTES, self.hit_bytes),
            (&metrics::TIER_OPENS, self.opens),
            (&metrics::TIER_FILLS, self.fills),
            (&metrics::TIER_FILL_BYTES, self.fill_bytes),
            (&metrics::TIER_RESTORED, self.restored),
            (&metrics::TIER_EVICTIONS, self.left),
            (&metrics::TIER_DAMAGED, self.damaged),
        ] {
            snapshot.count(metric, &labels, value);
        }
        snapshot.seconds(&metrics::TIER_HIT_SECONDS, &labels, self.hit_s);
        snapshot.seconds(&metrics::TIER_FILL_SECONDS, &labels, self.fill_s);
    }
}

impl Measured for OriginStats {
    fn measure(&self, snapshot: &mut Snapshot) {
        for (metric, value) in [
            (&metrics::ORIGIN_READS, self.reads),
            (&metrics::ORIGIN_READ_BYTES, self.bytes),
            (&metrics::ORIGIN_AHEAD_READS, self.ahead),
            (&metrics::ORIGIN_AHEAD_BYTES, self.ahead_bytes),
            (&metrics::ORIGIN_JOINED_READS, self.joined),
            (&metrics::ORIGIN_JOINED_BYTES, self.joined_bytes),
            (&metrics::ORIGIN_COPIER_READS, self.copier_reads),
            (&metrics::ORIGIN_COPIER_BYTES, self.copier_bytes),
        ] {
            snapshot.count(metric, &[], value);
        }
        snapshot.seconds(&metrics::ORIGIN_READ_SECONDS, &[], self.read_s);
    }
}

/// Counters of one tier.
pub type TierStats = TierCounts<u64, f64>;

/// The counters behind [`TierStats`]. Only events are counted here: `name`, the three `..._bytes` of the quota and its
/// pages, and `is_off` stay at their defaults; [`CacheStats`] gets them from the tiers.
type TierCounters = TierCounts<AtomicU64, AtomicU64>;

/// The counters of a tier: values, or atomic counters for several threads. Times are in seconds, or in nanoseconds in
/// the atomic form.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TierCounts<T, S> {
    /// The tier's specification, with its quota in bytes.
    pub name: String,
    /// Quota in bytes, without the index.
    pub capacity_bytes: T,
    /// Bytes of reserved pages.
    pub used_bytes: T,
    /// Bytes of pages that have copies.
    pub held_bytes: T,
    /// Number of copies that were opened as files.
    pub opens: T,
    /// Reads, or pieces of reads, that the tier served.
    pub hits: T,
    /// Bytes of those reads.
    pub hit_bytes: T,
    /// Total time of those reads from submission to completion.
    pub hit_s: S,
    /// Units of at most 64 pages that were completed.
    pub fills: T,
    /// Bytes written to the tier, for complete and incomplete units.
    pub fill_bytes: T,
    /// Total time of writing them.
    pub fill_s: S,
    /// Units of an earlier run whose copies were verified and reused.
    pub restored: T,
    /// Evictions of all copies of a unit or of some of its pages: for units that a later plan reads more often, for
    /// chunks that this node holds, or to give the unit a larger place.
    pub left: T,
    /// Units with corrupt, truncated or unreadable copies, which are not used again.
    pub damaged: T,
    /// Set once the tier accepts no more copies: a write failed, its target is lost, or the copier has died.
    pub is_off: bool,
}

/// Counters of the origin.
pub type OriginStats = OriginCounts<u64, f64>;

/// The counters of the origin: values, or atomic counters for several threads. Times are as in [`TierCounts`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct OriginCounts<T, S> {
    /// Reads that a reader waited for.
    pub reads: T,
    /// Bytes of those reads.
    pub bytes: T,
    /// Total time of those reads from submission to completion.
    pub read_s: S,
    /// Reads, or pieces of reads, served from ahead reads: longer reads of the origin, which begin once the reads of a
    /// queue pair follow one another.
    pub ahead: T,
    /// Bytes of these pieces.
    pub ahead_bytes: T,
    /// Reads, or pieces of reads, that were served by another read of the same pages.
    pub joined: T,
    /// Bytes of these pieces.
    pub joined_bytes: T,
    /// Reads by the copier itself.
    pub copier_reads: T,
    /// Bytes of those reads.
    pub copier_bytes: T,
}

/// The counters behind [`CacheStats`].
#[derive(Default)]
pub(super) struct Counters {
    tiers: Vec<TierCounters>,
    origin: OriginCounts<AtomicU64, AtomicU64>,
    /// Amount of outstanding work: messages to the copier, units to fetch or verify, and writes.
    unsettled: AtomicI64,
}

impl Counters {
    pub(super) fn new(num_tiers: usize) -> Counters {
        let tiers = (0..num_tiers).map(|_| TierCounters::default()).collect();
        Counters { tiers, ..Counters::default() }
    }

    /// Counts one event of a tier.
    pub(super) fn count(&self, tier: u8, of: impl Fn(&TierCounters) -> &AtomicU64) {
        add(of(&self.tiers[usize::from(tier)]), 1);
    }

    /// Counts a read, or a piece of one, of `len` bytes that a tier served.
    pub(super) fn hit(&self, tier: u8, len: usize, took: Duration) {
        let tier = &self.tiers[usize::from(tier)];
        add(&tier.hits, 1);
        add(&tier.hit_bytes, len as u64);
        add(&tier.hit_s, took.as_nanos() as u64);
    }

    /// Counts a read of `len` bytes of the origin that a reader waited for.
    pub(super) fn origin_read(&self, len: usize, took: Duration) {
        add(&self.origin.reads, 1);
        add(&self.origin.bytes, len as u64);
        add(&self.origin.read_s, took.as_nanos() as u64);
    }

    /// The mean duration of a read of the origin; 0 before the first.
    pub(super) fn mean_origin_read(&self) -> Duration {
        let OriginCounts { reads, read_s, .. } = &self.origin;
        Duration::from_nanos(load(read_s).checked_div(load(reads)).unwrap_or(0))
    }

    /// Counts a piece that an ahead read served.
    pub(super) fn ahead(&self, len: usize) {
        add(&self.origin.ahead, 1);
        add(&self.origin.ahead_bytes, len as u64);
    }

    /// Counts a piece that another read of the same pages served.
    pub(super) fn joined(&self, len: usize) {
        add(&self.origin.joined, 1);
        add(&self.origin.joined_bytes, len as u64);
    }

    /// Counts reads of the copier, of `len` bytes together.
    pub(super) fn copier_read(&self, reads: u64, len: usize) {
        add(&self.origin.copier_reads, reads);
        add(&self.origin.copier_bytes, len as u64);
    }

    /// Counts `len` bytes of a unit that were written; `is_whole`: the unit is now complete.
    pub(super) fn filled(&self, tier: u8, len: usize, is_whole: bool, took: Duration) {
        let tier = &self.tiers[usize::from(tier)];
        add(&tier.fills, is_whole.into());
        add(&tier.fill_bytes, len as u64);
        add(&tier.fill_s, took.as_nanos() as u64);
    }

    /// Adds `by`, possibly negative, to the copier's outstanding work: the work is added before it is passed on, and
    /// removed when it is done.
    pub(super) fn unsettle(&self, by: i64) {
        self.unsettled.fetch_add(by, Ordering::AcqRel);
    }

    /// Returns whether the copier has no outstanding work.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire) <= 0
    }

    /// The counters of a tier; the caller sets the fields that [`TierCounters`] does not count.
    pub(super) fn tier(&self, tier: u8) -> TierStats {
        let counters = &self.tiers[usize::from(tier)];
        TierStats {
            opens: load(&counters.opens),
            hits: load(&counters.hits),
            hit_bytes: load(&counters.hit_bytes),
            hit_s: seconds(&counters.hit_s),
            fills: load(&counters.fills),
            fill_bytes: load(&counters.fill_bytes),
            fill_s: seconds(&counters.fill_s),
            restored: load(&counters.restored),
            left: load(&counters.left),
            damaged: load(&counters.damaged),
            ..TierStats::default()
        }
    }

    /// The counters of the origin.
    pub(super) fn origin(&self) -> OriginStats {
        let origin = &self.origin;
        OriginStats {
            reads: load(&origin.reads),
            bytes: load(&origin.bytes),
            read_s: seconds(&origin.read_s),
            ahead: load(&origin.ahead),
            ahead_bytes: load(&origin.ahead_bytes),
            joined: load(&origin.joined),
            joined_bytes: load(&origin.joined_bytes),
            copier_reads: load(&origin.copier_reads),
            copier_bytes: load(&origin.copier_bytes),
        }
    }
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn seconds(counter: &AtomicU64) -> f64 {
    Duration::from_nanos(load(counter)).as_secs_f64()
}
