//! `Loader`: batches along an order, made by threads of the library; and `Sampler`: ids alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use dlfs::job;
use dlfs::order::State;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::batch::{Absent, Batch};
use crate::dataset::Dataset;
use crate::error::{raise, raise_invalid};
use crate::log;
use crate::options::loader_options;
use crate::watch::detached;

/// Batches along an order, read ahead by native threads without the interpreter.
///
/// Iterating it goes through one epoch: through what is left of the epoch where the run stands, and
/// from there on through the next. set_epoch goes to the begin of another; state_dict and
/// load_state_dict stop and go on exactly there, also with another world size or batch size.
///
/// It is subclassed by dlfs.Loader, whose constructor says what the options are.
#[pyclass(frozen, subclass, module = "dlfs._dlfs", name = "Loader", weakref)]
pub(crate) struct Loader {
    loader: job::Loader,
    /// Until it is closed. Locked with the interpreter at hand, as forks happen, so never across one.
    dataset: Mutex<Option<Py<Dataset>>>,
    options: Py<PyDict>,
    /// A state was loaded and nothing read since: set_epoch of its epoch must not lose the place.
    resumed: AtomicBool,
}

#[pymethods]
impl Loader {
    #[new]
    #[pyo3(signature = (dataset, **options))]
    fn new(dataset: &Bound<'_, Dataset>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Loader> {
        let py = dataset.py();
        let options = options.map_or_else(|| PyDict::new(py), Clone::clone);
        let parsed = loader_options(&options)?;
        let made = dataset.get().dataset(py)?.loader(parsed);
        Ok(Loader {
            loader: made.map_err(|error| raise(py, &error))?,
            dataset: Mutex::new(Some(dataset.clone().unbind())),
            options: options.unbind(),
            resumed: AtomicBool::new(false),
        })
    }

    /// Batches of a whole epoch on this rank.
    fn __len__(&self) -> usize {
        self.loader.batches_per_epoch() as usize
    }

    fn __iter__(slf: Bound<'_, Self>) -> Epoch {
        let epoch = slf.get().loader.epoch();
        slf.get().resumed.store(false, Ordering::Relaxed);
        Epoch { loader: slf.unbind(), epoch, ended: AtomicBool::new(false) }
    }

    /// Batches still to come in the epoch where the run stands.
    #[getter]
    fn batches_left(&self) -> u64 {
        self.loader.batches_left()
    }

    /// The epoch where the run stands: that of the next batch.
    #[getter]
    fn epoch(&self) -> u64 {
        self.loader.epoch()
    }

    /// Goes to the begin of `epoch`; what was read ahead of it is kept when the run stands there
    /// already. Right after load_state_dict, the epoch of the state goes on where the state says.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        if self.resumed.load(Ordering::Relaxed) && epoch == self.loader.epoch() {
            return Ok(());
        }
        self.resumed.store(false, Ordering::Relaxed);
        detached(py, |_| self.loader.set_epoch(epoch))
    }

    /// Has the memory for what is read ahead (prefetch_bytes) made in the background from now on, which
    /// the first batch asked for does else: call it before a model is built, in the process that will
    /// read. Nothing is read yet.
    ///
    /// Raises OutOfMemory when the system does not give it.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| self.loader.prepare())
    }

    /// Where the run stands, between the batches handed out and those to come: a dict that JSON takes.
    /// It holds image, generation, order, seed, epoch and samples consumed by all ranks.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        state_to_dict(py, &self.loader.state())
    }

    /// Goes on where `state` says.
    ///
    /// Raises InvalidArgument (a ValueError) when it belongs to another data set, order or seed, Stale
    /// when samples were added or deleted since; the run then stays where it was.
    fn load_state_dict(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = state.py();
        let state = state_of_dict(state)?;
        detached(py, |_| self.loader.set_state(&state))?;
        self.resumed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// What was done so far, in this process: a dict of numbers. stall_s is how long calls had to wait,
    /// in seconds; copied_bytes what was copied to make batches contiguous.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.loader.stats();
        let dict = PyDict::new(py);
        dict.set_item("commands", stats.read.commands)?;
        dict.set_item("bytes", stats.read.bytes)?;
        dict.set_item("repeated", stats.read.repeated)?;
        dict.set_item("verified", stats.read.verified)?;
        dict.set_item("batches", stats.batches)?;
        dict.set_item("samples", stats.samples)?;
        dict.set_item("sample_bytes", stats.sample_bytes)?;
        dict.set_item("skipped", stats.skipped)?;
        dict.set_item("copied_bytes", stats.copied_bytes)?;
        dict.set_item("over_window", stats.over_window)?;
        dict.set_item("stall_s", stats.stall_s)?;
        Ok(dict)
    }

    /// Ends waits of other threads, reads no further and gives the data set up, with its connections and
    /// tiers when nobody else has it. Batches stay valid. Leaving a `with` does it too.
    fn close(&self, py: Python<'_>) {
        let dataset = self.held().take();
        py.detach(|| self.loader.close());
        drop(dataset); // it may be the last who has it
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    /// The data set. Raises InvalidArgument once the loader is closed.
    #[getter]
    fn dataset(&self, py: Python<'_>) -> PyResult<Py<Dataset>> {
        let dataset = self.held().as_ref().map(|dataset| dataset.clone_ref(py));
        dataset.ok_or_else(|| raise_invalid(py, "the loader is closed: it has no data set".into()))
    }

    /// The options that it was made with.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.options.bind(py).copy()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let make = py.import("dlfs")?.getattr("_remake")?;
        let state = self.state_dict(py)?;
        Ok((make, (self.dataset(py)?, &self.options, state)).into_pyobject(py)?.into_any())
    }

    fn __repr__(&self) -> String {
        format!("<dlfs.Loader at {}>", self.loader.state().to_json())
    }
}

