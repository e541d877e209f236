//! The first epoch of shards that have no index yet: batches while the index is made.
//!
//! # What it is
//! A [`FirstEpoch`] reads each shard of its rank once, front to back, and makes the shard's index from what it reads.
//! Its order, in lanes and windows, is that of [`lanes`](crate::order::lanes): it follows from seed, epoch and place,
//! never from time. A thread for each lane decodes a window while the one before it is handed out, so memory is about
//! the loader's window and the requests in flight, whatever the length of shards.
//!
//! # What it is not
//! It is no order of samples: a batch has samples of as many windows as this rank has lanes, and shards come whole.
//! Ranks may have different numbers of batches, which nobody knows before the end. Ids are those of this epoch alone:
//! the number of the shard times 2^32, and the sample's number in it. Names, labels and typed values are in the
//! directories of a [`Batch`], which list a window each.
//!
//! # Invariants
//! - The index of a shard is kept before a sample of the next one in its lane is handed out.
//! - A consumer waits at most for the limit that it gives, and may ask again. A lane's thread waits for the consumer
//!   without a limit; dropping the [`FirstEpoch`] ends that wait, and decoding at the next sample.
//!
//! # What to read next
//! `first_epoch/lane.rs`: the thread of a lane.

mod lane;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use lane::{LaneWork, LanesShared, Window};

use crate::buf::{HugePages, Pool, PoolOptions};
use crate::directory::Directory;
use crate::error::{Error, Result, invalid};
use crate::format::geometry::{CELL_BYTES, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES};
use crate::format::{ImageLayout, Pack, Uuid};
use crate::order::HexId;
use crate::order::lanes::{LanePlace, LaneSpec, LaneState, Turns};
use crate::permutation::Permutation;
use crate::prefetch::{LoaderOptions, NextBatch};
use crate::process::process_id;
use crate::reader::{Batch, SampleLocation};
use crate::shards::{ShardFilling, ShardSet};
use crate::threads::{self, Fate, Thread};
use crate::units::Epoch;

/// Batches of the first epoch over shards. Dropping it ends its threads. In a forked child it can only be dropped.
pub struct FirstEpoch {
    shared: Arc<LanesShared>,
    lanes: BTreeMap<u32, Lane>,
    /// The order in which lanes give samples to batches.
    turns: Turns,
    /// The samples of the next batch so far.
    picks: Vec<Pick>,
    /// A complete batch, while it is not known whether it is the last one.
    ready: Option<Ready>,
    /// The state after the batches that were delivered.
    state: LaneState,
    batch_size: usize,
    drop_short: bool,
    /// The error that ended the epoch, which each later call returns again.
    failed: Option<Error>,
    fate: Fate,
    threads: Vec<Thread>,
    /// The process that has the threads.
    pid: u32,
}

/// A lane, as the consumer sees it.
struct Lane {
    /// Windows from the lane's thread. The last message is the window that ends the lane, `None` if the lane has no
    /// samples left, or an error.
    windows: Receiver<Result<Option<Window>>>,
    /// The window at `place`, and the order of its samples; `None`: the next one has not arrived, or the lane has
    /// ended.
    window: Option<(Arc<Window>, Permutation)>,
    /// The place behind the samples that were picked.
    place: LanePlace,
    /// True if the lane has samples left; `None`: no window has arrived yet.
    has_more: Option<bool>,
}

/// A sample of a batch: its number in a window.
struct Pick {
    window: Arc<Window>,
    nth: u32,
}

/// A complete batch, and the state after it.
struct Ready {
    picks: Vec<Pick>,
    after: LaneState,
}

