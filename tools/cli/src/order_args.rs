//! The order, on the command line.

use clap::{Args, ValueEnum};

use dlfs::dataset::options::{DEFAULT_EXCHANGE, DEFAULT_GROUP};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, Sharding};

use crate::exit::Failure;
use crate::help::loading;

/// The order of samples.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Order")]
pub(crate) struct OrderArgs {
    #[arg(long, value_enum, default_value_t = Order::Global)]
    #[arg(help = loading("order", ""))]
    order: Order,
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(help = loading("seed", ", on any number of ranks"))]
    seed: u64,
    /// grouped: number of lanes, which take turns; with a multiple of the world size no chunk is
    /// read twice [default: 8 per rank, or as in the state that the run resumes from]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    lanes: Option<u32>,
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(help = loading("group", " [default: 4]"))]
    group: Option<u32>,
    /// sequential: in the order of the source, or of the media, which is faster [default: id]
    #[arg(long, value_enum, value_name = "WHAT")]
    by: Option<By>,
    #[arg(long, value_name = "Q")]
    #[arg(help = loading("exchange", ", 0 to 1 [default: 0.1]"))]
    exchange: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// No shuffle: the same sequence every epoch
    Sequential,
    /// A full shuffle of all samples
    Global,
    /// Whole chunks at a time: shuffles chunks, and samples within groups of them (DIESEL)
    Grouped,
    /// Each rank shuffles its own share
    Local,
    /// Like local, but a fraction of each share moves to other ranks every epoch (partial local
    /// shuffling)
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
    /// Each rank takes every W-th sample
    #[default]
    Strided,
    /// grouped: whole chunks to one rank as far as equal shares allow, so that a run that resumes
    /// with another world size reads few chunks twice
    Aligned,
    /// With --peers: each rank takes what its own node holds, as far as equal shares allow, so that
    /// little crosses the network after the first epoch
    Local,
}

impl From<ShardArg> for Sharding {
    fn from(shard: ShardArg) -> Sharding {
        match shard {
            ShardArg::Strided => Sharding::Strided,
            ShardArg::Aligned => Sharding::Aligned,
            ShardArg::Local => Sharding::Local,
        }
    }
}

impl OrderArgs {
    /// # Errors
    /// `Usage`: aligned shares in an order that does not read whole chunks; local shares without peers, or
    /// in an order that gives each rank samples of its own.
    pub(crate) fn check_shard(&self, shard: ShardArg, has_peers: bool) -> Result<(), Failure> {
        if shard == ShardArg::Local && !has_peers {
            let text = "--shard local goes with --peers only: it gives each rank what its node holds for all";
            return Err(Failure::Usage(text.to_owned()));
        }
        if shard == ShardArg::Local && matches!(self.order, Order::Local | Order::Partial) {
            let text = "--shard local goes with --order global, grouped or sequential: this order gives each \
                        rank samples of its own";
            return Err(Failure::Usage(text.to_owned()));
        }
        let grouped = self.order == Order::Grouped;
        self.only_with(shard == ShardArg::Aligned, grouped, "--shard aligned", "grouped")
    }

    /// The order for `world_size` ranks; 0 lanes if the number is not given.
    ///
    /// # Errors
    /// `Usage`: an option that does not apply to this order, or a fraction out of range.
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
