//! Hands samples out of whole chunks: one large read per chunk, and no copy of a sample.
//!
//! A chunk is resident from its arrival until its group has ended and the last batch with its samples is assembled. A
//! lane reads one group after the other, so the first read for a lane's next group closes the chunks of the previous
//! group. Sequences that return to earlier groups keep chunks for some batches instead (`patience`), and a sample of a
//! chunk that another rank reads is read alone and dropped after its batch.
//!
//! A chunk that is still resident when the next epoch needs it is not read again. Its earlier users could have written
//! to it through an alias. With [`LoaderOptions::verify_kept`](super::LoaderOptions), its samples are verified again
//! when they are handed out.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use slab::Slab;

use crate::buf::{IoBuf, SharedBuf};
use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::order::{OrderSpec, Pick};
use crate::reader::{Fetch, Fetched, Geometry, Pump, SampleLocation, plan_chunk};
use crate::units::Slot;

use super::OnError;
use super::driver::{
    Delivery, Driver, LeftOut, MAX_PLANNED, MAX_PLANNED_SAMPLES, Planner, Residency, SourceDriver,
};
use super::sample_driver::SampleDriver;
use super::stream::{Fed, Stream};
use super::walk::Head;
use super::window::{Memory, Priority};

/// Reads whole chunks, and hands samples out of them.
pub(super) struct ChunkDriver {
    directory: Arc<Directory>,
    geometry: Vec<Geometry>,
    stream: Stream,
    /// The first batch, until it is delivered, if it is read by samples.
    early: Option<Box<SampleDriver>>,
    on_error: OnError,
    /// Set if samples of chunks kept from an earlier epoch are verified again.
    verify_kept: bool,
    residency: Arc<Residency>,
    /// Batches for which a chunk stays after its last use, for sequences that return to earlier groups; 0 if it stays
    /// until its group ends.
    patience: u64,
    /// The chunks, or parts of chunks, in memory or being read.
    residents: Slab<Resident>,
    /// By chunk number: the index in `residents` of its first resident, or `NONE`.
    first_of: Vec<u32>,
    /// Indices of the residents that belong to groups: all but single samples.
    held: Vec<u32>,
    /// The batches that are not delivered yet, in order.
    planned: VecDeque<PlannedBatch>,
    /// The number of samples in all of `planned`.
    num_planned: usize,
    /// The number of batches at the front of `planned` that have requested all their chunks.
    requested: usize,
    /// The number of the batch `planned[0]`.
    first: u64,
    /// Empty plans of reads, to be used again.
    free_fetches: Vec<Fetch>,
    /// Residents with overwritten memory: they are read again as soon as there is other memory.
    to_reread: Vec<u32>,
    /// The number of chunk reads so far, including repeated ones.
    num_reads: u32,
    /// A planned chunk read that waits for memory.
    unstarted: Option<UnstartedRead>,
    /// Empty lists of picks, to be used again.
    free_picks: Vec<Vec<Pick>>,
}

/// A planned read of some samples of a chunk, which waits for memory.
struct UnstartedRead {
    chunk: u32,
    samples: Range<u32>,
    fetch: Fetch,
}

/// A range of a chunk's samples in memory, or being read; usually all of them.
#[derive(Default)]
struct Resident {
    chunk: u32,
    /// The samples, counted from the start of the chunk.
    samples: Range<u32>,
    /// Set if this is a single sample of a chunk that another rank reads: it is dropped once it has been handed out.
    alone: bool,
    /// The next resident of the same chunk, or `NONE`: a chunk may belong to two lanes.
    next: u32,
    /// Lane, epoch and group of the order that use the resident now.
    lane: u32,
    epoch: u64,
    group: u32,
    /// The number of the read that filled the memory, and the epoch for which it was read.
    load: u32,
    read_for: u64,
    /// The samples and their places in `buf`.
    fetch: Fetch,
    buf: SharedBuf,
    /// Samples that must not be handed out: index into `fetch.samples`, ascending, and error.
    failures: Vec<(usize, Error)>,
    /// Set once the read has arrived.
    ready: bool,
    /// The number of planned batches that use it and are not assembled yet.
    pins: u32,
    /// Set if it may be evicted once no batch pins it: its group has ended, or it has not been used for long.
    closed: bool,
    /// The number of the last batch that pinned it.
    pinned_by: u64,
    /// The number of the last batch assembled from it, and the index of `buf` among that batch's buffers.
    used_by: u64,
    buf_index: u32,
}

