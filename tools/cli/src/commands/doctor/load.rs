//! Measures a namespace by reading it: round trip, bandwidth of one and of four queue pairs, and small reads.
//!
//! A thread sleeps while none of its reads can advance, so its CPU time shows whether it was the bottleneck.
//! From them follows the bound of a training job, in plain words with the figures it rests on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use dlfs::buf::IoBuf;
use dlfs::permutation::{Key, Permutation};
use dlfs::qpair::group::PollGroup;
use dlfs::qpair::{Device, Io, IoOp};
use dlfs::units::Lba;
use dlfs::{Error, ErrorKind, Result};

use super::Finding;
use crate::out::{self, percent};

/// The parameters of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Queue pairs, each polled by its own thread.
    pairs: usize,
    /// Bytes of a read.
    io_bytes: u64,
    /// Reads outstanding on each queue pair.
    pub(super) depth: usize,
}

/// The result of one measurement.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// The plan as carried out: a namespace may have smaller transfers or queues than planned.
    pub(super) plan: Plan,
    pub(super) reads: u64,
    pub(super) time: Duration,
    /// The share of the time that our busiest thread ran.
    busy: f64,
    /// The share of the time that all processors of this machine ran, on average; `None` without
    /// `/proc/stat`.
    machine_busy: Option<f64>,
    /// From submission to completion.
    pub(super) median: Duration,
    pub(super) p99: Duration,
}

impl Load {
    fn reads_per_s(&self) -> f64 {
        out::per_second(self.reads, self.time)
    }

    pub(super) fn bytes_per_s(&self) -> f64 {
        self.reads_per_s() * self.plan.io_bytes as f64
    }

    fn finding(&self, check: &'static str) -> Finding {
        let Plan { pairs, io_bytes, depth } = self.plan;
        let found = format!(
            "{}/s, {} reads/s of {} with {depth} outstanding{}; our busiest thread ran {} of the time",
            out::bytes(self.bytes_per_s() as u64),
            out::count(self.reads_per_s() as u64),
            out::binary_size(io_bytes),
            if pairs > 1 { " on each" } else { "" },
            percent(self.busy),
        );
        Finding::good(check, found)
    }
}

/// All measurements of one namespace.
#[derive(Debug, Clone)]
pub(super) struct Loads {
    /// One block at a time.
    pub(super) single: Load,
    pub(super) one: Load,
    four: Load,
    /// Reads of 4 KiB, on one queue pair.
    small: Load,
}

impl Loads {
    pub(super) fn best_bytes_per_s(&self) -> f64 {
        self.one.bytes_per_s().max(self.four.bytes_per_s())
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let round_trip = format!(
            "{} for a read of {}, the median of {}; 99 % within {}",
            out::duration(self.single.median),
            out::binary_size(self.single.plan.io_bytes),
            out::count(self.single.reads),
            out::duration(self.single.p99)
        );
        vec![
            Finding::good("round trip", round_trip),
            self.one.finding("one queue pair"),
            self.four.finding("four queue pairs"),
            self.small.finding("small reads"),
        ]
    }
}

/// Measures the namespace four times, each for `slice`.
///
/// # Errors
/// Errors of queue pairs and reads.
pub(super) fn measure(device: &Arc<dyn Device>, slice: Duration) -> Result<Loads> {
    let block = u64::from(device.namespace().block_len_bytes);
    let run = |pairs, io_bytes, depth| run(device, Plan { pairs, io_bytes, depth }, slice);
    Ok(Loads {
        single: run(1, block, 1)?,
        one: run(1, 128 << 10, 32)?,
        four: run(4, 128 << 10, 32)?,
        small: run(1, 4096, 128)?,
    })
}

/// The result of one thread.
struct Ran {
    reads: u64,
    busy: f64,
    latency_ns: Histogram<u64>,
}

