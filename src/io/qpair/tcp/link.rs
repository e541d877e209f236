//! The socket of an admin or I/O queue, and the transfer of bytes between the socket and a channel, with or
//! without TLS.
//!
//! With TLS, ciphertext is received into memory of the link. OpenSSL decrypts it into the places that the connection
//! plans, mostly buffers of reads.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::TcpStats;
use crate::qpair::readiness::{Registry, Watched};
use crate::qpair::session::connect::Payload;
use crate::qpair::session::{Channel, Failure};
use crate::tls::{RECORD_LEN_BYTES, Session, TlsError};
use dlfs_base::error::ErrorKind;
use dlfs_base::process::{NotInherited, mark_ours};
use dlfs_nvme::tcp::budget::{HOST_RECEIVE_BYTES, HOST_RECEIVE_SLICES, HOST_SEND_SLICES};
use dlfs_nvme::tcp::host::Connection;

/// Errors that end a connection.
#[derive(Debug, Clone, thiserror::Error)]
enum LinkError {
    #[error("{}", std::io::Error::from_raw_os_error(.0.raw_os_error()))]
    Connect(Errno),
    #[error("{}", std::io::Error::from_raw_os_error(.0.raw_os_error()))]
    Os(Errno),
    #[error("the target closed the connection")]
    Closed,
    #[error(transparent)]
    Tls(TlsError),
    #[error("the operating system counted {found} bytes where {asked} were to be moved")]
    Excess { asked: usize, found: usize },
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Failure {
        let kind = match &error {
            LinkError::Connect(Errno::CONNREFUSED) => ErrorKind::Refused,
            LinkError::Connect(Errno::TIMEDOUT) => ErrorKind::TimedOut,
            LinkError::Tls(TlsError::NoLibrary(_)) => ErrorKind::Unsupported,
            LinkError::Tls(TlsError::BadRecord | TlsError::Failed(_)) => ErrorKind::Corrupt,
            LinkError::Tls(TlsError::Alert { .. } | TlsError::NotTls | TlsError::NoKey) => {
                ErrorKind::Refused
            }
            _ => ErrorKind::Disconnected,
        };
        let failure = Failure::new(kind, error.to_string());
        match error {
            LinkError::Connect(Errno::CONNREFUSED) => {
                failure.hint("nothing listens at that address: is the target running?")
            }
            LinkError::Tls(TlsError::Alert { .. } | TlsError::NoKey) => failure.hint(TLS_KEYS),
            LinkError::Tls(TlsError::NotTls) => failure.hint(NOT_TLS),
            _ => failure,
        }
    }
}

/// The socket of one channel.
pub(super) struct Link {
    /// Keeps the connection from forked children: it ends when this process closes it, whatever a child does.
    _own: NotInherited,
    pub(super) socket: Watched<Socket>,
    /// Counts of reads that the owner has not taken yet.
    pub(super) receives: TcpStats,
    /// The TLS session, once the handshake of a channel with a PSK has begun.
    secured: Option<Box<Secured>>,
    /// Set if the handshake may have failed because the target does not know the PSK identity: another identity may be
    /// tried.
    pub(super) refuses_identity: bool,
}

/// The TLS session of a socket.
struct Secured {
    session: Session,
    /// Memory for received ciphertext, `CIPHERTEXT_LEN` bytes.
    ciphertext: Vec<u8>,
}

