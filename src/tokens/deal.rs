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
//!   fullest row that it fits into; of equally full rows, to the one that became so last; if it fits into none, it
//!   opens a new row. A row keeps them in the order in which they were added. The n rows of window w, in the order in
//!   which they were opened, come in the order of the permutation of 0..n by the
//!   [`Key`](dlfs_base::permutation::Key) of the seed and the words 0x726f7773 (`rows`), epoch and w: the first one is
//!   `forward(0)`.
//! - `none`: each document is a row; documents of more than C tokens are cut into rows as above. The rows of a window
//!   lie in buckets: a row of k tokens has max(1, k - 1) inputs, and lies in the bucket with the smallest bound that
//!   is at least this. Bounds are the powers of two and the numbers halfway between, up to L, and L: 1, 2, 3, 4, 6, 8,
//!   12 and so on. Rows of a bucket stay in the order of positions, and within a document. The n buckets of a window
//!   that have rows, ascending, come in the order of the permutation of 0..n by the same key.
//!
//! A row counts as L tokens, whatever it holds. An epoch may have later *phases* with another L
//! ([`RowPhase`](dlfs_order::order::budget::RowPhase)). In `concat`, a phase begins with the first row before which the
//! rows of the epoch count at least the phase's `from` tokens; its first row, like every other, begins with the last
//! token of the row before. Otherwise a phase begins with the first window whose first row satisfies this, since a
//! window is packed with one L. Row numbers continue through all phases.
//!
//! Global batch g of W ranks with B rows each, after `consumed` rows of the epoch, has the rows from consumed + gWB
//! on; rank r has the B rows from consumed + (gW + r)B on. A global batch that is not whole before a phase begins, or
//! at the epoch's end, is dropped; the next one begins with the phase, whose B may differ. So any number of ranks
//! with any number of rows can resume between two global batches.
//!
//! In `none`, the rows of a global batch are as wide as the widest bucket that one of them lies in.
//!
//! # The parts
//!
//! [`RowDeal`] serves the rows of a rank. [`Packer`] packs documents into rows: `line.rs` is the token stream of
//! `concat`, `windows.rs` has the rows of the other two, and `phases.rs` maps rows to tokens. [`count_rows`] only
//! counts.

use std::ops::Range;

use serde::Serialize;

use crate::layout::{Layout, LayoutWriter};
use crate::line::Line;
use crate::phases::Phases;
use crate::windows::Windows;
use dlfs_base::error::{Result, invalid};
use dlfs_base::permutation::Key;
use dlfs_base::units::Epoch;
use dlfs_order::order::Shard;
use dlfs_order::order::budget::{Budget, Dealt, Pack, RowPlace, RowSpec, wrong_place};

/// The rows of one rank in an epoch, from a point between two global batches on.
///
/// Packs all documents from `place` on, or from the epoch's start, since the number of rows before a row depends on the
/// lengths of all earlier documents. Keeps the documents of two global batches; in `best_fit` and `none`, those of
/// whole windows.
#[derive(Debug, Clone)]
pub struct RowDeal<T> {
    packer: Packer<T>,
    shard: Shard,
    /// Rows per rank in a global batch (B), by phase.
    rows: Vec<u64>,
    /// The place of the first rows, until it is checked.
    place: Option<RowPlace>,
    /// The next global batch begins at this row, or later if a phase begins first and rows are dropped.
    from: u64,
    /// The number of batches of the next global batch that ranks of the shard have taken already.
    taken: u64,
}

/// Appends the documents at a range of positions, and the tokens of each without separator.
type Draw<'d, T> = dyn FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()> + 'd;

/// The rows that all ranks take together.
#[derive(Debug, Clone, Copy)]
struct GlobalBatch {
    /// Its first row.
    first: u64,
    /// The row behind its last one.
    end: u64,
    /// Rows per rank (B).
    rows: u64,
}

impl<T: Copy> RowDeal<T> {
    /// The rows of the rank of `shard` in `epoch`, which has `len` positions, after `shard.consumed` rows.
    /// `rows` has the rows per batch of each phase; its last value holds for all later phases. `place` is the one that
    /// [`RowDeal::next`] returned with `shard.consumed`. A shard of several ranks has the batches of its ranks in turn.
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

