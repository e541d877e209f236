//! The record of a part that a program wrote: whoever commits the part needs nothing else of it.

use serde::{Deserialize, Serialize};

use crate::import::state::{BLOCK_BYTES, Block};
use dlfs_base::{Error, ErrorKind, Result};

/// A part that is complete: what an engine hands to whoever commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenPart {
    /// The plan's id.
    pub(super) plan: [u8; 16],
    /// The number of the part.
    pub key: u64,
    /// The index of its namespace.
    pub namespace: u16,
    /// When it was complete, in ns since 1970.
    pub(super) time_ns: u64,
    /// Cell of the record of the part before; 0: there is none.
    pub(super) previous: u64,
    /// The first cell of its chunks, which lie one behind the other.
    pub(super) first_cell: u64,
    /// The cell of this record.
    pub(super) record_cell: u64,
    /// Its chunks.
    pub chunks: u64,
    /// Its samples.
    pub samples: u64,
    /// Their bytes.
    pub sample_bytes: u64,
    /// A hash of all chunks: see `part_sum.rs`.
    pub(super) digest: u64,
}

impl WrittenPart {
    /// As bytes, to be sent to whoever commits.
    pub fn to_bytes(&self) -> Vec<u8> {
        RECORD.seal(self, &[]).expect("a few numbers fit into a block")
    }

    /// From bytes.
    ///
    /// # Errors
    /// `InvalidArgument`: they are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<WrittenPart> {
        let record = Some(bytes).filter(|bytes| bytes.len() == BLOCK_BYTES).and_then(parse);
        let wrong = || Error::new(ErrorKind::InvalidArgument, "these bytes are no written part");
        record.ok_or_else(wrong)
    }
}

/// The record in a block, if there is a sound one.
pub(super) fn parse(block: &[u8]) -> Option<WrittenPart> {
    RECORD.open(block).ok()?.map(|(record, _)| record)
}

/// Behind the chunks of its part.
const RECORD: Block =
    Block { what: "record of a part", magic: *b"DLFSWRTN", at: 0, len: BLOCK_BYTES };
