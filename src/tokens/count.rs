//! Counts the rows and tokens of an epoch.

use std::ops::Range;

use dlfs_base::error::Result;
use dlfs_base::units::Epoch;
use dlfs_order::order::budget::{Budget, Pack};
use serde::Serialize;

use crate::packer::Packer;

/// The rows and tokens of an epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RowCounts {
    /// The number of rows.
    pub rows: u64,
    /// The documents that have tokens.
    pub documents: u64,
    /// Their tokens, with separators; also those that are dropped.
    pub tokens: u64,
    /// Columns of all rows. A row of one document is as wide as its bucket; in a batch it may be wider.
    pub columns: u64,
    /// Those without a token.
    pub padding: u64,
    /// Documents that lie in more than one piece: have several segments.
    pub cuts: u64,
    /// Tokens behind the last row.
    pub dropped: u64,
    /// The rows of each phase; the first one is the epoch's start.
    pub phases: Vec<u64>,
}

/// Counts the rows of an epoch of `len` positions. `draw` appends the tokens of the documents at consecutive positions,
/// without separators.
///
/// # Errors
/// Errors of `draw`. A document that must not be cut is longer than a row.
///
/// # Panics
/// The budget is not one of rows, or not [checked](Budget::check).
pub fn count_rows(
    budget: &Budget,
    seed: u64,
    epoch: Epoch,
    len: u64,
    mut draw: impl FnMut(Range<u64>, &mut Vec<u32>) -> Result<()>,
) -> Result<RowCounts> {
    let mut packer = Packer::<()>::new(budget, (seed, epoch), len, None);
    packer.forget_before(u64::MAX);
    let separator = packer.separator();
    let is_concat = budget.rows.is_some_and(|rows| rows.pack == Pack::Concat);
    let phases = packer.phases.clone(); // of a line, all have begun
    let mut counts = RowCounts::default();
    // The first row of the last document of `concat` that has tokens in several rows.
    let mut cut_from = 0;
    while !packer.is_over() {
        let capacity = u64::from(packer.capacity());
        packer.pack_next(&mut |range, documents: &mut Vec<()>, lengths: &mut Vec<u32>| {
            draw(range, lengths)?;
            documents.resize(lengths.len(), ());
            for &len in lengths.iter().filter(|len| **len > 0) {
                let start = counts.tokens;
                counts.documents += 1;
                counts.tokens += u64::from(len) + u64::from(separator);
                let first = if is_concat { phases.row_at(start.saturating_sub(1)) } else { 0 };
                let is_cut = if is_concat {
                    first < phases.row_at(counts.tokens - 1)
                } else {
                    counts.tokens - start > capacity
                };
                if is_cut {
                    counts.cuts += 1;
                    cut_from = first;
                }
            }
            Ok(())
        })?;
    }
    counts.rows = packer.known();
    counts.phases = packer.phases.rows_of_each(counts.rows);
    if !is_concat {
        counts.columns = packer.columns;
        counts.padding = counts.columns - counts.tokens;
        return Ok(counts);
    }
    let lens = (0..).map(|phase| u64::from(packer.phases.len(phase)) + 1);
    counts.columns = counts.phases.iter().zip(lens).map(|(rows, len)| rows * len).sum();
    if counts.rows == 0 {
        counts.dropped = counts.tokens;
    } else {
        counts.dropped = counts.tokens - 1 - packer.phases.tokens_before(counts.rows);
        // The last token of the last row also begins a row that is dropped.
        counts.cuts -= u64::from(cut_from + 1 == counts.rows);
    }
    Ok(counts)
}
