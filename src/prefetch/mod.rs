//! Reads batches ahead along an order, across epochs, within a bounded window of memory.
//!
//! A [`Prefetcher`] reads on one thread, the *poller*. It plans batches from the order, reads them through the
//! `reader`'s pump and queues them, in order, for [`Prefetcher::next`]. A `Driver` decides which data stays in memory:
//! `sample_driver` reads each batch by itself, `chunks` reads whole chunks and hands samples out of them, and `passes`
//! reads chunks that do not fit the window, and tiny samples in global order, in several passes. `working_set` selects
//! the driver, and estimates the chunks that a grouped order has open.
//!
//! | files | what |
//! |---|---|
//! | `walk`, `run_order`, `stream` | the positions of a rank batch by batch, and their samples along an order |
//! | `mix`, `mix_stream` | data sets that are read as one sequence, and the batches of a mixture |
//! | `token_lengths`, `dealing`, `batch_counts` | batches by a token budget, or as rows of tokens |
//! | `driver` | the trait of drivers and what they share |
//! | `mix_driver`, `mix_plan` | a driver that reads a mixture through one driver per source |
//! | `options` | the options of a loader |
//! | `start`, `poller` | construction of a prefetcher, and its thread |
//! | `copiers` | batches on their way to the consumer, in one buffer if it wants that |
//! | `window` | the window and its background faulting; allocation by priority |
//! | `waits`, `trace` | the causes of the consumer's waits; events of both threads |
//! | `node` | one prefetcher for all ranks of a node |
//!
//! Invariants: batches are delivered in the order's sequence, whatever arrives first. The first
//! error is final. The end of a run is an explicit message, and the samples are counted: a channel that closes without
//! that message is an error.
//!
//! Read `chunks.rs` first: it is the driver of grouped order, and of the sequential order by slot.
//!
//! With [`LoaderOptions::verify_kept`], samples in memory kept from an earlier epoch are verified a second time, on the
//! caller's thread. A batch is read-only, but a view of it in C or Python can be made writable (`torch.frombuffer`,
//! DLPack, a NumPy flag). A write through it changes a chunk that later epochs use. The poller may
//! have assembled a later batch before that write, so only the caller's thread can detect it, just before it
//! returns the batch. Overwritten samples are read again: at once for this batch, and into other memory for later
//! ones. A write after that changes a batch that the caller already holds.

mod batch_counts;
mod chunks;
mod copiers;
mod dealing;
mod driver;
mod mix;
mod mix_driver;
mod mix_plan;
mod mix_stream;
mod node;
mod options;
mod passes;
mod poller;
mod run_order;
mod sample_driver;
mod start;
mod stream;
mod token_lengths;
mod trace;
mod waits;
mod walk;
mod window;
mod working_set;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, TryRecvError};
use parking_lot::Mutex;

use crate::buf::Pages;
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{self, Histogram, Measured, Recorder, Snapshot};
use crate::order::State;
use crate::order::budget::RowPlace;
use crate::process::Forked;
use crate::qpair::Device;
use crate::qpair::group::Waker;
use crate::reader::{Batch, OnError, ReadStats, Reader, ReaderOptions, timed_out};
use crate::report::Stalls;
use crate::threads::Fate;
use crate::units::{Epoch, SampleId};

pub(crate) use batch_counts::BatchCounts;
pub use dealing::Layouts;
pub use mix::Mix;
pub(crate) use mix_stream::MixIds;
pub(crate) use node::{NodeClient, Origin, reading};
pub use options::{Batching, LoaderOptions, NodePlace};
pub(crate) use stream::Stream;
pub use token_lengths::TokenLengths;
pub(crate) use token_lengths::samples_of_batch;
pub use trace::Trace;
pub(crate) use walk::Head;
pub(crate) use window::Window;

use driver::{Delivery, Residency};
use poller::Poller;
use waits::Seen;

/// The result of [`Prefetcher::next_within`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextBatch {
    /// A batch has been delivered.
    Ready,
    /// No batch is ready yet.
    Later,
    /// The last batch of the last epoch has been delivered already.
    End,
}

