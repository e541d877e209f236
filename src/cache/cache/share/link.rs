//! Connection of an attached process to the owner: [`Link`] sends pages to keep, and detects the owner's end.
//!
//! The process sends [`Frame`]s, which the owner reads by [`parse`]. On the socket a frame has four fields: the length
//! of its JSON and the length of its pages in bytes, as little-endian 64-bit numbers; the JSON; the bytes of the pages
//! of a [`Frame::Piece`].

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use serde::{Deserialize, Serialize};

use crate::cache::{Held, TierPlan};
use dlfs_base::buf::IoBuf;
use dlfs_base::error::Result;
use dlfs_base::process::NotInherited;
use dlfs_base::threads::{self, Fate, Thread};
use dlfs_order::tier::{PAGE_BYTES, PageSet, Units};

/// A [`Frame`] to be sent, which owns its bytes of pages.
pub(in crate::cache) type Message = Frame<IoBuf>;

/// A connection to the owner of the tiers, with two threads: one sends messages, one waits for the owner's
/// end.
pub(in crate::cache) struct Link {
    /// Queue of messages; `None` ends it.
    messages: Sender<Option<Message>>,
    connection: Arc<Connection>,
    /// Disconnected once the connection has ended.
    pub(in crate::cache) ended: Receiver<Infallible>,
    /// The threads end with the connection; nobody joins them.
    _threads: [Thread; 2],
}

/// The state that both threads share.
struct Connection {
    /// Cleared once the connection has ended.
    is_alive: AtomicBool,
    /// Bytes of pages in the queue.
    queued_bytes: AtomicUsize,
    /// Keeps forked children from holding the socket open, so that the owner notices the end of this process.
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
        let (open, ended) = bounded(0);
        let connection = Arc::new(Connection {
            is_alive: AtomicBool::new(true),
            queued_bytes: AtomicUsize::new(0),
            _own: NotInherited::close(stream.as_fd()),
            stream,
        });
        let sending =
            Sending { connection: Arc::clone(&connection), messages: received, _open: open };
        let waiting = (Arc::clone(&connection), messages.clone());
        let threads = [
            threads::start(SENDER, &Fate::default(), sending, Sending::run)?,
            threads::start(WATCHER, &Fate::default(), waiting, |(connection, messages)| {
                // The owner sends nothing after its first message, and `read_exact` retries after a signal:
                // it returns only when the connection has ended.
                let _ = (&mut &connection.stream).read_exact(&mut [0]);
                connection.is_alive.store(false, Ordering::Release);
                let _ = messages.send(None); // wakes the sender
            })?,
        ];
        Ok(Link { messages, connection, ended, _threads: threads })
    }

    /// Returns whether the connection to the owner is open.
    pub(in crate::cache) fn is_alive(&self) -> bool {
        self.connection.is_alive.load(Ordering::Acquire)
    }

    /// Bytes of pages in the queue; the caller adds them before it queues a message.
    pub(in crate::cache) fn queued_bytes(&self) -> &AtomicUsize {
        &self.connection.queued_bytes
    }

    /// Queues a message; messages are sent in order.
    pub(in crate::cache) fn send(&self, message: Message) {
        let _ = self.messages.send(Some(message)); // fails only when the connection has ended
    }

    /// Returns whether no message is queued, or the connection has ended.
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
        self.connection.is_alive.store(false, Ordering::Release);
        let _ = self.connection.stream.shutdown(Shutdown::Both); // fails only when the connection has ended
        let _ = self.messages.send(None);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// The state of the thread that sends messages.
struct Sending {
    connection: Arc<Connection>,
    messages: Receiver<Option<Message>>,
    /// Dropping it disconnects [`Link::ended`].
    _open: Sender<Infallible>,
}

impl Drop for Sending {
    /// Ends the connection, also when the thread panics.
    fn drop(&mut self) {
        self.connection.is_alive.store(false, Ordering::Release);
        let _ = self.connection.stream.shutdown(Shutdown::Both); // wakes the thread that waits for the owner's end
    }
}

impl Sending {
    /// Sends messages until the queue or the connection ends.
    fn run(&mut self) {
        while let Ok(Some(message)) = self.messages.recv() {
            if let Err(error) = self.send(&message) {
                tracing::debug!(%error, "the owner of the tiers takes no more data");
                break;
            }
        }
    }

    fn send(&self, message: &Message) -> std::io::Result<()> {
        let mut stream = &self.connection.stream;
        stream.write_all(&message.head())?;
        stream.write_all(message.data())?;
        self.connection.queued_bytes.fetch_sub(message.data().len(), Ordering::AcqRel);
        Ok(())
    }
}

