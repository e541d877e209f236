//! The access log: a line of JSON for each host that connects, is refused or leaves, and for each change of
//! the service.
//!
//! Targets report their events on the threads that move data. These threads only make the line, and the
//! thread of a queue (`line_queue.rs`) writes it. If a disk is full or slow, lines are dropped and counted,
//! and both the file and the service's log say how many. No line contains a key.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;
use serde::Serialize;
use serde_json::{Value, json};

use dlfs::Result;
use dlfs::nvme::Nqn;
use dlfs::target::AccessEvent;

use crate::exit::about_file;
use crate::line_queue::{LineQueue, LineWriter};
use crate::log;

/// The destination of an access log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Stdout,
    File(PathBuf),
}

impl Place {
    /// Parses the place: `-` is stdout; a relative path starts at `folder`.
    pub(crate) fn parse(text: &str, folder: &Path) -> Place {
        match text {
            "-" => Place::Stdout,
            path => Place::File(folder.join(path)),
        }
    }

    /// Opens the output: a new file is created with mode 0640, an existing file is appended to.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn open(&self) -> Result<Output> {
        let Place::File(path) = self else { return Ok(Output::new(Box::new(io::stdout()))) };
        let mut options = OpenOptions::new();
        // Opening a pipe without a reader then fails at once instead of waiting for a reader.
        options.create(true).append(true).mode(0o640).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let cannot = |error| about_file("cannot open the access log", path, error);
        let file = options.open(path).map_err(cannot)?;
        Ok(Output::new(Box::new(file)))
    }
}

/// An open access log. Clones write to the same log.
#[derive(Debug, Clone)]
pub(crate) struct AccessLog {
    lines: LineQueue,
    next: Next,
}

/// The output that the thread will switch to.
type Next = Arc<Mutex<Option<Output>>>;

impl AccessLog {
    /// Opens the log.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn open(place: &Place) -> Result<AccessLog> {
        let next = Next::default();
        let writer = Writer { next: next.clone(), output: place.open()?, is_failing: false };
        Ok(AccessLog { lines: LineQueue::start("dlfs-access-log", writer)?, next })
    }

    /// Switches to `output` before the next line is written, which may be in the queue already.
    pub(crate) fn switch(&self, output: Output) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
    }

    /// Writes a line about the service itself; `more` holds the fields of this event.
    pub(crate) fn note(&self, event: &str, subsystem: Option<&Nqn>, more: Value) {
        self.lines.push(Line { subsystem, ..Line::new(event, more) }.bytes());
    }

    /// Waits until pending lines are written, within a limit.
    pub(crate) fn finish(&self) {
        self.lines.finish();
    }
}

impl dlfs::target::AccessLog for AccessLog {
    fn tell(&self, event: &AccessEvent<'_>) {
        let line = Line {
            subsystem: Some(event.subsystem),
            host: event.host,
            peer: event.peer.map(|peer| peer.to_string()),
            cntlid: event.cntlid,
            ..Line::new(event.kind.name(), json!(event.kind))
        };
        self.lines.push(line.bytes());
    }
}

/// A line, with its fields in the order of output.
#[derive(Serialize)]
struct Line<'a> {
    /// UTC, in the format of RFC 3339.
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
    more: Value,
}

impl<'a> Line<'a> {
    fn new(event: &'a str, more: Value) -> Line<'a> {
        let time = log::now();
        Line { time, event, subsystem: None, host: None, peer: None, cntlid: None, more }
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
    /// Set if only part of the last line was written.
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

    /// Writes a line, which has its newline. After a partial write, the next call first starts a new line.
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

/// The output, on the queue's thread.
struct Writer {
    next: Next,
    output: Output,
    /// Set while writing fails, which the service's log has reported once.
    is_failing: bool,
}

impl LineWriter for Writer {
    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        if let Some(next) = self.next.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.output = next;
        }
        let written = self.output.write(line);
        let failed = std::mem::replace(&mut self.is_failing, written.is_err());
        if let Err(error) = &written
            && !failed
        {
            log::say(&format!("the access log cannot be written, its lines are lost: {error}"));
        }
        written
    }

    fn lost(&mut self, lines: u64) -> io::Result<()> {
        self.line(&Line::new("lost", json!({ "lines": lines })).bytes().unwrap_or_default())?;
        log::say(&format!("{lines} lines of the access log were lost"));
        Ok(())
    }
}
