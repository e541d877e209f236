//! An I/O queue pair over TCP, and what becomes of its I/Os when the connection dies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use zerocopy::IntoBytes;

use super::failure::Failure;
use super::link::{Link, LinkError, SCRATCH_LEN};
use super::remote::{Phase, Remote, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::nvme::{ConnectData, Cqe, RetryClass, Sgl, Sqe, Status};
use crate::qpair::{Completion, Io, IoError, IoOp, Namespace, QueuePair, Wait};
use crate::tcp::host::{CommandError, Event, Transfer};

/// A queue pair on a remote namespace.
///
/// While the connection is down I/Os are taken and wait. Reads that were on their way when it died are
/// issued again; writes and flushes are not, since the target may still apply them: they complete with
/// `Disconnected`, and whoever wrote must read back to know.
pub(super) struct TcpQueuePair {
    remote: Arc<Remote>,
    /// What the namespace was when this queue last joined a session.
    namespace: Namespace,
    state: State,
    /// I/Os taken that are not in a connection, in order.
    waiting: VecDeque<Job>,
    /// I/Os that the target asked to try again later, with the time.
    delayed: VecDeque<(Instant, Job)>,
    /// Completions that did not come from the connection just now.
    finished: VecDeque<Completion>,
    /// I/Os taken and not completed.
    owed: usize,
    /// Since when nothing has worked.
    down_since: Option<Instant>,
    /// Why it did not.
    last_failure: Option<Failure>,
    scratch: Vec<u8>,
    /// The time of the last turn.
    now: Instant,
}

enum State {
    /// No connection; to be tried at this time. `attempt` counts those within one session.
    Down { retry_at: Instant, attempt: u32 },
    /// There will be none any more.
    Dead { reason: String },
    /// On the way into a session.
    Joining { link: Link<Job>, session: Arc<Session>, qid: u16, attempt: u32 },
    /// In a session.
    Joined { link: Link<Job>, session: Arc<Session>, qid: u16 },
}

/// What a command of an I/O queue owns.
enum Job {
    Io {
        io: Io,
        /// How often it has been issued before.
        tries: u8,
        /// For a flush: what it will have covered.
        covers: u64,
    },
    /// The Connect command's data.
    Connect(Box<ConnectData>),
}

impl AsRef<[u8]> for Job {
    fn as_ref(&self) -> &[u8] {
        match self {
            Job::Io { io, .. } => &io.buf,
            Job::Connect(data) => data.as_bytes(),
        }
    }
}

impl AsMut<[u8]> for Job {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Job::Io { io, .. } => &mut io.buf,
            Job::Connect(data) => data.as_mut_bytes(),
        }
    }
}