impl FirstEpoch {
    /// The lanes and windows for these options: all ranks have the same options, and so the same lanes. A rank has 32
    /// lanes, or 8 of shards with columns; from 8 ranks on, the job has 256 or 64 in all, and at least one a rank.
    pub fn order(set: &ShardSet, options: &LoaderOptions, epoch: Epoch) -> LaneSpec {
        let world_size = options.world_size.max(1);
        // Columns are read by whole blocks, which need memory beside the windows; all else is read as it arrives.
        let (lanes, divisor) = if set.has_columns() { (8, 5) } else { (32, 4) };
        let lanes = world_size.saturating_mul(lanes).min(8 * lanes).max(world_size);
        let memory =
            if options.window_bytes == 0 { WINDOW_BYTES } else { options.window_bytes } as u64;
        // Two windows of each lane; the rest is for batches in use, and for what arrives.
        let a_window = (memory / u64::from(lanes.div_ceil(world_size)) / divisor).max(1);
        let chunk = 1_u64 << a_window.ilog2();
        let chunk = chunk.clamp(MIN_CHUNK_BYTES.into(), MAX_CHUNK_BYTES.into());
        let window_bytes = chunk / 8 * 7; // the rest is for names and labels, outside the pool
        LaneSpec { seed: options.order.seed, epoch, lanes, window_bytes }
    }

    /// Begins `epoch` of a run over `set`, or goes on from `resume`, a state of all ranks or of this one. The set keeps
    /// the indexes.
    ///
    /// Uses seed, batch size, rank, world size and window of `options`, and whether a short last batch is dropped.
    /// Samples that are read from shards are also written to the image of `filling`; shards that this image already
    /// holds are read from it.
    ///
    /// # Errors
    /// `InvalidArgument`: the state belongs to other shards, another seed or epoch, or lacks lanes of this rank; the
    /// options ask for an order that needs the index of all shards. `OutOfMemory`: there is no memory for windows.
    /// Errors of reading the first shard, and of starting threads.
    pub fn begin(
        (set, filling): (&Arc<ShardSet>, Option<&Arc<ShardFilling>>),
        options: &LoaderOptions,
        epoch: Epoch,
        resume: Option<&LaneState>,
    ) -> Result<FirstEpoch> {
        check(options)?;
        let shards = HexId(set.identity().to_be_bytes());
        let LoaderOptions { rank, world_size, .. } = *options;
        let state = match resume {
            None => {
                let spec = FirstEpoch::order(set, options, epoch);
                LaneState::start(shards, spec, rank, world_size)?
            }
            Some(state) => {
                check_resumed(state, shards, options.order.seed, epoch)?;
                state.of_rank(rank, world_size)?
            }
        };
        set.fields()?; // from the first shard, which may be refused
        let shared = LanesShared {
            set: Arc::clone(set),
            filling: filling.cloned(),
            spec: state.spec,
            // One namespace, since the records are in memory; the chunk size limits only a window's run of samples.
            layout: ImageLayout::new(
                Uuid(set.identity().to_be_bytes()),
                MAX_CHUNK_BYTES,
                Pack::Tight,
                1,
            )?,
            pool: memory(&state)?,
            stopped: AtomicBool::new(false),
        };
        let mut first = FirstEpoch {
            shared: Arc::new(shared),
            lanes: BTreeMap::new(),
            turns: state.turns(),
            picks: Vec::new(),
            ready: None,
            batch_size: options.batch_size.max(1),
            drop_short: options.drop_short,
            failed: None,
            fate: Fate::default(),
            threads: Vec::new(),
            pid: process_id(),
            state,
        };
        for (lane, place) in first.state.places.clone() {
            first.start(lane, place)?;
        }
        Ok(first)
    }

    /// Starts the thread of a lane, whose first window begins at `begin`.
    fn start(&mut self, lane: u32, begin: LanePlace) -> Result<()> {
        let (windows, arrive) = bounded(0); // a full window waits in its thread: the next one of two in memory
        let work = LaneWork { shared: Arc::clone(&self.shared), lane, begin, windows };
        self.threads.push(threads::start("dlfs-lane", &self.fate, work, LaneWork::run)?);
        let waiting = Lane { windows: arrive, window: None, place: begin, has_more: None };
        self.lanes.insert(lane, waiting);
        Ok(())
    }

    /// The state after the batches delivered so far. [`LaneState::merge`] joins the states of all ranks.
    pub fn state(&self) -> &LaneState {
        &self.state
    }

