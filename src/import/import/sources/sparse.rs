//! Sparse members of tar archives: an archive holds pieces of such a file, and the rest of it reads as zeroes.
//!
//! GNU tar has written four forms: a map in the header and in blocks behind it, two forms in extended headers, and one
//! in front of the pieces. All become a [`SparseMap`], or the reason why the member is refused. A map is only believed
//! if its pieces ascend, lie within the file and have together the length that the archive holds.

use dlfs_format::format::geometry::MAX_SAMPLE_BYTES;

/// The location of the pieces of a sparse file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseMap {
    /// Offset of the first piece in the archive; the others follow without gaps.
    start: u64,
    len_bytes: u32,
    pieces: Vec<Piece>,
}

/// Bytes that an archive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// Offset in the file.
    at: u32,
    len: u32,
    /// Offset behind [`SparseMap::start`].
    from: u32,
}

/// The bytes of a sparse file from some offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// So many zeroes; none at the end of the file.
    Hole(u64),
    /// So many bytes, at this offset of the archive.
    Stored(u64, u64),
}

impl SparseMap {
    /// Length of the file.
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    /// Bytes that the archive does not hold.
    pub(crate) fn hole_bytes(&self) -> u64 {
        let stored =
            self.pieces.last().map_or(0, |last| u64::from(last.from) + u64::from(last.len));
        u64::from(self.len_bytes) - stored
    }

    /// Returns the run of the file from `at` on: stored bytes or a hole.
    pub fn run(&self, at: u64) -> Run {
        let next = self.pieces.partition_point(|piece| u64::from(piece.at) <= at);
        let end = self.pieces.get(next).map_or(self.len_bytes, |piece| piece.at);
        let hole = Run::Hole(u64::from(end).saturating_sub(at));
        let Some(piece) = next.checked_sub(1).map(|before| self.pieces[before]) else {
            return hole;
        };
        let into = at - u64::from(piece.at);
        match u64::from(piece.len).checked_sub(into) {
            None | Some(0) => hole,
            Some(left) => Run::Stored(left, self.start + u64::from(piece.from) + into),
        }
    }

    /// Fills `into` with the bytes from `at` on; `stored` reads those at an offset of the archive. `false`: the file
    /// has not so many.
    ///
    /// # Errors
    /// Those of `stored`.
    pub fn read<E>(
        &self,
        mut at: u64,
        mut into: &mut [u8],
        mut stored: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        while !into.is_empty() {
            let run = self.run(at);
            let (Run::Hole(len) | Run::Stored(len, _)) = run;
            if len == 0 {
                return Ok(false);
            }
            let (part, rest) = into.split_at_mut(len.min(into.len() as u64) as usize);
            match run {
                Run::Hole(_) => part.fill(0),
                Run::Stored(_, from) => stored(from, part)?,
            }
            at += part.len() as u64;
            into = rest;
        }
        Ok(true)
    }

    /// The numbers that [`MapBuilder`] makes the same map of: offsets and lengths of its pieces.
    pub(super) fn numbers(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.pieces.iter().map(|piece| (piece.at.into(), piece.len.into()))
    }

    /// Offset of the first piece in the archive.
    pub(super) fn start(&self) -> u64 {
        self.start
    }
}

/// The map that a member states, before it is checked.
#[derive(Debug, Default)]
pub(crate) struct MapBuilder {
    pieces: Vec<(u64, u64)>,
    /// Why it is refused, if it is.
    refused: Option<&'static str>,
}

/// A sound map, or the length of a file that is longer than any sample.
#[derive(Debug, PartialEq, Eq)]
pub enum Mapped {
    /// The map.
    Map(SparseMap),
    /// The file's length.
    TooLarge(u64),
}

impl MapBuilder {
    /// Adds a piece.
    pub(crate) fn push(&mut self, at: u64, len: u64) {
        if self.pieces.len() < MAX_PIECES {
            self.pieces.push((at, len))
        } else {
            self.refuse(ENDLESS)
        }
    }

    /// Notes what is wrong with it; the first reason stays.
    pub(crate) fn refuse(&mut self, why: &'static str) {
        self.refused.get_or_insert(why);
    }

