//! The lookup tree: maps the fingerprint of a name to the ids that may have it.
//!
//! A static search tree (a B+ tree without pointers): the sorted keys in nodes of 32, and above each level
//! the last key of each of its nodes, up to a root of one node. It is built once, so nodes are full,
//! children are found by arithmetic, and the height is at most ceil(log32(entries)): 4 for a million
//! samples, 5 for 20 million, 8 for 2^40. The DLFS paper uses a balanced binary (AVL) tree of 16-byte
//! entries plus links; this tree has the same kind of bound with a quarter of the steps, at 8.13 bytes.

use zerocopy::little_endian::U32;

use crate::directory::Bytes;
use crate::format::FormatError;
use crate::format::error::{at_most, equal};
use crate::format::geometry::MAX_SAMPLES;

/// Sorted keys in a search tree, and the id of each.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    /// All levels, root first; the leaves are the sorted keys. Whole nodes, padded with `u32::MAX`.
    keys: Bytes,
    /// The id of each key, in `id_width` bytes.
    ids: Bytes,
    id_width: usize,
    /// Where each level begins in `keys`, root first.
    levels: Vec<usize>,
    len: u64,
}

/// A key before the tree is built, 12 bytes; sorts by key, then id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TreeEntry {
    key: u32,
    id_high: u32,
    id_low: u32,
}

impl TreeEntry {
    pub(crate) fn new(key: u32, id: u64) -> TreeEntry {
        TreeEntry { key, id_high: (id >> 32) as u32, id_low: id as u32 }
    }

    fn id(&self) -> u64 {
        u64::from(self.id_high) << 32 | u64::from(self.id_low)
    }
}

impl Tree {
    /// The tree of `entries`, for ids below `num_samples`.
    pub(crate) fn build(mut entries: Vec<TreeEntry>, num_samples: u64) -> Tree {
        entries.sort_unstable();
        let len = entries.len() as u64;
        let id_width = id_width(num_samples);
        let mut ids = Vec::with_capacity(entries.len() * id_width);
        for entry in &entries {
            ids.extend_from_slice(&entry.id().to_le_bytes()[..id_width]);
        }
        let mut levels = vec![whole_nodes(entries.iter().map(|entry| entry.key))];
        drop(entries);
        while let Some(below) = levels.last().filter(|level| level.len() > FANOUT) {
            let last_of_each = below.chunks(FANOUT).map(|node| node[FANOUT - 1].get());
            levels.push(whole_nodes(last_of_each));
        }
        let mut keys = Vec::with_capacity(levels.iter().map(|level| level.len() * 4).sum());
        for level in levels.iter().rev() {
            keys.extend_from_slice(zerocopy::IntoBytes::as_bytes(&level[..]));
        }
        Tree::from_bytes(keys.into(), ids.into(), id_width as u64, len)
            .expect("built with the lengths that are checked")
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
        if id_width != 4 && id_width != 5 {
            let what = "bytes of an id in the lookup tree";
            return Err(FormatError::OutOfRange { what, value: id_width, limit: 5 });
        }
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

    /// An error unless the leaves ascend and each inner key equals the last key of its child.
    fn check_order(&self) -> Result<(), FormatError> {
        let keys = self.keys.items::<U32>();
        for (index, &start) in self.levels.iter().enumerate() {
            let level = &keys[start..self.levels.get(index + 1).map_or(keys.len(), |next| *next)];
            // Counts to the end without an early exit, so that it runs at memory bandwidth.
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

    /// Ids of the names with fingerprint `key`, ascending.
    #[inline]
    pub(crate) fn candidates(&self, key: u32) -> impl Iterator<Item = u64> + '_ {
        let leaves = &self.keys.items::<U32>()[self.levels[self.levels.len() - 1]..];
        let start = self.lower_bound(key).unwrap_or(leaves.len());
        let end = (self.len as usize).max(start);
        let equal = leaves[start..].iter().take(end - start).take_while(move |k| k.get() == key);
        equal.enumerate().map(move |(index, _)| self.id(start + index))
    }

    /// The first leaf key that is not below `key`: one node a level.
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

    #[inline]
    fn id(&self, index: usize) -> u64 {
        let mut id = [0; 8];
        let at = index * self.id_width;
        id[..self.id_width].copy_from_slice(&self.ids[at..at + self.id_width]);
        u64::from_le_bytes(id)
    }

    pub(crate) fn height(&self) -> u32 {
        self.levels.len() as u32
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn keys(&self) -> &Bytes {
        &self.keys
    }

    pub(crate) fn ids(&self) -> (&Bytes, u64) {
        (&self.ids, self.id_width as u64)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.keys.len() + self.ids.len()) as u64
    }
}

/// Keys in whole nodes, padded with the largest key, which is not less than any key searched.
fn whole_nodes(keys: impl Iterator<Item = u32>) -> Vec<U32> {
    let mut level: Vec<U32> = keys.map(U32::new).collect();
    level.resize(level.len().max(1).next_multiple_of(FANOUT), U32::new(u32::MAX));
    level
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

/// Bytes per id in columns of an image with `num_samples`.
pub(crate) fn id_width(num_samples: u64) -> usize {
    if num_samples <= 1 << 32 { 4 } else { 5 }
}

/// Keys per node: two cache lines, compared at once.
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
    fn ids_above_32_bits_come_back() {
        let ids = [0, 1 << 32, MAX_SAMPLES - 1];
        let entries = ids.iter().map(|id| TreeEntry::new(7, *id)).collect();
        let tree = Tree::build(entries, MAX_SAMPLES);
        assert_eq!(tree.candidates(7).collect::<Vec<_>>(), ids);
        assert_eq!(tree.ids().1, 5);
    }

    #[test]
    fn keys_out_of_order_are_refused_at_every_level() {
        let entries = (0..2000).map(|id| TreeEntry::new(id * 3, u64::from(id))).collect();
        let tree = Tree::build(entries, 2000);
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
        ) {
            let entries = (0..).zip(&keys).map(|(id, key)| TreeEntry::new(*key, id)).collect();
            let tree = Tree::build(entries, keys.len() as u64);
            for key in keys.iter().chain([&absent, &0, &u32::MAX]) {
                let expected = (0..).zip(&keys).filter(|(_, k)| *k == key).map(|(id, _)| id);
                prop_assert_eq!(
                    tree.candidates(*key).collect::<Vec<u64>>(), expected.collect::<Vec<u64>>()
                );
            }
        }
    }
}
