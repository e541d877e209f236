//! The names by id, front-coded in blocks of 16; and the ids in the order of names, if that order differs.
//!
//! Each block begins with a whole name. Every other name is stored as the length of the prefix that it shares with the
//! previous name, and the rest. A second column has the offset of each block as a u64, and the end of the last block.
//!
//! Encodes names in the order of ids, appending to the names of an earlier generation.
//!
//! The encoded bytes of the earlier names are copied unchanged, since a name's encoding depends only on the names
//! before it in its block.
//!
//! Names are stored in the order of ids, but listings and searches need the order of names. Sources are mostly sorted,
//! so the names form a few long runs that already ascend. For example, a TFRecord shard gives one run per number of
//! digits: `shard/0` to `shard/9`, `shard/10` to `shard/99`, and so on. A k-way merge of the runs reads each run once
//! from start to end, so front-coded names are decoded one by one and never held in memory together.
//!
//! The names of an earlier generation are sorted already. New names are merged into them by search, which reads only
//! the earlier names near each new one.
//!
//! A folder is listed by binary search in the order of names, which skips a subfolder in one step.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use zerocopy::little_endian::U64;

use crate::directory::tree::id_width;
use crate::directory::{Bytes, Directory, IdSet};
use crate::format::FormatError;
use crate::format::cursor::{Cursor, put_number, put_string};
use crate::format::error::{at_most, equal};
use crate::format::geometry::MAX_NAME_BYTES;
use crate::format::names::{common, compare};
use dlfs_base::units::SampleId;

/// All names of a directory. Decoding is defensive: it checks every length from the snapshot against the
/// bytes that exist.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Offset of each block in `text` as a u64, and the end of the last block.
    pub(crate) blocks: Bytes,
    pub(crate) text: Bytes,
    /// Ids in the order of names; `None` if names ascend with ids.
    pub(crate) order: Option<Bytes>,
    pub(crate) num_samples: u64,
}

impl Names {
    /// The names from columns on media.
    ///
    /// # Errors
    /// A length is wrong.
    pub(crate) fn from_bytes(
        blocks: Bytes,
        text: Bytes,
        order: Option<(Bytes, u64)>,
        num_samples: u64,
    ) -> Result<Names, FormatError> {
        let expected = num_samples.div_ceil(BLOCK).saturating_add(1).saturating_mul(8);
        equal("length of the name blocks", expected, blocks.len() as u64)?;
        let places = blocks.items::<U64>();
        let pairs = places.iter().zip(&places[1..]);
        let falls: u64 = pairs.map(|(a, b)| u64::from(a.get() > b.get())).sum();
        equal("name blocks out of order", 0, falls)?;
        let end = places.last().map_or(0, |end| end.get());
        equal("end of the names", text.len() as u64, end)?;
        if let Some((order, width)) = &order {
            let expected = id_width(num_samples) as u64;
            equal("bytes of an id in the order of names", expected, *width)?;
            let len = num_samples.saturating_mul(expected);
            equal("length of the order of names", len, order.len() as u64)?;
        }
        Ok(Names { blocks, text, order: order.map(|(order, _)| order), num_samples })
    }

    /// Replaces `name` by the name of `id`, which must be below the number of samples.
    ///
    /// # Errors
    /// The name's block is damaged.
    pub(crate) fn get(&self, id: u64, name: &mut Vec<u8>) -> Result<(), FormatError> {
        let mut block = self.block(id)?;
        (0..=id % BLOCK).try_for_each(|_| block.next_into(name))
    }

