//! Batches by a token budget, of samples of similar length: length buckets over any order.
//!
//! The positions of an epoch are divided into *windows* of equal size. The samples of a window are sorted by length
//! and cut into batches that cost at most the budget. The cost is the longest sample times the number of samples,
//! as in a padded tensor, or the sum of the lengths. The batches of a window are then shuffled, so that batches are
//! not sorted by length. Batches are contiguous in this sequence, so the state of a run is the number of consumed
//! positions, as with batches of equal size, and each batch depends only on {order, seed, epoch, lengths}.
//!
//! Batches go to ranks in rounds: counted from the start or resumption of the run, batch k goes to rank k mod W. So
//! any number of ranks can resume between any two batches.
//!
//! # The definition of a window
//!
//! Frozen; `tests/golden/budgets.txt` pins it. Let `key` be the [`Key`] of the seed and the words 0x62756467
//! (`budg`), epoch and number of the window, and T the budget.
//!
//! 1. Each sample has at least one token. Sample i of the window, in the order of positions, sorts by (tokens, the
//!    upper 32 bits of the word of key.0.i, i); key.x is [`Key::with`].
//! 2. In that order a sample joins the previous sample's batch unless the batch already has `max_samples`, or would
//!    cost more than T. The cost is the sample's tokens, the most so far, times the number of samples; or the sum
//!    of tokens.
//! 3. The n batches come in the order of the permutation of 0..n by key.1: the first one is `forward(0)`.
//!
//! A sample of more than T tokens is a batch of its own; the caller decides whether it is allowed.
//!
//! This module has no access to a data set: its caller draws the samples of a window with their lengths, and gets
//! them back batch by batch. Read `window.rs` (one window), then `deal.rs` (an epoch on one rank).

mod deal;
mod window;

use std::fmt;

use serde::{Deserialize, Serialize};

use dlfs_base::error::{Error, Result, invalid};
use dlfs_base::permutation::Key;

pub use deal::{Deal, Dealt, count_batches};
pub(crate) use window::{Cut, Cutter};

/// The definition of batches of samples of different lengths: equal budgets give equal batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// The most tokens of a batch.
    pub tokens: u64,
    /// The number of positions of the epoch that are sorted by length together.
    pub window: u32,
    /// The most samples of a batch; `None`: no limit besides the tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_samples: Option<u32>,
    /// The cost of a batch.
    pub cost: Cost,
    /// The definition of a sample's length.
    pub lengths: LengthsOf,
    /// Rows of tokens instead of batches of samples: `tokens` is then the capacity of a row, and a batch is a number
    /// of rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<RowSpec>,
}

/// The way in which documents fill rows of tokens. The rows of an epoch depend only on {order, seed, epoch, lengths}.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSpec {
    /// The rule by which documents are packed.
    pub pack: Pack,
    /// True if a separator follows each document: one more token.
    pub separated: bool,
    /// True if documents longer than a row are cut into pieces; otherwise they are an error. In `concat` all
    /// documents may be cut.
    pub cuts: bool,
}

/// The rules by which documents are packed into rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pack {
    /// All documents of an epoch end to end, cut into rows.
    #[default]
    Concat,
    /// The documents of each window, whole, by best-fit decreasing.
    BestFit,
    /// One document a row.
    None,
}

/// The cost of the samples of a batch together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// The tokens of the longest sample times the number of samples: the size of a padded tensor.
    #[default]
    Padded,
    /// The sum of the samples' tokens, for models that pack samples.
    Sum,
}

/// The source of a sample's number of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthsOf {
    /// The sample's bytes, divided by this number of bytes per token, rounded up.
    Bytes(u32),
    /// The integer column with this name; `label` is the label, unless a column has this name.
    Column(String),
}

/// The treatment of a sample with more tokens than the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TooLong {
    /// An error before the first batch.
    #[default]
    Raise,
    /// A batch of its own, above the budget.
    Alone,
}

impl Budget {
    /// Padded batches of at most `tokens` tokens, with one token per byte, and windows of [`DEFAULT_WINDOW`]
    /// positions.
    pub fn new(tokens: u64) -> Budget {
        let window = DEFAULT_WINDOW;
        let lengths = LengthsOf::Bytes(1);
        Budget { tokens, window, max_samples: None, cost: Cost::Padded, lengths, rows: None }
    }

    /// Checks that all numbers are in range.
    ///
    /// # Errors
    /// The first number that is not.
    pub fn check(&self) -> Result<()> {
        if self.rows.is_some() {
            self.check_rows()?;
        }
        let text = if self.tokens == 0 {
            "a batch has a budget of at least one token".to_owned()
        } else if !(1..=MAX_WINDOW).contains(&self.window) {
            let window = self.window;
            format!(
                "samples are sorted by length in windows of 1 to {MAX_WINDOW} positions, not {window}"
            )
        } else if self.max_samples == Some(0) {
            "a batch has at least one sample".to_owned()
        } else if self.lengths == LengthsOf::Bytes(0) {
            "a token has at least one byte".to_owned()
        } else {
            return Ok(());
        };
        Err(invalid(text))
    }

