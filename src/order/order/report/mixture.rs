//! Measures an epoch of a mixture: the samples of each source, and how far batches deviate from the sources'
//! shares.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

/// An epoch of a mixture.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MixtureReport {
    /// Samples in the epoch.
    pub samples: u64,
    /// Samples in a global batch.
    pub batch: u64,
    /// Whole batches; only these count for the statistics of batches.
    pub batches: u64,
    /// Batches that have a sample more than once.
    pub batches_with_repeats: u64,
    /// The sources, in the order of the mixture.
    pub sources: Vec<SourceReport>,
}

/// A source in an epoch of a mixture.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SourceReport {
    /// The name of the source.
    pub name: String,
    /// The number of samples that the source has.
    pub samples: u64,
    /// Samples drawn from the source in the epoch.
    pub drawn: u64,
    /// Samples of the source that the mixture prescribes for the epoch.
    pub expected: u64,
    /// Distinct samples among the drawn ones.
    pub distinct: u64,
    /// The source's mean share of a whole batch, in samples.
    pub share: f64,
    /// The largest deviation of a whole batch from the source's share, in samples.
    pub largest_deviation: f64,
    /// The standard deviation of whole batches from the source's share, in samples.
    pub spread: f64,
    /// The `spread` to expect of a random permutation of the epoch.
    pub chance: f64,
}

/// Observes the samples of an epoch of a mixture in their order.
#[derive(Debug, Default)]
pub struct MixtureObserver {
    /// The counts so far. Until the end, `share` of a source is a sum over batches, and `spread` a sum of squares.
    report: MixtureReport,
    /// By source: the samples that were observed.
    seen: Vec<Seen>,
    /// The samples of the current batch.
    in_batch: BTreeSet<(u32, u64)>,
    /// True if the current batch has a sample more than once.
    has_repeat: bool,
}

/// The samples of a source that were observed.
#[derive(Debug, Default)]
struct Seen {
    /// One bit per id, set if the sample was drawn.
    ids: Vec<u64>,
    /// The number of samples in the current batch.
    in_batch: u64,
}

impl MixtureObserver {
    /// An observer of an epoch in batches of `batch` samples (0 counts as 1). `sources`: the name of each
    /// source, its number of samples, and the number that the mixture prescribes.
    pub fn new(
        batch: u64,
        sources: impl IntoIterator<Item = (String, u64, u64)>,
    ) -> MixtureObserver {
        let source = |(name, samples, expected)| SourceReport {
            name,
            samples,
            expected,
            ..SourceReport::default()
        };
        let sources: Vec<SourceReport> = sources.into_iter().map(source).collect();
        MixtureObserver {
            seen: sources.iter().map(|_| Seen::default()).collect(),
            report: MixtureReport { batch: batch.max(1), sources, ..MixtureReport::default() },
            ..MixtureObserver::default()
        }
    }

    /// Observes the next sample of the sequence, from the source with this number. When a batch ends, `shares` is
    /// called with the number of samples of the epoch before this batch, and returns the number of samples that
    /// each source should have in the batch.
    ///
    /// # Panics
    /// If the source does not exist.
    pub fn see(&mut self, source: u32, id: u64, shares: impl FnOnce(u64) -> Vec<f64>) {
        let MixtureReport { samples, batch, sources, .. } = &mut self.report;
        let counts = &mut sources[source as usize];
        let seen = &mut self.seen[source as usize];
        counts.drawn += 1;
        seen.in_batch += 1;
        let word = (id / 64) as usize;
        let bit = 1 << (id % 64);
        if seen.ids.len() <= word {
            seen.ids.resize(word + 1, 0);
        }
        counts.distinct += u64::from(seen.ids[word] & bit == 0);
        seen.ids[word] |= bit;
        self.has_repeat |= !self.in_batch.insert((source, id));
        *samples += 1;
        if samples.is_multiple_of(*batch) {
            let shares = shares(*samples - *batch);
            self.end_batch(&shares);
        }
    }

    /// Adds the current batch to the statistics; `shares` has the samples that each source should have.
    fn end_batch(&mut self, shares: &[f64]) {
        let report = &mut self.report;
        for ((counts, seen), share) in report.sources.iter_mut().zip(&mut self.seen).zip(shares) {
            let apart = std::mem::take(&mut seen.in_batch) as f64 - share;
            counts.share += share;
            counts.largest_deviation = counts.largest_deviation.max(apart.abs());
            counts.spread += apart * apart;
        }
        report.batches += 1;
        report.batches_with_repeats += u64::from(std::mem::take(&mut self.has_repeat));
        self.in_batch.clear();
    }

    /// The report on the observed samples.
    pub fn finish(mut self) -> MixtureReport {
        let MixtureReport { samples, batch, batches, sources, .. } = &mut self.report;
        let count = (*batches).max(1) as f64;
        for source in sources {
            source.share /= count;
            source.spread = (source.spread / count).sqrt();
            source.chance = chance(*samples, *batch, source.drawn);
        }
        self.report
    }
}

