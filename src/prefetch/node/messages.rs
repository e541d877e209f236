//! Messages between the owner of a node's loader and its clients, as bytes. Both sides are on one machine.
//!
//! A batch of the node is an *entry*, which has a number; the part of it for one seat is a *share* (`schedule.rs`). The
//! owner keeps the memory of an entry until each client that had a share of it has released the share.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..4 | length of the whole message |
//! | 4..8 | length of its JSON |
//! | 8.. | the JSON of a [`ToOwner`] or a [`ToClient`] |
//! | then, of a batch | three numbers: of samples, of rows, and of inputs of a row |
//! | | each sample ([`SamplePlace`]), then each segment of the rows (five numbers) |
//!
//! All numbers outside the JSON are in the processor's byte order and have 32 bits, except some of [`SamplePlace`].

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::buf::SealedLocation;
use crate::error::{Error, ErrorKind};
use crate::order::budget::RowPlace;
use crate::tokens::{Layout, Segment};

/// A position in the run: an epoch, and its consumed positions.
pub(super) type Position = (u64, u64);

/// A message of a client to the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToOwner {
    /// The first message: asks for a seat.
    Hello { protocol: u32, seat: u32 },
    /// Asks for the batches from this position on. `turn` numbers the requests of a client: batches that were sent for
    /// an earlier turn are released unread.
    Want { turn: u32, position: Position },
    /// The client has taken a batch of this turn.
    Took { turn: u32 },
    /// The client has dropped its share of this entry.
    Release { entry: u64 },
    /// Asks why the client gets no batch.
    Why,
    /// The client takes no more batches. It still has some, and releases them later.
    Leave,
}

/// A message of the owner to a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToClient {
    /// The answer to `Hello`: the version of the messages, and the length of the window in bytes. The file descriptor
    /// of the window comes with the message.
    Welcome { protocol: u32, window_len: u64 },
    /// A batch, its samples, and the layout of its rows if it has rows of tokens.
    Batch(BatchHead, #[serde(skip)] Vec<SamplePlace>, #[serde(skip)] Layout),
    /// The run has ended: no batch of this turn follows.
    End { turn: u32 },
    /// Reading failed in this turn, or the owner refuses the client.
    Failed { turn: u32, kind: ErrorKind, text: String },
    /// The answer to `Why`: the other seats that must take or release a share first. Empty: the client waits for
    /// something else.
    Holders(Vec<u32>),
}

/// A batch without its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BatchHead {
    /// The turn of the request.
    pub(super) turn: u32,
    /// The number of the [`Cause`](crate::report::Cause) for which the owner waited longest.
    pub(super) cause: u32,
    /// True if the rank has no more batches of the epoch.
    pub(super) ends_epoch: bool,
    /// The number by which the client releases its share.
    pub(super) entry: u64,
    pub(super) epoch: u64,
    /// The rank's position behind the batch.
    pub(super) after: Position,
    /// The place of that position, if batches are rows of tokens.
    pub(super) place: Option<RowPlace>,
    /// The number of samples that could not be read.
    pub(super) skipped: u64,
    /// The file with the bytes that do not lie in the window, if there are any.
    pub(super) loose: Option<SealedLocation>,
}

/// A sample of a batch, and the place of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct SamplePlace {
    pub(super) id: u64,
    /// First byte: an offset in the window or, with [`LOOSE`], in the loose bytes.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) len: u32,
    /// The source, if the batch is of a mixture; otherwise 0.
    pub(super) source: u32,
}

/// Error: the message is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl ToClient {
    /// Appends the message to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut numbers = Vec::new();
        if let ToClient::Batch(_, samples, Layout { num_rows, seq_len, segments }) = self {
            numbers.extend([samples.len() as u32, *num_rows, *seq_len].as_bytes());
            numbers.extend(samples.as_bytes());
            for &Segment { row, column, document, from, len } in segments {
                numbers.extend([row, column, document, from, len].as_bytes());
            }
        }
        frame(self, &numbers, out);
    }

    /// The first message in `bytes` and its length; `None`: it is not complete yet.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(ToClient, usize)>, Malformed> {
        let Some((mut message, numbers, len)) = unframe(bytes, MAX_MESSAGE_BYTES)? else {
            return Ok(None);
        };
        if let ToClient::Batch(_, samples, layout) = &mut message {
            let counts = <[u32; 3]>::read_from_prefix(numbers);
            let ([count, num_rows, seq_len], numbers) = counts.map_err(|_| Malformed)?;
            let of_samples = (count as usize).saturating_mul(size_of::<SamplePlace>());
            let (places, numbers) = numbers.split_at_checked(of_samples).ok_or(Malformed)?;
            *samples = all(places).collect();
            let segments = all(numbers).map(|[row, column, document, from, len]: [u32; 5]| {
                Segment { row, column, document, from, len }
            });
            *layout = Layout { num_rows, seq_len, segments: segments.collect() };
        }
        Ok(Some((message, len)))
    }
}

