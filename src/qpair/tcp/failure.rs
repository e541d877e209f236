//! Why a controller could not be reached or was lost.

use std::fmt;

use rustix::io::Errno;

use super::link::LinkError;
use crate::error::{Error, ErrorKind};
use crate::tcp::ProtocolError;

/// A failure that several callers may have to be told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
    pub(super) hint: Option<&'static str>,
}

impl Failure {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: &'static str) -> Failure {
        self.hint = Some(hint);
        self
    }

    /// The same failure, with what was being done in front.
    pub(super) fn at(mut self, what: impl fmt::Display) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The library's error for `target`.
    pub(super) fn to_error(&self, target: &str) -> Error {
        let error = Error::new(self.kind, self.message.clone()).target(target);
        match self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Failure {
        let kind = match &error {
            LinkError::Connect(Errno::CONNREFUSED) => ErrorKind::Refused,
            LinkError::ConnectTimeout(_) | LinkError::Connect(Errno::TIMEDOUT) => {
                ErrorKind::TimedOut
            }
            LinkError::Protocol(ProtocolError::TimedOut(_)) => ErrorKind::TimedOut,
            LinkError::Protocol(ProtocolError::DigestDeclined) => ErrorKind::Unsupported,
            LinkError::Protocol(_) => ErrorKind::Corrupt,
            LinkError::Connect(_) | LinkError::Os(_) | LinkError::Closed => ErrorKind::Disconnected,
        };
        let failure = Failure::new(kind, error.to_string());
        match error {
            LinkError::Connect(Errno::CONNREFUSED) => {
                failure.hint("nothing listens at that address: is the target running?")
            }
            LinkError::Protocol(ProtocolError::DigestDeclined) => {
                failure.hint("leave out --hdr-digest and --data-digest")
            }
            _ => failure,
        }
    }
}
