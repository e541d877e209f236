//! The *word* of a mixture, in the sense of combinatorics: a sequence of letters, which here are sources. It is
//! balanced, and each position is computed from a tree.

use std::collections::VecDeque;

use dlfs_base::permutation::Key;

/// A word: position -> (source, number of earlier positions of that source).
///
/// It is a binary tree whose leaves are the sources. A branch divides its positions between its two sides as
/// Bresenham's line divides steps: of its first p positions, floor((p * left + offset) / len) belong to the left
/// side. So of any m consecutive positions, m * left / len belong to the left side, with an error of less than one.
/// The tree is a Huffman tree of the counts: frequent sources are near the root, where few errors add up.
#[derive(Debug, Clone)]
pub(super) struct Word {
    branches: Vec<Branch>,
    /// The whole word: a branch, or the only source.
    root: Side,
    /// The number of positions.
    len: u64,
}

/// A branch of the tree, which divides its positions between two sides.
#[derive(Debug, Clone, Copy)]
struct Branch {
    /// The number of positions of both sides.
    len: u64,
    /// The number of positions of the left side.
    left: u64,
    /// The start of Bresenham's line; less than `len`.
    offset: u64,
    /// The left and the right side.
    sides: [Side; 2],
}

/// One side of a branch: the index of another branch, or the number of a source.
#[derive(Debug, Clone, Copy)]
enum Side {
    Branch(u32),
    Source(u32),
}

impl Word {
    /// The word in which source i occurs `counts[i]` times, with offsets drawn from `key`. The sum of the counts is
    /// positive and fits 64 bits.
    pub(super) fn new(counts: &[u64], key: Key) -> Word {
        let sources = (0..).zip(counts).filter(|&(_, &count)| count > 0);
        let leaves: Vec<(u64, Side)> =
            sources.map(|(i, &count)| (count, Side::Source(i))).collect();
        let mut word =
            Word { branches: Vec::with_capacity(leaves.len()), root: leaves[0].1, len: 0 };
        (word.len, word.root) = word.join_all(leaves);
        for (i, branch) in (0..).zip(&mut word.branches) {
            let draw = u128::from(key.with(i).word());
            branch.offset = ((draw * u128::from(branch.len)) >> 64) as u64;
        }
        word
    }

    /// Joins the two smallest parts until one is left: Huffman's algorithm. Of equal parts, the earlier comes
    /// first; a joined part counts as later than all leaves, and than all parts joined before it.
    fn join_all(&mut self, mut leaves: Vec<(u64, Side)>) -> (u64, Side) {
        leaves.sort_by_key(|leaf| leaf.0);
        let mut leaves = leaves.into_iter().peekable();
        let mut joined = VecDeque::new();
        loop {
            let mut smallest = |joined: &mut VecDeque<(u64, Side)>| {
                let leaf_first = match (leaves.peek(), joined.front()) {
                    (Some(leaf), Some(part)) => leaf.0 <= part.0,
                    (leaf, _) => leaf.is_some(),
                };
                if leaf_first { leaves.next() } else { joined.pop_front() }
            };
            let first = smallest(&mut joined).expect("there is at least one part");
            let Some(second) = smallest(&mut joined) else { return first };
            let len = first.0 + second.0;
            let side = Side::Branch(self.branches.len() as u32);
            self.branches.push(Branch {
                len,
                left: first.0,
                offset: 0,
                sides: [first.1, second.1],
            });
            joined.push_back((len, side));
        }
    }

    /// The source at `position`, and the number of its earlier occurrences. `position` is below the sum of all
    /// counts.
    #[inline]
    pub(super) fn locate(&self, position: u64) -> (u32, u64) {
        debug_assert!(position < self.len);
        let mut side = self.root;
        let mut nth = position;
        loop {
            match side {
                Side::Source(source) => return (source, nth),
                Side::Branch(branch) => {
                    let branch = &self.branches[branch as usize];
                    let (left, is_left) = branch.split(nth);
                    nth = if is_left { left } else { nth - left };
                    side = branch.sides[usize::from(!is_left)];
                }
            }
        }
    }

    /// The number of occurrences of each of `sources` sources before `position`; `position` is at most the sum of
    /// all counts.
    pub(super) fn counts_before(&self, position: u64, sources: usize) -> Vec<u64> {
        let mut walk = Walk::default();
        self.walk_from(position, sources, &mut walk);
        walk.counts
    }

    /// Sets `walk` to `position`; the word has `sources` sources.
    pub(super) fn walk_from(&self, position: u64, sources: usize, walk: &mut Walk) {
        walk.rests.clear();
        walk.rests.resize(self.branches.len(), 0);
        walk.counts.clear();
        walk.counts.resize(sources, 0);
        let mut parts = vec![(self.root, position)];
        while let Some((side, nth)) = parts.pop() {
            match side {
                Side::Source(source) => walk.counts[source as usize] = nth,
                Side::Branch(index) => {
                    let branch = &self.branches[index as usize];
                    let (left, rest) = branch.divide(nth);
                    walk.rests[index as usize] = rest;
                    parts.extend([(branch.sides[0], left), (branch.sides[1], nth - left)]);
                }
            }
        }
    }

