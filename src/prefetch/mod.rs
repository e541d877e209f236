//! Keeps batches ready along an order, bounded by bytes, across epoch boundaries.
//!
//! A [`Prefetcher`] has one thread, the *poller*: it plans batches from the order, reads them through the
//! `reader`'s pump and puts them, in order, where [`Prefetcher::next`] takes them. How a batch is read is
//! a `Driver`'s business: `samples` reads each batch by itself, `chunks` reads whole chunks and hands
//! samples out of them, and `passes` reads chunks that do not fit the window in several passes; `batching`
//! says which, and `open` what a grouped order then has open at a time. `memory` is the window that bounds
//! all; `copy` gathers batches into one piece where the caller wants that; `window` is that memory itself,
//! and the thread that makes its pages; `kept` verifies again what stays in it from epoch to epoch.
//!
//! Invariants: batches come in the order of the order, whatever arrives first; the first error wins
//! and stays; the poller sleeps when the window is full and when nothing is on its way. The end of a run
//! is said (`Told::End`) and its samples are counted: a channel that closes without it is an error.
//!
//! Read `chunks.rs` first: it is what makes training fast.

mod batching;
mod chunks;
mod copy;
mod first_batch;
mod kept;
mod memory;
mod passes;
mod residency;
mod samples;
mod stream;
mod window;
mod working_set;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, TrySendError, bounded};
use parking_lot::Mutex;

use crate::buf::Pages;
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::{OrderSpec, Sharding, State, Tail};
use crate::process::Forked;
use crate::qpair::group::Waker;
use crate::qpair::{Cpus, Device};
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
use kept::{Kept, Rewritten};
use memory::Memory;
use passes::PassDriver;
use residency::Residency;
use samples::SampleDriver;
use stream::Head;
use working_set::FIRST_BATCH_ROOM_CHUNKS;

pub use batching::Batching;
pub(crate) use stream::Stream;
pub(crate) use window::Window;

/// How a [`Prefetcher`] works.
#[derive(Debug, Clone)]
pub struct LoaderOptions {
    /// Which sample comes next. Grouped order with 0 lanes has as many as fit the world size, or those of
    /// the state to resume from.
    pub order: OrderSpec,
    /// Samples a batch on this rank.
    pub batch_size: usize,
    /// Epochs to read.
    pub epochs: Range<u64>,
    /// This rank, below `world_size`.
    pub rank: u32,
    /// How many ranks share each epoch.
    pub world_size: u32,
    /// How the ranks share each global batch.
    pub sharding: Sharding,
    /// What becomes of an epoch's end that does not fill a global batch.
    pub tail: Tail,
    /// Whether the last batch of an epoch is left out when it has fewer than `batch_size` samples.
    pub drop_short: bool,
    /// Where to go on, instead of at the first epoch's begin.
    pub resume: Option<State>,
    /// How batches are brought in; `None`: chunks for a grouped order, samples for any other, and for a
    /// grouped order of large samples where the page cache holds the chunks already or the window is too small.
    pub batching: Option<Batching>,
    /// The most memory for what is read ahead and not yet dropped, in bytes. 0: 256 MiB, and up to 1 GiB
    /// where a grouped order of large chunks has more open at a time.
    pub window_bytes: usize,
    /// `Some(n)`: each batch comes gathered in one piece, copied by `n` threads (0: by the poller).
    pub copy_threads: Option<usize>,
    /// Queue pairs a namespace.
    pub queue_pairs: usize,
    /// What happens when a sample cannot be read.
    pub on_error: OnError,
    /// The longest that one [`Prefetcher::next`] may take.
    pub deadline: Duration,
    /// Whether the poller burns a core rather than sleep.
    pub busy_poll: bool,
    /// Whether samples that are handed out of memory kept from an earlier epoch have their checksums
    /// compared again: for callers that pass batches on to where somebody can write to them. Safe Rust
    /// cannot, so it is off unless asked for.
    pub verify_kept: bool,
    /// What the poller is bound to; the memory of samples lies near. `None`: it runs anywhere.
    pub cpus: Option<Cpus>,
}

