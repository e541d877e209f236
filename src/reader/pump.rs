//! The I/O loop of all reads: submits I/O, polls, verifies, and returns finished fetches.
//!
//! It knows fetches, transfers and checksums, but not batches or orders. A transfer is read a second time, from the
//! same blocks, after an error that may be transient and after a wrong checksum. A transfer that cannot be read is
//! read piece by piece, unless the connection is lost, so that only the samples with unreadable blocks fail. On a
//! namespace where hundreds of pieces have failed in a row, only the first and the last piece of a transfer are tried.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use crate::buf::{IoBuf, Pool, SharedBuf};
use crate::directory::{Directory, Learned};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{self, Place, PlaceBytes, PlaceCounters, Recorder, Snapshot};
use crate::qpair::group::{PollGroup, Waker};
use crate::qpair::{
    Completion, Device, Io, IoError, IoOp, Namespace, PairScope, SHARDS, open_pairs,
};
use crate::units::{Lba, deadline};

use super::fetch::{Fetch, FetchSample, Geometry, Transfer};
use super::in_flight::{InFlight, TransferState};

/// Counters of a reader's I/O.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReadStats {
    /// Read commands completed, including repeated ones.
    pub commands: u64,
    /// Bytes that those commands requested.
    pub bytes: u64,
    /// The same bytes, by the place that served them. Once all reads have ended, they add up to `bytes`.
    #[serde(rename = "bytes_by_place")]
    pub places: PlaceBytes,
    /// Commands that repeated a transfer, or a piece of one, after an error or a wrong checksum.
    pub repeated: u64,
    /// Repeated commands whose data had arrived with a wrong checksum.
    pub corrupt: u64,
    /// Samples, and pieces of large samples, that passed verification.
    pub verified: u64,
}

impl ReadStats {
    /// Adds the commands that one reader has completed between `before` and `after`.
    pub(crate) fn add(&mut self, before: ReadStats, after: ReadStats) {
        let ReadStats { commands, bytes, places, repeated, corrupt, verified } = after;
        self.commands += commands - before.commands;
        self.bytes += bytes - before.bytes;
        self.places = self.places.plus(&places.since(&before.places));
        self.repeated += repeated - before.repeated;
        self.corrupt += corrupt - before.corrupt;
        self.verified += verified - before.verified;
    }

    /// Adds these counters to `snapshot`. `by` is the kind of reader: `id` for reads by id or name, `loader` for
    /// loaders.
    pub fn measure(&self, by: &str, snapshot: &mut Snapshot) {
        for (metric, value) in [
            (&metrics::READ_COMMANDS, self.commands),
            (&metrics::READ_BYTES, self.bytes),
            (&metrics::READ_REPEATS, self.repeated),
            (&metrics::READ_CHECKSUM_ERRORS, self.corrupt),
            (&metrics::READ_VERIFIED, self.verified),
        ] {
            snapshot.count(metric, &[by], value);
        }
        for (place, bytes) in self.places.each() {
            snapshot.count(&metrics::READ_PLACE_BYTES, &[by, place.name()], bytes);
        }
    }
}

/// A finished fetch: its buffer, and its failures.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The token that `start` was given.
    pub(crate) token: u64,
    /// The image of the fetch, if the pump has several: see [`Pump::divide`].
    pub(crate) image: u32,
    pub(crate) fetch: Fetch,
    /// The bytes; empty if the fetch needed no memory.
    pub(crate) buf: SharedBuf,
    /// Samples that must not be used: index into `fetch.samples`, ascending, and error.
    pub(crate) failures: Vec<(usize, Error)>,
    /// Transfers that could not be read: index into `fetch.transfers`, and error.
    pub(crate) unread: Vec<(usize, Error)>,
}

impl Fetched {
    /// The bytes, if every transfer was read.
    ///
    /// # Errors
    /// The error of the first transfer that failed.
    pub(crate) fn into_buf(mut self) -> Result<SharedBuf> {
        if self.unread.is_empty() { Ok(self.buf) } else { Err(self.unread.swap_remove(0).1) }
    }
}

