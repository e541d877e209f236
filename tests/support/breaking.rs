//! A device that breaks on request, in the queue pairs that threads of a given name poll.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dlfs::Result;
use dlfs::buf::{Pool, SharedBuf};
use dlfs::qpair::readiness::Registry;
use dlfs::qpair::{
    Capabilities, Completion, Device, Fence, Io, IoError, Namespace, Notice, PairScope, QueuePair,
};
use dlfs::units::Lba;

/// How a queue pair breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// `poll` panics.
    Panics,
    /// Nothing completes any more.
    Hangs,
    /// `poll` does not return.
    Blocks,
    /// Every I/O fails with EIO.
    Fails,
}

impl How {
    pub const ALL: [How; 4] = [How::Panics, How::Hangs, How::Blocks, How::Fails];
}

/// A device around another one, which breaks on request.
pub struct Breaking {
    inner: Arc<dyn Device>,
    how: How,
    told: Arc<Told>,
}

struct Told {
    /// Prefix of the thread's name; empty: any thread.
    thread: &'static str,
    is_on: AtomicBool,
    struck: AtomicU32,
}

/// How long blocked threads sleep; the process ends before.
const FOR_EVER: Duration = Duration::from_secs(3600);

impl Breaking {
    pub fn new(inner: Arc<dyn Device>, how: How, thread: &'static str) -> Arc<Breaking> {
        let told = Told { thread, is_on: AtomicBool::new(false), struck: AtomicU32::new(0) };
        Arc::new(Breaking { inner, how, told: Arc::new(told) })
    }

    /// Breaks it from now on.
    pub fn break_now(&self) {
        self.told.is_on.store(true, Ordering::Release);
    }

    /// Returns whether a poll has been affected.
    pub fn has_struck(&self) -> bool {
        self.told.struck.load(Ordering::Acquire) > 0
    }
}

impl Device for Breaking {
    fn namespace(&self) -> Namespace {
        self.inner.namespace()
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let inner = self.inner.queue_pair_in(scope)?;
        let how = self.how;
        let told = Arc::clone(&self.told);
        Ok(Box::new(BreakingPair { inner, how, told }))
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        self.inner.grow(len_bytes)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

struct BreakingPair {
    inner: Box<dyn QueuePair>,
    how: How,
    told: Arc<Told>,
}

impl BreakingPair {
    fn is_struck(&self) -> bool {
        let told = &*self.told;
        if !told.is_on.load(Ordering::Acquire) || self.inner.outstanding() == 0 {
            return false;
        }
        let here = std::thread::current();
        let is_it = here.name().unwrap_or("").starts_with(told.thread);
        if is_it {
            told.struck.fetch_add(1, Ordering::AcqRel);
        }
        is_it
    }
}

impl QueuePair for BreakingPair {
    fn namespace(&self) -> &Namespace {
        self.inner.namespace()
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        self.inner.submit(pending)
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let is_struck = self.is_struck();
        match self.how {
            How::Panics if is_struck => panic!("an engine that was told to panic"),
            How::Hangs if is_struck => return 0,
            How::Blocks if is_struck => std::thread::sleep(FOR_EVER),
            _ => {}
        }
        let before = done.len();
        let count = self.inner.poll(now, max, done);
        if is_struck {
            let failed = done[before..].iter_mut();
            failed.for_each(|completion| completion.result = Err(IoError::Os(5))); // EIO
        }
        count
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding()
    }

    fn start(&mut self) {
        self.inner.start();
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.inner.use_pool(pool);
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.inner.use_fence(fence);
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        self.inner.report_corrupt(slba, len_bytes);
    }

    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        self.inner.borrow(slba, len_bytes)
    }

    fn has_copies(&self, slba: Lba, len_bytes: usize) -> bool {
        self.inner.has_copies(slba, len_bytes)
    }

    fn shared_queue(&self) -> Option<usize> {
        self.inner.shared_queue()
    }

    fn register(&mut self, registry: &Registry) {
        self.inner.register(registry);
    }

    fn notice(&self) -> Notice {
        self.inner.notice()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.inner.next_timeout()
    }
}
