//! Encodes names in the order of ids, appending to the names of an earlier generation, and sorts them.
//!
//! The encoded bytes of the earlier names are copied unchanged, since a name's encoding depends only on the names
//! before it in its block.
//!
//! Names are stored in the order of ids, but listings and searches need the order of names. Sources are mostly sorted,
//! so the names form a few long runs that already ascend. For example, a TFRecord shard gives one run per number of
//! digits: `shard/0` to `shard/9`, `shard/10` to `shard/99`, and so on. A k-way merge of the runs reads each run once
//! from start to end, so front-coded names are decoded one by one and not held in memory together. Only names in very
//! many runs (`MAX_RUNS`) are all decoded into memory, and sorted there.
//!
//! The names of an earlier generation are sorted already. New names are merged into them by search, which reads only
//! the earlier names near each new one.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::directory::names::{BLOCK, NameCursor, Names};
use crate::directory::tree::id_width;
use crate::directory::{Bytes, IdSet};
use crate::format::FormatError;
use crate::format::cursor::{put_number, put_string};
use crate::format::names::{common, compare};

/// Names under construction: each is front-coded when it is added.
#[derive(Debug, Default)]
pub(crate) struct NamesWriter {
    /// Names of the earlier generation, which have the first ids.
    base: Option<Names>,
    /// The new names, front-coded.
    text: Vec<u8>,
    /// For each block that begins with a new name, its offset in the text of all names, as a u64, little-endian.
    blocks: Vec<u8>,
    /// The name that was added last.
    before: Vec<u8>,
    /// The number of names, earlier ones included.
    num_samples: u64,
    /// The first id of each ascending run of new names.
    runs: Vec<u64>,
    /// Set if the names, earlier ones included, do not ascend with ids.
    unsorted: bool,
}

impl NamesWriter {
    /// Starts with the names of an earlier generation.
    ///
    /// # Errors
    /// The last name of `base` is damaged.
    pub(crate) fn after(base: &Names) -> Result<NamesWriter, FormatError> {
        let mut before = Vec::new();
        if let Some(last) = base.num_samples.checked_sub(1) {
            base.get(last, &mut before)?;
        }
        Ok(NamesWriter {
            num_samples: base.num_samples,
            base: Some(base.clone()),
            before,
            unsorted: base.order.is_some(),
            ..NamesWriter::default()
        })
    }

    /// Adds the name of the next id.
    pub(crate) fn push(&mut self, name: &[u8]) {
        let falls = compare(&self.before, name) == Ordering::Greater;
        self.unsorted |= falls;
        if falls || self.runs.is_empty() {
            self.runs.push(self.num_samples);
        }
        if self.num_samples.is_multiple_of(BLOCK) {
            self.put_offset();
            put_string(&mut self.text, name);
        } else {
            let shared = common(&self.before, name);
            put_number(&mut self.text, shared as u64);
            put_string(&mut self.text, &name[shared..]);
        }
        self.before.clear();
        self.before.extend_from_slice(name);
        self.num_samples += 1;
    }

    /// All names, earlier and new.
    ///
    /// # Errors
    /// An earlier name is damaged.
    pub(crate) fn finish(self) -> Result<Names, FormatError> {
        self.finish_in_order(merged_order)
    }

    /// All names; `merge` computes their order, if it is not that of ids.
    fn finish_in_order(
        mut self,
        merge: impl FnOnce(&Names, Option<&Names>, &[u64]) -> Result<Bytes, FormatError>,
    ) -> Result<Names, FormatError> {
        self.put_offset();
        let NamesWriter { base, text, blocks, num_samples, runs, unsorted, .. } = self;
        let (text, blocks) = match &base {
            None => (text.into(), blocks.into()),
            Some(base) => {
                // Drop the end offset of the earlier blocks: `blocks` continues with the next start, or the new end.
                let starts = base.num_samples.div_ceil(BLOCK) as usize * 8;
                (Bytes::joined(&base.text, text), Bytes::joined(&base.blocks[..starts], blocks))
            }
        };
        let mut names = Names { blocks, text, order: None, num_samples };
        if unsorted {
            names.order = Some(merge(&names, base.as_ref(), &runs)?);
        }
        Ok(names)
    }

