//! The ids in the order of their names, merged from runs that are in order already.
//!
//! Names come from sorted sources, so few runs ascend for long: those of a TFRecord shard, `shard/0` to
//! `shard/9`, `shard/10` to `shard/99` and so on, are one for each length of the number. Merging them reads
//! each run once from its start to its end, which front-coded names allow without decoding them first. The
//! names of an earlier generation are one more run, of which only those next to new names are read.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::directory::Bytes;
use crate::directory::names::{NameCursor, Names};
use crate::directory::tree::id_width;
use crate::format::FormatError;
use crate::format::names::compare;

/// The order of `names`, whose first ids are those of `base`. The others ascend from each of `runs` up to
/// the next. Equal names are in the order of their ids.
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

/// Merges new names into the order of the earlier ones.
struct Merge<'a> {
    base: Option<&'a Names>,
    /// Rank of the first earlier name that is not in `out`.
    next: u64,
    width: usize,
    out: Vec<u8>,
}

impl Merge<'_> {
    fn push(&mut self, id: u64, name: &[u8]) -> Result<(), FormatError> {
        if let Some(base) = self.base {
            self.copy_until(base.first_after(self.next, name)?);
        }
        self.out.extend_from_slice(&id.to_le_bytes()[..self.width]);
        Ok(())
    }

    /// Copies the earlier ids up to `rank`.
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

/// Called with ids and their names, in the order of names.
type Visit<'a> = dyn FnMut(u64, &[u8]) -> Result<(), FormatError> + 'a;

/// Calls `visit` with the names from the first run on, in their order.
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

/// As [`for_each_sorted`] for names in no order: decodes them all.
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
    // Stable: equal names stay in the order of their ids.
    order.sort_by(|&a, &b| compare(name(a), name(b)));
    order.into_iter().try_for_each(|index| visit(first + index as u64, name(index)))
}

/// A run of ascending names; the greatest has the least name, as a heap needs it.
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

/// More runs than this are sorted: each run takes a cursor, and its name, of memory.
const MAX_RUNS: usize = 1 << 14;
