//! The durability of writes: whether a flush can still cover every completed write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Tracks whether a flush can still make all completed writes durable.
///
/// A completed write may be in the target's cache. When a session is lost, the cache may be lost too. A flush
/// on the next session would say nothing about that write, so that flush must fail.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    /// The number of writes completed so far.
    written: AtomicU64,
    /// The number of the oldest writes that a flush has covered, or that were lost.
    settled: AtomicU64,
    /// True if writes were lost and no flush has reported it yet.
    lost: AtomicBool,
}

impl Durability {
    /// Records a completed write.
    pub(crate) fn wrote(&self) {
        // Ordered with the end of the session: see `Shared::wrote`.
        self.written.fetch_add(1, Ordering::SeqCst);
    }

    /// Starts a flush; returns the number of the writes that it covers, for [`Durability::flushed`].
    pub(crate) fn flush_begins(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Records a successful flush.
    pub(crate) fn flushed(&self, covered: u64) {
        self.settled.fetch_max(covered, Ordering::Relaxed);
    }

    /// Records a flush that failed with its session. The failure reports the loss of the writes that it would
    /// have covered; returns whether there are any.
    pub(crate) fn flush_failed(&self, covered: u64) -> bool {
        let covers_lost = self.settled.fetch_max(covered, Ordering::Relaxed) < covered;
        let is_whole = self.written.load(Ordering::Relaxed) == covered;
        covers_lost | (is_whole && self.take_lost())
    }

    /// Records a loss that a flush must report: nobody saw the earlier report, or a write completed after its session.
    pub(crate) fn owe_report(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Records the loss of the session, and of the writes that were not flushed.
    pub(crate) fn session_lost(&self) {
        let written = self.written.load(Ordering::SeqCst);
        if self.settled.fetch_max(written, Ordering::Relaxed) < written {
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the record of lost writes; returns whether there was one.
    pub(crate) fn take_lost(&self) -> bool {
        self.lost.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_after_a_lost_session_reports_only_writes_that_no_flush_covered() {
        let durability = Durability::default();
        durability.session_lost();
        assert!(!durability.take_lost());
        durability.wrote();
        let covered = durability.flush_begins();
        durability.flushed(covered);
        durability.session_lost();
        assert!(!durability.take_lost());
        durability.wrote();
        let covered = durability.flush_begins();
        durability.wrote(); // after the flush began
        durability.flushed(covered);
        durability.session_lost();
        assert!(durability.take_lost());
        assert!(!durability.take_lost(), "told once");
        durability.session_lost();
        assert!(!durability.take_lost());
    }

    #[test]
    fn writes_that_a_failed_flush_reported_are_not_reported_again() {
        for loss_is_seen_first in [false, true] {
            let durability = Durability::default();
            durability.wrote();
            let covered = durability.flush_begins();
            if loss_is_seen_first {
                durability.session_lost();
                assert!(durability.flush_failed(covered));
            } else {
                assert!(durability.flush_failed(covered));
                durability.session_lost();
            }
            assert!(!durability.take_lost());
            durability.owe_report();
            assert!(durability.take_lost());
        }
        let durability = Durability::default();
        let covered = durability.flush_begins();
        durability.wrote(); // not covered
        durability.session_lost();
        assert!(!durability.flush_failed(covered));
        assert!(durability.take_lost());
    }
}
