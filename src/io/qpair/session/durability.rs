//! Writes of a session: those that are not durable yet, and those that are under way.
//!
//! Writes and flushes on the connections of a session end before a path that became inaccessible is left. They are
//! never issued twice, so leaving earlier would lose their answers, and their target still answers what it
//! has taken. Nothing new begins in a session that is left.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Tracks whether a flush can still make all completed writes durable.
///
/// A completed write may be in the target's cache. When a session is lost, the cache may be lost too. A flush
/// on the next session would say nothing about that write, so that flush must fail.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    /// The number of writes completed so far.
    written: AtomicU64,
    /// The number of these writes that a flush has covered, or that were lost.
    settled: AtomicU64,
    lost: AtomicBool,
}

impl Durability {
    /// Records a completed write.
    pub(crate) fn wrote(&self) {
        // Ordered with the end of the session: see `Shared::wrote`.
        self.written.fetch_add(1, Ordering::SeqCst);
    }

    /// Starts a flush; returns the writes that it covers, for [`Durability::flushed`].
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

    /// Records a loss that a flush must report: nobody saw the report, or the write completed after its session.
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

    /// Returns whether writes were lost with a session since the last call.
    pub(crate) fn take_lost(&self) -> bool {
        self.lost.swap(false, Ordering::Relaxed)
    }
}

/// The number of writes and flushes on the connections of a session.
#[derive(Debug, Default)]
pub(super) struct Underway {
    num: AtomicUsize,
    is_left: AtomicBool,
}

// Sequentially consistent: either `begin` sees that the session is left, or `delays_leaving` sees the write.
impl Underway {
    /// Counts a write or flush; returns `false` if it must not be issued. Either way [`Underway::end`] follows.
    #[must_use]
    pub(super) fn begin(&self) -> bool {
        self.num.fetch_add(1, Ordering::SeqCst);
        !self.is_left()
    }

    /// Subtracts writes and flushes that have ended; returns whether the session is left and these were the last.
    pub(super) fn end(&self, num: usize) -> bool {
        num > 0 && self.num.fetch_sub(num, Ordering::SeqCst) == num && self.is_left()
    }

    /// Records that the session is left.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::SeqCst);
    }

    /// Returns whether the session is left.
    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::SeqCst)
    }

    /// Returns whether the session is left, and waits for a write or flush.
    pub(super) fn delays_leaving(&self) -> bool {
        self.is_left() && self.num.load(Ordering::SeqCst) > 0
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

    #[test]
    fn a_session_is_left_once_its_last_write_has_ended_and_begins_no_other() {
        let underway = Underway::default();
        assert!(underway.begin() && underway.begin());
        assert!(!underway.delays_leaving(), "it is not left");
        underway.leave();
        assert!(underway.delays_leaving());
        assert!(!underway.begin());
        assert!(!underway.end(0) && !underway.end(2), "one is left");
        assert!(underway.delays_leaving());
        assert!(underway.end(1));
        assert!(!underway.delays_leaving());
    }
}
