//! A queue pair over TCP: a handle on a connection, which the queue pairs of its scope on the same
//! controller share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::connection::Connection;
use super::{Counters, Tcp};
use crate::buf::{Pool, SharedBuf};
use crate::error::Result;
use crate::qpair::readiness::Registry;
use crate::qpair::remote::Remote;
use crate::qpair::{Completion, Fence, Io, Namespace, Notice, PairScope, QueuePair};
use crate::units::Lba;

/// A queue pair on a remote namespace.
pub(super) struct TcpQueuePair {
    connection: Arc<Connection>,
    /// Its number among the handles.
    handle: usize,
    /// What the namespace was when the connection last joined a session that this has noticed.
    namespace: Namespace,
    num_joins: u64,
    /// I/Os taken and not handed out.
    outstanding: usize,
}

impl TcpQueuePair {
    /// A queue pair on the namespace at `place` that is in a session when this returns.
    pub(super) fn connect(
        remote: &Arc<Remote<Tcp>>,
        (place, namespace): (usize, Namespace),
        counters: &Arc<Counters>,
        scope: &PairScope,
    ) -> Result<TcpQueuePair> {
        let open = || Connection::open(Arc::clone(remote), Arc::clone(counters));
        let connection = scope.get_or_open(remote, open)?;
        connection.wait_joined()?;
        let mut core = connection.core().expect("a child has scopes and connections of its own");
        let handle = core.add_member(place, namespace.clone());
        drop(core);
        Ok(TcpQueuePair { connection, handle, namespace, num_joins: 0, outstanding: 0 })
    }
}

impl QueuePair for TcpQueuePair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let Some(mut core) = self.connection.core() else { return 0 };
        let count = core.submit(self.handle, pending);
        self.outstanding += count;
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let Some(mut core) = self.connection.core() else { return 0 };
        let count = core.poll(self.handle, now, max, done);
        self.outstanding -= count;
        if let Some(namespace) = core.namespace_since(self.handle, &mut self.num_joins) {
            self.namespace.clone_from(namespace);
        }
        count
    }

    fn start(&mut self) {
        if let Some(mut core) = self.connection.core() {
            core.start(self.handle);
        }
    }

    fn use_pool(&mut self, _: &Pool) {}

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        if let Some(mut core) = self.connection.core() {
            core.use_fence(self.handle, fence);
        }
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn shared_queue(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.connection).addr())
    }

    /// There is one copy.
    fn report_corrupt(&mut self, _: Lba, _: usize) {}

    fn borrow(&self, _: Lba, _: usize) -> Option<SharedBuf> {
        None
    }

    fn register(&mut self, registry: &Registry) {
        if let Some(mut core) = self.connection.core() {
            core.register(self.handle, registry);
        }
    }

    fn notice(&self) -> Notice {
        Notice::Event
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.connection.core()?.next_timeout(self.handle)
    }
}

impl Drop for TcpQueuePair {
    fn drop(&mut self) {
        self.connection.remove_member(self.handle);
    }
}

#[cfg(test)]
mod tests;
