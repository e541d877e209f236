//! Permutes the positions of a window before a word deals them to sources.

use super::word::{Walk, Word};
use dlfs_base::permutation::Permutation;

/// A window of a segment. All its positions are computed at once: the number of a draw depends on all earlier
/// positions of its source.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    /// The first position of the segment in the run, and the first position of the window in the segment.
    place: (u64, u64),
    /// The source of each position, and the number of its earlier occurrences in the window: 128 KiB.
    dealt: Vec<(u32, u32)>,
    /// By source: the number of occurrences in the segment before the window.
    before: Vec<u64>,
    /// Scratch memory: the sources in the word's sequence, and the number of positions dealt to each source.
    sources: Vec<u32>,
    counts: Vec<u32>,
    walk: Walk,
}

impl Window {
    /// Fills this window, and reuses its memory: the window from position `first` on, in the segment that begins at
    /// `segment` and that `word` deals to `sources` sources.
    pub(super) fn refilled(
        mut self,
        (segment, first): (u64, u64),
        permutation: Permutation,
        word: &Word,
        sources: usize,
    ) -> Window {
        self.place = (segment, first);
        word.walk_from(first, sources, &mut self.walk);
        self.before.clone_from(&self.walk.counts);
        self.sources.clear();
        self.sources.extend((0..permutation.len()).map(|_| word.step(&mut self.walk).0));
        self.counts.clear();
        self.counts.resize(sources, 0);
        self.dealt.clear();
        let Window { dealt, sources, counts, .. } = &mut self;
        dealt.extend((0..permutation.len()).map(|at| {
            let source = sources[permutation.forward(at) as usize];
            let count = &mut counts[source as usize];
            *count += 1;
            (source, *count - 1)
        }));
        self
    }

    pub(super) fn begins_at(&self, segment: u64, first: u64) -> bool {
        self.place == (segment, first)
    }

    /// The source of position `at` of the segment, a position in this window, and the number of its earlier
    /// occurrences in the segment.
    #[inline]
    pub(super) fn at(&self, at: u64) -> (u32, u64) {
        let (source, rank) = self.dealt[(at - self.place.1) as usize];
        (source, self.before[source as usize] + u64::from(rank))
    }
}
