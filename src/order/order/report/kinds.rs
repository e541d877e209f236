//! Counts of the kinds (chunks, or classes) of samples, and their statistics ([`Kinds`]).

use std::collections::BTreeMap;

use super::{Compared, compare};

/// Counts of the kinds (chunks, or classes) of samples in a sequence and its batches.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    /// By kind: the samples so far.
    counts: Vec<u64>,
    /// By kind: the samples in the current batch.
    in_batch: Vec<u64>,
    /// By kind: the sum, over whole batches, of the square of the samples in the batch.
    squares: Vec<u128>,
    /// The kinds in the current batch.
    present: Vec<usize>,
    /// The sum, over whole batches, of the number of distinct kinds in the batch.
    distinct: u64,
    /// The kind of the last sample.
    last: Option<usize>,
    /// The number of runs of equal kinds so far, the current one included.
    num_runs: u64,
    /// The length of the current run, in samples.
    run: u64,
    /// The length of the longest run, in samples.
    pub(super) longest_run: u64,
}

impl Kinds {
    /// Counts the next sample of the sequence.
    pub(super) fn see(&mut self, kind: usize) {
        if kind >= self.counts.len() {
            self.counts.resize(kind + 1, 0);
            self.in_batch.resize(kind + 1, 0);
            self.squares.resize(kind + 1, 0);
        }
        self.counts[kind] += 1;
        if self.in_batch[kind] == 0 {
            self.present.push(kind);
        }
        self.in_batch[kind] += 1;
        if self.last.replace(kind) == Some(kind) {
            self.run += 1;
        } else {
            self.num_runs += 1;
            self.run = 1;
        }
        self.longest_run = self.longest_run.max(self.run);
    }

    /// Adds the current batch to the statistics of batches, and begins the next one.
    pub(super) fn end_batch(&mut self) {
        self.distinct += self.present.len() as u64;
        for kind in self.present.drain(..) {
            self.squares[kind] += u128::from(self.in_batch[kind]).pow(2);
            self.in_batch[kind] = 0;
        }
    }

    /// Discards the current batch, which is incomplete.
    pub(super) fn drop_batch(&mut self) {
        self.present.drain(..).for_each(|kind| self.in_batch[kind] = 0);
    }

    /// The number of samples so far.
    pub(super) fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Distinct kinds in a batch. A kind of n_k samples is absent from a batch of b with probability
    /// C(N - n_k, b) / C(N, b). The variance is that of the occupancy problem (kinds drawn independently), times
    /// (1 - b / N) for drawing without replacement.
    pub(super) fn per_batch(&self, batch: u64, batches: u64) -> Option<Compared> {
        if batches == 0 {
            return None;
        }
        let total = self.samples();
        let mut mean = 0.0;
        let mut variance = 0.0;
        let mut moved = 0.0;
        let mut sizes = BTreeMap::<u64, f64>::new();
        self.counts.iter().filter(|&&n| n > 0).for_each(|&n| *sizes.entry(n).or_default() += 1.0);
        for (&size, &kinds) in &sizes {
            let share = batch as f64 * size as f64 / total as f64;
            mean += kinds * (1.0 - absent(total, size, batch));
            variance += kinds * (-share).exp() * (1.0 - (-share).exp());
            moved += kinds * share * (-share).exp();
        }
        variance = (variance - moved * moved / batch as f64) * (1.0 - batch as f64 / total as f64);
        let deviation = (variance.max(0.0) / batches as f64).sqrt();
        Some(compare(self.distinct as f64 / batches as f64, mean, deviation))
    }

    /// Chi-square of the kinds in a batch, averaged over the batches. The expectation is (k - 1)(N - b) / (N - 1),
    /// for batches drawn without replacement.
    pub(super) fn chi_square(&self, batch: u64, batches: u64) -> Option<Compared> {
        let total = self.samples() as f64;
        let size = batch as f64;
        let kinds = self.counts.iter().filter(|&&n| n > 0).count() as f64;
        if batches == 0 || kinds < 2.0 || total <= size {
            return None;
        }
        let mut found = -(batches as f64) * size;
        let mut inverse_shares = 0.0;
        for (&n, &squares) in self.counts.iter().zip(&self.squares).filter(|&(&n, _)| n > 0) {
            found += squares as f64 * total / (size * n as f64);
            inverse_shares += total / n as f64;
        }
        let chance = (kinds - 1.0) * (total - size) / (total - 1.0);
        let rare = (inverse_shares - kinds * kinds - 2.0 * kinds + 2.0) / size;
        let variance = (2.0 * (kinds - 1.0) + rare) * (1.0 - size / total).powi(2);
        Some(compare(found / batches as f64, chance, (variance.max(0.0) / batches as f64).sqrt()))
    }

    /// Runs of equal kinds; mean and variance are those of Barton and David, for k kinds of n_1..n_k samples.
    pub(super) fn runs(&self) -> Compared {
        let n = self.samples() as f64;
        if n < 2.0 {
            return compare(self.num_runs as f64, n, 0.0);
        }
        let power = |p| self.counts.iter().map(|&count| (count as f64).powi(p)).sum::<f64>();
        let squares = power(2);
        let cubes = power(3);
        let mean = 1.0 + (n * n - squares) / n;
        let variance = (squares * (squares + n * (n + 1.0)) - 2.0 * n * cubes - n * n * n)
            / (n * n * (n - 1.0));
        compare(self.num_runs as f64, mean, variance.max(0.0).sqrt())
    }
}

/// The probability that a batch of `batch` samples, drawn from `total` without replacement, has none of `size`
/// given samples.
fn absent(total: u64, size: u64, batch: u64) -> f64 {
    // Exchanging `size` and `batch` gives the same probability; the smaller one needs fewer factors.
    let few = size.min(batch);
    let many = size.max(batch);
    let factors = (0..few).map(|i| (total - many).saturating_sub(i) as f64 / (total - i) as f64);
    factors.product()
}
