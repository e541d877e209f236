//! Admission to the tiers: reserves room for pages that are read and for chunks that this node holds, and claims pages.
//!
//! First-touch keeps the pages that are read. It keeps a large sample (of 64 KiB or more, or a file of a plain folder)
//! whole or not at all: the first read of any of its pages reserves the others, which the copier fetches. A clairvoyant
//! plan reserves all pages that it keeps of a unit. If it keeps the unit's first sample, and this sample begins in the
//! last page of the unit before, that page is reserved, too.
//!
//! If nodes serve their tiers to each other, first-touch keeps room for the chunks that the processes of this node hold
//! for all nodes ([`Holdings`]). Once a page of any chunk is kept and there is room for the whole chunk, the copier
//! fetches the rest of the chunk while no reader of its process waits for the origin.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::copier::{CopyJob, MAX_QUEUED_BYTES};
use super::share::Message;
use super::{OWN, TierShared};
use dlfs_base::buf::IoBuf;
use dlfs_order::tier::{
    CopyLocation, CopyTable, Holding, Lacking, Ledger, OWN_FILES_PAGE, PageSet, Policy, Units, Want,
};

impl TierShared {
    /// Returns the pages among `pages` that a tier is to keep. The caller is about to read `pages` from the
    /// origin. The owner reserves room for the result here; an attached process estimates it from the room that the
    /// owner has published.
    pub(super) fn wants(&self, unit: u32, pages: PageSet) -> PageSet {
        if self.is_avoided(unit) {
            return PageSet::NONE;
        }
        let reserved = self.copies.reserved(unit);
        let more = pages.without(reserved);
        if more.is_empty() {
            return pages;
        }
        if self.is_owner() {
            self.reserve(unit, pages);
            return pages.and(self.copies.reserved(unit));
        }
        // The owner decides when it hears of the read: it reserves the pages, or refuses them.
        let room = self.copies.room();
        let has_place = self.copies.location(unit).is_some()
            || u64::from(self.units.get(unit).pages()) <= room.contiguous;
        if has_place && u64::from(more.len()) <= room.pages { pages } else { pages.and(reserved) }
    }

    /// Claims the absent pages among `pages`, and tells the owner.
    pub(super) fn claim(&self, unit: u32, pages: PageSet) -> PageSet {
        let claimed = self.copies.claim(unit, pages);
        if !claimed.is_empty() {
            self.tell(Message::Expect { unit, pages: claimed });
        }
        claimed
    }

    /// Gives up claims on data that will not arrive or cannot be kept.
    pub(super) fn release(&self, unit: u32, pages: PageSet) {
        if pages.is_empty() {
            return;
        }
        self.copies.release(unit, pages);
        self.tell(Message::Gone { unit, pages });
    }

    /// Passes the contiguous pages `run`, whose data are `bytes`, to the copier of this process or of the owner.
    /// Releases them instead if more than [`MAX_QUEUED_BYTES`] would wait.
    pub(super) fn pass(&self, unit: u32, run: Range<u32>, bytes: &[u8]) {
        let pages = PageSet::range(run);
        let queued = self.queued_bytes();
        if queued.fetch_add(bytes.len(), Ordering::AcqRel) + bytes.len() > MAX_QUEUED_BYTES {
            queued.fetch_sub(bytes.len(), Ordering::AcqRel);
            return self.release(unit, pages);
        }
        let mut buf = IoBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        self.tell(Message::Piece { unit, pages, bytes: buf });
    }

    /// Returns whether the copier completes the unit, since it belongs to one sample or to a plan: it then also fetches
    /// the reserved pages that nobody reads.
    pub(super) fn is_filled_behind(&self, unit: u32) -> bool {
        self.units.get(unit).is_one_sample || self.ledger.lock().policy() == Policy::Clairvoyant
    }

    /// Reserves room for pages of a unit and all pages that are kept together with them. Has the copier fetch the other
    /// pages of a large sample, or of a chunk that begins.
    pub(super) fn reserve(&self, unit: u32, pages: PageSet) {
        let mut ledger = self.ledger.lock();
        let together = self.units.together_with(unit);
        let is_one_sample = self.units.get(unit).is_one_sample;
        let is_border = self.units.is_border(unit, pages);
        let is_more = match ledger.policy() {
            Policy::None => false,
            Policy::FirstTouch if is_one_sample && !is_border => {
                self.reserve_together(&mut ledger, unit)
            }
            Policy::FirstTouch => self.reserve_pages(&mut ledger, unit, pages),
            Policy::Clairvoyant => {
                let is_planned = ledger.planned(unit).is_some();
                let is_more = is_planned && self.reserve_together(&mut ledger, unit);
                let next = is_border.then(|| self.planned_from_start(&ledger, unit + 1)).flatten();
                next.is_some_and(|tier| self.reserve_border(&mut ledger, unit, tier)) | is_more
            }
        };
        let chunk = if is_more { ledger.begin_chunk(unit) } else { None };
        self.copies.set_room(ledger.room());
        drop(ledger);
        // In other units, first-touch keeps only the pages that are read, and a plan fetches each unit in its turn.
        if is_more && is_one_sample && !is_border {
            self.send(CopyJob::Fill(together));
        }
        if let Some(chunk) = chunk {
            self.send(CopyJob::Behind(chunk.collect()));
        }
    }

