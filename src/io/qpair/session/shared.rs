//! The state of sessions that the threads of one process share. The keeper's thread connects and replaces sessions in
//! it (`keeping.rs`). Queue pairs follow the sessions, take queue identifiers, and report sessions that they find
//! broken. [`Durability`] tracks, for each namespace, the completed writes that a lost session may have taken with it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::lifecycle::NUM_SLOTS;
use super::{Attached, Backlog, Failure, Lifecycle, Phase, Session, SessionStats};
use crate::qpair::Namespace;
use dlfs_base::process::Forked;

/// Availability of a session for a queue to join.
#[derive(Debug)]
pub(crate) enum SessionState<P, J> {
    /// The queue can join this session.
    Live(Arc<Session<P, J>>),
    /// No session is live yet: ask again later.
    Pending,
    /// There will be no further session, for this reason.
    Ended(String),
}

/// Counters of one path.
#[derive(Debug, Default)]
struct PathCounters {
    /// I/O commands that ended on the path.
    commands: AtomicU64,
    /// The sum of their latencies.
    latency_ns: AtomicU64,
}

/// Statistics of one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStats {
    /// True if the ANA state is optimized, false if not; `None`: no session is live on the path.
    pub is_optimized: Option<bool>,
    /// I/O commands that ended on the path.
    pub commands: u64,
    /// The sum of their latencies.
    pub latency_ns: u64,
    /// Sessions that were lost on the path.
    pub losses: u64,
}

/// A [`Lifecycle`] behind a lock, and the values that queue pairs read in every turn without the lock.
///
/// Only the process that created it may take the lock: in a child process it may be held for ever.
#[derive(Debug)]
pub struct Shared<P, J> {
    /// Tells the process that created it from a child process.
    process: Forked<()>,
    /// The number of the main session, 0 when none is live. Queue pairs compare it in every turn.
    live: AtomicU64,
    /// The number of the session of each slot, 0 when none is live.
    numbers: [AtomicU64; NUM_SLOTS],
    /// True if two sessions are kept, on two paths.
    pub(super) keeps_two: bool,
    /// True if reads use both sessions.
    pub(super) spreads_reads: bool,
    /// The counters of each path, in the order of the portals.
    paths: Box<[PathCounters]>,
    lifecycle: Mutex<Lifecycle<P, J>>,
    /// Signals that the main session has changed, or that the lifecycle has ended.
    changed: Condvar,
    /// The namespaces as they were first identified. Readable without a lock, also after a fork.
    identity: OnceLock<Arc<[Attached]>>,
    /// For each namespace, the writes that are not durable yet.
    durability: OnceLock<Box<[Durability]>>,
    /// Set once some session had neither both digests nor TLS.
    undigested: AtomicBool,
    /// Transfers whose data digest was wrong.
    pub(super) damaged: AtomicU64,
    /// Commands that were issued again.
    pub(super) retried: AtomicU64,
    /// True if there are several paths.
    has_other_paths: bool,
    /// Wakes the keeper's thread.
    wake: fn(),
}

impl<P: Clone + fmt::Display, J> Shared<P, J> {
    /// Shares `lifecycle` among the threads of the calling process; `wake` wakes the keeper's thread.
    pub fn new(lifecycle: Lifecycle<P, J>, has_other_paths: bool, wake: fn()) -> Shared<P, J> {
        let seen = lifecycle.identity().cloned();
        let shared = Shared {
            process: Forked::new(()),
            live: AtomicU64::new(0),
            numbers: Default::default(),
            keeps_two: lifecycle.keeps_two,
            spreads_reads: lifecycle.spreads_reads,
            paths: lifecycle.portals.iter().map(|_| PathCounters::default()).collect(),
            lifecycle: Mutex::new(lifecycle),
            changed: Condvar::new(),
            identity: OnceLock::new(),
            durability: OnceLock::new(),
            undigested: AtomicBool::new(false),
            damaged: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            has_other_paths,
            wake,
        };
        if let Some(seen) = seen {
            shared.note_identity(&seen);
        }
        shared
    }

    /// Publishes the namespaces as they were first identified.
    fn note_identity(&self, seen: &Arc<[Attached]>) {
        self.durability.get_or_init(|| seen.iter().map(|_| Durability::default()).collect());
        self.identity.get_or_init(|| Arc::clone(seen));
    }

    /// Returns whether the calling process created it.
    pub fn is_ours(&self) -> bool {
        self.process.is_ours()
    }

    /// Runs `f` under the lock and publishes its changes.
    pub fn with<R>(&self, f: impl FnOnce(&mut Lifecycle<P, J>) -> R) -> R {
        let mut lifecycle = self.lock();
        let result = f(&mut lifecycle);
        if let Some(identity) = lifecycle.identity() {
            self.note_identity(identity);
        }
        if !lifecycle.always_digested {
            self.undigested.store(true, Ordering::Release);
        }
        for (slot, published) in self.numbers.iter().enumerate() {
            let number = lifecycle.live_in(slot).map_or(0, |session| session.number);
            published.store(number, Ordering::Release);
        }
        let number = lifecycle.live().map_or(0, |session| session.number);
        let before = self.live.swap(number, Ordering::SeqCst);
        if before != number && before != 0 {
            self.durability.get().into_iter().flatten().for_each(Durability::session_lost);
        }
        if before != number || lifecycle.is_dead() {
            self.changed.notify_all();
        }
        result
    }