/// A batch that is planned and not delivered yet.
struct PlannedBatch {
    head: Head,
    picks: Vec<Pick>,
    /// The number of picks at the front whose chunks are requested.
    requested: usize,
    /// The number of picks at the front whose chunks have arrived. The chunks are pinned, so they stay.
    arrived: usize,
}

impl ChunkDriver {
    pub(super) fn new(
        directory: Arc<Directory>,
        geometry: Vec<Geometry>,
        stream: Stream,
        on_error: OnError,
        verify_kept: bool,
        residency: Arc<Residency>,
        patience: u64,
    ) -> ChunkDriver {
        let first_of = vec![NONE; directory.num_chunks() as usize];
        ChunkDriver {
            directory,
            geometry,
            stream,
            early: None,
            on_error,
            verify_kept,
            residency,
            patience,
            residents: Slab::new(),
            first_of,
            held: Vec::new(),
            planned: VecDeque::new(),
            num_planned: 0,
            requested: 0,
            first: 1,
            free_fetches: Vec::new(),
            to_reread: Vec::new(),
            num_reads: 0,
            unstarted: None,
            free_picks: Vec::new(),
        }
    }

    /// Reads the first batch by samples while its chunks are read. The batch draws from all chunks of the first groups,
    /// so it would wait for `lanes × group` of them: 32 chunks of 4 MiB by default. In return, the samples of this
    /// batch are read twice.
    ///
    /// # Errors
    /// Errors of planning the batch.
    pub(super) fn beginning_early(mut self, spec: OrderSpec) -> Result<ChunkDriver> {
        let mut ids = Vec::new();
        if let Some(head) = self.stream.next_ids(&mut ids)? {
            let directory = Arc::clone(&self.directory);
            let run = directory.layout().chunk_size_bytes as usize;
            let stream = Stream::fed(Arc::clone(&directory), spec);
            let geometry = self.geometry.clone();
            let mut early =
                SampleDriver::new(directory, geometry, stream, false, run, self.on_error);
            early.first = EARLY_TOKEN;
            early.plan(head, &ids)?;
            self.early = Some(Box::new(early));
        }
        Ok(self)
    }

    /// Requests the chunks of `planned[age]`. `false`: memory ran out, or the queue pairs are busy.
    fn request(&mut self, age: usize, pump: &mut Pump, memory: &mut Memory) -> bool {
        let number = self.first + age as u64;
        let epoch = self.planned[age].head.epoch.0;
        while let Some(&pick) = self.planned[age].picks.get(self.planned[age].requested) {
            let mut index = find(&self.first_of, &self.residents, pick);
            if index == NONE {
                if pump.is_busy() {
                    return false;
                }
                let is_first = age == 0 || self.stream.is_awaited(memory.starving);
                let Some(new) = self.read_chunk(pick, epoch, is_first, pump, memory) else {
                    return false;
                };
                index = new;
            }
            let resident = &mut self.residents[index as usize];
            if resident.epoch != epoch {
                // It is still resident from an earlier epoch, and now belongs to another group.
                (resident.lane, resident.group) = (self.stream.lane_of(pick.group), pick.group);
                resident.epoch = epoch;
                resident.closed = false;
            }
            if resident.alone && !pick.alone {
                // In this epoch, the rank has the whole chunk: the sample then stays until its group ends.
                resident.alone = false;
                self.held.push(index);
            }
            if resident.pinned_by != number {
                resident.pinned_by = number;
                resident.pins += 1;
            }
            self.planned[age].requested += 1;
        }
        true
    }

