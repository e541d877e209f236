//! A fetch in flight: the state of its transfers, and the checksums of its samples.
//!
//! The pump submits and polls; this module decides which samples to verify and which transfers to read again.

use std::time::Instant;

use crate::buf::{IoBuf, SharedBuf};
use crate::checksum::{crc32c, crc32c_append};
use crate::directory::Learned;
use crate::error::{Error, ErrorKind};
use crate::qpair::{IoError, Namespace};
use crate::units::Lba;

use super::fetch::{Fetch, FetchSample, Transfer};

/// A fetch in flight.
#[derive(Default)]
pub(super) struct InFlight {
    /// The token that the caller has given the fetch.
    pub(super) token: u64,
    /// The index of the fetch's image in the pump.
    pub(super) image: u32,
    pub(super) fetch: Fetch,
    /// The state of each transfer of the fetch.
    pub(super) states: Vec<TransferState>,
    /// The number of transfers that have not completed.
    pub(super) waiting: usize,
    /// Samples that must not be used: index into `fetch.samples`, and error.
    pub(super) failures: Vec<(usize, Error)>,
    /// Transfers that could not be read: index into `fetch.transfers`, and error.
    pub(super) unread: Vec<(usize, Error)>,
    /// The number of transfers that have failed.
    pub(super) num_failed: usize,
    /// Set if some samples span several transfers: those not verified by [`InFlight::carry`] are verified when all
    /// transfers have completed.
    pub(super) crossing: bool,
    /// The checksum that [`InFlight::carry`] has begun and will continue.
    pub(super) carried: Option<Carried>,
    /// The first sample after the last verified transfer. Transfers usually complete in order; then it is the
    /// first sample of the next transfer.
    pub(super) next_sample: usize,
    /// Set if the caller has abandoned the fetch: its buffers are released when its reads complete.
    pub(super) abandoned: bool,
}

/// The checksum so far of a sample that spans several transfers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Carried {
    /// Index into `fetch.samples`.
    sample: usize,
    /// The offset in the fetch's buffer up to which the checksum is computed.
    buf_offset: usize,
    crc32c: u32,
}

/// The state of one transfer. It has the transfer's part of the buffer while no read is outstanding.
#[derive(Default)]
pub(super) struct TransferState {
    pub(super) buf: Option<IoBuf>,
    /// The time at which a queue pair took the read.
    pub(super) submitted: Option<Instant>,
    /// The number of times it was read again.
    pub(super) repeats: u8,
    /// The error of its last read, if the transfer is not read again as a whole.
    pub(super) failed: Option<IoError>,
    /// Set if this is a piece of a transfer that could not be read, and is not split again.
    pub(super) is_piece: bool,
    /// Set if this is the unread middle of such a transfer: while the namespace seems lost, it is not split.
    pub(super) was_probed: bool,
    /// The sample that began in an earlier transfer and ends in this one, if its checksum was right.
    pub(super) verified_across: Option<usize>,
}

impl InFlight {
    /// Verifies the samples inside `transfer`; returns `false` if the transfer should be read again.
    pub(super) fn verify_transfer(&mut self, transfer: usize, learned: Option<&Learned>) -> bool {
        #[cfg(feature = "unverified")]
        if super::unverified::is_set() {
            return true;
        }
        let at = self.fetch.transfers[transfer];
        let end = at.buf_offset + at.len_bytes;
        let bytes = self.states[transfer].buf.as_deref().expect("the transfer has just completed");
        let first = self.first_sample_from(at.buf_offset);
        let inside = self.fetch.samples[first..].iter().take_while(|s| s.buf_offset < end);
        let mut next_sample = first;
        // If a sample began in an earlier transfer, that transfer sets `crossing` once it is read. If it is never read,
        // the sample fails in any case.
        let mut crossing = None;
        for (index, sample) in (first..).zip(inside) {
            next_sample = index + 1;
            let start = sample.buf_offset - at.buf_offset;
            let Some(bytes) = bytes.get(start..start + sample.len_bytes as usize) else {
                crossing = Some(index);
                continue;
            };
            let found = crc32c(bytes);
            if is_right(sample, found, learned) || sample.len_bytes == 0 {
                continue;
            }
            if self.states[transfer].repeats == 0 {
                return false;
            }
            self.failures.push((index, corrupt(sample, found, learned)));
        }
        self.next_sample = next_sample;
        self.crossing |= crossing.is_some();
        self.carry(transfer, crossing, learned);
        true
    }

