//! Several data sets as one sequence, in given proportions, read by one loader.
//!
//! A mixture has no threads, queue pairs or memory of its own. A loader over it has one poller and one
//! window, like a loader over one data set. Each data set keeps its tiers and its peers.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::order::HexId;
use crate::order::mixture::{self, Batching, MixtureSpec, Part, Phase, Source};
use crate::prefetch::{LoaderOptions, Mix};
use crate::reader::{OnError, Watch};
use crate::tier::Policy;
use crate::units::SampleId;

use super::run_data::{RunData, read_mixed};
use super::{Dataset, Loader, Read, Sampler, Share};

/// Data sets, with the weight or number of samples of each.
///
/// ```no_run
/// # fn main() -> dlfs::Result<()> {
/// # use dlfs::dataset::{Dataset, Mixture, Options};
/// # use dlfs::order::mixture::{Batching, Part};
/// # use dlfs::order::{OrderKind, OrderSpec};
/// # use dlfs::prefetch::LoaderOptions;
/// let open = |name: &str| Dataset::open(&[name.parse()?], &Options::default(), &mut ());
/// let parts = vec![
///     (open("web.dlfs")?, Part::Weight("0.7".parse()?)),
///     (open("code.dlfs")?, Part::Weight("0.3".parse()?)),
/// ];
/// let mixture = Mixture::new(parts, Some(1_000_000), Batching::Stratified, Vec::new())?;
/// let order = OrderSpec { kind: OrderKind::Grouped { lanes: 0, group: 4 }, seed: 7 };
/// let loader = mixture.loader(LoaderOptions::new(order, 256, 2))?;
/// while let Some(batch) = loader.next(&mut ())? {
///     println!("{:?}", batch.sources()); // which data set each sample is of
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Mixture {
    datasets: Vec<Dataset>,
    /// With the seed 0. [`Mixture::spec`] fills in a loader's seed and, for [`Batching::PerSource`] with a batch of 0,
    /// the loader's batch size.
    spec: MixtureSpec,
}

impl Mixture {
    /// A mixture of `parts`. `epoch_size`: samples of an epoch; `None`: the number that `repeat` and `choose`
    /// give, or the number of samples of all data sets. With [`Batching::PerSource`], a batch of 0 stands for
    /// the global batch of the loader; with weights and without `epoch_size`, the epoch is then cut to whole
    /// batches.
    ///
    /// # Errors
    /// `InvalidArgument`: a data set is there twice, is empty, or is never read; weights and numbers of
    /// samples are mixed; phases are out of order. The message names the data set. `Unsupported`: a data set
    /// keeps a share in a store. Clairvoyant tiers are no error, only a warning: they serve the copies that they have.
    pub fn new(
        parts: Vec<(Dataset, Part)>,
        epoch_size: Option<u64>,
        batching: Batching,
        phases: Vec<Phase>,
    ) -> Result<Mixture> {
        let sources = parts.iter().map(|(dataset, part)| source(dataset, *part)).collect();
        let datasets: Vec<Dataset> = parts.into_iter().map(|(dataset, _)| dataset).collect();
        let spec = MixtureSpec { sources, epoch_size, batching, phases, seed: 0 };
        mixture::Mixture::new(&spec)?;
        for (dataset, source) in datasets.iter().zip(&spec.sources) {
            if dataset.image().store().is_some() {
                let text = format!("source {} keeps a rank's share in a store", source.name);
                return Err(Error::new(ErrorKind::Unsupported, text)
                    .hint("open it without the store: shares belong to one data set"));
            }
            let tiers = dataset.image().tiers();
            if tiers.is_some_and(|cache| cache.policy() == Policy::Clairvoyant) {
                tracing::warn!(
                    "the tiers of source {} keep no new copies, since the policy clairvoyant plans runs over one \
                     data set, and this is a mixture: take the policy first-touch",
                    source.name
                );
            }
        }
        Ok(Mixture { datasets, spec })
    }

    /// The data sets; a batch counts them from 0 in this order.
    pub fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }

    /// The definition of the mixture, with the seed and the batch size of `options`.
    pub fn spec(&self, options: &LoaderOptions) -> MixtureSpec {
        let mut spec = MixtureSpec { seed: options.order.seed, ..self.spec.clone() };
        if spec.batching == (Batching::PerSource { batch: 0 }) {
            let ranks = u64::from(options.world_size.max(1));
            let batch = (options.batch_size as u64).saturating_mul(ranks).max(1);
            spec.batching = Batching::PerSource { batch };
            let samples: u64 = spec.sources.iter().map(|source| source.samples).sum();
            let is_weighed = spec.sources.iter().all(|one| matches!(one.part, Part::Weight(_)));
            if spec.epoch_size.is_none() && is_weighed && samples >= batch {
                spec.epoch_size = Some(samples / batch * batch);
            }
        }
        spec
    }

    /// The sequence with the seed 0: the number of samples per source in an epoch does not depend on the
    /// seed.
    ///
    /// # Errors
    /// As [`Mixture::new`]; a mixture that exists passed these checks.
    pub fn sequence(&self) -> Result<mixture::Mixture> {
        mixture::Mixture::new(&self.spec)
    }

    /// Reads samples by source and id on the calling thread, in the order of the request.
    ///
    /// # Errors
    /// As [`Dataset::read`]; `NotFound`: there is no such source.
    pub fn read(
        &self,
        samples: &[(u32, SampleId)],
        on_error: OnError,
        watch: &mut dyn Watch,
    ) -> Result<Read> {
        read_mixed(&self.datasets, samples, on_error, watch)
    }

    /// A loader of batches along the mixture. Each source is read in the order of `options`, and is shuffled
    /// again whenever it is used up. Reads ahead from the first request on.
    ///
    /// # Errors
    /// `InvalidArgument`: the options contradict each other or the mixture, or the state belongs to another
    /// mixture. The message says which source differs.
    pub fn loader(&self, options: LoaderOptions) -> Result<Loader> {
        Loader::of(self.run_data(&options)?, options)
    }

    /// A sampler of the ids that a loader with these options would read, and of their [`sources`](Sampler::sources).
    ///
    /// # Errors
    /// Errors of [`Mixture::loader`].
    pub fn sampler(&self, options: LoaderOptions) -> Result<Sampler> {
        let data = self.run_data(&options)?;
        let options = data.prepared(options)?;
        Sampler::of(data, options)
    }

    /// The share of the rank of `options` in an epoch.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such rank, or the batch does not fit the mixture.
    pub fn share(&self, options: &LoaderOptions) -> Result<Share> {
        Share::of(&self.run_data(options)?, options)
    }

    /// The data of a run over the mixture with these options.
    pub(super) fn run_data(&self, options: &LoaderOptions) -> Result<RunData> {
        let sources = self
            .datasets
            .iter()
            .map(|dataset| (Arc::clone(dataset.directory()), dataset.image().devices().to_vec()));
        Ok(RunData::mixture(&self.datasets, Mix::new(self.spec(options), sources)?))
    }
}

/// Describes `dataset` as a source of a mixture.
pub(super) fn source(dataset: &Dataset, part: Part) -> Source {
    let directory = dataset.directory();
    let devices = dataset.image().devices();
    let address = devices.first().map(|device| device.namespace().address.to_string());
    let mut identity = format!("{} generation {}", directory.uuid(), directory.generation());
    if let Some(view) = directory.view() {
        identity = format!("{identity} view {}", HexId(view.hash));
    }
    Source {
        name: address.unwrap_or_else(|| directory.uuid().to_string()),
        identity,
        samples: dataset.len(),
        part,
    }
}
