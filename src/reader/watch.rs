//! Interrupts a call that waits: a language binding asks its interpreter whether a signal has arrived.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::qpair::Device;
use crate::units::deadline;

use super::Batch;

/// Observes a call while it waits, and may interrupt it. `()` never interrupts.
pub trait Watch {
    /// Called at least every 100 ms while the call waits; `false` ends the call with `Interrupted`.
    fn goes_on(&mut self) -> bool {
        true
    }

    /// Called when the sample at `index` of `batch` has arrived and is verified, in the order of arrival. Only
    /// reads by id call this. The watch may read this sample, but no others: they may be moving to another buffer.
    fn arrived(&mut self, _batch: &Batch, _index: usize) {}
}

impl Watch for () {}

/// A call that waits: its deadline, and the watch that may interrupt it.
pub(super) struct Call<'a> {
    pub(super) deadline: Instant,
    next_tick: Instant,
    pub(super) watch: &'a mut dyn Watch,
}

impl Call<'_> {
    /// A call that begins now and may take up to `limit`.
    pub(super) fn new(limit: Duration, watch: &mut dyn Watch) -> Call<'_> {
        let now = Instant::now();
        Call { deadline: deadline(now, limit), next_tick: now + TICK, watch }
    }

    /// Asks the watch whether to go on, once per [`TICK`].
    ///
    /// # Errors
    /// `Interrupted`: the watch ends the call.
    pub(super) fn ask(&mut self) -> Result<()> {
        let now = Instant::now();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            if !self.watch.goes_on() {
                return Err(interrupted());
            }
        }
        Ok(())
    }

    /// The end of the longest sleep: the deadline, or the next question to the watch.
    pub(super) fn until(&self) -> Instant {
        self.deadline.min(self.next_tick)
    }
}

/// The error of a call that did not finish within `limit`.
pub(crate) fn timed_out(limit: Duration, devices: &[Arc<dyn Device>]) -> Error {
    let address = devices.first().map_or_else(String::new, |device| device.namespace().address);
    Error::new(ErrorKind::TimedOut, format!("no batch was ready within {limit:?}"))
        .target(address)
        .hint("check that the target is up; raise the deadline if it is only slow")
}

/// The error of a call that its [`Watch`] interrupted.
pub(crate) fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "the call was interrupted")
}

/// The interval at which calls ask their [`Watch`]: half of the promised one.
pub(crate) const TICK: Duration = Duration::from_millis(50);
