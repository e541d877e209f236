//! Existing copies: verification after a restart, and eviction of copies that a plan does not keep, or that take room
//! from the chunks that this node holds for others.
//!
//! A tier in memory lends its copies, and a peer that reads them may take long to receive them. Nothing
//! is written in their place until all buffers have come back. Until then a page whose copy was corrupt
//! is not kept again, and readers get it from the origin; the room of an evicted unit stays reserved.
//!
//! Each copy of an earlier run is compared with its checksum in the index before anybody reads it. Until
//! then its pages are claimed: readers wait for them as for pages that are being read. Copies
//! that a reader waits for are checked first.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Instant;

use super::{Copier, MAX_READS, What};
use crate::cache::Shared;
use dlfs_base::buf::IoBuf;
use dlfs_base::error::Result;
use dlfs_order::tier::{CopyLocation, CopyTable, Kept, OWN_FILES_PAGE, PageSet, sum_of_pages};

impl Copier {
    /// Evicts the copies of a unit and of units kept together with it. Copies of units whose pages are being
    /// fetched, written or verified stay.
    pub(super) fn evict(&mut self, unit: u32) {
        let together = self.shared.units.together_with(unit);
        if together.clone().any(|unit| self.is_moving(unit)) {
            return;
        }
        for unit in together {
            let Some(location) = self.shared.copies.location(unit) else { continue };
            if self.checks.forget(unit, &self.shared.copies) {
                self.shared.counters.unsettle(-1);
            }
            self.drop_copies(unit);
            self.shared.counters.count(location.tier, |of| &of.left);
        }
    }

    /// Evicts the copies of some pages of a unit; if they must be verified first, evicts them after
    /// that. As in [`evict`](Self::evict), other copies that are in use by the copier stay.
    pub(super) fn evict_pages(&mut self, unit: u32, pages: PageSet, now: Instant) {
        let is_whole = self.shared.copies.reserved(unit).without(pages).is_empty();
        let is_moving = self.is_moving(unit);
        if self.checks.contains(unit) && (is_moving || !is_whole) {
            self.leaving.insert(unit, pages);
        } else if is_whole {
            self.evict(unit);
        } else if !is_moving && let Some(location) = self.shared.copies.location(unit) {
            self.shared.vacate_pages(unit, pages);
            self.shared.counters.count(location.tier, |of| &of.left);
            self.sum_again(unit, now);
        }
    }

    pub(super) fn start_checks(&mut self, now: Instant) {
        while self.num_reads() < MAX_READS {
            let Some((tier, kept)) = self.checks.next(&self.shared.copies) else { return };
            let begun = self.begin_read_copies(kept.location(tier), kept.pages);
            self.start(begun, What::Check { tier, kept }, now);
        }
    }

    /// Publishes copies of an earlier run if they match their checksum in the index.
    pub(super) fn checked(&mut self, tier: u8, kept: Kept, result: Result<IoBuf>, now: Instant) {
        let first = kept.pages.0.trailing_zeros();
        self.checks.reading.remove(&kept.unit);
        if result.is_ok_and(|bytes| sum_of_pages(kept.pages, first, &bytes) == kept.sum) {
            self.shared.counters.count(tier, |of| &of.restored);
            self.shared.copies.publish(kept.unit, kept.pages);
            self.shared.copies.end_check(kept.unit);
            if self.shared.units.long_of(kept.unit).is_some() {
                self.fill(kept.unit, now); // a killed process may have left only a part of the sample
            }
        } else {
            self.shared.counters.count(tier, |of| &of.damaged);
            self.shared.copies.release(kept.unit, kept.pages);
            self.shared.copies.end_check(kept.unit);
            if self.shared.is_filled_behind(kept.unit) {
                self.set_entry(tier, kept.unit, None);
                self.fill(kept.unit, now);
            } else {
                self.drop_copies(kept.unit);
            }
        }
        if let Some(pages) = self.leaving.remove(&kept.unit) {
            self.evict_pages(kept.unit, pages, now);
        }
        self.shared.counters.unsettle(-1); // last: a thread that sees everything settled also sees the result
    }

