//! The encoding of tar headers: the block of 512 bytes in front of each member, and the records of extended PAX
//! headers.
//!
//! A header that GNU tar and Python's tarfile would read differently is invalid.

use std::ops::Range;

use super::bad::BadReason;

/// The fields of a header that an import uses.
///
/// | bytes    | field        | meaning                                              |
/// |----------|--------------|------------------------------------------------------|
/// | 0..100   | `name`       | name, cut at the first NUL                           |
/// | 124..136 | `len_bytes`  | payload length, octal, or base 256 if bit 7 is set   |
/// | 148..156 | checksum     | sum of all bytes, these eight counted as spaces      |
/// | 156      | `kind`       | type flag                                            |
/// | 157..257 | `link`       | link target                                          |
/// | 257..263 | magic        | `ustar\0`: the prefix is used; GNU's has spaces      |
/// | 345..500 | prefix       | folder of `name`, without the slash between them     |
/// | 482      | `goes_on`    | sparse file in GNU's old form: a block of its map follows |
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) len_bytes: u64,
    pub(super) kind: u8,
    pub(super) link: Vec<u8>,
    pub(super) goes_on: bool,
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// `Syntax`: the header is invalid, or tools read it differently.
    pub(super) fn parse(block: &[u8; BLOCK_BYTES]) -> Result<Header, BadReason> {
        check_sum(block)?;
        let mut name = until_nul(&block[..100]).to_vec();
        let magic = &block[257..263];
        let prefix = until_nul(&block[345..500]);
        let kind = block[156];
        // In GNU's old sparse format the map is at the prefix's place.
        let has_prefix = !prefix.is_empty() && kind != b'S';
        if has_prefix {
            // Python's tarfile reads these bytes as a prefix; GNU tar does not, and writes them only in dumps.
            let what = "a header with a name's prefix, of a format that has none";
            BadReason::Syntax(what).unless(magic == b"ustar\0")?;
            name = [prefix, b"/", &name].concat();
        }
        let len_bytes =
            number(&block[124..136]).ok_or(BadReason::Syntax("a length is not a number"))?;
        // These fields are unused here, but Python's tarfile ends a listing if one is not a number.
        let others = [100..108, 108..116, 116..124, 136..148, 329..337, 337..345];
        let is_well = |at: Range<usize>| block[at.start] == 0xff || number(&block[at]).is_some();
        BadReason::Syntax("a header with an invalid number")
            .unless(others.into_iter().all(is_well))?;
        let link = until_nul(&block[157..257]).to_vec();
        let goes_on = kind == b'S' && block[482] != 0;
        Ok(Header { name, len_bytes, kind, link, goes_on })
    }
}

/// Returns whether a file that begins with these bytes is a tar archive: its header has a valid checksum or the
/// magic.
pub(crate) fn looks_like(head: &[u8]) -> bool {
    head.first_chunk::<BLOCK_BYTES>().is_some_and(|block| {
        block[257..262] == *b"ustar" || block[0] != 0 && check_sum(block).is_ok()
    })
}

/// Returns whether all bytes are zero.
pub(super) fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|&byte| byte == 0)
}

/// Verifies the checksum of a header.
pub(super) fn check_sum(block: &[u8; BLOCK_BYTES]) -> Result<(), BadReason> {
    let counted = |at: usize| if (148..156).contains(&at) { b' ' } else { block[at] };
    let unsigned: u64 = (0..BLOCK_BYTES).map(|at| u64::from(counted(at))).sum();
    // Old writers sum signed characters.
    let signed: i64 = (0..BLOCK_BYTES).map(|at| i64::from(counted(at) as i8)).sum();
    let stored =
        number(&block[148..156]).ok_or(BadReason::Syntax("no header where one should be"))?;
    let is_right = stored == unsigned || i64::try_from(stored) == Ok(signed);
    BadReason::Syntax("a header's checksum differs").unless(is_right)
}

/// Parses a number field: octal with surrounding spaces or NULs, or base 256 with the top bit set.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        // 0xff begins a negative number; other first bytes are invalid.
        let mut value = (field[0] == 0x80).then_some(0_u64)?;
        for &byte in &field[1..] {
            value = value.checked_mul(256)?.checked_add(u64::from(byte))?;
        }
        return Some(value);
    }
    let digits = until_nul(field).trim_ascii();
    digits.iter().try_fold(0_u64, |value, &digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// The bytes before the first NUL.
pub(super) fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or(field)
}

/// Parses a number of digits only, without sign or whitespace.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Splits the first PAX record, `length key=value\n`, where the length includes itself, from the others. Returns key,
/// value and the other records; `None`: the record is broken.
pub(super) fn pax_record(records: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = records.iter().take(MAX_DIGITS).position(|&byte| byte == b' ')?;
    let len = usize::try_from(decimal(&records[..space])?).ok()?;
    if len <= space + 1 || len > records.len() {
        return None;
    }
    let (record, rest) = records.split_at(len);
    let record = record[space + 1..].strip_suffix(b"\n")?;
    let equals = record.iter().position(|&byte| byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], rest))
}

/// Length of a header, and the unit in which archives are padded.
pub(super) const BLOCK_BYTES: usize = 512;
/// Maximum digits of a PAX record's length.
const MAX_DIGITS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256_and_nothing_else() {
        assert_eq!(number(b"0000017\0"), Some(0o17));
        assert_eq!(number(b"   17 \0\0"), Some(0o17));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"\x80\0\0\0\0\0\0\0\0\0\x01\x02"), Some(258));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff"), None);
        assert_eq!(number(b"0000089\0"), None);
        assert_eq!(number(b"\x80\x01\0\0\0\0\0\0\0\0\0\0"), None);
    }

    #[test]
    fn pax_records_must_add_up() {
        assert_eq!(pax_record(b"8 a=b\nxyz"), None);
        assert_eq!(pax_record(b"6 a=b\nxyz"), Some((&b"a"[..], &b"b"[..], &b"xyz"[..])));
        for broken in [&b"6 a=b"[..], b"0 a=b\n", b"x a=b\n", b"6 a+b\n", b"99 a=b\n", b" 6 a=b\n"]
        {
            assert_eq!(pax_record(broken), None, "{broken:?}");
        }
    }
}
