//! Mixtures: several data sets as one sequence, in given proportions.
//!
//! A run over a mixture has epochs of equal length. As in every order, the source of a position, and the sample of
//! that source, are computed directly. A run resumes from one number, so sources need no state of their own. World
//! size, batch size and workers do not change the sequence, except with [`Batching::PerSource`].
//!
//! 1. *Counts.* In an epoch of T positions each source has its part of T, rounded by largest remainders (of equal
//!    remainders, the earlier source gains). A [`Phase`] that begins within an epoch divides it; each piece has its
//!    own counts. Such a piece, or a whole epoch, is a *segment*.
//! 2. *Sources.* The positions of each source in a segment depend on the [`Batching`].
//! 3. *Draws.* The n-th position of a source in the run, counted from 0, is its *draw* n. In a source of N samples,
//!    draw n reads position n mod N of the source's epoch floor(n / N). After all its samples, a source begins
//!    again, with a new shuffle, and each of its epochs has every sample once, wherever the mixture's epochs end.
//!
//! All numbers are integers, except that weights are decimal numbers ([`Weight`]). The mapping of positions is frozen;
//! `tests/golden/mixtures.txt` pins it, and a Python program in the same folder computes it from this page and
//! that of `word.rs`.
//!
//! *Stratified.* A `Word` (a balanced sequence of sources) deals the positions of a segment, so that each global batch
//! has its share of each source, with an error of one or two samples. The word is a tree; the random offset of its
//! branch i is drawn from the key of {seed, 5, the segment's first position} and i.
//!
//! *Random.* Windows of 16,384 positions of a segment are permuted before the word deals them to sources, by keys
//! of {seed, 6, the window's first position}. The numbers of samples in a batch are then random. The draws of each
//! source are in the order of its positions, so a source is read in its own order: grouped order reads chunk by
//! chunk.
//!
//! *By source.* As stratified, but units of one global batch are dealt instead of single positions.
//!
//! Read [`Mixture`], then `word.rs`, then `segments.rs`. `tokens.rs` converts a mixture whose weights count tokens.

mod segments;
mod spec;
mod tokens;
mod weight;
mod word;

use dlfs_base::error::Result;
use dlfs_base::permutation::{Key, Permutation};
use dlfs_base::units::Epoch;

pub use spec::{Batching, MixtureSpec, Part, Phase, Source};
pub use tokens::Count;
pub use weight::Weight;

use segments::{Segment, Segments};
use word::{Walk, Word};

/// The sequence of a run over a mixture: position -> source, and position in the source's epoch.
///
/// A `Mixture` caches the state of the last position, which makes consecutive positions fast and changes no result. So
/// each thread needs a separate value.
#[derive(Debug, Clone)]
pub struct Mixture {
    seed: u64,
    batching: Batching,
    /// The number of samples of each source.
    samples: Vec<u64>,
    segments: Segments,
    /// The segment of the last position.
    current: SegmentDeal,
    /// The window of the last position, in random batching.
    window: Option<PermutedWindow>,
    /// The position of the segment after the last drawn one.
    next: u64,
    /// The number of positions drawn in sequence.
    in_sequence: u32,
    /// The walk of the word at `next`, while positions are drawn in sequence.
    walk: Walk,
    /// By source: the epoch of its last draw, and the first draw of that epoch.
    epochs: Vec<(u64, u64)>,
}

/// The sample that a position of a mixture reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// The source, counted from 0.
    pub source: u32,
    /// The epoch of that source.
    pub epoch: Epoch,
    /// The position in the source's epoch.
    pub position: u64,
}

/// A segment, and the word that deals its positions.
#[derive(Debug, Clone)]
struct SegmentDeal {
    segment: Segment,
    word: Word,
    /// The number of positions that are dealt together.
    unit: u64,
}

impl Mixture {
    /// The sequence of `spec`.
    ///
    /// # Errors
    /// An invalid value in `spec`; the error names its source.
    pub fn new(spec: &MixtureSpec) -> Result<Mixture> {
        let segments = Segments::new(spec)?;
        let current = SegmentDeal::new(segments.at(0), spec.batching, spec.seed);
        let samples: Vec<u64> = spec.sources.iter().map(|source| source.samples).collect();
        let MixtureSpec { seed, batching, .. } = *spec;
        Ok(Mixture {
            seed,
            batching,
            epochs: vec![(0, 0); samples.len()],
            samples,
            segments,
            current,
            window: None,
            next: 0,
            in_sequence: 0,
            walk: Walk::default(),
        })
    }

