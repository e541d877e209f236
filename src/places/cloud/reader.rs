//! Objects one after the other, in order: ranges are asked for ahead, and handed over in turn.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::sync::{Arc, Weak};

use super::client::{Client, Pending};
use super::flow::{Piece, Ranges, ahead};
use super::pool::{Kept, RangeBuf};
use crate::{Lent, Object};
use dlfs_base::error::Result;

/// Reads objects one after the other. [`next_object`](Reader::next_object) goes to the first or next one; then
/// [`Read`] gives its bytes, and nothing at its end; [`BufRead`] gives them without a copy.
///
/// Ranges of the following objects are asked for meanwhile, as many as the store's delay needs, within the window.
#[derive(Debug)]
pub struct Reader {
    client: Client,
    objects: Vec<Object>,
    ranges: Ranges,
    /// In the order of the objects.
    pending: VecDeque<(Piece, Pending)>,
    /// How many objects [`next_object`](Self::next_object) has given.
    begun: usize,
    /// The range of the object that is read.
    current: Option<Current>,
    /// Ranges before it of which bytes are still lent.
    lent: Vec<Weak<RangeBuf>>,
    /// The last field: the buffers of all others go back before.
    _kept: Kept,
}

/// A range that has arrived.
#[derive(Debug)]
struct Current {
    bytes: Arc<RangeBuf>,
    /// How many of its bytes are read.
    read: usize,
}

impl Reader {
    /// Reads `objects` in this order.
    pub fn new(client: Client, objects: Vec<Object>) -> Reader {
        Reader::from(client, objects, 0, u64::MAX)
    }

    /// Reads `objects` in this order, the first of them from byte `begin` on, which is at most its length. It holds at
    /// most `ahead_bytes` of them, and what the client's options allow: one range at least.
    pub fn from(client: Client, objects: Vec<Object>, begin: u64, ahead_bytes: u64) -> Reader {
        let range_bytes = client.range_bytes();
        let window_bytes = client.window_bytes().min(ahead_bytes);
        let lens = objects.iter().map(|object| object.len_bytes);
        let ahead = ahead(client.delay(), range_bytes, window_bytes);
        Reader {
            ranges: Ranges::new(lens, begin, range_bytes, ahead),
            objects,
            pending: VecDeque::new(),
            begun: 0,
            current: None,
            lent: Vec::new(),
            _kept: client.pool().keep(),
            client,
        }
    }

    /// Goes to the next object, whatever is left of this one; `None` after the last.
    pub fn next_object(&mut self) -> Option<&Object> {
        let next = self.begun;
        if next == self.objects.len() {
            return None;
        }
        self.begun += 1;
        self.let_go();
        while self.pending.front().is_some_and(|(piece, _)| piece.object < next) {
            if let Some((piece, _)) = self.pending.pop_front() {
                self.ranges.give_back(piece.len());
            }
        }
        self.ranges.skip_to(next);
        self.ask_ahead();
        self.objects.get(next)
    }

    /// The bytes that follow in the object; none at its end.
    ///
    /// # Errors
    /// As [`Pending::read_into`].
    fn next_bytes(&mut self) -> Result<&[u8]> {
        if self.current.as_ref().is_none_or(|current| current.read == current.bytes.len()) {
            self.let_go();
            self.ask_ahead();
            let is_of_this = |(piece, _): &(Piece, Pending)| piece.object + 1 == self.begun;
            if self.pending.front().is_some_and(is_of_this)
                && let Some((piece, pending)) = self.pending.pop_front()
            {
                // Until it is let go of, it counts as held.
                let bytes = pending.bytes().inspect_err(|_| self.ranges.give_back(piece.len()))?;
                self.current = Some(Current { bytes: Arc::new(bytes), read: 0 });
            }
        }
        Ok(self.current.as_ref().map_or(&[], |current| &current.bytes[current.read..]))
    }

    fn let_go(&mut self) {
        if let Some(current) = self.current.take() {
            self.ranges.give_back(current.bytes.len() as u64);
            if Arc::strong_count(&current.bytes) > 1 {
                self.lent.push(Arc::downgrade(&current.bytes));
            }
        }
    }

    /// Lends the next `len` bytes of the object, if they lie in one range that has arrived; else they are to be read.
    /// What is lent keeps the memory of its range, beside the window: 32 MiB of ranges in all.
    pub fn lend(&mut self, len: usize) -> Option<Lent> {
        let Current { bytes, read } = self.current.as_mut()?;
        self.lent.retain(|range| range.strong_count() > 0);
        let lent: usize = self.lent.iter().filter_map(Weak::upgrade).map(|range| range.len()).sum();
        if len > bytes.len() - *read || lent + bytes.len() > MOST_LENT_BYTES {
            return None;
        }
        let range = *read..*read + len;
        *read = range.end;
        Some((Arc::clone(bytes) as _, range))
    }

    fn ask_ahead(&mut self) {
        while let Some(piece) = self.ranges.next() {
            let pending = self.client.fetch(&self.objects[piece.object], piece.range.clone());
            self.pending.push_back((piece, pending));
        }
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.next_bytes().map_err(io::Error::other)
    }

    fn consume(&mut self, len: usize) {
        if let Some(current) = &mut self.current {
            current.read += len;
        }
    }
}

impl Read for Reader {
    /// Keeps the error of a store: `std::io::Error::downcast` gives it.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let bytes = self.fill_buf()?;
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        self.consume(len);
        Ok(len)
    }
}

/// Ranges of which bytes are lent, with the one that is read.
const MOST_LENT_BYTES: usize = 32 << 20;