/// Reads batches along an order ahead of the consumer.
pub struct Prefetcher {
    directory: Arc<Directory>,
    devices: Vec<Arc<dyn Device>>,
    pub(crate) options: LoaderOptions,
    /// `None` if the poller could not be started again after a fork.
    poller: Option<Forked<Poller>>,
    pub(crate) course: Course,
    /// The number of samples that this loader has to deliver, according to the order; `None` if it is known only
    /// after reading.
    owed: Option<u64>,
    /// The position of the last delivered batch.
    pub(crate) head: Option<Head>,
    /// The readers that read overwritten samples again, by source; created when first needed.
    readers: BTreeMap<u32, Reader>,
}

/// The consumer's course through a run.
pub(crate) struct Course {
    /// The state of the run after the last delivered batch.
    pub(crate) state: State,
    /// Set once the last batch of the run has been delivered.
    ended: bool,
    /// The first error of the run: its kind and text.
    failed: Option<(ErrorKind, String)>,
    /// The counters of deliveries and waits.
    pub(crate) stats: LoaderStats,
}

impl Course {
    fn new(state: State) -> Course {
        Course { state, ended: false, failed: None, stats: LoaderStats::default() }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Returns the first error of the run, if there was one.
    ///
    /// # Errors
    /// Kind and text of this error.
    fn check(&self) -> Result<()> {
        let Some((kind, text)) = &self.failed else { return Ok(()) };
        Err(Error::new(*kind, text.clone()))
    }

    /// Notes the error of a call: all later calls return it.
    fn noted<T>(&mut self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.failed = Some((error.kind(), error.to_string())))
    }

    /// Counts a delivered batch, and moves the state to `after`, the position behind it.
    fn deliver(
        &mut self,
        batch: &Batch,
        skipped: u64,
        (after, place): (Position, Option<RowPlace>),
    ) {
        self.stats.batches += 1;
        self.stats.samples += batch.len() as u64;
        self.stats.sample_bytes += batch.len_bytes();
        self.stats.skipped += skipped;
        self.state.move_to(after, place);
    }
}

/// An epoch, and its consumed positions.
type Position = (Epoch, u64);

/// State that the poller and the consumer share.
#[derive(Default)]
struct LoaderShared {
    stop: AtomicBool,
    /// Set while the consumer waits for a batch.
    waiting: AtomicBool,
    /// Set while the poller waits for the consumer: for memory, or for room in the queue.
    blocked: AtomicBool,
    /// The consumer's waits, by cause.
    seen: Seen,
    residency: Arc<Residency>,
    /// Empty batches that the consumer has returned.
    spares: Spares,
    /// The poller's counters of reads.
    read: Mutex<ReadStats>,
    latency: Arc<Recorder>,
    /// The number of buffers outside the window.
    over_window: AtomicU64,
    /// Time that the poller has slept waiting for the consumer.
    blocked_ns: AtomicU64,
    /// Bytes copied to gather batches into one buffer.
    copied_bytes: AtomicU64,
    /// Chunks in which the consumer found overwritten samples, which the poller is to read again: source, chunk number,
    /// and number of the read that filled the memory.
    rewritten: Mutex<Vec<(u32, u32, u32)>>,
    /// The reason that the poller or a copying thread died.
    fate: Fate,
}

/// Empty batches of a loader, whose vectors are used again. Clones share the batches.
#[derive(Clone, Default)]
struct Spares(Arc<Mutex<Vec<Batch>>>);

