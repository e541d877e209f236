//! [`Aligner`] divides a global batch among ranks so that as few ranks as possible read each chunk.
//!
//! The shares depend only on the batch's positions, the ranks and the order, but not on earlier batches, so every
//! rank computes the same shares. Still, a chunk goes to the same ranks batch after batch:
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
//!
//! [`ByNode`] divides a global batch among ranks so that each rank reads samples that its own node holds, within equal
//! shares.
//!
//! Yang and Cong, "Accelerating Data Loading in Deep Neural Network Training" (HiPC 2019), assign samples to the
//! nodes that hold them, and then even out the shares of the ranks. Here the order still defines the global batch,
//! sample by sample; only the assignment of its samples to ranks changes:
//!
//! 1. In the order of positions, each sample goes to the node that holds it, while the ranks of that node have
//!    room.
//! 2. The remaining samples (their holder is full, or no node holds them) fill up the nodes, in the order of
//!    positions. The first node to fill up changes from batch to batch.
//! 3. Within a node, in the order of positions, the first rank takes its whole share, then the next rank.
//!
//! Every rank takes as many samples as with strided shares. A share depends on the batch's positions, the ranks,
//! the nodes and the holders, but not on earlier batches, so every rank computes the same shares.

use std::ops::Range;
use std::sync::Arc;

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
    samples: Vec<Sample>,
    /// For each rank of the class: the last sample that it owns, or `NONE`, and the number of owned samples that
    /// exceed its room.
    last: Vec<(u32, u32)>,
    /// Samples that go to another rank than their owner.
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

#[derive(Debug, Clone, Copy)]
struct LaneRange {
    lane: u32,
    /// The samples of the batch in this lane, as indices in the lane: `start..end`.
    start: u64,
    end: u64,
}

/// A sample of the batch.
#[derive(Debug, Clone, Copy)]
struct Sample {
    index: u64,
    lane: u32,
    /// The previous sample of the same rank, or `NONE`.
    before: u32,
}

/// Parameters that the ranks of a class share.
#[derive(Debug, Clone, Copy)]
struct Class {
    /// The number of classes, and the number of this class.
    classes: u64,
    number: u64,
    ranks: u64,
    /// This rank's number within the class.
    own: u64,
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

    /// The first sample that belongs to ranks from `rank` on, among the `len` samples of a group of `lane`, in slot
    /// order.
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
    /// Statistics of the last batch, over all ranks of its class.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// Appends the samples that the rank of `shard` takes of `batch`, by position.
    ///
    /// `shard` must be the one from the start of the run: the batch begins a multiple of the world size after
    /// `shard.consumed`.
    /// `blocks_of` returns the number of blocks that a sample touches, given by chunk and index in the chunk.
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
                samples.push(Sample { index, lane, before: std::mem::replace(before, at) });
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
                let Sample { index, lane, before } = samples[at as usize];
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
            let Sample { index, lane, before } = samples[at as usize];
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
                let Sample { index, lane, .. } = samples[at as usize];
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

/// The node of each rank of a round, and the node that holds each chunk. Nodes are numbered from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locality {
    node_of_rank: Vec<u16>,
    num_nodes: u16,
    /// By chunk; `NOBODY` for a chunk that no node holds.
    holders: Vec<u16>,
}

impl Locality {
    /// The nodes of the ranks of a round, one entry per rank, and the holder of each chunk.
    ///
    /// # Panics
    /// If there are no ranks.
    pub fn new(node_of_rank: Vec<u16>, holders: impl IntoIterator<Item = Option<u16>>) -> Locality {
        assert!(!node_of_rank.is_empty(), "a round has a rank");
        let num_nodes = node_of_rank.iter().max().map_or(0, |last| last.saturating_add(1));
        let holders = holders.into_iter().map(|holder| holder.unwrap_or(NOBODY)).collect();
        Locality { node_of_rank, num_nodes, holders }
    }

    /// The number of ranks of the round.
    pub fn num_ranks(&self) -> u32 {
        self.node_of_rank.len() as u32
    }

    /// The number of nodes of the round.
    pub fn num_nodes(&self) -> u16 {
        self.num_nodes
    }

    /// The node of `rank` of a run. A run may have several processes for each rank of the round, such as workers of
    /// a data loader. Its world size is then a multiple of the round's W, and its rank r belongs to rank r mod W.
    pub fn node_of(&self, rank: u32) -> u16 {
        self.node_of_rank[rank as usize % self.node_of_rank.len()]
    }

    /// The number of ranks of the round on `node`.
    pub fn ranks_on(&self, node: u16) -> u32 {
        self.node_of_rank.iter().filter(|&&other| other == node).count() as u32
    }

    /// The node that holds `chunk`; `None` if none does.
    #[inline]
    pub fn holder(&self, chunk: u32) -> Option<u16> {
        self.holders.get(chunk as usize).copied().filter(|&node| node != NOBODY)
    }
}