    /// Waits until `wanted` returns a value, for at most `limit`.
    pub fn wait<R>(
        &self,
        limit: Duration,
        mut wanted: impl FnMut(&Lifecycle<P, J>) -> Option<R>,
    ) -> Option<R> {
        let mut found = None;
        let is_missing = |lifecycle: &mut Lifecycle<P, J>| {
            found = wanted(lifecycle);
            found.is_none()
        };
        let waited = self.changed.wait_timeout_while(self.lock(), limit, is_missing);
        drop(waited);
        found
    }

    /// The number of the main session, 0 when none is live.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    /// The number of the session of a slot, 0 when none is live.
    pub(super) fn number_in(&self, slot: usize) -> u64 {
        self.numbers[slot].load(Ordering::Acquire)
    }

    /// The current phase.
    pub fn phase(&self) -> Phase<P, J> {
        self.lock().phase()
    }

    /// The last failure, while no session is live; `None` also in a child process, which must not take the lock.
    pub(crate) fn last_failure(&self) -> Option<Failure> {
        match self.is_ours().then(|| self.phase())? {
            Phase::Lost(failure) | Phase::Dead(failure) => Some(failure),
            Phase::Opening | Phase::Live(_) => None,
        }
    }

    /// The namespaces as they were first identified.
    pub fn identity(&self) -> Option<&Arc<[Attached]>> {
        self.identity.get()
    }

    /// The current properties of the namespace at index `ns_index`.
    pub fn namespace(&self, ns_index: usize) -> Option<Namespace> {
        let namespace_of = |attached: &[Attached]| Some(attached.get(ns_index)?.namespace.clone());
        // A child process uses the inherited identity, because it must not take the parent's lock.
        let live = self.is_ours().then(|| self.lock().live().cloned()).flatten();
        live.map_or_else(
            || namespace_of(self.identity.get()?),
            |session| namespace_of(&session.namespaces),
        )
    }

    /// Returns whether all sessions so far had both digests, or TLS in their place.
    pub(crate) fn was_always_digested(&self) -> bool {
        !self.undigested.load(Ordering::Acquire)
    }

    /// The writes to the namespace at index `ns_index` that are not durable yet.
    ///
    /// # Panics
    /// The namespaces were never identified, or the index is out of range.
    pub(crate) fn durability(&self, ns_index: usize) -> &Durability {
        &self.durability.get().expect("seen before any I/O")[ns_index]
    }

    /// The session to join, if one is live; otherwise `backlog` records the last failure.
    pub(crate) fn session_state(&self, backlog: &mut Backlog) -> SessionState<P, J> {
        match self.phase() {
            Phase::Live(session) => SessionState::Live(session),
            Phase::Opening => SessionState::Pending,
            Phase::Lost(failure) => {
                backlog.last_failure = Some(failure);
                SessionState::Pending
            }
            Phase::Dead(failure) => SessionState::Ended(failure.message),
        }
    }

    /// The session of a slot, if one is live.
    pub(super) fn session_in(&self, slot: usize) -> Option<Arc<Session<P, J>>> {
        self.lock().live_in(slot).cloned()
    }

    /// Adds I/O commands that ended on a path, and the sum of their latencies.
    pub(super) fn add_done(&self, path: usize, (commands, latency_ns): (u64, u64)) {
        if commands > 0 {
            self.paths[path].commands.fetch_add(commands, Ordering::Relaxed);
            self.paths[path].latency_ns.fetch_add(latency_ns, Ordering::Relaxed);
        }
    }

    /// The portal and the statistics of each path.
    pub fn path_stats(&self) -> Vec<(P, PathStats)> {
        let lifecycle = self.lock();
        let live: Vec<&Arc<Session<P, J>>> =
            (0..NUM_SLOTS).filter_map(|slot| lifecycle.live_in(slot)).collect();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let portals = lifecycle.portals.iter().zip(&self.paths).enumerate();
        let path_stats = |(path, (portal, counters)): (usize, (&P, &PathCounters))| {
            let session = live.iter().find(|session| session.path == path);
            let stats = PathStats {
                is_optimized: session.map(|session| session.is_optimized.load(Ordering::Relaxed)),
                commands: load(&counters.commands),
                latency_ns: load(&counters.latency_ns),
                losses: lifecycle.losses(path),
            };
            (portal.clone(), stats)
        };
        portals.map(path_stats).collect()
    }

    /// The statistics so far.
    pub fn stats(&self) -> SessionStats {
        SessionStats {
            damaged: self.damaged.load(Ordering::Relaxed),
            retried: self.retried.load(Ordering::Relaxed),
            ..self.lock().stats()
        }
    }

