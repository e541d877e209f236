//! Takes the place of a service that runs: `dlfs serve --takeover`.
//!
//! The new service asks the old one over its control socket for its listening sockets. The old one sends duplicates
//! over a Unix socket that the new one has opened for them. Once the new one serves, it asks the old one to hand
//! over: the old one stops accepting connections, and sends its hosts away. They connect to the same addresses
//! again and find the new one. If the new one fails before that, the old one serves on. If the old one dies after it
//! has sent its sockets, the new one serves all the same.

use std::error::Error as StdError;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde_json::{Value, json};

use dlfs::{Error, ErrorKind, Result};

use super::control::{bind_private, call};

/// A takeover that has begun, of the service with this control socket.
pub(crate) struct Takeover {
    control: PathBuf,
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
            receive(&listener.accept()?.0).map_err(about)
        });
        let _ = fs::remove_file(&place); // a leftover does no harm
        Ok((Takeover { control: control.to_owned() }, received?))
    }

    /// Lets the other service go: this one serves. Returns why it has not answered, if it has not.
    ///
    /// # Errors
    /// The other service refuses, and serves on.
    pub(crate) fn finish(&self) -> Result<Option<String>> {
        match call(&self.control, "hand-over", Value::Null) {
            Ok(_) => Ok(None),
            // Other errors have a source, or are of another kind.
            Err(error)
                if error.kind() == ErrorKind::Refused && StdError::source(&error).is_none() =>
            {
                Err(error)
            }
            Err(error) => Ok(Some(error.report())),
        }
    }
}

/// A path in the same folder for a socket of a takeover.
pub(crate) fn beside(control: &Path, name: &str) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(format!(".{name}"));
    path.into()
}

/// Sends listening sockets to the process that listens at `place`.
///
/// # Errors
/// Errors of the operating system. `Unsupported`: there are too many sockets.
pub(super) fn send(sockets: &[&TcpListener], place: &Path) -> Result<()> {
    if sockets.len() > MAX_SOCKETS {
        let message = format!("more than {MAX_SOCKETS} addresses cannot be taken over");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let about = |error: io::Error| Error::from(error).path(place);
    let stream = UnixStream::connect(place).map_err(about)?;
    let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let byte = [IoSlice::new(&[1])];
    sendmsg(&stream, &byte, &mut control, SendFlags::NOSIGNAL).map_err(|e| about(e.into()))?;
    Ok(())
}

/// Receives what [`send`] has sent.
fn receive(stream: &UnixStream) -> io::Result<Vec<TcpListener>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(rights.flatten().map(TcpListener::from).collect())
}

/// The most sockets of a service that can be taken over.
const MAX_SOCKETS: usize = 64;
