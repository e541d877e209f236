//! Admission: the [`Ledger`] decides which units get copies, and reserves room for the copies in the tiers.
//!
//! Room is pages of a tier's quota, and a place in the tier's address space ([`PageAllocator`]). The ledger leaves room
//! for the chunks that this node holds for all nodes of its job ([`Holding`]).

use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::units::MAX_UNIT_PAGES;
use super::{OWN_FILES_PAGE, PageSet, Room, Units};

/// The rule that selects the units to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// No units: every read goes to the origin.
    None,
    /// The units that are read first, while there is room.
    #[default]
    FirstTouch,
    /// The units that the plan of the run selects.
    Clairvoyant,
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        match text {
            "none" => Ok(Policy::None),
            "first-touch" => Ok(Policy::FirstTouch),
            "clairvoyant" => Ok(Policy::Clairvoyant),
            _ => Err(format!("'{text}' is not a policy: none, first-touch or clairvoyant")),
        }
    }
}

/// The condition under which `first-touch` stops looking for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stop {
    /// Never: a smaller unit may fit where a larger one did not.
    #[default]
    Never,
    /// As soon as a unit fits in no tier: Monarch's rule.
    AtFirstFailure,
}

/// Reserves room in all tiers according to the policy. All numbers are in pages.
///
/// A tier has a quota and an address space. The quota counts reserved pages; in the address space, each unit gets a
/// place for all its pages. The space may be larger than the quota: a unit of which only some pages are reserved then
/// uses only these pages of the quota.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Fastest first.
    tiers: Vec<Tier>,
    policy: Policy,
    stop: Stop,
    /// True once `stop` has ended the reserving of places.
    is_stable: bool,
    /// For each unit, the tier that the plan assigns, and the planned pages.
    planned: Vec<(u8, PageSet)>,
    /// The chunks that this node holds for all nodes of its job, and the room they still need.
    holding: Option<(Holding, Lacking)>,
}

/// The quota and the address space of one tier.
#[derive(Debug, Clone, Default)]
struct Tier {
    /// The most pages that may be reserved.
    quota: u64,
    /// Reserved pages.
    reserved: u64,
    /// True once reserving has stopped for good: see [`Ledger::switch_off`].
    is_off: bool,
    /// False while nothing may be reserved: see [`Ledger::set_used`].
    is_used: bool,
    /// True if the tier keeps long samples as separate files.
    has_own_files: bool,
    /// The address space for copies that are not separate files.
    space: PageAllocator,
}

impl Tier {
    /// The unreserved part of the quota, in pages.
    fn free(&self) -> u64 {
        if self.is_off || !self.is_used { 0 } else { self.quota - self.reserved }
    }

    /// Returns whether the tier has room for `want`.
    fn fits(&self, want: &Want) -> bool {
        let has_space = self.is_own_file(want) || want.space <= self.space.largest;
        !self.is_off && self.is_used && want.pages <= self.free() && has_space
    }

    /// Returns whether `want` becomes a separate file, which takes no address space.
    fn is_own_file(&self, want: &Want) -> bool {
        self.has_own_files && want.is_long
    }
}

/// The room that a unit, or units kept together, need in a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Contiguous pages of address space.
    pub space: u64,
    /// Pages of the quota.
    pub pages: u64,
    /// True for units of a long sample.
    pub is_long: bool,
}

impl Ledger {
    /// Empty tiers with these quotas in pages, fastest first.
    pub fn new(policy: Policy, stop: Stop, quotas: &[u64]) -> Ledger {
        let tier = |&quota| {
            let space = PageAllocator::new(quota);
            Tier { quota, space, is_used: true, ..Tier::default() }
        };
        let tiers = quotas.iter().map(tier).collect();
        Ledger { tiers, policy, stop, is_stable: false, planned: Vec::new(), holding: None }
    }

