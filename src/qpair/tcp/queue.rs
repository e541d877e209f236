//! An I/O queue pair over TCP, and what becomes of its I/Os when the connection dies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::Tcp;
use super::link::{Link, SCRATCH_LEN};
use crate::error::{ErrorKind, Result};
use crate::nvme::{Cqe, Sgl, Sqe};
use crate::qpair::remote::{Attempt, Backlog, Entrance, Failure, Remote, Session};
use crate::qpair::session::Channel;
use crate::qpair::session::connect::Event;
use crate::qpair::{Completion, Fence, Io, IoError, IoOp, Namespace, QueuePair, Wait};
use crate::tcp::host::{CommandError, Transfer};

/// A queue pair on a remote namespace. What becomes of an I/O without a connection, the backlog knows.
pub(super) struct TcpQueuePair {
    remote: Arc<Remote<Tcp>>,
    /// What the namespace was when this queue last joined a session, with the largest transfer that any
    /// session took: see [`Namespace::in_session`].
    namespace: Namespace,
    state: State,
    backlog: Backlog,
    scratch: Vec<u8>,
    /// What writes are held back by, see [`QueuePair::use_fence`].
    fence: Option<Arc<Fence>>,
    /// The time of the last turn.
    now: Instant,
}

enum State {
    /// No connection; to be tried at this time. `attempt` counts those within one session.
    Down { retry_at: Instant, attempt: u32 },
    /// There will be none any more.
    Dead { reason: String },
    /// On the way into a session.
    Joining { line: Line, session: Arc<Session<Tcp>>, qid: u16, attempt: u32 },
    /// In a session.
    Joined { line: Line, session: Arc<Session<Tcp>>, qid: u16 },
}

/// A socket and what it is moved for.
struct Line {
    /// Closed before a buffer that was aimed at by it is anybody else's.
    link: Link,
    channel: Channel<Attempt>,
}

impl TcpQueuePair {
    /// A queue pair that is in a session when this returns.
    pub(super) fn connect(remote: Arc<Remote<Tcp>>, namespace: Namespace) -> Result<TcpQueuePair> {
        remote.add_pair()?;
        let now = Instant::now();
        let mut pair = TcpQueuePair {
            remote,
            namespace,
            state: State::Down { retry_at: now, attempt: 1 },
            backlog: Backlog::new(now),
            scratch: vec![0; SCRATCH_LEN],
            fence: None,
            now,
        };
        pair.wait_joined(now + pair.remote.options.connect_timeout)?;
        Ok(pair)
    }

    fn wait_joined(&mut self, deadline: Instant) -> Result<()> {
        loop {
            let now = Instant::now();
            self.turn(now);
            if matches!(self.state, State::Joined { .. }) {
                return Ok(());
            }
            let stage = match &self.state {
                State::Joining { line, .. } => line.channel.stage(),
                _ => None,
            };
            let stage = stage.unwrap_or("waiting for the controller");
            self.remote.may_wait(now, deadline, &self.backlog, stage)?;
            let until = self.next_timeout().unwrap_or(deadline).min(deadline);
            sleep(self.wait_fd(), until.saturating_duration_since(now));
        }
    }

    /// Everything but handing out completions.
    fn turn(&mut self, now: Instant) {
        self.now = now;
        if !self.notice_fork() {
            return;
        }
        self.notice_lost_session();
        self.notice_closed_fence();
        match &mut self.state {
            State::Down { retry_at, .. } if now < *retry_at => {}
            State::Down { attempt, .. } => {
                let attempt = *attempt;
                self.try_join(attempt);
            }
            State::Dead { .. } => {}
            State::Joining { line, .. } | State::Joined { line, .. } => {
                // The error first: what had come with it, a target may have said in one segment with what
                // ends the connection, and `close` takes what had ended.
                match line.link.poll(now, &mut line.channel, &mut self.scratch) {
                    Ok(()) => self.go_on_joining(),
                    Err(failure) => self.fail_session(failure),
                }
            }
        }
        self.backlog.wake_delayed(now);
        self.start();
        self.give_up_in_time();
    }

    /// In a child process the connection and what it shares are the parent's: nothing is sent on the
    /// one, no lock of the other is touched. Whether there is something to go on with.
    fn notice_fork(&mut self) -> bool {
        if self.remote.is_ours() {
            return true;
        }
        self.close("the process has forked");
        self.backlog.begin_anew(self.now);
        match self.remote.for_this_process() {
            Ok(remote) => {
                self.remote = remote;
                // One too many is told by the target.
                let _ = self.remote.add_pair();
                true
            }
            Err(error) => {
                self.backlog.fail_all(&error.to_string());
                false
            }
        }
    }

    fn notice_lost_session(&mut self) {
        let session = match &self.state {
            State::Joining { session, .. } | State::Joined { session, .. } => session,
            State::Down { .. } | State::Dead { .. } => return,
        };
        if let Some(reason) = self.remote.why_over(session.number) {
            self.close(&reason);
        }
    }

