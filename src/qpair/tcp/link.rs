//! A connection and its socket: what the admin queue and every I/O queue are pumped with.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use crate::error::ErrorKind;
use crate::nvme::Sqe;
use crate::qpair::Wait;
use crate::qpair::remote::Failure;
use crate::tcp::host::{Connection, Event, HostOptions, Transfer};
use crate::tcp::turn::{HOST_RECEIVE_BYTES, HOST_RECEIVE_SLICES, HOST_SEND_SLICES};
use crate::tcp::{Digests, ProtocolError};

/// Why a connection is over.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum LinkError {
    #[error("{}", std::io::Error::from_raw_os_error(.0.raw_os_error()))]
    Connect(Errno),
    #[error("no answer within {0:?}")]
    ConnectTimeout(Duration),
    #[error("{}", std::io::Error::from_raw_os_error(.0.raw_os_error()))]
    Os(Errno),
    #[error("the target closed the connection")]
    Closed,
    #[error("the operating system counted {found} bytes where {asked} were to be moved")]
    Excess { asked: usize, found: usize },
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Failure {
        let kind = match &error {
            LinkError::Connect(Errno::CONNREFUSED) => ErrorKind::Refused,
            LinkError::ConnectTimeout(_) | LinkError::Connect(Errno::TIMEDOUT) => {
                ErrorKind::TimedOut
            }
            LinkError::Protocol(ProtocolError::TimedOut(_)) => ErrorKind::TimedOut,
            LinkError::Protocol(ProtocolError::DigestDeclined) => ErrorKind::Unsupported,
            LinkError::Protocol(_) => ErrorKind::Corrupt,
            LinkError::Connect(_)
            | LinkError::Os(_)
            | LinkError::Closed
            | LinkError::Excess { .. } => ErrorKind::Disconnected,
        };
        let failure = Failure::new(kind, error.to_string());
        match error {
            LinkError::Connect(Errno::CONNREFUSED) => {
                failure.hint("nothing listens at that address: is the target running?")
            }
            LinkError::Protocol(ProtocolError::DigestDeclined) => {
                failure.hint("leave out --hdr-digest and --data-digest")
            }
            _ => failure,
        }
    }
}

/// One connection on its way up, or up.
pub(super) struct Link<B> {
    socket: Socket,
    state: State<B>,
}

enum State<B> {
    Connecting { options: HostOptions, limit: Duration, deadline: Instant },
    Connected(Box<Connection<B>>),
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Link<B> {
    /// Begins to connect; [`Link::poll`] goes on with it.
    pub(super) fn start(
        now: Instant,
        address: SocketAddr,
        tcp_timeout: Duration,
        options: HostOptions,
    ) -> Result<Link<B>, LinkError> {
        let socket = open_socket(address).map_err(LinkError::Connect)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(LinkError::Connect(error)),
        }
        let (limit, deadline) = (tcp_timeout, now + tcp_timeout);
        Ok(Link { socket, state: State::Connecting { options, limit, deadline } })
    }

    /// Moves bytes both ways until there are none, or enough for one turn. What came of it is in
    /// [`Link::poll_event`].
    ///
    /// # Errors
    /// The connection is over: take its events, then [`Link::abandon`] it.
    pub(super) fn poll(&mut self, now: Instant, scratch: &mut [u8]) -> Result<(), LinkError> {
        if let State::Connecting { options, limit, deadline } = &self.state {
            if !is_connected(&self.socket)? {
                let timed_out = now >= *deadline;
                return if timed_out { Err(LinkError::ConnectTimeout(*limit)) } else { Ok(()) };
            }
            self.state = State::Connected(Box::new(Connection::new(now, options)));
        }
        let Link { socket, state: State::Connected(connection) } = self else {
            unreachable!("connected above")
        };
        let result = receive(socket, connection, now, scratch);
        match result.and_then(|()| connection.handle_timeout(now).map_err(LinkError::from)) {
            Ok(()) => send(socket, connection, now),
            Err(error) => {
                // The termination request, if there is one and the socket has room for it.
                let _ = send(socket, connection, now); // the connection is over either way
                Err(error)
            }
        }
    }

    /// Sends what is queued, as far as the socket takes it.
    pub(super) fn send(&mut self, now: Instant) -> Result<(), LinkError> {
        match &mut self.state {
            State::Connecting { .. } => Ok(()),
            State::Connected(connection) => send(&self.socket, connection, now),
        }
    }

    /// Takes a command; see [`Connection::submit`].
    pub(super) fn submit(
        &mut self,
        now: Instant,
        sqe: Sqe,
        transfer: Transfer,
        patient: bool,
        payload: B,
    ) -> Result<(), B> {
        match &mut self.state {
            State::Connecting { .. } => Err(payload),
            State::Connected(connection) => connection.submit(now, sqe, transfer, patient, payload),
        }
    }

    /// The digests that were agreed on; none before the connection is initialised.
    pub(super) fn digests(&self) -> Digests {
        match &self.state {
            State::Connecting { .. } => Digests::default(),
            State::Connected(connection) => connection.digests(),
        }
    }

    pub(super) fn set_max_in_capsule(&mut self, max_in_capsule: u32) {
        if let State::Connected(connection) = &mut self.state {
            connection.set_max_in_capsule(max_in_capsule);
        }
    }

