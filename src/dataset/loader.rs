//! A loader that threads can share, that a [`Watch`] can interrupt, and that a forked child can continue.
//!
//! The loader starts a reader of batches ([`Reading`]) in the background at the first request, and ends it when the
//! run is moved to another position. The position itself is in atomics, so that a child forked at any moment can read
//! it and start a reader of its own.

mod reading;
mod report;
mod stored;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use reading::Reading;
use report::Record;
use stored::Stored;

use super::run_data::RunData;
use super::{Background, Share, sum_stats};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::metrics::{Measured, Snapshot};
use crate::order::budget::RowPlace;
use crate::order::{MAX_EPOCHS, OrderKind, OrderSpec, State};
use crate::prefetch::{self, LoaderOptions, LoaderStats, NextBatch, Window};
use crate::process::Forked;
use crate::reader::{Batch, TICK, Watch, interrupted, timed_out};
use crate::registry::Registration;
use crate::report::Cause;
use crate::store::StoreStats;
use crate::tokens::Layout;
use crate::units::{Epoch, SampleId, deadline};

/// Batches along an order. After the first request, threads of the library read ahead.
///
/// The run may be moved to another epoch or state at any time.
pub struct Loader {
    /// The data set or mixture, until the loader is closed. The lock is held only to clone it, and only
    /// [`Loader::close`] locks it for writing: a child forked while a thread reads can thus clone it too.
    data: RwLock<Option<RunData>>,
    /// The directory of the data set, or of a mixture's first source.
    directory: Arc<Directory>,
    /// Samples of an epoch.
    len: u64,
    options: LoaderOptions,
    share: Share,
    /// Image, generation and order of the run's states. The current epoch and samples consumed are in `position`, the
    /// lanes of the order in `lanes`.
    base: State,
    /// Lanes of a grouped order, which a resumed state may change; 0 for other orders.
    lanes: AtomicU64,
    /// Epoch and samples consumed. Outside the lock, so that a forked child can read it.
    position: AtomicU64,
    /// The place within rows of tokens at that position. A thread that reads it while it changes may get words of two
    /// places, which [`State::check_place`] detects.
    place: [AtomicU64; 4],
    /// The position after the last delivered batch if that batch was not the epoch's last, so that more batches follow;
    /// else, and before the first batch, `u64::MAX`.
    more_after: AtomicU64,
    closed: AtomicBool,
    /// The reader of this process: a forked child starts one of its own.
    running: Arc<Forked<Mutex<Running>>>,
    /// The store of this rank, which is told the loader's progress.
    store: Option<Stored>,
    _metered: Registration,
}

/// The reader of batches in one process, and what has become of earlier ones.
#[derive(Default)]
struct Running {
    reading: Option<Reading>,
    /// The reader while it connects. It is dropped when the run is moved, but not when a call ends: the
    /// next call continues to wait for it.
    starting: Option<Background<Reading>>,
    /// The reader from before the run was moved; the next one reuses its memory.
    previous: Option<Reading>,
    /// The window for the first reader, if [`Loader::prepare`] has allocated it.
    prepared: Option<Arc<Window>>,
    /// Counters of earlier readers of this run, and the waits for readers to start.
    past: LoaderStats,
    /// Counters of the reads of this process for its node, by all readers of this run.
    of_node: Arc<Mutex<LoaderStats>>,
    /// The record of the deliveries and waits since the first batch.
    record: Option<Record>,
    /// Number of calls of [`Running::end`]. A batch that was taken before the last of them is no longer the next one.
    ends: u64,
}

/// A batch's place in the run, while it is taken and not delivered: see [`Loader::take`].
#[derive(Debug)]
pub struct Taken {
    /// The state of the run after the batch.
    after: State,
    ends_epoch: bool,
    /// [`Running::ends`] when the batch was taken.
    ends: u64,
}

