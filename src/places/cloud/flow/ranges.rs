//! The ranges to request next: splits objects into ranges, in order, within a memory budget.

use std::collections::VecDeque;
use std::ops::Range;

/// A range of an object; `object` is the object's index in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) object: usize,
    pub(crate) range: Range<u64>,
}

impl Piece {
    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Hands out the ranges of a list of objects in order, while the budget has room for their bytes.
#[derive(Debug)]
pub(crate) struct Ranges {
    lens: VecDeque<u64>,
    /// Index of the first object in `lens`.
    object: usize,
    /// The offset of the next range in this object.
    at: u64,
    range_bytes: u64,
    budget_bytes: u64,
    /// Bytes and number of the ranges handed out and not given back.
    held_bytes: u64,
    held: usize,
}

impl Ranges {
    /// Splits objects with these lengths into ranges of `range_bytes`; starts at offset `at` of the first
    /// object. At most `budget_bytes` are handed out at once, but always one range.
    pub(crate) fn new(
        lens: impl IntoIterator<Item = u64>,
        at: u64,
        range_bytes: u64,
        budget_bytes: u64,
    ) -> Ranges {
        let lens: VecDeque<u64> = lens.into_iter().collect();
        assert!(lens.front().is_none_or(|len| at <= *len), "a place within the object");
        Ranges { lens, object: 0, at, range_bytes, budget_bytes, held_bytes: 0, held: 0 }
    }

    /// The next range. `None`: all have been handed out, or the budget or [`MOST_HELD`] is reached and at
    /// least one range is held. Empty objects have no range.
    pub(crate) fn next(&mut self) -> Option<Piece> {
        while *self.lens.front()? == self.at {
            self.skip_to(self.object + 1);
        }
        let len = (self.lens[0] - self.at).min(self.range_bytes);
        let is_full = self.held_bytes + len > self.budget_bytes || self.held == MOST_HELD;
        if is_full && self.held > 0 {
            return None;
        }
        let piece = Piece { object: self.object, range: self.at..self.at + len };
        self.at += len;
        self.held_bytes += len;
        self.held += 1;
        Some(piece)
    }

    /// Gives back a range of `len` bytes.
    pub(crate) fn give_back(&mut self, len: u64) {
        self.held_bytes -= len;
        self.held -= 1;
    }

    /// Skips the remaining ranges of the objects before `object`.
    pub(crate) fn skip_to(&mut self, object: usize) {
        while self.object < object && self.lens.pop_front().is_some() {
            self.object += 1;
            self.at = 0;
        }
    }
}

/// Maximum ranges handed out at once: small objects need many, and each range costs memory beside its bytes.
const MOST_HELD: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(object: usize, range: Range<u64>) -> Option<Piece> {
        Some(Piece { object, range })
    }

    #[test]
    fn objects_are_cut_into_ranges_in_order_and_empty_ones_have_none() {
        let mut ranges = Ranges::new([0, 25, 0, 10, 3, 0], 0, 10, 1000);
        let expected = [(1, 0..10), (1, 10..20), (1, 20..25), (3, 0..10), (4, 0..3)];
        for (object, range) in expected {
            assert_eq!(ranges.next(), piece(object, range));
        }
        assert_eq!(ranges.next(), None);
    }

    #[test]
    fn a_full_budget_hands_out_nothing_until_something_is_given_back_but_always_one() {
        let mut ranges = Ranges::new([100], 0, 10, 25);
        assert_eq!((ranges.next(), ranges.next()), (piece(0, 0..10), piece(0, 10..20)));
        assert_eq!(ranges.next(), None);
        ranges.give_back(10);
        assert_eq!((ranges.next(), ranges.next()), (piece(0, 20..30), None));
        let mut narrow = Ranges::new([100], 0, 10, 5);
        assert_eq!((narrow.next(), narrow.next()), (piece(0, 0..10), None));
        let mut small = Ranges::new(vec![1; 5000], 0, 10, 1 << 20);
        assert_eq!(std::iter::from_fn(|| small.next()).count(), MOST_HELD);
    }

    #[test]
    fn the_first_object_may_begin_at_any_byte_up_to_its_end() {
        for (at, first) in [(0, piece(0, 0..10)), (15, piece(0, 15..20)), (20, piece(1, 0..5))] {
            let mut ranges = Ranges::new([20, 5], at, 10, 1000);
            assert_eq!(ranges.next(), first, "{at}");
        }
    }

    #[test]
    fn what_is_skipped_is_not_handed_out() {
        let mut ranges = Ranges::new([30, 10, 10], 0, 10, 1000);
        assert_eq!(ranges.next(), piece(0, 0..10));
        ranges.skip_to(2);
        assert_eq!((ranges.next(), ranges.next()), (piece(2, 0..10), None));
    }
}
