//! The map from sample ids to slots: `slot = P(id)`. Each part has its own map.

use crate::format::FormatError;
use crate::format::error::at_most;
use crate::format::geometry::MAX_SAMPLES;
use dlfs_base::permutation::{Key, Permutation};
use dlfs_base::units::{SampleId, Slot};

/// The samples of one import or append; of an import by many processes, those of one namespace or writer. Their ids are
/// a contiguous range. Their slots are the same range of numbers, in another order if they are shuffled.
///
/// `window`, the shuffle window, determines how ids map to slots. 0 keeps source order. Otherwise the part is
/// divided into windows of that many samples (the last one may be shorter), and a keyed permutation shuffles each
/// window. An import of a source of known length uses one window. A stream is shuffled in memory before ids are
/// assigned, so its window is 0 or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Part {
    /// First id, and first slot.
    pub first: u64,
    /// Number of samples, deleted and purged ones included.
    pub count: u64,
    /// Seed of the shuffle.
    pub seed: u64,
    /// Samples that are shuffled together; 0 keeps source order.
    pub window: u64,
}

impl Part {
    /// The same part with count 0, as in a chunk's head, which does not store the count.
    #[must_use]
    pub fn uncounted(self) -> Part {
        Part { count: 0, ..self }
    }

    /// Checks that the part's ids are valid.
    pub fn check(&self) -> Result<(), FormatError> {
        at_most("first id of a part", self.first, MAX_SAMPLES)?;
        at_most("samples of a part", self.count, MAX_SAMPLES - self.first)?;
        Ok(())
    }
}

/// A [`Part`] with its permutation: maps ids to slots and back, in tens of nanoseconds.
#[derive(Debug, Clone)]
pub struct Placement {
    part: Part,
    /// The permutation, if the part has a single window.
    whole: Option<Permutation>,
}

impl Placement {
    /// The placement of `part`, which must pass [`Part::check`].
    pub fn new(part: Part) -> Placement {
        let one_window = part.window != 0 && part.window >= part.count;
        let whole = one_window.then(|| permutation(part.seed, 0, part.count));
        Placement { part, whole }
    }

    /// The part.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// Returns whether the part contains this id, or slot: both are the same range.
    #[inline]
    pub fn contains(&self, id: u64) -> bool {
        id.wrapping_sub(self.part.first) < self.part.count
    }

    /// The slot of the sample with `id`.
    ///
    /// # Panics
    /// If the part does not contain `id`.
    #[inline]
    pub fn slot_of(&self, id: SampleId) -> Slot {
        Slot(self.map(id.0, Permutation::forward))
    }

    /// The id of the sample at `slot`. An import calls this to find the sample to write next.
    ///
    /// # Panics
    /// If the part does not contain `slot`.
    #[inline]
    pub fn id_at(&self, slot: Slot) -> SampleId {
        SampleId(self.map(slot.0, Permutation::inverse))
    }

    #[inline]
    fn map(&self, number: u64, through: impl Fn(&Permutation, u64) -> u64) -> u64 {
        assert!(self.contains(number), "{number} is not of this part");
        let local = number - self.part.first;
        match &self.whole {
            Some(permutation) => self.part.first + through(permutation, local),
            None if self.part.window == 0 => number,
            None => {
                let index = local / self.part.window;
                let start = index * self.part.window;
                let len = self.part.window.min(self.part.count - start);
                let permutation = permutation(self.part.seed, index, len);
                self.part.first + start + through(&permutation, local - start)
            }
        }
    }
}

/// The permutation of shuffle window `index`. Part of the format: it must never change.
fn permutation(seed: u64, index: u64, len: u64) -> Permutation {
    Permutation::new(len, Key::derive(seed, &[PLACEMENT, index]))
}

/// Domain separator for keys of placements: "place" in ASCII.
const PLACEMENT: u64 = 0x70_6c61_6365;

#[cfg(test)]
mod tests {
    use super::*;

    fn check_is_a_bijection(part: Part) {
        let placement = Placement::new(part);
        let mut seen = vec![false; part.count as usize];
        for id in part.first..part.first + part.count {
            let slot = placement.slot_of(SampleId(id));
            assert!(placement.contains(slot.0));
            assert!(!std::mem::replace(&mut seen[(slot.0 - part.first) as usize], true));
            assert_eq!(placement.id_at(slot), SampleId(id));
            if part.window > 0 {
                let window = |n: u64| (n - part.first) / part.window;
                assert_eq!(window(id), window(slot.0), "a sample leaves its window");
            }
        }
    }

    #[test]
    fn id_to_slot_and_slot_to_id_are_inverse_in_every_kind_of_part() {
        for (count, window) in [(0, 0), (1, 1), (1000, 0), (1000, 1000), (1000, 96), (10, 1 << 40)]
        {
            check_is_a_bijection(Part { first: 77, count, seed: 5, window });
        }
    }

    #[test]
    fn the_last_sample_of_the_largest_image_has_a_place() {
        for window in [0, 1 << 20, 1 << 40] {
            let part = Part { first: 0, count: MAX_SAMPLES, seed: 1, window };
            part.check().unwrap();
            let placement = Placement::new(part);
            let last = SampleId(MAX_SAMPLES - 1);
            assert_eq!(placement.id_at(placement.slot_of(last)), last);
        }
        assert!(Part { first: 1, count: MAX_SAMPLES, seed: 0, window: 0 }.check().is_err());
        assert!(Part { first: u64::MAX, count: 1, seed: 0, window: 0 }.check().is_err());
    }
}
