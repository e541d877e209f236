//! Logs: the events of the library on stderr, and the access log of a service.
//!
//! A short command writes its lines at once, without time stamps. A service adds the time and writes from a separate
//! thread, so that the producers wait for no reader and no disk: the queue is bounded, lines that do not fit or cannot
//! be written are dropped and counted, and the writer reports their number.
//!
//! The access log is a line of JSON for each host that connects, is refused or leaves, and for each change of the
//! service. Targets report their events on the threads that move data, which only make the line. If lines are dropped,
//! both the file and the service's log say how many. No line contains a key.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use serde::Serialize;
use serde_json::{Value, json};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use dlfs::Result;
use dlfs::nvme::Nqn;
use dlfs::target::AccessEvent;

use crate::exit::about_file;
use crate::out::safe_text;

/// Writes the library's events from now on; for a service (`serves`), as a log with times.
pub(crate) fn start(verbose: u8, quiet: bool, serves: bool) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, _) => LevelFilter::DEBUG,
    };
    let (filter, handle) = reload::Layer::new(level);
    let _ = LEVEL.set(handle); // a process starts its log once
    let lines = tracing_subscriber::fmt::layer().with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    match serves.then(|| LineQueue::start("dlfs-log", SafeStderr)).transpose() {
        Ok(Some(behind)) => {
            let behind = BEHIND.get_or_init(|| behind);
            registry.with(lines.with_writer(|| behind.clone())).init();
        }
        // A short command; or a service whose thread could not be started, which then writes in the same way.
        Ok(None) | Err(_) => registry.with(lines.with_writer(|| SafeStderr).without_time()).init(),
    }
}

/// Changes the level: events at least as severe as `level` are written.
///
/// # Errors
/// There is no such level.
pub(crate) fn set_level(level: &str) -> Result<(), String> {
    let filter = match level {
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        _ => return Err(format!("{level:?} is not error, warn, info or debug")),
    };
    let changed = LEVEL.get().and_then(|handle| handle.modify(|current| *current = filter).ok());
    changed.ok_or_else(|| "this process has no log".to_owned())
}

/// The handle that changes the level of the log, once the log is started.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Writes a line with the time, at any log level. The line may quote names and strings of others, and is escaped.
pub(crate) fn say(line: &str) {
    let text = format!("{} {}\n", now(), safe_text(line));
    match BEHIND.get() {
        Some(behind) => behind.push(Some(text.into_bytes())),
        None => _ = SafeStderr.write(text.as_bytes()), // a closed stderr concerns only its reader
    }
}

/// The current time in UTC, in the format of RFC 3339.
pub(crate) fn now() -> String {
    let mut text = String::new();
    // Writing the time to a String cannot fail.
    let _ = SystemTime.format_time(&mut format::Writer::new(&mut text));
    text
}

/// Waits, within a limit, until pending lines are written.
pub(crate) fn finish() {
    BEHIND.get().into_iter().for_each(LineQueue::finish);
}

static BEHIND: OnceLock<LineQueue> = OnceLock::new();

/// Escapes control characters in lines that quote strings of other programs.
struct SafeStderr;

/// A closed stderr concerns only its reader.
impl LineWriter for SafeStderr {
    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        let _ = self.write(line);
        Ok(())
    }

    fn lost(&mut self, lines: u64) -> io::Result<()> {
        self.line(
            format!("{lines} lines of this log were lost: it was read too slowly\n").as_bytes(),
        )
    }
}

impl Write for SafeStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        io::stderr().write_all(safe_text(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Writes the lines of a queue, on the queue's thread.
pub(crate) trait LineWriter: Send + 'static {
    /// Writes a line; on an error the line is dropped.
    fn line(&mut self, line: &[u8]) -> io::Result<()>;

    /// Reports that `lines` lines were dropped; after an error it is called again.
    fn lost(&mut self, lines: u64) -> io::Result<()>;
}

/// The producers' end of the queue.
#[derive(Debug, Clone)]
pub(crate) struct LineQueue {
    queue: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    Finish(SyncSender<()>),
}

impl LineQueue {
    /// Starts the thread, with this name.
    ///
    /// # Errors
    /// Errors of starting a thread.
    pub(crate) fn start(name: &str, writer: impl LineWriter) -> io::Result<LineQueue> {
        let (queue, receiver) = sync_channel(MAX_LINES);
        let lost = Arc::<AtomicU64>::default();
        let queue = LineQueue { queue, lost: lost.clone() };
        let write = move || write_lines(&receiver, &lost, writer);
        thread::Builder::new().name(name.to_owned()).spawn(write)?;
        Ok(queue)
    }

    /// Adds a line; `None`, a line that could not be made, counts as dropped.
    pub(crate) fn push(&self, line: Option<Vec<u8>>) {
        if line.is_none_or(|line| self.queue.try_send(Message::Line(line)).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all lines are written, within a limit: a hanging disk must not keep a command from ending.
    pub(crate) fn finish(&self) {
        let until = Instant::now() + FINISH_LIMIT;
        let (done, wait) = sync_channel(1);
        while self.queue.try_send(Message::Finish(done.clone())).is_err() {
            if Instant::now() >= until {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        // The command ends even if this fails.
        let _ = wait.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(Some(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_lines(queue: &Receiver<Message>, lost: &AtomicU64, mut writer: impl LineWriter) {
    loop {
        let message = queue.recv_timeout(LOOK_AGAIN);
        let lines = lost.swap(0, Ordering::Relaxed);
        if lines > 0 && writer.lost(lines).is_err() {
            lost.fetch_add(lines, Ordering::Relaxed);
        }
        match message {
            Ok(Message::Line(line)) => {
                if writer.line(&line).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(Message::Finish(done)) => _ = done.send(()), // the sender may have given up
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

const MAX_LINES: usize = 4096;
/// The time until dropped lines are reported if no further line comes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const FINISH_LIMIT: Duration = Duration::from_secs(1);

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
        let Place::File(path) = self else {
            let to = io::stdout().as_fd().try_clone_to_owned()?.into();
            return Ok(Output { to, is_torn: false });
        };
        let mut options = OpenOptions::new();
        // Opening a pipe without a reader then fails at once instead of waiting for a reader.
        options.create(true).append(true).mode(0o640).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let cannot = |error| about_file("cannot open the access log", path, error);
        Ok(Output { to: options.open(path).map_err(cannot)?, is_torn: false })
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
        *self.next.lock() = Some(output);
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
        let time = now();
        Line { time, event, subsystem: None, host: None, peer: None, cntlid: None, more }
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self).ok()?;
        bytes.push(b'\n');
        Some(bytes)
    }
}

/// An open output of the log.
#[derive(Debug)]
pub(crate) struct Output {
    to: File,
    /// Set if only part of the last line was written.
    is_torn: bool,
}

impl Output {
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

/// The output, on the queue's thread.
struct Writer {
    next: Next,
    output: Output,
    /// Set while writing fails, which the service's log has reported once.
    is_failing: bool,
}

impl LineWriter for Writer {
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
        self.line(&Line::new("lost", json!({ "lines": lines })).bytes().unwrap_or_default())?;
        say(&format!("{lines} lines of the access log were lost"));
        Ok(())
    }
}