    /// The rank's next batch: replaces `layout`, and appends the document of each segment to `out`; consecutive
    /// segments of one document share one entry. Segments number documents from the first entry appended. `None`: no
    /// whole global batch is left, and nothing is written.
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
    fn batch_from(&mut self, mut from: u64, draw: &mut Draw<'_, T>) -> Result<Option<GlobalBatch>> {
        // Row `from` tells the phase, once it is known.
        while self.pack_until_known(from, draw)? {
            let rows = self.rows[self.packer.phases.at(from)];
            let end = from.saturating_add(rows.saturating_mul(self.shard.num_ranks()));
            let is_whole = self.pack_until_known(end - 1, draw)?;
            match self.packer.phases.next_start(from).filter(|start| *start < end) {
                None if is_whole => return Ok(Some(GlobalBatch { first: from, end, rows })),
                None => return Ok(None),
                Some(start) => from = start,
            }
        }
        Ok(None)
    }

    /// Packs documents until `row` is known, and returns whether there is such a row.
    fn pack_until_known(&mut self, row: u64, draw: &mut Draw<'_, T>) -> Result<bool> {
        while self.packer.known() <= row && !self.packer.is_over() {
            self.packer.pack_next(draw)?;
        }
        Ok(self.packer.known() > row)
    }
}

/// The rows of an epoch, as far as they are known.
#[derive(Debug, Clone)]
struct Packer<T> {
    spec: RowSpec,
    phases: Phases,
    seed: u64,
    epoch: Epoch,
    /// The next position to pack.
    next: u64,
    /// The number of positions of the epoch.
    len: u64,
    /// The number of positions that are packed together.
    step: u64,
    rows: Rows<T>,
    /// The number of columns of the rows of all windows so far; 0 for `concat`.
    columns: u64,
    /// The documents that are packed next, and their numbers of tokens. Memory for reuse.
    documents: Vec<T>,
    tokens: Vec<u32>,
}

/// The rows packed so far.
#[derive(Debug, Clone)]
enum Rows<T> {
    /// `concat`.
    Line(Line<T>),
    /// `best_fit` and `none`.
    Windows(Box<Windows<T>>),
}

impl<T: Copy> Packer<T> {
    /// Rows of an epoch of `len` positions, from `place` on or from its start.
    ///
    /// # Panics
    /// The budget is not one of rows, or not checked.
    fn new(
        budget: &Budget,
        (seed, epoch): (u64, Epoch),
        len: u64,
        place: Option<&RowPlace>,
    ) -> Packer<T> {
        let spec = budget.rows.expect("a budget of rows");
        let (rows, phases, step) = if spec.pack == Pack::Concat {
            let line = Line::new(place.map_or(0, |place| place.tokens));
            (Rows::Line(line), Phases::of_line(budget), STEP)
        } else {
            let is_best_fit = spec.pack == Pack::BestFit;
            let windows = Windows::new(is_best_fit, place.map_or(0, |place| place.rows));
            let phases = Phases::of_windows(budget, place);
            (Rows::Windows(Box::new(windows)), phases, budget.window.into())
        };
        let next = place.map_or(0, |place| place.position);
        let documents = Vec::new();
        let tokens = Vec::new();
        Packer { spec, phases, seed, epoch, next, len, step, rows, columns: 0, documents, tokens }
    }

    /// Returns whether all documents are packed.
    fn is_over(&self) -> bool {
        self.next >= self.len
    }

    /// The tokens of a separator: 1, or 0 if there is none.
    fn separator(&self) -> u32 {
        self.spec.separated.into()
    }

    /// The capacity of the rows that are packed next. In `concat` it is that of the last phase: earlier rows may have
    /// another capacity.
    fn capacity(&self) -> u32 {
        self.phases.len(self.phases.last()) + 1
    }

