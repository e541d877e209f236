//! Tiers at run time: devices in front of an origin that serve existing copies and create new ones.
//!
//! [`Cache::new`] opens the tiers and wraps each namespace of a data set in a device. A read through such a
//! device is served from copies in a tier, from the origin, or in pieces from both. The *copier* is a thread.
//! It writes to a tier the pages that readers have read from the origin, publishes the copies, and fetches
//! the remaining pages of samples that a tier keeps. If several readers want a page that a tier keeps, one
//! reads it from the origin and the others wait for its copy, with a time limit (`pair.rs`). Everything above
//! a queue pair (readers, loaders, targets, all languages) uses tiers without changes.
//!
//! Small sequential reads of the origin are combined into few large ones (`read_ahead.rs`): a parallel
//! file system then gets one request where the reader makes four.
//!
//! Copies are not trusted: the reader verifies every sample against the directory's checksum. It
//! reports a copy that differs through [`QueuePair::report_corrupt`](dlfs_io::qpair::QueuePair); the
//! copy is counted, read from the origin and written again. Copies of an earlier run are also verified before they
//! are read (`copier/checks.rs`). A failed read from a tier is a miss. A tier that cannot be written is switched off
//! with one warning.
//!
//! A tier in memory lends its copies to a target, which sends them without copying them first. Lent
//! bytes never change: nothing overwrites corrupt or evicted copies before all borrowers are done
//! (`copier/evicting.rs`). Only the process that owns the tiers lends, since no other process knows which
//! copies are lent.
//!
//! A folder holds the tiers of several data sets (`folder.rs`). In a folder, a tier keeps each file of
//! a plain folder above 16 MiB as one file, which programs can open (`own_files.rs`). Environments are
//! described in a TOML file (`options.rs`) or in HDMLP's configuration (`hdmlp.rs`).
//!
//! `dlfs_order::tier` decides quota, admission and locations; `dlfs_order::plan` decides from known
//! rates whether a copy or the origin is faster (`sources.rs`; `probe.rs` measures rates). This module makes the plan
//! of a run (`plan.rs`) and moves data. It evicts copies when a process sets a new plan, or when the chunks that this
//! node holds for other nodes lack room (`admission.rs`).
//!
//! Processes of a node share their tiers (`share/`): the first process owns them; the others read its
//! copies and send it the pages that they read from the origin. A forked child does the same
//! (`opening.rs`). If tiers are not shared, a forked child reads the existing copies and creates none.
//!
//! Read `device.rs` and `pair.rs` first, then `admission.rs`, `copier.rs` and `media.rs`; `overwrite.rs` says
//! what a tier may overwrite.

mod admission;
mod copier;
mod device;
mod folder;
mod hdmlp;
mod libconfig;
mod media;
mod opening;
mod options;
mod overwrite;
mod own_files;
mod pair;
mod plan;
mod probe;
mod read_ahead;
mod share;
mod sources;
mod stats;

use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::metrics::{Measured, Snapshot};
use dlfs_base::process::Forked;
use dlfs_base::registry::Registration;
use dlfs_base::threads::Fate;
use dlfs_base::units::Generation;
use dlfs_format::directory::Intact;
use dlfs_format::format::Uuid;
use dlfs_io::qpair::Device;
use dlfs_io::qpair::group::Waker;
use dlfs_order::plan::{MAX_TIERS, Source};
use dlfs_order::tier::{
    CopyLocation, CopyTable, Holding, Ledger, PAGE_BYTES, PageSet, Policy, Stop, Units,
};

pub(crate) use options::TierKind;
pub use options::{Environment, Point, TierOptions, TierSpec, TierTable};
pub(crate) use pair::{UNWRITTEN, to_peer};
pub use plan::{TierPlan, TierRooms};
pub use probe::{Probe, probe};
#[doc(hidden)]
pub use share::{Listener, connect_to, is_same_user};
pub use stats::{CacheStats, OriginStats, TierStats};

use admission::{Held, Holdings};
use copier::{CopyJob, LAST_WRITES};
use media::Media;
use opening::{Owned, Tiers};
use share::{Link, Message};
use sources::Sources;
use stats::Counters;

/// The tiers of one data set in one process. Dropping the cache writes all pages that readers have brought, as
/// [`Cache::flush`] does; its devices then still serve reads, but nothing more is copied.
pub struct Cache {
    tiers: Arc<Tiers>,
    devices: Vec<Arc<dyn Device>>,
    _metered: Registration,
}

