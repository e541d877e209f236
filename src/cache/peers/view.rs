//! The namespace that a node serves to its peers: its cache of an origin namespace, with the same size and LBAs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use dlfs_base::buf::{Pool, SharedBuf};
use dlfs_base::error::Result;
use dlfs_base::units::Lba;
use dlfs_io::qpair::readiness::Registry;
use dlfs_io::qpair::{
    Capabilities, Completion, Device, Fence, Io, IoError, Namespace, Notice, PairScope, QueuePair,
};
use dlfs_nvme::nvme::Status;

/// A namespace under another identity, read-only. What it cannot read is *Deallocated or Unwritten Logical Block*
/// to its peers, who then read elsewhere: their own way to the origin may work where this one fails.
pub(super) struct View {
    pub(super) cache: Arc<dyn Device>,
    pub(super) nguid: [u8; 16],
}

impl View {
    fn describe(&self, cache: Namespace) -> Namespace {
        Namespace { nguid: self.nguid, read_only: true, ..cache }
    }
}

impl Device for View {
    fn namespace(&self) -> Namespace {
        self.describe(self.cache.namespace())
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let cache = self.cache.queue_pair_in(scope)?;
        let namespace = self.describe(cache.namespace().clone());
        Ok(Box::new(ViewPair { cache, namespace }))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { can_grow: false, local_path: None, ..self.cache.capabilities() }
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        self.namespace().must_hold(len_bytes)
    }
}

struct ViewPair {
    cache: Box<dyn QueuePair>,
    namespace: Namespace,
}

impl QueuePair for ViewPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        self.cache.submit(pending)
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        let count = self.cache.poll(now, max, done);
        for completion in &mut done[before..] {
            if let Err(error) = &mut completion.result
                && !matches!(error, IoError::Invalid(_))
            {
                *error = IoError::Status(Status::UNWRITTEN_BLOCK.do_not_retry());
            }
        }
        count
    }

    fn start(&mut self) {
        self.cache.start();
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.cache.use_pool(pool);
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.cache.use_fence(fence);
    }

    fn outstanding(&self) -> usize {
        self.cache.outstanding()
    }

    fn shared_queue(&self) -> Option<usize> {
        self.cache.shared_queue()
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        self.cache.report_corrupt(slba, len_bytes);
    }

    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        self.cache.borrow(slba, len_bytes)
    }

    fn has_copies(&self, slba: Lba, len_bytes: usize) -> bool {
        self.cache.has_copies(slba, len_bytes)
    }

    fn register(&mut self, registry: &Registry) {
        self.cache.register(registry);
    }

    fn notice(&self) -> Notice {
        self.cache.notice()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.cache.next_timeout()
    }
}
