//! Reads large ranges of a namespace, such as a snapshot, with many commands outstanding.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fetch::{Fetch, Transfer};
use super::pump::Pump;
use crate::buf::{IoBuf, SharedBuf};
use crate::error::{Error, ErrorKind, Result};
use crate::qpair::{Device, Namespace};
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

/// The timeout without progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
