//! Decisions by the rates of tiers and origin: the tiers that are worth reading, and the limit of reads in
//! flight at each.
//!
//! If the origin is faster than a tier, the tier's copies are not read, and it gets no more (`plan`'s
//! [`SourceRates`] chooses). If a tier has a number of threads, each process has at most that many reads of
//! up to 1 MiB in flight there, as in the measurement; shorter reads count by their length. Without rates
//! every copy is read, and nothing is limited.
//!
//! [`ReadAhead`] turns small sequential reads of the origin into few large ones.
//!
//! A read that starts where an earlier read of the origin ended, before the end of its sample, becomes the
//! first piece of an *ahead read*: one read up to the end of the sample, of at most 1 MiB and as large as the
//! origin allows. The following pieces are served from the ahead read, or wait for it. A queue pair has few
//! ahead reads, and only for small sequential reads: whole samples and large pieces are read directly.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use super::Shared;
use dlfs_base::buf::{IoBuf, SharedBuf};
use dlfs_base::error::{ErrorKind, Result};
use dlfs_base::units::Lba;
use dlfs_io::qpair::mem::MemNamespace;
use dlfs_io::qpair::pieces::PieceId;
use dlfs_io::qpair::{Device, Io, IoOp, PairScope, QueuePair};
use dlfs_order::plan::{Rate, Source as Place, SourceRates};
use dlfs_order::tier::{Ledger, PAGE_BYTES, PageSet};

/// The decisions for all tiers of a process.
#[derive(Default)]
pub(super) struct Sources {
    rates: SourceRates,
    /// Bit i: the origin is faster than tier i.
    avoided: AtomicU32,
    /// Bit i: the last call of [`Sources::choose_for`] avoided tier i.
    told: AtomicU32,
    limits: Vec<Option<Arc<Limit>>>,
}

impl Sources {
    /// Decides for one process, until [`Sources::choose_for`] is called.
    pub(super) fn new(rates: SourceRates) -> Sources {
        let limit = |tier| rates.threads(tier).map(|threads| Arc::new(Limit::of(threads)));
        let limits = (0..rates.tiers.len() as u8).map(limit).collect();
        let (avoided, told) = Default::default();
        let sources = Sources { rates, avoided, told, limits };
        sources.choose(1);
        sources
    }

    /// Decides for a job of this many processes that read from the origin at once; returns the tiers that are
    /// avoided now but were not avoided after the last call.
    pub(super) fn choose_for(&self, processes: u32) -> Vec<u8> {
        let avoided = self.choose(processes);
        let before = self.told.swap(avoided, Ordering::AcqRel);
        (0..self.rates.tiers.len() as u8)
            .filter(|tier| (avoided & !before) >> tier & 1 == 1)
            .collect()
    }

    fn choose(&self, processes: u32) -> u32 {
        let is_avoided = |tier| self.rates.choose(Some(tier), None, processes) == Place::Origin;
        let tiers = (0..self.rates.tiers.len() as u8).filter(|tier| is_avoided(*tier));
        let avoided = tiers.fold(0, |bits, tier| bits | 1 << tier);
        self.avoided.store(avoided, Ordering::Release);
        avoided
    }

    /// Returns whether copies in this tier are not read because the origin is faster.
    pub(super) fn is_avoided(&self, tier: u8) -> bool {
        self.avoided.load(Ordering::Acquire) >> tier & 1 == 1
    }

    /// Tells the ledger which tiers are used.
    pub(super) fn tell(&self, ledger: &mut Ledger, num_tiers: usize) {
        (0..num_tiers as u8).for_each(|tier| ledger.set_used(tier, !self.is_avoided(tier)));
    }

    /// Describes the rates because of which `processes` avoid a tier.
    pub(super) fn why_avoided(&self, tier: u8, processes: u32) -> String {
        let mb = |rate: Option<Rate>| rate.map_or(0.0, |rate| rate.0 as f64 / 1e6);
        let copy = mb(self.rates.of_tier(tier));
        let origin = mb(self.rates.of_origin(processes, tier));
        format!("{copy:.0} MB/s for each of its threads, {origin:.0} MB/s from the origin")
    }

    /// The limit of bytes in flight at `tier`.
    pub(super) fn limit(&self, tier: u8) -> Option<Arc<Limit>> {
        self.limits.get(usize::from(tier))?.clone()
    }
}

/// A limit of the bytes in flight at a tier, shared by all queue pairs of a process.
pub(super) struct Limit {
    pub(super) threads: usize,
    in_flight: AtomicUsize,
}

