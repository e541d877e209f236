//! A queue pair on a namespace through SPDK: it joins sessions, issues I/Os in them and leaves them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Failure, NS_INDEX, Portal, Remote, Spdk};
use crate::qpair::session::{self, Attempt, Backlog, Lifecycle, SessionState};
use crate::qpair::{Completion, Fence, Io, IoError, IoOp, Namespace, Notice, QueuePair};
use crate::spdk::{self, Command, Controller, IoQueue, Payload, Refusal};
use dlfs_base::buf::{HugePages, IoBuf, Pool, PoolOptions};
use dlfs_base::error::{ErrorKind, Result};
use dlfs_base::units::deadline;
use dlfs_nvme::nvme::Status;

type Session = session::Session<Portal, Arc<Controller>>;

/// A queue pair through SPDK. The backlog holds the I/Os that are not on a connection.
pub(super) struct SpdkQueuePair {
    remote: Arc<Remote<Spdk>>,
    /// The namespace as of the last joined session, with the largest transfer limit of all sessions: see
    /// [`Namespace::in_session`].
    namespace: Namespace,
    state: PairState,
    backlog: Backlog,
    /// Memory for I/Os whose buffers the device cannot access; `None` over TCP, which needs none.
    bounce: Option<Pool>,
    /// Answers of the last turn that may need a retry.
    answers: Vec<(SpdkJob, Status)>,
    /// The fence of writes, see `QueuePair::use_fence`; `None`: no fence. Commands that SPDK has taken cannot be
    /// recalled.
    fence: Option<Arc<Fence>>,
    /// The time of the last completion, or of the first command after none was outstanding.
    progress: Instant,
    /// The time of the last turn.
    now: Instant,
}

/// The state of a queue pair's connection.
enum PairState {
    /// No connection; the next attempt is at this time.
    Down { retry_at: Instant },
    /// There will be no further connection.
    Dead { reason: String },
    /// Connecting to a session, until this time at most.
    Joining { queue: Arc<IoQueue<SpdkJob>>, session: Arc<Session>, deadline: Instant },
    /// In a session.
    Joined { queue: Arc<IoQueue<SpdkJob>>, session: Arc<Session> },
}

/// A command's I/O, with the memory that the device uses.
struct SpdkJob {
    attempt: Attempt,
    /// The memory that the device uses instead of the I/O's buffer, if it cannot access the buffer.
    bounce: Option<IoBuf>,
}

impl Payload for SpdkJob {
    fn buf(&mut self) -> &mut IoBuf {
        self.bounce.as_mut().unwrap_or(&mut self.attempt.io.buf)
    }
}

impl SpdkQueuePair {
    /// Opens a queue pair and waits until it has joined a session.
    pub(super) fn connect(
        remote: Arc<Remote<Spdk>>,
        namespace: Namespace,
    ) -> Result<SpdkQueuePair> {
        remote.add_pair()?;
        let now = Instant::now();
        let mut pair = SpdkQueuePair {
            remote,
            namespace,
            state: PairState::Down { retry_at: now },
            backlog: Backlog::new(now),
            bounce: None,
            answers: Vec::new(),
            fence: None,
            progress: now,
            now,
        };
        if !pair.is_tcp() {
            pair.make_bounce()?;
        }
        pair.wait_joined(deadline(now, pair.remote.options.connect_timeout))?;
        Ok(pair)
    }

    /// Waits until the queue pair is in a session.
    fn wait_joined(&mut self, deadline: Instant) -> Result<()> {
        loop {
            let now = Instant::now();
            self.turn(now, 0, &mut Vec::new());
            if matches!(self.state, PairState::Joined { .. }) {
                return Ok(());
            }
            let stage = match &self.state {
                PairState::Joining { .. } => "connecting it",
                _ => "waiting for the controller",
            };
            self.remote.may_wait(now, deadline, &self.backlog, stage)?;
            std::thread::sleep(JOIN_NAP);
        }
    }

