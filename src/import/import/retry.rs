//! Retries with back-off: the time that an import waits for an unreachable target.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use dlfs_base::units::deadline;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_io::qpair::IoError;
use dlfs_nvme::nvme::RetryClass;

/// Retries `attempt`, which must be idempotent, while its errors are transient.
///
/// # Errors
/// The last error, when the retry budget is spent.
pub(super) fn with_retry<T>(
    retry_budget: &RetryBudget,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut pause = Backoff::default();
    let never = AtomicBool::new(false);
    loop {
        match attempt() {
            Err(error) if is_transient(&error) && retry_budget.wait(&mut pause, &never) => {}
            Err(error) => return Err(error),
            Ok(done) => {
                retry_budget.progressed();
                return Ok(done);
            }
        }
    }
}

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

/// The time for which all threads of an import together retry without progress.
#[derive(Default)]
pub(super) struct RetryBudget {
    until: Mutex<Option<Instant>>,
}

/// One thread's delay between attempts.
#[derive(Default)]
pub(super) struct Backoff(Duration);

impl RetryBudget {
    /// Records the failure of a call that began at `begun`.
    pub(super) fn failed(&self, begun: Instant) {
        self.until.lock().get_or_insert(begun + RETRY_FOR);
    }

    /// Records progress: the next failure starts a new budget.
    pub(super) fn progressed(&self) {
        *self.until.lock() = None;
    }

    /// The deadline of calls after a failure: together with the earlier attempts they take at most `limit`.
    pub(super) fn until(&self, limit: Duration) -> Option<Instant> {
        self.until.lock().map(|until| deadline(until, limit.saturating_sub(RETRY_FOR)))
    }

    /// Sleeps somewhat longer than last time. Returns false if the budget is spent.
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

/// The retry budget. It is less than the deadline of a call, so that the last attempt ends within that
/// deadline.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(45);

const MIN_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
