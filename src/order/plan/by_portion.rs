//! Plans by portions: converts access strings of samples to access strings of portions.

use super::Accesses;
use crate::tier::Units;
use dlfs_base::units::SampleId;

/// The access strings of a run, with each sample replaced by its portion.
///
/// A portion is read as often as all its samples together, and first with the first of its samples.
#[derive(Debug)]
pub struct ByPortion<'a, A: ?Sized> {
    accesses: &'a A,
    portion_of: &'a [u32],
}

impl<'a, A: Accesses + ?Sized> ByPortion<'a, A> {
    /// `portion_of` has the portion of each sample, by id: see [`Units::by_sample`].
    pub fn new(accesses: &'a A, portion_of: &'a [u32]) -> ByPortion<'a, A> {
        ByPortion { accesses, portion_of }
    }
}

impl<A: Accesses + ?Sized> Accesses for ByPortion<'_, A> {
    fn num_ranks(&self) -> u32 {
        self.accesses.num_ranks()
    }

    fn walk(&self, rank: u32, visit: &mut dyn FnMut(&[SampleId])) {
        let mut portions = Vec::new();
        self.accesses.walk(rank, &mut |ids| {
            portions.clear();
            let there = ids.iter().map(|id| self.portion_of[id.0 as usize]);
            let there = there.filter(|&portion| portion != Units::NO_UNIT);
            portions.extend(there.map(|portion| SampleId(portion.into())));
            visit(&portions);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Tail;
    use crate::plan::TrainingRun;
    use crate::plan::access::tests::{GLOBAL, Samples, string};

    #[test]
    fn a_portion_is_read_with_each_of_its_samples() {
        let samples = Samples(100);
        let portion_of: Vec<u32> =
            (0..100).map(|id| if id == 7 { Units::NO_UNIT } else { id / 10 }).collect();
        let run = TrainingRun::new(&samples, GLOBAL, 0..3, 1, Tail::Keep).unwrap();
        let portions = string(&ByPortion::new(&run, &portion_of), 0);
        let ids = string(&run, 0);
        let expected = ids.into_iter().filter(|&id| id != 7).map(|id| id / 10);
        assert!(portions.into_iter().eq(expected));
    }
}
