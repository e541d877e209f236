//! Packs the documents of a window into rows by best-fit decreasing.
//!
//! Pieces of a whole row come first, since nothing is longer. They are not listed: a document's rows are consecutive.
//! What is left of each document, less than a row, is sorted by length and put into the row that it fills best.

use dlfs_base::permutation::{Key, Permutation};

use crate::rooms::Rooms;

/// Packs windows, and reuses its memory.
#[derive(Debug, Clone)]
pub(crate) struct BestFit {
    capacity: u32,
    rooms: Rooms,
    /// For each document that does not fill its last row, the room beside it and its index in the window.
    rests: Vec<u64>,
    /// The last document of each row that is not full by one piece.
    last: Vec<u32>,
}

/// The rows of a window. They are numbered in the order in which they were opened.
#[derive(Debug, Clone)]
pub(crate) struct Fitted {
    capacity: u32,
    /// The documents that have pieces of whole rows, and the number of the first of these rows.
    whole: Vec<(u64, u32)>,
    /// The number of rows that are full by one piece.
    num_whole: u64,
    /// The first document of each other row.
    first: Vec<u32>,
    /// For each document whose rest lies in a row, the document behind it.
    next: Vec<u32>,
    shuffle: Permutation,
}

impl BestFit {
    pub(crate) fn new() -> BestFit {
        BestFit { capacity: 0, rooms: Rooms::new(1), rests: Vec::new(), last: Vec::new() }
    }

    /// Replaces `fitted` with the rows of documents of these tokens, in the order by `key`.
    pub(crate) fn pack(&mut self, capacity: u32, key: Key, tokens: &[u32], fitted: &mut Fitted) {
        if capacity != self.capacity {
            self.capacity = capacity;
            self.rooms = Rooms::new(capacity as usize);
        }
        fitted.capacity = capacity;
        self.divide(tokens, fitted);
        self.fit(tokens, fitted);
        fitted.shuffle = Permutation::new(fitted.num_rows(), key);
    }

    /// Cuts whole rows from documents, and sorts what is left.
    fn divide(&mut self, tokens: &[u32], fitted: &mut Fitted) {
        fitted.whole.clear();
        fitted.num_whole = 0;
        self.rests.clear();
        for (document, &tokens) in (0_u32..).zip(tokens) {
            let mut rest = tokens;
            if tokens >= self.capacity {
                fitted.whole.push((fitted.num_whole, document));
                fitted.num_whole += u64::from(tokens / self.capacity);
                rest = tokens % self.capacity;
            }
            if rest > 0 {
                self.rests.push(u64::from(self.capacity - rest) << 32 | u64::from(document));
            }
        }
        self.rests.sort_unstable();
    }

    /// Puts each rest into the row that it fills best, or opens a row.
    fn fit(&mut self, tokens: &[u32], fitted: &mut Fitted) {
        let Fitted { first, next, .. } = fitted;
        first.clear();
        next.clear();
        next.resize(tokens.len(), NO_DOCUMENT);
        self.rooms.clear();
        self.last.clear();
        for &rest in &self.rests {
            let document = rest as u32;
            let beside = (rest >> 32) as u32;
            let len = self.capacity - beside;
            let (row, room) = if let Some((row, room)) = self.rooms.take(len) {
                let last = std::mem::replace(&mut self.last[row as usize], document);
                next[last as usize] = document;
                (row, room - len)
            } else {
                first.push(document);
                self.last.push(document);
                (self.rooms.open(), beside)
            };
            if room > 0 {
                self.rooms.put(row, room);
            }
        }
    }
}

impl Fitted {
    pub(crate) fn new() -> Fitted {
        Fitted {
            capacity: 0,
            whole: Vec::new(),
            num_whole: 0,
            first: Vec::new(),
            next: Vec::new(),
            shuffle: Permutation::new(0, Key::new(0)),
        }
    }

    pub(crate) fn num_rows(&self) -> u64 {
        self.num_whole + self.first.len() as u64
    }

    /// Gives `put` the parts of a row: document, first token and number of tokens.
    pub(crate) fn each(&self, row: u64, tokens: &[u32], mut put: impl FnMut(u32, u32, u32)) {
        let opened = self.shuffle.forward(row);
        if opened < self.num_whole {
            let at = self.whole.partition_point(|(first, _)| *first <= opened) - 1;
            let (first, document) = self.whole[at];
            // Below the document's tokens, so below 2^32.
            let from = (opened - first) as u32 * self.capacity;
            return put(document, from, self.capacity);
        }
        let mut document = self.first[(opened - self.num_whole) as usize];
        while document != NO_DOCUMENT {
            let tokens = tokens[document as usize];
            let rest = tokens % self.capacity;
            put(document, tokens - rest, rest);
            document = self.next[document as usize];
        }
    }
}

const NO_DOCUMENT: u32 = u32::MAX;
