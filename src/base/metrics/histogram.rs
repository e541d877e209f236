//! Histograms of durations, whose buckets widen with the duration: a plain [`Histogram`], and a [`Recorder`], which
//! other threads read while one writes it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts durations in buckets: eight of 125 ns up to 1 µs, then eight for each doubling, up to 33.6 s.
///
/// The error of a quantile between 1 µs and 33.6 s is at most an eighth of its value; below, at most 125 ns.
/// Serialized as a [`Summary`]: count, mean and quantiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(into = "Summary")]
pub struct Histogram {
    counts: [u64; Histogram::BUCKETS],
    sum_ns: u64,
}

/// Key numbers of a histogram. Times are in microseconds; all are 0 for an empty histogram.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Number of durations.
    pub count: u64,
    /// Mean of the durations.
    pub mean_us: f64,
    /// Median: half of the durations are at most this long.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: f64,
}

impl Histogram {
    /// The number of buckets.
    pub(crate) const BUCKETS: usize = Histogram::OCTAVES * Histogram::PER_OCTAVE;

    /// The number of octaves: the first ends at 1 µs, and each later one ends at twice the previous limit.
    pub(crate) const OCTAVES: usize = 26;

    /// Buckets per octave.
    const PER_OCTAVE: usize = 8;

    /// An empty histogram.
    pub const fn new() -> Histogram {
        Histogram { counts: [0; Histogram::BUCKETS], sum_ns: 0 }
    }

    /// The bucket of a duration in nanoseconds.
    #[inline]
    pub(crate) const fn bucket_of(duration_ns: u64) -> usize {
        let steps = duration_ns.saturating_sub(1) / STEP_NS;
        // From step 8 on, the highest bit of `steps` selects the octave, and the next three bits the bucket in it.
        let bucket = match steps.checked_ilog2() {
            Some(log2) if log2 >= 3 => {
                let octave = log2 as usize - 2;
                octave * Histogram::PER_OCTAVE + (steps >> (log2 - 3)) as usize - 8
            }
            _ => steps as usize,
        };
        if bucket < Histogram::BUCKETS { bucket } else { Histogram::BUCKETS - 1 }
    }

    /// The longest duration of `bucket`. The last bucket also counts all longer durations.
    pub(crate) const fn limit(bucket: usize) -> Duration {
        let octave = bucket / Histogram::PER_OCTAVE;
        let within = bucket % Histogram::PER_OCTAVE;
        let steps = match octave {
            0 => within as u64 + 1,
            _ => (within as u64 + 9) << (octave - 1),
        };
        Duration::from_nanos(steps * STEP_NS)
    }

