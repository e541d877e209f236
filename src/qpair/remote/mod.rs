//! A remote namespace, whatever its transport: its paths, its present session, its fate.
//!
//! A *session* is one association with a controller. The keeper thread brings it up, keeps it alive and
//! replaces it when it is lost; queue pairs join it, and issue their reads again in the next. A
//! [`Transport`] says how a controller is reached; everything else is the same for all and stands here.
//!
//! The keeper thread writes a [`Remote`], queue pairs read it. A child process gets one of its own,
//! because a lock of the parent's may be held for ever in the child's copy.
//!
//! Invariants:
//! - A write or flush that was sent is never sent again, unless the controller said that it did nothing.
//! - A flush succeeds only if no write that it should cover was lost with an earlier session.
//! - A session is only ever replaced by one on the same namespace: same identifier, size, block length.
//! - Nothing waits without a limit.
//!
//! Read this file first, then `keeper.rs` (how sessions come and go), `joining.rs` (how a queue pair
//! finds one) and `backlog.rs` (what becomes of an I/O when one goes).

mod backlog;
mod backoff;
mod durability;
mod identity;
mod joining;
pub(in crate::qpair) mod keeper;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

pub(in crate::qpair) use backlog::{Attempt, Backlog};
use durability::Durability;
pub(in crate::qpair) use joining::Entrance;

pub(in crate::qpair) use super::session::{Facts, Failure, HostIdentity, Turn};
use super::{ConnectOptions, Namespace, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::process::process_id;
use crate::units::Nsid;

/// A way of reaching controllers.
pub(in crate::qpair) trait Transport: Sized + Send + Sync + 'static {
    /// One way to the namespace; prints as what a connection goes to.
    type Portal: Portal;
    /// The admin queue of a controller, on its way up or up.
    type Admin: Admin<Self> + Send;
    /// What a queue pair needs in order to join a session.
    type Joint: Send + Sync;

    /// What [`Admin::poll`] wants as scratch memory.
    const SCRATCH_LEN_BYTES: usize;

    /// Where the keepers of this transport are found.
    fn keepers() -> &'static keeper::Keepers<Self>;

    /// The engine, for people: `tcp (header digest)`.
    fn engine(remote: &Remote<Self>, facts: &Facts) -> String;
}

/// One way to the namespace: an address that a name stands for, on one of the user's paths.
pub(in crate::qpair) trait Portal: Clone + fmt::Display + Send + Sync {
    /// The address, as the user knows it.
    fn address(&self) -> String;
}

/// An admin queue. Nothing here blocks for long, so one thread can keep any number of controllers.
pub(in crate::qpair) trait Admin<T: Transport>: Sized {
    /// Begins to connect.
    fn start(now: Instant, remote: &Remote<T>, portal: &T::Portal) -> Result<Self, Failure>;

    /// Moves on. An error is the end of this controller.
    fn poll(&mut self, now: Instant, scratch: &mut [u8]) -> Result<Turn, Failure>;

    /// What has been learnt; all of it once a turn was [`Turn::Ready`].
    fn facts(&self) -> &Facts;

    /// What queue pairs join the session with, once a turn was [`Turn::Ready`].
    fn joint(&self) -> T::Joint;

    /// What is being done, for people.
    fn stage(&self) -> &'static str;

    /// When to call [`Admin::poll`] although nothing moves.
    fn poll_timeout(&self) -> Option<Instant>;

    /// What to sleep on, if there is such a thing.
    fn wait(&self) -> Option<Wait<'_>>;

    /// Called before it is dropped because of a failure, not because nobody needs it any more.
    fn give_up(&mut self, _failure: &Failure) {}
}

/// What handles on one remote namespace share.
pub(in crate::qpair) struct Remote<T: Transport> {
    pid: u32,
    pub(in crate::qpair) options: ConnectOptions,
    pub(in crate::qpair) host: HostIdentity,
    /// Never empty; the user's order.
    pub(in crate::qpair) portals: Vec<T::Portal>,
    /// The session that is live, 0 when none is. Queue pairs compare it each turn.
    live: AtomicU64,
    state: Mutex<State<T>>,
    changed: Condvar,
    /// What the namespace was when it was first seen. Readable without a lock, also after a fork.
    identity: OnceLock<Namespace>,
    durability: Durability,
    /// Whether there was a session without both digests.
    undigested: AtomicBool,
    /// What takes its place in a child process.
    successor: OnceLock<Arc<Remote<T>>>,
}