    /// Checks the numbers that rows of tokens restrict.
    fn check_rows(&self) -> Result<()> {
        let text = if !(2..=MAX_CAPACITY).contains(&self.tokens) {
            let longest = MAX_CAPACITY - 1;
            let len = self.row_len();
            format!("a row has a length of 1 to {longest} tokens, not {len}")
        } else if self.max_samples.is_some() {
            "rows of tokens have no `max_samples`: any number of documents fills them".to_owned()
        } else if self.cost != Cost::Sum {
            format!("rows of tokens have the cost `sum`, not `{}`", self.cost)
        } else {
            return Ok(());
        };
        Err(invalid(text))
    }

    /// The length of a row: its capacity without the token that is only a label.
    fn row_len(&self) -> u64 {
        self.tokens.saturating_sub(1)
    }

    /// In words, the first difference between this budget (of a state) and the one `asked` for.
    pub fn difference(&self, asked: &Budget) -> Option<String> {
        let most = |samples: Option<u32>| match samples {
            Some(samples) => format!("at most {samples}"),
            None => "any number of".to_owned(),
        };
        let Budget { tokens, window, cost, .. } = self;
        let what = if let Some(what) = self.difference_of_rows(asked) {
            what
        } else if *tokens != asked.tokens {
            format!("batches have up to {tokens} tokens, and {} were", asked.tokens)
        } else if *window != asked.window && self.has_windows() {
            format!("windows have {window} positions by length, and {} were", asked.window)
        } else if self.max_samples != asked.max_samples {
            let state = most(self.max_samples);
            format!("batches have {state} samples, and {} were", most(asked.max_samples))
        } else if *cost != asked.cost {
            format!("batches have a {cost} cost, and a {} one was", asked.cost)
        } else if self.lengths != asked.lengths {
            "lengths are others than those".to_owned()
        } else {
            return None;
        };
        Some(format!("the state's {what} asked for"))
    }

    /// The first difference in rows of tokens, in words of [`difference`](Self::difference).
    fn difference_of_rows(&self, asked: &Budget) -> Option<String> {
        let (rows, other) = match (self.rows, asked.rows) {
            (None, None) => return None,
            (None, Some(_)) => return Some("batches have samples, and rows of tokens were".into()),
            (Some(_), None) => return Some("batches have rows of tokens, and samples were".into()),
            (Some(rows), Some(other)) => (rows, other),
        };
        let separator = |rows: RowSpec| if rows.separated { "one" } else { "no" };
        let long = |rows: RowSpec| if rows.cuts { "cut" } else { "refused" };
        let what = if self.tokens != asked.tokens {
            format!("rows have a length of {}, and {} was", self.row_len(), asked.row_len())
        } else if rows.pack != other.pack {
            format!("rows are packed by `{}`, and `{}` was", rows.pack, other.pack)
        } else if rows.separated != other.separated {
            let asked = separator(other);
            format!("documents end with {} separator, and {asked} separator was", separator(rows))
        } else if rows.cuts != other.cuts && rows.pack != Pack::Concat {
            let asked = long(other);
            format!("documents longer than a row are {}, and that they are {asked} was", long(rows))
        } else {
            return None;
        };
        Some(what)
    }

    /// Returns whether samples are brought into another order within windows: not if rows take documents as they come.
    pub fn has_windows(&self) -> bool {
        self.rows.is_none_or(|rows| rows.pack == Pack::BestFit)
    }

    /// Returns whether a sample of `tokens` costs more than a batch may.
    pub fn exceeds(&self, tokens: u32) -> bool {
        u64::from(tokens) > self.tokens
    }

    /// The tokens of a sample of `len_bytes` if its length is in bytes.
    #[inline]
    pub fn tokens_of_bytes(len_bytes: u32, token_bytes: u32) -> u32 {
        len_bytes.div_ceil(token_bytes.max(1)).max(1)
    }

    /// The number of windows of an epoch of `len` positions.
    pub(crate) fn num_windows(&self, len: u64) -> u64 {
        len.div_ceil(self.window.max(1).into())
    }

    fn key(seed: u64, epoch: u64, window: u64) -> Key {
        Key::derive(seed, &[LABEL, epoch, window])
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cost::Padded => "padded",
            Cost::Sum => "sum",
        })
    }
}

impl fmt::Display for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pack::Concat => "concat",
            Pack::BestFit => "best_fit",
            Pack::None => "none",
        })
    }
}

/// The error for a run that would begin within a batch.
pub fn within_batch(consumed: u64) -> Error {
    invalid(format!(
        "the state has consumed {consumed} samples of its epoch, which is within a batch of this budget"
    ))
    .hint("lengths differ from those that the run began with: resume over the same data, or start anew")
}

/// The default number of positions sorted together: enough that the samples of a batch have nearly the same length.
pub const DEFAULT_WINDOW: u32 = 8192;

/// The largest window: a position of a window takes up to 44 bytes of memory, and a run keeps a few windows.
pub(crate) const MAX_WINDOW: u32 = 1 << 22;

/// The largest capacity of a row of tokens: best fit keeps a few bytes for each number of tokens up to it.
const MAX_CAPACITY: u64 = 1 << 24;

/// The first word of the keys of windows. Frozen.
const LABEL: u64 = 0x6275_6467;

#[cfg(test)]
mod tests;
