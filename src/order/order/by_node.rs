//! [`ByNode`] divides a global batch among ranks so that each rank reads samples that its node holds, within equal
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

use std::sync::Arc;

use super::shard::{GlobalBatch, Shard};

/// The node of each rank of a round, and the node that holds each chunk. Nodes are numbered from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locality {
    /// The node of each rank.
    node_of_rank: Vec<u16>,
    /// The number of nodes.
    num_nodes: u16,
    /// The node that holds each chunk; `NOBODY` if no node does.
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
