//! The allocator of a tier's address space: ranges of pages, the first that fits.

use std::ops::Range;

/// Allocates ranges of pages.
#[derive(Debug, Clone, Default)]
pub(super) struct PageAllocator {
    /// Free ranges in ascending order, never adjacent.
    free: Vec<Range<u64>>,
    /// Length of the longest free range, cached because it is read more often than it changes.
    pub(super) largest: u64,
    /// The number of free pages, cached for the same reason.
    pub(super) num_free: u64,
}

impl PageAllocator {
    /// An allocator of the pages below `capacity`, all of which are free.
    pub(super) fn new(capacity: u64) -> PageAllocator {
        let all = 0..capacity;
        PageAllocator { free: vec![all], largest: capacity, num_free: capacity }
    }

    /// Allocates the first free range of `pages` pages; returns its first page, or `None` if no free range is as long.
    pub(super) fn take(&mut self, pages: u64) -> Option<u64> {
        let at = self.free.iter().position(|free| pages <= free.end - free.start)?;
        let page = self.free[at].start;
        self.free[at].start += pages;
        if self.free[at].is_empty() {
            self.free.remove(at);
        }
        self.changed();
        Some(page)
    }

    /// Allocates exactly these pages; returns `false` if some of them are not free.
    pub(super) fn take_at(&mut self, pages: Range<u64>) -> bool {
        let has = |free: &Range<u64>| free.start <= pages.start && pages.end <= free.end;
        let Some(at) = self.free.iter().position(has) else { return false };
        let free = self.free[at].clone();
        let around = [free.start..pages.start, pages.end..free.end];
        self.free.splice(at..=at, around.into_iter().filter(|part| !part.is_empty()));
        self.changed();
        true
    }

    /// Frees allocated pages.
    pub(super) fn give_back(&mut self, pages: Range<u64>) {
        let at = self.free.partition_point(|free| free.start < pages.start);
        self.free.insert(at, pages);
        let mut merge = |at: usize| {
            if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
                self.free[at].end = self.free.remove(at + 1).end;
            }
        };
        merge(at);
        if at > 0 {
            merge(at - 1);
        }
        self.changed();
    }

    /// Computes the cached numbers again.
    fn changed(&mut self) {
        let lens = self.free.iter().map(|free| free.end - free.start);
        (self.largest, self.num_free) =
            lens.fold((0, 0), |(largest, sum), len| (len.max(largest), sum + len));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn freed_pages_are_allocated_again_as_one_range() {
        let mut room = PageAllocator::new(10);
        assert_eq!([3, 3, 4, 1].map(|pages| room.take(pages)), [Some(0), Some(3), Some(6), None]);
        room.give_back(0..3);
        room.give_back(6..10);
        assert_eq!(room.largest, 4);
        assert_eq!(room.num_free, 7);
        room.give_back(3..6);
        assert_eq!((room.num_free, room.take(10), room.num_free), (10, Some(0), 0));
    }

    #[test]
    fn pages_taken_at_a_position_must_be_free() {
        let mut room = PageAllocator::new(10);
        assert!(room.take_at(4..6) && !room.take_at(5..7) && !room.take_at(9..11));
        assert!(room.take_at(0..4) && room.take_at(9..10));
        assert_eq!((room.largest, room.take(3), room.take(1)), (3, Some(6), None));
    }

    proptest! {
        #[test]
        fn no_page_is_allocated_twice(steps in prop::collection::vec((1_u64..9, any::<bool>()), 0..80)) {
            let mut room = PageAllocator::new(40);
            let mut taken = Vec::<Range<u64>>::new();
            for (pages, gives_back) in steps {
                if gives_back && !taken.is_empty() {
                    room.give_back(taken.swap_remove(pages as usize % taken.len()));
                } else if let Some(page) = room.take(pages) {
                    let new = page..page + pages;
                    prop_assert!(new.end <= 40);
                    let meets = |old: &Range<u64>| old.start < new.end && new.start < old.end;
                    prop_assert!(!taken.iter().any(meets));
                    taken.push(new);
                }
                let used: u64 = taken.iter().map(|range| range.end - range.start).sum();
                let free: u64 = room.free.iter().map(|range| range.end - range.start).sum();
                prop_assert_eq!(used + free, 40);
            }
        }
    }
}
