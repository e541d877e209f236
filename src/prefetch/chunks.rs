//! Batches handed out of whole chunks: one large read a chunk, samples without another copy.
//!
//! A chunk is resident from its arrival until its group is over and the last batch that shows it has
//! been put together. Lanes take one group after the other, so the first sample of a lane's next
//! group closes the chunks of the group before. A chunk that is still here when the next epoch wants it
//! is not read again. Whoever got samples of it could write to them through an alias, so their checksums
//! are compared once more as they are handed out (`kept`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use slab::Slab;

use crate::buf::{IoBuf, SharedBuf};
use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::order::Pick;
use crate::reader::{Batch, Fetch, Fetched, Geometry, Pump, SampleLocation, plan_chunk};
use crate::units::Slot;

use super::memory::{Memory, Priority};
use super::residency::Residency;
use super::stream::{Head, Stream};
use super::{Delivery, Driver, MAX_RECYCLED, OnError};

/// Drives one read a chunk.
pub(super) struct ChunkDriver {
    directory: Arc<Directory>,
    geometry: Vec<Geometry>,
    stream: Stream,
    on_error: OnError,
    /// Whether samples of chunks kept from an earlier epoch are verified again.
    verify_kept: bool,
    residency: Arc<Residency>,
    residents: Slab<Resident>,
    /// By chunk number: the place in `residents` of its first part here, or `NONE`.
    place_of: Vec<u32>,
    /// Places of the residents that are parts of groups: all but single samples.
    held: Vec<u32>,
    planned: VecDeque<Planned>,
    /// Samples of all of `planned`.
    num_planned: usize,
    /// So many of `planned`, from the front, have all their chunks requested.
    requested: usize,
    /// Number of `planned[0]`.
    first: u64,
    spare: Vec<Fetch>,
    /// Residents whose memory was written to: they wait for other memory, to be read again.
    again: Vec<u32>,
    /// Chunks read so far, those read again included.
    loads: u32,
    /// A chunk that is planned and waits for memory.
    unstarted: Option<(u32, Range<u32>, Fetch)>,
    spare_picks: Vec<Vec<Pick>>,
    recycled: Vec<Batch>,
}

/// A part of a chunk in memory, mostly all of it.
struct Resident {
    chunk: u32,
    /// Its samples, by their places in the chunk.
    part: Range<u32>,
    /// A single sample, of a chunk that another rank goes through: it goes as soon as it was shown.
    alone: bool,
    /// The next part of the same chunk that is here, or `NONE`: borders of lanes cut chunks.
    next: u32,
    /// Lane and group of the order that brought it here.
    lane: u32,
    epoch: u64,
    group: u32,
    /// Number of the read that brought it, and the epoch for which it was.
    load: u32,
    brought_for: u64,
    fetch: Fetch,
    run: SharedBuf,
    failures: Vec<(usize, Error)>,
    ready: bool,
    /// Planned batches that show it and are not put together yet.
    pins: u32,
    closed: bool,
    /// The last batch that pinned it, and the last that was put together from it with its piece there.
    pinned_by: u64,
    shown_by: u64,
    buf_index: u32,
}

