//! [`Aligner`] divides a global batch among ranks so that as few ranks as possible read each chunk.
//!
//! The shares depend only on the batch's positions, the ranks and the order, and not on earlier batches, so every rank
//! computes the same shares. Still, a chunk goes to the same ranks batch after batch:
//!
//! 1. Let W ranks share K lanes, and g be their greatest common divisor. The positions modulo g form g classes,
//!    each with its own K / g lanes and W / g ranks. If a class has one rank, that rank takes the whole class: this
//!    is the strided share.
//! 2. Let a class have L lanes and R ranks. Each rank owns floor(L / R) lanes. The remaining K' = L mod R lanes are
//!    shared, group by group, in slot order: on an axis from 0 to 1, the samples of shared lane l occupy l / K' to
//!    (l + 1) / K', and rank r owns r / R to (r + 1) / R. So a rank owns whole chunks, except at its two ends:
//!    there it reads only its part of a chunk.
//! 3. Each sample of the batch goes to its owner, if that rank has room. The remaining samples go to other ranks
//!    with room, in the order of ranks; those ranks read them singly ([`Pick::alone`]). Samples remain because all
//!    ranks take equally many, but a batch draws from the chunks of shared lanes at random. (From each owned lane
//!    it draws equally many.) A rank gives away samples that touch few blocks of the medium.

use std::ops::Range;

use super::chunked::{Chunked, Pick};
use super::shard::{GlobalBatch, Shard};
use super::{EpochOrder, Sharding};

/// Computes aligned shares, and reuses its memory from batch to batch.
#[derive(Debug, Clone, Default)]
pub struct Aligner {
    /// The lanes of the class, with the samples of each in the batch.
    lanes: Vec<LaneRange>,
    /// For each rank of the class: the number of samples that it still takes.
    room: Vec<u64>,
    /// The samples of the batch in these lanes.
    samples: Vec<BatchSample>,
    /// For each rank of the class: the index in `samples` of the last sample that it owns, or `NONE`, and the number of
    /// owned samples that exceed its room.
    last: Vec<(u32, u32)>,
    /// Indices in `samples`, ascending: samples that go to another rank than their owner.
    strays: Vec<u32>,
    /// Samples of one rank: the number of blocks that the sample touches, and its index in `samples`.
    compared: Vec<(u32, u32)>,
    /// Positions of this rank, each with whether its sample is read alone.
    own: Vec<(u64, bool)>,
    counted: Counted,
}

/// Statistics of the last batch, over all ranks of the class.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counted {
    /// Samples of the batch.
    pub samples: u64,
    /// Samples that go to another rank than their owner.
    pub strays: u64,
}

/// The samples of the batch in one lane.
#[derive(Debug, Clone, Copy)]
struct LaneRange {
    /// The number of the lane.
    lane: u32,
    /// Indices of the samples in the lane: `start..end`.
    start: u64,
    end: u64,
}

/// A sample of the batch.
#[derive(Debug, Clone, Copy)]
struct BatchSample {
    /// Index in the lane.
    index: u64,
    lane: u32,
    /// The index in `samples` of the previous sample with the same owner, or `NONE`.
    before: u32,
}

/// Parameters that the ranks of a class share.
#[derive(Debug, Clone, Copy)]
struct Class {
    /// The number of classes.
    classes: u64,
    /// The number of this class, from 0.
    number: u64,
    /// The number of ranks of the class.
    ranks: u64,
    /// This rank's number within the class.
    own: u64,
    /// The number of lanes of the class.
    lanes: u64,
    /// The first lane of the class; every `classes`-th lane from there on belongs to it.
    first_lane: u64,
}

impl Class {
    fn new(order: &Chunked, shard: &Shard) -> Class {
        let rank = u64::from(shard.rank);
        let world_size = u64::from(shard.world_size.max(1));
        let num_lanes = u64::from(order.num_lanes());
        let classes = gcd(world_size, num_lanes);
        // Batches begin a multiple of the world size after `consumed`, and so a multiple of the number of classes.
        let first_lane = (shard.consumed % classes + rank % classes) % classes;
        Class {
            classes,
            number: rank % classes,
            ranks: world_size / classes,
            own: rank / classes,
            lanes: num_lanes / classes,
            first_lane,
        }
    }

    /// The number of lanes that are owned by one rank each, and of lanes that all ranks share.
    fn owned_and_shared(&self) -> (u64, u64) {
        (self.lanes - self.lanes % self.ranks, self.lanes % self.ranks)
    }

    /// The index, in slot order, of the first sample that belongs to rank `rank` of the class or to a later rank, among
    /// the `len` samples of a group of `lane`; `len` if there is none.
    fn start_of(&self, rank: u64, lane: u32, len: u64) -> u64 {
        let nth = (u64::from(lane) - self.first_lane) / self.classes;
        let (owned, shared) = self.owned_and_shared();
        let Some(nth) = nth.checked_sub(owned) else {
            return if rank <= nth % self.ranks { 0 } else { len };
        };
        let len = u128::from(len);
        let ranks = u128::from(self.ranks);
        let start = (u128::from(rank) * u128::from(shared) * len).div_ceil(ranks);
        start.saturating_sub(u128::from(nth) * len).min(len) as u64
    }

