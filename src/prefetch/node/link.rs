//! A client's connection to the owner of its node's loader, and the window that it maps.
//!
//! A message has its whole length (4 bytes), that of its JSON (4 bytes), its JSON, and of a batch numbers: of samples,
//! of rows, and of inputs of a row; then each sample and each segment. Both sides are on one machine.

use std::io::ErrorKind as IoKind;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::buf::{HugePages, Loan, Registrar, SealedLocation, SharedBytes};
use crate::error::{Error, ErrorKind, Result};
use crate::order::budget::RowPlace;
use crate::prefetch::window::warn_of_refusal;
use crate::process::{NotInherited, process_id, receive_files};
use crate::tokens::{Layout, Segment};

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
        frame(&message, &[], &mut queue.bytes);
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

/// A position in the run: an epoch, and its consumed positions.
pub(super) type Position = (u64, u64);

/// A message of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToOwner {
    /// The first message.
    Hello { protocol: u32, seat: u64 },
    /// The client goes on from this position. Batches that were sent for earlier turns are released unread.
    Want { turn: u32, position: Position },
    /// The client has taken a batch of this turn.
    Took { turn: u32 },
    /// The client has dropped its part of an entry.
    Release { entry: u64 },
    /// The client asks why it gets no batch.
    Why,
    /// The client takes no more batches, and still has some.
    Leave,
}

/// A message of the owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToClient {
    /// The answer to a hello: the version of the messages, and the length of the window, whose file comes with it.
    Welcome { protocol: u32, window_len: u64 },
    /// A batch, and the layout of its rows if it has rows of tokens.
    Batch(BatchHead, #[serde(skip)] Vec<SamplePlace>, #[serde(skip)] Layout),
    /// No batch of this turn follows.
    End { turn: u32 },
    /// The owner failed in this turn, or refuses the client.
    Failed { turn: u32, kind: ErrorKind, text: String },
    /// The answer to `Why`: the seats that are waited for.
    Holders(Vec<u32>),
}

/// A batch without its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BatchHead {
    pub(super) turn: u32,
    /// The number of the cause for which the owner waited most.
    pub(super) cause: u32,
    pub(super) ends_epoch: bool,
    pub(super) entry: u64,
    pub(super) epoch: u64,
    /// The state of the rank behind the batch.
    pub(super) after: Position,
    /// Its place, if batches are rows of tokens.
    pub(super) place: Option<RowPlace>,
    pub(super) skipped: u64,
    /// Bytes that do not lie in the window.
    pub(super) loose: Option<SealedLocation>,
}

/// A sample: its source, if the batch is of a mixture, and where its bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct SamplePlace {
    pub(super) id: u64,
    /// An offset in the window; with [`LOOSE`], in the loose bytes.
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) source: u32,
}

/// An error: the other side sent what no version of dlfs sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl ToClient {
    /// Appends the message to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut numbers = Vec::new();
        if let ToClient::Batch(_, samples, Layout { num_rows, seq_len, segments }) = self {
            numbers.extend([samples.len() as u32, *num_rows, *seq_len].as_bytes());
            numbers.extend(samples.as_bytes());
            for &Segment { row, column, document, from, len } in segments {
                numbers.extend([row, column, document, from, len].as_bytes());
            }
        }
        frame(self, &numbers, out);
    }

    /// The first message in `bytes` and its length; `None`: it is not complete yet.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(ToClient, usize)>, Malformed> {
        let Some((mut message, numbers, len)) = unframe(bytes, MAX_MESSAGE_BYTES)? else {
            return Ok(None);
        };
        if let ToClient::Batch(_, samples, layout) = &mut message {
            let counts = <[u32; 3]>::read_from_prefix(numbers);
            let ([count, num_rows, seq_len], numbers) = counts.map_err(|_| Malformed)?;
            let of_samples = (count as usize).saturating_mul(size_of::<SamplePlace>());
            let (places, numbers) = numbers.split_at_checked(of_samples).ok_or(Malformed)?;
            *samples = all(places).collect();
            let segments = all(numbers).map(|[row, column, document, from, len]: [u32; 5]| {
                Segment { row, column, document, from, len }
            });
            *layout = Layout { num_rows, seq_len, segments: segments.collect() };
        }
        Ok(Some((message, len)))
    }
}

/// The values in `bytes`, one behind the other.
fn all<T: FromBytes>(bytes: &[u8]) -> impl Iterator<Item = T> {
    bytes.chunks(size_of::<T>()).filter_map(|bytes| T::read_from_bytes(bytes).ok())
}

