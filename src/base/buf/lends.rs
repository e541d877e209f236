//! Zero-copy lending of the pages of shared memory.
//!
//! A page is *frozen* once it holds valid bytes: it may be lent, and nobody writes it. Thawing it ends the
//! lending. The page is writable again when all earlier loans have ended. Nobody blocks on this: the writer
//! asks again.
//!
//! Loans are counted per lender, not per page. A lender has one allocation, and each buffer that it lends
//! is a handle on it. Thawing gives each lender with outstanding buffers a new allocation; the page is
//! writable once all handles on the old ones are dropped. So lending takes one lock, that of the lender,
//! and later loans do not delay the writer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::SharedWords;
use super::allocation::Allocation;
use super::slots::words_of;
use crate::error::Result;
use crate::sync::{Mutex, Ordering};

/// The loans of one piece of shared memory. Pages are numbered from its start.
pub(super) struct Lends {
    /// One bit per page, set while the page is frozen.
    frozen: SharedWords,
    /// Held while writing pages, and while freezing or thawing them.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lenders: Vec<Arc<Lender>>,
    /// Replaced allocations that still have buffers, each with the number of the thaw that replaced it.
    ended: Vec<(u64, Allocation)>,
    /// Thawed pages, each with the number of its thaw, until no allocation that this thaw or an earlier one
    /// replaced has buffers.
    thawing: BTreeMap<usize, u64>,
    thaws: u64,
}

/// Lends buffers to the users of one queue pair.
pub struct Lender {
    allocation: Mutex<Allocation>,
}

impl Lends {
    /// Manages `num_pages` pages, all unfrozen.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn new(num_pages: usize) -> Result<Lends> {
        let frozen = SharedWords::new(num_pages.div_ceil(64).max(1))?;
        Ok(Lends { frozen, state: Mutex::default() })
    }

    /// Adds a lender that starts with this allocation.
    pub(super) fn add(&self, allocation: Allocation) -> Arc<Lender> {
        let lender = Arc::new(Lender { allocation: Mutex::new(allocation) });
        let mut state = self.state.lock();
        // An unused lender is kept until its buffers are dropped.
        let is_used = |lender: &Arc<Lender>| {
            Arc::strong_count(lender) > 1 || !lender.allocation.lock().is_only_handle()
        };
        state.lenders.retain(is_used);
        state.lenders.push(Arc::clone(&lender));
        lender
    }

    /// Lends `pages` if all are frozen: while the returned handle exists, nobody writes them.
    pub(super) fn lend(&self, lender: &Lender, pages: Range<usize>) -> Option<Allocation> {
        let allocation = lender.allocation.lock();
        // Checked under the lock: a thaw clears the bits before it takes this lock. So either the bits are
        // clear here, or the thaw finds the new handle.
        let is_frozen = words_of(pages.start, pages.len()).all(|(word, bits)| {
            let found = self.frozen.as_ref()[word].load(Ordering::Acquire);
            found & bits == bits
        });
        is_frozen.then(|| allocation.clone())
    }

    /// Freezes `pages`, which hold valid bytes.
    pub(super) fn freeze(&self, pages: Range<usize>) {
        let _state = self.state.lock();
        for (word, bits) in words_of(pages.start, pages.len()) {
            self.frozen.as_ref()[word].fetch_or(bits, Ordering::Release);
        }
    }

    /// Ends the lending of `pages`. Returns whether they may be written now; if not, ask again. `begin`
    /// makes a new allocation for a lender.
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

    /// Calls `write` if `pages` may be written. Freezing waits until `write` returns.
    pub(super) fn write<T>(&self, pages: Range<usize>, write: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.state.lock();
        let is_frozen = words_of(pages.start, pages.len())
            .any(|(word, bits)| self.frozen.as_ref()[word].load(Ordering::Acquire) & bits != 0);
        (!is_frozen && state.may_write(pages)).then(write)
    }
}

impl State {
    /// Gives each lender with outstanding buffers a new allocation.
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

    /// Returns whether all loans of these unfrozen pages have ended.
    fn may_write(&mut self, pages: Range<usize>) -> bool {
        if self.thawing.range(pages.clone()).next().is_none() {
            return true;
        }
        // An allocation that a thaw replaced may have lent the pages of this thaw and of any later one: they all
        // wait for it.
        self.ended.retain(|(_, allocation)| !allocation.is_only_handle());
        match self.ended.iter().map(|(thaw, _)| *thaw).min() {
            None => self.thawing.clear(),
            Some(oldest) => self.thawing.retain(|_, thaw| *thaw >= oldest),
        }
        self.thawing.range(pages).next().is_none()
    }
}
