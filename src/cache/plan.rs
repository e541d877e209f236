//! A run's plan for the tiers, and the plan of several processes that share them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::options::MAX_TIERS;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::PlannedCopy;
use crate::tier::Units;
use crate::units::{Lba, SampleId};

/// Which units a run keeps in which tier, and how often it reads each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierPlan {
    /// Units with their tiers, in the order in which to fetch them.
    pub copies: Vec<(u32, u8)>,
    /// For each unit, how often the run reads it; for units kept together, the first counts.
    pub reads: Vec<u16>,
    /// Fingerprint of its units: see [`Units::fingerprint`].
    pub fingerprint: u64,
}

/// The latest plans of the processes that share tiers.
#[derive(Debug, Default)]
pub(super) struct Plans {
    /// That of the owner.
    pub(super) own: Option<Arc<TierPlan>>,
    /// Those of attached processes, by the number of their connection.
    pub(super) attached: HashMap<u64, Arc<TierPlan>>,
}

impl Plans {
    /// One plan for all of them: see [`TierPlan::merge`].
    pub(super) fn merged(&self, units: &Units, capacities: &[u64]) -> Arc<TierPlan> {
        match (&self.own, self.attached.is_empty()) {
            (Some(own), true) => Arc::clone(own),
            (own, _) => {
                let plans: Vec<&TierPlan> =
                    own.iter().chain(self.attached.values()).map(|plan| &**plan).collect();
                Arc::new(TierPlan::merge(&plans, units, capacities))
            }
        }
    }
}

