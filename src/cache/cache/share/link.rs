//! Attached process's side of a connection: sends pages to keep to the owner, and detects the owner's end.
//!
//! Its messages follow the connection's first message:
//!
//! | bytes  | field   | meaning                                                          |
//! |--------|---------|------------------------------------------------------------------|
//! | 0..4   | `kind`  | 1 corrupt, 2 expect, 3 piece, 4 gone, 5 plan, 6 hold             |
//! | 4..8   | `unit`  | index of the unit; kind 5: number of copies; kind 6: of chunks   |
//! | 8..16  | `pages` | bit i: the unit's page i; kind 3: contiguous, their bytes follow |
//!
//! For kind 5 (plan), `pages` is the number of portions of the data set. The portions of the plan's copies
//! follow, 4 bytes each, in the order of the first read; then the number of reads of each portion of the data
//! set, 2 bytes each.
//!
//! For kind 6 (hold), bit 0 of `pages` is set if the copier must fetch all held chunks. The chunks of the
//! data set follow, 12 bytes each: first unit, unit after the last, 1 if the chunk is held or 0. All numbers
//! are little-endian.

use std::borrow::Cow;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::ops::{Deref, Range};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::cache::{Held, TierPlan};
use dlfs_base::buf::IoBuf;
use dlfs_base::error::Result;
use dlfs_base::process::NotInherited;
use dlfs_base::threads::{self, Fate, Thread};
use dlfs_order::tier::{Holding, PAGE_BYTES, PageSet, Units};

/// A message to the owner.
pub(in crate::cache) type Message = Frame<IoBuf>;

/// A connection to the owner of the tiers, with two threads: one sends messages, one waits for the owner's
/// end.
pub(in crate::cache) struct Link {
    /// Queue of messages; `None` ends it.
    messages: Sender<Option<Message>>,
    connection: Arc<Connection>,
    is_alive: Arc<AtomicBool>,
    pub(in crate::cache) queued_bytes: Arc<AtomicUsize>,
    pub(in crate::cache) ended: Receiver<Infallible>,
    /// The threads end with the connection; nobody joins them.
    _threads: [Thread; 2],
}

/// The socket; forked children do not keep it open, so the owner notices the end of this process.
struct Connection {
    _own: NotInherited,
    stream: UnixStream,
}

impl Link {
    /// Starts the threads of a connection.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(in crate::cache) fn start(stream: UnixStream) -> Result<Link> {
        let (messages, received) = unbounded();
        let (held, ended) = bounded(0);
        let is_alive = Arc::new(AtomicBool::new(true));
        let queued_bytes = Arc::<AtomicUsize>::default();
        let own = NotInherited::close(stream.as_fd());
        let stream = Arc::new(Connection { _own: own, stream });
        let sending = Sending {
            connection: Arc::clone(&stream),
            messages: received,
            end: End { is_alive: Arc::clone(&is_alive), _held: held },
            queued_bytes: Arc::clone(&queued_bytes),
        };
        let end = Arc::clone(&is_alive);
        let waiting = (Arc::clone(&stream), messages.clone(), end);
        let threads = [
            threads::start(SENDER, &Fate::default(), sending, Sending::run)?,
            threads::start(WATCHER, &Fate::default(), waiting, |(connection, messages, end)| {
                // The owner sends nothing after its first message, and `read_exact` retries after a signal:
                // it returns only when the owner has ended.
                let _ = (&mut &connection.stream).read_exact(&mut [0]);
                end.store(false, Ordering::Release);
                let _ = messages.send(None); // wakes the sender
            })?,
        ];
        Ok(Link { messages, connection: stream, is_alive, queued_bytes, ended, _threads: threads })
    }

    /// Returns whether the connection to the owner is open.
    pub(in crate::cache) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Queues a message; messages are sent in order.
    pub(in crate::cache) fn send(&self, message: Message) {
        let _ = self.messages.send(Some(message)); // fails only when the connection has ended
    }

    /// Returns whether no message is queued.
    pub(in crate::cache) fn is_idle(&self) -> bool {
        self.messages.is_empty() || !self.is_alive()
    }

    /// Sends all queued messages, for up to [`LAST_SENDS`], and ends the connection.
    pub(in crate::cache) fn finish(&self) {
        let _ = self.messages.send(None); // fails only when the connection has ended
        let _ = self.ended.recv_timeout(LAST_SENDS); // nothing is sent: waits for the end or the timeout
        self.close();
    }

    /// Ends the connection; the threads end by themselves.
    fn close(&self) {
        self.is_alive.store(false, Ordering::Release);
        let _ = self.connection.stream.shutdown(Shutdown::Both); // fails only when the connection has ended
        let _ = self.messages.send(None);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Guard that marks the connection as ended, also when its thread panics.
struct End {
    is_alive: Arc<AtomicBool>,
    _held: Sender<Infallible>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.is_alive.store(false, Ordering::Release);
    }
}

