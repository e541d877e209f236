//! Reads a mixture: one driver per source, all on one poller, one pump and one window.
//!
//! Sources have their own directories, chunks and epochs, so each has a driver. Batches are planned in *spans*: one
//! batch, or several small ones. A *part* has the samples of one epoch of one source in a span; a driver reads each
//! part like a batch of its own. So a driver handles as many samples at a time as in a run over one data set.
//!
//! Drivers advance together: the reads of a span are started for all sources before the next span is planned. So
//! batches get memory in their order, whichever source they draw from, as in one data set. Once all parts of a span
//! have arrived, its batches take their samples from the parts in turn. A driver is created when its source is first
//! drawn: a source that is never drawn costs nothing.
//!
//! `mix_plan.rs` decides which sources are read by whole chunks, how large the shared window is, and how many batches
//! a span has.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::order::{OrderSpec, State};
use crate::reader::{BatchOfSource, FETCH_LEN_BYTES, Fetched, Geometry, Pump};
use crate::units::Epoch;

use super::chunks::ChunkDriver;
use super::driver::{
    Delivery, Driver, LeftOut, MAX_PLANNED_SAMPLES, Planner, PollerInput, Residency, SourceDriver,
};
use super::mix::{Drawn, Mix};
use super::mix_plan::{MixPlan, plan};
use super::mix_stream::MixStream;
use super::options::{Batching, LoaderOptions};
use super::sample_driver::SampleDriver;
use super::stream::{Piece, Placed, Stream};
use super::walk::Head;
use super::window::Memory;
use super::working_set::page_cached;
use super::{OnError, Spares};

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
    /// The driver of each source, once it has been drawn.
    drivers: Vec<Option<Box<dyn SourceDriver>>>,
    /// The spans that are not delivered yet, in order.
    planned: VecDeque<Span>,
    /// The number of samples in all of `planned` that are not delivered yet.
    num_planned: usize,
    /// The number of batches in the next span: few in the first spans, which the consumer waits for.
    next_span: usize,
    /// The number of parts of the last planned span whose reads have all been started.
    requested: usize,
    /// Memory for the samples of one batch.
    drawn: Vec<Drawn>,
    /// By source: its last part in the span that is being planned, or `NONE`.
    last_part_of: Vec<u32>,
    /// Sources with overwritten memory that is to be read again.
    to_reread: Vec<u32>,
    /// The source of the last error or skipped sample.
    suspect: u32,
    /// Empty spans, to be used again.
    free_spans: Vec<Span>,
    /// Empty batches of the mixture.
    spares: Spares,
    /// The empty batches of each source.
    spares_of: Vec<Spares>,
    /// The residency of each source; without slots unless the source is read by whole chunks.
    residencies: Vec<Arc<Residency>>,
}

/// Batches whose samples are read together.
#[derive(Default)]
struct Span {
    /// The batches that are not delivered yet, each with the end of its samples in `part_of`.
    batches: VecDeque<(Head, usize)>,
    /// For each sample of all its batches: the part that has it. A part has its samples in this order.
    part_of: Vec<u32>,
    /// The number of delivered samples of `part_of`.
    delivered: usize,
    parts: Vec<Part>,
    /// The number of parts that have arrived.
    arrived: usize,
}

/// The samples of one epoch of a source in a span.
struct Part {
    source: u32,
    epoch: u64,
    /// The previous part of the same source in this span, or `NONE`.
    before: u32,
    /// The positions to read, until the driver is fed with them.
    piece: Option<Piece>,
    /// The samples, once they have arrived.
    batch: BatchOfSource,
    /// Samples that could not be read: index in `batch`, ascending, and error.
    failures: VecDeque<(u32, Error)>,
}

impl MixDriver {
    /// The part in `parts` for the samples of this epoch of the source; adds one if there is none.
    #[inline]
    fn part(&mut self, parts: &mut Vec<Part>, source: u32, epoch: u64) -> u32 {
        let last = self.last_part_of[source as usize];
        let mut index = last;
        while index != NONE {
            let part = &parts[index as usize];
            if part.epoch == epoch {
                return index;
            }
            index = part.before;
        }
        self.new_part(parts, (source, epoch), last)
    }

    /// Adds a part for the samples of this epoch of the source; `before` is the source's previous part.
    #[cold]
    fn new_part(&mut self, parts: &mut Vec<Part>, (source, epoch): (u32, u64), before: u32) -> u32 {
        let positions = self.driver(source).fed().free.pop().unwrap_or_default();
        let piece = Some(Piece { epoch: Epoch(epoch), positions });
        let batch = BatchOfSource::default();
        let failures = VecDeque::new();
        parts.push(Part { source, epoch, before, piece, batch, failures });
        let index = parts.len() as u32 - 1;
        self.last_part_of[source as usize] = index;
        index
    }

