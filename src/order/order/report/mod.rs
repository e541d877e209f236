//! Measures how random an order is: compares statistics of an epoch with those of a uniformly random permutation.
//!
//! Sequences of equal classes, batches from few chunks, and samples that stay near their position in the source
//! affect training. For a uniformly random permutation, each of these statistics has a known mean and standard
//! deviation. An [`Observer`] sees the samples of one epoch in their order and compares. It keeps a few words per
//! chunk and class (`kinds.rs`), and nothing per sample.
//!
//! Batches here are global batches: the samples of one optimizer step. A [`RankObserver`] compares each rank's own
//! batches: each may have only one class even if the global batch is mixed.
//!
//! A [`MixtureObserver`] sees an epoch of a mixture: it counts the samples of each source, and measures how far
//! batches deviate from the sources' shares.
//!
//! A [`BudgetObserver`] sees batches by a token budget: it measures their padding, and the budget that they leave
//! unused.

mod budget;
mod kinds;
mod mixture;
mod ranks;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub use budget::{BudgetObserver, BudgetReport, padded_of};
use kinds::Kinds;
pub use mixture::{MixtureObserver, MixtureReport, SourceReport};
pub use ranks::{RankObserver, RankReport};

/// A sample of the sequence: its rank, chunk and class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// The rank among the live samples, in the order of the source.
    pub rank: u64,
    /// The chunk that has the sample.
    pub chunk: u32,
    /// The class, if the sample has one.
    pub label: Option<i64>,
}

/// A statistic of an order, and of a uniformly random permutation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Compared {
    /// The value found in the order.
    pub found: f64,
    /// The mean over uniformly random permutations.
    pub chance: f64,
    /// Difference of the two, in standard deviations of a random permutation: within 3, the order is as random as
    /// chance.
    pub deviations: f64,
}

/// The statistics of an epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShuffleReport {
    /// Samples of the sequence.
    pub samples: u64,
    /// Samples of a batch.
    pub batch: u64,
    /// Whole batches. The statistics of batches ignore the remaining samples, and are `None` if there are no whole
    /// batches.
    pub batches: u64,
    /// The mean distance between a sample's position and its rank in the source, divided by the number of samples.
    pub displacement: Compared,
    /// The correlation of the ranks of neighbours in the sequence: 1 in the order of the source.
    pub serial_correlation: Compared,
    /// Distinct chunks in a batch.
    pub chunks_per_batch: Option<Compared>,
    /// Runs of samples of one chunk.
    pub chunk_runs: Compared,
    /// Statistics of classes, if every sample has a class.
    pub classes: Option<ClassReport>,
    /// Statistics of each rank, if there are several and every sample has a class. [`Observer::finish`] leaves this to
    /// its caller.
    pub ranks: Option<RankReport>,
}

/// The distribution of classes over the sequence and its batches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassReport {
    /// Classes in the sequence.
    pub num_classes: u64,
    /// Distinct classes in a batch.
    pub classes_per_batch: Option<Compared>,
    /// Chi-square of the classes in a batch against their shares of the data set, averaged over the batches. Also
    /// `None` if there is only one class, or if one batch has all samples.
    pub chi_square: Option<Compared>,
    /// Runs of samples of one class.
    pub class_runs: Compared,
    /// The longest run, in samples.
    pub longest_run: u64,
}

/// Observes the samples of an epoch in their order.
#[derive(Debug, Default)]
pub struct Observer {
    /// Samples of a batch.
    batch: u64,
    /// Samples so far.
    samples: u64,
    /// The sum of |rank - position|.
    displacement: u128,
    /// The sum of rank * next rank. With the sum of squares, it gives the serial correlation.
    neighbour_products: u128,
    /// The first and the last rank of the sequence: the two sums of the serial correlation each omit one of them.
    first_rank: u64,
    last_rank: u64,
    chunks: Kinds,
    classes: Kinds,
    /// Numbers of the classes, in the order in which they are met.
    class_numbers: BTreeMap<i64, usize>,
}

impl Observer {
    /// An observer of an epoch in batches of `batch` samples; 0 counts as 1.
    pub fn new(batch: u64) -> Observer {
        Observer { batch: batch.max(1), ..Observer::default() }
    }

