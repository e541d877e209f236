//! One connection of a host: what it receives and sends, and the limits of its time.
//!
//! `commands.rs` executes the commands that it receives, and `waiting.rs` has those that cannot begin at once.
//! `authentication.rs` and `tls.rs` check who the host is. `progress.rs` judges whether the host moves its bytes, and
//! `draining.rs` ends the connection of a target that drains.

mod authentication;
mod commands;
mod draining;
mod progress;
mod tls;
mod waiting;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::access_log::{Traffic, WarningKind, Who};
use super::hosts::HostId;
use super::io::{Backend, MAX_WAITING, MIN_WAITING};
use super::peers::Peer;
use super::stats::Arrivals;
use super::subsystem::Queue;
use authentication::{Authentication, NOT_AUTHENTICATED};
use dlfs_base::process::NotInherited;
use dlfs_nvme::tcp::budget::TARGET_SEND_SLICES;
use dlfs_nvme::tcp::controller::{CommandId, Connection, ConnectionOptions};
use dlfs_nvme::tcp::{Digests, ProtocolError};
use progress::{Arrived, Progress};
pub(super) use tls::Scratch;
use tls::{LATE_HANDSHAKE, Transport};
use waiting::Waiting;

/// One connection of a host.
pub(super) struct HostConnection {
    /// Keeps forked children from holding the connection open.
    _own: NotInherited,
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    local: SocketAddr,
    /// Index of the connection in its poller's table.
    index: usize,
    /// Distinguishes the connection from earlier ones with the same index: see [`Tag`](super::io::Tag).
    pub(super) generation: u32,
    /// Index of the poller that serves the connection.
    poller: usize,
    /// The transport: plain TCP, or TLS over it.
    transport: Transport,
    protocol: Connection,
    /// The queue, once Connect has succeeded.
    pub(super) queue: Option<Queue>,
    /// True once the queue may be used: the host has authenticated, or does not have to.
    is_authenticated: bool,
    /// The authentication in progress.
    authentication: Option<Box<Authentication>>,
    waiting: Waiting,
    /// Start of the wait for memory, of commands or of paused receiving. A waiting command that begins, or that waits
    /// for something else than memory, sets it to the current time. `None`: nothing waits.
    waiting_since: Option<Instant>,
    /// True while receiving is paused: see [`HostConnection::may_receive`].
    pub(super) is_paused: bool,
    /// Bytes of buffers that outstanding commands hold: device I/O, data being received, writes that wait.
    held_bytes: usize,
    /// Index of the namespace's queue of the last command that began.
    namespace: usize,
    /// The host in the poller's memory accounts, and the bytes accounted for this connection; `None` before Connect.
    host: Option<(HostId, usize)>,
    /// True while the connection counts as load of its poller.
    pub(super) is_load: bool,
    /// Asynchronous Event Requests that wait for an event, oldest first.
    async_events: Vec<CommandId>,
    /// Counters of the connection's bytes and commands.
    traffic: Traffic,
    /// Arrival times of outstanding I/O commands, for the latency recorders.
    arrivals: Arrivals,
    /// Bytes sent at the last check of time limits.
    sent_at_check: u64,
    /// Time at which the connection was accepted.
    opened: Instant,
    /// Time of the last received whole PDU, or of enough bytes to count as progress.
    pub(super) last_received: Instant,
    /// The host's progress in reading responses.
    sending: Progress,
    /// The host's progress in sending the data of writes.
    awaited: Progress,
    /// The host's progress in sending the PDU that it has begun.
    arriving: Progress,
    /// True while the socket's send buffer is full; the poller then waits until it is writable.
    pub(super) is_blocked: bool,
    /// True while the poller lists this connection as having bytes to send.
    pub(super) is_dirty: bool,
    /// Time of a protocol error or of a failed authentication: nothing is served any more, and the connection closes
    /// soon.
    pub(super) terminated: Option<Instant>,
    /// End of draining: the target has closed its side of the socket, and waits for the host to close.
    drained: Option<Instant>,
}

