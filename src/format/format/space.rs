//! Allocates cells for the generation being written.
//!
//! Cells that the current generation reads must not be overwritten. Cells that it freed must not be overwritten either:
//! a reader that opened the previous generation may still read them. So a cell freed in generation g is reused in g + 2
//! at the earliest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::format::geometry::CELL_BYTES;
use crate::format::{CellRange, FormatError, ImageLayout};

/// Free and used cells of all namespaces of an image. Allocation is deterministic: it depends only on earlier
/// reservations and allocations, so a resumed import gets the same cells.
#[derive(Debug, Clone)]
pub struct Space {
    /// The cells of each namespace.
    namespaces: Vec<NamespaceCells>,
}

/// The cells of one namespace.
#[derive(Debug, Clone)]
struct NamespaceCells {
    /// Cells at or above this number are not allocated.
    capacity: u64,
    /// Used ranges: end by start. Adjacent ranges are merged. The first range begins with the reserved cells.
    used: BTreeMap<u64, u64>,
    /// For each power of two, a cell below which no free range of that many cells begins: a search skips the small gaps
    /// before it.
    none_below: [u64; 64],
}

impl Space {
    /// All cells are free, except the reserved first ones of each namespace. `len_bytes` has the length of each
    /// namespace; `u64::MAX` for a file that can grow.
    pub fn new(layout: &ImageLayout, len_bytes: &[u64]) -> Space {
        let namespace = |len: &u64| {
            let capacity = layout.capacity_cells(*len);
            let mut cells = NamespaceCells { capacity, used: BTreeMap::new(), none_below: [0; 64] };
            cells.take(0, layout.first_cell());
            cells
        };
        Space { namespaces: len_bytes.iter().map(namespace).collect() }
    }

    /// Marks `range` as used; ignores a range of an unknown namespace. Call it for all ranges that the current
    /// generation reads or freed.
    pub fn reserve(&mut self, range: CellRange) {
        if let Some(cells) = self.namespaces.get_mut(usize::from(range.namespace)) {
            cells.take(range.cell, range.cells);
        }
    }

    /// Allocates `cells` consecutive cells: on namespace `preferred` (modulo the number of namespaces) if it has room,
    /// otherwise on the next one with room. `None` if no namespace has room.
    ///
    /// Chunk `n` of a generation prefers namespace `n`, so that chunks are striped over the namespaces.
    pub fn allocate(&mut self, preferred: u64, cells: u64) -> Option<CellRange> {
        let count = self.namespaces.len() as u64;
        for step in 0..count {
            let index = ((preferred % count) + step) % count;
            let namespace = &mut self.namespaces[index as usize];
            if let Some(cell) = namespace.find(cells) {
                namespace.take(cell, cells);
                return Some(CellRange { namespace: index as u16, cell, cells });
            }
        }
        None
    }

    /// Limits allocation on a namespace to the cells below `cell`.
    pub fn limit(&mut self, namespace: u16, cell: u64) {
        if let Some(cells) = self.namespaces.get_mut(usize::from(namespace)) {
            cells.capacity = cells.capacity.min(cell);
        }
    }

    /// Returns whether any namespace has `cells` consecutive free cells.
    pub fn has_room(&mut self, cells: u64) -> bool {
        self.namespaces.iter_mut().any(|namespace| namespace.find(cells).is_some())
    }

    /// The free cells of a namespace below [`end_cell`](Self::end_cell), in ascending ranges.
    pub fn free_below_end(&self, namespace: u16) -> impl Iterator<Item = Range<u64>> {
        let used = self.namespaces.get(usize::from(namespace)).map(|cells| &cells.used);
        let ends = used.into_iter().flat_map(|used| used.values().copied());
        let starts = used.into_iter().flat_map(|used| used.keys().copied());
        [0].into_iter()
            .chain(ends)
            .zip(starts)
            .map(|(end, start)| end..start)
            .filter(|gap| !gap.is_empty())
    }

    /// Free cells of all namespaces together.
    pub(crate) fn free_cells(&self) -> u64 {
        let free = |namespace: &NamespaceCells| {
            let used: u64 = namespace.used.iter().map(|(start, end)| end - start).sum();
            namespace.capacity.saturating_sub(used)
        };
        self.namespaces.iter().map(free).fold(0, u64::saturating_add)
    }

