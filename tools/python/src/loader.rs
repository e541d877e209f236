//! `Loader`: batches along an order, made by threads of the library; and `Sampler`: ids alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dlfs::dataset;
use dlfs::order::State;
use dlfs::prefetch::LoaderStats;
use pyo3::exceptions::PyOverflowError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::batch::Batch;
use crate::dataset::Dataset;
use crate::error::{raise, raise_invalid};
use crate::held::{Absent, Fields};
use crate::log;
use crate::options::loader_options;
use crate::watch::detached;

/// Batches along an order, read ahead by native threads without the interpreter.
///
/// Iterating it goes through one epoch: the one where the run stands, from its begin; or, right after
/// load_state_dict, from where the state says. An epoch that was left in the middle begins again. Iterators
/// that live at the same time go through the epoch each by themselves, with memory of their own.
/// set_epoch goes to the begin of another epoch; state_dict and load_state_dict stop and go on exactly
/// there, also with another world size or batch size.
///
/// It is subclassed by dlfs.Loader, whose constructor says what the options are.
#[pyclass(frozen, subclass, module = "dlfs._dlfs", name = "Loader", weakref)]
pub(crate) struct Loader {
    /// Locked with the interpreter at hand, as forks happen, so never across one; as `dataset`.
    runs: Mutex<Runs>,
    /// Until it is closed.
    dataset: Mutex<Option<Py<Dataset>>>,
    fields: Arc<Fields>,
    options: Py<PyDict>,
}

/// A run, and those of older iterators that still live.
struct Runs {
    /// Of the newest iterator, and of the next one when that is gone.
    newest: Arc<Run>,
    others: Vec<Arc<Run>>,
    /// What the others did that are gone.
    past: LoaderStats,
}

struct Run {
    loader: dataset::Loader,
    /// A state was loaded and nothing read since: neither set_epoch of its epoch nor an iterator must
    /// lose the place.
    resumed: AtomicBool,
    /// Whether an iterator lives that has not come to its end.
    taken: AtomicBool,
}

