//! Reads chunks in several passes, and hands samples out of copies: for chunks of a grouped order that exceed the
//! window, and for all chunks of the global order if samples are tiny.
//!
//! A grouped order uses a chunk's samples throughout its group, in random order. If the chunks of the open groups
//! exceed the window, a chunk cannot stay until its last sample is handed out. Reading samples one by one costs a
//! block each: 42 times the bytes for samples of 100 bytes. So each chunk is read as many times as the window
//! requires. Each *pass* copies the samples that the order uses next, in its order, into small buffers. The buffers
//! return to the pool as their samples are handed out.
//!
//! The global order uses all chunks throughout the epoch: it is read in the same way, as one group. Planning far
//! ahead takes a while there, so the first batches are read by samples meanwhile.
//!
//! A chunk is divided into *sections* of about one read buffer each. A pass over a section reads each block that
//! holds one of its samples once, and no other block: a sample never costs more than reading it alone. A section
//! keeps half of a pass's copies on average. So if the window has room for a fraction f of all open sections, a pass
//! may take 2f of its section ([`PassLengths`]), provided that the passes over different sections are spread in time.
//! To spread them, the first passes have different lengths ([`PassLengths::of_pass`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use slab::Slab;

use crate::buf::{IoBuf, SharedBuf};
use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::format::Extent;
use crate::order::Pick;
use crate::reader::{
    Batch, Fetch, Fetched, Geometry, Merge, Pump, SampleLocation, SamplePlans, SampleRequest,
};
use crate::units::SampleId;

use super::driver::{Delivery, Driver, LeftOut};
use super::stream::Stream;
use super::walk::Head;
use super::window::{Memory, Priority};
use super::{OnError, gone};

/// Reads chunks in passes, and hands samples out of copies.
pub(super) struct PassDriver {
    directory: Arc<Directory>,
    /// Plans one pass at a time; the extents are those of the last chosen samples.
    plans: SamplePlans,
    stream: Stream,
    on_error: OnError,
    lengths: PassLengths,
    /// The number of sections whose first pass has begun, not counting reads for the first batches. First passes have
    /// different lengths; otherwise all sections would be read again at the same time.
    num_first_passes: u64,
    /// The chunks with planned samples or copies.
    chunks: Slab<OpenChunk>,
    /// By chunk number: its index in `chunks`, or `NONE`.
    index_of: Vec<u32>,
    /// The batches that are not delivered yet, in order.
    planned: VecDeque<PlannedBatch>,
    /// The number of samples in all of `planned`.
    num_planned: usize,
    /// The number of batches at the front of `planned` that have requested all their samples.
    requested: usize,
    /// The number of the next sample in the order of the run.
    next_number: u64,
    /// The number of the next batch, from 1.
    next_batch: u64,
    /// Samples with lower numbers are read alone, and their batches do not wait until enough is planned for passes.
    early_until: u64,
    /// The outstanding passes.
    passes: Slab<Pass>,
    /// The buffers with copies of samples that are not handed out yet.
    copies: Slab<Copies>,
    /// By sample number: the error of a sample that must not be handed out.
    failures: HashMap<u64, Error>,
    /// Read buffers that no pass uses.
    read_buffers: Vec<IoBuf>,
    /// The number of read buffers, those of passes included.
    num_read_buffers: usize,
    /// The section that waits for memory (index of its chunk, and section), and the bytes of its pass's samples.
    short: Option<((u32, u32), usize)>,
    /// Memory for the samples of a batch or of a pass, and for the indices of a pass's buffers.
    picks: Vec<Pick>,
    ids: Vec<SampleId>,
    keys: Vec<u32>,
    /// Empty chunks and lists, to be used again.
    free_chunks: Vec<OpenChunk>,
    free_lists: Vec<Vec<(u32, u32)>>,
    free_passes: Vec<Vec<PassSample>>,
    free_copies: Vec<Vec<IoBuf>>,
}

