//! Runs the jobs: those between two stonewalls form a stage and run in parallel.
//!
//! All checks come before the first I/O of a stage: this thread opens the targets and makes the queue
//! pairs, then the threads of the stage start together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlfs::dataset::Image;
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::Cpus;

use crate::engine::Targets;
use crate::engine::target::names;
use crate::options::Job;
use crate::options::command_line::Request;
use crate::output::Writer;
use crate::samples;
use crate::signals::Signals;
use crate::worker::{Outcome, Shared, Snapshot, Worker, setup};

/// One thread's job.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) job: Arc<Job>,
    /// Index of the job in the order of the files, and number of the clone.
    pub(crate) index: usize,
    pub(crate) number: u64,
    /// Number among all threads of the run, from 1.
    pub(crate) thread: usize,
    /// Reporting group, and stage between two stonewalls.
    pub(crate) group: usize,
    pub(crate) stage: usize,
}

/// A task and its outcome.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) task: Task,
    pub(crate) outcome: Outcome,
    /// Seconds of the run that had passed at its end.
    pub(crate) elapsed_s: u64,
}

/// The tasks of a request, checked as far as they can be without a target.
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
        let threads = tasks.len() as u64 + job.numjobs;
        let most = request.run.max_jobs;
        if threads > most {
            return Err(format!("{threads} threads are asked for, --max-jobs is {most}"));
        }
        let shared = Arc::new(job.clone());
        for number in 0..job.numjobs {
            let job = Arc::clone(&shared);
            let thread = tasks.len() + 1;
            let task = Task { job, index, number, thread, group, stage };
            cpus_of(&task).map_err(wrong)?;
            tasks.push(task);
        }
    }
    Ok(tasks)
}

fn check(job: &Job, request: &Request) -> Result<(), String> {
    if job.pattern.writes && (request.run.readonly || job.read_only) {
        return Err(format!("rw={} writes, and readonly was asked for", job.rw));
    }
    if names(job, 0).is_empty() && !job.engine.needs_no_target() {
        return Err("no target: filename= (or directory=) is missing".to_owned());
    }
    if job.time_based && job.runtime_us.is_none() {
        return Err("time_based needs runtime=".to_owned());
    }
    Ok(())
}

/// Runs all tasks; `writer` shows their progress.
///
/// # Errors
/// Errors of targets, found before their stage starts. I/O errors are in the outcomes.
pub(crate) fn run(
    request: &Request,
    tasks: &[Task],
    signals: &Signals,
    writer: &mut Writer,
) -> Result<Vec<Finished>, String> {
    let mut manager = Manager {
        epoch: Instant::now(),
        targets: Targets::for_jobs(&request.jobs),
        running: Vec::new(),
        finished: Vec::new(),
        reports: channel(),
    };
    let stages = tasks.last().map_or(0, |task| task.stage + 1);
    for stage in 0..stages {
        if signals.stop() {
            break;
        }
        manager.start(tasks.iter().filter(|task| task.stage == stage))?;
        while !manager.running.is_empty() {
            manager.wait(signals, writer)?;
        }
    }
    manager.finished.sort_by_key(|finished| finished.task.thread);
    Ok(manager.finished)
}

struct Manager {
    epoch: Instant,
    targets: Targets,
    running: Vec<Running>,
    finished: Vec<Finished>,
    reports: (Sender<Report>, Receiver<Report>),
}

/// A running thread.
pub(crate) struct Running {
    pub(crate) task: Task,
    pub(crate) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The number of a thread, and its outcome.
type Report = (usize, Outcome);

type Work = Box<dyn FnOnce() -> Outcome + Send>;

impl Manager {
    /// Sets up all that `tasks` need, then starts them together.
    fn start<'a>(&mut self, tasks: impl Iterator<Item = &'a Task>) -> Result<(), String> {
        let tasks: Vec<&Task> = tasks.collect();
        let gate = Arc::new(Barrier::new(tasks.len()));
        let mut images = HashMap::new();
        let mut works: Vec<(Task, Arc<Shared>, Work)> = Vec::new();
        for task in tasks {
            let job = Arc::clone(&task.job);
            let wrong = |what: String| format!("{} ({}): {what}", job.name, job.origin);
            let shared = Arc::new(Shared::default());
            let work = self.work(task, &shared, &gate, &mut images).map_err(wrong)?;
            works.push((task.clone(), shared, work));
        }
        for (task, shared, work) in works {
            let sender = self.reports.0.clone();
            let thread = task.thread;
            let seen = Arc::clone(&shared);
            let body = move || {
                let outcome = work();
                shared.ended.store(true, Ordering::Relaxed);
                // Cannot fail: the manager waits for every thread.
                let _ = sender.send((thread, outcome));
            };
            let builder = std::thread::Builder::new().name(format!("bench-{thread}"));
            let spawned = builder.spawn(body);
            let spawned = spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
            self.running.push(Running { task, shared: seen, thread: Some(spawned) });
        }
        Ok(())
    }

