//! The ranks of a node that read together, and their numbers.

use crate::error::{Error, Result};

/// The ranks of a node, which read through one window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlace {
    /// The number of ranks on each node. Of N nodes, node n has the ranks n, n + N, n + 2N ...:
    /// [`NodePlace::rank_of`].
    pub local_world_size: u32,
    /// The name of the job. No other job of this user on this machine may have it at the same time.
    pub job: String,
}

impl NodePlace {
    /// The rank of the process that its launcher calls `rank`: launchers count the ranks of one node one after the
    /// other, and a node loader counts them node by node in turn. On one node both are the same.
    ///
    /// # Errors
    /// `InvalidArgument`: the numbers contradict each other.
    pub fn rank_of(
        (rank, world_size): (u32, u32),
        (local_rank, local_world_size): (u32, u32),
    ) -> Result<u32> {
        let place = format!("local rank {local_rank} of {local_world_size}");
        let hint = "give local_rank and local_world_size: the rank among those of this node, and the number \
                    of these, which is the same on all nodes";
        if local_world_size == 0 || local_rank >= local_world_size {
            return Err(Error::invalid(format!("{place}: local ranks count from 0"), hint));
        }
        let is_first =
            rank.checked_sub(local_rank).is_some_and(|of| of.is_multiple_of(local_world_size));
        if !world_size.is_multiple_of(local_world_size) || !is_first {
            let text = format!("rank {rank} of {world_size} cannot be {place}");
            return Err(Error::invalid(text, hint));
        }
        Ok(rank / local_world_size + local_rank * (world_size / local_world_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_of_a_node_are_those_that_its_launcher_has_started_there() {
        let rank = |place, local| NodePlace::rank_of(place, local);
        let of_node = |node: u32| (0..4).map(move |local| rank((node * 4 + local, 12), (local, 4)));
        for node in 0..3 {
            let ranks: Vec<u32> = of_node(node).map(Result::unwrap).collect();
            assert_eq!(ranks, [node, node + 3, node + 6, node + 9]);
        }
        assert_eq!(rank((5, 8), (5, 8)).unwrap(), 5, "one node");
        for (place, local) in
            [((3, 8), (2, 4)), ((3, 9), (3, 4)), ((0, 8), (4, 4)), ((1, 8), (2, 4))]
        {
            let error = rank(place, local).unwrap_err();
            assert!(error.report().contains("local_world_size"), "{error}");
        }
    }
}
