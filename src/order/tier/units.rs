//! Units: the ranges of pages of a data set that each get one location in a tier; and portions: the pages of a unit
//! that a plan keeps or omits together.

use std::ops::Range;

use super::{PAGE_BYTES, PageSet};
use dlfs_base::units::SampleId;
use dlfs_format::directory::Directory;
use dlfs_format::format::Extent;

/// At most 64 contiguous pages of a namespace, whose copies have one location: one word has a bit for each page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// First page on its namespace.
    pub page: u64,
    /// The first of the units that are kept together with this one: all or none.
    first_together: u32,
    /// Number of pages.
    pages: u8,
    /// True if it belongs to one sample, which has units of its own and is kept whole.
    pub is_one_sample: bool,
    /// True if its first sample begins in the last page of the previous unit.
    begins_before: bool,
}

impl Unit {
    /// Number of pages, at most 64.
    pub fn pages(&self) -> u32 {
        self.pages.into()
    }

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

    /// The set of all its pages.
    pub fn all(&self) -> PageSet {
        PageSet::range(0..self.pages())
    }

    /// Its pages that have bytes in `range`.
    pub fn pages_in(&self, range: &Range<u64>) -> PageSet {
        let from = range.start.max(self.start_bytes()) - self.start_bytes();
        let to = range.end.clamp(self.start_bytes(), self.end_bytes()) - self.start_bytes();
        PageSet::range((from / PAGE_BYTES) as u32..to.div_ceil(PAGE_BYTES) as u32)
    }
}

/// All units of a data set, sorted by namespace and offset: 16 bytes per unit, and 4 for the search.
///
/// Adjacent small samples share a unit until it has 64 KiB or more, so that tracking small samples costs as little as
/// tracking large ones. A sample of 64 KiB or more has its own units, which are kept together. Each file of a plain
/// folder also has its own units, whatever its length, since a copy saves opening the file. Units do not overlap: a
/// page with bytes of two units belongs to the first.
#[derive(Debug, Clone, Default)]
pub struct Units {
    units: Vec<Unit>,
    /// For each namespace, the index of its first unit; then the total number.
    first: Vec<u32>,
    /// For each namespace, the sections that speed up the search for a page's unit.
    sections: Vec<Sections>,
    /// The long samples of a plain folder, by ascending unit.
    long: Vec<LongSample>,
    /// The portions that plans choose from. `None`: each unit is one portion, since no plans are made, no unit is of
    /// small samples, or there would be 2^32 portions or more.
    portions: Option<Portions>,
}

/// A sample that a tier in a folder keeps as a separate file: a file of a plain folder longer than 16 MiB that shares
/// no page with another sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongSample {
    /// The first of its units.
    pub unit: u32,
    /// Its first page on the namespace.
    pub page: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
}

/// A namespace divided into sections of equal length, about as many as it has units. A random read then finds its
/// unit without a binary search over all units, in which each step would be a cache miss.
#[derive(Debug, Clone, Default)]
struct Sections {
    /// Logarithm of a section's length in pages.
    shift: u32,
    /// For each section, the index of the first unit that ends after the section's start.
    first: Vec<u32>,
}

impl Sections {
    /// The sections of a namespace with these units; `base` is the index of the first unit.
    fn of(units: &[Unit], base: u32) -> Sections {
        let end = |unit: &Unit| unit.page + u64::from(unit.pages);
        let last = units.last().map_or(0, end);
        let shift = (0..64).find(|shift| last >> shift <= units.len() as u64).unwrap_or(63);
        let mut unit = 0;
        let first = (0..last.div_ceil(1 << shift)).map(|section| {
            unit += units[unit..].iter().take_while(|unit| end(unit) <= section << shift).count();
            base + unit as u32
        });
        Sections { first: first.collect(), shift }
    }

    /// The units among which to search the first one that ends after `page`. If none of them does, the unit after them
    /// is the first; `all` are the units of the namespace.
    fn around(&self, page: u64, all: &Range<u32>) -> Range<u32> {
        let section = usize::try_from(page >> self.shift).unwrap_or(usize::MAX);
        let at = |section: usize| self.first.get(section).copied().unwrap_or(all.end);
        at(section)..at(section.saturating_add(1))
    }
}

