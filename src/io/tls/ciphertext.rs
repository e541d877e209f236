//! Ciphertext on its way: cut into records where it arrives, and gathered where it is sent.

use std::borrow::Cow;

use super::{RECORD_LEN_BYTES, TlsError};

/// Received ciphertext, which is cut into records.
#[derive(Default)]
pub(super) struct Incoming {
    /// Lent memory with received bytes; the bytes from `read` to `end` are unread.
    memory: Vec<u8>,
    read: usize,
    end: usize,
    /// The beginning of a record whose end has not arrived.
    partial: Vec<u8>,
}

impl Incoming {
    /// As [`Session::give`](super::Session::give).
    pub(super) fn give(&mut self, memory: Vec<u8>, len: usize) {
        assert!(self.read == self.end && len <= memory.len(), "ciphertext is read to its end");
        (self.memory, self.read, self.end) = (memory, 0, len);
    }

    /// As [`Session::take_back`](super::Session::take_back).
    pub(super) fn take_back(&mut self) -> Vec<u8> {
        (self.read, self.end) = (0, 0);
        std::mem::take(&mut self.memory)
    }

    /// The next whole record; `None`: more ciphertext is needed.
    ///
    /// # Errors
    /// `NotTls`: the received bytes are no record.
    pub(super) fn record(&mut self) -> Result<Option<Cow<'_, [u8]>>, TlsError> {
        if self.partial.is_empty() {
            let unread = &self.memory[self.read..self.end];
            if let Some(len) = record_len(unread)?.filter(|len| *len <= unread.len()) {
                self.read += len;
                return Ok(Some(Cow::Borrowed(&self.memory[self.read - len..self.read])));
            }
        }
        loop {
            let len = record_len(&self.partial)?;
            let missing = len.unwrap_or(HEADER_LEN) - self.partial.len();
            if missing == 0 {
                return Ok(Some(Cow::Owned(std::mem::take(&mut self.partial))));
            }
            let unread = &self.memory[self.read..self.end];
            if unread.is_empty() {
                return Ok(None);
            }
            let now = &unread[..missing.min(unread.len())];
            self.partial.reserve_exact(missing);
            self.partial.extend_from_slice(now);
            self.read += now.len();
        }
    }
}

/// Length of the record that begins with `bytes`, with its header; `None`: the header is not complete.
fn record_len(bytes: &[u8]) -> Result<Option<usize>, TlsError> {
    let Some(&[kind, major, _, high, low]) = bytes.first_chunk::<5>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([high, low]));
    let is_record = (CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&kind)
        && major == 3
        && len <= RECORD_LEN_BYTES + MAX_EXPANSION;
    if is_record { Ok(Some(HEADER_LEN + len)) } else { Err(TlsError::NotTls) }
}

/// Ciphertext to send. Its memory is zeroed when it grows, and is kept.
#[derive(Default)]
pub(super) struct Outgoing {
    memory: Vec<u8>,
    /// The bytes from `sent` to `end` are to be sent.
    sent: usize,
    end: usize,
}

impl Outgoing {
    /// The ciphertext that is not yet sent.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.sent..self.end]
    }

    /// Appends bytes.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.added(bytes.len());
    }

    /// Memory for the next `len` bytes, which [`Outgoing::added`] then appends.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        if self.memory.len() < self.end + len {
            self.memory.resize(self.end + len, 0);
        }
        &mut self.memory[self.end..self.end + len]
    }

    /// Appends the first `len` bytes of [`Outgoing::room`].
    pub(super) fn added(&mut self, len: usize) {
        self.end += len;
        assert!(self.end <= self.memory.len(), "added more than there was room for");
    }

    /// Drops the first `len` bytes, which were sent.
    pub(super) fn sent(&mut self, len: usize) {
        self.sent += len;
        assert!(self.sent <= self.end, "sent more than there was");
        if self.sent == self.end {
            (self.sent, self.end) = (0, 0);
        }
    }

    /// As [`Session::swap_outgoing`](super::Session::swap_outgoing).
    pub(super) fn swap(&mut self, memory: &mut Vec<u8>) {
        if self.end == 0 {
            std::mem::swap(&mut self.memory, memory);
        }
    }
}

/// Length of a record's header, in bytes.
pub(super) const HEADER_LEN: usize = 5;

/// The most bytes by which protection makes a record longer than its contents.
const MAX_EXPANSION: usize = 256;

// The first and the last content type (RFC 8446, B.1).
const CHANGE_CIPHER_SPEC: u8 = 20;
pub(super) const APPLICATION_DATA: u8 = 23;
