//! The layout of a batch of rows: which tokens of which documents lie where.

/// The rows of one batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// The number of rows.
    pub num_rows: u32,
    /// The inputs of a row; it has one column more, for the last label.
    pub seq_len: u32,
    /// By row, and within a row by column. Columns behind the last segment of a row are padding.
    pub segments: Vec<Segment>,
}

/// A run of tokens of one document in one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The row, counted from 0 within the batch.
    pub row: u32,
    /// The first column.
    pub column: u32,
    /// The document: its index among the documents of the batch.
    pub document: u32,
    /// The first token of the document. If documents are separated, the token behind its last one is the separator.
    pub from: u32,
    /// The number of tokens, at least 1; with the separator, if it lies here.
    pub len: u32,
}

/// Writes a layout row by row, and lists its documents.
#[derive(Debug)]
pub(crate) struct LayoutWriter<'a, T> {
    layout: &'a mut Layout,
    documents: &'a mut Vec<T>,
    /// The number of `documents` that were there before.
    before: usize,
    /// The number of the document of the last segment.
    last: Option<u64>,
    /// The first free column of the last row.
    column: u32,
}

impl<'a, T> LayoutWriter<'a, T> {
    /// Replaces `layout`, and appends to `documents`.
    pub(crate) fn new(layout: &'a mut Layout, documents: &'a mut Vec<T>) -> LayoutWriter<'a, T> {
        layout.num_rows = 0;
        layout.segments.clear();
        let before = documents.len();
        LayoutWriter { layout, documents, before, last: None, column: 0 }
    }

    pub(crate) fn begin_row(&mut self) {
        self.layout.num_rows += 1;
        self.column = 0;
    }

    /// Puts tokens of `document` behind those that the row has. Neighbours with one `number` are one document.
    pub(crate) fn put(&mut self, number: u64, document: T, from: u32, len: u32) {
        if self.last.replace(number) != Some(number) {
            self.documents.push(document);
        }
        let document = (self.documents.len() - self.before - 1) as u32;
        let row = self.layout.num_rows - 1;
        self.layout.segments.push(Segment { row, column: self.column, document, from, len });
        self.column += len;
    }
}
