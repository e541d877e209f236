//! The API that every language binding wraps: a data set that threads share, and loaders along an order.
//!
//! An [`Image`] is one open generation: its namespaces, superblocks and directory. A [`Dataset`] owns an
//! image and its readers, and adds what all bindings need: every method takes `&self` and may be called from
//! any thread; a call that waits asks its [`Watch`] at least every 100 ms, so that an interpreter can check
//! for signals; a forked child opens its own connections; a batch may outlive its reader. Orders, reads and retries
//! are decided below this module, except the batches of the first epoch over shards (`first_epoch.rs`).
//!
//! ```no_run
//! use dlfs::dataset::{Dataset, OnError, Options, Query};
//! use dlfs::order::{OrderKind, OrderSpec};
//! use dlfs::prefetch::LoaderOptions;
//! use dlfs::units::SampleId;
//!
//! # fn main() -> dlfs::Result<()> {
//! let dataset = Dataset::open(&["train.dlfs".parse()?], &Options::default(), &mut ())?;
//! let read = dataset.read(Query::Ids(&[SampleId(3)]), OnError::Raise, &mut ())?;
//! println!("{} bytes", read.batch.bytes(0).len());
//!
//! let order = OrderSpec { kind: OrderKind::Grouped { lanes: 8, group: 4 }, seed: 7 };
//! let loader = dataset.loader(LoaderOptions::new(order, 256, 2))?;
//! while let Some(batch) = loader.next(&mut ())? {
//!     println!("epoch {}, {} samples", batch.epoch(), batch.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Threads and forks
//! [`Dataset`], [`Loader`] and [`Batch`] are `Send` and `Sync`. Threads that read by id do so concurrently,
//! each with its own reader; threads that share a loader get different batches. A forked child may use all of
//! them: at first use it opens its own queue pairs, and a loader continues after the last batch that the
//! parent had received.
//!
//! Read this file first, then `open.rs`, `image.rs` and `loader.rs`. `shard_loader.rs` reads shards that were not
//! imported, `mixture.rs` several data sets as one, `tokens.rs` rows of tokens, `files.rs` samples as files.
//! `tiers.rs`, `peers.rs` and `store.rs` say where the bytes come from. `views.rs` selects samples, `verify.rs` checks
//! an image, and `cataloging.rs` adds one to a catalogue.

mod ahead;
mod background;
pub mod cataloging;
mod class_names;
mod counters;
mod files;
mod first_epoch;
mod image;
mod loader;
mod mixture;
mod open;
mod order_file;
mod peers;
mod places;
mod run_data;
mod sample_file;
mod sampler;
mod saved;
mod shard_loader;
mod store;
mod tiers;
mod tokens;
mod verify;
mod views;

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::address::Address;
use crate::cache::{Cache, CacheStats};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::import::{Progress, Stage};
use crate::metrics::{self, Histogram, Measured, Snapshot};
use crate::peers::{PeerStats, Peers};
use crate::prefetch::LoaderOptions;
use crate::process::Forked;
use crate::reader::{Batch, PieceTables, ReadStats, Reader, ReaderOptions};
use crate::registry::Registration;
use crate::threads::caught;
use crate::units::SampleId;

use background::{Background, in_background, is_abandoned};
use counters::Latencies;
use run_data::RunData;

pub use crate::reader::{OnError, Ranges, SampleRange, Watch};
pub use ahead::{Ahead, AheadStats};
pub use class_names::class_names;
pub use counters::sum_stats;
pub use files::{EpochCounts, FileBytes, FileCounters, FileCounts, Files};
pub use first_epoch::FirstEpoch;
pub use image::Image;
pub use loader::{Loader, Taken};
pub use mixture::Mixture;
pub use open::{OpenOptions, shard_set};
pub use order_file::OrderFile;
pub use places::{Place, PlaceKind, Places};
pub use sample_file::SampleFile;
pub use sampler::{Sampler, Share};
pub use saved::{check_page, load_state, save_page, save_state};
pub use shard_loader::{RunState, ShardLoader};
pub use tokens::{
    LongDocuments, RowPlan, SourceRows, TokenBatch, TokenLoader, TokenOptions, TokenPhase,
};
pub use verify::{Damage, VerifyOptions, VerifyReport};
pub use views::{ViewSource, save_views};

