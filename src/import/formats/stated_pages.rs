//! What pages of Parquet state to have when they are decompressed: their decoder makes room for it, whatever it is, so
//! it is compared with what is allowed before the decoder has the page.
//!
//! A page begins with a header in Thrift's compact protocol, of which the first three fields are the type, the length
//! when it is decompressed and the length that follows, each as `15` and a number in zigzag.

use std::io::{Chain, Cursor, Read};

use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use super::stated_buffers::has_memory;
use crate::import::sources::expansion::{Expands, Expansion};

/// A file whose pages are looked at.
pub(super) struct StatedPages<F>(pub(super) F, pub(super) Expansion);

impl<F: Length> Length for StatedPages<F> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<F: ChunkReader> ChunkReader for StatedPages<F> {
    type T = Chain<Cursor<Vec<u8>>, F::T>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let (mut from, mut head) = (self.0.get_read(start)?, Vec::new());
        from.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
        if let Some(len) = len_when_decompressed(&head) {
            let made = self.1.make(Expands::Packed, len).and_then(|()| has_memory(len));
            made.map_err(|reason| ParquetError::General(reason.to_string()))?;
        }
        Ok(Cursor::new(head).chain(from))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<bytes::Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// What the header of a page states; `None`: it is none.
fn len_when_decompressed(head: &[u8]) -> Option<u64> {
    let mut head = head.iter();
    let mut number = || {
        let is_number = *head.next()? == INTEGER_IN_NEXT_FIELD;
        let mut number = 0;
        for nth in 0..5 {
            let byte = *head.next().filter(|_| is_number)?;
            number |= u64::from(byte & 0x7f) << (7 * nth);
            if byte < 0x80 {
                return (number % 2 == 0).then_some(number / 2);
            }
        }
        None
    };
    let [_, decompressed, _] = [number()?, number()?, number()?];
    Some(decompressed)
}

/// As long as three fields of 32 bits are.
const HEAD_BYTES: u64 = 18;
const INTEGER_IN_NEXT_FIELD: u8 = 0x15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_of_a_header_are_found_and_others_are_none() {
        assert_eq!(len_when_decompressed(&[0x15, 0, 0x15, 0x80, 0x08, 0x15, 2, 0x2c]), Some(512));
        let most = [0x15, 0, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0x15, 2];
        assert_eq!(len_when_decompressed(&most), Some(0x7fff_ffff));
        for other in
            [&b"\x15\0\x15\x01\x15\x02"[..], b"\x15\0\x15", b"PAR1", b"\x1c\0\x15\x02\x15\x02"]
        {
            assert_eq!(len_when_decompressed(other), None, "{other:?}");
        }
    }
}
