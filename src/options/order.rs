//! The order of samples, and batches by a budget of tokens.

use serde::{Deserialize, Serialize};

use super::{Choice, invalid, within};
use crate::error::Result;
use crate::order::budget::{Budget, Cost, DEFAULT_WINDOW, LengthsOf, TooLong};
use crate::order::{OrderKind, OrderSpec, SequentialBy};

/// The order of samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "Order"))]
pub struct Order {
    /// How to shuffle samples. global: a full shuffle; grouped: whole chunks at a time, shuffled in groups, the fastest
    /// (DIESEL); sequential: no shuffle; local: each rank shuffles a share of its own; partial: like local, but a
    /// fraction of each share moves to other ranks every epoch; weighted: samples are drawn by weights.
    #[cfg_attr(feature = "clap", arg(long, default_value_t))]
    pub order: Choice<Kind>,
    /// The same seed gives the same epochs, on any number of ranks.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", default_value_t))]
    pub seed: u64,
    /// Grouped: number of lanes, which take turns; with a multiple of the world size no chunk is read twice [default: 8
    /// per rank, or as in the state that the run resumes from].
    #[cfg_attr(feature = "clap", arg(long, value_name = "K"))]
    pub lanes: Option<u32>,
    /// Grouped: chunks of one lane that are shuffled together [default: 4].
    #[cfg_attr(feature = "clap", arg(long, value_name = "G"))]
    pub group: Option<u32>,
    /// Partial: fraction of each share that moves to other ranks in an epoch, 0 to 1 [default: 0.1].
    #[cfg_attr(feature = "clap", arg(long, value_name = "Q"))]
    pub exchange: Option<f64>,
}

/// The kinds of orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A full shuffle of all samples.
    #[default]
    Global,
    /// Whole chunks at a time, shuffled in groups.
    Grouped,
    /// No shuffle.
    Sequential,
    /// A share of its own for each rank.
    Local,
    /// Like `Local`, but a fraction of each share moves to other ranks.
    Partial,
    /// Samples that are drawn by weights.
    Weighted,
}

impl Order {
    /// The order for `world_size` ranks. Of a weighted order it is the seed alone:
    /// [`LoaderOptions::weighted`](crate::prefetch::LoaderOptions::weighted) says the rest.
    ///
    /// # Errors
    /// `InvalidArgument`: an option of another order, or a number out of range.
    pub fn spec(&self, world_size: u32) -> Result<OrderSpec> {
        for (name, is_given, fits) in [
            ("lanes", self.lanes.is_some(), Kind::Grouped),
            ("group", self.group.is_some(), Kind::Grouped),
            ("exchange", self.exchange.is_some(), Kind::Partial),
        ] {
            if is_given && self.order.0 != fits {
                let fits = Choice(fits);
                let text = format!("{name} goes with the order {fits} only, not {}", self.order);
                return Err(invalid(text));
            }
        }
        within("lanes", self.lanes.unwrap_or(1), 1)?;
        let kind = match self.order.0 {
            Kind::Global | Kind::Weighted => OrderKind::Global,
            Kind::Grouped => OrderKind::Grouped {
                lanes: self.lanes.unwrap_or(0), // as many as suit the run
                group: self.group.unwrap_or(DEFAULT_GROUP),
            },
            Kind::Sequential => OrderKind::Sequential { by: SequentialBy::Id },
            Kind::Local => OrderKind::Local { world_size },
            Kind::Partial => {
                OrderKind::Partial { q: self.exchange.unwrap_or(DEFAULT_EXCHANGE), world_size }
            }
        };
        let spec = OrderSpec { kind, seed: self.seed };
        spec.started(world_size).check()?;
        Ok(spec)
    }
}

/// Chunks of one lane that a grouped order shuffles together by default.
pub const DEFAULT_GROUP: u32 = 4;

/// The fraction of each share that a partial order moves by default.
pub const DEFAULT_EXCHANGE: f64 = 0.1;

