//! One thread of a pass: takes chunk layouts, reads their rows, and writes the chunks in the background.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::Sender;

use crate::import::chunks::{ChunkWriter, Job, Started};
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::plan::ChunkLayout;
use crate::import::retry::{Backoff, is_transient};
use crate::import::sources::{BadEntry, Source};
use dlfs_base::threads::caught;
use dlfs_base::{Error, Result};
use dlfs_format::format::ChunkHeader;

/// The inputs of a pass. Its threads share them.
pub(super) struct Pass<'a> {
    /// Source, layout and placement.
    pub(super) job: Job<'a>,
    /// The chunks to write.
    pub(super) chunks: &'a [ChunkLayout],
    /// The source to read.
    pub(super) source: &'a Source,
    /// The namespaces to write to.
    pub(super) media: &'a Media,
    /// The right to write.
    pub(super) lease: &'a Lease,
    /// Number of threads.
    pub(super) threads: usize,
    /// Set if chunks may be on the media already.
    pub(super) look: bool,
    /// Chunks below this number are on the media and need no check.
    pub(super) skip_chunks: u64,
    /// Set to only read the source, and list bad rows.
    pub(super) only_check: bool,
}

/// Messages from the threads to the collector.
pub(super) enum Event {
    Made {
        chunk: ChunkLayout,
        header: Box<ChunkHeader>,
        found: bool,
    },
    Bad(Vec<(u64, BadEntry)>),
    /// The thread has completed all its chunks, or has failed.
    Ended(Result<()>),
}

/// State that all threads share.
pub(super) struct Shared<'a> {
    pub(super) pass: &'a Pass<'a>,
    /// The number of the next chunk to take.
    pub(super) next: AtomicUsize,
    /// Set if no more chunks are to be taken: a thread failed, or the caller wants to stop.
    pub(super) stop: AtomicBool,
    /// Set to only read, and list bad rows.
    pub(super) only_check: AtomicBool,
    /// Set if a connection was lost.
    pub(super) connection_lost: AtomicBool,
}

/// A chunk to build.
pub(super) struct Task {
    chunk: ChunkLayout,
    /// Set if the chunk may be on the media already.
    look: bool,
    /// The last retry delay; `None` before the first failure.
    pause: Option<Backoff>,
}

/// One thread of a pass.
pub(super) struct Worker<'p, 'a> {
    shared: &'p Shared<'a>,
    events: Sender<Event>,
    writer: ChunkWriter<'a, (Task, ChunkHeader)>,
    /// Chunks to retry.
    again: VecDeque<Task>,
}

impl<'p, 'a> Worker<'p, 'a> {
    pub(super) fn new(shared: &'p Shared<'a>, events: Sender<Event>) -> Worker<'p, 'a> {
        let pass = shared.pass;
        let writer = ChunkWriter::new(pass.job, pass.source.reader(), pass.media.channel());
        Worker { shared, events, writer, again: VecDeque::new() }
    }

    /// Builds chunks until there are no more, or it is told to stop.
    pub(super) fn run(mut self) {
        let made = caught(WHO, || self.make_all()).and_then(|made| made);
        let events = self.events.clone();
        if made.is_err() {
            // Keeps the other threads from starting useless work.
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        // Dropping waits for writes in flight, so it may panic as well.
        let dropped = caught(WHO, || drop(self));
        // The collector receives events until all threads have ended.
        let _ = events.send(Event::Ended(made.and(dropped)));
    }

    fn make_all(&mut self) -> Result<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            while let Some(((task, header), ended)) = self.writer.writes().ended() {
                match ended {
                    Ok(()) => {
                        self.shared.pass.media.retry_budget().progressed();
                        let header = Box::new(header);
                        self.tell(Event::Made { chunk: task.chunk, header, found: false });
                    }
                    Err(error) => self.try_again(task, error)?,
                }
            }
            if self.writer.writes().is_full() {
                self.writer.writes().wait();
                continue;
            }
            match self.next_task() {
                Some(task) => self.start(task)?,
                None if self.writer.writes().is_idle() => return Ok(()),
                None => self.writer.writes().wait(),
            }
        }
        Ok(())
    }

    fn next_task(&mut self) -> Option<Task> {
        if let Some(task) = self.again.pop_front() {
            return Some(task);
        }
        let next = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let chunk = *self.shared.pass.chunks.get(next)?;
        Some(Task { chunk, look: self.shared.pass.look, pause: None })
    }

    fn start(&mut self, task: Task) -> Result<()> {
        if self.shared.only_check.load(Ordering::Relaxed) {
            let bad = self.writer.check(&task.chunk);
            self.tell(Event::Bad(bad));
            return Ok(());
        }
        let lease = self.shared.pass.lease.check();
        match lease.and_then(|()| self.writer.start(&task.chunk, task.look)) {
            Ok(Started::Writing(header)) => self.writer.writes().close((task, header)),
            Ok(Started::Found(header)) => {
                self.shared.pass.media.retry_budget().progressed();
                let header = Box::new(header);
                self.tell(Event::Made { chunk: task.chunk, header, found: true });
            }
            Ok(Started::Bad(bad)) => {
                self.writer.writes().give_up();
                self.shared.only_check.store(true, Ordering::Relaxed);
                self.tell(Event::Bad(bad));
            }
            Ok(Started::SourceFailed(error)) => {
                self.writer.writes().give_up();
                return Err(error);
            }
            Err(error) => {
                self.writer.writes().give_up();
                self.try_again(task, error)?;
            }
        }
        Ok(())
    }

    /// Queues a task again after a lost connection. The writes may have been executed or not, so the task reads
    /// the chunk on a new connection, and writes it if it is not complete.
    fn try_again(&mut self, mut task: Task, error: Error) -> Result<()> {
        let pause = task.pause.get_or_insert_default();
        if !is_transient(&error)
            || !self.shared.pass.media.retry_budget().wait(pause, &self.shared.stop)
        {
            return Err(error);
        }
        self.shared.connection_lost.store(true, Ordering::Relaxed);
        task.look = true;
        self.again.push_back(task);
        Ok(())
    }

    fn tell(&self, event: Event) {
        // The collector receives events until all threads have ended.
        let _ = self.events.send(event);
    }
}

/// The name of a pass's threads in errors.
const WHO: &str = "the thread dlfs-import";
