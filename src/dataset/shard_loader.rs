//! A loader over shards whose index may not be complete: the first epoch while it is made, then any order.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Deserializer, Value};

use crate::address::Address;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::order::State;
use crate::order::lanes::LaneState;
use crate::prefetch::{LoaderOptions, NextBatch};
use crate::reader::{Batch, TICK, Watch, interrupted};
use crate::replace_file::{NewMode, replace_file};
use crate::shards::ShardSet;
use crate::units::{Epoch, deadline};

use super::background::{Background, WhileWanted, in_background, is_abandoned};
use super::state_file::read_limited;
use super::{Dataset, FirstEpoch, Loader, Options, shard_set};

/// Batches of shards, from the first epoch on.
///
/// If the index of a shard is missing, the first epoch is a [`FirstEpoch`], whose order is not the one that was asked
/// for. All later epochs are those of a [`Loader`]; so is the first one if the index is complete when the loader opens.
/// All ranks of a job begin together, with one place for their indexes: each makes those of its own shards.
pub struct ShardLoader {
    addresses: Vec<Address>,
    options: Options,
    load: LoaderOptions,
    set: Arc<ShardSet>,
    now: Now,
    /// The epoch of the next batch.
    epoch: u64,
    /// Set if the last batch ended its epoch, until the caller knows.
    epoch_ended: bool,
}

enum Now {
    First(Box<FirstEpoch>),
    /// The first epoch has ended, and the data set is being opened.
    Opening(Background<(Dataset, Loader)>, LaneState),
    Ordinary(Dataset, Box<Loader>),
    /// The run has ended with its first epoch, or opening the data set after it has failed.
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
    /// Opens the shards at `addresses`, whose indexes are kept at the place that `options` name.
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
        let given = addresses.to_vec();
        let mut connect = options.open.connect.clone();
        // Each lane reads a shard of its own, with requests in flight of its own.
        connect.places.window_bytes = connect.places.window_bytes.min(IN_FLIGHT_BYTES);
        let list = move || shard_set(&given, &shards, &connect, &mut ());
        let set = Arc::new(in_background(watch, None, list)?);
        let addresses = addresses.to_vec();
        let options = options.clone();
        let (now, epoch) = begin((&addresses, &options), &set, &load, resume, watch)?;
        let epoch_ended = false;
        Ok(ShardLoader { addresses, options, load, set, now, epoch, epoch_ended })
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
        match &self.now {
            Now::Ordinary(dataset, _) => Some(dataset),
            _ => None,
        }
    }

    /// The epoch of the next batch; the end of the options' epochs after the last one.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The state after the batches delivered so far.
    pub fn state(&self) -> RunState {
        match &self.now {
            Now::First(first) => RunState::Lanes(first.state().clone()),
            Now::Opening(_, state) | Now::Over(state, _) => RunState::Lanes(state.clone()),
            Now::Ordinary(_, loader) => RunState::Samples(loader.state()),
        }
    }

    /// Goes on from `state`.
    ///
    /// # Errors
    /// As [`ShardLoader::open`]; the run does not move then.
    pub fn set_state(&mut self, state: &RunState, watch: &mut dyn Watch) -> Result<()> {
        if let (Now::Ordinary(_, loader), RunState::Samples(state)) = (&self.now, state) {
            loader.set_state(state)?;
            self.epoch = loader.epoch();
        } else {
            let opened = (&self.addresses[..], &self.options);
            (self.now, self.epoch) = begin(opened, &self.set, &self.load, Some(state), watch)?;
        }
        self.epoch_ended = false;
        Ok(())
    }

    /// Takes the next batch of the epoch into `batch`; `false`: the epoch has ended, and the next call begins the next
    /// one, if [`ShardLoader::epoch`] says that there is one.
    ///
    /// Between the first epoch and the second one it waits until all shards have an index.
    ///
    /// # Errors
    /// As [`Loader::next`]. A shard has changed, ends early, or has bad entries: the error names it.
    pub fn next_into(&mut self, batch: &mut Batch, watch: &mut dyn Watch) -> Result<bool> {
        let until = deadline(Instant::now(), self.load.deadline);
        loop {
            if std::mem::take(&mut self.epoch_ended) {
                return Ok(self.end_epoch());
            }
            match &mut self.now {
                Now::First(first) => match first.next_within(batch, TICK)? {
                    NextBatch::Ready => {
                        self.epoch_ended = batch.ends_epoch();
                        return Ok(true);
                    }
                    NextBatch::End if first.state().spec.epoch.0 < self.epoch => self.open_all()?,
                    NextBatch::End => return Ok(self.end_epoch()),
                    NextBatch::Later if Instant::now() >= until => return Err(self.late()),
                    NextBatch::Later => {}
                },
                Now::Opening(opening, state) => match opening.wait(TICK) {
                    Ok(None) => {}
                    Ok(Some((dataset, loader))) => {
                        self.now = Now::Ordinary(dataset, Box::new(loader))
                    }
                    Err(error) => self.now = Now::Over(state.clone(), Some(error)),
                },
                Now::Ordinary(..) if self.epoch >= self.load.epochs.end => return Ok(false),
                Now::Ordinary(_, loader) if !loader.has_batches_left() => {
                    loader.set_epoch(self.epoch + 1)?;
                    return Ok(self.end_epoch());
                }
                Now::Ordinary(_, loader) => {
                    let is_there = loader.next_into(batch, watch)?;
                    self.epoch_ended = is_there && batch.ends_epoch();
                    return Ok(is_there);
                }
                Now::Over(_, None) => return Ok(false),
                Now::Over(_, Some(error)) => return Err(error.to_others()),
            }
            if !watch.goes_on() {
                return Err(interrupted());
            }
        }
    }

    /// Moves to the next epoch; always `false`.
    fn end_epoch(&mut self) -> bool {
        self.epoch += 1;
        false
    }

    /// Opens the data set for the epochs behind the first one, if there are any.
    fn open_all(&mut self) -> Result<()> {
        let Now::First(first) = &self.now else { return Ok(()) };
        let state = first.state().clone();
        self.now = if self.epoch >= self.load.epochs.end {
            Now::Over(state, None)
        } else {
            let set = Arc::clone(&self.set);
            let addresses = self.addresses.clone();
            let options = self.options.clone();
            let epochs = self.epoch..self.load.epochs.end;
            let load = LoaderOptions { epochs, resume: None, ..self.load.clone() };
            let opening = Background::start(move || {
                if load.world_size > 1 {
                    wait_for_others(&set)?;
                }
                let dataset = Dataset::open(&addresses, &options, &mut WhileWanted)?; // it indexes what nobody has
                let loader = dataset.loader(load)?;
                Ok((dataset, loader))
            })?;
            Now::Opening(opening, state)
        };
        Ok(())
    }

    fn late(&self) -> Error {
        let limit = self.load.deadline;
        Error::new(ErrorKind::TimedOut, format!("no batch was ready within {limit:?}"))
            .hint("check that the shards can be read; raise the deadline if it is only slow")
    }
}

