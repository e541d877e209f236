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
//! [`RowDeal`] serves the rows of a rank; [`Packer`] packs documents into rows; [`Line`] is the token stream of
//! `concat`, `windows.rs` the other two; [`Phases`] maps rows to tokens; [`count_rows`] only counts.

use std::collections::VecDeque;
use std::ops::Range;

use serde::Serialize;

use crate::layout::{Layout, LayoutWriter};
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
    /// The number of batches of that global batch that the ranks of the shard have taken.
    taken: u64,
}

/// The rows that all ranks take together.
#[derive(Debug, Clone, Copy)]
struct GlobalBatch {
    first: u64,
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
    fn batch_from(
        &mut self,
        mut from: u64,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
    ) -> Result<Option<GlobalBatch>> {
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
    fn pack_until_known(
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

/// The rows of an epoch, as far as they are known.
#[derive(Debug, Clone)]
pub(crate) struct Packer<T> {
    spec: RowSpec,
    pub(crate) phases: Phases,
    seed: u64,
    epoch: Epoch,
    /// The next position, and the number of all.
    next: u64,
    len: u64,
    /// The positions that are packed together.
    step: u64,
    rows: Rows<T>,
    /// The columns of the rows of all windows so far.
    pub(crate) columns: u64,
    documents: Vec<T>,
    tokens: Vec<u32>,
}

#[derive(Debug, Clone)]
enum Rows<T> {
    Line(Line<T>),
    Windows(Box<Windows<T>>),
}

impl<T: Copy> Packer<T> {
    /// Rows of an epoch of `len` positions, from `place` on or from its start.
    ///
    /// # Panics
    /// The budget is not one of rows, or not checked.
    pub(crate) fn new(
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
    pub(crate) fn is_over(&self) -> bool {
        self.next >= self.len
    }

    /// The tokens of a separator: 1, or 0 if there is none.
    pub(crate) fn separator(&self) -> u32 {
        self.spec.separated.into()
    }

    /// The capacity of the rows that are packed next. In `concat` it is that of the last phase: earlier rows may have
    /// another capacity.
    pub(crate) fn capacity(&self) -> u32 {
        self.phases.len(self.phases.last()) + 1
    }

    /// Packs the next documents, unless they cannot be drawn.
    pub(crate) fn pack_next(
        &mut self,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
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
    pub(crate) fn known(&self) -> u64 {
        match &self.rows {
            Rows::Line(line) => {
                line.len().checked_sub(1).map_or(0, |last| self.phases.row_at(last))
            }
            Rows::Windows(windows) => windows.known(),
        }
    }

    /// The place from which `row` is found again: a row that is known and kept.
    pub(crate) fn place_of(&self, row: u64) -> Option<RowPlace> {
        let check = 0; // set by `State`
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
    pub(crate) fn begin_at(
        &mut self,
        place: &RowPlace,
        row: u64,
        draw: &mut impl FnMut(Range<u64>, &mut Vec<T>, &mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
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
    pub(crate) fn widest(&self, rows: Range<u64>) -> u32 {
        match &self.rows {
            Rows::Line(_) => self.phases.len(self.phases.at(rows.start)),
            Rows::Windows(windows) => windows.widest(rows),
        }
    }

    /// Writes a row that is known and kept.
    pub(crate) fn write(&self, row: u64, writer: &mut LayoutWriter<'_, T>) {
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
    pub(crate) fn forget_before(&mut self, row: u64) {
        match &mut self.rows {
            Rows::Line(line) => line.forget_before(self.phases.tokens_before(row)),
            Rows::Windows(windows) => windows.forget_before(row),
        }
    }
}

/// The documents of an epoch, end to end.
#[derive(Debug, Clone)]
pub(crate) struct Line<T> {
    /// The number of tokens so far.
    len: u64,
    /// The documents that reach behind token `keep_from`, without gaps.
    placed: VecDeque<Placed<T>>,
    keep_from: u64,
}

/// A document, which ends where the next one begins.
#[derive(Debug, Clone)]
struct Placed<T> {
    /// The number of its first token.
    start: u64,
    /// Its position in the epoch.
    position: u64,
    document: T,
}

impl<T: Copy> Line<T> {
    /// A line that goes on behind `len` tokens.
    pub(crate) fn new(len: u64) -> Line<T> {
        Line { len, placed: VecDeque::new(), keep_from: 0 }
    }

    /// The number of tokens so far.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Appends the documents at the positions from `first` on.
    pub(crate) fn put(&mut self, first: u64, documents: &[T], tokens: &[u32]) {
        let documents = (first..).zip(documents).zip(tokens);
        for ((position, &document), &tokens) in documents.filter(|(_, tokens)| **tokens > 0) {
            let start = self.len;
            self.len += u64::from(tokens);
            if self.len > self.keep_from {
                self.placed.push_back(Placed { start, position, document });
            }
        }
    }

    /// Drops the documents before token `at`, including ones that are packed later.
    pub(crate) fn forget_before(&mut self, at: u64) {
        self.keep_from = at;
        while !self.placed.is_empty() && self.end_of(0) <= at {
            self.placed.pop_front();
        }
    }

    /// The position of the document that has token `at`, which is kept, and the number of its first token.
    pub(crate) fn find(&self, at: u64) -> Option<(u64, u64)> {
        let placed = self.placed.get(self.index_of(at)?)?;
        (at < self.len).then_some((placed.position, placed.start))
    }

    /// Writes a row of tokens that are kept.
    pub(crate) fn write(&self, row: Range<u64>, writer: &mut LayoutWriter<'_, T>) {
        let first = self.index_of(row.start).unwrap_or(0);
        for (index, placed) in self.placed.iter().enumerate().skip(first) {
            if placed.start >= row.end {
                break;
            }
            let from = row.start.saturating_sub(placed.start);
            let len = self.end_of(index).min(row.end) - placed.start - from;
            // Both are at most the document's tokens, so below 2^32.
            writer.put(placed.position, placed.document, from as u32, len as u32);
        }
    }

    /// The index of the last document that begins with token `at` or one before it.
    fn index_of(&self, at: u64) -> Option<usize> {
        self.placed.partition_point(|placed| placed.start <= at).checked_sub(1)
    }

    fn end_of(&self, index: usize) -> u64 {
        self.placed.get(index + 1).map_or(self.len, |next| next.start)
    }
}

/// The phases of an epoch.
#[derive(Debug, Clone)]
pub(crate) struct Phases {
    /// For each phase, the tokens from which it begins, and the length of rows.
    all: Vec<(u64, u32)>,
    /// For each phase that has begun, its first row, and the tokens that the rows before count. Phases of a line have
    /// all begun, since their rows are known.
    begun: Vec<(u64, u64)>,
}

impl Phases {
    /// The phases of documents that lie end to end.
    pub(crate) fn of_line(budget: &Budget) -> Phases {
        Phases { begun: budget.concat_starts(), ..Phases::not_begun(budget) }
    }

    /// The phases of windows that are packed from `place` on, or from the epoch's start.
    pub(crate) fn of_windows(budget: &Budget, place: Option<&RowPlace>) -> Phases {
        let mut phases = Phases::not_begun(budget);
        let (row, tokens) = place.map_or((0, 0), |place| (place.rows, place.tokens));
        phases.begin(row, tokens);
        phases
    }

    fn not_begun(budget: &Budget) -> Phases {
        let first = u32::try_from(budget.tokens - 1).expect("a checked capacity");
        let later = budget.phases.iter().map(|phase| (phase.from, phase.seq_len));
        Phases { all: std::iter::once((0, first)).chain(later).collect(), begun: Vec::new() }
    }

    /// Begins the phases whose tokens have been reached at the start of a window: `row` is the window's first row, and
    /// the rows before it count `tokens`.
    pub(crate) fn begin(&mut self, row: u64, tokens: u64) {
        let next = self.all[self.begun.len()..].iter();
        let count = next.take_while(|(from, _)| *from <= tokens).count();
        self.begun.extend(std::iter::repeat_n((row, tokens), count));
    }

    /// The phase of a row that is known.
    pub(crate) fn at(&self, row: u64) -> usize {
        self.begun.partition_point(|(first, _)| *first <= row).saturating_sub(1)
    }

    /// The length of rows in a phase.
    pub(crate) fn len(&self, phase: usize) -> u32 {
        self.all[phase].1
    }

    /// The phase that has begun last.
    pub(crate) fn last(&self) -> usize {
        self.begun.len() - 1
    }

    /// The first row of the next phase behind `row`, if one has begun.
    pub(crate) fn next_start(&self, row: u64) -> Option<u64> {
        let next = self.begun.partition_point(|(first, _)| *first <= row);
        self.begun.get(next).map(|(first, _)| *first)
    }

    /// The tokens that the rows before `row` count.
    pub(crate) fn tokens_before(&self, row: u64) -> u64 {
        let phase = self.at(row);
        let (first, tokens) = self.begun[phase];
        let len = u64::from(self.len(phase));
        tokens.saturating_add(row.saturating_sub(first).saturating_mul(len))
    }

    /// The last row of a line that begins with token `at` or one before it.
    pub(crate) fn row_at(&self, at: u64) -> u64 {
        let phase = self.begun.partition_point(|(_, tokens)| *tokens <= at) - 1;
        let (first, tokens) = self.begun[phase];
        first + (at - tokens) / u64::from(self.len(phase))
    }

    /// The number of rows in each phase of an epoch of `rows`.
    pub(crate) fn rows_of_each(&self, rows: u64) -> Vec<u64> {
        let start = |phase| self.begun.get(phase).map_or(rows, |(first, _)| rows.min(*first));
        (0..self.all.len()).map(|phase| start(phase + 1) - start(phase)).collect()
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
    /// Columns of all rows. A row of one document is as wide as its bucket; in a batch it may be wider.
    pub columns: u64,
    /// Columns without a token.
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

/// Positions drawn at once if documents are not packed by windows.
const STEP: u64 = 1024;

/// The first word of the keys that bring rows and buckets of windows into their order. Frozen.
const LABEL: u64 = 0x726f_7773;

#[cfg(test)]
mod tests;
