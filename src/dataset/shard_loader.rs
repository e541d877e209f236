//! A loader over shards whose index may not be complete: the first epoch makes the index, later epochs have any order.
//!
//! With [`ShardOptions::import_to`](crate::shards::ShardOptions) the first epoch also fills an image, which later
//! epochs read. At the end of the first epoch, each rank tries to commit the image: one that finds no other rank
//! writing commits, and the others find the image complete. If no epoch follows, a rank waits at most for [`END_LIMIT`]
//! for ranks that still write: the last of these commits.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Deserializer, Value};

use crate::address::Address;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::order::State;
use crate::order::lanes::LaneState;
use crate::prefetch::{LoaderOptions, NextBatch};
use crate::process::process_id;
use crate::reader::{Batch, TICK, Watch, interrupted};
use crate::replace_file::{NewMode, replace_file};
use crate::shards::{ShardFilling, ShardSet};
use crate::units::{Epoch, deadline};

use super::open::image_of_set;
use super::saved::load;
use super::{
    Background, Dataset, FirstEpoch, Loader, Options, in_background, is_abandoned, shard_set,
};

/// Batches of shards, from the first epoch on.
///
/// If the index of a shard is missing, or the image to import to is not complete, the first epoch is a
/// [`FirstEpoch`], which has an order of its own. All other epochs are those of a [`Loader`]. All ranks of a job
/// begin together and keep their indexes in one place; each rank makes the indexes of its shards.
///
/// A forked child cannot use one that is in its first epoch, only drop it.
pub struct ShardLoader {
    addresses: Vec<Address>,
    options: Options,
    load: LoaderOptions,
    set: Arc<ShardSet>,
    /// The image that the first epoch fills; `None` without one, or once its commit has begun.
    filling: Option<Arc<ShardFilling>>,
    phase: ShardPhase,
    /// The epoch of the next batch.
    epoch: u64,
    /// True if the last batch ended its epoch, and the caller was not told yet.
    epoch_ended: bool,
    /// The process that has the threads of the first epoch.
    pid: u32,
}

/// The phase of a run over shards.
enum ShardPhase {
    /// The first epoch, which makes the index.
    First(Box<FirstEpoch>),
    /// The first epoch has ended, and in the background the image is committed and the data set opened; `None` if no
    /// epoch follows. The state is that at the end of the first epoch.
    Opening(Background<Option<(Dataset, Loader)>>, LaneState),
    /// An epoch in an order of samples: the index, or the image, is complete.
    Ordinary(Dataset, Box<Loader>),
    /// The run has ended with its first epoch; or the commit, or opening the data set, has failed.
    Over(LaneState, Option<Error>),
}

/// The state of a run over shards.
#[derive(Debug, Clone, PartialEq)]
pub enum RunState {
    /// In the first epoch: places in lanes, of one rank or of all.
    Lanes(LaneState),
    /// In an order of samples.
    Samples(State),
}

impl ShardLoader {
    /// Opens the shards at `addresses`, whose indexes are kept at the place that `options` name, and begins the run of
    /// `load`, or resumes it from the state `resume`.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no place for the indexes; as [`FirstEpoch::begin`] and [`Dataset::loader`]. Errors
    /// of listing the shards.
    pub fn open(
        addresses: &[Address],
        options: &Options,
        load: LoaderOptions,
        resume: Option<&RunState>,
        watch: &mut dyn Watch,
    ) -> Result<ShardLoader> {
        let shards = options.open.shards.clone().unwrap_or_default();
        if shards.index.is_none() {
            let text =
                "the first epoch over shards makes their index, and there is no place for it";
            return Err(Error::invalid(
                text,
                "name a folder or a prefix of a store that all ranks can write",
            ));
        }
        let image = shards.import_to.clone();
        let given = addresses.to_vec();
        let mut connect = options.open.connect.clone();
        // Each lane reads a shard of its own, with requests in flight of its own.
        connect.places.window_bytes = connect.places.window_bytes.min(IN_FLIGHT_BYTES);
        connect.places.flowing = true;
        let list = move || shard_set(&given, &shards, &connect, &mut ());
        let set = Arc::new(in_background(watch, None, list)?);
        let mut addresses = addresses.to_vec();
        let mut options = options.clone();
        let mut filling = None;
        if !image.is_empty() {
            let of = Arc::clone(&set);
            let to = image.clone();
            let connect = options.open.connect.clone();
            let ranks = (load.rank, load.world_size.max(1));
            let begin = move || ShardFilling::begin(&of, &to, ranks, &connect);
            filling = in_background(watch, None, begin)?.map(Arc::new);
            options.open.shards = None; // later epochs read the image
            addresses = image;
        }
        let opened = (&addresses[..], &options);
        let (phase, epoch) = begin(opened, (&set, filling.as_ref()), &load, resume, watch)?;
        let epoch_ended = false;
        let pid = process_id();
        Ok(ShardLoader { addresses, options, load, set, filling, phase, epoch, epoch_ended, pid })
    }

