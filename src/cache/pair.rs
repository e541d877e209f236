//! A namespace with tiers in front of it: each read is split where copies begin and end.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use slab::Slab;

use super::Shared;
use super::copier::{Job, MAX_QUEUED_BYTES};
use super::read_ahead::{MAX_AHEAD_BYTES, ReadAhead, Waiting};
use super::running::Tiers;
use crate::buf::{IoBuf, Pool, SharedBuf};
use crate::error::Result;
use crate::qpair::readiness::Registry;
use crate::qpair::{
    Capabilities, Completion, Device, Fence, Io, IoError, IoOp, Namespace, Notice, PairScope,
    QueuePair,
};
use crate::tier::PAGE_BYTES;
use crate::units::Lba;

/// One for each origin.
pub(super) fn devices(tiers: &Arc<Tiers>) -> Vec<Arc<dyn Device>> {
    let device =
        |number| -> Arc<dyn Device> { Arc::new(TieredDevice { tiers: Arc::clone(tiers), number }) };
    (0..tiers.opening.origins.len() as u16).map(device).collect()
}

struct TieredDevice {
    tiers: Arc<Tiers>,
    number: u16,
}

impl TieredDevice {
    fn origin(&self) -> &Arc<dyn Device> {
        &self.tiers.opening.origins[usize::from(self.number)]
    }

    /// The origin's namespace with blocks of one page, so that blocks are whole pages of a copy.
    fn describe(&self, origin: Namespace) -> Namespace {
        let shared = self.tiers.latest();
        let tiers = shared.media.iter().map(|media| media.device.namespace());
        let most = tiers.map(|tier| tier.max_transfer_bytes).min().unwrap_or(MIN_OF_TIERS);
        Namespace {
            num_blocks: origin.len_bytes() / PAGE_BYTES,
            block_len_bytes: PAGE_BYTES as u32,
            max_transfer_bytes: origin.max_transfer_bytes.min(most),
            read_only: true,
            engine: format!("tiers over {}", origin.engine),
            ..origin
        }
    }
}

impl Device for TieredDevice {
    fn namespace(&self) -> Namespace {
        self.describe(self.origin().namespace())
    }

    fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
        let shared = self.tiers.latest();
        let origin = self.origin().queue_pair_in(scope)?;
        let namespace = self.describe(origin.namespace().clone());
        let mut sources = vec![Source::to(origin)];
        for media in &shared.media {
            sources.push(Source::to(media.device.queue_pair_in(scope)?));
        }
        Ok(Box::new(TieredPair {
            shared,
            pool: None,
            registry: None,
            number: self.number,
            namespace,
            sources,
            reads: Slab::new(),
            ready: VecDeque::new(),
            scratch: Vec::new(),
            ahead: ReadAhead::default(),
            cuts: Vec::new(),
        }))
    }

    fn capabilities(&self) -> Capabilities {
        let origin = self.origin().capabilities();
        Capabilities {
            max_queue_pairs: origin.max_queue_pairs,
            can_grow: false,
            is_exclusive: false,
            late_writes: origin.late_writes,
            checks_writes: origin.checks_writes,
            // Whole units are copied, so whole chunks should be read.
            is_page_cached: false,
            local_path: origin.local_path,
        }
    }

    fn grow(&self, len_bytes: u64) -> Result<()> {
        self.namespace().must_hold(len_bytes)
    }
}

/// An accepted read: the number of missing pieces, and the pieces that have arrived.
struct Read {
    tag: u64,
    pieces: Vec<Piece>,
    missing: usize,
    failed: Option<IoError>,
}

struct Piece {
    /// Offset of its first byte on the namespace.
    start: u64,
    len: usize,
    /// Index of its source: 0 is the origin, 1 the first tier; or [`AHEAD`].
    source: usize,
    began: Instant,
    /// Number of evictions before it began.
    evictions: u64,
    buf: Option<IoBuf>,
    /// Units to be copied that contain these bytes.
    wanted: Vec<u32>,
}

/// A range of bytes from one source.
struct Cut {
    range: Range<u64>,
    source: usize,
    /// Offset of its first byte at the source.
    at: u64,
}

/// A queue pair of the origin or of a tier, with I/O that it has no room for yet.
struct Source {
    pair: Box<dyn QueuePair>,
    block_len: u64,
    pending: VecDeque<Io>,
}

