//! Reads batches ahead along an order, across epochs, within a bounded window of memory.
//!
//! A [`Prefetcher`] has one thread, the *poller*. It plans batches from the order, reads them
//! through the `reader`'s pump and queues them, in order, for [`Prefetcher::next`]. A `Driver`
//! decides how batches are read: `samples` reads each batch by itself, `chunks` reads whole chunks
//! and hands samples out of them, and `passes` reads chunks that do not fit the window, and tiny
//! samples in global order, in several passes. `batching` selects the driver, `working_set`
//! estimates the chunks that a grouped order has open, and `first_batch` combines two drivers at the
//! start. `window` is the memory and the thread that faults it in; `memory` grants it by priority.
//! `kept` verifies again what stays in it from epoch to epoch. `mixture` says which samples of which source the batches
//! of a mixture have, `mix_driver` reads them with a driver for each source, fed by `fed`, and `mixed` starts that.
//! `budgeted` cuts batches of so many tokens, `mix_budget` those of a mixture, and `batch_counts` counts them. `copy`
//! gathers each batch into one buffer if the caller wants that.
//! `waits` divides the time that the consumer waits among its causes, and `trace` keeps events of both threads.
//!
//! Invariants: batches are delivered in the order's sequence, whatever arrives first. The first
//! error is final. The poller sleeps when the window is full and when nothing is outstanding. The
//! end of a run is an explicit message, and the samples are counted: a channel that closes without
//! that message is an error.
//!
//! Read `chunks.rs` first: it is what makes training fast.

mod batch_counts;
mod batching;
mod budgeted;
mod chunks;
mod copy;
mod fed;
mod first_batch;
mod head;
mod kept;
mod memory;
mod mix;
mod mix_budget;
mod mix_driver;
mod mixed;
mod mixture;
mod options;
mod passes;
mod residency;
mod samples;
mod stats;
mod stream;
mod trace;
mod waits;
mod window;
mod working_set;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, TrySendError, bounded};
use parking_lot::Mutex;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::Recorder;
use crate::order::State;
use crate::process::Forked;
use crate::qpair::Device;
use crate::qpair::group::Waker;
use crate::reader::{
    Batch, CHECK_LIMIT, FETCH_LEN_BYTES, Fetched, OnError, Pump, ReadStats, SLOT_LEN_BYTES,
    stale_error, timed_out,
};
use crate::threads::{self, Fate, Thread};
use crate::units::SampleId;

use batching::page_cached;
use chunks::ChunkDriver;
use copy::Copiers;
use first_batch::{FIRST_BATCH_TOKEN, FirstBatchDriver};
use head::Head;
use kept::{Kept, Rewritten};
use memory::Memory;
use passes::PassDriver;
use residency::Residency;
use samples::SampleDriver;
use trace::TurnTrace;
use waits::{AfterTurn, Divider, Seen, TurnClock};
use working_set::FIRST_BATCH_ROOM_CHUNKS;

pub(crate) use batch_counts::BatchCounts;
pub use budgeted::TokenLengths;
pub(crate) use budgeted::samples_of_batch;
pub use mix::Mix;
pub(crate) use mix::MixSource;
pub(crate) use mixture::MixIds;
pub use options::{Batching, LoaderOptions};
pub use stats::LoaderStats;
pub(crate) use stream::Stream;
pub use trace::Trace;
pub(crate) use window::Window;

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
    options: LoaderOptions,
    poller: Option<Forked<Poller>>,
    /// The state of the run after the batch that was delivered last.
    state: State,
    /// The number of samples that this loader has to deliver in all, according to the order; `None` if only
    /// reading tells.
    owed: Option<u64>,
    ended: bool,
    failed: Option<(ErrorKind, String)>,
    kept: Kept,
    stats: LoaderStats,
}

/// The consumer's side of the poller thread.
struct Poller {
    thread: Option<Thread>,
    window: Arc<Window>,
    shared: Arc<Shared>,
    ready: Vec<Receiver<Message>>,
    next: usize,
    recycle: Sender<Batch>,
    waker: Waker,
    divider: Divider,
}

