//! `Loader`: batches along an order, read ahead by the library's threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dlfs::directory::Directory;
use dlfs::gpu::Slot;
use dlfs::metrics::{Measured, Snapshot};
use dlfs::options::Store;
use dlfs::order::State;
use dlfs::prefetch::{LoaderOptions, LoaderStats};
use dlfs::units::SampleId;
use dlfs::{dataset, reader};
use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::batch::Batch;
use crate::convert::{self, an_epoch, state_of_dict, state_to_dict};
use crate::dataset::Dataset;
use crate::device::{Arrived, Device};
use crate::error::{self, OrRaise as _, Signals, detached, raise, raise_invalid};
use crate::fields::Fields;
use crate::held::Held;
use crate::metrics;
use crate::mixture::Mixture;
use crate::options::{given_or, loader_options, names, of_peers, without};
use crate::peers::Join;
use crate::report::{self, Report};
use crate::store;

/// Batches along an order, read ahead by native threads without the interpreter.
///
/// Iterating it reads one epoch from its start: the current epoch of the run; right after
/// load_state_dict, it resumes from the state. An epoch that was left before its end starts again.
/// Iterators that exist at the same time read the epoch independently, each with its own memory.
/// set_epoch moves to the start of another epoch; state_dict and load_state_dict save and resume
/// the exact position, also with another world size or batch size.
///
/// The subclass dlfs.Loader documents the options in its constructor.
#[pyclass(frozen, subclass, module = "dlfs._dlfs", name = "Loader", weakref)]
pub(crate) struct Loader {
    /// Locked only while attached to the interpreter, like `dataset`. So a fork never happens while the lock is held:
    /// the forking thread needs the interpreter, or the interpreter stops attached threads first.
    runs: Mutex<Runs>,
    /// `None` once closed.
    dataset: Mutex<Option<Py<PyAny>>>,
    fields: Arc<Fields>,
    options: Py<PyDict>,
    /// True if a state of other shares may be loaded.
    restart_shares: bool,
    /// The data set with this rank's store, if it has one and is not closed.
    stored: Mutex<Option<dataset::Dataset>>,
}

/// The current run, and the runs of older iterators that still exist.
struct Runs {
    /// The run of the newest iterator; the next iterator takes it over if that one has ended.
    newest: Arc<Run>,
    others: Vec<Arc<Run>>,
    /// Counters of runs that have ended, except the newest.
    past: LoaderStats,
}

/// One run of the library's loader, and its use by an iterator.
struct Run {
    loader: dataset::Loader,
    /// True if a state was loaded and nothing was read since: set_epoch of the same epoch, and a new iterator, then
    /// keep the position.
    resumed: AtomicBool,
    /// True while an iterator uses the run and has not ended.
    taken: AtomicBool,
    /// The device that batches are copied to.
    device: Option<Device>,
    /// The next batch, which may be on its way to the device already. Locked only while detached from the interpreter,
    /// by the thread that holds [`Epoch::turn`]; [`Run::close`] only tries the lock.
    ahead: Mutex<Option<AheadBatch>>,
}

/// A batch that was taken from a run with a device, and is not delivered yet.
struct AheadBatch {
    held: Arc<Held>,
    taken: dataset::Taken,
    /// The batch on the device; `None`: it was not sent yet.
    arrived: Option<Arc<Arrived>>,
}

impl Run {
    fn new(loader: dataset::Loader, resumed: bool, device: Option<Device>) -> Arc<Run> {
        let resumed = AtomicBool::new(resumed);
        let taken = AtomicBool::new(false);
        Arc::new(Run { loader, resumed, taken, device, ahead: Mutex::default() })
    }

    /// Ends the run, and drops a batch that was read ahead.
    fn close(&self) {
        self.loader.close();
        // A thread that holds the lock is taking a batch: it ends with an error, and drops the batch.
        if let Some(mut ahead) = self.ahead.try_lock() {
            ahead.take();
        }
    }

