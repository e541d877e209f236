//! The node that serves a range of a namespace: chunk by chunk.

use std::ops::Range;

use dlfs_format::directory::Directory;
use dlfs_order::plan::ChunkHolders;
use dlfs_order::tier::PAGE_BYTES;

/// The chunks of an image by their location, and their holders.
#[derive(Debug)]
pub struct ChunkMap {
    /// For each namespace its chunks, by offset.
    namespaces: Vec<Vec<Chunk>>,
    holders: ChunkHolders,
}

#[derive(Debug, Clone, Copy)]
struct Chunk {
    start: u64,
    end: u64,
    number: u32,
}

/// A range of a namespace that lies in one chunk, or in none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Bytes of the namespace.
    pub range: Range<u64>,
    /// The chunk; `None` between chunks.
    pub chunk: Option<u32>,
}

impl ChunkMap {
    /// The chunks of `directory`, held as `holders` says.
    pub fn new(directory: &Directory, holders: ChunkHolders) -> ChunkMap {
        let mut namespaces = vec![Vec::new(); directory.layout().num_namespaces.into()];
        for number in 0..directory.num_chunks() {
            let chunk = directory.chunk(number);
            if chunk.len_bytes > 0 {
                let start = chunk.offset_bytes;
                let end = chunk.offset_bytes + chunk.len_bytes;
                let chunks: &mut Vec<Chunk> = &mut namespaces[usize::from(chunk.namespace)];
                chunks.push(Chunk { start, end, number });
            }
        }
        namespaces.iter_mut().for_each(|chunks| chunks.sort_unstable_by_key(|chunk| chunk.start));
        ChunkMap { namespaces, holders }
    }

    /// The holders of the chunks.
    pub fn holders(&self) -> &ChunkHolders {
        &self.holders
    }

    /// Splits `range` of a namespace by chunk, and calls `visit` with the spans in their order.
    pub fn split(&self, namespace: u16, range: Range<u64>, mut visit: impl FnMut(Span)) {
        let chunks = self.namespaces.get(usize::from(namespace)).map_or(&[][..], Vec::as_slice);
        let first = chunks.partition_point(|chunk| chunk.end <= range.start);
        let mut at = range.start;
        for chunk in chunks[first..].iter().take_while(|chunk| chunk.start < range.end) {
            if chunk.start > at {
                visit(Span { range: at..chunk.start, chunk: None });
            }
            let end = chunk.end.min(range.end);
            visit(Span { range: chunk.start.max(at)..end, chunk: Some(chunk.number) });
            at = end;
        }
        if at < range.end {
            visit(Span { range: at..range.end, chunk: None });
        }
    }
}

/// For each chunk, the bytes of the pages that contain live samples.
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