    /// Starts to read the samples of `pick`'s chunk that the group uses, or with `alone` that of `pick`; returns the
    /// index of the resident. `first`: the next batch waits for it. `None`: memory ran out.
    fn read_chunk(
        &mut self,
        pick: Pick,
        epoch: u64,
        first: bool,
        pump: &mut Pump,
        memory: &mut Memory,
    ) -> Option<u32> {
        let Pick { chunk, group, nth, alone } = pick;
        let lane = self.stream.lane_of(group);
        self.close_groups_before(lane, group, epoch);
        let samples = if alone { nth..nth + 1 } else { self.stream.samples_in_group(group, chunk) };
        let fetch = self.plan(chunk, &samples);
        memory.set_next(&fetch);
        let Some(buf) = self.take_memory(fetch.len_bytes, first, memory) else {
            self.unstarted = Some(UnstartedRead { chunk, samples, fetch });
            return None;
        };
        self.num_reads = self.num_reads.wrapping_add(1);
        let index = self.residents.insert(Resident {
            chunk,
            samples,
            alone,
            next: NONE,
            lane,
            epoch,
            group,
            load: self.num_reads,
            read_for: epoch,
            ..Resident::default()
        });
        self.link(chunk, index as u32);
        if !alone {
            self.held.push(index as u32);
        }
        pump.start(index as u64, fetch, buf);
        Some(index as u32)
    }

    /// Takes memory for a chunk that the next batch (`first`) or a later one waits for.
    fn take_memory(&mut self, len: usize, first: bool, memory: &mut Memory) -> Option<IoBuf> {
        loop {
            // Evict a chunk that no planned batch uses rather than exceed the window.
            let must = first && memory.starving;
            let priority = match first {
                true if must && !self.has_unpinned() => Priority::Sole,
                true => Priority::Next,
                false => Priority::Readahead,
            };
            if let Some(buf) = memory.take(len, priority) {
                return Some(buf);
            }
            if !(must && self.evict_unpinned()) {
                return None;
            }
        }
    }

    /// Starts to read overwritten residents again. `false`: memory ran out.
    fn reread(&mut self, pump: &mut Pump, memory: &mut Memory) -> bool {
        while let Some(&index) = self.to_reread.last() {
            let fetch = &self.residents[index as usize].fetch;
            memory.set_next(fetch);
            let len = fetch.len_bytes;
            let Some(buf) = self.take_memory(len, true, memory) else { return false };
            self.to_reread.pop();
            self.num_reads = self.num_reads.wrapping_add(1);
            let resident = &mut self.residents[index as usize];
            resident.load = self.num_reads;
            pump.start(u64::from(index), std::mem::take(&mut resident.fetch), buf);
        }
        true
    }

    /// Plans the read of some samples of `chunk`; reuses the plan that waits for memory if it is for the same
    /// samples.
    fn plan(&mut self, chunk: u32, range: &Range<u32>) -> Fetch {
        let mut fetch = match self.unstarted.take() {
            Some(read) if read.chunk == chunk && read.samples == *range => return read.fetch,
            Some(other) => other.fetch,
            None => self.free_fetch(chunk, range.len()),
        };
        fetch.clear();
        match (range.len(), self.directory.live_in_chunk(chunk)) {
            (1, live) if live > 1 => {
                let id = self.directory.id_in_chunk(chunk, range.start);
                let extent = self.directory.extent(id).map(|extent| (id, extent));
                plan_chunk(extent.into_iter(), None, &self.geometry, &mut fetch);
            }
            _ => {
                let samples = self.directory.samples_in_chunk(chunk);
                let of_range = samples.skip(range.start as usize).take(range.len());
                plan_chunk(of_range, None, &self.geometry, &mut fetch);
            }
        }
        fetch
    }

    /// An empty plan with room for `samples` samples of `chunk`.
    fn free_fetch(&mut self, chunk: u32, samples: usize) -> Fetch {
        let info = self.directory.chunk(chunk);
        let max_len = u64::from(self.geometry[usize::from(info.namespace)].max_transfer_bytes);
        let transfers = (info.len_bytes / max_len.max(1)) as usize + 2;
        let with_room = || Fetch {
            samples: Vec::with_capacity(samples),
            transfers: Vec::with_capacity(transfers),
            len_bytes: 0,
        };
        take_or_make(&mut self.free_fetches, self.residents.len(), with_room)
    }

    /// Appends the resident at `index` to the list of `chunk`.
    fn link(&mut self, chunk: u32, index: u32) {
        let ChunkDriver { first_of, residents, .. } = self;
        let mut last = &mut first_of[chunk as usize];
        if *last != NONE {
            let mut at = *last;
            while residents[at as usize].next != NONE {
                at = residents[at as usize].next;
            }
            last = &mut residents[at as usize].next;
        }
        *last = index;
    }

