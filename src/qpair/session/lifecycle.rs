//! When the sessions of a set of namespaces come and go: paths, rounds, losses, resets, the end.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::{Attached, Facts, Failure};
use crate::error::ErrorKind;
use crate::qpair::Namespace;
use crate::units::deadline;

/// One association with a controller, from its becoming usable to its loss.
#[derive(Debug)]
pub struct Session<P, J> {
    /// Counts the sessions of a set of namespaces, from 1.
    pub number: u64,
    /// The way to it.
    pub portal: P,
    /// What I/O queues join it with.
    pub joint: J,
    /// I/O queues that the controller grants.
    pub num_io_queues: u16,
    /// Entries of each I/O queue.
    pub queue_entries: u16,
    /// Whether completed writes may be lost with it.
    pub has_volatile_write_cache: bool,
    /// The namespaces, as this session takes them: never none.
    pub namespaces: Vec<Attached>,
    /// Whether an I/O has succeeded on it: a session that fails before that is not worth hurrying
    /// for.
    pub proven: AtomicBool,
}

/// How the sessions are doing.
#[derive(Debug)]
pub enum Phase<P, J> {
    /// Being reached for the first time.
    Opening,
    /// Usable.
    Live(Arc<Session<P, J>>),
    /// Being reached again; the last failure.
    Lost(Failure),
    /// Given up, for good.
    Dead(Failure),
}

/// How long what may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Opening, all paths and rounds together.
    pub connect_timeout: Duration,
    /// Reaching a controller again that was lost.
    pub ctrl_loss_tmo: Duration,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Begin to connect to this portal; say at once with [`Lifecycle::handle_failed`] if that fails.
    Connect {
        /// Its place in the list.
        portal: usize,
    },
    /// Let go of the controller, for this reason.
    Close(Failure),
    /// Tell people.
    Say {
        /// How much it matters.
        level: Level,
        /// What.
        text: String,
    },
}

/// How much something matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something is wrong.
    Warn,
    /// Something has changed.
    Info,
    /// For whoever looks for a mistake.
    Debug,
}

/// The sessions of a set of namespaces. It owns no controller and never asks for the time.
///
/// After every `handle_*` call do what [`Lifecycle::poll_action`] says until it has nothing.
#[derive(Debug)]
pub struct Lifecycle<P, J> {
    limits: Limits,
    /// Never empty; the user's order.
    portals: Arc<[P]>,
    stage: Stage<P, J>,
    /// What the namespaces were when they were first seen.
    identity: Option<Arc<[Attached]>>,
    /// Why there is no session, once it was seen.
    lost: Option<Failure>,
    /// Queue identifiers of the present session that nobody uses, the longest unused first.
    free_qids: VecDeque<u16>,
    num_pairs: usize,
    always_digested: bool,
    /// The portal in use, or tried last.
    portal: usize,
    /// Portals tried since the round began.
    tried: usize,
    /// The number of the next session.
    next_number: u64,
    /// When the last session was lost, or opening began.
    since: Instant,
    backoff: Backoff,
    /// How many more rounds opening may take, if what it met may pass.
    rounds: u32,
    /// Why each portal failed last.
    failures: Vec<Option<Failure>>,
    actions: VecDeque<Action>,
}

#[derive(Debug)]
enum Stage<P, J> {
    /// All portals have been tried.
    Waiting { until: Instant },
    /// A controller is on its way up, until this time at most.
    Connecting { deadline: Instant },
    /// There is a session, since this time.
    Live { session: Arc<Session<P, J>>, since: Instant },
    /// A queue pair has ended the session. Its controller is not let go of yet.
    Reset { session: Arc<Session<P, J>>, since: Instant, reason: Failure },
    /// Given up.
    Dead(Failure),
}

impl<P: Clone + fmt::Display, J> Lifecycle<P, J> {
    /// The first round begins with the first [`Lifecycle::handle_time`]. `seen` is what the namespaces
    /// were if they were opened before, `random` any number.
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
            portal: portals.len() - 1, // the first is next
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

