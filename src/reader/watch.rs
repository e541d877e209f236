//! Looking on while a call waits: a binding asks its interpreter whether somebody wants to stop.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::qpair::Device;

use super::Batch;

/// Looks on while a call waits, and may end it. `()` looks at nothing.
pub trait Watch {
    /// Asked at least every 100 ms while the call waits; `false` ends it with `Interrupted`.
    fn goes_on(&mut self) -> bool {
        true
    }

    /// The sample at `index` of `batch` has arrived and is verified; called in the order of arrival,
    /// by reads of ids only.
    fn arrived(&mut self, _batch: &Batch, _index: usize) {}
}

impl Watch for () {}

/// What a call ends with that was to end within `limit` and is still reading from `devices`.
pub(crate) fn timed_out(limit: Duration, devices: &[Arc<dyn Device>]) -> Error {
    let address = devices.first().map_or_else(String::new, |device| device.namespace().address);
    Error::new(ErrorKind::TimedOut, format!("no batch was ready within {limit:?}"))
        .target(address)
        .hint("see whether the target is up; raise the deadline if it is merely slow")
}

/// What a call ends with when its watch wants it to.
pub(crate) fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "the call was interrupted")
}

/// How often a watch is asked: half of what it is promised.
pub(crate) const TICK: Duration = Duration::from_millis(50);
