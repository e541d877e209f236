//! Takes batches from a loader until it ends or is stopped.

use std::time::Instant;

use dlfs::dataset::Loader;
use dlfs::directory::Directory;
use dlfs::reader::Batch;
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind};

use crate::exit::Failure;
use crate::progress::Meter;
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
fn keys(batch: &Batch) -> impl Iterator<Item = u64> + '_ {
    let sources = batch.sources();
    let source = move |at: usize| sources.map_or(0, |sources| u64::from(sources[at]));
    batch.ids().enumerate().map(move |(at, id)| source(at) << ID_BITS | id.0)
}

/// A data set has at most 2^40 samples.
const ID_BITS: u32 = 40;

/// Takes batches until the end, or until `each` returns `false`. `each` receives every batch, and
/// the loader with the state after it.
///
/// # Errors
/// Errors of the loader and of `each`.
pub(crate) fn read_batches(
    loader: &Loader,
    stats: &mut RunStats,
    meter: &mut Meter,
    mut each: impl FnMut(&mut RunStats, &Batch, &Loader) -> Result<bool, Failure>,
) -> Result<End, Failure> {
    let mut batch = Batch::new();
    let mut samples = 0;
    let mut bytes = 0;
    loop {
        let asked = Instant::now();
        if !loader.next_into(&mut batch, &mut ())? {
            return Ok(End::Complete);
        }
        let waited = asked.elapsed();
        let batch_bytes = (0..batch.len()).map(|index| batch.bytes(index).len() as u64).sum();
        stats.batch(keys(&batch), batch_bytes, waited);
        samples += batch.len() as u64;
        bytes += batch_bytes;
        meter.update(samples, bytes);
        if !each(stats, &batch, loader)? {
            return Ok(End::Stopped);
        }
    }
}
