//! Runs the jobs: those between two stonewalls form a stage and run in parallel.
//!
//! The thread that calls [`run`] opens the targets and data sets of a stage, checks its jobs against them, and makes
//! the queue pairs of block jobs. Then the threads of the stage start together. SIGINT and SIGTERM end the run with
//! the figures so far; a second signal ends the process at once.

use std::collections::{HashMap, hash_map};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use dlfs::dataset::Image;
use dlfs::qpair::Cpus;

use crate::engine::{Targets, check_name, name_of};
use crate::job::{Engine, Job, Pattern, value_name};
use crate::output::Entry;
use crate::request::{MAX_JOBS, POINTER, Request};
use crate::samples::{loader_options, open_image, run_samples};
use crate::stats::Stats;
use crate::worker::{self, Worker};

/// One thread's job.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) job: Arc<Job>,
    /// The index of the job in the order of the files.
    pub(crate) index: usize,
    /// The number of the clone of the job, from 0.
    pub(crate) number: u64,
    /// The number among all threads of the run, from 1.
    thread: usize,
    /// The reporting group.
    pub(crate) group: usize,
    /// The stage between two stonewalls.
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

/// Checks a job as far as possible without its target.
fn check(job: &Job, request: &Request) -> Result<(), String> {
    if job.rw.writes() && request.run.readonly {
        return Err(format!("rw={} writes, and readonly was asked for", value_name(job.rw)));
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

/// Runs all tasks until they end, or until `stop` is set; then no further stage begins. Appends the figures of the
/// tasks that ran to `entries`, in the same order; those of the stages before an error too.
///
/// # Errors
/// Errors of targets, found before their stage starts; a thread that cannot start or that panicked. I/O errors are in
/// the figures.
pub(crate) fn run(
    request: &Request,
    tasks: &[Task],
    stop: &Arc<AtomicBool>,
    entries: &mut Vec<Entry>,
) -> Result<(), String> {
    let mut setup = Setup {
        run_start: Instant::now(),
        targets: Targets::for_jobs(&request.jobs),
        images: HashMap::new(),
        stop: Arc::clone(stop),
    };
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
            let stats = thread.join().map_err(failed)?;
            entries.push(Entry { job: Arc::clone(&task.job), group: task.group, jobs: 1, stats });
        }
    }
    Ok(())
}

/// The work of one thread.
type Work = Box<dyn FnOnce() -> Stats + Send>;

/// Resources that tasks share.
struct Setup {
    run_start: Instant,
    targets: Targets,
    /// The data set of each job with `rw=samples` so far, by the job's index. The job's clones share it.
    images: HashMap<usize, Image>,
    stop: Arc<AtomicBool>,
}

impl Setup {
    /// The work of the thread of `task`. It begins when all threads of the stage have reached the gate.
    fn work(&mut self, task: &Task, gate: &Arc<Barrier>) -> Result<Work, String> {
        let wrong = |what: String| format!("{} ({}): {what}", task.job.name, task.job.origin);
        let job = Arc::clone(&task.job);
        let stop = Arc::clone(&self.stop);
        let run_start = self.run_start;
        let gate = Arc::clone(gate);
        let cpus = cpus_of(&job).map_err(wrong)?;
        let cpus_of_thread = cpus.clone();
        let begin = move || {
            // The list was checked before. If a processor has since gone offline, the thread runs elsewhere.
            if let Some(Err(error)) = cpus_of_thread.as_ref().map(Cpus::bind_this_thread) {
                crate::complain(&error.report());
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
                run_samples(&job, &image, options, &stop, run_start)
            })
        } else {
            let target = self.targets.open(&job, task.number).map_err(wrong)?;
            let seed = worker::seed_of(&job, task.index as u64, task.number);
            let worker =
                Worker::new(job, task.number, seed, &target, stop, run_start).map_err(wrong)?;
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
        // Without a handler, a write past the limit of file size would end this process instead of failing with EFBIG.
        flag::register(SIGXFSZ, Arc::default())
    };
    register().map_err(|error| format!("cannot catch signals: {error}"))?;
    Ok(stop)
}
