//! Packs the documents of an epoch into rows, in the order of positions.

use std::ops::Range;

use dlfs_base::error::{Result, invalid};
use dlfs_base::permutation::Key;
use dlfs_base::units::Epoch;
use dlfs_order::order::budget::{Budget, Pack, RowPlace, RowSpec, wrong_place};

use crate::layout::LayoutWriter;
use crate::line::Line;
use crate::phases::Phases;
use crate::windows::Windows;

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

    /// The capacity of the rows that are packed next. Rows of a line may have another one.
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
        let check = 0;
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
    /// Errors of `draw`. It is not.
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

    /// Drops the documents before `row`, now and later.
    pub(crate) fn forget_before(&mut self, row: u64) {
        match &mut self.rows {
            Rows::Line(line) => line.forget_before(self.phases.tokens_before(row)),
            Rows::Windows(windows) => windows.forget_before(row),
        }
    }
}

/// Positions drawn at once if documents are not packed by windows.
const STEP: u64 = 1024;

/// The first word of the keys that bring rows and buckets of windows into their order. Frozen.
const LABEL: u64 = 0x726f_7773;
