//! SIGINT and SIGTERM end the run with the figures so far, a second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// The flag that these signals set.
///
/// # Errors
/// Errors of the operating system when it refuses a handler.
pub(crate) fn catch() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    let register = || {
        for signal in [SIGINT, SIGTERM] {
            // The order matters: at the first signal, the flag must still be unset.
            flag::register_conditional_shutdown(signal, 128, Arc::clone(&stop))?;
            flag::register(signal, Arc::clone(&stop))?;
        }
        // A file that grows beyond a limit is an error, EFBIG, instead of our end.
        flag::register(SIGXFSZ, Arc::default())
    };
    register().map_err(|error| format!("cannot catch signals: {error}"))?;
    Ok(stop)
}
