//! The end of a command: exit codes and error messages.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use dlfs::format::FormatError;
use dlfs::{Error, ErrorKind};

use crate::text::safe_text;

/// The result of a command that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All work is done.
    Done,
    /// The work is not done, or not wholly: the command has listed the missing items, or was stopped and cannot be
    /// continued.
    Incomplete,
    /// The command found damage, and has listed it.
    Damaged,
    /// The command was stopped on request, and can be continued.
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

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the library or the operating system.
    Error(Error),
    /// Options that contradict each other or the image; exit code 2.
    Usage(String),
    /// The reader of the output has gone, as in `dlfs ls | head`.
    OutputClosed,
}

impl Failure {
    /// Prints the failure if there is something to print, and returns the exit code.
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
                // End by SIGPIPE like other Unix filters, so that the shell learns that the output is
                // incomplete. If the signal is blocked, return the ordinary failure code.
                let _ =
                    signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
                1
            }
        }
    }
}

/// Prints an error on stderr. `text` may quote names, paths and strings from a target, and is escaped.
pub(crate) fn complain(text: &str) {
    // A terminal that has gone, or a pipe without a reader, must not cause a panic: the exit code reports the
    // error too.
    let _ = writeln!(io::stderr(), "dlfs: {}", safe_text(text));
}

fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Corrupt => 3,
        ErrorKind::Interrupted => 4,
        _ => 1,
    }
}

/// Turns an error of options into a failure: exit code 2 if the options are invalid.
pub(crate) fn usage(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::InvalidArgument => Failure::Usage(error.report()),
        _ => error.into(),
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

/// An operating system error about one file, as an error of the library.
pub(crate) fn about_file(doing: &'static str, path: impl AsRef<Path>, error: io::Error) -> Error {
    let kind = Error::from(io::Error::from(error.kind())).kind();
    Error::new(kind, doing).path(path.as_ref()).source(error)
}

/// The bytes of a file, or of standard input for `-`.
pub(crate) fn read_or_stdin(doing: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))
    };
    read.map_err(|error| about_file(doing, path, error))?;
    Ok(bytes)
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
