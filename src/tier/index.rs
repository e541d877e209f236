//! The index of a tier on local storage, which survives restarts: which data set it belongs to, and
//! its copies.
//!
//! The index is at the start of the tier's file or device; the copies follow. Only a new header is
//! flushed, since every copy is verified against its own checksum before use. That proves the copy
//! intact, but not which data set it belongs to; therefore each entry is bound to its header, and
//! entries of another data set that a power loss leaves behind a new header are ignored.
//! loss left behind a new header do not count.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::format::Uuid;
use crate::format::checksum::crc32c;
use crate::units::Generation;

use super::{PAGE_BYTES, Units};

/// The first page of a tier.
///
/// | bytes      | field         | meaning                                           |
/// |------------|---------------|---------------------------------------------------|
/// | 0..8       | `magic`       | "DLFSTIER"                                        |
/// | 8..12      | `version`     | 2                                                 |
/// | 12..16     | `num_units`   | entries after this page, one per unit             |
/// | 16..32     | `uuid`        | the image                                         |
/// | 32..40     | `generation`  | of the image                                      |
/// | 40..48     | `fingerprint` | of the cut into units                             |
/// | 48..508    | `reserved_a`  | zero                                              |
/// | 508..512   | `crc`         | CRC32C of bytes 0..508                            |
/// | 512..4096  | `reserved_b`  | zero                                              |
///
/// All fields lie in one sector, so a power loss leaves the old or the new header.
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
    reserved_b: [u8; 3584],
}
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(RawHeader, crc) == CRC_OFFSET);

/// One entry: the copy of one unit.
///
/// | bytes  | field  | meaning                                                     |
/// |--------|--------|-------------------------------------------------------------|
/// | 0..8   | `page` | first page of the copy, counted from the first copy, plus 1 |
/// | 8..12  | `crc`  | CRC32C of the copy                                          |
/// | 12..16 | `own`  | CRC32C of bytes 0..12, the unit's index as 4 bytes, and the |
/// |        |        | header's `crc`                                              |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    page: U64,
    crc: U32,
    own: U32,
}
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);

/// A copy that an index lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The unit.
    pub unit: u32,
    /// Its first page, counted from the first copy.
    pub page: u64,
    /// CRC32C of all its pages.
    pub crc32c: u32,
}

/// Why an index is not used; the tier then starts empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// There is no index, or it is damaged, or has another version.
    #[error("there is no index")]
    None,
    /// The copies belong to another image or generation, or to another division into units.
    #[error("the copies are of another data set or generation")]
    Other,
    /// The copies belong to a newer generation of this image than the one that is open.
    #[error("the copies are of generation {found}, which is newer than the open generation")]
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
    /// Length of the index of `num_units` units, in whole pages; the copies follow it.
    pub fn len_bytes(num_units: u32) -> u64 {
        let entries = u64::from(num_units) * ENTRY_BYTES as u64;
        HEADER_BYTES as u64 + entries.next_multiple_of(PAGE_BYTES)
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
    /// Why the tier starts empty.
    pub fn parse(
        bytes: &[u8],
        uuid: Uuid,
        generation: Generation,
        units: &Units,
    ) -> Result<(Index, Vec<Kept>), IndexError> {
        let head = bytes.get(..HEADER_BYTES).ok_or(IndexError::None)?;
        let raw = RawHeader::read_from_bytes(head).map_err(|_| IndexError::None)?;
        let is_index = &raw.magic == MAGIC && raw.version.get() == VERSION;
        if !is_index || raw.crc.get() != crc32c(&head[..CRC_OFFSET]) {
            return Err(IndexError::None);
        }
        if head != header(uuid, generation, units) {
            let found = Generation(raw.generation.get());
            let is_newer = raw.uuid == uuid.0 && found > generation;
            return Err(if is_newer { IndexError::Newer { found } } else { IndexError::Other });
        }
        if bytes.len() as u64 != Index::len_bytes(units.len()) {
            return Err(IndexError::None);
        }
        let index = Index { bytes: bytes.to_vec() };
        let kept = (0..units.len()).filter_map(|unit| index.entry(unit)).collect();
        Ok((index, kept))
    }

    /// Sets or clears the entry of a unit; returns the range of bytes, one page, that has changed.
    pub fn set(&mut self, unit: u32, kept: Option<Kept>) -> std::ops::Range<usize> {
        let at = HEADER_BYTES + unit as usize * ENTRY_BYTES;
        let mut raw = RawEntry { page: 0.into(), crc: 0.into(), own: 0.into() };
        if let Some(kept) = kept {
            raw.page = (kept.page + 1).into();
            raw.crc = kept.crc32c.into();
            raw.own = self.own_crc(&raw, unit).into();
        }
        self.bytes[at..at + ENTRY_BYTES].copy_from_slice(raw.as_bytes());
        let page = PAGE_BYTES as usize;
        at / page * page..at / page * page + page
    }

    /// Whether `bytes` begin with the index of any data set, intact or not: they belong to a tier.
    pub fn is_tier(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// The header, which a new index writes and flushes first: it invalidates the entries behind
    /// it.
    pub fn header(&self) -> &[u8] {
        &self.bytes[..HEADER_BYTES]
    }

    /// The on-media form.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn entry(&self, unit: u32) -> Option<Kept> {
        let at = HEADER_BYTES + unit as usize * ENTRY_BYTES;
        let raw = RawEntry::read_from_bytes(&self.bytes[at..at + ENTRY_BYTES]).ok()?;
        let page = raw.page.get().checked_sub(1)?;
        let is_whole = raw.own.get() == self.own_crc(&raw, unit);
        is_whole.then_some(Kept { unit, page, crc32c: raw.crc.get() })
    }

    fn own_crc(&self, raw: &RawEntry, unit: u32) -> u32 {
        let mut bytes = [0; 20];
        bytes[..12].copy_from_slice(&raw.as_bytes()[..12]);
        bytes[12..16].copy_from_slice(&unit.to_le_bytes());
        bytes[16..].copy_from_slice(&self.bytes[CRC_OFFSET..CRC_OFFSET + 4]);
        crc32c(&bytes)
    }
}

