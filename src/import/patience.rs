//! How long a target that went away is waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Error, ErrorKind, Result};

/// Does `attempt` again while what it meets may pass; it must be right to do again.
///
/// # Errors
/// The last one, when there was enough of it.
pub(super) fn with_patience<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let mut patience = Patience::new();
    let never = AtomicBool::new(false);
    loop {
        match attempt() {
            Err(error) if is_passing(&error) && patience.wait(&never) => {}
            result => return result,
        }
    }
}

/// Whether trying again on a new connection may help.
pub(super) fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::TimedOut)
}

/// How long a write is tried again.
pub(super) struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    /// From now on.
    pub(super) fn new() -> Patience {
        Patience {
            until: Instant::now() + Duration::from_secs(60),
            pause: Duration::from_millis(10),
        }
    }

    /// Waits a little longer than the last time; `false` when there was enough of it.
    pub(super) fn wait(&mut self, stop: &AtomicBool) -> bool {
        if Instant::now() + self.pause > self.until || stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_secs(1));
        true
    }
}
