//! The layout of a batch of rows: which tokens of which documents lie in which columns. Read `columns.rs` next.

/// The rows of one batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// The number of rows.
    pub num_rows: u32,
    /// The number of inputs of a row. A row has one column more, for the last label.
    pub seq_len: u32,
    /// Sorted by row, then by column. Columns behind the last segment of a row are padding.
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
    /// The number of tokens, at least 1, including the separator if it lies in this segment.
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

    /// Begins the next row.
    pub(crate) fn begin_row(&mut self) {
        self.layout.num_rows += 1;
        self.column = 0;
    }

    /// Appends a segment to the row: `len` tokens of `document`, from its token `from` on. Consecutive segments with
    /// the same `number` are of one document.
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

/// A run of columns of a row: a segment, or padding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) row: u32,
    /// The first column.
    pub(crate) column: u32,
    /// The number of columns.
    pub(crate) len: u32,
    /// The number of the segment within its row, counted from 1; 0 for padding.
    pub(crate) number: u32,
    /// `None`: padding.
    pub(crate) segment: Option<Segment>,
}

impl Span {
    /// The columns of the span that are inputs, if rows have `seq_len` inputs.
    pub(crate) fn inputs(&self, seq_len: u32) -> u32 {
        seq_len.min(self.column + self.len) - seq_len.min(self.column)
    }
}

impl Layout {
    /// The segments and paddings of rows of `capacity` columns.
    pub(crate) fn spans(&self, capacity: u32) -> impl Iterator<Item = Span> {
        let mut segments = self.segments.iter().copied().peekable();
        let mut row = 0;
        let mut column = 0;
        let mut number = 0;
        std::iter::from_fn(move || {
            if column == capacity {
                row += 1;
                column = 0;
                number = 0;
            }
            if row == self.num_rows {
                return None;
            }
            let segment = segments.next_if(|segment| segment.row == row);
            let span = match segment {
                Some(Segment { len, .. }) => {
                    number += 1;
                    Span { row, column, len, number, segment }
                }
                None => Span { row, column, len: capacity - column, number: 0, segment },
            };
            assert!(
                segment.is_none_or(|it| it.column == column) && span.len <= capacity - column,
                "the segments of a row follow each other"
            );
            column += span.len;
            Some(span)
        })
    }

    /// The most inputs of one segment or padding, if rows have `seq_len` inputs.
    pub fn max_seqlen(&self, seq_len: u32) -> u32 {
        self.spans(seq_len + 1).map(|span| span.inputs(seq_len)).max().unwrap_or(0)
    }
}
