//! The send queue of a connection: headers in one byte buffer, payloads without a copy.
//!
//! PDUs leave in the order in which they were queued. Payload is never copied: it is gathered with headers
//! into one vectored write. A controller's payloads are buffers, which are dropped when their last byte is sent. Their
//! digests are computed while gathering: the kernel then copies the same bytes out of the CPU cache.

use std::collections::VecDeque;
use std::io::IoSlice;

use zerocopy::{Immutable, IntoBytes};

use crate::tcp::pdu::{self, Form};
use dlfs_base::buf::SharedBuf;

/// Bytes to send, in order; `P` names the bytes of a payload.
#[derive(Debug)]
pub struct Transmit<P = SharedBuf> {
    /// Headers, padding and digests; the first `headers_sent` bytes are sent.
    headers: Vec<u8>,
    headers_sent: usize,
    /// Parts of PDUs, in the order of the stream.
    items: VecDeque<Item<P>>,
    /// Number of sent bytes of the first item.
    front_sent: usize,
    /// Bytes still to be sent.
    len_bytes: usize,
}

/// Bytes of one kind.
#[derive(Debug)]
enum Item<P> {
    /// The next bytes of `headers`.
    Headers { len: usize, starts_pdu: bool },
    Payload {
        payload: P,
        len: usize,
        /// True until the digest is computed. The digest's place is at the start of the `headers` that follow the
        /// payload.
        needs_digest: bool,
    },
}

impl<P> Default for Transmit<P> {
    fn default() -> Transmit<P> {
        Transmit {
            headers: Vec::new(),
            headers_sent: 0,
            items: VecDeque::new(),
            front_sent: 0,
            len_bytes: 0,
        }
    }
}

impl<P> Transmit<P> {
    /// Bytes still to be sent.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns whether all bytes are sent.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Queues the start of a PDU: the bytes that `write` appends. [`Transmit::clear`] then knows where the PDU begins.
    pub(super) fn start_pdu(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.items.push_back(Item::Headers { len: 0, starts_pdu: true });
        self.put_headers(write);
    }

    /// Queues the bytes that `write` appends to the headers.
    pub(super) fn put_headers(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.headers.len();
        write(&mut self.headers);
        let added = self.headers.len() - before;
        self.len_bytes += added;
        match self.items.back_mut() {
            Some(Item::Headers { len, .. }) => *len += added,
            _ => self.items.push_back(Item::Headers { len: added, starts_pdu: false }),
        }
    }

    /// Queues a payload of `len` bytes, whose digest, if it needs one, follows it in the headers.
    pub(super) fn put_payload(&mut self, payload: P, len: usize, needs_digest: bool) {
        self.len_bytes += len;
        self.items.push_back(Item::Payload { payload, len, needs_digest });
    }

    /// Drops everything; returns whether the bytes sent so far end at the end of a PDU.
    pub(super) fn clear(&mut self) -> bool {
        let at_pdu_start = match self.items.front() {
            None | Some(Item::Headers { starts_pdu: true, .. }) => self.front_sent == 0,
            _ => false,
        };
        *self = Transmit::default();
        at_pdu_start
    }

    /// Fills `slices` with the next bytes to send, at most `max`; returns the number of slices used. `bytes_of` gives
    /// the bytes of a payload. Headers that follow each other share a slice.
    pub(super) fn slices<'a>(
        &'a self,
        slices: &mut [IoSlice<'a>],
        max: usize,
        bytes_of: impl Fn(&'a P) -> &'a [u8],
    ) -> usize {
        let mut used = 0;
        let mut left = max;
        let mut skip = self.front_sent;
        let mut headers_at = self.headers_sent;
        // Start of the headers in the last slice, if it has some.
        let mut joined = None;
        for item in &self.items {
            let is_new = joined.is_none() || matches!(item, Item::Payload { .. });
            let bytes = match item {
                Item::Headers { len, .. } => {
                    let start = *joined.get_or_insert(headers_at);
                    headers_at += len - skip;
                    &self.headers[start..headers_at]
                }
                Item::Payload { payload, .. } => {
                    joined = None;
                    &bytes_of(payload)[skip..]
                }
            };
            skip = 0;
            if is_new && used > 0 {
                left -= slices[used - 1].len();
            }
            if left == 0 || is_new && used == slices.len() {
                break;
            }
            used += usize::from(is_new);
            slices[used - 1] = IoSlice::new(&bytes[..bytes.len().min(left)]);
        }
        used
    }

    /// Notes that the next `len` bytes were sent. Calls `payload_sent` for each payload among them, with the number of
    /// its bytes that were sent, and drops payloads that are sent completely.
    pub(super) fn sent(&mut self, mut len: usize, mut payload_sent: impl FnMut(&P, usize)) {
        assert!(len <= self.len_bytes, "sent more than there was");
        self.len_bytes -= len;
        while let Some(first) = self.items.front() {
            let (Item::Headers { len: all, .. } | Item::Payload { len: all, .. }) = first;
            let left = all - self.front_sent;
            let now = left.min(len);
            len -= now;
            match first {
                Item::Headers { .. } => self.headers_sent += now,
                Item::Payload { payload, .. } => payload_sent(payload, now),
            }
            self.front_sent += now;
            if now < left {
                break;
            }
            self.items.pop_front();
            self.front_sent = 0;
        }
        // The buffer stays small: its sent part goes once it is the larger part.
        if self.headers_sent * 2 >= self.headers.len() {
            self.headers.drain(..self.headers_sent);
            self.headers_sent = 0;
        }
    }
}

impl Transmit {
    /// Queues a PDU with this header and these data; the header's lengths must include the data.
    pub(super) fn put<H: IntoBytes + Immutable>(
        &mut self,
        form: Form,
        header: &H,
        payload: Option<SharedBuf>,
    ) {
        self.put_headers(|headers| form.put(headers, header));
        let Some(payload) = payload.filter(|payload| !payload.is_empty()) else { return };
        let len = payload.len();
        self.put_payload(payload, len, form.digests.data);
        if form.digests.data {
            self.put_headers(|headers| headers.extend_from_slice(&[0; DIGEST_LEN]));
        }
    }

