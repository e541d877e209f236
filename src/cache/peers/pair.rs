//! Queue pair of a namespace whose reads go to the nodes that hold the data, chunk by chunk.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::chunk_map::{ChunkMap, LatestPlan, PlanMap, Span, SpanHolder};
use super::links::{CONNECT_WAIT, Links, Slot};
use super::{Counters, add};
use dlfs_base::buf::{IoBuf, Pool, SharedBuf};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::metrics::{Measured, Place, PlaceCounters, Snapshot};
use dlfs_base::units::Lba;
use dlfs_format::directory::Intact;
use dlfs_io::qpair::pieces::{PieceId, Pieces};
use dlfs_io::qpair::readiness::Registry;
use dlfs_io::qpair::session::Failure;
use dlfs_io::qpair::{
    Capabilities, Completion, Device, Fence, Io, IoError, IoOp, Namespace, Notice, PairScope,
    QueuePair,
};
use dlfs_nvme::nvme::RetryClass;
use dlfs_order::tier::PAGE_BYTES;

/// The state that the devices of all namespaces share.
pub(super) struct PeersShared {
    pub(super) links: Arc<Links>,
    pub(super) map: ChunkMap,
    /// The index of this node.
    pub(super) own: u16,
    pub(super) counters: Counters,
    pub(super) intact: Arc<Intact>,
    /// The latest plan; only if the plan of the run decides which node keeps which data.
    pub(super) plan: Option<LatestPlan>,
    /// Set if the origin is faster than any peer.
    pub(super) avoids: AtomicBool,
}

impl Measured for PeersShared {
    fn measure(&self, snapshot: &mut Snapshot) {
        self.counters.read().measure(snapshot);
    }
}

/// One origin namespace, read from the nodes that hold its chunks.
pub(super) struct PeersDevice {
    pub(super) shared: Arc<PeersShared>,
    /// This rank's cache, which reads from the origin the data that no node holds.
    pub(super) cache: Arc<dyn Device>,
    pub(super) number: u16,
}

impl Device for PeersDevice {
    fn last_failure(&self) -> Option<Failure> {
        self.cache.last_failure()
    }

    fn reads_parts(&self) -> bool {
        self.cache.reads_parts()
    }

    fn namespace(&self) -> Namespace {
        describe(self.cache.namespace())
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let nodes = self.shared.map.holders.members();
        let open = || {
            let bytes = nodes.iter().map(|_| AtomicUsize::new(0)).collect();
            Ok(Arc::new(PeerScope {
                _owner: Arc::clone(&self.shared),
                scope: Arc::default(),
                bytes,
            }))
        };
        let scope_of_peers = scope.get_or_open(&self.shared, open)?;
        let cache = self.cache.queue_pair_in(scope)?;
        let namespace = describe(cache.namespace().clone());
        Ok(Box::new(PeersPair {
            shared: Arc::clone(&self.shared),
            scope: scope_of_peers,
            places: Arc::clone(scope.places()),
            number: self.number,
            namespace,
            cache,
            cache_pending: VecDeque::new(),
            peers: nodes.iter().map(|_| PeerQueue::default()).collect(),
            in_use: Vec::new(),
            pieces: Pieces::new(),
            ready: VecDeque::new(),
            scratch: Vec::new(),
            plan: (0, None),
            spans: Vec::new(),
            suspects: Vec::new(),
            most_bytes: MOST_BYTES,
            pool: None,
            registry: None,
        }))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { can_grow: false, ..self.cache.capabilities() }
    }
}

/// The description of the cache's namespace as it is read through the peers.
fn describe(cache: Namespace) -> Namespace {
    Namespace {
        max_transfer_bytes: cache.max_transfer_bytes.min(MAX_TRANSFER_BYTES),
        read_only: true,
        engine: format!("peers over {}", cache.engine),
        ..cache
    }
}

/// The connections to peers that the queue pairs of one poller share.
struct PeerScope {
    /// Keeps the address by which a [`PairScope`] finds this value from being reused.
    _owner: Arc<PeersShared>,
    /// The scope of the queue pairs at the peers.
    scope: Arc<PairScope>,
    /// Bytes outstanding at each node.
    bytes: Vec<AtomicUsize>,
}

