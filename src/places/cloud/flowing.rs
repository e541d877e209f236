//! Reads one object, and returns its bytes as they arrive: a process can read many objects at once with little memory.
//!
//! A task requests range after range. It stops receiving while the reader takes nothing. So a reader needs memory for a
//! few pieces, whatever the length of a range. Over HTTP/1.1 each request has its own connection, so a reader that
//! takes nothing does not hold up others.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::executor::Asked;
use super::failure::Failure;
use super::fetch::StoreShared;
use super::wanted::Wanted;
use super::watch::Note;
use dlfs_base::error::{Error, Result};

/// Bytes of one object, front to back. Dropping it ends its requests.
pub(super) struct Flowing {
    pieces: mpsc::Receiver<Vec<u8>>,
    /// The task, or its error; `None`: it has ended.
    asked: Option<Result<Asked<()>>>,
    /// The piece that is being read.
    current: Vec<u8>,
    /// Number of bytes of the piece that were read.
    read: usize,
}

impl Flowing {
    /// Calls `ask` to start the task, which runs [`flow`] with the given sender.
    pub(super) fn begin(ask: impl FnOnce(mpsc::Sender<Vec<u8>>) -> Result<Asked<()>>) -> Flowing {
        let (send, pieces) = mpsc::channel(PIECES_AHEAD);
        Flowing { pieces, asked: Some(ask(send)), current: Vec::new(), read: 0 }
    }

    /// The next bytes: the rest of a piece, which has [`PIECE_BYTES`] unless it is the last one. Empty at the
    /// end of the object.
    ///
    /// # Errors
    /// As [`Pending::read_into`](super::Pending::read_into). Each later call returns the error again.
    pub(super) fn bytes(&mut self) -> Result<&[u8]> {
        while self.read == self.current.len()
            && let Some(asked) = self.asked.take()
        {
            match asked.and_then(|asked| Flowing::next(asked, &mut self.pieces)) {
                Ok(None) => {}
                Ok(Some((asked, piece))) => {
                    (self.current, self.read) = (piece, 0);
                    self.asked = Some(Ok(asked));
                }
                Err(error) => {
                    self.asked = Some(Err(error.to_others()));
                    return Err(error);
                }
            }
        }
        Ok(&self.current[self.read..])
    }

    /// The next piece; `None`: the task has ended.
    fn next(
        asked: Asked<()>,
        pieces: &mut mpsc::Receiver<Vec<u8>>,
    ) -> Result<Option<(Asked<()>, Vec<u8>)>> {
        match asked.next_of(pieces)? {
            Some(piece) => Ok(Some((asked, piece))),
            None => asked.wait().map(|()| None),
        }
    }

    /// Marks `len` bytes as read.
    pub(super) fn consume(&mut self, len: usize) {
        self.read += len;
    }
}

impl std::fmt::Debug for Flowing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flowing").field("has_ended", &self.asked.is_none()).finish_non_exhaustive()
    }
}

/// Sends the wanted bytes, in pieces, as long as there is a receiver. If a response ends early, requests the rest
/// again.
pub(super) async fn flow(
    shared: &StoreShared,
    wanted: Wanted,
    send: &mpsc::Sender<Vec<u8>>,
) -> Result<()> {
    let note = Note::default();
    let key = wanted.key.as_ref();
    let named = |error: Error| error.target(shared.place.with_key(key).to_string());
    let Range { start: mut at, end } = wanted.range;
    let mut piece = Vec::new();
    let mut broken = Broken::default();
    while at < end && !send.is_closed() {
        let range = at..end.min(at + shared.options.range_bytes.max(1));
        let part = Wanted { range, ..wanted.clone() };
        let answer = shared.again(key, &note, || begin(shared, &part, &note)).await;
        let answer = answer.map_err(named)?;
        let arrived = receive(shared, &part, &note, answer, &mut piece, send).await;
        shared.count_bytes(arrived.bytes);
        at += arrived.bytes;
        if arrived.bytes >= PIECE_BYTES as u64 {
            broken = Broken::default(); // a store may close a connection from which nobody took bytes for long
        }
        match arrived.failure {
            None => broken = Broken::default(),
            Some(Failure::Final(error)) => return Err(named(error)),
            Some(failure) => {
                shared.connections.counts.retries.fetch_add(1, Ordering::Relaxed);
                broken.answers += 1;
                broken.waited += arrived.waited;
                let is_late = broken.waited > shared.options.patience;
                if is_late || broken.answers == MOST_BROKEN {
                    return Err(named(failure.given_up(broken.answers, true)));
                }
                tokio::time::sleep(PAUSE * broken.answers).await;
            }
        }
    }
    let _ = send.send(piece).await; // nobody may wait for it
    Ok(())
}

/// Consecutive responses that ended early with less than a piece.
#[derive(Default)]
struct Broken {
    answers: u32,
    /// Total time of waiting for their bytes.
    waited: Duration,
}

