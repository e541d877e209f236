//! The rule of what stays in memory: what the poller asks of it, and what most rules have in common.

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
    /// With `OnError::Blank`: the places of samples that could not be read, in their order, and why.
    pub(super) failures: Vec<(u32, Error)>,
}

/// Decides how batches are read. All calls come from the poller.
pub(super) trait Driver: Send {
    /// Plans, and starts what memory allows; whether it did anything.
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool>;
    /// Takes a completed fetch.
    fn finished(&mut self, fetched: Fetched);
    /// The next batch in order, once it is complete.
    fn next_ready(&mut self) -> Option<Result<Delivery>>;
    /// Returns whether every batch has been taken.
    fn is_done(&self) -> bool;
    /// Takes an empty batch, to reuse its vectors.
    fn recycle(&mut self, batch: Batch);
    /// The memory that read number `load` filled with `chunk` of `source` was overwritten.
    fn read_again(&mut self, _source: u32, _chunk: u32, _load: u32) {}
    /// The source whose samples the last error or skipped sample was among.
    fn suspect(&self) -> u32 {
        0
    }
}

/// Drives what it is fed with: a source of a mixture.
pub(super) trait SourceDriver: Driver {
    /// The stream, which is fed.
    fn stream(&mut self) -> &mut Stream;
    /// Returns whether reads of everything fed to its stream, and of what was overwritten, have been started.
    fn has_requested_all(&self) -> bool;
    /// Evicts what no batch waits for and is needed latest. `false`: there is nothing.
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

/// Plans batch by batch, and requests what is planned before it plans more.
pub(super) trait Planner {
    /// Requests what is planned. The first result says whether it did anything; the second is `false` if memory ran
    /// out or the queue pairs are busy.
    fn request_planned(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<(bool, bool)>;
    /// Plans one more batch. `false`: the stream has ended.
    fn plan_next(&mut self) -> Result<bool>;
    /// Returns whether to plan no further now.
    fn has_enough(&self) -> bool;
    /// The number of samples that are planned and not delivered; 0 where batches alone limit planning.
    fn num_planned(&self) -> usize;

    /// Requests and plans by turns, while memory, queue pairs and the limits of planning allow it; whether it did
    /// anything.
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

/// The most samples planned ahead, beside one batch. Samples of 340 bytes fill a window of the
/// default size, so that reading continues across groups. Their plans take 12 MiB.
pub(super) const MAX_PLANNED_SAMPLES: usize = 3 << 18;

/// The most samples planned per turn (0.3 ms), so that the poller soon processes completions again.
const PLANNED_PER_TURN: usize = 2 << 10;

/// Emptied batches kept for reuse: as many as can be in flight and ready, and one in each thread.
pub(super) const MAX_RECYCLED: usize = 2 * READY_BATCHES + 2;