struct Planned {
    head: Head,
    picks: Vec<Pick>,
    /// Picks before this one have their chunk requested.
    requested: usize,
    /// Picks before this one have their chunk here; pinned, it stays.
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
    ) -> ChunkDriver {
        let place_of = vec![NONE; directory.num_chunks() as usize];
        ChunkDriver {
            directory,
            geometry,
            stream,
            on_error,
            verify_kept,
            residency,
            residents: Slab::new(),
            place_of,
            held: Vec::new(),
            planned: VecDeque::new(),
            num_planned: 0,
            requested: 0,
            first: 1,
            spare: Vec::new(),
            again: Vec::new(),
            loads: 0,
            unstarted: None,
            spare_picks: Vec::new(),
            recycled: Vec::new(),
        }
    }

    /// Requests the chunks of the planned batch at `age`; `false` when memory ran out, or the queue
    /// pairs have enough to do.
    fn request(&mut self, age: usize, pump: &mut Pump, memory: &mut Memory) -> bool {
        let number = self.first + age as u64;
        let epoch = self.planned[age].head.epoch.0;
        while let Some(&pick) = self.planned[age].picks.get(self.planned[age].requested) {
            let mut place = self.find(pick);
            if place == NONE {
                if pump.is_busy() {
                    return false;
                }
                let Some(new) = self.bring(pick, epoch, age == 0, pump, memory) else {
                    return false;
                };
                place = new;
            }
            let resident = &mut self.residents[place as usize];
            if resident.epoch != epoch {
                // It is still here from the epoch before, and belongs to another group now.
                (resident.lane, resident.group) = (self.stream.lane_of(pick.group), pick.group);
                resident.epoch = epoch;
                resident.closed = false;
            }
            if resident.pinned_by != number {
                resident.pinned_by = number;
                resident.pins += 1;
            }
            self.planned[age].requested += 1;
        }
        true
    }

    /// Starts to read the chunk of `pick`; `None` when there is no memory for it.
    fn bring(
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
        let part = if alone { nth..nth + 1 } else { self.stream.part(group, chunk) };
        let fetch = self.plan(chunk, &part);
        let Some(run) = self.room(fetch.len_bytes, first, memory) else {
            self.unstarted = Some((chunk, part, fetch));
            return None;
        };
        self.loads = self.loads.wrapping_add(1);
        let place = self.residents.insert(Resident {
            chunk,
            part,
            alone,
            next: NONE,
            lane,
            epoch,
            group,
            load: self.loads,
            brought_for: epoch,
            fetch: Fetch::default(),
            run: SharedBuf::empty(),
            failures: Vec::new(),
            ready: false,
            pins: 0,
            closed: false,
            pinned_by: 0,
            shown_by: 0,
            buf_index: 0,
        });
        self.link(chunk, place as u32);
        if !alone {
            self.held.push(place as u32);
        }
        pump.start(place as u64, fetch, run);
        Some(place as u32)
    }

    /// Memory for a chunk, which the `first` batch waits for or a later one.
    fn room(&mut self, len: usize, first: bool, memory: &mut Memory) -> Option<IoBuf> {
        loop {
            // Rather than exceed the window, give up a chunk that nobody has planned for just now.
            let must = first && memory.is_starving();
            let priority = match first {
                true if must && !self.has_unpinned() => Priority::Sole,
                true => Priority::Next,
                false => Priority::Readahead,
            };
            if let Some(run) = memory.take(len, priority) {
                return Some(run);
            }
            if !(must && self.evict_unpinned()) {
                return None;
            }
        }
    }

    /// Starts to read what was written to; `false` while there is no memory for it.
    fn bring_again(&mut self, pump: &mut Pump, memory: &mut Memory) -> bool {
        while let Some(&place) = self.again.last() {
            let len = self.residents[place as usize].fetch.len_bytes;
            let Some(run) = self.room(len, true, memory) else { return false };
            self.again.pop();
            self.loads = self.loads.wrapping_add(1);
            let resident = &mut self.residents[place as usize];
            resident.load = self.loads;
            pump.start(u64::from(place), std::mem::take(&mut resident.fetch), run);
        }
        true
    }

    /// The plan of a part of `chunk`: made now, or when it was asked for before and there was no memory.
    fn plan(&mut self, chunk: u32, part: &Range<u32>) -> Fetch {
        let mut fetch = match self.unstarted.take() {
            Some((planned, of, fetch)) if planned == chunk && of == *part => return fetch,
            Some((_, _, other)) => other,
            None => self.spare.pop().unwrap_or_default(),
        };
        fetch.clear();
        match (part.len(), self.directory.live_in_chunk(chunk)) {
            (1, live) if live > 1 => {
                let id = self.directory.id_in_chunk(chunk, part.start);
                let extent = self.directory.extent(id).map(|extent| (id, extent));
                plan_chunk(extent.into_iter(), &self.geometry, &mut fetch);
            }
            _ => {
                let samples = self.directory.samples_in_chunk(chunk);
                let of_part = samples.skip(part.start as usize).take(part.len());
                plan_chunk(of_part, &self.geometry, &mut fetch);
            }
        }
        fetch
    }

    fn find(&self, pick: Pick) -> u32 {
        find(&self.place_of, &self.residents, pick)
    }

    /// Puts the resident at `place` behind the other parts of `chunk`.
    fn link(&mut self, chunk: u32, place: u32) {
        let ChunkDriver { place_of, residents, .. } = self;
        let mut last = &mut place_of[chunk as usize];
        if *last != NONE {
            let mut at = *last;
            while residents[at as usize].next != NONE {
                at = residents[at as usize].next;
            }
            last = &mut residents[at as usize].next;
        }
        *last = place;
    }

    fn close_groups_before(&mut self, lane: u32, group: u32, epoch: u64) {
        for &place in &self.held {
            let resident = &mut self.residents[place as usize];
            let over = resident.epoch != epoch || (resident.lane == lane && resident.group < group);
            resident.closed |= over;
        }
        self.evict(|resident| resident.closed);
    }

    fn has_unpinned(&self) -> bool {
        let mut held = self.held.iter().map(|&place| &self.residents[place as usize]);
        held.any(|resident| resident.ready && resident.pins == 0)
    }

    /// Gives up the part that is needed latest, of those that no batch under way shows.
    fn evict_unpinned(&mut self) -> bool {
        let is_unpinned = |&place: &u32| {
            let resident = &self.residents[place as usize];
            resident.ready && resident.pins == 0
        };
        let unpinned: Vec<u32> = self.held.iter().copied().filter(is_unpinned).collect();
        let Some(latest) = self.needed_latest(unpinned) else { return false };
        let load = self.residents[latest as usize].load;
        self.evict(|resident| resident.load == load);
        true
    }

    /// Which of the residents at `places` the batches to come show latest, as far as it is worth looking.
    fn needed_latest(&mut self, mut places: Vec<u32>) -> Option<u32> {
        let (mut age, mut looked_at) = (self.requested, 0);
        while places.len() > 1 && looked_at < LOOK_AHEAD_SAMPLES {
            // Parts are those of the epoch that the stream is in, so it goes no further here. An error comes
            // again where batches are planned.
            let ends_epoch = self.planned.back().is_some_and(|planned| planned.head.ends_epoch);
            if age == self.planned.len() && (ends_epoch || !matches!(self.plan_next(), Ok(true))) {
                break;
            }
            let planned = &self.planned[age];
            for &pick in &planned.picks[planned.requested..] {
                let place = find(&self.place_of, &self.residents, pick);
                if let Some(nth) = places.iter().position(|&other| other == place)
                    && places.len() > 1
                {
                    places.swap_remove(nth);
                }
            }
            looked_at += planned.picks.len();
            age += 1;
        }
        places.first().copied()
    }

    /// Plans one more batch; `false` where there is none.
    fn plan_next(&mut self) -> Result<bool> {
        let mut picks = self.spare_picks.pop().unwrap_or_default();
        let Some(head) = self.stream.next_picks(&mut picks)? else { return Ok(false) };
        self.num_planned += picks.len();
        self.planned.push_back(Planned { head, picks, requested: 0, arrived: 0 });
        Ok(true)
    }

    /// Drops the parts of groups that are read, that nobody needs, and that `which` names.
    fn evict(&mut self, which: impl Fn(&Resident) -> bool) {
        let mut nth = 0;
        while let Some(&place) = self.held.get(nth) {
            let resident = &self.residents[place as usize];
            if !resident.ready || resident.pins > 0 || !which(resident) {
                nth += 1;
                continue;
            }
            self.held.swap_remove(nth);
            self.remove(place);
        }
    }

    /// Gives the memory of the resident at `place` back.
    fn remove(&mut self, place: u32) {
        let mut resident = self.residents.remove(place as usize);
        let ChunkDriver { directory, residents, place_of, spare, residency, .. } = self;
        match resident.part.len() == directory.live_in_chunk(resident.chunk) as usize {
            true => residency.clear(slots_of(directory, resident.chunk)),
            false => {
                each_slot(directory, &resident.fetch, |_, slot| residency.clear(slot..slot + 1))
            }
        }
        let mut before = &mut place_of[resident.chunk as usize];
        while *before != place {
            let at = *before as usize;
            before = &mut residents[at].next;
        }
        *before = resident.next;
        resident.fetch.clear();
        spare.push(resident.fetch);
    }

    /// Whether every chunk of the next batch has arrived.
    fn next_has_arrived(&mut self) -> bool {
        let Some(planned) = self.planned.front_mut() else { return false };
        while planned.arrived < planned.requested {
            let pick = planned.picks[planned.arrived];
            let place = find(&self.place_of, &self.residents, pick);
            if !self.residents[place as usize].ready {
                return false;
            }
            planned.arrived += 1;
        }
        planned.arrived == planned.picks.len()
    }

    fn assemble(&mut self, planned: Planned) -> Result<Delivery> {
        let number = self.first;
        self.first += 1;
        let mut batch = self.recycled.pop().unwrap_or_default();
        batch.reset(&self.directory, planned.head.epoch);
        batch.reserve(planned.picks.len());
        let mut error = None;
        let mut skipped = 0;
        for pick in &planned.picks {
            let place = self.find(*pick);
            let resident = &mut self.residents[place as usize];
            if resident.shown_by != number {
                resident.shown_by = number;
                resident.buf_index = batch.add_buf(resident.run.clone());
                resident.pins -= 1;
            }
            if !resident.failures.is_empty()
                && let Some(failure) = resident.take_failure(pick.nth - resident.part.start)
            {
                match self.on_error {
                    OnError::Raise => error = error.or(Some(failure)),
                    OnError::Skip | OnError::Blank => {
                        tracing::warn!(error = %failure, "a sample is left out");
                        skipped += 1;
                    }
                }
                continue;
            }
            let sample = &resident.fetch.samples[(pick.nth - resident.part.start) as usize];
            if self.verify_kept && resident.brought_for != planned.head.epoch.0 {
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
        if planned.head.ends_epoch {
            batch.set_ends_epoch();
        }
        for pick in planned.picks.iter().filter(|pick| pick.alone) {
            let place = self.find(*pick);
            // It may be here with others of its chunk, too.
            if self.residents.get(place as usize).is_some_and(|it| it.alone && it.pins == 0) {
                self.remove(place);
            }
        }
        self.spare_picks.push(planned.picks);
        self.evict(|resident| resident.closed);
        match error {
            Some(error) => Err(error),
            None => Ok(Delivery { batch, head: planned.head, skipped }),
        }
    }
}

impl Resident {
    /// Why the sample must not be shown, if it must not. The error is handed out once in full; a
    /// sample that is padded in again says the same in short.
    fn take_failure(&mut self, nth: u32) -> Option<Error> {
        let at = self.failures.binary_search_by_key(&(nth as usize), |(index, _)| *index).ok()?;
        let (_, error) = &mut self.failures[at];
        let again = Error::new(error.kind(), error.to_string());
        Some(std::mem::replace(error, again))
    }
}

impl Driver for ChunkDriver {
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        let (mut moved, begun_with) = (!self.again.is_empty(), self.num_planned);
        if !self.bring_again(pump, memory) {
            return Ok(false);
        }
        loop {
            while self.requested < self.planned.len() {
                let age = self.requested;
                let before = self.planned[age].requested;
                let all = self.request(age, pump, memory);
                moved |= self.planned[age].requested != before;
                if !all {
                    return Ok(moved);
                }
                self.requested += 1;
            }
            // Where all chunks fit the window, memory never stops planning.
            let enough = self.num_planned >= MAX_PLANNED_SAMPLES && self.planned.len() > 1;
            if enough || self.planned.len() == MAX_PLANNED {
                return Ok(moved);
            }
            if self.num_planned - begun_with >= PLANNED_A_TURN {
                return Ok(true);
            }
            if !self.plan_next()? {
                return Ok(moved);
            }
            moved = true;
        }
    }

    fn finished(&mut self, fetched: Fetched) {
        let resident = &mut self.residents[fetched.token as usize];
        resident.fetch = fetched.fetch;
        resident.run = fetched.buf;
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
        if !self.next_has_arrived() {
            return None;
        }
        let planned = self.planned.pop_front()?;
        self.num_planned -= planned.picks.len();
        self.requested = self.requested.saturating_sub(1);
        Some(self.assemble(planned))
    }

    fn is_done(&self) -> bool {
        self.planned.is_empty() && self.stream.is_done()
    }

    /// Its memory is given up, and other memory is read full in its place, unless that was done before.
    fn read_again(&mut self, chunk: u32, load: u32) {
        let mut place = self.place_of[chunk as usize];
        while self.residents.get(place as usize).is_some_and(|it| it.load != load) {
            place = self.residents[place as usize].next;
        }
        let Some(resident) = self.residents.get_mut(place as usize) else { return };
        if !resident.ready {
            return;
        }
        resident.ready = false;
        resident.run = SharedBuf::empty();
        // Batches of the epoch that is being delivered show it as it will be read now.
        resident.brought_for = self.planned.front().map_or(resident.epoch, |p| p.head.epoch.0);
        each_slot(&self.directory, &resident.fetch, |_, slot| self.residency.clear(slot..slot + 1));
        self.again.push(place);
        self.planned.iter_mut().for_each(|planned| planned.arrived = 0);
    }

    fn recycle(&mut self, batch: Batch) {
        if self.recycled.len() < MAX_RECYCLED {
            self.recycled.push(batch);
        }
    }
}

