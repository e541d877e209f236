//! Exchange of a store: fetches the share; then a thread exchanges samples during an epoch, and deletes the
//! samples that other ranks have received.
//!
//! The work of an epoch has two phases. While the loader reads the epoch, the thread fetches the samples of
//! the steps that are due. After the epoch, the thread fetches the remaining samples; then it asks each rank that
//! gets a sample from this rank for that rank's progress, until all samples that leave have been deleted. Only then
//! does the work of the next epoch begin.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::board::Count;
use super::fetch::{Fetched, SampleRun, SourceReader, is_absent, page_bytes};
use super::progress::Progress;
use super::{Staged, StoreOptions, StoreShared, add};
use crate::peers::Peers;
use dlfs_base::buf::IoBuf;
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::units::{Epoch, SampleId, Slot};
use dlfs_format::directory::{Directory, IdSet};
use dlfs_io::qpair::blocking::Blocking;
use dlfs_order::order::{Exchanged, Shares};
use dlfs_order::tier::PAGE_BYTES;

/// The inputs of an exchange.
pub(super) struct ExchangeInputs {
    pub(super) shared: Arc<StoreShared>,
    /// The data set's directory.
    pub(super) directory: Arc<Directory>,
    pub(super) shares: Shares,
    pub(super) rank: u32,
    /// The last epoch of the run: it exchanges nothing.
    pub(super) last: u64,
    pub(super) peers: Option<Arc<Peers>>,
    /// For each rank, set if it is on this rank's node.
    pub(super) near: Vec<bool>,
    pub(super) options: StoreOptions,
}

/// The state of the exchange. The store's thread and callers of [`super::Store::begin`] lock it.
pub(super) struct Exchange {
    inputs: ExchangeInputs,
    /// The epoch whose exchange is in progress; `None` before the first.
    work: Option<Work>,
    /// The samples that the store has.
    held: IdSet,
    /// Number of forked children's requests when they were last answered.
    answered: u64,
    /// Number of damage reports when damaged samples were last fetched again.
    mended: u64,
    /// Set once the samples of an earlier run have been checked.
    is_checked: bool,
    /// The stores of other ranks, and the data set (`None`).
    suppliers: HashMap<Option<u32>, Supplier>,
    /// Queue pair of the storage, for reads and writes of all pages.
    media: Blocking,
}

/// The exchange of one epoch.
struct Work {
    epoch: Epoch,
    /// The exchanges of this rank, in the order in which they become due.
    steps: Vec<Exchanged>,
    /// Steps whose sample this rank has not received yet.
    open: BTreeSet<usize>,
    /// The number of steps that are due.
    due: usize,
    /// The steps whose sample must still be deleted, by receiving rank.
    leaving: BTreeMap<u32, Vec<usize>>,
    /// Set once samples have been deleted.
    has_deleted: bool,
    /// Start of the wait for samples at the end of the epoch.
    waits_since: Option<Instant>,
    /// For each rank that has not received all samples that leave for it: its latest progress, and the last time at
    /// which that advanced or this rank did not wait for it.
    last_progress: HashMap<u32, (Progress, Instant)>,
}

/// A source of samples: another rank's store, or the data set.
#[derive(Default)]
struct Supplier {
    /// The open connection, while no read uses it.
    reader: Option<SourceReader>,
    /// Not asked before this time.
    again_at: Option<Instant>,
    /// Start of the time for which it cannot be reached.
    away_since: Option<Instant>,
}

impl Supplier {
    /// Puts the connection back; the supplier has answered on it.
    fn put_back(&mut self, reader: SourceReader) {
        (self.reader, self.again_at, self.away_since) = (Some(reader), None, None);
    }

    /// Records that it could not be reached: it is not asked again before `pause` has passed.
    fn set_away(&mut self, pause: Duration) {
        let now = Instant::now();
        self.again_at = Some(now + pause);
        self.away_since.get_or_insert(now);
    }
}

/// Samples that other ranks have not delivered.
#[derive(Default)]
struct Undelivered {
    /// The ranks do not have these samples yet, or have just become unreachable.
    late: Vec<SampleId>,
    /// The ranks are gone, or their copies are damaged.
    lost: Vec<SampleId>,
    /// The first rank that did not deliver, and the reason.
    why: Option<(u32, String)>,
}

