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
//! them back batch by batch. A [`Budget`] may define rows of tokens instead of batches of samples; `dlfs-tokens` deals
//! those.
//!
//! Read `spec.rs` (the definition of batches), then [`Deal`].

mod spec;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::{Shard, Tail};
use dlfs_base::error::Result;
use dlfs_base::permutation::{Key, Permutation};
use dlfs_base::units::Epoch;

pub use spec::{
    Budget, Cost, DEFAULT_WINDOW, LengthsOf, Pack, RowPhase, RowPlace, RowSpec, TooLong,
    within_batch, wrong_place,
};

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
    /// Rank and world size. Batches are counted from `consumed`. A place of several ranks takes the batches of its
    /// ranks in turn.
    shard: Shard,
    /// The windows with batches that are not dealt yet, or that belong to the current round.
    windows: VecDeque<CutWindow<T>>,
    /// The number of batches before those of `windows`.
    before: u64,
    /// The number of batches before the end of `windows`.
    known: u64,
    /// The first position after `windows`.
    next: u64,
    /// The number of batches that the rank has taken.
    taken: u64,
    cutter: Cutter,
    /// Scratch memory: the tokens of the samples of a window.
    tokens: Vec<u32>,
    /// Memory of windows that were dealt, for reuse.
    free: Vec<CutWindow<T>>,
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
    /// The place behind this round, if batches are of rows and more follow; always `None` from [`Deal::next`].
    pub place: Option<RowPlace>,
}

/// A window that is divided into batches.
#[derive(Debug, Clone)]
struct CutWindow<T> {
    /// The first position of the window.
    first: u64,
    /// The samples, in the order of positions.
    samples: Vec<T>,
    cut: Cut,
    /// The number of batches that were consumed before the run started.
    skipped: usize,
}

impl<T> CutWindow<T> {
    /// The number of batches that are not skipped.
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
        let empty = || CutWindow { first: 0, samples: Vec::new(), cut: Cut::default(), skipped: 0 };
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
    fn window_of(&self, number: u64) -> (&CutWindow<T>, usize) {
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

/// The word of the key that orders samples of equal length. Frozen.
const TIES: u64 = 0;
/// The word of the key that orders batches. Frozen.
const BATCHES: u64 = 1;

#[cfg(test)]
mod tests;
