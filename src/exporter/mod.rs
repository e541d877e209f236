//! Serves the metrics of this process over HTTP.
//!
//! Each counted object (a target, a data set, a loader, tiers, peers, a store) registers itself with `registry`.
//! [`snapshot`] sums the counters of all registered objects, open and closed. [`Exporter`] serves the snapshot as
//! OpenMetrics at `/metrics`. No code here runs on the data path. A forked child begins with an empty registry, so it
//! counts only objects that it opens itself.
//!
//! The server supports the part of HTTP/1.1 that scrapers need, on one thread. Any client may connect, so all resources
//! are bounded: 32 connections (a further one replaces the oldest), and for each connection 10 s, one request of 8 KiB
//! and one response. A slow or silent client does not delay the others.

use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::{Result, cannot_listen};
use crate::metrics::{BUILD, CONTENT_TYPE, Snapshot};
use crate::process::{Forked, NotInherited};
use crate::registry;
use crate::threads::{self, Fate, Thread, caught};

/// The metrics of this process, and the version and commit of this build.
///
/// Waits up to 100 ms for each loader whose consumer is waiting for a batch.
pub fn snapshot() -> Snapshot {
    let mut snapshot = registry::collect();
    snapshot.count(&BUILD, &[env!("CARGO_PKG_VERSION"), crate::COMMIT], 1);
    snapshot
}

/// Serves the metrics of this process over HTTP until it is dropped.
pub struct Exporter {
    local_addr: SocketAddr,
    /// An eventfd; writing to it ends the thread.
    stop: OwnedFd,
    /// The serving thread; a forked child has none.
    thread: Forked<Option<Thread>>,
    /// Tells whether the thread died.
    fate: Fate,
}

impl Exporter {
    /// Listens on `address`, and answers `GET /metrics` with [`snapshot`] as OpenMetrics.
    ///
    /// Requests are not authenticated: choose a loopback address, or a network whose hosts may see the counters, and
    /// the names of subsystems and tiers.
    ///
    /// # Errors
    /// `Busy`: the port is in use. `InvalidArgument`: this machine does not have the address. Errors of
    /// starting a thread.
    pub fn serve(address: SocketAddr) -> Result<Exporter> {
        let refused = |error| cannot_listen("serve metrics", address, error);
        let listener = TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true)?;
        let local_addr = listener.local_addr()?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = stop.map_err(io::Error::from)?;
        let fate = Fate::default();
        let stopped = stop.try_clone()?;
        let own = NotInherited::close(listener.as_fd());
        let responder = Responder { _own: own, listener, stop: stopped, clients: Vec::new() };
        let thread = threads::start("dlfs-metrics", &fate, responder, Responder::run)?;
        Ok(Exporter { local_addr, stop, thread: Forked::new(Some(thread)), fate })
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Checks that the thread has not died.
    ///
    /// # Errors
    /// `Internal`: the thread has died.
    pub fn check(&self) -> Result<()> {
        self.fate.died().map_or(Ok(()), Err)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let Some(thread) = self.thread.get_mut().and_then(Option::take) else { return };
        // Fails only if the eventfd's counter is full, and then the eventfd is readable.
        let _ = rustix::io::write(&self.stop, &1_u64.to_le_bytes());
        thread.join_within(STOP_LIMIT);
    }
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Exporter({})", self.local_addr)
    }
}

/// State of the serving thread.
struct Responder {
    /// Keeps forked children from holding the port.
    _own: NotInherited,
    listener: TcpListener,
    /// Readable once the thread is to end.
    stop: OwnedFd,
    /// Connections, the oldest first.
    clients: Vec<Client>,
}

/// A connection. It receives a request while `answer` is empty, then sends `answer`, then waits for the client to
/// close.
struct Client {
    /// Keeps forked children from holding the connection open.
    _own: NotInherited,
    stream: TcpStream,
    /// Time at which the connection is closed in any case.
    deadline: Instant,
    /// The part of the request that has arrived.
    received: Vec<u8>,
    /// The whole response; empty until the request is complete.
    answer: Vec<u8>,
    /// Number of bytes of `answer` that were sent.
    sent: usize,
}

