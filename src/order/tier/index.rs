//! The index of a tier on local storage, which records the tier's data set and copies across restarts.
//!
//! The index is at the start of the tier's file or device; the copies follow. Only a new or changed header is flushed;
//! entries and copies are not, since copies are verified by their checksum before use. The checksum proves that copies
//! are intact, but not which data set they belong to. So each entry is bound to the header by the header's checksum: a
//! power loss may leave entries of another data set behind a new header, and such entries are ignored.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use dlfs_base::units::Generation;
use dlfs_format::format::Uuid;
use dlfs_format::format::names::{crc32c, crc32c_append};

use super::units::MAX_UNIT_PAGES;
use super::{CopyLocation, PAGE_BYTES, PageSet, Units};

/// The first page of a tier.
///
/// | bytes      | field         | meaning                                           |
/// |------------|---------------|---------------------------------------------------|
/// | 0..8       | `magic`       | "DLFSTIER"                                        |
/// | 8..12      | `version`     | 4                                                 |
/// | 12..16     | `num_units`   | entries after this page, one per unit             |
/// | 16..32     | `uuid`        | the image                                         |
/// | 32..40     | `generation`  | of the image                                      |
/// | 40..48     | `fingerprint` | hash of the division into units                   |
/// | 48..508    | `reserved_a`  | zero                                              |
/// | 508..512   | `crc`         | CRC32C of bytes 0..508                            |
/// | 512..520   | `quota`       | bytes that the tier may take, with its index      |
/// | 520..524   | `quota_crc`   | CRC32C of bytes 512..520                          |
/// | 524..4096  | `reserved_b`  | zero                                              |
///
/// All fields up to `crc` lie in one sector, so a power loss leaves the old or the new header. Entries are bound to
/// `crc`. The quota may change while the copies stay, so `crc` does not cover the quota.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    num_units: U32,
    uuid: [u8; 16],
    generation: U64,
    fingerprint: U64,
    reserved_a: [u8; 460],
    crc: U32,
    quota: U64,
    quota_crc: U32,
    reserved_b: [u8; 3572],
}
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(RawHeader, crc) == CRC_OFFSET);

/// One entry: the copies of one unit's pages. A page of the index has 170 entries, so that an entry never spans two
/// pages; the last 16 bytes of the page are zero.
///
/// | bytes  | field   | meaning                                                                            |
/// |--------|---------|------------------------------------------------------------------------------------|
/// | 0..8   | `place` | bits 0..56: place of the unit's first page with room, in pages from the tier's     |
/// |        |         | first copy, plus 1; bits 56..64: number of that page. Later pages follow           |
/// | 8..16  | `pages` | bit i: the unit's page i has a copy                                                |
/// | 16..20 | `sum`   | exclusive or of the copies' CRC32Cs, each of the page's bytes and of its number in |
/// |        |         | the unit as 4 bytes                                                                |
/// | 20..24 | `own`   | CRC32C of bytes 0..20, the unit's index as 4 bytes, and the header's `crc`         |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    place: U64,
    pages: U64,
    sum: U32,
    own: U32,
}
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);

/// The copies of a unit that an index lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The unit.
    pub unit: u32,
    /// The unit's first page that has room.
    pub first: u8,
    /// The place of that page, in pages from the first copy.
    pub page: u64,
    /// The pages that have copies.
    pub pages: PageSet,
    /// The [`sum_of_pages`] of these pages.
    pub sum: u32,
}

impl Kept {
    /// The location of the copies in `tier`.
    pub fn location(&self, tier: u8) -> CopyLocation {
        CopyLocation { tier, first: self.first, page: self.page }
    }
}