/// The standard deviation of the number of samples in a random batch that belong to `drawn` of `samples`:
/// hypergeometric.
fn chance(samples: u64, batch: u64, drawn: u64) -> f64 {
    if samples < 2 || batch > samples {
        return 0.0;
    }
    let samples = samples as f64;
    let batch = batch as f64;
    let part = drawn as f64 / samples;
    (batch * part * (1.0 - part) * (samples - batch) / (samples - 1.0)).sqrt()
}

impl MixtureReport {
    /// The verdict: whether counts are exact, and how far batches deviate from their shares.
    pub fn verdict(&self) -> String {
        if let Some(wrong) = self.sources.iter().find(|source| source.drawn != source.expected) {
            let SourceReport { name, drawn, expected, .. } = wrong;
            return format!("the epoch has {drawn} samples of {name}, not {expected}");
        }
        let largest = self.sources.iter().map(|source| source.largest_deviation);
        match (self.batches, largest.fold(0.0, f64::max)) {
            (0, _) => "counts are exact; there is no whole batch".to_owned(),
            (_, largest) => {
                format!("counts are exact; batches are within {largest:.2} samples of their shares")
            }
        }
    }
}

impl fmt::Display for MixtureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} samples, {} whole batches of {}", self.samples, self.batches, self.batch)?;
        writeln!(
            f,
            "{:>12}{:>12}{:>12}{:>12}{:>10}{:>10}{:>10}  source",
            "drawn", "distinct", "of", "a batch", "farthest", "spread", "chance"
        )?;
        for source in &self.sources {
            writeln!(
                f,
                "{:>12}{:>12}{:>12}{:>12.2}{:>10.2}{:>10.2}{:>10.2}  {}",
                source.drawn,
                source.distinct,
                source.samples,
                source.share,
                source.largest_deviation,
                source.spread,
                source.chance,
                source.name
            )?;
        }
        if self.batches_with_repeats > 0 {
            let repeats = self.batches_with_repeats;
            let batches = self.batches;
            writeln!(f, "{repeats} of {batches} batches have a sample more than once")?;
        }
        writeln!(f, "verdict: {}", self.verdict())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::permutation::{Key, Permutation};

    fn observed(batch: u64, sequence: &[(u32, u64)], shares: [f64; 2]) -> MixtureReport {
        let expected = |of: u32| sequence.iter().filter(|one| one.0 == of).count() as u64;
        let sources = [("a".into(), 100, expected(0)), ("b".into(), 3, expected(1))];
        let mut observer = MixtureObserver::new(batch, sources);
        for &(source, id) in sequence {
            observer.see(source, id, |_| shares.to_vec());
        }
        observer.finish()
    }

    #[test]
    fn counts_shares_and_repeats_are_told() {
        // Batches of 4: 3 + 1, 1 + 3 with a sample twice, and an incomplete batch.
        let sequence =
            [(0, 0), (0, 1), (0, 2), (1, 0), (0, 3), (1, 1), (1, 2), (1, 1), (1, 0), (0, 99)];
        let report = observed(4, &sequence, [2.0, 2.0]);
        assert_eq!((report.samples, report.batches, report.batches_with_repeats), (10, 2, 1));
        let [a, b] = &report.sources[..] else { panic!("{report:?}") };
        assert_eq!((a.drawn, a.distinct, a.largest_deviation, a.spread), (5, 5, 1.0, 1.0));
        assert_eq!((b.drawn, b.distinct, b.samples, b.share), (5, 3, 3, 2.0));
        assert_eq!(
            report.verdict(),
            "counts are exact; batches are within 1.00 samples of their shares"
        );
        let text = report.to_string();
        assert!(text.contains("1 of 2 batches have a sample more than once"), "{text}");
        let wrong = MixtureReport {
            sources: vec![SourceReport { expected: 6, ..a.clone() }, b.clone()],
            ..report
        };
        assert_eq!(wrong.verdict(), "the epoch has 5 samples of a, not 6");
    }

    #[test]
    fn a_random_permutation_spreads_as_chance_says() {
        let permutation = Permutation::new(100_000, Key::new(3));
        let draw = |at| (u32::from(permutation.forward(at) >= 70_000), at);
        let sequence: Vec<_> = (0..100_000).map(draw).collect();
        let report = observed(100, &sequence, [70.0, 30.0]);
        for source in &report.sources {
            let of_chance = source.spread / source.chance;
            assert!((0.95..1.05).contains(&of_chance), "{report}");
        }
    }

    #[test]
    fn an_epoch_without_a_whole_batch_has_no_verdict_of_batches() {
        let report = observed(4, &[(0, 0)], [0.0, 0.0]);
        assert_eq!(report.verdict(), "counts are exact; there is no whole batch");
        assert!(report.sources.iter().all(|source| source.chance == 0.0 && source.spread == 0.0));
    }
}
