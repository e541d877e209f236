//! Opening of the tiers: attaches to the process that owns them, or becomes their owner.
//!
//! Each process that uses the tiers has its own state and threads ([`Running`]): the process that opened them, and each
//! forked child. In an attached process, the [`Heir`] takes over or attaches to the new owner when the owner of the
//! tiers ends.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, select};
use parking_lot::Mutex;

use super::admission::{Held, Holdings, lacking};
use super::copier::{self, Copier, CopyJob};
use super::media::{self, Media};
use super::share::{self, Hello, Link, Listener, Message, Sharing, TierOwner};
use super::{Opening, TierShared, own_files};
use dlfs_base::buf::SharedWords;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::Forked;
use dlfs_base::threads::{self, Fate, Thread, caught};
use dlfs_io::qpair::calls::Calls;
use dlfs_io::qpair::group::Waker;
use dlfs_order::tier::{CopyTable, Kept, Ledger, Units};

/// The threads of the owner.
pub(super) struct Owned {
    pub(super) copier: Thread,
    /// Serves processes that attach.
    pub(super) owner: Option<TierOwner>,
}

impl Owned {
    /// Starts the threads; the one that serves other processes only if the tiers are shared.
    fn start(shared: &Arc<TierShared>, copier: Copier, sharing: Option<Sharing>) -> Result<Owned> {
        let copier = threads::start(COPIER, &shared.fate, copier, |copier| {
            let who = format!("the thread {COPIER}");
            if let Err(error) = caught(&who, || copier.run()) {
                copier.shared.copier_died(&error);
            }
        })?;
        let serve = |sharing| TierOwner::start(Arc::clone(shared), sharing);
        match sharing.map(serve).transpose() {
            Ok(owner) => Ok(Owned { copier, owner }),
            Err(error) => {
                end_copier(shared, Some(copier)); // otherwise it would keep the locks of the tiers
                Err(error)
            }
        }
    }
}

/// Ends the thread of the copier, if there is one, once it has written what has arrived.
fn end_copier(shared: &TierShared, copier: Option<Thread>) {
    shared.stop.store(true, Ordering::Release);
    shared.waker.iter().for_each(Waker::wake);
    copier.into_iter().for_each(|copier| {
        copier.join_within(copier::LAST_WRITES + LAST_ITERATION);
    });
}