impl Exchange {
    pub(super) fn new(inputs: ExchangeInputs) -> Result<Exchange> {
        let held = IdSet::new(inputs.directory.num_samples());
        let media = Blocking::new(inputs.shared.media.storage.device.queue_pair()?)?;
        let (work, is_checked, answered, mended, suppliers) = Default::default();
        Ok(Exchange { inputs, work, held, answered, mended, is_checked, suppliers, media })
    }

    /// See [`super::Store::begin`].
    pub(super) fn begin(
        &mut self,
        epoch: Epoch,
        goes_on: &mut dyn FnMut(Staged) -> bool,
    ) -> Result<()> {
        // Work of the epoch before fetches the samples of `epoch`, so it continues. Work of `epoch` itself continues
        // only if it has deleted no samples: an epoch that is read again needs them.
        let suits = |work: &Work| {
            if work.epoch == epoch { !work.has_deleted } else { work.epoch.0 + 1 == epoch.0 }
        };
        if self.work.as_ref().is_some_and(suits) {
            return Ok(());
        }
        self.work = None;
        let ExchangeInputs { shares, directory, rank, .. } = &self.inputs;
        let share = shares.ids(&**directory, *rank, epoch);
        let mut before = match epoch.0.checked_sub(1) {
            Some(before) => Work::new(&self.inputs, Epoch(before)),
            None => Work::none(epoch),
        };
        let next = Work::new(&self.inputs, epoch);
        if !self.is_checked {
            let sent = before.steps.iter().map(|step| step.sends);
            let received = next.steps.iter().map(|step| step.receives);
            let expected: BTreeSet<SampleId> =
                share.iter().copied().chain(sent).chain(received).collect();
            self.check_found(&expected.into_iter().collect::<Vec<_>>())?;
            self.is_checked = true;
        }
        let mut tell = |staged| {
            let text = "bringing the share into the store was interrupted";
            if goes_on(staged) { Ok(()) } else { Err(Error::new(ErrorKind::Interrupted, text)) }
        };
        if let Err(error) = self.stage(&share, &before, &next, &mut tell) {
            if error.kind() != ErrorKind::NoSpace {
                return Err(error);
            }
            // The samples of an epoch far away, which would be deleted below, took the room.
            self.keep_only(&share, &before, &next)?;
            self.stage(&share, &before, &next, &mut tell)?;
        }
        // The share is here now. Samples that leave stay until their new ranks have them.
        before.open.clear();
        before.due = before.steps.len();
        let held = |step: &usize| self.has(before.steps[*step].sends);
        before.leaving.values_mut().for_each(|steps| steps.retain(held));
        before.leaving.retain(|_, steps| !steps.is_empty());
        self.keep_only(&share, &before, &next)?;
        self.work = Some(if epoch.0 == 0 { next.begun(self) } else { before });
        *self.inputs.shared.progress.lock() = Progress { epoch, steps: 0 };
        Ok(())
    }

    /// Does all work that is due; returns the pause until the next turn.
    pub(super) fn turn(&mut self) -> Duration {
        match self.try_turn() {
            Ok(pause) => pause,
            Err(error) => {
                self.fail(error.kind(), error.to_string());
                IDLE
            }
        }
    }

    /// As [`Exchange::turn`].
    ///
    /// # Errors
    /// The exchange cannot continue.
    fn try_turn(&mut self) -> Result<Duration> {
        let asked = self.inputs.shared.board.get(Count::Asked);
        if asked != self.answered {
            let (epoch, _) = self.inputs.shared.board.position();
            let shared = Arc::clone(&self.inputs.shared);
            self.begin(epoch, &mut |_| !shared.is_stopping())?;
            self.answered = asked;
        }
        self.mend()?;
        let Some(mut work) = self.work.take() else { return Ok(IDLE) };
        let pause = self.advance(&mut work);
        if pause.is_ok() && work.has_ended(self.inputs.shared.board.position().0) {
            work = Work::new(&self.inputs, Epoch(work.epoch.0 + 1)).begun(self);
        }
        self.work = Some(work);
        pause
    }

