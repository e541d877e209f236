//! Measurements of a reading run: batch latency, CPU time, stalls, and a checksum of the order.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use dlfs::checksum::crc32c_append;

use crate::out;

/// The figures of one run. `--json` prints them: the names of the fields are an interface.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunReport {
    /// Samples delivered.
    pub(crate) samples: u64,
    /// Bytes of these samples.
    pub(crate) bytes: u64,
    /// Time from [`RunStats::start`] to [`RunStats::finish`].
    pub(crate) seconds: f64,
    /// `samples / seconds`.
    pub(crate) samples_per_s: f64,
    /// The caller's wait for each batch.
    pub(crate) batch_us: Percentiles,
    /// CPU time of all threads of this process.
    pub(crate) cpu_s: CpuSeconds,
    /// The part of `seconds` that the caller waited for batches.
    pub(crate) stall_s: f64,
    /// CRC32C over the ids in the order of delivery, each as 8 bytes little-endian.
    pub(crate) order_crc32c: u32,
}

impl RunReport {
    /// `seconds` as a duration.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// CPU seconds per GB (10^9 bytes) of samples.
    pub(crate) fn cpu_s_per_gb(&self) -> f64 {
        let gigabytes = self.bytes as f64 / 1e9;
        if gigabytes > 0.0 { (self.cpu_s.user + self.cpu_s.sys) / gigabytes } else { 0.0 }
    }

    /// Latency, stalls and CPU time as lines of the report.
    pub(crate) fn lines(&self) -> [String; 2] {
        let Percentiles { p50, p99, max } = self.batch_us;
        let share = if self.seconds > 0.0 { 100.0 * self.stall_s / self.seconds } else { 0.0 };
        [
            format!(
                "  batch      p50 {}, p99 {}, max {}; stalled {:.2} s, {share:.0} % of the time",
                out::micros(p50),
                out::micros(p99),
                out::micros(max),
                self.stall_s
            ),
            format!(
                "  CPU        {:.2} s user, {:.2} s system: {:.2} s a GB",
                self.cpu_s.user,
                self.cpu_s.sys,
                self.cpu_s_per_gb()
            ),
        ]
    }
}

/// Latency of a batch in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

/// CPU time in seconds, in user mode and in the kernel.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct CpuSeconds {
    user: f64,
    sys: f64,
}

/// Collects a [`RunReport`] while batches arrive.
pub(crate) struct RunStats {
    started: Instant,
    cpu_before: CpuClock,
    samples: u64,
    bytes: u64,
    /// The caller's wait for all batches.
    waited: Duration,
    /// The wait for each batch, in microseconds.
    batch_us: Histogram<u64>,
    order_crc32c: u32,
}

impl RunStats {
    /// Starts to measure.
    pub(crate) fn start() -> RunStats {
        RunStats {
            started: Instant::now(),
            cpu_before: CpuClock::now(),
            samples: 0,
            bytes: 0,
            waited: Duration::ZERO,
            batch_us: Histogram::new(3).expect("3 significant digits are allowed"),
            order_crc32c: 0,
        }
    }

    /// Counts a batch that arrived after a wait of `waited`: the ids of its samples in order, and their total
    /// length.
    pub(crate) fn batch(&mut self, ids: impl Iterator<Item = u64>, bytes: u64, waited: Duration) {
        for id in ids {
            self.order_crc32c = crc32c_append(self.order_crc32c, &id.to_le_bytes());
            self.samples += 1;
        }
        self.bytes += bytes;
        self.waited += waited;
        let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        let recorded = self.batch_us.record(waited_us.min(MAX_WAIT_US));
        recorded.expect("the histogram grows as needed");
    }

    /// Samples and bytes so far.
    pub(crate) fn so_far(&self) -> (u64, u64) {
        (self.samples, self.bytes)
    }

