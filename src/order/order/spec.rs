//! The specification of an order: its kind, its parameters, and its seed.

use std::fmt;

use serde::{Deserialize, Serialize};

use dlfs_base::error::{Result, ensure, invalid};
use dlfs_base::units::Epoch;
use dlfs_format::format::Uuid;

/// The order of all epochs: runs with equal specifications read equal sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct OrderSpec {
    /// The kind of order.
    #[serde(flatten)]
    pub kind: OrderKind,
    /// The seed of every permutation.
    pub seed: u64,
}

/// The kind of order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum OrderKind {
    /// The same sequence every epoch, without shuffling.
    Sequential {
        /// The sequence.
        by: SequentialBy,
    },
    /// A full shuffle of all samples.
    #[default]
    Global,
    /// DIESEL's chunk-based shuffle in `lanes` lanes of equal length: chunks are shuffled and divided among the
    /// lanes, each lane shuffles the samples of `group` chunks together, and the sequence takes one sample of each
    /// lane in turn.
    Grouped {
        /// The number of lanes; 1 is DIESEL's algorithm. 0 in a request: selected by the world size at the start of
        /// a run, or taken from the state to resume from.
        lanes: u32,
        /// The number of chunks of one lane whose samples are shuffled together.
        group: u32,
    },
    /// Local shuffling: each rank shuffles its own fixed share.
    Local {
        /// The number of ranks, each with a share.
        world_size: u32,
    },
    /// Partial local shuffling: as `Local`, but ranks exchange a fraction of their shares each epoch.
    Partial {
        /// The fraction of a share that is exchanged in each epoch, from 0 to 1.
        q: f64,
        /// The number of ranks, each with a share.
        world_size: u32,
    },
    /// Samples are drawn in proportion to weights ([`Weights`](super::weighted::Weights)).
    Weighted {
        /// The hash of the weights.
        weights: HexId,
        /// True if a sample may be drawn several times in an epoch.
        replacement: bool,
        /// The number of positions of an epoch.
        epoch_size: u64,
    },
}

/// The sequences without a shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SequentialBy {
    /// The order of the source.
    Id,
    /// The order on media: the fastest to read.
    Slot,
}

impl OrderSpec {
    /// Checks that all parameters are in range.
    ///
    /// # Errors
    /// The first parameter that is not.
    pub fn check(&self) -> Result<()> {
        let text = match self.kind {
            OrderKind::Grouped { lanes, .. } if !(1..=MAX_LANES).contains(&lanes) => {
                format!("an order has 1 to {MAX_LANES} lanes, not {lanes}")
            }
            OrderKind::Grouped { group: 0, .. } => "a group has at least one chunk".to_owned(),
            OrderKind::Local { world_size: 0 } | OrderKind::Partial { world_size: 0, .. } => {
                EMPTY_WORLD.to_owned()
            }
            OrderKind::Partial { q, .. } if !(0.0..=1.0).contains(&q) => {
                format!("the exchanged part of a share is from 0 to 1, not {q}")
            }
            OrderKind::Weighted { epoch_size, .. }
                if !(1..=MAX_EPOCH_SIZE).contains(&epoch_size) =>
            {
                format!("an epoch has 1 to {MAX_EPOCH_SIZE} samples, not {epoch_size}")
            }
            _ => return Ok(()),
        };
        Err(invalid(text))
    }

    /// Checks that the epoch exists. The number of epochs is limited: in `partial` order, the time to find the
    /// holder of a sample is proportional to the epoch.
    ///
    /// # Errors
    /// The epoch is past the last one.
    pub fn check_epoch(&self, epoch: Epoch) -> Result<()> {
        let limit = match self.kind {
            OrderKind::Partial { .. } => MAX_PARTIAL_EPOCHS,
            _ => MAX_EPOCHS,
        };
        ensure(epoch.0 < limit, || {
            format!("epochs of this order go to {}, not {}", limit - 1, epoch.0)
        })
    }

