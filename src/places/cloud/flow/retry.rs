//! Decides when a failed request is retried, and when it is given up.

use std::time::{Duration, Instant};

/// Limits for retrying a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Maximum time since the first failure; after that, the request is given up.
    pub(crate) total: Duration,
    /// Cap on the pause that a store can ask for.
    pub(crate) longest: Duration,
}

/// Failures of one request so far.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    failures: u32,
    first: Option<Instant>,
}

impl Retry {
    /// Notes a failure. Returns the pause before the next attempt; `None`: give up.
    ///
    /// The pause is the one that the store asks for (`after`, the header `Retry-After`), and a random time
    /// from zero to an exponentially growing limit ("full jitter"), so that requests that failed together
    /// are not retried together. `random` is any number.
    pub(crate) fn failed(
        &mut self,
        now: Instant,
        after: Option<Duration>,
        random: u64,
        patience: &Patience,
    ) -> Option<Duration> {
        let first = *self.first.get_or_insert(now);
        let limit = BASE.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        let jitter = Duration::from_micros(random % (limit.as_micros() as u64 + 1)); // at most LONGEST
        let pause = after.unwrap_or_default().min(patience.longest) + jitter;
        let elapsed = now.saturating_duration_since(first);
        (elapsed + pause <= patience.total).then_some(pause)
    }

    /// Number of failures so far.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

const BASE: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience =
        Patience { total: Duration::from_secs(60), longest: Duration::from_secs(20) };

    #[test]
    fn pauses_grow_to_a_limit_and_end_with_the_patience() {
        let start = Instant::now();
        let mut retry = Retry::default();
        let mut waited = Duration::ZERO;
        let mut pauses = Vec::new();
        // u64::MAX % (n + 1) does not give n, so the largest pause needs the limit itself as the random
        // number.
        loop {
            let limit = BASE.saturating_mul(1 << retry.failures().min(16)).min(LONGEST);
            let random = limit.as_micros() as u64;
            let Some(pause) = retry.failed(start + waited, None, random, &PATIENCE) else { break };
            pauses.push(pause.as_millis());
            waited += pause;
        }
        assert_eq!(pauses[..8], [100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        assert!(waited <= PATIENCE.total && waited + LONGEST > PATIENCE.total, "{waited:?}");
    }

    #[test]
    fn any_random_number_gives_a_pause_between_nothing_and_the_limit() {
        for random in [0, 1, 99_999, 100_000, 100_001, u64::MAX] {
            let pause = Retry::default().failed(Instant::now(), None, random, &PATIENCE).unwrap();
            assert!(pause <= BASE, "{random}: {pause:?}");
        }
    }

    #[test]
    fn what_the_store_asks_for_is_waited_for_up_to_a_limit() {
        let now = Instant::now();
        let pause = |seconds| {
            let after = Some(Duration::from_secs(seconds));
            Retry::default().failed(now, after, 0, &PATIENCE)
        };
        assert_eq!(pause(7), Some(Duration::from_secs(7)));
        assert_eq!(pause(1 << 40), Some(PATIENCE.longest));
    }
}