impl Units {
    /// The units of a data set's live samples. Visits every sample once.
    pub fn of(directory: &Directory) -> Units {
        let alone = directory.learned().is_some();
        let num_namespaces = usize::from(directory.layout().num_namespaces);
        let mut by_namespace: Vec<Vec<Run>> = vec![Vec::new(); num_namespaces];
        let mut long = Vec::new();
        for chunk in 0..directory.num_chunks() {
            let namespace = directory.chunk(chunk).namespace;
            let runs = &mut by_namespace[usize::from(namespace)];
            let extents = || directory.samples_in_chunk(chunk).map(|(_, extent)| extent);
            runs_of_chunk(extents(), alone, runs);
            if alone {
                long.extend(extents().filter(|extent| u64::from(extent.len_bytes) > LONG_BYTES));
            }
        }
        Units::from_runs(by_namespace).with_long(&long)
    }

    /// Adds the portions that plans choose from. Visits every sample once.
    #[must_use]
    pub fn with_portions(mut self, directory: &Directory) -> Units {
        if !self.has_small_samples() {
            return self;
        }
        let chunks =
            (0..directory.num_chunks()).flat_map(|chunk| directory.samples_in_chunk(chunk));
        let samples = chunks.filter_map(|(_, extent)| {
            let (unit, pages) = self.place_of(&extent)?;
            let is_short = u64::from(extent.len_bytes) <= PAGE_BYTES;
            let is_small = !self.get(unit).is_one_sample && !pages.is_empty();
            is_small.then_some((unit, pages, is_short))
        });
        let large = (0..self.len()).filter(|&unit| self.get(unit).is_one_sample);
        let large = large.map(|unit| (unit, self.get(unit).all(), false));
        self.portions = Portions::new(self.len(), large.chain(samples));
        self
    }

    /// Records the long samples, except those that share a page with another sample.
    fn with_long(mut self, extents: &[Extent]) -> Units {
        let of = |extent: &Extent| {
            let start = extent.offset_bytes;
            let len_bytes = u64::from(extent.len_bytes);
            let within = self.within(extent.namespace, &(start..start + len_bytes));
            let together = self.together_with(within.start);
            let first = self.get(within.start);
            let last = self.get(within.end - 1);
            let is_alone = start == first.start_bytes()
                && within == together
                && last.end_bytes() - start == len_bytes.next_multiple_of(PAGE_BYTES);
            is_alone.then_some(LongSample { unit: within.start, page: first.page, len_bytes })
        };
        let mut long: Vec<LongSample> = extents.iter().filter_map(of).collect();
        long.sort_unstable_by_key(|long| long.unit);
        self.long = long;
        self
    }

    /// The long samples, in ascending order.
    pub fn long(&self) -> &[LongSample] {
        &self.long
    }

    /// The long sample that the unit belongs to.
    pub fn long_of(&self, unit: u32) -> Option<&LongSample> {
        let first = self.get(unit).first_together;
        let at = self.long.binary_search_by_key(&first, |long| long.unit).ok()?;
        self.long.get(at)
    }

    /// Units of one namespace for samples with these first pages and lengths in pages, each with units of its own. For
    /// tests and benches.
    pub fn from_pages(pages: impl IntoIterator<Item = (u64, u32)>) -> Units {
        Units::of_runs(pages, true)
    }

    /// As [`Units::from_pages`], for long samples of a plain folder with these first pages and lengths in bytes.
    pub fn of_long_samples(samples: impl IntoIterator<Item = (u64, u64)>) -> Units {
        let mut runs = Vec::new();
        let mut extents = Vec::new();
        for (page, len_bytes) in samples {
            let pages = page..page + len_bytes.div_ceil(PAGE_BYTES);
            runs.push((pages, true));
            let offset_bytes = page * PAGE_BYTES;
            let len_bytes = len_bytes as u32;
            extents.push(Extent { offset_bytes, len_bytes, ..Extent::default() });
        }
        Units::from_runs(vec![runs]).with_long(&extents)
    }

