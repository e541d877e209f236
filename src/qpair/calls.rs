//! Calls under way: bytes of any length, cut into I/Os, on several queue pairs, without a wait for each.
//!
//! A call is begun, moved on by [`Calls::turn`], and taken when it has ended; its buffer comes back
//! whole. [`super::blocking`] waits for each call at once; an import keeps several under way while it
//! reads its source.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::group::{PollGroup, Waker};
use super::{Completion, Fence, Io, IoError, IoOp, Namespace, QueuePair};
use crate::buf::IoBuf;
use crate::error::{Error, ErrorKind, Result};
use crate::units::Lba;

/// Calls on queue pairs that one thread polls together.
pub struct Calls {
    group: PollGroup,
    /// For each pair, I/Os that it had no room for yet.
    pending: Vec<VecDeque<Io>>,
    /// In the order in which they were begun.
    calls: VecDeque<Call>,
    /// Number of the last call: completions of a call that timed out are told by theirs.
    last: u32,
    deadline: Duration,
    done: Vec<(usize, Completion)>,
    /// Whether a call has ended since the last [`Calls::turn`], within a call that was waited for.
    unseen: bool,
    fence: Option<Arc<Fence>>,
}

/// Names a call that was begun, until it is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u32);

struct Call {
    number: u32,
    pair: usize,
    op: IoOp,
    slba: u64,
    pieces: Vec<Option<IoBuf>>,
    missing: usize,
    failed: Option<(u64, IoError)>,
    /// How many more of its pieces may be read again.
    rereads: u8,
    until: Option<Instant>,
}

impl Calls {
    /// Without queue pairs. A call may last `deadline`.
    ///
    /// # Errors
    /// The operating system gives no event descriptor.
    pub fn new(deadline: Duration) -> Result<Calls> {
        Ok(Calls {
            group: PollGroup::new()?,
            pending: Vec::new(),
            calls: VecDeque::new(),
            last: 0,
            deadline,
            done: Vec::new(),
            unseen: false,
            fence: None,
        })
    }

    /// Writes are not sent while `fence` is closed: for queue pairs that are added from now on.
    pub fn set_fence(&mut self, fence: Arc<Fence>) {
        self.fence = Some(fence);
    }

    /// Adds a queue pair; the index names it from now on.
    pub fn add(&mut self, mut pair: Box<dyn QueuePair>) -> usize {
        if let Some(fence) = &self.fence {
            pair.use_fence(fence);
        }
        self.pending.push(VecDeque::new());
        self.group.add(pair)
    }

    /// How long a call that is begun from now on may last.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// The namespace behind a pair.
    pub fn namespace(&self, pair: usize) -> &Namespace {
        self.group.pair(pair).namespace()
    }

    /// Reads `len` bytes from any offset, into a buffer of their own.
    ///
    /// # Errors
    /// `InvalidArgument`: the bytes are not all in the namespace. `TimedOut`: the deadline passed.
    /// Otherwise the first I/O that failed, see [`IoError::at`].
    pub fn read(&mut self, pair: usize, offset_bytes: u64, len: usize) -> Result<IoBuf> {
        let namespace = self.namespace(pair);
        let block_len = u64::from(namespace.block_len_bytes);
        let outside = || outside(namespace, "read", offset_bytes, len);
        let end = offset_bytes.checked_add(len as u64).ok_or_else(outside)?;
        if end > namespace.len_bytes() {
            return Err(outside());
        }
        let start = offset_bytes - offset_bytes % block_len;
        let whole =
            usize::try_from(end.next_multiple_of(block_len) - start).map_err(|_| outside())?;
        if len == 0 {
            return Ok(IoBuf::empty());
        }
        let mut buf = self.run(pair, IoOp::Read, start / block_len, IoBuf::zeroed(whole))?;
        let mut bytes = buf.split_off((offset_bytes - start) as usize); // less than a block
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Reads whole blocks into `buf` and gives it back.
    ///
    /// # Errors
    /// `InvalidArgument`: not whole blocks. Otherwise as [`Calls::read`]; the buffer is lost then.
    pub fn read_into(&mut self, pair: usize, offset_bytes: u64, buf: IoBuf) -> Result<IoBuf> {
        if buf.is_empty() {
            return Ok(buf);
        }
        let slba = self.block_of(pair, "read", offset_bytes, &buf)?;
        self.run(pair, IoOp::Read, slba, buf)
    }

    /// Writes whole blocks and gives the buffer back. Durable only after [`Calls::flush`].
    ///
    /// # Errors
    /// `InvalidArgument`: not whole blocks, not all in the namespace, or it is read-only. `NoSpace`:
    /// the medium is full. Otherwise as [`Calls::read`]. Some of the blocks may have been written.
    pub fn write(&mut self, pair: usize, offset_bytes: u64, buf: IoBuf) -> Result<IoBuf> {
        if buf.is_empty() {
            return Ok(buf);
        }
        let slba = self.block_of(pair, "write", offset_bytes, &buf)?;
        self.run(pair, IoOp::Write, slba, buf)
    }

    /// Begins to write whole blocks, at least one: [`Calls::write`] without the wait.
    ///
    /// # Errors
    /// `InvalidArgument`: not whole blocks. All else is told when it is taken.
    pub fn begin_write(&mut self, pair: usize, offset_bytes: u64, buf: IoBuf) -> Result<Ticket> {
        let slba = self.block_of(pair, "write", offset_bytes, &buf)?;
        Ok(self.begin(pair, IoOp::Write, slba, buf))
    }

    /// Begins to read whole blocks, at least one, into `buf`.
    ///
    /// # Errors
    /// `InvalidArgument`: not whole blocks. All else is told when it is taken.
    pub fn begin_read(&mut self, pair: usize, offset_bytes: u64, buf: IoBuf) -> Result<Ticket> {
        let slba = self.block_of(pair, "read", offset_bytes, &buf)?;
        Ok(self.begin(pair, IoOp::Read, slba, buf))
    }

    /// Ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.group.waker()
    }