impl Responder {
    fn run(&mut self) {
        while self.wait() {
            let now = Instant::now();
            self.clients.retain_mut(|client| {
                let stays = client.advance().unwrap_or_else(|error| is_transient(error.kind()));
                stays && now < client.deadline
            });
            self.accept(now);
        }
    }

    /// Waits until a connection is ready or at its deadline; `false`: the thread is to end.
    fn wait(&self) -> bool {
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
        ];
        fds.extend(self.clients.iter().map(|client| {
            let is_sending = client.sent < client.answer.len();
            let flags = if is_sending { PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(client.stream.as_fd(), flags)
        }));
        let first = self.clients.iter().map(|client| client.deadline).min();
        let timeout = first.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        // A signal may interrupt the call: then nothing is ready, and the loop polls again.
        let _ = poll(&mut fds, timeout.as_ref());
        fds[0].revents().is_empty()
    }

    /// Accepts the connections that are waiting.
    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_transient(error.kind()) => return,
                Err(_) => {
                    // File descriptors or memory have run out, and the listener stays ready: without the pause,
                    // the loop would spin.
                    std::thread::sleep(OUT_OF_RESOURCES_PAUSE);
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() == MAX_CLIENTS {
                self.clients.remove(0);
            }
            let (received, answer) = Default::default();
            let deadline = now + CLIENT_LIMIT;
            let own = NotInherited::close(stream.as_fd());
            self.clients.push(Client { _own: own, stream, deadline, received, answer, sent: 0 });
        }
    }
}

impl Client {
    /// Receives and sends as far as possible without blocking; `false`: the connection is done.
    ///
    /// # Errors
    /// `WouldBlock`: the client must act first. Other errors of the connection.
    fn advance(&mut self) -> io::Result<bool> {
        while self.answer.is_empty() {
            let mut bytes = [0; MAX_HEAD_BYTES];
            let room = MAX_HEAD_BYTES - self.received.len();
            let len = self.stream.read(&mut bytes[..room])?;
            if len == 0 {
                return Ok(false);
            }
            self.received.extend_from_slice(&bytes[..len]);
            self.answer = respond(&self.received);
        }
        while self.sent < self.answer.len() {
            match self.stream.write(&self.answer[self.sent..])? {
                0 => return Ok(false),
                len => self.sent += len,
            }
        }
        // Closing a socket with unread bytes resets the connection, and the client would lose the response. So wait
        // until the client closes, or until the deadline.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        Ok(self.stream.read(&mut [0; 4096])? > 0)
    }
}

/// The response to the received bytes; empty while the request is incomplete.
fn respond(received: &[u8]) -> Vec<u8> {
    match parse(received) {
        Request::Incomplete => Vec::new(),
        Request::Refused(status, why) => answer(status, "text/plain", &format!("{why}\n"), false),
        Request::Metrics { is_head } => match caught("metrics", || snapshot().to_openmetrics()) {
            Ok(text) => answer("200 OK", CONTENT_TYPE, &text, is_head),
            Err(error) => {
                let text = format!("{error}\n");
                answer("500 Internal Server Error", "text/plain", &text, is_head)
            }
        },
    }
}

/// A whole response. `is_head`: the request was HEAD, so the body is left out.
fn answer(status: &str, content_type: &str, body: &str, is_head: bool) -> Vec<u8> {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         {allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if !is_head {
        answer.push_str(body);
    }
    answer.into_bytes()
}

/// Returns whether the operation may succeed later on the same socket.
fn is_transient(kind: IoKind) -> bool {
    matches!(kind, IoKind::WouldBlock | IoKind::Interrupted | IoKind::ConnectionAborted)
}

/// A parsed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// More bytes must arrive.
    Incomplete,
    /// A request for the metrics.
    Metrics {
        /// True for HEAD: the response has no body.
        is_head: bool,
    },
    /// A request to refuse with this status; the sentence is the body.
    Refused(&'static str, &'static str),
}

