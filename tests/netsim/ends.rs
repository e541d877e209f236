//! What both ends have: a clock that calls move on, counts of calls, and marks in data.

use std::time::{Duration, Instant};

use crate::link::{PS_PER_US, Ps};

/// The simulated time of one end's thread.
pub(crate) struct Clock {
    pub(crate) at: Ps,
    /// What stands for time 0 where the library wants an `Instant`; nothing depends on which it is.
    start: Instant,
}

impl Clock {
    pub(crate) fn new(start: Instant) -> Clock {
        Clock { at: 0, start }
    }

    pub(crate) fn instant(&self) -> Instant {
        self.start + Duration::from_nanos(self.at / 1_000)
    }

    /// One system call was made.
    pub(crate) fn call(&mut self) {
        self.at += CALL;
    }
}

/// System calls that moved bytes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) sends: u64,
    pub(crate) receives: u64,
}

/// Writes whose data these are into their first and last bytes.
pub(crate) fn stamp(data: &mut [u8], number: u64) {
    let len = data.len();
    data[..8].copy_from_slice(&number.to_le_bytes());
    data[len - 8..].copy_from_slice(&number.to_le_bytes());
}

/// Whether the data are those of `number`.
pub(crate) fn is_stamped(data: &[u8], number: u64) -> bool {
    data.starts_with(&number.to_le_bytes()) && data.ends_with(&number.to_le_bytes())
}

/// What a call costs, whatever it moves: without it the length of turns and bursts would not matter.
/// Bytes cost nothing here, so that the link is the limit.
pub(crate) const CALL: Ps = PS_PER_US;