    /// The address space, in pages, in which a tier of `quota` pages can use its whole quota even if it keeps only
    /// some pages of each unit: a unit takes a place for all its pages. Equals the quota if all data fit, or if units
    /// are kept whole. Otherwise at most twice the data, which leaves room between places of unequal lengths.
    pub fn sparse_space(quota: u64, units: &Units) -> u64 {
        let num_pages = units.num_pages();
        if quota >= num_pages || !units.has_small_samples() {
            return quota;
        }
        num_pages.saturating_mul(2).min(quota.saturating_mul(MAX_UNIT_PAGES))
    }

    /// Sets the address space of an empty tier, which is its quota by default.
    pub fn set_space(&mut self, tier: u8, pages: u64) {
        self.tiers[usize::from(tier)].space = PageAllocator::new(pages);
    }

    /// Makes `tier` keep long samples as separate files, which take quota but no address space.
    pub fn set_own_files(&mut self, tier: u8) {
        self.tiers[usize::from(tier)].has_own_files = true;
    }

    /// Sets the plan: for each unit a tier and the pages to keep, or [`Ledger::NOT_PLANNED`].
    pub fn set_plan(&mut self, planned: Vec<(u8, PageSet)>) {
        self.planned = planned;
    }

    /// A unit without a planned copy.
    pub const NOT_PLANNED: (u8, PageSet) = (u8::MAX, PageSet::NONE);

    /// The tier that the plan assigns to `unit`.
    pub fn planned(&self, unit: u32) -> Option<u8> {
        let (tier, _) = *self.planned.get(unit as usize)?;
        (usize::from(tier) < self.tiers.len()).then_some(tier)
    }

    /// The pages among `all` pages of a unit that may be kept. Clairvoyant keeps only the planned ones; the other
    /// policies do not choose among the pages of a unit.
    pub fn kept(&self, unit: u32, all: PageSet) -> PageSet {
        let planned = self.planned.get(unit as usize).map(|(_, pages)| *pages);
        match self.policy {
            Policy::Clairvoyant => planned.unwrap_or_default().and(all),
            Policy::FirstTouch | Policy::None => all,
        }
    }

    /// Reserves room for the chunks that this node holds: first-touch gives other units only the remaining room.
    /// `lacking` is the room that the held chunks have neither reserved nor a place for.
    pub fn set_holding(&mut self, holding: Holding, lacking: Lacking) {
        self.holding = Some((holding, lacking));
    }

    /// Returns whether other units have taken room that the held chunks need.
    pub fn is_overdrawn(&self) -> bool {
        self.holding.as_ref().is_some_and(|(_, lacking)| !self.has_room_beside(lacking, 0, 0))
    }

    /// Returns whether this node holds the chunk of `unit` for others.
    pub fn is_held(&self, unit: u32) -> bool {
        self.holding.as_ref().is_some_and(|(holding, _)| holding.is_held(unit))
    }

    /// Begins the chunk of `unit`, if first-touch has room for all its pages: returns its units, which are then to be
    /// fetched. `None` if the chunk has begun already, lacks room, or the policy is another one.
    pub fn begin_chunk(&mut self, unit: u32) -> Option<Range<u32>> {
        let pages = self.holding.as_ref()?.0.unbegun(unit)?;
        let is_kept = self.policy == Policy::FirstTouch && self.is_spare(unit, pages, pages);
        let (holding, _) = self.holding.as_mut()?;
        is_kept.then(|| holding.begin(unit)).flatten()
    }

    /// Returns whether all tiers together have the room that held chunks lack, and this much more.
    fn has_room_beside(&self, lacking: &Lacking, space: u64, pages: u64) -> bool {
        let on = || self.tiers.iter().filter(|tier| !tier.is_off && tier.is_used);
        lacking.space + space <= on().map(|tier| tier.space.num_free).sum::<u64>()
            && lacking.pages + pages <= on().map(Tier::free).sum::<u64>()
    }

    /// Returns whether `unit` may have this much room: it is held, or the held chunks leave enough room.
    fn is_spare(&self, unit: u32, space: u64, pages: u64) -> bool {
        self.holding.as_ref().is_none_or(|(holding, lacking)| {
            holding.is_held(unit) || self.has_room_beside(lacking, space, pages)
        })
    }

