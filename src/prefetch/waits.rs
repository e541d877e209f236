//! Divides the time that the consumer waits among its causes.
//!
//! While the consumer waits, the poller adds the time of each turn to the cause that it saw after the turn before.
//! When the wait ends, the consumer divides the time that it has measured in the same proportions. So the causes
//! add up to the whole wait, and neither thread reads the clock more often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::report::{Cause, EventKind, Stalls};

use super::trace::Trace;

/// The causes of the consumer's waits, as the poller sees them. Only the poller writes; one cache line.
#[repr(align(64))]
pub(super) struct Seen {
    /// Nanoseconds by cause; they only grow.
    ns: [AtomicU64; Cause::COUNT],
    /// The cause after the poller's last turn, for waits shorter than a turn.
    now: AtomicU8,
}

/// The poller's state after a turn.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AfterTurn {
    /// The turn planned batches or started reads while nothing was outstanding.
    pub(super) planned_when_idle: bool,
    /// Completions wait to be verified.
    pub(super) is_verifying: bool,
    /// The number of reads in flight.
    pub(super) in_flight: usize,
    /// The queue pairs have enough work.
    pub(super) is_busy: bool,
    /// A request for memory was refused.
    pub(super) is_exhausted: bool,
    /// The number of fetches that the turn started.
    pub(super) begun: usize,
    /// The turn did anything.
    pub(super) moved: bool,
}

/// The poller's side: its turns, and their events if there is a trace. A turn's event ends when the next turn begins.
pub(super) struct TurnClock {
    /// The start of the last turn, if the consumer waited in it.
    since: Option<Instant>,
    /// The start of this turn.
    began: Option<Instant>,
    cause: Cause,
    trace: Option<Arc<Trace>>,
    /// The start and the kind of the last turn, whose event is recorded when the next turn begins.
    last: Option<(Instant, EventKind)>,
    /// The reads in flight after the last turn.
    in_flight: usize,
}

/// The consumer's side: the values of [`Seen`] when the last wait ended.
#[derive(Default)]
pub(super) struct Divider {
    before: [u64; Cause::COUNT],
}

impl AfterTurn {
    /// The cause of the consumer's wait, if it waits.
    pub(super) fn cause(self) -> Cause {
        if self.is_verifying {
            Cause::Checksum
        } else if self.planned_when_idle {
            Cause::Order
        } else if self.is_exhausted && !self.is_busy {
            Cause::Window
        } else if self.in_flight > 0 {
            Cause::Network
        } else {
            Cause::Order
        }
    }
}

impl TurnClock {
    pub(super) fn new(trace: Option<Arc<Trace>>) -> TurnClock {
        TurnClock { since: None, began: None, cause: Cause::Order, trace, last: None, in_flight: 0 }
    }

    /// Begins a turn at `now`; `waiting`: the consumer waits.
    pub(super) fn begin(&mut self, now: Instant, waiting: bool, seen: &Seen) {
        if let Some(since) = self.since.filter(|_| waiting) {
            let sum = &seen.ns[self.cause as usize];
            let added = now.saturating_duration_since(since).as_nanos() as u64;
            sum.store(sum.load(Ordering::Relaxed) + added, Ordering::Relaxed); // nobody else writes
        }
        self.since = waiting.then_some(now);
        self.began = Some(now);
        if let (Some(trace), Some((begin, kind))) = (&self.trace, self.last.take()) {
            trace.poller(begin, now, kind);
        }
    }

    /// Notes that the batch that the consumer waited for was sent: its next wait begins anew.
    pub(super) fn sent(&mut self) {
        self.since = None;
    }

    /// Ends a turn. If the consumer began to wait within it, the whole turn counts: it only sets a proportion of
    /// the time that the consumer measures, and a long turn is most of the wait.
    pub(super) fn end(&mut self, after: AfterTurn, waiting: bool, seen: &Seen) {
        if waiting {
            self.since = self.since.or(self.began);
        }
        let cause = after.cause();
        if cause != self.cause {
            self.cause = cause;
            seen.now.store(cause as u8, Ordering::Relaxed);
        }
        let (Some(trace), Some(begin)) = (&self.trace, self.began) else { return };
        let kind = match (after.begun, after.moved) {
            (0, false) => EventKind::Sleep { cause },
            (0, true) => EventKind::Work,
            (begun, _) => EventKind::Burst { begun: begun as u64 },
        };
        if self.in_flight != after.in_flight {
            self.in_flight = after.in_flight;
            let fetches = after.in_flight as u64;
            trace.poller(begin, begin, EventKind::InFlight { fetches });
        }
        self.last = Some((begin, kind));
    }
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { ns: Default::default(), now: AtomicU8::new(Cause::Order as u8) }
    }
}

