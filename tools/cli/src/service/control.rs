//! The control socket: JSON lines over a Unix socket that only its owner can open.
//!
//! A request is one line, `{"id": 1, "method": "add-ns", "params": {...}}`; the answer is one line with the same
//! `id`, and `result` or `error`. `docs/operations.md` lists the methods. Requests are carried out one after the
//! other, between two looks at the signals; a client that does not read its answer delays others for a second.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
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
}

struct Client {
    stream: UnixStream,
    /// What has arrived of the next line.
    line: Vec<u8>,
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
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
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
        Ok(Control { path: path.to_owned(), listener, clients: Vec::new() })
    }

    /// Waits for requests, at most for `limit`, and answers them by `answer`.
    pub(crate) fn serve(
        &mut self,
        limit: Duration,
        mut answer: impl FnMut(&Request) -> Result<Value>,
    ) {
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(
            self.clients.iter().map(|c| PollFd::from_borrowed_fd(c.stream.as_fd(), PollFlags::IN)),
        );
        let limit = Timespec::try_from(limit).ok();
        // An error is a signal: the caller looks at those and comes back.
        let _ = poll(&mut fds, limit.as_ref());
        drop(fds);
        while let Ok((stream, _)) = self.listener.accept() {
            let is_set_up = stream.set_nonblocking(true).is_ok();
            if is_set_up && self.clients.len() < MAX_CLIENTS {
                self.clients.push(Client { stream, line: Vec::new() });
            }
        }
        self.clients.retain_mut(|client| client.serve(&mut answer).is_ok());
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // somebody may have removed it already
    }
}

impl Client {
    /// Receives what there is and answers whole lines; an error ends the client.
    fn serve(&mut self, answer: &mut impl FnMut(&Request) -> Result<Value>) -> io::Result<()> {
        let mut part = [0; 4096];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.line.extend_from_slice(&part[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
                let rest = self.line.split_off(end + 1);
                let line = std::mem::replace(&mut self.line, rest);
                self.send(&answer_line(&line, answer))?;
            }
            if self.line.len() > MAX_LINE_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
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

fn answer_line(line: &[u8], answer: &mut impl FnMut(&Request) -> Result<Value>) -> Answer {
    let refused = |id, error: &Error| {
        let (kind, message) = (format!("{:?}", error.kind()), error.report());
        Answer { id, result: None, error: Some(Refused { kind, message }) }
    };
    match serde_json::from_slice::<Request>(line) {
        Ok(request) => match answer(&request) {
            Ok(result) => Answer { id: request.id, result: Some(result), error: None },
            Err(error) => refused(request.id, &error),
        },
        Err(error) => {
            let message = format!("the line is no request: {error}");
            refused(Value::Null, &Error::new(ErrorKind::InvalidArgument, message))
        }
    }
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
