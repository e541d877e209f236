//! The access log: a line of JSON for each host that comes, is refused or goes, and for each change of the service.
//!
//! Targets tell their events on the threads that move data. So a line is made there and put into a queue with a
//! limit, and a thread of its own writes. If a disk is full or slow, lines are lost: they are counted, and both the
//! file and the service's log say how many. No line holds a key.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use serde::Serialize;

use dlfs::nvme::Nqn;
use dlfs::target::{AccessEvent, AccessKind};
use dlfs::{Error, Result};

use crate::log;

/// The destination of an access log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Stdout,
    File(PathBuf),
}

impl Place {
    /// `-` is stdout; a relative path begins at `folder`.
    pub(crate) fn parse(text: &str, folder: &Path) -> Place {
        match text {
            "-" => Place::Stdout,
            path => Place::File(folder.join(path)),
        }
    }

    /// Opens it; a file is created with mode 0640, or continued.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn open(&self) -> Result<Output> {
        let Place::File(path) = self else { return Ok(Output::new(Box::new(io::stdout()))) };
        let mut options = OpenOptions::new();
        // Opening a pipe that nobody reads fails at once instead of waiting for a reader.
        options.create(true).append(true).mode(0o640).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = options.open(path).map_err(|error| {
            let kind = Error::from(io::Error::from(error.kind())).kind();
            Error::new(kind, "cannot open the access log").path(path).source(error)
        })?;
        Ok(Output::new(Box::new(file)))
    }
}

/// An access log that is open. Clones write to the same one.
#[derive(Debug, Clone)]
pub(crate) struct AccessLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: SyncSender<Message>,
    /// Lines that were lost since the file said so last.
    lost: AtomicU64,
    /// The output that the thread is to switch to.
    next: Mutex<Option<Output>>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// There is a new output.
    Look,
    /// Answered when all earlier lines are written, or lost.
    Finish(SyncSender<()>),
}

impl AccessLog {
    /// Opens the log.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn open(place: &Place) -> Result<AccessLog> {
        let output = place.open()?;
        let (queue, receiver) = sync_channel(MAX_LINES);
        let next = Mutex::new(None);
        let shared = Arc::new(Shared { queue, lost: AtomicU64::new(0), next });
        let writer = Writer { shared: shared.clone(), output, is_failing: false };
        let name = "dlfs-access-log".to_owned();
        thread::Builder::new().name(name).spawn(move || writer.run(&receiver))?;
        Ok(AccessLog(shared))
    }

    /// From now on it goes to `output`.
    pub(crate) fn switch(&self, output: Output) {
        *self.0.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
        // If the queue is full, the thread looks anyway, before the next line.
        let _ = self.0.queue.try_send(Message::Look);
    }

    /// Writes a line about the service itself.
    pub(crate) fn note(&self, event: &str, subsystem: Option<&Nqn>, more: More<'_>) {
        self.line(&Line { subsystem, ..Line::new(event, more) });
    }

    /// Waits until pending lines are written, within a limit.
    pub(crate) fn finish(&self) {
        let until = Instant::now() + FINISH_LIMIT;
        let (done, wait) = sync_channel(1);
        while self.0.queue.try_send(Message::Finish(done.clone())).is_err() {
            if Instant::now() >= until {
                return; // a disk that hangs does not keep the service from ending
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = wait.recv_timeout(until.saturating_duration_since(Instant::now()));
    }

    fn line(&self, line: &Line<'_>) {
        let sent =
            line.bytes().is_some_and(|bytes| self.0.queue.try_send(Message::Line(bytes)).is_ok());
        if !sent {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl dlfs::target::AccessLog for AccessLog {
    fn tell(&self, event: &AccessEvent<'_>) {
        self.line(&Line {
            subsystem: Some(event.subsystem),
            host: event.host,
            peer: event.peer.map(|peer| peer.to_string()),
            cntlid: event.cntlid,
            ..Line::new(event.kind.name(), More::OfHost(event.kind))
        });
    }
}

/// A line, in the order of its fields.
#[derive(Serialize)]
struct Line<'a> {
    /// UTC, as RFC 3339 writes it.
    time: String,
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subsystem: Option<&'a Nqn>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a Nqn>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cntlid: Option<u16>,
    #[serde(flatten)]
    more: More<'a>,
}

/// The fields that only some events have.
#[derive(Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum More<'a> {
    Nothing {},
    /// Those of an event of a target.
    OfHost(AccessKind<'a>),
    Why {
        why: &'a str,
    },
    Namespace {
        nsid: u32,
        address: String,
        bytes: u64,
        read_only: bool,
    },
    NamespaceGone {
        nsid: u32,
    },
    Host {
        host: &'a Nqn,
    },
    Changed {
        what: &'a str,
    },
    Started {
        version: &'a str,
        pid: u32,
    },
    Draining {
        why: &'a str,
        controllers: usize,
    },
    Lost {
        lines: u64,
    },
}

impl<'a> Line<'a> {
    fn new(event: &'a str, more: More<'a>) -> Line<'a> {
        let subsystem = None;
        let host = None;
        let peer = None;
        let cntlid = None;
        Line { time: log::now(), event, subsystem, host, peer, cntlid, more }
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self).ok()?;
        bytes.push(b'\n');
        Some(bytes)
    }
}

/// An open output of the log.
pub(crate) struct Output {
    to: Box<dyn Write + Send>,
    /// Set if only part of a line was written last.
    is_torn: bool,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Output")
    }
}

