//! Commands that wait to begin: for memory, for a limit, or for their turn beside other hosts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::hosts::{HostId, MemoryWait};
use super::super::io::{Backend, Kind, Request};
use super::super::shares::{Flow, Others, Turns};
use super::super::sharing::cost_of;
use super::{CommandId, HostConnection};
use dlfs_base::buf::IoBuf;

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

    fn is_charged(&self) -> bool {
        matches!(self, Need::Written { is_charged: true, .. })
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

    /// The place of one more command in its lane. Writes that limits have let begin, and whose data hold memory, go
    /// before those that have not begun: else each would wait twice for all of them.
    fn place(&self, need: &Need) -> usize {
        let lane = &self.lanes[need.lane()];
        let charged = lane.iter().take_while(|(_, need)| need.is_charged());
        if need.is_charged() { charged.count() } else { lane.len() }
    }

    pub(super) fn clear(&mut self) {
        self.lanes.iter_mut().for_each(VecDeque::clear);
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
        self.waiting.clear();
        self.waiting_since = None;
    }

    pub(super) fn host_id(&self) -> Option<HostId> {
        self.host.map(|(host, _)| host)
    }

    /// The connection among those that wait for turns. Hosts count from 1; connections before their Connect
    /// together are one host.
    fn flow(&self, lane: usize, space: usize) -> Flow {
        let host = self.host_id().map_or(0, |host| host.0 + 1);
        Flow { host, space: 2 * space + lane, connection: 2 * self.index + lane }
    }

    /// The connection among those that send.
    pub(in super::super) fn sending_flow(&self) -> Flow {
        self.flow(0, self.space)
    }

    /// The namespace, in flows, of the lane's next command.
    pub(in super::super) fn next_space(&self, lane: usize) -> Option<usize> {
        let (_, need) = self.waiting.lanes[lane].front()?;
        let space = need.request().map_or(self.space, |request| request.queue);
        Some(2 * space + lane)
    }

    /// Lists lanes whose commands have begun to wait.
    pub(in super::super) fn list_waiting(&mut self, starts: &mut Turns) {
        for lane in 0..self.waiting.lanes.len() {
            if let Some(space) = self.next_space(lane)
                && !std::mem::replace(&mut self.waiting.is_listed[lane], true)
            {
                starts.enter(Flow { space, ..self.flow(lane, 0) });
            }
        }
    }

    /// The memory that the connection has waited for during `limit` or longer. `None` if its host makes no
    /// progress, or if its own limit, rather than other hosts, keeps it waiting.
    pub(in super::super) fn memory_wait(
        &self,
        now: Instant,
        limit: Duration,
        connection_bytes: usize,
    ) -> Option<MemoryWait> {
        let long = |since| now.saturating_duration_since(since) >= limit;
        let first = self.waiting.lanes.iter().filter_map(VecDeque::front);
        let len = first.map(|(_, need)| need.len_bytes()).max().unwrap_or(0);
        let is_long = self.waiting_since.is_some_and(long)
            && !self.is_stalled(now, limit)
            && self.may_hold(len, connection_bytes);
        is_long.then(|| MemoryWait { host: self.host_id(), len })
    }

    /// Returns whether the connection may hold `len` more bytes. One command is always allowed.
    fn may_hold(&self, len: usize, connection_bytes: usize) -> bool {
        let holds = self.holds_bytes();
        holds == 0 || holds + len <= connection_bytes
    }

    pub(super) fn start_or_wait(
        &mut self,
        id: CommandId,
        need: Need,
        backend: &mut Backend,
        now: Instant,
    ) {
        let lane = need.lane();
        let place = self.waiting.place(&need);
        let mut waits = Some(need);
        if place == 0
            && let Some(need) = waits.take()
        {
            let request = need.request().copied();
            waits = self.begin(id, need, backend, now).err().map(|(need, _)| need);
            if let Some(request) = request.filter(|_| waits.is_none() && backend.sharing.is_mixed) {
                let flow = self.flow(lane, request.queue);
                backend.sharing.starts.charge(flow, cost_of(request.len_bytes as usize));
            }
        }
        if let Some(need) = waits {
            self.waiting.lanes[lane].insert(place, (id, need));
            backend.num_waiting += 1;
            self.waiting_since.get_or_insert(now);
        }
    }

    /// Starts the first waiting command of a lane whose turn it is; returns the cost. `None`: no command
    /// waits. If the command goes on waiting, so do `Others`.
    pub(in super::super) fn start_first(
        &mut self,
        lane: usize,
        backend: &mut Backend,
        now: Instant,
    ) -> Option<Result<u64, Others>> {
        let Some((id, need)) = self.waiting.lanes[lane].pop_front() else {
            self.waiting.is_listed[lane] = false;
            return None;
        };
        let len = need.request().map_or(0, |request| request.len_bytes as usize);
        Some(match self.begin(id, need, backend, now) {
            Ok(()) => {
                backend.num_waiting -= 1;
                self.waiting_since = (self.has_waiting() || self.is_paused).then_some(now);
                self.waiting.is_listed[lane] = !self.waiting.lanes[lane].is_empty();
                Ok(cost_of(len))
            }
            Err((need, others)) => {
                self.waiting.lanes[lane].push_front((id, need));
                Err(others)
            }
        })
    }

    /// Begins a command whose limits, turn and memory permit it.
    fn begin(
        &mut self,
        id: CommandId,
        need: Need,
        backend: &mut Backend,
        now: Instant,
    ) -> Result<(), (Need, Others)> {
        let limited = self.host_id().zip(need.limited());
        let uses_device = match &need {
            Need::Io(request) => request.kind == Kind::Read,
            Need::Written { .. } => true,
            Need::Answer(_) | Need::AdminData(_) => false,
        };
        let gate = need.request().filter(|_| uses_device);
        let host = limited.map(|(host, _)| host);
        let may_begin = limited
            .is_none_or(|(host, request)| backend.is_within_limits(host, &request, now))
            && gate.is_none_or(|request| backend.has_room_at_device(request, host, now));
        if !may_begin {
            self.waiting_since = Some(now); // it does not wait for memory
            return Err((need, Others::Space));
        }
        if let Some(request) = need.request() {
            self.space = request.queue;
        }
        if let Err(need) = self.start(id, need, backend, now) {
            // It waits for memory.
            if let Some((host, request)) = limited {
                backend.note_no_wait(host, request.queue, request.kind != Kind::Read);
            }
            return Err((need, Others::Connection));
        }
        if let Some((host, request)) = limited {
            backend.charge(host, &request, now);
        }
        Ok(())
    }

    /// Starts the data transfer of a read, of a write (R2T) or of an admin command, or submits a write.
    /// Returns the command if there is no memory.
    fn start(
        &mut self,
        id: CommandId,
        need: Need,
        backend: &mut Backend,
        now: Instant,
    ) -> Result<(), Need> {
        let len = need.len_bytes();
        match need {
            Need::Io(request) if request.kind == Kind::Flush => {
                backend.push(&request, IoBuf::empty(), self.tag(id, Kind::Flush));
                return Ok(());
            }
            Need::Written { request, buf, .. } => {
                backend.push(&request, buf, self.tag(id, request.kind));
                return Ok(());
            }
            _ if !self.may_hold(len, backend.connection_bytes) => return Err(need),
            Need::Io(request) if request.kind == Kind::Read && !request.forces_unit_access => {
                if let Some(bytes) = backend.borrow(&request) {
                    backend.count(self.host_id(), false, bytes.len());
                    self.note_end(id, backend);
                    self.protocol.send_data(id, bytes);
                    return Ok(());
                }
            }
            _ => {}
        }
        self.account(backend);
        let free_bytes = backend.pool.free_bytes();
        let host = self.host_id();
        if !backend.hosts.may_take(&MemoryWait { host, len }, free_bytes) {
            return Err(need);
        }
        let Some(buf) = backend.pool.take(len) else { return Err(need) };
        match need {
            Need::Io(request) if request.kind == Kind::Read => {
                self.held_bytes += len;
                backend.push(&request, buf, self.tag(id, Kind::Read));
            }
            Need::Io(_) | Need::Written { .. } | Need::AdminData(_) => {
                self.awaited.begin(now);
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
