//! How long a poller looks for work before it sleeps.
//!
//! It spins for at most 50 µs since it last had something to do. A spin without effect halves the next
//! one, so that what comes seldom costs little; a sleep so short that a spin would have caught its end
//! brings the whole spin back.
//!
//! I/Os that end earn more of it, a microsecond each. With much outstanding a target may work on all of
//! it together, and be silent for longer than 50 µs: a sleeper in between is woken at the target's cost,
//! which is often the side that has no time to spare. So an I/O never costs more than this microsecond
//! of spinning beside what it takes itself, and a queue of few large ones sleeps as early as before.

use std::time::{Duration, Instant};

use super::cpus::online;

/// How long to spin before sleeping, learnt from the sleeps before.
#[derive(Debug)]
pub(crate) struct Patience {
    /// What the next spin may last.
    budget: Duration,
    /// What ended I/Os have earned beyond it since the last sleep.
    credit: Duration,
    /// How long the spin under way has lasted.
    spun: Duration,
    /// The first look without effect since there was something to do.
    quiet_since: Option<Instant>,
    /// Never sleep.
    busy_poll: bool,
    /// The machine has one processor, so whoever could bring work needs it: spinning keeps it away.
    alone: bool,
}

impl Patience {
    /// Patience that is whole, or with `busy_poll` without end.
    pub(crate) fn new(busy_poll: bool) -> Patience {
        Patience {
            budget: SPIN,
            credit: Duration::ZERO,
            spun: Duration::ZERO,
            quiet_since: None,
            busy_poll,
            alone: has_one_processor(),
        }
    }

    /// There was something to do; `ended` I/Os of this side are done with by it.
    pub(crate) fn worked(&mut self, ended: usize) {
        let used = self.spun.saturating_sub(self.budget);
        let earned = EARNED * ended.min(EARNED_MAX) as u32;
        self.credit = (self.credit.saturating_sub(used) + earned).min(EARNED * EARNED_MAX as u32);
        self.spun = Duration::ZERO;
        self.quiet_since = None;
    }

    /// There was nothing to do: whether to look again at once.
    pub(crate) fn spin(&mut self, now: Instant) -> bool {
        let quiet_since = *self.quiet_since.get_or_insert(now);
        self.spun = now.saturating_duration_since(quiet_since);
        self.busy_poll || !self.alone && self.spun < self.budget + self.credit
    }

    /// Learns from a sleep, which came after a spin without effect.
    pub(crate) fn slept(&mut self, slept: Duration) {
        // A wake-up itself takes tens of microseconds, so a sleep of 2 × SPIN was for about one SPIN.
        self.budget = if slept < 2 * SPIN { SPIN } else { self.budget / 2 };
        self.credit = Duration::ZERO;
        self.spun = Duration::ZERO;
        self.quiet_since = None;
    }
}

/// Whether the machine has one processor. What this thread is bound to does not matter: the other
/// side, even if it is this machine's kernel, may run elsewhere.
fn has_one_processor() -> bool {
    online().len() == 1
}

/// The longest spin without effect, but for what I/Os have earned.
const SPIN: Duration = Duration::from_micros(50);

/// What an ended I/O earns, and for how many at most.
const EARNED: Duration = Duration::from_micros(1);
const EARNED_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(busy_poll: bool) -> Patience {
        Patience { busy_poll, alone: false, ..Patience::new(false) }
    }

    #[test]
    fn spins_become_shorter_without_effect_and_whole_again_when_one_would_have_paid() {
        let mut patience = whole(false);
        let start = Instant::now();
        assert!(patience.spin(start) && patience.spin(start + SPIN / 2));
        assert!(!patience.spin(start + SPIN));
        patience.slept(Duration::from_millis(3));
        assert!(patience.spin(start));
        assert!(!patience.spin(start + SPIN / 2));
        patience.slept(Duration::from_micros(30));
        assert!(patience.spin(start) && patience.spin(start + SPIN / 2));
        patience.worked(0);
        assert!(patience.spin(start + SPIN), "work begins a new spin");
    }

    #[test]
    fn ended_ios_earn_longer_spins_until_these_are_used_up() {
        let mut patience = whole(false);
        let start = Instant::now();
        patience.worked(100);
        assert!(patience.spin(start) && patience.spin(start + SPIN + 99 * EARNED));
        assert!(!patience.spin(start + SPIN + 100 * EARNED));
        patience.worked(0);
        assert!(patience.spin(start) && !patience.spin(start + SPIN), "it was used up");
        patience.worked(usize::MAX);
        assert!(patience.spin(start) && !patience.spin(start + SPIN + EARNED * EARNED_MAX as u32));
        patience.slept(SPIN);
        assert!(patience.spin(start) && !patience.spin(start + SPIN), "a sleep forgets it");
        // Few I/Os between spins of a usual length keep their credit, and it is bounded.
        for _ in 0..1000 {
            patience.worked(1);
            assert!(patience.spin(start) && patience.spin(start + SPIN - EARNED));
        }
        assert!(!patience.spin(start + SPIN + EARNED * EARNED_MAX as u32));
    }

    #[test]
    fn busy_polling_never_ends_and_a_single_processor_is_never_spun_on() {
        let start = Instant::now();
        let mut busy = Patience { alone: true, ..whole(true) };
        assert!(busy.spin(start) && busy.spin(start + 10 * SPIN));
        let mut alone = Patience { alone: true, ..whole(false) };
        assert!(!alone.spin(start));
    }
}