    /// Units of one namespace for ranges of small samples with these first pages and lengths in pages. For tests and
    /// benches.
    pub fn of_small_samples(pages: impl IntoIterator<Item = (u64, u32)>) -> Units {
        Units::of_runs(pages, false)
    }

    fn of_runs(pages: impl IntoIterator<Item = (u64, u32)>, is_one_sample: bool) -> Units {
        let pages = pages.into_iter().map(|(page, pages)| page..page + u64::from(pages));
        Units::from_runs(vec![pages.map(|pages| (pages, is_one_sample)).collect()])
    }

    fn from_runs(by_namespace: Vec<Vec<Run>>) -> Units {
        let mut units = Units::default();
        for mut runs in by_namespace {
            runs.sort_unstable_by_key(|(pages, _)| (pages.start, pages.end));
            units.first.push(units.units.len() as u32);
            let mut end = 0;
            for (pages, is_one_sample) in runs {
                let rest = pages.start.max(end)..pages.end;
                end = end.max(pages.end);
                divide(rest.clone(), is_one_sample, rest.start > pages.start, &mut units.units);
            }
            let base = *units.first.last().expect("it was just pushed");
            units.sections.push(Sections::of(&units.units[base as usize..], base));
        }
        units.first.push(units.units.len() as u32);
        units
    }

    /// Number of units.
    pub fn len(&self) -> u32 {
        self.units.len() as u32
    }

    /// Returns whether there are no units.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Returns whether any unit is of small samples: then some pages of a unit may be kept without the others.
    pub(crate) fn has_small_samples(&self) -> bool {
        self.units.iter().any(|unit| !unit.is_one_sample)
    }

    /// The number of pages of all units.
    pub fn num_pages(&self) -> u64 {
        self.units.iter().map(|unit| u64::from(unit.pages)).sum()
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
        let page = range.start / PAGE_BYTES;
        let around = self.sections[usize::from(namespace)].around(page, &all);
        let units = &self.units[around.start as usize..around.end as usize];
        let first =
            around.start as usize + units.partition_point(|unit| unit.end_bytes() <= range.start);
        let units = &self.units[first..all.end as usize];
        let len = units.iter().take_while(|unit| unit.start_bytes() < range.end).count();
        first as u32..(first + len) as u32
    }

    /// The units that are kept together with `unit`: all units of its sample, or only itself if it is of small samples.
    pub fn together_with(&self, unit: u32) -> Range<u32> {
        let first = self.get(unit).first_together;
        let behind = &self.units[unit as usize..];
        let len = behind.partition_point(|unit| unit.first_together == first) as u32;
        first..unit + len
    }

    /// Returns whether `pages` is only the last page of a unit of several pages, and the next unit's first sample
    /// begins in it: a reader of this page may want that sample.
    pub fn is_border(&self, unit: u32, pages: PageSet) -> bool {
        let this = self.get(unit);
        let next = self.units.get(unit as usize + 1);
        let is_shared = next.is_some_and(|next| next.begins_before);
        is_shared && this.pages > 1 && pages.0 == 1 << (this.pages - 1)
    }

    /// The previous unit, if the first sample of `unit` begins in that unit's last page.
    pub fn border_of(&self, unit: u32) -> Option<u32> {
        self.get(unit).begins_before.then(|| unit.checked_sub(1)).flatten()
    }

    /// Number of portions.
    pub fn num_portions(&self) -> u32 {
        self.portions.as_ref().map_or(self.len(), Portions::len)
    }

    /// The portion of a page of `unit`: the last one that begins in this page or before.
    pub fn portion_at(&self, unit: u32, page: u32) -> u32 {
        self.portions.as_ref().map_or(unit, |portions| portions.at(unit, page))
    }

    /// The portions of a unit.
    pub fn portions_of(&self, unit: u32) -> Range<u32> {
        self.portion_at(unit, 0)..self.portion_at(unit, MAX_UNIT_PAGES as u32 - 1) + 1
    }

