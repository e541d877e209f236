//! Checks the lengths that headers of Parquet pages state. The decoder allocates any stated length, so each is compared
//! with the allowed expansion before the decoder gets the header. The headers also tell where the data pages are, since
//! many files have no offset index.
//!
//! A header is a struct in Thrift's compact protocol. Each of its fields is a byte, with the step to the field's number
//! in the upper half and the type in the lower one, and then the value; a zero byte ends the struct.
//!
//! | field of the header  | value                                                                               |
//! |----------------------|-------------------------------------------------------------------------------------|
//! | 1                    | the page's type                                                                     |
//! | 2, 3                 | its decompressed length, its stored length                                          |
//! | 4                    | its checksum                                                                        |
//! | 5, 6, 7, 8           | one of: a struct for a data page, an index, a dictionary, a data page of version 2  |
//! | 5, 7, 8: field 1     | the number of the page's values                                                     |
//!
//! The decoder goes by the fields' numbers alone, and takes the last value of a field that comes twice. Only headers in
//! the form of all known writers pass, with ascending fields of the right types: the decoder reads the same values from
//! them as this check.

use std::io::{self, Cursor, Read, Take};

use parquet::errors::Result as ParquetResult;
use parquet::file::reader::{ChunkReader, Length};

use super::stated_buffers::has_memory;
use crate::import::formats::input::FoundPages;
use crate::import::sources::expansion::{Expands, Expansion};

/// A Parquet file whose page headers are checked.
#[derive(Clone)]
pub(super) struct StatedPages<F> {
    pub(super) from: F,
    pub(super) expansion: Expansion,
    /// Set if an offset index says where the pages are. A header is then read together with its page's data, and
    /// otherwise alone.
    pub(super) is_indexed: bool,
    /// Receives offset and number of values of the data pages whose headers are read alone, up to [`MOST_PAGES`];
    /// `None`: they are not needed.
    pub(super) found: Option<FoundPages>,
}

impl<F: Length> Length for StatedPages<F> {
    fn len(&self) -> u64 {
        self.from.len()
    }
}

impl<F: ChunkReader> ChunkReader for StatedPages<F> {
    type T = CheckedHeader<F::T>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let from = self.from.get_read(start)?;
        let expansion = self.expansion.clone();
        let found = self.found.clone();
        Ok(CheckedHeader { from, start, expansion, found, header: None })
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<bytes::Bytes> {
        let bytes = self.from.get_bytes(start, length)?;
        if self.is_indexed {
            checked(&bytes[..], &self.expansion)?;
        }
        Ok(bytes)
    }
}

/// A reader of a page that begins with its header. The header is checked as a whole when the first byte is read, and
/// not before: the decoder also opens places where data begin, and then reads nothing.
pub(super) struct CheckedHeader<R> {
    from: R,
    /// Offset of the header.
    start: u64,
    expansion: Expansion,
    found: Option<FoundPages>,
    /// The checked header, which the decoder reads; `None` before the first read.
    header: Option<Cursor<Vec<u8>>>,
}

impl<R: Read> Read for CheckedHeader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let header = match &mut self.header {
            Some(header) => header,
            none => {
                let Walk { read, values, .. } = checked(&mut self.from, &self.expansion)?;
                if let (Some(found), Some(values)) = (&self.found, values) {
                    let mut found = found.lock();
                    if found.len() < MOST_PAGES {
                        found.insert(self.start, values);
                    }
                }
                none.insert(Cursor::new(read))
            }
        };
        match header.read(into)? {
            0 => self.from.read(into),
            len => Ok(len),
        }
    }
}

/// Reads a header, and checks that the decoder may allocate what it states.
fn checked<R: Read>(from: R, expansion: &Expansion) -> io::Result<Walk<R>> {
    let mut walk = Walk::new(from);
    walk.fields(HEADER)?;
    let made = expansion.make(Expands::Packed, walk.stated).and_then(|()| has_memory(walk.stated));
    made.map_err(io::Error::other)?;
    Ok(walk)
}

/// A walk through the bytes of a header.
#[derive(Debug)]
struct Walk<R> {
    /// The rest of the page, up to the limit of a header.
    from: Take<R>,
    /// The bytes so far.
    read: Vec<u8>,
    /// The bytes that the decoder allocates.
    stated: u64,
    /// The number of values of a data page; `None`: it is another page.
    values: Option<u64>,
}