impl Link {
    /// Starts to connect; [`Link::poll`] continues.
    pub(super) fn start(address: SocketAddr) -> Result<Link, Failure> {
        let socket = open_socket(address).map_err(LinkError::Connect)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {
                let _own = NotInherited::close(socket.as_fd());
                let receives = TcpStats::default();
                let socket = Watched::new(socket);
                Ok(Link { _own, socket, receives, secured: None, refuses_identity: false })
            }
            Err(error) => Err(LinkError::Connect(error).into()),
        }
    }

    /// Transfers bytes in both directions, until there are none left or the limit of one turn is reached. The
    /// channel's events have the results. `must_read`: read the socket even if no event has reported it as
    /// ready. `scratch` has `SCRATCH_LEN` bytes.
    ///
    /// # Errors
    /// The connection is lost: take the channel's events, close the socket, then abandon the channel.
    pub(super) fn poll<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        now: Instant,
        channel: &mut Channel<B>,
        scratch: &mut [u8],
        must_read: bool,
    ) -> Result<(), Failure> {
        // An answer that seems late may have arrived without being reported yet.
        let is_due = channel.poll_timeout().is_some_and(|at| at <= now);
        let mut is_ready = self.socket.take_ready() || is_due || must_read;
        if channel.is_opening() {
            if !is_ready {
                return Ok(());
            }
            if !is_connected(&self.socket)? {
                return channel.handle_timeout(now);
            }
            channel.handle_connected(now);
            is_ready = false; // nothing was sent yet, so there is no answer to read
        }
        if channel.psk().is_some() {
            let result = self.secure(now, channel, is_ready);
            self.set_writable(channel.wants_writable());
            return result.and_then(|()| channel.handle_timeout(now));
        }
        let Some(connection) = channel.connection() else { return Ok(()) };
        let result = if is_ready {
            let secured = self.secured.as_deref_mut();
            receive(&self.socket, secured, connection, now, scratch, &mut self.receives)
        } else {
            Ok(())
        };
        match result.and_then(|()| channel.handle_timeout(now)) {
            Ok(()) => self.send(now, channel),
            Err(failure) => {
                // Send the termination request, if there is one and the socket has room for it.
                let _ = self.send(now, channel); // the connection is lost either way
                Err(failure)
            }
        }
    }

    /// Advances the TLS handshake; the channel continues when TLS is established.
    fn secure<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        now: Instant,
        channel: &mut Channel<B>,
        is_ready: bool,
    ) -> Result<(), Failure> {
        let Some(psk) = channel.psk() else { return Ok(()) };
        let secured = match &mut self.secured {
            Some(secured) => secured,
            None => {
                let session = Session::host(psk).map_err(LinkError::Tls)?;
                let ciphertext = vec![0; CIPHERTEXT_LEN];
                self.secured.insert(Box::new(Secured { session, ciphertext }))
            }
        };
        let result = secured.handshake(&self.socket, is_ready, &mut self.receives);
        self.refuses_identity = match &result {
            Err(LinkError::Tls(error)) => error.may_be_identity(),
            Err(LinkError::Closed | LinkError::Os(Errno::CONNRESET)) => true,
            _ => false,
        };
        let explain = |error| match error {
            // Linux's target closes the connection of a host that it refuses, without an alert.
            LinkError::Closed | LinkError::Os(Errno::CONNRESET) => {
                Failure::from(error).hint(CLOSED_IN_HANDSHAKE)
            }
            _ => error.into(),
        };
        if result.map_err(explain)? {
            channel.handle_secured(now);
            return self.send(now, channel);
        }
        Ok(())
    }

    /// Sends queued bytes until the socket is full.
    pub(super) fn send<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        now: Instant,
        channel: &mut Channel<B>,
    ) -> Result<(), Failure> {
        let Some(connection) = channel.connection() else { return Ok(()) };
        let result = send(&self.socket, self.secured.as_deref_mut(), connection, now);
        self.set_writable(channel.wants_writable());
        Ok(result?)
    }

    /// Sets whether to wait for room to send. Ciphertext may be unsent even if the channel has sent all its
    /// bytes.
    fn set_writable(&mut self, wanted: bool) {
        let has_more = self.has_outgoing();
        self.socket.set_writable(wanted || has_more);
    }

    fn has_outgoing(&self) -> bool {
        self.secured.as_ref().is_some_and(|secured| !secured.session.outgoing().is_empty())
    }

    /// Registers the socket with a poller.
    pub(super) fn register(&mut self, registry: &Registry, writable: bool) {
        let has_more = self.has_outgoing();
        self.socket.register(registry, writable || has_more);
    }

    /// Closes the descriptor, which is not the socket any more in a child process. With `owes_data`, the kernel
    /// discards what it has not sent.
    pub(super) fn close(self, owes_data: bool) {
        if owes_data {
            // If this fails, the kernel sends the bytes.
            let _ = self.socket.set_linger(Some(Duration::ZERO));
        }
    }

    /// The descriptor to sleep on.
    pub(super) fn wait(&self, writable: bool) -> PollFd<'_> {
        let is_wanted = writable || self.has_outgoing();
        let flags = if is_wanted { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(self.socket.as_fd(), flags)
    }
}

