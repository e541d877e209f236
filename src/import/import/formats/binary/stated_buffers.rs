//! Checks the lengths that messages of Arrow state. A compressed buffer states its decompressed length, and the decoder
//! allocates any stated length. So each is compared with the allowed expansion before the decoder gets the message.
//!
//! | bytes      | meaning                                                                              |
//! |------------|--------------------------------------------------------------------------------------|
//! | 4          | `ff ff ff ff`, which old writers leave out                                             |
//! | 4          | n, the length of the metadata; 0: the stream ends                                    |
//! | n          | the metadata: the body's length, and the offsets of the buffers in the body          |
//! | the length | the body; a compressed buffer begins with 8 bytes for its decompressed length        |

use std::io::{self, Read, Seek, SeekFrom};

use crate::import::sources::BadReason;
use crate::import::sources::expansion::{Expands, Expansion};

/// Reader of messages that fails if their buffers state too long lengths.
pub(super) struct StatedBuffers<R> {
    from: R,
    expansion: Expansion,
    /// The state of the walk through the messages: bytes pass it as they are read.
    next: Next,
}

/// The part of the stream that comes next.
enum Next {
    /// The first 4 or 8 bytes of a message, of which these were read.
    Head(Vec<u8>),
    /// Metadata: the bytes of it that were read, and its length.
    Metadata(Vec<u8>, usize),
    Body(Body),
    /// Bytes that are not a message, until the next seek.
    Other,
}

/// The body of a message.
struct Body {
    /// Offset of the next byte.
    at: u64,
    /// Length in bytes.
    len: u64,
    /// Offsets of the compressed buffers that were not reached yet, in descending order.
    begins: Vec<u64>,
    /// The bytes read so far of the next buffer's stated length.
    stated: Vec<u8>,
}

impl<R> StatedBuffers<R> {
    /// Reads `from`, which is at the beginning of a message.
    pub(super) fn new(from: R, expansion: &Expansion) -> StatedBuffers<R> {
        StatedBuffers { from, expansion: expansion.clone(), next: Next::Head(Vec::new()) }
    }

    /// Walks over `bytes`, the next bytes of the stream, and checks the lengths in them.
    fn see(&mut self, mut bytes: &[u8]) -> Result<(), BadReason> {
        while !bytes.is_empty() {
            let next = match &mut self.next {
                Next::Other => return Ok(()),
                Next::Head(head) => {
                    let has_mark = head.len() >= 4 && head[..4] == MARK;
                    take(&mut bytes, if has_mark { 8 } else { 4 }, head);
                    metadata_len(head).map(|len| match usize::try_from(len) {
                        Ok(len) if len > 0 => Next::Metadata(Vec::new(), len),
                        _ => Next::Other,
                    })
                }
                Next::Metadata(metadata, len) => {
                    take(&mut bytes, *len, metadata);
                    (metadata.len() == *len).then(|| Body::of(metadata)).transpose()?.map(|body| {
                        match body {
                            None => Next::Other,
                            Some(body) if body.len == 0 => Next::Head(Vec::new()),
                            Some(body) => Next::Body(body),
                        }
                    })
                }
                Next::Body(body) => {
                    body.see(&mut bytes, &self.expansion)?;
                    (body.at == body.len).then(|| Next::Head(Vec::new()))
                }
            };
            if let Some(next) = next {
                self.next = next;
            }
        }
        Ok(())
    }
}

/// Moves bytes to `into` until it has `len` bytes.
fn take(bytes: &mut &[u8], len: usize, into: &mut Vec<u8>) {
    let (taken, rest) = bytes.split_at(bytes.len().min(len.saturating_sub(into.len())));
    into.extend_from_slice(taken);
    *bytes = rest;
}

/// The length of the metadata, once `head` is complete.
fn metadata_len(head: &[u8]) -> Option<i32> {
    let len = match head.len() {
        4 if head[..4] != MARK => head.first_chunk()?,
        8 => head.last_chunk()?,
        _ => return None,
    };
    Some(i32::from_le_bytes(*len))
}

impl Body {
    /// The body that `metadata` describes; `None`: it describes no body.
    fn of(metadata: &[u8]) -> Result<Option<Body>, BadReason> {
        let Ok(message) = arrow_ipc::root_as_message(metadata) else { return Ok(None) };
        let Ok(len) = u64::try_from(message.bodyLength()) else { return Ok(None) };
        let of_dictionary = message.header_as_dictionary_batch().and_then(|batch| batch.data());
        let batch = message.header_as_record_batch().or(of_dictionary);
        let buffers = batch.filter(|batch| batch.compression().is_some());
        let buffers = buffers.and_then(|batch| batch.buffers()).into_iter().flatten();
        let begins = buffers.filter(|buffer| buffer.length() >= STATED_BYTES as i64);
        let begins = begins.map(|buffer| u64::try_from(buffer.offset()));
        let Ok(mut begins) = begins.collect::<Result<Vec<u64>, _>>() else { return Ok(None) };
        begins.sort_unstable_by(|a, b| b.cmp(a));
        // Buffers must lie within the body and not overlap.
        let mut end = len;
        let fits = |begin: &u64| {
            let is_before =
                begin.checked_add(STATED_BYTES as u64).is_some_and(|stated_end| stated_end <= end);
            end = *begin;
            is_before
        };
        let overlap = || BadReason::Decoder("the buffers of a message overlap".to_owned());
        begins.iter().all(fits).then_some(()).ok_or_else(overlap)?;
        Ok(Some(Body { at: 0, len, begins, stated: Vec::new() }))
    }

    /// Skips bytes of the body up to the next stated length, then reads the length and checks it.
    fn see(&mut self, bytes: &mut &[u8], expansion: &Expansion) -> Result<(), BadReason> {
        let to = self.begins.last().copied().filter(|_| self.stated.is_empty());
        let left = to.unwrap_or(self.len).min(self.len).saturating_sub(self.at);
        let before = bytes.len();
        if left > 0 && self.stated.is_empty() {
            *bytes = &bytes[before.min(usize::try_from(left).unwrap_or(usize::MAX))..];
        } else {
            take(bytes, STATED_BYTES, &mut self.stated);
        }
        self.at += (before - bytes.len()) as u64;
        if let Some(stated) = self.stated.first_chunk() {
            // A negative length: the buffer is not compressed.
            let len = u64::try_from(i64::from_le_bytes(*stated)).unwrap_or(0);
            self.stated.clear();
            self.begins.pop();
            expansion.make(Expands::Packed, len)?;
            has_memory(len)?;
        }
        Ok(())
    }
}

/// Checks that `len` bytes can be allocated: decoders abort the process if an allocation fails.
pub(super) fn has_memory(len: u64) -> Result<(), BadReason> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    Vec::<u8>::new().try_reserve_exact(len).map_err(|_| {
        BadReason::Decoder(format!("a buffer is to have {len} bytes, and there is no such memory"))
    })
}

impl<R: Read> Read for StatedBuffers<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.see(&into[..read]).map_err(io::Error::other)?;
        Ok(read)
    }
}

impl<R: Seek> Seek for StatedBuffers<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.next = Next::Head(Vec::new());
        self.from.seek(to)
    }
}

/// The first bytes of a message of current writers.
const MARK: [u8; 4] = [0xff; 4];
/// Length of a stated length.
const STATED_BYTES: usize = 8;
