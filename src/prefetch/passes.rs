//! Chunks that the window cannot hold, read in several passes: samples handed out of copies.
//!
//! A grouped order takes a chunk's samples all through its group, in random order. Where the chunks of the
//! open groups exceed the window, none can stay until its last sample was shown, and to read samples one by
//! one costs a block each: 42 times the bytes for samples of 100 bytes. So a chunk is read as often as the
//! window asks for, and each *pass* copies the samples that the order takes next, in its order, into small
//! buffers that come back as the samples are shown.
//!
//! A chunk is divided into *sections*, of about one read buffer each. A pass over a section reads the
//! blocks that hold its samples of the pass, each once, and no others: a sample never costs more than to read
//! it by itself. Of what a pass takes a section holds half on average, so all open sections together fit the
//! window if a pass takes twice the window's part of a section ([`Lens`]) and passes over different sections
//! come at different times: for that, first passes are of different lengths ([`Share`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use slab::Slab;

use crate::buf::{IoBuf, SharedBuf};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Extent;
use crate::order::Pick;
use crate::reader::{
    Batch, Fetch, Fetched, Geometry, Merge, Pump, SampleLocation, SampleRequest, plan_samples,
};
use crate::units::{SampleId, Slot};

use super::memory::{Memory, Priority};
use super::stream::{Head, Stream};
use super::{Delivery, Driver, MAX_RECYCLED, OnError};

/// Drives one read a pass.
pub(super) struct PassDriver {
    directory: Arc<Directory>,
    geometry: Vec<Geometry>,
    stream: Stream,
    on_error: OnError,
    lens: Lens,
    share: Share,
    chunks: Slab<OpenChunk>,
    /// By chunk number: its place in `chunks`, or `NONE`.
    place_of: Vec<u32>,
    planned: VecDeque<Planned>,
    /// Samples of all of `planned`.
    num_planned: usize,
    /// So many of `planned`, from the front, have all their samples requested.
    requested: usize,
    /// The next sample's number in the order of the run.
    next_number: u64,
    /// The next batch's, from 1.
    next_batch: u64,
    passes: Slab<Pass>,
    copies: Slab<Copies>,
    /// By number: why a sample must not be shown.
    failures: HashMap<u64, Error>,
    /// Read buffers that no pass uses, and how many there are in all.
    read_buffers: Vec<IoBuf>,
    num_read_buffers: usize,
    /// The section that waits for memory, and for how many bytes.
    short: Option<((u32, u32), usize)>,
    picks: Vec<Pick>,
    ids: Vec<SampleId>,
    slots: Vec<Slot>,
    /// Of the samples that were chosen last.
    extents: Vec<Option<Extent>>,
    wanted: Vec<SampleRequest>,
    fetches: Vec<Fetch>,
    keys: Vec<u32>,
    spare_fetches: Vec<Fetch>,
    spare_chunks: Vec<OpenChunk>,
    spare_places: Vec<Vec<(u32, u32)>>,
    spare_passes: Vec<Vec<Taken>>,
    spare_copies: Vec<Vec<IoBuf>>,
    recycled: Vec<Batch>,
}

/// Lengths of buffers, which follow from the window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Lens {
    /// A read buffer, and what a section spans on media at most if it has more than one sample.
    pub(super) section_bytes: usize,
    /// Memory for copies, as it is taken and given back: a slot of the window.
    pub(super) copies_bytes: usize,
    /// Read buffers: passes that are under way at a time.
    num_read_buffers: usize,
    /// Sections that are open at a time.
    num_open: u64,
    /// The part of a section that a pass takes.
    share: f64,
    /// Samples planned ahead, so that a pass knows what its section is needed for.
    look_ahead: usize,
}

/// How much of a section a pass takes.
#[derive(Debug)]
struct Share {
    of_section: f64,
    /// Sections that are open at a time.
    num_open: u64,
    /// Sections opened so far: their first passes are of different lengths, or else all would be read again
    /// at a time.
    num_opened: u64,
}

/// A chunk of which samples are planned or held.
#[derive(Default)]
struct OpenChunk {
    chunk: u32,
    /// For each section, one past its last sample.
    ends: Vec<u32>,
    sections: Vec<Section>,
    /// Samples planned and not shown yet.
    num_planned: usize,
}

