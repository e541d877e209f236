//! Tiers at work: devices in front of an origin that serve what is copied and copy what is worth it.
//!
//! [`Cache::new`] opens the tiers and wraps each namespace of a data set in a device of its own. A read
//! through such a device is served from where its bytes are now: from the copy in a tier, from the
//! origin, or piece by piece from both. What came from the origin and is to be kept goes on to the
//! *copier*, a thread of its own, which gathers whole units, fetches what is missing of them, writes
//! them to their tier and only then says that they are there. So a reader never waits for a copy, and
//! everything above a queue pair (readers, loaders, targets, every language) has tiers for free.
//!
//! What is read from the origin piece by piece comes in few large reads (`ahead.rs`): a parallel file
//! system is asked once where the reader asks four times.
//!
//! Nothing here is believed: the reader compares every sample with the directory's checksum, and a
//! copy that does not agree is reported through [`QueuePair::distrust`](crate::qpair::QueuePair),
//! counted, and read from the origin and written anew. A tier that fails is a miss; one that cannot
//! be written is switched off with one warning.
//!
//! What is decided, and what is only moved: quota, admission and places are `tier`'s. A child of a fork
//! reads the copies that there were, and copies nothing.
//!
//! Read `pair.rs` first, then `copier.rs`, then `media.rs`; `takeover.rs` says what a tier may overwrite.

mod ahead;
mod assembly;
mod config;
mod copier;
mod media;
mod options;
mod pair;
mod plan;
mod probe;
mod stats;
mod takeover;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam::channel::Sender;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::format::Uuid;
use crate::process::Forked;
use crate::qpair::Device;
use crate::qpair::group::Waker;
use crate::threads::{self, Fate, Thread, caught};
use crate::tier::{Candidate, Ledger, Place, Places, Policy, State, Units, give_way};
use crate::units::Generation;

pub use config::{Environment, Point, TierTable};
pub use options::{TierKind, TierOptions, TierSpec};
pub use plan::TierPlan;
pub use probe::{Probe, probe};
pub use stats::{CacheStats, OriginStats, TierStats};

use copier::{Copier, Job};
use media::Media;
use stats::Counters;

/// The tiers of one data set in one process. When it is dropped its devices read on, and nothing more
/// is copied.
pub struct Cache {
    shared: Arc<Shared>,
    devices: Vec<Arc<dyn Device>>,
    thread: Option<Thread>,
    policy: Policy,
}

/// What all queue pairs and the copier look at.
struct Shared {
    /// Only the process that made it has what runs behind it.
    home: Forked<()>,
    units: Units,
    places: Places,
    ledger: Mutex<Ledger>,
    media: Vec<Media>,
    origins: Vec<Arc<dyn Device>>,
    counters: Counters,
    jobs: Sender<Job>,
    waker: Waker,
    /// Bytes on their way to the copier.
    queued_bytes: AtomicUsize,
    /// Reads of the origin that somebody waits for.
    demand: AtomicUsize,
    /// How often copies have given way: a read that began before may have met the bytes of others.
    evictions: AtomicUsize,
    /// The copier is to end, or has died.
    stop: AtomicBool,
    /// What the copier died of.
    fate: Fate,
}

/// What the copies are of.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The image.
    pub uuid: Uuid,
    /// Its generation.
    pub generation: Generation,
}

