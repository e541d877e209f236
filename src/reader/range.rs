//! Reads one large range of a namespace, such as a snapshot, with many commands outstanding.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buf::{IoBuf, SharedBuf};
use crate::error::{Error, ErrorKind, Result};
use crate::qpair::Device;
use crate::units::round_up;

use super::fetch::{Fetch, Transfer};
use super::pump::Pump;

/// Reads `len` bytes from `offset_bytes`, which is a multiple of 4,096. The caller verifies them.
///
/// # Errors
/// Those of the engine; `TimedOut` after a minute without progress; `Corrupt` if the range exceeds the namespace.
pub(crate) fn read_range(
    device: &Arc<dyn Device>,
    offset_bytes: u64,
    len: u64,
) -> Result<SharedBuf> {
    let namespace = device.namespace();
    let whole = round_up(len, u64::from(namespace.block_len_bytes));
    let end = whole.and_then(|len| offset_bytes.checked_add(len));
    let Some(whole) = whole.filter(|_| end.is_some_and(|end| end <= namespace.len_bytes())) else {
        let text = format!("{len} bytes at byte {offset_bytes} go past the end of the namespace");
        return Err(Error::new(ErrorKind::Corrupt, text).target(namespace.address));
    };
    let mut pump = Pump::new(std::slice::from_ref(device), 1, false)?;
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
            return Err(Error::new(ErrorKind::TimedOut, text).target(namespace.address));
        } else {
            pump.wait(last_progress + PROGRESS_TIMEOUT);
        }
    }
    Ok(SharedBuf::empty())
}

/// The longest time without progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
