//! Copies of pages and their locations: four words per unit, each changed atomically.
//!
//! A unit has one location, with room in address space for its pages. A page is *absent*, *under way* (claimed: its
//! copy is being fetched, written or verified) or *there* (it has a copy). Independently, a page may be *reserved*: the
//! quota counts reserved pages.
//!
//! A reader or the copier claims a page before it reads the page from the origin. If several readers want the page at
//! the same time, one claims it and the others wait until it is there. The claimant, or the copier that has its data,
//! publishes or releases the page. If a claimant dies, its claims remain until a reader that waits, or the copier,
//! reaches a timeout and releases them.

use std::ops::Range;

use dlfs_base::sync::{AtomicU64, Ordering};

use super::PageSet;

/// The location of a unit's copies, existing or future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyLocation {
    /// The tier, 0 being the fastest.
    pub tier: u8,
    /// The unit's first page with room; all later pages have room, too.
    pub first: u8,
    /// The tier's page for the unit's page `first`: pages from the tier's first copy, or from [`OWN_FILES_PAGE`] on.
    pub page: u64,
}

impl CopyLocation {
    /// The location of the copies of a unit of a long sample, in a tier that keeps such samples as separate files.
    /// `page` is the unit's first page on its namespace. The copies begin at [`OWN_FILES_PAGE`] plus `page`, so units
    /// never take each other's place.
    pub fn in_own_file(tier: u8, page: u64) -> CopyLocation {
        CopyLocation { tier, first: 0, page: OWN_FILES_PAGE + page }
    }

    /// Returns whether the copies are in a separate file.
    pub fn is_in_own_file(&self) -> bool {
        self.page >= OWN_FILES_PAGE
    }

    /// The tier's page for the unit's page `page`; `None` if there is no room for it.
    #[inline]
    pub fn of_page(&self, page: u32) -> Option<u64> {
        page.checked_sub(self.first.into()).map(|skip| self.page + u64::from(skip))
    }

    /// The tier's pages for all of `pages` that have room, in ascending order.
    pub fn ranges(self, pages: PageSet) -> impl Iterator<Item = Range<u64>> {
        let has_room = pages.and(PageSet::range(self.first.into()..64));
        has_room.runs().map(move |run| {
            let first = self.page + u64::from(run.start) - u64::from(self.first);
            first..first + u64::from(run.end - run.start)
        })
    }
}

/// The first page of the address range for long samples that a tier keeps as separate files. A page of a long
/// sample is at this page plus its page on the namespace. Media have fewer pages: 2^40 pages are 4 PiB.
pub const OWN_FILES_PAGE: u64 = 1 << 40;

/// The copies of all units: 32 bytes per unit. Any thread, and any process that shares the words, reads them
/// without waiting.
pub struct CopyTable {
    /// [`HEADER_WORDS`] words of the whole table, then [`UNIT_WORDS`] words per unit.
    words: Box<Words>,
}

/// The memory of a table's words: private to a process, or shared by processes.
type Words = dyn AsRef<[AtomicU64]> + Send + Sync;

/// The largest unused room of any tier. The two numbers may come from different tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Pages that are left in the quota.
    pub pages: u64,
    /// The longest free range of address space in pages; 0 if no unit gets a place any more.
    pub contiguous: u64,
}

impl CopyTable {
    /// A table of `len` units without copies.
    pub fn new(len: u32) -> CopyTable {
        let words: Vec<AtomicU64> =
            (0..CopyTable::num_words(len)).map(|_| AtomicU64::new(0)).collect();
        CopyTable { words: Box::new(words) }
    }

    /// The table in `words`, which its creator has set to zero: see [`CopyTable::num_words`] for their number.
    ///
    /// # Panics
    /// If there are fewer words than a table of no units has.
    pub fn over(words: Box<Words>) -> CopyTable {
        assert!((*words).as_ref().len() >= HEADER_WORDS, "no table is shorter");
        CopyTable { words }
    }

    /// The number of words of a table of `len` units.
    pub fn num_words(len: u32) -> usize {
        len as usize * UNIT_WORDS + HEADER_WORDS
    }

    /// The number of evictions so far. If it changes during a read of a copy, the read may have returned other
    /// data.
    pub fn evictions(&self) -> u64 {
        self.header(EVICTIONS).load(Ordering::Acquire)
    }

    /// The largest unused room of any tier, as the owner of the tiers last set it.
    pub fn room(&self) -> Room {
        Room {
            pages: self.header(ROOM).load(Ordering::Acquire),
            contiguous: self.header(CONTIGUOUS).load(Ordering::Acquire),
        }
    }

