//! Receives data straight into payloads: plans each receive call, and processes the received bytes.
//!
//! Targets mostly answer reads in order, each with one C2HData. So one receive call can fill the payloads
//! of several reads, with room for a header between them. Each header is checked before the bytes after it
//! count as data of a read. After a wrong guess, the bytes after it are copied to their place, and
//! guessing pauses for a while.

use std::io::IoSliceMut;
use std::time::Instant;

use zerocopy::FromBytes;

use super::super::budget::HOST_RECEIVE_BYTES;
use super::super::error::ProtocolError;
use super::super::pdu::{C2HData, PduType};
use super::{Connection, DIRECT_MIN, SCRATCH_LEN};

/// The purpose of a slice of a receive call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// Bytes of the caller's scratch buffer.
    Scratch { len: usize },
    /// The remaining data of the last header.
    Due { len: usize },
    /// All data of a read, if the header at the end of the previous piece announces exactly these data.
    Guess { slot: usize, len: usize },
}

impl Piece {
    fn len(self) -> usize {
        match self {
            Piece::Scratch { len } | Piece::Due { len } | Piece::Guess { len, .. } => len,
        }
    }
}

/// The plan of the current receive call, and the success of earlier guesses.
#[derive(Debug)]
pub(super) struct ReceivePlan {
    pieces: Vec<Piece>,
    /// Number of payloads among the pieces.
    num_payloads: usize,
    /// Maximum payloads to guess. It doubles after a receive that filled the plan. Otherwise it falls slowly, because
    /// empty slices cost time, too, but stays [`PAYLOADS_MIN`] above the number of filled payloads.
    max_payloads: usize,
    /// Buffer for bytes received after a wrong guess.
    misplaced: Vec<u8>,
    /// Number of receive calls left without guessing.
    pause: u32,
    /// Length of the last pause in receive calls, halved by each right guess. The next pause is twice as long, from
    /// [`PAUSE_MIN`] to [`PAUSE_MAX`].
    next_pause: u32,
}

impl ReceivePlan {
    pub(super) fn new() -> ReceivePlan {
        ReceivePlan {
            pieces: Vec::with_capacity(2 * (PAYLOADS_MAX + PAYLOADS_MIN) + 1),
            num_payloads: 0,
            max_payloads: PAYLOADS_MIN,
            misplaced: Vec::new(),
            pause: 0,
            next_pause: 0,
        }
    }

    fn guessed_right(&mut self) {
        self.next_pause /= 2;
    }

