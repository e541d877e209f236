//! I/Os that are split into pieces, and whose buffers are joined again when all pieces have ended.

use slab::Slab;

use super::{Completion, Io, IoError};
use dlfs_base::buf::IoBuf;

/// The split I/Os. `T` is the owner's data about each piece.
#[derive(Debug)]
pub struct Pieces<T> {
    ios: Slab<SplitIo<T>>,
}

/// Identifies a piece until its I/O has ended; fits the tag of an I/O. The high 32 bits are the index of the I/O, the
/// low 32 bits the index of the piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceId(pub u64);

/// A piece of a split I/O: a range of its bytes.
#[derive(Debug)]
pub struct Piece<T> {
    /// Offset of its first byte in the namespace.
    pub start: u64,
    /// Its length in bytes.
    pub len: usize,
    /// The owner's data about the piece.
    pub info: T,
    /// The piece's buffer, once the piece has ended.
    buf: Option<IoBuf>,
}

/// A split I/O of which some pieces have not ended.
#[derive(Debug)]
struct SplitIo<T> {
    tag: u64,
    /// The pieces that were cut so far, in order.
    pieces: Vec<Piece<T>>,
    /// The number of pieces that have not ended, with those that are not cut yet.
    missing: usize,
    /// The first failure of a piece.
    failed: Option<IoError>,
}

/// An I/O whose buffer is being cut into pieces, in order.
pub struct Cutting {
    /// The index of the I/O.
    key: usize,
    /// The offset of `rest` in the namespace, in bytes.
    start: u64,
    /// The end of the buffer, which is not cut yet.
    rest: IoBuf,
}

impl<T> Pieces<T> {
    /// Creates an empty set of I/Os.
    #[expect(clippy::new_without_default, reason = "for this workspace alone")]
    pub fn new() -> Pieces<T> {
        Pieces { ios: Slab::new() }
    }

    /// Begins an I/O whose first byte is at offset `start`, in bytes. [`Pieces::cut`] must follow `num` times, at least
    /// once.
    pub fn begin(&mut self, io: Io, start: u64, num: usize) -> Cutting {
        let Io { tag, buf, .. } = io;
        let split = SplitIo { tag, pieces: Vec::with_capacity(num), missing: num, failed: None };
        Cutting { key: self.ios.insert(split), start, rest: buf }
    }

    /// Cuts the next `len` bytes from the I/O's buffer.
    pub fn cut(&mut self, cutting: &mut Cutting, len: usize, info: T) -> (PieceId, IoBuf) {
        let rest = cutting.rest.split_off(len);
        let buf = std::mem::replace(&mut cutting.rest, rest);
        let pieces = &mut self.ios[cutting.key].pieces;
        let id = PieceId((cutting.key as u64) << 32 | pieces.len() as u64);
        pieces.push(Piece { start: cutting.start, len, info, buf: None });
        cutting.start += len as u64;
        (id, buf)
    }

    /// A piece of an I/O that has not ended.
    pub fn get_mut(&mut self, PieceId(id): PieceId) -> &mut Piece<T> {
        let io = &mut self.ios[(id >> 32) as usize];
        &mut io.pieces[(id & u64::from(u32::MAX)) as usize]
    }

    /// Ends a piece. If it was the last one, returns the completion of its I/O: with the first failure, or success.
    pub fn end(
        &mut self,
        id: PieceId,
        buf: IoBuf,
        result: Result<(), IoError>,
    ) -> Option<Completion> {
        self.get_mut(id).buf = Some(buf);
        let key = (id.0 >> 32) as usize;
        let io = &mut self.ios[key];
        if let Err(error) = result {
            io.failed.get_or_insert(error);
        }
        io.missing -= 1;
        (io.missing == 0).then(|| self.ios.remove(key).finish())
    }

    /// The pieces that have not ended.
    pub fn outstanding(&self) -> impl Iterator<Item = &Piece<T>> {
        let pieces = self.ios.iter().flat_map(|(_, io)| &io.pieces);
        pieces.filter(|piece| piece.buf.is_none())
    }

    /// The number of I/Os that have not ended.
    #[expect(clippy::len_without_is_empty, reason = "for this workspace alone, which counts them")]
    pub fn len(&self) -> usize {
        self.ios.len()
    }
}

impl<T> SplitIo<T> {
    /// The completion of the whole, once all pieces have ended.
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