impl Loader {
    pub(super) fn of(data: RunData, options: LoaderOptions) -> Result<Loader> {
        let options = data.prepared(options)?;
        let base = data.start(&options)?;
        let share = Share::of(&data, &options)?;
        let store = data.first().image().store().filter(|_| data.mix.is_none());
        let store = store.and_then(|store| Stored::new(store, &options));
        let len = data.len(&options);
        let base = normal(base, len);
        let position = AtomicU64::new(pack(&base)?);
        let place = pack_place(base.place).map(AtomicU64::new);
        let running = Arc::new(Forked::new(Mutex::default()));
        Ok(Loader {
            _metered: Registration::new(&running),
            store,
            directory: Arc::clone(data.directory()),
            data: RwLock::new(Some(data)),
            len,
            share,
            lanes: AtomicU64::new(pack_lanes(&base.order)),
            base,
            position,
            place,
            more_after: AtomicU64::new(u64::MAX),
            closed: AtomicBool::new(false),
            running,
            options,
        })
    }

    /// A loader of another run over the same data set with the same options and from the same state. It has a window of
    /// its own, and a trace and layouts of rows of its own if the options have them.
    ///
    /// # Errors
    /// `Interrupted`: this loader was closed.
    pub fn begin_another(&self) -> Result<Loader> {
        self.check_open()?;
        // A trace shared by two runs would have events out of order.
        let trace = self.options.trace.as_ref().map(|_| Arc::default());
        let layouts = self.options.layouts.as_ref().map(|_| Arc::default());
        let options = LoaderOptions { trace, layouts, ..self.options.clone() };
        let another = Loader::of(self.run_data()?, options)?;
        another.go_to(self.state())?;
        Ok(another)
    }

    /// Allocates the prefetch window, and faults it in in the background; otherwise the first batch does. A job calls
    /// this in the reading process, before its own preparations. It reads no samples.
    ///
    /// # Errors
    /// `OutOfMemory`: the window cannot be allocated. `Interrupted`: the loader was closed.
    pub fn prepare(&self) -> Result<()> {
        self.check_open()?;
        if self.options.node.is_some() {
            return Ok(()); // the window is that of the process that reads for the node
        }
        let mut running = self.running.get_or_init(Mutex::default).lock();
        let Running { reading, starting, previous, prepared, .. } = &mut *running;
        if reading.is_none() && starting.is_none() && previous.is_none() && prepared.is_none() {
            let data = self.run_data()?;
            let order = self.order();
            let options =
                LoaderOptions { order, mixture: data.mix.clone(), ..self.options.clone() };
            let devices = data.devices();
            *prepared = Some(prefetch::Prefetcher::window(&self.directory, &devices, &options)?);
        }
        Ok(())
    }

    /// The next batch, or `None` after the last batch of the last epoch. Waits until one is ready.
    ///
    /// # Errors
    /// `TimedOut`: no batch was ready within the deadline; call again to continue waiting. `Interrupted`:
    /// `watch` or [`Loader::close`] ended the wait, and no batch is lost. Errors of
    /// [`Dataset::read`](crate::dataset::Dataset::read): each later call returns the same error, until
    /// [`Loader::set_epoch`] or [`Loader::set_state`] restarts the run.
    pub fn next(&self, watch: &mut dyn Watch) -> Result<Option<Batch>> {
        let mut batch = Batch::new();
        Ok(self.next_into(&mut batch, watch)?.then_some(batch))
    }

    /// Like [`Loader::next`], into `batch`, whose memory is first returned to the window; `false` at the end.
    ///
    /// # Errors
    /// Errors of [`Loader::next`].
    pub fn next_into(&self, batch: &mut Batch, watch: &mut dyn Watch) -> Result<bool> {
        self.next_with(batch, &mut Layout::default(), None, watch)
    }

    /// Takes the next batch without moving the run behind it, for a caller that may fail to pass the batch on. The
    /// state of the run stays before the batch until [`Loader::deliver`] is called; until then the caller keeps the
    /// batch, and must not take another one. `None` after the last batch of the last epoch.
    ///
    /// # Errors
    /// Errors of [`Loader::next`].
    pub fn take(&self, watch: &mut dyn Watch) -> Result<Option<(Batch, Taken)>> {
        let mut batch = Batch::new();
        let mut taken = None;
        self.next_with(&mut batch, &mut Layout::default(), Some(&mut taken), watch)?;
        Ok(taken.map(|taken| (batch, taken)))
    }

    /// Like [`Loader::take`], without waiting: `None` also if no batch is ready.
    ///
    /// # Errors
    /// Errors of [`Loader::next`].
    pub fn take_ready(&self) -> Result<Option<(Batch, Taken)>> {
        let mut batch = Batch::new();
        let mut taken = None;
        let now = Instant::now();
        let layout = &mut Layout::default();
        self.try_next(&mut batch, layout, Some(&mut taken), now, Duration::ZERO)?;
        Ok(taken.map(|taken| (batch, taken)))
    }

