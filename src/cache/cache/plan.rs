//! Plans for the tiers: [`TierPlan`] chooses the copies of a run. The owner of the tiers merges the plans of all
//! processes that share them, and evicts copies to make room ([`TierShared::add_plan`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::copier::CopyJob;
use super::{OWN, TierShared};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::{Lba, SampleId};
use dlfs_order::plan::{Accesses, MAX_TIERS, PlannedCopy};
use dlfs_order::tier::{Candidate, Ledger, PageSet, Policy, Units, copies_to_evict};

/// The portions that a run keeps, their tiers, and the number of reads of each.
///
/// It chooses portions by the number of reads, then by the first read, until one does not fit. A unit has one
/// place, so its chosen portions are all in one tier: the fastest tier takes the units whose chosen pages are
/// read most often. A plan takes 2 bytes per portion, and 8 bytes per portion that is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierPlan {
    /// Portions and their tiers, in the order of fetching.
    pub copies: Vec<(u32, u8)>,
    /// Number of reads of each portion in the run; for units kept together, that of the first unit counts.
    pub reads: Vec<u16>,
    /// Fingerprint of the plan's units: see [`Units::fingerprint`].
    pub fingerprint: u64,
}

/// Capacity of the tiers, as input for a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierRooms {
    /// Quotas of the tiers in pages, fastest first.
    pub pages: Vec<u64>,
    /// Set if the tiers can keep a part of a unit without room for the rest.
    pub keep_parts: bool,
}

/// The plan that the owner follows: its own if no other process has sent one, otherwise the merged plans of all
/// processes, which are given by connection number: see [`TierPlan::merge`].
fn merged(plans: &HashMap<u64, Arc<TierPlan>>, units: &Units, rooms: &TierRooms) -> Arc<TierPlan> {
    // A plan that was made while another process owned more tiers may name tiers that this process lacks.
    let exists = |tier: u8| usize::from(tier) < rooms.pages.len();
    let all_exist = |plan: &TierPlan| plan.copies.iter().all(|&(_, tier)| exists(tier));
    match plans.get(&OWN) {
        Some(own) if plans.len() == 1 && all_exist(own) => Arc::clone(own),
        _ => {
            let plans: Vec<&TierPlan> = plans.values().map(|plan| &**plan).collect();
            Arc::new(TierPlan::merge(&plans, units, rooms))
        }
    }
}

impl TierPlan {
    /// Makes the plan of `rank`, whose access string consists of portions. Costs one pass over the string.
    pub fn of(
        accesses: &(impl Accesses + ?Sized),
        rank: u32,
        units: &Units,
        rooms: &TierRooms,
    ) -> TierPlan {
        let mut reads = vec![0_u16; units.num_portions() as usize];
        let mut order = Vec::new();
        accesses.walk(rank, &mut |portions| {
            for SampleId(portion) in portions {
                let reads = &mut reads[*portion as usize];
                if *reads == 0 {
                    order.push(*portion as u32);
                }
                *reads = reads.saturating_add(1);
            }
        });
        TierPlan::choose(reads, order, units, rooms)
    }

    /// Merges the plans of processes that share tiers.
    ///
    /// It chooses like each of the plans, by the reads of all processes together. The first read of a portion
    /// is the earliest of any process: the processes of a job advance together, so positions in their lists
    /// compare. A portion that no process plans to keep is not kept.
    pub fn merge(plans: &[&TierPlan], units: &Units, rooms: &TierRooms) -> TierPlan {
        let mut reads = vec![0_u16; units.num_portions() as usize];
        let mut first = vec![u32::MAX; units.num_portions() as usize];
        for plan in plans {
            for (sum, more) in reads.iter_mut().zip(&plan.reads) {
                *sum = sum.saturating_add(*more);
            }
            for (place, &(portion, _)) in (0..).zip(&plan.copies) {
                let first = &mut first[portion as usize];
                *first = place.min(*first);
            }
        }
        let is_planned = |portion: &u32| first[*portion as usize] != u32::MAX;
        let mut order: Vec<u32> = (0..units.num_portions()).filter(is_planned).collect();
        order.sort_by_key(|&portion| first[portion as usize]);
        TierPlan::choose(reads, order, units, rooms)
    }

