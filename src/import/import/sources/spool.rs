//! Spooling: copies sources that can be read only sequentially to a file.
//!
//! The copy is an unnamed file: it disappears when the import ends, however it ends. Its stamp is a hash of
//! its bytes, so an import from a pipe can resume if the pipe delivers the same bytes again.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::compression::{self, Compression};
use super::expansion::{Compressed, Expansion};
use super::index::{BadReason, Container};
use super::{SourceOptions, shard};
use dlfs_base::nameless_file::nameless_file;
use dlfs_base::{Error, ErrorKind, Result};

/// Returns whether `path` can be read only once and sequentially.
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
        || std::fs::metadata(path).is_ok_and(|found| {
            let kind = found.file_type();
            kind.is_fifo() || kind.is_char_device() || kind.is_socket()
        })
}

/// Opens the shard at `path`; copies it to `spool` first if it is a stream or compressed. Returns whether
/// it was copied.
///
/// # Errors
/// The shard does not open. `BadSource`: there is no spool and the shard needs one, or its compressed data is broken.
/// `NoSpace`: the spool is full.
pub(crate) fn open_or_spool(
    path: &Path,
    options: &SourceOptions,
) -> Result<(Arc<File>, Container, bool)> {
    let name = |error: io::Error| Error::from(error).path(path);
    if !is_stream(path) {
        let (file, container) = shard::open(path)?;
        if compression::of_file(&file).map_err(name)?.is_none() {
            options.expansion.read(container.len_bytes);
            return Ok((file, container, false));
        }
    }
    let Some(spool) = &options.spool else {
        let message = "a pipe or compressed archive can be read only in its own order";
        return Err(Error::new(ErrorKind::BadSource, message).path(path).hint(
            "give it room for a copy with --spool DIR, or keep its order with --placement source",
        ));
    };
    let mut from = open_stream(path, &options.expansion)?;
    let mut copy = nameless_file(spool).map_err(|error| Error::from(error).path(spool))?;
    let mut hash = Xxh3::new();
    let mut len_bytes = 0;
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let message = "a compressed source is broken, ends early or needs too much memory";
                let error = match BadReason::within(&error) {
                    Some(reason) => Error::new(ErrorKind::BadSource, reason.to_string()),
                    None => Error::new(ErrorKind::BadSource, message).source(error),
                };
                return Err(error.path(path));
            }
        };
        hash.update(&buffer[..read]);
        len_bytes += read as u64;
        copy.write_all(&buffer[..read]).map_err(|error| Error::from(error).path(spool))?;
    }
    let container = Container { path: path.to_path_buf(), stamp: hash.digest(), len_bytes };
    Ok((Arc::new(copy), container, true))
}

/// Opens `path` (`-`: standard input) for sequential reading, and decompresses it.
///
/// # Errors
/// The path does not open. As [`decompressed`].
pub(crate) fn open_stream(path: &Path, expansion: &Expansion) -> Result<Box<dyn Read + Send>> {
    let name = |error: io::Error| Error::from(error).path(path);
    let raw: Box<dyn Read + Send> = if path == Path::new("-") {
        widen(&io::stdin());
        Box::new(io::stdin())
    } else {
        let file = File::open(path).map_err(name)?;
        widen(&file);
        Box::new(file)
    };
    decompressed(raw, path, expansion)
}

/// A reader that decompresses `raw`; `path` is for messages.
///
/// # Errors
/// The stream cannot be read, or its compression is not supported.
pub(crate) fn decompressed(
    mut raw: Box<dyn Read + Send>,
    path: &Path,
    expansion: &Expansion,
) -> Result<Box<dyn Read + Send>> {
    // A store's error names the address itself.
    let name = |error: io::Error| {
        error.downcast::<Error>().unwrap_or_else(|error| Error::from(error).path(path))
    };
    let mut head = Vec::new();
    raw.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(name)?;
    let compression = Compression::of(&head);
    if let Some(program) = compression::foreign(&head) {
        return Err(compression::packed(path, program));
    }
    let whole = io::Cursor::new(head).chain(raw);
    match compression {
        Some(compression) => compression.undo(whole, expansion).map_err(name),
        None => Ok(Box::new(Compressed(whole, expansion.clone()))),
    }
}

/// Enlarges a pipe's buffer, so that reader and writer wait for each other less often.
fn widen(pipe: &impl AsFd) {
    // Best effort: the file may not be a pipe, or the user's limit may be reached.
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
}

const COPY_BYTES: usize = 256 * 1024;

/// The kernel's limit for a pipe of an unprivileged user.
const PIPE_BYTES: usize = 1 << 20;
/// Bytes that suffice to detect a compression.
const HEAD_BYTES: u64 = compression::HEAD_BYTES as u64;
