//! How full a chunk is. Which samples fit is computed from lengths, before any byte is read.

use crate::format::chunk::{ENTRY_BYTES, HEAD_BYTES, padded};
use crate::format::geometry::{ImageLayout, MAX_CHUNK_SAMPLES};

/// Where a sample belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// In this chunk.
    Here,
    /// In the next one: [`finish`](crate::format::ChunkBuilder::finish) this one first.
    NextChunk,
    /// In no chunk: finish this one if it has samples, then see
    /// [`ChunkBuilder::oversize`](crate::format::ChunkBuilder::oversize).
    Oversize,
}

/// The space that a chunk's samples occupy so far.
///
/// [`crate::format::ChunkBuilder`] follows the same rules, so one thread can plan a chunk and another can
/// build it.
#[derive(Debug, Clone)]
pub struct Fill {
    layout: ImageLayout,
    /// Bytes of head and field names.
    fixed: usize,
    num_samples: u32,
    names_len: usize,
    /// End of the last sample, relative to the start of the data.
    end: u64,
}

impl Fill {
    /// An empty chunk whose table begins with `fields_len` bytes of field names.
    pub fn new(layout: ImageLayout, fields_len: usize) -> Fill {
        Fill { layout, fixed: HEAD_BYTES + fields_len, num_samples: 0, names_len: 0, end: 0 }
    }

    /// Its number of samples.
    pub fn num_samples(&self) -> u32 {
        self.num_samples
    }

    /// End of the last sample, relative to the start of the data.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Where a record of `len` bytes begins if it comes next, relative to the start of the data.
    pub fn next_start(&self, len: u32) -> u64 {
        self.layout.pack.next_start(self.end, len)
    }

    /// Where a sample with a name of `name_len` and a record of `len` bytes belongs.
    pub fn fit(&self, name_len: usize, len: u32) -> Fit {
        let size = u64::from(self.layout.chunk_size_bytes);
        let one = self.fixed + ENTRY_BYTES + name_len;
        if padded(one as u64) + u64::from(len) > size {
            return Fit::Oversize;
        }
        let header = one + self.num_samples as usize * ENTRY_BYTES + self.names_len;
        let end = self.next_start(len) + u64::from(len);
        let fits = self.num_samples < MAX_CHUNK_SAMPLES
            && header <= self.layout.max_header_bytes() as usize
            && padded(header as u64) + end <= size;
        if fits { Fit::Here } else { Fit::NextChunk }
    }

    /// Adds a sample that [`fit`](Self::fit)s here.
    pub fn take(&mut self, name_len: usize, len: u32) {
        self.end = self.next_start(len) + u64::from(len);
        self.num_samples += 1;
        self.names_len += name_len;
    }

    /// Length of a chunk that holds one oversize sample: header and record, each padded.
    pub fn oversize_len_bytes(&self, name_len: usize, len: u32) -> u64 {
        padded((self.fixed + ENTRY_BYTES + name_len) as u64) + padded(u64::from(len))
    }
}