/// State of a piece of a read.
struct PieceState {
    /// The holder of the piece's data.
    holder: SpanHolder,
    /// Set if the current source has delivered wrong bytes for this piece before: if it is a peer, it must fetch them
    /// again.
    is_anew: bool,
    /// Set if the piece's bytes were wrong before, from any source. A peer's bytes are now verified here, since the
    /// reader does not ask a third time.
    is_checked: bool,
    /// Time at which the piece was passed to its current source.
    began: Instant,
}

/// The place that a piece is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadSource {
    /// This rank's cache, which reads a tier of this node or the origin.
    Cache,
    /// The node with this index.
    Peer(u16),
}

/// The reads for one peer, and the connection to it.
#[derive(Default)]
struct PeerQueue {
    connection: PeerConnection,
    /// Reads that are not submitted yet.
    pending: VecDeque<Io>,
    /// Memory for the reads that [`PeerQueue::submit`] offers to the queue pair; empty between calls.
    staged: VecDeque<Io>,
    /// Bytes outstanding at the peer through this queue pair.
    bytes: usize,
}

impl PeerQueue {
    /// Submits pending reads while at most `most` bytes are outstanding at the peer, over all queue pairs of the
    /// poller. One read is always allowed, so that this queue pair always has a completion to wait for.
    fn submit(&mut self, all: &AtomicUsize, most: usize) {
        let PeerConnection::Open(pair) = &mut self.connection else { return };
        while let Some(io) = self.pending.pop_front() {
            let len = io.buf.len();
            if self.bytes > 0 && all.load(Ordering::Relaxed) + len > most {
                self.pending.push_front(io);
                break;
            }
            self.bytes += len;
            all.fetch_add(len, Ordering::Relaxed);
            self.staged.push_back(io);
        }
        pair.submit(&mut self.staged);
        while let Some(io) = self.staged.pop_back() {
            self.bytes -= io.buf.len();
            all.fetch_sub(io.buf.len(), Ordering::Relaxed);
            self.pending.push_front(io);
        }
    }
}

/// The connection to one peer.
#[derive(Default)]
enum PeerConnection {
    /// Not requested yet, or lost.
    #[default]
    Idle,
    /// Requested, at this time.
    Connecting(Arc<Slot>, Instant),
    Open(Box<dyn QueuePair>),
}

/// Queue pair of a [`PeersDevice`].
struct PeersPair {
    shared: Arc<PeersShared>,
    scope: Arc<PeerScope>,
    /// Counters of bytes that peers have served; the cache counts its own.
    places: Arc<PlaceCounters>,
    /// Index of the namespace in the image.
    number: u16,
    namespace: Namespace,
    /// Queue pair of this rank's cache, and the reads for it that are not submitted yet.
    cache: Box<dyn QueuePair>,
    cache_pending: VecDeque<Io>,
    /// Queues by index of the node.
    peers: Vec<PeerQueue>,
    /// The nodes whose queues are not idle.
    in_use: Vec<u16>,
    /// The outstanding reads, in pieces.
    pieces: Pieces<PieceState>,
    /// Completed reads that no poll has returned yet.
    ready: VecDeque<Completion>,
    /// Memory for the completions of one source.
    scratch: Vec<Completion>,
    /// The number of the plan of the run, and the plan: see [`LatestPlan::follow`].
    plan: (u32, Option<Arc<PlanMap>>),
    /// Memory for the spans of one read.
    spans: Vec<Span>,
    /// Ranges whose bytes were wrong, and their source. The next read of such a range makes that peer fetch
    /// the bytes again, and is verified.
    suspects: Vec<(Range<u64>, ReadSource)>,
    /// Limit of bytes outstanding at one peer: a part of the reader's window, so that a slow peer does not take the
    /// whole window. It also limits the bytes that a peer has to send to each reader.
    most_bytes: usize,
    pool: Option<Pool>,
    registry: Option<Registry>,
}

