//! What the threads of one process share of the sessions of a set of namespaces.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::durability::Durability;
use super::{Attached, Backlog, Failure, Lifecycle, Phase, Session};
use crate::process::process_id;
use crate::qpair::Namespace;

/// Whether there is a session to join.
#[derive(Debug)]
pub enum Entrance<P, J> {
    /// This one.
    Open(Arc<Session<P, J>>),
    /// Not now: look again.
    NotYet,
    /// There will be none any more, for this reason.
    Closed(String),
}

/// A [`Lifecycle`] and the lock around it, with what queue pairs look at in every turn beside the lock.
///
/// Its lock is for the process that made it: in a child it may be held for ever.
#[derive(Debug)]
pub struct Shared<P, J> {
    pid: u32,
    /// The session that is live, 0 when none is. Queue pairs compare it each turn.
    live: AtomicU64,
    lifecycle: Mutex<Lifecycle<P, J>>,
    changed: Condvar,
    /// What the namespaces were when they were first seen. Readable without a lock, also after a fork.
    identity: OnceLock<Arc<[Attached]>>,
    /// Of each namespace, what has been written and not made durable.
    durability: OnceLock<Box<[Durability]>>,
    /// Whether there was a session without both digests.
    undigested: AtomicBool,
    has_other_paths: bool,
    /// Has whoever owns the controller look.
    wake: fn(),
}

impl<P: Clone + fmt::Display, J> Shared<P, J> {
    /// Shares `lifecycle` in the calling process; `wake` has whoever owns the controller look at it.
    pub fn new(lifecycle: Lifecycle<P, J>, has_other_paths: bool, wake: fn()) -> Shared<P, J> {
        let seen = lifecycle.identity().cloned();
        let shared = Shared {
            pid: process_id(),
            live: AtomicU64::new(0),
            lifecycle: Mutex::new(lifecycle),
            changed: Condvar::new(),
            identity: OnceLock::new(),
            durability: OnceLock::new(),
            undigested: AtomicBool::new(false),
            has_other_paths,
            wake,
        };
        if let Some(seen) = seen {
            shared.note_identity(&seen);
        }
        shared
    }

    fn note_identity(&self, seen: &Arc<[Attached]>) {
        self.durability.get_or_init(|| seen.iter().map(|_| Durability::default()).collect());
        self.identity.get_or_init(|| Arc::clone(seen));
    }

    /// Whether it belongs to the calling process.
    pub fn is_ours(&self) -> bool {
        self.pid == process_id()
    }

    /// The process that it belongs to.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Does something with the sessions.
    pub fn with<R>(&self, f: impl FnOnce(&mut Lifecycle<P, J>) -> R) -> R {
        let mut lifecycle = self.lock();
        let result = f(&mut lifecycle);
        if let Some(identity) = lifecycle.identity() {
            self.note_identity(identity);
        }
        if !lifecycle.was_always_digested() {
            self.undigested.store(true, Ordering::Release);
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

    /// Waits until the sessions are as `wanted` says, at most so long.
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

    /// The number of the live session, 0 when there is none.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    /// How it is doing.
    pub fn phase(&self) -> Phase<P, J> {
        self.lock().phase()
    }

    /// What the namespaces were when they were first seen.
    pub fn identity(&self) -> Option<&Arc<[Attached]>> {
        self.identity.get()
    }

    /// What the namespace at this place is now.
    pub fn namespace(&self, place: usize) -> Option<Namespace> {
        let now = self.lock().live().map(|session| session.namespaces[place].namespace.clone());
        now.or_else(|| Some(self.identity.get()?.get(place)?.namespace.clone()))
    }

    /// Whether all sessions so far had both digests.
    pub fn was_always_digested(&self) -> bool {
        !self.undigested.load(Ordering::Acquire)
    }

    /// What has been written to the namespace at this place and not made durable.
    ///
    /// # Panics
    /// The namespaces were never seen, or there is no such place.
    pub fn durability(&self, place: usize) -> &Durability {
        &self.durability.get().expect("seen before any I/O")[place]
    }

    /// The session to join, if one is live; `backlog` keeps why there is none.
    pub fn entrance(&self, backlog: &mut Backlog) -> Entrance<P, J> {
        match self.phase() {
            Phase::Live(session) => Entrance::Open(session),
            Phase::Opening => Entrance::NotYet,
            Phase::Lost(failure) => {
                backlog.note(failure);
                Entrance::NotYet
            }
            Phase::Dead(failure) => Entrance::Closed(failure.message),
        }
    }

    /// A queue identifier of session `number`; `None` when it is over or grants no more.
    pub fn take_qid(&self, number: u64) -> Option<u16> {
        self.with(|lifecycle| lifecycle.take_qid(number))
    }

    /// Gives a queue identifier of session `number` back.
    pub fn give_qid(&self, number: u64, qid: u16) {
        self.with(|lifecycle| lifecycle.give_qid(number, qid));
    }

    /// Counts one queue pair less.
    pub fn remove_pair(&self) {
        self.with(Lifecycle::remove_pair);
    }

    /// Why session `number` is no longer the one to use; `None`: it is.
    pub fn why_over(&self, number: u64) -> Option<String> {
        let reason = || match self.phase() {
            Phase::Lost(failure) | Phase::Dead(failure) => failure.message,
            Phase::Opening | Phase::Live(_) => "the controller was replaced".to_owned(),
        };
        (number != self.live()).then(reason)
    }

    /// Ends session `number`, which does not work for a queue pair: see [`Lifecycle::reset`].
    pub fn request_reset(&self, number: u64, reason: Failure) {
        // In a child the lock may be held for ever, and the session is not this process's.
        if self.is_ours() && self.with(|lifecycle| lifecycle.reset(number, reason)) {
            (self.wake)();
        }
    }

    /// The same, where there is another path that may be better.
    pub(super) fn avoid_path(&self, number: u64, reason: Failure) {
        if self.has_other_paths {
            self.request_reset(number, reason);
        }
    }

    /// A write of session `number` to the namespace at this place has completed, and may be in the target's
    /// cache.
    pub(super) fn wrote(&self, number: u64, place: usize) {
        let durability = self.durability(place);
        durability.wrote();
        // Told too late for a session that has ended meanwhile: lost with it like those before.
        if self.live.load(Ordering::SeqCst) != number {
            durability.session_lost();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lifecycle<P, J>> {
        // No change leaves it half done.
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
