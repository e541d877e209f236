//! Adaptive spinning: how long a poller polls without finding work before it sleeps.
//!
//! A poller spins for at most 50 µs after the last work that it found. A spin that finds nothing halves the
//! next one, so that rare work costs little processor time. A sleep so short that a spin would have caught
//! its end restores the full 50 µs.
//!
//! Each I/O that completes extends the next spin by a microsecond, by 200 µs in all. With many I/Os outstanding,
//! a target may work on all of them together and be silent for longer than 50 µs. A poller that sleeps must be
//! woken, and the target pays for that, although it is often the busier side. So an I/O costs at most one
//! microsecond of extra spinning, and a queue of few large I/Os sleeps as early as without the extension.

use std::time::{Duration, Instant};

use super::cpus::online;

/// Decides how long a poller spins before it sleeps.
#[derive(Debug)]
pub struct Spinning {
    /// The longest duration of a spin that finds nothing, without `credit`: at most `SPIN`, halved by each long sleep.
    budget: Duration,
    /// Spin time beyond `budget` that completed I/Os have earned since the last sleep: at most 200 µs.
    credit: Duration,
    /// The duration of the current spin so far.
    spun: Duration,
    /// The time of the first poll that found nothing since the last work; `None`: the last poll found work.
    quiet_since: Option<Instant>,
    /// True if the poller never sleeps while I/Os are outstanding.
    busy_poll: bool,
    /// True if the machine has one processor: a thread that could produce work needs it, so spinning only delays work.
    alone: bool,
}

impl Spinning {
    /// Starts with the full budget. With `busy_poll`, every [`Spinning::spin`] asks to poll again.
    pub fn new(busy_poll: bool) -> Spinning {
        Spinning {
            budget: SPIN,
            credit: Duration::ZERO,
            spun: Duration::ZERO,
            quiet_since: None,
            busy_poll,
            // The affinity of this thread does not matter: the other side, even if it is this machine's kernel, may
            // run on another processor.
            alone: online().len() == 1,
        }
    }

    /// Records that a poll found work, which completed `ended` I/Os.
    pub fn worked(&mut self, ended: usize) {
        let used = self.spun.saturating_sub(self.budget);
        let earned = EARNED * ended.min(EARNED_MAX) as u32;
        self.credit = (self.credit.saturating_sub(used) + earned).min(EARNED * EARNED_MAX as u32);
        self.spun = Duration::ZERO;
        self.quiet_since = None;
    }

    /// Records that a poll found nothing; returns whether to poll again at once.
    pub fn spin(&mut self, now: Instant) -> bool {
        let quiet_since = *self.quiet_since.get_or_insert(now);
        self.spun = now.saturating_duration_since(quiet_since);
        self.busy_poll || !self.alone && !self.is_spent()
    }

    /// Returns whether the spin has used up its time. Busy polling continues even so.
    pub fn is_spent(&self) -> bool {
        self.spun >= self.budget + self.credit
    }

    /// Records the length of a sleep that followed a spin without work.
    pub fn slept(&mut self, slept: Duration) {
        // A wake-up itself takes tens of microseconds, so a sleep of 2 × SPIN was for about one SPIN.
        self.budget = if slept < 2 * SPIN { SPIN } else { self.budget / 2 };
        self.credit = Duration::ZERO;
        self.spun = Duration::ZERO;
        self.quiet_since = None;
    }
}

/// The longest spin that finds nothing, without the extension that I/Os have earned.
const SPIN: Duration = Duration::from_micros(50);

/// The spin time that a completed I/O earns, and the number of I/Os that may earn it at once.
const EARNED: Duration = Duration::from_micros(1);
const EARNED_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn spinning(busy_poll: bool) -> Spinning {
        Spinning { busy_poll, alone: false, ..Spinning::new(false) }
    }

    #[test]
    fn spins_halve_when_they_find_nothing_and_are_restored_by_a_short_sleep() {
        let mut spinning = spinning(false);
        let start = Instant::now();
        assert!(spinning.spin(start) && spinning.spin(start + SPIN / 2));
        assert!(!spinning.spin(start + SPIN));
        spinning.slept(Duration::from_millis(3));
        assert!(spinning.spin(start));
        assert!(!spinning.spin(start + SPIN / 2));
        spinning.slept(Duration::from_micros(30));
        assert!(spinning.spin(start) && spinning.spin(start + SPIN / 2));
        spinning.worked(0);
        assert!(spinning.spin(start + SPIN), "work begins a new spin");
    }

    #[test]
    fn completed_ios_extend_the_spin_until_the_extension_is_used_up() {
        let mut spinning = spinning(false);
        let start = Instant::now();
        spinning.worked(100);
        assert!(spinning.spin(start) && spinning.spin(start + SPIN + 99 * EARNED));
        assert!(!spinning.spin(start + SPIN + 100 * EARNED));
        spinning.worked(0);
        assert!(spinning.spin(start) && !spinning.spin(start + SPIN), "it was used up");
        spinning.worked(usize::MAX);
        assert!(spinning.spin(start) && !spinning.spin(start + SPIN + EARNED * EARNED_MAX as u32));
        spinning.slept(SPIN);
        assert!(spinning.spin(start) && !spinning.spin(start + SPIN), "a sleep forgets it");
        // Few I/Os between spins of a usual length keep their credit, and it is bounded.
        for _ in 0..1000 {
            spinning.worked(1);
            assert!(spinning.spin(start) && spinning.spin(start + SPIN - EARNED));
        }
        assert!(!spinning.spin(start + SPIN + EARNED * EARNED_MAX as u32));
    }

    #[test]
    fn busy_polling_never_sleeps_and_a_single_processor_never_spins() {
        let start = Instant::now();
        let mut busy = Spinning { alone: true, ..spinning(true) };
        assert!(busy.spin(start) && !busy.is_spent());
        assert!(busy.spin(start + 10 * SPIN) && busy.is_spent());
        let mut alone = Spinning { alone: true, ..spinning(false) };
        assert!(!alone.spin(start));
    }
}
