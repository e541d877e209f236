//! A window of a writer: samples in memory that are placed in chunks together.

use dlfs_base::units::SampleId;
use dlfs_format::format::columns::{ColumnSpec, ColumnTable, Value};
use dlfs_format::format::{FormatError, SampleMeta};

/// Samples in the order in which they were written: name and record of each, contiguous in memory.
#[derive(Debug)]
pub(in crate::import) struct Window {
    /// The name and then the record of each sample.
    bytes: Vec<u8>,
    rows: Vec<Row>,
    /// The values of typed columns, by row.
    values: ColumnTable,
}

/// A sample of a window. Starts are offsets in `bytes`; the name ends where the record starts.
#[derive(Debug)]
struct Row {
    id: SampleId,
    label: Option<i64>,
    name_start: usize,
    record_start: usize,
    record_len: u32,
}

impl Window {
    /// An empty window, with memory for `len_bytes` bytes of samples.
    pub(super) fn new(columns: &[ColumnSpec], len_bytes: usize) -> Window {
        // The memory of a larger window grows as samples arrive.
        let bytes = Vec::with_capacity(len_bytes.min(MAX_RESERVED_BYTES));
        Window { bytes, rows: Vec::new(), values: ColumnTable::new(columns) }
    }

    /// The number of samples.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Bytes that the window takes, without the values of typed columns.
    pub(super) fn len_bytes(&self) -> usize {
        self.bytes.len() + self.rows.len() * size_of::<Row>()
    }

    /// Adds a sample whose record, of `len` bytes, is the concatenation of `parts`.
    ///
    /// # Errors
    /// The name, label or values are not valid in an image. The sample is not added.
    pub(super) fn push<'p, 'v>(
        &mut self,
        (id, name, label): (SampleId, &[u8], Option<i64>),
        len: u32,
        parts: impl Iterator<Item = &'p [u8]>,
        value: impl FnMut(&ColumnSpec) -> Value<'v>,
    ) -> Result<(), FormatError> {
        let at = self.rows.len();
        self.values.push(value);
        let meta = SampleMeta { id, name, label, values: self.values.row(at) };
        if let Err(error) = meta.check() {
            self.values.truncate(at);
            return Err(error);
        }
        let name_start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        let record_start = self.bytes.len();
        parts.for_each(|part| self.bytes.extend_from_slice(part));
        assert_eq!(self.bytes.len() - record_start, len as usize, "the length was counted");
        self.rows.push(Row { id, label, name_start, record_start, record_len: len });
        Ok(())
    }

    /// The metadata of sample number `at` of this window.
    pub(super) fn meta(&self, at: usize) -> SampleMeta<'_> {
        let row = &self.rows[at];
        SampleMeta {
            id: row.id,
            name: &self.bytes[row.name_start..row.record_start],
            label: row.label,
            values: self.values.row(at),
        }
    }

    /// The record of sample number `at` of this window.
    pub(super) fn record(&self, at: usize) -> &[u8] {
        let row = &self.rows[at];
        &self.bytes[row.record_start..][..row.record_len as usize]
    }

    /// Removes all samples. Keeps memory for at most twice `len_bytes`, the length of a usual window: frees what an
    /// unusually large sample took.
    pub(super) fn clear(&mut self, len_bytes: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(len_bytes.saturating_mul(2));
        self.rows.clear();
        self.values.clear();
    }
}

/// Upper limit of the memory reserved for an empty window.
const MAX_RESERVED_BYTES: usize = 256 << 20;
