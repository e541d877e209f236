//! The layout of a batch of rows: which tokens of which documents lie where, and the columns of a row that an array
//! has: all, or the slices of one context-parallel rank.

use std::ops::Range;

use dlfs_base::error::{Error, Result};

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

/// A run of columns of a row: a segment, or padding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) row: u32,
    pub(crate) column: u32,
    pub(crate) len: u32,
    /// The number of the segment within its row, counted from 1; 0 for padding.
    pub(crate) number: u32,
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

/// Columns of a row in one or two chunks. Each chunk has one column more than its inputs: the label of its last input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    seq_len: u32,
    /// The context-parallel rank, their number, and whether it has two chunks.
    place: (u32, u32, bool),
    /// The inputs of a chunk.
    chunk: u32,
    /// The first column of each chunk.
    starts: [u32; 2],
    num_chunks: usize,
}

/// Columns that a chunk and a run of columns have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Their place in the columns of the array's row.
    pub(crate) to: Range<usize>,
    /// The columns of the run before them.
    pub(crate) skip: usize,
}

impl Columns {
    /// All `seq_len + 1` columns of a row of `seq_len` inputs.
    pub fn all(seq_len: u32) -> Columns {
        Columns { seq_len, place: (0, 1, false), chunk: seq_len, starts: [0; 2], num_chunks: 1 }
    }

    /// The columns of rank `cp_rank` of `cp_size` context-parallel ranks: its part of the inputs, or, with `zigzag`,
    /// parts `cp_rank` and `2 * cp_size - 1 - cp_rank` of twice as many, which gives ranks equal work under a causal
    /// mask.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such rank, or the inputs have no such parts.
    pub fn slice(seq_len: u32, cp_rank: u32, cp_size: u32, zigzag: bool) -> Result<Columns> {
        if cp_rank >= cp_size {
            let text = format!("there is no context-parallel rank {cp_rank}: cp_size is {cp_size}");
            return Err(Error::invalid(text, "ranks go from 0 to cp_size - 1"));
        }
        if cp_size == 1 {
            return Ok(Columns::all(seq_len));
        }
        let num_chunks = if zigzag { 2 } else { 1 };
        let parts = u64::from(cp_size) * num_chunks;
        if !u64::from(seq_len).is_multiple_of(parts) {
            let text = format!(
                "rows of {seq_len} tokens cannot be cut into {parts} equal parts for {cp_size} context-parallel ranks"
            );
            return Err(Error::invalid(text, "take a seq_len that is a multiple of the parts"));
        }
        let chunk = (u64::from(seq_len) / parts) as u32; // at most seq_len
        let starts = [cp_rank * chunk, (parts as u32 - 1 - cp_rank) * chunk];
        let place = (cp_rank, cp_size, zigzag);
        Ok(Columns { seq_len, place, chunk, starts, num_chunks: num_chunks as usize })
    }

    /// The columns of the same rank in rows of `seq_len` inputs.
    ///
    /// # Errors
    /// As [`Columns::slice`].
    pub fn of_rows(&self, seq_len: u32) -> Result<Columns> {
        let (cp_rank, cp_size, zigzag) = self.place;
        Columns::slice(seq_len, cp_rank, cp_size, zigzag)
    }

    /// The columns of the same rank in rows that need `seq_len` inputs; they get more where ranks could not share those
    /// equally.
    ///
    /// # Errors
    /// As [`Columns::slice`].
    pub fn of_narrow_rows(&self, seq_len: u32) -> Result<Columns> {
        let parts = self.place.1 * self.num_chunks as u32; // at most the inputs of a row
        self.of_rows(seq_len.next_multiple_of(parts))
    }

    /// The inputs of a whole row.
    pub fn seq_len(&self) -> u32 {
        self.seq_len
    }

    /// The number of chunks: 1 or 2.
    pub fn num_chunks(&self) -> usize {
        self.num_chunks
    }

    /// The columns of a chunk, with the last label.
    pub fn chunk_len(&self) -> usize {
        self.chunk as usize + 1
    }

    /// The columns of all chunks.
    pub fn width(&self) -> usize {
        self.num_chunks * self.chunk_len()
    }

    /// Returns whether rows are whole.
    pub(crate) fn is_all(&self) -> bool {
        self.chunk == self.seq_len
    }

    /// The columns that each chunk has in common with `len` columns from `column` on.
    pub(crate) fn pieces(self, column: u32, len: u32) -> impl Iterator<Item = Piece> {
        self.starts.into_iter().take(self.num_chunks).enumerate().filter_map(move |(nth, start)| {
            let from = start.max(column);
            let end = (start + self.chunk + 1).min(column + len);
            let at = nth * self.chunk_len() + from.checked_sub(start)? as usize;
            let count = end.checked_sub(from).filter(|&count| count > 0)? as usize;
            Some(Piece { to: at..at + count, skip: (from - column) as usize })
        })
    }
}
