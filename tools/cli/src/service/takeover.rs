//! Takes the place of a service that runs: `dlfs serve --takeover`.
//!
//! The new service asks the old one over its control socket for its listening sockets. The old one sends duplicates
//! over a Unix socket that the new one has opened for them. Once the new one serves, it asks the old one to hand
//! over: the old one stops accepting connections, and sends its hosts away. They connect to the same addresses
//! again and find the new one. If the new one fails before that, the old one serves on. If the old one dies after it
//! has sent its sockets, the new one serves all the same.
//!
//! One process at a time writes to a namespace. The old one keeps the socket over which it has sent until it has ended;
//! so the new one learns when it may open what hosts write to. Until then their connections wait at the listening
//! sockets.
//!
//! [`Manager`] reports the service's state to systemd (`sd_notify`); the sockets that systemd has opened are taken over
//! too.

use std::error::Error as StdError;
use std::fs;
use std::io::{self, Read as _};
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt;
use serde_json::{Value, json};

use dlfs::process::{receive_files, send_files};
use dlfs::{Error, ErrorKind, Result};

use super::control::{bind_private, call};
use crate::log;

/// A takeover that has begun, of the service with this control socket.
pub(crate) struct Takeover {
    control: PathBuf,
    /// The other service closes it when it ends.
    other: UnixStream,
    has_finished: bool,
}

impl Takeover {
    /// Asks the service at this control socket for its listening sockets.
    ///
    /// # Errors
    /// No service answers there, or it cannot send them.
    pub(crate) fn begin(control: &Path) -> Result<(Takeover, Vec<TcpListener>)> {
        let place = beside(&std::path::absolute(control)?, "sockets");
        let _ = fs::remove_file(&place); // of a takeover that was killed
        let about = |error: io::Error| Error::from(error).path(&place);
        let listener = bind_private(&place).map_err(about)?;
        let asked = call(control, "takeover", json!({ "socket": place }));
        // The service has sent before it answered, so nothing waits here.
        let received = asked.and_then(|_| {
            listener.set_nonblocking(true)?;
            let (other, _) = listener.accept()?;
            Ok((receive(&other).map_err(about)?, other))
        });
        let _ = fs::remove_file(&place); // a leftover does no harm
        let (sockets, other) = received?;
        Ok((Takeover { control: control.to_owned(), other, has_finished: false }, sockets))
    }

    /// Lets the other service go, the first time: this one serves. The log says so if it does not answer.
    ///
    /// # Errors
    /// The other service refuses, and serves on.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_finished, true) {
            return Ok(());
        }
        let manager = Manager::of_environment();
        manager.follow(std::process::id()); // before the other one ends: the manager would end the service
        match call(&self.control, "hand-over", Value::Null) {
            Ok(_) => Ok(()),
            // Other errors have a source, or are of another kind.
            Err(error)
                if error.kind() == ErrorKind::Refused && StdError::source(&error).is_none() =>
            {
                if let Ok(other) = sockopt::socket_peercred(&self.other) {
                    manager.follow(other.pid.as_raw_nonzero());
                }
                Err(error)
            }
            Err(error) => {
                log::say(&format!(
                    "the old service has not left; end its process if it runs: {}",
                    error.report()
                ));
                Ok(())
            }
        }
    }

    /// As [`Takeover::finish`], and waits for the end of the other service: from then on this one may write.
    ///
    /// # Errors
    /// As [`Takeover::finish`]. `TimedOut`: it has not ended.
    pub(crate) fn finish_before_writing(&mut self) -> Result<()> {
        self.finish()?;
        self.other.set_read_timeout(Some(END_LIMIT))?;
        self.other.read_to_end(&mut Vec::new()).map(|_| ()).map_err(|error| {
            let limit = END_LIMIT.as_secs();
            let message =
                format!("the old service has not ended within {limit} s: it may still write");
            Error::new(ErrorKind::TimedOut, message)
                .source(error)
                .hint("end its process, and start this service again")
        })
    }
}

/// A path in the same folder for a socket of a takeover.
pub(crate) fn beside(control: &Path, name: &str) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(format!(".{name}"));
    path.into()
}

/// Sends listening sockets to the process that listens at `place`. Dropping the result tells it that this one ends.
///
/// # Errors
/// Errors of the operating system. `Unsupported`: there are too many sockets.
pub(super) fn send(sockets: &[&TcpListener], place: &Path) -> Result<UnixStream> {
    if sockets.len() > MAX_SOCKETS {
        let message = format!("more than {MAX_SOCKETS} addresses cannot be taken over");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let about = |error: io::Error| Error::from(error).path(place);
    let stream = UnixStream::connect(place).map_err(about)?;
    let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
    send_files(&stream, &[1], &fds).map_err(about)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Returns whether the process at the other end of what [`send`] has returned has ended. It never sends.
pub(super) fn is_closed(mut stream: &UnixStream) -> bool {
    stream.read(&mut [0]).is_ok()
}

/// Receives what [`send`] has sent.
fn receive(stream: &UnixStream) -> io::Result<Vec<TcpListener>> {
    let mut sockets = Vec::new();
    receive_files(stream, &mut [0], &mut sockets)?;
    Ok(sockets.into_iter().map(TcpListener::from).collect())
}

/// Time limit for a service to end: it sends hosts away within 5 s, and its threads end within another 5 s.
const END_LIMIT: Duration = Duration::from_secs(15);
/// The most sockets of a service that can be taken over.
const MAX_SOCKETS: usize = 64;

/// The service manager's socket, if a manager wants reports.
pub(crate) struct Manager(Option<(UnixDatagram, SocketAddr)>);

impl Manager {
    /// The manager in `NOTIFY_SOCKET`.
    pub(crate) fn of_environment() -> Manager {
        Manager(std::env::var_os("NOTIFY_SOCKET").and_then(|name| {
            let address = match name.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
                _ => SocketAddr::from_pathname(&name),
            };
            // Without a socket the service runs without reports; the manager notices that none come.
            Some((UnixDatagram::unbound().ok()?, address.ok()?))
        }))
    }

    /// Reports that start-up or a reload is complete.
    pub(crate) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// Makes this process the one that the manager follows, when services take over from each other.
    pub(crate) fn follow(&self, pid: impl std::fmt::Display) {
        self.tell(&format!("MAINPID={pid}"));
    }

    /// Reports that a reload has begun; [`Manager::ready`] reports its end.
    pub(crate) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
    }

    /// Reports that the service ends.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=sending hosts away");
    }

    fn tell(&self, state: &str) {
        if let Some((socket, address)) = &self.0 {
            // If this fails, the manager's own time limit applies.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }
}

/// The listening sockets that the service manager has opened (`LISTEN_FDS`).
///
/// # Errors
/// `InvalidArgument`: one of the descriptors is not a listening TCP socket.
pub(crate) fn inherited() -> Result<Vec<TcpListener>> {
    let mut sockets = listenfd::ListenFd::from_env();
    (0..sockets.len())
        .map(|number| {
            let refused = || {
                let message =
                    format!("socket {number} of the service manager does not listen for TCP");
                Error::new(ErrorKind::InvalidArgument, message)
                    .hint("ListenStream= in the socket unit takes HOST:PORT")
            };
            let socket = sockets.take_tcp_listener(number);
            socket.map_err(|error| refused().source(error))?.ok_or_else(refused)
        })
        .collect()
}