    /// A cursor over the names from `id` on. Each step decodes only the bytes that differ from the previous name.
    ///
    /// # Errors
    /// The block of `id` is damaged.
    pub(crate) fn cursor(&self, id: u64) -> Result<NameCursor<'_>, FormatError> {
        let mut cursor = NameCursor { names: self, next: id, block: None, name: Vec::new() };
        if !id.is_multiple_of(BLOCK) {
            let mut block = self.block(id)?;
            (0..id % BLOCK).try_for_each(|_| block.next_into(&mut cursor.name))?;
            cursor.block = Some(block);
        }
        Ok(cursor)
    }

    /// Returns whether the name of `id` is `name`. Copies nothing; a damaged block matches no name.
    pub(crate) fn is(&self, id: u64, name: &[u8]) -> bool {
        self.matches(id, name).unwrap_or(false)
    }

    fn matches(&self, id: u64, name: &[u8]) -> Result<bool, FormatError> {
        let mut block = self.block(id)?;
        // Length of the common prefix of `name` and the block's current name, and length of the current name.
        let mut same = 0;
        let mut len = 0;
        for _ in 0..=id % BLOCK {
            let (shared, rest) = block.next()?;
            at_most("shared bytes of a name", shared as u64, len as u64)?;
            // A name that shares more than `same` bytes with the one before it differs from `name` where that one did.
            if shared <= same {
                same = shared + common(&name[shared..], rest);
            }
            len = shared + rest.len();
        }
        Ok(same == name.len() && len == same)
    }

    fn block(&self, id: u64) -> Result<Block<'_>, FormatError> {
        let places = self.blocks.items::<U64>();
        let index = (id / BLOCK) as usize;
        let start = places[index].get() as usize;
        let end = places[index + 1].get() as usize;
        let rest = Cursor::new("names", &self.text[start..end]);
        Ok(Block { rest, first: true })
    }

    /// The id at `rank` in the order of names.
    pub(crate) fn at_rank(&self, rank: u64) -> u64 {
        let Some(order) = &self.order else { return rank };
        let width = id_width(self.num_samples);
        let at = rank as usize * width;
        let mut id = [0; 8];
        id[..width].copy_from_slice(&order[at..at + width]);
        // The order on media may contain an invalid id: it is read as the last id.
        u64::from_le_bytes(id).min(self.num_samples - 1)
    }

    /// The first rank at or after `from` whose name is greater than or equal to `name`.
    pub(crate) fn lower_bound(&self, from: u64, name: &[u8]) -> Result<u64, FormatError> {
        self.search(from, name, 0, Ordering::is_ge)
    }

    /// The first rank at or after `from` whose name, compared with `name`, satisfies `is_there`. `step` 0 selects a
    /// binary search, 1 an exponential search from `from`.
    fn search(
        &self,
        from: u64,
        name: &[u8],
        mut step: u64,
        is_there: fn(Ordering) -> bool,
    ) -> Result<u64, FormatError> {
        let mut low = from;
        let mut high = self.num_samples;
        let mut found = Vec::new();
        while low < high {
            // Exponential search: doubles the step until it passes the rank, then continues as a binary search.
            let middle = match step {
                0 => low.midpoint(high),
                _ => low.saturating_add(step - 1).min(high - 1),
            };
            found.clear();
            self.get(self.at_rank(middle), &mut found)?;
            if is_there(compare(&found, name)) {
                (high, step) = (middle, 0);
            } else {
                (low, step) = (middle + 1, step * 2);
            }
        }
        Ok(low)
    }

    pub(crate) fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// Memory of the names and of their order, in bytes.
    pub(crate) fn memory_bytes(&self) -> (u64, u64) {
        let order = self.order.as_ref().map_or(0, |order| order.len());
        ((self.blocks.len() + self.text.len()) as u64, order as u64)
    }
}

/// A decoder of one block, name by name.
struct Block<'a> {
    rest: Cursor<'a>,
    first: bool,
}

impl<'a> Block<'a> {
    #[inline]
    fn next(&mut self) -> Result<(usize, &'a [u8]), FormatError> {
        let shared = if self.first { 0 } else { self.rest.number()? };
        self.first = false;
        let shared = at_most("shared bytes of a name", shared, MAX_NAME_BYTES as u64)?;
        Ok((shared as usize, self.rest.string()?))
    }

    /// Replaces `name`, the previous name of the block, by the next one.
    #[inline]
    fn next_into(&mut self, name: &mut Vec<u8>) -> Result<(), FormatError> {
        let (shared, rest) = self.next()?;
        at_most("shared bytes of a name", shared as u64, name.len() as u64)?;
        at_most("length of a name", (shared + rest.len()) as u64, MAX_NAME_BYTES as u64)?;
        name.truncate(shared);
        name.extend_from_slice(rest);
        Ok(())
    }
}

/// Iterates over names by id: see [`Names::cursor`].
pub(crate) struct NameCursor<'a> {
    names: &'a Names,
    next: u64,
    block: Option<Block<'a>>,
    name: Vec<u8>,
}

