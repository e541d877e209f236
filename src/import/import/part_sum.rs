//! Sums over the chunks of a part. The commit of the part compares them. Pure.

use xxhash_rust::xxh3::Xxh3;

use dlfs_format::format::ChunkHead;

/// Counts, and a hash of the data that stays the same when the part gets its place in the image.
#[derive(Clone, Default)]
pub(super) struct PartSum {
    /// Number of chunks so far.
    pub(super) chunks: u64,
    /// Number of their samples.
    pub(super) samples: u64,
    hash: Xxh3,
}

impl PartSum {
    /// Adds the next chunk.
    pub(super) fn add(&mut self, head: &ChunkHead) {
        self.chunks += 1;
        self.samples += u64::from(head.num_samples);
        // The table's checksum covers names, labels, lengths, and the checksums of all samples.
        for number in [
            head.cell,
            head.first_slot.0 - head.part.first,
            head.part.seed,
            head.part.window,
            head.num_samples.into(),
            head.header_len.into(),
            head.data_len,
            head.table_crc.into(),
        ] {
            self.hash.update(&number.to_le_bytes());
        }
    }

    /// The hash of all chunks so far.
    pub(super) fn digest(&self) -> u64 {
        self.hash.digest()
    }
}
