//! Queue pair of a namespace with tiers in front of it: splits each read where copies begin and end.
//!
//! The queue pair claims the pages that have no copy and that a tier will keep, reads them from the origin
//! and passes them to the copier. If a page is already claimed, the read waits for it for a limited time:
//! until the page is in memory if this queue pair has claimed it, otherwise until the page is in the tier.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::TierShared;
use super::read_ahead::{Claim, MAX_AHEAD_BYTES, ReadAhead, WaitingPiece};
use super::share::Message;
use super::sources::{SourcePair, pair_of};
use dlfs_base::buf::{IoBuf, Pool, SharedBuf};
use dlfs_base::error::Result;
use dlfs_base::metrics::{Place, PlaceCounters};
use dlfs_base::process::Forked;
use dlfs_base::units::Lba;
use dlfs_io::qpair::pieces::{PieceId, Pieces};
use dlfs_io::qpair::readiness::Registry;
use dlfs_io::qpair::{
    Completion, Fence, Io, IoError, IoOp, Namespace, Notice, PairScope, QueuePair,
};
use dlfs_nvme::nvme::Status;
use dlfs_order::tier::{PAGE_BYTES, PageSet};

/// The source that serves a piece of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceSource {
    Origin,
    /// The tier with this number.
    Tier(u8),
    /// An ahead read of the origin.
    Ahead,
    /// No source yet: the piece waits for pages that another claimant reads.
    Wait,
    /// No source at all: the range has no copy, and only copies are served.
    Absent,
}

/// State of a piece of a read.
struct PieceState {
    source: PieceSource,
    /// Time at which the piece was begun, or at which it was sent to the origin instead.
    began: Instant,
    /// Number of evictions before the read of this piece began.
    evictions: u64,
    /// Set if this is the second read from a tier.
    is_again: bool,
    /// Claimed pages that this read brings.
    claims: Vec<Claim>,
}

/// A range of bytes from one source.
struct Cut {
    range: Range<u64>,
    source: PieceSource,
    /// Offset of the first byte at the source.
    at: u64,
    /// Claimed pages that the read of this range brings.
    claims: Vec<Claim>,
}

impl Cut {
    fn new(range: Range<u64>, source: PieceSource, at: u64) -> Cut {
        Cut { range, source, at, claims: Vec::new() }
    }
}

/// The reader at the other end of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requester {
    /// This process.
    Own,
    /// Another node. It gets *Deallocated or Unwritten Logical Block* for data that cannot be read here, so
    /// that it reads them elsewhere: its own path to the origin may work when this one fails. With
    /// `copies_only`, it gets this status for data without a copy, too.
    Peer { copies_only: bool },
}

/// Queue pair of a namespace with tiers in front of it: see the module's page.
pub(super) struct TieredPair {
    shared: Arc<TierShared>,
    /// The process in whose demand this queue pair's reads count.
    home: Forked<()>,
    /// Pool and registry for the sources that are opened after a takeover.
    pool: Option<Pool>,
    registry: Option<Registry>,
    /// Index of the namespace in the data set.
    number: u16,
    requester: Requester,
    namespace: Namespace,
    /// Queue pairs of the origin, then of each tier.
    sources: Vec<SourcePair>,
    /// Counters of bytes by the place that served them, without the origin.
    places: Arc<PlaceCounters>,
    /// The outstanding reads, in pieces.
    pieces: Pieces<PieceState>,
    /// Completed reads that no poll has returned yet.
    ready: VecDeque<Completion>,
    /// Memory for the completions of one source.
    scratch: Vec<Completion>,
    ahead: ReadAhead,
    /// Pieces for pages that another claimant reads.
    waiting: Vec<WaitingPiece>,
    /// Time of the next check of `waiting`; `None`: no piece waits.
    next_check: Option<Instant>,
    /// Number of copies of an earlier run that had been verified at the last check, and the time since which
    /// this number is unchanged.
    checks: (u64, Instant),
    /// The earliest time of the next attempt to open the next owner's tiers, after one that has failed.
    follow_at: Option<Instant>,
    /// Set if the last poll made progress. A source may then have left transfers to the next poll, which must
    /// come without waiting for a completion of this queue pair.
    has_moved: bool,
    /// Memory for the cuts of one read.
    cuts: Vec<Cut>,
}