impl NameCursor<'_> {
    /// Advances to the next name; returns false at the end.
    ///
    /// # Errors
    /// The name's block is damaged.
    pub(crate) fn advance(&mut self) -> Result<bool, FormatError> {
        if self.next >= self.names.num_samples {
            return Ok(false);
        }
        let block = match &mut self.block {
            Some(block) if !self.next.is_multiple_of(BLOCK) => block,
            block => block.insert(self.names.block(self.next)?),
        };
        block.next_into(&mut self.name)?;
        self.next += 1;
        Ok(true)
    }

    /// The id that the next [`advance`](Self::advance) moves to.
    pub(crate) fn next_id(&self) -> u64 {
        self.next
    }

    /// The current id. Call [`advance`](Self::advance) first.
    pub(crate) fn id(&self) -> u64 {
        self.next - 1
    }

    /// The current name.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }
}

/// Names under construction: each is front-coded when it is added.
#[derive(Debug, Default)]
pub(crate) struct NamesWriter {
    /// Names of the earlier generation, which have the first ids.
    base: Option<Names>,
    text: Vec<u8>,
    /// For each block that begins with a new name, its offset in the text of all names.
    blocks: Vec<u8>,
    /// The name that was added last.
    before: Vec<u8>,
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
        if let Some(last) = base.num_samples().checked_sub(1) {
            base.get(last, &mut before)?;
        }
        Ok(NamesWriter {
            num_samples: base.num_samples(),
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
                let starts = base.num_samples().div_ceil(BLOCK) as usize * 8;
                (Bytes::joined(&base.text, text), Bytes::joined(&base.blocks[..starts], blocks))
            }
        };
        let mut names = Names { blocks, text, order: None, num_samples };
        if unsorted {
            names.order = Some(merge(&names, base.as_ref(), &runs)?);
        }
        Ok(names)
    }

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
        let mut nameless = IdSet::new(self.num_samples());
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
            let width = id_width(self.num_samples());
            let mut order = Vec::with_capacity(self.num_samples() as usize * width);
            let mut put = |id: u64| order.extend_from_slice(&id.to_le_bytes()[..width]);
            nameless.iter().for_each(&mut put);
            let all = (0..self.num_samples()).map(|rank| self.at_rank(rank));
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
pub(crate) fn merged_order(
    names: &Names,
    base: Option<&Names>,
    runs: &[u64],
) -> Result<Bytes, FormatError> {
    let width = id_width(names.num_samples());
    let out = Vec::with_capacity(names.num_samples() as usize * width);
    let mut merge = Merge { base, next: 0, width, out };
    for_each_sorted(names, runs, &mut |id, name| merge.push(id, name))?;
    merge.copy_until(base.map_or(0, Names::num_samples));
    Ok(merge.out.into())
}

/// Merges new names into the order of the earlier names.
struct Merge<'a> {
    base: Option<&'a Names>,
    /// Rank of the first earlier name that is not yet in `out`.
    next: u64,
    width: usize,
    out: Vec<u8>,
}

