//! Sets of numbers below a limit, as bitmaps: [`IdSet`] can be changed; [`DeletedSet`], the deleted ids or slots of a
//! directory, cannot, and has counts for fast rank and select.

use std::ops::Range;
use std::sync::Arc;

use zerocopy::little_endian::U64;

use crate::directory::Bytes;
use crate::format::FormatError;
use crate::format::error::{at_most, equal};

/// A set of ids, all below its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdSet {
    /// One bit an id, from 0 on; bits from `limit` on are 0.
    words: Vec<u64>,
    /// All ids are below this.
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
        numbers(self.words.iter().copied())
    }

    /// The set as ascending ranges with gaps between them.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        ranges_of(self.iter())
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

/// The numbers in a bitmap of these words, ascending.
fn numbers(words: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    words
        .enumerate()
        .flat_map(|(index, word)| Ones(word).map(move |bit| index as u64 * 64 + u64::from(bit)))
}

/// Ascending `numbers` as ranges with gaps between them.
fn ranges_of(numbers: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(range) if range.end == number => range.end += 1,
            _ => ranges.push(number..number + 1),
        }
    }
    ranges
}

/// The 64-bit words of a bitmap that contain `ids`: index of each word, and mask of the ids' bits in it.
pub fn by_word(ids: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    (ids.start / 64..ids.end.div_ceil(64)).map(move |word| {
        // An empty range within a word yields that word without bits.
        let first = ids.start.max(word * 64) - word * 64;
        let end = ids.end.min((word + 1) * 64) - word * 64;
        let bits = if first < end { (!0 >> (64 - (end - first))) << first } else { 0 };
        (word as usize, bits)
    })
}

/// A set of ids or slots that counts its members below a number (rank), and finds the n-th number that is not in the
/// set (select). Clones share the bitmap.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeletedSet {
    /// The bitmap: one bit a number, in little-endian words; `None` for the empty set.
    bits: Option<Bytes>,
    /// The number of members before each block of [`BLOCK_WORDS`] words.
    ranks: Arc<Vec<u64>>,
    /// The number of members.
    count: u64,
}

impl DeletedSet {
    /// The set from a bitmap of the numbers below `len`.
    ///
    /// # Errors
    /// The bitmap has another length, or bits set past its end.
    pub(crate) fn from_bits(bits: Bytes, len: u64) -> Result<DeletedSet, FormatError> {
        equal("length of a deletion bitmap", len.div_ceil(64) * 8, bits.len() as u64)?;
        if let (Some(last), tail @ 1..) = (bits.items::<U64>().last(), len % 64) {
            at_most("bits behind a deletion bitmap", last.get() >> tail, 0)?;
        }
        Ok(DeletedSet::ranked(bits))
    }

    /// The set from a valid bitmap.
    fn ranked(bits: Bytes) -> DeletedSet {
        let mut ranks = Vec::new();
        let mut count = 0;
        for block in bits.items::<U64>().chunks(BLOCK_WORDS) {
            ranks.push(count);
            count += block.iter().map(|word| u64::from(word.get().count_ones())).sum::<u64>();
        }
        if count == 0 {
            return DeletedSet::default();
        }
        DeletedSet { bits: Some(bits), ranks: ranks.into(), count }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    #[inline]
    pub(crate) fn contains(&self, number: u64) -> bool {
        let Some(bits) = &self.bits else { return false };
        let word = bits.items::<U64>().get((number / 64) as usize);
        word.is_some_and(|word| word.get() >> (number % 64) & 1 == 1)
    }

    /// The number of members below `number`, which is at most the length of the bitmap in bits.
    pub(crate) fn before(&self, number: u64) -> u64 {
        let Some(bits) = &self.bits else { return 0 };
        let words = bits.items::<U64>();
        let word = (number / 64) as usize;
        let block = word / BLOCK_WORDS;
        let Some(rank) = self.ranks.get(block) else { return self.count };
        let whole = words[block * BLOCK_WORDS..word].iter().map(|word| word.get().count_ones());
        let part = words.get(word).map_or(0, |word| word.get() & !(u64::MAX << (number % 64)));
        rank + u64::from(whole.sum::<u32>() + part.count_ones())
    }

    /// The number below `len` that is not in the set (it is live) and has `rank` live numbers before it.
    ///
    /// # Panics
    /// If at most `rank` numbers below `len` are live.
    #[inline]
    pub(crate) fn select_live(&self, rank: u64, len: u64) -> u64 {
        assert!(rank < len - self.count, "live rank {rank} of {}", len - self.count);
        let Some(bits) = &self.bits else { return rank };
        self.select_in(bits, rank)
    }

    /// As [`select_live`](Self::select_live), with the bitmap of a set that has members.
    fn select_in(&self, bits: &Bytes, rank: u64) -> u64 {
        let live_before = |block: usize| (block * BLOCK_WORDS * 64) as u64 - self.ranks[block];
        // The last block with at most `rank` live numbers before it.
        let mut low = 0;
        let mut high = self.ranks.len();
        while high - low > 1 {
            let middle = low.midpoint(high);
            if live_before(middle) <= rank { low = middle } else { high = middle }
        }
        let mut left = rank - live_before(low);
        let words = &bits.items::<U64>()[low * BLOCK_WORDS..];
        for (index, word) in words.iter().enumerate() {
            let mut live = !word.get();
            let count = u64::from(live.count_ones());
            if left >= count {
                left -= count;
                continue;
            }
            for _ in 0..left {
                live &= live - 1;
            }
            return ((low * BLOCK_WORDS + index) * 64) as u64 + u64::from(live.trailing_zeros());
        }
        unreachable!("the rank is below the number of live ones")
    }

    /// The numbers, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        numbers(self.bits.iter().flat_map(|bits| bits.items::<U64>()).map(|word| word.get()))
    }

