//! Reads a mixture: one driver for each source, all on one poller, one pump and one window.
//!
//! Sources have their own directories, chunks and epochs, so each keeps a driver that reads its parts of batches
//! as it would read its own batches. They advance together: the reads of a batch are started for all sources before
//! the next batch is planned. So memory goes to batches in their order, whichever source they draw from, as if there
//! were one data set. A driver is made when its source is drawn first: a source that is never drawn costs nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::Result;
use crate::order::OrderSpec;
use crate::reader::{Batch, FETCH_LEN_BYTES, Fetched, Geometry, Pump};

use super::chunks::ChunkDriver;
use super::fed::{Piece, Placed};
use super::head::Head;
use super::memory::Memory;
use super::mix::Mix;
use super::mixture::{Drawn, MixStream};
use super::options::Batching;
use super::residency::Residency;
use super::samples::SampleDriver;
use super::stream::Stream;
use super::{Delivery, Driver, MAX_RECYCLED, OnError};

/// Drives the batches of a mixture.
pub(super) struct MixDriver {
    mix: Arc<Mix>,
    order: OrderSpec,
    plan: MixPlan,
    stream: MixStream,
    geometry: Vec<Geometry>,
    /// The first namespace of each source.
    first_namespace: Vec<usize>,
    on_error: OnError,
    verify_kept: bool,
    drivers: Vec<Option<Box<SourceDriver>>>,
    planned: VecDeque<PlannedBatch>,
    num_planned: usize,
    /// How many of the parts of the last planned batch have been requested.
    requested: usize,
    drawn: Vec<Drawn>,
    /// By source: the last part of the batch that is being planned, or `NONE`.
    part_of: Vec<u32>,
    /// Sources with overwritten memory that is to be read again.
    to_reread: Vec<u32>,
    /// The source whose part the last error or skipped sample was in.
    suspect: u32,
    free_parts: Vec<Vec<Part>>,
    free_places: Vec<Vec<(u32, u32)>>,
    recycled: Vec<Batch>,
}

/// How the sources are read.
#[derive(Debug, Clone)]
pub(super) struct MixPlan {
    /// By chunks, by samples, or one command at a time.
    pub(super) batching: Vec<Batching>,
    /// Batches for which a chunk stays after its last use; 0: until its group has ended.
    pub(super) patience: u64,
    pub(super) window_bytes: usize,
}

enum SourceDriver {
    Chunks(ChunkDriver),
    Samples(SampleDriver),
}

struct PlannedBatch {
    head: Head,
    /// For each sample: the part that has it, and its place there.
    places: Vec<(u32, u32)>,
    parts: Vec<Part>,
    /// How many parts have arrived.
    arrived: usize,
}

/// The samples that a batch has of one epoch of a source.
struct Part {
    source: u32,
    epoch: u64,
    /// The part of the same source before it, or `NONE`.
    before: u32,
    len: u32,
    piece: Option<Piece>,
    batch: Batch,
    skipped: u64,
    first_buf: u32,
    rechecked: usize,
}

impl MixDriver {
    pub(super) fn new(
        mix: Arc<Mix>,
        order: OrderSpec,
        plan: MixPlan,
        stream: MixStream,
        geometry: Vec<Geometry>,
        (on_error, verify_kept): (OnError, bool),
    ) -> MixDriver {
        let mut next = 0;
        let first_namespace = mix.sources().iter().map(|source| {
            let first = next;
            next += source.devices.len();
            first
        });
        let num_sources = mix.sources().len();
        MixDriver {
            first_namespace: first_namespace.collect(),
            drivers: (0..num_sources).map(|_| None).collect(),
            part_of: vec![NONE; num_sources],
            mix,
            order,
            plan,
            stream,
            geometry,
            on_error,
            verify_kept,
            planned: VecDeque::new(),
            num_planned: 0,
            requested: 0,
            drawn: Vec::new(),
            to_reread: Vec::new(),
            suspect: 0,
            free_parts: Vec::new(),
            free_places: Vec::new(),
            recycled: Vec::new(),
        }
    }