impl Cache {
    /// Opens the tiers of `options` in front of `origins`, the namespaces that `units` were cut from.
    ///
    /// Copies that an earlier run left in a local tier are used again once their checksums have been
    /// compared, in the background.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: a tier's path is missing, cannot be written, or holds something that is no
    /// tier. `Busy`: another process or a file system uses it. `InvalidArgument`: more tiers than there
    /// may be, one too small for its own index, or one that is the data set itself.
    /// `OutOfMemory`: for a tier in memory.
    pub fn new(
        origins: &[Arc<dyn Device>],
        units: Units,
        identity: Identity,
        options: &TierOptions,
    ) -> Result<Cache> {
        options.check()?;
        let mut media = Vec::new();
        let mut to_check = Vec::new();
        for (number, spec) in (0..).zip(&options.tiers) {
            let (opened, kept) = Media::open(number, spec, identity, &units, origins)?;
            media.push(opened);
            to_check.extend(kept.into_iter().map(|kept| (number, kept)));
        }
        let capacities: Vec<u64> = media.iter().map(|media| media.capacity_pages).collect();
        let mut ledger = Ledger::new(options.policy, options.stop, &capacities);
        let places = Places::new(units.len());
        to_check.retain(|(tier, kept)| {
            let place = Place { tier: *tier, page: kept.page };
            let end = kept.page.saturating_add(units.get(kept.unit).pages.into());
            places.state(kept.unit) == State::Absent
                && ledger.restore(*tier, kept.page..end)
                && places.reserve(kept.unit, place)
        });
        let counters = Counters::new(media.len());
        let (jobs, received) = crossbeam::channel::unbounded();
        let calls = Copier::calls()?;
        let shared = Arc::new(Shared {
            home: Forked::new(()),
            units,
            places,
            ledger: Mutex::new(ledger),
            media,
            origins: origins.to_vec(),
            counters,
            jobs,
            waker: calls.waker(),
            queued_bytes: AtomicUsize::new(0),
            demand: AtomicUsize::new(0),
            evictions: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            fate: Fate::default(),
        });
        let bandwidth = options.bandwidth_bytes_per_s;
        let copier = Copier::new(Arc::clone(&shared), calls, received, to_check, bandwidth)?;
        let thread = threads::start(COPIER, &shared.fate, copier, |copier| {
            let who = format!("the thread {COPIER}");
            if let Err(error) = caught(&who, || copier.run()) {
                copier.shared().copier_died(&error);
            }
        })?;
        let devices = pair::devices(&shared);
        Ok(Cache { shared, devices, thread: Some(thread), policy: options.policy })
    }

    /// The namespaces of the data set, with the tiers in front of them.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// What decides which units are kept.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The units that are kept or not.
    pub fn units(&self) -> &Units {
        &self.shared.units
    }

    /// Pages that each tier may keep, fastest first.
    pub fn capacities(&self) -> Vec<u64> {
        self.shared.media.iter().map(|media| media.capacity_pages).collect()
    }

    /// Keeps what a plan says from now on. Copies that are there stay, but for those that have to give
    /// way to others that the plan reads more often.
    ///
    /// # Errors
    /// `InvalidArgument`: the plan is of another data set, or of other tiers; nothing has changed.
    pub fn set_plan(&self, plan: &TierPlan) -> Result<()> {
        let shared = &*self.shared;
        plan.check(&shared.units, shared.media.len())?;
        let mut by_unit = vec![Ledger::NOT_PLANNED; shared.units.len() as usize];
        plan.copies.iter().for_each(|&(unit, tier)| by_unit[unit as usize] = tier);
        let mut ledger = shared.ledger.lock();
        let leaving = shared.leaving(plan, &by_unit, &ledger);
        ledger.set_plan(by_unit);
        drop(ledger);
        let wanted = plan.copies.iter().map(|&(unit, _)| unit).collect();
        shared.tell(Job::Plan { wanted, leaving });
        Ok(())
    }

    /// What was served from where and what was copied, so far.
    pub fn stats(&self) -> CacheStats {
        let mut stats = self.shared.counters.read(&self.shared.media, &self.shared.ledger.lock());
        stats.died = self.shared.fate.died().map(|error| error.to_string());
        stats
    }

    /// Whether nothing is being copied or checked, nor waits for it. For tests and benches.
    pub fn is_settled(&self) -> bool {
        self.shared.counters.is_settled() || self.shared.fate.died().is_some()
    }
}