struct Sending {
    connection: Arc<Connection>,
    messages: Receiver<Option<Message>>,
    end: End,
    queued_bytes: Arc<AtomicUsize>,
}

impl Sending {
    fn run(&mut self) {
        while let Ok(Some(message)) = self.messages.recv() {
            if let Err(error) = self.send(&message) {
                tracing::debug!(%error, "the owner of the tiers takes no more data");
                break;
            }
        }
        self.end.is_alive.store(false, Ordering::Release);
        let _ = self.connection.stream.shutdown(Shutdown::Both); // wakes the thread that waits for the owner's end
    }

    fn send(&self, message: &Message) -> std::io::Result<()> {
        let mut stream = &self.connection.stream;
        stream.write_all(&message.head())?;
        stream.write_all(&message.body())?;
        if let Message::Piece { bytes, .. } = message {
            self.queued_bytes.fetch_sub(bytes.len(), Ordering::AcqRel);
        }
        Ok(())
    }
}

/// A message; `B` holds the bytes of pages.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cache) enum Frame<B> {
    /// The copies of these pages were corrupt or unreadable; they are no longer published.
    Corrupt(u32, PageSet),
    /// The process has claimed these pages, and reads them from the origin.
    Expect(u32, PageSet),
    /// The bytes of contiguous pages that were announced by `Expect`.
    Piece { unit: u32, pages: PageSet, bytes: B },
    /// Announced pages will not arrive; they are no longer claimed.
    Gone(u32, PageSet),
    /// The process's plan of the pages to keep. The owner assigns the tiers.
    Plan(Arc<TierPlan>),
    /// The chunks that the process holds for other nodes.
    Hold(Held),
}

/// Error: the message is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl<B: Deref<Target = [u8]>> Frame<B> {
    /// The first bytes of the message.
    pub(super) fn head(&self) -> [u8; HEAD_BYTES] {
        let (kind, unit, pages) = match self {
            Frame::Corrupt(unit, pages) => (CORRUPT, *unit, pages.0),
            Frame::Expect(unit, pages) => (EXPECT, *unit, pages.0),
            Frame::Piece { unit, pages, .. } => (PIECE, *unit, pages.0),
            Frame::Gone(unit, pages) => (GONE, *unit, pages.0),
            Frame::Plan(plan) => (PLAN, plan.copies.len() as u32, plan.reads.len() as u64),
            Frame::Hold(held) => (HOLD, held.chunks.chunks().len() as u32, held.fills.into()),
        };
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&unit.to_le_bytes());
        head[8..].copy_from_slice(&pages.to_le_bytes());
        head
    }

    /// The bytes that follow the head.
    fn body(&self) -> Cow<'_, [u8]> {
        match self {
            Frame::Corrupt(..) | Frame::Expect(..) | Frame::Gone(..) => Cow::Borrowed(&[]),
            Frame::Piece { bytes, .. } => Cow::Borrowed(bytes),
            Frame::Plan(plan) => {
                let copies = plan.copies.iter().flat_map(|(unit, _)| unit.to_le_bytes());
                copies.chain(plan.reads.iter().flat_map(|reads| reads.to_le_bytes())).collect()
            }
            Frame::Hold(held) => {
                let words = |(units, _, is_held): (Range<u32>, u64, bool)| {
                    [units.start, units.end, is_held.into()]
                };
                held.chunks.chunks().flat_map(words).flat_map(u32::to_le_bytes).collect()
            }
        }
    }
}

