//! Copies in memory that are no longer in the table, but that peers may still have borrowed.
//!
//! A tier in memory lends its copies, and a peer that reads them may take long to receive them. Nothing
//! is written in their place until all buffers have come back. Until then a page whose copy was corrupt
//! is not kept again, and readers get it from the origin; the room of an evicted unit stays reserved.

use std::collections::HashMap;

use super::Copier;
use crate::cache::vacated::Vacated;
use dlfs_order::tier::{CopyLocation, PageSet};

/// Pages and room that wait for lent buffers to come back. Nearly always empty.
#[derive(Default)]
pub(super) struct Lent {
    /// Pages of units that will be written again.
    pages: HashMap<u32, PageSet>,
    /// Room of units that have no more copies.
    room: Vec<Vacated>,
}

impl Lent {
    /// Returns whether nothing is waiting.
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.room.is_empty()
    }

    /// Returns whether all room of evicted units is free. Until then nothing is fetched ahead, for lack
    /// of room.
    pub(super) fn has_no_room(&self) -> bool {
        self.room.is_empty()
    }

    /// The pages of the unit that must not be written now.
    pub(super) fn pages_of(&self, unit: u32) -> PageSet {
        self.pages.get(&unit).copied().unwrap_or_default()
    }
}

impl Copier {
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
