//! Draining of a connection, while the target disconnects all hosts ([`Target::drain`](crate::Target::drain)).

use std::net::Shutdown;
use std::time::{Duration, Instant};

use super::{HostConnection, has_passed};
use crate::io::Backend;

impl HostConnection {
    /// Returns whether the connection receives no more commands: the target drains and has not closed its side yet, the
    /// host does not support ANA, and no data of outstanding writes are awaited.
    pub(super) fn takes_no_more(&self, backend: &Backend) -> bool {
        let Some(queue) = &self.queue else { return false };
        let is_open = backend.subsystem.draining_since().is_some() && self.drained.is_none();
        let is_told = backend.subsystem.is_inaccessible_to(&queue.controller);
        is_open && !is_told && self.protocol.awaited() == 0
    }

    /// Takes one step of draining, which began at `since`.
    ///
    /// A host that supports ANA has been told that its namespaces are inaccessible here. Its new commands
    /// fail with that status, and it may close the connection itself. From other hosts, the target receives
    /// no more commands. Once all outstanding commands have completed, those of I/O queues first, the
    /// target closes its side.
    pub(in super::super) fn drain(&mut self, backend: &Backend, since: Instant) {
        let Some(queue) = &self.queue else { return };
        let controller = &queue.controller;
        let may_end = !backend.subsystem.is_inaccessible_to(controller)
            || controller.events.knows_inaccessible()
            || has_passed(backend.now, since, ANA_LIMIT);
        let is_last = queue.qid != 0 || !controller.has_io_queues();
        let is_idle = self.protocol.outstanding() == self.num_parked() && !self.wants_to_send();
        if self.drained.is_none() && may_end && is_last && is_idle {
            self.drained = Some(backend.now);
            // The connection may be lost already; then there is nothing to close.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}

/// Time for a host that supports ANA to read the change to inaccessible, before it is drained.
const ANA_LIMIT: Duration = Duration::from_secs(2);
