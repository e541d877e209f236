//! The columns of rows without gaps: segments and paddings.

use crate::{Layout, Segment};

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