    /// The reason for the end of session `number`; `None` while the session is live in a slot.
    pub(crate) fn why_over(&self, number: u64) -> Option<String> {
        let reason = || match self.phase() {
            Phase::Lost(failure) | Phase::Dead(failure) => failure.message,
            Phase::Opening | Phase::Live(_) => "the controller was replaced".to_owned(),
        };
        (0..NUM_SLOTS).all(|slot| number != self.number_in(slot)).then(reason)
    }

    /// Ends session `number` because a queue pair found it broken: see [`Lifecycle::reset`].
    pub(crate) fn request_reset(&self, number: u64, reason: Failure) {
        // In a child process the lock may be held for ever, and the session belongs to the parent.
        if self.is_ours() && self.with(|lifecycle| lifecycle.reset(number, reason)) {
            (self.wake)();
        }
    }

    /// Leaves a session whose path does not accept a command, if there is another path.
    pub(super) fn avoid_path(&self, session: &Session<P, J>, reason: Failure) {
        if self.has_other_paths {
            session.underway.leave();
            self.request_reset(session.number, reason);
        }
    }

    /// Records that `num` writes and flushes have left the connections of a session. The lifecycle may wait for that
    /// before it closes the controller.
    pub(super) fn writes_ended(&self, session: &Session<P, J>, num: usize) {
        if session.underway.end(num) && self.is_ours() {
            (self.wake)();
        }
    }

    /// Records that a write of session `number` to the namespace at index `ns_index` has completed and may be in
    /// the target's cache.
    pub(super) fn wrote(&self, number: u64, ns_index: usize) {
        let durability = self.durability(ns_index);
        durability.wrote();
        // If the session has ended meanwhile, this write may be lost with the earlier ones of the session.
        if self.live.load(Ordering::SeqCst) != number {
            durability.owe_report();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lifecycle<P, J>> {
        // No panic can leave the lifecycle half changed.
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tracks whether a flush can still make all completed writes durable.
///
/// A completed write may be in the target's cache. When a session is lost, the cache may be lost too. A flush
/// on the next session would say nothing about that write, so that flush must fail.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    /// The number of writes completed so far.
    written: AtomicU64,
    /// The number of the oldest writes that a flush has covered, or that were lost.
    settled: AtomicU64,
    /// True if writes were lost and no flush has reported it yet.
    lost: AtomicBool,
}

impl Durability {
    /// Records a completed write.
    pub(crate) fn wrote(&self) {
        // Ordered with the end of the session: see `Shared::wrote`.
        self.written.fetch_add(1, Ordering::SeqCst);
    }

    /// Starts a flush; returns the number of the writes that it covers, for [`Durability::flushed`].
    pub(crate) fn flush_begins(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Records a successful flush.
    pub(crate) fn flushed(&self, covered: u64) {
        self.settled.fetch_max(covered, Ordering::Relaxed);
    }

    /// Records a flush that failed with its session. The failure reports the loss of the writes that it would
    /// have covered; returns whether there are any.
    pub(crate) fn flush_failed(&self, covered: u64) -> bool {
        let covers_lost = self.settled.fetch_max(covered, Ordering::Relaxed) < covered;
        let is_whole = self.written.load(Ordering::Relaxed) == covered;
        covers_lost | (is_whole && self.take_lost())
    }

    /// Records a loss that a flush must report: nobody saw the earlier report, or a write completed after its session.
    pub(crate) fn owe_report(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Records the loss of the session, and of the writes that were not flushed.
    pub(crate) fn session_lost(&self) {
        let written = self.written.load(Ordering::SeqCst);
        if self.settled.fetch_max(written, Ordering::Relaxed) < written {
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the record of lost writes; returns whether there was one.
    pub(crate) fn take_lost(&self) -> bool {
        self.lost.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_after_a_lost_session_reports_only_writes_that_no_flush_covered() {
        let durability = Durability::default();
        durability.session_lost();
        assert!(!durability.take_lost());
        durability.wrote();
        let covered = durability.flush_begins();
        durability.flushed(covered);
        durability.session_lost();
        assert!(!durability.take_lost());
        durability.wrote();
        let covered = durability.flush_begins();
        durability.wrote(); // after the flush began
        durability.flushed(covered);
        durability.session_lost();
        assert!(durability.take_lost());
        assert!(!durability.take_lost(), "told once");
        durability.session_lost();
        assert!(!durability.take_lost());
    }

    #[test]
    fn writes_that_a_failed_flush_reported_are_not_reported_again() {
        for loss_is_seen_first in [false, true] {
            let durability = Durability::default();
            durability.wrote();
            let covered = durability.flush_begins();
            if loss_is_seen_first {
                durability.session_lost();
                assert!(durability.flush_failed(covered));
            } else {
                assert!(durability.flush_failed(covered));
                durability.session_lost();
            }
            assert!(!durability.take_lost());
            durability.owe_report();
            assert!(durability.take_lost());
        }
        let durability = Durability::default();
        let covered = durability.flush_begins();
        durability.wrote(); // not covered
        durability.session_lost();
        assert!(!durability.flush_failed(covered));
        assert!(durability.take_lost());
    }
}
