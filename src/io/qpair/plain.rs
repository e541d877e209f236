//! The queue pair of an engine: the engine implements the methods that it needs, and [`Plain`] implements the
//! others.
//!
//! A wrapper of queue pairs implements [`QueuePair`] itself, since it must answer or forward each call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::readiness::Registry;
use super::{Completion, Fence, Io, Namespace, Notice, QueuePair};
use dlfs_base::buf::{Pool, SharedBuf};
use dlfs_base::units::Lba;

/// An engine, which [`Plain`] turns into a queue pair. The methods are those of [`QueuePair`]. An engine with
/// the default methods completes I/Os only in [`PlainEngine::poll`], and ignores optional requests.
#[allow(missing_docs)] // documented in `QueuePair`
pub trait PlainEngine: Send {
    fn namespace(&self) -> &Namespace;

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize;

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize;

    fn outstanding(&self) -> usize;

    fn start(&mut self) {}

    fn use_pool(&mut self, _: &Pool) {}

    fn use_fence(&mut self, _: &Arc<Fence>) {}

    fn shared_queue(&self) -> Option<usize> {
        None
    }

    fn report_corrupt(&mut self, _: Lba, _: usize) {}

    fn borrow(&self, _: Lba, _: usize) -> Option<SharedBuf> {
        None
    }

    fn register(&mut self, _: &Registry) {}

    fn notice(&self) -> Notice {
        Notice::Poll
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}

/// The queue pair of an engine.
pub struct Plain<E>(pub E);

impl<E: PlainEngine> QueuePair for Plain<E> {
    fn namespace(&self) -> &Namespace {
        self.0.namespace()
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        self.0.submit(pending)
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.0.poll(now, max, done)
    }

    fn start(&mut self) {
        self.0.start();
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.0.use_pool(pool);
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        self.0.use_fence(fence);
    }

    fn outstanding(&self) -> usize {
        self.0.outstanding()
    }

    fn shared_queue(&self) -> Option<usize> {
        self.0.shared_queue()
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        self.0.report_corrupt(slba, len_bytes);
    }

    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        self.0.borrow(slba, len_bytes)
    }

    /// Only wrappers keep copies.
    fn has_copies(&self, _: Lba, _: usize) -> bool {
        false
    }

    fn register(&mut self, registry: &Registry) {
        self.0.register(registry);
    }

    fn notice(&self) -> Notice {
        self.0.notice()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.0.next_timeout()
    }
}
