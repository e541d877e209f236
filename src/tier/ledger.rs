//! Quota and admission: reserves room in the tiers before anything is copied.

use std::ops::Range;
use std::str::FromStr;

use super::CopyLocation;
use super::page_allocator::PageAllocator;

/// Which units are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// None: every read goes to the origin.
    None,
    /// Those that are read first, while there is room.
    #[default]
    FirstTouch,
    /// Those that the plan of the run selects.
    Clairvoyant,
}

/// The text is not the name of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no policy: none, first-touch or clairvoyant")]
pub struct NotAPolicy(String);

impl FromStr for Policy {
    type Err = NotAPolicy;

    fn from_str(text: &str) -> Result<Policy, NotAPolicy> {
        match text {
            "none" => Ok(Policy::None),
            "first-touch" => Ok(Policy::FirstTouch),
            "clairvoyant" => Ok(Policy::Clairvoyant),
            _ => Err(NotAPolicy(text.to_owned())),
        }
    }
}

/// When `first-touch` stops looking for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stop {
    /// Never: a smaller unit may fit where a larger one did not.
    #[default]
    Never,
    /// When the first unit fits in no tier: Monarch's rule.
    AtFirstFailure,
}

/// Reserves room in all tiers according to the policy. It counts in pages.
#[derive(Debug, Clone)]
pub struct Ledger {
    tiers: Vec<PageAllocator>,
    policy: Policy,
    stop: Stop,
    is_stable: bool,
    /// For each unit, the tier that the plan assigns.
    planned: Vec<u8>,
}

impl Ledger {
    /// Empty tiers of these capacities in pages, fastest first.
    pub fn new(policy: Policy, stop: Stop, capacities: &[u64]) -> Ledger {
        let tiers = capacities.iter().map(|&capacity| PageAllocator::new(capacity)).collect();
        Ledger { tiers, policy, stop, is_stable: false, planned: Vec::new() }
    }

    /// Sets the plan: a tier for each unit, or [`Ledger::NOT_PLANNED`].
    pub fn set_plan(&mut self, planned: Vec<u8>) {
        self.planned = planned;
    }

    /// A unit without a planned copy.
    pub const NOT_PLANNED: u8 = u8::MAX;

    /// Reserves the pages of a copy found in `tier` after a restart; `false` if they exceed the
    /// quota or overlap another copy.
    pub fn restore(&mut self, tier: u8, pages: Range<u64>) -> bool {
        self.tiers[usize::from(tier)].take_at(pages)
    }

    /// Frees reserved or restored pages; during a run, only a new plan evicts copies.
    pub fn give_back(&mut self, location: CopyLocation, pages: u64) {
        self.tiers[usize::from(location.tier)].give_back(location.page..location.page + pages);
    }

    /// Reserves `pages` for `unit` (or the first of units kept together), if the policy wants it
    /// and there is room. Nothing reserved is evicted during a run.
    pub fn reserve(&mut self, unit: u32, pages: u64) -> Option<CopyLocation> {
        match self.policy {
            Policy::None => None,
            Policy::FirstTouch => {
                if self.is_stable {
                    return None;
                }
                let tier = self.tiers.iter().position(|room| room.fits(pages));
                if tier.is_none() && self.stop == Stop::AtFirstFailure {
                    self.is_stable = true;
                }
                self.take(tier?, pages)
            }
            Policy::Clairvoyant => {
                let tier = usize::from(*self.planned.get(unit as usize)?);
                let fits = self.tiers.get(tier).is_some_and(|room| room.fits(pages));
                if fits { self.take(tier, pages) } else { None }
            }
        }
    }

    /// Stops reserving in `tier`; `false` if it had stopped already.
    pub fn switch_off(&mut self, tier: u8) -> bool {
        !std::mem::replace(&mut self.tiers[usize::from(tier)].is_off, true)
    }

    /// Reserved pages of `tier`.
    pub fn used(&self, tier: u8) -> u64 {
        self.tiers[usize::from(tier)].used
    }

    /// Whether reserving in `tier` has stopped.
    pub fn is_off(&self, tier: u8) -> bool {
        self.tiers[usize::from(tier)].is_off
    }

