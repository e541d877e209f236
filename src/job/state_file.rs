//! The state of a run in a file, replaced in one step.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::order::State;

/// Writes `state` to the file `path`, durably; whatever crashes, the file is the old one or the new.
///
/// # Errors
/// Those of the file system; the old file is then as it was.
pub fn save_state(path: &Path, state: &State) -> Result<()> {
    let (mut file, draft) = create_draft(path)?;
    let written = writeln!(file, "{}", state.to_json())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&draft, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&draft); // what matters is why it could not be written
        about(path, "cannot write the state", error)
    })
}

/// Reads the state that [`save_state`] wrote; `None` when there is no such file.
///
/// # Errors
/// `InvalidArgument`: it holds no state. Those of the file system.
pub fn load_state(path: &Path) -> Result<Option<State>> {
    match fs::read_to_string(path) {
        Ok(text) => State::from_json(&text).map(Some).map_err(|error| error.path(path)),
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
        Err(error) => Err(about(path, "cannot read the state", error)),
    }
}

fn about(path: &Path, doing: &'static str, error: std::io::Error) -> Error {
    Error::new(Error::from(std::io::Error::from(error.kind())).kind(), doing)
        .path(path)
        .source(error)
}

/// A new file beside `path`.
fn create_draft(path: &Path) -> Result<(File, PathBuf)> {
    let mut number = std::process::id();
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number:08x}"));
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Ok(file) => return Ok((file, name.into())),
            // Another thread is at it, or a process of that number died in the middle.
            Err(error) if error.kind() == IoErrorKind::AlreadyExists => {
                number = number.wrapping_add(1 << 24);
            }
            Err(error) => return Err(about(path, "cannot write the state", error)),
        }
    }
}