/// Computes shares by node, and reuses its memory from batch to batch.
#[derive(Debug, Clone)]
pub struct ByNode {
    locality: Arc<Locality>,
    /// For each node: the number of samples that its ranks still take.
    room: Vec<u64>,
    /// The node that takes each sample of the batch.
    nodes: Vec<u16>,
    /// The positions of this rank.
    own: Vec<u64>,
}

impl ByNode {
    /// Shares for the ranks of `locality`.
    pub fn new(locality: Arc<Locality>) -> ByNode {
        ByNode { locality, room: Vec::new(), nodes: Vec::new(), own: Vec::new() }
    }

    /// The nodes of ranks and chunks.
    pub fn locality(&self) -> &Arc<Locality> {
        &self.locality
    }

    /// The positions that the rank of `shard` takes of `batch` in an epoch of `len`, ascending, followed by those
    /// of its padding; `batch_size` is that of each rank. `holder` returns the node that holds the sample at a
    /// position. It is called once for each position of the batch, in ascending order.
    ///
    /// Takes a few nanoseconds per position of the global batch, besides the time of `holder`.
    ///
    /// # Panics
    /// If the world size of `shard` is not a multiple of the round's: the creator of a run checks this.
    pub fn share(
        &mut self,
        shard: &Shard,
        batch: GlobalBatch,
        (len, batch_size): (u64, u64),
        holder: impl FnMut(u64) -> Option<u16>,
    ) -> &[u64] {
        let GlobalBatch { first, count } = batch;
        let world_size = shard.world_size.max(1);
        let ranks = self.locality.num_ranks();
        assert!(world_size.is_multiple_of(ranks), "a node for each rank");
        let real = count.min(len.saturating_sub(first));
        let of_rank = |rank: u32| real.saturating_sub(rank.into()).div_ceil(u64::from(world_size));
        self.room.clear();
        self.room.resize(self.locality.num_nodes.into(), 0);
        for rank in 0..world_size {
            self.room[usize::from(self.locality.node_of(rank))] += of_rank(rank);
        }
        let turn = first / batch_size.saturating_mul(world_size.into()).max(1);
        deal((first..first + real).map(holder), &mut self.room, turn, &mut self.nodes);

        let own = self.locality.node_of(shard.rank);
        let earlier = (0..shard.rank).filter(|&rank| self.locality.node_of(rank) == own);
        let before: u64 = earlier.map(of_rank).sum();
        let of_node = (first..).zip(&self.nodes).filter(|(_, node)| **node == own);
        let mine = of_node.map(|(position, _)| position).skip(before as usize);
        self.own.clear();
        self.own.extend(mine.take(of_rank(shard.rank) as usize));
        let padding = (u64::from(shard.rank)..count).step_by(world_size as usize);
        let padding = padding.filter(|&i| i >= real).map(|i| (first + i) % len.max(1));
        self.own.extend(padding);
        &self.own
    }
}

/// Replaces `nodes` with the node that takes each sample of a batch; `holders` are the nodes that hold the samples.
/// First, in order, each sample goes to its holder while the holder has `room`. Then the remaining samples fill up
/// the nodes, beginning with node `turn` modulo their number. A holder that is not a node counts as none.
///
/// # Panics
/// If there is not enough room for all samples.
pub fn deal(
    holders: impl IntoIterator<Item = Option<u16>>,
    room: &mut [u64],
    turn: u64,
    nodes: &mut Vec<u16>,
) {
    let all: u64 = room.iter().sum();
    nodes.clear();
    nodes.extend(holders.into_iter().map(|holder| {
        let node = holder.unwrap_or(NOBODY);
        match room.get_mut(usize::from(node)) {
            Some(left) if *left > 0 => {
                *left -= 1;
                node
            }
            _ => NOBODY,
        }
    }));
    assert!(nodes.len() as u64 <= all, "the nodes have room for all samples");
    let mut node = (turn % room.len().max(1) as u64) as usize;
    for taken in nodes.iter_mut().filter(|node| **node == NOBODY) {
        while room[node] == 0 {
            node = (node + 1) % room.len();
        }
        room[node] -= 1;
        *taken = node as u16;
    }
}

const NONE: u32 = u32::MAX;

/// The number of samples compared for each stray. Half of the samples of half a block's length touch only one
/// block.
const COMPARED_FOR_ONE: usize = 4;

/// The largest batch whose samples are compared. In a larger batch, so few samples are strays that comparing is not
/// worth its time.
const MOST_COMPARED: usize = 1 << 16;

