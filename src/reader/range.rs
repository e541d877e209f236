//! Reads large ranges of a namespace, such as a snapshot, with many commands outstanding.
//!
//! Also reads superblocks, and tells damage from a newer generation: an import may have rewritten data that looks
//! corrupt.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fetch::{Fetch, Transfer};
use super::pump::Pump;
use crate::buf::{IoBuf, SharedBuf};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use crate::format::superblock_set::SuperblockCopies;
use crate::qpair::calls::{Calls, Ticket};
use crate::qpair::{Device, Namespace, PairScope, open_pairs, or_unreadable};
use crate::units::round_up;

/// Reads ranges of one device, one after the other, over one queue pair.
pub(crate) struct RangeReader {
    namespace: Namespace,
    pump: Pump,
}

impl RangeReader {
    /// A reader with its own queue pair.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn new(device: &Arc<dyn Device>) -> Result<RangeReader> {
        let pump = Pump::new(std::slice::from_ref(device), 1, false)?;
        Ok(RangeReader { namespace: device.namespace(), pump })
    }

    /// Reads `len` bytes from `offset_bytes`, a multiple of 4,096. The caller verifies them.
    ///
    /// Create a new reader after an error: reads of this reader may still be in flight.
    ///
    /// # Errors
    /// Errors of the engine; `TimedOut` after a minute without progress; `Corrupt` if the range exceeds the namespace;
    /// `OutOfMemory`.
    pub(crate) fn read(&mut self, offset_bytes: u64, len: u64) -> Result<SharedBuf> {
        let Some(end) = offset_bytes.checked_add(len) else {
            return Err(self.past_the_end(&(offset_bytes..u64::MAX)));
        };
        self.read_joined(std::slice::from_ref(&(offset_bytes..end)))
    }

    /// As [`read`](Self::read), for several ranges, which are contiguous in the result. The length of each range
    /// must be a multiple of 4,096, except that of the last non-empty range.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_joined(&mut self, ranges: &[Range<u64>]) -> Result<SharedBuf> {
        let block_len = u64::from(self.namespace.block_len_bytes);
        let transfer_len = self.pump.geometry()[0].max_transfer_bytes as usize;
        let ranges = ranges.iter().filter(|range| !range.is_empty());
        let len_bytes = self.namespace.len_bytes();
        let is_past =
            |range: &&Range<u64>| round_up(range.end, block_len).is_none_or(|end| end > len_bytes);
        if let Some(range) = ranges.clone().find(is_past) {
            return Err(self.past_the_end(range));
        }
        let lens = ranges.clone().map(|range| range.end - range.start);
        let len = lens.fold(0, u64::saturating_add);
        if len == 0 {
            return Ok(SharedBuf::empty());
        }
        // Allocated before the list of transfers: if a sparse file has exbibytes, this allocation returns an error, but
        // the list would end the process.
        let whole = round_up(len, block_len).unwrap_or(u64::MAX);
        let buf = IoBuf::try_zeroed(whole as usize)?;
        let mut fetch = Fetch::default();
        for range in ranges {
            let whole = (range.end - range.start).next_multiple_of(block_len) as usize;
            for at in (0..whole).step_by(transfer_len) {
                fetch.transfers.push(Transfer {
                    namespace: 0,
                    offset_bytes: range.start + at as u64,
                    buf_offset: fetch.len_bytes + at,
                    len_bytes: transfer_len.min(whole - at),
                });
            }
            fetch.len_bytes += whole;
        }
        assert_eq!(fetch.len_bytes, buf.len(), "only the last range ends within a block");
        let pump = &mut self.pump;
        pump.start(0, fetch, buf);
        let mut last_progress = Instant::now();
        loop {
            if let Some(fetched) = pump.next_finished() {
                return Ok(fetched.into_buf()?.slice(..len as usize));
            }
            pump.poll_or_wait(&mut last_progress, PROGRESS_TIMEOUT)?;
        }
    }

    fn past_the_end(&self, range: &Range<u64>) -> Error {
        let from = range.start;
        let len = range.end - range.start;
        let text = format!("{len} bytes at byte {from} go past the end of the namespace");
        Error::new(ErrorKind::Corrupt, text).target(&*self.namespace.address)
    }
}