    /// Runs a turn; appends at most `max` completions and returns their number.
    fn turn(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.now = now;
        if !self.remote.is_ours() {
            self.leave_to_parent();
            return 0;
        }
        self.notice_lost_session();
        let count = match &self.state {
            PairState::Down { retry_at } if now < *retry_at => 0,
            PairState::Down { .. } => {
                self.try_join();
                0
            }
            PairState::Dead { .. } => 0,
            PairState::Joining { .. } => {
                self.continue_joining();
                0
            }
            PairState::Joined { .. } => self.reap(max, done),
        };
        self.backlog.wake_delayed(now);
        self.issue();
        self.give_up_in_time();
        count
    }

    /// In a child process SPDK cannot be used, and outstanding I/Os belong to the parent.
    fn leave_to_parent(&mut self) {
        if !matches!(self.state, PairState::Dead { .. }) {
            let reason = "SPDK does not go on in a child process".to_owned();
            self.backlog.down_since.get_or_insert(self.now);
            if let PairState::Joining { queue, .. } | PairState::Joined { queue, .. } =
                std::mem::replace(&mut self.state, PairState::Dead { reason: reason.clone() })
            {
                // Its lock may be held for ever, if the keeper held it at the fork.
                if let Some(mut core) = queue.try_lock() {
                    core.end();
                    let attempts = core.unfinished().map(|job| job.attempt);
                    self.backlog.recover(attempts, &self.remote, &reason, true);
                }
            }
        }
        if let PairState::Dead { reason } = &self.state {
            self.backlog.fail_all(reason);
        }
    }

    /// Leaves a session that has ended.
    fn notice_lost_session(&mut self) {
        let session = match &self.state {
            PairState::Joining { session, .. } | PairState::Joined { session, .. } => session,
            PairState::Down { .. } | PairState::Dead { .. } => return,
        };
        if let Some(reason) = self.remote.why_over(session.number) {
            self.close(&reason, true);
        }
    }

    /// Starts to connect to the live session, if there is one.
    fn try_join(&mut self) {
        let now = self.now;
        self.state = PairState::Down { retry_at: now + SESSION_INTERVAL };
        let session = match self.remote.session_state(&mut self.backlog) {
            SessionState::Live(session) => session,
            SessionState::Pending => return,
            SessionState::Ended(reason) => {
                self.state = PairState::Dead { reason };
                return;
            }
        };
        let is_fabric = self.is_fabric();
        let depth = session.queue_entries - 1;
        match session.join_info.io_queue(session.namespaces[NS_INDEX].nsid, depth, is_fabric) {
            Ok(queue) => {
                let deadline = deadline(now, self.remote.options.io_timeout);
                self.state = PairState::Joining { queue, session, deadline };
            }
            Err(error) => {
                let failure = super::failure(&error);
                if error.kind() == ErrorKind::Refused {
                    self.backlog.fail_all(&failure.message);
                } else {
                    self.remote.request_reset(session.number, failure.clone());
                }
                self.backlog.last_failure = Some(failure);
            }
        }
    }

    /// Polls a queue that is being connected.
    fn continue_joining(&mut self) {
        let PairState::Joining { queue, session, deadline } = &self.state else { return };
        let mut core = queue.lock();
        let polled = core.poll(0, |_, _| {});
        let is_connected = core.is_connected();
        drop(core);
        if polled.is_err() {
            let message = "an I/O queue could not be connected";
            return self.fail_session(Failure::new(ErrorKind::Disconnected, message));
        }
        if is_connected {
            let queue = Arc::clone(queue);
            let session = Arc::clone(session);
            self.namespace = self.namespace.in_session(&session.namespaces[NS_INDEX].namespace);
            self.progress = self.now;
            self.backlog.set_up();
            self.state = PairState::Joined { queue, session };
        } else if self.now >= *deadline {
            let message = "connecting an I/O queue took too long";
            self.fail_session(Failure::new(ErrorKind::TimedOut, message));
        }
    }

