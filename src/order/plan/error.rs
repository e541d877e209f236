//! Invalid inputs of a plan.

use crate::order::OrderError;
use dlfs_base::error::{Error, ErrorKind};

/// Why a plan cannot be made or used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A bandwidth table without entries.
    #[error("the bandwidth table of {what} is empty")]
    EmptyTable {
        /// The owner of the table.
        what: String,
    },
    /// A bandwidth table whose first column does not ascend.
    #[error("the bandwidth table of {what} is not sorted: {next} follows {previous}")]
    UnsortedTable {
        /// The owner of the table.
        what: String,
        /// A number of clients or threads.
        previous: u32,
        /// The next number.
        next: u32,
    },
    /// A rate of 0, at which no transfer ends.
    #[error("the rate of {what} is 0")]
    ZeroRate {
        /// The owner of the rate.
        what: String,
    },
    /// A stage without threads.
    #[error("{what} has no thread")]
    NoThreads {
        /// The stage.
        what: String,
    },
    /// A number of the order is out of range.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A plan with an unsupported number of ranks.
    #[error("a plan is for 1 to {MAX_RANKS} ranks, not {ranks}")]
    Ranks {
        /// The requested number.
        ranks: usize,
    },
    /// More tiers than an address can encode.
    #[error("a rank has at most {MAX_TIERS} tiers, not {tiers}")]
    Tiers {
        /// The requested number.
        tiers: usize,
    },
    /// More blocks than an address can encode.
    #[error("a tier has at most {MAX_BLOCKS} blocks, not {blocks}")]
    Capacity {
        /// The requested number.
        blocks: u64,
    },
    /// A block length that NVMe namespaces here do not have.
    #[error("blocks have 512, 1024, 2048 or 4096 bytes, not {len_bytes}")]
    BlockLen {
        /// The requested length.
        len_bytes: u32,
    },
    /// A job with an unsupported number of members.
    #[error("chunks are held by 1 to {} members, not {members}", MAX_MEMBERS)]
    Members {
        /// The number of members.
        members: usize,
    },
    /// Two members that cannot be told apart.
    #[error("two members have the id {id:#018x}; each node of a job needs one of its own")]
    MemberTwice {
        /// The id of both.
        id: u64,
    },
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Error {
        Error::new(ErrorKind::InvalidArgument, error.to_string())
    }
}

/// Checks a block length.
pub(super) fn check_block_len(len_bytes: u32) -> Result<(), PlanError> {
    if (512..=4096).contains(&len_bytes) && len_bytes.is_power_of_two() {
        Ok(())
    } else {
        Err(PlanError::BlockLen { len_bytes })
    }
}

/// Most ranks that an address can encode: 24 bits.
pub(super) const MAX_RANKS: usize = 1 << 24;

/// Most nodes that hold chunks for each other: a holder has 16 bits, of which all ones means none.
pub const MAX_MEMBERS: usize = u16::MAX as usize;

/// Most tiers that an address can encode: 4 bits, of which all ones means no copy.
pub(super) const MAX_TIERS: usize = 15;

/// Most blocks of a tier that an address can encode: 36 bits, 32 TiB of 512-byte blocks.
pub(super) const MAX_BLOCKS: u64 = 1 << 36;
