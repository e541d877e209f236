//! Orders that visit whole chunks: DIESEL's chunk-based shuffle in lanes, and slot order.
//!
//! 1. The chunks that hold live samples are shuffled by the epoch's key.
//! 2. They are concatenated in this order and divided into K lanes: of N samples, lane l takes floor(N / K), and
//!    one more if l < N mod K. A chunk at a lane border is divided in slot order: its first samples end one lane,
//!    the others begin the next lane.
//! 3. Each lane is divided into groups of `group` consecutive chunks. A chunk with one oversize sample counts as many
//!    chunks as its length is chunk sizes, rounded up; a group ends before a chunk that would exceed the group's size.
//! 4. The samples of a group are shuffled together, by a key of the epoch, the lane and the group.
//! 5. The sequence takes one sample of each lane in turn: position p is sample floor(p / K) of lane p mod K.
//!
//! With one lane this is DIESEL's algorithm: one group after the other. With more lanes, a batch draws from
//! `lanes * group` chunks at a time. If the world size divides the number of lanes, each rank has its own lanes,
//! and so its own chunks: lanes have equal lengths, so all of them last until the last round. Slot order has one
//! lane, and shuffles nothing.

use std::ops::Range;

use super::Population;
use dlfs_base::permutation::{Key, Permutation};

/// The sample at a position, as a sample of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pick {
    /// The chunk.
    pub chunk: u32,
    /// The index among the chunk's live samples, in slot order.
    pub nth: u32,
    /// The group of the chunk in this epoch.
    pub group: u32,
    /// Set if another rank reads the chunk: this rank should then read the sample singly.
    pub alone: bool,
}

/// The sequence of one epoch: position -> sample of a chunk.
#[derive(Debug, Clone, Default)]
pub(super) struct Chunked {
    /// The chunks of all lanes, lane after lane, in the order of each lane.
    chunks: Vec<u32>,
    /// For each entry of `chunks`, the number of samples of its lane up to and including it.
    ends: Vec<u64>,
    /// For each group, and one past the last, the index of its first chunk in `chunks`.
    groups: Vec<u32>,
    /// For each lane, and one past the last, its first group.
    lanes: Vec<u32>,
    /// For each lane, the number of samples of its first chunk that belong to the previous lane.
    skips: Vec<u32>,
    /// The key that shuffles the samples of groups; `None` leaves them in slot order.
    key: Option<Key>,
    /// For each lane, the group of its last position.
    cursors: Vec<Cursor>,
    dealt: DealtLanes,
}

/// The chunks of each lane while they are distributed. The memory is reused in the next epoch.
#[derive(Debug, Clone, Default)]
struct DealtLanes {
    /// By lane: its chunks.
    lanes: Vec<Vec<u32>>,
    /// For each lane: the number of samples of its first chunk that belong to the previous lane, and the most
    /// samples it may have.
    bounds: Vec<(u32, u64)>,
}

/// The current group of a lane, and the values from which its next sample is computed.
#[derive(Debug, Clone)]
struct Cursor {
    group: u32,
    /// Indices in the lane of the group's samples: `start..end`.
    start: u64,
    end: u64,
    /// The number of samples of the group's first chunk that belong to the previous lane.
    skip: u32,
    shuffle: Option<Permutation>,
}

impl Cursor {
    /// The index in slot order of the sample at `index`.
    #[inline]
    fn in_slot_order(&self, index: u64) -> u64 {
        match &self.shuffle {
            Some(shuffle) => self.start + shuffle.forward(index - self.start),
            None => index,
        }
    }
}

impl Chunked {
    /// All chunks in slot order, as one lane that is not shuffled.
    pub(super) fn in_slot_order(population: &(impl Population + ?Sized)) -> Chunked {
        let mut order = Chunked::default();
        let chunks = (0..population.num_chunks()).filter(|&c| population.live_in_chunk(c) > 0);
        order.dealt.lanes.push(chunks.collect());
        order.dealt.bounds.push(UNBOUNDED);
        order.cut(population, 1);
        order
    }

    /// Replaces this order with a shuffled one, and reuses its memory.
    pub(super) fn shuffle(
        &mut self,
        population: &(impl Population + ?Sized),
        (lanes, group): (u32, u32),
        key: Key,
    ) {
        self.dealt.clear(population.num_chunks(), lanes);
        self.dealt.deal(population, lanes, key.with(CHUNKS));
        self.key = Some(key.with(SAMPLES));
        self.cut(population, group);
    }

