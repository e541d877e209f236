//! Orders that go through whole chunks: DIESEL's chunk-based shuffle in lanes, and slot order.
//!
//! 1. The chunks that hold live samples are shuffled by the epoch's key.
//! 2. They are dealt in that order: each goes to the lane with the fewest samples so far, the lowest
//!    of several.
//! 3. Each lane is cut into groups of `group` consecutive chunks (a run that holds one oversize
//!    sample counts as the chunks it is long; a group ends before a chunk that would overfill it).
//! 4. The samples of a group are shuffled together, by a key of the epoch, the lane and the group.
//! 5. The lanes take turns, one sample each; a lane that has no more drops out.
//!
//! One lane is DIESEL's algorithm itself: groups one after the other. With more, a batch draws from
//! `lanes * group` chunks at once, and a world size that divides the lanes gives each rank lanes, and
//! so chunks, of its own. In slot order there is one lane and nothing is shuffled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Population;
use super::interleave::Interleave;
use crate::permutation::{Key, Permutation};

/// A place in a chunk: what a position takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pick {
    /// The chunk.
    pub chunk: u32,
    /// Which of its live samples, in slot order.
    pub nth: u32,
    /// The group that the chunk belongs to in this epoch.
    pub group: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Chunked {
    /// The chunks, lane after lane, each in the order in which its lane goes through them.
    chunks: Vec<u32>,
    /// For each of them, the samples of its lane up to and with it.
    ends: Vec<u64>,
    /// For each group, and one past the last, its first place in `chunks`.
    groups: Vec<u32>,
    /// For each lane, and one past the last, its first group.
    lanes: Vec<u32>,
    interleave: Interleave,
    /// What shuffles the samples of a group; `None` leaves them in slot order.
    key: Option<Key>,
    cursors: Vec<Cursor>,
    dealt: Dealt,
}

/// The chunks of each lane, while they are dealt. It stays for the next epoch's.
#[derive(Debug, Clone, Default)]
struct Dealt {
    lanes: Vec<Vec<u32>>,
    /// Each lane and its samples so far, the lane with the fewest first.
    shortest: BinaryHeap<Reverse<(u64, u32)>>,
}

/// The group that a lane is in: everything needed for its next sample.
#[derive(Debug, Clone)]
struct Cursor {
    group: u32,
    /// The samples of the lane that the group holds: `start..end`.
    start: u64,
    end: u64,
    shuffle: Option<Permutation>,
}

impl Chunked {
    pub(super) fn in_slot_order(population: &(impl Population + ?Sized)) -> Chunked {
        let mut order = Chunked::empty();
        let chunks = (0..population.num_chunks()).filter(|&c| population.live_in_chunk(c) > 0);
        order.dealt.lanes.push(chunks.collect());
        order.cut(population, 1);
        order
    }

    pub(super) fn shuffled(
        population: &(impl Population + ?Sized),
        lanes: u32,
        group: u32,
        key: Key,
    ) -> Chunked {
        let mut order = Chunked::empty();
        order.shuffle_anew(population, lanes, group, key);
        order
    }

    /// Becomes the order that `shuffled` makes, in the memory that it has.
    pub(super) fn shuffle_anew(
        &mut self,
        population: &(impl Population + ?Sized),
        lanes: u32,
        group: u32,
        key: Key,
    ) {
        self.dealt.deal(population, lanes, key.with(CHUNKS));
        self.key = Some(key.with(SAMPLES));
        self.cut(population, group);
    }

    fn empty() -> Chunked {
        Chunked {
            chunks: Vec::new(),
            ends: Vec::new(),
            groups: Vec::new(),
            lanes: Vec::new(),
            interleave: Interleave::default(),
            key: None,
            cursors: Vec::new(),
            dealt: Dealt::default(),
        }
    }