impl PeersPair {
    /// Begins a read: splits it by holder, and passes each piece to its source.
    fn begin(&mut self, io: Io, now: Instant) {
        let checked = self.namespace.check(&io);
        if checked.is_err() || io.op != IoOp::Read {
            return self.ready.push_back(io.end(checked));
        }
        let start = io.slba.0 * PAGE_BYTES;
        let mut spans = std::mem::take(&mut self.spans);
        self.split(start..start + io.buf.len() as u64, &mut spans);
        let mut cutting = self.pieces.begin(io, start, spans.len());
        for (range, holder) in spans.drain(..) {
            let suspect = self.take_suspect(&range);
            let source = match (suspect, self.nearest_source_of(holder, &range, now)) {
                // The peer with wrong bytes has been set aside. Other peers may be wrong, too, so this rank's
                // cache reads the origin.
                (Some(ReadSource::Peer(node)), other) if other != ReadSource::Peer(node) => {
                    ReadSource::Cache
                }
                (_, source) => source,
            };
            let is_anew = suspect == Some(source);
            let is_checked = suspect.is_some();
            let state = PieceState { holder, is_anew, is_checked, began: now };
            let (id, buf) =
                self.pieces.cut(&mut cutting, (range.end - range.start) as usize, state);
            self.push(id, range, buf, source, now);
        }
        self.spans = spans;
    }

    /// Splits a range by holder.
    fn split(&mut self, range: Range<u64>, spans: &mut Vec<Span>) {
        let Some(latest) = &self.shared.plan else {
            return self.shared.map.split(self.number, range, spans);
        };
        latest.follow(&mut self.plan);
        match &self.plan.1 {
            None => spans.push((range, SpanHolder::None)),
            Some(plan) => plan.split(self.number, range, spans),
        }
    }

    /// The source that has delivered wrong bytes of `range`, if any. Forgets the suspect ranges that lie wholly in
    /// `range`, and keeps the others: the read of a neighbour may overlap a suspect range by a page.
    fn take_suspect(&mut self, range: &Range<u64>) -> Option<ReadSource> {
        let overlaps = |wrong: &Range<u64>| wrong.start < range.end && range.start < wrong.end;
        let source = self.suspects.iter().find(|(wrong, _)| overlaps(wrong))?.1;
        let is_within = |wrong: &Range<u64>| range.start <= wrong.start && wrong.end <= range.end;
        self.suspects.retain(|(wrong, _)| !is_within(wrong));
        Some(source)
    }

    /// The source for `range`, a span of `holder`: this rank's cache if this node has copied the chunk's
    /// data while the holder was away; otherwise the result of [`PeersPair::source_of`]. A plan needs no such check:
    /// it names this node for all data that this node keeps.
    fn nearest_source_of(
        &self,
        holder: SpanHolder,
        range: &Range<u64>,
        now: Instant,
    ) -> ReadSource {
        let source = self.source_of(holder, None, now);
        let slba = Lba(range.start / PAGE_BYTES);
        let len = (range.end - range.start) as usize;
        match (holder, source) {
            (SpanHolder::Chunk(_), ReadSource::Peer(_)) if self.cache.has_copies(slba, len) => {
                ReadSource::Cache
            }
            _ => source,
        }
    }

    /// The source for a span of `holder`: the node that holds the chunk, or, after `failed`, the next node in the
    /// chunk's order that can be asked. A planned span has only one node.
    fn source_of(&self, holder: SpanHolder, failed: Option<u16>, now: Instant) -> ReadSource {
        let PeersShared { links, map, own, avoids, .. } = &*self.shared;
        if avoids.load(Ordering::Relaxed) {
            return ReadSource::Cache;
        }
        let chunk = match holder {
            SpanHolder::None => return ReadSource::Cache,
            SpanHolder::Chunk(chunk) => chunk,
            SpanHolder::Planned(node) => {
                let is_asked = failed.is_none() && node != *own && links.is_there(node, now);
                return if is_asked { ReadSource::Peer(node) } else { ReadSource::Cache };
            }
        };
        let Some(first) = map.holders.holder(chunk) else { return ReadSource::Cache };
        if first == *own {
            return ReadSource::Cache;
        }
        if failed.is_none() && links.is_there(first, now) {
            return ReadSource::Peer(first);
        }
        let order = map.holders.order_of(chunk);
        let after = failed.and_then(|failed| order.iter().position(|&node| node == failed));
        let others = &order[after.map_or(0, |at| at + 1)..];
        let next = others.iter().find(|&&node| node == *own || links.is_there(node, now));
        match next {
            Some(&node) if node != *own => ReadSource::Peer(node),
            _ => ReadSource::Cache,
        }
    }