    /// Observes the next sample of the sequence.
    pub fn see(&mut self, sample: Observed) {
        self.displacement += u128::from(sample.rank.abs_diff(self.samples));
        if self.samples == 0 {
            self.first_rank = sample.rank;
        } else {
            self.neighbour_products += u128::from(self.last_rank) * u128::from(sample.rank);
        }
        self.last_rank = sample.rank;
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

    /// The statistics. In an epoch with fewer than two samples, they equal those of chance.
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
            ranks: None,
        }
    }

    /// Spearman's footrule: for a random permutation of n, its mean is (n^2 - 1) / 3 and its variance is
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

    /// Pearson's correlation of the sequence with itself, shifted by one; the ranks are 0..n in some order.
    fn serial_correlation(&self) -> Compared {
        let n = self.samples as f64;
        if self.samples < 3 {
            return compare(0.0, 0.0, 1.0);
        }
        let mean = (n - 1.0) / 2.0;
        let square_sum = n * (n * n - 1.0) / 12.0;
        // Sum of (x - mean)(y - mean) over neighbours = products - mean * (sums without one end each) + ...
        let all = n * mean;
        let first = self.first_rank as f64;
        let last = self.last_rank as f64;
        let covariance = self.neighbour_products as f64 - mean * ((all - last) + (all - first))
            + (n - 1.0) * mean * mean;
        compare(covariance / square_sum, -1.0 / n, 1.0 / n.sqrt())
    }
}

/// Compares a statistic with its mean and standard deviation over random permutations.
fn compare(found: f64, chance: f64, deviation: f64) -> Compared {
    let distance = found - chance;
    // A statistic that is equal for all orders has no deviation; rounding errors must not make it look unlikely.
    let fixed = distance.abs() <= 1e-9 * chance.abs().max(1.0);
    let deviations = if fixed { 0.0 } else { (distance / deviation).clamp(-1e9, 1e9) };
    Compared { found, chance, deviations }
}

/// One statistic: a row of the printed table.
struct Row {
    name: String,
    compared: Option<Compared>,
    /// True for a statistic of classes, false for one of positions or chunks.
    is_of_classes: bool,
}

impl ShuffleReport {
    fn rows(&self) -> Vec<Row> {
        let positional =
            |name: &str, compared| Row { name: name.into(), compared, is_of_classes: false };
        let class = |name: String, compared| Row { name, compared, is_of_classes: true };
        let mut rows = vec![
            positional("displacement / samples", Some(self.displacement)),
            positional("serial correlation", Some(self.serial_correlation)),
            positional("chunks in a batch", self.chunks_per_batch),
            positional("runs of one chunk", Some(self.chunk_runs)),
        ];
        if let Some(classes) = &self.classes {
            let name = format!("classes in a batch, of {}", classes.num_classes);
            rows.push(class(name, classes.classes_per_batch));
            rows.push(class("chi-square of a batch's classes".into(), classes.chi_square));
            rows.push(class("runs of one class".into(), Some(classes.class_runs)));
        }
        if let Some(ranks) = &self.ranks {
            let name = format!("classes that a rank sees, of {}", ranks.num_classes);
            rows.push(class(name, ranks.classes_per_share));
            rows.push(class("chi-square of a rank's classes".into(), ranks.chi_square));
            rows.push(class("classes in a rank's batch".into(), ranks.classes_per_batch));
        }
        rows
    }

    /// The verdict: whether all statistics are within chance, and if not, which row deviates most.
    pub fn verdict(&self) -> String {
        let rows = self.rows();
        let worst = |of_classes: bool| {
            let unlike = rows.iter().filter_map(|row| {
                let deviations = row.compared?.deviations.abs();
                let is_unlike = row.is_of_classes == of_classes && deviations > AS_CHANCE;
                is_unlike.then_some((deviations, &row.name))
            });
            unlike.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
        };
        match (worst(true), worst(false)) {
            (Some(row), _) => format!("classes are not mixed as by chance ({row})"),
            (None, Some(row)) if self.classes.is_some() => {
                format!("classes are mixed as by chance, positions are not ({row})")
            }
            (None, Some(row)) => format!("positions are not mixed as by chance ({row})"),
            (None, None) => "mixed as by chance".to_owned(),
        }
    }
}

