//! The lifecycle of the sessions with a set of namespaces: paths, rounds of attempts, losses, resets, the end.
//!
//! It decides which path to try when; `keeping.rs` performs its actions, and `shared.rs` lets threads share it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::{Attached, Failure, Identified, SessionStats};
use crate::qpair::Namespace;
use dlfs_base::error::ErrorKind;
use dlfs_base::units::deadline;
use dlfs_nvme::tcp::Digests;

/// One association with a controller, from the moment it is usable to its loss.
#[derive(Debug)]
pub struct Session<P, J> {
    /// The number of the session, counted from 1.
    pub number: u64,
    /// The portal that it uses.
    pub portal: P,
    /// The data that I/O queues need to join it.
    pub join_info: J,
    /// I/O queues that the controller grants.
    pub num_io_queues: u16,
    /// Entries of each I/O queue.
    pub queue_entries: u16,
    /// True if completed writes may be lost with the controller.
    pub has_volatile_write_cache: bool,
    /// The namespaces with the limits of this session; never empty.
    pub namespaces: Vec<Attached>,
    /// Set once an I/O has succeeded in the session. If the session fails before that, reconnecting first
    /// waits.
    pub proven: AtomicBool,
}

/// The phase of the sessions.
#[derive(Debug)]
pub enum Phase<P, J> {
    /// Connecting for the first time.
    Opening,
    /// A session is live.
    Live(Arc<Session<P, J>>),
    /// Reconnecting; the last failure.
    Lost(Failure),
    /// Given up for good.
    Dead(Failure),
}

/// Time limits.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For opening: all paths and rounds together.
    pub connect_timeout: Duration,
    /// For reconnecting to a lost controller.
    pub ctrl_loss_tmo: Duration,
}

/// An action that the owner must perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start to connect to this portal; call `Lifecycle::handle_failed` at once if that fails.
    Connect {
        /// Its index in the list.
        portal: usize,
    },
    /// Drop the controller, for this reason.
    Close(Failure),
    /// Log this text.
    Say {
        /// The severity.
        level: Level,
        /// The text.
        text: String,
    },
}

/// The severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something is wrong.
    Warn,
    /// Something has changed.
    Info,
    /// A detail for debugging.
    Debug,
}

/// The sessions with a set of namespaces. The lifecycle owns no controller and never reads a clock.
///
/// After every `handle_*` call, perform the actions of `Lifecycle::poll_action` until it returns `None`.
#[derive(Debug)]
pub struct Lifecycle<P, J> {
    limits: Limits,
    /// Never empty; in the user's order.
    portals: Arc<[P]>,
    stage: Stage<P, J>,
    /// The namespaces as they were first identified.
    identity: Option<Arc<[Attached]>>,
    /// The last failure after the namespaces were first identified.
    lost: Option<Failure>,
    /// Unused queue identifiers of the current session, the longest unused first.
    free_qids: VecDeque<u16>,
    num_pairs: usize,
    /// True if all sessions so far had both digests, or TLS instead.
    pub(super) always_digested: bool,
    /// The portal in use, or tried last.
    portal: usize,
    /// Portals tried since the round began.
    tried: usize,
    /// The number of the next session.
    next_number: u64,
    /// The time at which the last session was lost, or at which opening began.
    since: Instant,
    backoff: Backoff,
    /// The number of rounds that opening may still take after failures that may be transient, with the current
    /// one.
    rounds: u32,
    /// The last failure of each portal.
    failures: Vec<Option<Failure>>,
    actions: VecDeque<Action>,
}

#[derive(Debug)]
enum Stage<P, J> {
    /// All portals have been tried; the next round begins later.
    Waiting { until: Instant },
    /// A controller is being connected, until this time at most.
    Connecting { deadline: Instant },
    /// A session has been live since this time.
    Live { session: Arc<Session<P, J>>, since: Instant },
    /// A queue pair has ended the session; its controller is not dropped yet.
    Reset { session: Arc<Session<P, J>>, since: Instant, reason: Failure },
    /// Given up.
    Dead(Failure),
}