    /// Divides the lanes into groups.
    fn cut(&mut self, population: &(impl Population + ?Sized), group: u32) {
        let Chunked { chunks, ends, groups, lanes, skips, cursors, dealt, .. } = self;
        chunks.clear();
        ends.clear();
        groups.clear();
        lanes.clear();
        skips.clear();
        for (lane, &(skip, limit)) in dealt.lanes.iter().zip(&dealt.bounds) {
            lanes.push(groups.len() as u32);
            skips.push(skip);
            let mut samples = 0;
            let mut room = 0;
            let mut skip = skip;
            for &chunk in lane {
                let span = population.span_of_chunk(chunk).max(1);
                if room < span {
                    groups.push(ends.len() as u32);
                    room = group;
                }
                room = room.saturating_sub(span);
                samples += u64::from(population.live_in_chunk(chunk) - std::mem::take(&mut skip));
                samples = samples.min(limit);
                ends.push(samples);
            }
            chunks.extend_from_slice(lane);
        }
        lanes.push(groups.len() as u32);
        groups.push(chunks.len() as u32);
        cursors.clear();
        // An empty range has no position, so the first one enters a group.
        let before_all = Cursor { group: 0, start: 0, end: 0, skip: 0, shuffle: None };
        cursors.resize(dealt.lanes.len(), before_all);
    }

    /// The sample at `position`, which is below the length of the epoch.
    #[inline]
    pub(super) fn pick(&mut self, position: u64) -> Pick {
        let lanes = u64::from(self.num_lanes());
        let lane = (position % lanes) as u32;
        let index = position / lanes;
        let (at, nth) = self.locate_in_lane(lane, index);
        let group = self.cursors[lane as usize].group;
        Pick { chunk: self.chunks[at], nth, group, alone: false }
    }

    /// The chunk of sample `index` of `lane`, as an index into `chunks`, and the index of the sample in the chunk.
    #[inline]
    fn locate_in_lane(&mut self, lane: u32, index: u64) -> (usize, u32) {
        let (_, shuffled) = self.place_in_group(lane, index);
        let cursor = &self.cursors[lane as usize];
        let first = self.groups[cursor.group as usize] as usize;
        let end = self.groups[cursor.group as usize + 1] as usize;
        let at = first + self.ends[first..end].partition_point(|&end| end <= shuffled);
        if at == first {
            (at, (shuffled - cursor.start) as u32 + cursor.skip)
        } else {
            (at, (shuffled - self.ends[at - 1]) as u32)
        }
    }

    /// The chunk of sample `index` of `lane`, and the index of the sample in the chunk.
    pub(super) fn sample_of_lane(&mut self, lane: u32, index: u64) -> (u32, u32) {
        let (at, nth) = self.locate_in_lane(lane, index);
        (self.chunks[at], nth)
    }

    /// The group of sample `index` of `lane`, and the sample's index in the lane in slot order.
    #[inline]
    pub(super) fn place_in_group(&mut self, lane: u32, index: u64) -> (u32, u64) {
        let mut cursor = &self.cursors[lane as usize];
        if !(cursor.start..cursor.end).contains(&index) {
            self.enter(lane, index);
            cursor = &self.cursors[lane as usize];
        }
        (cursor.group, cursor.in_slot_order(index))
    }

    /// The lane of `group`.
    pub(super) fn lane_of(&self, group: u32) -> u32 {
        self.lanes.partition_point(|&first| first <= group) as u32 - 1
    }

    /// The index of `chunk` in `chunks`, if it belongs to `group`.
    pub(super) fn find_in_group(&self, group: u32, chunk: u32) -> Option<usize> {
        let [first, end] = [group, group + 1].map(|group| self.groups[group as usize] as usize);
        self.chunks[first..end].iter().position(|&other| other == chunk).map(|nth| first + nth)
    }

    /// The samples of `chunk` that belong to `group`, in slot order.
    pub(super) fn samples_in_group(&self, group: u32, chunk: u32) -> Range<u32> {
        let Some(at) = self.find_in_group(group, chunk) else { return 0..0 };
        let lane = self.lane_of(group);
        let samples = self.samples_at(lane, at);
        let skip = if samples.start == 0 { self.skips[lane as usize] } else { 0 };
        skip..skip + (samples.end - samples.start) as u32
    }

    /// Indices in `lane` of the samples of the chunk at index `at`.
    pub(super) fn samples_at(&self, lane: u32, at: usize) -> Range<u64> {
        let is_first = at == self.groups[self.lanes[lane as usize] as usize] as usize;
        (if is_first { 0 } else { self.ends[at - 1] })..self.ends[at]
    }

