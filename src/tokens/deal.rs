//! The rows of an epoch, dealt to ranks in global batches.
//!
//! # The definition of rows
//!
//! Frozen; `tests/golden/rows.txt` pins it. The documents come in the order of the epoch's positions. A document of n
//! tokens counts n, or n + 1 if documents are separated: its separator is its last token. A document without tokens is
//! left out, and has no separator. C = L + 1 is the capacity of a row: columns 0 to L - 1 are inputs, and columns 1 to
//! L are their labels.
//!
//! - `concat`: all documents end to end are T tokens. Row j has the tokens from jL to jL + L, so it shares one token
//!   with the row before. There are (T - 1) / L rows if T >= C, else none. The tokens behind the last row, at most L,
//!   are dropped.
//! - `best_fit`: windows of M positions, the last of which may be shorter, are packed independently. Documents of
//!   more than C tokens are cut from their start into pieces of C tokens, and a rest. Documents and pieces are
//!   sorted by descending length; equal ones stay in the order of positions, and within a document. Each goes to the
//!   row with the least room that still has room for it, and among rows with the same room, to the one that got this
//!   room last; otherwise to a new row. Within a row they lie in the order in which they came. The n rows of
//!   window w, in the order in which they were opened, come in the order of the permutation of 0..n by the
//!   [`Key`](dlfs_base::permutation::Key) of the seed and the words 0x726f7773 (`rows`), epoch and w: the first one is
//!   `forward(0)`.
//! - `none`: each document is a row; documents of more than C tokens are cut into rows as above.
//!
//! Global batch g of W ranks with B rows each, after `consumed` rows of the epoch, has the rows from
//! consumed + gWB on; rank r has the B rows from consumed + (gW + r)B on. A global batch that is not whole is
//! dropped. So any number of ranks with any number of rows can resume between two global batches.

use std::ops::Range;

use dlfs_base::error::{Result, invalid};
use dlfs_base::units::Epoch;
use dlfs_order::order::Shard;
use dlfs_order::order::budget::{Budget, Dealt, Pack, RowSpec};
use serde::Serialize;

use crate::best_fit::BestFit;
use crate::layout::{Layout, LayoutWriter};
use crate::line::Line;

/// The rows of one rank in an epoch, from a point between two global batches on.
///
/// Packs all documents from the epoch's start on, since only their lengths tell how many rows come before. Keeps those
/// from the rank's next batch to the end of the next global batch; whole windows in best fit.
#[derive(Debug, Clone)]
pub struct RowDeal<T> {
    packer: Packer<T>,
    shard: Shard,
    /// The rows of a rank in a global batch.
    rows: u64,
    /// The number of batches that the rank, or its place, has taken.
    taken: u64,
}

impl<T: Copy> RowDeal<T> {
    /// The rows of the rank of `shard` in `epoch`, which has `len` positions, after `shard.consumed` rows, in batches
    /// of `rows`. A place of several ranks has the batches of its ranks in turn.
    ///
    /// # Panics
    /// The budget is not one of rows, or not [checked](Budget::check).
    pub fn new(
        budget: &Budget,
        rows: u32,
        seed: u64,
        epoch: Epoch,
        len: u64,
        shard: Shard,
    ) -> RowDeal<T> {
        let packer = Packer::new(budget, seed, epoch, len);
        let mut deal = RowDeal { packer, shard, rows: u64::from(rows.max(1)), taken: 0 };
        deal.packer.forget_before(deal.first_row(deal.number()));
        deal
    }

    /// The rank's next batch: replaces `layout`, and appends the documents of its segments to `out`, once for
    /// neighbouring segments. Documents count from the first one that is appended. `None`: no whole global batch is
    /// left, and nothing is written.
    ///
    /// `draw` appends the documents at consecutive positions, and the tokens of each without separator. The result
    /// counts rows: those that all ranks have after this global batch, and whether it is the last one.
    ///
    /// # Errors
    /// Errors of `draw`; nothing is lost, and the next call tries again. A document that must not be cut is longer than
    /// a row.
    pub fn next(
        &mut self,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
        out: &mut Vec<T>,
        layout: &mut Layout,
    ) -> Result<Option<Dealt>> {
        let ranks = self.shard.num_ranks();
        let number = self.number();
        let end = self.first_row((number / ranks + 1).saturating_mul(ranks));
        // Known until the end of the next global batch: this tells whether there is one.
        let end_of_next = end.saturating_add(self.rows.saturating_mul(ranks));
        while self.packer.known() < end_of_next && !self.packer.is_over() {
            self.packer.pack_next(draw)?;
        }
        if self.packer.known() < end {
            return Ok(None);
        }
        let mut writer = LayoutWriter::new(layout, out);
        let first = self.first_row(number);
        for row in first..first + self.rows {
            writer.begin_row();
            self.packer.write(row, &mut writer);
        }
        self.taken += 1;
        self.packer.forget_before(self.first_row(self.number()));
        Ok(Some(Dealt { consumed: end, ends_epoch: self.packer.known() < end_of_next }))
    }

    /// The number of the rank's next batch, counted over all ranks.
    fn number(&self) -> u64 {
        let places = u64::from(self.shard.world_size.max(1));
        self.taken * places + u64::from(self.shard.rank)
    }

    /// The first row of a batch. The consumed rows may come from a state file.
    fn first_row(&self, number: u64) -> u64 {
        self.shard.consumed.saturating_add(number.saturating_mul(self.rows))
    }
}

