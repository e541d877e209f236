//! A client's connection to the owner of its node's loader, and the window that the client maps.

use std::io::ErrorKind as IoKind;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::buf::{HugePages, Loan, Registrar, SharedBytes};
use crate::error::{Error, ErrorKind, Result};
use crate::prefetch::window::warn_of_refusal;
use crate::process::{NotInherited, process_id, receive_files};

use super::messages::{PROTOCOL, ToClient, ToOwner, frame, malformed};

/// The connection of a client that has a seat.
pub(super) struct Link {
    /// Shared with the held shares of entries, which may outlive the link.
    outbox: Arc<Outbox>,
    pub(super) window: SharedBytes,
    /// Room for received bytes, which is kept.
    inbox: Vec<u8>,
    /// The received bytes in `inbox` that are not handled yet.
    unhandled: Range<usize>,
}

/// The result of waiting for a message.
pub(super) enum Received {
    Message(ToClient),
    /// No message has arrived in time.
    Nothing,
    /// The owner has ended.
    Ended,
}

/// Messages to the owner, from the thread that asks for batches and from the threads that drop them.
struct Outbox {
    queue: Mutex<Queue>,
    /// Keeps forked children from holding the connection open.
    _own: NotInherited,
    stream: UnixStream,
}

#[derive(Default)]
struct Queue {
    /// Messages that are not sent yet, one after the other.
    bytes: Vec<u8>,
    /// Set while messages are gathered, to be sent together.
    is_held: bool,
}

impl Link {
    /// Takes `seat` on a new connection, and maps the window; `None`: the owner has just ended.
    ///
    /// # Errors
    /// `Busy`: another process has the seat. `Unsupported`: the owner runs another version. `TimedOut`: the owner does
    /// not answer. Errors of mapping.
    pub(super) fn open(stream: UnixStream, seat: u32) -> Result<Option<Link>> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        let own = NotInherited::close(stream.as_fd());
        let outbox = Arc::new(Outbox { queue: Mutex::default(), _own: own, stream });
        outbox.push(ToOwner::Hello { protocol: PROTOCOL, seat });
        let mut inbox = Vec::new();
        let mut files = Vec::new();
        let (message, len) = loop {
            if let Some(found) = ToClient::parse(&inbox).map_err(|_| malformed())? {
                break found;
            }
            let mut room = [0; 4096];
            match receive_files(&outbox.stream, &mut room, &mut files) {
                Ok(0) => return Ok(None),
                Ok(count) => inbox.extend(&room[..count]),
                Err(error) if error.kind() == IoKind::ConnectionReset => return Ok(None),
                Err(error) if error.kind() == IoKind::WouldBlock => {
                    let text = "the process that reads for this node does not answer";
                    return Err(Error::new(ErrorKind::TimedOut, text).hint("is it stopped?"));
                }
                Err(error) => return Err(error.into()),
            }
        };
        let window_len = match message {
            ToClient::Welcome { protocol: PROTOCOL, window_len } => window_len,
            ToClient::Failed { kind, text, .. } => return Err(refused(kind, text)),
            _ => return Err(malformed()),
        };
        let (Some(file), Ok(len_of_window)) = (files.pop(), usize::try_from(window_len)) else {
            return Err(malformed());
        };
        let window = SharedBytes::open(file, len_of_window, HugePages::Auto)?;
        window.keep_from_children(); // the owner reuses memory that this process has released, whatever children do
        let unhandled = len..inbox.len();
        Ok(Some(Link { outbox, window, inbox, unhandled }))
    }

    /// Registers the window, so that devices copy batches from it by DMA.
    pub(super) fn register(&self, registrar: &'static dyn Registrar) {
        self.window.register(registrar).unwrap_or_else(|error| warn_of_refusal(&error));
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

    /// A loan of the window for the buffers of `entry`. When the last buffer is dropped, this rank's share of the entry
    /// is released.
    pub(super) fn loan(&self, entry: u64) -> Loan {
        let outbox = Arc::clone(&self.outbox);
        self.window.loan(HeldShare { process: process_id(), entry, outbox })
    }

    /// Returns whether the owner has ended or ends within [`LONGEST_POLL`]: a dying process may close its memory before
    /// its connections.
    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.outbox.stream, PollFlags::empty())];
        let limit = Timespec::try_from(LONGEST_POLL).expect("a second");
        let polled = poll(&mut fds, Some(&limit));
        polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// The next message; waits for it until `until`. Sends the gathered messages before it waits.
    ///
    /// # Errors
    /// The owner has sent an invalid message.
    pub(super) fn receive(&mut self, until: Instant) -> Result<Received> {
        loop {
            let bytes = &self.inbox[self.unhandled.clone()];
            if let Some((message, len)) = ToClient::parse(bytes).map_err(|_| malformed())? {
                self.unhandled.start += len;
                return Ok(Received::Message(message));
            }
            let filled = self.unhandled.len();
            if self.unhandled.start > 0 {
                self.inbox.copy_within(self.unhandled.clone(), 0);
            }
            self.unhandled = 0..filled;
            if self.inbox.len() < filled + RECEIVE_BYTES {
                self.inbox.resize(filled + RECEIVE_BYTES, 0);
            }
            let received =
                recv(&self.outbox.stream, &mut self.inbox[filled..], RecvFlags::DONTWAIT);
            self.unhandled.end += received.map_or(0, |(count, _)| count);
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
        // Batches that have arrived and were never taken.
        while let Ok(Received::Message(message)) = self.receive(Instant::now()) {
            if let ToClient::Batch(head, ..) = message {
                self.outbox.push(ToOwner::Release { entry: head.entry });
            }
        }
        // Held shares keep the connection open, so that the owner keeps the memory of their entries.
        self.outbox.push(ToOwner::Leave);
        self.flush();
    }
}

impl Outbox {
    /// Queues a message, and sends the queue unless messages are gathered.
    fn push(&self, message: ToOwner) {
        let mut queue = self.queue.lock();
        frame(&message, &[], &mut queue.bytes);
        if !queue.is_held {
            self.send(&mut queue);
        }
    }

    /// Sends as much of the queue as the socket has room for. The next call sends the rest: the owner reads all the
    /// time, unless it is stopped.
    fn send(&self, queue: &mut Queue) {
        if !send_queued(&self.stream, &mut queue.bytes) {
            queue.bytes.clear(); // the owner has ended
        }
    }
}

/// Sends as much of `bytes` as the socket has room for, and removes that from `bytes`. Returns `false` if the
/// connection has ended.
pub(super) fn send_queued(stream: &UnixStream, bytes: &mut Vec<u8>) -> bool {
    let mut sent = 0;
    let mut is_open = true;
    while is_open && sent < bytes.len() {
        match send(stream, &bytes[sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(count) => sent += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(_) => is_open = false,
        }
    }
    bytes.drain(..sent);
    is_open
}

/// This rank's share of an entry, whose memory in the window its batch uses; dropping it releases the share.
struct HeldShare {
    /// The process that has the batch: a forked child drops a copy.
    process: u32,
    entry: u64,
    outbox: Arc<Outbox>,
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        // In a forked child, the parent still has the batch, and a thread of the parent may hold the lock for ever.
        if self.process == process_id() {
            self.outbox.push(ToOwner::Release { entry: self.entry });
        }
    }
}

/// The error by which the owner refuses a client.
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

/// The timeout of the owner's first answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// The longest wait of one call of `poll`.
const LONGEST_POLL: Duration = Duration::from_secs(1);

/// Bytes received at a time: several batches.
const RECEIVE_BYTES: usize = 64 << 10;