impl<P: Clone + fmt::Display, J> Lifecycle<P, J> {
    /// Creates the lifecycle; the first round begins with the first `Lifecycle::handle_time`. `seen` holds the
    /// namespaces if they were identified before; `random` is any number.
    pub fn new(
        now: Instant,
        limits: Limits,
        portals: Arc<[P]>,
        seen: Option<Arc<[Attached]>>,
        random: u64,
    ) -> Lifecycle<P, J> {
        assert!(!portals.is_empty(), "a namespace has at least one address");
        let unseen = || Failure::new(ErrorKind::Disconnected, "not connected yet");
        Lifecycle {
            limits,
            stage: Stage::Waiting { until: now },
            lost: seen.as_ref().map(|_| unseen()),
            identity: seen,
            free_qids: VecDeque::new(),
            num_pairs: 0,
            always_digested: true,
            portal: portals.len() - 1, // so the next one is the first
            tried: 0,
            next_number: 1,
            since: now,
            backoff: Backoff::new(random),
            rounds: OPENING_ROUNDS,
            failures: vec![None; portals.len()],
            portals,
            actions: VecDeque::new(),
        }
    }

    /// The current phase.
    pub fn phase(&self) -> Phase<P, J> {
        match (&self.stage, &self.lost) {
            (Stage::Live { session, .. }, _) => Phase::Live(Arc::clone(session)),
            (Stage::Dead(failure), _) => Phase::Dead(failure.clone()),
            (_, Some(failure)) => Phase::Lost(failure.clone()),
            (_, None) => Phase::Opening,
        }
    }

    /// The session, if one is live.
    pub fn live(&self) -> Option<&Arc<Session<P, J>>> {
        match &self.stage {
            Stage::Live { session, .. } => Some(session),
            _ => None,
        }
    }

    /// Returns whether a queue pair has ended the session while its controller still exists.
    pub(crate) fn is_reset(&self) -> bool {
        matches!(self.stage, Stage::Reset { .. })
    }

    /// Returns whether there will be no further session.
    pub fn is_dead(&self) -> bool {
        matches!(self.stage, Stage::Dead(_))
    }

    /// The namespaces as they were first identified.
    pub fn identity(&self) -> Option<&Arc<[Attached]>> {
        self.identity.as_ref()
    }

    /// Statistics of the sessions, without the counters of transfers.
    pub fn stats(&self) -> SessionStats {
        SessionStats {
            is_live: self.live().is_some(),
            reconnects: self.next_number.saturating_sub(2),
            paths: self.portals.len() as u64,
            failed_paths: self.failures.iter().flatten().count() as u64,
            ..SessionStats::default()
        }
    }