impl Spares {
    /// An empty batch: a kept one, or else a new one.
    fn take(&self) -> Batch {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Returns the memory of a batch, and keeps its vectors, unless enough are kept.
    fn keep(&self, mut batch: Batch) {
        batch.clear();
        let mut kept = self.0.lock();
        if kept.len() < MAX_SPARES {
            kept.push(batch);
        }
    }
}

/// A handle that tells the poller that memory of the window was returned.
pub(crate) struct Returns {
    shared: Arc<LoaderShared>,
    waker: Waker,
}

impl Returns {
    /// Wakes the poller if it waits for the consumer. To be called after a batch was dropped.
    pub(crate) fn returned(&self) {
        if self.shared.blocked.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

/// The error for a sample that the order names, but that is not live.
fn gone(sample: SampleId) -> Error {
    Error::new(ErrorKind::NotFound, "the order names a sample that is gone").sample(sample)
}

/// A message from the poller to the consumer. An error or the end is the last one.
#[allow(clippy::large_enum_variant)] // nearly all are batches, and a box would be one allocation a batch
enum Message {
    Batch(Delivery),
    Failed(Error),
    End,
}

impl Prefetcher {
    /// Starts to read ahead.
    ///
    /// # Errors
    /// `InvalidArgument`: options that contradict each other, or a state of another image,
    /// generation or order. `OutOfMemory`: the window cannot be allocated. Errors of opening queue
    /// pairs.
    pub fn new(
        directory: Arc<Directory>,
        devices: Vec<Arc<dyn Device>>,
        options: LoaderOptions,
    ) -> Result<Prefetcher> {
        Prefetcher::in_window(directory, devices, options, None)
    }

    /// Restarts from `state` with the same options and in the same window: mapping and zeroing a
    /// window of the default size takes as long as reading it full. Only an order of other lanes gets a new window,
    /// of the length that its chunks want.
    ///
    /// # Errors
    /// As [`Prefetcher::new`].
    pub(crate) fn restart(mut self, state: State) -> Result<Prefetcher> {
        let poller = self.poller.take().and_then(Forked::into_inner);
        let window = poller.filter(|_| state.order == self.options.order);
        let window = window.map(|poller| Arc::clone(&poller.window));
        let layouts = self.options.layouts.as_ref().map(|layouts| layouts.renewed());
        let options =
            LoaderOptions { order: state.order, resume: Some(state), layouts, ..self.options };
        Prefetcher::in_window(self.directory, self.devices, options, window)
    }

    /// The next batch, or `None` after the last batch of the last epoch.
    ///
    /// # Errors
    /// As [`crate::reader::Reader::read_batch`]. After an error, every call returns the same error.
    #[allow(clippy::should_implement_trait)] // an iterator could not return memory as `next_into` does
    pub fn next(&mut self) -> Option<Result<Batch>> {
        let mut batch = Batch::new();
        match self.next_into(&mut batch) {
            Ok(true) => Some(Ok(batch)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// As [`Prefetcher::next`], into `batch`, whose memory is returned to the window first; `false`
    /// at the end of the run.
    ///
    /// # Errors
    /// As [`Prefetcher::next`].
    pub fn next_into(&mut self, batch: &mut Batch) -> Result<bool> {
        match self.next_within(batch, self.options.deadline)? {
            NextBatch::Ready => Ok(true),
            NextBatch::End => Ok(false),
            NextBatch::Later => {
                self.course.noted(Err(timed_out(self.options.deadline, &self.devices)))
            }
        }
    }

    /// As [`Prefetcher::next_into`], but waits at most `limit`. Reaching the limit is not an error: the next call
    /// continues to wait.
    ///
    /// # Errors
    /// As [`Prefetcher::next`], without `TimedOut`.
    pub(crate) fn next_within(&mut self, batch: &mut Batch, limit: Duration) -> Result<NextBatch> {
        self.course.check()?;
        if self.course.ended {
            return Ok(NextBatch::End);
        }
        let next = match self.receive(std::mem::take(batch), limit) {
            Ok(Some(Message::Batch(Delivery { batch: delivered, head, skipped, .. }))) => {
                self.course.deliver(&delivered, skipped, (head.after, head.place));
                self.head = Some(head);
                *batch = delivered;
                Ok(NextBatch::Ready)
            }
            Ok(Some(Message::End)) => {
                self.course.ended = true;
                Ok(NextBatch::End)
            }
            Ok(None) => Ok(NextBatch::Later),
            Ok(Some(Message::Failed(error))) | Err(error) => Err(error),
        };
        self.course.noted(next)
    }

    /// The state of the run after the batches delivered so far. A run resumes from it, also with
    /// another world size or batch size.
    pub fn state(&self) -> State {
        self.course.state.clone()
    }

    /// The counters so far.
    pub fn stats(&self) -> LoaderStats {
        let mut stats = self.course.stats;
        stats.stall_s = stats.stalls.total().as_secs_f64();
        if let Some(poller) = self.poller() {
            stats.read = *poller.shared.read.lock();
            stats.latency = poller.shared.latency.read();
            stats.over_window = poller.shared.over_window.load(Ordering::Relaxed);
            stats.blocked_s = poller.shared.blocked_ns.load(Ordering::Relaxed) as f64 / 1e9;
            stats.copied_bytes = poller.shared.copied_bytes.load(Ordering::Relaxed);
            stats.resident = poller.shared.residency.count();
            let pool = &poller.window.pool;
            stats.window_bytes = pool.capacity_bytes() as u64;
            stats.window_used_bytes =
                pool.capacity_bytes().saturating_sub(pool.free_bytes()) as u64;
            stats.registered_bytes = pool.registered_bytes() as u64;
            stats.pages = Some(pool.pages());
        }
        stats
    }

    /// A handle by which another thread reports that it has dropped a batch.
    pub(crate) fn returns(&self) -> Option<Returns> {
        let poller = self.poller()?;
        Some(Returns { shared: Arc::clone(&poller.shared), waker: poller.waker.clone() })
    }

    /// The size of the window in bytes.
    pub(crate) fn window_bytes(&self) -> usize {
        self.poller().map_or(0, |poller| poller.window.pool.capacity_bytes())
    }

    /// Returns whether the verified bytes of the sample are in the window now. Always `false` unless whole chunks
    /// are read.
    pub fn is_resident(&self, id: SampleId) -> bool {
        let slot = self.directory.slot_of(id);
        let poller = self.poller().zip(slot);
        poller.is_some_and(|(poller, slot)| poller.shared.residency.contains(slot))
    }

    /// The number of samples in the window now.
    pub fn num_resident(&self) -> u64 {
        self.poller().map_or(0, |poller| poller.shared.residency.count())
    }

    /// The poller, if this process started it.
    fn poller(&self) -> Option<&Poller> {
        self.poller.as_ref().and_then(Forked::get)
    }

    /// Receives the next message; `None`: there is none within `limit`. Keeps `emptied` for later batches.
    fn receive(&mut self, emptied: Batch, limit: Duration) -> Result<Option<Message>> {
        self.notice_fork()?;
        let Some(poller) = self.poller.as_mut().and_then(Forked::get_mut) else {
            let text = "the loader could not be started again after a fork";
            return Err(Error::new(ErrorKind::Internal, text));
        };
        poller.shared.spares.keep(emptied);
        let mut message = match poller.ready[poller.next].try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => return Err(poller.death()),
            Err(TryRecvError::Empty) => {
                let began = Instant::now();
                let received = poller.wait(limit);
                let then_copied = self.options.copy_threads.is_some() && received.is_ok();
                let waited = began.elapsed();
                let seen = &poller.shared.seen;
                poller.divider.divide(waited, seen, then_copied, &mut self.course.stats.stalls);
                match received {
                    Ok(message) => message,
                    Err(RecvTimeoutError::Timeout) => return Ok(None),
                    Err(RecvTimeoutError::Disconnected) => return Err(poller.death()),
                }
            }
        };
        poller.next = (poller.next + 1) % poller.ready.len();
        if poller.shared.blocked.load(Ordering::Acquire) {
            poller.waker.wake();
        }
        match &mut message {
            Message::Batch(delivery) => {
                delivery.skipped += self.verify_kept(&mut delivery.batch)?;
            }
            Message::End => self.check_complete()?,
            Message::Failed(_) => {}
        }
        Ok(Some(message))
    }

    /// Checks a second time that the run is complete: as many samples were delivered as the order has.
    fn check_complete(&self) -> Result<()> {
        let LoaderStats { samples, skipped, .. } = self.course.stats;
        let Some(owed) = self.owed.filter(|owed| *owed != samples + skipped) else {
            return Ok(());
        };
        let text = format!(
            "the run ended after {samples} samples, {skipped} left out, and the order has {owed}"
        );
        Err(Error::new(ErrorKind::Internal, text).hint("this is a bug in dlfs: please report it"))
    }

    /// A forked child has no poller thread: it starts its own from the parent's state, and leaves the parent's
    /// alone.
    fn notice_fork(&mut self) -> Result<()> {
        let forked = self.poller.as_ref().is_some_and(|poller| !poller.is_ours());
        if forked {
            self.options.resume = Some(self.state());
            self.poller = None;
            self.poller = Some(Forked::new(self.start(None)?));
        }
        Ok(())
    }

    /// Verifies the samples of a batch in memory kept from an earlier epoch, and reads overwritten ones again. Returns
    /// the number of samples that could not be read again and were skipped.
    ///
    /// # Errors
    /// Such a sample cannot be read, unless it is to be skipped.
    fn verify_kept(&mut self, batch: &mut Batch) -> Result<u64> {
        let mut wrong = batch.rewritten();
        if wrong.is_empty() {
            return Ok(0);
        }
        if self.course.stats.rewritten == 0 {
            tracing::warn!(
                sample = batch.id(wrong[0].index as usize).0,
                "somebody wrote to the memory of a batch (torch.frombuffer, DLPack or a writable NumPy view \
                 of it): it is kept for later epochs, so what was changed is read again, now and whenever \
                 that happens; copy samples before changing them"
            );
        }
        self.course.stats.rewritten += wrong.len() as u64;
        let mut num_failed = 0;
        wrong.sort_by_key(|kept| kept.source);
        for wrong in wrong.chunk_by(|one, other| one.source == other.source) {
            let ids: Vec<SampleId> =
                wrong.iter().map(|kept| batch.id(kept.index as usize)).collect();
            let mut fresh = Batch::new();
            let reader = self.reader_again(wrong[0].source)?;
            let mut failures = reader.read_batch_each(&ids, &mut fresh)?;
            if self.options.on_error == OnError::Raise && !failures.is_empty() {
                return Err(failures.swap_remove(0).1);
            }
            for (nth, kept) in wrong.iter().enumerate() {
                batch.replace(kept.index as usize, &fresh, nth);
            }
            for (nth, error) in &failures {
                tracing::warn!(%error, "a sample is left out");
                batch.clear_location(wrong[*nth].index as usize);
            }
            num_failed += failures.len() as u64;
        }
        batch.remove_missing();
        wrong.sort_unstable_by_key(|kept| (kept.source, kept.chunk, kept.load));
        wrong.dedup_by_key(|kept| (kept.source, kept.chunk, kept.load));
        if let Some(poller) = self.poller() {
            let chunks = wrong.iter().map(|kept| (kept.source, kept.chunk, kept.load));
            poller.shared.rewritten.lock().extend(chunks);
            poller.waker.wake();
        }
        Ok(num_failed)
    }

    /// The reader for overwritten samples of a source.
    fn reader_again(&mut self, source: u32) -> Result<&mut Reader> {
        let (directory, devices) = match &self.options.mixture {
            Some(mix) => {
                let at = source as usize;
                (&mix.directories[at], &mix.devices[at][..])
            }
            None => (&self.directory, &self.devices[..]),
        };
        match self.readers.entry(source) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let options = ReaderOptions {
                    window_bytes: WINDOW_BYTES,
                    deadline: self.options.deadline,
                    ..ReaderOptions::default()
                };
                Ok(place.insert(Reader::new(Arc::clone(directory), devices.to_vec(), options)?))
            }
        }
    }
}

impl std::fmt::Debug for Prefetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefetcher")
            .field("state", &self.course.state)
            .field("stats", &self.stats())
            .finish()
    }
}

/// Counters of a loader.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct LoaderStats {
    /// Counters of reads.
    #[serde(flatten)]
    pub read: ReadStats,
    /// Latency of the read commands, from submission to completion.
    pub latency: Histogram,
    /// Batches delivered.
    pub batches: u64,
    /// Samples delivered.
    pub samples: u64,
    /// Bytes of the delivered samples.
    pub sample_bytes: u64,
    /// Samples skipped because they could not be read.
    pub skipped: u64,
    /// Bytes copied to gather batches into one buffer.
    pub copied_bytes: u64,
    /// Buffers that did not fit the window and were allocated outside it.
    pub over_window: u64,
    /// Samples in kept memory that were overwritten and had to be read again.
    pub rewritten: u64,
    /// Time that consumers have waited for batches, in seconds: the sum of `stalls`.
    pub stall_s: f64,
    /// The consumers' waits, in seconds by cause.
    #[serde(rename = "stalls_s")]
    pub stalls: Stalls,
    /// Time that the loader has slept because ready batches waited for the consumer, or the window was full, in
    /// seconds.
    pub blocked_s: f64,
    /// The memory of the window, in bytes; 0 before the first read.
    pub window_bytes: u64,
    /// Bytes of the window that hold reads, ready batches, and batches that the consumer has.
    pub window_used_bytes: u64,
    /// Bytes of the window that are registered with the driver of accelerators: all or none.
    pub registered_bytes: u64,
    /// Samples whose verified bytes are in the window now; always 0 unless whole chunks are read.
    pub resident: u64,
    /// The pages that back the window; `None` before the first read.
    pub pages: Option<Pages>,
}