fn run(device: &Arc<dyn Device>, plan: Plan, slice: Duration) -> Result<Load> {
    let namespace = device.namespace();
    let block = u64::from(namespace.block_len_bytes);
    let most = u64::from(namespace.max_transfer_bytes).min(namespace.len_bytes());
    let io_bytes = plan.io_bytes.min(most) / block * block;
    if io_bytes == 0 {
        let text = format!("{} is empty: there is nothing to read", namespace.address);
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let plan = Plan { io_bytes, depth: plan.depth.min(namespace.queue_depth.into()), ..plan };
    let ticks = processor_ticks();
    let began = Instant::now();
    let ran = std::thread::scope(|scope| -> Result<Vec<Ran>> {
        let threads: Vec<_> = (0..plan.pairs)
            .map(|index| scope.spawn(move || run_pair(device, plan, index, slice)))
            .collect();
        let panicked =
            || Error::new(ErrorKind::InvalidArgument, "a thread of the measurement panicked");
        threads.into_iter().map(|thread| thread.join().map_err(|_| panicked())?).collect()
    })?;
    let time = began.elapsed();
    let mut latency_ns = histogram();
    for one in &ran {
        // Both histograms have the same bounds, so this cannot fail.
        let _ = latency_ns.add(&one.latency_ns);
    }
    Ok(Load {
        plan,
        reads: ran.iter().map(|one| one.reads).sum(),
        time,
        busy: ran.iter().map(|one| one.busy).fold(0.0, f64::max),
        machine_busy: ticks.zip(processor_ticks()).and_then(busy_between),
        median: Duration::from_nanos(latency_ns.value_at_quantile(0.5)),
        p99: Duration::from_nanos(latency_ns.value_at_quantile(0.99)),
    })
}

fn run_pair(device: &Arc<dyn Device>, plan: Plan, index: usize, slice: Duration) -> Result<Ran> {
    let mut group = PollGroup::new()?;
    let pair = group.add(device.queue_pair()?);
    let namespace = device.namespace();
    let blocks = plan.io_bytes / u64::from(namespace.block_len_bytes);
    // All places in an order without a pattern; each queue pair begins in another part.
    let count = (namespace.num_blocks / blocks).max(1);
    let places = Permutation::new(count, Key::derive(0, &[]));
    let mut next = count * index as u64 / plan.pairs as u64;
    let mut latency_ns = histogram();
    let mut bufs: Vec<IoBuf> = (0..plan.depth).map(|_| faulted_in(plan.io_bytes)).collect();
    let mut at = vec![Lba(0); plan.depth];
    let mut sent = vec![Instant::now(); plan.depth];
    let mut free: Vec<usize> = (0..plan.depth).collect();
    let mut pending = VecDeque::new();
    let mut done = Vec::new();
    let mut reads = 0;
    let began = Instant::now();
    let cpu = thread_cpu();
    let until = began + slice;
    loop {
        let mut now = Instant::now();
        if now < until || reads == 0 {
            while let (Some(tag), Some(buf)) = (free.pop(), bufs.pop()) {
                at[tag] = Lba(places.forward(next) * blocks);
                next = (next + 1) % count;
                sent[tag] = now;
                pending.push_back(Io { op: IoOp::Read, slba: at[tag], buf, tag: tag as u64 });
            }
        }
        group.submit(pair, &mut pending);
        group.poll(now, usize::MAX, &mut done);
        if !done.is_empty() {
            now = Instant::now();
        }
        let ended = done.len();
        for (_, completion) in done.drain(..) {
            let tag = completion.tag as usize;
            completion.result.map_err(|error| error.at(&namespace, at[tag]))?;
            latency_ns.saturating_record((now - sent[tag]).as_nanos() as u64);
            free.push(tag);
            bufs.push(completion.buf);
            reads += 1;
        }
        if free.len() == plan.depth && now >= until {
            break;
        }
        if ended == 0 {
            group.wait(Instant::now() + LONGEST_SLEEP);
        }
    }
    let time = began.elapsed().as_secs_f64().max(1e-9);
    Ok(Ran { reads, busy: ((thread_cpu() - cpu) / time).clamp(0.0, 1.0), latency_ns })
}

/// A buffer that is already faulted in, so that page faults are not measured.
fn faulted_in(bytes: u64) -> IoBuf {
    let mut buf = IoBuf::zeroed(bytes as usize); // at most the length of a transfer
    buf.fill(0xA5);
    buf
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("these bounds are valid")
}

/// The CPU time of this thread, in seconds.
fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Ticks of all processors since the machine started: (busy, all).
fn processor_ticks() -> Option<(u64, u64)> {
    ticks_of(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// The busy and all ticks in the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq and steal.
fn ticks_of(stat: &str) -> Option<(u64, u64)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().take(8);
    let ticks: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let all: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4).copied().unwrap_or(0);
    Some((all - idle, all))
}

fn busy_between((before, after): ((u64, u64), (u64, u64))) -> Option<f64> {
    let all = after.1.checked_sub(before.1).filter(|&all| all > 0)?;
    Some(after.0.saturating_sub(before.0) as f64 / all as f64)
}

/// The longest wait for a completion before the queue pair is polled again.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// The conclusion from all measurements. If the mean length of samples is known, also says how many samples can
/// arrive a second.
pub(super) fn conclusion(loads: &Loads, mean_sample_bytes: Option<u64>) -> Finding {
    let bound = bound(loads);
    let mut found = bound.words(loads);
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
    /// All processors of this machine are busy.
    Machine,
    /// A thread of ours is busy all the time, and more threads read more.
    Thread,
    /// Reads wait for the round trip, and a higher queue depth reads more.
    RoundTrip,
    /// Neither our threads nor the queue depth: the network, the target or its media.
    Beyond,
}

/// If four queue pairs read this many times as much as one, the path behind them was not the bottleneck of one.
const GAIN: f64 = 1.3;
/// A thread, or a machine, that is busy for this share of the time has no capacity left.
const FULL: f64 = 0.9;

fn bound(loads: &Loads) -> Bound {
    let Loads { one, four, .. } = loads;
    let is_full = |load: &Load| load.machine_busy.is_some_and(|busy| busy >= FULL);
    match four.bytes_per_s() >= GAIN * one.bytes_per_s() {
        true if one.busy >= FULL => Bound::Thread,
        true if is_full(one) => Bound::Machine, // other work took the time that its thread lacked
        true => Bound::RoundTrip,
        false if is_full(four) => Bound::Machine,
        false => Bound::Beyond,
    }
}

impl Bound {
    fn words(self, loads: &Loads) -> String {
        let rate = |load: &Load| format!("{}/s", out::bytes(load.bytes_per_s() as u64));
        let one = rate(&loads.one);
        let four = rate(&loads.four);
        match self {
            Bound::Machine => format!(
                "The processors of this machine are the bound: they ran {} of the time at {four}.",
                percent(loads.four.machine_busy.unwrap_or(1.0))
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

    use dlfs::qpair::mem::MemNamespace;

    use super::{Plan, *};

    #[test]
    fn a_namespace_is_measured_with_reads_that_fit_it() {
        let device: Arc<dyn Device> = Arc::new(MemNamespace::new(1 << 20, 512).unwrap());
        let loads = measure(&device, Duration::from_millis(50)).unwrap();
        assert_eq!((loads.single.plan.io_bytes, loads.single.plan.depth), (512, 1));
        assert_eq!(loads.small.plan.io_bytes, 4096);
        for load in [&loads.single, &loads.one, &loads.four, &loads.small] {
            assert!(load.reads > 0 && load.median <= load.p99, "{load:?}");
        }
        let tiny: Arc<dyn Device> = Arc::new(MemNamespace::new(4096, 512).unwrap());
        assert_eq!(measure(&tiny, Duration::from_millis(50)).unwrap().one.plan.io_bytes, 4096);
    }

    #[test]
    fn the_busy_share_of_the_processors_is_what_is_not_idle_or_waiting() {
        let before = ticks_of("cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1 1").unwrap();
        assert_eq!(before, (20, 100));
        assert_eq!(busy_between((before, (95, 200))), Some(0.75));
        assert_eq!(busy_between((before, before)), None);
        assert_eq!(ticks_of("intr 1"), None);
    }

    fn load(reads: u64, busy: f64, machine_busy: f64) -> Load {
        Load {
            plan: Plan { pairs: 1, io_bytes: 128 << 10, depth: 32 },
            reads,
            time: Duration::from_secs(1),
            busy,
            machine_busy: Some(machine_busy),
            median: Duration::from_micros(80),
            p99: Duration::from_micros(100),
        }
    }

    fn loads(one: Load, four: Load) -> Loads {
        let small =
            Load { plan: Plan { io_bytes: 4096, ..one.plan }, reads: 100_000, ..one.clone() };
        Loads { single: one.clone(), one, four, small }
    }

    #[test]
    fn each_bound_is_told_from_the_others() {
        let idle = 0.2;
        let full = 1.0;
        assert_eq!(bound(&loads(load(1000, full, 0.3), load(3000, full, 0.9))), Bound::Thread);
        assert_eq!(bound(&loads(load(1000, idle, 0.1), load(3500, 0.3, 0.2))), Bound::RoundTrip);
        assert_eq!(bound(&loads(load(1000, idle, full), load(3000, 0.3, full))), Bound::Machine);
        assert_eq!(bound(&loads(load(1000, 0.8, 0.8), load(1100, 0.5, full))), Bound::Machine);
        assert_eq!(bound(&loads(load(1000, 0.6, 0.3), load(1010, 0.2, 0.3))), Bound::Beyond);
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
