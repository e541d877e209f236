//! Commands of a connection: each begins when it arrives, may receive data, and ends with a response.
//!
//! Read [`HostConnection::handle`] first. Commands that cannot begin at once wait: see `waiting.rs`.

use zerocopy::FromBytes as _;

use super::HostConnection;
use super::authentication::is_authentication;
use super::waiting::Need;
use crate::access_log::Refusal;
use crate::admin::{self, Answer, IO_CAPSULE_DATA_BYTES, MAX_ASYNC_EVENTS};
use crate::io::{Backend, Kind, Request, Tag, status_of};
use crate::stats::{Commands, Counters};
use dlfs_base::buf::{IoBuf, SharedBuf};
use dlfs_io::qpair::Completion;
use dlfs_nvme::auth::Concatenation;
use dlfs_nvme::nvme::fabrics::{CONNECT_ASCR, CONNECT_ATR};
use dlfs_nvme::nvme::sqe::fctype;
use dlfs_nvme::nvme::{ConnectData, Cqe, Sgl, Sqe, Status};
use dlfs_nvme::tcp::controller::{CommandId, DataTransfer, Event, FABRICS_CAPSULE_DATA_BYTES};

impl HostConnection {
    /// Handles an event of the protocol: a command has arrived, or all of its data, or damaged data.
    pub(super) fn handle(&mut self, event: Event, backend: &mut Backend) {
        if let Event::Command { sqe, .. } = &event {
            let is_io = self.queue.as_ref().is_some_and(|queue| queue.qid != 0);
            backend.tally.commands[Commands::kind(sqe, is_io)] += 1;
            self.traffic.commands += u64::from(is_io);
        }
        match event {
            Event::Command { id, sqe, data } => match &self.queue {
                None => self.begin_connect(id, &sqe, data),
                Some(queue) if queue.must_authenticate && is_authentication(&sqe) => {
                    self.begin_authentication(id, &sqe, data, backend);
                }
                Some(_) if !self.is_authenticated => {
                    self.fail(id, Status::AUTHENTICATION_REQUIRED.do_not_retry());
                }
                Some(queue) if queue.qid == 0 => {
                    // Drops the requests whose commands the protocol no longer knows.
                    self.async_events.retain(|&event| self.protocol.is_parked(event));
                    self.begin_admin(id, &sqe, data, backend);
                }
                // Sends no response: the controller is gone, so this connection closes at the next check of time
                // limits, and the host repeats the command on a new connection. An error response would end the
                // command.
                Some(queue) if queue.is_orphan() => {}
                Some(queue) if !queue.controller.is_enabled() => {
                    self.fail(id, Status::COMMAND_SEQUENCE_ERROR.do_not_retry());
                }
                Some(_) => self.begin_io(id, &sqe, data, backend),
            },
            Event::Received { id, sqe, buf } => match &self.queue {
                None => self.end_connect(id, &sqe, &buf, backend),
                Some(_) if is_authentication(&sqe) => {
                    self.held_bytes -= buf.len();
                    self.end_authentication_send(id, &buf, backend);
                }
                Some(queue) if queue.qid == 0 => {
                    self.held_bytes -= buf.len();
                    self.answer(id, &sqe, 0, IoBuf::empty(), backend);
                }
                Some(_) => self.end_write(id, &sqe, buf, backend),
            },
            Event::Damaged { buf } => {
                if let Some(queue) = &self.queue {
                    self.held_bytes -= buf.len();
                    Counters::add(&backend.subsystem.counters.errors, u64::from(queue.qid != 0));
                }
            }
        }
    }

    /// Completes a command with an error.
    pub(super) fn fail(&mut self, id: CommandId, status: Status) {
        // A host that has disabled this status gets another failure: zeros would be wrong samples.
        let status = match &self.queue {
            Some(queue)
                if status.is(Status::UNWRITTEN_BLOCK) && queue.controller.hides_unwritten() =>
            {
                Status::UNRECOVERED_READ_ERROR.do_not_retry()
            }
            _ => status,
        };
        self.protocol.finish(id, status, 0);
    }

    /// Starts a Connect, the only command before the queue exists. Its data must be 1,024 bytes in the capsule.
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