    /// Polls the queue; appends at most `max` completions and returns their number. Once the session is proven,
    /// successful reads without bounce memory are completed at once; other answers are examined.
    fn reap(&mut self, max: usize, done: &mut Vec<Completion>) -> usize {
        let PairState::Joined { queue, session } = &self.state else { return 0 };
        let before = done.len();
        let proven = session.proven.load(Ordering::Relaxed);
        let backlog = &mut self.backlog;
        let answers = &mut self.answers;
        let mut core = queue.lock();
        let polled = core.poll(max, |job, status| {
            let is_read = job.attempt.io.op == IoOp::Read;
            if proven && is_read && status.is_success() && job.bounce.is_none() {
                done.extend(backlog.succeed(job.attempt).map(|answer| answer.completion));
            } else {
                answers.push((job, status));
            }
        });
        let idle = core.outstanding() == 0;
        drop(core);
        let count = done.len() - before;
        if count > 0 || idle || !self.answers.is_empty() {
            self.progress = self.now;
        }
        if !self.answers.is_empty() {
            self.judge_answers();
        }
        if polled.is_err() {
            let message = "the connection of an I/O queue is lost";
            self.fail_session(Failure::new(ErrorKind::Disconnected, message));
        } else if self.now.saturating_duration_since(self.progress)
            >= self.remote.options.io_timeout
        {
            let message = format!("no answer for {:?}", self.remote.options.io_timeout);
            self.fail_session(Failure::new(ErrorKind::TimedOut, message));
        }
        count
    }

    /// Completes answered I/Os, or retries them.
    fn judge_answers(&mut self) {
        let PairState::Joined { session, .. } = &self.state else { return };
        let session = Arc::clone(session);
        let mut aborted = Vec::new();
        for (mut job, status) in std::mem::take(&mut self.answers) {
            if is_unanswered(status) {
                // SPDK reports this status for a command without an answer when the queue was lost: the
                // target may still execute it.
                aborted.push(job.attempt);
                continue;
            }
            if let Some(bounce) = job.bounce.take()
                && job.attempt.io.op == IoOp::Read
            {
                job.attempt.io.buf.copy_from_slice(&bounce);
            }
            let now = self.now;
            let remote = &self.remote;
            if let Some(answer) =
                self.backlog.complete_or_retry(now, remote, &session, job.attempt, Ok(status))
            {
                self.backlog.finished.push_back(answer);
            }
        }
        let reason = "the queue was deleted before an answer came";
        self.backlog.recover(aborted.into_iter(), &self.remote, reason, true);
    }

    /// Leaves the session and asks for a new one: a failure of one queue counts as a failure of the
    /// controller.
    fn fail_session(&mut self, failure: Failure) {
        let session = match &self.state {
            PairState::Joining { session, .. } | PairState::Joined { session, .. } => {
                Arc::clone(session)
            }
            PairState::Down { .. } | PairState::Dead { .. } => return,
        };
        let failure = failure.at(format_args!("I/O queue on {}", session.portal));
        session.join_info.fail();
        self.close(&failure.message, true);
        self.remote.request_reset(session.number, failure.clone());
        self.backlog.last_failure = Some(failure);
    }

    /// Ends the queue. I/Os that had ended are completed; the others are issued again or fail. `is_lost`:
    /// the controller does not answer, or was given up.
    fn close(&mut self, reason: &str, is_lost: bool) {
        self.end_joining();
        let (PairState::Joining { queue, .. } | PairState::Joined { queue, .. }) = &self.state
        else {
            return;
        };
        let queue = Arc::clone(queue);
        self.backlog.down_since.get_or_insert(self.now);
        let begun = Instant::now();
        let mut core = queue.lock();
        core.end();
        // A controller that took this long has not deleted the queue.
        let is_lost = is_lost || begun.elapsed() >= self.remote.options.io_timeout;
        let answers = &mut self.answers;
        // The error only says that the queue is gone.
        let _ = core.poll(usize::MAX, |job, status| answers.push((job, status)));
        let mut unfinished: Vec<SpdkJob> = core.unfinished().collect();
        drop(core);
        if is_lost && !self.is_fabric() {
            // A device that has not deleted the queue may still write to the buffers; over a lost connection it
            // cannot.
            let stuck = self.answers.iter_mut().filter(|(_, status)| is_unanswered(*status));
            stuck.map(|(job, _)| job).chain(&mut unfinished).for_each(quarantine);
        }
        self.judge_answers();
        let unfinished = unfinished.into_iter().map(|job| job.attempt);
        self.backlog.recover(unfinished, &self.remote, reason, true);
        self.state = PairState::Down { retry_at: self.now };
    }