    /// Chooses among the portions of `order`, which are in the order of their first reads.
    fn choose(reads: Vec<u16>, mut order: Vec<u32>, units: &Units, rooms: &TierRooms) -> TierPlan {
        let mut choice = Choice::new(units, rooms);
        let mut is_kept = vec![false; reads.len()];
        let mut ranked = order.clone();
        ranked.sort_by_key(|&portion| Reverse(reads[portion as usize])); // stable: the earliest of equals comes first
        for &portion in ranked.iter().take_while(|&&portion| choice.take(portion)) {
            is_kept[portion as usize] = true;
        }
        drop(ranked);
        order.retain(|&portion| is_kept[portion as usize]);
        let tiers = choice.tiers(&order, &reads);
        let tier =
            |portion: u32| tiers[units.portion(portion).0 as usize].map(|tier| (portion, tier));
        let copies = order.into_iter().filter_map(tier).collect();
        TierPlan { copies, reads, fingerprint: units.fingerprint() }
    }

    /// The tier of each unit and its pages to keep, as [`Ledger::set_plan`] takes them.
    fn by_unit(&self, units: &Units, keep_parts: bool) -> Vec<(u8, PageSet)> {
        let mut planned = vec![Ledger::NOT_PLANNED; units.len() as usize];
        for &(portion, tier) in &self.copies {
            for (unit, pages) in pages_of(units, portion, keep_parts) {
                let planned = &mut planned[unit as usize];
                *planned = (tier, planned.1.with(pages));
            }
        }
        planned
    }

    /// The tier of each portion, if one keeps it.
    pub fn tier_of_portions(&self) -> Vec<Option<u8>> {
        let mut tiers = vec![None; self.reads.len()];
        self.copies.iter().for_each(|&(portion, tier)| tiers[portion as usize] = Some(tier));
        tiers
    }

    /// Calls `visit` with each portion that is kept, in the order of first access. The addresses are those of
    /// tiers that are filled in this order; the owner of the tiers may choose others.
    pub fn copies_in_order(&self, units: &Units, mut visit: impl FnMut(PlannedCopy)) {
        let mut next = [0; MAX_TIERS];
        for (&(portion, tier), first_access) in self.copies.iter().zip(0..) {
            let lba = Lba(next[usize::from(tier)]);
            let pages = pages_of(units, portion, true).map(|(_, pages)| u64::from(pages.len()));
            next[usize::from(tier)] += pages.sum::<u64>();
            let sample = SampleId(portion.into());
            let frequency = self.reads[portion as usize];
            visit(PlannedCopy { sample, tier, lba, first_access, frequency });
        }
    }

    /// Checks that the plan belongs to `units` and to this number of tiers.
    pub(super) fn check(&self, units: &Units, num_tiers: usize) -> Result<()> {
        let refuse = |text: &'static str| {
            Err(Error::new(ErrorKind::InvalidArgument, text)
                .hint("make a plan from the data set and the tiers that it is used with"))
        };
        let num_portions = units.num_portions();
        if self.fingerprint != units.fingerprint() || self.reads.len() != num_portions as usize {
            return refuse("the plan belongs to another data set or generation");
        }
        if self.copies.iter().any(|&(portion, _)| portion >= num_portions) {
            return refuse("the plan names a portion that the data set does not have");
        }
        if self.copies.iter().any(|&(_, tier)| usize::from(tier) >= num_tiers) {
            refuse("the plan names a tier that does not exist")
        } else {
            Ok(())
        }
    }
}

/// The pages to keep for a portion: those in its unit (all pages of the unit if tiers keep no parts), and
/// those in the units that are kept together with it.
fn pages_of(
    units: &Units,
    portion: u32,
    keep_parts: bool,
) -> impl Iterator<Item = (u32, PageSet)> + '_ {
    let (unit, pages) = units.portion(portion);
    let is_part = move |other: &u32| keep_parts && *other == unit;
    let of = move |other: u32| if is_part(&other) { pages } else { units.get(other).all() };
    units.together_with(unit).map(move |other| (other, of(other)))
}

/// The pages that a plan keeps, while the plan is being made.
struct Choice<'a> {
    units: &'a Units,
    rooms: &'a TierRooms,
    /// Remaining pages of all tiers together.
    free: u64,
    /// For each unit, the pages to keep.
    kept: Vec<PageSet>,
}

