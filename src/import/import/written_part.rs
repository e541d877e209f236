//! The proof that a program has written a part completely: it goes to the process that commits.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::import::block::{BLOCK_BYTES, Block};
use dlfs_base::Result;
use dlfs_base::error::invalid;
use dlfs_format::format::ChunkHead;

/// A complete part. The program that wrote it passes this to the process that commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenPart {
    /// The plan's id.
    pub(super) plan: [u8; 16],
    /// The number that its program gave to the part.
    pub key: u64,
    /// The index of its namespace.
    pub namespace: u16,
    /// The time of completion, in ns since 1970.
    pub(super) time_ns: u64,
    /// The first cell of its chunks, which are contiguous.
    pub(super) first_cell: u64,
    /// The cell of the record that describes the part: see `marks.rs`.
    pub(super) record_cell: u64,
    /// Its number of chunks.
    pub chunks: u64,
    /// Its number of samples.
    pub samples: u64,
    /// Bytes of its samples.
    pub sample_bytes: u64,
    /// A hash of all chunks: see [`PartSum`].
    pub(super) digest: u64,
}

impl WrittenPart {
    /// Encodes the part, to be sent to the process that commits.
    pub fn to_bytes(&self) -> Vec<u8> {
        PART.seal(self, &[]).expect("a few numbers fit into a block")
    }

    /// Decodes a part.
    ///
    /// # Errors
    /// `InvalidArgument`: `bytes` are not an encoded `WrittenPart`.
    pub fn from_bytes(bytes: &[u8]) -> Result<WrittenPart> {
        let found = PART.open(bytes).ok().flatten().filter(|_| bytes.len() == BLOCK_BYTES);
        found.map(|(part, _)| part).ok_or_else(|| invalid("these bytes are no written part"))
    }
}

/// The block of an encoded part, which is sent from process to process and not stored on a namespace.
const PART: Block = Block { what: "written part", magic: *b"DLFSWRTN", at: 0, len: BLOCK_BYTES };

/// Counts of a part, and a hash of the data that stays the same when the commit gives the part its ids and slots.
#[derive(Clone, Default)]
pub(super) struct PartSum {
    /// Number of chunks so far.
    pub(super) chunks: u64,
    /// Number of their samples.
    pub(super) samples: u64,
    hash: Xxh3,
}

impl PartSum {
    /// Adds the next chunk.
    pub(super) fn add(&mut self, head: &ChunkHead) {
        self.chunks += 1;
        self.samples += u64::from(head.num_samples);
        // The table's checksum covers names, labels, lengths, and the checksums of all samples.
        for number in [
            head.cell,
            head.first_slot.0 - head.part.first,
            head.part.seed,
            head.part.window,
            head.num_samples.into(),
            head.header_len.into(),
            head.data_len,
            head.table_crc.into(),
        ] {
            self.hash.update(&number.to_le_bytes());
        }
    }

    /// The hash of all chunks so far.
    pub(super) fn digest(&self) -> u64 {
        self.hash.digest()
    }
}
