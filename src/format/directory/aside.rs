//! The checksum column, kept outside memory while a directory is built.
//!
//! Only the snapshot needs the column during an import, so it need not take memory beside the others. Pure: the
//! caller provides the storage ([`KeepsAside`]).

use std::fmt::Debug;

use crate::format::FormatError;
use crate::format::checksum::crc32c_append;
use crate::format::error::equal;

/// Storage for the bytes of a column, for example a temporary file.
pub trait KeepsAside: Debug + Send + Sync {
    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]);

    /// Fills `out` with the bytes from `at` on.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), FormatError>;
}

/// The checksums of a directory under construction, in external storage.
#[derive(Debug)]
pub(super) struct ChecksumsAside {
    pub(super) kept: Box<dyn KeepsAside>,
    /// Checksums not yet appended to `kept`.
    buffer: Vec<u8>,
    pub(super) len_bytes: u64,
    pub(super) crc32c: u32,
    /// The last nonzero checksum of an empty sample, which is an error; 0 if there is none.
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

    /// Appends the buffered checksums to `kept`. Call before `kept` is read.
    pub(super) fn flush(&mut self) {
        self.kept.append(&self.buffer);
        self.crc32c = crc32c_append(self.crc32c, &self.buffer);
        self.len_bytes += self.buffer.len() as u64;
        self.buffer = Vec::new();
    }

    /// Checks that empty samples have checksum 0: reads of empty samples do not verify it.
    pub(super) fn check_empty_samples(&self) -> Result<(), FormatError> {
        equal("checksum of an empty sample", 0, self.wrong.into())
    }
}

const BUFFER_BYTES: usize = 16 << 10;
