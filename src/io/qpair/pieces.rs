//! I/Os that are split into pieces, and joined again when all pieces have ended.

use slab::Slab;

use super::{Completion, Io, IoError};
use dlfs_base::buf::IoBuf;

/// The split I/Os. `T` is the owner's data about each piece.
#[derive(Debug)]
pub struct Pieces<T> {
    reads: Slab<Read<T>>,
}

/// Identifies a piece; fits the tag of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceId(pub u64);

/// A part of a split I/O.
#[derive(Debug)]
pub struct Piece<T> {
    /// Offset of its first byte in the namespace.
    pub start: u64,
    /// Its length in bytes.
    pub len: usize,
    /// The owner's data about it.
    pub info: T,
    /// Its buffer, once the piece has ended.
    buf: Option<IoBuf>,
}

/// A split I/O of which some pieces have not ended.
#[derive(Debug)]
struct Read<T> {
    tag: u64,
    pieces: Vec<Piece<T>>,
    missing: usize,
    failed: Option<IoError>,
}

/// An I/O whose buffer is being cut into pieces, in order.
pub struct Cutting {
    key: usize,
    start: u64,
    rest: IoBuf,
}

impl<T> Pieces<T> {
    /// Creates an empty set of I/Os.
    #[expect(clippy::new_without_default, reason = "for this workspace alone")]
    pub fn new() -> Pieces<T> {
        Pieces { reads: Slab::new() }
    }

    /// Begins an I/O of `num` pieces whose first byte is at `start`.
    pub fn begin(&mut self, io: Io, start: u64, num: usize) -> Cutting {
        let read =
            Read { tag: io.tag, pieces: Vec::with_capacity(num), missing: num, failed: None };
        Cutting { key: self.reads.insert(read), start, rest: io.buf }
    }

    /// Cuts the next `len` bytes from the I/O's buffer.
    pub fn cut(&mut self, cutting: &mut Cutting, len: usize, info: T) -> (PieceId, IoBuf) {
        let behind = cutting.rest.split_off(len);
        let buf = std::mem::replace(&mut cutting.rest, behind);
        let pieces = &mut self.reads[cutting.key].pieces;
        let id = PieceId((cutting.key as u64) << 32 | pieces.len() as u64);
        pieces.push(Piece { start: cutting.start, len, info, buf: None });
        cutting.start += len as u64;
        (id, buf)
    }

    /// A piece that has not ended.
    pub fn get_mut(&mut self, PieceId(id): PieceId) -> &mut Piece<T> {
        let read = &mut self.reads[(id >> 32) as usize];
        &mut read.pieces[(id & u64::from(u32::MAX)) as usize]
    }

    /// Ends a piece; returns the completion of its I/O if it was the last.
    pub fn end(
        &mut self,
        id: PieceId,
        buf: IoBuf,
        result: Result<(), IoError>,
    ) -> Option<Completion> {
        self.get_mut(id).buf = Some(buf);
        let key = (id.0 >> 32) as usize;
        let read = &mut self.reads[key];
        if let Err(error) = result {
            read.failed.get_or_insert(error);
        }
        read.missing -= 1;
        (read.missing == 0).then(|| self.reads.remove(key).finish())
    }

    /// The pieces that have not ended.
    pub fn outstanding(&self) -> impl Iterator<Item = &Piece<T>> {
        let pieces = self.reads.iter().flat_map(|(_, read)| &read.pieces);
        pieces.filter(|piece| piece.buf.is_none())
    }

    /// The number of I/Os that have not ended.
    #[expect(clippy::len_without_is_empty, reason = "for this workspace alone, which counts them")]
    pub fn len(&self) -> usize {
        self.reads.len()
    }
}

impl<T> Read<T> {
    fn finish(self) -> Completion {
        let mut buf = IoBuf::empty();
        for piece in self.pieces {
            buf.rejoin(piece.buf.expect("none is missing"));
        }
        Completion { tag: self.tag, buf, result: self.failed.map_or(Ok(()), Err) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qpair::IoOp;
    use dlfs_base::units::Lba;

    #[test]
    fn a_read_ends_with_its_last_piece_and_its_bytes_are_in_order() {
        let mut pieces: Pieces<&str> = Pieces::new();
        let io = Io { op: IoOp::Read, slba: Lba(2), buf: IoBuf::zeroed(3 * 4096), tag: 77 };
        let mut cutting = pieces.begin(io, 8192, 3);
        let mut cut = Vec::new();
        for (nth, name) in ["first", "second", "third"].into_iter().enumerate() {
            let (id, mut buf) = pieces.cut(&mut cutting, 4096, name);
            buf.fill(nth as u8 + 1);
            let piece = pieces.get_mut(id);
            assert_eq!(
                (piece.start, piece.len, piece.info),
                (8192 + nth as u64 * 4096, 4096, name)
            );
            cut.push((id, buf));
        }
        let third = cut.pop().unwrap();
        let second = cut.pop().unwrap();
        let first = cut.pop().unwrap();
        assert!(pieces.end(third.0, third.1, Ok(())).is_none());
        assert!(pieces.end(first.0, first.1, Err(IoError::DataDigest)).is_none());
        let names: Vec<&str> = pieces.outstanding().map(|piece| piece.info).collect();
        assert_eq!(names, ["second"]);
        let done = pieces.end(second.0, second.1, Err(IoError::Fenced)).unwrap();
        assert_eq!((done.tag, done.result), (77, Err(IoError::DataDigest)), "the first failure");
        assert!(done.buf.chunks(4096).zip(1..).all(|(page, n)| page.iter().all(|&byte| byte == n)));
        assert_eq!(pieces.len(), 0);
    }
}
