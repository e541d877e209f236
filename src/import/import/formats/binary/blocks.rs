//! Random access to an object through a cache of its blocks, with least-recently-used eviction.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use super::pages::no_page;
use crate::import::formats::input::InStore;
use crate::import::sources::expansion::Expansion;
use crate::import::sources::objects::Shard;
use dlfs_base::error::zeroed_vec;
use dlfs_places::Pending;

/// An object that is read at several places in turn, as the columns of a table are; at each place front to back.
#[derive(Clone)]
pub(super) struct Blocks {
    of: InStore,
    expansion: Expansion,
    block_bytes: u64,
    kept: Arc<Mutex<Kept>>,
}

/// Blocks with their numbers, the most recently used last.
struct Kept {
    blocks: VecDeque<(u64, Block)>,
    most: usize,
    /// Number of blocks to request ahead of the block that is read.
    ahead: u64,
}

enum Block {
    Asked(Pending),
    Here(Bytes),
}

impl Blocks {
    /// Reads the object. Keeps at most as many bytes as a reader of its store, but at least 16 blocks.
    pub(super) fn new(of: InStore, expansion: Expansion) -> Blocks {
        let block_bytes = of.client.range_bytes().clamp(1, MAX_BLOCK_BYTES);
        let most = (of.client.window_bytes() / block_bytes).max(MIN_BLOCKS) as usize;
        let kept = Kept { blocks: VecDeque::new(), most, ahead: 1 };
        Blocks { of, expansion, block_bytes, kept: Arc::new(Mutex::new(kept)) }
    }

    /// Sets the number of places at which the object is read from now on; they share the blocks requested ahead.
    pub(super) fn set_places(&self, places: usize) {
        let mut kept = self.kept.lock();
        kept.ahead = ahead(kept.most, places);
    }

    /// Returns the rest of the block that contains `at`, from `at` on.
    fn from(&self, at: u64) -> io::Result<Bytes> {
        let number = at / self.block_bytes;
        let block = self.block(number)?;
        Ok(block.slice((at - number * self.block_bytes) as usize..))
    }

    fn block(&self, number: u64) -> io::Result<Bytes> {
        let mut kept = self.kept.lock();
        let block = kept.take(number).unwrap_or_else(|| self.ask(number));
        // The next pages follow this one, so request them ahead.
        for next in number + 1..=number + kept.ahead {
            if next * self.block_bytes < self.len() && !kept.has(next) {
                kept.put(next, self.ask(next));
            }
        }
        let bytes = match block {
            Block::Here(bytes) => bytes,
            Block::Asked(pending) => {
                let mut bytes = vec![0; pending.len_bytes() as usize];
                pending
                    .read_into(&mut bytes)
                    .map_err(|error| Shard::failed(&self.of.failure, io::Error::other(error)))?;
                self.expansion.read(bytes.len() as u64);
                Bytes::from(bytes)
            }
        };
        kept.put(number, Block::Here(bytes.clone()));
        Ok(bytes)
    }

    fn ask(&self, number: u64) -> Block {
        let start = number * self.block_bytes;
        let end = (start + self.block_bytes).min(self.len());
        Block::Asked(self.of.client.fetch(&self.of.object, start..end))
    }
}

/// Blocks that each of `places` may request ahead, so that half of the cache is left for blocks being read.
fn ahead(most: usize, places: usize) -> u64 {
    (most / 2 / places.max(1)).clamp(1, MOST_AHEAD) as u64
}

impl Kept {
    fn has(&self, number: u64) -> bool {
        self.blocks.iter().any(|(own, _)| *own == number)
    }

    fn take(&mut self, number: u64) -> Option<Block> {
        let at = self.blocks.iter().position(|(own, _)| *own == number)?;
        self.blocks.remove(at).map(|(_, block)| block)
    }

    fn put(&mut self, number: u64, block: Block) {
        if self.blocks.len() == self.most {
            self.blocks.pop_front();
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
        let mut bytes = zeroed_vec(length as u64).map_err(no_page)?;
        let mut reader = self.get_read(start)?;
        reader.read_exact(&mut bytes).map_err(|error| ParquetError::External(error.into()))?;
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
            self.ready = self.of.from(self.at)?;
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

/// Small enough to keep a block of each of many columns; large enough for few requests.
const MAX_BLOCK_BYTES: u64 = 1 << 20;
const MIN_BLOCKS: u64 = 16;
const MOST_AHEAD: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_ahead_leave_room_for_those_that_are_read() {
        assert_eq!((ahead(256, 1), ahead(256, 16), ahead(256, 0)), (32, 8, 32));
        // With more columns than blocks, each one is still read in blocks.
        assert_eq!((ahead(16, 8), ahead(16, 1000)), (1, 1));
    }
}
