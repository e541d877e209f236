//! Divides a global batch among ranks so that each reads what its own node holds, as far as shares allow.
//!
//! Yang and Cong, "Accelerating Data Loading in Deep Neural Network Training" (HiPC 2019), assign samples to
//! the nodes that hold them, and then even out what each rank takes. Here the global batch stays what the
//! order says, sample by sample; only who takes which of its samples changes:
//!
//! 1. In the order of positions, each sample goes to the node that holds it, while that one's ranks have
//!    room.
//! 2. What is left (its holder is full, or nobody holds it) fills up the nodes, in the order of positions,
//!    beginning with a node that turns with the batch.
//! 3. Within a node, in the order of positions, the first rank takes as many as its share has, then the next.
//!
//! Every rank takes as many samples as with strided shares. A share depends on the batch's positions, the
//! ranks, the nodes and the holders, not on earlier batches, so every rank computes the same shares.

use super::shard::{GlobalBatch, Shard};

/// Computes shares by node, and reuses its memory.
#[derive(Debug, Clone, Default)]
pub struct ByNode {
    /// The node of each rank; nodes are numbered from 0.
    node_of_rank: Vec<u16>,
    num_nodes: u16,
    /// How many more samples the ranks of each node take.
    room: Vec<u64>,
    /// Positions that did not fit where they are held.
    rest: Vec<u64>,
    /// Positions of this rank's node.
    own: Vec<u64>,
}

impl ByNode {
    /// Shares for ranks on these nodes, which are numbered from 0; `node_of_rank` has one entry for each rank.
    pub fn new(node_of_rank: Vec<u16>) -> ByNode {
        let num_nodes = node_of_rank.iter().max().map_or(0, |&last| last + 1);
        ByNode { node_of_rank, num_nodes, ..ByNode::default() }
    }

    /// Appends the positions that the rank of `shard` takes of `batch`, in an epoch of `len`, ascending;
    /// `batch_size` is that of each rank. `holder` returns the node that holds the sample at a position, and
    /// is asked for each position of the batch, in their order.
    ///
    /// Takes a few nanoseconds a position of the global batch, beside what `holder` takes.
    ///
    /// # Panics
    /// If the number of ranks is not the world size of `shard`: both come from the same round.
    pub fn share(
        &mut self,
        shard: &Shard,
        batch: GlobalBatch,
        (len, batch_size): (u64, u64),
        mut holder: impl FnMut(u64) -> Option<u16>,
        out: &mut Vec<u64>,
    ) {
        let GlobalBatch { first, count } = batch;
        let (rank, world_size) = (u64::from(shard.rank), u64::from(shard.world_size.max(1)));
        assert_eq!(self.node_of_rank.len() as u64, world_size, "a node for each rank");
        let real = count.min(len.saturating_sub(first));
        let of_rank = |rank: u64| real.saturating_sub(rank).div_ceil(world_size);
        self.room.clear();
        self.room.resize(self.num_nodes.into(), 0);
        for (rank, &node) in (0..).zip(&self.node_of_rank) {
            self.room[usize::from(node)] += of_rank(rank);
        }
        let own = self.node_of_rank[shard.rank as usize];
        self.rest.clear();
        self.own.clear();
        for position in first..first + real {
            let room = holder(position)
                .and_then(|node| Some((node, self.room.get_mut(usize::from(node))?)));
            match room {
                Some((node, room)) if *room > 0 => {
                    *room -= 1;
                    if node == own {
                        self.own.push(position);
                    }
                }
                _ => self.rest.push(position),
            }
        }
        let global_batch_size = batch_size.saturating_mul(world_size).max(1);
        self.fill_up(first / global_batch_size, own);
        let earlier = self.node_of_rank[..shard.rank as usize].iter().zip(0..);
        let before: u64 =
            earlier.filter(|(node, _)| **node == own).map(|(_, rank)| of_rank(rank)).sum();
        let mine = before as usize..(before + of_rank(rank)) as usize;
        out.extend_from_slice(&self.own[mine]);
        let padding = (rank..count).step_by(world_size as usize).filter(|&i| i >= real);
        out.extend(padding.map(|i| (first + i) % len.max(1)));
    }

    /// Deals the rest out to nodes with room, beginning with node `turn`, and sorts those of node `own`.
    fn fill_up(&mut self, turn: u64, own: u16) {
        let num_nodes = usize::from(self.num_nodes.max(1));
        let mut node = (turn % num_nodes as u64) as usize;
        for &position in &self.rest {
            // The rooms add up to the number of positions, so that one is found.
            while self.room[node] == 0 {
                node = (node + 1) % num_nodes;
            }
            self.room[node] -= 1;
            if node == usize::from(own) {
                self.own.push(position);
            }
        }
        self.own.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Tail;
    use crate::permutation::Key;

    /// Nodes of 2, 1, 4 and 1 ranks, not in the order of ranks.
    const NODES: [u16; 8] = [2, 0, 2, 1, 2, 0, 2, 3];

    fn holder(position: u64) -> Option<u16> {
        let word = Key::new(position).word();
        (!word.is_multiple_of(9)).then_some((word >> 32) as u16 % 4)
    }

    fn shares(batch: GlobalBatch, len: u64, tail: Tail) -> Vec<Vec<u64>> {
        let of = |rank| {
            let mut share = Vec::new();
            let shard = Shard::new(rank, 8, tail).unwrap();
            ByNode::new(NODES.to_vec()).share(&shard, batch, (len, 32), holder, &mut share);
            share
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
            let mut share = Vec::new();
            let shard = Shard::new(0, 2, Tail::Keep).unwrap();
            let batch = GlobalBatch { first, count: 4 };
            ByNode::new(vec![0, 1]).share(&shard, batch, (100, 2), |_| None, &mut share);
            share[0] - first
        };
        assert_eq!([0, 4, 8, 12].map(first_of_rest), [0, 2, 0, 2]);
    }

    #[test]
    fn a_holder_that_is_no_node_of_the_round_counts_as_none() {
        let shard = Shard::new(1, 2, Tail::Keep).unwrap();
        let batch = GlobalBatch { first: 0, count: 4 };
        let mut share = Vec::new();
        ByNode::new(vec![0, 1]).share(&shard, batch, (100, 2), |_| Some(7), &mut share);
        assert_eq!(share, [2, 3]);
    }
}
