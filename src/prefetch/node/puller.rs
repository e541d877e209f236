//! The thread of a node's owner that reads: it calls the prefetcher, on commands of the thread that serves clients.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;

use crate::buf::{Pool, SealedBytes};
use crate::error::{Error, Result};
use crate::order::{OrderSpec, State};
use crate::prefetch::walk::Head;
use crate::prefetch::{LoaderStats, NextBatch, Prefetcher, Returns, Window};
use crate::reader::{Batch, TICK};
use crate::report::{Cause, Stalls};
use crate::tokens::Layout;
use crate::units::Epoch;

use super::messages::{LOOSE, Position};

/// Makes the prefetcher of a node.
#[derive(Clone)]
pub(crate) struct Origin {
    /// Allocates the prefetcher's window for an order.
    pub(crate) window: Arc<dyn Fn(OrderSpec) -> Result<Arc<Window>> + Send + Sync>,
    /// Starts the prefetcher at a state.
    pub(crate) open: Arc<dyn Fn(State, Arc<Window>) -> Result<Prefetcher> + Send + Sync>,
    /// The counters of all reads of this process for its node, without deliveries and waits.
    pub(crate) reads: Arc<Mutex<LoaderStats>>,
}

/// A command of the thread that serves clients.
pub(super) enum Command {
    /// Begin to read at a position. `run` is the number of this command.
    Begin { run: u64, position: Position },
    /// Read the next batch.
    Pull,
}

/// An answer to that thread.
pub(super) struct Pulled {
    /// The number of the last [`Command::Begin`]: answers to earlier ones are ignored.
    pub(super) run: u64,
    pub(super) answer: Answer,
}

pub(super) enum Answer {
    /// Reading has begun. The handle wakes the poller when entries are dropped.
    Begun(Option<Returns>),
    Batch(Box<Entry>),
    /// The run has ended.
    End,
    Failed(Error),
}

/// A batch of the node.
pub(super) struct Entry {
    pub(super) batch: Batch,
    pub(super) head: Head,
    /// The layout of the rows, if batches are rows of tokens.
    pub(super) layout: Layout,
    /// The number of samples that could not be read.
    pub(super) skipped: u64,
    /// The place of each sample: an offset in the window, or with [`LOOSE`] in `loose`.
    pub(super) offsets: Vec<u64>,
    /// The bytes outside the window.
    pub(super) loose: Option<SealedBytes>,
    /// The cause for which the thread waited longest.
    pub(super) cause: Cause,
}

/// The thread's state.
pub(super) struct Puller {
    pub(super) origin: Origin,
    pub(super) window: Arc<Window>,
    /// The state of the run at any position: [`Puller::begin`] moves a copy to the position that is asked for.
    pub(super) base: State,
    /// `None` until the first [`Command::Begin`], and after a failure of one.
    pub(super) prefetcher: Option<Prefetcher>,
    /// The number of the last [`Command::Begin`].
    pub(super) run: u64,
    /// Set when the owner ends.
    pub(super) stop: Arc<AtomicBool>,
    pub(super) commands: Receiver<Command>,
    pub(super) results: Sender<Pulled>,
    /// Wakes the other thread.
    pub(super) bell: Arc<OwnedFd>,
    /// The counters of earlier prefetchers, also of those of owners before this one.
    pub(super) past: LoaderStats,
    /// The time at which the counters were published.
    pub(super) published: Instant,
}

impl Puller {
    /// Executes commands until the other thread has ended.
    pub(super) fn run(&mut self) {
        self.execute();
        self.end_prefetcher();
        self.publish();
    }

    fn execute(&mut self) {
        while let Some(command) = self.next_command() {
            let done = match command {
                Command::Begin { run, position } => {
                    self.run = run;
                    self.begin(position)
                }
                Command::Pull => self.pull(),
            };
            if self.published.elapsed() >= PUBLISH_INTERVAL {
                self.publish();
            }
            let answer = done.unwrap_or_else(|error| Some(Answer::Failed(error)));
            let Some(answer) = answer else { continue };
            if self.results.send(Pulled { run: self.run, answer }).is_err() {
                return; // the other thread has ended
            }
            ring(&self.bell);
        }
    }

