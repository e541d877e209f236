//! Presence of a peer: records whether the peer can be asked, and the time of the next connection after a
//! failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Presence of one peer. Readers check it for every read, without waiting.
#[derive(Debug, Default)]
pub(super) struct Presence {
    is_away: AtomicBool,
    absence: Mutex<Absence>,
}

#[derive(Debug, Default)]
struct Absence {
    /// Time of the next connection; `None`: the peer is there, or a thread is connecting.
    again_at: Option<Instant>,
    /// Number of failures since the peer was last steady.
    failures: u32,
    /// Time of its last connection after a failure.
    back_at: Option<Instant>,
}

impl Presence {
    /// Returns whether the peer can be asked now.
    pub(super) fn is_there(&self) -> bool {
        !self.is_away.load(Ordering::Acquire)
    }

    /// Records that the peer has failed: nobody asks it until it has connected again, after `span` at the
    /// earliest. Without `span` the pause doubles with each failure. A connection that lasts less than
    /// [`STEADY`] does not reset the pause: if overload ends connections, connecting again soon would add to
    /// the overload. Returns `false` if the peer was away already.
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

    /// Returns whether it is time to connect again. The caller that gets `true` must connect, and report the
    /// result.
    pub(super) fn begin_connecting(&self, now: Instant) -> bool {
        let mut absence = self.absence.lock();
        let is_due = absence.again_at.is_some_and(|at| now >= at);
        if is_due {
            absence.again_at = None;
        }
        is_due
    }

    /// Records that the peer could not be reached again.
    pub(super) fn stays_away(&self, now: Instant) {
        self.absence.lock().fail(now, None);
    }

    /// Records that the peer has connected.
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

/// Pause after a peer's first failure, before the next connection.
const AWAY: Duration = Duration::from_secs(1);

/// Time that a peer must stay connected for its failures to be forgotten.
const STEADY: Duration = Duration::from_secs(30);

/// Limit of the doublings of [`AWAY`], one for each failure without a steady connection in between.
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
        // Failures that other queue pairs notice at the same time count as one.
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