impl fmt::Display for ShuffleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} samples, {} whole batches of {}", self.samples, self.batches, self.batch)?;
        writeln!(f, "{:<34}{:>12}{:>12}{:>12}", "", "found", "chance", "deviations")?;
        for row in self.rows() {
            match row.compared {
                Some(compared) => write_row(f, &row.name, compared)?,
                None if self.batches == 0 => {
                    writeln!(f, "{:<34}{:>36}", row.name, "no whole batch")?
                }
                None => writeln!(f, "{:<34}{:>36}", row.name, "nothing to compare")?,
            }
        }
        if let Some(classes) = &self.classes {
            writeln!(f, "{:<34}{:>12}", "longest run of one class", classes.longest_run)?;
        }
        writeln!(f, "verdict: {}", self.verdict())
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, name: &str, row: Compared) -> fmt::Result {
    // If chance hardly varies, any difference is many deviations, and their number means little.
    let deviations = match row.deviations {
        many if many >= 1000.0 => "> 999".to_owned(),
        many if many <= -1000.0 => "< -999".to_owned(),
        few => format!("{few:.1}"),
    };
    writeln!(f, "{name:<34}{:>12.4}{:>12.4}{deviations:>12}", row.found, row.chance)
}

/// The most standard deviations at which a statistic counts as random.
const AS_CHANCE: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::permutation::{Key, Permutation};

    const N: u64 = 20_000;

    /// 20 classes in the order of the source, 100 samples in each chunk.
    fn report(batch: u64, sequence: impl Iterator<Item = u64>) -> ShuffleReport {
        let mut observer = Observer::new(batch);
        for rank in sequence {
            let chunk = (rank / 100) as u32;
            let label = Some((rank * 20 / N) as i64);
            observer.see(Observed { rank, chunk, label });
        }
        observer.finish()
    }

    fn statistics(report: &ShuffleReport) -> Vec<(&'static str, Compared)> {
        let classes = report.classes.as_ref().unwrap();
        vec![
            ("displacement", report.displacement),
            ("serial correlation", report.serial_correlation),
            ("chunks", report.chunks_per_batch.unwrap()),
            ("chunk runs", report.chunk_runs),
            ("classes", classes.classes_per_batch.unwrap()),
            ("chi-square", classes.chi_square.unwrap()),
            ("class runs", classes.class_runs),
        ]
    }

    #[test]
    fn fair_shuffles_are_found_to_be_as_random_as_chance_and_as_spread() {
        // If the formulas are right, the deviations of many random permutations have mean 0 and variance 1.
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
        let chunks = report.chunks_per_batch.unwrap();
        assert!(chunks.found < 2.0 && chunks.chance > 50.0);
        assert_eq!(report.chunk_runs.found, 200.0);
    }

    #[test]
    fn an_epoch_of_few_or_no_samples_gives_no_verdict() {
        for n in 0..3 {
            let report = report(4, 0..n);
            assert_eq!(report.chunks_per_batch, None, "there is no whole batch");
            assert!(report.to_string().contains("no whole batch"), "{report}");
            for compared in [report.displacement, report.chunk_runs] {
                assert!(
                    compared.deviations.abs() < 3.0 && compared.chance.is_finite(),
                    "{n}: {report:?}"
                );
            }
        }
    }

    #[test]
    fn a_batch_size_of_0_counts_as_1() {
        assert_eq!(report(0, 0..9), report(1, 0..9));
    }

    #[test]
    fn the_text_has_a_row_for_each_statistic() {
        let text = report(64, 0..N).to_string();
        assert!(text.starts_with("20000 samples, 312 whole batches of 64\n"));
        assert_eq!(text.lines().count(), 11);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn the_verdict_says_what_is_not_mixed() {
        let permutation = Permutation::new(N, Key::new(3));
        let fair = report(64, (0..N).map(|i| permutation.forward(i)));
        assert_eq!(fair.verdict(), "mixed as by chance", "{fair}");
        assert!(report(64, 0..N).verdict().starts_with("classes are not mixed as by chance ("));
        let mut observer = Observer::new(64);
        for rank in 0..N {
            observer.see(Observed { rank, chunk: (rank / 100) as u32, label: None });
        }
        let unlabelled = observer.finish().verdict();
        assert!(unlabelled.starts_with("positions are not mixed as by chance ("), "{unlabelled}");
    }

    #[test]
    fn samples_without_labels_have_no_class_statistics() {
        let mut observer = Observer::new(2);
        (0..4).for_each(|rank| observer.see(Observed { rank, chunk: 0, label: None }));
        assert_eq!(observer.finish().classes, None);
    }
}
