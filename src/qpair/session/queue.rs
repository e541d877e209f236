//! An I/O queue and its life: without a session, on its way into one, in one, and out of it again.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use slab::Slab;

use super::connect::Event;
use super::{Answer, Attempt, Backlog, Channel, Entrance, Failure, Joint, Session, Shared, Terms};
use crate::error::ErrorKind;
use crate::nvme::{Cqe, Sgl, Sqe, TcpAddress};
use crate::qpair::{Fence, Io, IoError, IoOp, Namespace};
use crate::tcp::host::{CommandError, Transfer};

/// One way to the namespaces: an address that a name stands for, on one of the user's paths.
#[derive(Debug, Clone)]
pub struct Portal {
    /// The address, as the user knows it.
    pub address: TcpAddress,
    /// The socket address that it stands for.
    pub socket: SocketAddr,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.socket, self.address.subnqn)
    }
}

/// What the queues of a controller over NVMe/TCP share.
pub type TcpShared = Shared<Portal, Joint>;
type TcpSession = Session<Portal, Joint>;
type QueueChannel = Channel<Attempt>;

/// What is to be done about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Begin to connect to this address; say with [`IoQueue::moved`] if that fails.
    Open(SocketAddr),
    /// Close the connection, then say so with [`IoQueue::closed`]; `owes_data`: what has not been sent is
    /// not to be.
    Close {
        /// See above.
        owes_data: bool,
    },
}

/// An I/O queue. It owns no socket and never asks for the time. What becomes of an I/O without a connection,
/// the [`Backlog`] knows.
///
/// Its members submit to it, each for one namespace of the session; a completion says whose it is.
///
/// A turn: [`IoQueue::begin`], move the bytes of [`IoQueue::channel`] if there is a connection and say with
/// [`IoQueue::moved`] how that went, [`IoQueue::finish`], send; and after each of these do what
/// [`IoQueue::poll_action`] says.
#[derive(Debug)]
pub struct IoQueue {
    /// With what to connect, but for the subsystem, which the session's portal says.
    terms: Terms,
    ctrl_loss_tmo: Duration,
    members: Slab<Member>,
    /// Whether writes of some member are held back by a fence.
    has_fence: bool,
    /// How often it has joined a session.
    num_joins: u64,
    state: State,
    backlog: Backlog,
    action: Option<Action>,
    /// The time of the last turn.
    now: Instant,
}

/// Who submits to a queue.
#[derive(Debug)]
struct Member {
    /// The place of its namespace in the session.
    place: usize,
    /// What the namespace was when the queue last joined a session, with the largest transfer that any
    /// session took: see [`Namespace::in_session`].
    namespace: Namespace,
    /// What its writes are held back by.
    fence: Option<Arc<Fence>>,
    /// Its I/Os that were taken and have not been handed out.
    owed: usize,
    /// Whether it is gone, and only I/Os on their way keep its number.
    has_parted: bool,
}

#[derive(Debug)]
enum State {
    /// No connection; to be tried at this time. `attempt` counts those within one session.
    Down { retry_at: Instant, attempt: u32 },
    /// There will be none any more.
    Dead { reason: String },
    /// On the way into a session.
    Joining { channel: QueueChannel, session: Arc<TcpSession>, qid: u16, attempt: u32 },
    /// In a session.
    Joined { channel: QueueChannel, session: Arc<TcpSession>, qid: u16 },
    /// On the way out: what was aimed at buffers is being closed.
    Closing { channel: QueueChannel, session: Arc<TcpSession>, qid: u16, why: Why },
}

/// Why a connection is closed.
#[derive(Debug)]
enum Why {
    /// The session is over, or nobody needs the queue any more.
    Over(String),
    /// This queue does not work, and with it the session.
    Failed(Failure),
    /// Connect was refused, for the `attempt`-th time: it is tried again at this time.
    Refused { failure: Failure, retry_at: Instant, attempt: u32 },
}

