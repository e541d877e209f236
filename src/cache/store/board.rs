//! Board: words in memory that the processes of a rank share, with the positions of its readers, counters, and the
//! failure of the exchange.
//!
//! One process keeps the store and exchanges samples; its forked children (such as a data loader's workers) may read
//! from the store. Each process that reads along the order is a [`Reader`]: reader w of n takes every n-th batch of the
//! rank. The rank's position is that of its slowest reader, so no sample is deleted that a reader still needs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlfs_base::buf::SharedWords;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::Epoch;

/// One of the processes that share the batches of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// The reader's number, from 0.
    pub number: u32,
    /// The number of readers.
    pub of: u32,
}

/// Proof that a process began as a reader; invalid once another process begins as the same reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// Counters that all processes of a rank share, by index of their word.
#[derive(Debug, Clone, Copy)]
pub(super) enum Count {
    /// Requests of forked children that have begun at another position: the store must go there.
    Asked = 1,
    /// Samples that were fetched into the store before an epoch.
    Staged = 2,
    /// Reports of damaged pages, which were removed from the store.
    Damaged = 4,
}

/// The words that all processes of a rank share.
pub(super) struct Board {
    words: SharedWords,
}

impl Board {
    pub(super) fn new() -> Result<Board> {
        Ok(Board { words: SharedWords::new(NUM_WORDS)? })
    }

    /// Begins `reader` at this position: `taken` samples of the rank in `epoch`. If the number of readers
    /// changes, all readers begin here. The process that was this reader before loses its place.
    pub(super) fn begin(&self, reader: Reader, epoch: Epoch, taken: u64) -> Ticket {
        let place = place_of(epoch, taken);
        self.set_readers(reader.of, place);
        let number = self.word(TICKETS).fetch_add(1, Ordering::AcqRel) + 1;
        let ticket = number << 32 | u64::from(std::process::id());
        self.holders(reader.of)[reader.number as usize].store(ticket, Ordering::Release);
        self.delivered(reader, Ticket(ticket), epoch, taken);
        Ticket(ticket)
    }

