//! Backoff: the waits between attempts to reach a controller.

use std::time::Duration;

/// The wait before the next round: 10 ms, doubling up to 500 ms, minus a random part of up to half, so that
/// many hosts of one target do not reconnect at the same time.
#[derive(Debug)]
pub(super) struct Backoff {
    step: Duration,
    /// True if no wait was taken since the start or a reset. Set to false to make every attempt wait.
    pub(super) is_fresh: bool,
    random: u64,
}

impl Backoff {
    /// `random` is any number that differs among hosts.
    pub(super) fn new(random: u64) -> Backoff {
        Backoff { step: BACKOFF_MIN, is_fresh: true, random: random | 1 }
    }

    /// Restarts with short waits.
    pub(super) fn reset(&mut self) {
        (self.step, self.is_fresh) = (BACKOFF_MIN, true);
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
    fn waits_double_up_to_half_a_second_and_differ_among_hosts() {
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