/// The checksum of the copies of `pages`. `bytes` holds the unit's pages from `first` on. The checksum of several
/// sets of pages is the exclusive or of their checksums.
///
/// # Panics
/// If one of the pages is not in `bytes`.
pub fn sum_of_pages(pages: PageSet, first: u32, bytes: &[u8]) -> u32 {
    let page_bytes = PAGE_BYTES as usize;
    let sum_of = |page: u32| {
        let at = (page - first) as usize * page_bytes;
        crc32c_append(crc32c(&bytes[at..at + page_bytes]), &page.to_le_bytes())
    };
    pages.runs().flatten().fold(0, |sum, page| sum ^ sum_of(page))
}

/// The reason that an index is not used; the tier then starts empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// There is no index, or the index is damaged.
    #[error("there is no index")]
    None,
    /// Another version of dlfs wrote the index.
    #[error("the index has version {found}, this dlfs has {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// The copies belong to another image or generation, or to another division into units.
    #[error("the copies belong to another data set or generation")]
    Other,
    /// The copies belong to a newer generation of this image than the one that is open.
    #[error("the copies belong to generation {found}, which is newer than the open generation")]
    Newer {
        /// Their generation.
        found: Generation,
    },
}

/// The index of one tier, in its on-media form.
#[derive(Debug, Clone)]
pub struct Index {
    bytes: Vec<u8>,
}

impl Index {
    /// Length of the index of `num_units` units, in bytes: whole pages.
    pub fn len_bytes(num_units: u32) -> u64 {
        HEADER_BYTES as u64 + u64::from(num_units).div_ceil(ENTRIES_OF_PAGE) * PAGE_BYTES
    }

    /// Offset in bytes of the first copy, after the index: a multiple of the longest possible unit (64 pages), unless
    /// the gap would be large relative to the data. Samples whose length is a power of two then lie at multiples of
    /// their length, each in one folio of the page cache. One folio is faster to read than several small ones.
    pub fn data_offset(units: &Units) -> u64 {
        let is_small = units.num_pages() < MAX_UNIT_PAGES * UNITS_TO_ALIGN;
        let align_bytes = if is_small { PAGE_BYTES } else { MAX_UNIT_PAGES * PAGE_BYTES };
        Index::len_bytes(units.len()).next_multiple_of(align_bytes)
    }

    /// An index without copies.
    pub fn new(uuid: Uuid, generation: Generation, units: &Units) -> Index {
        let mut bytes = vec![0; Index::len_bytes(units.len()) as usize];
        bytes[..HEADER_BYTES].copy_from_slice(&header(uuid, generation, units));
        Index { bytes }
    }

    /// Parses an index of [`Index::len_bytes`] bytes, and lists its copies.
    ///
    /// # Errors
    /// The reason that the tier starts empty.
    pub fn parse(
        bytes: &[u8],
        uuid: Uuid,
        generation: Generation,
        units: &Units,
    ) -> Result<(Index, Vec<Kept>), IndexError> {
        let head = bytes.get(..HEADER_BYTES).ok_or(IndexError::None)?;
        let raw = RawHeader::read_from_bytes(head).map_err(|_| IndexError::None)?;
        if &raw.magic == MAGIC && raw.version.get() != VERSION {
            return Err(IndexError::Version { found: raw.version.get() });
        }
        if &raw.magic != MAGIC || raw.crc.get() != crc32c(&head[..CRC_OFFSET]) {
            return Err(IndexError::None);
        }
        if head[..BOUND_BYTES] != header(uuid, generation, units)[..BOUND_BYTES] {
            let found = Generation(raw.generation.get());
            let is_newer = raw.uuid == uuid.0 && found > generation;
            return Err(if is_newer { IndexError::Newer { found } } else { IndexError::Other });
        }
        if bytes.len() as u64 != Index::len_bytes(units.len()) {
            return Err(IndexError::None);
        }
        let index = Index { bytes: bytes.to_vec() };
        // Ignore entries without pages, or with pages outside the unit or its room: dlfs never writes such entries.
        let is_right = |kept: &Kept| {
            let room = PageSet::range(kept.first.into()..units.get(kept.unit).pages());
            !kept.pages.is_empty() && kept.pages.without(room).is_empty()
        };
        let entries = (0..units.len()).filter_map(|unit| index.get(unit));
        let kept = entries.filter(is_right).collect();
        Ok((index, kept))
    }

