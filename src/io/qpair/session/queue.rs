//! An I/O queue over NVMe/TCP: it joins sessions, issues I/Os in them and leaves them.
//!
//! Read [`IoQueue::turn`] first. `qpair/tcp/queue.rs` has the sockets, and the queue pairs that share the queue;
//! `paths.rs` chooses the path of each I/O.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use slab::Slab;

use super::connect::Event;
use super::lifecycle::NUM_SLOTS;
use super::paths::{Candidate, PathLoad, choose};
use super::{
    Answer, Attempt, Backlog, Channel, Failure, JoinInfo, Session, SessionState, Shared, Terms,
};
use crate::address::TcpAddress;
use crate::qpair::{Fence, Io, IoError, IoOp, Namespace};
use dlfs_base::error::ErrorKind;
use dlfs_nvme::auth::TlsPsk;
use dlfs_nvme::nvme::{Cqe, Sgl, Sqe};
use dlfs_nvme::tcp::host::{CommandError, Transfer};

/// One route to the namespaces: a socket address that the name in one of the user's paths resolves to.
#[derive(Debug, Clone)]
pub struct Portal {
    /// The user's address.
    pub address: TcpAddress,
    /// The socket address that it resolves to.
    pub socket: SocketAddr,
    /// The TLS PSK for the subsystem, if the kernel's keyring had it.
    pub psk: Option<TlsPsk>,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.socket, self.address.subnqn)
    }
}

/// The shared state of the queues of an NVMe/TCP controller.
pub type TcpShared = Shared<Portal, JoinInfo>;

type TcpSession = Session<Portal, JoinInfo>;

type QueueChannel = Channel<Attempt>;

/// The connections of a queue, at most one for each slot: sockets in the engine `tcp`, or a simulated network in tests.
pub trait Carrier {
    /// Starts to connect to `address`.
    fn open(&mut self, slot: usize, address: SocketAddr) -> Result<(), Failure>;

    /// Transfers the bytes of `channel` in both directions. After an error the connection is lost.
    fn transfer(
        &mut self,
        slot: usize,
        now: Instant,
        channel: &mut Channel<Attempt>,
    ) -> Result<(), Failure>;

    /// Sends the queued bytes of `channel`. After an error the connection is lost.
    fn send(
        &mut self,
        slot: usize,
        now: Instant,
        channel: &mut Channel<Attempt>,
    ) -> Result<(), Failure>;

    /// Closes the connection, which then writes to no buffer any more. With `owes_data`, discards unsent bytes.
    fn close(&mut self, slot: usize, owes_data: bool);
}

/// An I/O queue. It owns no socket and never reads a clock. The `Backlog` holds the I/Os that are not on a
/// connection.
///
/// Members submit to the queue, each for one namespace of the session; a completion names the member of its I/O.
///
/// The queue has a connection for each slot of the [`Lifecycle`](super::Lifecycle), to the session of that slot. Each
/// read goes to the slot that `choose` names. Writes and flushes, and all I/Os of a host that writes, go to the slot of
/// the main session.
///
/// [`IoQueue::turn`] advances the queue, with the [`Carrier`] of its connections.
#[derive(Debug)]
pub struct IoQueue {
    /// The parameters of connections; each takes the subsystem from the portal of its session.
    terms: Terms,
    /// The time without any success after which I/Os in the backlog fail.
    ctrl_loss_tmo: Duration,
    members: Slab<QueueMember>,
    /// True if some member has a fence.
    has_fence: bool,
    /// The number of sessions that the queue has joined.
    pub(crate) num_joins: u64,
    slots: [QueueSlot; NUM_SLOTS],
    /// True if two sessions are kept, on two paths.
    has_two: bool,
    /// The reason why there will be no further connection; `None` while there may be one.
    dead: Option<String>,
    pub(crate) backlog: Backlog,
    /// The time of the last turn.
    now: Instant,
}

