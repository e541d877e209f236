//! Statistics: latencies, rates over time, depths, CPU time; and adding jobs together.
//!
//! Latencies are in nanoseconds. Recording allocates only where a histogram or a list of rates grows.

use std::ops::Deref;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::samples::SampleFigures;

/// The names of the directions; their indices are those of figures by direction.
pub(crate) const DIRECTIONS: [&str; 2] = ["read", "write"];

/// The interval over which rates are averaged, as in fio. Of these averages, minimum, mean and maximum are reported.
pub(crate) const RATE_INTERVAL: Duration = Duration::from_millis(500);

/// Figures of one direction of one job, or of several together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Direction {
    pub(crate) ios: u64,
    pub(crate) bytes: u64,
    /// I/Os that transferred less than asked for.
    pub(crate) short_ios: u64,
    /// Latency of submission, of completion, and of both together.
    pub(crate) slat: Latency,
    pub(crate) clat: Latency,
    pub(crate) lat: Latency,
    /// KiB/s over each interval of [`RATE_INTERVAL`].
    pub(crate) bandwidth: Vec<f64>,
    /// I/Os a second over each interval.
    pub(crate) iops: Vec<f64>,
    /// The duration of counting; 0 without I/O.
    pub(crate) runtime_ms: u64,
}

/// Figures of one job, or of several together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stats {
    pub(crate) directions: [Direction; 2],
    /// Latency of flushes.
    pub(crate) sync: Latency,
    pub(crate) depths: Depths,
    pub(crate) cpu: CpuUse,
    /// The duration of counting; of several jobs, the longest.
    pub(crate) runtime_ms: u64,
    pub(crate) errors: u64,
    /// The errno of the first error, and a sentence about it.
    pub(crate) first_error: i32,
    pub(crate) message: String,
    /// Verified blocks or samples.
    pub(crate) verified: u64,
    /// The time from the start of the run to the start of counting; of several jobs, the shortest.
    pub(crate) counts_after_ms: u64,
    /// The time from the start of the run to the end of the job, rounded up; of several jobs, the longest.
    pub(crate) elapsed_s: u64,
    /// Figures of a job that reads samples of a data set; `None` for a block job, and for several jobs of which the
    /// first is a block job.
    pub(crate) samples: Option<SampleFigures>,
}

impl Direction {
    /// Adds the figures of a concurrent job.
    pub(crate) fn add(&mut self, other: &Direction) {
        self.ios += other.ios;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.short_ios += other.short_ios;
        self.slat.add(&other.slat);
        self.clat.add(&other.clat);
        self.lat.add(&other.lat);
        add_beside(&mut self.bandwidth, &other.bandwidth);
        add_beside(&mut self.iops, &other.iops);
        self.runtime_ms = self.runtime_ms.max(other.runtime_ms);
    }

    /// Appends the rates over the last `seconds`, at whose start the I/Os and bytes were `before`. Appends nothing
    /// before the first I/O.
    pub(crate) fn append_rates(&mut self, before: (u64, u64), seconds: f64) {
        if self.ios > 0 {
            self.iops.push(self.ios.saturating_sub(before.0) as f64 / seconds);
            let bytes = self.bytes.saturating_sub(before.1);
            self.bandwidth.push(bytes as f64 / 1024.0 / seconds);
        }
    }

    /// Bytes a second.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        ratio(self.bytes as f64 * 1000.0, self.runtime_ms as f64)
    }

    /// The mean of the intervals' bandwidths, in percent of the whole run's bandwidth.
    pub(crate) fn bandwidth_share(&self) -> f64 {
        100.0 * ratio(summary(&self.bandwidth).mean * 1024.0, self.bytes_per_s())
    }

    /// I/Os a second.
    pub(crate) fn ios_per_s(&self) -> f64 {
        ratio(self.ios as f64 * 1000.0, self.runtime_ms as f64)
    }
}

impl Stats {
    /// Adds the figures of a concurrent job.
    pub(crate) fn add(&mut self, other: &Stats) {
        for (direction, other) in self.directions.iter_mut().zip(&other.directions) {
            direction.add(other);
        }
        self.sync.add(&other.sync);
        self.depths.add(&other.depths);
        self.cpu.add(&other.cpu);
        self.runtime_ms = self.runtime_ms.max(other.runtime_ms);
        self.errors += other.errors;
        self.verified += other.verified;
        if self.first_error == 0 {
            (self.first_error, self.message) = (other.first_error, other.message.clone());
        }
        self.counts_after_ms = self.counts_after_ms.min(other.counts_after_ms);
        self.elapsed_s = self.elapsed_s.max(other.elapsed_s);
        if let (Some(samples), Some(other)) = (&mut self.samples, &other.samples) {
            samples.add(other);
        }
    }

