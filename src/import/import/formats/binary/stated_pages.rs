//! Checks the decompressed lengths that Parquet pages state. The decoder allocates any stated length, so each length is
//! compared with the allowed expansion before the decoder gets the page.
//!
//! A page begins with a header in Thrift's compact protocol. Its first three fields are the type, the decompressed
//! length and the stored length, each as the byte `15` and a number in zigzag encoding.

use std::io::{Chain, Cursor, Read};

use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use super::stated_buffers::has_memory;
use crate::import::sources::expansion::{Expands, Expansion};

/// A file whose pages are checked.
#[derive(Clone)]
pub(super) struct StatedPages<F>(pub(super) F, pub(super) Expansion);

impl<F: Length> Length for StatedPages<F> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<F: ChunkReader> ChunkReader for StatedPages<F> {
    type T = Chain<Cursor<Vec<u8>>, F::T>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let mut from = self.0.get_read(start)?;
        let mut head = Vec::new();
        from.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
        self.check(lens(&head))?;
        Ok(Cursor::new(head).chain(from))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<bytes::Bytes> {
        let bytes = self.0.get_bytes(start, length)?;
        // With an offset index, the bytes begin with the page's header. Otherwise they are the data of a page, which
        // may look like a header by chance; the length that it seems to state is then counted, too.
        let lens = lens(&bytes[..bytes.len().min(HEAD_BYTES as usize)]);
        self.check(lens.filter(|(_, packed)| *packed <= length as u64))?;
        Ok(bytes)
    }
}

impl<F> StatedPages<F> {
    fn check(&self, lens: Option<(u64, u64)>) -> ParquetResult<()> {
        let Some((len, _)) = lens else { return Ok(()) };
        let made = self.1.make(Expands::Packed, len).and_then(|()| has_memory(len));
        made.map_err(|reason| ParquetError::General(reason.to_string()))
    }
}

/// Parses a page's header: the decompressed length and the stored length. `None`: this is not a header.
fn lens(head: &[u8]) -> Option<(u64, u64)> {
    let mut head = head.iter();
    // As in the decoder, numbers may be encoded longer than necessary, and only the lowest 32 bits count.
    let mut number = || {
        if *head.next()? != INTEGER_IN_NEXT_FIELD {
            return None;
        }
        let mut number = 0;
        let mut shift = 0;
        loop {
            let byte = *head.next()?;
            number |= u64::from(byte & 0x7f).wrapping_shl(shift);
            shift += 7;
            if byte < 0x80 {
                let signed = (number >> 1) as i64 ^ -((number & 1) as i64);
                return u64::try_from(signed as i32).ok();
            }
        }
    };
    let [_, len, packed] = [number()?, number()?, number()?];
    Some((len, packed))
}

/// Most bytes of three such fields with numbers of up to 64 bits.
const HEAD_BYTES: u64 = 33;
const INTEGER_IN_NEXT_FIELD: u8 = 0x15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_of_a_header_are_found_and_others_are_none() {
        assert_eq!(lens(&[0x15, 0, 0x15, 0x80, 0x08, 0x15, 2, 0x2c]), Some((512, 1)));
        let most = [0x15, 0, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0x15, 2];
        assert_eq!(lens(&most), Some((0x7fff_ffff, 1)));
        for other in
            [&b"\x15\0\x15\x01\x15\x02"[..], b"\x15\0\x15", b"PAR1", b"\x1c\0\x15\x02\x15\x02"]
        {
            assert_eq!(lens(other), None, "{other:?}");
        }
    }
}