    /// Appends the offset of the next name to `blocks`.
    fn put_offset(&mut self) {
        let before = self.base.as_ref().map_or(0, |base| base.text.len());
        let offset = (before + self.text.len()) as u64;
        self.blocks.extend_from_slice(&offset.to_le_bytes());
    }
}

impl Names {
    /// A copy of these names in which the ids in `dropped` have empty names.
    ///
    /// # Errors
    /// A name is damaged.
    pub(crate) fn without(&self, dropped: &IdSet) -> Result<Names, FormatError> {
        let mut writer = NamesWriter::default();
        let mut nameless = IdSet::new(self.num_samples);
        let mut cursor = self.cursor(0)?;
        while cursor.advance()? {
            let is_kept = !dropped.contains(cursor.id());
            let name = if is_kept { cursor.name() } else { b"" };
            if name.is_empty() {
                nameless.insert(cursor.id());
            }
            writer.push(name);
        }
        // Empty names come first, in the order of ids, and all others keep their order.
        writer.finish_in_order(|_, _, _| {
            let width = id_width(self.num_samples);
            let mut order = Vec::with_capacity(self.num_samples as usize * width);
            let mut put = |id: u64| order.extend_from_slice(&id.to_le_bytes()[..width]);
            nameless.iter().for_each(&mut put);
            let all = (0..self.num_samples).map(|rank| self.at_rank(rank));
            all.filter(|id| !nameless.contains(*id)).for_each(put);
            Ok(order.into())
        })
    }
}

/// The order of `names`. The first ids are those of `base`; `runs` has the first id of each ascending run of new
/// names. Equal names are in the order of their ids.
///
/// # Errors
/// A name is damaged.
fn merged_order(names: &Names, base: Option<&Names>, runs: &[u64]) -> Result<Bytes, FormatError> {
    let width = id_width(names.num_samples);
    let out = Vec::with_capacity(names.num_samples as usize * width);
    let mut merge = Merge { base, next: 0, width, out };
    for_each_sorted(names, runs, &mut |id, name| merge.push(id, name))?;
    merge.copy_until(base.map_or(0, |base| base.num_samples));
    Ok(merge.out.into())
}

/// Merges new names into the order of the earlier names.
struct Merge<'a> {
    base: Option<&'a Names>,
    /// Rank of the first earlier name that is not yet in `out`.
    next: u64,
    /// Bytes per id in `out`.
    width: usize,
    /// The merged ids.
    out: Vec<u8>,
}

impl Merge<'_> {
    /// Adds a new name, after the earlier names that are not greater.
    fn push(&mut self, id: u64, name: &[u8]) -> Result<(), FormatError> {
        if let Some(base) = self.base {
            self.copy_until(base.upper_bound_near(self.next, name)?);
        }
        self.out.extend_from_slice(&id.to_le_bytes()[..self.width]);
        Ok(())
    }

    /// Copies the ids of the earlier names below `rank` that are not yet in `out`.
    fn copy_until(&mut self, rank: u64) {
        let Some(base) = self.base else { return };
        match &base.order {
            Some(order) if id_width(base.num_samples) == self.width => {
                let bytes = self.next as usize * self.width..rank as usize * self.width;
                self.out.extend_from_slice(&order[bytes]);
            }
            _ => {
                for rank in self.next..rank {
                    let id = base.at_rank(rank).to_le_bytes();
                    self.out.extend_from_slice(&id[..self.width]);
                }
            }
        }
        self.next = rank;
    }
}

/// Callback for an id and its name; called in the order of names.
type Visit<'a> = dyn FnMut(u64, &[u8]) -> Result<(), FormatError> + 'a;

/// Calls `visit` with all names from the first run on, in the order of names.
fn for_each_sorted(names: &Names, runs: &[u64], visit: &mut Visit<'_>) -> Result<(), FormatError> {
    if runs.len() > MAX_RUNS {
        return sort(names, runs[0], visit);
    }
    let ends = runs.iter().skip(1).copied().chain([names.num_samples]);
    let mut heap = BinaryHeap::with_capacity(runs.len());
    for (&start, end) in runs.iter().zip(ends) {
        let mut names = names.cursor(start)?;
        names.advance()?;
        heap.push(Run { names, end });
    }
    while let Some(mut least) = heap.peek_mut() {
        visit(least.names.id(), least.names.name())?;
        if least.names.id() + 1 == least.end {
            PeekMut::pop(least);
        } else {
            least.names.advance()?;
        }
    }
    Ok(())
}

