//! Commands that wait to begin: for memory, for a limit, or for their turn beside other hosts; and actions that the
//! target starts itself: it reports events, fails waiting commands, and drains.
//!
//! A host could hold memory for ever by moving one byte now and then, so only larger amounts count as progress with
//! bytes that it owes.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use super::{ANA_LIMIT, CommandId, HostConnection, has_passed};
use crate::hosts::{HostId, MemoryWait};
use crate::io::{Backend, Kind, Request};
use crate::shares::{Blocked, Flow, Turns};
use crate::sharing::cost_of;
use crate::stats::Counters;
use dlfs_base::buf::IoBuf;
use dlfs_nvme::nvme::Status;

/// Commands that have been checked and wait, oldest first: reads and admin commands, then writes. A limit of
/// one kind delays no other.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    lanes: [VecDeque<(CommandId, Need)>; 2],
    /// True for lanes whose turn will come.
    pub(super) is_listed: [bool; 2],
}

/// A command's need before it can begin.
#[derive(Debug)]
pub(super) enum Need {
    /// Memory for the data of an I/O command, and its turn.
    Io(Request),
    /// The turn of a write whose data have arrived. `is_charged`: its limits have let it begin before.
    Written { request: Request, buf: IoBuf, is_charged: bool },
    /// Memory for the response data of an admin command: this many bytes.
    Answer(u32),
    /// Memory for data of an admin command, which the host has yet to send: this many bytes.
    AdminData(u32),
}

impl Need {
    /// The I/O command.
    pub(super) fn request(&self) -> Option<&Request> {
        match self {
            Need::Io(request) | Need::Written { request, .. } => Some(request),
            Need::Answer(_) | Need::AdminData(_) => None,
        }
    }

    /// Bytes of memory that the command needs.
    fn len_bytes(&self) -> usize {
        match self {
            Need::Io(request) => request.len_bytes as usize,
            Need::Written { .. } => 0,
            Need::Answer(len) | Need::AdminData(len) => *len as usize,
        }
    }

    fn lane(&self) -> usize {
        let kind = self.request().map(|request| request.kind);
        usize::from(matches!(kind, Some(Kind::Write | Kind::DurableWrite)))
    }

    /// Returns whether the command has begun: limits have been charged.
    fn is_charged(&self) -> bool {
        match self {
            Need::Io(request) => request.is_rest,
            Need::Written { is_charged, .. } => *is_charged,
            Need::Answer(_) | Need::AdminData(_) => false,
        }
    }

    /// The I/O command, if limits apply to it that have not been charged.
    fn limited(&self) -> Option<Request> {
        let request = self.request().filter(|request| request.kind != Kind::Flush);
        request.filter(|_| !self.is_charged()).copied()
    }
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.iter().all(VecDeque::is_empty)
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }

    /// The place of one more command in its lane. Commands that have begun, rests of reads and writes whose data hold
    /// memory, go before those that have not: else each would wait again for all of them.
    fn place(&self, need: &Need) -> usize {
        let lane = &self.lanes[need.lane()];
        let charged = lane.iter().take_while(|(_, need)| need.is_charged());
        if need.is_charged() { charged.count() } else { lane.len() }
    }

    /// Removes the selected commands.
    pub(super) fn extract(&mut self, which: impl Fn(&Need) -> bool) -> Vec<(CommandId, Need)> {
        let mut extracted = Vec::new();
        for lane in &mut self.lanes {
            let all = std::mem::take(lane).into_iter();
            let (those, others): (Vec<_>, Vec<_>) = all.partition(|(_, need)| which(need));
            *lane = others.into();
            extracted.extend(those);
        }
        extracted
    }

    /// Frees memory left behind by a burst of commands.
    pub(super) fn shrink(&mut self) {
        self.lanes.iter_mut().filter(|lane| lane.is_empty()).for_each(VecDeque::shrink_to_fit);
    }
}

