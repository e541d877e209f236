//! The retry of calls that failed for a transient reason: a lost connection, or data damaged in transit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use dlfs_base::units::deadline;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_io::qpair::IoError;
use dlfs_nvme::nvme::RetryClass;

/// Returns whether a retry on a new connection may help.
pub(super) fn is_transient(error: &Error) -> bool {
    use std::error::Error as _;
    match error.kind() {
        ErrorKind::Disconnected | ErrorKind::TimedOut => true,
        // The target rejected data that was damaged in transit.
        ErrorKind::Refused => matches!(
            error.source().and_then(|source| source.downcast_ref()),
            Some(IoError::Status(status)) if status.retry_class() == RetryClass::Retry
        ),
        _ => false,
    }
}

/// The time during which all threads of an import together retry without progress.
#[derive(Default)]
pub(super) struct RetryBudget {
    /// The end of the budget, which the first failure since the last progress sets; `None`: no failure since.
    until: Mutex<Option<Instant>>,
}

/// One thread's delay before its last retry; zero before the first. It doubles from [`MIN_BACKOFF`] to [`MAX_BACKOFF`].
#[derive(Default)]
pub(super) struct Backoff(Duration);

impl RetryBudget {
    /// Retries `attempt`, which must be idempotent, while its errors are transient.
    ///
    /// # Errors
    /// The first error that is not transient; the last one when the budget is spent.
    pub(super) fn retry<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut pause = Backoff::default();
        let never = AtomicBool::new(false);
        loop {
            match attempt() {
                Err(error) if is_transient(&error) && self.wait(&mut pause, &never) => {}
                Err(error) => return Err(error),
                Ok(done) => {
                    self.progressed();
                    return Ok(done);
                }
            }
        }
    }

    /// Records the failure of a call that began at `begun`.
    pub(super) fn failed(&self, begun: Instant) {
        self.until.lock().get_or_insert(begun + RETRY_FOR);
    }

    /// Records progress: the next failure starts a new budget.
    pub(super) fn progressed(&self) {
        *self.until.lock() = None;
    }

    /// The deadline of calls after a failure, so that they take at most `limit` together with the earlier attempts.
    /// `None`: no failure since the last progress.
    pub(super) fn until(&self, limit: Duration) -> Option<Instant> {
        self.until.lock().map(|until| deadline(until, limit.saturating_sub(RETRY_FOR)))
    }

    /// Sleeps twice as long as last time, within the bounds of [`Backoff`]. Returns false, without sleep, if the budget
    /// would end first or `stop` is set.
    pub(super) fn wait(&self, pause: &mut Backoff, stop: &AtomicBool) -> bool {
        let next = (pause.0 * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
        let until = *self.until.lock().get_or_insert_with(|| Instant::now() + RETRY_FOR);
        if Instant::now() + next > until || stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(next);
        pause.0 = next;
        true
    }
}

/// Length of the budget. It is less than the deadline of a call, so that the last attempt ends within that deadline.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(45);

/// The first delay of a [`Backoff`].
const MIN_BACKOFF: Duration = Duration::from_millis(10);
/// The longest delay of a [`Backoff`].
const MAX_BACKOFF: Duration = Duration::from_secs(1);
