//! The token stream of `concat`: the documents of an epoch, end to end.

use std::collections::VecDeque;
use std::ops::Range;

use crate::layout::LayoutWriter;

/// The documents of an epoch, end to end.
#[derive(Debug, Clone)]
pub(crate) struct Line<T> {
    /// The number of tokens so far.
    len: u64,
    /// The documents that end behind token `keep_from`, without gaps.
    placed: VecDeque<Placed<T>>,
    /// Documents that end before this token are dropped.
    keep_from: u64,
}

/// A document, which ends where the next one begins.
#[derive(Debug, Clone)]
struct Placed<T> {
    /// The number of its first token.
    start: u64,
    /// Its position in the epoch.
    position: u64,
    document: T,
}

impl<T: Copy> Line<T> {
    /// A line that goes on behind `len` tokens.
    pub(crate) fn new(len: u64) -> Line<T> {
        Line { len, placed: VecDeque::new(), keep_from: 0 }
    }

    /// The number of tokens so far.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Appends the documents at the positions from `first` on.
    pub(crate) fn put(&mut self, first: u64, documents: &[T], tokens: &[u32]) {
        let documents = (first..).zip(documents).zip(tokens);
        for ((position, &document), &tokens) in documents.filter(|(_, tokens)| **tokens > 0) {
            let start = self.len;
            self.len += u64::from(tokens);
            if self.len > self.keep_from {
                self.placed.push_back(Placed { start, position, document });
            }
        }
    }

    /// Drops the documents before token `at`, including ones that are packed later.
    pub(crate) fn forget_before(&mut self, at: u64) {
        self.keep_from = at;
        while !self.placed.is_empty() && self.end_of(0) <= at {
            self.placed.pop_front();
        }
    }

    /// The position of the document that has token `at`, and the number of that document's first token. `None`: token
    /// `at` is not known yet, or its document is not kept.
    pub(crate) fn find(&self, at: u64) -> Option<(u64, u64)> {
        let placed = self.placed.get(self.index_of(at)?)?;
        (at < self.len).then_some((placed.position, placed.start))
    }

    /// Writes a row of tokens that are kept.
    pub(crate) fn write(&self, row: Range<u64>, writer: &mut LayoutWriter<'_, T>) {
        let first = self.index_of(row.start).unwrap_or(0);
        for (index, placed) in self.placed.iter().enumerate().skip(first) {
            if placed.start >= row.end {
                break;
            }
            let from = row.start.saturating_sub(placed.start);
            let len = self.end_of(index).min(row.end) - placed.start - from;
            // Both are at most the document's tokens, so below 2^32.
            writer.put(placed.position, placed.document, from as u32, len as u32);
        }
    }

    /// The index of the last document that begins with token `at` or one before it.
    fn index_of(&self, at: u64) -> Option<usize> {
        self.placed.partition_point(|placed| placed.start <= at).checked_sub(1)
    }

    /// The number of the token behind a document.
    fn end_of(&self, index: usize) -> u64 {
        self.placed.get(index + 1).map_or(self.len, |next| next.start)
    }
}
