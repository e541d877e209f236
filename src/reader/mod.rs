//! Reads samples: turns a batch of ids into few large reads, and verifies the data.
//!
//! [`Reader`] reads batches of ids on the caller's thread; `prefetch` uses the same modules to read along an order
//! on its own thread. `fetch` plans reads, `pump` submits and polls reads, `in_flight` verifies them, and `batch` holds
//! the location of each sample. `gather` reads thousands of scattered samples, `sample_ranges` ranges of large samples,
//! for which `piece_tables` keeps checksums. `range` reads large ranges of a namespace, and `superblocks` reads
//! superblocks. These modules do not depend on an engine.
//!
//! This is the path of a batch in grouped order over TCP. The poller's thread executes all steps except the last:
//!
//! ```text
//!  1  order/order/mod.rs    EpochOrder::picks     positions of the batch -> chunk, and sample in the chunk
//!  2  prefetch/chunks.rs    ChunkDriver::advance  requests the chunks that planned batches lack
//!  3  reader/fetch.rs       plan_chunk            ids and extents of a chunk -> one fetch
//!  4  reader/pump.rs        Pump::start           divides the chunk's buffer among the transfers
//!  5  reader/pump.rs        Pump::submit          gives the queue pair all reads that it has room for
//!  6  nvme/tcp/host.rs      Connection::submit    a slot, and a command capsule in the transmit queue
//!  7  io/qpair/tcp/link.rs  send                  one sendmsg for the burst            -> the wire
//!  8  io/qpair/tcp/link.rs  receive               readv, straight into the buffer      <- the wire
//!  9  nvme/tcp/host.rs      Connection::complete  the response completes the command
//! 10  reader/in_flight.rs   InFlight::verify_transfer  compares the checksum of each sample
//! 11  prefetch/chunks.rs    ChunkDriver::assemble locations of samples in loaded chunks -> the batch
//! 12  dataset/loader.rs     Loader::next          the caller's thread takes it
//! ```
//!
//! Invariants: every byte of a batch has been verified by a checksum, except that the first read of a file of a plain
//! folder only stores its checksum; only the pump has a buffer while reads fill it, and afterwards batches share it,
//! read-only; nothing is allocated for each sample.
//!
//! A [`Watch`] interrupts a call that waits: a language binding asks its interpreter whether a signal has arrived.
//!
//! Read `pump.rs` first.

mod batch;
mod fetch;
mod gather;
mod in_flight;
mod piece_tables;
mod pump;
mod range;
mod sample_ranges;
mod superblocks;
#[cfg(feature = "unverified")]
pub mod unverified;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buf::{HugePages, IoBuf, Pool, PoolOptions};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result, no_memory};
use crate::metrics::Recorder;
use crate::process::Forked;
use crate::qpair::Device;
use crate::units::{Epoch, SampleId, deadline};

pub use batch::{Batch, Sample};
pub(crate) use batch::{BatchOfSource, SampleLocation};
pub(crate) use fetch::{Fetch, Geometry, Merge, SamplePlans, SampleRequest, plan_chunk};
pub(crate) use piece_tables::PieceTables;
pub use pump::ReadStats;
pub(crate) use pump::{Fetched, Pump};
pub(crate) use range::RangeReader;
pub use sample_ranges::{Ranges, SampleRange};
pub(crate) use superblocks::{read_superblocks, stale_error};

/// Options of a [`Reader`].
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    /// Memory for batches, in bytes. A batch that needs more allocates the rest from the system, and the first such
    /// batch logs a warning. A batch of at least 4,096 samples that needs more is instead copied into one buffer,
    /// through a few megabytes of this memory.
    pub window_bytes: usize,
    /// Queue pairs for each namespace.
    pub queue_pairs: usize,
    /// The timeout of one call.
    pub deadline: Duration,
    /// Spins instead of sleeping while I/O is outstanding.
    pub busy_poll: bool,
}

impl Default for ReaderOptions {
    fn default() -> ReaderOptions {
        ReaderOptions {
            window_bytes: 64 << 20,
            queue_pairs: 1,
            deadline: Duration::from_secs(60),
            busy_poll: false,
        }
    }
}

