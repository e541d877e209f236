//! One direction of a link: a rate, a delay, a window, pauses. Bytes enter at one simulated time and leave at
//! a later one.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

/// Simulated time in picoseconds: a byte at 100 Gbit/s takes 80 of them.
pub(crate) type Ps = u64;

pub(crate) const PS_PER_US: Ps = 1_000_000;
pub(crate) const PS_PER_MS: Ps = 1_000_000_000;

/// A pause at the beginning of each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pauses {
    pub(crate) every: Ps,
    pub(crate) length: Ps,
}

impl Pauses {
    /// The first time from `at` on that is not in a pause.
    pub(crate) fn over(self, at: Ps) -> Ps {
        let into = at % self.every;
        if into < self.length { at - into + self.length } else { at }
    }

    /// When work of length `work` that begins at `at` is done, pauses excluded.
    pub(crate) fn finish(self, at: Ps, mut work: Ps) -> Ps {
        let mut at = self.over(at);
        loop {
            let until_next = self.every - at % self.every;
            if work <= until_next {
                return at + work;
            }
            work -= until_next;
            at = self.over(at + until_next);
        }
    }
}

/// The properties of one direction of a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkOptions {
    pub(crate) gbit_per_s: u64,
    /// The delay from one end to the other.
    pub(crate) delay: Ps,
    pub(crate) pauses: Option<Pauses>,
}

impl LinkOptions {
    /// When `len` bytes of a stream have been sent, if the first may be sent at `at`. Headers of Ethernet, IP
    /// and TCP are counted as in full segments.
    pub(crate) fn sent(&self, at: Ps, len: u64) -> Ps {
        let work = len * 8_000 * FRAME_LEN / (SEGMENT_LEN * self.gbit_per_s);
        self.pauses.map_or(at + work, |pauses| pauses.finish(at, work))
    }
}

/// One direction of a connection.
pub(crate) struct Pipe {
    options: LinkOptions,
    /// When the last accepted byte has been sent.
    free_at: Ps,
    /// Bytes in flight, in order.
    pieces: VecDeque<Piece>,
    /// Bytes that were read, with the time at which the sender learns of it.
    acknowledged: VecDeque<(Ps, usize)>,
    /// Accepted bytes of which the sender does not know yet that they were read.
    held: usize,
    /// Memory of pieces for reuse.
    spare: Vec<Vec<u8>>,
}

struct Piece {
    arrives_at: Ps,
    bytes: Vec<u8>,
    taken: usize,
}

impl Pipe {
    pub(crate) fn new(options: LinkOptions) -> Pipe {
        Pipe {
            options,
            free_at: 0,
            pieces: VecDeque::new(),
            acknowledged: VecDeque::new(),
            held: 0,
            spare: Vec::new(),
        }
    }

    /// Takes bytes from the front of `slices`; returns how many, 0 when the window is full.
    pub(crate) fn send(&mut self, now: Ps, slices: &[IoSlice<'_>]) -> usize {
        while self.acknowledged.front().is_some_and(|(at, _)| *at <= now) {
            let (_, len) = self.acknowledged.pop_front().expect("just seen");
            self.held -= len;
        }
        let mut room = WINDOW_BYTES - self.held;
        let mut sent = 0;
        let mut bytes = self.spare.pop().unwrap_or_default();
        for slice in slices {
            let mut rest: &[u8] = &slice[..slice.len().min(room)];
            room -= rest.len();
            sent += rest.len();
            while !rest.is_empty() {
                let (head, tail) = rest.split_at(rest.len().min(PIECE_LEN - bytes.len()));
                bytes.extend_from_slice(head);
                rest = tail;
                if bytes.len() == PIECE_LEN {
                    let next = self.spare.pop().unwrap_or_default();
                    self.launch(now, std::mem::replace(&mut bytes, next));
                }
            }
        }
        if bytes.is_empty() {
            self.spare.push(bytes)
        } else {
            self.launch(now, bytes)
        }
        self.held += sent;
        sent
    }

    fn launch(&mut self, now: Ps, bytes: Vec<u8>) {
        self.free_at = self.options.sent(self.free_at.max(now), bytes.len() as u64);
        let arrives_at = self.free_at + self.options.delay;
        self.pieces.push_back(Piece { arrives_at, bytes, taken: 0 });
    }

    /// Fills `slices` in order with what has arrived; returns how many bytes.
    pub(crate) fn receive(&mut self, now: Ps, slices: &mut [IoSliceMut<'_>]) -> usize {
        let mut received = 0;
        for slice in slices {
            let mut rest: &mut [u8] = slice;
            while !rest.is_empty() {
                let Some(piece) = self.pieces.front_mut().filter(|p| p.arrives_at <= now) else {
                    return self.note_read(now, received);
                };
                let len = rest.len().min(piece.bytes.len() - piece.taken);
                let (head, tail) = rest.split_at_mut(len);
                head.copy_from_slice(&piece.bytes[piece.taken..piece.taken + len]);
                piece.taken += len;
                received += len;
                rest = tail;
                if piece.taken == piece.bytes.len() {
                    let mut bytes = self.pieces.pop_front().expect("just seen").bytes;
                    bytes.clear();
                    self.spare.push(bytes);
                }
            }
        }
        self.note_read(now, received)
    }

    fn note_read(&mut self, now: Ps, len: usize) -> usize {
        if len > 0 {
            self.acknowledged.push_back((now + self.options.delay, len));
        }
        len
    }

    /// When the receiver has something to read.
    pub(crate) fn readable_at(&self) -> Option<Ps> {
        self.pieces.front().map(|piece| piece.arrives_at)
    }

    /// When a sender without room is told that there is some: as with a socket, not before a third is free.
    pub(crate) fn writable_at(&self) -> Option<Ps> {
        let mut held = self.held;
        let enough = self.acknowledged.iter().find(|(_, len)| {
            held -= len;
            held <= WINDOW_BYTES / 3 * 2
        });
        enough.map(|(at, _)| *at)
    }
}

/// The bytes of a stream in a full segment, and the same with its headers on an Ethernet: preamble and gap
/// 20, Ethernet 18, IP 20, TCP with timestamps 32.
const SEGMENT_LEN: u64 = 1_448;
const FRAME_LEN: u64 = SEGMENT_LEN + 90;

/// The bytes that arrive together: segments that the receiver's kernel merges.
const PIECE_LEN: usize = 8 * SEGMENT_LEN as usize;

/// The most bytes in flight between the two programs: more than rate times round trip of any simulated link,
/// as an administrator would configure.
pub(crate) const WINDOW_BYTES: usize = 16 << 20;
