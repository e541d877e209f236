//! A local Parquet file, whose pages are read into reused buffers.
//!
//! A fresh buffer for each page would cost more time than reading the page into it, since the operating system zeroes
//! fresh memory.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use crate::import::sources::shard::FileAt;
use dlfs_base::error::zeroed_vec;
use dlfs_base::{Error, Result};

/// A Parquet file, and the buffers of dropped pages.
#[derive(Clone)]
pub(super) struct PageFile {
    file: Arc<File>,
    /// Length of the file in bytes.
    len: u64,
    spare: Arc<Spare>,
}

impl PageFile {
    /// Opens the file.
    ///
    /// # Errors
    /// Errors of the operating system.
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
        Ok(BufReader::new(FileAt::from(self.file.clone(), start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        // Check before allocating a buffer: a broken file may state any length.
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            let text = format!("{length} bytes at {start} of a file of {} bytes", self.len);
            return Err(ParquetError::EOF(text));
        }
        let mut page = self.spare.take(length).map_err(no_page)?;
        self.file.read_exact_at(&mut page.bytes, start)?;
        Ok(Bytes::from_owner(page))
    }
}

/// The buffers of dropped pages, at most [`MOST_KEPT_BYTES`]. The lock guards their list.
#[derive(Debug, Default)]
struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    /// A buffer of `len` bytes, with any content.
    ///
    /// # Errors
    /// `OutOfMemory`: there is not enough memory.
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

/// A page in memory. Dropping it returns its buffer to `spare`.
struct Page {
    bytes: Vec<u8>,
    /// `None`: the buffer is too short to be kept.
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

/// The error for a page that does not fit in memory.
pub(super) fn no_page(error: Error) -> ParquetError {
    ParquetError::External(error.into())
}

/// Shorter pages use the allocator, which keeps memory of such lengths itself.
const LEAST_BYTES: usize = 128 << 10;
/// Limit of the kept buffers. A shuffle window of a stream has as many bytes, whose pages are dropped at about the same
/// time.
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