/// The body of a response that has begun.
struct BegunBody<S> {
    /// The first bytes of the body, at least one.
    first: Vec<u8>,
    /// The rest of the body.
    rest: S,
}

/// Requests a range, and waits for the first bytes of the response.
async fn begin(
    shared: &StoreShared,
    part: &Wanted,
    note: &Note,
) -> Result<BegunBody<impl Stream<Item = object_store::Result<impl AsRef<[u8]>>> + Unpin>, Failure>
{
    let limit = shared.options.silence;
    let late = |_| Failure::late(format!("there is no answer after {limit:?}"));
    let permit = shared.enter().await;
    let sent = Instant::now();
    let answer = timeout(limit, shared.answer(part, None, note)).await;
    let answer = answer.map_err(late).and_then(|answer| answer);
    shared.ended(sent, answer.as_ref().err());
    let answer = answer?;
    shared.answered(sent.elapsed());
    if answer.range != part.range {
        return Err(Failure::bad_answer(format!("the answer is of bytes {:?}", answer.range)));
    }
    drop(permit); // the reader may take the bytes slowly
    let mut rest = answer.into_stream();
    loop {
        match timeout(limit, rest.next()).await.map_err(late)? {
            Some(Ok(first)) if first.is_empty() => {}
            Some(Ok(first)) => return Ok(BegunBody { first: first.to_vec(), rest }),
            Some(Err(error)) => return Err(Failure::of(&error, note.read())),
            None => return Err(Failure::bad_answer("the answer has no bytes".to_owned())),
        }
    }
}

/// The part of a range that arrived.
struct Arrived {
    /// Number of bytes.
    bytes: u64,
    /// Total time of waiting for the store.
    waited: Duration,
    /// The reason why the rest did not arrive.
    failure: Option<Failure>,
}

/// Receives the range `part` as far as it arrives. Appends its bytes to `piece`, and sends each piece that is full.
async fn receive(
    shared: &StoreShared,
    part: &Wanted,
    note: &Note,
    mut answer: BegunBody<impl Stream<Item = object_store::Result<impl AsRef<[u8]>>> + Unpin>,
    piece: &mut Vec<u8>,
    send: &mpsc::Sender<Vec<u8>>,
) -> Arrived {
    let len = part.range.end - part.range.start;
    let most = shared.most_time(len);
    let mut arrived = Arrived { bytes: 0, waited: Duration::ZERO, failure: None };
    let mut has_receiver = append(&answer.first, len, &mut arrived, piece, send).await;
    while has_receiver && arrived.failure.is_none() && arrived.bytes < len {
        let begun = Instant::now();
        let limit = shared.options.silence.min(most.saturating_sub(arrived.waited));
        let next = timeout(limit, answer.rest.next()).await;
        arrived.waited += begun.elapsed();
        arrived.failure = match next {
            Ok(Some(Ok(bytes))) => {
                has_receiver = append(bytes.as_ref(), len, &mut arrived, piece, send).await;
                None
            }
            Ok(Some(Err(error))) => Some(Failure::of(&error, note.read())),
            Ok(None) => Some(Failure::bad_answer("the answer ends early".to_owned())),
            Err(_) => Some(Failure::late(format!("the answer is not complete after {limit:?}"))),
        };
    }
    arrived
}

/// Appends `bytes`, as far as they belong to a range of `len`, to `piece`, and sends each piece that is full. Returns
/// whether there is a receiver.
///
/// Pieces have the same capacity, unless the range has less left: so the allocator uses the memory of one again for the
/// next. Pieces that grow would leave gaps of all sizes.
async fn append(
    mut bytes: &[u8],
    len: u64,
    arrived: &mut Arrived,
    piece: &mut Vec<u8>,
    send: &mpsc::Sender<Vec<u8>>,
) -> bool {
    while !bytes.is_empty() && arrived.bytes < len {
        let left = len - arrived.bytes;
        if piece.capacity() == 0 {
            piece.reserve_exact(left.min(PIECE_BYTES as u64) as usize);
        }
        let now = left.min(bytes.len().min(PIECE_BYTES - piece.len()) as u64) as usize;
        piece.extend_from_slice(&bytes[..now]);
        arrived.bytes += now as u64;
        bytes = &bytes[now..];
        if piece.len() == PIECE_BYTES && send.send(std::mem::take(piece)).await.is_err() {
            return false;
        }
    }
    true
}

/// Pieces that wait for a reader, besides the one being read and the one being received.
const PIECES_AHEAD: usize = 2;
/// Length of a piece, except the last one.
const PIECE_BYTES: usize = 256 << 10;
/// Consecutive broken responses after which the read fails.
const MOST_BROKEN: u32 = 32;
/// The pause after the first broken response; after the n-th, n times this.
const PAUSE: Duration = Duration::from_millis(20);
