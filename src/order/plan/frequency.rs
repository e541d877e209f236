//! Access frequencies: how often a rank reads each sample over all epochs.

use super::Accesses;
use dlfs_base::units::SampleId;

/// Access frequencies of one rank: one count per sample, 2 bytes each.
///
/// Counts are small numbers around E / N with a binomial distribution (E epochs, N ranks). Its variance makes a
/// plan better than chance. Counts saturate at 65,535.
#[derive(Debug, Clone, Default)]
pub struct Frequencies {
    counts: Vec<u16>,
}

impl Frequencies {
    /// Counts of zero for all ids below `num_samples`.
    pub fn new(num_samples: usize) -> Frequencies {
        Frequencies { counts: vec![0; num_samples] }
    }

    /// Counts the accesses of `rank`; clears earlier counts. Costs one walk.
    ///
    /// # Panics
    /// If the access string contains a sample that does not exist.
    pub fn count(&mut self, accesses: &(impl Accesses + ?Sized), rank: u32) {
        self.counts.fill(0);
        let counts = &mut self.counts;
        accesses.walk(rank, &mut |ids| {
            for id in ids {
                let count = &mut counts[id.0 as usize];
                *count = count.saturating_add(1);
            }
        });
    }

    /// The number of times that `sample` is read.
    pub fn of(&self, sample: SampleId) -> u16 {
        self.counts[sample.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::order::{OrderKind, OrderSpec, Tail};
    use crate::plan::TrainingRun;
    use crate::plan::access::tests::{GLOBAL, Samples};

    /// A fraction of integers, so that a threshold is rounded alike on all machines.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Ratio {
        /// The numerator.
        numerator: u32,
        /// The denominator, not 0.
        denominator: u32,
    }

    /// The expected number of `samples` that a rank reads strictly more than (1 + `excess`) *
    /// `epochs` / `ranks` times, if each epoch gives each sample to one of `ranks` at random.
    ///
    /// The thesis prints ceil((1 + d) E / N) as the lower limit of the sum, which also counts samples read exactly
    /// that often. Its example and its text count only samples read more often. Costs `epochs` steps. `ranks` and
    /// the denominator are not 0.
    fn expected_readers_above(samples: u64, epochs: u32, ranks: u32, excess: Ratio) -> f64 {
        let n = u64::from(ranks);
        let d = u64::from(excess.denominator);
        let limit = u128::from(d + u64::from(excess.numerator)) * u128::from(epochs);
        let least = (limit / u128::from(n * d)) as u64 + 1;
        if ranks == 1 {
            return if u64::from(epochs) >= least { samples as f64 } else { 0.0 };
        }
        let p = 1.0 / f64::from(ranks);
        // Terms as logarithms: C(1000, 500) alone exceeds a double.
        let mut ln_term = f64::from(epochs) * (-p).ln_1p();
        let mut sum = if least == 0 { ln_term.exp() } else { 0.0 };
        for k in 1..=epochs {
            let step = f64::from(epochs - k + 1) / f64::from(k);
            ln_term += (step * p / (1.0 - p)).ln();
            if u64::from(k) >= least {
                sum += ln_term.exp();
            }
        }
        samples as f64 * sum
    }

    const EIGHT_TENTHS: Ratio = Ratio { numerator: 8, denominator: 10 };
    const ONE_TENTH: Ratio = Ratio { numerator: 1, denominator: 10 };

    #[test]
    fn sixteen_nodes_read_31_635_images_of_imagenet_more_than_ten_times_in_90_epochs() {
        let expected = expected_readers_above(1_281_167, 90, 16, EIGHT_TENTHS);
        assert_eq!(expected.round(), 31_635.0, "the value printed in SC'21, section 3.1");
    }

    #[test]
    fn four_nodes_read_323_of_10_000_samples_more_than_275_times_in_1_000_epochs() {
        let expected = expected_readers_above(10_000, 1_000, 4, ONE_TENTH);
        assert_eq!(expected.round(), 323.0, "the value printed in the thesis, section 3.2.1");
        // Samples read exactly 275 times do not count; with them it would be 378.
        let just_below = Ratio { numerator: 99, denominator: 1_000 };
        assert_eq!(expected_readers_above(10_000, 1_000, 4, just_below).round(), 378.0);
    }

    #[test]
    fn the_order_gives_ranks_the_frequencies_that_chance_has() {
        let samples = Samples(1_281_167);
        let run = TrainingRun::new(&samples, GLOBAL, 0..90, 16, Tail::Keep).unwrap();
        let mut frequencies = Frequencies::new(1_281_167);
        frequencies.count(&run, 5);
        let above = (0..1_281_167).filter(|&id| frequencies.of(SampleId(id)) > 10).count() as f64;
        let expected = expected_readers_above(1_281_167, 90, 16, EIGHT_TENTHS);
        // The authors' simulation gave 31,863; a standard deviation is 176.
        assert!((above - expected).abs() < 6.0 * 176.0, "{above} samples, {expected} expected");
    }

    /// For each sample, the number of times that each rank reads it.
    fn by_sample(samples: u64, epochs: u64, ranks: u32, order: OrderSpec) -> Vec<Vec<u64>> {
        let population = Samples(samples);
        let run = TrainingRun::new(&population, order, 0..epochs, ranks, Tail::Keep).unwrap();
        let mut frequencies = Frequencies::new(samples as usize);
        let mut by_sample = vec![Vec::new(); samples as usize];
        for rank in 0..ranks {
            frequencies.count(&run, rank);
            let counts = (0..samples).map(|id| u64::from(frequencies.of(SampleId(id))));
            by_sample.iter_mut().zip(counts).for_each(|(ranks, count)| ranks.push(count));
        }
        by_sample
    }

    /// Pairs the reads of each rank with those of all other ranks.
    fn each_and_others(counts: &[u64]) -> impl Iterator<Item = (u64, Vec<u64>)> + '_ {
        (0..counts.len())
            .map(|rank| (counts[rank], [&counts[..rank], &counts[rank + 1..]].concat()))
    }

    // If a rank reads x = (1 + d) E / N times, the (N - 1 - d) / (N - 1) * E / N of lemma 1 is (E - x) / (N - 1):
    // the mean over the other ranks. Lemma 2 has -d for d.
    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn lemma_1_a_rank_that_reads_a_sample_often_leaves_another_that_reads_it_seldom(
            samples in 1_u64..300, epochs in 1_u64..60, ranks in 2_u32..9, seed: u64,
            grouped: bool,
        ) {
            let kind =
                if grouped { OrderKind::Grouped { lanes: 2, group: 2 } } else { OrderKind::Global };
            for counts in by_sample(samples, epochs, ranks, OrderSpec { kind, seed }) {
                for (often, others) in each_and_others(&counts) {
                    let at_most = (epochs - often).div_ceil(u64::from(ranks) - 1);
                    prop_assert!(others.iter().any(|&count| count <= at_most), "{:?}", counts);
                }
            }
        }

        #[test]
        fn lemma_2_a_rank_that_reads_a_sample_seldom_leaves_another_that_reads_it_often(
            samples in 1_u64..300, epochs in 1_u64..60, ranks in 2_u32..9, seed: u64,
        ) {
            let order = OrderSpec { kind: OrderKind::Global, seed };
            for counts in by_sample(samples, epochs, ranks, order) {
                for (seldom, others) in each_and_others(&counts) {
                    let at_least = (epochs - seldom) / (u64::from(ranks) - 1);
                    prop_assert!(others.iter().any(|&count| count >= at_least), "{:?}", counts);
                }
            }
        }
    }
}
