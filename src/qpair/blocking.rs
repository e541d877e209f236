//! A queue pair for callers that want bytes now: opening an image, small writes, tests.
//!
//! Each call cuts its bytes into I/Os, keeps as many of them outstanding as the queue pair takes, and
//! waits for all. It is not for the read path: that never waits for one read alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::group::PollGroup;
use super::{Completion, Io, IoError, IoOp, Namespace, QueuePair};
use crate::buf::IoBuf;
use crate::error::{Error, ErrorKind, Result};
use crate::units::Lba;

/// Reads and writes that return when they are done, or when their time is up.
pub struct Blocking {
    group: PollGroup,
    deadline: Duration,
    /// Number of the call: completions of a call that timed out are told by it and thrown away.
    call: u32,
    done: Vec<(usize, Completion)>,
}

impl Blocking {
    /// Wraps `pair`. A call may last 60 seconds.
    ///
    /// # Errors
    /// The operating system gives no event descriptor.
    pub fn new(pair: Box<dyn QueuePair>) -> Result<Blocking> {
        let mut group = PollGroup::new()?;
        group.add(pair);
        Ok(Blocking { group, deadline: DEADLINE, call: 0, done: Vec::new() })
    }

    /// How long a call may last.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// The namespace behind the queue pair.
    pub fn namespace(&self) -> &Namespace {
        self.group.pair(0).namespace()
    }

    /// Reads `len` bytes from any offset, into a buffer of their own.
    ///
    /// # Errors
    /// `InvalidArgument`: the bytes are not all in the namespace. `TimedOut`: the deadline passed.
    /// Otherwise the first I/O that failed, see [`IoError::at`].
    pub fn read(&mut self, offset_bytes: u64, len: usize) -> Result<IoBuf> {
        let block_len = u64::from(self.namespace().block_len_bytes);
        let outside = || self.outside("read", offset_bytes, len);
        let end = offset_bytes.checked_add(len as u64).ok_or_else(outside)?;
        if end > self.namespace().len_bytes() {
            return Err(outside());
        }
        let start = offset_bytes - offset_bytes % block_len;
        let whole =
            usize::try_from(end.next_multiple_of(block_len) - start).map_err(|_| outside())?;
        if len == 0 {
            return Ok(IoBuf::empty());
        }
        let mut buf = self.run(IoOp::Read, start / block_len, IoBuf::zeroed(whole))?;
        let mut bytes = buf.split_off((offset_bytes - start) as usize); // less than a block
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Reads from any offset into `bytes`, by way of a buffer: see [`Blocking::read`].
    ///
    /// # Errors
    /// As [`Blocking::read`]; `bytes` are unchanged then.
    pub fn read_at(&mut self, offset_bytes: u64, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(&self.read(offset_bytes, bytes.len())?);
        Ok(())
    }

    /// Writes whole blocks and gives the buffer back. Durable only after [`Blocking::flush`].
    ///
    /// # Errors
    /// `InvalidArgument`: not whole blocks, not all in the namespace, or it is read-only. `NoSpace`:
    /// the medium is full. Otherwise as [`Blocking::read`]. Some of the blocks may have been written.
    pub fn write(&mut self, offset_bytes: u64, buf: IoBuf) -> Result<IoBuf> {
        let block_len = u64::from(self.namespace().block_len_bytes);
        if !offset_bytes.is_multiple_of(block_len) || !(buf.len() as u64).is_multiple_of(block_len)
        {
            return Err(self.outside("write whole blocks as", offset_bytes, buf.len()));
        }
        if buf.is_empty() {
            return Ok(buf);
        }
        self.run(IoOp::Write, offset_bytes / block_len, buf)
    }

    /// Writes whole blocks from `bytes`, by way of a buffer: see [`Blocking::write`].
    ///
    /// # Errors
    /// As [`Blocking::write`].
    pub fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<()> {
        let mut buf = IoBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        self.write(offset_bytes, buf).map(drop)
    }

    /// Makes all that was written durable.
    ///
    /// # Errors
    /// As [`Blocking::read`].
    pub fn flush(&mut self) -> Result<()> {
        self.run(IoOp::Flush, 0, IoBuf::empty()).map(drop)
    }

    /// Runs one call: all of `buf` from block `slba` on.
    fn run(&mut self, op: IoOp, slba: u64, buf: IoBuf) -> Result<IoBuf> {
        let until = Instant::now().checked_add(self.deadline);
        self.call = self.call.wrapping_add(1);
        let mut pending = self.cut(op, slba, buf);
        let mut pieces: Vec<Option<IoBuf>> = Vec::new();
        pieces.resize_with(pending.len(), || None);
        let mut missing = pending.len();
        let mut failed: Option<(u64, IoError)> = None;
        while missing > 0 {
            self.group.submit(0, &mut pending);
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return Err(self.timed_out(op, slba));
            }
            if self.group.poll(now, usize::MAX, &mut self.done) == 0 {
                self.group.wait(until.unwrap_or(now + DEADLINE));
            }
            for (_, completion) in self.done.drain(..) {
                if completion.tag >> 32 != u64::from(self.call) {
                    continue; // of a call that timed out
                }
                missing -= 1;
                let piece = completion.tag & u64::from(u32::MAX);
                match completion.result {
                    Ok(()) => pieces[piece as usize] = Some(completion.buf),
                    Err(error) => {
                        missing -= pending.len();
                        pending.clear();
                        failed.get_or_insert((piece, error));
                    }
                }
            }
        }
        match failed {
            Some((piece, error)) => Err(error.at(self.namespace(), self.lba_of(slba, piece))),
            None => Ok(join(pieces)),
        }
    }