    /// The error for a failed allocation of `cells` cells.
    pub fn no_room(&self, cells: u64) -> FormatError {
        FormatError::NoSpace {
            needed_bytes: cells.saturating_mul(CELL_BYTES),
            free_bytes: self.free_cells().saturating_mul(CELL_BYTES),
        }
    }

    /// End of the last used cell of a namespace, in cells: the minimum length of a file.
    pub fn end_cell(&self, namespace: u16) -> u64 {
        let cells = self.namespaces.get(usize::from(namespace));
        cells.and_then(|cells| cells.used.values().next_back().copied()).unwrap_or(0)
    }
}

impl NamespaceCells {
    /// The start of the lowest range of `cells` free cells. Raises `none_below` past the gaps that are shorter than
    /// the largest power of two up to `cells`.
    fn find(&mut self, cells: u64) -> Option<u64> {
        let class = cells.max(1).ilog2() as usize;
        let mark = self.none_below[class];
        let covering = self.used.range(..mark).next_back().map_or(0, |(_, &end)| end);
        let mut at = mark.max(covering);
        let mut passed_small_gaps_only = true;
        for (&start, &end) in self.used.range(mark..) {
            let gap = start.saturating_sub(at);
            if gap >= cells {
                break;
            }
            passed_small_gaps_only &= gap < 1 << class;
            at = at.max(end);
            if passed_small_gaps_only {
                self.none_below[class] = at;
            }
        }
        let end = at.checked_add(cells)?;
        (end <= self.capacity).then_some(at)
    }

