//! Compressed files: what they are compressed with, and their bytes without it.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use crate::{Error, ErrorKind};

/// A compression that is undone here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952, any number of members one behind the other.
    Gzip,
    /// RFC 8878, any number of frames one behind the other, windows of at most 128 MiB.
    Zstd,
}

impl Compression {
    /// What a file is compressed with that begins with `head`; four bytes of it are enough.
    pub fn of(head: &[u8]) -> Option<Compression> {
        match head {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            // A frame, or a frame to be skipped, as parallel compressors begin with.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Some(Compression::Zstd)
            }
            _ => None,
        }
    }

    /// The program that is named after it.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }

    /// The bytes of `from` without the compression.
    ///
    /// # Errors
    /// There is no memory for the decoder.
    pub fn undo<'a>(self, from: impl Read + Send + 'a) -> io::Result<Box<dyn Read + Send + 'a>> {
        let from = BufReader::with_capacity(BUFFER_BYTES, from);
        Ok(match self {
            Compression::Gzip => Box::new(MultiGzDecoder::new(from)),
            Compression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(from)?),
        })
    }
}

/// The program that undoes a compression which is not undone here.
pub fn foreign(head: &[u8]) -> Option<&'static str> {
    match head {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some("xz"),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzip2"),
        [0x04, 0x22, 0x4d, 0x18, ..] => Some("lz4"),
        _ => None,
    }
}

/// What the file is compressed with.
///
/// # Errors
/// It cannot be read.
pub fn of_file(file: &File) -> io::Result<Option<Compression>> {
    let mut head = [0; 4];
    let len = read_some(&mut FileAt { file, offset: 0 }, &mut head)?;
    Ok(Compression::of(&head[..len]))
}

/// Fills `into` as far as there are bytes; returns how many there were.
///
/// # Errors
/// They cannot be read; what came before is lost.
pub fn read_some(from: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads a file from a place of its own, so that nobody else's is moved.
#[derive(Debug)]
pub struct FileAt<'a> {
    /// The file.
    pub file: &'a File,
    /// Where the next bytes come from.
    pub offset: u64,
}

impl Read for FileAt<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

const BUFFER_BYTES: usize = 256 * 1024;

/// The error for a source at `path` that only `program` unpacks.
pub(super) fn packed(path: &Path, program: &str) -> Error {
    let message = format!("the source is compressed with {program}, which is not read here");
    Error::new(ErrorKind::BadSource, message)
        .path(path)
        .hint(format!("pipe it: `{program} -dc FILE | dlfs import - IMAGE --spool DIR`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressions_are_known_by_their_first_bytes() {
        assert_eq!(Compression::of(b"\x1f\x8b\x08"), Some(Compression::Gzip));
        assert_eq!(Compression::of(b"\x28\xb5\x2f\xfd"), Some(Compression::Zstd));
        assert_eq!(Compression::of(b"\x28\xb5\x2f"), None);
        assert_eq!((foreign(b"\xfd7zXZ\0"), foreign(b"BZh9")), (Some("xz"), Some("bzip2")));
        assert_eq!((foreign(b"BZhello"), foreign(b"")), (None, None));
    }
}
