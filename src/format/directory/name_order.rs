//! Computes the order of names: all ids, sorted by name.
//!
//! Names are stored in the order of ids, but listings and searches need the order of names. Sources are mostly sorted,
//! so the names form a few long runs that already ascend. For example, a TFRecord shard gives one run per number of
//! digits: `shard/0` to `shard/9`, `shard/10` to `shard/99`, and so on. A k-way merge of the runs reads each run once
//! from start to end, so front-coded names are decoded one by one and never held in memory together.
//!
//! The names of an earlier generation are sorted already. New names are merged into them by search, which reads only
//! the earlier names near each new one.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::directory::Bytes;
use crate::directory::names::{NameCursor, Names};
use crate::directory::tree::id_width;
use crate::format::FormatError;
use crate::format::names::compare;

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
            self.copy_until(base.first_after(self.next, name)?);
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

/// Most runs to merge; more are sorted instead, since each run takes memory for a cursor and a name.
const MAX_RUNS: usize = 1 << 14;
