//! One bit a sample: whether its verified bytes are in the RAM cache now.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::units::SampleId;

/// The bits. Written by the poller, read by anybody.
#[derive(Debug)]
pub(super) struct Residency {
    words: Vec<AtomicU64>,
}

impl Residency {
    pub(super) fn new(num_samples: u64) -> Residency {
        let words = num_samples.div_ceil(64) as usize;
        Residency { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(super) fn set(&self, ids: impl Iterator<Item = SampleId>) {
        for SampleId(id) in ids {
            self.update(id, |word| word | 1 << (id % 64));
        }
    }

    pub(super) fn clear(&self, ids: impl Iterator<Item = SampleId>) {
        for SampleId(id) in ids {
            self.update(id, |word| word & !(1 << (id % 64)));
        }
    }

    /// One thread writes, so a load and a store do what a locked instruction would do dearly.
    fn update(&self, id: u64, change: impl Fn(u64) -> u64) {
        let word = &self.words[(id / 64) as usize];
        word.store(change(word.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    pub(super) fn contains(&self, SampleId(id): SampleId) -> bool {
        let word = self.words.get((id / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (id % 64) & 1 == 1)
    }

    pub(super) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
}
