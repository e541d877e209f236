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
//! them back batch by batch. Read [`Budget`], then [`Deal`].

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Shard, Tail};
use dlfs_base::error::{Error, Result, invalid};
use dlfs_base::permutation::{Key, Permutation};
use dlfs_base::units::Epoch;

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
        let window = DEFAULT_WINDOW;
        let lengths = LengthsOf::Bytes(1);
        let phases = Vec::new();
        Budget {
            tokens,
            window,
            max_samples: None,
            cost: Cost::Padded,
            lengths,
            rows: None,
            phases,
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

    /// The most columns of a batch of rows, if it has `rows` in each phase; the last number holds for all that follow.
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

    /// Returns whether samples are brought into another order within windows: not if documents lie end to end.
    pub fn has_windows(&self) -> bool {
        self.rows.is_none_or(|rows| rows.pack != Pack::Concat)
    }

    /// Returns whether a sample of `tokens` costs more than a batch may, or than the shortest row has room for.
    pub fn exceeds(&self, tokens: u32) -> bool {
        u64::from(tokens) > self.least_tokens()
    }

    /// The most tokens of a sample; the capacity of the shortest rows of all phases.
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

    fn key(seed: u64, epoch: u64, window: u64) -> Key {
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
    /// The tokens of the epoch before it.
    pub from: u64,
    /// The length of a row.
    pub seq_len: u32,
}

/// A place in an epoch from which rows can be dealt without a look at the documents before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowPlace {
    /// A position of the epoch. In `concat`, the document there has the first token of the next row; otherwise a window
    /// begins there, which has the next row.
    pub position: u64,
    /// The tokens before it: those of documents in `concat`, otherwise those that rows count.
    pub tokens: u64,
    /// The rows before it; 0 in `concat`, where tokens tell them.
    pub rows: u64,
    /// A word made of all numbers on which the place depends, so that a damaged one is refused. A
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

/// The batches of one rank in an epoch, from a point between two batches on.
///
/// Keeps the windows that the rank or the current round still needs: usually two.
#[derive(Debug, Clone)]
pub struct Deal<T> {
    budget: Arc<Budget>,
    seed: u64,
    epoch: Epoch,
    /// The number of positions of the epoch.
    len: u64,
    /// Rank and world size. Batches are counted from `consumed`. A place of several ranks has the batches of its ranks
    /// in turn.
    shard: Shard,
    /// The windows with batches that are not dealt yet, or that belong to the current round.
    windows: VecDeque<Window<T>>,
    /// The number of batches before those of `windows`.
    before: u64,
    /// The number of batches before the end of `windows`.
    known: u64,
    /// The first position after `windows`.
    next: u64,
    /// The number of batches that the rank has taken.
    taken: u64,
    cutter: Cutter,
    tokens: Vec<u32>,
    /// Memory of windows that were dealt, for reuse.
    free: Vec<Window<T>>,
}

/// Appends the samples at consecutive positions, and the tokens of each.
pub type DrawFn<'a, T> = dyn FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()> + 'a;

/// The result of [`Deal::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dealt {
    /// Positions of the epoch that are consumed once all ranks have had their batches of this round.
    pub consumed: u64,
    /// True if the rank of this batch has no more batches in the epoch.
    pub ends_epoch: bool,
    /// The place behind this round, if batches are of rows and more follow.
    pub place: Option<RowPlace>,
}

#[derive(Debug, Clone)]
struct Window<T> {
    /// Its first position.
    first: u64,
    samples: Vec<T>,
    cut: Cut,
    /// The number of its batches that were consumed before.
    skipped: usize,
}

impl<T> Window<T> {
    fn num_batches(&self) -> u64 {
        (self.cut.ends.len() - self.skipped) as u64
    }
}

