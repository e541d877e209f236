//! An I/O queue over NVMe/TCP: it joins sessions, issues I/Os in them and leaves them.
//!
//! Read [`IoQueue::turn`] first. `qpair/tcp/queue.rs` has the socket, and the queue pairs that share the queue.
//! `choose` has the path of each I/O: by ANA state first, then by latency and queue depth.

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

/// The connections of a queue, one for each lane: sockets in the engine `tcp`, or a simulated network in tests.
pub trait Carrier {
    /// Starts to connect to `address`.
    fn open(&mut self, lane: usize, address: SocketAddr) -> Result<(), Failure>;

    /// Transfers the bytes of `channel` in both directions. After an error the connection is lost.
    fn transfer(
        &mut self,
        lane: usize,
        now: Instant,
        channel: &mut Channel<Attempt>,
    ) -> Result<(), Failure>;

    /// Sends the queued bytes of `channel`. After an error the connection is lost.
    fn send(
        &mut self,
        lane: usize,
        now: Instant,
        channel: &mut Channel<Attempt>,
    ) -> Result<(), Failure>;

    /// Closes the connection, which then writes to no buffer any more. With `owes_data`, discards unsent bytes.
    fn close(&mut self, lane: usize, owes_data: bool);
}

/// An I/O queue. It owns no socket and never reads a clock. The `Backlog` holds the I/Os that are not on a
/// connection.
///
/// Its members submit to it, each for one namespace of the session; a completion names its member.
///
/// It has a *lane* for each slot of the sessions, which follows the session of that slot. Each read goes to the lane
/// that `choose` names; writes and flushes, and all I/Os of a host that writes, to that of the main session.
///
/// [`IoQueue::turn`] advances it, with the [`Carrier`] of its lanes.
#[derive(Debug)]
pub struct IoQueue {
    /// The parameters of a connection, without the subsystem, which the session's portal names.
    terms: Terms,
    ctrl_loss_tmo: Duration,
    members: Slab<Member>,
    /// True if some member has a fence.
    has_fence: bool,
    /// The number of sessions that the queue has joined.
    pub(crate) num_joins: u64,
    lanes: [Lane; NUM_SLOTS],
    /// True if two sessions are kept.
    has_two: bool,
    /// True if reads use both.
    spreads_reads: bool,
    /// The reason why there will be no further connection.
    dead: Option<String>,
    pub(crate) backlog: Backlog,
    /// The time of the last turn.
    now: Instant,
}

/// The connection to the session of one slot.
#[derive(Debug)]
struct Lane {
    state: State,
    load: PathLoad,
}

/// One submitter of a queue.
#[derive(Debug)]
struct Member {
    /// The index of its namespace in the session.
    ns_index: usize,
    /// The namespace as of the last joined session, with the largest transfer limit of all sessions: see
    /// [`Namespace::in_session`].
    namespace: Namespace,
    /// The fence of its writes.
    fence: Option<Arc<Fence>>,
    /// Blocks that were reported as corrupt and not read since.
    corrupt: Vec<Range<u64>>,
    /// Its I/Os that were taken and whose completions were not returned yet.
    owed: usize,
    /// Set once the member was removed; outstanding I/Os keep its number.
    is_removed: bool,
}

