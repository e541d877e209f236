//! The generation record: the metadata of a generation that its chunks do not hold.
//!
//! Chunk headers describe the samples, but not later deletions, class names, or the cells that the generation freed.
//! Each generation writes these facts to the snapshot and also here, as a chunk of its own kind. So a lost snapshot
//! can be rebuilt completely. Deletions are recorded here and not in chunk headers, since the previous generation still
//! reads the headers: overwriting one would change it, and a power loss could tear it.
//!
//! The record is a chunk [head](crate::format::chunk::RawHead) of kind 2. Its table consists of LEB128
//! numbers and length-prefixed strings:
//!
//! ```text
//! chunks | parts: count, (first, count, seed, window, started)* | fields: count, string*
//! | classes: count, string* | deleted: ranges, (gap, length)* | freed: ranges, (namespace, cell, cells)*
//! | origins, if there are any: string
//! ```
//!
//! Origins are the object-store objects that an image was imported from. Each import from object stores adds a group;
//! deleting samples removes nothing. A group is
//!
//! ```text
//! generation | objects: count, (shared, rest of the address, length of the object, tag)*
//! ```
//!
//! where numbers are LEB128 and strings have a length prefix. Addresses are front-coded: `shared` is the length of the
//! prefix that an address shares with the previous one. An entity tag is encoded as
//! - 0, if the store gave none,
//! - 1 and 16 bytes, if it is 32 hexadecimal digits in lower case and in quotes, as most are, or else
//! - its length plus 2, and its bytes.

use zerocopy::IntoBytes;

use crate::format::chunk::{ChunkHead, ChunkId, ChunkKind, HEAD_BYTES, padded, table_of};
use crate::format::cursor::{Cursor, put_number, put_string, utf8};
use crate::format::error::{at_most, equal, in_range};
use crate::format::geometry::MAX_SAMPLES;
use crate::format::names::common;
use crate::format::{CellRange, FormatError, ImageLayout, Part};
use dlfs_base::checksum::crc32c;
use dlfs_base::units::{Generation, Slot};

/// The metadata of a generation that its chunks do not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationRecord {
    /// Layout of the image.
    pub layout: ImageLayout,
    /// The generation.
    pub generation: Generation,
    /// Time of writing, in ns since 1970.
    pub time_ns: u64,
    /// Number of chunks of the generation, including chunks of earlier generations that it keeps.
    pub num_chunks: u64,
    /// The parts, in the order of ids, without gaps.
    pub parts: Vec<Part>,
    /// For each part, the time of its oldest chunk. A chunk that is older was left by a discarded import of the same
    /// generation, and must not be used.
    pub started_ns: Vec<u64>,
    /// Names of the fields; empty if samples have one field without a name.
    pub fields: Vec<Vec<u8>>,
    /// Names of the classes: labels are indexes into this list. Empty if labels are plain numbers.
    pub classes: Vec<Vec<u8>>,
    /// Deleted ids, as ascending ranges of (first, length).
    pub deleted: Vec<(u64, u64)>,
    /// Cells that the previous generation reads but this one does not.
    pub freed: Vec<CellRange>,
    /// The object-store objects that the image was imported from, as groups of [`crate::format::record`].
    pub origins: Vec<u8>,
}

impl GenerationRecord {
    /// The bytes to write at the given location, padded to a multiple of 4,096. Their length does not depend on the
    /// location.
    pub fn encode(&self, namespace: u16, cell: u64) -> Vec<u8> {
        let mut out = vec![0; HEAD_BYTES];
        self.put_table(&mut out);
        let table = &out[HEAD_BYTES..];
        let head = ChunkHead {
            layout: self.layout,
            kind: ChunkKind::Record,
            id: ChunkId { generation: self.generation, sequence: RECORD_SEQUENCE },
            time_ns: self.time_ns,
            namespace,
            cell,
            first_slot: Slot(0),
            num_samples: 0,
            num_fields: 0,
            header_len: (HEAD_BYTES + table.len()) as u32,
            data_len: 0,
            part: Part::default(),
            table_crc: crc32c(table),
        };
        out[..HEAD_BYTES].copy_from_slice(head.to_raw().as_bytes());
        out.resize(padded(out.len() as u64) as usize, 0);
        out
    }

