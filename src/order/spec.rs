//! What a user chooses: the kind of order, its numbers, and the seed.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::units::Epoch;

/// An order for all epochs: two runs with equal specifications read the same sequence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OrderSpec {
    /// How the samples are mixed.
    #[serde(flatten)]
    pub kind: OrderKind,
    /// What every draw depends on.
    pub seed: u64,
}

/// How the samples are mixed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum OrderKind {
    /// The same sequence every epoch, without any mixing.
    Sequential {
        /// Which sequence.
        by: SequentialBy,
    },
    /// A full shuffle of all samples.
    Global,
    /// DIESEL's chunk-based shuffle in `lanes` lanes: chunks are shuffled and dealt to the lanes, a
    /// lane shuffles the samples of `group` chunks together, and the lanes take turns.
    Grouped {
        /// Lanes that take turns; 1 is DIESEL's algorithm itself.
        lanes: u32,
        /// Chunks of one lane whose samples are shuffled together.
        group: u32,
    },
    /// Each rank shuffles a fixed share of its own.
    Local {
        /// Ranks that have a share.
        world_size: u32,
    },
    /// Partial local shuffling: as `Local`, but each epoch a part of every share moves on.
    Partial {
        /// Part of a share that is exchanged in an epoch, from 0 to 1.
        q: f64,
        /// Ranks that have a share.
        world_size: u32,
    },
}

/// The two sequences that need no shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SequentialBy {
    /// The source's order.
    Id,
    /// The order on the media: the fastest to read.
    Slot,
}

impl OrderSpec {
    /// Whether all numbers are in their ranges.
    ///
    /// # Errors
    /// The first number that is not.
    pub fn check(&self) -> Result<(), OrderError> {
        match self.kind {
            OrderKind::Grouped { lanes, .. } if !(1..=MAX_LANES).contains(&lanes) => {
                Err(OrderError::Lanes { lanes })
            }
            OrderKind::Grouped { group: 0, .. } => Err(OrderError::EmptyGroup),
            OrderKind::Local { world_size: 0 } | OrderKind::Partial { world_size: 0, .. } => {
                Err(OrderError::EmptyWorld)
            }
            OrderKind::Partial { q, .. } if !(0.0..=1.0).contains(&q) => {
                Err(OrderError::Share { q })
            }
            _ => Ok(()),
        }
    }

    /// Whether there is such an epoch: who holds a sample in a `partial` order is found by following it
    /// back through all epochs, so those are bounded.
    ///
    /// # Errors
    /// `Epoch`: it is past the last.
    pub fn check_epoch(&self, epoch: Epoch) -> Result<(), OrderError> {
        let limit = match self.kind {
            OrderKind::Partial { .. } => MAX_PARTIAL_EPOCHS,
            _ => MAX_EPOCHS,
        };
        match epoch.0 < limit {
            true => Ok(()),
            false => Err(OrderError::Epoch { epoch: epoch.0, last: limit - 1 }),
        }
    }
}

impl OrderKind {
    /// The world size that the sequence depends on, where it does.
    pub fn world_size(&self) -> Option<u32> {
        match *self {
            OrderKind::Local { world_size } | OrderKind::Partial { world_size, .. } => {
                Some(world_size)
            }
            _ => None,
        }
    }

    /// The key's first word, so that kinds with the same seed have nothing in common. Frozen.
    pub(super) const fn label(&self) -> u64 {
        match self {
            OrderKind::Sequential { .. } => 0,
            OrderKind::Global => 1,
            OrderKind::Grouped { .. } => 2,
            OrderKind::Local { .. } | OrderKind::Partial { .. } => 3,
        }
    }
}

/// What is wrong with a specification or a shard.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// `lanes` out of range.
    #[error("an order has 1 to {MAX_LANES} lanes, not {lanes}")]
    Lanes {
        /// What was asked for.
        lanes: u32,
    },
    /// A group of no chunks.
    #[error("a group has at least one chunk")]
    EmptyGroup,
    /// A world of no ranks.
    #[error("the world size is at least 1")]
    EmptyWorld,
    /// The exchanged part is no part.
    #[error("the exchanged part of a share is from 0 to 1, not {q}")]
    Share {
        /// What was asked for.
        q: f64,
    },
    /// An epoch past the last.
    #[error("epochs of this order go to {last}, not {epoch}")]
    Epoch {
        /// What was asked for.
        epoch: u64,
        /// The last that there is.
        last: u64,
    },
    /// A rank outside the world.
    #[error("rank {rank} of a world of {world_size}: ranks count from 0")]
    Rank {
        /// What was asked for.
        rank: u32,
        /// How many ranks there are.
        world_size: u32,
    },
}

impl From<OrderError> for Error {
    fn from(error: OrderError) -> Error {
        Error::new(ErrorKind::InvalidArgument, error.to_string())
    }
}

/// Epochs of any run: what a position of a run has room for beside 2^40 samples.
pub const MAX_EPOCHS: u64 = 1 << 24;

/// Each epoch costs some hundred bytes, and 15 ns a sample.
const MAX_PARTIAL_EPOCHS: u64 = 1 << 16;

/// Each lane costs some hundred bytes of state.
const MAX_LANES: u32 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_is_json_with_the_names_that_the_command_line_has() {
        let spec = OrderSpec { kind: OrderKind::Grouped { lanes: 8, group: 4 }, seed: 7 };
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(json, r#"{"kind":"grouped","lanes":8,"group":4,"seed":7}"#);
        assert_eq!(serde_json::from_str::<OrderSpec>(&json).unwrap(), spec);
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let error = |kind| OrderSpec { kind, seed: 0 }.check().unwrap_err().to_string();
        assert!(error(OrderKind::Grouped { lanes: 0, group: 1 }).contains("not 0"));
        assert!(error(OrderKind::Grouped { lanes: MAX_LANES + 1, group: 1 }).contains("65537"));
        assert!(error(OrderKind::Grouped { lanes: 1, group: 0 }).contains("one chunk"));
        assert!(error(OrderKind::Local { world_size: 0 }).contains("world size"));
        assert!(error(OrderKind::Partial { q: 1.5, world_size: 2 }).contains("1.5"));
        assert!(error(OrderKind::Partial { q: f64::NAN, world_size: 2 }).contains("NaN"));
    }

    #[test]
    fn an_epoch_past_the_last_is_refused_and_costs_nothing() {
        let check = |kind, epoch| OrderSpec { kind, seed: 0 }.check_epoch(Epoch(epoch));
        let partial = OrderKind::Partial { q: 0.5, world_size: 2 };
        assert_eq!(check(partial, 65_535), Ok(()));
        let error = OrderError::Epoch { epoch: u64::MAX, last: 65_535 };
        assert_eq!(check(partial, u64::MAX), Err(error));
        assert_eq!(check(OrderKind::Global, MAX_EPOCHS - 1), Ok(()));
        assert!(check(OrderKind::Global, MAX_EPOCHS).is_err());
    }
}
