//! Archives from streams.

use std::io::{self, Read};

use super::tar_members::Input;

/// Adapts a stream to the archive reader.
#[derive(Debug)]
pub(crate) struct ReadInput<R>(R);

impl<R: Read> ReadInput<R> {
    /// Reads all of `from`.
    pub(crate) fn new(from: R) -> ReadInput<R> {
        ReadInput(from)
    }

    /// The reader that it reads from.
    pub(crate) fn get_mut(&mut self) -> &mut R {
        &mut self.0
    }
}

impl<R: Read> Input for ReadInput<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(into) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        io::copy(&mut self.0.by_ref().take(bytes), &mut io::sink()).map(drop)
    }

    fn len_bytes(&self) -> Option<u64> {
        None
    }
}
