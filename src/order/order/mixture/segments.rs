//! Divides a run into segments, each with its own counts.
//!
//! A phase consists of at most three *stretches*: the rest of an epoch that began before the phase, whole epochs,
//! and the beginning of its last epoch. The segments of a stretch have equal lengths and equal counts, so the draws
//! before each of them are computed by a product and a sum.
//!
//! Weights and starts of phases that count tokens, converted into ones that count samples.
//!
//! A source of N samples with T tokens together and the weight w gets the weight w * N / T, so that its samples have
//! the share of w in the tokens of the mixture. These weights are whole numbers in the right proportions, rounded
//! down; the largest of a phase has 15 digits. A phase that begins at token t begins at the first position before which
//! the positions of the earlier phases have t tokens in expectation, each phase's length rounded down. With batches of
//! one source it is rounded down to whole batches.
//!
//! A mixture is converted once, when it is made, and phase by phase: later phases do not change earlier ones. Its state
//! has the result, so it resumes without the lengths.

use std::mem::replace;
use std::str::FromStr;

use super::spec::{as_integers, shortened};
use super::{Batching, MixtureSpec, Part, SegmentDeal, Source, Weight};
use dlfs_base::error::{Error, Result, invalid};

/// Consecutive positions of one epoch and one phase.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    /// Its first position in the run.
    pub(super) first: u64,
    pub(super) len: u64,
    /// The number of its positions that each source has.
    pub(super) counts: Vec<u64>,
    /// The number of positions that each source has before the segment.
    pub(super) before: Vec<u64>,
}

impl Segment {
    #[inline]
    pub(super) fn contains(&self, position: u64) -> bool {
        position.wrapping_sub(self.first) < self.len
    }

    /// The number of positions that each source has before `first`; a segment of this stretch begins at `first`, or
    /// the stretch ends there.
    fn before_next(&self, first: u64) -> Vec<u64> {
        let number = (first - self.first) / self.len;
        let counts = self.before.iter().zip(&self.counts);
        counts.map(|(before, count)| before + number * count).collect()
    }
}

/// All segments of a run.
#[derive(Debug, Clone)]
pub(super) struct Segments {
    pub(super) epoch_size: u64,
    /// The first segment of each stretch; segments of equal length and counts follow it.
    stretches: Vec<Segment>,
}

impl Segments {
    pub(super) fn new(spec: &MixtureSpec) -> Result<Segments> {
        spec.check_sources()?;
        let (epoch_size, parts) = epoch(spec)?;
        let mut segments = Segments { epoch_size, stretches: Vec::new() };
        let mut phases = vec![(0, integers(&parts, 0)?)];
        for (phase, given) in (1..).zip(&spec.phases) {
            phases.push((given.from, integers(&given.weights, phase)?));
        }
        let unit = spec.batching.unit();
        check_units("an epoch", epoch_size, unit)?;
        spec.phases
            .iter()
            .try_for_each(|phase| check_units("a phase's start", phase.from, unit))?;
        for (phase, (from, weights)) in phases.iter().enumerate() {
            let end = phases.get(phase + 1).map_or(u64::MAX, |next| next.0);
            segments.add_phase(*from, end, weights, unit);
        }
        Ok(segments)
    }

    /// Adds the positions `from`..`end`, with the proportions of `weights`.
    fn add_phase(&mut self, from: u64, end: u64, weights: &[u64], unit: u64) {
        let size = self.epoch_size;
        let mut first = from;
        while first < end {
            let into = first % size;
            let is_whole = into == 0 && end - first >= size;
            let len = if is_whole { size } else { (size - into).min(end - first) };
            let units = apportion(weights, len / unit);
            let counts = units.iter().map(|count| count * unit).collect();
            let before = self
                .stretches
                .last()
                .map_or(vec![0; weights.len()], |last| last.before_next(first));
            self.stretches.push(Segment { first, len, counts, before });
            let number = if is_whole { (end - first) / size } else { 1 };
            // The last phase has no end.
            first = if is_whole && end == u64::MAX { end } else { first + number * len };
        }
    }

    /// The segment with `position`.
    pub(super) fn at(&self, position: u64) -> Segment {
        let later = self.stretches.partition_point(|stretch| stretch.first <= position);
        let stretch = &self.stretches[later - 1];
        let number = (position - stretch.first) / stretch.len;
        let first = stretch.first + number * stretch.len;
        Segment { first, before: stretch.before_next(first), ..stretch.clone() }
    }

