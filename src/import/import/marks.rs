//! The mark of a plan on each of its namespaces, and the records of chunks that a mark names.
//!
//! In an import by many processes, the mark tells how far the part of its namespace is. Programs that write parts one
//! after another leave a *lane*: chunks, then a record that describes them, then further chunks and records. Each
//! record names the one before it, and the mark names the last record. A record counts once the mark names it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::import::block::{BLOCK_BYTES, Block};
use crate::import::media::Channel;
use dlfs_base::{Error, Result};
use dlfs_format::format::geometry::CELL_BYTES;

/// The mark of a namespace, while its plan is not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// The plan's id.
    pub(super) plan: [u8; 16],
    /// The index of the namespace in the image.
    pub(super) namespace: u16,
    pub(super) state: MarkState,
}

impl Mark {
    /// Reads the mark of a namespace. `None`: there is none, or its write was torn.
    ///
    /// # Errors
    /// `Unsupported`: another release wrote it. Errors of reading.
    pub(super) fn read(channel: &mut Channel, namespace: u16) -> Result<Option<Mark>> {
        MARK.read(channel, namespace)
    }

    /// Writes the mark durably, after making all earlier writes to the namespace durable.
    ///
    /// # Errors
    /// Errors of writing.
    pub(super) fn write(&self, channel: &mut Channel) -> Result<()> {
        channel.flush(self.namespace)?;
        let block = MARK.seal(self, &[]).expect("a few numbers fit into a block");
        channel.write_bytes(self.namespace, MARK.at, &block)?;
        channel.flush(self.namespace)
    }

    /// Removes the mark of a namespace.
    ///
    /// # Errors
    /// Errors of writing.
    pub(super) fn remove(channel: &mut Channel, namespace: u16) -> Result<()> {
        channel.zero(namespace, MARK.at, BLOCK_BYTES as u64)?;
        channel.flush(namespace)
    }
}

/// The block of a mark lies between the lease and superblock copy B.
const MARK: Block =
    Block { what: "mark of a plan", magic: *b"DLFSPART", at: 28 << 10, len: BLOCK_BYTES };

/// Progress of the parts on a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum MarkState {
    /// No chunk of the part is written. Only parts of an append have this mark.
    Planned,
    /// Some chunks may be written.
    Begun,
    /// All chunks are durable.
    Complete,
    /// Programs write parts here, one after another.
    Written(Lane),
}

/// The chunks that programs wrote onto a namespace, and their records. Each record lies behind the chunks that it
/// describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lane {
    /// Cell of the last record; 0: there is none.
    pub(super) last_record: u64,
    /// The cell where the next chunks begin: the one after that record, or the first cell for chunks.
    pub(super) end_cell: u64,
}

/// A record of chunks.
#[derive(Serialize, Deserialize)]
pub(super) struct Record<T> {
    /// The plan's id.
    plan: [u8; 16],
    /// The index of the namespace that holds the record.
    namespace: u16,
    /// The lane before this record was appended.
    pub(super) previous: Lane,
    /// A description of the chunks.
    pub(super) content: T,
}

impl Lane {
    /// Writes a record of `content` into the free cells from `cell` on, behind the chunks that `content` describes,
    /// and then the mark that names the record. Returns the lane that ends with it.
    ///
    /// # Errors
    /// Errors of writing.
    pub(super) fn append(
        self,
        channel: &mut Channel,
        (plan, namespace): ([u8; 16], u16),
        cell: u64,
        content: &impl Serialize,
    ) -> Result<Lane> {
        let record = Record { plan, namespace, previous: self, content };
        let block = RECORD.seal(&record, &[]).expect("numbers are JSON");
        let end_cell = cell + block.len() as u64 / CELL_BYTES;
        channel.media.grow(namespace, end_cell * CELL_BYTES)?;
        channel.write_bytes(namespace, cell * CELL_BYTES, &block)?;
        let lane = Lane { last_record: cell, end_cell };
        Mark { plan, namespace, state: MarkState::Written(lane) }.write(channel)?;
        Ok(lane)
    }

    /// Reads all records, the last one first. Returns each with the lane that ends with it.
    ///
    /// # Errors
    /// A record is damaged: `damaged` makes the error from the record's cell. Errors of reading.
    pub(super) fn records<T: DeserializeOwned>(
        mut self,
        channel: &mut Channel,
        (plan, namespace): ([u8; 16], u16),
        damaged: &dyn Fn(u64) -> Error,
    ) -> Result<Vec<(Record<T>, Lane)>> {
        let mut records = Vec::new();
        while self.last_record > 0 {
            let Lane { last_record, end_cell } = self;
            let damaged = || damaged(last_record);
            let cells = end_cell.saturating_sub(last_record);
            if cells == 0 || end_cell > channel.media.len_bytes(namespace) / CELL_BYTES {
                return Err(damaged());
            }
            let len = (cells * CELL_BYTES) as usize;
            let bytes = channel.read(namespace, last_record * CELL_BYTES, len)?;
            let found =
                RECORD.open::<Record<T>>(&bytes).map_err(|error| damaged().source(error))?;
            let (record, _) = found.ok_or_else(damaged)?;
            let previous = record.previous;
            if (record.plan, record.namespace) != (plan, namespace)
                || previous.last_record >= previous.end_cell
                || previous.end_cell > last_record
            {
                return Err(damaged());
            }
            records.push((record, self));
            self = previous;
        }
        Ok(records)
    }
}

/// A record has no fixed offset, and is as long as its content needs.
const RECORD: Block = Block { what: "record of chunks", magic: *b"DLFSRECD", at: 0, len: 0 };