    /// Waits until a queue that is not of a fabric has connected: if the queue ended earlier, SPDK would wait without a
    /// limit. After the deadline, the controller is given up.
    fn end_joining(&self) {
        let PairState::Joining { queue, session, deadline } = &self.state else { return };
        while !self.is_fabric() {
            let mut core = queue.lock();
            if core.poll(0, |_, _| {}).is_err() || core.is_connected() {
                return;
            }
            drop(core);
            if Instant::now() >= *deadline {
                return session.join_info.fail();
            }
            std::thread::sleep(JOIN_NAP);
        }
    }

    /// Submits waiting I/Os to SPDK.
    fn issue(&mut self) {
        if self.backlog.waiting.is_empty() {
            return;
        }
        let PairState::Joined { queue, session } = &self.state else { return };
        let queue = Arc::clone(queue);
        let session = Arc::clone(session);
        let block_len = session.namespaces[NS_INDEX].namespace.block_len_bytes;
        let needs_dma = !self.is_tcp();
        let mut core = queue.lock();
        if core.outstanding() == 0 {
            self.progress = self.now;
        }
        while core.has_room() {
            let Some(attempt) = self.backlog.next_to_issue(&self.remote, &session) else { break };
            let io = &attempt.io;
            let num_blocks = io.buf.len() as u32 / block_len;
            let command = match io.op {
                IoOp::Read => Command::Read(io.slba, num_blocks),
                IoOp::Write => Command::Write(io.slba, num_blocks),
                IoOp::Flush => Command::Flush,
            };
            let in_memory = io.buf.is_of(spdk::driver_memory());
            let reached = in_memory && io.buf.as_ptr().addr().is_multiple_of(PRP_ALIGN);
            let job = if needs_dma && !reached && command != Command::Flush {
                match self.bounce(attempt) {
                    Ok(job) => job,
                    Err(attempt) => {
                        self.backlog.waiting.push_front(attempt);
                        break;
                    }
                }
            } else {
                SpdkJob { attempt, bounce: None }
            };
            match core.submit(command, job) {
                Ok(()) => {}
                Err((job, Refusal::Full | Refusal::Gone)) => {
                    // The next poll reports that the queue is gone.
                    self.backlog.waiting.push_front(job.attempt);
                    break;
                }
                Err((job, Refusal::Impossible)) => {
                    let error = IoError::Invalid("SPDK does not take such a command");
                    self.backlog.end(job.attempt, Err(error));
                }
            }
        }
    }

    /// Gives the I/O memory that the device can access; returns the attempt unchanged if all such memory is in
    /// use.
    fn bounce(&self, attempt: Attempt) -> Result<SpdkJob, Attempt> {
        let Some(mut bounce) = self.bounce.as_ref().and_then(|p| p.take(attempt.io.buf.len()))
        else {
            return Err(attempt);
        };
        if attempt.io.op == IoOp::Write {
            bounce.copy_from_slice(&attempt.io.buf);
        }
        Ok(SpdkJob { attempt, bounce: Some(bounce) })
    }

    /// Allocates the memory for [`SpdkQueuePair::bounce`], once.
    ///
    /// # Errors
    /// `OutOfMemory`: SPDK has too little memory.
    fn make_bounce(&mut self) -> Result<()> {
        let bytes = BOUNCE_BYTES.max(2 * self.namespace.max_transfer_bytes as usize);
        let options = PoolOptions { bytes, slot_len_bytes: 4096, huge_pages: HugePages::Off };
        let pool = Pool::of_source(options, spdk::driver_memory()).map_err(|error| {
            let hint = "give SPDK more with --spdk-memory, or more huge pages";
            error.target(self.namespace.address.clone()).hint(hint)
        })?;
        self.bounce = Some(pool);
        Ok(())
    }