/// All queue pairs of an image, or of several, polled by one thread.
pub(crate) struct Pump {
    group: PollGroup,
    namespaces: Vec<NamespacePairs>,
    /// I/O not submitted yet, one queue per queue pair.
    queues: Vec<VecDeque<Io>>,
    /// The tags of the I/O in `queues`, in the same order.
    queued_tags: Vec<VecDeque<u64>>,
    /// The number of I/O commands in `queues`.
    queued: usize,
    /// The queue depth of all queue pairs together.
    depth: usize,
    /// The number of I/O queues of the engines: several queue pairs may share one.
    num_queues: usize,
    /// The number of bytes of all queued or outstanding I/O.
    pending_bytes: usize,
    /// The pending bytes of each I/O queue at which the pump counts as busy.
    enough_bytes: usize,
    /// Memory for the I/O that is offered to a queue pair; empty between calls.
    staged: VecDeque<Io>,
    in_flight: Slab<InFlight>,
    /// The number of fetches that were started, and neither abandoned nor returned by `next_finished`.
    num_awaited: usize,
    /// The number of submitted I/O commands that have not completed, and its limit.
    outstanding: usize,
    max_outstanding: usize,
    /// Memory for the completions of one poll.
    completions: Vec<(usize, Completion)>,
    /// Completions that are not verified yet.
    arrived: VecDeque<Completion>,
    /// Fetches that `next_finished` has not returned yet.
    finished: VecDeque<Fetched>,
    /// Empty lists of states, to be used again.
    free_states: Vec<Vec<TransferState>>,
    stats: ReadStats,
    /// For each scope, the bytes that its queue pairs read from other places than the origin.
    places: Vec<Arc<PlaceCounters>>,
    /// Latency of commands, from submission to completion.
    latency: Arc<Recorder>,
    /// The images; only one, unless [`Pump::divide`] was called.
    images: Vec<PumpImage>,
    /// The image of newly started fetches.
    image: u32,
}

/// An image whose namespaces the pump reads.
#[derive(Default)]
struct PumpImage {
    /// The index of its first namespace among all namespaces of the pump.
    first: u16,
    /// For a data set without checksums: the checksums that earlier reads computed.
    learned: Option<Arc<Learned>>,
}

/// The queue pairs of one namespace, used round robin.
struct NamespacePairs {
    namespace: Namespace,
    /// Indices of the queue pairs in the poll group.
    indices: Vec<usize>,
    /// The position in `indices` of the queue pair that takes the next read.
    next: usize,
    /// The number of pieces of transfers that failed since a read of the namespace last succeeded.
    failed_pieces: u32,
}

