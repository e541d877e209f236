//! Map from the ranges of a namespace to the nodes that serve them, chunk by chunk.

use std::ops::Range;

use dlfs_format::directory::Directory;
use dlfs_order::plan::ChunkHolders;
use dlfs_order::tier::PAGE_BYTES;

/// The chunks of an image, by location.
#[derive(Debug)]
pub(crate) struct ChunkPlaces {
    /// The chunks of each namespace, by offset.
    namespaces: Vec<Vec<Chunk>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    bytes: Range<u64>,
    number: u32,
}

impl ChunkPlaces {
    pub(crate) fn new(directory: &Directory) -> ChunkPlaces {
        let mut namespaces = vec![Vec::new(); directory.layout().num_namespaces.into()];
        for number in 0..directory.num_chunks() {
            let chunk = directory.chunk(number);
            if chunk.len_bytes > 0 {
                let bytes = chunk.offset_bytes..chunk.offset_bytes + chunk.len_bytes;
                let chunks: &mut Vec<Chunk> = &mut namespaces[usize::from(chunk.namespace)];
                chunks.push(Chunk { bytes, number });
            }
        }
        namespaces.iter_mut().for_each(|chunks| chunks.sort_unstable_by_key(|it| it.bytes.start));
        ChunkPlaces { namespaces }
    }

    /// The chunks that overlap `range` of a namespace.
    pub(crate) fn within(&self, namespace: u16, range: &Range<u64>) -> &[Chunk] {
        let chunks = self.namespaces.get(usize::from(namespace)).map_or(&[][..], Vec::as_slice);
        let first = chunks.partition_point(|chunk| chunk.bytes.end <= range.start);
        let count = chunks[first..].partition_point(|chunk| chunk.bytes.start < range.end);
        &chunks[first..first + count]
    }

    /// The end of the last chunk of each namespace, in bytes.
    pub(crate) fn ends(&self) -> Vec<u64> {
        let last = |chunks: &Vec<Chunk>| chunks.last().map_or(0, |chunk| chunk.bytes.end);
        self.namespaces.iter().map(last).collect()
    }
}

/// The chunks of an image, by location, and their holders.
#[derive(Debug)]
pub(super) struct ChunkMap {
    places: ChunkPlaces,
    holders: ChunkHolders,
}

impl ChunkMap {
    /// The chunks of `directory` with these holders.
    pub(super) fn new(directory: &Directory, holders: ChunkHolders) -> ChunkMap {
        ChunkMap { places: ChunkPlaces::new(directory), holders }
    }

    /// The holders of the chunks.
    pub(super) fn holders(&self) -> &ChunkHolders {
        &self.holders
    }

    /// Splits `range` of a namespace by chunk, and calls `visit` with each part and its chunk, in order; the
    /// chunk is `None` between chunks.
    pub(super) fn split(
        &self,
        namespace: u16,
        range: Range<u64>,
        mut visit: impl FnMut(Range<u64>, Option<u32>),
    ) {
        let mut at = range.start;
        for Chunk { bytes, number } in self.places.within(namespace, &range) {
            if bytes.start > at {
                visit(at..bytes.start, None);
            }
            let end = bytes.end.min(range.end);
            visit(bytes.start.max(at)..end, Some(*number));
            at = end;
        }
        if at < range.end {
            visit(at..range.end, None);
        }
    }
}

/// Bytes of the pages with live samples, for each chunk.
pub fn live_page_bytes(directory: &Directory) -> Vec<u64> {
    let of_chunk = |chunk| {
        let mut pages = Vec::new();
        for (_, extent) in directory.samples_in_chunk(chunk) {
            let first = extent.offset_bytes / PAGE_BYTES;
            let last = (extent.offset_bytes + u64::from(extent.len_bytes)).div_ceil(PAGE_BYTES);
            if first < last {
                pages.push(first..last);
            }
        }
        pages.sort_unstable_by_key(|pages| pages.start);
        let mut count = 0;
        let mut end = 0;
        for pages in pages {
            count += pages.end.saturating_sub(pages.start.max(end));
            end = end.max(pages.end);
        }
        count * PAGE_BYTES
    };
    (0..directory.num_chunks()).map(of_chunk).collect()
}