/// Lengths of buffers, derived from the window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PassLengths {
    /// Length of a read buffer, and the most bytes that a section of several samples spans on media.
    pub(super) section_bytes: usize,
    /// Length of a buffer for copies: a slot of the window.
    pub(super) copies_bytes: usize,
    /// The number of read buffers, which limits the outstanding passes that copy.
    num_read_buffers: usize,
    /// The number of sections that are open at a time.
    num_open: u64,
    /// The fraction of a section that one pass takes; all of it from 1 on.
    share: f64,
    /// The number of samples planned ahead, so that a pass knows the next samples of its section.
    look_ahead: usize,
    /// The number of first batches that do not wait for this look-ahead.
    early_batches: usize,
}

/// A chunk with planned samples or copies.
#[derive(Default)]
struct OpenChunk {
    chunk: u32,
    /// For each section, the end of its sample range.
    ends: Vec<u32>,
    sections: Vec<Section>,
    /// Samples that are planned and not handed out yet.
    num_planned: usize,
}

/// Consecutive samples of a chunk, which span about one read buffer on media.
#[derive(Default)]
struct Section {
    /// Samples that no pass has taken, ascending: number in the order of the run, and index in the chunk.
    wanted: VecDeque<(u64, u32)>,
    /// Samples that have arrived, ascending by number. All of the section's samples with numbers below `arrived` are
    /// here or have been handed out.
    held: VecDeque<PassSample>,
    arrived: u64,
    /// Set while a pass over the section is outstanding.
    has_pass: bool,
    /// Set once a pass has been begun for other samples than those of the first batches, which are read alone.
    was_read: bool,
}

/// A buffer with copies of consecutive samples of a section, or with one sample that was read into it.
struct Copies {
    buf: SharedBuf,
    /// The number of samples that are not handed out yet.
    left: u32,
    /// The last batch that uses it, 0 if none does yet; and its index among that batch's buffers.
    used_by: u64,
    buf_index: u32,
}

/// An outstanding read.
struct Pass {
    /// Index of the chunk, and the section in it.
    index: u32,
    section: u32,
    samples: Vec<PassSample>,
    /// The destination of the copies; empty if one sample is read into memory of its own, or all samples are empty.
    copies: Vec<IoBuf>,
}

/// A sample of a pass, outstanding or copied.
#[derive(Debug, Clone, Copy)]
struct PassSample {
    /// Number in the order of the run.
    number: u64,
    id: SampleId,
    /// Index in the chunk.
    nth: u32,
    len_bytes: u32,
    /// The buffer that holds the copy, and the offset in it. While the pass is outstanding, this is an index into
    /// the pass's buffers, afterwards into the driver's. `NONE` for an empty sample.
    copies: u32,
    offset: u32,
}

/// A batch that is planned and not delivered yet.
struct PlannedBatch {
    head: Head,
    /// Number of its first sample.
    first: u64,
    /// For each sample: index of its chunk, and section.
    sections: Vec<(u32, u32)>,
    /// The number of samples that are requested, and the number that have arrived.
    requested: usize,
    arrived: usize,
}