/// State of the tiers between two takeovers, shared by all queue pairs and the copier.
struct TierShared {
    /// Tells a forked child from the process that opened the tiers: threads and connections do not
    /// survive a fork.
    home: Forked<()>,
    opening: Arc<Opening>,
    /// The copies of each unit. If tiers are shared, the table lies in memory that all processes map.
    copies: CopyTable,
    /// Quota, places and plan. Locked while pages are reserved or freed, so that it agrees with `copies`.
    ledger: Mutex<Ledger>,
    /// The latest plan of each process that shares the tiers, by connection number. The owner merges
    /// these plans.
    plans: Mutex<HashMap<u64, Arc<TierPlan>>>,
    /// The chunks that the processes that share the tiers hold for other nodes.
    holdings: Mutex<Holdings>,
    /// The storage of each tier, fastest first.
    media: Vec<Media>,
    /// The decisions by rates; those of [`Opening`], unless the owner has opened other tiers.
    sources: Arc<Sources>,
    /// Queue of the copier.
    jobs: Sender<CopyJob>,
    /// Wakes the copier, if this process owns the tiers.
    waker: Option<Waker>,
    /// The owner's threads, if this process owns the tiers.
    owned: Mutex<Option<Owned>>,
    /// The process that owns the tiers; `None`: this process, or nobody.
    attached_to: Option<u32>,
    /// Set if other processes can attach to the tiers of this process.
    is_shared: bool,
    /// Number of attached processes.
    num_attached: AtomicUsize,
    /// The connection to the owner, if this process is attached.
    link: Forked<Option<Link>>,
    /// Bytes queued for the copier.
    queued_bytes: AtomicUsize,
    /// Number of consecutive waits for a claimed page that timed out.
    overdue: AtomicU32,
    /// The state that replaces this one after the owner has ended.
    next: OnceLock<Arc<TierShared>>,
    /// Tells the copier to end; set, too, when it has died.
    stop: AtomicBool,
    /// The error that the copier died of, if any.
    fate: Fate,
}

/// Everything that [`Cache::new`], takeovers and forked children need to open the tiers; it outlives takeovers.
struct Opening {
    origins: Vec<Arc<dyn Device>>,
    units: Arc<Units>,
    identity: Identity,
    options: TierOptions,
    /// Counters that continue after takeovers.
    counters: Counters,
    /// Number of outstanding reads of the origin that a reader of this process waits for: see [`Opening::demand`].
    demand: Forked<AtomicUsize>,
    /// The decisions that follow from the rates in `options`.
    sources: Arc<Sources>,
    /// This process's last plan, for the next owner.
    plan: Forked<Mutex<Option<Arc<TierPlan>>>>,
    /// The chunks that this node holds for others, once they are known; also for the next owner.
    holding: Mutex<Option<Held>>,
    /// Checksums for comparing copies before they are published; set if other nodes rely on these
    /// copies.
    intact: OnceLock<Arc<Intact>>,
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
    /// Copies of an earlier run are reused, unless they were in memory. The copier verifies their
    /// checksums first, in the background. If another process of the same user has these tiers open for
    /// the same data set, this process attaches to it: see `share`. Waits for up to 5 s if that process is still
    /// opening the tiers, or is ending.
    ///
    /// # Errors
    /// `NotFound`, `Refused`: a tier's path is missing, cannot be written, or contains other data.
    /// `Busy`: another process or a file system uses it, and does not share it. `Unsupported`: the
    /// process that has it runs another version of dlfs. `InvalidArgument`: contradictory options, a
    /// tier too small for its own index or too large for its storage, or a tier that is the data set
    /// itself. `NoSpace`: a file system has no room for the index. `OutOfMemory`: for a tier in memory.
    /// Errors of connecting to a remote tier.
    pub fn new(
        origins: &[Arc<dyn Device>],
        units: Units,
        identity: Identity,
        options: &TierOptions,
    ) -> Result<Cache> {
        options.check()?;
        let opening = Arc::new(Opening {
            origins: origins.to_vec(),
            units: Arc::new(units),
            identity,
            options: options.clone(),
            counters: Counters::new(MAX_TIERS),
            sources: Arc::new(Sources::new(options.rates.clone())),
            plan: Forked::new(Mutex::default()),
            demand: Forked::new(AtomicUsize::default()),
            holding: Mutex::default(),
            intact: OnceLock::new(),
        });
        let until = Instant::now() + ATTACH_WAIT;
        let mut was_free = false;
        let shared = loop {
            match opening.attach_or_own() {
                // The process that has the tiers may still be opening them, or ending.
                Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < until => {
                    let is_free = share::is_free(options, identity);
                    if is_free && was_free {
                        return Err(error); // the other process is not one of dlfs
                    }
                    was_free = is_free;
                    std::thread::sleep(ATTACH_AGAIN);
                }
                opened => break opened?,
            }
        };
        let tiers = Arc::new(Tiers::new(opening, shared)?);
        let metered = Registration::new(&tiers);
        let devices = device::devices(&tiers, None);
        Ok(Cache { devices, tiers, _metered: metered })
    }