    /// The shards.
    pub fn shards(&self) -> &Arc<ShardSet> {
        &self.set
    }

    /// The options of the run.
    pub fn options(&self) -> &LoaderOptions {
        &self.load
    }

    /// The data set, once its index is complete and the first epoch has ended.
    pub fn dataset(&self) -> Option<&Dataset> {
        match &self.phase {
            ShardPhase::Ordinary(dataset, _) => Some(dataset),
            _ => None,
        }
    }

    /// The epoch of the next batch; the end of the options' epochs after the last one.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The state after the batches delivered so far.
    pub fn state(&self) -> RunState {
        match &self.phase {
            ShardPhase::First(first) => RunState::Lanes(first.state().clone()),
            ShardPhase::Opening(_, state) | ShardPhase::Over(state, _) => {
                RunState::Lanes(state.clone())
            }
            ShardPhase::Ordinary(_, loader) => RunState::Samples(loader.state()),
        }
    }

    /// Moves the run to `state`.
    ///
    /// # Errors
    /// Errors of [`ShardLoader::open`]; the run does not move then. `Unsupported`: this is a forked child.
    pub fn set_state(&mut self, state: &RunState, watch: &mut dyn Watch) -> Result<()> {
        if let (ShardPhase::Ordinary(_, loader), RunState::Samples(state)) = (&self.phase, state) {
            loader.set_state(state)?;
            self.epoch = loader.epoch();
        } else {
            self.refuse_forked()?;
            let opened = (&self.addresses[..], &self.options);
            let shards = (&self.set, self.filling.as_ref());
            (self.phase, self.epoch) = begin(opened, shards, &self.load, Some(state), watch)?;
        }
        self.epoch_ended = false;
        Ok(())
    }