/// Batches by a budget of tokens, instead of a number of samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "Batches by tokens"))]
pub struct Tokens {
    /// The most tokens of a batch, instead of a number of samples: samples of similar length share a batch, and batches
    /// go to the ranks in turn.
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKENS"))]
    #[cfg_attr(feature = "clap", arg(value_parser = clap::value_parser!(u64).range(1..)))]
    pub batch_tokens: Option<u64>,
    /// Batches by tokens: positions of the epoch that are sorted by length together.
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", requires = "batch_tokens"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Tokens::default().bucket_window))]
    pub bucket_window: u32,
    /// Batches by tokens: the most samples of one [default: as many as have room].
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", requires = "batch_tokens"))]
    pub max_batch: Option<u32>,
    /// Batches by tokens: bytes of a token; a part of one counts as one.
    #[cfg_attr(feature = "clap", arg(long, value_name = "BYTES", requires = "batch_tokens"))]
    #[cfg_attr(feature = "clap", arg(default_value_t = Tokens::default().token_bytes))]
    pub token_bytes: u32,
    /// Batches by tokens: the column of ints with the tokens of each sample, instead of its bytes; label for the label.
    #[cfg_attr(feature = "clap", arg(long, value_name = "COLUMN", requires = "batch_tokens"))]
    pub lengths: Option<String>,
    /// Batches by tokens: what a batch costs: its longest sample times their number, as a padded tensor has it, or the
    /// sum of their tokens.
    #[cfg_attr(feature = "clap", arg(long, requires = "batch_tokens", default_value_t))]
    pub batch_cost: Choice<Cost>,
    /// Batches by tokens: what to do with a sample that is longer than a batch: raise an error before the first batch,
    /// or leave it alone in a batch of its own.
    #[cfg_attr(feature = "clap", arg(long, requires = "batch_tokens", default_value_t))]
    pub too_long: Choice<TooLong>,
}

impl Default for Tokens {
    fn default() -> Tokens {
        Tokens {
            batch_tokens: None,
            bucket_window: DEFAULT_WINDOW,
            max_batch: None,
            token_bytes: 1,
            lengths: None,
            batch_cost: Choice::default(),
            too_long: Choice::default(),
        }
    }
}

impl Tokens {
    /// The budget; `None`: batches have a number of samples.
    ///
    /// # Errors
    /// `InvalidArgument`: an option of a budget without one, or a number out of range.
    pub fn budget(&self) -> Result<Option<Budget>> {
        if self.lengths.is_some() && self.token_bytes != 1 {
            let text =
                "token_bytes counts bytes, and lengths names a column instead: give one of both";
            return Err(invalid(text));
        }
        let Some(tokens) = self.batch_tokens else { return self.unused().map(|()| None) };
        within("batch_tokens", tokens, 1)?;
        within("bucket_window", self.bucket_window, 1)?;
        within("max_batch", self.max_batch.unwrap_or(1), 1)?;
        within("token_bytes", self.token_bytes, 1)?;
        let lengths = match &self.lengths {
            Some(column) => LengthsOf::Column(column.clone()),
            None => LengthsOf::Bytes(self.token_bytes),
        };
        let cost = self.batch_cost.0;
        let budget = Budget {
            tokens,
            window: self.bucket_window,
            max_samples: self.max_batch,
            cost,
            lengths,
            rows: None,
            phases: Vec::new(),
        };
        budget.check()?;
        Ok(Some(budget))
    }

    /// Checks that nothing but defaults is given.
    fn unused(&self) -> Result<()> {
        let default = Tokens::default();
        for (name, is_given) in [
            ("bucket_window", self.bucket_window != default.bucket_window),
            ("max_batch", self.max_batch.is_some()),
            ("token_bytes", self.token_bytes != default.token_bytes),
            ("lengths", self.lengths.is_some()),
            ("batch_cost", self.batch_cost != default.batch_cost),
            ("too_long", self.too_long != default.too_long),
        ] {
            if is_given {
                let text = format!("{name} is of batches by tokens: give batch_tokens, too");
                return Err(invalid(text));
            }
        }
        Ok(())
    }
}
