//! Runs the jobs: those between two stonewalls form a stage and run in parallel.
//!
//! All checks come before the first I/O of a stage's jobs: this thread opens the targets and data sets, and makes
//! the queue pairs of block jobs. Then the threads of the stage start together. SIGINT and SIGTERM end the run with the
//! figures so far, a second of them ends the process at once.
//!
//! A job with `rw=samples` reads a data set like a training job, which block jobs cannot represent. It requests a
//! batch, waits for it, and then "computes" for a given time by sleeping, as an accelerator would leave the processor
//! idle. The library verifies every sample.

use std::collections::{HashMap, hash_map};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use dlfs::dataset::{Image, OpenOptions};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, Tail};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::Cpus;
use dlfs::reader::Batch;

use crate::engine::{Targets, address_of, check_name, connect_options, name_of};
use crate::job::{Engine, Job, Order, Pattern, word};
use crate::output::Entry;
use crate::request::{MAX_JOBS, POINTER, Request};
use crate::stats::{CpuUse, SAMPLE_INTERVAL, Stats, ratio};
use crate::worker::{self, Worker};

/// One thread's job.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) job: Arc<Job>,
    /// Index of the job in the order of the files, and number of the clone.
    pub(crate) index: usize,
    pub(crate) number: u64,
    /// Number among all threads of the run, from 1.
    thread: usize,
    /// Reporting group, and stage between two stonewalls.
    pub(crate) group: usize,
    stage: usize,
}

/// The tasks of a request, after all checks that need no target.
///
/// # Errors
/// A sentence that names the job.
pub(crate) fn tasks(request: &Request) -> Result<Vec<Task>, String> {
    let mut tasks = Vec::new();
    let mut group = 0;
    let mut stage = 0;
    for (index, job) in request.jobs.iter().enumerate() {
        let wrong = |what: String| format!("{} ({}): {what}", job.name, job.origin);
        check(job, request).map_err(wrong)?;
        if index > 0 && job.stonewall {
            stage += 1;
        }
        if index > 0 && (job.stonewall || job.new_group) {
            group += 1;
        }
        let threads = tasks.len() + job.numjobs as usize;
        if threads > MAX_JOBS {
            return Err(format!("{threads} threads are asked for, more than {MAX_JOBS}"));
        }
        let shared = Arc::new(job.clone());
        for number in 0..job.numjobs {
            let job = Arc::clone(&shared);
            let thread = tasks.len() + 1;
            let task = Task { job, index, number, thread, group, stage };
            tasks.push(task);
        }
    }
    Ok(tasks)
}

fn check(job: &Job, request: &Request) -> Result<(), String> {
    if job.rw.writes() && request.run.readonly {
        return Err(format!("rw={} writes, and readonly was asked for", word(job.rw)));
    }
    if name_of(job, 0).is_none() && job.ioengine != Engine::Null {
        return Err("no target: filename= (or directory=) is missing".to_owned());
    }
    if job.runtime.is_some_and(|time| time.is_zero()) {
        return Err("runtime=0 would measure nothing".to_owned());
    }
    if job.time_based && job.runtime.is_none() {
        return Err("time_based needs runtime=".to_owned());
    }
    if job.rw != Pattern::Samples && !job.samples.thinktime.is_zero() {
        return Err(format!("thinktime= is an option of rw=samples here; {POINTER}"));
    }
    cpus_of(job)?;
    check_name(job)
}

/// Runs all tasks until they end, or until `stop` is set; then no further stage begins. Returns the figures of the
/// tasks that ran, in the same order.
///
/// # Errors
/// Errors of targets, found before their stage starts. I/O errors are in the figures.
pub(crate) fn run(
    request: &Request,
    tasks: &[Task],
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Entry>, String> {
    let mut setup = Setup {
        epoch: Instant::now(),
        targets: Targets::for_jobs(&request.jobs),
        images: HashMap::new(),
        stop: Arc::clone(stop),
    };
    let mut entries = Vec::new();
    for stage in tasks.chunk_by(|one, next| one.stage == next.stage) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let gate = Arc::new(Barrier::new(stage.len()));
        let works: Result<Vec<_>, String> =
            stage.iter().map(|task| Ok((task, setup.work(task, &gate)?))).collect();
        let spawned = works?.into_iter().map(|(task, work)| {
            let builder = std::thread::Builder::new().name(format!("bench-{}", task.thread));
            let thread = builder.spawn(work).map_err(|e| format!("cannot start a thread: {e}"))?;
            Ok((task, thread))
        });
        for (task, thread) in spawned.collect::<Result<Vec<_>, String>>()? {
            let failed = |_| format!("{}: its thread failed, which is a bug", task.job.name);
            entries.push(Entry::new(task, thread.join().map_err(failed)?));
        }
    }
    Ok(entries)
}

type Work = Box<dyn FnOnce() -> Stats + Send>;

/// Resources that tasks share.
struct Setup {
    epoch: Instant,
    targets: Targets,
    /// Data sets by the index of their job, whose clones share them.
    images: HashMap<usize, Image>,
    stop: Arc<AtomicBool>,
}

