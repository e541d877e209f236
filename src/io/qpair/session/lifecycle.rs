//! The lifecycle of the sessions with a set of namespaces: paths, rounds of attempts, losses, resets, the end.
//!
//! It decides which path to try when; `shared.rs` lets threads share it, and `keeping.rs` performs its actions.
//!
//! With several paths there may be two sessions at a time, on two paths, each in a *slot*. Reads use either session:
//! the queue chooses. Writes and flushes use the *main* session only, since a flush says nothing about writes
//! that another controller has in its cache; a host that writes also reads there, so that it finds the bytes that it
//! wrote. When the main session is lost, the other one becomes the main session at once, and the slot of the lost one
//! is filled again in the background.
//!
//! A session whose path became inaccessible is *left*: nothing new is issued in it, and its controller stays until
//! the writes and flushes on its queues have ended (`underway.rs`). Meanwhile the other slot has the main session, also
//! on a single path.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::underway::Underway;
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
    /// The index of the portal.
    pub path: usize,
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
    /// False while the ANA state of a namespace is non-optimized on this path.
    pub is_optimized: AtomicBool,
    /// Set once an I/O has succeeded in the session. If the session fails before that, and within `PROVEN_AFTER`,
    /// reconnecting first waits.
    pub proven: AtomicBool,
    /// The writes and flushes on the connections of the session's I/O queues.
    pub(super) underway: Underway,
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
    /// For opening: all paths and rounds together. An attempt on one path, also to reconnect, has this time divided by
    /// the number of paths. A session that is left stays no longer than this.
    pub connect_timeout: Duration,
    /// For reconnecting to a lost controller, from its loss on; zero: no reconnect.
    pub ctrl_loss_tmo: Duration,
}

/// An action that the owner must perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start to connect to this portal; call `Lifecycle::handle_failed` at once if that fails.
    Connect {
        /// The slot of the controller.
        slot: usize,
        /// The index of the portal.
        portal: usize,
    },
    /// Drop the controller of a slot.
    Close {
        /// The slot.
        slot: usize,
        /// The reason.
        failure: Failure,
    },
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
    pub(super) portals: Arc<[P]>,
    slots: [SessionSlot<P, J>; NUM_SLOTS],
    /// The slot of the main session. While that session is not live, the other slot has no live session either, except
    /// between a `reset` and the next `handle_time`.
    main: usize,
    /// True if a session on another path is kept beside the main session.
    pub(super) keeps_two: bool,
    /// True if reads use both sessions.
    pub(super) spreads_reads: bool,
    /// The namespaces as they were first identified.
    identity: Option<Arc<[Attached]>>,
    /// The last failure since the namespaces were first identified.
    lost: Option<Failure>,
    /// Queue pairs that use the sessions.
    num_pairs: usize,
    /// True if all sessions so far had both digests, or TLS instead.
    pub(super) always_digested: bool,
    /// Portals that the main slot has tried since the round began.
    num_tried: usize,
    /// The number of the next session.
    next_number: u64,
    /// Sessions that replaced an earlier one.
    reconnects: u64,
    /// Times that the other session became the main one.
    failovers: u64,
    /// The time at which the last main session was lost, or else at which the lifecycle was created.
    down_since: Instant,
    /// The number of rounds that opening may still take, with the current one, if some failure may be transient.
    rounds_left: u32,
    /// The last failure of each portal.
    failures: Vec<Option<Failure>>,
    /// The number of sessions lost on each portal.
    losses: Vec<u64>,
    actions: VecDeque<Action>,
}

/// A slot, which has one session at a time.
#[derive(Debug)]
struct SessionSlot<P, J> {
    stage: SlotStage<P, J>,
    /// The portal in use, or tried last.
    portal: usize,
    /// Unused queue identifiers of the session, the longest unused first.
    free_qids: VecDeque<u16>,
    backoff: Backoff,
    /// True if the next session of the slot replaces an earlier one.
    was_live: bool,
}

/// Each slot goes from `Waiting` to `Connecting` and `Live`, and after a failure back to `Waiting`.
#[derive(Debug)]
enum SlotStage<P, J> {
    /// There is no controller; the next attempt begins at this time.
    Waiting { until: Instant },
    /// A controller is being connected, until this time at most.
    Connecting { deadline: Instant },
    /// A session has been live since this time.
    Live { session: Arc<Session<P, J>>, since: Instant },
    /// A queue pair has ended the session; its controller is not dropped yet.
    Reset { session: Arc<Session<P, J>>, since: Instant, reason: Failure },
    /// The session is left: its controller is dropped once the writes and flushes on its queues have ended, or at
    /// this time.
    Leaving { session: Arc<Session<P, J>>, until: Instant },
    /// Given up.
    Dead(Failure),
}

