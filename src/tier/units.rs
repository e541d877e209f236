//! Units: the ranges of samples that are copied as a whole.

use std::ops::Range;

use crate::directory::Directory;
use crate::format::Extent;
use crate::units::SampleId;

use super::PAGE_BYTES;

/// Whole pages of a namespace that are copied together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit {
    /// First page on its namespace.
    pub page: u64,
    /// Number of pages.
    pub pages: u32,
    /// The next unit belongs to the same sample: both are kept, or neither.
    pub continues: bool,
}

impl Unit {
    /// First byte on its namespace.
    pub fn start_bytes(&self) -> u64 {
        self.page * PAGE_BYTES
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES
    }

    /// The offset after its last byte.
    pub fn end_bytes(&self) -> u64 {
        self.start_bytes() + self.len_bytes()
    }
}

/// All units of a data set, sorted by namespace and offset: 16 bytes each.
///
/// Adjacent samples share a unit up to 64 KiB, so that tracking small samples costs no more than
/// large ones. A sample above 4 MiB has several units, which are kept together. Each file of a
/// plain folder has its own units, whatever its length, since a copy saves opening the file.
/// Neighbouring units may share a page; each copy then contains it.
#[derive(Debug, Clone, Default)]
pub struct Units {
    units: Vec<Unit>,
    /// For each namespace, the index of its first unit; then the total number.
    first: Vec<u32>,
}

impl Units {
    /// The units of a data set's live samples. Visits every sample once.
    pub fn of(directory: &Directory) -> Units {
        let alone = directory.learned().is_some();
        let num_namespaces = usize::from(directory.layout().num_namespaces);
        let mut by_namespace: Vec<Vec<Unit>> = vec![Vec::new(); num_namespaces];
        for chunk in 0..directory.num_chunks() {
            let namespace = directory.chunk(chunk).namespace;
            let units = &mut by_namespace[usize::from(namespace)];
            let extents = directory.samples_in_chunk(chunk).map(|(_, extent)| extent);
            units_of_chunk(extents, alone, units);
        }
        let mut units = Units::default();
        for mut list in by_namespace {
            list.sort_unstable();
            units.first.push(units.units.len() as u32);
            units.units.append(&mut list);
        }
        units.first.push(units.units.len() as u32);
        units
    }

    /// Units of one namespace with these first pages and lengths, for tests and benches.
    pub fn from_pages(pages: impl IntoIterator<Item = (u64, u32)>) -> Units {
        let unit = |(page, pages)| Unit { page, pages, continues: false };
        let mut units: Vec<Unit> = pages.into_iter().map(unit).collect();
        units.sort_unstable();
        let first = vec![0, units.len() as u32];
        Units { units, first }
    }

    /// Number of units.
    pub fn len(&self) -> u32 {
        self.units.len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// The unit with this index.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn get(&self, unit: u32) -> Unit {
        self.units[unit as usize]
    }

    /// Indices of the units of a namespace.
    pub fn of_namespace(&self, namespace: u16) -> Range<u32> {
        let namespace = usize::from(namespace);
        self.first[namespace]..self.first[namespace + 1]
    }

    /// The namespace that a unit lies on.
    pub fn namespace_of(&self, unit: u32) -> u16 {
        (self.first.partition_point(|&first| first <= unit) - 1) as u16
    }

    /// The units of a namespace with bytes in `range`, in ascending order.
    pub fn within(&self, namespace: u16, range: &Range<u64>) -> Range<u32> {
        let all = self.of_namespace(namespace);
        let units = &self.units[all.start as usize..all.end as usize];
        let first = units.partition_point(|unit| unit.end_bytes() <= range.start);
        let last = units.partition_point(|unit| unit.start_bytes() < range.end);
        all.start + first as u32..all.start + last.max(first) as u32
    }

    /// The units that are kept together with `unit`: all those of its sample.
    pub fn together_with(&self, unit: u32) -> Range<u32> {
        let (mut first, mut last) = (unit, unit);
        while first > 0 && self.get(first - 1).continues {
            first -= 1;
        }
        while self.get(last).continues {
            last += 1;
        }
        first..last + 1
    }

    /// Whether a read of `range` needs `unit`: beyond a page that the unit shares with a neighbour,
    /// which the read may mean instead.
    pub fn is_touched(&self, namespace: u16, unit: u32, range: &Range<u64>) -> bool {
        let this = self.get(unit);
        let all = self.of_namespace(namespace);
        let mut own = this.start_bytes()..this.end_bytes();
        if unit > all.start && self.get(unit - 1).end_bytes() > own.start {
            own.start += PAGE_BYTES;
        }
        if unit + 1 < all.end && self.get(unit + 1).start_bytes() < own.end {
            own.end -= PAGE_BYTES;
        }
        if own.start >= own.end {
            own = this.start_bytes()..this.end_bytes();
        }
        range.start < own.end && own.start < range.end
    }

    /// For each sample, by id, the unit in which it begins; `NO_UNIT` if it has no bytes, or if
    /// overlapping chunks leave none.
    pub fn by_sample(&self, directory: &Directory) -> Vec<u32> {
        let mut by_sample = vec![Units::NO_UNIT; directory.num_samples() as usize];
        for chunk in 0..directory.num_chunks() {
            for (SampleId(id), extent) in directory.samples_in_chunk(chunk) {
                if extent.len_bytes == 0 {
                    continue;
                }
                let end = extent.offset_bytes + u64::from(extent.len_bytes);
                let range = extent.offset_bytes..end;
                let within = self.within(extent.namespace, &range);
                // Of two units that share its first page, the second is the sample's, unless the
                // sample does not reach it.
                let mut own = within.clone().filter(|unit| self.holds_begin(*unit, &range));
                // Where chunks overlap, which no import creates, units are not sorted by their
                // ends.
                let any = within.clone().next();
                by_sample[id as usize] = own.next_back().or(any).unwrap_or(Units::NO_UNIT);
            }
        }
        by_sample
    }

