//! The I/Os of a queue that are not on a connection: they wait, are retried, or have failed.
//!
//! This file decides which I/Os are issued again after a failure. `queue.rs`, and `qpair/spdk/queue.rs` for SPDK,
//! put them on connections.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Failure, Session, Shared};
use crate::qpair::pieces::{PieceId, Pieces};
use crate::qpair::{Completion, Fence, Io, IoError, IoOp, Namespace};
use dlfs_base::error::ErrorKind;
use dlfs_base::units::Lba;
use dlfs_nvme::nvme::{RetryClass, Status};

/// An I/O that was taken, on its way through attempts to run it.
#[derive(Debug)]
pub struct Attempt {
    /// The I/O.
    pub io: Io,
    /// The member that submitted it.
    pub member: usize,
    /// The index of its namespace in the session.
    pub ns_index: usize,
    /// The number of earlier attempts.
    tries: u8,
    /// For a flush that was issued: the number of writes that it covers.
    covers: u64,
    /// For a write: the fence that must be open; `None`: no fence.
    fence: Option<Arc<Fence>>,
    /// For a read: true if an earlier read of its blocks returned corrupt data, so that no cache may serve it.
    pub forces_unit_access: bool,
    /// The time at which the I/O was last put on a connection of NVMe/TCP.
    pub(super) sent_at: Option<Instant>,
    /// The identifier of the piece, if this I/O is a piece of another one.
    piece: Option<PieceId>,
}

impl AsRef<[u8]> for Attempt {
    fn as_ref(&self) -> &[u8] {
        &self.io.buf
    }
}

impl AsMut<[u8]> for Attempt {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.io.buf
    }
}

impl Attempt {
    /// Returns whether a fence forbids sending it.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fence.as_ref().is_some_and(|fence| !fence.is_open())
    }
}

/// A completion and its member.
#[derive(Debug)]
pub struct Answer {
    /// The member that submitted the I/O.
    pub member: usize,
    /// The completion.
    pub completion: Completion,
    /// True for a failed flush that is the only report of lost writes.
    reports_loss: bool,
}

/// The I/Os that an I/O queue has taken and that are not on its connection.
///
/// While the connection is down, I/Os are taken and wait. Reads that were on the lost connection are issued
/// again. Writes and flushes are not, because the target may still apply them: they complete with
/// `Disconnected`, and the caller must read back to know. A connection on a path that became inaccessible is not lost:
/// see `underway.rs`.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// I/Os that wait to be issued, in order.
    pub(crate) waiting: VecDeque<Attempt>,
    /// I/Os that ended with a status that allows a retry, each with the time of the retry.
    delayed: VecDeque<(Instant, Attempt)>,
    /// For each piece, the piece that it was cut from; `None` if it was cut from an I/O of a member.
    cuts: Pieces<Option<PieceId>>,
    /// Completions that wait to be returned.
    pub(crate) finished: VecDeque<Answer>,
    /// The number of I/Os that were taken and whose completions were not returned yet.
    pub(crate) owed: usize,
    /// The time since which nothing has succeeded: no I/O, and while none was owed, no connection. `None`: something
    /// has succeeded since the last loss.
    pub(crate) down_since: Option<Instant>,
    /// The last failure.
    pub(crate) last_failure: Option<Failure>,
}

impl Backlog {
    /// Creates the backlog of a queue that has no connection yet.
    pub(crate) fn new(now: Instant) -> Backlog {
        Backlog {
            waiting: VecDeque::new(),
            delayed: VecDeque::new(),
            cuts: Pieces::new(),
            finished: VecDeque::new(),
            owed: 0,
            down_since: Some(now),
            last_failure: None,
        }
    }