    /// Its number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns whether it has no piece.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns whether it is refused already.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// The map of a file of `len_bytes`, of which the archive holds `stored` bytes from `start` on.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn finish(
        self,
        len_bytes: u64,
        start: u64,
        stored: u64,
    ) -> Result<Mapped, &'static str> {
        if let Some(why) = self.refused {
            return Err(why);
        }
        let mut end = 0_u64;
        let mut held = 0_u64;
        for &(at, len) in &self.pieces {
            if at < end {
                return Err("has a sparse map whose pieces overlap or do not ascend");
            }
            end = at
                .checked_add(len)
                .filter(|end| *end <= len_bytes)
                .ok_or("has a sparse map that reaches beyond the length of the file")?;
            held += len; // at most the file's length, since they do not overlap
        }
        if held != stored {
            return Err("has a sparse map of other bytes than the archive holds of it");
        }
        if len_bytes > MAX_SAMPLE_BYTES {
            return Ok(Mapped::TooLarge(len_bytes));
        }
        let mut from = 0;
        let with_bytes = self.pieces.into_iter().filter(|(_, len)| *len > 0);
        let pieces = with_bytes.map(|(at, len)| {
            // All lie within a file whose length fits.
            let piece = Piece { at: at as u32, len: len as u32, from };
            from += piece.len;
            piece
        });
        Ok(Mapped::Map(SparseMap { start, len_bytes: len_bytes as u32, pieces: pieces.collect() }))
    }
}

/// The records `GNU.sparse.*` of an extended header.
#[derive(Debug, Default)]
pub(crate) struct PaxSparse {
    version: [Option<u64>; 2],
    len_bytes: Option<u64>,
    num_pieces: Option<u64>,
    map: MapBuilder,
    /// The offset of a piece whose length has not come.
    open: Option<u64>,
}

impl PaxSparse {
    /// Takes the record `GNU.sparse.` and `key`.
    pub(crate) fn take(&mut self, key: &[u8], value: &[u8]) {
        let number = decimal(value);
        let once =
            |into: &mut Option<u64>| number.is_some() && std::mem::replace(into, number).is_none();
        let is_sound = match key {
            b"major" => once(&mut self.version[0]),
            b"minor" => once(&mut self.version[1]),
            b"size" | b"realsize" => once(&mut self.len_bytes),
            b"numblocks" => once(&mut self.num_pieces),
            b"offset" => once(&mut self.open),
            b"numbytes" => match (self.open.take(), number) {
                (Some(at), Some(len)) => {
                    self.map.push(at, len);
                    true
                }
                _ => false,
            },
            b"map" => self.map.is_empty() && self.take_map(value),
            _ => false,
        };
        if !is_sound {
            self.map.refuse(BROKEN);
        }
    }

    fn take_map(&mut self, value: &[u8]) -> bool {
        let mut numbers = value.split(|&byte| byte == b',').map(decimal);
        while let Some(at) = numbers.next() {
            let (Some(at), Some(Some(len))) = (at, numbers.next()) else {
                return value.is_empty();
            };
            self.map.push(at, len);
        }
        true
    }

    /// The file's length, and its map; `None`: the map lies in front of the pieces.
    ///
    /// # Errors
    /// Why the member is refused.
    pub(crate) fn finish(mut self) -> Result<(u64, Option<MapBuilder>), &'static str> {
        let len_bytes = self.len_bytes.ok_or(BROKEN)?;
        match self.version {
            [Some(1), Some(0)] => {
                if !self.map.is_empty() || self.open.is_some() {
                    self.map.refuse(BROKEN);
                }
                Ok((len_bytes, self.map.is_refused().then_some(self.map)))
            }
            [None, None] | [Some(0), Some(0 | 1)] => {
                let counted = self.num_pieces.is_none_or(|count| count == self.map.len() as u64);
                if self.open.is_some() || !counted {
                    self.map.refuse(BROKEN);
                }
                Ok((len_bytes, Some(self.map)))
            }
            _ => {
                Err("is a sparse file in a form that is not known: pack it again without --sparse")
            }
        }
    }
}

/// A map as text in front of the pieces: the number of these, and an offset and a length for each, each number in
/// decimal and followed by the end of a line.
#[derive(Debug, Default)]
pub(crate) struct TextMap {
    map: MapBuilder,
    digits: Vec<u8>,
    count: Option<u64>,
    at: Option<u64>,
}