/// State that the poller and the consumer share.
struct Shared {
    stop: AtomicBool,
    /// The consumer waits for a batch.
    waiting: AtomicBool,
    /// The poller waits for the consumer: for memory, or for room in the queue.
    blocked: AtomicBool,
    /// The consumer's waits, by cause.
    seen: Seen,
    residency: Arc<Residency>,
    read: Mutex<ReadStats>,
    latency: Arc<Recorder>,
    over_window: AtomicU64,
    /// How long the poller has slept while it waited for the consumer.
    blocked_ns: AtomicU64,
    copied_bytes: AtomicU64,
    /// Chunks in which the consumer found overwritten samples.
    rewritten: Rewritten,
    /// Why the poller or a copying thread died.
    fate: Fate,
}

impl Shared {
    fn new(residency: Arc<Residency>) -> Shared {
        Shared {
            stop: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            seen: Seen::new(),
            residency,
            read: Mutex::new(ReadStats::default()),
            latency: Arc::default(),
            over_window: AtomicU64::new(0),
            blocked_ns: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            rewritten: Rewritten::default(),
            fate: Fate::default(),
        }
    }
}

/// A message from the poller to the consumer. An error or the end is the last one.
enum Message {
    Batch(Delivery),
    Failed(Error),
    End,
}

/// A batch for the consumer.
struct Delivery {
    batch: Batch,
    head: Head,
    skipped: u64,
    /// With [`OnError::Blank`]: the places of samples that could not be read, in their order, and why.
    failures: Vec<(u32, Error)>,
}

/// Decides how batches are read. All calls come from the poller.
trait Driver: Send {
    /// Plans, and starts what memory allows; whether it did anything.
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool>;
    /// Takes a completed fetch.
    fn finished(&mut self, fetched: Fetched);
    /// The next batch in order, once it is complete.
    fn next_ready(&mut self) -> Option<Result<Delivery>>;
    /// Returns whether every batch has been taken.
    fn is_done(&self) -> bool;
    /// Takes an empty batch, to reuse its vectors.
    fn recycle(&mut self, batch: Batch);
    /// The memory that read number `load` filled with `chunk` of `source` was overwritten.
    fn read_again(&mut self, _source: u32, _chunk: u32, _load: u32) {}
    /// The source whose samples the last error or skipped sample was among.
    fn suspect(&self) -> u32 {
        0
    }
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

    /// Allocates the window of a loader with these options, and faults it in in the background.
    ///
    /// # Errors
    /// `InvalidArgument`: as [`Prefetcher::new`]. `OutOfMemory`: the system does not
    /// provide it.
    pub(crate) fn window(
        directory: &Directory,
        devices: &[Arc<dyn Device>],
        options: &LoaderOptions,
    ) -> Result<Arc<Window>> {
        if let Some(mix) = &options.mixture {
            return mixed::window(mix, options);
        }
        let batching = options.batching_on(directory, devices)?;
        if batching == Batching::Chunk {
            working_set::warn_of_small_window(directory, options);
        }
        working_set::warn_of_shared_reads(directory, options, batching == Batching::Chunk);
        let layout = directory.layout();
        let window_bytes = working_set::window_bytes(directory, options);
        let chunk = u64::from(layout.chunk_size_bytes);
        let num_chunks = u64::from(directory.num_chunks());
        let num_samples = directory.num_samples();
        let all = (num_chunks + FIRST_BATCH_ROOM_CHUNKS).saturating_mul(chunk);
        let ready = (options.batch_size as u64).saturating_mul(READY_BATCHES as u64);
        let lengths = options.pass_lengths(batching, directory);
        let used_bytes = match batching {
            Batching::Chunk => all,
            Batching::Sample if lengths.is_some() => all,
            Batching::Sample => all.min(all.div_ceil(num_samples.max(1)).saturating_mul(ready)),
            Batching::None => 0,
        };
        // If most buffers have about one length, slots of that length keep the window free of gaps
        // that are too small for a buffer.
        let slot_len_bytes = match (batching, lengths) {
            (_, Some(lengths)) => lengths.copies_bytes,
            (Batching::Chunk, None) => layout.chunk_size_bytes as usize,
            (Batching::Sample | Batching::None, None) => SLOT_LEN_BYTES,
        };
        let used_bytes = usize::try_from(used_bytes).unwrap_or(usize::MAX);
        let cpus = options.cpus.as_ref();
        Ok(Arc::new(Window::new(window_bytes, slot_len_bytes, used_bytes, cpus)?))
    }