/// The treatment of a sample that does not exist or cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The call fails with the error of the first such sample. A loader returns this error at all later calls, too.
    #[default]
    Raise,
    /// The batch lacks the sample; a loader logs a warning and counts the sample. If the image has a newer
    /// generation, the call still fails.
    Skip,
    /// The sample keeps its position in the batch, without bytes. Only for reads by id; loaders refuse it.
    Blank,
}

/// Reads batches of samples by id, on the caller's thread.
pub struct Reader {
    directory: Arc<Directory>,
    devices: Vec<Arc<dyn Device>>,
    /// The queue pairs. `None` only if they could not be opened again after a fork.
    pump: Option<Forked<Pump>>,
    latency: Arc<Recorder>,
    pieces: Arc<PieceTables>,
    /// The window.
    pool: Pool,
    options: ReaderOptions,
    plans: SamplePlans,
    /// Set once a warning has said that the window is too small.
    warned: bool,
    /// The token of the last fetch.
    last_token: u64,
}

impl Reader {
    /// A reader of the image on `devices`, given in the order of the image's superblocks.
    ///
    /// # Errors
    /// Errors of opening queue pairs; `OutOfMemory`: the window cannot be allocated.
    pub fn new(
        directory: Arc<Directory>,
        devices: Vec<Arc<dyn Device>>,
        options: ReaderOptions,
    ) -> Result<Reader> {
        let pool = Pool::new(PoolOptions {
            bytes: options.window_bytes.max(SLOT_LEN_BYTES),
            slot_len_bytes: SLOT_LEN_BYTES,
            huge_pages: HugePages::Auto,
        })?;
        let mut reader = Reader {
            directory,
            devices,
            pump: None,
            latency: Arc::default(),
            pieces: Arc::default(),
            pool,
            options,
            plans: SamplePlans::new(Vec::new()),
            warned: false,
            last_token: 0,
        };
        reader.open_pump()?;
        Ok(reader)
    }

    /// Shares the checksums of pieces of large samples with other readers of the image, in both directions.
    pub(crate) fn share_pieces(&mut self, pieces: &Arc<PieceTables>) {
        self.pieces = Arc::clone(pieces);
    }