    /// Reads a record and its head.
    ///
    /// # Errors
    /// `Truncated`: `bytes` are too few; the error has the length that is needed at least. Other errors: the record is
    /// invalid.
    pub fn parse(bytes: &[u8]) -> Result<(ChunkHead, GenerationRecord), FormatError> {
        let head = ChunkHead::parse(bytes)?;
        in_range(head.kind == ChunkKind::Record, "kind of a generation record", 1u64, 2)?;
        let mut table = Cursor::new("generation record", table_of(&head, bytes)?);
        let num_chunks = table.number()?;
        let (parts, started_ns) = read_parts(&mut table)?;
        let mut record = GenerationRecord {
            layout: head.layout,
            generation: head.id.generation,
            time_ns: head.time_ns,
            num_chunks,
            parts,
            started_ns,
            fields: read_strings(&mut table)?,
            classes: read_strings(&mut table)?,
            deleted: read_deleted(&mut table)?,
            freed: read_cell_ranges(&mut table, &head.layout)?,
            origins: Vec::new(),
        };
        if table.len() > 0 {
            record.origins = table.string()?.to_vec();
            visit_origins(&record.origins, |_| Ok(()))?;
        }
        equal("bytes behind a generation record", 0, table.len() as u64)?;
        Ok((head, record))
    }

    fn put_table(&self, out: &mut Vec<u8>) {
        put_number(out, self.num_chunks);
        put_parts(out, &self.parts, &self.started_ns);
        put_strings(out, &self.fields);
        put_strings(out, &self.classes);
        put_number(out, self.deleted.len() as u64);
        let mut at = 0;
        for (first, len) in &self.deleted {
            put_number(out, first - at);
            put_number(out, *len);
            at = first + len;
        }
        put_cell_ranges(out, &self.freed);
        if !self.origins.is_empty() {
            put_string(out, &self.origins);
        }
    }
}

pub(crate) fn put_parts(out: &mut Vec<u8>, parts: &[Part], started_ns: &[u64]) {
    assert_eq!(parts.len(), started_ns.len(), "one time for each part");
    put_number(out, parts.len() as u64);
    for (part, started) in parts.iter().zip(started_ns) {
        for number in [part.first, part.count, part.seed, part.window, *started] {
            put_number(out, number);
        }
    }
}

/// Reads parts and the start time of each. The parts must be contiguous from id 0 on.
pub(crate) fn read_parts(cursor: &mut Cursor<'_>) -> Result<(Vec<Part>, Vec<u64>), FormatError> {
    let mut parts = Vec::new();
    let mut started_ns = Vec::new();
    let mut end = 0;
    for _ in 0..cursor.count(5)? {
        let mut next = || cursor.number();
        let part = Part { first: next()?, count: next()?, seed: next()?, window: next()? };
        part.check()?;
        equal("first id of a part", end, part.first)?;
        end = part.first + part.count;
        parts.push(part);
        started_ns.push(next()?);
    }
    Ok((parts, started_ns))
}

pub(crate) fn put_strings(out: &mut Vec<u8>, strings: &[Vec<u8>]) {
    put_number(out, strings.len() as u64);
    for string in strings {
        put_string(out, string);
    }
}

pub(crate) fn read_strings(cursor: &mut Cursor<'_>) -> Result<Vec<Vec<u8>>, FormatError> {
    let count = cursor.count(1)?;
    (0..count).map(|_| Ok(cursor.string()?.to_vec())).collect()
}

pub(crate) fn put_cell_ranges(out: &mut Vec<u8>, ranges: &[CellRange]) {
    put_number(out, ranges.len() as u64);
    for range in ranges {
        put_number(out, u64::from(range.namespace));
        put_number(out, range.cell);
        put_number(out, range.cells);
    }
}

pub(crate) fn read_cell_ranges(
    cursor: &mut Cursor<'_>,
    layout: &ImageLayout,
) -> Result<Vec<CellRange>, FormatError> {
    let mut ranges = Vec::new();
    for _ in 0..cursor.count(3)? {
        let last = u64::from(layout.num_namespaces) - 1;
        let namespace = at_most("namespace of a freed range", cursor.number()?, last)? as u16;
        let cell = cursor.number()?;
        let cells = cursor.number()?;
        layout.offset_of(cell.saturating_add(cells))?;
        ranges.push(CellRange { namespace, cell, cells });
    }
    Ok(ranges)
}

fn read_deleted(cursor: &mut Cursor<'_>) -> Result<Vec<(u64, u64)>, FormatError> {
    let mut ranges = Vec::new();
    let mut at = 0u64;
    for _ in 0..cursor.count(2)? {
        let gap = cursor.number()?;
        let len = cursor.number()?;
        let first = at_most("deleted id", at.saturating_add(gap), MAX_SAMPLES)?;
        at = at_most("deleted id", first.saturating_add(len), MAX_SAMPLES)?;
        ranges.push((first, len));
    }
    Ok(ranges)
}

/// An object that an image was imported from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The generation that an import from the object wrote.
    pub generation: Generation,
    /// Address of the object, without secrets.
    pub address: String,
    /// Length of the object in bytes.
    pub len_bytes: u64,
    /// Entity tag of the object, if the store gave one.
    pub etag: Option<String>,
}