    /// Sets or clears the entry of a unit; returns the offset of the changed page.
    pub fn set(&mut self, unit: u32, kept: Option<Kept>) -> usize {
        let at = offset_of(unit);
        let mut raw = RawEntry::new_zeroed();
        if let Some(kept) = kept {
            raw.place = (u64::from(kept.first) << FIRST_SHIFT | (kept.page + 1)).into();
            raw.pages = kept.pages.0.into();
            raw.sum = kept.sum.into();
            raw.own = self.own_crc(&raw, unit).into();
        }
        self.bytes[at..at + ENTRY_BYTES].copy_from_slice(raw.as_bytes());
        at - at % PAGE_BYTES as usize
    }

    /// The copies that the index lists for a unit; `None` if it lists none, or the entry is damaged.
    pub fn get(&self, unit: u32) -> Option<Kept> {
        let at = offset_of(unit);
        let raw = RawEntry::read_from_bytes(&self.bytes[at..at + ENTRY_BYTES]).ok()?;
        let place = raw.place.get();
        let page = (place & !(u64::MAX << FIRST_SHIFT)).checked_sub(1)?;
        let first = (place >> FIRST_SHIFT) as u8;
        let pages = PageSet(raw.pages.get());
        let is_intact = raw.own.get() == self.own_crc(&raw, unit);
        is_intact.then_some(Kept { unit, first, page, pages, sum: raw.sum.get() })
    }

    /// The bytes that the tier whose index begins with `bytes` may take, index included; `None` if `bytes` begin no
    /// index, or its quota is missing or damaged.
    pub fn quota_of(bytes: &[u8]) -> Option<u64> {
        let raw = RawHeader::read_from_bytes(bytes.get(..HEADER_BYTES)?).ok()?;
        let is_intact = raw.quota_crc.get() == crc32c(&bytes[BOUND_BYTES..QUOTA_CRC_OFFSET]);
        (Index::is_tier(bytes) && is_intact).then(|| raw.quota.get())
    }

    /// Sets [`Index::quota_of`] in the header; returns whether the quota changed.
    pub fn set_quota(&mut self, quota_bytes: u64) -> bool {
        let quota = quota_bytes.to_le_bytes();
        let is_other = Index::quota_of(&self.bytes) != Some(quota_bytes);
        self.bytes[BOUND_BYTES..QUOTA_CRC_OFFSET].copy_from_slice(&quota);
        self.bytes[QUOTA_CRC_OFFSET..QUOTA_CRC_OFFSET + 4]
            .copy_from_slice(&crc32c(&quota).to_le_bytes());
        is_other
    }

