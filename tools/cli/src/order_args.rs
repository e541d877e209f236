//! Which order, on the command line.

use clap::{Args, ValueEnum};

use dlfs::dataset::options::{DEFAULT_EXCHANGE, DEFAULT_GROUP};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, Sharding};

use crate::exit::Failure;
use crate::help::loading;

/// Which sample comes next.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Order")]
pub(crate) struct OrderArgs {
    #[arg(long, value_enum, default_value_t = Order::Global)]
    #[arg(help = loading("order", ""))]
    order: Order,
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(help = loading("seed", ", on any number of ranks"))]
    seed: u64,
    /// grouped: lanes that take turns; a multiple of the world size reads no chunk twice [default: 8 for each
    /// rank, or those of the state that the run goes on from]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    lanes: Option<u32>,
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(help = loading("group", " [default: 4]"))]
    group: Option<u32>,
    /// sequential: as the source has them, or as they lie on the media, which is faster [default: id]
    #[arg(long, value_enum, value_name = "WHAT")]
    by: Option<By>,
    #[arg(long, value_name = "Q")]
    #[arg(help = loading("exchange", ", 0 to 1 [default: 0.1]"))]
    exchange: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// No mixing: the same sequence every epoch
    Sequential,
    /// A full shuffle of all samples
    Global,
    /// Whole chunks at a time: chunks are shuffled, and samples within groups of them (DIESEL)
    Grouped,
    /// Each rank shuffles a share of its own
    Local,
    /// As local, and a part of every share moves on each epoch (partial local shuffling)
    Partial,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Id,
    Slot,
}

/// How ranks share a global batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShardArg {
    /// Every W-th sample to each rank
    #[default]
    Strided,
    /// grouped: whole chunks to one rank as far as equal shares allow, so that a run that goes on with
    /// another world size reads few chunks twice
    Aligned,
}

impl From<ShardArg> for Sharding {
    fn from(shard: ShardArg) -> Sharding {
        match shard {
            ShardArg::Strided => Sharding::Strided,
            ShardArg::Aligned => Sharding::Aligned,
        }
    }
}

impl OrderArgs {
    /// # Errors
    /// `Usage`: shares of whole chunks in an order that does not go through them.
    pub(crate) fn check_shard(&self, shard: ShardArg) -> Result<(), Failure> {
        let grouped = self.order == Order::Grouped;
        self.only_with(shard == ShardArg::Aligned, grouped, "--shard aligned", "grouped")
    }

    /// The order for `world_size` ranks; 0 lanes where nobody says how many.
    ///
    /// # Errors
    /// `Usage`: an option that this order has no use for, or a share out of range.
    pub(crate) fn spec(&self, world_size: u32) -> Result<OrderSpec, Failure> {
        let grouped = self.order == Order::Grouped;
        self.only_with(self.lanes.is_some(), grouped, "--lanes", "grouped")?;
        self.only_with(self.group.is_some(), grouped, "--group", "grouped")?;
        let sequential = self.order == Order::Sequential;
        self.only_with(self.by.is_some(), sequential, "--by", "sequential")?;
        let partial = self.order == Order::Partial;
        self.only_with(self.exchange.is_some(), partial, "--exchange", "partial")?;
        let kind = match self.order {
            Order::Sequential => OrderKind::Sequential {
                by: match self.by {
                    Some(By::Slot) => SequentialBy::Slot,
                    Some(By::Id) | None => SequentialBy::Id,
                },
            },
            Order::Global => OrderKind::Global,
            Order::Grouped => OrderKind::Grouped {
                lanes: self.lanes.unwrap_or(0),
                group: self.group.unwrap_or(DEFAULT_GROUP),
            },
            Order::Local => OrderKind::Local { world_size },
            Order::Partial => {
                OrderKind::Partial { q: self.exchange.unwrap_or(DEFAULT_EXCHANGE), world_size }
            }
        };
        let spec = OrderSpec { kind, seed: self.seed };
        spec.started(world_size).check().map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(spec)
    }

    fn only_with(&self, given: bool, fits: bool, option: &str, order: &str) -> Result<(), Failure> {
        if given && !fits {
            return Err(Failure::Usage(format!("{option} goes with --order {order} only")));
        }
        Ok(())
    }
}