impl Limit {
    fn of(threads: u32) -> Limit {
        Limit { threads: threads as usize, in_flight: AtomicUsize::new(0) }
    }

    /// The limit in bytes.
    pub(super) fn most_bytes(&self) -> usize {
        self.threads.saturating_mul(THREAD_BYTES)
    }

    /// Adds `len` bytes if they fit, or if `must` is set: a queue pair with nothing in flight may always
    /// read, so that it makes progress.
    fn take(&self, len: usize, must: bool) -> bool {
        let before = self.in_flight.fetch_add(len, Ordering::AcqRel);
        let fits = must || before.saturating_add(len) <= self.most_bytes();
        if !fits {
            self.give_back(len);
        }
        fits
    }

    fn give_back(&self, len: usize) {
        self.in_flight.fetch_sub(len, Ordering::AcqRel);
    }
}

/// A queue pair of the origin or of a tier, with the I/O that it has no room for yet.
pub(super) struct Source {
    pub(super) pair: Box<dyn QueuePair>,
    block_len: u64,
    pending: VecDeque<Io>,
    limit: Option<Arc<Limit>>,
    /// I/O that waits for the limit.
    held: VecDeque<Io>,
    /// Bytes of this queue pair that count towards the limit.
    in_flight: usize,
}

impl Source {
    pub(super) fn to(pair: Box<dyn QueuePair>, limit: Option<Arc<Limit>>) -> Source {
        let block_len = u64::from(pair.namespace().block_len_bytes);
        let (pending, held) = Default::default();
        Source { pair, block_len, pending, limit, held, in_flight: 0 }
    }

    /// Borrows bytes, unless reads are limited.
    pub(super) fn borrow(&self, offset: u64, len_bytes: usize) -> Option<SharedBuf> {
        let slba = Lba(offset / self.block_len);
        if self.limit.is_some() { None } else { self.pair.borrow(slba, len_bytes) }
    }

    pub(super) fn push(&mut self, offset: u64, buf: IoBuf, tag: u64) {
        let slba = Lba(offset / self.block_len);
        let io = Io { op: IoOp::Read, slba, buf, tag };
        match self.limit {
            Some(_) => self.held.push_back(io),
            None => self.pending.push_back(io),
        }
    }

    pub(super) fn submit(&mut self) -> usize {
        self.admit();
        if self.pending.is_empty() { 0 } else { self.pair.submit(&mut self.pending) }
    }

    /// Handles the completion of a read of `len` bytes.
    pub(super) fn completed(&mut self, len: usize) {
        if let Some(limit) = &self.limit {
            self.in_flight -= len;
            limit.give_back(len);
        }
    }

    fn admit(&mut self) {
        let Some(limit) = &self.limit else { return };
        while let Some(io) = self.held.front()
            && limit.take(io.buf.len(), self.in_flight == 0)
        {
            self.in_flight += io.buf.len();
            self.pending.extend(self.held.pop_front());
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.held.is_empty() || !self.pending.is_empty() || self.pair.outstanding() > 0
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(limit) = &self.limit {
            limit.give_back(self.in_flight);
        }
    }
}

/// Opens a queue pair of a tier. If a tier's target is lost, its copies are lost, but reads continue from the
/// origin.
///
/// # Errors
/// `Refused`: other hosts use all queues that a target grants. Errors of opening a local tier.
pub(super) fn pair_of(shared: &Shared, tier: u8, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
    let media = &shared.media[usize::from(tier)];
    match media.device.queue_pair_in(scope) {
        Err(error) if media.remote.is_some() && error.kind() != ErrorKind::Refused => {
            shared.switch_off(tier, &error.report());
            // A page stands for the tier. All copies lie behind the index, so each read of one fails past
            // the end, and then goes to the origin.
            MemNamespace::new(PAGE_BYTES, PAGE_BYTES as u32)?.queue_pair()
        }
        opened => opened,
    }
}

/// The ahead reads of one queue pair, and the ends of its last reads.
#[derive(Default)]
pub(super) struct ReadAhead {
    /// Ends of earlier reads, the latest last.
    ends: VecDeque<u64>,
    /// Ahead reads, the newest last.
    reads: VecDeque<AheadRead>,
    /// Id of the newest ahead read.
    last: u32,
}

/// Pages of a unit that this process reads from the origin, to be kept.
pub(super) type Claim = (u32, PageSet);

/// A range of the origin that one read has brought, or will bring.
pub(super) struct AheadRead {
    id: u32,
    pub(super) range: Range<u64>,
    /// `None` while the read is outstanding.
    bytes: Option<IoBuf>,
    waiting: Vec<Waiting>,
    /// Claimed pages that this read brings.
    pub(super) claims: Vec<Claim>,
    pub(super) began: Instant,
}

/// A piece of a read that an ahead read will serve.
pub(super) struct Waiting {
    pub(super) piece: PieceId,
    /// Offset of the piece's first byte.
    pub(super) start: u64,
    pub(super) buf: IoBuf,
}

impl ReadAhead {
    /// Records a read of the origin; returns whether it continues an earlier one.
    pub(super) fn note(&mut self, range: &Range<u64>) -> bool {
        let follows = self.ends.iter().position(|&end| end == range.start);
        match follows {
            Some(at) => self.ends.remove(at),
            None if self.ends.len() == MAX_STREAMS => self.ends.pop_front(),
            None => None,
        };
        self.ends.push_back(range.end);
        follows.is_some()
    }