/// Creates a socket with the options of NVMe/TCP connections.
fn open_socket(address: SocketAddr) -> Result<Socket, Errno> {
    let open = || {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        mark_ours(&socket);
        socket.set_tcp_nodelay(true)?;
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(1))
            .with_interval(Duration::from_secs(1))
            .with_retries(3);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(Duration::from_secs(5)))?;
        if address.ip().is_loopback() {
            // A loopback connection needs no fairness between flows, and BBR, if it is the default, paces by
            // timers. Every kernel has `reno`. If setting it is not permitted, the connection works, but
            // slower.
            let _ = rustix::net::sockopt::set_tcp_congestion(&socket, "reno");
        }
        Ok(socket)
    };
    open().map_err(errno)
}

/// Returns whether a non-blocking connect has succeeded.
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

impl Secured {
    /// Advances the handshake; returns whether it is complete. `is_ready`: the socket may have received data.
    fn handshake(
        &mut self,
        socket: &Socket,
        is_ready: bool,
        receives: &mut TcpStats,
    ) -> Result<bool, LinkError> {
        let mut result = self.session.handshake();
        self.flush(socket)?;
        while is_ready && result == Ok(false) {
            let Some(len) = self.read(socket, receives)? else { break };
            self.session.give(std::mem::take(&mut self.ciphertext), len);
            result = self.session.handshake();
            self.ciphertext = self.session.take_back();
            self.flush(socket)?; // also an alert with the reason of a failure
        }
        result.map_err(LinkError::Tls)
    }

    /// Reads ciphertext once; `None`: no bytes are available.
    fn read(
        &mut self,
        socket: &Socket,
        receives: &mut TcpStats,
    ) -> Result<Option<usize>, LinkError> {
        let room = &mut self.ciphertext[..];
        receives.count(room.len(), || rustix::io::read(socket, &mut *room))
    }

    /// Decrypts all available ciphertext into the places that the connection plans.
    fn decrypt<B: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        connection: &mut Connection<Payload<B>>,
        now: Instant,
        scratch: &mut [u8],
    ) -> Result<(), Failure> {
        loop {
            let session = &mut self.session;
            let (filled, asked) = fill(connection, scratch, |slices, _| {
                session.open(slices).map_err(LinkError::Tls)
            })?;
            connection.handle_filled(now, scratch, filled)?;
            if filled < asked {
                return Ok(());
            }
        }
    }

    /// Sends ciphertext; returns whether all is sent.
    fn flush(&mut self, socket: &Socket) -> Result<bool, LinkError> {
        loop {
            let outgoing = self.session.outgoing();
            if outgoing.is_empty() {
                return Ok(true);
            }
            let flags = rustix::net::SendFlags::NOSIGNAL;
            let sent = retry(outgoing.len(), || rustix::net::send(socket, outgoing, flags))?;
            let Some(len) = sent else { return Ok(false) };
            self.session.sent(len);
        }
    }
}

/// Receives bytes, up to the limit of one turn, and passes them to the connection.
fn receive<B: AsRef<[u8]> + AsMut<[u8]>>(
    socket: &Socket,
    mut secured: Option<&mut Secured>,
    connection: &mut Connection<Payload<B>>,
    now: Instant,
    scratch: &mut [u8],
    receives: &mut TcpStats,
) -> Result<(), Failure> {
    let mut budget = HOST_RECEIVE_BYTES;
    while budget > 0 {
        let (received, asked) = match &mut secured {
            Some(secured) => (secured.read(socket, receives)?, CIPHERTEXT_LEN),
            None => fill(connection, scratch, |slices, asked| {
                receives.count(asked, || rustix::io::readv(socket, slices))
            })?,
        };
        let Some(len) = received else { return Ok(()) };
        match &mut secured {
            Some(secured) => {
                secured.session.give(std::mem::take(&mut secured.ciphertext), len);
                let result = secured.decrypt(connection, now, scratch);
                secured.ciphertext = secured.session.take_back();
                result?;
            }
            None => connection.handle_filled(now, scratch, len)?,
        }
        if len < asked {
            return Ok(()); // the socket is drained: another read would return nothing
        }
        budget = budget.saturating_sub(len);
    }
    Ok(())
}

