//! Disks in memory that share their contents page by page, and a recorder of writes.
//!
//! All structures of an image begin and end at multiples of 4,096 bytes, so a write is a list of pages, and
//! thousands of contents that differ in a few pages need little more memory than one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use dlfs::Result;
use dlfs::format::superblock::COPY_OFFSETS;
use dlfs::qpair::{Capabilities, Completion, Device, Io, IoOp, Namespace, PairScope, QueuePair};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::support::random::Random;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// The unit that reaches the medium atomically.
pub const SECTOR_BYTES: usize = 512;

/// One page and its hash.
pub struct Page {
    hash: u64,
    bytes: [u8; PAGE_BYTES],
}

impl Page {
    pub fn new(bytes: [u8; PAGE_BYTES]) -> Arc<Page> {
        Arc::new(Page { hash: xxh3_64_with_seed(&bytes, 0), bytes })
    }

    /// The sectors of `self` that `mask` selects, the others of `below`.
    pub fn over(self: &Arc<Page>, below: &Arc<Page>, mask: u8) -> Arc<Page> {
        match mask {
            0 => Arc::clone(below),
            u8::MAX => Arc::clone(self),
            _ => {
                let mut bytes = below.bytes;
                for sector in (0..8).filter(|sector| mask >> sector & 1 == 1) {
                    let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                    bytes[range.clone()].copy_from_slice(&self.bytes[range]);
                }
                Page::new(bytes)
            }
        }
    }

    /// The sectors in which the two differ.
    pub fn difference(&self, other: &Page) -> u8 {
        let pairs = self.bytes.chunks(SECTOR_BYTES).zip(other.bytes.chunks(SECTOR_BYTES));
        pairs.enumerate().fold(0, |mask, (sector, (a, b))| mask | u8::from(a != b) << sector)
    }
}

/// The contents of one disk.
#[derive(Clone)]
pub struct Content {
    pages: Vec<Arc<Page>>,
    /// Equal for equal contents; different ones collide with probability 2^-64.
    hash: u64,
}

impl Content {
    pub fn zeroes(num_pages: usize) -> Content {
        static ZERO: OnceLock<Arc<Page>> = OnceLock::new();
        let zero = ZERO.get_or_init(|| Page::new([0; PAGE_BYTES]));
        let pages = vec![Arc::clone(zero); num_pages];
        let hash = pages.iter().enumerate().fold(0, |sum, (at, page)| sum ^ mix(at, page));
        Content { pages, hash }
    }

    pub fn page(&self, at: usize) -> &Arc<Page> {
        &self.pages[at]
    }

    pub fn set(&mut self, at: usize, page: Arc<Page>) {
        self.hash ^= mix(at, &self.pages[at]) ^ mix(at, &page);
        self.pages[at] = page;
    }

    pub fn destroy_superblocks(&mut self) {
        for offset in COPY_OFFSETS {
            self.set(offset as usize / PAGE_BYTES, Page::new([0xA5; PAGE_BYTES]));
        }
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let page = (offset + done) / PAGE_BYTES;
            let start = (offset + done) % PAGE_BYTES;
            let count = (PAGE_BYTES - start).min(into.len() - done);
            let bytes = &self.pages[page].bytes[start..start + count];
            into[done..done + count].copy_from_slice(bytes);
            done += count;
        }
    }
}

fn mix(at: usize, page: &Page) -> u64 {
    xxh3_64_with_seed(&page.hash.to_le_bytes(), at as u64)
}

/// The history of a set of disks, in order.
pub enum Event {
    /// A write was submitted.
    Begin(Write),
    /// The write of this number was completed.
    End(usize),
    /// A flush completed that had been submitted when there were this many events.
    Flush { disk: usize, begun: usize },
    /// The command reported success.
    Acknowledged,
}

/// Whole pages in flight.
#[derive(Clone)]
pub struct Write {
    /// Its number; all others have another.
    pub number: usize,
    pub disk: usize,
    pub first_page: usize,
    pub pages: Vec<Arc<Page>>,
}

/// Several disks and their common history.
#[derive(Clone)]
pub struct Disks {
    namespace: Namespace,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    contents: Vec<Content>,
    /// The history, and when writes complete, if recording.
    record: Option<(Vec<Event>, Random)>,
    writes: usize,
}

impl Disks {
    pub fn holding(contents: Vec<Content>) -> Disks {
        let namespace = Namespace {
            address: "mem".into(),
            block_len_bytes: SECTOR_BYTES as u32,
            num_blocks: (contents[0].pages.len() * PAGE_BYTES / SECTOR_BYTES) as u64,
            max_transfer_bytes: 32 << 10, // a chunk is several writes
            queue_depth: 64,
            nguid: [0; 16],
            read_only: false,
            engine: "mem".into(),
        };
        let shared = Shared { contents, record: None, writes: 0 };
        Disks { namespace, shared: Arc::new(Mutex::new(shared)) }
    }

    pub fn contents(&self) -> Vec<Content> {
        self.shared.lock().unwrap().contents.clone()
    }