impl TieredPair {
    /// Opens the queue pairs of the tiers, and combines them with `origin`, a queue pair of origin namespace `number`.
    /// `namespace` describes the result.
    ///
    /// # Errors
    /// As [`pair_of`].
    pub(super) fn open(
        shared: &Arc<TierShared>,
        number: u16,
        (origin, namespace): (Box<dyn QueuePair>, Namespace),
        requester: Requester,
        scope: &PairScope,
    ) -> Result<TieredPair> {
        let mut sources = vec![SourcePair::new(origin, None)];
        for tier in 0..shared.media.len() as u8 {
            sources
                .push(SourcePair::new(pair_of(shared, tier, scope)?, shared.sources.limit(tier)));
        }
        Ok(TieredPair {
            shared: Arc::clone(shared),
            pool: None,
            registry: None,
            number,
            requester,
            namespace,
            sources,
            places: Arc::clone(scope.places()),
            pieces: Pieces::new(),
            ready: VecDeque::new(),
            scratch: Vec::new(),
            ahead: ReadAhead::default(),
            waiting: Vec::new(),
            next_check: None,
            follow_at: None,
            home: Forked::new(()),
            checks: (0, Instant::now()),
            has_moved: false,
            cuts: Vec::new(),
        })
    }

    fn is_copies_only(&self) -> bool {
        self.requester == Requester::Peer { copies_only: true }
    }

    /// Begins a read: cuts it into pieces, and passes each to its source.
    fn begin(&mut self, io: Io, now: Instant) {
        let checked = self.namespace.check(&io);
        if checked.is_err() || io.op != IoOp::Read {
            return self.ready.push_back(io.end(checked));
        }
        self.follow_takeover(now);
        let start = io.slba.0 * PAGE_BYTES;
        let range = start..start + io.buf.len() as u64;
        let evictions = self.shared.copies.evictions();
        let mut cuts = std::mem::take(&mut self.cuts);
        self.cut(&range, &mut cuts);
        if cuts.iter().any(|cut| cut.source == PieceSource::Absent) {
            cuts.clear();
            self.cuts = cuts;
            return self.ready.push_back(io.end(Err(UNWRITTEN)));
        }
        let mut cutting = self.pieces.begin(io, start, cuts.len());
        for Cut { range, source, at, mut claims } in cuts.drain(..) {
            let source = match source {
                PieceSource::Origin | PieceSource::Ahead => {
                    self.origin_or_ahead(&range, &mut claims, now)
                }
                other => other,
            };
            let start = range.start;
            let len = (range.end - range.start) as usize;
            let state = PieceState { source, began: now, evictions, is_again: false, claims };
            let (piece, buf) = self.pieces.cut(&mut cutting, len, state);
            match source {
                PieceSource::Ahead => {
                    if let Some(ready) = self.ahead.serve(WaitingPiece { piece, start, buf }) {
                        self.read_ahead(ready);
                    }
                }
                PieceSource::Wait => {
                    self.waiting.push(WaitingPiece { piece, start, buf });
                    self.next_check = Some(now + CHECK_INTERVAL);
                }
                source => self.push(source, at, buf, piece),
            }
        }
        self.cuts = cuts;
    }

    /// Queues the read of a piece at a tier or the origin; a read of the origin counts as demand.
    fn push(&mut self, source: PieceSource, offset: u64, buf: IoBuf, piece: PieceId) {
        let index = if let PieceSource::Tier(tier) = source {
            usize::from(tier) + 1
        } else {
            self.shared.demand().fetch_add(1, Ordering::AcqRel);
            ORIGIN
        };
        self.sources[index].push(offset, buf, piece.0);
    }

    /// Switches to the next owner's tiers once no read from the last owner's tiers is outstanding. Until
    /// then, reads go to the origin.
    fn follow_takeover(&mut self, now: Instant) {
        let is_early = self.follow_at.is_some_and(|at| now < at);
        if self.shared.next.get().is_none()
            || is_early
            || self.sources[1..].iter().any(SourcePair::is_busy)
        {
            return;
        }
        self.follow_at = Some(now + FOLLOW_AGAIN);
        // Not read any more; and a target may grant too few queues for those of both owners.
        self.sources.truncate(1);
        let next = Arc::clone(self.shared.latest());
        let mut sources = Vec::with_capacity(next.media.len());
        for tier in 0..next.media.len() as u8 {
            match pair_of(&next, tier, &PairScope::new()) {
                // This queue pair was opened without a tier, and promised longer transfers.
                Ok(pair)
                    if pair.namespace().max_transfer_bytes < self.namespace.max_transfer_bytes =>
                {
                    return;
                }
                Ok(mut pair) => {
                    self.pool.iter().for_each(|pool| pair.use_pool(pool));
                    self.registry.iter().for_each(|registry| pair.register(registry));
                    sources.push(SourcePair::new(pair, next.sources.limit(tier)));
                }
                Err(error) => {
                    tracing::debug!(%error, "no queue pair for the next owner's tiers yet");
                    return;
                }
            }
        }
        self.sources.append(&mut sources);
        self.follow_at = None;
        self.shared = next;
    }