    /// Closes the residents that are needed no more once `group` of `lane` begins in `epoch`; with patience, those that
    /// no batch has used for so long. Evicts all closed residents that nothing pins.
    fn close_groups_before(&mut self, lane: u32, group: u32, epoch: u64) {
        let patience = self.patience;
        let oldest = (self.first + self.planned.len() as u64).saturating_sub(patience);
        for &index in &self.held {
            let resident = &mut self.residents[index as usize];
            let over = match patience {
                0 => resident.epoch != epoch || (resident.lane == lane && resident.group < group),
                _ => resident.pinned_by < oldest,
            };
            resident.closed |= over;
        }
        self.evict(|resident| resident.closed);
    }

    /// Returns whether some resident could be evicted.
    fn has_unpinned(&self) -> bool {
        self.held.iter().any(|&index| self.residents[index as usize].is_unpinned())
    }

    /// The one of `indices` whose resident is needed latest, within the look-ahead. `None` if `indices` is empty.
    fn needed_latest(&mut self, mut indices: Vec<u32>) -> Option<u32> {
        let mut age = self.requested;
        let mut num_searched = 0;
        while indices.len() > 1 && num_searched < LOOK_AHEAD_SAMPLES {
            // Residents belong to the stream's current epoch, so the search ends with it. An error recurs when the
            // batch is planned again.
            let ends_epoch = self.planned.back().is_some_and(|planned| planned.head.ends_epoch);
            if age == self.planned.len() && (ends_epoch || !matches!(self.plan_next(), Ok(true))) {
                break;
            }
            let planned = &self.planned[age];
            for &pick in &planned.picks[planned.requested..] {
                let index = find(&self.first_of, &self.residents, pick);
                if let Some(nth) = indices.iter().position(|&other| other == index)
                    && indices.len() > 1
                {
                    indices.swap_remove(nth);
                }
            }
            num_searched += planned.picks.len();
            age += 1;
        }
        indices.first().copied()
    }

    /// Drops the unpinned residents that have arrived and that `which` selects.
    fn evict(&mut self, which: impl Fn(&Resident) -> bool) {
        let mut nth = 0;
        while let Some(&index) = self.held.get(nth) {
            let resident = &self.residents[index as usize];
            if !resident.is_unpinned() || !which(resident) {
                nth += 1;
                continue;
            }
            self.held.swap_remove(nth);
            self.remove(index);
        }
    }

    /// Drops the resident at `index`.
    fn remove(&mut self, index: u32) {
        let mut resident = self.residents.remove(index as usize);
        let ChunkDriver { directory, residents, first_of, free_fetches, residency, .. } = self;
        if resident.samples.len() == directory.live_in_chunk(resident.chunk) as usize {
            residency.clear(slots_of(directory, resident.chunk))
        } else {
            each_slot(directory, &resident.fetch, |_, slot| residency.clear(slot..slot + 1))
        }
        let mut before = &mut first_of[resident.chunk as usize];
        while *before != index {
            let at = *before as usize;
            before = &mut residents[at].next;
        }
        *before = resident.next;
        resident.fetch.clear();
        free_fetches.push(resident.fetch);
    }

    /// Returns whether every chunk of the next batch has arrived.
    fn next_has_arrived(&mut self) -> bool {
        let Some(planned) = self.planned.front_mut() else { return false };
        while planned.arrived < planned.requested {
            let pick = planned.picks[planned.arrived];
            let index = find(&self.first_of, &self.residents, pick);
            if !self.residents[index as usize].ready {
                return false;
            }
            planned.arrived += 1;
        }
        planned.arrived == planned.picks.len()
    }

