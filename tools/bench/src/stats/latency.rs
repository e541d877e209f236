//! A latency: exact minimum, maximum, mean and deviation, and a histogram if requested.

use hdrhistogram::Histogram;

/// Nanoseconds of many I/Os.
#[derive(Debug, Clone)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    min: u64,
    max: u64,
    sum: u64,
    sum_of_squares: f64,
    histogram: Option<Box<Histogram<u64>>>,
}

impl Latency {
    pub(crate) fn new(with_histogram: bool) -> Latency {
        let histogram = with_histogram.then(|| {
            let made = Histogram::new_with_bounds(1, MAX_NS, SIGNIFICANT_DIGITS);
            Box::new(made.expect("the bounds are in order"))
        });
        Latency { count: 0, min: u64::MAX, max: 0, sum: 0, sum_of_squares: 0.0, histogram }
    }

    pub(crate) fn reset(&mut self) {
        let mut histogram = self.histogram.take();
        if let Some(histogram) = &mut histogram {
            histogram.reset();
        }
        *self = Latency { histogram, ..Latency::new(false) };
    }

    /// Counts one I/O that took `ns`.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.count += 1;
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
        self.sum += ns;
        self.sum_of_squares += ns as f64 * ns as f64;
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(ns);
        }
    }

    pub(crate) fn add(&mut self, other: &Latency) {
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.sum_of_squares += other.sum_of_squares;
        if let (Some(histogram), Some(other)) = (&mut self.histogram, &other.histogram) {
            histogram.add(&**other).expect("histograms of the same bounds");
        }
    }

    pub(crate) fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    pub(crate) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The deviation of the sample, as in fio.
    pub(crate) fn deviation(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let count = self.count as f64;
        let mean = self.mean();
        ((self.sum_of_squares - count * mean * mean).max(0.0) / (count - 1.0)).sqrt()
    }

    /// The latency that `percent` of the I/Os did not exceed; 0 without a histogram.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        let found = self.histogram.as_ref().map_or(0, |h| h.value_at_percentile(percent));
        found.clamp(self.min(), self.max())
    }

    /// The non-empty bins of fio's histogram: the value in the middle, and the count.
    pub(crate) fn bins(&self) -> Vec<(u64, u64)> {
        let mut bins: Vec<(u64, u64)> = Vec::new();
        for (value, count) in self.recorded() {
            let value = fio_bin(value);
            match bins.last_mut() {
                Some(last) if last.0 == value => last.1 += count,
                _ => bins.push((value, count)),
            }
        }
        bins
    }

    /// How many took less than each of `limits` nanoseconds and at least the previous limit, and
    /// how many took longer than all.
    pub(crate) fn below(&self, limits: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; limits.len() + 1];
        for (value, count) in self.recorded() {
            counts[limits.partition_point(|&limit| limit <= value)] += count;
        }
        counts
    }

    fn recorded(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let recorded = self.histogram.iter().flat_map(|histogram| histogram.iter_recorded());
        recorded.map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
    }
}

/// The value that fio prints for its bin of `value`: 64 bins for each power of two.
pub(crate) fn fio_bin(value: u64) -> u64 {
    if value < 2 * FIO_BINS {
        return value;
    }
    let error_bits = 63 - value.leading_zeros() - FIO_BINS.trailing_zeros();
    let half = if error_bits == 0 { 0 } else { 1 << (error_bits - 1) };
    (value >> error_bits << error_bits) + half
}

const FIO_BINS: u64 = 64;
const MAX_NS: u64 = 3_600_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_percentiles_are_those_of_what_was_recorded() {
        let mut latency = Latency::new(true);
        for ns in 1..=1000 {
            latency.record(ns * 1000);
        }
        assert_eq!((latency.min(), latency.max(), latency.count), (1000, 1_000_000, 1000));
        assert!((latency.mean() - 500_500.0).abs() < 1e-6);
        assert!((latency.deviation() - 288_819.436).abs() < 0.01);
        let median = latency.percentile(50.0) as f64;
        assert!((median / 500_000.0 - 1.0).abs() < 0.002, "{median}");
        let mut twice = latency.clone();
        twice.add(&latency);
        assert_eq!((twice.count, twice.percentile(99.0)), (2000, latency.percentile(99.0)));
        twice.reset();
        assert_eq!((twice.count, twice.min(), twice.max(), twice.bins().len()), (0, 0, 0, 0));
    }

    #[test]
    fn bins_have_the_values_that_fio_prints() {
        // From json+ of fio 3.33: every second number from 128, every fourth in the middle from
        // 256.
        for (value, printed) in
            [(127, 127), (154, 155), (155, 155), (314, 314), (2928, 2928), (9000, 9024)]
        {
            assert_eq!(fio_bin(value), printed, "{value}");
        }
        let mut latency = Latency::new(true);
        [154, 155, 156, 9000].into_iter().for_each(|ns| latency.record(ns));
        assert_eq!(latency.bins(), [(155, 2), (157, 1), (9024, 1)]);
        assert_eq!(latency.below(&[155, 1000]), [1, 2, 1]);
    }
}
