//! Reading helpers: [`read_some`] reads until a buffer is full, [`FileAt`] reads a file at its own offset.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::fs::FileExt;

/// Reads until `into` is full or the input ends; returns the number of bytes.
///
/// # Errors
/// Reading failed; bytes read before are lost.
pub(crate) fn read_some(from: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
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

/// Reader of a file with its own offset; the file's shared offset does not change.
#[derive(Debug)]
pub(crate) struct FileAt<F> {
    /// The file.
    pub file: F,
    /// Offset of the next bytes.
    pub offset: u64,
    /// Offset at which reading ends.
    pub end: u64,
}

impl<F> FileAt<F> {
    /// All bytes of `file`.
    pub(crate) fn new(file: F) -> FileAt<F> {
        FileAt::from(file, 0)
    }

    /// The bytes of `file` from `offset` on.
    pub(crate) fn from(file: F, offset: u64) -> FileAt<F> {
        FileAt { file, offset, end: u64::MAX }
    }
}

impl<F: Deref<Target = File>> Read for FileAt<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = self.end.saturating_sub(self.offset).min(into.len() as u64) as usize;
        let read = self.file.read_at(&mut into[..most], self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}
