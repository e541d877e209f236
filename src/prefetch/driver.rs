//! The interface of a driver, which decides what data stays in memory, the planning loop that most drivers
//! share, and the driver that reads each batch by itself.
//!
//! [`SampleDriver`] merges neighbouring samples of a batch into one read.
//!
//! Several of its batches are in flight at once; each counts its own outstanding reads.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{
    Batch, Fetch, Fetched, Geometry, Merge, Pump, SamplePlans, SampleRequest, add_fetched,
};
use crate::units::{SampleId, Slot};

use super::OnError;
use super::stream::{Fed, Head, Spares, Stream};
use super::window::{Memory, Priority};

/// A batch for the consumer.
pub(super) struct Delivery {
    pub(super) batch: Batch,
    pub(super) head: Head,
    pub(super) skipped: u64,
    /// With `OnError::Blank`: the places of samples that could not be read, ascending, and their errors.
    pub(super) failures: Vec<(u32, Error)>,
}

/// The samples of a batch that could not be read, by the loader's choice what becomes of them.
pub(super) struct LeftOut {
    on_error: OnError,
    error: Option<Error>,
    skipped: u64,
    failures: Vec<(u32, Error)>,
}

impl LeftOut {
    pub(super) fn new(on_error: OnError) -> LeftOut {
        LeftOut { on_error, error: None, skipped: 0, failures: Vec::new() }
    }

    /// Leaves the sample at `index` of the batch out.
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

    /// The batch without them.
    ///
    /// # Errors
    /// With `OnError::Raise`, the first one's.
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
    /// Returns whether every batch has been taken.
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
    /// Its parts of batches.
    fn fed(&mut self) -> &mut Fed;
    /// Returns whether reads have been started for everything fed to its stream, and for all overwritten memory.
    fn has_requested_all(&self) -> bool;
    /// Evicts the data that is needed latest, among data that no batch waits for. `false`: there is none.
    fn evict_unpinned(&mut self) -> bool {
        false
    }
}