#[derive(Default)]
struct Section {
    /// Samples that no pass has taken: number in the order of the run, and place in the chunk. Rising.
    wanted: VecDeque<(u64, u32)>,
    /// Samples that are here, rising by number. All before `arrived` are, or were shown.
    held: VecDeque<Taken>,
    arrived: u64,
    has_pass: bool,
    was_read: bool,
}

/// Memory that holds copies of consecutive samples of a section, or the one large sample that was read into it.
struct Copies {
    run: SharedBuf,
    /// Samples that were not shown yet.
    left: u32,
    /// The last batch that shows it, with its number there.
    shown_by: u64,
    buf: u32,
}

/// A read that is under way.
struct Pass {
    /// Place of the chunk, and section of it.
    place: u32,
    section: u32,
    samples: Vec<Taken>,
    /// Where the copies go; none where one sample was read into memory of its own.
    copies: Vec<IoBuf>,
}

/// A sample of a pass: under way, or here.
#[derive(Debug, Clone, Copy)]
struct Taken {
    number: u64,
    id: SampleId,
    nth: u32,
    len_bytes: u32,
    /// Which copies it is among, and where: an index into those of its pass until that has ended, then a
    /// place in the driver's. `NONE` where the sample is empty.
    copies: u32,
    offset: u32,
}

struct Planned {
    head: Head,
    /// Number of its first sample.
    first: u64,
    /// For each sample: place of its chunk, section.
    places: Vec<(u32, u32)>,
    /// Samples before this one were requested, or have arrived.
    requested: usize,
    arrived: usize,
}

impl Lens {
    /// For a window of `window_bytes` where chunks of `chunk_bytes` each, `open_bytes` in all, are open at a
    /// time, with samples of `sample_bytes` on average.
    pub(super) fn of(
        window_bytes: usize,
        chunk_bytes: usize,
        open_bytes: u64,
        sample_bytes: usize,
    ) -> Lens {
        let copies = (8 * sample_bytes).clamp(PAGE, MAX_COPIES_BYTES).next_multiple_of(PAGE);
        // Read buffers take memory, and so do copies that were shown in part: half of one a section.
        let open = open_bytes as f64;
        let least = (open * copies as f64 / (2 * MIN_READ_BUFFERS) as f64).sqrt() as usize;
        let section = least.min(MAX_SECTION_BYTES).min(chunk_bytes).min(window_bytes / 8);
        let section = section.next_multiple_of(PAGE).max(2 * PAGE);
        let num_read = (window_bytes / 32 / section).clamp(MIN_READ_BUFFERS, MAX_READ_BUFFERS);
        let num_open = open_bytes.div_ceil(section as u64).max(1);
        let half_shown = num_open as f64 * copies as f64 / 2.0;
        let room = window_bytes as f64 - (num_read * section) as f64 - half_shown;
        let room = (0.95 * room).max(window_bytes as f64 / 64.0);
        Lens {
            section_bytes: section,
            copies_bytes: copies,
            num_read_buffers: num_read,
            num_open,
            share: 2.0 * room / open.max(1.0),
            look_ahead: (window_bytes.saturating_mul(2) / sample_bytes.max(1))
                .min(MAX_PLANNED_SAMPLES),
        }
    }

    /// How often a section is read, as good as known: once whatever its first pass takes, and for what is left.
    pub(super) fn num_passes(&self) -> f64 {
        0.5 + 1.0 / self.share.min(1.0)
    }
}

impl Share {
    /// Samples that a pass over a section of `len` samples takes where `wanted` are planned.
    fn of(&mut self, len: usize, wanted: usize, is_first: bool) -> usize {
        let all = self.of_section * len as f64;
        let share = match is_first {
            true => {
                self.num_opened += 1;
                let nth = self.num_opened % self.num_open + 1;
                all * nth as f64 / self.num_open as f64
            }
            false if wanted as f64 <= LAST_PASS * all => wanted as f64,
            false => all,
        };
        (share.ceil() as usize).clamp(1, wanted.max(1))
    }
}

