//! A view file: named views of one generation of an image, with a checksum.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::directory::Directory;
use crate::format::cursor::{Cursor, put_number, put_string, utf8};
use crate::format::error::{at_most, enough, in_range, out_of_range};
use crate::format::{FormatError, Uuid};
use dlfs_base::checksum::{crc32c, crc32c_append};
use dlfs_base::error::{Result, ensure, invalid};
use dlfs_base::units::Generation;

use super::{IdSet, View, other_generation, other_image};

/// A view with its name and a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedView {
    /// The name, such as `train`.
    pub name: String,
    /// Description of how the view was made, for people.
    pub made: String,
    /// The view.
    pub view: View,
}

/// The contents of a view file: views of one generation of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewFile {
    views: Vec<NamedView>,
}

/// The header of a view file.
///
/// | bytes  | field         | meaning                                            |
/// |--------|---------------|----------------------------------------------------|
/// | 0..8   | `magic`       | `dlfsview`                                         |
/// | 8..10  | `version`     | 1                                                  |
/// | 10..12 | `num_views`   | the number of views, at least 1                    |
/// | 12..16 | `reserved_a`  | zero                                               |
/// | 16..32 | `uuid`        | the image                                          |
/// | 32..40 | `generation`  | the generation                                     |
/// | 40..48 | `num_samples` | ids assigned in it: all ids of views are below     |
/// | 48..56 | `body_len`    | bytes that follow                                  |
/// | 56..60 | `reserved_b`  | zero                                               |
/// | 60..64 | `crc`         | CRC32C of bytes 0..60 and of the bytes that follow |
///
/// For each view follow: name and description, as length-prefixed strings; the number of keyed splits that led to the
/// view; its number of samples; a byte for the kind of its set, 0 or 1; and the set of ids. Numbers and lengths are
/// LEB128.
///
/// A set of kind 0 is a bitmap of ceil(`num_samples` / 8) bytes: id `i` is bit `i % 8`, counted from the least
/// significant, of byte `i / 8`. A set of kind 1 is the number of its ranges, and for each range the number of ids
/// skipped before it and its length. A writer uses the shorter kind.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ViewHeader {
    magic: [u8; 8],
    version: U16,
    num_views: U16,
    reserved_a: U32,
    uuid: [u8; 16],
    generation: U64,
    num_samples: U64,
    body_len: U64,
    reserved_b: U32,
    crc: U32,
}
const _: () = assert!(size_of::<ViewHeader>() == VIEW_HEADER_BYTES);

impl ViewFile {
    /// A file of `views`, which must be of the same image and generation.
    ///
    /// # Errors
    /// There is no view or there are too many; a name is invalid or used twice; the views differ in image or
    /// generation.
    pub fn new(views: Vec<NamedView>) -> Result<ViewFile> {
        let Some(first) = views.first() else {
            return Err(invalid("a file of views has at least one"));
        };
        ensure(views.len() <= usize::from(u16::MAX), || {
            format!("a file has at most 65535 views, not {}", views.len())
        })?;
        for (at, named) in views.iter().enumerate() {
            check_name(&named.name).map_err(invalid)?;
            ensure(views[..at].iter().all(|other| other.name != named.name), || {
                format!("two views are called {}", named.name)
            })?;
            let one = &first.view;
            let other = &named.view;
            if one.image != other.image {
                return Err(other_image(other.image, one.image));
            }
            if one.generation != other.generation || one.ids.limit() != other.ids.limit() {
                return Err(other_generation(other.generation, one.generation));
            }
        }
        Ok(ViewFile { views })
    }

    /// The views.
    pub fn views(&self) -> &[NamedView] {
        &self.views
    }

