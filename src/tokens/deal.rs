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
//! - `none`: each document is a row; documents of more than C tokens are cut into rows as above. The rows of a window
//!   lie in buckets: a row of k tokens has max(1, k - 1) inputs, and lies in the bucket with the least bound that is
//!   not below. Bounds are the powers of two and the numbers halfway between, up to L, and L: 1, 2, 3, 4, 6, 8, 12 and
//!   so on. Rows of a bucket stay in the order of positions, and within a document. The n buckets of a window that have
//!   rows, ascending, come in the order of the permutation of 0..n by the same key.
//!
//! Each row counts L tokens. A phase of an epoch has another L: it begins with the first row before which rows have
//! counted its tokens, and windows are packed with the L of their first row, so there with the first window whose first
//! row is one. In `concat` a row of a new phase begins with the last token of the row before, as all do. Rows are
//! numbered through all phases.
//!
//! Global batch g of W ranks with B rows each, after `consumed` rows of the epoch, has the rows from consumed + gWB
//! on; rank r has the B rows from consumed + (gW + r)B on. A global batch that is not whole before a phase begins, or
//! at the epoch's end, is dropped; the next one begins with the phase, whose B may differ. So any number of ranks
//! with any number of rows can resume between two global batches.
//!
//! In `none`, the rows of a global batch are as wide as the widest bucket that one of them lies in.

use std::ops::Range;

use dlfs_base::error::Result;
use dlfs_base::units::Epoch;
use dlfs_order::order::Shard;
use dlfs_order::order::budget::{Budget, Dealt, RowPlace};

use crate::layout::{Layout, LayoutWriter};
use crate::packer::Packer;

/// The rows of one rank in an epoch, from a point between two global batches on.
///
/// Packs all documents from a place of these rows on, or from the epoch's start: only lengths tell how many rows come
/// before. Keeps those of two global batches; whole windows, unless documents lie end to end.
#[derive(Debug, Clone)]
pub struct RowDeal<T> {
    packer: Packer<T>,
    shard: Shard,
    /// The rows of a rank in a global batch, by phase.
    rows: Vec<u64>,
    /// The place of the first rows, until it is checked.
    place: Option<RowPlace>,
    /// The rows before the next global batch, or more where some are dropped.
    from: u64,
    /// The number of batches of that global batch that the ranks of the shard have taken.
    taken: u64,
}

/// The rows that all ranks take together.
#[derive(Debug, Clone, Copy)]
struct GlobalBatch {
    first: u64,
    end: u64,
    /// Those of one rank.
    rows: u64,
}

impl<T: Copy> RowDeal<T> {
    /// The rows of the rank of `shard` in `epoch`, which has `len` positions, after `shard.consumed` rows, in batches
    /// of `rows`: a number for each phase, of which the last holds for all that follow. `place` is the one that was
    /// dealt with these consumed rows. A shard of several ranks has the batches of its ranks in turn.
    ///
    /// # Panics
    /// The budget is not one of rows, or not [checked](Budget::check); there is no number of rows.
    pub fn new(
        budget: &Budget,
        rows: &[u32],
        (seed, epoch): (u64, Epoch),
        len: u64,
        shard: Shard,
        place: Option<RowPlace>,
    ) -> RowDeal<T> {
        let packer = Packer::new(budget, (seed, epoch), len, place.as_ref());
        let last = rows.last().expect("a number of rows");
        let rows = rows.iter().chain(std::iter::repeat(last)).take(budget.phases.len() + 1);
        let rows = rows.map(|&rows| u64::from(rows.max(1))).collect();
        let mut deal = RowDeal { packer, shard, rows, place, from: shard.consumed, taken: 0 };
        deal.packer.forget_before(deal.from);
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
    /// a row. The place is not that of the consumed rows.
    pub fn next(
        &mut self,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
        out: &mut Vec<T>,
        layout: &mut Layout,
    ) -> Result<Option<Dealt>> {
        if let Some(place) = &self.place {
            self.packer.begin_at(place, self.shard.consumed, draw)?;
            self.place = None;
        }
        let Some(batch) = self.batch_from(self.from, draw)? else { return Ok(None) };
        // Known before the batch is dealt: this tells whether it is the last one.
        let next = self.batch_from(batch.end, draw)?;
        let mut writer = LayoutWriter::new(layout, out);
        let rank =
            u64::from(self.shard.rank) + self.taken * u64::from(self.shard.world_size.max(1));
        let first = batch.first + rank * batch.rows;
        for row in first..first + batch.rows {
            writer.begin_row();
            self.packer.write(row, &mut writer);
        }
        layout.seq_len = self.packer.widest(batch.first..batch.end);
        let consumed = next.map_or(batch.end, |next| next.first);
        let place = next.and_then(|next| self.packer.place_of(next.first));
        self.taken += 1;
        if self.taken == u64::from(self.shard.seats.max(1)) {
            self.taken = 0;
            self.from = consumed;
            self.packer.forget_before(consumed);
        }
        Ok(Some(Dealt { consumed, ends_epoch: next.is_none(), place }))
    }

    /// The first whole global batch from row `from` on. Packs documents until its rows are known.
    fn batch_from(
        &mut self,
        mut from: u64,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
    ) -> Result<Option<GlobalBatch>> {
        // Row `from` tells the phase, once it is known.
        while self.is_known(from, draw)? {
            let rows = self.rows[self.packer.phases.at(from)];
            let end = from.saturating_add(rows.saturating_mul(self.shard.num_ranks()));
            let is_whole = self.is_known(end - 1, draw)?;
            match self.packer.phases.next_start(from).filter(|start| *start < end) {
                None if is_whole => return Ok(Some(GlobalBatch { first: from, end, rows })),
                None => return Ok(None),
                Some(start) => from = start,
            }
        }
        Ok(None)
    }

    /// Packs documents until `row` is known, and returns whether there is such a row.
    fn is_known(
        &mut self,
        row: u64,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
    ) -> Result<bool> {
        while self.packer.known() <= row && !self.packer.is_over() {
            self.packer.pack_next(draw)?;
        }
        Ok(self.packer.known() > row)
    }
}

#[cfg(test)]
mod tests;
