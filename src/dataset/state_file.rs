//! Saves the state of a run in a file, atomically, and loads it.

use std::fs::File;
use std::io::{ErrorKind as IoErrorKind, Read};
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::order::State;
use crate::replace_file::{NewMode, replace_file};

/// Writes `state` to the file `path`, durably and atomically: a crash leaves the old file or the new one.
///
/// # Errors
/// `InvalidArgument`: `path` is not a regular file. Those of the file system. The old file is then unchanged.
pub fn save_state(path: &Path, state: &State) -> Result<()> {
    replace_file(path, NewMode::Private, format!("{}\n", state.to_json()).as_bytes())
}

/// Reads the state that [`save_state`] wrote; `None` if there is no such file.
///
/// # Errors
/// `InvalidArgument`: the file does not hold a state. Those of the file system.
pub fn load_state(path: &Path) -> Result<Option<State>> {
    let Some(bytes) = read_limited(path)? else { return Ok(None) };
    // Bytes that are not UTF-8 are not JSON, and are refused as such.
    let state = State::from_json(&String::from_utf8_lossy(&bytes));
    state.map(Some).map_err(|error| error.path(path))
}

/// The bytes of a file that may hold a state; `None` if there is no such file.
///
/// # Errors
/// `InvalidArgument`: it is too long, or no regular file. Those of the file system.
pub(super) fn read_limited(path: &Path) -> Result<Option<Vec<u8>>> {
    // Checked before opening, since opening a FIFO waits for its other end.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let text = "a reading state is a regular file, and this is not one";
        return Err(Error::new(ErrorKind::InvalidArgument, text).path(path));
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Ok(len) if len as u64 > MOST_BYTES => {
            let text = format!("this is not a reading state: it has more than {MOST_BYTES} bytes");
            Err(Error::new(ErrorKind::InvalidArgument, text).path(path))
        }
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::of_file("cannot read the state", path, error)),
    }
}

/// A state has about 300 bytes, and for each source of a mixture 200 more. The limit keeps a large file, named by
/// mistake, from being read.
const MOST_BYTES: u64 = 16 << 20;