impl Source {
    fn to(pair: Box<dyn QueuePair>) -> Source {
        let block_len = u64::from(pair.namespace().block_len_bytes);
        Source { pair, block_len, pending: VecDeque::new() }
    }

    fn push(&mut self, offset: u64, buf: IoBuf, tag: u64) {
        let slba = Lba(offset / self.block_len);
        self.pending.push_back(Io { op: IoOp::Read, slba, buf, tag });
    }

    fn submit(&mut self) {
        if !self.pending.is_empty() {
            self.pair.submit(&mut self.pending);
        }
    }

    fn is_busy(&self) -> bool {
        !self.pending.is_empty() || self.pair.outstanding() > 0
    }
}

struct TieredPair {
    shared: Arc<Shared>,
    /// For the sources that a takeover brings.
    pool: Option<Pool>,
    registry: Option<Registry>,
    number: u16,
    namespace: Namespace,
    sources: Vec<Source>,
    reads: Slab<Read>,
    ready: VecDeque<Completion>,
    scratch: Vec<Completion>,
    ahead: ReadAhead,
    cuts: Vec<Cut>,
}

impl TieredPair {
    fn take(&mut self, io: Io, now: Instant) {
        let checked = self.namespace.check(&io);
        if checked.is_err() || io.op != IoOp::Read {
            self.ready.push_back(Completion { tag: io.tag, buf: io.buf, result: checked });
            return;
        }
        self.follow_takeover();
        let start = io.slba.0 * PAGE_BYTES;
        let range = start..start + io.buf.len() as u64;
        let evictions = self.shared.copies.evictions();
        let mut cuts = std::mem::take(&mut self.cuts);
        self.cut(&range, &mut cuts);
        let read = Read {
            tag: io.tag,
            pieces: Vec::with_capacity(cuts.len()),
            missing: cuts.len(),
            failed: None,
        };
        let key = self.reads.insert(read);
        let mut rest = io.buf;
        for (number, cut) in cuts.drain(..).enumerate() {
            let len = (cut.range.end - cut.range.start) as usize;
            let behind = rest.split_off(len);
            let buf = std::mem::replace(&mut rest, behind);
            let source = match cut.source {
                0 | AHEAD => self.origin_or_ahead(&cut.range, now),
                tier => tier,
            };
            let wanted = if source == 0 { self.begin_origin(&cut.range) } else { Vec::new() };
            let start = cut.range.start;
            let piece = Piece { start, len, source, began: now, evictions, buf: None, wanted };
            self.reads[key].pieces.push(piece);
            if source != AHEAD {
                self.sources[source].push(cut.at, buf, (key as u64) << 32 | number as u64);
                continue;
            }
            let waiting = Waiting { piece: (key, number), start: cut.range.start, buf };
            if let Some(served) = self.ahead.serve(waiting) {
                self.served(served);
            }
        }
        self.cuts = cuts;
    }

    /// Reads from the tiers of the next owner, once no read of the last one's is outstanding. Until
    /// then, reads go to the origin.
    fn follow_takeover(&mut self) {
        if self.shared.next.get().is_none() || self.sources[1..].iter().any(Source::is_busy) {
            return;
        }
        let next = self.shared.latest();
        let mut sources = Vec::with_capacity(next.media.len());
        for media in &next.media {
            match media.device.queue_pair_in(&PairScope::new()) {
                Ok(mut pair) => {
                    self.pool.iter().for_each(|pool| pair.use_pool(pool));
                    self.registry.iter().for_each(|registry| pair.register(registry));
                    sources.push(Source::to(pair));
                }
                Err(error) => {
                    tracing::debug!(%error, "no queue pair for the next owner's tiers yet");
                    return;
                }
            }
        }
        self.sources.truncate(1);
        self.sources.append(&mut sources);
        self.shared = next;
    }

    /// The source for `range`: the origin, or an ahead read, which begins here if it is worthwhile.
    fn origin_or_ahead(&mut self, range: &Range<u64>, now: Instant) -> usize {
        let follows = self.ahead.note(range);
        if self.ahead.has(range) {
            return AHEAD;
        }
        let ahead = range.start..if follows { self.end_of_ahead(range) } else { range.end };
        if ahead.end <= range.end || !self.ahead.has_room() {
            return 0;
        }
        let wanted = self.begin_origin(&ahead);
        let len = (ahead.end - ahead.start) as usize;
        let id = self.ahead.open(ahead, wanted, now);
        self.sources[0].push(range.start, IoBuf::zeroed(len), AHEAD_TAG | u64::from(id));
        AHEAD
    }

