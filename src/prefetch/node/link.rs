//! A client's connection to the owner of its node's loader, and the window that it maps.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send,
};

use crate::buf::{HugePages, Loan, Registrar, SharedBytes};
use crate::error::{Error, ErrorKind, Result};
use crate::prefetch::window::warn_of_refusal;
use crate::process::{NotInherited, process_id};

use super::messages::{PROTOCOL, ToClient, ToOwner};

/// The connection of a client that has a seat.
pub(super) struct Link {
    outbox: Arc<Outbox>,
    window: SharedBytes,
    inbox: Vec<u8>,
    /// Bytes at the front of `inbox` that were handled.
    handled: usize,
}

/// The result of waiting for a message.
pub(super) enum Received {
    Message(ToClient),
    Nothing,
    /// The owner has ended.
    Ended,
}

/// Messages to the owner, of the thread that asks for batches and of those that drop them.
struct Outbox {
    queue: Mutex<Queue>,
    _own: NotInherited,
    stream: UnixStream,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    /// Set while messages are gathered: they are sent together.
    is_held: bool,
}

impl Link {
    /// Takes `seat` on a new connection; `None`: the owner has just ended.
    ///
    /// # Errors
    /// `Busy`: another process has the seat. `Unsupported`: the owner has another version. `TimedOut`: it does not
    /// answer.
    pub(super) fn open(stream: UnixStream, seat: u32) -> Result<Option<Link>> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        let own = NotInherited::close(stream.as_fd());
        let outbox = Arc::new(Outbox { queue: Mutex::default(), _own: own, stream });
        outbox.push(ToOwner::Hello { protocol: PROTOCOL, seat: seat.into() });
        let mut inbox = Vec::new();
        let mut files = Vec::new();
        let (message, len) = loop {
            if let Some(found) = ToClient::parse(&inbox).map_err(|_| unknown())? {
                break found;
            }
            match receive_files(&outbox.stream, &mut inbox, &mut files) {
                Ok(0) | Err(Errno::CONNRESET) => return Ok(None),
                Ok(_) => {}
                Err(Errno::AGAIN) => {
                    let text = "the process that reads for this node does not answer";
                    return Err(Error::new(ErrorKind::TimedOut, text).hint("is it stopped?"));
                }
                Err(errno) => return Err(std::io::Error::from(errno).into()),
            }
        };
        let window_len = match message {
            ToClient::Welcome { protocol: PROTOCOL, window_len } => window_len,
            ToClient::Failed { kind, text, .. } => return Err(refused(kind, text)),
            _ => return Err(unknown()),
        };
        let (Some(file), Ok(len_of_window)) = (files.pop(), usize::try_from(window_len)) else {
            return Err(unknown());
        };
        let window = SharedBytes::open(file, len_of_window, HugePages::Auto)?;
        window.keep_from_children(); // batches change there when this process releases them
        Ok(Some(Link { outbox, window, inbox, handled: len }))
    }

    /// Registers the window, so that devices copy batches from it by DMA.
    pub(super) fn register(&self, registrar: &'static dyn Registrar) {
        self.window.register(registrar).unwrap_or_else(|error| warn_of_refusal(&error));
    }

    /// The length of the registered memory.
    pub(super) fn registered_bytes(&self) -> u64 {
        self.window.registered_bytes() as u64
    }

    /// Queues a message.
    pub(super) fn push(&self, message: ToOwner) {
        self.outbox.push(message);
    }

    /// Gathers messages until [`Link::flush`].
    pub(super) fn hold(&self) {
        self.outbox.queue.lock().is_held = true;
    }

    /// Sends the gathered messages.
    pub(super) fn flush(&self) {
        let mut queue = self.outbox.queue.lock();
        queue.is_held = false;
        self.outbox.send(&mut queue);
    }

    /// A loan of the window that ends with the last buffer of it: then the owner is told.
    pub(super) fn loan(&self, entry: u64) -> Loan {
        let outbox = Arc::clone(&self.outbox);
        self.window.loan(Lease { process: process_id(), entry, outbox })
    }

    /// Returns whether the owner has ended, or ends within a moment: a dying process may close its memory first.
    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.outbox.stream, PollFlags::empty())];
        let limit = Timespec::try_from(LONGEST_POLL).expect("a second");
        let polled = poll(&mut fds, Some(&limit));
        polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// The size of the window.
    pub(super) fn window_bytes(&self) -> usize {
        self.window.len()
    }

    /// The next message; waits until `until`, and then sends the gathered messages first.
    ///
    /// # Errors
    /// The owner sent what no owner sends.
    pub(super) fn receive(&mut self, until: Instant) -> Result<Received> {
        loop {
            if let Some((message, len)) =
                ToClient::parse(&self.inbox[self.handled..]).map_err(|_| unknown())?
            {
                self.handled += len;
                return Ok(Received::Message(message));
            }
            self.inbox.drain(..self.handled);
            self.handled = 0;
            let before = self.inbox.len();
            self.inbox.resize(before + RECEIVE_BYTES, 0);
            let room = &mut self.inbox[before..];
            let received = recv(&self.outbox.stream, room, RecvFlags::DONTWAIT);
            self.inbox.truncate(before + received.map_or(0, |(count, _)| count));
            match received {
                Ok((0, _)) => return Ok(Received::Ended),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.flush();
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(Received::Nothing);
                    }
                    let mut fds = [PollFd::new(&self.outbox.stream, PollFlags::IN)];
                    let limit = Timespec::try_from(left.min(LONGEST_POLL)).expect("a few seconds");
                    let _ = poll(&mut fds, Some(&limit)); // interrupted: asks again
                }
                Err(_) => return Ok(Received::Ended),
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Batches that nobody has taken yet.
        while let Ok(Received::Message(message)) = self.receive(Instant::now()) {
            if let ToClient::Batch(head, ..) = message {
                self.outbox.push(ToOwner::Release { entry: head.entry });
            }
        }
        // The connection lives on in leases: the owner must not think that they are gone.
        self.outbox.push(ToOwner::Leave);
        self.flush();
    }
}