impl Measured for LoaderStats {
    fn measure(&self, snapshot: &mut Snapshot) {
        self.read.measure("loader", snapshot);
        snapshot.durations(&metrics::READ_COMMAND_SECONDS, &["loader"], &self.latency);
        for (metric, value) in [
            (&metrics::LOADER_BATCHES, self.batches),
            (&metrics::LOADER_SAMPLES, self.samples),
            (&metrics::LOADER_SAMPLE_BYTES, self.sample_bytes),
            (&metrics::LOADER_SKIPPED, self.skipped),
            (&metrics::LOADER_COPIED_BYTES, self.copied_bytes),
            (&metrics::LOADER_OVER_WINDOW, self.over_window),
            (&metrics::LOADER_REWRITTEN, self.rewritten),
            (&metrics::LOADER_WINDOW_BYTES, self.window_bytes),
            (&metrics::LOADER_WINDOW_USED_BYTES, self.window_used_bytes),
            (&metrics::LOADER_RESIDENT, self.resident),
        ] {
            snapshot.count(metric, &[], value);
        }
        snapshot.seconds(&metrics::LOADER_BLOCKED_SECONDS, &[], self.blocked_s);
        snapshot.seconds(&metrics::LOADER_STALL_SECONDS, &[], self.stall_s);
        for (cause, waited) in self.stalls.each() {
            let waited_s = waited.as_secs_f64();
            snapshot.seconds(&metrics::LOADER_STALLS_SECONDS, &[cause.name()], waited_s);
        }
    }
}

