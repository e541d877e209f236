//! The copier: a thread that writes to tiers the pages that readers bring, fetches the missing pages of kept
//! samples, and publishes the copies.
//!
//! A page that a reader fetches is written when it arrives, and not read again. If a sample is kept
//! whole, the copier fetches the pages that no reader asks for: in large reads, within the bandwidth
//! limit and at low priority. It never fetches a page that has a copy or that a reader has claimed. Planned units,
//! and the rest of chunks that nodes hold for each other, are fetched ahead of the readers; the copier begins one only
//! while no reader of its process waits for the origin. If a tier has a number of threads, at most as many fetches into
//! it are in flight, and writes of at most 1 MiB for each thread; one write may always be in flight.

mod checks;
mod evicting;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::TierShared;
use dlfs_base::buf::IoBuf;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_io::qpair::calls::{Calls, Ticket};
use dlfs_io::qpair::{PairScope, open_pairs};
use dlfs_order::tier::{CopyLocation, Kept, PAGE_BYTES, PageSet, sum_of_pages};

use checks::Checks;
use evicting::Lent;

/// A message to the copier.
pub(super) enum CopyJob {
    /// Room is reserved for these units: the copier fetches their missing pages.
    Fill(Range<u32>),
    /// Claimed pages of a unit, contiguous.
    Piece { unit: u32, pages: PageSet, bytes: IoBuf },
    /// Pages whose copies were corrupt or unreadable; the copies are no longer published.
    Corrupt(u32, PageSet),
    /// Units of chunks that a reader has begun to read, or that this node is to hold. The copier
    /// fetches the pages that no reader fetches.
    Behind(Vec<u32>),
    /// Units to evict.
    Evict(Vec<u32>),
    /// Planned units in the order of their first read, and the units and pages to evict. Replaces the last plan.
    Plan { wanted: Vec<u32>, evicted: Vec<(u32, PageSet)> },
    /// The sender is dropped once all pages that were sent before are written, and the indices list them.
    Flush(Sender<Infallible>),
}

/// The state of the copier's thread.
pub(super) struct Copier {
    pub(super) shared: Arc<TierShared>,
    calls: Calls,
    /// Index of the first tier's queue pair in `calls`; those of the origins come before it.
    first_tier: usize,
    jobs: Receiver<CopyJob>,
    /// For each tier, the pages to be written, in the order of their arrival.
    to_write: Vec<VecDeque<PendingWrite>>,
    /// For each unit, the pages that are being written or are queued for it.
    writing: HashMap<u32, PageSet>,
    /// Units whose reserved pages must all be fetched.
    filling: HashMap<u32, Filling>,
    /// The same units, in the order in which the copier looks at them; also units whose filling has just ended.
    incomplete: VecDeque<u32>,
    /// Copies of an earlier run that are still to be verified.
    checks: Checks,
    /// Pages to evict as soon as the copies of their units are verified.
    leaving: HashMap<u32, PageSet>,
    /// Pages and room that must not be written while buffers are lent.
    lent: Lent,
    /// Units to fetch while no reader waits for the origin: units of a plan, and units of chunks that were begun or
    /// that this node holds.
    planned: VecDeque<u32>,
    active: Vec<Active>,
    /// For each tier, the pages of its index that must be written.
    dirty: Vec<Dirty>,
    /// Units whose entry in the index is being recomputed, with the number of the latest attempt.
    summing: HashMap<u32, u64>,
    /// Number of attempts so far to recompute an entry.
    last_sum: u64,
    /// Callers that wait until all is written.
    flushing: Vec<Sender<Infallible>>,
    /// The earliest time of the next fetch within the bandwidth limit.
    next_fetch: Instant,
}

/// Contiguous pages of a unit that have arrived and are to be written.
struct PendingWrite {
    unit: u32,
    pages: PageSet,
    bytes: IoBuf,
}

/// A unit whose missing pages the copier fetches.
struct Filling {
    /// Time at which the unit was requested.
    begun: Instant,
    /// Time of the request, of the last arrival of a page or end of a fetch, or of the last release of overdue claims.
    touched: Instant,
    /// Pages that the copier is fetching.
    fetching: PageSet,
    /// Number of failed fetches of the unit.
    failures: u32,
    /// Set if the copier fetches the unit ahead of readers: it then does not wait [`GRACE`] for their pages.
    is_ahead: bool,
}