/// Options to open a [`Dataset`] and to read it by id.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Options of opening its image: connections, tiers, view, and the source of the directory.
    pub open: OpenOptions,
    /// Options of reads by id. Threads that read at the same time have a window of this size each.
    pub read: ReaderOptions,
}

/// An open data set. A clone is another handle to it.
#[derive(Clone)]
pub struct Dataset(Arc<Inner>);

struct Inner {
    image: Image,
    options: ReaderOptions,
    /// The readers of this process: a forked child makes new ones.
    readers: Arc<Forked<Readers>>,
    _metered: Registration,
}

/// Idle readers, and the counters of all readers.
#[derive(Default)]
struct Readers {
    /// Readers that no thread uses, at most [`MAX_IDLE_READERS`].
    idle: Mutex<Vec<Reader>>,
    stats: Mutex<ReadStats>,
    latencies: Latencies,
    /// Checksums of the pieces of large samples, which all readers share.
    pieces: Arc<PieceTables>,
}

impl Measured for Readers {
    fn measure(&self, snapshot: &mut Snapshot) {
        self.stats.lock().measure("id", snapshot);
        let latency = self.latencies.read();
        snapshot.durations(&metrics::READ_COMMAND_SECONDS, &["id"], &latency);
    }
}

/// The samples to read, by id or by name.
#[derive(Debug, Clone, Copy)]
pub enum Query<'a> {
    /// The samples with these ids.
    Ids(&'a [SampleId]),
    /// The samples with these names; if several samples share a name, the newest.
    Names(&'a [&'a [u8]]),
}

/// The result of one read.
#[derive(Debug)]
pub struct Read {
    /// The samples, in the order of the request.
    pub batch: Batch,
    /// Positions in the request that failed, ascending, with their errors. Empty with [`OnError::Raise`], which
    /// returns the first error instead.
    pub failures: Vec<(usize, Error)>,
}

impl Dataset {
    /// Opens the data set on `addresses`, which may be in any order.
    ///
    /// The names of samples are loaded when they are first needed.
    ///
    /// # Errors
    /// As [`Image::open`]; `InvalidArgument`: there are no addresses; `Interrupted`: `watch` interrupted it.
    pub fn open(
        addresses: &[Address],
        options: &Options,
        watch: &mut dyn Watch,
    ) -> Result<Dataset> {
        if addresses.is_empty() {
            return Err(invalid("a data set needs at least one address"));
        }
        let addresses = addresses.to_vec();
        let open = options.open.clone();
        let image = in_background(watch, None, move || Image::open(&addresses, &open))?;
        Ok(Dataset::from_image(image, options.read.clone()))
    }

    /// Makes a data set of an open image.
    pub fn from_image(image: Image, options: ReaderOptions) -> Dataset {
        let readers = Arc::new(Forked::new(Readers::default()));
        let _metered = Registration::new(&readers);
        Dataset(Arc::new(Inner { image, options, readers, _metered }))
    }

    /// The image.
    pub fn image(&self) -> &Image {
        &self.0.image
    }

    /// The directory, which answers questions about samples without I/O.
    pub fn directory(&self) -> &Arc<Directory> {
        self.0.image.directory()
    }

    /// The number of samples. If none was deleted, and the data set is no view, the ids are `0..len`.
    pub fn len(&self) -> u64 {
        self.directory().num_live()
    }

    /// Returns whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id of the sample at `index` in ascending order of ids.
    ///
    /// # Errors
    /// `NotFound`: there are fewer samples.
    pub fn id_at(&self, index: u64) -> Result<SampleId> {
        if index < self.len() {
            return Ok(self.directory().id_of_live(index));
        }
        let text = format!("there is no sample at index {index}, there are {}", self.len());
        Err(Error::new(ErrorKind::NotFound, text))
    }

    /// Loads the names, if they are not loaded yet.
    ///
    /// # Errors
    /// As [`Image::load_names`]; `Interrupted`: `watch` interrupted it.
    pub fn load_names(&self, watch: &mut dyn Watch) -> Result<()> {
        if self.directory().has_names() {
            return Ok(());
        }
        let image = self.0.image.clone();
        in_background(watch, None, move || image.load_names())
    }

