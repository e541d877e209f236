//! Divides a run into segments, each with its own counts.
//!
//! A phase consists of at most three *stretches*: the rest of an epoch that began before the phase, whole epochs,
//! and the beginning of its last epoch. The segments of a stretch have equal lengths and equal counts, so the draws
//! before each of them are computed by a product and a sum.

use super::weight::as_integers;
use super::{Batching, MixtureSpec, Part, SegmentDeal, Weight};
use dlfs_base::error::{Result, ensure, invalid};

/// Consecutive positions of one epoch and one phase.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    /// The first position of the segment in the run.
    pub(super) first: u64,
    /// The number of positions of the segment.
    pub(super) len: u64,
    /// By source: the number of positions in the segment.
    pub(super) counts: Vec<u64>,
    /// By source: the number of positions of the run before the segment.
    pub(super) before: Vec<u64>,
}

impl Segment {
    #[inline]
    pub(super) fn contains(&self, position: u64) -> bool {
        position.wrapping_sub(self.first) < self.len
    }

    /// By source: the number of positions of the run before `first`, where a segment of this stretch begins, or the
    /// stretch ends.
    fn before_next(&self, first: u64) -> Vec<u64> {
        let number = (first - self.first) / self.len;
        let counts = self.before.iter().zip(&self.counts);
        counts.map(|(before, count)| before + number * count).collect()
    }
}

/// All segments of a run.
#[derive(Debug, Clone)]
pub(super) struct Segments {
    /// The number of positions of an epoch of the mixture.
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

    /// By source: the number of positions of the run before `position`.
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
    ensure((1..=MAX_EPOCH).contains(&size), || {
        format!("an epoch of a mixture has 1 to {MAX_EPOCH} samples, not {size}")
    })?;
    let weights = spec.sources.iter().map(|source| source.weight()).collect();
    Ok((size, weights))
}

/// `weights` of `phase` as integers in the same proportions.
pub(super) fn integers(weights: &[Weight], phase: usize) -> Result<Vec<u64>> {
    let integers = as_integers(weights).ok_or_else(|| {
        invalid(format!("the weights of phase {phase} differ by more than 18 digits: write fewer"))
    })?;
    ensure(integers.iter().any(|&weight| weight > 0), || {
        format!("all weights of phase {phase} are 0")
    })?;
    Ok(integers)
}

/// Checks that a length or start of `len` samples, called `what`, is a multiple of `batch`.
fn check_units(what: &str, len: u64, batch: u64) -> Result<()> {
    ensure(len.is_multiple_of(batch), || {
        format!("batches of one source need {what} of whole batches of {batch}, not {len} samples")
    })
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

#[cfg(test)]
mod tests {
    use super::apportion;

    #[test]
    fn the_largest_remainders_gain() {
        assert_eq!(apportion(&[7, 2, 1], 10), [7, 2, 1]);
        assert_eq!(apportion(&[1, 1, 1], 10), [4, 3, 3]);
        assert_eq!(apportion(&[1, 0, 5], 4), [1, 0, 3]);
        assert_eq!(apportion(&[u64::MAX, u64::MAX], 1 << 40), [1 << 39, 1 << 39]);
        assert_eq!(apportion(&[3, 5], 0), [0, 0]);
    }
}
