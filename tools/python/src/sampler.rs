//! `Sampler`: the order of a `Loader` without reading samples.

use std::sync::Arc;

use dlfs::dataset;
use dlfs::directory::Directory;
use dlfs::order::{OrderKind, SequentialBy, State};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::{an_epoch, state_of_dict, state_to_dict};
use crate::dataset::Dataset;
use crate::error::OrRaise as _;
use crate::mixture::{Mixture, key_of};
use crate::options::{loader_options, without};

/// The order of a Loader without the bytes: the indices of each batch.
#[pyclass(frozen, module = "dlfs._dlfs", name = "Sampler")]
pub(crate) struct Sampler {
    sampler: Mutex<dataset::Sampler>,
    /// The directory of the data set; `None` over a mixture.
    directory: Option<Arc<Directory>>,
}

#[pymethods]
impl Sampler {
    #[new]
    #[pyo3(signature = (dataset, **options))]
    fn new(dataset: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Sampler> {
        let py = dataset.py();
        let options = options.map_or_else(|| PyDict::new(py), Clone::clone);
        let (sampler, directory) = match dataset.cast::<Mixture>() {
            Ok(mixture) => {
                let parsed = loader_options(&options, None)?;
                (mixture.get().mixture(py)?.sampler(parsed), None)
            }
            Err(_) => {
                let dataset = dataset.cast::<Dataset>()?.get().dataset(py)?;
                let by_slot = options.contains("_by_slot")?; // of `dlfs.ray`
                without(&options, ["_by_slot".to_owned()])?;
                let directory = Arc::clone(dataset.directory());
                let mut parsed = loader_options(&options, Some(&directory))?;
                if by_slot {
                    parsed.order.kind = OrderKind::Sequential { by: SequentialBy::Slot };
                }
                (dataset::Sampler::new(&dataset, parsed), Some(directory))
            }
        };
        let sampler = Mutex::new(sampler.or_raise(py)?);
        Ok(Sampler { sampler, directory })
    }

    /// Skips this many batches, but none of the next epoch; returns whether the epoch has ended.
    fn skip(&self, py: Python<'_>, batches: u64) -> PyResult<bool> {
        let mut held = self.sampler.lock();
        let ended = (0..batches).find_map(|_| match held.next(&mut Vec::new()) {
            Ok(Some(false)) => None,
            ended => Some(ended),
        });
        drop(held); // before an error is made in Python
        ended.transpose().map(|ended| ended.is_some()).or_raise(py)
    }

    /// The indices of the next batch, or the keys of a mixture, and whether the epoch ends with it; None at the run's
    /// end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(Vec<u64>, bool)>> {
        let mut sampler = self.sampler.lock();
        let mut ids = Vec::new();
        let next = sampler.next(&mut ids);
        let keys = match &self.directory {
            Some(directory) => ids.iter().map(|&id| directory.rank_of(id)).collect(),
            None => sampler.sources().iter().copied().zip(ids).map(key_of).collect(),
        };
        drop(sampler); // before an error is made in Python
        Ok(next.or_raise(py)?.map(|ends| (keys, ends)))
    }

    fn set_epoch(&self, epoch: &Bound<'_, PyAny>) -> PyResult<()> {
        let number = an_epoch(epoch)?;
        let moved = self.sampler.lock().set_epoch(number);
        moved.or_raise(epoch.py())
    }

    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        state_to_dict(py, &self.state())
    }

    fn load_state_dict(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let parsed = state_of_dict(state)?;
        let moved = self.sampler.lock().set_state(&parsed);
        moved.or_raise(state.py())
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.state().epoch.0
    }

    #[getter]
    fn batches_per_epoch(&self) -> u64 {
        self.sampler.lock().batches_per_epoch()
    }

    #[getter]
    fn batches_left(&self) -> u64 {
        self.sampler.lock().batches_left()
    }

    /// True if there are any.
    #[getter]
    fn has_batches_left(&self) -> bool {
        self.sampler.lock().has_batches_left()
    }
}

impl Sampler {
    fn state(&self) -> State {
        self.sampler.lock().state()
    }
}
