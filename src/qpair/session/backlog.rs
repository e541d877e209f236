//! What becomes of an I/O that is not in a connection: it waits, is tried again, or has failed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use slab::Slab;

use super::{Failure, Session, Shared};
use crate::buf::IoBuf;
use crate::error::ErrorKind;
use crate::nvme::{RetryClass, Status};
use crate::qpair::{Completion, Fence, Io, IoError, IoOp, Namespace};
use crate::units::Lba;

/// An I/O that was taken, with its past.
#[derive(Debug)]
pub struct Attempt {
    /// The I/O.
    pub io: Io,
    /// Who submitted it, by the queue's own count.
    pub member: usize,
    /// The place of its namespace in the session.
    pub place: usize,
    /// How often it has been issued before.
    tries: u8,
    /// For a flush: what it will have covered.
    covers: u64,
    /// For a write: what must be open for it to be sent.
    fence: Option<Arc<Fence>>,
    /// The I/O that it is a piece of, and which.
    of: Option<(u32, u32)>,
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
    /// Nobody learns how it ends: a flush that fails has told of no lost writes then.
    pub fn tell_nobody(&mut self) {
        self.covers = 0;
    }

    /// Whether it may not be sent any more.
    pub fn is_fenced(&self) -> bool {
        self.fence.as_ref().is_some_and(|fence| !fence.is_open())
    }
}

/// A completion, and whose it is.
#[derive(Debug)]
pub struct Answer {
    /// Who submitted the I/O.
    pub member: usize,
    /// How it ended.
    pub completion: Completion,
}

/// An I/O larger than the present session takes at once, while its pieces are under way.
#[derive(Debug)]
struct Cut {
    attempt: Attempt,
    pieces: Vec<IoBuf>,
    missing: usize,
    failed: Option<IoError>,
}

/// The I/Os that an I/O queue has taken, but for those in its connection.
///
/// While the connection is down I/Os are taken and wait. Reads that were on their way when it died are
/// issued again; writes and flushes are not, since the target may still apply them: they complete with
/// `Disconnected`, and whoever wrote must read back to know.
#[derive(Debug)]
pub struct Backlog {
    /// I/Os that are not in a connection, in order.
    waiting: VecDeque<Attempt>,
    /// I/Os that the target asked to try again later, with the time.
    delayed: VecDeque<(Instant, Attempt)>,
    cuts: Slab<Cut>,
    /// Completions that did not come from the connection just now.
    finished: VecDeque<Answer>,
    /// I/Os taken and not completed.
    owed: usize,
    /// Since when nothing has worked.
    down_since: Option<Instant>,
    /// Why it did not.
    last_failure: Option<Failure>,
}

impl Backlog {
    /// That of a queue which has no connection yet.
    pub fn new(now: Instant) -> Backlog {
        Backlog {
            waiting: VecDeque::new(),
            delayed: VecDeque::new(),
            cuts: Slab::new(),
            finished: VecDeque::new(),
            owed: 0,
            down_since: Some(now),
            last_failure: None,
        }
    }

    /// Takes what there is room for from `member`, for the namespace at `place`; what cannot be is finished
    /// with the reason.
    pub fn take(
        &mut self,
        (member, place): (usize, usize),
        pending: &mut VecDeque<Io>,
        namespace: &Namespace,
        fence: Option<&Arc<Fence>>,
    ) -> usize {
        let room = usize::from(namespace.queue_depth).saturating_sub(self.owed);
        let count = room.min(pending.len());
        for io in pending.drain(..count) {
            match namespace.check(&io) {
                Ok(()) => {
                    let fence = fence.filter(|_| io.op == IoOp::Write).cloned();
                    let (tries, covers, of) = (0, 0, None);
                    let attempt = Attempt { io, member, place, tries, covers, fence, of };
                    self.waiting.push_back(attempt);
                }
                Err(error) => self.finished.push_back(Answer {
                    member,
                    completion: Completion { tag: io.tag, buf: io.buf, result: Err(error) },
                }),
            }
        }
        self.owed += count;
        count
    }

    /// I/Os taken and not completed.
    pub fn owed(&self) -> usize {
        self.owed
    }