    /// How far an ahead read that starts with `range` may go: to the end of the sample, or to a
    /// copy.
    fn end_of_ahead(&self, range: &Range<u64>) -> u64 {
        let shared = &*self.shared;
        let namespace = self.sources[0].pair.namespace();
        let limit = range.start + MAX_AHEAD_BYTES.min(namespace.max_transfer_bytes.into());
        let limit = limit.min(self.namespace.len_bytes());
        let mut end = range.end;
        for unit in shared.units.within(self.number, &(range.end - 1..limit.max(range.end))) {
            if shared.copy_of(unit).is_some() {
                break;
            }
            let unit = shared.units.get(unit);
            end = end.max(unit.end_bytes());
            if !unit.continues {
                break;
            }
        }
        end.min(limit)
    }

    /// An ahead read has served a piece.
    fn served(&mut self, Waiting { piece: (key, number), buf, .. }: Waiting) {
        self.shared.counters.ahead(buf.len());
        self.end_piece(key, number, buf);
    }

    fn end_piece(&mut self, key: usize, number: usize, buf: IoBuf) {
        let read = &mut self.reads[key];
        read.pieces[number].buf = Some(buf);
        read.missing -= 1;
        if read.missing == 0 {
            let read = self.reads.remove(key);
            self.ready.push_back(read.finish());
        }
    }

    /// An ahead read has ended. Without data, each piece is read separately, since the read may
    /// have failed for bytes that nobody requested.
    fn ahead_ended(&mut self, completion: Completion, now: Instant) {
        let id = (completion.tag & !AHEAD_TAG) as u32;
        let (wanted, began) = {
            let ahead = self.ahead.get(id).expect("it is kept while it is under source");
            (std::mem::take(&mut ahead.wanted), ahead.began)
        };
        self.shared.demand.fetch_sub(1, Ordering::AcqRel);
        if completion.result.is_err() {
            wanted.iter().for_each(|&unit| self.shared.send(Job::Gone(unit)));
            for Waiting { piece: (key, number), buf, .. } in self.ahead.ended(id, None).1 {
                self.read_origin_instead(key, number, buf);
            }
            return;
        }
        let took = now.saturating_duration_since(began);
        self.shared.counters.origin_read(completion.buf.len(), took);
        let start = self.ahead.start_of(id);
        self.pass_on(&wanted, start, &completion.buf);
        for served in self.ahead.ended(id, Some(completion.buf)).1 {
            self.served(served);
        }
    }

    /// Splits `range` by the current source of its bytes, in order.
    fn cut(&self, range: &Range<u64>, cuts: &mut Vec<Cut>) {
        let shared = &*self.shared;
        let mut at = range.start;
        for unit in shared.units.within(self.number, range) {
            let Some(location) = shared.copy_of(unit) else { continue };
            let unit = shared.units.get(unit);
            let (from, to) = (unit.start_bytes().max(at), unit.end_bytes().min(range.end));
            if from >= to {
                continue; // the previous copy contains its bytes
            }
            if from > at {
                self.cut_origin(at..from, cuts);
            }
            let data = shared.media[usize::from(location.tier)].data_offset;
            let offset = data + location.page * PAGE_BYTES + (from - unit.start_bytes());
            let source = usize::from(location.tier) + 1;
            match cuts.last_mut() {
                Some(last)
                    if last.source == source && last.at + (from - last.range.start) == offset =>
                {
                    last.range.end = to;
                }
                _ => cuts.push(Cut { range: from..to, source, at: offset }),
            }
            at = to;
        }
        if at < range.end {
            self.cut_origin(at..range.end, cuts);
        }
    }

    /// Splits a range without copies: from ahead reads where possible, otherwise from the origin.
    fn cut_origin(&self, range: Range<u64>, cuts: &mut Vec<Cut>) {
        let mut at = range.start;
        while let Some(end) = self.ahead.end_of(at).filter(|_| at < range.end) {
            let end = end.min(range.end);
            cuts.push(Cut { range: at..end, source: AHEAD, at });
            at = end;
        }
        if at < range.end {
            cuts.push(Cut { range: at..range.end, source: 0, at });
        }
    }

