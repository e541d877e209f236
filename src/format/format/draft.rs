//! Plans chunks from the names and lengths of samples, before any byte of them is read.

use crate::format::builder::encode_fields;
use crate::format::chunk::{HEAD_BYTES, max_table_bytes, padded};
use crate::format::columns::check_columns;
use crate::format::fill::{Fill, Fit};
use crate::format::pieces::num_pieces;
use crate::format::table::Table;
use crate::format::{ChunkHeader, ChunkSpec, FormatError, Pack, SampleMeta};

/// Computes the length of each chunk in advance, from the metadata of its samples.
///
/// Follows the same rules as [`crate::format::ChunkBuilder`], so the built chunk has the planned length.
#[derive(Debug)]
pub struct ChunkDraft<'a> {
    spec: &'a ChunkSpec,
    fields: Vec<u8>,
    fill: Fill,
    table: Table,
    /// End of the data if packed with [`Pack::Aligned`], and with [`Pack::Tight`].
    aligned_end: u64,
    tight_end: u64,
    encoded: Vec<u8>,
}

/// The lengths of a complete chunk and its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftLen {
    /// Bytes of head and table.
    pub header_bytes: u64,
    /// Bytes of the samples, padding between them included.
    pub data_bytes: u64,
    /// Bytes of the samples without padding.
    pub record_bytes: u64,
    /// Bytes that [`Pack::Aligned`] takes more than [`Pack::Tight`].
    pub alignment_bytes: u64,
}

impl DraftLen {
    /// The lengths of a built chunk.
    pub fn of(header: &ChunkHeader) -> DraftLen {
        let mut aligned = 0;
        let mut record_bytes = 0;
        for sample in header.samples() {
            let len = sample.len_bytes;
            aligned = Pack::Aligned.next_start(aligned, len) + u64::from(len);
            record_bytes += u64::from(len);
        }
        DraftLen {
            header_bytes: header.head().header_len.into(),
            data_bytes: header.head().data_len,
            record_bytes,
            alignment_bytes: aligned - record_bytes,
        }
    }

    /// Bytes of the whole chunk, a multiple of 4,096.
    pub fn len_bytes(&self) -> u64 {
        padded(self.header_bytes) + padded(self.data_bytes)
    }
}

impl<'a> ChunkDraft<'a> {
    /// A chunk without samples.
    ///
    /// # Errors
    /// The errors of [`ChunkBuilder::new`](crate::format::ChunkBuilder::new).
    pub fn new(spec: &'a ChunkSpec) -> Result<ChunkDraft<'a>, FormatError> {
        let fields = encode_fields(spec)?;
        check_columns(&spec.columns)?;
        let fill = Fill::new(spec.layout, spec.fields_len(&fields), &spec.columns);
        let table = Table::new(&spec.columns, &spec.field_types);
        let encoded = Vec::new();
        Ok(ChunkDraft { spec, fields, fill, table, aligned_end: 0, tight_end: 0, encoded })
    }

    /// Number of samples in the chunk.
    pub fn num_samples(&self) -> u32 {
        self.fill.num_samples()
    }

    /// Adds a sample with a record of `len` bytes, if it fits or if it is oversize and the chunk is empty. Returns
    /// whether it fits.
    pub fn push(&mut self, meta: &SampleMeta<'_>, len: u32) -> Fit {
        let fit = self.fill.fit(meta, len);
        if fit == Fit::Here || fit == Fit::Oversize && self.num_samples() == 0 {
            self.fill.take(meta, len);
            // Checksums are not known yet; the length of the table does not depend on them.
            self.table.push(meta, len, 0, false);
            self.table.push_pieces(std::iter::repeat_n(0, num_pieces(len)));
            self.aligned_end = Pack::Aligned.next_start(self.aligned_end, len) + u64::from(len);
            self.tight_end += u64::from(len);
        }
        fit
    }

    /// Completes the chunk and begins the next one.
    pub fn finish(&mut self) -> DraftLen {
        self.encoded.clear();
        self.encoded.extend_from_slice(&self.fields);
        let spec = self.spec;
        let max_len = max_table_bytes(&self.spec.layout);
        self.table.encode(&spec.part, max_len, &mut self.encoded);
        let len = DraftLen {
            header_bytes: (HEAD_BYTES + self.encoded.len()) as u64,
            data_bytes: self.fill.end(),
            record_bytes: self.tight_end,
            alignment_bytes: self.aligned_end - self.tight_end,
        };
        let fields_len = self.spec.fields_len(&self.fields);
        self.fill = Fill::new(self.spec.layout, fields_len, &self.spec.columns);
        self.table.clear();
        (self.aligned_end, self.tight_end) = (0, 0);
        len
    }
}