    /// Marks cells as used, and merges them with adjacent or overlapping ranges.
    fn take(&mut self, cell: u64, cells: u64) {
        if cells == 0 {
            return;
        }
        let mut start = cell;
        let mut end = cell.saturating_add(cells);
        if let Some((&before, &before_end)) = self.used.range(..=start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.used.range(start..=end).next() {
            self.used.remove(&next);
            end = end.max(next_end);
        }
        self.used.insert(start, end);
    }
}

/// The ranges that a generation frees: the ranges of `old` that are not among those of `new`, merged where adjacent.
pub fn freed(
    old: impl IntoIterator<Item = CellRange>,
    new: impl IntoIterator<Item = CellRange>,
) -> Vec<CellRange> {
    let kept: BTreeSet<CellRange> = new.into_iter().collect();
    let freed: BTreeSet<CellRange> =
        old.into_iter().filter(|range| !kept.contains(range)).collect();
    let mut joined: Vec<CellRange> = Vec::new();
    for range in freed {
        match joined.last_mut() {
            Some(last)
                if last.namespace == range.namespace && last.cell + last.cells == range.cell =>
            {
                last.cells += range.cells;
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// The cells of `old` that are in no range of `new`, as ranges in the order of `old`. The ranges of `new` must not
/// overlap.
pub fn without(
    old: impl IntoIterator<Item = CellRange>,
    new: impl IntoIterator<Item = CellRange>,
) -> Vec<CellRange> {
    let mut kept: Vec<CellRange> = new.into_iter().collect();
    kept.sort_unstable();
    let mut rest = Vec::new();
    for range in old {
        let namespace = range.namespace;
        let end = range.cell + range.cells;
        let mut at = range.cell;
        // Only the last one of the kept ranges that begin at or before this range can overlap it.
        let from = kept.partition_point(|kept| (kept.namespace, kept.cell) <= (namespace, at));
        for kept in &kept[from.saturating_sub(1)..] {
            if (kept.namespace, kept.cell) >= (namespace, end) {
                break;
            }
            let kept_end = kept.cell + kept.cells;
            if kept.namespace != namespace || kept_end <= at {
                continue;
            }
            if kept.cell > at {
                rest.push(CellRange { namespace, cell: at, cells: kept.cell - at });
            }
            at = kept_end;
        }
        if at < end {
            rest.push(CellRange { namespace, cell: at, cells: end - at });
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Pack, Uuid};
    use proptest::prelude::*;

    /// The space of namespaces with these numbers of cells.
    fn space(len_cells: &[u64]) -> Space {
        let layout = ImageLayout::new(Uuid::default(), 64 << 10, Pack::Aligned, 1).unwrap();
        let lens: Vec<u64> = len_cells.iter().map(|cells| cells << 12).collect();
        Space::new(&layout, &lens)
    }

    #[test]
    fn cells_of_4_kib_follow_the_36_kib_of_the_superblocks() {
        let mut space = space(&[16]);
        assert_eq!(space.allocate(0, 2), Some(CellRange { namespace: 0, cell: 9, cells: 2 }));
        assert_eq!(space.free_cells(), 5);
        assert_eq!(space.end_cell(0), 11);
        space.reserve(CellRange { namespace: 0, cell: 13, cells: 1 });
        space.reserve(CellRange { namespace: 0, cell: 15, cells: 1 });
        assert!(space.free_below_end(0).eq([11..13, 14..15]));
        assert!(space.has_room(2) && !space.has_room(3));
        space.limit(0, 12);
        assert!(space.has_room(1) && !space.has_room(2));
    }

    #[test]
    fn chunks_go_round_the_namespaces_and_past_full_ones() {
        let mut space = space(&[11, 10, 12]);
        let cells: Vec<(u16, u64)> = (0..6)
            .map(|chunk| {
                space.allocate(chunk, 1).map(|range| (range.namespace, range.cell)).unwrap()
            })
            .collect();
        assert_eq!(cells, [(0, 9), (1, 9), (2, 9), (0, 10), (2, 10), (2, 11)]);
        assert_eq!(space.free_cells(), 0);
        assert_eq!(space.allocate(6, 1), None);
    }

    #[test]
    fn a_run_that_fits_nowhere_is_refused_whatever_its_length() {
        let mut space = space(&[18]);
        assert_eq!(space.allocate(0, 10), None);
        assert_eq!(space.allocate(0, u64::MAX), None);
        assert_eq!(space.allocate(0, 9).map(|range| range.cell), Some(9));
    }

    #[test]
    fn freed_runs_are_those_that_the_new_generation_lacks() {
        let range = |cell, cells| CellRange { namespace: 0, cell, cells };
        let old = [range(1, 1), range(2, 2), range(9, 1), range(4, 1)];
        assert_eq!(freed(old, [range(9, 1), range(20, 4)]), [range(1, 4)]);
        assert_eq!(freed(old, old), []);
    }

    #[test]
    fn what_is_left_of_ranges_is_every_cell_that_no_other_range_has() {
        let range = |namespace, cell, cells| CellRange { namespace, cell, cells };
        let old = [range(0, 1, 10), range(0, 20, 5), range(1, 1, 4)];
        let new = [range(1, 3, 9), range(0, 4, 2), range(0, 8, 14), range(0, 0, 2)];
        let rest = [range(0, 2, 2), range(0, 6, 2), range(0, 22, 3), range(1, 1, 2)];
        assert_eq!(without(old, new), rest);
        assert_eq!(without(old, old), []);
        assert_eq!(without(old, []), old);
    }

    proptest! {
        #[test]
        fn allocation_never_touches_a_used_cell_and_always_finds_the_lowest_room(
            steps in prop::collection::vec((any::<bool>(), 0u64..40, 1u64..6), 0..60)
        ) {
            let mut space = space(&[64]);
            let mut used = [false; 64];
            used[..9].fill(true);
            for (reserve, cell, cells) in steps {
                if reserve {
                    space.reserve(CellRange { namespace: 0, cell, cells });
                    used[cell as usize..(cell + cells) as usize].fill(true);
                    continue;
                }
                let room = (0..=64 - cells as usize)
                    .find(|at| used[*at..at + cells as usize].iter().all(|used| !used));
                let found = space.allocate(0, cells).map(|range| range.cell as usize);
                prop_assert_eq!(found, room);
                if let Some(at) = room {
                    used[at..at + cells as usize].fill(true);
                }
            }
            prop_assert_eq!(space.free_cells() as usize, used.iter().filter(|used| !**used).count());
        }
    }
}
