//! The messages of an attached process to the owner, after the first message.
//!
//! | bytes  | field    | meaning                                        |
//! |--------|----------|------------------------------------------------|
//! | 0..4   | `kind`   | 1 begin, 2 expect, 3 piece, 4 gone             |
//! | 4..8   | `unit`   | index of the unit                              |
//! | 8..12  | `offset` | of a piece, in the unit: whole pages           |
//! | 12..16 | `len`    | of a piece, whole pages; its bytes follow      |

use crate::tier::{PAGE_BYTES, Units};

/// A parsed message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// The copy of the unit is corrupt or missing.
    Begin(u32),
    /// A read of the origin will bring part of the unit.
    Expect(u32),
    /// Expected data of the unit.
    Piece { unit: u32, offset: usize, bytes: &'a [u8] },
    /// Expected data will not arrive.
    Gone(u32),
}

/// A message that no attached process sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Frame<'_> {
    /// The first bytes of the message; those of a piece follow.
    pub(super) fn head(&self) -> [u8; HEAD_BYTES] {
        let words = match *self {
            Frame::Begin(unit) => [BEGIN, unit, 0, 0],
            Frame::Expect(unit) => [EXPECT, unit, 0, 0],
            Frame::Piece { unit, offset, bytes } => {
                [PIECE, unit, offset as u32, bytes.len() as u32]
            }
            Frame::Gone(unit) => [GONE, unit, 0, 0],
        };
        let mut head = [0; HEAD_BYTES];
        for (bytes, word) in head.chunks_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        head
    }
}

/// Parses the first message in `bytes`, with its length; `None` if it is not complete yet.
pub(super) fn parse<'a>(
    bytes: &'a [u8],
    units: &Units,
) -> Result<Option<(Frame<'a>, usize)>, Malformed> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return Ok(None) };
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (kind, unit, offset, len) = (word(0), word(4), word(8) as usize, word(12) as usize);
    if unit >= units.len() {
        return Err(Malformed);
    }
    let frame = match kind {
        PIECE => {
            let page = PAGE_BYTES as usize;
            let is_within = (offset as u64 + len as u64) <= units.get(unit).len_bytes();
            if !is_within || len == 0 || !offset.is_multiple_of(page) || !len.is_multiple_of(page) {
                return Err(Malformed);
            }
            let Some(bytes) = rest.get(..len) else { return Ok(None) };
            return Ok(Some((Frame::Piece { unit, offset, bytes }, HEAD_BYTES + len)));
        }
        _ if offset != 0 || len != 0 => return Err(Malformed),
        BEGIN => Frame::Begin(unit),
        EXPECT => Frame::Expect(unit),
        GONE => Frame::Gone(unit),
        _ => return Err(Malformed),
    };
    Ok(Some((frame, HEAD_BYTES)))
}

pub(super) const HEAD_BYTES: usize = 16;

const BEGIN: u32 = 1;
const EXPECT: u32 = 2;
const PIECE: u32 = 3;
const GONE: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn units() -> Units {
        Units::from_pages([(0, 2), (2, 16)])
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_wait_for_their_end() {
        let data = vec![7; 8192];
        let piece = Frame::Piece { unit: 1, offset: 4096, bytes: &data };
        for frame in [Frame::Begin(0), Frame::Expect(1), Frame::Gone(1), piece] {
            let mut bytes = frame.head().to_vec();
            if let Frame::Piece { bytes: data, .. } = frame {
                bytes.extend(data);
            }
            for len in 0..bytes.len() {
                assert_eq!(parse(&bytes[..len], &units()), Ok(None));
            }
            let len = bytes.len();
            bytes.push(1);
            assert_eq!(parse(&bytes, &units()), Ok(Some((frame, len))));
        }
    }

    #[test]
    fn what_does_not_fit_the_units_is_malformed() {
        let data = vec![7; 8192];
        let piece = |unit, offset, len| Frame::Piece { unit, offset, bytes: &data[..len] };
        let wrong = [
            Frame::Expect(2),
            piece(0, 4096, 8192),
            piece(1, 1, 4096),
            piece(1, 0, 100),
            piece(1, 0, 0),
        ];
        for frame in wrong {
            assert_eq!(parse(&frame.head(), &units()), Err(Malformed), "{frame:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), kind in 0_u8..6) {
            let _ = parse(&bytes, &units());
            let mut close = vec![kind, 0, 0, 0, 1, 0, 0, 0];
            close.extend(bytes);
            let _ = parse(&close, &units());
        }
    }
}