/// A message and its length; `None` if it is not complete yet.
type Parsed<'a> = Option<(Frame<&'a [u8]>, usize)>;

/// Parses the first message in `bytes`.
pub(super) fn parse<'a>(bytes: &'a [u8], units: &Units) -> Result<Parsed<'a>, Malformed> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let kind = word(0);
    let unit = word(4);
    let pages = PageSet(u64::from(word(12)) << 32 | u64::from(word(8)));
    if kind == PLAN {
        return parse_plan(unit, pages.0, rest, units);
    }
    if kind == HOLD {
        return parse_hold(unit, pages.0 & 1 == 1, rest, units);
    }
    let is_right = unit < units.len() && pages.without(units.get(unit).all()).is_empty();
    if !is_right || pages.is_empty() {
        return Err(Malformed);
    }
    let frame = match kind {
        PIECE => {
            if pages.runs().count() != 1 {
                return Err(Malformed);
            }
            let len = pages.len() as usize * PAGE_BYTES as usize;
            let Some(bytes) = rest.get(..len) else { return Ok(None) };
            return Ok(Some((Frame::Piece { unit, pages, bytes }, HEAD_BYTES + len)));
        }
        CORRUPT => Frame::Corrupt(unit, pages),
        EXPECT => Frame::Expect(unit, pages),
        GONE => Frame::Gone(unit, pages),
        _ => return Err(Malformed),
    };
    Ok(Some((frame, HEAD_BYTES)))
}

fn parse_plan<'a>(
    num_copies: u32,
    num_portions: u64,
    rest: &'a [u8],
    units: &Units,
) -> Result<Parsed<'a>, Malformed> {
    // Without portions of their own, units are the portions.
    if u64::from(num_copies) > num_portions || num_portions > units.num_pages() {
        return Err(Malformed);
    }
    let copies_len = num_copies as usize * 4;
    let reads_len = num_portions as usize * 2;
    let Some(bytes) = rest.get(..copies_len + reads_len) else { return Ok(None) };
    let (copies, reads) = bytes.split_at(copies_len);
    let (copies, _) = copies.as_chunks::<4>();
    let (reads, _) = reads.as_chunks::<2>();
    let copies: Vec<(u32, u8)> =
        copies.iter().map(|&portion| (u32::from_le_bytes(portion), 0)).collect();
    if copies.iter().any(|&(portion, _)| u64::from(portion) >= num_portions) {
        return Err(Malformed);
    }
    let reads = reads.iter().map(|&reads| u16::from_le_bytes(reads)).collect();
    let plan = TierPlan { copies, reads, fingerprint: 0 };
    Ok(Some((Frame::Plan(Arc::new(plan)), HEAD_BYTES + bytes.len())))
}

fn parse_hold<'a>(
    num_chunks: u32,
    fills: bool,
    rest: &'a [u8],
    units: &Units,
) -> Result<Parsed<'a>, Malformed> {
    if num_chunks > units.len() {
        return Err(Malformed);
    }
    let Some(bytes) = rest.get(..num_chunks as usize * CHUNK_BYTES) else { return Ok(None) };
    let mut chunks = Vec::with_capacity(num_chunks as usize);
    let mut end = 0;
    for chunk in bytes.as_chunks::<CHUNK_BYTES>().0 {
        let [start, behind, is_held] = [0, 4, 8]
            .map(|at| u32::from_le_bytes([chunk[at], chunk[at + 1], chunk[at + 2], chunk[at + 3]]));
        if start < end || behind <= start || behind > units.len() || is_held > 1 {
            return Err(Malformed);
        }
        let pages = (start..behind).map(|unit| u64::from(units.get(unit).pages())).sum();
        chunks.push((start..behind, pages, is_held == 1));
        end = behind;
    }
    let held = Held { chunks: Holding::new(chunks), fills };
    Ok(Some((Frame::Hold(held), HEAD_BYTES + bytes.len())))
}

/// Timeout for an owner to receive the last data.
const LAST_SENDS: Duration = Duration::from_secs(5);

const SENDER: &str = "dlfs-tiers-send";
const WATCHER: &str = "dlfs-tiers-watch";