impl PassDriver {
    pub(super) fn new(
        directory: Arc<Directory>,
        geometry: Vec<Geometry>,
        stream: Stream,
        on_error: OnError,
        lens: Lens,
    ) -> PassDriver {
        PassDriver {
            geometry,
            stream,
            on_error,
            lens,
            share: Share { of_section: lens.share, num_open: lens.num_open, num_opened: 0 },
            chunks: Slab::new(),
            place_of: vec![NONE; directory.num_chunks() as usize],
            directory,
            planned: VecDeque::new(),
            num_planned: 0,
            requested: 0,
            next_number: 0,
            next_batch: 1,
            passes: Slab::new(),
            copies: Slab::new(),
            failures: HashMap::new(),
            read_buffers: Vec::new(),
            num_read_buffers: 0,
            short: None,
            picks: Vec::new(),
            ids: Vec::new(),
            slots: Vec::new(),
            extents: Vec::new(),
            wanted: Vec::new(),
            fetches: Vec::new(),
            keys: Vec::new(),
            spare_fetches: Vec::new(),
            spare_chunks: Vec::new(),
            spare_places: Vec::new(),
            spare_passes: Vec::new(),
            spare_copies: Vec::new(),
            recycled: Vec::new(),
        }
    }

    /// Plans one more batch; `false` where there is none.
    fn plan_next(&mut self) -> Result<bool> {
        let mut picks = std::mem::take(&mut self.picks);
        let Some(head) = self.stream.next_picks(&mut picks)? else {
            self.picks = picks;
            return Ok(false);
        };
        let mut places = self.spare_places.pop().unwrap_or_default();
        places.clear();
        let first = self.next_number;
        for pick in &picks {
            let place = self.open(pick.chunk);
            let open = &mut self.chunks[place as usize];
            let section = open.ends.partition_point(|&end| end <= pick.nth);
            open.sections[section].wanted.push_back((self.next_number, pick.nth));
            open.num_planned += 1;
            self.next_number += 1;
            places.push((place, section as u32));
        }
        self.num_planned += picks.len();
        self.planned.push_back(Planned { head, first, places, requested: 0, arrived: 0 });
        self.picks = picks;
        Ok(true)
    }

    /// The place of `chunk`, which is divided into sections if it is not yet.
    fn open(&mut self, chunk: u32) -> u32 {
        let place = self.place_of[chunk as usize];
        if place != NONE {
            return place;
        }
        let mut open = self.spare_chunks.pop().unwrap_or_default();
        open.chunk = chunk;
        let block = |at: u64| at / PAGE as u64 * PAGE as u64;
        let (mut first, mut behind) = (None, 0);
        for (nth, (_, extent)) in (0..).zip(self.directory.samples_in_chunk(chunk)) {
            behind = nth + 1;
            if extent.len_bytes == 0 {
                continue;
            }
            let end = extent.offset_bytes + u64::from(extent.len_bytes);
            let start = *first.get_or_insert(block(extent.offset_bytes));
            if end.next_multiple_of(PAGE as u64) - start > self.lens.section_bytes as u64
                && nth > open.ends.last().copied().unwrap_or(0)
            {
                open.ends.push(nth);
                first = Some(block(extent.offset_bytes));
            }
        }
        open.ends.push(behind);
        open.sections.resize_with(open.ends.len(), Section::default);
        let place = self.chunks.insert(open) as u32;
        self.place_of[chunk as usize] = place;
        place
    }

    /// Requests the samples of the planned batch at `age`; `false` when memory ran out, or the queue pairs
    /// have enough to do.
    fn request(&mut self, age: usize, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        while let Some(&(place, nth)) = self.planned[age].places.get(self.planned[age].requested) {
            let number = self.planned[age].first + self.planned[age].requested as u64;
            let section = &self.chunks[place as usize].sections[nth as usize];
            let is_wanted = section.wanted.front().is_some_and(|front| front.0 <= number);
            if is_wanted {
                let waits = section.has_pass || pump.is_busy();
                if waits || !self.begin_pass((place, nth), age == 0, pump, memory)? {
                    return Ok(false);
                }
            }
            self.planned[age].requested += 1;
        }
        Ok(true)
    }

