//! A set of ids below a limit, as a bitmap.

use std::ops::Range;

/// A set of ids, all below its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdSet {
    words: Vec<u64>,
    limit: u64,
}

impl IdSet {
    /// The empty set of ids below `limit`.
    pub fn new(limit: u64) -> IdSet {
        IdSet { words: vec![0; limit.div_ceil(64) as usize], limit }
    }

    /// The set of all ids below `limit`.
    pub fn full(limit: u64) -> IdSet {
        let mut words = vec![!0; limit.div_ceil(64) as usize];
        if let (Some(last), tail @ 1..) = (words.last_mut(), limit % 64) {
            *last = !0 >> (64 - tail);
        }
        IdSet { words, limit }
    }

    /// The limit: all ids of the set are below it.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Adds `id`; returns whether it is new.
    ///
    /// # Panics
    /// If `id` is not below the limit.
    pub fn insert(&mut self, id: u64) -> bool {
        assert!(id < self.limit, "id {id} of a set of ids below {}", self.limit);
        let is_new = !self.contains(id);
        self.words[(id / 64) as usize] |= 1 << (id % 64);
        is_new
    }

    /// Returns whether `id` is in the set.
    pub fn contains(&self, id: u64) -> bool {
        let word = self.words.get((id / 64) as usize);
        word.is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Removes `ids`, a range that must not exceed the limit.
    pub fn remove_range(&mut self, ids: Range<u64>) {
        by_word(ids).for_each(|(word, bits)| self.words[word] &= !bits);
    }

    /// Removes `id`, which must be below the limit.
    pub(crate) fn remove(&mut self, id: u64) {
        self.words[(id / 64) as usize] &= !(1 << (id % 64));
    }

    /// Removes all ids of `other`, a set with the same limit.
    pub(crate) fn remove_all(&mut self, other: &IdSet) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
    }

    /// The number of ids.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The ids, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            Ones(word).map(move |bit| index as u64 * 64 + u64::from(bit))
        })
    }

    /// The set as ascending ranges with gaps between them.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for id in self.iter() {
            match ranges.last_mut() {
                Some(range) if range.end == id => range.end += 1,
                _ => ranges.push(id..id + 1),
            }
        }
        ranges
    }

    /// Adds `ids`, a range that must not exceed the limit.
    pub(crate) fn insert_range(&mut self, ids: Range<u64>) {
        by_word(ids).for_each(|(word, bits)| self.words[word] |= bits);
    }

    /// The bitmap: id `i` is bit `i % 64`, counted from the least significant, of word `i / 64`. Bits past the limit
    /// are 0.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }
}

/// Iterates over the positions of the set bits of a word, ascending.
pub(crate) struct Ones(pub(crate) u64);

impl Iterator for Ones {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (bit < 64).then_some(bit)
    }
}

/// The 64-bit words of a bitmap that contain `ids`: index of each word, and mask of the ids' bits in it.
pub fn by_word(ids: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    (ids.start / 64..ids.end.div_ceil(64)).map(move |word| {
        // An empty range may touch one word, without bits.
        let first = ids.start.max(word * 64) - word * 64;
        let end = ids.end.min((word + 1) * 64) - word * 64;
        let bits = if first < end { (!0 >> (64 - (end - first))) << first } else { 0 };
        (word as usize, bits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_set_holds_what_was_put_into_it(
            limit in 1u64..500, ids in prop::collection::btree_set(0u64..500, 0..200), cut in 0u64..500
        ) {
            let mut model: BTreeSet<u64> = ids.into_iter().filter(|id| *id < limit).collect();
            let mut set = IdSet::new(limit);
            model.iter().for_each(|id| assert!(set.insert(*id)));
            prop_assert!(set.iter().eq(model.iter().copied()));
            let mut back = IdSet::new(limit);
            set.ranges().into_iter().for_each(|range| back.insert_range(range));
            prop_assert_eq!(&back, &set);
            let cut = cut.min(limit)..limit.min(cut + 100);
            cut.clone().for_each(|id| set.remove(id));
            model.retain(|id| !cut.contains(id));
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!(set.count(), model.len() as u64);
            let mut others = IdSet::full(limit);
            others.remove_all(&set);
            prop_assert_eq!(others.count() + set.count(), limit);
            prop_assert!((0..limit + 70).all(|id| set.contains(id) == model.contains(&id)));
        }
    }
}
