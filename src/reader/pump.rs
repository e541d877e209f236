//! The loop under every read: submit what fits, poll, verify, hand back.
//!
//! It knows runs, parts and checksums; what a batch or an order is, its callers know. A part that
//! fails in a way that another try may mend, and a sample whose checksum differs, is read again once
//! from the same place. A part that fails for good is read piece by piece, so that it costs only samples
//! whose own blocks cannot be read; a namespace of which nothing can be read any more is not.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use slab::Slab;

use crate::buf::{IoBuf, Pool, SharedBuf};
use crate::directory::{Directory, Learned};
use crate::error::{Error, ErrorKind, Result};
use crate::qpair::group::{PollGroup, Waker};
use crate::qpair::{Completion, Device, Io, IoError, IoOp, Namespace, PairScope, open_pairs};
use crate::units::Lba;

use super::in_flight::{InFlight, Window};
use super::plan::{Fetch, Geometry, Part, Placed};

/// What was moved so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReadStats {
    /// Read commands completed, repeated ones included.
    pub commands: u64,
    /// Bytes that those commands asked for.
    pub bytes: u64,
    /// Commands for what was read before, after an error or a wrong checksum: whole parts, or pieces.
    pub repeated: u64,
    /// Samples whose checksum was computed and right.
    pub verified: u64,
}

/// A fetch that ended: its memory, and what is wrong with it.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The number that `start` was given.
    pub(crate) token: u64,
    pub(crate) fetch: Fetch,
    /// The run; empty when the fetch needed no memory.
    pub(crate) run: SharedBuf,
    /// Index into `fetch.samples`, rising, and why that sample must not be used.
    pub(crate) failures: Vec<(usize, Error)>,
    /// Index into `fetch.parts`, and why that part was not read.
    pub(crate) unread: Vec<(usize, Error)>,
}

impl Fetched {
    /// The run, where every part of it was read.
    ///
    /// # Errors
    /// Why the first part that failed was not read.
    pub(crate) fn into_run(mut self) -> Result<SharedBuf> {
        if self.unread.is_empty() { Ok(self.run) } else { Err(self.unread.swap_remove(0).1) }
    }
}

/// All queue pairs of an image, polled by one thread.
pub(crate) struct Pump {
    group: PollGroup,
    namespaces: Vec<Lane>,
    /// I/O planned and not yet taken, one queue a queue pair.
    queues: Vec<VecDeque<Io>>,
    /// I/O in `queues`.
    queued: usize,
    /// What all queue pairs together take.
    depth: usize,
    /// I/O queues below them: several may share one.
    num_queues: usize,
    /// Bytes of all I/O that the queue pairs have not completed.
    bytes_wanted: usize,
    staged: VecDeque<Io>,
    under_way: Slab<InFlight>,
    /// Jobs whose caller still waits.
    wanted: usize,
    outstanding: usize,
    max_outstanding: usize,
    completions: Vec<(usize, Completion)>,
    /// Completed, and not looked at yet.
    arrived: VecDeque<Completion>,
    finished: VecDeque<Fetched>,
    spare: Vec<Vec<Window>>,
    stats: ReadStats,
    /// Where the data set has no checksums of its own: those that reads have found.
    learned: Option<Arc<Learned>>,
}

/// The queue pairs of one namespace, used in turn.
struct Lane {
    namespace: Namespace,
    pairs: Vec<usize>,
    next: usize,
    /// Pieces of parts that could not be read since anything was.
    barren: u32,
}

