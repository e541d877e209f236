//! Ctrl-C and SIGTERM end a run in order; a second one ends it at once. A server survives SIGHUP, and
//! SIGUSR1 asks it for statistics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use dlfs::{Error, Result};

use crate::exit::Outcome;

/// Whether the user asked this process to stop. Clones see the same wish.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on SIGINT and SIGTERM set the wish, and a second of them ends the process with 1.
    ///
    /// Whoever has the wish looks at it between two pieces of work, and one piece may wait for a target
    /// that is gone. So when the process is still there `grace` after the first signal, `last_resort`
    /// saves or removes on another thread what must be, and the process ends as it says.
    ///
    /// # Errors
    /// The operating system's, when it refuses a handler or a thread.
    pub(crate) fn on_signals(
        grace: Duration,
        last_resort: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Result<Stop> {
        let wish = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the first signal must find the wish still unset.
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

    /// Whether it is time to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps until it is time to stop, at most for `limit`; whether it is.
    pub(crate) fn is_set_within(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while !self.is_set() && Instant::now() < until {
            thread::sleep(LOOK.min(limit));
        }
        self.is_set()
    }
}

/// Signals that a server gets and goes on.
#[derive(Debug)]
pub(crate) struct Asked {
    hang_up: Arc<AtomicBool>,
    statistics: Arc<AtomicBool>,
}

impl Asked {
    /// From now on SIGHUP and SIGUSR1 do not end the process.
    ///
    /// # Errors
    /// The operating system's, when it refuses a handler.
    pub(crate) fn on_signals() -> Result<Asked> {
        let asked = Asked { hang_up: Arc::default(), statistics: Arc::default() };
        flag::register(SIGHUP, asked.hang_up.clone()).map_err(Error::from)?;
        flag::register(SIGUSR1, asked.statistics.clone()).map_err(Error::from)?;
        Ok(asked)
    }

    /// Whether SIGHUP came since this was last asked.
    pub(crate) fn hung_up(&self) -> bool {
        self.hang_up.swap(false, Ordering::Relaxed)
    }

    /// Whether SIGUSR1 came since this was last asked.
    pub(crate) fn wants_statistics(&self) -> bool {
        self.statistics.swap(false, Ordering::Relaxed)
    }
}

/// How often to look for the wish.
const LOOK: Duration = Duration::from_millis(50);
/// What work that takes a batch at a time is given to end in.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// What a writer of images is given to end in. It may be ended at any moment and goes on from there.
pub(crate) const GRACE_FOR_WRITERS: Duration = Duration::from_secs(20);
