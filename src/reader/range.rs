//! Reads one large range of a namespace, such as a snapshot, with many commands outstanding.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buf::{IoBuf, SharedBuf};
use crate::error::{Error, ErrorKind, Result};
use crate::qpair::{Device, Namespace};
use crate::units::round_up;

use super::fetch::{Fetch, Transfer};
use super::pump::Pump;

/// Reads ranges of one device, one after the other, over one queue pair.
pub(crate) struct RangeReader {
    namespace: Namespace,
    pump: Pump,
}

impl RangeReader {
    /// A reader with a queue pair of its own.
    ///
    /// # Errors
    /// Those of the engine.
    pub(crate) fn new(device: &Arc<dyn Device>) -> Result<RangeReader> {
        let pump = Pump::new(std::slice::from_ref(device), 1, false)?;
        Ok(RangeReader { namespace: device.namespace(), pump })
    }

    /// Reads `len` bytes from `offset_bytes`, which is a multiple of 4,096. The caller verifies them.
    ///
    /// Make a new reader after an error: reads of this one may still be in flight.
    ///
    /// # Errors
    /// Those of the engine; `TimedOut` after a minute without progress; `Corrupt` if the range exceeds the namespace.
    pub(crate) fn read(&mut self, offset_bytes: u64, len: u64) -> Result<SharedBuf> {
        let RangeReader { namespace, pump } = self;
        let whole = round_up(len, u64::from(namespace.block_len_bytes));
        let end = whole.and_then(|len| offset_bytes.checked_add(len));
        let Some(whole) = whole.filter(|_| end.is_some_and(|end| end <= namespace.len_bytes()))
        else {
            let text =
                format!("{len} bytes at byte {offset_bytes} go past the end of the namespace");
            return Err(Error::new(ErrorKind::Corrupt, text).target(&*namespace.address));
        };
        let transfer_len = pump.geometry()[0].max_transfer_bytes as usize;
        let mut fetch = Fetch { len_bytes: whole as usize, ..Fetch::default() };
        for buf_offset in (0..whole as usize).step_by(transfer_len) {
            fetch.transfers.push(Transfer {
                namespace: 0,
                offset_bytes: offset_bytes + buf_offset as u64,
                buf_offset,
                len_bytes: transfer_len.min(whole as usize - buf_offset),
            });
        }
        pump.start(0, fetch, IoBuf::zeroed(whole as usize));
        let mut last_progress = Instant::now();
        while pump.in_flight() > 0 {
            if let Some(fetched) = pump.next_finished() {
                return Ok(fetched.into_buf()?.slice(..len as usize));
            }
            let now = Instant::now();
            if pump.poll(now) {
                last_progress = now;
            } else if now - last_progress > PROGRESS_TIMEOUT {
                let text = format!("nothing was read for {PROGRESS_TIMEOUT:?}");
                return Err(Error::new(ErrorKind::TimedOut, text).target(&*namespace.address));
            } else {
                pump.wait(last_progress + PROGRESS_TIMEOUT);
            }
        }
        Ok(SharedBuf::empty())
    }
}

/// The longest time without progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
