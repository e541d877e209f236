//! Statistics: latencies, rates over time, depths, CPU time; and adding jobs together.
//!
//! Latencies are in nanoseconds. Recording allocates only where a histogram or a list of rates grows.

pub(crate) mod cpu;
pub(crate) mod depths;
pub(crate) mod latency;

use std::time::Duration;

use cpu::CpuUse;
use depths::Depths;
use latency::{Latency, add_beside, summary};

use crate::samples::SampleFigures;

/// The names of the directions; their indices are those of figures by direction.
pub(crate) const DIRECTIONS: [&str; 2] = ["read", "write"];

/// The interval over which rates are averaged, as in fio. Of these averages, minimum, mean and maximum are reported.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Figures of one direction of one job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Direction {
    pub(crate) ios: u64,
    pub(crate) bytes: u64,
    pub(crate) short_ios: u64,
    pub(crate) slat: Latency,
    pub(crate) clat: Latency,
    pub(crate) lat: Latency,
    /// KiB/s, and I/Os a second, over intervals.
    pub(crate) bandwidth: Vec<f64>,
    pub(crate) iops: Vec<f64>,
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
    pub(crate) runtime_ms: u64,
    pub(crate) errors: u64,
    /// The first error: an errno, and a sentence.
    pub(crate) first_error: i32,
    pub(crate) message: String,
    pub(crate) verified: u64,
    /// Times since the run began: when counting began, and when the job ended.
    pub(crate) began_ms: u64,
    pub(crate) elapsed_s: u64,
    /// Figures of a sample job.
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

    /// Adds the rates since the last sampling, `seconds` ago, when the I/Os and bytes were `since`. Adds nothing
    /// before the first I/O.
    pub(crate) fn sample(&mut self, since: (u64, u64), seconds: f64) {
        if self.ios > 0 {
            self.iops.push(self.ios.saturating_sub(since.0) as f64 / seconds);
            let bytes = self.bytes.saturating_sub(since.1);
            self.bandwidth.push(bytes as f64 / 1024.0 / seconds);
        }
    }

    /// Bytes a second.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        ratio(self.bytes as f64 * 1000.0, self.runtime_ms as f64)
    }

    /// The mean of the sampled bandwidths, in percent of the whole run's bandwidth.
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
        self.began_ms = self.began_ms.min(other.began_ms);
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

    /// Notes that the job ended at this time after the run's beginning.
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
        (ios > 0).then(|| self.cpu.total_s() * 1e9 / ios as f64)
    }
}

/// `part / whole`; 0 if the whole is 0.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
