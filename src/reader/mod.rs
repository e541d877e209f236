//! Turns a batch of samples into few large reads, and the reads into verified bytes.
//!
//! [`Reader`] reads batches of ids on the caller's thread; `prefetch` drives the same parts along an
//! order on a thread of its own. The path is `plan` (which reads), `pump` (submit, poll), `in_flight`
//! (verify) and `batch` (where each sample's bytes are). Nothing here knows which engine moves the blocks.
//!
//! The path of a batch in grouped order over TCP, from ids to the wire and back; all but the last step on the
//! poller's thread:
//!
//! ```text
//!  1  order/mod.rs          EpochOrder::picks     positions of the batch -> chunk, and place in the chunk
//!  2  prefetch/chunks.rs    ChunkDriver::advance  asks for the chunks that planned batches lack
//!  3  reader/plan.rs        plan_chunk            ids and extents of a chunk -> one range, in parts
//!  4  reader/pump.rs        Pump::start           cuts the chunk's memory into a window for each part
//!  5  reader/pump.rs        Pump::submit          gives the queue pair all reads that it has room for
//!  6  tcp/host.rs           Connection::submit    a slot, and a command capsule in what is to be sent
//!  7  qpair/tcp/link.rs     send                  one sendmsg for the burst            -> the wire
//!  8  qpair/tcp/link.rs     receive               readv, straight into the windows     <- the wire
//!  9  tcp/host.rs           Connection::complete  the response ends the command
//! 10  reader/in_flight.rs   InFlight::verify_part compares the checksum of each sample of the part
//! 11  prefetch/chunks.rs    ChunkDriver::assemble places of samples in chunks that are here -> the batch
//! 12  dataset/loader.rs     Loader::next          the caller's thread takes it
//! ```
//!
//! Invariants: bytes that a batch shows have had their checksum compared; a run of memory has one
//! owner, the pump while it is read and the batch afterwards; nothing is allocated per sample.
//!
//! Read `pump.rs` first.

mod batch;
mod in_flight;
mod plan;
mod pump;
mod range;
mod stale;
#[cfg(feature = "unverified")]
pub mod unverified;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buf::{HugePages, IoBuf, Pool, PoolOptions};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Extent;
use crate::process::Forked;
use crate::qpair::Device;
use crate::units::{Epoch, SampleId, Slot, deadline};

pub use batch::{Batch, Sample};
pub use pump::ReadStats;
pub use watch::Watch;

pub(crate) use batch::Place;
pub(crate) use plan::{Fetch, Geometry, Merge, Wanted, plan_chunk, plan_samples, plan_whole_chunk};
pub(crate) use pump::{Fetched, Pump};
pub(crate) use range::read_range;
pub(crate) use stale::{moved_on, read_copies};
pub(crate) use watch::{TICK, interrupted, timed_out};

/// How a [`Reader`] works.
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    /// Memory for batches, in bytes; a batch that needs more gets it from the system, with a warning.
    pub window_bytes: usize,
    /// Queue pairs a namespace.
    pub queue_pairs: usize,
    /// The most commands outstanding at a time; `None`: what the queues hold.
    pub max_outstanding: Option<usize>,
    /// The longest that one call may take.
    pub deadline: Duration,
    /// Whether to burn a core rather than sleep while waiting.
    pub busy_poll: bool,
}

impl Default for ReaderOptions {
    fn default() -> ReaderOptions {
        ReaderOptions {
            window_bytes: 64 << 20,
            queue_pairs: 1,
            max_outstanding: None,
            deadline: Duration::from_secs(60),
            busy_poll: false,
        }
    }
}

/// What becomes of a sample that is not there or cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The call fails with the error of the first such sample; a loader fails from then on.
    #[default]
    Raise,
    /// The batch comes without it. A loader warns and counts it; where the image has moved on, that is
    /// an error all the same.
    Skip,
    /// It keeps its place in the batch, without bytes: for reads by id, a loader refuses it.
    Blank,
}

/// Reads batches of samples by id, on the caller's thread.
pub struct Reader {
    directory: Arc<Directory>,
    devices: Vec<Arc<dyn Device>>,
    pump: Option<Forked<Pump>>,
    pool: Pool,
    geometry: Vec<Geometry>,
    options: ReaderOptions,
    slots: Vec<Slot>,
    extents: Vec<Option<Extent>>,
    wanted: Vec<Wanted>,
    fetches: Vec<Fetch>,
    spare: Vec<Fetch>,
    warned: bool,
    next_token: u64,
}