    /// The longest duration of an octave; `None` for the last octave, which has no limit.
    pub const fn octave_limit(octave: usize) -> Option<Duration> {
        if octave + 1 < Histogram::OCTAVES {
            Some(Duration::from_micros(1 << octave))
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

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Histogram) {
        for (sum, more) in self.counts.iter_mut().zip(&other.counts) {
            *sum += more;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Number of durations in each octave.
    pub fn octaves(&self) -> [u64; Histogram::OCTAVES] {
        let mut octaves = [0; Histogram::OCTAVES];
        for (sum, counts) in octaves.iter_mut().zip(self.counts.chunks(Histogram::PER_OCTAVE)) {
            *sum = counts.iter().sum();
        }
        octaves
    }

    /// The quantile `share` (0.5 for the median), interpolated within its bucket; `None` for an empty
    /// histogram.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = (self.count() as f64 * share.clamp(0.0, 1.0)).max(f64::MIN_POSITIVE);
        let mut below = 0;
        for (bucket, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if (below + count) as f64 >= rank {
                let start = bucket.checked_sub(1).map_or(Duration::ZERO, Histogram::limit);
                let inside = (rank - below as f64) / count as f64;
                return Some(start + (Histogram::limit(bucket) - start).mul_f64(inside));
            }
            below += count;
        }
        None
    }

    /// Count, mean and quantiles.
    pub fn summary(&self) -> Summary {
        let count = self.count();
        let micros = |duration: Duration| (duration.as_nanos() as f64 / 100.0).round() / 10.0;
        let quantile = |share| self.quantile(share).map_or(0.0, micros);
        Summary {
            count,
            mean_us: if count == 0 { 0.0 } else { micros(self.sum().div_f64(count as f64)) },
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p99_9_us: quantile(0.999),
        }
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl From<Histogram> for Summary {
    fn from(histogram: Histogram) -> Summary {
        histogram.summary()
    }
}

/// A [`Histogram`] with one writing thread and any number of readers.
///
/// Recording costs two plain additions, without an atomic read-modify-write. Two writers at once could lose
/// durations, so each recorder belongs to one poller or queue pair.
#[derive(Debug)]
pub struct Recorder {
    counts: [AtomicU64; Histogram::BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder { counts: [const { AtomicU64::new(0) }; _], sum_ns: AtomicU64::new(0) }
    }
}

impl Recorder {
    /// Counts one duration.
    #[inline]
    pub fn record(&self, duration: Duration) {
        // 64 bits hold 584 years in nanoseconds.
        let duration_ns = duration.as_nanos() as u64;
        add(&self.counts[Histogram::bucket_of(duration_ns)], 1);
        add(&self.sum_ns, duration_ns);
    }

    /// The durations recorded so far.
    pub fn read(&self) -> Histogram {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        Histogram { counts: self.counts.each_ref().map(load), sum_ns: load(&self.sum_ns) }
    }
}

#[inline]
fn add(value: &AtomicU64, more: u64) {
    value.store(value.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Width of the narrowest buckets.
const STEP_NS: u64 = 125;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_limit_it_does_not_exceed() {
        for (duration_ns, bucket) in [
            (0, 0),
            (125, 0),
            (126, 1),
            (1000, 7),
            (1001, 8),
            (1125, 8),
            (2000, 15),
            (2001, 16),
            (1 << 40, Histogram::BUCKETS - 1),
            (u64::MAX, Histogram::BUCKETS - 1),
        ] {
            assert_eq!(Histogram::bucket_of(duration_ns), bucket, "{duration_ns} ns");
        }
        for bucket in 0..Histogram::BUCKETS - 1 {
            let limit_ns = Histogram::limit(bucket).as_nanos() as u64;
            assert_eq!(Histogram::bucket_of(limit_ns), bucket);
            assert_eq!(Histogram::bucket_of(limit_ns + 1), bucket + 1);
        }
    }

    #[test]
    fn octaves_end_where_their_last_buckets_end() {
        for octave in 0..Histogram::OCTAVES - 1 {
            let last = (octave + 1) * Histogram::PER_OCTAVE - 1;
            assert_eq!(Histogram::octave_limit(octave), Some(Histogram::limit(last)));
        }
        assert_eq!(Histogram::octave_limit(Histogram::OCTAVES - 1), None);
    }

    #[test]
    fn counts_and_sums_add_up() {
        let mut one = Histogram::new();
        one.record(Duration::from_micros(3));
        one.record(Duration::from_secs(100));
        let mut both = one;
        both.add(&one);
        assert_eq!((both.count(), both.sum()), (4, Duration::from_micros(200_000_006)));
        assert_eq!((both.octaves()[2], both.octaves()[25]), (2, 2));
    }

    #[test]
    fn quantiles_are_within_an_eighth_of_the_exact_ones() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.quantile(0.5), histogram.summary()), (None, Summary::default()));
        // Durations from 1 µs to 10 ms; each is 0.1 % longer than the previous one.
        let durations: Vec<f64> = (0..9215).map(|i| 1e3 * 1.001_f64.powi(i)).collect();
        durations.iter().for_each(|ns| histogram.record(Duration::from_nanos(*ns as u64)));
        for share in [0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact_ns = durations[((durations.len() as f64 * share) as usize).saturating_sub(1)];
            let found_ns = histogram.quantile(share).expect("it is not empty").as_nanos() as f64;
            let ratio = found_ns / exact_ns;
            assert!((0.88..1.13).contains(&ratio), "{share}: {found_ns} ns, exactly {exact_ns} ns");
        }
        let Summary { count, mean_us, p50_us, p99_9_us, .. } = histogram.summary();
        let mean = durations.iter().sum::<f64>() / durations.len() as f64 / 1e3;
        assert_eq!(count, durations.len() as u64);
        assert!((mean_us - mean).abs() < 1.0 && p50_us < p99_9_us, "{mean_us} {mean}");
    }

    #[test]
    fn what_one_thread_records_another_reads() {
        let recorder = Recorder::default();
        std::thread::scope(|scope| {
            let work = || (0..1000).for_each(|_| recorder.record(Duration::from_micros(3)));
            scope.spawn(work).join().expect("it does not panic");
        });
        let read = recorder.read();
        assert_eq!((read.count(), read.sum()), (1000, Duration::from_millis(3)));
    }
}
