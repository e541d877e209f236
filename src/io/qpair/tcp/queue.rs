//! A queue pair over TCP: a handle of a connection, which the queue pairs of its scope on the same controller
//! share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::connection::{Connection, Core};
use super::{Counters, Tcp};
use crate::qpair::outstanding::Outstanding;
use crate::qpair::plain::PlainEngine;
use crate::qpair::readiness::Registry;
use crate::qpair::remote::Remote;
use crate::qpair::{Completion, Fence, Io, Namespace, Notice, PairScope};
use dlfs_base::error::Result;
use dlfs_base::units::Lba;

/// A queue pair on a remote namespace.
pub(super) struct TcpQueuePair {
    connection: Arc<Connection>,
    member: Member,
}

/// A queue pair's membership in its connection.
struct Member {
    /// The core that it was added to, see [`Core::number`].
    core: u64,
    /// Its number among the core's handles.
    handle: usize,
    /// The index of its namespace in a session.
    ns_index: usize,
    /// The namespace as of the last session that this handle has noticed.
    namespace: Namespace,
    num_joins: u64,
    fence: Option<Arc<Fence>>,
    outstanding: Outstanding,
}

impl TcpQueuePair {
    /// Opens a queue pair on the namespace at index `ns_index` and waits until it has joined a session.
    pub(super) fn connect(
        remote: &Arc<Remote<Tcp>>,
        (ns_index, namespace): (usize, Namespace),
        counters: &Arc<Counters>,
        scope: &PairScope,
    ) -> Result<TcpQueuePair> {
        let open = || Connection::open(Arc::clone(remote), Arc::clone(counters));
        let connection = scope.get_or_open(remote, open)?;
        connection.wait_joined()?;
        let mut core = connection.core();
        let member = Member {
            core: core.number,
            handle: core.add_member(ns_index, namespace.clone()),
            ns_index,
            namespace,
            num_joins: 0,
            fence: None,
            outstanding: Outstanding::default(),
        };
        drop(core);
        Ok(TcpQueuePair { connection, member })
    }

    /// The connection in this process, and this queue pair's membership in it.
    fn enter(&mut self) -> (MutexGuard<'_, Core>, &mut Member) {
        let mut core = self.connection.core();
        if core.number != self.member.core {
            self.member.begin_anew(&mut core);
        }
        (core, &mut self.member)
    }
}

impl Member {
    /// In a child process with a new core, which does not know this queue pair yet.
    fn begin_anew(&mut self, core: &mut Core) {
        self.core = core.number;
        self.handle = core.add_member(self.ns_index, self.namespace.clone());
        self.num_joins = 0;
        if let Some(fence) = &self.fence {
            core.queue.use_fence(self.handle, fence);
        }
        self.outstanding.lose(
            "the process was forked while another thread used this connection, so that its I/Os and their \
             buffers stay with the parent; submit them again",
        );
    }
}

impl PlainEngine for TcpQueuePair {
    fn namespace(&self) -> &Namespace {
        &self.member.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let (mut core, member) = self.enter();
        let most = usize::from(member.namespace.queue_depth);
        let handle = member.handle;
        member.outstanding.take(pending, most, |pending| core.submit(handle, pending))
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let (mut core, member) = self.enter();
        let failed = member.outstanding.fail_lost(max, done);
        let before = done.len();
        let count = core.poll(member.handle, now, max - failed, done);
        member.outstanding.forget(&done[before..]);
        if let Some(namespace) = core.namespace_since(member.handle, &mut member.num_joins) {
            member.namespace.clone_from(namespace);
        }
        failed + count
    }

    fn start(&mut self) {
        let (mut core, member) = self.enter();
        core.start(member.handle);
    }

    fn use_fence(&mut self, fence: &Arc<Fence>) {
        let (mut core, member) = self.enter();
        core.queue.use_fence(member.handle, fence);
        member.fence = Some(Arc::clone(fence));
    }

    fn outstanding(&self) -> usize {
        self.member.outstanding.len()
    }

    fn shared_queue(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.connection).addr())
    }

    /// The next read of these blocks has Force Unit Access: no cache of the controller may serve it.
    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        let (mut core, member) = self.enter();
        let num_blocks = len_bytes.div_ceil(member.namespace.block_len_bytes as usize) as u64;
        core.queue.report_corrupt(member.handle, slba.0..slba.0.saturating_add(num_blocks));
    }

    fn register(&mut self, registry: &Registry) {
        let (mut core, member) = self.enter();
        core.register(member.handle, registry);
    }

    fn notice(&self) -> Notice {
        Notice::Event
    }

    fn next_timeout(&self) -> Option<Instant> {
        let mut core = self.connection.core();
        if core.number != self.member.core || self.member.outstanding.has_lost() {
            return Some(Instant::now()); // the next turn has something to fail
        }
        core.next_timeout(self.member.handle)
    }
}

impl Drop for TcpQueuePair {
    fn drop(&mut self) {
        self.connection.remove_member(self.member.core, self.member.handle);
    }
}

#[cfg(test)]
mod tests;