    /// Cuts `buf` into I/Os as large as one may be, numbered from 0.
    fn cut(&self, op: IoOp, slba: u64, mut buf: IoBuf) -> VecDeque<Io> {
        let max_len = self.namespace().max_transfer_bytes as usize;
        let mut ios = VecDeque::with_capacity(buf.len() / max_len + 1);
        for piece in 0.. {
            let rest = buf.split_off(max_len.min(buf.len()));
            let tag = u64::from(self.call) << 32 | piece;
            ios.push_back(Io { op, slba: self.lba_of(slba, piece), buf, tag });
            buf = rest;
            if buf.is_empty() {
                break;
            }
        }
        ios
    }

    fn lba_of(&self, slba: u64, piece: u64) -> Lba {
        let Namespace { max_transfer_bytes, block_len_bytes, .. } = self.namespace();
        Lba(slba.saturating_add(piece * u64::from(max_transfer_bytes / block_len_bytes)))
    }

    fn outside(&self, what: &str, offset_bytes: u64, len: usize) -> Error {
        let size = self.namespace().len_bytes();
        let message = format!("cannot {what} {len} bytes at {offset_bytes} of {size}");
        Error::new(ErrorKind::InvalidArgument, message).target(self.namespace().address.clone())
    }

    fn timed_out(&self, op: IoOp, slba: u64) -> Error {
        let message = format!("no answer to a {op:?} within {:?}", self.deadline);
        Error::new(ErrorKind::TimedOut, message)
            .target(self.namespace().address.clone())
            .lba(Lba(slba))
    }
}

/// Puts the pieces of one buffer together again.
fn join(pieces: Vec<Option<IoBuf>>) -> IoBuf {
    let mut whole = IoBuf::empty();
    for piece in pieces {
        let piece = piece.expect("each piece completed without an error");
        whole.unsplit(piece).expect("a completion returns the buffer of its I/O");
    }
    whole
}

/// How long a call may last, unless told otherwise.
const DEADLINE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qpair::Device;
    use crate::qpair::mem::MemNamespace;

    fn blocking(max_transfer_bytes: u32, queue_depth: u16) -> Blocking {
        let device = MemNamespace::new(1 << 20, 512).unwrap();
        let device = device.with_limits(max_transfer_bytes, queue_depth);
        Blocking::new(device.queue_pair().unwrap()).unwrap()
    }

    #[test]
    fn bytes_at_any_offset_are_read_in_pieces_of_the_largest_transfer() {
        let mut io = blocking(4096, 2);
        let bytes: Vec<u8> = (0..100_352u32).map(|at| (at % 253) as u8).collect();
        io.write_at(1024, &bytes).unwrap();
        io.flush().unwrap();
        let mut found = vec![0; 90_001];
        io.read_at(1024 + 777, &mut found).unwrap();
        assert_eq!(found, bytes[777..777 + 90_001]);
        assert!(io.read(5, 0).unwrap().is_empty());
    }

    #[test]
    fn bytes_past_the_end_are_refused_before_memory_is_taken() {
        let mut io = blocking(4096, 2);
        for (offset, len) in [(0, (1 << 20) + 1), (1 << 20, 1), (u64::MAX, 2), (0, usize::MAX)] {
            assert_eq!(io.read(offset, len).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        for (offset, len) in [(1, 512), (0, 511), (1 << 20, 512)] {
            let error = io.write(offset, IoBuf::zeroed(len)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn a_call_ends_at_its_deadline() {
        let mut io = blocking(4096, 2);
        io.set_deadline(Duration::ZERO);
        assert_eq!(io.read(0, 9000).unwrap_err().kind(), ErrorKind::TimedOut);
        io.set_deadline(Duration::from_secs(60));
        assert_eq!(io.read(0, 9000).unwrap().len(), 9000);
    }
}
