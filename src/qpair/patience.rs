//! How long a poller looks for work before it sleeps.
//!
//! It spins for at most 50 µs since it last had something to do. A spin without effect halves the next
//! one, so that what comes seldom costs little; a sleep so short that a spin would have caught its end
//! brings the whole spin back.

use std::time::{Duration, Instant};

use super::cpus::online;

/// How long to spin before sleeping, learnt from the sleeps before.
#[derive(Debug)]
pub(crate) struct Patience {
    /// What the next spin may last.
    budget: Duration,
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
        Patience { budget: SPIN, quiet_since: None, busy_poll, alone: has_one_processor() }
    }

    /// There was something to do.
    pub(crate) fn worked(&mut self) {
        self.quiet_since = None;
    }

    /// There was nothing to do: whether to look again at once.
    pub(crate) fn spin(&mut self, now: Instant) -> bool {
        let quiet_since = *self.quiet_since.get_or_insert(now);
        let spun = now.saturating_duration_since(quiet_since);
        self.busy_poll || !self.alone && spun < self.budget
    }

    /// Learns from a sleep, which came after a spin without effect.
    pub(crate) fn slept(&mut self, slept: Duration) {
        // A wake-up itself takes tens of microseconds, so a sleep of 2 × SPIN was for about one SPIN.
        self.budget = if slept < 2 * SPIN { SPIN } else { self.budget / 2 };
        self.quiet_since = None;
    }
}

/// Whether the machine has one processor. What this thread is bound to does not matter: the other
/// side, even if it is this machine's kernel, may run elsewhere.
fn has_one_processor() -> bool {
    online().len() == 1
}

/// The longest spin without effect.
const SPIN: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(busy_poll: bool) -> Patience {
        Patience { budget: SPIN, quiet_since: None, busy_poll, alone: false }
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
        patience.worked();
        assert!(patience.spin(start + SPIN), "work begins a new spin");
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
