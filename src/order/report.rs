//! How random an order is: what was observed of an epoch, beside what a fair shuffle would give.
//!
//! "Shuffled" is easily said. A run of equal classes, batches that draw from few chunks, or samples
//! that stay near their old places are what a network notices, and each of them has a known mean and
//! spread for a uniformly random permutation. An [`Observer`] watches the samples of one epoch go by
//! and puts the two side by side; it keeps a few words a chunk and a class, none a sample.
//!
//! Batches here are those of all ranks together: the samples of one optimizer step.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// A sample as it comes by: where it stood, and what it has in common with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Its rank among the live samples, in the source's order.
    pub rank: u64,
    /// The chunk it lies in.
    pub chunk: u32,
    /// Its class, where it has one.
    pub label: Option<i64>,
}

/// A statistic of an order, and the same of a fair shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Compared {
    /// What the order has.
    pub found: f64,
    /// What a uniformly random permutation has in the mean.
    pub chance: f64,
    /// Their distance, in standard deviations of a random permutation's: within 3 is as random as chance.
    pub deviations: f64,
}

/// What an epoch looked like.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShuffleReport {
    /// Samples that came by.
    pub samples: u64,
    /// Samples of a batch.
    pub batch: u64,
    /// Whole batches; what is left is in the statistics of neighbours alone.
    pub batches: u64,
    /// Mean distance between a sample's position and its rank in the source, over the number of samples.
    pub displacement: Compared,
    /// Correlation of the ranks of neighbours in the sequence: 1 in the source's order.
    pub serial_correlation: Compared,
    /// Different chunks that a batch draws from.
    pub chunks_per_batch: Compared,
    /// Stretches of the sequence that stay in one chunk.
    pub chunk_runs: Compared,
    /// The same by class, where samples have one.
    pub classes: Option<ClassReport>,
}

/// How classes are spread over the sequence and its batches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassReport {
    /// Classes that came by.
    pub num_classes: u64,
    /// Different classes in a batch.
    pub classes_per_batch: Compared,
    /// Chi-square of a batch's classes against their shares of the data set; the mean over the batches.
    pub chi_square: Compared,
    /// Stretches of the sequence that stay in one class.
    pub class_runs: Compared,
    /// The longest of them, in samples.
    pub longest_run: u64,
}

/// Watches an epoch's samples in their order.
#[derive(Debug)]
pub struct Observer {
    batch: u64,
    samples: u64,
    displacement: u128,
    /// Of rank * next rank; with the sum of squares it gives the serial correlation.
    neighbour_products: u128,
    ranks: Ends,
    chunks: Kinds,
    classes: Kinds,
    class_numbers: BTreeMap<i64, usize>,
}

/// The first and the last rank of the sequence: the correlation of neighbours leaves one out each.
#[derive(Debug, Default)]
struct Ends {
    first: u64,
    last: u64,
}

impl Observer {
    /// An observer of an epoch that is read in batches of `batch`, which is at least 1.
    pub fn new(batch: u64) -> Observer {
        assert!(batch > 0, "a batch has samples");
        Observer {
            batch,
            samples: 0,
            displacement: 0,
            neighbour_products: 0,
            ranks: Ends::default(),
            chunks: Kinds::default(),
            classes: Kinds::default(),
            class_numbers: BTreeMap::new(),
        }
    }

    /// The next sample of the sequence.
    pub fn see(&mut self, sample: Observed) {
        self.displacement += u128::from(sample.rank.abs_diff(self.samples));
        if self.samples == 0 {
            self.ranks.first = sample.rank;
        } else {
            self.neighbour_products += u128::from(self.ranks.last) * u128::from(sample.rank);
        }
        self.ranks.last = sample.rank;
        self.samples += 1;
        self.chunks.see(sample.chunk as usize);
        if let Some(label) = sample.label {
            let number = self.class_numbers.len();
            self.classes.see(*self.class_numbers.entry(label).or_insert(number));
        }
        if self.samples.is_multiple_of(self.batch) {
            self.chunks.end_batch();
            self.classes.end_batch();
        }
    }

