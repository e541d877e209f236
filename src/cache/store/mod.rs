//! A rank's share of the samples, in its node's own storage: partial local shuffling (PLS).
//!
//! Under the orders `local` and `partial` each rank has a share of the samples ([`Shares`]). A [`Store`]
//! keeps the share of one rank in a local file or in memory. It fetches the share from the origin once, and
//! from then on serves its rank's reads alone. During an epoch a thread fetches the samples that this rank
//! gets for the next epoch, by ordinary reads, from the stores of the ranks that have them. A sample that
//! leaves is deleted once its new rank has it and the epoch has ended.
//!
//! A store uses the addresses of the data set. The namespaces lie one after the other in a sparse file or in memory,
//! and a page (4,096 bytes) has the same offset within its namespace as at the origin. So a peer reads a sample from
//! the store as it would from the origin, and a deleted page is a hole. A page is either complete or absent, and only
//! served while it is present.
//!
//! Invariants:
//! - *Everything is verified.* A sample is stored only after its checksum has been verified, and every reader
//!   verifies it again. Samples of an earlier run are read and verified before they are used.
//! - *Nothing is lost.* A sample is deleted only after the rank that gets it has reported that it has the
//!   sample; or, if that rank is gone, while the data set can be read. The rank reports this in the first page
//!   of its first namespace, where an image has a superblock. Peers read that page like any other
//!   (`Progress`), so reads are the only messages.
//! - *Room is bounded.* The exchange of the next epoch begins when the samples of this epoch have left. So a
//!   store takes about (1 + q) times its share (q: the fraction that an epoch exchanges), plus a page at each sample's
//!   end, and never more than its share of the quota.
//! - *The epoch's order does not change.* Received samples are read from the next epoch on; a read of a
//!   sample that has not arrived waits for it.
//!
//! Each rank has a store of its own. Ranks of one node use one folder, or the node's memory, and each rank
//! has its own file in it. They share one quota equally, since their shares are equal. A single
//! store per node would avoid copying a sample that moves between two of its ranks, but the other ranks would
//! depend on the store's owner. Forked children of a rank's process read from its store, too (`board.rs`).
//!
//! Read `media.rs` (bytes and presence), `pair.rs` (reads), `fetch.rs`, then `exchange.rs` (the thread).

mod board;
mod exchange;
mod fetch;
mod location;
mod media;
mod pair;
mod progress;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use serde::Serialize;

use crate::cache::TierSpec;
use crate::peers::rendezvous::Rendezvous;
use crate::peers::{ChunkPlaces, PeerOptions, Peers, Served, Serving};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::metrics::{self, Measured, Snapshot};
use dlfs_base::process::Forked;
use dlfs_base::registry::Registration;
use dlfs_base::threads::{self, Fate, Thread};
use dlfs_base::units::Epoch;
use dlfs_format::directory::{Directory, Intact};
use dlfs_io::qpair::Device;
use dlfs_order::order::{OrderSpec, Shares};
use dlfs_order::tier::PAGE_BYTES;

pub use board::{Reader, Ticket};

use board::{Board, Count, MAX_READERS};
use exchange::Exchange;
use location::StoreLocation;
use media::Media;
use progress::Progress;

/// Options of a rank's store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The storage: `ram:SIZE`, or `file:FOLDER:SIZE`. The size limits the bytes of samples of all ranks of
    /// this node; each rank gets an equal part.
    pub spec: TierSpec,
    /// Exchanges nothing during an epoch, but everything at its end: for comparison.
    pub blocking: bool,
    /// Time after which the samples of a late peer (at the end of an epoch) or of an unreachable peer (at any time)
    /// are read from the origin.
    pub patience: Duration,
    /// Deadline, at the end of an epoch, for samples that neither a peer nor the origin delivers; and for a peer to
    /// receive another sample while this rank waits for it to take those that leave.
    pub deadline: Duration,
}

impl StoreOptions {
    /// A store at `spec` with an exchange that overlaps the epoch.
    pub fn new(spec: TierSpec) -> StoreOptions {
        StoreOptions {
            spec,
            blocking: false,
            patience: Duration::from_secs(2),
            deadline: Duration::from_secs(60),
        }
    }
}