/// Changed pages of a tier's index, by their offset in bytes.
#[derive(Default)]
struct Dirty {
    /// Pages to be written.
    pages: BTreeSet<usize>,
    /// Pages that are being written.
    writing: BTreeSet<usize>,
    /// The page to continue with, so that a page that changes often does not delay the others.
    next: usize,
}

impl Dirty {
    fn take_next(&mut self) -> Option<usize> {
        if self.writing.len() >= MAX_INDEX_WRITES {
            return None;
        }
        let ahead = self.pages.range(self.next..).chain(self.pages.range(..self.next));
        let page = *ahead.into_iter().find(|page| !self.writing.contains(page))?;
        self.pages.remove(&page);
        self.writing.insert(page);
        self.next = page + 1;
        Some(page)
    }
}

/// An outstanding call of the copier.
struct Active {
    ticket: Ticket,
    began: Instant,
    kind: CallKind,
}

/// The purpose of a call, with the data that its end needs.
enum CallKind {
    /// Reads contiguous pages of one or more units from the origin.
    Fetch(Vec<(u32, PageSet)>),
    /// Writes copies, which have this checksum.
    Write(Copies, u32),
    /// Writes the page of an index at this offset.
    Index { tier: usize, page: usize },
    /// Reads copies of an earlier run, to verify them.
    Check { tier: u8, kept: Kept },
    /// Reads copies, to recompute their checksum; with the number of the attempt.
    Sum(Copies, u64),
}

/// Copies of one unit.
#[derive(Clone, Copy)]
struct Copies {
    unit: u32,
    pages: PageSet,
    location: CopyLocation,
}

impl Copier {
    /// Opens the copier's queue pairs. `to_check` are the copies of an earlier run, with their tiers.
    ///
    /// # Errors
    /// A queue pair cannot be opened.
    pub(super) fn new(
        shared: Arc<TierShared>,
        mut calls: Calls,
        jobs: Receiver<CopyJob>,
        to_check: Vec<(u8, Kept)>,
    ) -> Result<Copier> {
        let scope = PairScope::new();
        for pairs in open_pairs(&shared.origins, std::slice::from_ref(&scope))? {
            pairs.into_iter().for_each(|pair| _ = calls.add(pair)); // one pair of each origin
        }
        for media in &shared.media {
            calls.add(media.device.queue_pair_in(&scope)?);
        }
        shared.counters.unsettle(to_check.len() as i64);
        Ok(Copier {
            calls,
            first_tier: shared.origins.len(),
            jobs,
            to_write: shared.media.iter().map(|_| VecDeque::new()).collect(),
            writing: HashMap::new(),
            filling: HashMap::new(),
            incomplete: VecDeque::new(),
            checks: Checks::new(to_check, &shared.copies),
            leaving: HashMap::new(),
            lent: Lent::default(),
            planned: VecDeque::new(),
            active: Vec::new(),
            dirty: shared.media.iter().map(|_| Dirty::default()).collect(),
            summing: HashMap::new(),
            last_sum: 0,
            flushing: Vec::new(),
            next_fetch: Instant::now(),
            shared,
        })
    }