impl PassLengths {
    /// Lengths for a window of `window_bytes` and open chunks of `chunk_bytes` each, `open_bytes` in all, with
    /// samples of `sample_bytes` on average.
    pub(super) fn of(
        window_bytes: usize,
        chunk_bytes: usize,
        open_bytes: u64,
        sample_bytes: usize,
    ) -> PassLengths {
        let copies = (8 * sample_bytes).clamp(PAGE, MAX_COPIES_BYTES).next_multiple_of(PAGE);
        // Besides read buffers, partly handed out copy buffers take memory: half a buffer per section.
        // `least` is the length of sections for which both together take the least memory.
        let open = open_bytes as f64;
        let least = (open * copies as f64 / (2 * MIN_READ_BUFFERS) as f64).sqrt() as usize;
        let section = least.min(MAX_SECTION_BYTES).min(chunk_bytes).min(window_bytes / 8);
        let section = section.next_multiple_of(PAGE).max(2 * PAGE);
        let num_read = (window_bytes / 32 / section).clamp(MIN_READ_BUFFERS, MAX_READ_BUFFERS);
        let num_open = open_bytes.div_ceil(section as u64).max(1);
        let half_used = num_open as f64 * copies as f64 / 2.0;
        let room = window_bytes as f64 - (num_read * section) as f64 - half_used;
        let room = (0.95 * room).max(window_bytes as f64 / 64.0);
        PassLengths {
            section_bytes: section,
            copies_bytes: copies,
            num_read_buffers: num_read,
            num_open,
            share: 2.0 * room / open.max(1.0),
            look_ahead: (window_bytes.saturating_mul(2) / sample_bytes.max(1))
                .min(MAX_PLANNED_SAMPLES),
            early_batches: 0,
        }
    }

    /// The same for a run that begins with batches that do not wait for passes.
    pub(super) fn beginning_early(self) -> PassLengths {
        PassLengths { early_batches: EARLY_BATCHES, ..self }
    }

    /// The most samples that one pass over all sections takes, if the sections hold `num_samples` and batches have
    /// `batch_size`.
    pub(super) fn samples_in_pass(&self, num_samples: u64, batch_size: usize) -> f64 {
        let planned = self.look_ahead.min(MAX_PLANNED.saturating_mul(batch_size));
        (self.share.min(1.0) * num_samples as f64).min(planned as f64)
    }

    /// The estimated number of passes over a section. The first pass takes half a share on average, the others a
    /// whole share.
    pub(super) fn num_passes(&self) -> f64 {
        0.5 + 1.0 / self.share.min(1.0)
    }