    /// The number of the first `position` positions that each source has.
    pub(super) fn drawn_before(&self, position: u64, batching: Batching, seed: u64) -> Vec<u64> {
        let segment = self.at(position);
        let mut counts = segment.before.clone();
        let len = position - segment.first;
        if len > 0 {
            SegmentDeal::new(segment, batching, seed).count_before(len, &mut counts);
        }
        counts
    }
}

/// The length of an epoch, and the weight of each source in the first phase.
fn epoch(spec: &MixtureSpec) -> Result<(u64, Vec<Weight>)> {
    let weighed = |part: &Part| matches!(part, Part::Weight(_));
    let weighs = spec.sources.iter().find(|source| weighed(&source.part));
    let counted = spec.sources.iter().find(|source| !weighed(&source.part));
    if let (Some(first), Some(second)) = (weighs, counted) {
        return Err(invalid(format!(
            "source {} has a weight and source {} a number of samples: give weights to all, or repeat or choose \
             to all",
            first.name, second.name
        )));
    }
    let total = |counts: &[u64]| counts.iter().try_fold(0u64, |sum, &count| sum.checked_add(count));
    let size = if counted.is_some() {
        let counts: Option<Vec<u64>> = spec.sources.iter().map(|source| source.chosen()).collect();
        let chosen = counts.as_deref().and_then(total).unwrap_or(u64::MAX);
        if let Some(asked) = spec.epoch_size.filter(|&asked| asked != chosen && chosen < u64::MAX) {
            return Err(invalid(format!(
                "the epoch has {chosen} samples by repeat and choose: leave the epoch's size of {asked} out"
            )));
        }
        chosen
    } else {
        let samples: Vec<u64> = spec.sources.iter().map(|source| source.samples).collect();
        spec.epoch_size.or_else(|| total(&samples)).unwrap_or(u64::MAX)
    };
    if !(1..=MAX_EPOCH).contains(&size) {
        return Err(invalid(format!(
            "an epoch of a mixture has 1 to {MAX_EPOCH} samples, not {size}"
        )));
    }
    let weights = spec.sources.iter().map(|source| source.weight()).collect();
    Ok((size, weights))
}

/// `weights` of `phase` as integers in the same proportions.
pub(super) fn integers(weights: &[Weight], phase: usize) -> Result<Vec<u64>> {
    let Some(integers) = as_integers(weights) else {
        return Err(invalid(format!(
            "the weights of phase {phase} differ by more than 18 digits: write fewer"
        )));
    };
    if integers.iter().all(|&weight| weight == 0) {
        return Err(invalid(format!("all weights of phase {phase} are 0")));
    }
    Ok(integers)
}

fn check_units(what: &str, len: u64, batch: u64) -> Result<()> {
    if len.is_multiple_of(batch) {
        return Ok(());
    }
    Err(invalid(format!(
        "batches of one source need {what} of whole batches of {batch}, not {len} samples"
    )))
}

/// The longest epoch: positions of a run of 2^24 epochs fit 64 bits.
const MAX_EPOCH: u64 = 1 << 40;

/// Divides `total` in the proportions of `weights`, by largest remainders; of equal remainders, the first gain.
fn apportion(weights: &[u64], total: u64) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let exact = |weight: u64| u128::from(weight) * u128::from(total);
    let mut counts: Vec<u64> = weights.iter().map(|&weight| (exact(weight) / sum) as u64).collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|&i| std::cmp::Reverse(exact(weights[i]) % sum));
    let missing = (total - counts.iter().sum::<u64>()) as usize;
    by_remainder[..missing].iter().for_each(|&i| counts[i] += 1);
    counts
}

/// The unit of the weights and of the starts of phases of a mixture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Count {
    /// Samples.
    #[default]
    Samples,
    /// Tokens, as the bytes of documents tell them. It names the field of tokens; `None`: the only one.
    Tokens(Option<String>),
    /// Tokens, as this column of ints has them.
    Lengths(String),
}

/// `samples`, `tokens`, `tokens:FIELD`, `tokens:FIELD:TYPE` or `lengths:COLUMN`.
impl FromStr for Count {
    type Err = Error;