    /// The rank that owns sample `at` of the `len` samples of a group; `nth` is the number of the group's lane
    /// within the class.
    fn rank_of(&self, nth: u64, at: u64, len: u64) -> u64 {
        let (owned, shared) = self.owned_and_shared();
        let Some(nth) = nth.checked_sub(owned) else { return nth % self.ranks };
        let place = u128::from(nth) * u128::from(len) + u128::from(at);
        (place * u128::from(self.ranks) / (u128::from(shared) * u128::from(len.max(1)))) as u64
    }
}

impl Aligner {
    /// Statistics of the last batch, over all ranks of its class; zeroes if the class has one rank.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// Appends the samples that the rank of `shard` takes of `batch`, by position.
    ///
    /// `shard` must be the one from the start of the run: the batch begins a multiple of the world size after
    /// `shard.consumed`. `blocks_of` returns the number of blocks that a sample touches, given by chunk and index in
    /// the chunk. `len` is the number of positions of the epoch.
    pub(super) fn share(
        &mut self,
        order: &mut Chunked,
        blocks_of: impl Fn(u32, u32) -> u32,
        shard: &Shard,
        batch: GlobalBatch,
        len: u64,
        out: &mut Vec<Pick>,
    ) {
        let GlobalBatch { first, count } = batch;
        let rank = u64::from(shard.rank);
        let world_size = u64::from(shard.world_size.max(1));
        let real = count.min(len.saturating_sub(first));
        let class = Class::new(order, shard);
        self.own.clear();
        if class.ranks == 1 {
            self.own.extend((rank..real).step_by(world_size as usize).map(|i| (first + i, false)));
        } else {
            self.find_lanes(order, first..first + real, &class);
            self.room.clear();
            let before = |k| class.number + k * class.classes;
            let of_rank = |k| real.saturating_sub(before(k)).div_ceil(world_size);
            self.room.extend((0..class.ranks).map(of_rank));
            self.assign(order, blocks_of, &class);
            self.own.sort_unstable();
        }
        let padding = (rank..count).step_by(world_size as usize).filter(|&i| i >= real);
        // Padding repeats samples that another rank may own.
        self.own.extend(padding.map(|i| ((first + i) % len.max(1), class.ranks > 1)));
        out.extend(self.own.iter().map(|&(position, alone)| {
            let pick = order.pick(position);
            Pick { alone, ..pick }
        }));
    }

    /// The lanes of `class`, with the samples of each at `positions`.
    fn find_lanes(&mut self, order: &Chunked, positions: Range<u64>, class: &Class) {
        let num_lanes = u64::from(order.num_lanes());
        let lanes = (class.first_lane..num_lanes).step_by(class.classes as usize);
        let before = |position: u64, lane| position.saturating_sub(lane).div_ceil(num_lanes);
        self.lanes.clear();
        self.lanes.extend(lanes.map(|lane| {
            let start = before(positions.start, lane);
            let end = before(positions.end, lane);
            LaneRange { lane: lane as u32, start, end }
        }));
    }

    /// Assigns the samples of the lanes to the ranks of the class, and keeps those of this rank.
    fn assign(&mut self, order: &mut Chunked, blocks_of: impl Fn(u32, u32) -> u32, class: &Class) {
        let Aligner { lanes, room, samples, last, strays, counted, .. } = self;
        samples.clear();
        strays.clear();
        last.clear();
        last.resize(room.len(), (NONE, 0));
        for (nth, &LaneRange { lane, start, end }) in (0..).zip(&*lanes) {
            for index in start..end {
                let (group, shuffled) = order.place_in_group(lane, index);
                let (first, behind) = order.samples_of(lane, group);
                let rank = class.rank_of(nth, shuffled - first, behind - first) as usize;
                let (before, over) = &mut last[rank];
                let at = samples.len() as u32;
                samples.push(BatchSample { index, lane, before: std::mem::replace(before, at) });
                match room[rank].checked_sub(1) {
                    None => {
                        *over += 1;
                        strays.push(at);
                    }
                    Some(left) => room[rank] = left,
                }
            }
        }
        let num_strays = strays.len() as u64;
        *counted = Counted { samples: samples.len() as u64, strays: num_strays };
        if num_strays > 0 && samples.len() <= MOST_COMPARED {
            self.choose_strays(order, blocks_of);
        }
        self.keep_own(order, class);
    }

    /// If a rank owns too many samples, makes strays of those that touch the fewest blocks, instead of its last
    /// samples.
    fn choose_strays(&mut self, order: &mut Chunked, blocks_of: impl Fn(u32, u32) -> u32) {
        let Aligner { samples, last, strays, compared, .. } = self;
        strays.clear();
        for &(last, over) in last.iter().filter(|(_, over)| *over > 0) {
            let over = over as usize;
            compared.clear();
            let mut at = last;
            while at != NONE && compared.len() < COMPARED_FOR_ONE * over {
                let BatchSample { index, lane, before } = samples[at as usize];
                let (chunk, nth) = order.sample_of_lane(lane, index);
                compared.push((blocks_of(chunk, nth), at));
                at = before;
            }
            // The last samples were compared first and win ties: if all touch equally many blocks, they are the strays.
            compared.sort_by_key(|&(blocks, _)| blocks);
            strays.extend(compared[..over].iter().map(|&(_, at)| at));
        }
        strays.sort_unstable();
    }