/// The parts of a poller that differ between a data set and a mixture.
pub(super) struct Parts {
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

/// The bits. The poller writes them; any thread reads them.
#[derive(Debug, Default)]
pub(super) struct Residency {
    words: Vec<AtomicU64>,
}

impl Residency {
    pub(super) fn new(num_slots: u64) -> Residency {
        let words = num_slots.div_ceil(64) as usize;
        Residency { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(super) fn set(&self, slots: Range<u64>) {
        self.update(slots, |word, mask| word | mask);
    }

    pub(super) fn clear(&self, slots: Range<u64>) {
        self.update(slots, |word, mask| word & !mask);
    }

    /// Only one thread writes, so a plain load and store suffice; they are cheaper than a locked instruction.
    fn update(&self, slots: Range<u64>, change: impl Fn(u64, u64) -> u64) {
        let mut next = slots.start;
        while next < slots.end {
            let bit = next % 64;
            let end = slots.end.min((next / 64 + 1) * 64);
            let mask = (!0 >> (64 - (end - next))) << bit;
            let word = &self.words[(next / 64) as usize];
            word.store(change(word.load(Ordering::Relaxed), mask), Ordering::Relaxed);
            next = end;
        }
    }

    pub(super) fn contains(&self, Slot(slot): Slot) -> bool {
        let word = self.words.get((slot / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (slot % 64) & 1 == 1)
    }

    pub(super) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
}

/// Plans the reads of one batch at a time.
pub(super) struct SampleDriver {
    directory: Arc<Directory>,
    plans: SamplePlans,
    stream: Stream,
    merge: Merge,
    max_fetch_bytes: usize,
    on_error: OnError,
    under_way: VecDeque<UnderWay>,
    /// Token of `under_way[0]`.
    pub(super) first: u64,
    max_under_way: usize,
    ids: Vec<SampleId>,
    free_lists: Vec<VecDeque<Fetch>>,
}

struct UnderWay {
    head: Head,
    batch: Batch,
    /// Planned reads that have no memory yet.
    unstarted: VecDeque<Fetch>,
    outstanding: usize,
    left_out: LeftOut,
}

impl SampleDriver {
    pub(super) fn new(
        directory: Arc<Directory>,
        geometry: Vec<Geometry>,
        stream: Stream,
        one_by_one: bool,
        max_fetch_bytes: usize,
        on_error: OnError,
    ) -> SampleDriver {
        SampleDriver {
            directory,
            plans: SamplePlans::new(geometry),
            stream,
            merge: if one_by_one { Merge::Never } else { Merge::Neighbours },
            max_fetch_bytes,
            on_error,
            under_way: VecDeque::new(),
            first: 0,
            max_under_way: if one_by_one { 1 } else { MAX_UNDER_WAY },
            ids: Vec::new(),
            free_lists: Vec::new(),
        }
    }

    /// Plans the reads of a batch.
    ///
    /// # Errors
    /// `NotFound`: a sample does not exist any more.
    pub(super) fn plan(&mut self, head: Head, ids: &[SampleId]) -> Result<()> {
        self.plans.look_up(&self.directory, ids);
        let SamplePlans { extents, requests, .. } = &mut self.plans;
        for (index, (&id, extent)) in ids.iter().zip(&*extents).enumerate() {
            let extent = extent.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "the order names a sample that is gone").sample(id)
            })?;
            requests.push(SampleRequest { index: index as u32, id, extent });
        }
        self.plans.plan(.., self.merge, self.max_fetch_bytes);
        let mut batch = self.stream.spares.take();
        batch.reset(&self.directory, head.epoch);
        batch.resize(ids.len());
        let mut unstarted = self.free_lists.pop().unwrap_or_default();
        unstarted.extend(self.plans.fetches.drain(..));
        self.under_way.push_back(UnderWay {
            head,
            batch,
            unstarted,
            outstanding: 0,
            left_out: LeftOut::new(self.on_error),
        });
        Ok(())
    }
}

impl Planner for SampleDriver {
    fn request_planned(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<(bool, bool)> {
        let mut started = false;
        for (age, under_way) in self.under_way.iter_mut().enumerate() {
            while !pump.is_busy()
                && let Some(fetch) = under_way.unstarted.pop_front()
            {
                let is_first = age == 0 || self.stream.is_awaited(memory.starving);
                let priority = if is_first && under_way.outstanding == 0 {
                    Priority::Sole
                } else {
                    Priority::Next
                };
                memory.set_next(&fetch);
                let Some(buf) = memory.take(fetch.len_bytes, priority) else {
                    under_way.unstarted.push_front(fetch);
                    return Ok((started, false));
                };
                pump.start(self.first + age as u64, fetch, buf);
                under_way.outstanding += 1;
                started = true;
            }
        }
        Ok((started, !pump.is_busy()))
    }

    fn plan_next(&mut self) -> Result<bool> {
        let mut ids = std::mem::take(&mut self.ids);
        let head = self.stream.next_ids(&mut ids)?;
        if let Some(head) = head {
            self.plan(head, &ids)?;
        }
        self.ids = ids;
        Ok(head.is_some())
    }

    /// A fed stream is planned to its end, since another source's part may wait for it.
    fn has_enough(&self) -> bool {
        self.under_way.len() >= self.max_under_way && self.stream.fed.is_none()
    }

    fn num_planned(&self) -> usize {
        0 // batches in flight are the limit
    }
}

impl SourceDriver for SampleDriver {
    fn fed(&mut self) -> &mut Fed {
        self.stream.fed.as_mut().expect("only sources of mixtures are fed")
    }

    fn has_requested_all(&self) -> bool {
        let is_started = self.under_way.back().is_none_or(|last| last.unstarted.is_empty());
        is_started && !self.stream.has_pieces()
    }
}

impl Driver for SampleDriver {
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        self.request_and_plan(pump, memory)
    }

    fn finished(&mut self, fetched: Fetched) {
        let age = (fetched.token - self.first) as usize;
        let under_way = &mut self.under_way[age];
        under_way.outstanding -= 1;
        add_fetched(&fetched, &mut under_way.batch);
        for (index, error) in fetched.failures {
            let index = fetched.fetch.samples[index].index as usize;
            if self.on_error != OnError::Raise {
                under_way.batch.clear_location(index);
            }
            under_way.left_out.add(index, error);
        }
        self.plans.recycle(fetched.fetch);
    }

    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        let front = self.under_way.front()?;
        if front.outstanding > 0 || !front.unstarted.is_empty() {
            return None;
        }
        let front = self.under_way.pop_front()?;
        self.first += 1;
        self.free_lists.push(front.unstarted);
        Some(front.left_out.deliver(front.batch, front.head))
    }

    fn is_done(&self) -> bool {
        self.under_way.is_empty() && self.stream.is_done()
    }
}

/// The most batches planned ahead, if they are small.
pub(super) const MAX_PLANNED: usize = 4096;

/// The most samples planned ahead, besides one batch. This many samples of 340 bytes fill a window of the default
/// size, so that reading continues across groups. Their plans take 12 MiB.
pub(super) const MAX_PLANNED_SAMPLES: usize = 3 << 18;

/// The most samples planned per turn (0.3 ms), so that the poller soon processes completions again.
const PLANNED_PER_TURN: usize = 2 << 10;

/// The most batches in flight. More tiny batches would gain nothing.
pub(super) const MAX_UNDER_WAY: usize = 64;

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
}