impl Pump {
    /// Opens `pairs_each` queue pairs on every device, or fewer if the device limits them; all devices
    /// concurrently. Devices behind one controller share `pairs_each` I/O queues.
    ///
    /// # Errors
    /// Errors of [`Device::queue_pair_in`]; `Refused` only if a device opens no queue pair at all.
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
        let mut queued_tags = Vec::new();
        let mut depth = 0;
        let mut num_queues = 0;
        let mut shared = HashSet::new();
        for (device, opened) in devices.iter().zip(open_pairs(devices, &scopes)?) {
            let mut indices = Vec::new();
            for pair in opened {
                if pair.shared_queue().is_none_or(|queue| shared.insert(queue)) {
                    depth += usize::from(pair.namespace().queue_depth);
                    num_queues += 1;
                }
                indices.push(group.add(pair));
                queues.push(VecDeque::new());
                queued_tags.push(VecDeque::new());
            }
            let mut namespace = device.namespace();
            // The limits of the open queue pairs apply: a reconnect may have changed the device's limit.
            let limits =
                indices.iter().map(|&pair| group.pair(pair).namespace().max_transfer_bytes);
            namespace.max_transfer_bytes = limits.fold(namespace.max_transfer_bytes, u32::min);
            namespaces.push(NamespacePairs { namespace, indices, next: 0, failed_pieces: 0 });
        }
        let are_shards = namespaces.iter().any(|of| of.namespace.engine == SHARDS);
        let enough_bytes = if are_shards { ENOUGH_OF_SHARDS } else { ENOUGH_BYTES };
        Ok(Pump {
            group,
            namespaces,
            queues,
            queued_tags,
            queued: 0,
            depth,
            num_queues,
            pending_bytes: 0,
            enough_bytes,
            staged: VecDeque::new(),
            in_flight: Slab::new(),
            num_awaited: 0,
            outstanding: 0,
            max_outstanding: usize::MAX,
            completions: Vec::new(),
            arrived: VecDeque::new(),
            finished: VecDeque::new(),
            free_states: Vec::new(),
            stats: ReadStats::default(),
            places: scopes.iter().map(|scope| Arc::clone(scope.places())).collect(),
            latency: Arc::default(),
            images: vec![PumpImage::default()],
            image: 0,
        })
    }

    /// Registers the pool of the buffers with the engines.
    pub(crate) fn use_pool(&mut self, pool: &Pool) {
        self.group.use_pool(pool);
    }

    /// Verifies samples of the selected image with the checksums that `directory` learns from reads, if it has none of
    /// its own.
    pub(crate) fn learn(&mut self, directory: &Directory) {
        self.images[self.image as usize].learned = directory.learned().cloned();
    }

    /// Divides the namespaces among images: `lens` is the number of namespaces of each. A fetch counts namespaces
    /// within its image.
    ///
    /// # Errors
    /// `Unsupported`: more namespaces than a fetch can count.
    pub(crate) fn divide(&mut self, lens: impl Iterator<Item = usize>) -> Result<()> {
        let mut first = 0_usize;
        self.images.clear();
        for len in lens {
            let at = u16::try_from(first).ok().filter(|_| first + len <= 1 << 16);
            let at = at.ok_or_else(|| {
                let text = "the data sets have more than 65536 namespaces together";
                Error::new(ErrorKind::Unsupported, text)
            })?;
            self.images.push(PumpImage { first: at, learned: None });
            first += len;
        }
        Ok(())
    }

    /// Limits the number of I/O queues that [`Pump::is_busy`] counts to `queues`. If one processor copies for
    /// several images, more pending bytes would only be evicted from its cache.
    pub(crate) fn count_queues(&mut self, queues: usize) {
        self.num_queues = self.num_queues.min(queues.max(1));
    }

    /// Selects the image for later fetches, counted from 0.
    pub(crate) fn select(&mut self, image: u32) {
        self.image = image;
    }

    /// Limits the outstanding commands of all queue pairs together to `max`; 1 makes a synchronous reader.
    pub(crate) fn limit_outstanding(&mut self, max: usize) {
        self.max_outstanding = max.max(1);
    }

    /// The geometry of each namespace of all images, for planning fetches.
    pub(crate) fn geometry(&self) -> Vec<Geometry> {
        let of = |pairs: &NamespacePairs| Geometry {
            block_len_bytes: pairs.namespace.block_len_bytes,
            max_transfer_bytes: if pairs.namespace.engine == SHARDS {
                pairs.namespace.max_transfer_bytes
            } else {
                pairs.namespace.max_transfer_bytes.min(MAX_TRANSFER_BYTES)
            },
        };
        self.namespaces.iter().map(of).collect()
    }

    /// Namespace `index` of the selected image.
    pub(crate) fn namespace(&self, index: usize) -> Option<&Namespace> {
        let first = usize::from(self.images[self.image as usize].first);
        self.namespaces.get(first + index).map(|pairs| &pairs.namespace)
    }

    pub(crate) fn stats(&self) -> ReadStats {
        self.stats
    }

    /// Records the latency of commands in `recorder`, from submission to completion, at the resolution of polls.
    /// Only one pump may use a recorder.
    pub(crate) fn record_latency(&mut self, recorder: &Arc<Recorder>) {
        self.latency = Arc::clone(recorder);
    }

    /// The number of fetches that were started, and neither abandoned nor returned by `next_finished`.
    pub(crate) fn in_flight(&self) -> usize {
        self.num_awaited
    }

    /// Starts to read `fetch` into `buf`, which must have `fetch.len_bytes`. The finished fetch has `token`.
    pub(crate) fn start(&mut self, token: u64, mut fetch: Fetch, mut buf: IoBuf) {
        assert_eq!(buf.len(), fetch.len_bytes, "the buffer has the length of the fetch");
        let mut states = self.free_states.pop().unwrap_or_default();
        states.resize_with(fetch.transfers.len(), TransferState::default);
        for (state, transfer) in states.iter_mut().zip(&fetch.transfers).rev() {
            state.buf = Some(buf.split_off(transfer.buf_offset));
        }
        let waiting = fetch.transfers.len();
        let first = self.images[self.image as usize].first;
        fetch.transfers.iter_mut().for_each(|transfer| transfer.namespace += first);
        let image = self.image;
        let started = InFlight { token, image, fetch, states, waiting, ..InFlight::default() };
        self.num_awaited += 1;
        let key = self.in_flight.insert(started);
        for transfer in 0..waiting {
            self.enqueue(key, transfer);
        }
        if waiting == 0 {
            self.finish(key);
        }
    }

    /// Discards the fetch `token`: its buffers are released as its reads complete. One without reads has finished.
    pub(crate) fn abandon(&mut self, token: u64) {
        let before = self.finished.len();
        self.finished.retain(|fetched| fetched.token != token);
        self.num_awaited -= before - self.finished.len();
        for (_, in_flight) in &mut self.in_flight {
            if in_flight.token == token && !in_flight.abandoned {
                in_flight.abandoned = true;
                self.num_awaited -= 1;
            }
        }
    }

    /// Submits, polls, and verifies some of the completed reads. Returns whether it made progress.
    pub(crate) fn poll(&mut self, now: Instant) -> bool {
        let submitted = self.submit(now);
        if self.arrived.is_empty() {
            self.group.poll(now, usize::MAX, &mut self.completions);
        } else {
            // Verify what has arrived before polling: copying engines would evict it from the cache.
            self.group.start();
        }
        for (_, completion) in self.completions.drain(..) {
            self.outstanding -= 1;
            self.pending_bytes -= completion.buf.len();
            let (key, transfer) = of_tag(completion.tag);
            let submitted = self.in_flight[key].states[transfer].submitted.unwrap_or(now);
            self.latency.record(now.saturating_duration_since(submitted));
            self.arrived.push_back(completion);
        }
        let mut bytes = 0;
        let mut moved = submitted > 0;
        while bytes < VERIFY_BYTES_PER_POLL
            && let Some(completion) = self.arrived.pop_front()
        {
            bytes += completion.buf.len();
            moved = true;
            self.complete(completion);
        }
        self.count_places();
        moved
    }

    /// Polls, and sleeps if there is no progress. `last_progress`: the time of the last progress.
    ///
    /// # Errors
    /// `TimedOut`: no progress for `limit`.
    pub(crate) fn poll_or_wait(
        &mut self,
        last_progress: &mut Instant,
        limit: Duration,
    ) -> Result<()> {
        let now = Instant::now();
        if self.poll(now) || !self.finished.is_empty() {
            *last_progress = now;
        } else if now - *last_progress > limit {
            let text = format!("nothing was read for {limit:?}");
            let address = self.namespaces[0].namespace.address.clone();
            return Err(Error::new(ErrorKind::TimedOut, text).target(address));
        } else {
            self.wait(deadline(*last_progress, limit));
        }
        Ok(())
    }

    /// Sleeps until a queue pair may have progressed, [`Pump::waker`] wakes it, or the deadline `until`.
    pub(crate) fn wait(&mut self, until: Instant) {
        self.group.wait(until);
    }

    /// Returns whether completions have arrived that are not verified yet.
    pub(crate) fn is_verifying(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Ends [`Pump::wait`] from another thread.
    pub(crate) fn waker(&self) -> Waker {
        self.group.waker()
    }

    /// Returns the next finished fetch, in the order of finishing.
    pub(crate) fn next_finished(&mut self) -> Option<Fetched> {
        let finished = self.finished.pop_front()?;
        self.num_awaited -= 1;
        Some(finished)
    }

    /// Takes back fetches that `next_finished` returned, to return them again in the same order.
    pub(crate) fn put_back(&mut self, fetches: Vec<Fetched>) {
        self.num_awaited += fetches.len();
        fetches.into_iter().rev().for_each(|fetched| self.finished.push_front(fetched));
    }

    /// Returns whether the queue pairs have enough work. More fetches would then not finish sooner, and if they are
    /// started later, they reuse memory that is still in the processor's cache.
    pub(crate) fn is_busy(&self) -> bool {
        self.queued >= self.depth || self.pending_bytes >= self.enough_bytes * self.num_queues
    }

    /// Queues the read of a transfer for the next queue pair of its namespace.
    fn enqueue(&mut self, key: usize, transfer: usize) {
        let in_flight = &mut self.in_flight[key];
        let at = in_flight.fetch.transfers[transfer];
        let buf =
            in_flight.states[transfer].buf.take().expect("no read of the transfer is outstanding");
        let pairs = &mut self.namespaces[usize::from(at.namespace)];
        let block = u64::from(pairs.namespace.block_len_bytes);
        let pair = pairs.indices[pairs.next];
        pairs.next = (pairs.next + 1) % pairs.indices.len();
        let tag = (key as u64) << 32 | transfer as u64;
        let slba = Lba(at.offset_bytes / block);
        self.queued += 1;
        self.pending_bytes += buf.len();
        self.queues[pair].push_back(Io { op: IoOp::Read, slba, buf, tag });
        self.queued_tags[pair].push_back(tag);
    }

    /// Submits queued I/O while there is room; returns the number of commands.
    fn submit(&mut self, now: Instant) -> usize {
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
            for tag in self.queued_tags[pair].drain(..taken) {
                let (key, transfer) = of_tag(tag);
                self.in_flight[key].states[transfer].submitted = Some(now);
            }
            self.outstanding += taken;
            self.queued -= taken;
            submitted += taken;
        }
        submitted
    }

    /// Counts bytes as the origin's if no other place has served them. Other places may have served pieces of reads
    /// that have not ended, so the count may be lower than the bytes that the origin has served; it is never
    /// higher.
    fn count_places(&mut self) {
        let sum = |sum: PlaceBytes, of: &Arc<PlaceCounters>| sum.plus(&of.read());
        let mut places = self.places.iter().fold(PlaceBytes::default(), sum);
        let rest = self.stats.bytes.saturating_sub(places.total());
        places.add(Place::Origin, rest.max(self.stats.places.of(Place::Origin)));
        self.stats.places = places;
    }

    /// Handles the end of a read: verifies the transfer, and reads it again or counts it as completed.
    fn complete(&mut self, completion: Completion) {
        let (key, transfer) = of_tag(completion.tag);
        let in_flight = &mut self.in_flight[key];
        self.stats.commands += 1;
        self.stats.bytes += completion.buf.len() as u64;
        in_flight.states[transfer].buf = Some(completion.buf);
        let abandoned = in_flight.abandoned;
        let pairs =
            &mut self.namespaces[usize::from(in_flight.fetch.transfers[transfer].namespace)];
        let again = match completion.result {
            Ok(()) => {
                pairs.failed_pieces = 0;
                let learned = self.images[in_flight.image as usize].learned.as_deref();
                let is_corrupt = !abandoned && !in_flight.verify_transfer(transfer, learned);
                self.stats.corrupt += u64::from(is_corrupt);
                is_corrupt
            }
            Err(error) => {
                let state = &mut in_flight.states[transfer];
                let again = !abandoned && state.repeats == 0 && may_help(&error);
                if !again {
                    // One changed file in a folder does not indicate that the other files fail.
                    let counts = state.is_piece && !matches!(error, IoError::Changed(_));
                    pairs.failed_pieces = pairs.failed_pieces.saturating_add(u32::from(counts));
                    state.failed = Some(error);
                    in_flight.num_failed += 1;
                }
                again
            }
        };
        if again {
            self.repeat(key, transfer);
            return;
        }
        in_flight.waiting -= 1;
        if in_flight.waiting == 0 {
            self.finish(key);
        }
    }

    /// Reads a transfer a second time.
    fn repeat(&mut self, key: usize, transfer: usize) {
        self.in_flight[key].states[transfer].repeats += 1;
        self.stats.repeated += 1;
        let at = self.in_flight[key].fetch.transfers[transfer];
        let pairs = &self.namespaces[usize::from(at.namespace)];
        let slba = Lba(at.offset_bytes / u64::from(pairs.namespace.block_len_bytes));
        // To the queue pair that reads it again: a queue pair heeds reports in its own reads.
        self.group.report_corrupt(pairs.indices[pairs.next], slba, at.len_bytes);
        self.enqueue(key, transfer);
    }

    /// Splits a failed transfer and reads its pieces; returns `false` if no transfer is left to split.
    fn read_in_pieces(&mut self, key: usize) -> bool {
        let namespaces = &self.namespaces;
        let pieces = self.in_flight[key].split_failed(|transfer| {
            let pairs = &namespaces[usize::from(transfer.namespace)];
            (pairs.namespace.block_len_bytes, pairs.failed_pieces >= MAX_FAILED_PIECES)
        });
        self.in_flight[key].waiting = pieces.len();
        self.stats.repeated += pieces.len() as u64;
        pieces.iter().for_each(|&piece| self.enqueue(key, piece));
        !pieces.is_empty()
    }

    /// Continues a fetch whose transfers have all completed: reads failed transfers in pieces, verifies the samples
    /// that span several transfers, and reads wrong ones again. If nothing is left to read, finishes the fetch.
    fn finish(&mut self, key: usize) {
        let in_flight = &mut self.in_flight[key];
        if in_flight.abandoned {
            let in_flight = self.in_flight.remove(key);
            self.recycle(in_flight.states);
            return;
        }
        if in_flight.num_failed > 0 && self.read_in_pieces(key) {
            return;
        }
        let in_flight = &mut self.in_flight[key];
        if in_flight.crossing {
            let learned = self.images[in_flight.image as usize].learned.as_deref();
            let repeat = in_flight.verify_crossing(learned);
            if !repeat.is_empty() {
                in_flight.waiting = repeat.len();
                self.stats.corrupt += repeat.len() as u64;
                for transfer in repeat {
                    self.repeat(key, transfer);
                }
                return;
            }
        }
        let mut in_flight = self.in_flight.remove(key);
        if in_flight.num_failed > 0 {
            in_flight.fail_unread(|transfer| {
                &self.namespaces[usize::from(transfer.namespace)].namespace
            });
        }
        in_flight.failures.sort_by_key(|(index, _)| *index);
        in_flight.failures.dedup_by_key(|(index, _)| *index);
        for (index, error) in &mut in_flight.failures {
            let sample = &in_flight.fetch.samples[*index];
            let transfer = in_flight.fetch.transfers[in_flight.fetch.transfers_of(sample).start];
            let namespace = &self.namespaces[usize::from(transfer.namespace)].namespace;
            let bare = std::mem::replace(error, Error::new(ErrorKind::Io, ""));
            *error = located(bare, sample, &transfer, namespace);
        }
        let buf = in_flight.join();
        self.stats.verified += (in_flight.fetch.samples.len() - in_flight.failures.len()) as u64;
        let first = self.images[in_flight.image as usize].first;
        in_flight.fetch.transfers.iter_mut().for_each(|transfer| transfer.namespace -= first);
        self.finished.push_back(Fetched {
            token: in_flight.token,
            image: in_flight.image,
            fetch: in_flight.fetch,
            buf,
            failures: in_flight.failures,
            unread: in_flight.unread,
        });
        self.recycle(in_flight.states);
    }

    fn recycle(&mut self, mut states: Vec<TransferState>) {
        states.clear();
        self.free_states.push(states);
    }
}

