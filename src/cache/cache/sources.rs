//! Decisions by the rates of tiers and origin: the tiers that are worth reading, and the limit of reads in
//! flight at each.
//!
//! If the origin is faster than a tier, the tier's copies are not read, and it gets no more (`plan`'s
//! [`SourceRates`] chooses). If a tier has a number of threads, each process has at most 1 MiB of reads in flight
//! there for each thread, as in the measurement; but each queue pair may always have one read in flight. Without rates
//! every copy is read, and nothing is limited.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::TierShared;
use dlfs_base::buf::{IoBuf, SharedBuf};
use dlfs_base::error::{ErrorKind, Result};
use dlfs_base::process::Forked;
use dlfs_base::units::Lba;
use dlfs_io::qpair::mem::MemNamespace;
use dlfs_io::qpair::{Device, Io, IoOp, PairScope, QueuePair};
use dlfs_order::plan::{Rate, Source, SourceRates};
use dlfs_order::tier::{Ledger, PAGE_BYTES};

/// The decisions for all tiers of a process.
#[derive(Default)]
pub(super) struct Sources {
    rates: SourceRates,
    /// Bit i: the origin is faster than tier i.
    avoided: AtomicU32,
    /// Bit i: the last call of [`Sources::choose_for`] avoided tier i.
    told: AtomicU32,
    /// By tier; `None`: reads of the tier are not limited.
    limits: Vec<Option<Arc<InFlightLimit>>>,
}

