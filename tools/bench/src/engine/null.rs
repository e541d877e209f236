//! Completes everything at once and moves nothing: what is left is the cost of this tool.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use dlfs::buf::{Pool, SharedBuf};
use dlfs::qpair::readiness::Registry;
use dlfs::qpair::{Completion, Fence, Io, Namespace, Notice, QueuePair};
use dlfs::units::Lba;

use super::byte_namespace;

pub(super) struct NullPair {
    namespace: Namespace,
    taken: VecDeque<Io>,
}

impl NullPair {
    pub(super) fn new(len: u64) -> NullPair {
        let taken = VecDeque::with_capacity(usize::from(u16::MAX));
        NullPair { namespace: byte_namespace("null", len, u16::MAX, "null"), taken }
    }
}

impl QueuePair for NullPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let count = pending.len();
        if self.taken.is_empty() {
            std::mem::swap(&mut self.taken, pending);
        } else {
            self.taken.append(pending);
        }
        count
    }

    fn poll(&mut self, _now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let count = max.min(self.taken.len());
        let ended = self.taken.drain(..count);
        done.extend(ended.map(|io| Completion { tag: io.tag, buf: io.buf, result: Ok(()) }));
        count
    }

    fn outstanding(&self) -> usize {
        self.taken.len()
    }

    fn start(&mut self) {}

    fn use_pool(&mut self, _: &Pool) {}

    fn use_fence(&mut self, _: &Arc<Fence>) {}

    fn distrust(&mut self, _: Lba, _: usize) {}

    fn lend(&self, _: Lba, _: usize) -> Option<SharedBuf> {
        None
    }

    fn shared_queue(&self) -> Option<usize> {
        None
    }

    fn join(&mut self, _: &Registry) {}

    fn notice(&self) -> Notice {
        Notice::Poll
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}