    /// Fails the I/Os in the backlog when there will be no further session, or when nothing has succeeded for the time
    /// after which a controller is given up.
    fn give_up_in_time(&mut self) {
        if let PairState::Dead { reason } = &self.state {
            return self.backlog.fail_all(reason);
        }
        self.backlog.give_up_in_time(self.now, self.remote.options.ctrl_loss_tmo);
    }

    fn is_tcp(&self) -> bool {
        !self.remote.portals[0].address.needs_dma_memory()
    }

    /// Returns whether the controller is reached over a network, by TCP or RDMA. Then a lost connection writes no
    /// memory any more, and queues are cheaper to poll in a group.
    fn is_fabric(&self) -> bool {
        matches!(self.remote.portals[0].target.trtype, "TCP" | "RDMA")
    }
}

impl QueuePair for SpdkQueuePair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let count = self.backlog.take(
            (MEMBER, NS_INDEX),
            pending,
            &self.namespace,
            self.fence.as_ref(),
            &mut Vec::new(),
        );
        if count > 0 && self.remote.is_ours() {
            self.issue();
        }
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let mut count = self.turn(now, max, done);
        while count < max {
            let Some(answer) = self.backlog.finished.pop_front() else { break };
            done.push(answer.completion);
            count += 1;
        }
        self.backlog.owed -= count;
        count
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    /// SPDK exposes no descriptors, so sleeps are short.
    fn notice(&self) -> Notice {
        Notice::Look
    }

    fn outstanding(&self) -> usize {
        self.backlog.owed
    }

    fn next_timeout(&self) -> Option<Instant> {
        let backlog = self.backlog.next_timeout(self.now);
        let state = match &self.state {
            PairState::Down { retry_at } => Some(*retry_at),
            PairState::Dead { .. } => None,
            PairState::Joining { .. } => Some(self.now + JOIN_NAP),
            // Nothing wakes a sleeper, so sleeps are short.
            PairState::Joined { .. } => (self.backlog.owed > 0).then(|| self.now + IDLE_NAP),
        };
        [backlog, state].into_iter().flatten().min()
    }
}

impl Drop for SpdkQueuePair {
    fn drop(&mut self) {
        if self.remote.is_ours() {
            self.close("the queue pair was dropped", false);
            self.backlog.withdraw_reports((MEMBER, NS_INDEX), &self.remote);
            self.remote.with(Lifecycle::remove_pair);
        } else {
            self.leave_to_parent();
        }
    }
}

/// Returns whether SPDK invented this status for a command without an answer: over fabrics "queue deleted",
/// elsewhere "aborted by request", which this code never requests.
fn is_unanswered(status: Status) -> bool {
    status.is(Status::ABORTED_SQ_DELETED) || status.is(Status::ABORT_REQUESTED)
}

/// Leaks the memory of a command that a device may still write to, and gives the I/O other memory.
fn quarantine(job: &mut SpdkJob) {
    let buf = job.buf();
    let fresh = IoBuf::zeroed(buf.len());
    std::mem::forget(std::mem::replace(buf, fresh));
}

/// The number of the backlog's only member.
const MEMBER: usize = 0;

/// The interval at which a queue looks for a new session.
const SESSION_INTERVAL: Duration = Duration::from_millis(2);

/// The interval at which a connecting queue is polled.
const JOIN_NAP: Duration = Duration::from_micros(200);

/// The longest sleep of a poller while I/Os are outstanding.
const IDLE_NAP: Duration = Duration::from_micros(50);

/// The alignment of buffers for a device that transfers bytes by itself (PRP).
const PRP_ALIGN: usize = 4;

/// The least size of [`SpdkQueuePair::bounce`]'s memory, in bytes.
const BOUNCE_BYTES: usize = 4 << 20;
