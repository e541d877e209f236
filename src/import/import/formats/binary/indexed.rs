//! Reads an index of MDS or LitData.

use std::io::Read;

use crate::import::formats::input::Input;
use crate::import::sources::row_indexes::MAX_INDEX_BYTES;
use dlfs_base::{Error, ErrorKind, Result};

impl Input {
    /// All bytes of an index.
    ///
    /// # Errors
    /// The index cannot be read, or is longer than 1 GiB.
    pub(super) fn read_index(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.read(0, None)?.take(MAX_INDEX_BYTES + 1).read_to_end(&mut bytes);
        self.check()?;
        let read = read.map_err(|error| self.named(error))?;
        if read as u64 > MAX_INDEX_BYTES {
            let text = "an index of more than 1 GiB is not read";
            return Err(Error::new(ErrorKind::BadSource, text).path(&self.path));
        }
        Ok(bytes)
    }
}
