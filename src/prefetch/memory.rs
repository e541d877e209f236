//! The window: how many bytes may be read ahead, and what happens when one need exceeds it.

use std::sync::Arc;

use crate::buf::{IoBuf, Pool};

use super::window::Window;

/// How urgently memory is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// Readahead: uses only memory that is already faulted in, and may wait.
    Readahead,
    /// For the batch that is delivered next, and for single samples: may fault memory in.
    Next,
    /// The only read that can proceed, for the batch that is delivered next: if it starves, the system
    /// allocates its memory outside the window.
    Sole,
}

/// Memory for runs, bounded by the window.
pub(super) struct Memory {
    window: Arc<Window>,
    /// The consumer waits and nothing is on its way to it: what comes next must not wait for memory.
    starving: bool,
    warned: bool,
    over_window: u64,
    exhausted: bool,
}

impl Memory {
    pub(super) fn new(window: Arc<Window>) -> Memory {
        Memory { window, starving: false, warned: false, over_window: 0, exhausted: false }
    }

    /// A run of `len` bytes, or `None` until some come back.
    ///
    /// When [`Priority::Sole`] starves, because one sample is larger than the window or the consumer keeps
    /// batches, the system gives it, and the first time a warning says so.
    pub(super) fn take(&mut self, len: usize, priority: Priority) -> Option<IoBuf> {
        let run = self.pool().take(len).filter(|run| self.may_touch(run, priority));
        self.exhausted = run.is_none();
        if run.is_some() {
            return run;
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
        Some(IoBuf::temporary(len))
    }

    /// Whether so many bytes are free, in one piece or in several.
    pub(super) fn has(&mut self, bytes: usize) -> bool {
        self.exhausted = self.pool().free_bytes() < bytes;
        !self.exhausted
    }

    /// Whether `run` has pages, or is needed at once.
    fn may_touch(&self, run: &IoBuf, priority: Priority) -> bool {
        let end = self.pool().offset_of(run).map_or(0, |at| at + run.len());
        priority != Priority::Readahead || self.window.has_pages_to(end)
    }

    /// Where runs come from.
    pub(super) fn pool(&self) -> &Pool {
        self.window.pool()
    }

    pub(super) fn set_starving(&mut self, starving: bool) {
        // What the thread that makes pages has taken comes back by itself: nothing need make way for it.
        self.starving = starving && self.window.has_pages_to(usize::MAX);
    }

    pub(super) fn is_starving(&self) -> bool {
        self.starving
    }

    /// Whether the last thing asked for was not there.
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Runs that came from outside the window.
    pub(super) fn over_window(&self) -> u64 {
        self.over_window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_ahead_waits_for_pages_and_what_is_next_does_not() {
        let window = Window::stuck_at(8 << 20, 1 << 20, 1 << 20);
        let mut memory = Memory::new(Arc::new(window));
        let first = memory.take(1 << 20, Priority::Readahead).expect("its pages are made");
        assert!(memory.take(1 << 20, Priority::Readahead).is_none() && memory.is_exhausted());
        let second = memory.take(1 << 20, Priority::Next).expect("it may touch new pages");
        assert!(memory.take(1 << 20, Priority::Sole).is_some() && memory.over_window() == 0);
        drop((first, second));
        assert!(memory.take(1 << 20, Priority::Readahead).is_some(), "used memory has pages");
    }

    #[test]
    fn nothing_is_read_outside_the_window_while_its_pages_are_being_made() {
        for (made, outside) in [(1 << 20, false), (usize::MAX, true)] {
            let mut memory = Memory::new(Arc::new(Window::stuck_at(8 << 20, 1 << 20, made)));
            let being_made = memory.pool().take_at(4 << 20, 1 << 20);
            memory.set_starving(true);
            assert_eq!(memory.take(8 << 20, Priority::Sole).is_some(), outside);
            assert_eq!((memory.over_window(), memory.is_starving()), (u64::from(outside), outside));
            drop(being_made);
        }
    }
}
