//! The record of a part that a program wrote. The commit of the part needs only this record.

use serde::{Deserialize, Serialize};

use crate::import::state::{BLOCK_BYTES, Block};
use dlfs_base::{Error, ErrorKind, Result};

/// A complete part. A worker returns it to the process that commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenPart {
    /// The plan's id.
    pub(super) plan: [u8; 16],
    /// The number of the part.
    pub key: u64,
    /// The index of its namespace.
    pub namespace: u16,
    /// The time of completion, in ns since 1970.
    pub(super) time_ns: u64,
    /// Cell of the previous part's record on the namespace; 0: there is none.
    pub(super) previous: u64,
    /// The first cell of its chunks, which are contiguous.
    pub(super) first_cell: u64,
    /// The cell of this record.
    pub(super) record_cell: u64,
    /// Its number of chunks.
    pub chunks: u64,
    /// Its number of samples.
    pub samples: u64,
    /// Bytes of its samples.
    pub sample_bytes: u64,
    /// A hash of all chunks: see `part_sum.rs`.
    pub(super) digest: u64,
}

impl WrittenPart {
    /// Encodes the record, to be sent to the process that commits.
    pub fn to_bytes(&self) -> Vec<u8> {
        RECORD.seal(self, &[]).expect("a few numbers fit into a block")
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// `InvalidArgument`: `bytes` are not such a record.
    pub fn from_bytes(bytes: &[u8]) -> Result<WrittenPart> {
        let record = Some(bytes).filter(|bytes| bytes.len() == BLOCK_BYTES).and_then(parse);
        let wrong = || Error::new(ErrorKind::InvalidArgument, "these bytes are no written part");
        record.ok_or_else(wrong)
    }
}

/// Parses the record in a block. `None`: there is none, or it is damaged.
pub(super) fn parse(block: &[u8]) -> Option<WrittenPart> {
    RECORD.open(block).ok()?.map(|(record, _)| record)
}

/// Stored after the chunks of its part.
const RECORD: Block =
    Block { what: "record of a part", magic: *b"DLFSWRTN", at: 0, len: BLOCK_BYTES };