impl Pump {
    /// Opens `pairs_each` queue pairs to every device, or as many as it gives out; all devices at once. Devices
    /// behind one controller share that many I/O queues.
    ///
    /// # Errors
    /// Those of [`Device::queue_pair_in`]; there is at least one.
    pub(crate) fn new(
        devices: &[Arc<dyn Device>],
        pairs_each: usize,
        busy_poll: bool,
    ) -> Result<Pump> {
        let mut group = PollGroup::new()?;
        group.set_busy_poll(busy_poll);
        let scopes: Vec<PairScope> = (0..pairs_each.max(1)).map(|_| PairScope::new()).collect();
        let mut namespaces = Vec::with_capacity(devices.len());
        let mut queues = Vec::new();
        let (mut depth, mut num_queues, mut shared) = (0, 0, HashSet::new());
        for (device, opened) in devices.iter().zip(open_pairs(devices, &scopes)?) {
            let mut pairs = Vec::new();
            for pair in opened {
                if pair.shared_queue().is_none_or(|queue| shared.insert(queue)) {
                    depth += usize::from(pair.namespace().queue_depth);
                    num_queues += 1;
                }
                pairs.push(group.add(pair));
                queues.push(VecDeque::new());
            }
            let mut namespace = device.namespace();
            // What each of them takes: a reconnect meanwhile may have changed it.
            let limits = pairs.iter().map(|&pair| group.pair(pair).namespace().max_transfer_bytes);
            namespace.max_transfer_bytes = limits.fold(namespace.max_transfer_bytes, u32::min);
            namespaces.push(Lane { namespace, pairs, next: 0, barren: 0 });
        }
        Ok(Pump {
            group,
            namespaces,
            queues,
            queued: 0,
            depth,
            num_queues,
            bytes_wanted: 0,
            staged: VecDeque::new(),
            under_way: Slab::new(),
            wanted: 0,
            outstanding: 0,
            max_outstanding: usize::MAX,
            completions: Vec::new(),
            arrived: VecDeque::new(),
            finished: VecDeque::new(),
            spare: Vec::new(),
            stats: ReadStats::default(),
            learned: None,
        })
    }

    /// Tells the engines of the pool that runs come from.
    pub(crate) fn use_pool(&mut self, pool: &Pool) {
        self.group.use_pool(pool);
    }

    /// Holds samples to the checksums that `directory` learns, if it is of those that do.
    pub(crate) fn learn(&mut self, directory: &Directory) {
        self.learned = directory.learned().cloned();
    }

    /// Allows at most `max` commands at a time over all queue pairs; 1 is a plain synchronous reader.
    pub(crate) fn limit_outstanding(&mut self, max: usize) {
        self.max_outstanding = max.max(1);
    }

    /// What planning must know, by namespace.
    pub(crate) fn geometry(&self) -> Vec<Geometry> {
        let of = |lane: &Lane| Geometry {
            block_len_bytes: lane.namespace.block_len_bytes,
            max_transfer_bytes: lane.namespace.max_transfer_bytes.min(MAX_TRANSFER_BYTES),
        };
        self.namespaces.iter().map(of).collect()
    }

    /// Namespace `index` of the image.
    pub(crate) fn namespace(&self, index: usize) -> Option<&Namespace> {
        self.namespaces.get(index).map(|lane| &lane.namespace)
    }

    pub(crate) fn stats(&self) -> ReadStats {
        self.stats
    }

    /// Fetches started, not abandoned, and not yet taken by `next_finished`.
    pub(crate) fn in_flight(&self) -> usize {
        self.wanted
    }

    /// Begins to fill `run`, which must be `fetch.len_bytes` long. `token` comes back with the end.
    pub(crate) fn start(&mut self, token: u64, fetch: Fetch, mut run: IoBuf) {
        assert_eq!(run.len(), fetch.len_bytes, "a run has the length of its plan");
        let mut windows = self.spare.pop().unwrap_or_default();
        windows.resize_with(fetch.parts.len(), Window::default);
        for (window, part) in windows.iter_mut().zip(&fetch.parts).rev() {
            window.buf = Some(run.split_off(part.run_offset));
        }
        let waiting = fetch.parts.len();
        let fetching = InFlight {
            token,
            fetch,
            windows,
            waiting,
            failures: Vec::new(),
            unread: Vec::new(),
            num_failed: 0,
            crossing: false,
            carried: None,
            next_sample: 0,
            abandoned: false,
        };
        self.wanted += 1;
        let key = self.under_way.insert(fetching);
        for part in 0..waiting {
            self.enqueue(key, part);
        }
        if waiting == 0 {
            self.finish(key);
        }
    }

    /// Nobody waits for `token` any more: its buffers come back in their own time.
    pub(crate) fn abandon(&mut self, token: u64) {
        for (_, fetching) in &mut self.under_way {
            if fetching.token == token && !fetching.abandoned {
                fetching.abandoned = true;
                self.wanted -= 1;
            }
        }
    }

