//! Signals. Ctrl-C and SIGTERM stop a run in order; a second one ends the process at once. A service survives
//! SIGHUP, and prints statistics on SIGUSR1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;

use dlfs::{Error, Result};

use crate::exit::Outcome;

/// The user's request to stop this process. Clones share the flag.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Makes SIGINT and SIGTERM set the flag from now on; a second one ends the process with exit code 1.
    ///
    /// The work checks the flag between two steps, and one step may wait for a target that is gone. So if the
    /// process still runs `grace` after the first signal, another thread calls `last_resort`, which saves or
    /// removes files, and the process ends with the exit code that it returns.
    ///
    /// # Errors
    /// Errors of the operating system if it refuses a handler or a thread.
    pub(crate) fn on_signals(
        grace: Duration,
        last_resort: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Result<Stop> {
        let wish = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: at the first signal, the flag must still be unset.
            flag::register_conditional_shutdown(signal, 1, wish.clone()).map_err(Error::from)?;
            flag::register(signal, wish.clone()).map_err(Error::from)?;
        }
        let stop = Stop(wish);
        let told = stop.clone();
        let watcher = move || {
            while !told.is_set_within(Duration::from_secs(60)) {}
            thread::sleep(grace);
            std::process::exit(last_resort().number().into());
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
            thread::sleep(LOOK.min(limit));
        }
        self.is_set()
    }
}

/// Signals that a service handles without ending.
#[derive(Debug)]
pub(crate) struct Asked {
    hang_up: Arc<AtomicBool>,
    statistics: Arc<AtomicBool>,
}

impl Asked {
    /// Keeps SIGHUP and SIGUSR1 from ending the process, from now on.
    ///
    /// # Errors
    /// Errors of the operating system if it refuses a handler.
    pub(crate) fn on_signals() -> Result<Asked> {
        let asked = Asked { hang_up: Arc::default(), statistics: Arc::default() };
        flag::register(SIGHUP, asked.hang_up.clone()).map_err(Error::from)?;
        flag::register(SIGUSR1, asked.statistics.clone()).map_err(Error::from)?;
        Ok(asked)
    }

    /// Returns whether SIGHUP has arrived since the last call.
    pub(crate) fn hung_up(&self) -> bool {
        self.hang_up.swap(false, Ordering::Relaxed)
    }

    /// Returns whether SIGUSR1 has arrived since the last call.
    pub(crate) fn wants_statistics(&self) -> bool {
        self.statistics.swap(false, Ordering::Relaxed)
    }
}

/// Makes writes beyond the file size limit (`ulimit -f`) fail with EFBIG, instead of ending this process.
pub(crate) fn outlive_size_limits() {
    // If this fails, the signal ends the process, as it does by default.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Interval of checks of the flag.
const LOOK: Duration = Duration::from_millis(50);
/// The grace period of work that takes one batch at a time.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// The grace period of commands that write images. They may be killed at any moment and continued.
pub(crate) const GRACE_FOR_WRITERS: Duration = Duration::from_secs(20);
/// The grace period of commands with tiers, which write their last copies in that time: see
/// `tests/threads.md`.
pub(crate) const GRACE_FOR_TIERS: Duration = Duration::from_secs(35);
