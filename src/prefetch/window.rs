//! The memory of a loader, whose pages a thread of its own makes ahead of the poller.
//!
//! The kernel zeroes a page when it is touched first. Left to the poller, that takes longer than to read
//! the window full, and no read is started meanwhile: a virtual machine whose host has to find the page
//! too was seen to make 0.4 GB of them a second. So the poller touches new memory for what is delivered
//! next; what is read ahead waits for this thread.
//!
//! It touches what it has taken from the pool, as anybody would, so that no page is zeroed twice. Not by
//! `madvise`: that keeps the lock on the address space, for which the poller's next allocation waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::buf::{HugePages, Pool, PoolOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::process::Forked;
use crate::qpair::Cpus;
use crate::qpair::group::Waker;
use crate::threads::{self, Fate, Thread, caught};
use crate::units::ALIGN_BYTES;

/// The pool, and the thread that makes its pages: it ends when it is done, and with this value.
pub(crate) struct Window {
    pool: Pool,
    pages: Arc<Pages>,
    thread: Option<Forked<Thread>>,
}

/// How far the thread is.
#[derive(Default)]
struct Pages {
    /// Bytes from the pool's begin whose pages are made, or were left to who had taken them.
    made: AtomicUsize,
    stop: AtomicBool,
    /// Who waits for more.
    waker: Mutex<Option<Waker>>,
}

impl Window {
    /// Maps `bytes` in slots of `slot_len_bytes`; the pages of the first `used_bytes` are made from now
    /// on, near `cpus`.
    ///
    /// # Errors
    /// `OutOfMemory`: the system does not give `bytes`.
    pub(super) fn new(
        bytes: usize,
        slot_len_bytes: usize,
        used_bytes: usize,
        cpus: Option<&Cpus>,
    ) -> Result<Window> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGN_BYTES).ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, format!("no machine has a window of {bytes} bytes"))
        })?;
        let make = || {
            Pool::new(PoolOptions {
                bytes,
                slot_len_bytes: slot_len_bytes.min(bytes),
                huge_pages: HugePages::Auto,
            })
        };
        let pool = match cpus {
            None => make()?,
            Some(cpus) => cpus.run(make)??,
        };
        let used_bytes = used_bytes.min(pool.capacity_bytes());
        let (pages, mut thread) = (Arc::new(Pages::default()), None);
        if used_bytes >= MADE_FROM_BYTES && pool.pages_come_later() {
            let (pool, pages, cpus) = (pool.clone(), Arc::clone(&pages), cpus.cloned());
            let work = move || {
                if let Some(Err(error)) = cpus.map(|cpus| cpus.bind_this_thread()) {
                    tracing::debug!(%error, "the window's pages are made anywhere");
                }
                let made = caught("the thread dlfs-pages", || pages.make(&pool, used_bytes));
                if made.is_err() {
                    pages.tell(usize::MAX); // the poller makes the others
                }
            };
            // Where there is no thread for it, the poller touches all by itself.
            thread = threads::start("dlfs-pages", &Fate::default(), (), |()| work()).ok();
        }
        if thread.is_none() {
            pages.made.store(usize::MAX, Ordering::Relaxed);
        }
        Ok(Window { pool, pages, thread: thread.map(Forked::new) })
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Lets `waker` end the wait of who uses the window now, whenever there are more pages.
    pub(super) fn wakes(&self, waker: Waker) {
        *self.pages.waker.lock() = Some(waker);
    }

    /// Whether the bytes before `end` may be touched without making pages.
    pub(super) fn has_pages_to(&self, end: usize) -> bool {
        end <= self.pages.made.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
impl Window {
    /// One whose thread makes `made_bytes` and no more.
    pub(super) fn stuck_at(bytes: usize, slot_len_bytes: usize, made_bytes: usize) -> Window {
        let window = Window::new(bytes, slot_len_bytes, 0, None).expect("memory");
        window.pages.made.store(made_bytes, Ordering::Relaxed);
        window
    }
}

impl Pages {
    fn make(&self, pool: &Pool, used_bytes: usize) {
        let step = STEP_BYTES.next_multiple_of(pool.slot_len_bytes());
        for from in (0..used_bytes).step_by(step) {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let len = step.min(pool.capacity_bytes() - from);
            // Who has taken any of it touches it, and gives it back soon.
            if let Some(mut piece) = pool.take_at(from, len) {
                piece.iter_mut().step_by(ALIGN_BYTES).for_each(|byte| *byte = 0);
            }
            self.tell(from + len);
        }
        self.tell(usize::MAX);
    }

    fn tell(&self, made: usize) {
        self.made.store(made, Ordering::Relaxed);
        if let Some(waker) = &*self.waker.lock() {
            waker.wake();
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take().and_then(Forked::into_inner) else { return };
        self.pages.stop.store(true, Ordering::Relaxed);
        thread.join_within(LAST_STEP);
    }
}

/// What is made at a time: a huge page.
const STEP_BYTES: usize = 2 << 20;

/// How long the thread is waited for at the end: it is in the midst of a step at most.
const LAST_STEP: Duration = Duration::from_secs(5);

/// Less is touched sooner than a thread is started for it.
const MADE_FROM_BYTES: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::qpair::group::PollGroup;

    #[test]
    fn all_pages_are_made_and_the_poller_is_woken_for_them() {
        let mut group = PollGroup::new().unwrap();
        let window = Window::new(32 << 20, 1 << 20, usize::MAX, None).unwrap();
        let held = window.pool().take(1 << 20);
        window.wakes(group.waker());
        let limit = Instant::now() + Duration::from_secs(60);
        while !window.has_pages_to(usize::MAX) && Instant::now() < limit {
            group.wait(limit);
        }
        assert!(window.has_pages_to(usize::MAX));
        drop(held);
        assert_eq!(window.pool().free_bytes(), 32 << 20, "nothing is held any more");
    }

    #[test]
    fn it_ends_with_its_owner_at_once() {
        let pool = Window::new(1 << 30, 4096, usize::MAX, None).unwrap().pool().clone();
        assert_eq!(pool.free_bytes(), pool.capacity_bytes());
    }
}