    /// As [`QueuePair::report_corrupt`], for bytes at any offset.
    pub fn report_corrupt(&mut self, pair: usize, offset_bytes: u64, len: usize) {
        let block_len = u64::from(self.namespace(pair).block_len_bytes);
        self.group.report_corrupt(pair, Lba(offset_bytes / block_len), len);
    }

    /// Makes all writes that have been taken durable.
    ///
    /// # Errors
    /// As [`Calls::read`].
    pub fn flush(&mut self, pair: usize) -> Result<()> {
        self.run(pair, IoOp::Flush, 0, IoBuf::empty()).map(drop)
    }

    /// Begins to move all of `buf` from or to block `slba` on. It starts with the next
    /// [`Calls::turn`].
    fn begin(&mut self, pair: usize, op: IoOp, slba: u64, buf: IoBuf) -> Ticket {
        self.last = self.last.wrapping_add(1);
        let number = self.last;
        let ios = self.cut(pair, op, slba, buf);
        let missing = ios.len();
        let mut pieces: Vec<Option<IoBuf>> = Vec::new();
        pieces.resize_with(missing, || None);
        self.pending[pair].extend(ios);
        let until = Instant::now().checked_add(self.deadline);
        let (failed, rereads) = (None, MAX_REREADS);
        self.calls.push_back(Call {
            number,
            pair,
            op,
            slba,
            pieces,
            missing,
            failed,
            rereads,
            until,
        });
        Ticket(number)
    }

    /// Moves everything on without waiting; whether any I/O has ended since the last turn.
    pub fn turn(&mut self) -> bool {
        let moved = self.advance();
        // A call that was waited for may have brought the end of others, which nobody has looked for.
        std::mem::take(&mut self.unseen) || moved
    }

    fn advance(&mut self) -> bool {
        let refused = self.refuse_fenced();
        for (pair, pending) in self.pending.iter_mut().enumerate() {
            if !pending.is_empty() {
                self.group.submit(pair, pending);
            }
        }
        let ended = self.group.poll(Instant::now(), usize::MAX, &mut self.done);
        let mut done = std::mem::take(&mut self.done);
        for (_, completion) in done.drain(..) {
            self.note(completion);
        }
        self.done = done;
        ended > 0 || refused
    }

    /// Fails the writes that wait when they may not be sent any more; whether there were any.
    fn refuse_fenced(&mut self) -> bool {
        if self.fence.as_ref().is_none_or(|fence| fence.is_open()) {
            return false;
        }
        let mut refused = Vec::new();
        for pending in &mut self.pending {
            let writes = |io: &Io| io.op == IoOp::Write;
            refused.extend(pending.iter().filter(|io| writes(io)).map(|io| io.tag));
            pending.retain(|io| !writes(io));
        }
        let any = !refused.is_empty();
        for tag in refused {
            let (buf, result) = (IoBuf::empty(), Err(IoError::Fenced));
            self.note(Completion { tag, buf, result });
        }
        any
    }

