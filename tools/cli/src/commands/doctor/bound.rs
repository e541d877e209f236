//! The conclusion of `dlfs doctor`: what bounds a training job, in plain words with the figures behind it.

use super::Finding;
use super::load::{Load, Loads};
use crate::out::{self, percent};

/// The conclusion from all measurements. If the mean length of samples is known, also says how many samples can
/// arrive a second.
pub(super) fn conclusion(loads: &Loads, mean_sample_bytes: Option<u64>) -> Finding {
    let bound = bound(loads);
    let mut found = bound.text(loads);
    if let Some(bytes) = mean_sample_bytes.filter(|&bytes| bytes > 0) {
        let samples = samples_per_s(loads, bytes);
        found = format!(
            "{found} Samples of {} can arrive at up to {} a second.",
            out::bytes(bytes),
            out::count(samples as u64)
        );
    }
    Finding { remedy: Some(bound.remedy().to_owned()), ..Finding::good("bound", found) }
}

/// The bottleneck that limits bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// All processors of this machine are busy, and our threads need them.
    Machine,
    /// A thread of ours is busy all the time, and more threads read more.
    Thread,
    /// Reads wait for the round trip, and more queue pairs read more.
    RoundTrip,
    /// More queue pairs do not read more: the network, the target or its media are the bound.
    Beyond,
}

/// If four queue pairs read at least this many times as much as one queue pair, then neither the network nor the target
/// bounds the rate of one.
const MIN_GAIN: f64 = 1.3;
/// A thread or a machine that is busy for at least this share of the time has no capacity left.
const MIN_FULL_SHARE: f64 = 0.9;
/// If our threads ran, or waited for a processor, for less of the time, then they waited for reads, and other programs
/// keep the processors busy.
const MIN_RUNNABLE_SHARE: f64 = 0.3;

/// The bottleneck that the measurements show.
fn bound(loads: &Loads) -> Bound {
    let Loads { one, four, .. } = loads;
    let is_full = |load: &Load| {
        load.runnable >= MIN_RUNNABLE_SHARE
            && load.machine_busy.is_some_and(|busy| busy >= MIN_FULL_SHARE)
    };
    if four.bytes_per_s() < MIN_GAIN * one.bytes_per_s() {
        return if is_full(four) { Bound::Machine } else { Bound::Beyond };
    }
    if one.busy >= MIN_FULL_SHARE {
        Bound::Thread
    } else if is_full(one) {
        Bound::Machine // other programs took the time that the thread lacked
    } else {
        Bound::RoundTrip
    }
}

impl Bound {
    /// The conclusion as a sentence.
    fn text(self, loads: &Loads) -> String {
        let rate = |load: &Load| format!("{}/s", out::bytes(load.bytes_per_s() as u64));
        let one = rate(&loads.one);
        let four = rate(&loads.four);
        match self {
            Bound::Machine => format!(
                "The processors of this machine are the bound: they ran {} of the time at {four}, our busiest thread \
                 {}.",
                percent(loads.four.machine_busy.unwrap_or(1.0)),
                percent(loads.four.busy)
            ),
            Bound::Thread => format!(
                "One thread is the bound: it ran {} of the time at {one}, and four threads reach {four}.",
                percent(loads.one.busy)
            ),
            Bound::RoundTrip => format!(
                "The round trip is the bound of one queue pair: its thread ran only {} of the time at {one}, and four \
                 queue pairs reach {four}.",
                percent(loads.one.busy)
            ),
            Bound::Beyond => format!(
                "The network, the target or its media are the bound: four queue pairs read {four}, one {one}, and our \
                 busiest thread ran {} of the time.",
                percent(loads.four.busy)
            ),
        }
    }

    /// Ways to read faster.
    fn remedy(self) -> &'static str {
        match self {
            Bound::Machine => {
                "leave processors to reading (fewer decoding workers beside it), or read from more machines"
            }
            Bound::Thread => {
                "read over more queue pairs, each with a thread: queue_pairs= in Python, C and Rust"
            }
            Bound::RoundTrip => {
                "read over more queue pairs (queue_pairs= in Python, C and Rust) or with a larger window"
            }
            Bound::Beyond => {
                "compare with the link's rate and the target's load; stripe the data set over more targets, or keep \
                 copies with --tier"
            }
        }
    }
}

/// Samples of this length per second: bounded by bandwidth, and by the rate of small reads scaled from one
/// queue pair to four.
fn samples_per_s(loads: &Loads, bytes: u64) -> f64 {
    let by_bandwidth = loads.best_bytes_per_s() / bytes as f64;
    // In a shuffled order, samples rarely share a read with a neighbour: each costs at least a small read.
    by_bandwidth.min(
        loads.small.reads_per_s() * (loads.four.bytes_per_s() / loads.one.bytes_per_s()).max(1.0),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::load::LoadPlan;
    use super::*;

    fn load(reads: u64, busy: f64, machine_busy: f64) -> Load {
        Load {
            plan: LoadPlan { pairs: 1, io_bytes: 128 << 10, depth: 32 },
            reads,
            time: Duration::from_secs(1),
            busy,
            runnable: busy,
            machine_busy: Some(machine_busy),
            median: Duration::from_micros(80),
            p99: Duration::from_micros(100),
        }
    }

    fn loads(one: Load, four: Load) -> Loads {
        let small =
            Load { plan: LoadPlan { io_bytes: 4096, ..one.plan }, reads: 100_000, ..one.clone() };
        Loads { single: one.clone(), one, four, small }
    }

    #[test]
    fn each_bound_is_told_from_the_others() {
        let idle = 0.2;
        let full = 1.0;
        assert_eq!(bound(&loads(load(1000, full, 0.3), load(3000, full, 0.9))), Bound::Thread);
        assert_eq!(bound(&loads(load(1000, idle, 0.1), load(3500, 0.3, 0.2))), Bound::RoundTrip);
        let starved = Load { runnable: 0.7, ..load(1000, idle, full) };
        assert_eq!(bound(&loads(starved, load(3000, 0.3, full))), Bound::Machine);
        assert_eq!(bound(&loads(load(1000, 0.8, 0.8), load(1100, 0.5, full))), Bound::Machine);
        assert_eq!(bound(&loads(load(1000, 0.6, 0.3), load(1010, 0.2, 0.3))), Bound::Beyond);
        // Other programs keep the processors busy, and our threads hardly need them.
        assert_eq!(bound(&loads(load(1000, 0.01, full), load(1001, 0.01, full))), Bound::Beyond);
        assert_eq!(bound(&loads(load(1000, 0.02, full), load(3900, 0.05, full))), Bound::RoundTrip);
    }

    #[test]
    fn samples_are_bounded_by_bandwidth_or_by_the_rate_of_reads() {
        let loads = loads(load(8000, 0.5, 0.5), load(8000, 0.5, 0.5)); // 1.05 GB/s and 100,000 small reads
        assert_eq!(samples_per_s(&loads, 1 << 20).round(), 1000.0);
        assert_eq!(samples_per_s(&loads, 100).round(), 100_000.0);
        let finding = conclusion(&loads, Some(1 << 20));
        assert!(
            finding.found.contains("1.05 GB/s") && finding.found.contains("1,000 a second"),
            "{finding:?}"
        );
        assert!(conclusion(&loads, None).found.ends_with("50 % of the time."), "{finding:?}");
    }
}