    /// Restarts from `state` with the same options and in the same window: mapping and zeroing a
    /// window of the default size takes as long as reading it full.
    ///
    /// # Errors
    /// As [`Prefetcher::new`].
    pub(crate) fn restart(mut self, state: State) -> Result<Prefetcher> {
        let poller = self.poller.take().and_then(Forked::into_inner);
        let window = poller.map(|poller| Arc::clone(&poller.window));
        let options = LoaderOptions { order: state.order, resume: Some(state), ..self.options };
        Prefetcher::in_window(self.directory, self.devices, options, window)
    }

    /// As [`Prefetcher::new`], in a window that was allocated for the same options.
    ///
    /// # Errors
    /// As [`Prefetcher::new`].
    pub(crate) fn in_window(
        directory: Arc<Directory>,
        devices: Vec<Arc<dyn Device>>,
        options: LoaderOptions,
        window: Option<Arc<Window>>,
    ) -> Result<Prefetcher> {
        options.check()?;
        if let Some(mix) = options.mixture.clone() {
            return mixed::prefetcher(&mix, options, window);
        }
        let start = Stream::start_state(&directory, &options)?;
        let options = LoaderOptions { order: start.order, ..options };
        let batching = options.batching_on(&directory, &devices)?;
        let is_declined = match options.batching {
            None => !page_cached(&devices),
            Some(asked) => asked == Batching::Chunk,
        };
        if batching == Batching::Sample && is_declined {
            working_set::warn_of_small_window(&directory, &options);
        }
        // Passes over a global order are for options that leave the batching open.
        let is_passes =
            batching == Batching::Sample && options.pass_lengths(batching, &directory).is_some();
        let stated = if is_passes { None } else { Some(batching) };
        let options = LoaderOptions { batching: stated, ..options };
        let mut loader = Prefetcher {
            owed: Stream::owed(options.epoch_len(directory.num_live()), &options, &start)?,
            directory,
            devices,
            options,
            poller: None,
            state: start,
            ended: false,
            failed: None,
            kept: Kept::default(),
            stats: LoaderStats::default(),
        };
        loader.poller = Some(Forked::new(loader.start(window)?));
        Ok(loader)
    }

