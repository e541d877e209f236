//! Latencies and rates: histograms, and values over time.

use std::ops::Deref;

use hdrhistogram::Histogram;

/// A histogram of I/O latencies in nanoseconds, to three digits.
#[derive(Debug, Clone)]
pub(crate) struct Latency(Histogram<u64>);

impl Default for Latency {
    /// The histogram grows with the longest latency, so a job's first I/Os allocate.
    fn default() -> Latency {
        Latency(Histogram::new(SIGNIFICANT_DIGITS).expect("a valid number of digits"))
    }
}

impl Deref for Latency {
    type Target = Histogram<u64>;

    fn deref(&self) -> &Histogram<u64> {
        &self.0
    }
}

impl Latency {
    /// Counts one I/O that took `ns`.
    #[inline]
    pub(crate) fn count(&mut self, ns: u64) {
        self.0.record(ns).expect("a histogram that grows");
    }

    /// Adds the latencies of a concurrent job.
    pub(crate) fn add(&mut self, other: &Latency) {
        self.0.add(&other.0).expect("a histogram that grows");
    }

    /// The latency that `percent` of the I/Os did not exceed.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        self.0.value_at_percentile(percent).clamp(self.min(), self.max())
    }

    /// Counts of latencies between successive `limits` in nanoseconds (each upper limit excluded), then of
    /// all latencies from the last limit on.
    pub(crate) fn below(&self, limits: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; limits.len() + 1];
        for step in self.0.iter_recorded() {
            let value = step.value_iterated_to();
            counts[limits.partition_point(|&limit| limit <= value)] +=
                step.count_since_last_iteration();
        }
        counts
    }
}

/// Minimum, mean, maximum, deviation and number of values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Summary {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    pub(crate) samples: usize,
}

/// The summary of a rate over equal intervals.
pub(crate) fn summary(values: &[f64]) -> Summary {
    let samples = values.len();
    if samples == 0 {
        return Summary::default();
    }
    let mean = values.iter().sum::<f64>() / samples as f64;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    let deviation = (squares / samples.saturating_sub(1).max(1) as f64).sqrt();
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(0.0, f64::max);
    Summary { min, max, mean, deviation, samples }
}

/// Adds the rates of a concurrent job in the same intervals.
pub(crate) fn add_beside(values: &mut Vec<f64>, other: &[f64]) {
    let both = values.len().min(other.len());
    for (value, more) in values.iter_mut().zip(other) {
        *value += more;
    }
    values.extend_from_slice(&other[both..]);
}

const SIGNIFICANT_DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_percentiles_are_those_of_what_was_recorded() {
        let mut latency = Latency::default();
        for ns in 1..=1000 {
            latency.count(ns * 1000);
        }
        let near = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 0.002, "{found}, not {expected}");
        };
        assert_eq!(latency.len(), 1000);
        near(latency.min() as f64, 1000.0);
        near(latency.max() as f64, 1_000_000.0);
        near(latency.mean(), 500_500.0);
        near(latency.stdev(), 288_819.4);
        near(latency.percentile(50.0) as f64, 500_000.0);
        assert_eq!(latency.below(&[100_000, 2_000_000]), [99, 901, 0]);
        let mut twice = latency.clone();
        twice.add(&latency);
        assert_eq!((twice.len(), twice.percentile(99.0)), (2000, latency.percentile(99.0)));
    }

    #[test]
    fn jobs_beside_each_other_add_up_interval_by_interval() {
        let mut one = vec![1.0, 3.0];
        add_beside(&mut one, &[10.0, 10.0, 5.0]);
        assert_eq!(one, [11.0, 13.0, 5.0]);
        let found = summary(&one);
        assert_eq!((found.min, found.max, found.samples), (5.0, 13.0, 3));
        assert!((found.mean - 29.0 / 3.0).abs() < 1e-9);
        assert_eq!(summary(&[]), Summary::default());
    }
}
