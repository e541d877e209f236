//! Plans in units: converts access strings of samples to access strings of units.

use super::Accesses;
use crate::tier::Units;
use crate::units::SampleId;

/// The access strings of a run, with each sample replaced by its unit.
///
/// A unit is read as often as its samples, and for the first time with the first of them.
#[derive(Debug)]
pub struct ByUnit<'a, A: ?Sized> {
    accesses: &'a A,
    unit_of: &'a [u32],
}

impl<'a, A: Accesses + ?Sized> ByUnit<'a, A> {
    /// `unit_of` gives the unit in which each sample begins, by id: see [`Units::by_sample`].
    pub fn new(accesses: &'a A, unit_of: &'a [u32]) -> ByUnit<'a, A> {
        ByUnit { accesses, unit_of }
    }
}

impl<A: Accesses + ?Sized> Accesses for ByUnit<'_, A> {
    fn num_ranks(&self) -> u32 {
        self.accesses.num_ranks()
    }

    fn walk(&self, rank: u32, visit: &mut dyn FnMut(&[SampleId])) {
        let mut units = Vec::new();
        self.accesses.walk(rank, &mut |ids| {
            units.clear();
            let there = ids.iter().map(|id| self.unit_of[id.0 as usize]);
            units.extend(
                there.filter(|&unit| unit != Units::NO_UNIT).map(|unit| SampleId(unit.into())),
            );
            visit(&units);
        });
    }
}

impl super::Lengths for Units {
    fn num_samples(&self) -> u64 {
        self.len().into()
    }

    /// The total length of units that are kept together, reported for the first.
    fn len_bytes(&self, unit: SampleId) -> u32 {
        let together = self.together_with(unit.0 as u32);
        let len: u64 = together.map(|unit| self.get(unit).len_bytes()).sum();
        u32::try_from(len).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Tail;
    use crate::plan::access::tests::{GLOBAL, Samples, string};
    use crate::plan::{Planner, Tier, TrainingRun};

    #[test]
    fn units_are_planned_by_the_accesses_of_their_samples() {
        let (samples, units) = (Samples(100), Units::from_pages((0..10).map(|unit| (unit * 3, 3))));
        let unit_of: Vec<u32> =
            (0..100).map(|id| if id == 7 { Units::NO_UNIT } else { id / 10 }).collect();
        let run = TrainingRun::new(&samples, GLOBAL, 0..3, 1, Tail::Keep).unwrap();
        let by_unit = ByUnit::new(&run, &unit_of);
        assert_eq!(string(&by_unit, 0).len(), 3 * 99);
        let mut planner = Planner::new(&by_unit, &units, 4096).unwrap();
        let mut planned = Vec::new();
        planner.plan(0, &[Tier { num_blocks: 20 }], &mut |copy| planned.push(copy)).unwrap();
        assert_eq!(planned.len(), 6, "six units of three pages");
        assert!(planned.iter().all(|copy| copy.frequency == 30 && copy.sample.0 != 0));
        assert!(planned.is_sorted_by_key(|copy| copy.first_access));
    }
}