    fn stats(&self) -> LoaderStats {
        let stats = self.loader.stats();
        let copied = self.device.as_ref().map_or(0, Device::copied_bytes);
        LoaderStats { copied_bytes: stats.copied_bytes + copied, ..stats }
    }
}

#[pymethods]
impl Loader {
    #[new]
    #[pyo3(signature = (dataset, **options))]
    fn new(dataset: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Loader> {
        let py = dataset.py();
        let options = options.map_or_else(|| PyDict::new(py), Clone::clone);
        let restart_shares = given_or(&options, "restart_shares", false)?;
        let device = Device::of(&options)?;
        let shown = options.get_item("fields")?;
        let mut stored = None;
        let (fields, made) = match dataset.cast::<Mixture>() {
            Ok(mixture) => {
                let fields = mixture.get().fields_shown(py, shown.as_ref())?;
                refuse_joining(&options)?; // its data sets have joined their peers already
                without(&options, joining())?;
                let parsed = loader_options(&options, None)?;
                (fields, mixture.get().mixture(py)?.loader(parsed))
            }
            Err(_) => {
                let one = dataset.cast::<Dataset>()?;
                let fields = one.get().fields_shown(shown.as_ref())?;
                stored = open_store(one, &options)?;
                if stored.is_none() {
                    join_peers(one, &options, |_, run| Ok(run))?;
                }
                without(&options, joining())?;
                let opened = match &stored {
                    Some(stored) => stored.clone(),
                    None => one.get().dataset(py)?,
                };
                let parsed = loader_options(&options, Some(opened.directory()))?;
                (fields, opened.loader(parsed))
            }
        };
        let made = made.or_raise(py)?;
        Ok(Loader {
            runs: Mutex::new(Runs::of(made, device)),
            dataset: Mutex::new(Some(dataset.clone().unbind())),
            fields,
            options: options.unbind(),
            restart_shares,
            stored: Mutex::new(stored),
        })
    }

    /// A loader for worker `worker` of `workers`, which divide this rank's samples among them: for the forked
    /// children of the process that has the store.
    fn _worker(&self, py: Python<'_>, worker: u32, workers: u32) -> PyResult<Loader> {
        let held = self.stored.lock().clone();
        let dataset = held.ok_or_else(|| {
            raise_invalid(py, "a loader without a store, or a closed one, has no workers".into())
        })?;
        let mut options = self.newest().loader.options().clone();
        options.rank += worker.saturating_mul(options.world_size);
        options.world_size = options.world_size.saturating_mul(workers);
        options.trace = options.trace.map(|_| Arc::default());
        let made = dataset.loader(options).or_raise(py)?;
        Ok(Loader {
            runs: Mutex::new(Runs::of(made, None)), // of a forked child, which has no device
            dataset: Mutex::new(Some(self.dataset(py)?)),
            fields: Arc::clone(&self.fields),
            options: self.options.clone_ref(py),
            restart_shares: self.restart_shares,
            stored: Mutex::new(Some(dataset)),
        })
    }

    /// Batches of a whole epoch on this rank.
    fn __len__(&self, py: Python<'_>) -> usize {
        let run = self.newest();
        py.detach(|| run.loader.batches_per_epoch() as usize) // of batches by tokens it looks at all samples
    }

    fn __iter__(slf: Bound<'_, Self>) -> PyResult<Epoch> {
        let py = slf.py();
        let run = slf.get().run_to_take().or_raise(py)?;
        let State { epoch, consumed, .. } = run.loader.state();
        let begun = if consumed != 0 && !run.resumed.load(Ordering::Relaxed) {
            detached(py, |_| run.loader.set_epoch(epoch.0))
        } else {
            Ok(())
        };
        let turn = Mutex::new(());
        let ended = AtomicBool::new(false);
        let given_back = AtomicBool::new(false);
        let iterator = Epoch { loader: slf.unbind(), run, epoch: epoch.0, turn, ended, given_back };
        begun.map(|()| iterator) // otherwise dropping the iterator returns the run
    }

    /// Batches left in the current epoch of the run.
    #[getter]
    fn batches_left(&self, py: Python<'_>) -> u64 {
        let run = self.newest();
        py.detach(|| run.loader.batches_left())
    }

    /// The current epoch of the run: that of the next batch.
    #[getter]
    fn epoch(&self) -> u64 {
        self.newest().loader.epoch()
    }

    /// Moves to the start of `epoch`; keeps what was read ahead if the run is there already. Right
    /// after load_state_dict, the epoch of the state resumes from the state.
    fn set_epoch(&self, epoch: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = epoch.py();
        let epoch = an_epoch(epoch)?;
        let run = self.newest();
        if run.resumed.load(Ordering::Relaxed) && epoch == run.loader.epoch() {
            return Ok(());
        }
        detached(py, |_| run.loader.set_epoch(epoch))?;
        run.resumed.store(false, Ordering::Relaxed); // not after an error: the loaded state stays
        Ok(())
    }

    /// Allocates the readahead memory (window) in the background; otherwise the first batch
    /// does. Call it before a model is built, in the process that will read. Reads nothing yet.
    ///
    /// Raises OutOfMemory if the system does not provide it.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        let run = self.newest();
        detached(py, |_| run.loader.prepare())
    }