    /// Waits, for up to 15 s, until all pages that readers have brought so far and the index that lists
    /// them are written; or, if another process owns the tiers, until they are sent to it. Dropping the
    /// cache does the same, but waits only 5 s for another owner.
    pub fn flush(&self) {
        let shared = self.tiers.latest();
        let until = Instant::now() + LAST_WRITES;
        if let Some(link) = shared.link() {
            let is_sent = || !link.is_alive() || link.queued_bytes().load(Ordering::Acquire) == 0;
            while !is_sent() && Instant::now() < until {
                std::thread::sleep(FLUSH_INTERVAL);
            }
        } else if shared.has_copier() {
            let (written, flushed) = crossbeam_channel::bounded(0);
            shared.send(CopyJob::Flush(written));
            let _ = flushed.recv_deadline(until); // nothing is sent: it returns when all is written, or at the deadline
        }
    }

    /// The process that owns the tiers, if this one has attached to it.
    pub fn owner(&self) -> Option<u32> {
        self.tiers.latest().attached_to
    }

    /// The name of the node that the tiers are on, if the user has named it.
    pub fn node(&self) -> Option<&str> {
        self.tiers.opening.options.node.as_deref()
    }

    /// The namespaces of the data set, with the tiers in front of them.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The namespaces as other nodes see them, with these NGUIDs: thinly provisioned, with as many blocks in
    /// use as there are copies. A read of an unreadable block ends with *Deallocated or Unwritten Logical
    /// Block*. With `copies_only`, a read of data without copies ends with this status, too, and never
    /// reaches the origin.
    pub fn views(&self, copies_only: bool, nguids: &[[u8; 16]]) -> Vec<Arc<dyn Device>> {
        device::devices(&self.tiers, Some((copies_only, nguids)))
    }

    /// The policy that decides which units are kept.
    pub fn policy(&self) -> Policy {
        self.tiers.opening.options.policy
    }

    /// The units of the data set.
    pub fn units(&self) -> &Arc<Units> {
        &self.tiers.opening.units
    }

    /// Number of pages for copies in each tier, fastest first.
    pub fn capacities(&self) -> Vec<u64> {
        self.tiers.latest().media.iter().map(|media| media.capacity_pages).collect()
    }

    /// The capacity of the tiers, as input for a plan.
    pub fn rooms(&self) -> TierRooms {
        self.tiers.latest().rooms()
    }

    /// Sets the number of processes of the job that read from the origin at once; the default is 1. If
    /// rates are known, this number decides which tiers are faster than the origin. A slower tier is
    /// not read, and gets no more copies. Warns of each tier that was not slower at the last call.
    pub fn set_processes(&self, processes: u32) {
        let sources = &self.tiers.opening.sources;
        for tier in sources.choose_for(processes) {
            if let Some(spec) = self.tiers.opening.options.tiers.get(usize::from(tier)) {
                tracing::warn!(
                    tier = %spec,
                    "the origin is faster than the tier, which is not used: {}",
                    sources.why_avoided(tier, processes)
                );
            }
        }
        let shared = self.tiers.latest();
        if shared.is_owner() {
            let mut ledger = shared.ledger.lock();
            shared.sources.tell(&mut ledger, shared.media.len());
            shared.copies.set_room(ledger.room());
        }
    }