/// A message to the owner; `B` holds the bytes of pages.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cache) enum Frame<B> {
    /// The copies of these pages were corrupt or unreadable; they are no longer published.
    Corrupt { unit: u32, pages: PageSet },
    /// The process has claimed these pages, and reads them from the origin.
    Expect { unit: u32, pages: PageSet },
    /// The bytes of contiguous pages that were announced by `Expect`.
    Piece {
        unit: u32,
        pages: PageSet,
        #[serde(skip)]
        bytes: B,
    },
    /// Announced pages will not arrive; they are no longer claimed.
    Gone { unit: u32, pages: PageSet },
    /// The process's plan of the pages to keep. The owner assigns the tiers.
    Plan(Arc<TierPlan>),
    /// The chunks that the process holds for other nodes.
    Hold(Held),
}

/// Error: the message is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl<B: Deref<Target = [u8]>> Frame<B> {
    /// The lengths and the JSON; the bytes of pages follow them.
    pub(super) fn head(&self) -> Vec<u8> {
        let text = serde_json::to_vec(self).expect("numbers always become JSON");
        let lens = [text.len(), self.data().len()].map(|len| (len as u64).to_le_bytes());
        [lens.as_flattened(), &text[..]].concat()
    }

    fn data(&self) -> &[u8] {
        match self {
            Frame::Piece { bytes, .. } => bytes,
            _ => &[],
        }
    }

    /// Returns whether the message fits the data set.
    fn fits(&self, units: &Units) -> bool {
        let is_within = |unit: u32, pages: PageSet| {
            unit < units.len()
                && !pages.is_empty()
                && pages.without(units.get(unit).all()).is_empty()
        };
        match self {
            Frame::Corrupt { unit, pages }
            | Frame::Expect { unit, pages }
            | Frame::Gone { unit, pages } => is_within(*unit, *pages),
            Frame::Piece { unit, pages, bytes } => {
                let is_contiguous = pages.runs().count() == 1;
                is_within(*unit, *pages)
                    && is_contiguous
                    && bytes.len() as u64 == u64::from(pages.len()) * PAGE_BYTES
            }
            Frame::Plan(plan) => {
                // A plan has the number of reads of each portion. At most one portion begins in each page.
                let num_portions = plan.reads.len();
                plan.copies.len() <= num_portions
                    && num_portions as u64 <= units.num_pages()
                    && plan.copies.iter().all(|&(portion, _)| (portion as usize) < num_portions)
            }
            Frame::Hold(held) => {
                let mut end = 0;
                held.chunks.chunks().all(|(of, pages, _)| {
                    let is_next = end <= of.start && of.start < of.end && of.end <= units.len();
                    end = of.end;
                    is_next
                        && pages == of.map(|unit| u64::from(units.get(unit).pages())).sum::<u64>()
                })
            }
        }
    }
}

/// A message and its length; `None` if it is not complete yet.
type Parsed<'a> = Option<(Frame<&'a [u8]>, usize)>;