impl<R: Read> Walk<R> {
    fn new(from: R) -> Walk<R> {
        Walk { from: from.take(MOST_HEADER_BYTES), read: Vec::new(), stated: 0, values: None }
    }

    /// Reads a struct to its end. `of` tells which: [`HEADER`], the number of a field of the header that is a struct,
    /// or [`INNER`].
    fn fields(&mut self, of: u32) -> io::Result<()> {
        let mut field = 0;
        loop {
            let byte = self.byte()?;
            let step = byte >> 4;
            let kind = byte & 0xf;
            if kind == STOP {
                return Ok(());
            }
            field += u32::from(step);
            if step == 0 || !is_right(of, field, kind) {
                return Err(other_form());
            }
            match kind {
                TRUE | FALSE => {}
                I16 | I32 | I64 => {
                    let number = self.number()?;
                    self.note(of, field, number);
                }
                BINARY => {
                    let len = self.number()?;
                    self.from.by_ref().take(len).read_to_end(&mut self.read)?;
                }
                STRUCT if of != INNER => self.fields(if of == HEADER { field } else { INNER })?,
                _ => return Err(other_form()),
            }
        }
    }

    /// Notes a number that makes the decoder allocate, and the number of a data page's values.
    fn note(&mut self, of: u32, field: u32, zigzag: u64) {
        // As in the decoder, only the lowest 32 bits count. It refuses negative lengths itself.
        let number = ((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)) as i32;
        let number = u64::try_from(number).unwrap_or(0);
        match (of, field) {
            (HEADER, 2) => self.stated = self.stated.max(number),
            (DATA_PAGE | DATA_PAGE_V2, 1) => self.values = Some(number),
            (DICTIONARY, 1) => self.stated = self.stated.max(number * VALUE_BYTES),
            _ => {}
        }
    }

    /// Reads a number, which may be encoded longer than necessary, as in the decoder.
    fn number(&mut self) -> io::Result<u64> {
        let mut number = 0;
        let mut shift = 0_u32;
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).wrapping_shl(shift);
            if byte < 0x80 {
                return Ok(number);
            }
            shift += 7;
        }
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.from.read_exact(&mut byte)?;
        self.read.extend(byte);
        Ok(byte[0])
    }
}

/// Returns whether the field of the struct `of` has the type as which the decoder reads it. It skips other fields by
/// their types.
fn is_right(of: u32, field: u32, kind: u8) -> bool {
    let integers = match of {
        HEADER | DATA_PAGE => 4,
        DICTIONARY => 2,
        DATA_PAGE_V2 => 6,
        _ => 0,
    };
    if field <= integers {
        kind == I32
    } else {
        of != HEADER || field > DATA_PAGE_V2 || kind == STRUCT
    }
}

fn other_form() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the header of a page has a form that no writer uses",
    )
}

