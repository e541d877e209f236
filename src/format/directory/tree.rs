//! The lookup tree: maps the fingerprint of a name to the ids that may have this name.
//!
//! A static search tree (a B+ tree without pointers). The leaves are the sorted keys, in nodes of 32. Each level above
//! has the last key of each node below it, up to a root of one node. The tree is built once, so nodes are full, the
//! position of a child is computed, and the height is at most ceil(log32(entries)): 4 for a million samples, 5 for
//! 20 million, 8 for 2^40. The DLFS paper uses a balanced binary (AVL) tree of 16-byte entries plus links. This tree is
//! logarithmic too, but takes about a fifth of the steps, and 8.13 bytes an entry (9.13 above 2^32 samples).

use std::ops::Range;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use crate::directory::Bytes;
use crate::format::FormatError;
use crate::format::error::{at_most, equal, in_range};
use crate::format::geometry::MAX_SAMPLES;

/// Sorted keys in a search tree, and the id of each.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    /// Keys of all levels, root first; the leaves are the sorted keys. Nodes are padded with `u32::MAX`.
    pub(super) keys: Bytes,
    /// The id of each key, in `id_width` bytes.
    pub(super) ids: Bytes,
    /// Bytes of an id in `ids`.
    pub(super) id_width: usize,
    /// The start of each level in `keys`, root first.
    pub(super) levels: Vec<usize>,
    /// The number of keys.
    pub(super) len: u64,
}

/// A key and its id before the tree is built, in 8 bytes: sorts by key, then id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TreeEntry(u64);

impl TreeEntry {
    /// `nth` is the id minus the `first_id` passed to [`Tree::extended`], or the id itself for [`Tree::in_passes`].
    pub(crate) fn new(key: u32, nth: u32) -> TreeEntry {
        TreeEntry(u64::from(key) << 32 | u64::from(nth))
    }

    fn key(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn nth(self) -> u64 {
        u64::from(self.0 as u32)
    }
}

impl Tree {
    /// A tree of the entries of `base`, whose ids are below `first_id`, and of `entries`, whose ids are relative to
    /// `first_id`. All ids are below `num_samples`.
    pub(crate) fn extended(
        base: Option<&Tree>,
        first_id: u64,
        mut entries: Vec<TreeEntry>,
        num_samples: u64,
    ) -> Tree {
        entries.sort_unstable();
        let len = base.map_or(0, |base| base.len as usize) + entries.len();
        let id_width = id_width(num_samples);
        let mut leaves = Leaves::new(len, id_width);
        let mut copied = 0;
        for entry in entries {
            if let Some(base) = base {
                // Copies equal keys of `base` first, since ids of equal keys ascend.
                let after = base.first_above(copied, entry.key());
                leaves.copy(base, copied..after);
                copied = after;
            }
            leaves.push(entry.key(), first_id + entry.nth());
        }
        if let Some(base) = base {
            leaves.copy(base, copied..base.len as usize);
        }
        leaves.into_tree()
    }

    /// A tree of many entries, whose ids are below `num_samples`, at most 2^32; built in passes to bound memory: each
    /// pass sorts one range of keys, of about `entries_at_once` entries. Every call of `visit_all` must pass the key
    /// and the id of each entry to its argument.
    ///
    /// # Errors
    /// The errors of `visit_all`.
    pub(crate) fn in_passes(
        num_samples: u64,
        entries_at_once: u64,
        visit_all: impl Fn(&mut dyn FnMut(u32, u32)) -> Result<(), FormatError>,
    ) -> Result<Tree, FormatError> {
        let passes = num_samples.div_ceil(entries_at_once).next_power_of_two();
        let pass_of = |key: u32| ((u64::from(key) * passes) >> 32) as usize;
        let mut counts = vec![0_usize; passes as usize];
        visit_all(&mut |key, _| counts[pass_of(key)] += 1)?;
        let mut leaves = Leaves::new(counts.iter().sum(), id_width(num_samples));
        for (pass, &count) in counts.iter().enumerate() {
            let mut entries = Vec::with_capacity(count);
            visit_all(&mut |key, id| {
                if pass_of(key) == pass {
                    entries.push(TreeEntry::new(key, id));
                }
            })?;
            entries.sort_unstable();
            entries.iter().for_each(|entry| leaves.push(entry.key(), entry.nth()));
        }
        Ok(leaves.into_tree())
    }