    /// Keeps the samples that this rank owns except strays, and the strays that it has room for.
    fn keep_own(&mut self, order: &Chunked, class: &Class) {
        let Aligner { room, samples, last, strays, own, .. } = self;
        let mut at = last[class.own as usize].0;
        while at != NONE {
            let BatchSample { index, lane, before } = samples[at as usize];
            if strays.binary_search(&at).is_err() {
                own.push((order.position(lane, index), false));
            }
            at = before;
        }
        let mut rank = 0;
        for &at in &*strays {
            while room[rank] == 0 {
                rank += 1;
            }
            room[rank] -= 1;
            if rank as u64 == class.own {
                let BatchSample { index, lane, .. } = samples[at as usize];
                own.push((order.position(lane, index), true));
            }
        }
    }
}

/// The samples of `chunk` in `group` that the rank of `shard` owns, in slot order.
pub(super) fn own_in_group(order: &Chunked, shard: &Shard, group: u32, chunk: u32) -> Range<u32> {
    let all = order.samples_in_group(group, chunk);
    let class = Class::new(order, shard);
    let Some(at) = order.find_in_group(group, chunk).filter(|_| class.ranks > 1) else {
        return all;
    };
    let lane = order.lane_of(group);
    let (first, behind) = order.samples_of(lane, group);
    let of_chunk = order.samples_at(lane, at);
    let from = first + class.start_of(class.own, lane, behind - first);
    let to = first + class.start_of(class.own + 1, lane, behind - first);
    let within = |index: u64| (index.clamp(of_chunk.start, of_chunk.end) - of_chunk.start) as u32;
    all.start + within(from)..all.start + within(to)
}

/// The greatest common divisor.
#[doc(hidden)]
pub fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The reads of a [`Sharding`], relative to the data set. The minima are 1 and 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reads {
    /// The mean number of ranks that read a sample as part of its chunk.
    pub ranks_a_chunk: f64,
    /// The fraction of samples that are read singly, because other ranks read them with their chunk.
    pub alone: f64,
}

impl Reads {
    /// Bytes that all ranks read, divided by the bytes of the data set, if ranks read whole chunks and a single
    /// sample costs `sample_cost` times its bytes.
    pub fn by_chunk(&self, sample_cost: f64) -> f64 {
        self.ranks_a_chunk + self.alone * sample_cost
    }
}

impl EpochOrder {
    /// Predicts the reads of an epoch that `world_size` ranks share by `sharding`, each in batches of `batch_size`.
    /// `None` if the order does not visit chunks or has no samples, or if shares depend on the chunks' holders.
    ///
    /// Visits each chunk once or, for aligned shares, the samples of the first global batch.
    pub fn reads(&mut self, sharding: Sharding, world_size: u32, batch_size: u64) -> Option<Reads> {
        let len = self.len;
        if !self.is_chunked() || len == 0 || sharding == Sharding::Local {
            return None;
        }
        let chunked = self.chunked_mut();
        let ranks = u64::from(world_size.max(1));
        let ranks = ranks / gcd(ranks, u64::from(chunked.num_lanes()));
        if ranks == 1 {
            return Some(Reads { ranks_a_chunk: 1.0, alone: 0.0 });
        }
        if sharding == Sharding::Aligned {
            let shard = Shard::new(0, world_size, super::Tail::Keep).ok()?;
            let mut aligner = Aligner::default();
            let mut picks = Vec::new();
            let batch = shard.global_batch(len, 0, batch_size);
            aligner.share(chunked, |_, _| 1, &shard, batch, len, &mut picks);
            let counted = aligner.counted();
            let alone = counted.strays as f64 / counted.samples.max(1) as f64;
            return Some(Reads { ranks_a_chunk: 1.0, alone });
        }
        // Each sample goes to one of the ranks that share the lane, practically at random.
        let missed = 1.0 - 1.0 / ranks as f64;
        let of_chunk =
            |samples: u64| samples as f64 * ranks as f64 * (1.0 - missed.powf(samples as f64));
        let sum: f64 = chunked.lane_sample_counts().map(of_chunk).sum();
        Some(Reads { ranks_a_chunk: sum / len as f64, alone: 0.0 })
    }
}

/// No sample.
const NONE: u32 = u32::MAX;

/// The number of samples compared for each stray. Half of the samples of half a block's length touch only one
/// block.
const COMPARED_FOR_ONE: usize = 4;

/// The largest batch whose samples are compared. In a larger batch, so few samples are strays that comparing is not
/// worth its time.
const MOST_COMPARED: usize = 1 << 16;