impl TcpQueuePair {
    /// A queue pair that is in a session when this returns.
    pub(super) fn connect(remote: Arc<Remote>, namespace: Namespace) -> Result<TcpQueuePair> {
        remote.add_pair()?;
        let now = Instant::now();
        let mut pair = TcpQueuePair {
            remote,
            namespace,
            state: State::Down { retry_at: now, attempt: 1 },
            waiting: VecDeque::new(),
            delayed: VecDeque::new(),
            finished: VecDeque::new(),
            owed: 0,
            down_since: Some(now),
            last_failure: None,
            scratch: vec![0; SCRATCH_LEN],
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
            if let Phase::Dead(failure) = self.remote.phase() {
                return Err(failure.to_error(&self.remote.name()));
            }
            if now >= deadline {
                let stage = match &self.state {
                    State::Joining { link, .. } => link.stage(),
                    _ => "waiting for the controller",
                };
                let mut error = Error::new(ErrorKind::TimedOut, format!("no I/O queue: {stage}"));
                if let Some(failure) = &self.last_failure {
                    error = error.source(failure.to_error(&self.remote.name()));
                }
                return Err(error.target(self.remote.name()));
            }
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
        match &mut self.state {
            State::Down { retry_at, .. } if now < *retry_at => {}
            State::Down { attempt, .. } => {
                let attempt = *attempt;
                self.try_join(attempt);
            }
            State::Dead { .. } => {}
            State::Joining { link, .. } | State::Joined { link, .. } => {
                let result = link.poll(now, &mut self.scratch);
                self.go_on_joining();
                if let Err(error) = result {
                    self.lose_connection(error);
                }
            }
        }
        while self.delayed.front().is_some_and(|(at, _)| *at <= now) {
            let (_, job) = self.delayed.pop_front().expect("just seen");
            self.waiting.push_back(job);
        }
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
        self.down_since = Some(self.now);
        match self.remote.for_this_process() {
            Ok(remote) => {
                self.remote = remote;
                // One too many is told by the target.
                let _ = self.remote.add_pair();
                true
            }
            Err(error) => {
                self.fail_waiting(&error.to_string());
                false
            }
        }
    }

    fn notice_lost_session(&mut self) {
        let session = match &self.state {
            State::Joining { session, .. } | State::Joined { session, .. } => session,
            State::Down { .. } | State::Dead { .. } => return,
        };
        if session.number != self.remote.live() {
            let reason = match self.remote.phase() {
                Phase::Lost(failure) | Phase::Dead(failure) => failure.message,
                Phase::Opening | Phase::Live(_) => "the controller was replaced".to_owned(),
            };
            self.close(&reason);
        }
    }

    /// Begins to connect to the live session, if there is one.
    fn try_join(&mut self, attempt: u32) {
        let now = self.now;
        let retry = State::Down { retry_at: now + SESSION_INTERVAL, attempt: 1 };
        let session = match self.remote.phase() {
            Phase::Live(session) => session,
            Phase::Dead(failure) => {
                self.state = State::Dead { reason: failure.message };
                return;
            }
            Phase::Lost(failure) => {
                self.last_failure = Some(failure);
                self.state = retry;
                return;
            }
            Phase::Opening => {
                self.state = retry;
                return;
            }
        };
        let Some(qid) = self.remote.take_qid(session.number) else {
            self.state = retry;
            if session.number == self.remote.live() {
                let granted = session.num_io_queues;
                self.fail_waiting(&format!("the target now grants only {granted} I/O queues"));
            }
            return;
        };
        let terms = self.remote.terms(&session.portal);
        let options = terms.host_options(session.queue_entries - 1);
        match Link::start(now, session.portal.socket, terms.tcp_timeout, options) {
            Ok(link) => self.state = State::Joining { link, session, qid, attempt },
            Err(error) => {
                self.remote.give_qid(session.number, qid);
                self.remote.request_reset(session.number, Failure::from(error));
                self.state = retry;
            }
        }
    }

    /// Takes the events of a connection that is not yet in a session.
    fn go_on_joining(&mut self) {
        let State::Joining { link, session, qid, .. } = &mut self.state else { return };
        let mut answer = None;
        while let Some(event) = link.poll_event() {
            match event {
                Event::Initialised => {
                    let host = &self.remote.host;
                    let subnqn = &session.portal.address.subnqn;
                    let data = ConnectData::new(host.id, session.cntlid, subnqn, &host.nqn);
                    let sqe = Sqe::connect(0, *qid, session.queue_entries - 1, 0);
                    let job = Job::Connect(Box::new(data));
                    let taken = link.submit(self.now, sqe, Transfer::Out, false, job);
                    assert!(taken.is_ok(), "a new connection has room for a command");
                }
                Event::Done { result, .. } => answer = Some(result),
            }
        }
        match answer {
            None => {
                // Sends Connect. An error shows again in the next turn.
                let _ = link.send(self.now);
            }
            Some(Ok(cqe)) if cqe.status().is_success() => self.become_joined(),
            Some(Ok(cqe)) => self.handle_refused_connect(cqe.status()),
            Some(Err(error)) => self.fail_session(Failure::new(
                ErrorKind::Corrupt,
                format!("Connect of an I/O queue: {error}"),
            )),
        }
    }

    fn become_joined(&mut self) {
        let down = State::Down { retry_at: self.now, attempt: 1 };
        let State::Joining { mut link, session, qid, .. } =
            std::mem::replace(&mut self.state, down)
        else {
            unreachable!("only a joining queue is answered its Connect")
        };
        link.set_max_in_capsule(session.max_in_capsule);
        self.namespace = session.namespace.clone();
        self.state = State::Joined { link, session, qid };
        if self.owed == 0 {
            self.down_since = None;
        }
    }

    /// A target may not have noticed yet that the last connection of this queue identifier is gone.
    fn handle_refused_connect(&mut self, status: Status) {
        let State::Joining { attempt, .. } = self.state else { return };
        let failure = Failure::new(
            ErrorKind::Refused,
            format!("Connect of an I/O queue: the controller answered {status}"),
        );
        if attempt >= MAX_JOIN_ATTEMPTS {
            return self.fail_session(failure);
        }
        self.last_failure = Some(failure);
        self.close("the queue was refused");
        let retry_at = self.now + JOIN_INTERVAL;
        self.state = State::Down { retry_at, attempt: attempt + 1 };
    }

    fn lose_connection(&mut self, error: LinkError) {
        self.fail_session(Failure::from(error));
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
        self.last_failure = Some(failure);
    }

    /// Closes the connection. What had ended is kept, what had not is issued again or has failed.
    fn close(&mut self, reason: &str) {
        let down = State::Down { retry_at: self.now, attempt: 1 };
        let (link, session, qid) = match std::mem::replace(&mut self.state, down) {
            unconnected @ (State::Down { .. } | State::Dead { .. }) => {
                self.state = unconnected;
                return;
            }
            State::Joining { link, session, qid, .. } | State::Joined { link, session, qid } => {
                (link, session, qid)
            }
        };
        self.down_since.get_or_insert(self.now);
        let (jobs, events) = link.abandon();
        for event in events {
            if let Event::Done { payload: Job::Io { io, tries, covers }, result } = event
                && let Some(completion) = self.judge(&session, io, tries, covers, result)
            {
                self.finished.push_back(completion);
            }
        }
        for job in jobs.into_iter().rev() {
            match job {
                Job::Io { io, tries, covers } if io.op == IoOp::Read && tries < MAX_TRIES => {
                    self.waiting.push_front(Job::Io { io, tries: tries + 1, covers });
                }
                Job::Io { io, covers, .. } => {
                    if io.op == IoOp::Flush {
                        self.remote.durability().flush_failed(covers);
                    }
                    let error = IoError::Disconnected(reason.to_owned());
                    self.finished.push_back(failed(io, error));
                }
                Job::Connect(_) => {}
            }
        }
        if self.remote.is_ours() {
            self.remote.give_qid(session.number, qid);
        }
    }

    /// Puts waiting I/Os into the connection and sends them together.
    fn start(&mut self) {
        let State::Joined { link, session, .. } = &mut self.state else { return };
        while link.has_room() {
            let Some(job) = self.waiting.pop_front() else { break };
            let Job::Io { io, tries, mut covers } = job else {
                unreachable!("Connect never waits")
            };
            if io.op == IoOp::Flush {
                if self.remote.durability().take_lost() {
                    let reason = "writes that had completed were not durable when the target was \
                                  lost";
                    let error = IoError::Disconnected(reason.to_owned());
                    self.finished.push_back(failed(io, error));
                    continue;
                }
                covers = self.remote.durability().flush_begins();
            }
            let (sqe, transfer) = command(session, &io);
            let job = Job::Io { io, tries, covers };
            let taken = link.submit(self.now, sqe, transfer, false, job);
            assert!(taken.is_ok(), "the connection said that it has room");
        }
        if let Err(error) = link.send(self.now) {
            self.lose_connection(error);
        }
    }

    /// What an answer means for its I/O; `None`: it is tried again.
    fn judge(
        &mut self,
        session: &Session,
        io: Io,
        tries: u8,
        covers: u64,
        result: Result<Cqe, CommandError>,
    ) -> Option<Completion> {
        let status = match result {
            Ok(cqe) => cqe.status(),
            Err(CommandError::DataDigest) => return Some(failed(io, IoError::DataDigest)),
            Err(CommandError::Short { expected, found }) => {
                let (expected, found) = (expected.into(), found.into());
                return Some(failed(io, IoError::Short { expected, found }));
            }
        };
        if status.is_success() {
            session.proven.store(true, Ordering::Relaxed);
            self.down_since = None;
            match io.op {
                IoOp::Read => {}
                IoOp::Write if session.has_volatile_write_cache => self.remote.durability().wrote(),
                IoOp::Write => {}
                IoOp::Flush => self.remote.durability().flushed(covers),
            }
            return Some(Completion { tag: io.tag, buf: io.buf, result: Ok(()) });
        }
        if tries >= max_tries(status, io.op) {
            return Some(failed(io, IoError::Status(status)));
        }
        if is_path_related(status) && self.remote.portals.len() > 1 {
            let message = format!("the controller answered {status}");
            let failure = Failure::new(ErrorKind::Disconnected, message);
            self.remote.request_reset(session.number, failure);
        }
        let job = Job::Io { io, tries: tries + 1, covers };
        self.delayed.push_back((self.now + RETRY_DELAY, job));
        None
    }

    /// Ends what waits when there is no hope, or when nothing has worked for the time after which a
    /// controller is given up.
    fn give_up_in_time(&mut self) {
        if let State::Dead { reason } = &self.state {
            let reason = reason.clone();
            return self.fail_waiting(&reason);
        }
        let limit = self.remote.options.ctrl_loss_tmo;
        if self.down_since.is_some_and(|since| self.now.saturating_duration_since(since) >= limit) {
            let last = self.last_failure.as_ref().map_or("no connection", |f| &f.message);
            let reason = format!("nothing worked for {} s: {last}", limit.as_secs());
            self.fail_waiting(&reason);
        }
    }

    fn fail_waiting(&mut self, reason: &str) {
        let delayed = self.delayed.drain(..).map(|(_, job)| job);
        for job in self.waiting.drain(..).chain(delayed) {
            if let Job::Io { io, .. } = job {
                self.finished.push_back(failed(io, IoError::Disconnected(reason.to_owned())));
            }
        }
    }

    /// The next completion.
    fn next_completion(&mut self) -> Option<Completion> {
        if let Some(completion) = self.finished.pop_front() {
            return Some(completion);
        }
        loop {
            let State::Joined { link, session, .. } = &mut self.state else { return None };
            let Event::Done { payload, result } = link.poll_event()? else { continue };
            let Job::Io { io, tries, covers } = payload else {
                unreachable!("a joined queue is past its Connect")
            };
            let success = matches!(&result, Ok(cqe) if cqe.status().is_success());
            if success && io.op == IoOp::Read && session.proven.load(Ordering::Relaxed) {
                self.down_since = None;
                return Some(Completion { tag: io.tag, buf: io.buf, result: Ok(()) });
            }
            let session = Arc::clone(session);
            if let Some(completion) = self.judge(&session, io, tries, covers, result) {
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
        let room = usize::from(self.namespace.queue_depth).saturating_sub(self.owed);
        let count = room.min(pending.len());
        for io in pending.drain(..count) {
            match self.namespace.check(&io) {
                Ok(()) => self.waiting.push_back(Job::Io { io, tries: 0, covers: 0 }),
                Err(error) => self.finished.push_back(failed(io, error)),
            }
        }
        self.owed += count;
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
        self.owed -= count;
        count
    }

    fn outstanding(&self) -> usize {
        self.owed
    }

    fn wait_fd(&self) -> Option<Wait<'_>> {
        match &self.state {
            State::Down { .. } | State::Dead { .. } => None,
            State::Joining { link, .. } | State::Joined { link, .. } => Some(link.wait()),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let ready = (!self.finished.is_empty()).then_some(self.now);
        let delayed = self.delayed.front().map(|(at, _)| *at);
        let link = match &self.state {
            State::Down { retry_at, .. } => Some(*retry_at),
            State::Dead { .. } => None,
            State::Joining { link, .. } | State::Joined { link, .. } => link.poll_timeout(),
        };
        [ready, delayed, link].into_iter().flatten().min()
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

fn failed(io: Io, error: IoError) -> Completion {
    Completion { tag: io.tag, buf: io.buf, result: Err(error) }
}

/// The command that does `io`, which has been checked.
fn command(session: &Session, io: &Io) -> (Sqe, Transfer) {
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

/// How often an I/O that was answered with this status is tried in all but the first time.
fn max_tries(status: Status, op: IoOp) -> u8 {
    match status.retry_class() {
        // The controller says that it did nothing, so a write may go again as well.
        RetryClass::Path if is_path_related(status) => MAX_TRIES,
        RetryClass::Retry if op == IoOp::Read => MAX_RETRIES_IN_PLACE,
        _ => 0,
    }
}

/// Whether the path is to blame, not the medium.
fn is_path_related(status: Status) -> bool {
    const SCT_PATH: u8 = 3;
    status.sct == SCT_PATH || status.is(Status::ABORTED_SQ_DELETED)
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

/// How often an I/O is issued again because the connection died or the path was to blame. A read that
/// kills every connection that it meets must end too.
const MAX_TRIES: u8 = 10;

/// How often a read is issued again because the controller asked for it.
const MAX_RETRIES_IN_PLACE: u8 = 3;

/// After how long a refused I/O is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// How often to look for a new session.
const SESSION_INTERVAL: Duration = Duration::from_millis(2);

/// Connects of an I/O queue before the session is replaced.
const MAX_JOIN_ATTEMPTS: u32 = 10;

/// After how long a refused Connect is tried again.
const JOIN_INTERVAL: Duration = Duration::from_millis(20);