impl Reader {
    /// A reader of the image whose namespaces `devices` are, in the superblock's order.
    ///
    /// # Errors
    /// Those of opening queue pairs, and `OutOfMemory` for the window.
    pub fn new(
        directory: Arc<Directory>,
        devices: Vec<Arc<dyn Device>>,
        options: ReaderOptions,
    ) -> Result<Reader> {
        let pool = Pool::new(PoolOptions {
            bytes: options.window_bytes.max(SLOT_LEN_BYTES),
            slot_len_bytes: SLOT_LEN_BYTES,
            huge_pages: HugePages::Auto,
        })?;
        let mut reader = Reader {
            directory,
            devices,
            pump: None,
            pool,
            geometry: Vec::new(),
            options,
            slots: Vec::new(),
            extents: Vec::new(),
            wanted: Vec::new(),
            fetches: Vec::new(),
            spare: Vec::new(),
            warned: false,
            next_token: 0,
        };
        reader.open_pump()?;
        Ok(reader)
    }

    /// What was moved so far.
    pub fn stats(&self) -> ReadStats {
        self.pump.as_ref().and_then(Forked::get).map_or_else(ReadStats::default, Pump::stats)
    }

    /// Reads the samples named by `ids` into `batch`, in the order of `ids`.
    ///
    /// Polls on the calling thread until all have arrived. Allocates only while `batch` still grows.
    ///
    /// # Errors
    /// `NotFound`: an id is not in the directory, or deleted; nothing was read. `Corrupt`: a checksum
    /// still differs after reading again; the error names the sample and its LBA. `Stale`: the image
    /// has moved on. `TimedOut`, `Disconnected`: as the connection options say.
    pub fn read_batch(&mut self, ids: &[SampleId], batch: &mut Batch) -> Result<()> {
        let mut failures = self.read_batch_each(ids, batch)?;
        match failures.is_empty() {
            true => Ok(()),
            false => {
                batch.reset(&self.directory, Epoch(0));
                Err(failures.swap_remove(0).1)
            }
        }
    }

    /// As [`Reader::read_batch`], but a sample that cannot be read costs only itself: the result names
    /// the positions in `ids` that failed, in rising order, and why; they are empty in `batch`.
    ///
    /// # Errors
    /// `NotFound`, `TimedOut`, `OutOfMemory`: the call as a whole failed.
    pub fn read_batch_each(
        &mut self,
        ids: &[SampleId],
        batch: &mut Batch,
    ) -> Result<Vec<(usize, Error)>> {
        if let Some(&id) = ids.iter().find(|&&id| !self.directory.is_live(id)) {
            batch.reset(&self.directory, Epoch(0));
            return Err(not_in_directory(&self.directory, id));
        }
        self.read_batch_watched(ids, batch, &mut ())
    }

    /// As [`Reader::read_batch_each`], but an id that there is no sample for costs only itself too,
    /// and `watch` sees each sample come and may end the call.
    ///
    /// # Errors
    /// `Interrupted`: `watch` ended it. `TimedOut`, `OutOfMemory`: the call as a whole failed.
    pub fn read_batch_watched(
        &mut self,
        ids: &[SampleId],
        batch: &mut Batch,
        watch: &mut dyn Watch,
    ) -> Result<Vec<(usize, Error)>> {
        self.notice_fork()?;
        batch.reset(&self.directory, Epoch(0));
        let mut failures = self.plan(ids);
        batch.expect(ids.len());
        for (index, &id) in ids.iter().enumerate() {
            batch.place(index, Place { id, piece: 0, len_bytes: 0, offset: 0 });
        }
        let deadline = deadline(Instant::now(), self.options.deadline);
        let first_token = self.next_token;
        let mut next_tick = Instant::now() + TICK;
        let mut fetches = std::mem::take(&mut self.fetches);
        for fetch in fetches.drain(..) {
            let run = self.take(fetch.len_bytes)?;
            self.next_token += 1;
            let token = self.next_token;
            self.pump()?.start(token, fetch, run);
        }
        self.fetches = fetches;
        while self.pump()?.in_flight() > 0 {
            let now = Instant::now();
            let moved = self.pump()?.turn(now);
            while let Some(fetched) = self.pump()?.next_finished() {
                place_fetched(&fetched, batch);
                let mut failed = fetched.failures.iter().map(|(index, _)| *index).peekable();
                for (index, sample) in fetched.fetch.samples.iter().enumerate() {
                    if failed.next_if_eq(&index).is_none() {
                        watch.arrived(batch, sample.index as usize);
                    }
                }
                let Fetched { mut fetch, failures: why, .. } = fetched;
                let why = why.into_iter();
                failures.extend(why.map(|(index, e)| (fetch.samples[index].index as usize, e)));
                fetch.clear();
                self.spare.push(fetch);
            }
            if now >= next_tick {
                next_tick = now + TICK;
                if !watch.goes_on() {
                    self.abandon_since(first_token);
                    return Err(interrupted());
                }
            }
            if self.pump()?.in_flight() > 0 {
                if now >= deadline {
                    self.abandon_since(first_token);
                    return Err(timed_out(self.options.deadline, &self.devices));
                }
                if !moved {
                    self.pump()?.wait(deadline.min(next_tick));
                }
            }
        }
        failures.sort_by_key(|(index, _)| *index);
        if failures.iter().any(|(_, error)| error.kind() == ErrorKind::Corrupt) {
            let until = deadline.min(Instant::now() + CHECK_LIMIT);
            let directory = Arc::clone(&self.directory);
            if let Some(stale) = moved_on(self.pump()?, &directory, until) {
                return Err(stale);
            }
        }
        Ok(failures)
    }

