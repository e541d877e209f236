//! Files that a run leaves: its state, which a later run resumes from, and reports or traces for people.

use std::fs::{self, File};
use std::io::{ErrorKind as IoErrorKind, Read};
use std::path::Path;

use crate::error::{Error, ErrorKind, Result, invalid};
use crate::order::State;
use crate::replace_file::{NewMode, check_replaceable, replace_file};

/// Writes `state` to the file `path`, durably and atomically: a crash leaves the old file or the new one.
///
/// # Errors
/// `InvalidArgument`: `path` is not a regular file. Errors of the file system. After an error the old file is
/// unchanged, unless only the fsync of its folder failed: see [`replace_file`].
pub fn save_state(path: &Path, state: &State) -> Result<()> {
    replace_file(path, NewMode::Private, format!("{}\n", state.to_json()).as_bytes())
}

/// Reads the state that [`save_state`] wrote; `None` if there is no such file.
///
/// # Errors
/// `InvalidArgument`: the file does not hold a state. Errors of the file system.
pub fn load_state(path: &Path) -> Result<Option<State>> {
    load(path, State::from_json)
}

/// Parses a file that may hold a state; `None` if the file does not exist.
///
/// # Errors
/// Errors of `parse`. `InvalidArgument`: the file is too long, or is not a regular file. Errors of the file system.
pub(super) fn load<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
    // Checked before opening, since opening a FIFO waits for its other end.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(invalid("a reading state is a regular file, and this is not one").path(path));
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Ok(len) if len as u64 > MOST_BYTES => {
            let text = format!("this is not a reading state: it has more than {MOST_BYTES} bytes");
            Err(Error::new(ErrorKind::InvalidArgument, text).path(path))
        }
        // Invalid UTF-8 becomes U+FFFD, which no JSON has outside of a string.
        Ok(_) => {
            parse(&String::from_utf8_lossy(&bytes)).map(Some).map_err(|error| error.path(path))
        }
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::of_file("cannot read the state", path, error)),
    }
}

/// Makes `text`, a report or a trace, the content of the file at `path`.
///
/// A new file is readable only by its owner. A regular file is replaced atomically, as by [`save_state`]: a full disk
/// leaves the old file, or none if there was none. Other files, such as pipes, are written in place.
///
/// # Errors
/// Errors of the file system; they name the file.
pub fn save_page(path: &Path, text: &str) -> Result<()> {
    if !is_other(path) {
        return replace_file(path, NewMode::Private, text.as_bytes());
    }
    fs::write(path, text).map_err(|error| Error::of_file("cannot write the file", path, error))
}

/// Checks that [`save_page`] may write to `path`, without changing what is there.
///
/// # Errors
/// Errors of [`save_page`].
pub fn check_page(path: &Path) -> Result<()> {
    // Opening a named pipe would wait for its reader.
    if is_other(path) { Ok(()) } else { check_replaceable(path) }
}

/// Returns whether there is something at `path` that a file must not replace, such as a named pipe.
fn is_other(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// A state takes about 300 bytes, plus 200 for each source of a mixture. The limit protects against a large
/// file named by mistake.
const MOST_BYTES: u64 = 16 << 20;