    /// Sets [`CopyTable::room`].
    pub fn set_room(&self, room: Room) {
        self.header(ROOM).store(room.pages, Ordering::Release);
        self.header(CONTIGUOUS).store(room.contiguous, Ordering::Release);
    }

    /// Announces that a reader waits for pages of the unit that are under way. The reader repeats this while it
    /// waits: of the units with the same remainder modulo `NUM_AWAITED`, only the last is remembered.
    pub fn await_unit(&self, unit: u32) {
        let word = AWAITED + unit as usize % NUM_AWAITED;
        self.header(word).store(u64::from(unit) + 1, Ordering::Release);
    }

    /// The units that readers have announced with [`CopyTable::await_unit`] since the last call.
    pub fn take_awaited(&self) -> impl Iterator<Item = u32> {
        let words = AWAITED..AWAITED + NUM_AWAITED;
        let taken = words.map(|word| self.header(word).swap(0, Ordering::AcqRel));
        taken.filter_map(|unit| unit.checked_sub(1).map(|unit| unit as u32)) // lossless: it was a u32
    }

    /// Marks a unit with copies of an earlier run as unchecked until [`CopyTable::end_check`], and claims these
    /// pages: they are not read before they are checked.
    pub fn begin_check(&self, unit: u32, pages: PageSet) {
        self.word(unit, LOCATION).fetch_or(UNCHECKED, Ordering::AcqRel);
        self.claim(unit, pages);
    }

