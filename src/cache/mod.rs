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
//! `tier` decides quota, admission and locations; this module only moves data.
//!
//! Processes of a node share their tiers (`share/`): the first one owns them, the others read its
//! copies and send it what they read from the origin. So does a forked child. Where tiers are not
//! shared, a forked child reads the existing copies and creates none.
//!
//! Read `pair.rs` first, then `copier.rs`, then `media.rs`; `takeover.rs` says what a tier may
//! overwrite.

mod assembly;
mod config;
mod copier;
mod folder;
mod heir;
mod media;
mod options;
mod pair;
mod plan;
mod probe;
mod read_ahead;
mod share;
mod stats;
mod takeover;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;
use parking_lot::Mutex;

use crate::buf::SharedWords;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Uuid;
use crate::process::Forked;
use crate::qpair::Device;
use crate::qpair::group::Waker;
use crate::threads::{self, Fate, Thread, caught};
use crate::tier::{
    Candidate, CopyLocation, CopyState, CopyTable, Ledger, Policy, Stop, Units, copies_to_evict,
};
use crate::units::Generation;

pub use config::{Environment, Point, TierTable};
pub use options::{TierKind, TierOptions, TierSpec};
pub use plan::TierPlan;
pub use probe::{Probe, probe};
pub use stats::{CacheStats, OriginStats, TierStats};

use copier::{Copier, Job};
use heir::Heir;
use media::Media;
use share::{Hello, Link, Owner, Welcome};
use stats::Counters;

/// The tiers of one data set in one process. After it is dropped, its devices still serve reads,
/// but nothing more is copied.
pub struct Cache {
    /// The first of a chain: each takeover adds one.
    shared: Arc<Shared>,
    devices: Vec<Arc<dyn Device>>,
    /// What this process runs if it owns the tiers.
    owned: Arc<Mutex<Option<Owned>>>,
    /// Waits for the owner's end, if that is another process.
    heir: Option<Heir>,
    policy: Policy,
}

/// The threads of the owner.
struct Owned {
    copier: Thread,
    /// Serves processes that attach.
    owner: Option<Owner>,
}

/// How [`Cache::new`] and takeovers open the tiers.
#[derive(Clone)]
struct Opening {
    origins: Vec<Arc<dyn Device>>,
    units: Arc<Units>,
    identity: Identity,
    options: TierOptions,
    /// Counters that go on through takeovers.
    counters: Arc<Counters>,
    demand: Arc<AtomicUsize>,
}

/// State shared by all queue pairs and the copier.
struct Shared {
    /// The copier exists only in the process that created it.
    home: Forked<()>,
    units: Arc<Units>,
    copies: CopyTable,
    ledger: Mutex<Ledger>,
    media: Vec<Media>,
    origins: Vec<Arc<dyn Device>>,
    counters: Arc<Counters>,
    jobs: Sender<Job>,
    /// Wakes the copier, if this process owns the tiers.
    waker: Option<Waker>,
    /// The process that owns the tiers, if it is another one.
    attached_to: Option<u32>,
    /// Name of the owner's socket, if the tiers are shared.
    socket: Option<Vec<u8>>,
    /// The connection to the owner: of an attached process, or of a forked child of either.
    link: Forked<Option<Link>>,
    /// Bytes queued for the copier.
    queued_bytes: AtomicUsize,
    /// Reads of the origin that somebody waits for.
    demand: Arc<AtomicUsize>,
    /// What the tiers are after their owner's end.
    next: OnceLock<Arc<Shared>>,
    /// Tells the copier to end, or says that it has died.
    stop: AtomicBool,
    /// Why the copier died, if it did.
    fate: Fate,
}