    /// The next I/O to issue in `session`. What was taken when a session took more at once is cut to what
    /// this one takes.
    pub fn next_to_issue<P: Clone + fmt::Display, J>(
        &mut self,
        shared: &Shared<P, J>,
        session: &Session<P, J>,
    ) -> Option<Attempt> {
        loop {
            let mut attempt = self.waiting.pop_front()?;
            let namespace = &session.namespaces[attempt.place].namespace;
            if attempt.is_fenced() {
                self.end(attempt, Err(IoError::Fenced));
                continue;
            }
            if attempt.io.buf.len() > namespace.max_transfer_bytes as usize {
                self.cut(attempt, namespace);
                continue;
            }
            if attempt.io.op == IoOp::Flush {
                let durability = shared.durability(attempt.place);
                if durability.take_lost() {
                    let reason = "writes that had completed were not durable when the target was \
                                  lost";
                    self.end(attempt, Err(IoError::Disconnected(reason.to_owned())));
                    continue;
                }
                attempt.covers = durability.flush_begins();
            }
            return Some(attempt);
        }
    }

    /// Has the pieces of an I/O wait in its place.
    fn cut(&mut self, mut attempt: Attempt, namespace: &Namespace) {
        let (op, tries, block_len) = (attempt.io.op, attempt.tries, namespace.block_len_bytes);
        let most = namespace.max_transfer_bytes.max(block_len) as usize;
        let mut rest = std::mem::take(&mut attempt.io.buf);
        let mut slba = attempt.io.slba;
        let key = self.cuts.vacant_key();
        let mut pieces = Vec::with_capacity(rest.len().div_ceil(most));
        while !rest.is_empty() {
            let behind = rest.split_off(most.min(rest.len()));
            let buf = std::mem::replace(&mut rest, behind);
            let next = Lba(slba.0 + (buf.len() / block_len as usize) as u64);
            let io = Io { op, slba, buf, tag: attempt.io.tag };
            pieces.push(Attempt {
                io,
                member: attempt.member,
                place: attempt.place,
                tries,
                covers: 0,
                fence: attempt.fence.clone(),
                of: Some((key as u32, pieces.len() as u32)),
            });
            slba = next;
        }
        let missing = pieces.len();
        let bufs = std::iter::repeat_with(IoBuf::empty).take(missing).collect();
        self.cuts.insert(Cut { attempt, pieces: bufs, missing, failed: None });
        pieces.into_iter().rev().for_each(|piece| self.waiting.push_front(piece));
    }

    /// The completion of an attempt that has ended; `None` for a piece while others are under way.
    fn completion(&mut self, attempt: Attempt, result: Result<(), IoError>) -> Option<Answer> {
        let Attempt { io: Io { tag, buf, .. }, member, of, .. } = attempt;
        let Some((key, number)) = of else {
            return Some(Answer { member, completion: Completion { tag, buf, result } });
        };
        let (key, number) = (key as usize, number as usize);
        let cut = &mut self.cuts[key];
        cut.pieces[number] = buf;
        cut.missing -= 1;
        cut.failed = cut.failed.take().or(result.err());
        if cut.missing > 0 {
            return None;
        }
        let Cut { mut attempt, pieces, failed, .. } = self.cuts.remove(key);
        pieces.into_iter().for_each(|piece| attempt.io.buf.rejoin(piece));
        self.completion(attempt, failed.map_or(Ok(()), Err))
    }

    /// An attempt has ended; its completion is handed out later.
    pub fn end(&mut self, attempt: Attempt, result: Result<(), IoError>) {
        let completion = self.completion(attempt, result);
        self.finished.extend(completion);
    }

    /// Puts back an I/O that there was no room for after all.
    #[cfg(feature = "spdk")]
    pub fn put_back(&mut self, attempt: Attempt) {
        self.waiting.push_front(attempt);
    }

