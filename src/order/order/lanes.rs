//! The order of an epoch over shards whose samples are not known yet, and the state of a run in such an epoch. Pure.
//!
//! An order of samples needs their number, which is not known before all shards have an index. The addresses of the
//! shards are known at once, so this order visits shards:
//!
//! - The shards, in an order keyed by seed and epoch, are dealt to a fixed number of *lanes*.
//! - The samples of a lane's shards, one shard after the other, are cut into *windows* of a number of bytes and at most
//!   65,536 samples, wherever shards end. The samples of a window come in a keyed order. The first window of a lane is
//!   a quarter as long, since the first batch waits for one of each lane.
//! - Rank r of W has the lanes l with l mod W = r, and takes a sample of each of them in turn. A lane that has ended
//!   is left out.
//!
//! So the samples of a step depend only on the seed, the epoch and the places in the lanes, and not on the time at
//! which data arrives. The world size decides only which lanes meet in a batch: the order of each lane is the same for
//! all world sizes.
//!
//! Ranks may have different numbers of batches in such an epoch, since the number of samples of a lane is not known
//! before the lane has ended. A run that resumes with another world size keeps the order of each lane, but other lanes
//! meet in its batches.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::spec::HexId;
use dlfs_base::error::{Result, ensure, invalid};
use dlfs_base::permutation::{Key, Permutation};
use dlfs_base::units::Epoch;

/// The parameters of the order. All ranks of a job, and all runs of a state, have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneSpec {
    /// The seed.
    pub seed: u64,
    /// The epoch.
    pub epoch: Epoch,
    /// The number of lanes: at least the world size.
    pub lanes: u32,
    /// The most bytes of a window's samples (a quarter of it in a lane's first window); a longer sample is a window of
    /// its own.
    pub window_bytes: u64,
}

/// The samples so far of a window that is being filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowFill {
    samples: u64,
    bytes: u64,
    /// The most bytes of the window.
    most_bytes: u64,
}

/// A place in a lane, between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct LanePlace {
    /// The index, in the lane, of the shard in which the window begins.
    pub shard: u64,
    /// The index, in that shard, of the window's first sample.
    pub sample: u64,
    /// The number of samples of the window that were delivered already.
    pub given: u64,
}

/// The state of one rank in such an epoch, or of several ranks that were merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneState {
    /// The version of this record; unknown versions are refused.
    pub version: u32,
    /// The hash of the shards: their addresses, lengths and stamps.
    pub shards: HexId,
    /// The order.
    #[serde(flatten)]
    pub spec: LaneSpec,
    /// The place in each lane.
    pub places: BTreeMap<u32, LanePlace>,
    /// The lane of each rank's next sample.
    pub turns: BTreeSet<u32>,
}

/// The lanes of a rank that have not ended, and the lane whose turn is next.
#[derive(Debug, Clone)]
pub struct Turns {
    lanes: Vec<u32>,
    /// The index in `lanes` of the next lane.
    next: usize,
}

/// A lane all of whose samples are known.
struct KnownLane<'a> {
    spec: LaneSpec,
    lane: u32,
    /// The lengths of the samples of a shard, in bytes.
    lens_of: &'a dyn Fn(u64) -> &'a [u32],
    /// The shards of the lane, in its order.
    shards: Vec<u64>,
    place: LanePlace,
    /// The samples of the window at `place`, by shard and index in the shard, and the place behind them.
    window: (Vec<(u64, u64)>, LanePlace),
}

impl LaneSpec {
    /// The shards of `lane`, in its order; `shards` is the number of all shards.
    pub fn shards_of(self, lane: u32, shards: u64) -> impl Iterator<Item = u64> {
        let order = Permutation::new(shards, Key::derive(self.seed, &[OF_SHARDS, self.epoch.0]));
        (u64::from(lane)..shards)
            .step_by(self.lanes.max(1) as usize)
            .map(move |at| order.forward(at))
    }

    /// The order of the `len` samples of the window of `lane` that begins at `begin`.
    pub fn window(self, lane: u32, begin: LanePlace, len: u64) -> Permutation {
        let LanePlace { shard, sample, .. } = begin;
        let words = [OF_WINDOWS, self.epoch.0, lane.into(), shard, sample];
        Permutation::new(len, Key::derive(self.seed, &words))
    }

    /// The empty window of a lane that begins at `begin`.
    pub fn empty_window(self, begin: LanePlace) -> WindowFill {
        let is_first = begin.shard == 0 && begin.sample == 0;
        let share = if is_first { FIRST_WINDOW } else { 1 };
        WindowFill { samples: 0, bytes: 0, most_bytes: self.window_bytes.div_ceil(share) }
    }

