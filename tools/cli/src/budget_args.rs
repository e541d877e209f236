//! Batches by a budget of tokens, on the command line.

use clap::{Args, ValueEnum};

use dlfs::order::budget::{Budget, Cost, DEFAULT_WINDOW, LengthsOf, MAX_WINDOW, TooLong};
use dlfs::prefetch::LoaderOptions;

use crate::help::loading;

/// How batches are cut, instead of by a number of samples.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Batches by tokens")]
pub(crate) struct BudgetArgs {
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with = "batch")]
    #[arg(help = loading("batch_tokens", ": samples of similar length share a batch"))]
    batch_tokens: Option<u64>,
    #[arg(long, value_name = "N", requires = "batch_tokens", default_value_t = DEFAULT_WINDOW)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WINDOW)))]
    #[arg(help = loading("bucket_window", ""))]
    bucket_window: u32,
    #[arg(long, value_name = "N", requires = "batch_tokens")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(help = loading("max_batch", " [default: as many as have room]"))]
    max_batch: Option<u32>,
    #[arg(long, value_name = "BYTES", requires = "batch_tokens", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "lengths")]
    #[arg(help = loading("token_bytes", "; a part of one counts as one"))]
    token_bytes: u32,
    #[arg(long, value_name = "COLUMN", requires = "batch_tokens")]
    #[arg(help = loading("lengths", "; label for the label"))]
    lengths: Option<String>,
    #[arg(long, value_enum, requires = "batch_tokens", default_value_t = CostArg::Padded)]
    #[arg(help = loading("batch_cost", ""))]
    batch_cost: CostArg,
    #[arg(long, value_enum, requires = "batch_tokens", default_value_t = TooLongArg::Raise)]
    #[arg(help = loading("too_long", ""))]
    too_long: TooLongArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CostArg {
    /// Its longest sample times their number, as a padded tensor has it
    Padded,
    /// The sum of their tokens
    Sum,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TooLongArg {
    /// Exit before the first batch, and name the sample
    Raise,
    /// Make it a batch of its own
    Alone,
}

impl BudgetArgs {
    /// The budget, if one is given.
    pub(crate) fn budget(&self) -> Option<Budget> {
        let lengths = match &self.lengths {
            Some(column) => LengthsOf::Column(column.clone()),
            None => LengthsOf::Bytes(self.token_bytes),
        };
        self.batch_tokens.map(|tokens| Budget {
            window: self.bucket_window,
            max_samples: self.max_batch,
            cost: match self.batch_cost {
                CostArg::Padded => Cost::Padded,
                CostArg::Sum => Cost::Sum,
            },
            lengths,
            ..Budget::new(tokens)
        })
    }

    /// `options` with the budget, if one is given.
    pub(crate) fn apply(&self, options: LoaderOptions) -> LoaderOptions {
        let Some(budget) = self.budget() else { return options };
        let too_long = self.too_long();
        LoaderOptions { too_long, ..options.by_budget(budget) }
    }

    /// Handling of samples above the budget.
    pub(crate) fn too_long(&self) -> TooLong {
        match self.too_long {
            TooLongArg::Raise => TooLong::Raise,
            TooLongArg::Alone => TooLong::Alone,
        }
    }
}
