//! steadystate: whether figures have become steady.

use std::collections::VecDeque;

use crate::options::Job;
use crate::options::job::{SteadyOf, SteadyState};

/// The last values of a job, or of a group of jobs, and what is asked of them.
#[derive(Debug, Clone)]
pub(crate) struct Steady {
    wanted: SteadyState,
    needed: usize,
    ramp_us: u64,
    interval_us: u64,
    iops: VecDeque<f64>,
    bandwidth: VecDeque<f64>,
    latency: VecDeque<f64>,
    before: (u64, u64, u64, u64),
    /// Once it is steady it stays so.
    pub(crate) attained: bool,
    pub(crate) slope: f64,
    pub(crate) deviation: f64,
}

/// Totals of a job so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) ios: u64,
    pub(crate) bytes: u64,
    pub(crate) lat_ns: u64,
}

impl Steady {
    /// What `job` asks for, if it asks for any.
    pub(crate) fn new(job: &Job) -> Option<Steady> {
        let wanted = job.steady_state?;
        let interval_us = job.ss_interval_us;
        Some(Steady {
            wanted,
            needed: (job.ss_duration_us / interval_us).max(2) as usize,
            ramp_us: job.ss_ramp_us,
            interval_us,
            iops: VecDeque::new(),
            bandwidth: VecDeque::new(),
            latency: VecDeque::new(),
            before: (0, 0, 0, 0),
            attained: false,
            slope: 0.0,
            deviation: 0.0,
        })
    }

    /// Looks at the totals at `now_us` of the job's time; whether the job is steady.
    pub(crate) fn look(&mut self, now_us: u64, totals: Totals) -> bool {
        let (then_us, ios, bytes, lat_ns) = self.before;
        if self.attained || now_us < self.ramp_us || now_us < then_us + self.interval_us {
            return self.attained;
        }
        self.before = (now_us, totals.ios, totals.bytes, totals.lat_ns);
        if then_us == 0 {
            return false; // from here on it is counted
        }
        let seconds = (now_us - then_us) as f64 / 1e6;
        let new_ios = totals.ios.saturating_sub(ios);
        let values = [
            new_ios as f64 / seconds,
            totals.bytes.saturating_sub(bytes) as f64 / 1024.0 / seconds,
            totals.lat_ns.saturating_sub(lat_ns) as f64 / new_ios.max(1) as f64,
        ];
        for (series, value) in
            [&mut self.iops, &mut self.bandwidth, &mut self.latency].into_iter().zip(values)
        {
            series.push_back(value);
            if series.len() > self.needed {
                series.pop_front();
            }
        }
        self.attained = self.iops.len() == self.needed && self.is_steady();
        self.attained
    }

    fn is_steady(&mut self) -> bool {
        let values = match self.wanted.of {
            SteadyOf::Iops => &self.iops,
            SteadyOf::Bandwidth => &self.bandwidth,
            SteadyOf::Latency => &self.latency,
        };
        let mean = mean(values);
        let unit = if self.wanted.percent { mean / 100.0 } else { 1.0 };
        self.deviation = values.iter().map(|v| (v - mean).abs()).fold(0.0, f64::max) / unit;
        self.slope = slope(values) / unit;
        let found = if self.wanted.slope { self.slope.abs() } else { self.deviation };
        found.is_finite() && found < self.wanted.limit
    }

    /// What it waits for, as it was written.
    pub(crate) fn criterion(&self) -> String {
        let of = match self.wanted.of {
            SteadyOf::Iops => "iops",
            SteadyOf::Bandwidth => "bw",
            SteadyOf::Latency => "lat",
        };
        let slope = if self.wanted.slope { "_slope" } else { "" };
        let percent = if self.wanted.percent { "%" } else { "" };
        format!("{of}{slope}:{:.6}{percent}", self.wanted.limit)
    }

    /// Seconds that are looked at together.
    pub(crate) fn duration_s(&self) -> u64 {
        self.needed as u64 * self.interval_us / 1_000_000
    }

    /// I/Os and KiB a second, of the last intervals.
    pub(crate) fn data(&self) -> (Vec<f64>, Vec<f64>) {
        (self.iops.iter().copied().collect(), self.bandwidth.iter().copied().collect())
    }
}

fn mean(values: &VecDeque<f64>) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Of the line of least squares, per interval.
fn slope(values: &VecDeque<f64>) -> f64 {
    let n = values.len() as f64;
    let (mean_x, mean_y) = ((n - 1.0) / 2.0, mean(values));
    let points = values.iter().enumerate().map(|(x, y)| (x as f64 - mean_x, y - mean_y));
    let (xy, xx) = points.fold((0.0, 0.0), |sum, (x, y)| (sum.0 + x * y, sum.1 + x * x));
    if xx > 0.0 { xy / xx } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::file::Entry;
    use crate::options::table::apply;

    fn steady_after(criterion: &str, ios: impl Fn(u64) -> u64) -> Option<u64> {
        let mut job = Job::default();
        for (key, value) in [("ss", criterion), ("ss_dur", "5"), ("ss_ramp", "2")] {
            let (key, value, origin) = (key.into(), Some(value.into()), String::new());
            apply(&mut job, &Entry { key, value, origin }).unwrap();
        }
        let mut steady = Steady::new(&job).unwrap();
        let mut total = 0;
        (1..60).find(|&second| {
            total += ios(second);
            let totals = Totals { ios: total, bytes: total * 4096, lat_ns: total * 100 };
            steady.look(second * 1_000_000, totals)
        })
    }

    #[test]
    fn it_is_steady_once_all_values_of_the_duration_are_near_their_mean() {
        // Second 2 ends the ramp, 3 to 7 are the five values.
        assert_eq!(steady_after("iops:1%", |_| 1000), Some(7));
        let warming = |second: u64| if second < 20 { second * 100 } else { 2000 };
        let found = steady_after("iops:1%", warming).unwrap();
        assert!((23..=25).contains(&found), "{found}");
        assert_eq!(steady_after("iops:1%", |second| second * 1000), None);
        assert_eq!(steady_after("bw:8", |_| 1000), Some(7));
    }

    #[test]
    fn a_slope_forgives_noise_and_finds_a_trend() {
        let noise = |second: u64| if second.is_multiple_of(2) { 900 } else { 1100 };
        assert_eq!(steady_after("iops:5%", noise), None);
        assert_eq!(steady_after("iops_slope:5%", noise), Some(7));
        assert_eq!(steady_after("iops_slope:1%", |second| 100 + second * 50), None);
    }
}
