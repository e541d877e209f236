//! How a queue pair without a connection finds a session, and how long its maker waits for that.

use std::sync::Arc;
use std::time::Instant;

use super::{Backlog, Phase, Remote, Session, Transport};
use crate::error::{Error, ErrorKind, Result};

/// Whether there is a session to join.
pub(in crate::qpair) enum Entrance<T: Transport> {
    /// This one.
    Open(Arc<Session<T>>),
    /// Not now: look again.
    NotYet,
    /// There will be none any more, for this reason.
    Closed(String),
}

impl<T: Transport> Remote<T> {
    /// The session to join, if one is live; `backlog` keeps why there is none.
    pub(in crate::qpair) fn entrance(&self, backlog: &mut Backlog) -> Entrance<T> {
        match self.phase() {
            Phase::Live(session) => Entrance::Open(session),
            Phase::Opening => Entrance::NotYet,
            Phase::Lost(failure) => {
                backlog.note(failure);
                Entrance::NotYet
            }
            Phase::Dead(failure) => Entrance::Closed(failure.message),
        }
    }

    /// Whether a new queue pair that is not in a session yet may go on trying; `stage` is what it is at.
    ///
    /// # Errors
    /// The namespace has been given up, or `deadline` has come.
    pub(in crate::qpair) fn may_wait(
        &self,
        now: Instant,
        deadline: Instant,
        backlog: &Backlog,
        stage: &str,
    ) -> Result<()> {
        if let Phase::Dead(failure) = self.phase() {
            return Err(failure.to_error(&self.name()));
        }
        if now < deadline {
            return Ok(());
        }
        let mut error = Error::new(ErrorKind::TimedOut, format!("no I/O queue: {stage}"));
        if let Some(failure) = backlog.last_failure() {
            error = error.source(failure.to_error(&self.name()));
        }
        Err(error.target(self.name()))
    }
}