    /// Executes a Connect whose data has arrived; if it succeeds, this connection becomes its queue.
    fn end_connect(&mut self, id: CommandId, sqe: &Sqe, buf: &IoBuf, backend: &mut Backend) {
        let data = ConnectData::read_from_bytes(buf).expect("the buffer was made with this length");
        match backend.subsystem.connect(sqe, &data, self.peer, self.tls_identity(), backend.now) {
            Err(Refusal { status, dw0, .. }) => self.protocol.finish(id, status, u64::from(dw0)),
            Ok(queue) => {
                let capsule_data = match queue.qid {
                    0 => FABRICS_CAPSULE_DATA_BYTES,
                    _ => IO_CAPSULE_DATA_BYTES,
                };
                self.protocol.connected(queue.sqsize, capsule_data, queue.sq_flow_control);
                let mut cqe = Cqe::new(0, Status::SUCCESS);
                let mut required = if queue.must_authenticate { CONNECT_ATR } else { 0 };
                if queue.concatenation == Concatenation::Required {
                    required |= CONNECT_ASCR;
                }
                cqe.dw0.set(u32::from(queue.controller.cntlid) | required);
                if !queue.sq_flow_control {
                    cqe.sqhd.set(Cqe::SQHD_NO_FLOW_CONTROL);
                }
                self.protocol.finish_with(id, cqe);
                let nqn = queue.controller.accounted_to();
                let host = backend.hosts.enter(&nqn);
                backend.sharing.enter(host, &nqn);
                self.host = Some((host, 0));
                self.is_authenticated = !queue.must_authenticate;
                self.queue = Some(queue);
            }
        }
    }

    fn begin_admin(&mut self, id: CommandId, sqe: &Sqe, data: DataTransfer, backend: &mut Backend) {
        match data {
            DataTransfer::None => self.answer(id, sqe, 0, IoBuf::empty(), backend),
            DataTransfer::ToHost(room) if room <= backend.subsystem.max_transfer_bytes => {
                self.start_or_wait(id, Need::Answer(room), backend);
            }
            // A buffer larger than MDTS gets no memory, so that a response with data fails.
            DataTransfer::ToHost(room) => self.answer(id, sqe, room, IoBuf::empty(), backend),
            DataTransfer::FromHost { len, .. } if len > FABRICS_CAPSULE_DATA_BYTES => {
                self.fail(id, Status::INVALID_FIELD.do_not_retry());
            }
            DataTransfer::FromHost { len, in_capsule: true } => {
                self.receive_into(id, IoBuf::zeroed(len as usize));
            }
            DataTransfer::FromHost { len, in_capsule: false } => {
                self.start_or_wait(id, Need::AdminData(len), backend);
            }
        }
    }