impl TierPlan {
    /// The plan of processes that share tiers with these capacities in pages.
    ///
    /// It chooses as each of the plans does: units by the number of reads, here of all processes together,
    /// then by the first read, until one does not fit, which closes the tier and begins the next. The first
    /// read is the earliest of any process: the processes of a job advance together, so places in their lists
    /// compare. A unit that no process plans to keep is not kept.
    pub fn merge(plans: &[&TierPlan], units: &Units, capacities: &[u64]) -> TierPlan {
        let mut reads = vec![0_u16; units.len() as usize];
        let mut first = vec![u32::MAX; units.len() as usize];
        for plan in plans {
            for (sum, more) in reads.iter_mut().zip(&plan.reads) {
                *sum = sum.saturating_add(*more);
            }
            for (place, &(unit, _)) in (0..).zip(&plan.copies) {
                let first = &mut first[unit as usize];
                *first = place.min(*first);
            }
        }
        let mut chosen: Vec<u32> =
            (0..units.len()).filter(|&unit| first[unit as usize] != u32::MAX).collect();
        chosen.sort_unstable_by_key(|&unit| {
            (Reverse(reads[unit as usize]), first[unit as usize], unit)
        });
        let mut rooms = (0..).zip(capacities.iter().copied());
        let mut room = rooms.next();
        let mut copies = Vec::with_capacity(chosen.len());
        'units: for unit in chosen {
            let together = units.together_with(unit);
            let pages: u64 = together.map(|unit| u64::from(units.get(unit).pages())).sum();
            loop {
                match &mut room {
                    None => break 'units,
                    Some((tier, free)) if pages <= *free => {
                        *free -= pages;
                        copies.push((unit, *tier));
                        break;
                    }
                    Some(_) => room = rooms.next(),
                }
            }
        }
        copies.sort_unstable_by_key(|&(unit, _)| (first[unit as usize], unit));
        TierPlan { copies, reads, fingerprint: units.fingerprint() }
    }

    /// For each unit, the tier that keeps it.
    pub fn tier_of_units(&self, units: &Units) -> Vec<Option<u8>> {
        let mut tiers = vec![None; units.len() as usize];
        for &(first, tier) in &self.copies {
            units.together_with(first).for_each(|unit| tiers[unit as usize] = Some(tier));
        }
        tiers
    }

    /// Calls `visit` with each unit that is kept, in the order of first access: copies lie in their tier in that order,
    /// so the lowest address is copied first.
    pub fn copies_in_order(&self, units: &Units, mut visit: impl FnMut(PlannedCopy)) {
        let mut next = [0; MAX_TIERS];
        for (&(first, tier), first_access) in self.copies.iter().zip(0..) {
            for unit in units.together_with(first) {
                let lba = Lba(next[usize::from(tier)]);
                next[usize::from(tier)] += u64::from(units.get(unit).pages());
                let (sample, frequency) = (SampleId(unit.into()), self.reads[first as usize]);
                visit(PlannedCopy { sample, tier, lba, first_access, frequency });
            }
        }
    }

    /// Checks that it belongs to `units` and to this many tiers.
    pub(super) fn check(&self, units: &Units, num_tiers: usize) -> Result<()> {
        let refuse = |text: &'static str| {
            Err(Error::new(ErrorKind::InvalidArgument, text)
                .hint("make a plan from the data set and the tiers that it is used with"))
        };
        let num_units = units.len();
        if self.fingerprint != units.fingerprint() || self.reads.len() != num_units as usize {
            return refuse("the plan belongs to another data set or generation");
        }
        if self.copies.iter().any(|&(unit, _)| unit >= num_units) {
            return refuse("the plan names a unit that the data set does not have");
        }
        match self.copies.iter().any(|&(_, tier)| usize::from(tier) >= num_tiers) {
            true => refuse("the plan names a tier that does not exist"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten units of four pages.
    fn units() -> Units {
        Units::from_pages((0..10).map(|unit| (unit * 4, 4)))
    }

    fn plan(copies: &[(u32, u8)], often: &[u32]) -> TierPlan {
        let mut reads = vec![1; 10];
        often.iter().for_each(|&unit| reads[unit as usize] = 2);
        TierPlan { copies: copies.to_vec(), reads, fingerprint: units().fingerprint() }
    }

    #[test]
    fn the_plan_of_one_process_stays_as_it_is() {
        // Two tiers of two units each, the fastest for what is read most often.
        let one = plan(&[(5, 1), (2, 0), (9, 1), (4, 0)], &[2, 4]);
        assert_eq!(TierPlan::merge(&[&one], &units(), &[8, 11]), one);
    }

    #[test]
    fn units_that_all_together_read_most_often_come_first_and_of_equals_the_earliest() {
        let first = plan(&[(0, 0), (1, 0), (2, 0)], &[1]);
        let second = plan(&[(3, 0), (1, 0), (4, 0)], &[1, 4]);
        let merged = TierPlan::merge(&[&first, &second], &units(), &[16]);
        assert_eq!(merged.reads[..6], [2, 4, 2, 2, 3, 2]);
        // Units 1 and 4 are read most often, 0 and 3 are read first; 2 finds no room.
        assert_eq!(merged.copies, [(0, 0), (3, 0), (1, 0), (4, 0)]);
        let earlier = plan(&[(2, 0)], &[]);
        let merged = TierPlan::merge(&[&first, &second, &earlier], &units(), &[12, 4]);
        assert_eq!(merged.copies, [(0, 0), (2, 1), (1, 0), (4, 0)]);
    }

    #[test]
    fn copies_lie_in_each_tier_in_the_order_of_first_access() {
        let one = plan(&[(5, 1), (2, 0), (9, 1)], &[2]);
        let mut copies = Vec::new();
        one.copies_in_order(&units(), |copy| {
            copies.push((copy.sample.0, copy.tier, copy.lba.0, copy.frequency));
        });
        assert_eq!(copies, [(5, 1, 0, 1), (2, 0, 0, 2), (9, 1, 4, 1)]);
        let tiers = one.tier_of_units(&units());
        assert_eq!((tiers[2], tiers[3], tiers[9]), (Some(0), None, Some(1)));
    }

    #[test]
    fn plans_of_processes_come_and_go() {
        let mut plans = Plans::default();
        let copies = |plans: &Plans| plans.merged(&units(), &[40]).copies.clone();
        assert!(copies(&plans).is_empty());
        plans.attached.insert(7, Arc::new(plan(&[(3, 0)], &[])));
        assert_eq!(copies(&plans), [(3, 0)], "an owner without a plan keeps what others want");
        plans.own = Some(Arc::new(plan(&[(1, 0)], &[])));
        assert_eq!(copies(&plans), [(1, 0), (3, 0)]);
        plans.attached.remove(&7);
        assert_eq!(copies(&plans), [(1, 0)]);
    }
}
