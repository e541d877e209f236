//! Reads and writes bytes on media: LEB128 numbers, optional labels, length-prefixed bytes, and structures of fixed
//! length with a checksum.

use zerocopy::FromBytes;

use crate::format::FormatError;
use crate::format::error::{enough, in_range};
use crate::format::geometry::FORMAT_VERSION;
use dlfs_base::checksum::crc32c;

/// Reads values from the front of untrusted bytes. A read past their end returns `Truncated`.
pub struct Cursor<'a> {
    /// The structure that the bytes belong to, for errors.
    what: &'static str,
    /// The bytes that are not read yet.
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`, which belong to structure `what`.
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { what, rest: bytes }
    }

    /// The number of bytes that are not read yet.
    #[expect(
        clippy::len_without_is_empty,
        reason = "for this workspace alone, which asks how much is left"
    )]
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// Reads `len` bytes.
    pub fn bytes(&mut self, len: u64) -> Result<&'a [u8], FormatError> {
        enough(self.what, len, self.rest.len())?;
        let (bytes, rest) = self.rest.split_at(len as usize);
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads a LEB128 number of at most 64 bits. Accepts only the shortest form, so that each value has one encoding.
    #[inline]
    pub fn number(&mut self) -> Result<u64, FormatError> {
        match self.rest.split_first() {
            Some((&byte, rest)) if byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(byte))
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> Result<u64, FormatError> {
        let mut value = 0u64;
        let mut shift = 0;
        loop {
            let Some((&byte, rest)) = self.rest.split_first() else {
                return Err(FormatError::Truncated { what: self.what, expected: 1, found: 0 });
            };
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            let bad = (shift == 63 && bits > 1) || (byte == 0 && shift > 0);
            in_range(shift <= 63 && !bad, self.what, bits, u64::MAX)?;
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    /// Reads a count of items that take at least `least` bytes each. Rejects a count that the remaining input cannot
    /// hold, so that a malformed count cannot cause a huge allocation.
    pub fn count(&mut self, least: usize) -> Result<usize, FormatError> {
        let count = self.number()?;
        enough(self.what, count.saturating_mul(least as u64), self.rest.len())?;
        Ok(count as usize)
    }

    /// Reads length-prefixed bytes.
    #[inline]
    pub fn string(&mut self) -> Result<&'a [u8], FormatError> {
        let len = self.number()?;
        self.bytes(len)
    }
}

/// Appends `value` as LEB128.
pub fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `bytes` with a length prefix.
pub fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads a structure from the front of `bytes`. It begins with `magic` and the version, and ends with its CRC32C.
///
/// # Errors
/// `Truncated`, `Magic`: the structure is not there. `Checksum`: it is damaged. `Version`: it has another format
/// version.
pub(crate) fn read_sealed<T: FromBytes>(
    what: &'static str,
    magic: [u8; 8],
    bytes: &[u8],
) -> Result<T, FormatError> {
    enough(what, size_of::<T>() as u64, bytes.len())?;
    let bytes = &bytes[..size_of::<T>()];
    if !bytes.starts_with(&magic) {
        return Err(FormatError::Magic { what });
    }
    let (sealed, crc) = bytes.split_last_chunk().expect("a structure with a checksum");
    check_crc32c(what, u32::from_le_bytes(*crc), sealed)?;
    let found = u16::from_le_bytes([bytes[8], bytes[9]]);
    if found != FORMAT_VERSION {
        return Err(FormatError::Version { what, found, known: FORMAT_VERSION });
    }
    Ok(T::read_from_bytes(bytes).expect("as many bytes as it has"))
}

/// Checks that `bytes` of structure `what` have the CRC32C `expected`.
pub(crate) fn check_crc32c(
    what: &'static str,
    expected: u32,
    bytes: &[u8],
) -> Result<(), FormatError> {
    let found = crc32c(bytes);
    if expected == found { Ok(()) } else { Err(FormatError::Checksum { what, expected, found }) }
}

/// `bytes` of structure `what` as a string. The error names the first byte that is not UTF-8.
pub(crate) fn utf8<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a str, FormatError> {
    std::str::from_utf8(bytes)
        .map_err(|error| FormatError::NotUtf8 { what, at: error.valid_up_to() as u64 })
}

/// Bytes of `value` as LEB128.
pub(crate) fn number_len(value: u64) -> usize {
    (u64::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Encodes an optional label as an unsigned number: see `crate::format::table::kind::LABELS`.
pub fn label_code(label: Option<i64>) -> u64 {
    // Neither multiplication overflows, since `i64::MIN` is not a valid label.
    label.map_or(0, |label| match label {
        0.. => 2 * label as u64 + 1,
        _ => 2 * label.unsigned_abs(),
    })
}

/// The inverse of [`label_code`].
pub fn label_of(code: u64) -> Option<i64> {
    match (code, code / 2) {
        (0, _) => None,
        (_, half) if code % 2 == 1 => Some(half as i64),
        (_, half) => Some((half as i64).wrapping_neg()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_reads_back_and_longer_encodings_are_refused() {
        for value in (0..64).map(|bit| 1u64 << bit).chain([0, 127, 128, 300, u64::MAX]) {
            let mut bytes = Vec::new();
            put_number(&mut bytes, value);
            assert_eq!(Cursor::new("test", &bytes).number(), Ok(value));
            *bytes.last_mut().unwrap() |= 0x80;
            bytes.push(0);
            assert!(Cursor::new("test", &bytes).number().is_err(), "{value} in a longer form");
        }
        assert!(Cursor::new("test", &[0xff; 10]).number().is_err(), "more than 64 bits");
        assert!(Cursor::new("test", &[0x80]).number().is_err(), "cut short");
    }

    #[test]
    fn a_count_larger_than_the_bytes_behind_it_is_refused_before_anything_is_allocated() {
        let mut bytes = Vec::new();
        put_number(&mut bytes, 1 << 40);
        bytes.extend([0; 100]);
        assert!(Cursor::new("test", &bytes).count(1).is_err());
        assert!(Cursor::new("test", &[0xff; 9]).string().is_err());
    }
}
