//! Random access to an object through a cache of its blocks, with least-recently-used eviction; and to a local Parquet
//! file, whose pages are read into reused buffers.
//!
//! A fresh buffer for each page would cost more time than reading the page into it, since the operating system zeroes
//! its memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use crate::import::formats::input::InStore;
use crate::import::sources::expansion::Expansion;
use crate::import::sources::inputs::ObjectBytes;
use crate::import::sources::shard::FileAt;
use dlfs_base::error::zeroed_vec;
use dlfs_base::{Error, Result};
use dlfs_places::Pending;

/// An object that is read at several places in turn, as the columns of a table are; at each place front to back.
#[derive(Clone)]
pub(super) struct Blocks {
    of: InStore,
    expansion: Expansion,
    /// The last bytes of the object, as far as they are known.
    end: Bytes,
    kept: Arc<Mutex<Kept>>,
}

/// Blocks with their numbers, the most recently used last.
#[derive(Default)]
struct Kept {
    /// The ranges that are requested as blocks, ascending. Other bytes are requested as they are read, and not kept.
    plan: Vec<Range<u64>>,
    blocks: VecDeque<(usize, Block)>,
    most_bytes: u64,
    /// Bytes to request ahead of the block that is read, but always one block.
    ahead_bytes: u64,
}

enum Block {
    Asked(Pending),
    Here(Bytes),
}

impl Blocks {
    /// Reads the object, of which the last bytes are known.
    pub(super) fn new(of: InStore, expansion: Expansion, end: Bytes) -> Blocks {
        Blocks { of, expansion, end, kept: Arc::default() }
    }

    /// Reads all of the object in short blocks, one of them ahead.
    pub(super) fn of_all(of: InStore, expansion: Expansion) -> Blocks {
        let blocks = Blocks::new(of, expansion, Bytes::new());
        let all = 0..blocks.len();
        blocks.set(vec![all], SHORT_BLOCK_BYTES, 2, 0);
        blocks
    }

    /// Requests many bytes ahead of the one place that is read from now on.
    pub(super) fn read_ahead(&self) {
        let window = self.of.client.window_bytes();
        self.kept.lock().ahead_bytes = share(window, 1, 0).min(MOST_AHEAD_BYTES);
    }

    /// Plans to read these ranges: of `columns` columns, which are read in turn; `at_once`: bytes of all of them that
    /// are read before what follows. Ranges with little between them are requested together.
    pub(super) fn plan(&self, ranges: Vec<Range<u64>>, columns: usize, at_once: u64) {
        let window = self.of.client.window_bytes();
        let ahead = share(window, columns, at_once);
        let places = if at_once > window / 2 { columns as u64 } else { 2 };
        self.set(ranges, ahead.max(LEAST_BLOCK_BYTES), places, ahead.min(MOST_AHEAD_BYTES));
    }

    /// Plans blocks of at most `block` bytes, and memory for two of each of `places` places.
    fn set(&self, ranges: Vec<Range<u64>>, block: u64, places: u64, ahead_bytes: u64) {
        let block = block.clamp(1, self.of.client.range_bytes().max(1));
        let most_bytes = self.of.client.window_bytes().max(2 * places * block);
        let plan = blocks_of(ranges, self.len(), block);
        *self.kept.lock() = Kept { plan, blocks: VecDeque::new(), most_bytes, ahead_bytes };
    }

    /// Returns bytes from `at` on: the rest of a block, or else about `wanted` ones.
    fn from(&self, at: u64, wanted: u64) -> io::Result<Bytes> {
        let end_at = self.len() - self.end.len() as u64;
        if at >= end_at {
            return Ok(self.end.slice((at - end_at) as usize..));
        }
        let mut kept = self.kept.lock();
        let number = kept.plan.partition_point(|range| range.end <= at);
        let next = kept.plan.get(number).map_or(end_at, |range| range.start);
        if next > at {
            drop(kept);
            return self.fetch(at..next.min(end_at).min(at.saturating_add(wanted.max(UNPLANNED))));
        }
        let bytes = self.block(number, &mut kept)?;
        Ok(bytes.slice((at - next) as usize..))
    }

    fn block(&self, number: usize, kept: &mut Kept) -> io::Result<Bytes> {
        let block =
            kept.take(number).unwrap_or_else(|| Block::Asked(self.ask(kept.plan[number].clone())));
        // The next pages follow this one, so request them ahead.
        let mut ahead = 0;
        for next in number + 1..kept.plan.len() {
            let range = kept.plan[next].clone();
            ahead += range.end - range.start;
            if ahead > kept.ahead_bytes && next > number + 1 {
                break;
            }
            if !kept.has(next) {
                kept.put(next, Block::Asked(self.ask(range)));
            }
        }
        let bytes = match block {
            Block::Here(bytes) => bytes,
            Block::Asked(pending) => self.arrived(pending)?,
        };
        kept.put(number, Block::Here(bytes.clone()));
        Ok(bytes)
    }

    fn ask(&self, range: Range<u64>) -> Pending {
        self.of.client.fetch(&self.of.object, range)
    }

    fn arrived(&self, pending: Pending) -> io::Result<Bytes> {
        let bytes = pending.take();
        let bytes = bytes
            .map_err(|error| ObjectBytes::failed(&self.of.failure, io::Error::other(error)))?;
        let bytes = Bytes::from_owner(bytes);
        self.expansion.read(bytes.len() as u64);
        Ok(bytes)
    }

    /// Requests a range, and waits for it.
    pub(super) fn fetch(&self, range: Range<u64>) -> io::Result<Bytes> {
        self.arrived(self.ask(range))
    }
}