    /// Returns whether a taken batch is still the next one: the run was not moved since.
    pub fn is_next(&self, taken: &Taken) -> bool {
        self.running.get_or_init(Mutex::default).lock().ends == taken.ends
    }

    /// Moves the run behind a taken batch. `false`: the batch is not the next one any more, and the run does not move.
    pub fn deliver(&self, taken: &Taken) -> bool {
        let running = self.running.get_or_init(Mutex::default).lock();
        let is_next = running.ends == taken.ends;
        if is_next {
            self.go_behind(&taken.after, taken.ends_epoch).expect("packed when it was taken");
        }
        is_next
    }

    /// Waits for the next batch. If batches are rows of tokens, their layout goes to `layout`. With `taken`, the run
    /// stays before the batch, as with [`Loader::take`]; without, it moves behind the batch.
    pub(super) fn next_with(
        &self,
        batch: &mut Batch,
        layout: &mut Layout,
        mut taken: Option<&mut Option<Taken>>,
        watch: &mut dyn Watch,
    ) -> Result<bool> {
        let asked = Instant::now();
        self.options.trace.iter().for_each(|trace| _ = trace.began(asked));
        let mut until = deadline(asked, self.options.deadline);
        let mut before = self.preparation();
        loop {
            self.check_open()?;
            // Staging a share may take long, and so may passing over many rows; the deadline limits only a time
            // without progress.
            let preparation = self.preparation();
            if before != preparation {
                until = deadline(Instant::now(), self.options.deadline);
                before = preparation;
            }
            let left = until.saturating_duration_since(Instant::now());
            let limit = left.min(TICK);
            match self.try_next(batch, layout, taken.as_deref_mut(), asked, limit)? {
                NextBatch::Ready => return Ok(true),
                NextBatch::End => return Ok(false),
                NextBatch::Later if left == Duration::ZERO => return Err(self.late()),
                NextBatch::Later if watch.goes_on() => {}
                NextBatch::Later => return Err(interrupted()),
            }
        }
    }

    /// Progress of the work before the next batch can be read: samples staged, and rows passed over.
    fn preparation(&self) -> (u64, u64) {
        let drawn = self.options.layouts.as_ref().map_or(0, |layouts| layouts.drawn());
        (self.staged(), drawn)
    }

    /// Moves to the start of `epoch`, or to the end of the run if `epoch` is the end of the options' epochs. If the run
    /// is already there, readahead keeps its samples.
    ///
    /// # Errors
    /// `InvalidArgument`: the run has no such epoch.
    pub fn set_epoch(&self, epoch: u64) -> Result<()> {
        let mut state = State { order: self.order(), ..self.base.clone() };
        state.move_to((Epoch(epoch), 0), None);
        self.go_to(state)
    }

    /// The state after the batches delivered so far to all threads. A run can resume from it with another
    /// world size or batch size too.
    pub fn state(&self) -> State {
        let mut state = State { order: self.order(), ..self.base.clone() };
        // Another thread may move the run meanwhile, or have been about to at a fork.
        for _ in 0..READS_OF_PLACE {
            (state.epoch, state.consumed) = unpack(self.position.load(Ordering::Acquire));
            state.place = unpack_place(self.place.each_ref().map(|it| it.load(Ordering::Acquire)));
            if state.check_place().is_ok() {
                return state;
            }
        }
        State { place: None, ..state }
    }

    /// Sets the current position to that of `state`; `position` is the same, packed.
    fn move_to(&self, state: &State, position: u64) {
        for (to, word) in self.place.iter().zip(pack_place(state.place)) {
            to.store(word, Ordering::Release);
        }
        self.position.store(position, Ordering::Release);
    }

    fn order(&self) -> OrderSpec {
        with_lanes(self.base.order, self.lanes.load(Ordering::Acquire))
    }

    /// Resumes from `state`. If the options do not set the lanes, those of `state` are used.
    ///
    /// # Errors
    /// `InvalidArgument`, `Stale`: the state belongs to another data set or order, and the message says
    /// which. The run does not move.
    pub fn set_state(&self, state: &State) -> Result<()> {
        self.run_data()?.check_state(state, &self.options)?;
        match &self.base.mixture {
            None => self.go_to(state.clone()),
            mixture => {
                let State { image, .. } = self.base;
                self.go_to(State { image, mixture: mixture.clone(), ..state.clone() })
            }
        }
    }