impl Opening {
    /// Attaches to the owner of the tiers, or becomes their owner.
    ///
    /// # Errors
    /// `Busy`: another process has the tiers; the source says why this process could not attach. Errors
    /// of [`Opening::attach`] and [`Opening::own`].
    pub(super) fn attach_or_own(self: &Arc<Opening>) -> Result<Arc<TierShared>> {
        let why = match self.attach() {
            Ok(Some(shared)) => return Ok(shared),
            Ok(None) => None,
            // Trying to own the tiers cannot succeed either.
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Busy) => {
                return Err(error);
            }
            Err(error) => Some(error),
        };
        self.own().map_err(|error| match why {
            Some(why) if error.kind() == ErrorKind::Busy => error.source(why),
            _ => error,
        })
    }

    /// After a takeover, sets this process's last plan and the chunks that this node holds again.
    fn tell_again(&self, shared: &TierShared) {
        let plan = self.plan.get().and_then(|plan| plan.lock().clone());
        plan.into_iter().for_each(|plan| shared.tell(Message::Plan(plan)));
        let held = self.holding.lock().clone();
        held.into_iter().for_each(|held| shared.tell(Message::Hold(held)));
    }

    /// Opens the tiers as their owner, with the copies of an earlier run, and starts the owner's threads.
    ///
    /// # Errors
    /// Errors of [`Media::open`]. `Busy`: another process has the tiers. A thread cannot be started.
    fn own(self: &Arc<Opening>) -> Result<Arc<TierShared>> {
        let Opening { units, options, .. } = &**self;
        let listener = self.claim_memory()?;
        let mut media = Vec::new();
        let mut to_check = Vec::new();
        for number in 0..options.tiers.len() as u8 {
            let (opened, kept) = Media::open(self, number)?;
            media.push(opened);
            to_check.extend(kept.into_iter().map(|kept| (number, kept)));
        }
        let mut ledger = self.new_ledger(&media);
        let (copies, sharing) = match self.sharing(&media, listener) {
            Some((copies, sharing)) => (copies, Some(sharing)),
            None => (CopyTable::new(units.len()), None),
        };
        to_check.retain(|(tier, kept)| {
            let is_restored = media[usize::from(*tier)].is_still_its_place(units, kept)
                && restore(*tier, kept, units, &mut ledger, &copies);
            if !is_restored {
                media[usize::from(*tier)].forget(kept.unit);
            }
            is_restored
        });
        let forget = |tier: u8, unit: u32| media[usize::from(tier)].forget(unit);
        let incomplete = own_files::complete(units, &mut ledger, &copies, &mut to_check, &forget);
        for (number, media) in (0..).zip(&media) {
            media.deallocate_all_but(&pages_of(number, &to_check))?;
        }
        let mut behind = Vec::new();
        let held = self.holding.lock().clone();
        if let Some(Held { chunks, fills }) = held.clone() {
            if fills {
                behind.extend(chunks.held_units());
            }
            let lacking = lacking(&chunks, units, &copies);
            ledger.set_holding(chunks, lacking);
        }
        copies.set_room(ledger.room());
        let (jobs, received) = crossbeam_channel::unbounded();
        let calls = Calls::new(copier::DEADLINE)?;
        let shared = Arc::new(TierShared {
            copies,
            ledger: Mutex::new(ledger),
            holdings: Mutex::new(Holdings::of_owner(held)),
            waker: Some(calls.waker()),
            is_shared: sharing.is_some(),
            jobs,
            ..TierShared::new(self, media)
        });
        if !behind.is_empty() {
            shared.send(CopyJob::Behind(behind));
        }
        incomplete.into_iter().for_each(|units| shared.send(CopyJob::Fill(units)));
        let copier = Copier::new(Arc::clone(&shared), calls, received, to_check)?;
        *shared.owned.lock() = Some(Owned::start(&shared, copier, sharing)?);
        Ok(shared)
    }

    /// The ledger of an owner with these tiers and no copies.
    fn new_ledger(&self, media: &[Media]) -> Ledger {
        let capacities: Vec<u64> = media.iter().map(|media| media.capacity_pages).collect();
        let mut ledger = Ledger::new(self.options.policy, self.options.stop, &capacities);
        for (number, media) in (0..).zip(media) {
            ledger.set_space(number, media.space_pages);
            if media.own_files.is_some() {
                ledger.set_own_files(number);
            }
        }
        self.sources.tell(&mut ledger, media.len());
        ledger
    }

    /// If no tier has a file that can be locked, binds the socket's name as the lock. `None`: a tier has such a file,
    /// or the socket cannot be created, which is logged.
    fn claim_memory(&self) -> Result<Option<Listener>> {
        let Some(name) = share::name_in_memory(&self.options, self.identity) else {
            return Ok(None);
        };
        match Listener::on(&name) {
            Ok(listener) => Ok(Some(listener)),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                let text =
                    format!("another process has the tiers of this image, at the socket {name}");
                let hint = "ss -xlp names the process; end it";
                Err(Error::new(ErrorKind::Busy, text).hint(hint))
            }
            Err(error) => {
                tracing::warn!(%error, "cannot create the socket of these tiers: other processes \
                                        do not share them");
                Ok(None)
            }
        }
    }

    /// The table in shared memory and the other data for processes that attach; `None` if the tiers are
    /// not shared, or if the operating system has no shared memory.
    fn sharing(&self, media: &[Media], listener: Option<Listener>) -> Option<(CopyTable, Sharing)> {
        let Opening { units, identity, options, .. } = self;
        let name = match share::name_in_memory(options, *identity) {
            Some(name) => listener.as_ref().map(|_| name),
            None => share::socket_name(options, *identity),
        }?;
        let tiers = media.iter().map(Media::shared).collect::<Option<_>>()?;
        let hello = Hello {
            protocol: share::PROTOCOL,
            dlfs: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uuid: identity.uuid.0,
            generation: identity.generation.0,
            fingerprint: units.fingerprint(),
            policy: format!("{:?}", options.policy),
            tiers,
        };
        let shared = SharedWords::new(CopyTable::num_words(units.len())).and_then(|words| {
            let table = std::iter::once(words.file()).chain(media.iter().filter_map(Media::memory));
            let files = table.map(|file| file.try_clone_to_owned()).collect::<Result<_, _>>()?;
            Ok((CopyTable::over(Box::new(words)), files))
        });
        match shared {
            Ok((copies, files)) => {
                let listener = listener.or_else(|| Listener::on_within_grace(&name));
                Some((copies, Sharing { name, listener, hello, files }))
            }
            Err(error) => {
                tracing::warn!(%error, "cannot create shared memory: other processes cannot use \
                                        these tiers");
                None
            }
        }
    }

    /// Attaches to the process that owns the tiers; `None` if this data set has no owner.
    ///
    /// # Errors
    /// `Unsupported`: the owner runs another version of dlfs. `Busy`: the owner has the tiers for
    /// another image. Errors of [`share::connect`], and of opening the owner's tiers.
    pub(super) fn attach(self: &Arc<Opening>) -> Result<Option<Arc<TierShared>>> {
        let Opening { identity, options, units, .. } = &**self;
        let identity = *identity;
        let Some(name) = share::socket_name(options, identity) else { return Ok(None) };
        let Some((stream, hello, files)) = share::connect(&name)? else { return Ok(None) };
        let mut files = files.into_iter();
        let table =
            files.next().ok_or_else(|| share::failed(ErrorKind::Internal, "it sent no table"))?;
        let is_same = (hello.uuid, hello.generation) == (identity.uuid.0, identity.generation.0)
            && hello.fingerprint == units.fingerprint();
        if !is_same {
            let pid = hello.pid;
            let text = format!("process {pid} uses this tier for another image or generation");
            let path = hello.tiers.first().map(|tier| tier.name.clone()).unwrap_or_default();
            let hint = "use a folder: it holds the tiers of several images";
            return Err(Error::new(ErrorKind::Busy, text).path(path).hint(hint));
        }
        // Rates of other tiers do not apply to these.
        let sources = if share::has_same_tiers(&hello, options) {
            Arc::clone(&self.sources)
        } else {
            Arc::default()
        };
        let words = SharedWords::open(table, CopyTable::num_words(units.len()))?;
        let media = media::attached(self, &hello.tiers, files)?;
        let capacities: Vec<u64> = media.iter().map(|media| media.capacity_pages).collect();
        let shared = Arc::new(TierShared {
            copies: CopyTable::over(Box::new(words)),
            ledger: Mutex::new(Ledger::new(options.policy, options.stop, &capacities)),
            sources,
            attached_to: Some(hello.pid),
            link: Forked::new(Some(Link::start(stream)?)),
            ..TierShared::new(self, media)
        });
        tracing::debug!(owner = hello.pid, "attached to the tiers of another process");
        Ok(Some(shared))
    }

    /// A state without tiers for now: reads go to the origin.
    pub(super) fn none(self: &Arc<Opening>) -> Arc<TierShared> {
        let copies = CopyTable::new(self.units.len());
        Arc::new(TierShared { copies, ..TierShared::new(self, Vec::new()) })
    }
}