/// The connection to the session of one slot, and its load.
#[derive(Debug)]
struct QueueSlot {
    state: SlotState,
    load: PathLoad,
}

/// One submitter of a queue.
#[derive(Debug)]
struct QueueMember {
    /// The index of its namespace in the session.
    ns_index: usize,
    /// The namespace as of the last joined session, with the largest transfer limit of all sessions: see
    /// [`Namespace::in_session`].
    namespace: Namespace,
    /// The fence of the member's writes; `None`: no fence.
    fence: Option<Arc<Fence>>,
    /// Blocks that were reported as corrupt and not read since.
    corrupt: Vec<Range<u64>>,
    /// I/Os that were taken and whose completions were not returned yet.
    owed: usize,
    /// Set once the member was removed; outstanding I/Os keep its number.
    is_removed: bool,
}

/// The state of a slot's connection.
#[derive(Debug)]
enum SlotState {
    /// No connection; the next attempt is at this time. `attempt` is the number of that attempt within one session,
    /// counted from 1.
    Down { retry_at: Instant, attempt: u32 },
    /// Connecting to a session.
    Joining { channel: QueueChannel, session: Arc<TcpSession>, qid: u16, attempt: u32 },
    /// In a session.
    Joined { channel: QueueChannel, session: Arc<TcpSession>, qid: u16 },
}

impl IoQueue {
    /// Creates a queue that joins a session as soon as one is live.
    pub fn new(now: Instant, terms: Terms, ctrl_loss_tmo: Duration) -> IoQueue {
        IoQueue {
            terms,
            ctrl_loss_tmo,
            members: Slab::new(),
            has_fence: false,
            num_joins: 0,
            slots: [(); NUM_SLOTS].map(|()| QueueSlot {
                state: SlotState::Down { retry_at: now, attempt: 1 },
                load: PathLoad::default(),
            }),
            has_two: false,
            dead: None,
            backlog: Backlog::new(now),
            now,
        }
    }

    /// Adds a member that submits I/Os for the namespace at index `ns_index`, whose properties are `namespace`;
    /// returns its number.
    pub fn add_member(&mut self, ns_index: usize, namespace: Namespace) -> usize {
        self.members.insert(QueueMember {
            ns_index,
            namespace,
            fence: None,
            corrupt: Vec::new(),
            owed: 0,
            is_removed: false,
        })
    }

    /// Removes a member, which submits no more I/Os and wants no completions. Its unsent I/Os are not sent. A
    /// connection with writes or flushes of the member is closed, so that they cannot be applied later. The session of
    /// that connection ends, too: a queue that joined the session again could reach another target in its place.
    pub fn remove_member(&mut self, member: usize, shared: &TcpShared, carrier: &mut impl Carrier) {
        self.members[member].is_removed = true;
        let is_late = |attempt: &Attempt| attempt.member == member && attempt.io.op != IoOp::Read;
        for slot in 0..NUM_SLOTS {
            if self.channel(slot).is_some_and(|channel| channel.outstanding().any(is_late)) {
                let message = "a queue pair with writes on their way was dropped";
                self.fail(slot, Failure::new(ErrorKind::Disconnected, message), shared, carrier);
            }
        }
        self.backlog.fail_those_of(member, "its queue pair was dropped");
        self.backlog.withdraw_reports((member, self.members[member].ns_index), shared);
        self.forget_if_done(member);
    }

    /// Frees the number of a member that was removed, once all its I/Os have ended.
    fn forget_if_done(&mut self, member: usize) {
        if self.members[member].is_removed && self.members[member].owed == 0 {
            self.members.remove(member);
        }
    }

    /// The namespace of a member, with the limits that I/Os must respect.
    pub fn namespace(&self, member: usize) -> &Namespace {
        &self.members[member].namespace
    }

    /// The number of I/Os of all members that were taken and not completed.
    pub fn owed(&self) -> usize {
        self.backlog.owed
    }