/// The bytes to request ahead in a window: so many that what is read in turn, and what follows it, stays there.
fn share(window: u64, columns: usize, at_once: u64) -> u64 {
    match columns as u64 {
        0 | 1 => window / 2,
        _ if at_once <= window / 2 => window / 4, // it may begin and end within a block
        columns => window / 2 / columns,
    }
}

/// Joins ranges that are close to each other, and splits them into blocks.
fn blocks_of(mut ranges: Vec<Range<u64>>, len: u64, block: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut().filter(|last| range.start <= last.end.saturating_add(GAP_BYTES)) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    let blocks = joined.into_iter().flat_map(|range| {
        let end = range.end.min(len);
        let starts = (range.start..end).step_by(block.max(1) as usize);
        starts.map(move |start| start..end.min(start + block))
    });
    blocks.collect()
}

impl Kept {
    fn has(&self, number: usize) -> bool {
        self.blocks.iter().any(|(own, _)| *own == number)
    }

    fn take(&mut self, number: usize) -> Option<Block> {
        let at = self.blocks.iter().position(|(own, _)| *own == number)?;
        self.blocks.remove(at).map(|(_, block)| block)
    }

    fn put(&mut self, number: usize, block: Block) {
        let len = |number: usize| self.plan[number].end - self.plan[number].start;
        let mut sum = self.blocks.iter().map(|(own, _)| len(*own)).sum::<u64>() + len(number);
        while sum > self.most_bytes
            && let Some((gone, _)) = self.blocks.pop_front()
        {
            sum -= len(gone);
        }
        self.blocks.push_back((number, block));
    }
}

impl Length for Blocks {
    fn len(&self) -> u64 {
        self.of.object.len_bytes
    }
}

impl ChunkReader for Blocks {
    type T = BlockReader;

    fn get_read(&self, start: u64) -> ParquetResult<BlockReader> {
        Ok(BlockReader { of: self.clone(), at: start, ready: Bytes::new() })
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let within = start.checked_add(length as u64).is_some_and(|end| end <= self.len());
        if !within {
            return Err(ParquetError::EOF("a page lies behind the end".to_owned()));
        }
        let failed = |error: io::Error| ParquetError::External(error.into());
        if length == 0 {
            return Ok(Bytes::new());
        }
        let mut ready = self.from(start, length as u64).map_err(failed)?;
        if ready.len() >= length {
            ready.truncate(length);
            return Ok(ready);
        }
        let mut bytes = zeroed_vec(length as u64).map_err(no_page)?;
        let mut reader = BlockReader { of: self.clone(), at: start, ready };
        reader.read_exact(&mut bytes).map_err(failed)?;
        Ok(bytes.into())
    }
}

/// Reader of an object from an offset on.
pub(super) struct BlockReader {
    of: Blocks,
    at: u64,
    /// The rest of the block at `at`; may be empty.
    ready: Bytes,
}

impl BlockReader {
    /// Reads the object from its beginning on.
    pub(super) fn new(of: Blocks) -> BlockReader {
        BlockReader { of, at: 0, ready: Bytes::new() }
    }
}

impl Read for BlockReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.of.len() || into.is_empty() {
            return Ok(0);
        }
        if self.ready.is_empty() {
            self.ready = self.of.from(self.at, into.len() as u64)?;
        }
        let len = self.ready.len().min(into.len());
        into[..len].copy_from_slice(&self.ready.split_to(len));
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for BlockReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.of.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a place before the beginning");
        self.at = at.ok_or_else(before)?;
        self.ready = Bytes::new();
        Ok(self.at)
    }
}

/// A file, and buffers that no page uses.
#[derive(Clone)]
pub(super) struct PageFile {
    file: Arc<File>,
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

/// Buffers of dropped pages.
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

/// The error for a page that does not fit in memory.
pub(super) fn no_page(error: Error) -> ParquetError {
    ParquetError::External(error.into())
}

/// The bytes of a page. Dropping it returns its buffer to `spare`.
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

/// Small enough to keep a block of each of many columns.
const LEAST_BLOCK_BYTES: u64 = 64 << 10;
const SHORT_BLOCK_BYTES: u64 = 1 << 20;
/// The bytes requested at least where nothing is planned.
const UNPLANNED: u64 = 64 << 10;
/// Ranges with fewer bytes between them are one request: it takes longer than these bytes.
const GAP_BYTES: u64 = 64 << 10;
const MOST_AHEAD_BYTES: u64 = 32 << 20;
/// Shorter pages use the allocator, which keeps memory of such lengths itself.
const LEAST_BYTES: usize = 128 << 10;
/// The bytes of one shuffle window, whose pages are dropped at about the same time.
const MOST_KEPT_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_close_to_each_other_are_one_request_up_to_the_length_of_a_block() {
        let mib = 1 << 20;
        let close = vec![2 * mib..3 * mib, 4..mib, mib..2 * mib - GAP_BYTES];
        let all = 4..3 * mib;
        assert_eq!(blocks_of(close.clone(), 8 * mib, 8 * mib), [all]);
        assert_eq!(blocks_of(close, 2 * mib, mib), [4..mib + 4, mib + 4..2 * mib]);
        let apart = vec![0..mib, mib + GAP_BYTES + 1..2 * mib, 9 * mib..9 * mib];
        assert_eq!(blocks_of(apart.clone(), 8 * mib, 8 * mib), apart[..2]);
    }

    #[test]
    fn what_is_read_in_turn_stays_beside_what_is_requested_ahead() {
        let window = 16 << 20;
        assert_eq!(share(window, 1, 1 << 40), 8 << 20);
        assert_eq!(share(window, 9, 8 << 20), 4 << 20);
        assert_eq!(share(window, 9, 9 << 20), (8 << 20) / 9);
    }

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