fn header(uuid: Uuid, generation: Generation, units: &Units) -> [u8; HEADER_BYTES] {
    let mut raw = RawHeader {
        magic: *MAGIC,
        version: VERSION.into(),
        num_units: units.len().into(),
        uuid: uuid.0,
        generation: generation.0.into(),
        fingerprint: units.fingerprint().into(),
        reserved_a: [0; 460],
        crc: 0.into(),
        reserved_b: [0; 3584],
    };
    raw.crc = crc32c(&raw.as_bytes()[..CRC_OFFSET]).into();
    let mut bytes = [0; HEADER_BYTES];
    bytes.copy_from_slice(raw.as_bytes());
    bytes
}

/// Offset of the header's checksum.
const CRC_OFFSET: usize = 508;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 16;
const MAGIC: &[u8; 8] = b"DLFSTIER";
const VERSION: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn units() -> Units {
        Units::from_pages((0..300).map(|unit| (unit * 2, 2)))
    }

    #[test]
    fn what_was_entered_is_found_again_and_damaged_entries_are_not() {
        let (uuid, generation, units) = (Uuid([7; 16]), Generation(3), units());
        let mut index = Index::new(uuid, generation, &units);
        let kept = |unit, page| Kept { unit, page, crc32c: 9 };
        assert_eq!(index.set(0, Some(kept(0, 4))), 4096..8192);
        assert_eq!(index.set(299, Some(kept(299, 0))), 8192..12_288);
        index.set(5, Some(kept(5, 1)));
        index.set(5, None);
        index.set(6, Some(kept(6, 1)));
        let mut bytes = index.bytes().to_vec();
        assert_eq!(bytes.len() as u64, Index::len_bytes(300));
        bytes[HEADER_BYTES + 6 * ENTRY_BYTES] ^= 1;
        let (_, found) = Index::parse(&bytes, uuid, generation, &units).unwrap();
        assert_eq!(found, [kept(0, 4), kept(299, 0)]);
    }

    #[test]
    fn an_index_of_something_else_is_not_used() {
        let (uuid, generation, units) = (Uuid([7; 16]), Generation(3), units());
        let bytes = Index::new(uuid, generation, &units).bytes().to_vec();
        let parse = |bytes: &[u8], uuid, generation, units: &Units| {
            Index::parse(bytes, uuid, generation, units).err()
        };
        assert_eq!(parse(&bytes, uuid, generation, &units), None);
        assert_eq!(parse(&bytes, Uuid([8; 16]), generation, &units), Some(IndexError::Other));
        assert_eq!(parse(&bytes, uuid, Generation(4), &units), Some(IndexError::Other));
        let newer = Some(IndexError::Newer { found: generation });
        assert_eq!(parse(&bytes, uuid, Generation(2), &units), newer);
        assert_eq!(parse(&bytes, uuid, Generation(4), &units), Some(IndexError::Other));
        let other = Units::from_pages((0..300).map(|unit| (unit * 3, 2)));
        assert_eq!(parse(&bytes, uuid, generation, &other), Some(IndexError::Other));
        // A power loss may leave a new header before the entries of another data set.
        let mut old = Index::new(Uuid([8; 16]), generation, &units);
        old.set(3, Some(Kept { unit: 3, page: 0, crc32c: 9 }));
        let mut mixed = old.bytes().to_vec();
        mixed[..HEADER_BYTES].copy_from_slice(&bytes[..HEADER_BYTES]);
        assert!(Index::parse(&mixed, uuid, generation, &units).unwrap().1.is_empty());
        let mut damaged = bytes.clone();
        damaged[20] ^= 1;
        for bytes in [&[][..], &bytes[..4096], &damaged, &vec![0; bytes.len()]] {
            assert_eq!(parse(bytes, uuid, generation, &units), Some(IndexError::None));
        }
    }
}