    /// The number of positions of an epoch.
    pub fn epoch_size(&self) -> u64 {
        self.segments.epoch_size
    }

    /// The number of sources.
    pub fn num_sources(&self) -> usize {
        self.samples.len()
    }

    /// The number of positions of `epoch` that each source has.
    pub fn counts(&self, epoch: Epoch) -> Vec<u64> {
        let first = epoch.0.saturating_mul(self.epoch_size());
        let before = self.drawn_before(first);
        let after = self.drawn_before(first.saturating_add(self.epoch_size()));
        before.iter().zip(after).map(|(before, after)| after - before).collect()
    }

    /// The number of the first `position` positions of the run that each source has, before the permutations of
    /// [`Batching::Random`]. These are the draws of each source before `position`, unless it lies inside a permuted
    /// window.
    fn drawn_before(&self, position: u64) -> Vec<u64> {
        self.segments.drawn_before(position, self.batching, self.seed)
    }

    /// The number of samples of each source in `len` positions from `position` on, if the counts of a segment are
    /// spread evenly over it.
    pub fn shares(&self, position: u64, len: u64) -> Vec<f64> {
        let mut shares = vec![0.0; self.num_sources()];
        let mut at = position;
        let end = position.saturating_add(len);
        while at < end {
            let segment = self.segments.at(at);
            let part = (end - at).min(segment.first.saturating_add(segment.len) - at);
            let of_segment = part as f64 / segment.len as f64;
            for (share, &count) in shares.iter_mut().zip(&segment.counts) {
                *share += count as f64 * of_segment;
            }
            at += part;
        }
        shares
    }

    /// The sample that `position` of the run reads. `position` is epoch times epoch size, plus the position in the
    /// epoch.
    ///
    /// Takes some tens of nanoseconds, less in sequence. The first position in a window of [`Batching::Random`]
    /// takes a fraction of a millisecond, since it computes the whole window.
    #[inline]
    pub fn draw(&mut self, position: u64) -> Draw {
        let (source, number) = self.source_and_draw(position);
        let samples = self.samples[source as usize];
        let (epoch, first) = &mut self.epochs[source as usize];
        if number.wrapping_sub(*first) >= samples {
            *epoch = number / samples;
            *first = *epoch * samples;
        }
        Draw { source, epoch: Epoch(*epoch), position: number - *first }
    }

    /// The source of `position`, and the number of its draw.
    #[inline]
    fn source_and_draw(&mut self, position: u64) -> (u32, u64) {
        if !self.current.segment.contains(position) {
            self.current = SegmentDeal::new(self.segments.at(position), self.batching, self.seed);
            (self.next, self.in_sequence) = (u64::MAX, 0);
        }
        let at = position - self.current.segment.first;
        let (source, nth) = match (self.batching, self.current.unit) {
            (Batching::Random, _) => self.permuted(position),
            (_, 1) => self.dealt(at),
            (_, unit) => {
                let (source, nth) = self.current.word.locate(at / unit);
                (source, nth * unit + at % unit)
            }
        };
        (source, self.current.segment.before[source as usize] + nth)
    }

    /// The source that the word deals a position of the segment to, and the number of this draw among the source's
    /// draws in the segment.
    #[inline]
    fn dealt(&mut self, at: u64) -> (u32, u64) {
        let word = &self.current.word;
        self.in_sequence = if at == self.next { self.in_sequence.saturating_add(1) } else { 0 };
        self.next = at + 1;
        if self.in_sequence < WORTH_A_WALK {
            return word.locate(at);
        }
        if self.in_sequence == WORTH_A_WALK {
            word.walk_from(at, self.samples.len(), &mut self.walk);
        }
        word.step(&mut self.walk)
    }

