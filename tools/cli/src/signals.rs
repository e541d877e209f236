//! Ctrl-C and SIGTERM end a run in order; a second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use dlfs::{Error, Result};

/// Whether the user asked this process to stop. Clones see the same wish.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on SIGINT and SIGTERM set the wish, and a second of them ends the process with 1.
    ///
    /// # Errors
    /// The operating system's, when it refuses a handler.
    pub(crate) fn on_signals() -> Result<Stop> {
        let wish = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the first signal must find the wish still unset.
            flag::register_conditional_shutdown(signal, 1, wish.clone()).map_err(Error::from)?;
            flag::register(signal, wish.clone()).map_err(Error::from)?;
        }
        Ok(Stop(wish))
    }

    /// Whether it is time to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
    /// Sleeps until it is time to stop.
    pub(crate) fn wait(&self) {
        while !self.is_set() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