    /// Takes the next batch of the epoch into `batch`; `false`: the epoch has ended. The next call then begins the next
    /// epoch, or returns `false` again if [`ShardLoader::epoch`] is the end of the run.
    ///
    /// Between the first epoch and the second, the call waits until all shards have an index.
    ///
    /// # Errors
    /// Errors of [`Loader::next`]. A shard has changed, ends early, or has bad entries: the error names it.
    /// `Unsupported`: this is a forked child, and the first epoch has not ended.
    pub fn next_into(&mut self, batch: &mut Batch, watch: &mut dyn Watch) -> Result<bool> {
        if !matches!(self.phase, ShardPhase::Ordinary(..)) {
            self.refuse_forked()?;
        }
        let until = deadline(Instant::now(), self.load.deadline);
        loop {
            if std::mem::take(&mut self.epoch_ended) {
                self.epoch += 1;
                if self.filling.is_some() {
                    self.open_all()?; // commits the image in the background
                }
                // A run that ends with its first epoch waits for the commit.
                let is_over = self.epoch >= self.load.epochs.end;
                if !(is_over && matches!(self.phase, ShardPhase::Opening(..))) {
                    return Ok(false);
                }
            }
            match &mut self.phase {
                ShardPhase::First(first) => match first.next_within(batch, TICK)? {
                    NextBatch::Ready => {
                        self.epoch_ended = batch.ends_epoch();
                        return Ok(true);
                    }
                    // The caller has been told that the first epoch ended, and asks for the next one.
                    NextBatch::End if first.state().spec.epoch.0 < self.epoch => self.open_all()?,
                    NextBatch::End => self.epoch_ended = true,
                    NextBatch::Later if Instant::now() >= until => return Err(self.late()),
                    NextBatch::Later => {}
                },
                ShardPhase::Opening(opening, state) => match opening.wait(TICK) {
                    Ok(None) => {}
                    Ok(Some(None)) => self.phase = ShardPhase::Over(state.clone(), None),
                    Ok(Some(Some((dataset, loader)))) => {
                        self.phase = ShardPhase::Ordinary(dataset, Box::new(loader))
                    }
                    Err(error) => self.phase = ShardPhase::Over(state.clone(), Some(error)),
                },
                ShardPhase::Ordinary(..) if self.epoch >= self.load.epochs.end => return Ok(false),
                ShardPhase::Ordinary(_, loader) if !loader.has_batches_left() => {
                    loader.set_epoch(self.epoch + 1)?;
                    self.epoch += 1;
                    return Ok(false);
                }
                ShardPhase::Ordinary(_, loader) => {
                    let is_there = loader.next_into(batch, watch)?;
                    self.epoch_ended = is_there && batch.ends_epoch();
                    return Ok(is_there);
                }
                ShardPhase::Over(_, None) => return Ok(false),
                ShardPhase::Over(_, Some(error)) => return Err(error.to_others()),
            }
            if !watch.goes_on() {
                return Err(interrupted());
            }
        }
    }

    /// Begins to commit the image, if one is filled, and to open the data set, if epochs follow the first one. Does
    /// nothing after the first epoch's phase.
    fn open_all(&mut self) -> Result<()> {
        let ShardPhase::First(first) = &self.phase else { return Ok(()) };
        let state = first.state().clone();
        let has_more = self.epoch < self.load.epochs.end;
        let filling = self.filling.take();
        self.phase = if !has_more && filling.is_none() {
            ShardPhase::Over(state, None)
        } else {
            let set = Arc::clone(&self.set);
            let addresses = self.addresses.clone();
            let options = self.options.clone();
            let epochs = self.epoch..self.load.epochs.end;
            let load = LoaderOptions { epochs, resume: None, ..self.load.clone() };
            let opening = Background::start(move || {
                wait_for_others(&set, has_more)?;
                if let Some(filling) = filling {
                    commit(&filling, load.world_size, has_more)?;
                }
                if !has_more {
                    return Ok(None);
                }
                // Opening also indexes the shards that no rank has indexed.
                let dataset = dataset_of(&addresses, &options, &set, &mut || !is_abandoned())?;
                let loader = dataset.loader(load)?;
                Ok(Some((dataset, loader)))
            })?;
            ShardPhase::Opening(opening, state)
        };
        Ok(())
    }

    /// Refuses a forked child: the threads that read shards, keep their indexes and fill the image are the parent's.
    fn refuse_forked(&self) -> Result<()> {
        if self.pid == process_id() {
            return Ok(());
        }
        let text =
            "the first epoch over shards stays in its process, and this one was forked from it";
        Err(Error::new(ErrorKind::Unsupported, text)
            .hint("make the loader in the process that reads"))
    }

    fn late(&self) -> Error {
        let limit = self.load.deadline;
        Error::new(ErrorKind::TimedOut, format!("no batch was ready within {limit:?}"))
            .hint("check that the shards can be read; raise the deadline if it is only slow")
    }
}

