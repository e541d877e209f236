//! Divides the rows of a source among chunks, and assigns cells to the chunks, from the source's index alone: no sample
//! is read, and nothing is written.

use crate::import::columns::RowColumns;
use crate::import::options::MediaUse;
use crate::import::sources::Index;
use dlfs_base::units::{SampleId, Slot};
use dlfs_format::format::builder::ChunkLocation;
use dlfs_format::format::columns::RowValues;
use dlfs_format::format::{
    CellRange, ChunkDraft, ChunkSpec, Fit, FormatError, Placement, SampleMeta, Space, fields,
};

/// The rows of a source as samples of an image: the order of their slots, and their fields, labels and values there.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    /// The source's index.
    pub(super) index: &'a Index,
    /// For each field of the image, the index of the source's field; `None`: the source lacks the field.
    pub(super) source_fields: Vec<Option<u16>>,
    /// For each class of the source, its number in the image. Empty if labels are numbers.
    pub(super) class_numbers: Vec<i64>,
    /// The rows' values in the columns of a file. Not used if the index has the values of all columns.
    pub(super) values: Option<RowColumns<'a>>,
    /// The order of the rows in the index.
    pub(super) order: RowOrder,
}

/// The order of the rows of an index.
#[derive(Debug)]
pub(super) enum RowOrder {
    /// All samples of the part, in the order of ids.
    Ids,
    /// The samples of some chunks, in the order of slots. For each chunk its first slot and the row of that
    /// slot; slots are ascending.
    Slots(Vec<(Slot, u64)>),
}

impl<'a> Rows<'a> {
    /// The row of the sample at `slot`. The index must hold it.
    pub(super) fn row_at(&self, slot: Slot, placement: &Placement) -> u64 {
        match &self.order {
            RowOrder::Ids => placement.id_at(slot).0 - placement.part().first,
            RowOrder::Slots(firsts) => {
                let chunk = firsts.partition_point(|(first, _)| *first <= slot) - 1;
                let (first, row) = firsts[chunk];
                row + (slot.0 - first.0)
            }
        }
    }

    /// The metadata of a row, which has this id in the image.
    pub(super) fn meta(&self, row: u64, id: SampleId) -> SampleMeta<'a> {
        let name = self.index.name(row);
        SampleMeta { id, name, label: self.label(row), values: self.values(row) }
    }

    /// The values of a row in the typed columns.
    pub(super) fn values(&self, row: u64) -> RowValues<'a> {
        match &self.index.columns {
            Some(columns) => columns.row(row as usize), // these include the values from a file
            None => self.values.as_ref().map_or_else(RowValues::default, |values| values.of(row)),
        }
    }

    /// The length of a row's record. Sets `lens` to the lengths of its fields, in the image's order.
    pub(super) fn record_len(
        &self,
        row: u64,
        lens: &mut Vec<Option<u64>>,
    ) -> Result<u32, FormatError> {
        let len = |field: &Option<u16>| {
            field.and_then(|field| self.index.field_len_bytes(row, field)).map(u64::from)
        };
        lens.clear();
        lens.extend(self.source_fields.iter().map(len));
        fields::record_len(lens)
    }

    /// The label of a row in the image.
    fn label(&self, row: u64) -> Option<i64> {
        let label = self.index.label(row)?;
        let class = usize::try_from(label).ok().and_then(|at| self.class_numbers.get(at));
        Some(class.copied().unwrap_or(label))
    }
}

/// The rows of the next slots. They are looked up and touched many at a time: see [`Index::touch`].
#[derive(Debug, Default)]
pub(super) struct RowsAhead {
    /// The slot of the first of `rows`.
    first_slot: u64,
    /// The rows of consecutive slots.
    rows: Vec<u64>,
}