    /// Takes I/Os of `member` for the namespace at index `ns_index` while there is room. An invalid I/O
    /// completes with the reason. Reads of blocks in `corrupt` set Force Unit Access (FUA), once.
    pub(crate) fn take(
        &mut self,
        (member, ns_index): (usize, usize),
        pending: &mut VecDeque<Io>,
        namespace: &Namespace,
        fence: Option<&Arc<Fence>>,
        corrupt: &mut Vec<Range<u64>>,
    ) -> usize {
        let room = usize::from(namespace.queue_depth).saturating_sub(self.owed);
        let count = room.min(pending.len());
        for io in pending.drain(..count) {
            match namespace.check(&io) {
                Ok(()) => {
                    self.waiting.push_back(Attempt {
                        member,
                        ns_index,
                        tries: 0,
                        covers: 0,
                        fence: fence.filter(|_| io.op == IoOp::Write).cloned(),
                        forces_unit_access: is_corrupt(&io, namespace, corrupt),
                        sent_at: None,
                        piece: None,
                        io,
                    });
                }
                Err(error) => self.finished.push_back(Answer {
                    member,
                    completion: io.end(Err(error)),
                    reports_loss: false,
                }),
            }
        }
        self.owed += count;
        count
    }

    /// The next I/O to issue in `session`; `None`: none waits. An I/O that exceeds the session's transfer limit is
    /// split first. Ends writes whose fence is closed, and a flush if completed writes were lost before it.
    pub(crate) fn next_to_issue<P: Clone + fmt::Display, J>(
        &mut self,
        shared: &Shared<P, J>,
        session: &Session<P, J>,
    ) -> Option<Attempt> {
        loop {
            let mut attempt = self.waiting.pop_front()?;
            let namespace = &session.namespaces[attempt.ns_index].namespace;
            if attempt.is_fenced() {
                self.end(attempt, Err(IoError::Fenced));
                continue;
            }
            if attempt.io.buf.len() > namespace.max_transfer_bytes as usize {
                self.cut(attempt, namespace);
                continue;
            }
            if attempt.io.op == IoOp::Flush {
                let durability = shared.durability(attempt.ns_index);
                if durability.take_lost() {
                    let reason = "writes that had completed were not durable when the target was \
                                  lost";
                    self.report_loss(attempt, reason);
                    continue;
                }
                attempt.covers = durability.flush_begins();
            }
            return Some(attempt);
        }
    }

    /// Splits an I/O; its pieces wait in its place.
    fn cut(&mut self, attempt: Attempt, namespace: &Namespace) {
        let Attempt { io, member, ns_index, tries, fence, forces_unit_access, piece, .. } = attempt;
        let block_len = namespace.block_len_bytes;
        let most = namespace.max_transfer_bytes.max(block_len) as usize;
        let Io { op, mut slba, tag, .. } = io;
        let mut left = io.buf.len();
        let num = left.div_ceil(most);
        let mut pieces = Vec::with_capacity(num);
        let mut cutting = self.cuts.begin(io, 0, num);
        while left > 0 {
            let len = most.min(left);
            let (id, buf) = self.cuts.cut(&mut cutting, len, piece);
            pieces.push(Attempt {
                io: Io { op, slba, buf, tag },
                member,
                ns_index,
                tries,
                covers: 0,
                fence: fence.clone(),
                forces_unit_access,
                sent_at: None,
                piece: Some(id),
            });
            slba = Lba(slba.0 + (len / block_len as usize) as u64);
            left -= len;
        }
        pieces.into_iter().rev().for_each(|piece| self.waiting.push_front(piece));
    }

    /// The completion of an attempt that has ended; `None` for a piece while others are outstanding.
    fn completion(&mut self, attempt: Attempt, result: Result<(), IoError>) -> Option<Answer> {
        let Attempt { io, member, mut piece, .. } = attempt;
        let mut completion = io.end(result);
        while let Some(id) = piece {
            piece = self.cuts.get_mut(id).info;
            completion = self.cuts.end(id, completion.buf, completion.result)?;
        }
        Some(Answer { member, completion, reports_loss: false })
    }

    /// Ends an attempt; its completion is returned later.
    pub(crate) fn end(&mut self, attempt: Attempt, result: Result<(), IoError>) {
        let completion = self.completion(attempt, result);
        self.finished.extend(completion);
    }