    /// Advances the exchange of an epoch; returns the pause until the next turn.
    fn advance(&mut self, work: &mut Work) -> Result<Duration> {
        let (epoch, taken) = self.inputs.shared.board.position();
        let is_over = epoch > work.epoch;
        let due = match (is_over, self.inputs.options.blocking) {
            (true, _) => work.steps.len(),
            (false, true) => 0,
            (false, false) => self.inputs.shares.steps_due(taken) as usize,
        };
        let due = due.min(work.steps.len());
        if due > work.due {
            add(&self.inputs.shared.counters.steps, (due - work.due) as u64);
            work.due = due;
        }
        let lacks = self.fetch_due(work, is_over)?;
        work.publish(&self.inputs.shared, is_over);
        if !is_over {
            return Ok(if lacks { SOON } else { IDLE });
        }
        if lacks {
            return Ok(SOON);
        }
        work.waits_since = None;
        self.delete_sent(work, epoch)?;
        Ok(if work.leaving.is_empty() { Duration::ZERO } else { SOON })
    }

    /// Fetches the samples of the steps that are due; returns whether samples are missing.
    fn fetch_due(&mut self, work: &mut Work, is_over: bool) -> Result<bool> {
        let due: Vec<usize> = work.open.range(..work.due).copied().collect();
        if due.is_empty() {
            return Ok(false);
        }
        let mut by_rank: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        due.iter().for_each(|&step| by_rank.entry(work.steps[step].from).or_default().push(step));
        let mut lacking = Undelivered::default();
        for (rank, steps) in by_rank {
            let ids: Vec<SampleId> = steps.iter().map(|&step| work.steps[step].receives).collect();
            self.fetch_from(rank, &ids, &mut lacking)?;
        }
        let Undelivered { mut late, mut lost, why } = lacking;
        if is_over {
            let since = *work.waits_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= self.inputs.options.patience {
                lost.append(&mut late);
            }
        }
        self.fetch_from_origin(&lost)?;
        work.open.retain(|&step| !self.has(work.steps[step].receives));
        let lacks = work.open.range(..work.due).next().is_some();
        if let (true, Some(since), Some((rank, why))) = (lacks, work.waits_since, why)
            && since.elapsed() >= self.inputs.options.deadline
        {
            let count = work.open.len();
            let text = format!(
                "{count} samples for epoch {} have not come within {:?}, among them those of rank {rank}: \
                 {why}; neither can the data set be read",
                work.epoch.0 + 1,
                self.inputs.options.deadline,
            );
            return Err(Error::new(ErrorKind::TimedOut, text));
        }
        Ok(lacks)
    }

    /// Fetches `ids` from the store of `rank`, and adds missing samples to `lacking`.
    fn fetch_from(&mut self, rank: u32, ids: &[SampleId], lacking: &mut Undelivered) -> Result<()> {
        let runs: Vec<SampleRun> =
            ids.iter().filter_map(|&id| SampleRun::of(&self.inputs.directory, id)).collect();
        let mut reader = match self.reader_of(Some(rank)) {
            Ok(reader) => reader,
            Err(why) => {
                self.out_of_reach(rank, ids, why, lacking);
                return Ok(());
            }
        };
        let mut failed = None;
        let is_near = self.inputs.near.get(rank as usize) == Some(&true);
        let shared = Arc::clone(&self.inputs.shared);
        reader.fetch(runs, &mut |run, fetched| {
            let id = run.samples[0].0;
            match fetched {
                Fetched::Right(buf) => {
                    self.put(run, buf)?;
                    add(&shared.counters.received, 1);
                    add(&shared.counters.received_bytes, run.len() as u64);
                    if is_near {
                        add(&shared.counters.near_bytes, run.len() as u64);
                    }
                }
                Fetched::Wrong(_) => {
                    add(&shared.counters.mismatched, 1);
                    lacking.lost.push(id);
                    lacking.because(rank, "its copy has another checksum");
                }
                Fetched::Failed(error) if is_absent(&error) => {
                    lacking.late.push(id);
                    lacking.because(rank, "it has not got them yet");
                }
                Fetched::Failed(error) => {
                    failed.get_or_insert_with(|| (Vec::new(), error.to_string())).0.push(id);
                }
            }
            Ok(!shared.is_stopping())
        })?;
        let peer = self.suppliers.entry(Some(rank)).or_default();
        match failed {
            None => peer.put_back(reader),
            Some((ids, why)) => {
                peer.set_away(RECONNECT);
                self.out_of_reach(rank, &ids, why, lacking);
            }
        }
        Ok(())
    }

