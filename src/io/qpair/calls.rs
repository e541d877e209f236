//! Calls: reads and writes of any length, split into I/Os, and flushes; several at a time on several queue pairs.
//!
//! A caller begins a call, advances all calls by [`Calls::turn`], and takes the call's whole buffer when it has ended.
//! [`super::blocking`] runs one call at a time to its end; an import keeps several calls outstanding while it reads its
//! source.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::group::{PollGroup, Waker};
use super::{Completion, Fence, Io, IoError, IoOp, Namespace, QueuePair};
use dlfs_base::buf::IoBuf;
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::units::Lba;

/// Calls on queue pairs that one thread polls together.
pub struct Calls {
    group: PollGroup,
    /// For each pair, the I/Os that it has not taken yet.
    pending: Vec<VecDeque<Io>>,
    /// Calls that were not taken, in the order in which they began.
    calls: VecDeque<Call>,
    /// The number of the last call. A completion whose number no call has belongs to a call that timed out.
    last_number: u32,
    /// The longest duration of calls that begin from now on.
    deadline: Duration,
    /// Empty between turns; kept for its memory.
    done: Vec<(usize, Completion)>,
    /// Set if an I/O has ended since the last [`Calls::turn`], while one call was waited for.
    has_ended: bool,
    /// See [`Calls::set_fence`]; `None`: no fence.
    fence: Option<Arc<Fence>>,
}

/// Identifies a call until it is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u32);

/// A call in progress. The tag of each of its I/Os has the call's number in the high 32 bits, and the index of the
/// piece of the buffer in the low ones.
struct Call {
    number: u32,
    /// The index of the queue pair.
    pair: usize,
    op: IoOp,
    /// The first block of the call.
    slba: u64,
    /// The blocks of each piece but the last. The transfer limit of the namespace may change when it reconnects.
    piece_blocks: u64,
    /// The buffer of each piece that has succeeded.
    pieces: Vec<Option<IoBuf>>,
    /// The number of pieces that have not ended.
    missing: usize,
    /// The first failure, with the index of its piece.
    failed: Option<(u64, IoError)>,
    /// The number of rereads that are still allowed.
    rereads: u8,
    /// The longest duration of the call, for error messages.
    deadline: Duration,
    /// The end of that duration; `None`: later than the clock can express.
    until: Option<Instant>,
}

impl Calls {
    /// Creates a set without queue pairs. A call may last `deadline`.
    ///
    /// # Errors
    /// The process has reached its limit of descriptors.
    pub fn new(deadline: Duration) -> Result<Calls> {
        Ok(Calls {
            group: PollGroup::new()?,
            pending: Vec::new(),
            calls: VecDeque::new(),
            last_number: 0,
            deadline,
            done: Vec::new(),
            has_ended: false,
            fence: None,
        })
    }

    /// Sets the fence: while it is closed, queue pairs that are added from now on send no write, and writes that wait
    /// here for room fail, on all queue pairs.
    pub fn set_fence(&mut self, fence: Arc<Fence>) {
        self.fence = Some(fence);
    }

    /// Adds a queue pair and returns its index.
    pub fn add(&mut self, mut pair: Box<dyn QueuePair>) -> usize {
        if let Some(fence) = &self.fence {
            pair.use_fence(fence);
        }
        self.pending.push(VecDeque::new());
        self.group.add(pair)
    }

    /// Sets the deadline of calls that start from now on.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// The namespace of a pair.
    pub fn namespace(&self, pair: usize) -> &Namespace {
        self.group.pair(pair).namespace()
    }