/// Begins a run, or resumes one; also returns the epoch of the next batch.
fn begin(
    (addresses, options): (&[Address], &Options),
    (set, filling): (&Arc<ShardSet>, Option<&Arc<ShardFilling>>),
    load: &LoaderOptions,
    resume: Option<&RunState>,
    watch: &mut dyn Watch,
) -> Result<(ShardPhase, u64)> {
    let reads_shards = options.open.shards.is_some();
    let (lanes, samples) = match resume {
        Some(RunState::Lanes(state)) => (Some(state), None),
        Some(RunState::Samples(state)) => (None, Some(state.clone())),
        None => (None, None),
    };
    let is_first = match resume {
        Some(RunState::Samples(_)) => false,
        Some(RunState::Lanes(_)) => true,
        None => filling.is_some() || reads_shards && set.missing()? > 0,
    };
    if is_first {
        if options.open.view.is_some() {
            let text = "the first epoch over shards reads all samples, and a view does not";
            let hint = "make the index with dlfs index and begin anew without an image to fill, or read the first \
                        epoch without the view";
            return Err(Error::invalid(text, hint).target(Address::list_to_string(addresses)));
        }
        let epoch = lanes.map_or(Epoch(load.epochs.start), |state| state.spec.epoch);
        let first = FirstEpoch::begin((set, filling), load, epoch, lanes)?;
        return Ok((ShardPhase::First(Box::new(first)), epoch.0));
    }
    if samples.is_some() && filling.is_some() {
        let text =
            "the state is of an epoch that reads the image, and the image is not complete here";
        let hint =
            "open the image that the run had, or begin without the state, which fills this one";
        return Err(Error::invalid(text, hint).target(Address::list_to_string(addresses)));
    }
    let dataset = dataset_of(addresses, options, set, watch)?;
    let loader = dataset.loader(LoaderOptions { resume: samples, ..load.clone() })?;
    let epoch = loader.epoch();
    Ok((ShardPhase::Ordinary(dataset, Box::new(loader)), epoch))
}

/// Opens the image that was filled; or, without one, the shards of `set`.
fn dataset_of(
    addresses: &[Address],
    options: &Options,
    set: &Arc<ShardSet>,
    watch: &mut dyn Watch,
) -> Result<Dataset> {
    if options.open.shards.is_none() {
        return Dataset::open(addresses, options, watch);
    }
    let open = options.open.clone();
    let set = Arc::clone(set);
    let open = move || image_of_set(&set)?.with_tiers_and_view(&open);
    let image = in_background(watch, None, open)?;
    Ok(Dataset::from_image(image, options.read.clone()))
}

/// Waits until the other ranks have indexed their shards, or until no new index has appeared for [`OTHERS_LIMIT`].
/// Unless the caller `needs_all`, waits at most for [`END_LIMIT`].
fn wait_for_others(set: &ShardSet, needs_all: bool) -> Result<()> {
    let mut pace = Pace::new();
    let all = set.shards().len();
    loop {
        let left = set.missing()?;
        if pace.missing.is_none() && left > 0 {
            tracing::warn!("{left} of {all} shards have no index yet: waiting for other ranks");
        }
        let is_late = !needs_all && pace.begun.elapsed() >= END_LIMIT;
        if left == 0 || is_late || !pace.wait(left, OTHERS_LIMIT) {
            return Ok(());
        }
    }
}

/// Commits the image once no other rank writes to it, unless another rank has committed it. If no epoch `reads_it`,
/// gives up on a rank that writes for long: that rank commits at its own end.
fn commit(filling: &ShardFilling, world_size: u32, reads_it: bool) -> Result<()> {
    let mut pace = Pace::new();
    loop {
        let Err(error) = filling.commit() else { return Ok(()) };
        // `Busy`: another rank writes or commits. `NotFound`: another rank has not made its part durable yet.
        let limit = match error.kind() {
            ErrorKind::Busy if reads_it => COMMIT_LIMIT,
            ErrorKind::Busy => END_LIMIT,
            ErrorKind::NotFound if world_size > 1 => OTHERS_LIMIT,
            _ => return Err(error),
        };
        if !pace.wait(1, limit) {
            let is_left = !reads_it && error.kind() == ErrorKind::Busy && !is_abandoned();
            return if is_left { Ok(()) } else { Err(error) };
        }
    }
}

