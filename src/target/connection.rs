//! One connection of a host: its socket, its protocol, and the commands that are on their way.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use zerocopy::FromBytes;

use super::admin::{self, Answer, IO_CAPSULE_DATA_BYTES, MAX_ASYNC_EVENTS};
use super::complaints::{Complaint, Who};
use super::hosts::{HostId, Hunger};
use super::io::{Backend, Kind, MAX_WAITING, MIN_WAITING, Request, Tag, status_of};
use super::peers::Peer;
use super::stats::Counters;
use super::subsystem::{Queue, Refusal};
use crate::buf::IoBuf;
use crate::nvme::sqe::fctype;
use crate::nvme::{ConnectData, Cqe, Sqe, Status};
use crate::qpair::Completion;
use crate::tcp::controller::{
    CommandId, Connection, ConnectionOptions, DataTransfer, Event, FABRICS_CAPSULE_DATA_BYTES,
};
use crate::tcp::turn::TARGET_SEND_SLICES;
use crate::tcp::{Digests, ProtocolError};

/// One connection of a host.
pub(super) struct HostConnection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    local: SocketAddr,
    /// Index and generation, which make the tags of its I/O.
    index: usize,
    generation: u32,
    protocol: Connection,
    /// The queue, once Connect has succeeded.
    queue: Option<Queue>,
    /// Checked commands for whose data there was no memory, oldest first.
    waiting: VecDeque<(CommandId, Wanted)>,
    /// Since when the first of those waits, or receiving is paused.
    hungry_since: Option<Instant>,
    /// Whether the poller knows that commands wait.
    pub(super) is_listed: bool,
    /// Whether nothing is received until there is memory.
    pub(super) is_paused: bool,
    /// Bytes of buffers that are with the device or with the host.
    held_bytes: usize,
    /// Whose queue it is, and how much it is known to hold.
    host: Option<(HostId, usize)>,
    /// Whether it counts as load of its poller.
    pub(super) is_load: bool,
    async_events: Vec<CommandId>,
    opened: Instant,
    /// When something was last received.
    last_received: Instant,
    /// Answers that the host reads.
    sending: Progress,
    /// Data that the host was asked for.
    awaited: Progress,
    /// Whether the socket is full, so that the poller waits for room.
    pub(super) is_blocked: bool,
    /// Whether the poller knows that there is something to send.
    pub(super) is_dirty: bool,
    /// Set when the protocol has failed: nothing is served any more, and then it is closed.
    terminated: Option<Instant>,
}

/// What a command waits for memory with.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// The data of an I/O command.
    Io(Request),
    /// The answer of an admin command: so many bytes.
    Answer(u32),
    /// So many bytes for an admin command, to be asked for.
    AdminData(u32),
}

impl Wanted {
    fn len_bytes(&self) -> usize {
        match self {
            Wanted::Io(request) => request.len_bytes as usize,
            Wanted::Answer(len) | Wanted::AdminData(len) => *len as usize,
        }
    }
}

/// Whether a host does its part. A byte now and then is none.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// Since when it has something to do and has not done enough; `None`: it has nothing to do.
    since: Option<Instant>,
    bytes: usize,
}

impl Progress {
    const NONE: Progress = Progress { since: None, bytes: 0 };

    /// The host has something to do.
    fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// The host has done a part of it.
    fn go_on(&mut self, now: Instant, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= PROGRESS_BYTES && self.since.is_some() {
            *self = Progress { since: Some(now), bytes: 0 };
        }
    }

    /// The host has done everything.
    fn end(&mut self) {
        *self = Progress::NONE;
    }

    fn is_stuck(&self, now: Instant, limit: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= limit)
    }
}

