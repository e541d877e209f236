//! Finds the row with the least room that still has room for a document.
//!
//! Rows with equally much room form a stack. A bit for each room tells which stacks have rows, a bit of the level above
//! tells which words of 64 bits are not zero, and so on: a search touches at most two words a level.

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

/// Enough for the largest capacity, 2^24.
const LEVELS: usize = 4;

const NO_ROW: u32 = u32::MAX;
