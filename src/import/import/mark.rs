//! The mark of a plan on a namespace. It records the progress of the namespace's parts.

use serde::{Deserialize, Serialize};

use crate::import::media::Channel;
use crate::import::state::{BLOCK_BYTES, Block};
use dlfs_base::Result;

/// The state of a namespace while its plan is not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// The plan's id.
    pub(super) plan: [u8; 16],
    /// The index of the namespace.
    pub(super) namespace: u16,
    pub(super) state: State,
}

/// Progress of the parts on a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    /// No chunk of the part is written. Only parts of an append have this mark.
    Planned,
    /// Some chunks may be written.
    Begun,
    /// All chunks are durable.
    Complete,
    /// Programs write parts here, one after another.
    Written(Lane),
}

/// The parts that programs wrote onto a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lane {
    /// Cell of the last part's record; 0: there is none.
    pub(super) last_record: u64,
    /// The cell after that record, where the next part begins.
    pub(super) end_cell: u64,
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

/// Between the lease and superblock copy B.
const MARK: Block =
    Block { what: "mark of a plan", magic: *b"DLFSPART", at: 28 << 10, len: BLOCK_BYTES };