impl IoQueue {
    /// A queue that joins a session as soon as there is one.
    pub fn new(now: Instant, terms: Terms, ctrl_loss_tmo: Duration) -> IoQueue {
        IoQueue {
            terms,
            ctrl_loss_tmo,
            members: Slab::new(),
            has_fence: false,
            num_joins: 0,
            state: State::Down { retry_at: now, attempt: 1 },
            backlog: Backlog::new(now),
            action: None,
            now,
        }
    }

    /// Lets one submit I/Os for the namespace at `place`, which is `namespace` now: its number among the
    /// members.
    pub fn admit(&mut self, place: usize, namespace: Namespace) -> usize {
        let (fence, owed, has_parted) = (None, 0, false);
        self.members.insert(Member { place, namespace, fence, owed, has_parted })
    }

    /// A member submits no more and wants no completions. What it has not had sent is not sent; where it has
    /// writes on their way, the connection is closed, so that they come no later than it lives; and with it
    /// the session, since who joins that again may reach a target that has taken the place of this one.
    pub fn part(&mut self, member: usize) {
        let reason = "its queue pair was dropped";
        self.backlog.fail_those_of(member, reason);
        let is_late = |attempt: &Attempt| attempt.member == member && attempt.io.op != IoOp::Read;
        if self.channel().is_some_and(|channel| channel.outstanding().any(is_late)) {
            let message = "a queue pair with writes on their way was dropped";
            self.fail(Failure::new(ErrorKind::Disconnected, message));
        }
        self.members[member].has_parted = true;
        self.forget_if_done(member);
    }

    fn forget_if_done(&mut self, member: usize) {
        if self.members[member].has_parted && self.members[member].owed == 0 {
            self.members.remove(member);
        }
    }

    /// The namespace of a member, as I/Os are cut to it.
    pub fn namespace(&self, member: usize) -> &Namespace {
        &self.members[member].namespace
    }

    /// How often it has joined a session: with each of them, namespaces may be other than before.
    pub fn num_joins(&self) -> u64 {
        self.num_joins
    }

    /// What became of I/Os that are in no connection.
    pub fn backlog(&mut self) -> &mut Backlog {
        &mut self.backlog
    }

    /// I/Os taken and not completed, of all members.
    pub fn owed(&self) -> usize {
        self.backlog.owed()
    }

    /// Holds writes of a member back that are taken from now on while `fence` is closed.
    pub fn use_fence(&mut self, member: usize, fence: &Arc<Fence>) {
        self.members[member].fence = Some(Arc::clone(fence));
        self.has_fence = true;
    }

    /// Whether it is in a session.
    pub fn is_joined(&self) -> bool {
        matches!(self.state, State::Joined { .. })
    }