impl Run {
    fn new(loader: dataset::Loader, resumed: bool) -> Arc<Run> {
        let (resumed, taken) = (AtomicBool::new(resumed), AtomicBool::new(false));
        Arc::new(Run { loader, resumed, taken })
    }
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
        let newest = Run::new(made.map_err(|error| raise(py, &error))?, false);
        let past = LoaderStats::default();
        Ok(Loader {
            runs: Mutex::new(Runs { newest, others: Vec::new(), past }),
            dataset: Mutex::new(Some(dataset.clone().unbind())),
            fields: Arc::clone(dataset.get().shown_fields()),
            options: options.unbind(),
        })
    }

    /// Batches of a whole epoch on this rank.
    fn __len__(&self) -> usize {
        self.newest().loader.batches_per_epoch() as usize
    }

    fn __iter__(slf: Bound<'_, Self>) -> PyResult<Epoch> {
        let py = slf.py();
        let run = slf.get().run_to_take().map_err(|error| raise(py, &error))?;
        let State { epoch, consumed, .. } = run.loader.state();
        let begun = match consumed != 0 && !run.resumed.load(Ordering::Relaxed) {
            true => detached(py, |_| run.loader.set_epoch(epoch.0)),
            false => Ok(()),
        };
        let iterator =
            Epoch { loader: slf.unbind(), run, epoch: epoch.0, ended: AtomicBool::new(false) };
        begun.map(|()| iterator) // else it is dropped, and gives the run back
    }

    /// Batches still to come in the epoch where the run stands.
    #[getter]
    fn batches_left(&self) -> u64 {
        self.newest().loader.batches_left()
    }

    /// The epoch where the run stands: that of the next batch.
    #[getter]
    fn epoch(&self) -> u64 {
        self.newest().loader.epoch()
    }

    /// Goes to the begin of `epoch`; what was read ahead of it is kept when the run stands there
    /// already. Right after load_state_dict, the epoch of the state goes on where the state says.
    fn set_epoch(&self, epoch: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, epoch, run) = (epoch.py(), an_epoch(epoch)?, self.newest());
        if run.resumed.load(Ordering::Relaxed) && epoch == run.loader.epoch() {
            return Ok(());
        }
        run.resumed.store(false, Ordering::Relaxed);
        detached(py, |_| run.loader.set_epoch(epoch))
    }

    /// Has the memory for what is read ahead (prefetch_bytes) made in the background from now on, which
    /// the first batch asked for does else: call it before a model is built, in the process that will
    /// read. Nothing is read yet.
    ///
    /// Raises OutOfMemory when the system does not give it.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        let run = self.newest();
        detached(py, |_| run.loader.prepare())
    }

    /// Where the run stands, between the batches handed out (by the newest iterator) and those to come: a
    /// dict that JSON takes. It holds image, generation, order, seed, epoch and samples consumed by all
    /// ranks.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        state_to_dict(py, &self.newest().loader.state())
    }

    /// Goes on where `state` says.
    ///
    /// Raises InvalidArgument (a ValueError) when it belongs to another data set, order or seed, Stale
    /// when samples were added or deleted since; the run then stays where it was.
    fn load_state_dict(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = state.py();
        let (state, run) = (state_of_dict(state)?, self.newest());
        detached(py, |_| run.loader.set_state(&state))?;
        run.resumed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// What was done so far, in this process: a dict. resident is how many samples are in memory now, pages
    /// in what kind of it: "huge" (set aside by the administrator), "transparent" (huge pages that the
    /// kernel makes), "base" (4 KiB), "driver" (SPDK's), or None before anything was read. stall_s is how
    /// long calls had to wait, in seconds; copied_bytes what was copied to make batches contiguous;
    /// rewritten how many samples somebody had written to in kept memory, so that they were read again.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.runs().stats();
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
        dict.set_item("rewritten", stats.rewritten)?;
        dict.set_item("stall_s", stats.stall_s)?;
        dict.set_item("resident", stats.resident)?;
        dict.set_item("pages", stats.pages.map(|pages| pages.as_str()))?;
        Ok(dict)
    }

    /// Ends waits of other threads, reads no further and gives the data set up, with its connections and
    /// tiers when nobody else has it. Batches stay valid. Leaving a `with` does it too.
    fn close(&self, py: Python<'_>) {
        let dataset = self.held().take();
        let runs = self.runs().all();
        py.detach(|| runs.iter().for_each(|run| run.loader.close()));
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

    /// Carries class, data set, options, place, and what the object has beside.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let make = py.import("dlfs")?.getattr("_remake")?;
        let state = this.state_dict(py)?;
        let made_of = (slf.get_type(), this.dataset(py)?, &this.options, state);
        let beside = slf.call_method0("__getstate__")?;
        Ok((make, made_of, beside).into_pyobject(py)?.into_any())
    }

    /// A cycle through an iterator that lives is found and collected.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.options)?;
        match self.dataset.try_lock() {
            Ok(dataset) => dataset.as_ref().map_or(Ok(()), |dataset| visit.call(dataset)),
            Err(_) => Ok(()), // whoever has it locked is no garbage
        }
    }

    fn __repr__(&self) -> String {
        format!("<dlfs.Loader at {}>", self.newest().loader.state().to_json())
    }
}

impl Loader {
    fn held(&self) -> MutexGuard<'_, Option<Py<Dataset>>> {
        self.dataset.lock().unwrap_or_else(|held| held.into_inner())
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(|held| held.into_inner())
    }

    fn newest(&self) -> Arc<Run> {
        Arc::clone(&self.runs().newest)
    }

    /// The run for an iterator that begins: the one there is, unless another iterator goes along it.
    fn run_to_take(&self) -> dlfs::Result<Arc<Run>> {
        let mut runs = self.runs();
        if runs.newest.taken.load(Ordering::Relaxed) {
            let newest = &runs.newest;
            let resumed = newest.resumed.load(Ordering::Relaxed);
            let another = Run::new(newest.loader.begin_another()?, resumed);
            let before = std::mem::replace(&mut runs.newest, another);
            runs.others.push(before);
        }
        runs.newest.taken.store(true, Ordering::Relaxed);
        Ok(Arc::clone(&runs.newest))
    }

    /// An iterator has ended or is gone: so is its run, unless the next iterator takes it.
    fn give_back(&self, run: &Arc<Run>) {
        run.taken.store(false, Ordering::Relaxed);
        let mut runs = self.runs();
        let at = runs.others.iter().position(|other| Arc::ptr_eq(other, run));
        if let Some(at) = at {
            let run = runs.others.swap_remove(at);
            runs.past = dataset::sum_stats(runs.past, run.loader.stats().ended());
            drop(runs);
            run.loader.close();
        }
    }
}