    /// The tier that a plan assigns to a unit; `None` if the plan does not keep the unit's first page.
    fn planned_from_start(&self, ledger: &Ledger, unit: u32) -> Option<u8> {
        let first = ledger.kept(unit, PageSet::range(0..1));
        ledger.planned(unit).filter(|_| !first.is_empty())
    }

    /// The pages of a unit that are kept together: the planned ones under a plan, otherwise all.
    pub(super) fn kept(&self, ledger: &Ledger, unit: u32) -> PageSet {
        ledger.kept(unit, self.units.get(unit).all())
    }

    /// Reserves the kept pages of all units that are kept together with `unit`, and the page before them in which a
    /// planned first sample begins; returns whether any page is new.
    fn reserve_together(&self, ledger: &mut Ledger, unit: u32) -> bool {
        let together = self.units.together_with(unit);
        // One of the units may have been dropped while the others still have a place.
        let (placed, unplaced): (Vec<u32>, Vec<u32>) =
            together.clone().partition(|&unit| self.copies.location(unit).is_some());
        let mut is_more = !unplaced.is_empty();
        if is_more {
            let kept = |&unit: &u32| u64::from(self.kept(ledger, unit).len());
            let pages = unplaced.iter().map(kept).sum();
            if !self.place(ledger, together.start, &unplaced, pages) {
                return false;
            }
            for unit in unplaced {
                self.copies.reserve(unit, self.kept(ledger, unit));
            }
        }
        for unit in placed {
            is_more |= self.reserve_pages(ledger, unit, self.kept(ledger, unit));
        }
        if let Some(tier) = self.planned_from_start(ledger, together.start)
            && let Some(before) = self.units.border_of(together.start)
        {
            is_more |= self.reserve_border(ledger, before, tier);
        }
        is_more
    }

    /// Reserves `pages` of one unit; returns whether any of them is new.
    fn reserve_pages(&self, ledger: &mut Ledger, unit: u32, pages: PageSet) -> bool {
        let more = pages.without(self.copies.reserved(unit));
        let (more, has_room) = match self.copies.location(unit) {
            Some(location) => {
                let place = PageSet::range(location.first.into()..self.units.get(unit).pages());
                let more = more.and(place);
                let len = u64::from(more.len());
                (more, len > 0 && ledger.reserve(unit, location.tier, len))
            }
            None => (more, self.place(ledger, unit, &[unit], more.len().into())),
        };
        if has_room {
            self.copies.reserve(unit, more);
        }
        has_room
    }

    /// Assigns places to `units`, which have none: one after the other, or in the separate file of their long sample.
    /// Asks the ledger for `unit`, which is one of `units` or kept together with them. Each place is for all pages of
    /// its unit, but all together take only `pages` of the quota; the caller records these in the copy table. Returns
    /// `false` if the ledger finds no place.
    fn place(&self, ledger: &mut Ledger, unit: u32, units: &[u32], pages: u64) -> bool {
        let space = units.iter().map(|&unit| u64::from(self.units.get(unit).pages())).sum();
        let want = Want { space, pages, is_long: self.units.long_of(unit).is_some() };
        let Some((tier, mut page)) = ledger.place(unit, want) else { return false };
        for &unit in units {
            let bounds = self.units.get(unit);
            let location = match page {
                OWN_FILES_PAGE => CopyLocation::in_own_file(tier, bounds.page),
                page => CopyLocation { tier, first: 0, page },
            };
            self.copies.place(unit, location);
            if page != OWN_FILES_PAGE {
                page += u64::from(bounds.pages());
            }
        }
        true
    }

    /// Reserves the last page of a unit for the next unit's first sample, which begins in it and is kept in `tier`.
    /// Returns whether the page is new.
    fn reserve_border(&self, ledger: &mut Ledger, unit: u32, tier: u8) -> bool {
        let together = self.units.together_with(unit);
        let first = together.start;
        if self.copies.location(unit).is_none() && ledger.planned(first).is_some() {
            // The plan keeps pages of this unit, too; a place for one page would be in the way then.
            let unplaced: Vec<u32> =
                together.filter(|&unit| self.copies.location(unit).is_none()).collect();
            self.place(ledger, first, &unplaced, 0);
        }
        let last = self.units.get(unit).pages() - 1;
        let page = PageSet::range(last..last + 1);
        if self.copies.location(unit).is_some() {
            return self.reserve_pages(ledger, unit, page);
        }
        let want = Want { space: 1, pages: 1, is_long: false };
        let Some((tier, place)) = ledger.place_in(tier, want) else { return false };
        self.copies.place(unit, CopyLocation { tier, first: last as u8, page: place });
        self.copies.reserve(unit, page);
        true
    }