    /// The time at which to call `Lifecycle::handle_time`.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Waiting { until } => Some(*until),
            Stage::Connecting { deadline } => Some(*deadline),
            Stage::Reset { since, .. } => Some(*since), // at once
            Stage::Live { .. } | Stage::Dead(_) => None,
        }
    }

    /// The next action.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    // Called for queue pairs.

    /// Adds a queue pair to the count.
    ///
    /// # Errors
    /// All I/O queues that the controller granted are in use; the error is their number.
    pub fn add_pair(&mut self) -> Result<(), u16> {
        if let Some(granted) = self.live().map(|session| session.num_io_queues)
            && self.num_pairs >= usize::from(granted)
        {
            return Err(granted);
        }
        self.num_pairs += 1;
        Ok(())
    }

    /// Subtracts a queue pair from the count.
    pub fn remove_pair(&mut self) {
        self.num_pairs -= 1;
    }

    /// Takes a queue identifier of session `number`; `None` when the session is over or grants no more.
    pub fn take_qid(&mut self, number: u64) -> Option<u16> {
        self.is_live(number).then(|| self.free_qids.pop_front()).flatten()
    }

    /// Gives back a queue identifier of session `number`.
    pub(crate) fn give_qid(&mut self, number: u64, qid: u16) {
        if self.is_live(number) {
            self.free_qids.push_back(qid);
        }
    }

    /// Ends session `number` because a queue pair found it broken; returns whether it was live.
    ///
    /// The session ends at once, not when its controller is dropped. A queue pair that joined it again could
    /// reach a restarted target, whose flush says nothing about earlier writes.
    pub(crate) fn reset(&mut self, number: u64, reason: Failure) -> bool {
        let Stage::Live { session, since } = &self.stage else { return false };
        if session.number != number {
            return false;
        }
        self.lost = Some(reason.clone());
        self.stage = Stage::Reset { session: Arc::clone(session), since: *since, reason };
        true
    }

    fn is_live(&self, number: u64) -> bool {
        self.live().is_some_and(|session| session.number == number)
    }

    // Called for the controller and for time.

    /// Handles timeouts; `at` names the current step of a controller that is being connected.
    pub(crate) fn handle_time(&mut self, now: Instant, at: &str) {
        match &self.stage {
            Stage::Waiting { until } if now >= *until => {
                self.tried = 0;
                self.connect_next(now);
            }
            Stage::Connecting { deadline } if now >= *deadline => {
                let failure = Failure::new(ErrorKind::TimedOut, "no answer within its time");
                self.handle_failed(now, failure.at(at));
            }
            Stage::Reset { reason, .. } => {
                let reason = reason.clone();
                self.handle_failed(now, reason);
            }
            _ => {}
        }
    }

    /// Handles a controller that is up and identified; `namespaces` describes its namespaces to queue pairs.
    pub(crate) fn handle_ready(
        &mut self,
        now: Instant,
        join_info: J,
        identified: &Identified,
        namespaces: Vec<Attached>,
    ) {
        if !matches!(self.stage, Stage::Connecting { .. }) {
            return;
        }
        let Some(queue_depth) = namespaces.first().map(|first| first.namespace.queue_depth) else {
            let failure = Failure::new(ErrorKind::NotFound, "the subsystem has no namespace");
            return self.handle_failed(now, failure);
        };
        let seen = self.identity.get_or_insert_with(|| namespaces.clone().into());
        if let Err(failure) = check_identities(seen, &namespaces) {
            return self.handle_failed(now, failure);
        }
        let portal = self.portals[self.portal].clone();
        if self.next_number > 1 {
            self.say(Level::Info, format!("reconnected to {portal}"));
        }
        let session = Arc::new(Session {
            number: self.next_number,
            portal,
            join_info,
            num_io_queues: identified.num_io_queues,
            queue_entries: queue_depth + 1,
            has_volatile_write_cache: identified.has_volatile_write_cache,
            namespaces,
            proven: AtomicBool::new(false),
        });
        let Digests { header, data } = identified.digests;
        self.always_digested &= header && data || identified.is_secured;
        self.free_qids = (1..=session.num_io_queues).collect();
        self.next_number += 1;
        self.failures.iter_mut().filter(|failure| !is_stale(failure)).for_each(|f| *f = None);
        self.stage = Stage::Live { session, since: now };
    }

    /// Handles namespaces that were identified again while the session is live. A namespace that has grown
    /// keeps its old size here. A namespace that was replaced, or has shrunk, ends the session.
    pub(crate) fn handle_changed(&mut self, now: Instant, mut namespaces: Vec<Attached>) {
        let (Stage::Live { .. }, Some(seen)) = (&self.stage, &self.identity) else { return };
        for (seen, now) in seen.iter().zip(&mut namespaces) {
            now.namespace.num_blocks = now.namespace.num_blocks.min(seen.namespace.num_blocks);
        }
        if let Err(failure) = check_identities(seen, &namespaces) {
            self.handle_failed(now, failure);
        }
    }

    /// Handles a failed attempt to connect, or the loss of the session.
    pub(crate) fn handle_failed(&mut self, now: Instant, failure: Failure) {
        let was_live = match &self.stage {
            Stage::Waiting { .. } | Stage::Dead(_) => return,
            Stage::Connecting { .. } => false,
            Stage::Live { session, since } | Stage::Reset { session, since, .. } => {
                let lived = now.saturating_duration_since(*since);
                if lived >= PROVEN_AFTER || session.proven.load(Ordering::Relaxed) {
                    self.backoff.reset();
                } else {
                    self.backoff.is_fresh = false;
                }
                (self.since, self.tried) = (now, 0);
                true
            }
        };
        let opening = self.identity.is_none();
        let failure = failure.at(&self.portals[self.portal]);
        // With a single path, the caller gets the failure as its error. After a loss, only the loss is a
        // warning.
        let several = self.portals.len() > 1;
        match opening {
            true if several => self.say(Level::Warn, failure.to_string()),
            _ if was_live => self.say(Level::Warn, format!("lost {failure}; reconnecting")),
            _ => self.say(Level::Debug, failure.to_string()),
        }
        self.note(opening, &failure);
        if let Some(final_failure) = self.end(now, opening, &failure) {
            return self.give_up(final_failure);
        }
        self.actions.push_back(Action::Close(failure.clone()));
        if !opening {
            self.lost = Some(failure);
        }
        // Try the other portals at once, then this one; after that, wait longer each time.
        if self.tried >= self.portals.len() || !self.backoff.is_fresh {
            self.stage = Stage::Waiting { until: now + self.backoff.next() };
        } else {
            self.connect_next(now);
        }
    }

    /// Ends the sessions for good.
    pub(crate) fn give_up(&mut self, failure: Failure) {
        self.stage = Stage::Dead(failure);
    }

    /// Records the failure of the portal.
    fn note(&mut self, opening: bool, failure: &Failure) {
        let known = &mut self.failures[self.portal];
        // A timeout says less than an earlier answer: another host may be listening there.
        let says_less = |known: &Failure| {
            failure.kind == ErrorKind::TimedOut && known.kind == ErrorKind::Corrupt
        };
        if !(opening && known.as_ref().is_some_and(says_less)) {
            *known = Some(failure.clone());
        }
    }

    /// The failure to give up with; `None` to continue trying.
    fn end(&mut self, now: Instant, opening: bool, failure: &Failure) -> Option<Failure> {
        if self.failures.iter().all(is_stale) {
            return Some(failure.clone());
        }
        let Limits { connect_timeout, ctrl_loss_tmo } = self.limits;
        let limit = if opening { connect_timeout } else { ctrl_loss_tmo };
        let too_late = now.saturating_duration_since(self.since) >= limit;
        let over = too_late || opening && self.tried >= self.portals.len() && !self.next_round();
        over.then(|| self.final_failure(opening, limit))
    }

    /// Returns whether opening may try another round. A damaged byte or a broken connection may be
    /// transient; a refusal or a timeout is not. A target that is busy asks for another try, as long as
    /// there is time.
    fn next_round(&mut self) -> bool {
        if self.failures.iter().flatten().any(|failure| failure.kind == ErrorKind::Busy) {
            return true;
        }
        let may_pass = |failure: &Failure| {
            matches!(failure.kind, ErrorKind::Corrupt | ErrorKind::Disconnected)
        };
        self.rounds = self.rounds.saturating_sub(1);
        self.rounds > 0 && self.failures.iter().flatten().any(may_pass)
    }

    /// The failure to give up with: the first portal's failure, followed by the other portals' failures.
    fn final_failure(&self, opening: bool, limit: Duration) -> Failure {
        let mut failures = self.failures.iter().flatten();
        let mut last = failures.next().cloned().expect("something has failed");
        for other in failures {
            last.message.push_str(&format!("; {other}"));
        }
        if !opening {
            last.kind = ErrorKind::Disconnected;
            last.message = format!("given up after {} s: {}", limit.as_secs(), last.message);
        }
        last
    }

    /// Starts to connect to the next portal; skips portals that led to another namespace.
    fn connect_next(&mut self, now: Instant) {
        let num_portals = self.portals.len();
        for _ in 0..num_portals {
            self.portal = (self.portal + 1) % num_portals;
            self.tried += 1;
            if !is_stale(&self.failures[self.portal]) {
                break;
            }
        }
        let share = self.limits.connect_timeout / num_portals as u32;
        self.stage = Stage::Connecting { deadline: deadline(now, share) };
        self.actions.push_back(Action::Connect { portal: self.portal });
    }

    fn say(&mut self, level: Level, text: String) {
        self.actions.push_back(Action::Say { level, text });
    }
}