impl<'a> Choice<'a> {
    fn new(units: &'a Units, rooms: &'a TierRooms) -> Choice<'a> {
        let kept = vec![PageSet::NONE; units.len() as usize];
        Choice { units, rooms, free: rooms.pages.iter().sum(), kept }
    }

    /// Keeps a portion, and the page of the unit before in which its first sample begins; other portions may already
    /// keep some of these pages. Returns `false` if there is no room.
    fn take(&mut self, portion: u32) -> bool {
        let kept = &mut self.kept;
        let units = self.units;
        let unit = units.portion(portion).0;
        let first = units.portions_of(unit).start;
        let border = units.border_of(unit).filter(|_| portion == first);
        let last = |unit: u32| PageSet(1 << (units.get(unit).pages() - 1));
        let pages = || {
            let of_portion = pages_of(units, portion, self.rooms.keep_parts);
            of_portion.chain(border.map(|before| (before, last(before))))
        };
        let more = |(unit, pages): (u32, PageSet)| pages.without(kept[unit as usize]).len();
        let more = u64::from(pages().map(more).sum::<u32>());
        let fits = more <= self.free;
        if fits {
            self.free -= more;
            pages().for_each(|(unit, pages)| {
                let kept = &mut kept[unit as usize];
                *kept = kept.with(pages);
            });
        }
        fits
    }

    /// Chooses for each unit of these portions the fastest tier that still has room for the kept pages of the unit and
    /// of the units kept together with it. Units with the most reads per page choose first.
    fn tiers(&self, portions: &[u32], reads: &[u16]) -> Vec<Option<u8>> {
        let mut weights = vec![0_u64; self.units.len() as usize];
        let mut order = Vec::new();
        for &portion in portions {
            let (unit, pages) = self.units.portion(portion);
            let weight = &mut weights[unit as usize];
            if *weight == 0 {
                order.push(unit);
            }
            *weight += u64::from(reads[portion as usize]) * u64::from(pages.len());
        }
        let together = |unit: u32| self.units.together_with(unit);
        let len =
            |unit: u32| together(unit).map(|unit| self.kept[unit as usize].len()).sum::<u32>();
        let mean = |unit: u32| {
            let of_unit = u64::from(self.kept[unit as usize].len().max(1));
            (weights[unit as usize] << 16) / of_unit
        };
        order.sort_by_key(|&unit| Reverse(mean(unit)));
        let mut free = self.rooms.pages.clone();
        let mut tiers = vec![None; self.units.len() as usize];
        for unit in order {
            let len = u64::from(len(unit));
            if let Some(tier) = free.iter().position(|&free| len <= free) {
                free[tier] -= len;
                tiers[unit as usize] = Some(tier as u8);
            }
        }
        tiers
    }
}

impl TierShared {
    /// Adds a process's plan, if the owner's policy follows plans. From now on the owner follows the
    /// merged plans of all processes.
    pub(super) fn add_plan(&self, connection: u64, plan: Arc<TierPlan>) {
        let has_portions = plan.reads.len() == self.units.num_portions() as usize;
        if self.ledger.lock().policy() != Policy::Clairvoyant || !has_portions {
            return;
        }
        // Locked until the copier has the plan, so that an older plan does not overtake it.
        let mut plans = self.plans.lock();
        plans.insert(connection, plan);
        let rooms = self.rooms();
        let plan = merged(&plans, &self.units, &rooms);
        let by_unit = plan.by_unit(&self.units, rooms.keep_parts);
        let mut ledger = self.ledger.lock();
        let evicted = self.evicted(&plan, (&by_unit, rooms.keep_parts), &ledger);
        ledger.set_plan(by_unit);
        self.copies.set_room(ledger.room());
        drop(ledger);
        let mut wanted: Vec<u32> =
            plan.copies.iter().map(|&(portion, _)| self.units.portion(portion).0).collect();
        let mut is_new = vec![true; self.units.len() as usize];
        wanted.retain(|&unit| std::mem::take(&mut is_new[unit as usize]));
        self.send(CopyJob::Plan { wanted, evicted });
    }

    /// The units and pages whose copies a plan evicts. `planned` has the tier and the kept pages of each unit, and
    /// whether tiers can keep parts of units; if not, they evict whole units.
    fn evicted(
        &self,
        plan: &TierPlan,
        planned: (&[(u8, PageSet)], bool),
        ledger: &Ledger,
    ) -> Vec<(u32, PageSet)> {
        let units = &self.units;
        let (_, keep_parts) = planned;
        let reads = |portion: u32| plan.reads[portion as usize];
        let candidate = |portion: u32, pages: u32| {
            let all = units.portions_of(units.portion(portion).0);
            let most = || all.map(reads).max().unwrap_or(0);
            let reads = if keep_parts { reads(portion) } else { most() };
            (pages > 0).then_some(Candidate { portion, pages: pages.into(), reads })
        };
        let mut present = vec![Vec::new(); self.media.len()];
        for unit in 0..units.len() {
            let is_first = unit == units.together_with(unit).start;
            let Some(location) = self.copies.location(unit).filter(|_| is_first) else { continue };
            let portions = units.portions_of(unit).take(if keep_parts { usize::MAX } else { 1 });
            present[usize::from(location.tier)].extend(portions.filter_map(|portion| {
                let pages = self.outside(portion, planned).map(|(_, pages)| pages.len()).sum();
                candidate(portion, pages)
            }));
        }
        let mut wanted = vec![Vec::new(); self.media.len()];
        for &(portion, tier) in &plan.copies {
            let kept = pages_of(units, portion, keep_parts);
            let missing = kept.map(|(unit, pages)| pages.without(self.copies.reserved(unit)).len());
            wanted[usize::from(tier)].extend(candidate(portion, missing.sum()));
        }
        let tiers = (0..).zip(present.into_iter().zip(wanted));
        let free = |tier: u8| self.media[usize::from(tier)].capacity_pages - ledger.used(tier);
        let portions = tiers
            .flat_map(|(tier, (present, wanted))| copies_to_evict(present, wanted, free(tier)));
        let mut evicted = BTreeMap::<u32, PageSet>::new();
        for (unit, pages) in portions.filter_map(|portion| self.outside(portion, planned).next()) {
            let evicted = evicted.entry(unit).or_default();
            *evicted = evicted.with(pages);
        }
        evicted.into_iter().collect()
    }

