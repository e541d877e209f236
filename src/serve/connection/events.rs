//! Actions that the target starts itself: it reports events, fails waiting commands, and drains.

use std::net::Shutdown;
use std::time::Instant;

use super::super::io::{Backend, Kind};
use super::super::stats::Counters;
use super::{ANA_LIMIT, HostConnection, Need, has_passed};
use dlfs_nvme::nvme::Status;

impl HostConnection {
    /// Completes waiting Asynchronous Event Requests with the events to report.
    pub(in super::super) fn report_events(&mut self) {
        let Some(queue) = self.queue.as_ref().filter(|queue| queue.qid == 0) else { return };
        // Drops the requests whose commands the protocol no longer knows.
        self.async_events.retain(|&event| self.protocol.is_parked(event));
        while !self.async_events.is_empty()
            && let Some(event) = queue.controller.events.next()
        {
            let id = self.async_events.remove(0);
            self.protocol.finish(id, Status::SUCCESS, event.into());
        }
    }

    /// Fails reads that have waited for memory longer than the options allow, so that the host reads
    /// elsewhere.
    pub(in super::super) fn give_up_waiting(&mut self, backend: &mut Backend, now: Instant) {
        let Some(limit) = backend.subsystem.options.max_memory_wait else { return };
        let is_long = |since: Instant| now.saturating_duration_since(since) >= limit;
        if self.waiting.is_empty() || !self.waiting_since.is_some_and(is_long) {
            return;
        }
        let is_read =
            |need: &Need| need.request().is_some_and(|request| request.kind == Kind::Read);
        self.fail_waiting(is_read, Status::UNWRITTEN_BLOCK, backend, now);
    }

    /// Fails the selected commands that wait; the host must not retry them.
    fn fail_waiting(
        &mut self,
        which: impl Fn(&Need) -> bool,
        status: Status,
        backend: &mut Backend,
        now: Instant,
    ) {
        let failed = self.waiting.extract(which);
        backend.num_waiting -= failed.len();
        for (id, need) in failed {
            if let Need::Written { buf, .. } = &need {
                self.held_bytes -= buf.len();
            }
            Counters::add(&backend.counters.errors, 1);
            self.fail(id, status.do_not_retry());
        }
        self.waiting_since = (self.has_waiting() || self.is_paused).then_some(now);
    }

    /// Fails commands that wait on a removed namespace; `number` is the index of its queue.
    pub(in super::super) fn give_up_queue(
        &mut self,
        number: usize,
        backend: &mut Backend,
        now: Instant,
    ) {
        let is_for_it = |need: &Need| need.request().is_some_and(|request| request.queue == number);
        self.fail_waiting(is_for_it, Status::INVALID_NAMESPACE, backend, now);
    }

    /// Returns whether the connection accepts no more commands: the target drains, and the host does not
    /// support ANA. The data of outstanding writes are still received.
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
    pub(in super::super) fn drain(&mut self, backend: &Backend, now: Instant, since: Instant) {
        let Some(queue) = &self.queue else { return };
        let controller = &queue.controller;
        let may_end = !backend.subsystem.is_inaccessible_to(controller)
            || controller.events.knows_inaccessible()
            || has_passed(now, since, ANA_LIMIT);
        let is_last = queue.qid != 0 || !controller.has_io_queues();
        let is_idle = self.protocol.outstanding() == self.num_parked() && !self.wants_to_send();
        if self.drained.is_none() && may_end && is_last && is_idle {
            self.drained = Some(now);
            // The connection may be lost already; then there is nothing to close.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    pub(super) fn num_parked(&self) -> usize {
        self.async_events.iter().filter(|&&event| self.protocol.is_parked(event)).count()
    }
}