    /// Queues the read of a piece at a source; requests a connection if the peer has none.
    fn push(
        &mut self,
        id: PieceId,
        range: Range<u64>,
        buf: IoBuf,
        source: ReadSource,
        now: Instant,
    ) {
        let slba = Lba(range.start / PAGE_BYTES);
        let io = Io { op: IoOp::Read, slba, buf, tag: id.0 };
        match source {
            ReadSource::Cache => self.cache_pending.push_back(io),
            ReadSource::Peer(node) => {
                let peer = &mut self.peers[usize::from(node)];
                if let PeerConnection::Open(pair) = &mut peer.connection
                    && self.pieces.get_mut(id).info.is_anew
                {
                    pair.report_corrupt(io.slba, io.buf.len());
                }
                peer.pending.push_back(io);
                if matches!(peer.connection, PeerConnection::Idle) {
                    let slot = self.shared.links.ask(node, self.number, &self.scope.scope);
                    self.registry.iter().for_each(|registry| slot.register(registry));
                    peer.connection = PeerConnection::Connecting(slot, now);
                    self.in_use.push(node);
                }
            }
        }
    }

    /// Submits the pending reads for which there is a connection.
    fn submit_all(&mut self) {
        if !self.cache_pending.is_empty() {
            self.cache.submit(&mut self.cache_pending);
        }
        for node in self.in_use.iter().map(|&node| usize::from(node)) {
            if !self.peers[node].pending.is_empty() {
                self.peers[node].submit(&self.scope.bytes[node], self.most_bytes);
            }
        }
    }

    /// Takes the queue pairs whose connections are made.
    fn take_arrived(&mut self, now: Instant) {
        let mut failed = Vec::new();
        for &node in &self.in_use {
            let peer = &mut self.peers[usize::from(node)];
            let PeerConnection::Connecting(slot, since) = &peer.connection else { continue };
            match slot.take() {
                None if now < *since + CONNECT_WAIT => {}
                None => {
                    let text = format!("no connection within {CONNECT_WAIT:?}");
                    failed.push((node, Error::new(ErrorKind::TimedOut, text)));
                }
                Some(Ok(mut pair)) => {
                    self.pool.iter().for_each(|pool| pair.use_pool(pool));
                    self.registry.iter().for_each(|registry| pair.register(registry));
                    for io in &peer.pending {
                        if self.pieces.get_mut(PieceId(io.tag)).info.is_anew {
                            pair.report_corrupt(io.slba, io.buf.len());
                        }
                    }
                    peer.connection = PeerConnection::Open(pair);
                }
                Some(Err(error)) => failed.push((node, error)),
            }
        }
        for (node, error) in failed {
            self.lost(node, &error.to_string(), now);
        }
    }

    /// Handles a `node` that cannot be reached: reads not yet submitted to it go elsewhere. Submitted reads
    /// end with errors.
    fn lost(&mut self, node: u16, why: &str, now: Instant) {
        self.shared.links.set_away(None, node, now, why);
        let peer = &mut self.peers[usize::from(node)];
        let is_idle = match &peer.connection {
            PeerConnection::Open(pair) => pair.outstanding() == 0,
            PeerConnection::Idle | PeerConnection::Connecting(..) => true,
        };
        if is_idle {
            peer.connection = PeerConnection::Idle;
            self.in_use.retain(|used| *used != node);
        }
        for io in std::mem::take(&mut self.peers[usize::from(node)].pending) {
            self.go_to_next(PieceId(io.tag), io.buf, node, now);
        }
    }

    /// Reads a piece from the next node in its chunk's order after `failed`. If the piece's bytes were wrong
    /// before, reads it from this rank's cache, which has dropped its own copies.
    fn go_to_next(&mut self, id: PieceId, buf: IoBuf, failed: u16, now: Instant) {
        let PieceState { holder, is_checked, .. } = self.pieces.get_mut(id).info;
        let source =
            if is_checked { ReadSource::Cache } else { self.source_of(holder, Some(failed), now) };
        self.go_to(id, buf, source, now);
    }