    /// Ends the lending of `pages` of a unit. Returns whether they may be written: no buffer of an
    /// older copy is outstanding. Otherwise they are not fetched until they may be written.
    pub(super) fn take_back(&mut self, unit: u32, pages: PageSet) -> bool {
        let Some(location) = self.shared.copies.location(unit) else { return true };
        let is_back = self.is_back(location, pages);
        if !is_back {
            let waiting = self.lent.pages.entry(unit).or_default();
            *waiting = waiting.with(pages);
        }
        is_back
    }

    /// Checks whether buffers have come back; returns whether any has.
    pub(super) fn take_all_back(&mut self) -> bool {
        if self.lent.is_empty() {
            return false;
        }
        let Lent { mut pages, mut room } = std::mem::take(&mut self.lent);
        let before = pages.len() + room.len();
        pages.retain(|&unit, pages| {
            let location = self.shared.copies.location(unit);
            location.is_some_and(|location| !self.is_back(location, *pages))
        });
        room.retain(|room| !self.shared.free(room));
        let has_moved = pages.len() + room.len() < before;
        self.lent = Lent { pages, room };
        has_moved
    }

    /// Removes all copies of the unit and frees its room once no borrower has any of it.
    pub(super) fn drop_copies(&mut self, unit: u32) {
        self.end_filling(unit);
        let Some(location) = self.shared.copies.location(unit) else { return };
        self.set_entry(location.tier, unit, None);
        self.lent.pages.remove(&unit);
        let room = self.shared.vacate(unit).filter(|room| !self.shared.free(room));
        self.lent.room.extend(room);
    }

    fn is_back(&self, location: CopyLocation, pages: PageSet) -> bool {
        let media = &self.shared.media[usize::from(location.tier)];
        // Calls `thaw` for every range, without stopping at the first that is lent: this ends all
        // lending.
        location.ranges(pages).filter(|range| !media.thaw(range)).count() == 0
    }
}

/// Pages and room that wait for lent buffers to come back. Nearly always empty.
#[derive(Default)]
pub(super) struct Lent {
    /// Pages of units that will be written again.
    pub(super) pages: HashMap<u32, PageSet>,
    /// Room of units that have no more copies.
    pub(super) room: Vec<Vacated>,
}

impl Lent {
    /// Returns whether nothing is waiting.
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.room.is_empty()
    }
}

/// Room in a tier whose copies were removed.
pub(super) struct Vacated {
    unit: u32,
    tier: u8,
    pages: Range<u64>,
    /// Reserved pages, which count towards the quota.
    reserved: u64,
}

impl Shared {
    /// Removes all copies of a unit; returns its room, which the caller must free.
    fn vacate(&self, unit: u32) -> Option<Vacated> {
        let _ledger = self.ledger.lock();
        let location = self.copies.location(unit)?;
        let reserved = self.copies.reserved(unit).len().into();
        self.copies.clear(unit);
        let space = u64::from(self.units.get(unit).pages() - u32::from(location.first));
        let pages = location.page..location.page + space;
        Some(Vacated { unit, tier: location.tier, pages, reserved })
    }

    /// Removes the copies of some pages of a unit that keeps other pages, and frees their storage, unless any
    /// of them is lent.
    fn vacate_pages(&self, unit: u32, pages: PageSet) {
        let mut ledger = self.ledger.lock();
        let Some(location) = self.copies.location(unit) else { return };
        let media = &self.media[usize::from(location.tier)];
        let withdrawn = self.copies.unpublish(unit, pages);
        if location.ranges(withdrawn).filter(|range| !media.thaw(range)).count() > 0 {
            location.ranges(withdrawn).for_each(|range| media.freeze(&range));
            return self.copies.publish(unit, withdrawn);
        }
        let reserved = self.copies.reserved(unit).and(pages);
        self.copies.clear_pages(unit, pages);
        // After `clear_pages`, by which readers notice the eviction, and before the pages are reserved again.
        let mut ranges = location.ranges(withdrawn);
        let freed = ranges.try_for_each(|range| media.deallocate(range));
        ledger.unreserve(unit, location.tier, reserved.len().into());
        self.copies.set_room(ledger.room());
        drop(ledger);
        if let Err(error) = freed {
            self.switch_off(location.tier, &error.report());
        }
    }