    /// The largest number of pages that any tier has room for; 0 when nothing more is reserved.
    pub fn room(&self) -> u64 {
        let stopped = self.is_stable || self.policy == Policy::None;
        let rooms = self.tiers.iter().map(PageAllocator::largest);
        if stopped { 0 } else { rooms.max().unwrap_or(0) }
    }

    /// Quota of `tier` in pages.
    pub fn capacity(&self, tier: u8) -> u64 {
        self.tiers[usize::from(tier)].capacity
    }

    fn take(&mut self, tier: usize, pages: u64) -> Option<CopyLocation> {
        Some(CopyLocation { tier: tier as u8, page: self.tiers[tier].take(pages)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(tier: u8, page: u64) -> Option<CopyLocation> {
        Some(CopyLocation { tier, page })
    }

    #[test]
    fn first_touch_fills_top_down_and_by_default_goes_on_with_what_is_smaller() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::Never, &[10, 5]);
        let found = [8, 3, 3, 2, 1].map(|pages| ledger.reserve(0, pages));
        assert_eq!(found, [at(0, 0), at(1, 0), None, at(0, 8), at(1, 3)]);
    }

    #[test]
    fn monarchs_stop_rule_ends_placement_at_the_first_unit_that_fits_nowhere() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::AtFirstFailure, &[10, 5]);
        let found = [8, 3, 3, 2, 1].map(|pages| ledger.reserve(0, pages));
        assert_eq!(found, [at(0, 0), at(1, 0), None, None, None]);
    }

    #[test]
    fn clairvoyant_keeps_what_is_planned_where_it_is_planned_and_nothing_else() {
        let mut ledger = Ledger::new(Policy::Clairvoyant, Stop::Never, &[10, 5]);
        assert_eq!(ledger.reserve(0, 1), None, "there is no plan yet");
        ledger.set_plan(vec![1, Ledger::NOT_PLANNED, 0, 1]);
        let found = [0, 1, 2, 3, 4].map(|unit| ledger.reserve(unit, 4));
        assert_eq!(found, [at(1, 0), None, at(0, 0), None, None]);
    }

    #[test]
    fn a_tier_that_is_off_or_full_of_what_it_kept_gives_no_room() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::Never, &[10, 5]);
        assert!(ledger.restore(0, 4..9) && !ledger.restore(0, 8..10) && !ledger.restore(1, 3..6));
        assert_eq!(ledger.reserve(0, 4), at(0, 0), "before what was found");
        assert_eq!(ledger.reserve(0, 2), at(1, 0));
        assert!(ledger.switch_off(1) && !ledger.switch_off(1));
        assert_eq!((ledger.reserve(0, 1), ledger.reserve(0, 1)), (at(0, 9), None));
        assert_eq!(ledger.used(0), 10);
        ledger.give_back(CopyLocation { tier: 0, page: 4 }, 5);
        assert_eq!((ledger.used(0), ledger.reserve(0, 5)), (5, at(0, 4)));
    }

    proptest! {
        #[test]
        fn the_quota_is_never_exceeded_and_no_two_copies_share_a_page(
            capacities in prop::collection::vec(0_u64..50, 0..4),
            wanted in prop::collection::vec(1_u64..20, 0..60), stop: bool,
        ) {
            let stop = if stop { Stop::AtFirstFailure } else { Stop::Never };
            let mut ledger = Ledger::new(Policy::FirstTouch, stop, &capacities);
            let mut taken = vec![Vec::new(); capacities.len()];
            for pages in wanted {
                if let Some(location) = ledger.reserve(0, pages) {
                    let tier: &mut Vec<u64> = &mut taken[usize::from(location.tier)];
                    tier.extend(location.page..location.page + pages);
                }
            }
            for (tier, capacity) in taken.iter().zip(&capacities) {
                prop_assert!(tier.iter().all(|page| page < capacity));
                let mut pages = tier.clone();
                pages.dedup();
                prop_assert_eq!(pages.len(), tier.len());
            }
        }
    }
}
