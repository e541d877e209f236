//! Round of a job: the ranks that started together, and their nodes. A round is fixed until the next start.

use std::collections::{BTreeMap, HashMap};

use super::job_key::KeyMark;
use super::record::Record;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_order::plan::{ChunkHolders, Member};
use dlfs_order::tier::PAGE_BYTES;

/// The checked records of all ranks, and the nodes of these ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Records in the order of ranks.
    records: Vec<Record>,
    /// Nodes in the order of their ids.
    nodes: Vec<Node>,
}

/// A node: the ranks that share one set of tiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node's id, the same in later rounds.
    pub id: u64,
    /// The node's name, for messages.
    pub host: String,
    /// The node's ranks, ascending.
    pub ranks: Vec<u32>,
    /// Capacity of each of the node's tiers in pages, fastest first.
    pub room_pages: Vec<u64>,
}

impl Node {
    /// Capacity of all tiers of the node together, in bytes.
    pub fn room_bytes(&self) -> u64 {
        bytes_of(&self.room_pages)
    }
}

/// Saturates, since records come from other processes and may have any value.
fn bytes_of(pages: &[u64]) -> u64 {
    pages.iter().fold(0_u64, |sum, &pages| sum.saturating_add(pages)).saturating_mul(PAGE_BYTES)
}

impl Round {
    /// The round of `records`, which are in the order of ranks, as seen by rank `own`.
    ///
    /// # Errors
    /// A record does not belong to this start of the job: its world size, version, image, generation, order or job
    /// key differs from this rank's; the message names both ranks and both values. Or two nodes have the same tiers.
    pub fn new(records: Vec<Record>, own: u32) -> Result<Round> {
        let mine = &records[own as usize];
        records.iter().try_for_each(|record| check_alike(mine, record))?;
        check_tiers(&records)?;
        let mut nodes: BTreeMap<u64, Node> = BTreeMap::new();
        for record in &records {
            let node = nodes.entry(record.node).or_insert_with(|| Node {
                id: record.node,
                host: record.host.clone(),
                ranks: Vec::new(),
                room_pages: Vec::new(),
            });
            node.ranks.push(record.rank);
            // The ranks of a node share the tiers of the rank that has opened them first. A rank that has not attached
            // to them, or has its own smaller ones, reports less room, so the largest room counts.
            if bytes_of(&record.room_pages) > bytes_of(&node.room_pages) {
                node.room_pages.clone_from(&record.room_pages);
            }
        }
        Ok(Round { nodes: nodes.into_values().collect(), records })
    }

    /// The records, by rank.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The nodes, in the order of their ids: the members of [`ChunkHolders`].
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The index of the node of `rank`.
    ///
    /// # Panics
    /// If the round has no such rank.
    pub fn node_of(&self, rank: u32) -> u16 {
        let id = self.records[rank as usize].node;
        let index = self.nodes.binary_search_by_key(&id, |node| node.id);
        index.expect("each rank has a node") as u16
    }

    /// Computes the node that holds each chunk. `chunk_bytes`: for each chunk, the total length of its pages that
    /// contain live samples. With `keep_shares`, a node holds at most 1.02 times its ranks' share while other nodes
    /// have room.
    ///
    /// # Errors
    /// As [`ChunkHolders::new`].
    pub fn holders(&self, chunk_bytes: &[u64], keep_shares: bool) -> Result<ChunkHolders> {
        let all: u128 = chunk_bytes.iter().map(|&bytes| u128::from(bytes)).sum();
        let share = |node: &Node| {
            let ranks = node.ranks.len() as u128;
            u64::try_from(all * ranks * 102 / (100 * self.records.len() as u128))
                .unwrap_or(u64::MAX)
        };
        let member = |node: &Node| Member {
            id: node.id,
            room_bytes: node.room_bytes(),
            share_bytes: if keep_shares { share(node) } else { u64::MAX },
        };
        let members: Vec<Member> = self.nodes.iter().map(member).collect();
        ChunkHolders::new(self.records[0].image, &members, chunk_bytes)
    }
}

/// Checks that no two nodes have the same tiers: the room of these tiers would count twice.
fn check_tiers(records: &[Record]) -> Result<()> {
    let mut first: HashMap<u64, &Record> = HashMap::new();
    for record in records.iter().filter(|record| record.tiers != 0) {
        let other = *first.entry(record.tiers).or_insert(record);
        if other.node != record.node {
            let message = format!(
                "rank {} on node {} and rank {} on node {} share their tiers, whose room would count twice",
                other.rank, other.host, record.rank, record.host
            );
            let hint = "give both the same node name, or each node tiers of its own";
            return Err(Error::new(ErrorKind::InvalidArgument, message).hint(hint));
        }
    }
    Ok(())
}