    /// Returns whether `bytes` begin with an index, of any data set, intact or not: they belong to a tier.
    pub fn is_tier(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// The header. The tier writes and flushes a new one first: it invalidates the entries that follow.
    pub fn header(&self) -> &[u8] {
        &self.bytes[..HEADER_BYTES]
    }

    /// The on-media form.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The CRC32C of an entry: see the table of [`RawEntry`].
    fn own_crc(&self, raw: &RawEntry, unit: u32) -> u32 {
        let mut bytes = [0; 28];
        bytes[..20].copy_from_slice(&raw.as_bytes()[..20]);
        bytes[20..24].copy_from_slice(&unit.to_le_bytes());
        bytes[24..].copy_from_slice(&self.bytes[CRC_OFFSET..CRC_OFFSET + 4]);
        crc32c(&bytes)
    }
}

/// The header of an index without a quota.
fn header(uuid: Uuid, generation: Generation, units: &Units) -> [u8; HEADER_BYTES] {
    let mut raw = RawHeader {
        magic: *MAGIC,
        version: VERSION.into(),
        num_units: units.len().into(),
        uuid: uuid.0,
        generation: generation.0.into(),
        fingerprint: units.fingerprint().into(),
        ..RawHeader::new_zeroed()
    };
    raw.crc = crc32c(&raw.as_bytes()[..CRC_OFFSET]).into();
    zerocopy::transmute!(raw)
}

/// Offset of a unit's entry.
fn offset_of(unit: u32) -> usize {
    let page = u64::from(unit) / ENTRIES_OF_PAGE;
    let entry = u64::from(unit) % ENTRIES_OF_PAGE;
    HEADER_BYTES + (page * PAGE_BYTES) as usize + entry as usize * ENTRY_BYTES
}

/// Offset of the header's checksum.
const CRC_OFFSET: usize = 508;
/// The length of the header's part that entries are bound to.
const BOUND_BYTES: usize = 512;
/// Offset of the quota's checksum.
const QUOTA_CRC_OFFSET: usize = 520;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 24;
/// The first bytes of the header.
const MAGIC: &[u8; 8] = b"DLFSTIER";
/// The version of the format.
const VERSION: u32 = 4;
/// Data shorter than this many of the longest units have no gap before their copies.
const UNITS_TO_ALIGN: u64 = 100;
/// The number of entries in a page.
const ENTRIES_OF_PAGE: u64 = PAGE_BYTES / ENTRY_BYTES as u64;
/// The lowest bit of the first page's number in [`RawEntry::place`].
const FIRST_SHIFT: u32 = 56;

#[cfg(test)]
mod tests {
    use super::*;

    const NUM_UNITS: u32 = 300;

    fn units() -> Units {
        Units::from_pages((0..u64::from(NUM_UNITS)).map(|unit| (unit * 2, 2)))
    }

    fn kept(unit: u32, page: u64) -> Kept {
        Kept { unit, first: 0, page, pages: PageSet(0b11), sum: 9 }
    }

    #[test]
    fn index_entries_read_back_and_damaged_ones_do_not() {
        let uuid = Uuid([7; 16]);
        let generation = Generation(3);
        let units = units();
        let mut index = Index::new(uuid, generation, &units);
        let border = Kept { unit: 299, first: 1, page: 0, pages: PageSet(0b10), sum: u32::MAX };
        assert_eq!(index.set(0, Some(kept(0, 4))), 4096);
        assert_eq!((index.set(169, None), index.set(170, None)), (4096, 8192));
        assert_eq!(index.set(299, Some(border)), 8192);
        index.set(5, Some(kept(5, 1)));
        index.set(5, None);
        index.set(6, Some(kept(6, 1)));
        index.set(7, Some(Kept { pages: PageSet(0b101), ..kept(7, 8) })); // it has two pages
        index.set(8, Some(Kept { first: 1, ..kept(8, 8) }));
        assert_eq!((index.get(0), index.get(5)), (Some(kept(0, 4)), None));
        let mut bytes = index.bytes().to_vec();
        assert_eq!(bytes.len() as u64, Index::len_bytes(NUM_UNITS));
        bytes[HEADER_BYTES + 6 * ENTRY_BYTES] ^= 1;
        let (_, found) = Index::parse(&bytes, uuid, generation, &units).unwrap();
        assert_eq!(found, [kept(0, 4), border]);
    }

    #[test]
    fn copies_of_much_data_begin_at_a_multiple_of_the_longest_unit() {
        let of = |num_units: u64| Units::from_pages((0..num_units).map(|unit| (unit * 64, 64)));
        assert_eq!(Index::data_offset(&of(99)), Index::len_bytes(99));
        let offsets = [100, 10_710, 10_711].map(|num_units| Index::data_offset(&of(num_units)));
        assert_eq!(offsets, [1, 1, 2].map(|units| units * 64 * PAGE_BYTES));
    }