/// The connection is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    /// The host closed it.
    ByHost,
    /// The operating system did, for want of an answer from the host's machine or at its word.
    Lost(io::ErrorKind),
    /// The host broke the protocol, or one of its time limits passed, or it had to make room; which, in
    /// words.
    Dropped(&'static str),
    /// Its controller is gone.
    Orphaned,
    /// The target ends.
    Stopped,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Closed::ByHost => f.write_str("the host closed the connection"),
            Closed::Lost(error) => write!(f, "the connection was lost: {error}"),
            Closed::Dropped(why) => f.write_str(why),
            Closed::Orphaned => f.write_str("its controller gave way to another, or is gone"),
            Closed::Stopped => f.write_str("the target stops"),
        }
    }
}

impl HostConnection {
    pub(super) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        index: usize,
        generation: u32,
        max_transfer_bytes: u32,
        now: Instant,
    ) -> io::Result<HostConnection> {
        let digests = Digests { header: true, data: true };
        let options = ConnectionOptions { digests, max_h2c_data_bytes: max_transfer_bytes };
        Ok(HostConnection {
            local: stream.local_addr()?,
            stream,
            peer,
            index,
            generation,
            protocol: Connection::new(options),
            queue: None,
            waiting: VecDeque::new(),
            hungry_since: None,
            is_listed: false,
            is_paused: false,
            held_bytes: 0,
            host: None,
            is_load: true,
            async_events: Vec::new(),
            opened: now,
            last_received: now,
            sending: Progress::NONE,
            awaited: Progress::NONE,
            is_blocked: false,
            is_dirty: false,
            terminated: None,
        })
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether its protocol has failed.
    pub(super) fn is_terminated(&self) -> bool {
        self.terminated.is_some()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.queue.is_some()
    }

    /// Whether it is known to be an admin queue.
    pub(super) fn is_admin(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.qid == 0)
    }

    /// Tells the others what it holds now.
    pub(super) fn account(&mut self, backend: &mut Backend) {
        let holds = self.holds_bytes();
        if let Some((host, known)) = &mut self.host
            && *known != holds
        {
            backend.hosts.change(*host, *known, holds);
            *known = holds;
        }
    }

    /// It is being closed: what it holds is given back with it.
    pub(super) fn leave(&mut self, backend: &mut Backend) {
        self.forget_waiting(backend);
        if let Some((host, known)) = self.host.take() {
            backend.hosts.change(host, known, 0);
            backend.hosts.leave(host);
        }
    }

    fn forget_waiting(&mut self, backend: &mut Backend) {
        backend.num_waiting -= self.waiting.len();
        self.waiting.clear();
        self.hungry_since = None;
    }

    /// Bytes that the device or the host has.
    pub(super) fn holds_bytes(&self) -> usize {
        self.held_bytes + self.protocol.transmit().len_bytes()
    }

    pub(super) fn is_from(&self, peer: Peer) -> bool {
        Peer::from(self.peer.ip()) == peer
    }

    pub(super) fn last_received(&self) -> Instant {
        self.last_received
    }

    /// Whether commands wait for memory.
    pub(super) fn is_starved(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether what one receive may bring can be kept. If not, it stays with the kernel, and the host
    /// learns from TCP to wait.
    pub(super) fn may_receive(&self, backend: &Backend) -> bool {
        let is_io = self.queue.as_ref().is_some_and(|queue| queue.qid != 0);
        let waiting = self.waiting.len();
        let has_memory = self.held_bytes <= backend.connection_bytes
            && (!backend.subsystem.options.writable || backend.has_room_for_capsules());
        !is_io || has_memory && (waiting < MIN_WAITING || backend.num_waiting < MAX_WAITING)
    }

    /// Stops receiving, or goes on with it.
    pub(super) fn pause(&mut self, pause: bool, now: Instant) {
        self.is_paused = pause;
        if pause {
            self.hungry_since.get_or_insert(now);
        } else if self.waiting.is_empty() {
            self.hungry_since = None;
        }
    }

    /// What it has waited for since `limit` ago, if its host does its part and only what others hold
    /// is in its way.
    pub(super) fn hunger(
        &self,
        now: Instant,
        limit: Duration,
        connection_bytes: usize,
    ) -> Option<Hunger> {
        let long = |since| now.saturating_duration_since(since) >= limit;
        let len = self.waiting.front().map_or(0, |(_, wanted)| wanted.len_bytes());
        let is_hungry = self.hungry_since.is_some_and(long)
            && !self.is_stalled(now, limit)
            && self.may_hold(len, connection_bytes);
        is_hungry.then(|| Hunger { host: self.host.map(|(host, _)| host), len })
    }

    /// Whether it may hold `len` bytes beside what it does: one command's in any case.
    fn may_hold(&self, len: usize, connection_bytes: usize) -> bool {
        let holds = self.holds_bytes();
        holds == 0 || holds + len <= connection_bytes
    }

    /// Whether its host has not read answers, or sent what it was asked for, for `limit`.
    pub(super) fn is_stalled(&self, now: Instant, limit: Duration) -> bool {
        self.sending.is_stuck(now, limit) || self.awaited.is_stuck(now, limit)
    }

    /// Whether there is something to send.
    pub(super) fn wants_to_send(&self) -> bool {
        !self.protocol.transmit().is_empty()
    }

    /// Receives once, as much as there is: payload straight into its place, the rest through
    /// `scratch`; and starts what arrived.
    pub(super) fn receive(
        &mut self,
        backend: &mut Backend,
        scratch: &mut [u8],
        now: Instant,
    ) -> Result<(), Closed> {
        let payload = self.protocol.payload().unwrap_or_default();
        let payload_len = payload.len();
        let mut slices = [IoSliceMut::new(payload), IoSliceMut::new(scratch)];
        let len = match (&self.stream).read_vectored(&mut slices) {
            Ok(0) => return Err(Closed::ByHost),
            // The operating system counts what cannot be: nobody knows what came.
            Ok(len) if len > payload_len + scratch.len() => return Err(MISCOUNTED),
            Ok(len) => len,
            Err(error) if is_transient(&error) => return Ok(()),
            Err(error) => return Err(Closed::Lost(error.kind())),
        };
        if self.terminated.is_some() {
            return Ok(()); // nobody reads it: the protocol has failed
        }
        self.last_received = now;
        let awaited_before = self.protocol.awaited_bytes();
        if let Some(queue) = &self.queue {
            queue.seen(now);
        }
        let in_place = len.min(payload_len);
        if in_place > 0 {
            self.protocol.payload_received(in_place);
        }
        let mut input = &scratch[..len - in_place];
        let result = loop {
            match self.protocol.next(&mut input) {
                Ok(Some(event)) => self.handle(event, backend, now),
                Ok(None) => break Ok(()),
                Err(error) => break self.terminate(&error, backend, now),
            }
        };
        self.note_awaited(awaited_before, now);
        result
    }

    /// Notes what came of the data that the host was asked for.
    fn note_awaited(&mut self, before: u64, now: Instant) {
        self.awaited.go_on(now, (self.protocol.awaited_bytes() - before) as usize);
        if self.protocol.awaited() == 0 {
            self.awaited.end();
        }
    }

    /// The protocol has failed: says so to the host, if there is a way, and closes a little later,
    /// so that the host may read it.
    fn terminate(
        &mut self,
        error: &ProtocolError,
        backend: &mut Backend,
        now: Instant,
    ) -> Result<(), Closed> {
        let what = format_args!("ended a connection that broke the protocol: {error}");
        backend.subsystem.complaints.say(now, Complaint::Protocol, self.who(), what);
        self.say_goodbye(BROKE_PROTOCOL, now);
        self.protocol.terminate(error);
        self.terminated = Some(now);
        self.forget_waiting(backend);
        self.awaited.end();
        self.queue = None;
        if self.wants_to_send() { Ok(()) } else { Err(BROKE_PROTOCOL) }
    }

    fn handle(&mut self, event: Event, backend: &mut Backend, now: Instant) {
        match event {
            Event::Command { id, sqe, data } => match &self.queue {
                None => self.begin_connect(id, &sqe, data),
                Some(queue) if queue.qid == 0 => {
                    // Those that the host has forgotten.
                    self.async_events.retain(|&event| self.protocol.is_parked(event));
                    self.begin_admin(id, &sqe, data, backend, now);
                }
                Some(queue) if !queue.controller.is_enabled() || queue.is_orphan() => {
                    self.fail(id, Status::COMMAND_SEQUENCE_ERROR.do_not_retry());
                }
                Some(_) => self.begin_io(id, &sqe, data, backend, now),
            },
            Event::Received { id, sqe, buf } => match &self.queue {
                None => self.end_connect(id, &sqe, &buf, backend, now),
                Some(queue) if queue.qid == 0 => {
                    self.held_bytes -= buf.len();
                    self.answer(id, &sqe, 0, IoBuf::empty(), backend);
                }
                Some(_) => self.end_write(id, &sqe, buf, backend),
            },
            Event::Damaged { buf } => {
                if let Some(queue) = &self.queue {
                    self.held_bytes -= buf.len();
                    Counters::add(&backend.counters.errors, u64::from(queue.qid != 0));
                }
            }
        }
    }

    fn fail(&mut self, id: CommandId, status: Status) {
        self.protocol.finish(id, status, 0);
    }

    /// Before Connect nothing else is served, and its 1,024 bytes are the only ones accepted.
    fn begin_connect(&mut self, id: CommandId, sqe: &Sqe, data: DataTransfer) {
        const LEN: u32 = size_of::<ConnectData>() as u32;
        match data {
            _ if sqe.fctype() != Some(fctype::CONNECT) => {
                self.fail(id, Status::COMMAND_SEQUENCE_ERROR.do_not_retry());
            }
            DataTransfer::FromHost { len: LEN, in_capsule: true } => {
                self.protocol.receive(id, IoBuf::zeroed(LEN as usize));
            }
            _ => self.fail(id, Status::INVALID_SGL_LENGTH.do_not_retry()),
        }
    }

    fn end_connect(
        &mut self,
        id: CommandId,
        sqe: &Sqe,
        buf: &IoBuf,
        backend: &mut Backend,
        now: Instant,
    ) {
        let data = ConnectData::read_from_bytes(buf).expect("the buffer was made with this length");
        match backend.subsystem.connect(sqe, &data, self.peer, now) {
            Err(Refusal { status, dw0, .. }) => self.protocol.finish(id, status, u64::from(dw0)),
            Ok(queue) => {
                let capsule_data = match queue.qid {
                    0 => FABRICS_CAPSULE_DATA_BYTES,
                    _ => IO_CAPSULE_DATA_BYTES,
                };
                self.protocol.connected(queue.sqsize, capsule_data, queue.sq_flow_control);
                let mut cqe = Cqe::new(0, Status::SUCCESS);
                cqe.dw0.set(u32::from(queue.controller.cntlid));
                if !queue.sq_flow_control {
                    cqe.sqhd.set(Cqe::SQHD_NO_FLOW_CONTROL);
                }
                self.protocol.finish_with(id, cqe);
                self.host = Some((backend.hosts.enter(&queue.controller.accounted_to()), 0));
                self.queue = Some(queue);
            }
        }
    }

    fn begin_admin(
        &mut self,
        id: CommandId,
        sqe: &Sqe,
        data: DataTransfer,
        backend: &mut Backend,
        now: Instant,
    ) {
        match data {
            DataTransfer::None => self.answer(id, sqe, 0, IoBuf::empty(), backend),
            DataTransfer::ToHost(room) if room <= backend.subsystem.max_transfer_bytes => {
                self.start_or_wait(id, Wanted::Answer(room), backend, now);
            }
            // More than any answer has: refused, but for what is refused in any case.
            DataTransfer::ToHost(room) => self.answer(id, sqe, room, IoBuf::empty(), backend),
            DataTransfer::FromHost { len, .. } if len > FABRICS_CAPSULE_DATA_BYTES => {
                self.fail(id, Status::INVALID_FIELD.do_not_retry());
            }
            DataTransfer::FromHost { len, in_capsule: true } => {
                self.receive_into(id, IoBuf::zeroed(len as usize));
            }
            DataTransfer::FromHost { len, in_capsule: false } => {
                self.start_or_wait(id, Wanted::AdminData(len), backend, now);
            }
        }
    }

    /// Answers an admin command; its data, if it has any, go into `buf`, which has `room` bytes or none.
    fn answer(&mut self, id: CommandId, sqe: &Sqe, room: u32, mut buf: IoBuf, backend: &Backend) {
        let Some(queue) = &self.queue else { return };
        let controller = &queue.controller;
        let answer = admin::execute(&backend.subsystem, controller, sqe, room, self.local);
        let is_enabled = controller.is_enabled();
        match answer {
            Answer::Done(result) => self.protocol.finish(id, Status::SUCCESS, result),
            Answer::Data(data) if data.len() <= buf.len() => {
                let (filled, rest) = buf.split_at_mut(data.len());
                filled.copy_from_slice(&data);
                rest.fill(0);
                self.protocol.send_data(id, buf.freeze());
            }
            Answer::Data(_) => self.fail(id, Status::INVALID_SGL_LENGTH.do_not_retry()),
            Answer::Fail(status) => self.fail(id, status.do_not_retry()),
            Answer::Pending if self.async_events.len() < usize::from(MAX_ASYNC_EVENTS) => {
                self.protocol.park(id);
                self.async_events.push(id);
            }
            Answer::Pending => self.fail(id, Status::AER_LIMIT_EXCEEDED.do_not_retry()),
        }
        if !is_enabled {
            for id in std::mem::take(&mut self.async_events) {
                self.fail(id, Status::ABORTED_SQ_DELETED);
            }
        }
    }

    fn begin_io(
        &mut self,
        id: CommandId,
        sqe: &Sqe,
        data: DataTransfer,
        backend: &mut Backend,
        now: Instant,
    ) {
        let request = match backend.check(sqe, data) {
            Ok(request) => request,
            Err(status) => {
                Counters::add(&backend.counters.errors, 1);
                return self.fail(id, status.do_not_retry());
            }
        };
        match data {
            DataTransfer::FromHost { len, in_capsule: true } => {
                // These data have come already, so they cannot wait for memory of the pool.
                self.receive_into(id, backend.take_for_capsule(len as usize));
            }
            _ => self.start_or_wait(id, Wanted::Io(request), backend, now),
        }
    }

    /// Takes a command's data into `buf`, which is held until they are here and done with.
    fn receive_into(&mut self, id: CommandId, buf: IoBuf) {
        self.held_bytes += buf.len();
        self.protocol.receive(id, buf);
    }

    fn start_or_wait(
        &mut self,
        id: CommandId,
        wanted: Wanted,
        backend: &mut Backend,
        now: Instant,
    ) {
        if self.is_starved() || !self.start(id, &wanted, backend, now) {
            self.waiting.push_back((id, wanted));
            backend.num_waiting += 1;
            self.hungry_since.get_or_insert(now);
        }
    }

    /// Starts what moves data: a read at the device, a write with its R2T, an answer. `false`: no memory.
    fn start(
        &mut self,
        id: CommandId,
        wanted: &Wanted,
        backend: &mut Backend,
        now: Instant,
    ) -> bool {
        let len = wanted.len_bytes();
        let request = match wanted {
            Wanted::Io(request) => Some(request),
            Wanted::Answer(_) | Wanted::AdminData(_) => None,
        };
        if let Some(request) = request
            && request.kind == Kind::Flush
        {
            backend.push(request, IoBuf::empty(), self.tag(id, Kind::Flush));
            return true;
        }
        if !self.may_hold(len, backend.connection_bytes) {
            return false;
        }
        if let Some(request) = request
            && request.kind == Kind::Read
            && let Some(bytes) = backend.lend(request)
        {
            self.protocol.send_data(id, bytes);
            return true;
        }
        self.account(backend);
        let free_bytes = backend.pool.free_bytes();
        let host = self.host.map(|(host, _)| host);
        if !backend.hosts.may_take(&Hunger { host, len }, free_bytes) {
            return false;
        }
        let Some(buf) = backend.pool.take(len) else { return false };
        match wanted {
            Wanted::Io(request) if request.kind == Kind::Read => {
                self.held_bytes += len;
                backend.push(request, buf, self.tag(id, Kind::Read));
            }
            Wanted::Io(_) | Wanted::AdminData(_) => {
                self.awaited.begin(now);
                self.receive_into(id, buf);
            }
            Wanted::Answer(room) => {
                let sqe = *self.protocol.sqe(id);
                self.answer(id, &sqe, *room, buf, backend);
            }
        }
        true
    }

    /// Starts commands that waited for memory, as far as it suffices; whether any was started.
    pub(super) fn start_waiting(&mut self, backend: &mut Backend, now: Instant) -> bool {
        let before = self.waiting.len();
        while let Some((id, wanted)) = self.waiting.pop_front() {
            if !self.start(id, &wanted, backend, now) {
                self.waiting.push_front((id, wanted));
                break;
            }
        }
        let started = before - self.waiting.len();
        backend.num_waiting -= started;
        if started > 0 {
            self.hungry_since = (self.is_starved() || self.is_paused).then_some(now);
        }
        started > 0
    }

    /// The data of a write are all here.
    fn end_write(&mut self, id: CommandId, sqe: &Sqe, buf: IoBuf, backend: &mut Backend) {
        let (len, in_capsule) = (buf.len() as u32, true);
        // Checked before its data were asked for; what it names may have changed meanwhile.
        match backend.check(sqe, DataTransfer::FromHost { len, in_capsule }) {
            Ok(request) => backend.push(&request, buf, self.tag(id, request.kind)),
            Err(status) => {
                self.held_bytes -= buf.len();
                Counters::add(&backend.counters.errors, 1);
                self.fail(id, status.do_not_retry());
            }
        }
    }

    fn tag(&self, id: CommandId, kind: Kind) -> Tag {
        Tag { connection: self.index, generation: self.generation, id, kind }
    }

    /// The device has ended an I/O of this connection.
    pub(super) fn complete(
        &mut self,
        queue: usize,
        tag: Tag,
        completion: Completion,
        backend: &mut Backend,
    ) {
        let len = completion.buf.len();
        self.held_bytes -= len;
        if self.terminated.is_some() {
            return;
        }
        match (completion.result, tag.kind) {
            (Err(error), kind) => {
                Counters::add(&backend.counters.errors, 1);
                self.fail(tag.id, status_of(&error, kind));
            }
            (Ok(()), Kind::Read) => {
                backend.tally.reads += 1;
                backend.tally.read_bytes += len as u64;
                self.protocol.send_data(tag.id, completion.buf.freeze());
            }
            (Ok(()), Kind::DurableWrite) => {
                let request =
                    Request { kind: Kind::Flush, queue, slba: Default::default(), len_bytes: 0 };
                backend.tally.writes += 1;
                backend.tally.written_bytes += len as u64;
                backend.push(&request, IoBuf::empty(), self.tag(tag.id, Kind::Flush));
            }
            (Ok(()), Kind::Write) => {
                backend.tally.writes += 1;
                backend.tally.written_bytes += len as u64;
                self.protocol.finish(tag.id, Status::SUCCESS, 0);
            }
            (Ok(()), Kind::Flush) => self.protocol.finish(tag.id, Status::SUCCESS, 0),
        }
    }

    /// Sends as much as the socket takes, gathered from headers and I/O buffers.
    pub(super) fn send(&mut self, now: Instant) -> Result<(), Closed> {
        self.is_blocked = false;
        if self.wants_to_send() {
            self.sending.begin(now);
        }
        while self.wants_to_send() {
            let mut slices = [IoSlice::new(&[]); TARGET_SEND_SLICES];
            let num_slices = self.protocol.gather(&mut slices);
            // A host that is gone must be an error here, never a SIGPIPE.
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let mut control = SendAncillaryBuffer::default();
            let asked: usize = slices[..num_slices].iter().map(|slice| slice.len()).sum();
            match sendmsg(&self.stream, &slices[..num_slices], &mut control, flags) {
                Ok(len) if len > asked => return Err(MISCOUNTED),
                Ok(len) => {
                    self.protocol.sent(len);
                    self.sending.go_on(now, len);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    self.is_blocked = true;
                    return Ok(());
                }
                Err(errno) => return Err(Closed::Lost(io::Error::from(errno).kind())),
            }
        }
        self.sending.end();
        Ok(())
    }

    /// What time asks for: an orphan, a silent host, a slow Connect, answers that nobody reads, data
    /// that nobody sends.
    pub(super) fn check_time(&mut self, backend: &Backend, now: Instant) -> Result<(), Closed> {
        self.protocol.shrink();
        let options = &backend.subsystem.options;
        let passed =
            |since: Instant, limit: Duration| now.saturating_duration_since(since) >= limit;
        let late = match (&self.terminated, &self.queue) {
            (Some(since), _) => passed(*since, LINGER).then_some(BROKE_PROTOCOL),
            (None, None) => passed(self.opened, options.connect_timeout).then_some(NO_CONNECT),
            (None, Some(queue)) if queue.is_orphan() => Some(Closed::Orphaned),
            (None, Some(queue)) => {
                let is_silent = queue.keep_alive_deadline().is_some_and(|at| now >= at);
                (queue.qid == 0 && is_silent).then_some(NO_KEEP_ALIVE)
            }
        };
        let stalled = self.is_stalled(now, options.send_timeout).then_some(STALLED);
        late.or(stalled).map_or(Ok(()), Err)
    }

    /// Who it is.
    pub(super) fn who(&self) -> Who<'_> {
        let host = self.queue.as_ref().map(|queue| &queue.controller.hostnqn);
        Who { peer: Some(self.peer), host }
    }

    /// Tells the access log that a host's admin queue, and so its controller, ends; other connections
    /// end without a word, but in the log for those who develop it.
    pub(super) fn say_goodbye(&self, closed: Closed, now: Instant) {
        let Some(queue) = self.queue.as_ref().filter(|queue| queue.qid == 0) else {
            return tracing::debug!(peer = %self.peer, "connection closed: {closed}");
        };
        let (host, cntlid) = (queue.controller.hostnqn.as_str(), queue.controller.cntlid);
        let seconds = now.saturating_duration_since(self.opened).as_secs();
        tracing::info!(peer = %self.peer, host, cntlid, seconds, "disconnected: {closed}");
    }
}

/// Whether a failed call may simply be tried again.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// What a host has to read or to send in time.
const PROGRESS_BYTES: usize = 64 << 10;
/// How long a connection that broke the protocol stays open, so that the host can read why.
const LINGER: Duration = Duration::from_secs(1);
const BROKE_PROTOCOL: Closed = Closed::Dropped("it broke the protocol");
const MISCOUNTED: Closed = Closed::Dropped("the operating system counted bytes that cannot be");
const NO_CONNECT: Closed = Closed::Dropped("it had connected to no queue in time");
const NO_KEEP_ALIVE: Closed = Closed::Dropped("nothing came for twice its keep alive time-out");
const STALLED: Closed = Closed::Dropped("it did not read its answers, or send data, in time");