/// Begins a run, or goes on with one; returns also the epoch of its next batch.
fn begin(
    (addresses, options): (&[Address], &Options),
    set: &Arc<ShardSet>,
    load: &LoaderOptions,
    resume: Option<&RunState>,
    watch: &mut dyn Watch,
) -> Result<(Now, u64)> {
    let lanes = match resume {
        Some(RunState::Lanes(state)) => Some(state),
        Some(RunState::Samples(_)) => None,
        None if set.missing()? == 0 => None,
        None => {
            let epoch = load.epochs.start;
            return Ok((
                Now::First(Box::new(FirstEpoch::begin(set, load, Epoch(epoch), None)?)),
                epoch,
            ));
        }
    };
    if let Some(state) = lanes {
        let epoch = state.spec.epoch;
        return Ok((Now::First(Box::new(FirstEpoch::begin(set, load, epoch, lanes)?)), epoch.0));
    }
    let dataset = Dataset::open(addresses, options, watch)?;
    let resume = match resume {
        Some(RunState::Samples(state)) => Some(state.clone()),
        _ => None,
    };
    let loader = dataset.loader(LoaderOptions { resume, ..load.clone() })?;
    let epoch = loader.epoch();
    Ok((Now::Ordinary(dataset, Box::new(loader)), epoch))
}

/// Waits until the other ranks have indexed their shards, while their number grows.
fn wait_for_others(set: &ShardSet) -> Result<()> {
    let mut missing = usize::MAX;
    let mut until = Instant::now();
    loop {
        let left = set.missing()?;
        if missing == usize::MAX && left > 0 {
            let all = set.shards().len();
            tracing::warn!("{left} of {all} shards have no index yet: waiting for other ranks");
        }
        if left < missing {
            missing = left;
            until = Instant::now() + OTHERS_LIMIT;
        }
        if left == 0 || Instant::now() >= until || is_abandoned() {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
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

    /// As [`save_state`](super::save_state).
    ///
    /// # Errors
    /// As [`save_state`](super::save_state).
    pub fn save(&self, path: &Path) -> Result<()> {
        replace_file(path, NewMode::Private, format!("{}\n", self.to_json()).as_bytes())
    }

    /// As [`load_state`](super::load_state).
    ///
    /// # Errors
    /// As [`load_state`](super::load_state) and [`RunState::from_json`].
    pub fn load(path: &Path) -> Result<Option<RunState>> {
        let Some(bytes) = read_limited(path)? else { return Ok(None) };
        let state = RunState::from_json(&String::from_utf8_lossy(&bytes));
        state.map(Some).map_err(|error| error.path(path))
    }
}

/// The most bytes of a store that are in flight, or have arrived and are not decoded, for a lane.
const IN_FLIGHT_BYTES: u64 = 16 << 20;
/// The longest wait for other ranks' indexes without a new one.
const OTHERS_LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(1);
