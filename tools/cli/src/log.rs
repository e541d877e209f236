//! Writes the events of the library to stderr, one line each.
//!
//! A short command writes its lines at once, without time stamps. A server adds the time and writes
//! from a separate thread: if stderr is read too slowly or not at all, lines are dropped and
//! counted, and no host is delayed.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use crate::text::safe_text;

/// Writes the library's events from now on; for a server (`serves`), as a log with times.
pub(crate) fn start(verbose: u8, quiet: bool, serves: bool) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, _) => LevelFilter::DEBUG,
    };
    let (filter, handle) = reload::Layer::new(level);
    let _ = LEVEL.set(handle); // a process starts its log once
    let ansi = io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_ansi(ansi).with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    match serves.then(Behind::start).transpose() {
        Ok(Some(behind)) => {
            let behind = BEHIND.get_or_init(|| behind);
            registry.with(lines.with_writer(|| behind.clone())).init();
        }
        // Without the thread, the server writes directly and without times.
        Ok(None) | Err(_) => registry.with(lines.with_writer(|| SafeStderr).without_time()).init(),
    }
}

/// Changes which events are written: those at least as severe as `level`.
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
    let changed = LEVEL.get().map(|handle| handle.modify(|current| *current = filter));
    match changed {
        Some(Ok(())) => Ok(()),
        Some(Err(_)) | None => Err("this process has no log".to_owned()),
    }
}

/// Changes the level of the log, once it is started.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Writes a line with the time, at any log level.
pub(crate) fn say(line: &str) {
    let text = format!("{} {line}\n", now());
    let _ = match BEHIND.get() {
        Some(behind) => behind.clone().write(text.as_bytes()),
        None => SafeStderr.write(text.as_bytes()),
    };
}

/// The time in UTC, as RFC 3339 writes it.
pub(crate) fn now() -> String {
    let mut text = String::new();
    // Neither the clock nor a String fails to be written to.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// Waits for pending lines to be written, with a limit.
pub(crate) fn finish() {
    if let Some(behind) = BEHIND.get() {
        let (done, wait) = sync_channel(1);
        if behind.lines.try_send(Message::Finish(done)).is_ok() {
            // The command ends whether or not this succeeds.
            let _ = wait.recv_timeout(FINISH_LIMIT);
        }
    }
}

/// The log of a server, once it is started.
static BEHIND: OnceLock<Behind> = OnceLock::new();

/// Passes lines to the thread that writes them.
#[derive(Debug, Clone)]
struct Behind {
    lines: SyncSender<Message>,
    /// Lines dropped since the last report of dropped lines.
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// Answered when all earlier messages are written.
    Finish(SyncSender<()>),
}

impl Behind {
    fn start() -> io::Result<Behind> {
        let (lines, receiver) = sync_channel(MAX_LINES);
        let lost = Arc::<AtomicU64>::default();
        let behind = Behind { lines, lost: lost.clone() };
        let write = move || write_lines(&receiver, &lost);
        thread::Builder::new().name("dlfs-log".to_owned()).spawn(write)?;
        Ok(behind)
    }
}

fn write_lines(receiver: &Receiver<Message>, lost: &AtomicU64) {
    for message in receiver {
        match message {
            Message::Line(line) => {
                let lost = lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let note =
                        format!("{lost} lines of this log were lost: it was read too slowly\n");
                    let _ = SafeStderr.write(note.as_bytes()); // as below
                }
                let _ = SafeStderr.write(&line); // a closed stderr affects only its reader
            }
            Message::Finish(done) => _ = done.send(()), // the sender may have given up
        }
    }
}

impl Write for Behind {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Message::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Escapes control characters in lines that quote texts of others. Escape characters stay, since
/// only `tracing` writes them, for colours.
struct SafeStderr;

impl Write for SafeStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let safe: Vec<_> = text.split('\x1b').map(safe_text).collect();
        io::stderr().write_all(safe.join("\x1b").as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The most lines that wait to be written; a line has about 200 bytes.
const MAX_LINES: usize = 4096;
/// How long a server waits for its log at the end.
const FINISH_LIMIT: Duration = Duration::from_secs(1);