    /// Visits the samples of the whole epoch, by shard and index in the shard, once all are known. `shards` is the
    /// number of shards; `lens_of` returns the lengths of a shard's samples in bytes. In each step, each of
    /// `world_size` ranks takes `batch` samples.
    ///
    /// # Errors
    /// There are fewer lanes than ranks. A number of the order is out of range.
    pub fn visit<'a>(
        self,
        (shards, lens_of): (u64, &'a dyn Fn(u64) -> &'a [u32]),
        (world_size, batch): (u32, u64),
        mut visit: impl FnMut(u64, u64),
    ) -> Result<()> {
        let mut ranks = Vec::new();
        for rank in 0..world_size {
            let state = LaneState::start(HexId([0; 16]), self, rank, world_size)?;
            let lanes = KnownLane::all(&state, shards, lens_of);
            ranks.push((state.turns(), lanes));
        }
        while ranks.iter().any(|(turns, _)| turns.lane().is_some()) {
            for (turns, lanes) in &mut ranks {
                take(turns, lanes, batch, &mut |_, (shard, sample)| visit(shard, sample));
            }
        }
        Ok(())
    }

    /// Checks the numbers of the order for one rank.
    ///
    /// # Errors
    /// There are fewer lanes than ranks, or no such rank. The number of lanes or the length of windows is out of range.
    fn check(self, rank: u32, world_size: u32) -> Result<()> {
        let LaneSpec { lanes, window_bytes, .. } = self;
        ensure(rank < world_size, || format!("there is no rank {rank} of {world_size}"))?;
        let is_possible =
            (1..=MOST_LANES).contains(&lanes) && (1..=MOST_WINDOW_BYTES).contains(&window_bytes);
        ensure(is_possible, || {
            format!("no epoch has {lanes} lanes and windows of {window_bytes} bytes")
        })?;
        let text = || format!("an epoch of {lanes} lanes cannot go to {world_size} ranks");
        ensure(lanes >= world_size, text)
            .map_err(|error| error.hint("go on with fewer ranks until the epoch ends"))
    }
}

impl WindowFill {
    /// Adds a sample of `len` bytes and returns true; returns false if the sample begins the next window.
    pub fn fits(&mut self, len: u32) -> bool {
        let bytes = self.bytes + u64::from(len);
        let fits = self.samples == 0 || bytes <= self.most_bytes && self.samples < MOST_SAMPLES;
        if fits {
            *self = WindowFill { samples: self.samples + 1, bytes, ..*self };
        }
        fits
    }
}

impl LaneState {
    /// The start of an epoch over `shards` for one rank.
    ///
    /// # Errors
    /// There are fewer lanes than ranks, or no such rank. A number of `spec` is out of range.
    pub fn start(shards: HexId, spec: LaneSpec, rank: u32, world_size: u32) -> Result<LaneState> {
        spec.check(rank, world_size)?;
        let own = (rank..spec.lanes).step_by(world_size as usize);
        let places = own.map(|lane| (lane, LanePlace::default())).collect();
        Ok(LaneState { version: VERSION, shards, spec, places, turns: [rank].into() })
    }

    /// The state of the whole job, from the states of its ranks after the same step.
    ///
    /// # Errors
    /// There are no states; or two of them belong to different runs or epochs, or have different places in one lane.
    pub fn merge(states: impl IntoIterator<Item = LaneState>) -> Result<LaneState> {
        let mut states = states.into_iter();
        let mut merged = states.next().ok_or_else(|| invalid("there is no state to merge"))?;
        for LaneState { version, shards, spec, places, turns } in states {
            ensure(
                (version, shards, spec) == (merged.version, merged.shards, merged.spec),
                || "the states of the ranks belong to different runs or epochs",
            )?;
            for (lane, place) in places {
                if *merged.places.entry(lane).or_insert(place) != place {
                    let text = format!("two states have different places in lane {lane}");
                    return Err(invalid(text).hint("merge the states after the same step"));
                }
            }
            merged.turns.extend(turns);
        }
        Ok(merged)
    }

