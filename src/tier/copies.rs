//! The location of each unit's copy: one word per unit, changed atomically.

use crate::sync::{AtomicU64, Ordering};

/// Where a copy is, or will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyLocation {
    /// The tier, 0 being the fastest.
    pub tier: u8,
    /// Its first page in the tier.
    pub page: u64,
}

/// The state of a unit's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyState {
    /// No copy, and no room reserved for one.
    Absent,
    /// PageAllocator is reserved; its data are incomplete or not trusted.
    Reserved(CopyLocation),
    /// A complete copy.
    Copied(CopyLocation),
}

/// The copy states of all units: 8 bytes each. Any thread reads them without waiting, and any process
/// that shares the words.
pub struct CopyTable {
    words: Box<dyn Words>,
}

/// Where a table keeps its words: in a process's own memory, or in memory that processes share.
pub trait Words: AsRef<[AtomicU64]> + Send + Sync {}

impl<T: AsRef<[AtomicU64]> + Send + Sync> Words for T {}

impl CopyTable {
    /// A table of `len` units without copies.
    pub fn new(len: u32) -> CopyTable {
        let words: Vec<AtomicU64> = (0..CopyTable::num_words(len)).map(|_| zero()).collect();
        CopyTable { words: Box::new(words) }
    }

    /// The table that lies in `words`, which begin as zeroes.
    ///
    /// # Panics
    /// If they are fewer than [`CopyTable::num_words`] of any table.
    pub fn over(words: Box<dyn Words>) -> CopyTable {
        assert!((*words).as_ref().len() >= HEADER_WORDS, "no table is shorter");
        CopyTable { words }
    }

    /// Number of words of a table of `len` units.
    pub fn num_words(len: u32) -> usize {
        len as usize + HEADER_WORDS
    }

    /// Number of evictions so far: a read of a copy that began before one may have returned other
    /// data.
    pub fn evictions(&self) -> u64 {
        self.header(EVICTIONS).load(Ordering::Acquire)
    }

    /// Counts an eviction.
    pub fn count_eviction(&self) {
        let next = |count: u64| Some(count.wrapping_add(1));
        // Never fails, since there always is a next number.
        let _ = self.header(EVICTIONS).fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// The largest number of pages for which any tier has room, as the owner of the tiers set it.
    pub fn room(&self) -> u64 {
        self.header(ROOM).load(Ordering::Acquire)
    }

    /// Sets [`CopyTable::room`].
    pub fn set_room(&self, pages: u64) {
        self.header(ROOM).store(pages, Ordering::Release);
    }

    fn header(&self, word: usize) -> &AtomicU64 {
        &(*self.words).as_ref()[word]
    }

    #[inline]
    fn word(&self, unit: u32) -> &AtomicU64 {
        &(*self.words).as_ref()[HEADER_WORDS + unit as usize]
    }

    /// CopyState of the copy of `unit`.
    #[inline]
    pub fn state(&self, unit: u32) -> CopyState {
        decode(self.word(unit).load(Ordering::Acquire))
    }

    /// Location of the complete copy of `unit`, if there is one.
    #[inline]
    pub fn copy_of(&self, unit: u32) -> Option<CopyLocation> {
        match self.state(unit) {
            CopyState::Copied(location) => Some(location),
            _ => None,
        }
    }

    /// Sets the location of reserved room; `false` if room or a copy existed already.
    pub fn reserve(&self, unit: u32, location: CopyLocation) -> bool {
        let new = encode(location) | RESERVED;
        let word = self.word(unit);
        word.compare_exchange(ABSENT, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The copy is complete and may be read from now on. `false` if no room was reserved.
    pub fn publish(&self, unit: u32) -> bool {
        self.transition(unit, RESERVED, COPIED)
    }

    /// The copy must not be read any more; its room stays reserved. `false` if there was no copy.
    pub fn mark_corrupt(&self, unit: u32) -> bool {
        self.transition(unit, COPIED, RESERVED)
    }

    /// Removes copy and reservation, as if the unit had never been read.
    pub fn clear(&self, unit: u32) {
        self.word(unit).store(ABSENT, Ordering::Release);
    }

    fn transition(&self, unit: u32, from: u64, to: u64) -> bool {
        let change = |word| (word & STATE == from).then_some(word & !STATE | to);
        let word = self.word(unit);
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }
}

impl std::fmt::Debug for CopyTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyTable").field("words", &(*self.words).as_ref().len()).finish()
    }
}

fn zero() -> AtomicU64 {
    AtomicU64::new(ABSENT)
}

fn encode(location: CopyLocation) -> u64 {
    location.page << 8 | u64::from(location.tier) << 2
}

fn decode(word: u64) -> CopyState {
    let location = CopyLocation { tier: (word >> 2) as u8 & 63, page: word >> 8 };
    match word & STATE {
        RESERVED => CopyState::Reserved(location),
        COPIED => CopyState::Copied(location),
        _ => CopyState::Absent,
    }
}

/// Words before those of the units: the number of evictions, and the room that is left.
const HEADER_WORDS: usize = 2;
const EVICTIONS: usize = 0;
const ROOM: usize = 1;

const STATE: u64 = 3;
const ABSENT: u64 = 0;
const RESERVED: u64 = 1;
const COPIED: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_reserved_once_published_once_and_keeps_its_room_when_it_is_corrupt() {
        let table = CopyTable::new(2);
        let location = CopyLocation { tier: 5, page: 1 << 50 };
        assert!(!table.publish(1) && !table.mark_corrupt(1));
        assert!(table.reserve(1, location) && !table.reserve(1, CopyLocation { tier: 0, page: 0 }));
        assert_eq!((table.state(1), table.copy_of(1)), (CopyState::Reserved(location), None));
        assert!(table.publish(1) && !table.publish(1));
        assert_eq!(table.copy_of(1), Some(location));
        assert!(table.mark_corrupt(1) && !table.mark_corrupt(1));
        assert_eq!(table.state(1), CopyState::Reserved(location));
        table.clear(1);
        assert_eq!((table.state(1), table.state(0)), (CopyState::Absent, CopyState::Absent));
    }

    #[test]
    fn evictions_and_room_are_apart_from_the_units() {
        let table = CopyTable::new(2);
        table.set_room(9);
        (0..3).for_each(|_| table.count_eviction());
        assert_eq!((table.evictions(), table.room()), (3, 9));
        assert_eq!((table.state(0), table.state(1)), (CopyState::Absent, CopyState::Absent));
    }

    #[test]
    fn of_many_threads_one_reserves() {
        let table = CopyTable::new(1);
        let reserve = |page| usize::from(table.reserve(0, CopyLocation { tier: 0, page }));
        let won: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|page| scope.spawn(move || reserve(page))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
    }
}