    /// The next batch, or `None` after the last batch of the last epoch.
    ///
    /// # Errors
    /// As [`crate::reader::Reader::read_batch`]; after an error, the same one again.
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
                let error = timed_out(self.options.deadline, &self.devices);
                self.failed = Some((error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// As [`Prefetcher::next_into`], but waits no longer than `limit`. Reaching the limit is not an
    /// error: the next call continues to wait.
    ///
    /// # Errors
    /// As [`Prefetcher::next`], without `TimedOut`.
    pub(crate) fn next_within(&mut self, batch: &mut Batch, limit: Duration) -> Result<NextBatch> {
        if let Some((kind, text)) = &self.failed {
            return Err(Error::new(*kind, text.clone()));
        }
        if self.ended {
            return Ok(NextBatch::End);
        }
        let result = self.receive(std::mem::take(batch), limit).and_then(|it| self.verified(it));
        match result {
            Ok(Received::Batch(delivery)) => {
                self.stats.batches += 1;
                self.stats.samples += delivery.batch.len() as u64;
                self.stats.sample_bytes += delivery.batch.len_bytes();
                self.stats.skipped += delivery.skipped;
                self.state.epoch = delivery.head.after.0;
                self.state.consumed = delivery.head.after.1;
                *batch = delivery.batch;
                Ok(NextBatch::Ready)
            }
            Ok(Received::End) => {
                self.ended = true;
                Ok(NextBatch::End)
            }
            Ok(Received::Later) => Ok(NextBatch::Later),
            Err(error) => {
                self.failed = Some((error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// The state of the run after the batches delivered so far. A run resumes from it, also with
    /// another world size or batch size.
    pub fn state(&self) -> State {
        self.state.clone()
    }

    /// Returns whether it has returned an error, and so returns nothing else.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The counters so far.
    pub fn stats(&self) -> LoaderStats {
        let mut stats = self.stats;
        stats.stall_s = stats.stalls.total().as_secs_f64();
        if let Some(poller) = self.poller() {
            stats.read = *poller.shared.read.lock();
            stats.latency = poller.shared.latency.read();
            stats.over_window = poller.shared.over_window.load(Ordering::Relaxed);
            stats.blocked_s = poller.shared.blocked_ns.load(Ordering::Relaxed) as f64 / 1e9;
            stats.copied_bytes = poller.shared.copied_bytes.load(Ordering::Relaxed);
            stats.resident = poller.shared.residency.count();
            let pool = poller.window.pool();
            stats.window_bytes = pool.capacity_bytes() as u64;
            stats.window_used_bytes =
                pool.capacity_bytes().saturating_sub(pool.free_bytes()) as u64;
            stats.pages = Some(pool.pages());
        }
        stats
    }

    /// The counters that the consumer's thread keeps: of what was delivered, and its stalls. Reads no lock.
    pub(crate) fn delivered(&self) -> &LoaderStats {
        &self.stats
    }

    /// Bytes of the window.
    pub(crate) fn window_bytes(&self) -> usize {
        self.poller().map_or(0, |poller| poller.window.pool().capacity_bytes())
    }

    /// Returns whether the verified bytes of the sample are in the window now. Always `false` unless batches are made
    /// of whole chunks.
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

    fn receive(&mut self, emptied: Batch, limit: Duration) -> Result<Received> {
        self.notice_fork()?;
        let Some(poller) = self.poller.as_mut().and_then(Forked::get_mut) else {
            let text = "the loader could not be started again after a fork";
            return Err(Error::new(ErrorKind::Internal, text));
        };
        poller.give_back(emptied);
        let message = match poller.ready[poller.next].try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => return Err(poller.death()),
            Err(TryRecvError::Empty) => {
                let began = Instant::now();
                let received = poller.wait(limit);
                let then_copied = self.options.copy_threads.is_some() && received.is_ok();
                let waited = began.elapsed();
                let seen = &poller.shared.seen;
                poller.divider.divide(waited, seen, then_copied, &mut self.stats.stalls);
                match received {
                    Ok(message) => message,
                    Err(RecvTimeoutError::Timeout) => return Ok(Received::Later),
                    Err(RecvTimeoutError::Disconnected) => return Err(poller.death()),
                }
            }
        };
        poller.next = (poller.next + 1) % poller.ready.len();
        if poller.shared.blocked.load(Ordering::Acquire) {
            poller.waker.wake();
        }
        match message {
            Message::Batch(delivery) => Ok(Received::Batch(delivery)),
            Message::Failed(error) => Err(error),
            Message::End => self.check_complete().map(|()| Received::End),
        }
    }

    /// A second check of the end: as many samples were delivered as the order has.
    fn check_complete(&self) -> Result<()> {
        let LoaderStats { samples, skipped, .. } = self.stats;
        let Some(owed) = self.owed.filter(|owed| *owed != samples + skipped) else {
            return Ok(());
        };
        let text = format!(
            "the run ended after {samples} samples, {skipped} left out, and the order has {owed}"
        );
        Err(Error::new(ErrorKind::Internal, text).hint("this is a bug in dlfs: please report it"))
    }

    /// A forked child has no poller: it starts its own from the parent's state and leaves the
    /// parent's alone.
    fn notice_fork(&mut self) -> Result<()> {
        let forked = self.poller.as_ref().is_some_and(|poller| !poller.is_ours());
        if forked {
            self.options.resume = Some(self.state.clone());
            self.poller = None;
            self.poller = Some(Forked::new(self.start(None)?));
        }
        Ok(())
    }

    /// Starts the poller, in `window` if it belongs to a loader with the same options.
    fn start(&self, window: Option<Arc<Window>>) -> Result<Poller> {
        let options = &self.options;
        if let Some(mix) = &options.mixture {
            return mixed::start(mix, options, &self.state, window);
        }
        let batching = options.batching_on(&self.directory, &self.devices)?;
        let mut pump = Pump::new(&self.devices, options.queue_pairs, options.busy_poll)?;
        pump.learn(&self.directory);
        let geometry = pump.geometry();
        let mut stream = Stream::new(Arc::clone(&self.directory), options, &self.state)?;
        let passes = options.pass_lengths(batching, &self.directory);
        let residency = Arc::new(Residency::new(match (batching, passes) {
            (Batching::Chunk, None) => self.directory.num_samples(),
            _ => 0,
        }));
        let directory = Arc::clone(&self.directory);
        let mut driver: Box<dyn Driver> = match (batching, passes) {
            (_, Some(lengths)) => {
                let on_error = options.on_error;
                Box::new(PassDriver::new(directory, geometry, stream, on_error, lengths))
            }
            (Batching::Chunk, None) => {
                let residency = Arc::clone(&residency);
                let on_error = options.on_error;
                let verify_kept = options.verify_kept;
                let first = if working_set::reads_first_batch_apart(&self.directory, options) {
                    Some(stream.split_first()?)
                } else {
                    None
                };
                let chunks = ChunkDriver::new(
                    Arc::clone(&directory),
                    geometry.clone(),
                    stream,
                    on_error,
                    verify_kept,
                    residency,
                )
                .patient(working_set::patience(options));
                match first {
                    None => Box::new(chunks),
                    Some(first) => {
                        let run = self.directory.layout().chunk_size_bytes as usize;
                        let first =
                            SampleDriver::new(directory, geometry, first, false, run, on_error);
                        Box::new(FirstBatchDriver::new(
                            first.numbered_from(FIRST_BATCH_TOKEN),
                            chunks,
                        ))
                    }
                }
            }
            (Batching::Sample | Batching::None, None) => {
                let one_by_one = batching == Batching::None;
                if one_by_one {
                    pump.limit_outstanding(1);
                }
                let run = FETCH_LEN_BYTES
                    .min(working_set::window_bytes(&self.directory, options) / 8)
                    .max(1);
                let on_error = options.on_error;
                Box::new(SampleDriver::new(directory, geometry, stream, one_by_one, run, on_error))
            }
        };
        // As many as a burst needs. Otherwise the first burst would allocate them, late in an
        // epoch.
        for _ in 0..READY_BATCHES + 2 {
            driver
                .recycle(Batch::with_capacity(options.batch_size.min(ROOM_SAMPLES), ROOM_BUFFERS));
        }
        let shared = Arc::new(Shared::new(residency));
        let window = window
            .map_or_else(|| Prefetcher::window(&self.directory, &self.devices, options), Ok)?;
        window.wakes(pump.waker());
        pump.use_pool(window.pool());
        pump.record_latency(&shared.latency);
        let memory = Memory::new(Arc::clone(&window));
        let directories = Arc::from([Arc::clone(&self.directory)]);
        Poller::start(pump, memory, driver, shared, directories, options, window)
    }
}

impl std::fmt::Debug for Prefetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefetcher")
            .field("state", &self.state)
            .field("stats", &self.stats())
            .finish()
    }
}

/// The result of waiting for the poller.
enum Received {
    Batch(Delivery),
    Later,
    End,
}

impl Poller {
    fn start(
        pump: Pump,
        memory: Memory,
        driver: Box<dyn Driver>,
        shared: Arc<Shared>,
        directories: Arc<[Arc<Directory>]>,
        options: &LoaderOptions,
        window: Arc<Window>,
    ) -> Result<Poller> {
        let (copiers, ready) = Copiers::start(options.copy_threads, &shared)?;
        let cpus = options.cpus.clone();
        let (recycle, recycled) = bounded(MAX_RECYCLED);
        let waker = pump.waker();
        let running = PollerThread {
            pump,
            memory,
            driver,
            shared: Arc::clone(&shared),
            copiers,
            recycled,
            held: None,
            directories,
            check_limit: CHECK_LIMIT.min(options.deadline / 4),
            checked: None,
            clock: TurnClock::new(),
            blocked_since: None,
            trace: options.trace.clone().map(TurnTrace::new),
        };
        let fate = shared.fate.clone();
        let thread = threads::start("dlfs-poller", &fate, running, move |running| {
            if let Some(Err(error)) = cpus.map(|cpus| cpus.bind_this_thread()) {
                // The processors existed a moment ago, when the memory was allocated near them.
                tracing::warn!(%error, "the poller runs anywhere");
            }
            running.run();
        })?;
        let divider = Divider::default();
        Ok(Poller { thread: Some(thread), window, shared, ready, next: 0, recycle, waker, divider })
    }

    /// Returns the batch's memory, and its vectors for reuse.
    fn give_back(&self, mut batch: Batch) {
        batch.clear();
        // A full queue only means that the poller has enough of them.
        let _ = self.recycle.try_send(batch);
    }

    /// Waits for the next message.
    fn wait(&self, limit: Duration) -> Result<Message, RecvTimeoutError> {
        self.shared.waiting.store(true, Ordering::Release);
        self.waker.wake();
        let received = self.ready[self.next].recv_timeout(limit);
        self.shared.waiting.store(false, Ordering::Release);
        received
    }

    /// Why a channel closed without a last message.
    fn death(&self) -> Error {
        self.shared.fate.of_closed_channel("the thread dlfs-poller")
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.ready.clear();
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join_within(JOIN_TIMEOUT);
        }
    }
}

/// The state of the poller thread.
struct PollerThread {
    pump: Pump,
    memory: Memory,
    driver: Box<dyn Driver>,
    shared: Arc<Shared>,
    copiers: Copiers,
    recycled: Receiver<Batch>,
    /// A message that the consumer's queue has no room for yet.
    held: Option<Message>,
    /// By source.
    directories: Arc<[Arc<Directory>]>,
    /// The longest that a check of the superblocks may take.
    check_limit: Duration,
    /// When the superblocks were last checked because of skipped samples.
    checked: Option<Instant>,
    clock: TurnClock,
    /// Since when it sleeps because it waits for the consumer.
    blocked_since: Option<Instant>,
    trace: Option<TurnTrace>,
}

impl PollerThread {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            match self.turn() {
                Turn::Moved => {}
                Turn::Idle => self.sleep(),
                Turn::Over => break,
            }
        }
        self.publish();
    }

    fn turn(&mut self) -> Turn {
        let now = Instant::now();
        if let Some(since) = self.blocked_since.take() {
            let slept_ns = now.saturating_duration_since(since).as_nanos() as u64;
            self.shared.blocked_ns.fetch_add(slept_ns, Ordering::Relaxed);
        }
        self.clock.begin(now, self.shared.waiting.load(Ordering::Acquire), &self.shared.seen);
        self.trace.iter_mut().for_each(|trace| trace.begin(now));
        let mut moved = self.pump.poll(now);
        while let Some(fetched) = self.pump.next_finished() {
            self.driver.finished(fetched);
            moved = true;
        }
        match self.hand_over() {
            Handed::Over => return Turn::Over,
            Handed::Some => moved = true,
            Handed::Nothing => {}
        }
        let before = self.pump.in_flight();
        let is_idle = before == 0;
        let starving =
            self.shared.waiting.load(Ordering::Acquire) && self.held.is_none() && is_idle;
        self.memory.set_starving(starving);
        self.shared
            .rewritten
            .each(|source, chunk, load| self.driver.read_again(source, chunk, load));
        let advanced = self.driver.advance(&mut self.pump, &mut self.memory);
        let advanced = advanced.and_then(|more| self.memory.check(more, &self.directories));
        let advanced = advanced.unwrap_or_else(|error| {
            self.held = Some(Message::Failed(error));
            false
        });
        moved |= advanced;
        let after = AfterTurn {
            planned_when_idle: is_idle && advanced,
            is_verifying: self.pump.is_verifying(),
            in_flight: self.pump.in_flight(),
            is_busy: self.pump.is_busy(),
            is_exhausted: self.memory.is_full(),
        };
        self.clock.end(after, self.shared.waiting.load(Ordering::Acquire), &self.shared.seen);
        if let Some(trace) = &mut self.trace {
            let begun = after.in_flight.saturating_sub(before);
            trace.end(now, (begun, after.in_flight), moved, after.cause());
        }
        if moved { Turn::Moved } else { Turn::Idle }
    }

    /// Takes the emptied batches back for reuse.
    fn take_back(&mut self) {
        while let Ok(batch) = self.recycled.try_recv() {
            self.driver.recycle(batch);
        }
    }

    /// Sends the complete batches, as far as the queue has room.
    fn hand_over(&mut self) -> Handed {
        let mut handed = Handed::Nothing;
        loop {
            self.take_back();
            let Some(next) = self.held.take().or_else(|| self.next_message()) else {
                return handed;
            };
            let last = !matches!(next, Message::Batch(_));
            self.publish();
            // The consumer no longer waits, though it may wake later; until then nothing is read
            // for it outside the window. Cleared before the batch is sent, since the consumer's
            // next wait sets it again.
            let awaited = self.shared.waiting.swap(false, Ordering::AcqRel);
            match self.copiers.pass_on(next) {
                Ok(()) if last => return Handed::Over,
                Ok(()) => {
                    self.clock.sent();
                    if awaited {
                        // If both threads share a processor, let the consumer run before this
                        // thread fills more memory: it returns memory that is still cached.
                        std::thread::yield_now();
                    }
                    handed = Handed::Some;
                }
                Err(TrySendError::Full(next)) => {
                    self.held = Some(next);
                    return handed;
                }
                Err(TrySendError::Disconnected(_)) => return Handed::Over,
            }
        }
    }

    /// The next message: a batch or an error, and after the last batch the end.
    fn next_message(&mut self) -> Option<Message> {
        match self.next_ready() {
            Some(Ok(delivery)) => Some(Message::Batch(delivery)),
            Some(Err(error)) => Some(Message::Failed(error)),
            None => self.driver.is_done().then_some(Message::End),
        }
    }

    /// The driver's next batch or error. If it looks damaged because the image has a newer
    /// generation, that error instead.
    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        let next = self.driver.next_ready()?;
        let looks_damaged = match &next {
            Err(error) => error.kind() == ErrorKind::Corrupt,
            Ok(delivery) => delivery.skipped > 0 && self.may_check_again(),
        };
        if !looks_damaged {
            return Some(next);
        }
        let until = Instant::now() + self.check_limit;
        let source = self.driver.suspect();
        self.pump.select(source);
        match stale_error(&mut self.pump, &self.directories[source as usize], until) {
            Some(stale) => Some(Err(stale)),
            None => Some(next),
        }
    }