    /// Makes the next batch, whose chunks have all arrived.
    fn assemble(&mut self, planned: PlannedBatch) -> Result<Delivery> {
        let number = self.first;
        self.first += 1;
        let mut batch = self.stream.spares.take();
        batch.reset(&self.directory, planned.head.epoch);
        batch.reserve(planned.picks.len());
        // Rounded up, since the number of residents varies: the steady state must not allocate.
        batch.reserve_bufs(self.residents.len().next_power_of_two().min(planned.picks.len()));
        let mut left_out = LeftOut::new(self.on_error);
        for pick in &planned.picks {
            let index = find(&self.first_of, &self.residents, *pick);
            let resident = &mut self.residents[index as usize];
            if resident.used_by != number {
                resident.used_by = number;
                resident.buf_index = batch.add_buf(resident.buf.clone());
                resident.pins -= 1;
            }
            if !resident.failures.is_empty()
                && let Some(failure) = resident.take_failure(pick.nth - resident.samples.start)
            {
                left_out.add(batch.len(), failure);
                if self.on_error == OnError::Blank {
                    batch.push_missing(self.directory.id_in_chunk(pick.chunk, pick.nth));
                }
                continue;
            }
            let sample = &resident.fetch.samples[(pick.nth - resident.samples.start) as usize];
            if self.verify_kept && resident.read_for != planned.head.epoch.0 {
                let learned = self.directory.learned().and_then(|learned| learned.get(sample.id));
                batch.recheck_next(learned.unwrap_or(sample.crc32c), resident.chunk, resident.load);
            }
            batch.push(SampleLocation {
                id: sample.id,
                buf: resident.buf_index,
                len_bytes: sample.len_bytes,
                offset: sample.buf_offset,
            });
        }
        for pick in planned.picks.iter().filter(|pick| pick.alone) {
            let index = find(&self.first_of, &self.residents, *pick);
            // Another resident of its chunk may hold it, too.
            if self.residents.get(index as usize).is_some_and(|it| it.alone && it.pins == 0) {
                self.remove(index);
            }
        }
        self.free_picks.push(planned.picks);
        self.evict(|resident| resident.closed);
        left_out.deliver(batch, planned.head)
    }
}

impl Resident {
    /// Returns whether it has arrived, and no planned batch uses it.
    fn is_unpinned(&self) -> bool {
        self.ready && self.pins == 0
    }

    /// The error of a sample that must not be handed out. The full error is returned once; if the sample is
    /// repeated to pad an epoch, later errors have only its kind and text.
    fn take_failure(&mut self, nth: u32) -> Option<Error> {
        let at = self.failures.binary_search_by_key(&(nth as usize), |(index, _)| *index).ok()?;
        let (_, error) = &mut self.failures[at];
        let again = Error::new(error.kind(), error.to_string());
        Some(std::mem::replace(error, again))
    }
}

impl Planner for ChunkDriver {
    fn request_planned(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<(bool, bool)> {
        let mut moved = false;
        while self.requested < self.planned.len() {
            let age = self.requested;
            let before = self.planned[age].requested;
            let all = self.request(age, pump, memory);
            moved |= self.planned[age].requested != before;
            if !all {
                return Ok((moved, false));
            }
            self.requested += 1;
        }
        Ok((moved, true))
    }

    fn plan_next(&mut self) -> Result<bool> {
        let len = self.planned.back().map_or(0, |planned| planned.picks.len());
        let with_room = || Vec::with_capacity(len);
        let mut picks = take_or_make(&mut self.free_picks, self.planned.len(), with_room);
        let Some(head) = self.stream.next_picks(&mut picks)? else { return Ok(false) };
        self.num_planned += picks.len();
        self.planned.push_back(PlannedBatch { head, picks, requested: 0, arrived: 0 });
        Ok(true)
    }

    /// A fed stream is planned to its end, since another source's part may wait for it.
    fn has_enough(&self) -> bool {
        // If all chunks fit the window, memory never limits planning; this does.
        let enough = self.num_planned >= MAX_PLANNED_SAMPLES && self.planned.len() > 1;
        (enough || self.planned.len() >= MAX_PLANNED) && self.stream.fed.is_none()
    }

    fn num_planned(&self) -> usize {
        self.num_planned
    }
}

impl SourceDriver for ChunkDriver {
    fn fed(&mut self) -> &mut Fed {
        self.stream.fed.as_mut().expect("only sources of mixtures are fed")
    }

    fn has_requested_all(&self) -> bool {
        let is_planned = self.requested == self.planned.len() && !self.stream.has_pieces();
        is_planned && self.to_reread.is_empty()
    }