    /// The room that the held chunks need, if `unit` belongs to one of them.
    fn lacking(&mut self, unit: u32) -> Option<&mut Lacking> {
        let (holding, lacking) = self.holding.as_mut()?;
        holding.is_held(unit).then_some(lacking)
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Reserves `pages` pages and this place in `tier`, for copies found after a restart; returns `false` if the
    /// pages exceed the rest of the quota, or the place is taken or outside the address space.
    pub fn restore(&mut self, tier: u8, place: Range<u64>, pages: u64) -> bool {
        let tier = &mut self.tiers[usize::from(tier)];
        let is_free = pages <= tier.quota - tier.reserved
            && (place.start >= OWN_FILES_PAGE || tier.space.take_at(place));
        tier.reserved += if is_free { pages } else { 0 };
        is_free
    }

    /// Frees the place of `unit`. A separate file takes no address space, but a held chunk lacks its pages again.
    pub fn give_back(&mut self, unit: u32, tier: u8, place: Range<u64>) {
        if let Some(lacking) = self.lacking(unit) {
            lacking.space += place.end - place.start;
        }
        if place.start < OWN_FILES_PAGE {
            self.tiers[usize::from(tier)].space.give_back(place);
        }
    }

    /// Finds a place for `unit` (or the first of units kept together) and reserves its part of the quota, if the
    /// policy keeps the unit and there is room. Never evicts: reservations stay during a run. For a long sample
    /// that becomes a separate file, returns [`OWN_FILES_PAGE`]; the sample's own page numbers are added to it.
    pub fn place(&mut self, unit: u32, want: Want) -> Option<(u8, u64)> {
        let Want { space, pages, .. } = want;
        match self.policy {
            Policy::None => None,
            Policy::FirstTouch => {
                if self.is_stable || !self.is_spare(unit, space, pages) {
                    return None;
                }
                let tier = self.tiers.iter().position(|tier| tier.fits(&want));
                if tier.is_none() && self.stop == Stop::AtFirstFailure {
                    self.is_stable = true;
                }
                let placed = self.place_in(tier? as u8, want)?;
                if let Some(lacking) = self.lacking(unit) {
                    lacking.space = lacking.space.saturating_sub(space);
                    lacking.pages = lacking.pages.saturating_sub(pages);
                }
                Some(placed)
            }
            Policy::Clairvoyant => self.place_in(self.planned(unit)?, want),
        }
    }

    /// As [`Ledger::place`], in this tier, for any policy.
    pub fn place_in(&mut self, tier: u8, want: Want) -> Option<(u8, u64)> {
        let room = &mut self.tiers[usize::from(tier)];
        if !room.fits(&want) {
            return None;
        }
        let page =
            if room.is_own_file(&want) { OWN_FILES_PAGE } else { room.space.take(want.space)? };
        room.reserved += want.pages;
        Some((tier, page))
    }

    /// Reserves `pages` more for a unit that has a place in `tier`; returns `false` if less room is left for it.
    pub fn reserve(&mut self, unit: u32, tier: u8, pages: u64) -> bool {
        if self.policy == Policy::FirstTouch && !self.is_spare(unit, 0, pages) {
            return false;
        }
        let tier = &mut self.tiers[usize::from(tier)];
        let fits = pages <= tier.free();
        tier.reserved += if fits { pages } else { 0 };
        if let Some(lacking) = self.lacking(unit).filter(|_| fits) {
            lacking.pages = lacking.pages.saturating_sub(pages);
        }
        fits
    }

    /// Undoes the reservation of `pages` of `unit` in `tier`.
    pub fn unreserve(&mut self, unit: u32, tier: u8, pages: u64) {
        if let Some(lacking) = self.lacking(unit) {
            lacking.pages += pages;
        }
        self.tiers[usize::from(tier)].reserved -= pages;
    }

    /// Stops reserving in `tier`; returns `false` if it had stopped already.
    pub fn switch_off(&mut self, tier: u8) -> bool {
        !std::mem::replace(&mut self.tiers[usize::from(tier)].is_off, true)
    }

    /// Sets whether room may be reserved in `tier`, until the next call.
    pub fn set_used(&mut self, tier: u8, is_used: bool) {
        self.tiers[usize::from(tier)].is_used = is_used;
    }

    /// Reserved pages of `tier`.
    pub fn used(&self, tier: u8) -> u64 {
        self.tiers[usize::from(tier)].reserved
    }

    /// Returns whether reserving in `tier` has stopped.
    pub fn is_off(&self, tier: u8) -> bool {
        self.tiers[usize::from(tier)].is_off
    }

    /// The largest unused room of any tier that is on and used. Without a policy there is none; once `stop` has ended
    /// the reserving of places, `contiguous` is 0.
    pub fn room(&self) -> Room {
        if self.policy == Policy::None {
            return Room::default();
        }
        let tiers = self.tiers.iter().filter(|tier| !tier.is_off && tier.is_used);
        let contiguous = |tier: &Tier| if self.is_stable { 0 } else { tier.space.largest };
        Room {
            pages: tiers.clone().map(Tier::free).max().unwrap_or(0),
            contiguous: tiers.map(contiguous).max().unwrap_or(0),
        }
    }
}

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
    fn unbegun(&self, unit: u32) -> Option<u64> {
        let chunk = &self.chunks[self.find(unit)?];
        (!chunk.has_begun).then_some(chunk.pages)
    }