    /// The unit of a portion, and its pages in that unit: all pages, if the unit is of one sample.
    ///
    /// # Panics
    /// If the portion is out of range.
    pub fn portion(&self, portion: u32) -> (u32, PageSet) {
        match &self.portions {
            Some(portions) => {
                let (unit, pages) = portions.get(portion);
                (unit, pages.and(self.get(unit).all()))
            }
            None => (portion, self.get(portion).all()),
        }
    }

    /// Returns whether the portion of the previous page continues in this page of `unit`, even if another portion
    /// begins in it.
    pub fn is_continued(&self, unit: u32, page: u32) -> bool {
        self.portions.as_ref().is_some_and(|portions| portions.is_continued(unit, page))
    }

    /// For each sample, by id, the portion of its first page in its unit. `NO_UNIT` if the sample is deleted or empty,
    /// or if overlapping chunks leave it without a unit.
    pub fn by_sample(&self, directory: &Directory) -> Vec<u32> {
        let mut by_sample = vec![Units::NO_UNIT; directory.num_samples() as usize];
        for chunk in 0..directory.num_chunks() {
            for (SampleId(id), extent) in directory.samples_in_chunk(chunk) {
                if let Some((unit, pages)) = self.place_of(&extent) {
                    let first = pages.0.trailing_zeros().min(self.get(unit).pages() - 1);
                    by_sample[id as usize] = self.portion_at(unit, first);
                }
            }
        }
        by_sample
    }

    /// The unit of a sample, and the sample's pages in it; `None` if it is empty or in no unit. A sample that begins in
    /// the last page of one unit and continues in the next unit belongs to the next.
    fn place_of(&self, extent: &Extent) -> Option<(u32, PageSet)> {
        if extent.len_bytes == 0 {
            return None;
        }
        let range = extent.offset_bytes..extent.offset_bytes + u64::from(extent.len_bytes);
        let mut units = self.within(extent.namespace, &range);
        let first = units.next()?;
        let second = units.next().filter(|&second| self.get(second).begins_before);
        let unit = second.unwrap_or(first);
        Some((unit, self.get(unit).pages_in(&range)))
    }

    /// No unit.
    pub(crate) const NO_UNIT: u32 = u32::MAX;

    /// A hash of the division into units, recorded by an index.
    pub fn fingerprint(&self) -> u64 {
        let mut sum = u64::from(self.len());
        for unit in &self.units {
            let word = unit.page << 24 ^ u64::from(unit.pages) << 1 ^ u64::from(unit.is_one_sample);
            sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        sum
    }
}

/// The portions of all units: 20 bytes per unit.
///
/// Samples that share a unit are not read equally often, so a plan chooses among them. The samples that begin in
/// one page form a portion, with all pages up to their end. The last page of a portion may also be the first page
/// of the next portion. A sample of at most a page may begin in a page with other samples and end in the next page.
/// That next page is not added to the portion if samples begin there. A unit of one sample is one portion, and so is
/// every unit of a data set without portions. Of units that are kept together, a plan names only the first one's
/// portion.
#[derive(Debug, Clone, Default)]
struct Portions {
    /// For each unit, the number of portions before it; then the total number.
    first: Vec<u32>,
    /// For each unit, the pages in which portions begin: always the first page, and others.
    starts: Vec<PageSet>,
    /// For each unit, the pages in which a portion of the page before continues.
    continued: Vec<PageSet>,
}

impl Portions {
    /// Portions of `len` units with these samples. Each sample is given by its unit, its pages in the unit, and whether
    /// it is at most a page long; the samples of a unit are in ascending order. `None` if there are 2^32 portions or
    /// more.
    fn new(len: u32, samples: impl Iterator<Item = (u32, PageSet, bool)>) -> Option<Portions> {
        let mut starts = vec![PageSet::NONE; len as usize];
        let mut continued = starts.clone();
        let mut all = starts.clone();
        for (unit, pages, is_short) in samples {
            all[unit as usize] = all[unit as usize].with(pages);
            let starts = &mut starts[unit as usize];
            let first = PageSet(pages.0 & pages.0.wrapping_neg());
            let has_others = !starts.and(first).is_empty();
            *starts = starts.with(first);
            if !(has_others && is_short) {
                let continued = &mut continued[unit as usize];
                *continued = continued.with(pages.without(first));
            }
        }
        let mut first = vec![0_u32];
        for ((starts, continued), all) in starts.iter_mut().zip(&mut continued).zip(all) {
            *starts = starts.with(PageSet(1));
            // A page in which no sample begins would not be kept by any plan.
            *continued = continued.with(all.without(*starts));
            first.push(first.last()?.checked_add(starts.len())?);
        }
        Some(Portions { first, starts, continued })
    }

