//! Maps from the ranges of a namespace to its chunks, and to the nodes that serve them: chunk by chunk, or by the plan
//! of a run.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use dlfs_format::directory::Directory;
use dlfs_order::plan::ChunkHolders;
use dlfs_order::tier::{PAGE_BYTES, Units};

/// The chunks of an image, by location.
#[derive(Debug)]
pub(crate) struct ChunkPlaces {
    /// The chunks of each namespace, by offset.
    namespaces: Vec<Vec<Chunk>>,
}

/// A chunk: its bytes on its namespace, and its number in the image.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    bytes: Range<u64>,
    number: u32,
}

impl ChunkPlaces {
    /// The chunks of `directory`, without empty ones.
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

    /// The end of the last chunk of each namespace, in bytes; 0 if there is none.
    pub(crate) fn ends(&self) -> Vec<u64> {
        let last = |chunks: &Vec<Chunk>| chunks.last().map_or(0, |chunk| chunk.bytes.end);
        self.namespaces.iter().map(last).collect()
    }
}

/// The chunks of an image, by location, and their holders.
#[derive(Debug)]
pub(super) struct ChunkMap {
    places: ChunkPlaces,
    pub(super) holders: ChunkHolders,
}

impl ChunkMap {
    /// The chunks of `directory` with these holders.
    pub(super) fn new(directory: &Directory, holders: ChunkHolders) -> ChunkMap {
        ChunkMap { places: ChunkPlaces::new(directory), holders }
    }

    /// Splits `range` of a namespace by chunk, and appends the spans in order.
    pub(super) fn split(&self, namespace: u16, range: Range<u64>, spans: &mut Vec<Span>) {
        let mut at = range.start;
        for Chunk { bytes, number } in self.places.within(namespace, &range) {
            if bytes.start > at {
                spans.push((at..bytes.start, SpanHolder::None));
            }
            let end = bytes.end.min(range.end);
            spans.push((bytes.start.max(at)..end, SpanHolder::Chunk(*number)));
            at = end;
        }
        if at < range.end {
            spans.push((at..range.end, SpanHolder::None));
        }
    }
}

/// A subrange of a read, in bytes of the namespace, and its holder.
pub(super) type Span = (Range<u64>, SpanHolder);

/// The holder of a span: the node that keeps its data for all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpanHolder {
    /// No node: the span is read from this node's own copy, or from the origin.
    None,
    /// The node that holds this chunk; [`ChunkHolders`] names it.
    Chunk(u32),
    /// The node with this index, by the plan of the run.
    Planned(u16),
}

/// The node from which this node reads each portion (pages that a run plans together: see [`dlfs_order::tier`]):
/// 2 bytes per portion.
#[derive(Debug)]
pub struct PlanMap {
    units: Arc<Units>,
    nodes: Vec<u16>,
}

impl PlanMap {
    /// `nodes` has the index of a node for each portion, or [`NOBODY`](PlanMap::NOBODY) if this node reads
    /// its own copy or the origin.
    ///
    /// # Panics
    /// If `nodes` does not have one entry per portion.
    pub fn new(units: Arc<Units>, nodes: Vec<u16>) -> PlanMap {
        assert_eq!(nodes.len(), units.num_portions() as usize, "one for each portion");
        PlanMap { units, nodes }
    }

    /// Entry of a portion that is read from no other node.
    pub const NOBODY: u16 = u16::MAX;

