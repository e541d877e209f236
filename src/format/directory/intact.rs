//! Verifies samples: all that lie in a byte range of a namespace ([`Intact`]), or one of a plain folder, by the
//! checksum computed at its first read ([`Learned`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::directory::Directory;
use dlfs_base::checksum::crc32c;
use dlfs_base::units::SampleId;

/// The checksums of a plain folder's samples. Shared by all readers.
///
/// The first read of a sample stores its checksum; later reads must match it.
#[derive(Debug)]
pub struct Learned {
    /// The CRC32C of each sample.
    checksums: Vec<AtomicU32>,
    /// One bit a sample: set if its checksum is known.
    known: Vec<AtomicU64>,
}

impl Learned {
    /// Space for the checksums of `num_samples` samples, all unknown yet: 4.1 bytes each.
    pub fn new(num_samples: u64) -> Learned {
        Learned {
            checksums: (0..num_samples).map(|_| AtomicU32::new(0)).collect(),
            known: (0..num_samples.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns whether `found` is the checksum of `sample`. If no checksum of it is known, stores `found`, and returns
    /// true. Returns false for a sample that does not exist.
    pub fn accepts(&self, sample: SampleId, found: u32) -> bool {
        let Some(checksum) = self.checksums.get(sample.0 as usize) else { return false };
        let word = &self.known[(sample.0 / 64) as usize];
        let bit = 1 << (sample.0 % 64);
        if word.load(Ordering::Acquire) & bit != 0 {
            return checksum.load(Ordering::Relaxed) == found;
        }
        // Several threads may read the sample first: the one that replaces 0 stores its checksum, and the others
        // compare theirs. A checksum of 0 looks unset to a thread that loaded `word` before the mark was set: that
        // thread may replace it by its own checksum, and both are accepted.
        let before = checksum.compare_exchange(0, found, Ordering::AcqRel, Ordering::Acquire);
        word.fetch_or(bit, Ordering::Release);
        before.is_ok() || before == Err(found)
    }

    /// The checksum of `sample`, if it is known.
    pub fn get(&self, sample: SampleId) -> Option<u32> {
        let word = self.known.get((sample.0 / 64) as usize)?;
        let is_known = word.load(Ordering::Acquire) >> (sample.0 % 64) & 1 == 1;
        is_known.then(|| self.checksums[sample.0 as usize].load(Ordering::Relaxed))
    }

    /// Number of known checksums.
    pub fn count(&self) -> u64 {
        self.known.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Memory, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.checksums.len() * 4 + self.known.len() * 8) as u64
    }
}

/// Finds the samples in any byte range of an image's namespaces, and verifies their checksums.
#[derive(Debug)]
pub struct Intact {
    directory: Arc<Directory>,
    /// For each namespace, the indexes of its chunks, in the order of their offsets.
    chunks: Vec<Vec<u32>>,
}

impl Intact {
    /// A verifier for the samples of `directory`.
    pub fn new(directory: Arc<Directory>) -> Intact {
        let mut chunks = vec![Vec::new(); directory.layout().num_namespaces.into()];
        for c in 0..directory.num_chunks() {
            chunks[usize::from(directory.chunk(c).namespace)].push(c);
        }
        for of_namespace in &mut chunks {
            let place = |c: &u32| (directory.chunk(*c).offset_bytes, directory.chunk(*c).len_bytes);
            of_namespace.sort_by_key(place);
        }
        Intact { directory, chunks }
    }

    /// Verifies the live samples in `bytes`, which were read from offset `start` of `namespace`. Returns whether all
    /// of their checksums match the directory.
    ///
    /// Skips samples that lie only partly in `bytes`, and all samples of a plain folder, whose checksums are not known
    /// in advance. Visits the samples of each overlapping chunk from the chunk's start to the end of `bytes`.
    pub fn is_intact(&self, namespace: u16, start: u64, bytes: &[u8]) -> bool {
        if self.directory.learned().is_some() {
            return true;
        }
        let end = start + bytes.len() as u64;
        let chunks = self.chunks.get(usize::from(namespace)).map_or(&[][..], Vec::as_slice);
        let chunk = |c: &u32| self.directory.chunk(*c);
        let first = chunks.partition_point(|c| chunk(c).offset_bytes + chunk(c).len_bytes <= start);
        let overlapping = chunks[first..].iter().take_while(|c| chunk(c).offset_bytes < end);
        let mut extents = overlapping.flat_map(|c| {
            let extents = self.directory.samples_in_chunk(*c).map(|(_, extent)| extent);
            extents.take_while(|extent| extent.offset_bytes < end)
        });
        extents.all(|extent| {
            let sample_end = extent.offset_bytes + u64::from(extent.len_bytes);
            if extent.offset_bytes < start || sample_end > end {
                return true;
            }
            let from = (extent.offset_bytes - start) as usize;
            crc32c(&bytes[from..from + extent.len_bytes as usize]) == extent.crc32c
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_read_sets_the_checksum_and_later_reads_must_match_it() {
        let learned = Learned::new(70);
        assert_eq!((learned.get(SampleId(69)), learned.count()), (None, 0));
        assert!(learned.accepts(SampleId(69), 5) && learned.accepts(SampleId(69), 5));
        assert!(!learned.accepts(SampleId(69), 6));
        assert!(learned.accepts(SampleId(0), 0) && !learned.accepts(SampleId(0), 1));
        assert_eq!((learned.get(SampleId(69)), learned.count()), (Some(5), 2));
        assert!(!learned.accepts(SampleId(70), 5), "there is no such sample");
    }
}
