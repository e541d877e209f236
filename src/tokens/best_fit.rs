//! Best-fit decreasing: packs the documents of a window into rows of one capacity.
//!
//! Pieces of a whole row come first, since nothing is longer. They are not listed: a document's rows are consecutive.
//! The *rest* of each document, shorter than a row, is sorted by length and put into the row that it fills best.
//!
//! Rows with equally much room form a stack. A bitmap over the rooms, with levels of 64 bits a word, finds the smallest
//! room that fits: a search touches at most two words a level.

use dlfs_base::permutation::{Key, Permutation};

/// Packs windows, and reuses its memory.
#[derive(Debug, Clone)]
pub(crate) struct BestFit {
    /// Tokens of a row.
    capacity: u32,
    rooms: Rooms,
    /// For each document that does not fill its last row, the room beside it in the upper 32 bits, and its index in the
    /// window in the lower ones.
    rests: Vec<u64>,
    /// The last document of each row that is not full by one piece.
    last: Vec<u32>,
}

/// The rows of a window. They are numbered in the order in which they were opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fitted {
    /// Tokens of a row.
    capacity: u32,
    /// For each document that has pieces of whole rows, the number of the first of these rows, and the document.
    whole: Vec<(u64, u32)>,
    /// The number of rows that are full by one piece.
    num_whole: u64,
    /// The first document of each other row.
    first: Vec<u32>,
    /// For each document whose rest lies in a row, the document behind it in that row, or [`NO_DOCUMENT`].
    next: Vec<u32>,
    /// Maps the rows of the window to the order in which they were opened.
    shuffle: Permutation,
}

impl BestFit {
    pub(crate) fn new() -> BestFit {
        BestFit { capacity: 0, rooms: Rooms::new(1), rests: Vec::new(), last: Vec::new() }
    }

    /// Replaces `fitted` with rows of `capacity` tokens, in the order by `key`. `tokens`: the number of tokens of each
    /// document.
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
    pub(crate) fn num_rows(&self) -> u64 {
        self.num_whole + self.first.len() as u64
    }

    /// Passes the segments of a row to `put`: document, first token and number of tokens. `tokens`: as for
    /// [`BestFit::pack`].
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

/// Rows by the room that they have left.
#[derive(Debug, Clone)]
struct Rooms {
    /// Bitmaps. In level 0 a bit for each room tells that a row has it; in each higher level a bit tells that a word of
    /// the level below is not zero.
    levels: [Vec<u64>; LEVELS],
    /// For each room, the row that got this room last.
    top: Vec<u32>,
    /// For each row, the one below it in its stack.
    below: Vec<u32>,
}

impl Rooms {
    /// No rows, for rooms below `capacity`.
    fn new(capacity: usize) -> Rooms {
        let mut len = capacity;
        let levels = std::array::from_fn(|_| {
            len = len.div_ceil(64);
            vec![0; len]
        });
        assert!(len == 1, "{capacity} rooms need more levels");
        Rooms { levels, top: vec![NO_ROW; capacity], below: Vec::new() }
    }

    /// Opens a row without any room left; returns its number.
    fn open(&mut self) -> u32 {
        let row = self.below.len() as u32;
        self.below.push(NO_ROW);
        row
    }

    /// Gives `room` to `row`, which must have none.
    fn put(&mut self, row: u32, room: u32) {
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
    fn take(&mut self, room: u32) -> Option<(u32, u32)> {
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
    fn clear(&mut self) {
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

    /// Clears the bits of the room `at`, which no row has any more.
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

/// The end of a list of documents.
const NO_DOCUMENT: u32 = u32::MAX;

/// The end of a stack of rows.
const NO_ROW: u32 = u32::MAX;

/// Enough for the largest capacity, 2^24.
const LEVELS: usize = 4;