    /// How it is doing.
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

    /// Whether a queue pair has ended the session, and its controller is still there.
    pub fn is_reset(&self) -> bool {
        matches!(self.stage, Stage::Reset { .. })
    }

    /// Whether there will be no session any more.
    pub fn is_dead(&self) -> bool {
        matches!(self.stage, Stage::Dead(_))
    }

    /// What the namespaces were when they were first seen.
    pub fn identity(&self) -> Option<&Arc<[Attached]>> {
        self.identity.as_ref()
    }

    /// Whether all sessions so far had both digests.
    pub fn was_always_digested(&self) -> bool {
        self.always_digested
    }

    /// When to call [`Lifecycle::handle_time`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Waiting { until } => Some(*until),
            Stage::Connecting { deadline } => Some(*deadline),
            Stage::Reset { since, .. } => Some(*since), // at once
            Stage::Live { .. } | Stage::Dead(_) => None,
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    // What queue pairs say.

    /// Counts one queue pair more.
    ///
    /// # Errors
    /// Each I/O queue that the controller granted is in use: how many.
    pub fn add_pair(&mut self) -> Result<(), u16> {
        if let Some(granted) = self.live().map(|session| session.num_io_queues)
            && self.num_pairs >= usize::from(granted)
        {
            return Err(granted);
        }
        self.num_pairs += 1;
        Ok(())
    }

    /// Counts one queue pair less.
    pub fn remove_pair(&mut self) {
        self.num_pairs -= 1;
    }

    /// A queue identifier of session `number`; `None` when it is over or grants no more.
    pub fn take_qid(&mut self, number: u64) -> Option<u16> {
        self.is_live(number).then(|| self.free_qids.pop_front()).flatten()
    }

    /// Takes a queue identifier of session `number` back.
    pub fn give_qid(&mut self, number: u64, qid: u16) {
        if self.is_live(number) {
            self.free_qids.push_back(qid);
        }
    }

    /// Ends session `number`, which does not work for a queue pair; whether it was live.
    ///
    /// It is over at once, not when its controller is let go of: a queue pair that joined it again could
    /// reach a target that has restarted, whose flush says nothing about writes before that.
    pub fn reset(&mut self, number: u64, reason: Failure) -> bool {
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

    // What the controller and time say.

    /// Does what time asks for; `at` is what a controller on its way up is at, for people.
    pub fn handle_time(&mut self, now: Instant, at: &str) {
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

    /// The controller is up, with these facts; `namespaces` is what they make of those.
    pub fn handle_ready(
        &mut self,
        now: Instant,
        joint: J,
        facts: &Facts,
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
            joint,
            num_io_queues: facts.num_io_queues,
            queue_entries: queue_depth + 1,
            has_volatile_write_cache: facts.has_volatile_write_cache,
            namespaces,
            proven: AtomicBool::new(false),
        });
        self.always_digested &= facts.hdr_digest && facts.data_digest;
        self.free_qids = (1..=session.num_io_queues).collect();
        self.next_number += 1;
        self.failures.iter_mut().filter(|failure| !is_stale(failure)).for_each(|f| *f = None);
        self.stage = Stage::Live { session, since: now };
    }

    /// Namespaces were identified again while the session is live. One that has grown is used as it
    /// was; one that is another, or has shrunk, ends the session.
    pub fn handle_changed(&mut self, now: Instant, mut namespaces: Vec<Attached>) {
        let (Stage::Live { .. }, Some(seen)) = (&self.stage, &self.identity) else { return };
        for (seen, now) in seen.iter().zip(&mut namespaces) {
            now.namespace.num_blocks = now.namespace.num_blocks.min(seen.namespace.num_blocks);
        }
        if let Err(failure) = check_identities(seen, &namespaces) {
            self.handle_failed(now, failure);
        }
    }

