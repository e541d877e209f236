//! Durations by buckets: each bucket is twice as wide as the one before.

use std::time::Duration;

/// Durations, counted by buckets of at most 1 µs, 2 µs, 4 µs and so on to 16.8 s, and one for longer ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; Histogram::BUCKETS],
    sum_ns: u64,
}

impl Histogram {
    /// The number of buckets.
    pub const BUCKETS: usize = 26;

    /// Nothing counted yet.
    pub const fn new() -> Histogram {
        Histogram { counts: [0; Histogram::BUCKETS], sum_ns: 0 }
    }

    /// As counted elsewhere: `counts` by [`Histogram::bucket_of`], and the sum of the durations in nanoseconds.
    pub const fn from_parts(counts: [u64; Histogram::BUCKETS], sum_ns: u64) -> Histogram {
        Histogram { counts, sum_ns }
    }

    /// The bucket of a duration of so many nanoseconds.
    pub const fn bucket_of(duration_ns: u64) -> usize {
        let micros = duration_ns.div_ceil(1000);
        let bucket = if micros <= 1 { 0 } else { (micros - 1).ilog2() as usize + 1 };
        if bucket < Histogram::BUCKETS { bucket } else { Histogram::BUCKETS - 1 }
    }

    /// The longest duration of `bucket`; `None` for the last bucket, which has no limit.
    pub const fn limit(bucket: usize) -> Option<Duration> {
        if bucket + 1 < Histogram::BUCKETS {
            Some(Duration::from_micros(1 << bucket))
        } else {
            None
        }
    }

    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[Histogram::bucket_of(duration_ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(duration_ns);
    }

    /// Adds what `other` has counted.
    pub fn add(&mut self, other: &Histogram) {
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum += more;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// How many were counted in each bucket.
    pub fn counts(&self) -> &[u64; Histogram::BUCKETS] {
        &self.counts
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_limit_it_does_not_exceed() {
        for (duration_ns, bucket) in [
            (0, 0),
            (1, 0),
            (1000, 0),
            (1001, 1),
            (2000, 1),
            (2001, 2),
            (4000, 2),
            (1 << 40, Histogram::BUCKETS - 1),
            (u64::MAX, Histogram::BUCKETS - 1),
        ] {
            assert_eq!(Histogram::bucket_of(duration_ns), bucket, "{duration_ns} ns");
        }
        for bucket in 0..Histogram::BUCKETS - 1 {
            let limit = Histogram::limit(bucket).expect("all but the last have one");
            let limit_ns = limit.as_nanos() as u64;
            assert_eq!(Histogram::bucket_of(limit_ns), bucket);
            assert_eq!(Histogram::bucket_of(limit_ns + 1), bucket + 1);
        }
        assert_eq!(Histogram::limit(Histogram::BUCKETS - 1), None);
    }

    #[test]
    fn counts_and_sums_add_up() {
        let mut one = Histogram::new();
        one.record(Duration::from_micros(3));
        one.record(Duration::from_secs(100));
        let mut both = one.clone();
        both.add(&one);
        assert_eq!((both.count(), both.sum()), (4, Duration::from_micros(200_000_006)));
        assert_eq!((both.counts()[2], both.counts()[25]), (2, 2));
    }
}