impl<P: Clone + fmt::Display, J> Lifecycle<P, J> {
    /// Creates the lifecycle; the first round begins with the first `Lifecycle::handle_time`. `seen`: the namespaces,
    /// if they were identified before. `random` is any number that differs among hosts.
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
            slots: [random, random.rotate_left(32)].map(|random| SessionSlot {
                stage: SlotStage::Waiting { until: now },
                portal: portals.len() - 1, // so the next one is the first
                free_qids: VecDeque::new(),
                backoff: Backoff::new(random),
                was_live: false,
            }),
            main: 0,
            keeps_two: false,
            spreads_reads: false,
            lost: seen.as_ref().map(|_| unseen()),
            identity: seen,
            num_pairs: 0,
            always_digested: true,
            num_tried: 0,
            next_number: 1,
            reconnects: 0,
            failovers: 0,
            down_since: now,
            rounds_left: OPENING_ROUNDS,
            failures: vec![None; portals.len()],
            losses: vec![0; portals.len()],
            portals,
            actions: VecDeque::new(),
        }
    }

    /// Keeps two sessions, on two paths, if there are several; reads use both if `spreads_reads`.
    pub fn keep_two(mut self, spreads_reads: bool) -> Lifecycle<P, J> {
        self.keeps_two = self.portals.len() > 1;
        self.spreads_reads = spreads_reads && self.keeps_two;
        self
    }

    /// The current phase.
    pub fn phase(&self) -> Phase<P, J> {
        match (&self.slots[self.main].stage, &self.lost) {
            (SlotStage::Live { session, .. }, _) => Phase::Live(Arc::clone(session)),
            (SlotStage::Dead(failure), _) => Phase::Dead(failure.clone()),
            (_, Some(failure)) => Phase::Lost(failure.clone()),
            (_, None) => Phase::Opening,
        }
    }

    /// The main session, if one is live.
    pub fn live(&self) -> Option<&Arc<Session<P, J>>> {
        self.live_in(self.main)
    }

    /// The session of a slot, if one is live.
    pub fn live_in(&self, slot: usize) -> Option<&Arc<Session<P, J>>> {
        match &self.slots[slot].stage {
            SlotStage::Live { session, .. } => Some(session),
            _ => None,
        }
    }

    /// The slot of session `number`, while it is live.
    fn slot_of(&self, number: u64) -> Option<usize> {
        (0..NUM_SLOTS).find(|slot| self.live_in(*slot).is_some_and(|live| live.number == number))
    }

    /// Returns whether a queue pair has ended the session of a slot while its controller still exists.
    pub(crate) fn is_reset(&self, slot: usize) -> bool {
        matches!(self.slots[slot].stage, SlotStage::Reset { .. })
    }

    /// Returns whether there will be no further session.
    pub fn is_dead(&self) -> bool {
        matches!(self.slots[self.main].stage, SlotStage::Dead(_))
    }

    /// The namespaces as they were first identified.
    pub fn identity(&self) -> Option<&Arc<[Attached]>> {
        self.identity.as_ref()
    }

    /// The number of sessions that were lost on a portal.
    pub(crate) fn losses(&self, portal: usize) -> u64 {
        self.losses[portal]
    }

    /// Statistics of the sessions, without the counters of transfers.
    pub fn stats(&self) -> SessionStats {
        SessionStats {
            is_live: self.live().is_some(),
            reconnects: self.reconnects,
            failovers: self.failovers,
            paths: self.portals.len() as u64,
            failed_paths: self.failures.iter().flatten().count() as u64,
            ..SessionStats::default()
        }
    }

    /// The time at which to call `Lifecycle::handle_time`.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timeout_of = |(slot, state): (usize, &SessionSlot<P, J>)| match &state.stage {
            SlotStage::Waiting { until } => {
                (slot == self.main || self.second_portal(slot).is_some()).then_some(*until)
            }
            SlotStage::Connecting { deadline } => Some(*deadline),
            SlotStage::Reset { since, .. } => Some(*since), // at once
            SlotStage::Leaving { until, .. } => Some(*until),
            SlotStage::Live { .. } | SlotStage::Dead(_) => None,
        };
        self.slots.iter().enumerate().filter_map(timeout_of).min()
    }

    /// The next action.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    // Calls for queue pairs.

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
        self.inherit_pair();
        Ok(())
    }

    /// Adds a queue pair that a child process has inherited, even if the controller grants too few: it then gets no
    /// I/O queue.
    pub(crate) fn inherit_pair(&mut self) {
        self.num_pairs += 1;
    }

    /// Subtracts a queue pair from the count.
    pub fn remove_pair(&mut self) {
        self.num_pairs -= 1;
    }

    /// Takes a queue identifier of session `number`; `None` when the session is over or grants no more.
    pub fn take_qid(&mut self, number: u64) -> Option<u16> {
        self.slot_of(number).and_then(|slot| self.slots[slot].free_qids.pop_front())
    }

    /// Gives back a queue identifier of session `number`.
    pub(crate) fn give_qid(&mut self, number: u64, qid: u16) {
        if let Some(slot) = self.slot_of(number) {
            self.slots[slot].free_qids.push_back(qid);
        }
    }

    /// Ends session `number` because a queue pair found it broken; returns whether it was live.
    ///
    /// The session ends at once, not when its controller is dropped. A queue pair that joined it again could
    /// reach a restarted target, whose flush says nothing about earlier writes.
    pub(crate) fn reset(&mut self, number: u64, reason: Failure) -> bool {
        let Some(slot) = self.slot_of(number) else { return false };
        let SlotStage::Live { session, since } = &self.slots[slot].stage else { return false };
        let stage = SlotStage::Reset {
            session: Arc::clone(session),
            since: *since,
            reason: reason.clone(),
        };
        self.slots[slot].stage = stage;
        if slot == self.main {
            self.lost = Some(reason);
            if self.live_in(1 - slot).is_some() {
                self.fail_over();
            }
        }
        true
    }

    // Calls for the controllers and for time.

    /// Handles timeouts and resets, and drops the controllers of sessions that were left. `steps` names the current
    /// step of the controller of each slot, if it is being connected.
    pub(crate) fn handle_time(&mut self, now: Instant, steps: [&str; NUM_SLOTS]) {
        for slot in [self.main, 1 - self.main] {
            match &self.slots[slot].stage {
                SlotStage::Waiting { until } if now >= *until && slot == self.main => {
                    self.num_tried = 0;
                    self.connect_next(now);
                }
                SlotStage::Waiting { until } if now >= *until => {
                    if let Some(portal) = self.second_portal(slot) {
                        self.connect(now, slot, portal);
                    }
                }
                SlotStage::Connecting { deadline } if now >= *deadline => {
                    let failure = Failure::new(ErrorKind::TimedOut, "no answer within its time");
                    self.handle_failed(now, slot, failure.at(steps[slot]));
                }
                SlotStage::Reset { reason, .. } => {
                    let reason = reason.clone();
                    self.handle_failed(now, slot, reason);
                }
                SlotStage::Leaving { session, until }
                    if now >= *until || !session.underway.delays_leaving() =>
                {
                    let failure = Failure::new(ErrorKind::Disconnected, "it was left");
                    self.end_leaving(now, slot, failure);
                }
                _ => {}
            }
        }
        self.replace_leaving(now);
    }

    /// Handles a slot whose controller is up and identified; `namespaces` are the namespaces as queue pairs see them.
    pub(crate) fn handle_ready(
        &mut self,
        now: Instant,
        slot: usize,
        join_info: J,
        identified: &Identified,
        namespaces: Vec<Attached>,
    ) {
        if !matches!(self.slots[slot].stage, SlotStage::Connecting { .. }) {
            return;
        }
        let Some(queue_depth) = namespaces.first().map(|first| first.namespace.queue_depth) else {
            let failure = Failure::new(ErrorKind::NotFound, "the subsystem has no namespace");
            return self.handle_failed(now, slot, failure);
        };
        let seen = self.identity.get_or_insert_with(|| namespaces.clone().into());
        if let Err(failure) = check_identities(seen, &namespaces) {
            return self.handle_failed(now, slot, failure);
        }
        let path = self.slots[slot].portal;
        let portal = self.portals[path].clone();
        if slot != self.main {
            self.say(Level::Info, format!("connected to a second path, {portal}"));
        } else if self.next_number > 1 {
            self.say(Level::Info, format!("reconnected to {portal}"));
        }
        let session = Arc::new(Session {
            number: self.next_number,
            portal,
            path,
            join_info,
            num_io_queues: identified.num_io_queues,
            queue_entries: queue_depth + 1,
            has_volatile_write_cache: identified.has_volatile_write_cache,
            namespaces,
            is_optimized: AtomicBool::new(!identified.is_non_optimized),
            proven: AtomicBool::new(false),
            underway: Underway::default(),
        });
        let Digests { header, data } = identified.digests;
        self.always_digested &= header && data || identified.is_secured;
        self.next_number += 1;
        let may_clear = |path: usize| !self.keeps_two || path == session.path;
        for (path, failure) in self.failures.iter_mut().enumerate() {
            if !is_stale(failure) && may_clear(path) {
                *failure = None;
            }
        }
        let state = &mut self.slots[slot];
        self.reconnects += u64::from(std::mem::replace(&mut state.was_live, true));
        state.free_qids = (1..=session.num_io_queues).collect();
        state.stage = SlotStage::Live { session, since: now };
    }

    /// Handles namespaces that were identified again while the session of a slot is live. A namespace that has grown
    /// keeps the old size here. A namespace that was replaced, or has shrunk, ends the session. The session is left if
    /// a namespace became inaccessible.
    pub(crate) fn handle_changed(
        &mut self,
        now: Instant,
        slot: usize,
        identified: &Identified,
        mut namespaces: Vec<Attached>,
    ) {
        let (Some(session), Some(seen)) = (self.live_in(slot), &self.identity) else { return };
        if let Some(failure) = &identified.inaccessible {
            session.underway.leave();
            return self.handle_failed(now, slot, failure.clone());
        }
        session.is_optimized.store(!identified.is_non_optimized, Ordering::Relaxed);
        for (seen, now) in seen.iter().zip(&mut namespaces) {
            now.namespace.num_blocks = now.namespace.num_blocks.min(seen.namespace.num_blocks);
        }
        if let Err(failure) = check_identities(seen, &namespaces) {
            self.handle_failed(now, slot, failure);
        }
    }

    /// Handles a failed attempt to connect, or the loss of the session of a slot.
    pub(crate) fn handle_failed(&mut self, now: Instant, slot: usize, failure: Failure) {
        let state = &mut self.slots[slot];
        let lost = match &state.stage {
            SlotStage::Waiting { .. } | SlotStage::Dead(_) => return,
            SlotStage::Leaving { .. } => return self.end_leaving(now, slot, failure),
            SlotStage::Connecting { .. } => None,
            SlotStage::Live { session, since } | SlotStage::Reset { session, since, .. } => {
                let lived = now.saturating_duration_since(*since);
                if lived >= PROVEN_AFTER || session.proven.load(Ordering::Relaxed) {
                    state.backoff.reset();
                } else {
                    state.backoff.is_fresh = false;
                }
                Some(Arc::clone(session))
            }
        };
        let was_live = lost.is_some();
        let portal = state.portal;
        state.stage = SlotStage::Waiting { until: now };
        self.losses[portal] += u64::from(was_live);
        if was_live && slot == self.main {
            self.down_since = now;
            self.num_tried = 0;
        }
        let opening = self.identity.is_none();
        let failure = failure.at(&self.portals[portal]);
        self.report_failure(&failure, portal, opening, was_live);
        self.record_failure(portal, opening, &failure);
        if slot == self.main
            && !self.fail_over()
            && let Some(final_failure) = self.reason_to_give_up(now, opening, &failure)
        {
            return self.give_up(final_failure);
        }
        if !opening {
            self.lost = Some(failure.clone());
        }
        if let Some(session) = lost.filter(|session| session.underway.delays_leaving()) {
            let until = deadline(now, self.limits.connect_timeout);
            self.slots[slot].stage = SlotStage::Leaving { session, until };
            return;
        }
        self.actions.push_back(Action::Close { slot, failure });
        self.plan_retry(now, slot);
    }

    /// Logs a failure: as a warning if the user does not learn of it otherwise.
    fn report_failure(&mut self, failure: &Failure, portal: usize, opening: bool, was_live: bool) {
        // With a single path, the caller that opens gets the failure as its error. A loss without a reconnect is the
        // error of the next I/O, and no warning: peers lose each other at the end of each job.
        let has_several = self.portals.len() > 1;
        let reconnects = has_several || !self.limits.ctrl_loss_tmo.is_zero();
        // A refusal may last until somebody acts. Later attempts fail alike, and are no warnings.
        let is_refusal = matches!(failure.kind, ErrorKind::Refused | ErrorKind::Unsupported);
        let is_news = is_refusal && self.failures[portal].as_ref() != Some(failure);
        if opening && has_several {
            self.say(Level::Warn, failure.to_string());
        } else if was_live && reconnects {
            self.say(Level::Warn, format!("lost {failure}; reconnecting"));
        } else if !opening && !was_live && is_news {
            self.say(Level::Warn, format!("cannot reconnect to {failure}"));
        } else {
            self.say(Level::Debug, failure.to_string());
        }
    }

    /// Decides when a slot without a session connects again.
    fn plan_retry(&mut self, now: Instant, slot: usize) {
        let backoff = &mut self.slots[slot].backoff;
        if slot != self.main {
            let wait = if std::mem::take(&mut backoff.is_fresh) {
                Duration::ZERO
            } else {
                backoff.next() * SECOND_PATIENCE
            };
            self.slots[slot].stage = SlotStage::Waiting { until: now + wait };
        } else if self.num_tried >= self.portals.len() || !backoff.is_fresh {
            // All portals were tried in this round, or a session failed early: wait, longer each time.
            self.slots[slot].stage = SlotStage::Waiting { until: now + backoff.next() };
        } else {
            self.connect_next(now);
        }
    }

    /// Makes the other slot the main one, if it has a session or is being connected; returns whether it did.
    fn fail_over(&mut self) -> bool {
        let other = 1 - self.main;
        match &self.slots[other].stage {
            SlotStage::Live { session, .. } => {
                let text = format!("continuing on {}", session.portal);
                self.failovers += 1;
                self.say(Level::Info, text);
            }
            SlotStage::Connecting { .. } => self.num_tried = 1,
            _ => return false,
        }
        self.main = other;
        true
    }

    /// Drops the controller of a session that was left.
    fn end_leaving(&mut self, now: Instant, slot: usize, failure: Failure) {
        self.slots[slot].stage = SlotStage::Waiting { until: now };
        self.actions.push_back(Action::Close { slot, failure });
    }

    /// Makes the other slot the main one if the main session is being left and the other slot is free: it then connects
    /// at once.
    fn replace_leaving(&mut self, now: Instant) {
        let leaving = &self.slots[self.main];
        let portal = leaving.portal;
        let other = 1 - self.main;
        if matches!(leaving.stage, SlotStage::Leaving { .. })
            && matches!(self.slots[other].stage, SlotStage::Waiting { .. })
        {
            let next = &mut self.slots[other];
            next.stage = SlotStage::Waiting { until: now };
            next.portal = portal;
            next.was_live = true;
            self.main = other;
        }
    }

    /// Ends the sessions for good.
    pub(crate) fn give_up(&mut self, failure: Failure) {
        self.slots.iter_mut().for_each(|slot| slot.stage = SlotStage::Dead(failure.clone()));
    }

    /// Records the last failure of a portal.
    fn record_failure(&mut self, portal: usize, opening: bool, failure: &Failure) {
        let known = &mut self.failures[portal];
        // A timeout says less than an earlier answer: another host may be listening there.
        let says_less = |known: &Failure| {
            failure.kind == ErrorKind::TimedOut && known.kind == ErrorKind::Corrupt
        };
        if !(opening && known.as_ref().is_some_and(says_less)) {
            *known = Some(failure.clone());
        }
    }

    /// The failure to give up with; `None`: try again.
    fn reason_to_give_up(
        &mut self,
        now: Instant,
        opening: bool,
        failure: &Failure,
    ) -> Option<Failure> {
        if self.failures.iter().all(is_stale) {
            return Some(failure.clone());
        }
        let Limits { connect_timeout, ctrl_loss_tmo } = self.limits;
        let limit = if opening { connect_timeout } else { ctrl_loss_tmo };
        let is_late = now.saturating_duration_since(self.down_since) >= limit;
        let is_over =
            is_late || opening && self.num_tried >= self.portals.len() && !self.next_round();
        is_over.then(|| self.final_failure(opening, limit))
    }

    /// Counts another round of opening; returns whether there may be one. A damaged byte or a broken connection may be
    /// transient; a refusal or a timeout is not. A target that is busy is tried again as long as there is time.
    fn next_round(&mut self) -> bool {
        if self.failures.iter().flatten().any(|failure| failure.kind == ErrorKind::Busy) {
            return true;
        }
        let may_pass = |failure: &Failure| {
            matches!(failure.kind, ErrorKind::Corrupt | ErrorKind::Disconnected)
        };
        self.rounds_left = self.rounds_left.saturating_sub(1);
        self.rounds_left > 0 && self.failures.iter().flatten().any(may_pass)
    }

    /// The failure to give up with: the first portal's failure, followed by the other portals' failures.
    fn final_failure(&self, opening: bool, limit: Duration) -> Failure {
        let mut failures = self.failures.iter().flatten();
        let mut last = failures.next().cloned().expect("something has failed");
        for failure in failures {
            last.message.push_str(&format!("; {failure}"));
        }
        if !opening {
            last.kind = ErrorKind::Disconnected;
            last.message = format!("given up after {} s: {}", limit.as_secs(), last.message);
        }
        last
    }

    /// Starts to connect the main slot to the next portal; skips portals that led to another namespace.
    fn connect_next(&mut self, now: Instant) {
        let num_portals = self.portals.len();
        let mut portal = self.slots[self.main].portal;
        for _ in 0..num_portals {
            portal = (portal + 1) % num_portals;
            self.num_tried += 1;
            if !is_stale(&self.failures[portal]) {
                break;
            }
        }
        self.connect(now, self.main, portal);
    }

    /// The portal that the slot of the second session tries next; `None` if there is no use for it now.
    fn second_portal(&self, slot: usize) -> Option<usize> {
        if !self.keeps_two || self.live().is_none() {
            return None;
        }
        let num_portals = self.portals.len();
        let used = self.slots[self.main].portal;
        let mut next = (1..=num_portals).map(|step| (self.slots[slot].portal + step) % num_portals);
        next.find(|portal| *portal != used && !is_stale(&self.failures[*portal]))
    }

    /// Starts to connect a slot to a portal, which gets an equal share of the time for all portals.
    fn connect(&mut self, now: Instant, slot: usize, portal: usize) {
        let share = self.limits.connect_timeout / self.portals.len() as u32;
        let state = &mut self.slots[slot];
        state.portal = portal;
        state.stage = SlotStage::Connecting { deadline: deadline(now, share) };
        self.actions.push_back(Action::Connect { slot, portal });
    }

    fn say(&mut self, level: Level, text: String) {
        self.actions.push_back(Action::Say { level, text });
    }
}