impl Setup {
    /// The work of the thread of `task`. It begins when all threads of the stage have reached the gate.
    fn work(&mut self, task: &Task, gate: &Arc<Barrier>) -> Result<Work, String> {
        let wrong = |what: String| format!("{} ({}): {what}", task.job.name, task.job.origin);
        let job = Arc::clone(&task.job);
        let stop = Arc::clone(&self.stop);
        let epoch = self.epoch;
        let gate = Arc::clone(gate);
        let cpus = cpus_of(&job).map_err(wrong)?;
        let its_cpus = cpus.clone();
        let begin = move || {
            // They were checked before. If one has since gone offline, the thread runs elsewhere.
            if let Some(Err(error)) = its_cpus.as_ref().map(Cpus::bind_this_thread) {
                eprintln!("dlfs-bench: {}", error.report());
            }
            gate.wait();
        };
        let work: Work = if job.rw == Pattern::Samples {
            let options = loader_options(&job, task.number, cpus).map_err(wrong)?;
            let image = match self.images.entry(task.index) {
                hash_map::Entry::Occupied(known) => known.get().clone(),
                hash_map::Entry::Vacant(free) => {
                    free.insert(open_image(&job).map_err(wrong)?).clone()
                }
            };
            Box::new(move || {
                begin();
                run_samples(&job, &image, options, &stop, epoch)
            })
        } else {
            let target = self.targets.open(&job, task.number).map_err(wrong)?;
            let seed = worker::seed_of(&job, task.index as u64, task.number);
            let worker =
                Worker::new(job, task.number, seed, &target, stop, epoch).map_err(wrong)?;
            Box::new(move || worker.run(begin))
        };
        Ok(work)
    }
}

/// The processors for the threads of `job`.
fn cpus_of(job: &Job) -> Result<Option<Cpus>, String> {
    // A colon separates processors, too.
    let list = job.cpus_allowed.as_ref().map(|list| list.replace(':', ","));
    let cpus = list.map(|list| Cpus::parse(&list)).transpose();
    cpus.map_err(|error| format!("cpus_allowed: {}", error.report()))
}

/// The flag that SIGINT and SIGTERM set.
///
/// # Errors
/// Errors of the operating system when it refuses a handler.
pub(crate) fn catch_signals() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    let register = || {
        for signal in [SIGINT, SIGTERM] {
            // The order matters: at the first signal, the flag must still be unset.
            flag::register_conditional_shutdown(signal, 128, Arc::clone(&stop))?;
            flag::register(signal, Arc::clone(&stop))?;
        }
        // Without a handler, a file that exceeds the size limit would end this process instead of failing
        // with EFBIG.
        flag::register(SIGXFSZ, Arc::default())
    };
    register().map_err(|error| format!("cannot catch signals: {error}"))?;
    Ok(stop)
}

/// The measurements of a sample job that a block job lacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct SampleFigures {
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    pub(crate) batches: u64,
    pub(crate) epochs: u64,
    pub(crate) seconds: f64,
    /// Time from opening the loader to the first batch.
    pub(crate) first_batch_ms: f64,
    /// Time waiting for batches.
    pub(crate) stall_s: f64,
    /// Emulated compute time.
    pub(crate) compute_s: f64,
    /// Accelerators that computed in parallel.
    pub(crate) accelerators: u64,
    /// CPU time of the whole process, including readahead threads.
    cpu_s: f64,
    /// Commands and bytes read for the samples.
    pub(crate) commands: u64,
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
/// Errors of the library.
fn open_image(job: &Job) -> Result<Image, String> {
    let names = name_of(job, 0).ok_or("no data set: filename= is missing")?;
    let addresses: Result<Vec<_>, _> = names.split(',').map(|name| address_of(job, name)).collect();
    let options = OpenOptions { connect: connect_options(job, false)?, ..OpenOptions::default() };
    Image::open(&addresses?, &options).map_err(|error| error.report())
}

/// The library's options for the `number`th clone of a job.
///
/// # Errors
/// An option that is out of range or contradicts another.
fn loader_options(job: &Job, number: u64, cpus: Option<Cpus>) -> Result<LoaderOptions, String> {
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

/// Runs one sample job to its end.
fn run_samples(
    job: &Job,
    image: &Image,
    options: LoaderOptions,
    stop: &AtomicBool,
    epoch: Instant,
) -> Stats {
    let begin = Instant::now();
    let cpu = CpuUse::of_thread();
    let process_cpu = CpuUse::of_process();
    let mut stats = Stats::default();
    let mut figures = SampleFigures { accelerators: 1, ..SampleFigures::default() };
    let reads = &mut stats.directions[0];
    let read = || {
        let end = job.runtime.map(|time| begin + time);
        let compute = job.samples.thinktime;
        let mut loader = image.prefetcher(options)?;
        let mut batch = Batch::new();
        // The time of the last sampling of rates, and the totals then.
        let mut sampled = (begin, (0, 0));
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
            if came - sampled.0 >= SAMPLE_INTERVAL {
                reads.sample(sampled.1, (came - sampled.0).as_secs_f64());
                sampled = (came, (reads.ios, reads.bytes));
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
        let stats = loader.stats();
        figures.epochs = loader.state().epoch.0;
        (figures.commands, figures.read_bytes) = (stats.read.commands, stats.read.bytes);
        dlfs::Result::Ok(())
    };
    if let Err(error) = read() {
        stats.failed(errno_of(&error), || error.report());
    }
    let time = begin.elapsed();
    figures.bytes = stats.directions[0].bytes;
    figures.verified = figures.samples;
    figures.seconds = time.as_secs_f64();
    figures.cpu_s = CpuUse::of_process().since(process_cpu).total_s;
    stats.cpu = CpuUse::of_thread().since(cpu);
    stats.verified = figures.verified;
    stats.set_runtime((time.as_millis() as u64).max(1));
    stats.began_ms = (begin - epoch).as_millis() as u64;
    stats.samples = Some(figures);
    stats.ended(epoch.elapsed());
    stats
}

fn errno_of(error: &dlfs::Error) -> i32 {
    match error.kind() {
        dlfs::ErrorKind::Corrupt => libc::EILSEQ,
        dlfs::ErrorKind::Disconnected => libc::ENOTCONN,
        dlfs::ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => libc::EIO,
    }
}

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
