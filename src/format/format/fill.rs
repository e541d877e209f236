//! Fill level of a chunk: decides from lengths which samples fit, before any byte of them is read.

use crate::format::SampleMeta;
use crate::format::chunk::{HEAD_BYTES, padded};
use crate::format::columns::ColumnSpec;
use crate::format::geometry::{ImageLayout, MAX_CHUNK_SAMPLES};
use crate::format::table::Bound;

/// The chunk that a sample belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// This chunk.
    Here,
    /// The next chunk: [`finish`](crate::format::ChunkBuilder::finish) this one first.
    NextChunk,
    /// A chunk of its own, larger than the chunk size: finish this one if it has samples, then see
    /// [`ChunkBuilder::oversize`](crate::format::ChunkBuilder::oversize).
    Oversize,
}

/// The space that a chunk's samples occupy so far.
///
/// [`crate::format::ChunkBuilder`] follows the same rules, so one thread can plan a chunk and another can
/// build it. The header counts with an upper bound of its length, since front coding depends on all names. So a chunk
/// may end a little below the chunk size.
#[derive(Debug, Clone)]
pub struct Fill {
    layout: ImageLayout,
    /// Bytes of the head and of the names and types of the fields.
    fixed: usize,
    num_samples: u32,
    table: Bound,
    /// The bound for a chunk without samples.
    empty: Bound,
    /// End of the last sample, relative to the start of the data.
    end: u64,
}

impl Fill {
    /// An empty chunk. `fields_len` is the encoded length of the names and types of the fields.
    pub fn new(layout: ImageLayout, fields_len: usize, typed: &[ColumnSpec]) -> Fill {
        let fixed = HEAD_BYTES + fields_len;
        let table = Bound::new(typed);
        Fill { layout, fixed, num_samples: 0, empty: table.clone(), table, end: 0 }
    }

    /// Number of samples in the chunk.
    pub fn num_samples(&self) -> u32 {
        self.num_samples
    }

    /// The most bytes of the padded header with one more sample.
    pub fn header_with(&self, meta: &SampleMeta<'_>, len: u32) -> u64 {
        padded((self.fixed + self.table.with(meta, len)) as u64)
    }

    /// End of the last sample, relative to the start of the data.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The start of the next record if it has `len` bytes, relative to the start of the data.
    pub(crate) fn next_start(&self, len: u32) -> u64 {
        self.layout.pack.next_start(self.end, len)
    }

    /// Decides which chunk a sample with a record of `len` bytes belongs to.
    pub fn fit(&self, meta: &SampleMeta<'_>, len: u32) -> Fit {
        let size = u64::from(self.layout.chunk_size_bytes);
        let alone = self.fixed + self.empty.with(meta, len);
        if padded(alone as u64) + u64::from(len) > size {
            return Fit::Oversize;
        }
        let header = self.fixed + self.table.with(meta, len);
        let end = self.next_start(len) + u64::from(len);
        let names = (self.table.names_len() + meta.name.len()) as u64;
        let fits = self.num_samples < MAX_CHUNK_SAMPLES
            && header <= self.layout.max_header_bytes() as usize
            && names <= self.layout.max_names_bytes()
            && padded(header as u64) + end <= size;
        if fits { Fit::Here } else { Fit::NextChunk }
    }

    /// Adds a sample that [`fit`](Self::fit)s here.
    pub fn take(&mut self, meta: &SampleMeta<'_>, len: u32) {
        self.end = self.next_start(len) + u64::from(len);
        self.num_samples += 1;
        self.table.take(meta, len);
    }
}