    #[test]
    fn an_index_of_something_else_is_not_used() {
        let uuid = Uuid([7; 16]);
        let generation = Generation(3);
        let units = units();
        let bytes = Index::new(uuid, generation, &units).bytes().to_vec();
        let parse = |bytes: &[u8], uuid, generation, units: &Units| {
            Index::parse(bytes, uuid, generation, units).err()
        };
        assert_eq!(parse(&bytes, uuid, generation, &units), None);
        assert_eq!(parse(&bytes, Uuid([8; 16]), generation, &units), Some(IndexError::Other));
        assert_eq!(parse(&bytes, uuid, Generation(4), &units), Some(IndexError::Other));
        let newer = Some(IndexError::Newer { found: generation });
        assert_eq!(parse(&bytes, uuid, Generation(2), &units), newer);
        let other = Units::from_pages((0..300).map(|unit| (unit * 3, 2)));
        assert_eq!(parse(&bytes, uuid, generation, &other), Some(IndexError::Other));
        let mut old = bytes.clone();
        old[8] = 2;
        let version = IndexError::Version { found: 2 };
        assert_eq!(parse(&old, uuid, generation, &units), Some(version));
        // A power loss may leave a new header before the entries of another data set.
        let mut old = Index::new(Uuid([8; 16]), generation, &units);
        old.set(3, Some(kept(3, 0)));
        let mut mixed = old.bytes().to_vec();
        mixed[..HEADER_BYTES].copy_from_slice(&bytes[..HEADER_BYTES]);
        assert!(Index::parse(&mixed, uuid, generation, &units).unwrap().1.is_empty());
        let mut damaged = bytes.clone();
        damaged[20] ^= 1;
        for bytes in [&[][..], &bytes[..4096], &damaged, &vec![0; bytes.len()]] {
            assert_eq!(parse(bytes, uuid, generation, &units), Some(IndexError::None));
        }
    }

    #[test]
    fn the_quota_changes_without_the_copies() {
        let uuid = Uuid([7; 16]);
        let generation = Generation(3);
        let units = units();
        let mut index = Index::new(uuid, generation, &units);
        index.set(0, Some(kept(0, 4)));
        assert_eq!(Index::quota_of(index.bytes()), None, "it was never set");
        assert!(index.set_quota(0) && !index.set_quota(0) && index.set_quota(1 << 40));
        assert_eq!(Index::quota_of(index.bytes()), Some(1 << 40));
        let mut bytes = index.bytes().to_vec();
        let (_, found) = Index::parse(&bytes, uuid, generation, &units).unwrap();
        assert_eq!(found, [kept(0, 4)]);
        bytes[513] ^= 1;
        assert_eq!((Index::quota_of(&bytes), Index::quota_of(&bytes[..600])), (None, None));
        assert!(Index::parse(&bytes, uuid, generation, &units).is_ok());
    }

    /// Frozen: with another order of the fields or another checksum, copies of earlier runs would be lost.
    #[test]
    fn an_entry_has_these_bytes() {
        let mut index = Index::new(Uuid([7; 16]), Generation(3), &units());
        let pages: Vec<u8> = (0..8192).map(|at| (at / 4096) as u8 + 1).collect();
        let sum = sum_of_pages(PageSet(0b110), 1, &pages);
        let parts = [PageSet(0b10), PageSet(0b100)].map(|part| sum_of_pages(part, 1, &pages));
        assert_eq!(sum, parts[0] ^ parts[1]);
        index.set(1, Some(Kept { unit: 1, first: 1, page: 0x1_0000, pages: PageSet(0b10), sum }));
        let entry = &index.bytes()[HEADER_BYTES + ENTRY_BYTES..HEADER_BYTES + 2 * ENTRY_BYTES];
        assert_eq!(entry[..16], [1, 0, 1, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(entry[16..], [84, 192, 254, 172, 56, 5, 121, 1]);
    }
}