    /// The source for `range`: the origin, or an ahead read. Starts an ahead read here if that is worthwhile,
    /// and moves the claims to it.
    fn origin_or_ahead(
        &mut self,
        range: &Range<u64>,
        claims: &mut Vec<Claim>,
        now: Instant,
    ) -> PieceSource {
        let follows = self.ahead.note(range);
        if self.ahead.has(range) {
            return PieceSource::Ahead;
        }
        let ahead = range.start..if follows { self.end_of_ahead(range) } else { range.end };
        if ahead.end <= range.end || !self.ahead.make_room() {
            return PieceSource::Origin;
        }
        let mut claims = std::mem::take(claims);
        self.claim(&(range.end..ahead.end), &mut claims);
        self.shared.demand().fetch_add(1, Ordering::AcqRel);
        let len = (ahead.end - ahead.start) as usize;
        let id = self.ahead.open(ahead, claims, now);
        self.sources[ORIGIN].push(range.start, IoBuf::zeroed(len), AHEAD_TAG | u64::from(id));
        PieceSource::Ahead
    }

    /// End of an ahead read that starts with `range`: the end of the unit, or of its sample if that has several units,
    /// the first page that has a copy or is under way, or the end of the longest ahead read or transfer.
    fn end_of_ahead(&self, range: &Range<u64>) -> u64 {
        let shared = &*self.shared;
        let namespace = self.sources[ORIGIN].pair.namespace();
        let limit = range.start + MAX_AHEAD_BYTES.min(namespace.max_transfer_bytes.into());
        let limit = limit.min(self.namespace.len_bytes());
        let mut end = range.end;
        let mut together = None;
        for unit in shared.units.within(self.number, &(range.end - 1..limit.max(range.end))) {
            let together = together.get_or_insert_with(|| shared.units.together_with(unit));
            if !together.contains(&unit) {
                break;
            }
            let bounds = shared.units.get(unit);
            let behind = bounds.pages_in(&(range.end..bounds.end_bytes()));
            if behind.is_empty() {
                continue;
            }
            let known = shared.copies.under_way(unit).with(shared.copies.there(unit));
            let absent = behind.without(if shared.has_copier() { known } else { PageSet::NONE });
            let first = behind.0.trailing_zeros();
            let next = first + (absent.0 >> first).trailing_ones();
            end = bounds.start_bytes() + u64::from(next) * PAGE_BYTES;
            if end < bounds.end_bytes() {
                break;
            }
        }
        end.min(limit)
    }

    /// Claims the pages in `range` that a tier will keep and that nobody else has claimed.
    fn claim(&self, range: &Range<u64>, claims: &mut Vec<Claim>) {
        let shared = &*self.shared;
        if !shared.has_copier() {
            return;
        }
        for unit in shared.units.within(self.number, range) {
            let wanted = shared.wants(unit, shared.units.get(unit).pages_in(range));
            let claimed = shared.claim(unit, wanted);
            if !claimed.is_empty() {
                claims.push((unit, claimed));
            }
        }
    }

    /// Ends a piece that an ahead read has served.
    fn read_ahead(&mut self, WaitingPiece { piece, buf, .. }: WaitingPiece) {
        self.shared.counters.ahead(buf.len());
        self.end_piece(piece, buf, Ok(()), Place::Ahead);
    }

    /// Ends a piece that `place` has served; a failed piece counts as the origin's.
    fn end_piece(&mut self, piece: PieceId, buf: IoBuf, result: Result<(), IoError>, place: Place) {
        let result = if self.requester == Requester::Own { result } else { to_peer(result) };
        self.places.add(place, buf.len());
        self.ready.extend(self.pieces.end(piece, buf, result));
    }