    fn from_str(text: &str) -> Result<Count> {
        match text.split_once(':') {
            None if text == "samples" => Ok(Count::Samples),
            None if text == "tokens" => Ok(Count::Tokens(None)),
            Some(("tokens", field)) if !field.is_empty() => Ok(Count::Tokens(Some(field.into()))),
            Some(("lengths", column)) if !column.is_empty() => Ok(Count::Lengths(column.into())),
            _ => {
                let text = shortened(text);
                Err(invalid(format!(
                    "it is samples, tokens, tokens:FIELD or lengths:COLUMN, not {text:?}"
                )))
            }
        }
    }
}

/// The samples of a source, and their tokens.
type Size = (u64, u64);

impl MixtureSpec {
    /// Converts weights and starts of phases that count tokens into ones that count samples; `tokens` are those of each
    /// source. `repeat`, `choose` and the epoch's size are numbers of samples, and stay.
    ///
    /// # Errors
    /// An invalid value; a source has no tokens; a phase begins beyond 2^64 samples.
    pub fn counted_in_tokens(mut self, tokens: &[u64]) -> Result<MixtureSpec> {
        self.check_sources()?;
        if let Some(at) = tokens.iter().position(|&tokens| tokens == 0) {
            return Err(invalid(format!("source {} has no tokens", self.sources[at].name)));
        }
        let samples = self.sources.iter().map(|source| source.samples);
        let sizes: Vec<Size> = samples.zip(tokens.iter().copied()).collect();
        let parts: Vec<Weight> = self.sources.iter().map(Source::weight).collect();
        let is_weighed = |source: &Source| matches!(source.part, Part::Weight(_));
        let mut weights = integers(&parts, 0)?;
        if self.sources.iter().all(is_weighed) {
            weights = of_samples(&weights, &sizes);
            for (source, &weight) in self.sources.iter_mut().zip(&weights) {
                source.part = Part::Weight(Weight::whole(weight));
            }
        } else {
            weights = of_samples(&weights, &vec![(1, 1); sizes.len()]); // with as many digits
        }
        let unit = self.batching.unit();
        let mut token = 0;
        let mut sample: u64 = 0;
        for (number, phase) in (1..).zip(&mut self.phases) {
            let more = samples_of(phase.from - token, &weights, &sizes);
            sample = more.and_then(|more| sample.checked_add(more)).ok_or_else(|| {
                let from = phase.from;
                invalid(format!("phase {number} begins at token {from}, beyond 2^64 samples"))
            })?;
            token = replace(&mut phase.from, sample - sample % unit);
            weights = of_samples(&integers(&phase.weights, number)?, &sizes);
            phase.weights = weights.iter().map(|&weight| Weight::whole(weight)).collect();
        }
        Ok(self)
    }
}

/// The weights of samples that give tokens the proportions of `weights`, of which one is above 0.
fn of_samples(weights: &[u64], sizes: &[Size]) -> Vec<u64> {
    let product =
        |(&weight, &(samples, _)): (&u64, &Size)| u128::from(weight) * u128::from(samples);
    let products: Vec<u128> = weights.iter().zip(sizes).map(product).collect();
    // The largest product then has at least 38 digits, and its quotient by 64 bits at least 18.
    let most = products.iter().max().copied().unwrap_or(1);
    let scale = 10_u128.pow((u128::MAX / most).ilog10());
    let exact: Vec<u128> = products
        .iter()
        .zip(sizes)
        .map(|(product, &(_, tokens))| product * scale / u128::from(tokens))
        .collect();
    let most = exact.iter().max().copied().unwrap_or(1);
    let unit = 10_u128.pow((most.ilog10() + 1).saturating_sub(DIGITS));
    // Rounding does not exclude a source.
    let rounded = exact.iter().zip(weights).map(|(exact, &weight)| {
        let least = u64::from(weight > 0);
        ((exact / unit) as u64).max(least) // at most 15 digits
    });
    rounded.collect()
}

