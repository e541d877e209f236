//! Divides one window of positions: sorts samples by length, cuts batches, and shuffles the batches.

use super::{Budget, Cost};
use dlfs_base::permutation::{Key, Permutation};

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
    /// Replaces `cut` with the batches of window `window` of the epoch; its samples have these numbers of tokens.
    ///
    /// Takes some 50 ns per sample, mostly for sorting.
    pub(crate) fn cut(
        &mut self,
        budget: &Budget,
        (seed, epoch, window): (u64, u64, u64),
        tokens: &[u32],
        cut: &mut Cut,
    ) {
        let key = Budget::key(seed, epoch, window);
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
    pub(crate) fn count(
        &mut self,
        budget: &Budget,
        (seed, epoch, window): (u64, u64, u64),
        tokens: &[u32],
    ) -> u64 {
        self.divide(budget, Budget::key(seed, epoch, window).with(TIES), tokens);
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

/// Words of the keys. Frozen.
const TIES: u64 = 0;
const BATCHES: u64 = 1;