/// Length of one chunk in a message of kind 6 (hold).
const CHUNK_BYTES: usize = 12;

pub(super) const HEAD_BYTES: usize = 16;

const CORRUPT: u32 = 1;
const EXPECT: u32 = 2;
const PIECE: u32 = 3;
const GONE: u32 = 4;
const PLAN: u32 = 5;
const HOLD: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn units() -> Units {
        Units::from_pages([(0, 2), (2, 16)])
    }

    fn message(frame: &Frame<&[u8]>) -> Vec<u8> {
        [&frame.head()[..], &frame.body()].concat()
    }

    #[test]
    fn messages_are_read_as_written_once_they_are_complete() {
        let data = vec![7; 8192];
        let pages = PageSet(0b1100);
        let piece = Frame::Piece { unit: 1, pages, bytes: &data[..] };
        let frames =
            [Frame::Corrupt(0, PageSet(1)), Frame::Expect(1, pages), Frame::Gone(1, pages)];
        for frame in frames.into_iter().chain([piece]) {
            let mut bytes = message(&frame);
            for len in 0..bytes.len() {
                assert_eq!(parse(&bytes[..len], &units()), Ok(None));
            }
            let len = bytes.len();
            bytes.push(1);
            assert_eq!(parse(&bytes, &units()), Ok(Some((frame, len))));
        }
    }

    #[test]
    fn a_plan_is_read_as_it_was_written_and_waits_for_its_end() {
        let plan =
            TierPlan { copies: vec![(1, 0), (0, 0)], reads: vec![7, 65_535], fingerprint: 0 };
        let plan = Arc::new(plan);
        let mut bytes = message(&Frame::Plan(Arc::clone(&plan)));
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len], &units()), Ok(None));
        }
        let len = bytes.len();
        bytes.push(1);
        assert_eq!(parse(&bytes, &units()), Ok(Some((Frame::Plan(plan), len))));
        bytes[HEAD_BYTES] = 2;
        assert_eq!(parse(&bytes, &units()), Err(Malformed), "there are two portions");
        bytes[4] = 3;
        assert_eq!(parse(&bytes, &units()), Err(Malformed), "more copies than portions");
        (bytes[4], bytes[8]) = (0, 19);
        assert_eq!(parse(&bytes, &units()), Err(Malformed), "more portions than pages");
    }

    #[test]
    fn what_a_process_holds_is_read_as_it_was_written_and_waits_for_its_end() {
        let chunks = Holding::new([(0..1, 2, false), (1..2, 16, true)]);
        let held = Held { chunks, fills: true };
        let mut bytes = message(&Frame::Hold(held.clone()));
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len], &units()), Ok(None));
        }
        let len = bytes.len();
        bytes.push(1);
        assert_eq!(parse(&bytes, &units()), Ok(Some((Frame::Hold(held), len))));
        for (at, wrong, why) in [
            (4, 3, "more chunks than units"),
            (HEAD_BYTES + 4, 2, "chunks that overlap"),
            (HEAD_BYTES + CHUNK_BYTES + 4, 3, "there are two units"),
            (HEAD_BYTES + 8, 2, "neither held nor not"),
            (HEAD_BYTES + 4, 0, "a chunk without units"),
        ] {
            let mut bytes = bytes.clone();
            bytes[at] = wrong;
            assert_eq!(parse(&bytes, &units()), Err(Malformed), "{why}");
        }
    }

    #[test]
    fn messages_that_do_not_fit_the_units_are_malformed() {
        let piece = |unit, pages| Frame::Piece { unit, pages: PageSet(pages), bytes: &[][..] };
        let wrong = [
            Frame::Expect(2, PageSet(1)),
            Frame::Expect(0, PageSet(0b100)),
            Frame::Gone(1, PageSet::NONE),
            piece(0, 0b110),
            piece(1, 0b101),
        ];
        for frame in wrong {
            assert_eq!(parse(&frame.head(), &units()), Err(Malformed), "{frame:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), kind in 0_u8..7) {
            let _ = parse(&bytes, &units());
            let mut close = vec![kind, 0, 0, 0, 1, 0, 0, 0];
            close.extend(bytes);
            let _ = parse(&close, &units());
        }
    }
}