/// Restores the place of copies of an earlier run, and reserves their pages. Returns `false` if the unit has a place
/// already, or if the place or the pages do not fit the tier any more.
fn restore(tier: u8, kept: &Kept, units: &Units, ledger: &mut Ledger, copies: &CopyTable) -> bool {
    let space = u64::from(units.get(kept.unit).pages() - u32::from(kept.first));
    let place = kept.page..kept.page.saturating_add(space);
    let is_restored = copies.location(kept.unit).is_none()
        && ledger.restore(tier, place, kept.pages.len().into())
        && copies.place(kept.unit, kept.location(tier));
    if is_restored {
        copies.reserve(kept.unit, kept.pages);
    }
    is_restored
}

/// The pages of `tier` that have copies, in ascending ranges.
fn pages_of(tier: u8, copies: &[(u8, Kept)]) -> Vec<Range<u64>> {
    let of_tier = copies.iter().filter(|(of, _)| *of == tier);
    let runs = of_tier.flat_map(|(_, kept)| kept.location(tier).ranges(kept.pages));
    let mut runs: Vec<Range<u64>> = runs.collect();
    runs.sort_unstable_by_key(|run| run.start);
    runs
}

/// The tiers of one data set, in this process and in the children that it forks.
pub(super) struct Tiers {
    pub(super) opening: Arc<Opening>,
    running: Forked<Running>,
}

