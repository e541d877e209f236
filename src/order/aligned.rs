//! Divides a global batch among ranks so that as few ranks as possible read each chunk.
//!
//! The shares depend only on the batch's positions, the ranks and the order, so every rank computes the same
//! shares, without the earlier batches. A chunk still goes to the same ranks batch after batch:
//!
//! 1. Let W ranks share K lanes, and g be their greatest common divisor. The positions modulo g form g
//!    classes, each with K / g lanes and W / g ranks of its own. If a class has one rank, that rank takes
//!    all of it: this is the strided share.
//! 2. The ranks of a class are distributed over its lanes: W / K ranks for each lane. Each chunk of the
//!    lane's group gets a share of them in proportion to its samples. Rounded to whole ranks, these are the
//!    chunk's *homes*.
//! 3. Each sample of the batch goes to a home of its chunk that has room, round robin. The remaining samples
//!    go to other ranks with room, in the order of ranks; those ranks read them singly ([`Pick::alone`]).
//!    There are such samples because all ranks take equally many, but a batch draws from chunks at random.

use super::chunked::{Chunked, Pick};
use super::shard::{GlobalBatch, Shard};

/// Computes aligned shares, and reuses its memory.
#[derive(Debug, Clone, Default)]
pub struct Aligner {
    /// The lanes of the class, with the samples of each in the batch.
    lanes: Vec<LaneRange>,
    /// How many more samples each rank of the class takes.
    room: Vec<u64>,
    /// The homes of each chunk of one lane.
    homes: Vec<Homes>,
    /// Samples that no home had room for: lane, index in the lane.
    strays: Vec<(u32, u64)>,
    /// Positions of this rank, and whether each is a stray.
    own: Vec<(u64, bool)>,
    counted: Counted,
}

/// Statistics of the last batch, over all ranks of the class.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counted {
    /// Samples of the batch.
    pub samples: u64,
    /// Of them, those that go to a rank which is not a home of their chunk.
    pub strays: u64,
    /// Samples of the chunks that the batch draws from.
    pub chunk_samples: u64,
    /// The same, counting each chunk once for each of its homes.
    pub home_samples: u64,
}

#[derive(Debug, Clone, Copy)]
struct LaneRange {
    lane: u32,
    /// Indices of its samples in the batch: `start..end`.
    start: u64,
    end: u64,
}

/// The ranks that read a chunk, numbered within the class.
#[derive(Debug, Clone, Copy)]
struct Homes {
    first: u32,
    count: u32,
    /// Which of them takes the next sample.
    next: u32,
    is_full: bool,
    /// The batch takes a sample of the chunk.
    used: bool,
}

impl Aligner {
    /// Statistics of the last batch, over all ranks of its class.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// Appends the samples that the rank of `shard` takes of `batch`, by position.
    ///
    /// `shard` must be the one from the start of the run: the batch begins a multiple of the world size after it.
    pub(super) fn share(
        &mut self,
        order: &mut Chunked,
        shard: &Shard,
        batch: GlobalBatch,
        len: u64,
        out: &mut Vec<Pick>,
    ) {
        let GlobalBatch { first, count } = batch;
        let (rank, world_size) = (u64::from(shard.rank), u64::from(shard.world_size.max(1)));
        let real = count.min(len.saturating_sub(first));
        let classes = match order.has_equal_lanes() {
            true => gcd(world_size, u64::from(order.num_lanes())),
            false => 1,
        };
        self.own.clear();
        let ranks = world_size / classes;
        if ranks == 1 {
            self.own.extend((rank..real).step_by(world_size as usize).map(|i| (first + i, false)));
        } else {
            let class = rank % classes;
            self.find_lanes(order, first..first + real, classes, class);
            self.room.clear();
            let of_rank = |k| real.saturating_sub(class + k * classes).div_ceil(world_size);
            self.room.extend((0..ranks).map(of_rank));
            self.assign(order, ranks, rank / classes);
            self.own.sort_unstable();
        }
        let padding = (rank..count).step_by(world_size as usize).filter(|&i| i >= real);
        self.own.extend(padding.map(|i| ((first + i) % len.max(1), false)));
        out.extend(self.own.iter().map(|&(position, alone)| {
            let pick = order.pick(position);
            Pick { alone, ..pick }
        }));
    }

