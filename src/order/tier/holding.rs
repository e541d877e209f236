//! The chunks that a node holds for all nodes of its job ([`Holding`]), and the room that they still need
//! ([`Lacking`]).

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// All chunks of a data set as ranges of units, each marked if this node holds it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Sorted by first unit.
    chunks: Vec<Chunk>,
}

/// The units of one chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Chunk {
    units: Range<u32>,
    /// The number of pages of all its units.
    pages: u64,
    /// True if this node holds the chunk.
    is_held: bool,
    /// Set once the whole chunk is to be fetched, because one of its pages is kept and the others have room.
    #[serde(skip)]
    has_begun: bool,
}

/// The room that the held chunks still need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lacking {
    /// Pages that are not reserved yet.
    pub pages: u64,
    /// Pages of units that have no place yet.
    pub space: u64,
}

impl Holding {
    /// The chunks, each with its units, its number of pages, and whether this node holds it.
    pub fn new(chunks: impl IntoIterator<Item = (Range<u32>, u64, bool)>) -> Holding {
        let chunk = |(units, pages, is_held)| Chunk { units, pages, is_held, has_begun: false };
        let mut chunks: Vec<Chunk> =
            chunks.into_iter().map(chunk).filter(|chunk| !chunk.units.is_empty()).collect();
        chunks.sort_unstable_by_key(|chunk| chunk.units.start);
        Holding { chunks }
    }

    /// Returns whether this node holds the chunk of `unit`.
    pub fn is_held(&self, unit: u32) -> bool {
        self.find(unit).is_some_and(|at| self.chunks[at].is_held)
    }

    /// The units of the held chunks.
    pub fn held_units(&self) -> impl Iterator<Item = u32> {
        self.chunks.iter().filter(|chunk| chunk.is_held).flat_map(|chunk| chunk.units.clone())
    }

    /// The chunks, in the form that [`Holding::new`] takes.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = (Range<u32>, u64, bool)> {
        self.chunks.iter().map(|chunk| (chunk.units.clone(), chunk.pages, chunk.is_held))
    }

    /// The same chunks, held if they are held here or in `other`, which divides the same data set.
    pub fn with(mut self, other: &Holding) -> Holding {
        for (chunk, other) in self.chunks.iter_mut().zip(&other.chunks) {
            chunk.is_held |= other.is_held && other.units == chunk.units;
        }
        self
    }

    /// The number of pages of the chunk of `unit`; `None` if the chunk has begun, or `unit` is in no chunk.
    pub(super) fn unbegun(&self, unit: u32) -> Option<u64> {
        let chunk = &self.chunks[self.find(unit)?];
        (!chunk.has_begun).then_some(chunk.pages)
    }

    /// Marks the chunk of `unit` as begun, and returns its units; `None` if `unit` is in no chunk.
    pub(super) fn begin(&mut self, unit: u32) -> Option<Range<u32>> {
        let at = self.find(unit)?;
        self.chunks[at].has_begun = true;
        Some(self.chunks[at].units.clone())
    }

    /// The index of the chunk of `unit`; `None` if `unit` is in no chunk.
    fn find(&self, unit: u32) -> Option<usize> {
        let behind = self.chunks.partition_point(|chunk| chunk.units.start <= unit);
        let at = behind.checked_sub(1)?;
        self.chunks[at].units.contains(&unit).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_held_with_its_chunk_and_a_chunk_begins_once() {
        let mut holding =
            Holding::new([(5..9, 40, true), (0..3, 12, false), (3..3, 0, true), (9..10, 1, false)]);
        let held: Vec<bool> = (0..11).map(|unit| holding.is_held(unit)).collect();
        let expected: Vec<bool> = (0..11).map(|unit| (5..9).contains(&unit)).collect();
        assert_eq!(held, expected);
        assert_eq!(holding.held_units().collect::<Vec<_>>(), [5, 6, 7, 8]);
        assert_eq!(
            (holding.unbegun(8), holding.unbegun(2), holding.unbegun(4)),
            (Some(40), Some(12), None)
        );
        assert_eq!((holding.begin(8), holding.begin(4)), (Some(5..9), None));
        assert_eq!((holding.unbegun(5), holding.unbegun(0)), (None, Some(12)));
    }
}