    /// The end of a call, with its buffer; `None` while it is under way. One that has lasted too long
    /// ends with `TimedOut`, and its buffer is lost.
    pub fn take(&mut self, ticket: Ticket) -> Option<Result<IoBuf>> {
        let at = self.calls.iter().position(|call| call.number == ticket.0);
        let at = at.expect("a ticket is good until its call is taken");
        let call = &self.calls[at];
        if call.missing > 0 && call.until.is_none_or(|until| Instant::now() < until) {
            return None;
        }
        let call = self.calls.remove(at).expect("found above");
        let namespace = self.group.pair(call.pair).namespace();
        if call.missing > 0 {
            self.forget_pending(&call);
            return Some(Err(self.timed_out(&call)));
        }
        Some(match call.failed {
            Some((piece, error)) => Err(error.at(namespace, lba_of(namespace, call.slba, piece))),
            None => Ok(join(call.pieces)),
        })
    }

    /// Waits until a turn may bring something, a [`Waker`] calls, or `until` has come.
    pub fn wait_until(&mut self, until: Instant) {
        if !self.unseen {
            self.group.wait(until);
        }
    }

    /// Waits until a turn may bring something, or a call has lasted too long.
    pub fn wait(&mut self) {
        let limit = Instant::now() + WAIT;
        let until = self.calls.iter().filter_map(|call| call.until).fold(limit, Instant::min);
        self.wait_until(until);
    }

    /// Runs one call to its end.
    fn run(&mut self, pair: usize, op: IoOp, slba: u64, buf: IoBuf) -> Result<IoBuf> {
        let ticket = self.begin(pair, op, slba, buf);
        let until = self.calls.back().and_then(|call| call.until);
        loop {
            let moved = self.advance();
            self.unseen |= moved;
            if let Some(result) = self.take(ticket) {
                return result;
            }
            if !moved {
                self.group.wait(until.unwrap_or_else(|| Instant::now() + WAIT));
            }
        }
    }

    /// The block that `offset_bytes` is, where whole blocks begin and end.
    fn block_of(&self, pair: usize, what: &str, offset_bytes: u64, buf: &IoBuf) -> Result<u64> {
        let namespace = self.namespace(pair);
        let block_len = u64::from(namespace.block_len_bytes);
        let are_whole = |bytes: u64| bytes.is_multiple_of(block_len);
        match are_whole(offset_bytes) && are_whole(buf.len() as u64) {
            true => Ok(offset_bytes / block_len),
            false => {
                let what = format!("{what} whole blocks as");
                Err(outside(namespace, &what, offset_bytes, buf.len()))
            }
        }
    }

    fn note(&mut self, completion: Completion) {
        let number = (completion.tag >> 32) as u32;
        let Some(at) = self.calls.iter().position(|call| call.number == number) else {
            return; // of a call that timed out
        };
        let call = &mut self.calls[at];
        let piece = completion.tag & u64::from(u32::MAX);
        if call.may_reread(&completion) {
            call.rereads -= 1;
            let slba = lba_of(self.group.pair(call.pair).namespace(), call.slba, piece);
            let Completion { tag, buf, .. } = completion;
            return self.pending[call.pair].push_front(Io { op: call.op, slba, buf, tag });
        }
        call.missing -= 1;
        match completion.result {
            Ok(()) => call.pieces[piece as usize] = Some(completion.buf),
            Err(error) => {
                let pending = &mut self.pending[call.pair];
                let before = pending.len();
                pending.retain(|io| (io.tag >> 32) as u32 != number);
                call.missing -= before - pending.len();
                call.failed.get_or_insert((piece, error));
            }
        }
    }

    fn forget_pending(&mut self, call: &Call) {
        self.pending[call.pair].retain(|io| (io.tag >> 32) as u32 != call.number);
    }

    /// Cuts `buf` into I/Os as large as one may be, numbered from 0.
    fn cut(&self, pair: usize, op: IoOp, slba: u64, mut buf: IoBuf) -> Vec<Io> {
        let namespace = self.namespace(pair);
        let max_len = namespace.max_transfer_bytes as usize;
        let mut ios = Vec::with_capacity(buf.len() / max_len + 1);
        for piece in 0.. {
            let rest = buf.split_off(max_len.min(buf.len()));
            let tag = u64::from(self.last) << 32 | piece;
            ios.push(Io { op, slba: lba_of(namespace, slba, piece), buf, tag });
            buf = rest;
            if buf.is_empty() {
                break;
            }
        }
        ios
    }

    fn timed_out(&self, call: &Call) -> Error {
        let message = format!("no answer to a {:?} within {:?}", call.op, self.deadline);
        Error::new(ErrorKind::TimedOut, message)
            .target(self.namespace(call.pair).address.clone())
            .lba(Lba(call.slba))
    }
}

impl Call {
    /// Whether the piece was damaged on its way, or came in part, and may come whole another time.
    fn may_reread(&self, completion: &Completion) -> bool {
        let damaged = matches!(completion.result, Err(IoError::DataDigest | IoError::Short { .. }));
        damaged && self.op == IoOp::Read && self.rereads > 0 && self.failed.is_none()
    }
}

