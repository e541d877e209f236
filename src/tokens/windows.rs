//! The rows of windows of documents, which are packed independently: by best fit (`best_fit.rs`), or in buckets
//! (`buckets.rs`).

use std::collections::VecDeque;
use std::ops::Range;

use crate::best_fit::{BestFit, Fitted};
use crate::buckets::Buckets;
use crate::layout::LayoutWriter;
use dlfs_base::permutation::Key;

/// The rows of an epoch, window by window.
#[derive(Debug, Clone)]
pub(crate) struct Windows<T> {
    /// The number of rows so far.
    known: u64,
    /// The windows that have rows from `keep_from` on.
    windows: VecDeque<Window<T>>,
    /// Windows whose rows are all before this row are dropped.
    keep_from: u64,
    /// True if rows have several documents, false if each has one.
    is_best_fit: bool,
    /// Packs rows of several documents.
    best_fit: BestFit,
    /// Windows that were dropped, whose memory is used again.
    free: Vec<Window<T>>,
}

/// Documents that are packed together, and their rows.
#[derive(Debug, Clone)]
struct Window<T> {
    /// The number of the window's first row within the epoch.
    first_row: u64,
    /// The number of the row behind the window's last row.
    end_row: u64,
    /// The position of the window's first document within the epoch.
    position: u64,
    /// The number of inputs of a row.
    seq_len: u32,
    documents: Vec<T>,
    /// The number of tokens of each document, with its separator.
    tokens: Vec<u32>,
    packed: Packed,
}

/// The rows of a window, by the rule that packed them.
#[derive(Debug, Clone)]
enum Packed {
    /// Rows of several documents.
    Fitted(Box<Fitted>),
    /// Rows of one document each.
    Buckets(Buckets),
}

impl<T: Copy> Windows<T> {
    /// No windows yet; the first one will have rows from number `known` on.
    pub(crate) fn new(is_best_fit: bool, known: u64) -> Windows<T> {
        Windows {
            known,
            windows: VecDeque::new(),
            keep_from: 0,
            is_best_fit,
            best_fit: BestFit::new(),
            free: Vec::new(),
        }
    }

    /// The number of rows so far.
    pub(crate) fn known(&self) -> u64 {
        self.known
    }

    /// Packs the window that begins at `position`, with rows of `seq_len` inputs in the order by `key`. Swaps
    /// `documents` and their `tokens` for memory to reuse. Returns the number of columns of the window's rows.
    pub(crate) fn put(
        &mut self,
        position: u64,
        (seq_len, key): (u32, Key),
        documents: &mut Vec<T>,
        tokens: &mut Vec<u32>,
    ) -> u64 {
        let (spare_documents, spare_tokens, mut packed) = match self.free.pop() {
            Some(Window { documents, tokens, packed, .. }) => (documents, tokens, packed),
            None if self.is_best_fit => (Vec::new(), Vec::new(), Packed::Fitted(Box::default())),
            None => (Vec::new(), Vec::new(), Packed::Buckets(Buckets::default())),
        };
        let documents = std::mem::replace(documents, spare_documents);
        let tokens = std::mem::replace(tokens, spare_tokens);
        let capacity = seq_len + 1;
        let (rows, columns) = match &mut packed {
            Packed::Fitted(fitted) => {
                self.best_fit.pack(capacity, key, &tokens, fitted);
                (fitted.num_rows(), fitted.num_rows() * u64::from(capacity))
            }
            Packed::Buckets(buckets) => {
                buckets.pack(capacity, key, &tokens);
                (buckets.num_rows(), buckets.num_columns())
            }
        };
        let first_row = self.known;
        let end_row = first_row + rows;
        self.known = end_row;
        let window = Window { first_row, end_row, position, seq_len, documents, tokens, packed };
        self.windows.push_back(window);
        self.forget_before(self.keep_from);
        columns
    }

    /// Drops the windows whose rows are all before `row`, including ones that are packed later.
    pub(crate) fn forget_before(&mut self, row: u64) {
        self.keep_from = row;
        while self.windows.front().is_some_and(|window| window.end_row <= row) {
            self.free.extend(self.windows.pop_front());
        }
    }

    /// The first position and the first row of the window that has `row`, if it is kept.
    pub(crate) fn find(&self, row: u64) -> Option<(u64, u64)> {
        let window = self.windows.get(self.index_of(row))?;
        (row >= window.first_row).then_some((window.position, window.first_row))
    }

    /// Writes a row that is kept.
    pub(crate) fn write(&self, row: u64, writer: &mut LayoutWriter<'_, T>) {
        let window = &self.windows[self.index_of(row)];
        let Window { documents, tokens, packed, .. } = window;
        let mut put = |document: u32, from, len| {
            let position = window.position + u64::from(document);
            writer.put(position, documents[document as usize], from, len);
        };
        let row = row - window.first_row;
        match packed {
            Packed::Fitted(fitted) => fitted.each(row, tokens, put),
            Packed::Buckets(buckets) => {
                let (document, from, len) = buckets.get(row, tokens);
                put(document, from, len);
            }
        }
    }

    /// The inputs of the widest of `rows`, which are kept.
    pub(crate) fn widest(&self, rows: Range<u64>) -> u32 {
        let within = self.windows.iter().skip(self.index_of(rows.start));
        let within = within.take_while(|window| window.first_row < rows.end);
        let widest = within.map(|window| match &window.packed {
            Packed::Fitted(_) => window.seq_len,
            Packed::Buckets(buckets) => {
                let start = rows.start.saturating_sub(window.first_row);
                buckets.widest(start..rows.end - window.first_row)
            }
        });
        widest.max().unwrap_or(0)
    }

    /// The index of the window that has `row`.
    fn index_of(&self, row: u64) -> usize {
        self.windows.partition_point(|window| window.end_row <= row)
    }
}