/// The values in `bytes`, one after the other.
fn all<T: FromBytes>(bytes: &[u8]) -> impl Iterator<Item = T> {
    bytes.chunks(size_of::<T>()).filter_map(|bytes| T::read_from_bytes(bytes).ok())
}

/// Appends `message` to `out`, followed by `numbers`.
pub(super) fn frame(message: &impl Serialize, numbers: &[u8], out: &mut Vec<u8>) {
    let json = serde_json::to_vec(message).expect("numbers and texts become JSON in memory");
    let len = 8 + json.len() + numbers.len();
    out.extend([len as u32, json.len() as u32].as_bytes());
    out.extend(json);
    out.extend(numbers);
}

/// A message, the numbers that follow it, and the length of both.
type Unframed<'a, T> = (T, &'a [u8], usize);

/// The first message in `bytes`; `None`: it is not complete yet.
///
/// # Errors
/// The message is invalid, or longer than `most` bytes.
pub(super) fn unframe<T: DeserializeOwned>(
    bytes: &[u8],
    most: usize,
) -> Result<Option<Unframed<'_, T>>, Malformed> {
    let Ok(([len, of_json], _)) = <[u32; 2]>::read_from_prefix(bytes) else { return Ok(None) };
    let len = len as usize;
    if !(8..=most).contains(&len) {
        return Err(Malformed);
    }
    let Some(body) = bytes.get(8..len) else { return Ok(None) };
    let (json, numbers) = body.split_at_checked(of_json as usize).ok_or(Malformed)?;
    let message = serde_json::from_slice(json).map_err(|_| Malformed)?;
    Ok(Some((message, numbers, len)))
}

/// The error of a client that receives an invalid message.
pub(super) fn malformed() -> Error {
    let text = "the process that reads for this node sent what no version of dlfs sends";
    Error::new(ErrorKind::Internal, text)
}

/// The version of these messages.
pub(super) const PROTOCOL: u32 = 3;

/// Limit of the length of a client's message.
pub(super) const MAX_TO_OWNER_BYTES: usize = 1 << 10;

/// Set in an offset that is one of the loose bytes, and not of the window.
pub(super) const LOOSE: u64 = 1 << 63;

/// Limit of the length of an owner's message: more than any batch has.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> Vec<ToClient> {
        let loose = Some(SealedLocation { pid: 1, fd: 2, dev: 3, ino: 4 });
        let head = BatchHead {
            turn: 7,
            cause: 2,
            ends_epoch: true,
            entry: 1 << 40,
            epoch: 3,
            after: (4, 0),
            place: Some(RowPlace { position: 1, tokens: 2, rows: 3, check: 0 }),
            skipped: 1,
            loose,
        };
        let sample = SamplePlace { id: 9, offset: LOOSE | 4096, len: 17, source: 1 };
        let segment = Segment { row: 0, column: 2, document: 1, from: 7, len: 5 };
        let rows = Layout {
            num_rows: 2,
            seq_len: 9,
            segments: vec![segment, Segment { row: 1, ..segment }],
        };
        let mut all = vec![
            ToClient::Welcome { protocol: PROTOCOL, window_len: 256 << 20 },
            ToClient::Batch(head, vec![sample, SamplePlace { id: 10, ..sample }], rows),
            ToClient::Batch(
                BatchHead { loose: None, place: None, ends_epoch: false, ..head },
                Vec::new(),
                Layout::default(),
            ),
            ToClient::End { turn: 3 },
            ToClient::Holders(vec![1, 5]),
        ];
        let kinds = [ErrorKind::NotFound, ErrorKind::Busy, ErrorKind::DeviceLost];
        all.extend(kinds.map(|kind| ToClient::Failed { turn: 7, kind, text: "why: ä".into() }));
        all
    }

    #[test]
    fn messages_are_read_as_written_once_they_are_complete() {
        for message in messages() {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            for len in 0..bytes.len() {
                assert_eq!(ToClient::parse(&bytes[..len]), Ok(None));
            }
            let len = bytes.len();
            bytes.push(1);
            assert_eq!(ToClient::parse(&bytes), Ok(Some((message, len))));
        }
        for message in [
            ToOwner::Hello { protocol: PROTOCOL, seat: 3 },
            ToOwner::Want { turn: 2, position: (5, 6) },
            ToOwner::Took { turn: 2 },
            ToOwner::Release { entry: 1 << 40 },
            ToOwner::Why,
            ToOwner::Leave,
        ] {
            let mut bytes = Vec::new();
            frame(&message, &[], &mut bytes);
            let read = unframe(&bytes, MAX_TO_OWNER_BYTES);
            assert_eq!(read, Ok(Some((message, &[][..], bytes.len()))));
        }
        assert_eq!(unframe::<ToOwner>(&[9; 24], MAX_TO_OWNER_BYTES), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..7) {
            let _ = ToClient::parse(&bytes);
            let len = bytes.len() as u32;
            if len >= 8 {
                bytes[..4].copy_from_slice(&len.to_le_bytes());
                bytes[4..8].copy_from_slice(&u32::from(kind).to_le_bytes());
                let _ = ToClient::parse(&bytes);
            }
        }
    }
}