/// No node: numbers of nodes are below 65,535.
const NOBODY: u16 = u16::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Tail;
    use dlfs_base::permutation::Key;

    /// Nodes of 2, 1, 4 and 1 ranks, not in the order of ranks.
    const NODES: [u16; 8] = [2, 0, 2, 1, 2, 0, 2, 3];

    fn holder(position: u64) -> Option<u16> {
        let word = Key::new(position).word();
        (!word.is_multiple_of(9)).then_some((word >> 32) as u16 % 4)
    }

    fn by_node(nodes: &[u16]) -> ByNode {
        ByNode::new(Arc::new(Locality::new(nodes.to_vec(), [])))
    }

    fn shares(batch: GlobalBatch, len: u64, tail: Tail) -> Vec<Vec<u64>> {
        let of = |rank| {
            let shard = Shard::new(rank, 8, tail).unwrap();
            by_node(&NODES).share(&shard, batch, (len, 32), holder).to_vec()
        };
        (0..8).map(of).collect()
    }

    #[test]
    fn the_global_batch_stays_and_every_rank_takes_as_many_as_with_strided_shares() {
        for (len, tail) in [(10_000, Tail::Keep), (10_003, Tail::Pad), (10_003, Tail::DropLast)] {
            let mut seen = 0;
            for step in 0..40 {
                let shard = Shard::new(0, 8, tail).unwrap();
                let batch = shard.global_batch(len, step * 32, 32);
                let shares = shares(batch, len, tail);
                for (rank, share) in (0_u64..).zip(&shares) {
                    let strided = batch.count.saturating_sub(rank).div_ceil(8);
                    assert_eq!(share.len() as u64, strided, "rank {rank}, step {step}");
                }
                let mut all = shares.concat();
                all.sort_unstable();
                let mut expected: Vec<u64> =
                    (0..batch.count).map(|i| (batch.first + i) % len).collect();
                expected.sort_unstable();
                assert_eq!(all, expected, "step {step}");
                seen += all.len() as u64;
            }
            assert!(seen >= len / 8 * 8);
        }
    }

    #[test]
    fn a_node_takes_what_it_holds_up_to_its_share() {
        let batch = GlobalBatch { first: 512, count: 256 };
        let shares = shares(batch, 10_000, Tail::Keep);
        for node in 0..4 {
            let room = 32 * NODES.iter().filter(|&&n| n == node).count();
            let held: Vec<u64> =
                (512..768).filter(|&position| holder(position) == Some(node)).collect();
            let taken: Vec<u64> = (0..8)
                .filter(|&rank| NODES[rank] == node)
                .flat_map(|rank| shares[rank].clone())
                .collect();
            let own = taken.iter().filter(|position| held.contains(position)).count();
            assert_eq!(own, room.min(held.len()), "node {node}");
            assert!(taken.is_sorted(), "within a node, ranks take positions in their order");
        }
    }

    #[test]
    fn what_nobody_holds_turns_with_the_batch() {
        // One sample of each batch of two ranks is held by node 0.
        let first_of_rest = |first| {
            let shard = Shard::new(0, 2, Tail::Keep).unwrap();
            let batch = GlobalBatch { first, count: 4 };
            by_node(&[0, 1]).share(&shard, batch, (100, 2), |_| None)[0] - first
        };
        assert_eq!([0, 4, 8, 12].map(first_of_rest), [0, 2, 0, 2]);
    }

    #[test]
    fn a_holder_that_is_no_node_of_the_round_counts_as_none() {
        let shard = Shard::new(1, 2, Tail::Keep).unwrap();
        let batch = GlobalBatch { first: 0, count: 4 };
        assert_eq!(by_node(&[0, 1]).share(&shard, batch, (100, 2), |_| Some(7)), [2, 3]);
    }

    #[test]
    fn several_processes_of_a_rank_share_its_part() {
        let batch = GlobalBatch { first: 0, count: 64 };
        let mut of_node_1 = Vec::new();
        for rank in [1, 3] {
            let shard = Shard::new(rank, 4, Tail::Keep).unwrap();
            let on_node_1 = |position: u64| Some(u16::from(position >= 32));
            of_node_1.extend_from_slice(by_node(&[0, 1]).share(
                &shard,
                batch,
                (1_000, 16),
                on_node_1,
            ));
        }
        assert_eq!(of_node_1, (32..64).collect::<Vec<_>>());
    }

    #[test]
    fn a_chunk_has_the_holder_that_it_was_given() {
        let locality = Locality::new(vec![1, 0, 1], [Some(1), None, Some(0)]);
        assert_eq!(
            [0, 1, 2, 3].map(|chunk| locality.holder(chunk)),
            [Some(1), None, Some(0), None]
        );
        assert_eq!((locality.num_nodes(), locality.num_ranks()), (2, 3));
        assert_eq!((locality.ranks_on(1), locality.ranks_on(0)), (2, 1));
        assert_eq!([0, 1, 4, 5].map(|rank| locality.node_of(rank)), [1, 0, 0, 1]);
    }
}
