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

/// The copy states of all units: 8 bytes each. Any thread reads them without waiting.
#[derive(Debug)]
pub struct CopyTable {
    words: Vec<AtomicU64>,
}

impl CopyTable {
    /// A table of `len` units without copies.
    pub fn new(len: u32) -> CopyTable {
        CopyTable { words: (0..len).map(|_| AtomicU64::new(ABSENT)).collect() }
    }

    /// CopyState of the copy of `unit`.
    #[inline]
    pub fn state(&self, unit: u32) -> CopyState {
        decode(self.words[unit as usize].load(Ordering::Acquire))
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
        let word = &self.words[unit as usize];
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
        self.words[unit as usize].store(ABSENT, Ordering::Release);
    }

    fn transition(&self, unit: u32, from: u64, to: u64) -> bool {
        let change = |word| (word & STATE == from).then_some(word & !STATE | to);
        let word = &self.words[unit as usize];
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }
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