    /// Starts a pass over section `nth` of a chunk; `false` when there is no memory for it. `next`: the batch
    /// that is delivered next waits for it.
    fn begin_pass(
        &mut self,
        (place, nth): (u32, u32),
        next: bool,
        pump: &mut Pump,
        memory: &mut Memory,
    ) -> Result<bool> {
        let must = next && memory.is_starving();
        let is_short = self.short.is_some_and(|(of, bytes)| {
            of == (place, nth) && !must && !memory.has(if next { bytes / 2 } else { bytes })
        });
        if is_short || !self.take_read_buffers(must, memory) {
            return Ok(false);
        }
        let opened = self.share.num_opened;
        let mut samples = self.spare_passes.pop().unwrap_or_default();
        self.choose((place, nth), &mut samples)?;
        let priority = match (must, next) {
            (true, _) => Priority::Sole,
            (false, true) => Priority::Next,
            (false, false) => Priority::Readahead,
        };
        let Some((copies, fetch, run)) = self.memory_for(&mut samples, priority, memory) else {
            let bytes = samples.iter().map(|sample| sample.len_bytes as usize).sum();
            self.short = Some(((place, nth), bytes));
            self.share.num_opened = opened;
            samples.clear();
            self.spare_passes.push(samples);
            return Ok(false);
        };
        self.short = None;
        let section = &mut self.chunks[place as usize].sections[nth as usize];
        section.wanted.drain(..samples.len());
        (section.has_pass, section.was_read) = (true, true);
        let pass = Pass { place, section: nth, samples, copies };
        pump.start(self.passes.insert(pass) as u64, fetch, run);
        Ok(true)
    }

    /// Has a read buffer, if there is memory for one.
    fn take_read_buffers(&mut self, must: bool, memory: &mut Memory) -> bool {
        while self.num_read_buffers < self.lens.num_read_buffers {
            let priority =
                if must && self.num_read_buffers == 0 { Priority::Sole } else { Priority::Next };
            let Some(buffer) = memory.take(self.lens.section_bytes, priority) else { break };
            self.read_buffers.push(buffer);
            self.num_read_buffers += 1;
        }
        !self.read_buffers.is_empty()
    }

    /// The samples that the next pass over section `nth` of a chunk takes, with their extents.
    fn choose(&mut self, (place, nth): (u32, u32), samples: &mut Vec<Taken>) -> Result<()> {
        let open = &self.chunks[place as usize];
        let section = &open.sections[nth as usize];
        let start = nth.checked_sub(1).map_or(0, |before| open.ends[before as usize]);
        let len = (open.ends[nth as usize] - start) as usize;
        let count = self.share.of(len, section.wanted.len(), !section.was_read);
        self.ids.clear();
        let wanted = section.wanted.iter().take(count);
        self.ids.extend(wanted.map(|&(_, nth)| self.directory.id_in_chunk(open.chunk, nth)));
        self.extents.clear();
        self.directory.extents(&self.ids, &mut self.slots, &mut self.extents);
        for ((&(number, nth), &id), extent) in
            section.wanted.iter().zip(&self.ids).zip(&self.extents)
        {
            let Some(Extent { len_bytes, .. }) = *extent else {
                let text = "the order names a sample that is gone";
                return Err(Error::new(ErrorKind::NotFound, text).sample(id));
            };
            samples.push(Taken { number, id, nth, len_bytes, copies: NONE, offset: 0 });
        }
        Ok(())
    }

    /// Memory for the copies of `samples`, or of as many as there is room for; a plan to read them, and the
    /// memory for that.
    fn memory_for(
        &mut self,
        samples: &mut Vec<Taken>,
        priority: Priority,
        memory: &mut Memory,
    ) -> Option<(Vec<IoBuf>, Fetch, IoBuf)> {
        let mut copies = self.spare_copies.pop().unwrap_or_default();
        let mut with_bytes = samples.iter().filter(|sample| sample.len_bytes > 0);
        if let (Some(only), None) = (with_bytes.next(), with_bytes.next())
            && only.len_bytes as usize + 2 * PAGE > self.lens.section_bytes
        {
            let fetch = self.plan(samples);
            let run = self.take(fetch.len_bytes, priority, memory);
            return match run {
                Some(run) => Some((copies, fetch, run)),
                None => {
                    self.give_back(fetch, copies);
                    None
                }
            };
        }
        let room_for = self.lay_out(samples, &mut copies, priority, memory);
        let enough = match priority {
            Priority::Readahead => samples.len(),
            Priority::Next => samples.len().div_ceil(2),
            Priority::Sole => 1,
        };
        if room_for < enough {
            self.give_back(Fetch::default(), copies);
            return None;
        }
        samples.truncate(room_for);
        let fetch = self.plan(samples);
        let mut run = self.read_buffers.pop().expect("the caller has seen to one");
        run.truncate(fetch.len_bytes);
        Some((copies, fetch, run))
    }

