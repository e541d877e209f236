//! The writes and flushes that are under way on the connections of a session.
//!
//! When a path becomes inaccessible, its session is left: no new write begins in it, and it stays until the writes and
//! flushes on its connections have ended. They are never issued twice, so without waiting their answers would be lost,
//! although the target still answers commands that it has taken.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The number of writes and flushes on the connections of a session.
#[derive(Debug, Default)]
pub(super) struct Underway {
    num: AtomicUsize,
    /// Set once the session is left.
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
