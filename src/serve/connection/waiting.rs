//! Commands of a connection that wait to begin: for memory, for the rate limits, or for their turn beside other hosts.
//!
//! A command that arrives begins at once if nothing is in its way and none waits before it
//! ([`HostConnection::start_or_wait`]). Otherwise it waits in a line of [`Waiting`], until the poller gives the line a
//! turn ([`HostConnection::start_first`]). A waiting command fails if its namespace is removed; a read also fails
//! if it waits too long.

use std::collections::VecDeque;
use std::time::Duration;

use super::{CommandId, HostConnection, has_passed};
use crate::hosts::{HostId, MemoryRequest};
use crate::io::{Backend, Kind, Request};
use crate::shares::{Blocked, Flow, Turns};
use crate::sharing::cost_of;
use crate::stats::Counters;
use dlfs_base::buf::IoBuf;
use dlfs_nvme::nvme::Status;

/// Checked commands that wait to begin.
///
/// A connection has two lines: line 0 for reads, flushes and admin commands, line 1 for writes. So a rate limit on
/// one kind does not delay the other. Within a line, commands that have begun go first, then the others in order of
/// arrival.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    lines: [VecDeque<(CommandId, Need)>; 2],
    /// For each line, true while the poller's turns list it.
    pub(super) is_listed: [bool; 2],
}

/// A command that is to begin, by what it needs for that.
#[derive(Debug)]
pub(super) enum Need {
    /// Memory for the data of an I/O command, and a turn.
    Io(Request),
    /// A turn for a write whose data have arrived. `is_charged`: rate limits were charged when its data were requested.
    Written { request: Request, buf: IoBuf, is_charged: bool },
    /// Memory for the response data of an admin command: this many bytes.
    Answer(u32),
    /// Memory for data of an admin command, which the host has yet to send: this many bytes.
    AdminData(u32),
}

impl Need {
    /// The I/O request; `None` for an admin command.
    fn request(&self) -> Option<&Request> {
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

    fn line(&self) -> usize {
        let kind = self.request().map(|request| request.kind);
        usize::from(matches!(kind, Some(Kind::Write | Kind::DurableWrite)))
    }

    /// Returns whether the rate limits were charged already: the command has begun.
    fn is_charged(&self) -> bool {
        match self {
            Need::Io(request) => request.is_rest,
            Need::Written { is_charged, .. } => *is_charged,
            Need::Answer(_) | Need::AdminData(_) => false,
        }
    }

    /// The I/O request if rate limits apply to it and were not charged yet.
    fn uncharged(&self) -> Option<Request> {
        let request = self.request().filter(|request| request.kind != Kind::Flush);
        request.filter(|_| !self.is_charged()).copied()
    }
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.iter().all(VecDeque::is_empty)
    }

    pub(super) fn len(&self) -> usize {
        self.lines.iter().map(VecDeque::len).sum()
    }

    /// The position of one more command in its line. Commands that have begun (rests of long reads, and writes whose
    /// data hold memory) go before those that have not: otherwise each would wait for the whole line again.
    fn position(&self, need: &Need) -> usize {
        let line = &self.lines[need.line()];
        let charged = line.iter().take_while(|(_, need)| need.is_charged());
        if need.is_charged() { charged.count() } else { line.len() }
    }

    /// Removes and returns the commands that `which` selects.
    fn extract(&mut self, which: impl Fn(&Need) -> bool) -> Vec<(CommandId, Need)> {
        let mut extracted = Vec::new();
        for line in &mut self.lines {
            let all = std::mem::take(line).into_iter();
            let (those, others): (Vec<_>, Vec<_>) = all.partition(|(_, need)| which(need));
            *line = others.into();
            extracted.extend(those);
        }
        extracted
    }

    /// Frees memory left behind by a burst of commands.
    pub(super) fn shrink(&mut self) {
        self.lines.iter_mut().filter(|line| line.is_empty()).for_each(VecDeque::shrink_to_fit);
    }
}