    /// The epoch of the next batch.
    pub fn epoch(&self) -> u64 {
        self.state().epoch.0
    }

    /// This rank's share of each epoch.
    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    /// Batches of a whole epoch on this rank. With a budget, they are counted for the epoch that
    /// [`Loader::epoch`] returns, from the lengths of all its samples.
    pub fn batches_per_epoch(&self) -> u64 {
        self.share.batches_after(&State { consumed: 0, ..self.state() })
    }

    /// Batches left for this rank in the epoch that [`Loader::epoch`] returns.
    pub fn batches_left(&self) -> u64 {
        let state = self.state();
        if state.epoch.0 < self.options.epochs.end { self.share.batches_after(&state) } else { 0 }
    }

    /// Returns whether any batches are left for this rank in the epoch that [`Loader::epoch`] returns.
    /// [`Loader::batches_left`] counts them.
    pub fn has_batches_left(&self) -> bool {
        let position = self.position.load(Ordering::Acquire);
        if position == self.more_after.load(Ordering::Acquire) {
            return true;
        }
        let state = self.state();
        state.epoch.0 < self.options.epochs.end && self.share.has_batch_after(&state)
    }

    /// Counters of this process so far.
    pub fn stats(&self) -> LoaderStats {
        self.running.get_or_init(Mutex::default).lock().stats()
    }

    /// Returns whether the verified bytes of the sample are in this process's window now, which is while its
    /// chunk is there. Always `false` for a mixture, for a node's loader, and if batches are not made of whole chunks.
    pub fn is_resident(&self, id: SampleId) -> bool {
        let running = self.running.get_or_init(Mutex::default).lock();
        running.reading.as_ref().is_some_and(|reading| reading.is_resident(id))
    }

    /// Counters of this rank's store so far; `None` without a store, or once the last handle to its data set is gone.
    pub fn store_stats(&self) -> Option<StoreStats> {
        self.store.as_ref()?.stats()
    }

    /// The options of the loader.
    pub fn options(&self) -> &LoaderOptions {
        &self.options
    }