impl TextMap {
    /// Takes the next bytes; returns whether more are needed. What follows the last number is padding.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> bool {
        for &byte in bytes {
            if self.is_done() {
                break;
            }
            if byte != b'\n' {
                self.digits.push(byte);
                if self.digits.len() > MAX_DIGITS {
                    self.map.refuse(BROKEN);
                }
                continue;
            }
            let number = decimal(&self.digits);
            self.digits.clear();
            match (number, self.count, self.at.take()) {
                (None, ..) => self.map.refuse(BROKEN),
                (Some(count), None, _) if count > MAX_PIECES as u64 => self.map.refuse(ENDLESS),
                (count, None, _) => self.count = count,
                (at, Some(_), None) => self.at = at,
                (Some(len), Some(_), Some(at)) => self.map.push(at, len),
            }
        }
        !self.is_done()
    }

    fn is_done(&self) -> bool {
        self.map.is_refused() || self.count == Some(self.map.len() as u64)
    }

    /// The map; it is refused if it has not ended.
    pub(crate) fn finish(mut self) -> MapBuilder {
        if !self.is_done() {
            self.map.refuse(ENDS);
        }
        self.map
    }
}

/// Digits alone.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The pieces of a file of 4 GiB whose every other block of 4 KiB is a hole are half as many.
const MAX_PIECES: usize = 1 << 20;
const MAX_DIGITS: usize = 20;
const ENDLESS: &str = "has a sparse map of more than 1,048,576 pieces";
/// The numbers of a map are none, or contradict each other.
pub(super) const BROKEN: &str = "has a broken sparse map";
/// The archive ends within the map.
pub(super) const ENDS: &str = "has a sparse map that does not end";

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pieces: &[(u64, u64)], len: u64, stored: u64) -> Result<Mapped, &'static str> {
        let mut map = MapBuilder::default();
        pieces.iter().for_each(|&(at, len)| map.push(at, len));
        map.finish(len, 1000, stored)
    }

    #[test]
    fn holes_read_as_zeroes_wherever_a_read_begins_and_ends() {
        let stored: Vec<u8> = (1..=60).collect();
        let Ok(Mapped::Map(map)) = map(&[(5, 20), (25, 10), (40, 30), (90, 0)], 90, 60) else {
            panic!("a sound map");
        };
        let mut whole = [0; 90];
        whole[5..35].copy_from_slice(&stored[..30]);
        whole[40..70].copy_from_slice(&stored[30..]);
        for at in 0..=90 {
            for end in at..=90 {
                let mut read = vec![7; end - at];
                let from = |offset: u64, into: &mut [u8]| {
                    let offset = offset as usize - 1000;
                    into.copy_from_slice(&stored[offset..offset + into.len()]);
                    Ok::<(), ()>(())
                };
                assert_eq!(map.read(at as u64, &mut read, from), Ok(true));
                assert_eq!(read, whole[at..end], "{at}..{end}");
            }
        }
        assert_eq!((map.hole_bytes(), map.len_bytes()), (30, 90));
        let beyond = map.read(80, &mut [0; 11], |_, _| Ok::<(), ()>(()));
        assert_eq!(beyond, Ok(false));
    }

    #[test]
    fn maps_that_contradict_themselves_are_refused() {
        assert!(map(&[(0, 10), (9, 1)], 20, 11).unwrap_err().contains("overlap"));
        assert!(map(&[(9, 1), (0, 9)], 20, 10).unwrap_err().contains("ascend"));
        assert!(map(&[(9, 12)], 20, 12).unwrap_err().contains("beyond"));
        assert!(map(&[(u64::MAX, 2)], 20, 2).unwrap_err().contains("beyond"));
        assert!(map(&[(0, 10)], 20, 11).unwrap_err().contains("holds"));
        let huge = MAX_SAMPLE_BYTES + 1;
        assert_eq!(map(&[(huge - 1, 1)], huge, 1), Ok(Mapped::TooLarge(huge)));
        assert!(map(&vec![(0, 0); MAX_PIECES + 1], 1, 0).unwrap_err().contains("1,048,576"));
    }

    #[test]
    fn text_in_front_of_the_pieces_may_come_in_any_parts() {
        let text = b"2\n0\n5\n700\n12\n\0\0\0\0";
        for cut in 0..text.len() {
            let mut map = TextMap::default();
            let more = map.take(&text[..cut]) && map.take(&text[cut..]);
            assert!(!more, "{cut}");
            let Ok(Mapped::Map(map)) = map.finish().finish(712, 0, 17) else { panic!("{cut}") };
            assert_eq!(map.numbers().collect::<Vec<_>>(), [(0, 5), (700, 12)]);
        }
        for broken in
            [&b"x\n"[..], b"2\n0\n-5\n", b"111111111111111111111111", b"9999999\n", b"1\n5\n"]
        {
            let mut map = TextMap::default();
            map.take(broken);
            assert!(map.finish().is_refused(), "{broken:?}");
        }
    }
}