/// The rank, the run and the data set that a store is for.
pub struct Owner<'a> {
    /// The data set's directory.
    pub directory: &'a Arc<Directory>,
    /// The namespaces of the data set, for staging.
    pub origins: &'a [Arc<dyn Device>],
    /// The order of the run, with its world size.
    pub order: OrderSpec,
    /// The rank.
    pub rank: u32,
    /// The epochs of the run: nothing is exchanged in the last one.
    pub epochs: Range<u64>,
}

/// The share of one rank, and the thread that exchanges samples with other ranks.
pub struct Store {
    order: OrderSpec,
    rank: u32,
    shared: Arc<StoreShared>,
    devices: Vec<Arc<dyn Device>>,
    exchange: Arc<Mutex<Exchange>>,
    thread: Forked<Option<Thread>>,
    _metered: Registration,
}

/// State that the thread, the devices and the callers share.
struct StoreShared {
    media: Media,
    origins: Vec<Arc<dyn Device>>,
    /// The byte ranges of each namespace that contain samples: a read of other bytes need not wait.
    chunks: ChunkPlaces,
    /// The positions of the loaders, and the counters shared with forked children.
    board: Board,
    /// This rank's progress, which peers read in the first page.
    progress: Mutex<Progress>,
    counters: Counters,
    /// The process that stores and exchanges; forked children only read.
    home: Forked<()>,
    stop: AtomicBool,
    /// A message in this channel wakes the thread.
    call: Sender<()>,
    called: Receiver<()>,
    /// The error that the thread died of, if any.
    fate: Fate,
}

/// Progress of staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Staged {
    /// Samples of the share.
    pub samples: u64,
    /// Samples that the store has.
    pub done: u64,
    /// Samples that the store had before, verified.
    pub found: u64,
    /// Bytes of the pages that were fetched.
    pub bytes: u64,
}

/// The other ranks of a job, and their rendezvous.
pub struct Meet<'a> {
    /// The options of this rank's join.
    pub options: &'a PeerOptions,
    /// The rendezvous of the ranks.
    pub rendezvous: &'a mut dyn Rendezvous,
    /// A hash of the options that must be the same on all ranks.
    pub order: u64,
}

impl Store {
    /// Opens the store and joins the other ranks; `meet` is `None` if there are none.
    ///
    /// # Errors
    /// `InvalidArgument`: the order gives ranks no shares, or has no such rank; ranks exchange samples, and
    /// `meet` is `None`; the quota is smaller than (1 + q) times the share; the path is not a folder; or the data
    /// set is a plain folder, whose checksums are not known in advance. `NotFound`: there is no such folder.
    /// `Unsupported`: the file system cannot free parts of a file. `Busy`: another process has this rank's
    /// store. Errors of [`Peers::join`].
    pub fn open(
        owner: Owner<'_>,
        options: StoreOptions,
        meet: Option<Meet<'_>>,
    ) -> Result<(Store, Option<Arc<Peers>>)> {
        let Owner { directory, origins, order, rank, epochs } = owner;
        let shares = shares_of(directory, &order, rank, meet.is_some())?;
        let chunks = ChunkPlaces::new(directory);
        let intact = Arc::new(Intact::new(Arc::clone(directory)));
        let most_pages = exchange::most_pages(directory, &shares);
        let name = media::file_name(directory, rank);
        let media = Media::open(&options.spec, &name, &chunks.ends(), most_pages)?;
        let (call, called) = crossbeam_channel::bounded(1);
        let shared = Arc::new(StoreShared {
            media,
            origins: origins.to_vec(),
            chunks,
            board: Board::new()?,
            progress: Mutex::default(),
            counters: Counters::default(),
            home: Forked::new(()),
            stop: AtomicBool::new(false),
            call,
            called,
            fate: Fate::default(),
        });
        let devices = pair::devices(&shared, None);
        let mut peers = None;
        let mut near = Vec::new();
        if let Some(meet) = meet {
            let place = StoreLocation::here(meet.options.node.as_deref(), &options.spec);
            let joined =
                Arc::new(join(directory, &intact, &shared, &devices, meet, place.name(rank))?);
            let records = joined.round().records().iter();
            let places: Vec<_> =
                records.map(|record| StoreLocation::from_name(&record.host)).collect();
            let sharing = places.iter().filter(|other| other.as_ref() == Some(&place)).count();
            shared.media.share_quota(sharing as u64, most_pages, &options.spec)?;
            let is_near =
                |other: Option<StoreLocation>| other.is_some_and(|it| it.is_on_node_of(&place));
            near = places.into_iter().map(is_near).collect();
            peers = Some(joined);
        }
        let inputs = exchange::ExchangeInputs {
            shared: Arc::clone(&shared),
            directory: Arc::clone(directory),
            shares,
            rank,
            last: epochs.end.saturating_sub(1),
            peers: peers.clone(),
            near,
            options,
        };
        let exchange = Arc::new(Mutex::new(Exchange::new(inputs)?));
        let thread = Store::start(Arc::clone(&shared), Arc::clone(&exchange))?;
        let thread = Forked::new(Some(thread));
        let _metered = Registration::new(&shared);
        Ok((Store { order, rank, shared, devices, exchange, thread, _metered }, peers))
    }