    /// Handles the end of an ahead read. If it failed, each piece is read separately, since it may have
    /// failed for bytes that nobody requested.
    fn ahead_ended(&mut self, completion: Completion, now: Instant) {
        let id = (completion.tag & !AHEAD_TAG) as u32;
        let ahead = self.ahead.get(id).expect("an ahead read stays while it is outstanding");
        let claims = std::mem::take(&mut ahead.claims);
        let took = now.saturating_duration_since(ahead.began);
        let start = ahead.range.start;
        self.shared.demand().fetch_sub(1, Ordering::AcqRel);
        if completion.result.is_err() {
            claims.into_iter().for_each(|(unit, pages)| self.shared.release(unit, pages));
            for WaitingPiece { piece, buf, .. } in self.ahead.ended(id, None) {
                self.read_origin_instead(piece, buf);
            }
            return;
        }
        self.shared.counters.origin_read(completion.buf.len(), took);
        self.pass_on(claims, start, &completion.buf);
        self.serve_waiting(start, &completion.buf);
        for ready in self.ahead.ended(id, Some(completion.buf)) {
            self.read_ahead(ready);
        }
    }

    /// Splits `range` by the current source of its bytes, in order.
    fn cut(&self, range: &Range<u64>, cuts: &mut Vec<Cut>) {
        let shared = &*self.shared;
        let mut at = range.start;
        for unit in shared.units.within(self.number, range) {
            let Some((location, there)) = shared.copies_to_read(unit) else { continue };
            let bounds = shared.units.get(unit);
            let data = shared.media[usize::from(location.tier)].data_offset;
            let source = PieceSource::Tier(location.tier);
            for run in there.and(bounds.pages_in(range)).runs() {
                let Some(page) = location.of_page(run.start) else { continue };
                let from = bounds.start_bytes() + u64::from(run.start) * PAGE_BYTES;
                let to = bounds.start_bytes() + u64::from(run.end) * PAGE_BYTES;
                if from > at {
                    self.cut_origin(at..from, cuts);
                }
                let offset = data + page * PAGE_BYTES;
                match cuts.last_mut() {
                    Some(last)
                        if last.source == source
                            && last.at + (from - last.range.start) == offset =>
                    {
                        last.range.end = to;
                    }
                    _ => cuts.push(Cut::new(from..to, source, offset)),
                }
                at = to;
            }
        }
        if at < range.end {
            self.cut_origin(at..range.end, cuts);
        }
    }

    /// Splits a range without copies: uses ahead reads where possible, otherwise the origin.
    fn cut_origin(&self, range: Range<u64>, cuts: &mut Vec<Cut>) {
        if self.is_copies_only() {
            let at = range.start;
            return cuts.push(Cut::new(range, PieceSource::Absent, at));
        }
        let mut at = range.start;
        while let Some(end) = self.ahead.end_of(at).filter(|_| at < range.end) {
            let end = end.min(range.end);
            cuts.push(Cut::new(at..end, PieceSource::Ahead, at));
            at = end;
        }
        if at < range.end {
            self.cut_claimed(at..range.end, cuts);
        }
    }

    /// Splits a range by pages that others have claimed, and claims the remaining pages that a tier is to keep.
    fn cut_claimed(&self, range: Range<u64>, cuts: &mut Vec<Cut>) {
        let shared = &*self.shared;
        let mut at = range.start;
        let mut claims = Vec::new();
        let has_copier = shared.has_copier();
        for unit in shared.units.within(self.number, &range).filter(|_| has_copier) {
            let bounds = shared.units.get(unit);
            let wanted = shared.wants(unit, bounds.pages_in(&range));
            let mut claimed = shared.claim(unit, wanted);
            for run in wanted.without(claimed).runs() {
                let before = claimed.and(PageSet::range(0..run.start));
                claimed = claimed.without(before);
                claims.extend((!before.is_empty()).then_some((unit, before)));
                let from = bounds.start_bytes() + u64::from(run.start) * PAGE_BYTES;
                let to = bounds.start_bytes() + u64::from(run.end) * PAGE_BYTES;
                if from > at {
                    let claims = std::mem::take(&mut claims);
                    cuts.push(Cut { claims, ..Cut::new(at..from, PieceSource::Origin, at) });
                }
                shared.copies.await_unit(unit);
                cuts.push(Cut::new(from..to, PieceSource::Wait, from));
                at = to;
            }
            claims.extend((!claimed.is_empty()).then_some((unit, claimed)));
        }
        if at < range.end {
            cuts.push(Cut { claims, ..Cut::new(at..range.end, PieceSource::Origin, at) });
        }
    }