/// Calls `receive` with the places that the connection plans for the next bytes, and their length in bytes. Returns the
/// result of `receive`, and the length.
fn fill<B: AsRef<[u8]> + AsMut<[u8]>, T>(
    connection: &mut Connection<Payload<B>>,
    scratch: &mut [u8],
    receive: impl FnOnce(&mut [IoSliceMut<'_>], usize) -> Result<T, LinkError>,
) -> Result<(T, usize), LinkError> {
    let mut slices: [IoSliceMut<'_>; HOST_RECEIVE_SLICES] =
        std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let used = connection.poll_receive(scratch, &mut slices);
    let slices = &mut slices[..used];
    let asked = slices.iter().map(|slice| slice.len()).sum();
    Ok((receive(slices, asked)?, asked))
}

/// Sends queued bytes until the socket is full.
fn send<B: AsRef<[u8]> + AsMut<[u8]>>(
    socket: &Socket,
    mut secured: Option<&mut Secured>,
    connection: &mut Connection<Payload<B>>,
    now: Instant,
) -> Result<(), LinkError> {
    loop {
        let is_flushed = match &mut secured {
            Some(secured) => secured.flush(socket)?,
            None => true,
        };
        if !is_flushed || !connection.wants_transmit() {
            return Ok(());
        }
        let mut slices = [IoSlice::new(&[]); HOST_SEND_SLICES];
        let used = connection.poll_transmit(&mut slices);
        let slices = &mut slices[..used];
        let sent = match &mut secured {
            Some(secured) => {
                Some(secured.session.seal(slices, SEAL_BYTES).map_err(LinkError::Tls)?)
            }
            None => {
                let asked = slices.iter().map(|slice| slice.len()).sum();
                let mut control = rustix::net::SendAncillaryBuffer::default();
                let flags = rustix::net::SendFlags::NOSIGNAL;
                retry(asked, || rustix::net::sendmsg(socket, slices, &mut control, flags))?
            }
        };
        let Some(len) = sent else { return Ok(()) };
        connection.transmitted(now, len);
    }
}

/// Makes a system call that transfers at most `asked` bytes, again if a signal interrupts it; returns the number of
/// bytes. `None`: the socket has no bytes, or no room.
fn retry(
    asked: usize,
    mut call: impl FnMut() -> Result<usize, Errno>,
) -> Result<Option<usize>, LinkError> {
    loop {
        match call() {
            Ok(found) if found > asked => return Err(LinkError::Excess { asked, found }),
            Ok(len) => return Ok(Some(len)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(LinkError::Os(error)),
        }
    }
}

impl TcpStats {
    /// As [`retry`] for a call that receives, and counts the calls. A closed connection is an error.
    fn count(
        &mut self,
        asked: usize,
        mut receive: impl FnMut() -> Result<usize, Errno>,
    ) -> Result<Option<usize>, LinkError> {
        let received = retry(asked, || {
            self.receives += 1;
            receive()
        })?;
        self.empty_receives += u64::from(received.is_none());
        if received == Some(0) { Err(LinkError::Closed) } else { Ok(received) }
    }
}

/// The error number of an error of the operating system.
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The hint when the two sides have no common TLS PSK.
const TLS_KEYS: &str = "check that the target has this key for this host's NQN and the subsystem's NQN; a key that \
    libnvme before July 2025 has installed there needs --tls-compat";
/// The hint when a target ends the handshake without an alert.
const CLOSED_IN_HANDSHAKE: &str = "it may not have this key for this host's NQN and the subsystem's NQN, or no place \
    for another host: see its log; a key that libnvme before July 2025 has installed there needs --tls-compat";
/// The hint when a target does not speak TLS.
const NOT_TLS: &str = "the target has no TLS key for any host, or no NVMe/TCP target listens there";

/// The length of the scratch buffer of [`Link::poll`].
pub(super) const SCRATCH_LEN: usize = dlfs_nvme::tcp::host::SCRATCH_LEN;

/// The most ciphertext of one receive, in bytes: few enough to stay in the second-level cache.
const CIPHERTEXT_LEN: usize = 8 * RECORD_LEN_BYTES;

/// The most plaintext, in bytes, that is encrypted before it is sent.
const SEAL_BYTES: usize = 4 * RECORD_LEN_BYTES;
