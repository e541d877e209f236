//! The end of a command: its result and exit code, error messages, and the signals that stop it.
//!
//! Ctrl-C and SIGTERM stop a run in order; a second one ends the process at once. A service handles SIGHUP and SIGUSR1
//! without ending.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use dlfs::format::FormatError;
use dlfs::{Error, ErrorKind, Result};

use crate::out::safe_text;

/// The result of a command that did not fail, and its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All work is done.
    Done = 0,
    /// The work is not done, or not wholly: the command has listed the missing items, or was stopped and cannot be
    /// continued.
    Incomplete = 1,
    /// The command found damage, and has listed it.
    Damaged = 3,
    /// The command was stopped on request, and can be continued.
    Stopped = 4,
}

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the library or the operating system.
    Error(Error),
    /// Options that contradict each other or the image; exit code 2.
    Usage(String),
    /// The reader of the output has gone, as in `dlfs ls | head`.
    OutputClosed,
}

impl Failure {
    /// Prints the failure if there is something to print, and returns the exit code.
    pub(crate) fn conclude(self) -> u8 {
        match self {
            Failure::Error(error) => {
                complain(&error.report());
                code_of(error.kind())
            }
            Failure::Usage(message) => {
                complain(&format!("{message}\n\nFor more information, try '--help'."));
                2
            }
            Failure::OutputClosed => {
                // End by SIGPIPE like other Unix filters, so that the shell learns that the output is
                // incomplete. If the signal is blocked, return the ordinary failure code.
                let _ =
                    signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
                1
            }
        }
    }
}

/// Prints an error on stderr. `text` may quote names, paths and strings from a target, and is escaped.
pub(crate) fn complain(text: &str) {
    // A terminal that has gone, or a pipe without a reader, must not cause a panic: the exit code reports the
    // error too.
    let _ = writeln!(io::stderr(), "dlfs: {}", safe_text(text));
}

/// The exit code for an error of this kind.
fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Corrupt => 3,
        ErrorKind::Interrupted => 4,
        _ => 1,
    }
}

/// Turns an error of options into a failure: exit code 2 if the options are invalid.
pub(crate) fn usage(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::InvalidArgument => Failure::Usage(error.report()),
        _ => error.into(),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Failure {
        Failure::Error(error.into())
    }
}

/// An error of the operating system about one file, as an error of the library. `doing` says what has failed.
pub(crate) fn about_file(doing: &'static str, path: impl AsRef<Path>, error: io::Error) -> Error {
    let kind = Error::from(io::Error::from(error.kind())).kind();
    Error::new(kind, doing).path(path.as_ref()).source(error)
}

/// The bytes of a file that an option names, or of standard input for `-`. `doing` says what has failed in an error.
pub(crate) fn read_or_stdin(doing: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))
    };
    read.map_err(|error| about_file(doing, path, error))?;
    Ok(bytes)
}

/// The user's request to stop this process. Clones share the flag.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Makes SIGINT and SIGTERM set the flag from now on; a second one ends the process with exit code 1.
    ///
    /// The work checks the flag between two steps, and a step may wait for a target that is gone. If the process still
    /// runs `grace` after the first signal, another thread calls `last_resort`, which saves or removes files, and ends
    /// the process with the returned exit code.
    ///
    /// # Errors
    /// Errors of the operating system if it refuses a handler or a thread.
    pub(crate) fn on_signals(
        grace: Duration,
        last_resort: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Result<Stop> {
        let requested = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: at the first signal, the flag must still be unset.
            flag::register_conditional_shutdown(signal, 1, requested.clone())
                .map_err(Error::from)?;
            flag::register(signal, requested.clone()).map_err(Error::from)?;
        }
        let stop = Stop(requested);
        let watched = stop.clone();
        let watcher = move || {
            while !watched.is_set_within(Duration::from_secs(60)) {}
            thread::sleep(grace);
            std::process::exit(last_resort() as i32);
        };
        thread::Builder::new().name("dlfs-signals".to_owned()).spawn(watcher)?;
        Ok(stop)
    }

    /// Returns whether the user has asked to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps for `limit`, or until the flag is set; returns whether it is set.
    pub(crate) fn is_set_within(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while !self.is_set() && Instant::now() < until {
            thread::sleep(CHECK_INTERVAL.min(limit));
        }
        self.is_set()
    }
}

/// Catches SIGHUP and SIGUSR1, which then no longer end the process: a service handles them.
///
/// # Errors
/// Errors of the operating system if it refuses a handler.
pub(crate) fn service_signals() -> Result<Signals> {
    Ok(Signals::new([SIGHUP, SIGUSR1])?)
}

/// Makes writes beyond the file size limit (`ulimit -f`) fail with EFBIG, instead of ending this process.
pub(crate) fn outlive_size_limits() {
    // If this fails, the signal ends the process, as it does by default.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Interval of checks of the flag of [`Stop`].
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The grace period of work that takes one batch at a time.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// The grace period of commands that write images. They may be killed at any moment and continued.
pub(crate) const GRACE_FOR_WRITERS: Duration = Duration::from_secs(20);
/// The grace period of commands with tiers, which write their last copies in that time: see
/// `tests/threads.md`.
pub(crate) const GRACE_FOR_TIERS: Duration = Duration::from_secs(35);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_and_interruption_have_exit_codes_of_their_own() {
        assert_eq!(code_of(ErrorKind::Corrupt), 3);
        assert_eq!(code_of(ErrorKind::Interrupted), 4);
        assert_eq!(code_of(ErrorKind::NotFound), 1);
    }

    #[test]
    fn a_full_disk_keeps_its_kind_and_names_the_file() {
        let error = about_file("cannot write", "/x", io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("/x"));
    }
}