    /// The reserved pages of a portion that are not in a plan; of its whole unit, if tiers keep whole
    /// units.
    fn outside<'a>(
        &'a self,
        portion: u32,
        (by_unit, keep_parts): (&'a [(u8, PageSet)], bool),
    ) -> impl Iterator<Item = (u32, PageSet)> + 'a {
        let first_is_kept =
            |unit: u32| by_unit.get(unit as usize).is_some_and(|(_, kept)| kept.0 & 1 == 1);
        pages_of(&self.units, portion, keep_parts).map(move |(unit, pages)| {
            let reserved = self.copies.reserved(unit).and(pages);
            let outside = reserved.without(by_unit[unit as usize].1);
            // The unit's last page may also belong to the next unit's first sample, which the plan keeps.
            let serves_next =
                first_is_kept(unit + 1) && self.units.border_of(unit + 1) == Some(unit);
            let last = PageSet(u64::from(serves_next) << (self.units.get(unit).pages() - 1));
            (unit, outside.without(last))
        })
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

    fn rooms(pages: &[u64]) -> TierRooms {
        TierRooms { pages: pages.to_vec(), keep_parts: true }
    }

    #[test]
    fn the_plan_of_one_process_stays_as_it_is() {
        // Two tiers of two units each; the fastest takes the units that are read most often.
        let one = plan(&[(5, 1), (2, 0), (9, 1), (4, 0)], &[2, 4]);
        assert_eq!(TierPlan::merge(&[&one], &units(), &rooms(&[8, 11])), one);
    }

    #[test]
    fn units_that_all_together_read_most_often_come_first_and_of_equals_the_earliest() {
        let first = plan(&[(0, 0), (1, 0), (2, 0)], &[1]);
        let second = plan(&[(3, 0), (1, 0), (4, 0)], &[1, 4]);
        let merged = TierPlan::merge(&[&first, &second], &units(), &rooms(&[16]));
        assert_eq!(merged.reads[..6], [2, 4, 2, 2, 3, 2]);
        // Units 1 and 4 are read most often, units 0 and 3 are read first; unit 2 finds no room.
        assert_eq!(merged.copies, [(0, 0), (3, 0), (1, 0), (4, 0)]);
        let earlier = plan(&[(2, 0)], &[]);
        let merged = TierPlan::merge(&[&first, &second, &earlier], &units(), &rooms(&[12, 4]));
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
        let tiers = one.tier_of_portions();
        assert_eq!((tiers[2], tiers[3], tiers[9]), (Some(0), None, Some(1)));
    }

    #[test]
    fn plans_of_processes_come_and_go() {
        let mut plans = HashMap::new();
        let copies = |plans: &HashMap<_, _>| merged(plans, &units(), &rooms(&[40])).copies.clone();
        assert!(copies(&plans).is_empty());
        plans.insert(7, Arc::new(plan(&[(3, 0)], &[])));
        assert_eq!(copies(&plans), [(3, 0)], "an owner without a plan keeps what others want");
        plans.insert(OWN, Arc::new(plan(&[(1, 0)], &[])));
        assert_eq!(copies(&plans), [(1, 0), (3, 0)]);
        plans.remove(&7);
        assert_eq!(copies(&plans), [(1, 0)]);
    }

    #[test]
    fn a_plan_for_more_tiers_than_there_are_is_chosen_anew() {
        let own = Arc::new(plan(&[(5, 1), (2, 0), (9, 1)], &[2]));
        let plans = HashMap::from([(OWN, Arc::clone(&own))]);
        assert_eq!(merged(&plans, &units(), &rooms(&[4, 8])), own);
        assert_eq!(merged(&plans, &units(), &rooms(&[8])).copies, [(5, 0), (2, 0)]);
    }
}