impl RowsAhead {
    /// The row at `slot`.
    pub(super) fn row(&mut self, slot: Slot, rows: &Rows<'_>, placement: &Placement) -> u64 {
        if let RowOrder::Slots(_) = rows.order {
            return rows.row_at(slot, placement); // these rows are contiguous in memory
        }
        if let Some(row) = self.rows.get(slot.0.wrapping_sub(self.first_slot) as usize) {
            return *row;
        }
        let part = placement.part();
        let end = (slot.0 + ROWS_AHEAD).min(part.first + part.count);
        self.first_slot = slot.0;
        self.rows.clear();
        let row = |slot| placement.id_at(Slot(slot)).0 - part.first;
        self.rows.extend((slot.0..end).map(row));
        rows.index.touch(&self.rows);
        self.rows[0]
    }
}

/// Number of rows touched ahead. Each takes a few cache lines; together they fit into the second-level cache.
const ROWS_AHEAD: u64 = 256;

/// A chunk to be written: its slots and its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkLayout {
    /// Number of the chunk within the generation.
    pub(super) sequence: u64,
    /// Slot of the first sample.
    pub(super) first_slot: Slot,
    /// Number of samples.
    pub(super) num_slots: u32,
    /// The cells that the chunk occupies.
    pub(super) cells: CellRange,
    /// Set if the chunk is a single sample, which is too large for a chunk of the usual size.
    pub(super) oversize: bool,
}

impl ChunkLayout {
    /// The slots of its samples.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        let first = self.first_slot.0;
        (first..first + u64::from(self.num_slots)).map(Slot)
    }

    /// The location of the chunk, with this time stamp.
    pub(super) fn location(&self, time_ns: u64) -> ChunkLocation {
        let CellRange { namespace, cell, .. } = self.cells;
        ChunkLocation { sequence: self.sequence, time_ns, namespace, cell }
    }
}

/// All chunks of a part, laid out before the first one is written. Equal inputs give equal chunks.
#[derive(Debug)]
pub(super) struct ChunkPlan {
    /// The chunks, in the order of their slots.
    pub(super) chunks: Vec<ChunkLayout>,
    /// The bytes that the chunks take, by purpose.
    pub(super) media: MediaUse,
    /// The remaining free space.
    pub(super) space: Space,
}

impl ChunkPlan {
    /// Lays out the part of `placement` in the free cells of `space`.
    ///
    /// # Errors
    /// `NoSpace`: there is no free cell range for a chunk. `OutOfRange`: a record has 4 GiB or more, or the
    /// names of the fields are not valid.
    pub(super) fn new(
        rows: &Rows<'_>,
        spec: &ChunkSpec,
        placement: &Placement,
        mut space: Space,
    ) -> Result<ChunkPlan, FormatError> {
        let part = *placement.part();
        let mut chunks = Vec::new();
        let mut media = MediaUse::default();
        let mut draft = ChunkDraft::new(spec)?;
        let mut lens = Vec::new();
        let mut ahead = RowsAhead::default();
        let mut next = part.first;
        let end = part.first + part.count;
        while next < end {
            let first_slot = Slot(next);
            let mut oversize = false;
            while next < end && !oversize {
                let row = ahead.row(Slot(next), rows, placement);
                let len = rows.record_len(row, &mut lens)?;
                match draft.push(&rows.meta(row, SampleId(part.first + row)), len) {
                    Fit::Here => {}
                    Fit::Oversize if draft.num_samples() == 1 && Slot(next) == first_slot => {
                        oversize = true;
                    }
                    Fit::NextChunk | Fit::Oversize => break,
                }
                next += 1;
            }
            let len = draft.finish();
            media.add(&len, &spec.layout);
            let cells = spec.layout.cells_of(len.len_bytes());
            let sequence = chunks.len() as u64;
            let range = space.allocate(sequence, cells).ok_or_else(|| space.no_room(cells))?;
            let num_slots = (next - first_slot.0) as u32;
            chunks.push(ChunkLayout { sequence, first_slot, num_slots, cells: range, oversize });
        }
        Ok(ChunkPlan { chunks, media, space })
    }
}