impl HostConnection {
    /// Returns whether commands wait.
    pub(in super::super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn forget_waiting(&mut self, backend: &mut Backend) {
        backend.num_waiting -= self.waiting.len();
        self.waiting.lanes = Default::default();
        self.waiting_since = None;
    }

    pub(super) fn host_id(&self) -> Option<HostId> {
        self.host.map(|(host, _)| host)
    }

    /// The connection among those that wait for turns. Hosts count from 1; connections before their Connect
    /// together are one host.
    fn flow(&self, lane: usize, namespace: usize) -> Flow {
        let host = self.host_id().map_or(0, |host| host.0 + 1);
        Flow { host, namespace: 2 * namespace + lane, connection: 2 * self.index + lane }
    }

    /// The connection among those that send.
    pub(in super::super) fn sending_flow(&self) -> Flow {
        self.flow(0, self.namespace)
    }

    /// The namespace, in flows, of the lane's next command.
    pub(in super::super) fn next_namespace(&self, lane: usize) -> Option<usize> {
        let (_, need) = self.waiting.lanes[lane].front()?;
        let namespace = need.request().map_or(self.namespace, |request| request.queue);
        Some(2 * namespace + lane)
    }

    /// Lists lanes whose commands have begun to wait.
    pub(in super::super) fn list_waiting(&mut self, starts: &mut Turns) {
        for lane in 0..self.waiting.lanes.len() {
            if let Some(namespace) = self.next_namespace(lane)
                && !std::mem::replace(&mut self.waiting.is_listed[lane], true)
            {
                starts.enter(Flow { namespace, ..self.flow(lane, 0) });
            }
        }
    }

    /// The memory that the connection has waited for during `limit` or longer. `None` if its host makes no
    /// progress, or if its own limit, rather than other hosts, keeps it waiting.
    pub(in super::super) fn memory_wait(
        &self,
        backend: &Backend,
        limit: Duration,
    ) -> Option<MemoryWait> {
        let long = |since| backend.now.saturating_duration_since(since) >= limit;
        let first = self.waiting.lanes.iter().filter_map(VecDeque::front);
        let len = first.map(|(_, need)| need.len_bytes()).max().unwrap_or(0);
        let is_long = self.waiting_since.is_some_and(long)
            && !self.is_stalled(backend.now, limit)
            && self.may_hold(len, backend.connection_bytes);
        is_long.then(|| MemoryWait { host: self.host_id(), len })
    }

    /// Returns whether the connection may hold `len` more bytes. One command is always allowed.
    fn may_hold(&self, len: usize, connection_bytes: usize) -> bool {
        let holds = self.holds_bytes();
        holds == 0 || holds + len <= connection_bytes
    }

    pub(super) fn start_or_wait(&mut self, id: CommandId, need: Need, backend: &mut Backend) {
        let lane = need.lane();
        let place = self.waiting.place(&need);
        let mut waits = Some(need);
        if place == 0
            && let Some(need) = waits.take()
        {
            let request = need.request().copied();
            match (self.begin(id, need, backend), request) {
                (Ok(cost), Some(request)) if backend.sharing.is_mixed => {
                    let flow = self.flow(lane, request.queue);
                    backend.sharing.starts.charge(flow, cost);
                }
                (Ok(_), _) => {}
                (Err((need, _)), _) => waits = Some(need),
            }
        }
        if let Some(need) = waits {
            self.wait(id, need, backend);
        }
    }

    /// Lets a command wait.
    pub(super) fn wait(&mut self, id: CommandId, need: Need, backend: &mut Backend) {
        let place = self.waiting.place(&need);
        self.waiting.lanes[need.lane()].insert(place, (id, need));
        backend.num_waiting += 1;
        self.waiting_since.get_or_insert(backend.now);
    }

    /// Starts the first waiting command of a lane whose turn it is; returns the cost. `None`: no command
    /// waits. If the command goes on waiting, so do the [`Blocked`] flows.
    pub(in super::super) fn start_first(
        &mut self,
        lane: usize,
        backend: &mut Backend,
    ) -> Option<Result<u64, Blocked>> {
        let Some((id, need)) = self.waiting.lanes[lane].pop_front() else {
            self.waiting.is_listed[lane] = false;
            return None;
        };
        Some(match self.begin(id, need, backend) {
            Ok(cost) => {
                backend.num_waiting -= 1;
                self.waiting_since = (self.has_waiting() || self.is_paused).then_some(backend.now);
                self.waiting.is_listed[lane] = !self.waiting.lanes[lane].is_empty();
                Ok(cost)
            }
            Err((need, blocked)) => {
                self.waiting.lanes[lane].push_front((id, need));
                Err(blocked)
            }
        })
    }

    /// Begins a command, or a piece of a long read, whose limits, turn and memory permit it; returns the cost.
    fn begin(
        &mut self,
        id: CommandId,
        need: Need,
        backend: &mut Backend,
    ) -> Result<u64, (Need, Blocked)> {
        let limited = self.host_id().zip(need.limited());
        let part = need.request().map(|request| backend.part_of(request));
        let uses_device = match &need {
            Need::Io(request) => request.kind == Kind::Read,
            Need::Written { .. } => true,
            Need::Answer(_) | Need::AdminData(_) => false,
        };
        let is_paced = limited.is_some() || matches!(need, Need::Io(_));
        let host = self.host_id().filter(|_| is_paced);
        let may_begin = limited
            .is_none_or(|(host, request)| backend.is_within_limits(host, &request))
            && part
                .filter(|_| uses_device)
                .is_none_or(|part| backend.has_room_at_device(&part, host));
        if !may_begin {
            self.waiting_since = Some(backend.now); // it does not wait for memory
            return Err((need, Blocked::Namespace));
        }
        if let Some(part) = part {
            self.namespace = part.queue;
        }
        if let Err(waits) = self.start(id, need, backend) {
            // It waits for memory.
            if let Some((host, part)) = host.zip(part) {
                backend.note_no_wait(host, part.queue, part.kind != Kind::Read);
            }
            return Err(waits);
        }
        if let Some((host, request)) = limited {
            backend.charge(host, &request);
        }
        Ok(cost_of(part.map_or(0, |part| part.len_bytes as usize)))
    }

    /// Starts the data transfer of a read or a piece of it, of a write (R2T) or of an admin command, or submits a
    /// write. If there is no memory, returns the command and those that wait with it.
    fn start(
        &mut self,
        id: CommandId,
        need: Need,
        backend: &mut Backend,
    ) -> Result<(), (Need, Blocked)> {
        let part = need.request().map(|request| backend.part_of(request));
        let len = part.map_or_else(|| need.len_bytes(), |part| part.len_bytes as usize);
        match need {
            Need::Io(request) if request.kind == Kind::Flush => {
                backend.push(&request, IoBuf::empty(), self.tag(id, Kind::Flush));
                return Ok(());
            }
            Need::Written { request, buf, .. } => {
                backend.push(&request, buf, self.tag(id, request.kind));
                return Ok(());
            }
            _ if !self.may_hold(len, backend.connection_bytes) => {
                return Err((need, Blocked::Connection));
            }
            Need::Io(request) if request.kind == Kind::Read && !request.forces_unit_access => {
                if let Some(bytes) = backend.borrow(&backend.part_of(&request)) {
                    self.send_read(id, request.queue, bytes, backend);
                    return Ok(());
                }
            }
            _ => {}
        }
        self.account(backend);
        let free_bytes = backend.pool.free_bytes();
        let host = self.host_id();
        if !backend.hosts.may_take(&MemoryWait { host, len }, free_bytes) {
            // While hosts take turns, all connections of one need about as much, and are not asked one by one.
            let is_for_all = backend.sharing.is_mixed;
            return Err((need, if is_for_all { Blocked::Namespace } else { Blocked::Connection }));
        }
        let Some(buf) = backend.pool.take(len) else { return Err((need, Blocked::Connection)) };
        match need {
            Need::Io(request) if request.kind == Kind::Read => {
                self.held_bytes += len;
                backend.push(&request, buf, self.tag(id, Kind::Read));
            }
            Need::Io(_) | Need::Written { .. } | Need::AdminData(_) => {
                self.awaited.begin(backend.now);
                self.receive_into(id, buf);
            }
            Need::Answer(room) => {
                let sqe = *self.protocol.sqe(id);
                self.answer(id, &sqe, room, buf, backend);
            }
        }
        Ok(())
    }
}

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
    pub(in super::super) fn give_up_waiting(&mut self, backend: &mut Backend) {
        let Some(limit) = backend.subsystem.options.max_memory_wait else { return };
        let is_long = |since: Instant| backend.now.saturating_duration_since(since) >= limit;
        if self.waiting.is_empty() || !self.waiting_since.is_some_and(is_long) {
            return;
        }
        let is_read =
            |need: &Need| need.request().is_some_and(|request| request.kind == Kind::Read);
        self.fail_waiting(is_read, Status::UNWRITTEN_BLOCK, backend);
    }