    /// The view called `name`; without a name, the only view of the file.
    ///
    /// # Errors
    /// There is no view of this name; or `name` is `None` and there are several views.
    pub fn view(&self, name: Option<&str>) -> Result<&NamedView> {
        let found = match name {
            Some(name) => self.views.iter().find(|named| named.name == name),
            None => Some(&self.views[0]).filter(|_| self.views.len() == 1),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = self.views.iter().map(|named| &*named.name).take(20).collect();
            let names = names.join(", ");
            invalid(match name {
                Some(name) => format!("there is no view called {name}; there are {names}"),
                None => format!("name one of the views, behind a colon: {names}"),
            })
        })
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let first = &self.views[0].view;
        let mut bytes = vec![0; VIEW_HEADER_BYTES];
        for NamedView { name, made, view } in &self.views {
            put_string(&mut bytes, name.as_bytes());
            put_string(&mut bytes, made.as_bytes());
            put_number(&mut bytes, view.splits.into());
            put_number(&mut bytes, view.len());
            put_set(&mut bytes, &view.ids);
        }
        let mut header = ViewHeader {
            magic: MAGIC,
            version: VERSION.into(),
            num_views: (self.views.len() as u16).into(),
            uuid: first.image.0,
            generation: first.generation.0.into(),
            num_samples: first.ids.limit().into(),
            body_len: ((bytes.len() - VIEW_HEADER_BYTES) as u64).into(),
            ..ViewHeader::new_zeroed()
        };
        let crc = crc32c(&header.as_bytes()[..CRC_OFFSET]);
        header.crc = crc32c_append(crc, &bytes[VIEW_HEADER_BYTES..]).into();
        bytes[..VIEW_HEADER_BYTES].copy_from_slice(header.as_bytes());
        bytes
    }

    /// The length of the whole file, as stated in its first [`VIEW_HEADER_BYTES`].
    ///
    /// # Errors
    /// The file is not a view file, or has a later version.
    pub fn len_of(head: &[u8]) -> Result<u64> {
        let header = header(head)?;
        Ok((VIEW_HEADER_BYTES as u64).saturating_add(header.body_len.get()))
    }

    /// Decodes a view file whose views are of `directory`.
    ///
    /// # Errors
    /// The file is damaged, not a view file, or has a later version; its views are of another image or generation.
    pub fn from_bytes(bytes: &[u8], directory: &Directory) -> Result<ViewFile> {
        let image = directory.uuid();
        let generation = directory.generation();
        ViewFile::read(bytes, (image, generation, directory.num_samples()))
    }

    /// Decodes views of the opened image. `open` is the image, its generation and its number of ids. The number sizes
    /// memory, so it is not taken from the file, where it may be forged.
    fn read(bytes: &[u8], open: (Uuid, Generation, u64)) -> Result<ViewFile> {
        let header = header(bytes)?;
        let body = &bytes[VIEW_HEADER_BYTES..];
        if body.len() as u64 != header.body_len.get() {
            let expected = header.body_len.get();
            let found = body.len() as u64;
            return Err(FormatError::Truncated { what: WHAT, expected, found }.into());
        }
        let found = crc32c_append(crc32c(&bytes[..CRC_OFFSET]), body);
        if found != header.crc.get() {
            let expected = header.crc.get();
            return Err(FormatError::Checksum { what: WHAT, expected, found }.into());
        }
        let num_samples = header.num_samples.get();
        let image = Uuid(header.uuid);
        let generation = Generation(header.generation.get());
        if image != open.0 {
            return Err(other_image(image, open.0));
        }
        if generation != open.1 {
            return Err(other_generation(generation, open.1));
        }
        in_range(num_samples == open.2, "number of ids of a view", num_samples, open.2)?;
        let mut cursor = Cursor::new(WHAT, body);
        let mut views = Vec::new();
        for _ in 0..header.num_views.get() {
            let name = utf8(WHAT, cursor.string()?)?.to_owned();
            let made = utf8(WHAT, cursor.string()?)?.to_owned();
            let splits = at_most("splits of a view", cursor.number()?, u32::MAX.into())? as u32;
            let count = cursor.number()?;
            let ids = set(&mut cursor, num_samples, count)?;
            views.push(NamedView { name, made, view: View::new(image, generation, ids, splits) });
        }
        at_most("bytes behind the views", cursor.len() as u64, 0)?;
        ViewFile::new(views)
    }
}

/// Decodes the header at the front of `bytes`. Does not verify the checksum, which covers the whole file.
fn header(bytes: &[u8]) -> Result<ViewHeader> {
    enough(WHAT, VIEW_HEADER_BYTES as u64, bytes.len())?;
    let (header, _) = ViewHeader::read_from_prefix(bytes).expect("bytes of a header");
    if header.magic != MAGIC {
        return Err(FormatError::Magic { what: WHAT }.into());
    }
    if header.version.get() != VERSION {
        let found = header.version.get();
        let known = VERSION;
        return Err(FormatError::Version { what: WHAT, found, known }.into());
    }
    Ok(header)
}