impl Loader {
    fn held(&self) -> MutexGuard<'_, Option<Py<Dataset>>> {
        self.dataset.lock().unwrap_or_else(|held| held.into_inner())
    }
}

/// One epoch of a loader, or what was left of it.
#[pyclass(frozen, module = "dlfs._dlfs")]
pub(crate) struct Epoch {
    loader: Py<Loader>,
    epoch: u64,
    ended: AtomicBool,
}

#[pymethods]
impl Epoch {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, Batch>>> {
        log::hand_over(py)?;
        let loader = &self.loader.get().loader;
        if self.ended.load(Ordering::Relaxed) || loader.epoch() != self.epoch {
            return Ok(None);
        }
        if loader.batches_left() == 0 {
            self.ended.store(true, Ordering::Relaxed);
            if self.epoch < loader.options().epochs.end {
                // This rank has no share of the epoch's rest: nothing will come that ends it.
                detached(py, |_| loader.set_epoch(self.epoch + 1))?;
            }
            return Ok(None);
        }
        let Some(batch) = detached(py, |watch| loader.next(watch))? else {
            self.ended.store(true, Ordering::Relaxed);
            return Ok(None);
        };
        if batch.ends_epoch() {
            self.ended.store(true, Ordering::Relaxed);
        }
        Batch::new(py, batch, Absent::none()).map(Some)
    }

    fn __length_hint__(&self) -> usize {
        if self.ended.load(Ordering::Relaxed) {
            return 0;
        }
        self.loader.get().loader.batches_left() as usize
    }
}

/// The order of a Loader without the bytes: the indices of each batch.
#[pyclass(frozen, module = "dlfs._dlfs", name = "Sampler")]
pub(crate) struct Sampler {
    sampler: Mutex<job::Sampler>,
    dataset: job::Dataset,
}

#[pymethods]
impl Sampler {
    #[new]
    #[pyo3(signature = (dataset, **options))]
    fn new(dataset: &Bound<'_, Dataset>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Sampler> {
        let py = dataset.py();
        let options = options.map_or_else(|| PyDict::new(py), Clone::clone);
        let parsed = loader_options(&options)?;
        let dataset = dataset.get().dataset(py)?;
        let sampler = job::Sampler::new(&dataset, parsed).map_err(|error| raise(py, &error))?;
        Ok(Sampler { sampler: Mutex::new(sampler), dataset })
    }

    /// The indices of the next batch, and whether the epoch ends with it; None at the run's end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(Vec<u64>, bool)>> {
        let mut ids = Vec::new();
        let next = self.sampler().next(&mut ids).map_err(|error| raise(py, &error))?;
        let directory = self.dataset.directory();
        Ok(next.map(|ends| (ids.iter().map(|&id| directory.rank_of(id)).collect(), ends)))
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.sampler().set_epoch(epoch).map_err(|error| raise(py, &error))
    }

    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let state = self.sampler().state();
        state_to_dict(py, &state)
    }

    fn load_state_dict(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let parsed = state_of_dict(state)?;
        self.sampler().set_state(&parsed).map_err(|error| raise(state.py(), &error))
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.sampler().state().epoch.0
    }

    #[getter]
    fn batches_per_epoch(&self) -> u64 {
        self.sampler().batches_per_epoch()
    }

    #[getter]
    fn batches_left(&self) -> u64 {
        self.sampler().batches_left()
    }
}

impl Sampler {
    fn sampler(&self) -> MutexGuard<'_, job::Sampler> {
        // A panic in the middle leaves a place in the order, and no place is wrong.
        self.sampler.lock().unwrap_or_else(|held| held.into_inner())
    }
}

fn state_to_dict<'py>(py: Python<'py>, state: &State) -> PyResult<Bound<'py, PyAny>> {
    json(py)?.call_method1("loads", (state.to_json(),))
}

fn state_of_dict(state: &Bound<'_, PyAny>) -> PyResult<State> {
    let py = state.py();
    let text = match state.cast::<PyString>() {
        Ok(text) => text.to_string(),
        Err(_) => json(py)?.call_method1("dumps", (state,))?.extract()?,
    };
    State::from_json(&text).map_err(|error| raise_invalid(py, error.report()))
}

fn json(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static JSON: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Ok(JSON.get_or_try_init(py, || py.import("json").map(Bound::unbind))?.bind(py))
}
