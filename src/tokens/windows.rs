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
    /// Packs rows of several documents; `None`: each row has one document.
    best_fit: Option<BestFit>,
    /// Memory of windows that are over, for reuse.
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
            best_fit: is_best_fit.then(BestFit::new),
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
        let mut window = self.free.pop().unwrap_or_else(|| Window::new(self.best_fit.is_some()));
        std::mem::swap(&mut window.documents, documents);
        std::mem::swap(&mut window.tokens, tokens);
        window.seq_len = seq_len;
        let capacity = seq_len + 1;
        let (rows, columns) = match (&mut window.packed, &mut self.best_fit) {
            (Packed::Fitted(fitted), Some(best_fit)) => {
                best_fit.pack(capacity, key, &window.tokens, fitted);
                (fitted.num_rows(), fitted.num_rows() * u64::from(capacity))
            }
            (Packed::Buckets(buckets), _) => {
                buckets.pack(capacity, key, &window.tokens);
                (buckets.num_rows(), buckets.num_columns())
            }
            (Packed::Fitted(_), None) => unreachable!("windows of one epoch are packed alike"),
        };
        window.first_row = self.known;
        window.end_row = self.known + rows;
        window.position = position;
        self.known = window.end_row;
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

impl<T> Window<T> {
    /// A window without documents.
    fn new(is_best_fit: bool) -> Window<T> {
        let packed = if is_best_fit {
            Packed::Fitted(Box::new(Fitted::new()))
        } else {
            Packed::Buckets(Buckets::default())
        };
        Window {
            first_row: 0,
            end_row: 0,
            position: 0,
            seq_len: 0,
            documents: Vec::new(),
            tokens: Vec::new(),
            packed,
        }
    }
}