    /// Gives each of `samples` a place in `copies`, which grow meanwhile; returns how many have one.
    fn lay_out(
        &mut self,
        samples: &mut [Taken],
        copies: &mut Vec<IoBuf>,
        priority: Priority,
        memory: &mut Memory,
    ) -> usize {
        let mut offset = 0;
        for (nth, sample) in samples.iter_mut().enumerate() {
            let len = sample.len_bytes as usize;
            if len == 0 {
                continue;
            }
            if copies.last().is_none_or(|copies| offset + len > copies.len()) {
                // Only what is next may make others give way, and then not for more than it needs.
                let priority = if copies.is_empty() || priority != Priority::Sole {
                    priority
                } else {
                    Priority::Next
                };
                let len = len.max(self.lens.copies_bytes);
                let Some(taken) = self.take(len, priority, memory) else { return nth };
                copies.push(taken);
                offset = 0;
            }
            (sample.copies, sample.offset) = (copies.len() as u32 - 1, offset as u32);
            offset += len;
        }
        samples.len()
    }

    /// Memory, for which copies that are needed latest give way before the window is exceeded.
    fn take(&mut self, len: usize, priority: Priority, memory: &mut Memory) -> Option<IoBuf> {
        loop {
            let first_try = if priority == Priority::Sole { Priority::Next } else { priority };
            if let Some(run) = memory.take(len, first_try) {
                return Some(run);
            }
            if priority != Priority::Sole {
                return None;
            }
            if !self.evict_latest() {
                return memory.take(len, priority);
            }
        }
    }

    /// Gives up the copies that are needed latest, unless the next batch needs them; `false` where there are
    /// none.
    fn evict_latest(&mut self) -> bool {
        let next = self.planned.front().map_or(0, |front| front.first + front.places.len() as u64);
        let sections = self.chunks.iter_mut().flat_map(|(_, open)| &mut open.sections);
        let with_copies = sections.filter(|section| {
            // What a pass brings comes behind what is held.
            !section.has_pass && section.held.back().is_some_and(|held| held.number >= next)
        });
        let latest = with_copies.max_by_key(|section| section.held.back().map(|held| held.number));
        let Some(section) = latest else { return false };
        let mut of = None;
        while let Some(held) = section.held.back().copied() {
            if held.number < next
                || (held.copies != NONE && *of.get_or_insert(held.copies) != held.copies)
            {
                break;
            }
            section.held.pop_back();
            section.wanted.push_front((held.number, held.nth));
            section.arrived = held.number;
            self.failures.remove(&held.number);
            if held.copies != NONE {
                let copies = &mut self.copies[held.copies as usize];
                copies.left -= 1;
                if copies.left == 0 {
                    self.copies.remove(held.copies as usize);
                }
            }
            let age = self.planned.partition_point(|planned| planned.first <= held.number) - 1;
            let planned = &mut self.planned[age];
            let index = (held.number - planned.first) as usize;
            planned.requested = planned.requested.min(index);
            planned.arrived = planned.arrived.min(index);
            self.requested = self.requested.min(age);
        }
        true
    }

    /// The plan to read `samples`, the first of those that were chosen: each of their blocks once.
    fn plan(&mut self, samples: &[Taken]) -> Fetch {
        self.wanted.clear();
        for ((index, sample), extent) in (0..).zip(samples).zip(&self.extents) {
            let extent = extent.expect("all that were chosen are there");
            // An empty one would part its neighbours.
            if extent.len_bytes > 0 {
                self.wanted.push(SampleRequest { index, id: sample.id, extent });
            }
        }
        self.wanted.sort_unstable_by_key(|wanted| wanted.extent.offset_bytes);
        let (spare, out) = (&mut self.spare_fetches, &mut self.fetches);
        let merge = Merge::Neighbours;
        plan_samples(&mut self.wanted, &self.geometry, merge, usize::MAX, spare, out);
        let fetch = out.pop().or_else(|| spare.pop()).unwrap_or_default();
        assert!(out.is_empty(), "what is not limited is one fetch");
        fetch
    }

