//! Removal of copies: eviction for a plan or for the chunks that this node holds for others, and the wait for lent
//! copies before their room is used again.
//!
//! A tier in memory lends its copies, and a peer that reads them may take long to receive them. Nothing
//! is written in their place until all buffers have come back. Until then a page whose copy was corrupt
//! is not kept again, and readers get it from the origin; the room of an evicted unit stays reserved.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use super::Copier;
use crate::cache::TierShared;
use dlfs_order::tier::{CopyLocation, OWN_FILES_PAGE, PageSet};

impl Copier {
    /// Evicts the copies of a unit and of the units kept together with it. Evicts nothing while the copier fetches,
    /// writes, verifies or sums up pages of any of these units.
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

    /// Evicts the copies of some pages of a unit; those of all its reserved pages as [`evict`](Self::evict) does. If
    /// the check of the unit has begun, or other pages of the unit must still be checked, evicts after the check.
    /// Otherwise copies that the copier is using stay.
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

    /// Ends the lending of `pages` of a unit. Returns whether they may be written: no buffer of an older copy is
    /// outstanding. Pages that may not be written are not fetched until all buffers have come back.
    pub(super) fn take_back(&mut self, unit: u32, pages: PageSet) -> bool {
        let Some(location) = self.shared.copies.location(unit) else { return true };
        let is_back = self.thaw(location, pages);
        if !is_back {
            let waiting = self.lent.pages.entry(unit).or_default();
            *waiting = waiting.with(pages);
        }
        is_back
    }

    /// Frees the pages and the room whose buffers have all come back; returns whether there were any.
    pub(super) fn take_all_back(&mut self) -> bool {
        if self.lent.is_empty() {
            return false;
        }
        let Lent { mut pages, mut room } = std::mem::take(&mut self.lent);
        let before = pages.len() + room.len();
        pages.retain(|&unit, pages| {
            let location = self.shared.copies.location(unit);
            location.is_some_and(|location| !self.thaw(location, *pages))
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

    /// Ends the lending of `pages`; returns whether all buffers of them have come back.
    fn thaw(&self, location: CopyLocation, pages: PageSet) -> bool {
        self.shared.media[usize::from(location.tier)].thaw_all(location.ranges(pages))
    }
}

/// Pages and room that wait for lent buffers to come back; nearly always none.
#[derive(Default)]
pub(super) struct Lent {
    /// Pages of units that keep their place: they may be written again.
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

impl TierShared {
    /// Removes all copies of a unit; returns its room, which the caller must free. `None`: it had no place.
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
        if !media.thaw_all(location.ranges(withdrawn)) {
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