/// Appends a set of ids, in the shorter of the two encodings.
fn put_set(bytes: &mut Vec<u8>, ids: &IdSet) {
    let len = ids.limit().div_ceil(8) as usize;
    let mut packed = Vec::new();
    let mut end = 0;
    let ranges = ids.ranges();
    put_number(&mut packed, ranges.len() as u64);
    for range in ranges {
        put_number(&mut packed, range.start - end);
        put_number(&mut packed, range.end - range.start);
        end = range.end;
        if packed.len() >= len {
            break; // ranges are not shorter
        }
    }
    if packed.len() < len {
        bytes.push(RANGES);
        bytes.extend(packed);
        return;
    }
    bytes.push(BITS);
    let all = bytes.len() + len;
    ids.words().iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.truncate(all);
}

/// Decodes a set of `count` ids below `limit`, the number of ids of the opened image.
fn set(cursor: &mut Cursor<'_>, limit: u64, count: u64) -> Result<IdSet> {
    let kind = cursor.bytes(1)?[0];
    let ids = match kind {
        BITS => {
            let bytes = cursor.bytes(limit.div_ceil(8))?;
            let mut ids = IdSet::new(limit);
            for (word, bytes) in ids.words_mut().iter_mut().zip(bytes.chunks(8)) {
                let mut wide = [0; 8];
                wide[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_le_bytes(wide);
            }
            if let (Some(last), tail @ 1..) = (ids.words().last(), limit % 64) {
                at_most("bits behind the ids of a view", last >> tail, 0)?;
            }
            ids
        }
        RANGES => {
            let mut ids = IdSet::new(limit);
            let mut end = 0u64;
            for at in 0..cursor.count(2)? {
                let skipped = cursor.number()?;
                let len = cursor.number()?;
                let start = end.saturating_add(skipped);
                end = start.saturating_add(len);
                // Adjacent ranges would be a second encoding of the same set.
                let is_next = len > 0 && (at == 0 || skipped > 0) && end <= limit;
                in_range(is_next, "range of ids of a view", end, limit)?;
                ids.insert_range(start..end);
            }
            ids
        }
        kind => return Err(out_of_range("kind of the set of a view", kind, RANGES.into()).into()),
    };
    let found = ids.count();
    in_range(found == count && count > 0, "number of samples of a view", found, count)?;
    Ok(ids)
}

/// Checks that a view's name is valid.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let is_bad = |c: char| c.is_control() || matches!(c, ':' | ',' | '=' | '/');
    if name.is_empty() || name.len() > MAX_NAME || name.contains(is_bad) || name.trim() != name {
        return Err(format!(
            "a view has a name of 1 to {MAX_NAME} bytes, without `:`, `,`, `=`, `/` and control characters, and \
             {name:?} is none"
        ));
    }
    Ok(())
}

/// Bytes of the header.
pub const VIEW_HEADER_BYTES: usize = 64;

/// Offset of the checksum in the header.
const CRC_OFFSET: usize = 60;
/// The first bytes of the header.
const MAGIC: [u8; 8] = *b"dlfsview";
/// The version of the format.
const VERSION: u16 = 1;
/// The name of the file in errors.
const WHAT: &str = "file of views";

/// The kind of a set that is a bitmap.
const BITS: u8 = 0;
/// The kind of a set that is a list of ranges.
const RANGES: u8 = 1;

