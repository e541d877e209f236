//! Tiers at run time: devices in front of an origin that serve existing copies and create new ones.
//!
//! [`Cache::new`] opens the tiers and wraps each namespace of a data set in a device. A read
//! through such a device is served from where its data are: from a copy in a tier, from the origin,
//! or in pieces from both. Data from the origin that are to be kept go to the *copier*, a thread
//! that assembles whole units, fetches their missing parts, writes them to the tier and only then
//! publishes the copy. So a reader never waits for a copy, and everything above a queue pair
//! (readers, loaders, targets, all languages) uses tiers without changes.
//!
//! Small sequential reads of the origin are combined into few large ones (`ahead.rs`): a parallel
//! file system then gets one request where the reader makes four.
//!
//! Copies are not trusted: the reader verifies every sample against the directory's checksum. A
//! copy that differs is reported through [`QueuePair::report_corrupt`](crate::qpair::QueuePair), counted,
//! read from the origin and written anew. A failed read from a tier is a miss; a tier that cannot
//! be written is switched off with one warning.
//!
//! A folder holds the tiers of several data sets (`folder.rs`).
//!
//! `tier` decides quota, admission and locations; this module only moves data. A forked child reads
//! the existing copies and creates none.
//!
//! Read `pair.rs` first, then `copier.rs`, then `media.rs`; `takeover.rs` says what a tier may
//! overwrite.

mod assembly;
mod config;
mod copier;
mod folder;
mod media;
mod options;
mod pair;
mod plan;
mod probe;
mod read_ahead;
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
use crate::tier::{
    Candidate, CopyLocation, CopyState, CopyTable, Ledger, Policy, Units, copies_to_evict,
};
use crate::units::Generation;

pub use config::{Environment, Point, TierTable};
pub use options::{TierKind, TierOptions, TierSpec};
pub use plan::TierPlan;
pub use probe::{Probe, probe};
pub use stats::{CacheStats, OriginStats, TierStats};

use copier::{Copier, Job};
use media::Media;
use stats::Counters;

/// The tiers of one data set in one process. After it is dropped, its devices still serve reads,
/// but nothing more is copied.
pub struct Cache {
    shared: Arc<Shared>,
    devices: Vec<Arc<dyn Device>>,
    thread: Option<Thread>,
    policy: Policy,
}

/// CopyState shared by all queue pairs and the copier.
struct Shared {
    /// The copier exists only in the process that created it.
    home: Forked<()>,
    units: Units,
    copies: CopyTable,
    ledger: Mutex<Ledger>,
    media: Vec<Media>,
    origins: Vec<Arc<dyn Device>>,
    counters: Counters,
    jobs: Sender<Job>,
    waker: Waker,
    /// Bytes queued for the copier.
    queued_bytes: AtomicUsize,
    /// Reads of the origin that somebody waits for.
    demand: AtomicUsize,
    /// Number of evictions so far: a read that began before one may have returned other data.
    evictions: AtomicUsize,
    /// Tells the copier to end, or says that it has died.
    stop: AtomicBool,
    /// Why the copier died, if it did.
    fate: Fate,
}

/// The data set that copies belong to.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The image.
    pub uuid: Uuid,
    /// Its generation.
    pub generation: Generation,
}

