//! The control socket: JSON lines over a Unix socket that only its owner can open.
//!
//! A request is one line, `{"id": 1, "method": "add-ns", "params": {...}}`; the answer is one line with the
//! same `id`, and `result` or `error`. `docs/operations.md` lists the methods. Requests are carried out one
//! after the other, a few of each client between two checks of the signals. No client delays another. If a
//! client does not take its answer, the service stops reading from it, and closes it after a while. If there
//! are too many clients, the one that has been silent for longest is closed. If a request takes long, its
//! answer comes later, and only its own client's next request waits for it. Requests and answers have a limit
//! in bytes on both sides.

use std::fs;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use dlfs::{Error, ErrorKind, Result};

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Copied to the answer.
    #[serde(default)]
    pub(crate) id: Value,
    pub(crate) method: String,
    #[serde(default)]
    pub(crate) params: Value,
}

/// The answer to a request: `result`, or `error`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) id: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Refused>,
}

/// The error in an answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// The socket of a service. Dropping it removes its file, unless the file has been replaced.
pub(crate) struct Control {
    path: PathBuf,
    /// Device and inode number of the socket's file.
    file: Option<(u64, u64)>,
    listener: UnixListener,
    clients: Vec<Client>,
    last_ticket: Ticket,
}

/// Identifies a request that is answered later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

struct Client {
    stream: UnixStream,
    /// Bytes that have arrived and are not answered, from the start of the next line.
    received: Vec<u8>,
    /// The rest of the last answer. Nothing is received until it is sent.
    unsent: Vec<u8>,
    /// The request that is answered later, and its `id`.
    waits: Option<(Ticket, Value)>,
    /// Set if the client is closed after its last answer.
    ends: bool,
    /// The time when bytes were last received or sent.
    active: Instant,
}

impl Control {
    /// Opens the socket with mode 0600. A socket file left behind by a dead service is replaced.
    ///
    /// # Errors
    /// `Busy`: another service answers there. Otherwise errors of the operating system.
    pub(crate) fn open(path: &Path) -> Result<Control> {
        let about = |error| about_socket("cannot open the control socket", path, error);
        match connect(path) {
            Ok(_) => {
                let error =
                    Error::new(ErrorKind::Busy, "another service answers on the control socket");
                return Err(error.path(path).hint("name another one with --control"));
            }
            // Connecting to a file that is not a socket is refused too. Such a file belongs to somebody, and
            // stays.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                file_of(path).map_or(Ok(()), |_| fs::remove_file(path)).map_err(about)?;
            }
            Err(_) => {} // no such file, or binding reports the error
        }
        let listener = bind_private(path).map_err(about)?;
        listener.set_nonblocking(true).map_err(about)?;
        let file = file_of(path);
        let path = path.to_owned();
        Ok(Control { path, file, listener, clients: Vec::new(), last_ticket: Ticket(0) })
    }

    /// Moves the socket to `path`, in place of another service's socket there.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn move_to(&mut self, path: &Path) -> Result<()> {
        fs::rename(&self.path, path)
            .map_err(|error| about_socket("cannot move the control socket", path, error))?;
        self.path = path.to_owned();
        Ok(())
    }

    /// Waits for requests, at most for `limit` or until `waker` is readable, and answers them by `answer`. If
    /// that returns `None`, [`Control::answer`] gives the answer later.
    pub(crate) fn serve(
        &mut self,
        limit: Duration,
        waker: BorrowedFd<'_>,
        mut answer: impl FnMut(&Request, Ticket) -> Option<Result<Value>>,
    ) {
        let has_line = self.clients.iter().any(Client::has_line);
        let limit = Timespec::try_from(if has_line { Duration::ZERO } else { limit }).ok();
        // A client that waits for an answer is not polled, so that it cannot send without limit.
        let clients = self.clients.iter().filter(|client| client.waits.is_none());
        let clients = clients.map(|client| (client.stream.as_fd(), client.wanted()));
        let own = [(self.listener.as_fd(), PollFlags::IN), (waker, PollFlags::IN)];
        let all = own.into_iter().chain(clients);
        let mut fds: Vec<PollFd<'_>> =
            all.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        // The error is a signal, which the caller checks before the next call.
        let _ = poll(&mut fds, limit.as_ref());
        drop(fds);
        self.accept();
        let last_ticket = &mut self.last_ticket;
        self.clients.retain_mut(|client| client.serve(last_ticket, &mut answer).is_ok());
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() >= MAX_CLIENTS {
                let clients = self.clients.iter().enumerate();
                let idle = clients.filter(|(_, client)| client.waits.is_none());
                match idle.min_by_key(|(_, client)| client.active).map(|(number, _)| number) {
                    Some(number) => drop(self.clients.remove(number)),
                    None => continue, // all wait for answers: the new one is closed
                }
            }
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client::new(stream));
            }
        }
    }

    /// Answers a request later. If its client is gone, the answer is dropped.
    pub(crate) fn answer(&mut self, ticket: Ticket, result: Result<Value>) {
        let waits = |client: &Client| client.waits.as_ref().is_some_and(|(its, _)| *its == ticket);
        let Some(number) = self.clients.iter().position(waits) else { return };
        let client = &mut self.clients[number];
        let Some((_, id)) = client.waits.take() else { return };
        if client.answer(&Answer::new(id, result)).is_err() {
            self.clients.remove(number);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.file.is_some() && self.file == file_of(&self.path) {
            let _ = fs::remove_file(&self.path); // a leftover does no harm
        }
    }
}

