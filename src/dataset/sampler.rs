//! The ids of each batch of an order, and the number of batches, without reading samples.
//!
//! The data that a loader or sampler runs over: a data set, or a mixture of several.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Dataset, Query, Read};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::{Shard, State};
use crate::prefetch::{
    BatchCounts, Head, LoaderOptions, Mix, MixIds, Prefetcher, Stream, TokenLengths, Window,
    samples_of_batch,
};
use crate::qpair::Device;
use crate::reader::{Batch, BatchOfSource, OnError, Watch};
use crate::units::{Epoch, SampleId};

/// The ids that a loader with the same options would read, batch by batch, without reading samples.
///
/// For frameworks that take ids from a sampler and then request the samples.
pub struct Sampler {
    over: Over,
    options: LoaderOptions,
    batches: Batches,
    share: Share,
    state: State,
    /// Set if the last batch is known not to be the epoch's last.
    has_more: bool,
    sources: Vec<u32>,
}

enum Batches {
    Dataset(Box<Stream>),
    Mixture(Box<MixIds>),
}

impl Sampler {
    /// Ids along the order of `options`.
    ///
    /// # Errors
    /// As [`Dataset::loader`].
    pub fn new(dataset: &Dataset, options: LoaderOptions) -> Result<Sampler> {
        let over = Over::dataset(dataset);
        let options = over.prepared(options)?;
        Sampler::over(over, options)
    }

    /// Ids along `over`, with options from [`Over::prepared`].
    pub(super) fn over(over: Over, options: LoaderOptions) -> Result<Sampler> {
        let state = over.start(&options)?;
        let share = Share::over(&over, &options)?;
        let batches = Batches::new(&over, &options, &state)?;
        let sources = Vec::new();
        Ok(Sampler { over, options, batches, share, state, has_more: false, sources })
    }