fn lba_of(namespace: &Namespace, slba: u64, piece: u64) -> Lba {
    let Namespace { max_transfer_bytes, block_len_bytes, .. } = namespace;
    Lba(slba.saturating_add(piece * u64::from(max_transfer_bytes / block_len_bytes)))
}

fn outside(namespace: &Namespace, what: &str, offset_bytes: u64, len: usize) -> Error {
    let size = namespace.len_bytes();
    let message = format!("cannot {what} {len} bytes at {offset_bytes} of {size}");
    Error::new(ErrorKind::InvalidArgument, message).target(namespace.address.clone())
}

/// Puts the pieces of one buffer together again.
fn join(pieces: Vec<Option<IoBuf>>) -> IoBuf {
    let mut whole = IoBuf::empty();
    for piece in pieces {
        whole.rejoin(piece.expect("each piece completed without an error"));
    }
    whole
}

/// How long one wait lasts when nothing moves.
const WAIT: Duration = Duration::from_secs(60);

/// Pieces of one call that are read again after damage on their way.
const MAX_REREADS: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qpair::Device;
    use crate::qpair::mem::MemNamespace;

    fn calls(num_pairs: usize, queue_depth: u16) -> (MemNamespace, Calls) {
        let device = MemNamespace::new(1 << 20, 512).unwrap().with_limits(4096, queue_depth);
        let mut calls = Calls::new(Duration::from_secs(60)).unwrap();
        for _ in 0..num_pairs {
            calls.add(device.queue_pair().unwrap());
        }
        (device, calls)
    }

    fn filled(len: usize, with: u8) -> IoBuf {
        let mut buf = IoBuf::zeroed(len);
        buf.fill(with);
        buf
    }

    #[test]
    fn several_calls_on_several_pairs_end_each_with_its_own_buffer() {
        let (_device, mut calls) = calls(2, 2);
        let begun: Vec<(u8, Ticket)> = (0..6u8)
            .map(|at| {
                let slba = u64::from(at) * 32;
                let buf = filled(16_384, at);
                (at, calls.begin(usize::from(at) % 2, IoOp::Write, slba, buf))
            })
            .collect();
        // Taken in another order than they were begun in.
        for (at, ticket) in begun.into_iter().rev() {
            let buf = loop {
                calls.turn();
                if let Some(result) = calls.take(ticket) {
                    break result.unwrap();
                }
            };
            assert_eq!((buf.len(), buf[0], buf[16_383]), (16_384, at, at));
        }
        let read = calls.run(0, IoOp::Read, 0, IoBuf::zeroed(6 * 16_384)).unwrap();
        assert!(read.chunks(16_384).zip(0..).all(|(part, at)| part.iter().all(|&b| b == at)));
    }

    #[test]
    fn a_call_that_fails_does_not_touch_the_others() {
        let (_device, mut calls) = calls(1, 1);
        let outside = calls.begin(0, IoOp::Write, (1 << 20) / 512 - 8, filled(16_384, 1));
        let inside = calls.begin(0, IoOp::Write, 0, filled(8_192, 2));
        let mut end = |ticket| loop {
            calls.turn();
            if let Some(result) = calls.take(ticket) {
                return result;
            }
        };
        assert_eq!(end(inside).unwrap().len(), 8_192);
        assert_eq!(end(outside).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn what_ends_within_a_call_that_is_waited_for_is_not_slept_on() {
        let (_device, mut calls) = calls(1, 8);
        let begun = calls.begin(0, IoOp::Write, 0, filled(4096, 1));
        calls.run(0, IoOp::Read, 64, IoBuf::zeroed(4096)).unwrap(); // ends the write too
        let far = Instant::now() + Duration::from_secs(3600);
        calls.wait_until(far); // would sleep for an hour
        assert!(calls.turn(), "the end of the write is told");
        assert!(!calls.turn(), "once");
        assert_eq!(calls.take(begun).unwrap().unwrap().len(), 4096);
    }

    #[test]
    fn a_call_that_lasts_too_long_is_given_up_and_its_late_end_is_nobody_elses() {
        let (_device, mut calls) = calls(1, 1);
        calls.set_deadline(Duration::ZERO);
        let late = calls.begin(0, IoOp::Write, 0, filled(16_384, 1));
        calls.turn();
        assert_eq!(calls.take(late).unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
        calls.set_deadline(Duration::from_secs(60));
        let buf = calls.run(0, IoOp::Read, 0, IoBuf::zeroed(8_192)).unwrap();
        assert_eq!(buf.len(), 8_192);
    }
}
