//! Portions: the pages of a unit that a plan keeps or omits together.
//!
//! Samples that share a unit are not read equally often, so a plan chooses among them. The samples that begin in
//! one page form a portion, with all pages up to their end. The last page of a portion may also be the first page
//! of the next portion. A sample of at most a page may begin in a page with other samples and end in the next page.
//! That next page is not added to the portion if samples begin there. A unit of one sample is one portion, and so is
//! every unit of a data set without portions. Of units that are kept together, a plan names only the first one's
//! portion.

use super::PageSet;

/// The start and the extent of all portions: 20 bytes per unit.
#[derive(Debug, Clone, Default)]
pub(super) struct Portions {
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
    pub(super) fn new(
        len: u32,
        samples: impl Iterator<Item = (u32, PageSet, bool)>,
    ) -> Option<Portions> {
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
    pub(super) fn is_continued(&self, unit: u32, page: u32) -> bool {
        self.continued[unit as usize].0 >> page & 1 == 1
    }

    /// The number of portions.
    pub(super) fn len(&self) -> u32 {
        self.first.last().copied().unwrap_or(0)
    }

    /// The last portion of `unit` that begins in `page` or before.
    pub(super) fn at(&self, unit: u32, page: u32) -> u32 {
        let begun = self.starts[unit as usize].and(PageSet::range(0..page + 1));
        self.first[unit as usize] + begun.len() - 1
    }

    /// The unit of a portion, and its pages in the unit.
    pub(super) fn get(&self, portion: u32) -> (u32, PageSet) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
