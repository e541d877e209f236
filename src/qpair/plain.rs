//! The queue pair of an engine with nothing special: its own `poll` completes what it has taken.
//!
//! A device that moves bytes by itself, has a descriptor, keeps writes back, caches or lends is more than
//! that and implements [`QueuePair`] itself; so does everything around another queue pair.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::readiness::Registry;
use super::{Completion, Fence, Io, Namespace, Notice, QueuePair};
use crate::buf::{Pool, SharedBuf};
use crate::units::Lba;

/// What [`Plain`] makes a queue pair of. The methods are those of [`QueuePair`].
pub trait PlainEngine: Send {
    /// The namespace behind it.
    fn namespace(&self) -> &Namespace;

    /// Takes I/O from the front of `pending` while there is room; returns how many it took.
    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize;

    /// Does what was taken; appends at most `max` completions to `done` and returns how many.
    fn poll(&mut self, max: usize, done: &mut Vec<Completion>) -> usize;

    /// I/Os taken and not yet completed.
    fn outstanding(&self) -> usize;
}

/// A queue pair on an engine with nothing special.
pub struct Plain<E>(pub E);

impl<E: PlainEngine> QueuePair for Plain<E> {
    fn namespace(&self) -> &Namespace {
        self.0.namespace()
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        self.0.submit(pending)
    }

    fn poll(&mut self, _: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.0.poll(max, done)
    }

    fn start(&mut self) {}

    fn use_pool(&mut self, _: &Pool) {}

    fn use_fence(&mut self, _: &Arc<Fence>) {}

    fn outstanding(&self) -> usize {
        self.0.outstanding()
    }

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
