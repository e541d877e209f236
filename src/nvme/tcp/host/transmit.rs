//! The send queue: header bytes of this side, and parts of payloads that are sent without a copy.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::slots::Slots;

/// Bytes to send, in order.
#[derive(Debug)]
pub(super) struct Transmit {
    /// Bytes of headers, padding and digests; those that have been sent come first.
    headers: Vec<u8>,
    /// Bytes of `headers` that have been sent.
    headers_sent: usize,
    segments: VecDeque<Segment>,
    /// Bytes of the first segment that have been sent.
    front_sent: usize,
}

#[derive(Debug, Clone, Copy)]
enum Segment {
    /// The next bytes of `headers`.
    Header { len: usize, starts_pdu: bool },
    /// Part of the payload of a slot.
    Payload { slot: usize, start: usize, len: usize },
}

impl Segment {
    fn len(self) -> usize {
        match self {
            Segment::Header { len, .. } | Segment::Payload { len, .. } => len,
        }
    }
}

impl Transmit {
    pub(super) fn new() -> Transmit {
        Transmit { headers: Vec::new(), headers_sent: 0, segments: VecDeque::new(), front_sent: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Queues the start of a PDU: the bytes that `put` appends.
    pub(super) fn header(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.headers.len();
        put(&mut self.headers);
        let len = self.headers.len() - before;
        self.segments.push_back(Segment::Header { len, starts_pdu: true });
    }

    /// Queues part of the payload in `slot`.
    pub(super) fn payload(&mut self, slot: usize, start: u32, len: u32) {
        let start = start as usize;
        let len = len as usize;
        self.segments.push_back(Segment::Payload { slot, start, len });
    }

    /// Queues the bytes at the end of a PDU.
    pub(super) fn trailer(&mut self, bytes: &[u8]) {
        self.headers.extend_from_slice(bytes);
        self.segments.push_back(Segment::Header { len: bytes.len(), starts_pdu: false });
    }

    /// Drops everything; returns whether the bytes sent so far end at the end of a PDU.
    pub(super) fn clear(&mut self) -> bool {
        let at_pdu_start = match self.segments.front() {
            None | Some(Segment::Header { starts_pdu: true, .. }) => self.front_sent == 0,
            _ => false,
        };
        *self = Transmit::new();
        at_pdu_start
    }

    /// Fills `slices` from the front; adjacent headers share a slice.
    pub(super) fn slices<'a, B: AsRef<[u8]>>(
        &'a self,
        slots: &'a Slots<B>,
        slices: &mut [IoSlice<'a>],
    ) -> usize {
        let mut used = 0;
        let mut skip = self.front_sent;
        // Range of collected header bytes that are not in a slice yet.
        let mut from = self.headers_sent;
        let mut to = self.headers_sent;
        for segment in &self.segments {
            if used == slices.len() {
                break;
            }
            match *segment {
                Segment::Header { len, .. } => to += len - skip,
                Segment::Payload { slot, start, len } => {
                    if from < to {
                        slices[used] = IoSlice::new(&self.headers[from..to]);
                        from = to;
                        used += 1;
                        if used == slices.len() {
                            break;
                        }
                    }
                    let payload = slots.get(slot).payload.as_ref();
                    slices[used] = IoSlice::new(&payload[start + skip..start + len]);
                    used += 1;
                }
            }
            skip = 0;
        }
        if from < to && used < slices.len() {
            slices[used] = IoSlice::new(&self.headers[from..to]);
            used += 1;
        }
        used
    }

    /// Drops the first `len` bytes; calls `payload_sent(slot, len)` for each payload among them.
    pub(super) fn sent(&mut self, mut len: usize, mut payload_sent: impl FnMut(usize, u32)) {
        while len > 0 {
            let segment = *self.segments.front().expect("no more was sent than there was");
            let step = len.min(segment.len() - self.front_sent);
            match segment {
                Segment::Header { .. } => self.headers_sent += step,
                Segment::Payload { slot, .. } => payload_sent(slot, step as u32),
            }
            len -= step;
            self.front_sent += step;
            if self.front_sent == segment.len() {
                self.segments.pop_front();
                self.front_sent = 0;
            }
        }
        if self.headers_sent == self.headers.len() {
            self.headers.clear();
            self.headers_sent = 0;
        } else if self.headers_sent > COMPACT_FROM {
            self.headers.drain(..self.headers_sent);
            self.headers_sent = 0;
        }
    }
}

/// Length from which the buffer removes sent headers.
const COMPACT_FROM: usize = 16 << 10;

#[cfg(test)]
impl Transmit {
    pub(super) fn capacity(&self) -> usize {
        self.headers.capacity()
    }
}