/// As [`for_each_sorted`], but for names without long runs: decodes all of them into memory and sorts.
fn sort(names: &Names, first: u64, visit: &mut Visit<'_>) -> Result<(), FormatError> {
    let mut text = Vec::new();
    let mut ends = vec![0];
    let mut cursor = names.cursor(first)?;
    while cursor.advance()? {
        text.extend_from_slice(cursor.name());
        ends.push(text.len());
    }
    let name = |index: usize| &text[ends[index]..ends[index + 1]];
    let mut order: Vec<usize> = (0..ends.len() - 1).collect();
    // A stable sort keeps equal names in the order of their ids.
    order.sort_by(|&a, &b| compare(name(a), name(b)));
    order.into_iter().try_for_each(|index| visit(first + index as u64, name(index)))
}

/// A run of ascending names. `Ord` is reversed, so that the max-heap returns the run with the smallest name first.
struct Run<'a> {
    /// A cursor at the smallest name of the run that is not visited yet.
    names: NameCursor<'a>,
    /// The id after the last one of the run.
    end: u64,
}

impl Ord for Run<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let a = &self.names;
        let b = &other.names;
        compare(b.name(), a.name()).then(b.id().cmp(&a.id()))
    }
}

impl PartialOrd for Run<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Run<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Run<'_> {}

/// Most runs to merge; more are sorted instead, since each run takes memory for a cursor and a name.
const MAX_RUNS: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::geometry::MAX_NAME_BYTES;

    fn names_of(names: &[Vec<u8>]) -> Names {
        let mut writer = NamesWriter::default();
        names.iter().for_each(|name| writer.push(name));
        writer.finish().unwrap()
    }

    #[test]
    fn names_in_the_order_of_ids_need_no_order_of_their_own() {
        let sorted: Vec<Vec<u8>> = (0..100).map(|i| format!("c/{i:03}").into_bytes()).collect();
        assert!(names_of(&sorted).order.is_none());
        let mut other = sorted.clone();
        other.swap(3, 70);
        let names = names_of(&other);
        let in_order: Vec<Vec<u8>> =
            (0..100).map(|rank| other[names.at_rank(rank) as usize].clone()).collect();
        assert_eq!(in_order, sorted);
    }

    #[test]
    fn damaged_blocks_give_an_error_and_no_name() {
        let list: Vec<Vec<u8>> = (0..40).map(|i| format!("folder/{i:03}").into_bytes()).collect();
        let whole = names_of(&list);
        for at in 0..whole.text.len() {
            for value in [0, 0x7f, 0x80, 0xff] {
                let mut text = whole.text.to_vec();
                text[at] = value;
                let blocks = whole.blocks.clone();
                let names = Names::from_bytes(blocks, text.into(), None, 40).unwrap();
                for id in 0..40 {
                    let mut name = Vec::new();
                    let got = names.get(id, &mut name);
                    assert!(name.len() <= MAX_NAME_BYTES);
                    match got {
                        Ok(()) => assert!(names.is(id, &name), "{at} {value} {id}"),
                        Err(_) => assert!(!names.is(id, &list[id as usize]), "{at} {value} {id}"),
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_name_comes_back_and_is_told_from_others(
            names in prop::collection::vec(prop::collection::vec(1u8..5, 0..12), 1..80)
        ) {
            let coded = names_of(&names);
            for (id, name) in (0..).zip(&names) {
                let mut found = Vec::new();
                coded.get(id, &mut found).unwrap();
                prop_assert_eq!(&found, name);
                for other in names.iter().take(20) {
                    prop_assert_eq!(coded.is(id, other), other == name);
                }
            }
            let mut sorted = names.clone();
            sorted.sort_by(|a, b| compare(a, b));
            for name in &names {
                let rank = coded.lower_bound(0, name).unwrap() as usize;
                prop_assert_eq!(&sorted[rank], name);
                prop_assert!(rank == 0 || compare(&sorted[rank - 1], name) == Ordering::Less);
            }
        }
    }
}
