//! SIGINT and SIGTERM: the first ends the run with the figures so far, a second ends the process at once.

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
        // Without a handler, a file that exceeds the size limit would end this process instead of failing
        // with EFBIG.
        flag::register(SIGXFSZ, Arc::default())
    };
    register().map_err(|error| format!("cannot catch signals: {error}"))?;
    Ok(stop)
}