impl Sources {
    /// Decides for one process, until [`Sources::choose_for`] is called.
    pub(super) fn new(rates: SourceRates) -> Sources {
        let limit = |tier| rates.threads(tier).map(|threads| Arc::new(InFlightLimit::of(threads)));
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

    /// Decides which tiers are avoided; returns them as bits.
    fn choose(&self, processes: u32) -> u32 {
        let is_avoided = |tier| self.rates.choose(Some(tier), None, processes) == Source::Origin;
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

    /// The limit of bytes in flight at `tier`; `None`: no limit.
    pub(super) fn limit(&self, tier: u8) -> Option<Arc<InFlightLimit>> {
        self.limits.get(usize::from(tier))?.clone()
    }
}

/// A limit of the bytes in flight at a tier, shared by all queue pairs of a process.
pub(super) struct InFlightLimit {
    /// Number of threads of the tier: as many reads of 1 MiB may be in flight.
    pub(super) threads: usize,
    /// Bytes in flight. A forked child begins at 0, and adds those of the queue pairs that it goes on using.
    in_flight: Forked<AtomicUsize>,
}

impl InFlightLimit {
    fn of(threads: u32) -> InFlightLimit {
        let in_flight = Forked::new(AtomicUsize::default());
        InFlightLimit { threads: threads as usize, in_flight }
    }

    /// The bytes that this process has in flight.
    fn in_flight(&self) -> &AtomicUsize {
        self.in_flight.get_or_init(AtomicUsize::default)
    }

    /// The limit in bytes.
    pub(super) fn most_bytes(&self) -> usize {
        self.threads.saturating_mul(THREAD_BYTES)
    }

    /// Adds `len` bytes if they fit, or if `must` is set; returns whether it did. A queue pair with nothing in
    /// flight sets `must`, so that it always makes progress.
    fn take(&self, len: usize, must: bool) -> bool {
        let before = self.in_flight().fetch_add(len, Ordering::AcqRel);
        let fits = must || before.saturating_add(len) <= self.most_bytes();
        if !fits {
            self.give_back(len);
        }
        fits
    }

    fn give_back(&self, len: usize) {
        self.in_flight().fetch_sub(len, Ordering::AcqRel);
    }
}

/// A queue pair of the origin or of a tier, with the I/O that it has no room for yet.
pub(super) struct SourcePair {
    pub(super) pair: Box<dyn QueuePair>,
    block_len: u64,
    /// I/O that the limit permits, to be submitted when the queue pair has room.
    pending: VecDeque<Io>,
    limit: Option<Arc<InFlightLimit>>,
    /// I/O that waits for the limit.
    held: VecDeque<Io>,
    /// Bytes of this queue pair that count towards the limit.
    in_flight: usize,
    /// The process towards whose limit they count.
    home: Forked<()>,
}

impl SourcePair {
    pub(super) fn new(pair: Box<dyn QueuePair>, limit: Option<Arc<InFlightLimit>>) -> SourcePair {
        let block_len = u64::from(pair.namespace().block_len_bytes);
        let (pending, held) = Default::default();
        let home = Forked::new(());
        SourcePair { pair, block_len, pending, limit, held, in_flight: 0, home }
    }

    /// Borrows bytes; `None` if reads are limited or the queue pair lends nothing.
    pub(super) fn borrow(&self, offset: u64, len_bytes: usize) -> Option<SharedBuf> {
        let slba = Lba(offset / self.block_len);
        if self.limit.is_some() { None } else { self.pair.borrow(slba, len_bytes) }
    }

    /// Queues a read at `offset`, in bytes.
    pub(super) fn push(&mut self, offset: u64, buf: IoBuf, tag: u64) {
        let slba = Lba(offset / self.block_len);
        let io = Io { op: IoOp::Read, slba, buf, tag };
        match self.limit {
            Some(_) => self.held.push_back(io),
            None => self.pending.push_back(io),
        }
    }

    /// Submits queued reads within the limit; returns how many the queue pair took.
    pub(super) fn submit(&mut self) -> usize {
        self.notice_fork();
        while let (Some(limit), Some(io)) = (&self.limit, self.held.front())
            && limit.take(io.buf.len(), self.in_flight == 0)
        {
            self.in_flight += io.buf.len();
            self.pending.extend(self.held.pop_front());
        }
        if self.pending.is_empty() { 0 } else { self.pair.submit(&mut self.pending) }
    }

    /// Handles the completion of a read of `len` bytes.
    pub(super) fn completed(&mut self, len: usize) {
        self.notice_fork();
        if let Some(limit) = &self.limit {
            self.in_flight -= len;
            limit.give_back(len);
        }
    }

    /// Counts the inherited bytes in flight in a forked child: their reads end there, since it uses this queue pair.
    fn notice_fork(&mut self) {
        if !self.home.is_ours() {
            self.home = Forked::new(());
            self.limit.iter().for_each(|limit| _ = limit.take(self.in_flight, true));
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.held.is_empty() || !self.pending.is_empty() || self.pair.outstanding() > 0
    }
}

impl Drop for SourcePair {
    fn drop(&mut self) {
        if let Some(limit) = self.limit.as_ref().filter(|_| self.home.is_ours()) {
            limit.give_back(self.in_flight);
        }
    }
}

/// Opens a queue pair of a tier. If a tier's target is lost, its copies are lost, but reads continue from the
/// origin.
///
/// # Errors
/// `Refused`: other hosts use all queues that a target grants. Errors of opening a local tier.
pub(super) fn pair_of(
    shared: &TierShared,
    tier: u8,
    scope: &PairScope,
) -> Result<Box<dyn QueuePair>> {
    let media = &shared.media[usize::from(tier)];
    match media.device.queue_pair_in(scope) {
        Err(error) if media.remote.is_some() && error.kind() != ErrorKind::Refused => {
            shared.switch_off(tier, &error.report());
            // A namespace of one page stands for the tier. All copies lie behind the index, so each read of a copy
            // fails past the end, and then goes to the origin.
            MemNamespace::new(PAGE_BYTES, PAGE_BYTES as u32)?.queue_pair()
        }
        opened => opened,
    }
}

/// The bytes that one thread of a bandwidth table reads at a time.
const THREAD_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use dlfs_order::plan::{Curve, Rate, Stage};

    fn source(limit: &Arc<InFlightLimit>) -> SourcePair {
        let device = MemNamespace::new(16 << 20, 4096).unwrap();
        SourcePair::new(device.queue_pair().unwrap(), Some(Arc::clone(limit)))
    }

    fn poll(source: &mut SourcePair) -> usize {
        let mut done = Vec::new();
        source.pair.poll(Instant::now(), usize::MAX, &mut done);
        done.iter().for_each(|done| source.completed(done.buf.len()));
        done.len()
    }

    #[test]
    fn as_many_reads_as_threads_are_in_flight_in_all_pairs_and_one_in_any_case() {
        let limit = Arc::new(InFlightLimit::of(3));
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
        assert_eq!((done, limit.in_flight().load(Ordering::Relaxed)), (16, 0));
    }

    #[test]
    fn short_reads_count_by_their_length_and_a_pair_that_is_dropped_gives_all_back() {
        let limit = Arc::new(InFlightLimit::of(1));
        let mut pair = source(&limit);
        for tag in 0..300 {
            pair.push(tag << 12, IoBuf::zeroed(4096), tag);
        }
        pair.submit();
        assert_eq!(limit.in_flight().load(Ordering::Relaxed), 1 << 20, "256 of 300");
        drop(pair);
        assert_eq!(limit.in_flight().load(Ordering::Relaxed), 0);
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
