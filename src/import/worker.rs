//! One thread of a pass: it takes plans, reads their rows, and has their chunks written behind it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam::channel::Sender;
use parking_lot::Mutex;

use crate::format::ChunkHeader;
use crate::import::chunks::{ChunkWriter, Job, Started};
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::patience::{Pause, is_passing};
use crate::import::plan::{ChunkPlan, Planner};
use crate::import::sources::{BadEntry, Source};
use crate::threads::caught;
use crate::{Error, Result};

/// What threads tell the gatherer.
pub(super) enum Event {
    Made {
        plan: ChunkPlan,
        header: ChunkHeader,
        found: bool,
    },
    Bad(Vec<(u64, BadEntry)>),
    Failed(Error),
    /// The thread has made all that it took.
    Ended,
}

/// What all threads share.
pub(super) struct Shared<'a> {
    /// Source, layout and placement.
    pub(super) job: Job<'a>,
    pub(super) source: &'a Source,
    pub(super) media: &'a Media,
    /// The right to write.
    pub(super) lease: &'a Lease,
    /// Whether chunks may be in place already.
    pub(super) look: bool,
    /// Chunks below this number are in place and done with.
    pub(super) skip_chunks: u64,
    pub(super) planner: Mutex<Planner<'a>>,
    /// No more plans: a thread failed, or the caller wants to stop.
    pub(super) stop: AtomicBool,
    /// Only read, for the names of bad rows.
    pub(super) only_check: AtomicBool,
    /// A connection was lost.
    pub(super) disturbed: AtomicBool,
}

/// A chunk that is to be made.
pub(super) struct Task {
    plan: ChunkPlan,
    /// Whether it may be in place already.
    look: bool,
    /// Since it has failed: how long the last pause was.
    pause: Option<Pause>,
}

/// One thread.
pub(super) struct Worker<'p, 'a> {
    shared: &'p Shared<'a>,
    events: Sender<Event>,
    writer: ChunkWriter<'a, (Task, ChunkHeader)>,
    /// What has failed and may do better.
    again: VecDeque<Task>,
}

impl<'p, 'a> Worker<'p, 'a> {
    pub(super) fn new(shared: &'p Shared<'a>, events: Sender<Event>) -> Worker<'p, 'a> {
        let reader = shared.source.reader();
        let writer = ChunkWriter::new(shared.job, reader, shared.media.channel());
        Worker { shared, events, writer, again: VecDeque::new() }
    }

    /// Makes chunks until there are no more plans, or it is told to stop.
    pub(super) fn run(mut self) {
        let made = caught(WHO, || self.make_all()).and_then(|made| made);
        let events = self.events.clone();
        if made.is_err() {
            // The others need not begin what is of no use.
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        // Waits for what is under way, so it may panic as well.
        let dropped = caught(WHO, || drop(self));
        let last = match made.and(dropped) {
            Ok(()) => Event::Ended,
            Err(error) => Event::Failed(error),
        };
        // The gatherer takes events until all threads have ended.
        let _ = events.send(last);
    }

    fn make_all(&mut self) -> Result<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            while let Some(((task, header), ended)) = self.writer.behind().ended() {
                match ended {
                    Ok(()) => {
                        self.shared.media.patience().progressed();
                        self.tell(Event::Made { plan: task.plan, header, found: false });
                    }
                    Err(error) => self.try_again(task, error)?,
                }
            }
            if self.writer.behind().is_full() {
                self.writer.behind().wait();
                continue;
            }
            match self.next_task()? {
                Some(task) => self.start(task)?,
                None if self.writer.behind().is_idle() => return Ok(()),
                None => self.writer.behind().wait(),
            }
        }
        Ok(())
    }

    fn next_task(&mut self) -> Result<Option<Task>> {
        if let Some(task) = self.again.pop_front() {
            return Ok(Some(task));
        }
        loop {
            // The lock is held for the arithmetic alone.
            let plan = self.shared.planner.lock().next_chunk()?;
            match plan {
                Some(plan) if plan.sequence < self.shared.skip_chunks => {}
                Some(plan) => {
                    return Ok(Some(Task { plan, look: self.shared.look, pause: None }));
                }
                None => return Ok(None),
            }
        }
    }

    fn start(&mut self, task: Task) -> Result<()> {
        if self.shared.only_check.load(Ordering::Relaxed) {
            let bad = self.writer.check(&task.plan);
            self.tell(Event::Bad(bad));
            return Ok(());
        }
        let lease = self.shared.lease.check();
        match lease.and_then(|()| self.writer.start(&task.plan, task.look)) {
            Ok(Started::Writing(header)) => self.writer.behind().close((task, header)),
            Ok(Started::Found(header)) => {
                self.shared.media.patience().progressed();
                self.tell(Event::Made { plan: task.plan, header, found: true });
            }
            Ok(Started::Bad(bad)) => {
                self.writer.behind().give_up();
                self.shared.only_check.store(true, Ordering::Relaxed);
                self.tell(Event::Bad(bad));
            }
            Err(error) => {
                self.writer.behind().give_up();
                self.try_again(task, error)?;
            }
        }
        Ok(())
    }

    /// The connection is gone and the write may or may not have come through: look, on a new one, and
    /// write again what is not there.
    fn try_again(&mut self, mut task: Task, error: Error) -> Result<()> {
        let pause = task.pause.get_or_insert_default();
        if !is_passing(&error) || !self.shared.media.patience().wait(pause, &self.shared.stop) {
            return Err(error);
        }
        self.shared.disturbed.store(true, Ordering::Relaxed);
        task.look = true;
        self.again.push_back(task);
        Ok(())
    }

    fn tell(&self, event: Event) {
        // The gatherer takes events until all threads have ended.
        let _ = self.events.send(event);
    }
}

/// How errors name the threads of a pass.
const WHO: &str = "the thread dlfs-import";
