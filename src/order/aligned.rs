//! Sharing a global batch so that each chunk goes to as few ranks as possible.
//!
//! A function of the batch's positions, the ranks and the order alone: whoever computes it finds the same
//! shares, at any time and without the batches before. That a chunk goes to the same rank batch after
//! batch is therefore not remembered but laid down:
//!
//! 1. Where W ranks share K lanes and g divides both, the positions fall into g classes by their number,
//!    each with K / g lanes of its own and W / g ranks. One rank in a class takes all of it: that is the
//!    strided share.
//! 2. In a class the ranks are laid along its lanes: a lane has (W / g) / (K / g) of them, and a chunk of
//!    its group a part of those by its samples. Rounded to whole ranks these are the chunk's *homes*.
//! 3. Each sample of the batch goes to a home of its chunk that has room, in turn. What is left over goes
//!    to the ranks that have room, in the order of ranks, each sample by itself ([`Pick::alone`]): chunks
//!    come in random numbers, and all ranks take equally many.

use super::chunked::{Chunked, Pick};
use super::shard::{GlobalBatch, Shard};

/// Works out aligned shares, in memory that stays.
#[derive(Debug, Clone, Default)]
pub struct Aligner {
    /// The lanes of the class, each with its samples that the batch takes.
    lanes: Vec<LaneRange>,
    /// What each rank of the class has room for.
    room: Vec<u64>,
    /// The chunks of one lane.
    homes: Vec<Homes>,
    /// Samples that no home had room for: lane, index in the lane.
    strays: Vec<(u32, u64)>,
    /// Positions of the rank asked for, and whether each is a stray.
    own: Vec<(u64, bool)>,
    counted: Counted,
}

/// What the last share was, for all ranks of the class together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counted {
    /// Samples shared out.
    pub samples: u64,
    /// Of them, those that go to a rank that their chunk is no home of.
    pub strays: u64,
    /// Samples of the chunks that the batch draws from.
    pub chunk_samples: u64,
    /// The same, each chunk as often as it has homes.
    pub home_samples: u64,
}

#[derive(Debug, Clone, Copy)]
struct LaneRange {
    lane: u32,
    /// Indices of its samples.
    start: u64,
    end: u64,
}

/// The ranks that a chunk goes to, numbered within the class.
#[derive(Debug, Clone, Copy)]
struct Homes {
    first: u32,
    count: u32,
    /// Which of them is next.
    turn: u32,
    is_full: bool,
    /// The batch takes a sample of the chunk.
    used: bool,
}

impl Aligner {
    /// What the last share was, for all ranks of its class.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// Appends what the rank of `shard` takes of `batch`, by position.
    ///
    /// `shard` is as it was where the run began: the batch begins a multiple of all ranks behind that.
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
        // Lanes that have dropped out have no samples here, and keep their place.
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

    /// Gives out the samples of the lanes to `ranks` ranks, and keeps what goes to `own`.
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
            let first_place = lay_along(order, (lane, start, end), (nth, num_lanes, ranks), homes);
            for index in start..end {
                let (place, _) = order.place(lane, index);
                let homes = &mut homes[place - first_place];
                homes.used = true;
                match homes.next_with_room(room) {
                    Some(rank) if rank == own => {
                        self.own.push((order.position(lane, index), false));
                    }
                    Some(_) => {}
                    None => strays.push((lane, index)),
                }
            }
            for (place, homes) in (first_place..).zip(&*homes).filter(|(_, homes)| homes.used) {
                let samples = order.samples_at(lane, place);
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
    /// The home that takes the next sample, while one has room.
    #[inline]
    fn next_with_room(&mut self, room: &mut [u64]) -> Option<u64> {
        if self.is_full {
            return None;
        }
        for _ in 0..self.count {
            let rank = self.first + self.turn;
            self.turn = if self.turn + 1 == self.count { 0 } else { self.turn + 1 };
            if let Some(left) = room[rank as usize].checked_sub(1) {
                room[rank as usize] = left;
                return Some(rank.into());
            }
        }
        self.is_full = true;
        None
    }
}

/// The homes of the chunks in whose groups samples `start..end` of a lane lie, and the place of the first.
/// The lane is the `nth` of `num_lanes` that `ranks` ranks are laid along.
fn lay_along(
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
        let (places, end_of_places) = order.places_of(group);
        // In ranks, as a fraction of `all`.
        let all = u128::from(num_lanes) * len;
        let at = |sample: u64| {
            (u128::from(nth) * len + u128::from(sample - group_start)) * u128::from(ranks)
        };
        let rounded = |at: u128| ((2 * at + all) / (2 * all)) as u32;
        for place in places..end_of_places {
            let samples = order.samples_at(lane, place);
            let (from, to) = (at(samples.start), at(samples.end));
            let (begin, behind) = (rounded(from), rounded(to));
            let (first, count) = match behind - begin {
                0 => (((from + to) / (2 * all)) as u32, 1),
                count => (begin, count),
            };
            homes.push(Homes { first, count, turn: 0, is_full: false, used: false });
        }
    }
    order.places_of(first).0
}

pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