    /// Ends what waits of `member`.
    pub fn fail_those_of(&mut self, member: usize, reason: &str) {
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

    /// Takes back what was in a connection that died, oldest first. Where its session goes on
    /// (`session_ends` is false), a flush that fails says nothing about writes: a later one can still make
    /// them durable, and must tell if they are lost.
    pub fn recover<P: Clone + fmt::Display, J>(
        &mut self,
        unfinished: impl DoubleEndedIterator<Item = Attempt>,
        shared: &Shared<P, J>,
        reason: &str,
        session_ends: bool,
    ) {
        for attempt in unfinished.rev() {
            let op = attempt.io.op;
            if op == IoOp::Read && attempt.tries < MAX_TRIES {
                self.waiting.push_front(Attempt { tries: attempt.tries + 1, ..attempt });
                continue;
            }
            if op == IoOp::Flush && session_ends {
                shared.durability(attempt.place).flush_failed(attempt.covers);
            }
            self.end(attempt, Err(IoError::Disconnected(reason.to_owned())));
        }
    }

    /// What an answer means for its I/O; `None`: it is tried again.
    pub fn judge<P: Clone + fmt::Display, J>(
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
                    shared.wrote(session.number, attempt.place);
                }
                IoOp::Write => {}
                IoOp::Flush => shared.durability(attempt.place).flushed(attempt.covers),
            }
            return self.completion(attempt, Ok(()));
        }
        if attempt.tries >= max_tries(status, attempt.io.op) {
            return self.completion(attempt, Err(IoError::Status(status)));
        }
        if is_path_related(status) {
            let message = format!("the controller answered {status}");
            shared.avoid_path(session.number, Failure::new(ErrorKind::Disconnected, message));
        }
        let attempt = Attempt { tries: attempt.tries + 1, ..attempt };
        self.delayed.push_back((now + RETRY_DELAY, attempt));
        None
    }

    /// The completion of a read that succeeded in a session which is known to work; `None` for a piece.
    pub fn succeed(&mut self, attempt: Attempt) -> Option<Answer> {
        self.down_since = None;
        self.completion(attempt, Ok(()))
    }

    /// The connection is up.
    pub fn set_up(&mut self) {
        if self.owed == 0 {
            self.down_since = None;
        }
    }

    /// The connection is down.
    pub fn set_down(&mut self, now: Instant) {
        self.down_since.get_or_insert(now);
    }

    /// All that happened before belongs to the parent process.
    pub fn begin_anew(&mut self, now: Instant) {
        self.down_since = Some(now);
    }

    /// Why the last attempt did not work, if one did not.
    pub fn last_failure(&self) -> Option<&Failure> {
        self.last_failure.as_ref()
    }

    /// Keeps why an attempt did not work.
    pub fn note(&mut self, failure: Failure) {
        self.last_failure = Some(failure);
    }

    /// Lets I/Os wait no longer whose time has come.
    pub fn wake_delayed(&mut self, now: Instant) {
        while self.delayed.front().is_some_and(|(at, _)| *at <= now) {
            let (_, attempt) = self.delayed.pop_front().expect("just seen");
            self.waiting.push_back(attempt);
        }
    }

    /// Ends what waits when nothing has worked for `limit`, after which a controller is given up.
    pub fn give_up_in_time(&mut self, now: Instant, limit: Duration) {
        if self.down_since.is_some_and(|since| now.saturating_duration_since(since) >= limit) {
            let last = self.last_failure.as_ref().map_or("no connection", |f| &f.message);
            let reason = format!("nothing worked for {} s: {last}", limit.as_secs());
            self.fail_all(&reason);
        }
    }

    /// Ends everything that waits.
    pub fn fail_all(&mut self, reason: &str) {
        let delayed = self.delayed.drain(..).map(|(_, attempt)| attempt);
        let all: Vec<Attempt> = self.waiting.drain(..).chain(delayed).collect();
        for attempt in all {
            self.end(attempt, Err(IoError::Disconnected(reason.to_owned())));
        }
    }

    /// Keeps a completion to be handed out later.
    pub fn finish(&mut self, answer: Answer) {
        self.finished.push_back(answer);
    }

    /// A completion that waits to be handed out.
    pub fn pop_finished(&mut self) -> Option<Answer> {
        self.finished.pop_front()
    }

    /// `count` completions were handed out.
    pub fn handed_out(&mut self, count: usize) {
        self.owed -= count;
    }

    /// Whether an I/O waits to be issued now.
    #[cfg(feature = "spdk")]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When to look again: at once (`now`) for what is finished, else when a delay is over.
    pub fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let ready = (!self.finished.is_empty()).then_some(now);
        ready.or_else(|| self.delayed.front().map(|(at, _)| *at))
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

/// How often an I/O is issued again because the connection died or the path was to blame. A read that
/// kills every connection that it meets must end too.
const MAX_TRIES: u8 = 10;

/// How often a read is issued again because the controller asked for it.
const MAX_RETRIES_IN_PLACE: u8 = 3;

/// After how long a refused I/O is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(100);