    /// The work of the thread of `task`; the clones of a job share its data set in `images`.
    fn work(
        &mut self,
        task: &Task,
        shared: &Arc<Shared>,
        gate: &Arc<Barrier>,
        images: &mut HashMap<usize, Image>,
    ) -> Result<Work, String> {
        let job = Arc::clone(&task.job);
        let shared = Arc::clone(shared);
        let epoch = self.epoch;
        let number = task.number;
        let gate = Arc::clone(gate);
        let cpus = cpus_of(task)?;
        let seed = setup::seed_of(&job, task.index as u64, number);
        let delay = Duration::from_micros(job.startdelay_us);
        let begin = move |stop: &AtomicBool| {
            pin(cpus.as_ref());
            gate.wait();
            sleep(delay, stop);
        };
        if job.pattern.samples {
            let cpus = cpus_of(task)?;
            let options = LoaderOptions { cpus, ..samples::loader_options(&job, number)? };
            let image = match images.entry(task.index) {
                Entry::Occupied(known) => known.get().clone(),
                Entry::Vacant(free) => free.insert(samples::open(&job)?).clone(),
            };
            return Ok(Box::new(move || {
                samples::run(&job, &image, options, &shared, epoch, || begin(&shared.stop))
            }));
        }
        let targets = self.targets.open(&job, number)?;
        let lanes = setup::lanes(&job, number, &targets, seed)?;
        let worker = Worker::new(Arc::clone(&job), Arc::clone(&shared), lanes, epoch)?;
        Ok(Box::new(move || {
            let outcome = worker.run(|| begin(&shared.stop));
            if job.unlink {
                for path in targets.iter().filter_map(|target| target.path.as_ref()) {
                    let _ = std::fs::remove_file(path); // another clone may have removed it
                }
            }
            outcome
        }))
    }

    /// Waits for a tick, or until a thread has ended.
    fn wait(&mut self, signals: &Signals, writer: &mut Writer) -> Result<(), String> {
        match self.reports.1.recv_timeout(TICK) {
            Ok((thread, outcome)) => self.ended(thread, outcome),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                self.check_threads()?;
            }
        }
        if signals.stop() {
            self.running.iter().for_each(stop);
        }
        writer.eta(&self.running, self.epoch);
        if (signals.take_interim() || writer.status_is_due()) && !self.running.is_empty() {
            let interim = self.snapshots();
            writer.interim(&self.finished, interim)?;
        }
        Ok(())
    }

    /// A thread that panicked sends no report; its message is on standard error.
    fn check_threads(&mut self) -> Result<(), String> {
        for running in &mut self.running {
            let ended = running.thread.as_ref().is_some_and(JoinHandle::is_finished);
            if let Some(thread) = running.thread.take_if(|_| ended)
                && thread.join().is_err()
            {
                return Err(format!(
                    "{}: its thread failed, which is a bug",
                    running.task.job.name
                ));
            }
        }
        Ok(())
    }

    fn ended(&mut self, thread: usize, outcome: Outcome) {
        let at = self.running.iter().position(|running| running.task.thread == thread);
        let running = self.running.swap_remove(at.expect("each thread ends once"));
        if running.task.job.exitall {
            self.running.iter().for_each(stop);
        }
        let elapsed_s = self.epoch.elapsed().as_secs_f64().ceil() as u64;
        self.finished.push(Finished { task: running.task, outcome, elapsed_s });
    }

    /// The figures so far of the running jobs: requests them, and waits for them at most [`SNAPSHOT_WAIT`].
    fn snapshots(&self) -> Vec<(Task, Snapshot)> {
        for running in &self.running {
            running.shared.want_snapshot.store(true, Ordering::Relaxed);
        }
        let until = Instant::now() + SNAPSHOT_WAIT;
        let owes = |running: &Running| {
            running.shared.want_snapshot.load(Ordering::Acquire)
                && !running.shared.ended.load(Ordering::Relaxed)
        };
        while Instant::now() < until && self.running.iter().any(owes) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let taken = self.running.iter().filter_map(|running| {
            let mut snapshot =
                running.shared.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
            Some((running.task.clone(), *snapshot.take()?))
        });
        taken.collect()
    }
}

fn stop(running: &Running) {
    running.shared.stop.store(true, Ordering::Relaxed);
}

fn sleep(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        match until.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => std::thread::sleep(left.min(TICK)),
            _ => return,
        }
    }
}

/// The processors for the threads of `task`.
fn cpus_of(task: &Task) -> Result<Option<Cpus>, String> {
    let Some(list) = &task.job.cpus_allowed else { return Ok(None) };
    let cpus = Cpus::parse(list).map_err(|error| format!("cpus_allowed: {}", error.report()))?;
    let split = task.job.cpus_split;
    Ok(Some(if split { cpus.nth(task.number as usize) } else { cpus }))
}

/// The processors were checked before. If they are gone by now, the thread warns and runs elsewhere.
fn pin(cpus: Option<&Cpus>) {
    if let Some(Err(error)) = cpus.map(Cpus::bind_this_thread) {
        eprintln!("dlfs-bench: {}", error.report());
    }
}

const TICK: Duration = Duration::from_millis(20);
/// A thread answers at its next turn, which may be late on a busy machine or while it waits for a batch.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(2);
