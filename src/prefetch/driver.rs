//! The interface of a driver, which decides what data stays in memory, and what drivers share: batches for the
//! consumer, samples that could not be read, the samples in memory ([`Residency`]), and the planning loop
//! ([`Planner`]).
//!
//! The drivers are `sample_driver.rs`, `chunks.rs`, `passes.rs` and `mix_driver.rs`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::directory::{Directory, by_word};
use crate::error::{Error, Result};
use crate::reader::{Batch, Fetched, Pump};
use crate::units::Slot;

use super::stream::Fed;
use super::walk::Head;
use super::window::Memory;
use super::{OnError, Spares};

/// A batch for the consumer.
pub(super) struct Delivery {
    pub(super) batch: Batch,
    pub(super) head: Head,
    /// The number of samples that could not be read.
    pub(super) skipped: u64,
    /// With `OnError::Blank`: the indices of these samples in the batch, ascending, and their errors.
    pub(super) failures: Vec<(u32, Error)>,
}

/// The samples of a batch that could not be read, treated as the loader's options say.
pub(super) struct LeftOut {
    on_error: OnError,
    /// The error of the first of these samples, with `OnError::Raise`.
    error: Option<Error>,
    skipped: u64,
    failures: Vec<(u32, Error)>,
}

impl LeftOut {
    pub(super) fn new(on_error: OnError) -> LeftOut {
        LeftOut { on_error, error: None, skipped: 0, failures: Vec::new() }
    }

    /// Adds the sample at `index` of the batch.
    pub(super) fn add(&mut self, index: usize, failure: Error) {
        match self.on_error {
            OnError::Raise => self.error = self.error.take().or(Some(failure)),
            OnError::Skip => {
                tracing::warn!(error = %failure, "a sample is left out");
                self.skipped += 1;
            }
            OnError::Blank => {
                self.skipped += 1;
                self.failures.push((index as u32, failure));
            }
        }
    }

    /// The delivery of the batch, without these samples; with `OnError::Blank`, they keep their places without bytes.
    ///
    /// # Errors
    /// With `OnError::Raise`, the error of the first of these samples.
    pub(super) fn deliver(mut self, mut batch: Batch, head: Head) -> Result<Delivery> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if head.ends_epoch {
            batch.set_ends_epoch();
        }
        if self.skipped > 0 && self.on_error != OnError::Blank {
            batch.remove_missing();
        }
        self.failures.sort_unstable_by_key(|(index, _)| *index);
        Ok(Delivery { batch, head, skipped: self.skipped, failures: self.failures })
    }
}

/// Decides how batches are read. All calls come from the poller.
pub(super) trait Driver: Send {
    /// Plans batches, and starts the reads that memory allows; returns whether it did anything.
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool>;
    /// Takes a completed fetch.
    fn finished(&mut self, fetched: Fetched);
    /// The next batch in order, once it is complete.
    fn next_ready(&mut self) -> Option<Result<Delivery>>;
    /// Returns whether every batch has been taken, and the plan has found its end.
    fn is_done(&self) -> bool;
    /// Handles overwritten memory: read number `load` filled it with `chunk` of `source`.
    fn read_again(&mut self, _source: u32, _chunk: u32, _load: u32) {}
    /// The source of the last error or skipped sample.
    fn suspect(&self) -> u32 {
        0
    }
}

/// A driver of one source of a mixture, which is fed its parts of batches.
pub(super) trait SourceDriver: Driver {
    /// The queue by which the driver is fed.
    fn fed(&mut self) -> &mut Fed;
    /// Returns whether reads have been started for everything fed to its stream, and for all overwritten memory.
    fn has_requested_all(&self) -> bool;
    /// Evicts the data that is needed latest, among data that no batch waits for. `false`: there is none.
    fn evict_unpinned(&mut self) -> bool {
        false
    }
}

/// Arguments of a poller that differ between a data set and a mixture.
pub(super) struct PollerInput {
    pub(super) pump: Pump,
    pub(super) driver: Box<dyn Driver>,
    pub(super) residency: Arc<Residency>,
    /// By source.
    pub(super) directories: Arc<[Arc<Directory>]>,
    pub(super) spares: Spares,
}

/// A driver that plans batch by batch, and requests each planned batch before it plans more.
pub(super) trait Planner {
    /// Requests the reads of planned batches. The first result says whether it did anything; the second is `false`
    /// if memory ran out or the queue pairs are busy.
    fn request_planned(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<(bool, bool)>;
    /// Plans one more batch. `false`: the stream has ended.
    fn plan_next(&mut self) -> Result<bool>;
    /// Returns whether enough is planned for now.
    fn has_enough(&self) -> bool;
    /// The number of samples that are planned and not delivered; 0 if only the number of batches limits planning.
    fn num_planned(&self) -> usize;

    /// Alternates requests and plans while memory, queue pairs and the limits of planning allow it; returns whether
    /// it did anything.
    fn request_and_plan(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        let begun_with = self.num_planned();
        let mut moved = false;
        loop {
            let (requested, all) = self.request_planned(pump, memory)?;
            moved |= requested;
            if !all || self.has_enough() {
                return Ok(moved);
            }
            if self.num_planned() - begun_with >= PLANNED_PER_TURN {
                return Ok(true);
            }
            if !self.plan_next()? {
                return Ok(moved);
            }
            moved = true;
        }
    }
}

/// The samples whose verified bytes are in the window now: a bit for each slot. The poller writes the bits; any thread
/// reads them.
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

/// The most batches planned ahead, or spans of a mixture.
pub(super) const MAX_PLANNED: usize = 4096;

/// The most samples planned ahead, besides one batch. This many samples of 340 bytes fill a window of the default
/// size, so that reading continues across groups. Their plans take 12 MiB.
pub(super) const MAX_PLANNED_SAMPLES: usize = 3 << 18;

/// A turn plans about this many samples at most (0.3 ms), so that the poller soon processes completions again.
const PLANNED_PER_TURN: usize = 2 << 10;

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
