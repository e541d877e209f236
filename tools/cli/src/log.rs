//! Writes the events of the library to stderr, one line each.
//!
//! A short command writes its lines at once, without time stamps. A service adds the time and writes from a
//! separate thread: if stderr is read too slowly or not at all, lines are dropped and counted, and no host is
//! delayed.

use std::io::{self, Write};
use std::sync::OnceLock;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use crate::line_queue::{LineQueue, LineWriter};
use crate::text::safe_text;

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
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
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