/// Maximum bytes of the name of a view.
const MAX_NAME: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8], limit: u64) -> Result<ViewFile> {
        ViewFile::read(bytes, (Uuid([7; 16]), Generation(3), limit))
    }

    fn named(name: &str, limit: u64, ids: &[u64]) -> NamedView {
        let mut set = IdSet::new(limit);
        for id in ids {
            set.insert(*id);
        }
        let view = View::new(Uuid([7; 16]), Generation(3), set, 1);
        NamedView { name: name.into(), made: format!("{} ids", ids.len()), view }
    }

    #[test]
    fn the_header_lies_as_the_table_says() {
        let file = ViewFile::new(vec![named("train", 100, &[0, 1, 2, 99])]).unwrap();
        let bytes = file.to_bytes();
        assert_eq!(&bytes[..12], b"dlfsview\x01\0\x01\0");
        assert_eq!((&bytes[16..32], bytes[32], bytes[40]), (&[7; 16][..], 3, 100));
        assert_eq!(&bytes[64..], b"\x05train\x054 ids\x01\x04\x01\x02\0\x03\x60\x01");
        assert_eq!(bytes[48] as usize, bytes.len() - 64);
        assert_eq!(ViewFile::len_of(&bytes[..64]).unwrap(), bytes.len() as u64);
        // Every second id: a bitmap is shorter than ranges.
        let ids: Vec<u64> = (0..100).step_by(2).collect();
        let bytes = ViewFile::new(vec![named("even", 100, &ids)]).unwrap().to_bytes();
        assert_eq!(&bytes[bytes.len() - 15..], b"\x32\0UUUUUUUUUUUU\x05");
    }

    #[test]
    fn views_are_found_by_name_and_names_are_checked() {
        let one = || named("train", 10, &[1]);
        assert!(ViewFile::new(vec![]).is_err() && ViewFile::new(vec![one(), one()]).is_err());
        assert!(ViewFile::new(vec![one(), named("val", 11, &[1])]).is_err(), "another generation");
        for name in ["", "a:b", "a\nb", " a", &"x".repeat(256)] {
            assert!(ViewFile::new(vec![named(name, 10, &[1])]).is_err(), "{name}");
        }
        let file = ViewFile::new(vec![one(), named("val", 10, &[2])]).unwrap();
        assert_eq!(file.view(Some("val")).unwrap().view.ids.iter().collect::<Vec<_>>(), [2]);
        assert!(file.view(None).unwrap_err().to_string().contains("train, val"));
        assert!(file.view(Some("test")).unwrap_err().to_string().contains("called test"));
    }

    proptest! {
        #[test]
        fn a_file_reads_back_equal_and_no_changed_bit_passes(
            limit in 1u64..2000, ids in prop::collection::btree_set(0u64..2000, 1..100),
            runs in prop::collection::vec((0u64..2000, 1u64..400), 1..4),
            bit: prop::sample::Index, cut: prop::sample::Index,
        ) {
            let mut sets = [IdSet::new(limit), IdSet::new(limit)];
            sets[0].insert(0);
            for id in ids.iter().filter(|id| **id < limit) {
                sets[0].insert(*id);
            }
            runs.iter().filter(|run| run.0 < limit).for_each(|(at, n)| sets[1].insert_range(*at..limit.min(at + n)));
            sets[1].insert(limit - 1);
            let views = sets.into_iter().zip(["one", "two"]).map(|(ids, name)| NamedView {
                name: name.into(),
                made: String::new(),
                view: View::new(Uuid([7; 16]), Generation(3), ids, 0),
            });
            let file = ViewFile::new(views.collect()).unwrap();
            let bytes = file.to_bytes();
            prop_assert_eq!(&read(&bytes, limit).unwrap(), &file);
            let mut changed = bytes.clone();
            let bit = bit.index(bytes.len() * 8);
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(read(&changed, limit).is_err());
            prop_assert!(read(&bytes[..cut.index(bytes.len())], limit).is_err());
        }

        /// The checksum is valid, as in a forged file, so that the body is decoded.
        #[test]
        fn any_body_is_read_or_refused(
            body in prop::collection::vec(any::<u8>(), 0..200), num_samples in 0u64..300, num_views in 0u16..4
        ) {
            let mut bytes = ViewFile::new(vec![named("a", 100, &[5])]).unwrap().to_bytes();
            bytes.truncate(VIEW_HEADER_BYTES);
            bytes[10..12].copy_from_slice(&num_views.to_le_bytes());
            bytes[40..48].copy_from_slice(&num_samples.to_le_bytes());
            bytes[48..56].copy_from_slice(&(body.len() as u64).to_le_bytes());
            let crc = crc32c_append(crc32c(&bytes[..CRC_OFFSET]), &body);
            bytes[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
            bytes.extend(body);
            if let Ok(file) = read(&bytes, num_samples) {
                prop_assert!(file.views().iter().all(|named| !named.view.is_empty()));
            }
        }
    }
}