    /// For each fingerprint that several names share, the ids of these names.
    pub(crate) fn sharing(&self) -> impl Iterator<Item = Vec<u64>> + '_ {
        let keys = self.leaf_keys();
        let mut at = 0;
        std::iter::from_fn(move || {
            at += keys[at..].windows(2).position(|pair| pair[0] == pair[1])?;
            let run = keys[at..].iter().take_while(|key| **key == keys[at]).count();
            at += run;
            Some((at - run..at).map(|index| self.id(index)).collect())
        })
    }

    /// A copy of the tree without the entries whose id `is_dropped`. All ids are below `num_samples`.
    pub(crate) fn without(&self, num_samples: u64, is_dropped: impl Fn(u64) -> bool) -> Tree {
        let len = self.len as usize;
        let kept = |index: &usize| !is_dropped(self.id(*index));
        let mut leaves = Leaves::new((0..len).filter(kept).count(), id_width(num_samples));
        for index in (0..len).filter(kept) {
            leaves.push(self.leaf_keys()[index].get(), self.id(index));
        }
        leaves.into_tree()
    }

    /// The keys of all entries, sorted.
    fn leaf_keys(&self) -> &[U32] {
        let start = self.levels[self.levels.len() - 1];
        &self.keys.items::<U32>()[start..start + self.len as usize]
    }

    /// The first entry at or after `from` whose key is greater than `key`. Takes time logarithmic in its distance from
    /// `from`.
    fn first_above(&self, from: usize, key: u32) -> usize {
        let keys = &self.leaf_keys()[from..];
        let mut step = 1;
        while step < keys.len() && keys[step - 1].get() <= key {
            step *= 2;
        }
        let start = step / 2;
        let end = step.min(keys.len());
        from + start + keys[start..end].partition_point(|found| found.get() <= key)
    }

    /// The tree from columns on media.
    ///
    /// # Errors
    /// A length is wrong, or the keys are not in order.
    pub(crate) fn from_bytes(
        keys: Bytes,
        ids: Bytes,
        id_width: u64,
        len: u64,
    ) -> Result<Tree, FormatError> {
        at_most("entries of the lookup tree", len, MAX_SAMPLES)?;
        in_range([4, 5].contains(&id_width), "bytes of an id in the lookup tree", id_width, 5)?;
        equal("length of the ids of the lookup tree", len * id_width, ids.len() as u64)?;
        let mut levels = Vec::new();
        let mut end = 0;
        for size in level_sizes(len) {
            levels.push(end as usize);
            end += size;
        }
        equal("length of the keys of the lookup tree", end * 4, keys.len() as u64)?;
        let tree = Tree { keys, ids, id_width: id_width as usize, levels, len };
        tree.check_order()?;
        Ok(tree)
    }

    /// Checks that the keys of each level ascend and that each inner key equals the last key of its child.
    fn check_order(&self) -> Result<(), FormatError> {
        let keys = self.keys.items::<U32>();
        for (index, &start) in self.levels.iter().enumerate() {
            let level = &keys[start..self.levels.get(index + 1).map_or(keys.len(), |next| *next)];
            // No early exit, so that the loop runs at memory bandwidth.
            let pairs = level.iter().zip(&level[1..]);
            let falls: u64 = pairs.map(|(a, b)| u64::from(a.get() > b.get())).sum();
            equal("keys of the lookup tree out of order", 0, falls)?;
            let Some(&below) = self.levels.get(index + 1) else { break };
            let end = self.levels.get(index + 2).map_or(keys.len(), |next| *next);
            let children = keys[below..end].chunks(FANOUT).zip(level);
            let wrong = children.filter(|(child, key)| child[FANOUT - 1] != **key).count();
            equal("inner keys of the lookup tree that differ from their child", 0, wrong as u64)?;
        }
        Ok(())
    }

    /// Ids of the names whose fingerprint is `key`, ascending.
    #[inline]
    pub(crate) fn candidates(&self, key: u32) -> impl Iterator<Item = u64> + '_ {
        let leaves = &self.keys.items::<U32>()[self.levels[self.levels.len() - 1]..];
        let start = self.lower_bound(key).unwrap_or(leaves.len());
        let end = (self.len as usize).max(start);
        let equal = leaves[start..].iter().take(end - start).take_while(move |k| k.get() == key);
        equal.enumerate().map(move |(index, _)| self.id(start + index))
    }

    /// The index of the first leaf key that is at least `key`; if there is none, an index past the last entry, or
    /// `None`. Visits one node a level.
    #[inline]
    fn lower_bound(&self, key: u32) -> Option<usize> {
        let keys = self.keys.items::<U32>();
        let mut node = 0;
        for &level in &self.levels {
            let at = level + node * FANOUT;
            let below = keys.get(at..at + FANOUT)?.iter().map(|k| u32::from(k.get() < key));
            node = node * FANOUT + below.sum::<u32>() as usize;
        }
        Some(node)
    }

    /// The id of the leaf key at `index`.
    #[inline]
    fn id(&self, index: usize) -> u64 {
        read_id(&self.ids, index, self.id_width)
    }
}

