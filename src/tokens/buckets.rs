//! Buckets of rows of similar lengths, each row with one document or a piece of one.
//!
//! The upper bounds of buckets are the powers of two and the numbers halfway between, up to the length of a row. So a
//! batch of rows of one bucket is at most half as wide again as its shortest row needs.

use std::ops::Range;

use dlfs_base::permutation::{Key, Permutation};

/// The rows of a window.
#[derive(Debug, Clone, Default)]
pub(crate) struct Buckets {
    capacity: u32,
    buckets: Vec<Bucket>,
    /// The buckets that have rows, in the order of their rows: the end of their rows, and their index.
    order: Vec<(u64, u32)>,
}

#[derive(Debug, Clone, Default)]
struct Bucket {
    /// The documents, and the number of the first row of each within the bucket.
    documents: Vec<(u64, u32)>,
    rows: u64,
}

impl Buckets {
    /// Replaces all rows with those of documents of these tokens; buckets come in the order by `key`.
    pub(crate) fn pack(&mut self, capacity: u32, key: Key, tokens: &[u32]) {
        self.capacity = capacity;
        let longest = index_of(capacity - 1);
        self.buckets.iter_mut().for_each(Bucket::clear);
        self.buckets.resize_with(longest + 1, Bucket::default);
        for (document, &tokens) in (0_u32..).zip(tokens) {
            let whole = tokens / capacity;
            let rest = tokens % capacity;
            let of_rest = index_of(rest.saturating_sub(1));
            // Rows of one bucket lie side by side.
            let joined = u32::from(rest > 0 && of_rest == longest);
            self.buckets[longest].put(document, whole + joined);
            if joined == 0 {
                self.buckets[of_rest].put(document, u32::from(rest > 0));
            }
        }
        let mut filled = [0; MAX_BUCKETS];
        let mut count = 0;
        for (index, _) in self.buckets.iter().enumerate().filter(|(_, bucket)| bucket.rows > 0) {
            filled[count] = index as u32;
            count += 1;
        }
        let shuffle = Permutation::new(count as u64, key);
        self.order.clear();
        let mut end = 0;
        for nth in 0..shuffle.len() {
            let index = filled[shuffle.forward(nth) as usize];
            end += self.buckets[index as usize].rows;
            self.order.push((end, index));
        }
    }

    pub(crate) fn num_rows(&self) -> u64 {
        self.order.last().map_or(0, |(end, _)| *end)
    }

    /// The columns of all rows, each as wide as its bucket.
    pub(crate) fn num_columns(&self) -> u64 {
        let each = self.buckets.iter().enumerate();
        each.map(|(index, bucket)| bucket.rows * (u64::from(self.bound(index)) + 1)).sum()
    }

    /// The document of a row, its first token there and the number of tokens.
    pub(crate) fn get(&self, row: u64, tokens: &[u32]) -> (u32, u32, u32) {
        let place = self.order.partition_point(|(end, _)| *end <= row);
        let start = place.checked_sub(1).map_or(0, |before| self.order[before].0);
        let index = self.order[place].1 as usize;
        let Bucket { documents, .. } = &self.buckets[index];
        let row = row - start;
        let at = documents.partition_point(|(first, _)| *first <= row) - 1;
        let (first, document) = documents[at];
        let tokens = tokens[document as usize];
        // A row of another bucket than the longest is a rest. Below the document's tokens, so below 2^32.
        let from = if index + 1 == self.buckets.len() {
            (row - first) as u32 * self.capacity
        } else {
            tokens - tokens % self.capacity
        };
        (document, from, self.capacity.min(tokens - from))
    }

    /// The largest upper bound of the buckets that these rows lie in.
    pub(crate) fn widest(&self, rows: Range<u64>) -> u32 {
        let first = self.order.partition_point(|(end, _)| *end <= rows.start);
        let last = self.order.partition_point(|(end, _)| *end < rows.end);
        let within = self.order.iter().take(last + 1).skip(first);
        within.map(|(_, index)| self.bound(*index as usize)).max().unwrap_or(0)
    }

    /// The inputs of the longest row of a bucket.
    fn bound(&self, index: usize) -> u32 {
        let power = 1 << index.div_ceil(2);
        let bound = if index.is_multiple_of(2) { power * 3 / 2 } else { power };
        bound.min(self.capacity - 1)
    }
}

impl Bucket {
    fn clear(&mut self) {
        self.documents.clear();
        self.rows = 0;
    }

    fn put(&mut self, document: u32, rows: u32) {
        if rows > 0 {
            self.documents.push((self.rows, document));
            self.rows += u64::from(rows);
        }
    }
}

/// The bucket of rows of `len` inputs. Bounds by index: 1, 2, 3, 4, 6, 8, 12 ...
fn index_of(len: u32) -> usize {
    let power = len.max(1).next_power_of_two();
    let log = power.trailing_zeros() as usize;
    match log {
        0 => 0,
        1 => 1,
        _ if len <= power / 4 * 3 => 2 * log - 2,
        _ => 2 * log - 1,
    }
}

/// Enough for rows of 2^24 columns.
const MAX_BUCKETS: usize = 48;
