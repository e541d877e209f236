//! Reads many objects in order: requests ranges ahead, and delivers their bytes in turn.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::client::{Client, Pending};
use super::flow::{ObjectRange, Ranges, ahead};
use super::flowing::Flowing;
use super::range_buf::{Kept, RangeBuf};
use crate::{Lent, Object};
use dlfs_base::error::Result;

/// Reads objects one after another. [`next_object`](Reader::next_object) goes to the first or next object.
/// Then [`Read`] copies its bytes, and [`BufRead`] gives them without a copy; both end with the object.
///
/// Meanwhile, following ranges are in flight, also of the next objects: enough to hide the store's delay, within
/// [`Client::window_bytes`].
#[derive(Debug)]
pub struct Reader {
    client: Client,
    objects: Vec<Object>,
    /// The ranges that are not requested yet.
    ranges: Ranges,
    /// Requested ranges, in the order of the objects.
    pending: VecDeque<(ObjectRange, Pending)>,
    /// Number of objects that [`next_object`](Self::next_object) has returned.
    begun: usize,
    /// The range that is being read.
    current: Option<Current>,
    /// The bytes of the only object, if they are returned as they arrive; then no ranges are requested.
    flowing: Option<Flowing>,
    /// Earlier ranges, which may still be on loan.
    lent: Vec<Weak<RangeBuf>>,
    /// Must be the last field: all other fields return their buffers before it is dropped.
    _kept: Kept,
}

/// A range that has arrived.
#[derive(Debug)]
struct Current {
    /// The whole range, also shared with loans.
    bytes: Arc<RangeBuf>,
    /// Number of bytes read.
    read: usize,
}

impl Reader {
    /// Reads `objects` in this order.
    pub fn new(client: Client, objects: Vec<Object>) -> Reader {
        Reader::from(client, objects, 0, u64::MAX)
    }

    /// Reads `objects` in this order, the first from offset `begin`, which must not exceed its length.
    /// Holds at most the lesser of `ahead_bytes` and the client's `window_bytes`, but always one range. With
    /// [`PlaceOptions::flowing`](crate::PlaceOptions::flowing), a reader of one object holds a few pieces instead.
    pub fn from(client: Client, objects: Vec<Object>, begin: u64, ahead_bytes: u64) -> Reader {
        let lens = objects.iter().map(|object| object.len_bytes).collect();
        Reader::with(client, objects, lens, begin, ahead_bytes)
    }

    /// Reads the bytes `part` of `object` as if they were all of it up to the end of `part`.
    ///
    /// # Panics
    /// If the object has no such bytes.
    pub fn part(client: Client, object: Object, part: Range<u64>) -> Reader {
        assert!(part.end <= object.len_bytes, "a part of the object");
        Reader::with(client, vec![object], vec![part.end], part.start, u64::MAX)
    }

    /// Reads the first `lens[i]` bytes of `objects[i]`, the first object from offset `begin`.
    fn with(
        client: Client,
        objects: Vec<Object>,
        lens: Vec<u64>,
        begin: u64,
        ahead_bytes: u64,
    ) -> Reader {
        let range_bytes = client.range_bytes();
        let window_bytes = client.window_bytes().min(ahead_bytes);
        let shared = client.shared();
        let ahead = ahead(shared.delay(), range_bytes, window_bytes);
        let flows = shared.options.flowing && shared.store.web.is_none();
        let flowing = match &objects[..] {
            [only] if flows => Some(client.flow(only, begin..lens[0])),
            _ => None,
        };
        Reader {
            ranges: Ranges::new(lens, begin, range_bytes, ahead),
            objects,
            pending: VecDeque::new(),
            begun: 0,
            current: None,
            flowing,
            lent: Vec::new(),
            _kept: shared.pool.keep(),
            client,
        }
    }

    /// Skips the rest of the current object and goes to the next one; returns `None` after the last.
    pub fn next_object(&mut self) -> Option<&Object> {
        let next = self.begun;
        if next == self.objects.len() {
            return None;
        }
        self.begun += 1;
        if self.flowing.is_some() {
            return self.objects.get(next);
        }
        self.let_go();
        while self.pending.front().is_some_and(|(range, _)| range.object < next) {
            if let Some((range, _)) = self.pending.pop_front() {
                self.ranges.give_back(range.len());
            }
        }
        self.ranges.skip_to(next);
        self.ask_ahead();
        self.objects.get(next)
    }

    /// The next bytes of the object; empty at its end.
    ///
    /// # Errors
    /// The errors of [`Pending::read_into`].
    fn next_bytes(&mut self) -> Result<&[u8]> {
        if self.flowing.is_some() {
            return self.flowing.as_mut().map_or(Ok(&[]), Flowing::bytes);
        }
        if self.current.as_ref().is_none_or(|current| current.read == current.bytes.len()) {
            self.let_go();
            self.ask_ahead();
            let is_of_object = |(range, _): &(ObjectRange, Pending)| range.object + 1 == self.begun;
            if self.pending.front().is_some_and(is_of_object)
                && let Some((range, pending)) = self.pending.pop_front()
            {
                // The range counts as held until `let_go`.
                let bytes = pending.bytes().inspect_err(|_| self.ranges.give_back(range.len()))?;
                self.current = Some(Current { bytes: Arc::new(bytes), read: 0 });
            }
        }
        Ok(self.current.as_ref().map_or(&[], |current| &current.bytes[current.read..]))
    }

    /// Gives back the range that is being read, and remembers it while it is on loan.
    fn let_go(&mut self) {
        if let Some(current) = self.current.take() {
            self.ranges.give_back(current.bytes.len() as u64);
            if Arc::strong_count(&current.bytes) > 1 {
                self.lent.push(Arc::downgrade(&current.bytes));
            }
        }
    }

    /// Lends the next `len` bytes of the object. `None`: they do not all lie in the range that is being read, or more
    /// than 32 MiB of ranges would be on loan. Then the caller reads the bytes. A loan keeps the memory of its whole
    /// range, in addition to `window_bytes`.
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

    /// Requests all ranges that may be requested now.
    fn ask_ahead(&mut self) {
        while let Some(range) = self.ranges.next() {
            let pending = self.client.fetch(&self.objects[range.object], range.bytes.clone());
            self.pending.push_back((range, pending));
        }
    }
}

impl BufRead for Reader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.next_bytes().map_err(io::Error::other)
    }

    fn consume(&mut self, len: usize) {
        if let Some(flowing) = &mut self.flowing {
            flowing.consume(len);
        } else if let Some(current) = &mut self.current {
            current.read += len;
        }
    }
}

impl Read for Reader {
    /// Wraps the store's error; `std::io::Error::downcast` returns it.
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

/// Maximum bytes of ranges on loan, including the current one.
const MOST_LENT_BYTES: usize = 32 << 20;