    /// An attempt to connect has failed, or the session is lost.
    pub fn handle_failed(&mut self, now: Instant, failure: Failure) {
        let was_live = match &self.stage {
            Stage::Waiting { .. } | Stage::Dead(_) => return,
            Stage::Connecting { .. } => false,
            Stage::Live { session, since } | Stage::Reset { session, since, .. } => {
                let lived = now.saturating_duration_since(*since);
                if lived >= PROVEN_AFTER || session.proven.load(Ordering::Relaxed) {
                    self.backoff.begin_anew();
                } else {
                    self.backoff.hurry_no_more();
                }
                (self.since, self.tried) = (now, 0);
                true
            }
        };
        let opening = self.identity.is_none();
        let failure = failure.at(&self.portals[self.portal]);
        // Opened over the only path, the caller gets it as the error; and once a loss is told, that
        // it goes on is not news.
        let several = self.portals.len() > 1;
        match opening {
            true if several => self.say(Level::Warn, failure.to_string()),
            _ if was_live => self.say(Level::Warn, format!("lost {failure}; reconnecting")),
            _ => self.say(Level::Debug, failure.to_string()),
        }
        self.note(opening, &failure);
        if let Some(last_words) = self.end(now, opening, &failure) {
            return self.give_up(last_words);
        }
        self.actions.push_back(Action::Close(failure.clone()));
        if !opening {
            self.lost = Some(failure);
        }
        // At once on the other portals and then on this; after that more and more slowly.
        if self.tried >= self.portals.len() || !self.backoff.is_fresh() {
            self.stage = Stage::Waiting { until: now + self.backoff.next() };
        } else {
            self.connect_next(now);
        }
    }

    /// There will be no session any more.
    pub fn give_up(&mut self, failure: Failure) {
        self.stage = Stage::Dead(failure);
    }

    /// Keeps why the portal failed.
    fn note(&mut self, opening: bool, failure: &Failure) {
        let known = &mut self.failures[self.portal];
        // Silence says less than what was said before: somebody else may be listening there.
        let says_less = |known: &Failure| {
            failure.kind == ErrorKind::TimedOut && known.kind == ErrorKind::Corrupt
        };
        if !(opening && known.as_ref().is_some_and(says_less)) {
            *known = Some(failure.clone());
        }
    }

    /// Why it is given up, if it is to be.
    fn end(&mut self, now: Instant, opening: bool, failure: &Failure) -> Option<Failure> {
        if self.failures.iter().all(is_stale) {
            return Some(failure.clone());
        }
        let Limits { connect_timeout, ctrl_loss_tmo } = self.limits;
        let limit = if opening { connect_timeout } else { ctrl_loss_tmo };
        let too_late = now.saturating_duration_since(self.since) >= limit;
        let over = too_late || opening && self.tried >= self.portals.len() && !self.next_round();
        over.then(|| self.last_words(opening, limit))
    }

    /// Whether opening may go round once more: a byte that was damaged on its way, or a connection that
    /// broke, may be the only one. What was refused, or not answered in its time, stays so.
    fn next_round(&mut self) -> bool {
        let may_pass = |failure: &Failure| {
            matches!(failure.kind, ErrorKind::Corrupt | ErrorKind::Disconnected)
        };
        self.rounds = self.rounds.saturating_sub(1);
        self.rounds > 0 && self.failures.iter().flatten().any(may_pass)
    }

    /// The failure to end with: that of the first portal, and what the others said.
    fn last_words(&self, opening: bool, limit: Duration) -> Failure {
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

    /// Begins to connect to the next portal, but never to one whose namespace was another.
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

/// Compares namespaces with those that were there first.
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

/// Rounds over all portals while a namespace is opened.
const OPENING_ROUNDS: u32 = 3;

/// A session that lasted this long did work, even if nothing was read.
const PROVEN_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Nsid;

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
    fn every_namespace_of_a_set_must_be_the_one_it_was_and_the_failure_says_which_is_not() {
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
