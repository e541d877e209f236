//! A local Parquet file, whose pages are read into buffers that are used again.
//!
//! A fresh buffer for each page would cost more time than reading the page into it: the operating system clears its
//! memory.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use crate::import::sources::compression::FileAt;
use dlfs_base::error::zeroed_vec;
use dlfs_base::{Error, Result};

/// A file, and buffers that no page is in.
pub(super) struct PageFile {
    file: Arc<File>,
    len: u64,
    spare: Arc<Spare>,
}

impl PageFile {
    /// Opens the file.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(super) fn open(path: &Path) -> io::Result<PageFile> {
        let file = Arc::new(File::open(path)?);
        let len = file.metadata()?.len();
        Ok(PageFile { file, len, spare: Arc::default() })
    }
}

impl Length for PageFile {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for PageFile {
    type T = BufReader<FileAt<Arc<File>>>;

    fn get_read(&self, start: u64) -> ParquetResult<BufReader<FileAt<Arc<File>>>> {
        Ok(BufReader::new(FileAt { file: self.file.clone(), offset: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        // Before there is a buffer for it: a broken file may claim any length.
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            let text = format!("{length} bytes at {start} of a file of {} bytes", self.len);
            return Err(ParquetError::EOF(text));
        }
        let mut page = self.spare.take(length).map_err(no_page)?;
        self.file.read_exact_at(&mut page.bytes, start)?;
        Ok(Bytes::from_owner(page))
    }
}

/// Buffers of pages that are gone.
#[derive(Debug, Default)]
struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    /// A buffer of `len` bytes, with any content.
    ///
    /// # Errors
    /// `OutOfMemory`: the system has no such memory.
    fn take(self: &Arc<Spare>, len: usize) -> Result<Page> {
        if len < LEAST_BYTES {
            return Ok(Page { bytes: vec![0; len], spare: None });
        }
        let room = len.next_multiple_of(LEAST_BYTES);
        let kept = self.0.lock().pop().filter(|bytes| bytes.capacity() >= len);
        let mut bytes = kept.map_or_else(|| zeroed_vec(room as u64), Ok)?;
        bytes.resize(len, 0);
        Ok(Page { bytes, spare: Some(self.clone()) })
    }
}

/// The error for a page for which there is no memory.
pub(super) fn no_page(error: Error) -> ParquetError {
    ParquetError::External(error.into())
}

/// The bytes of a page. Dropping it gives its buffer back.
struct Page {
    bytes: Vec<u8>,
    spare: Option<Arc<Spare>>,
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let Some(spare) = &self.spare else { return };
        let mut spare = spare.0.lock();
        let kept: usize = spare.iter().map(Vec::capacity).sum();
        if kept + self.bytes.capacity() <= MOST_KEPT_BYTES {
            spare.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// Shorter pages are left to the allocator, which has such memory at hand.
const LEAST_BYTES: usize = 128 << 10;
/// As much as is shuffled together, and is free again all at once.
const MOST_KEPT_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_large_pages_are_used_again_within_a_limit() {
        let spare = Arc::<Spare>::default();
        let first = spare.take(1 << 20).unwrap();
        let at = first.bytes.as_ptr();
        drop(first);
        let again = spare.take((1 << 20) - 5).unwrap();
        assert_eq!((again.bytes.len(), again.bytes.as_ptr()), ((1 << 20) - 5, at));
        drop((again, spare.take(1000).unwrap()));
        assert_eq!(spare.0.lock().len(), 1, "a short one is not kept");
        drop((0..100).map(|_| spare.take(1 << 20).unwrap()).collect::<Vec<_>>());
        assert_eq!(spare.0.lock().len(), 64);
        assert_eq!(spare.take(2 << 20).unwrap().bytes.len(), 2 << 20, "a longer page than before");
    }
}