    /// The namespaces of the data set, read from this rank's store alone.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The reader of this store that corresponds to `rank` of `world_size` in `order`: the store's own rank,
    /// or one of several ranks that share its batches. `None` for other ranks.
    pub fn reader(&self, order: &OrderSpec, rank: u32, world_size: u32) -> Option<Reader> {
        let ranks = order.kind.world_size()?;
        let is_its_own = self.order == *order && rank % ranks == self.rank;
        let reader = Reader { number: rank / ranks, of: world_size / ranks };
        let is_one = reader.number < reader.of && reader.of <= MAX_READERS;
        (is_its_own && is_one && world_size.is_multiple_of(ranks)).then_some(reader)
    }

    /// Fetches the share of `epoch`, of which this rank has taken `taken` samples, into the store, and begins
    /// to exchange. Verifies the samples that are already there, and fetches only the others: from the
    /// origin, or from a rank that has them. Does nothing if the store has reached the epoch by itself. In a
    /// forked child, asks the store's process to do this, and returns at once: reads wait for samples that
    /// have not arrived. The process that was this reader before loses its place, as [`Store::check_place`]
    /// reports.
    ///
    /// # Errors
    /// Errors of reading the origin. `NoSpace`: the file system, or this rank's part of the quota, is full.
    /// `Interrupted`: `goes_on` returned `false`.
    pub fn begin(
        &self,
        reader: Reader,
        epoch: Epoch,
        taken: u64,
        goes_on: &mut dyn FnMut(Staged) -> bool,
    ) -> Result<Ticket> {
        if !self.is_home() {
            let ticket = self.shared.board.begin(reader, epoch, taken);
            self.shared.board.add(Count::Asked, 1);
            return Ok(ticket);
        }
        let mut exchange = self.exchange.lock();
        let ticket = self.shared.board.begin(reader, epoch, taken);
        exchange.begin(epoch, goes_on)?;
        drop(exchange);
        self.shared.notify();
        Ok(ticket)
    }

    /// Records that `reader` has delivered a batch: it is now in `epoch`, and the rank has taken `taken`
    /// samples. Ignored if another process has begun as this reader: see [`Store::check_place`].
    pub fn delivered(&self, reader: Reader, ticket: Ticket, epoch: Epoch, taken: u64) {
        self.shared.board.delivered(reader, ticket, epoch, taken);
        self.shared.notify();
    }