    /// Brings this rank's share into its store, for the position of the run: call it after load_state_dict; otherwise
    /// the first batch does it. Calls progress(done, samples) meanwhile. Returns at once without a store, or if the
    /// share is there; in a forked worker it asks the process that has the store.
    #[pyo3(signature = (progress=None))]
    fn stage(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        let run = self.newest();
        store::stage_store(py, &run.loader, progress)
    }

    /// The state of the run after the batches delivered so far (by the newest iterator): a dict
    /// that JSON can store. It has image, generation, order, seed, epoch, and the samples consumed
    /// by all ranks.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        state_to_dict(py, &self.newest().loader.state())
    }

    /// Resumes from `state`.
    ///
    /// Raises InvalidArgument (a ValueError) if it belongs to another data set, order or seed,
    /// Stale if samples were added or deleted since; the run is then unchanged.
    fn load_state_dict(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = state.py();
        let mut state = state_of_dict(state)?;
        let run = self.newest();
        let order = run.loader.options().order;
        if self.restart_shares && state.order != order {
            let len = run.loader.directory().num_live();
            state = state.begun_anew(&order, len).or_raise(py)?;
        }
        detached(py, |_| run.loader.set_state(&state))?;
        run.resumed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The counters so far, in this process: a dict. resident: samples in memory now. pages: the
    /// kind of that memory: "huge" (reserved by the administrator), "transparent" (transparent huge
    /// pages), "base" (4 KiB), "driver" (SPDK's), or None before the first read. stall_s: seconds
    /// that calls have waited; stalls_s: a dict of them by cause (start, order, window, network,
    /// checksum, copy; see docs/metrics.md). blocked_s: seconds that the loader itself has slept because batches
    /// waited for their consumer. copied_bytes: bytes copied to make batches contiguous. rewritten: samples in kept
    /// memory that were overwritten and had to be read again. bytes_by_place: the bytes read (bytes) as a dict by the
    /// place that served them: origin, ahead (another read brought them for a tier), memory, drive, peer. latency: how
    /// long commands took, a dict of count, mean_us, p50_us, p90_us, p99_us, p99_9_us. window_bytes, window_used_bytes:
    /// the window's memory now. The same keys are under "loader" in what `dlfs read --json` prints.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        convert::dict(py, &self.counted(py))
    }

    /// Returns whether the verified bytes of sample `id` are in memory now, in this process: of the newest iterator's
    /// run, exactly while its chunk is there. Always False of a mixture, and where batches are not made of whole
    /// chunks.
    fn is_resident(&self, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = id.py();
        let id = SampleId(convert::id(id)?);
        let run = self.newest();
        Ok(py.detach(|| run.loader.is_resident(id)))
    }

    /// The report on what the run has delivered and waited for so far: over time, by cause and by place, epochs side
    /// by side, and what to try next. It is of the newest iterator's run, in this process. Writes the page to `path`
    /// if one is given.
    #[pyo3(signature = (path=None))]
    fn report(&self, py: Python<'_>, path: Option<std::path::PathBuf>) -> PyResult<Report> {
        let report = Report::of(py, &self.newest().loader);
        if let Some(path) = path {
            report.save(py, path)?;
        }
        Ok(report)
    }

    /// The newest events of the run, of the newest iterator and in this process, in Chrome's trace format: JSON that
    /// https://ui.perfetto.dev shows. They are calls for batches and what these waited for, bursts of reads, sleeps of
    /// the thread that reads, and rates; what `dlfs read --trace` writes.
    ///
    /// Raises InvalidArgument (a ValueError) unless the loader was made with trace=True.
    fn trace_json(&self, py: Python<'_>) -> PyResult<String> {
        let run = self.newest();
        py.detach(|| run.loader.trace_json()).ok_or_else(|| {
            let text = "the loader keeps no events: make it with trace=True";
            raise_invalid(py, text.into())
        })
    }

    /// Writes what trace_json returns to `path`. A file there is replaced in one step.
    fn save_trace(&self, py: Python<'_>, path: std::path::PathBuf) -> PyResult<()> {
        report::save(py, &path, &self.trace_json(py)?)
    }

    /// The counters so far by their names in docs/metrics.md, as `dlfs.metrics.values` has them for the process.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut snapshot = Snapshot::of(&self.counted(py));
        if let Some(store) = self.newest().loader.store_stats() {
            store.measure(&mut snapshot);
        }
        metrics::to_dict(py, &snapshot)
    }

    /// The counters of this rank's store so far: a dict, or None without a store. held_bytes, peak_bytes: bytes of
    /// pages now, and at most. found: samples that lay there before. staged, staged_bytes: brought from the data set
    /// before an epoch. received, received_bytes: from other ranks. near_bytes: from those on the same node.
    /// from_origin, from_origin_bytes: from the data set, because a rank was late or dead, or a copy damaged. deleted:
    /// left, and were read by their new rank. mismatched: damaged at a peer. steps of exchanges that were due. waits:
    /// reads that waited for a sample.
    fn store_stats<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let stats = self.newest().loader.store_stats();
        stats.map(|stats| convert::dict(py, &stats)).transpose()
    }

    /// Ends calls that wait in other threads, stops readahead and releases the data set, with its
    /// connections and tiers if nobody else uses it. Batches stay valid. Leaving a `with` does the
    /// same.
    fn close(&self, py: Python<'_>) {
        let dataset = self.dataset.lock().take();
        let stored = self.stored.lock().take();
        self.close_runs(py);
        py.detach(|| drop(stored)); // possibly the last reference, which ends the exchange
        drop(dataset); // possibly the last reference
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    /// The data set, or the mixture. Raises InvalidArgument once the loader is closed.
    #[getter]
    fn dataset(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let dataset = self.dataset.lock().as_ref().map(|dataset| dataset.clone_ref(py));
        dataset.ok_or_else(|| raise_invalid(py, "the loader is closed: it has no data set".into()))
    }

    /// The options that it was created with.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.options.bind(py).copy()
    }

    /// Stores class, data set, options, position, and the object's other attributes.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        if this.stored.lock().is_some() {
            let text = "a loader with a store stays in its process and the children that are forked from it: \
                        start workers by fork";
            return Err(raise(py, &dlfs::Error::new(dlfs::ErrorKind::Unsupported, text)));
        }
        let make = py.import("dlfs")?.getattr("_remake")?;
        let state = this.state_dict(py)?;
        let made_of = (slf.get_type(), this.dataset(py)?, &this.options, state);
        let beside = slf.call_method0("__getstate__")?;
        Ok((make, made_of, beside).into_pyobject(py)?.into_any())
    }

    /// A cycle through a live iterator is found and collected.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.options)?;
        match self.dataset.try_lock() {
            Some(dataset) => dataset.as_ref().map_or(Ok(()), |dataset| visit.call(dataset)),
            None => Ok(()), // whoever holds the lock is alive
        }
    }

    fn __repr__(&self) -> String {
        format!("<dlfs.Loader at {}>", self.newest().loader.state().to_json())
    }
}