impl LoaderOptions {
    /// Options for one rank that reads `epochs` epochs of `order` in batches of `batch_size`.
    pub fn new(order: OrderSpec, batch_size: usize, epochs: u64) -> LoaderOptions {
        LoaderOptions {
            order,
            batch_size,
            epochs: 0..epochs,
            rank: 0,
            world_size: 1,
            sharding: Sharding::Strided,
            tail: Tail::Keep,
            drop_short: false,
            resume: None,
            batching: None,
            window_bytes: 0,
            copy_threads: None,
            queue_pairs: 1,
            on_error: OnError::Raise,
            deadline: Duration::from_secs(60),
            busy_poll: false,
            verify_kept: false,
            cpus: None,
        }
    }

    /// Whether they fit each other, as far as that can be said without the image.
    ///
    /// # Errors
    /// `InvalidArgument`: the first that does not.
    pub(crate) fn check(&self) -> Result<()> {
        if self.on_error == OnError::Blank {
            let text = "a loader raises or skips; only reads by id keep places without bytes";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.stated_batching().map(drop)
    }
}

/// What a loader did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct LoaderStats {
    /// What was read.
    #[serde(flatten)]
    pub read: ReadStats,
    /// Batches handed out.
    pub batches: u64,
    /// Samples handed out.
    pub samples: u64,
    /// Bytes of those samples.
    pub sample_bytes: u64,
    /// Samples left out because they could not be read.
    pub skipped: u64,
    /// Bytes copied to gather batches in one piece.
    pub copied_bytes: u64,
    /// Runs that did not fit the window and were read outside it.
    pub over_window: u64,
    /// Samples in kept memory that somebody had written to, so that they were read again.
    pub rewritten: u64,
    /// How long [`Prefetcher::next`] had to wait, in seconds.
    pub stall_s: f64,
    /// Samples whose verified bytes are in the window now; none are kept there where batches are not made of
    /// whole chunks.
    pub resident: u64,
    /// In what pages the window lies; `None` before anything was read.
    pub pages: Option<Pages>,
}

impl LoaderStats {
    /// What is left of them when the loader has ended: nothing is resident then.
    pub fn ended(self) -> LoaderStats {
        LoaderStats { resident: 0, ..self }
    }
}

/// What came of [`Prefetcher::next_within`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// A batch.
    Batch,
    /// Nothing is ready yet.
    Later,
    /// The last epoch's last batch has been handed out before.
    End,
}

/// Batches along an order, read ahead.
pub struct Prefetcher {
    directory: Arc<Directory>,
    devices: Vec<Arc<dyn Device>>,
    options: LoaderOptions,
    poller: Option<Forked<Poller>>,
    /// Where the run stands: after the batch that was handed out last.
    state: State,
    /// Samples that the order says are to come from this loader in all.
    owed: u64,
    ended: bool,
    failed: Option<(ErrorKind, String)>,
    kept: Kept,
    stats: LoaderStats,
}

/// The running thread and the ways to it.
struct Poller {
    thread: Option<Thread>,
    window: Arc<Window>,
    shared: Arc<Shared>,
    ready: Vec<Receiver<Told>>,
    next: usize,
    recycle: Sender<Batch>,
    waker: Waker,
}

/// What both threads look at.
struct Shared {
    stop: AtomicBool,
    /// The consumer waits for a batch.
    waiting: AtomicBool,
    /// The poller waits for the consumer: for memory, or for room in the queue.
    blocked: AtomicBool,
    residency: Arc<Residency>,
    read: Mutex<ReadStats>,
    over_window: AtomicU64,
    copied_bytes: AtomicU64,
    /// Chunks in whose memory the consumer found other bytes than were read.
    rewritten: Rewritten,
    /// What the poller or a copying thread died of.
    fate: Fate,
}

/// What the poller says to the consumer. After an error or the end it says nothing more.
enum Told {
    Batch(Delivery),
    Failed(Error),
    End,
}

/// One batch on its way to the consumer.
struct Delivery {
    batch: Batch,
    head: Head,
    skipped: u64,
}

/// How batches are read. All calls come from the poller.
trait Driver: Send {
    /// Plans and starts what memory allows; whether anything was.
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool>;
    /// Takes a fetch that ended.
    fn finished(&mut self, fetched: Fetched);
    /// The next batch in order, once it is complete.
    fn next_ready(&mut self) -> Option<Result<Delivery>>;
    /// Whether every batch has been handed over.
    fn is_done(&self) -> bool;
    /// An emptied batch, whose vectors may be used again.
    fn recycle(&mut self, batch: Batch);
    /// The memory that read number `load` filled with `chunk` was written to since.
    fn read_again(&mut self, _chunk: u32, _load: u32) {}
}

