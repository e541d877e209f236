//! The bitmap of a pool's used slots, changed without a lock.

use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// One bit per slot, set while the slot is used.
///
/// Allocates the lowest range that fits, unless threads race, so that long ranges stay free at the end.
pub(super) struct Slots {
    words: Box<[AtomicU64]>,
    num_slots: usize,
    /// An upper bound on the number of free slots: raised before slots are freed, lowered after they are
    /// allocated.
    num_free: AtomicUsize,
    /// A hint for the search: at the last search, no earlier word had a free slot.
    first_word: AtomicUsize,
}

impl Slots {
    pub(super) fn new(num_slots: usize) -> Slots {
        let words: Box<[AtomicU64]> =
            (0..num_slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        if let (Some(last), tail @ 1..) = (words.last(), num_slots % 64) {
            last.store(!0 << tail, Ordering::Relaxed); // bits past the end stay set
        }
        Slots {
            words,
            num_slots,
            num_free: AtomicUsize::new(num_slots),
            first_word: AtomicUsize::new(0),
        }
    }

    pub(super) fn num_slots(&self) -> usize {
        self.num_slots
    }

    /// Number of free slots; may be slightly too high while other threads allocate.
    pub(super) fn num_free(&self) -> usize {
        self.num_free.load(Ordering::Relaxed)
    }

    /// Allocates `count` adjacent slots and returns the first; `None` if no such range is free, or another
    /// thread is trying to claim a part of it.
    pub(super) fn take(&self, count: usize) -> Option<usize> {
        if count == 0 || count > self.num_free() {
            return None;
        }
        let hint = self.first_word.load(Ordering::Relaxed);
        let mut from = hint * 64;
        loop {
            match self.find(from, count) {
                Some(first) if self.claim(first, count) => {
                    self.num_free.fetch_sub(count, Ordering::Relaxed);
                    self.lift_hint(hint, first);
                    return Some(first);
                }
                Some(first) => from = first, // another thread was faster: search again from there
                None if from > 0 => from = 0, // slots freed before the hint, or skipped above
                None => return None,
            }
        }
    }

    /// Allocates the `count` slots starting at `first`, if they exist and are all free.
    pub(super) fn take_at(&self, first: usize, count: usize) -> bool {
        let there = first.checked_add(count).is_some_and(|end| end <= self.num_slots);
        let taken = there && self.claim(first, count);
        if taken {
            self.num_free.fetch_sub(count, Ordering::Relaxed);
        }
        taken
    }

    /// Frees `count` slots starting at `first`, which the caller has allocated.
    pub(super) fn give_back(&self, first: usize, count: usize) {
        self.num_free.fetch_add(count, Ordering::Relaxed);
        for (word, mask) in words_of(first, count) {
            // Release: accesses to the slots happen before those of the next owner.
            let before = self.words[word].fetch_and(!mask, Ordering::Release);
            assert!(before & mask == mask, "slots given back that were not taken");
        }
        self.first_word.fetch_min(first / 64, Ordering::Relaxed);
    }

    /// The first range of `count` free slots at or after slot `from`. Other threads may allocate it
    /// meanwhile.
    fn find(&self, from: usize, count: usize) -> Option<usize> {
        let mut first = from; // start of the current range of free slots
        let mut next = from;
        while next < self.num_slots {
            let bit = next % 64;
            let rest = self.words[next / 64].load(Ordering::Relaxed) >> bit;
            let free = (rest.trailing_zeros() as usize).min(64 - bit);
            next += free;
            if next - first >= count {
                return Some(first);
            }
            if bit + free < 64 {
                next += (rest >> free).trailing_ones() as usize; // skip used slots
                first = next;
            }
        }
        None
    }

    /// Allocates exactly these slots, or nothing if one of them is used.
    fn claim(&self, first: usize, count: usize) -> bool {
        for (done, (word, mask)) in words_of(first, count).enumerate() {
            let claimed =
                self.words[word].fetch_update(Ordering::Acquire, Ordering::Relaxed, |bits| {
                    (bits & mask == 0).then_some(bits | mask)
                });
            if claimed.is_err() {
                for (word, mask) in words_of(first, count).take(done) {
                    self.words[word].fetch_and(!mask, Ordering::Release);
                }
                return false;
            }
        }
        true
    }

    /// Moves the hint past full words, unless another thread has moved it.
    fn lift_hint(&self, hint: usize, taken: usize) {
        let word = taken / 64;
        if word < hint {
            self.first_word.fetch_min(word, Ordering::Relaxed); // the hint was wrong
            return;
        }
        let full = |word: &AtomicU64| word.load(Ordering::Relaxed) == !0;
        if self.words[hint..=word].iter().all(full) {
            // A failure means that another thread has set a newer hint.
            let _ = self.first_word.compare_exchange(
                hint,
                word + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }
}

/// The words that contain the bits `first..first + count`, each with a mask of these bits.
pub(super) fn words_of(first: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / 64..end.div_ceil(64)).map(move |word| {
        let from = first.max(word * 64) % 64;
        let last = (end.min(word * 64 + 64) - 1) % 64;
        (word, u64::MAX << from & u64::MAX >> (63 - last))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slots_past_the_end_are_never_handed_out() {
        let slots = Slots::new(65);
        assert_eq!(slots.take(66), None);
        assert_eq!(slots.take(65), Some(0));
        assert_eq!((slots.take(1), slots.num_free()), (None, 0));
    }

    #[test]
    fn a_run_of_slots_may_cross_words() {
        let slots = Slots::new(256);
        assert_eq!(slots.take(60), Some(0));
        assert_eq!(slots.take(140), Some(60));
        slots.give_back(60, 140);
        assert_eq!((slots.take(196), slots.num_free()), (Some(60), 0));
    }

    #[test]
    fn slots_at_a_given_position_are_taken_if_all_are_free() {
        let slots = Slots::new(200);
        assert!(slots.take_at(100, 50) && !slots.take_at(149, 2) && !slots.take_at(60, 41));
        assert_eq!((slots.take(101), slots.take(100), slots.num_free()), (None, Some(0), 50));
        assert!(slots.take_at(150, 50) && !slots.take_at(199, 2) && !slots.take_at(usize::MAX, 1));
        slots.give_back(100, 50);
        assert_eq!((slots.take(50), slots.num_free()), (Some(100), 0));
    }

    #[test]
    #[should_panic(expected = "not taken")]
    fn giving_a_slot_back_twice_panics() {
        let slots = Slots::new(8);
        slots.give_back(0, 1);
    }

    /// The lowest range of `count` free slots, found by testing each in turn.
    fn by_hand(taken: &[bool], count: usize) -> Option<usize> {
        (0..=taken.len().checked_sub(count)?)
            .find(|&first| taken[first..first + count].iter().all(|taken| !taken))
    }

    proptest! {
        #[test]
        fn the_lowest_run_that_fits_is_taken(
            num_slots in 1usize..300,
            steps in prop::collection::vec((any::<bool>(), 1usize..90, any::<prop::sample::Index>()), 1..200),
        ) {
            let slots = Slots::new(num_slots);
            let mut taken = vec![false; num_slots];
            let mut ranges = Vec::new();
            for (take, count, which) in steps {
                if take || ranges.is_empty() {
                    let first = slots.take(count);
                    prop_assert_eq!(first, by_hand(&taken, count));
                    if let Some(first) = first {
                        taken[first..first + count].fill(true);
                        ranges.push((first, count));
                    }
                } else {
                    let (first, count) = ranges.swap_remove(which.index(ranges.len()));
                    slots.give_back(first, count);
                    taken[first..first + count].fill(false);
                }
                prop_assert_eq!(slots.num_free(), taken.iter().filter(|taken| !**taken).count());
            }
        }
    }
}
