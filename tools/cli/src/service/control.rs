//! The control socket: JSON lines over a Unix socket that only its owner can open.
//!
//! A request is one line, `{"id": 1, "method": "add-ns", "params": {...}}`; the answer is one line with the
//! same `id`, and `result` or `error`. `docs/operations.md` lists the methods.
//!
//! Each client has a thread that reads requests and sends answers; the service's loop carries the requests out, one
//! after the other. No client delays another:
//!
//! - A client that takes nothing of its answer for [`SEND_LIMIT`] is closed.
//! - If there are more than [`MAX_CLIENTS`] clients, the one that has been silent for longest is closed. Clients that
//!   wait for an answer stay; if all do, the new client is closed.
//! - A request that waits for its answer delays only the next request of the same client.
//!
//! The service limits the bytes of requests and answers, and [`call`] those of answers.

use std::fs;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::Mode;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use dlfs::{Error, ErrorKind, Result};

use crate::net::{left, read_within};

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

/// An event that wakes the loop of a service.
pub(crate) enum Event {
    /// A request, and the channel for its answer.
    Asked(Request, Reply),
    /// Something else has happened: the loop checks everything.
    Woken,
}

/// The channel for the answer to a request. Dropping it without an answer closes the client.
pub(crate) type Reply = Sender<Result<Value>>;

/// The socket of a service. Dropping it removes its file, unless the file has been replaced, and leaves answers that
/// are being sent a moment to arrive.
pub(crate) struct Control {
    path: PathBuf,
    /// Device and inode number of the socket's file.
    file: Option<(u64, u64)>,
    listener: Arc<UnixListener>,
    clients: Clients,
}

/// The connected clients, in the order of their connections.
type Clients = Arc<Mutex<Vec<Client>>>;

/// A connected client.
struct Client {
    stream: Arc<UnixStream>,
    /// Set while a request of the client is carried out.
    waits: bool,
    /// The time of the last request or answer; before the first request, of the connection.
    active: Instant,
}

impl Control {
    /// Opens the socket with mode 0600, and begins to send requests to `events`. A socket file left behind by a dead
    /// service is replaced.
    ///
    /// # Errors
    /// `Busy`: another service answers there. Otherwise errors of the operating system.
    pub(crate) fn open(path: &Path, events: Sender<Event>) -> Result<Control> {
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
        let listener = Arc::new(bind_private(path).map_err(about)?);
        let clients = Clients::default();
        let shared = (Arc::clone(&listener), Arc::clone(&clients));
        let accept = move || accept(&shared.0, &shared.1, &events);
        thread::Builder::new().name("dlfs-control".to_owned()).spawn(accept)?;
        Ok(Control { path: path.to_owned(), file: file_of(path), listener, clients })
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
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.file.is_some() && self.file == file_of(&self.path) {
            let _ = fs::remove_file(&self.path); // a leftover does no harm
        }
        let _ = net::shutdown(&self.listener, net::Shutdown::Both); // ends the thread that accepts
        let until = Instant::now() + LAST_ANSWERS;
        self.clients.lock().iter().for_each(|client| client.shut(Shutdown::Read));
        while !self.clients.lock().is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Client {
    /// Shuts the connection down: the thread of the client then ends.
    fn shut(&self, how: Shutdown) {
        let _ = self.stream.shutdown(how); // fails only if the client is gone
    }
}

/// Accepts clients, each of which gets a thread, until the socket is shut down.
fn accept(listener: &UnixListener, clients: &Clients, events: &Sender<Event>) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => Arc::new(stream),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(_) => {
                thread::sleep(Duration::from_millis(10)); // no file descriptor is left
                continue;
            }
        };
        let mut all = clients.lock();
        if all.len() >= MAX_CLIENTS {
            let idle = (0..all.len()).filter(|&at| !all[at].waits);
            match idle.min_by_key(|&at| all[at].active) {
                Some(at) => all.remove(at).shut(Shutdown::Both),
                None => continue, // all wait for answers, and get them
            }
        }
        all.push(Client { stream: Arc::clone(&stream), waits: false, active: Instant::now() });
        drop(all);
        let shared = (Arc::clone(clients), events.clone());
        let serve = move || {
            let (clients, events) = shared;
            let _ = serve(&stream, &clients, &events); // the client is gone, or takes no answer
            clients.lock().retain(|client| !Arc::ptr_eq(&client.stream, &stream));
        };
        if thread::Builder::new().name("dlfs-client".to_owned()).spawn(serve).is_err() {
            clients.lock().pop();
        }
    }
}