    /// Counts an error.
    pub(crate) fn failed(&mut self, errno: i32, message: impl FnOnce() -> String) {
        self.errors += 1;
        if self.first_error == 0 {
            (self.first_error, self.message) = (errno, message());
        }
    }

    /// Sets the end of the job: `after` is the time since the start of the run.
    pub(crate) fn ended(&mut self, after: Duration) {
        self.elapsed_s = (after.as_secs_f64().ceil() as u64).max(1);
    }

    /// Sets the duration of counting.
    pub(crate) fn set_runtime(&mut self, ms: u64) {
        self.runtime_ms = ms;
        for direction in &mut self.directions {
            direction.runtime_ms = if direction.ios > 0 { ms } else { 0 };
        }
    }

    /// I/Os and bytes so far of each direction.
    pub(crate) fn totals(&self) -> [(u64, u64); 2] {
        self.directions.each_ref().map(|direction| (direction.ios, direction.bytes))
    }

    /// CPU time of the job's threads per I/O; `None` without I/O.
    pub(crate) fn cpu_ns_per_io(&self) -> Option<f64> {
        let ios: u64 = self.directions.iter().map(|direction| direction.ios).sum();
        (ios > 0).then(|| self.cpu.total_s * 1e9 / ios as f64)
    }
}

/// `part / whole`; 0 if the whole is 0.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The CPU usage of threads: the counters at one moment, or their difference between two.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct CpuUse {
    /// Exact CPU time; the ticks say how it divides into user mode and kernel mode.
    pub(crate) total_s: f64,
    /// Elapsed time.
    wall_s: f64,
    /// Minor faults, major faults, ticks in user mode and in the kernel.
    stat: [u64; 4],
    /// Context switches.
    switches: u64,
}

impl CpuUse {
    /// The counters of the calling thread now.
    pub(crate) fn of_thread() -> CpuUse {
        CpuUse::read(ClockId::ThreadCPUTime, "/proc/thread-self")
    }

    /// The counters of all threads now, but the context switches of the first thread only.
    pub(crate) fn of_process() -> CpuUse {
        CpuUse::read(ClockId::ProcessCPUTime, "/proc/self")
    }

    fn read(clock: ClockId, folder: &str) -> CpuUse {
        let seconds = |time: Timespec| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        let text = |name| std::fs::read_to_string(format!("{folder}/{name}")).unwrap_or_default();
        CpuUse {
            total_s: seconds(clock_gettime(clock)),
            wall_s: seconds(clock_gettime(ClockId::Monotonic)),
            stat: fields_of(&text("stat")).unwrap_or_default(),
            switches: switches_of(&text("status")),
        }
    }

    /// The usage since the counters were `before`.
    pub(crate) fn since(self, before: CpuUse) -> CpuUse {
        CpuUse {
            total_s: self.total_s - before.total_s,
            wall_s: self.wall_s - before.wall_s,
            stat: std::array::from_fn(|i| self.stat[i].saturating_sub(before.stat[i])),
            switches: self.switches.saturating_sub(before.switches),
        }
    }

    /// Adds the usage of a concurrent job.
    pub(crate) fn add(&mut self, other: &CpuUse) {
        self.total_s += other.total_s;
        self.wall_s += other.wall_s;
        self.stat = std::array::from_fn(|i| self.stat[i] + other.stat[i]);
        self.switches += other.switches;
    }

    /// Time in user mode and in the kernel, in percent of elapsed time.
    pub(crate) fn percent(&self) -> [f64; 2] {
        let [_, _, user, sys] = self.stat;
        let in_kernel = ratio(sys as f64, (user + sys) as f64);
        [1.0 - in_kernel, in_kernel].map(|part| 100.0 * ratio(part * self.total_s, self.wall_s))
    }

    /// Context switches, major faults and minor faults.
    pub(crate) fn events(&self) -> [u64; 3] {
        [self.switches, self.stat[1], self.stat[0]]
    }
}