    /// Splits `range` of a namespace, which begins and ends at page boundaries, by node, in order. `spans` must be
    /// empty.
    pub(super) fn split(&self, namespace: u16, range: Range<u64>, spans: &mut Vec<Span>) {
        let mut add = |more: Range<u64>, node: u16| {
            let holder =
                if node == PlanMap::NOBODY { SpanHolder::None } else { SpanHolder::Planned(node) };
            match spans.last_mut() {
                _ if more.is_empty() => {}
                Some((part, of)) if *of == holder => part.end = more.end,
                _ => spans.push((more, holder)),
            }
        };
        let mut at = range.start;
        for unit in self.units.within(namespace, &range) {
            let bounds = self.units.get(unit);
            add(at..bounds.start_bytes().clamp(at, range.end), PlanMap::NOBODY);
            let first_unit = self.units.together_with(unit).start;
            let mut previous = PlanMap::NOBODY;
            for page in bounds.pages_in(&range).runs().flatten() {
                let planned = self.nodes[self.units.portion_at(first_unit, page) as usize];
                // Two portions may share a page. If no node keeps the second one, the node of the first has the page.
                let is_shared = self.units.is_continued(first_unit, page);
                let node = if planned == PlanMap::NOBODY && is_shared { previous } else { planned };
                previous = planned;
                let end = bounds.start_bytes() + u64::from(page + 1) * PAGE_BYTES;
                let start = (end - PAGE_BYTES).max(at);
                at = end.min(range.end);
                add(start..at, node);
            }
        }
        debug_assert!(at.is_multiple_of(PAGE_BYTES), "units and reads are whole pages");
        add(at..range.end, PlanMap::NOBODY);
    }
}

/// The plan of the latest run. At each read, a queue pair compares the number of the plan that it has with the latest
/// number, and takes the plan if the two differ.
#[derive(Debug, Default)]
pub(super) struct LatestPlan {
    number: AtomicU32,
    map: Mutex<Option<Arc<PlanMap>>>,
}

impl LatestPlan {
    /// Replaces the plan.
    pub(super) fn set(&self, map: PlanMap) {
        *self.map.lock() = Some(Arc::new(map));
        self.number.fetch_add(1, Ordering::Release);
    }

    /// Updates a queue pair's `known` number and plan.
    pub(super) fn follow(&self, known: &mut (u32, Option<Arc<PlanMap>>)) {
        let number = self.number.load(Ordering::Acquire);
        if number != known.0 {
            *known = (number, self.map.lock().clone());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn split(map: &PlanMap, pages: Range<u64>) -> Vec<Span> {
        let mut spans = Vec::new();
        map.split(0, pages.start * PAGE_BYTES..pages.end * PAGE_BYTES, &mut spans);
        let in_pages = |bytes: Range<u64>| bytes.start / PAGE_BYTES..bytes.end / PAGE_BYTES;
        spans.into_iter().map(|(part, holder)| (in_pages(part), holder)).collect()
    }

    #[test]
    fn a_range_is_split_where_another_node_keeps_the_units_and_where_there_is_none() {
        let units = Units::from_pages([(1, 4), (5, 4), (9, 4), (20, 4), (24, 4)]);
        let map = PlanMap::new(Arc::new(units), vec![3, 3, PlanMap::NOBODY, 7, 3]);
        let at = SpanHolder::Planned;
        let none = SpanHolder::None;
        assert_eq!(split(&map, 1..9), [(1..9, at(3))]);
        assert_eq!(split(&map, 2..3), [(2..3, at(3))]);
        assert_eq!(
            split(&map, 0..26),
            [(0..1, none), (1..9, at(3)), (9..20, none), (20..24, at(7)), (24..26, at(3))]
        );
        assert_eq!(split(&map, 26..40), [(26..28, at(3)), (28..40, none)]);
        assert_eq!(split(&map, 40..41), [(40..41, none)]);
    }

    #[test]
    fn a_queue_pair_takes_the_latest_plan() {
        let latest = LatestPlan::default();
        let mut known = (0, None);
        latest.follow(&mut known);
        assert!(known.1.is_none());
        latest.set(PlanMap::new(Arc::default(), Vec::new()));
        latest.follow(&mut known);
        let first = known.1.clone().unwrap();
        latest.follow(&mut known);
        assert!(Arc::ptr_eq(&first, known.1.as_ref().unwrap()));
        latest.set(PlanMap::new(Arc::default(), Vec::new()));
        latest.follow(&mut known);
        assert!(!Arc::ptr_eq(&first, known.1.as_ref().unwrap()));
    }
}
