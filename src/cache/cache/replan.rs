//! A new plan for the tiers: the owner merges the plans of all processes, and evicts copies to make room.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::TierShared;
use super::copier::CopyJob;
use super::plan::{TierPlan, merged, pages_of};
use dlfs_order::tier::{Candidate, Ledger, PageSet, Policy, copies_to_evict};

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
