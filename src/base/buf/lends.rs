//! The pages of shared memory that are lent, or may be.
//!
//! A page is *frozen* once it has its bytes: then it may be lent, and is not written. Thawing a page ends that.
//! It may be written again when all lends from before have ended, which nobody waits for: the writer asks again.
//!
//! Lends are counted by lender, not by page: a lender has one allocation, and each buffer that it lends is a
//! handle on it. To thaw a page, each lender with buffers outstanding gets a new allocation; the page is writable
//! when nothing is left of the old ones. So a lend costs a lock that only its lender takes, and a buffer lent
//! later delays nobody.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::SharedWords;
use super::allocation::Allocation;
use super::slots::words_of;
use crate::error::Result;
use crate::sync::{Mutex, Ordering};

/// The lends of one piece of shared memory. Pages are numbered from its start.
pub(super) struct Lends {
    /// A bit for each page.
    frozen: SharedWords,
    /// Whoever writes to pages, or changes whether they are frozen, holds it.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lenders: Vec<Arc<Lender>>,
    /// Allocations that lenders no longer use, and that have buffers, each with the number of the thaw that
    /// ended it.
    ended: Vec<(u64, Allocation)>,
    /// Thawed pages with the number of their thaw, until all allocations that it ended are without buffers.
    thawing: BTreeMap<usize, u64>,
    thaws: u64,
}

/// Lends buffers on behalf of one queue pair.
pub struct Lender {
    allocation: Mutex<Allocation>,
}

impl Lends {
    /// For `num_pages` pages, none of which is frozen.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(super) fn new(num_pages: usize) -> Result<Lends> {
        let frozen = SharedWords::new(num_pages.div_ceil(64).max(1))?;
        Ok(Lends { frozen, state: Mutex::default() })
    }

    /// Adds a lender with this allocation.
    pub(super) fn add(&self, allocation: Allocation) -> Arc<Lender> {
        let lender = Arc::new(Lender { allocation: Mutex::new(allocation) });
        let mut state = self.state.lock();
        // Those that nobody uses stay until their buffers have come back.
        let is_used = |lender: &Arc<Lender>| {
            Arc::strong_count(lender) > 1 || !lender.allocation.lock().is_only_handle()
        };
        state.lenders.retain(is_used);
        state.lenders.push(Arc::clone(&lender));
        lender
    }

    /// A handle that keeps `pages` as they are, if all of them are frozen.
    pub(super) fn lend(&self, lender: &Lender, pages: Range<usize>) -> Option<Allocation> {
        let allocation = lender.allocation.lock();
        // Under the lock: a thaw clears the bits first, and then takes it.
        let is_frozen = words_of(pages.start, pages.len()).all(|(word, bits)| {
            let found = self.frozen.as_ref()[word].load(Ordering::Acquire);
            found & bits == bits
        });
        is_frozen.then(|| allocation.clone())
    }

    /// Freezes `pages`, which have their bytes.
    pub(super) fn freeze(&self, pages: Range<usize>) {
        let _state = self.state.lock();
        for (word, bits) in words_of(pages.start, pages.len()) {
            self.frozen.as_ref()[word].fetch_or(bits, Ordering::Release);
        }
    }

    /// Lends no more of `pages`. Whether they may be written; if not, a later call will say so. `begin` makes an
    /// allocation for a lender.
    pub(super) fn thaw(&self, pages: Range<usize>, begin: impl Fn() -> Allocation) -> bool {
        let mut state = self.state.lock();
        let mut was_frozen = false;
        for (word, bits) in words_of(pages.start, pages.len()) {
            let before = self.frozen.as_ref()[word].fetch_and(!bits, Ordering::AcqRel);
            was_frozen |= before & bits != 0;
        }
        if was_frozen {
            state.end_allocations(begin);
            if !state.ended.is_empty() {
                let thaw = state.thaws;
                state.thawing.extend(pages.clone().map(|page| (page, thaw)));
            }
        }
        state.may_write(pages)
    }

    /// Calls `write` if `pages` may be written, and no page is frozen meanwhile.
    pub(super) fn write<T>(&self, pages: Range<usize>, write: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.state.lock();
        let is_frozen = words_of(pages.start, pages.len())
            .any(|(word, bits)| self.frozen.as_ref()[word].load(Ordering::Acquire) & bits != 0);
        (!is_frozen && state.may_write(pages)).then(write)
    }
}

impl State {
    /// Gives each lender that has lent something a new allocation.
    fn end_allocations(&mut self, begin: impl Fn() -> Allocation) {
        self.thaws += 1;
        for lender in &self.lenders {
            let mut allocation = lender.allocation.lock();
            if !allocation.is_only_handle() {
                self.ended.push((self.thaws, std::mem::replace(&mut *allocation, begin())));
            }
        }
        self.ended.retain(|(_, allocation)| !allocation.is_only_handle());
    }

    /// Returns whether none of these pages, which are not frozen, is still lent.
    fn may_write(&mut self, pages: Range<usize>) -> bool {
        if self.thawing.range(pages.clone()).next().is_none() {
            return true;
        }
        // An allocation that a thaw ended may have lent pages of all later thaws.
        self.ended.retain(|(_, allocation)| !allocation.is_only_handle());
        match self.ended.iter().map(|(thaw, _)| *thaw).min() {
            None => self.thawing.clear(),
            Some(oldest) => self.thawing.retain(|_, thaw| *thaw >= oldest),
        }
        self.thawing.range(pages).next().is_none()
    }
}