    /// Counts the inherited reads of the origin in a forked child: they end there, since it uses this queue pair.
    fn notice_fork(&mut self) {
        if !self.home.is_ours() {
            self.home = Forked::new(());
            let pieces = self.pieces.outstanding().map(|piece| &piece.info);
            let of_origin = pieces.filter(|piece| piece.source == PieceSource::Origin).count();
            let count = of_origin + self.ahead.outstanding().count();
            self.shared.demand().fetch_add(count, Ordering::AcqRel);
        }
    }

    /// Checks whether the pages that pieces wait for have arrived.
    fn poll_waiting(&mut self, now: Instant) {
        let checks = self.shared.copies.checks();
        if checks != self.checks.0 {
            self.checks = (checks, now);
        }
        let mut at = 0;
        while at < self.waiting.len() {
            let WaitingPiece { piece, ref buf, start } = self.waiting[at];
            let range = start..start + buf.len() as u64;
            let began = self.pieces.get_mut(piece).info.began;
            let evictions = self.shared.copies.evictions();
            let outcome = self.outcome(&range, began, now);
            if matches!(outcome, Outcome::Wait) {
                at += 1;
                continue;
            }
            let WaitingPiece { buf, .. } = self.waiting.swap_remove(at);
            match outcome {
                Outcome::Tier(tier, offset) => {
                    self.shared.overdue.store(0, Ordering::Relaxed);
                    self.read_tier(piece, buf, (tier, offset), evictions);
                }
                Outcome::Overdue => {
                    self.take_claims_over(&range);
                    self.read_origin_instead(piece, buf);
                }
                Outcome::Origin | Outcome::Wait => self.read_origin_instead(piece, buf),
            }
        }
        self.next_check = (!self.waiting.is_empty()).then(|| now + CHECK_INTERVAL);
    }

    /// State of pages of one unit that another claimant reads.
    fn outcome(&self, range: &Range<u64>, began: Instant, now: Instant) -> Outcome {
        let shared = &*self.shared;
        let unit = shared.units.within(self.number, range).start;
        // While other copies are being verified, this copy's turn will come: count from the last progress.
        let since = if shared.copies.is_unchecked(unit) { began.max(self.checks.1) } else { began };
        let waited = now.saturating_duration_since(since);
        let pages = shared.units.get(unit).pages_in(range);
        // Read before the copies: a page whose claim has ended by now either has a copy or is absent.
        let under_way = shared.copies.under_way(unit);
        if let Some((tier, offset)) = self.place_of(unit..unit + 1, range) {
            return Outcome::Tier(tier, offset);
        }
        let missing = pages.without(shared.copies.there(unit));
        let is_coming = if missing.is_empty() {
            // Published after the copies were read: the next check finds them.
            shared.copies_to_read(unit).is_some()
        } else {
            missing.without(under_way).is_empty()
        };
        if !is_coming || !shared.has_copier() {
            Outcome::Origin
        } else if waited < self.longest_wait() {
            shared.copies.await_unit(unit);
            Outcome::Wait
        } else {
            Outcome::Overdue
        }
    }

    /// Timeout of a wait for a page. It is longer if the origin is slow, since claimants are then slow, too.
    /// Each wait that times out halves it, so that a hanging copier delays all reads together by two waits at
    /// most.
    fn longest_wait(&self) -> Duration {
        let longest = MAX_WAIT.max(SLOW_READS * self.shared.counters.mean_origin_read());
        longest / (1 << self.shared.overdue.load(Ordering::Relaxed).min(10))
    }

    /// Releases claims of a claimant that has died or takes too long.
    fn take_claims_over(&self, range: &Range<u64>) {
        let shared = &*self.shared;
        shared.overdue.fetch_add(1, Ordering::Relaxed);
        for unit in shared.units.within(self.number, range) {
            shared.copies.release(unit, shared.units.get(unit).pages_in(range));
        }
    }

    /// Serves pieces of this queue pair that wait for these bytes, which came from the origin.
    fn serve_waiting(&mut self, start: u64, bytes: &[u8]) {
        let end = start + bytes.len() as u64;
        let mut at = 0;
        while at < self.waiting.len() {
            let waiting = &self.waiting[at];
            if waiting.start < start || waiting.start + waiting.buf.len() as u64 > end {
                at += 1;
                continue;
            }
            let mut waiting = self.waiting.swap_remove(at);
            waiting.fill(start, bytes);
            self.shared.counters.joined(waiting.buf.len());
            self.end_piece(waiting.piece, waiting.buf, Ok(()), Place::Ahead);
        }
    }

