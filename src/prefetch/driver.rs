//! The interface of a driver, which decides what data stays in memory, and the planning loop that most drivers
//! share.

use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::reader::{Batch, Fetched, Pump};

use super::READY_BATCHES;
use super::head::Head;
use super::memory::Memory;
use super::residency::Residency;
use super::stream::Stream;

/// A batch for the consumer.
pub(super) struct Delivery {
    pub(super) batch: Batch,
    pub(super) head: Head,
    pub(super) skipped: u64,
    /// With `OnError::Blank`: the places of samples that could not be read, ascending, and their errors.
    pub(super) failures: Vec<(u32, Error)>,
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
    /// Takes an empty batch, to reuse its vectors.
    fn recycle(&mut self, batch: Batch);
    /// Handles overwritten memory: read number `load` filled it with `chunk` of `source`.
    fn read_again(&mut self, _source: u32, _chunk: u32, _load: u32) {}
    /// The source of the last error or skipped sample.
    fn suspect(&self) -> u32 {
        0
    }
}

/// A driver of one source of a mixture, which is fed its parts of batches.
pub(super) trait SourceDriver: Driver {
    /// The stream that is fed.
    fn stream(&mut self) -> &mut Stream;
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

/// The most batches planned ahead, if they are small.
pub(super) const MAX_PLANNED: usize = 4096;

/// The most samples planned ahead, besides one batch. This many samples of 340 bytes fill a window of the default
/// size, so that reading continues across groups. Their plans take 12 MiB.
pub(super) const MAX_PLANNED_SAMPLES: usize = 3 << 18;

/// The most samples planned per turn (0.3 ms), so that the poller soon processes completions again.
const PLANNED_PER_TURN: usize = 2 << 10;

/// The most empty batches kept for reuse: as many as can be in flight and ready, and one per thread.
pub(super) const MAX_RECYCLED: usize = 2 * READY_BATCHES + 2;
