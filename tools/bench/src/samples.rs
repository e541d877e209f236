//! `rw=samples`: reads a data set like a training job, which block jobs cannot represent.
//!
//! Each batch is requested, awaited, and then computed on for a given time (by sleeping, as an
//! accelerator would leave the processor idle). The library verifies every sample.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dlfs::dataset::{Image, OpenOptions};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, Tail};
use dlfs::prefetch::{Batching, LoaderOptions};
use dlfs::reader::Batch;

use crate::engine::target::{address_of, connect_options, split_names};
use crate::options::Job;
use crate::stats::cpu::CpuClock;
use crate::stats::{PercentileOptions, Stats};
use crate::worker::{Outcome, Shared};

/// The measurements of a sample job beside those of a block job.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct SampleFigures {
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    pub(crate) batches: u64,
    pub(crate) epochs: u64,
    pub(crate) seconds: f64,
    /// From opening the loader to the first batch.
    pub(crate) first_batch_s: f64,
    /// Time waiting for batches.
    pub(crate) stall_s: f64,
    /// Emulated compute time.
    pub(crate) compute_s: f64,
    /// Accelerators that computed in parallel.
    pub(crate) accelerators: u64,
    /// CPU time of the whole process, including readahead threads.
    pub(crate) cpu_s: f64,
    /// Commands and bytes read for the samples.
    pub(crate) commands: u64,
    pub(crate) read_bytes: u64,
    /// Samples whose CRC32C was verified: all that were delivered.
    pub(crate) verified: u64,
}

impl SampleFigures {
    /// Accelerator utilisation in percent, as MLPerf Storage defines it: compute time over run
    /// time.
    pub(crate) fn utilisation(&self) -> f64 {
        let available = self.seconds * self.accelerators as f64;
        if available > 0.0 { 100.0 * self.compute_s / available } else { 0.0 }
    }

    pub(crate) fn samples_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.samples as f64 / self.seconds } else { 0.0 }
    }

    pub(crate) fn batches_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.batches as f64 / self.seconds } else { 0.0 }
    }

    /// CPU seconds per 10^9 bytes of samples.
    pub(crate) fn cpu_s_per_gb(&self) -> f64 {
        if self.bytes > 0 { self.cpu_s / (self.bytes as f64 / 1e9) } else { 0.0 }
    }

    /// CPU seconds per million samples.
    pub(crate) fn cpu_s_per_million(&self) -> f64 {
        if self.samples > 0 { self.cpu_s / (self.samples as f64 / 1e6) } else { 0.0 }
    }

    /// Adds a concurrent job of the same process, whose CPU time is the same.
    pub(crate) fn add(&mut self, other: &SampleFigures) {
        self.samples += other.samples;
        self.bytes += other.bytes;
        self.batches += other.batches;
        self.epochs = self.epochs.max(other.epochs);
        self.seconds = self.seconds.max(other.seconds);
        self.first_batch_s = self.first_batch_s.max(other.first_batch_s);
        self.stall_s += other.stall_s;
        self.compute_s += other.compute_s;
        self.accelerators += other.accelerators;
        self.cpu_s = self.cpu_s.max(other.cpu_s);
        self.commands += other.commands;
        self.read_bytes += other.read_bytes;
        self.verified += other.verified;
    }
}

/// Opens the data set of a job.
///
/// # Errors
/// Those of the library.
pub(crate) fn open(job: &Job) -> Result<Image, String> {
    let text = job.filename.as_deref().ok_or("no data set: filename= is missing")?;
    let names: Vec<String> = split_names(text)
        .iter()
        .flat_map(|name| name.split(',').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let addresses =
        names.iter().map(|name| address_of(job, name)).collect::<Result<Vec<_>, _>>()?;
    let options = OpenOptions { connect: connect_options(job, false)?, ..OpenOptions::default() };
    Image::open(&addresses, &options).map_err(|error| error.report())
}

/// The library's options for the `number`th clone of a job.
///
/// # Errors
/// An option that is out of range or contradicts another.
pub(crate) fn loader_options(job: &Job, number: u64) -> Result<LoaderOptions, String> {
    let samples = &job.samples;
    let world_size = samples.world_size.max(u32::try_from(job.numjobs).unwrap_or(1));
    let rank = samples.rank.saturating_add(number as u32);
    if rank >= world_size {
        return Err(format!("rank {rank} of world_size {world_size}: ranks count from 0"));
    }
    let kind = match samples.order.as_str() {
        "sequential" => OrderKind::Sequential { by: SequentialBy::Id },
        "slot" => OrderKind::Sequential { by: SequentialBy::Slot },
        "grouped" => OrderKind::Grouped { lanes: samples.lanes, group: samples.group },
        "local" => OrderKind::Local { world_size },
        "partial" => OrderKind::Partial { q: samples.exchange, world_size },
        _ => OrderKind::Global,
    };
    let order = OrderSpec { kind, seed: job.randseed.unwrap_or(0) }.started(world_size);
    order.check().map_err(|error| error.to_string())?;
    let endless = job.time_based && job.runtime_us.is_some();
    let epochs = if endless { u64::from(u32::MAX) } else { samples.epochs };
    let window_bytes = usize::try_from(samples.window).map_err(|_| "the window is too large")?;
    Ok(LoaderOptions {
        rank,
        world_size,
        tail: if samples.drop_last { Tail::DropLast } else { Tail::Keep },
        batching: match samples.batching.as_str() {
            "none" => Some(Batching::None),
            "sample" => Some(Batching::Sample),
            "chunk" => Some(Batching::Chunk),
            _ => None,
        },
        window_bytes,
        busy_poll: job.busy_poll,
        ..LoaderOptions::new(order, samples.batch_size as usize, epochs)
    })
}

/// Runs one sample job to its end.
pub(crate) fn run(
    job: &Job,
    image: &Image,
    options: LoaderOptions,
    shared: &Shared,
    epoch: Instant,
    start: impl FnOnce(),
) -> Outcome {
    start();
    let mut run = Run::new(job, shared, epoch);
    let result = run.read(image, options);
    run.finish(result.err())
}

/// A run under way.
#[derive(Clone)]
struct Run<'a> {
    job: &'a Job,
    shared: &'a Shared,
    begin: Instant,
    began_ns: u64,
    cpu: CpuClock,
    process_cpu: CpuClock,
    compute: Duration,
    stats: Stats,
    figures: SampleFigures,
    samples: [u64; 2],
    sampled: Instant,
}

