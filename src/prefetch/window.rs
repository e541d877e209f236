//! The memory of a loader: the window, which a background thread faults in ahead of the poller, and the grants of its
//! memory to reads.
//!
//! The kernel zeroes a page at its first access. If the poller had to wait for that, filling the window would take
//! longer than reading it, and no read would be started meanwhile. A virtual machine may get only 0.4 GB/s, if its
//! host has to allocate the page, too. So the poller faults in only memory for the next batch and for single
//! samples. Readahead waits for the background thread.
//!
//! The thread takes memory from the pool like any user before it touches the memory, so that no page is zeroed
//! twice. It does not populate memory by `madvise`, which holds the lock of the address space that the poller's next
//! allocation needs.
//!
//! [`Memory`] grants memory to reads by their [`Priority`]. A read that is the only one able to proceed may get memory
//! outside the window.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::buf::{HugePages, IoBuf, Pool, PoolOptions, Registrar};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result, no_memory};
use crate::gpu::{Driver, Pin};
use crate::process::Forked;
use crate::qpair::Cpus;
use crate::qpair::group::Waker;
use crate::reader::{Fetch, no_room};
use crate::threads::{self, Fate, Thread, caught};
use crate::units::{ALIGN_BYTES, SampleId};

use super::LoaderOptions;

/// The pool, and the thread that faults it in. The thread ends when all is faulted in, or when this window is
/// dropped.
pub(crate) struct Window {
    pub(super) pool: Pool,
    progress: Arc<FaultProgress>,
    /// `None`: the poller faults in everything itself.
    thread: Option<Forked<Thread>>,
}

/// The progress of the thread that faults the pool in.
#[derive(Default)]
struct FaultProgress {
    /// The prefix of the pool that is already faulted in, by the thread or by the slot's owner, in bytes; `usize::MAX`
    /// once the thread faults in no more.
    faulted_bytes: AtomicUsize,
    stop: AtomicBool,
    /// The poller that waits for more faulted memory.
    waker: Mutex<Option<Waker>>,
}

impl Window {
    /// Maps `bytes` in slots of `slot_len_bytes` as `options` want it, and starts to fault in the first `used_bytes`.
    /// Registering faults in all.
    ///
    /// # Errors
    /// `OutOfMemory`: the system does not provide `bytes`.
    pub(super) fn new(
        bytes: usize,
        slot_len_bytes: usize,
        used_bytes: usize,
        options: &LoaderOptions,
    ) -> Result<Window> {
        let cpus = cpus(options);
        let registrar = registrar(options);
        // The ranks of a node map the window of the process that reads for them.
        let is_shared = options.seats.is_some();
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGN_BYTES).ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, format!("no machine has a window of {bytes} bytes"))
        })?;
        let allocate = || -> Result<Pool> {
            let slot_len_bytes = slot_len_bytes.min(bytes);
            let options = PoolOptions { bytes, slot_len_bytes, huge_pages: HugePages::Auto };
            let pool = if is_shared { Pool::shared(options)? } else { Pool::new(options)? };
            let registered = registrar.map_or(Ok(()), |registrar| pool.register(registrar));
            registered.unwrap_or_else(|error| warn_of_refusal(&error));
            Ok(pool)
        };
        let pool = match &cpus {
            None => allocate()?,
            Some(cpus) => cpus.run(allocate)??,
        };
        let used_bytes = used_bytes.min(pool.capacity_bytes());
        let progress = Arc::new(FaultProgress::default());
        let mut thread = None;
        let pages_come_later = pool.pages_come_later() && pool.registered_bytes() == 0;
        if used_bytes >= MIN_BACKGROUND_BYTES && pages_come_later {
            let pool = pool.clone();
            let progress = Arc::clone(&progress);
            let work = move || {
                if let Some(Err(error)) = cpus.map(|cpus| cpus.bind_this_thread()) {
                    tracing::debug!(%error, "the window's pages are faulted in on any processor");
                }
                let done = caught("the thread dlfs-pages", || progress.fault_in(&pool, used_bytes));
                if done.is_err() {
                    progress.publish(usize::MAX); // the poller faults in the rest
                }
            };
            // Without a thread, the poller faults in everything.
            thread = threads::start("dlfs-pages", &Fate::default(), (), |()| work()).ok();
        }
        if thread.is_none() {
            progress.faulted_bytes.store(usize::MAX, Ordering::Relaxed);
        }
        Ok(Window { pool, progress, thread: thread.map(Forked::new) })
    }

    /// Wakes the poller through `waker` whenever more memory is faulted in.
    pub(super) fn wakes(&self, waker: Waker) {
        *self.progress.waker.lock() = Some(waker);
    }

    /// Returns whether the bytes before `end` are faulted in.
    pub(super) fn is_faulted_to(&self, end: usize) -> bool {
        end <= self.progress.faulted_bytes.load(Ordering::Relaxed)
    }
}

impl FaultProgress {
    /// Faults in the first `used_bytes` of the pool, step by step.
    fn fault_in(&self, pool: &Pool, used_bytes: usize) {
        let step = STEP_BYTES.next_multiple_of(pool.slot_len_bytes());
        for from in (0..used_bytes).step_by(step) {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let len = step.min(pool.capacity_bytes() - from);
            pool.fault_in(from, len);
            self.publish(from + len);
        }
        self.publish(usize::MAX);
    }

