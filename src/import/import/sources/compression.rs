//! Detects and decompresses compressed files, and reads pipes. Sources that can be read only sequentially are copied to
//! a file, the spool.
//!
//! The copy is an unnamed file: it disappears when the import ends, however it ends. Its stamp is a hash of
//! its bytes, so an import from a pipe can resume if the pipe delivers the same bytes again.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "formats")]
use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::ZlibDecoder;
use flate2::read::MultiGzDecoder;
#[cfg(feature = "formats")]
use liblzma::bufread::XzDecoder;
#[cfg(feature = "formats")]
use liblzma::stream::{CONCATENATED, Stream};
use xxhash_rust::xxh3::Xxh3;

use super::expansion::{Compressed, Decompressed, Expansion};
use super::index::{BadReason, Container};
use super::shard::{FileAt, read_some};
use super::{SourceOptions, shard, tfrecord};
use dlfs_base::replace_file::nameless_file;
use dlfs_base::{Error, ErrorKind, Result};

/// A compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    /// RFC 1952, any number of concatenated members.
    Gzip,
    /// RFC 1950, one stream; recognised only if it contains TFRecords, since TensorFlow compresses these so.
    Zlib,
    /// RFC 8878, any number of concatenated frames, windows of at most 128 MiB; with the feature `formats`.
    Zstd,
    /// The .xz format, any number of concatenated streams; with the feature `formats`.
    Xz,
    /// bzip2, any number of concatenated streams; with the feature `formats`.
    Bzip2,
}

impl Compression {
    /// The compression of a file, from its first [`HEAD_BYTES`] bytes (`head`), or all bytes of a shorter file.
    pub(crate) fn of(head: &[u8]) -> Option<Compression> {
        let found = match head {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x78, ..] if is_zlib(head) => Compression::Zlib,
            // A frame, or a skippable frame: parallel compressors begin with one.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            [0xfd, b'7', b'z', b'X', ..] => Compression::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Compression::Bzip2,
            _ => return None,
        };
        let is_read = matches!(found, Compression::Gzip | Compression::Zlib);
        (is_read || cfg!(feature = "formats")).then_some(found)
    }

    /// The name of the compression's program.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zlib => "zlib",
            Compression::Zstd => "zstd",
            Compression::Xz => "xz",
            Compression::Bzip2 => "bzip2",
        }
    }

    /// Decompresses `from`. Reading fails once the output exceeds the limit of `expansion`.
    ///
    /// # Errors
    /// There is not enough memory for the decoder.
    pub(crate) fn undo<'a>(
        self,
        from: impl Read + Send + 'a,
        expansion: &Expansion,
    ) -> io::Result<Box<dyn Read + Send + 'a>> {
        let from = Compressed(from, expansion.clone());
        let from = BufReader::with_capacity(BUFFER_BYTES, from);
        let plain: Box<dyn Read + Send> = match self {
            Compression::Gzip => Box::new(MultiGzDecoder::new(from)),
            Compression::Zlib => Box::new(Zlib(ZlibDecoder::new(from))),
            #[cfg(feature = "formats")]
            Compression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(from)?),
            #[cfg(feature = "formats")]
            Compression::Xz => {
                let stream = Stream::new_stream_decoder(XZ_MEMORY_BYTES, CONCATENATED)?;
                Box::new(XzDecoder::new_stream(from, stream))
            }
            #[cfg(feature = "formats")]
            Compression::Bzip2 => Box::new(MultiBzDecoder::new(from)),
            #[cfg(not(feature = "formats"))]
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Box::new(Decompressed(plain, expansion.clone())))
    }
}

/// Decoder of one zlib stream; fails if bytes follow its end.
struct Zlib<R>(ZlibDecoder<R>);

impl<R: BufRead> Read for Zlib<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        if read == 0 && !into.is_empty() && !self.0.get_mut().fill_buf()?.is_empty() {
            let text = "bytes follow the end of the zlib stream";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(read)
    }
}

/// Returns whether `head` is TFRecords in zlib. The two bytes of zlib's header alone would match many other files.
fn is_zlib(head: &[u8]) -> bool {
    let is_header = head.first_chunk().is_some_and(|two| u16::from_be_bytes(*two) % 31 == 0);
    let mut first = [0; tfrecord::HEADER_BYTES];
    is_header
        && !tfrecord::looks_like(head)
        && ZlibDecoder::new(head).read_exact(&mut first).is_ok()
        && tfrecord::looks_like(&first)
}

/// The program for a compression that this build does not support.
pub(crate) fn foreign(head: &[u8]) -> Option<&'static str> {
    match head {
        _ if Compression::of(head).is_some() => None,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some("xz"),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzip2"),
        [0x04, 0x22, 0x4d, 0x18, ..] => Some("lz4"),
        _ => None,
    }
}

/// Opens the shard at `path`, and detects its compression.
///
/// # Errors
/// As [`shard::open`]. The file cannot be read.
pub(super) fn open(path: &Path) -> Result<(Arc<File>, Container, Option<Compression>)> {
    let (file, container) = shard::open(path)?;
    let mut head = [0; HEAD_BYTES as usize];
    let len = read_some(&mut FileAt::new(&*file), &mut head)
        .map_err(|error| Error::from(error).path(path))?;
    Ok((file, container, Compression::of(&head[..len])))
}

/// Bytes at the start of a file that suffice to detect its compression.
pub(crate) const HEAD_BYTES: u64 = 1024;
const BUFFER_BYTES: usize = 256 * 1024;
/// Memory limit of the xz decoder; files of xz's strongest setting need 65 MiB.
#[cfg(feature = "formats")]
const XZ_MEMORY_BYTES: u64 = 256 << 20;

/// The error for a source at `path` that only `program` decompresses.
pub(super) fn packed(path: &Path, program: &str) -> Error {
    let (what, or) = if matches!(program, "xz" | "bzip2" | "zstd") {
        ("this build of dlfs", ", or build dlfs with --features formats")
    } else {
        ("dlfs", "")
    };
    let message = format!("the source is compressed with {program}, which {what} does not read");
    Error::new(ErrorKind::BadSource, message)
        .path(path)
        .hint(format!("pipe it: `{program} -dc FILE | dlfs import - IMAGE --spool DIR`{or}"))
}

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
    if !is_stream(path)
        && let (file, container, None) = open(path)?
    {
        options.expansion.read(container.len_bytes);
        return Ok((file, container, false));
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
    if let Some(program) = foreign(&head) {
        return Err(packed(path, program));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressions_are_known_by_their_first_bytes() {
        assert_eq!(Compression::of(b"\x1f\x8b\x08"), Some(Compression::Gzip));
        assert_eq!(Compression::of(b"\x28\xb5\x2f"), None);
        let xz = &b"\xfd7zXZ\0"[..];
        let bzip2 = &b"BZh9"[..];
        let zstd = b"\x28\xb5\x2f\xfd";
        let name = |head| Compression::of(head).map(Compression::name).or(foreign(head));
        assert_eq!((name(xz), name(bzip2)), (Some("xz"), Some("bzip2")));
        assert_eq!(name(zstd), Some("zstd"));
        assert_eq!(Compression::of(xz).is_some(), cfg!(feature = "formats"));
        assert_eq!((foreign(b"BZhello"), foreign(b"")), (None, None));
    }
}
