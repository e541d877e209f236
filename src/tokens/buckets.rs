//! Buckets of rows of similar lengths, each row with one document or a piece of one.
//!
//! A row of k tokens has max(1, k - 1) inputs; bounds count inputs. The upper bounds of buckets are the powers of two
//! and the numbers halfway between, up to the inputs of the longest row. So a batch of rows of one bucket is at most
//! 1.5 times as wide as its shortest row.
//!
//! `deal.rs` has the full definition, which golden files freeze, and `deal/tests.rs` has the tests.

use std::ops::Range;

use dlfs_base::permutation::{Key, Permutation};

/// The rows of a window.
#[derive(Debug, Clone, Default)]
pub(crate) struct Buckets {
    /// Most tokens of a row: its inputs plus 1.
    capacity: u32,
    /// All buckets, by ascending bound.
    buckets: Vec<Bucket>,
    /// The buckets that have rows, in the order of their rows.
    order: Vec<FilledBucket>,
}

/// A bucket that has rows.
#[derive(Debug, Clone, Copy)]
struct FilledBucket {
    /// Index in [`Buckets::buckets`].
    index: usize,
    /// The row of the window behind the bucket's last one.
    end_row: u64,
}

#[derive(Debug, Clone, Default)]
struct Bucket {
    documents: Vec<BucketDocument>,
    /// Number of rows.
    rows: u64,
}

/// A document that has rows in a bucket.
#[derive(Debug, Clone, Copy)]
struct BucketDocument {
    /// Index of the document in the window.
    document: u32,
    /// Number within the bucket of the first of these rows.
    first_row: u64,
}

impl Buckets {
    /// Replaces all rows. `tokens`: the number of tokens of each document. `key` shuffles the buckets.
    pub(crate) fn pack(&mut self, capacity: u32, key: Key, tokens: &[u32]) {
        self.capacity = capacity;
        let longest = index_of(capacity - 1);
        self.buckets.iter_mut().for_each(Bucket::clear);
        self.buckets.resize_with(longest + 1, Bucket::default);
        for (document, &num_tokens) in (0_u32..).zip(tokens) {
            let whole = num_tokens / capacity;
            let rest = num_tokens % capacity;
            let of_rest = index_of(rest.saturating_sub(1));
            // A rest that falls into the longest bucket is one more row behind the document's whole rows.
            let joined = u32::from(rest > 0 && of_rest == longest);
            self.buckets[longest].put(document, whole + joined);
            if joined == 0 {
                self.buckets[of_rest].put(document, u32::from(rest > 0));
            }
        }
        let has_rows = |index: &usize| self.buckets[*index].rows > 0;
        let filled: Vec<usize> = (0..self.buckets.len()).filter(has_rows).collect();
        let shuffle = Permutation::new(filled.len() as u64, key);
        self.order.clear();
        let mut end_row = 0;
        for nth in 0..shuffle.len() {
            let index = filled[shuffle.forward(nth) as usize];
            end_row += self.buckets[index].rows;
            self.order.push(FilledBucket { index, end_row });
        }
    }

    pub(crate) fn num_rows(&self) -> u64 {
        self.order.last().map_or(0, |last| last.end_row)
    }

    /// The columns of all rows: in each row one more than the bound of its bucket.
    pub(crate) fn num_columns(&self) -> u64 {
        let each = self.buckets.iter().enumerate();
        each.map(|(index, bucket)| bucket.rows * (u64::from(self.bound(index)) + 1)).sum()
    }

    /// The document of a row, the row's first token in it, and the row's number of tokens. `tokens`: as for
    /// [`pack`](Self::pack).
    pub(crate) fn get(&self, row: u64, tokens: &[u32]) -> (u32, u32, u32) {
        let place = self.order.partition_point(|filled| filled.end_row <= row);
        let start = place.checked_sub(1).map_or(0, |before| self.order[before].end_row);
        let index = self.order[place].index;
        let Bucket { documents, .. } = &self.buckets[index];
        let row_in_bucket = row - start;
        let at = documents.partition_point(|entry| entry.first_row <= row_in_bucket) - 1;
        let BucketDocument { document, first_row } = documents[at];
        let num_tokens = tokens[document as usize];
        let from = if index + 1 == self.buckets.len() {
            // The product is below the document's tokens, so it fits in 32 bits.
            (row_in_bucket - first_row) as u32 * self.capacity
        } else {
            num_tokens - num_tokens % self.capacity // the rest
        };
        (document, from, self.capacity.min(num_tokens - from))
    }

    /// The largest bound, in inputs, of the buckets that these rows lie in.
    pub(crate) fn widest(&self, rows: Range<u64>) -> u32 {
        let first = self.order.partition_point(|filled| filled.end_row <= rows.start);
        let last = self.order.partition_point(|filled| filled.end_row < rows.end);
        let within = self.order.iter().take(last + 1).skip(first);
        within.map(|filled| self.bound(filled.index)).max().unwrap_or(0)
    }

    /// The bound of a bucket: the inputs of its longest row.
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

    /// Adds `rows` rows of a document.
    fn put(&mut self, document: u32, rows: u32) {
        if rows > 0 {
            self.documents.push(BucketDocument { document, first_row: self.rows });
            self.rows += u64::from(rows);
        }
    }
}

/// The bucket of rows of `inputs` inputs, or of one if that is 0. Bounds by index: 1, 2, 3, 4, 6, 8, 12 ...
fn index_of(inputs: u32) -> usize {
    let power = inputs.max(1).next_power_of_two();
    let log = power.trailing_zeros() as usize;
    match log {
        0 => 0,
        1 => 1,
        _ if inputs <= power / 4 * 3 => 2 * log - 2,
        _ => 2 * log - 1,
    }
}