    /// Marks the chunk of `unit` as begun, and returns its units; `None` if `unit` is in no chunk.
    fn begin(&mut self, unit: u32) -> Option<Range<u32>> {
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

/// Allocates ranges of pages.
#[derive(Debug, Clone, Default)]
struct PageAllocator {
    /// Free ranges in ascending order, never adjacent.
    free: Vec<Range<u64>>,
    /// Length of the longest free range, cached because it is read more often than it changes.
    largest: u64,
    /// The number of free pages, cached for the same reason.
    num_free: u64,
}

impl PageAllocator {
    /// An allocator of the pages below `capacity`, all of which are free.
    fn new(capacity: u64) -> PageAllocator {
        let all = 0..capacity;
        PageAllocator { free: vec![all], largest: capacity, num_free: capacity }
    }

    /// Allocates the first free range of `pages` pages; returns its first page, or `None` if no free range is as long.
    fn take(&mut self, pages: u64) -> Option<u64> {
        let at = self.free.iter().position(|free| pages <= free.end - free.start)?;
        let page = self.free[at].start;
        self.free[at].start += pages;
        if self.free[at].is_empty() {
            self.free.remove(at);
        }
        self.changed();
        Some(page)
    }

    /// Allocates exactly these pages; returns `false` if some of them are not free.
    fn take_at(&mut self, pages: Range<u64>) -> bool {
        let has = |free: &Range<u64>| free.start <= pages.start && pages.end <= free.end;
        let Some(at) = self.free.iter().position(has) else { return false };
        let free = self.free[at].clone();
        let around = [free.start..pages.start, pages.end..free.end];
        self.free.splice(at..=at, around.into_iter().filter(|part| !part.is_empty()));
        self.changed();
        true
    }

    /// Frees allocated pages.
    fn give_back(&mut self, pages: Range<u64>) {
        let at = self.free.partition_point(|free| free.start < pages.start);
        self.free.insert(at, pages);
        let mut merge = |at: usize| {
            if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
                self.free[at].end = self.free.remove(at + 1).end;
            }
        };
        merge(at);
        if at > 0 {
            merge(at - 1);
        }
        self.changed();
    }

    /// Computes the cached numbers again.
    fn changed(&mut self) {
        let lens = self.free.iter().map(|free| free.end - free.start);
        (self.largest, self.num_free) =
            lens.fold((0, 0), |(largest, sum), len| (len.max(largest), sum + len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn want(space: u64, pages: u64) -> Want {
        Want { space, pages, is_long: false }
    }

    #[test]
    fn a_long_sample_takes_quota_and_no_space_where_it_is_a_file_of_its_own() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::Never, &[4, 10]);
        ledger.set_own_files(1);
        let long = |pages| Want { is_long: true, ..want(pages, pages) };
        assert_eq!(ledger.place(0, long(3)), Some((0, 0)), "memory has no files");
        assert_eq!(ledger.place(0, long(6)), Some((1, OWN_FILES_PAGE)));
        assert_eq!((ledger.place(0, want(5, 5)), ledger.place(0, long(5))), (None, None));
        assert_eq!(ledger.place(0, want(4, 4)), Some((1, 0)));
        ledger.unreserve(0, 1, 6);
        ledger.give_back(0, 1, OWN_FILES_PAGE + 70..OWN_FILES_PAGE + 76);
        assert_eq!(ledger.room(), Room { pages: 6, contiguous: 6 });
        assert!(ledger.restore(1, OWN_FILES_PAGE..OWN_FILES_PAGE + 6, 6));
        assert!(!ledger.restore(1, OWN_FILES_PAGE + 64..OWN_FILES_PAGE + 65, 1), "the quota");
    }

    #[test]
    fn first_touch_fills_top_down_and_by_default_goes_on_with_what_is_smaller() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::Never, &[10, 5]);
        let found = [8, 3, 3, 2, 1].map(|pages| ledger.place(0, want(pages, pages)));
        assert_eq!(found, [Some((0, 0)), Some((1, 0)), None, Some((0, 8)), Some((1, 3))]);
    }