    /// Handles a completion of the origin (`tier` is `None`) or of a tier.
    fn complete(&mut self, tier: Option<u8>, completion: Completion, now: Instant) {
        if completion.tag & AHEAD_TAG != 0 {
            return self.ahead_ended(completion, now);
        }
        let Completion { tag, buf, result } = completion;
        let id = PieceId(tag);
        let piece = self.pieces.get_mut(id);
        let range = piece.start..piece.start + piece.len as u64;
        let len = piece.len;
        let took = now.saturating_duration_since(piece.info.began);
        let claims = std::mem::take(&mut piece.info.claims);
        if tier.is_some() && !self.shared.is_unchanged_since(piece.info.evictions) {
            return self.read_again(id, buf);
        }
        let mut place = Place::Origin;
        match (&result, tier) {
            (Ok(()), None) => {
                self.shared.demand().fetch_sub(1, Ordering::AcqRel);
                self.shared.counters.origin_read(len, took);
                self.pass_on(claims, range.start, &buf);
                self.serve_waiting(range.start, &buf);
            }
            (Ok(()), Some(tier)) => {
                self.shared.counters.hit(tier, len, took);
                place = self.shared.media[usize::from(tier)].kind();
            }
            (Err(_), None) => {
                self.shared.demand().fetch_sub(1, Ordering::AcqRel);
                claims.into_iter().for_each(|(unit, pages)| self.shared.release(unit, pages));
            }
            (Err(_), Some(_)) => {
                // An unreadable copy counts as a miss: the origin still has the data.
                self.mark_corrupt(&range);
                return self.read_origin_instead(id, buf);
            }
        }
        self.end_piece(id, buf, result, place);
    }

    /// Reads a piece again that a tier has served, since copies were evicted during the read: the bytes may be
    /// another unit's, even if the piece's own copies are back by now. Reads these copies at their current
    /// place; the second time, reads the origin.
    fn read_again(&mut self, id: PieceId, buf: IoBuf) {
        let evictions = self.shared.copies.evictions();
        let piece = self.pieces.get_mut(id);
        let range = piece.start..piece.start + piece.len as u64;
        let is_first = !std::mem::replace(&mut piece.info.is_again, true);
        let place = self.place_of(self.shared.units.within(self.number, &range), &range);
        match place.filter(|_| is_first) {
            Some(place) => self.read_tier(id, buf, place, evictions),
            None => self.read_origin_instead(id, buf),
        }
    }

    /// Reads a piece from a tier; `evictions` is the number of evictions before the copy was looked up.
    fn read_tier(&mut self, id: PieceId, buf: IoBuf, (tier, offset): (u8, u64), evictions: u64) {
        let source = PieceSource::Tier(tier);
        let state = &mut self.pieces.get_mut(id).info;
        (state.source, state.evictions) = (source, evictions);
        self.push(source, offset, buf, id);
    }

    /// Reads a piece from the origin because another source has failed.
    fn read_origin_instead(&mut self, id: PieceId, buf: IoBuf) {
        if self.is_copies_only() {
            return self.end_piece(id, buf, Err(UNWRITTEN), Place::Origin);
        }
        let start = self.pieces.get_mut(id).start;
        let mut claims = Vec::new();
        self.claim(&(start..start + buf.len() as u64), &mut claims);
        let state = &mut self.pieces.get_mut(id).info;
        // The wait before must not count as time of the origin.
        (state.source, state.claims, state.began) = (PieceSource::Origin, claims, Instant::now());
        self.push(PieceSource::Origin, start, buf, id);
    }

    /// Lends copies of all of `range`, if they lie contiguously in a tier in this process's memory.
    fn borrow_copies(&self, range: &Range<u64>) -> Option<SharedBuf> {
        if !self.shared.is_owner() {
            return None; // only the owner tracks lent copies
        }
        let units = self.shared.units.within(self.number, range);
        let len = (range.end - range.start) as usize;
        let (tier, at) = self.place_of(units.clone(), range)?;
        let lent = self.sources[usize::from(tier) + 1].borrow(at, len)?;
        if self.place_of(units, range) != Some((tier, at)) {
            return None; // withdrawn before it was lent: the room may hold other copies now
        }
        self.shared.counters.hit(tier, lent.len(), Duration::ZERO);
        Some(lent)
    }