    /// Sets this process's plan of the next run. Processes that share the tiers follow the merged
    /// plans: first the portions with the most reads by all processes, then those with the earliest
    /// first read by any process. Existing copies stay, unless they are evicted for portions that are
    /// read more often.
    ///
    /// # Errors
    /// `InvalidArgument`: the plan belongs to another data set, or to other tiers; nothing has
    /// changed.
    pub fn set_plan(&self, plan: &TierPlan) -> Result<()> {
        let shared = self.tiers.latest();
        plan.check(&shared.units, shared.media.len())?;
        let plan = Arc::new(plan.clone());
        // Stored before the current state is looked up: a state that succeeds it sets the stored plan
        // again.
        *self.tiers.opening.plan.get_or_init(Mutex::default).lock() = Some(Arc::clone(&plan));
        self.tiers.latest().tell(Message::Plan(plan));
        Ok(())
    }

    /// Keeps room for the chunks that this node holds for all nodes of its job. Other pages are kept
    /// only in the remaining room; if copies of other pages exceed it, they are all evicted. `chunks` lists
    /// the namespace and byte range of each chunk, and whether this node holds it. With `fills`, the
    /// copier fetches all chunks that this node holds; otherwise it completes a chunk once somebody
    /// begins to read it. Samples that arrive whole are compared with `intact` before they are
    /// published. If another process owns the tiers, that process keeps the room and fetches.
    ///
    /// Under another policy than first-touch, only `intact` has an effect: a plan lists the pages to keep itself.
    pub fn set_held(
        &self,
        chunks: impl IntoIterator<Item = (u16, Range<u64>, bool)>,
        fills: bool,
        intact: &Arc<Intact>,
    ) {
        self.set_checked(intact);
        let units = self.units();
        let chunk = |(namespace, bytes, is_held)| {
            let units_of = units.within(namespace, &bytes);
            let pages = units_of.clone().map(|unit| u64::from(units.get(unit).pages())).sum();
            (units_of, pages, is_held)
        };
        let chunks = Holding::new(chunks.into_iter().map(chunk));
        if self.policy() == Policy::FirstTouch {
            let held = Held { chunks, fills };
            // Stored before the current state is looked up: a state that succeeds it sets the stored
            // chunks again.
            *self.tiers.opening.holding.lock() = Some(held.clone());
            self.tiers.latest().tell(Message::Hold(held));
        }
    }

    /// From now on, samples that arrive whole are compared with `intact` before their copies are published,
    /// since other nodes rely on these copies.
    pub fn set_checked(&self, intact: &Arc<Intact>) {
        // A second call has the same samples, so its failure does not matter.
        let _ = self.tiers.opening.intact.set(Arc::clone(intact));
    }

    /// Chooses the source of data that this node has in its tier `own` and another node has in its tier
    /// `other`, while `processes` read from the origin at once: the fastest by the known rates, and the
    /// nearest of equally fast sources.
    pub fn source(&self, own: Option<u8>, other: Option<u8>, processes: u32) -> Source {
        self.tiers.opening.options.rates.choose(own, other, processes)
    }

    /// Identifier of these tiers, the same for all processes of this machine that share them, and
    /// unique while this machine runs; 0 if they are not shared, or if the machine's boot id is unknown.
    pub fn shared_id(&self) -> u64 {
        let Opening { options, identity, .. } = &*self.tiers.opening;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        match share::socket_name(options, *identity) {
            Some(name) if !boot.is_empty() => {
                let user = rustix::process::geteuid().as_raw();
                xxh3_64(format!("{boot}{user}-{name}").as_bytes()).max(1)
            }
            _ => 0,
        }
    }

    /// Counters of reads and copies since the start.
    pub fn stats(&self) -> CacheStats {
        self.tiers.stats()
    }

    /// Number of bytes of `range` of a namespace that have copies.
    pub fn kept_bytes(&self, namespace: u16, range: &Range<u64>) -> u64 {
        let shared = self.tiers.latest();
        let units = self.units();
        let kept = |unit: u32| {
            let start = units.get(unit).start_bytes();
            let pages = shared.copies.there(unit).and(units.get(unit).pages_in(range));
            let bytes = move |pages: Range<u32>| {
                let at = |page: u32| start + u64::from(page) * PAGE_BYTES;
                at(pages.end).min(range.end) - at(pages.start).max(range.start)
            };
            pages.runs().map(bytes).sum::<u64>()
        };
        units.within(namespace, range).map(kept).sum()
    }

