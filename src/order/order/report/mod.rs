//! Measures how random an order is: compares statistics of an epoch with those of a uniformly random permutation.
//!
//! Sequences of equal classes, batches from few chunks, and samples that stay near their position in the source
//! affect training. For a uniformly random permutation, each of these statistics has a known mean and standard
//! deviation. An [`Observer`] sees the samples of one epoch in their order and compares. It keeps a few words per
//! chunk and class, and nothing per sample.
//!
//! Batches here are global batches: the samples of one optimizer step. A [`RankReport`] has the statistics of each
//! rank's own batches: each may have only one class even if the global batch is mixed.
//!
//! A [`MixtureObserver`] sees an epoch of a mixture: it counts the samples of each source, and measures how far
//! batches deviate from the sources' shares.
//!
//! A [`BudgetObserver`] sees batches by a token budget: it measures their padding, and the budget that they leave
//! unused.

mod budget;
mod mixture;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub use budget::{BudgetObserver, BudgetReport, padded_of};
pub use mixture::{MixtureObserver, MixtureReport, SourceReport};

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
    /// Statistics of classes, if samples have classes.
    pub classes: Option<ClassReport>,
    /// Statistics of each rank, if there are several and samples have classes.
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

/// Counts of the kinds (chunks, or classes) of samples in a sequence and its batches.
#[derive(Debug, Default)]
struct Kinds {
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
    num_runs: u64,
    /// Samples of the current run, and of the longest one.
    run: u64,
    longest_run: u64,
}

impl Kinds {
    /// Counts the next sample of the sequence.
    fn see(&mut self, kind: usize) {
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
    fn end_batch(&mut self) {
        self.distinct += self.present.len() as u64;
        for kind in self.present.drain(..) {
            self.squares[kind] += u128::from(self.in_batch[kind]).pow(2);
            self.in_batch[kind] = 0;
        }
    }

    /// Discards the current batch, which is incomplete.
    fn drop_batch(&mut self) {
        self.present.drain(..).for_each(|kind| self.in_batch[kind] = 0);
    }

    /// The number of samples so far.
    fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Distinct kinds in a batch. A kind of n_k samples is absent from a batch of b with probability
    /// C(N - n_k, b) / C(N, b). The variance is that of the occupancy problem (kinds drawn independently), times
    /// (1 - b / N) for drawing without replacement.
    fn per_batch(&self, batch: u64, batches: u64) -> Option<Compared> {
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
    fn chi_square(&self, batch: u64, batches: u64) -> Option<Compared> {
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
    fn runs(&self) -> Compared {
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
    samples: u64,
    in_batch: u64,
    num_batches: u64,
    class_numbers: BTreeMap<i64, usize>,
    shares: Kinds,
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

    /// The statistics; `None` for a single rank, or if a sample has no class.
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