    /// Bytes of a write that may not be sent any more must not follow those that were: the connection
    /// ends, and with it the session, which might hold some of them back.
    fn notice_closed_fence(&mut self) {
        let State::Joined { line, .. } = &self.state else { return };
        if self.fence.is_some() && line.channel.outstanding().any(Attempt::is_fenced) {
            let message = "the time to write has passed";
            self.fail_session(Failure::new(ErrorKind::Disconnected, message));
        }
    }

    /// Begins to connect to the live session, if there is one.
    fn try_join(&mut self, attempt: u32) {
        let now = self.now;
        let retry = State::Down { retry_at: now + SESSION_INTERVAL, attempt: 1 };
        let session = match self.remote.entrance(&mut self.backlog) {
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
        let Some(qid) = self.remote.take_qid(session.number) else {
            self.state = retry;
            if session.number == self.remote.live() {
                let granted = session.num_io_queues;
                self.backlog.fail_all(&format!("the target now grants only {granted} I/O queues"));
            }
            return;
        };
        let terms = super::terms(&self.remote, &session.portal);
        let terms = terms.of_io_queue(&session.joint, qid, session.queue_entries);
        match Link::start(session.portal.socket) {
            Ok(link) => {
                let line = Line { link, channel: Channel::new(now, terms) };
                self.state = State::Joining { line, session, qid, attempt };
            }
            Err(failure) => {
                self.remote.give_qid(session.number, qid);
                self.remote.request_reset(session.number, failure);
                self.state = retry;
            }
        }
    }

    /// Takes the events of a connection that is not yet in a session.
    fn go_on_joining(&mut self) {
        let State::Joining { line, .. } = &mut self.state else { return };
        match line.channel.poll_event(self.now) {
            None => {
                // Sends Connect. An error shows again in the next turn.
                let _ = line.link.send(self.now, &mut line.channel);
            }
            Some(Event::Ready { .. }) => self.become_joined(),
            Some(Event::Failed { failure, refused: true }) => self.handle_refused_connect(failure),
            Some(Event::Failed { failure, refused: false }) => self.fail_session(failure),
            Some(Event::Done { .. }) => unreachable!("nothing was submitted yet"),
        }
    }

    fn become_joined(&mut self) {
        let down = State::Down { retry_at: self.now, attempt: 1 };
        let State::Joining { mut line, session, qid, .. } =
            std::mem::replace(&mut self.state, down)
        else {
            unreachable!("only a joining queue is answered its Connect")
        };
        line.channel.set_max_in_capsule(session.joint.max_in_capsule);
        self.namespace = self.namespace.in_session(&session.namespace);
        self.state = State::Joined { line, session, qid };
        self.backlog.set_up();
    }

    /// A target may not have noticed yet that the last connection of this queue identifier is gone.
    fn handle_refused_connect(&mut self, failure: Failure) {
        let State::Joining { attempt, .. } = self.state else { return };
        if attempt >= MAX_JOIN_ATTEMPTS {
            return self.fail_session(failure);
        }
        self.backlog.note(failure);
        self.close("the queue was refused");
        let retry_at = self.now + JOIN_INTERVAL;
        self.state = State::Down { retry_at, attempt: attempt + 1 };
    }

    /// Leaves the session and has it replaced: what is wrong with one queue is wrong with the
    /// controller, or with the path to it.
    fn fail_session(&mut self, failure: Failure) {
        let session = match &self.state {
            State::Joining { session, .. } | State::Joined { session, .. } => Arc::clone(session),
            State::Down { .. } | State::Dead { .. } => return,
        };
        let socket = session.portal.socket;
        let failure = failure.at(format_args!("I/O queue on {socket}"));
        self.close(&failure.message);
        self.remote.request_reset(session.number, failure.clone());
        self.backlog.note(failure);
    }

    /// Closes the connection. What had ended is kept, what had not is issued again or has failed.
    fn close(&mut self, reason: &str) {
        let down = State::Down { retry_at: self.now, attempt: 1 };
        let (line, session, qid) = match std::mem::replace(&mut self.state, down) {
            unconnected @ (State::Down { .. } | State::Dead { .. }) => {
                self.state = unconnected;
                return;
            }
            State::Joining { line, session, qid, .. } | State::Joined { line, session, qid } => {
                (line, session, qid)
            }
        };
        self.backlog.set_down(self.now);
        let Line { link, channel } = line;
        link.close(channel.owes_data());
        let (attempts, ended) = channel.abandon();
        for (attempt, result) in ended {
            if let Some(completion) = self.judge(&session, attempt, result) {
                self.backlog.finish(completion);
            }
        }
        self.backlog.recover(attempts.into_iter(), self.remote.durability(), reason);
        if self.remote.is_ours() {
            self.remote.give_qid(session.number, qid);
        }
    }

    /// Puts waiting I/Os into the connection and sends them together.
    fn start(&mut self) {
        let State::Joined { line: Line { link, channel }, session, .. } = &mut self.state else {
            return;
        };
        while channel.has_room() {
            let namespace = &session.namespace;
            let next = self.backlog.next_to_issue(self.remote.durability(), namespace);
            let Some(attempt) = next else { break };
            let (sqe, transfer) = command(session, &attempt.io);
            let taken = channel.submit(self.now, sqe, transfer, false, attempt);
            assert!(taken.is_ok(), "the connection said that it has room");
        }
        if let Err(failure) = link.send(self.now, channel) {
            self.fail_session(failure);
        }
    }

    /// What an answer means for its I/O; `None`: it is tried again.
    fn judge(
        &mut self,
        session: &Session<Tcp>,
        attempt: Attempt,
        result: Result<Cqe, CommandError>,
    ) -> Option<Completion> {
        let result = match result {
            Ok(cqe) => Ok(cqe.status()),
            Err(CommandError::DataDigest) => Err(IoError::DataDigest),
            Err(CommandError::Short { expected, found }) => {
                Err(IoError::Short { expected: expected.into(), found: found.into() })
            }
        };
        self.backlog.judge(self.now, &self.remote, session, attempt, result)
    }

    /// Ends what waits when there is no hope, or when nothing has worked for the time after which a
    /// controller is given up.
    fn give_up_in_time(&mut self) {
        if let State::Dead { reason } = &self.state {
            return self.backlog.fail_all(reason);
        }
        self.backlog.give_up_in_time(self.now, self.remote.options.ctrl_loss_tmo);
    }

    /// The next completion.
    fn next_completion(&mut self) -> Option<Completion> {
        if let Some(completion) = self.backlog.pop_finished() {
            return Some(completion);
        }
        loop {
            let State::Joined { line, session, .. } = &mut self.state else { return None };
            let event = line.channel.poll_event(self.now)?;
            let Event::Done { payload: attempt, result } = event else { continue };
            let success = matches!(&result, Ok(cqe) if cqe.status().is_success());
            let read = attempt.io.op == IoOp::Read;
            if success && read && session.proven.load(Ordering::Relaxed) {
                match self.backlog.succeed(attempt) {
                    Some(completion) => return Some(completion),
                    None => continue,
                }
            }
            let session = Arc::clone(session);
            if let Some(completion) = self.judge(&session, attempt, result) {
                return Some(completion);
            }
        }
    }
}

impl QueuePair for TcpQueuePair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let count = self.backlog.take(pending, &self.namespace, self.fence.as_ref());
        if count > 0 && self.remote.is_ours() {
            self.now = Instant::now();
            self.start();
        }
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.turn(now);
        let mut count = 0;
        while count < max {
            let Some(completion) = self.next_completion() else { break };
            done.push(completion);
            count += 1;
        }
        self.backlog.handed_out(count);
        count
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    fn outstanding(&self) -> usize {
        self.backlog.owed()
    }

