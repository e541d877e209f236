//! The presence of a peer: whether it can be asked, and when to connect again after a failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The presence of one peer. Readers ask on the way of each read, and wait for nothing.
#[derive(Debug, Default)]
pub(super) struct Presence {
    is_away: AtomicBool,
    absence: Mutex<Absence>,
}

#[derive(Debug, Default)]
struct Absence {
    /// When to connect again; `None`: it is there, or somebody is connecting.
    again_at: Option<Instant>,
    /// How often it has failed since it was last steady.
    failures: u32,
    /// When it last connected after a failure.
    back_at: Option<Instant>,
}

impl Presence {
    /// Returns whether it can be asked now.
    pub(super) fn is_there(&self) -> bool {
        !self.is_away.load(Ordering::Acquire)
    }

    /// It has failed: nobody asks it until it has connected again, which is tried after `span` at the earliest,
    /// or after a time that doubles with each failure, those included from which it came back for less than
    /// [`STEADY`]: connections that overload ends and that are made anew would add to it. `false` if it was
    /// away already.
    pub(super) fn set_away(&self, now: Instant, span: Option<Duration>) -> bool {
        let mut absence = self.absence.lock();
        let was_there = !self.is_away.swap(true, Ordering::AcqRel);
        if was_there && absence.back_at.is_none_or(|back| now >= back + STEADY) {
            absence.failures = 0;
        }
        if was_there || span.is_some() {
            absence.fail(now, span);
        }
        was_there
    }

    /// Returns whether it is time to connect again. Whoever gets `true` connects, and says how it went.
    pub(super) fn begin_connecting(&self, now: Instant) -> bool {
        let mut absence = self.absence.lock();
        let is_due = absence.again_at.is_some_and(|at| now >= at);
        if is_due {
            absence.again_at = None;
        }
        is_due
    }

    /// It could not be reached again.
    pub(super) fn stays_away(&self, now: Instant) {
        self.absence.lock().fail(now, None);
    }

    /// It has connected.
    pub(super) fn is_back(&self, now: Instant) {
        let mut absence = self.absence.lock();
        (absence.again_at, absence.back_at) = (None, Some(now));
        self.is_away.store(false, Ordering::Release);
    }
}

impl Absence {
    fn fail(&mut self, now: Instant, span: Option<Duration>) {
        let span = span.unwrap_or(AWAY * (1 << self.failures.min(MOST_DOUBLINGS)));
        self.failures += 1;
        self.again_at = Some(now + span);
    }
}

/// How long after its first failure a peer is connected to again.
const AWAY: Duration = Duration::from_secs(1);

/// How long a peer that is back must stay for its failures to be forgotten.
const STEADY: Duration = Duration::from_secs(30);

/// Each failure without a steady connection between doubles that time, up to this often.
const MOST_DOUBLINGS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_stays_away_is_connected_to_ever_more_rarely() {
        let presence = Presence::default();
        let mut now = Instant::now();
        assert!(presence.is_there() && !presence.begin_connecting(now));
        assert!(presence.set_away(now, None));
        // The other queue pairs notice, too; that is one failure.
        assert!(!presence.set_away(now, None));
        for doublings in [0, 1, 2, 3, 4, 5, 6, 6] {
            let away = AWAY * (1 << doublings);
            assert!(!presence.is_there());
            assert!(!presence.begin_connecting(now + away - Duration::from_millis(1)));
            now += away;
            assert!(presence.begin_connecting(now));
            assert!(!presence.begin_connecting(now + AWAY * 1000), "somebody is connecting");
            presence.stays_away(now);
        }
        assert!(presence.begin_connecting(now + AWAY * 1000));
        presence.is_back(now);
        assert!(presence.is_there());
        now += STEADY;
        presence.set_away(now, None);
        assert!(presence.begin_connecting(now + AWAY), "it begins anew");
    }

    #[test]
    fn a_peer_that_is_lost_again_soon_is_connected_to_ever_more_rarely() {
        let presence = Presence::default();
        let mut now = Instant::now();
        for doublings in [0, 1, 2] {
            assert!(presence.set_away(now, None));
            let away = AWAY * (1 << doublings);
            assert!(!presence.begin_connecting(now + away - Duration::from_millis(1)));
            now += away;
            assert!(presence.begin_connecting(now));
            presence.is_back(now);
            now += STEADY - Duration::from_millis(1);
        }
    }

    #[test]
    fn a_peer_that_is_set_aside_stays_so_for_its_time() {
        let presence = Presence::default();
        let now = Instant::now();
        presence.set_away(now, None);
        presence.set_away(now, Some(AWAY * 100));
        assert!(
            !presence.begin_connecting(now + AWAY * 99)
                && presence.begin_connecting(now + AWAY * 100)
        );
    }
}
