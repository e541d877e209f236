//! Wakes a sleeping poller: by a call from another thread, or by a mark on one of its queue pairs.
//!
//! A queue pair is *marked* when it has work although no descriptor is ready: for example a completion that
//! another handle of the same connection received.
//!
//! The thread that wakes and the thread that falls asleep each write one flag and then read the other's. So
//! either the first sees the sleeper, or the sleeper sees the flag and does not sleep. `tests/loom` checks
//! all interleavings.

use std::sync::Arc;

use dlfs_base::sync::{AtomicBool, Mutex, Ordering, fence};

/// The flags of one poller. They hold no descriptor: the caller of `wake` or `mark` must ring (write to an eventfd) if
/// the method returns `true`.
#[derive(Default)]
pub(super) struct Wake {
    /// Set while the poller sleeps or falls asleep.
    asleep: AtomicBool,
    /// Set by `wake`, until the poller takes it.
    woken: AtomicBool,
    /// Set while `marked` may have entries; read without its lock.
    has_marks: AtomicBool,
    marked: Mutex<Vec<Arc<Mark>>>,
}

/// The mark of one queue pair.
pub(super) struct Mark {
    /// The queue pair's index in the poller.
    member: usize,
    /// Set from `mark` until `take_marks`.
    is_set: AtomicBool,
}

impl Mark {
    /// Creates the mark of queue pair `member`.
    pub(super) fn new(member: usize) -> Mark {
        Mark { member, is_set: AtomicBool::new(false) }
    }
}

impl Wake {
    /// Ends the current sleep, or the next one; returns whether the caller must ring.
    pub(super) fn wake(&self) -> bool {
        self.woken.store(true, Ordering::Release);
        self.has_sleeper()
    }

    /// Sets `mark`; returns whether the caller must ring.
    pub(super) fn mark(&self, mark: &Arc<Mark>) -> bool {
        // If the mark is already set, the thread that set it wakes the poller, and the member is polled after
        // both.
        if mark.is_set.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.marked.lock().push(Arc::clone(mark));
        self.has_marks.store(true, Ordering::Relaxed);
        self.has_sleeper()
    }

    /// Call this after writing the flag that a sleeper reads.
    fn has_sleeper(&self) -> bool {
        fence(Ordering::SeqCst); // pairs with the fence in `fall_asleep`: one thread sees the other's flag
        self.asleep.load(Ordering::Relaxed)
    }

    /// Returns whether `wake` was called since the last call of this method.
    pub(super) fn take_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::AcqRel)
    }

    /// Returns whether a mark is set. Costs one load.
    pub(super) fn has_marks(&self) -> bool {
        self.has_marks.load(Ordering::Relaxed)
    }

    /// Passes the marked members to `found` and clears their marks. One load when none is marked.
    pub(super) fn take_marks(&self, mut found: impl FnMut(usize)) {
        if !self.has_marks() {
            return;
        }
        // Before the list is read: a later mark sets it again.
        self.has_marks.store(false, Ordering::Relaxed);
        for mark in self.marked.lock().drain(..) {
            mark.is_set.swap(false, Ordering::AcqRel);
            found(mark.member);
        }
    }

    /// Announces a sleep: from now on `wake` and `mark` return `true`. Returns `false` if one of them was
    /// called before: do not sleep.
    pub(super) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // pairs with the fence in `has_sleeper`
        let has_cause = self.woken.load(Ordering::Relaxed) || self.has_marks();
        if has_cause {
            self.get_up();
        }
        !has_cause
    }

    /// Ends the sleep: from now on no caller needs to ring.
    pub(super) fn get_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(wake: &Wake) -> Vec<usize> {
        let mut found = Vec::new();
        wake.take_marks(|member| found.push(member));
        found
    }

    #[test]
    fn several_marks_report_a_member_once() {
        let wake = Wake::default();
        let marks = [3, 8].map(|member| Arc::new(Mark::new(member)));
        assert!(!wake.has_marks() && taken(&wake).is_empty());
        for mark in [&marks[1], &marks[0], &marks[1]] {
            assert!(!wake.mark(mark), "nobody sleeps");
        }
        assert_eq!((wake.has_marks(), taken(&wake), taken(&wake)), (true, vec![8, 3], vec![]));
        wake.mark(&marks[0]);
        assert_eq!(taken(&wake), [3]);
    }

    #[test]
    fn wakes_and_marks_ring_for_a_sleeper_and_keep_an_awake_poller_awake() {
        let wake = Wake::default();
        let mark = Arc::new(Mark::new(0));
        assert!(wake.fall_asleep() && wake.mark(&mark) && wake.wake());
        wake.get_up();
        assert!(!wake.fall_asleep());
        assert!(wake.take_woken() && !wake.fall_asleep(), "the mark is left");
        assert_eq!(taken(&wake), [0]);
        assert!(wake.fall_asleep());
    }
}