    /// Returns whether the portion of the page before continues in `page` of `unit`.
    fn is_continued(&self, unit: u32, page: u32) -> bool {
        self.continued[unit as usize].0 >> page & 1 == 1
    }

    /// The number of portions.
    fn len(&self) -> u32 {
        self.first.last().copied().unwrap_or(0)
    }

    /// The last portion of `unit` that begins in `page` or before.
    fn at(&self, unit: u32, page: u32) -> u32 {
        let begun = self.starts[unit as usize].and(PageSet::range(0..page + 1));
        self.first[unit as usize] + begun.len() - 1
    }

    /// The unit of a portion, and its pages in the unit.
    fn get(&self, portion: u32) -> (u32, PageSet) {
        let unit = self.first.partition_point(|&first| first <= portion) - 1;
        let without_first = |starts: u64, _| starts & (starts - 1);
        let starts = (self.first[unit]..portion).fold(self.starts[unit].0, without_first);
        let start = starts.trailing_zeros();
        let next = (starts & (starts - 1)).trailing_zeros();
        let behind = PageSet::range(start + 1..64).without(self.continued[unit]);
        let end = behind.0.trailing_zeros().min(next + 1).min(64);
        (unit as u32, PageSet::range(start..end))
    }
}

/// Contiguous pages, and whether they belong to one large sample.
type Run = (Range<u64>, bool);

/// Appends the runs of a chunk's samples to `runs`. With `alone`, each sample is a run, whatever its length; otherwise
/// adjacent small samples share runs.
fn runs_of_chunk(extents: impl Iterator<Item = Extent>, alone: bool, runs: &mut Vec<Run>) {
    let mut small: Option<Range<u64>> = None;
    let end = |small: &mut Option<Range<u64>>, runs: &mut Vec<Run>| {
        runs.extend(small.take().map(|pages| (pages, false)));
    };
    for extent in extents.filter(|extent| extent.len_bytes > 0) {
        let last = extent.offset_bytes + u64::from(extent.len_bytes);
        let pages = extent.offset_bytes / PAGE_BYTES..last.div_ceil(PAGE_BYTES);
        if alone || u64::from(extent.len_bytes) >= SMALL_BYTES {
            end(&mut small, runs);
            runs.push((pages, true));
            continue;
        }
        match &mut small {
            Some(run) if (run.end - run.start) * PAGE_BYTES < SMALL_BYTES => run.end = pages.end,
            _ => {
                end(&mut small, runs);
                small = Some(pages);
            }
        }
    }
    end(&mut small, runs);
}

/// Divides a range of pages into units, which are kept together if they belong to one sample. `begins_before`: the
/// first sample begins in the page before.
fn divide(pages: Range<u64>, is_one_sample: bool, begins_before: bool, units: &mut Vec<Unit>) {
    let first = units.len() as u32;
    let mut page = pages.start;
    while page < pages.end {
        let len = (pages.end - page).min(MAX_UNIT_PAGES);
        let first_together = if is_one_sample { first } else { units.len() as u32 };
        units.push(Unit {
            page,
            first_together,
            pages: len as u8,
            is_one_sample,
            begins_before: begins_before && page == pages.start,
        });
        page += len;
    }
}

/// A unit with this many bytes takes no further small sample; samples from this length on have their own units.
const SMALL_BYTES: u64 = 64 << 10;

/// Files of a plain folder above this length are long samples.
const LONG_BYTES: u64 = 16 << 20;

/// One page for each bit of a word.
pub(super) const MAX_UNIT_PAGES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::units::Generation;
    use dlfs_format::directory::DirectoryBuilder;
    use dlfs_format::format::{ImageLayout, Pack, Uuid};
    use proptest::prelude::*;

