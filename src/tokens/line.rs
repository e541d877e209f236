//! Documents on a line of columns, for the rules that keep their order: `concat` and `none`.
//!
//! Row j has `capacity` columns from j times `stride` on. In `concat` documents lie end to end, and the stride is one
//! less than the capacity, so neighbouring rows share a column. In `none` the stride is the capacity, and each document
//! begins a row.

use std::collections::VecDeque;

use crate::layout::LayoutWriter;

/// The rows of an epoch.
#[derive(Debug, Clone)]
pub(crate) struct Line<T> {
    capacity: u64,
    stride: u64,
    /// The number of columns so far.
    len: u64,
    /// The documents that reach behind column `keep_from`.
    placed: VecDeque<Placed<T>>,
    /// The number of documents that were dropped from `placed`.
    dropped: u64,
    keep_from: u64,
}

/// The columns of a document's tokens.
#[derive(Debug, Clone)]
struct Placed<T> {
    start: u64,
    end: u64,
    document: T,
}

impl<T: Copy> Line<T> {
    /// The rows of `concat`, or of `none`.
    pub(crate) fn new(capacity: u32, is_concat: bool) -> Line<T> {
        let capacity = u64::from(capacity);
        let stride = capacity - u64::from(is_concat);
        Line { capacity, stride, len: 0, placed: VecDeque::new(), dropped: 0, keep_from: 0 }
    }

    /// The number of rows that are full, or in `none` begun.
    pub(crate) fn known(&self) -> u64 {
        self.len.checked_sub(self.capacity).map_or(0, |rest| rest / self.stride + 1)
    }

    /// Appends documents.
    pub(crate) fn put(&mut self, documents: &[T], tokens: &[u32]) {
        let documents = documents.iter().zip(tokens);
        for (&document, &tokens) in documents.filter(|(_, tokens)| **tokens > 0) {
            let start = self.len;
            let end = start + u64::from(tokens);
            self.len = if self.stride < self.capacity {
                end
            } else if u64::from(tokens) <= self.capacity {
                start + self.capacity
            } else {
                end.next_multiple_of(self.capacity)
            };
            if end > self.keep_from {
                self.placed.push_back(Placed { start, end, document });
            }
        }
    }

    /// Drops the documents before `row`, now and later.
    pub(crate) fn forget_before(&mut self, row: u64) {
        self.keep_from = row.saturating_mul(self.stride);
        while self.placed.front().is_some_and(|placed| placed.end <= self.keep_from) {
            self.placed.pop_front();
            self.dropped += 1;
        }
    }

    /// Writes a row that is known and kept.
    pub(crate) fn write(&self, row: u64, writer: &mut LayoutWriter<'_, T>) {
        let start = row * self.stride;
        let end = start + self.capacity;
        let first = self.placed.partition_point(|placed| placed.end <= start);
        for (number, placed) in (self.dropped + first as u64..).zip(self.placed.range(first..)) {
            if placed.start >= end {
                break;
            }
            let from = start.saturating_sub(placed.start);
            let len = placed.end.min(end) - placed.start - from;
            // Both are at most the document's tokens, so below 2^32.
            writer.put(number, placed.document, from as u32, len as u32);
        }
    }
}
