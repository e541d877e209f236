//! The copier: a thread that assembles units, fetches missing parts, writes them to tiers, and
//! publishes the copies.
//!
//! Data that readers fetch are not read again: a unit waits briefly for outstanding reads, and only
//! parts that no reader requests are fetched, in large reads and within the bandwidth limit.
//! Planned units ahead of the readers are fetched only while no reader waits for the origin.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam::channel::Receiver;

use super::Shared;
use super::assembly::Assembly;
use crate::buf::IoBuf;
use crate::checksum::crc32c;
use crate::error::{ErrorKind, Result};
use crate::qpair::calls::{Calls, Ticket};
use crate::qpair::{PairScope, open_pairs};
use crate::tier::{CopyLocation, CopyState, Kept, PAGE_BYTES};

/// A message to the copier.
pub(super) enum Job {
    /// Room is reserved for these units; their copies are missing.
    Begin(Range<u32>),
    /// A read of the origin will bring part of the unit.
    Expect(u32),
    /// Expected data of a unit: whole pages from `offset` on.
    Piece { unit: u32, offset: usize, bytes: Vec<u8> },
    /// Expected data will not arrive.
    Gone(u32),
    /// Planned units in the order of their first read, and units whose copies to evict.
    Plan { wanted: Vec<u32>, evicted: Vec<u32> },
    /// Nothing follows. Only for a [`Link`](super::share::Link).
    Stop,
}

pub(super) struct Copier {
    shared: Arc<Shared>,
    calls: Calls,
    /// Index of the first tier's pair in `calls`; the origins come before it.
    first_tier: usize,
    jobs: Receiver<Job>,
    gathering: HashMap<u32, Assembly>,
    /// Memory of all assemblies.
    held_bytes: usize,
    /// Incomplete units, to be checked in turn.
    incomplete: VecDeque<u32>,
    /// Copies of an earlier run to verify, with their tiers.
    to_check: VecDeque<(u8, Kept)>,
    unchecked: HashSet<u32>,
    planned: VecDeque<u32>,
    active: Vec<Active>,
    /// For each tier: unwritten pages of its index, and whether one is being written.
    dirty: Vec<(BTreeSet<usize>, bool)>,
    bandwidth: Option<u64>,
    /// When the bandwidth limit allows the next fetch.
    next_fetch: Instant,
}

/// An outstanding call.
struct Active {
    ticket: Ticket,
    began: Instant,
    what: What,
}

enum What {
    Fetch { unit: u32, offset: usize },
    Write { unit: u32, location: CopyLocation, crc32c: u32, len: usize },
    Index { tier: usize },
    Check { tier: u8, kept: Kept },
}

impl Copier {
    pub(super) fn calls() -> Result<Calls> {
        Calls::new(DEADLINE)
    }

