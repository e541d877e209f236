//! Jobs with `rw=samples`, which read a data set like a training job; block jobs cannot represent that.
//!
//! Such a job requests a batch, waits for it, and then "computes" for a given time by sleeping, as an accelerator would
//! leave the processor idle. The library verifies every sample.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;

use dlfs::dataset::{Image, OpenOptions};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, Tail};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::Cpus;
use dlfs::reader::Batch;

use crate::engine::{address_of, connect_options, name_of};
use crate::job::{Job, Order};
use crate::stats::{CpuUse, RATE_INTERVAL, Stats, ratio};

/// The measurements of a sample job that a block job lacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct SampleFigures {
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    pub(crate) batches: u64,
    /// Complete epochs; of several jobs, the most.
    pub(crate) epochs: u64,
    /// The run time; of several jobs, the longest.
    pub(crate) seconds: f64,
    /// Time from the start of the job to its first batch; of several jobs, the longest.
    pub(crate) first_batch_ms: f64,
    /// Time waiting for batches.
    pub(crate) stall_s: f64,
    /// Emulated compute time.
    pub(crate) compute_s: f64,
    /// Accelerators that computed in parallel.
    pub(crate) accelerators: u64,
    /// CPU time of the whole process, including readahead threads.
    cpu_s: f64,
    /// Read commands for the samples.
    pub(crate) commands: u64,
    /// Bytes that these commands have read.
    pub(crate) read_bytes: u64,
    /// Samples whose CRC32C was verified: all delivered samples.
    pub(crate) verified: u64,
}

impl SampleFigures {
    /// Accelerator utilisation in percent, as MLPerf Storage defines it: compute time over run
    /// time.
    pub(crate) fn utilisation(&self) -> f64 {
        100.0 * ratio(self.compute_s, self.seconds * self.accelerators as f64)
    }

    pub(crate) fn samples_per_s(&self) -> f64 {
        ratio(self.samples as f64, self.seconds)
    }

    pub(crate) fn batches_per_s(&self) -> f64 {
        ratio(self.batches as f64, self.seconds)
    }

    /// CPU seconds per 10^9 bytes of samples.
    pub(crate) fn cpu_s_per_gb(&self) -> f64 {
        ratio(self.cpu_s, self.bytes as f64 / 1e9)
    }

    /// CPU seconds per million samples.
    pub(crate) fn cpu_s_per_million(&self) -> f64 {
        ratio(self.cpu_s, self.samples as f64 / 1e6)
    }

    /// Adds a concurrent job of the same process, whose CPU time is the same.
    pub(crate) fn add(&mut self, other: &SampleFigures) {
        self.samples += other.samples;
        self.bytes += other.bytes;
        self.batches += other.batches;
        self.epochs = self.epochs.max(other.epochs);
        self.seconds = self.seconds.max(other.seconds);
        self.first_batch_ms = self.first_batch_ms.max(other.first_batch_ms);
        self.stall_s += other.stall_s;
        self.compute_s += other.compute_s;
        self.accelerators += other.accelerators;
        self.cpu_s = self.cpu_s.max(other.cpu_s);
        self.commands += other.commands;
        self.read_bytes += other.read_bytes;
        self.verified += other.verified;
    }
}

/// Opens the data set of a job; commas separate the addresses of several namespaces.
///
/// # Errors
/// Neither `filename=` nor `directory=` is given; an address or an option of the connection is invalid. Errors of the
/// library.
pub(crate) fn open_image(job: &Job) -> Result<Image, String> {
    let list = job.filename.as_deref().map_or_else(Vec::new, |list| list.split(',').collect());
    let of_folder = |name: &str| {
        let mut one = job.clone();
        one.filename = Some(name.to_owned());
        name_of(&one, 0)
    };
    let mut names: Vec<String> = list.into_iter().filter_map(of_folder).collect();
    if names.is_empty() {
        names.push(name_of(job, 0).ok_or("no data set: filename= is missing")?);
    }
    let addresses: Result<Vec<_>, _> = names.iter().map(|name| address_of(job, name)).collect();
    let options = OpenOptions { connect: connect_options(job, false)?, ..OpenOptions::default() };
    Image::open(&addresses?, &options).map_err(|error| error.report())
}

/// The library's options for the `number`th clone of a job.
///
/// # Errors
/// An option that is out of range or contradicts another.
pub(crate) fn loader_options(
    job: &Job,
    number: u64,
    cpus: Option<Cpus>,
) -> Result<LoaderOptions, String> {
    let samples = &job.samples;
    let world_size = samples.world_size.max(u32::try_from(job.numjobs).unwrap_or(1));
    let rank = samples.rank.saturating_add(number as u32);
    if rank >= world_size {
        return Err(format!("rank {rank} of world_size {world_size}: ranks count from 0"));
    }
    let kind = match samples.order {
        Order::Sequential => OrderKind::Sequential { by: SequentialBy::Id },
        Order::Grouped => OrderKind::Grouped { lanes: samples.lanes, group: samples.group },
        Order::Local => OrderKind::Local { world_size },
        Order::Partial => OrderKind::Partial { q: samples.exchange, world_size },
        Order::Global => OrderKind::Global,
    };
    let order = OrderSpec { kind, seed: job.randseed.unwrap_or(0) }.started(world_size);
    order.check().map_err(|error| error.to_string())?;
    let epochs = if job.time_based { u32::MAX } else { samples.epochs };
    let window_bytes = samples.prefetch_window.max(1);
    Ok(LoaderOptions {
        rank,
        world_size,
        tail: if samples.drop_last { Tail::DropLast } else { Tail::Keep },
        window_bytes: usize::try_from(window_bytes).map_err(|_| "the window is too large")?,
        busy_poll: job.busy_poll,
        cpus,
        ..LoaderOptions::new(order, samples.batch_size as usize, epochs.into())
    })
}