    /// Executes an admin command and sends its response. `buf` takes the response's data: it has `room` bytes, or is
    /// empty if the command transfers no data to the host, or more than MDTS.
    pub(super) fn answer(
        &mut self,
        id: CommandId,
        sqe: &Sqe,
        room: u32,
        mut buf: IoBuf,
        backend: &Backend,
    ) {
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
                self.report_events();
            }
            Answer::Pending => self.fail(id, Status::AER_LIMIT_EXCEEDED.do_not_retry()),
        }
        if !is_enabled {
            for id in std::mem::take(&mut self.async_events) {
                self.fail(id, Status::ABORTED_SQ_DELETED);
            }
        }
    }

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

    /// Asynchronous Event Requests that the protocol still knows.
    pub(super) fn num_parked(&self) -> usize {
        self.async_events.iter().filter(|&&event| self.protocol.is_parked(event)).count()
    }

    /// Starts an I/O command: checks it, then begins it or lets it wait.
    fn begin_io(&mut self, id: CommandId, sqe: &Sqe, data: DataTransfer, backend: &mut Backend) {
        let Some(queue) = &self.queue else { return };
        if let Some(status) = backend.subsystem.refusal_of(&queue.controller) {
            Counters::add(&backend.subsystem.counters.errors, 1);
            return self.fail(id, status);
        }
        let request = match backend.check(sqe, data, &queue.controller.access) {
            Ok(request) => request,
            Err(status) => {
                Counters::add(&backend.subsystem.counters.errors, 1);
                return self.fail(id, status.do_not_retry());
            }
        };
        if let Some(host) = self.host_id() {
            backend.sharing.note(host, backend.now);
        }
        self.arrivals.set(id, request.kind.recorder(), backend.now);
        match data {
            DataTransfer::FromHost { len, in_capsule: true } => {
                // These data have arrived already, so they cannot wait for the pool.
                self.receive_into(id, backend.take_for_capsule(len as usize));
            }
            _ => self.start_or_wait(id, Need::Io(request), backend),
        }
    }

    /// Receives a command's data into `buf`, and counts `buf` as held.
    pub(super) fn receive_into(&mut self, id: CommandId, buf: IoBuf) {
        self.held_bytes += buf.len();
        self.protocol.receive(id, buf);
    }

    /// Starts the device I/O of a write whose data have all arrived, once it is the write's turn.
    fn end_write(&mut self, id: CommandId, sqe: &Sqe, buf: IoBuf, backend: &mut Backend) {
        let len = buf.len() as u32;
        let in_capsule = true;
        // Repeats the check made before the data were requested: the namespace may have changed since.
        let Some(queue) = &self.queue else { return };
        let data = DataTransfer::FromHost { len, in_capsule };
        match backend.check(sqe, data, &queue.controller.access) {
            Ok(request) => {
                // Rate limits are charged before data are requested from the host; in-capsule data are not requested.
                let is_charged = sqe.sgl.identifier != Sgl::IN_CAPSULE;
                self.start_or_wait(id, Need::Written { request, buf, is_charged }, backend);
            }
            Err(status) => {
                self.held_bytes -= buf.len();
                Counters::add(&backend.subsystem.counters.errors, 1);
                self.fail(id, status.do_not_retry());
            }
        }
    }

    pub(super) fn tag(&self, id: CommandId, kind: Kind) -> Tag {
        Tag { connection: self.index, generation: self.generation, id, kind }
    }

    /// Handles the completion of one of this connection's I/O.
    pub(in super::super) fn complete(
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
        if completion.result.is_err() || matches!(tag.kind, Kind::Write | Kind::Flush) {
            self.note_end(tag.id, backend);
        }
        match (completion.result, tag.kind) {
            (Err(error), kind) => {
                Counters::add(&backend.subsystem.counters.errors, 1);
                self.fail(tag.id, status_of(&error, kind));
            }
            (Ok(()), Kind::Read) => {
                self.send_read(tag.id, queue, completion.buf.freeze(), backend);
            }
            (Ok(()), Kind::DurableWrite) => {
                backend.count(self.host_id(), true, len);
                backend.push(&Request::flush(queue), IoBuf::empty(), self.tag(tag.id, Kind::Flush));
            }
            (Ok(()), Kind::Write) => {
                backend.count(self.host_id(), true, len);
                self.protocol.finish(tag.id, Status::SUCCESS, 0);
            }
            (Ok(()), Kind::Flush) => self.protocol.finish(tag.id, Status::SUCCESS, 0),
        }
    }

    /// Queues the data of a read for sending. If `bytes` are only a piece of the data, the rest waits for a turn.
    pub(super) fn send_read(
        &mut self,
        id: CommandId,
        queue: usize,
        bytes: SharedBuf,
        backend: &mut Backend,
    ) {
        let Some(host_queue) = &self.queue else { return };
        let sqe = *self.protocol.sqe(id);
        let len = sqe.sgl.len.get();
        let served = self.protocol.sent_in_pieces(id) + bytes.len() as u32;
        if served == len {
            backend.count(self.host_id(), false, len as usize);
            self.note_end(id, backend);
            return self.protocol.send_data(id, bytes);
        }
        let rest = backend.rest_of(&sqe, (served, len), &host_queue.controller.access);
        self.protocol.send_piece(id, bytes);
        match rest {
            Ok(rest) if rest.queue == queue => self.wait(id, Need::Io(rest), backend),
            // The namespace was removed meanwhile, and another one may have its NSID.
            rest => {
                Counters::add(&backend.subsystem.counters.errors, 1);
                self.note_end(id, backend);
                self.fail(id, rest.err().unwrap_or(Status::INVALID_NAMESPACE).do_not_retry());
            }
        }
    }

    /// Hands the arrival time of a completed command to the latency recorders.
    fn note_end(&mut self, id: CommandId, backend: &mut Backend) {
        if let Some(command) = self.arrivals.take(id) {
            backend.ended.push(command);
        }
    }
}