    /// Takes the next batch into `batch`, if it is ready within `limit`.
    ///
    /// # Errors
    /// A shard cannot be read, has changed or has a bad entry: the error names it. Each later call returns it again.
    pub(super) fn next_within(&mut self, batch: &mut Batch, limit: Duration) -> Result<NextBatch> {
        if let Some(error) = &self.failed {
            return Err(error.to_others());
        }
        let next = self.try_next(batch, Instant::now() + limit);
        next.inspect_err(|error| self.failed = Some(error.to_others()))
    }

    fn try_next(&mut self, batch: &mut Batch, until: Instant) -> Result<NextBatch> {
        if self.ready.is_none() {
            if !self.fill(until)? {
                return Ok(NextBatch::Later);
            }
            self.ready = Some(Ready { picks: std::mem::take(&mut self.picks), after: self.now() });
        }
        // If a short batch is dropped, the batch before it is the last one.
        let is_last = if self.drop_short {
            self.fill(until)?.then_some(self.picks.len() < self.batch_size)
        } else {
            self.has_more(until)?.map(|more| !more)
        };
        let Some(is_last) = is_last else { return Ok(NextBatch::Later) };
        let Some(mut ready) = self.ready.take() else { return Ok(NextBatch::Later) };
        if is_last {
            ready.after = self.now(); // also behind the samples of a batch that is dropped
        }
        self.state = ready.after;
        let is_dropped = self.drop_short && ready.picks.len() < self.batch_size;
        if ready.picks.is_empty() || is_dropped {
            return Ok(NextBatch::End);
        }
        give(&ready.picks, self.shared.spec.epoch, batch);
        if is_last {
            batch.set_ends_epoch();
        }
        Ok(NextBatch::Ready)
    }

    /// Picks the samples of the next batch; `false`: some have not arrived.
    fn fill(&mut self, until: Instant) -> Result<bool> {
        while self.picks.len() < self.batch_size
            && let Some(number) = self.turns.lane()
        {
            if !self.wait(number, until)? {
                return Ok(false);
            }
            let lane = self.lanes.get_mut(&number).expect("turns are of these lanes");
            self.picks.extend(lane.next());
            self.turns.take(lane.has_ended());
        }
        Ok(true)
    }

    /// Returns whether any lane has a sample left; `None`: that is not known yet.
    fn has_more(&mut self, until: Instant) -> Result<Option<bool>> {
        let left = self.turns.lanes().to_vec();
        if left.iter().any(|lane| self.lanes[lane].has_more == Some(true)) {
            return Ok(Some(true));
        }
        for lane in left {
            if !self.wait(lane, until)? {
                return Ok(None);
            }
            if !self.lanes[&lane].has_ended() {
                return Ok(Some(true));
            }
        }
        Ok(Some(false))
    }

    /// Waits for the window of a lane, unless the lane has one or has ended; `false`: it has not arrived.
    fn wait(&mut self, number: u32, until: Instant) -> Result<bool> {
        let lane = self.lanes.get_mut(&number).expect("turns are of these lanes");
        if lane.window.is_some() || lane.has_ended() {
            return Ok(true);
        }
        let window = match lane.windows.recv_deadline(until) {
            Ok(arrived) => arrived?,
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(self.fate.of_closed_channel("the thread dlfs-lane"));
            }
        };
        lane.has_more = Some(window.is_some());
        let Some(window) = window else { return Ok(true) };
        let len = window.samples.len() as u64;
        if lane.place.given >= len {
            let given = lane.place.given;
            return Err(invalid(format!(
                "the state has given {given} samples of a window of lane {number} that has {len}"
            ))
            .hint("start anew, without the state"));
        }
        let order = self.shared.spec.window(number, lane.place, len);
        lane.window = Some((Arc::new(window), order));
        Ok(true)
    }

    /// The state after the samples that were picked.
    fn now(&self) -> LaneState {
        let places = self.lanes.iter().map(|(&number, lane)| (number, lane.place)).collect();
        let turns = self.turns.lane().into_iter().collect();
        LaneState { places, turns, ..self.state.clone() }
    }
}

