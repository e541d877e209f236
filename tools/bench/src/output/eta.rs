//! The status line on standard error.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::numbers::{binary, count};
use crate::run::Running;

/// When the line was last printed, and the totals at that time.
pub(super) struct EtaLine {
    every: Duration,
    newline_every: Duration,
    last: Instant,
    last_newline: Instant,
    totals: [(u64, u64); 2],
    width: usize,
}

impl EtaLine {
    pub(super) fn new(every_us: u64, newline_us: u64) -> EtaLine {
        let now = Instant::now();
        EtaLine {
            every: Duration::from_micros(every_us),
            newline_every: Duration::from_micros(newline_us),
            last: now,
            last_newline: now,
            totals: [(0, 0); 2],
            width: 0,
        }
    }

    pub(super) fn show(&mut self, running: &[Running], epoch: Instant) {
        let passed = self.last.elapsed();
        if passed < self.every || running.is_empty() {
            return;
        }
        let mut totals = [(0, 0); 2];
        for shared in running.iter().map(|running| &running.shared) {
            for (direction, total) in totals.iter_mut().enumerate() {
                total.0 += shared.ios[direction].load(Ordering::Relaxed);
                let bytes = shared.bytes[direction].load(Ordering::Relaxed);
                total.1 = u64::saturating_add(total.1, bytes);
            }
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / passed.as_secs_f64();
        let [read, write] = [0, 1].map(|d| {
            let now: (u64, u64) = totals[d];
            let before: (u64, u64) = self.totals[d];
            (rate(now.0, before.0), rate(now.1, before.1))
        });
        let line = format!(
            "Jobs: {} [{}][r={}/s,w={}/s][r={},w={} IOPS][eta {}]",
            running.len(),
            progress(running, epoch),
            binary(read.1),
            binary(write.1),
            count(read.0),
            count(write.0),
            eta(running, epoch)
        );
        self.print(&line);
        (self.totals, self.last) = (totals, Instant::now());
    }

    fn print(&mut self, line: &str) {
        let mut out = std::io::stderr().lock();
        let newline =
            !self.newline_every.is_zero() && self.last_newline.elapsed() >= self.newline_every;
        let (end, width) = if newline || !out.is_terminal() {
            ("\n", line.len())
        } else {
            ("\r", line.len().max(self.width))
        };
        if newline {
            self.last_newline = Instant::now();
        }
        self.width = line.len();
        let _ = write!(out, "{line:width$}{end}"); // the line is optional
    }

    pub(super) fn end(&mut self) {
        let mut out = std::io::stderr().lock();
        if self.width > 0 && out.is_terminal() {
            let _ = write!(out, "{:width$}\r", "", width = self.width); // the line is optional
        }
    }
}

/// The completed percentage of the work.
fn progress(running: &[Running], epoch: Instant) -> String {
    let shares = running.iter().filter_map(|running| part_done(running, epoch));
    let (sum, number) = shares.fold((0.0, 0), |all, share| (all.0 + share, all.1 + 1));
    match number {
        0 => "-.-%".to_owned(),
        _ => format!("{:.1}%", 100.0 * sum / f64::from(number)),
    }
}

/// The completed part of one job: by its time or its bytes, whichever ends it first.
fn part_done(running: &Running, epoch: Instant) -> Option<f64> {
    let shared = &running.shared;
    let job = &running.task.job;
    let began_ns = shared.began_ns.load(Ordering::Relaxed).checked_sub(1)?;
    let passed_us = (epoch.elapsed().as_nanos() as u64).saturating_sub(began_ns) / 1000;
    let by_time = job.runtime_us.map(|us| passed_us as f64 / us as f64);
    let goal = shared.goal_bytes.load(Ordering::Relaxed);
    let moved: f64 = shared.bytes.iter().map(|n| n.load(Ordering::Relaxed) as f64).sum();
    let by_bytes = (goal > 0).then(|| moved / goal as f64);
    by_time.into_iter().chain(by_bytes).reduce(f64::max).map(|part| part.min(1.0))
}

fn eta(running: &[Running], epoch: Instant) -> String {
    let left = running.iter().filter_map(|running| {
        let part = part_done(running, epoch).filter(|part| *part > 0.0)?;
        let began_ns = running.shared.began_ns.load(Ordering::Relaxed);
        let passed = (epoch.elapsed().as_nanos() as u64).saturating_sub(began_ns) as f64 / 1e9;
        Some(passed * (1.0 - part) / part)
    });
    match left.reduce(f64::max) {
        None => "--".to_owned(),
        Some(left) => format!("{:02}m:{:02}s", left as u64 / 60, left as u64 % 60),
    }
}
