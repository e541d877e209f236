//! Verification of the copies of an earlier run, before they are read.
//!
//! Each copy is compared with its checksum in the index. Until then its pages are claimed: readers wait for them as
//! for pages that are being read. Copies that a reader waits for are checked first.

use std::collections::HashSet;
use std::time::Instant;

use super::{CallKind, Copier, MAX_READS};
use dlfs_base::buf::IoBuf;
use dlfs_base::error::Result;
use dlfs_order::tier::{CopyTable, Kept, PageSet, sum_of_pages};

impl Copier {
    /// Starts to read the next copies to check, while reads may be started.
    pub(super) fn start_checks(&mut self, now: Instant) {
        while self.num_reads() < MAX_READS {
            let Some((tier, kept)) = self.checks.next(&self.shared.copies) else { return };
            let begun = self.begin_read_copies(kept.location(tier), kept.pages);
            self.start(begun, CallKind::Check { tier, kept }, now);
        }
    }

    /// Handles the end of a check: publishes the copies if they match their checksum in the index; otherwise drops
    /// them, or fetches them again if the copier completes the unit.
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
}

/// The copies that are still to be verified.
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
    /// Marks the copies of an earlier run as unchecked in the table, and lists them in the order of their places.
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

    /// Cancels the check of a unit's copies if the check has not begun, and releases their claims; returns whether it
    /// did.
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

    /// The position in `copies` of a unit's copies, if they were to be checked.
    fn place_of(&self, unit: u32) -> Option<usize> {
        let found = self.by_unit.binary_search_by_key(&unit, |(unit, _)| *unit);
        found.ok().map(|found| self.by_unit[found].1 as usize)
    }

    /// Takes the copies at a position; `None` if they were taken already.
    fn take(&mut self, at: usize) -> Option<(u8, Kept)> {
        let (tier, kept) = &mut self.copies[at];
        let taken = *kept;
        kept.pages = PageSet::NONE;
        (!taken.pages.is_empty()).then_some((*tier, taken))
    }
}
