//! Objects one after the other, in order: ranges are asked for ahead, and handed over in turn.

use std::collections::VecDeque;
use std::io::{self, Read};

use bytes::{Buf, Bytes};

use super::Object;
use super::client::{Client, Pending};
use super::flow::{Piece, Ranges};
use crate::error::{Error, Result};

/// Reads objects one after the other. [`next_object`](Reader::next_object) goes to the first or next one; then
/// [`Read`] gives its bytes, and nothing at its end.
///
/// Ranges of the following objects are asked for meanwhile, as many as the window has room for.
#[derive(Debug)]
pub struct Reader {
    client: Client,
    objects: Vec<Object>,
    ranges: Ranges,
    /// In the order of the objects.
    pending: VecDeque<(Piece, Pending)>,
    /// How many objects [`next_object`](Self::next_object) has given.
    begun: usize,
    /// What has arrived of the object, and is not read yet.
    ready: VecDeque<Bytes>,
    /// The length of the range that `ready` belongs to.
    held: Option<u64>,
}

impl Reader {
    /// Reads `objects` in this order.
    pub fn new(client: Client, objects: Vec<Object>) -> Reader {
        let window_bytes = client.options().window_bytes;
        Reader::with_window(client, objects, window_bytes)
    }

    /// Reads `objects` in this order, the first of them from byte `begin` on, which is at most its length.
    pub fn from(client: Client, objects: Vec<Object>, begin: u64) -> Reader {
        let mut reader = Reader::new(client, objects);
        reader.ranges.begin_at(begin);
        reader
    }

    /// Reads `objects` in this order, and holds at most so many bytes of them: one range at least.
    pub fn with_window(client: Client, objects: Vec<Object>, window_bytes: u64) -> Reader {
        let range_bytes = client.options().range_bytes;
        let lens = objects.iter().map(|object| object.len_bytes);
        let ranges = Ranges::new(lens, range_bytes, window_bytes);
        Reader {
            client,
            objects,
            ranges,
            pending: VecDeque::new(),
            begun: 0,
            ready: VecDeque::new(),
            held: None,
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

    /// The bytes that follow in the object, without a copy; `None` at its end.
    ///
    /// # Errors
    /// As [`Pending::read_into`].
    fn next_bytes(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Ok(Some(bytes));
            }
            self.let_go();
            self.ask_ahead();
            if self.pending.front().is_none_or(|(piece, _)| piece.object + 1 != self.begun) {
                return Ok(None);
            }
            let (piece, pending) = self.pending.pop_front().expect("looked at just above");
            self.held = Some(piece.len());
            self.ready = pending.pieces()?.into();
        }
    }

    fn let_go(&mut self) {
        self.ready.clear();
        if let Some(len) = self.held.take() {
            self.ranges.give_back(len);
        }
    }

    fn ask_ahead(&mut self) {
        while let Some(piece) = self.ranges.next() {
            let pending = self.client.fetch(&self.objects[piece.object], piece.range.clone());
            self.pending.push_back((piece, pending));
        }
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let Some(mut bytes) = self.next_bytes().map_err(as_io)? else { return Ok(0) };
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        if len < bytes.len() {
            bytes.advance(len);
            self.ready.push_front(bytes);
        }
        Ok(len)
    }
}

/// Keeps the error: `std::error::Error::downcast` finds it.
fn as_io(error: Error) -> io::Error {
    io::Error::other(error)
}
