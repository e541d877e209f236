//! What all handles on one remote namespace share: its paths, its present session, its fate.
//!
//! The keeper thread writes it, queue pairs read it. A child process gets one of its own, because
//! a lock of the parent's may be held for ever in the child's copy.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use super::admin::{Facts, Goal, Terms};
use super::failure::Failure;
use super::identity::HostIdentity;
use super::keeper;
use crate::error::{Error, ErrorKind, Result};
use crate::nvme::TcpAddress;
use crate::qpair::{ConnectOptions, Namespace};
use crate::tcp::Digests;
use crate::units::Nsid;

/// One way to the namespace: an address that a name stands for, on one of the user's paths.
#[derive(Debug, Clone)]
pub(super) struct Portal {
    pub(super) address: TcpAddress,
    pub(super) socket: SocketAddr,
}

/// What handles on one remote namespace share.
pub(super) struct Remote {
    pid: u32,
    pub(super) options: ConnectOptions,
    pub(super) host: HostIdentity,
    /// Never empty; the user's order.
    pub(super) portals: Vec<Portal>,
    /// The session that is live, 0 when none is. Queue pairs compare it each turn.
    live: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// What the namespace was when it was first seen. Readable without a lock, also after a fork.
    identity: OnceLock<Namespace>,
    durability: Durability,
    /// What takes its place in a child process.
    successor: OnceLock<Arc<Remote>>,
}

/// One association with a controller, from its becoming usable to its loss.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) portal: Portal,
    pub(super) cntlid: u16,
    pub(super) nsid: Nsid,
    pub(super) num_io_queues: u16,
    /// Entries of each I/O queue.
    pub(super) queue_entries: u16,
    pub(super) max_in_capsule: u32,
    pub(super) has_volatile_write_cache: bool,
    pub(super) namespace: Namespace,
    /// Whether an I/O has succeeded on it: a session that fails before that is not worth hurrying
    /// for.
    pub(super) proven: AtomicBool,
}

/// How a remote is doing.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// Being reached for the first time.
    Opening,
    Live(Arc<Session>),
    /// Being reached again; the last failure.
    Lost(Failure),
    /// Given up, for good.
    Dead(Failure),
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Queue identifiers of the present session that nobody uses, the longest unused first.
    free_qids: std::collections::VecDeque<u16>,
    num_pairs: usize,
    /// A session that a queue pair wants replaced, and why.
    reset: Option<(u64, Failure)>,
}