    /// The recorder of this reader's command latency.
    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.latency
    }

    /// Counters of the I/O so far.
    pub fn stats(&self) -> ReadStats {
        self.pump.as_ref().and_then(Forked::get).map_or_else(ReadStats::default, Pump::stats)
    }

    /// Reads the samples with these `ids` into `batch`, in the order of `ids`.
    ///
    /// Polls on the calling thread until all have arrived. Allocates only while `batch` still grows, or if the window
    /// has no room. If `ids` are thousands and their blocks exceed the window, copies the samples into one buffer: the
    /// call then takes the length of the samples, 32 bytes for each sample, and a few megabytes.
    ///
    /// # Errors
    /// `NotFound`: an id is not in the directory, or deleted; nothing was read. `Corrupt`: a checksum is wrong even
    /// after a second read; the error names the sample and its LBA. `Stale`: the image has a newer generation.
    /// `TimedOut`: the deadline has passed. `Disconnected`: reconnecting failed. `OutOfMemory`. Errors of the target.
    pub fn read_batch(&mut self, ids: &[SampleId], batch: &mut Batch) -> Result<()> {
        let mut failures = self.read_batch_each(ids, batch)?;
        if failures.is_empty() {
            Ok(())
        } else {
            batch.reset(&self.directory, Epoch(0));
            Err(failures.swap_remove(0).1)
        }
    }

    /// As [`Reader::read_batch`], but a sample that cannot be read does not fail the call. Returns the positions in
    /// `ids` that failed, ascending, with their errors; the samples there are empty in `batch`.
    ///
    /// # Errors
    /// `NotFound`, `Stale`, `TimedOut`, `OutOfMemory`: the whole call failed.
    pub fn read_batch_each(
        &mut self,
        ids: &[SampleId],
        batch: &mut Batch,
    ) -> Result<Vec<(usize, Error)>> {
        if let Some(&id) = ids.iter().find(|&&id| !self.directory.is_live(id)) {
            batch.reset(&self.directory, Epoch(0));
            return Err(not_in_directory(&self.directory, id));
        }
        self.read_batch_watched(ids, batch, &mut ())
    }

    /// As [`Reader::read_batch_each`], but an id without a sample does not fail the call either. `watch` is
    /// notified of each sample that arrives, and may interrupt the call.
    ///
    /// # Errors
    /// `Interrupted`: `watch` interrupted it. `Stale`, `TimedOut`, `OutOfMemory`: the whole call failed.
    pub fn read_batch_watched(
        &mut self,
        ids: &[SampleId],
        batch: &mut Batch,
        watch: &mut dyn Watch,
    ) -> Result<Vec<(usize, Error)>> {
        self.notice_fork()?;
        self.read_in_call(ids, batch, &mut Call::new(self.options.deadline, watch))
    }

    /// As [`Reader::read_batch_watched`], until the deadline of `call`.
    fn read_in_call(
        &mut self,
        ids: &[SampleId],
        batch: &mut Batch,
        call: &mut Call<'_>,
    ) -> Result<Vec<(usize, Error)>> {
        batch.reset(&self.directory, Epoch(0));
        if self.gathers(ids) {
            return self.gather(ids, batch, call);
        }
        let mut failures = self.plan(ids);
        batch.resize(ids.len());
        for (index, &id) in ids.iter().enumerate() {
            batch.samples[index] = SampleLocation { id, buf: 0, len_bytes: 0, offset: 0 };
        }
        let mut fetches = std::mem::take(&mut self.plans.fetches);
        let begun = self.begin_all(fetches.drain(..));
        self.plans.fetches = fetches;
        self.finish(begun?, call, &mut |fetched, watch| {
            add_fetched(&fetched, batch);
            let mut failed = fetched.failures.iter().map(|(index, _)| *index).peekable();
            for (index, sample) in fetched.fetch.samples.iter().enumerate() {
                if failed.next_if_eq(&index).is_none() {
                    watch.arrived(batch, sample.index as usize);
                }
            }
            let Fetched { fetch, failures: why, .. } = fetched;
            let why = why.into_iter();
            failures.extend(why.map(|(index, e)| (fetch.samples[index].index as usize, e)));
            Some(fetch)
        })?;
        self.judge(failures, call.deadline)
    }

    /// Starts `fetches` and returns the token before their first. If one has no memory, abandons those that were
    /// started: the next call would take them for its own.
    fn begin_all(&mut self, fetches: impl IntoIterator<Item = Fetch>) -> Result<u64> {
        let first_token = self.last_token;
        let begun = fetches.into_iter().try_for_each(|fetch| {
            let buf = self.allocate(&fetch)?;
            self.begin(fetch, buf)
        });
        if begun.is_err() {
            self.abandon_since(first_token);
        }
        begun.map(|()| first_token)
    }

    /// Starts a fetch with the next token.
    fn begin(&mut self, fetch: Fetch, buf: IoBuf) -> Result<()> {
        self.last_token += 1;
        let token = self.last_token;
        self.pump()?.start(token, fetch, buf);
        Ok(())
    }

    /// Polls until all fetches have finished; `first_token` is the token before the first of this call. Passes each to
    /// `take`, which may return the fetch's plan for reuse. If the call must end early, abandons the remaining fetches.
    fn finish(
        &mut self,
        first_token: u64,
        call: &mut Call<'_>,
        take: &mut dyn FnMut(Fetched, &mut dyn Watch) -> Option<Fetch>,
    ) -> Result<()> {
        while self.pump()?.in_flight() > 0 {
            if let Err(error) = self.poll_once(call, take) {
                self.abandon_since(first_token);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Polls once, passes arrived fetches to `take`, and sleeps if none has arrived.
    fn poll_once(
        &mut self,
        call: &mut Call<'_>,
        take: &mut dyn FnMut(Fetched, &mut dyn Watch) -> Option<Fetch>,
    ) -> Result<()> {
        let now = Instant::now();
        let has_progressed = self.pump()?.poll(now);
        while let Some(fetched) = self.pump()?.next_finished() {
            if let Some(fetch) = take(fetched, call.watch) {
                self.plans.recycle(fetch);
            }
        }
        // Not in the loop: an interruption there would leave finished fetches to the next call.
        call.ask()?;
        if self.pump()?.in_flight() > 0 {
            if now >= call.deadline {
                return Err(timed_out(self.options.deadline, &self.devices));
            }
            if !has_progressed {
                self.pump()?.wait(call.until());
            }
        }
        Ok(())
    }

    /// Sorts the failures of a call by position. If samples are corrupt because the image has a newer generation,
    /// returns `Stale` instead.
    fn judge(
        &mut self,
        mut failures: Vec<(usize, Error)>,
        deadline: Instant,
    ) -> Result<Vec<(usize, Error)>> {
        failures.sort_by_key(|(index, _)| *index);
        if failures.iter().any(|(_, error)| error.kind() == ErrorKind::Corrupt) {
            let until = deadline.min(Instant::now() + CHECK_LIMIT);
            let directory = Arc::clone(&self.directory);
            if let Some(stale) = stale_error(self.pump()?, &directory, until) {
                return Err(stale);
            }
        }
        Ok(failures)
    }

    /// Plans the reads; returns the positions of the ids that do not exist, with their errors.
    fn plan(&mut self, ids: &[SampleId]) -> Vec<(usize, Error)> {
        let mut absent = Vec::new();
        self.plans.look_up(&self.directory, ids);
        let SamplePlans { extents, requests, .. } = &mut self.plans;
        for (index, (&id, &extent)) in ids.iter().zip(&*extents).enumerate() {
            match extent {
                Some(extent) => requests.push(SampleRequest { index: index as u32, id, extent }),
                None => absent.push((index, not_in_directory(&self.directory, id))),
            }
        }
        self.plans.plan(.., Merge::Neighbours, FETCH_LEN_BYTES);
        absent
    }

    /// A buffer from the window, or from the system if the window has no room.
    fn allocate(&mut self, fetch: &Fetch) -> Result<IoBuf> {
        if let Some(buf) = self.pool.take(fetch.len_bytes) {
            return Ok(buf);
        }
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                window_bytes = self.options.window_bytes,
                "batches need more memory than the window has; the rest is allocated outside it"
            );
        }
        self.outside(fetch)
    }

    fn outside(&self, fetch: &Fetch) -> Result<IoBuf> {
        let of = fetch.samples.first().map(|sample| sample.id);
        self.pool
            .outside(fetch.len_bytes)
            .map_err(|_| no_room(&self.directory, fetch.len_bytes, of))
    }

    /// Abandons all fetches that were started after `token`.
    fn abandon_since(&mut self, token: u64) {
        let last = self.last_token;
        if let Some(pump) = self.pump.as_mut().and_then(Forked::get_mut) {
            (token + 1..=last).for_each(|token| pump.abandon(token));
        }
    }

    /// Opens new queue pairs in a forked child, which must not use its parent's; also if opening failed before.
    fn notice_fork(&mut self) -> Result<()> {
        if self.pump.as_ref().is_some_and(Forked::is_ours) {
            return Ok(());
        }
        self.pump = None;
        self.open_pump()
    }

    fn open_pump(&mut self) -> Result<()> {
        let mut pump = Pump::new(&self.devices, self.options.queue_pairs, self.options.busy_poll)?;
        pump.learn(&self.directory);
        pump.use_pool(&self.pool);
        pump.record_latency(&self.latency);
        self.plans.geometry = pump.geometry();
        self.pump = Some(Forked::new(pump));
        Ok(())
    }

    fn pump(&mut self) -> Result<&mut Pump> {
        self.pump.as_mut().and_then(Forked::get_mut).ok_or_else(|| {
            Error::new(
                ErrorKind::Disconnected,
                "the queue pairs could not be opened again after a fork",
            )
        })
    }
}

