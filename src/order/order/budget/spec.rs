//! The definition of batches by a token budget, and of rows of tokens.

use std::fmt;

use serde::{Deserialize, Serialize};

use dlfs_base::error::{Error, Result, invalid};
use dlfs_base::permutation::Key;

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
    /// Phases of each epoch in which rows have another length, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<RowPhase>,
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
        Budget {
            tokens,
            window: DEFAULT_WINDOW,
            max_samples: None,
            cost: Cost::Padded,
            lengths: LengthsOf::Bytes(1),
            rows: None,
            phases: Vec::new(),
        }
    }

    /// Checks that all numbers are in range.
    ///
    /// # Errors
    /// The first number that is not.
    pub fn check(&self) -> Result<()> {
        let longest = MAX_CAPACITY - 1;
        let is_rows = self.rows.is_some();
        let mut lens = self.row_lens().filter(|_| is_rows);
        let mut pairs = self.phases.windows(2).filter(|_| is_rows);
        let text = if let Some(len) = lens.find(|len| !(1..=longest).contains(len)) {
            format!("a row has a length of 1 to {longest} tokens, not {len}")
        } else if let Some(two) = pairs.find(|two| two[0].from >= two[1].from) {
            let RowPhase { from, .. } = two[1];
            format!("a phase of rows begins at {from} tokens, not after the one before")
        } else if is_rows && self.phases.first().is_some_and(|phase| phase.from == 0) {
            "a phase of rows begins after at least one token".to_owned()
        } else if is_rows && self.max_samples.is_some() {
            "rows of tokens have no `max_samples`: any number of documents fills them".to_owned()
        } else if is_rows && self.cost != Cost::Sum {
            format!("rows of tokens have the cost `sum`, not `{}`", self.cost)
        } else if !is_rows && !self.phases.is_empty() {
            "only rows of tokens have phases".to_owned()
        } else if self.tokens == 0 {
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

    /// The length of a row at the epoch's start: its capacity without the token that is only a label.
    fn row_len(&self) -> u64 {
        self.tokens.saturating_sub(1)
    }

    /// The length of rows at the epoch's start, and in each phase.
    fn row_lens(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.row_len()).chain(self.phases.iter().map(|phase| phase.seq_len.into()))
    }

    /// The most tokens of a batch of rows. `rows` has the number of rows of a batch in each phase; its last number
    /// holds for all later phases.
    pub fn most_tokens(&self, rows: &[u32]) -> u64 {
        let last = rows.last().copied().unwrap_or(0);
        let rows = rows.iter().copied().chain(std::iter::repeat(last));
        let columns = |(len, rows): (u64, u32)| len.saturating_add(1).saturating_mul(rows.into());
        self.row_lens().zip(rows).map(columns).max().unwrap_or(0)
    }

    /// Rows of `concat`: the first row of each phase, and the tokens before it. The epoch's start is the first phase.
    pub fn concat_starts(&self) -> Vec<(u64, u64)> {
        let mut row = 0_u64;
        let mut tokens = 0_u64;
        let mut starts = vec![(row, tokens)];
        for (phase, len) in self.phases.iter().zip(self.row_lens()) {
            let rows = phase.from.saturating_sub(tokens).div_ceil(len.max(1));
            row = row.saturating_add(rows);
            tokens = tokens.saturating_add(rows.saturating_mul(len));
            starts.push((row, tokens));
        }
        starts
    }

    /// The phases that rows before row `consumed` of an epoch have decided, if a run goes on at `place`.
    pub(crate) fn begun(&self, consumed: u64, place: Option<&RowPlace>) -> &[RowPhase] {
        let is_concat = self.rows.is_some_and(|rows| rows.pack == Pack::Concat);
        let count = if consumed == 0 {
            0
        } else if is_concat {
            self.concat_starts()[1..].partition_point(|(row, _)| *row < consumed)
        } else {
            // Without a place it is unknown how many tokens the rows have counted.
            place.map_or(self.phases.len(), |place| {
                self.phases.partition_point(|phase| phase.from <= place.tokens)
            })
        };
        &self.phases[..count]
    }

    /// The first difference between this budget, of a state, and the one `asked` for, in words. `None` if they agree,
    /// apart from phases.
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

    /// Returns whether windows change the order of samples: not if documents lie end to end.
    pub fn has_windows(&self) -> bool {
        self.rows.is_none_or(|rows| rows.pack != Pack::Concat)
    }

    /// Returns whether a sample of `tokens` costs more than a batch may, or than the shortest row has room for.
    pub fn exceeds(&self, tokens: u32) -> bool {
        u64::from(tokens) > self.least_tokens()
    }

    /// The most tokens that a sample may have: the budget of a batch, or the capacity of the shortest rows of all
    /// phases.
    pub fn least_tokens(&self) -> u64 {
        let least = self.phases.iter().map(|phase| u64::from(phase.seq_len) + 1).min();
        least.map_or(self.tokens, |least| self.tokens.min(least))
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

    /// The key of a window.
    pub(super) fn key(seed: u64, epoch: u64, window: u64) -> Key {
        Key::derive(seed, &[LABEL, epoch, window])
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The error for a run that would begin within a batch.
pub fn within_batch(consumed: u64) -> Error {
    invalid(format!(
        "the state has consumed {consumed} samples of its epoch, which is within a batch of this budget"
    ))
    .hint("lengths differ from those that the run began with: resume over the same data, or start anew")
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
    /// One document a row; those of a window in buckets of similar lengths.
    None,
}

/// A phase of each epoch: rows have another length from a number of tokens on.
///
/// Each row counts its length as tokens, whatever it holds. In `concat` the phase begins with the first row that has at
/// least `from` tokens of the epoch before it, otherwise with the first window whose first row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowPhase {
    /// The tokens of the epoch before the phase.
    pub from: u64,
    /// The length of a row.
    pub seq_len: u32,
}

/// A place in an epoch from which rows can be dealt without the lengths of the documents before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowPlace {
    /// A position of the epoch. In `concat`, the document at this position has the first token of the next row;
    /// otherwise the window of the next row begins here.
    pub position: u64,
    /// The tokens before the position: of all documents in `concat`, otherwise as counted by the rows.
    pub tokens: u64,
    /// The rows before the position; 0 in `concat`, where the number of rows follows from the tokens.
    pub rows: u64,
    /// A checksum of all numbers on which the place depends, so that a damaged place is refused. A
    /// [`State`](crate::order::State) sets it.
    #[serde(default)]
    pub check: u64,
}

/// The error for a place that is not that of row `consumed`.
pub fn wrong_place(place: &RowPlace, consumed: u64) -> Error {
    let position = place.position;
    invalid(format!(
        "the state's place, position {position} of its epoch, is not that of its {consumed} rows"
    ))
    .hint(
        "the state is damaged, or lengths differ from those that the run began with: if it is sure that they do not, \
         take `place` out of the state, and the rows are found by the lengths of all documents before them",
    )
}

impl fmt::Display for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The default number of positions sorted together: enough that the samples of a batch have nearly the same length.
pub const DEFAULT_WINDOW: u32 = 8192;

/// The largest window: a position of a window takes up to 44 bytes of memory, and a run keeps a few windows.
pub(crate) const MAX_WINDOW: u32 = 1 << 22;

/// The largest capacity of a row of tokens: best fit keeps a few bytes for each number of tokens up to it.
const MAX_CAPACITY: u64 = 1 << 24;

/// The first word of the keys of windows. Frozen.
pub(super) const LABEL: u64 = 0x6275_6467;
