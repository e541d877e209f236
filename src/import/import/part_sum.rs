//! Sums over the chunks of a part, compared when the part is committed. Pure.

use xxhash_rust::xxh3::Xxh3;

use dlfs_format::format::ChunkHead;

/// Counts, and a hash of what does not change when the part gets its place in the image.
#[derive(Clone, Default)]
pub(super) struct PartSum {
    /// Chunks so far.
    pub(super) chunks: u64,
    /// Their samples.
    pub(super) samples: u64,
    hash: Xxh3,
}

impl PartSum {
    /// Adds the chunk that comes next.
    pub(super) fn add(&mut self, head: &ChunkHead) {
        self.chunks += 1;
        self.samples += u64::from(head.num_samples);
        // The checksum of the table covers names, labels, lengths, and the checksums of all samples.
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