    fn wait_fd(&self) -> Option<Wait<'_>> {
        match &self.state {
            State::Down { .. } | State::Dead { .. } => None,
            State::Joining { line, .. } | State::Joined { line, .. } => {
                let Line { link, channel } = line;
                Some(link.wait(channel.is_opening() || channel.wants_transmit()))
            }
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let backlog = self.backlog.next_timeout(self.now);
        let link = match &self.state {
            State::Down { retry_at, .. } => Some(*retry_at),
            State::Dead { .. } => None,
            State::Joining { line, .. } | State::Joined { line, .. } => line.channel.poll_timeout(),
        };
        [backlog, link].into_iter().flatten().min()
    }
}

impl Drop for TcpQueuePair {
    fn drop(&mut self) {
        if self.remote.is_ours() {
            self.close("the queue pair was dropped");
            self.remote.remove_pair();
        }
    }
}

/// The command that does `io`, which has been checked.
fn command(session: &Session<Tcp>, io: &Io) -> (Sqe, Transfer) {
    let len = io.buf.len() as u32;
    let num_blocks = len / session.namespace.block_len_bytes;
    match io.op {
        IoOp::Read => (Sqe::read(0, session.nsid, io.slba, num_blocks, len), Transfer::In),
        IoOp::Write => {
            let sgl = Sgl::transport(len);
            (Sqe::write(0, session.nsid, io.slba, num_blocks, sgl), Transfer::Out)
        }
        IoOp::Flush => (Sqe::flush(0, session.nsid), Transfer::None),
    }
}

fn sleep(wait: Option<Wait<'_>>, limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    let mut fds: Vec<PollFd<'_>> = Vec::new();
    if let Some(Wait { fd, writable }) = wait {
        let flags = if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        fds.push(PollFd::from_borrowed_fd(fd, flags));
    }
    let _ = rustix::event::poll(&mut fds, limit.as_ref()); // an error is a signal: look again
}

/// How often to look for a new session.
const SESSION_INTERVAL: Duration = Duration::from_millis(2);

/// Connects of an I/O queue before the session is replaced.
const MAX_JOIN_ATTEMPTS: u32 = 10;

/// After how long a refused Connect is tried again.
const JOIN_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests;
