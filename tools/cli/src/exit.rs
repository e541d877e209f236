//! How a command ends: what the shell sees, and what goes to stderr.

use std::io;
use std::path::Path;

use dlfs::format::FormatError;
use dlfs::order::OrderError;
use dlfs::{Error, ErrorKind};

use crate::text::safe_text;

/// The end of a command that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it is done.
    Done,
    /// It is done, and some of what was asked could not be had; the command has said what.
    Incomplete,
    /// It found damage, and has said where.
    Damaged,
    /// It was stopped on request, and its work can be taken up again.
    Stopped,
}

impl Outcome {
    /// The exit code of the process: 0 done, 1 failed, 3 damage found, 4 stopped.
    pub(crate) fn number(self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::Incomplete => 1,
            Outcome::Damaged => 3,
            Outcome::Stopped => 4,
        }
    }
}

/// Why a command did not reach its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What the library or the operating system said.
    Error(Error),
    /// Options that contradict each other or the image; exit code 2.
    Usage(String),
    /// Whoever read our output is gone, as with `dlfs ls | head`.
    OutputClosed,
}

impl Failure {
    /// Prints the failure where there is something to print, and gives the exit code.
    pub(crate) fn conclude(self) -> u8 {
        match self {
            Failure::Error(error) => {
                complain(&error.report());
                code_of(error.kind())
            }
            Failure::Usage(message) => {
                complain(&format!("{message}\n\nFor more information, try '--help'."));
                2
            }
            Failure::OutputClosed => {
                // The end that every Unix filter has: the shell learns that not all was written.
                // Should the signal be blocked, the plain failure code says the same.
                let _ =
                    signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
                1
            }
        }
    }
}

/// Says on stderr what went wrong. It may quote names, paths and words of a target.
pub(crate) fn complain(text: &str) {
    eprintln!("dlfs: {}", safe_text(text));
}

fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Corrupt => 3,
        ErrorKind::Interrupted => 4,
        _ => 1,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Failure {
        Failure::Error(error.into())
    }
}

impl From<OrderError> for Failure {
    fn from(error: OrderError) -> Failure {
        Failure::Error(error.into())
    }
}

/// An operating system error about one file, as the library would say it.
pub(crate) fn about_file(doing: &'static str, path: impl AsRef<Path>, error: io::Error) -> Error {
    let kind = Error::from(io::Error::from(error.kind())).kind();
    Error::new(kind, doing).path(path.as_ref()).source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_and_interruption_have_exit_codes_of_their_own() {
        assert_eq!(code_of(ErrorKind::Corrupt), 3);
        assert_eq!(code_of(ErrorKind::Interrupted), 4);
        assert_eq!(code_of(ErrorKind::NotFound), 1);
    }

    #[test]
    fn a_full_disk_keeps_its_kind_and_names_the_file() {
        let error = about_file("cannot write", "/x", io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("/x"));
    }
}