impl<T: Copy> Deal<T> {
    /// The batches of the rank of `shard` in `epoch`, which has `len` positions, after the consumed positions.
    pub fn new(budget: &Arc<Budget>, seed: u64, epoch: Epoch, len: u64, shard: Shard) -> Deal<T> {
        let window = u64::from(budget.window.max(1));
        Deal {
            budget: Arc::clone(budget),
            seed,
            epoch,
            len,
            shard,
            windows: VecDeque::new(),
            before: 0,
            known: 0,
            next: shard.consumed / window * window,
            taken: 0,
            cutter: Cutter::default(),
            tokens: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Appends the samples of the rank's next batch to `out`. `None`: it has no more in this epoch.
    ///
    /// # Errors
    /// Errors of `draw`. The position after the consumed ones does not begin a batch; the first call checks this.
    pub fn next(&mut self, draw: &mut DrawFn<'_, T>, out: &mut Vec<T>) -> Result<Option<Dealt>> {
        let ranks = self.shard.num_ranks();
        // Cut until the end of the next round is known: this tells which ranks have a batch in that round.
        let places = u64::from(self.shard.world_size.max(1));
        let number = self.taken * places + u64::from(self.shard.rank);
        let round = number / ranks;
        while self.known < (round + 2).saturating_mul(ranks) && self.next < self.len {
            self.cut_next(draw)?;
        }
        if !self.has(number) {
            return Ok(None);
        }
        let end = (round + 1) * ranks;
        if number < self.known {
            let (window, nth) = self.window_of(number);
            out.extend(window.cut.batch(nth).iter().map(|&at| window.samples[at as usize]));
        } else {
            self.repeat(number - self.known, draw, out)?
        }
        let (window, nth) = self.window_of(end.min(self.known) - 1);
        let consumed = window.first + u64::from(window.cut.ends[nth]);
        self.taken += 1;
        let ends_epoch = !self.has(number + ranks);
        let is_last_of_round = (number + places) / ranks > round;
        if is_last_of_round {
            self.forget_before(end);
        }
        Ok(Some(Dealt { consumed, ends_epoch, place: None }))
    }

    /// Returns whether batch `number` is read. Enough batches must be known to tell.
    fn has(&self, number: u64) -> bool {
        let ranks = self.shard.num_ranks();
        let first = number / ranks * ranks;
        match self.shard.tail {
            Tail::Keep => number < self.known,
            Tail::DropLast => first.saturating_add(ranks) <= self.known,
            Tail::Pad => first < self.known,
        }
    }

    /// Cuts the next window.
    fn cut_next(&mut self, draw: &mut DrawFn<'_, T>) -> Result<()> {
        let samples = Vec::new();
        let cut = Cut::default();
        let empty = || Window { first: 0, samples, cut, skipped: 0 };
        let mut window = self.free.pop().unwrap_or_else(empty);
        let size = u64::from(self.budget.window.max(1));
        let end = self.len.min(self.next + size);
        window.samples.clear();
        self.tokens.clear();
        draw(self.next..end, &mut window.samples, &mut self.tokens)?;
        let key = Budget::key(self.seed, self.epoch.0, self.next / size);
        self.cutter.cut(&self.budget, key, &self.tokens, &mut window.cut);
        window.first = self.next;
        window.skipped = match self.shard.consumed.checked_sub(self.next) {
            None | Some(0) => 0,
            Some(had) => {
                let ends = window.cut.ends.binary_search(&(had as u32));
                let consumed = self.shard.consumed;
                ends.map_err(|_| within_batch(consumed))? + 1
            }
        };
        self.next = end;
        self.known += window.num_batches();
        self.windows.push_back(window);
        Ok(())
    }

    /// The window of batch `number`, which must be in `windows`, and the number of the batch within the window.
    fn window_of(&self, number: u64) -> (&Window<T>, usize) {
        let mut left = number - self.before;
        for window in &self.windows {
            if left < window.num_batches() {
                return (window, window.skipped + left as usize);
            }
            left -= window.num_batches();
        }
        unreachable!("batch {number} of {} is in no window", self.known)
    }

    /// Appends the `nth` batch of the epoch, starting over if the epoch has fewer: the padding of its last round.
    fn repeat(&self, nth: u64, draw: &mut DrawFn<'_, T>, out: &mut Vec<T>) -> Result<()> {
        let all = Shard { rank: 0, world_size: 1, consumed: 0, tail: Tail::Keep, seats: 1 };
        let begin = || Deal::new(&self.budget, self.seed, self.epoch, self.len, all);
        let mut deal = begin();
        let start = out.len();
        for _ in 0..=nth {
            out.truncate(start);
            if deal.next(draw, out)?.is_none() {
                deal = begin();
                deal.next(draw, out)?;
            }
        }
        Ok(())
    }

    /// Drops the windows whose batches are all before `number`.
    fn forget_before(&mut self, number: u64) {
        while let Some(window) = self.windows.front()
            && self.before + window.num_batches() <= number
        {
            self.before += window.num_batches();
            self.free.extend(self.windows.pop_front());
        }
    }
}

/// The number of batches in each window of an epoch of `len` positions. `draw` appends the tokens of the samples at
/// consecutive positions.
///
/// # Errors
/// Errors of `draw`.
pub fn count_batches(
    budget: &Budget,
    seed: u64,
    epoch: Epoch,
    len: u64,
    mut draw: impl FnMut(Range<u64>, &mut Vec<u32>) -> Result<()>,
) -> Result<Vec<u32>> {
    let mut cutter = Cutter::default();
    let mut tokens = Vec::new();
    let size = u64::from(budget.window.max(1));
    let count = |window: u64| {
        tokens.clear();
        draw(window * size..len.min((window + 1) * size), &mut tokens)?;
        // A window has at most MAX_WINDOW batches.
        Ok(cutter.count(budget, Budget::key(seed, epoch.0, window), &tokens) as u32)
    };
    (0..budget.num_windows(len)).map(count).collect()
}

/// A window divided into batches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Indices of the window's samples, batch after batch.
    pub(crate) order: Vec<u32>,
    /// The end of each batch in `order`.
    pub(crate) ends: Vec<u32>,
}

impl Cut {
    /// The indices of the samples of batch `number`, ascending by length.
    pub(crate) fn batch(&self, number: usize) -> &[u32] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.order[start as usize..self.ends[number] as usize]
    }
}