/// The data set that copies belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// the background. Where another process of the same user has these tiers open for the same data
    /// set, this one attaches to it: see `share`. Only tiers in files are shared.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: a tier's path is missing, cannot be written, or contains other data.
    /// `Busy`: another process or a file system uses it, and does not share it. `Unsupported`: the
    /// process that has it runs another version of dlfs. `InvalidArgument`: too many tiers, a tier
    /// too small for its own index, or a tier that is the data set itself. `OutOfMemory`: for a
    /// tier in memory.
    pub fn new(
        origins: &[Arc<dyn Device>],
        units: Units,
        identity: Identity,
        options: &TierOptions,
    ) -> Result<Cache> {
        options.check()?;
        let opening = Opening {
            origins: origins.to_vec(),
            units: Arc::new(units),
            identity,
            options: options.clone(),
            counters: Arc::new(Counters::new(options::MAX_TIERS)),
            demand: Arc::default(),
        };
        let until = Instant::now() + ATTACH_WAIT;
        let (shared, owned) = loop {
            match opening.attach_or_own() {
                // It may be opening them, and listen in a moment, or end.
                Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < until => {
                    if share::socket_name(options, identity).is_none() {
                        return Err(error);
                    }
                    std::thread::sleep(ATTACH_AGAIN);
                }
                opened => break opened?,
            }
        };
        let devices = pair::devices(&shared);
        let owned = Arc::new(Mutex::new(owned));
        let attached = shared.attached_to.is_some();
        let heir = attached.then(|| Heir::start(opening, &shared, &owned)).transpose()?;
        Ok(Cache { shared, devices, owned, heir, policy: options.policy })
    }

    /// The process that owns the tiers, if this one has attached to another.
    pub fn owner(&self) -> Option<u32> {
        self.shared.latest().attached_to
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
        self.shared.latest().media.iter().map(|media| media.capacity_pages).collect()
    }

    /// Sets the plan of the next run. Existing copies stay, unless they are evicted for units that
    /// the plan reads more often.
    ///
    /// # Errors
    /// `InvalidArgument`: the plan belongs to another data set, or to other tiers; nothing has
    /// changed.
    pub fn set_plan(&self, plan: &TierPlan) -> Result<()> {
        let shared = &*self.shared.latest();
        plan.check(&shared.units, shared.media.len())?;
        if shared.attached_to.is_some() {
            return Ok(()); // the owner's plan holds
        }
        let mut by_unit = vec![Ledger::NOT_PLANNED; shared.units.len() as usize];
        plan.copies.iter().for_each(|&(unit, tier)| by_unit[unit as usize] = tier);
        let mut ledger = shared.ledger.lock();
        let evicted = shared.evicted(plan, &by_unit, &ledger);
        ledger.set_plan(by_unit);
        shared.copies.set_room(ledger.room());
        drop(ledger);
        let wanted = plan.copies.iter().map(|&(unit, _)| unit).collect();
        shared.send(Job::Plan { wanted, evicted });
        Ok(())
    }

    /// Counters of reads and copies since the start.
    pub fn stats(&self) -> CacheStats {
        let shared = self.shared.latest();
        let mut stats = shared.counters.read(&shared.media, &shared.ledger.lock());
        stats.owner = shared.attached_to;
        if stats.owner.is_some() {
            shared.used_pages().into_iter().zip(&mut stats.tiers).for_each(|(pages, tier)| {
                tier.used_bytes = pages * crate::tier::PAGE_BYTES;
            });
        }
        stats.died = shared.fate.died().map(|error| error.to_string());
        stats
    }

    /// Whether nothing is being copied or verified, or waiting for that. For tests and benches.
    pub fn is_settled(&self) -> bool {
        let shared = self.shared.latest();
        if let Some(link) = shared.link() {
            return link.is_idle();
        }
        shared.counters.is_settled() || shared.fate.died().is_some()
    }
}

impl Opening {
    /// Attaches to the owner of the tiers, or owns them.
    fn attach_or_own(&self) -> Result<(Arc<Shared>, Option<Owned>)> {
        match self.attach()? {
            Some(shared) => Ok((shared, None)),
            None => self.own().map(|(shared, owned)| (shared, Some(owned))),
        }
    }

    /// Opens the tiers as their owner.
    fn own(&self) -> Result<(Arc<Shared>, Owned)> {
        let Opening { origins, units, identity, options, .. } = self;
        let mut media = Vec::new();
        let mut to_check = Vec::new();
        for (number, spec) in (0..).zip(&options.tiers) {
            let (opened, kept) = Media::open(number, spec, *identity, units, origins)?;
            media.push(opened);
            to_check.extend(kept.into_iter().map(|kept| (number, kept)));
        }
        let capacities: Vec<u64> = media.iter().map(|media| media.capacity_pages).collect();
        let mut ledger = Ledger::new(options.policy, options.stop, &capacities);
        let sharing = Sharing::of(&media, units, *identity, options);
        let (copies, sharing) = match sharing {
            Some((copies, sharing)) => (copies, Some(sharing)),
            None => (CopyTable::new(units.len()), None),
        };
        to_check.retain(|(tier, kept)| {
            let location = CopyLocation { tier: *tier, page: kept.page };
            let end = kept.page.saturating_add(units.get(kept.unit).pages.into());
            copies.state(kept.unit) == CopyState::Absent
                && ledger.restore(*tier, kept.page..end)
                && copies.reserve(kept.unit, location)
        });
        copies.set_room(ledger.room());
        let (jobs, received) = crossbeam::channel::unbounded();
        let calls = Copier::calls()?;
        let shared = Arc::new(Shared {
            copies,
            ledger: Mutex::new(ledger),
            waker: Some(calls.waker()),
            socket: sharing.as_ref().map(|sharing| sharing.name.clone()),
            ..Shared::new(self, media, jobs)
        });
        let bandwidth = options.bandwidth_bytes_per_s;
        let copier = Copier::new(Arc::clone(&shared), calls, received, to_check, bandwidth)?;
        let thread = threads::start(COPIER, &shared.fate, copier, |copier| {
            let who = format!("the thread {COPIER}");
            if let Err(error) = caught(&who, || copier.run()) {
                copier.shared().copier_died(&error);
            }
        })?;
        let owner = match sharing {
            None => None,
            Some(Sharing { name, hello, table }) => {
                Some(Owner::start(Arc::clone(&shared), name, hello, table)?)
            }
        };
        Ok((shared, Owned { copier: thread, owner }))
    }