    /// Moves to a state that this sampler had, without a check.
    pub(super) fn go_to(&mut self, state: State) -> Result<()> {
        self.batches = Batches::new(&self.over, &self.options, &state)?;
        self.state = state;
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
        *self = Sampler::over(self.over.clone(), options)?;
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

impl Batches {
    /// The batches from `state` on; layouts of rows go where `options` say.
    fn new(over: &Over, options: &LoaderOptions, state: &State) -> Result<Batches> {
        if let Some(mix) = &over.mix {
            return Ok(Batches::Mixture(Box::new(MixIds::new(mix, options, state)?)));
        }
        let stream = Stream::new(Arc::clone(over.directory()), options, state)?;
        Ok(Batches::Dataset(Box::new(stream)))
    }

    /// Replaces `ids` by those of the next batch, and `sources` by theirs if it is of a mixture.
    fn next(&mut self, ids: &mut Vec<SampleId>, sources: &mut Vec<u32>) -> Result<Option<Head>> {
        match self {
            Batches::Dataset(stream) => stream.next_ids(ids),
            Batches::Mixture(mixed) => mixed.next(ids, sources),
        }
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
    len: u64,
    batch_size: u64,
    drop_short: bool,
    /// Counts of batches by a budget, which differ between epochs.
    budgeted: Option<Arc<BatchCounts>>,
}

impl Share {
    pub(super) fn over(over: &Over, options: &LoaderOptions) -> Result<Share> {
        let shard = Shard::new(options.rank, options.world_size, options.tail)?;
        let counts = BatchCounts::new(over.directory(), over.mix.as_ref(), options)?;
        let budgeted = counts.map(Arc::new);
        let batch_size = (options.batch_size as u64).max(1);
        let len = over.len(options);
        Ok(Share { shard, len, batch_size, drop_short: options.drop_short, budgeted })
    }

    /// The share of the rank in `options`.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such rank, or the budget is invalid.
    pub fn new(dataset: &Dataset, options: &LoaderOptions) -> Result<Share> {
        Share::over(&Over::dataset(dataset), options)
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
            Some(it) if self.shard.world_size == 1 && !it.has_rows() => at.consumed < self.len,
            // The error is as in `batches_after`.
            Some(it) => it.has_batch(at).unwrap_or(false),
        }
    }

    /// The counts of an epoch; `None` without a budget.
    pub(super) fn counts(&self) -> Option<&BatchCounts> {
        self.budgeted.as_deref()
    }

    /// Samples of this rank from `at` to the end of its epoch. With a budget and several ranks, it draws all
    /// remaining batches.
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

/// The source of a run's samples.
#[derive(Debug, Clone)]
pub(super) struct Over {
    /// One data set, unless `mix` says how several are mixed.
    pub(super) datasets: Vec<Dataset>,
    pub(super) mix: Option<Arc<Mix>>,
}

impl Over {
    pub(super) fn dataset(dataset: &Dataset) -> Over {
        Over { datasets: vec![dataset.clone()], mix: None }
    }

    pub(super) fn mixture(datasets: &[Dataset], mix: Mix) -> Over {
        Over { datasets: datasets.to_vec(), mix: Some(Arc::new(mix)) }
    }

    /// The data set; of a mixture, its first one.
    pub(super) fn first(&self) -> &Dataset {
        &self.datasets[0]
    }

    pub(super) fn directory(&self) -> &Arc<Directory> {
        self.first().directory()
    }

    /// The namespaces of all data sets.
    pub(super) fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.datasets.iter().flat_map(|dataset| dataset.image().devices().iter().cloned()).collect()
    }

    /// Samples of an epoch.
    pub(super) fn len(&self, options: &LoaderOptions) -> u64 {
        match &self.mix {
            Some(mix) => mix.mixture.epoch_size(),
            None => options.epoch_len(self.first().len()),
        }
    }

    /// `options` completed from the data: with local shares, the nodes that hold chunks; with a budget, an
    /// estimate of the samples of a batch from the lengths of all samples.
    ///
    /// # Errors
    /// `InvalidArgument`: a sample has no length, or is longer than the budget; no node holds chunks.
    pub(super) fn prepared(&self, options: LoaderOptions) -> Result<LoaderOptions> {
        if let Some(mix) = &self.mix {
            return mix.measured(options);
        }
        let options = self.first().image().located(options)?;
        let Some(budget) = &options.budget else { return Ok(options) };
        let lengths = TokenLengths::new(self.directory(), budget, options.too_long)?;
        let mean_tokens = lengths.measure()?.mean_tokens();
        let batch_size = samples_of_batch(budget, &options.rows, mean_tokens);
        Ok(LoaderOptions { batch_size, ..options })
    }

    /// Checks `options`, and returns the state in which a run with them starts.
    ///
    /// # Errors
    /// `InvalidArgument`, `Stale`: the options or the state to resume from contradict each other or the data.
    pub(super) fn start(&self, options: &LoaderOptions) -> Result<State> {
        options.check()?;
        let start = match &self.mix {
            Some(mix) => mix.start_state(options)?,
            None => Stream::start_state(self.directory(), options)?,
        };
        Batches::new(self, options, &start)?;
        self.check_place(&start, options)?;
        Ok(start)
    }

    /// Checks that a run with `options` may move to `state`.
    ///
    /// # Errors
    /// `InvalidArgument`, `Stale`: the state belongs to other data or another order.
    pub(super) fn check_state(&self, state: &State, options: &LoaderOptions) -> Result<()> {
        match &self.mix {
            Some(mix) => mix.check_state(state, options)?,
            None => Stream::check_state(self.directory(), state, options)?,
        }
        self.check_place(state, options)
    }

    /// Checks that the `consumed` of a state is at the end of a batch, if batches have a budget.
    fn check_place(&self, state: &State, options: &LoaderOptions) -> Result<()> {
        if options.has_rows() {
            return self.check_rows(state, options);
        }
        if options.budget.is_none() || state.consumed == 0 {
            return Ok(());
        }
        let epochs = state.epoch.0..state.epoch.0.saturating_add(1);
        let options = LoaderOptions { epochs, ..options.clone() };
        Batches::new(self, &options, state)?.next(&mut Vec::new(), &mut Vec::new()).map(drop)
    }

    /// Checks that the epoch has the rows that `state` has consumed, if batches are of rows, and that its place is
    /// theirs. A run may begin behind any of them, but only damaged states or other lengths count more.
    fn check_rows(&self, state: &State, options: &LoaderOptions) -> Result<()> {
        let State { epoch, consumed, .. } = *state;
        if !options.has_rows() || consumed == 0 {
            return Ok(());
        }
        if state.place.is_none() && self.least_rows(options)? >= consumed {
            return Ok(());
        }
        let counts = BatchCounts::new(self.directory(), self.mix.as_ref(), options)?;
        let Some(counts) = counts.filter(BatchCounts::has_rows) else { return Ok(()) };
        if counts.has_batch(state)? || state.place.is_some() {
            return Ok(());
        }
        let rows = counts.rows(&state.order, epoch)?.rows;
        if consumed <= rows {
            return Ok(());
        }
        let text =
            format!("the state has consumed {consumed} rows of epoch {epoch}, which has {rows}");
        Err(Error::invalid(
            text,
            "lengths differ from those that the run began with, or the state is damaged: start anew, without the state",
        ))
    }

    /// The rows that each epoch has even if all are full, for which nothing is packed; 0 if epochs differ in samples.
    fn least_rows(&self, options: &LoaderOptions) -> Result<u64> {
        let Some(budget) = &options.budget else { return Ok(0) };
        if self.mix.is_some() || options.weights.is_some() {
            return Ok(0);
        }
        let lengths = TokenLengths::new(self.directory(), budget, options.too_long)?;
        Ok(lengths.measure()?.tokens / budget.most_tokens(&[1]))
    }

    /// Reads samples by source and id, on the calling thread.
    ///
    /// # Errors
    /// As [`Dataset::read`] with [`OnError::Raise`].
    pub(super) fn read(&self, of: &[(u32, SampleId)], watch: &mut dyn Watch) -> Result<Batch> {
        let read = if self.mix.is_some() {
            read_mixed(&self.datasets, of, OnError::Raise, watch)?
        } else {
            let ids: Vec<SampleId> = of.iter().map(|(_, id)| *id).collect();
            self.first().read(Query::Ids(&ids), OnError::Raise, watch)?
        };
        Ok(read.batch)
    }

    pub(super) fn prefetcher_in(
        &self,
        options: LoaderOptions,
        window: Option<Arc<Window>>,
    ) -> Result<Prefetcher> {
        let Some(mix) = &self.mix else {
            return self.first().image().prefetcher_in(options, window);
        };
        // A tier's plan is for a run over one data set, so none is made: clairvoyant tiers add no copies, as
        // `Mixture::new` warns.
        self.datasets.iter().for_each(|dataset| dataset.image().expect_ranks(options.world_size));
        let options = LoaderOptions { mixture: Some(Arc::clone(mix)), ..options };
        Prefetcher::in_window(Arc::clone(self.directory()), self.devices(), options, window)
    }
}

/// Reads samples of `datasets` by source and id, as [`Mixture::read`](super::Mixture::read).
pub(super) fn read_mixed(
    datasets: &[Dataset],
    samples: &[(u32, SampleId)],
    on_error: OnError,
    watch: &mut dyn Watch,
) -> Result<Read> {
    let mut of_source: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, (source, _)) in samples.iter().enumerate() {
        of_source.entry(*source).or_default().push(at);
    }
    let mut batch = Batch::new();
    batch.reset_mixed(&datasets.iter().map(|one| Arc::clone(one.directory())).collect(), Epoch(0));
    let mut parts = BTreeMap::new();
    let mut failures = Vec::new();
    for (source, at) in of_source {
        let Some(dataset) = datasets.get(source as usize) else {
            let text = format!("there is no source {source}, there are {}", datasets.len());
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        let ids: Vec<SampleId> = at.iter().map(|&at| samples[at].1).collect();
        let each = if on_error == OnError::Raise { OnError::Raise } else { OnError::Blank };
        let read = dataset.read(Query::Ids(&ids), each, watch)?;
        failures.extend(read.failures.into_iter().map(|(nth, error)| (at[nth], error)));
        parts.insert(source, BatchOfSource::new(source, read.batch));
    }
    for (source, _) in samples {
        let part = parts.get_mut(source).expect("each source that is named was read");
        batch.push_next_of(part, 0);
    }
    failures.sort_by_key(|(at, _)| *at);
    if on_error == OnError::Skip {
        failures.iter().for_each(|(at, _)| batch.clear_location(*at));
        batch.remove_missing();
    }
    Ok(Read { batch, failures })
}