    /// Returns whether all copies are written and verified. For tests and benches.
    pub fn is_settled(&self) -> bool {
        let shared = self.tiers.latest();
        if let Some(link) = shared.link() {
            return link.is_idle();
        }
        shared.counters.is_settled() || shared.fate.died().is_some()
    }
}

impl Opening {
    /// Number of outstanding reads of the origin that a reader of this process waits for. A forked child begins at 0,
    /// and adds those of the queue pairs that it goes on using.
    fn demand(&self) -> &AtomicUsize {
        self.demand.get_or_init(AtomicUsize::default)
    }
}

impl TierShared {
    /// A state without a copier, a connection or copies.
    fn new(opening: &Arc<Opening>, media: Vec<Media>) -> TierShared {
        TierShared {
            home: Forked::new(()),
            opening: Arc::clone(opening),
            copies: CopyTable::new(0),
            ledger: Mutex::new(Ledger::new(Policy::None, Stop::Never, &[])),
            plans: Mutex::default(),
            holdings: Mutex::default(),
            sources: Arc::clone(&opening.sources),
            media,
            jobs: crossbeam_channel::unbounded().0,
            waker: None,
            owned: Mutex::default(),
            attached_to: None,
            is_shared: false,
            num_attached: AtomicUsize::new(0),
            link: Forked::new(None),
            queued_bytes: AtomicUsize::new(0),
            overdue: AtomicU32::new(0),
            next: OnceLock::new(),
            stop: AtomicBool::new(false),
            fate: Fate::default(),
        }
    }

    /// Handles a message of this process: passes it to the owner, or handles it here.
    fn tell(&self, message: Message) {
        if let Some(link) = self.link() {
            return link.send(message);
        }
        match message {
            Message::Corrupt { unit, pages } => self.send(CopyJob::Corrupt(unit, pages)),
            Message::Piece { unit, pages, bytes } => {
                self.send(CopyJob::Piece { unit, pages, bytes })
            }
            Message::Plan(plan) if self.is_owner() => self.add_plan(OWN, plan),
            Message::Hold(held) if self.is_owner() => self.add_held(OWN, held),
            _ => {} // the owner sees its own claims in the table, and only an owner takes plans and chunks
        }
    }

    /// The capacity of the tiers, as input for a plan.
    fn rooms(&self) -> TierRooms {
        let all = self.units.num_pages();
        let keeps = |media: &Media| media.is_sparse() || media.capacity_pages >= all;
        TierRooms {
            pages: self.media.iter().map(|media| media.capacity_pages).collect(),
            // An attached process leaves this decision to the owner, which knows what its tiers keep.
            keep_parts: self.link().is_some() || self.media.iter().all(keeps),
        }
    }

    /// The current state of the tiers, after all takeovers.
    fn latest(self: &Arc<TierShared>) -> &Arc<TierShared> {
        let mut latest = self;
        while let Some(next) = latest.next.get() {
            latest = next;
        }
        latest
    }

    /// Returns whether this process has the copier.
    fn is_owner(&self) -> bool {
        self.home.is_ours() && self.waker.is_some()
    }

    /// The connection to the owner, if this process has one.
    fn link(&self) -> Option<&Link> {
        self.link.get()?.as_ref()
    }

    /// Returns whether there is a copier that accepts data, here or in the owner.
    fn has_copier(&self) -> bool {
        match self.link() {
            Some(link) => link.is_alive(),
            None => self.is_owner() && !self.stop.load(Ordering::Relaxed),
        }
    }

    /// Returns whether the owner of the tiers may be gone. Copies are not used then, since the next owner may overwrite
    /// them. A forked child of the owner does not notice the owner's end, so the child uses copies only if no process
    /// can take over.
    fn is_detached(&self) -> bool {
        match self.waker {
            Some(_) => self.is_shared && !self.home.is_ours(),
            None => !self.link().is_some_and(Link::is_alive),
        }
    }

    /// The location of the unit's copies, and the pages whose copies may be read.
    fn copies_of(&self, unit: u32) -> Option<(CopyLocation, PageSet)> {
        let (location, pages) = self.copies.copies(unit)?;
        // Another process may have written the table, so its numbers are checked.
        let is_known = usize::from(location.tier) < self.media.len();
        (is_known && !self.is_detached()).then_some((location, pages))
    }

