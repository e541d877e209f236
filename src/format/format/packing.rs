//! Packing rules: they determine the offsets of samples in a chunk.

use crate::format::FormatError;
use crate::format::error::out_of_range;
use dlfs_base::units::ALIGN_BYTES;

/// The packing rule of a chunk's samples. Part of the format: the directory stores only lengths, and computes offsets
/// by this rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Pack {
    /// No sample touches more blocks than its length needs, at the cost of at most 1/8 of padding
    ///
    /// A sample begins at the next 4,096-byte boundary if it then touches one block less, and if the padding is at most
    /// 1/8 of its length. A read of one sample then transfers one block less.
    #[default]
    Aligned,
    /// No padding
    ///
    /// Each sample begins where the previous one ends.
    Tight,
    /// Each sample begins at a multiple of 4,096. Never on media: used for a folder that is read without an import.
    #[cfg_attr(feature = "clap", value(skip))]
    #[serde(skip)]
    Paged,
}

impl Pack {
    /// The start of a sample of `len` bytes after one that ends at `at`. Both are relative to the start of the chunk's
    /// data, which is a multiple of 4,096.
    #[inline]
    pub(crate) fn next_start(self, at: u64, len: u32) -> u64 {
        match self {
            Pack::Tight => at,
            Pack::Paged => (at + BLOCK - 1) & !(BLOCK - 1),
            Pack::Aligned => {
                let within = at & (BLOCK - 1);
                let touched = within + u64::from(len);
                let needed = (u64::from(len) + BLOCK - 1) & !(BLOCK - 1);
                let padding = BLOCK - within;
                let better = touched > needed && padding * 8 <= u64::from(len);
                if better { at + padding } else { at }
            }
        }
    }

    /// The byte on media that encodes this rule.
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Pack::Aligned => 0,
            Pack::Tight => 1,
            Pack::Paged => 2, // rejected by every reader
        }
    }

    /// Decodes the byte on media.
    pub(crate) fn from_byte(byte: u8) -> Result<Pack, FormatError> {
        match byte {
            0 => Ok(Pack::Aligned),
            1 => Ok(Pack::Tight),
            _ => Err(out_of_range("pack mode", byte, 1)),
        }
    }
}

const BLOCK: u64 = ALIGN_BYTES as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sample_moves_to_the_next_block_only_when_that_saves_one_for_an_eighth_of_it() {
        let next_start = |at, len| Pack::Aligned.next_start(at, len);
        assert_eq!(next_start(0, 5000), 0);
        assert_eq!(next_start(3192, 5000), 3192); // ends exactly with its second block
        assert_eq!(next_start(3193, 5000), 3193); // would touch three; 903 bytes are more than 625
        assert_eq!(next_start(4000, 5000), 4096); // would touch three; 96 bytes are few
        assert_eq!(next_start(4000, 100), 4096 - 96); // an eighth of 100 is not 96
        assert_eq!(next_start(4095, 8), 4096);
        assert_eq!(next_start(4095, 0), 4095);
        assert_eq!(next_start(u64::from(u32::MAX) * 3, u32::MAX), u64::from(u32::MAX) * 3 + 3);
    }

    proptest! {
        #[test]
        fn padding_is_at_most_an_eighth_and_always_saves_a_block(at in 0u64..1 << 40, len: u32) {
            let blocks = |start: u64| (start + u64::from(len)).div_ceil(BLOCK) - start / BLOCK;
            let start = Pack::Aligned.next_start(at, len);
            prop_assert!(start >= at && (start - at) * 8 <= u64::from(len));
            if start > at {
                prop_assert_eq!(blocks(start), u64::from(len).div_ceil(BLOCK));
                prop_assert!(blocks(at) > blocks(start));
            }
            prop_assert_eq!(Pack::Tight.next_start(at, len), at);
            prop_assert_eq!(Pack::Paged.next_start(at, len), at.next_multiple_of(BLOCK));
        }
    }
}