    /// The number of samples that a lane takes of each of its chunks.
    pub(super) fn lane_sample_counts(&self) -> impl Iterator<Item = u64> {
        let mut before = 0;
        self.ends.iter().map(move |&end| {
            // In a new lane, counting restarts at 0; no lane is longer than the one before it.
            let start = if end > before { before } else { 0 };
            before = end;
            end - start
        })
    }

    pub(super) fn num_lanes(&self) -> u32 {
        self.lanes.len() as u32 - 1
    }

    /// The position of the sample `index` of `lane`.
    pub(super) fn position(&self, lane: u32, index: u64) -> u64 {
        index * u64::from(self.num_lanes()) + u64::from(lane)
    }

    /// Moves the cursor of `lane` to the group of sample `index`.
    fn enter(&mut self, lane: u32, index: u64) {
        let group = self.group_of(lane, index);
        let (start, end) = self.samples_of(lane, group);
        let nth = group - self.lanes[lane as usize];
        let key = self.key.map(|key| key.with(u64::from(lane)).with(u64::from(nth)));
        let shuffle = key.map(|key| Permutation::new(end - start, key));
        let skip = if nth == 0 { self.skips[lane as usize] } else { 0 };
        self.cursors[lane as usize] = Cursor { group, start, end, skip, shuffle };
    }

    /// The group that holds sample `index` of `lane`.
    fn group_of(&self, lane: u32, index: u64) -> u32 {
        let first = self.lanes[lane as usize];
        let end = self.lanes[lane as usize + 1];
        let groups = &self.groups[first as usize + 1..=end as usize];
        first + groups.partition_point(|&at| self.ends[at as usize - 1] <= index) as u32
    }

    /// Indices in `lane` of the samples of `group`: the first, and one past the last.
    pub(super) fn samples_of(&self, lane: u32, group: u32) -> (u64, u64) {
        let first = self.groups[group as usize] as usize;
        let end = self.ends[self.groups[group as usize + 1] as usize - 1];
        let is_first = group == self.lanes[lane as usize];
        (if is_first { 0 } else { self.ends[first - 1] }, end)
    }
}

impl DealtLanes {
    /// Makes `lanes` empty lanes, each with capacity for its share of the chunks.
    fn clear(&mut self, num_chunks: u32, lanes: u32) {
        self.lanes.resize_with(lanes as usize, Vec::new);
        let fair_share = num_chunks as usize / lanes.max(1) as usize;
        for lane in &mut self.lanes {
            lane.clear();
            lane.reserve(fair_share + SPARE_CHUNKS);
        }
        self.bounds.clear();
    }

    /// Divides the shuffled chunks into lanes: each lane gets chunks until it has its share of the samples, and a chunk
    /// at a border belongs to both lanes.
    fn deal(&mut self, population: &(impl Population + ?Sized), lanes: u32, key: Key) {
        let each = population.num_live() / u64::from(lanes);
        let extra = population.num_live() % u64::from(lanes);
        let mut chunks = shuffled_chunks(population, key);
        let mut chunk = 0;
        let mut live = 0;
        let mut taken = 0;
        for (lane, lane_chunks) in (0..).zip(&mut self.lanes) {
            let share = each + u64::from(lane < extra);
            // If the border falls between two chunks, the next lane skips nothing.
            let skip = if taken < live { taken } else { 0 };
            let mut rest = share;
            while rest > 0 {
                if taken == live {
                    let Some(next) = chunks.next() else { break };
                    ((chunk, live), taken) = (next, 0);
                }
                lane_chunks.push(chunk);
                let count = rest.min(u64::from(live - taken));
                taken += count as u32;
                rest -= count;
            }
            self.bounds.push((skip, share));
        }
    }
}

/// The chunks that hold live samples, shuffled by `key`, each with its number of live samples.
fn shuffled_chunks(
    population: &(impl Population + ?Sized),
    key: Key,
) -> impl Iterator<Item = (u32, u32)> {
    let permutation = Permutation::new(u64::from(population.num_chunks()), key);
    let chunks = (0..permutation.len()).map(move |index| permutation.forward(index) as u32);
    chunks.map(|chunk| (chunk, population.live_in_chunk(chunk))).filter(|&(_, live)| live > 0)
}

/// The bounds of a lane that has all samples of its chunks.
const UNBOUNDED: (u32, u64) = (0, u64::MAX);

/// Capacity of a lane above its share of the chunks: its number of chunks differs slightly by epoch.
const SPARE_CHUNKS: usize = 8;

/// The word of the key that orders chunks. Frozen.
const CHUNKS: u64 = 0;
/// The word of the key that orders the samples of a group. Frozen.
const SAMPLES: u64 = 1;
