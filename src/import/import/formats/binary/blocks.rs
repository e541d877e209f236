//! Random access to an object of a store, through a cache of blocks of the object with least-recently-used eviction.
//!
//! Readers plan the ranges that they will read. The plan is split into blocks, and the blocks behind the one that is
//! read are requested ahead.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use super::page_file::no_page;
use crate::import::formats::input::InStore;
use crate::import::sources::expansion::Expansion;
use crate::import::sources::inputs::ObjectBytes;
use dlfs_base::error::zeroed_vec;
use dlfs_places::Pending;

/// An object that is read at several places in turn, such as the columns of a table, and at each place front to back.
#[derive(Clone)]
pub(super) struct Blocks {
    /// The object, and its store.
    of: InStore,
    expansion: Expansion,
    /// The last bytes of the object, as far as they are known.
    end: Bytes,
    cache: Arc<Mutex<Cache>>,
}

/// The plan, and the cached blocks of it.
#[derive(Default)]
struct Cache {
    /// The ranges that are requested as blocks, ascending. Other bytes are requested as they are read, and not kept.
    plan: Vec<Range<u64>>,
    /// The cached blocks, each with its index in `plan`; the most recently used is last.
    blocks: VecDeque<(usize, CachedBlock)>,
    /// Limit of the bytes of the cached blocks.
    most_bytes: u64,
    /// Bytes to request ahead of the block that is read, but at least one block.
    ahead_bytes: u64,
}

/// A cached block.
enum CachedBlock {
    /// It is requested.
    Requested(Pending),
    /// It has arrived.
    Read(Bytes),
}

impl Blocks {
    /// Reads the object, whose last bytes are `end`; empty: they are not known.
    pub(super) fn new(of: InStore, expansion: Expansion, end: Bytes) -> Blocks {
        Blocks { of, expansion, end, cache: Arc::default() }
    }

    /// Reads all of the object in short blocks, one of them ahead.
    pub(super) fn of_all(of: InStore, expansion: Expansion) -> Blocks {
        let blocks = Blocks::new(of, expansion, Bytes::new());
        let all = 0..blocks.len();
        blocks.set(vec![all], SHORT_BLOCK_BYTES, 2, 0);
        blocks
    }

    /// From now on, requests many bytes ahead: the caller reads front to back, at one place.
    pub(super) fn read_ahead(&self) {
        let window = self.of.client.window_bytes();
        self.cache.lock().ahead_bytes = share(window, 1, 0).min(MOST_AHEAD_BYTES);
    }

    /// Plans to read `ranges`, those of row groups that are read one after the other, each column of a group in turn.
    /// `columns`: the most columns of a group. `at_once`: the most bytes of a group. Ranges with few bytes between them
    /// are requested together.
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
        *self.cache.lock() = Cache { plan, blocks: VecDeque::new(), most_bytes, ahead_bytes };
    }

    /// Returns bytes from the offset `at` on: the rest of the block there, or about `wanted` bytes if none is planned.
    fn bytes_from(&self, at: u64, wanted: u64) -> io::Result<Bytes> {
        let end_at = self.len() - self.end.len() as u64;
        if at >= end_at {
            return Ok(self.end.slice((at - end_at) as usize..));
        }
        let mut cache = self.cache.lock();
        let number = cache.plan.partition_point(|range| range.end <= at);
        let next = cache.plan.get(number).map_or(end_at, |range| range.start);
        if next > at {
            drop(cache);
            return self.fetch(at..next.min(end_at).min(at.saturating_add(wanted.max(UNPLANNED))));
        }
        let bytes = self.block(number, &mut cache)?;
        Ok(bytes.slice((at - next) as usize..))
    }

    /// Returns a planned block, and requests the blocks behind it. Waits for the block, with the cache locked.
    fn block(&self, number: usize, cache: &mut Cache) -> io::Result<Bytes> {
        let block = cache
            .take(number)
            .unwrap_or_else(|| CachedBlock::Requested(self.ask(cache.plan[number].clone())));
        // The next pages follow this one, so request them ahead.
        let mut ahead = 0;
        for next in number + 1..cache.plan.len() {
            let range = cache.plan[next].clone();
            ahead += range.end - range.start;
            if ahead > cache.ahead_bytes && next > number + 1 {
                break;
            }
            if !cache.has(next) {
                cache.put(next, CachedBlock::Requested(self.ask(range)));
            }
        }
        let bytes = match block {
            CachedBlock::Read(bytes) => bytes,
            CachedBlock::Requested(pending) => self.arrived(pending)?,
        };
        cache.put(number, CachedBlock::Read(bytes.clone()));
        Ok(bytes)
    }

    fn ask(&self, range: Range<u64>) -> Pending {
        self.of.client.fetch(&self.of.object, range)
    }

    /// Waits for requested bytes, and counts them. Records a failure of the store.
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

/// The bytes to request ahead for each place that is read, so that the blocks of all places stay in a window of
/// `window` bytes together with the requested ones. `columns` and `at_once` as in [`Blocks::plan`].
fn share(window: u64, columns: usize, at_once: u64) -> u64 {
    match columns as u64 {
        0 | 1 => window / 2,
        _ if at_once <= window / 2 => window / 4, // the bytes may begin and end within a block
        columns => window / 2 / columns,
    }
}

/// Joins ranges that are close to each other, cuts them off at `len`, and splits them into blocks of `block` bytes.
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

impl Cache {
    fn has(&self, number: usize) -> bool {
        self.blocks.iter().any(|(cached, _)| *cached == number)
    }

    fn take(&mut self, number: usize) -> Option<CachedBlock> {
        let at = self.blocks.iter().position(|(cached, _)| *cached == number)?;
        self.blocks.remove(at).map(|(_, block)| block)
    }

    /// Adds a block, and drops the least recently used ones if they do not fit.
    fn put(&mut self, number: usize, block: CachedBlock) {
        let len = |number: usize| self.plan[number].end - self.plan[number].start;
        let mut sum = self.blocks.iter().map(|(cached, _)| len(*cached)).sum::<u64>() + len(number);
        while sum > self.most_bytes
            && let Some((dropped, _)) = self.blocks.pop_front()
        {
            sum -= len(dropped);
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
        let mut ready = self.bytes_from(start, length as u64).map_err(failed)?;
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
    /// Offset of the next byte.
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
            self.ready = self.of.bytes_from(self.at, into.len() as u64)?;
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

/// Small enough to keep a block of each of many columns.
const LEAST_BLOCK_BYTES: u64 = 64 << 10;
/// Length of the blocks of an object that is read front to back as a whole.
const SHORT_BLOCK_BYTES: u64 = 1 << 20;
/// The minimum number of bytes requested where nothing is planned.
const UNPLANNED: u64 = 64 << 10;
/// Ranges with at most this many bytes between them are one request, since another request would take longer.
const GAP_BYTES: u64 = 64 << 10;
/// The maximum number of bytes requested ahead.
const MOST_AHEAD_BYTES: u64 = 32 << 20;

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
}