impl Runs {
    fn all(&self) -> Vec<Arc<Run>> {
        std::iter::once(&self.newest).chain(&self.others).map(Arc::clone).collect()
    }

    fn stats(&self) -> LoaderStats {
        let each = self.all().into_iter().map(|run| run.loader.stats());
        each.fold(self.past, dataset::sum_stats)
    }
}

/// One epoch of a loader, or what was left of it.
#[pyclass(frozen, module = "dlfs._dlfs")]
pub(crate) struct Epoch {
    loader: Py<Loader>,
    run: Arc<Run>,
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
        let loader = &self.run.loader;
        if self.ended.load(Ordering::Relaxed) || loader.epoch() != self.epoch {
            self.end();
            return Ok(None);
        }
        if loader.batches_left() == 0 {
            if self.epoch < loader.options().epochs.end {
                // This rank has no share of the epoch's rest: nothing will come that ends it.
                detached(py, |_| loader.set_epoch(self.epoch + 1))?;
            }
            self.end();
            return Ok(None);
        }
        let Some(batch) = detached(py, |watch| loader.next(watch))? else {
            self.end();
            return Ok(None);
        };
        self.run.resumed.store(false, Ordering::Relaxed);
        if batch.ends_epoch() {
            self.end();
        }
        let fields = Arc::clone(&self.loader.get().fields);
        Batch::new(py, batch, fields, Absent::none()).map(Some)
    }

    fn __length_hint__(&self) -> usize {
        match self.ended.load(Ordering::Relaxed) || self.run.loader.epoch() != self.epoch {
            true => 0,
            false => self.run.loader.batches_left() as usize,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.loader)
    }
}

impl Epoch {
    fn end(&self) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            self.loader.get().give_back(&self.run);
        }
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        self.end();
    }
}

/// The order of a Loader without the bytes: the indices of each batch.
#[pyclass(frozen, module = "dlfs._dlfs", name = "Sampler")]
pub(crate) struct Sampler {
    sampler: Mutex<dataset::Sampler>,
    dataset: dataset::Dataset,
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
        let sampler = dataset::Sampler::new(&dataset, parsed).map_err(|error| raise(py, &error))?;
        Ok(Sampler { sampler: Mutex::new(sampler), dataset })
    }

    /// The indices of the next batch, and whether the epoch ends with it; None at the run's end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(Vec<u64>, bool)>> {
        let mut ids = Vec::new();
        let next = self.sampler().next(&mut ids).map_err(|error| raise(py, &error))?;
        let directory = self.dataset.directory();
        Ok(next.map(|ends| (ids.iter().map(|&id| directory.rank_of(id)).collect(), ends)))
    }

    fn set_epoch(&self, epoch: &Bound<'_, PyAny>) -> PyResult<()> {
        let number = an_epoch(epoch)?;
        self.sampler().set_epoch(number).map_err(|error| raise(epoch.py(), &error))
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
    fn sampler(&self) -> MutexGuard<'_, dataset::Sampler> {
        // A panic in the middle leaves a place in the order, and no place is wrong.
        self.sampler.lock().unwrap_or_else(|held| held.into_inner())
    }
}

/// The number of an epoch.
///
/// # Errors
/// `InvalidArgument`: there is no such epoch. `TypeError`: it is no integer.
fn an_epoch(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    given.extract().map_err(|error: PyErr| {
        match error.is_instance_of::<PyOverflowError>(given.py()) {
            true => raise_invalid(given.py(), format!("there is no epoch {given}")),
            false => error,
        }
    })
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
