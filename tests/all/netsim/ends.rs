//! Parts of both ends: a clock that calls advance, counts of calls, and marks in data.

use std::time::{Duration, Instant};

use super::link::{PS_PER_US, Ps};

/// The simulated time of one end's thread.
pub(crate) struct Clock {
    pub(crate) at: Ps,
    /// The `Instant` that stands for time 0; nothing depends on its value.
    start: Instant,
}

impl Clock {
    pub(crate) fn new(start: Instant) -> Clock {
        Clock { at: 0, start }
    }

    pub(crate) fn instant(&self) -> Instant {
        self.start + Duration::from_nanos(self.at / 1_000)
    }

    /// Counts a system call.
    pub(crate) fn call(&mut self) {
        self.at += CALL;
    }
}

/// System calls that transferred bytes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) sends: u64,
    pub(crate) receives: u64,
}

/// Writes the command's number into the first and last bytes of its data.
pub(crate) fn stamp(data: &mut [u8], number: u64) {
    let len = data.len();
    data[..8].copy_from_slice(&number.to_le_bytes());
    data[len - 8..].copy_from_slice(&number.to_le_bytes());
}

/// Returns whether the data belong to command `number`.
pub(crate) fn is_stamped(data: &[u8], number: u64) -> bool {
    data.starts_with(&number.to_le_bytes()) && data.ends_with(&number.to_le_bytes())
}

/// The cost of a call, independent of its bytes: without it the length of turns and bursts would not matter.
/// Bytes cost nothing here, so that the link is the limit.
pub(crate) const CALL: Ps = PS_PER_US;