/// Collects the objects of one import as an encoded group.
#[derive(Debug, Clone, Default)]
pub struct OriginsBuilder {
    /// The number of objects.
    count: u64,
    /// The encoded objects, without the generation and the count of the group.
    bytes: Vec<u8>,
    /// The address that was added last.
    last: String,
}

impl OriginsBuilder {
    /// Adds an object. Add objects in ascending order of addresses to save space.
    pub fn push(&mut self, address: &str, len_bytes: u64, etag: Option<&str>) {
        let shared = common(self.last.as_bytes(), address.as_bytes());
        put_number(&mut self.bytes, shared as u64);
        put_string(&mut self.bytes, &address.as_bytes()[shared..]);
        put_number(&mut self.bytes, len_bytes);
        put_tag(&mut self.bytes, etag);
        address.clone_into(&mut self.last);
        self.count += 1;
    }

    /// Number of objects.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Calls `visit` with each object, with 0 for its generation.
    ///
    /// # Panics
    /// If the encoded objects cannot be decoded, which would be a bug.
    pub fn for_each(&self, mut visit: impl FnMut(Origin)) {
        let mut group = Vec::new();
        self.encode(Generation(0), &mut group);
        visit_origins(&group, |origin| {
            visit(origin);
            Ok(())
        })
        .expect("the builder encoded these bytes");
    }

    /// Appends the encoded group of an import into `generation`; nothing if there are no objects.
    pub fn encode(&self, generation: Generation, out: &mut Vec<u8>) {
        if self.count > 0 {
            put_number(out, generation.0);
            put_number(out, self.count);
            out.extend_from_slice(&self.bytes);
        }
    }
}

/// Calls `visit` with each object of `groups`.
///
/// # Errors
/// The bytes are damaged; or the error of `visit`.
pub fn visit_origins(
    groups: &[u8],
    mut visit: impl FnMut(Origin) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let mut from = Cursor::new(WHAT, groups);
    while from.len() > 0 {
        let generation = Generation(from.number()?);
        let mut address = Vec::new();
        for _ in 0..from.count(4)? {
            let shared =
                at_most("shared bytes of an address", from.number()?, address.len() as u64)?;
            address.truncate(shared as usize);
            address.extend_from_slice(from.string()?);
            at_most("length of an address", address.len() as u64, MAX_ADDRESS_BYTES)?;
            let len_bytes = from.number()?;
            let etag = take_tag(&mut from)?;
            let address = utf8(WHAT, &address)?.to_owned();
            visit(Origin { generation, address, len_bytes, etag })?;
        }
    }
    Ok(())
}

/// Appends an encoded entity tag.
#[doc(hidden)]
pub fn put_tag(out: &mut Vec<u8>, etag: Option<&str>) {
    match (etag, etag.and_then(digits)) {
        (None, _) => put_number(out, 0),
        (_, Some(digits)) => {
            put_number(out, 1);
            out.extend_from_slice(&digits);
        }
        (Some(etag), None) => {
            put_number(out, etag.len() as u64 + 2);
            out.extend_from_slice(etag.as_bytes());
        }
    }
}

/// Decodes the entity tag that [`put_tag`] wrote at the beginning of `bytes`.
///
/// # Errors
/// The bytes are damaged.
#[doc(hidden)]
pub fn tag_at(bytes: &[u8]) -> Result<Option<String>, FormatError> {
    take_tag(&mut Cursor::new(WHAT, bytes))
}

fn take_tag(from: &mut Cursor<'_>) -> Result<Option<String>, FormatError> {
    Ok(match from.number()? {
        0 => None,
        1 => {
            let bytes = from.bytes(16)?.try_into().expect("16 bytes");
            Some(format!("\"{:032x}\"", u128::from_be_bytes(bytes)))
        }
        len => Some(utf8(WHAT, from.bytes(len - 2)?)?.to_owned()),
    })
}

/// The 16 bytes of an entity tag that is 32 hexadecimal digits in lower case and in quotes.
fn digits(etag: &str) -> Option<[u8; 16]> {
    let digits = etag.strip_prefix('"')?.strip_suffix('"')?;
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'); // upper case would not round-trip
    let number = u128::from_str_radix(digits, 16).ok()?;
    (digits.len() == 32 && digits.bytes().all(is_digit)).then(|| number.to_be_bytes())
}

/// Sequence number of every record: it sorts after all chunks of its generation, as it is written after them.
const RECORD_SEQUENCE: u64 = u64::MAX;