fn check_alike(mine: &Record, other: &Record) -> Result<()> {
    let key_of = |record: &Record| KeyMark::describe(record.keys.as_ref());
    let differing: [(&str, String, String); 6] = [
        ("the world size", mine.world_size.to_string(), other.world_size.to_string()),
        ("dlfs", mine.version.clone(), other.version.clone()),
        ("image", mine.image.to_string(), other.image.to_string()),
        ("generation", mine.generation.to_string(), other.generation.to_string()),
        ("order", format!("{:016x}", mine.order), format!("{:016x}", other.order)),
        (JOB_KEY, key_of(mine), key_of(other)),
    ];
    let Some((what, mine_is, other_is)) = differing.into_iter().find(|(_, a, b)| a != b) else {
        return Ok(());
    };
    let message = format!(
        "rank {} on {} has {what} {other_is}, and rank {} has {mine_is}",
        other.rank, other.host, mine.rank
    );
    let hint = match what {
        "order" => {
            "start all ranks with the same order, seed, batch size, rows of tokens, sharding and mode of peers"
        }
        JOB_KEY => "give all ranks the same --job-key (job_key in Python and C)",
        "generation" => "the image changed while ranks started: start all of them again",
        _ => "start all ranks of a job alike",
    };
    Err(Error::new(ErrorKind::InvalidArgument, message).hint(hint))
}

/// Label of the difference between ranks with different keys.
const JOB_KEY: &str = "job key";

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;
    use dlfs_base::units::Generation;
    use dlfs_order::order::HexId;

    fn records(world_size: u32) -> Vec<Record> {
        (0..world_size).map(|rank| record(rank, world_size)).collect()
    }

    #[test]
    fn ranks_of_one_node_share_its_room() {
        let mut all = records(5);
        all[3].room_pages = vec![1];
        let round = Round::new(all, 2).unwrap();
        let nodes: Vec<_> =
            round.nodes().iter().map(|node| (node.ranks.clone(), node.room_bytes())).collect();
        assert_eq!(nodes, [(vec![0, 1], 20 << 30), (vec![2, 3], 20 << 30), (vec![4], 20 << 30)]);
        assert_eq!((0..5).map(|rank| round.node_of(rank)).collect::<Vec<_>>(), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn with_shares_a_node_holds_what_its_ranks_read() {
        let mut all = records(5);
        for record in &mut all {
            record.room_pages = vec![1 << 28];
        }
        let round = Round::new(all, 0).unwrap();
        let chunks = vec![4 << 20; 1_000];
        let total = 4_000_u64 << 20;
        let holders = round.holders(&chunks, true).unwrap();
        for (index, ranks) in [(0, 2), (1, 2), (2, 1)] {
            assert!(holders.held_bytes(index) <= total * ranks * 102 / 500);
        }
        let unlimited = round.holders(&chunks, false).unwrap();
        assert!(unlimited.held_bytes(2) > total * 102 / 500, "a third, by room alone");
    }

    #[test]
    fn two_nodes_with_the_same_tiers_are_named() {
        let mut all = records(6);
        for record in &mut all {
            record.tiers = record.node;
        }
        Round::new(all.clone(), 0).unwrap();
        all[5].tiers = all[0].tiers;
        let error = Round::new(all, 3).unwrap_err().report();
        assert!(error.contains("rank 0 on node node0 and rank 5 on node node2 share"), "{error}");
        assert!(error.contains("the same node name"), "{error}");
    }

    #[test]
    fn a_rank_that_differs_is_named() {
        type Change = fn(&mut Record);
        let changes: [(Change, &str); 5] = [
            (|record| record.world_size = 5, "world size 5"),
            (|record| record.version = "0.9.0/1".to_owned(), "dlfs 0.9.0/1"),
            (|record| record.image = HexId([9; 16]), "image 0909"),
            (|record| record.generation = Generation(8), "generation 8"),
            (|record| record.order = 5, "order 0000000000000005"),
        ];
        for (change, expected) in changes {
            let mut all = records(4);
            change(&mut all[3]);
            let error = Round::new(all, 0).unwrap_err().to_string();
            assert!(error.contains("rank 3 on node1 has") && error.contains(expected), "{error}");
        }
    }
}
