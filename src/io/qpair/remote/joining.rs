//! How long opening a queue pair waits until it has joined a session.

use std::time::Instant;

use super::{Backlog, Phase, Remote, Transport};
use dlfs_base::error::{Error, ErrorKind, Result};

impl<T: Transport> Remote<T> {
    /// Checks that a new queue pair that has not joined a session yet may go on trying; `stage` names its
    /// current step.
    ///
    /// # Errors
    /// The controller was given up, or `deadline` has passed.
    pub(in crate::qpair) fn may_wait(
        &self,
        now: Instant,
        deadline: Instant,
        backlog: &Backlog,
        stage: &str,
    ) -> Result<()> {
        if let Phase::Dead(failure) = self.phase() {
            return Err(self.error(&failure));
        }
        if now < deadline {
            return Ok(());
        }
        let mut error = Error::new(ErrorKind::TimedOut, format!("no I/O queue: {stage}"));
        if let Some(failure) = &backlog.last_failure {
            error = error.source(self.error(failure));
        }
        Err(error.target(self.name()))
    }
}
