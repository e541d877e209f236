//! The send queue of a connection: headers in one byte buffer, payloads without a copy.
//!
//! PDUs leave in the order in which they were queued. Payload is never copied: it is gathered with headers
//! into one vectored write, and its buffer is dropped when its last byte is sent. Its digest is computed
//! while gathering, just before the kernel copies the same bytes, so that they are in the CPU cache.

use std::collections::VecDeque;
use std::io::IoSlice;

use zerocopy::{Immutable, IntoBytes};

use crate::tcp::pdu::{self, Form};
use dlfs_base::buf::SharedBuf;

/// Bytes to send, in order.
#[derive(Debug, Default)]
pub struct Transmit {
    /// Headers, padding and digests; the first `headers_sent` bytes are sent.
    headers: Vec<u8>,
    headers_sent: usize,
    items: VecDeque<Item>,
    /// Number of sent bytes of the first item, if it is a payload; headers shrink their item as they are sent.
    payload_sent: usize,
    len_bytes: usize,
}

#[derive(Debug)]
enum Item {
    /// This many bytes of `headers`.
    Headers(usize),
    Payload {
        bytes: SharedBuf,
        /// True until the digest is computed. The digest's place is at the start of the `headers` that follow the
        /// payload.
        needs_digest: bool,
    },
}

impl Transmit {
    /// Bytes still to be sent.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns whether all bytes are sent.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Queues a PDU with this header and these data; the header's lengths must include the data.
    pub(crate) fn put<H: IntoBytes + Immutable>(
        &mut self,
        form: Form,
        header: &H,
        payload: Option<SharedBuf>,
    ) {
        self.put_headers(|headers| form.put(headers, header));
        let Some(payload) = payload.filter(|payload| !payload.is_empty()) else { return };
        self.len_bytes += payload.len();
        let needs_digest = form.digests.data;
        self.items.push_back(Item::Payload { bytes: payload, needs_digest });
        if needs_digest {
            self.put_headers(|headers| headers.extend_from_slice(&[0; DIGEST_LEN]));
        }
    }

    /// Queues the bytes that `write` appends to the headers.
    pub(crate) fn put_headers(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.headers.len();
        write(&mut self.headers);
        let added = self.headers.len() - before;
        self.len_bytes += added;
        match self.items.back_mut() {
            Some(Item::Headers(len)) => *len += added,
            _ => self.items.push_back(Item::Headers(added)),
        }
    }

    /// Fills `slices` with the next bytes to send, at most `max`; returns the number of slices used.
    pub(crate) fn gather<'a>(&'a mut self, slices: &mut [IoSlice<'a>], max: usize) -> usize {
        let ready = self.compute_digests(slices.len());
        let mut headers_at = self.headers_sent;
        let mut skip = self.payload_sent;
        let mut left = max;
        for (index, item) in self.items.range(..ready).enumerate() {
            let bytes = match item {
                Item::Headers(len) => {
                    headers_at += len;
                    &self.headers[headers_at - len..headers_at]
                }
                Item::Payload { bytes, .. } => &bytes[std::mem::take(&mut skip)..],
            };
            slices[index] = IoSlice::new(&bytes[..bytes.len().min(left)]);
            left = left.saturating_sub(bytes.len());
            if left == 0 {
                return index + 1;
            }
        }
        ready
    }

    /// Frees memory left behind by a burst of responses.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() && self.items.capacity() > IDLE_ITEMS {
            (self.headers, self.items) = (Vec::new(), VecDeque::new());
        }
    }

    /// Computes the missing digests of the first `max` items, up to [`DIGEST_BYTES`]; returns the number of
    /// items that are ready to send.
    fn compute_digests(&mut self, max: usize) -> usize {
        let mut headers_at = self.headers_sent;
        let mut digested = 0;
        let max = max.min(self.items.len());
        for (index, item) in self.items.iter_mut().take(max).enumerate() {
            match item {
                Item::Headers(len) => headers_at += *len,
                Item::Payload { bytes, needs_digest } if *needs_digest => {
                    if digested > 0 && digested + bytes.len() > DIGEST_BYTES {
                        return index;
                    }
                    digested += bytes.len();
                    self.headers[headers_at..][..DIGEST_LEN].copy_from_slice(&pdu::digest(bytes));
                    *needs_digest = false;
                }
                Item::Payload { .. } => {}
            }
        }
        max
    }

    /// Notes that the next `len` bytes were sent; drops payloads that are sent completely.
    pub(crate) fn sent(&mut self, mut len: usize) {
        assert!(len <= self.len_bytes, "sent more than there was");
        self.len_bytes -= len;
        while let Some(first) = self.items.front_mut() {
            let left = match first {
                Item::Headers(left) => *left,
                Item::Payload { bytes, .. } => bytes.len() - self.payload_sent,
            };
            let now = left.min(len);
            len -= now;
            match first {
                Item::Headers(left) => {
                    *left -= now;
                    self.headers_sent += now;
                }
                Item::Payload { .. } => self.payload_sent += now,
            }
            if now < left {
                break;
            }
            if let Some(Item::Payload { .. }) = self.items.pop_front() {
                self.payload_sent = 0;
            }
        }
        self.drop_sent_headers();
    }

    /// Removes the sent part of the header buffer once it is the larger part, so that the buffer stays
    /// small.
    fn drop_sent_headers(&mut self) {
        if self.headers_sent * 2 >= self.headers.len() {
            self.headers.drain(..self.headers_sent);
            self.headers_sent = 0;
        }
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
            transmit.sent(bytes.len());
        }
        wire
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