    /// The lanes of `class`, with the samples of each at `positions`.
    fn find_lanes(
        &mut self,
        order: &mut Chunked,
        positions: std::ops::Range<u64>,
        classes: u64,
        class: u64,
    ) {
        let num_lanes = u64::from(order.num_lanes());
        self.lanes.clear();
        if order.has_equal_lanes() {
            let lanes = ((positions.start + class) % classes..num_lanes).step_by(classes as usize);
            let before = |position: u64, lane| position.saturating_sub(lane).div_ceil(num_lanes);
            self.lanes.extend(lanes.map(|lane| {
                let (start, end) = (before(positions.start, lane), before(positions.end, lane));
                LaneRange { lane: lane as u32, start, end }
            }));
            return;
        }
        // Exhausted lanes stay in the list, without samples.
        let nothing = |lane| LaneRange { lane: lane as u32, start: 0, end: 0 };
        self.lanes.extend((0..num_lanes).map(nothing));
        for position in positions {
            let (lane, index) = order.locate(position);
            let range = &mut self.lanes[lane as usize];
            if range.end == 0 {
                range.start = index;
            }
            range.end = index + 1;
        }
    }

    /// Assigns the samples of the lanes to `ranks` ranks, and keeps those of rank `own`.
    fn assign(&mut self, order: &mut Chunked, ranks: u64, own: u64) {
        let Aligner { lanes, room, homes, strays, counted, .. } = self;
        strays.clear();
        *counted = Counted::default();
        let num_lanes = lanes.len() as u64;
        for (nth, &LaneRange { lane, start, end }) in (0..).zip(&*lanes) {
            if start == end {
                continue;
            }
            counted.samples += end - start;
            let first_chunk =
                homes_of_lane(order, (lane, start, end), (nth, num_lanes, ranks), homes);
            for index in start..end {
                let (at, _) = order.locate_in_lane(lane, index);
                let homes = &mut homes[at - first_chunk];
                homes.used = true;
                match homes.next_with_room(room) {
                    Some(rank) if rank == own => {
                        self.own.push((order.position(lane, index), false));
                    }
                    Some(_) => {}
                    None => strays.push((lane, index)),
                }
            }
            for (at, homes) in (first_chunk..).zip(&*homes).filter(|(_, homes)| homes.used) {
                let samples = order.samples_at(lane, at);
                counted.chunk_samples += samples.end - samples.start;
                counted.home_samples += (samples.end - samples.start) * u64::from(homes.count);
            }
        }
        counted.strays = strays.len() as u64;
        let mut rank = 0;
        for &(lane, index) in &*strays {
            while room[rank] == 0 {
                rank += 1;
            }
            room[rank] -= 1;
            if rank as u64 == own {
                self.own.push((order.position(lane, index), true));
            }
        }
    }
}

impl Homes {
    /// The home that takes the next sample, if one has room.
    #[inline]
    fn next_with_room(&mut self, room: &mut [u64]) -> Option<u64> {
        if self.is_full {
            return None;
        }
        for _ in 0..self.count {
            let rank = self.first + self.next;
            self.next = if self.next + 1 == self.count { 0 } else { self.next + 1 };
            if let Some(left) = room[rank as usize].checked_sub(1) {
                room[rank as usize] = left;
                return Some(rank.into());
            }
        }
        self.is_full = true;
        None
    }
}

/// Computes the homes of all chunks in the groups of samples `start..end` of a lane, and returns the index
/// of the first chunk. The lane is number `nth` of the `num_lanes` that `ranks` ranks share.
fn homes_of_lane(
    order: &Chunked,
    (lane, start, end): (u32, u64, u64),
    (nth, num_lanes, ranks): (u64, u64, u64),
    homes: &mut Vec<Homes>,
) -> usize {
    homes.clear();
    let (first, last) = (order.group_of(lane, start), order.group_of(lane, end - 1));
    for group in first..=last {
        let (group_start, group_end) = order.samples_of(lane, group);
        let len = u128::from(group_end - group_start);
        let (first, end) = order.chunk_range(group);
        // Positions on the axis of ranks, as fractions of `all`.
        let all = u128::from(num_lanes) * len;
        let at = |sample: u64| {
            (u128::from(nth) * len + u128::from(sample - group_start)) * u128::from(ranks)
        };
        let rounded = |at: u128| ((2 * at + all) / (2 * all)) as u32;
        for chunk in first..end {
            let samples = order.samples_at(lane, chunk);
            let (from, to) = (at(samples.start), at(samples.end));
            let (begin, behind) = (rounded(from), rounded(to));
            let (first, count) = match behind - begin {
                0 => (((from + to) / (2 * all)) as u32, 1),
                count => (begin, count),
            };
            homes.push(Homes { first, count, next: 0, is_full: false, used: false });
        }
    }
    order.chunk_range(first).0
}

pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