/// The fetch in flight of an I/O, and the index of the transfer.
fn of_tag(tag: u64) -> (usize, usize) {
    ((tag >> 32) as usize, (tag & u64::from(u32::MAX)) as usize)
}

/// Returns whether reading the same blocks again may succeed.
fn may_help(error: &IoError) -> bool {
    match error {
        IoError::Short { .. } | IoError::DataDigest | IoError::Os(_) => true,
        IoError::Status(status) => !status.dnr,
        // After `Disconnected`, the engine has already retried; the other errors are not transient.
        _ => false,
    }
}

/// Adds the sample, its LBA and its namespace to an error.
fn located(
    error: Error,
    sample: &FetchSample,
    transfer: &Transfer,
    namespace: &Namespace,
) -> Error {
    let inside = (sample.buf_offset - transfer.buf_offset) as u64;
    let lba = (transfer.offset_bytes + inside) / u64::from(namespace.block_len_bytes);
    error.sample(sample.id).lba(Lba(lba)).target(namespace.address.clone())
}

/// The length of the longest read, even if the namespace allows more. Larger reads are faster on no engine
/// (`benches/results/transfer.md`). They delay retries and other commands of the queue, and are evicted from the
/// processor's cache before they are verified.
const MAX_TRANSFER_BYTES: u32 = 256 << 10;