impl Cache {
    /// Opens the tiers of `options` in front of `origins`, the namespaces that `units` divide.
    ///
    /// Copies of an earlier run in a local tier are reused after their checksums were verified, in
    /// the background.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: a tier's path is missing, cannot be written, or contains other data.
    /// `Busy`: another process or a file system uses it. `InvalidArgument`: too many tiers, a tier
    /// too small for its own index, or a tier that is the data set itself. `OutOfMemory`: for a
    /// tier in memory.
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
        let copies = CopyTable::new(units.len());
        to_check.retain(|(tier, kept)| {
            let location = CopyLocation { tier: *tier, page: kept.page };
            let end = kept.page.saturating_add(units.get(kept.unit).pages.into());
            copies.state(kept.unit) == CopyState::Absent
                && ledger.restore(*tier, kept.page..end)
                && copies.reserve(kept.unit, location)
        });
        let counters = Counters::new(media.len());
        let (jobs, received) = crossbeam::channel::unbounded();
        let calls = Copier::calls()?;
        let shared = Arc::new(Shared {
            home: Forked::new(()),
            units,
            copies,
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

    /// The policy that decides which units are kept.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The units of the data set.
    pub fn units(&self) -> &Units {
        &self.shared.units
    }

    /// Quota of each tier in pages, fastest first.
    pub fn capacities(&self) -> Vec<u64> {
        self.shared.media.iter().map(|media| media.capacity_pages).collect()
    }

    /// Sets the plan of the next run. Existing copies stay, unless they are evicted for units that
    /// the plan reads more often.
    ///
    /// # Errors
    /// `InvalidArgument`: the plan belongs to another data set, or to other tiers; nothing has
    /// changed.
    pub fn set_plan(&self, plan: &TierPlan) -> Result<()> {
        let shared = &*self.shared;
        plan.check(&shared.units, shared.media.len())?;
        let mut by_unit = vec![Ledger::NOT_PLANNED; shared.units.len() as usize];
        plan.copies.iter().for_each(|&(unit, tier)| by_unit[unit as usize] = tier);
        let mut ledger = shared.ledger.lock();
        let evicted = shared.evicted(plan, &by_unit, &ledger);
        ledger.set_plan(by_unit);
        drop(ledger);
        let wanted = plan.copies.iter().map(|&(unit, _)| unit).collect();
        shared.send(Job::Plan { wanted, evicted });
        Ok(())
    }

    /// Counters of reads and copies since the start.
    pub fn stats(&self) -> CacheStats {
        let mut stats = self.shared.counters.read(&self.shared.media, &self.shared.ledger.lock());
        stats.died = self.shared.fate.died().map(|error| error.to_string());
        stats
    }

    /// Whether nothing is being copied or verified, or waiting for that. For tests and benches.
    pub fn is_settled(&self) -> bool {
        self.shared.counters.is_settled() || self.shared.fate.died().is_some()
    }
}

impl Shared {
    /// The units whose copies a plan evicts.
    fn evicted(&self, plan: &TierPlan, by_unit: &[u8], ledger: &Ledger) -> Vec<u32> {
        let candidate = |unit: u32| {
            let together = self.units.together_with(unit);
            let pages = together.map(|unit| u64::from(self.units.get(unit).pages)).sum();
            Candidate { unit, pages, reads: plan.reads[unit as usize] }
        };
        let mut there = vec![Vec::new(); self.media.len()];
        for unit in 0..self.units.len() {
            let is_first = unit == 0 || !self.units.get(unit - 1).continues;
            let (CopyState::Reserved(location) | CopyState::Copied(location)) =
                self.copies.state(unit)
            else {
                continue;
            };
            if is_first && by_unit[unit as usize] == Ledger::NOT_PLANNED {
                there[usize::from(location.tier)].push(candidate(unit));
            }
        }
        let mut wanted = vec![Vec::new(); self.media.len()];
        for &(unit, tier) in &plan.copies {
            if self.copies.state(unit) == CopyState::Absent {
                wanted[usize::from(tier)].push(candidate(unit));
            }
        }
        let tiers = (0..).zip(there.into_iter().zip(wanted));
        let free = |tier| ledger.capacity(tier) - ledger.used(tier);
        tiers
            .flat_map(|(tier, (there, wanted))| copies_to_evict(there, wanted, free(tier)))
            .collect()
    }

    /// Only the process that opened the tiers has a copier; a forked child has none.
    fn is_at_home(&self) -> bool {
        self.home.is_ours()
    }

    /// Whether there is a copier that accepts data.
    fn has_copier(&self) -> bool {
        self.is_at_home() && !self.stop.load(Ordering::Relaxed)
    }

    /// Without a copier, the tiers serve existing copies and accept no more; readers go on.
    fn copier_died(&self, error: &Error) {
        self.fate.tell(error);
        self.stop.store(true, Ordering::Release);
        for tier in 0..self.media.len() {
            self.switch_off(tier as u8, error);
        }
    }

    fn send(&self, job: Job) {
        self.counters.unsettle(1);
        // Fails only when everything ends, or when the copier has died.
        let _ = self.jobs.send(job);
        self.waker.wake();
    }

    /// Reserves room for a unit that was read, if it is to be kept; returns whether its data are
    /// wanted now.
    fn wants(&self, unit: u32) -> bool {
        match self.copies.state(unit) {
            CopyState::Copied(_) => false,
            CopyState::Reserved(_) => true,
            CopyState::Absent => self.reserve(unit),
        }
    }

    fn reserve(&self, unit: u32) -> bool {
        let mut ledger = self.ledger.lock();
        if self.copies.state(unit) != CopyState::Absent {
            return true;
        }
        let together = self.units.together_with(unit);
        // One of them may have been dropped while the others have copies.
        let absent = |unit: &u32| self.copies.state(*unit) == CopyState::Absent;
        let missing: Vec<u32> = together.clone().filter(absent).collect();
        let pages = missing.iter().map(|&unit| u64::from(self.units.get(unit).pages)).sum();
        let Some(location) = ledger.reserve(together.start, pages) else { return false };
        let mut page = location.page;
        for unit in missing {
            self.copies.reserve(unit, CopyLocation { tier: location.tier, page });
            page += u64::from(self.units.get(unit).pages);
        }
        drop(ledger);
        self.send(Job::Begin(together));
        true
    }

    /// Stops copying to `tier`; warns once.
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
            std::mem::forget(thread); // the thread does not exist in this process
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(thread) = thread {
            thread.join_within(copier::LAST_WRITES + LAST_ITERATION);
        }
    }
}

/// Name of the copier's thread.
const COPIER: &str = "dlfs-tiers";

/// How long to wait for the copier after the last index writes: one iteration, unless a device
/// hangs.
const LAST_ITERATION: Duration = Duration::from_secs(5);

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("policy", &self.policy).finish_non_exhaustive()
    }
}