    /// No unit.
    pub const NO_UNIT: u32 = u32::MAX;

    fn holds_begin(&self, unit: u32, range: &Range<u64>) -> bool {
        let unit = self.get(unit);
        let end = range.end.min(range.start + unit.len_bytes());
        unit.start_bytes() <= range.start && (end <= unit.end_bytes() || unit.continues)
    }

    /// Hash of the division into units, which an index records.
    pub fn fingerprint(&self) -> u64 {
        let mut sum = u64::from(self.len());
        for unit in &self.units {
            let word = unit.page << 24 ^ u64::from(unit.pages) << 1 ^ u64::from(unit.continues);
            sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        sum
    }
}

fn units_of_chunk(extents: impl Iterator<Item = Extent>, alone: bool, units: &mut Vec<Unit>) {
    let mut run: Option<Range<u64>> = None;
    for extent in extents.filter(|extent| extent.len_bytes > 0) {
        let end = extent.offset_bytes + u64::from(extent.len_bytes);
        let pages = extent.offset_bytes / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        match &mut run {
            Some(run) if !alone && (run.end - run.start) * PAGE_BYTES < SMALL_BYTES => {
                run.end = pages.end;
            }
            _ => push(run.replace(pages), units),
        }
    }
    push(run, units);
}

/// Divides a range of pages into units of at most 4 MiB.
fn push(run: Option<Range<u64>>, units: &mut Vec<Unit>) {
    let Some(mut run) = run else { return };
    while run.start < run.end {
        let pages = (run.end - run.start).min(MAX_UNIT_PAGES);
        let continues = run.start + pages < run.end;
        units.push(Unit { page: run.start, pages: pages as u32, continues });
        run.start += pages;
    }
}

/// Samples share a unit up to this length.
const SMALL_BYTES: u64 = 64 << 10;

/// A unit is held in memory while it is copied.
const MAX_UNIT_PAGES: u64 = (4 << 20) / PAGE_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::DirectoryBuilder;
    use crate::format::{ImageLayout, Pack, Uuid};
    use crate::units::Generation;

    fn cut(extents: &[(u64, u32)], alone: bool) -> Vec<(u64, u32, bool)> {
        let mut units = Vec::new();
        let extent =
            |&(offset_bytes, len_bytes)| Extent { offset_bytes, len_bytes, ..Extent::default() };
        units_of_chunk(extents.iter().map(extent), alone, &mut units);
        units.iter().map(|unit| (unit.page, unit.pages, unit.continues)).collect()
    }

    #[test]
    fn small_neighbours_share_a_unit_and_long_samples_have_several() {
        assert_eq!(
            cut(&[(4096, 30_000), (34_096, 40_000), (74_096, 100)], false),
            [(1, 18, false), (18, 1, false)]
        );
        assert_eq!(
            cut(&[(4096, 100), (8192, 0), (8192, 100)], true),
            [(1, 1, false), (2, 1, false)]
        );
        assert_eq!(cut(&[(0, (4 << 20) + 1)], false), [(0, 1024, true), (1024, 1, false)]);
    }

    /// A sample inside another sample's chunk: units sorted by their starts are then not sorted by
    /// their ends, and a sample may find none.
    ///
    #[test]
    fn samples_of_chunks_that_overlap_have_some_unit_or_none() {
        let layout = ImageLayout::new(Uuid([1; 16]), 64 << 10, Pack::Paged, 1).unwrap();
        for cells in [[1, 1], [1, 2], [2, 1], [3, 3]] {
            let mut builder = DirectoryBuilder::new(layout);
            for (chunk, cell) in cells.into_iter().enumerate() {
                let len = if chunk == 0 { 9 << 20 } else { 100 };
                let name = chunk.to_string();
                builder.add_files(cell, [(name.as_bytes(), len, None)].into_iter()).unwrap();
            }
            let directory = builder.finish(Generation(1), 1).unwrap();
            let units = Units::of(&directory);
            let by_sample = units.by_sample(&directory);
            let is_right = |&unit: &u32| unit < units.len() || unit == Units::NO_UNIT;
            assert!(by_sample.iter().all(is_right), "{cells:?}: {by_sample:?} of {}", units.len());
            (0..units.len()).for_each(|unit| assert!(units.together_with(unit).contains(&unit)));
        }
    }

    #[test]
    fn a_read_touches_what_it_has_more_of_than_a_shared_page() {
        let units = Units::from_pages([(1, 20), (20, 20), (40, 1)]); // page 20 is shared
        let page = |pages: Range<u64>| pages.start * PAGE_BYTES..pages.end * PAGE_BYTES;
        let touched = |pages: Range<u64>| {
            let range = page(pages);
            let within = units.within(0, &range);
            within.filter(|&unit| units.is_touched(0, unit, &range)).collect::<Vec<_>>()
        };
        assert_eq!(touched(0..1), [0_u32; 0]);
        assert_eq!(touched(1..21), [0], "all of the first");
        assert_eq!(touched(20..40), [1], "all of the second");
        assert_eq!(touched(19..22), [0, 1]);
        assert_eq!(touched(39..50), [1, 2]);
        assert_eq!(units.within(0, &page(50..60)), 3..3);
    }
}
