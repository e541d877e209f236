//! Detects the compression of files, and decompresses them.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

#[cfg(feature = "formats")]
use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::ZlibDecoder;
use flate2::read::MultiGzDecoder;
#[cfg(feature = "formats")]
use liblzma::bufread::XzDecoder;
#[cfg(feature = "formats")]
use liblzma::stream::{CONCATENATED, Stream};

use super::expansion::{CountedBytes, Decompressed, Expansion};
use super::tfrecord;
use dlfs_base::{Error, ErrorKind, Result};

/// The compression of a file.
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
    /// The compression of a file, from its first [`HEAD_BYTES`] bytes (`head`), or all bytes of a shorter file. `None`:
    /// it is not compressed, or in a compression that this build does not support.
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
        let from = CountedBytes(from, expansion.clone());
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

/// The program for the compression of a file that begins with `head`. `None`: the file is not compressed, this build
/// supports the compression, or it is unknown.
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

/// Bytes at the start of a file that suffice to detect its compression.
pub(crate) const HEAD_BYTES: u64 = 1024;
/// Compressed bytes read at a time.
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

/// A reader that decompresses `raw`, or passes it on if it is not compressed; `path` is for messages.
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
        None => Ok(Box::new(CountedBytes(whole, expansion.clone()))),
    }
}

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
