//! Origins: the object-store objects that an image was imported from.
//!
//! Each import from object stores adds a group; deleting samples removes nothing. A group is
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

use crate::format::FormatError;
use crate::format::cursor::{Cursor, put_number, put_string, utf8};
use crate::format::error::at_most;
use dlfs_base::units::Generation;

/// An object that an image was imported from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The generation that it was imported into.
    pub generation: Generation,
    /// Address of the object, without secrets.
    pub address: String,
    /// Length of the object.
    pub len_bytes: u64,
    /// Entity tag of the object, if the store gave one.
    pub etag: Option<String>,
}

/// Collects the objects of one import, in encoded form.
#[derive(Debug, Clone, Default)]
pub struct OriginsBuilder {
    count: u64,
    bytes: Vec<u8>,
    /// The address that was added last.
    last: String,
}

impl OriginsBuilder {
    /// Adds an object. Add objects in ascending order of addresses to save space.
    pub fn push(&mut self, address: &str, len_bytes: u64, etag: Option<&str>) {
        let shared = self.last.bytes().zip(address.bytes()).take_while(|(a, b)| a == b).count();
        put_number(&mut self.bytes, shared as u64);
        put_string(&mut self.bytes, &address.as_bytes()[shared..]);
        put_number(&mut self.bytes, len_bytes);
        put_tag(&mut self.bytes, etag);
        self.last.truncate(0);
        self.last.push_str(address);
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
        .expect("these are its own bytes");
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
            visit(Origin {
                generation,
                address: utf8(WHAT, &address)?.to_owned(),
                len_bytes,
                etag,
            })?;
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

const WHAT: &str = "origins";
/// Limit of an address, longer than any valid one: keys have at most 1,024 bytes, each of which may be escaped.
const MAX_ADDRESS_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

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
