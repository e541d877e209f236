//! The control socket: JSON lines over a Unix socket that only its owner can open.
//!
//! A request is one line, `{"id": 1, "method": "add-ns", "params": {...}}`; the answer is one line with the same
//! `id`, and `result` or `error`. `docs/operations.md` lists the methods. Requests are carried out one after the
//! other, between two looks at the signals; a client that does not read its answer delays others for a second.
//! The answer of a request that takes longer comes later: its client's next request waits for it, and no other's.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use dlfs::{Error, ErrorKind, Result};

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Comes back in the answer.
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

/// Why a request was refused.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// The socket of a service. Dropping it removes its file.
pub(crate) struct Control {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<Client>,
    last_ticket: Ticket,
}

/// Names a request whose answer comes later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

struct Client {
    stream: UnixStream,
    /// What has arrived and is not answered, beginning with the next line.
    received: Vec<u8>,
    /// The request whose answer comes later, and its `id`.
    waits: Option<(Ticket, Value)>,
}

impl Control {
    /// Opens the socket with mode 0600. A file that a dead service left behind is replaced.
    ///
    /// # Errors
    /// `Busy`: another service answers there. Otherwise those of the operating system.
    pub(crate) fn open(path: &Path) -> Result<Control> {
        let about = |error: io::Error| {
            let kind = Error::from(io::Error::from(error.kind())).kind();
            Error::new(kind, "cannot open the control socket").path(path).source(error)
        };
        match UnixStream::connect(path) {
            Ok(_) => {
                let error =
                    Error::new(ErrorKind::Busy, "another service answers on the control socket");
                return Err(error.path(path).hint("name another one with --control"));
            }
            // A file that is no socket refuses, too. It is somebody's, and stays.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => {
                fs::remove_file(path).map_err(about)?;
            }
            Err(_) => {} // there is no such file, or binding says what is wrong
        }
        // The mode is right from the first moment on. No other thread creates files now.
        let before = rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
        let bound = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = bound.map_err(about)?;
        listener.set_nonblocking(true).map_err(about)?;
        let (path, clients) = (path.to_owned(), Vec::new());
        Ok(Control { path, listener, clients, last_ticket: Ticket(0) })
    }

    /// Waits for requests, at most for `limit` or until `waker` is readable, and answers them by `answer`. Where it
    /// returns `None`, [`Control::answer`] gives the answer later.
    pub(crate) fn serve(
        &mut self,
        limit: Duration,
        waker: BorrowedFd<'_>,
        mut answer: impl FnMut(&Request, Ticket) -> Option<Result<Value>>,
    ) {
        // Of a client that waits nothing is received, so that it cannot send without end.
        let clients = self.clients.iter().filter(|client| client.waits.is_none());
        let clients = clients.map(|client| client.stream.as_fd());
        let all = [self.listener.as_fd(), waker].into_iter().chain(clients);
        let mut fds: Vec<PollFd<'_>> =
            all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let limit = Timespec::try_from(limit).ok();
        // An error is a signal: the caller looks at those and comes back.
        let _ = poll(&mut fds, limit.as_ref());
        drop(fds);
        while let Ok((stream, _)) = self.listener.accept() {
            let is_set_up = stream.set_nonblocking(true).is_ok();
            if is_set_up && self.clients.len() < MAX_CLIENTS {
                self.clients.push(Client { stream, received: Vec::new(), waits: None });
            }
        }
        let last_ticket = &mut self.last_ticket;
        self.clients.retain_mut(|client| client.serve(last_ticket, &mut answer).is_ok());
    }

    /// Answers a request late. If its client is gone, nobody hears it.
    pub(crate) fn answer(&mut self, ticket: Ticket, result: Result<Value>) {
        let waits = |client: &Client| client.waits.as_ref().is_some_and(|(its, _)| *its == ticket);
        let Some(number) = self.clients.iter().position(waits) else { return };
        let client = &mut self.clients[number];
        let Some((_, id)) = client.waits.take() else { return };
        if client.send(&Answer::new(id, result)).is_err() {
            self.clients.remove(number);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // somebody may have removed it already
    }
}

