//! Attached process's side of a connection: sends pages to keep to the owner, and detects the owner's end.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use std::convert::Infallible;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::frames::Frame;
use dlfs_base::buf::IoBuf;
use dlfs_base::error::Result;
use dlfs_base::process::NotInherited;
use dlfs_base::threads::{self, Fate, Thread};

/// A message to the owner.
pub(in crate::cache) type Message = Frame<IoBuf>;

/// A connection to the owner of the tiers, with two threads: one sends messages, one waits for the owner's
/// end.
pub(in crate::cache) struct Link {
    /// Queue of messages; `None` ends it.
    messages: Sender<Option<Message>>,
    connection: Arc<Connection>,
    is_alive: Arc<AtomicBool>,
    queued_bytes: Arc<AtomicUsize>,
    ended: Receiver<Infallible>,
    /// The threads end with the connection; nobody joins them.
    _threads: [Thread; 2],
}

/// The socket; forked children do not keep it open, so the owner notices the end of this process.
struct Connection {
    _own: NotInherited,
    stream: UnixStream,
}

impl Link {
    /// Starts the threads of a connection.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(in crate::cache) fn start(stream: UnixStream) -> Result<Link> {
        let (messages, received) = unbounded();
        let (held, ended) = bounded(0);
        let is_alive = Arc::new(AtomicBool::new(true));
        let queued_bytes = Arc::<AtomicUsize>::default();
        let own = NotInherited::close(stream.as_fd());
        let stream = Arc::new(Connection { _own: own, stream });
        let sending = Sending {
            connection: Arc::clone(&stream),
            messages: received,
            end: End { is_alive: Arc::clone(&is_alive), _held: held },
            queued_bytes: Arc::clone(&queued_bytes),
        };
        let end = Arc::clone(&is_alive);
        let waiting = (Arc::clone(&stream), messages.clone(), end);
        let threads = [
            threads::start(SENDER, &Fate::default(), sending, Sending::run)?,
            threads::start(WATCHER, &Fate::default(), waiting, |(connection, messages, end)| {
                // The owner sends nothing after its first message, and `read_exact` retries after a signal:
                // it returns only when the owner has ended.
                let _ = (&mut &connection.stream).read_exact(&mut [0]);
                end.store(false, Ordering::Release);
                let _ = messages.send(None); // wakes the sender
            })?,
        ];
        Ok(Link { messages, connection: stream, is_alive, queued_bytes, ended, _threads: threads })
    }

    /// Returns whether the connection to the owner is open.
    pub(in crate::cache) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Channel that is disconnected when the connection has ended.
    pub(in crate::cache) fn ended(&self) -> Receiver<Infallible> {
        self.ended.clone()
    }

    /// Queues a message; messages are sent in order.
    pub(in crate::cache) fn send(&self, message: Message) {
        let _ = self.messages.send(Some(message)); // fails only when the connection has ended
    }

    /// Bytes of queued messages.
    pub(in crate::cache) fn queued_bytes(&self) -> &AtomicUsize {
        &self.queued_bytes
    }

    /// Returns whether no message is queued.
    pub(in crate::cache) fn is_idle(&self) -> bool {
        self.messages.is_empty() || !self.is_alive()
    }

    /// Sends all queued messages, for up to [`LAST_SENDS`], and ends the connection.
    pub(in crate::cache) fn finish(&self) {
        let _ = self.messages.send(None); // fails only when the connection has ended
        let _ = self.ended.recv_timeout(LAST_SENDS); // nothing is sent: waits for the end or the timeout
        self.close();
    }

    /// Ends the connection; the threads end by themselves.
    fn close(&self) {
        self.is_alive.store(false, Ordering::Release);
        let _ = self.connection.stream.shutdown(Shutdown::Both); // fails only when the connection has ended
        let _ = self.messages.send(None);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Guard that marks the connection as ended, also when its thread panics.
struct End {
    is_alive: Arc<AtomicBool>,
    _held: Sender<Infallible>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.is_alive.store(false, Ordering::Release);
    }
}

struct Sending {
    connection: Arc<Connection>,
    messages: Receiver<Option<Message>>,
    end: End,
    queued_bytes: Arc<AtomicUsize>,
}

impl Sending {
    fn run(&mut self) {
        while let Ok(Some(message)) = self.messages.recv() {
            if let Err(error) = self.send(&message) {
                tracing::debug!(%error, "the owner of the tiers takes no more data");
                break;
            }
        }
        self.end.is_alive.store(false, Ordering::Release);
        let _ = self.connection.stream.shutdown(Shutdown::Both); // wakes the thread that waits for the owner's end
    }

    fn send(&self, message: &Message) -> std::io::Result<()> {
        let mut stream = &self.connection.stream;
        stream.write_all(&message.head())?;
        stream.write_all(&message.body())?;
        if let Message::Piece { bytes, .. } = message {
            self.queued_bytes.fetch_sub(bytes.len(), Ordering::AcqRel);
        }
        Ok(())
    }
}

/// Timeout for an owner to receive the last data.
const LAST_SENDS: Duration = Duration::from_secs(5);

const SENDER: &str = "dlfs-tiers-send";
const WATCHER: &str = "dlfs-tiers-watch";