/// The structs: the header, the fields of it that are structs, by number, and a struct within one of these.
const HEADER: u32 = 0;
const DATA_PAGE: u32 = 5;
const DICTIONARY: u32 = 7;
const DATA_PAGE_V2: u32 = 8;
const INNER: u32 = u32::MAX;
/// Types of fields. Page headers have no others.
const STOP: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const STRUCT: u8 = 12;
/// Limit of a header, as in other readers: its statistics may have long values.
const MOST_HEADER_BYTES: u64 = 16 << 20;
/// The most bytes that the decoder allocates for a value of a dictionary, before it looks at the values.
const VALUE_BYTES: u64 = 16;
/// The most pages of a file that are noted: one has about 1 MiB.
const MOST_PAGES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A header, then a byte that is none of it: a data page of 512 bytes with statistics, and a crc in front of them.
    const PAGE: &[u8] =
        b"\x15\0\x15\x80\x08\x15\x02\x15\x01\x1c\x15\x0e\x15\0\x15\x06\x15\x06\x1c\x18\x02ab\x16\x02\x41\0\0\0+";
    /// A dictionary of 1,000 values in 512 bytes.
    const OF_DICTIONARY: &[u8] = b"\x15\x04\x15\x80\x08\x15\x02\x4c\x15\xd0\x0f\x15\0\x12\0\0+";
    const OF_VERSION_2: &[u8] =
        b"\x15\x06\x15\xfe\xff\xff\xff\x0f\x15\x02\x5c\x15\x02\x15\0\x15\x02\x15\0\x15\0\x15\0\x12\0\0+";

    fn walked(bytes: &[u8]) -> io::Result<(usize, u64)> {
        let mut walk = Walk::new(bytes);
        walk.fields(HEADER)?;
        assert!(bytes.starts_with(&walk.read));
        Ok((walk.read.len(), walk.stated))
    }

    #[test]
    fn headers_end_where_the_decoder_ends_and_state_what_it_allocates() {
        for (bytes, stated) in
            [(PAGE, 512), (OF_DICTIONARY, 1000 * VALUE_BYTES), (OF_VERSION_2, 0x7fff_ffff)]
        {
            assert_eq!(walked(bytes).unwrap(), (bytes.len() - 1, stated), "{bytes:x?}");
            for len in 0..bytes.len() - 1 {
                walked(&bytes[..len]).unwrap_err();
            }
        }
    }

    #[test]
    fn headers_that_the_decoder_could_read_otherwise_are_refused() {
        for other in [
            &b"\x05\x02\0\x15\x80\x08\x15\x02\0"[..], // a field by its number
            b"\x15\0\x15\x80\x08\x15\x02\x05\x04\x02\0", // a length again
            b"\x15\0\x11\x15\x02\0",                  // a length of another type
            b"\x15\0\x15\x02\x15\x02\x25\x02\0",      // a number in place of a struct
            b"\x15\x04\x15\x02\x15\x02\x4c\x11\x15\0\0\0", // a count of another type
            b"\x15\0\x15\x02\x15\x02\x6c\x1c\x1c\0\0\0\0", // structs in structs
            b"\x15\0\x15\x02\x15\x02\x69\xf1\xff\xff\xff\xff\x07\0", // a list
        ] {
            let told = walked(other).unwrap_err();
            assert_eq!(told.kind(), io::ErrorKind::InvalidData, "{other:x?}");
        }
    }

    #[test]
    fn headers_are_checked_when_they_are_read_and_data_are_not() {
        let file = |bytes, is_indexed| {
            let from = bytes::Bytes::from_static(bytes);
            StatedPages { from, expansion: Expansion::default(), is_indexed, found: None }
        };
        let mut read = Vec::new();
        file(PAGE, false).get_read(0).unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, PAGE);
        let mut too_long = file(OF_VERSION_2, false).get_read(0).expect("nothing is read yet");
        too_long.read_to_end(&mut read).unwrap_err();
        file(OF_VERSION_2, false).get_bytes(0, OF_VERSION_2.len()).expect("these are data");
        file(PAGE, true).get_bytes(0, PAGE.len()).unwrap();
        file(OF_VERSION_2, true).get_bytes(0, OF_VERSION_2.len()).unwrap_err();
    }

    #[test]
    fn headers_with_any_byte_changed_are_errors_or_state_no_more_than_is_allowed() {
        for header in [PAGE, OF_DICTIONARY, OF_VERSION_2] {
            for (at, value) in
                (0..header.len()).flat_map(|at| (0..=255).map(move |value| (at, value)))
            {
                let mut bytes = header.to_vec();
                bytes[at] = value;
                let allowed = checked(&bytes[..], &Expansion::default());
                let Ok((len, stated)) = walked(&bytes) else {
                    allowed.unwrap_err();
                    continue;
                };
                assert_eq!(allowed.is_ok(), stated <= 256 << 20, "byte {at}: {value:x}");
                assert!(allowed.is_err() || allowed.unwrap().read == bytes[..len]);
            }
        }
    }

    #[test]
    fn data_pages_of_both_versions_are_noted_with_their_values_and_others_are_not() {
        for (bytes, values) in [(PAGE, Some(7)), (OF_VERSION_2, None), (OF_DICTIONARY, None)] {
            let found = FoundPages::default();
            let from = bytes::Bytes::from_static(bytes);
            let expansion = Expansion::default();
            let found_in = Some(FoundPages::clone(&found));
            let file = StatedPages { from, expansion, is_indexed: false, found: found_in };
            let read = file.get_read(0).unwrap().read_to_end(&mut Vec::new());
            assert_eq!(read.is_ok(), bytes != OF_VERSION_2, "too long");
            assert_eq!(found.lock().get(&0).copied(), values);
        }
        let mut walk = Walk::new(OF_VERSION_2);
        walk.fields(HEADER).unwrap();
        assert_eq!(walk.values, Some(1));
    }
}
