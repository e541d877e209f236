//! A device that delivers bytes at a fixed rate: all its queue pairs share one link.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dlfs::buf::{Pool, SharedBuf};
use dlfs::qpair::readiness::Registry;
use dlfs::qpair::{
    Capabilities, Completion, Device, Fence, Io, Namespace, Notice, PairScope, QueuePair,
};
use dlfs::units::Lba;

/// The device behind the link.
pub(crate) struct Throttled {
    inner: Arc<dyn Device>,
    link: Arc<Link>,
}

struct Link {
    bytes_per_s: u64,
    /// When the link has sent everything that it was given so far.
    free_at: Mutex<Instant>,
}

impl Throttled {
    /// `inner`, at `bytes_per_s`.
    pub(crate) fn new(inner: Arc<dyn Device>, bytes_per_s: u64) -> Throttled {
        let free_at = Mutex::new(Instant::now());
        Throttled { inner, link: Arc::new(Link { bytes_per_s, free_at }) }
    }
}

impl Device for Throttled {
    fn namespace(&self) -> Namespace {
        self.inner.namespace()
    }

    fn queue_pair_in(&self, scope: &PairScope) -> dlfs::Result<Box<dyn QueuePair>> {
        let inner = self.inner.queue_pair_in(scope)?;
        Ok(Box::new(Pair {
            inner,
            link: Arc::clone(&self.link),
            held: VecDeque::new(),
            done: Vec::new(),
        }))
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities {
            max_queue_pairs: inner.max_queue_pairs,
            can_grow: inner.can_grow,
            is_exclusive: inner.is_exclusive,
            late_writes: inner.late_writes,
            checks_writes: inner.checks_writes,
            // Data behind a link are not in the page cache, and cannot be overwritten there.
            is_page_cached: false,
            local_path: None,
            allocated_bytes: None,
        }
    }

    fn grow(&self, len_bytes: u64) -> dlfs::Result<()> {
        self.inner.grow(len_bytes)
    }
}

struct Pair {
    inner: Box<dyn QueuePair>,
    link: Arc<Link>,
    /// Completions, with the time at which the link delivers them.
    held: VecDeque<(Instant, Completion)>,
    done: Vec<Completion>,
}

impl QueuePair for Pair {
    fn namespace(&self) -> &Namespace {
        self.inner.namespace()
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        if self.outstanding() >= usize::from(self.namespace().queue_depth) {
            return 0;
        }
        self.inner.submit(pending)
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.inner.poll(now, usize::MAX, &mut self.done);
        for completion in self.done.drain(..) {
            let time = completion.buf.len() as f64 / self.link.bytes_per_s as f64;
            let mut free_at = self.link.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            *free_at = (*free_at).max(now) + Duration::from_secs_f64(time);
            self.held.push_back((*free_at, completion));
        }
        let mut count = 0;
        while count < max && self.held.front().is_some_and(|(at, _)| *at <= now) {
            done.extend(self.held.pop_front().map(|(_, completion)| completion));
            count += 1;
        }
        count
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding() + self.held.len()
    }

    fn next_timeout(&self) -> Option<Instant> {
        let held = self.held.front().map(|(at, _)| *at);
        held.into_iter().chain(self.inner.next_timeout()).min()
    }

    fn notice(&self) -> Notice {
        // The link delivers by time.
        match self.inner.outstanding() {
            0 => Notice::Event,
            _ => self.inner.notice(),
        }
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
        // Borrowed data would bypass the link.
        let _ = (slba, len_bytes);
        None
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
}
