//! The window: how many bytes may be read ahead, and what happens when one need exceeds it.

use crate::buf::{HugePages, IoBuf, Pool, PoolOptions};
use crate::error::Result;
use crate::units::ALIGN_BYTES;

/// Memory for runs, bounded by the window.
pub(super) struct Memory {
    pool: Pool,
    /// The consumer waits and nothing is on its way to it: what comes next must not wait for memory.
    starving: bool,
    warned: bool,
    over_window: u64,
    exhausted: bool,
}

impl Memory {
    /// Runs are made of slots of `slot_len_bytes`: where most runs have about one length, a slot of
    /// that length keeps the window free of gaps that nothing fits.
    ///
    /// # Errors
    /// `OutOfMemory`: the system does not give `window_bytes`.
    pub(super) fn new(window_bytes: usize, slot_len_bytes: usize) -> Result<Memory> {
        let window_bytes = window_bytes.max(1).next_multiple_of(ALIGN_BYTES);
        let pool = Pool::new(PoolOptions {
            bytes: window_bytes,
            slot_len_bytes: slot_len_bytes.min(window_bytes),
            huge_pages: HugePages::Auto,
        })?;
        Ok(Memory::of_pool(pool))
    }

    /// A window that is there.
    pub(super) fn of_pool(pool: Pool) -> Memory {
        Memory { pool, starving: false, warned: false, over_window: 0, exhausted: false }
    }

    /// A run of `len` bytes, or `None` until some come back.
    ///
    /// `first` says that the run is for what is delivered next. When that starves, because one sample
    /// is larger than the window or the consumer keeps batches, the heap gives it, and the first time
    /// a warning says so.
    pub(super) fn take(&mut self, len: usize, first: bool) -> Option<IoBuf> {
        let run = self.pool.take(len);
        self.exhausted = run.is_none();
        if run.is_some() {
            return run;
        }
        if !(first && self.starving) {
            return None;
        }
        self.over_window += 1;
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                window_bytes = self.pool.capacity_bytes(),
                needed_bytes = len,
                "what is read next does not fit the window: it is read alone, outside it"
            );
        }
        Some(IoBuf::zeroed(len))
    }

    /// Where runs come from.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn set_starving(&mut self, starving: bool) {
        self.starving = starving;
    }

    pub(super) fn is_starving(&self) -> bool {
        self.starving
    }

    /// Whether the last thing asked for was not there.
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Runs that the heap had to give.
    pub(super) fn over_window(&self) -> u64 {
        self.over_window
    }
}
