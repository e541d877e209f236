//! The ids of each batch of an order, without reading samples, and the number of batches.

use std::sync::Arc;

use crate::error::Result;
use crate::order::{Shard, State};
use crate::prefetch::{LoaderOptions, Stream};
use crate::units::SampleId;

use super::Dataset;

/// The ids that a loader with the same options would read, batch by batch, without reading samples.
///
/// For frameworks that take ids from a sampler and then request the samples.
pub struct Sampler {
    dataset: Dataset,
    options: LoaderOptions,
    stream: Stream,
    share: Share,
    state: State,
}

impl Sampler {
    /// Ids along the order of `options`.
    ///
    /// # Errors
    /// As [`Dataset::loader`].
    pub fn new(dataset: &Dataset, options: LoaderOptions) -> Result<Sampler> {
        let options = dataset.image().located(options)?;
        let state = check(dataset, &options)?;
        let stream = Stream::new(Arc::clone(dataset.directory()), &options, &state)?;
        let share = Share::new(dataset, &options)?;
        Ok(Sampler { dataset: dataset.clone(), options, stream, share, state })
    }

    /// Replaces the content of `ids` by the ids of the next batch, and returns whether the batch ends the
    /// epoch. `None` after the last batch of the last epoch.
    ///
    /// # Errors
    /// `InvalidArgument`: the order is invalid for the data set.
    pub fn next(&mut self, ids: &mut Vec<SampleId>) -> Result<Option<bool>> {
        let Some(head) = self.stream.next_ids(ids)? else { return Ok(None) };
        (self.state.epoch, self.state.consumed) = head.after;
        Ok(Some(head.ends_epoch))
    }

    /// Moves to the start of `epoch`.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        let state = State { epoch: crate::units::Epoch(epoch), consumed: 0, ..self.state.clone() };
        self.set_state(&state)
    }

    /// The state after the last batch: a loader may resume from it too.
    pub fn state(&self) -> State {
        self.state.clone()
    }

    /// Resumes from `state`.
    ///
    /// # Errors
    /// As [`super::Loader::set_state`].
    pub fn set_state(&mut self, state: &State) -> Result<()> {
        let options = LoaderOptions { resume: Some(state.clone()), ..self.options.clone() };
        *self = Sampler::new(&self.dataset, options)?;
        Ok(())
    }

    /// Batches of a whole epoch on this rank.
    pub fn batches_per_epoch(&self) -> u64 {
        self.share.batches_after(0)
    }

    /// Batches left in the current epoch.
    pub fn batches_left(&self) -> u64 {
        self.share.batches_after(self.state.consumed)
    }
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("state", &self.state).finish_non_exhaustive()
    }
}

/// How many samples and batches one rank takes of an epoch.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    shard: Shard,
    len: u64,
    batch_size: u64,
    drop_short: bool,
}

impl Share {
    /// The share of the rank in `options`.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such rank.
    pub fn new(dataset: &Dataset, options: &LoaderOptions) -> Result<Share> {
        Share::of_len(options.epoch_len(dataset.len()), options)
    }

    /// The same, of epochs of `len` samples.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such rank.
    pub fn of_len(len: u64, options: &LoaderOptions) -> Result<Share> {
        let shard = Shard::new(options.rank, options.world_size, options.tail)?;
        let batch_size = (options.batch_size as u64).max(1);
        Ok(Share { shard, len, batch_size, drop_short: options.drop_short })
    }

    /// Batches of this rank in an epoch, after all ranks have consumed `consumed` samples of it.
    pub fn batches_after(&self, consumed: u64) -> u64 {
        let samples = self.shard.after(consumed).positions(self.len).remaining();
        match self.drop_short {
            true => samples / self.batch_size,
            false => samples.div_ceil(self.batch_size),
        }
    }

    /// Samples of this rank in an epoch, after all ranks have consumed `consumed` samples of it.
    pub fn samples_after(&self, consumed: u64) -> u64 {
        let samples = self.shard.after(consumed).positions(self.len).remaining();
        if self.drop_short { samples / self.batch_size * self.batch_size } else { samples }
    }
}

/// Checks `options` for `dataset`, and returns the state in which a run with them starts.
pub(super) fn check(dataset: &Dataset, options: &LoaderOptions) -> Result<State> {
    options.check()?;
    let start = Stream::start_state(dataset.directory(), options)?;
    Stream::new(Arc::clone(dataset.directory()), options, &start)?;
    Ok(start)
}