    /// The set as ascending ranges of (first, length).
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        let ranges = ranges_of(self.iter()).into_iter();
        ranges.map(|range| (range.start, range.end - range.start)).collect()
    }

    /// The bitmap as on media; `None` for the empty set.
    pub(crate) fn bits(&self) -> Option<&Bytes> {
        self.bits.as_ref()
    }

    /// A mutable copy of the set, whose members are all below `len`.
    pub(crate) fn to_ids(&self, len: u64) -> IdSet {
        let mut ids = IdSet::new(len);
        let words = self.bits.iter().flat_map(|bits| bits.items::<U64>());
        ids.words_mut().iter_mut().zip(words).for_each(|(own, word)| *own = word.get());
        ids
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let ranks = self.ranks.len() as u64 * 8;
        self.bits.as_ref().map_or(0, |bits| bits.len() as u64) + ranks
    }
}

impl From<IdSet> for DeletedSet {
    fn from(ids: IdSet) -> DeletedSet {
        let bytes: Vec<u8> = ids.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        DeletedSet::ranked(bytes.into())
    }
}

/// Words of the bitmap per entry of `ranks`.
const BLOCK_WORDS: usize = 8;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

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

    proptest! {
        #[test]
        fn rank_and_select_agree_with_counting(
            len in 1u64..3000, deleted in prop::collection::btree_set(0u64..3000, 0..500)
        ) {
            let deleted: Vec<u64> = deleted.into_iter().filter(|number| *number < len).collect();
            let mut ids = IdSet::new(len);
            deleted.iter().for_each(|number| assert!(ids.insert(*number)));
            let set = DeletedSet::from(ids.clone());
            prop_assert_eq!(set.to_ids(len), ids);
            let live: Vec<u64> = (0..len).filter(|n| deleted.binary_search(n).is_err()).collect();
            prop_assert_eq!(set.count(), deleted.len() as u64);
            for number in 0..=len {
                let before = deleted.partition_point(|deleted| *deleted < number) as u64;
                prop_assert_eq!(set.before(number), before);
                prop_assert_eq!(set.contains(number), deleted.binary_search(&number).is_ok());
            }
            for (rank, number) in live.iter().enumerate() {
                prop_assert_eq!(set.select_live(rank as u64, len), *number);
            }
            let ranges = set.ranges();
            let back: Vec<u64> = ranges.iter().flat_map(|(first, n)| *first..first + n).collect();
            prop_assert_eq!(back, deleted);
        }
    }

    #[test]
    fn a_bitmap_of_another_length_or_with_bits_behind_its_end_is_refused() {
        assert!(DeletedSet::from_bits(vec![0; 8].into(), 65).is_err());
        assert!(DeletedSet::from_bits(vec![0, 0, 0, 0, 0, 0, 0, 0x80].into(), 63).is_err());
        let full = DeletedSet::from_bits(vec![0xff; 8].into(), 64).unwrap();
        assert_eq!((full.count(), full.ranges()), (64, vec![(0, 64)]));
    }
}