    /// The statistics of what came by. Those of an epoch with fewer than two samples, or of no whole
    /// batch, are all as chance has them.
    pub fn finish(self) -> ShuffleReport {
        let batches = self.samples / self.batch;
        let classes =
            (self.classes.samples() == self.samples && self.samples > 0).then(|| ClassReport {
                num_classes: self.class_numbers.len() as u64,
                classes_per_batch: self.classes.per_batch(self.batch, batches),
                chi_square: self.classes.chi_square(self.batch, batches),
                class_runs: self.classes.runs(),
                longest_run: self.classes.longest_run,
            });
        ShuffleReport {
            samples: self.samples,
            batch: self.batch,
            batches,
            displacement: self.mean_displacement(),
            serial_correlation: self.serial_correlation(),
            chunks_per_batch: self.chunks.per_batch(self.batch, batches),
            chunk_runs: self.chunks.runs(),
            classes,
        }
    }

    /// Spearman's footrule: of a random permutation of n it has mean (n^2 - 1) / 3 and variance
    /// (n + 1)(2 n^2 + 7) / 45.
    fn mean_displacement(&self) -> Compared {
        let n = self.samples as f64;
        let scale = (n * n).max(1.0);
        let deviation = ((n + 1.0) * (2.0 * n * n + 7.0) / 45.0).sqrt();
        compare(
            self.displacement as f64 / scale,
            (n * n - 1.0).max(0.0) / 3.0 / scale,
            deviation / scale,
        )
    }

    /// Pearson's correlation of the sequence with itself, one step on; the ranks are 0..n in some order.
    fn serial_correlation(&self) -> Compared {
        let n = self.samples as f64;
        if self.samples < 3 {
            return compare(0.0, 0.0, 1.0);
        }
        let mean = (n - 1.0) / 2.0;
        let square_sum = n * (n * n - 1.0) / 12.0;
        // Sum of (x - mean)(y - mean) over neighbours = products - mean * (sums without one end each) + ...
        let all = n * mean;
        let (first, last) = (self.ranks.first as f64, self.ranks.last as f64);
        let covariance = self.neighbour_products as f64 - mean * ((all - last) + (all - first))
            + (n - 1.0) * mean * mean;
        compare(covariance / square_sum, -1.0 / n, 1.0 / n.sqrt())
    }
}

/// Samples of several kinds (chunks, or classes) going by in a sequence that is cut into batches.
#[derive(Debug, Default)]
struct Kinds {
    /// Of each kind: samples so far, in this batch, and the sum of squares of those of whole batches.
    counts: Vec<u64>,
    in_batch: Vec<u64>,
    squares: Vec<u64>,
    /// The kinds that this batch has.
    present: Vec<usize>,
    /// Different kinds of a batch, summed over the batches.
    distinct: u64,
    last: Option<usize>,
    num_runs: u64,
    run: u64,
    longest_run: u64,
}