/// The state and the thread by which one process uses the tiers.
struct Running {
    /// The first state of a chain: each takeover adds one.
    shared: Arc<TierShared>,
    /// If another process owns the tiers: the thread that waits for its end, and the sender that ends the thread when
    /// it is dropped.
    heir: Mutex<Option<(Sender<Infallible>, Thread)>>,
}

impl Tiers {
    /// Wraps the tiers that `opening` has opened.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn new(opening: Arc<Opening>, shared: Arc<TierShared>) -> Result<Tiers> {
        let running = Running::start(&opening, shared, Duration::ZERO)?;
        Ok(Tiers { opening, running: Forked::new(running) })
    }

    /// The current state of the tiers. A forked child attaches at its first call.
    pub(super) fn latest(&self) -> &Arc<TierShared> {
        let running = self.running.get_or_init(|| {
            // Another thread of this child may be attaching, too; one of the two states is then dropped.
            let known = self.running.inherited().or_else(|| self.running.get());
            let known = known.expect("the process that opened the tiers has its part");
            Running::in_child(&self.opening, known.shared.latest())
        });
        running.shared.latest()
    }

    /// Ends the threads of this process. Reads continue, and no more copies are made.
    pub(super) fn stop(&self) {
        // `get`: a forked child must not touch its parent's part, whose threads do not exist here and may
        // have held a lock.
        self.running.get().into_iter().for_each(Running::stop);
    }
}

impl Running {
    /// Starts the [`Heir`] of a process that does not own the tiers. See [`Heir::yields`].
    ///
    /// # Errors
    /// The thread cannot be started.
    fn start(opening: &Arc<Opening>, shared: Arc<TierShared>, yields: Duration) -> Result<Running> {
        let heir = if shared.is_owner() {
            None
        } else {
            let (running, stopped) = bounded(0);
            let opening = Arc::clone(opening);
            let heir = Heir { opening, shared: Arc::clone(&shared), yields, stopped };
            Some((running, threads::start(HEIR, &Fate::default(), heir, Heir::run)?))
        };
        Ok(Running { shared, heir: Mutex::new(heir) })
    }

    /// Attaches a forked child like any other process, since the inherited state does not follow takeovers. If the
    /// tiers are not shared, the child only reads the existing copies.
    fn in_child(opening: &Arc<Opening>, of_parent: &Arc<TierShared>) -> Running {
        let not_followed = |shared| Running { shared, heir: Mutex::default() };
        if of_parent.waker.is_some() && !of_parent.is_shared {
            return not_followed(Arc::clone(of_parent));
        }
        let attached = opening.attach().unwrap_or_else(|error| {
            tracing::debug!(error = %error.report(), "a forked child is not attached yet");
            None
        });
        let shared = attached.unwrap_or_else(|| opening.none());
        let running = Running::start(opening, Arc::clone(&shared), YIELDS);
        running.unwrap_or_else(|error| {
            tracing::debug!(error = %error.report(), "a forked child follows no takeover");
            not_followed(shared)
        })
    }

