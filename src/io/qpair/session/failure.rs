//! A failure to reach a controller, or the reason for its loss.

use std::fmt;

use dlfs_base::error::{Error, ErrorKind};
use dlfs_base::units::Nsid;
use dlfs_nvme::tcp::ProtocolError;

/// A failure that several callers may have to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The kind that a caller acts on.
    pub kind: ErrorKind,
    /// Describes the failure, and its place.
    pub message: String,
    /// Advice for the user.
    pub hint: Option<&'static str>,
    /// The namespace that it concerns, if not the whole controller.
    pub nsid: Option<Nsid>,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), hint: None, nsid: None }
    }

    /// The same failure with a hint for the user.
    pub fn hint(mut self, hint: &'static str) -> Failure {
        self.hint = Some(hint);
        self
    }

    /// The same failure, attributed to one namespace.
    pub fn of(mut self, nsid: Nsid) -> Failure {
        self.nsid = Some(nsid);
        self
    }

    /// The same failure, prefixed by the step that failed.
    pub fn at(mut self, what: impl fmt::Display) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The library's error for `target`.
    pub(crate) fn to_error(&self, target: &str) -> Error {
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

impl From<ProtocolError> for Failure {
    fn from(error: ProtocolError) -> Failure {
        let failure = |kind| Failure::new(kind, error.to_string());
        match error {
            ProtocolError::TimedOut(_) => failure(ErrorKind::TimedOut),
            ProtocolError::DigestDeclined => {
                failure(ErrorKind::Unsupported).hint("leave out --hdr-digest and --data-digest")
            }
            _ => failure(ErrorKind::Corrupt),
        }
    }
}