    /// Lends the origin's bytes of `range`, if the origin is in memory.
    fn borrow_origin(&self, range: &Range<u64>) -> Option<SharedBuf> {
        if self.is_copies_only() {
            return None;
        }
        let lent = self.sources[ORIGIN].borrow(range.start, (range.end - range.start) as usize)?;
        self.shared.counters.origin_read(lent.len(), Duration::ZERO);
        Some(lent)
    }

    /// The tier that has copies of all of `range`, and the offset of its first byte there; `None` unless the
    /// copies are contiguous. `units` are the units of `range`.
    fn place_of(&self, units: Range<u32>, range: &Range<u64>) -> Option<(u8, u64)> {
        let shared = &*self.shared;
        let mut place = None;
        let mut end = range.start;
        for unit in units {
            let (location, there) = shared.copies_to_read(unit)?;
            let bounds = shared.units.get(unit);
            let pages = bounds.pages_in(range);
            let from = bounds.start_bytes() + u64::from(pages.0.trailing_zeros()) * PAGE_BYTES;
            let page = location.of_page(pages.0.trailing_zeros())?;
            let data = shared.media[usize::from(location.tier)].data_offset;
            // The offset at which the range would begin if all of it lay contiguously before this copy.
            let begin = (data + page * PAGE_BYTES).checked_sub(from - range.start)?;
            let found = *place.get_or_insert((location.tier, begin));
            if found != (location.tier, begin) || from != end || !pages.without(there).is_empty() {
                return None;
            }
            end = bounds.end_bytes().min(range.end);
        }
        place.filter(|_| end == range.end)
    }

    /// Passes to the copier the data from the origin that a tier keeps, as long as the copier has room.
    fn pass_on(&self, claims: Vec<Claim>, start: u64, bytes: &[u8]) {
        let shared = &*self.shared;
        for (unit, pages) in claims {
            // The owner has refused to keep the other pages.
            let kept = pages.and(shared.copies.under_way(unit));
            shared.release(unit, pages.without(kept));
            let begin = shared.units.get(unit).start_bytes();
            for run in kept.runs() {
                let from = (begin + u64::from(run.start) * PAGE_BYTES - start) as usize;
                let len = run.len() * PAGE_BYTES as usize;
                shared.pass(unit, run, &bytes[from..from + len]);
            }
        }
    }

    /// Withdraws the copies of `range`, and has the copier make them again.
    fn mark_corrupt(&self, range: &Range<u64>) {
        let shared = &*self.shared;
        for unit in shared.units.within(self.number, range) {
            let Some((location, _)) = shared.copies_of(unit) else { continue };
            let pages = shared.units.get(unit).pages_in(range);
            let removed = shared.copies.unpublish(unit, pages);
            if !removed.is_empty() {
                shared.counters.count(location.tier, |of| &of.damaged);
                if shared.has_copier() {
                    shared.tell(Message::Corrupt { unit, pages: removed });
                }
            }
        }
    }
}

/// Result of [`TieredPair::outcome`].
enum Outcome {
    /// The pages are still being fetched.
    Wait,
    /// The copies are in this tier, from this offset on.
    Tier(u8, u64),
    /// The claim has ended without a copy: read the origin.
    Origin,
    /// The claim has exceeded its time limit.
    Overdue,
}