    /// Returns whether the last check of the superblocks was long enough ago; if so, notes that another one begins
    /// now.
    fn may_check_again(&mut self) -> bool {
        let now = Instant::now();
        let may = self.checked.is_none_or(|at| now.saturating_duration_since(at) >= CHECK_INTERVAL);
        if may {
            self.checked = Some(now);
        }
        may
    }

    fn publish(&self) {
        *self.shared.read.lock() = self.pump.stats();
        self.shared.over_window.store(self.memory.over_window(), Ordering::Relaxed);
    }

    /// Sleeps until a completion arrives or the consumer takes a batch.
    fn sleep(&mut self) {
        let blocked = self.held.is_some() || self.memory.is_exhausted();
        let was_blocked = self.shared.blocked.swap(blocked, Ordering::AcqRel);
        if blocked && !was_blocked {
            return; // whatever the consumer did before it could see this, one more turn finds
        }
        if blocked {
            std::thread::yield_now(); // the wait below may spin first, on the consumer's processor
        }
        let now = Instant::now();
        self.blocked_since = blocked.then_some(now);
        self.pump.wait(now + MAX_SLEEP);
    }
}

enum Turn {
    Moved,
    Idle,
    Over,
}

enum Handed {
    Nothing,
    Some,
    Over,
}

/// The longest sleep of an idle poller, in case memory was returned without a wake-up.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// The interval between checks of the superblocks while samples are skipped.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How long to wait for the poller to end its turn; longer only if an engine hangs.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The most ready batches, whatever the memory.
const READY_BATCHES: usize = 64;

/// Samples and buffers that a new batch has room for; a larger batch grows once.
const ROOM_SAMPLES: usize = 1024;
const ROOM_BUFFERS: usize = 64;

/// Emptied batches kept for reuse: as many as can be in flight and ready, and one in each thread.
const MAX_RECYCLED: usize = 2 * READY_BATCHES + 2;