impl Shared {
    /// The copies that give way to those of a plan.
    fn leaving(&self, plan: &TierPlan, by_unit: &[u8], ledger: &Ledger) -> Vec<u32> {
        let candidate = |unit: u32| {
            let together = self.units.together_with(unit);
            let pages = together.map(|unit| u64::from(self.units.get(unit).pages)).sum();
            Candidate { unit, pages, reads: plan.reads[unit as usize] }
        };
        let mut there = vec![Vec::new(); self.media.len()];
        for unit in 0..self.units.len() {
            let is_first = unit == 0 || !self.units.get(unit - 1).continues;
            let (State::Reserved(place) | State::Copied(place)) = self.places.state(unit) else {
                continue;
            };
            if is_first && by_unit[unit as usize] == Ledger::NOT_PLANNED {
                there[usize::from(place.tier)].push(candidate(unit));
            }
        }
        let mut wanted = vec![Vec::new(); self.media.len()];
        for &(unit, tier) in &plan.copies {
            if self.places.state(unit) == State::Absent {
                wanted[usize::from(tier)].push(candidate(unit));
            }
        }
        let tiers = (0..).zip(there.into_iter().zip(wanted));
        let free = |tier| ledger.capacity(tier) - ledger.used(tier);
        tiers.flat_map(|(tier, (there, wanted))| give_way(there, wanted, free(tier))).collect()
    }

    /// Only the process that opened the tiers has a copier: a child of a fork has none.
    fn is_at_home(&self) -> bool {
        self.home.is_ours()
    }

    /// Whether there is a copier that takes what is read.
    fn copies(&self) -> bool {
        self.is_at_home() && !self.stop.load(Ordering::Relaxed)
    }

    /// Without a copier the tiers serve what they have and take nothing more; readers go on.
    fn copier_died(&self, error: &Error) {
        self.fate.tell(error);
        self.stop.store(true, Ordering::Release);
        for tier in 0..self.media.len() {
            self.switch_off(tier as u8, error);
        }
    }

    fn tell(&self, job: Job) {
        self.counters.unsettle(1);
        // Nobody listens any more only when everything ends, or when the copier has died.
        let _ = self.jobs.send(job);
        self.waker.wake();
    }

    /// Reserves room for a unit that was read, if it is to be kept; whether its bytes are wanted now.
    fn wants(&self, unit: u32) -> bool {
        match self.places.state(unit) {
            State::Copied(_) => false,
            State::Reserved(_) => true,
            State::Absent => self.reserve(unit),
        }
    }

    fn reserve(&self, unit: u32) -> bool {
        let mut ledger = self.ledger.lock();
        if self.places.state(unit) != State::Absent {
            return true;
        }
        let together = self.units.together_with(unit);
        // One of them may have been given up, and the others be there.
        let absent = |unit: &u32| self.places.state(*unit) == State::Absent;
        let missing: Vec<u32> = together.clone().filter(absent).collect();
        let pages = missing.iter().map(|&unit| u64::from(self.units.get(unit).pages)).sum();
        let Some(place) = ledger.reserve(together.start, pages) else { return false };
        let mut page = place.page;
        for unit in missing {
            self.places.reserve(unit, Place { tier: place.tier, page });
            page += u64::from(self.units.get(unit).pages);
        }
        drop(ledger);
        self.tell(Job::Begin(together));
        true
    }

    /// No more copies in `tier`; says so once.
    fn switch_off(&self, tier: u8, why: &dyn std::fmt::Display) {
        if self.ledger.lock().switch_off(tier) {
            let tier = &self.media[usize::from(tier)].name;
            tracing::warn!(%tier, "the tier takes no more copies: {why}");
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.shared.is_at_home() {
            std::mem::forget(thread); // it does not run in this process
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(thread) = thread {
            thread.join_within(copier::LAST_WRITES + LAST_TURN);
        }
    }
}

/// The copier's thread.
const COPIER: &str = "dlfs-tiers";

/// How long the copier is waited for beyond the last entries of its indices: a turn, unless a device hangs.
const LAST_TURN: Duration = Duration::from_secs(5);

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("policy", &self.policy).finish_non_exhaustive()
    }
}
