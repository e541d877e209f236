//! The access log of a service: a line of JSON for each host that connects, is refused or leaves, and for each change
//! of the service. No line contains a key.
//!
//! Targets report events on the threads that move data. These threads only format the line and put it into a
//! [`LineQueue`]; another thread writes it. If lines are dropped, both this log and the service's log say how many.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::OFlags;
use serde::Serialize;
use serde_json::{Value, json};

use dlfs::Result;
use dlfs::nvme::Nqn;
use dlfs::target::AccessEvent;

use crate::exit::about_file;
use crate::log::{LineQueue, LineWriter, now, say};

/// The destination of an access log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogDestination {
    Stdout,
    File(PathBuf),
}

impl LogDestination {
    /// Parses a destination: `-` is standard output; a relative path starts at `folder`.
    pub(crate) fn parse(text: &str, folder: &Path) -> LogDestination {
        match text {
            "-" => LogDestination::Stdout,
            path => LogDestination::File(folder.join(path)),
        }
    }

    /// Opens the output: a new file is created with mode 0640, an existing file is appended to.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn open(&self) -> Result<LogOutput> {
        let LogDestination::File(path) = self else {
            let to = io::stdout().as_fd().try_clone_to_owned()?.into();
            return Ok(LogOutput { to, is_torn: false });
        };
        let mut options = OpenOptions::new();
        // Opening a pipe without a reader then fails at once instead of waiting for a reader.
        options.create(true).append(true).mode(0o640).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let cannot = |error| about_file("cannot open the access log", path, error).hint(OPENABLE);
        Ok(LogOutput { to: options.open(path).map_err(cannot)?, is_torn: false })
    }

    /// Checks that the output can be opened. Removes a file that did not exist before: its owner may not be the user of
    /// the service.
    ///
    /// # Errors
    /// The errors of [`LogDestination::open`].
    pub(crate) fn check(&self) -> Result<()> {
        let is_new = |path: &&PathBuf| path.symlink_metadata().is_err();
        let created = match self {
            LogDestination::Stdout => None,
            LogDestination::File(path) => Some(path).filter(is_new),
        };
        self.open()?;
        if let Some(path) = created {
            std::fs::remove_file(path)
                .map_err(|error| about_file("cannot remove the new access log", path, error))?;
        }
        Ok(())
    }
}

/// The hint if the file cannot be opened.
const OPENABLE: &str = "make its folder writable for the user of the service, or name another file with access_log or \
    --access-log";

/// An open access log. Clones write to the same log.
#[derive(Debug, Clone)]
pub(crate) struct AccessLog {
    lines: LineQueue,
    next: NextOutput,
}

/// The output to which the writing thread switches before its next line, if there is one.
type NextOutput = Arc<Mutex<Option<LogOutput>>>;

impl AccessLog {
    /// Opens the log.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn open(destination: &LogDestination) -> Result<AccessLog> {
        let next = NextOutput::default();
        let writer =
            AccessLogWriter { next: next.clone(), output: destination.open()?, is_failing: false };
        Ok(AccessLog { lines: LineQueue::start("dlfs-access-log", writer)?, next })
    }

    /// Switches to `output` before the next line. Lines that are already queued go there, too.
    pub(crate) fn switch(&self, output: LogOutput) {
        *self.next.lock() = Some(output);
    }

    /// Writes a line about the service itself; `more` holds the fields of this event.
    pub(crate) fn note(&self, event: &str, subsystem: Option<&Nqn>, more: Value) {
        self.lines.push(AccessLine { subsystem, ..AccessLine::new(event, more) }.bytes());
    }

    /// Waits until pending lines are written, within a limit.
    pub(crate) fn finish(&self) {
        self.lines.finish();
    }
}

impl dlfs::target::AccessLog for AccessLog {
    fn tell(&self, event: &AccessEvent<'_>) {
        let line = AccessLine {
            subsystem: Some(event.subsystem),
            host: event.host,
            peer: event.peer.map(|peer| peer.to_string()),
            cntlid: event.cntlid,
            ..AccessLine::new(event.kind.name(), json!(event.kind))
        };
        self.lines.push(line.bytes());
    }
}

/// One line of the log. Its fields are in the order of output.
#[derive(Serialize)]
struct AccessLine<'a> {
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

impl<'a> AccessLine<'a> {
    fn new(event: &'a str, more: Value) -> AccessLine<'a> {
        let time = now();
        AccessLine { time, event, subsystem: None, host: None, peer: None, cntlid: None, more }
    }

    /// The line as JSON with its newline; `None` if it cannot be formatted.
    fn bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self).ok()?;
        bytes.push(b'\n');
        Some(bytes)
    }
}

/// An open output of the log.
#[derive(Debug)]
pub(crate) struct LogOutput {
    to: File,
    /// Set if only a part of the last line was written.
    is_torn: bool,
}

impl LogOutput {
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
        Ok(())
    }
}

/// Writes lines on the queue's thread.
struct AccessLogWriter {
    next: NextOutput,
    output: LogOutput,
    /// Set while writes fail: the service's log reports only the first failure.
    is_failing: bool,
}

impl LineWriter for AccessLogWriter {
    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        if let Some(next) = self.next.lock().take() {
            self.output = next;
        }
        let written = self.output.write(line);
        let failed = std::mem::replace(&mut self.is_failing, written.is_err());
        if let Err(error) = &written
            && !failed
        {
            say(&format!("the access log cannot be written, its lines are lost: {error}"));
        }
        written
    }

    fn lost(&mut self, lines: u64) -> io::Result<()> {
        self.line(&AccessLine::new("lost", json!({ "lines": lines })).bytes().unwrap_or_default())?;
        say(&format!("{lines} lines of the access log were lost"));
        Ok(())
    }
}