/// Passes the requests of a client to the service's loop, one after the other, and sends the answers. Returns when the
/// client is to be closed.
fn serve(stream: &Arc<UnixStream>, clients: &Clients, events: &Sender<Event>) -> io::Result<()> {
    let note = |waits| {
        let mut clients = clients.lock();
        if let Some(client) = clients.iter_mut().find(|it| Arc::ptr_eq(&it.stream, stream)) {
            (client.waits, client.active) = (waits, Instant::now());
        }
    };
    stream.set_write_timeout(Some(SEND_LIMIT))?;
    let mut reader = io::BufReader::new(&**stream);
    loop {
        let mut line = Vec::new();
        reader.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
        let is_too_long = line.len() > MAX_LINE_BYTES && !line.ends_with(b"\n");
        if !line.ends_with(b"\n") && !is_too_long {
            return Ok(()); // the end of the stream, maybe within a line
        }
        note(true);
        let answer = match serde_json::from_slice::<Request>(&line) {
            _ if is_too_long => {
                Answer::refused(format!("a request has at most {MAX_LINE_BYTES} bytes"))
            }
            Err(error) => Answer::refused(format!("the line is no request: {error}")),
            Ok(request) => {
                let (reply, answer) = channel();
                let id = request.id.clone();
                let _ = events.send(Event::Asked(request, reply)); // else there is no answer
                let Ok(result) = answer.recv() else { return Ok(()) };
                Answer::new(id, result)
            }
        };
        let mut bytes = serde_json::to_vec(&answer)?;
        if bytes.len() >= MAX_ANSWER_BYTES {
            let why = format!("the answer has more than {MAX_ANSWER_BYTES} bytes");
            bytes = serde_json::to_vec(&Answer::refused(why))?;
        }
        bytes.push(b'\n');
        note(false);
        (&**stream).write_all(&bytes)?;
        if is_too_long {
            return Ok(());
        }
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

    /// The answer to a line that is not a valid request.
    fn refused(why: String) -> Answer {
        Answer::new(Value::Null, Err(Error::new(ErrorKind::InvalidArgument, why)))
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

/// As `exit::about_file`: the fuzz targets compile this file without `exit.rs`.
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
    let stream = connect(path).map_err(about)?;
    let until = Instant::now() + CALL_LIMIT;
    stream.set_write_timeout(Some(CALL_LIMIT)).map_err(about)?;
    let request = Request { id: 1.into(), method: method.to_owned(), params };
    let mut line = serde_json::to_vec(&request).map_err(|error| about(error.into()))?;
    line.push(b'\n');
    let limit = || stream.set_read_timeout(Some(left(until)?));
    let is_line = |read: &[u8]| read.ends_with(b"\n");
    let asked = (&stream).write_all(&line);
    let asked = asked.and_then(|()| read_within(&stream, limit, MAX_ANSWER_BYTES, is_line));
    let late = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    };
    let failed = |kind, message, hint| Err(Error::new(kind, message).path(path).hint(hint));
    let answer = match asked {
        Err(error) if late(&error) => {
            let limit = CALL_LIMIT.as_secs();
            let message = format!("the service has not answered {method} within {limit} s");
            let hint = "it may be stopped, or reach a target that hangs: its log may say more";
            return failed(ErrorKind::TimedOut, message, hint);
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            let message = format!("the answer to {method} has more than {MAX_ANSWER_BYTES} bytes");
            let hint = "see whether a service of dlfs listens there: ss -xlp names it";
            return failed(ErrorKind::Refused, message, hint);
        }
        Err(error) => return Err(about(error)),
        Ok(answer) if !answer.ends_with(b"\n") => {
            let message =
                format!("the service has closed the connection without answering {method}");
            let hint = "it may have ended: its log may say more";
            return failed(ErrorKind::Disconnected, message, hint);
        }
        Ok(answer) => answer,
    };
    let answer: Answer = serde_json::from_slice(&answer).map_err(|error| about(error.into()))?;
    match (answer.result, answer.error) {
        (_, Some(Refused { message, .. })) => Err(Error::new(ErrorKind::Refused, message)),
        (result, None) => Ok(result.unwrap_or_default()),
    }
}

/// Connects, within a limit: a stopped process accepts no connection, and connections queue up.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(CONNECT_LIMIT))?; // the kernel limits connecting by it, too
    match retry_on_intr(|| net::connect(&stream, &address)) {
        Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        connected => Ok(connected.map(|()| stream)?),
    }
}

/// The most clients at a time.
pub(super) const MAX_CLIENTS: usize = 16;
/// The longest request, in bytes without its newline.
const MAX_LINE_BYTES: usize = 64 << 10;
/// The longest answer in bytes, enough for some 50,000 controllers.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Time limit for a client that takes none of its answer.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for the last answers of a service that ends.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Time limit for a service to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for a service to answer: it may have to connect to a namespace's target.
const CALL_LIMIT: Duration = Duration::from_secs(60);