/// The number of samples, in the proportions of `weights`, that have `tokens` tokens in expectation; `None` if it
/// exceeds 64 bits.
fn samples_of(tokens: u64, weights: &[u64], sizes: &[Size]) -> Option<u64> {
    let samples: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let of_source = |(&weight, &(samples, tokens)): (&u64, &Size)| {
        u128::from(weight) * u128::from(tokens) / u128::from(samples)
    };
    let with: u128 = weights.iter().zip(sizes).map(of_source).sum();
    u128::from(tokens).checked_mul(samples)?.checked_div(with)?.try_into().ok()
}

/// The digits of the largest weight of a phase. Frozen.
const DIGITS: u32 = 15;

#[cfg(test)]
mod tests {
    use super::super::{Batching, Phase};
    use super::{apportion, *};

    #[test]
    fn the_largest_remainders_gain() {
        assert_eq!(apportion(&[7, 2, 1], 10), [7, 2, 1]);
        assert_eq!(apportion(&[1, 1, 1], 10), [4, 3, 3]);
        assert_eq!(apportion(&[1, 0, 5], 4), [1, 0, 3]);
        assert_eq!(apportion(&[u64::MAX, u64::MAX], 1 << 40), [1 << 39, 1 << 39]);
        assert_eq!(apportion(&[3, 5], 0), [0, 0]);
    }

    fn spec(parts: &[(u64, &str)], phases: &[(u64, &[&str])]) -> MixtureSpec {
        let sources = (0..).zip(parts).map(|(number, (samples, part))| Source {
            name: format!("s{number}"),
            identity: format!("image {number}"),
            samples: *samples,
            part: part.parse().unwrap(),
        });
        let phases = phases.iter().map(|(from, weights)| Phase {
            from: *from,
            weights: weights.iter().map(|weight| weight.parse().unwrap()).collect(),
        });
        MixtureSpec {
            sources: sources.collect(),
            epoch_size: None,
            batching: Batching::Stratified,
            phases: phases.collect(),
            seed: 1,
        }
    }

    fn parts(spec: &MixtureSpec) -> Vec<String> {
        spec.sources.iter().map(|source| source.weight().to_string()).collect()
    }

    #[test]
    fn weights_of_samples_have_fifteen_digits_and_the_proportions_of_tokens() {
        // Documents of 10, 30 and 7 tokens.
        let given = spec(&[(50, "1"), (20, "1"), (9, "1")], &[]);
        let made = given.counted_in_tokens(&[500, 600, 63]).unwrap();
        assert_eq!(parts(&made), ["100000000000000", "33333333333333", "142857142857142"]);
        // The extremes of what weights and sizes can be.
        let far = [(1 << 40, "1e17"), (1, "0.1"), (1, "0")];
        let far = spec(&far, &[(u64::MAX, &["1", "1", "1"])]);
        let made = far.counted_in_tokens(&[1 << 40, u64::MAX, 1]).unwrap();
        assert_eq!(parts(&made), ["100000000000000", "1", "0"]);
        let few = spec(&[(1 << 40, "1"), (5, "1")], &[(u64::MAX, &["1", "1"])]);
        let error = few.counted_in_tokens(&[1, 1]).unwrap_err().to_string();
        assert!(error.contains("phase 1 begins at token 18446744073709551615"), "{error}");
    }

    #[test]
    fn a_phase_begins_where_the_phases_before_it_have_its_tokens() {
        // Documents of 10 and 40 tokens. Phase 0: of 5 documents one is long, 16 tokens each; phase 1: 10 tokens each.
        let phases: [(u64, &[&str]); 3] =
            [(1600, &["1", "0"]), (2109, &["0", "1"]), (9999, &["1", "1"])];
        let starts = |given: MixtureSpec| {
            let made = given.counted_in_tokens(&[1000, 2000]).unwrap();
            made.phases.iter().map(|phase| phase.from).collect::<Vec<u64>>()
        };
        let given = spec(&[(100, "0.5"), (50, "0.5")], &phases);
        assert_eq!(starts(given.clone()), [100, 150, 347]);
        // In batches of one source, and after numbers of samples: 25 tokens each.
        let batching = Batching::PerSource { batch: 16 };
        assert_eq!(starts(MixtureSpec { batching, ..given }), [96, 144, 336]);
        let given = spec(&[(100, "repeat:0.5"), (50, "choose:50")], &phases[..1]);
        let made = given.clone().counted_in_tokens(&[1000, 2000]).unwrap();
        assert_eq!((made.phases[0].from, &made.sources), (64, &given.sources));
    }
}