impl Drop for FirstEpoch {
    fn drop(&mut self) {
        if self.pid != process_id() {
            // The threads are the parent's, and may have held the locks of their channels at the fork.
            // The last handle on the image that is filled would write to it.
            let shared = Arc::clone(&self.shared);
            let lanes = std::mem::take(&mut self.lanes);
            std::mem::forget((shared, lanes, std::mem::take(&mut self.threads)));
            return;
        }
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.lanes.clear(); // whoever waits to hand over a window ends
        let until = Instant::now() + END_LIMIT;
        for thread in self.threads.drain(..) {
            thread.join_within(until.saturating_duration_since(Instant::now()));
        }
    }
}

impl std::fmt::Debug for FirstEpoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FirstEpoch").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Lane {
    /// The next sample of the window; `None`: there is none.
    fn next(&mut self) -> Option<Pick> {
        let (window, order) = self.window.as_ref()?;
        let nth = order.forward(self.place.given) as u32; // a window has fewer samples
        let pick = Pick { window: Arc::clone(window), nth };
        self.place.given += 1;
        if self.place.given == order.len() {
            self.place = window.end;
            self.has_more = Some(!window.ends_lane);
            self.window = None;
        }
        Some(pick)
    }

    fn has_ended(&self) -> bool {
        self.has_more == Some(false)
    }
}

/// Fills `batch` with samples of `epoch`.
fn give(picks: &[Pick], epoch: Epoch, batch: &mut Batch) {
    let mut windows: Vec<&Arc<Window>> = Vec::new();
    for pick in picks {
        if !windows.iter().any(|known| Arc::ptr_eq(known, &pick.window)) {
            windows.push(&pick.window);
        }
    }
    let directories: Arc<[Arc<Directory>]> =
        windows.iter().map(|window| Arc::clone(&window.directory)).collect();
    batch.reset_mixed(&directories, epoch);
    let bufs: Vec<u32> = windows.iter().map(|window| batch.add_buf(window.buf.clone())).collect();
    for Pick { window, nth } in picks {
        let source = windows.iter().position(|known| Arc::ptr_eq(known, window));
        let source = source.expect("all were collected above");
        let location = SampleLocation { buf: bufs[source], ..window.samples[*nth as usize] };
        batch.push_row(location, source as u32, *nth);
    }
}

/// The memory for two windows of each lane.
fn memory(state: &LaneState) -> Result<Pool> {
    let slot_len_bytes = state.spec.window_bytes.clamp(CELL_BYTES, MAX_CHUNK_BYTES.into());
    let slot_len_bytes = slot_len_bytes.next_multiple_of(CELL_BYTES) as usize;
    let bytes = 2 * state.places.len().max(1) * slot_len_bytes;
    Pool::new(PoolOptions { bytes, slot_len_bytes, huge_pages: HugePages::Auto })
}

/// Refuses options that need the index of all shards.
fn check(options: &LoaderOptions) -> Result<()> {
    let refused = [
        (options.budget.is_some(), "batches by tokens"),
        (options.weights.is_some(), "weights"),
        (options.mixture.is_some(), "a mixture"),
        (options.node.is_some(), "a node's loader"),
        (options.order.kind.world_size().is_some(), "shares of ranks"),
    ];
    match refused.iter().find(|(is_asked, _)| *is_asked) {
        None => Ok(()),
        Some((_, what)) => Err(Error::invalid(
            format!("{what} need the index of all shards, and it is not complete"),
            "make it beforehand with dlfs index",
        )),
    }
}

/// Refuses a state that belongs to another run.
fn check_resumed(state: &LaneState, shards: HexId, seed: u64, epoch: Epoch) -> Result<()> {
    let LaneSpec { seed: of_state, epoch: epoch_of_state, .. } = state.spec;
    let text = if state.shards != shards {
        "the state belongs to other shards, or some have changed since".to_owned()
    } else if of_state != seed {
        format!("the state's seed is {of_state}, and {seed} was asked for")
    } else if epoch_of_state != epoch {
        format!("the state is of epoch {epoch_of_state}, and the run begins with epoch {epoch}")
    } else {
        return Ok(());
    };
    Err(Error::invalid(text, "open what the run began with, or start anew, without the state"))
}

/// The memory of a rank's windows by default.
const WINDOW_BYTES: usize = 256 << 20;
/// The longest time for which dropping waits. A thread that waits for a store ends with the request's own limit.
const END_LIMIT: Duration = Duration::from_secs(2);
