//! The state of a run in a file, replaced in one step.

use std::fs::File;
use std::io::{ErrorKind as IoErrorKind, Read};
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::order::State;
use crate::replace_file::replace_file;

/// Writes `state` to the file `path`, durably; whatever crashes, the file is the old one or the new.
///
/// # Errors
/// `InvalidArgument`: `path` is no regular file. Those of the file system. The old file is then as it was.
pub fn save_state(path: &Path, state: &State) -> Result<()> {
    replace_file(path, format!("{}\n", state.to_json()).as_bytes())
}

/// Reads the state that [`save_state`] wrote; `None` when there is no such file.
///
/// # Errors
/// `InvalidArgument`: it holds no state. Those of the file system.
pub fn load_state(path: &Path) -> Result<Option<State>> {
    // Asked before opening, which would wait for the other end of a FIFO.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let text = "a reading state lies in a regular file, and this is none";
        return Err(Error::new(ErrorKind::InvalidArgument, text).path(path));
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Ok(len) if len as u64 > MOST_BYTES => {
            let text = format!("this is no reading state: it has more than {MOST_BYTES} bytes");
            Err(Error::new(ErrorKind::InvalidArgument, text).path(path))
        }
        // What is no text is no JSON either, and is refused as such.
        Ok(_) => State::from_json(&String::from_utf8_lossy(&bytes))
            .map(Some)
            .map_err(|error| error.path(path)),
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
        Err(error) => Err(about(path, "cannot read the state", error)),
    }
}

/// A state has some 300 bytes; whatever is named by mistake is not read whole.
const MOST_BYTES: u64 = 64 << 10;

fn about(path: &Path, doing: &'static str, error: std::io::Error) -> Error {
    Error::new(Error::from(std::io::Error::from(error.kind())).kind(), doing)
        .path(path)
        .source(error)
}
