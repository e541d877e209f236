//! Where the copy of each unit is: one word a unit, changed in one step.

use crate::sync::{AtomicU64, Ordering};

/// Where a copy lies, or will lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The tier, 0 being the fastest.
    pub tier: u8,
    /// First page in it.
    pub page: u64,
}

/// What there is of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// None, and no room for one is reserved.
    Absent,
    /// Room for it; its bytes are not all there, or not to be trusted.
    Reserved(Place),
    /// A whole copy.
    Copied(Place),
}

/// The state of every unit: 8 bytes each. Read by any thread, without waiting.
#[derive(Debug)]
pub struct Places {
    words: Vec<AtomicU64>,
}

impl Places {
    /// Of `len` units without copies.
    pub fn new(len: u32) -> Places {
        Places { words: (0..len).map(|_| AtomicU64::new(ABSENT)).collect() }
    }

    /// What there is of `unit`.
    #[inline]
    pub fn state(&self, unit: u32) -> State {
        decode(self.words[unit as usize].load(Ordering::Acquire))
    }

    /// Where the whole copy of `unit` is, if there is one.
    #[inline]
    pub fn copy_of(&self, unit: u32) -> Option<Place> {
        match self.state(unit) {
            State::Copied(place) => Some(place),
            _ => None,
        }
    }

    /// Notes that room is reserved; `false` when somebody was first, or there is a copy.
    pub fn reserve(&self, unit: u32, place: Place) -> bool {
        let new = encode(place) | RESERVED;
        let word = &self.words[unit as usize];
        word.compare_exchange(ABSENT, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// From now on the copy is read: all of its bytes are there. `false` when none was reserved.
    pub fn publish(&self, unit: u32) -> bool {
        self.turn(unit, RESERVED, COPIED)
    }

    /// The copy is not to be read any more; its room stays reserved. `false` when there was none.
    pub fn distrust(&self, unit: u32) -> bool {
        self.turn(unit, COPIED, RESERVED)
    }

    /// Neither copy nor room, as if nobody had read it.
    pub fn forget(&self, unit: u32) {
        self.words[unit as usize].store(ABSENT, Ordering::Release);
    }

    fn turn(&self, unit: u32, from: u64, to: u64) -> bool {
        let change = |word| (word & STATE == from).then_some(word & !STATE | to);
        let word = &self.words[unit as usize];
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }
}

fn encode(place: Place) -> u64 {
    place.page << 8 | u64::from(place.tier) << 2
}

fn decode(word: u64) -> State {
    let place = Place { tier: (word >> 2) as u8 & 63, page: word >> 8 };
    match word & STATE {
        RESERVED => State::Reserved(place),
        COPIED => State::Copied(place),
        _ => State::Absent,
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
    fn a_unit_is_reserved_once_published_once_and_distrusted_without_losing_its_room() {
        let places = Places::new(2);
        let place = Place { tier: 5, page: 1 << 50 };
        assert!(!places.publish(1) && !places.distrust(1));
        assert!(places.reserve(1, place) && !places.reserve(1, Place { tier: 0, page: 0 }));
        assert_eq!((places.state(1), places.copy_of(1)), (State::Reserved(place), None));
        assert!(places.publish(1) && !places.publish(1));
        assert_eq!(places.copy_of(1), Some(place));
        assert!(places.distrust(1) && !places.distrust(1));
        assert_eq!(places.state(1), State::Reserved(place));
        places.forget(1);
        assert_eq!((places.state(1), places.state(0)), (State::Absent, State::Absent));
    }

    #[test]
    fn of_many_threads_one_reserves() {
        let places = Places::new(1);
        let reserve = |page| usize::from(places.reserve(0, Place { tier: 0, page }));
        let won: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|page| scope.spawn(move || reserve(page))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
    }
}
