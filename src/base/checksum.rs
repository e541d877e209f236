//! CRC32C (Castagnoli): the checksum of the media format, of NVMe/TCP digests and of TFRecord.
//!
//! Uses carry-less multiplication at the widest vector length that the processor supports. The result does
//! not depend on the processor.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC32C of `bytes` appended to data whose CRC32C is `crc`.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // The internal register is the complement of the checksum so far.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32 // the algorithm has 32 bits
}

/// CRC32C of the concatenation of two parts: the first has the CRC32C `first`, the second `second` and
/// `len` bytes.
pub fn crc32c_combine(first: u32, second: u32, len: u64) -> u32 {
    let first = u64::from(first);
    let second = u64::from(second);
    crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, first, second, len) as u32 // 32 bits
}

/// [`crc32c_combine`] for second parts of one fixed length, some hundred times as fast.
pub struct Combination(
    /// The contribution of each bit of the first CRC32C to the result.
    [u32; 32],
);

impl Combination {
    /// Prepares for second parts of `len` bytes. Costs a millisecond.
    pub fn of(len: u64) -> Combination {
        // The result is linear in the first CRC32C, so the contribution of each of its bits suffices.
        Combination(std::array::from_fn(|bit| crc32c_combine(1 << bit, 0, len)))
    }

    /// CRC32C of the concatenation of two parts: the first has the CRC32C `first`, the second `second`.
    pub fn combine(&self, first: u32, second: u32) -> u32 {
        let bits = self.0.iter().enumerate().filter(|(bit, _)| first >> bit & 1 == 1);
        bits.fold(second, |crc, (_, contribution)| crc ^ contribution)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn crc32c_gives_the_check_value_of_its_catalogue_in_one_piece_and_in_two() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_append(crc32c(b"1234"), b"56789"), 0xe306_9283);
        assert_eq!((crc32c(b""), crc32c_append(7, b"")), (0, 7));
    }

    proptest! {
        // Lengths exceed the widest step of any implementation; alignments vary.
        #[test]
        fn another_implementation_agrees_also_in_pieces(
            bytes in prop::collection::vec(any::<u8>(), 0..5000),
            cut: prop::sample::Index,
        ) {
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(crc32c(&bytes), ::crc32c::crc32c(&bytes));
            prop_assert_eq!(crc32c(tail), ::crc32c::crc32c(tail));
            prop_assert_eq!(crc32c_append(crc32c(head), tail), ::crc32c::crc32c(&bytes));
            let combined = crc32c_combine(crc32c(head), crc32c(tail), tail.len() as u64);
            prop_assert_eq!(combined, ::crc32c::crc32c(&bytes));
            let combination = Combination::of(tail.len() as u64);
            prop_assert_eq!(combination.combine(crc32c(head), crc32c(tail)), combined);
        }
    }
}