    fn cut(extents: &[(u64, u32)], alone: bool) -> Vec<(u64, u32, bool)> {
        let mut runs = Vec::new();
        let extent =
            |&(offset_bytes, len_bytes)| Extent { offset_bytes, len_bytes, ..Extent::default() };
        runs_of_chunk(extents.iter().map(extent), alone, &mut runs);
        let units = Units::from_runs(vec![runs]);
        units.units.iter().map(|unit| (unit.page, unit.pages(), unit.is_one_sample)).collect()
    }

    #[test]
    fn small_neighbours_share_a_unit_and_large_samples_have_their_own() {
        assert_eq!(
            cut(&[(4096, 30_000), (34_096, 40_000), (74_096, 100)], false),
            [(1, 18, false)],
            "the third lies in the last page of the second"
        );
        assert_eq!(
            cut(&[(4096, 30_000), (34_096, 40_000), (74_096, 8_000)], false),
            [(1, 18, false), (19, 2, false)]
        );
        assert_eq!(cut(&[(4096, 100), (8192, 0), (8192, 100)], true), [(1, 1, true), (2, 1, true)]);
        assert_eq!(
            cut(&[(0, 100), (4096, (256 << 10) + 1)], false),
            [(0, 1, false), (1, 64, true), (65, 1, true)]
        );
    }

    #[test]
    fn long_samples_are_found_by_any_of_their_units() {
        let units = Units::of_long_samples([(1, 300_000), (100, (64 << 12) + 1)]);
        let first = LongSample { unit: 0, page: 1, len_bytes: 300_000 };
        let second = LongSample { unit: 2, page: 100, len_bytes: (64 << 12) + 1 };
        assert_eq!(units.long(), [first, second]);
        let found = [0, 1, 2, 3].map(|unit| units.long_of(unit).copied());
        assert_eq!(found, [Some(first), Some(first), Some(second), Some(second)]);
        assert_eq!(Units::from_pages([(1, 74)]).long_of(1), None);
        let shared = Units::from_pages([(0, 2), (1, 70)]);
        let extent = Extent { offset_bytes: 4096, len_bytes: 70 << 12, ..Extent::default() };
        assert_eq!(shared.with_long(&[extent]).long(), [], "its first page is another's");
    }

    #[test]
    fn units_of_one_sample_are_kept_together() {
        let units = Units::from_pages([(0, 1), (1, 130), (131, 64), (200, 3)]);
        let together: Vec<_> = (0..units.len()).map(|unit| units.together_with(unit)).collect();
        assert_eq!(together, [0..1, 1..4, 1..4, 1..4, 4..5, 5..6]);
        assert_eq!(units.num_pages(), 198);
    }