/// Parses the first message in `bytes`.
pub(super) fn parse<'a>(bytes: &'a [u8], units: &Units) -> Result<Parsed<'a>, Malformed> {
    let Some((lens, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let (lens, _) = lens.as_chunks::<8>();
    let [text_len, data_len] = [lens[0], lens[1]].map(u64::from_le_bytes);
    let max_json_bytes = MAX_OTHER_JSON_BYTES + units.num_pages() * MAX_JSON_BYTES_PER_PAGE;
    if text_len > max_json_bytes || data_len > MAX_DATA_BYTES {
        return Err(Malformed);
    }
    let Some(rest) = rest.get(..(text_len + data_len) as usize) else { return Ok(None) };
    let (text, data) = rest.split_at(text_len as usize);
    let mut frame: Frame<&[u8]> = serde_json::from_slice(text).map_err(|_| Malformed)?;
    if let Frame::Piece { bytes, .. } = &mut frame {
        *bytes = data;
    }
    let fits = frame.data().len() == data.len() && frame.fits(units);
    if fits { Ok(Some((frame, HEAD_BYTES + rest.len()))) } else { Err(Malformed) }
}

/// Timeout for an owner to receive the last data.
const LAST_SENDS: Duration = Duration::from_secs(5);

/// Names of the two threads.
const SENDER: &str = "dlfs-tiers-send";
const WATCHER: &str = "dlfs-tiers-watch";

/// Length of the two lengths at the start of a message.
pub(super) const HEAD_BYTES: usize = 16;

/// Limit of the bytes of pages: those of a unit.
const MAX_DATA_BYTES: u64 = 64 * PAGE_BYTES;

/// Limits of the JSON of a message: for each page of the data set, and for all else.
const MAX_JSON_BYTES_PER_PAGE: u64 = 128;
const MAX_OTHER_JSON_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use dlfs_order::tier::Holding;
    use proptest::prelude::*;

    fn units() -> Units {
        Units::from_pages([(0, 2), (2, 16)])
    }

    fn message(frame: &Frame<&[u8]>) -> Vec<u8> {
        [&frame.head()[..], frame.data()].concat()
    }

    /// Checks that the message is read as it was written once it is complete.
    fn check(frame: Frame<&[u8]>) {
        let mut bytes = message(&frame);
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len], &units()), Ok(None));
        }
        let len = bytes.len();
        bytes.push(1);
        assert_eq!(parse(&bytes, &units()), Ok(Some((frame, len))));
    }

    fn plan(copies: &[u32], reads: &[u16]) -> Frame<&'static [u8]> {
        let copies = copies.iter().map(|&portion| (portion, 0)).collect();
        Frame::Plan(Arc::new(TierPlan { copies, reads: reads.to_vec(), fingerprint: 7 }))
    }

    fn hold<const N: usize>(chunks: [(Range<u32>, u64, bool); N]) -> Frame<&'static [u8]> {
        Frame::Hold(Held { chunks: Holding::new(chunks), fills: true })
    }

    #[test]
    fn messages_are_read_as_written_once_they_are_complete() {
        let data = vec![7; 8192];
        let pages = PageSet(0b1100);
        check(Frame::Piece { unit: 1, pages, bytes: &data[..] });
        check(Frame::Corrupt { unit: 0, pages: PageSet(1) });
        check(Frame::Expect { unit: 1, pages });
        check(Frame::Gone { unit: 1, pages });
        check(plan(&[1, 0], &[7, 65_535]));
        check(hold([(0..1, 2, false), (1..2, 16, true)]));
    }

    #[test]
    fn messages_that_do_not_fit_the_units_are_malformed() {
        let data = vec![7; 8192];
        let piece = |unit, pages| Frame::Piece { unit, pages: PageSet(pages), bytes: &data[..] };
        let wrong = [
            Frame::Expect { unit: 2, pages: PageSet(1) },
            Frame::Expect { unit: 0, pages: PageSet(0b100) },
            Frame::Gone { unit: 1, pages: PageSet::NONE },
            piece(0, 0b110),
            piece(1, 0b101),
            piece(1, 0b111),
            plan(&[2, 0], &[7, 7]),
            plan(&[0, 1, 0], &[7, 7]),
            plan(&[], &[7; 19]),
            hold([(0..2, 18, false), (1..2, 16, true)]),
            hold([(0..3, 18, false)]),
            hold([(0..1, 3, true)]),
        ];
        for frame in wrong {
            assert_eq!(parse(&message(&frame), &units()), Err(Malformed), "{frame:?}");
        }
    }

    #[test]
    fn messages_that_are_too_long_are_malformed_before_they_are_complete() {
        let head = |text: u64, data: u64| [text.to_le_bytes(), data.to_le_bytes()].concat();
        assert_eq!(parse(&head(6400, 1 << 18), &units()), Ok(None));
        assert_eq!(parse(&head(6401, 0), &units()), Err(Malformed));
        assert_eq!(parse(&head(0, (1 << 18) + 1), &units()), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            numbers in prop::collection::vec(any::<u32>(), 6),
        ) {
            let _ = parse(&bytes, &units());
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            let [a, b, c, d, e, f] = &numbers[..] else { unreachable!() };
            let plan = format!("{{\"copies\":[[{a},1],[{b},0]],\"reads\":[{c},{d}],\"fingerprint\":{e}}}");
            let units_of = format!("{{\"start\":{a},\"end\":{b}}}");
            let chunk = format!("{{\"units\":{units_of},\"pages\":{c},\"is_held\":true}}");
            for text in [
                format!("{{\"Expect\":{{\"unit\":{a},\"pages\":{b}}}}}"),
                format!("{{\"Piece\":{{\"unit\":{a},\"pages\":{f}}}}}"),
                format!("{{\"Plan\":{plan}}}"),
                format!("{{\"Hold\":{{\"chunks\":{{\"chunks\":[{chunk}]}},\"fills\":true}}}}"),
            ] {
                let len = (text.len() as u64).to_le_bytes();
                let _ = parse(&[&len[..], &[0; 8], text.as_bytes()].concat(), &units());
            }
        }
    }
}
