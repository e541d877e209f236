//! Reading ahead: what is read from the origin piece by piece comes in few large reads.
//!
//! A read that begins where an earlier one of the origin ended, and leaves more of its sample behind it,
//! becomes the first piece of a *window*: one read as large as the origin takes, up to the end of the
//! sample. The pieces that follow are served from it, or wait for it. A queue pair has few windows, and
//! only what is read piece by piece has any: whoever reads whole samples, or in large pieces, reads as
//! without them.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use crate::buf::IoBuf;

/// The windows of one queue pair, and where its last reads ended.
#[derive(Default)]
pub(super) struct Ahead {
    /// The latest last.
    ends: VecDeque<u64>,
    /// The newest last.
    windows: VecDeque<Window>,
    /// Id of the newest window.
    last: u32,
}

/// Bytes of the origin that come, or have come, with one read.
pub(super) struct Window {
    id: u32,
    range: Range<u64>,
    /// None while they are under way.
    bytes: Option<IoBuf>,
    waiting: Vec<Waiting>,
    /// Units that are to be kept, of which these bytes are.
    pub(super) wanted: Vec<u32>,
    pub(super) began: Instant,
}

/// A piece of a read that a window will serve.
pub(super) struct Waiting {
    /// The read, and which of its pieces.
    pub(super) piece: (usize, usize),
    /// First byte of it.
    pub(super) start: u64,
    pub(super) buf: IoBuf,
}

impl Ahead {
    /// Notes a read of the origin; whether it goes on where an earlier one ended.
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

    /// Where the window that has byte `at` ends.
    pub(super) fn end_of(&self, at: u64) -> Option<u64> {
        self.windows.iter().find(|window| window.range.contains(&at)).map(|window| window.range.end)
    }

    /// Whether one window has all of `range`.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        self.windows.iter().any(|window| window.has(range))
    }

    /// Opens a window over `range`, whose read is under way from now on, and says its id.
    pub(super) fn open(&mut self, range: Range<u64>, wanted: Vec<u32>, began: Instant) -> u32 {
        self.last = (self.last + 1) & MAX_ID;
        let (id, bytes, waiting) = (self.last, None, Vec::new());
        self.windows.push_back(Window { id, range, bytes, waiting, wanted, began });
        id
    }

    /// Whether another window may be opened; the oldest that has come gives way to it.
    pub(super) fn has_room(&mut self) -> bool {
        if self.windows.len() < MAX_WINDOWS {
            return true;
        }
        let come = self.windows.iter().position(|window| window.bytes.is_some());
        come.and_then(|at| self.windows.remove(at)).is_some()
    }

    /// Serves `piece` from the window that has its bytes, now or when they have come: gives back what is
    /// served.
    ///
    /// # Panics
    /// If no window has them all: see [`Ahead::has`].
    pub(super) fn serve(&mut self, mut piece: Waiting) -> Option<Waiting> {
        let range = piece.start..piece.start + piece.buf.len() as u64;
        let mut windows = self.windows.iter_mut();
        let at = windows.position(|window| window.has(&range)).expect("the caller has asked");
        let window = &mut self.windows[at];
        let Some(bytes) = &window.bytes else {
            window.waiting.push(piece);
            return None;
        };
        copy(bytes, &window.range, &mut piece);
        if range.end == window.range.end {
            self.windows.remove(at); // it was read to its end
        }
        Some(piece)
    }

    /// The window's read has ended: with its bytes it is kept for the pieces that follow, and without it
    /// is gone. The pieces that waited come back, served if there are bytes, and the window's range.
    pub(super) fn ended(&mut self, id: u32, bytes: Option<IoBuf>) -> (Range<u64>, Vec<Waiting>) {
        let at = self.windows.iter().position(|window| window.id == id);
        let at = at.expect("a window stays while it is under way");
        let window = &mut self.windows[at];
        let range = window.range.clone();
        let mut waiting = std::mem::take(&mut window.waiting);
        let Some(bytes) = bytes else {
            self.windows.remove(at);
            return (range, waiting);
        };
        waiting.iter_mut().for_each(|piece| copy(&bytes, &range, piece));
        let was_read =
            waiting.iter().any(|piece| piece.start + piece.buf.len() as u64 == range.end);
        window.bytes = Some(bytes);
        if was_read {
            self.windows.remove(at); // to its end, and in sequence
        }
        (range, waiting)
    }

    /// First byte of the window.
    pub(super) fn start_of(&self, id: u32) -> u64 {
        let window = self.windows.iter().find(|window| window.id == id);
        window.map_or(0, |window| window.range.start)
    }

    /// The window whose read is under way.
    pub(super) fn get(&mut self, id: u32) -> Option<&mut Window> {
        self.windows.iter_mut().find(|window| window.id == id)
    }

    /// What was read of `range` was wrong: no window serves it again.
    pub(super) fn distrust(&mut self, range: &Range<u64>) {
        self.windows.retain(|window| {
            let overlaps = window.range.start < range.end && range.start < window.range.end;
            window.bytes.is_none() || !overlaps
        });
    }

    /// Windows whose reads are under way.
    pub(super) fn under_way(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|window| window.bytes.is_none())
    }
}

impl Window {
    fn has(&self, range: &Range<u64>) -> bool {
        self.range.contains(&range.start) && range.end <= self.range.end
    }
}

fn copy(bytes: &[u8], range: &Range<u64>, piece: &mut Waiting) {
    let from = (piece.start - range.start) as usize;
    let len = piece.buf.len();
    piece.buf.copy_from_slice(&bytes[from..from + len]);
}

/// The most that is read at once: what the reader asks for at most too.
pub(super) const WINDOW_BYTES: u64 = 1 << 20;

/// Windows of a queue pair, and so its memory: 4 MiB, while samples are read piece by piece.
const MAX_WINDOWS: usize = 4;

/// Ends of reads that are remembered: samples that are read piece by piece by turns.
const MAX_STREAMS: usize = 16;

/// Ids of windows share a tag with the mark that tells them from reads.
const MAX_ID: u32 = u32::MAX >> 1;
