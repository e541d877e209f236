//! The service manager, such as systemd: reports of the service's state (`sd_notify`), and the listening sockets that
//! the manager has opened.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use dlfs::{Error, ErrorKind, Result};

/// The socket for reports to the service manager; `None`: no manager wants reports.
pub(crate) struct Manager(Option<(UnixDatagram, SocketAddr)>);

impl Manager {
    /// The manager that the environment variable `NOTIFY_SOCKET` names.
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

    /// Reports that the start or a reload is complete.
    pub(crate) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// Makes the process `pid` the main process of the service, when services take over from each other.
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

    /// Sends a report.
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