    /// Checks that no other process has begun as `reader` since `ticket`: of two processes with one place,
    /// one could cause samples to be deleted that the other still reads.
    ///
    /// # Errors
    /// `Busy`: another process has.
    pub fn check_place(&self, reader: Reader, ticket: Ticket) -> Result<()> {
        let Some(process) = self.shared.board.taken_by(reader, ticket) else { return Ok(()) };
        let who = match process {
            0 => "other readers have".to_owned(),
            process => format!("process {process} has"),
        };
        let Reader { number, of } = reader;
        let text = format!(
            "rank {}: {who} begun to read its share in the store since this run began, which was reader {number} of \
             {of}",
            self.rank
        );
        let hint = "let processes share a rank's batches as workers of one loader; set_epoch begins here again";
        Err(Error::new(ErrorKind::Busy, text).hint(hint))
    }

    /// The number of samples that any process has fetched before an epoch so far; it shows that staging makes
    /// progress.
    pub fn staged(&self) -> u64 {
        self.shared.board.get(Count::Staged)
    }

    /// The error that stopped the exchange, if any: reads of samples that have not arrived fail.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure()
    }

    /// Returns whether this process stores, exchanges and therefore counts; forked children only read.
    pub fn is_home(&self) -> bool {
        self.shared.home.get().is_some()
    }

    /// Counters so far.
    pub fn stats(&self) -> StoreStats {
        self.shared.counters.read(&self.shared.media)
    }

    /// Starts the thread that exchanges samples.
    fn start(shared: Arc<StoreShared>, exchange: Arc<Mutex<Exchange>>) -> Result<Thread> {
        let fate = shared.fate.clone();
        threads::start(THREAD, &fate, (), move |()| {
            while !shared.is_stopping() {
                let pause = exchange.lock().turn();
                // Children cannot wake this thread, so it polls their progress.
                let has_children = shared.board.get(Count::Asked) > 0;
                let pause = if has_children { pause.min(LOOK_AT_CHILDREN) } else { pause };
                let _ = shared.called.recv_timeout(pause); // timeout or wake-up: the same
            }
        })
    }
}

impl Measured for StoreShared {
    fn measure(&self, snapshot: &mut Snapshot) {
        self.counters.read(&self.media).measure(snapshot);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.notify();
        if let Some(thread) = self.thread.get_mut().and_then(Option::take) {
            thread.join_within(END_LIMIT);
        }
    }
}

