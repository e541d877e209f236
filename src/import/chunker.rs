//! Divides the rows of a source among chunks and assigns their cells: arithmetic on lengths.

use crate::format::Fit;
use crate::format::fill::Fill;
use crate::format::{CellRange, ChunkSpec, FormatError, Placement, Space, fields};
use crate::import::sources::Index;
use crate::units::Slot;

/// The rows of a source with their field, label and id in the image.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    /// The source's index.
    pub(super) index: &'a Index,
    /// For each field of the image, the corresponding field of the source.
    pub(super) source_fields: Vec<Option<u16>>,
    /// For each class of the source, its number in the image; empty if labels are numbers.
    pub(super) class_numbers: Vec<i64>,
}

impl Rows<'_> {
    /// Lengths of a row's fields, in the image's order.
    pub(super) fn field_lens(&self, row: u64, lens: &mut Vec<Option<u64>>) {
        lens.clear();
        let len = |field: &Option<u16>| {
            field.and_then(|field| self.index.field_len_bytes(row, field)).map(u64::from)
        };
        lens.extend(self.source_fields.iter().map(len));
    }

    /// Length of a row's record.
    pub(super) fn record_len(
        &self,
        row: u64,
        lens: &mut Vec<Option<u64>>,
    ) -> Result<u32, FormatError> {
        self.field_lens(row, lens);
        fields::record_len(lens)
    }

    /// Label of a row in the image.
    pub(super) fn label(&self, row: u64) -> Option<i64> {
        let label = self.index.label(row)?;
        let class = usize::try_from(label).ok().and_then(|at| self.class_numbers.get(at));
        Some(class.copied().unwrap_or(label))
    }
}

/// A chunk to be written: its slots and its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkLayout {
    /// Its number within the generation.
    pub(super) sequence: u64,
    /// Slot of its first sample.
    pub(super) first_slot: Slot,
    /// Its number of samples.
    pub(super) num_slots: u32,
    /// Where it lies.
    pub(super) cells: CellRange,
    /// Whether it is one sample too large for a cell.
    pub(super) oversize: bool,
}

/// Lays out one chunk after the other. Deterministic: equal inputs give equal chunks.
#[derive(Debug)]
pub(super) struct Chunker<'a> {
    rows: &'a Rows<'a>,
    spec: &'a ChunkSpec,
    placement: &'a Placement,
    space: Space,
    next_slot: u64,
    sequence: u64,
    fields_len: usize,
    lens: Vec<Option<u64>>,
}

impl<'a> Chunker<'a> {
    /// Lays out the part of `placement` in the free cells of `space`.
    pub(super) fn new(
        rows: &'a Rows<'a>,
        spec: &'a ChunkSpec,
        placement: &'a Placement,
        space: Space,
    ) -> Chunker<'a> {
        let fields_len = spec.fields.iter().map(|name| 2 + name.len()).sum();
        let next_slot = placement.part().first;
        let lens = Vec::new();
        Chunker { rows, spec, placement, space, next_slot, sequence: 0, fields_len, lens }
    }

    /// Number of chunks so far.
    pub(super) fn planned(&self) -> u64 {
        self.sequence
    }

    /// The next chunk; `None` when every slot has one.
    ///
    /// # Errors
    /// `NoSpace`: there is no free cell range for it.
    pub(super) fn next_chunk(&mut self) -> Result<Option<ChunkLayout>, FormatError> {
        let part = self.placement.part();
        let (first_slot, end) = (self.next_slot, part.first + part.count);
        let mut fill = Fill::new(self.spec.layout, self.fields_len);
        let mut oversize_len = None;
        while self.next_slot < end {
            let row = self.row_at(Slot(self.next_slot));
            let len = self.rows.record_len(row, &mut self.lens)?;
            let name_len = self.rows.index.name(row).len();
            match fill.fit(name_len, len) {
                Fit::Here => fill.take(name_len, len),
                Fit::Oversize if fill.num_samples() == 0 => {
                    oversize_len = Some(fill.oversize_len_bytes(name_len, len));
                    self.next_slot += 1;
                    break;
                }
                Fit::NextChunk | Fit::Oversize => break,
            }
            self.next_slot += 1;
        }
        if self.next_slot == first_slot {
            return Ok(None);
        }
        let cells = oversize_len.map_or(1, |len| self.spec.layout.cells_of(len));
        let sequence = self.sequence;
        self.sequence += 1;
        let range = self.space.allocate(sequence, cells);
        Ok(Some(ChunkLayout {
            sequence,
            first_slot: Slot(first_slot),
            num_slots: (self.next_slot - first_slot) as u32,
            cells: range.ok_or_else(|| self.space.no_room(cells))?,
            oversize: oversize_len.is_some(),
        }))
    }

    /// The remaining free space.
    pub(super) fn into_space(self) -> Space {
        self.space
    }

    fn row_at(&self, slot: Slot) -> u64 {
        self.placement.id_at(slot).0 - self.placement.part().first
    }
}