impl Prefetcher {
    /// Starts reading ahead.
    ///
    /// # Errors
    /// `InvalidArgument`: options that contradict each other, or a state of another image, generation
    /// or order. Those of opening queue pairs, and `OutOfMemory` for the window.
    pub fn new(
        directory: Arc<Directory>,
        devices: Vec<Arc<dyn Device>>,
        options: LoaderOptions,
    ) -> Result<Prefetcher> {
        Prefetcher::in_window(directory, devices, options, None)
    }

    /// The memory of a loader with these options, whose pages are made from now on in the background.
    ///
    /// # Errors
    /// `InvalidArgument`: as [`Prefetcher::new`]. `OutOfMemory`: the system does not give it.
    pub(crate) fn window(
        directory: &Directory,
        devices: &[Arc<dyn Device>],
        options: &LoaderOptions,
    ) -> Result<Arc<Window>> {
        let batching = options.batching_on(directory, devices)?;
        if batching == Batching::Chunk {
            working_set::warn_of_small_window(directory, options);
        }
        working_set::warn_of_shared_reads(directory, options, batching == Batching::Chunk);
        let layout = directory.layout();
        let window_bytes = working_set::window_bytes(directory, options);
        let chunk = u64::from(layout.chunk_size_bytes);
        let (num_chunks, num_samples) =
            (u64::from(directory.num_chunks()), directory.num_samples());
        let all = (num_chunks + FIRST_BATCH_ROOM_CHUNKS).saturating_mul(chunk);
        let ready = (options.batch_size as u64).saturating_mul(READY_BATCHES as u64);
        let used_bytes = match batching {
            Batching::Chunk => all,
            Batching::Sample => all.min(all.div_ceil(num_samples.max(1)).saturating_mul(ready)),
            Batching::None => 0,
        };
        let lens = working_set::lens_of_passes(directory, options);
        // Where most runs have about one length, a slot of it keeps the window free of gaps that
        // nothing fits.
        let slot_len_bytes = match (batching, lens) {
            (Batching::Chunk, Some(lens)) => lens.copies_bytes,
            (Batching::Chunk, None) => layout.chunk_size_bytes as usize,
            (Batching::Sample | Batching::None, _) => SLOT_LEN_BYTES,
        };
        let used_bytes = usize::try_from(used_bytes).unwrap_or(usize::MAX);
        let cpus = options.cpus.as_ref();
        Ok(Arc::new(Window::new(window_bytes, slot_len_bytes, used_bytes, cpus)?))
    }

    /// A loader that goes on from `state` with the same options, in the memory of this one: to map and
    /// to zero a window of the default size takes as long as to read it full.
    ///
    /// # Errors
    /// As [`Prefetcher::new`].
    pub(crate) fn begin_anew(mut self, state: State) -> Result<Prefetcher> {
        let poller = self.poller.take().and_then(Forked::into_inner);
        let window = poller.map(|poller| Arc::clone(&poller.window));
        let options = LoaderOptions { order: state.order, resume: Some(state), ..self.options };
        Prefetcher::in_window(self.directory, self.devices, options, window)
    }