    /// The sample called `name`.
    ///
    /// # Errors
    /// `NotFound`: there is none. As [`Dataset::load_names`].
    pub fn lookup(&self, name: &[u8], watch: &mut dyn Watch) -> Result<SampleId> {
        self.load_names(watch)?;
        self.0.image.lookup(name)
    }

    /// The name of the sample `id`.
    ///
    /// # Errors
    /// `NotFound`: there is no such sample. As [`Dataset::load_names`].
    pub fn name(&self, id: SampleId, watch: &mut dyn Watch) -> Result<Vec<u8>> {
        self.load_names(watch)?;
        let name = if self.directory().is_live(id) { self.directory().name(id)? } else { None };
        name.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such sample").sample(id))
    }

    /// Length of the sample in bytes, without I/O.
    ///
    /// # Errors
    /// `NotFound`: there is no such sample.
    pub fn len_bytes(&self, id: SampleId) -> Result<u32> {
        let len = self.directory().len_bytes(id);
        len.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such sample").sample(id))
    }

    /// The ids of the selected samples; [`NOBODY`] for a name that no sample has.
    ///
    /// # Errors
    /// As [`Dataset::load_names`].
    pub fn ids_of<'a>(
        &self,
        query: Query<'a>,
        watch: &mut dyn Watch,
    ) -> Result<Cow<'a, [SampleId]>> {
        let names = match query {
            Query::Ids(ids) => return Ok(ids.into()),
            Query::Names(names) => names,
        };
        self.load_names(watch)?;
        let found = names.iter().map(|name| Ok(self.directory().lookup(name)?.unwrap_or(NOBODY)));
        found.collect()
    }

    /// Reads samples on the calling thread, which polls until all have arrived.
    ///
    /// # Errors
    /// With [`OnError::Raise`], the error of the first sample that failed: `NotFound`, `Corrupt`,
    /// `Disconnected`. With every [`OnError`], `Interrupted`: `watch` interrupted the call; `Stale`: the
    /// image has a newer generation; `TimedOut`: the call's deadline passed; `OutOfMemory`. As
    /// [`Dataset::load_names`], if the samples are named. Errors of [`Image::reader`], if no reader is idle.
    pub fn read(&self, query: Query<'_>, on_error: OnError, watch: &mut dyn Watch) -> Result<Read> {
        let ids = &*self.ids_of(query, watch)?;
        if on_error == OnError::Raise
            && let Some(index) = ids.iter().position(|&id| !self.directory().is_live(id))
        {
            return Err(self.absent(query, index)); // before anything is read
        }
        let mut batch = Batch::new();
        let mut failures = self.with_reader(watch, |reader, watch| {
            reader.read_batch_watched(ids, &mut batch, watch)
        })?;
        for (index, error) in &mut failures {
            if error.kind() == ErrorKind::NotFound {
                *error = self.absent(query, *index);
            }
        }
        match on_error {
            OnError::Raise if !failures.is_empty() => return Err(failures.swap_remove(0).1),
            OnError::Skip if !failures.is_empty() => {
                failures.iter().for_each(|(index, _)| batch.clear_location(*index));
                batch.remove_missing();
            }
            _ => {}
        }
        Ok(Read { batch, failures })
    }

    /// Reads ranges of samples on the calling thread, which polls until all have arrived. Of a sample above 1 MiB it
    /// reads only the pieces that the range touches; once the whole sample, if the chunk lacks their checksums. Also
    /// returns the positions in the request that failed, ascending, with their errors.
    ///
    /// # Errors
    /// `Interrupted`: `watch` interrupted the call; `Stale`: the image has a newer generation; `TimedOut`: the
    /// call's deadline passed; `OutOfMemory`. Errors of [`Image::reader`], if no reader is idle.
    pub fn read_ranges(
        &self,
        ranges: &[SampleRange],
        watch: &mut dyn Watch,
    ) -> Result<(Ranges, Vec<(usize, Error)>)> {
        let mut out = Ranges::default();
        let failures = self.with_reader(watch, |reader, watch| {
            reader.read_ranges_watched(ranges, &mut out, watch)
        })?;
        Ok((out, failures))
    }

    /// Reads one range, as [`Dataset::read_ranges`] does.
    ///
    /// # Errors
    /// As [`Dataset::read_ranges`]; also the error of the range: `NotFound`, `Corrupt`, `Disconnected`.
    pub fn read_range(
        &self,
        id: SampleId,
        bytes: std::ops::Range<u64>,
        watch: &mut dyn Watch,
    ) -> Result<Ranges> {
        let range = SampleRange { id, start: bytes.start, end: bytes.end };
        let (read, mut failures) = self.read_ranges(&[range], watch)?;
        failures.pop().map_or(Ok(read), |(_, error)| Err(error))
    }

    /// Counters of reads by id in this process so far.
    pub fn stats(&self) -> ReadStats {
        *self.0.readers.get_or_init(Readers::default).stats.lock()
    }

    /// Latencies of the commands of reads by id in this process, from submission to completion.
    pub fn latency(&self) -> Histogram {
        self.0.readers.get_or_init(Readers::default).latencies.read()
    }

    /// Counters of the tiers so far; `None` without tiers.
    pub fn tier_stats(&self) -> Option<CacheStats> {
        self.image().tiers().map(Cache::stats)
    }

    /// Counters of reads from other nodes so far; `None` if the image is not read through their caches.
    pub fn peer_stats(&self) -> Option<PeerStats> {
        self.image().peers().map(Peers::stats)
    }

    /// Counters of the places that bytes came from so far; `None` without tiers.
    pub fn places(&self) -> Option<Places> {
        self.image().places()
    }

    /// A loader of batches along an order. Reads ahead from the first request on.
    ///
    /// # Errors
    /// `InvalidArgument`: the options contradict each other, or the state is of another image or order.
    /// `Stale`: the state is of another generation.
    pub fn loader(&self, options: LoaderOptions) -> Result<Loader> {
        Loader::of(RunData::dataset(self), options)
    }

    /// The error for position `index` of a request, whose id or name has no sample.
    fn absent(&self, query: Query<'_>, index: usize) -> Error {
        match query {
            Query::Names(names) => {
                let text = format!("there is no sample called {}", names[index].escape_ascii());
                Error::new(ErrorKind::NotFound, text).hint("dlfs ls lists the names")
            }
            Query::Ids(ids) => {
                let last = self.directory().num_samples().saturating_sub(1);
                Error::new(ErrorKind::NotFound, "there is no such sample")
                    .sample(ids[index])
                    .hint(format!("ids go from 0 to {last}"))
            }
        }
    }

    /// Calls `work` with a reader that no other thread uses meanwhile.
    fn with_reader<T>(
        &self,
        watch: &mut dyn Watch,
        work: impl FnOnce(&mut Reader, &mut dyn Watch) -> Result<T>,
    ) -> Result<T> {
        let readers = self.0.readers.get_or_init(Readers::default);
        let idle = readers.idle.lock().pop();
        let mut reader = match idle {
            Some(reader) => reader,
            None => {
                let image = self.0.image.clone();
                let options = self.0.options.clone();
                let deadline = Some(options.deadline);
                let mut reader = in_background(watch, deadline, move || image.reader(options))?;
                reader.share_pieces(&readers.pieces);
                readers.latencies.add(reader.recorder());
                reader
            }
        };
        let before = reader.stats();
        // A panic drops the reader, but does not end the caller's thread.
        let result = caught("reading by id", || work(&mut reader, watch))?;
        readers.stats.lock().add(before, reader.stats());
        let mut idle = readers.idle.lock();
        if idle.len() < MAX_IDLE_READERS {
            idle.push(reader);
        }
        result
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dataset").field("image", &self.0.image).finish_non_exhaustive()
    }
}

/// A watch also ends an import, a purge or a commit, between two of its steps.
impl Progress for &mut (dyn Watch + '_) {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}
    fn advance(&mut self, _: u64, _: u64) {}
    fn stop(&mut self) -> bool {
        !self.goes_on()
    }
}

/// An id that no sample has: there are at most 2^40 samples.
pub const NOBODY: SampleId = SampleId(u64::MAX);

/// The most idle readers that are kept: each holds queue pairs and a window.
const MAX_IDLE_READERS: usize = 16;