    /// Adds the samples `ids` of a rank that cannot be reached; as late, not lost, if it may soon be back.
    fn out_of_reach(&self, rank: u32, ids: &[SampleId], why: String, lacking: &mut Undelivered) {
        let is_gone = self.is_gone(rank);
        let list = if is_gone { &mut lacking.lost } else { &mut lacking.late };
        list.extend_from_slice(ids);
        lacking.why.get_or_insert((rank, why));
    }

    /// Fetches `ids` from the data set, until one cannot be read.
    fn fetch_from_origin(&mut self, ids: &[SampleId]) -> Result<()> {
        let shared = Arc::clone(&self.inputs.shared);
        self.read_origin(ids, &mut |exchange, run, buf| {
            add(&shared.counters.from_origin, run.samples.len() as u64);
            add(&shared.counters.from_origin_bytes, run.len() as u64);
            exchange.put(run, buf)
        })
    }

    /// Reads `ids` from the data set, and passes them to `take`. Skips the remaining samples once one cannot be read or
    /// has another checksum; for [`ORIGIN_LIMIT`] after that, reads none.
    fn read_origin(
        &mut self,
        ids: &[SampleId],
        take: &mut dyn FnMut(&mut Exchange, &SampleRun, IoBuf) -> Result<()>,
    ) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let Ok(mut reader) = self.reader_of(None) else { return Ok(()) };
        let runs = SampleRun::of_all(&self.inputs.directory, ids);
        let mut failed = false;
        let shared = Arc::clone(&self.inputs.shared);
        reader.fetch(runs, &mut |run, fetched| {
            match fetched {
                Fetched::Right(buf) => take(self, run, buf)?,
                Fetched::Wrong(_) | Fetched::Failed(_) => failed = true,
            }
            Ok(!failed && !shared.is_stopping())
        })?;
        let origin = self.suppliers.entry(None).or_default();
        if failed {
            origin.set_away(ORIGIN_LIMIT)
        } else {
            origin.put_back(reader)
        }
        Ok(())
    }

    /// Deletes the samples that their new ranks have received. If a new rank is gone and the data set can be read,
    /// deletes the samples of that rank, too: it could read them from the data set.
    fn delete_sent(&mut self, work: &mut Work, epoch: Epoch) -> Result<()> {
        let ranks: Vec<u32> = work.leaving.keys().copied().collect();
        // In the next epoch, the loader reads the samples that this exchange has fetched. For the epoch after that it
        // needs another exchange, which begins only once this one has ended.
        let is_waiting = epoch.0 > work.epoch.0 + 1;
        for rank in ranks {
            let (progress, why) = match self.progress_of(rank) {
                Ok(progress) => (progress, "it has not got them all yet".to_owned()),
                // If the rank comes back, it reads the samples from the data set.
                Err(why) if self.is_gone(rank) && self.is_in_origin(work, rank)? => (GONE, why),
                Err(why) => (Progress::default(), why),
            };
            let has = |step: usize| progress > Progress { epoch: work.epoch, steps: step as u64 };
            let steps = work.leaving.remove(&rank).unwrap_or_default();
            let (received, rest): (Vec<_>, Vec<_>) = steps.into_iter().partition(|&step| has(step));
            for step in received {
                self.delete(work.steps[step].sends)?;
                work.has_deleted = true;
                add(&self.inputs.shared.counters.deleted, 1);
            }
            if rest.is_empty() {
                continue;
            }
            work.leaving.insert(rank, rest);
            let now = Instant::now();
            let (latest, since) = work.last_progress.entry(rank).or_insert((progress, now));
            if progress > *latest || !is_waiting {
                (*latest, *since) = (progress, now);
            }
            if now - *since > self.inputs.options.deadline {
                let text = format!(
                    "rank {rank} has not taken the samples that it gets after epoch {} within {:?}: {why}",
                    work.epoch, self.inputs.options.deadline
                );
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
        }
        Ok(())
    }

    /// Returns whether `rank` has been unreachable for longer than `patience`.
    fn is_gone(&self, rank: u32) -> bool {
        let since = self.suppliers.get(&Some(rank)).and_then(|peer| peer.away_since);
        since.is_some_and(|since| since.elapsed() >= self.inputs.options.patience)
    }

    /// Tries one of the samples that leave for `rank`; returns whether it can be read from the data set.
    fn is_in_origin(&mut self, work: &Work, rank: u32) -> Result<bool> {
        let step = work.leaving.get(&rank).and_then(|steps| steps.first());
        let Some(id) = step.map(|&step| work.steps[step].sends) else { return Ok(true) };
        let mut is_there = false;
        self.read_origin(&[id], &mut |_, _, _| {
            is_there = true;
            Ok(())
        })?;
        Ok(is_there)
    }

    /// Reads the progress of `rank` from its store.
    fn progress_of(&mut self, rank: u32) -> Result<Progress, String> {
        let mut reader = self.reader_of(Some(rank))?;
        // A peer that reads the first page of a store gets the progress of its rank: see `pair.rs` (`send_progress`).
        let read = reader.read_page(0, 0);
        let peer = self.suppliers.entry(Some(rank)).or_default();
        if read.is_ok() {
            peer.put_back(reader)
        } else {
            peer.set_away(RECONNECT)
        }
        let page = read.map_err(|error| error.to_string())?;
        Progress::from_bytes(&page).ok_or_else(|| "it does not say how far it is".to_owned())
    }

    /// Takes the open connection to the store of a rank, or to the data set (`None`); or connects.
    fn reader_of(&mut self, rank: Option<u32>) -> Result<SourceReader, String> {
        let supplier = self.suppliers.entry(rank).or_default();
        if supplier.again_at.is_some_and(|at| Instant::now() < at) {
            return Err("it cannot be reached".to_owned());
        }
        if let Some(reader) = supplier.reader.take() {
            return Ok(reader);
        }
        let ExchangeInputs { shared, peers, .. } = &self.inputs;
        let (opened, pause) = match (rank, peers) {
            (None, _) => (SourceReader::new(&shared.origins, ORIGIN_LIMIT), ORIGIN_LIMIT),
            (Some(_), None) => return Err("nobody has joined".to_owned()),
            (Some(rank), Some(peers)) => {
                let devices = peers.devices_of(rank);
                (devices.and_then(|devices| SourceReader::new(&devices, PEER_LIMIT)), RECONNECT)
            }
        };
        opened.map_err(|error| {
            tracing::debug!(rank, error = %error.report(), "samples cannot be read from there");
            supplier.set_away(pause);
            error.to_string()
        })
    }

    /// Verifies those of `ids` that the store has from an earlier run, and deletes all other pages.
    fn check_found(&mut self, ids: &[SampleId]) -> Result<()> {
        let shared = Arc::clone(&self.inputs.shared);
        if !shared.media.storage.was_used {
            return Ok(());
        }
        for run in SampleRun::of_all(&self.inputs.directory, ids) {
            let Some(pages) = shared.media.pages_of(run.namespace, &run.bytes) else { continue };
            let read = self.media.read(pages.start * PAGE_BYTES, run.len());
            let Ok(bytes) = read else { continue }; // unreadable samples are fetched again
            let wrong: BTreeSet<SampleId> = run.wrong(&bytes).into_iter().collect();
            for (id, extent) in run.samples.iter().filter(|(id, _)| !wrong.contains(id)) {
                if let Some(pages) = shared.media.pages_of(run.namespace, &page_bytes(extent)) {
                    shared.media.set(pages);
                }
                self.held.insert(id.0);
                add(&shared.counters.found, 1);
            }
        }
        shared.media.delete_others()
    }

    /// Fetches the missing samples of `share` from the data set, or from a rank that has them.
    fn stage(
        &mut self,
        share: &[SampleId],
        before: &Work,
        next: &Work,
        tell: &mut dyn FnMut(Staged) -> Result<()>,
    ) -> Result<()> {
        let mut staged = Staged { samples: share.len() as u64, ..Staged::default() };
        let missing: BTreeSet<SampleId> =
            share.iter().copied().filter(|&id| !self.has(id)).collect();
        staged.found = staged.samples - missing.len() as u64;
        staged.done = staged.found;
        tell(staged)?;
        if missing.is_empty() {
            return Ok(());
        }
        let all = Vec::from_iter(missing.iter().copied());
        let Err(failed) = self.stage_from_origin(&all, &mut staged, tell) else { return Ok(()) };
        if matches!(failed.kind(), ErrorKind::Interrupted | ErrorKind::NoSpace) {
            return Err(failed);
        }
        // The ranks that had each sample before, or get it next.
        let froms = before.steps.iter().map(|step| (step.receives, step.from));
        let tos = next.steps.iter().map(|step| (step.sends, step.to));
        let others: Vec<(SampleId, u32)> =
            froms.chain(tos).filter(|&(_, rank)| rank != self.inputs.rank).collect();
        let until = Instant::now() + self.inputs.options.deadline;
        loop {
            let mut by_rank: BTreeMap<u32, Vec<SampleId>> = BTreeMap::new();
            let lacking = others.iter().filter(|(id, _)| !self.has(*id) && missing.contains(id));
            lacking.for_each(|&(id, rank)| by_rank.entry(rank).or_default().push(id));
            for (rank, ids) in by_rank {
                self.fetch_from(rank, &ids, &mut Undelivered::default())?;
            }
            let lacking = missing.iter().filter(|&&id| !self.has(id)).count() as u64;
            staged.done = staged.samples - lacking;
            if lacking == 0 {
                return Ok(());
            }
            tell(staged)?;
            if Instant::now() >= until {
                let text = format!("{lacking} samples of the share cannot be had");
                let hint = "the data set cannot be read, and no other rank has them";
                return Err(Error::new(failed.kind(), text).hint(hint).source(failed));
            }
            std::thread::sleep(SOON);
        }
    }

    /// Fetches the samples `missing` from the data set.
    ///
    /// # Errors
    /// The data set cannot be read, or the store cannot be written; `tell` returned an error.
    fn stage_from_origin(
        &mut self,
        missing: &[SampleId],
        staged: &mut Staged,
        tell: &mut dyn FnMut(Staged) -> Result<()>,
    ) -> Result<()> {
        let runs = SampleRun::of_all(&self.inputs.directory, missing);
        let shared = Arc::clone(&self.inputs.shared);
        let mut reader = SourceReader::new(&shared.origins, STAGING_LIMIT)?;
        reader.fetch(runs, &mut |run, fetched| {
            match fetched {
                Fetched::Right(buf) => self.put(run, buf)?,
                Fetched::Failed(error) => return Err(error),
                Fetched::Wrong(ids) => {
                    let text = "the data set's bytes have another checksum than its directory";
                    return Err(Error::new(ErrorKind::Corrupt, text).sample(ids[0]));
                }
            }
            add(&shared.counters.staged, run.samples.len() as u64);
            add(&shared.counters.staged_bytes, run.len() as u64);
            shared.board.add(Count::Staged, run.samples.len() as u64);
            staged.done += run.samples.len() as u64;
            staged.bytes += run.len() as u64;
            tell(*staged).map(|()| true)
        })
    }

    /// Deletes the samples of an interrupted or earlier epoch that no rank needs any more.
    fn keep_only(&mut self, share: &[SampleId], before: &Work, next: &Work) -> Result<()> {
        let leaving = before.leaving.values().flatten().map(|&step| before.steps[step].sends);
        let received = next.steps.iter().map(|step| step.receives);
        let kept: BTreeSet<SampleId> =
            share.iter().copied().chain(leaving).chain(received).collect();
        let others: Vec<SampleId> =
            self.held.iter().map(SampleId).filter(|id| !kept.contains(id)).collect();
        others.into_iter().try_for_each(|id| self.delete(id))
    }

    /// Fetches damaged samples again; their pages have been removed.
    fn mend(&mut self) -> Result<()> {
        let reported = self.inputs.shared.board.get(Count::Damaged);
        if reported == self.mended {
            return Ok(());
        }
        self.mended = reported;
        let is_whole = |id: SampleId| {
            let extent = self.inputs.directory.extent(id)?;
            let media = &self.inputs.shared.media;
            Some(media.has(media.pages_of(extent.namespace, &page_bytes(&extent))?))
        };
        let held = self.held.iter().map(SampleId);
        let ids: Vec<SampleId> = held.filter(|&id| is_whole(id) == Some(false)).collect();
        ids.iter().for_each(|id| self.held.remove_range(id.0..id.0 + 1));
        self.fetch_from_origin(&ids)?;
        if ids.iter().all(|id| self.has(*id)) {
            return Ok(());
        }
        let text = "a sample in the store was damaged, and the data set cannot be read";
        Err(Error::new(ErrorKind::Corrupt, text).sample(ids[0]))
    }

    /// Stores the pages of `run`, whose samples have been verified.
    fn put(&mut self, run: &SampleRun, bytes: IoBuf) -> Result<()> {
        let shared = Arc::clone(&self.inputs.shared);
        let pages = shared.media.pages_of(run.namespace, &run.bytes);
        let pages = pages.expect("samples lie before the end of all samples");
        if !pages.is_empty() {
            shared.media.has_room(pages.clone())?;
            self.media.write(pages.start * PAGE_BYTES, bytes)?;
            shared.media.set(pages);
        }
        run.samples.iter().for_each(|(id, _)| _ = self.held.insert(id.0));
        Ok(())
    }

    /// Deletes a sample, except for pages that it shares with samples that stay.
    fn delete(&mut self, id: SampleId) -> Result<()> {
        self.held.remove_range(id.0..id.0 + 1);
        let Some(extent) = self.inputs.directory.extent(id) else { return Ok(()) };
        let bytes = self.own_pages(id, extent.namespace, page_bytes(&extent));
        match self.inputs.shared.media.pages_of(extent.namespace, &bytes) {
            Some(pages) => self.inputs.shared.media.delete(pages),
            None => Ok(()),
        }
    }

    /// The pages among `bytes`, the pages of sample `id`, that contain no other sample of the store.
    fn own_pages(&self, id: SampleId, namespace: u16, bytes: Range<u64>) -> Range<u64> {
        let Some(Slot(slot)) = self.inputs.directory.slot_of(id) else { return bytes };
        let before = self.held_among((0..slot).rev(), namespace, &bytes);
        let behind = self.held_among(slot + 1.., namespace, &bytes);
        let start = before.map_or(bytes.start, |pages| pages.end.min(bytes.end));
        let end = behind.map_or(bytes.end, |pages| pages.start.max(bytes.start));
        start..end.max(start)
    }

    /// The pages of the first sample in `slots` that is in the store and overlaps `bytes`; `None`: there is none.
    /// `slots` leads away from `bytes`, so the search ends at the first sample that does not overlap.
    fn held_among(
        &self,
        slots: impl Iterator<Item = u64>,
        namespace: u16,
        bytes: &Range<u64>,
    ) -> Option<Range<u64>> {
        let directory = &self.inputs.directory;
        for other in slots.map_while(|slot| directory.id_at(Slot(slot))) {
            let Some(extent) = directory.extent(other) else { continue }; // it was deleted
            let pages = page_bytes(&extent);
            let overlaps = pages.start < bytes.end && bytes.start < pages.end;
            if extent.namespace != namespace || !pages.is_empty() && !overlaps {
                return None;
            }
            if self.has(other) && !pages.is_empty() {
                return Some(pages);
            }
        }
        None
    }

    fn has(&self, id: SampleId) -> bool {
        self.held.contains(id.0)
    }

    /// Records why the exchange cannot continue, for all processes of the rank.
    fn fail(&self, kind: ErrorKind, text: String) {
        let whole = format!("rank {}: {text}", self.inputs.rank);
        if self.inputs.shared.board.fail(kind, &whole) {
            tracing::warn!("the exchange of samples cannot go on: {text}");
        }
    }
}