/// Parses the head of a request from the bytes that have arrived.
fn parse(bytes: &[u8]) -> Request {
    let Some(head_len) = end_of_head(bytes) else {
        if bytes.len() < MAX_HEAD_BYTES {
            return Request::Incomplete;
        }
        return Request::Refused("431 Request Header Fields Too Large", "The request is too long.");
    };
    let line = bytes[..head_len].split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let bad = Request::Refused("400 Bad Request", "This is no request of HTTP/1.1.");
    let Ok(line) = std::str::from_utf8(line) else { return bad };
    let [method, target, version] = line.splitn(4, ' ').collect::<Vec<_>>()[..] else { return bad };
    if !["HTTP/1.0", "HTTP/1.1"].contains(&version) {
        return if version.starts_with("HTTP/") {
            Request::Refused("505 HTTP Version Not Supported", "Ask with HTTP/1.1.")
        } else {
            bad
        };
    }
    if !["GET", "HEAD"].contains(&method) {
        return Request::Refused("405 Method Not Allowed", "Only GET and HEAD are answered.");
    }
    let path = target.split('?').next().unwrap_or(target);
    if path != "/metrics" {
        return Request::Refused("404 Not Found", "The metrics are at /metrics.");
    }
    Request::Metrics { is_head: method == "HEAD" }
}

/// The length of the head including its empty line; `None` until the empty line has arrived.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let ends: [&[u8]; 2] = [b"\r\n\r\n", b"\n\n"];
    let find = |end: &[u8]| {
        bytes.windows(end.len()).position(|window| window == end).map(|at| at + end.len())
    };
    ends.into_iter().filter_map(find).min()
}

const MAX_CLIENTS: usize = 32;
/// Connections accepted before the others are served again.
const ACCEPTS_PER_TURN: usize = 32;
/// Time limit of a connection.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// Pause before accepting again when file descriptors or memory have run out.
const OUT_OF_RESOURCES_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for the thread on drop; the thread may be collecting metrics.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// The longest head of a request. Prometheus sends some hundred bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_names_the_build_once() {
        assert_eq!(snapshot().sum(&BUILD), 1.0);
    }

    fn status(request: &str) -> &'static str {
        match parse(request.as_bytes()) {
            Request::Incomplete => "incomplete",
            Request::Metrics { is_head: false } => "metrics",
            Request::Metrics { is_head: true } => "head",
            Request::Refused(status, _) => &status[..3],
        }
    }

    #[test]
    fn only_the_metrics_are_answered_and_every_other_request_says_why_not() {
        for (request, expected) in [
            ("", "incomplete"),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", "incomplete"),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "metrics"),
            ("GET /metrics?name=x HTTP/1.1\r\n\r\nbody", "metrics"),
            ("GET /metrics HTTP/1.0\n\n", "metrics"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "head"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics HTTP/2.0\r\n\r\n", "505"),
            ("GET /metrics\r\n\r\n", "400"),
            ("GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            ("\u{16}\u{3}\u{1}\n\n", "400"),
            ("\r\n\r\n", "400"),
        ] {
            assert_eq!(status(request), expected, "{request:?}");
        }
        assert_eq!(status(&"x".repeat(MAX_HEAD_BYTES - 1)), "incomplete");
        assert_eq!(status(&"x".repeat(MAX_HEAD_BYTES)), "431");
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let request = b"GET /metrics HTTP/1.1\r\n\r\n";
        for at in 0..request.len() {
            for byte in 0..=255 {
                let mut changed = *request;
                changed[at] = byte;
                let _ = parse(&changed); // any result will do, but no panic
                let _ = parse(&changed[at..]);
            }
        }
    }
}