impl Outbox {
    fn push(&self, message: ToOwner) {
        let mut queue = self.queue.lock();
        queue.bytes.extend(message.to_bytes());
        if !queue.is_held {
            self.send(&mut queue);
        }
    }

    /// Sends what the socket has room for. The owner always reads; if it is stopped, the next call sends the rest.
    fn send(&self, queue: &mut Queue) {
        let mut sent = 0;
        while sent < queue.bytes.len() {
            match send(
                &self.stream,
                &queue.bytes[sent..],
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => sent = queue.bytes.len(), // the owner has ended
            }
        }
        queue.bytes.drain(..sent);
    }
}

/// The right to an entry's memory in the window; dropping it tells the owner.
struct Lease {
    process: u32,
    entry: u64,
    outbox: Arc<Outbox>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a forked child, the parent still has the batch, and the lock may be held for ever.
        if self.process == process_id() {
            self.outbox.push(ToOwner::Release { entry: self.entry });
        }
    }
}

/// Receives bytes, and the files that come with them.
fn receive_files(
    stream: &UnixStream,
    bytes: &mut Vec<u8>,
    files: &mut Vec<OwnedFd>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut room = [0; 4096];
    let mut parts = [IoSliceMut::new(&mut room)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let count =
        rustix::io::retry_on_intr(|| recvmsg(stream, &mut parts, &mut control, flags))?.bytes;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            files.extend(found);
        }
    }
    bytes.extend(&room[..count]);
    Ok(count)
}

fn refused(kind: ErrorKind, text: String) -> Error {
    let error = Error::new(kind, text);
    match kind {
        ErrorKind::Busy => error.hint(
            "give each job a name of its own: job=, --job; and read with one loader at a time on each rank",
        ),
        ErrorKind::Unsupported => error.hint("run one version of dlfs on a node"),
        _ => error,
    }
}

/// The error of messages that no owner sends.
pub(super) fn unknown() -> Error {
    let text = "the process that reads for this node sent what no version of dlfs sends";
    Error::new(ErrorKind::Internal, text)
}

/// The timeout of the owner's first answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

const LONGEST_POLL: Duration = Duration::from_secs(1);

/// Room for several batches.
const RECEIVE_BYTES: usize = 64 << 10;