/// Runs one sample job to its end. `run_start` is the start of the run of all jobs. After an error, the figures contain
/// no epochs, commands and bytes read.
pub(crate) fn run_samples(
    job: &Job,
    image: &Image,
    options: LoaderOptions,
    stop: &AtomicBool,
    run_start: Instant,
) -> Stats {
    let begin = Instant::now();
    let cpu = CpuUse::of_thread();
    let process_cpu = CpuUse::of_process();
    let mut stats = Stats::default();
    let mut figures = SampleFigures { accelerators: 1, ..SampleFigures::default() };
    let reads = &mut stats.directions[READS];
    let read = || {
        let end = job.runtime.map(|time| begin + time);
        let compute = job.samples.thinktime;
        let mut loader = image.prefetcher(options)?;
        let mut batch = Batch::new();
        let mut rates_at = begin;
        let mut totals = (0, 0); // I/Os and bytes at `rates_at`
        loop {
            let asked = Instant::now();
            if !loader.next_into(&mut batch)? {
                break;
            }
            let came = Instant::now();
            let waited = came - asked;
            if figures.batches == 0 {
                figures.first_batch_ms = (came - begin).as_secs_f64() * 1e3;
            }
            figures.batches += 1;
            figures.samples += batch.len() as u64;
            figures.stall_s += waited.as_secs_f64();
            reads.ios += 1;
            reads.bytes += batch.len_bytes();
            reads.clat.count(waited.as_nanos() as u64);
            reads.lat.count(waited.as_nanos() as u64);
            if came - rates_at >= RATE_INTERVAL {
                reads.append_rates(totals, (came - rates_at).as_secs_f64());
                rates_at = came;
                totals = (reads.ios, reads.bytes);
            }
            if !compute.is_zero() {
                std::thread::sleep(compute);
                figures.compute_s += compute.as_secs_f64();
            }
            let over = end.is_some_and(|end| Instant::now() >= end);
            if over || stop.load(Ordering::Relaxed) {
                break;
            }
        }
        let loader_stats = loader.stats();
        figures.epochs = loader.state().epoch.0;
        figures.commands = loader_stats.read.commands;
        figures.read_bytes = loader_stats.read.bytes;
        dlfs::Result::Ok(())
    };
    if let Err(error) = read() {
        stats.failed(errno_of(&error), || error.report());
    }
    let time = begin.elapsed();
    figures.bytes = stats.directions[READS].bytes;
    figures.verified = figures.samples;
    figures.seconds = time.as_secs_f64();
    figures.cpu_s = CpuUse::of_process().since(process_cpu).total_s;
    stats.cpu = CpuUse::of_thread().since(cpu);
    stats.verified = figures.verified;
    stats.set_runtime((time.as_millis() as u64).max(1));
    stats.counts_after_ms = (begin - run_start).as_millis() as u64;
    stats.samples = Some(figures);
    stats.ended(run_start.elapsed());
    stats
}

/// The errno that fio would show for this error.
fn errno_of(error: &dlfs::Error) -> i32 {
    match error.kind() {
        dlfs::ErrorKind::Corrupt => libc::EILSEQ,
        dlfs::ErrorKind::Disconnected => libc::ENOTCONN,
        dlfs::ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => libc::EIO,
    }
}

/// Index of the reads among the directions; a sample job writes nothing.
const READS: usize = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::job_of_options;

    #[test]
    fn utilisation_is_computing_over_the_whole_time_of_all_accelerators() {
        let mut one = SampleFigures {
            seconds: 10.0,
            compute_s: 9.0,
            accelerators: 1,
            samples: 1000,
            bytes: 2_000_000_000,
            cpu_s: 4.0,
            ..SampleFigures::default()
        };
        assert!((one.utilisation() - 90.0).abs() < 1e-9);
        assert!((one.cpu_s_per_gb() - 2.0).abs() < 1e-9);
        let other = SampleFigures { compute_s: 5.0, seconds: 8.0, ..one };
        one.add(&other);
        assert!((one.utilisation() - 70.0).abs() < 1e-9);
        assert!((one.samples_per_s() - 200.0).abs() < 1e-9);
    }

    #[test]
    fn equal_jobs_are_the_ranks_of_one_world() {
        let options =
            |job: &[(&str, &str)], number| loader_options(&job_of_options(job), number, None);
        let four = [("numjobs", "4")];
        let last = options(&four, 3).unwrap();
        assert_eq!((last.rank, last.world_size), (3, 4));
        assert!(options(&four, 4).unwrap_err().contains("ranks count from 0"));
        let most = [("numjobs", "4"), ("rank", "4294967294"), ("world_size", "4294967295")];
        assert!(options(&most, 3).unwrap_err().contains("ranks count from 0"));
    }
}