impl Run<'_> {
    fn new<'a>(job: &'a Job, shared: &'a Shared, epoch: Instant) -> Run<'a> {
        let begin = Instant::now();
        let began_ns = begin.duration_since(epoch).as_nanos() as u64;
        shared.began_ns.store(began_ns + 1, Ordering::Relaxed);
        let compute_us = job.samples.accelerator_time_us.max(job.thinktime_us);
        Run {
            job,
            shared,
            begin,
            began_ns,
            cpu: CpuClock::of_thread(),
            process_cpu: CpuClock::of_process(),
            compute: Duration::from_micros(compute_us),
            stats: Stats::new(PercentileOptions { slat: false, lat: job.lat_percentiles }),
            figures: SampleFigures { accelerators: 1, ..SampleFigures::default() },
            samples: [0; 2],
            sampled: begin,
        }
    }

    fn read(&mut self, image: &Image, options: LoaderOptions) -> Result<(), dlfs::Error> {
        let end = self.job.runtime_us.map(|us| self.begin + Duration::from_micros(us));
        let mut loader = image.prefetcher(options)?;
        let mut batch = Batch::new();
        loop {
            let asked = Instant::now();
            if !loader.next_into(&mut batch)? {
                break;
            }
            let came = Instant::now();
            self.took(&batch, came - asked, came);
            if !self.compute.is_zero() {
                std::thread::sleep(self.compute);
                self.figures.compute_s += self.compute.as_secs_f64();
            }
            let over = end.is_some_and(|end| Instant::now() >= end);
            if over || self.shared.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        let stats = loader.stats();
        self.figures.epochs = loader.state().epoch.0;
        (self.figures.commands, self.figures.read_bytes) = (stats.read.commands, stats.read.bytes);
        Ok(())
    }

    fn took(&mut self, batch: &Batch, waited: Duration, now: Instant) {
        let bytes = batch.len_bytes();
        let figures = &mut self.figures;
        if figures.batches == 0 {
            figures.first_batch_s = (now - self.begin).as_secs_f64();
        }
        figures.batches += 1;
        figures.samples += batch.len() as u64;
        figures.verified += batch.len() as u64;
        figures.bytes += bytes;
        figures.stall_s += waited.as_secs_f64();
        let reads = &mut self.stats.directions[0];
        reads.ios += 1;
        reads.bytes += bytes;
        let waited_ns = waited.as_nanos() as u64;
        reads.clat.record(waited_ns);
        reads.lat.record(waited_ns);
        let passed = now - self.sampled;
        if passed >= Duration::from_millis(self.job.bwavgtime_ms) {
            let [ios, moved] = self.samples;
            reads.iops.push((reads.ios - ios) as f64 / passed.as_secs_f64());
            reads.bandwidth.push((reads.bytes - moved) as f64 / 1024.0 / passed.as_secs_f64());
            (self.samples, self.sampled) = ([reads.ios, reads.bytes], now);
        }
        self.shared.ios[0].store(reads.ios, Ordering::Relaxed);
        self.shared.bytes[0].store(reads.bytes, Ordering::Relaxed);
        let shared = self.shared;
        shared.tell(|| {
            let mut so_far = self.clone();
            so_far.count();
            (so_far.stats, Some(so_far.figures))
        });
    }

    /// Updates the figures.
    fn count(&mut self) {
        let time = self.begin.elapsed();
        self.figures.seconds = time.as_secs_f64();
        self.figures.cpu_s = self.process_cpu.used(0.0).total_s();
        self.stats.cpu = self.cpu.used(time.as_secs_f64());
        self.stats.verified = self.figures.verified;
        self.stats.set_runtime((time.as_millis() as u64).max(1));
    }

    fn finish(mut self, error: Option<dlfs::Error>) -> Outcome {
        self.count();
        let errno = error.as_ref().map_or(0, |error| match error.kind() {
            dlfs::ErrorKind::Corrupt => libc::EILSEQ,
            dlfs::ErrorKind::Disconnected => libc::ENOTCONN,
            dlfs::ErrorKind::TimedOut => libc::ETIMEDOUT,
            _ => libc::EIO,
        });
        self.stats.errors = u64::from(error.is_some());
        self.stats.first_error = errno;
        Outcome {
            stats: self.stats,
            logs: Vec::new(),
            error: errno,
            message: error.map(|error| error.report()),
            began_ms: self.began_ns / 1_000_000,
            samples: Some(self.figures),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let job = Job { numjobs: 4, ..Job::default() };
        let options = loader_options(&job, 3).unwrap();
        assert_eq!((options.rank, options.world_size), (3, 4));
        assert!(loader_options(&job, 4).unwrap_err().contains("ranks count from 0"));
        let mut last = job;
        (last.samples.rank, last.samples.world_size) = (u32::MAX - 1, u32::MAX);
        assert!(loader_options(&last, 3).unwrap_err().contains("ranks count from 0"));
    }
}
