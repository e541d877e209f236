//! Memory for reads: grants memory of the window by priority.
//!
//! A read that is the only one able to proceed may get memory outside the window.

use std::sync::Arc;

use crate::buf::{IoBuf, Pool};
use crate::directory::Directory;
use crate::error::{Result, no_memory};
use crate::reader::{Fetch, no_room};
use crate::units::SampleId;

use super::window::Window;

/// The urgency of a request for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// Readahead: uses only memory that is already faulted in, and may wait.
    Readahead,
    /// For the next batch to deliver, and for single samples: may fault memory in.
    Next,
    /// For the next batch to deliver, if no other read can proceed: if it starves, the system allocates its memory
    /// outside the window.
    Sole,
}

/// Memory for reads, bounded by the window.
pub(super) struct Memory {
    window: Arc<Window>,
    /// The consumer waits and nothing is outstanding, so the next read must get memory at once.
    pub(super) starving: bool,
    /// Set once a warning has said that a read does not fit the window.
    warned: bool,
    /// The number of buffers that were allocated outside the window.
    pub(super) over_window: u64,
    /// Set if the last request was refused.
    pub(super) exhausted: bool,
    /// The first sample of the next read, for error messages.
    next: Option<SampleId>,
    /// The length that the system could not allocate.
    missing: Option<usize>,
}

impl Memory {
    pub(super) fn new(window: Arc<Window>) -> Memory {
        let next = None;
        let missing = None;
        let starving = false;
        let warned = false;
        let exhausted = false;
        Memory { window, starving, warned, over_window: 0, exhausted, next, missing }
    }

    /// Notes the read that the next memory is for.
    pub(super) fn set_next(&mut self, fetch: &Fetch) {
        self.next = fetch.samples.first().map(|sample| sample.id);
    }

    /// Returns `done`, unless the system had no memory for the next read; `directories` are those of the sources.
    ///
    /// # Errors
    /// `OutOfMemory`; the error names the data that was to be read.
    pub(super) fn check<T>(&self, done: T, directories: &[Arc<Directory>]) -> Result<T> {
        match (self.missing, directories) {
            (None, _) => Ok(done),
            (Some(len), [only]) => Err(no_room(only, len, self.next)),
            (Some(len), _) => Err(no_memory(len, "what is read next")),
        }
    }

    /// A buffer of `len` bytes, or `None` until enough memory is returned.
    ///
    /// If [`Priority::Sole`] starves, since one sample is larger than the window or the consumer keeps batches, the
    /// system allocates the buffer. The first time, a warning is logged.
    pub(super) fn take(&mut self, len: usize, priority: Priority) -> Option<IoBuf> {
        let buf = self.pool().take(len).filter(|buf| self.may_touch(buf, priority));
        self.exhausted = buf.is_none();
        if buf.is_some() {
            return buf;
        }
        if !(priority == Priority::Sole && self.starving) {
            return None;
        }
        self.over_window += 1;
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                window_bytes = self.pool().capacity_bytes(),
                needed_bytes = len,
                "what is read next does not fit the window: it is read alone, outside it"
            );
        }
        let buf = self.pool().outside(len).ok();
        self.missing = buf.is_none().then_some(len);
        buf
    }

    /// Returns whether this many bytes are free, contiguous or not.
    pub(super) fn has(&mut self, bytes: usize) -> bool {
        self.exhausted = self.pool().free_bytes() < bytes;
        !self.exhausted
    }

    /// Returns whether `buf` is already faulted in, or `priority` permits faulting it in.
    fn may_touch(&self, buf: &IoBuf, priority: Priority) -> bool {
        let end = self.pool().offset_of(buf).map_or(0, |at| at + buf.len());
        priority != Priority::Readahead || self.window.is_faulted_to(end)
    }

    /// The window's pool.
    pub(super) fn pool(&self) -> &Pool {
        &self.window.pool
    }

    pub(super) fn set_starving(&mut self, starving: bool) {
        // The background thread soon returns the memory that it faults in, so no eviction is needed meanwhile.
        self.starving = starving && self.window.is_faulted_to(usize::MAX);
    }

    /// Returns whether the last request was refused because others have the window's memory.
    pub(super) fn is_full(&self) -> bool {
        self.exhausted && self.window.is_faulted_to(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readahead_waits_for_faulted_memory_and_the_next_batch_does_not() {
        let window = Window::with_faulted(8 << 20, 1 << 20, 1 << 20);
        let mut memory = Memory::new(Arc::new(window));
        let first = memory.take(1 << 20, Priority::Readahead).expect("it is faulted in");
        assert!(memory.take(1 << 20, Priority::Readahead).is_none() && memory.exhausted);
        let second = memory.take(1 << 20, Priority::Next).expect("it may touch new pages");
        assert!(memory.take(1 << 20, Priority::Sole).is_some() && memory.over_window == 0);
        drop((first, second));
        assert!(memory.take(1 << 20, Priority::Readahead).is_some(), "used memory is faulted in");
    }

    #[test]
    fn nothing_is_read_outside_the_window_while_its_memory_is_faulted_in() {
        for (faulted, outside) in [(1 << 20, false), (usize::MAX, true)] {
            let mut memory = Memory::new(Arc::new(Window::with_faulted(8 << 20, 1 << 20, faulted)));
            let held_by_thread = memory.pool().take_at(4 << 20, 1 << 20);
            memory.set_starving(true);
            assert_eq!(memory.take(8 << 20, Priority::Sole).is_some(), outside);
            assert_eq!((memory.over_window, memory.starving), (u64::from(outside), outside));
            drop(held_by_thread);
        }
    }
}
