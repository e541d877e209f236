//! SIGINT and SIGTERM end the run with the figures so far, a second one ends it at once; SIGUSR1
//! requests the figures so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;

/// The requests of signals.
pub(crate) struct Signals {
    stop: Arc<AtomicBool>,
    interim: Arc<AtomicBool>,
}

impl Signals {
    /// # Errors
    /// Errors of the operating system when it refuses a handler.
    pub(crate) fn catch() -> Result<Signals, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let interim = Arc::new(AtomicBool::new(false));
        let register = || {
            for signal in [SIGINT, SIGTERM] {
                // The order matters: at the first signal, the flag must still be unset.
                flag::register_conditional_shutdown(signal, 128, stop.clone())?;
                flag::register(signal, stop.clone())?;
            }
            // A file that grows beyond a limit is an error, EFBIG, instead of our end.
            flag::register(SIGXFSZ, Arc::default())?;
            flag::register(SIGUSR1, interim.clone())
        };
        register().map_err(|error| format!("cannot catch signals: {error}"))?;
        Ok(Signals { stop, interim })
    }

    /// Returns whether to end the run.
    pub(crate) fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns whether the figures so far were requested since the last call.
    pub(crate) fn take_interim(&self) -> bool {
        self.interim.swap(false, Ordering::Relaxed)
    }
}