    /// The payloads of commands that have not ended.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = &B> {
        let connection = match &self.state {
            State::Connecting { .. } => None,
            State::Connected(connection) => Some(connection),
        };
        connection.into_iter().flat_map(|connection| connection.payloads())
    }

    pub(super) fn has_room(&self) -> bool {
        matches!(&self.state, State::Connected(connection) if connection.has_room())
    }

    pub(super) fn poll_event(&mut self) -> Option<Event<B>> {
        match &mut self.state {
            State::Connecting { .. } => None,
            State::Connected(connection) => connection.poll_event(),
        }
    }

    /// Closes the connection; the payloads of all commands that had not ended. Nothing is sent, so a
    /// child process may do it to what its parent still uses.
    pub(super) fn abandon(self) -> (Vec<B>, Vec<Event<B>>) {
        let Link { socket, state } = self;
        if matches!(&state, State::Connected(connection) if connection.owes_data()) {
            // What the kernel has not sent yet goes with it. Where that fails, it is sent.
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
        drop(socket); // before a buffer is anybody else's
        match state {
            State::Connecting { .. } => (Vec::new(), Vec::new()),
            State::Connected(mut connection) => {
                let payloads = connection.abandon();
                (payloads, std::iter::from_fn(|| connection.poll_event()).collect())
            }
        }
    }

    /// What to sleep on until something moves.
    pub(super) fn wait(&self) -> Wait<'_> {
        let writable = match &self.state {
            State::Connecting { .. } => true,
            State::Connected(connection) => connection.wants_transmit(),
        };
        Wait { fd: self.socket.as_fd(), writable }
    }

    /// When to poll again although nothing moves.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Connecting { deadline, .. } => Some(*deadline),
            State::Connected(connection) => connection.poll_timeout(),
        }
    }

    /// What has not been reached yet, for people.
    pub(super) fn stage(&self) -> &'static str {
        match &self.state {
            State::Connecting { .. } => "TCP connect",
            State::Connected(_) => "initialising the connection",
        }
    }
}

fn open_socket(address: SocketAddr) -> Result<Socket, Errno> {
    let open = || {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(1))
            .with_interval(Duration::from_secs(1))
            .with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(Duration::from_secs(5)))?;
        if address.ip().is_loopback() {
            // There is nothing to be fair to, and BBR, where it is the default, paces by timers. What
            // every kernel has; where it is forbidden the connection works as well, but slower.
            let _ = rustix::net::sockopt::set_tcp_congestion(&socket, "reno");
        }
        Ok(socket)
    };
    open().map_err(errno)
}

/// Whether a non-blocking connect has succeeded.
fn is_connected(socket: &Socket) -> Result<bool, LinkError> {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    let ready = match rustix::event::poll(&mut fds, Some(&Timespec::default())) {
        Ok(ready) => ready > 0,
        Err(Errno::INTR) => false,
        Err(error) => return Err(LinkError::Os(error)),
    };
    match socket.take_error().map_err(|error| LinkError::Os(errno(error)))? {
        Some(error) => Err(LinkError::Connect(errno(error))),
        None => Ok(ready),
    }
}

fn receive<B: AsRef<[u8]> + AsMut<[u8]>>(
    socket: &Socket,
    connection: &mut Connection<B>,
    now: Instant,
    scratch: &mut [u8],
) -> Result<(), LinkError> {
    let mut budget = HOST_RECEIVE_BYTES;
    while budget > 0 {
        let (received, asked) = {
            let mut slices: [IoSliceMut<'_>; HOST_RECEIVE_SLICES] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let used = connection.poll_receive(scratch, &mut slices);
            let slices = &mut slices[..used];
            let asked: usize = slices.iter().map(|slice| slice.len()).sum();
            (rustix::io::readv(socket, slices), asked)
        };
        let len = match received {
            Ok(0) => return Err(LinkError::Closed),
            Ok(found) if found > asked => return Err(LinkError::Excess { asked, found }),
            Ok(len) => len,
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(LinkError::Os(error)),
        };
        connection.handle_filled(now, scratch, len)?;
        if len < asked {
            return Ok(()); // the socket is drained: asking again would only say so
        }
        budget = budget.saturating_sub(len);
    }
    Ok(())
}

fn send<B: AsRef<[u8]> + AsMut<[u8]>>(
    socket: &Socket,
    connection: &mut Connection<B>,
    now: Instant,
) -> Result<(), LinkError> {
    while connection.wants_transmit() {
        let mut slices = [IoSlice::new(&[]); HOST_SEND_SLICES];
        let used = connection.poll_transmit(&mut slices);
        let asked = slices[..used].iter().map(|slice| slice.len()).sum();
        let mut control = rustix::net::SendAncillaryBuffer::default();
        let sent = rustix::net::sendmsg(
            socket,
            &slices[..used],
            &mut control,
            rustix::net::SendFlags::NOSIGNAL,
        );
        match sent {
            Ok(found) if found > asked => return Err(LinkError::Excess { asked, found }),
            Ok(len) => connection.transmitted(now, len),
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(LinkError::Os(error)),
        }
    }
    Ok(())
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl<B> AsFd for Link<B> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Length of the buffer that [`Link::poll`] is given.
pub(super) const SCRATCH_LEN: usize = crate::tcp::host::SCRATCH_LEN;