    pub fn hash(&self) -> u64 {
        hash_of(&self.shared.lock().unwrap().contents)
    }

    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        let count = self.shared.lock().unwrap().contents.len();
        let device = |disk| Arc::new(Disk { disk, disks: self.clone() }) as Arc<dyn Device>;
        (0..count).map(device).collect()
    }

    /// Starts recording, and completes writes late and in any order.
    pub fn record(&self, random: Random) {
        self.shared.lock().unwrap().record = Some((Vec::new(), random));
    }

    pub fn acknowledge(&self) {
        let mut shared = self.shared.lock().unwrap();
        shared.record.as_mut().expect("it records").0.push(Event::Acknowledged);
    }

    pub fn events(&self) -> Vec<Event> {
        self.shared.lock().unwrap().record.take().expect("it records").0
    }
}

/// One hash for the contents of several disks.
pub fn hash_of(contents: &[Content]) -> u64 {
    contents.iter().fold(0, |sum, content| xxh3_64_with_seed(&content.hash.to_le_bytes(), sum))
}

struct Disk {
    disk: usize,
    disks: Disks,
}

impl Device for Disk {
    fn namespace(&self) -> Namespace {
        self.disks.namespace.clone()
    }

    fn queue_pair_in(&self, _: &PairScope) -> Result<Box<dyn QueuePair>> {
        let disk = self.disk;
        let disks = self.disks.clone();
        Ok(Box::new(Pair { disk, disks, submitted: VecDeque::new() }))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_queue_pairs: usize::MAX,
            can_grow: false,
            is_exclusive: true, // so that only the command itself is recorded
            late_writes: Duration::ZERO,
            checks_writes: true,
            is_page_cached: false,
            local_path: None,
            allocated_bytes: None,
        }
    }
}

struct Pair {
    disk: usize,
    disks: Disks,
    submitted: VecDeque<Submitted>,
}

struct Submitted {
    io: Io,
    /// Polls before it is done.
    late: u64,
    /// Number of a recorded write.
    number: usize,
    /// Number of events when it was submitted.
    begun: usize,
}

impl Shared {
    fn take(&mut self, disk: usize, io: Io, valid: bool) -> Submitted {
        let mut submitted = Submitted { io, late: 0, number: 0, begun: 0 };
        if let Some((events, random)) = &mut self.record {
            submitted.begun = events.len();
            if submitted.io.op == IoOp::Write && valid {
                self.writes += 1;
                (submitted.number, submitted.late) = (self.writes, random.below(4));
                let (first_page, pages) = pages_of(&submitted.io);
                events.push(Event::Begin(Write { number: self.writes, disk, first_page, pages }));
            }
        }
        submitted
    }

    fn done(&mut self, disk: usize, submitted: &mut Submitted) {
        let offset = submitted.io.slba.0 as usize * SECTOR_BYTES;
        match submitted.io.op {
            IoOp::Read => self.contents[disk].read(offset, &mut submitted.io.buf),
            IoOp::Write => {
                let (first, pages) = pages_of(&submitted.io);
                for (at, page) in (first..).zip(pages) {
                    self.contents[disk].set(at, page);
                }
            }
            IoOp::Flush => {}
        }
        let event = match submitted.io.op {
            IoOp::Read => return,
            IoOp::Write => Event::End(submitted.number),
            IoOp::Flush => Event::Flush { disk, begun: submitted.begun },
        };
        if let Some((events, _)) = &mut self.record {
            events.push(event);
        }
    }
}

fn pages_of(io: &Io) -> (usize, Vec<Arc<Page>>) {
    let offset = io.slba.0 as usize * SECTOR_BYTES;
    let whole = offset.is_multiple_of(PAGE_BYTES) && io.buf.len().is_multiple_of(PAGE_BYTES);
    assert!(whole, "{} bytes written at {offset}: not whole pages", io.buf.len());
    let page = |bytes: &[u8]| Page::new(bytes.try_into().expect("chunks of a page"));
    (offset / PAGE_BYTES, io.buf.chunks(PAGE_BYTES).map(page).collect())
}

impl QueuePair for Pair {
    fn namespace(&self) -> &Namespace {
        &self.disks.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let room = usize::from(self.disks.namespace.queue_depth) - self.submitted.len();
        let count = room.min(pending.len());
        let mut shared = self.disks.shared.lock().unwrap();
        for io in pending.drain(..count) {
            let valid = self.disks.namespace.check(&io).is_ok();
            self.submitted.push_back(shared.take(self.disk, io, valid));
        }
        count
    }

    fn poll(&mut self, _: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let mut shared = self.disks.shared.lock().unwrap();
        let mut count = 0;
        for mut submitted in std::mem::take(&mut self.submitted) {
            if submitted.late > 0 || count == max {
                submitted.late = submitted.late.saturating_sub(1);
                self.submitted.push_back(submitted);
                continue;
            }
            let result = self.disks.namespace.check(&submitted.io);
            if result.is_ok() {
                shared.done(self.disk, &mut submitted);
            }
            done.push(Completion { tag: submitted.io.tag, buf: submitted.io.buf, result });
            count += 1;
        }
        count
    }

    fn outstanding(&self) -> usize {
        self.submitted.len()
    }
}