/// Bytes to verify before the queue pairs get more work. Some devices complete all outstanding commands together,
/// and would be idle during a long verification.
const VERIFY_BYTES_PER_POLL: usize = 512 << 10;

/// Enough pending bytes for each I/O queue, even if the queue depth allows more: a link of 100 Gb/s transfers them
/// in a third of a millisecond. More would only spread the reads over memory that is not in the processor's cache.
const ENOUGH_BYTES: usize = 4 << 20;
/// The same for shards, whose requests take a store's delay: as many bytes as are decoded at a time.
const ENOUGH_OF_SHARDS: usize = 32 << 20;

/// After this many failed pieces in a row, a namespace seems lost until a read of it succeeds. Meanwhile, a failed
/// transfer costs only two further commands, instead of one for each sample. A transfer of the smallest blocks has
/// this many pieces.
const MAX_FAILED_PIECES: u32 = 512;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::format::Extent;
    use crate::qpair::QueuePair;
    use crate::qpair::mem::MemNamespace;
    use crate::reader::plan_chunk;
    use crate::units::SampleId;

    /// A device whose queue pairs tell of each read and each report of corrupt blocks.
    struct Telling {
        memory: MemNamespace,
        num_pairs: AtomicUsize,
        events: Sender<Event>,
    }

    /// An event on the queue pair with this number.
    #[derive(Debug)]
    enum Event {
        Read(usize),
        Corrupt(usize),
    }

    struct TellingPair {
        pair: Box<dyn QueuePair>,
        number: usize,
        events: Sender<Event>,
    }

    impl Device for Telling {
        fn namespace(&self) -> Namespace {
            self.memory.namespace()
        }

        fn queue_pair_in(&self, scope: &PairScope) -> Result<Box<dyn QueuePair>> {
            let number = self.num_pairs.fetch_add(1, Ordering::Relaxed);
            let pair = self.memory.queue_pair_in(scope)?;
            Ok(Box::new(TellingPair { pair, number, events: self.events.clone() }))
        }
    }

    impl QueuePair for TellingPair {
        fn namespace(&self) -> &Namespace {
            self.pair.namespace()
        }

        fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
            let taken = self.pair.submit(pending);
            (0..taken).for_each(|_| self.events.send(Event::Read(self.number)).unwrap());
            taken
        }

        fn poll(&mut self, now: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
            self.pair.poll(now, max, done)
        }

        fn outstanding(&self) -> usize {
            self.pair.outstanding()
        }

        fn report_corrupt(&mut self, _: Lba, _: usize) {
            self.events.send(Event::Corrupt(self.number)).unwrap();
        }
    }

    #[test]
    fn corrupt_blocks_are_reported_to_the_queue_pair_that_reads_them_again() {
        let memory = MemNamespace::new(1 << 20, 512).unwrap();
        let (events, told) = channel();
        let device = Telling { memory, num_pairs: AtomicUsize::new(0), events };
        let device: Arc<dyn Device> = Arc::new(device);
        let mut pump = Pump::new(&[device], 2, false).unwrap();
        let sample = Extent { namespace: 0, offset_bytes: 0, len_bytes: 512, crc32c: 1 };
        let mut fetch = Fetch::default();
        plan_chunk([(SampleId(0), sample)].into_iter(), None, &pump.geometry(), &mut fetch);
        pump.start(0, fetch, IoBuf::zeroed(512));
        let fetched = loop {
            pump.poll(Instant::now());
            if let Some(fetched) = pump.next_finished() {
                break fetched;
            }
        };
        assert_eq!(fetched.failures[0].1.kind(), ErrorKind::Corrupt, "the second time, too");
        let told: Vec<Event> = told.try_iter().collect();
        let [Event::Read(first), Event::Corrupt(reported), Event::Read(second)] = told[..] else {
            panic!("{told:?}");
        };
        assert_ne!(first, second);
        assert_eq!(reported, second);
    }

    #[test]
    fn images_with_more_namespaces_than_a_fetch_can_count_are_refused() {
        let mut pump = Pump::new(&[], 1, false).unwrap();
        for lens in [[65_535, 1], [1, 65_535]] {
            pump.divide(lens.into_iter()).unwrap();
        }
        for lens in [[65_535, 2], [1, 65_536], [65_536, 1]] {
            let error = pump.divide(lens.into_iter()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{lens:?}");
        }
    }
}