    /// Evicts the unpinned resident that is needed latest.
    fn evict_unpinned(&mut self) -> bool {
        let is_unpinned = |&index: &u32| self.residents[index as usize].is_unpinned();
        let unpinned: Vec<u32> = self.held.iter().copied().filter(is_unpinned).collect();
        let Some(latest) = self.needed_latest(unpinned) else { return false };
        let load = self.residents[latest as usize].load;
        self.evict(|resident| resident.load == load);
        true
    }
}

impl Driver for ChunkDriver {
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        let mut moved = !self.to_reread.is_empty();
        if let Some(early) = &mut self.early {
            moved |= early.advance(pump, memory)?;
        }
        if !self.reread(pump, memory) {
            return Ok(false);
        }
        Ok(self.request_and_plan(pump, memory)? || moved)
    }

    fn finished(&mut self, fetched: Fetched) {
        if let (EARLY_TOKEN.., Some(early)) = (fetched.token, &mut self.early) {
            return early.finished(fetched);
        }
        let resident = &mut self.residents[fetched.token as usize];
        resident.fetch = fetched.fetch;
        resident.buf = fetched.buf;
        resident.failures = fetched.failures;
        resident.ready = true;
        let slots = slots_of(&self.directory, resident.chunk);
        let num_samples = resident.fetch.samples.len() as u64;
        if resident.failures.is_empty() && slots.end - slots.start == num_samples {
            return self.residency.set(slots);
        }
        let mut failures = resident.failures.iter().map(|(index, _)| *index).peekable();
        each_slot(&self.directory, &resident.fetch, |index, slot| {
            if failures.next_if_eq(&index).is_none() {
                self.residency.set(slot..slot + 1);
            }
        });
    }

    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        if let Some(early) = &mut self.early {
            let first = early.next_ready()?;
            self.early = None;
            return Some(first);
        }
        if !self.next_has_arrived() {
            return None;
        }
        let planned = self.planned.pop_front()?;
        self.num_planned -= planned.picks.len();
        self.requested = self.requested.saturating_sub(1);
        Some(self.assemble(planned))
    }

    fn is_done(&self) -> bool {
        self.early.is_none() && self.planned.is_empty() && self.stream.is_done()
    }

    /// Releases the memory and requests a read into other memory, unless this has been done already.
    fn read_again(&mut self, _source: u32, chunk: u32, load: u32) {
        let mut index = self.first_of[chunk as usize];
        while self.residents.get(index as usize).is_some_and(|it| it.load != load) {
            index = self.residents[index as usize].next;
        }
        let Some(resident) = self.residents.get_mut(index as usize) else { return };
        if !resident.ready {
            return;
        }
        resident.ready = false;
        resident.buf = SharedBuf::empty();
        // Batches of the epoch that is being delivered already use the new bytes.
        resident.read_for = self.planned.front().map_or(resident.epoch, |p| p.head.epoch.0);
        each_slot(&self.directory, &resident.fetch, |_, slot| self.residency.clear(slot..slot + 1));
        self.to_reread.push(index);
        self.planned.iter_mut().for_each(|planned| planned.arrived = 0);
    }
}

/// Takes a spare. If there is none, first makes `in_use` spares, at most 16: the number in use peaks late in a run,
/// and the steady state must not allocate.
fn take_or_make<T>(spares: &mut Vec<T>, in_use: usize, make: impl Fn() -> T) -> T {
    if spares.is_empty() {
        spares.extend(std::iter::repeat_with(&make).take(in_use.min(16)));
    }
    spares.pop().unwrap_or_else(make)
}

/// The index of the resident that holds the sample of `pick`, or `NONE`. The index stays the same while that resident
/// stays, since later residents are appended to the chunk's list.
#[inline]
fn find(first_of: &[u32], residents: &Slab<Resident>, pick: Pick) -> u32 {
    let mut index = first_of[pick.chunk as usize];
    while index != NONE {
        let resident = &residents[index as usize];
        if resident.samples.contains(&pick.nth) {
            break;
        }
        index = resident.next;
    }
    index
}

/// The slots of a chunk's samples.
fn slots_of(directory: &Directory, chunk: u32) -> Range<u64> {
    let info = directory.chunk(chunk);
    info.first_slot.0..info.first_slot.0 + u64::from(info.num_slots)
}

/// Calls `visit` with the index of each sample in `fetch` and its slot.
fn each_slot(directory: &Directory, fetch: &Fetch, mut visit: impl FnMut(usize, u64)) {
    for (index, sample) in fetch.samples.iter().enumerate() {
        if let Some(Slot(slot)) = directory.slot_of(sample.id) {
            visit(index, slot);
        }
    }
}

