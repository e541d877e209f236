//! Room in tiers whose copies were removed, until it is free again.

use std::ops::Range;

use super::Shared;
use dlfs_order::tier::{OWN_FILES_PAGE, PageSet};

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
    pub(super) fn vacate(&self, unit: u32) -> Option<Vacated> {
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
    pub(super) fn vacate_pages(&self, unit: u32, pages: PageSet) {
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