    fn give_back(&mut self, mut fetch: Fetch, mut copies: Vec<IoBuf>) {
        fetch.clear();
        self.spare_fetches.push(fetch);
        copies.clear();
        self.spare_copies.push(copies);
    }

    /// Whether every sample of the next batch has arrived.
    fn next_has_arrived(&mut self) -> bool {
        let Some(planned) = self.planned.front_mut() else { return false };
        while let Some(&(place, nth)) = planned.places.get(planned.arrived) {
            let number = planned.first + planned.arrived as u64;
            if self.chunks[place as usize].sections[nth as usize].arrived <= number {
                return false;
            }
            planned.arrived += 1;
        }
        true
    }

    fn assemble(&mut self, planned: Planned) -> Result<Delivery> {
        let of_batch = self.next_batch;
        self.next_batch += 1;
        let mut batch = self.recycled.pop().unwrap_or_default();
        batch.reset(&self.directory, planned.head.epoch);
        batch.reserve(planned.places.len());
        let (mut error, mut skipped) = (None, 0);
        for &(place, nth) in &planned.places {
            let open = &mut self.chunks[place as usize];
            let held = open.sections[nth as usize].held.pop_front().expect("it has arrived");
            open.num_planned -= 1;
            if open.num_planned == 0 {
                self.close(place);
            }
            let failure = match self.failures.is_empty() {
                true => None,
                false => self.failures.remove(&held.number),
            };
            match (failure, self.on_error) {
                (None, _) => {
                    let buf = match self.copies.get_mut(held.copies as usize) {
                        Some(copies) => copies.buf_of(&mut batch, of_batch),
                        None => 0,
                    };
                    let (id, len_bytes, offset) = (held.id, held.len_bytes, held.offset as usize);
                    batch.push(SampleLocation { id, buf, len_bytes, offset });
                }
                (Some(failure), OnError::Raise) => error = error.or(Some(failure)),
                (Some(failure), OnError::Skip | OnError::Blank) => {
                    tracing::warn!(error = %failure, "a sample is left out");
                    skipped += 1;
                }
            }
            if let Some(copies) = self.copies.get_mut(held.copies as usize) {
                copies.left -= 1;
                if copies.left == 0 {
                    self.copies.remove(held.copies as usize);
                }
            }
        }
        if planned.head.ends_epoch {
            batch.set_ends_epoch();
        }
        self.spare_places.push(planned.places);
        match error {
            Some(error) => Err(error),
            None => Ok(Delivery { batch, head: planned.head, skipped }),
        }
    }

    /// Forgets a chunk of which nothing is planned or held.
    fn close(&mut self, place: u32) {
        let mut open = self.chunks.remove(place as usize);
        self.place_of[open.chunk as usize] = NONE;
        open.ends.clear();
        for section in &mut open.sections {
            (section.arrived, section.has_pass, section.was_read) = (0, false, false);
        }
        self.spare_chunks.push(open);
    }
}

impl Copies {
    /// Its number among the buffers of the batch that is put together.
    fn buf_of(&mut self, batch: &mut Batch, of_batch: u64) -> u32 {
        if self.shown_by != of_batch {
            self.shown_by = of_batch;
            self.buf = batch.add_buf(self.run.clone());
        }
        self.buf
    }
}

