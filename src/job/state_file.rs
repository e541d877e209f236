//! The state of a run in a file, replaced in one step.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::order::State;

/// Writes `state` to the file `path`, durably; whatever crashes, the file is the old one or the new.
///
/// # Errors
/// Those of the file system; the old file is then as it was.
pub fn save_state(path: &Path, state: &State) -> Result<()> {
    let (mut file, draft) = create_draft(path)?;
    let written = writeln!(file, "{}", state.to_json())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&draft, path))
        .and_then(|()| sync_folder_of(path));
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

/// Has the name that a file was given survive a crash too.
fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
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