    /// Reads a piece again, from another source.
    fn go_to(&mut self, id: PieceId, buf: IoBuf, source: ReadSource, now: Instant) {
        let piece = self.pieces.get_mut(id);
        let range = piece.start..piece.start + piece.len as u64;
        let state = &mut piece.info;
        *state = PieceState { is_anew: false, is_checked: false, began: now, ..*state };
        add(&self.shared.counters.rerouted_bytes, buf.len());
        self.push(id, range, buf, source, now);
    }

    /// Handles the completions of this rank's cache.
    fn poll_cache(&mut self, now: Instant) {
        let mut scratch = std::mem::take(&mut self.scratch);
        self.cache.poll(now, usize::MAX, &mut scratch);
        for Completion { tag, buf, result } in scratch.drain(..) {
            self.ready.extend(self.pieces.end(PieceId(tag), buf, result));
        }
        self.scratch = scratch;
    }

    /// Handles the completions of one peer: delivers the piece, or reads it elsewhere.
    fn poll_peer(&mut self, node: u16, now: Instant) {
        let PeerConnection::Open(pair) = &mut self.peers[usize::from(node)].connection else {
            return;
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        pair.poll(now, usize::MAX, &mut scratch);
        let mut failed = None;
        for Completion { tag, buf, result } in scratch.drain(..) {
            self.peers[usize::from(node)].bytes -= buf.len();
            self.scope.bytes[usize::from(node)].fetch_sub(buf.len(), Ordering::Relaxed);
            let id = PieceId(tag);
            match result {
                Ok(()) if self.is_wrong(id, &buf) => {
                    add(&self.shared.counters.mismatched_bytes, buf.len());
                    self.shared.links.mismatched(node, now);
                    self.go_to(id, buf, ReadSource::Cache, now);
                }
                Ok(()) => {
                    let began = self.pieces.get_mut(id).info.began;
                    let took = now.saturating_duration_since(began);
                    self.shared.counters.read_from(node, buf.len(), took);
                    self.places.add(Place::Peer, buf.len());
                    self.ready.extend(self.pieces.end(id, buf, Ok(())));
                }
                Err(IoError::Status(status)) => {
                    add(&self.shared.counters.not_there_bytes, buf.len());
                    add(&self.shared.counters.not_there_reads, 1);
                    match status.retry_class() {
                        // Other peers would only read the origin, and so can this rank itself.
                        RetryClass::Elsewhere => self.go_to(id, buf, ReadSource::Cache, now),
                        _ => self.go_to_next(id, buf, node, now),
                    }
                }
                Err(error) => {
                    // Whatever the error is, the bytes exist elsewhere.
                    failed = Some(error);
                    self.go_to_next(id, buf, node, now);
                }
            }
        }
        self.scratch = scratch;
        if let Some(error) = failed {
            self.lost(node, &error.to_string(), now);
        }
    }

    /// Verifies a piece whose bytes were wrong before; returns whether they are wrong again. The reader
    /// verifies all other reads.
    fn is_wrong(&mut self, id: PieceId, bytes: &[u8]) -> bool {
        let piece = self.pieces.get_mut(id);
        let start = piece.start;
        piece.info.is_checked && !self.shared.intact.is_intact(self.number, start, bytes)
    }

    /// The queue pairs with reads in progress.
    fn busy(&self) -> impl Iterator<Item = &dyn QueuePair> {
        let peers = self.in_use.iter().filter_map(|&node| {
            let peer = &self.peers[usize::from(node)];
            match &peer.connection {
                PeerConnection::Open(pair)
                    if pair.outstanding() > 0 || !peer.pending.is_empty() =>
                {
                    Some(&**pair)
                }
                _ => None,
            }
        });
        let cache = !self.cache_pending.is_empty() || self.cache.outstanding() > 0;
        cache.then_some(&*self.cache).into_iter().chain(peers)
    }
}

impl QueuePair for PeersPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let room = usize::from(self.namespace.queue_depth).saturating_sub(self.outstanding());
        let count = room.min(pending.len());
        let now = Instant::now();
        for io in pending.drain(..count) {
            self.begin(io, now);
        }
        self.submit_all();
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.take_arrived(now);
        self.submit_all();
        let mut at = 0;
        while let Some(&node) = self.in_use.get(at) {
            self.poll_peer(node, now);
            // If a lost peer was removed, the next peer has its index.
            at += usize::from(self.in_use.get(at) == Some(&node));
        }
        self.poll_cache(now);
        self.submit_all(); // submits reads that go elsewhere
        let count = max.min(self.ready.len());
        done.extend(self.ready.drain(..count));
        count
    }

    fn start(&mut self) {
        self.submit_all();
        self.cache.start();
        for &node in &self.in_use {
            if let PeerConnection::Open(pair) = &mut self.peers[usize::from(node)].connection {
                pair.start();
            }
        }
    }

    fn use_pool(&mut self, pool: &Pool) {
        let part = pool.capacity_bytes() / 4;
        self.most_bytes = part.clamp(MAX_TRANSFER_BYTES as usize, MOST_BYTES);
        self.pool = Some(pool.clone());
        self.cache.use_pool(pool);
        for &node in &self.in_use {
            if let PeerConnection::Open(pair) = &mut self.peers[usize::from(node)].connection {
                pair.use_pool(pool);
            }
        }
    }

    /// Lends the copies that this rank's cache has in memory.
    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        self.cache.borrow(slba, len_bytes)
    }

    fn has_copies(&self, slba: Lba, len_bytes: usize) -> bool {
        self.cache.has_copies(slba, len_bytes)
    }

    fn outstanding(&self) -> usize {
        self.pieces.len() + self.ready.len()
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        let start = slba.0.saturating_mul(PAGE_BYTES);
        let now = Instant::now();
        let mut spans = Vec::new();
        let range = start..start.saturating_add(len_bytes as u64);
        self.split(range, &mut spans);
        let from = |(range, holder)| (self.nearest_source_of(holder, &range, now), range);
        let sources: Vec<_> = spans.into_iter().map(from).collect();
        // Must come after the sources are looked up: a bad copy of this node must not be blamed on a peer.
        self.cache.report_corrupt(slba, len_bytes);
        for (source, range) in sources {
            if let ReadSource::Peer(node) = source {
                let len = (range.end - range.start) as usize;
                add(&self.shared.counters.mismatched_bytes, len);
                self.shared.links.mismatched(node, now);
            }
            if self.suspects.len() < MAX_SUSPECTS {
                self.suspects.push((range, source));
            }
        }
    }

    /// Fences concern writes; only reads pass through peers.
    fn use_fence(&mut self, _: &Arc<Fence>) {}

    fn shared_queue(&self) -> Option<usize> {
        self.cache.shared_queue()
    }

    fn register(&mut self, registry: &Registry) {
        self.registry = Some(registry.clone());
        self.cache.register(registry);
        for &node in &self.in_use {
            match &mut self.peers[usize::from(node)].connection {
                PeerConnection::Open(pair) => pair.register(registry),
                PeerConnection::Connecting(slot, _) => slot.register(registry),
                PeerConnection::Idle => {}
            }
        }
    }

    fn notice(&self) -> Notice {
        if !self.ready.is_empty() {
            return Notice::Poll;
        }
        self.busy().map(QueuePair::notice).max().unwrap_or(Notice::Event)
    }

    fn next_timeout(&self) -> Option<Instant> {
        let connecting =
            self.in_use.iter().filter_map(|&node| match self.peers[usize::from(node)].connection {
                PeerConnection::Connecting(_, since) => Some(since + CONNECT_WAIT),
                PeerConnection::Idle | PeerConnection::Open(_) => None,
            });
        self.busy().filter_map(QueuePair::next_timeout).chain(connecting).min()
    }
}

impl Drop for PeersPair {
    fn drop(&mut self) {
        for (peer, all) in self.peers.iter().zip(&self.scope.bytes) {
            all.fetch_sub(peer.bytes, Ordering::Relaxed);
        }
    }
}

/// Limit of bytes outstanding at one peer, for any window: a link of 100 Gb/s carries them in a third of a
/// millisecond.
const MOST_BYTES: usize = 4 << 20;

/// Maximum length of one read: the default limit of targets.
const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// Limit of ranges remembered until they are read again. A reader rereads a range at once after it has
/// reported it.
const MAX_SUSPECTS: usize = 1024;