    /// Cuts the lanes that were dealt into groups.
    fn cut(&mut self, population: &(impl Population + ?Sized), group: u32) {
        let Chunked { chunks, ends, groups, lanes, interleave, cursors, dealt, .. } = self;
        chunks.clear();
        ends.clear();
        groups.clear();
        lanes.clear();
        interleave.clear();
        for lane in &dealt.lanes {
            lanes.push(groups.len() as u32);
            let (mut samples, mut room) = (0, 0);
            for &chunk in lane {
                let span = population.span_of_chunk(chunk).max(1);
                if room < span {
                    groups.push(ends.len() as u32);
                    room = group;
                }
                room = room.saturating_sub(span);
                samples += u64::from(population.live_in_chunk(chunk));
                ends.push(samples);
            }
            chunks.extend_from_slice(lane);
            interleave.add_lane(samples);
        }
        lanes.push(groups.len() as u32);
        groups.push(chunks.len() as u32);
        interleave.begin();
        cursors.clear();
        cursors.resize(dealt.lanes.len(), Cursor { group: 0, start: 0, end: 0, shuffle: None });
    }

    #[inline]
    pub(super) fn pick(&mut self, position: u64) -> Pick {
        let (lane, index) = self.interleave.locate(position);
        let mut cursor = &self.cursors[lane as usize];
        if !(cursor.start..cursor.end).contains(&index) {
            self.enter(lane, index);
            cursor = &self.cursors[lane as usize];
        }
        let shuffled = match &cursor.shuffle {
            Some(shuffle) => cursor.start + shuffle.forward(index - cursor.start),
            None => index,
        };
        let first = self.groups[cursor.group as usize] as usize;
        let end = self.groups[cursor.group as usize + 1] as usize;
        let place = first + self.ends[first..end].partition_point(|&end| end <= shuffled);
        let before = if place == first { cursor.start } else { self.ends[place - 1] };
        Pick { chunk: self.chunks[place], nth: (shuffled - before) as u32, group: cursor.group }
    }

    /// The lane that goes through `group`.
    pub(super) fn lane_of(&self, group: u32) -> u32 {
        self.lanes.partition_point(|&first| first <= group) as u32 - 1
    }

    fn enter(&mut self, lane: u32, index: u64) {
        let group = self.group_of(lane, index);
        let (start, end) = self.samples_of(lane, group);
        let nth = group - self.lanes[lane as usize];
        let key = self.key.map(|key| key.with(u64::from(lane)).with(u64::from(nth)));
        let shuffle = key.map(|key| Permutation::new(end - start, key));
        self.cursors[lane as usize] = Cursor { group, start, end, shuffle };
    }

    /// The group of `lane` that holds its sample `index`.
    fn group_of(&self, lane: u32, index: u64) -> u32 {
        let (first, end) = (self.lanes[lane as usize], self.lanes[lane as usize + 1]);
        let groups = &self.groups[first as usize + 1..=end as usize];
        first + groups.partition_point(|&place| self.ends[place as usize - 1] <= index) as u32
    }

    /// The samples of its lane that `group` holds.
    fn samples_of(&self, lane: u32, group: u32) -> (u64, u64) {
        let first = self.groups[group as usize] as usize;
        let end = self.ends[self.groups[group as usize + 1] as usize - 1];
        let is_first = group == self.lanes[lane as usize];
        (if is_first { 0 } else { self.ends[first - 1] }, end)
    }
}

impl Dealt {
    /// The shuffled chunks, dealt: each to the lane with the fewest samples so far.
    fn deal(&mut self, population: &(impl Population + ?Sized), lanes: u32, key: Key) {
        let permutation = Permutation::new(u64::from(population.num_chunks()), key);
        self.lanes.resize_with(lanes as usize, Vec::new);
        let fair_share = permutation.len() as usize / lanes.max(1) as usize;
        for lane in &mut self.lanes {
            lane.clear();
            lane.reserve(fair_share + SPARE_CHUNKS);
        }
        self.shortest.clear();
        self.shortest.extend((0..lanes).map(|lane| Reverse((0, lane))));
        for index in 0..permutation.len() {
            let chunk = permutation.forward(index) as u32;
            let live = population.live_in_chunk(chunk);
            if live > 0 {
                let mut lane = self.shortest.peek_mut().expect("an order has at least one lane");
                self.lanes[lane.0.1 as usize].push(chunk);
                lane.0.0 += u64::from(live);
            }
        }
    }
}

/// Chunks above its share that a lane has room for: how many it gets differs a little by epoch.
const SPARE_CHUNKS: usize = 8;

/// Words of the keys. Frozen.
const CHUNKS: u64 = 0;
const SAMPLES: u64 = 1;