fn is_stale(failure: &Option<Failure>) -> bool {
    failure.as_ref().is_some_and(|failure| failure.kind == ErrorKind::Stale)
}

/// Compares namespaces with those that were first identified.
fn check_identities(seen: &[Attached], now: &[Attached]) -> Result<(), Failure> {
    if seen.len() != now.len() {
        let message =
            format!("{} namespaces are expected on this path, it has {}", seen.len(), now.len());
        return Err(Failure::new(ErrorKind::Stale, message).hint("open it again"));
    }
    for (seen, now) in seen.iter().zip(now) {
        check_identity(&seen.namespace, &now.namespace).map_err(|failure| failure.of(now.nsid))?;
    }
    Ok(())
}

/// Compares a namespace with the one that was first identified.
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

/// The most rounds over all portals while opening, unless a target is busy.
const OPENING_ROUNDS: u32 = 3;

/// A session that lasted this long counts as working, even if nothing was read.
const PROVEN_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::units::Nsid;

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
    fn every_namespace_must_keep_its_identity_and_the_failure_names_the_one_that_does_not() {
        let set = |nguids: &[u8]| -> Vec<Attached> {
            let one = |(at, nguid): (usize, &u8)| Attached {
                nsid: Nsid(at as u32 + 1),
                namespace: Namespace { nguid: [*nguid; 16], ..namespace() },
            };
            nguids.iter().enumerate().map(one).collect()
        };
        assert_eq!(check_identities(&set(&[7, 8, 9]), &set(&[7, 8, 9])), Ok(()));
        let other = check_identities(&set(&[7, 8, 9]), &set(&[7, 6, 9])).unwrap_err();
        assert_eq!((other.kind, other.nsid), (ErrorKind::Stale, Some(Nsid(2))));
        let fewer = check_identities(&set(&[7, 8]), &set(&[7])).unwrap_err();
        assert!(fewer.message.contains("2 namespaces are expected on this path, it has 1"));
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