    /// The order with which a run of `world_size` ranks starts: grouped order without a number of lanes gets
    /// [`LANES_A_RANK`] lanes per rank, or fewer within the limit on lanes.
    #[must_use]
    pub fn started(self, world_size: u32) -> OrderSpec {
        let kind = match self.kind {
            OrderKind::Grouped { lanes: 0, group } => {
                // A multiple of the world size, unless there are more ranks than lanes may be.
                let a_rank = (MAX_LANES / world_size.max(1)).clamp(1, LANES_A_RANK);
                let lanes = world_size.max(1).saturating_mul(a_rank).min(MAX_LANES);
                OrderKind::Grouped { lanes, group }
            }
            kind => kind,
        };
        OrderSpec { kind, ..self }
    }
}

/// Prints the order in words; parameters have the names of their command-line options.
impl fmt::Display for OrderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes_of = |lanes| match lanes {
            0 => String::new(),
            _ => format!("lanes {lanes}, "),
        };
        match *self {
            OrderKind::Sequential { by: SequentialBy::Id } => write!(f, "sequential (by id)"),
            OrderKind::Sequential { by: SequentialBy::Slot } => write!(f, "sequential (by slot)"),
            OrderKind::Global => write!(f, "global"),
            OrderKind::Grouped { lanes, group } => {
                write!(f, "grouped ({}group {group})", lanes_of(lanes))
            }
            OrderKind::Local { world_size } => write!(f, "local (world size {world_size})"),
            OrderKind::Partial { q, world_size } => {
                write!(f, "partial (exchange {q}, world size {world_size})")
            }
            OrderKind::Weighted { weights, replacement, epoch_size } => {
                let with = if replacement { "with" } else { "without" };
                write!(
                    f,
                    "weighted (weights {weights}, {with} replacement, epoch size {epoch_size})"
                )
            }
        }
    }
}

impl OrderKind {
    /// Returns whether a run with the requested order `asked` may resume in this order of a state: the two are
    /// equal, or `asked` leaves open the number of lanes.
    pub fn continues(&self, asked: &OrderKind) -> bool {
        match (*self, *asked) {
            (
                OrderKind::Grouped { lanes, group },
                OrderKind::Grouped { lanes: wanted, group: size },
            ) => group == size && (wanted == 0 || wanted == lanes),
            (kind, asked) => kind == asked,
        }
    }

    /// The numbers of lanes and of chunks per group, for grouped order.
    pub fn lanes_and_group(&self) -> Option<(u32, u32)> {
        match *self {
            OrderKind::Grouped { lanes, group } => Some((lanes, group)),
            _ => None,
        }
    }

    /// The number of positions of an epoch over `num_live` samples.
    pub fn epoch_len(&self, num_live: u64) -> u64 {
        match *self {
            OrderKind::Weighted { epoch_size, .. } => epoch_size,
            _ => num_live,
        }
    }

    /// The world size, if the sequence depends on it.
    pub fn world_size(&self) -> Option<u32> {
        match *self {
            OrderKind::Local { world_size } | OrderKind::Partial { world_size, .. } => {
                Some(world_size)
            }
            _ => None,
        }
    }

    /// The first word of the key. It makes different kinds of orders with the same seed independent. Frozen.
    pub(super) const fn label(&self) -> u64 {
        match self {
            OrderKind::Sequential { .. } => 0,
            OrderKind::Global => 1,
            OrderKind::Local { .. } | OrderKind::Partial { .. } => 3,
            OrderKind::Grouped { .. } => 4,
            OrderKind::Weighted { .. } => 5,
        }
    }
}

/// The UUID of an image, or the hash of a view or of weights: 32 hexadecimal digits as text and in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct HexId(pub [u8; 16]);

impl fmt::Display for HexId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl From<HexId> for String {
    fn from(id: HexId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for HexId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<HexId, &'static str> {
        // Digits alone: a UUID with hyphens is longer.
        let id = text.parse().ok().filter(|_| text.len() == 32);
        let id = id.map(|Uuid(bytes)| HexId(bytes));
        id.ok_or("an image, a view and weights are named by 32 hexadecimal digits")
    }
}

