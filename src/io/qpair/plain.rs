//! The queue pair of a simple engine: its own `poll` completes the I/Os that it has taken.
//!
//! An engine that transfers bytes by itself, has a descriptor, holds writes back, caches, or can lend its
//! bytes implements [`QueuePair`] itself; so does every wrapper of a queue pair.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::readiness::Registry;
use super::{Completion, Fence, Io, Namespace, Notice, QueuePair};
use dlfs_base::buf::{Pool, SharedBuf};
use dlfs_base::units::Lba;

/// A simple engine, which [`Plain`] makes a queue pair of. The methods are those of [`QueuePair`].
pub trait PlainEngine: Send {
    /// The namespace.
    fn namespace(&self) -> &Namespace;

    /// Takes I/Os from the front of `pending` while there is room; returns how many it took.
    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize;

    /// Runs the I/Os taken; appends at most `max` completions to `done` and returns how many.
    fn poll(&mut self, max: usize, done: &mut Vec<Completion>) -> usize;

    /// The number of I/Os taken and not yet completed.
    fn outstanding(&self) -> usize;
}

/// The queue pair of a simple engine.
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
