//! Writes a report or a trace to a file that may hold an older one.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::replace_file::{NewMode, check_replaceable, replace_file};

/// Makes `text`, a report or a trace, the content of the file at `path`.
///
/// A new file is readable only by its owner. A regular file is replaced atomically: after an error, such as a
/// full disk, the old content, or the absence of the file, is unchanged. Other files, such as pipes, are
/// written in place.
///
/// # Errors
/// Errors of the file system; they name the file.
pub fn save_page(path: &Path, text: &str) -> Result<()> {
    if !is_other(path) {
        return replace_file(path, NewMode::Private, text.as_bytes());
    }
    fs::write(path, text).map_err(|error| Error::of_file("cannot write the file", path, error))
}

/// Checks that [`save_page`] may write to `path`, without writing.
///
/// # Errors
/// As [`save_page`].
pub fn check_page(path: &Path) -> Result<()> {
    // Opening a named pipe would wait for its reader.
    if is_other(path) { Ok(()) } else { check_replaceable(path) }
}

/// Returns whether `path` is something that must not be replaced by a file, such as a named pipe.
fn is_other(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}
