//! Packs the documents of each window into rows by best-fit decreasing.
//!
//! Pieces of a whole row come first, since nothing is longer. They are not listed: a document's rows are consecutive.
//! What is left of each document, less than a row, is sorted by length and put into the row that it fills best.

use std::collections::VecDeque;

use dlfs_base::permutation::{Key, Permutation};

use crate::layout::LayoutWriter;
use crate::rooms::Rooms;

/// The rows of an epoch, window by window.
#[derive(Debug, Clone)]
pub(crate) struct BestFit<T> {
    capacity: u32,
    seed: u64,
    epoch: u64,
    /// The number of windows that were packed.
    packed: u64,
    /// The number of their rows.
    known: u64,
    /// The windows that have rows from `keep_from` on.
    windows: VecDeque<Window<T>>,
    keep_from: u64,
    rooms: Rooms,
    /// For each document that does not fill its last row, the room beside it and its index in the window.
    rests: Vec<u64>,
    /// The last document of each row that is not full by one piece.
    last: Vec<u32>,
    /// Memory of windows that are over, for reuse.
    free: Vec<Window<T>>,
}

/// One window. Rows are numbered in the order in which they were opened.
#[derive(Debug, Clone)]
struct Window<T> {
    /// The number of the window's first row within the epoch, and of the first one behind.
    first_row: u64,
    end_row: u64,
    documents: Vec<T>,
    tokens: Vec<u32>,
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

impl<T: Copy> BestFit<T> {
    pub(crate) fn new(capacity: u32, seed: u64, epoch: u64) -> BestFit<T> {
        BestFit {
            capacity,
            seed,
            epoch,
            packed: 0,
            known: 0,
            windows: VecDeque::new(),
            keep_from: 0,
            rooms: Rooms::new(capacity as usize),
            rests: Vec::new(),
            last: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The number of rows so far.
    pub(crate) fn known(&self) -> u64 {
        self.known
    }

    /// Packs the next window, and leaves other memory in place of `documents` and their tokens.
    pub(crate) fn put(&mut self, documents: &mut Vec<T>, tokens: &mut Vec<u32>) {
        let mut window = self.free.pop().unwrap_or_else(Window::new);
        std::mem::swap(&mut window.documents, documents);
        std::mem::swap(&mut window.tokens, tokens);
        self.divide(&mut window);
        self.fit(&mut window);
        let num_rows = window.num_whole + window.first.len() as u64;
        let key = Key::derive(self.seed, &[LABEL, self.epoch, self.packed]);
        window.shuffle = Permutation::new(num_rows, key);
        window.first_row = self.known;
        window.end_row = self.known + num_rows;
        self.known = window.end_row;
        self.packed += 1;
        self.windows.push_back(window);
        self.forget_before(self.keep_from);
    }

    /// Drops the windows whose rows are all before `row`, now and later.
    pub(crate) fn forget_before(&mut self, row: u64) {
        self.keep_from = row;
        while self.windows.front().is_some_and(|window| window.end_row <= row) {
            self.free.extend(self.windows.pop_front());
        }
    }

    /// Writes a row that is known and kept.
    pub(crate) fn write(&self, row: u64, writer: &mut LayoutWriter<'_, T>) {
        let number = self.windows.partition_point(|window| window.end_row <= row);
        let window = &self.windows[number];
        // Unique among the windows that are kept: a window has less than 2^32 documents.
        let first = (self.packed - self.windows.len() as u64 + number as u64) << 32;
        let mut write = |document: u32, from, len| {
            let at = document as usize;
            writer.put(first + u64::from(document), window.documents[at], from, len);
        };
        let opened = window.shuffle.forward(row - window.first_row);
        if opened < window.num_whole {
            let at = window.whole.partition_point(|(first, _)| *first <= opened) - 1;
            let (first, document) = window.whole[at];
            // Below the document's tokens, so below 2^32.
            let from = (opened - first) as u32 * self.capacity;
            return write(document, from, self.capacity);
        }
        let mut document = window.first[(opened - window.num_whole) as usize];
        while document != NO_DOCUMENT {
            let tokens = window.tokens[document as usize];
            let rest = tokens % self.capacity;
            write(document, tokens - rest, rest);
            document = window.next[document as usize];
        }
    }

    /// Cuts whole rows from documents, and sorts what is left.
    fn divide(&mut self, window: &mut Window<T>) {
        window.whole.clear();
        window.num_whole = 0;
        self.rests.clear();
        for (document, &tokens) in (0_u32..).zip(&window.tokens) {
            let mut rest = tokens;
            if tokens >= self.capacity {
                window.whole.push((window.num_whole, document));
                window.num_whole += u64::from(tokens / self.capacity);
                rest = tokens % self.capacity;
            }
            if rest > 0 {
                self.rests.push(u64::from(self.capacity - rest) << 32 | u64::from(document));
            }
        }
        self.rests.sort_unstable();
    }

    /// Puts each rest into the row that it fills best, or opens a row.
    fn fit(&mut self, window: &mut Window<T>) {
        let Window { tokens, first, next, .. } = window;
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

impl<T> Window<T> {
    fn new() -> Window<T> {
        Window {
            first_row: 0,
            end_row: 0,
            documents: Vec::new(),
            tokens: Vec::new(),
            whole: Vec::new(),
            num_whole: 0,
            first: Vec::new(),
            next: Vec::new(),
            shuffle: Permutation::new(0, Key::new(0)),
        }
    }
}

/// The first word of the keys by which rows are shuffled. Frozen.
const LABEL: u64 = 0x726f_7773;

const NO_DOCUMENT: u32 = u32::MAX;