    /// Ends the check of a unit, after its pages were published or released.
    pub fn end_check(&self, unit: u32) {
        self.word(unit, LOCATION).fetch_and(!UNCHECKED, Ordering::AcqRel);
        self.header(CHECKS).fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether the copies of the unit are still to be checked.
    pub fn is_unchecked(&self, unit: u32) -> bool {
        self.word(unit, LOCATION).load(Ordering::Acquire) & UNCHECKED != 0
    }

    /// The number of checks that have ended.
    pub fn checks(&self) -> u64 {
        self.header(CHECKS).load(Ordering::Acquire)
    }

    /// The location of the unit's copies, existing or future, if it has one.
    #[inline]
    pub fn location(&self, unit: u32) -> Option<CopyLocation> {
        decode(self.word(unit, LOCATION).load(Ordering::Acquire))
    }

    /// The pages that have copies, with their location; `None` if there are none.
    #[inline]
    pub fn copies(&self, unit: u32) -> Option<(CopyLocation, PageSet)> {
        let there = self.there(unit);
        // Loaded after the pages: a page that is there has a location.
        (!there.is_empty()).then(|| self.location(unit)).flatten().map(|location| (location, there))
    }

    /// The pages that have copies.
    #[inline]
    pub fn there(&self, unit: u32) -> PageSet {
        PageSet(self.word(unit, THERE).load(Ordering::Acquire))
    }

    /// The pages that are under way.
    ///
    /// To find that a page is absent, load this set first and [`CopyTable::there`] second: the page is in neither.
    pub fn under_way(&self, unit: u32) -> PageSet {
        PageSet(self.word(unit, UNDER_WAY).load(Ordering::Acquire))
    }

    /// The pages that the quota counts.
    pub fn reserved(&self, unit: u32) -> PageSet {
        PageSet(self.word(unit, RESERVED).load(Ordering::Acquire))
    }

    /// Gives the unit a location; returns `false` if it has one already.
    pub fn place(&self, unit: u32, location: CopyLocation) -> bool {
        let word = self.word(unit, LOCATION);
        word.compare_exchange(NOWHERE, encode(location), Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Reserves pages of a unit that has a location. Only the owner of the tiers calls this.
    pub fn reserve(&self, unit: u32, pages: PageSet) {
        self.word(unit, RESERVED).fetch_or(pages.0, Ordering::AcqRel);
    }

    /// Undoes [`CopyTable::reserve`].
    pub fn unreserve(&self, unit: u32, pages: PageSet) {
        self.word(unit, RESERVED).fetch_and(!pages.0, Ordering::AcqRel);
    }

    /// Claims the absent pages among `pages`, and returns them: the caller reads them from the origin, and
    /// publishes or releases them.
    pub fn claim(&self, unit: u32, pages: PageSet) -> PageSet {
        let absent = pages.without(self.there(unit));
        if absent.is_empty() {
            return PageSet::NONE;
        }
        let before = self.word(unit, UNDER_WAY).fetch_or(absent.0, Ordering::AcqRel);
        let won = absent.without(PageSet(before));
        // Published meanwhile: publishing sets the copy first, then ends the claim.
        let published = won.and(self.there(unit));
        if !published.is_empty() {
            self.release(unit, published);
        }
        won.without(published)
    }

    /// Ends the claims of `pages`. Readers that wait for one without a copy then read it themselves.
    pub fn release(&self, unit: u32, pages: PageSet) {
        self.word(unit, UNDER_WAY).fetch_and(!pages.0, Ordering::AcqRel);
    }

    /// Publishes the copies of `pages`, which are complete, and ends their claims.
    pub fn publish(&self, unit: u32, pages: PageSet) {
        self.word(unit, THERE).fetch_or(pages.0, Ordering::AcqRel);
        self.release(unit, pages);
    }

    /// Withdraws the copies of `pages`, so that they are no longer read; returns the copies that existed.
    pub fn unpublish(&self, unit: u32, pages: PageSet) -> PageSet {
        let before = self.word(unit, THERE).fetch_and(!pages.0, Ordering::AcqRel);
        pages.and(PageSet(before))
    }

    /// Removes copies and reservations of `pages`; the unit keeps its location. Counts as an eviction.
    pub fn clear_pages(&self, unit: u32, pages: PageSet) {
        self.unpublish(unit, pages);
        self.unreserve(unit, pages);
        self.header(EVICTIONS).fetch_add(1, Ordering::AcqRel);
    }

    /// Removes copies, reservations and location, as if the unit had never been read; claims stay. Counts as an
    /// eviction: a reader of a copy sees the new number, or has the data before the room is reused.
    pub fn clear(&self, unit: u32) {
        self.word(unit, THERE).store(0, Ordering::Release);
        self.word(unit, RESERVED).store(0, Ordering::Release);
        self.word(unit, LOCATION).store(NOWHERE, Ordering::Release);
        self.header(EVICTIONS).fetch_add(1, Ordering::AcqRel);
    }

    /// A word of the whole table.
    fn header(&self, word: usize) -> &AtomicU64 {
        &(*self.words).as_ref()[word]
    }

    /// A word of a unit.
    #[inline]
    fn word(&self, unit: u32, word: usize) -> &AtomicU64 {
        &(*self.words).as_ref()[HEADER_WORDS + unit as usize * UNIT_WORDS + word]
    }
}

impl std::fmt::Debug for CopyTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyTable").field("words", &(*self.words).as_ref().len()).finish()
    }
}

/// The `LOCATION` word of a unit.
///
/// | bits   | meaning                     |
/// |--------|-----------------------------|
/// | 0      | 1: there is a location      |
/// | 1      | 1: its copies are unchecked |
/// | 2..8   | tier                        |
/// | 8..14  | first page with room        |
/// | 16..64 | its page in the tier        |
fn encode(location: CopyLocation) -> u64 {
    location.page << 16 | u64::from(location.first) << 8 | u64::from(location.tier) << 2 | 1
}

/// The inverse of [`encode`].
fn decode(word: u64) -> Option<CopyLocation> {
    let tier = (word >> 2) as u8 & 63;
    let first = (word >> 8) as u8 & 63;
    (word & 1 == 1).then_some(CopyLocation { tier, first, page: word >> 16 })
}

/// The number of words before those of the units, a multiple of [`UNIT_WORDS`].
const HEADER_WORDS: usize = 8;
/// Index of the word with the number of evictions.
const EVICTIONS: usize = 0;
/// Index of the word with [`Room::pages`].
const ROOM: usize = 1;
/// Index of the word with [`Room::contiguous`].
const CONTIGUOUS: usize = 2;
/// Index of the word with the number of ended checks.
const CHECKS: usize = 3;
/// Index of the first word with a unit that readers wait for: the unit plus 1, or 0.
const AWAITED: usize = 4;
/// The number of such words.
const NUM_AWAITED: usize = 4;

/// The number of words per unit.
const UNIT_WORDS: usize = 4;
/// Index, in a unit's words, of the unit's location.
const LOCATION: usize = 0;
/// Index of the set of reserved pages.
const RESERVED: usize = 1;
/// Index of the set of pages that are under way.
const UNDER_WAY: usize = 2;
/// Index of the set of pages that have copies.
const THERE: usize = 3;

/// The `LOCATION` word of a unit without a location.
const NOWHERE: u64 = 0;
/// The bit of a `LOCATION` word for copies that are still to be checked.
const UNCHECKED: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_claimed_once_published_once_and_claimed_again_when_it_is_corrupt() {
        let table = CopyTable::new(2);
        let location = CopyLocation { tier: 14, first: 63, page: 1 << 46 };
        assert!(table.place(1, location) && !table.place(1, CopyLocation { tier: 0, ..location }));
        assert_eq!((table.location(1), table.copies(1)), (Some(location), None));
        table.reserve(1, PageSet(0b1111));
        assert_eq!(table.claim(1, PageSet(0b0011)), PageSet(0b0011));
        assert_eq!(table.claim(1, PageSet(0b0110)), PageSet(0b0100), "the second is under way");
        table.publish(1, PageSet(0b0011));
        assert_eq!(table.copies(1), Some((location, PageSet(0b0011))));
        assert_eq!(table.under_way(1), PageSet(0b0100));
        assert_eq!(table.claim(1, PageSet(0b0111)), PageSet::NONE);
        table.release(1, PageSet(0b0100));
        assert_eq!(table.claim(1, PageSet(0b0100)), PageSet(0b0100));
        assert_eq!(table.unpublish(1, PageSet(0b1110)), PageSet(0b0010));
        assert_eq!(table.claim(1, PageSet(0b0011)), PageSet(0b0010));
        assert_eq!(table.reserved(1), PageSet(0b1111));
        table.clear(1);
        assert_eq!((table.location(1), table.copies(1), table.evictions()), (None, None, 1));
        assert_eq!((table.reserved(1), table.under_way(1)), (PageSet::NONE, PageSet(0b0110)));
        assert_eq!((table.location(0), table.under_way(0)), (None, PageSet::NONE));
    }