    /// Sets the fence of a member: writes taken from now on are not sent while it is closed.
    pub(crate) fn use_fence(&mut self, member: usize, fence: &Arc<Fence>) {
        self.members[member].fence = Some(Arc::clone(fence));
        self.has_fence = true;
    }

    /// Returns whether the queue has joined a session.
    pub fn is_joined(&self) -> bool {
        self.slots.iter().any(QueueSlot::is_joined)
    }

    /// The name of the current step of a queue that has not joined a session.
    pub fn stage(&self) -> &'static str {
        let stage = self.slots.iter().find_map(|slot| slot.connection()?.0.stage());
        stage.unwrap_or("waiting for the controller")
    }

    /// The connection of a slot; `None` while it is down.
    pub fn channel(&mut self, slot: usize) -> Option<&mut QueueChannel> {
        match &mut self.slots[slot].state {
            SlotState::Joining { channel, .. } | SlotState::Joined { channel, .. } => Some(channel),
            SlotState::Down { .. } => None,
        }
    }

    /// Returns whether to wait for room to send on the connection of a slot, besides data to receive.
    pub(crate) fn wants_writable(&self, slot: usize) -> bool {
        self.slots[slot].connection().is_some_and(|(channel, _)| channel.wants_writable())
    }

    /// The time at which the next turn must begin, even if no bytes arrive.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let channels = self.slots.iter().filter_map(|slot| slot.connection()?.0.poll_timeout());
        // A session that is left is replaced in the other slot, also on a single path.
        let is_left = self.slots.iter().any(QueueSlot::is_left);
        let uses_both = self.has_two || is_left || self.slots[1].connection().is_some();
        let retry = match &self.slots[0].state {
            _ if self.dead.is_some() => None,
            // Another session may be live while this queue waits for one, or writes wait for the main session.
            _ if uses_both => {
                let waits = is_left || !self.is_joined() || !self.backlog.waiting.is_empty();
                waits.then(|| self.now + SESSION_INTERVAL)
            }
            SlotState::Down { retry_at, .. } => Some(*retry_at),
            SlotState::Joining { .. } | SlotState::Joined { .. } => None,
        };
        let backlog = self.backlog.next_timeout(self.now);
        channels.chain(retry).chain(backlog).min()
    }

    /// Records that these blocks returned corrupt data: a member's next read of them sets Force Unit Access (FUA). Does
    /// nothing while the member has `MAX_CORRUPT` such ranges.
    pub(crate) fn report_corrupt(&mut self, member: usize, blocks: Range<u64>) {
        let corrupt = &mut self.members[member].corrupt;
        if corrupt.len() < MAX_CORRUPT {
            corrupt.push(blocks);
        }
    }

    /// Takes I/Os of a member while there is room.
    pub fn take(&mut self, member: usize, pending: &mut VecDeque<Io>) -> usize {
        let QueueMember { ns_index, namespace, fence, corrupt, owed, .. } =
            &mut self.members[member];
        let owner = (member, *ns_index);
        let count = self.backlog.take(owner, pending, namespace, fence.as_ref(), corrupt);
        *owed += count;
        count
    }

    /// Runs one turn. The queue's completions are then ready.
    pub fn turn(&mut self, now: Instant, shared: &TcpShared, carrier: &mut impl Carrier) {
        self.now = now;
        self.has_two = shared.keeps_two;
        self.slots.iter_mut().for_each(|slot| slot.publish(shared));
        for slot in 0..NUM_SLOTS {
            match self.slots[slot].state {
                SlotState::Down { retry_at, attempt } if now >= retry_at => {
                    self.try_join(slot, attempt, shared, carrier);
                }
                _ => {
                    self.notice_lost_session(slot, shared, carrier);
                    self.notice_closed_fence(slot, shared, carrier);
                }
            }
            if let Some(channel) = self.channel(slot) {
                // A failure is handled before events: a target may send answers in the same segment as the end of
                // the connection. `close` handles the answers.
                match carrier.transfer(slot, now, channel) {
                    Ok(()) => self.continue_joining(slot, shared, carrier),
                    Err(failure) => self.fail(slot, failure, shared, carrier),
                }
            }
        }
        self.backlog.wake_delayed(now);
        self.issue(now, shared);
        match &self.dead {
            // There will be no further session.
            Some(reason) => self.backlog.fail_all(reason),
            // The queue gives up after the same time as the controller.
            None => self.backlog.give_up_in_time(now, self.ctrl_loss_tmo),
        }
        self.send(now, shared, carrier);
    }

    /// Sends the commands that were put on the connections since the last turn.
    pub fn send(&mut self, now: Instant, shared: &TcpShared, carrier: &mut impl Carrier) {
        for slot in 0..NUM_SLOTS {
            if let Some(channel) = self.channel(slot)
                && let Err(failure) = carrier.send(slot, now, channel)
            {
                self.fail(slot, failure, shared, carrier);
            }
        }
    }

    /// Puts waiting I/Os on the connections.
    pub fn issue(&mut self, now: Instant, shared: &TcpShared) {
        self.now = now;
        while let Some(first) = self.backlog.waiting.front() {
            let Some(slot) = self.slot_for(first.io.op, shared) else { break };
            let QueueSlot { state: SlotState::Joined { channel, session, .. }, load } =
                &mut self.slots[slot]
            else {
                break;
            };
            let Some(mut attempt) = self.backlog.next_to_issue(shared, session) else { break };
            if self.members[attempt.member].is_removed {
                // It waits again because its connection was closed, or the controller asked for a retry.
                let reason = IoError::Disconnected("its queue pair was dropped".to_owned());
                self.backlog.end(attempt, Err(reason));
                continue;
            }
            if attempt.io.op != IoOp::Read && !session.underway.begin() {
                shared.writes_ended(session, 1);
                self.backlog.waiting.push_front(attempt);
                break;
            }
            let (sqe, transfer) = command(session, &attempt);
            attempt.sent_at = Some(now);
            load.outstanding += 1;
            let taken = channel.submit(self.now, sqe, transfer, false, attempt);
            assert!(taken.is_ok(), "the connection said that it has room");
            if self.has_two {
                self.slots[1 - slot].load.passed_over();
            }
        }
    }

    /// The slot that takes an I/O of this kind now; `None`: the I/O waits.
    fn slot_for(&self, op: IoOp, shared: &TcpShared) -> Option<usize> {
        let [one, two] = &self.slots;
        let candidate = |slot: &QueueSlot| match &slot.state {
            SlotState::Joined { channel, session, .. }
                if !session.underway.is_left()
                    && (op == IoOp::Read && shared.spreads_reads
                        || session.number == shared.live()) =>
            {
                Some(Candidate {
                    is_optimized: session.is_optimized.load(Ordering::Relaxed),
                    has_room: channel.has_room(),
                    cost: slot.load.cost(),
                })
            }
            _ => None,
        };
        choose([candidate(one), candidate(two)])
    }

    /// Takes the next completion.
    pub fn next_completion(&mut self, shared: &TcpShared) -> Option<Answer> {
        loop {
            let answer = self.next_answer(shared)?;
            self.backlog.owed -= 1;
            let member = &mut self.members[answer.member];
            member.owed -= 1;
            if !member.is_removed {
                return Some(answer);
            }
            self.forget_if_done(answer.member);
        }
    }

    /// The next I/O that has ended, of any member.
    fn next_answer(&mut self, shared: &TcpShared) -> Option<Answer> {
        if let Some(answer) = self.backlog.finished.pop_front() {
            return Some(answer);
        }
        loop {
            let now = self.now;
            let (attempt, result, slot) = self.slots.iter_mut().find_map(|slot| {
                let SlotState::Joined { channel, .. } = &mut slot.state else { return None };
                while let Some(event) = channel.poll_event(now) {
                    if let Event::Done { payload, result } = event {
                        return Some((payload, result, slot));
                    }
                }
                None
            })?;
            slot.load.done(attempt.sent_at.map_or(Duration::ZERO, |sent_at| now - sent_at));
            let SlotState::Joined { session, .. } = &slot.state else { return None };
            let success = matches!(&result, Ok(cqe) if cqe.status().is_success());
            let read = attempt.io.op == IoOp::Read;
            if success && read && session.proven.load(Ordering::Relaxed) {
                match self.backlog.succeed(attempt) {
                    Some(answer) => return Some(answer),
                    None => continue,
                }
            }
            let session = Arc::clone(session);
            if let Some(answer) = self.complete_or_retry(shared, &session, attempt, result) {
                return Some(answer);
            }
        }
    }

    /// Leaves all sessions.
    pub fn leave(&mut self, reason: &str, shared: &TcpShared, carrier: &mut impl Carrier) {
        for slot in 0..NUM_SLOTS {
            self.close(slot, reason, false, shared, carrier);
        }
    }

    /// Leaves a session that has ended.
    fn notice_lost_session(&mut self, slot: usize, shared: &TcpShared, carrier: &mut impl Carrier) {
        let Some((_, session)) = self.slots[slot].connection() else { return };
        if self.lets_writes_end(slot, shared) {
            return;
        }
        if let Some(reason) = shared.why_over(session.number) {
            self.close(slot, &reason, false, shared, carrier);
        }
    }

    /// Returns whether the connection of a slot stays in a session that is left, until its writes and flushes have
    /// ended. The connection's time limits bound the wait, and the slot's next session ends it.
    fn lets_writes_end(&self, slot: usize, shared: &TcpShared) -> bool {
        let SlotState::Joined { channel, session, .. } = &self.slots[slot].state else {
            return false;
        };
        session.underway.is_left()
            && shared.number_in(slot) == 0
            && channel.outstanding().any(|attempt| attempt.io.op != IoOp::Read)
    }

    /// Ends the connection when a fence has closed: the rest of a partly sent write must not be sent. The
    /// session ends, too, because its target might hold back some of the sent bytes.
    fn notice_closed_fence(&mut self, slot: usize, shared: &TcpShared, carrier: &mut impl Carrier) {
        let SlotState::Joined { channel, .. } = &self.slots[slot].state else { return };
        if self.has_fence && channel.outstanding().any(Attempt::is_fenced) {
            let message = "the time to write has passed";
            self.fail(slot, Failure::new(ErrorKind::Disconnected, message), shared, carrier);
        }
    }

    /// The live session of a slot, if there is one. Notices when there will be none at all.
    fn session_for(&mut self, slot: usize, shared: &TcpShared) -> Option<Arc<TcpSession>> {
        if shared.number_in(slot) != 0 {
            return shared.session_in(slot);
        }
        if shared.live() == 0 {
            match shared.session_state(&mut self.backlog) {
                SessionState::Live(session) => {
                    return (session.number == shared.number_in(slot)).then_some(session);
                }
                SessionState::Pending => {}
                SessionState::Ended(reason) => self.dead = Some(reason),
            }
        }
        None
    }

    /// Starts to connect to the session of a slot, if one is live.
    fn try_join(
        &mut self,
        slot: usize,
        attempt: u32,
        shared: &TcpShared,
        carrier: &mut impl Carrier,
    ) {
        if self.dead.is_some() {
            return;
        }
        let retry = SlotState::Down { retry_at: self.now + SESSION_INTERVAL, attempt: 1 };
        let Some(session) = self.session_for(slot, shared) else {
            self.slots[slot].state = retry;
            return;
        };
        let Some(qid) = shared.with(|lifecycle| lifecycle.take_qid(session.number)) else {
            self.slots[slot].state = retry;
            if session.number == shared.live() {
                let granted = session.num_io_queues;
                self.backlog.fail_all(&format!("the target now grants only {granted} I/O queues"));
            }
            return;
        };
        let mut terms = self.terms.of_io_queue(&session.join_info, qid, session.queue_entries);
        terms.common.subnqn = session.portal.address.subnqn.clone();
        let opened = carrier.open(slot, session.portal.socket);
        let channel = Channel::new(self.now, terms);
        self.slots[slot].state = SlotState::Joining { channel, session, qid, attempt };
        if let Err(failure) = opened {
            self.fail(slot, failure, shared, carrier);
        }
    }

    /// Handles the events of a connection that has not joined its session yet.
    fn continue_joining(&mut self, slot: usize, shared: &TcpShared, carrier: &mut impl Carrier) {
        let SlotState::Joining { channel, attempt, .. } = &mut self.slots[slot].state else {
            return;
        };
        match channel.poll_event(self.now) {
            None => {}
            Some(Event::Ready { .. }) => self.become_joined(slot),
            // The target may not have noticed yet that the previous connection of this queue is closed.
            Some(Event::Failed { failure, refused: true }) if *attempt < MAX_JOIN_ATTEMPTS => {
                let retry_at = self.now + JOIN_INTERVAL;
                let attempt = *attempt + 1;
                self.close(slot, &failure.message, false, shared, carrier);
                self.backlog.last_failure = Some(failure);
                self.slots[slot].state = SlotState::Down { retry_at, attempt };
            }
            Some(Event::Failed { failure, .. }) => self.fail(slot, failure, shared, carrier),
            Some(Event::Concatenated { .. }) => {
                let message = "a key was generated on an I/O queue";
                self.fail(slot, Failure::new(ErrorKind::Internal, message), shared, carrier);
            }
            Some(Event::Done { .. }) => unreachable!("nothing was submitted yet"),
        }
    }

    /// Begins to use the connection of a slot that has joined its session.
    fn become_joined(&mut self, slot: usize) {
        let down = SlotState::Down { retry_at: self.now, attempt: 1 };
        let SlotState::Joining { mut channel, session, qid, .. } =
            std::mem::replace(&mut self.slots[slot].state, down)
        else {
            unreachable!("only a joining queue is answered its Connect")
        };
        channel.set_max_in_capsule(session.join_info.max_in_capsule);
        for (_, member) in &mut self.members {
            let now = &session.namespaces[member.ns_index].namespace;
            member.namespace = member.namespace.in_session(now);
        }
        self.num_joins += 1;
        self.slots[slot].state = SlotState::Joined { channel, session, qid };
        self.backlog.set_up();
    }

    /// Leaves the session and asks for a new one: a failure of one queue counts as a failure of the controller,
    /// or of the path to it.
    fn fail(
        &mut self,
        slot: usize,
        failure: Failure,
        shared: &TcpShared,
        carrier: &mut impl Carrier,
    ) {
        let Some((_, session)) = self.slots[slot].connection() else { return };
        let number = session.number;
        let failure = failure.at(format_args!("I/O queue on {}", session.portal.socket));
        self.close(slot, &failure.message, true, shared, carrier);
        shared.request_reset(number, failure.clone());
        self.backlog.last_failure = Some(failure);
    }

    /// Closes the connection, so that its buffers are free. I/Os that were answered are completed; the others
    /// are issued again or fail for this reason. `has_failed`: the session ends with the connection.
    fn close(
        &mut self,
        slot: usize,
        reason: &str,
        has_failed: bool,
        shared: &TcpShared,
        carrier: &mut impl Carrier,
    ) {
        self.slots[slot].publish(shared);
        let down = SlotState::Down { retry_at: self.now, attempt: 1 };
        let (channel, session, qid) = match std::mem::replace(&mut self.slots[slot].state, down) {
            SlotState::Joining { channel, session, qid, .. }
            | SlotState::Joined { channel, session, qid } => (channel, session, qid),
            other => {
                self.slots[slot].state = other;
                return;
            }
        };
        carrier.close(slot, channel.owes_data());
        self.slots[slot].load.outstanding = 0;
        if !self.is_joined() {
            self.backlog.down_since.get_or_insert(self.now);
        }
        let (attempts, ended) = channel.abandon();
        let writes = attempts.iter().filter(|attempt| attempt.io.op != IoOp::Read);
        shared.writes_ended(&session, writes.count());
        for (attempt, result) in ended {
            if let Some(answer) = self.complete_or_retry(shared, &session, attempt, result) {
                self.backlog.finished.push_back(answer);
            }
        }
        let session_ends = has_failed || shared.live() != session.number;
        self.backlog.recover(attempts.into_iter(), shared, reason, session_ends);
        if shared.is_ours() {
            shared.with(|lifecycle| lifecycle.give_qid(session.number, qid));
        }
    }

    /// Maps an answer to the completion of its I/O; `None` if the I/O is tried again.
    fn complete_or_retry(
        &mut self,
        shared: &TcpShared,
        session: &TcpSession,
        attempt: Attempt,
        result: Result<Cqe, CommandError>,
    ) -> Option<Answer> {
        if attempt.io.op != IoOp::Read {
            shared.writes_ended(session, 1);
        }
        let result = match result {
            Ok(cqe) => Ok(cqe.status()),
            Err(CommandError::DataDigest) => {
                shared.damaged.fetch_add(1, Ordering::Relaxed);
                Err(IoError::DataDigest)
            }
            Err(CommandError::Short { expected, found }) => {
                Err(IoError::Short { expected: expected.into(), found: found.into() })
            }
        };
        self.backlog.complete_or_retry(self.now, shared, session, attempt, result)
    }
}