/// One association with a controller, from its becoming usable to its loss.
pub(in crate::qpair) struct Session<T: Transport> {
    pub(in crate::qpair) number: u64,
    pub(in crate::qpair) portal: T::Portal,
    pub(in crate::qpair) joint: T::Joint,
    pub(in crate::qpair) nsid: Nsid,
    pub(in crate::qpair) num_io_queues: u16,
    /// Entries of each I/O queue.
    pub(in crate::qpair) queue_entries: u16,
    pub(in crate::qpair) has_volatile_write_cache: bool,
    pub(in crate::qpair) namespace: Namespace,
    /// Whether an I/O has succeeded on it: a session that fails before that is not worth hurrying
    /// for.
    pub(in crate::qpair) proven: AtomicBool,
}

/// How a remote is doing.
pub(in crate::qpair) enum Phase<T: Transport> {
    /// Being reached for the first time.
    Opening,
    Live(Arc<Session<T>>),
    /// Being reached again; the last failure.
    Lost(Failure),
    /// Given up, for good.
    Dead(Failure),
}

// Not derived: that would ask it of the transport.
impl<T: Transport> Clone for Phase<T> {
    fn clone(&self) -> Phase<T> {
        match self {
            Phase::Opening => Phase::Opening,
            Phase::Live(session) => Phase::Live(Arc::clone(session)),
            Phase::Lost(failure) => Phase::Lost(failure.clone()),
            Phase::Dead(failure) => Phase::Dead(failure.clone()),
        }
    }
}

struct State<T: Transport> {
    phase: Phase<T>,
    /// Queue identifiers of the present session that nobody uses, the longest unused first.
    free_qids: std::collections::VecDeque<u16>,
    num_pairs: usize,
    /// Why a queue pair has ended the last session, until the keeper replaces it.
    reset: Option<Failure>,
}

impl<T: Transport> Remote<T> {
    pub(in crate::qpair) fn new(
        options: ConnectOptions,
        portals: Vec<T::Portal>,
        seen: Option<Namespace>,
    ) -> Arc<Remote<T>> {
        assert!(!portals.is_empty(), "a namespace has at least one address");
        let phase = match seen {
            None => Phase::Opening,
            Some(_) => Phase::Lost(Failure::new(ErrorKind::Disconnected, "not connected yet")),
        };
        let identity = OnceLock::new();
        if let Some(seen) = seen {
            identity.get_or_init(|| seen);
        }
        Arc::new(Remote {
            pid: process_id(),
            host: HostIdentity::new(&options),
            options,
            portals,
            live: AtomicU64::new(0),
            state: Mutex::new(State {
                phase,
                free_qids: std::collections::VecDeque::new(),
                num_pairs: 0,
                reset: None,
            }),
            changed: Condvar::new(),
            identity,
            durability: Durability::default(),
            undigested: AtomicBool::new(false),
            successor: OnceLock::new(),
        })
    }

    /// Whether this remote belongs to the calling process.
    pub(in crate::qpair) fn is_ours(&self) -> bool {
        self.pid == process_id()
    }

    /// The remote for the calling process: this one, or after a fork another that connects anew.
    pub(in crate::qpair) fn for_this_process(self: &Arc<Remote<T>>) -> Result<Arc<Remote<T>>> {
        let pid = process_id();
        let mut remote = self;
        while remote.pid != pid {
            remote = match remote.successor.get() {
                Some(next) => next,
                None => remote.make_successor()?,
            };
        }
        Ok(Arc::clone(remote))
    }

    fn make_successor(&self) -> Result<&Arc<Remote<T>>> {
        let keeper = T::keepers().of_this_process()?;
        let seen = self.identity.get().cloned();
        let next = Remote::new(self.options.clone(), self.portals.clone(), seen);
        // Another thread may have been faster: then its remote is the one.
        if self.successor.set(Arc::clone(&next)).is_ok() {
            keeper.keep(&next);
        }
        Ok(self.successor.get().expect("set above or by another thread"))
    }

    /// How the user knows it.
    pub(in crate::qpair) fn name(&self) -> String {
        self.portals[0].address()
    }

    /// The number of the live session, 0 when there is none.
    pub(in crate::qpair) fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    pub(in crate::qpair) fn phase(&self) -> Phase<T> {
        self.lock().phase.clone()
    }

    /// What the namespace was when it was first seen.
    pub(in crate::qpair) fn identity(&self) -> Option<&Namespace> {
        self.identity.get()
    }

    /// What the namespace is now.
    pub(in crate::qpair) fn namespace(&self) -> Option<Namespace> {
        match &self.lock().phase {
            Phase::Live(session) => Some(session.namespace.clone()),
            _ => self.identity.get().cloned(),
        }
    }