    /// Sets the number of readers to `of` and all readers to `place`, unless the number is already `of`. Waits
    /// while another process changes the number, since that process would overwrite this reader's place; for a
    /// second at most, since the process may have died.
    fn set_readers(&self, of: u32, place: u64) {
        let readers = self.word(READERS);
        let mut patience = 1000;
        loop {
            let now = readers.load(Ordering::Acquire);
            if now == u64::from(of) {
                return;
            }
            if now & CHANGES != 0 && patience > 0 {
                patience -= 1;
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let changing = u64::from(of) | CHANGES;
            let claimed =
                readers.compare_exchange(now, changing, Ordering::AcqRel, Ordering::Acquire);
            if claimed.is_ok() {
                self.places(of).iter().for_each(|word| word.store(place, Ordering::Release));
                self.holders(MAX_READERS).iter().for_each(|word| word.store(0, Ordering::Release));
                readers.store(of.into(), Ordering::Release);
                return;
            }
        }
    }

    /// Records that `reader` has got a batch and is at this position now; ignored if its ticket is invalid.
    pub(super) fn delivered(&self, reader: Reader, ticket: Ticket, epoch: Epoch, taken: u64) {
        let place = place_of(epoch, taken);
        if self.taken_by(reader, ticket).is_none() {
            self.places(reader.of)[reader.number as usize].store(place, Ordering::Release);
        }
    }

    /// The process that has begun as `reader` since `ticket` was given; 0 if the number of readers has
    /// changed instead. `None`: the ticket is valid.
    pub(super) fn taken_by(&self, reader: Reader, ticket: Ticket) -> Option<u32> {
        let holder = self.holders(reader.of)[reader.number as usize].load(Ordering::Acquire);
        (holder != ticket.0).then_some(holder as u32)
    }

    /// The position of the slowest reader.
    pub(super) fn position(&self) -> (Epoch, u64) {
        let readers = self.word(READERS).load(Ordering::Acquire) as u32;
        let places = self.places(readers.max(1)).iter();
        let last = places.map(|word| word.load(Ordering::Acquire)).min().unwrap_or(0);
        (Epoch(last >> TAKEN_BITS), last & ((1 << TAKEN_BITS) - 1))
    }

    /// Adds to a counter; called after the counted work is done.
    pub(super) fn add(&self, count: Count, by: u64) {
        self.word(count as usize).fetch_add(by, Ordering::AcqRel);
    }

    pub(super) fn get(&self, count: Count) -> u64 {
        self.word(count as usize).load(Ordering::Acquire)
    }

    /// Records why the exchange cannot continue, and truncates a string that is too long. Only the first
    /// failure counts; returns whether this is the first.
    pub(super) fn fail(&self, kind: ErrorKind, text: &str) -> bool {
        if self.word(FAILED).load(Ordering::Acquire) != 0 {
            return false;
        }
        let kind = KINDS.iter().position(|known| *known == kind).unwrap_or(0);
        let mut end = text.len().min(TEXT_WORDS * 8);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let bytes = &text.as_bytes()[..end];
        for (word, bytes) in self.words.as_ref()[TEXT..].iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
        let word = (bytes.len() as u64) << 8 | (kind as u64 + 1);
        self.word(FAILED).store(word, Ordering::Release);
        true
    }

    /// The failure of the exchange, if any.
    pub(super) fn failure(&self) -> Option<Error> {
        let word = self.word(FAILED).load(Ordering::Acquire);
        let kind = KINDS.get((word & 0xff).checked_sub(1)? as usize)?;
        let words = self.words.as_ref()[TEXT..TEXT + TEXT_WORDS].iter();
        let mut bytes: Vec<u8> =
            words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate((word >> 8) as usize);
        Some(Error::new(*kind, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The word with this index.
    fn word(&self, number: usize) -> &AtomicU64 {
        &self.words.as_ref()[number]
    }

    /// The positions of the first `readers` readers, as [`place_of`] packs them.
    fn places(&self, readers: u32) -> &[AtomicU64] {
        &self.words.as_ref()[PLACES..PLACES + readers.min(MAX_READERS) as usize]
    }

    /// The valid tickets of the first `readers` readers.
    fn holders(&self, readers: u32) -> &[AtomicU64] {
        &self.words.as_ref()[HOLDERS..HOLDERS + readers.min(MAX_READERS) as usize]
    }
}

/// Packs epoch and samples taken into one word, so that both are read atomically.
fn place_of(epoch: Epoch, taken: u64) -> u64 {
    epoch.0 << TAKEN_BITS | taken.min((1 << TAKEN_BITS) - 1)
}

/// Limit of readers of a rank.
pub(super) const MAX_READERS: u32 = 1024;

/// Bits for the number of samples taken: an image has at most 2^40 samples.
const TAKEN_BITS: u32 = 40;

/// The kinds of failures that a store has; the first also stands for all others.
const KINDS: [ErrorKind; 8] = [
    ErrorKind::Io,
    ErrorKind::TimedOut,
    ErrorKind::Corrupt,
    ErrorKind::NoSpace,
    ErrorKind::Disconnected,
    ErrorKind::Stale,
    ErrorKind::OutOfMemory,
    ErrorKind::InvalidArgument,
];

/// Room for the text of a failure, in words of 8 bytes.
const TEXT_WORDS: usize = 128;

/// Set in the word of the number of readers while it changes.
const CHANGES: u64 = 1 << 63;

// Index of each word, or of the first of several, besides the counters of [`Count`].
const READERS: usize = 0;
const FAILED: usize = 3;
const TICKETS: usize = 5;
const TEXT: usize = 6;
const PLACES: usize = TEXT + TEXT_WORDS;
const HOLDERS: usize = PLACES + MAX_READERS as usize;
const NUM_WORDS: usize = HOLDERS + MAX_READERS as usize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_as_far_as_its_last_reader() {
        let board = Board::new().unwrap();
        let reader = |number, of| Reader { number, of };
        assert_eq!(board.position(), (Epoch(0), 0));
        board.begin(reader(0, 1), Epoch(3), 40);
        assert_eq!(board.position(), (Epoch(3), 40));
        let second = board.begin(reader(1, 2), Epoch(4), 0);
        assert_eq!(board.position(), (Epoch(4), 0), "another number: all begin there");
        board.delivered(reader(1, 2), second, Epoch(4), 8);
        let first = board.begin(reader(0, 2), Epoch(4), 0);
        assert_eq!(board.position(), (Epoch(4), 0));
        board.delivered(reader(0, 2), first, Epoch(5), 0);
        assert_eq!(board.position(), (Epoch(4), 8));
        board.begin(reader(0, 2), Epoch(1), 2);
        assert_eq!(board.position(), (Epoch(1), 2), "back again");
    }

    #[test]
    fn readers_that_begin_together_take_no_place_from_each_other() {
        let board = Board::new().unwrap();
        for round in 0..500 {
            let of = 3 + round % 2;
            let begun = std::sync::Barrier::new(of as usize);
            std::thread::scope(|scope| {
                for number in 0..of {
                    let board = &board;
                    let begun = &begun;
                    scope.spawn(move || {
                        let reader = Reader { number, of };
                        begun.wait();
                        let ticket = board.begin(reader, Epoch(0), 0);
                        begun.wait();
                        assert_eq!(board.taken_by(reader, ticket), None, "round {round}");
                    });
                }
            });
        }
    }

    #[test]
    fn who_lost_its_place_to_another_moves_nothing() {
        let board = Board::new().unwrap();
        let reader = Reader { number: 0, of: 1 };
        let first = board.begin(reader, Epoch(0), 0);
        assert_eq!(board.taken_by(reader, first), None);
        let second = board.begin(reader, Epoch(0), 0);
        assert_eq!(board.taken_by(reader, first), Some(std::process::id()));
        board.delivered(reader, first, Epoch(0), 64);
        assert_eq!(board.position(), (Epoch(0), 0), "the second one still reads from there");
        board.delivered(reader, second, Epoch(0), 32);
        assert_eq!(board.position(), (Epoch(0), 32));
        board.begin(Reader { number: 0, of: 2 }, Epoch(0), 32);
        assert_eq!(board.taken_by(Reader { number: 1, of: 2 }, second), Some(0));
        assert!(board.taken_by(reader, second).is_some(), "it was another number of readers");
    }

    #[test]
    fn the_first_failure_is_kept_as_far_as_it_fits() {
        let board = Board::new().unwrap();
        assert!(board.failure().is_none());
        let text = format!("{}ä and more", "x".repeat(TEXT_WORDS * 8 - 1));
        assert!(board.fail(ErrorKind::TimedOut, &text) && !board.fail(ErrorKind::Io, "later"));
        let failure = board.failure().unwrap();
        assert_eq!(failure.kind(), ErrorKind::TimedOut);
        assert_eq!(failure.to_string(), "x".repeat(TEXT_WORDS * 8 - 1));
        let other = Board::new().unwrap();
        other.fail(ErrorKind::Busy, "no kind of a store's");
        assert_eq!(other.failure().unwrap().kind(), ErrorKind::Io);
    }
}
