//! Work that cannot be interrupted, done where nobody has to wait for it to the end.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::reader::{TICK, Watch, interrupted};
use crate::threads::caught;

/// Work on a thread of its own. When this is dropped before its end, the work ends by itself, at its own
/// limits, and what it made is dropped there.
pub(super) struct Background<T>(Receiver<Result<T>>);

impl<T: Send + 'static> Background<T> {
    /// Begins `work`.
    ///
    /// # Errors
    /// `OutOfMemory`, `Io`: there is no thread for it.
    pub(super) fn start(
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Background<T>> {
        let (sender, receiver) = channel();
        std::thread::Builder::new()
            .name("dlfs-open".into())
            .spawn(move || {
                let made = caught("the thread dlfs-open", work).and_then(|made| made);
                let _ = sender.send(made); // nobody listens any more when it was given up
            })
            .map_err(|error| Error::from(error).hint("the process may start no more threads"))?;
        Ok(Background(receiver))
    }

    /// What the work made, once; `None` when it has not ended within `limit`.
    ///
    /// # Errors
    /// Those of the work.
    pub(super) fn wait(&self, limit: Duration) -> Result<Option<T>> {
        match self.0.recv_timeout(limit) {
            Ok(result) => result.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::new(ErrorKind::Internal, "what it opens has been taken before"))
            }
        }
    }
}

/// Runs `work` in the background until its end, while `watch` and `deadline` may give it up.
///
/// # Errors
/// Those of `work`; `Interrupted`; `TimedOut`.
pub(super) fn in_background<T: Send + 'static>(
    watch: &mut dyn Watch,
    deadline: Option<Duration>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let begun = Instant::now();
    let work = Background::start(work)?;
    loop {
        let left = deadline.map_or(TICK, |deadline| deadline.saturating_sub(begun.elapsed()));
        if let Some(made) = work.wait(left.min(TICK))? {
            return Ok(made);
        }
        if !watch.goes_on() {
            return Err(interrupted());
        }
        if deadline.is_some_and(|deadline| begun.elapsed() >= deadline) {
            let text = format!("connecting has not ended within {:?}", begun.elapsed());
            return Err(Error::new(ErrorKind::TimedOut, text)
                .hint("see whether the target is up; raise the deadline if it is merely slow"));
        }
    }
}