    /// Attaches to the process that owns the tiers; `None`: there is none for this data set, or it is
    /// about to end.
    fn attach(&self) -> Result<Option<Arc<Shared>>> {
        let Opening { identity, options, units, .. } = self;
        let identity = *identity;
        let Some(name) = share::socket_name(options, identity) else { return Ok(None) };
        let Welcome { stream, hello, table } = match share::connect(&name) {
            Ok(Some(welcome)) => welcome,
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Ok(None) | Err(_) => return Ok(None),
        };
        let is_same = (hello.uuid, hello.generation) == (identity.uuid.0, identity.generation.0)
            && hello.fingerprint == units.fingerprint();
        if !is_same {
            let pid = hello.pid;
            let text = format!("process {pid} has this tier for another image or generation");
            let path = hello.tiers.first().map(|tier| tier.path.clone()).unwrap_or_default();
            let hint = "name a folder, which holds the tiers of several images";
            return Err(Error::new(ErrorKind::Busy, text).path(path).hint(hint));
        }
        share::warn_of_other_options(&hello, options);
        let words = SharedWords::open(table, CopyTable::num_words(units.len()))?;
        let media = media::attached(&hello.tiers)?;
        let (jobs, _) = crossbeam::channel::unbounded();
        let capacities: Vec<u64> = media.iter().map(|media| media.capacity_pages).collect();
        let shared = Arc::new(Shared {
            copies: CopyTable::over(Box::new(words)),
            ledger: Mutex::new(Ledger::new(options.policy, options.stop, &capacities)),
            attached_to: Some(hello.pid),
            socket: Some(name),
            link: Forked::new(Some(Link::start(stream)?)),
            ..Shared::new(self, media, jobs)
        });
        tracing::debug!(owner = hello.pid, "attached to the tiers of another process");
        Ok(Some(shared))
    }
}

impl Shared {
    /// Without a copier, without a connection, without copies.
    fn new(opening: &Opening, media: Vec<Media>, jobs: Sender<Job>) -> Shared {
        Shared {
            home: Forked::new(()),
            units: Arc::clone(&opening.units),
            copies: CopyTable::new(0),
            ledger: Mutex::new(Ledger::new(Policy::None, Stop::Never, &[])),
            counters: Arc::clone(&opening.counters),
            media,
            origins: opening.origins.clone(),
            jobs,
            waker: None,
            attached_to: None,
            socket: None,
            link: Forked::new(None),
            queued_bytes: AtomicUsize::new(0),
            demand: Arc::clone(&opening.demand),
            next: OnceLock::new(),
            stop: AtomicBool::new(false),
            fate: Fate::default(),
        }
    }

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

    /// What the tiers are now.
    fn latest(self: &Arc<Shared>) -> Arc<Shared> {
        let mut latest = self;
        while let Some(next) = latest.next.get() {
            latest = next;
        }
        Arc::clone(latest)
    }

    /// Whether this is the process that opened the tiers, not a forked child of it.
    fn is_at_home(&self) -> bool {
        self.home.is_ours()
    }

    /// Whether this process has the copier.
    fn is_owner(&self) -> bool {
        self.is_at_home() && self.attached_to.is_none()
    }

    /// The connection to the owner, if this process has one.
    fn link(&self) -> Option<&Link> {
        self.link.get()?.as_ref()
    }

    /// Connects a forked child to the owner, so that what it reads is kept, too.
    fn link_in_child(&self) {
        if self.is_at_home() {
            return;
        }
        self.link.get_or_init(|| {
            let found = share::connect(self.socket.as_deref()?);
            let linked = found
                .and_then(|found| found.map(|welcome| Link::start(welcome.stream)).transpose());
            linked.unwrap_or_else(|error| {
                tracing::debug!(%error, "a forked child reads copies and creates none");
                None
            })
        });
    }

