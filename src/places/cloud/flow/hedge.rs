//! Hedged requests: a second request for the same bytes when the first is unusually slow.

use std::time::Duration;

/// Latencies of recent requests of similar size.
///
/// The slowest of a hundred requests holds up all that follow it in order. A second request, sent after
/// twice the 99th percentile, usually answers first. At most one request in fifty, and one more, is hedged,
/// which costs little.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    recent: Vec<Duration>,
    next: usize,
    requests: u64,
    hedges: u64,
}

impl Latencies {
    /// Notes a successful request that took `took`.
    pub(crate) fn succeeded(&mut self, took: Duration) {
        self.requests += 1;
        match self.recent.get_mut(self.next) {
            Some(place) => *place = took,
            None => self.recent.push(took),
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// Time from the first request to the second; `None` while too few latencies are known.
    pub(crate) fn hedge_after(&self) -> Option<Duration> {
        if self.recent.len() < KNOWN {
            return None;
        }
        let mut sorted = self.recent.clone();
        sorted.sort_unstable();
        let p99 = sorted[sorted.len() * 99 / 100];
        Some((p99 * 2).max(SOONEST))
    }

    /// Returns whether one more request may be hedged, and counts it if so.
    pub(crate) fn may_hedge(&mut self) -> bool {
        let may = self.hedges < 1 + self.requests / 50;
        self.hedges += u64::from(may);
        may
    }
}

/// Number of remembered latencies.
const KEPT: usize = 128;
/// Number of latencies needed before hedging.
const KNOWN: usize = 16;
/// Minimum delay: hedging earlier is not worth a request.
const SOONEST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_request_comes_after_twice_the_99th_percentile_of_the_last_requests() {
        let mut latencies = Latencies::default();
        (0..KNOWN - 1).for_each(|_| latencies.succeeded(Duration::from_secs(9)));
        assert_eq!(latencies.hedge_after(), None);
        (0..KEPT).for_each(|n| latencies.succeeded(Duration::from_millis(1000 + n as u64)));
        assert_eq!(latencies.hedge_after(), Some(Duration::from_millis(2 * (1000 + 126))));
        (0..KEPT).for_each(|_| latencies.succeeded(Duration::from_millis(1)));
        assert_eq!(latencies.hedge_after(), Some(SOONEST));
    }

    #[test]
    fn at_most_one_request_in_fifty_is_sent_twice() {
        let mut latencies = Latencies::default();
        let mut hedges = 0;
        for _ in 0..1000 {
            latencies.succeeded(Duration::from_millis(1));
            hedges += u32::from(latencies.may_hedge());
        }
        assert_eq!(hedges, 21);
    }
}
