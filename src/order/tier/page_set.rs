//! A set of pages of one unit, as one word.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Pages of one unit, bit 0 being its first page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PageSet(pub u64);

impl PageSet {
    /// The empty set.
    pub const NONE: PageSet = PageSet(0);

    /// The pages of `range`, which is within 0..64.
    pub fn range(range: Range<u32>) -> PageSet {
        if range.is_empty() {
            return PageSet::NONE;
        }
        PageSet(u64::MAX >> (64 - (range.end - range.start).min(64)) << range.start)
    }

    /// Returns whether the set has no pages.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of pages.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The intersection with `other`.
    pub fn and(self, other: PageSet) -> PageSet {
        PageSet(self.0 & other.0)
    }

    /// The pages that are not in `other`.
    pub fn without(self, other: PageSet) -> PageSet {
        PageSet(self.0 & !other.0)
    }

    /// The union with `other`.
    pub fn with(self, other: PageSet) -> PageSet {
        PageSet(self.0 | other.0)
    }

    /// The contiguous ranges of the set, in ascending order.
    pub fn runs(self) -> impl Iterator<Item = Range<u32>> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let start = rest.trailing_zeros();
            let len = (rest >> start).trailing_ones();
            let run = start..start + len;
            rest &= !PageSet::range(run.clone()).0;
            Some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_and_sets_of_pages() {
        let pages = PageSet::range(3..6);
        assert_eq!((pages, pages.len()), (PageSet(0b11_1000), 3));
        assert_eq!(
            (PageSet::range(0..64), PageSet::range(9..9)),
            (PageSet(u64::MAX), PageSet::NONE)
        );
        assert_eq!(pages.and(PageSet(0b1000)), PageSet(0b1000));
        assert_eq!(pages.without(PageSet(0b1000)), PageSet(0b11_0000));
        assert_eq!(pages.with(PageSet(1)), PageSet(0b11_1001));
        assert!(PageSet::NONE.is_empty() && PageSet::NONE.runs().next().is_none());
    }

    proptest! {
        #[test]
        fn sets_of_pages_are_their_runs(bits: u64) {
            let runs: Vec<_> = PageSet(bits).runs().collect();
            let all = runs.iter().fold(PageSet::NONE, |all, run| all.with(PageSet::range(run.clone())));
            prop_assert_eq!(all, PageSet(bits));
            prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