    /// The part of the state that `rank` of `world_size` resumes from.
    ///
    /// # Errors
    /// There are fewer lanes than ranks, or no such rank. A number of the order is out of range. The state lacks a lane
    /// of this rank: states of other ranks are missing.
    pub fn of_rank(&self, rank: u32, world_size: u32) -> Result<LaneState> {
        let start = LaneState::start(self.shards, self.spec, rank, world_size)?;
        let mut places = start.places;
        for (lane, place) in &mut places {
            *place = *self.places.get(lane).ok_or_else(|| {
                let text = format!(
                    "the state has {} of {} lanes and lacks lane {lane}, which rank {rank} of \
                     {world_size} needs",
                    self.places.len(),
                    self.spec.lanes
                );
                invalid(text).hint("merge the states of all ranks of the run that was stopped")
            })?;
        }
        let turn = self.turns.iter().find(|lane| places.contains_key(lane));
        let turns = [*turn.unwrap_or(&rank)].into();
        Ok(LaneState { version: self.version, places, turns, ..start })
    }

    /// The lanes in this state, beginning with the one whose turn it is.
    pub fn turns(&self) -> Turns {
        let lanes: Vec<u32> = self.places.keys().copied().collect();
        let next = lanes.iter().position(|lane| self.turns.contains(lane)).unwrap_or(0);
        Turns { lanes, next }
    }

    /// Reads a state from JSON.
    ///
    /// # Errors
    /// The text is not such a state, or one of an unknown version.
    pub fn from_json(text: &str) -> Result<LaneState> {
        let state: LaneState = serde_json::from_str(text)
            .map_err(|error| invalid("this is not a state of a first epoch").source(error))?;
        let found = state.version;
        ensure(found == VERSION, || {
            format!("a state of a first epoch of version {found}; this build knows {VERSION}")
        })?;
        Ok(state)
    }

    /// The state as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings always become JSON")
    }
}

impl Turns {
    /// The lane of the next sample; `None` if all lanes have ended.
    pub fn lane(&self) -> Option<u32> {
        self.lanes.get(self.next).copied()
    }

    /// The lanes that have not ended.
    pub fn lanes(&self) -> &[u32] {
        &self.lanes
    }

    /// Moves on to the next lane, after a sample was taken. `ended`: it was the lane's last sample.
    pub fn take(&mut self, ended: bool) {
        if ended {
            self.lanes.remove(self.next);
        } else {
            self.next += 1;
        }
        if self.next >= self.lanes.len() {
            self.next = 0;
        }
    }
}

impl<'a> KnownLane<'a> {
    /// The lanes of `state`.
    fn all(
        state: &LaneState,
        shards: u64,
        lens_of: &'a dyn Fn(u64) -> &'a [u32],
    ) -> BTreeMap<u32, KnownLane<'a>> {
        let known = |(&lane, &place): (&u32, &LanePlace)| {
            let shards = state.spec.shards_of(lane, shards).collect();
            let window = Default::default();
            let mut known = KnownLane { spec: state.spec, lane, lens_of, shards, place, window };
            known.window = known.window_at(place);
            (lane, known)
        };
        state.places.iter().map(known).collect()
    }

    /// The samples of the window at `place`, and the place behind them.
    fn window_at(&self, place: LanePlace) -> (Vec<(u64, u64)>, LanePlace) {
        let mut samples = Vec::new();
        let mut fill = self.spec.empty_window(place);
        let mut first = place.sample;
        for (nth, &shard) in (0..).zip(&self.shards).skip(place.shard as usize) {
            for (sample, &len) in (0..).zip((self.lens_of)(shard)).skip(first as usize) {
                if !fill.fits(len) {
                    return (samples, LanePlace { shard: nth, sample, given: 0 });
                }
                samples.push((shard, sample));
            }
            first = 0;
        }
        (samples, LanePlace { shard: self.shards.len() as u64, ..LanePlace::default() })
    }

    /// The next sample, by shard and index in the shard; `None` if the lane has ended.
    fn next(&mut self) -> Option<(u64, u64)> {
        let (samples, end) = &self.window;
        let len = samples.len() as u64;
        let order = (len > 0).then(|| self.spec.window(self.lane, self.place, len))?;
        let sample = samples[order.forward(self.place.given) as usize];
        self.place.given += 1;
        if self.place.given == len {
            self.place = *end;
            self.window = self.window_at(self.place);
        }
        Some(sample)
    }

    /// Returns whether the lane has no more samples.
    fn has_ended(&self) -> bool {
        self.window.0.is_empty()
    }
}