/// Cuts windows, and reuses its memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cutter {
    /// Tokens and tie-breaker of each sample, and its index.
    keyed: Vec<(u64, u32)>,
    /// The end of each batch in `keyed`.
    ends: Vec<u32>,
}

impl Cutter {
    /// Replaces `cut` with the batches of the window with this key; its samples have these numbers of tokens.
    ///
    /// Takes some 50 ns per sample, mostly for sorting.
    pub(crate) fn cut(&mut self, budget: &Budget, key: Key, tokens: &[u32], cut: &mut Cut) {
        self.divide(budget, key.with(TIES), tokens);
        let Cut { order, ends } = cut;
        order.clear();
        ends.clear();
        let shuffle = Permutation::new(self.ends.len() as u64, key.with(BATCHES));
        for number in 0..shuffle.len() {
            let number = shuffle.forward(number) as usize;
            let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
            let samples = &self.keyed[start as usize..self.ends[number] as usize];
            order.extend(samples.iter().map(|(_, index)| *index));
            ends.push(order.len() as u32);
        }
    }

    /// The number of batches that [`cut`](Self::cut) would make.
    pub(crate) fn count(&mut self, budget: &Budget, key: Key, tokens: &[u32]) -> u64 {
        self.divide(budget, key.with(TIES), tokens);
        self.ends.len() as u64
    }

    /// Sorts the samples, and finds the ends of batches.
    fn divide(&mut self, budget: &Budget, ties: Key, tokens: &[u32]) {
        let Cutter { keyed, ends } = self;
        keyed.clear();
        ends.clear();
        keyed.extend(tokens.iter().zip(0_u32..).map(|(&tokens, index)| {
            let tie = ties.with(index.into()).word() >> 32;
            (u64::from(tokens.max(1)) << 32 | tie, index)
        }));
        keyed.sort_unstable();
        let most = budget.max_samples.map_or(u64::MAX, u64::from);
        let mut samples = 0;
        let mut sum = 0;
        for (at, (key, _)) in keyed.iter().enumerate() {
            let tokens = key >> 32;
            let cost = match budget.cost {
                Cost::Padded => tokens * (samples + 1), // both factors are below 2^32
                Cost::Sum => sum + tokens,
            };
            if samples > 0 && (samples == most || cost > budget.tokens) {
                ends.push(at as u32);
                (samples, sum) = (0, 0);
            }
            samples += 1;
            sum += tokens;
        }
        if samples > 0 {
            ends.push(keyed.len() as u32);
        }
    }
}

/// The default number of positions sorted together: enough that the samples of a batch have nearly the same length.
pub const DEFAULT_WINDOW: u32 = 8192;

/// The largest window: a position of a window takes up to 44 bytes of memory, and a run keeps a few windows.
pub(crate) const MAX_WINDOW: u32 = 1 << 22;

/// The largest capacity of a row of tokens: best fit keeps a few bytes for each number of tokens up to it.
const MAX_CAPACITY: u64 = 1 << 24;

/// The first word of the keys of windows. Frozen.
const LABEL: u64 = 0x6275_6467;

/// Words of the keys. Frozen.
const TIES: u64 = 0;
const BATCHES: u64 = 1;

#[cfg(test)]
mod tests;
