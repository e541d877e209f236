//! A column that is kept elsewhere while a directory is built: nothing but the snapshot needs it, and memory need not
//! hold it beside the others. Pure: what keeps the bytes is the caller's.

use std::fmt::Debug;

use crate::format::FormatError;
use crate::format::checksum::crc32c_append;
use crate::format::error::equal;

/// Keeps the bytes of a column.
pub trait KeepsAside: Debug + Send + Sync {
    /// Adds bytes behind those that are there.
    fn append(&mut self, bytes: &[u8]);

    /// Fills `out` with the bytes from `at` on.
    ///
    /// # Errors
    /// They cannot be read.
    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), FormatError>;
}

/// The checksums of a directory that is built, kept elsewhere.
#[derive(Debug)]
pub(super) struct ChecksumsAside {
    pub(super) kept: Box<dyn KeepsAside>,
    /// Those that come before the next `append`.
    buffer: Vec<u8>,
    pub(super) len_bytes: u64,
    pub(super) crc32c: u32,
    /// The checksum of an empty sample that is not that of nothing.
    wrong: u32,
}

impl ChecksumsAside {
    pub(super) fn new(kept: Box<dyn KeepsAside>) -> ChecksumsAside {
        ChecksumsAside { kept, buffer: Vec::new(), len_bytes: 0, crc32c: 0, wrong: 0 }
    }

    /// Adds the checksum of a sample of `len` bytes.
    pub(super) fn push(&mut self, len: u32, crc32c: u32) {
        if len == 0 && crc32c != 0 {
            self.wrong = crc32c;
        }
        self.buffer.extend_from_slice(&crc32c.to_le_bytes());
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Puts all of them where the others are, before they are read.
    pub(super) fn flush(&mut self) {
        self.kept.append(&self.buffer);
        self.crc32c = crc32c_append(self.crc32c, &self.buffer);
        self.len_bytes += self.buffer.len() as u64;
        self.buffer = Vec::new();
    }

    /// An empty sample is read without verifying its checksum.
    pub(super) fn check_empty_samples(&self) -> Result<(), FormatError> {
        equal("checksum of an empty sample", 0, self.wrong.into())
    }
}

const BUFFER_BYTES: usize = 16 << 10;