    /// End of the ahead read that contains byte `at`.
    pub(super) fn end_of(&self, at: u64) -> Option<u64> {
        self.reads.iter().find(|read| read.range.contains(&at)).map(|read| read.range.end)
    }

    /// Returns whether one ahead read contains all of `range`.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        self.reads.iter().any(|read| read.has(range))
    }

    /// Adds an ahead read of `range`, which is outstanding from now on, and returns its id.
    pub(super) fn open(&mut self, range: Range<u64>, claims: Vec<Claim>, began: Instant) -> u32 {
        self.last = (self.last + 1) & MAX_ID;
        let id = self.last;
        let bytes = None;
        let waiting = Vec::new();
        self.reads.push_back(AheadRead { id, range, bytes, waiting, claims, began });
        id
    }

    /// Returns whether another ahead read may begin; drops the oldest completed one if there is no room.
    pub(super) fn has_room(&mut self) -> bool {
        if self.reads.len() < MAX_AHEAD_READS {
            return true;
        }
        let come = self.reads.iter().position(|read| read.bytes.is_some());
        come.and_then(|at| self.reads.remove(at)).is_some()
    }

    /// Serves `piece` from the ahead read that contains it, at once or when its data arrive. Returns the
    /// piece if it was served at once.
    ///
    /// # Panics
    /// If no ahead read contains it: see [`ReadAhead::has`].
    pub(super) fn serve(&mut self, mut piece: Waiting) -> Option<Waiting> {
        let range = piece.start..piece.start + piece.buf.len() as u64;
        let mut reads = self.reads.iter_mut();
        let at = reads.position(|read| read.has(&range)).expect("the caller has asked");
        let read = &mut self.reads[at];
        let Some(bytes) = &read.bytes else {
            read.waiting.push(piece);
            return None;
        };
        piece.fill(read.range.start, bytes);
        if range.end == read.range.end {
            self.reads.remove(at); // all of its bytes were used
        }
        Some(piece)
    }

    /// Handles the end of an ahead read. With data, keeps it for the following pieces; without data, removes
    /// it. Returns the pieces that waited for it, filled if there are data.
    pub(super) fn ended(&mut self, id: u32, bytes: Option<IoBuf>) -> Vec<Waiting> {
        let at = self.reads.iter().position(|read| read.id == id);
        let at = at.expect("a read stays while it is under way");
        let read = &mut self.reads[at];
        let mut waiting = std::mem::take(&mut read.waiting);
        let Some(bytes) = bytes else {
            self.reads.remove(at);
            return waiting;
        };
        waiting.iter_mut().for_each(|piece| piece.fill(read.range.start, &bytes));
        let is_last = |piece: &Waiting| piece.start + piece.buf.len() as u64 == read.range.end;
        let was_read = waiting.iter().any(is_last);
        read.bytes = Some(bytes);
        if was_read {
            self.reads.remove(at); // all of its bytes were used, in order
        }
        waiting
    }

    /// The outstanding ahead read with this id.
    pub(super) fn get(&mut self, id: u32) -> Option<&mut AheadRead> {
        self.reads.iter_mut().find(|read| read.id == id)
    }

    /// Drops completed ahead reads that contain bytes of `range`, whose data were corrupt.
    pub(super) fn drop_corrupt(&mut self, range: &Range<u64>) {
        self.reads.retain(|read| {
            let overlaps = read.range.start < range.end && range.start < read.range.end;
            read.bytes.is_none() || !overlaps
        });
    }

    /// Outstanding ahead reads.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = &AheadRead> {
        self.reads.iter().filter(|read| read.bytes.is_none())
    }
}