/// The pace of polling for the work of other ranks: after half of the time that they may still need, from
/// [`SHORTEST_PAUSE`] to [`LONGEST_PAUSE`].
struct Pace {
    begun: Instant,
    /// The number of missing things at the first poll, and the least since.
    missing: Option<(usize, usize)>,
    /// The time of the last progress.
    since: Instant,
    /// The longest next pause, which doubles each time.
    pause: Duration,
}

impl Pace {
    fn new() -> Pace {
        let begun = Instant::now();
        Pace { begun, missing: None, since: begun, pause: SHORTEST_PAUSE / 2 }
    }

    /// Pauses before the next poll, while `left` things are missing. `false`: there was no progress for `limit`, or
    /// nobody waits for the result any more.
    fn wait(&mut self, left: usize, limit: Duration) -> bool {
        let now = Instant::now();
        let (first, last) = self.missing.unwrap_or((left, usize::MAX));
        if left < last {
            self.since = now;
        }
        self.missing = Some((first, left.min(last)));
        if now - self.since >= limit || is_abandoned() {
            return false;
        }
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let done = first.saturating_sub(left);
        let rest = (now - self.begun).as_secs_f64() * left as f64 / done as f64; // infinite without progress
        let half = Duration::try_from_secs_f64(rest / 2.0).unwrap_or(LONGEST_PAUSE);
        let until = now + self.pause.min(half.max(SHORTEST_PAUSE));
        while Instant::now() < until && !is_abandoned() {
            std::thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
        }
        !is_abandoned()
    }
}

impl RunState {
    /// Reads a state from JSON, or the states of several ranks, one after the other, which are merged.
    ///
    /// # Errors
    /// `InvalidArgument`: the text is no state, or one of an unknown version; as [`LaneState::merge`].
    pub fn from_json(text: &str) -> Result<RunState> {
        let ranks: Vec<Value> = Deserializer::from_str(text)
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|error| invalid("this is not a reading state").source(error))?;
        if ranks.iter().any(|rank| rank.get("places").is_some()) {
            let ranks = ranks.iter().map(|rank| LaneState::from_json(&rank.to_string()));
            return LaneState::merge(ranks.collect::<Result<Vec<_>>>()?).map(RunState::Lanes);
        }
        // In an order of samples, all ranks have the same state.
        let [first, others @ ..] = &ranks[..] else { return Err(invalid("there is no state")) };
        if others.iter().any(|other| other != first) {
            return Err(invalid("the states of the ranks are of different steps"));
        }
        State::from_json(&first.to_string()).map(RunState::Samples)
    }

    /// The state as one line of JSON.
    pub fn to_json(&self) -> String {
        match self {
            RunState::Lanes(state) => state.to_json(),
            RunState::Samples(state) => state.to_json(),
        }
    }

    /// Writes the state to a file: see [`save_state`](super::save_state).
    ///
    /// # Errors
    /// Errors of [`save_state`](super::save_state).
    pub fn save(&self, path: &Path) -> Result<()> {
        replace_file(path, NewMode::Private, format!("{}\n", self.to_json()).as_bytes())
    }

    /// Reads the state that [`RunState::save`] wrote; `None` if there is no such file.
    ///
    /// # Errors
    /// Errors of [`load_state`](super::load_state) and [`RunState::from_json`].
    pub fn load(path: &Path) -> Result<Option<RunState>> {
        load(path, RunState::from_json)
    }
}

/// The most bytes from a store, for each lane, that are in flight, or have arrived and are not decoded.
const IN_FLIGHT_BYTES: u64 = 16 << 20;
/// The longest wait for other ranks without progress: for their indexes, or until the samples that they wrote to the
/// image are durable.
const OTHERS_LIMIT: Duration = Duration::from_secs(60);
/// The pauses between two polls of the work of other ranks.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest wait for a rank that writes to the image, if later epochs read the image.
const COMMIT_LIMIT: Duration = Duration::from_secs(3600);
/// The longest wait for other ranks at the end of a run. A rank that only checks the image needs less.
const END_LIMIT: Duration = Duration::from_secs(10);