    /// Waits until the namespace is there or given up, at most until `deadline`.
    pub(in crate::qpair) fn wait_open(&self, deadline: Instant) -> Result<Namespace> {
        let mut state = self.lock();
        loop {
            match &state.phase {
                Phase::Live(session) => return Ok(session.namespace.clone()),
                Phase::Dead(failure) => return Err(failure.to_error(&self.name())),
                Phase::Opening | Phase::Lost(_) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let error = Error::new(ErrorKind::TimedOut, "connecting took too long");
                return Err(error.target(self.name()));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Counts one queue pair more.
    ///
    /// # Errors
    /// `Refused`: each I/O queue that the target granted is in use.
    pub(in crate::qpair) fn add_pair(&self) -> Result<()> {
        let mut state = self.lock();
        if let Phase::Live(session) = &state.phase
            && state.num_pairs >= usize::from(session.num_io_queues)
        {
            let message = format!("all {} I/O queues are in use", session.num_io_queues);
            let error = Error::new(ErrorKind::Refused, message).target(self.name());
            return Err(error.hint("ask for more with --nr-io-queues, if the target grants more"));
        }
        state.num_pairs += 1;
        Ok(())
    }

    /// I/O queues that the live session grants, or that will be asked for.
    pub(in crate::qpair) fn num_io_queues(&self) -> usize {
        match &self.lock().phase {
            Phase::Live(session) => session.num_io_queues.into(),
            _ => self.options.nr_io_queues.into(),
        }
    }

    pub(in crate::qpair) fn remove_pair(&self) {
        self.lock().num_pairs -= 1;
    }

    /// A queue identifier of session `number`; `None` when it is over or grants no more.
    pub(in crate::qpair) fn take_qid(&self, number: u64) -> Option<u16> {
        let mut state = self.lock();
        (self.live() == number).then(|| state.free_qids.pop_front()).flatten()
    }

    /// Gives a queue identifier of session `number` back.
    pub(in crate::qpair) fn give_qid(&self, number: u64, qid: u16) {
        let mut state = self.lock();
        if self.live() == number {
            state.free_qids.push_back(qid);
        }
    }

    /// Why session `number` is no longer the one to use; `None`: it is.
    pub(in crate::qpair) fn why_over(&self, number: u64) -> Option<String> {
        let reason = || match self.phase() {
            Phase::Lost(failure) | Phase::Dead(failure) => failure.message,
            Phase::Opening | Phase::Live(_) => "the controller was replaced".to_owned(),
        };
        (number != self.live()).then(reason)
    }

    /// Ends session `number`, which does not work for a queue pair; the keeper replaces it.
    ///
    /// It is over at once, not when the keeper gets to run: a queue pair that joined it again could
    /// reach a target that has restarted, whose flush says nothing about writes before that.
    pub(in crate::qpair) fn request_reset(&self, number: u64, reason: Failure) {
        if !self.is_ours() {
            return; // the lock may be held for ever, and the session is not this process's
        }
        let mut state = self.lock();
        if self.live() == number {
            self.end_session();
            state.phase = Phase::Lost(reason.clone());
            state.reset = Some(reason);
            drop(state);
            T::keepers().wake();
        }
    }

    /// A write of session `number` has completed, and may be in the target's cache.
    fn wrote(&self, number: u64) {
        self.durability.wrote();
        // Told too late for a session that has ended meanwhile: lost with it like those before.
        if self.live.load(Ordering::SeqCst) != number {
            self.durability.session_lost();
        }
    }

    /// There is no live session any more. The caller holds the lock.
    fn end_session(&self) {
        if self.live.swap(0, Ordering::SeqCst) != 0 {
            self.durability.session_lost();
        }
    }

    /// Whether all sessions so far had both digests.
    pub(in crate::qpair) fn was_always_digested(&self) -> bool {
        !self.undigested.load(Ordering::Acquire)
    }

    /// What has been written and not made durable.
    pub(in crate::qpair) fn durability(&self) -> &Durability {
        &self.durability
    }

    // What the keeper does.

    /// Why the last session shall be replaced, if a queue pair has asked for it.
    pub(in crate::qpair) fn take_reset(&self) -> Option<Failure> {
        self.lock().reset.take()
    }

    /// A session has begun.
    ///
    /// # Errors
    /// `Stale`: this is not the namespace that was here before.
    pub(in crate::qpair) fn publish(
        &self,
        number: u64,
        portal: &T::Portal,
        joint: T::Joint,
        facts: &Facts,
    ) -> Result<Arc<Session<T>>, Failure> {
        let namespace = self.describe(facts);
        check_identity(self.identity.get_or_init(|| namespace.clone()), &namespace)?;
        let session = Arc::new(Session {
            number,
            portal: portal.clone(),
            joint,
            nsid: facts.nsid,
            num_io_queues: facts.num_io_queues,
            queue_entries: namespace.queue_depth + 1,
            has_volatile_write_cache: facts.has_volatile_write_cache,
            namespace,
            proven: AtomicBool::new(false),
        });
        if !(facts.hdr_digest && facts.data_digest) {
            self.undigested.store(true, Ordering::Release);
        }
        let mut state = self.lock();
        state.free_qids = (1..=session.num_io_queues).collect();
        state.phase = Phase::Live(Arc::clone(&session));
        state.reset = None;
        self.live.store(number, Ordering::Release);
        drop(state);
        self.changed.notify_all();
        Ok(session)
    }

    /// The namespace was identified again while the session is live. One that has grown is used as it
    /// was.
    ///
    /// # Errors
    /// `Stale`: it is another, or has shrunk.
    pub(in crate::qpair) fn check(&self, facts: &Facts) -> Result<(), Failure> {
        let seen = self.identity.get().expect("a live session has published it");
        let mut now = self.describe(facts);
        now.num_blocks = now.num_blocks.min(seen.num_blocks);
        check_identity(seen, &now)
    }

    /// The live session is gone, or another attempt has failed.
    pub(in crate::qpair) fn lose(&self, failure: Failure) {
        let mut state = self.lock();
        self.end_session();
        if !matches!(state.phase, Phase::Opening) {
            state.phase = Phase::Lost(failure);
        }
    }

    /// There will be no session any more.
    pub(in crate::qpair) fn give_up(&self, failure: Failure) {
        self.live.store(0, Ordering::Release);
        self.lock().phase = Phase::Dead(failure);
        self.changed.notify_all();
    }

    fn describe(&self, facts: &Facts) -> Namespace {
        let limit = facts.max_transfer_bytes.unwrap_or(u32::MAX).min(MAX_TRANSFER_BYTES);
        let limit = limit.min(facts.block_len_bytes.saturating_mul(MAX_BLOCKS));
        let entries = u32::from(self.options.queue_size).clamp(2, MAX_QUEUE_ENTRIES);
        let entries = entries.min(facts.max_entries).max(2);
        Namespace {
            address: self.name(),
            block_len_bytes: facts.block_len_bytes,
            num_blocks: facts.num_blocks,
            max_transfer_bytes: limit,
            queue_depth: (entries - 1) as u16,
            nguid: facts.nguid,
            read_only: facts.write_protected || !self.options.writable,
            engine: T::engine(self, facts),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while it holds the lock, and no change leaves the state half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Transport> Drop for Remote<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            T::keepers().wake(); // to notice that nobody needs the controller any more
        }
    }
}

impl Namespace {
    /// What a queue pair calls its namespace in a session that calls it `now`. Callers have cut their I/O
    /// to what it took before, so it never takes less at once: the backlog cuts what a session does not take.
    pub(super) fn in_session(&self, now: &Namespace) -> Namespace {
        let max_transfer_bytes = now.max_transfer_bytes.max(self.max_transfer_bytes);
        Namespace { max_transfer_bytes, ..now.clone() }
    }
}

/// Compares a namespace with the one that was there first.
fn check_identity(seen: &Namespace, now: &Namespace) -> Result<(), Failure> {
    let same = seen.nguid == now.nguid
        && seen.block_len_bytes == now.block_len_bytes
        && seen.num_blocks == now.num_blocks;
    if same {
        return Ok(());
    }
    let describe = |n: &Namespace| {
        let id: String = n.nguid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("NGUID {id}, {} blocks of {} bytes", n.num_blocks, n.block_len_bytes)
    };
    let message = format!(
        "another namespace has taken its place: expected {}, found {}",
        describe(seen),
        describe(now)
    );
    Err(Failure::new(ErrorKind::Stale, message).hint("open it again"))
}

/// Larger transfers gain nothing, and some targets end the connection over them although they state
/// no limit.
const MAX_TRANSFER_BYTES: u32 = 1 << 20;
/// What the 0-based 16-bit field of a read or write can say.
const MAX_BLOCKS: u32 = 1 << 16;
/// Most entries of a queue here: the CID has 12 bits for the slot.
const MAX_QUEUE_ENTRIES: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace {
            address: "test".into(),
            block_len_bytes: 512,
            num_blocks: 100,
            max_transfer_bytes: 4096,
            queue_depth: 1,
            nguid: [7; 16],
            read_only: true,
            engine: "tcp".into(),
        }
    }

    #[test]
    fn a_namespace_of_another_identity_size_or_block_length_is_refused_naming_both() {
        assert_eq!(check_identity(&namespace(), &namespace()), Ok(()));
        let other = |edit: fn(&mut Namespace)| {
            let mut other = namespace();
            edit(&mut other);
            check_identity(&namespace(), &other).unwrap_err()
        };
        let failure = other(|n| n.nguid = [8; 16]);
        assert_eq!(failure.kind, ErrorKind::Stale);
        assert!(failure.message.contains(&"07".repeat(16)), "{failure}");
        assert!(failure.message.contains(&"08".repeat(16)), "{failure}");
        assert!(other(|n| n.num_blocks = 99).message.contains("found NGUID"));
        assert!(other(|n| n.block_len_bytes = 4096).message.contains("4096"));
    }
}
