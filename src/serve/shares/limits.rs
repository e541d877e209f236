//! Limits of a host, a group or a namespace: bytes and I/Os a second.
//!
//! Each limit is a token [`Bucket`] that pollers share (GCRA). A bucket is one number, the time from which the next
//! command may begin. A command advances that time by its cost, so one larger than the burst passes too, and later ones
//! wait longer. After a pause, the time lags behind the clock by at most the burst. Pollers that compare at the same
//! moment may all begin one command; later commands wait for the overdraft, so limits hold up to the burst and one
//! command of each poller.

use std::sync::atomic::{AtomicU64, Ordering};

/// Limits of a host, a group or a namespace; `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Limits {
    /// Bytes a second that are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// Bytes a second that are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<u64>,
    /// Reads a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<u64>,
    /// Writes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<u64>,
    /// After a pause, as much passes at once as the limits allow in this many milliseconds.
    pub burst_ms: u32,
    /// The share of a host beside other hosts: with twice the weight it gets twice as much. `None`: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            read_bytes: None,
            write_bytes: None,
            read_iops: None,
            write_iops: None,
            burst_ms: 10,
            weight: None,
        }
    }
}

impl Limits {
    pub(super) fn has_rates(&self) -> bool {
        let rates = [self.read_bytes, self.write_bytes, self.read_iops, self.write_iops];
        rates.iter().any(Option::is_some)
    }
}

/// The buckets of a host, a group or a namespace, one for each rate that is limited.
#[derive(Debug)]
pub(in super::super) struct Class {
    pub(super) limits: Limits,
    /// Bytes of reads, and of writes.
    bytes: [Option<Bucket>; 2],
    /// Reads, and writes.
    ios: [Option<Bucket>; 2],
}

#[derive(Debug)]
struct Bucket {
    /// Bytes or commands per second.
    per_second: u64,
    /// The burst, in ticks.
    burst: u64,
    /// The time, in ticks, from which the next command may begin.
    ready_at: AtomicU64,
}

impl Class {
    pub(in super::super) fn new(limits: Limits) -> Class {
        let Limits { read_bytes, write_bytes, read_iops, write_iops, burst_ms, .. } = limits;
        let bucket = |rate: Option<u64>| {
            let burst = u64::from(burst_ms) * (TICKS_PER_SECOND / 1000);
            rate.map(|rate| Bucket { per_second: rate.max(1), burst, ready_at: AtomicU64::new(0) })
        };
        Class {
            limits,
            bytes: [read_bytes, write_bytes].map(bucket),
            ios: [read_iops, write_iops].map(bucket),
        }
    }

    /// The time from which a command may begin, in ticks.
    pub(in super::super) fn ready_at(&self, is_write: bool) -> u64 {
        let [bytes, ios] = [&self.bytes, &self.ios].map(|buckets| {
            let bucket = buckets[usize::from(is_write)].as_ref();
            bucket.map_or(0, |bucket| bucket.ready_at.load(Ordering::Relaxed))
        });
        bytes.max(ios)
    }

    /// Charges a command of `len` bytes that begins at `now`, in ticks.
    pub(in super::super) fn take(&self, is_write: bool, len: u32, now: u64) {
        for (buckets, amount) in [(&self.bytes, len), (&self.ios, 1)] {
            if let Some(bucket) = &buckets[usize::from(is_write)] {
                bucket.take(amount, now);
            }
        }
    }
}

impl Bucket {
    fn take(&self, amount: u32, now: u64) {
        let cost = u128::from(amount) * u128::from(TICKS_PER_SECOND) / u128::from(self.per_second);
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let after = |at: u64| at.max(now.saturating_sub(self.burst)).saturating_add(cost);
        let order = Ordering::Relaxed;
        // Cannot fail: there is always a next value.
        let _ = self.ready_at.fetch_update(order, order, |at| Some(after(at)));
    }
}

pub(super) const TICKS_PER_SECOND: u64 = 1_000_000_000 * TICKS_PER_NANOSECOND;

/// Ticks are fine enough for small commands at 100 GB/s, and a `u64` of them lasts 36 years.
pub(in super::super) const TICKS_PER_NANOSECOND: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = TICKS_PER_SECOND / 1000;
    /// A second after a pause.
    const SECOND: (u64, u64) = (5000 * MS, 6000 * MS);

    fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
        let mut limits = Limits::default();
        change(&mut limits);
        limits
    }

    /// The commands that begin from `start` to `end` when one always waits and the poller looks each `step`.
    fn begun(class: &Class, is_write: bool, len: u32, (start, end): (u64, u64), step: u64) -> u64 {
        let mut begun = 0;
        for now in (start..end).step_by(step as usize) {
            while class.ready_at(is_write) <= now {
                class.take(is_write, len, now);
                begun += 1;
            }
        }
        begun
    }

    #[test]
    fn bytes_and_ios_of_a_second_are_within_three_percent() {
        for (rate, len) in [(100 << 20, 1 << 20), (1 << 30, 4096), (20_000_000_000, 512)] {
            let class = Class::new(limits(|limits| limits.read_bytes = Some(rate)));
            let bytes = u64::from(len) * begun(&class, false, len, SECOND, MS / 16);
            assert!((rate..=rate * 103 / 100).contains(&bytes), "{bytes} of {rate}");
        }
        let class = Class::new(limits(|limits| limits.write_iops = Some(5000)));
        let ios = begun(&class, true, 1 << 20, SECOND, MS / 16);
        assert!((5000..=5150).contains(&ios), "{ios}");
        assert_eq!(class.ready_at(false), 0, "reads have no limit");
    }

    #[test]
    fn a_pause_saves_up_a_burst_and_no_more() {
        let class = Class::new(limits(|limits| {
            limits.read_iops = Some(1000);
            limits.burst_ms = 200;
        }));
        assert_eq!(begun(&class, false, 512, (5000 * MS, 5001 * MS), MS), 201);
        assert_eq!(begun(&class, false, 512, (5001 * MS, 5101 * MS), MS), 100);
        assert_eq!(begun(&class, false, 512, (9000 * MS, 9001 * MS), MS), 201);
    }

    #[test]
    fn a_command_larger_than_the_burst_passes_and_the_next_one_waits_for_all_of_it() {
        let class = Class::new(limits(|limits| limits.read_bytes = Some(1 << 20)));
        class.take(false, 4 << 20, 10_000 * MS);
        let wait = class.ready_at(false) - 10_000 * MS;
        assert!((3900 * MS..=4000 * MS).contains(&wait), "{wait}");
    }
}