impl Undelivered {
    /// Notes the first reason.
    fn because(&mut self, rank: u32, why: &str) {
        self.why.get_or_insert_with(|| (rank, why.to_owned()));
    }
}

impl Work {
    /// The exchange of `epoch`; empty if no epoch of the run follows.
    fn new(inputs: &ExchangeInputs, epoch: Epoch) -> Work {
        if epoch.0 >= inputs.last {
            return Work::none(epoch);
        }
        let mut steps = inputs.shares.exchanges(&*inputs.directory, inputs.rank, epoch);
        // A sample that stays at this rank needs no exchange.
        let moves = |step: &Exchanged| step.to != inputs.rank;
        let moving = (0..steps.len()).filter(|&step| moves(&steps[step]));
        let open: BTreeSet<usize> = moving.collect();
        let mut leaving: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        open.iter().for_each(|&step| leaving.entry(steps[step].to).or_default().push(step));
        steps.shrink_to_fit();
        Work { steps, open, leaving, ..Work::none(epoch) }
    }

    /// No exchange.
    fn none(epoch: Epoch) -> Work {
        let (steps, open, leaving, last_progress, waits_since) = Default::default();
        let has_deleted = false;
        Work { epoch, steps, open, due: 0, leaving, has_deleted, waits_since, last_progress }
    }