    /// Releases reserved pages that will not be written.
    pub(super) fn unreserve(&self, unit: u32, pages: PageSet) {
        let mut ledger = self.ledger.lock();
        let Some(location) = self.copies.location(unit) else { return };
        let pages = pages.and(self.copies.reserved(unit));
        self.copies.unreserve(unit, pages);
        ledger.unreserve(unit, location.tier, pages.len().into());
        self.copies.set_room(ledger.room());
    }

    /// Adds the chunks that a process holds; from now on, room is kept for the chunks of all processes.
    pub(super) fn add_held(&self, connection: u64, held: Held) {
        // Locked until the copier has the chunks, so that an older message does not overtake this one.
        let mut holdings = self.holdings.lock();
        holdings.held.insert(connection, held);
        if self.ledger.lock().policy() != Policy::FirstTouch {
            return; // a plan lists the pages to keep itself
        }
        let Some(Held { chunks, fills }) = holdings.changed() else { return };
        let mut ledger = self.ledger.lock();
        let lacking = lacking(&chunks, &self.units, &self.copies);
        ledger.set_holding(chunks.clone(), lacking);
        let is_overdrawn = ledger.is_overdrawn();
        self.copies.set_room(ledger.room());
        drop(ledger);
        let not_held = self.not_held(&chunks);
        if is_overdrawn && !not_held.is_empty() {
            self.send(CopyJob::Evict(not_held));
        }
        if fills {
            self.send(CopyJob::Behind(chunks.held_units().collect()));
        }
    }

    /// The units in a tier whose chunks this node does not hold; of units kept together, the first. If held units lack
    /// room, all of these are evicted: other nodes have the same copies, and evicting only a few would leave holes that
    /// are not contiguous.
    fn not_held(&self, holding: &Holding) -> Vec<u32> {
        let is_first = |unit: &u32| *unit == self.units.together_with(*unit).start;
        let not_held = (0..self.units.len()).filter(|&unit| !holding.is_held(unit));
        not_held.filter(|&unit| self.copies.location(unit).is_some()).filter(is_first).collect()
    }
}

/// The chunks that one process holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) chunks: Holding,
    /// Set if the copier fetches all of the held chunks by itself. Otherwise it fetches the rest of a chunk once a page
    /// of the chunk is kept.
    pub(super) fills: bool,
}

/// The chunks for which the owner of the tiers keeps room: all chunks that any process holds.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// The chunks of each process, by connection number.
    pub(super) held: BTreeMap<u64, Held>,
    /// The chunks for which room was last reserved.
    applied: Option<Held>,
}

impl Holdings {
    /// The holdings of a new owner, which has already reserved room for its own chunks; `None`: it holds none.
    pub(super) fn of_owner(own: Option<Held>) -> Holdings {
        Holdings { applied: own.clone(), held: own.into_iter().map(|own| (OWN, own)).collect() }
    }

    /// Returns the chunks that all processes hold together, if they have changed since the last call.
    fn changed(&mut self) -> Option<Held> {
        let together = self.held.values().cloned().reduce(|some, more| Held {
            chunks: some.chunks.with(&more.chunks),
            fills: some.fills || more.fills,
        })?;
        let is_new = self.applied.as_ref() != Some(&together);
        is_new.then(|| self.applied.insert(together).clone())
    }
}

/// Counts the pages of held chunks that are not reserved, and the pages of their units without a place.
pub(super) fn lacking(holding: &Holding, units: &Units, copies: &CopyTable) -> Lacking {
    holding.held_units().fold(Lacking::default(), |sum, unit| {
        let all = units.get(unit).all();
        let unplaced = if copies.location(unit).is_none() { all.len() } else { 0 };
        Lacking {
            pages: sum.pages + u64::from(all.without(copies.reserved(unit)).len()),
            space: sum.space + u64::from(unplaced),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(which: [bool; 2], fills: bool) -> Held {
        Held { chunks: Holding::new([(0..2, 8, which[0]), (2..5, 9, which[1])]), fills }
    }

    #[test]
    fn chunks_that_any_process_holds_are_held_and_nothing_is_applied_twice() {
        let mut holdings = Holdings::of_owner(None);
        assert_eq!(holdings.changed(), None);
        holdings.held.insert(1, held([true, false], false));
        assert_eq!(holdings.changed(), Some(held([true, false], false)));
        holdings.held.insert(2, held([true, false], false));
        assert_eq!(holdings.changed(), None, "another rank of the same node");
        holdings.held.insert(OWN, held([false, true], true));
        assert_eq!(holdings.changed(), Some(held([true, true], true)));
        holdings.held.retain(|connection, _| *connection == OWN);
        assert_eq!(holdings.changed(), Some(held([false, true], true)));
    }
}
