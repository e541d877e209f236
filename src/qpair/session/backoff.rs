//! How long to wait between attempts to reach a controller.

use std::time::Duration;

/// How long to wait before the next round: 10 ms doubling to 500 ms, less up to half by chance, so
/// that many hosts of one target do not come back at the same moments.
#[derive(Debug)]
pub(super) struct Backoff {
    step: Duration,
    is_fresh: bool,
    random: u64,
}

impl Backoff {
    /// `random` is any number, another on each host.
    pub(super) fn new(random: u64) -> Backoff {
        Backoff { step: BACKOFF_MIN, is_fresh: true, random: random | 1 }
    }

    /// Waits are short again.
    pub(super) fn begin_anew(&mut self) {
        (self.step, self.is_fresh) = (BACKOFF_MIN, true);
    }

    /// Whether no wait has been asked for yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// Lets nothing be done at once any more.
    pub(super) fn hurry_no_more(&mut self) {
        self.is_fresh = false;
    }

    pub(super) fn next(&mut self) -> Duration {
        let step = self.step;
        self.is_fresh = false;
        self.step = (step * 2).min(BACKOFF_MAX);
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        step - step.mul_f64((self.random % 1000) as f64 / 2000.0)
    }
}

const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_half_a_second_and_are_never_the_same_for_all() {
        let mut backoff = Backoff::new(7);
        let mut step = BACKOFF_MIN;
        for _ in 0..20 {
            let wait = backoff.next();
            assert!(wait <= step && wait >= step / 2, "{wait:?} of {step:?}");
            step = (step * 2).min(BACKOFF_MAX);
        }
        let one: Vec<Duration> = (0..20).map(|_| backoff.next()).collect();
        let two: Vec<Duration> = (0..20).map(|_| backoff.next()).collect();
        assert_ne!(one, two);
    }
}