    /// The directory of the data set, also after the loader is closed; of a mixture's first source.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Stops reading and releases the data set; if this was its last handle, connections and tiers are closed. Calls of
    /// other threads that wait, and later calls that need the data set, end with `Interrupted`. Batches stay valid.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let mut running = self.running.get_or_init(Mutex::default).lock();
        let ended = (running.end(), running.previous.take(), running.prepared.take());
        let data = self.data.try_write_for(LOCK_LIMIT).and_then(|mut data| data.take());
        drop(running);
        drop((ended, data)); // after unlocking: dropping them waits for their threads
    }

    /// Moves the run to `state`, and ends the reader if that is elsewhere, or if the reader has failed.
    fn go_to(&self, state: State) -> Result<()> {
        let state = normal(state, self.len);
        if !self.options.epochs.contains(&state.epoch.0) && state.epoch.0 != self.options.epochs.end
        {
            let epoch = state.epoch;
            let epochs = &self.options.epochs;
            return Err(invalid(format!("there is no epoch {epoch}: the epochs are {epochs:?}")));
        }
        let position = pack(&state)?;
        let lanes = pack_lanes(&state.order);
        let mut running = self.running.get_or_init(Mutex::default).lock();
        let failed = running.reading.as_ref().is_some_and(|reading| reading.course().has_failed())
            || running.reading.is_some() && self.check_reader().is_err();
        let has_other_lanes = lanes != self.lanes.load(Ordering::Acquire);
        let moved = position != self.position.load(Ordering::Acquire) || has_other_lanes;
        // The length of the window follows from the lanes.
        let stale = running.prepared.take_if(|_| has_other_lanes);
        if moved {
            self.pass_over(&state);
        }
        if moved || failed {
            running.previous = running.end().or(running.previous.take());
            self.lanes.store(lanes, Ordering::Release);
            self.move_to(&state, position);
        } else if state.place.is_some() {
            self.move_to(&state, position);
        }
        drop(running);
        drop(stale); // after unlocking: that waits for its thread
        Ok(())
    }

    /// Takes a batch if one is ready within `limit`. Without a reader, starts one, waits for it instead, and returns
    /// `Later`.
    ///
    /// Holds the lock for at most `limit`, and calls no [`Watch`] meanwhile: the watch may wait for a thread
    /// that wants the lock.
    fn try_next(
        &self,
        batch: &mut Batch,
        layout: &mut Layout,
        taken: Option<&mut Option<Taken>>,
        asked: Instant,
        limit: Duration,
    ) -> Result<NextBatch> {
        let lock = self.running.get_or_init(Mutex::default);
        let Some(mut running) = lock.try_lock_for(limit) else { return Ok(NextBatch::Later) };
        self.check_open()?; // again: nothing may start after `close`
        if let Some(reading) = &mut running.reading {
            self.check_reader()?;
            let next = reading
                .next_within(batch, limit)
                .map_err(|error| self.failure_of_store().unwrap_or(error))?;
            if next == NextBatch::Ready {
                // Under the lock, so that threads that share the loader do not swap layouts.
                reading.take_layout(layout);
                let after = reading.course().state.clone();
                let ends_epoch = batch.ends_epoch();
                match taken {
                    Some(taken) => {
                        pack(&after)?;
                        *taken = Some(Taken { after, ends_epoch, ends: running.ends });
                    }
                    None => self.go_behind(&after, ends_epoch)?,
                }
                self.record(&mut running, batch, asked);
            }
            return Ok(next);
        }
        let starting = match running.starting.take() {
            Some(starting) => starting,
            None => self.start(&mut running)?,
        };
        let began = Instant::now();
        let started = starting.wait(limit);
        running.past.stalls.add(Cause::Start, began.elapsed());
        match started? {
            Some(reading) => running.reading = Some(reading),
            None => running.starting = Some(starting),
        }
        Ok(NextBatch::Later)
    }

    /// Moves the run behind a delivered batch, to the state `after`.
    fn go_behind(&self, after: &State, ends_epoch: bool) -> Result<()> {
        let position = pack(after)?;
        let more = if ends_epoch { u64::MAX } else { position };
        self.more_after.store(more, Ordering::Release);
        self.move_to(after, position);
        self.tell_store(after);
        Ok(())
    }

    /// Adds the batch that was just delivered to the record of the run.
    fn record(&self, running: &mut Running, batch: &Batch, asked: Instant) {
        let Running { reading: Some(reading), past, of_node, record, .. } = running else { return };
        let current = &reading.course().stats;
        let sums = LoaderStats {
            samples: past.samples + current.samples,
            sample_bytes: past.sample_bytes + current.sample_bytes,
            stalls: past.stalls.plus(&current.stalls),
            ..LoaderStats::default()
        };
        let record =
            record.get_or_insert_with(|| Record::new(asked, &self.options, reading.window_bytes()));
        record.delivered(asked, batch.epoch().0, &sums, || {
            let places = past.read.places.plus(&reading.stats().read.places);
            places.plus(&of_node.lock().read.places)
        });
    }

    /// Starts a reader in this process, from the current state: the previous one again, or a new one in the window that
    /// was prepared, if there is one.
    fn start(&self, running: &mut Running) -> Result<Background<Reading>> {
        let previous = running.previous.take();
        let prepared = running.prepared.take();
        let of_node = Arc::clone(&running.of_node);
        let data = self.run_data()?;
        let state = self.state();
        let begin = self.begin_in_store(&state);
        let len = self.len;
        if let Some(previous) = previous {
            return Background::start(move || begin().and_then(|()| previous.restart(state, len)));
        }
        // A start that nobody waits for any more may still plan batches: each run has layouts of its own.
        let layouts = self.options.layouts.as_ref().map(|layouts| layouts.renewed());
        let options = LoaderOptions { layouts, ..self.options.clone() };
        Background::start(move || {
            begin()?;
            Reading::start(data, options, state, prepared, of_node)
        })
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// The data of the run.
    ///
    /// # Errors
    /// `Interrupted`: the loader was closed. `Busy`: the process was forked while another thread closed the loader.
    pub(super) fn run_data(&self) -> Result<RunData> {
        // A forked child does not get it if another thread was closing the loader at the fork: that lock is never
        // unlocked there.
        let Some(data) = self.data.try_read_for(LOCK_LIMIT) else {
            let text = "the process was forked while another thread closed the loader";
            return Err(Error::new(ErrorKind::Busy, text).hint("make a loader in the child"));
        };
        data.clone().ok_or_else(closed)
    }

    /// The error of a deadline that has passed: its cause, if one is known.
    fn late(&self) -> Error {
        if let Some(cause) = self.failure_of_store() {
            return cause;
        }
        let mut running = self.running.get_or_init(Mutex::default).try_lock_for(TICK);
        let reading = running.as_mut().and_then(|running| running.reading.as_mut());
        if let Some(cause) = reading.and_then(|reading| reading.why_late(self.options.deadline)) {
            return cause;
        }
        drop(running);
        let devices = self.run_data().map_or_else(|_| Vec::new(), |data| data.devices());
        timed_out(self.options.deadline, &devices)
    }
}