    /// As [`Prefetcher::new`], in a window of the same options.
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
        let options = LoaderOptions { batching: Some(batching), ..options };
        let mut loader = Prefetcher {
            owed: Stream::owed(&directory, &options, &start)?,
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

    /// The next batch, or `None` after the last epoch's last.
    ///
    /// # Errors
    /// As [`crate::reader::Reader::read_batch`]; after an error, the same one again.
    #[allow(clippy::should_implement_trait)] // an iterator could not give memory back through `next_into`
    pub fn next(&mut self) -> Option<Result<Batch>> {
        let mut batch = Batch::new();
        match self.next_into(&mut batch) {
            Ok(true) => Some(Ok(batch)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// As [`Prefetcher::next`], into `batch`, whose memory goes back to the window first; `false` at the
    /// end of the run.
    ///
    /// # Errors
    /// As [`Prefetcher::next`].
    pub fn next_into(&mut self, batch: &mut Batch) -> Result<bool> {
        match self.next_within(batch, self.options.deadline)? {
            Taken::Batch => Ok(true),
            Taken::End => Ok(false),
            Taken::Later => {
                let error = timed_out(self.options.deadline, &self.devices);
                self.failed = Some((error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// As [`Prefetcher::next_into`], but waits no longer than `limit`, and that it was too short is no
    /// error: the next call goes on waiting.
    ///
    /// # Errors
    /// As [`Prefetcher::next`], without `TimedOut`.
    pub fn next_within(&mut self, batch: &mut Batch, limit: Duration) -> Result<Taken> {
        if let Some((kind, text)) = &self.failed {
            return Err(Error::new(*kind, text.clone()));
        }
        if self.ended {
            return Ok(Taken::End);
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
                Ok(Taken::Batch)
            }
            Ok(Received::End) => {
                self.ended = true;
                Ok(Taken::End)
            }
            Ok(Received::Later) => Ok(Taken::Later),
            Err(error) => {
                self.failed = Some((error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// Where the run stands after the batches handed out so far: what resumes it, also with another
    /// world size or batch size.
    pub fn state(&self) -> State {
        self.state.clone()
    }

    /// Whether it has handed out an error, and hands out nothing else any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// What was done so far.
    pub fn stats(&self) -> LoaderStats {
        let mut stats = self.stats;
        if let Some(poller) = self.poller() {
            stats.read = *poller.shared.read.lock();
            stats.over_window = poller.shared.over_window.load(Ordering::Relaxed);
            stats.copied_bytes = poller.shared.copied_bytes.load(Ordering::Relaxed);
            stats.resident = poller.shared.residency.count();
            stats.pages = Some(poller.window.pool().pages());
        }
        stats
    }

    /// Whether the verified bytes of the sample are in the RAM cache now. Always `false` where
    /// batches are not made of whole chunks, since nothing is kept then.
    pub fn is_resident(&self, id: SampleId) -> bool {
        let slot = self.directory.slot_of(id);
        let poller = self.poller().zip(slot);
        poller.is_some_and(|(poller, slot)| poller.shared.residency.contains(slot))
    }

    /// How many samples are in the RAM cache now.
    pub fn num_resident(&self) -> u64 {
        self.poller().map_or(0, |poller| poller.shared.residency.count())
    }

    /// The thread, in the process that started it.
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
        let told = match poller.ready[poller.next].try_recv() {
            Ok(told) => told,
            Err(TryRecvError::Disconnected) => return Err(poller.death()),
            Err(TryRecvError::Empty) => {
                let began = Instant::now();
                let received = poller.wait(limit);
                self.stats.stall_s += began.elapsed().as_secs_f64();
                match received {
                    Ok(told) => told,
                    Err(RecvTimeoutError::Timeout) => return Ok(Received::Later),
                    Err(RecvTimeoutError::Disconnected) => return Err(poller.death()),
                }
            }
        };
        poller.next = (poller.next + 1) % poller.ready.len();
        if poller.shared.blocked.load(Ordering::Acquire) {
            poller.waker.wake();
        }
        match told {
            Told::Batch(delivery) => Ok(Received::Batch(delivery)),
            Told::Failed(error) => Err(error),
            Told::End => self.check_complete().map(|()| Received::End),
        }
    }

    /// A belt beside the braces: whatever says that the run has ended, as many samples have come as the
    /// order has.
    fn check_complete(&self) -> Result<()> {
        let LoaderStats { samples, skipped, .. } = self.stats;
        if samples + skipped == self.owed {
            return Ok(());
        }
        let text = format!(
            "the run ended after {samples} samples, {skipped} left out, and the order has {}",
            self.owed
        );
        Err(Error::new(ErrorKind::Internal, text)
            .hint("this is a mistake in dlfs: please report it"))
    }

    /// A child of a fork has no poller: it leaves the parent's alone and starts its own where the
    /// parent stood.
    fn notice_fork(&mut self) -> Result<()> {
        let forked = self.poller.as_ref().is_some_and(|poller| !poller.is_ours());
        if forked {
            self.options.resume = Some(self.state.clone());
            self.poller = None;
            self.poller = Some(Forked::new(self.start(None)?));
        }
        Ok(())
    }

    /// `window` is one of a loader with the same options, or made here.
    fn start(&self, window: Option<Arc<Window>>) -> Result<Poller> {
        let options = &self.options;
        let batching = options.batching_on(&self.directory, &self.devices)?;
        let mut pump = Pump::new(&self.devices, options.queue_pairs, options.busy_poll)?;
        pump.learn(&self.directory);
        let geometry = pump.geometry();
        let mut stream = Stream::new(Arc::clone(&self.directory), options, &self.state)?;
        let passes = working_set::lens_of_passes(&self.directory, options);
        let residency = Arc::new(Residency::new(match (batching, passes) {
            (Batching::Chunk, None) => self.directory.num_samples(),
            _ => 0,
        }));
        let directory = Arc::clone(&self.directory);
        let mut driver: Box<dyn Driver> = match (batching, passes) {
            (Batching::Chunk, Some(lens)) => {
                let on_error = options.on_error;
                Box::new(PassDriver::new(directory, geometry, stream, on_error, lens))
            }
            (Batching::Chunk, None) => {
                let (residency, on_error) = (Arc::clone(&residency), options.on_error);
                let verify_kept = options.verify_kept;
                let first = match working_set::reads_first_batch_apart(&self.directory, options) {
                    true => Some(stream.split_first()?),
                    false => None,
                };
                let chunks = ChunkDriver::new(
                    Arc::clone(&directory),
                    geometry.clone(),
                    stream,
                    on_error,
                    verify_kept,
                    residency,
                );
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
            (Batching::Sample | Batching::None, _) => {
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
        // As many as a burst makes: or else each first burst would allocate them, late in an epoch.
        for _ in 0..READY_BATCHES + 2 {
            driver.recycle(Batch::with_capacity(options.batch_size.min(ROOM_SAMPLES), ROOM_PIECES));
        }
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            residency,
            read: Mutex::new(ReadStats::default()),
            over_window: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            rewritten: Rewritten::default(),
            fate: Fate::default(),
        });
        let window = window
            .map_or_else(|| Prefetcher::window(&self.directory, &self.devices, options), Ok)?;
        window.wakes(pump.waker());
        pump.use_pool(window.pool());
        let memory = Memory::new(Arc::clone(&window));
        let directory = Arc::clone(&self.directory);
        Poller::start(pump, memory, driver, shared, directory, options, window)
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

/// What came from the poller.
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
        directory: Arc<Directory>,
        options: &LoaderOptions,
        window: Arc<Window>,
    ) -> Result<Poller> {
        let (copiers, ready) = Copiers::start(options.copy_threads, &shared)?;
        let cpus = options.cpus.clone();
        let (recycle, recycled) = bounded(MAX_RECYCLED);
        let waker = pump.waker();
        let running = Running {
            pump,
            memory,
            driver,
            shared: Arc::clone(&shared),
            copiers,
            recycled,
            held: None,
            directory,
            check_limit: CHECK_LIMIT.min(options.deadline / 4),
            checked: None,
        };
        let fate = shared.fate.clone();
        let thread = threads::start("dlfs-poller", &fate, running, move |running| {
            if let Some(Err(error)) = cpus.map(|cpus| cpus.bind_this_thread()) {
                // They were there a moment ago, when the memory was made on them.
                tracing::warn!(%error, "the poller runs anywhere");
            }
            running.run();
        })?;
        Ok(Poller { thread: Some(thread), window, shared, ready, next: 0, recycle, waker })
    }

    /// Drops the batch's memory, and offers its vectors for use again.
    fn give_back(&self, mut batch: Batch) {
        batch.clear();
        // A full queue only means that the poller has enough of them.
        let _ = self.recycle.try_send(batch);
    }

    /// Waits for what comes next.
    fn wait(&self, limit: Duration) -> Result<Told, RecvTimeoutError> {
        self.shared.waiting.store(true, Ordering::Release);
        self.waker.wake();
        let received = self.ready[self.next].recv_timeout(limit);
        self.shared.waiting.store(false, Ordering::Release);
        received
    }

    /// Why a channel closed before the end was said.
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
            thread.join_within(LAST_TURN);
        }
    }
}

/// What the poller's thread owns.
struct Running {
    pump: Pump,
    memory: Memory,
    driver: Box<dyn Driver>,
    shared: Arc<Shared>,
    copiers: Copiers,
    recycled: Receiver<Batch>,
    /// A batch that the consumer has no room for yet.
    held: Option<Told>,
    directory: Arc<Directory>,
    /// How long a look at the superblocks may take.
    check_limit: Duration,
    /// When samples were last left out and the superblocks looked at.
    checked: Option<Instant>,
}

impl Running {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            match self.turn() {
                Turn::Moved => {}
                Turn::Idle => self.rest(),
                Turn::Over => break,
            }
        }
        self.publish();
    }

    fn turn(&mut self) -> Turn {
        let mut moved = self.pump.poll(Instant::now());
        while let Some(fetched) = self.pump.next_finished() {
            self.driver.finished(fetched);
            moved = true;
        }
        match self.hand_over() {
            Handed::Over => return Turn::Over,
            Handed::Some => moved = true,
            Handed::Nothing => {}
        }
        let starving = self.shared.waiting.load(Ordering::Acquire)
            && self.held.is_none()
            && self.pump.in_flight() == 0;
        self.memory.set_starving(starving);
        self.shared.rewritten.each(|chunk, load| self.driver.read_again(chunk, load));
        match self.driver.advance(&mut self.pump, &mut self.memory) {
            Ok(more) => moved |= more,
            Err(error) => self.held = Some(Told::Failed(error)),
        }
        match moved {
            true => Turn::Moved,
            false => Turn::Idle,
        }
    }

    /// Takes the emptied batches back, so that the next ones are made of them.
    fn take_back(&mut self) {
        while let Ok(batch) = self.recycled.try_recv() {
            self.driver.recycle(batch);
        }
    }

    /// Passes on the batches that are complete, as far as there is room.
    fn hand_over(&mut self) -> Handed {
        let mut handed = Handed::Nothing;
        loop {
            self.take_back();
            let Some(next) = self.held.take().or_else(|| self.next_told()) else { return handed };
            let last = !matches!(next, Told::Batch(_));
            self.publish();
            // It waits no more, though it may wake late: until then nothing is read for it outside
            // the window. Said before the batch goes, since its next wait says the opposite.
            let awaited = self.shared.waiting.swap(false, Ordering::AcqRel);
            match self.copiers.pass_on(next) {
                Ok(()) if last => return Handed::Over,
                Ok(()) => {
                    if awaited {
                        // Where both have one processor: the consumer gets it before this thread
                        // fills more memory, and gives back what is still in the caches.
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

    /// What there is to say: the next batch or why there is none, and once there are no more, the end.
    fn next_told(&mut self) -> Option<Told> {
        match self.next_ready() {
            Some(Ok(delivery)) => Some(Told::Batch(delivery)),
            Some(Err(error)) => Some(Told::Failed(error)),
            None => self.driver.is_done().then_some(Told::End),
        }
    }

    /// The driver's next batch or error; in place of damage, that the image has moved on, if it has.
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
        match stale_error(&mut self.pump, &self.directory, until) {
            Some(stale) => Some(Err(stale)),
            None => Some(next),
        }
    }

    /// Whether the superblocks were not looked at just before: where much is left out, seldom will do.
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

    /// Nothing moves: sleeps until a completion comes, or until the consumer takes a batch.
    fn rest(&mut self) {
        let blocked = self.held.is_some() || self.memory.is_exhausted();
        let told = self.shared.blocked.swap(blocked, Ordering::AcqRel);
        if blocked && !told {
            return; // what the consumer did before it could see this is found by one more turn
        }
        if blocked {
            std::thread::yield_now(); // the wait below may spin first, on the consumer's processor
        }
        self.pump.wait(Instant::now() + REST);
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

/// The longest sleep of an idle poller: memory that comes back without a word is noticed then.
const REST: Duration = Duration::from_millis(20);

/// After how long the superblocks are looked at again while samples are left out.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How long a poller that was told to end is waited for: it ends with its turn, unless an engine hangs.
const LAST_TURN: Duration = Duration::from_secs(5);

/// Batches ready at most, whatever the memory.
const READY_BATCHES: usize = 64;

/// Samples and runs of memory that the first batches have room for; what has more grows once.
const ROOM_SAMPLES: usize = 1024;
const ROOM_PIECES: usize = 64;

/// Emptied batches kept for use again: as many as can be under way and ready at a time, and those in
/// both threads' hands.
const MAX_RECYCLED: usize = 2 * READY_BATCHES + 2;