impl Loader {
    /// The counters of all runs. Reads them detached from the interpreter: a loader that another thread waits for holds
    /// its lock for up to 50 ms at a time, and one that is prepared while it allocates the window.
    fn counted(&self, py: Python<'_>) -> LoaderStats {
        let runs = self.runs.lock();
        let past = runs.past;
        let all = runs.all();
        drop(runs);
        py.detach(|| all.iter().map(|run| run.stats()).fold(past, dataset::sum_stats))
    }

    /// Closes all runs, also one that another thread begins meanwhile; no run begins from a closed one.
    fn close_runs(&self, py: Python<'_>) {
        loop {
            let runs = self.runs.lock().all();
            py.detach(|| runs.iter().for_each(|run| run.close()));
            if Arc::ptr_eq(&self.newest(), &runs[0]) {
                return;
            }
        }
    }

    fn newest(&self) -> Arc<Run> {
        Arc::clone(&self.runs.lock().newest)
    }

    /// The run for a new iterator: the newest, or another one from the same state if an iterator uses the newest.
    fn run_to_take(&self) -> dlfs::Result<Arc<Run>> {
        let mut runs = self.runs.lock();
        if runs.newest.taken.load(Ordering::Relaxed) {
            let newest = &runs.newest;
            let resumed = newest.resumed.load(Ordering::Relaxed);
            let device = newest.device.as_ref().map(Device::another);
            let another = Run::new(newest.loader.begin_another()?, resumed, device);
            let before = std::mem::replace(&mut runs.newest, another);
            runs.others.push(before);
        }
        runs.newest.taken.store(true, Ordering::Relaxed);
        Ok(Arc::clone(&runs.newest))
    }