    /// As [`TierShared::copies_of`], in tiers that are faster than the origin.
    fn copies_to_read(&self, unit: u32) -> Option<(CopyLocation, PageSet)> {
        self.copies_of(unit).filter(|(location, _)| !self.sources.is_avoided(location.tier))
    }

    /// Returns whether the unit's place is in a tier that is not used, since the origin is faster.
    fn is_avoided(&self, unit: u32) -> bool {
        self.copies.location(unit).is_some_and(|location| self.sources.is_avoided(location.tier))
    }

    /// Returns whether no copy was overwritten since the number of evictions was `evictions`.
    fn is_unchanged_since(&self, evictions: u64) -> bool {
        self.copies.evictions() == evictions && !self.is_detached()
    }

    /// Bytes that wait for the copier.
    fn queued_bytes(&self) -> &AtomicUsize {
        self.link().map_or(&self.queued_bytes, Link::queued_bytes)
    }

    /// The number of reserved pages, and of pages with copies, of each tier.
    fn count_pages(&self) -> Vec<(u64, u64)> {
        let mut pages = vec![(0, 0); self.media.len()];
        for unit in 0..self.units.len() {
            let Some(location) = self.copies.location(unit) else { continue };
            if let Some((reserved, held)) = pages.get_mut(usize::from(location.tier)) {
                *reserved += u64::from(self.copies.reserved(unit).len());
                *held += u64::from(self.copies.there(unit).len());
            }
        }
        pages
    }

    /// After the copier has died, the tiers serve existing copies and accept no more; readers continue.
    fn copier_died(&self, error: &Error) {
        self.fate.tell(error);
        self.stop.store(true, Ordering::Release);
        for tier in 0..self.media.len() {
            self.switch_off(tier as u8, error);
        }
    }

    /// Sends a job to the copier of this process, which owns the tiers.
    fn send(&self, job: CopyJob) {
        self.counters.unsettle(1);
        // Fails only when all threads end, or when the copier has died.
        let _ = self.jobs.send(job);
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// Stops copying to `tier`; warns the first time.
    fn switch_off(&self, tier: u8, why: &dyn std::fmt::Display) {
        // A forked child that reads its parent's state must not wait for its locks.
        if self.home.is_ours() && self.ledger.lock().switch_off(tier) {
            let tier = &self.media[usize::from(tier)].name;
            tracing::warn!(%tier, "the tier takes no more copies: {why}");
        }
    }
}

impl Deref for TierShared {
    type Target = Opening;

    fn deref(&self) -> &Opening {
        &self.opening
    }
}

impl Tiers {
    fn stats(&self) -> CacheStats {
        let shared = self.latest();
        let tiers = (0..).zip(&shared.media).zip(shared.count_pages());
        // A forked child that reads its parent's state must not wait for its locks.
        let ledger = shared.home.is_ours().then(|| shared.ledger.lock());
        CacheStats {
            tiers: tiers
                .map(|((number, media), (reserved, held))| TierStats {
                    name: media.name.clone(),
                    capacity_bytes: media.capacity_pages * PAGE_BYTES,
                    used_bytes: reserved * PAGE_BYTES,
                    held_bytes: held * PAGE_BYTES,
                    is_off: ledger.as_ref().is_some_and(|ledger| ledger.is_off(number)),
                    ..shared.counters.tier(number)
                })
                .collect(),
            origin: shared.counters.origin(),
            owner: shared.attached_to,
            attached: shared.is_shared.then(|| shared.num_attached.load(Ordering::Relaxed)),
            died: shared.fate.died().map(|error| error.to_string()),
        }
    }
}

impl Measured for Tiers {
    fn measure(&self, snapshot: &mut Snapshot) {
        self.stats().measure(snapshot);
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.tiers.stop();
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("policy", &self.policy()).finish_non_exhaustive()
    }
}

/// The owner's own connection number.
const OWN: u64 = 0;

/// Timeout for the process that has the tiers open to share them or to end.
const ATTACH_WAIT: Duration = Duration::from_secs(5);
/// Pause before this process tries again to attach or to own.
const ATTACH_AGAIN: Duration = Duration::from_millis(20);
/// Interval at which a flush checks whether all pages are sent.
const FLUSH_INTERVAL: Duration = Duration::from_millis(1);