impl Client {
    /// Receives what there is and answers whole lines; an error ends the client.
    fn serve(
        &mut self,
        last_ticket: &mut Ticket,
        answer: &mut impl FnMut(&Request, Ticket) -> Option<Result<Value>>,
    ) -> io::Result<()> {
        let mut part = [0; 4096];
        loop {
            self.answer_lines(last_ticket, answer)?;
            if self.waits.is_some() {
                return Ok(());
            }
            if self.received.len() > MAX_LINE_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match self.stream.read(&mut part) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.received.extend_from_slice(&part[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Answers the whole lines that have arrived, up to one whose answer comes later.
    fn answer_lines(
        &mut self,
        last_ticket: &mut Ticket,
        answer: &mut impl FnMut(&Request, Ticket) -> Option<Result<Value>>,
    ) -> io::Result<()> {
        while self.waits.is_none()
            && let Some(end) = self.received.iter().position(|&byte| byte == b'\n')
        {
            let rest = self.received.split_off(end + 1);
            let line = std::mem::replace(&mut self.received, rest);
            let request = match serde_json::from_slice::<Request>(&line) {
                Ok(request) => request,
                Err(error) => {
                    let message = format!("the line is no request: {error}");
                    let error = Error::new(ErrorKind::InvalidArgument, message);
                    self.send(&Answer::new(Value::Null, Err(error)))?;
                    continue;
                }
            };
            last_ticket.0 += 1;
            match answer(&request, *last_ticket) {
                Some(result) => self.send(&Answer::new(request.id, result))?,
                None => self.waits = Some((*last_ticket, request.id)),
            }
        }
        Ok(())
    }

    fn send(&mut self, answer: &Answer) -> io::Result<()> {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        self.stream.set_nonblocking(false)?;
        self.stream.set_write_timeout(Some(SEND_LIMIT))?;
        self.stream.write_all(&line)?;
        self.stream.set_nonblocking(true)
    }
}

impl Answer {
    fn new(id: Value, result: Result<Value>) -> Answer {
        match result {
            Ok(result) => Answer { id, result: Some(result), error: None },
            Err(error) => {
                let (kind, message) = (format!("{:?}", error.kind()), error.report());
                Answer { id, result: None, error: Some(Refused { kind, message }) }
            }
        }
    }
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Sends a request to the service at `path` and waits for the answer.
///
/// # Errors
/// `NotFound`, `Refused`, ...: there is no service. Otherwise the service's own error, by its message.
pub(crate) fn call(path: &Path, method: &str, params: Value) -> Result<Value> {
    let about = |error: io::Error| {
        let kind = Error::from(io::Error::from(error.kind())).kind();
        let hint = "start it with dlfs serve --control PATH, and name the same path with --socket";
        Error::new(kind, "no service answers on the control socket")
            .path(path)
            .source(error)
            .hint(hint)
    };
    let mut stream = UnixStream::connect(path).map_err(about)?;
    stream.set_read_timeout(Some(CALL_LIMIT)).map_err(about)?;
    let request = Request { id: 1.into(), method: method.to_owned(), params };
    let mut line = serde_json::to_vec(&request).map_err(|error| about(error.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(about)?;
    let mut answer = String::new();
    let mut reader = io::BufReader::new(stream);
    io::BufRead::read_line(&mut reader, &mut answer).map_err(about)?;
    let answer: Answer = serde_json::from_str(&answer).map_err(|error| about(error.into()))?;
    match (answer.result, answer.error) {
        (_, Some(Refused { message, .. })) => Err(Error::new(ErrorKind::Refused, message)),
        (result, None) => Ok(result.unwrap_or_default()),
    }
}

/// The most clients at a time; more are closed.
const MAX_CLIENTS: usize = 16;
/// The longest request.
const MAX_LINE_BYTES: usize = 64 << 10;
/// How long a client may take to receive an answer.
const SEND_LIMIT: Duration = Duration::from_secs(1);
/// How long a service may take to answer: it may have to reach the target of a namespace.
const CALL_LIMIT: Duration = Duration::from_secs(60);