    /// Sets the faulted prefix, and wakes the poller.
    fn publish(&self, faulted_bytes: usize) {
        self.faulted_bytes.store(faulted_bytes, Ordering::Relaxed);
        if let Some(waker) = &*self.waker.lock() {
            waker.wake();
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take().and_then(Forked::into_inner) else { return };
        self.progress.stop.store(true, Ordering::Relaxed);
        thread.join_within(JOIN_TIMEOUT);
    }
}

/// The urgency of a request for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// Readahead: uses only memory that is already faulted in, and may wait.
    Readahead,
    /// For the next batch to deliver, and for single samples: may fault memory in.
    Next,
    /// For the next batch to deliver, if no other read can proceed: if the consumer starves ([`Memory::starving`]), the
    /// system allocates the memory outside the window.
    Sole,
}

/// Memory for reads, bounded by the window.
pub(super) struct Memory {
    window: Arc<Window>,
    /// Set if the consumer waits, nothing is outstanding and the whole window is faulted in: the next read must get
    /// memory at once.
    pub(super) starving: bool,
    /// Set once a warning has said that a read does not fit the window.
    warned: bool,
    /// The number of buffers that were requested from the system, outside the window.
    pub(super) over_window: u64,
    /// Set if the last request got no memory of the pool: none is free, or it is not faulted in yet.
    pub(super) exhausted: bool,
    /// The first sample of the next read, for error messages.
    next: Option<SampleId>,
    /// The length that the system could not allocate.
    missing: Option<usize>,
}

impl Memory {
    pub(super) fn new(window: Arc<Window>) -> Memory {
        Memory {
            window,
            starving: false,
            warned: false,
            over_window: 0,
            exhausted: false,
            next: None,
            missing: None,
        }
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
    /// If a read of [`Priority::Sole`] starves, since one sample is larger than the window or the consumer keeps
    /// batches, the system allocates the buffer. The first time, a warning is logged. If the system has no memory
    /// either, [`check`](Self::check) returns the error.
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

    /// Returns whether this many bytes of the window are free, contiguous or not.
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

    /// Returns whether the last request got no memory of the pool because others have it, and not because it is still
    /// being faulted in.
    pub(super) fn is_full(&self) -> bool {
        self.exhausted && self.window.is_faulted_to(usize::MAX)
    }
}

/// The driver that registers memory for a loader with these options. If it is not there, warns, and returns `None`;
/// [`Pin::Auto`] says nothing in a process that uses no device.
pub(super) fn registrar(options: &LoaderOptions) -> Option<&'static dyn Registrar> {
    let found = Driver::find(options.pin?).and_then(|driver| {
        if let (Some(driver), Some(ordinal)) = (driver, options.device) {
            driver.use_device(ordinal)?;
        }
        Ok(driver)
    });
    match found {
        Ok(driver) => driver.map(|driver| driver as &dyn Registrar),
        Err(error) => {
            warn_of_refusal(&error);
            None
        }
    }
}

/// Says that memory is not registered.
pub(super) fn warn_of_refusal(error: &crate::Error) {
    tracing::warn!(%error, "batches are in memory that is not pinned, so devices copy them more slowly");
}

/// The processors near which a loader with these options allocates its window.
fn cpus(options: &LoaderOptions) -> Option<Cpus> {
    let near_device = || {
        let ordinal = options.device?;
        let driver = Driver::find(options.pin.unwrap_or(Pin::Auto)).ok()??;
        Cpus::of_node(driver.numa_node(ordinal)?).ok()
    };
    options.cpus.clone().or_else(near_device)
}

/// Bytes faulted in at a time: a huge page.
const STEP_BYTES: usize = 2 << 20;

/// The timeout for the thread's current step.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Smaller windows are faulted in sooner than a thread is started.
const MIN_BACKGROUND_BYTES: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::qpair::group::PollGroup;

    impl Window {
        /// A window whose thread stops after `faulted_bytes`.
        fn with_faulted(bytes: usize, slot_len_bytes: usize, faulted_bytes: usize) -> Window {
            let options = LoaderOptions::default();
            let window = Window::new(bytes, slot_len_bytes, 0, &options).expect("memory");
            window.progress.faulted_bytes.store(faulted_bytes, Ordering::Relaxed);
            window
        }
    }

    #[test]
    fn all_memory_is_faulted_in_and_the_poller_is_woken() {
        let mut group = PollGroup::new().unwrap();
        let options = LoaderOptions::default();
        let window = Window::new(32 << 20, 1 << 20, usize::MAX, &options).unwrap();
        let held = window.pool.take(1 << 20);
        window.wakes(group.waker());
        let limit = Instant::now() + Duration::from_secs(60);
        while !window.is_faulted_to(usize::MAX) && Instant::now() < limit {
            group.wait(limit);
        }
        assert!(window.is_faulted_to(usize::MAX));
        drop(held);
        assert_eq!(window.pool.free_bytes(), 32 << 20, "nothing is held any more");
    }

    #[test]
    fn the_thread_ends_when_the_window_is_dropped() {
        let options = LoaderOptions::default();
        let pool = Window::new(1 << 30, 4096, usize::MAX, &options).unwrap().pool.clone();
        assert_eq!(pool.free_bytes(), pool.capacity_bytes());
    }

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