    /// The driver of a source; creates it if necessary.
    fn driver(&mut self, source: u32) -> &mut dyn SourceDriver {
        let at = source as usize;
        if self.drivers[at].is_none() {
            self.drivers[at] = Some(self.new_driver(at));
        }
        &mut **self.drivers[at].as_mut().expect("it was made just now")
    }

    /// Creates the driver of a source, as the plan says.
    fn new_driver(&self, source: usize) -> Box<dyn SourceDriver> {
        let directory = Arc::clone(&self.mix.directories[source]);
        let first = self.first_namespace[source];
        let geometry = self.geometry[first..first + self.mix.devices[source].len()].to_vec();
        let mut stream =
            Stream::fed(Arc::clone(&directory), self.mix.order_of(source, &self.order));
        stream.spares = self.spares_of[source].clone();
        // Failed samples keep their places in a part: their errors belong to one batch of the span.
        let on_error = OnError::Blank;
        match self.plan.batching[source] {
            Batching::Chunk => {
                let residency = Arc::clone(&self.residencies[source]);
                let keep = self.verify_kept;
                let patience = self.plan.patience;
                Box::new(ChunkDriver::new(
                    directory, geometry, stream, on_error, keep, residency, patience,
                ))
            }
            batching => {
                let run = FETCH_LEN_BYTES.min(self.plan.window_bytes / 8).max(1);
                let one_by_one = batching == Batching::None;
                Box::new(SampleDriver::new(directory, geometry, stream, one_by_one, run, on_error))
            }
        }
    }

    /// Lets the driver of `source` start the reads it was fed. The second result is `false` if memory ran out or
    /// the queue pairs are busy.
    fn advance_source(
        &mut self,
        source: u32,
        pump: &mut Pump,
        memory: &mut Memory,
    ) -> Result<(bool, bool)> {
        if memory.starving {
            // Evict chunks of other sources that no batch waits for, before memory outside the window is used.
            self.evict_but(source);
        }
        pump.select(source);
        let driver = self.driver(source);
        let moved = driver.advance(pump, memory)?;
        Ok((moved, driver.has_requested_all()))
    }

    /// Evicts data of one source other than this one, if any has data that no batch waits for.
    fn evict_but(&mut self, source: u32) {
        for (at, driver) in self.drivers.iter_mut().enumerate() {
            if at != source as usize && driver.as_mut().is_some_and(|it| it.evict_unpinned()) {
                return;
            }
        }
    }

    /// Assembles the next batch of the oldest span, whose parts have all arrived.
    fn assemble(&mut self) -> Option<Result<Delivery>> {
        let span = self.planned.front_mut()?;
        let (head, end) = span.batches.pop_front()?;
        let mut batch = self.spares.take();
        batch.reset_mixed(&self.mix.directories, head.epoch);
        batch.reserve(end - span.delivered);
        let number = span.batches.len() as u32; // differs from those of the span's other batches
        let mut left_out = LeftOut::new(self.on_error);
        for &index in &span.part_of[span.delivered..end] {
            let part = &mut span.parts[index as usize];
            let nth = batch.push_next_of(&mut part.batch, number);
            if part.failures.front().is_some_and(|(failed, _)| *failed == nth)
                && let Some((_, error)) = part.failures.pop_front()
            {
                self.suspect = part.source;
                left_out.add(batch.len(), error);
            }
        }
        self.num_planned -= end - span.delivered;
        span.delivered = end;
        if span.batches.is_empty() {
            self.forget_first();
        }
        Some(left_out.deliver(batch, head))
    }

    /// Drops the oldest span, whose batches have been delivered.
    fn forget_first(&mut self) {
        if self.planned.len() == 1 {
            self.requested = 0;
        }
        let Some(mut span) = self.planned.pop_front() else { return };
        for part in span.parts.drain(..) {
            self.spares_of[part.source as usize].keep(part.batch.into_empty());
        }
        span.part_of.clear();
        (span.delivered, span.arrived) = (0, 0);
        self.free_spans.push(span);
    }
}

