//! Residency: the samples whose verified bytes are in the window now, as one bit for each slot.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::directory::by_word;
use crate::units::Slot;

/// A bit for each slot. The poller writes them; any thread reads them.
#[derive(Debug, Default)]
pub(super) struct Residency {
    words: Vec<AtomicU64>,
    /// The residencies of a mixture's sources, which the count includes.
    sources: Vec<Arc<Residency>>,
}

impl Residency {
    pub(super) fn new(num_slots: u64) -> Residency {
        let words = num_slots.div_ceil(64) as usize;
        Residency { words: (0..words).map(|_| AtomicU64::new(0)).collect(), sources: Vec::new() }
    }

    /// The residency of a mixture, which has no slots of its own.
    pub(super) fn of_sources(sources: Vec<Arc<Residency>>) -> Residency {
        Residency { words: Vec::new(), sources }
    }

    pub(super) fn set(&self, slots: Range<u64>) {
        self.update(slots, |word, mask| word | mask);
    }

    pub(super) fn clear(&self, slots: Range<u64>) {
        self.update(slots, |word, mask| word & !mask);
    }

    /// Only one thread writes, so a plain load and store suffice; they are cheaper than a locked instruction.
    fn update(&self, slots: Range<u64>, change: impl Fn(u64, u64) -> u64) {
        for (index, mask) in by_word(slots) {
            let word = &self.words[index];
            word.store(change(word.load(Ordering::Relaxed), mask), Ordering::Relaxed);
        }
    }

    pub(super) fn contains(&self, Slot(slot): Slot) -> bool {
        let word = self.words.get((slot / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (slot % 64) & 1 == 1)
    }

    pub(super) fn count(&self) -> u64 {
        let own =
            self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones()));
        own.chain(self.sources.iter().map(|source| source.count())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_set_and_cleared_to_the_bit() {
        let residency = Residency::new(300);
        for range in [0..1, 0..64, 3..300, 63..65, 64..128, 128..130, 5..5] {
            residency.set(range.clone());
            let there: Vec<u64> = (0..300).filter(|&slot| residency.contains(Slot(slot))).collect();
            assert_eq!(there, range.clone().collect::<Vec<_>>());
            assert_eq!(residency.count(), range.end - range.start);
            residency.clear(range);
            assert_eq!(residency.count(), 0);
        }
        residency.set(0..300);
        residency.clear(70..71);
        assert!(!residency.contains(Slot(70)) && !residency.contains(Slot(300)));
        assert_eq!(residency.count(), 299);
    }

    #[test]
    fn a_mixture_counts_the_samples_of_all_its_sources() {
        let sources = [10, 0, 100].map(|num_slots| Arc::new(Residency::new(num_slots)));
        let mixture = Residency::of_sources(sources.to_vec());
        sources[0].set(2..5);
        sources[2].set(0..100);
        assert_eq!(mixture.count(), 103);
        assert!(!mixture.contains(Slot(2)), "a slot has a meaning only in its source");
    }
}