impl Merge<'_> {
    fn push(&mut self, id: u64, name: &[u8]) -> Result<(), FormatError> {
        if let Some(base) = self.base {
            // Takes time logarithmic in the distance.
            self.copy_until(base.search(self.next, name, 1, Ordering::is_gt)?);
        }
        self.out.extend_from_slice(&id.to_le_bytes()[..self.width]);
        Ok(())
    }

    /// Copies the ids of earlier names up to `rank`.
    fn copy_until(&mut self, rank: u64) {
        let Some(base) = self.base else { return };
        match &base.order {
            Some(order) if id_width(base.num_samples()) == self.width => {
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
    let ends = runs.iter().skip(1).copied().chain([names.num_samples()]);
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
    names: NameCursor<'a>,
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

/// A direct child of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name of the child within the folder.
    pub name: Vec<u8>,
    /// Folder or sample.
    pub kind: EntryKind,
}

/// The kind of an [`Entry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder with at least one live sample below it.
    Folder,
    /// A sample.
    Sample(SampleId),
}

impl Directory {
    /// Calls `visit` with each direct child of `folder`, in the order of names, until `visit` returns false. A
    /// subfolder costs one search, and a look at its samples up to the first live one.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: a name is damaged.
    pub fn for_each_in(
        &self,
        folder: &[u8],
        visit: &mut dyn FnMut(Entry) -> bool,
    ) -> Result<(), FormatError> {
        let names = self.names()?;
        let prefix = prefix_of(folder);
        let mut rank = names.lower_bound(0, &prefix)?;
        let mut name = Vec::new();
        while rank < names.num_samples() {
            let id = SampleId(names.at_rank(rank));
            name.clear();
            names.get(id.0, &mut name)?;
            let Some(within) = name.strip_prefix(&prefix[..]) else { break };
            let slash = within.iter().position(|byte| *byte == b'/');
            let next = match slash {
                None => rank + 1,
                // A slash sorts first, so names after the subfolder's have at least \x01 in place of its slash.
                Some(at) => {
                    let past = [&name[..prefix.len() + at], b"\x01"].concat();
                    names.lower_bound(rank + 1, &past)?
                }
            };
            let entry = match slash {
                None => self.is_live(id).then_some(EntryKind::Sample(id)),
                Some(_) => self.any_live(rank..next, names).then_some(EntryKind::Folder),
            };
            if let Some(kind) = entry {
                let name = within[..slash.unwrap_or(within.len())].to_vec();
                if !visit(Entry { name, kind }) {
                    break;
                }
            }
            rank = next;
        }
        Ok(())
    }

    /// Calls `visit` with the id and name of every live sample below `folder`, in the order of names, until `visit`
    /// returns false.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: a name is damaged.
    pub fn for_each_below(
        &self,
        folder: &[u8],
        visit: &mut dyn FnMut(SampleId, &[u8]) -> bool,
    ) -> Result<(), FormatError> {
        let names = self.names()?;
        let prefix = prefix_of(folder);
        let mut name = Vec::new();
        for rank in names.lower_bound(0, &prefix)?..names.num_samples() {
            let id = SampleId(names.at_rank(rank));
            name.clear();
            names.get(id.0, &mut name)?;
            if !name.starts_with(&prefix) || (self.is_live(id) && !visit(id, &name)) {
                break;
            }
        }
        Ok(())
    }

    /// The first rank at or after `from`, in the order of names, whose name is greater than or equal to `name`; the
    /// number of samples if there is none. A slash sorts before all other bytes.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: a name is damaged.
    pub(crate) fn rank_by_name(&self, from: u64, name: &[u8]) -> Result<u64, FormatError> {
        self.names()?.lower_bound(from, name)
    }

    /// The sample at `rank` in the order of names, deleted or not; its name is written to `name`. `None` if `rank` is
    /// past the last sample.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media. Other errors: the name is damaged.
    pub(crate) fn at_rank_by_name(
        &self,
        rank: u64,
        name: &mut Vec<u8>,
    ) -> Result<Option<SampleId>, FormatError> {
        let names = self.names()?;
        name.clear();
        if rank >= names.num_samples() {
            return Ok(None);
        }
        let id = names.at_rank(rank);
        names.get(id, name)?;
        Ok(Some(SampleId(id)))
    }

    /// Returns whether any sample at these ranks, in the order of names, is live.
    ///
    /// # Errors
    /// `NotLoaded`: the names are still on media.
    pub(crate) fn any_live_by_name(
        &self,
        ranks: std::ops::Range<u64>,
    ) -> Result<bool, FormatError> {
        let names = self.names()?;
        Ok(self.any_live(ranks.start..ranks.end.min(names.num_samples()), names))
    }

    fn any_live(&self, ranks: std::ops::Range<u64>, names: &Names) -> bool {
        ranks.into_iter().any(|rank| self.is_live(SampleId(names.at_rank(rank))))
    }
}

/// The prefix of all names in `folder`.
fn prefix_of(folder: &[u8]) -> Vec<u8> {
    let mut prefix = folder.to_vec();
    if !prefix.is_empty() && prefix.last() != Some(&b'/') {
        prefix.push(b'/');
    }
    prefix
}

/// Names per block.
pub(crate) const BLOCK: u64 = 16;

/// Most runs to merge; more are sorted instead, since each run takes memory for a cursor and a name.
const MAX_RUNS: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