    #[test]
    fn copies_of_an_earlier_run_are_under_way_until_they_are_checked_and_keep_their_place() {
        let table = CopyTable::new(2);
        let pages = PageSet(0b110);
        let location = CopyLocation { tier: 3, first: 1, page: 70 };
        assert!(table.place(1, location));
        table.begin_check(1, pages);
        assert_eq!((table.location(1), table.under_way(1)), (Some(location), pages));
        assert!(table.is_unchecked(1) && !table.is_unchecked(0));
        assert_eq!((table.claim(1, PageSet(0b111)), table.checks()), (PageSet(0b001), 0));
        table.publish(1, pages);
        table.end_check(1);
        assert_eq!((table.copies(1), table.checks()), (Some((location, pages)), 1));
        assert!(!table.is_unchecked(1));
    }

    #[test]
    fn evictions_and_free_pages_are_counted_apart_from_units() {
        let table = CopyTable::new(2);
        let room = Room { pages: 9, contiguous: 4 };
        table.set_room(room);
        (0..3).for_each(|_| table.clear(0));
        [8, 4, 8, 7].into_iter().for_each(|unit| table.await_unit(unit));
        assert!(
            table.take_awaited().eq([8, 7]) && table.take_awaited().next().is_none(),
            "of 4 and 8 the last"
        );
        assert_eq!((table.evictions(), table.room()), (3, room));
        assert_eq!((table.location(0), table.there(1)), (None, PageSet::NONE));
    }

    #[test]
    fn a_location_has_the_pages_from_its_first_on() {
        let location = CopyLocation { tier: 0, first: 3, page: 100 };
        assert_eq!([2, 3, 5].map(|page| location.of_page(page)), [None, Some(100), Some(102)]);
        let ranges: Vec<_> = location.ranges(PageSet(0b1001_1110)).collect();
        assert_eq!(ranges, [100..102, 104..105]);
    }

    #[test]
    fn a_unit_of_a_long_sample_has_its_own_address_in_the_files_of_a_tier() {
        let places = [9, 73, (1 << 40) - 1].map(|page| CopyLocation::in_own_file(3, page));
        let table = CopyTable::new(3);
        assert!((0..).zip(places).all(|(unit, place)| table.place(unit, place)));
        assert_eq!(table.location(2), Some(places[2]), "a word has room for it");
        assert!(places[0].is_in_own_file());
        assert!(!CopyLocation { page: OWN_FILES_PAGE - 1, ..places[0] }.is_in_own_file());
    }

    #[test]
    fn of_many_threads_one_gets_the_claim() {
        let table = CopyTable::new(1);
        let won: u32 = std::thread::scope(|scope| {
            let claim = || table.claim(0, PageSet(1 << 40)).len();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(claim)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
    }
}
