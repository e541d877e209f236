//! How long the maker of a queue pair waits until it is in a session.

use std::time::Instant;

use super::{Backlog, Phase, Remote, Transport};
use crate::error::{Error, ErrorKind, Result};

impl<T: Transport> Remote<T> {
    /// Whether a new queue pair that is not in a session yet may go on trying; `stage` is what it is at.
    ///
    /// # Errors
    /// The controller has been given up, or `deadline` has come.
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
        if let Some(failure) = backlog.last_failure() {
            error = error.source(self.error(failure));
        }
        Err(error.target(self.name()))
    }
}