    /// Records that `range` is read from the origin; returns the units to be copied that contain
    /// it.
    fn begin_origin(&self, range: &Range<u64>) -> Vec<u32> {
        let shared = &*self.shared;
        shared.demand.fetch_add(1, Ordering::AcqRel);
        if !shared.has_copier() {
            return Vec::new();
        }
        let within = shared.units.within(self.number, range);
        let touched = within.filter(|&unit| shared.units.is_touched(self.number, unit, range));
        let wanted: Vec<u32> = touched.filter(|&unit| shared.wants(unit)).collect();
        wanted.iter().for_each(|&unit| shared.send(Job::Expect(unit)));
        wanted
    }

    fn complete(&mut self, source: usize, completion: Completion, now: Instant) {
        if completion.tag & AHEAD_TAG != 0 {
            return self.ahead_ended(completion, now);
        }
        let key = (completion.tag >> 32) as usize;
        let number = (completion.tag & u64::from(u32::MAX)) as usize;
        let piece = &mut self.reads[key].pieces[number];
        let (range, len) = (piece.start..piece.start + piece.len as u64, piece.len);
        let took = now.saturating_duration_since(piece.began);
        let wanted = std::mem::take(&mut piece.wanted);
        let gave_way = source != 0 && !self.shared.is_unchanged_since(piece.evictions);
        if gave_way && !self.is_copied(&range) {
            return self.read_origin_instead(key, number, completion.buf);
        }
        match (&completion.result, source) {
            (Ok(()), 0) => {
                self.shared.demand.fetch_sub(1, Ordering::AcqRel);
                self.shared.counters.origin_read(len, took);
                self.pass_on(&wanted, range.start, &completion.buf);
            }
            (Ok(()), tier) => self.shared.counters.hit(tier as u8 - 1, len, took),
            (Err(error), 0) => {
                self.shared.demand.fetch_sub(1, Ordering::AcqRel);
                wanted.iter().for_each(|&unit| self.shared.send(Job::Gone(unit)));
                self.reads[key].failed.get_or_insert(error.clone());
            }
            (Err(_), _) => {
                // An unreadable copy counts as missing: the origin still has the data.
                self.mark_corrupt(&range);
                return self.read_origin_instead(key, number, completion.buf);
            }
        }
        self.end_piece(key, number, completion.buf);
    }

    /// Reads a piece from the origin after another source has failed.
    fn read_origin_instead(&mut self, key: usize, number: usize, buf: IoBuf) {
        let start = self.reads[key].pieces[number].start;
        let wanted = self.begin_origin(&(start..start + buf.len() as u64));
        let piece = &mut self.reads[key].pieces[number];
        (piece.source, piece.wanted) = (0, wanted);
        self.sources[0].push(start, buf, (key as u64) << 32 | number as u64);
    }

    /// Whether all of `range` is copied, so that the data read from it were valid.
    fn is_copied(&self, range: &Range<u64>) -> bool {
        let mut within = self.shared.units.within(self.number, range);
        within.all(|unit| self.shared.copy_of(unit).is_some())
    }

    /// Passes data from the origin that are to be kept to the copier, while it has room.
    fn pass_on(&self, wanted: &[u32], start: u64, bytes: &[u8]) {
        let shared = &*self.shared;
        for &unit in wanted {
            let bounds = shared.units.get(unit);
            let from = bounds.start_bytes().max(start);
            let to = bounds.end_bytes().min(start + bytes.len() as u64);
            let len = (to - from) as usize;
            let queued = shared.queued_bytes();
            if queued.fetch_add(len, Ordering::AcqRel) + len > MAX_QUEUED_BYTES {
                queued.fetch_sub(len, Ordering::AcqRel);
                shared.send(Job::Gone(unit));
                continue;
            }
            let skip = (from - start) as usize;
            let bytes = bytes[skip..skip + len].to_vec();
            shared.send(Job::Piece { unit, offset: (from - bounds.start_bytes()) as usize, bytes });
        }
    }

