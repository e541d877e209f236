//! Checksums of the pieces of large samples, so that a range of a sample's bytes can be read and verified without the
//! rest.
//!
//! A record of more than [`PIECED_ABOVE_BYTES`] is divided into pieces of [`PIECE_BYTES`] from its first byte;
//! the last piece may be shorter. The checksums of the pieces are a column of the chunk's header (`kind::PIECES`): four
//! bytes for 256 KiB. A reader loads them only to read such a range.
//!
//! A reader verifies the checksums before use: combined, they must give the checksum of the record ([`whole`]), which
//! the directory holds. So a stale or misplaced header is detected.

use std::sync::LazyLock;

use dlfs_base::checksum::{Combination, crc32c_append, crc32c_combine};

/// Bytes of a piece.
pub const PIECE_BYTES: u32 = 256 << 10;

/// Records longer than this have checksums of their pieces.
pub const PIECED_ABOVE_BYTES: u32 = 1 << 20;

/// Number of piece checksums of a record of `len` bytes: 0 if the record is not longer than [`PIECED_ABOVE_BYTES`].
pub fn num_pieces(len: u32) -> usize {
    if len <= PIECED_ABOVE_BYTES { 0 } else { len.div_ceil(PIECE_BYTES) as usize }
}

/// Bytes of piece `index` of a record of `len` bytes.
///
/// # Panics
/// If there is no such piece.
pub fn piece_len(len: u32, index: usize) -> u32 {
    let start = index as u64 * u64::from(PIECE_BYTES);
    assert!(start < u64::from(len), "a piece of the record");
    (u64::from(len) - start).min(PIECE_BYTES.into()) as u32
}

/// The CRC32C of a record of `len` bytes whose pieces have the CRC32Cs `sums`; `None` if their number is wrong.
pub fn whole(sums: &[u32], len: u32) -> Option<u32> {
    if sums.len() != len.div_ceil(PIECE_BYTES) as usize {
        return None;
    }
    let each = sums.iter().enumerate();
    Some(each.fold(0, |crc, (index, &sum)| with_piece(crc, sum, piece_len(len, index))))
}

/// Extends `crc`, the CRC32C of a record so far, by a piece of `len` bytes with checksum `sum`.
fn with_piece(crc: u32, sum: u32, len: u32) -> u32 {
    static COMPLETE: LazyLock<Combination> = LazyLock::new(|| Combination::of(PIECE_BYTES.into()));
    match len {
        PIECE_BYTES => COMPLETE.combine(crc, sum),
        _ => crc32c_combine(crc, sum, len.into()),
    }
}

/// Computes the checksums of a record and its pieces, incrementally.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordSums {
    /// The checksums of complete pieces.
    complete: Vec<u32>,
    /// The incomplete piece so far: its checksum, and its length in bytes, which is 0 between two pieces.
    open: (u32, u32),
}

impl RecordSums {
    /// The checksums of `record`.
    pub fn of(record: &[u8]) -> RecordSums {
        let mut sums = RecordSums::default();
        sums.push(record);
        sums
    }

    /// Placeholders for the checksums of a record of `len` bytes: enough to compute the length of a header.
    pub fn unknown(len: u32) -> RecordSums {
        let open = len % PIECE_BYTES;
        RecordSums { complete: vec![0; (len / PIECE_BYTES) as usize], open: (0, open) }
    }

    /// Appends bytes of the record.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (crc, filled) = self.open;
            let (now, rest) = bytes.split_at(bytes.len().min((PIECE_BYTES - filled) as usize));
            self.open = (crc32c_append(crc, now), filled + now.len() as u32);
            if self.open.1 == PIECE_BYTES {
                self.complete.push(self.open.0);
                self.open = (0, 0);
            }
            bytes = rest;
        }
    }

    /// The CRC32C of the record. Combining two checksums may take microseconds; a record of one piece needs no
    /// combination.
    pub fn crc32c(&self) -> u32 {
        let complete = self.complete.iter().map(|&sum| (sum, PIECE_BYTES));
        let mut pieces = complete.chain(Some(self.open).filter(|(_, len)| *len > 0));
        let first = pieces.next().map_or(0, |(sum, _)| sum);
        pieces.fold(first, |crc, (sum, len)| with_piece(crc, sum, len))
    }

    /// The checksums of the pieces, also of a record that is not large.
    pub fn pieces(&self) -> impl Iterator<Item = u32> + '_ {
        let last = (self.open.1 > 0).then_some(self.open.0);
        self.complete.iter().copied().chain(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::checksum::crc32c;
    use proptest::prelude::*;

    #[test]
    fn only_large_records_have_pieces_and_the_last_one_may_be_short() {
        assert_eq!([0, 1, PIECED_ABOVE_BYTES].map(num_pieces), [0, 0, 0]);
        let large = PIECED_ABOVE_BYTES + 1;
        assert_eq!((num_pieces(large), piece_len(large, 4)), (5, 1));
        assert_eq!((num_pieces(u32::MAX), piece_len(u32::MAX, 16_383)), (16_384, PIECE_BYTES - 1));
    }

    proptest! {
        #[test]
        fn the_checksums_of_the_pieces_together_are_that_of_the_record(
            len in prop_oneof![Just(0), 1u32..10, PIECE_BYTES - 2..PIECE_BYTES + 3, 1_500_000u32..1_600_000],
            cuts in prop::collection::vec(1usize..400_000, 1..5), seed in any::<u8>(),
        ) {
            let record: Vec<u8> = (0..len).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ seed).collect();
            let mut sums = RecordSums::default();
            let mut rest = &record[..];
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (now, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                sums.push(now);
                rest = after;
            }
            let each: Vec<u32> = record.chunks(PIECE_BYTES as usize).map(crc32c).collect();
            prop_assert_eq!(sums.pieces().collect::<Vec<_>>(), each.clone());
            prop_assert_eq!(sums.crc32c(), crc32c(&record));
            prop_assert_eq!(whole(&each, len), Some(crc32c(&record)));
            prop_assert_eq!(sums.pieces().count(), RecordSums::unknown(len).pieces().count());
            prop_assert_eq!(whole(&[each, vec![0]].concat(), len), None);
        }
    }
}
