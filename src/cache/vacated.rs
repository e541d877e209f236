//! Room in tiers whose copies are gone, and how it becomes free.

use std::ops::Range;

use super::Shared;
use crate::tier::OWN_FILES_PAGE;

/// Room in a tier whose copies were removed.
pub(super) struct Vacated {
    unit: u32,
    tier: u8,
    pages: Range<u64>,
    /// Pages that the quota counts.
    reserved: u64,
}

impl Shared {
    /// Removes all copies of a unit; returns its room, which is to be freed.
    pub(super) fn vacate(&self, unit: u32) -> Option<Vacated> {
        let _ledger = self.ledger.lock();
        let location = self.copies.location(unit)?;
        let reserved = self.copies.reserved(unit).len().into();
        self.copies.clear(unit);
        let space = u64::from(self.units.get(unit).pages() - u32::from(location.first));
        let pages = location.page..location.page + space;
        Some(Vacated { unit, tier: location.tier, pages, reserved })
    }

    /// Frees the room of a unit, unless somebody has borrowed some of its copies.
    pub(super) fn free(&self, room: &Vacated) -> bool {
        let Vacated { unit, tier, ref pages, reserved } = *room;
        let media = &self.media[usize::from(tier)];
        if !media.thaw(pages) {
            return false;
        }
        let mut ledger = self.ledger.lock();
        // After the last reader has notice, and before its room is reserved again.
        let freed = match pages.start >= OWN_FILES_PAGE {
            true => self.remove_own_file(tier, unit),
            false => media.deallocate(pages.clone()),
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