/// The message for a world size of 0.
pub(super) const EMPTY_WORLD: &str = "the world size is at least 1";

/// The most epochs of a run: a 64-bit position of a run can hold this many epochs of 2^40 samples.
pub const MAX_EPOCHS: u64 = 1 << 24;

/// The largest epoch size that a position of a run can hold.
pub(super) const MAX_EPOCH_SIZE: u64 = (1 << 40) - 1;

/// The most epochs of partial order: each epoch costs about a hundred bytes, and 15 ns per sample.
const MAX_PARTIAL_EPOCHS: u64 = 1 << 16;

/// The most lanes: each lane costs about a hundred bytes of state.
const MAX_LANES: u32 = 65_536;

/// The default number of lanes per rank: with groups of 4 chunks, a batch of a rank then draws from 32 chunks.
pub const LANES_A_RANK: u32 = 8;

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
    fn an_order_is_told_with_the_names_of_its_options() {
        let told = |kind: OrderKind| kind.to_string();
        assert_eq!(told(OrderKind::Grouped { lanes: 8, group: 4 }), "grouped (lanes 8, group 4)");
        assert_eq!(told(OrderKind::Grouped { lanes: 0, group: 4 }), "grouped (group 4)");
        let partial = OrderKind::Partial { q: 0.25, world_size: 2 };
        assert_eq!(told(partial), "partial (exchange 0.25, world size 2)");
        assert_eq!(told(OrderKind::Sequential { by: SequentialBy::Slot }), "sequential (by slot)");
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
    fn default_lanes_are_a_multiple_of_the_world_size() {
        let open = OrderSpec { kind: OrderKind::Grouped { lanes: 0, group: 4 }, seed: 3 };
        let lanes = |world_size| open.started(world_size).kind.lanes_and_group().unwrap().0;
        assert_eq!([1, 3, 64].map(lanes), [8, 24, 512]);
        assert_eq!([8_192, 10_000, 65_536].map(lanes), [65_536, 60_000, 65_536]);
        assert_eq!(
            [0, 65_537, u32::MAX].map(lanes),
            [8, 65_536, 65_536],
            "as many as there may be"
        );
        open.started(5).check().unwrap();
        assert!(open.check().unwrap_err().to_string().contains("not 0"));
        let given = OrderSpec { kind: OrderKind::Grouped { lanes: 5, group: 4 }, seed: 3 };
        assert_eq!(given.started(64), given);
    }

    #[test]
    fn a_run_resumes_in_the_order_of_its_state_if_the_options_match() {
        let grouped = |lanes, group| OrderKind::Grouped { lanes, group };
        for (state, asked, goes_on) in [
            (grouped(8, 4), grouped(8, 4), true),
            (grouped(8, 4), grouped(0, 4), true),
            (grouped(8, 4), grouped(16, 4), false),
            (grouped(8, 4), grouped(0, 2), false),
            (OrderKind::Global, grouped(0, 4), false),
            (OrderKind::Global, OrderKind::Global, true),
        ] {
            assert_eq!(state.continues(&asked), goes_on, "{state:?}, asked for {asked:?}");
        }
    }

    #[test]
    fn an_epoch_past_the_last_is_refused_at_once() {
        let check = |kind, epoch| OrderSpec { kind, seed: 0 }.check_epoch(Epoch(epoch));
        let partial = OrderKind::Partial { q: 0.5, world_size: 2 };
        check(partial, 65_535).unwrap();
        let error = check(partial, u64::MAX).unwrap_err().to_string();
        assert_eq!(error, format!("epochs of this order go to 65535, not {}", u64::MAX));
        check(OrderKind::Global, MAX_EPOCHS - 1).unwrap();
        assert!(check(OrderKind::Global, MAX_EPOCHS).is_err());
    }
}
