//! What can be wrong with the inputs of a plan.

use crate::error::{Error, ErrorKind};
use crate::order::{ImageId, OrderError};
use crate::units::Generation;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A bandwidth table without entries.
    #[error("the bandwidth table of {what} is empty")]
    EmptyTable {
        /// Whose table.
        what: String,
    },
    /// A bandwidth table whose first columns do not grow.
    #[error("the bandwidth table of {what} is not sorted: {next} follows {previous}")]
    UnsortedTable {
        /// Whose table.
        what: String,
        /// A number of clients or threads.
        previous: u32,
        /// The one behind it.
        next: u32,
    },
    /// A rate of nothing, which no transfer ends at.
    #[error("the rate of {what} is 0")]
    ZeroRate {
        /// Whose rate.
        what: String,
    },
    /// A stage without threads.
    #[error("{what} has no thread")]
    NoThreads {
        /// Which stage.
        what: String,
    },
    /// The order has a number out of its range.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A plan for no rank.
    #[error("a plan is for 1 to {MAX_RANKS} ranks, not {ranks}")]
    Ranks {
        /// What was asked for.
        ranks: usize,
    },
    /// A plan of another data set, whose ids mean other samples.
    #[error("the plan belongs to image {planned}, and this is image {open}")]
    OtherImage {
        /// The plan's.
        planned: ImageId,
        /// The one that is open.
        open: ImageId,
    },
    /// A plan of other samples than the data set has now.
    #[error("the plan is of generation {planned}, and the image is at generation {open}")]
    OtherGeneration {
        /// The plan's.
        planned: Generation,
        /// The one that is open.
        open: Generation,
    },
    /// More tiers than an address can name.
    #[error("a rank has at most {MAX_TIERS} tiers, not {tiers}")]
    Tiers {
        /// What was asked for.
        tiers: usize,
    },
    /// Capacity that an address cannot reach.
    #[error("a tier has at most {MAX_BLOCKS} blocks, not {blocks}")]
    Capacity {
        /// What was asked for.
        blocks: u64,
    },
    /// Blocks of a length that NVMe namespaces here do not have.
    #[error("blocks have 512, 1024, 2048 or 4096 bytes, not {len_bytes}")]
    BlockLen {
        /// What was asked for.
        len_bytes: u32,
    },
    /// What a rank tells the others is too long to gather.
    #[error(
        "the inputs of a rank take {len_bytes} bytes; at most {MAX_RANK_INPUT_BYTES} are gathered"
    )]
    InputsTooLong {
        /// How long.
        len_bytes: usize,
    },
    /// What another rank told is no inputs.
    #[error("the inputs of a rank cannot be read: {why}")]
    BadInputs {
        /// What the decoder says.
        why: String,
    },
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Error {
        let kind = match error {
            PlanError::OtherGeneration { .. } => ErrorKind::Stale,
            _ => ErrorKind::InvalidArgument,
        };
        Error::new(kind, error.to_string())
    }
}

/// An error unless blocks may be so long.
pub(super) fn check_block_len(len_bytes: u32) -> Result<(), PlanError> {
    match (512..=4096).contains(&len_bytes) && len_bytes.is_power_of_two() {
        true => Ok(()),
        false => Err(PlanError::BlockLen { len_bytes }),
    }
}

/// Ranks that an address can name: 24 bits.
pub(super) const MAX_RANKS: usize = 1 << 24;

/// Tiers that an address can name: 4 bits, and all ones means no copy.
pub(super) const MAX_TIERS: usize = 15;

/// Blocks of a tier that an address can name: 36 bits, 32 TiB of 512-byte blocks.
pub(super) const MAX_BLOCKS: u64 = 1 << 36;

/// What one rank contributes to the rendezvous at most.
pub(super) const MAX_RANK_INPUT_BYTES: usize = 1024;