/// Appends `message` to `out`, with `numbers` behind it.
fn frame(message: &impl Serialize, numbers: &[u8], out: &mut Vec<u8>) {
    let json = serde_json::to_vec(message).expect("numbers and texts become JSON in memory");
    let len = 8 + json.len() + numbers.len();
    out.extend([len as u32, json.len() as u32].as_bytes());
    out.extend(json);
    out.extend(numbers);
}

/// A message, the numbers behind it, and its length with them.
type Unframed<'a, T> = (T, &'a [u8], usize);

/// The first message in `bytes`, of `most` bytes at most; `None`: it is not complete yet.
pub(super) fn unframe<T: DeserializeOwned>(
    bytes: &[u8],
    most: usize,
) -> Result<Option<Unframed<'_, T>>, Malformed> {
    let Ok(([len, of_json], _)) = <[u32; 2]>::read_from_prefix(bytes) else { return Ok(None) };
    let len = len as usize;
    if !(8..=most).contains(&len) {
        return Err(Malformed);
    }
    let Some(body) = bytes.get(8..len) else { return Ok(None) };
    let (json, numbers) = body.split_at_checked(of_json as usize).ok_or(Malformed)?;
    let message = serde_json::from_slice(json).map_err(|_| Malformed)?;
    Ok(Some((message, numbers, len)))
}

/// The timeout of the owner's first answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

const LONGEST_POLL: Duration = Duration::from_secs(1);

/// Room for several batches.
const RECEIVE_BYTES: usize = 64 << 10;

/// The version of these messages.
pub(super) const PROTOCOL: u32 = 3;

/// More than any message of a client has.
pub(super) const MAX_TO_OWNER_BYTES: usize = 1 << 10;

/// The bit of an offset that lies in the loose bytes.
pub(super) const LOOSE: u64 = 1 << 63;

/// More samples than any batch has.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> Vec<ToClient> {
        let loose = Some(SealedLocation { pid: 1, fd: 2, dev: 3, ino: 4 });
        let head = BatchHead {
            turn: 7,
            cause: 2,
            ends_epoch: true,
            entry: 1 << 40,
            epoch: 3,
            after: (4, 0),
            place: Some(RowPlace { position: 1, tokens: 2, rows: 3, check: 0 }),
            skipped: 1,
            loose,
        };
        let sample = SamplePlace { id: 9, offset: LOOSE | 4096, len: 17, source: 1 };
        let segment = Segment { row: 0, column: 2, document: 1, from: 7, len: 5 };
        let rows = Layout {
            num_rows: 2,
            seq_len: 9,
            segments: vec![segment, Segment { row: 1, ..segment }],
        };
        let mut all = vec![
            ToClient::Welcome { protocol: PROTOCOL, window_len: 256 << 20 },
            ToClient::Batch(head, vec![sample, SamplePlace { id: 10, ..sample }], rows),
            ToClient::Batch(
                BatchHead { loose: None, place: None, ends_epoch: false, ..head },
                Vec::new(),
                Layout::default(),
            ),
            ToClient::End { turn: 3 },
            ToClient::Holders(vec![1, 5]),
        ];
        let kinds = [ErrorKind::NotFound, ErrorKind::Busy, ErrorKind::DeviceLost];
        all.extend(kinds.map(|kind| ToClient::Failed { turn: 7, kind, text: "why: ä".into() }));
        all
    }

    #[test]
    fn messages_are_read_as_written_once_they_are_complete() {
        for message in messages() {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            for len in 0..bytes.len() {
                assert_eq!(ToClient::parse(&bytes[..len]), Ok(None));
            }
            let len = bytes.len();
            bytes.push(1);
            assert_eq!(ToClient::parse(&bytes), Ok(Some((message, len))));
        }
        for message in [
            ToOwner::Hello { protocol: PROTOCOL, seat: 3 },
            ToOwner::Want { turn: 2, position: (5, 6) },
            ToOwner::Took { turn: 2 },
            ToOwner::Release { entry: 1 << 40 },
            ToOwner::Why,
            ToOwner::Leave,
        ] {
            let mut bytes = Vec::new();
            frame(&message, &[], &mut bytes);
            let read = unframe(&bytes, MAX_TO_OWNER_BYTES);
            assert_eq!(read, Ok(Some((message, &[][..], bytes.len()))));
        }
        assert_eq!(unframe::<ToOwner>(&[9; 24], MAX_TO_OWNER_BYTES), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..7) {
            let _ = ToClient::parse(&bytes);
            let len = bytes.len() as u32;
            if len >= 8 {
                bytes[..4].copy_from_slice(&len.to_le_bytes());
                bytes[4..8].copy_from_slice(&u32::from(kind).to_le_bytes());
                let _ = ToClient::parse(&bytes);
            }
        }
    }
}
