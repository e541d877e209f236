//! The ids of each batch of an order, and the number of batches, without reading samples.

use std::sync::Arc;

use super::Dataset;
use super::run_data::{Batches, RunData};
use crate::error::Result;
use crate::order::{Shard, State};
use crate::prefetch::{BatchCounts, LoaderOptions};
use crate::units::{Epoch, SampleId};

/// The ids that a loader with the same options would read, batch by batch, without reading samples.
///
/// For frameworks that take ids from a sampler and then request the samples.
pub struct Sampler {
    data: RunData,
    options: LoaderOptions,
    batches: Batches,
    share: Share,
    state: State,
    /// True if the last batch was not the epoch's last; false before the first batch from a state.
    has_more: bool,
    /// The source of each sample of the last batch; empty over a single data set.
    sources: Vec<u32>,
}

impl Sampler {
    /// Ids along the order of `options`.
    ///
    /// # Errors
    /// As [`Dataset::loader`].
    pub fn new(dataset: &Dataset, options: LoaderOptions) -> Result<Sampler> {
        let data = RunData::dataset(dataset);
        let options = data.prepared(options)?;
        Sampler::of(data, options)
    }

    /// Ids of a run over `data`, with options from [`RunData::prepared`].
    pub(super) fn of(data: RunData, options: LoaderOptions) -> Result<Sampler> {
        let state = data.start(&options)?;
        let share = Share::of(&data, &options)?;
        let batches = Batches::new(&data, &options, &state)?;
        let sources = Vec::new();
        Ok(Sampler { data, options, batches, share, state, has_more: false, sources })
    }

    /// Moves to a state that this sampler was in before, without checking it.
    pub(super) fn go_to(&mut self, state: State) -> Result<()> {
        self.batches = Batches::new(&self.data, &self.options, &state)?;
        (self.state, self.has_more) = (state, false);
        Ok(())
    }

    /// Replaces the content of `ids` by the ids of the next batch, and returns whether the batch ends the
    /// epoch. `None` after the last batch of the last epoch.
    ///
    /// # Errors
    /// `InvalidArgument`: the order is invalid for the data set.
    pub fn next(&mut self, ids: &mut Vec<SampleId>) -> Result<Option<bool>> {
        let Some(head) = self.batches.next(ids, &mut self.sources)? else { return Ok(None) };
        self.state.move_to(head.after, head.place);
        self.has_more = !head.ends_epoch;
        Ok(Some(head.ends_epoch))
    }

    /// The source of each sample of the last batch, counted from 0 in the mixture; empty over a single data set.
    pub fn sources(&self) -> &[u32] {
        &self.sources
    }

    /// Moves to the start of `epoch`.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        let mut state = self.state.clone();
        state.move_to((Epoch(epoch), 0), None);
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
        *self = Sampler::of(self.data.clone(), options)?;
        Ok(())
    }

    /// Batches of a whole epoch on this rank; with a budget, counted for the current epoch from the lengths
    /// of all its samples.
    pub fn batches_per_epoch(&self) -> u64 {
        self.share.batches_after(&State { consumed: 0, ..self.state.clone() })
    }

    /// Batches left in the current epoch.
    pub fn batches_left(&self) -> u64 {
        self.share.batches_after(&self.state)
    }

    /// Returns whether any batches are left in the current epoch.
    pub fn has_batches_left(&self) -> bool {
        self.has_more || self.share.has_batch_after(&self.state)
    }
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("state", &self.state).finish_non_exhaustive()
    }
}

/// The samples and batches of an epoch that one rank takes.
#[derive(Debug, Clone)]
pub struct Share {
    shard: Shard,
    /// Samples of an epoch.
    len: u64,
    batch_size: u64,
    /// True if a short last batch is dropped.
    drop_short: bool,
    /// Counts of batches by a budget, which differ between epochs; `None` without a budget.
    budgeted: Option<Arc<BatchCounts>>,
}

impl Share {
    pub(super) fn of(data: &RunData, options: &LoaderOptions) -> Result<Share> {
        let shard = Shard::new(options.rank, options.world_size, options.tail)?;
        let counts = BatchCounts::new(data.directory(), data.mix.as_ref(), options)?;
        let budgeted = counts.map(Arc::new);
        let batch_size = (options.batch_size as u64).max(1);
        let len = data.len(options);
        Ok(Share { shard, len, batch_size, drop_short: options.drop_short, budgeted })
    }

    /// The share of the rank in `options`.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such rank, or the budget is invalid.
    pub fn new(dataset: &Dataset, options: &LoaderOptions) -> Result<Share> {
        Share::of(&RunData::dataset(dataset), options)
    }

    /// Batches of this rank from `at` to the end of its epoch.
    ///
    /// With a budget, the first call for an epoch draws the whole epoch, in some 100 ns a sample.
    pub(crate) fn batches_after(&self, at: &State) -> u64 {
        if let Some(counts) = &self.budgeted {
            // All lengths were checked when the loader was made, so an error means that no batch begins there.
            let left = counts.batches_after(at).unwrap_or(0);
            return Shard { consumed: 0, ..self.shard }.positions(left).remaining();
        }
        let samples = self.shard.after(at.consumed).positions(self.len).remaining();
        if self.drop_short { samples / self.batch_size } else { samples.div_ceil(self.batch_size) }
    }

    /// Returns whether this rank has a batch between `at` and the end of its epoch, without counting them.
    pub(crate) fn has_batch_after(&self, at: &State) -> bool {
        match &self.budgeted {
            None => self.batches_after(at) > 0,
            Some(counts) if self.shard.world_size == 1 && !counts.has_rows() => {
                at.consumed < self.len
            }
            // The error is as in `batches_after`.
            Some(counts) => counts.has_batch(at).unwrap_or(false),
        }
    }

    /// The counts of an epoch; `None` without a budget.
    pub(super) fn counts(&self) -> Option<&BatchCounts> {
        self.budgeted.as_deref()
    }

    /// Samples of this rank from `at` to the end of its epoch. With rows of tokens, or with a budget and several ranks,
    /// it draws all remaining batches.
    pub fn samples_after(&self, at: &State) -> u64 {
        let samples = self.shard.after(at.consumed).positions(self.len).remaining();
        if let Some(counts) = &self.budgeted {
            return match self.shard.world_size {
                1 if !counts.has_rows() => self.len.saturating_sub(at.consumed),
                // The error is as in `batches_after`.
                _ => counts.samples_after(at).unwrap_or(0),
            };
        }
        if self.drop_short { samples / self.batch_size * self.batch_size } else { samples }
    }
}
