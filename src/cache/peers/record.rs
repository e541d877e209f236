//! Record of up to 1 KiB that each rank publishes when a round begins.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::job_key::KeyMark;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::Generation;
use dlfs_order::order::HexId;

/// One rank's record, in JSON, so that people can read it where it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name of the round, different for each round of these ranks. Records of other rounds are leftovers.
    pub round: String,
    /// The rank, from 0.
    pub rank: u32,
    /// The world size that this rank was given.
    pub world_size: u32,
    /// A random number of this process: two processes with the same rank have different numbers.
    pub process: u64,
    /// The node's id, the same for all ranks on it and in later rounds: a hash of the host's identity.
    pub node: u64,
    /// The node's name, for messages.
    pub host: String,
    /// The image's UUID.
    pub image: HexId,
    /// The image's generation.
    pub generation: Generation,
    /// A hash of the options that must be the same on all ranks: order, seed, batch size, the mode of the
    /// caches.
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
    /// The keys by which the rank authenticates to its peers; `None`: no authentication.
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

/// Maximum length of a record.
pub const MAX_RECORD_BYTES: usize = 1024;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

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
    fn a_record_with_the_longest_nqn_and_eight_addresses_fits_and_a_longer_one_is_refused() {
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
}
