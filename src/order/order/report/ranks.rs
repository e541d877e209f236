//! Measures how classes are distributed over the ranks: each rank's share of the epoch, and its batches.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Compared;
use super::kinds::Kinds;

/// The distribution of classes over the ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankReport {
    /// The number of ranks.
    pub world_size: u32,
    /// The number of samples in a batch on one rank.
    pub batch: u64,
    /// Classes in the epoch.
    pub num_classes: u64,
    /// Distinct classes in a rank's share of the epoch, averaged over the ranks.
    pub classes_per_share: Option<Compared>,
    /// Chi-square of the classes in a share against those of the data set, averaged over the ranks.
    pub chi_square: Option<Compared>,
    /// Distinct classes in a rank's batch.
    pub classes_per_batch: Option<Compared>,
}

/// Observes the shares of all ranks, one rank after the other; keeps a few words per class.
#[derive(Debug, Default)]
pub struct RankObserver {
    world_size: u32,
    /// The number of samples in a batch on one rank.
    batch: u64,
    /// Samples so far, of all ranks.
    samples: u64,
    /// Samples so far of the rank's current batch.
    in_batch: u64,
    /// Whole batches so far, of all ranks.
    num_batches: u64,
    /// Numbers of the classes, in the order in which they are met.
    class_numbers: BTreeMap<i64, usize>,
    /// The classes; each rank's share counts as a batch.
    shares: Kinds,
    /// The classes in the batches of ranks.
    batches: Kinds,
}

impl RankObserver {
    /// An observer of an epoch that `world_size` ranks read in global batches of `batch` samples.
    pub fn new(world_size: u32, batch: u64) -> RankObserver {
        let batch = (batch / u64::from(world_size.max(1))).max(1);
        RankObserver { world_size, batch, ..RankObserver::default() }
    }

    /// Observes the class of the rank's next sample.
    pub fn see(&mut self, label: Option<i64>) {
        self.samples += 1;
        let Some(label) = label else { return };
        let number = self.class_numbers.len();
        let number = *self.class_numbers.entry(label).or_insert(number);
        self.shares.see(number);
        self.batches.see(number);
        self.in_batch += 1;
        if self.in_batch == self.batch {
            self.batches.end_batch();
            (self.in_batch, self.num_batches) = (0, self.num_batches + 1);
        }
    }

    /// Ends the rank's share; the next sample belongs to the next rank.
    pub fn end_rank(&mut self) {
        self.shares.end_batch();
        self.batches.drop_batch();
        self.in_batch = 0;
    }

    /// The statistics; `None` for a single rank, without samples, or if a sample has no class.
    pub fn finish(self) -> Option<RankReport> {
        if self.world_size < 2 || self.samples == 0 || self.shares.samples() != self.samples {
            return None;
        }
        let ranks = u64::from(self.world_size);
        // Shares differ by one sample if the epoch is not a multiple of the world size.
        let share = (self.samples / ranks).max(1);
        Some(RankReport {
            world_size: self.world_size,
            batch: self.batch,
            num_classes: self.class_numbers.len() as u64,
            classes_per_share: self.shares.per_batch(share, ranks),
            chi_square: self.shares.chi_square(share, ranks),
            classes_per_batch: self.batches.per_batch(self.batch, self.num_batches),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::permutation::{Key, Permutation};

    const NUM: u64 = 8000;

    /// 4 classes, 4 ranks, global batches of 64; `class_of` gives the class of the n-th sample of a rank.
    fn report_of(class_of: impl Fn(u64, u64) -> u64) -> RankReport {
        let mut observer = RankObserver::new(4, 64);
        for rank in 0..4 {
            (0..NUM / 4).for_each(|n| observer.see(Some(class_of(rank, n) as i64)));
            observer.end_rank();
        }
        observer.finish().unwrap()
    }

    #[test]
    fn ranks_that_each_see_one_class_are_found() {
        let pure = report_of(|rank, _| rank);
        assert_eq!((pure.num_classes, pure.batch), (4, 16));
        for row in [pure.classes_per_share, pure.classes_per_batch, pure.chi_square] {
            assert!(row.unwrap().deviations.abs() > 50.0, "{pure:?}");
        }
        assert_eq!(pure.classes_per_share.unwrap().found, 1.0);
    }

    #[test]
    fn ranks_of_a_fair_shuffle_are_as_random_as_chance() {
        let seeds = 100;
        let mut squares = 0.0;
        for seed in 0..seeds {
            let permutation = Permutation::new(NUM, Key::new(seed));
            let fair = report_of(|rank, n| permutation.forward(n * 4 + rank) % 4);
            assert_eq!(fair.classes_per_share.unwrap().found, 4.0);
            squares += fair.chi_square.unwrap().deviations.powi(2);
            assert!(
                fair.classes_per_batch.unwrap().deviations.abs() < 4.0,
                "seed {seed}: {fair:?}"
            );
        }
        let spread = (squares / seeds as f64).sqrt();
        assert!((0.6..1.4).contains(&spread), "spread {spread:.2}");
    }

    #[test]
    fn one_rank_and_samples_without_classes_have_no_report() {
        let mut one = RankObserver::new(1, 4);
        (0..8).for_each(|n| one.see(Some(n)));
        one.end_rank();
        let mut none = RankObserver::new(2, 4);
        none.see(None);
        none.end_rank();
        assert_eq!((one.finish(), none.finish()), (None, None));
    }
}
