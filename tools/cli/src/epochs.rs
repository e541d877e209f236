//! Takes batches from a loader until it ends or is stopped.

use std::borrow::Borrow;
use std::time::Instant;

use dlfs::dataset::Loader;
use dlfs::directory::Directory;
use dlfs::reader::Batch;
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use crate::exit::Failure;
use crate::progress::Meter;
use crate::rows::RowsRead;
use crate::run_stats::RunStats;

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The last batch of the last epoch was delivered.
    Complete,
    /// The run was stopped between two batches.
    Stopped,
}

/// Checks that everything in the order was delivered. A loader that ends without an error should have done
/// so; commands check nevertheless.
///
/// # Errors
/// `Internal`: samples are missing.
pub(crate) fn check_complete(delivered: u64, owed: u64) -> Result<(), Error> {
    if delivered == owed {
        return Ok(());
    }
    let text = format!("the run ended after {delivered} samples, and the order has {owed}");
    Err(Error::new(ErrorKind::Internal, text).hint("this is a bug in dlfs: please report it"))
}

/// The number of samples, up to `most`, that fit in `most_bytes` if all are as long as the longest of every
/// `step`th sample.
pub(crate) fn samples_within(
    directory: &Directory,
    step: usize,
    most: usize,
    most_bytes: u64,
) -> usize {
    let ids = (0..directory.num_samples()).step_by(step.max(1)).map(SampleId);
    let longest = ids.filter_map(|id| directory.len_bytes(id)).max().unwrap_or(0);
    (most_bytes / u64::from(longest).max(1)).clamp(1, most as u64) as usize
}

/// Checks that there is something to read.
///
/// # Errors
/// `NotFound`: the data set is empty.
pub(crate) fn check_some(directory: &Directory) -> Result<(), Error> {
    if directory.num_live() > 0 {
        return Ok(());
    }
    let text = "there is no sample to read: all of the data set are deleted";
    Err(Error::new(ErrorKind::NotFound, text))
}

/// The ids of a batch. In a mixture, the number of the data set is in the upper bits, as in Python's keys.
pub(crate) fn keys(batch: &Batch) -> impl Iterator<Item = u64> + '_ {
    let sources = batch.sources();
    let source = move |at: usize| sources.map_or(0, |sources| u64::from(sources[at]));
    batch.ids().enumerate().map(move |(at, id)| source(at) << ID_BITS | id.0)
}

/// A data set has at most 2^40 samples.
const ID_BITS: u32 = 40;

/// The batches of a run, one at a time.
pub(crate) trait Batches {
    /// The loader behind them.
    fn loader(&self) -> &Loader;

    /// Waits for the next batch; `false` at the end.
    ///
    /// # Errors
    /// Errors of the loader.
    fn take(&mut self) -> Result<bool, Error>;

    /// The samples of the batch.
    fn samples(&self) -> &Batch;

    /// Makes of the batch what a job uses.
    ///
    /// # Errors
    /// The samples cannot be used so.
    fn unpack(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// The rows so far, if batches are rows of tokens.
    fn rows(&self) -> Option<RowsRead> {
        None
    }
}

/// Batches of samples.
pub(crate) struct Samples<L> {
    loader: L,
    batch: Batch,
}

impl<L: Borrow<Loader>> Samples<L> {
    pub(crate) fn of(loader: L) -> Samples<L> {
        Samples { loader, batch: Batch::new() }
    }
}

impl<L: Borrow<Loader>> Batches for Samples<L> {
    fn loader(&self) -> &Loader {
        self.loader.borrow()
    }

    fn take(&mut self) -> Result<bool, Error> {
        self.loader.borrow().next_into(&mut self.batch, &mut ())
    }

    fn samples(&self) -> &Batch {
        &self.batch
    }
}

/// Takes batches until the end, or until `each` returns `false`. `each` receives every batch, and
/// the loader with the state after it.
///
/// # Errors
/// Errors of the loader and of `each`.
pub(crate) fn read_batches(
    batches: &mut dyn Batches,
    stats: &mut RunStats,
    meter: &mut Meter,
    mut each: impl FnMut(&mut RunStats, &Batch, &Loader) -> Result<bool, Failure>,
) -> Result<End, Failure> {
    let mut samples = 0;
    let mut bytes = 0;
    loop {
        let asked = Instant::now();
        if !batches.take()? {
            return Ok(End::Complete);
        }
        let waited = asked.elapsed();
        batches.unpack()?;
        let batch = batches.samples();
        let batch_bytes = (0..batch.len()).map(|index| batch.bytes(index).len() as u64).sum();
        stats.batch(keys(batch), batch_bytes, waited);
        samples += batch.len() as u64;
        bytes += batch_bytes;
        meter.update(samples, bytes);
        if !each(stats, batch, batches.loader())? {
            return Ok(End::Stopped);
        }
    }
}