impl QueueSlot {
    fn is_joined(&self) -> bool {
        matches!(self.state, SlotState::Joined { .. })
    }

    /// Returns whether its session is left.
    fn is_left(&self) -> bool {
        matches!(&self.state, SlotState::Joined { session, .. } if session.underway.is_left())
    }

    /// Adds the I/Os that have ended to the statistics of the path.
    fn publish(&mut self, shared: &TcpShared) {
        if let SlotState::Joined { session, .. } = &self.state {
            shared.add_done(session.path, self.load.take());
        }
    }

    /// The channel, and the session that it joins or has joined.
    fn connection(&self) -> Option<(&QueueChannel, &TcpSession)> {
        match &self.state {
            SlotState::Joining { channel, session, .. }
            | SlotState::Joined { channel, session, .. } => Some((channel, session)),
            SlotState::Down { .. } => None,
        }
    }
}

/// The command of an I/O that was already checked.
fn command(session: &TcpSession, attempt: &Attempt) -> (Sqe, Transfer) {
    let io = &attempt.io;
    let to = &session.namespaces[attempt.ns_index];
    let len = io.buf.len() as u32;
    let num_blocks = len / to.namespace.block_len_bytes;
    match io.op {
        IoOp::Read => {
            let read = Sqe::read(0, to.nsid, io.slba, num_blocks, len);
            let forced = attempt.forces_unit_access;
            (if forced { read.with_fua() } else { read }, Transfer::In)
        }
        IoOp::Write => {
            let sgl = Sgl::transport(len);
            (Sqe::write(0, to.nsid, io.slba, num_blocks, sgl), Transfer::Out)
        }
        IoOp::Flush => (Sqe::flush(0, to.nsid), Transfer::None),
    }
}

/// The most ranges of corrupt blocks that a member remembers. A reader rereads at once the blocks that it
/// reports.
const MAX_CORRUPT: usize = 1024;

/// The interval at which a queue looks for a new session.
const SESSION_INTERVAL: Duration = Duration::from_millis(2);

/// The most attempts to connect an I/O queue before the session is replaced.
const MAX_JOIN_ATTEMPTS: u32 = 10;

/// The wait after a refused Connect.
const JOIN_INTERVAL: Duration = Duration::from_millis(20);