/// Returns whether a portal led to another namespace, so that it is not tried again.
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

/// The wait before the next round: 10 ms, doubling up to 500 ms, minus a random part of up to half, so that
/// many hosts of one target do not reconnect at the same time.
#[derive(Debug)]
pub(super) struct Backoff {
    /// The next wait, without the random part.
    step: Duration,
    /// True if no wait was taken since the start or a reset. Set to false to make every attempt wait.
    pub(super) is_fresh: bool,
    /// The state of the random numbers, never 0.
    random: u64,
}

impl Backoff {
    /// `random` is any number that differs among hosts.
    pub(super) fn new(random: u64) -> Backoff {
        Backoff { step: BACKOFF_MIN, is_fresh: true, random: random | 1 }
    }

    /// Restarts with short waits.
    pub(super) fn reset(&mut self) {
        self.step = BACKOFF_MIN;
        self.is_fresh = true;
    }

    /// The next wait.
    pub(super) fn next(&mut self) -> Duration {
        let step = self.step;
        self.is_fresh = false;
        self.step = (step * 2).min(BACKOFF_MAX);
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        step - step.mul_f64((self.random % 1000) as f64 / 2000.0)
    }
}

/// The most sessions at a time.
pub const NUM_SLOTS: usize = 2;

/// The factor by which waits for a second session are longer: up to 2 s, because a target whose namespaces are not
/// accessible is asked again and again.
const SECOND_PATIENCE: u32 = 4;

/// The most rounds over all portals while opening, unless a target is busy.
const OPENING_ROUNDS: u32 = 3;

/// A session that lasted this long counts as working, even if no I/O has succeeded in it.
const PROVEN_AFTER: Duration = Duration::from_secs(1);
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