    /// Works until the tiers are stopped; then writes what has arrived, for up to [`LAST_WRITES`].
    pub(super) fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            if !self.turn(Instant::now(), false) {
                let is_filled = self.incomplete.is_empty() && self.planned.is_empty();
                let idle = is_filled && self.lent.is_empty();
                let limit = if idle { IDLE_WAIT } else { BUSY_WAIT };
                self.calls.wait_until(Instant::now() + limit);
            }
        }
        self.write_last(Instant::now() + LAST_WRITES);
    }

    /// Advances all work; with `is_last`, takes no job and starts only writes. Returns whether anything has moved.
    fn turn(&mut self, now: Instant, is_last: bool) -> bool {
        let mut moved = self.calls.turn();
        while !is_last && let Ok(job) = self.jobs.try_recv() {
            self.handle(job, now);
            self.shared.counters.unsettle(-1);
            moved = true;
        }
        moved |= self.take_ended(now);
        moved |= !is_last && self.take_all_back();
        let before = self.active.len();
        (0..self.to_write.len()).for_each(|tier| self.start_writes(tier, now));
        if !is_last {
            self.start_checks(now);
            self.start_fetches(now);
        }
        self.start_index_writes(now);
        if !self.flushing.is_empty() && self.is_all_written() {
            self.flushing.clear();
        }
        moved || self.active.len() > before // the next turn submits them
    }

    /// Adds a call that has begun, or handles its failure to begin.
    fn start(&mut self, begun: Result<Ticket>, kind: CallKind, now: Instant) {
        match begun {
            Ok(ticket) => self.active.push(Active { ticket, began: now, kind }),
            Err(error) => self.ended(kind, now, Err(error), now),
        }
    }

    fn handle(&mut self, job: CopyJob, now: Instant) {
        match job {
            CopyJob::Fill(units) => units.for_each(|unit| self.fill(unit, now)),
            CopyJob::Piece { unit, pages, bytes } => self.add(unit, pages, bytes, now),
            CopyJob::Corrupt(unit, pages) => {
                self.take_back(unit, pages);
                self.sum_again(unit, now);
                if self.shared.is_filled_behind(unit) {
                    self.fill(unit, now);
                } else if self.shared.ledger.lock().is_held(unit) {
                    self.planned.push_back(unit);
                }
            }
            CopyJob::Behind(units) => self.planned.extend(units),
            CopyJob::Evict(units) => units.into_iter().for_each(|unit| self.evict(unit)),
            CopyJob::Plan { wanted, evicted } => {
                self.leaving.clear();
                evicted.into_iter().for_each(|(unit, pages)| self.evict_pages(unit, pages, now));
                self.planned = wanted.into();
            }
            CopyJob::Flush(written) => self.flushing.push(written),
        }
    }

    /// Returns whether pages of the unit are being fetched, written, verified or summed up.
    fn is_moving(&self, unit: u32) -> bool {
        let is_used = |active: &Active| match &active.kind {
            CallKind::Check { kept, .. } => kept.unit == unit,
            CallKind::Sum(copies, _) => copies.unit == unit,
            CallKind::Fetch(parts) => parts.iter().any(|(other, _)| *other == unit),
            CallKind::Write(..) | CallKind::Index { .. } => false,
        };
        self.writing.contains_key(&unit) || self.active.iter().any(is_used)
    }

    /// Requests all reserved pages of the unit without copies. Does nothing while older copies of the unit
    /// are still to be verified.
    fn fill(&mut self, unit: u32, now: Instant) {
        let missing = self.shared.copies.reserved(unit).without(self.shared.copies.there(unit));
        if missing.is_empty() || self.checks.contains(unit) {
            return;
        }
        self.filling.entry(unit).or_insert_with(|| {
            self.shared.counters.unsettle(1);
            self.incomplete.push_back(unit);
            Filling {
                begun: now,
                touched: now,
                fetching: PageSet::NONE,
                failures: 0,
                is_ahead: false,
            }
        });
    }

    fn end_filling(&mut self, unit: u32) {
        if self.filling.remove(&unit).is_some() {
            self.shared.counters.unsettle(-1);
        }
    }

    /// Handles contiguous pages of a unit that have arrived: queues the kept pages to be written, and releases the
    /// others, except for pages that are being written already. Keeps none if the data differ from the directory.
    fn add(&mut self, unit: u32, pages: PageSet, bytes: IoBuf, now: Instant) {
        let first = pages.0.trailing_zeros();
        let is_written = self.writing.get(&unit).copied().unwrap_or_default();
        if let Some(filling) = self.filling.get_mut(&unit) {
            filling.touched = now;
        }
        let is_intact = self.is_intact(unit, first, &bytes);
        let keep =
            if is_intact { self.keep(unit, pages.without(is_written)) } else { PageSet::NONE };
        let tier = self.shared.copies.location(unit).map_or(0, |location| location.tier);
        self.shared.copies.release(unit, pages.without(keep).without(is_written));
        self.shared.queued_bytes.fetch_sub(bytes_of(pages.without(keep)), Ordering::AcqRel);
        let mut rest = bytes;
        let mut at = first;
        for run in keep.runs() {
            let mut bytes = rest.split_off(((run.start - at) as u64 * PAGE_BYTES) as usize);
            rest = bytes.split_off(((run.end - run.start) as u64 * PAGE_BYTES) as usize);
            at = run.end;
            self.shared.counters.unsettle(1);
            let write = PendingWrite { unit, pages: PageSet::range(run), bytes };
            self.to_write[usize::from(tier)].push_back(write);
        }
        if !keep.is_empty() {
            let writing = self.writing.entry(unit).or_default();
            *writing = writing.with(keep);
        }
        if !is_intact {
            let text = "the origin's data differ from the directory";
            self.fetch_failed(unit, &Error::new(ErrorKind::Corrupt, text));
        }
    }

    /// Returns whether the samples that lie wholly in `bytes`, from page `first` of the unit on, are
    /// intact. Always true without checksums to compare with.
    fn is_intact(&self, unit: u32, first: u32, bytes: &[u8]) -> bool {
        let units = &self.shared.units;
        let start = units.get(unit).start_bytes() + u64::from(first) * PAGE_BYTES;
        let intact = self.shared.intact.get();
        intact.is_none_or(|intact| intact.is_intact(units.namespace_of(unit), start, bytes))
    }

    /// Returns the part of `pages` to write now; `pages` must not include pages that are being written.
    fn keep(&self, unit: u32, pages: PageSet) -> PageSet {
        if self.checks.contains(unit) {
            return PageSet::NONE; // older copies of the unit are still to be verified
        }
        self.shared.wants(unit, pages.without(self.shared.copies.there(unit)))
    }

    /// Outstanding writes of copies.
    fn writes(&self) -> impl Iterator<Item = &Copies> + Clone {
        self.active.iter().filter_map(|active| match &active.kind {
            CallKind::Write(copies, _) => Some(copies),
            _ => None,
        })
    }

    /// Returns whether another write to the tier may begin.
    fn may_write(&self, tier: usize) -> bool {
        let to_tier = self.writes().filter(|copies| usize::from(copies.location.tier) == tier);
        let bytes: usize = to_tier.clone().map(|copies| bytes_of(copies.pages)).sum();
        let count = to_tier.count();
        let next = self.to_write[tier].front().map_or(0, |write| write.bytes.len());
        let most = self.shared.sources.limit(tier as u8).map(|limit| limit.most_bytes());
        count < MAX_WRITES && most.is_none_or(|most| count == 0 || bytes + next <= most)
    }

    fn start_writes(&mut self, tier: usize, now: Instant) {
        while self.may_write(tier) {
            let Some(PendingWrite { unit, pages, bytes }) = self.to_write[tier].pop_front() else {
                return;
            };
            let first = pages.0.trailing_zeros();
            let location = self.shared.copies.location(unit);
            let place = location.and_then(|location| Some((location, location.of_page(first)?)));
            let Some((location, page)) = place.filter(|_| self.take_back(unit, pages)) else {
                self.shared.copies.release(unit, pages); // evicted meanwhile, or still lent
                self.end_write(unit, pages);
                continue;
            };
            let kind = CallKind::Write(
                Copies { unit, pages, location },
                sum_of_pages(pages, first, &bytes),
            );
            let media = &self.shared.media[usize::from(location.tier)];
            let offset = media.data_offset + page * PAGE_BYTES;
            let pair = self.first_tier + usize::from(location.tier);
            let begun = self.calls.begin_write(pair, offset, bytes);
            self.start(begun, kind, now);
        }
    }

    /// Ends the write of these pages, also if it was not started.
    fn end_write(&mut self, unit: u32, pages: PageSet) {
        if let Some(writing) = self.writing.get_mut(&unit) {
            *writing = writing.without(pages);
            if writing.is_empty() {
                self.writing.remove(&unit);
            }
        }
        self.shared.queued_bytes.fetch_sub(bytes_of(pages), Ordering::AcqRel);
        self.shared.counters.unsettle(-1);
    }

    /// Handles the end of a write: lists the copies in the index, and publishes them.
    fn written(&mut self, copies: Copies, sum: u32, began: Instant, now: Instant) {
        let Copies { unit, pages, location } = copies;
        let is_listed = self.list(unit, location, pages, sum);
        let media = &self.shared.media[usize::from(location.tier)];
        location.ranges(pages).for_each(|range| media.freeze(&range));
        self.shared.copies.publish(unit, pages);
        let all = self.shared.units.get(unit).all();
        let is_whole = all.without(self.shared.copies.there(unit)).is_empty();
        self.shared.counters.filled(location.tier, bytes_of(pages), is_whole, now - began);
        if !is_listed {
            self.sum_again(unit, now);
        }
        self.end_write(unit, pages);
    }

    /// Handles a failed write: stops copying to the tier.
    fn write_failed(&mut self, Copies { unit, pages, location }: Copies, why: &str) {
        self.shared.switch_off(location.tier, &why);
        self.shared.unreserve(unit, pages);
        self.shared.copies.release(unit, pages);
        self.end_filling(unit);
        self.end_write(unit, pages);
    }

    /// Handles the calls that have ended; returns whether there were any.
    fn take_ended(&mut self, now: Instant) -> bool {
        let before = self.active.len();
        let mut at = 0;
        while at < self.active.len() {
            match self.calls.take(self.active[at].ticket) {
                None => at += 1,
                Some(result) => {
                    let Active { kind, began, .. } = self.active.swap_remove(at);
                    self.ended(kind, began, result, now);
                }
            }
        }
        self.active.len() != before
    }

    fn ended(&mut self, kind: CallKind, began: Instant, result: Result<IoBuf>, now: Instant) {
        match kind {
            CallKind::Fetch(parts) => self.fetched(parts, result, now),
            CallKind::Write(copies, sum) => match result {
                Ok(_) => self.written(copies, sum, began, now),
                Err(error) => self.write_failed(copies, &error.report()),
            },
            CallKind::Index { tier, page } => {
                self.dirty[tier].writing.remove(&page);
                if let Err(error) = result {
                    self.shared.switch_off(tier as u8, &error.report());
                }
            }
            CallKind::Check { tier, kept } => self.checked(tier, kept, result, now),
            CallKind::Sum(copies, number) => self.summed(copies, number, result, now),
        }
    }

    /// Handles the end of a fetch of `parts`, which lie one after the other in its buffer.
    fn fetched(&mut self, parts: Vec<(u32, PageSet)>, result: Result<IoBuf>, now: Instant) {
        for (unit, pages) in &parts {
            if let Some(filling) = self.filling.get_mut(unit) {
                filling.fetching = filling.fetching.without(*pages);
                filling.touched = now;
            }
        }
        match result {
            Ok(mut rest) => {
                self.shared.queued_bytes.fetch_add(rest.len(), Ordering::AcqRel);
                for (unit, pages) in parts {
                    let behind = rest.split_off(bytes_of(pages));
                    self.add(unit, pages, rest, now);
                    rest = behind;
                }
            }
            Err(error) => {
                for (unit, pages) in parts {
                    self.shared.copies.release(unit, pages);
                    self.fetch_failed(unit, &error);
                }
            }
        }
    }

    /// Counts a failed fetch of a unit. After [`MAX_FAILURES`] of them, or at once if the origin's data are stale,
    /// leaves the unit to its readers.
    fn fetch_failed(&mut self, unit: u32, error: &Error) {
        tracing::debug!(unit, error = %error.report(), "not copied");
        let Some(filling) = self.filling.get_mut(&unit) else { return };
        filling.failures += 1;
        filling.is_ahead = false; // the next attempt waits
        if error.kind() == ErrorKind::Stale || filling.failures >= MAX_FAILURES {
            // Readers see the same error themselves; the next read of the unit may try again.
            self.end_filling(unit);
            if self.shared.copies.there(unit).is_empty() && !self.is_moving(unit) {
                self.drop_copies(unit);
            }
        }
    }

    /// Adds pages to a unit's entry in the index. Returns `false` if the entry lists some of them
    /// already: the entry's checksum is then unknown.
    fn list(&mut self, unit: u32, location: CopyLocation, pages: PageSet, sum: u32) -> bool {
        let Some(index) = &self.shared.media[usize::from(location.tier)].index else { return true };
        let listed = index.lock().get(unit).filter(|kept| kept.location(location.tier) == location);
        let CopyLocation { first, page, .. } = location;
        let empty = Kept { unit, first, page, pages: PageSet::NONE, sum: 0 };
        let listed = listed.unwrap_or(empty);
        if !listed.pages.and(pages).is_empty() {
            return false;
        }
        let kept = Kept { pages: listed.pages.with(pages), sum: listed.sum ^ sum, ..listed };
        self.set_entry(location.tier, unit, Some(kept));
        true
    }

    /// Sets or removes a unit's entry in the index, and marks its page as changed.
    fn set_entry(&mut self, tier: u8, unit: u32, kept: Option<Kept>) {
        let tier = usize::from(tier);
        if let Some(index) = &self.shared.media[tier].index {
            self.dirty[tier].pages.insert(index.lock().set(unit, kept));
        }
    }

    /// Recomputes the unit's entry in the index from its copies, since some of them have changed.
    fn sum_again(&mut self, unit: u32, now: Instant) {
        let copies = self.shared.copies.copies(unit);
        let Some(location) = self.shared.copies.location(unit) else { return };
        if self.shared.media[usize::from(location.tier)].index.is_none() {
            return;
        }
        self.set_entry(location.tier, unit, None);
        self.summing.remove(&unit);
        let Some((location, pages)) = copies else { return };
        self.last_sum += 1;
        self.summing.insert(unit, self.last_sum);
        let begun = self.begin_read_copies(location, pages);
        self.start(begun, CallKind::Sum(Copies { unit, pages, location }, self.last_sum), now);
    }

    /// Lists copies under their recomputed checksum.
    fn summed(&mut self, copies: Copies, number: u64, result: Result<IoBuf>, now: Instant) {
        let Copies { unit, pages, location } = copies;
        if self.summing.get(&unit) != Some(&number) {
            return; // the copies have changed since this attempt began
        }
        self.summing.remove(&unit);
        let Ok(bytes) = result else { return }; // the copies stay unlisted: a restart fetches them again
        let sum = sum_of_pages(pages, pages.0.trailing_zeros(), &bytes);
        if !self.list(unit, location, pages, sum) {
            self.sum_again(unit, now);
        }
    }

    /// Starts to read the copies from the first to the last page of `pages`.
    fn begin_read_copies(&mut self, location: CopyLocation, pages: PageSet) -> Result<Ticket> {
        let first = pages.0.trailing_zeros();
        let end = 64 - pages.0.leading_zeros();
        let media = &self.shared.media[usize::from(location.tier)];
        let page = location.page + u64::from(first.saturating_sub(location.first.into()));
        let offset = media.data_offset + page * PAGE_BYTES;
        let buf = IoBuf::zeroed((u64::from(end - first) * PAGE_BYTES) as usize);
        self.calls.begin_read(self.first_tier + usize::from(location.tier), offset, buf)
    }

    /// Starts the fetches that are due: of units that must be completed, then ahead of the readers.
    fn start_fetches(&mut self, now: Instant) {
        for _ in 0..self.incomplete.len().min(MAX_CHECKED) {
            let Some(unit) = self.incomplete.pop_front() else { break };
            if !self.filling.contains_key(&unit) {
                continue;
            }
            if self.is_filled(unit) {
                self.end_filling(unit);
                continue;
            }
            self.incomplete.push_back(unit);
            if self.may_fetch(now) && self.has_thread(unit) && self.is_due(unit, now) {
                self.fetch(unit, now);
            }
        }
        while self.may_fetch(now) && self.may_fetch_ahead() {
            let next = self.planned.front().copied();
            let Some(unit) = next.filter(|&unit| self.has_thread(unit)) else { return };
            self.planned.pop_front();
            self.fetch_planned(unit, now);
        }
    }

    /// Returns whether another fetch into the unit's tier may begin.
    fn has_thread(&self, unit: u32) -> bool {
        let shared = &*self.shared;
        let tier_of = |unit| shared.copies.location(unit).map(|location| location.tier);
        let planned = || shared.ledger.lock().planned(shared.units.together_with(unit).start);
        let Some(tier) = tier_of(unit).or_else(planned) else { return true };
        let Some(limit) = shared.sources.limit(tier) else { return true };
        let is_into = |active: &&Active| match &active.kind {
            CallKind::Fetch(parts) => {
                parts.first().is_some_and(|(unit, _)| tier_of(*unit) == Some(tier))
            }
            _ => false,
        };
        self.active.iter().filter(is_into).count() < limit.threads
    }

    /// Returns whether no page of the unit is left to fetch, or its tier is not used.
    fn is_filled(&self, unit: u32) -> bool {
        let copies = &self.shared.copies;
        let missing = copies.reserved(unit).without(copies.there(unit));
        missing.is_empty() || self.shared.is_avoided(unit)
    }

    /// Returns whether the copier may fetch the unit now: none of its own fetches of the unit is outstanding,
    /// no page of the unit has arrived for [`GRACE`] (unless it is fetched ahead), and no reader of this process waits
    /// for the origin (unless [`LOW_PRIORITY`] has passed since the unit was requested). Releases claimed pages that
    /// have not arrived in time: see [`CLAIMANT_DEAD`].
    fn is_due(&mut self, unit: u32, now: Instant) -> bool {
        let Some(filling) = self.filling.get_mut(&unit) else { return false };
        let is_demanded = self.shared.demand().load(Ordering::Acquire) > 0;
        if !filling.fetching.is_empty()
            || now < filling.touched + GRACE && !filling.is_ahead
            || is_demanded && now < filling.begun + LOW_PRIORITY
        {
            return false;
        }
        if now > filling.touched + CLAIMANT_DEAD && !self.writing.contains_key(&unit) {
            filling.touched = now;
            self.shared.copies.release(unit, self.shared.copies.under_way(unit));
        }
        true
    }

    /// Fetches a unit ahead of its readers.
    fn fetch_planned(&mut self, unit: u32, now: Instant) {
        let shared = Arc::clone(&self.shared);
        if shared.copies.location(unit).is_some_and(|location| location.first > 0) {
            self.evict(unit); // its place is too small
        }
        let kept = shared.kept(&shared.ledger.lock(), unit);
        if !kept.without(shared.copies.reserved(unit)).is_empty() {
            shared.reserve(unit, kept);
        }
        let together = shared.units.together_with(unit);
        for unit in shared.units.border_of(unit).into_iter().chain(together) {
            self.fill(unit, now);
            if let Some(filling) = self.filling.get_mut(&unit) {
                filling.is_ahead = true;
            }
            self.fetch(unit, now);
        }
    }

    /// Number of outstanding calls that are not writes of copies.
    fn num_reads(&self) -> usize {
        self.active.len() - self.writes().count()
    }

    /// Returns whether another fetch is within the limits of outstanding reads and of bandwidth.
    fn may_fetch(&self, now: Instant) -> bool {
        self.num_reads() < MAX_READS && now >= self.next_fetch
    }

    /// Returns whether the copier may fetch ahead of the readers now.
    fn may_fetch_ahead(&self) -> bool {
        self.lent.room.is_empty()
            && self.leaving.is_empty()
            && self.shared.queued_bytes.load(Ordering::Acquire) < MAX_QUEUED_FOR_AHEAD
            && self.shared.demand().load(Ordering::Acquire) == 0
    }

    /// The reserved pages of a unit that are to be fetched: without a copy, not under way, and not lent. None unless
    /// the unit is being filled.
    fn missing(&self, unit: u32) -> PageSet {
        if !self.filling.contains_key(&unit) {
            return PageSet::NONE;
        }
        let copies = &self.shared.copies;
        let is_under_way = copies.under_way(unit);
        let absent = copies.reserved(unit).without(is_under_way).without(copies.there(unit));
        absent.without(self.lent.pages.get(&unit).copied().unwrap_or_default())
    }

    /// Reads missing pages of a unit from the origin. If they reach the unit's end, also reads the
    /// following pages of the same sample.
    fn fetch(&mut self, unit: u32, now: Instant) {
        for run in self.missing(unit).runs() {
            if !self.has_thread(unit) {
                return; // the unit stays incomplete
            }
            let parts = self.claim_from(unit, run);
            if !parts.is_empty() {
                self.begin_fetch(parts, now);
            }
        }
    }

    /// Claims the pages of `run`, and of the following units of the same sample while their missing pages continue it.
    /// Returns the claimed pages; none if a reader has claimed any page of `run`.
    fn claim_from(&self, unit: u32, run: Range<u32>) -> Vec<(u32, PageSet)> {
        let shared = &*self.shared;
        let together = shared.units.together_with(unit);
        let mut parts = Vec::new();
        let mut bytes = 0;
        let mut next = Some((unit, run));
        while let Some((unit, run)) = next.take() {
            let pages = PageSet::range(run.clone());
            bytes += bytes_of(pages);
            let claimed = shared.copies.claim(unit, pages);
            if claimed != pages {
                shared.copies.release(unit, claimed); // a reader has claimed some of them
                break;
            }
            parts.push((unit, pages));
            let is_end = run.end == shared.units.get(unit).pages();
            if is_end && together.contains(&(unit + 1)) && bytes < MAX_FETCH_BYTES {
                let first = self.missing(unit + 1).runs().next();
                next = first.filter(|run| run.start == 0).map(|run| (unit + 1, run));
            }
        }
        parts
    }

    /// Starts to read `parts`, which are contiguous, from the origin.
    fn begin_fetch(&mut self, parts: Vec<(u32, PageSet)>, now: Instant) {
        let (unit, pages) = parts[0];
        let namespace = usize::from(self.shared.units.namespace_of(unit));
        let skip = u64::from(pages.0.trailing_zeros()) * PAGE_BYTES;
        let offset = self.shared.units.get(unit).start_bytes() + skip;
        let len: usize = parts.iter().map(|(_, pages)| bytes_of(*pages)).sum();
        for (unit, pages) in &parts {
            if let Some(filling) = self.filling.get_mut(unit) {
                filling.fetching = filling.fetching.with(*pages);
            }
        }
        let begun = self.calls.begin_read(namespace, offset, IoBuf::zeroed(len));
        if begun.is_ok() {
            let most = self.calls.namespace(namespace).max_transfer_bytes as usize;
            self.shared.counters.copier_read(len.div_ceil(most) as u64, len);
        }
        self.start(begun, CallKind::Fetch(parts), now);
        if let Some(rate) = self.shared.options.bandwidth_bytes_per_s {
            let pause = Duration::from_secs_f64(len as f64 / rate as f64);
            self.next_fetch = self.next_fetch.max(now) + pause;
        }
    }

    fn start_index_writes(&mut self, now: Instant) {
        for tier in 0..self.dirty.len() {
            let shared = Arc::clone(&self.shared);
            let Some(index) = &shared.media[tier].index else { continue };
            while let Some(page) = self.dirty[tier].take_next() {
                let mut buf = IoBuf::zeroed(PAGE_BYTES as usize);
                buf.copy_from_slice(&index.lock().bytes()[page..page + PAGE_BYTES as usize]);
                let begun = self.calls.begin_write(self.first_tier + tier, page as u64, buf);
                self.start(begun, CallKind::Index { tier, page }, now);
            }
        }
    }

    /// Writes all pages that have arrived so far, and the indices: pages that no index lists would be
    /// copied again.
    fn write_last(&mut self, until: Instant) {
        for _ in 0..self.jobs.len() {
            if let Ok(job @ (CopyJob::Piece { .. } | CopyJob::Corrupt(..))) = self.jobs.try_recv() {
                self.handle(job, Instant::now());
            }
            self.shared.counters.unsettle(-1);
        }
        while !self.is_all_written() && Instant::now() < until {
            if !self.turn(Instant::now(), true) {
                self.calls.wait_until(until.min(Instant::now() + BUSY_WAIT));
            }
        }
    }

    fn is_all_written(&self) -> bool {
        let is_clean = |dirty: &Dirty| dirty.pages.is_empty() && dirty.writing.is_empty();
        self.writes().next().is_none()
            && self.to_write.iter().all(VecDeque::is_empty)
            && self.summing.is_empty()
            && self.dirty.iter().all(is_clean)
    }
}

