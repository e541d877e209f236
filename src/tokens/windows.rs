//! The rows of windows, which are packed independently: by best fit, or in buckets.
//!
//! By best-fit decreasing, pieces of a whole row come first, since nothing is longer. They are not listed: a document's
//! rows are consecutive. What is left of each document, less than a row, is sorted by length and put into the row that
//! it fills best.
//!
//! In buckets of similar lengths, each row has one document or a piece. The upper bounds of buckets are the powers of
//! two and the numbers halfway between, up to the length of a row. So a batch of rows of one bucket is at most half as
//! wide again as its shortest row needs.
//!
//! Rows with equally much room form a stack. A bit for each room tells which stacks have rows, a bit of the level above
//! tells which words of 64 bits are not zero, and so on: a search touches at most two words a level.

use std::collections::VecDeque;
use std::ops::Range;

use crate::layout::LayoutWriter;
use dlfs_base::permutation::{Key, Permutation};

/// The rows of an epoch, window by window.
#[derive(Debug, Clone)]
pub(crate) struct Windows<T> {
    /// The number of rows so far.
    known: u64,
    /// The windows that have rows from `keep_from` on.
    windows: VecDeque<Window<T>>,
    keep_from: u64,
    /// Packs rows of several documents; `None` if each has one.
    best_fit: Option<BestFit>,
    /// Memory of windows that are over, for reuse.
    free: Vec<Window<T>>,
}

#[derive(Debug, Clone)]
struct Window<T> {
    /// The number of the window's first row within the epoch, and of the first one behind.
    first_row: u64,
    end_row: u64,
    /// The position of its first document.
    position: u64,
    /// The length of a row.
    seq_len: u32,
    documents: Vec<T>,
    tokens: Vec<u32>,
    packed: Packed,
}

#[derive(Debug, Clone)]
enum Packed {
    Fitted(Box<Fitted>),
    Buckets(Buckets),
}

impl<T: Copy> Windows<T> {
    /// Windows behind those that have `known` rows.
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

    /// Packs the window that begins at `position`, with rows of `seq_len` in the order by `key`, and leaves other
    /// memory in place of `documents` and their tokens; returns the number of columns of its rows.
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

/// Rows by the room that they have left.
#[derive(Debug, Clone)]
pub(crate) struct Rooms {
    levels: [Vec<u64>; LEVELS],
    /// For each room, the row that got this room last.
    top: Vec<u32>,
    /// For each row, the one below it in its stack.
    below: Vec<u32>,
}

impl Rooms {
    /// No rows, for rooms below `capacity`.
    pub(crate) fn new(capacity: usize) -> Rooms {
        let mut len = capacity;
        let levels = std::array::from_fn(|_| {
            len = len.div_ceil(64);
            vec![0; len]
        });
        assert!(len == 1, "{capacity} rooms need more levels");
        Rooms { levels, top: vec![NO_ROW; capacity], below: Vec::new() }
    }

    /// Opens a row without any room left; returns its number.
    pub(crate) fn open(&mut self) -> u32 {
        let row = self.below.len() as u32;
        self.below.push(NO_ROW);
        row
    }

    /// Gives `room` to `row`, which must have none.
    pub(crate) fn put(&mut self, row: u32, room: u32) {
        let top = std::mem::replace(&mut self.top[room as usize], row);
        self.below[row as usize] = top;
        if top == NO_ROW {
            let mut at = room as usize;
            for level in &mut self.levels {
                let before = level[at / 64];
                level[at / 64] |= 1 << (at % 64);
                if before != 0 {
                    break;
                }
                at /= 64;
            }
        }
    }

    /// Takes the row with the least room that is at least `room`, and of those with the same room the one that got it
    /// last; returns it and its room.
    pub(crate) fn take(&mut self, room: u32) -> Option<(u32, u32)> {
        let found = self.least(room as usize)?;
        let row = self.top[found];
        let below = self.below[row as usize];
        self.top[found] = below;
        if below == NO_ROW {
            self.unset(found);
        }
        Some((row, found as u32))
    }

    /// Forgets all rows.
    pub(crate) fn clear(&mut self) {
        while let Some(room) = self.least(0) {
            self.top[room] = NO_ROW;
            self.unset(room);
        }
        self.below.clear();
    }

    /// The least room from `at` on that a row has.
    fn least(&self, mut at: usize) -> Option<usize> {
        for (number, level) in self.levels.iter().enumerate() {
            let bits = level.get(at / 64)? & (u64::MAX << (at % 64));
            if bits != 0 {
                let mut found = at / 64 * 64 + bits.trailing_zeros() as usize;
                for level in self.levels[..number].iter().rev() {
                    found = found * 64 + level[found].trailing_zeros() as usize;
                }
                return Some(found);
            }
            at = at / 64 + 1;
        }
        None
    }

    fn unset(&mut self, mut at: usize) {
        for level in &mut self.levels {
            level[at / 64] &= !(1 << (at % 64));
            if level[at / 64] != 0 {
                break;
            }
            at /= 64;
        }
    }
}

const NO_DOCUMENT: u32 = u32::MAX;

/// Enough for rows of 2^24 columns.
const MAX_BUCKETS: usize = 48;

/// Enough for the largest capacity, 2^24.
const LEVELS: usize = 4;

const NO_ROW: u32 = u32::MAX;