/// A tree under construction: leaves are added in the order of keys, at their final position after the inner levels.
struct Leaves {
    /// Keys of all levels; all ones where no key is set yet. Kept as bytes to become [`Bytes`] without a copy.
    keys: Vec<u8>,
    /// The id of each key, in `id_width` bytes.
    ids: Vec<u8>,
    /// Bytes of an id in `ids`.
    id_width: usize,
    /// Keys per level, root first.
    sizes: Vec<usize>,
    /// The index of the next key.
    at: usize,
    /// The number of keys of the complete tree.
    len: usize,
}

impl Leaves {
    fn new(len: usize, id_width: usize) -> Leaves {
        let sizes: Vec<usize> =
            level_sizes(len as u64).into_iter().map(|size| size as usize).collect();
        let all: usize = sizes.iter().sum();
        Leaves {
            keys: vec![u8::MAX; all * 4],
            ids: Vec::with_capacity(len * id_width),
            id_width,
            at: all - sizes[sizes.len() - 1],
            sizes,
            len,
        }
    }

    fn push(&mut self, key: u32, id: u64) {
        self.keys[self.at * 4..][..4].copy_from_slice(&key.to_le_bytes());
        self.at += 1;
        self.ids.extend_from_slice(&id.to_le_bytes()[..self.id_width]);
    }

    /// Appends entries of another tree.
    fn copy(&mut self, from: &Tree, entries: Range<usize>) {
        if from.id_width != self.id_width {
            entries.for_each(|index| self.push(from.leaf_keys()[index].get(), from.id(index)));
            return;
        }
        let keys = &from.leaf_keys()[entries.clone()];
        self.keys[self.at * 4..][..keys.len() * 4].copy_from_slice(keys.as_bytes());
        self.at += keys.len();
        let ids = entries.start * self.id_width..entries.end * self.id_width;
        self.ids.extend_from_slice(&from.ids[ids]);
    }

    /// Fills the inner levels: adds the last key of each node to the level above, up to the root.
    fn into_tree(mut self) -> Tree {
        let keys = <[U32]>::mut_from_bytes(&mut self.keys).expect("four bytes a key");
        let mut end = keys.len();
        for pair in self.sizes.windows(2).rev() {
            let (above, below) = keys[..end].split_at_mut(end - pair[1]);
            let last_of_each = below.chunks(FANOUT).map(|node| node[FANOUT - 1]);
            let start = above.len() - pair[0];
            above[start..].iter_mut().zip(last_of_each).for_each(|(key, last)| *key = last);
            end -= pair[1];
        }
        Tree::from_bytes(self.keys.into(), self.ids.into(), self.id_width as u64, self.len as u64)
            .expect("built with the lengths that are checked")
    }
}

/// Keys per level of a tree of `len` entries, root first.
fn level_sizes(len: u64) -> Vec<u64> {
    let mut sizes = vec![len.max(1).next_multiple_of(FANOUT as u64)];
    while sizes[0] > FANOUT as u64 {
        let nodes = sizes[0] / FANOUT as u64;
        sizes.insert(0, nodes.next_multiple_of(FANOUT as u64));
    }
    sizes
}

/// Bytes per id in the columns of an image with `num_samples` samples.
pub(crate) fn id_width(num_samples: u64) -> usize {
    if num_samples <= 1 << 32 { 4 } else { 5 }
}

/// The id at `index` of a column of ids of `width` bytes each.
#[inline]
pub(crate) fn read_id(ids: &[u8], index: usize, width: usize) -> u64 {
    let mut id = [0; 8];
    id[..width].copy_from_slice(&ids[index * width..][..width]);
    u64::from_le_bytes(id)
}