    /// Ends the threads, once the owner has the pages that this process has sent.
    fn stop(&self) {
        // First, so that this process does not take over any more.
        if let Some((running, thread)) = self.heir.lock().take() {
            drop(running);
            thread.join_within(JOIN_TIMEOUT);
        }
        let shared = self.shared.latest();
        shared.link().into_iter().for_each(Link::finish);
        // A forked child that reads its parent's state must not touch its threads or its lock.
        let owned = shared.is_owner().then(|| shared.owned.lock().take()).flatten();
        let (copier, owner) = owned.map(|owned| (owned.copier, owned.owner)).unzip();
        // Before the copier ends, so that the copier also writes the pages that attached processes have sent.
        owner.flatten().into_iter().for_each(TierOwner::stop);
        end_copier(shared, copier);
    }
}

impl Drop for Running {
    /// Stops the threads: if two threads of a child create a `Running` at the same time, one of the two is
    /// dropped.
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread of an attached process that waits for the owner's end. The states that it opens succeed `shared`.
struct Heir {
    opening: Arc<Opening>,
    /// The current state of the tiers.
    shared: Arc<TierShared>,
    /// Time after an owner's end in which this process only attaches, and does not become the owner.
    yields: Duration,
    /// Disconnected when the thread must end.
    stopped: Receiver<Infallible>,
}

impl Heir {
    /// Waits for the end of each owner, until this process owns the tiers or the cache is dropped.
    fn run(&mut self) {
        while !self.shared.is_owner() {
            // Without a connection there is no owner to wait for.
            if let Some(ended) = self.shared.link().map(|link| link.ended.clone()) {
                select! {
                    recv(ended) -> _ => {}
                    recv(self.stopped) -> _ => return,
                }
            }
            if !self.succeed() {
                return;
            }
        }
    }

    /// Opens the tiers again, and retries until that succeeds; `false`: the cache is being dropped.
    fn succeed(&mut self) -> bool {
        let mut pause = FIRST_PAUSE;
        let ended = Instant::now();
        let next = loop {
            let opened = if ended.elapsed() < self.yields {
                self.opening.attach()
            } else {
                self.opening.attach_or_own().map(Some)
            };
            match opened {
                Ok(Some(opened)) => break opened,
                Ok(None) => {}
                Err(error) => tracing::debug!(error = %error.report(), "the tiers stay without us"),
            }
            match self.stopped.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(LONGEST_PAUSE),
                _ => return false,
            }
        };
        match next.attached_to {
            Some(owner) => tracing::debug!(owner, "attached to the next owner of the tiers"),
            None => tracing::info!(
                "the owner of the tiers has ended, so this process owns them now: copies in files \
                 are used again, and tiers in memory begin empty"
            ),
        }
        let before = std::mem::replace(&mut self.shared, Arc::clone(&next));
        // Cannot fail: only this thread sets it, once.
        let _ = before.next.set(Arc::clone(&next));
        // Must come after `next.set`: a plan that is set meanwhile is stored first, so either this call or
        // its caller passes it on.
        self.opening.tell_again(&next);
        true
    }
}

/// Name of the copier's thread.
const COPIER: &str = "dlfs-tiers";

/// Timeout of the copier's last iteration, after the last index writes; only a hanging device needs longer.
const LAST_ITERATION: Duration = Duration::from_secs(5);

/// Time in which a forked child, which may end soon, lets other processes take over first.
const YIELDS: Duration = Duration::from_secs(2);

/// Name of the thread that waits for the owner's end.
const HEIR: &str = "dlfs-tiers-heir";

/// Pauses between attempts to open the tiers, which double. The first is short, since another process may be taking
/// over, and will share the tiers soon.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Timeout of joining the heir's thread, which may be opening the tiers.
const JOIN_TIMEOUT: Duration = Duration::from_secs(12);