impl Kinds {
    fn see(&mut self, kind: usize) {
        if kind >= self.counts.len() {
            for column in [&mut self.counts, &mut self.in_batch, &mut self.squares] {
                column.resize(kind + 1, 0);
            }
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

    fn end_batch(&mut self) {
        self.distinct += self.present.len() as u64;
        for kind in self.present.drain(..) {
            self.squares[kind] += self.in_batch[kind] * self.in_batch[kind];
            self.in_batch[kind] = 0;
        }
    }

    fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Different kinds of a batch. A kind of n_k samples is absent from a batch of b with probability
    /// C(N - n_k, b) / C(N, b); the variance is the occupancy problem's (kinds drawn independently),
    /// times 1 - b / N for drawing without putting back.
    fn per_batch(&self, batch: u64, batches: u64) -> Compared {
        if batches == 0 {
            return compare(0.0, 0.0, 1.0);
        }
        let total = self.samples();
        let (mut mean, mut variance, mut moved) = (0.0, 0.0, 0.0);
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
        compare(self.distinct as f64 / batches as f64, mean, deviation)
    }

    /// Chi-square of a batch's kinds, the mean over batches: (k - 1)(N - b) / (N - 1) for batches drawn
    /// without putting back.
    fn chi_square(&self, batch: u64, batches: u64) -> Compared {
        let (total, size) = (self.samples() as f64, batch as f64);
        let kinds = self.counts.iter().filter(|&&n| n > 0).count() as f64;
        if batches == 0 || kinds < 2.0 || total <= size {
            return compare(0.0, 0.0, 1.0);
        }
        let (mut found, mut inverse_shares) = (-(batches as f64) * size, 0.0);
        for (&n, &squares) in self.counts.iter().zip(&self.squares).filter(|&(&n, _)| n > 0) {
            found += squares as f64 * total / (size * n as f64);
            inverse_shares += total / n as f64;
        }
        let chance = (kinds - 1.0) * (total - size) / (total - 1.0);
        let rare = (inverse_shares - kinds * kinds - 2.0 * kinds + 2.0) / size;
        let variance = (2.0 * (kinds - 1.0) + rare) * (1.0 - size / total).powi(2);
        compare(found / batches as f64, chance, (variance.max(0.0) / batches as f64).sqrt())
    }

    /// Runs of equal kinds; mean and variance after Barton and David, for k kinds of n_1..n_k samples.
    fn runs(&self) -> Compared {
        let n = self.samples() as f64;
        if n < 2.0 {
            return compare(self.num_runs as f64, n, 0.0);
        }
        let power = |p| self.counts.iter().map(|&count| (count as f64).powi(p)).sum::<f64>();
        let (squares, cubes) = (power(2), power(3));
        let mean = 1.0 + (n * n - squares) / n;
        let variance = (squares * (squares + n * (n + 1.0)) - 2.0 * n * cubes - n * n * n)
            / (n * n * (n - 1.0));
        compare(self.num_runs as f64, mean, variance.max(0.0).sqrt())
    }
}

/// Probability that none of `size` samples is among `batch` drawn from `total` without putting back.
fn absent(total: u64, size: u64, batch: u64) -> f64 {
    // Drawing the smaller side first is the same and has fewer factors.
    let (few, many) = (size.min(batch), size.max(batch));
    let factors = (0..few).map(|i| (total - many).saturating_sub(i) as f64 / (total - i) as f64);
    factors.product()
}

fn compare(found: f64, chance: f64, deviation: f64) -> Compared {
    let distance = found - chance;
    // A statistic that no order can change has no spread; rounding must not make it look unlikely.
    let fixed = distance.abs() <= 1e-9 * chance.abs().max(1.0);
    let deviations = if fixed { 0.0 } else { (distance / deviation).clamp(-1e9, 1e9) };
    Compared { found, chance, deviations }
}

impl fmt::Display for ShuffleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} samples, {} whole batches of {}", self.samples, self.batches, self.batch)?;
        writeln!(f, "{:<34}{:>12}{:>12}{:>12}", "", "found", "chance", "deviations")?;
        row(f, "displacement / samples", self.displacement)?;
        row(f, "serial correlation", self.serial_correlation)?;
        row(f, "chunks in a batch", self.chunks_per_batch)?;
        row(f, "runs of one chunk", self.chunk_runs)?;
        if let Some(classes) = &self.classes {
            row(
                f,
                &format!("classes in a batch, of {}", classes.num_classes),
                classes.classes_per_batch,
            )?;
            row(f, "chi-square of a batch's classes", classes.chi_square)?;
            row(f, "runs of one class", classes.class_runs)?;
            writeln!(f, "{:<34}{:>12}", "longest run of one class", classes.longest_run)?;
        }
        Ok(())
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, row: Compared) -> fmt::Result {
    // Where chance hardly varies, any difference is many deviations: how many says nothing more.
    let deviations = match row.deviations {
        many if many >= 1000.0 => "> 999".to_owned(),
        many if many <= -1000.0 => "< -999".to_owned(),
        few => format!("{few:.1}"),
    };
    writeln!(f, "{name:<34}{:>12.4}{:>12.4}{deviations:>12}", row.found, row.chance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permutation::{Key, Permutation};

    const N: u64 = 20_000;

    /// 20 classes in the source's order, 100 samples a chunk.
    fn report(batch: u64, sequence: impl Iterator<Item = u64>) -> ShuffleReport {
        let mut observer = Observer::new(batch);
        for rank in sequence {
            let (chunk, label) = ((rank / 100) as u32, Some((rank * 20 / N) as i64));
            observer.see(Observed { rank, chunk, label });
        }
        observer.finish()
    }

    fn statistics(report: &ShuffleReport) -> Vec<(&'static str, Compared)> {
        let classes = report.classes.as_ref().unwrap();
        vec![
            ("displacement", report.displacement),
            ("serial correlation", report.serial_correlation),
            ("chunks", report.chunks_per_batch),
            ("chunk runs", report.chunk_runs),
            ("classes", classes.classes_per_batch),
            ("chi-square", classes.chi_square),
            ("class runs", classes.class_runs),
        ]
    }

    #[test]
    fn fair_shuffles_are_found_to_be_as_random_as_chance_and_as_spread() {
        // The deviations of many fair shuffles have mean 0 and spread 1, if chance is what we say it is.
        let mut sums = BTreeMap::<&str, (f64, f64)>::new();
        let seeds = 200;
        for seed in 0..seeds {
            let permutation = Permutation::new(N, Key::new(seed));
            let report = report(64, (0..N).map(|i| permutation.forward(i)));
            for (name, compared) in statistics(&report) {
                let sum = sums.entry(name).or_default();
                sum.0 += compared.deviations;
                sum.1 += compared.deviations * compared.deviations;
            }
        }
        for (name, (sum, squares)) in sums {
            let mean = sum / seeds as f64;
            let spread = (squares / seeds as f64).sqrt();
            assert!(mean.abs() < 0.35, "{name}: mean {mean:.2} deviations");
            assert!((0.75..1.3).contains(&spread), "{name}: spread {spread:.2}");
        }
    }

    #[test]
    fn the_order_of_the_source_is_found_to_be_no_shuffle() {
        let report = report(64, 0..N);
        assert_eq!(report.displacement.found, 0.0);
        assert!(report.serial_correlation.found > 0.999);
        let classes = report.classes.as_ref().unwrap();
        assert_eq!((classes.class_runs.found, classes.longest_run), (20.0, 1000));
        for (name, compared) in statistics(&report) {
            assert!(compared.deviations.abs() > 50.0, "{name}: {compared:?}");
        }
    }

    #[test]
    fn whole_chunks_in_random_order_are_found_by_batches_and_runs() {
        let permutation = Permutation::new(N / 100, Key::new(1));
        let report = report(64, (0..N).map(|i| permutation.forward(i / 100) * 100 + i % 100));
        assert!(report.displacement.deviations.abs() < 30.0, "far from their places all the same");
        assert!(report.chunks_per_batch.found < 2.0 && report.chunks_per_batch.chance > 50.0);
        assert_eq!(report.chunk_runs.found, 200.0);
    }

    #[test]
    fn an_epoch_of_no_or_few_samples_is_no_news() {
        for n in 0..3 {
            let report = report(4, 0..n);
            for compared in [report.displacement, report.chunks_per_batch, report.chunk_runs] {
                assert!(
                    compared.deviations.abs() < 3.0 && compared.chance.is_finite(),
                    "{n}: {report:?}"
                );
            }
        }
    }

    #[test]
    fn the_text_has_a_row_for_each_statistic() {
        let text = report(64, 0..N).to_string();
        assert!(text.starts_with("20000 samples, 312 whole batches of 64\n"));
        assert_eq!(text.lines().count(), 10);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn samples_without_labels_have_no_class_statistics() {
        let mut observer = Observer::new(2);
        (0..4).for_each(|rank| observer.see(Observed { rank, chunk: 0, label: None }));
        assert_eq!(observer.finish().classes, None);
    }
}