/// The reason why a connection closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    /// The host closed it.
    ByHost,
    /// The operating system reported an error, for example a timeout or a reset by the peer.
    Lost(io::ErrorKind),
    /// The target closed it because of a protocol error, a failed authentication, a time limit or a shortage of
    /// resources; the string gives the reason.
    Dropped(&'static str),
    /// The connection's controller is gone.
    Orphaned,
    /// The target drains, and the connection's commands have completed.
    Drained,
    /// The target stops.
    Stopped,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Closed::ByHost => f.write_str("the host closed the connection"),
            Closed::Lost(error) => write!(f, "the connection was lost: {error}"),
            Closed::Dropped(why) => f.write_str(why),
            Closed::Orphaned => {
                f.write_str("its controller is gone, or was closed in favour of another")
            }
            Closed::Drained => f.write_str("the target drains"),
            Closed::Stopped => f.write_str("the target stops"),
        }
    }
}

impl HostConnection {
    pub(super) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        (poller, index, generation): (usize, usize, u32),
        max_transfer_bytes: u32,
        now: Instant,
    ) -> io::Result<HostConnection> {
        let digests = Digests { header: true, data: true };
        let options = ConnectionOptions { digests, max_h2c_data_bytes: max_transfer_bytes };
        Ok(HostConnection {
            local: stream.local_addr()?,
            _own: NotInherited::close(stream.as_fd()),
            stream,
            peer,
            index,
            generation,
            poller,
            transport: Transport::Unknown,
            protocol: Connection::new(options),
            queue: None,
            is_authenticated: false,
            authentication: None,
            waiting: Waiting::default(),
            waiting_since: None,
            is_paused: false,
            held_bytes: 0,
            namespace: 0,
            host: None,
            is_load: true,
            async_events: Vec::new(),
            traffic: Traffic::default(),
            arrivals: Arrivals::default(),
            sent_at_check: 0,
            opened: now,
            last_received: now,
            sending: Progress::NONE,
            awaited: Progress::NONE,
            arriving: Progress::NONE,
            is_blocked: false,
            is_dirty: false,
            terminated: None,
            drained: None,
        })
    }

    /// Returns whether this is an admin queue; false before Connect.
    pub(super) fn is_admin(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.qid == 0)
    }

    /// Updates the host's entry in the poller's memory accounts.
    pub(super) fn account(&mut self, backend: &mut Backend) {
        let holds = self.holds_bytes();
        if let Some((host, known)) = &mut self.host
            && *known != holds
        {
            backend.hosts.change(*host, *known, holds);
            *known = holds;
        }
    }

    /// Returns the connection's memory to the poller's accounts, before it closes.
    pub(super) fn leave(&mut self, backend: &mut Backend) {
        self.forget_waiting(backend);
        if self.waiting.is_listed != [false; 2] || self.is_dirty {
            backend.sharing.forget(self.index, self.host_id());
            self.host_id().iter().for_each(|host| backend.note_closed(*host));
        }
        if let Some((host, known)) = self.host.take() {
            backend.hosts.change(host, known, 0);
            if backend.hosts.leave(host) {
                backend.sharing.leave(host);
            }
        }
    }

    /// Returns whether the connection is idle: only its host, an event of its controller, or the Keep Alive Timeout can
    /// give it something to do.
    pub(super) fn is_idle(&self) -> bool {
        let is_open = self.queue.is_some() && self.is_authenticated && self.drained.is_none();
        is_open
            && !self.is_paused
            && !self.has_waiting()
            && !self.wants_to_send()
            && !self.protocol.is_within_pdu()
            && self.protocol.outstanding() == self.num_parked()
    }

    /// The deadline of Keep Alive; `None` for other queues than the admin queue, and without a Keep Alive Timeout.
    pub(super) fn keep_alive_deadline(&self) -> Option<Instant> {
        self.queue.as_ref().filter(|queue| queue.qid == 0)?.keep_alive_deadline()
    }

    /// Frees memory left behind by a burst of commands, if nothing was sent since the last check of time limits.
    fn shrink(&mut self) {
        let before = std::mem::replace(&mut self.sent_at_check, self.traffic.sent_bytes);
        if before == self.traffic.sent_bytes {
            self.protocol.shrink();
            self.waiting.shrink();
            if self.protocol.outstanding() == 0 {
                self.arrivals = Arrivals::default();
            }
        }
    }

    /// Bytes of memory that the connection holds: for outstanding commands, and for responses that are not sent.
    pub(super) fn holds_bytes(&self) -> usize {
        self.held_bytes + self.protocol.transmit().len_bytes() + self.sealed_bytes()
    }

    pub(super) fn is_from(&self, peer: Peer) -> bool {
        Peer::from(self.peer.ip()) == peer
    }

    /// Returns whether to make a receive call. The answer is no while draining ends new commands
    /// ([`HostConnection::takes_no_more`]), and while an I/O queue lacks memory for the data or has too many waiting
    /// commands. Then the data stay in the kernel, and TCP flow control stops the host.
    pub(super) fn may_receive(&self, backend: &Backend) -> bool {
        let is_io = self.queue.as_ref().is_some_and(|queue| queue.qid != 0);
        let waiting = self.waiting.len();
        let has_memory = self.held_bytes <= backend.connection_bytes
            && (!backend.subsystem.options.writable || backend.has_room_for_capsules());
        if self.takes_no_more(backend) {
            return false;
        }
        !is_io || has_memory && (waiting < MIN_WAITING || backend.num_waiting < MAX_WAITING)
    }

    /// Returns whether received bytes are discarded: after a protocol error or a failed authentication, and once
    /// draining has closed the target's side. No response can be sent any more, so no command may be executed.
    fn discards_input(&self) -> bool {
        self.terminated.is_some() || self.drained.is_some()
    }

    /// Pauses or resumes receiving.
    pub(super) fn pause(&mut self, pause: bool, now: Instant) {
        self.is_paused = pause;
        if pause {
            self.waiting_since.get_or_insert(now);
            self.arriving.end(); // the bytes that the host sends stay in the kernel
            return;
        }
        if self.waiting.is_empty() {
            self.waiting_since = None;
        }
        if self.protocol.is_within_pdu() {
            self.arriving.begin(now);
        }
    }

    /// Returns whether the host has made no progress for `limit` in reading responses or in sending the data of writes.
    pub(super) fn is_stalled(&self, now: Instant, limit: Duration) -> bool {
        self.sending.is_stuck(now, limit) || self.awaited.is_stuck(now, limit)
    }

    /// Returns whether there are bytes to send.
    pub(super) fn wants_to_send(&self) -> bool {
        !self.protocol.transmit().is_empty() || self.sealed_bytes() > 0
    }

    /// Makes one receive call, and starts the commands that it brought. The data of a command go straight into their
    /// buffer, other bytes through `scratch`.
    pub(super) fn receive(
        &mut self,
        backend: &mut Backend,
        scratch: &mut Scratch,
    ) -> Result<(), Closed> {
        if matches!(self.transport, Transport::Tls(_)) {
            return self.receive_secured(backend, scratch);
        }
        let plain = &mut scratch.plain[..];
        let payload = self.protocol.payload().unwrap_or_default();
        let payload_len = payload.len();
        let mut slices = [IoSliceMut::new(payload), IoSliceMut::new(plain)];
        let len = match (&self.stream).read_vectored(&mut slices) {
            Ok(0) => return Err(Closed::ByHost),
            // The kernel reports more bytes than the buffers hold: the contents are unknown.
            Ok(len) if len > payload_len + plain.len() => return Err(MISCOUNTED),
            Ok(len) => len,
            Err(error) if is_transient(&error) => return Ok(()),
            Err(error) => return Err(Closed::Lost(error.kind())),
        };
        if self.discards_input() {
            return Ok(());
        }
        self.traffic.received_bytes += len as u64;
        if matches!(self.transport, Transport::Unknown)
            && self.begins_tls(&scratch.plain[..len], backend)?
        {
            // The ciphertext was received into the buffer for plaintext.
            scratch.sealed.clear();
            scratch.sealed.extend_from_slice(&scratch.plain[..len]);
            return self.take_sealed(len, backend, scratch);
        }
        let before = self.arrived();
        let in_place = len.min(payload_len);
        if in_place > 0 {
            self.protocol.payload_received(in_place);
        }
        let result = self.handle_all(&scratch.plain[..len - in_place], backend);
        self.note_arrival(before, len, backend.now);
        result
    }

    /// Passes received bytes to the protocol, and handles its events. A failed authentication ends the service in the
    /// middle of these bytes: the rest is discarded, as all later bytes are.
    fn handle_all(&mut self, mut input: &[u8], backend: &mut Backend) -> Result<(), Closed> {
        while !self.discards_input() {
            match self.protocol.next(&mut input) {
                Ok(Some(event)) => self.handle(event, backend),
                Ok(None) => break,
                Err(error) => return self.terminate(&error, backend),
            }
        }
        Ok(())
    }

    /// The totals of what the host has sent.
    fn arrived(&self) -> Arrived {
        Arrived {
            awaited_bytes: self.protocol.awaited_bytes(),
            pdus: self.protocol.received_pdus(),
        }
    }

    /// Records the host's progress by the `len` bytes received since the totals were `before`. A whole PDU shows that
    /// the host is alive; of an unfinished PDU, only [`Progress`] does.
    fn note_arrival(&mut self, before: Arrived, len: usize, now: Instant) {
        let Arrived { awaited_bytes, pdus } = self.arrived();
        self.awaited.advance(now, (awaited_bytes - before.awaited_bytes) as usize);
        if self.protocol.awaited() == 0 {
            self.awaited.end();
        }
        let is_alive = pdus > before.pdus || self.arriving.advance(now, len);
        if is_alive {
            self.last_received = now;
            self.queue.iter().for_each(|queue| queue.seen(now));
        }
        if pdus > before.pdus {
            self.arriving.end();
        }
        if self.protocol.is_within_pdu() {
            self.arriving.begin(now);
        }
    }

    /// Ends service after a protocol error. If there are bytes to send, such as a termination request, closes only
    /// [`LINGER`] later, so that the host can read them.
    fn terminate(&mut self, error: &ProtocolError, backend: &mut Backend) -> Result<(), Closed> {
        let now = backend.now;
        let why = format_args!("a protocol error: {error}");
        backend.subsystem.warnings.warn(now, WarningKind::Protocol, self.who(), why);
        self.log_closed(BROKE_PROTOCOL, now);
        self.protocol.terminate(error);
        self.terminated = Some(now);
        self.forget_waiting(backend);
        self.awaited.end();
        self.queue = None;
        if self.wants_to_send() { Ok(()) } else { Err(BROKE_PROTOCOL) }
    }

    /// Sends responses, gathered from headers and I/O buffers, until the socket is full or about `max` bytes are sent;
    /// returns the number of bytes.
    pub(super) fn send(
        &mut self,
        scratch: &mut Scratch,
        max: usize,
        now: Instant,
    ) -> Result<usize, Closed> {
        let before = self.traffic.sent_bytes;
        self.send_some(scratch, max, now)?;
        Ok((self.traffic.sent_bytes - before) as usize)
    }

    fn send_some(&mut self, scratch: &mut Scratch, max: usize, now: Instant) -> Result<(), Closed> {
        self.is_blocked = false;
        if self.wants_to_send() {
            self.sending.begin(now);
        }
        if matches!(self.transport, Transport::Tls(_)) {
            return self.send_secured(scratch, max, now);
        }
        let mut left = max;
        while self.wants_to_send() {
            if left == 0 {
                return Ok(());
            }
            let mut slices = [IoSlice::new(&[]); TARGET_SEND_SLICES];
            let num_slices = self.protocol.gather_at_most(&mut slices, left);
            // A send to a disconnected host must return an error, never raise SIGPIPE.
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let mut control = SendAncillaryBuffer::default();
            let asked: usize = slices[..num_slices].iter().map(|slice| slice.len()).sum();
            match sendmsg(&self.stream, &slices[..num_slices], &mut control, flags) {
                Ok(len) if len > asked => return Err(MISCOUNTED),
                Ok(len) => {
                    self.protocol.sent(len);
                    left = left.saturating_sub(len);
                    self.traffic.sent_bytes += len as u64;
                    self.sending.advance(now, len);
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

    /// Checks all time limits, and whether the controller is gone; frees memory of an earlier burst, and delivers an
    /// authentication's delayed message.
    pub(super) fn check_time(&mut self, backend: &Backend) -> Result<(), Closed> {
        let now = backend.now;
        self.shrink();
        self.deliver(backend);
        let options = &backend.subsystem.options;
        let passed = |since: Instant, limit: Duration| has_passed(now, since, limit);
        let late = match (&self.terminated, &self.queue) {
            (Some(since), _) => passed(*since, LINGER).then_some(BROKE_PROTOCOL),
            _ if self.drained.is_some_and(|since| passed(since, LINGER)) => Some(Closed::Drained),
            (None, None) if self.is_late_handshake(now) => Some(LATE_HANDSHAKE),
            (None, None) => passed(self.opened, options.connect_timeout).then_some(NO_CONNECT),
            (None, Some(queue)) if queue.is_orphan() => Some(Closed::Orphaned),
            (None, Some(_)) if !self.is_authenticated => {
                passed(self.opened, options.connect_timeout).then_some(NO_AUTHENTICATION)
            }
            (None, Some(queue)) => {
                let is_silent = queue.keep_alive_deadline().is_some_and(|at| now >= at);
                (queue.qid == 0 && is_silent).then_some(NO_KEEP_ALIVE)
            }
        };
        let limit = options.send_timeout;
        let stalled = self.is_stalled(now, limit).then_some(STALLED);
        let cut = self.arriving.is_stuck(now, limit).then_some(CUT_PDU);
        late.or(stalled).or(cut).map_or(Ok(()), Err)
    }

    /// The host's address and NQN, for log lines.
    pub(super) fn who(&self) -> Who<'_> {
        let host = self.queue.as_ref().map(|queue| &queue.controller.hostnqn);
        Who { peer: Some(self.peer), host }
    }

    /// Logs the end of an admin queue, and thus of its controller, at `INFO`, and that of other connections
    /// at `DEBUG`. Hands the controller the connection's counters and, of an admin queue, the reason. Tells the
    /// access log of a queue that has not authenticated.
    pub(super) fn log_closed(&self, closed: Closed, now: Instant) {
        if let Some(queue) = &self.queue {
            // A failed authentication has been told already.
            if !self.is_authenticated && closed != NOT_AUTHENTICATED {
                queue.tell_unauthenticated();
            }
            queue.ends(&closed, &self.traffic);
        }
        let Some(queue) = self.queue.as_ref().filter(|queue| queue.qid == 0) else {
            return tracing::debug!(peer = %self.peer, "connection closed: {closed}");
        };
        let host = queue.controller.hostnqn.as_str();
        let cntlid = queue.controller.cntlid;
        let seconds = now.saturating_duration_since(self.opened).as_secs();
        tracing::info!(peer = %self.peer, host, cntlid, seconds, "disconnected: {closed}");
    }
}

/// Returns whether a failed call can simply be retried.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Returns whether `limit` has passed since `since`.
fn has_passed(now: Instant, since: Instant, limit: Duration) -> bool {
    now.saturating_duration_since(since) >= limit
}

/// Time for which a connection stays open after a protocol error, so that the host can read the reason.
const LINGER: Duration = Duration::from_secs(1);
const BROKE_PROTOCOL: Closed = Closed::Dropped("protocol error");
const MISCOUNTED: Closed =
    Closed::Dropped("the operating system reported more bytes than there was room for");
const NO_CONNECT: Closed = Closed::Dropped("no Connect succeeded in time");
const NO_AUTHENTICATION: Closed = Closed::Dropped("no authentication succeeded in time");
const NO_KEEP_ALIVE: Closed =
    Closed::Dropped("no whole PDU was received for twice its keep alive time-out");
const CUT_PDU: Closed = Closed::Dropped("the host did not send the rest of a PDU in time");
const STALLED: Closed =
    Closed::Dropped("the host did not read its responses, or send data, in time");