/// Adds the samples of a fetch to the batch; failed samples are empty in the batch.
pub(crate) fn add_fetched(fetched: &Fetched, batch: &mut Batch) {
    let buf = batch.add_buf(fetched.buf.clone());
    let mut failed = fetched.failures.iter().map(|(index, _)| *index).peekable();
    for (index, sample) in fetched.fetch.samples.iter().enumerate() {
        let has_failed = failed.next_if_eq(&index).is_some();
        let len_bytes = if has_failed { 0 } else { sample.len_bytes };
        let location = SampleLocation { id: sample.id, buf, len_bytes, offset: sample.buf_offset };
        batch.samples[sample.index as usize] = location;
    }
}

fn not_in_directory(directory: &Directory, id: SampleId) -> Error {
    let text = match directory.view() {
        _ if id.0 >= directory.num_samples() => "there is no such sample",
        Some(_) => "the sample was deleted, or is not in the view",
        None => "the sample was deleted",
    };
    let last = directory.num_samples().saturating_sub(1);
    Error::new(ErrorKind::NotFound, text).sample(id).hint(format!("ids go from 0 to {last}"))
}

/// The error if the system has no memory for a buffer of `len` bytes outside the window; `sample` is the first
/// sample that the buffer was to hold.
pub(crate) fn no_room(directory: &Directory, len: usize, sample: Option<SampleId>) -> Error {
    let name = sample.and_then(|id| directory.name(id).ok().flatten());
    let what = name.map_or_else(
        || "what is read next".to_owned(),
        |name| format!("`{}`", name.escape_ascii()),
    );
    let error = no_memory(len, &what);
    match sample {
        Some(id) => error.sample(id),
        None => error,
    }
}