    /// Takes back the run of an iterator that has ended or was dropped. Returns a run for the caller to close;
    /// `None`: it is the newest, which the next iterator takes over.
    fn give_back(&self, run: &Arc<Run>) -> Option<Arc<Run>> {
        run.taken.store(false, Ordering::Relaxed);
        let mut runs = self.runs.lock();
        let at = runs.others.iter().position(|other| Arc::ptr_eq(other, run))?;
        let run = runs.others.swap_remove(at);
        runs.past = dataset::sum_stats(runs.past, run.stats().ended());
        Some(run)
    }
}

impl Runs {
    /// The first run of a loader.
    fn of(loader: dataset::Loader, device: Option<Device>) -> Runs {
        let newest = Run::new(loader, false, device);
        Runs { newest, others: Vec::new(), past: LoaderStats::default() }
    }

    fn all(&self) -> Vec<Arc<Run>> {
        std::iter::once(&self.newest).chain(&self.others).map(Arc::clone).collect()
    }
}

/// A batch, and its arrays on a device if the loader has one.
type Delivered = (Arc<Held>, Option<Arc<Arrived>>);

/// An iterator over one epoch of a loader, or over the rest of it.
#[pyclass(frozen, module = "dlfs._dlfs")]
pub(crate) struct Epoch {
    loader: Py<Loader>,
    run: Arc<Run>,
    /// Number of the epoch.
    epoch: u64,
    /// Held while a thread checks for the end of the epoch and takes its batch: threads that share the iterator take
    /// turns.
    turn: Mutex<()>,
    /// True once the epoch has no more batch for this iterator.
    ended: AtomicBool,
    /// True once the run was given back to the loader.
    given_back: AtomicBool,
}

