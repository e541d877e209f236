//! Round of a job: the records that its ranks exchange, the nodes that follow from them, and the names that all ranks
//! derive alike. A round is fixed until the next start.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::job_key::KeyMark;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::Generation;
use dlfs_io::qpair::machine_uuid;
use dlfs_nvme::nvme::Nqn;
use dlfs_order::order::HexId;
use dlfs_order::plan::{ChunkHolders, MAX_TIERS, Member};
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
    /// key differs from this rank's; the message names both ranks and both values. Two nodes have the same tiers. A
    /// rank has more tiers, or more room in them, than there can be.
    pub fn new(records: Vec<Record>, own: u32) -> Result<Round> {
        let mine = &records[own as usize];
        records.iter().try_for_each(|record| check_alike(mine, record))?;
        records.iter().try_for_each(check_rooms)?;
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

/// Checks the number and the room of a rank's tiers: plans count with both.
fn check_rooms(record: &Record) -> Result<()> {
    let Record { rank, host, room_pages, .. } = record;
    let sum = room_pages.iter().try_fold(0_u64, |sum, &pages| sum.checked_add(pages));
    if room_pages.len() <= MAX_TIERS && sum.is_some() {
        return Ok(());
    }
    let message = format!("rank {rank} on {host} has tiers of these pages: {room_pages:?}");
    let hint =
        format!("a rank has at most {MAX_TIERS} tiers, and less than 2^64 pages in all of them");
    Err(Error::new(ErrorKind::InvalidArgument, message).hint(hint))
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

/// Checks that two ranks agree on everything that must be the same on all ranks.
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

/// One rank's record, in JSON, so that people can read it where it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name of the round; the same on all its ranks. Unless the user or the launcher named it, an earlier start may
    /// have had the same name, so records must not outlive a start then.
    pub round: String,
    /// The rank, from 0.
    pub rank: u32,
    /// The world size that this rank was given.
    pub world_size: u32,
    /// A random number of this process: two processes with the same rank have different numbers.
    pub process: u64,
    /// The node's id, the same for all ranks on it and in later rounds: a hash of the name that the user gave the node,
    /// or of the machine's identity.
    pub node: u64,
    /// The node's name, for messages.
    pub host: String,
    /// The image's UUID.
    pub image: HexId,
    /// The image's generation.
    pub generation: Generation,
    /// A hash of the options that must be the same on all ranks, `Serving` among them: see `hash_of` in
    /// `src/dataset/peers.rs`.
    pub order: u64,
    /// The release of dlfs, and the version of the protocol between peers.
    pub version: String,
    /// The host NQN by which this rank connects to its peers.
    pub hostnqn: String,
    /// The addresses of the rank's target, best first; empty if it serves nothing.
    pub addresses: Vec<SocketAddr>,
    /// Identifier of the tiers: the same for all processes that share them; 0 if the tiers cannot be shared.
    pub tiers: u64,
    /// Capacity of each tier in pages, fastest first: its quota less its index.
    pub room_pages: Vec<u64>,
    /// Description of the keys by which the rank authenticates to its peers; `None`: no authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeyMark>,
}

impl Record {
    /// Formats the record as JSON.
    ///
    /// # Errors
    /// A string is so long that the record exceeds [`MAX_RECORD_BYTES`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let bytes = serde_json::to_vec(self).expect("numbers and strings always become JSON");
        if bytes.len() > MAX_RECORD_BYTES {
            let message = format!(
                "the record for this rank's peers takes {} bytes and may take {MAX_RECORD_BYTES}: shorten \
                 the round's name, the host NQN or the list of addresses",
                bytes.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(bytes)
    }

    /// Parses the record at the start of `bytes`; zeroes may follow, as in a block. `None` if there is no
    /// record: only zeroes, or other data, which may lie where records are gathered.
    pub fn from_bytes(bytes: &[u8]) -> Option<Record> {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        if end > MAX_RECORD_BYTES {
            return None;
        }
        serde_json::from_slice(&bytes[..end]).ok()
    }
}

/// The NQN of the subsystem in which each node serves its cache of one generation of an image.
pub(super) fn nqn_of(image: HexId, generation: Generation) -> Nqn {
    let text = format!("nqn.2026-11.io.dlfs:cache:{image}:{}", generation.0);
    Nqn::new(text).expect("it is short and has no control characters")
}

/// The NGUID of the cache of origin namespace `number`, which has NSID `number` + 1. Other generations have
/// other NGUIDs, so that a host can check the namespace that it has connected to.
pub(super) fn nguid_of(image: HexId, generation: Generation, number: u16) -> [u8; 16] {
    let mut bytes = Vec::with_capacity(32);
    bytes.extend_from_slice(&image.0);
    bytes.extend_from_slice(&generation.0.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(b"cache");
    // An NGUID of zeroes means that there is none.
    xxh3_128(&bytes).max(1).to_be_bytes()
}

/// The id and the name of the node called `name`, or of this machine. Without `name`, each network namespace of the
/// machine is a separate node, if the namespace of process 1 can be read: processes in different network namespaces
/// cannot share tiers.
pub(super) fn identity(name: Option<&str>) -> (u64, String) {
    if let Some(name) = name {
        return (xxh3_64(name.as_bytes()), name.to_owned());
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    // Unreadable if process 1 belongs to another user: then the machine and the host name identify the node.
    let own_network = network("self").filter(|own| network("1").is_some_and(|first| first != *own));
    let text = format!("{:?} {} {own_network:?}", machine_uuid(), host.trim());
    (xxh3_64(text.as_bytes()), host.trim().to_owned())
}

/// Label of the difference between ranks with different keys.
const JOB_KEY: &str = "job key";

/// Maximum length of a record in bytes.
pub const MAX_RECORD_BYTES: usize = 1024;

#[cfg(test)]
pub(super) mod tests {
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

    /// A record of rank `rank` of `world_size`, with two ranks per node.
    pub(in crate::peers) fn record(rank: u32, world_size: u32) -> Record {
        Record {
            round: "job.0".to_owned(),
            rank,
            world_size,
            process: 1_000 + u64::from(rank),
            node: 77 * u64::from(rank / 2 + 1),
            host: format!("node{}", rank / 2),
            image: HexId([3; 16]),
            generation: Generation(4),
            order: 99,
            version: "0.1.0/1".to_owned(),
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001"
                .to_owned(),
            addresses: vec![SocketAddr::from(([10, 0, 0, 1], 4421))],
            tiers: 0,
            room_pages: vec![4 << 18, 16 << 18],
            keys: None,
        }
    }

    #[test]
    fn a_record_survives_a_block_and_nothing_else_is_one() {
        let record = record(1, 2);
        let bytes = record.to_bytes().unwrap();
        println!("a record takes {} bytes", bytes.len());
        assert_eq!(Record::from_bytes(&bytes), Some(record.clone()));
        let mut block = bytes.clone();
        block.resize(4096, 0);
        assert_eq!(Record::from_bytes(&block), Some(record));
        for other in [&b""[..], &[0; 4096], &[0xff; 4096], b"{}", &bytes[..bytes.len() - 1]] {
            assert_eq!(Record::from_bytes(other), None);
        }
    }

    #[test]
    fn a_record_with_the_longest_nqn_and_six_addresses_fits_and_a_longer_one_is_refused() {
        let mut long = record(u32::MAX - 1, u32::MAX);
        long.hostnqn = "n".repeat(223);
        long.addresses =
            vec!["[fe80:1111:2222:3333:4444:5555:6666:7777]:65535".parse().unwrap(); 6];
        long.tiers = u64::MAX;
        long.room_pages = vec![1 << 40];
        long.to_bytes().unwrap();
        long.host = "h".repeat(500);
        assert_eq!(long.to_bytes().unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn tiers_that_no_rank_can_have_are_refused_by_the_rank_that_says_so() {
        let round = |room_pages: &[u64]| {
            let mut all = records(3);
            all[2].room_pages = room_pages.to_vec();
            Round::new(all, 0).map(drop)
        };
        round(&[]).unwrap();
        round(&[1 << 40; MAX_TIERS]).unwrap();
        for wrong in [&[0; MAX_TIERS + 1][..], &[u64::MAX, 1]] {
            let error = round(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.report().contains("rank 2 on node1"), "{}", error.report());
        }
    }

    #[test]
    fn what_differs_has_another_name() {
        let image = HexId([3; 16]);
        let generation = Generation(7);
        assert_eq!(
            nqn_of(image, generation).as_str(),
            "nqn.2026-11.io.dlfs:cache:03030303030303030303030303030303:7"
        );
        let all = [
            nguid_of(image, generation, 0),
            nguid_of(image, generation, 1),
            nguid_of(image, Generation(8), 0),
            nguid_of(HexId([4; 16]), generation, 0),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != one));
        }
    }

    #[test]
    fn a_machine_is_the_same_node_each_time_and_names_tell_nodes_apart() {
        assert_eq!(identity(None), identity(None));
        assert_ne!(identity(Some("a")).0, identity(Some("b")).0);
        assert_eq!(identity(Some("a")).1, "a");
    }
}