impl Remote {
    pub(super) fn new(
        options: ConnectOptions,
        portals: Vec<Portal>,
        seen: Option<Namespace>,
    ) -> Arc<Remote> {
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
            pid: std::process::id(),
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
            successor: OnceLock::new(),
        })
    }

    /// Whether this remote belongs to the calling process.
    pub(super) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The remote for the calling process: this one, or after a fork another that connects anew.
    pub(super) fn for_this_process(self: &Arc<Remote>) -> Result<Arc<Remote>> {
        let pid = std::process::id();
        let mut remote = self;
        while remote.pid != pid {
            remote = match remote.successor.get() {
                Some(next) => next,
                None => remote.make_successor()?,
            };
        }
        Ok(Arc::clone(remote))
    }

    fn make_successor(&self) -> Result<&Arc<Remote>> {
        let keeper = keeper::of_this_process()?;
        let seen = self.identity.get().cloned();
        let next = Remote::new(self.options.clone(), self.portals.clone(), seen);
        // Another thread may have been faster: then its remote is the one.
        if self.successor.set(Arc::clone(&next)).is_ok() {
            keeper.keep(&next);
        }
        Ok(self.successor.get().expect("set above or by another thread"))
    }

    /// How the user knows it.
    pub(super) fn name(&self) -> String {
        self.portals[0].address.to_string()
    }

    /// With what to connect to a portal.
    pub(super) fn terms(&self, portal: &Portal) -> Terms {
        let options = &self.options;
        Terms {
            address: portal.socket,
            subnqn: portal.address.subnqn.clone(),
            goal: Goal::Namespace(portal.address.nsid),
            host: self.host.clone(),
            digests: Digests { header: options.hdr_digest, data: options.data_digest },
            nr_io_queues: options.nr_io_queues,
            keep_alive_tmo: options.keep_alive_tmo,
            tcp_timeout: options.tcp_connect_timeout,
            io_timeout: options.io_timeout,
        }
    }

    /// The number of the live session, 0 when there is none.
    pub(super) fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    pub(super) fn phase(&self) -> Phase {
        self.lock().phase.clone()
    }

    /// What the namespace was when it was first seen.
    pub(super) fn identity(&self) -> Option<&Namespace> {
        self.identity.get()
    }

    /// What the namespace is now.
    pub(super) fn namespace(&self) -> Option<Namespace> {
        match &self.lock().phase {
            Phase::Live(session) => Some(session.namespace.clone()),
            _ => self.identity.get().cloned(),
        }
    }

    /// Waits until the namespace is there or given up, at most until `deadline`.
    pub(super) fn wait_open(&self, deadline: Instant) -> Result<Namespace> {
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
    pub(super) fn add_pair(&self) -> Result<()> {
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

    pub(super) fn remove_pair(&self) {
        self.lock().num_pairs -= 1;
    }

    /// A queue identifier of session `number`; `None` when it is over or grants no more.
    pub(super) fn take_qid(&self, number: u64) -> Option<u16> {
        let mut state = self.lock();
        (self.live() == number).then(|| state.free_qids.pop_front()).flatten()
    }

    /// Gives a queue identifier of session `number` back.
    pub(super) fn give_qid(&self, number: u64, qid: u16) {
        let mut state = self.lock();
        if self.live() == number {
            state.free_qids.push_back(qid);
        }
    }

    /// Asks the keeper to replace session `number`, which does not work for a queue pair.
    pub(super) fn request_reset(&self, number: u64, reason: Failure) {
        if !self.is_ours() {
            return; // the lock may be held for ever, and the session is not this process's
        }
        let mut state = self.lock();
        if self.live() == number && state.reset.is_none() {
            state.reset = Some((number, reason));
            drop(state);
            keeper::wake();
        }
    }

    /// What has been written and not made durable.
    pub(super) fn durability(&self) -> &Durability {
        &self.durability
    }

    // What the keeper does.

    /// Why the live session shall be replaced, if a queue pair has asked for it.
    pub(super) fn take_reset(&self) -> Option<Failure> {
        let (number, reason) = self.lock().reset.take()?;
        (number == self.live()).then_some(reason)
    }

    /// A session has begun.
    ///
    /// # Errors
    /// `Stale`: this is not the namespace that was here before.
    pub(super) fn publish(
        &self,
        number: u64,
        portal: &Portal,
        facts: &Facts,
    ) -> Result<Arc<Session>, Failure> {
        let namespace = self.describe(facts);
        check_identity(self.identity.get_or_init(|| namespace.clone()), &namespace)?;
        let session = Arc::new(Session {
            number,
            portal: portal.clone(),
            cntlid: facts.cntlid,
            nsid: facts.nsid,
            num_io_queues: facts.num_io_queues,
            queue_entries: namespace.queue_depth + 1,
            max_in_capsule: facts.max_in_capsule,
            has_volatile_write_cache: facts.has_volatile_write_cache,
            namespace,
            proven: AtomicBool::new(false),
        });
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
    pub(super) fn check(&self, facts: &Facts) -> Result<(), Failure> {
        let seen = self.identity.get().expect("a live session has published it");
        let mut now = self.describe(facts);
        now.num_blocks = now.num_blocks.min(seen.num_blocks);
        check_identity(seen, &now)
    }

    /// The live session is gone, or another attempt has failed.
    pub(super) fn lose(&self, failure: Failure) {
        let mut state = self.lock();
        if self.live.swap(0, Ordering::AcqRel) != 0 {
            self.durability.session_lost();
        }
        if !matches!(state.phase, Phase::Opening) {
            state.phase = Phase::Lost(failure);
        }
    }

    /// There will be no session any more.
    pub(super) fn give_up(&self, failure: Failure) {
        self.live.store(0, Ordering::Release);
        self.lock().phase = Phase::Dead(failure);
        self.changed.notify_all();
    }

    fn describe(&self, facts: &Facts) -> Namespace {
        let limit = facts.max_transfer_bytes.unwrap_or(u32::MAX).min(MAX_TRANSFER_BYTES);
        let limit = limit.min(facts.block_len_bytes.saturating_mul(MAX_BLOCKS));
        let entries = u32::from(self.options.queue_size).clamp(2, MAX_QUEUE_ENTRIES);
        let entries = entries.min(facts.max_entries).max(2);
        let digests = match (self.options.hdr_digest, self.options.data_digest) {
            (false, false) => "tcp",
            (true, false) => "tcp (header digest)",
            (false, true) => "tcp (data digest)",
            (true, true) => "tcp (header and data digest)",
        };
        Namespace {
            address: self.name(),
            block_len_bytes: facts.block_len_bytes,
            num_blocks: facts.num_blocks,
            max_transfer_bytes: limit,
            queue_depth: (entries - 1) as u16,
            nguid: facts.nguid,
            read_only: facts.write_protected || !self.options.writable,
            engine: digests.to_owned(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and no change leaves the state half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.is_ours() {
            keeper::wake(); // to notice that nobody needs the controller any more
        }
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

/// Knows whether a flush can still make durable all that was written.
///
/// A write that completed may be in the target's cache. When the session is lost, the cache may be
/// lost with it, and a flush on the next session would say nothing about it: so that flush must fail.
#[derive(Debug, Default)]
pub(super) struct Durability {
    /// Writes completed, ever.
    written: AtomicU64,
    /// Of those, how many a flush has covered, or were lost.
    settled: AtomicU64,
    lost: AtomicBool,
}

impl Durability {
    /// A write has completed.
    pub(super) fn wrote(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// A flush begins: what it will have covered, for [`Durability::flushed`].
    pub(super) fn flush_begins(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// A flush has succeeded.
    pub(super) fn flushed(&self, covered: u64) {
        self.settled.fetch_max(covered, Ordering::Relaxed);
    }

    /// A flush has failed with its session, which tells of the writes that it would have covered.
    pub(super) fn flush_failed(&self, covered: u64) {
        self.settled.fetch_max(covered, Ordering::Relaxed);
        if self.written.load(Ordering::Relaxed) == covered {
            self.lost.store(false, Ordering::Relaxed);
        }
    }

    fn session_lost(&self) {
        let written = self.written.load(Ordering::Relaxed);
        if self.settled.fetch_max(written, Ordering::Relaxed) < written {
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Whether writes were lost with a session since this was last asked.
    pub(super) fn take_lost(&self) -> bool {
        self.lost.swap(false, Ordering::Relaxed)
    }
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

    #[test]
    fn a_flush_after_a_lost_session_tells_only_of_writes_that_no_flush_covered() {
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
    fn writes_that_a_failed_flush_told_of_are_not_told_of_again() {
        for loss_is_seen_first in [false, true] {
            let durability = Durability::default();
            durability.wrote();
            let covered = durability.flush_begins();
            if loss_is_seen_first {
                durability.session_lost();
                durability.flush_failed(covered);
            } else {
                durability.flush_failed(covered);
                durability.session_lost();
            }
            assert!(!durability.take_lost());
        }
        let durability = Durability::default();
        let covered = durability.flush_begins();
        durability.wrote(); // not covered
        durability.session_lost();
        durability.flush_failed(covered);
        assert!(durability.take_lost());
    }
}