    /// Whether there is a copier that accepts data, here or in the owner.
    fn has_copier(&self) -> bool {
        match self.link() {
            Some(link) => link.is_alive(),
            None => self.is_owner() && !self.stop.load(Ordering::Relaxed),
        }
    }

    /// Whether the owner is gone: the next one may overwrite the copies, so they are not used.
    fn is_detached(&self) -> bool {
        self.attached_to.is_some() && !self.link().is_some_and(Link::is_alive)
    }

    /// Where the unit's copy is, if it may be read.
    fn copy_of(&self, unit: u32) -> Option<CopyLocation> {
        let location = self.copies.copy_of(unit)?;
        // Another process wrote the table.
        let is_known = usize::from(location.tier) < self.media.len();
        (is_known && !self.is_detached()).then_some(location)
    }

    /// Whether copies that were read since then have not been overwritten meanwhile.
    fn is_unchanged_since(&self, evictions: u64) -> bool {
        self.copies.evictions() == evictions && !self.is_detached()
    }

    /// Bytes that wait for the copier.
    fn queued_bytes(&self) -> &AtomicUsize {
        self.link().map_or(&self.queued_bytes, Link::queued_bytes)
    }

    /// Reserved pages of each tier, as the table has them.
    fn used_pages(&self) -> Vec<u64> {
        let mut used = vec![0; self.media.len()];
        for unit in 0..self.units.len() {
            let (CopyState::Reserved(location) | CopyState::Copied(location)) =
                self.copies.state(unit)
            else {
                continue;
            };
            if let Some(used) = used.get_mut(usize::from(location.tier)) {
                *used += u64::from(self.units.get(unit).pages);
            }
        }
        used
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
        if let Some(link) = self.link() {
            return link.send(job);
        }
        self.counters.unsettle(1);
        // Fails only when everything ends, or when the copier has died.
        let _ = self.jobs.send(job);
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Reserves room for a unit that was read, if it is to be kept; returns whether its data are
    /// wanted now.
    fn wants(&self, unit: u32) -> bool {
        match self.copies.state(unit) {
            CopyState::Copied(_) => false,
            CopyState::Reserved(_) => true,
            CopyState::Absent if self.is_owner() => self.reserve(unit),
            // The owner reserves when it hears of the read.
            CopyState::Absent => u64::from(self.units.get(unit).pages) <= self.copies.room(),
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
        let reserved = ledger.reserve(together.start, pages);
        self.copies.set_room(ledger.room());
        let Some(location) = reserved else { return false };
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
        if !self.shared.is_at_home() {
            // The threads do not exist in this process, and one may have held the lock.
            std::mem::forget((self.heir.take(), Arc::clone(&self.owned)));
            return;
        }
        // First, so that it takes over nothing any more.
        if let Some(heir) = self.heir.take() {
            heir.stop();
        }
        let shared = self.shared.latest();
        shared.link().into_iter().for_each(Link::close);
        shared.stop.store(true, Ordering::Release);
        shared.waker.iter().for_each(Waker::wake);
        if let Some(Owned { copier, owner }) = self.owned.lock().take() {
            owner.into_iter().for_each(|mut owner| owner.stop());
            copier.join_within(copier::LAST_WRITES + LAST_ITERATION);
        }
    }
}

/// What the owner of tiers tells those who attach, and where.
struct Sharing {
    name: Vec<u8>,
    hello: Hello,
    table: OwnedFd,
}

impl Sharing {
    /// The table in shared memory and what goes with it; `None` if the tiers are not shared, or if the
    /// operating system has no such memory.
    fn of(
        media: &[Media],
        units: &Units,
        identity: Identity,
        options: &TierOptions,
    ) -> Option<(CopyTable, Sharing)> {
        let name = share::socket_name(options, identity)?;
        let tiers = media.iter().map(Media::shared).collect::<Option<_>>()?;
        let hello = Hello::new(identity, units.fingerprint(), options.policy, tiers);
        let table = SharedWords::new(CopyTable::num_words(units.len())).and_then(|words| {
            let file = words.file().try_clone_to_owned()?;
            Ok((CopyTable::over(Box::new(words)), file))
        });
        match table {
            Ok((copies, table)) => Some((copies, Sharing { name, hello, table })),
            Err(error) => {
                tracing::warn!(%error, "no shared memory: other processes cannot use these tiers");
                None
            }
        }
    }
}

/// How long to wait for the process that has the tiers to share them, or to end.
const ATTACH_WAIT: Duration = Duration::from_secs(5);
const ATTACH_AGAIN: Duration = Duration::from_millis(20);

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
