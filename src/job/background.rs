//! Work that cannot be interrupted, done where nobody has to wait for it to the end.

use std::sync::mpsc::{RecvTimeoutError, channel};

use crate::error::{Error, ErrorKind, Result};
use crate::reader::{TICK, Watch, interrupted};

/// Runs `work` on a thread of its own, while `watch` may give it up: then it ends by itself, at its own
/// limits, and what it made is dropped.
///
/// # Errors
/// Those of `work`; `Interrupted`.
pub(super) fn in_background<T: Send + 'static>(
    watch: &mut dyn Watch,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = channel();
    std::thread::Builder::new()
        .name("dlfs-open".into())
        .spawn(move || {
            let _ = sender.send(work()); // nobody listens any more when it was given up
        })
        .map_err(|error| Error::from(error).hint("the process may start no more threads"))?;
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if watch.goes_on() => {}
            Err(RecvTimeoutError::Timeout) => return Err(interrupted()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Io, "the thread that opened it panicked"));
            }
        }
    }
}