impl AheadRead {
    fn has(&self, range: &Range<u64>) -> bool {
        self.range.contains(&range.start) && range.end <= self.range.end
    }
}

impl Waiting {
    /// Copies the piece's part of `bytes`, which begin at offset `start`.
    pub(super) fn fill(&mut self, start: u64, bytes: &[u8]) {
        let from = (self.start - start) as usize;
        let len = self.buf.len();
        self.buf.copy_from_slice(&bytes[from..from + len]);
    }
}

/// The bytes that one thread of a table reads at a time.
const THREAD_BYTES: usize = 1 << 20;

/// Maximum length of an ahead read, which is also the longest read that the reader requests.
pub(super) const MAX_AHEAD_BYTES: u64 = 1 << 20;

/// Limit of ahead reads of a queue pair; it bounds their memory to 4 MiB.
const MAX_AHEAD_READS: usize = 4;

/// Number of remembered ends of reads: as many samples may be read alternately.
const MAX_STREAMS: usize = 16;

/// Limit of ids, which share a tag with the bit that marks ahead reads.
const MAX_ID: u32 = u32::MAX >> 1;

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_order::plan::{Curve, Rate, Stage};

    fn source(limit: &Arc<Limit>) -> Source {
        let device = MemNamespace::new(16 << 20, 4096).unwrap();
        Source::to(device.queue_pair().unwrap(), Some(Arc::clone(limit)))
    }

    fn poll(source: &mut Source) -> usize {
        let mut done = Vec::new();
        source.pair.poll(Instant::now(), usize::MAX, &mut done);
        done.iter().for_each(|done| source.completed(done.buf.len()));
        done.len()
    }

    #[test]
    fn as_many_reads_as_threads_are_in_flight_in_all_pairs_and_one_in_any_case() {
        let limit = Arc::new(Limit::of(3));
        let mut first = source(&limit);
        let mut second = source(&limit);
        for tag in 0..8 {
            first.push(tag << 20, IoBuf::zeroed(1 << 20), tag);
            second.push(tag << 20, IoBuf::zeroed(1 << 20), tag);
        }
        [&mut first, &mut second].into_iter().for_each(|source| _ = source.submit());
        assert_eq!((first.pair.outstanding(), second.pair.outstanding()), (3, 1));
        let mut done = 0;
        while first.is_busy() || second.is_busy() {
            done += poll(&mut first) + poll(&mut second);
            [&mut first, &mut second].into_iter().for_each(|source| _ = source.submit());
            assert!(first.pair.outstanding() + second.pair.outstanding() <= 4);
        }
        assert_eq!((done, limit.in_flight.load(Ordering::Relaxed)), (16, 0));
    }

    #[test]
    fn short_reads_count_by_their_length_and_a_pair_that_is_dropped_gives_all_back() {
        let limit = Arc::new(Limit::of(1));
        let mut pair = source(&limit);
        for tag in 0..300 {
            pair.push(tag << 12, IoBuf::zeroed(4096), tag);
        }
        pair.submit();
        assert_eq!(limit.in_flight.load(Ordering::Relaxed), 1 << 20, "256 of 300");
        drop(pair);
        assert_eq!(limit.in_flight.load(Ordering::Relaxed), 0);
        let mut pair = source(&limit);
        pair.push(0, IoBuf::zeroed(8 << 20), 0);
        pair.push(0, IoBuf::zeroed(4096), 1);
        assert_eq!(pair.submit(), 1, "one that is too long comes alone");
    }

    #[test]
    fn tiers_are_avoided_by_the_number_of_processes() {
        let flat = |mb| Curve::flat(Rate::mb_per_s(mb));
        let tier = |mb| Some(Stage { threads: 1, read: flat(mb), write: flat(mb) });
        let rates = SourceRates {
            tiers: vec![tier(1000), tier(100)],
            origin: Some(flat(400)),
            ..SourceRates::default()
        };
        let sources = Sources::new(rates);
        assert_eq!([0, 1].map(|tier| sources.is_avoided(tier)), [false, true]);
        assert_eq!(sources.choose_for(1), [1], "nobody has been told yet");
        assert!(sources.choose_for(1).is_empty(), "once");
        assert!(sources.choose_for(4).is_empty() && !sources.is_avoided(1), "a tie");
        assert_eq!(sources.choose_for(2), [1]);
        assert!(sources.choose_for(3).is_empty() && sources.is_avoided(1));
        let said = sources.why_avoided(1, 2);
        assert!(said.contains("100 MB/s") && said.contains("200 MB/s"), "{said}");
        assert!(!Sources::new(SourceRates::default()).is_avoided(0));
    }
}
