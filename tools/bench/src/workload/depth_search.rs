//! latency_target: the largest depth whose latencies are good enough.
//!
//! Each depth is tried for a window. Good windows go up (doubling until the first bad one), bad ones
//! down; the search ends when the two meet.

use crate::options::Job;

/// The search, fed with every latency.
#[derive(Debug, Clone)]
pub(crate) struct DepthSearch {
    target_ns: u64,
    window_ns: u64,
    good_share: f64,
    pub(crate) depth: u64,
    /// The largest depth known to be good, and the smallest known to be bad.
    good: u64,
    bad: u64,
    window_end_ns: u64,
    within: u64,
    all: u64,
    found: bool,
}

impl DepthSearch {
    pub(crate) fn new(job: &Job) -> Option<DepthSearch> {
        let most = job.depth();
        (job.latency_target_us > 0).then_some(DepthSearch {
            target_ns: job.latency_target_us * 1000,
            window_ns: job.latency_window_us.max(1000) * 1000,
            good_share: job.latency_percentile / 100.0,
            depth: 1,
            good: 0,
            bad: most + 1,
            window_end_ns: 0,
            within: 0,
            all: 0,
            found: false,
        })
    }

    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.all += 1;
        self.within += u64::from(ns <= self.target_ns);
    }

    /// Ends the window when its time is over; whether the depth has been found.
    pub(crate) fn turn(&mut self, now_ns: u64) -> bool {
        if self.window_end_ns == 0 {
            self.window_end_ns = now_ns + self.window_ns;
        }
        if self.found || now_ns < self.window_end_ns || self.all == 0 {
            return self.found;
        }
        let good = self.within as f64 >= self.good_share * self.all as f64;
        (self.within, self.all) = (0, 0);
        self.window_end_ns = now_ns + self.window_ns;
        if good {
            self.good = self.depth
        } else {
            self.bad = self.depth
        }
        let doubling = self.bad > 2 * self.good;
        let next = if doubling { 2 * self.good } else { (self.good + self.bad) / 2 };
        self.found = self.good + 1 >= self.bad;
        self.depth = if self.found { self.good.max(1) } else { next.clamp(1, self.bad - 1) };
        self.found
    }

    /// Whether any depth, even 1, is good enough.
    pub(crate) fn is_met(&self) -> bool {
        self.good > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose latency is `per_depth_ns` times the depth.
    fn search(per_depth_ns: u64, target_us: u64, most: u64) -> (u64, bool) {
        let job = Job {
            iodepth: most,
            latency_target_us: target_us,
            latency_window_us: 1000,
            ..Job::default()
        };
        let mut search = DepthSearch::new(&job).unwrap();
        let mut now_ns = 0;
        for _ in 0..100 {
            search.record(search.depth * per_depth_ns);
            now_ns += 1_000_000;
            if search.turn(now_ns) {
                return (search.depth, search.is_met());
            }
        }
        panic!("the search does not end");
    }

    #[test]
    fn the_largest_good_depth_is_found() {
        assert_eq!(search(10_000, 200, 64), (20, true));
        assert_eq!(search(10_000, 10_000, 64), (64, true));
        assert_eq!(search(10_000, 10, 64), (1, true));
        assert_eq!(search(10_000, 5, 64), (1, false));
        assert_eq!(search(10_000, 5, 1), (1, false));
    }
}