    /// A sample inside another sample's chunk: the units still do not overlap, and a sample may have no unit.
    #[test]
    fn samples_of_overlapping_chunks_have_one_unit_or_none() {
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
    fn a_page_of_two_units_belongs_to_the_first() {
        let units = Units::from_pages([(1, 20), (20, 20), (40, 1)]); // page 20 is shared
        let starts: Vec<_> =
            (0..3).map(|unit| (units.get(unit).page, units.get(unit).pages())).collect();
        assert_eq!(starts, [(1, 20), (21, 19), (40, 1)]);
        let bytes = |pages: Range<u64>| pages.start * PAGE_BYTES..pages.end * PAGE_BYTES;
        assert_eq!(units.within(0, &bytes(0..1)), 0..0);
        assert_eq!(units.within(0, &bytes(20..40)), 0..2);
        assert_eq!(units.within(0, &bytes(50..60)), 3..3);
        let last = units.get(0).pages_in(&bytes(20..40));
        assert_eq!((last, last.len()), (PageSet(1 << 19), 1));
        assert!(units.is_border(0, last) && !units.is_border(0, units.get(0).all()));
        assert!(!units.is_border(1, PageSet(1 << 18)), "the next begins in a page of its own");
        assert_eq!([0, 1, 2].map(|unit| units.border_of(unit)), [None, Some(0), None]);
        let extent = |page: u64, len_bytes| Extent {
            offset_bytes: page * PAGE_BYTES + 100,
            len_bytes,
            ..Extent::default()
        };
        let of_sample = |page, len| units.place_of(&extent(page, len)).map(|(unit, _)| unit);
        assert_eq!(
            [of_sample(20, 5000), of_sample(20, 9), of_sample(60, 9)],
            [Some(1), Some(0), None]
        );
    }

    proptest! {
        #[test]
        fn units_do_not_overlap_and_have_every_page(
            samples in prop::collection::vec((0_u64..400, 1_u32..200), 0..20),
        ) {
            let units = Units::from_pages(samples.iter().copied());
            prop_assert!(units.units.windows(2).all(|pair| pair[0].end_bytes() <= pair[1].start_bytes()));
            for start in 0..700 {
                let range = start * PAGE_BYTES / 2..(start + 7) * PAGE_BYTES / 2;
                let is_in = |unit: &Unit| {
                    unit.start_bytes() < range.end && range.start < unit.end_bytes()
                };
                let before = units.units.iter().take_while(|unit| unit.end_bytes() <= range.start);
                let first = before.count() as u32;
                let len = units.units.iter().filter(|unit| is_in(unit)).count() as u32;
                prop_assert_eq!(units.within(0, &range), first..first + len);
            }
            for (page, pages) in samples {
                for page in page..page + u64::from(pages) {
                    let range = page * PAGE_BYTES..(page + 1) * PAGE_BYTES;
                    let within = units.within(0, &range);
                    prop_assert_eq!(within.len(), 1);
                    prop_assert_eq!(units.get(within.start).pages_in(&range).len(), 1);
                }
            }
        }
    }

    fn portions(samples: &[(u32, u32)]) -> Vec<PageSet> {
        let samples = samples.iter().map(|&(start, len)| {
            (0, PageSet::range(start / 4096..(start + len).div_ceil(4096)), len <= 4096)
        });
        let portions = Portions::new(1, samples).unwrap();
        let all: Vec<PageSet> =
            (0..portions.len()).map(|portion| portions.get(portion).1).collect();
        for (portion, pages) in (0..).zip(&all) {
            assert_eq!(portions.at(0, pages.0.trailing_zeros()), portion);
        }
        all
    }

    #[test]
    fn a_portion_has_all_pages_of_the_samples_that_begin_in_its_first() {
        let aligned: Vec<(u32, u32)> = (0..16).map(|page| (page * 4096, 4096)).collect();
        assert_eq!(portions(&aligned), (0..16).map(|page| PageSet(1 << page)).collect::<Vec<_>>());
        // A page with bytes of two samples belongs to both.
        let tight: Vec<(u32, u32)> = (0..3).map(|nth| (nth * 6_000, 6_000)).collect();
        assert_eq!(portions(&tight), [PageSet(0b11), PageSet(0b110), PageSet(0b1_1100)]);
        let gap = [(0, 9_000), (20_480, 100)];
        assert_eq!(portions(&gap), [PageSet(0b111), PageSet(1 << 5)], "pages of none are not kept");
    }

    #[test]
    fn a_short_sample_among_others_is_not_worth_another_page() {
        let tiny: Vec<(u32, u32)> = (0..12).map(|nth| (nth * 1_000, 1_000)).collect();
        assert_eq!(portions(&tiny), [PageSet(1), PageSet(0b10), PageSet(0b100)]);
        let longer = [(0, 1_000), (1_000, 9_000), (10_000, 100)];
        assert_eq!(portions(&longer), [PageSet(0b111), PageSet(0b100)]);
        let last = [(0, 1_000), (1_000, 4_000), (8_192, 100)];
        assert_eq!(portions(&last), [PageSet(0b11), PageSet(0b100)], "no page is left out by all");
    }
}