    /// The figures so far.
    pub(crate) fn finish(&self) -> RunReport {
        let time = self.started.elapsed();
        RunReport {
            samples: self.samples,
            bytes: self.bytes,
            seconds: time.as_secs_f64(),
            samples_per_s: out::per_second(self.samples, time),
            batch_us: Percentiles {
                p50: self.batch_us.value_at_quantile(0.50),
                p99: self.batch_us.value_at_quantile(0.99),
                max: self.batch_us.max(),
            },
            cpu_s: CpuClock::now().since(&self.cpu_before),
            stall_s: self.waited.as_secs_f64(),
            order_crc32c: self.order_crc32c,
        }
    }
}

/// CPU time of this process so far. The total is that of the CPU clock, in nanoseconds; the division into user and
/// kernel mode is that of `/proc/self/stat`, in ticks. Without `/proc`, all CPU time counts as user time.
struct CpuClock {
    total_s: f64,
    user_ticks: u64,
    sys_ticks: u64,
}

impl CpuClock {
    fn now() -> CpuClock {
        let total = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (user_ticks, sys_ticks) = ticks_of(&stat).unwrap_or((0, 0));
        let total_s = total.tv_sec as f64 + total.tv_nsec as f64 / 1e9;
        CpuClock { total_s, user_ticks, sys_ticks }
    }

    fn since(&self, earlier: &CpuClock) -> CpuSeconds {
        let total = (self.total_s - earlier.total_s).max(0.0);
        let user = self.user_ticks.saturating_sub(earlier.user_ticks) as f64;
        let sys = self.sys_ticks.saturating_sub(earlier.sys_ticks) as f64;
        let sys_share = if user + sys > 0.0 { sys / (user + sys) } else { 0.0 };
        CpuSeconds { user: total * (1.0 - sys_share), sys: total * sys_share }
    }
}

/// Fields 14 and 15 of `/proc/PID/stat`: ticks in user mode and in the kernel.
fn ticks_of(stat: &str) -> Option<(u64, u64)> {
    // The command's name, field 2, may contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// The longest wait that the histogram records, an hour; longer ones count as this.
const MAX_WAIT_US: u64 = 3_600_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_seconds_are_told_as_such() {
        let mut stats = RunStats::start();
        for _ in 0..99 {
            stats.batch([0].into_iter(), 1, Duration::from_micros(100));
        }
        stats.batch([0].into_iter(), 1, Duration::from_secs(3));
        let report = stats.finish();
        assert!((100..=101).contains(&report.batch_us.p50), "{:?}", report.batch_us);
        assert!((2_990_000..=3_010_000).contains(&report.batch_us.max), "{:?}", report.batch_us);
        assert!((report.stall_s - 3.0099).abs() < 1e-6);
    }

    #[test]
    fn the_order_checksum_is_over_little_endian_ids_whatever_the_batches() {
        let mut whole = RunStats::start();
        whole.batch([1, 2, 3].into_iter(), 30, Duration::from_micros(5));
        let mut parts = RunStats::start();
        parts.batch([1].into_iter(), 10, Duration::ZERO);
        parts.batch([2, 3].into_iter(), 20, Duration::ZERO);
        let mut bytes = Vec::new();
        for id in [1_u64, 2, 3] {
            bytes.extend(id.to_le_bytes());
        }
        assert_eq!(whole.finish().order_crc32c, crc32c::crc32c(&bytes));
        assert_eq!(parts.finish().order_crc32c, crc32c::crc32c(&bytes));
        assert_eq!(whole.so_far(), (3, 30));
    }

    #[test]
    fn user_and_kernel_ticks_are_found_behind_a_hostile_command_name() {
        let stat = "1 (a) b (c) S 0 1 1 0 -1 4194560 1 2 3 4 70 30 0 0 20 0 1 0 1 1 1";
        assert_eq!(ticks_of(stat), Some((70, 30)));
        assert_eq!(ticks_of(""), None);
    }

    #[test]
    fn cpu_time_grows() {
        let before = CpuClock::now();
        let mut sum = 0_u64;
        for i in 0..5_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(i * i));
        }
        let used = CpuClock::now().since(&before);
        assert!(used.user + used.sys > 0.0);
    }
}