/// Keys per node: they fill two cache lines, and a search compares all of them without branches.
const FANOUT: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_height_is_at_most_the_logarithm_to_base_32_up_to_the_largest_image() {
        let height = |len| level_sizes(len).len() as u32;
        assert_eq!([0, 1, 32, 33, 1 << 10, (1 << 10) + 1].map(height), [1, 1, 1, 2, 2, 3]);
        assert_eq!([1_000_000, 20_000_000, MAX_SAMPLES].map(height), [4, 5, 8]);
        for exponent in 1..=8 {
            let most = 1u64 << (5 * exponent);
            assert_eq!(height(most), exponent);
            // Binary search would need five steps for each of these.
            assert!(height(most - 1) <= exponent && height(most + 1) == exponent + 1);
        }
        let cost = level_sizes(MAX_SAMPLES).iter().sum::<u64>() as f64 / MAX_SAMPLES as f64;
        assert!(cost < 1.0323, "inner nodes cost 1/31 of the leaves: {cost}");
        assert_eq!([1 << 32, (1 << 32) + 1, MAX_SAMPLES].map(id_width), [4, 5, 5]);
    }

    #[test]
    fn a_tree_that_is_built_in_passes_is_the_one_that_is_built_at_once() {
        // Keys over the whole range, some of them twice, and one entry fewer than there are samples.
        let key = |id: u32| (id / 2 * 2).wrapping_mul(0x9e37_79b9);
        for count in [0, 1, 31, 1000, 5000_u32] {
            let entries: Vec<_> = (0..count).map(|id| TreeEntry::new(key(id), id)).collect();
            let at_once = Tree::extended(None, 0, entries, u64::from(count) + 1);
            for entries_at_once in [100, 999, 10_000] {
                let all = |take: &mut dyn FnMut(u32, u32)| {
                    (0..count).for_each(|id| take(key(id), id));
                    Ok(())
                };
                let tree = Tree::in_passes(u64::from(count) + 1, entries_at_once, all).unwrap();
                assert_eq!((&tree.keys[..], &tree.ids[..]), (&at_once.keys[..], &at_once.ids[..]));
            }
            let shared: Vec<_> = at_once.sharing().flatten().collect();
            assert_eq!(shared.len() as u32, count / 2 * 2);
        }
    }

    #[test]
    fn ids_above_32_bits_come_back() {
        let ids = [0, 1 << 32, MAX_SAMPLES - 1];
        let mut tree = Tree::extended(None, 0, Vec::new(), 1);
        for id in ids {
            tree = Tree::extended(Some(&tree), id, vec![TreeEntry::new(7, 0)], MAX_SAMPLES);
        }
        assert_eq!(tree.candidates(7).collect::<Vec<_>>(), ids);
        assert_eq!(tree.id_width, 5);
    }

    #[test]
    fn keys_out_of_order_are_refused_at_every_level() {
        let entries = (0..2000).map(|id| TreeEntry::new(id * 3, id)).collect();
        let tree = Tree::extended(None, 0, entries, 2000);
        let whole = tree.keys.to_vec();
        for at in [0, 40, 150, 1000, 1999] {
            let mut keys = whole.clone();
            keys[at * 4 + 3] ^= 0x40;
            let again = Tree::from_bytes(keys.into(), tree.ids.clone(), 4, 2000);
            assert!(again.is_err(), "key {at}");
        }
        assert!(Tree::from_bytes(whole.clone().into(), tree.ids.clone(), 5, 2000).is_err());
        assert!(Tree::from_bytes(whole.clone().into(), tree.ids.clone(), 4, u64::MAX).is_err());
        assert!(Tree::from_bytes(whole.into(), tree.ids.clone(), 4, 2000).is_ok());
    }

    proptest! {
        #[test]
        fn every_key_finds_all_its_ids_and_no_other(
            keys in prop::collection::vec(prop_oneof![0u32..50, any::<u32>(), Just(u32::MAX)], 0..3000),
            absent in any::<u32>(),
            cut in any::<prop::sample::Index>(),
            dropped in 1u64..5,
        ) {
            let num = keys.len() as u64;
            let entries = |keys: &[u32]| (0..).zip(keys).map(|(n, k)| TreeEntry::new(*k, n)).collect();
            let tree = Tree::extended(None, 0, entries(&keys), num);
            let (before, after) = keys.split_at(cut.index(keys.len() + 1));
            let part = Tree::extended(None, 0, entries(before), before.len() as u64);
            let grown = Tree::extended(Some(&part), before.len() as u64, entries(after), num);
            prop_assert_eq!(&grown.keys[..], &tree.keys[..], "in two steps as at once");
            prop_assert_eq!(&grown.ids[..], &tree.ids[..]);
            let fewer = tree.without(num, |id| id % dropped == 0);
            for key in &keys {
                let kept = tree.candidates(*key).filter(|id| id % dropped != 0);
                prop_assert_eq!(fewer.candidates(*key).collect::<Vec<_>>(), kept.collect::<Vec<_>>());
            }
            for key in keys.iter().chain([&absent, &0, &u32::MAX]) {
                let expected = (0..).zip(&keys).filter(|(_, k)| *k == key).map(|(id, _)| id);
                prop_assert_eq!(
                    tree.candidates(*key).collect::<Vec<u64>>(), expected.collect::<Vec<u64>>()
                );
            }
        }
    }
}