    /// Plans one more batch. `false`: there is none.
    fn plan_next(&mut self) -> bool {
        let Some(head) = self.stream.next(&mut self.drawn) else { return false };
        let mut parts = self.free_parts.pop().unwrap_or_default();
        let mut places = self.free_places.pop().unwrap_or_default();
        for at in 0..self.drawn.len() {
            let Drawn { source, epoch, position, alone } = self.drawn[at];
            let index = self.part(&mut parts, source, epoch.0);
            let part = &mut parts[index as usize];
            places.push((index, part.len));
            part.len += 1;
            if let Some(piece) = &mut part.piece {
                piece.positions.push(Placed { position, alone });
            }
        }
        for part in &mut parts {
            self.part_of[part.source as usize] = NONE;
            if let Some(piece) = part.piece.take() {
                self.driver(part.source).stream().feed(piece);
            }
        }
        self.num_planned += places.len();
        self.requested = 0;
        self.planned.push_back(PlannedBatch { head, places, parts, arrived: 0 });
        true
    }

    /// The part of `parts` with the samples of this epoch of the source.
    fn part(&mut self, parts: &mut Vec<Part>, source: u32, epoch: u64) -> u32 {
        let last = self.part_of[source as usize];
        let mut index = last;
        while index != NONE && parts[index as usize].epoch != epoch {
            index = parts[index as usize].before;
        }
        if index != NONE {
            return index;
        }
        let positions = self.driver(source).stream().free_positions();
        let piece = Piece { epoch: crate::units::Epoch(epoch), positions, is_last: true };
        parts.push(Part {
            source,
            epoch,
            before: last,
            len: 0,
            piece: Some(piece),
            batch: Batch::new(),
            skipped: 0,
            first_buf: 0,
            rechecked: 0,
        });
        let index = parts.len() as u32 - 1;
        self.part_of[source as usize] = index;
        index
    }

    fn driver(&mut self, source: u32) -> &mut SourceDriver {
        let at = source as usize;
        if self.drivers[at].is_none() {
            self.drivers[at] = Some(Box::new(self.new_driver(at)));
        }
        self.drivers[at].as_mut().expect("it was made just now")
    }

    fn new_driver(&self, source: usize) -> SourceDriver {
        let directory = Arc::clone(&self.mix.directories()[source]);
        let first = self.first_namespace[source];
        let geometry =
            self.geometry[first..first + self.mix.sources()[source].devices.len()].to_vec();
        let stream = Stream::fed(Arc::clone(&directory), self.mix.order_of(source, &self.order));
        // A part keeps the places of skipped samples: places of the batch point into it.
        let on_error = match self.on_error {
            OnError::Raise => OnError::Raise,
            OnError::Skip | OnError::Blank => OnError::Blank,
        };
        match self.plan.batching[source] {
            Batching::Chunk => {
                let residency = Arc::new(Residency::new(directory.num_samples()));
                let keep = self.verify_kept;
                let chunks =
                    ChunkDriver::new(directory, geometry, stream, on_error, keep, residency);
                SourceDriver::Chunks(chunks.patient(self.plan.patience))
            }
            batching => {
                let run = FETCH_LEN_BYTES.min(self.plan.window_bytes / 8).max(1);
                let one_by_one = batching == Batching::None;
                let samples =
                    SampleDriver::new(directory, geometry, stream, one_by_one, run, on_error);
                SourceDriver::Samples(samples)
            }
        }
    }

    /// Lets the driver of `source` start what it was fed with. The second result is `false` if it lacks memory, or the
    /// queue pairs are busy.
    fn advance_source(
        &mut self,
        source: u32,
        pump: &mut Pump,
        memory: &mut Memory,
    ) -> Result<(bool, bool)> {
        if memory.is_starving() {
            // Chunks of other sources that no batch waits for make room before memory outside the window is taken.
            self.evict_but(source);
        }
        pump.select(source);
        let driver = self.driver(source);
        let moved = driver.as_driver().advance(pump, memory)?;
        Ok((moved, driver.has_requested_all()))
    }

    fn evict_but(&mut self, source: u32) {
        for (at, driver) in self.drivers.iter_mut().enumerate() {
            if at != source as usize
                && let Some(SourceDriver::Chunks(chunks)) = driver.as_deref_mut()
                && chunks.evict_unpinned()
            {
                return;
            }
        }
    }