impl LoaderStats {
    /// The sum of two loaders' counters, except `pages`, which are those of `other`, or of `self` if it has none.
    #[must_use]
    pub(crate) fn plus(self, other: LoaderStats) -> LoaderStats {
        let mut read = self.read;
        read.add(ReadStats::default(), other.read);
        let mut latency = self.latency;
        latency.add(&other.latency);
        let stalls = self.stalls.plus(&other.stalls);
        LoaderStats {
            read,
            latency,
            batches: self.batches + other.batches,
            samples: self.samples + other.samples,
            sample_bytes: self.sample_bytes + other.sample_bytes,
            skipped: self.skipped + other.skipped,
            copied_bytes: self.copied_bytes + other.copied_bytes,
            over_window: self.over_window + other.over_window,
            rewritten: self.rewritten + other.rewritten,
            stall_s: stalls.total().as_secs_f64(),
            stalls,
            blocked_s: self.blocked_s + other.blocked_s,
            window_bytes: self.window_bytes + other.window_bytes,
            window_used_bytes: self.window_used_bytes + other.window_used_bytes,
            registered_bytes: self.registered_bytes + other.registered_bytes,
            resident: self.resident + other.resident,
            pages: other.pages.or(self.pages),
        }
    }

    /// The counters without those of deliveries and waits.
    pub(crate) fn of_reads(self) -> LoaderStats {
        LoaderStats {
            batches: 0,
            samples: 0,
            sample_bytes: 0,
            skipped: 0,
            stall_s: 0.0,
            stalls: Stalls::default(),
            ..self
        }
    }

    /// The counters after the loader has ended: its window and resident samples are gone.
    pub fn ended(self) -> LoaderStats {
        LoaderStats {
            window_bytes: 0,
            window_used_bytes: 0,
            registered_bytes: 0,
            resident: 0,
            ..self
        }
    }
}

/// The most batches in the ready queue, however small they are; several copying threads have queues of their own, which
/// share this number, rounded up.
const READY_BATCHES: usize = 64;

/// The most empty batches kept for reuse: as many as can be in flight and ready, and one per thread.
const MAX_SPARES: usize = 2 * READY_BATCHES + 2;

/// The window for overwritten samples that are read again; if more are needed, the system allocates the rest.
const WINDOW_BYTES: usize = 16 << 20;