    /// Ends a flush whose failure reports lost writes.
    fn report_loss(&mut self, flush: Attempt, reason: &str) {
        let answer = self.completion(flush, Err(IoError::Disconnected(reason.to_owned())));
        self.finished.extend(answer.map(|answer| Answer { reports_loss: true, ..answer }));
    }

    /// Takes back the reports of lost writes that `member` will not see: the next flush of its namespace makes
    /// them.
    pub(crate) fn withdraw_reports<P: Clone + fmt::Display, J>(
        &mut self,
        (member, ns_index): (usize, usize),
        shared: &Shared<P, J>,
    ) {
        for answer in self.finished.iter_mut().filter(|answer| answer.member == member) {
            if std::mem::take(&mut answer.reports_loss) {
                shared.durability(ns_index).owe_report();
            }
        }
    }

    /// Fails the I/Os of `member` that are in the backlog.
    pub(crate) fn fail_those_of(&mut self, member: usize, reason: &str) {
        let is_of = |attempt: &Attempt| attempt.member == member;
        let (ended, waiting): (VecDeque<Attempt>, VecDeque<Attempt>) =
            self.waiting.drain(..).partition(is_of);
        let (late, delayed): (VecDeque<_>, VecDeque<_>) =
            self.delayed.drain(..).partition(|(_, attempt)| is_of(attempt));
        (self.waiting, self.delayed) = (waiting, delayed);
        for attempt in ended.into_iter().chain(late.into_iter().map(|(_, attempt)| attempt)) {
            self.end(attempt, Err(IoError::Disconnected(reason.to_owned())));
        }
    }

    /// Takes back the I/Os of a lost connection, oldest first. Reads wait to be issued again, `MAX_TRIES` times
    /// at most; writes and flushes fail. If the session continues (`session_ends` is false), a failed flush does
    /// not count as a report of lost writes: a later flush can still make these writes durable, and must report their
    /// loss.
    pub(crate) fn recover<P: Clone + fmt::Display, J>(
        &mut self,
        unfinished: impl DoubleEndedIterator<Item = Attempt>,
        shared: &Shared<P, J>,
        reason: &str,
        session_ends: bool,
    ) {
        for attempt in unfinished.rev() {
            let op = attempt.io.op;
            if op == IoOp::Read && attempt.tries < MAX_TRIES {
                shared.retried.fetch_add(1, Ordering::Relaxed);
                self.waiting.push_front(Attempt { tries: attempt.tries + 1, ..attempt });
                continue;
            }
            if op == IoOp::Flush
                && session_ends
                && shared.durability(attempt.ns_index).flush_failed(attempt.covers)
            {
                self.report_loss(attempt, reason);
                continue;
            }
            self.end(attempt, Err(IoError::Disconnected(reason.to_owned())));
        }
    }

    /// Maps an answer to the completion of its I/O; `None` if the I/O is tried again.
    pub(crate) fn complete_or_retry<P: Clone + fmt::Display, J>(
        &mut self,
        now: Instant,
        shared: &Shared<P, J>,
        session: &Session<P, J>,
        attempt: Attempt,
        result: Result<Status, IoError>,
    ) -> Option<Answer> {
        let status = match result {
            Ok(status) => status,
            Err(error) => return self.completion(attempt, Err(error)),
        };
        if status.is_success() {
            session.proven.store(true, Ordering::Relaxed);
            self.down_since = None;
            match attempt.io.op {
                IoOp::Read => {}
                IoOp::Write if session.has_volatile_write_cache => {
                    shared.wrote(session.number, attempt.ns_index);
                }
                IoOp::Write => {}
                IoOp::Flush => shared.durability(attempt.ns_index).flushed(attempt.covers),
            }
            return self.completion(attempt, Ok(()));
        }
        if attempt.tries >= max_tries(status, attempt.io.op) {
            return self.completion(attempt, Err(IoError::Status(status)));
        }
        if status.is_path_related() {
            let message = format!("the controller answered {status}");
            shared.avoid_path(session, Failure::new(ErrorKind::Disconnected, message));
        }
        shared.retried.fetch_add(1, Ordering::Relaxed);
        let attempt = Attempt { tries: attempt.tries + 1, ..attempt };
        if status.is_path_related() && shared.live() != 0 && shared.live() != session.number {
            self.waiting.push_back(attempt); // another path takes it at once
        } else {
            self.delayed.push_back((now + RETRY_DELAY, attempt));
        }
        None
    }