    fn mark_corrupt(&self, range: &Range<u64>) {
        let shared = &*self.shared;
        for unit in shared.units.within(self.number, range) {
            let Some(location) = shared.copy_of(unit) else { continue };
            if shared.copies.mark_corrupt(unit) {
                shared.counters.damaged(location.tier);
                if shared.has_copier() {
                    shared.send(Job::Begin(unit..unit + 1));
                }
            }
        }
    }
}

impl Read {
    fn finish(self) -> Completion {
        let mut buf = IoBuf::empty();
        for piece in self.pieces {
            buf.rejoin(piece.buf.expect("none is missing"));
        }
        Completion { tag: self.tag, buf, result: self.failed.map_or(Ok(()), Err) }
    }
}

impl QueuePair for TieredPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let room = usize::from(self.namespace.queue_depth).saturating_sub(self.outstanding());
        let count = room.min(pending.len());
        let now = Instant::now();
        for io in pending.drain(..count) {
            self.take(io, now);
        }
        self.sources.iter_mut().for_each(Source::submit);
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        for source in 0..self.sources.len() {
            self.sources[source].submit();
            let mut scratch = std::mem::take(&mut self.scratch);
            // All of them: a piece is not yet a completion of this pair.
            self.sources[source].pair.poll(now, usize::MAX, &mut scratch);
            for completion in scratch.drain(..) {
                self.complete(source, completion, now);
            }
            self.scratch = scratch;
        }
        self.sources[0].submit(); // pieces that a tier could not serve
        let count = max.min(self.ready.len());
        done.extend(self.ready.drain(..count));
        count
    }

    fn start(&mut self) {
        for source in &mut self.sources {
            source.submit();
            source.pair.start();
        }
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.pool = Some(pool.clone());
        self.sources.iter_mut().for_each(|source| source.pair.use_pool(pool));
    }

    /// Lends only the origin's own memory, whatever is copied: an origin that lends is in memory
    /// already. Tiers do not lend, since copies may be evicted.
    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        let origin = &self.sources[0];
        let slba = Lba(slba.0.checked_mul(PAGE_BYTES)? / origin.block_len);
        let lent = origin.pair.borrow(slba, len_bytes)?;
        self.shared.counters.origin_read(len_bytes, Duration::ZERO);
        Some(lent)
    }

    fn outstanding(&self) -> usize {
        self.reads.len() + self.ready.len()
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        let start = slba.0.saturating_mul(PAGE_BYTES);
        let range = start..start.saturating_add(len_bytes as u64);
        self.ahead.drop_corrupt(&range);
        self.mark_corrupt(&range);
    }

    /// Only reads pass through tiers.
    fn use_fence(&mut self, _: &Arc<Fence>) {}

    fn shared_queue(&self) -> Option<usize> {
        self.sources[0].pair.shared_queue()
    }

    fn register(&mut self, registry: &Registry) {
        self.registry = Some(registry.clone());
        self.sources.iter_mut().for_each(|source| source.pair.register(registry));
    }

    fn notice(&self) -> Notice {
        if !self.ready.is_empty() {
            return Notice::Poll;
        }
        let busy = self.sources.iter().filter(|source| source.is_busy());
        busy.map(|source| source.pair.notice()).max().unwrap_or(Notice::Event)
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.sources.iter().filter_map(|source| source.pair.next_timeout()).min()
    }
}

impl Drop for TieredPair {
    fn drop(&mut self) {
        let shared = &*self.shared;
        if !shared.has_copier() {
            return;
        }
        for (_, read) in &self.reads {
            for piece in read.pieces.iter().filter(|piece| piece.source == 0 && piece.buf.is_none())
            {
                shared.demand.fetch_sub(1, Ordering::AcqRel);
                piece.wanted.iter().for_each(|&unit| shared.send(Job::Gone(unit)));
            }
        }
        for ahead in self.ahead.outstanding() {
            shared.demand.fetch_sub(1, Ordering::AcqRel);
            ahead.wanted.iter().for_each(|&unit| shared.send(Job::Gone(unit)));
        }
    }
}

/// Source of a piece that an ahead read serves.
const AHEAD: usize = usize::MAX;

/// Marks the tag of an ahead read; the other bits are its id.
const AHEAD_TAG: u64 = 1 << 63;

/// The largest transfer that each kind of tier takes, for a process that has none yet.
const MIN_OF_TIERS: u32 = 1 << 20;