    /// Packs the next documents, unless they cannot be drawn.
    fn pack_next(&mut self, draw: &mut Draw<'_, T>) -> Result<()> {
        let end = self.len.min(self.next + self.step);
        self.documents.clear();
        self.tokens.clear();
        draw(self.next..end, &mut self.documents, &mut self.tokens)?;
        let separator = self.separator();
        let is_whole = self.spec.pack != Pack::Concat && !self.spec.cuts;
        let most = if is_whole { self.capacity() } else { u32::MAX } - separator;
        for (position, tokens) in (self.next..).zip(&mut self.tokens) {
            if *tokens > most {
                return Err(invalid(format!(
                    "the document at position {position} of the epoch has {tokens} tokens, more than {most}"
                ))
                .hint("allow that documents are cut, or make rows longer"));
            }
            *tokens += if *tokens > 0 { separator } else { 0 };
        }
        match &mut self.rows {
            Rows::Line(line) => line.put(self.next, &self.documents, &self.tokens),
            Rows::Windows(windows) => {
                let words = [LABEL, self.epoch.0, self.next / self.step];
                let key = Key::derive(self.seed, &words);
                let rows = (self.phases.len(self.phases.last()), key);
                self.columns += windows.put(self.next, rows, &mut self.documents, &mut self.tokens);
                let known = windows.known();
                self.phases.begin(known, self.phases.tokens_before(known));
            }
        }
        self.next = end;
        Ok(())
    }

    /// The number of rows that are known.
    fn known(&self) -> u64 {
        match &self.rows {
            Rows::Line(line) => {
                line.len().checked_sub(1).map_or(0, |last| self.phases.row_at(last))
            }
            Rows::Windows(windows) => windows.known(),
        }
    }

    /// The place from which packing finds `row` again; `None`: the row is not known, or not kept.
    fn place_of(&self, row: u64) -> Option<RowPlace> {
        let check = 0; // `dlfs_order::order::State` sets it when it stores the place
        match &self.rows {
            Rows::Line(line) => {
                let (position, tokens) = line.find(self.phases.tokens_before(row))?;
                Some(RowPlace { position, tokens, rows: 0, check })
            }
            Rows::Windows(windows) => {
                let (position, rows) = windows.find(row)?;
                let tokens = self.phases.tokens_before(rows);
                Some(RowPlace { position, tokens, rows, check })
            }
        }
    }

    /// Packs the first documents from `place` on, and checks that it is that of `row`.
    ///
    /// # Errors
    /// Errors of `draw`. `InvalidArgument`: `place` is not that of `row`.
    fn begin_at(&mut self, place: &RowPlace, row: u64, draw: &mut Draw<'_, T>) -> Result<()> {
        let is_start =
            matches!(self.rows, Rows::Line(_)) || place.position.is_multiple_of(self.step);
        let is_before = place.rows <= row && place.tokens <= self.phases.tokens_before(row);
        if is_start && is_before && place.position < self.len {
            if self.next == place.position {
                self.pack_next(draw)?;
            }
            let found = self.place_of(row);
            if found.is_some_and(|found| RowPlace { check: place.check, ..found } == *place) {
                return Ok(());
            }
        }
        Err(wrong_place(place, row))
    }

    /// The inputs of the widest of these rows, which are of one phase, known and kept.
    fn widest(&self, rows: Range<u64>) -> u32 {
        match &self.rows {
            Rows::Line(_) => self.phases.len(self.phases.at(rows.start)),
            Rows::Windows(windows) => windows.widest(rows),
        }
    }

    /// Writes a row that is known and kept.
    fn write(&self, row: u64, writer: &mut LayoutWriter<'_, T>) {
        match &self.rows {
            Rows::Line(line) => {
                let start = self.phases.tokens_before(row);
                let len = self.phases.len(self.phases.at(row));
                line.write(start..start + u64::from(len) + 1, writer);
            }
            Rows::Windows(windows) => windows.write(row, writer),
        }
    }

    /// Drops the documents before `row`, including ones that are packed later.
    fn forget_before(&mut self, row: u64) {
        match &mut self.rows {
            Rows::Line(line) => line.forget_before(self.phases.tokens_before(row)),
            Rows::Windows(windows) => windows.forget_before(row),
        }
    }
}

/// The rows and tokens of an epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RowCounts {
    /// The number of rows.
    pub rows: u64,
    /// The documents that have tokens.
    pub documents: u64,
    /// Their tokens, with separators, including dropped ones.
    pub tokens: u64,
    /// Columns of all rows. A row of one document is as wide as its bucket; its batch may make it wider.
    pub columns: u64,
    /// Columns without a token.
    pub padding: u64,
    /// Documents with several segments.
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

/// Number of positions drawn at once in `concat`.
const STEP: u64 = 1024;

/// The first word of the keys that bring rows and buckets of windows into their order. Frozen.
const LABEL: u64 = 0x726f_7773;

#[cfg(test)]
mod tests;