    /// Waits for a command; publishes the counters if none comes soon. `None`: the other thread has ended.
    fn next_command(&mut self) -> Option<Command> {
        match self.commands.recv_timeout(PUBLISH_INTERVAL) {
            Ok(command) => return Some(command),
            Err(RecvTimeoutError::Timeout) => self.publish(),
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        self.commands.recv().ok()
    }

    /// Begins to read at a position.
    fn begin(&mut self, (epoch, consumed): Position) -> Result<Option<Answer>> {
        let mut state = self.base.clone();
        if (state.epoch.0, state.consumed) != (epoch, consumed) {
            state.move_to((Epoch(epoch), consumed), None);
        }
        let begun = match self.end_prefetcher() {
            Some(before) => before.restart(state)?,
            None => (self.origin.open)(state, Arc::clone(&self.window))?,
        };
        let returns = begun.returns();
        self.prefetcher = Some(begun);
        Ok(Some(Answer::Begun(returns)))
    }

    /// Reads the next batch. `None`: another command or the owner's end came first, or there is no prefetcher.
    fn pull(&mut self) -> Result<Option<Answer>> {
        let Some(prefetcher) = &mut self.prefetcher else { return Ok(None) };
        let before = prefetcher.course.stats;
        let mut batch = Batch::new();
        loop {
            match prefetcher.next_within(&mut batch, TICK)? {
                NextBatch::End => return Ok(Some(Answer::End)),
                NextBatch::Ready => break,
                NextBatch::Later => {
                    if self.stop.load(Ordering::Acquire) || !self.commands.is_empty() {
                        return Ok(None);
                    }
                }
            }
        }
        let now = &prefetcher.course.stats;
        let cause = longest(&now.stalls.since(&before.stalls));
        let skipped = now.skipped - before.skipped;
        let Some(head) = prefetcher.head else { return Ok(None) };
        let layout = prefetcher
            .options
            .layouts
            .as_ref()
            .and_then(|layouts| layouts.take())
            .unwrap_or_default();
        let (offsets, loose) = places(&batch, &self.window.pool)?;
        let entry = Entry { batch, head, layout, skipped, offsets, loose, cause };
        Ok(Some(Answer::Batch(Box::new(entry))))
    }

    /// Takes the prefetcher, if there is one, and keeps its counters.
    fn end_prefetcher(&mut self) -> Option<Prefetcher> {
        let prefetcher = self.prefetcher.take()?;
        self.past = self.past.plus(prefetcher.stats().ended());
        Some(prefetcher)
    }

    /// Publishes the counters.
    fn publish(&mut self) {
        let current = self.prefetcher.as_ref().map(Prefetcher::stats).unwrap_or_default();
        *self.origin.reads.lock() = self.past.plus(current).of_reads();
        self.published = Instant::now();
    }
}

/// The place of each sample, and a copy of the bytes that lie outside the window.
fn places(batch: &Batch, pool: &Pool) -> Result<(Vec<u64>, Option<SealedBytes>)> {
    let mut loose = Vec::new();
    let offsets = (0..batch.len()).map(|index| {
        let bytes = batch.bytes(index);
        match pool.offset_of(bytes) {
            Some(offset) => offset as u64,
            None if bytes.is_empty() => 0,
            None => {
                let offset = loose.len() as u64;
                loose.extend_from_slice(bytes);
                LOOSE | offset
            }
        }
    });
    let offsets = offsets.collect();
    let sealed = if loose.is_empty() { None } else { Some(SealedBytes::of(&loose)?) };
    Ok((offsets, sealed))
}

/// The cause of the longest wait; without a wait, [`Cause::Window`]: the batch was there, but had to wait for ranks.
fn longest(stalls: &Stalls) -> Cause {
    let waits = stalls.each().filter(|(_, waited)| !waited.is_zero());
    waits.max_by_key(|(_, waited)| *waited).map_or(Cause::Window, |(cause, _)| cause)
}

/// Wakes the thread that polls `bell`.
pub(super) fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &[1; 8]); // full: it rings already
}

/// The least time between two updates of the counters while batches are read.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);
