//! Accounting of the bytes that an import writes, by purpose.

use dlfs_format::directory::commit::Commit;
use dlfs_format::format::{DraftLen, ImageLayout, Pack};

/// Bytes that an import wrote, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MediaUse {
    /// Records of samples.
    pub sample_bytes: u64,
    /// Headers of chunks: checksums, lengths, labels, names and typed columns.
    pub header_bytes: u64,
    /// Bytes that aligned packing (the default) takes in addition to `--pack tight`. Counted in both modes; 0
    /// if both give the same image.
    pub alignment_bytes: u64,
    /// Other padding, of headers and chunks.
    pub padding_bytes: u64,
    /// The directory: the generation's record and its snapshot.
    pub directory_bytes: u64,
}

impl MediaUse {
    /// All bytes but samples, in an image that is packed by `pack`.
    pub fn overhead_bytes(&self, pack: Pack) -> u64 {
        self.header_bytes + self.padding_of(pack) + self.directory_bytes
    }

    /// All padding, in an image that is packed by `pack`.
    pub fn padding_of(&self, pack: Pack) -> u64 {
        self.padding_bytes + if pack == Pack::Tight { 0 } else { self.alignment_bytes }
    }

    /// Adds a chunk.
    pub(super) fn add(&mut self, chunk: &DraftLen, layout: &ImageLayout) {
        let between = chunk.data_bytes - chunk.record_bytes;
        let whole = layout.cells_of(chunk.len_bytes()) * layout.cell_bytes();
        self.sample_bytes += chunk.record_bytes;
        self.header_bytes += chunk.header_bytes;
        self.alignment_bytes += chunk.alignment_bytes;
        self.padding_bytes += whole - chunk.header_bytes - chunk.record_bytes - between;
    }

    /// Adds the bytes that the commit writes.
    pub(super) fn with_commit(self, commit: &Commit) -> MediaUse {
        let cells = commit.record_range.cells + commit.snapshot_range.cells;
        let directory_bytes = cells * commit.directory.layout().cell_bytes();
        MediaUse { directory_bytes, ..self }
    }
}
