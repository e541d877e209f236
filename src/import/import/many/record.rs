//! The record behind the chunks of a part: whoever commits the part needs nothing else of it.

use serde::{Deserialize, Serialize};

use crate::import::many::write_plan::WritePlan;
use crate::import::mark::{Lane, State};
use crate::import::media::Channel;
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

impl WritePlan {
    /// Adds a part, whose chunks are written, to a lane: from then on it is complete.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn append(&self, record: &WrittenPart, channel: &mut Channel) -> Result<()> {
        let layout = &self.journal().layout;
        let offset = layout.offset_of(record.record_cell)?;
        channel.media().grow(record.namespace, offset + layout.cell_bytes())?;
        channel.write_bytes(record.namespace, offset, &record.to_bytes())?;
        let last_record = record.record_cell;
        let lane = Lane { last_record, end_cell: last_record + 1 };
        self.0.mark_of(record.namespace, State::Written(lane)).write(channel)
    }

    /// The records of all parts that are complete on a namespace, the last one first.
    ///
    /// # Errors
    /// `Corrupt`: a record is damaged. Those of reading.
    pub(super) fn records(
        &self,
        lane: Lane,
        namespace: u16,
        channel: &mut Channel,
    ) -> Result<Vec<WrittenPart>> {
        let mut records = Vec::new();
        let Lane { last_record: mut cell, end_cell: mut end } = lane;
        while cell != 0 {
            let offset = self.journal().layout.offset_of(cell)?;
            let block = channel.read(namespace, offset, BLOCK_BYTES)?;
            let of_here = |record: &WrittenPart| {
                record.plan == self.0.id
                    && record.namespace == namespace
                    && record.record_cell == cell
                    && record.first_cell <= cell
                    && record.previous < record.first_cell
                    && cell < end
            };
            let Some(record) = parse(&block).filter(of_here) else {
                let text = format!("the record of a written part, in cell {cell}, is damaged");
                return Err(Error::new(ErrorKind::Corrupt, text)
                    .target(channel.media().namespace(namespace).address));
            };
            records.push(record);
            (cell, end) = (record.previous, record.first_cell);
        }
        Ok(records)
    }
}

/// The record in a block, if there is a sound one.
fn parse(block: &[u8]) -> Option<WrittenPart> {
    RECORD.open(block).ok()?.map(|(record, _)| record)
}

/// Behind the chunks of its part.
const RECORD: Block =
    Block { what: "record of a part", magic: *b"DLFSWRTN", at: 0, len: BLOCK_BYTES };
