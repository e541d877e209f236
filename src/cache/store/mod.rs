//! A rank's share of the samples, in its node's own storage: partial local shuffling (PLS).
//!
//! Under `local` and `partial` each rank has a share of the samples ([`Shares`]). A [`Store`] keeps the share of
//! one rank in a local file or in memory. It brings the share from the origin once, and from then on serves its
//! rank's reads alone. During an epoch a thread fetches, by ordinary reads, what will be the rank's own in the
//! next epoch from the stores of the ranks that have it; what has left is deleted once its new rank has it and
//! the epoch has ended.
//!
//! A store has the addresses of the data set: a page (4,096 bytes) lies at the offset that it has on its
//! namespace, in a sparse file. So a peer reads a sample from the store as it would from the origin, and a page
//! that is deleted is a hole. A page is served only while the store has it, and is complete or absent.
//!
//! Invariants:
//! - *Nothing is believed.* A sample is stored after its checksum was found right, and every reader compares it
//!   again. What lies in a store from an earlier run is read and compared before it is used.
//! - *Nothing is lost.* A sample is deleted only when the rank that gets it has said that it has it. It says so
//!   in the first page of its first namespace, where an image has a superblock: peers read that page like any
//!   other (`progress`), so reads are the only messages.
//! - *Room.* The next epoch's exchange begins when this epoch's samples have left. So a store never has more than
//!   (1 + q) of its share, besides the page at each sample's end.
//! - *The epoch's order does not change.* Received samples are read from the next epoch on; a read of a sample
//!   that has not arrived waits for it.
//!
//! Each rank has a store of its own. Ranks of one node use one folder, or its memory, and each has its own file in
//! it; they have one quota, of which each gets an equal part, as their shares are equal (`place`). One store with one
//! owner would save the copy of a sample that moves between two of them, at the price of an owner that the other
//! ranks depend on. Forked children of a rank's process read from its store, too (`board`).
//!
//! Read `media.rs` (bytes and presence), `device.rs` (reads), `fetch.rs`, then `exchange.rs` (the thread).

mod board;
mod device;
mod exchange;
mod fetch;
mod media;
mod place;
mod progress;
mod stats;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use crate::cache::TierSpec;
use crate::peers::rendezvous::Rendezvous;
use crate::peers::{ChunkPlaces, PeerOptions, Peers, Served, Serving};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::metrics::{Measured, Snapshot};
use dlfs_base::process::Forked;
use dlfs_base::registry::Registration;
use dlfs_base::threads::{self, Fate, Thread};
use dlfs_base::units::Epoch;
use dlfs_format::directory::{Directory, Intact};
use dlfs_io::qpair::Device;
use dlfs_order::order::{OrderSpec, Shares};

use board::{Board, Count, MAX_READERS};
pub use board::{Reader, Ticket};
use exchange::Exchange;
use media::Media;
use place::Place;
use stats::Counters;
pub use stats::{StoreCounts, StoreStats};

/// How a rank keeps its share.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The storage: `ram:SIZE`, or `file:FOLDER:SIZE`. The size is the most bytes of samples that all ranks of this
    /// node take there; each may take an equal part.
    pub spec: TierSpec,
    /// Exchanges nothing while an epoch runs, but all at its end: for comparison.
    pub blocking: bool,
    /// How long a late peer is waited for at an epoch's end, and one that cannot be reached at any time, before
    /// its samples are read from the origin.
    pub patience: Duration,
    /// How long the end of an epoch may wait for samples that neither peer nor origin delivers.
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
    /// The samples.
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
    shared: Arc<Shared>,
    devices: Vec<Arc<dyn Device>>,
    exchange: Arc<Mutex<Exchange>>,
    thread: Forked<Option<Thread>>,
    _metered: Registration,
}

/// State that the thread, the devices and the callers share.
struct Shared {
    media: Media,
    origins: Vec<Arc<dyn Device>>,
    /// The bytes of each namespace that hold samples: a read outside of them waits for nothing.
    chunks: ChunkPlaces,
    /// The positions of the loaders, and what else forked children share with this process.
    board: Board,
    /// The progress that peers read in the first page.
    progress: Mutex<progress::Progress>,
    counters: Counters,
    /// The process that stores and exchanges; forked children only read.
    home: Forked<()>,
    stop: AtomicBool,
    /// A message in it says that there is something to do.
    call: Sender<()>,
    called: Receiver<()>,
    fate: Fate,
}

/// Progress of staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Staged {
    /// Samples of the share.
    pub samples: u64,
    /// Samples that the store has.
    pub done: u64,
    /// Samples that it had before, checked.
    pub found: u64,
    /// Bytes of the pages that were brought.
    pub bytes: u64,
}

/// The other ranks of a job, and where they meet.
pub struct Meet<'a> {
    /// How this rank joins.
    pub options: &'a PeerOptions,
    /// The place where they meet.
    pub rendezvous: &'a mut dyn Rendezvous,
    /// A hash of what must be the same on all ranks.
    pub order: u64,
}