    /// Removes the steps whose samples are already in the store, and publishes the progress.
    fn begun(mut self, exchange: &Exchange) -> Work {
        self.open.retain(|&step| !exchange.has(self.steps[step].receives));
        self.publish(&exchange.inputs.shared, false);
        self
    }

    /// Publishes the progress of this rank.
    fn publish(&self, shared: &StoreShared, is_over: bool) {
        let ended = self.open.first().map_or(self.due, |&first| first.min(self.due)) as u64;
        let is_whole = is_over && self.open.is_empty();
        let mut progress = shared.progress.lock();
        let now = if is_whole {
            Progress { epoch: Epoch(self.epoch.0 + 1), steps: 0 }
        } else {
            Progress { epoch: self.epoch, steps: ended }
        };
        *progress = now.max(*progress);
    }

    /// Returns whether the loader has passed the epoch, all samples have arrived, and all that leave have been deleted.
    fn has_ended(&self, position: Epoch) -> bool {
        position > self.epoch && self.open.is_empty() && self.leaving.is_empty()
    }
}

/// The most pages that the store of a rank needs if samples have average length: its share, and the samples
/// that it receives in an epoch.
pub(super) fn most_pages(directory: &Directory, shares: &Shares) -> u64 {
    let world_size = u64::from(shares.world_size());
    let num = directory.num_live().max(1);
    let steps = shares.num_steps();
    let all: u64 = (0..directory.num_chunks())
        .flat_map(|chunk| directory.samples_in_chunk(chunk))
        .map(|(_, extent)| (page_bytes(&extent).end - page_bytes(&extent).start) / PAGE_BYTES)
        .sum();
    let most = num.div_ceil(world_size) + steps;
    (u128::from(all) * u128::from(most)).div_ceil(u128::from(num)) as u64
}

/// Stands for the progress of a rank that is gone: nobody waits for it.
const GONE: Progress = Progress { epoch: Epoch(u64::MAX), steps: 0 };

/// Pause of the thread if no work is due; a delivered batch wakes it.
const IDLE: Duration = Duration::from_millis(200);

/// Pause before missing samples are asked for again, and the progress of ranks that have not received theirs.
const SOON: Duration = Duration::from_millis(5);

/// Pause before a rank that could not be reached is asked again.
const RECONNECT: Duration = Duration::from_millis(200);

/// Timeout of a read of a peer's store.
const PEER_LIMIT: Duration = Duration::from_secs(5);

/// Timeout of a read of the data set in place of a peer's store, and the pause after a failure of the data
/// set.
const ORIGIN_LIMIT: Duration = Duration::from_secs(5);

/// Timeout of a read of the data set while the share is fetched.
const STAGING_LIMIT: Duration = Duration::from_secs(60);