    /// One turn: submits, polls, verifies some of what arrived. Returns whether anything moved.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        let submitted = self.submit();
        match self.arrived.is_empty() {
            true => _ = self.group.poll(now, usize::MAX, &mut self.completions),
            // First what came, while it is in the processor's cache: an engine that copies would bring more.
            false => self.group.start(),
        }
        for (_, completion) in self.completions.drain(..) {
            self.outstanding -= 1;
            self.bytes_wanted -= completion.buf.len();
            self.arrived.push_back(completion);
        }
        let (mut bytes, mut moved) = (0, submitted > 0);
        while bytes < TURN_BYTES
            && let Some(completion) = self.arrived.pop_front()
        {
            bytes += completion.buf.len();
            moved = true;
            self.complete(completion);
        }
        moved
    }

    /// Sleeps until something may have moved, or [`Pump::waker`] calls, at most until `until`.
    pub(crate) fn wait(&mut self, until: Instant) {
        self.group.wait(until);
    }

    /// Ends a wait from another thread.
    pub(crate) fn waker(&self) -> Waker {
        self.group.waker()
    }

    /// The next fetch that ended, in the order of ending.
    pub(crate) fn next_finished(&mut self) -> Option<Fetched> {
        let finished = self.finished.pop_front()?;
        self.wanted -= 1;
        Some(finished)
    }

    /// Gives fetches back that `next_finished` gave out, to be given out again in their order.
    pub(crate) fn put_back(&mut self, fetches: Vec<Fetched>) {
        self.wanted += fetches.len();
        fetches.into_iter().rev().for_each(|fetched| self.finished.push_front(fetched));
    }

    /// Whether the queue pairs have all that they can do for now: what is started later is read no
    /// later, and memory that is given out later is memory used again sooner, while caches hold it.
    pub(crate) fn is_busy(&self) -> bool {
        self.queued >= self.depth || self.bytes_wanted >= ENOUGH_BYTES * self.num_queues
    }

    fn enqueue(&mut self, key: usize, part: usize) {
        let fetching = &mut self.under_way[key];
        let at = fetching.fetch.parts[part];
        let buf =
            fetching.windows[part].buf.take().expect("a part's memory is here until it is read");
        let lane = &mut self.namespaces[usize::from(at.namespace)];
        let block = u64::from(lane.namespace.block_len_bytes);
        let pair = lane.pairs[lane.next];
        lane.next = (lane.next + 1) % lane.pairs.len();
        let tag = (key as u64) << 32 | part as u64;
        let slba = Lba(at.offset_bytes / block);
        self.queued += 1;
        self.bytes_wanted += buf.len();
        self.queues[pair].push_back(Io { op: IoOp::Read, slba, buf, tag });
    }

    fn submit(&mut self) -> usize {
        let mut submitted = 0;
        for (pair, queue) in self.queues.iter_mut().enumerate() {
            if queue.is_empty() {
                continue;
            }
            let room = self.max_outstanding.saturating_sub(self.outstanding);
            let taken = if room >= queue.len() {
                self.group.submit(pair, queue)
            } else {
                self.staged.extend(queue.drain(..room));
                let taken = self.group.submit(pair, &mut self.staged);
                while let Some(io) = self.staged.pop_back() {
                    queue.push_front(io);
                }
                taken
            };
            self.outstanding += taken;
            self.queued -= taken;
            submitted += taken;
        }
        submitted
    }

    fn complete(&mut self, completion: Completion) {
        let key = (completion.tag >> 32) as usize;
        let part = (completion.tag & u64::from(u32::MAX)) as usize;
        let fetching = &mut self.under_way[key];
        self.stats.commands += 1;
        self.stats.bytes += completion.buf.len() as u64;
        fetching.windows[part].buf = Some(completion.buf);
        let abandoned = fetching.abandoned;
        let lane = &mut self.namespaces[usize::from(fetching.fetch.parts[part].namespace)];
        let again = match completion.result {
            Ok(()) => {
                lane.barren = 0;
                !abandoned && !fetching.verify_part(part, self.learned.as_deref())
            }
            Err(error) => {
                let window = &mut fetching.windows[part];
                let again = !abandoned && window.repeats == 0 && may_help(&error);
                if !again {
                    // A file that has changed says nothing of the others.
                    let counts = window.is_piece && !matches!(error, IoError::Changed(_));
                    lane.barren = lane.barren.saturating_add(u32::from(counts));
                    window.failed = Some(error);
                    fetching.num_failed += 1;
                }
                again
            }
        };
        if again {
            self.repeat(key, part);
            return;
        }
        fetching.waiting -= 1;
        if fetching.waiting == 0 {
            self.finish(key);
        }
    }

    fn repeat(&mut self, key: usize, part: usize) {
        self.under_way[key].windows[part].repeats += 1;
        self.stats.repeated += 1;
        let at = self.under_way[key].fetch.parts[part];
        let lane = &self.namespaces[usize::from(at.namespace)];
        let slba = Lba(at.offset_bytes / u64::from(lane.namespace.block_len_bytes));
        self.group.report_corrupt(lane.pairs[0], slba, at.len_bytes);
        self.enqueue(key, part);
    }

    /// Asks for the parts that were not read piece by piece; whether there is anything to ask for.
    fn read_in_pieces(&mut self, key: usize) -> bool {
        let namespaces = &self.namespaces;
        let pieces = self.under_way[key].cut_failed(|part| {
            let lane = &namespaces[usize::from(part.namespace)];
            (lane.namespace.block_len_bytes, lane.barren >= MAX_BARREN)
        });
        self.under_way[key].waiting = pieces.len();
        self.stats.repeated += pieces.len() as u64;
        pieces.iter().for_each(|&piece| self.enqueue(key, piece));
        !pieces.is_empty()
    }

    /// All parts are in: verifies what crosses them, and hands the run over.
    fn finish(&mut self, key: usize) {
        let fetching = &mut self.under_way[key];
        if fetching.abandoned {
            let fetching = self.under_way.remove(key);
            self.keep(fetching.windows);
            return;
        }
        if fetching.num_failed > 0 && self.read_in_pieces(key) {
            return;
        }
        let fetching = &mut self.under_way[key];
        if fetching.crossing {
            let repeat = fetching.verify_crossing(self.learned.as_deref());
            if !repeat.is_empty() {
                fetching.waiting = repeat.len();
                for part in repeat {
                    self.repeat(key, part);
                }
                return;
            }
        }
        let mut fetching = self.under_way.remove(key);
        if fetching.num_failed > 0 {
            fetching.fail_unread(|part| &self.namespaces[usize::from(part.namespace)].namespace);
        }
        fetching.failures.sort_by_key(|(index, _)| *index);
        fetching.failures.dedup_by_key(|(index, _)| *index);
        for (index, error) in &mut fetching.failures {
            let sample = &fetching.fetch.samples[*index];
            let part = fetching.fetch.parts[fetching.fetch.parts_of(sample).start];
            let namespace = &self.namespaces[usize::from(part.namespace)].namespace;
            let bare = std::mem::replace(error, Error::new(ErrorKind::Io, ""));
            *error = located(bare, sample, &part, namespace);
        }
        let run = fetching.join();
        self.stats.verified += (fetching.fetch.samples.len() - fetching.failures.len()) as u64;
        self.finished.push_back(Fetched {
            token: fetching.token,
            fetch: fetching.fetch,
            run,
            failures: fetching.failures,
            unread: fetching.unread,
        });
        self.keep(fetching.windows);
    }

    fn keep(&mut self, mut windows: Vec<Window>) {
        windows.clear();
        self.spare.push(windows);
    }
}

