//! The mark of a plan on a namespace: which parts of it are there, and whether they are complete.

use serde::{Deserialize, Serialize};

use crate::import::media::Channel;
use crate::import::state::{BLOCK_BYTES, Block};
use dlfs_base::Result;

/// The state of a namespace while a plan for it is not committed.
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
    /// None of the chunks of its part is there: the mark of a part of an append.
    Planned,
    /// Some of them may be there.
    Begun,
    /// All of them are durable.
    Complete,
    /// Programs write parts here, one behind the other.
    Written(Lane),
}

/// The parts that programs wrote onto a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lane {
    /// Cell of the record of the last part; 0: there is none.
    pub(super) last_record: u64,
    /// The cell behind it, where the next part begins.
    pub(super) end_cell: u64,
}

impl Mark {
    /// Reads the mark of a namespace. `None`: there is none, or it was torn.
    ///
    /// # Errors
    /// `Unsupported`: another release wrote it. Those of reading.
    pub(super) fn read(channel: &mut Channel, namespace: u16) -> Result<Option<Mark>> {
        MARK.read(channel, namespace)
    }

    /// Writes it, durably, with all that was written before.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn write(&self, channel: &mut Channel) -> Result<()> {
        channel.flush(self.namespace)?;
        let block = MARK.seal(self, &[]).expect("a few numbers fit into a block");
        channel.write_bytes(self.namespace, MARK.at, &block)?;
        channel.flush(self.namespace)
    }

    /// Removes the mark of a namespace.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn remove(channel: &mut Channel, namespace: u16) -> Result<()> {
        channel.zero(namespace, MARK.at, BLOCK_BYTES as u64)?;
        channel.flush(namespace)
    }
}

/// Between the lease and superblock copy B.
const MARK: Block =
    Block { what: "mark of a plan", magic: *b"DLFSPART", at: 28 << 10, len: BLOCK_BYTES };
