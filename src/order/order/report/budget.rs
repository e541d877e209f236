//! Measures batches by a token budget: their padding, and the budget that they leave unused.

use serde::Serialize;

/// Statistics of the batches of an epoch.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct BudgetReport {
    /// The token budget: the most tokens of a batch.
    pub budget: u64,
    /// Batches of all ranks.
    pub batches: u64,
    /// Samples of the epoch.
    pub samples: u64,
    /// Tokens of these samples.
    pub tokens: u64,
    /// The tokens of the batches as padded tensors, in which each sample is as long as the longest.
    pub padded: u64,
    /// The fraction of the padded tensors that is padding, from 0 to 1.
    pub padding: f64,
    /// The same fraction without length buckets: in batches of the same mean number of samples, in the order's
    /// sequence.
    pub padding_in_sequence: f64,
    /// The mean fraction of the budget that a batch uses, by its cost.
    pub filled: f64,
    /// Batches of one sample that exceeds the budget.
    pub too_long: u64,
}

/// Observes the batches of an epoch, by the tokens of their samples.
#[derive(Debug, Default)]
pub struct BudgetObserver {
    /// The counts so far.
    report: BudgetReport,
    /// True if batches are padded tensors.
    is_padded: bool,
    /// The sum of the costs of all batches; a cost above the budget counts as the budget.
    cost: u64,
}

impl BudgetObserver {
    /// An observer of batches of at most `budget` tokens; `is_padded`: as padded tensors.
    pub fn new(budget: u64, is_padded: bool) -> BudgetObserver {
        let report = BudgetReport { budget, ..BudgetReport::default() };
        BudgetObserver { report, is_padded, cost: 0 }
    }

    /// Observes the next batch.
    pub fn see(&mut self, tokens: &[u32]) {
        let sum: u64 = tokens.iter().map(|&tokens| u64::from(tokens)).sum();
        let padded = padded_of(tokens);
        let cost = if self.is_padded { padded } else { sum };
        let report = &mut self.report;
        report.batches += 1;
        report.samples += tokens.len() as u64;
        report.tokens += sum;
        report.padded += padded;
        report.too_long += u64::from(cost > report.budget);
        self.cost += cost.min(report.budget);
    }

    /// The mean number of samples in a batch, rounded; at least 1.
    pub fn samples_of_batch(&self) -> usize {
        let BudgetReport { samples, batches, .. } = self.report;
        let mean = (samples + batches / 2) / batches.max(1);
        usize::try_from(mean.max(1)).unwrap_or(usize::MAX)
    }

    /// The report on the observed batches. `in_sequence`: the padded tokens of the same samples in batches of
    /// [`samples_of_batch`](Self::samples_of_batch), in the order's sequence.
    pub fn finish(self, in_sequence: u64) -> BudgetReport {
        let part = |of: u64, all: u64| if all == 0 { 0.0 } else { of as f64 / all as f64 };
        let BudgetReport { budget, batches, tokens, padded, .. } = self.report;
        BudgetReport {
            padding: part(padded - tokens, padded),
            padding_in_sequence: part(in_sequence.saturating_sub(tokens), in_sequence),
            filled: part(self.cost, budget.saturating_mul(batches)),
            ..self.report
        }
    }
}

/// The tokens of a batch as a padded tensor.
pub fn padded_of(tokens: &[u32]) -> u64 {
    u64::from(tokens.iter().copied().max().unwrap_or(0)) * tokens.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_what_a_tensor_has_beside_the_tokens() {
        let mut observer = BudgetObserver::new(20, true);
        observer.see(&[5, 3, 2, 5]);
        observer.see(&[10, 9]);
        observer.see(&[30]);
        assert_eq!(observer.samples_of_batch(), 2);
        let report = observer.finish(128);
        assert_eq!((report.batches, report.samples, report.too_long), (3, 7, 1));
        assert_eq!((report.tokens, report.padded), (64, 70));
        assert!((report.padding - 6.0 / 70.0).abs() < 1e-12);
        assert!((report.padding_in_sequence - 0.5).abs() < 1e-12);
        assert!((report.filled - 1.0).abs() < 1e-12);
        let nothing = BudgetObserver::new(20, false).finish(0);
        assert_eq!((nothing.padding, nothing.filled), (0.0, 0.0));
    }
}