    /// The completion of a successful read in a session that is known to work; `None` for a piece.
    pub(crate) fn succeed(&mut self, attempt: Attempt) -> Option<Answer> {
        self.down_since = None;
        self.completion(attempt, Ok(()))
    }

    /// Records that the connection is up. While I/Os are owed, only a successful one ends the time of failure.
    pub(crate) fn set_up(&mut self) {
        if self.owed == 0 {
            self.down_since = None;
        }
    }

    /// Queues the delayed I/Os whose delay has ended.
    pub(crate) fn wake_delayed(&mut self, now: Instant) {
        while self.delayed.front().is_some_and(|(at, _)| *at <= now) {
            let (_, attempt) = self.delayed.pop_front().expect("just seen");
            self.waiting.push_back(attempt);
        }
    }

    /// Fails all I/Os in the backlog if nothing has succeeded for `limit`, the time after which a controller is given
    /// up.
    pub(crate) fn give_up_in_time(&mut self, now: Instant, limit: Duration) {
        if self.down_since.is_some_and(|since| now.saturating_duration_since(since) >= limit) {
            let last = self.last_failure.as_ref().map_or("no connection", |f| &f.message);
            let reason = format!("nothing worked for {} s: {last}", limit.as_secs());
            self.fail_all(&reason);
        }
    }

    /// Fails all I/Os in the backlog, those with a delay included.
    pub(crate) fn fail_all(&mut self, reason: &str) {
        let delayed = self.delayed.drain(..).map(|(_, attempt)| attempt);
        let all: Vec<Attempt> = self.waiting.drain(..).chain(delayed).collect();
        for attempt in all {
            self.end(attempt, Err(IoError::Disconnected(reason.to_owned())));
        }
    }

    /// The time of the next poll: `now` if a completion is stored, else the end of the first delay.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let ready = (!self.finished.is_empty()).then_some(now);
        ready.or_else(|| self.delayed.front().map(|(at, _)| *at))
    }
}

/// Returns whether `io` reads blocks that were reported as corrupt; forgets each report whose blocks it reads
/// completely.
fn is_corrupt(io: &Io, namespace: &Namespace, corrupt: &mut Vec<Range<u64>>) -> bool {
    if corrupt.is_empty() || io.op != IoOp::Read {
        return false;
    }
    let end = io.slba.0 + io.buf.len() as u64 / u64::from(namespace.block_len_bytes);
    let is_in = corrupt.iter().any(|blocks| blocks.start < end && io.slba.0 < blocks.end);
    corrupt.retain(|blocks| blocks.start < io.slba.0 || end < blocks.end);
    is_in
}

/// The number of retries that an I/O gets after this status.
fn max_tries(status: Status, op: IoOp) -> u8 {
    match status.retry_class() {
        // The controller says that it did nothing, so a write may be sent again.
        RetryClass::Path if status.is_path_related() => MAX_TRIES,
        RetryClass::Retry if op == IoOp::Read => MAX_RETRIES_IN_PLACE,
        _ => 0,
    }
}

/// The most retries of an I/O after a lost connection or a path error. There is a limit, because a read may
/// itself break every connection.
const MAX_TRIES: u8 = 10;

/// The most retries of a read that the controller asks for.
const MAX_RETRIES_IN_PLACE: u8 = 3;

/// The delay before a retry after an error status.
const RETRY_DELAY: Duration = Duration::from_millis(100);
