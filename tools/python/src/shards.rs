//! `ShardLoader`: batches of shards from the first epoch on, while their index is made.

use std::path::PathBuf;
use std::sync::Arc;

use dlfs::address::Address;
use dlfs::dataset::{self, RunState};
use dlfs::reader;
use dlfs::shards::image_to_fill;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::batch::Batch;
use crate::convert::{json, state_text};
use crate::dataset::addresses;
use crate::error::{self, OrRaise as _, Signals, detached, raise_invalid, turn};
use crate::fields::Fields;
use crate::held::Held;
use crate::options::{loader_options, open_options};

/// Batches of shards of samples that were not imported: tar, Parquet, MDS and the other kinds that an import takes.
///
/// address   the shards: a folder, a file, or a prefix of an object store
/// index     the place of the indexes, a folder or a prefix of a store: one for all ranks of a job, and for later jobs
/// open      options of dlfs.open, as a dict
/// import_to an image that the first epoch writes and later epochs read: addresses separated by commas or in a list,
///           one for each rank, or files that ranks of a node share ("file:train.dlfs")
/// options   those of dlfs.Loader, as keywords: batch_size, order (default: grouped), seed, epochs, rank, world_size,
///           drop_last, window, fields; without device, peers and store
///
/// Iterating it reads one epoch, or after load_state_dict the rest of one. If the index is not complete, the first
/// epoch makes it: it goes over shards in a random order, in lanes of which a window each is shuffled. Ranks may then
/// have different numbers of batches, and ids are those of that epoch alone. Later epochs are those of a dlfs.Loader.
///
/// With import_to, the image is what dlfs import makes of the shards, and is committed when all ranks have ended their
/// first epoch. A job that was killed goes on from what is there. If the image is complete, there is no first epoch.
///
/// Threads that share it take turns. It cannot be used in a forked child, which raises Unsupported.
#[pyclass(frozen, module = "dlfs", name = "ShardLoader", weakref)]
pub(crate) struct ShardLoader {
    /// `None` once closed. Locked only while detached from the interpreter.
    loader: parking_lot::Mutex<Option<dataset::ShardLoader>>,
    fields: Arc<Fields>,
}

#[pymethods]
impl ShardLoader {
    #[new]
    #[pyo3(signature = (address, index, *, open=None, import_to=None, **options))]
    fn new(
        address: &Bound<'_, PyAny>,
        index: PathBuf,
        open: Option<&Bound<'_, PyDict>>,
        import_to: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<ShardLoader> {
        let py = address.py();
        let given = open.map_or_else(|| Ok(PyDict::new(py)), |open| open.copy())?;
        given.set_item("shards", true)?;
        given.set_item("index", index)?;
        let addresses = addresses(address)?;
        let mut open = open_options(&given)?;
        if let (Some(shards), Some(image)) = (&mut open.open.shards, import_to) {
            shards.import_to = image_of(image)?;
        }
        let options = options.map_or_else(|| Ok(PyDict::new(py)), |options| options.copy())?;
        if !options.contains("order")? {
            options.set_item("order", "grouped")?; // a shard is read front to back
        }
        for keyword in ["device", "peers", "store"] {
            if options.get_item(keyword)?.is_some_and(|value| !value.is_none()) {
                let text = format!("{keyword} is not for shards: import them, and read the image");
                return Err(raise_invalid(py, text));
            }
        }
        let load = loader_options(&options, None)?;
        error::install_log(py)?;
        let loader =
            detached(py, |watch| dataset::ShardLoader::open(&addresses, &open, load, None, watch))?;
        let all = fields_of(&loader).or_raise(py)?;
        let opened = all.chosen(given.get_item("fields")?.as_ref())?.unwrap_or(all);
        let shown = opened.chosen(options.get_item("fields")?.as_ref())?;
        let fields = Arc::new(shown.unwrap_or(opened));
        Ok(ShardLoader { loader: Some(loader).into(), fields })
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, Batch>>> {
        error::hand_over_warnings(py)?;
        let taken = self.with(py, |loader, watch| {
            let mut batch = reader::Batch::new();
            Ok(loader.next_into(&mut batch, watch)?.then_some(batch))
        })?;
        let held = |batch| Held::read(batch, Arc::clone(&self.fields), Vec::new());
        taken.map(|batch| Batch::of(py, Arc::new(held(batch)), None)).transpose()
    }

    /// The epoch of the next batch.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader, _| Ok(loader.epoch()))
    }

    /// The state after the batches delivered so far: a dict that JSON can store. In the first epoch it has the places
    /// of this rank's lanes.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let state = self.with(py, |loader, _| Ok(loader.state()))?;
        json(py)?.call_method1("loads", (state.to_json(),))
    }

    /// Goes on from a state, or in the first epoch from a list of the states of all ranks, which another world size
    /// needs.
    ///
    /// Raises InvalidArgument (a ValueError) if it belongs to other shards, another seed or order, or lacks lanes of
    /// this rank; the run is then unchanged.
    fn load_state_dict(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = state.py();
        let text = match state.cast::<PyList>() {
            Ok(ranks) => {
                let texts = ranks.iter().map(|rank| state_text(&rank));
                texts.collect::<PyResult<Vec<_>>>()?.join("\n")
            }
            Err(_) => state_text(state)?,
        };
        let state = RunState::from_json(&text).map_err(|e| raise_invalid(py, e.report()))?;
        self.with(py, |loader, watch| loader.set_state(&state, watch))
    }

    /// Ends the threads that read. Batches stay valid. Leaving a `with` does the same.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |watch| {
            let loader = turn(&self.loader, watch)?.take();
            drop(loader); // after unlocking: it waits for its threads
            Ok(())
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}

impl ShardLoader {
    /// Runs `work` on the loader, detached from the interpreter, once it is this thread's turn.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut dataset::ShardLoader, &mut Signals) -> dlfs::Result<T> + Send,
    ) -> PyResult<T> {
        detached(py, |watch| {
            let mut held = turn(&self.loader, watch)?;
            let closed = || dlfs::Error::invalid("the loader is closed", "make another one");
            work(held.as_mut().ok_or_else(closed)?, watch)
        })
    }
}

/// Parses the addresses of an image to fill: also files that the ranks of a node share, as `file:PATH`.
fn image_of(image: &Bound<'_, PyAny>) -> PyResult<Vec<Address>> {
    let list = || image.extract::<Vec<String>>().map(|all| all.join(","));
    match image.extract::<String>().or_else(|_| list()) {
        Ok(text) => image_to_fill(&text).or_raise(image.py()),
        Err(_) => addresses(image),
    }
}

/// The fields of the samples in the shards.
fn fields_of(loader: &dataset::ShardLoader) -> dlfs::Result<Fields> {
    let set = loader.shards();
    Ok(Fields::new(set.fields()?, set.field_types()?.clone()))
}
