//! Verifies bytes read from a namespace by the checksums of the samples in them.

use std::sync::Arc;

use super::Directory;
use dlfs_base::checksum::crc32c;

/// Finds the samples in any byte range of an image's namespaces, and verifies their checksums.
#[derive(Debug)]
pub struct Intact {
    directory: Arc<Directory>,
    /// For each namespace, its chunks by offset: offset of the first byte, end, index of the chunk.
    chunks: Vec<Vec<(u64, u64, u32)>>,
}

impl Intact {
    /// A verifier for the samples of `directory`.
    pub fn new(directory: Arc<Directory>) -> Intact {
        let mut chunks = vec![Vec::new(); directory.layout().num_namespaces.into()];
        for number in 0..directory.num_chunks() {
            let chunk = directory.chunk(number);
            let of_namespace: &mut Vec<_> = &mut chunks[usize::from(chunk.namespace)];
            let end = chunk.offset_bytes + chunk.len_bytes;
            of_namespace.push((chunk.offset_bytes, end, number));
        }
        chunks.iter_mut().for_each(|chunks| chunks.sort_unstable());
        Intact { directory, chunks }
    }

    /// Verifies the live samples in `bytes`, which were read from offset `start` of `namespace`. Returns whether all
    /// of their checksums match the directory.
    ///
    /// Skips samples that lie only partly in `bytes`. Skips all samples of a folder of files: their checksums are not
    /// known in advance. Visits all samples from the beginning of each chunk to the end of `bytes`.
    pub fn is_intact(&self, namespace: u16, start: u64, bytes: &[u8]) -> bool {
        if self.directory.learned().is_some() {
            return true;
        }
        let end = start + bytes.len() as u64;
        let chunks = self.chunks.get(usize::from(namespace)).map_or(&[][..], Vec::as_slice);
        let first = chunks.partition_point(|(_, chunk_end, _)| *chunk_end <= start);
        let overlapping = chunks[first..].iter().take_while(|(chunk_start, ..)| *chunk_start < end);
        let mut extents = overlapping.flat_map(|(_, _, number)| {
            let extents = self.directory.samples_in_chunk(*number).map(|(_, extent)| extent);
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