    /// As [`Mixture::dealt`], for `position` of the run, in a permuted window of the segment.
    fn permuted(&mut self, position: u64) -> (u32, u64) {
        let SegmentDeal { segment: Segment { first: start, len, .. }, word, .. } = &self.current;
        let at = position - start;
        let first = at - at % RANDOM_WINDOW;
        let window = match &mut self.window {
            Some(window) if window.place == (*start, first) => window,
            other => {
                let key = Key::derive(self.seed, &[LABEL_WINDOW, start + first]);
                let permutation = Permutation::new(RANDOM_WINDOW.min(len - first), key);
                let memory = other.take().unwrap_or_default();
                let place = (*start, first);
                other.insert(memory.refilled(place, permutation, word, self.samples.len()))
            }
        };
        window.at(at)
    }
}

impl SegmentDeal {
    fn new(segment: Segment, batching: Batching, seed: u64) -> SegmentDeal {
        let unit = batching.unit();
        let counts: Vec<u64> = segment.counts.iter().map(|count| count / unit).collect();
        let word = Word::new(&counts, Key::derive(seed, &[LABEL_WORD, segment.first]));
        SegmentDeal { segment, word, unit }
    }

    /// Adds to `counts` the number of positions that each source has among the first `len` positions of the
    /// segment.
    fn count_before(&self, len: u64, counts: &mut [u64]) {
        let whole = len / self.unit;
        let rest = len % self.unit;
        let units = self.word.counts_before(whole, counts.len());
        counts.iter_mut().zip(units).for_each(|(count, units)| *count += units * self.unit);
        if rest > 0 {
            counts[self.word.locate(whole).0 as usize] += rest;
        }
    }
}

/// After this many positions in sequence, more are expected to follow.
const WORTH_A_WALK: u32 = 64;

/// The number of positions that [`Batching::Random`] permutes together. Frozen.
const RANDOM_WINDOW: u64 = 1 << 14;

/// The seed of the order of `source`, counted from 0, in a run with `seed`. Frozen.
pub fn source_seed(seed: u64, source: usize) -> u64 {
    Key::derive(seed, &[LABEL_SOURCE, source as u64]).word()
}

/// A window of a segment. All its positions are computed at once: the number of a draw depends on all earlier
/// positions of its source.
#[derive(Debug, Clone, Default)]
struct PermutedWindow {
    /// The first position of the segment in the run, and the first position of the window in the segment: they
    /// identify the window.
    place: (u64, u64),
    /// The source of each position, and the number of its earlier occurrences in the window: 128 KiB.
    dealt: Vec<(u32, u32)>,
    /// By source: the number of occurrences in the segment before the window.
    before: Vec<u64>,
    /// Scratch memory: the sources in the word's sequence.
    sources: Vec<u32>,
    /// Scratch memory: the number of positions dealt to each source.
    counts: Vec<u32>,
    walk: Walk,
}

impl PermutedWindow {
    /// Fills this window, and reuses its memory: the window from position `first` on, in the segment that begins at
    /// `segment` and that `word` deals to `sources` sources.
    fn refilled(
        mut self,
        (segment, first): (u64, u64),
        permutation: Permutation,
        word: &Word,
        sources: usize,
    ) -> PermutedWindow {
        self.place = (segment, first);
        word.walk_from(first, sources, &mut self.walk);
        self.before.clone_from(&self.walk.counts);
        self.sources.clear();
        self.sources.extend((0..permutation.len()).map(|_| word.step(&mut self.walk).0));
        self.counts.clear();
        self.counts.resize(sources, 0);
        self.dealt.clear();
        let PermutedWindow { dealt, sources, counts, .. } = &mut self;
        dealt.extend((0..permutation.len()).map(|at| {
            let source = sources[permutation.forward(at) as usize];
            let count = &mut counts[source as usize];
            *count += 1;
            (source, *count - 1)
        }));
        self
    }

    /// The source of position `at` of the segment, a position in this window, and the number of its earlier
    /// occurrences in the segment.
    #[inline]
    fn at(&self, at: u64) -> (u32, u64) {
        let (source, nth) = self.dealt[(at - self.place.1) as usize];
        (source, self.before[source as usize] + u64::from(nth))
    }
}

/// The first word of the key of a word. Kinds of order use 0 to 5. Weighted order also uses 5; the keys differ, since
/// the orders of sources have other seeds ([`source_seed`]). Frozen.
const LABEL_WORD: u64 = 5;
/// The first word of the key of a window. Frozen.
const LABEL_WINDOW: u64 = 6;
/// The first word of the key of a source's seed. Frozen.
const LABEL_SOURCE: u64 = 7;

#[cfg(test)]
mod tests;