impl Measured for Running {
    fn measure(&self, snapshot: &mut Snapshot) {
        self.stats().measure(snapshot);
    }
}

impl Running {
    fn stats(&self) -> LoaderStats {
        let current = self.reading.as_ref().map(Reading::stats);
        sum_stats(sum_stats(self.past, *self.of_node.lock()), current.unwrap_or_default())
    }

    /// Ends the reader, even while it still connects, and keeps its counters; returns a reader that had started.
    fn end(&mut self) -> Option<Reading> {
        self.starting = None;
        self.ends += 1;
        let reading = self.reading.take();
        let done = reading.as_ref().map(|reading| reading.stats().ended());
        self.past = sum_stats(self.past, done.unwrap_or_default());
        reading
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").field("state", &self.state()).finish_non_exhaustive()
    }
}

/// Represents the end of an epoch as the start of the next.
fn normal(state: State, len: u64) -> State {
    let epoch = state.epoch;
    let consumed = state.consumed;
    if consumed == 0 { state } else { state.at(epoch, consumed, len) }
}

fn closed() -> Error {
    Error::new(ErrorKind::Interrupted, "the loader was closed")
}

/// Packs epoch (24 bits) and samples consumed (40 bits) into one word, so that both are read atomically.
fn pack(state: &State) -> Result<u64> {
    if state.epoch.0 >= MAX_EPOCHS {
        return Err(invalid(format!("epochs go to {}, not {}", MAX_EPOCHS - 1, state.epoch)));
    }
    // An image has at most 2^40 samples, and `normal` turns a full epoch into 0.
    if state.consumed >= 1 << CONSUMED_BITS {
        return Err(invalid(format!("no epoch has {} samples", state.consumed)));
    }
    Ok(state.epoch.0 << CONSUMED_BITS | state.consumed)
}

fn unpack(position: u64) -> (Epoch, u64) {
    (Epoch(position >> CONSUMED_BITS), position & ((1 << CONSUMED_BITS) - 1))
}

/// A place as words: all ones for `None`.
fn pack_place(place: Option<RowPlace>) -> [u64; 4] {
    place.map_or([u64::MAX; 4], |it| [it.position, it.tokens, it.rows, it.check])
}

fn unpack_place([position, tokens, rows, check]: [u64; 4]) -> Option<RowPlace> {
    (check != u64::MAX).then_some(RowPlace { position, tokens, rows, check })
}

/// The lanes of a grouped order; 0 for other orders.
fn pack_lanes(order: &OrderSpec) -> u64 {
    match order.kind {
        OrderKind::Grouped { lanes, .. } => lanes.into(),
        _ => 0,
    }
}

/// `order` with the lanes that `pack_lanes` encoded.
fn with_lanes(order: OrderSpec, packed: u64) -> OrderSpec {
    let lanes = packed as u32;
    let kind = match order.kind.lanes_and_group() {
        Some((_, group)) => OrderKind::Grouped { lanes, group },
        None => order.kind,
    };
    OrderSpec { kind, ..order }
}

/// Limit of waits for the lock of the data set, which is held only to clone the data set.
const LOCK_LIMIT: Duration = Duration::from_secs(1);

/// Attempts to read a position and its place together.
const READS_OF_PLACE: u32 = 4;

/// Bits of a packed position for the samples consumed; the epoch has the others.
const CONSUMED_BITS: u32 = 40;
const _: () = assert!(MAX_EPOCHS == 1 << (64 - CONSUMED_BITS));
