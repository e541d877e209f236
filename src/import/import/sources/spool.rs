//! Opens shards for reading, and copies those that can be read only sequentially (pipes and compressed files) to a
//! file, the spool.
//!
//! The copy has no name: it disappears when the import ends, however that happens. Its stamp is a hash of
//! its bytes, so an import from a pipe can resume if the pipe delivers the same bytes again.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::SourceOptions;
use super::bad::BadReason;
use super::compression::{Compression, HEAD_BYTES, decompressed};
use super::expansion::Expansion;
use super::index::Container;
use super::shard::{self, FileAt, read_some};
use dlfs_base::nameless_file::nameless_file;
use dlfs_base::{Error, ErrorKind, Result};

/// Returns whether `path` (`-`: standard input) can be read only once and sequentially.
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
        || std::fs::metadata(path).is_ok_and(|found| {
            let kind = found.file_type();
            kind.is_fifo() || kind.is_char_device() || kind.is_socket()
        })
}

/// Opens the shard at `path`, and detects its compression as [`Compression::of`] does.
///
/// # Errors
/// As [`shard::open`]. The file cannot be read.
pub(super) fn open(path: &Path) -> Result<(Arc<File>, Container, Option<Compression>)> {
    let (file, container) = shard::open(path)?;
    let mut head = [0; HEAD_BYTES as usize];
    let len = read_some(&mut FileAt::from(&*file, 0), &mut head)
        .map_err(|error| Error::from(error).path(path))?;
    Ok((file, container, Compression::of(&head[..len])))
}

/// An open shard that can be read at any offset.
pub(super) struct Spooled {
    pub(super) file: Arc<File>,
    pub(super) container: Container,
    /// Set if the file is a copy, which has no path.
    pub(super) is_copy: bool,
}

/// Opens the shard at `path`; copies it to the spool first if it is a stream or compressed.
///
/// # Errors
/// The shard does not open. `BadSource`: there is no spool and the shard needs one, or its compressed data is broken.
/// `NoSpace`: the spool is full.
pub(super) fn open_or_spool(path: &Path, options: &SourceOptions) -> Result<Spooled> {
    if !is_stream(path)
        && let (file, container, None) = open(path)?
    {
        options.expansion.read(container.len_bytes);
        return Ok(Spooled { file, container, is_copy: false });
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
        let read = read_some(&mut *from, &mut buffer).map_err(|error| {
            let message = "a compressed source is broken, ends early or needs too much memory";
            let error = match BadReason::within(&error) {
                Some(reason) => Error::new(ErrorKind::BadSource, reason.to_string()),
                None => Error::new(ErrorKind::BadSource, message).source(error),
            };
            error.path(path)
        })?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        len_bytes += read as u64;
        copy.write_all(&buffer[..read]).map_err(|error| Error::from(error).path(spool))?;
    }
    let container = Container { path: path.to_path_buf(), stamp: hash.digest(), len_bytes };
    Ok(Spooled { file: Arc::new(copy), container, is_copy: true })
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

/// Enlarges a pipe's buffer, so that reader and writer wait for each other less often.
fn widen(pipe: &impl AsFd) {
    // Best effort: the file may not be a pipe, or the user's limit may be reached.
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
}

/// Bytes copied at a time.
const COPY_BYTES: usize = 256 * 1024;
/// The kernel's limit for a pipe of an unprivileged user.
const PIPE_BYTES: usize = 1 << 20;