impl Client {
    fn new(stream: UnixStream) -> Client {
        let received = Vec::new();
        let unsent = Vec::new();
        let active = Instant::now();
        Client { stream, received, unsent, waits: None, ends: false, active }
    }

    /// The events to poll for.
    fn wanted(&self) -> PollFlags {
        if self.unsent.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    /// Returns whether a whole request has arrived and can be answered now.
    fn has_line(&self) -> bool {
        self.waits.is_none() && self.unsent.is_empty() && self.received.contains(&b'\n')
    }

    /// Sends and receives without blocking, and answers some whole lines; an error ends the client.
    fn serve(
        &mut self,
        last_ticket: &mut Ticket,
        answer: &mut impl FnMut(&Request, Ticket) -> Option<Result<Value>>,
    ) -> io::Result<()> {
        self.send()?;
        for _ in 0..STEPS {
            if self.waits.is_some() || !self.unsent.is_empty() {
                return Ok(());
            }
            if self.ends {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match self.received.iter().position(|&byte| byte == b'\n') {
                Some(end) if end <= MAX_LINE_BYTES => {
                    let line: Vec<u8> = self.received.drain(..=end).collect();
                    self.answer_line(&line, last_ticket, answer)?;
                }
                None if self.received.len() <= MAX_LINE_BYTES => {
                    if !self.receive()? {
                        return Ok(());
                    }
                }
                Some(_) | None => {
                    self.ends = true;
                    self.refuse(format!("a request has at most {MAX_LINE_BYTES} bytes"))?;
                }
            }
        }
        Ok(())
    }

    /// Receives some bytes; returns whether there were any.
    fn receive(&mut self) -> io::Result<bool> {
        let mut part = [0; 4096];
        match self.stream.read(&mut part) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                self.received.extend_from_slice(&part[..len]);
                self.active = Instant::now();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn answer_line(
        &mut self,
        line: &[u8],
        last_ticket: &mut Ticket,
        answer: &mut impl FnMut(&Request, Ticket) -> Option<Result<Value>>,
    ) -> io::Result<()> {
        let request = match serde_json::from_slice::<Request>(line) {
            Ok(request) => request,
            Err(error) => return self.refuse(format!("the line is no request: {error}")),
        };
        last_ticket.0 += 1;
        match answer(&request, *last_ticket) {
            Some(result) => self.answer(&Answer::new(request.id, result)),
            None => {
                self.waits = Some((*last_ticket, request.id));
                Ok(())
            }
        }
    }

    /// Answers a line that is not a valid request.
    fn refuse(&mut self, why: String) -> io::Result<()> {
        let error = Error::new(ErrorKind::InvalidArgument, why);
        self.answer(&Answer::new(Value::Null, Err(error)))
    }

    fn answer(&mut self, answer: &Answer) -> io::Result<()> {
        self.unsent = serde_json::to_vec(answer)?;
        if self.unsent.len() >= MAX_ANSWER_BYTES {
            return self.refuse(format!("the answer has more than {MAX_ANSWER_BYTES} bytes"));
        }
        self.unsent.push(b'\n');
        self.active = Instant::now();
        self.send()
    }

    /// Sends as many bytes as the client takes now; an error if it has taken none for a while.
    fn send(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    self.unsent.drain(..len);
                    self.active = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let is_late = self.active.elapsed() > SEND_LIMIT;
                    return if is_late { Err(error) } else { Ok(()) };
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Answer {
    fn new(id: Value, result: Result<Value>) -> Answer {
        match result {
            Ok(result) => Answer { id, result: Some(result), error: None },
            Err(error) => {
                let kind = format!("{:?}", error.kind());
                let message = error.report();
                Answer { id, result: None, error: Some(Refused { kind, message }) }
            }
        }
    }
}

/// Listens at `path` with mode 0600.
pub(super) fn bind_private(path: &Path) -> io::Result<UnixListener> {
    // The umask gives the right mode from the start. No other thread creates files at this time.
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    bound
}

/// As `exit::about_file`: the fuzz targets compile this file alone.
fn about_socket(doing: &'static str, path: &Path, error: io::Error) -> Error {
    let kind = Error::from(io::Error::from(error.kind())).kind();
    Error::new(kind, doing).path(path).source(error)
}

/// Device and inode number of a socket's file; `None` if there is no socket.
fn file_of(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok().filter(|found| found.file_type().is_socket())?;
    Some((found.dev(), found.ino()))
}

/// Sends a request to the service at `path` and waits for the answer.
///
/// # Errors
/// `NotFound`, `Refused`, ...: there is no service. `TimedOut`, `Disconnected`: the service does not answer.
/// `Refused` with the message of the service: the service has answered with an error.
pub(crate) fn call(path: &Path, method: &str, params: Value) -> Result<Value> {
    let about = |error: io::Error| {
        let hint = "start it with dlfs serve --control PATH, and name the same path with --socket";
        about_socket("no service answers on the control socket", path, error).hint(hint)
    };
    let mut stream = connect(path).map_err(about)?;
    let until = Instant::now() + CALL_LIMIT;
    stream.set_write_timeout(Some(CALL_LIMIT)).map_err(about)?;
    let request = Request { id: 1.into(), method: method.to_owned(), params };
    let mut line = serde_json::to_vec(&request).map_err(|error| about(error.into()))?;
    line.push(b'\n');
    let asked = stream.write_all(&line).and_then(|()| read_answer(&mut stream, until));
    let late = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    };
    let answer = match asked {
        Err(error) if late(&error) => {
            let message =
                format!("the service has not answered {method} within {} s", CALL_LIMIT.as_secs());
            let hint = "it may be stopped, or reach a target that hangs: its log may say more";
            return Err(Error::new(ErrorKind::TimedOut, message).path(path).hint(hint));
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            let message = format!("the answer to {method} has more than {MAX_ANSWER_BYTES} bytes");
            let hint = "see whether a service of dlfs listens there: ss -xlp names it";
            return Err(Error::new(ErrorKind::Refused, message).path(path).hint(hint));
        }
        Err(error) => return Err(about(error)),
        Ok(answer) if !answer.ends_with(b"\n") => {
            let message =
                format!("the service has closed the connection without answering {method}");
            let hint = "it may have ended: its log may say more";
            return Err(Error::new(ErrorKind::Disconnected, message).path(path).hint(hint));
        }
        Ok(answer) => answer,
    };
    let answer: Answer = serde_json::from_slice(&answer).map_err(|error| about(error.into()))?;
    match (answer.result, answer.error) {
        (_, Some(Refused { message, .. })) => Err(Error::new(ErrorKind::Refused, message)),
        (result, None) => Ok(result.unwrap_or_default()),
    }
}

/// The line of the answer; without its newline if the service hangs up.
fn read_answer(stream: &mut UnixStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut reader = io::BufReader::new(stream);
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let left = until.saturating_duration_since(Instant::now());
        // The limit is for the whole answer: a service that sends byte by byte must not extend it.
        reader.get_ref().set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let part = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            part => part?,
        };
        let len = part.iter().position(|&byte| byte == b'\n').map_or(part.len(), |at| at + 1);
        line.extend_from_slice(&part[..len]);
        reader.consume(len);
        match () {
            () if len == 0 => break,
            () if line.len() > MAX_ANSWER_BYTES => return Err(io::ErrorKind::InvalidData.into()),
            () if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            () => {}
        }
    }
    Ok(line)
}

/// Connects, within a limit: a stopped process accepts no connection, and connections queue up.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let until = Instant::now() + CONNECT_LIMIT;
    loop {
        match net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The most clients at a time.
const MAX_CLIENTS: usize = 16;
/// The longest request.
const MAX_LINE_BYTES: usize = 64 << 10;
/// The longest answer, enough for some 50,000 controllers.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The most reads from a client, and lines answered to it, before the next client has its turn.
const STEPS: usize = 16;
/// Time limit for a client that takes none of its answer.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a service to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for a service to answer: it may have to connect to a namespace's target.
const CALL_LIMIT: Duration = Duration::from_secs(60);