    /// Joins the parts of a batch.
    fn assemble(&mut self, mut planned: PlannedBatch) -> Delivery {
        let mut batch = self.recycled.pop().unwrap_or_default();
        batch.reset_mixed(self.mix.directories(), planned.head.epoch);
        batch.reserve(planned.places.len());
        let mut skipped = 0;
        for part in &mut planned.parts {
            part.first_buf = batch.take_bufs(&mut part.batch);
            skipped += part.skipped;
        }
        for &(index, nth) in &planned.places {
            let Part { source, batch: part, first_buf, rechecked, .. } =
                &mut planned.parts[index as usize];
            batch.push_from((*source, part, *first_buf), nth as usize, rechecked);
        }
        if planned.head.ends_epoch {
            batch.set_ends_epoch();
        }
        if skipped > 0 {
            batch.remove_missing();
        }
        for mut part in planned.parts.drain(..) {
            part.batch.clear();
            self.driver(part.source).as_driver().recycle(part.batch);
        }
        planned.places.clear();
        self.free_parts.push(planned.parts);
        self.free_places.push(planned.places);
        Delivery { batch, head: planned.head, skipped }
    }
}

impl SourceDriver {
    fn as_driver(&mut self) -> &mut dyn Driver {
        match self {
            SourceDriver::Chunks(driver) => driver,
            SourceDriver::Samples(driver) => driver,
        }
    }

    fn stream(&mut self) -> &mut Stream {
        match self {
            SourceDriver::Chunks(driver) => driver.stream(),
            SourceDriver::Samples(driver) => driver.stream(),
        }
    }

    fn has_requested_all(&self) -> bool {
        match self {
            SourceDriver::Chunks(driver) => driver.has_requested_all(),
            SourceDriver::Samples(driver) => driver.has_requested_all(),
        }
    }
}

impl Driver for MixDriver {
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        let (mut moved, begun_with) = (false, self.num_planned);
        while let Some(&source) = self.to_reread.last() {
            let (more, all) = self.advance_source(source, pump, memory)?;
            moved |= more;
            if !all {
                return Ok(moved);
            }
            self.to_reread.pop();
        }
        loop {
            while let Some(source) =
                self.planned.back().and_then(|last| Some(last.parts.get(self.requested)?.source))
            {
                let (more, all) = self.advance_source(source, pump, memory)?;
                moved |= more;
                if !all {
                    return Ok(moved);
                }
                self.requested += 1;
            }
            let enough = self.num_planned >= MAX_PLANNED_SAMPLES && self.planned.len() > 1;
            if enough || self.planned.len() == MAX_PLANNED {
                return Ok(moved);
            }
            if self.num_planned - begun_with >= PLANNED_PER_TURN {
                return Ok(true);
            }
            if !self.plan_next() {
                return Ok(moved);
            }
            moved = true;
        }
    }

    fn finished(&mut self, fetched: Fetched) {
        self.driver(fetched.image).as_driver().finished(fetched);
    }

    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        let MixDriver { planned, drivers, suspect, .. } = self;
        let front = planned.front_mut()?;
        while let Some(part) = front.parts.get_mut(front.arrived) {
            let driver = drivers[part.source as usize].as_mut()?;
            match driver.as_driver().next_ready()? {
                Ok(Delivery { batch, skipped, .. }) => {
                    (part.batch, part.skipped) = (batch, skipped)
                }
                Err(error) => {
                    *suspect = part.source;
                    return Some(Err(error));
                }
            }
            if part.skipped > 0 {
                *suspect = part.source;
            }
            front.arrived += 1;
        }
        if self.planned.len() == 1 {
            self.requested = 0;
        }
        let planned = self.planned.pop_front()?;
        self.num_planned -= planned.places.len();
        Some(Ok(self.assemble(planned)))
    }

    fn is_done(&self) -> bool {
        self.planned.is_empty() && self.stream.is_done()
    }

    fn recycle(&mut self, batch: Batch) {
        if self.recycled.len() < MAX_RECYCLED {
            self.recycled.push(batch);
        }
    }

    fn read_again(&mut self, source: u32, chunk: u32, load: u32) {
        if let Some(driver) = self.drivers.get_mut(source as usize).and_then(Option::as_mut) {
            driver.as_driver().read_again(0, chunk, load);
            self.to_reread.push(source);
        }
    }

    fn suspect(&self) -> u32 {
        self.suspect
    }
}

const NONE: u32 = u32::MAX;

/// The most batches planned ahead, if they are small.
const MAX_PLANNED: usize = 4096;

/// The most samples planned ahead, beside one batch.
const MAX_PLANNED_SAMPLES: usize = 3 << 18;

/// The most samples planned per turn, so that the poller soon processes completions again.
const PLANNED_PER_TURN: usize = 2 << 10;