    /// Reads `len` bytes from any offset into a new buffer.
    ///
    /// # Errors
    /// `InvalidArgument`: the range is not within the namespace. `TimedOut`: the deadline passed. `OutOfMemory`:
    /// there is no memory for the bytes. Otherwise the error of the first I/O that failed, see [`IoError::at`].
    pub fn read(&mut self, pair: usize, offset_bytes: u64, len: usize) -> Result<IoBuf> {
        let namespace = self.namespace(pair);
        let block_len = u64::from(namespace.block_len_bytes);
        let outside = || cannot_transfer(namespace, "read", offset_bytes, len);
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
        let mut buf = self.run(pair, IoOp::Read, start / block_len, IoBuf::try_zeroed(whole)?)?;
        let mut bytes = buf.split_off((offset_bytes - start) as usize); // less than a block
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Reads whole blocks into `buf` and returns it.
    ///
    /// # Errors
    /// `InvalidArgument`: not whole blocks. Otherwise as [`Calls::read`]. After an error the buffer is lost.
    pub(crate) fn read_into(
        &mut self,
        pair: usize,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> Result<IoBuf> {
        self.transfer(pair, IoOp::Read, offset_bytes, buf)
    }

    /// Writes whole blocks and returns the buffer. Durable only after [`Calls::flush`].
    ///
    /// # Errors
    /// `InvalidArgument`: not whole blocks, not all in the namespace, or it is read-only. `NoSpace`:
    /// the medium is full. Otherwise as [`Calls::read`]. Some of the blocks may have been written.
    pub fn write(&mut self, pair: usize, offset_bytes: u64, buf: IoBuf) -> Result<IoBuf> {
        self.transfer(pair, IoOp::Write, offset_bytes, buf)
    }

    /// Starts to write whole blocks, at least one: [`Calls::write`] without waiting.
    ///
    /// # Errors
    /// `InvalidArgument`: not whole blocks. [`Calls::take`] returns all other errors.
    pub fn begin_write(&mut self, pair: usize, offset_bytes: u64, buf: IoBuf) -> Result<Ticket> {
        let slba = self.block_of(pair, IoOp::Write, offset_bytes, &buf)?;
        Ok(self.begin(pair, IoOp::Write, slba, buf))
    }

    /// Starts to read whole blocks, at least one, into `buf`.
    ///
    /// # Errors
    /// `InvalidArgument`: not whole blocks. [`Calls::take`] returns all other errors.
    pub fn begin_read(&mut self, pair: usize, offset_bytes: u64, buf: IoBuf) -> Result<Ticket> {
        let slba = self.block_of(pair, IoOp::Read, offset_bytes, &buf)?;
        Ok(self.begin(pair, IoOp::Read, slba, buf))
    }

    /// A handle by which another thread ends a wait.
    pub fn waker(&self) -> Waker {
        self.group.waker()
    }

    /// As [`QueuePair::report_corrupt`], for all blocks that have some of these bytes, which may begin at any offset.
    pub fn report_corrupt(&mut self, pair: usize, offset_bytes: u64, len: usize) {
        let block_len = u64::from(self.namespace(pair).block_len_bytes);
        let skip = (offset_bytes % block_len) as usize; // less than a block
        self.group.report_corrupt(pair, Lba(offset_bytes / block_len), len + skip);
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// As [`Calls::read`].
    pub fn flush(&mut self, pair: usize) -> Result<()> {
        self.run(pair, IoOp::Flush, 0, IoBuf::empty()).map(drop)
    }

    /// Starts to make all completed writes durable: [`Calls::flush`] without waiting.
    pub fn begin_flush(&mut self, pair: usize) -> Ticket {
        self.begin(pair, IoOp::Flush, 0, IoBuf::empty())
    }

    /// Queues the transfer of `buf` from or to the blocks from `slba` on; `advance` submits it.
    fn begin(&mut self, pair: usize, op: IoOp, slba: u64, buf: IoBuf) -> Ticket {
        self.last_number = self.last_number.wrapping_add(1);
        let Namespace { max_transfer_bytes, block_len_bytes, .. } = *self.namespace(pair);
        let piece_blocks = u64::from(max_transfer_bytes / block_len_bytes);
        let ios = self.cut(op, slba, piece_blocks, max_transfer_bytes as usize, buf);
        self.calls.push_back(Call {
            number: self.last_number,
            pair,
            op,
            slba,
            piece_blocks,
            pieces: ios.iter().map(|_| None).collect(),
            missing: ios.len(),
            failed: None,
            rereads: MAX_REREADS,
            deadline: self.deadline,
            until: Instant::now().checked_add(self.deadline),
        });
        self.pending[pair].extend(ios);
        Ticket(self.last_number)
    }

    /// Advances all calls without waiting; returns whether any I/O has ended since the last turn.
    pub fn turn(&mut self) -> bool {
        let moved = self.advance();
        // I/Os of other calls may have ended while one call was waited for.
        std::mem::take(&mut self.has_ended) || moved
    }

    /// Advances all calls; returns whether any I/O has ended.
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
            self.handle_completion(completion);
        }
        self.done = done;
        ended > 0 || refused
    }

    /// Fails waiting writes when the fence is closed; returns whether there were any.
    fn refuse_fenced(&mut self) -> bool {
        if self.fence.as_ref().is_none_or(|fence| fence.is_open()) {
            return false;
        }
        let mut refused = Vec::new();
        for pending in &mut self.pending {
            if pending.iter().all(|io| io.op != IoOp::Write) {
                continue;
            }
            for io in std::mem::take(pending) {
                if io.op == IoOp::Write {
                    refused.push(io);
                } else {
                    pending.push_back(io);
                }
            }
        }
        let any = !refused.is_empty();
        for io in refused {
            self.handle_completion(io.end(Err(IoError::Fenced)));
        }
        any
    }

    /// The result of a call, with its buffer; `None` while the call is running. A call that exceeds its
    /// deadline ends with `TimedOut`. The buffer of a call that failed is dropped.
    pub fn take(&mut self, ticket: Ticket) -> Option<Result<IoBuf>> {
        let index = self.calls.iter().position(|call| call.number == ticket.0);
        let index = index.expect("a ticket is good until its call is taken");
        let call = &self.calls[index];
        if call.missing > 0 && call.until.is_none_or(|until| Instant::now() < until) {
            return None;
        }
        let call = self.calls.remove(index).expect("found above");
        let namespace = self.group.pair(call.pair).namespace();
        if call.missing > 0 {
            self.pending[call.pair].retain(|io| (io.tag >> 32) as u32 != call.number);
            return Some(Err(self.timed_out(&call)));
        }
        Some(match call.failed {
            Some((piece, error)) => {
                Err(error.at(namespace, lba_of(call.slba, call.piece_blocks, piece)))
            }
            None => Ok(join(call.pieces)),
        })
    }

    /// Waits until a turn may find something, a [`Waker`] calls, or `until` has passed.
    pub fn wait_until(&mut self, until: Instant) {
        if !self.has_ended {
            self.group.wait(until);
        }
    }

    /// Waits until a turn may find something, a [`Waker`] calls, or a call exceeds its deadline; at most a minute.
    pub fn wait(&mut self) {
        let limit = Instant::now() + WAIT;
        let until = self.calls.iter().filter_map(|call| call.until).fold(limit, Instant::min);
        self.wait_until(until);
    }

    /// Transfers whole blocks and returns the buffer; does nothing for an empty one.
    fn transfer(&mut self, pair: usize, op: IoOp, offset_bytes: u64, buf: IoBuf) -> Result<IoBuf> {
        if buf.is_empty() {
            return Ok(buf);
        }
        let slba = self.block_of(pair, op, offset_bytes, &buf)?;
        self.run(pair, op, slba, buf)
    }

    /// Runs one call to its end.
    fn run(&mut self, pair: usize, op: IoOp, slba: u64, buf: IoBuf) -> Result<IoBuf> {
        let ticket = self.begin(pair, op, slba, buf);
        let until = self.calls.back().and_then(|call| call.until);
        loop {
            let moved = self.advance();
            self.has_ended |= moved;
            if let Some(result) = self.take(ticket) {
                return result;
            }
            if !moved {
                self.group.wait(until.unwrap_or_else(|| Instant::now() + WAIT));
            }
        }
    }

    /// The block at `offset_bytes`; refuses ranges that are not whole blocks.
    fn block_of(&self, pair: usize, op: IoOp, offset_bytes: u64, buf: &IoBuf) -> Result<u64> {
        let namespace = self.namespace(pair);
        let block_len = u64::from(namespace.block_len_bytes);
        if (offset_bytes | buf.len() as u64).is_multiple_of(block_len) {
            return Ok(offset_bytes / block_len);
        }
        let verb = if op == IoOp::Read { "read" } else { "write" };
        Err(cannot_transfer(namespace, &format!("{verb} whole blocks as"), offset_bytes, buf.len()))
    }

    /// Queues an I/O again if it may be reread; otherwise records its end. A failure takes back the call's other I/Os
    /// that were not submitted.
    fn handle_completion(&mut self, completion: Completion) {
        let number = (completion.tag >> 32) as u32;
        let Some(at) = self.calls.iter().position(|call| call.number == number) else {
            return; // it belongs to a call that timed out
        };
        let call = &mut self.calls[at];
        let piece = completion.tag & u64::from(u32::MAX);
        if call.may_reread(&completion) {
            call.rereads -= 1;
            let slba = lba_of(call.slba, call.piece_blocks, piece);
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

    /// Splits `buf` into I/Os of at most `max_len` bytes, which are `piece_blocks`, numbered from 0.
    fn cut(
        &self,
        op: IoOp,
        slba: u64,
        piece_blocks: u64,
        max_len: usize,
        mut buf: IoBuf,
    ) -> Vec<Io> {
        let mut ios = Vec::with_capacity(buf.len() / max_len + 1);
        for piece in 0.. {
            let rest = buf.split_off(max_len.min(buf.len()));
            let tag = u64::from(self.last_number) << 32 | piece;
            ios.push(Io { op, slba: lba_of(slba, piece_blocks, piece), buf, tag });
            buf = rest;
            if buf.is_empty() {
                break;
            }
        }
        ios
    }

    fn timed_out(&self, call: &Call) -> Error {
        let message = format!("no answer to a {:?} within {:?}", call.op, call.deadline);
        Error::new(ErrorKind::TimedOut, message)
            .target(self.namespace(call.pair).address.clone())
            .lba(Lba(call.slba))
    }
}

impl Call {
    /// Returns whether to read the piece again: it was damaged in transfer or is incomplete, no other piece has failed,
    /// and the call has rereads left.
    fn may_reread(&self, completion: &Completion) -> bool {
        let damaged = matches!(completion.result, Err(IoError::DataDigest | IoError::Short { .. }));
        damaged && self.op == IoOp::Read && self.rereads > 0 && self.failed.is_none()
    }
}

/// The first block of piece number `piece` of a call that begins at block `slba`.
fn lba_of(slba: u64, piece_blocks: u64, piece: u64) -> Lba {
    Lba(slba.saturating_add(piece * piece_blocks))
}

/// The error for a range outside the namespace or not of whole blocks; `verb` says what the caller wanted to do.
fn cannot_transfer(namespace: &Namespace, verb: &str, offset_bytes: u64, len: usize) -> Error {
    let size = namespace.len_bytes();
    let message = format!("cannot {verb} {len} bytes at {offset_bytes} of {size}");
    invalid(message).target(namespace.address.clone())
}

/// Rejoins the pieces of one buffer.
fn join(pieces: Vec<Option<IoBuf>>) -> IoBuf {
    let mut whole = IoBuf::empty();
    for piece in pieces {
        whole.rejoin(piece.expect("each piece completed without an error"));
    }
    whole
}

/// The longest single wait.
const WAIT: Duration = Duration::from_secs(60);

/// The most rereads of one call.
const MAX_REREADS: u8 = 2;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::qpair::Device;
    use crate::qpair::mem::MemNamespace;

    /// A queue pair that passes on the ranges that are reported corrupt.
    struct Reporting(Box<dyn QueuePair>, Sender<(Lba, usize)>);

    impl QueuePair for Reporting {
        fn namespace(&self) -> &Namespace {
            self.0.namespace()
        }

        fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
            self.0.submit(pending)
        }

        fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
            self.0.poll(now, max, done)
        }

        fn outstanding(&self) -> usize {
            self.0.outstanding()
        }

        fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
            self.1.send((slba, len_bytes)).unwrap();
        }
    }

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
        // They are taken in another order than they were started in.
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
    fn a_call_that_ends_while_another_is_waited_for_is_reported_without_a_sleep() {
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
    fn corrupt_bytes_at_any_offset_are_reported_to_their_last_block() {
        let (device, mut calls) = calls(0, 1);
        let (reported, reports) = channel();
        let pair = calls.add(Box::new(Reporting(device.queue_pair().unwrap(), reported)));
        calls.report_corrupt(pair, 512 + 300, 400);
        calls.report_corrupt(pair, 1024, 512);
        assert_eq!(reports.try_recv(), Ok((Lba(1), 700)), "blocks 1 and 2");
        assert_eq!(reports.try_recv(), Ok((Lba(2), 512)));
    }

    /// A queue pair that once damages the second piece of a call, when it has reconnected with a higher transfer limit.
    struct Reconnecting(Box<dyn QueuePair>, Namespace);

    impl QueuePair for Reconnecting {
        fn namespace(&self) -> &Namespace {
            &self.1
        }

        fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
            self.0.submit(pending)
        }

        fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
            let before = done.len();
            let count = self.0.poll(now, max, done);
            let second = done[before..].iter_mut().find(|end| end.tag as u32 == 1);
            if let Some(second) = second.filter(|_| self.1.max_transfer_bytes == 4096) {
                second.result = Err(IoError::DataDigest);
                self.1.max_transfer_bytes = 8192;
            }
            count
        }

        fn outstanding(&self) -> usize {
            self.0.outstanding()
        }
    }

    #[test]
    fn a_piece_is_reread_from_its_place_although_the_transfer_limit_has_risen() {
        let (device, mut calls) = calls(1, 8);
        for at in 0..4u8 {
            calls.write(0, u64::from(at) * 4096, filled(4096, at)).unwrap();
        }
        let namespace = device.namespace();
        let pair = Reconnecting(device.queue_pair().unwrap(), namespace);
        let pair = calls.add(Box::new(pair));
        let read = calls.read(pair, 0, 4 * 4096).unwrap();
        assert!(read.chunks(4096).zip(0..).all(|(part, at)| part.iter().all(|&b| b == at)));
        assert_eq!(calls.namespace(pair).max_transfer_bytes, 8192, "it was damaged");
    }

    #[test]
    fn a_call_that_exceeds_its_deadline_is_given_up_and_its_late_completion_is_dropped() {
        let (_device, mut calls) = calls(1, 1);
        calls.set_deadline(Duration::ZERO);
        let late = calls.begin(0, IoOp::Write, 0, filled(16_384, 1));
        calls.turn();
        calls.set_deadline(Duration::from_secs(60));
        let error = calls.take(late).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("within 0ns"), "its own deadline: {error}");
        let buf = calls.run(0, IoOp::Read, 0, IoBuf::zeroed(8_192)).unwrap();
        assert_eq!(buf.len(), 8_192);
    }
}
