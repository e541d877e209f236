//! Takes the place of a running service: `dlfs serve --takeover`.
//!
//! 1. The new service asks the old one over the control socket for the listening sockets. The old service sends
//!    duplicates over a Unix socket that the new service has opened for them.
//! 2. Once the new service serves all subsystems that hosts do not write to, it asks the old one to hand over. The old
//!    service stops accepting connections, and sends its hosts away. The hosts connect to the same addresses again, and
//!    reach the new service.
//!
//! If the new service fails before the second step, the old one continues to serve. If the old service dies after the
//! first step, the new one serves all the same.
//!
//! One process at a time writes to a namespace. The old service keeps its end of the Unix socket open until it has
//! ended. The new service waits for that before it opens namespaces that hosts write to. Until then, connections of
//! hosts wait at the listening sockets.

use std::error::Error as StdError;
use std::fs;
use std::io::{self, Read as _};
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt;
use serde_json::{Value, json};

use dlfs::process::{receive_files, send_files};
use dlfs::{Error, ErrorKind, Result};

use super::control::{bind_private, call};
use super::manager::Manager;
use crate::log;

/// A takeover that has begun, of the service with this control socket.
pub(crate) struct Takeover {
    control: PathBuf,
    /// The socket over which the other service has sent; the other service closes it when it ends.
    other: UnixStream,
    /// Set once the other service was asked to hand over.
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

    /// Asks the other service to hand over, unless an earlier call has. If the other service does not answer, only a
    /// line of the log says so.
    ///
    /// # Errors
    /// The other service refuses, and continues to serve.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_finished, true) {
            return Ok(());
        }
        let manager = Manager::of_environment();
        manager.follow(std::process::id()); // before the other one ends: the manager would end the service
        match call(&self.control, "hand-over", Value::Null) {
            Ok(_) => Ok(()),
            // An error that the other service answers has this kind and no source.
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

    /// As [`Takeover::finish`], and waits until the other service has ended: from then on this one may write.
    ///
    /// # Errors
    /// As [`Takeover::finish`]. `TimedOut`: the other service has not ended in time.
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

/// The path of another socket beside the control socket.
pub(crate) fn beside(control: &Path, name: &str) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(format!(".{name}"));
    path.into()
}

/// Sends listening sockets to the process that listens at `place`. That process sees this one end when the returned
/// stream is dropped.
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

/// Returns whether the process at the other end of a stream from [`send`] has ended. That process never sends.
pub(super) fn is_closed(mut stream: &UnixStream) -> bool {
    stream.read(&mut [0]).is_ok()
}

/// Receives the sockets of [`send`].
fn receive(stream: &UnixStream) -> io::Result<Vec<TcpListener>> {
    let mut sockets = Vec::new();
    receive_files(stream, &mut [0], &mut sockets)?;
    Ok(sockets.into_iter().map(TcpListener::from).collect())
}

/// Time limit for a service to end: it sends hosts away within 5 s, and its threads end within another 5 s.
const END_LIMIT: Duration = Duration::from_secs(15);
/// The most sockets of a service that can be taken over.
const MAX_SOCKETS: usize = 64;