#[pymethods]
impl Epoch {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, Batch>>> {
        error::hand_over_warnings(py)?;
        let taken = detached(py, |watch| self.take(watch));
        if self.ended.load(Ordering::Relaxed)
            && let Some(run) = self.give_back()
        {
            py.detach(|| run.close());
        }
        let Some((held, arrived)) = taken? else { return Ok(None) };
        Batch::of(py, held, arrived).map(Some)
    }

    fn __length_hint__(&self) -> usize {
        let loader = &self.run.loader;
        // Batches by tokens would have to be counted.
        let is_counted = loader.options().budget.is_none();
        let is_here = !self.ended.load(Ordering::Relaxed) && loader.epoch() == self.epoch;
        if is_here && is_counted { loader.batches_left() as usize } else { 0 }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.loader)
    }
}

impl Epoch {
    /// The next batch of the epoch; `None`: the epoch has ended.
    fn take(&self, watch: &mut Signals) -> dlfs::Result<Option<Delivered>> {
        let _turn = error::turn(&self.turn, watch)?;
        if self.has_ended()? {
            return Ok(None);
        }
        if let Some(device) = &self.run.device {
            return self.take_to(device, watch);
        }
        let batch = self.run.loader.next(watch)?;
        self.run.resumed.store(false, Ordering::Relaxed);
        if batch.as_ref().is_none_or(reader::Batch::ends_epoch) {
            self.end();
        }
        Ok(batch.map(|batch| (self.held(batch), None)))
    }

    /// Takes the next batch to a device. The run's state stays before the batch until the batch is on its way there, so
    /// that a failure loses no batch.
    fn take_to(&self, device: &Device, watch: &mut Signals) -> dlfs::Result<Option<Delivered>> {
        let Run { loader, ahead, resumed, .. } = &*self.run;
        let mut ahead = ahead.lock();
        loop {
            ahead.take_if(|known| !loader.is_next(&known.taken));
            let is_sent = ahead.as_ref().is_some_and(|known| known.arrived.is_some());
            let wait = loader.options().deadline;
            let slot = if is_sent { None } else { Some(device.slot(wait, watch)?) };
            let next = match ahead.take() {
                Some(known) => Some(known),
                None => loader.take(watch)?.map(|taken| self.ahead_batch(taken)),
            };
            let Some(mut next) = next else {
                self.end();
                return Ok(None);
            };
            if let Some(slot) = slot
                && let Err(error) = next.send(slot)
            {
                *ahead = Some(next);
                return Err(error);
            }
            if loader.deliver(&next.taken) {
                resumed.store(false, Ordering::Relaxed);
                if next.held.ends_epoch() {
                    self.end();
                } else {
                    *ahead = self.look_ahead(device);
                }
                return Ok(Some((next.held, next.arrived)));
            }
            // Another thread has moved the run meanwhile: this batch is not the next one any more.
            if self.has_ended()? {
                return Ok(None);
            }
        }
    }

    /// The batch after the one that was just delivered, if it is ready; already on its way to the device if a buffer is
    /// free. Errors are dropped: they come again when the batch is asked for.
    fn look_ahead(&self, device: &Device) -> Option<AheadBatch> {
        let loader = &self.run.loader;
        if !loader.has_batches_left() {
            return None;
        }
        let mut next = self.ahead_batch(loader.take_ready().ok()??);
        if let Some(slot) = device.free_slot() {
            let _ = next.send(slot); // after an error, sent again when the batch is asked for
        }
        Some(next)
    }

    fn ahead_batch(&self, (batch, taken): (reader::Batch, dataset::Taken)) -> AheadBatch {
        AheadBatch { held: self.held(batch), taken, arrived: None }
    }

    fn held(&self, batch: reader::Batch) -> Arc<Held> {
        let fields = Arc::clone(&self.loader.get().fields);
        Arc::new(Held::read(batch, fields, Vec::new()))
    }

