//! Devices and queue pairs of the data set's namespaces that read from the store alone.
//!
//! A read of absent pages waits for them if samples lie there, since the exchange fetches these. Otherwise, and for a
//! peer in any case, it ends with *Deallocated or Unwritten Logical Block*. A peer that reads the first page of the
//! first namespace gets this rank's progress (`progress.rs`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use super::board::Count;
use super::progress::PROGRESS_BYTES;
use super::{StoreShared, add};
use crate::cache::{UNWRITTEN, to_peer};
use dlfs_base::buf::Pool;
use dlfs_base::error::Result;
use dlfs_base::metrics::PlaceCounters;
use dlfs_base::units::Lba;
use dlfs_io::qpair::readiness::Registry;
use dlfs_io::qpair::{
    Capabilities, Completion, Device, Io, IoError, IoOp, Namespace, Notice, PairScope, QueuePair,
};
use dlfs_order::tier::PAGE_BYTES;

/// One device for each namespace. With `nguids`, the devices are for peers: they have these NGUIDs, never
/// wait, and report unreadable data as unwritten, so that peers read elsewhere.
pub(super) fn devices(
    shared: &Arc<StoreShared>,
    nguids: Option<&[[u8; 16]]>,
) -> Vec<Arc<dyn Device>> {
    let of = |(number, origin): (u16, &Arc<dyn Device>)| -> Arc<dyn Device> {
        let media = shared.media.storage.device.namespace();
        let origin = origin.namespace();
        let namespace = Namespace {
            num_blocks: origin.len_bytes() / PAGE_BYTES,
            block_len_bytes: PAGE_BYTES as u32,
            max_transfer_bytes: origin.max_transfer_bytes.min(media.max_transfer_bytes),
            queue_depth: media.queue_depth,
            read_only: true,
            engine: format!("store over {}", media.engine),
            nguid: nguids.map_or(origin.nguid, |nguids| nguids[usize::from(number)]),
            ..origin
        };
        let for_peers = nguids.is_some();
        Arc::new(StoreDevice { shared: Arc::clone(shared), number, for_peers, namespace })
    };
    (0..).zip(&shared.origins).map(of).collect()
}

/// A namespace of the data set, read from the store.
struct StoreDevice {
    shared: Arc<StoreShared>,
    /// Index of the namespace in the data set.
    number: u16,
    /// Set if peers read it, and not this rank.
    for_peers: bool,
    namespace: Namespace,
}

impl Device for StoreDevice {
    fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        Ok(Box::new(StorePair {
            shared: Arc::clone(&self.shared),
            number: self.number,
            for_peers: self.for_peers,
            namespace: self.namespace.clone(),
            media: self.shared.media.storage.device.queue_pair_in(scope)?,
            places: Arc::clone(scope.places()),
            pending: VecDeque::new(),
            waiting: VecDeque::new(),
            taken: Slab::new(),
            ready: VecDeque::new(),
        }))
    }

    fn capabilities(&self) -> Capabilities {
        let media = self.shared.media.storage.device.capabilities();
        Capabilities {
            can_grow: false,
            is_exclusive: false,
            local_path: media.local_path.filter(|_| !self.for_peers),
            allocated_bytes: Some(self.shared.media.pages().0 * PAGE_BYTES),
            ..media
        }
    }
}

/// A queue pair of the device. It lends nothing, since any sample may be deleted.
struct StorePair {
    shared: Arc<StoreShared>,
    number: u16,
    for_peers: bool,
    namespace: Namespace,
    /// Queue pair of the storage, which has all pages.
    media: Box<dyn QueuePair>,
    /// Counters of bytes that the store has served.
    places: Arc<PlaceCounters>,
    /// I/O for the media, with the media's addresses.
    pending: VecDeque<Io>,
    /// Reads of pages that have not arrived.
    waiting: VecDeque<Io>,
    /// Reads that are outstanding at the media, by tag.
    taken: Slab<Taken>,
    /// Completed reads that no poll has returned yet.
    ready: VecDeque<Completion>,
}

/// A read of the namespace that is outstanding at the media.
struct Taken {
    tag: u64,
    slba: Lba,
    /// Number of deletions before the read's pages were looked up.
    deletions: u64,
}

impl StorePair {
    /// Begins a read: passes it to the media, or lets it wait for its pages.
    fn take(&mut self, io: Io) {
        let checked = self.namespace.check(&io);
        if checked.is_err() || io.op != IoOp::Read {
            return self.ready.push_back(io.end(checked));
        }
        let bytes = bytes_of(&io);
        if self.for_peers && self.number == 0 && bytes == (0..PAGE_BYTES) {
            return self.send_progress(io);
        }
        let deletions = self.shared.media.deletions();
        let Some(page) = self.page_of(&bytes) else {
            if !self.for_peers && !self.shared.chunks.within(self.number, &bytes).is_empty() {
                add(&self.shared.counters.waits, 1);
                return self.waiting.push_back(io);
            }
            return self.ready.push_back(io.end(Err(UNWRITTEN)));
        };
        self.read(io, page, deletions);
    }