    /// As [`Word::locate`], for the next position of `walk`.
    #[inline]
    pub(super) fn step(&self, walk: &mut Walk) -> (u32, u64) {
        let mut side = self.root;
        loop {
            match side {
                Side::Source(source) => {
                    let count = &mut walk.counts[source as usize];
                    *count += 1;
                    return (source, *count - 1);
                }
                Side::Branch(index) => {
                    let Branch { len, left, sides, .. } = &self.branches[index as usize];
                    let rest = &mut walk.rests[index as usize];
                    *rest += left;
                    let is_left = *rest >= *len;
                    *rest -= if is_left { *len } else { 0 };
                    side = sides[usize::from(!is_left)];
                }
            }
        }
    }
}

/// Reads a word position by position, without a division for each.
#[derive(Debug, Clone, Default)]
pub(super) struct Walk {
    /// By branch: the remainder of the division in [`Branch::split`] at its next position.
    rests: Vec<u64>,
    /// By source: the number of occurrences before the next position.
    pub(super) counts: Vec<u64>,
}

impl Branch {
    /// The number of the first `position` positions that belong to the left side, and whether the next one does.
    #[inline]
    fn split(&self, position: u64) -> (u64, bool) {
        let (left, rest) = self.divide(position);
        (left, rest + self.left >= self.len) // lengths are far below 2^63
    }

    /// The quotient and the remainder of (`position` * `left` + `offset`) / `len`.
    #[inline]
    fn divide(&self, position: u64) -> (u64, u64) {
        let Branch { len, left, offset, .. } = *self;
        if len <= u64::from(u32::MAX) {
            // `len` - 1 + `len` * (`len` - 1) fits 64 bits.
            let scaled = position * left + offset;
            return (scaled / len, scaled % len);
        }
        let len = u128::from(len);
        let left = u128::from(left);
        let scaled = u128::from(position) * left + u128::from(offset);
        ((scaled / len) as u64, (scaled % len) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(counts: &[u64], seed: u64) {
        let word = Word::new(counts, Key::new(seed));
        let total: u64 = counts.iter().sum();
        let mut seen = vec![0; counts.len()];
        for position in 0..total {
            let before = word.counts_before(position, counts.len());
            assert_eq!(before, seen, "before {position} of {counts:?}, seed {seed}");
            let (source, nth) = word.locate(position);
            assert_eq!(nth, seen[source as usize], "{position} of {counts:?}, seed {seed}");
            seen[source as usize] += 1;
        }
        assert_eq!(seen, counts, "seed {seed}");
    }

    #[test]
    fn each_source_stands_as_often_as_it_should() {
        for seed in 0..20 {
            let cases: [&[u64]; 7] =
                [&[1], &[5, 5], &[0, 3, 0], &[1, 1000], &[7, 2, 1], &[1; 16], &[900, 90, 9, 1]];
            cases.iter().for_each(|counts| check(counts, seed));
        }
    }

    #[test]
    fn a_walk_finds_what_single_positions_have() {
        let mut walk = Walk::default();
        for counts in [&[1_u64][..], &[5, 5], &[0, 3, 0], &[7, 2, 1], &[900, 90, 9, 1]] {
            for seed in 0..20 {
                let word = Word::new(counts, Key::new(seed));
                for first in [0, 1, word.len / 2, word.len] {
                    word.walk_from(first, counts.len(), &mut walk);
                    for position in first..word.len {
                        let found = word.step(&mut walk);
                        assert_eq!(
                            found,
                            word.locate(position),
                            "{position} of {counts:?}, seed {seed}"
                        );
                    }
                    assert_eq!(walk.counts, counts, "seed {seed}");
                }
            }
        }
        let long = Word::new(&[7 << 40, 2 << 40, 1 << 40], Key::new(3));
        long.walk_from(5 << 40, 3, &mut walk);
        for position in (5 << 40)..(5 << 40) + 10_000 {
            assert_eq!(long.step(&mut walk), long.locate(position));
        }
    }

    #[test]
    fn long_words_are_dealt_as_short_ones() {
        // The same proportions, with counts that need arithmetic of 128 bits.
        let long = Word::new(&[7 << 40, 2 << 40, 1 << 40], Key::new(3));
        assert_eq!(long.counts_before(10 << 40, 3), [7 << 40, 2 << 40, 1 << 40]);
        let mut seen = long.counts_before(5 << 40, 3);
        for position in (5 << 40)..(5 << 40) + 10_000 {
            let (source, nth) = long.locate(position);
            assert_eq!(nth, seen[source as usize]);
            seen[source as usize] += 1;
        }
    }
}
