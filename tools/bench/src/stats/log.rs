//! Logs over time in fio's format: `time_ms, value, direction, block size, offset`.

use std::fmt::Write as _;

/// The kind of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bandwidth,
    Iops,
    Slat,
    Clat,
    Lat,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Bandwidth, Kind::Iops, Kind::Slat, Kind::Clat, Kind::Lat];

    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Kind::Bandwidth => "bw",
            Kind::Iops => "iops",
            Kind::Slat => "slat",
            Kind::Clat => "clat",
            Kind::Lat => "lat",
        }
    }
}

/// One log of one job.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    kind: Kind,
    interval_ms: u64,
    with_offset: bool,
    lines: Vec<Line>,
    interval: [Interval; 2],
    interval_start_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Line {
    time_ms: u64,
    value: u64,
    direction: usize,
    block: u64,
    offset: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    count: u64,
    sum: u64,
    bytes: u64,
}

impl Log {
    pub(crate) fn new(kind: Kind, interval_ms: u64, with_offset: bool) -> Log {
        let lines = Vec::new();
        let interval = [Interval::default(); 2];
        Log { kind, interval_ms, with_offset, lines, interval, interval_start_ms: 0 }
    }

    /// Records an I/O of `block` bytes at `offset` that ended at `now_ns` after `ns`.
    pub(crate) fn record(
        &mut self,
        now_ns: u64,
        ns: u64,
        direction: usize,
        block: u64,
        offset: u64,
    ) {
        let time_ms = now_ns / 1_000_000;
        if self.interval_ms == 0 {
            let value = match self.kind {
                Kind::Bandwidth => (block as f64 / 1024.0 * 1e9 / ns.max(1) as f64) as u64,
                Kind::Iops => 1,
                _ => ns,
            };
            self.lines.push(Line { time_ms, value, direction, block, offset });
            return;
        }
        if time_ms >= self.interval_start_ms + self.interval_ms {
            self.close_window(time_ms);
        }
        let interval = &mut self.interval[direction];
        interval.count += 1;
        interval.sum += ns;
        interval.bytes = interval.bytes.saturating_add(block);
    }

    /// Ends the last interval, which may be shorter than the others.
    pub(crate) fn finish(&mut self, now_ns: u64) {
        let now_ms = now_ns / 1_000_000;
        if self.interval_ms > 0 && now_ms >= self.interval_start_ms + self.interval_ms.div_ceil(2) {
            self.close_window(now_ms);
        }
    }

    /// Discards everything: the ramp is over.
    pub(crate) fn reset(&mut self) {
        self.lines.clear();
        (self.interval, self.interval_start_ms) = ([Interval::default(); 2], 0);
    }

    fn close_window(&mut self, now_ms: u64) {
        let time_ms = if now_ms - self.interval_start_ms < 2 * self.interval_ms {
            (self.interval_start_ms + self.interval_ms).min(now_ms)
        } else {
            now_ms / self.interval_ms * self.interval_ms // nothing ended for a while
        };
        let elapsed_ms = (time_ms - self.interval_start_ms).max(1);
        for direction in 0..2 {
            let interval = std::mem::take(&mut self.interval[direction]);
            if interval.count == 0 {
                continue;
            }
            let value = match self.kind {
                Kind::Bandwidth => per_second(interval.bytes, elapsed_ms) / 1024,
                Kind::Iops => per_second(interval.count, elapsed_ms),
                Kind::Slat | Kind::Clat | Kind::Lat => interval.sum / interval.count,
            };
            self.lines.push(Line { time_ms, value, direction, block: 0, offset: 0 });
        }
        self.interval_start_ms = time_ms;
    }

    /// Appends the lines to `text`, as they stand in a file.
    pub(crate) fn write_to(&self, text: &mut String) {
        for line in &self.lines {
            let offset = if self.with_offset { line.offset } else { 0 };
            let Line { time_ms, value, direction, block, .. } = line;
            // Writing to a string does not fail.
            let _ = writeln!(text, "{time_ms}, {value}, {direction}, {block}, {offset}");
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }
}

fn per_second(count: u64, elapsed_ms: u64) -> u64 {
    (u128::from(count) * 1000 / u128::from(elapsed_ms)) as u64 // of a millisecond at least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(log: &Log) -> Vec<(u64, u64, usize)> {
        log.lines.iter().map(|l| (l.time_ms, l.value, l.direction)).collect()
    }

    #[test]
    fn without_a_window_every_io_has_its_line() {
        let mut log = Log::new(Kind::Bandwidth, 0, false);
        log.record(5_000_000, 1_000_000, 1, 4096, 0); // 4 KiB in 1 ms
        assert_eq!(lines(&log), [(5, 4000, 1)]);
    }

    #[test]
    fn a_window_is_averaged_and_empty_ones_are_left_out() {
        let mut bandwidth = Log::new(Kind::Bandwidth, 100, false);
        let mut latency = Log::new(Kind::Lat, 100, false);
        for log in [&mut bandwidth, &mut latency] {
            for ms in [10, 20, 30, 40, 450] {
                log.record(ms * 1_000_000, ms * 100, 0, 1 << 20, 0);
            }
            log.finish(600_000_000);
        }
        assert_eq!(lines(&bandwidth), [(400, 4 * 1024 * 1000 / 400, 0), (600, 5120, 0)]);
        assert_eq!(lines(&latency), [(400, 2500, 0), (600, 45000, 0)]);
    }
}