impl QueuePair for TieredPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        self.notice_fork();
        let room = usize::from(self.namespace.queue_depth).saturating_sub(self.outstanding());
        let count = room.min(pending.len());
        let now = Instant::now();
        for io in pending.drain(..count) {
            self.begin(io, now);
        }
        self.sources.iter_mut().for_each(|source| _ = source.submit());
        count
    }

    fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        self.notice_fork();
        self.has_moved = false;
        for index in 0..self.sources.len() {
            self.sources[index].submit();
            let mut scratch = std::mem::take(&mut self.scratch);
            // Takes all completions: a piece's completion is not yet a completion of this queue pair.
            let count = self.sources[index].pair.poll(now, usize::MAX, &mut scratch);
            self.has_moved |= count > 0;
            for completion in scratch.drain(..) {
                self.sources[index].completed(completion.buf.len());
                self.complete(index.checked_sub(1).map(|tier| tier as u8), completion, now);
            }
            self.scratch = scratch;
        }
        // Also called when the last piece has been served: a deadline in the past would keep the poller
        // awake.
        if self.next_check.is_some() {
            self.poll_waiting(now);
        }
        for source in &mut self.sources {
            // Submits pieces that polling has queued (another source could not serve them, or they have
            // waited for it), and pieces that a limit held back.
            self.has_moved |= source.submit() > 0;
        }
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

    /// Lends copies in memory that this process owns, or bytes of an origin in memory. A copy that is
    /// withdrawn meanwhile stays unchanged until the buffer is dropped.
    fn borrow(&self, slba: Lba, len_bytes: usize) -> Option<SharedBuf> {
        let start = slba.0.checked_mul(PAGE_BYTES)?;
        let range = start..start.checked_add(len_bytes as u64)?;
        self.borrow_copies(&range).or_else(|| self.borrow_origin(&range))
    }

    fn has_copies(&self, slba: Lba, len_bytes: usize) -> bool {
        let shared = self.shared.latest();
        let range = slba.0 * PAGE_BYTES..slba.0 * PAGE_BYTES + len_bytes as u64;
        let mut within = shared.units.within(self.number, &range);
        !within.is_empty()
            && within.all(|unit| {
                let pages = shared.units.get(unit).pages_in(&range);
                let copies = shared.copies_to_read(unit);
                copies.is_some_and(|(_, there)| pages.without(there).is_empty())
            })
    }

    fn outstanding(&self) -> usize {
        self.pieces.len() + self.ready.len()
    }

    fn report_corrupt(&mut self, slba: Lba, len_bytes: usize) {
        let start = slba.0.saturating_mul(PAGE_BYTES);
        let range = start..start.saturating_add(len_bytes as u64);
        self.ahead.drop_corrupt(&range);
        self.mark_corrupt(&range);
    }

    /// Fences concern writes; only reads pass through tiers.
    fn use_fence(&mut self, _: &Arc<Fence>) {}

    fn shared_queue(&self) -> Option<usize> {
        self.sources[ORIGIN].pair.shared_queue()
    }

    fn register(&mut self, registry: &Registry) {
        self.registry = Some(registry.clone());
        self.sources.iter_mut().for_each(|source| source.pair.register(registry));
    }

    fn notice(&self) -> Notice {
        if !self.ready.is_empty() || self.has_moved {
            return Notice::Poll;
        }
        let busy = self.sources.iter().filter(|source| source.is_busy());
        busy.map(|source| source.pair.notice()).max().unwrap_or(Notice::Event)
    }

    fn next_timeout(&self) -> Option<Instant> {
        let of_sources = self.sources.iter().filter_map(|source| source.pair.next_timeout());
        of_sources.chain(self.next_check).min()
    }
}

impl Drop for TieredPair {
    fn drop(&mut self) {
        let shared = &*self.shared;
        if !self.home.is_ours() {
            return; // opened before a fork: its reads count in the parent
        }
        let has_copier = shared.has_copier();
        let pieces = self.pieces.outstanding().map(|piece| &piece.info);
        let pieces = pieces.filter(|piece| piece.source == PieceSource::Origin);
        let ahead = self.ahead.outstanding().map(|read| &read.claims);
        for claims in pieces.map(|piece| &piece.claims).chain(ahead) {
            shared.demand().fetch_sub(1, Ordering::AcqRel);
            let claims = claims.iter().filter(|_| has_copier);
            claims.for_each(|&(unit, pages)| shared.release(unit, pages));
        }
    }
}

/// Translates a result for a peer: data that cannot be read here are unwritten to the peer, so that it reads
/// elsewhere. Errors that the peer itself caused stay.
pub(crate) fn to_peer(result: Result<(), IoError>) -> Result<(), IoError> {
    match result {
        Err(IoError::Invalid(_)) | Ok(()) => result,
        Err(_) => Err(UNWRITTEN),
    }
}

/// Status of a read of absent data.
pub(crate) const UNWRITTEN: IoError = IoError::Status(Status::UNWRITTEN_BLOCK.do_not_retry());

/// Index of the origin's queue pair in [`TieredPair::sources`].
const ORIGIN: usize = 0;

/// Interval between checks of pages that are being fetched.
const CHECK_INTERVAL: Duration = Duration::from_micros(200);

/// Pause between attempts to open the next owner's tiers: connecting to a remote tier takes time, at each read.
const FOLLOW_AGAIN: Duration = Duration::from_secs(1);

/// Timeout of a wait for pages that another claimant reads, unless the origin is slow: see
/// [`TieredPair::longest_wait`]. After it the claimant is dead or very slow.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Factor on the mean duration of a read of the origin: a claimant that needs longer is dead.
const SLOW_READS: u32 = 4;

/// Marks the tag of an ahead read; the other bits are its id.
const AHEAD_TAG: u64 = 1 << 63;