    /// The first sample that begins at or after `buf_offset`.
    fn first_sample_from(&self, buf_offset: usize) -> usize {
        let samples = &self.fetch.samples;
        let next = self.next_sample;
        let begins_before = |sample: &FetchSample| sample.buf_offset < buf_offset;
        let is_first = next.checked_sub(1).is_none_or(|before| begins_before(&samples[before]))
            && samples.get(next).is_none_or(|sample| !begins_before(sample));
        if is_first { next } else { samples.partition_point(begins_before) }
    }

    /// Continues the checksum of the sample that reaches into `transfer`, and begins the checksum of the sample
    /// that reaches beyond `transfer`, while the bytes are in the processor's cache. If transfers complete out of
    /// order, [`InFlight::verify_crossing`] computes these checksums.
    fn carry(&mut self, transfer: usize, crossing: Option<usize>, learned: Option<&Learned>) {
        let at = self.fetch.transfers[transfer];
        let end = at.buf_offset + at.len_bytes;
        let bytes = self.states[transfer].buf.as_deref().expect("the transfer has just completed");
        let begun = crossing.map(|sample| {
            let start = self.fetch.samples[sample].buf_offset - at.buf_offset;
            Carried { sample, buf_offset: end, crc32c: crc32c(&bytes[start..]) }
        });
        if let Some(carried) = self.carried.take_if(|carried| carried.buf_offset == at.buf_offset) {
            let sample = &self.fetch.samples[carried.sample];
            let sample_end = sample.buf_offset + sample.len_bytes as usize;
            let reach = sample_end.min(end) - at.buf_offset;
            let crc32c = crc32c_append(carried.crc32c, &bytes[..reach]);
            if sample_end > end {
                self.carried = Some(Carried { buf_offset: end, crc32c, ..carried });
            } else if is_right(sample, crc32c, learned) {
                self.states[transfer].verified_across = Some(carried.sample);
            }
        }
        self.carried = begun.or(self.carried);
    }

    /// Verifies the samples that span several transfers; returns the transfers to read again.
    pub(super) fn verify_crossing(&mut self, learned: Option<&Learned>) -> Vec<usize> {
        let mut wrong = Vec::new();
        let mut repeat = Vec::new();
        for (index, sample) in self.fetch.samples.iter().enumerate() {
            let transfers = self.fetch.transfers_of(sample);
            if transfers.len() < 2
                || transfers.clone().any(|transfer| self.states[transfer].failed.is_some())
            {
                continue;
            }
            if self.states[transfers.end - 1].verified_across == Some(index) {
                continue;
            }
            let found = self.checksum(sample);
            if !is_right(sample, found, learned) {
                wrong.push((index, corrupt(sample, found, learned)));
                repeat.extend(transfers.filter(|&transfer| self.states[transfer].repeats == 0));
            }
        }
        // Wrong checksums are final only if no transfer will be read again.
        if repeat.is_empty() {
            self.failures.append(&mut wrong);
        } else {
            // The transfers that are read again may hold bytes of samples that were verified before.
            self.carried = None;
            self.states.iter_mut().for_each(|state| state.verified_across = None);
        }
        repeat.sort_unstable();
        repeat.dedup();
        repeat
    }

    /// The checksum of the bytes that were read of a sample.
    fn checksum(&self, sample: &FetchSample) -> u32 {
        let end = sample.buf_offset + sample.len_bytes as usize;
        self.fetch.transfers_of(sample).fold(0, |crc, transfer| {
            let at = self.fetch.transfers[transfer];
            let bytes = self.states[transfer].buf.as_deref().expect("all transfers have completed");
            let from = sample.buf_offset.saturating_sub(at.buf_offset);
            let to = (end - at.buf_offset).min(at.len_bytes);
            crc32c_append(crc, &bytes[from..to])
        })
    }

    /// Splits the first failed transfer that can be split, and returns the pieces to read. Splits one transfer at a
    /// time, to save reads that would fail. `namespace` gives the block length of a transfer's namespace, and
    /// whether that namespace seems lost. If so, only the first and the last piece are read, and the pieces between
    /// them only once a read of the namespace has succeeded.
    ///
    /// Call this only while no read of the fetch is outstanding: reads identify transfers by their index.
    pub(super) fn split_failed(
        &mut self,
        namespace: impl Fn(&Transfer) -> (u32, bool),
    ) -> Vec<usize> {
        for (transfer, state) in self.states.iter().enumerate() {
            let (block_len, seems_lost) = namespace(&self.fetch.transfers[transfer]);
            let may_split = state.failed.as_ref().is_some_and(is_local)
                && !state.is_piece
                && !(seems_lost && state.was_probed);
            if !may_split {
                continue;
            }
            let pieces =
                self.fetch.split_at_samples(&self.fetch.transfers[transfer], block_len as usize);
            if pieces.len() > 1 {
                return self.split(transfer, pieces, seems_lost);
            }
        }
        Vec::new()
    }

