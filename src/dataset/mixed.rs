//! A mixture in a run: what its loader reads.

use std::sync::Arc;

use crate::error::Result;
use crate::prefetch::{LoaderOptions, Mix, Prefetcher, Window};
use crate::qpair::Device;

use super::Dataset;

/// A mixture in a run: its data sets, and their sequence.
#[derive(Debug, Clone)]
pub(super) struct Mixed {
    datasets: Vec<Dataset>,
    mix: Arc<Mix>,
}

impl Mixed {
    pub(super) fn new(datasets: Vec<Dataset>, mix: Arc<Mix>) -> Mixed {
        Mixed { datasets, mix }
    }

    pub(super) fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }

    pub(super) fn mix(&self) -> &Arc<Mix> {
        &self.mix
    }

    /// The namespaces of all data sets.
    pub(super) fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.datasets.iter().flat_map(|dataset| dataset.image().devices().iter().cloned()).collect()
    }

    pub(super) fn prefetcher_in(
        &self,
        options: LoaderOptions,
        window: Option<Arc<Window>>,
    ) -> Result<Prefetcher> {
        // A plan of the tiers is for a run over one data set: in a mixture they keep what was read last.
        self.datasets.iter().for_each(|dataset| dataset.image().expect_ranks(options.world_size));
        let options = LoaderOptions { mixture: Some(Arc::clone(&self.mix)), ..options };
        let directory = Arc::clone(&self.mix.directories()[0]);
        Prefetcher::in_window(directory, self.devices(), options, window)
    }
}