    fn guessed_wrong(&mut self) {
        self.next_pause = (self.next_pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pause = self.next_pause;
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// Fills `slices` with the places of the next bytes (payloads and parts of `scratch`); returns the
    /// number of slices used, at least one. Receive into them once, in this order, and report the length
    /// with [`Connection::handle_filled`].
    ///
    /// `scratch` must have [`SCRATCH_LEN`] bytes, `slices` at least two entries.
    pub fn poll_receive<'a>(
        &'a mut self,
        scratch: &'a mut [u8],
        slices: &mut [IoSliceMut<'a>],
    ) -> usize {
        assert!(scratch.len() >= SCRATCH_LEN && slices.len() >= 2, "too little to receive into");
        self.make_plan(slices.len());
        let Connection { plan, slots, .. } = self;
        let mut rest = scratch;
        for (slice, piece) in slices.iter_mut().zip(&plan.pieces) {
            if let Piece::Scratch { len } = piece {
                let (head, tail) = rest.split_at_mut(*len);
                *slice = IoSliceMut::new(head);
                rest = tail;
            }
        }
        let mut missing = plan.num_payloads;
        for command in slots.commands_mut() {
            if missing == 0 {
                break;
            }
            if let Some(index) = command.piece.take() {
                let start = command.at as usize;
                let end = start + plan.pieces[index].len();
                slices[index] = IoSliceMut::new(&mut command.payload.as_mut()[start..end]);
                missing -= 1;
            }
        }
        assert_eq!(missing, 0, "a payload that is planned for has no slice");
        plan.pieces.len()
    }

    /// Processes `len` bytes that were received into the slices of [`Connection::poll_receive`], with the
    /// same `scratch`.
    ///
    /// # Errors
    /// The errors of [`Connection::handle_received`].
    pub fn handle_filled(
        &mut self,
        now: Instant,
        scratch: &[u8],
        len: usize,
    ) -> Result<(), ProtocolError> {
        let pieces = std::mem::take(&mut self.plan.pieces);
        let result = self.take_pieces(now, scratch, len, &pieces);
        let planned: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.plan.max_payloads = if len == planned {
            (self.plan.max_payloads * 2).min(PAYLOADS_MAX)
        } else {
            (filled_payloads(&pieces, len) + PAYLOADS_MIN).max(self.plan.max_payloads * 7 / 8)
        };
        self.plan.pieces = pieces;
        result
    }

    /// Plans a receive call of at most `max_pieces` slices.
    fn make_plan(&mut self, max_pieces: usize) {
        self.plan.pieces.clear();
        self.plan.num_payloads = 0;
        let guessing = self.plan.pause == 0;
        self.plan.pause = self.plan.pause.saturating_sub(1);
        let digest_len = if self.form.digests.data { 4 } else { 0 };
        let due = self.deframer.data_left() as usize;
        // Bytes before the next header: the digest of the data that are planned for.
        let mut lead = 0;
        if let Some(receiving) = self.receiving
            && due > 0
            && (guessing || due >= DIRECT_MIN)
        {
            self.aim(receiving.slot, Piece::Due { len: due });
            lead = digest_len;
        }
        let mut scratch_left = SCRATCH_LEN;
        // A header follows the lead: the data before it are planned for, or there are none.
        let at_header =
            if due > 0 { self.plan.num_payloads > 0 } else { self.deframer.is_between_pdus() };
        let guesses = if guessing && at_header {
            self.guess(max_pieces, &mut lead, digest_len, &mut scratch_left)
        } else {
            Guesses::None
        };
        // Scratch for the bytes after the last payload of the plan.
        let tail = match (guesses, self.slots.num_bulk_reads, self.slots.num_small_reads) {
            (Guesses::AllReads | Guesses::Most, ..) => SCRATCH_AMONG_BULK,
            (_, 0, _) => SCRATCH_LEN,
            (_, _, 0) => SCRATCH_AMONG_BULK,
            _ => SCRATCH_MIXED,
        };
        // Data that are due and not planned for come first.
        let due_to_scratch = if self.plan.num_payloads == 0 { due } else { 0 };
        let len = (tail + lead + due_to_scratch).min(scratch_left);
        self.plan.pieces.push(Piece::Scratch { len });
    }

    /// Adds to the plan the reads that the target will probably answer next, and returns which ones it contains then.
    /// `lead`: bytes before the next header; `scratch_left`: bytes of scratch that the plan does not use yet.
    fn guess(
        &mut self,
        max_pieces: usize,
        lead: &mut usize,
        digest_len: usize,
        scratch_left: &mut usize,
    ) -> Guesses {
        let header_len = self.data_header_len();
        let receiving = self.receiving.map(|receiving| receiving.slot);
        let max_pieces = max_pieces.min(2 * self.plan.max_payloads + 1);
        let mut guesses = Guesses::None;
        let mut total = 0;
        let mut next = 0;
        while let Some(slot) = self.slots.next_read(&mut next) {
            let command = self.slots.get(slot);
            let len = command.len as usize;
            if Some(slot) == receiving || command.at > 0 {
                continue;
            }
            if total >= GUESS_TOTAL || self.plan.pieces.len() + 3 > max_pieces {
                return Guesses::Most;
            }
            if len < GUESS_MIN {
                return if guesses == Guesses::AllReads { Guesses::Some } else { guesses };
            }
            let piece = Piece::Scratch { len: *lead + header_len };
            *scratch_left -= piece.len();
            self.plan.pieces.push(piece);
            self.aim(slot, Piece::Guess { slot, len });
            *lead = digest_len;
            total += len;
            guesses = Guesses::AllReads;
        }
        guesses
    }

    /// Adds the payload of `slot` to the plan.
    fn aim(&mut self, slot: usize, piece: Piece) {
        self.slots.get_mut(slot).piece = Some(self.plan.pieces.len());
        self.plan.pieces.push(piece);
        self.plan.num_payloads += 1;
    }

    /// Length of a C2HData header with its digest.
    fn data_header_len(&self) -> usize {
        usize::from(PduType::C2HData.hlen()) + self.form.header_digest_len(PduType::C2HData)
    }

    /// Processes the received pieces in order, up to the first wrong guess.
    fn take_pieces(
        &mut self,
        now: Instant,
        mut scratch: &[u8],
        mut left: usize,
        pieces: &[Piece],
    ) -> Result<(), ProtocolError> {
        for (index, piece) in pieces.iter().enumerate() {
            if left == 0 {
                break;
            }
            let len = piece.len().min(left);
            left -= len;
            let Piece::Scratch { len: reserved } = *piece else {
                self.handle_payload(now, len)?;
                continue;
            };
            let (bytes, rest) = scratch.split_at(reserved);
            let bytes = &bytes[..len];
            scratch = rest;
            match pieces.get(index + 1) {
                Some(&Piece::Guess { slot, len }) if left > 0 => {
                    if !self.announces(bytes, slot, len) {
                        return self.take_misplaced(
                            now,
                            bytes,
                            scratch,
                            left,
                            &pieces[index + 1..],
                        );
                    }
                    self.plan.guessed_right();
                }
                _ => {}
            }
            self.handle_received(now, bytes)?;
        }
        Ok(())
    }

    /// Returns whether `bytes` end with a header that announces all data of the read in `slot`, so that the
    /// data come next.
    fn announces(&self, bytes: &[u8], slot: usize, len: usize) -> bool {
        let header_len = self.data_header_len();
        let Ok((header, _)) = C2HData::read_from_prefix(&bytes[bytes.len() - header_len..]) else {
            return false;
        };
        let plen = header_len + len + if self.form.digests.data { 4 } else { 0 };
        header.ch.pdu_type == PduType::C2HData as u8
            && usize::from(header.ch.pdo) == header_len
            && header.ch.plen.get() as usize == plen
            && header.cccid.get() == self.slots.cid(slot)
            && header.datao.get() == 0
            && header.datal.get() as usize == len
    }

    /// Processes misplaced bytes: `bytes`, and `left` more in `scratch` and in the payloads of `pieces`. Nothing
    /// has changed these since the receive call.
    fn take_misplaced(
        &mut self,
        now: Instant,
        bytes: &[u8],
        mut scratch: &[u8],
        mut left: usize,
        pieces: &[Piece],
    ) -> Result<(), ProtocolError> {
        self.plan.guessed_wrong();
        let mut misplaced = std::mem::take(&mut self.plan.misplaced);
        misplaced.clear();
        misplaced.extend_from_slice(bytes);
        for piece in pieces {
            let len = piece.len().min(left);
            left -= len;
            match *piece {
                Piece::Scratch { len: reserved } => {
                    let (head, rest) = scratch.split_at(reserved);
                    misplaced.extend_from_slice(&head[..len]);
                    scratch = rest;
                }
                Piece::Due { .. } => unreachable!("what is due comes first"),
                Piece::Guess { slot, .. } => {
                    misplaced.extend_from_slice(&self.slots.get(slot).payload.as_ref()[..len]);
                }
            }
        }
        let result = self.handle_received(now, &misplaced);
        self.plan.misplaced = misplaced;
        result
    }
}

/// Number of payloads that the first `len` bytes of the plan reach.
fn filled_payloads(pieces: &[Piece], mut len: usize) -> usize {
    let mut count = 0;
    for piece in pieces {
        if len == 0 {
            break;
        }
        len -= len.min(piece.len());
        count += usize::from(!matches!(piece, Piece::Scratch { .. }));
    }
    count
}

/// The outstanding reads that are in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guesses {
    None,
    /// Reads up to the first short one, which is cheaper to copy.
    Some,
    /// Reads up to the limits of one receive call; the next call targets the rest.
    Most,
    AllReads,
}

/// Reads below this length are not guessed: a copy costs less than slices of their own.
const GUESS_MIN: usize = 2048;

/// Approximate payload of one receive call: one iteration's budget. More data would leave the second-level
/// cache before their checksums are computed.
const GUESS_TOTAL: usize = HOST_RECEIVE_BYTES;

/// Initial number of payloads to guess, and the margin above the number that the last receive filled.
const PAYLOADS_MIN: usize = 3;

/// The limit up to which the number of payloads to guess doubles.
const PAYLOADS_MAX: usize = 64;

/// Scratch after the payloads of the plan if these are all reads, or as many as the plan may have, or if only large
/// reads are outstanding: enough for the headers up to the next payload. Further bytes would be payload that must be
/// copied.
pub(super) const SCRATCH_AMONG_BULK: usize = 256;

/// Scratch after the payloads of the plan while large and small reads are outstanding, and the plan lacks some.
pub(super) const SCRATCH_MIXED: usize = 16 << 10;

/// Minimum and maximum number of receive calls without guessing after a wrong guess.
const PAUSE_MIN: u32 = 8;
const PAUSE_MAX: u32 = 1024;
