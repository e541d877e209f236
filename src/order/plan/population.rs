//! The samples of a directory as orders see them: their number, and their chunks.

use crate::order::Population;
use dlfs_base::units::SampleId;
use dlfs_format::directory::Directory;

impl Population for Directory {
    fn num_live(&self) -> u64 {
        Directory::num_live(self)
    }

    fn num_chunks(&self) -> u32 {
        Directory::num_chunks(self)
    }

    fn live_in_chunk(&self, chunk: u32) -> u32 {
        Directory::live_in_chunk(self, chunk)
    }

    fn span_of_chunk(&self, chunk: u32) -> u32 {
        let cell = u64::from(self.layout().chunk_size_bytes);
        u32::try_from(self.chunk(chunk).len_bytes.div_ceil(cell)).unwrap_or(u32::MAX)
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        Directory::id_of_live(self, rank)
    }

    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId {
        Directory::id_in_chunk(self, chunk, nth)
    }

    fn chunk_of(&self, id: SampleId) -> Option<u32> {
        Directory::chunk_of(self, id)
    }

    fn blocks_of(&self, chunk: u32, nth: u32) -> u32 {
        let extent = self.extent_in_chunk(chunk, nth);
        let within = extent.offset_bytes % BLOCK_BYTES;
        (within + u64::from(extent.len_bytes)).div_ceil(BLOCK_BYTES) as u32
    }
}

/// The block length for comparing samples that are read alone: the largest of usual media.
const BLOCK_BYTES: u64 = 4096;