/// Takes up to `batch` samples of a rank's lanes in turn, and calls `visit` with the lane and the sample.
fn take(
    turns: &mut Turns,
    lanes: &mut BTreeMap<u32, KnownLane<'_>>,
    batch: u64,
    visit: &mut dyn FnMut(u32, (u64, u64)),
) {
    let mut left = batch;
    while left > 0
        && let Some(lane) = turns.lane()
    {
        let known = lanes.get_mut(&lane).expect("turns are of the lanes of one state");
        if let Some(sample) = known.next() {
            visit(lane, sample);
            left -= 1;
        }
        turns.take(known.has_ended());
    }
}

/// The version of a [`LaneState`].
const VERSION: u32 = 1;

/// The first window of a lane is this many times shorter than the others.
const FIRST_WINDOW: u64 = 4;
/// The most samples of a window: empty samples would never fill one.
const MOST_SAMPLES: u64 = 1 << 16;
/// The most lanes of a state that is read: keeps memory in bounds.
const MOST_LANES: u32 = 1 << 16;
/// The most bytes of a window of a state that is read: keeps arithmetic in bounds.
const MOST_WINDOW_BYTES: u64 = 1 << 32;

/// The first word of the key of the order of shards: "shards" in ASCII. Frozen.
const OF_SHARDS: u64 = 0x7368_6172_6473;
/// The first word of the key of the order of a window's samples: "window" in ASCII. Frozen.
const OF_WINDOWS: u64 = 0x7769_6e64_6f77;

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of the samples of shards.
    type Shards = Vec<Vec<u32>>;

    /// Takes up to `count` samples as the rank whose state this is, and moves the state behind them.
    fn step(state: &mut LaneState, all: &Shards, count: u64) -> Vec<(u32, (u64, u64))> {
        let lens_of = |shard: u64| &*all[shard as usize];
        let mut lanes = KnownLane::all(state, all.len() as u64, &lens_of);
        let mut turns = state.turns();
        let mut taken = Vec::new();
        take(&mut turns, &mut lanes, count, &mut |lane, sample| taken.push((lane, sample)));
        state.places = lanes.iter().map(|(&lane, known)| (lane, known.place)).collect();
        state.turns = turns.lane().into_iter().collect();
        taken
    }

    fn random_shards(below: &mut impl FnMut(u64) -> u64) -> Shards {
        let lens = |below: &mut dyn FnMut(u64) -> u64| {
            let samples = [0, 1, 7, 30][below(4) as usize];
            (0..samples).map(|_| below(9) as u32).collect()
        };
        (0..below(24)).map(|_| lens(&mut *below)).collect()
    }

    #[test]
    fn ten_thousand_stops_at_other_world_sizes_lose_nothing_and_keep_the_order_of_each_lane() {
        let seed = 7;
        println!("seed {seed}");
        let mut drawn = 0;
        let mut below = |most: u64| {
            drawn += 1;
            Key::derive(seed, &[drawn]).word() % most
        };
        let mut stops = 0;
        while stops < 10_000 {
            let all = random_shards(&mut below);
            let lanes = 1 + below(12) as u32;
            let window_bytes = 1 + below(60);
            let spec = LaneSpec { seed: below(99), epoch: Epoch(below(3)), lanes, window_bytes };
            let mut whole = LaneState::start(HexId([1; 16]), spec, 0, 1).unwrap();
            let unstopped = by_lane(step(&mut whole.clone(), &all, u64::MAX));
            let mut given = Vec::new();
            loop {
                let world_size = 1 + below(lanes.into()) as u32;
                let count = below(40);
                let mut ranks = Vec::new();
                for rank in 0..world_size {
                    let mut state = whole.of_rank(rank, world_size).unwrap();
                    state = LaneState::from_json(&state.to_json()).unwrap();
                    given.extend(step(&mut state, &all, count));
                    ranks.push(state);
                }
                whole = LaneState::merge(ranks).unwrap();
                stops += 1;
                if step(&mut whole.clone(), &all, 1).is_empty() {
                    break;
                }
            }
            let mut once: Vec<_> = given.iter().map(|(_, sample)| *sample).collect();
            once.sort_unstable();
            let each = all.iter().enumerate().flat_map(|(shard, lens)| {
                (0..lens.len()).map(move |sample| (shard as u64, sample as u64))
            });
            assert_eq!(once, each.collect::<Vec<_>>(), "each sample once, {spec:?}");
            assert_eq!(by_lane(given), unstopped, "{spec:?}");
        }
    }

    fn by_lane(taken: Vec<(u32, (u64, u64))>) -> BTreeMap<u32, Vec<(u64, u64)>> {
        let mut lanes = BTreeMap::<u32, Vec<_>>::new();
        taken.into_iter().for_each(|(lane, sample)| lanes.entry(lane).or_default().push(sample));
        lanes
    }

    fn spec(lanes: u32) -> LaneSpec {
        LaneSpec { seed: 3, epoch: Epoch(0), lanes, window_bytes: 20 }
    }

    #[test]
    fn at_the_same_world_size_a_resumed_rank_goes_on_with_the_very_next_sample() {
        let all: Shards = (0..9).map(|shard| vec![1 + shard; 11]).collect();
        for world_size in 1..=5 {
            let start = |rank| LaneState::start(HexId([2; 16]), spec(5), rank, world_size).unwrap();
            let mut unstopped: Vec<_> = (0..world_size).map(start).collect();
            let mut stopped = unstopped.clone();
            for count in [1, 3, 4, 7, 2, 5] {
                let whole = LaneState::merge(stopped).unwrap();
                let of_rank = |rank| whole.of_rank(rank, world_size).unwrap();
                stopped = (0..world_size).map(of_rank).collect();
                for (stopped, unstopped) in stopped.iter_mut().zip(&mut unstopped) {
                    assert_eq!(step(stopped, &all, count), step(unstopped, &all, count));
                }
            }
        }
    }

    #[test]
    fn the_state_of_one_rank_alone_does_not_do_for_another_world_size() {
        let one = LaneState::start(HexId([2; 16]), spec(8), 1, 4).unwrap();
        let why = one.of_rank(1, 2).unwrap_err().to_string();
        assert!(why.contains("2 of 8 lanes") && why.contains("lacks lane 3"), "{why}");
        let why = one.of_rank(1, 9).unwrap_err().to_string();
        assert!(why.contains("9 ranks"), "{why}");
        let windows = LaneSpec { window_bytes: u64::MAX, ..spec(8) };
        assert!(LaneState { spec: windows, ..one.clone() }.of_rank(1, 4).is_err());
        let other = LaneState::start(HexId([3; 16]), spec(8), 0, 4).unwrap();
        assert!(LaneState::merge([one.clone(), other]).is_err());
        let mut later = one.clone();
        later.places.insert(1, LanePlace { shard: 0, sample: 0, given: 1 });
        let why = LaneState::merge([one, later]).unwrap_err().to_string();
        assert!(why.contains("lane 1"), "{why}");
    }

    #[test]
    fn the_first_window_of_a_lane_is_short_and_those_behind_it_are_not() {
        let len_of = |begin| {
            let mut fill = spec(8).empty_window(begin); // windows of 20 bytes
            (0..).take_while(|_| fill.fits(1)).count()
        };
        let start = LanePlace::default();
        assert_eq!((len_of(start), len_of(LanePlace { given: 2, ..start })), (5, 5));
        assert_eq!(len_of(LanePlace { sample: 5, ..start }), 20);
        assert_eq!(len_of(LanePlace { shard: 1, ..start }), 20);
        let mut fill = spec(8).empty_window(start);
        assert!(fill.fits(u32::MAX) && !fill.fits(0), "a longer sample is alone");
    }

    #[test]
    fn the_whole_epoch_is_what_the_ranks_take_step_by_step() {
        let all: Shards = (0..9).map(|shard| vec![1 + shard; shard as usize * 3]).collect();
        let lens_of = |shard: u64| &*all[shard as usize];
        let mut visited = Vec::new();
        let visit = |shard, sample| visited.push((shard, sample));
        spec(5).visit((9, &lens_of), (2, 4), visit).unwrap();
        let start = |rank| LaneState::start(HexId([2; 16]), spec(5), rank, 2).unwrap();
        let mut ranks = [start(0), start(1)];
        let mut steps = Vec::new();
        while steps.len() < visited.len() {
            ranks.iter_mut().for_each(|rank| steps.extend(step(rank, &all, 4)));
        }
        assert_eq!(steps.into_iter().map(|(_, sample)| sample).collect::<Vec<_>>(), visited);
    }

    #[test]
    fn epochs_and_seeds_go_over_the_shards_in_other_orders() {
        let of = |seed, epoch| {
            let spec = LaneSpec { seed, epoch: Epoch(epoch), ..spec(3) };
            (0..3).flat_map(|lane| spec.shards_of(lane, 40)).collect::<Vec<_>>()
        };
        let first = of(1, 0);
        assert_ne!(first, of(2, 0));
        assert_ne!(first, of(1, 1));
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..40).collect::<Vec<_>>());
    }
}
