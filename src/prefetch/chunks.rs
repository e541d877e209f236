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
use crate::reader::{Batch, Fetch, Fetched, Geometry, Place, Pump, plan_chunk};
use crate::units::Slot;

use super::memory::{Memory, Need};
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
    /// By chunk number: its place in `residents`, or `NONE`.
    place_of: Vec<u32>,
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
    unstarted: Option<(u32, Fetch)>,
    spare_picks: Vec<Vec<Pick>>,
    recycled: Vec<Batch>,
}

struct Resident {
    chunk: u32,
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
    piece: u32,
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
            let mut place = self.place_of[pick.chunk as usize];
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
        Pick { chunk, group, .. }: Pick,
        epoch: u64,
        first: bool,
        pump: &mut Pump,
        memory: &mut Memory,
    ) -> Option<u32> {
        let lane = self.stream.lane_of(group);
        self.close_groups_before(lane, group, epoch);
        let fetch = self.plan(chunk);
        let Some(run) = self.room(fetch.len_bytes, first, memory) else {
            self.unstarted = Some((chunk, fetch));
            return None;
        };
        self.loads = self.loads.wrapping_add(1);
        let entry = self.residents.vacant_entry();
        let place = entry.key();
        entry.insert(Resident {
            chunk,
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
            piece: 0,
        });
        self.place_of[chunk as usize] = place as u32;
        pump.start(place as u64, fetch, run);
        Some(place as u32)
    }

    /// Memory for a chunk, which the `first` batch waits for or a later one.
    fn room(&mut self, len: usize, first: bool, memory: &mut Memory) -> Option<IoBuf> {
        loop {
            // Rather than exceed the window, give up a chunk that nobody has planned for just now.
            let must = first && memory.is_starving();
            let need = match first {
                true if must && !self.has_unpinned() => Need::Alone,
                true => Need::Next,
                false => Need::Ahead,
            };
            if let Some(run) = memory.take(len, need) {
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

    /// The plan of `chunk`: made now, or when it was asked for before and there was no memory.
    fn plan(&mut self, chunk: u32) -> Fetch {
        let mut fetch = match self.unstarted.take() {
            Some((planned, fetch)) if planned == chunk => return fetch,
            Some((_, other)) => other,
            None => self.spare.pop().unwrap_or_default(),
        };
        fetch.clear();
        plan_chunk(self.directory.samples_in_chunk(chunk), &self.geometry, &mut fetch);
        fetch
    }

    fn close_groups_before(&mut self, lane: u32, group: u32, epoch: u64) {
        for (_, resident) in &mut self.residents {
            let over = resident.epoch != epoch || (resident.lane == lane && resident.group < group);
            resident.closed |= over;
        }
        self.evict(|resident| resident.closed);
    }

    fn has_unpinned(&self) -> bool {
        self.residents.iter().any(|(_, resident)| resident.ready && resident.pins == 0)
    }

    fn evict_unpinned(&mut self) -> bool {
        let unpinned = self.residents.iter().find(|(_, r)| r.ready && r.pins == 0);
        let Some(chunk) = unpinned.map(|(_, resident)| resident.chunk) else { return false };
        self.evict(|resident| resident.chunk == chunk);
        true
    }

    /// Drops the residents that are read, that nobody needs, and that `which` names.
    fn evict(&mut self, which: impl Fn(&Resident) -> bool) {
        let ChunkDriver { directory, residents, place_of, spare, residency, .. } = self;
        residents.retain(|_, resident| {
            let keep = !resident.ready || resident.pins > 0 || !which(resident);
            if !keep {
                place_of[resident.chunk as usize] = NONE;
                residency.clear(slots_of(directory, resident.chunk));
                let mut fetch = std::mem::take(&mut resident.fetch);
                fetch.clear();
                spare.push(fetch);
            }
            keep
        });
    }

    /// Whether every chunk of the next batch has arrived.
    fn next_has_arrived(&mut self) -> bool {
        let Some(planned) = self.planned.front_mut() else { return false };
        while planned.arrived < planned.requested {
            let chunk = planned.picks[planned.arrived].chunk;
            if !self.residents[self.place_of[chunk as usize] as usize].ready {
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
            let place = self.place_of[pick.chunk as usize] as usize;
            let resident = &mut self.residents[place];
            if resident.shown_by != number {
                resident.shown_by = number;
                resident.piece = batch.add_piece(resident.run.clone());
                resident.pins -= 1;
            }
            if !resident.failures.is_empty()
                && let Some(failure) = resident.take_failure(pick.nth)
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
            let sample = &resident.fetch.samples[pick.nth as usize];
            if self.verify_kept && resident.brought_for != planned.head.epoch.0 {
                let learned = self.directory.learned().and_then(|learned| learned.get(sample.id));
                batch.expect_kept(learned.unwrap_or(sample.crc32c), resident.chunk, resident.load);
            }
            batch.push(Place {
                id: sample.id,
                piece: resident.piece,
                len_bytes: sample.len_bytes,
                offset: sample.run_offset,
            });
        }
        if planned.head.ends_epoch {
            batch.set_ends_epoch();
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
            let mut picks = self.spare_picks.pop().unwrap_or_default();
            let Some(head) = self.stream.next_picks(&mut picks)? else { return Ok(moved) };
            self.num_planned += picks.len();
            self.planned.push_back(Planned { head, picks, requested: 0, arrived: 0 });
            moved = true;
        }
    }

    fn finished(&mut self, fetched: Fetched) {
        let resident = &mut self.residents[fetched.token as usize];
        resident.fetch = fetched.fetch;
        resident.run = fetched.run;
        resident.failures = fetched.failures;
        resident.ready = true;
        let slots = slots_of(&self.directory, resident.chunk);
        let num_samples = resident.fetch.samples.len() as u64;
        if resident.failures.is_empty() && slots.end - slots.start == num_samples {
            return self.residency.set(slots);
        }
        let mut failures = resident.failures.iter().map(|(index, _)| *index).peekable();
        for (index, sample) in resident.fetch.samples.iter().enumerate() {
            let failed = failures.next_if_eq(&index).is_some();
            if let Some(Slot(slot)) = self.directory.slot_of(sample.id)
                && !failed
            {
                self.residency.set(slot..slot + 1);
            }
        }
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
        let place = self.place_of[chunk as usize];
        let Some(resident) = self.residents.get_mut(place as usize) else { return };
        if resident.load != load || !resident.ready {
            return;
        }
        resident.ready = false;
        resident.run = SharedBuf::empty();
        // Batches of the epoch that is being delivered show it as it will be read now.
        resident.brought_for = self.planned.front().map_or(resident.epoch, |p| p.head.epoch.0);
        self.residency.clear(slots_of(&self.directory, chunk));
        self.again.push(place);
        self.planned.iter_mut().for_each(|planned| planned.arrived = 0);
    }

    fn recycle(&mut self, batch: Batch) {
        if self.recycled.len() < MAX_RECYCLED {
            self.recycled.push(batch);
        }
    }
}

fn slots_of(directory: &Directory, chunk: u32) -> Range<u64> {
    let info = directory.chunk(chunk);
    info.first_slot.0..info.first_slot.0 + u64::from(info.num_slots)
}

const NONE: u32 = u32::MAX;

/// Batches planned ahead at most, where they are small.
const MAX_PLANNED: usize = 4096;

/// Samples planned ahead at most, beside one batch: as many as a window of the default size holds of 256
/// bytes each, so that reading goes on where groups change. Their plans take 8 MiB.
const MAX_PLANNED_SAMPLES: usize = 1 << 20;

/// Samples planned before the poller looks at what has arrived: 0.3 ms. A first batch waits for some turns.
const PLANNED_A_TURN: usize = 2 << 10;