impl Driver for PassDriver {
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        let (mut moved, begun_with) = (false, self.num_planned);
        while (self.num_planned < self.lens.look_ahead || self.planned.len() < 2)
            && self.planned.len() < MAX_PLANNED
            && self.plan_next()?
        {
            moved = true;
            if self.num_planned - begun_with >= PLANNED_A_TURN {
                break;
            }
        }
        // A pass takes what is planned, so nothing begins before enough is.
        let enough = self.lens.look_ahead - self.lens.look_ahead / 4;
        if moved && self.num_planned < enough && self.planned.len() < MAX_PLANNED {
            return Ok(true);
        }
        while self.requested < self.planned.len() {
            let age = self.requested;
            let before = self.planned[age].requested;
            let all = self.request(age, pump, memory)?;
            moved |= self.planned[age].requested != before;
            if !all {
                break;
            }
            self.requested += 1;
        }
        Ok(moved)
    }

    fn finished(&mut self, fetched: Fetched) {
        let mut pass = self.passes.remove(fetched.token as usize);
        let Fetched { mut fetch, buf: run, failures, .. } = fetched;
        for (index, error) in failures {
            let sample = &pass.samples[fetch.samples[index].index as usize];
            self.failures.insert(sample.number, error);
        }
        if pass.copies.is_empty() {
            // One sample in memory of its own, or none that has bytes.
            if let Some(sample) = pass.samples.iter_mut().find(|sample| sample.len_bytes > 0) {
                let copies = Copies { run, left: 1, shown_by: 0, buf: 0 };
                sample.copies = self.copies.insert(copies) as u32;
                sample.offset = fetch.samples[0].buf_offset as u32;
            } else {
                self.num_read_buffers -= 1;
            }
        } else {
            pass.copy(&fetch, &run);
            drop(run); // the next pass takes it again
            self.num_read_buffers -= 1;
            self.keys.clear();
            for copies in pass.copies.drain(..) {
                let copies = Copies { run: copies.freeze(), left: 0, shown_by: 0, buf: 0 };
                self.keys.push(self.copies.insert(copies) as u32);
            }
            for sample in pass.samples.iter_mut().filter(|sample| sample.copies != NONE) {
                sample.copies = self.keys[sample.copies as usize];
                self.copies[sample.copies as usize].left += 1;
            }
        }
        let section = &mut self.chunks[pass.place as usize].sections[pass.section as usize];
        section.has_pass = false;
        section.arrived = pass.samples.last().map_or(section.arrived, |last| last.number + 1);
        section.held.extend(pass.samples.drain(..));
        self.spare_passes.push(pass.samples);
        fetch.clear();
        self.give_back(fetch, pass.copies);
    }

    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        if !self.next_has_arrived() {
            return None;
        }
        let planned = self.planned.pop_front()?;
        self.num_planned -= planned.places.len();
        self.requested = self.requested.saturating_sub(1);
        Some(self.assemble(planned))
    }

    fn is_done(&self) -> bool {
        self.planned.is_empty() && self.stream.is_done()
    }

    fn recycle(&mut self, batch: Batch) {
        if self.recycled.len() < MAX_RECYCLED {
            self.recycled.push(batch);
        }
    }
}

impl Pass {
    /// Copies what was read to where its samples have their places.
    fn copy(&mut self, fetch: &Fetch, run: &[u8]) {
        for placed in &fetch.samples {
            let sample = &self.samples[placed.index as usize];
            let len = placed.len_bytes as usize;
            // A part that could not be read may be missing; its samples are not shown.
            let bytes = run.get(placed.buf_offset..placed.buf_offset + len);
            if let (Some(bytes), Some(copies)) =
                (bytes, self.copies.get_mut(sample.copies as usize))
            {
                copies[sample.offset as usize..][..len].copy_from_slice(bytes);
            }
        }
    }
}

const NONE: u32 = u32::MAX;

const PAGE: usize = 4096;

/// The longest section: a read of it is worth some commands.
const MAX_SECTION_BYTES: usize = 1 << 20;

/// Read buffers at least and at most; more where they take little of the window.
const MIN_READ_BUFFERS: usize = 2;
const MAX_READ_BUFFERS: usize = 8;

/// The largest buffer for copies of small samples.
const MAX_COPIES_BYTES: usize = 32 << 10;

/// What is left of a section is taken by one pass if it is so many times the share of one.
const LAST_PASS: f64 = 1.25;

/// Batches and samples planned ahead at most. A planned sample takes 24 bytes, one that is here 32.
const MAX_PLANNED: usize = 1 << 18;
const MAX_PLANNED_SAMPLES: usize = 3 << 19;

/// Samples planned before the poller looks at what has arrived.
const PLANNED_A_TURN: usize = 8 << 10;