    /// Replaces a failed transfer by its `pieces`; returns those to read: all, or only the first and the last.
    fn split(&mut self, transfer: usize, mut pieces: Vec<Transfer>, only_ends: bool) -> Vec<usize> {
        let TransferState { buf, failed, .. } = std::mem::take(&mut self.states[transfer]);
        let mut rest = buf.expect("no read of it is outstanding");
        let inner = if only_ends { merge_inner(&mut pieces) } else { None };
        let mut to_read = Vec::new();
        let mut states = Vec::with_capacity(pieces.len());
        for (number, piece) in pieces.iter().enumerate() {
            let after = rest.split_off(piece.len_bytes);
            let buf = Some(std::mem::replace(&mut rest, after));
            states.push(if inner == Some(number) {
                TransferState {
                    buf,
                    failed: failed.clone(),
                    was_probed: true,
                    ..TransferState::default()
                }
            } else {
                to_read.push(transfer + number);
                TransferState { buf, is_piece: true, ..TransferState::default() }
            });
        }
        self.num_failed -= usize::from(inner.is_none());
        self.states.splice(transfer..=transfer, states);
        self.fetch.transfers.splice(transfer..=transfer, pieces);
        self.carried = None;
        to_read
    }

    /// Fails the samples that have bytes in transfers that could not be read.
    pub(super) fn fail_unread<'a>(&mut self, namespace: impl Fn(&Transfer) -> &'a Namespace) {
        let failed = |transfer: usize| self.states[transfer].failed.as_ref();
        for (transfer, at) in self.fetch.transfers.iter().enumerate() {
            if let Some(error) = failed(transfer) {
                let namespace = namespace(at);
                let lba = Lba(at.offset_bytes / u64::from(namespace.block_len_bytes));
                self.unread.push((transfer, error.clone().on(namespace).lba(lba)));
            }
        }
        for (index, sample) in self.fetch.samples.iter().enumerate() {
            if sample.len_bytes > 0
                && let Some((transfer, error)) = self
                    .fetch
                    .transfers_of(sample)
                    .find_map(|transfer| failed(transfer).map(|e| (transfer, e)))
            {
                let namespace = namespace(&self.fetch.transfers[transfer]);
                self.failures.push((index, error.clone().on(namespace)));
            }
        }
    }

    /// Joins the buffers of the transfers into the fetch's buffer.
    pub(super) fn join(&mut self) -> SharedBuf {
        let mut bufs = self.states.iter_mut().filter_map(|state| state.buf.take());
        let mut whole = bufs.next().unwrap_or_else(IoBuf::empty);
        for buf in bufs {
            whole.rejoin(buf);
        }
        whole.freeze()
    }
}

/// Returns whether the error concerns only the blocks of this command: other blocks may still be readable.
fn is_local(error: &IoError) -> bool {
    !matches!(error, IoError::Disconnected(_))
}

/// Merges all pieces between the first and the last; returns the index of the merged piece.
fn merge_inner(pieces: &mut Vec<Transfer>) -> Option<usize> {
    let inner = pieces.get(1..pieces.len() - 1)?;
    let merged =
        Transfer { len_bytes: inner.iter().map(|piece| piece.len_bytes).sum(), ..*inner.first()? };
    pieces.splice(1..pieces.len() - 1, [merged]);
    Some(1)
}

/// Returns whether `found` is the sample's checksum. A directory without checksums accepts and stores the first one
/// computed.
#[inline]
fn is_right(sample: &FetchSample, found: u32, learned: Option<&Learned>) -> bool {
    match learned {
        None => found == sample.crc32c,
        Some(learned) => learned.accepts(sample.id, found),
    }
}

/// The error of a sample with the wrong checksum `found`.
fn corrupt(sample: &FetchSample, found: u32, learned: Option<&Learned>) -> Error {
    let learned = learned.and_then(|learned| learned.get(sample.id));
    let expected = learned.unwrap_or(sample.crc32c);
    Error::new(
        ErrorKind::Corrupt,
        format!("the sample's checksum is {found:08x}, the directory expects {expected:08x}"),
    )
    .hint("run `dlfs verify` on the image to list everything that is damaged")
}

#[cfg(test)]
mod tests {
    use super::super::fetch::Transfer;
    use super::*;
    use crate::units::SampleId;