impl Planner for MixDriver {
    fn request_planned(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<(bool, bool)> {
        let mut moved = false;
        while let Some(source) =
            self.planned.back().and_then(|last| Some(last.parts.get(self.requested)?.source))
        {
            let (more, all) = self.advance_source(source, pump, memory)?;
            moved |= more;
            if !all {
                return Ok((moved, false));
            }
            self.requested += 1;
        }
        Ok((moved, true))
    }

    /// Plans one more span.
    fn plan_next(&mut self) -> Result<bool> {
        let mut span = self.free_spans.pop().unwrap_or_default();
        while span.batches.len() < self.next_span {
            let Some(head) = self.stream.next(&mut self.drawn)? else { break };
            for at in 0..self.drawn.len() {
                let Drawn { source, epoch, position, alone } = self.drawn[at];
                let index = self.part(&mut span.parts, source, epoch.0);
                span.part_of.push(index);
                if let Some(piece) = &mut span.parts[index as usize].piece {
                    piece.positions.push(Placed { position, alone });
                }
            }
            span.batches.push_back((head, span.part_of.len()));
        }
        if span.batches.is_empty() {
            self.free_spans.push(span);
            return Ok(false);
        }
        self.next_span = (2 * self.next_span).min(self.plan.span);
        for part in &mut span.parts {
            self.last_part_of[part.source as usize] = NONE;
            if let Some(piece) = part.piece.take() {
                self.driver(part.source).fed().pieces.push_back(piece);
            }
        }
        self.num_planned += span.part_of.len();
        self.requested = 0;
        self.planned.push_back(span);
        Ok(true)
    }

    fn has_enough(&self) -> bool {
        let enough = self.num_planned >= MAX_PLANNED_SAMPLES && self.planned.len() > 1;
        enough || self.planned.len() >= self.plan.max_spans
    }

    fn num_planned(&self) -> usize {
        self.num_planned
    }
}

impl Driver for MixDriver {
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        let mut moved = false;
        while let Some(&source) = self.to_reread.last() {
            let (more, all) = self.advance_source(source, pump, memory)?;
            moved |= more;
            if !all {
                return Ok(moved);
            }
            self.to_reread.pop();
        }
        Ok(self.request_and_plan(pump, memory)? || moved)
    }

    fn finished(&mut self, fetched: Fetched) {
        self.driver(fetched.image).finished(fetched);
    }

    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        let MixDriver { planned, drivers, suspect, .. } = self;
        let front = planned.front_mut()?;
        while let Some(part) = front.parts.get_mut(front.arrived) {
            let driver = drivers[part.source as usize].as_mut()?;
            match driver.next_ready()? {
                Ok(Delivery { batch, failures, .. }) => {
                    part.batch = BatchOfSource::new(part.source, batch);
                    part.failures = failures.into();
                }
                Err(error) => {
                    *suspect = part.source;
                    return Some(Err(error));
                }
            }
            front.arrived += 1;
        }
        self.assemble()
    }

    fn is_done(&self) -> bool {
        self.planned.is_empty() && self.stream.is_done()
    }

    fn read_again(&mut self, source: u32, chunk: u32, load: u32) {
        if let Some(driver) = self.drivers.get_mut(source as usize).and_then(Option::as_mut) {
            driver.read_again(0, chunk, load);
            self.to_reread.push(source);
        }
    }

    fn suspect(&self) -> u32 {
        self.suspect
    }
}

/// The input of a poller that reads `mix` from `state` on; `pump` has the namespaces of all sources.
pub(super) fn poller_input(
    mut pump: Pump,
    mix: &Arc<Mix>,
    options: &LoaderOptions,
    state: &State,
) -> Result<PollerInput> {
    pump.divide(mix.devices.iter().map(Vec::len))?;
    for (at, directory) in (0..).zip(mix.directories.iter()) {
        pump.select(at);
        pump.learn(directory);
    }
    if mix.devices.iter().all(|devices| page_cached(devices)) {
        let of_one = mix.devices.iter().map(Vec::len).max();
        pump.count_queues(of_one.unwrap_or(1).saturating_mul(options.queue_pairs));
    }
    let plan = plan(mix, options)?;
    if plan.batching.contains(&Batching::None) {
        pump.limit_outstanding(1);
    }
    let stream = MixStream::new(mix, options, state)?;
    let mut next = 0;
    let first_namespace = mix.devices.iter().map(|devices| {
        let first = next;
        next += devices.len();
        first
    });
    let num_sources = mix.devices.len();
    let spares = Spares::default();
    let sources = mix.directories.iter().zip(&plan.batching);
    let residencies = sources.map(|(directory, batching)| match batching {
        Batching::Chunk => Arc::new(Residency::new(directory.num_samples())),
        _ => Arc::new(Residency::new(0)),
    });
    let residencies: Vec<_> = residencies.collect();
    let residency = Arc::new(Residency::of_sources(residencies.clone()));
    let driver = MixDriver {
        mix: Arc::clone(mix),
        order: state.order,
        plan,
        stream,
        geometry: pump.geometry(),
        first_namespace: first_namespace.collect(),
        on_error: options.on_error,
        verify_kept: options.verify_kept,
        drivers: (0..num_sources).map(|_| None).collect(),
        planned: VecDeque::new(),
        num_planned: 0,
        next_span: 1,
        requested: 0,
        drawn: Vec::new(),
        last_part_of: vec![NONE; num_sources],
        to_reread: Vec::new(),
        suspect: 0,
        free_spans: Vec::new(),
        spares: spares.clone(),
        spares_of: (0..num_sources).map(|_| Spares::default()).collect(),
        residencies,
    };
    let directories = Arc::clone(&mix.directories);
    Ok(PollerInput { pump, driver: Box::new(driver), residency, directories, spares })
}

/// Stands for no part.
const NONE: u32 = u32::MAX;
