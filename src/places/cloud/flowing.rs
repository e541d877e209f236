//! The bytes of an object as they arrive: for readers of many objects that can hold little of each.
//!
//! A task requests range after range. It stops to receive while nobody takes what it has, so the store's connection
//! waits, and the memory of a reader is a few pieces, whatever the length of a range. By HTTP/1.1 each request has a
//! connection of its own, so a reader that waits holds up no other.

use std::ops::Range;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::executor::Asked;
use super::fetch::{Shared, Wanted};
use super::watch::{Failure, Note};
use dlfs_base::error::{Error, Result};

/// Bytes of one object, front to back. Dropping it ends its requests.
pub(super) struct Flowing {
    pieces: mpsc::Receiver<Vec<u8>>,
    /// The task; `None`: it has ended.
    asked: Option<Result<Asked<()>>>,
    current: Vec<u8>,
    read: usize,
}

impl Flowing {
    /// Calls `ask` to run [`flow`] with a sender.
    pub(super) fn begin(ask: impl FnOnce(mpsc::Sender<Vec<u8>>) -> Result<Asked<()>>) -> Flowing {
        let (send, pieces) = mpsc::channel(PIECES_AHEAD);
        Flowing { pieces, asked: Some(ask(send)), current: Vec::new(), read: 0 }
    }

    /// The next bytes: the rest of a piece, which ends within the object only behind [`PIECE_BYTES`]. Empty at the end.
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

    pub(super) fn consume(&mut self, len: usize) {
        self.read += len;
    }
}

impl std::fmt::Debug for Flowing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flowing").field("has_ended", &self.asked.is_none()).finish_non_exhaustive()
    }
}

/// Sends the wanted bytes, in pieces, as long as there is a receiver.
pub(super) async fn flow(
    shared: &Shared,
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
        let begun = shared.again(key, &note, || begin(shared, &part, &note)).await;
        let arrived =
            receive(shared, (&part, &note), begun.map_err(named)?, &mut piece, send).await;
        shared.count_bytes(arrived.bytes);
        at += arrived.bytes;
        if arrived.bytes >= PIECE_BYTES as u64 {
            broken = Broken::default(); // a store may end an answer that nobody took for long
        }
        match arrived.failure {
            None => broken = Broken::default(),
            Some(Failure::Final(error)) => return Err(named(error)),
            Some(failure) => {
                shared.count_retry();
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

/// Answers that ended early since the last one that brought a piece, and the time for which they were waited for.
#[derive(Default)]
struct Broken {
    answers: u32,
    waited: Duration,
}

/// Requests a range, and waits for its first bytes. Returns them, and those behind them.
async fn begin(
    shared: &Shared,
    part: &Wanted,
    note: &Note,
) -> Result<(Vec<u8>, impl Stream<Item = object_store::Result<impl AsRef<[u8]>>> + Unpin), Failure>
{
    let limit = shared.options.silence;
    let late = |_| Failure::late(format!("there is no answer after {limit:?}"));
    let slot = shared.enter().await;
    let sent = Instant::now();
    let answer = timeout(limit, shared.answer(part, None, note)).await;
    let answer = answer.map_err(late).and_then(|answer| answer);
    shared.ended(sent, answer.as_ref().err());
    let answer = answer?;
    shared.answered(sent.elapsed());
    if answer.range != part.range {
        return Err(Failure::bad_answer(format!("the answer is of bytes {:?}", answer.range)));
    }
    drop(slot); // whoever takes the bytes may take long
    let mut body = answer.into_stream();
    loop {
        match timeout(limit, body.next()).await.map_err(late)? {
            Some(Ok(first)) if first.is_empty() => {}
            Some(Ok(first)) => return Ok((first.to_vec(), body)),
            Some(Err(error)) => return Err(Failure::of(&error, note.read())),
            None => return Err(Failure::bad_answer("the answer has no bytes".to_owned())),
        }
    }
}

/// The bytes of a range that arrived.
struct Arrived {
    bytes: u64,
    /// The time for which the store was waited for.
    waited: Duration,
    /// The reason why they are not all.
    failure: Option<Failure>,
}

/// Receives a range as far as it arrives: what is missing is requested again.
async fn receive(
    shared: &Shared,
    (part, note): (&Wanted, &Note),
    (first, mut body): (
        Vec<u8>,
        impl Stream<Item = object_store::Result<impl AsRef<[u8]>>> + Unpin,
    ),
    piece: &mut Vec<u8>,
    send: &mpsc::Sender<Vec<u8>>,
) -> Arrived {
    let len = part.range.end - part.range.start;
    let most = shared.most_time(len);
    let mut arrived = Arrived { bytes: 0, waited: Duration::ZERO, failure: None };
    let take = |bytes: &[u8], arrived: &mut Arrived, piece: &mut Vec<u8>| {
        let left = (len - arrived.bytes).min(bytes.len() as u64);
        piece.extend_from_slice(&bytes[..left as usize]);
        arrived.bytes += left;
    };
    take(&first, &mut arrived, piece);
    while arrived.failure.is_none() {
        if piece.len() >= PIECE_BYTES && send.send(std::mem::take(piece)).await.is_err() {
            break;
        }
        if arrived.bytes == len {
            break;
        }
        let begun = Instant::now();
        let limit = shared.options.silence.min(most.saturating_sub(arrived.waited));
        let next = timeout(limit, body.next()).await;
        arrived.waited += begun.elapsed();
        arrived.failure = match next {
            Ok(Some(Ok(bytes))) => {
                take(bytes.as_ref(), &mut arrived, piece);
                None
            }
            Ok(Some(Err(error))) => Some(Failure::of(&error, note.read())),
            Ok(None) => Some(Failure::bad_answer("the answer ends early".to_owned())),
            Err(_) => Some(Failure::late(format!("the answer is not complete after {limit:?}"))),
        };
    }
    arrived
}

/// Pieces that wait for a reader, beside the one it reads and the one that arrives.
const PIECES_AHEAD: usize = 2;
/// Length of a piece at least, but for the last one.
const PIECE_BYTES: usize = 256 << 10;
/// Answers one after the other that may end early with less than a piece, and the pause behind each, which grows.
const MOST_BROKEN: u32 = 32;
const PAUSE: Duration = Duration::from_millis(20);