impl Divider {
    /// Adds a wait that has ended to `stalls`. `then_copied`: the time that the poller did not see belongs to the
    /// copying threads.
    pub(super) fn divide(
        &mut self,
        waited: Duration,
        seen: &Seen,
        then_copied: bool,
        stalls: &mut Stalls,
    ) {
        let mut shares = [0; Cause::COUNT];
        for ((share, before), ns) in shares.iter_mut().zip(&mut self.before).zip(&seen.ns) {
            let ns = ns.load(Ordering::Relaxed);
            *share = ns - *before;
            *before = ns;
        }
        if then_copied {
            let waited_ns = waited.as_nanos() as u64;
            let of_poller: u64 = shares.iter().sum();
            shares[Cause::Copy as usize] = waited_ns.saturating_sub(of_poller);
        }
        if !stalls.divide(waited, &shares) {
            let now = usize::from(seen.now.load(Ordering::Relaxed));
            stalls.add(Cause::ALL[now], waited);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs the poller's turns at times in ms, each with whether the consumer waits and the state after the turn.
    fn turns(clock: &mut TurnClock, seen: &Seen, turns: &[(u32, bool, AfterTurn)]) {
        let begin = Instant::now();
        for (at, waiting, after) in turns {
            clock.begin(begin + *at * MS, *waiting, seen);
            clock.end(*after, *waiting, seen);
        }
    }

    fn reading() -> AfterTurn {
        AfterTurn { in_flight: 3, ..AfterTurn::default() }
    }

    #[test]
    fn the_cause_is_the_narrowest_place() {
        let verifying = AfterTurn { is_verifying: true, ..reading() };
        let full = AfterTurn { is_exhausted: true, ..reading() };
        let busy = AfterTurn { is_busy: true, ..full };
        let planning = AfterTurn { planned_when_idle: true, ..reading() };
        for (after, cause) in [
            (reading(), Cause::Network),
            (verifying, Cause::Checksum),
            (full, Cause::Window),
            (busy, Cause::Network),
            (planning, Cause::Order),
            (AfterTurn::default(), Cause::Order),
        ] {
            assert_eq!(after.cause(), cause, "{after:?}");
        }
    }

    #[test]
    fn a_wait_is_divided_as_the_poller_saw_it_and_only_what_was_waited() {
        let seen = Seen::default();
        let mut clock = TurnClock::new(None);
        let mut divider = Divider::default();
        let full = AfterTurn { is_exhausted: true, ..reading() };
        turns(
            &mut clock,
            &seen,
            &[(0, false, full), (50, true, reading()), (53, true, full), (54, true, reading())],
        );
        let mut stalls = Stalls::default();
        divider.divide(8 * MS, &seen, false, &mut stalls);
        assert_eq!((stalls.of(Cause::Network), stalls.of(Cause::Window)), (6 * MS, 2 * MS));
        // Shorter than a turn: the cause after the last turn counts.
        clock.sent();
        divider.divide(MS, &seen, false, &mut stalls);
        assert_eq!((stalls.of(Cause::Network), stalls.total()), (7 * MS, 9 * MS));
    }

    #[test]
    fn a_wait_that_begins_within_a_turn_has_that_turn_as_a_share() {
        let seen = Seen::default();
        let mut clock = TurnClock::new(None);
        let mut divider = Divider::default();
        let planning = AfterTurn { planned_when_idle: true, ..reading() };
        let begin = Instant::now();
        clock.begin(begin, false, &seen);
        clock.sent(); // the batch before
        clock.end(planning, true, &seen);
        clock.begin(begin + 9 * MS, true, &seen);
        clock.end(reading(), true, &seen);
        clock.begin(begin + 10 * MS, true, &seen);
        let mut stalls = Stalls::default();
        divider.divide(10 * MS, &seen, false, &mut stalls);
        assert_eq!((stalls.of(Cause::Order), stalls.of(Cause::Network)), (9 * MS, MS));
    }

    #[test]
    fn what_copying_threads_take_is_what_the_poller_has_not_seen() {
        let seen = Seen::default();
        let mut clock = TurnClock::new(None);
        let mut divider = Divider::default();
        turns(&mut clock, &seen, &[(0, true, reading()), (3, true, reading())]);
        let mut stalls = Stalls::default();
        divider.divide(5 * MS, &seen, true, &mut stalls);
        assert_eq!((stalls.of(Cause::Network), stalls.of(Cause::Copy)), (3 * MS, 2 * MS));
        clock.sent();
        divider.divide(MS, &seen, true, &mut stalls);
        assert_eq!(stalls.of(Cause::Copy), 3 * MS);
    }
}