/// From `/proc/.../stat`: minor faults, major faults, ticks in user mode and in the kernel.
fn fields_of(stat: &str) -> Option<[u64; 4]> {
    let (_, rest) = stat.rsplit_once(')')?; // the name may contain anything
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some([number(7)?, number(9)?, number(11)?, number(12)?])
}

fn switches_of(status: &str) -> u64 {
    let lines = status.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
    lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

/// Counts by powers of two, as fio shows them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Depths {
    /// I/Os by the depth at their submission (1, 2, 4, 8, 16, 32, 64 and more); submissions, then polls, by
    /// their number of I/Os (0, up to 4, 8, 16, 32, 64, more).
    counts: [[u64; 7]; 3],
}

impl Depths {
    /// Counts `count` I/Os that were submitted together; `depth` are outstanding now.
    #[inline]
    pub(crate) fn submitted(&mut self, count: usize, depth: usize) {
        for deep in depth.saturating_sub(count) + 1..=depth {
            self.counts[0][(deep.max(1).ilog2() as usize).min(6)] += 1;
        }
        self.counts[1][group(count)] += 1;
    }

    /// Counts `count` completions of one poll.
    #[inline]
    pub(crate) fn completed(&mut self, count: usize) {
        self.counts[2][group(count)] += 1;
    }

    pub(crate) fn add(&mut self, other: &Depths) {
        let all = self.counts.as_flattened_mut().iter_mut();
        all.zip(other.counts.as_flattened()).for_each(|(count, more)| *count += more);
    }

    /// The three counts in percent.
    pub(crate) fn percent(&self) -> [[f64; 7]; 3] {
        self.counts.map(|counts| {
            let all = counts.iter().sum::<u64>() as f64;
            counts.map(|count| 100.0 * ratio(count as f64, all))
        })
    }
}

/// The index of a count in [`CALLS`].
#[inline]
fn group(count: usize) -> usize {
    [0, 4, 8, 16, 32, 64].iter().position(|&most| count <= most).unwrap_or(6)
}

/// The names of the groups of depths.
pub(crate) const LEVELS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
/// The names of the groups of submissions and polls, by their upper limits; as in fio, the last name stands for more
/// than 64.
pub(crate) const CALLS: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

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
    pub(crate) count: usize,
}

/// The summary of a rate over equal intervals.
pub(crate) fn summary(values: &[f64]) -> Summary {
    let count = values.len();
    if count == 0 {
        return Summary::default();
    }
    let mean = values.iter().sum::<f64>() / count as f64;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    let deviation = (squares / count.saturating_sub(1).max(1) as f64).sqrt();
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(0.0, f64::max);
    Summary { min, max, mean, deviation, count }
}

/// Adds the rates of a concurrent job in the same intervals.
fn add_beside(values: &mut Vec<f64>, other: &[f64]) {
    let both = values.len().min(other.len());
    for (value, more) in values.iter_mut().zip(other) {
        *value += more;
    }
    values.extend_from_slice(&other[both..]);
}

/// The precision of histograms, in decimal digits.
const SIGNIFICANT_DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_proc_are_read_behind_a_hostile_name() {
        let stat = "1 (a) b (c) S 0 1 1 0 -1 4194560 11 2 33 4 70 30 0 0 20 0 1 0 1 1 1";
        assert_eq!(fields_of(stat), Some([11, 33, 70, 30]));
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(switches_of(status), 12);
    }

    #[test]
    fn work_shows_as_cpu_time() {
        let before = CpuUse::of_thread();
        let mut sum = 0_u64;
        for i in 0..5_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(i * i));
        }
        let used = CpuUse::of_thread().since(before);
        assert!(used.total_s > 0.0 && used.percent().iter().sum::<f64>() <= 101.0, "{used:?}");
    }

    #[test]
    fn depths_are_counted_for_each_io_and_calls_for_each_burst() {
        let mut depths = Depths::default();
        depths.submitted(4, 4); // at depths 1, 2, 3, 4
        depths.completed(4);
        depths.submitted(1, 100);
        let [level, submit, complete] = depths.percent();
        assert_eq!(level, [20.0, 40.0, 20.0, 0.0, 0.0, 0.0, 20.0]);
        assert_eq!((submit[1], complete[1]), (100.0, 100.0));
    }

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
        assert_eq!((found.min, found.max, found.count), (5.0, 13.0, 3));
        assert!((found.mean - 29.0 / 3.0).abs() < 1e-9);
        assert_eq!(summary(&[]), Summary::default());
    }
}