    pub(super) fn new(
        shared: Arc<Shared>,
        mut calls: Calls,
        jobs: Receiver<Job>,
        mut to_check: Vec<(u8, Kept)>,
        bandwidth: Option<u64>,
    ) -> Result<Copier> {
        let scope = PairScope::new();
        for pairs in open_pairs(&shared.origins, std::slice::from_ref(&scope))? {
            pairs.into_iter().for_each(|pair| _ = calls.add(pair)); // one call each
        }
        for media in &shared.media {
            calls.add(media.device.queue_pair_in(&scope)?);
        }
        to_check.sort_unstable_by_key(|(tier, kept)| (*tier, kept.page));
        shared.counters.unsettle(to_check.len() as i64);
        Ok(Copier {
            calls,
            first_tier: shared.origins.len(),
            jobs,
            gathering: HashMap::new(),
            held_bytes: 0,
            incomplete: VecDeque::new(),
            unchecked: to_check.iter().map(|(_, kept)| kept.unit).collect(),
            to_check: to_check.into(),
            planned: VecDeque::new(),
            active: Vec::new(),
            dirty: shared.media.iter().map(|_| (BTreeSet::new(), false)).collect(),
            bandwidth,
            next_fetch: Instant::now(),
            shared,
        })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            if !self.poll_once(Instant::now()) {
                let idle = self.incomplete.is_empty() && self.planned.is_empty();
                let limit = if idle { IDLE_WAIT } else { BUSY_WAIT };
                self.calls.wait_until(Instant::now() + limit);
            }
        }
        self.write_indices();
    }

    fn poll_once(&mut self, now: Instant) -> bool {
        let mut moved = self.calls.turn();
        while let Ok(job) = self.jobs.try_recv() {
            self.handle(job, now);
            self.shared.counters.unsettle(-1);
            moved = true;
        }
        moved |= self.take_ended(now);
        self.start_checks(now);
        self.start_fetches(now);
        self.start_index_writes(now);
        moved
    }

    fn handle(&mut self, job: Job, now: Instant) {
        match job {
            Job::Begin(units) => units.for_each(|unit| self.expect(unit, 0, now)),
            Job::Expect(unit) => self.expect(unit, 1, now),
            Job::Piece { unit, offset, bytes } => {
                self.shared.queued_bytes.fetch_sub(bytes.len(), Ordering::AcqRel);
                self.arrived(unit, now);
                self.add(unit, offset, &bytes, now);
            }
            Job::Gone(unit) => self.arrived(unit, now),
            Job::Plan { wanted, evicted } => {
                evicted.into_iter().for_each(|unit| self.evict(unit));
                self.planned = wanted.into();
            }
            Job::Stop => {}
        }
    }

    /// Evicts the copies of a unit and of units kept together with it. A copy that is being
    /// assembled or verified stays for now.
    fn evict(&mut self, unit: u32) {
        let together = self.shared.units.together_with(unit);
        let is_moving = |unit| {
            let checks = |active: &Active| match active.what {
                What::Check { kept, .. } => kept.unit == unit,
                _ => false,
            };
            self.gathering.contains_key(&unit) || self.active.iter().any(checks)
        };
        if together.clone().any(is_moving) {
            return;
        }
        for unit in together {
            let (CopyState::Reserved(location) | CopyState::Copied(location)) =
                self.shared.copies.state(unit)
            else {
                continue;
            };
            if self.unchecked.remove(&unit) {
                self.to_check.retain(|(_, kept)| kept.unit != unit);
                self.shared.counters.unsettle(-1);
            }
            self.record(location.tier, unit, None);
            self.drop_copy(unit);
            self.shared.counters.left(location.tier);
        }
    }

    /// Removes the copy of the unit and frees its room.
    fn drop_copy(&self, unit: u32) {
        let shared = &*self.shared;
        if let CopyState::Reserved(location) | CopyState::Copied(location) =
            shared.copies.state(unit)
        {
            shared.copies.clear(unit);
            // Readers of the copy see the new number, or had its data before the room was reused.
            shared.copies.count_eviction();
            let mut ledger = shared.ledger.lock();
            ledger.give_back(location, shared.units.get(unit).pages.into());
            shared.copies.set_room(ledger.room());
        }
    }

    fn expect(&mut self, unit: u32, more: u32, now: Instant) {
        let is_reserved = matches!(self.shared.copies.state(unit), CopyState::Reserved(_));
        if !is_reserved || self.unchecked.contains(&unit) {
            return;
        }
        let pages = self.shared.units.get(unit).pages;
        let assembly = self.gathering.entry(unit).or_insert_with(|| {
            self.shared.counters.unsettle(1);
            self.incomplete.push_back(unit);
            Assembly::new(pages, now)
        });
        assembly.expected += more;
        assembly.touched = now;
    }

    fn arrived(&mut self, unit: u32, now: Instant) {
        if let Some(assembly) = self.gathering.get_mut(&unit) {
            assembly.expected = assembly.expected.saturating_sub(1);
            assembly.touched = now;
        }
    }

    fn add(&mut self, unit: u32, offset: usize, bytes: &[u8], now: Instant) {
        let Some(assembly) = self.gathering.get_mut(&unit) else { return };
        if assembly.is_writing {
            return;
        }
        let before = assembly.held_bytes();
        if before == 0 && self.held_bytes + assembly.len_bytes() > MAX_HELD_BYTES {
            return; // the data are fetched later, when there is memory
        }
        assembly.add(offset, bytes);
        self.held_bytes += assembly.held_bytes() - before;
        if assembly.is_whole() && assembly.fetching == 0 {
            self.write(unit, now);
        }
    }

    fn write(&mut self, unit: u32, now: Instant) {
        let assembly = self.gathering.get_mut(&unit).expect("the caller has just had it");
        let buf = assembly.take();
        assembly.is_writing = true;
        self.held_bytes -= buf.len();
        let CopyState::Reserved(location) = self.shared.copies.state(unit) else {
            return self.end(unit);
        };
        let (crc32c, len) = (crc32c(&buf), buf.len());
        let media = &self.shared.media[usize::from(location.tier)];
        let offset = media.data_offset + location.page * PAGE_BYTES;
        let pair = self.first_tier + usize::from(location.tier);
        match self.calls.begin_write(pair, offset, buf) {
            Ok(ticket) => {
                let what = What::Write { unit, location, crc32c, len };
                self.active.push(Active { ticket, began: now, what });
            }
            Err(error) => self.tier_failed(unit, location, &error.report()),
        }
    }

    /// The unit needs no more work.
    fn end(&mut self, unit: u32) {
        if let Some(assembly) = self.gathering.remove(&unit) {
            self.held_bytes -= assembly.held_bytes();
            self.shared.counters.unsettle(-1);
        }
    }

    /// A write to the tier failed: stops copying to it.
    fn tier_failed(&mut self, unit: u32, location: CopyLocation, why: &str) {
        self.shared.switch_off(location.tier, &why);
        self.shared.copies.clear(unit);
        self.end(unit);
    }

    fn take_ended(&mut self, now: Instant) -> bool {
        let before = self.active.len();
        let mut at = 0;
        while at < self.active.len() {
            match self.calls.take(self.active[at].ticket) {
                None => at += 1,
                Some(result) => {
                    let active = self.active.swap_remove(at);
                    self.ended(active, result, now);
                }
            }
        }
        self.active.len() != before
    }

    fn ended(&mut self, active: Active, result: Result<IoBuf>, now: Instant) {
        match active.what {
            What::Fetch { unit, offset } => self.fetched(unit, offset, result, now),
            What::Write { unit, location, crc32c, len } => match result {
                Ok(_) => {
                    self.record(
                        location.tier,
                        unit,
                        Some(Kept { unit, page: location.page, crc32c }),
                    );
                    self.shared.counters.filled(location.tier, len, now - active.began);
                    self.shared.copies.publish(unit);
                    self.end(unit);
                }
                Err(error) => self.tier_failed(unit, location, &error.report()),
            },
            What::Index { tier } => {
                self.dirty[tier].1 = false;
                if let Err(error) = result {
                    self.shared.switch_off(tier as u8, &error.report());
                }
            }
            What::Check { tier, kept } => self.checked(tier, kept, result, now),
        }
    }

    fn fetched(&mut self, unit: u32, offset: usize, result: Result<IoBuf>, now: Instant) {
        let Some(assembly) = self.gathering.get_mut(&unit) else { return };
        assembly.fetching -= 1;
        assembly.touched = now;
        match result {
            Ok(bytes) => {
                self.add(unit, offset, &bytes, now);
            }
            Err(error) => {
                assembly.failures += 1;
                let gone = error.kind() == ErrorKind::Stale || assembly.failures >= MAX_FAILURES;
                tracing::debug!(unit, error = %error.report(), "not copied");
                if gone {
                    // Readers see the same error themselves; their next read may try again.
                    self.drop_copy(unit);
                    self.end(unit);
                }
            }
        }
    }

    /// Verifies a copy of an earlier run against the checksum in the index.
    fn checked(&mut self, tier: u8, kept: Kept, result: Result<IoBuf>, now: Instant) {
        self.unchecked.remove(&kept.unit);
        if result.is_ok_and(|bytes| crc32c(&bytes) == kept.crc32c) {
            self.shared.counters.restored(tier);
            self.shared.copies.publish(kept.unit);
        } else {
            self.shared.counters.damaged(tier);
            self.record(tier, kept.unit, None);
            self.expect(kept.unit, 0, now);
        }
        self.shared.counters.unsettle(-1); // last: whoever sees everything settled also sees the result
    }

    fn record(&mut self, tier: u8, unit: u32, kept: Option<Kept>) {
        let tier = usize::from(tier);
        if let Some(index) = &self.shared.media[tier].index {
            self.dirty[tier].0.insert(index.lock().set(unit, kept).start);
        }
    }

    fn start_checks(&mut self, now: Instant) {
        while self.active.len() < MAX_ACTIVE {
            let Some((tier, kept)) = self.to_check.pop_front() else { return };
            let unit = self.shared.units.get(kept.unit);
            let media = &self.shared.media[usize::from(tier)];
            let offset = media.data_offset + kept.page * PAGE_BYTES;
            let pair = self.first_tier + usize::from(tier);
            let buf = IoBuf::zeroed(unit.len_bytes() as usize);
            match self.calls.begin_read(pair, offset, buf) {
                Ok(ticket) => {
                    let what = What::Check { tier, kept };
                    self.active.push(Active { ticket, began: now, what });
                }
                Err(error) => self.checked(tier, kept, Err(error), now),
            }
        }
    }

    fn start_fetches(&mut self, now: Instant) {
        for _ in 0..self.incomplete.len().min(MAX_CHECKED) {
            if self.active.len() >= MAX_ACTIVE || now < self.next_fetch {
                return;
            }
            let Some(unit) = self.incomplete.pop_front() else { break };
            let Some(assembly) = self.gathering.get(&unit).filter(|a| !a.is_writing) else {
                continue;
            };
            self.incomplete.push_back(unit);
            let waits = assembly.expected > 0 || assembly.fetching > 0;
            if waits || now < assembly.touched + GRACE || self.fetches_of_sample(unit) {
                continue;
            }
            self.fetch(unit, now);
        }
        while self.may_fetch_ahead() && now >= self.next_fetch {
            let Some(unit) = self.planned.pop_front() else { return };
            if self.shared.copies.state(unit) == CopyState::Absent && self.shared.reserve(unit) {
                for unit in self.shared.units.together_with(unit) {
                    self.expect(unit, 0, now);
                    self.fetch(unit, now);
                }
            }
        }
    }

    /// Whether another unit of the same sample is being fetched. One at a time, since a reader that
    /// reads the sample sequentially would read outstanding units a second time.
    fn fetches_of_sample(&self, unit: u32) -> bool {
        let together = self.shared.units.together_with(unit);
        let of_sample = |active: &Active| match active.what {
            What::Fetch { unit: other, .. } => other != unit && together.contains(&other),
            _ => false,
        };
        together.len() > 1 && self.active.iter().any(of_sample)
    }

    fn may_fetch_ahead(&self) -> bool {
        self.active.len() < MAX_ACTIVE
            && self.held_bytes < MAX_HELD_BYTES / 2
            && self.shared.demand.load(Ordering::Acquire) == 0
    }

    /// Reads a missing part of a unit from the origin.
    fn fetch(&mut self, unit: u32, now: Instant) {
        let Some(assembly) = self.gathering.get_mut(&unit) else { return };
        if assembly.is_whole() {
            return self.write(unit, now);
        }
        let room = self.held_bytes + assembly.len_bytes() <= MAX_HELD_BYTES;
        if assembly.held_bytes() == 0 && !room {
            return;
        }
        let location = self.shared.units.get(unit);
        let namespace = usize::from(self.shared.units.namespace_of(unit));
        let (mut from, mut bytes, mut reads) = (0, 0, 0);
        while let Some(missing) = assembly.next_missing(from) {
            from = missing.end;
            let offset = location.start_bytes() + missing.start as u64;
            let len = missing.end - missing.start;
            match self.calls.begin_read(namespace, offset, IoBuf::zeroed(len)) {
                Ok(ticket) => {
                    let what = What::Fetch { unit, offset: missing.start };
                    self.active.push(Active { ticket, began: now, what });
                    assembly.fetching += 1;
                }
                Err(error) => tracing::debug!(unit, error = %error.report(), "not copied"),
            }
            let most = self.calls.namespace(namespace).max_transfer_bytes as usize;
            reads += len.div_ceil(most) as u64;
            bytes += len;
        }
        self.shared.counters.copier_read(reads, bytes);
        if let Some(rate) = self.bandwidth {
            let pause = Duration::from_secs_f64(bytes as f64 / rate as f64);
            self.next_fetch = self.next_fetch.max(now) + pause;
        }
    }

    fn start_index_writes(&mut self, now: Instant) {
        for tier in 0..self.dirty.len() {
            let (dirty, is_writing) = &mut self.dirty[tier];
            let Some(page) = dirty.first().copied().filter(|_| !*is_writing) else { continue };
            dirty.remove(&page);
            let Some(index) = &self.shared.media[tier].index else { continue };
            let mut buf = IoBuf::zeroed(PAGE_BYTES as usize);
            buf.copy_from_slice(&index.lock().bytes()[page..page + PAGE_BYTES as usize]);
            if let Ok(ticket) = self.calls.begin_write(self.first_tier + tier, page as u64, buf) {
                *is_writing = true;
                self.active.push(Active { ticket, began: now, what: What::Index { tier } });
            }
        }
    }

    /// Writes the indices at the end: copies that no index lists would be copied again.
    fn write_indices(&mut self) {
        let until = Instant::now() + LAST_WRITES;
        while Instant::now() < until {
            let is_clean =
                self.dirty.iter().all(|(dirty, is_writing)| dirty.is_empty() && !is_writing);
            if is_clean {
                return;
            }
            self.calls.turn();
            self.take_ended(Instant::now());
            self.start_index_writes(Instant::now());
        }
    }
}

/// How long a unit waits for data that readers may still request, before it is fetched.
const GRACE: Duration = Duration::from_millis(50);

/// The most outstanding calls; each is for one unit, or a part of one.
const MAX_ACTIVE: usize = 16;

/// Units checked in one iteration.
const MAX_CHECKED: usize = 64;

/// The most memory of incomplete units.
const MAX_HELD_BYTES: usize = 128 << 20;

/// Failed fetches of a unit before the copier leaves it to readers.
const MAX_FAILURES: u32 = 3;

/// The longest duration of one call.
const DEADLINE: Duration = Duration::from_secs(60);

const IDLE_WAIT: Duration = Duration::from_secs(1);
const BUSY_WAIT: Duration = Duration::from_millis(5);

/// How long the last index writes may take at the end.
pub(super) const LAST_WRITES: Duration = Duration::from_secs(5);

/// The most data queued for the copier; more data are read from the origin again later.
pub(super) const MAX_QUEUED_BYTES: usize = 64 << 20;
