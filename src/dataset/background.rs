//! Work in the background, such as connecting, for callers that must look for signals while they wait.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::reader::{TICK, Watch, interrupted};
use crate::threads::caught;

/// Work on a thread of its own, whose result this value receives.
///
/// If this value is dropped before the work has ended, the thread goes on until the work ends, and drops the result.
/// Work that may take long asks [`is_abandoned`].
pub(super) struct Background<T> {
    result: Receiver<Result<T>>,
    /// Held while somebody waits for the result: [`WANTED`] refers to it.
    _wanted: Arc<()>,
}

thread_local! {
    /// On a thread of a [`Background`]: dead once nobody waits for the result any more.
    static WANTED: RefCell<Option<Weak<()>>> = const { RefCell::new(None) };
}

/// Returns whether this is the thread of a [`Background`] for whose result nobody waits any more.
pub(super) fn is_abandoned() -> bool {
    WANTED.with_borrow(|wanted| wanted.as_ref().is_some_and(|wanted| wanted.strong_count() == 0))
}

impl<T: Send + 'static> Background<T> {
    /// Begins `work`.
    ///
    /// # Errors
    /// `OutOfMemory`, `Io`: the thread cannot be started.
    pub(super) fn start(
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Background<T>> {
        let (sender, result) = channel();
        let wanted = Arc::new(());
        let of_thread = Arc::downgrade(&wanted);
        std::thread::Builder::new()
            .name("dlfs-open".into())
            .spawn(move || {
                WANTED.set(Some(of_thread));
                let made = caught("the thread dlfs-open", work).and_then(|made| made);
                let _ = sender.send(made); // the caller may have stopped waiting
            })
            .map_err(|error| Error::from(error).hint("the process may start no more threads"))?;
        Ok(Background { result, _wanted: wanted })
    }

    /// Waits for the work for at most `limit`; returns the result once, and `None` if the work has not ended.
    ///
    /// # Errors
    /// Errors of the work. `Internal`: the result was returned before.
    pub(super) fn wait(&self, limit: Duration) -> Result<Option<T>> {
        match self.result.recv_timeout(limit) {
            Ok(result) => result.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::new(
                ErrorKind::Internal,
                "the result of the thread dlfs-open was taken before",
            )),
        }
    }
}

/// Runs `work` in the background and waits for it, until `watch` ends the wait or `deadline` has passed since the call;
/// `None`: no deadline. Only work that connects has one: the error of a late end says so.
///
/// # Errors
/// Errors of `work` and of [`Background::start`]; `Interrupted`: `watch` ended the wait; `TimedOut`.
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
                .hint("check that the target is up; raise the deadline if it is only slow"));
        }
    }
}