/// The place of the resident that has the sample of `pick`, or `NONE`. The same one as long as it stays:
/// parts that come later are looked at later.
#[inline]
fn find(place_of: &[u32], residents: &Slab<Resident>, pick: Pick) -> u32 {
    let mut place = place_of[pick.chunk as usize];
    while place != NONE {
        let resident = &residents[place as usize];
        if resident.part.contains(&pick.nth) {
            break;
        }
        place = resident.next;
    }
    place
}

fn slots_of(directory: &Directory, chunk: u32) -> Range<u64> {
    let info = directory.chunk(chunk);
    info.first_slot.0..info.first_slot.0 + u64::from(info.num_slots)
}

/// Calls `visit` with the number of each sample of `fetch`, and its slot.
fn each_slot(directory: &Directory, fetch: &Fetch, mut visit: impl FnMut(usize, u64)) {
    for (index, sample) in fetch.samples.iter().enumerate() {
        if let Some(Slot(slot)) = directory.slot_of(sample.id) {
            visit(index, slot);
        }
    }
}

const NONE: u32 = u32::MAX;

/// Batches planned ahead at most, where they are small.
const MAX_PLANNED: usize = 4096;

/// Samples planned ahead at most, beside one batch: as many as a window of the default size holds of 340
/// bytes each, so that reading goes on where groups change. Their plans take 12 MiB.
const MAX_PLANNED_SAMPLES: usize = 3 << 18;

/// How far is looked for the part that is needed latest: some times as many samples as parts are open.
const LOOK_AHEAD_SAMPLES: usize = 4096;

/// Samples planned before the poller looks at what has arrived: 0.3 ms. A first batch waits for some turns.
const PLANNED_A_TURN: usize = 2 << 10;