/// Observes a call while it waits, and may interrupt it. `()` never interrupts.
pub trait Watch {
    /// Called at least every 100 ms while the call waits; `false` ends the call with `Interrupted`.
    fn goes_on(&mut self) -> bool {
        true
    }

    /// Called when the sample at `index` of `batch` has arrived and is verified, in the order of arrival. Only
    /// reads by id call this. The watch may read this sample, but no others: they may be moving to another buffer.
    fn arrived(&mut self, _batch: &Batch, _index: usize) {}
}

impl Watch for () {}

/// Asks a closure whether to go on.
impl<F: FnMut() -> bool> Watch for F {
    fn goes_on(&mut self) -> bool {
        self()
    }
}

/// A call that waits: its deadline, and the watch that may interrupt it.
struct Call<'a> {
    deadline: Instant,
    next_tick: Instant,
    watch: &'a mut dyn Watch,
}

impl Call<'_> {
    /// A call that begins now and may take up to `limit`.
    fn new(limit: Duration, watch: &mut dyn Watch) -> Call<'_> {
        let now = Instant::now();
        Call { deadline: deadline(now, limit), next_tick: now + TICK, watch }
    }

    /// Asks the watch whether to go on, once per [`TICK`].
    ///
    /// # Errors
    /// `Interrupted`: the watch ends the call.
    fn ask(&mut self) -> Result<()> {
        let now = Instant::now();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            if !self.watch.goes_on() {
                return Err(interrupted());
            }
        }
        Ok(())
    }

    /// The end of the longest sleep: the deadline, or the next question to the watch.
    fn until(&self) -> Instant {
        self.deadline.min(self.next_tick)
    }
}

/// The error of a call that did not finish within `limit`. Says why a device is not connected, if one is not.
pub(crate) fn timed_out(limit: Duration, devices: &[Arc<dyn Device>]) -> Error {
    let address = devices.first().map_or_else(String::new, |device| device.namespace().address);
    let mut message = format!("no batch was ready within {limit:?}");
    let mut hint = "check that the target is up; raise the deadline if it is only slow";
    if let Some(failure) = devices.iter().find_map(|device| device.last_failure()) {
        message.push_str(&format!("; the last attempt to connect failed: {failure}"));
        hint = failure.hint.unwrap_or(hint);
    }
    Error::new(ErrorKind::TimedOut, message).target(address).hint(hint)
}

/// The error of a call that its [`Watch`] interrupted.
pub(crate) fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "the call was interrupted")
}

/// Length of a slot of the pool: small enough that a tiny batch wastes little, large enough that a buffer spans few
/// slots.
pub(crate) const SLOT_LEN_BYTES: usize = 64 << 10;

/// The approximate length of the largest buffer that samples of one batch share: longer free ranges of a pool are
/// rare.
pub(crate) const FETCH_LEN_BYTES: usize = 4 << 20;

/// The timeout for reading superblocks to tell damage from a newer generation.
pub(crate) const CHECK_LIMIT: Duration = Duration::from_secs(5);

/// The interval at which calls ask their [`Watch`]: half of the promised one.
pub(crate) const TICK: Duration = Duration::from_millis(50);
