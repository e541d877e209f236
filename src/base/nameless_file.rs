//! Files without a name: they disappear when they are closed, however the process ends. Where the file system cannot
//! create such a file, it has a name for an instant.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// A file in `folder` that disappears when it is closed.
///
/// # Errors
/// Errors of the file system.
pub fn nameless_file(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(folder) {
        Ok(file) => return Ok(file),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        Err(error) => return Err(error),
    }
    // Some file systems do not support O_TMPFILE: creates a named file and unlinks it. If the process dies in
    // between, an empty file remains.
    for attempt in 0..MAX_NAMES {
        let path = folder.join(format!(".dlfs-spool-{}-{attempt}", std::process::id()));
        match options.clone().create_new(true).open(&path) {
            Ok(file) => return fs::remove_file(&path).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

/// Names that are tried where the file needs one for a moment: other threads of the process may use some.
const MAX_NAMES: u32 = 100;