impl Output {
    fn new(to: Box<dyn Write + Send>) -> Output {
        Output { to, is_torn: false }
    }

    /// Writes a line with its end. If only a part of it can be written, the next line begins on one of its own.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let whole = if self.is_torn { [b"\n", line].concat() } else { line.to_vec() };
        let mut rest = &whole[..];
        while !rest.is_empty() {
            match self.to.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    rest = &rest[len..];
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.to.flush()
    }
}

/// The thread that writes.
struct Writer {
    shared: Arc<Shared>,
    output: Output,
    /// Set if the last line could not be written.
    is_failing: bool,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Message>) {
        loop {
            let message = queue.recv_timeout(LOOK_AGAIN);
            if let Some(next) =
                self.shared.next.lock().unwrap_or_else(PoisonError::into_inner).take()
            {
                self.output = next;
            }
            match message {
                Ok(Message::Line(line)) => {
                    self.say_lost();
                    self.write(&line);
                }
                Ok(Message::Look) | Err(RecvTimeoutError::Timeout) => self.say_lost(),
                Ok(Message::Finish(done)) => {
                    self.say_lost();
                    let _ = done.send(()); // the sender may have given up
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn write(&mut self, line: &[u8]) {
        match self.output.write(line) {
            Ok(()) => self.is_failing = false,
            Err(error) => {
                self.shared.lost.fetch_add(1, Ordering::Relaxed);
                self.fail(&error);
            }
        }
    }

    /// Says how many lines were lost since it was said last, once the file can be written.
    fn say_lost(&mut self) {
        let lines = self.shared.lost.swap(0, Ordering::Relaxed);
        if lines == 0 {
            return;
        }
        let written = Line::new("lost", More::Lost { lines }).bytes();
        match self.output.write(&written.unwrap_or_default()) {
            Ok(()) => {
                self.is_failing = false;
                log::say(&format!("{lines} lines of the access log were lost"));
            }
            Err(error) => {
                self.shared.lost.fetch_add(lines, Ordering::Relaxed);
                self.fail(&error);
            }
        }
    }

    fn fail(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            log::say(&format!("the access log cannot be written, its lines are lost: {error}"));
        }
    }
}

/// The most lines that wait to be written; a line has about 300 bytes.
const MAX_LINES: usize = 4096;
/// How often the thread looks for lost lines to tell while there is nothing to write.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a service waits for its access log at the end.
const FINISH_LIMIT: Duration = Duration::from_secs(1);