impl HostConnection {
    /// Returns whether commands wait.
    pub(in super::super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Forgets the waiting commands, which get no response.
    pub(super) fn forget_waiting(&mut self, backend: &mut Backend) {
        backend.num_waiting -= self.waiting.len();
        self.waiting.lines = Default::default();
        self.waiting_since = None;
    }

    pub(super) fn host_id(&self) -> Option<HostId> {
        self.host.map(|(host, _)| host)
    }

    /// A line of the connection as a flow of the poller's turns. In flows, hosts count from 1; all connections without
    /// a Connect are host 0. Namespaces and connections have two numbers each, one for each line.
    fn flow(&self, line: usize, namespace: usize) -> Flow {
        let host = self.host_id().map_or(0, |host| host.0 + 1);
        let connection = Flow::connection_of(self.index, line);
        Flow { host, namespace: 2 * namespace + line, connection }
    }

    /// The connection as a flow of the turns for sending.
    pub(in super::super) fn sending_flow(&self) -> Flow {
        self.flow(0, self.namespace)
    }

    /// The namespace of the line's first command, as flows number it; `None`: the line is empty.
    pub(in super::super) fn next_namespace(&self, line: usize) -> Option<usize> {
        let (_, need) = self.waiting.lines[line].front()?;
        let namespace = need.request().map_or(self.namespace, |request| request.queue);
        Some(2 * namespace + line)
    }

    /// Enters those lines into the poller's turns that have commands and are not listed yet.
    pub(in super::super) fn list_waiting(&mut self, starts: &mut Turns) {
        for line in 0..self.waiting.lines.len() {
            if let Some(namespace) = self.next_namespace(line)
                && !std::mem::replace(&mut self.waiting.is_listed[line], true)
            {
                starts.enter(Flow { namespace, ..self.flow(line, 0) });
            }
        }
    }

    /// The memory that the connection has waited for during `limit` or longer; `len` is 0 if only receiving is paused.
    /// `None`: it has not waited so long, its host makes no progress, or its own limit, rather than other hosts,
    /// keeps it waiting.
    pub(in super::super) fn memory_wait(
        &self,
        backend: &Backend,
        limit: Duration,
    ) -> Option<MemoryRequest> {
        let long = |since| has_passed(backend.now, since, limit);
        let first = self.waiting.lines.iter().filter_map(VecDeque::front);
        let len = first.map(|(_, need)| need.len_bytes()).max().unwrap_or(0);
        let is_long = self.waiting_since.is_some_and(long)
            && !self.is_stalled(backend.now, limit)
            && self.may_hold(len, backend.connection_bytes);
        is_long.then(|| MemoryRequest { host: self.host_id(), len })
    }

    /// Returns whether the connection may hold `len` more bytes. One command is always allowed.
    fn may_hold(&self, len: usize, connection_bytes: usize) -> bool {
        let holds = self.holds_bytes();
        holds == 0 || holds + len <= connection_bytes
    }

    /// Begins a command that has arrived, or lets it wait.
    pub(super) fn start_or_wait(&mut self, id: CommandId, need: Need, backend: &mut Backend) {
        let line = need.line();
        let position = self.waiting.position(&need);
        let mut waits = Some(need);
        if position == 0
            && let Some(need) = waits.take()
        {
            let request = need.request().copied();
            match (self.begin(id, need, backend), request) {
                (Ok(cost), Some(request)) if backend.sharing.is_mixed => {
                    let flow = self.flow(line, request.queue);
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

    /// Queues a command in its line.
    pub(super) fn wait(&mut self, id: CommandId, need: Need, backend: &mut Backend) {
        let position = self.waiting.position(&need);
        self.waiting.lines[need.line()].insert(position, (id, need));
        backend.num_waiting += 1;
        self.waiting_since.get_or_insert(backend.now);
    }

    /// Begins the first command of a line, whose turn it is; returns the cost of the turn. `None`: the line is empty.
    /// `Err`: the command cannot begin now, and neither can the [`Blocked`] flows.
    pub(in super::super) fn start_first(
        &mut self,
        line: usize,
        backend: &mut Backend,
    ) -> Option<Result<u64, Blocked>> {
        if self.terminated.is_some() {
            self.forget_waiting(backend); // a failed authentication has ended the service
        }
        let Some((id, need)) = self.waiting.lines[line].pop_front() else {
            self.waiting.is_listed[line] = false;
            return None;
        };
        Some(match self.begin(id, need, backend) {
            Ok(cost) => {
                backend.num_waiting -= 1;
                self.waiting_since = (self.has_waiting() || self.is_paused).then_some(backend.now);
                self.waiting.is_listed[line] = !self.waiting.lines[line].is_empty();
                Ok(cost)
            }
            Err((need, blocked)) => {
                self.waiting.lines[line].push_front((id, need));
                Err(blocked)
            }
        })
    }

    /// Begins a command, or a piece of a long read, if rate limits, the device's turns and memory permit it; returns
    /// its cost. `Err` returns the command, and the flows that cannot begin either.
    fn begin(
        &mut self,
        id: CommandId,
        need: Need,
        backend: &mut Backend,
    ) -> Result<u64, (Need, Blocked)> {
        let uncharged = self.host_id().zip(need.uncharged());
        let piece = need.request().map(|request| backend.piece_of(request));
        let uses_device = match &need {
            Need::Io(request) => request.kind == Kind::Read,
            Need::Written { .. } => true,
            Need::Answer(_) | Need::AdminData(_) => false,
        };
        let is_paced = uncharged.is_some() || matches!(need, Need::Io(_));
        let host = self.host_id().filter(|_| is_paced);
        let may_begin = uncharged
            .is_none_or(|(host, request)| backend.is_within_limits(host, &request))
            && piece
                .filter(|_| uses_device)
                .is_none_or(|piece| backend.has_room_at_device(&piece, host));
        if !may_begin {
            self.waiting_since = Some(backend.now); // the command does not wait for memory
            return Err((need, Blocked::Namespace));
        }
        if let Some(piece) = piece {
            self.namespace = piece.queue;
        }
        if let Err(waits) = self.start(id, need, backend) {
            // The command waits for memory alone.
            if let Some((host, piece)) = host.zip(piece) {
                backend.note_no_wait(host, piece.queue, piece.kind != Kind::Read);
            }
            return Err(waits);
        }
        if let Some((host, request)) = uncharged {
            backend.charge(host, &request);
        }
        Ok(cost_of(piece.map_or(0, |piece| piece.len_bytes as usize)))
    }

    /// Starts the data transfer of a read, a piece of one, a write (R2T) or an admin command; submits a flush, or a
    /// write whose data have arrived. `Err`: there is no memory; returns the command, and the flows that wait with it.
    fn start(
        &mut self,
        id: CommandId,
        need: Need,
        backend: &mut Backend,
    ) -> Result<(), (Need, Blocked)> {
        let piece = need.request().map(|request| backend.piece_of(request));
        let len = piece.map_or_else(|| need.len_bytes(), |piece| piece.len_bytes as usize);
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
                if let Some(bytes) = backend.borrow(&backend.piece_of(&request)) {
                    self.send_read(id, request.queue, bytes, backend);
                    return Ok(());
                }
            }
            _ => {}
        }
        self.account(backend);
        let free_bytes = backend.pool.free_bytes();
        let host = self.host_id();
        if !backend.hosts.may_take(&MemoryRequest { host, len }, free_bytes) {
            // While hosts take turns, all connections of one host need about as much memory: they are not tried one by
            // one.
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

    /// Fails the waiting reads if the connection has waited for memory longer than the options allow, so that the host
    /// reads elsewhere.
    pub(in super::super) fn give_up_waiting(&mut self, backend: &mut Backend) {
        let Some(limit) = backend.subsystem.options.max_memory_wait else { return };
        let is_long = |since| has_passed(backend.now, since, limit);
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

    /// Fails the waiting commands of a removed namespace; `number` is the index of its queue.
    pub(in super::super) fn give_up_queue(&mut self, number: usize, backend: &mut Backend) {
        let is_for_it = |need: &Need| need.request().is_some_and(|request| request.queue == number);
        self.fail_waiting(is_for_it, Status::INVALID_NAMESPACE, backend);
    }
}