const WHAT: &str = "origins";
/// Limit of an address, longer than any valid one: keys have at most 1,024 bytes, each of which may be escaped.
const MAX_ADDRESS_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{OriginsBuilder, Pack, Uuid};

    fn record() -> GenerationRecord {
        GenerationRecord {
            layout: ImageLayout::new(Uuid([7; 16]), 64 << 10, Pack::Aligned, 2).unwrap(),
            generation: Generation(3),
            time_ns: 99,
            num_chunks: 12,
            parts: vec![
                Part { first: 0, count: 1000, seed: u64::MAX, window: 1000 },
                Part { first: 1000, count: 1, seed: 0, window: 0 },
            ],
            started_ns: vec![5, 98],
            fields: vec![b"jpg".to_vec(), b"txt".to_vec()],
            classes: vec![b"cat".to_vec(), b"".to_vec()],
            deleted: vec![(0, 1), (5, 3), (1000, 1)],
            freed: vec![CellRange { namespace: 1, cell: 4, cells: 2 }],
            origins: origins(),
        }
    }

    fn origins() -> Vec<u8> {
        let mut group = OriginsBuilder::default();
        let mut bytes = Vec::new();
        group.push("s3://bucket/key", 5, Some("tag"));
        group.encode(Generation(3), &mut bytes);
        bytes
    }

    #[test]
    fn a_record_without_origins_is_as_it_was_before_there_were_any() {
        let record = GenerationRecord { origins: Vec::new(), ..record() };
        let bytes = record.encode(1, 17);
        assert_eq!(GenerationRecord::parse(&bytes).unwrap().1, record);
        let len = |bytes: &[u8]| ChunkHead::parse(bytes).unwrap().header_len as usize;
        let with = self::record().encode(1, 17);
        assert_eq!(len(&with) - len(&bytes), 1 + origins().len());
    }

    #[test]
    fn a_record_reads_back_with_its_place() {
        let bytes = record().encode(1, 17);
        assert_eq!(bytes.len(), 4096);
        let (head, found) = GenerationRecord::parse(&bytes).unwrap();
        assert_eq!(found, record());
        assert_eq!((head.namespace, head.cell, head.cell_range().cells), (1, 17, 1));
        head.check_location(&record().layout, 1, 17).unwrap();
        assert!(head.check_location(&record().layout, 0, 17).is_err(), "a write that went astray");
    }

    #[test]
    fn parts_with_a_gap_and_ids_past_the_limit_are_refused() {
        let mut gap = record();
        gap.parts[1].first = 1001;
        assert!(GenerationRecord::parse(&gap.encode(0, 1)).is_err());
        let mut far = record();
        far.deleted = vec![(MAX_SAMPLES, 1)];
        assert!(GenerationRecord::parse(&far.encode(0, 1)).is_err());
        let mut elsewhere = record();
        elsewhere.freed[0].namespace = 2;
        assert!(GenerationRecord::parse(&elsewhere.encode(0, 1)).is_err());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_of_a_record_is_seen() {
        let bytes = record().encode(1, 17);
        let used = ChunkHead::parse(&bytes).unwrap().header_len as usize;
        for bit in 0..used * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(GenerationRecord::parse(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..used {
            assert!(GenerationRecord::parse(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    fn groups() -> (Vec<u8>, Vec<Origin>) {
        let md5 = "\"0123456789abcdef0123456789abcdef\"";
        let mut bytes = Vec::new();
        let mut all = Vec::new();
        for generation in [1, 7] {
            let mut group = OriginsBuilder::default();
            for (address, len_bytes, etag) in [
                ("s3://bucket/train/0.tar", 0, None),
                ("s3://bucket/train/1.tar", 1 << 40, Some(md5)),
                ("s3://bucket/a", 7, Some("\"0123456789ABCDEF0123456789ABCDEF\"")),
                ("gs://ü", 7, Some("")),
                ("gs://ü", 7, Some("W/\"x\"")),
            ] {
                group.push(address, len_bytes, etag);
                let generation = Generation(generation);
                let address = address.to_owned();
                let etag = etag.map(str::to_owned);
                all.push(Origin { generation, address, len_bytes, etag });
            }
            group.encode(Generation(generation), &mut bytes);
        }
        (bytes, all)
    }

    fn read(bytes: &[u8]) -> Result<Vec<Origin>, FormatError> {
        let mut all = Vec::new();
        visit_origins(bytes, |origin| {
            all.push(origin);
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn origins_read_back_and_groups_follow_each_other() {
        let (bytes, all) = groups();
        assert_eq!(read(&bytes), Ok(all));
        assert_eq!(read(&[]), Ok(Vec::new()));
        let mut none = Vec::new();
        OriginsBuilder::default().encode(Generation(1), &mut none);
        assert!(none.is_empty(), "an import from elsewhere leaves no mark");
    }

    #[test]
    fn damaged_origins_are_errors_or_other_origins() {
        let (bytes, _) = groups();
        for len in 0..bytes.len() {
            let cut = read(&bytes[..len]);
            assert!(cut.is_err() || cut.is_ok_and(|all| all.len() % 5 == 0), "{len}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let _ = read(&damaged); // either result is fine: a checksum finds the damage; only a panic would matter
        }
    }
}