    /// The number of samples that a pass over a section of `len` samples takes if `wanted` are planned. `first`: the
    /// counter of first passes, if this is the first pass over the section.
    fn of_pass(&self, len: usize, wanted: usize, first: Option<&mut u64>) -> usize {
        let all = self.share * len as f64;
        let share = if let Some(num_first_passes) = first {
            *num_first_passes += 1;
            let nth = *num_first_passes % self.num_open + 1;
            all * nth as f64 / self.num_open as f64
        } else if wanted as f64 <= LAST_PASS * all {
            wanted as f64
        } else {
            all
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
        lengths: PassLengths,
    ) -> PassDriver {
        PassDriver {
            plans: SamplePlans::new(geometry),
            stream,
            on_error,
            lengths,
            num_first_passes: 0,
            chunks: Slab::new(),
            index_of: vec![NONE; directory.num_chunks() as usize],
            directory,
            planned: VecDeque::new(),
            num_planned: 0,
            requested: 0,
            next_number: 0,
            next_batch: 1,
            early_until: 0,
            passes: Slab::new(),
            copies: Slab::new(),
            failures: HashMap::new(),
            read_buffers: Vec::new(),
            num_read_buffers: 0,
            short: None,
            picks: Vec::new(),
            ids: Vec::new(),
            keys: Vec::new(),
            free_chunks: Vec::new(),
            free_lists: Vec::new(),
            free_passes: Vec::new(),
            free_copies: Vec::new(),
        }
    }

    /// Plans one more batch. `false`: the stream has ended.
    fn plan_next(&mut self) -> Result<bool> {
        let mut picks = std::mem::take(&mut self.picks);
        let Some(head) = self.stream.next_picks(&mut picks)? else {
            self.picks = picks;
            return Ok(false);
        };
        let mut sections = self.free_lists.pop().unwrap_or_default();
        sections.clear();
        let first = self.next_number;
        let num_planned = self.next_batch - 1 + self.planned.len() as u64;
        let is_early = num_planned < self.lengths.early_batches as u64;
        for pick in &picks {
            let index = self.open(pick.chunk);
            let open = &mut self.chunks[index as usize];
            let section = open.ends.partition_point(|&end| end <= pick.nth);
            open.sections[section].wanted.push_back((self.next_number, pick.nth));
            open.num_planned += 1;
            self.next_number += 1;
            sections.push((index, section as u32));
        }
        if is_early {
            self.early_until = self.next_number;
        }
        self.num_planned += picks.len();
        self.planned.push_back(PlannedBatch { head, first, sections, requested: 0, arrived: 0 });
        self.picks = picks;
        Ok(true)
    }

    /// Returns whether one of the first batches is not fully requested yet. Their samples are read one after the
    /// other, and planning ahead would delay each. `false` while a section waits for memory, which may take long.
    fn is_beginning(&self) -> bool {
        let next = self.planned.get(self.requested);
        self.short.is_none() && next.is_some_and(|next| next.first < self.early_until)
    }

    /// The index of the open chunk `chunk`; opens it and divides it into sections if necessary.
    fn open(&mut self, chunk: u32) -> u32 {
        let index = self.index_of[chunk as usize];
        if index != NONE {
            return index;
        }
        let mut open = self.free_chunks.pop().unwrap_or_default();
        open.chunk = chunk;
        let live = self.directory.live_in_chunk(chunk);
        while let Some(first) = Some(open.ends.last().copied().unwrap_or(0)).filter(|at| *at < live)
        {
            open.ends.push(self.section_end(chunk, first, live));
        }
        open.sections.resize_with(open.ends.len(), Section::default);
        let index = self.chunks.insert(open) as u32;
        self.index_of[chunk as usize] = index;
        index
    }

    /// The end of the section of `chunk` that begins with its sample `first`, at most `live`. A binary search,
    /// since the first batches of a global order open most chunks.
    fn section_end(&self, chunk: u32, first: u32, live: u32) -> u32 {
        let page = PAGE as u64;
        let most = self.lengths.section_bytes as u64;
        let extent = |nth| self.directory.extent_in_chunk(chunk, nth);
        let start = extent(first).offset_bytes / page * page;
        let mut end = first + 1;
        let mut beyond = live;
        while end < beyond {
            let middle = end.midpoint(beyond);
            let Extent { offset_bytes, len_bytes, .. } = extent(middle);
            let ends_at = (offset_bytes + u64::from(len_bytes)).next_multiple_of(page);
            if ends_at - start > most { beyond = middle } else { end = middle + 1 }
        }
        end
    }

    /// Requests the samples of `planned[age]`. `false`: memory ran out, the queue pairs are busy, or a pass over a
    /// section of the batch is outstanding.
    fn request(&mut self, age: usize, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        while let Some(&(index, nth)) = self.planned[age].sections.get(self.planned[age].requested)
        {
            let number = self.planned[age].first + self.planned[age].requested as u64;
            let section = &self.chunks[index as usize].sections[nth as usize];
            let is_wanted = section.wanted.front().is_some_and(|front| front.0 <= number);
            if is_wanted {
                let waits = section.has_pass || pump.is_busy();
                if waits || !self.begin_pass((index, nth), age == 0, pump, memory)? {
                    return Ok(false);
                }
            }
            self.planned[age].requested += 1;
        }
        Ok(true)
    }

    /// Starts a pass over section `nth` of a chunk. `false`: memory ran out. `next`: the next batch to deliver
    /// waits for it.
    fn begin_pass(
        &mut self,
        (index, nth): (u32, u32),
        next: bool,
        pump: &mut Pump,
        memory: &mut Memory,
    ) -> Result<bool> {
        let must = next && memory.starving;
        // After memory ran out for this section, a further try needs enough for its pass; for the next batch, half.
        let is_short = self.short.is_some_and(|(of, bytes)| {
            of == (index, nth) && !must && !memory.has(if next { bytes / 2 } else { bytes })
        });
        if is_short || !self.take_read_buffers(must, memory) {
            return Ok(false);
        }
        let num_first_passes = self.num_first_passes;
        let is_early = self.is_early((index, nth));
        let mut samples = self.free_passes.pop().unwrap_or_default();
        self.choose((index, nth), &mut samples)?;
        let priority = match (must, next) {
            (true, _) => Priority::Sole,
            (false, true) => Priority::Next,
            (false, false) => Priority::Readahead,
        };
        let Some((copies, fetch, buf)) = self.memory_for(&mut samples, priority, memory) else {
            let bytes = samples.iter().map(|sample| sample.len_bytes as usize).sum();
            self.short = Some(((index, nth), bytes));
            self.num_first_passes = num_first_passes;
            samples.clear();
            self.free_passes.push(samples);
            return Ok(false);
        };
        self.short = None;
        let section = &mut self.chunks[index as usize].sections[nth as usize];
        section.wanted.drain(..samples.len());
        section.has_pass = true;
        section.was_read |= !is_early;
        let pass = Pass { index, section: nth, samples, copies };
        pump.start(self.passes.insert(pass) as u64, fetch, buf);
        Ok(true)
    }

    /// Returns whether the next sample of section `nth` of a chunk belongs to one of the first batches.
    fn is_early(&self, (index, nth): (u32, u32)) -> bool {
        let section = &self.chunks[index as usize].sections[nth as usize];
        section.wanted.front().is_some_and(|front| front.0 < self.early_until)
    }

    /// Allocates the read buffers while there is memory; returns whether one is free.
    fn take_read_buffers(&mut self, must: bool, memory: &mut Memory) -> bool {
        while self.num_read_buffers < self.lengths.num_read_buffers {
            let priority =
                if must && self.num_read_buffers == 0 { Priority::Sole } else { Priority::Next };
            let Some(buffer) = memory.take(self.lengths.section_bytes, priority) else { break };
            self.read_buffers.push(buffer);
            self.num_read_buffers += 1;
        }
        !self.read_buffers.is_empty()
    }

    /// Chooses the samples of the next pass over section `nth` of a chunk, with their extents.
    fn choose(&mut self, (index, nth): (u32, u32), samples: &mut Vec<PassSample>) -> Result<()> {
        let open = &self.chunks[index as usize];
        let section = &open.sections[nth as usize];
        let start = nth.checked_sub(1).map_or(0, |before| open.ends[before as usize]);
        let len = (open.ends[nth as usize] - start) as usize;
        let count = if self.is_early((index, nth)) {
            1
        } else {
            let first = (!section.was_read).then_some(&mut self.num_first_passes);
            self.lengths.of_pass(len, section.wanted.len(), first)
        };
        self.ids.clear();
        let wanted = section.wanted.iter().take(count);
        self.ids.extend(wanted.map(|&(_, nth)| self.directory.id_in_chunk(open.chunk, nth)));
        self.plans.look_up(&self.directory, &self.ids);
        for ((&(number, nth), &id), extent) in
            section.wanted.iter().zip(&self.ids).zip(&self.plans.extents)
        {
            let Some(Extent { len_bytes, .. }) = *extent else {
                return Err(gone(id));
            };
            samples.push(PassSample { number, id, nth, len_bytes, copies: NONE, offset: 0 });
        }
        Ok(())
    }

    /// Takes memory for the copies of `samples`, plans the read, and takes memory for it. If only the first samples
    /// fit, keeps these: at least half of all for `Next`, at least one for `Sole`. `None`: memory ran out.
    fn memory_for(
        &mut self,
        samples: &mut Vec<PassSample>,
        priority: Priority,
        memory: &mut Memory,
    ) -> Option<(Vec<IoBuf>, Fetch, IoBuf)> {
        let mut copies = self.free_copies.pop().unwrap_or_default();
        // A single sample that is large or early is read into memory of its own, and not copied.
        let mut with_bytes = samples.iter().filter(|sample| sample.len_bytes > 0);
        if let (Some(only), None) = (with_bytes.next(), with_bytes.next())
            && (only.len_bytes as usize + 2 * PAGE > self.lengths.section_bytes
                || only.number < self.early_until)
        {
            let fetch = self.plan(samples);
            memory.set_next(&fetch);
            let buf = self.take(fetch.len_bytes, priority, memory);
            return match buf {
                Some(buf) => Some((copies, fetch, buf)),
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
        let mut buf = self.read_buffers.pop().expect("the caller has made sure of one");
        buf.truncate(fetch.len_bytes);
        Some((copies, fetch, buf))
    }

    /// Assigns each of `samples` its offset in `copies`, and adds buffers as needed; returns the number of samples
    /// placed.
    fn lay_out(
        &mut self,
        samples: &mut [PassSample],
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
                // Only the first buffer may evict copies, so that only the necessary ones are evicted.
                let priority = if copies.is_empty() || priority != Priority::Sole {
                    priority
                } else {
                    Priority::Next
                };
                let len = len.max(self.lengths.copies_bytes);
                let Some(taken) = self.take(len, priority, memory) else { return nth };
                copies.push(taken);
                offset = 0;
            }
            (sample.copies, sample.offset) = (copies.len() as u32 - 1, offset as u32);
            offset += len;
        }
        samples.len()
    }

    /// Takes memory. For `Sole`, first evicts the copies that are needed latest, and uses memory outside the window
    /// only when no more can be evicted.
    fn take(&mut self, len: usize, priority: Priority, memory: &mut Memory) -> Option<IoBuf> {
        loop {
            let first_try = if priority == Priority::Sole { Priority::Next } else { priority };
            if let Some(buf) = memory.take(len, first_try) {
                return Some(buf);
            }
            if priority != Priority::Sole {
                return None;
            }
            if !self.evict_latest() {
                return memory.take(len, priority);
            }
        }
    }

    /// Evicts the copies of one buffer: those that are needed latest, but none of the next batch. `false`: there are no
    /// such copies. Passes read the evicted samples again.
    fn evict_latest(&mut self) -> bool {
        let next =
            self.planned.front().map_or(0, |front| front.first + front.sections.len() as u64);
        let sections = self.chunks.iter_mut().flat_map(|(_, open)| &mut open.sections);
        let with_copies = sections.filter(|section| {
            // Samples of an outstanding pass come after the held samples.
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
            release(&mut self.copies, held.copies);
            let age = self.planned.partition_point(|planned| planned.first <= held.number) - 1;
            let planned = &mut self.planned[age];
            let index = (held.number - planned.first) as usize;
            planned.requested = planned.requested.min(index);
            planned.arrived = planned.arrived.min(index);
            self.requested = self.requested.min(age);
        }
        true
    }

    /// Plans the read of `samples`, the first ones that were chosen. Reads each of their blocks once.
    fn plan(&mut self, samples: &[PassSample]) -> Fetch {
        let SamplePlans { extents, requests, .. } = &mut self.plans;
        requests.clear();
        for ((index, sample), extent) in (0..).zip(samples).zip(&*extents) {
            let extent = extent.expect("all that were chosen are there");
            // An empty sample would separate its neighbours.
            if extent.len_bytes > 0 {
                requests.push(SampleRequest { index, id: sample.id, extent });
            }
        }
        requests.sort_unstable_by_key(|request| request.extent.offset_bytes);
        self.plans.plan(.., Merge::Neighbours, usize::MAX);
        let fetch = self.plans.fetches.pop().unwrap_or_else(|| self.plans.empty());
        assert!(self.plans.fetches.is_empty(), "what is not limited is one fetch");
        fetch
    }

    /// Keeps the memory of a plan and of a list of buffers for later passes.
    fn give_back(&mut self, fetch: Fetch, mut copies: Vec<IoBuf>) {
        self.plans.recycle(fetch);
        copies.clear();
        self.free_copies.push(copies);
    }

    /// Returns whether every sample of the next batch has arrived.
    fn next_has_arrived(&mut self) -> bool {
        let Some(planned) = self.planned.front_mut() else { return false };
        while let Some(&(index, nth)) = planned.sections.get(planned.arrived) {
            let number = planned.first + planned.arrived as u64;
            if self.chunks[index as usize].sections[nth as usize].arrived <= number {
                return false;
            }
            planned.arrived += 1;
        }
        true
    }

    /// Makes the next batch, whose samples have all arrived.
    fn assemble(&mut self, planned: PlannedBatch) -> Result<Delivery> {
        let of_batch = self.next_batch;
        self.next_batch += 1;
        let mut batch = self.stream.spares.take();
        batch.reset(&self.directory, planned.head.epoch);
        batch.reserve(planned.sections.len());
        let mut left_out = LeftOut::new(self.on_error);
        for &(index, nth) in &planned.sections {
            let open = &mut self.chunks[index as usize];
            let held = open.sections[nth as usize].held.pop_front().expect("it has arrived");
            open.num_planned -= 1;
            if open.num_planned == 0 {
                self.close(index);
            }
            let failure =
                if self.failures.is_empty() { None } else { self.failures.remove(&held.number) };
            match failure {
                None => {
                    let buf = match self.copies.get_mut(held.copies as usize) {
                        Some(copies) => copies.buf_of(&mut batch, of_batch),
                        None => 0,
                    };
                    let id = held.id;
                    let len_bytes = held.len_bytes;
                    let offset = held.offset as usize;
                    batch.push(SampleLocation { id, buf, len_bytes, offset });
                }
                Some(failure) => left_out.add(batch.len(), failure),
            }
            release(&mut self.copies, held.copies);
        }
        self.free_lists.push(planned.sections);
        left_out.deliver(batch, planned.head)
    }

    /// Closes a chunk without planned samples or copies.
    fn close(&mut self, index: u32) {
        let mut open = self.chunks.remove(index as usize);
        self.index_of[open.chunk as usize] = NONE;
        open.ends.clear();
        for section in &mut open.sections {
            (section.arrived, section.has_pass, section.was_read) = (0, false, false);
        }
        self.free_chunks.push(open);
    }
}

/// Releases one sample of the buffer at `index` that was handed out or evicted. Does nothing if it is in no buffer.
fn release(copies: &mut Slab<Copies>, index: u32) {
    if let Some(of_sample) = copies.get_mut(index as usize) {
        of_sample.left -= 1;
        if of_sample.left == 0 {
            copies.remove(index as usize);
        }
    }
}

impl Copies {
    /// The index of the buffer in the batch that is being assembled; adds it if necessary.
    fn buf_of(&mut self, batch: &mut Batch, of_batch: u64) -> u32 {
        if self.used_by != of_batch {
            self.used_by = of_batch;
            self.buf_index = batch.add_buf(self.buf.clone());
        }
        self.buf_index
    }
}

impl Driver for PassDriver {
    fn advance(&mut self, pump: &mut Pump, memory: &mut Memory) -> Result<bool> {
        let mut moved = false;
        let begun_with = self.num_planned;
        while !self.is_beginning()
            && (self.num_planned < self.lengths.look_ahead || self.planned.len() < 2)
            && self.planned.len() < MAX_PLANNED
            && self.plan_next()?
        {
            moved = true;
            if self.num_planned - begun_with >= PLANNED_PER_TURN {
                break;
            }
        }
        // A pass takes only planned samples, so passes wait until enough samples are planned.
        let enough = self.lengths.look_ahead - self.lengths.look_ahead / 4;
        let is_planning = moved && self.num_planned < enough && self.planned.len() < MAX_PLANNED;
        while let Some(planned) = self.planned.get(self.requested)
            && (!is_planning || planned.first < self.early_until)
        {
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
        let Fetched { fetch, buf, failures, .. } = fetched;
        for (index, error) in failures {
            let sample = &pass.samples[fetch.samples[index].index as usize];
            self.failures.insert(sample.number, error);
        }
        if pass.copies.is_empty() {
            // One sample in memory of its own, or only empty samples.
            if let Some(sample) = pass.samples.iter_mut().find(|sample| sample.len_bytes > 0) {
                let copies = Copies { buf, left: 1, used_by: 0, buf_index: 0 };
                sample.copies = self.copies.insert(copies) as u32;
                sample.offset = fetch.samples[0].buf_offset as u32;
            } else {
                self.num_read_buffers -= 1;
            }
        } else {
            pass.copy(&fetch, &buf);
            drop(buf); // returns the buffer to the pool: the next pass takes it again
            self.num_read_buffers -= 1;
            self.keys.clear();
            for copies in pass.copies.drain(..) {
                let copies = Copies { buf: copies.freeze(), left: 0, used_by: 0, buf_index: 0 };
                self.keys.push(self.copies.insert(copies) as u32);
            }
            for sample in pass.samples.iter_mut().filter(|sample| sample.copies != NONE) {
                sample.copies = self.keys[sample.copies as usize];
                self.copies[sample.copies as usize].left += 1;
            }
        }
        let section = &mut self.chunks[pass.index as usize].sections[pass.section as usize];
        section.has_pass = false;
        section.arrived = pass.samples.last().map_or(section.arrived, |last| last.number + 1);
        section.held.extend(pass.samples.drain(..));
        self.free_passes.push(pass.samples);
        self.give_back(fetch, pass.copies);
    }

    fn next_ready(&mut self) -> Option<Result<Delivery>> {
        if !self.next_has_arrived() {
            return None;
        }
        let planned = self.planned.pop_front()?;
        self.num_planned -= planned.sections.len();
        self.requested = self.requested.saturating_sub(1);
        Some(self.assemble(planned))
    }

    fn is_done(&self) -> bool {
        self.planned.is_empty() && self.stream.is_done()
    }
}

impl Pass {
    /// Copies the samples from the read buffer to their destinations.
    fn copy(&mut self, fetch: &Fetch, buf: &[u8]) {
        for placed in &fetch.samples {
            let sample = &self.samples[placed.index as usize];
            let len = placed.len_bytes as usize;
            // Bytes that could not be read may be missing; their samples are not handed out.
            let bytes = buf.get(placed.buf_offset..placed.buf_offset + len);
            if let (Some(bytes), Some(copies)) =
                (bytes, self.copies.get_mut(sample.copies as usize))
            {
                copies[sample.offset as usize..][..len].copy_from_slice(bytes);
            }
        }
    }
}

/// Stands for no chunk, or no buffer.
const NONE: u32 = u32::MAX;

/// The length of a page: the unit of read buffers, of slots of the window, and of the bytes that a section spans.
const PAGE: usize = 4096;

/// The longest section: long enough to be worth several commands.
const MAX_SECTION_BYTES: usize = 1 << 20;

/// The fewest and the most read buffers; more than the fewest only if they take a small part of the window.
const MIN_READ_BUFFERS: usize = 2;
const MAX_READ_BUFFERS: usize = 8;

/// The largest buffer for copies of small samples.
const MAX_COPIES_BYTES: usize = 32 << 10;

/// A pass takes the rest of a section if the rest is at most this many times a pass's share.
const LAST_PASS: f64 = 1.25;

/// The most batches and samples planned ahead; two batches may have more samples. A planned sample takes 24 bytes,
/// and 40 once a pass has taken it.
const MAX_PLANNED: usize = 1 << 18;
const MAX_PLANNED_SAMPLES: usize = 3 << 19;

/// The number of batches of a global order that are read by samples, so that they arrive early.
const EARLY_BATCHES: usize = 2;

/// A turn plans about this many samples at most, so that the poller soon processes completions again.
const PLANNED_PER_TURN: usize = 8 << 10;