    /// Fills `slices` with the next bytes to send, at most `max`; returns the number of slices used.
    pub(super) fn gather<'a>(&'a mut self, slices: &mut [IoSlice<'a>], max: usize) -> usize {
        let ready = self.compute_digests(slices.len());
        // As no PDU is started here, headers that follow each other are one item, and each item has a slice.
        self.slices(&mut slices[..ready], max, |payload| payload)
    }

    /// Frees memory left behind by a burst of responses.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() && self.items.capacity() > IDLE_ITEMS {
            *self = Transmit::default();
        }
    }

    /// Computes the missing digests of the first `max` items: of at least one payload, then of others while all
    /// together have up to [`DIGEST_BYTES`]. Returns the number of items that are ready to send.
    fn compute_digests(&mut self, max: usize) -> usize {
        let mut headers_at = self.headers_sent;
        let mut digested = 0;
        let max = max.min(self.items.len());
        for (index, item) in self.items.iter_mut().take(max).enumerate() {
            match item {
                Item::Headers { len, .. } if index == 0 => headers_at += *len - self.front_sent,
                Item::Headers { len, .. } => headers_at += *len,
                Item::Payload { payload, needs_digest, .. } if *needs_digest => {
                    if digested > 0 && digested + payload.len() > DIGEST_BYTES {
                        return index;
                    }
                    digested += payload.len();
                    self.headers[headers_at..][..DIGEST_LEN].copy_from_slice(&pdu::digest(payload));
                    *needs_digest = false;
                }
                Item::Payload { .. } => {}
            }
        }
        max
    }
}

/// Items for which an idle connection keeps room.
const IDLE_ITEMS: usize = 16;

/// Bytes of a digest on the wire.
const DIGEST_LEN: usize = 4;

/// Bytes digested before they are sent: few enough that source and copy stay in the second-level
/// cache.
const DIGEST_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tcp::Digests;
    use crate::tcp::pdu::{C2HData, CapsuleResp};
    use dlfs_base::buf::IoBuf;

    /// Sends everything, `step` bytes at a time, through windows of `num_slices` slices.
    fn drain(transmit: &mut Transmit, num_slices: usize, step: usize) -> Vec<u8> {
        let mut wire = Vec::new();
        while !transmit.is_empty() {
            let mut slices = vec![IoSlice::new(&[]); num_slices];
            let n = transmit.gather(&mut slices, 2 * step);
            let mut bytes: Vec<u8> =
                slices[..n].iter().flat_map(|slice| slice.iter().copied()).collect();
            assert!(bytes.len() <= 2 * step);
            bytes.truncate(step);
            wire.extend_from_slice(&bytes);
            transmit.sent(bytes.len(), |_, _| {});
        }
        wire
    }

    #[test]
    fn sent_headers_do_not_pile_up_while_there_is_always_more_to_send() {
        let mut transmit = Transmit::default();
        for _ in 0..10_000 {
            transmit.start_pdu(|out| out.extend_from_slice(&[1; 72]));
            transmit.start_pdu(|out| out.extend_from_slice(&[2; 72]));
            let mut slices = [IoSlice::new(&[]); 4];
            let used = transmit.slices(&mut slices, usize::MAX, |payload: &SharedBuf| payload);
            assert_eq!(used, 1);
            assert!(slices[0].len() <= 216);
            let len = slices[0].len();
            transmit.sent(len - 72, |_, _| {});
        }
        let capacity = transmit.headers.capacity();
        assert!(capacity < 64 << 10, "{capacity}");
    }

    proptest! {
        #[test]
        fn the_stream_is_the_same_however_it_is_cut(
            lens in prop::collection::vec(0usize..300, 1..20),
            header in any::<bool>(), data in any::<bool>(),
            num_slices in 1usize..6, step in 1usize..400,
        ) {
            let form = Form { digests: Digests { header, data }, pda: 0 };
            let mut transmit = Transmit::default();
            let mut expected = Vec::new();
            for (cid, &len) in lens.iter().enumerate() {
                let mut payload = IoBuf::zeroed(len);
                payload.fill(cid as u8 + 1);
                if len == 0 {
                    let resp = CapsuleResp::new([cid as u8; 16], form);
                    form.put(&mut expected, &resp);
                    transmit.put(form, &resp, None);
                    continue;
                }
                let pdu = C2HData::new(cid as u16, 0, len as u32, 0, form);
                form.put(&mut expected, &pdu);
                expected.extend_from_slice(&payload);
                if data {
                    expected.extend_from_slice(&pdu::digest(&payload));
                }
                transmit.put(form, &pdu, Some(payload.freeze()));
            }
            prop_assert_eq!(transmit.len_bytes(), expected.len());
            prop_assert_eq!(drain(&mut transmit, num_slices, step), expected);
            prop_assert!(transmit.items.is_empty() && transmit.headers.is_empty());
        }
    }
}