#[derive(Debug)]
enum State {
    /// No connection; the next attempt is at this time. `attempt` counts the attempts within one session.
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
            lanes: [(); NUM_SLOTS].map(|()| Lane {
                state: State::Down { retry_at: now, attempt: 1 },
                load: PathLoad::default(),
            }),
            has_two: false,
            spreads_reads: false,
            dead: None,
            backlog: Backlog::new(now),
            now,
        }
    }

    /// Adds a member that submits I/Os for the namespace at index `ns_index`, whose properties are `namespace`;
    /// returns its number.
    pub fn add_member(&mut self, ns_index: usize, namespace: Namespace) -> usize {
        let fence = None;
        let corrupt = Vec::new();
        let owed = 0;
        let is_removed = false;
        self.members.insert(Member { ns_index, namespace, fence, corrupt, owed, is_removed })
    }

    /// Removes a member, which submits no more I/Os and wants no completions. Its unsent I/Os are not sent. If
    /// it has writes or flushes on the connection, the connection is closed, so that they cannot be applied
    /// later. The session ends, too: a queue that joined it again could reach another target in its place.
    pub fn remove_member(&mut self, member: usize, shared: &TcpShared, carrier: &mut impl Carrier) {
        self.members[member].is_removed = true;
        let is_late = |attempt: &Attempt| attempt.member == member && attempt.io.op != IoOp::Read;
        for lane in 0..NUM_SLOTS {
            if self.channel(lane).is_some_and(|channel| channel.outstanding().any(is_late)) {
                let message = "a queue pair with writes on their way was dropped";
                self.fail(lane, Failure::new(ErrorKind::Disconnected, message), shared, carrier);
            }
        }
        self.backlog.fail_those_of(member, "its queue pair was dropped");
        self.backlog.withdraw_reports((member, self.members[member].ns_index), shared);
        self.forget_if_done(member);
    }

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

    /// Returns whether it has joined a session.
    pub fn is_joined(&self) -> bool {
        self.lanes.iter().any(Lane::is_joined)
    }

    /// The name of the current step of a queue that has not joined a session.
    pub fn stage(&self) -> &'static str {
        let stages = self.lanes.iter().find_map(|lane| match &lane.state {
            State::Joining { channel, .. } => channel.stage(),
            _ => None,
        });
        stages.unwrap_or("waiting for the controller")
    }

    /// The connection of a lane, if it joins or has joined a session.
    pub fn channel(&mut self, lane: usize) -> Option<&mut QueueChannel> {
        match &mut self.lanes[lane].state {
            State::Joining { channel, .. } | State::Joined { channel, .. } => Some(channel),
            State::Down { .. } => None,
        }
    }

    /// Returns whether to wait for room to send on the connection of a lane, besides data to receive.
    pub(crate) fn wants_writable(&self, lane: usize) -> bool {
        self.lanes[lane].joining().is_some_and(|(channel, _)| channel.wants_writable())
    }

    /// The time at which the next turn must begin, even if no bytes arrive.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let channels = self.lanes.iter().filter_map(|lane| lane.joining()?.0.poll_timeout());
        // A session that is left is replaced in the other slot, also on a single path.
        let is_left = self.lanes.iter().any(Lane::is_left);
        let uses_both = self.has_two || is_left || self.lanes[1].joining().is_some();
        let retry = match &self.lanes[0].state {
            _ if self.dead.is_some() => None,
            // Another session may be live while this queue waits for one, or writes wait for the main session.
            _ if uses_both => {
                let waits = is_left || !self.is_joined() || !self.backlog.waiting.is_empty();
                waits.then(|| self.now + SESSION_INTERVAL)
            }
            State::Down { retry_at, .. } => Some(*retry_at),
            State::Joining { .. } | State::Joined { .. } => None,
        };
        let own = self.backlog.next_timeout(self.now);
        channels.chain(retry).chain(own).min()
    }

    /// Records that these blocks returned corrupt data: a member's next read of them sets Force Unit Access
    /// (FUA).
    pub(crate) fn report_corrupt(&mut self, member: usize, blocks: Range<u64>) {
        let corrupt = &mut self.members[member].corrupt;
        if corrupt.len() < MAX_CORRUPT {
            corrupt.push(blocks);
        }
    }

    /// Takes I/Os of a member while there is room.
    pub fn take(&mut self, member: usize, pending: &mut VecDeque<Io>) -> usize {
        let Member { ns_index, namespace, fence, corrupt, owed, .. } = &mut self.members[member];
        let of = (member, *ns_index);
        let count = self.backlog.take(of, pending, namespace, fence.as_ref(), corrupt);
        *owed += count;
        count
    }

    /// Runs one turn. The queue's completions are then ready.
    pub fn turn(&mut self, now: Instant, shared: &TcpShared, carrier: &mut impl Carrier) {
        self.now = now;
        (self.has_two, self.spreads_reads) = (shared.keeps_two, shared.spreads_reads);
        self.lanes.iter_mut().for_each(|lane| lane.publish(shared));
        for lane in 0..NUM_SLOTS {
            match self.lanes[lane].state {
                State::Down { retry_at, attempt } if now >= retry_at => {
                    self.try_join(lane, attempt, shared, carrier);
                }
                _ => {
                    self.notice_lost_session(lane, shared, carrier);
                    self.notice_closed_fence(lane, shared, carrier);
                }
            }
            if let Some(channel) = self.channel(lane) {
                // A failure is handled before events: a target may send answers in the same segment as the end of
                // the connection. `close` handles the answers.
                match carrier.transfer(lane, now, channel) {
                    Ok(()) => self.go_on_joining(lane, shared, carrier),
                    Err(failure) => self.fail(lane, failure, shared, carrier),
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
        for lane in 0..NUM_SLOTS {
            if let Some(channel) = self.channel(lane)
                && let Err(failure) = carrier.send(lane, now, channel)
            {
                self.fail(lane, failure, shared, carrier);
            }
        }
    }

    /// Puts waiting I/Os on the connections.
    pub fn issue(&mut self, now: Instant, shared: &TcpShared) {
        self.now = now;
        while let Some(first) = self.backlog.waiting.front() {
            let Some(lane) = self.lane_for(first.io.op, shared) else { break };
            let Lane { state: State::Joined { channel, session, .. }, load } =
                &mut self.lanes[lane]
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
                self.lanes[1 - lane].load.passed_over();
            }
        }
    }

    /// The lane that takes an I/O now.
    fn lane_for(&self, op: IoOp, shared: &TcpShared) -> Option<usize> {
        let [one, two] = &self.lanes;
        let candidate = |lane: &Lane| match &lane.state {
            State::Joined { channel, session, .. }
                if !session.underway.is_left()
                    && (op == IoOp::Read && self.spreads_reads
                        || session.number == shared.live()) =>
            {
                Some(Candidate {
                    is_optimized: session.is_optimized.load(Ordering::Relaxed),
                    has_room: channel.has_room(),
                    cost: lane.load.cost(),
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

    fn next_answer(&mut self, shared: &TcpShared) -> Option<Answer> {
        if let Some(answer) = self.backlog.finished.pop_front() {
            return Some(answer);
        }
        loop {
            let now = self.now;
            let (attempt, result, lane) = self.lanes.iter_mut().find_map(|lane| {
                let State::Joined { channel, .. } = &mut lane.state else { return None };
                while let Some(event) = channel.poll_event(now) {
                    if let Event::Done { payload, result } = event {
                        return Some((payload, result, lane));
                    }
                }
                None
            })?;
            lane.load.done(attempt.sent_at.map_or(Duration::ZERO, |sent_at| now - sent_at));
            let State::Joined { session, .. } = &lane.state else { return None };
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

    /// Leaves the sessions that it has joined.
    pub fn leave(&mut self, reason: &str, shared: &TcpShared, carrier: &mut impl Carrier) {
        for lane in 0..NUM_SLOTS {
            self.close(lane, reason, false, shared, carrier);
        }
    }

    fn notice_lost_session(&mut self, lane: usize, shared: &TcpShared, carrier: &mut impl Carrier) {
        let Some((_, session)) = self.lanes[lane].joining() else { return };
        if self.lets_writes_end(lane, shared) {
            return;
        }
        if let Some(reason) = shared.why_over(session.number) {
            self.close(lane, &reason, false, shared, carrier);
        }
    }

    /// Returns whether a lane stays in a session that is left until the writes and flushes on it have ended. The
    /// connection's time limits bound that, and the slot's next session, which needs the lane.
    fn lets_writes_end(&self, lane: usize, shared: &TcpShared) -> bool {
        let State::Joined { channel, session, .. } = &self.lanes[lane].state else { return false };
        session.underway.is_left()
            && shared.number_in(lane) == 0
            && channel.outstanding().any(|attempt| attempt.io.op != IoOp::Read)
    }

    /// Ends the connection when a fence has closed: the rest of a partly sent write must not be sent. The
    /// session ends, too, because its target might hold back some of the sent bytes.
    fn notice_closed_fence(&mut self, lane: usize, shared: &TcpShared, carrier: &mut impl Carrier) {
        let State::Joined { channel, .. } = &self.lanes[lane].state else { return };
        if self.has_fence && channel.outstanding().any(Attempt::is_fenced) {
            let message = "the time to write has passed";
            self.fail(lane, Failure::new(ErrorKind::Disconnected, message), shared, carrier);
        }
    }

    /// The session for a lane, if one is live in its slot. Notices when there will be none at all.
    fn session_for(&mut self, lane: usize, shared: &TcpShared) -> Option<Arc<TcpSession>> {
        if shared.number_in(lane) != 0 {
            return shared.session_in(lane);
        }
        if shared.live() == 0 {
            match shared.session_state(&mut self.backlog) {
                SessionState::Live(session) => {
                    return (session.number == shared.number_in(lane)).then_some(session);
                }
                SessionState::Pending => {}
                SessionState::Ended(reason) => self.dead = Some(reason),
            }
        }
        None
    }

    /// Starts to connect to the session of the lane's slot, if one is live.
    fn try_join(
        &mut self,
        lane: usize,
        attempt: u32,
        shared: &TcpShared,
        carrier: &mut impl Carrier,
    ) {
        if self.dead.is_some() {
            return;
        }
        let retry = State::Down { retry_at: self.now + SESSION_INTERVAL, attempt: 1 };
        let Some(session) = self.session_for(lane, shared) else {
            self.lanes[lane].state = retry;
            return;
        };
        let Some(qid) = shared.with(|lifecycle| lifecycle.take_qid(session.number)) else {
            self.lanes[lane].state = retry;
            if session.number == shared.live() {
                let granted = session.num_io_queues;
                self.backlog.fail_all(&format!("the target now grants only {granted} I/O queues"));
            }
            return;
        };
        let mut terms = self.terms.of_io_queue(&session.join_info, qid, session.queue_entries);
        terms.common.subnqn = session.portal.address.subnqn.clone();
        let opened = carrier.open(lane, session.portal.socket);
        let channel = Channel::new(self.now, terms);
        self.lanes[lane].state = State::Joining { channel, session, qid, attempt };
        if let Err(failure) = opened {
            self.fail(lane, failure, shared, carrier);
        }
    }

    /// Handles the events of a connection that has not joined its session yet.
    fn go_on_joining(&mut self, lane: usize, shared: &TcpShared, carrier: &mut impl Carrier) {
        let State::Joining { channel, attempt, .. } = &mut self.lanes[lane].state else { return };
        match channel.poll_event(self.now) {
            None => {}
            Some(Event::Ready { .. }) => self.become_joined(lane),
            // The target may not have noticed yet that the previous connection of this queue is closed.
            Some(Event::Failed { failure, refused: true }) if *attempt < MAX_JOIN_ATTEMPTS => {
                let retry_at = self.now + JOIN_INTERVAL;
                let attempt = *attempt + 1;
                self.close(lane, &failure.message, false, shared, carrier);
                self.backlog.last_failure = Some(failure);
                self.lanes[lane].state = State::Down { retry_at, attempt };
            }
            Some(Event::Failed { failure, .. }) => self.fail(lane, failure, shared, carrier),
            Some(Event::Concatenated { .. }) => {
                let message = "a key was generated on an I/O queue";
                self.fail(lane, Failure::new(ErrorKind::Internal, message), shared, carrier);
            }
            Some(Event::Done { .. }) => unreachable!("nothing was submitted yet"),
        }
    }

    fn become_joined(&mut self, lane: usize) {
        let down = State::Down { retry_at: self.now, attempt: 1 };
        let State::Joining { mut channel, session, qid, .. } =
            std::mem::replace(&mut self.lanes[lane].state, down)
        else {
            unreachable!("only a joining queue is answered its Connect")
        };
        channel.set_max_in_capsule(session.join_info.max_in_capsule);
        for (_, member) in &mut self.members {
            let now = &session.namespaces[member.ns_index].namespace;
            member.namespace = member.namespace.in_session(now);
        }
        self.num_joins += 1;
        self.lanes[lane].state = State::Joined { channel, session, qid };
        self.backlog.set_up();
    }

    /// Leaves the session and asks for a new one: a failure of one queue counts as a failure of the controller,
    /// or of the path to it.
    fn fail(
        &mut self,
        lane: usize,
        failure: Failure,
        shared: &TcpShared,
        carrier: &mut impl Carrier,
    ) {
        let Some((_, session)) = self.lanes[lane].joining() else { return };
        let number = session.number;
        let failure = failure.at(format_args!("I/O queue on {}", session.portal.socket));
        self.close(lane, &failure.message, true, shared, carrier);
        shared.request_reset(number, failure.clone());
        self.backlog.last_failure = Some(failure);
    }

    /// Closes the connection, so that its buffers are free. I/Os that were answered are completed; the others
    /// are issued again or fail for this reason.
    fn close(
        &mut self,
        lane: usize,
        reason: &str,
        has_failed: bool,
        shared: &TcpShared,
        carrier: &mut impl Carrier,
    ) {
        self.lanes[lane].publish(shared);
        let down = State::Down { retry_at: self.now, attempt: 1 };
        let (channel, session, qid) = match std::mem::replace(&mut self.lanes[lane].state, down) {
            State::Joining { channel, session, qid, .. }
            | State::Joined { channel, session, qid } => (channel, session, qid),
            other => {
                self.lanes[lane].state = other;
                return;
            }
        };
        carrier.close(lane, channel.owes_data());
        self.lanes[lane].load.outstanding = 0;
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

impl Lane {
    fn is_joined(&self) -> bool {
        matches!(self.state, State::Joined { .. })
    }

    /// Returns whether its session is left.
    fn is_left(&self) -> bool {
        matches!(&self.state, State::Joined { session, .. } if session.underway.is_left())
    }

    /// Adds the I/Os that have ended to the statistics of the path.
    fn publish(&mut self, shared: &TcpShared) {
        if let State::Joined { session, .. } = &self.state {
            shared.add_done(session.path, self.load.take());
        }
    }

    /// The channel, and the session that it joins or has joined.
    fn joining(&self) -> Option<(&QueueChannel, &TcpSession)> {
        match &self.state {
            State::Joining { channel, session, .. } | State::Joined { channel, session, .. } => {
                Some((channel, session))
            }
            State::Down { .. } => None,
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

/// The load and the latency of an I/O queue on one path.
#[derive(Debug, Default)]
struct PathLoad {
    /// A moving average of the latency; 0: not measured.
    latency_ns: u64,
    /// I/Os that were sent and have not ended.
    outstanding: u64,
    /// I/Os that have ended since the last [`PathLoad::take`].
    num_done: u64,
    /// The sum of their latencies.
    done_ns: u64,
}

/// A path that can take an I/O now, or could if its queue were not full.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    is_optimized: bool,
    has_room: bool,
    cost: u64,
}

impl PathLoad {
    fn done(&mut self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.outstanding = self.outstanding.saturating_sub(1);
        self.num_done += 1;
        self.done_ns = self.done_ns.saturating_add(took_ns);
        self.latency_ns = match self.latency_ns {
            0 => took_ns,
            before => before - before / SMOOTHING + took_ns / SMOOTHING,
        };
    }

    /// The time that one more I/O would wait, roughly.
    fn cost(&self) -> u64 {
        self.latency_ns.max(1).saturating_mul(self.outstanding + 1)
    }

    /// Notes that the other path was preferred: an old measurement fades, so that the path is tried again.
    fn passed_over(&mut self) {
        self.latency_ns -= self.latency_ns >> FADING;
    }

    /// The number and the summed latency of the I/Os that have ended since the last call.
    fn take(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.num_done), std::mem::take(&mut self.done_ns))
    }
}

/// The path for an I/O; `None`: it waits. A path that is not optimized is used only if no other one is.
fn choose(paths: [Option<Candidate>; NUM_SLOTS]) -> Option<usize> {
    let any_optimized = paths.iter().flatten().any(|path| path.is_optimized);
    let allowed = paths.iter().enumerate().filter_map(|(slot, path)| {
        let path = path.filter(|path| path.has_room && (path.is_optimized || !any_optimized))?;
        Some((path.cost, slot))
    });
    allowed.min().map(|(_, slot)| slot)
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

/// The weight of older measurements in the moving average.
const SMOOTHING: u64 = 8;

/// A measurement loses 1/2^FADING of itself each time that the path is passed over.
const FADING: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(is_optimized: bool, has_room: bool, cost: u64) -> Option<Candidate> {
        Some(Candidate { is_optimized, has_room, cost })
    }

    #[test]
    fn an_optimized_path_is_preferred_even_if_it_is_slower_or_full() {
        assert_eq!(choose([path(false, true, 1), path(true, true, 9)]), Some(1));
        assert_eq!(choose([path(false, true, 1), path(true, false, 9)]), None);
        assert_eq!(choose([path(false, true, 1), None]), Some(0));
        assert_eq!(choose([path(true, true, 2), path(true, true, 1)]), Some(1));
        assert_eq!(choose([path(true, true, 2), path(true, false, 1)]), Some(0));
        assert_eq!(choose([None, None]), None);
    }

    /// Two paths whose queues serve one I/O at a time, with 32 outstanding: the number of I/Os of each.
    fn shares(latency_ns: [u64; 2], num: u64) -> [u64; 2] {
        let mut loads = [PathLoad::default(), PathLoad::default()];
        let mut free_at = [0; 2];
        let mut ends: Vec<(u64, usize, u64)> = Vec::new();
        let mut counts = [0; 2];
        let mut now = 0;
        for _ in 0..num {
            if ends.len() == 32 {
                ends.sort_unstable();
                let (at, slot, sent) = ends.remove(0);
                now = at;
                loads[slot].done(Duration::from_nanos(at - sent));
            }
            let slot = choose([0, 1].map(|slot| path(true, true, loads[slot].cost()))).unwrap();
            loads[1 - slot].passed_over();
            loads[slot].outstanding += 1;
            counts[slot] += 1;
            free_at[slot] = now.max(free_at[slot]) + latency_ns[slot];
            ends.push((free_at[slot], slot, now));
        }
        counts
    }

    #[test]
    fn equal_paths_share_the_load_and_a_slower_one_gets_less_but_some() {
        let [one, two] = shares([100_000, 100_000], 10_000);
        assert!(one.abs_diff(two) < 2_000, "{one} and {two}");
        let [fast, slow] = shares([100_000, 400_000], 10_000);
        assert!(slow * 2 < fast && slow > 100, "{fast} and {slow}");
    }

    #[test]
    fn a_path_that_was_slow_is_tried_again() {
        let mut slow = PathLoad::default();
        let mut fast = PathLoad::default();
        slow.done(Duration::from_millis(100));
        fast.done(Duration::from_micros(100));
        let mut passed = 0;
        while choose([path(true, true, slow.cost()), path(true, true, fast.cost())]) == Some(1) {
            slow.passed_over();
            passed += 1;
        }
        assert!((1_000..20_000).contains(&passed), "{passed}");
    }

    #[test]
    fn what_a_lost_connection_owed_is_no_load() {
        let mut load = PathLoad::default();
        load.done(Duration::from_nanos(50));
        load.outstanding += 3;
        assert_eq!(load.cost(), 200);
        load.outstanding = 0;
        assert_eq!((load.cost(), load.take(), load.take()), (50, (1, 50), (0, 0)));
    }
}
