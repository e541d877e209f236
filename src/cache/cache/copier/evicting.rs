//! Eviction of copies that a plan does not keep, or that take room from the chunks that this node holds
//! for others.

use std::time::Instant;

use super::Copier;
use dlfs_order::tier::PageSet;

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
            self.shared.counters.left(location.tier);
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
            self.shared.counters.left(location.tier);
            self.sum_again(unit, now);
        }
    }
}
