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
    /// DIESEL's chunk-based shuffle in `lanes` equally long lanes: chunks are shuffled and laid end to
    /// end, each lane takes its part of them, shuffles the samples of `group` chunks together, and the
    /// lanes take turns. (Version 2 of this order.)
    #[serde(rename = "grouped2")]
    Grouped {
        /// Lanes that take turns; 1 is DIESEL's algorithm itself. 0 in what is asked for: as many as fit
        /// the world size where a run starts, or those of the state that it goes on from.
        lanes: u32,
        /// Chunks of one lane whose samples are shuffled together.
        group: u32,
    },
    /// Version 1 of the same, for states that name it: lanes of whole chunks, which differ in length, so
    /// that ranks fall out of step with their lanes and read chunks several times.
    #[serde(rename = "grouped")]
    GroupedV1 {
        /// Lanes that take turns.
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
            OrderKind::Grouped { lanes, .. } | OrderKind::GroupedV1 { lanes, .. }
                if !(1..=MAX_LANES).contains(&lanes) =>
            {
                Err(OrderError::Lanes { lanes })
            }
            OrderKind::Grouped { group: 0, .. } | OrderKind::GroupedV1 { group: 0, .. } => {
                Err(OrderError::EmptyGroup)
            }
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

impl OrderSpec {
    /// The order that a run of `world_size` ranks starts with where this one is asked for: grouped order
    /// without a number of lanes gets [`LANES_A_RANK`] for each rank.
    #[must_use]
    pub fn started(self, world_size: u32) -> OrderSpec {
        let kind = match self.kind {
            OrderKind::Grouped { lanes: 0, group } => {
                // A multiple of the world size, as long as there may be so many.
                let a_rank = (MAX_LANES / world_size.max(1)).clamp(1, LANES_A_RANK);
                let lanes = world_size.max(1).saturating_mul(a_rank).min(MAX_LANES);
                OrderKind::Grouped { lanes, group }
            }
            kind => kind,
        };
        OrderSpec { kind, ..self }
    }
}

impl OrderKind {
    /// Whether a run that was asked for in order `asked` may go on in this one, of a state: it is the same,
    /// an earlier version of the same, or has the lanes that `asked` left open.
    pub fn continues(&self, asked: &OrderKind) -> bool {
        match (*self, *asked) {
            (
                OrderKind::Grouped { lanes, group } | OrderKind::GroupedV1 { lanes, group },
                OrderKind::Grouped { lanes: wanted, group: size },
            ) => group == size && (wanted == 0 || wanted == lanes),
            (kind, asked) => kind == asked,
        }
    }

    /// Lanes and chunks a group, where it goes through groups of chunks.
    pub fn lanes_and_group(&self) -> Option<(u32, u32)> {
        match *self {
            OrderKind::Grouped { lanes, group } | OrderKind::GroupedV1 { lanes, group } => {
                Some((lanes, group))
            }
            _ => None,
        }
    }

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
            OrderKind::GroupedV1 { .. } => 2,
            OrderKind::Local { .. } | OrderKind::Partial { .. } => 3,
            OrderKind::Grouped { .. } => 4,
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

/// Lanes that each rank goes through where nobody says how many: a batch then draws from 32 chunks.
pub const LANES_A_RANK: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_is_json_with_the_names_that_the_command_line_has() {
        let spec = OrderSpec { kind: OrderKind::Grouped { lanes: 8, group: 4 }, seed: 7 };
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(json, r#"{"kind":"grouped2","lanes":8,"group":4,"seed":7}"#);
        assert_eq!(serde_json::from_str::<OrderSpec>(&json).unwrap(), spec);
        let earlier = r#"{"kind":"grouped","lanes":8,"group":4,"seed":7}"#;
        let kind = OrderKind::GroupedV1 { lanes: 8, group: 4 };
        assert_eq!(serde_json::from_str::<OrderSpec>(earlier).unwrap().kind, kind);
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
    fn lanes_that_nobody_gave_follow_the_world_size_and_stay_a_multiple_of_it() {
        let open = OrderSpec { kind: OrderKind::Grouped { lanes: 0, group: 4 }, seed: 3 };
        let lanes = |world_size| open.started(world_size).kind.lanes_and_group().unwrap().0;
        assert_eq!([1, 3, 64].map(lanes), [8, 24, 512]);
        assert_eq!([8_192, 10_000, 65_536].map(lanes), [65_536, 60_000, 65_536]);
        assert_eq!(
            [0, 65_537, u32::MAX].map(lanes),
            [8, 65_536, 65_536],
            "as many as there may be"
        );
        assert_eq!(open.started(5).check(), Ok(()));
        assert!(open.check().unwrap_err().to_string().contains("not 0"));
        let given = OrderSpec { kind: OrderKind::Grouped { lanes: 5, group: 4 }, seed: 3 };
        assert_eq!(given.started(64), given);
    }

    #[test]
    fn a_run_goes_on_in_the_order_of_its_state_where_that_is_what_was_asked_for() {
        let grouped = |lanes, group| OrderKind::Grouped { lanes, group };
        let earlier = |lanes, group| OrderKind::GroupedV1 { lanes, group };
        for (state, asked, goes_on) in [
            (grouped(8, 4), grouped(8, 4), true),
            (grouped(8, 4), grouped(0, 4), true),
            (earlier(8, 4), grouped(0, 4), true),
            (earlier(8, 4), grouped(8, 4), true),
            (grouped(8, 4), grouped(16, 4), false),
            (grouped(8, 4), grouped(0, 2), false),
            (grouped(8, 4), earlier(8, 4), false),
            (earlier(8, 4), earlier(8, 4), true),
            (OrderKind::Global, grouped(0, 4), false),
            (OrderKind::Global, OrderKind::Global, true),
        ] {
            assert_eq!(state.continues(&asked), goes_on, "{state:?}, asked for {asked:?}");
        }
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
