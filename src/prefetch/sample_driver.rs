//! Reads each batch by itself: neighbouring samples of a batch share a read. Several batches are in flight at once.
//!
//! Read one by one, samples share no read, and one batch is in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::directory::Directory;
use crate::error::Result;
use crate::reader::{
    Batch, Fetch, Fetched, Geometry, Merge, Pump, SamplePlans, SampleRequest, add_fetched,
};
use crate::units::SampleId;

use super::driver::{Delivery, Driver, LeftOut, Planner, SourceDriver};
use super::stream::{Fed, Stream};
use super::walk::Head;
use super::window::{Memory, Priority};
use super::{OnError, gone};

/// Reads each batch by itself.
pub(super) struct SampleDriver {
    directory: Arc<Directory>,
    plans: SamplePlans,
    stream: Stream,
    merge: Merge,
    /// The most bytes of samples that share a read.
    max_fetch_bytes: usize,
    on_error: OnError,
    /// The batches in flight, in order.
    under_way: VecDeque<UnderWay>,
    /// The token of the reads of `under_way[0]`; each following batch has the next one.
    pub(super) first: u64,
    /// The most batches in flight, if the stream is not fed.
    max_under_way: usize,
    /// Memory for the ids of one batch.
    ids: Vec<SampleId>,
    /// Empty lists of reads, to be used again.
    free_lists: Vec<VecDeque<Fetch>>,
}

/// A batch in flight.
struct UnderWay {
    head: Head,
    batch: Batch,
    /// Planned reads that are not started yet.
    unstarted: VecDeque<Fetch>,
    /// The number of outstanding reads.
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
            let extent = extent.ok_or_else(|| gone(id))?;
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

/// The most batches in flight. More tiny batches would gain nothing.
pub(super) const MAX_UNDER_WAY: usize = 64;