/// Whether reading the same place again may end better.
fn may_help(error: &IoError) -> bool {
    match error {
        IoError::Short { .. } | IoError::DataDigest | IoError::Os(_) => true,
        IoError::Status(status) => !status.dnr,
        // The engine has tried for as long as it was told to.
        _ => false,
    }
}

fn located(error: Error, sample: &Placed, part: &Part, namespace: &Namespace) -> Error {
    let inside = (sample.run_offset - part.run_offset) as u64;
    let lba = (part.offset_bytes + inside) / u64::from(namespace.block_len_bytes);
    error.sample(sample.id).lba(Lba(lba)).target(namespace.address.clone())
}

/// The largest read, also where the namespace would take more: larger ones gain nothing on any engine
/// (`benches/results/transfer.md`), make a retry and everybody else on the queue wait longer, and have left
/// the processor's cache when verified.
const MAX_TRANSFER_BYTES: u32 = 256 << 10;

/// Verified before the queue pairs are given more to do: some devices complete all that they have at once
/// and would wait meanwhile. A virtual disk did, with 8 MiB: idle for 14 % of an epoch that read from it.
const TURN_BYTES: usize = 512 << 10;

/// Bytes asked for at a time on each I/O queue, where the depth allows more: what 100 Gb/s bring in
/// a third of a millisecond. More would only use memory that no cache holds: samples of 110 KiB in
/// global order over loopback, 4.8 GB/s with 16 MiB and 5.4 with 4.
const ENOUGH_BYTES: usize = 4 << 20;

/// Pieces that may fail in a row before a namespace counts as gone, until something of it is read: then a
/// part costs two commands more and not one for each sample. One part of the smallest blocks has as many.
const MAX_BARREN: u32 = 512;