/// Stands for no resident.
const NONE: u32 = u32::MAX;

/// The first token of the early batch. Tokens of chunk fetches are indices of residents, which are smaller.
const EARLY_TOKEN: u64 = 1 << 32;

/// The number of samples to search for the resident that is needed latest: a few for each resident.
const LOOK_AHEAD_SAMPLES: usize = 4096;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::window::Window;
    use super::*;
    use crate::checksum::crc32c;
    use crate::directory::{DirectoryBuilder, RunSample};
    use crate::format::{ImageLayout, Pack, Uuid};
    use crate::order::{OrderKind, Sharding};
    use crate::prefetch::LoaderOptions;
    use crate::qpair::Device;
    use crate::qpair::mem::MemNamespace;
    use crate::units::Generation;

    /// Chunks of 16 samples, each a page of zeroes, and the namespace that they lie on.
    fn zeroes(chunks: u64) -> (Arc<Directory>, Arc<dyn Device>) {
        let layout = ImageLayout::new(Uuid([1; 16]), 64 << 10, Pack::Paged, 1).unwrap();
        let mut builder = DirectoryBuilder::new(layout);
        let crc32c = crc32c(&[0; 4096]);
        let sample = RunSample { len_bytes: 4096, crc32c, ..RunSample::default() };
        let cell = |chunk| layout.first_cell() + chunk * (64 << 10) / layout.cell_bytes();
        for chunk in 0..chunks {
            builder.add_run(cell(chunk), [sample; 16].into_iter()).unwrap();
        }
        let device = MemNamespace::new(cell(chunks) * layout.cell_bytes(), 4096).unwrap();
        (Arc::new(builder.finish(Generation(1), 1).unwrap()), Arc::new(device))
    }

    /// Runs a rank over 20 epochs. Returns whether it had samples that were read alone, and the numbers of those that
    /// it still has at the end, and of residents that no list drops.
    fn run(world_size: u32, rank: u32, lanes: u32) -> (bool, usize, usize) {
        let (directory, device) = zeroes(13);
        let kind = OrderKind::Grouped { lanes, group: 1 };
        let options = LoaderOptions {
            sharding: Sharding::Aligned,
            rank,
            world_size,
            ..LoaderOptions::new(OrderSpec { kind, seed: 3 }, 8, 20)
        };
        let start = Stream::start_state(&directory, &options).unwrap();
        let stream = Stream::new(Arc::clone(&directory), &options, &start).unwrap();
        let mut pump = Pump::new(&[device], 1, false).unwrap();
        // It has room for all that is read, so that epochs are planned ahead.
        let window = Window::new(64 << 20, 64 << 10, 0, &options).unwrap();
        let mut memory = Memory::new(Arc::new(window));
        let residency = Arc::new(Residency::new(directory.num_samples()));
        let geometry = pump.geometry();
        let raise = OnError::Raise;
        let mut driver = ChunkDriver::new(directory, geometry, stream, raise, false, residency, 0);
        let mut had_single = false;
        while !driver.is_done() {
            driver.advance(&mut pump, &mut memory).unwrap();
            had_single |= driver.residents.iter().any(|(_, resident)| resident.alone);
            pump.poll(Instant::now());
            while let Some(fetched) = pump.next_finished() {
                driver.finished(fetched);
            }
            while let Some(delivery) = driver.next_ready() {
                delivery.unwrap();
            }
        }
        let left = driver.residents.iter().filter(|(_, resident)| resident.alone).count();
        (had_single, left, driver.residents.len() - driver.held.len())
    }

    #[test]
    fn a_sample_that_was_read_alone_goes_with_its_chunk_if_a_later_epoch_has_it_there() {
        let mut had_single = false;
        for (world_size, lanes) in [(3, 4), (5, 4), (3, 2), (5, 2)] {
            for rank in 0..world_size {
                let (single, left, undropped) = run(world_size, rank, lanes);
                had_single |= single;
                assert_eq!((left, undropped), (0, 0), "rank {rank} of {world_size}, {lanes} lanes");
            }
        }
        assert!(had_single);
    }
}