/// The rows and tokens of an epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RowCounts {
    /// The number of rows.
    pub rows: u64,
    /// The documents that have tokens.
    pub documents: u64,
    /// Their tokens, with separators; also those that are dropped.
    pub tokens: u64,
    /// Columns of rows without a token.
    pub padding: u64,
    /// Documents that lie in more than one piece: have several segments.
    pub cuts: u64,
    /// Tokens behind the last row.
    pub dropped: u64,
}

/// Counts the rows of an epoch of `len` positions. `draw` appends the tokens of the documents at consecutive positions,
/// without separators.
///
/// # Errors
/// Errors of `draw`. A document that must not be cut is longer than a row.
///
/// # Panics
/// As [`RowDeal::new`].
pub fn count_rows(
    budget: &Budget,
    seed: u64,
    epoch: Epoch,
    len: u64,
    mut draw: impl FnMut(Range<u64>, &mut Vec<u32>) -> Result<()>,
) -> Result<RowCounts> {
    let mut packer = Packer::<()>::new(budget, seed, epoch, len);
    packer.forget_before(u64::MAX);
    let separator = packer.separator;
    let is_concat = packer.spec.pack == Pack::Concat;
    let capacity = budget.tokens;
    let row_len = capacity - 1;
    let mut counts = RowCounts::default();
    // The first row of the last document of `concat` that has tokens in several rows.
    let mut cut_from = 0;
    while !packer.is_over() {
        packer.pack_next(&mut |range, documents: &mut Vec<()>, lengths: &mut Vec<u32>| {
            draw(range, lengths)?;
            documents.resize(lengths.len(), ());
            for &len in lengths.iter().filter(|len| **len > 0) {
                let start = counts.tokens;
                counts.documents += 1;
                counts.tokens += u64::from(len) + u64::from(separator);
                let first = start.saturating_sub(1) / row_len;
                let is_cut = if is_concat {
                    first < (counts.tokens - 1) / row_len
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
    if !is_concat {
        counts.padding = counts.rows * capacity - counts.tokens;
    } else if counts.rows == 0 {
        counts.dropped = counts.tokens;
    } else {
        counts.dropped = counts.tokens - 1 - counts.rows * row_len;
        // The last token of the last row also begins a row that is dropped.
        counts.cuts -= u64::from(cut_from + 1 == counts.rows);
    }
    Ok(counts)
}

/// Packs the documents of an epoch, in the order of positions.
#[derive(Debug, Clone)]
struct Packer<T> {
    spec: RowSpec,
    capacity: u32,
    /// The tokens of a separator: 1, or 0 if there is none.
    separator: u32,
    /// The next position, and the number of all.
    next: u64,
    len: u64,
    /// The positions that are packed together.
    step: u64,
    rows: Rows<T>,
    documents: Vec<T>,
    tokens: Vec<u32>,
}

#[derive(Debug, Clone)]
enum Rows<T> {
    Line(Line<T>),
    BestFit(Box<BestFit<T>>),
}

impl<T: Copy> Packer<T> {
    fn new(budget: &Budget, seed: u64, epoch: Epoch, len: u64) -> Packer<T> {
        let spec = budget.rows.expect("a budget of rows");
        let capacity = u32::try_from(budget.tokens).expect("a checked capacity");
        let window = u64::from(budget.window);
        let (rows, step) = match spec.pack {
            Pack::Concat => (Rows::Line(Line::new(capacity, true)), STEP),
            Pack::None => (Rows::Line(Line::new(capacity, false)), STEP),
            Pack::BestFit => {
                (Rows::BestFit(Box::new(BestFit::new(capacity, seed, epoch.0))), window)
            }
        };
        let separator = u32::from(spec.separated);
        let documents = Vec::new();
        let tokens = Vec::new();
        Packer { spec, capacity, separator, next: 0, len, step, rows, documents, tokens }
    }

    /// Returns whether all documents are packed.
    fn is_over(&self) -> bool {
        self.next >= self.len
    }

    /// Packs the next documents, unless they cannot be drawn.
    fn pack_next(
        &mut self,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        let end = self.len.min(self.next + self.step);
        self.documents.clear();
        self.tokens.clear();
        draw(self.next..end, &mut self.documents, &mut self.tokens)?;
        let is_whole = self.spec.pack != Pack::Concat && !self.spec.cuts;
        let most = if is_whole { self.capacity } else { u32::MAX } - self.separator;
        for (position, tokens) in (self.next..).zip(&mut self.tokens) {
            if *tokens > most {
                return Err(invalid(format!(
                    "the document at position {position} of the epoch has {tokens} tokens, more than {most}"
                ))
                .hint("allow that documents are cut, or make rows longer"));
            }
            *tokens += if *tokens > 0 { self.separator } else { 0 };
        }
        match &mut self.rows {
            Rows::Line(line) => line.put(&self.documents, &self.tokens),
            Rows::BestFit(windows) => windows.put(&mut self.documents, &mut self.tokens),
        }
        self.next = end;
        Ok(())
    }

    fn known(&self) -> u64 {
        match &self.rows {
            Rows::Line(line) => line.known(),
            Rows::BestFit(windows) => windows.known(),
        }
    }

    fn write(&self, row: u64, writer: &mut LayoutWriter<'_, T>) {
        match &self.rows {
            Rows::Line(line) => line.write(row, writer),
            Rows::BestFit(windows) => windows.write(row, writer),
        }
    }

    fn forget_before(&mut self, row: u64) {
        match &mut self.rows {
            Rows::Line(line) => line.forget_before(row),
            Rows::BestFit(windows) => windows.forget_before(row),
        }
    }
}

/// Positions drawn at once if documents are not packed by windows.
const STEP: u64 = 1024;

#[cfg(test)]
mod tests;
