//! What ends the sleep of a poller: a call from another thread, or a mark on one of its queue pairs.
//!
//! A queue pair is *marked* when it has something without a descriptor being ready: a completion that
//! another handle of the same connection has received.
//!
//! Who rings and who falls asleep each write one word and then read the other's: so either the ringer sees
//! the sleeper, or the sleeper sees what it would have slept over. `tests/loom` tries all ways.

use std::sync::Arc;

use crate::sync::{AtomicBool, Mutex, Ordering, fence};

/// The words of one poller. Knows no descriptor: whoever is told to ring has one.
#[derive(Default)]
pub(super) struct Wake {
    asleep: AtomicBool,
    woken: AtomicBool,
    /// Whether `marked` is worth its lock.
    has_marks: AtomicBool,
    marked: Mutex<Vec<Arc<Mark>>>,
}

/// The mark of one queue pair.
pub(super) struct Mark {
    member: usize,
    is_set: AtomicBool,
}

impl Mark {
    /// Of queue pair `member`.
    pub(super) fn new(member: usize) -> Mark {
        Mark { member, is_set: AtomicBool::new(false) }
    }
}

impl Wake {
    /// Ends the sleep under way, or the next; whether to ring.
    pub(super) fn wake(&self) -> bool {
        self.woken.store(true, Ordering::Release);
        self.has_sleeper()
    }

    /// Sets `mark`; whether to ring.
    pub(super) fn mark(&self, mark: &Arc<Mark>) -> bool {
        // Who finds it set leaves the rest to whoever set it: both come before the member is polled.
        if mark.is_set.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.marked.lock().push(Arc::clone(mark));
        self.has_marks.store(true, Ordering::Relaxed);
        self.has_sleeper()
    }

    /// Asked behind the word that a sleeper would see.
    fn has_sleeper(&self) -> bool {
        fence(Ordering::SeqCst); // with that of `fall_asleep`: one of both sees the other's word
        self.asleep.load(Ordering::Relaxed)
    }

    /// Whether it was woken since this was called last.
    pub(super) fn take_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::AcqRel)
    }

    /// Whether a mark is set. One load.
    pub(super) fn has_marks(&self) -> bool {
        self.has_marks.load(Ordering::Relaxed)
    }

    /// Tells `found` the members that are marked, and takes the marks off. One load where there are none.
    pub(super) fn take_marks(&self, mut found: impl FnMut(usize)) {
        if !self.has_marks() {
            return;
        }
        // Before the list is read: who sets one later says so again.
        self.has_marks.store(false, Ordering::Relaxed);
        for mark in self.marked.lock().drain(..) {
            mark.is_set.swap(false, Ordering::AcqRel);
            found(mark.member);
        }
    }

    /// From now on whoever wakes or marks is told to ring; `false` where one has before.
    pub(super) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // with that of `has_sleeper`
        let has_cause = self.woken.load(Ordering::Relaxed) || self.has_marks();
        if has_cause {
            self.get_up();
        }
        !has_cause
    }

    /// Nobody needs to ring any more.
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
    fn a_member_is_told_once_for_all_marks_since_it_was_told_last() {
        let (wake, marks) = (Wake::default(), [3, 8].map(|member| Arc::new(Mark::new(member))));
        assert!(!wake.has_marks() && taken(&wake).is_empty());
        for mark in [&marks[1], &marks[0], &marks[1]] {
            assert!(!wake.mark(mark), "nobody sleeps");
        }
        assert_eq!((wake.has_marks(), taken(&wake), taken(&wake)), (true, vec![8, 3], vec![]));
        wake.mark(&marks[0]);
        assert_eq!(taken(&wake), [3]);
    }

    #[test]
    fn who_wakes_or_marks_a_sleeper_rings_and_a_cause_before_keeps_it_awake() {
        let (wake, mark) = (Wake::default(), Arc::new(Mark::new(0)));
        assert!(wake.fall_asleep() && wake.mark(&mark) && wake.wake());
        wake.get_up();
        assert!(!wake.fall_asleep());
        assert!(wake.take_woken() && !wake.fall_asleep(), "the mark is left");
        assert_eq!(taken(&wake), [0]);
        assert!(wake.fall_asleep());
    }
}