    const TRANSFER_LEN: usize = 100;

    /// A fetch whose transfers of 100 bytes have all completed, with contiguous samples of these lengths.
    fn fetch(num_transfers: usize, lens: &[u32]) -> InFlight {
        let bytes: Vec<u8> =
            (0..num_transfers * TRANSFER_LEN).map(|i| (i * 31 % 251) as u8).collect();
        let transfers = (0..num_transfers).map(|transfer| Transfer {
            namespace: 0,
            offset_bytes: 0,
            buf_offset: transfer * TRANSFER_LEN,
            len_bytes: TRANSFER_LEN,
        });
        let mut buf_offset = 0;
        let samples = lens.iter().zip(0..).map(|(&len_bytes, index)| {
            let crc32c = crc32c(&bytes[buf_offset..buf_offset + len_bytes as usize]);
            buf_offset += len_bytes as usize;
            let start = buf_offset - len_bytes as usize;
            FetchSample { id: SampleId(7), index, buf_offset: start, len_bytes, crc32c }
        });
        let samples = samples.collect();
        let states = bytes.chunks(TRANSFER_LEN).map(|transfer| TransferState {
            buf: Some(copy(transfer)),
            ..TransferState::default()
        });
        InFlight {
            image: 0,
            token: 0,
            fetch: Fetch { transfers: transfers.collect(), samples, len_bytes: bytes.len() },
            states: states.collect(),
            waiting: 0,
            failures: Vec::new(),
            unread: Vec::new(),
            num_failed: 0,
            crossing: false,
            carried: None,
            next_sample: 0,
            abandoned: false,
        }
    }

    fn copy(bytes: &[u8]) -> IoBuf {
        let mut buf = IoBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    fn flip(in_flight: &mut InFlight, transfer: usize, byte: usize) {
        in_flight.states[transfer].buf.as_mut().expect("all transfers have completed")[byte] ^= 1;
    }

    /// Sample 0 spans transfers 0 to 2, sample 1 lies inside transfer 2, sample 2 spans transfers 2 and 3.
    const LENS: [u32; 3] = [230, 20, 90];

    #[test]
    fn samples_that_span_transfers_are_verified_as_these_complete_and_only_once() {
        let mut in_flight = fetch(4, &LENS);
        assert!(
            (0..4).all(|transfer| in_flight.verify_transfer(transfer, None)) && in_flight.crossing
        );
        let across: Vec<_> = in_flight.states.iter().map(|state| state.verified_across).collect();
        assert_eq!(across, [None, None, Some(0), Some(2)]);
        flip(&mut in_flight, 1, 5); // after its checksum was computed: only a second computation would notice
        assert!(in_flight.verify_crossing(None).is_empty() && in_flight.failures.is_empty());
    }

    #[test]
    fn transfers_that_complete_in_any_order_are_verified() {
        for order in [[3, 2, 1, 0], [0, 2, 1, 3], [2, 3, 0, 1], [1, 0, 3, 2]] {
            for wrong in [None, Some(0), Some(1), Some(2), Some(3)] {
                let mut in_flight = fetch(4, &LENS);
                wrong.into_iter().for_each(|transfer| flip(&mut in_flight, transfer, 28));
                assert!(
                    order.iter().all(|&transfer| in_flight.verify_transfer(transfer, None)),
                    "no byte 28 lies in a sample inside one transfer"
                );
                let repeat = in_flight.verify_crossing(None);
                let expected: &[usize] = match wrong {
                    None => &[],
                    Some(3) => &[2, 3],
                    Some(_) => &[0, 1, 2],
                };
                assert_eq!(repeat, expected, "{order:?}, {wrong:?}");
            }
        }
    }

    #[test]
    fn a_sample_is_verified_again_when_one_of_its_transfers_is_read_again() {
        let mut in_flight = fetch(4, &LENS);
        flip(&mut in_flight, 3, 0); // in sample 2, which shares transfer 2 with sample 0
        assert!((0..4).all(|transfer| in_flight.verify_transfer(transfer, None)));
        assert_eq!(in_flight.verify_crossing(None), [2, 3]);
        flip(&mut in_flight, 3, 0);
        flip(&mut in_flight, 2, 0); // the second read of transfer 2 damages sample 0
        for transfer in [2, 3] {
            in_flight.states[transfer].repeats = 1;
            assert!(in_flight.verify_transfer(transfer, None));
        }
        assert_eq!(
            in_flight.verify_crossing(None),
            [0, 1],
            "the transfers of sample 0 that were read only once"
        );
    }
}