    /// Frees the room of a unit; returns `false` if any of its copies is lent.
    pub(super) fn free(&self, room: &Vacated) -> bool {
        let Vacated { unit, tier, ref pages, reserved } = *room;
        let media = &self.media[usize::from(tier)];
        if !media.thaw(pages) {
            return false;
        }
        let mut ledger = self.ledger.lock();
        // After `vacate`, by which readers notice the eviction, and before the room is reserved again.
        let freed = if pages.start >= OWN_FILES_PAGE {
            self.remove_own_file(tier, unit)
        } else {
            media.deallocate(pages.clone())
        };
        ledger.unreserve(unit, tier, reserved);
        ledger.give_back(unit, tier, pages.clone());
        self.copies.set_room(ledger.room());
        drop(ledger);
        if let Err(error) = freed {
            self.switch_off(tier, &error.report());
        }
        true
    }
}

/// Copies that are not checked yet.
#[derive(Default)]
pub(super) struct Checks {
    /// Copies and their tiers, in the order of checking. An entry has no pages once its check has begun
    /// or it was evicted.
    copies: Vec<(u8, Kept)>,
    /// Units, ascending, and their positions in `copies`.
    by_unit: Vec<(u32, u32)>,
    /// Position in `copies` of the next copies to check.
    next: usize,
    /// Units whose copies are being read.
    reading: HashSet<u32>,
}

impl Checks {
    pub(super) fn new(mut copies: Vec<(u8, Kept)>, table: &CopyTable) -> Checks {
        copies.sort_unstable_by_key(|(tier, kept)| (*tier, kept.page));
        copies.iter().for_each(|(_, kept)| table.begin_check(kept.unit, kept.pages));
        let places = (0..).zip(&copies).map(|(at, (_, kept))| (kept.unit, at));
        let mut by_unit: Vec<(u32, u32)> = places.collect();
        by_unit.sort_unstable();
        Checks { copies, by_unit, ..Checks::default() }
    }

    /// Returns whether copies of the unit are still to be verified.
    pub(super) fn contains(&self, unit: u32) -> bool {
        let is_waiting = |at: usize| !self.copies[at].1.pages.is_empty();
        self.place_of(unit).is_some_and(is_waiting) || self.reading.contains(&unit)
    }

    /// Drops the copies of a unit whose check has not begun; returns whether there were any.
    pub(super) fn forget(&mut self, unit: u32, table: &CopyTable) -> bool {
        let dropped = self.place_of(unit).and_then(|at| self.take(at));
        if let Some((_, kept)) = &dropped {
            table.release(unit, kept.pages);
            table.end_check(unit);
        }
        dropped.is_some()
    }

    /// The next copies to check; copies that a reader waits for come first.
    fn next(&mut self, table: &CopyTable) -> Option<(u8, Kept)> {
        if self.next == self.copies.len() {
            (self.copies, self.by_unit, self.next) = Default::default();
            return None;
        }
        let mut next = table.take_awaited().find_map(|unit| {
            let at = self.place_of(unit)?;
            self.take(at)
        });
        while next.is_none() && self.next < self.copies.len() {
            next = self.take(self.next);
            self.next += 1;
        }
        next.inspect(|(_, kept)| _ = self.reading.insert(kept.unit))
    }

    fn place_of(&self, unit: u32) -> Option<usize> {
        let found = self.by_unit.binary_search_by_key(&unit, |(unit, _)| *unit);
        found.ok().map(|found| self.by_unit[found].1 as usize)
    }

    fn take(&mut self, at: usize) -> Option<(u8, Kept)> {
        let (tier, kept) = &mut self.copies[at];
        let taken = *kept;
        kept.pages = PageSet::NONE;
        (!taken.pages.is_empty()).then_some((*tier, taken))
    }
}