    /// Fails the selected commands that wait; the host must not retry them.
    fn fail_waiting(
        &mut self,
        which: impl Fn(&Need) -> bool,
        status: Status,
        backend: &mut Backend,
    ) {
        let failed = self.waiting.extract(which);
        backend.num_waiting -= failed.len();
        for (id, need) in failed {
            if let Need::Written { buf, .. } = &need {
                self.held_bytes -= buf.len();
            }
            Counters::add(&backend.subsystem.counters.errors, 1);
            self.fail(id, status.do_not_retry());
        }
        self.waiting_since = (self.has_waiting() || self.is_paused).then_some(backend.now);
    }

    /// Fails commands that wait on a removed namespace; `number` is the index of its queue.
    pub(in super::super) fn give_up_queue(&mut self, number: usize, backend: &mut Backend) {
        let is_for_it = |need: &Need| need.request().is_some_and(|request| request.queue == number);
        self.fail_waiting(is_for_it, Status::INVALID_NAMESPACE, backend);
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

    pub(super) fn num_parked(&self) -> usize {
        self.async_events.iter().filter(|&&event| self.protocol.is_parked(event)).count()
    }
}

/// Measures a host's progress: [`PROGRESS_BYTES`] within a time limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// Start of the debt, or time of the last progress; `None`: the host owes nothing.
    since: Option<Instant>,
    bytes: usize,
}

impl Progress {
    pub(super) const NONE: Progress = Progress { since: None, bytes: 0 };

    /// The host begins to owe bytes.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Counts `bytes` that the host has moved; returns whether they add up to progress.
    pub(super) fn advance(&mut self, now: Instant, bytes: usize) -> bool {
        self.bytes += bytes;
        let is_enough = self.bytes >= PROGRESS_BYTES && self.since.is_some();
        if is_enough {
            *self = Progress { since: Some(now), bytes: 0 };
        }
        is_enough
    }

    /// The host owes nothing more.
    pub(super) fn end(&mut self) {
        *self = Progress::NONE;
    }

    pub(super) fn is_stuck(&self, now: Instant, limit: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= limit)
    }
}

/// Totals of bytes and PDUs received on a connection since its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) awaited_bytes: u64,
    pub(super) pdus: u64,
}

/// Bytes that a host must read or send within a time limit.
const PROGRESS_BYTES: usize = 64 << 10;
