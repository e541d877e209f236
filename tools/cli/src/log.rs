//! The log of a command on stderr: the library's events, and lines of the command itself.
//!
//! A short command writes each line at once; the library's events then have no time stamps. A service adds the time,
//! and writes from a separate thread through a [`LineQueue`], so that the threads that log never wait for a reader or a
//! disk. `service/access_log.rs` uses such a queue, too.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use crate::out::safe_text;

/// Writes the library's events from now on: warnings, and more with each `verbose`; only errors if `quiet`. A service
/// (`serves`) writes them with times, from another thread.
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
        Ok(Some(queue)) => {
            let queue = SERVICE_QUEUE.get_or_init(|| queue);
            registry.with(lines.with_writer(|| queue.clone())).init();
        }
        // A short command; or a service whose thread could not be started, which then writes in the same way.
        Ok(None) | Err(_) => registry.with(lines.with_writer(|| SafeStderr).without_time()).init(),
    }
}

/// Changes the level: events at least as severe as `level` are written.
///
/// # Errors
/// There is no such level, or this process has no log.
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

/// The handle that changes the level of the log. Empty before [`start`].
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Writes a line with the time, at any log level. The line may quote strings of other programs, and is escaped.
pub(crate) fn say(line: &str) {
    let text = format!("{} {}\n", now(), safe_text(line));
    match SERVICE_QUEUE.get() {
        Some(queue) => queue.push(Some(text.into_bytes())),
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
    SERVICE_QUEUE.get().into_iter().for_each(LineQueue::finish);
}

/// The queue of a service's log. Empty for a short command.
static SERVICE_QUEUE: OnceLock<LineQueue> = OnceLock::new();

/// Standard error. Control characters are escaped, since lines quote strings of other programs.
struct SafeStderr;

/// Errors of writing are ignored: a closed stderr concerns only its reader.
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

/// The output of a [`LineQueue`], on the queue's thread.
pub(crate) trait LineWriter: Send + 'static {
    /// Writes a line, which ends with a newline. A line whose write fails counts as dropped.
    fn line(&mut self, line: &[u8]) -> io::Result<()>;

    /// Reports that `lines` lines were dropped. After an error, the same lines are reported again later.
    fn lost(&mut self, lines: u64) -> io::Result<()>;
}

/// A bounded queue of lines, which a thread writes: [`MAX_LINES`] lines. Lines that do not fit, or whose write fails,
/// are dropped and counted, and the writer reports their number. Clones share the queue.
#[derive(Debug, Clone)]
pub(crate) struct LineQueue {
    messages: SyncSender<Message>,
    /// Dropped lines that are not yet reported.
    lost: Arc<AtomicU64>,
}

/// A message to the thread that writes.
#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// Asks for a message to this channel when all lines before this one are written.
    Finish(SyncSender<()>),
}

impl LineQueue {
    /// Starts the thread, with this name.
    ///
    /// # Errors
    /// Errors of starting a thread.
    pub(crate) fn start(name: &str, writer: impl LineWriter) -> io::Result<LineQueue> {
        let (messages, receiver) = sync_channel(MAX_LINES);
        let lost = Arc::<AtomicU64>::default();
        let queue = LineQueue { messages, lost: lost.clone() };
        let write = move || write_lines(&receiver, &lost, writer);
        thread::Builder::new().name(name.to_owned()).spawn(write)?;
        Ok(queue)
    }

    /// Adds a line without waiting. `None` is a line that could not be formatted, and counts as dropped.
    pub(crate) fn push(&self, line: Option<Vec<u8>>) {
        if line.is_none_or(|line| self.messages.try_send(Message::Line(line)).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all lines are written, within a limit: a hanging disk must not keep a command from ending.
    pub(crate) fn finish(&self) {
        let until = Instant::now() + FINISH_LIMIT;
        let (done, wait) = sync_channel(1);
        while self.messages.try_send(Message::Finish(done.clone())).is_err() {
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

/// Writes the lines of `messages` until all queues that share the channel are dropped.
fn write_lines(messages: &Receiver<Message>, lost: &AtomicU64, mut writer: impl LineWriter) {
    loop {
        let message = messages.recv_timeout(LOST_LINES_INTERVAL);
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

/// The most lines that wait in a queue.
const MAX_LINES: usize = 4096;
/// The time after which dropped lines are reported if no further line arrives.
const LOST_LINES_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time that the end of a command waits for pending lines.
const FINISH_LIMIT: Duration = Duration::from_secs(1);
