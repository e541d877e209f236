//! Why a controller could not be reached or was lost.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// A failure that several callers may have to be told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::qpair) struct Failure {
    pub(in crate::qpair) kind: ErrorKind,
    pub(in crate::qpair) message: String,
    pub(in crate::qpair) hint: Option<&'static str>,
}

impl Failure {
    pub(in crate::qpair) fn new(kind: ErrorKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), hint: None }
    }

    pub(in crate::qpair) fn hint(mut self, hint: &'static str) -> Failure {
        self.hint = Some(hint);
        self
    }

    /// The same failure, with what was being done in front.
    pub(in crate::qpair) fn at(mut self, what: impl fmt::Display) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The library's error for `target`.
    pub(in crate::qpair) fn to_error(&self, target: &str) -> Error {
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
