//! Statistics: latencies, rates over time, depths, logs, CPU time; and adding jobs together.
//!
//! Recording allocates nothing (a log without averaging grows by doubling). All times are nanoseconds.

pub(crate) mod cpu;
pub(crate) mod depths;
pub(crate) mod latency;
pub(crate) mod log;
pub(crate) mod series;

use cpu::CpuUse;
use depths::Depths;
use latency::Latency;
use series::Series;

/// Read, write: index into what is kept for each.
pub(crate) const DIRECTIONS: [&str; 2] = ["read", "write"];

/// Figures of one direction of one job.
#[derive(Debug, Clone)]
pub(crate) struct Direction {
    pub(crate) ios: u64,
    pub(crate) bytes: u64,
    pub(crate) short_ios: u64,
    pub(crate) slat: Latency,
    pub(crate) clat: Latency,
    pub(crate) lat: Latency,
    /// KiB/s over bwavgtime.
    pub(crate) bandwidth: Series,
    /// I/Os a second over iopsavgtime.
    pub(crate) iops: Series,
    pub(crate) runtime_ms: u64,
}

/// Figures of one job, or of several together.
#[derive(Debug, Clone)]
pub(crate) struct Stats {
    pub(crate) directions: [Direction; 2],
    /// Latency of flushes.
    pub(crate) sync: Latency,
    pub(crate) depths: Depths,
    pub(crate) cpu: CpuUse,
    pub(crate) runtime_ms: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: i32,
    pub(crate) verified: u64,
}

/// The latencies of which percentiles are recorded, besides those of completion.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PercentileOptions {
    pub(crate) slat: bool,
    pub(crate) lat: bool,
}

impl Direction {
    pub(crate) fn new(percentiles: PercentileOptions) -> Direction {
        Direction {
            ios: 0,
            bytes: 0,
            short_ios: 0,
            slat: Latency::new(percentiles.slat),
            clat: Latency::new(true),
            lat: Latency::new(percentiles.lat),
            bandwidth: Series::default(),
            iops: Series::default(),
            runtime_ms: 0,
        }
    }

    /// Forgets everything.
    fn clear(&mut self) {
        (self.ios, self.bytes, self.short_ios) = (0, 0, 0);
        for latency in [&mut self.slat, &mut self.clat, &mut self.lat] {
            latency.reset();
        }
        (self.bandwidth, self.iops) = (Series::default(), Series::default());
    }

    /// Adds the figures of a job that ran beside this one.
    pub(crate) fn add(&mut self, other: &Direction) {
        self.ios += other.ios;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.short_ios += other.short_ios;
        self.slat.add(&other.slat);
        self.clat.add(&other.clat);
        self.lat.add(&other.lat);
        self.bandwidth.add_beside(&other.bandwidth);
        self.iops.add_beside(&other.iops);
        self.runtime_ms = self.runtime_ms.max(other.runtime_ms);
    }

    /// Bytes a second.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        per_second(self.bytes, self.runtime_ms)
    }

    /// The mean of the sampled bandwidths, in percent of that of the whole run.
    pub(crate) fn bandwidth_share(&self) -> f64 {
        100.0 * self.bandwidth.summary().mean * 1024.0 / self.bytes_per_s().max(1.0)
    }

    /// I/Os a second.
    pub(crate) fn ios_per_s(&self) -> f64 {
        per_second(self.ios, self.runtime_ms)
    }
}

impl Stats {
    pub(crate) fn new(percentiles: PercentileOptions) -> Stats {
        Stats {
            directions: [Direction::new(percentiles), Direction::new(percentiles)],
            sync: Latency::new(true),
            depths: Depths::default(),
            cpu: CpuUse::default(),
            runtime_ms: 0,
            errors: 0,
            first_error: 0,
            verified: 0,
        }
    }

    /// Forgets everything: the ramp is over.
    pub(crate) fn reset(&mut self) {
        self.directions.iter_mut().for_each(Direction::clear);
        self.sync.reset();
        self.depths = Depths::default();
    }

    /// Adds the figures of a job that ran beside this one.
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
            self.first_error = other.first_error;
        }
    }

    /// Counting has taken so long.
    pub(crate) fn set_runtime(&mut self, ms: u64) {
        self.runtime_ms = ms;
        for direction in &mut self.directions {
            direction.runtime_ms = if direction.ios > 0 { ms } else { 0 };
        }
    }
}

fn per_second(count: u64, runtime_ms: u64) -> f64 {
    if runtime_ms == 0 { 0.0 } else { count as f64 * 1000.0 / runtime_ms as f64 }
}