impl Store {
    /// Opens the store and joins the other ranks; `meet` is `None` if there are none.
    ///
    /// # Errors
    /// `InvalidArgument`: the order gives ranks no shares, the quota is smaller than (1 + q) of the share, the
    /// place is no folder, or the data set is a plain folder, whose checksums are not known in advance.
    /// `Unsupported`: the file system cannot free parts of a file. `Busy`: another process has this rank's
    /// store. Those of [`Peers::join`].
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
        let shared = Arc::new(Shared {
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
        let devices = device::devices(&shared, None);
        let mut peers = None;
        let mut near = Vec::new();
        if let Some(meet) = meet {
            let place = Place::here(meet.options.node.as_deref(), &options.spec);
            let joined =
                Arc::new(join(directory, &intact, &shared, &devices, meet, place.name(rank))?);
            let records = joined.round().records().iter();
            let places: Vec<_> = records.map(|record| Place::from_name(&record.host)).collect();
            let sharing = places.iter().filter(|other| other.as_ref() == Some(&place)).count();
            shared.media.share_quota(sharing as u64, most_pages, &options.spec)?;
            let is_near = |other: Option<Place>| other.is_some_and(|it| it.is_on_node_of(&place));
            near = places.into_iter().map(is_near).collect();
            peers = Some(joined);
        }
        let exchange = Exchange::new(exchange::Parts {
            shared: Arc::clone(&shared),
            directory: Arc::clone(directory),
            shares,
            rank,
            last: epochs.end.saturating_sub(1),
            peers: peers.clone(),
            near,
            options,
        });
        let exchange = Arc::new(Mutex::new(exchange));
        let thread = Store::start(Arc::clone(&shared), Arc::clone(&exchange))?;
        let thread = Forked::new(Some(thread));
        let _metered = Registration::new(&shared);
        Ok((Store { order, rank, shared, devices, exchange, thread, _metered }, peers))
    }

    /// The namespaces of the data set as this rank reads them: from its store alone.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The reader of this store that rank `rank` of `world_size` in `order` is, if it is one: the store's own rank,
    /// or one of several that share its batches.
    pub fn reader(&self, order: &OrderSpec, rank: u32, world_size: u32) -> Option<Reader> {
        let ranks = order.kind.world_size()?;
        let is_its_own = self.order == *order && rank % ranks == self.rank;
        let reader = Reader { number: rank / ranks, of: world_size / ranks };
        let is_one = reader.number < reader.of && reader.of <= MAX_READERS;
        (is_its_own && is_one && world_size.is_multiple_of(ranks)).then_some(reader)
    }

    /// Brings the share of `epoch` into the store, of which this rank has taken `taken` samples, and begins to
    /// exchange. What lies there is checked, and only the rest is fetched: from the origin, or from a rank that
    /// has it. Does nothing if the store has come to that epoch by itself. In a forked child it asks the store's
    /// process to do that, and returns at once: reads wait for what has not come. Who began as this reader before
    /// loses its place, by [`Store::check_place`].
    ///
    /// # Errors
    /// Those of reading the origin; `NoSpace`: the file system is full. `Interrupted`: `goes_on` said no.
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

    /// `reader` has delivered a batch: now it is in `epoch`, and the rank has taken `taken` samples. Ignored if
    /// another one has begun as this reader: [`Store::check_place`].
    pub fn delivered(&self, reader: Reader, ticket: Ticket, epoch: Epoch, taken: u64) {
        self.shared.board.delivered(reader, ticket, epoch, taken);
        self.shared.notify();
    }

    /// Checks that nobody else has begun as `reader` since `ticket`: two at one place would delete what the other
    /// still reads.
    ///
    /// # Errors
    /// `Busy`: somebody has.
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

    /// The number of samples that were brought before an epoch so far, by any process: it shows that something
    /// moves.
    pub fn staged(&self) -> u64 {
        self.shared.board.get(Count::Staged)
    }

    /// Why the exchange cannot go on: reads of samples that have not arrived fail.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure()
    }

    /// Returns whether this process stores and exchanges, and so counts; forked children only read.
    pub fn is_home(&self) -> bool {
        self.shared.home.get().is_some()
    }

    /// Counters so far.
    pub fn stats(&self) -> StoreStats {
        self.shared.counters.read(&self.shared.media)
    }

    fn start(shared: Arc<Shared>, exchange: Arc<Mutex<Exchange>>) -> Result<Thread> {
        let fate = shared.fate.clone();
        threads::start(THREAD, &fate, (), move |()| {
            while !shared.is_stopping() {
                let pause = exchange.lock().turn();
                // Children do not call this thread: it looks what they have done.
                let has_children = shared.board.get(Count::Asked) > 0;
                let pause = if has_children { pause.min(LOOK_AT_CHILDREN) } else { pause };
                let _ = shared.called.recv_timeout(pause); // it is time, or somebody has called
            }
        })
    }
}

impl Measured for Shared {
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

impl Shared {
    fn notify(&self) {
        if self.home.get().is_some() {
            let _ = self.call.try_send(()); // a message that is there will do
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

/// The shares of a run that can be kept. Refuses a job of several ranks that have no way to exchange.
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
    shared: &Arc<Shared>,
    devices: &[Arc<dyn Device>],
    meet: Meet<'_>,
    node: String,
) -> Result<Peers> {
    let served = Served {
        directory,
        intact: Arc::clone(intact),
        cache: devices,
        views: Box::new(|nguids| device::devices(shared, Some(nguids))),
        // The order decides what a rank serves, not the round.
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

/// How often the thread looks how far forked children are.
const LOOK_AT_CHILDREN: Duration = Duration::from_millis(10);

/// The name of the thread.
const THREAD: &str = "dlfs-exchange";

/// How long dropping a store waits for the thread: as long as reads of a peer that does not answer.
const END_LIMIT: Duration = Duration::from_secs(10);
