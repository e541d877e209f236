//! Measures a namespace by reading it: round trip, bandwidth of one and of four queue pairs, and small reads.
//!
//! A thread sleeps while none of its reads can advance, so its CPU time shows whether it was the bottleneck. `bound.rs`
//! concludes from the measurements.

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
pub(super) struct LoadPlan {
    /// Queue pairs, each polled by a thread.
    pub(super) pairs: usize,
    /// Bytes of a read.
    pub(super) io_bytes: u64,
    /// Reads outstanding on each queue pair.
    pub(super) depth: usize,
}

/// The result of one measurement.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// The plan within the limits of the namespace on transfers and queues.
    pub(super) plan: LoadPlan,
    pub(super) reads: u64,
    /// The elapsed time, until the last thread has ended.
    pub(super) time: Duration,
    /// The share of the time that our busiest thread ran, from 0 to 1.
    pub(super) busy: f64,
    /// The largest share of the time in which a thread of ours ran or waited for a processor, from 0 to 1.
    pub(super) runnable: f64,
    /// The share of the time that all processors of this machine ran, on average; `None` without
    /// `/proc/stat`.
    pub(super) machine_busy: Option<f64>,
    /// Percentiles of the time from submission to completion of a read.
    pub(super) median: Duration,
    pub(super) p99: Duration,
}

impl Load {
    pub(super) fn reads_per_s(&self) -> f64 {
        out::per_second(self.reads, self.time)
    }

    pub(super) fn bytes_per_s(&self) -> f64 {
        self.reads_per_s() * self.plan.io_bytes as f64
    }

    fn finding(&self, check: &'static str) -> Finding {
        let LoadPlan { pairs, io_bytes, depth } = self.plan;
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
    /// One read of a block at a time.
    pub(super) single: Load,
    /// Large reads on one queue pair.
    pub(super) one: Load,
    /// Large reads on four queue pairs.
    pub(super) four: Load,
    /// Reads of 4 KiB on one queue pair.
    pub(super) small: Load,
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
    let run = |pairs, io_bytes, depth| run(device, LoadPlan { pairs, io_bytes, depth }, slice);
    Ok(Loads {
        single: run(1, block, 1)?,
        one: run(1, 128 << 10, 32)?,
        four: run(4, 128 << 10, 32)?,
        small: run(1, 4096, 128)?,
    })
}

/// The result of one thread of a measurement.
struct ThreadLoad {
    reads: u64,
    /// The shares of the time that the thread ran, and that it ran or waited for a processor; from 0 to 1.
    busy: f64,
    runnable: f64,
    latency_ns: Histogram<u64>,
}

/// Carries out a plan for the time `slice`.
fn run(device: &Arc<dyn Device>, plan: LoadPlan, slice: Duration) -> Result<Load> {
    let namespace = device.namespace();
    let block = u64::from(namespace.block_len_bytes);
    let most = u64::from(namespace.max_transfer_bytes).min(namespace.len_bytes());
    let io_bytes = plan.io_bytes.min(most) / block * block;
    if io_bytes == 0 {
        let text = format!("{} is empty: there is nothing to read", namespace.address);
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let plan = LoadPlan { io_bytes, depth: plan.depth.min(namespace.queue_depth.into()), ..plan };
    let ticks = processor_ticks();
    let began = Instant::now();
    let ran = std::thread::scope(|scope| -> Result<Vec<ThreadLoad>> {
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
        runnable: ran.iter().map(|one| one.runnable).fold(0.0, f64::max),
        machine_busy: ticks.zip(processor_ticks()).and_then(busy_between),
        median: Duration::from_nanos(latency_ns.value_at_quantile(0.5)),
        p99: Duration::from_nanos(latency_ns.value_at_quantile(0.99)),
    })
}

/// Reads on one queue pair, the `index`th, for the time `slice`.
fn run_pair(
    device: &Arc<dyn Device>,
    plan: LoadPlan,
    index: usize,
    slice: Duration,
) -> Result<ThreadLoad> {
    let mut group = PollGroup::new()?;
    let pair = group.add(device.queue_pair()?);
    let namespace = device.namespace();
    let blocks = plan.io_bytes / u64::from(namespace.block_len_bytes);
    // All positions in an order without a pattern; each queue pair begins at another one.
    let count = (namespace.num_blocks / blocks).max(1);
    let order = Permutation::new(count, Key::derive(0, &[]));
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
    let delay = thread_delay();
    let until = began + slice;
    loop {
        let mut now = Instant::now();
        if now < until || reads == 0 {
            while let (Some(tag), Some(buf)) = (free.pop(), bufs.pop()) {
                at[tag] = Lba(order.forward(next) * blocks);
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
            group.wait(Instant::now() + MAX_SLEEP);
        }
    }
    let time = began.elapsed().as_secs_f64().max(1e-9);
    let busy = ((thread_cpu() - cpu) / time).clamp(0.0, 1.0);
    let runnable = (busy + (thread_delay() - delay) / time).clamp(0.0, 1.0);
    Ok(ThreadLoad { reads, busy, runnable, latency_ns })
}

/// A buffer that is already faulted in, so that page faults are not measured.
fn faulted_in(bytes: u64) -> IoBuf {
    let mut buf = IoBuf::zeroed(bytes as usize); // at most the length of a transfer
    buf.fill(0xA5);
    buf
}

/// A histogram of nanoseconds up to an hour.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("these bounds are valid")
}

/// The CPU time of this thread, in seconds.
fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The time in which this thread waited for a processor, in seconds; 0 if the kernel does not count it.
fn thread_delay() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let delay_ns = stat.split_ascii_whitespace().nth(1).and_then(|field| field.parse().ok());
    delay_ns.unwrap_or(0.0) / 1e9
}

/// Ticks of all processors since the machine started: those in which they were busy, and all.
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

/// The busy share between two readings of [`processor_ticks`].
fn busy_between((before, after): ((u64, u64), (u64, u64))) -> Option<f64> {
    let all = after.1.checked_sub(before.1).filter(|&all| all > 0)?;
    Some(after.0.saturating_sub(before.0) as f64 / all as f64)
}

/// The longest wait for a completion before the queue pair is polled again.
const MAX_SLEEP: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dlfs::qpair::mem::MemNamespace;

    use super::*;

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
}