    /// Returns whether the epoch has no more batch for this iterator.
    fn has_ended(&self) -> dlfs::Result<bool> {
        let ended = self.ended.load(Ordering::Relaxed) || has_ended(&self.run.loader, self.epoch)?;
        self.ended.store(ended, Ordering::Relaxed);
        Ok(ended)
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Returns the run to the loader, once; a run that this returns must be closed. Call it while attached to the
    /// interpreter: it locks [`Loader::runs`].
    fn give_back(&self) -> Option<Arc<Run>> {
        let is_first = !self.given_back.swap(true, Ordering::Relaxed);
        if is_first { self.loader.get().give_back(&self.run) } else { None }
    }
}

impl AheadBatch {
    /// Starts the copy to the device.
    fn send(&mut self, slot: Slot) -> dlfs::Result<()> {
        self.arrived = Some(Arc::new(Arrived::send(&self.held, slot)?));
        Ok(())
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        if let Some(run) = self.give_back() {
            run.close();
        }
    }
}

/// Returns whether the run has left `epoch`. If no batch of the epoch is left for this rank, moves the run to the next
/// epoch.
pub(crate) fn has_ended(loader: &dataset::Loader, epoch: u64) -> dlfs::Result<bool> {
    if loader.epoch() == epoch {
        if loader.has_batches_left() {
            return Ok(false);
        }
        if epoch < loader.options().epochs.end {
            // This rank has no samples in the rest of the epoch, so no batch will end the epoch.
            loader.set_epoch(epoch + 1)?;
        }
    }
    Ok(true)
}

/// The names of the options of peers and of the store.
pub(crate) fn joining() -> Vec<String> {
    [of_peers(), names::<Store>()].concat()
}

/// Refuses options that make a rank join others.
fn refuse_joining(options: &Bound<'_, PyDict>) -> PyResult<()> {
    for keyword in ["peers", "store"] {
        if options.get_item(keyword)?.is_some_and(|value| !value.is_none()) {
            let text = format!(
                "{keyword} is of one data set, not of a mixture: peers are joined by dlfs.open or \
                 Dataset.join_peers of each"
            );
            return Err(raise_invalid(options.py(), text));
        }
    }
    Ok(())
}

/// Joins the peers that the options name, if any: the data set then reads through them. Sets rank and world size of the
/// options to those of the job, unless they have a world size above 1. `completed` completes the options of the run,
/// which all ranks compare.
pub(crate) fn join_peers(
    dataset: &Bound<'_, Dataset>,
    options: &Bound<'_, PyDict>,
    completed: impl FnOnce(&Directory, LoaderOptions) -> dlfs::Result<LoaderOptions>,
) -> PyResult<()> {
    let Some(join) = Join::of(options)? else { return Ok(()) };
    let opened = dataset.get().dataset(dataset.py())?;
    let run = |at| {
        place(options, at)?;
        let run = loader_options(options, Some(opened.directory()))?;
        completed(opened.directory(), run).map(Some).or_raise(options.py())
    };
    let at = dataset.get().through_peers(dataset.py(), join, run)?;
    place(options, at)
}

/// Sets rank and world size of the options, unless they have a world size above 1.
fn place(options: &Bound<'_, PyDict>, (rank, world_size): (u32, u32)) -> PyResult<()> {
    if given_or(options, "world_size", 1_u32)? <= 1 {
        options.set_item("rank", rank)?;
        options.set_item("world_size", world_size)?;
    }
    Ok(())
}

/// Opens the store that the options name, if any; returns the data set with it. If the options name peers, sets rank
/// and world size of the options to those of the job, unless they have a world size above 1.
fn open_store(
    dataset: &Bound<'_, Dataset>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Option<dataset::Dataset>> {
    let Some(stored) = store::store_options(options)? else { return Ok(None) };
    let py = dataset.py();
    let join = Join::of(options)?;
    if let Some(join) = &join {
        let meeting = join.meeting(py)?;
        place(options, (meeting.rank, meeting.world_size))?;
    }
    let opened = dataset.get().dataset(py)?;
    let connect = &dataset.get().connect;
    let run = loader_options(options, Some(opened.directory()))?;
    store::open_store(py, &opened, stored, join.as_ref(), (&run, connect)).map(Some)
}