/// `Stale` if namespace 0's superblocks name a newer generation than that of `directory`, or another image. `None`
/// if they do not, are damaged, or could not be read before `until`: the caller then reports its own error.
///
/// Uses the queue pairs of `pump`, since the target may refuse another one.
pub(crate) fn stale_error(pump: &mut Pump, directory: &Directory, until: Instant) -> Option<Error> {
    let namespace = pump.namespace(0)?;
    let address = namespace.address.clone();
    let len = namespace.len_bytes();
    let mut fetch = Fetch::default();
    for offset_bytes in COPY_OFFSETS {
        if offset_bytes + SUPERBLOCK_BYTES as u64 <= len {
            let buf_offset = fetch.len_bytes;
            let len_bytes = SUPERBLOCK_BYTES;
            fetch.transfers.push(Transfer { namespace: 0, offset_bytes, buf_offset, len_bytes });
            fetch.len_bytes += len_bytes;
        }
    }
    let buf = IoBuf::zeroed(fetch.len_bytes);
    pump.start(CHECK_TOKEN, fetch, buf);
    let mut others = Vec::new();
    let fetched = loop {
        match pump.next_finished() {
            Some(fetched) if fetched.token == CHECK_TOKEN => break Some(fetched),
            Some(other) => {
                others.push(other);
                continue;
            }
            None => {}
        }
        let now = Instant::now();
        if now >= until {
            pump.abandon(CHECK_TOKEN);
            break None;
        }
        if !pump.poll(now) {
            pump.wait(until);
        }
    };
    pump.put_back(others);
    let fetched = fetched?;
    let copy = |index: usize| {
        let unread = fetched.unread.iter().any(|(transfer, _)| *transfer == index);
        let bytes = fetched.buf.get(index * SUPERBLOCK_BYTES..(index + 1) * SUPERBLOCK_BYTES);
        bytes.filter(|_| !unread).unwrap_or(&[0; SUPERBLOCK_BYTES])
    };
    let copies = SuperblockCopies::parse(copy(0), copy(1));
    let newest = copies.newest()?;
    let text = if newest.layout.uuid != directory.uuid() {
        format!("another image lies here now: {}", newest.layout.uuid)
    } else if newest.generation > directory.generation() {
        format!(
            "the image is at generation {} now, and generation {} was opened",
            newest.generation,
            directory.generation()
        )
    } else {
        return None; // the same generation: the data is damaged
    };
    Some(Error::new(ErrorKind::Stale, text).target(address).hint("open the image again"))
}

/// Reads both superblock copies of each namespace, all concurrently, and bad copies a second time: see
/// [`SuperblockCopies::gather`].
pub(crate) fn read_superblocks(devices: &[Arc<dyn Device>]) -> Result<Vec<SuperblockCopies>> {
    let mut calls = Calls::new(DEADLINE)?;
    let mut begun = Vec::with_capacity(devices.len());
    for mut pairs in open_pairs(devices, &[PairScope::new()])? {
        let pair = calls.add(pairs.pop().expect("each device gives one"));
        let mut tickets = Vec::with_capacity(COPY_OFFSETS.len());
        for offset in COPY_OFFSETS {
            if offset + SUPERBLOCK_BYTES as u64 <= calls.namespace(pair).len_bytes() {
                let buf = IoBuf::zeroed(SUPERBLOCK_BYTES);
                tickets.push((offset, calls.begin_read(pair, offset, buf)?));
            }
        }
        begun.push((pair, tickets));
    }
    let mut copies = Vec::with_capacity(devices.len());
    for (pair, tickets) in begun {
        let len = calls.namespace(pair).len_bytes();
        copies.push(SuperblockCopies::gather(len, |offset, again| {
            if again {
                calls.report_corrupt(pair, offset, SUPERBLOCK_BYTES);
                return or_unreadable(calls.read(pair, offset, SUPERBLOCK_BYTES));
            }
            match tickets.iter().find(|(of, _)| *of == offset) {
                Some(&(_, ticket)) => or_unreadable(end_of(&mut calls, ticket)),
                None => or_unreadable(calls.read(pair, offset, SUPERBLOCK_BYTES)), // the namespace has grown
            }
        })?);
    }
    Ok(copies)
}

fn end_of(calls: &mut Calls, ticket: Ticket) -> Result<IoBuf> {
    loop {
        if let Some(result) = calls.take(ticket) {
            return result;
        }
        if !calls.turn() {
            calls.wait();
        }
    }
}

/// The timeout without progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout for reading the superblocks.
const DEADLINE: Duration = Duration::from_secs(60);

/// A token that differs from those of all other fetches.
const CHECK_TOKEN: u64 = u64::MAX;