    #[test]
    fn monarchs_stop_rule_ends_placement_at_the_first_unit_that_fits_nowhere() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::AtFirstFailure, &[10, 5]);
        let found = [8, 3, 3, 2, 1].map(|pages| ledger.place(0, want(pages, pages)));
        assert_eq!(found, [Some((0, 0)), Some((1, 0)), None, None, None]);
        assert_eq!(ledger.room(), Room { pages: 2, contiguous: 0 });
    }

    #[test]
    fn clairvoyant_keeps_what_is_planned_where_it_is_planned_and_nothing_else() {
        let mut ledger = Ledger::new(Policy::Clairvoyant, Stop::Never, &[10, 5]);
        assert_eq!(ledger.place(0, want(1, 1)), None, "there is no plan yet");
        let all = PageSet::range(0..4);
        ledger.set_plan(vec![(1, all), Ledger::NOT_PLANNED, (0, PageSet(0b101)), (1, all)]);
        let found = [0, 1, 2, 3, 4].map(|unit| ledger.place(unit, want(4, 4)));
        assert_eq!(found, [Some((1, 0)), None, Some((0, 0)), None, None]);
        assert_eq!(ledger.place_in(0, want(1, 1)), Some((0, 4)), "beside the plan");
        let kept = [0, 1, 2, 4].map(|unit| ledger.kept(unit, all));
        assert_eq!(kept, [all, PageSet::NONE, PageSet(0b101), PageSet::NONE]);
    }

    #[test]
    fn a_tier_that_is_off_or_full_takes_no_copy() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::Never, &[10, 5]);
        assert!(ledger.restore(0, 4..9, 5) && !ledger.restore(0, 8..10, 2));
        assert!(!ledger.restore(1, 3..6, 3));
        assert_eq!(ledger.place(0, want(4, 4)), Some((0, 0)), "before what was found");
        assert_eq!(ledger.place(0, want(2, 2)), Some((1, 0)));
        assert!(ledger.switch_off(1) && !ledger.switch_off(1));
        assert_eq!(
            (ledger.place(0, want(1, 1)), ledger.place(0, want(1, 1))),
            (Some((0, 9)), None)
        );
        assert_eq!((ledger.used(0), ledger.reserve(0, 1, 1)), (10, false));
        ledger.unreserve(0, 0, 5);
        ledger.give_back(0, 0, 4..9);
        assert_eq!((ledger.used(0), ledger.place(0, want(5, 5))), (5, Some((0, 4))));
    }

    #[test]
    fn a_tier_that_is_not_used_gives_no_room_until_it_is() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::Never, &[10, 5]);
        ledger.set_used(0, false);
        assert_eq!((ledger.place(0, want(4, 4)), ledger.reserve(0, 0, 1)), (Some((1, 0)), false));
        assert_eq!(ledger.room(), Room { pages: 1, contiguous: 1 });
        ledger.set_used(0, true);
        assert_eq!((ledger.place(0, want(4, 4)), ledger.used(0)), (Some((0, 0)), 4));
    }

    #[test]
    fn small_samples_get_more_address_space_than_their_tier_has_pages() {
        let small = Units::of_small_samples((0..100).map(|unit| (unit * 16, 16)));
        let space = |quota| Ledger::sparse_space(quota, &small);
        assert_eq!([0, 1, 100, 1599, 1600, 9999].map(space), [0, 64, 3200, 3200, 1600, 9999]);
        let large = Units::from_pages((0..100).map(|unit| (unit * 16, 16)));
        assert_eq!(Ledger::sparse_space(100, &large), 100, "samples are kept whole");
    }

    #[test]
    fn a_node_keeps_room_for_the_chunks_that_it_holds() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::Never, &[10, 6]);
        assert_eq!(ledger.place(4, want(3, 3)), Some((0, 0)), "before it holds anything");
        let chunks = [(0..2, 8, true), (2..4, 4, false), (4..6, 6, false), (6..7, 2, true)];
        ledger.set_holding(Holding::new(chunks), Lacking { pages: 10, space: 10 });
        assert!(!ledger.is_overdrawn());
        assert_eq!(ledger.begin_chunk(2), None, "13 free pages less 10 are no room for it");
        assert_eq!(
            (ledger.place(2, want(4, 4)), ledger.place(2, want(2, 2))),
            (None, Some((0, 3)))
        );
        assert_eq!((ledger.reserve(4, 0, 2), ledger.reserve(4, 0, 1)), (false, true));
        assert_eq!(ledger.place(3, want(1, 1)), None);
        assert_eq!((ledger.begin_chunk(1), ledger.begin_chunk(0)), (Some(0..2), None));
        assert_eq!(
            (ledger.place(0, want(4, 4)), ledger.place(1, want(4, 4))),
            (Some((0, 5)), Some((1, 0)))
        );
        assert_eq!(ledger.place(6, want(2, 2)), Some((1, 4)));
        ledger.unreserve(0, 0, 4);
        ledger.give_back(0, 0, 5..9);
        assert_eq!(ledger.place(3, want(2, 2)), None, "it is kept for unit 0");
        assert_eq!(ledger.place(0, want(4, 4)), Some((0, 5)));
    }

    #[test]
    fn pages_that_others_have_and_held_chunks_lack_are_overdrawn() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::Never, &[10]);
        assert_eq!(ledger.place(0, want(8, 8)), Some((0, 0)));
        let lacking = Lacking { pages: 6, space: 6 };
        ledger.set_holding(Holding::new([(0..1, 8, false), (1..2, 6, true)]), lacking);
        assert_eq!((ledger.is_overdrawn(), ledger.place(1, want(6, 6))), (true, None));
        ledger.unreserve(0, 0, 8);
        ledger.give_back(0, 0, 0..8);
        assert_eq!((ledger.is_overdrawn(), ledger.place(0, want(8, 8))), (false, None));
        assert_eq!(ledger.place(1, want(6, 6)), Some((0, 0)));
    }

    #[test]
    fn the_quota_counts_pages_where_address_space_is_larger() {
        let mut ledger = Ledger::new(Policy::FirstTouch, Stop::Never, &[10]);
        ledger.set_space(0, 64);
        let found = [16; 5].map(|space| ledger.place(0, want(space, 2)));
        assert_eq!(found, [Some((0, 0)), Some((0, 16)), Some((0, 32)), Some((0, 48)), None]);
        assert_eq!(ledger.room(), Room { pages: 2, contiguous: 0 });
        assert!(!ledger.reserve(0, 0, 3) && ledger.reserve(0, 0, 2) && !ledger.reserve(0, 0, 1));
        ledger.unreserve(0, 0, 3);
        ledger.give_back(0, 0, 16..32);
        assert_eq!(ledger.room(), Room { pages: 3, contiguous: 16 });
        assert!(!ledger.restore(0, 16..32, 4) && ledger.restore(0, 16..32, 3));
    }

    proptest! {
        #[test]
        fn the_quota_is_never_exceeded_and_no_two_copies_share_a_page(
            capacities in prop::collection::vec((0_u64..50, 0_u64..80), 0..4),
            wanted in prop::collection::vec((1_u64..20, 0_u64..20), 0..60), stop: bool,
        ) {
            let stop = if stop { Stop::AtFirstFailure } else { Stop::Never };
            let quotas: Vec<u64> = capacities.iter().map(|(quota, _)| *quota).collect();
            let mut ledger = Ledger::new(Policy::FirstTouch, stop, &quotas);
            for (tier, (_, space)) in (0..).zip(&capacities) {
                ledger.set_space(tier, *space);
            }
            let mut taken = vec![Vec::new(); capacities.len()];
            let mut reserved = vec![0; capacities.len()];
            for (space, pages) in wanted {
                if let Some((tier, page)) = ledger.place(0, want(space, pages.min(space))) {
                    let places: &mut Vec<u64> = &mut taken[usize::from(tier)];
                    places.extend(page..page + space);
                    reserved[usize::from(tier)] += pages.min(space);
                }
            }
            for (tier, (quota, space)) in capacities.iter().enumerate() {
                prop_assert!(taken[tier].iter().all(|page| page < space));
                let mut pages = taken[tier].clone();
                pages.sort_unstable();
                pages.dedup();
                prop_assert_eq!(pages.len(), taken[tier].len());
                prop_assert!(reserved[tier] <= *quota && ledger.used(tier as u8) == reserved[tier]);
            }
        }
    }

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

    #[test]
    fn freed_pages_are_allocated_again_as_one_range() {
        let mut room = PageAllocator::new(10);
        assert_eq!([3, 3, 4, 1].map(|pages| room.take(pages)), [Some(0), Some(3), Some(6), None]);
        room.give_back(0..3);
        room.give_back(6..10);
        assert_eq!(room.largest, 4);
        assert_eq!(room.num_free, 7);
        room.give_back(3..6);
        assert_eq!((room.num_free, room.take(10), room.num_free), (10, Some(0), 0));
    }

    #[test]
    fn pages_taken_at_a_position_must_be_free() {
        let mut room = PageAllocator::new(10);
        assert!(room.take_at(4..6) && !room.take_at(5..7) && !room.take_at(9..11));
        assert!(room.take_at(0..4) && room.take_at(9..10));
        assert_eq!((room.largest, room.take(3), room.take(1)), (3, Some(6), None));
    }

    proptest! {
        #[test]
        fn no_page_is_allocated_twice(steps in prop::collection::vec((1_u64..9, any::<bool>()), 0..80)) {
            let mut room = PageAllocator::new(40);
            let mut taken = Vec::<Range<u64>>::new();
            for (pages, gives_back) in steps {
                if gives_back && !taken.is_empty() {
                    room.give_back(taken.swap_remove(pages as usize % taken.len()));
                } else if let Some(page) = room.take(pages) {
                    let new = page..page + pages;
                    prop_assert!(new.end <= 40);
                    let meets = |old: &Range<u64>| old.start < new.end && new.start < old.end;
                    prop_assert!(!taken.iter().any(meets));
                    taken.push(new);
                }
                let used: u64 = taken.iter().map(|range| range.end - range.start).sum();
                let free: u64 = room.free.iter().map(|range| range.end - range.start).sum();
                prop_assert_eq!(used + free, 40);
            }
        }
    }
}