    /// What a queue that is not in a session is at, for people.
    pub fn stage(&self) -> &'static str {
        let stage = match &self.state {
            State::Joining { channel, .. } => channel.stage(),
            _ => None,
        };
        stage.unwrap_or("waiting for the controller")
    }

    /// What is to be done about the connection.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.action.take()
    }

    /// The connection, while one is to be moved.
    pub fn channel(&mut self) -> Option<&mut QueueChannel> {
        match &mut self.state {
            State::Joining { channel, .. } | State::Joined { channel, .. } => Some(channel),
            State::Down { .. } | State::Dead { .. } | State::Closing { .. } => None,
        }
    }

    /// Whether room to send matters, beside something to receive.
    pub fn wants_writable(&self) -> bool {
        match &self.state {
            State::Joining { channel, .. } | State::Joined { channel, .. } => {
                channel.wants_writable()
            }
            State::Down { .. } | State::Dead { .. } | State::Closing { .. } => false,
        }
    }

    /// When the next turn must be although nothing moves.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let state = match &self.state {
            State::Down { retry_at, .. } => Some(*retry_at),
            State::Joining { channel, .. } | State::Joined { channel, .. } => {
                channel.poll_timeout()
            }
            State::Dead { .. } | State::Closing { .. } => None,
        };
        [self.backlog.next_timeout(self.now), state].into_iter().flatten().min()
    }

    /// Takes what there is room for from a member.
    pub fn take(&mut self, member: usize, pending: &mut VecDeque<Io>) -> usize {
        let Member { place, namespace, fence, owed, .. } = &mut self.members[member];
        let count = self.backlog.take((member, *place), pending, namespace, fence.as_ref());
        *owed += count;
        count
    }

    /// Begins a turn: notices what has happened elsewhere.
    pub fn begin(&mut self, now: Instant, shared: &TcpShared) {
        self.now = now;
        self.notice_lost_session(shared);
        self.notice_closed_fence();
        if let State::Down { retry_at, attempt } = self.state
            && now >= retry_at
        {
            self.try_join(attempt, shared);
        }
    }

    /// Takes note of how moving bytes went, or opening the connection.
    pub fn moved(&mut self, moved: Result<(), Failure>) {
        // The error first: what had come with it, a target may have said in one segment with what ends
        // the connection, and `closed` takes what had ended.
        match moved {
            Ok(()) => self.go_on_joining(),
            Err(failure) => self.fail(failure),
        }
    }

    /// Ends a turn: puts I/Os that wait into the connection, to be sent together.
    pub fn finish(&mut self, shared: &TcpShared) {
        self.backlog.wake_delayed(self.now);
        self.issue(self.now, shared);
        match &self.state {
            // There is no hope.
            State::Dead { reason } => self.backlog.fail_all(reason),
            // Nothing has worked for the time after which a controller is given up.
            _ => self.backlog.give_up_in_time(self.now, self.ctrl_loss_tmo),
        }
    }

    /// Puts I/Os that wait into the connection.
    pub fn issue(&mut self, now: Instant, shared: &TcpShared) {
        self.now = now;
        let State::Joined { channel, session, .. } = &mut self.state else { return };
        while channel.has_room() {
            let Some(attempt) = self.backlog.next_to_issue(shared, session) else { break };
            if self.members[attempt.member].has_parted {
                // Its last connection was closed, or it was answered that it may be tried again.
                let reason = IoError::Disconnected("its queue pair was dropped".to_owned());
                self.backlog.end(attempt, Err(reason));
                continue;
            }
            let (sqe, transfer) = command(session, &attempt);
            let taken = channel.submit(self.now, sqe, transfer, false, attempt);
            assert!(taken.is_ok(), "the connection said that it has room");
        }
    }

    /// The next completion, which is handed out with this.
    pub fn next_completion(&mut self, shared: &TcpShared) -> Option<Answer> {
        loop {
            let answer = self.next_answer(shared)?;
            self.backlog.handed_out(1);
            let member = &mut self.members[answer.member];
            member.owed -= 1;
            if !member.has_parted {
                return Some(answer);
            }
            self.forget_if_done(answer.member);
        }
    }

    fn next_answer(&mut self, shared: &TcpShared) -> Option<Answer> {
        if let Some(answer) = self.backlog.pop_finished() {
            return Some(answer);
        }
        loop {
            let State::Joined { channel, session, .. } = &mut self.state else { return None };
            let event = channel.poll_event(self.now)?;
            let Event::Done { payload: attempt, result } = event else { continue };
            let success = matches!(&result, Ok(cqe) if cqe.status().is_success());
            let read = attempt.io.op == IoOp::Read;
            if success && read && session.proven.load(Ordering::Relaxed) {
                match self.backlog.succeed(attempt) {
                    Some(answer) => return Some(answer),
                    None => continue,
                }
            }
            let session = Arc::clone(session);
            if let Some(answer) = self.judge(shared, &session, attempt, result) {
                return Some(answer);
            }
        }
    }

    /// Leaves the session, if it is in one.
    pub fn leave(&mut self, reason: &str) {
        self.close(Why::Over(reason.to_owned()));
    }

    /// The process has forked, and the queue was left: what it shared is the parent's.
    pub fn begin_anew(&mut self, now: Instant) {
        self.backlog.begin_anew(now);
    }

    /// The connection is closed: buffers that were aimed at by it are ours again. What had ended is kept,
    /// what had not is issued again or has failed.
    pub fn closed(&mut self, shared: &TcpShared) {
        let down = State::Down { retry_at: self.now, attempt: 1 };
        let (channel, session, qid, why) = match std::mem::replace(&mut self.state, down) {
            State::Closing { channel, session, qid, why } => (channel, session, qid, why),
            other => {
                self.state = other;
                return;
            }
        };
        self.backlog.set_down(self.now);
        let (mut attempts, ended) = channel.abandon();
        let has_parted = |attempt: &&mut Attempt| self.members[attempt.member].has_parted;
        attempts.iter_mut().filter(has_parted).for_each(Attempt::tell_nobody);
        for (attempt, result) in ended {
            if let Some(answer) = self.judge(shared, &session, attempt, result) {
                self.backlog.finish(answer);
            }
        }
        let reason = match &why {
            Why::Over(reason) => reason,
            Why::Failed(failure) | Why::Refused { failure, .. } => &failure.message,
        };
        let session_ends = matches!(why, Why::Failed(_)) || shared.live() != session.number;
        self.backlog.recover(attempts.into_iter(), shared, reason, session_ends);
        if shared.is_ours() {
            shared.give_qid(session.number, qid);
        }
        match why {
            Why::Over(_) => {}
            // What is wrong with one queue is wrong with the controller, or with the path to it.
            Why::Failed(failure) => {
                shared.request_reset(session.number, failure.clone());
                self.backlog.note(failure);
            }
            Why::Refused { failure, retry_at, attempt } => {
                self.backlog.note(failure);
                self.state = State::Down { retry_at, attempt };
            }
        }
    }

    fn notice_lost_session(&mut self, shared: &TcpShared) {
        let session = match &self.state {
            State::Joining { session, .. } | State::Joined { session, .. } => session,
            State::Down { .. } | State::Dead { .. } | State::Closing { .. } => return,
        };
        if let Some(reason) = shared.why_over(session.number) {
            self.close(Why::Over(reason));
        }
    }

    /// Bytes of a write that may not be sent any more must not follow those that were: the connection
    /// ends, and with it the session, which might hold some of them back.
    fn notice_closed_fence(&mut self) {
        let State::Joined { channel, .. } = &self.state else { return };
        if self.has_fence && channel.outstanding().any(Attempt::is_fenced) {
            let message = "the time to write has passed";
            self.fail(Failure::new(ErrorKind::Disconnected, message));
        }
    }

    /// Begins to connect to the live session, if there is one.
    fn try_join(&mut self, attempt: u32, shared: &TcpShared) {
        let retry = State::Down { retry_at: self.now + SESSION_INTERVAL, attempt: 1 };
        let session = match shared.entrance(&mut self.backlog) {
            Entrance::Open(session) => session,
            Entrance::NotYet => {
                self.state = retry;
                return;
            }
            Entrance::Closed(reason) => {
                self.state = State::Dead { reason };
                return;
            }
        };
        let Some(qid) = shared.take_qid(session.number) else {
            self.state = retry;
            if session.number == shared.live() {
                let granted = session.num_io_queues;
                self.backlog.fail_all(&format!("the target now grants only {granted} I/O queues"));
            }
            return;
        };
        let mut terms = self.terms.of_io_queue(&session.joint, qid, session.queue_entries);
        terms.subnqn = session.portal.address.subnqn.clone();
        self.action = Some(Action::Open(session.portal.socket));
        let channel = Channel::new(self.now, terms);
        self.state = State::Joining { channel, session, qid, attempt };
    }

    /// Takes the events of a connection that is not yet in a session.
    fn go_on_joining(&mut self) {
        let State::Joining { channel, attempt, .. } = &mut self.state else { return };
        match channel.poll_event(self.now) {
            None => {}
            Some(Event::Ready { .. }) => self.become_joined(),
            // A target may not have noticed yet that the last connection of this queue is gone.
            Some(Event::Failed { failure, refused: true }) if *attempt < MAX_JOIN_ATTEMPTS => {
                let (retry_at, attempt) = (self.now + JOIN_INTERVAL, *attempt + 1);
                self.close(Why::Refused { failure, retry_at, attempt });
            }
            Some(Event::Failed { failure, .. }) => self.fail(failure),
            Some(Event::Done { .. }) => unreachable!("nothing was submitted yet"),
        }
    }

    fn become_joined(&mut self) {
        let down = State::Down { retry_at: self.now, attempt: 1 };
        let State::Joining { mut channel, session, qid, .. } =
            std::mem::replace(&mut self.state, down)
        else {
            unreachable!("only a joining queue is answered its Connect")
        };
        channel.set_max_in_capsule(session.joint.max_in_capsule);
        for (_, member) in &mut self.members {
            let now = &session.namespaces[member.place].namespace;
            member.namespace = member.namespace.in_session(now);
        }
        self.num_joins += 1;
        self.state = State::Joined { channel, session, qid };
        self.backlog.set_up();
    }

    /// Leaves the session and has it replaced.
    fn fail(&mut self, failure: Failure) {
        let session = match &self.state {
            State::Joining { session, .. } | State::Joined { session, .. } => session,
            State::Down { .. } | State::Dead { .. } | State::Closing { .. } => return,
        };
        let socket = session.portal.socket;
        self.close(Why::Failed(failure.at(format_args!("I/O queue on {socket}"))));
    }

    /// Asks for the connection to be closed.
    fn close(&mut self, why: Why) {
        let down = State::Down { retry_at: self.now, attempt: 1 };
        self.state = match std::mem::replace(&mut self.state, down) {
            State::Joining { channel, session, qid, .. }
            | State::Joined { channel, session, qid } => {
                self.action = Some(Action::Close { owes_data: channel.owes_data() });
                State::Closing { channel, session, qid, why }
            }
            other => other,
        };
    }

    /// What an answer means for its I/O; `None`: it is tried again.
    fn judge(
        &mut self,
        shared: &TcpShared,
        session: &TcpSession,
        attempt: Attempt,
        result: Result<Cqe, CommandError>,
    ) -> Option<Answer> {
        let result = match result {
            Ok(cqe) => Ok(cqe.status()),
            Err(CommandError::DataDigest) => Err(IoError::DataDigest),
            Err(CommandError::Short { expected, found }) => {
                Err(IoError::Short { expected: expected.into(), found: found.into() })
            }
        };
        self.backlog.judge(self.now, shared, session, attempt, result)
    }
}

/// The command of an I/O that has been checked.
fn command(session: &TcpSession, attempt: &Attempt) -> (Sqe, Transfer) {
    let (io, to) = (&attempt.io, &session.namespaces[attempt.place]);
    let len = io.buf.len() as u32;
    let num_blocks = len / to.namespace.block_len_bytes;
    match io.op {
        IoOp::Read => (Sqe::read(0, to.nsid, io.slba, num_blocks, len), Transfer::In),
        IoOp::Write => {
            let sgl = Sgl::transport(len);
            (Sqe::write(0, to.nsid, io.slba, num_blocks, sgl), Transfer::Out)
        }
        IoOp::Flush => (Sqe::flush(0, to.nsid), Transfer::None),
    }
}

/// How often to look for a new session.
const SESSION_INTERVAL: Duration = Duration::from_millis(2);

/// Connects of an I/O queue before the session is replaced.
const MAX_JOIN_ATTEMPTS: u32 = 10;

/// After how long a refused Connect is tried again.
const JOIN_INTERVAL: Duration = Duration::from_millis(20);