    /// Plans the reads; returns the positions of ids that there is no sample for.
    fn plan(&mut self, ids: &[SampleId]) -> Vec<(usize, Error)> {
        let mut absent = Vec::new();
        self.wanted.clear();
        self.extents.clear();
        self.directory.extents(ids, &mut self.slots, &mut self.extents);
        for (index, (&id, &extent)) in ids.iter().zip(&self.extents).enumerate() {
            match extent {
                Some(extent) => self.wanted.push(Wanted { index: index as u32, id, extent }),
                None => absent.push((index, not_in_directory(&self.directory, id))),
            }
        }
        let merge =
            if self.options.max_outstanding == Some(1) { Merge::Never } else { Merge::Neighbours };
        let (wanted, spare, out) = (&mut self.wanted, &mut self.spare, &mut self.fetches);
        plan_samples(wanted, &self.geometry, merge, RUN_LEN_BYTES, spare, out);
        absent
    }

    /// Memory for a run: from the window, or, where that is too small, from the system.
    fn take(&mut self, len: usize) -> Result<IoBuf> {
        if let Some(run) = self.pool.take(len) {
            return Ok(run);
        }
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                window_bytes = self.options.window_bytes,
                "batches need more memory than the window has; the rest comes from outside it"
            );
        }
        Ok(IoBuf::temporary(len))
    }

    /// Lets what was asked for after `token` come to nothing.
    fn abandon_since(&mut self, token: u64) {
        let last = self.next_token;
        if let Some(pump) = self.pump.as_mut().and_then(Forked::get_mut) {
            (token + 1..=last).for_each(|token| pump.abandon(token));
        }
    }

    /// A child of a fork must not touch its parent's queue pairs: it opens its own.
    fn notice_fork(&mut self) -> Result<()> {
        if self.pump.as_ref().is_some_and(Forked::is_ours) {
            return Ok(());
        }
        self.pump = None;
        self.open_pump()
    }

    fn open_pump(&mut self) -> Result<()> {
        let mut pump = Pump::new(&self.devices, self.options.queue_pairs, self.options.busy_poll)?;
        if let Some(max) = self.options.max_outstanding {
            pump.limit_outstanding(max);
        }
        pump.learn(&self.directory);
        pump.use_pool(&self.pool);
        self.geometry = pump.geometry();
        self.pump = Some(Forked::new(pump));
        Ok(())
    }

    fn pump(&mut self) -> Result<&mut Pump> {
        self.pump.as_mut().and_then(Forked::get_mut).ok_or_else(|| {
            Error::new(
                ErrorKind::Disconnected,
                "the queue pairs could not be opened again after a fork",
            )
        })
    }
}

/// Puts the samples of a run into the batch; those that failed are empty there.
pub(crate) fn place_fetched(fetched: &Fetched, batch: &mut Batch) {
    let piece = batch.add_piece(fetched.run.clone());
    for sample in &fetched.fetch.samples {
        let place =
            Place { id: sample.id, piece, len_bytes: sample.len_bytes, offset: sample.run_offset };
        batch.place(sample.index as usize, place);
    }
    for (index, _) in &fetched.failures {
        let sample = &fetched.fetch.samples[*index];
        batch.place(sample.index as usize, Place { id: sample.id, piece, len_bytes: 0, offset: 0 });
    }
}

fn not_in_directory(directory: &Directory, id: SampleId) -> Error {
    let text = if id.0 < directory.num_samples() {
        "the sample was deleted"
    } else {
        "there is no such sample"
    };
    let last = directory.num_samples().saturating_sub(1);
    Error::new(ErrorKind::NotFound, text).sample(id).hint(format!("ids go from 0 to {last}"))
}

/// A slot of the pool: small enough that a tiny batch wastes little, large enough that a run is few.
pub(crate) const SLOT_LEN_BYTES: usize = 64 << 10;

/// About how much memory samples of one batch share: fewer, larger runs are harder to find free.
pub(crate) const RUN_LEN_BYTES: usize = 4 << 20;

/// How long a look at the superblocks may take that tells damage from another generation.
pub(crate) const CHECK_LIMIT: Duration = Duration::from_secs(5);
