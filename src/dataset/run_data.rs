//! The data that a loader or a sampler runs over: a data set, or a mixture of several.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Dataset, Query, Read};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::State;
use crate::prefetch::{
    BatchCounts, Head, LoaderOptions, Mix, MixIds, Prefetcher, Stream, TokenLengths, Window,
    samples_of_batch,
};
use crate::qpair::Device;
use crate::reader::{Batch, BatchOfSource, OnError, Watch};
use crate::units::{Epoch, SampleId};

/// The data of a run.
#[derive(Debug, Clone)]
pub(super) struct RunData {
    /// One data set; or the sources of a mixture, by their numbers.
    pub(super) datasets: Vec<Dataset>,
    /// The mixture; `None`: the data are one data set.
    pub(super) mix: Option<Arc<Mix>>,
}

impl RunData {
    pub(super) fn dataset(dataset: &Dataset) -> RunData {
        RunData { datasets: vec![dataset.clone()], mix: None }
    }

    pub(super) fn mixture(datasets: &[Dataset], mix: Mix) -> RunData {
        RunData { datasets: datasets.to_vec(), mix: Some(Arc::new(mix)) }
    }

    /// The data set; of a mixture, its first one.
    pub(super) fn first(&self) -> &Dataset {
        &self.datasets[0]
    }

    /// The directory of that data set.
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
    /// `InvalidArgument`: a sample has no length, or is longer than the budget; local shares without peers.
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
        self.check_consumed(&start, options)?;
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
        self.check_consumed(state, options)
    }

    /// Checks that `consumed` of a state is the end of a batch, if batches have a budget, or that it counts rows of the
    /// epoch, if batches are rows of tokens.
    fn check_consumed(&self, state: &State, options: &LoaderOptions) -> Result<()> {
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

    /// Checks that the epoch has the rows that `state` has consumed, and that a place in the state fits these rows. A
    /// run may resume after any row; a state that counts more rows is damaged, or lengths have changed.
    fn check_rows(&self, state: &State, options: &LoaderOptions) -> Result<()> {
        let State { epoch, consumed, .. } = *state;
        if consumed == 0 || state.place.is_none() && self.least_rows(options)? >= consumed {
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

    /// A lower bound of the rows of each epoch, computed without packing: as if all rows were full. 0: there is no
    /// bound, since epochs have different samples.
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

    /// A prefetcher over the data: see [`Image::prefetcher_in`](super::Image::prefetcher_in).
    pub(super) fn prefetcher_in(
        &self,
        options: LoaderOptions,
        window: Option<Arc<Window>>,
    ) -> Result<Prefetcher> {
        let Some(mix) = &self.mix else {
            return self.first().image().prefetcher_in(options, window);
        };
        // Tiers are planned only for a run over one data set. So clairvoyant tiers add no copies here, as
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
    let mut positions: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, (source, _)) in samples.iter().enumerate() {
        positions.entry(*source).or_default().push(at);
    }
    let mut batch = Batch::new();
    batch.reset_mixed(&datasets.iter().map(|one| Arc::clone(one.directory())).collect(), Epoch(0));
    let mut batches = BTreeMap::new();
    let mut failures = Vec::new();
    for (source, at) in positions {
        let Some(dataset) = datasets.get(source as usize) else {
            let text = format!("there is no source {source}, there are {}", datasets.len());
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        let ids: Vec<SampleId> = at.iter().map(|&at| samples[at].1).collect();
        let each = if on_error == OnError::Raise { OnError::Raise } else { OnError::Blank };
        let read = dataset.read(Query::Ids(&ids), each, watch)?;
        failures.extend(read.failures.into_iter().map(|(nth, error)| (at[nth], error)));
        batches.insert(source, BatchOfSource::new(source, read.batch));
    }
    for (source, _) in samples {
        let of_source = batches.get_mut(source).expect("each source that is named was read");
        batch.push_next_of(of_source, 0);
    }
    failures.sort_by_key(|(at, _)| *at);
    if on_error == OnError::Skip {
        failures.iter().for_each(|(at, _)| batch.clear_location(*at));
        batch.remove_missing();
    }
    Ok(Read { batch, failures })
}

/// The ids of batches along an order of a run.
pub(super) enum Batches {
    Dataset(Box<Stream>),
    Mixture(Box<MixIds>),
}

impl Batches {
    /// The batches from `state` on. Layouts of rows go to the `layouts` of `options`.
    pub(super) fn new(data: &RunData, options: &LoaderOptions, state: &State) -> Result<Batches> {
        if let Some(mix) = &data.mix {
            return Ok(Batches::Mixture(Box::new(MixIds::new(mix, options, state)?)));
        }
        let stream = Stream::new(Arc::clone(data.directory()), options, state)?;
        Ok(Batches::Dataset(Box::new(stream)))
    }

    /// Replaces `ids` by those of the next batch and, over a mixture, `sources` by the source of each. `None`: the
    /// run has ended.
    pub(super) fn next(
        &mut self,
        ids: &mut Vec<SampleId>,
        sources: &mut Vec<u32>,
    ) -> Result<Option<Head>> {
        match self {
            Batches::Dataset(stream) => stream.next_ids(ids),
            Batches::Mixture(mixed) => mixed.next(ids, sources),
        }
    }
}