impl StoreShared {
    /// Wakes the thread, if this process has it.
    fn notify(&self) {
        if self.home.get().is_some() {
            let _ = self.call.try_send(()); // a message that is already there is enough
        }
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn failure(&self) -> Option<Error> {
        self.board.failure().or_else(|| self.fate.died())
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// The shares of a run. Refuses a run that a store cannot serve, such as one of several ranks without a way
/// to exchange.
fn shares_of(
    directory: &Arc<Directory>,
    order: &OrderSpec,
    rank: u32,
    has_peers: bool,
) -> Result<Shares> {
    let invalid = |text: &str, hint: &str| {
        Err(Error::new(ErrorKind::InvalidArgument, text.to_owned()).hint(hint.to_owned()))
    };
    if directory.learned().is_some() {
        let text = "a store keeps only what it can check, and a plain folder has no checksums";
        return invalid(text, "import the folder first: dlfs import");
    }
    let Some(shares) = Shares::new(order, &**directory) else {
        let text = "in this order ranks have no shares of their own, so there is nothing to store";
        return invalid(text, "take the order partial or local");
    };
    if rank >= shares.world_size() {
        return invalid("there is no such rank", "ranks count from 0");
    }
    if shares.num_steps() > 0 && !has_peers {
        let text = "ranks exchange samples, and nothing says where they meet";
        return invalid(text, "name the job's peers (--peers), or exchange nothing");
    }
    Ok(shares)
}

fn join(
    directory: &Arc<Directory>,
    intact: &Arc<Intact>,
    shared: &Arc<StoreShared>,
    devices: &[Arc<dyn Device>],
    meet: Meet<'_>,
    node: String,
) -> Result<Peers> {
    let served = Served {
        directory,
        intact: Arc::clone(intact),
        cache: devices,
        views: Box::new(|nguids| pair::devices(shared, Some(nguids))),
        // The order decides which samples a rank serves, not the round.
        room_pages: Vec::new(),
        tiers: 0,
        order: meet.order,
    };
    let options = PeerOptions {
        serving: Serving::CopiesOnly,
        keep_shares: false,
        node: Some(node),
        ..meet.options.clone()
    };
    Peers::join(&served, &options, meet.rendezvous)
}

/// Counters of a store since it was opened: its contents, and its exchanges.
pub type StoreStats = StoreCounts<u64>;

/// The counters behind [`StoreStats`].
type Counters = StoreCounts<AtomicU64>;

/// The counters of a store: values, or atomic counters for several threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StoreCounts<T> {
    /// Bytes of the pages that are in the store now.
    pub held_bytes: T,
    /// Maximum of `held_bytes` so far.
    pub peak_bytes: T,
    /// Samples that were in the store when it was opened, and whose checksums matched.
    pub found: T,
    /// Samples that were fetched from the origin before an epoch began.
    pub staged: T,
    /// Bytes of the pages of those samples.
    pub staged_bytes: T,
    /// Samples that were received from other ranks.
    pub received: T,
    /// Bytes of the pages of those samples.
    pub received_bytes: T,
    /// The part of `received_bytes` from ranks on the same node, which crossed no network.
    pub near_bytes: T,
    /// Samples that were fetched from the origin because the rank that had them was late or dead, or because the
    /// rank's or this store's copy was damaged.
    pub from_origin: T,
    /// Bytes of the pages of those samples.
    pub from_origin_bytes: T,
    /// Samples that were deleted after their new ranks had received them, or because these ranks were gone.
    pub deleted: T,
    /// Samples from a peer with wrong checksums. They are never stored.
    pub mismatched: T,
    /// Steps of exchanges that have become due, including steps in which this rank keeps its own sample.
    pub steps: T,
    /// Reads that waited for a sample that had not arrived.
    pub waits: T,
}

impl Measured for StoreStats {
    fn measure(&self, snapshot: &mut Snapshot) {
        for (metric, value) in [
            (&metrics::STORE_HELD_BYTES, self.held_bytes),
            (&metrics::STORE_PEAK_BYTES, self.peak_bytes),
            (&metrics::STORE_FOUND, self.found),
            (&metrics::STORE_STAGED, self.staged),
            (&metrics::STORE_STAGED_BYTES, self.staged_bytes),
            (&metrics::STORE_RECEIVED, self.received),
            (&metrics::STORE_RECEIVED_BYTES, self.received_bytes),
            (&metrics::STORE_NEAR_BYTES, self.near_bytes),
            (&metrics::STORE_FROM_ORIGIN, self.from_origin),
            (&metrics::STORE_FROM_ORIGIN_BYTES, self.from_origin_bytes),
            (&metrics::STORE_DELETED, self.deleted),
            (&metrics::STORE_MISMATCHED, self.mismatched),
            (&metrics::STORE_STEPS, self.steps),
            (&metrics::STORE_WAITS, self.waits),
        ] {
            snapshot.count(metric, &[], value);
        }
    }
}

impl Counters {
    fn read(&self, media: &Media) -> StoreStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (held, peak) = media.pages();
        StoreStats {
            held_bytes: held * PAGE_BYTES,
            peak_bytes: peak * PAGE_BYTES,
            found: of(&self.found),
            staged: of(&self.staged),
            staged_bytes: of(&self.staged_bytes),
            received: of(&self.received),
            received_bytes: of(&self.received_bytes),
            near_bytes: of(&self.near_bytes),
            from_origin: of(&self.from_origin),
            from_origin_bytes: of(&self.from_origin_bytes),
            deleted: of(&self.deleted),
            mismatched: of(&self.mismatched),
            steps: of(&self.steps),
            waits: of(&self.waits),
        }
    }
}

/// Adds to a counter.
fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Interval at which the thread polls the progress of forked children.
const LOOK_AT_CHILDREN: Duration = Duration::from_millis(10);

/// The name of the thread.
const THREAD: &str = "dlfs-exchange";

/// Timeout of dropping a store: longer than a read of a peer that does not answer.
const END_LIMIT: Duration = Duration::from_secs(10);