    /// Passes a read to the media, where it begins at `page`.
    fn read(&mut self, io: Io, page: u64, deletions: u64) {
        let tag = self.taken.insert(Taken { tag: io.tag, slba: io.slba, deletions }) as u64;
        self.pending.push_back(Io { slba: Lba(page), tag, ..io });
    }

    /// Ends a read. If samples were deleted during the read, starts it again: a loader may read ahead a
    /// sample that leaves and comes back.
    fn end(&mut self, Completion { tag, buf, result }: Completion) {
        let Taken { tag, slba, deletions } = self.taken.remove(tag as usize);
        if deletions != self.shared.media.deletions() && result.is_ok() {
            return self.take(Io { op: IoOp::Read, slba, buf, tag });
        }
        let result = if self.for_peers { to_peer(result) } else { result };
        self.places.add(self.shared.media.storage.kind, buf.len());
        self.ready.push_back(Completion { tag, buf, result });
    }

    /// The first page on the media, if the whole range is in the store.
    fn page_of(&self, bytes: &Range<u64>) -> Option<u64> {
        let pages = self.shared.media.pages_of(self.number, bytes)?;
        let first = pages.start;
        self.shared.media.has(pages).then_some(first)
    }

    /// Ends a read with this rank's progress.
    fn send_progress(&mut self, mut io: Io) {
        let progress = *self.shared.progress.lock();
        io.buf.fill(0);
        io.buf[..PROGRESS_BYTES].copy_from_slice(&progress.to_bytes());
        self.ready.push_back(io.end(Ok(())));
    }

    /// Takes the reads whose pages have arrived; all waiting reads fail once the exchange cannot continue.
    fn check_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let failure = self.shared.failure();
        let deletions = self.shared.media.deletions();
        for io in std::mem::take(&mut self.waiting) {
            match (self.page_of(&bytes_of(&io)), &failure) {
                (Some(page), _) => self.read(io, page, deletions),
                (None, None) => self.waiting.push_back(io),
                (None, Some(error)) => {
                    let result = Err(IoError::Disconnected(error.to_string()));
                    self.ready.push_back(io.end(result));
                }
            }
        }
    }
}

impl QueuePair for StorePair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let room = usize::from(self.namespace.queue_depth).saturating_sub(self.outstanding());
        let count = room.min(pending.len());
        pending.drain(..count).for_each(|io| self.take(io));
        self.media.submit(&mut self.pending);
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.check_waiting();
        self.media.submit(&mut self.pending);
        let mut arrived = Vec::new();
        self.media.poll(now, usize::MAX, &mut arrived);
        arrived.into_iter().for_each(|completion| self.end(completion));
        self.media.submit(&mut self.pending);
        let count = max.min(self.ready.len());
        done.extend(self.ready.drain(..count));
        count
    }

    fn start(&mut self) {
        self.media.submit(&mut self.pending);
        self.media.start();
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.media.use_pool(pool);
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.pending.len() + self.ready.len() + self.media.outstanding()
    }

    fn shared_queue(&self) -> Option<usize> {
        self.media.shared_queue()
    }

    /// Removes the pages, which the thread then fetches again; the next read waits for them. Reports of peers are
    /// ignored.
    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        let start = slba.0.saturating_mul(PAGE_BYTES);
        let bytes = start..start.saturating_add(len_bytes as u64);
        let Some(pages) = self.shared.media.pages_of(self.number, &bytes) else { return };
        if !self.for_peers {
            self.shared.media.clear(pages);
            self.shared.board.add(Count::Damaged, 1);
            self.shared.notify();
        }
    }

    fn register(&mut self, registry: &Registry) {
        self.media.register(registry);
    }

    fn notice(&self) -> Notice {
        if !self.ready.is_empty() {
            return Notice::Poll;
        }
        match self.media.outstanding() + self.pending.len() {
            0 => Notice::Event,
            _ => self.media.notice(),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let again = (!self.waiting.is_empty()).then(|| Instant::now() + CHECK_INTERVAL);
        [again, self.media.next_timeout()].into_iter().flatten().min()
    }
}

/// The bytes of the namespace that a validated read asks for.
fn bytes_of(io: &Io) -> Range<u64> {
    let start = io.slba.0 * PAGE_BYTES;
    start..start + io.buf.len() as u64
}

/// Interval at which waiting reads check whether their pages have arrived.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