/// The length of `pages` in bytes.
fn bytes_of(pages: PageSet) -> usize {
    (u64::from(pages.len()) * PAGE_BYTES) as usize
}

/// Time that a unit waits for pages that readers may still request, before the copier fetches it.
const GRACE: Duration = Duration::from_millis(50);

/// Maximum time by which the fetch of a unit to be filled is deferred while readers wait for the origin.
const LOW_PRIORITY: Duration = Duration::from_millis(500);

/// Time without an arrival in a unit after which the processes that have claimed its pages count as dead.
const CLAIMANT_DEAD: Duration = Duration::from_secs(3);

/// Number of outstanding calls other than writes of copies from which on no fetch and no check begins.
const MAX_READS: usize = 16;

/// Limit of outstanding writes of copies to one tier.
const MAX_WRITES: usize = 32;

/// Limit of outstanding writes of one index.
const MAX_INDEX_WRITES: usize = 4;

/// Limit of units checked in one iteration.
const MAX_CHECKED: usize = 64;

/// A fetch of at least this length takes no further unit.
const MAX_FETCH_BYTES: usize = 1 << 20;

/// Bytes of data waiting to be written from which on nothing is fetched ahead.
const MAX_QUEUED_FOR_AHEAD: usize = 32 << 20;

/// Number of failed fetches of a unit after which the copier leaves it to readers.
const MAX_FAILURES: u32 = 3;

/// Deadline of one call.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// Longest wait of an iteration without work.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// Longest wait of an iteration while units are to be fetched or lent buffers are awaited.
const BUSY_WAIT: Duration = Duration::from_millis(5);

/// Timeout of the last writes at the end: up to [`MAX_QUEUED_BYTES`] of data, and the indices.
pub(super) const LAST_WRITES: Duration = Duration::from_secs(15);

/// Limit of data queued for the copier; data beyond it are not copied now, but when they are read
/// again.
pub(super) const MAX_QUEUED_BYTES: usize = 64 << 20;
