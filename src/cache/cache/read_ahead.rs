//! Read-ahead of the origin: turns small sequential reads into few large ones.
//!
//! A read that starts where an earlier read of the origin ended, before the end of its sample, becomes the
//! first piece of an *ahead read*: one read up to the end of the sample or the next page that is copied or claimed, of
//! at most 1 MiB and as large as the origin allows. The following pieces are served from the ahead read, or wait for
//! it. A queue pair has few ahead reads, and only for small sequential reads: whole samples and large pieces are read
//! directly.
//!
//! [`ReadAhead`] keeps the ahead reads of one queue pair; `pair.rs` decides their ends and submits them.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use dlfs_base::buf::IoBuf;
use dlfs_io::qpair::pieces::PieceId;
use dlfs_order::tier::PageSet;

/// The ahead reads of one queue pair, and the ends of its last reads.
#[derive(Default)]
pub(super) struct ReadAhead {
    /// Ends of earlier reads, the latest last.
    ends: VecDeque<u64>,
    /// Ahead reads, the newest last.
    reads: VecDeque<AheadRead>,
    /// Id of the newest ahead read.
    last: u32,
}

/// Pages of a unit that this process reads from the origin, to be kept.
pub(super) type Claim = (u32, PageSet);

/// A range of the origin that one read has brought or will bring.
pub(super) struct AheadRead {
    id: u32,
    pub(super) range: Range<u64>,
    /// `None` while the read is outstanding.
    bytes: Option<IoBuf>,
    waiting: Vec<WaitingPiece>,
    /// Claimed pages that this read brings.
    pub(super) claims: Vec<Claim>,
    pub(super) began: Instant,
}

/// A piece of a read that waits for data which another read brings.
pub(super) struct WaitingPiece {
    pub(super) piece: PieceId,
    /// Offset of the piece's first byte.
    pub(super) start: u64,
    pub(super) buf: IoBuf,
}

impl ReadAhead {
    /// Records a read of the origin; returns whether it continues an earlier one.
    pub(super) fn note(&mut self, range: &Range<u64>) -> bool {
        let follows = self.ends.iter().position(|&end| end == range.start);
        match follows {
            Some(at) => self.ends.remove(at),
            None if self.ends.len() == MAX_STREAMS => self.ends.pop_front(),
            None => None,
        };
        self.ends.push_back(range.end);
        follows.is_some()
    }

    /// End of the ahead read that contains byte `at`; `None`: there is none.
    pub(super) fn end_of(&self, at: u64) -> Option<u64> {
        self.reads.iter().find(|read| read.range.contains(&at)).map(|read| read.range.end)
    }

    /// Returns whether one ahead read contains all of `range`.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        self.reads.iter().any(|read| read.has(range))
    }

    /// Adds an outstanding ahead read of `range`, and returns its id.
    pub(super) fn open(&mut self, range: Range<u64>, claims: Vec<Claim>, began: Instant) -> u32 {
        self.last = (self.last + 1) & MAX_ID;
        let id = self.last;
        let bytes = None;
        let waiting = Vec::new();
        self.reads.push_back(AheadRead { id, range, bytes, waiting, claims, began });
        id
    }

    /// Makes room for another ahead read, if necessary by dropping the oldest completed one; returns whether there is
    /// room.
    pub(super) fn make_room(&mut self) -> bool {
        if self.reads.len() < MAX_AHEAD_READS {
            return true;
        }
        let oldest = self.reads.iter().position(|read| read.bytes.is_some());
        oldest.and_then(|at| self.reads.remove(at)).is_some()
    }

    /// Serves `piece` from the ahead read that contains it, at once or when the data arrive. Returns the piece if it
    /// was served at once.
    ///
    /// # Panics
    /// If no ahead read contains it: see [`ReadAhead::has`].
    pub(super) fn serve(&mut self, mut piece: WaitingPiece) -> Option<WaitingPiece> {
        let range = piece.start..piece.start + piece.buf.len() as u64;
        let mut reads = self.reads.iter_mut();
        let at = reads.position(|read| read.has(&range)).expect("the caller has asked");
        let read = &mut self.reads[at];
        let Some(bytes) = &read.bytes else {
            read.waiting.push(piece);
            return None;
        };
        piece.fill(read.range.start, bytes);
        if range.end == read.range.end {
            self.reads.remove(at); // all of its bytes were used
        }
        Some(piece)
    }

    /// Handles the end of an ahead read. With `bytes`, keeps the ahead read for the following pieces; without, removes
    /// it. Returns the pieces that waited for it, filled if there are `bytes`.
    pub(super) fn ended(&mut self, id: u32, bytes: Option<IoBuf>) -> Vec<WaitingPiece> {
        let at = self.reads.iter().position(|read| read.id == id);
        let at = at.expect("a read stays in the list while it is outstanding");
        let read = &mut self.reads[at];
        let mut waiting = std::mem::take(&mut read.waiting);
        let Some(bytes) = bytes else {
            self.reads.remove(at);
            return waiting;
        };
        waiting.iter_mut().for_each(|piece| piece.fill(read.range.start, &bytes));
        let is_last = |piece: &WaitingPiece| piece.start + piece.buf.len() as u64 == read.range.end;
        let was_read = waiting.iter().any(is_last);
        read.bytes = Some(bytes);
        if was_read {
            self.reads.remove(at); // all of its bytes were used, in order
        }
        waiting
    }

    /// The ahead read with this id.
    pub(super) fn get(&mut self, id: u32) -> Option<&mut AheadRead> {
        self.reads.iter_mut().find(|read| read.id == id)
    }

    /// Drops completed ahead reads that contain bytes of `range`, whose data were corrupt.
    pub(super) fn drop_corrupt(&mut self, range: &Range<u64>) {
        self.reads.retain(|read| {
            let overlaps = read.range.start < range.end && range.start < read.range.end;
            read.bytes.is_none() || !overlaps
        });
    }

    /// Outstanding ahead reads.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = &AheadRead> {
        self.reads.iter().filter(|read| read.bytes.is_none())
    }
}

impl AheadRead {
    /// Returns whether it contains all of `range`.
    fn has(&self, range: &Range<u64>) -> bool {
        self.range.contains(&range.start) && range.end <= self.range.end
    }
}

impl WaitingPiece {
    /// Fills the piece from `bytes`, which begin at offset `start` of the namespace.
    pub(super) fn fill(&mut self, start: u64, bytes: &[u8]) {
        let from = (self.start - start) as usize;
        let len = self.buf.len();
        self.buf.copy_from_slice(&bytes[from..from + len]);
    }
}

/// Maximum length of an ahead read.
pub(super) const MAX_AHEAD_BYTES: u64 = 1 << 20;

/// Limit of ahead reads of a queue pair; it bounds their memory to 4 MiB.
const MAX_AHEAD_READS: usize = 4;

/// Number of remembered ends of reads: as many samples may be read alternately.
const MAX_STREAMS: usize = 16;

/// Limit of ids, which share a tag with the bit that marks ahead reads.
const MAX_ID: u32 = u32::MAX >> 1;
