//! The data that a loader or sampler runs over: a data set, or a mixture of several.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::State;
use crate::prefetch::{
    BatchCounts, LoaderOptions, Mix, Prefetcher, Stream, TokenLengths, Window, samples_of_batch,
};
use crate::qpair::Device;
use crate::reader::{Batch, BatchOfSource, OnError, Watch};
use crate::units::{Epoch, SampleId};

use super::{Dataset, Query, Read};

/// The source of a run's samples.
#[derive(Debug, Clone)]
pub(super) struct Over {
    /// One data set, unless `mix` says how several are mixed.
    datasets: Vec<Dataset>,
    mix: Option<Arc<Mix>>,
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

    pub(super) fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }

    pub(super) fn mix(&self) -> Option<&Arc<Mix>> {
        self.mix.as_ref()
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
        if let Some(mix) = &self.mix {
            let start = mix.start_state(options)?;
            self.check_rows(&start, options)?;
            return Ok(start);
        }
        let start = Stream::start_state(self.directory(), options)?;
        Stream::new(Arc::clone(self.directory()), options, &start)?;
        self.check_place(&start, options)?;
        Ok(start)
    }

    /// Checks that a run with `options` may move to `state`.
    ///
    /// # Errors
    /// `InvalidArgument`, `Stale`: the state belongs to other data or another order.
    pub(super) fn check_state(&self, state: &State, options: &LoaderOptions) -> Result<()> {
        if let Some(mix) = &self.mix {
            mix.check_state(state, options)?;
            mix.check_place(state, options)?;
            return self.check_rows(state, options);
        }
        let directory = self.directory();
        let view = directory.view().map(|mark| mark.hash);
        let image = (directory.uuid().0, view);
        let LoaderOptions { order, world_size, .. } = options;
        state.check_budget(options.budget.as_deref())?;
        state.check(image, directory.generation(), order, *world_size, self.len(options))?;
        self.check_place(state, options)
    }

    /// Checks that the `consumed` of a data set's state is at the end of a batch, if batches have a budget.
    fn check_place(&self, state: &State, options: &LoaderOptions) -> Result<()> {
        if options.has_rows() {
            return self.check_rows(state, options);
        }
        if options.budget.is_none() || state.consumed == 0 {
            return Ok(());
        }
        let epochs = state.epoch.0..state.epoch.0.saturating_add(1);
        let options = LoaderOptions { epochs, ..options.clone() };
        let mut stream = Stream::new(Arc::clone(self.directory()), &options, state)?;
        stream.next_ids(&mut Vec::new()).map(drop)
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
        let counts = BatchCounts::new(self.directory(), self.mix(), options)?;
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
        Ok(lengths.measure()?.tokens() / budget.most_tokens(&[1]))
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
