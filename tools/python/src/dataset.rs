//! `Dataset`: an open data set, shared by threads; unpickling opens it again.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;
use std::time::Duration;

use dlfs::address::Address;
use dlfs::dataset::{self, OnError, Query};
use dlfs::directory::{Column, Directory};
use dlfs::format::columns::Value;
use dlfs::metrics::{Measured, READ_COMMAND_SECONDS, Snapshot};
use dlfs::peers::{Meeting, Pass};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::units::SampleId;
use dlfs::view::{NamedView, Split, SplitBy};
use parking_lot::{Mutex, RwLock};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PyTuple};

use crate::batch::Batch;
use crate::convert::{self, json, position};
use crate::error::{self, OrRaise as _, detached, raise, raise_invalid, raise_lookup};
use crate::ffi::{Memory, Output, Source};
use crate::fields::{Choice, Fields};
use crate::held::Held;
use crate::keys::{Keys, Names, looked_up, picked};
use crate::options::{about, open_options, seconds, without};
use crate::peers::{Join, keywords};
use crate::sample_file::{self, SampleFile};
use crate::{metrics, numpy};

/// An open data set: a sequence of samples. `dlfs.open` returns it.
///
/// ds[i] and ds[name], with a str or bytes, return the verified bytes of a sample as a read-only
/// memoryview (a dlfs.Sample, a mapping of names to fields, if samples have several and `fields` of
/// dlfs.open did not choose one). ds[i:j] and read_batch read many samples in few large reads, as a Batch; a
/// dlfs.Loader reads all of them. Threads may share it. A forked child may use it, and opens its
/// own connections. Pickling stores the address and options; unpickling opens it again. Workers that
/// multiprocessing spawns map the directory of the process that starts them. No Python object is kept per sample.
///
/// An index counts the existing samples; an id is assigned by an import. They are equal unless
/// samples were deleted.
#[pyclass(frozen, module = "dlfs", name = "Dataset", sequence, weakref)]
pub(crate) struct Dataset {
    /// `None` once closed.
    dataset: RwLock<Option<dataset::Dataset>>,
    /// The fields that samples show.
    fields: Arc<Fields>,
    /// The address and the options of dlfs.open, for pickles.
    address: Py<PyAny>,
    options: Py<PyDict>,
    /// Options of connections, also of those to peers.
    pub(crate) connect: ConnectOptions,
    /// The peers that this process has joined; `None`: it has joined none. Locked while a thread joins.
    joining: Mutex<Option<(Join, Meeting)>>,
}

#[pymethods]
impl Dataset {
    #[new]
    #[pyo3(signature = (address, **options))]
    fn new(address: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Dataset> {
        let py = address.py();
        let given = options.map_or_else(|| PyDict::new(py), Clone::clone);
        let parsed = addresses(address)?;
        let options = open_options(&given)?;
        // Not kept for later pickles: the location lasts only as long as the process that shares it.
        without(&given, ["shared_snapshot".to_owned()])?;
        error::install_log(py)?;
        let dataset = detached(py, |watch| dataset::Dataset::open(&parsed, &options, watch))?;
        let all = Fields::of(dataset.directory());
        let fields = Arc::new(all.chosen(given.get_item("fields")?.as_ref())?.unwrap_or(all));
        let dataset = RwLock::new(Some(dataset));
        let address = address.clone().unbind();
        let connect = options.open.connect;
        let joining = Mutex::new(None);
        Ok(Dataset { dataset, fields, address, options: given.unbind(), connect, joining })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.dataset(py)?.len() as usize)
    }

    /// ds[i]: sample i, counted from the end if i is negative; ds[name]: the sample of that name, a
    /// str (as from os.fsdecode) or bytes. A read-only memoryview. ds[i:j]: a Batch, read at once.
    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let dataset = self.dataset(py)?;
        if let Ok(slice) = key.cast::<PySlice>() {
            let ids = picked(slice, dataset.len())?.map(|at| dataset.id_at(at));
            let ids = ids.collect::<dlfs::Result<Vec<_>>>().or_raise(py)?;
            return Ok(self.read_ids(py, &dataset, &ids)?.into_any());
        }
        let id = if convert::is_name(key) {
            looked_up(&dataset, key)?.map_err(|error| raise_lookup(py, &error))?
        } else {
            let at = position(key, dataset.len(), "data set")?;
            dataset.id_at(at).or_raise(py)?
        };
        self.read_ids(py, &dataset, &[id])?.get().view(py, 0)
    }

    /// Returns whether there is a sample of this name.
    fn __contains__(&self, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = name.py();
        if !convert::is_name(name) {
            return Ok(false);
        }
        let dataset = self.dataset(py)?;
        match looked_up(&dataset, name)? {
            Err(error) if error.kind() == dlfs::ErrorKind::NotFound => Ok(false),
            found => found.map(|_| true).or_raise(py),
        }
    }

    /// Reads many samples at once, in the requested order: `ids` are ids (any iterable of integers
    /// or integer array, not negative) or names (str or bytes).
    ///
    /// out: a writable buffer of uint8 for the bytes, samples contiguous; then the result is the
    /// start of each, int64[B + 1]. Otherwise the result is a Batch. on_error: "raise" the first
    /// error, "skip" samples that cannot be read, or return "none": None for them. fields: as in
    /// dlfs.open, for this batch.
    ///
    /// Raises NotFound, Corrupt, Disconnected, TimedOut, Stale; InvalidArgument if `out` is too
    /// small.
    #[pyo3(signature = (ids, out = None, on_error = "raise", *, fields = None))]
    fn read_batch<'py>(
        &self,
        ids: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        on_error: &str,
        fields: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = ids.py();
        let fields = self.fields_shown(fields)?;
        let out = out.map(Output::new).transpose()?;
        let policy = match on_error {
            "raise" => OnError::Raise,
            "skip" => OnError::Skip,
            "none" => OnError::Blank,
            other => {
                let text = format!("on_error is \"raise\", \"skip\" or \"none\", not {other:?}");
                return Err(raise_invalid(py, text));
            }
        };
        if out.is_some() && fields.are_several() {
            return Err(raise(py, &fields.unnamed()));
        }
        let dataset = self.dataset(py)?;
        let read = match Keys::of(ids)? {
            Keys::Ids(ids) => detached(py, |watch| dataset.read(Query::Ids(&ids), policy, watch))?,
            Keys::Names(names) => {
                let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
                detached(py, |watch| dataset.read(Query::Names(&names), policy, watch))?
            }
        };
        let failures = if policy == OnError::Blank { read.failures } else { Vec::new() };
        let batch = Batch::new(py, read.batch, fields, failures)?;
        match out {
            None => Ok(batch.into_any()),
            Some(out) => fill(py, out, &batch.get().held),
        }
    }

    /// Reads parts of samples at once, each byte verified: `ranges` are (id or name, start, end), with end
    /// None for the sample's end. Returns a list of bytes, shorter where a sample ends. Of a sample of
    /// more than 1 MiB only the pieces of 256 KiB that a range touches are read; one that was imported
    /// by an earlier release is read whole once. Parts of a large file of a plain folder are not verified.
    ///
    /// fields: the name of the field that the ranges are parts of, if samples have several. on_error:
    /// "raise" the first error, or "return" errors in the places of their ranges.
    ///
    /// Raises NotFound, also for a field that the sample lacks, NameNotFound, Corrupt (other parts of
    /// that sample may be readable), Disconnected, TimedOut, Stale.
    #[pyo3(signature = (ranges, on_error = "raise", *, fields = None))]
    fn read_ranges<'py>(
        &self,
        ranges: &Bound<'py, PyAny>,
        on_error: &str,
        fields: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let fields = self.fields_shown(fields)?;
        sample_file::read_ranges(&self.dataset(ranges.py())?, &fields, ranges, on_error)
    }

    /// Opens a sample, an id or a name, to read parts of it: a SampleFile. fields: the name of the
    /// field that is the file, if samples have several. as_file: a field that came from an .npy file or from text is
    /// one again, as dlfs export and mount show it; else it is its elements.
    ///
    /// Raises NotFound, NameNotFound.
    #[pyo3(signature = (sample, *, fields = None, as_file = false))]
    fn open_sample(
        &self,
        sample: &Bound<'_, PyAny>,
        fields: Option<&Bound<'_, PyAny>>,
        as_file: bool,
    ) -> PyResult<SampleFile> {
        let fields = self.fields_shown(fields)?;
        sample_file::open_sample(&self.dataset(sample.py())?, &fields, sample, as_file)
    }

    /// Labels of all samples by id, from memory: a read-only numpy view, int8 to int64[number of
    /// ids], or None if no sample has one. The least value of its dtype marks samples without a
    /// label (`label` of one sample returns None).
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let dataset = self.dataset(py)?;
        let Some(labels) = dataset.directory().labels() else { return Ok(None) };
        let dtype = format!("<i{}", labels.width_bytes());
        let memory =
            Bound::new(py, Memory::whole(Source::Labels(Arc::clone(dataset.directory()))))?;
        numpy::view(memory.as_any(), labels.as_bytes().len(), &dtype).map(Some)
    }

    /// The typed columns, in their order: {name: "int", "float", "f32", "bool" or "str"}.
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dataset = self.dataset(py)?;
        let columns = PyDict::new(py);
        for column in dataset.directory().columns() {
            columns.set_item(column.name(), column.kind().name())?;
        }
        Ok(columns)
    }

    /// Values of all samples in the typed column called `name`, by id, from memory: a read-only numpy view.
    /// Of type int it is int8 to int64[number of ids], whose least value marks samples without a value;
    /// likewise of bool, 0 and 1, and of str, numbers of `texts(name)`. Of float it is float64, of f32
    /// float32, where NaN marks them.
    ///
    /// Raises NotFound if there is no such column.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let dataset = self.dataset(py)?;
        let directory = dataset.directory();
        let (at, column) = column_at(directory, name).or_raise(py)?;
        let letter = if column.kind().is_float() { 'f' } else { 'i' };
        let dtype = format!("<{letter}{}", column.width_bytes());
        let memory = Bound::new(py, Memory::whole(Source::Column(Arc::clone(directory), at)))?;
        numpy::view(memory.as_any(), column.as_bytes().len(), &dtype)
    }

    /// The texts of the typed column called `name`, of type str, ascending: its values are indexes into them.
    /// Empty for columns of other types.
    ///
    /// Raises NotFound if there is no such column.
    fn texts<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyTuple>> {
        let dataset = self.dataset(py)?;
        let (_, column) = column_at(dataset.directory(), name).or_raise(py)?;
        PyTuple::new(py, column.texts())
    }

    /// Values of the sample `id` in all typed columns, without I/O: {name: int, float, bool, str or None}.
    fn values<'py>(&self, py: Python<'py>, id: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let id = SampleId(convert::id(id)?);
        let dataset = self.dataset(py)?;
        let values = PyDict::new(py);
        dataset.len_bytes(id).or_raise(py)?; // whether the sample exists
        for column in dataset.directory().columns() {
            let name = column.name();
            match column.get(id.0) {
                Value::None => values.set_item(name, py.None())?,
                Value::Int(number) => values.set_item(name, number)?,
                Value::Float(number) => values.set_item(name, number)?,
                Value::Bool(is_true) => values.set_item(name, is_true)?,
                Value::Text(text) => values.set_item(name, text)?,
            }
        }
        Ok(values)
    }

    /// Names of the classes: a label is an index into it. Empty if labels are plain numbers.
    #[getter]
    fn classes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        convert::tuple(py, self.dataset(py)?.directory().classes())
    }

    /// Names of the fields of a sample, in their order; empty if samples are not divided, and then
    /// field 0 is the whole sample.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        convert::tuple(py, self.dataset(py)?.directory().fields())
    }

    /// The fields that have a type: {name: dlfs.FieldType}. They come as arrays.
    #[getter]
    fn field_types<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        numpy::mapped_types(py, &Fields::of(self.dataset(py)?.directory()))
    }

    /// The choice of the option `fields` of dlfs.open: the name of the field that is the sample, the tuple of those
    /// in its mapping, or None.
    #[getter]
    fn chosen_fields<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(match self.fields.choice() {
            None => None,
            Some(Choice::One(name)) => Some(convert::to_str(py, &name)?),
            Some(Choice::Several(several)) => Some(convert::tuple(py, &several)?.into_any()),
        })
    }

    /// Ids of the existing samples, ascending: int64[len(ds)].
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let dataset = self.dataset(py)?;
        numpy::int64(py, (0..dataset.len()).map(|at| dataset.directory().id_of_live(at).0 as i64))
    }

    /// Names of the samples by index: a sequence that creates each str on request.
    #[getter]
    fn names(&self, py: Python<'_>) -> PyResult<Names> {
        let dataset = self.dataset(py)?;
        detached(py, |watch| dataset.load_names(watch))?;
        Ok(Names::of(dataset))
    }

    /// Name of the sample `id`, as from os.fsdecode.
    fn name<'py>(&self, py: Python<'py>, id: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let id = SampleId(convert::id(id)?);
        let dataset = self.dataset(py)?;
        let name = detached(py, |watch| dataset.name(id, watch))?;
        convert::to_str(py, &name)
    }

    /// Id of the sample called `name`. Raises NameNotFound, a KeyError.
    fn id_of(&self, name: &Bound<'_, PyAny>) -> PyResult<u64> {
        let py = name.py();
        let dataset = self.dataset(py)?;
        looked_up(&dataset, name)?.map(|id| id.0).map_err(|error| raise_lookup(py, &error))
    }

    /// Length of the sample `id` in bytes, without I/O; the total of its fields if it has several.
    ///
    /// Raises Unsupported if fields were chosen of several: an image has the length of all together, not of each.
    fn length(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<usize> {
        let id = SampleId(convert::id(id)?);
        let len = self.dataset(py)?.len_bytes(id).or_raise(py)?;
        if self.fields.choice().is_some() && self.fields.names.len() > 1 {
            let text = "an image has the length of all fields of a sample together, not of each";
            return Err(raise(
                py,
                &dlfs::Error::new(dlfs::ErrorKind::Unsupported, text).sample(id),
            ));
        }
        Ok(self.fields.len_of(len as usize))
    }

    /// Label of the sample `id`, without I/O; None if it has none.
    fn label(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        let id = SampleId(convert::id(id)?);
        let dataset = self.dataset(py)?;
        dataset.len_bytes(id).or_raise(py)?; // whether the sample exists
        Ok(dataset.directory().label(id))
    }

    /// The direct entries of a folder: a list of (name, id), id None for a folder. "" is the top.
    #[pyo3(signature = (folder = None))]
    fn listdir<'py>(
        &self,
        py: Python<'py>,
        folder: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let dataset = self.dataset(py)?;
        let folder = folder.map_or(Ok(Vec::new()), convert::to_bytes)?;
        let entries = detached(py, |watch| {
            dataset.load_names(watch)?;
            Ok(dataset.directory().list(&folder)?)
        })?;
        let list = PyList::empty(py);
        for entry in entries {
            let id = match entry.kind {
                dlfs::directory::EntryKind::Folder => None,
                dlfs::directory::EntryKind::Sample(id) => Some(id.0),
            };
            list.append((convert::to_str(py, &entry.name)?, id))?;
        }
        Ok(list)
    }

    /// The address that it was opened with.
    #[getter]
    fn address(&self, py: Python<'_>) -> Py<PyAny> {
        self.address.clone_ref(py)
    }

    /// UUID of the image: 32 hexadecimal digits.
    #[getter]
    fn uuid(&self, py: Python<'_>) -> PyResult<String> {
        let uuid = self.dataset(py)?.directory().uuid().0;
        Ok(uuid.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Generation of the image: every import, append or deletion creates a new one.
    #[getter]
    fn generation(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.dataset(py)?.directory().generation().0)
    }

    /// The hash of the view that this is, 32 hexadecimal digits; None for a whole data set.
    #[getter]
    fn view(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let mark = self.dataset(py)?.directory().view();
        Ok(mark.map(|mark| mark.hash.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// A part of the samples as a data set of its own, a view: those that fit `expression`, over the
    /// columns id, label, len, name and the typed ones, such as "width > 512 and lang == 'de'",
    /// "label in (3, 7) and len < 4096" or "name glob '*.jpg'";
    /// or those with these `ids` (any iterable of integers, or an array). Of both: those that are in both.
    ///
    /// It shares connections, tiers and peers with this data set, and takes no I/O, unless the expression
    /// compares names. Loaders, samplers, workers and pickles treat it as any data set; the states of its
    /// loaders name its hash. ids stay those of the image; indices count the samples of the view.
    ///
    /// Raises InvalidArgument if the expression is wrong, and says at which character, or if nothing fits;
    /// NotFound for an id that is no sample of this data set.
    #[pyo3(signature = (expression = None, *, ids = None))]
    fn select(
        &self,
        py: Python<'_>,
        expression: Option<&str>,
        ids: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Dataset> {
        if expression.is_none() && ids.is_none() {
            return Err(PyTypeError::new_err("select() takes an expression, or ids, or both"));
        }
        let mut selected = self.dataset(py)?;
        if let Some(ids) = ids {
            let Keys::Ids(ids) = Keys::of(ids)? else {
                return Err(PyTypeError::new_err("ids are integers; id_of returns that of a name"));
            };
            selected = detached(py, |_| selected.select_ids(ids))?;
        }
        if let Some(expression) = expression {
            selected = detached(py, |watch| selected.select(expression, watch))?;
        }
        self.viewed(py, selected)
    }

    /// Divides the samples by a keyed hash: {"train": 0.9, "val": 0.1} gives a dict of views with these
    /// names. The shares sum to 1; of a single one, the others are called "rest".
    ///
    /// A sample stays in its part when others are appended or deleted. by: "id"; "name", which also stays
    /// in a new import; or "folder": all samples of a folder come into one part. A split of a view is
    /// independent of the one that made the view, also with the same seed.
    ///
    /// Raises InvalidArgument if the shares do not sum to 1, or if a part gets no sample.
    #[pyo3(signature = (shares, *, seed = 0, by = "id"))]
    fn split<'py>(
        &self,
        py: Python<'py>,
        shares: &Bound<'py, PyDict>,
        seed: u64,
        by: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let by = match by {
            "id" => SplitBy::Id,
            "name" => SplitBy::Name,
            "folder" => SplitBy::Folder,
            other => {
                let text = format!("by is \"id\", \"name\" or \"folder\", not {other:?}");
                return Err(raise_invalid(py, text));
            }
        };
        let shares = shares.iter().map(|(name, share)| Ok((name.extract()?, share.extract()?)));
        let split = Split::new(shares.collect::<PyResult<_>>()?, seed, by);
        let split = split.map_err(|error| raise_invalid(py, error.to_string()))?;
        let dataset = self.dataset(py)?;
        let views = detached(py, |watch| {
            let views = dataset.split(&split, watch)?;
            let viewed = |named: NamedView| Ok((named.name, dataset.viewed(&named.view)?));
            views.into_iter().map(viewed).collect::<dlfs::Result<Vec<_>>>()
        })?;
        let dict = PyDict::new(py);
        for (name, view) in views {
            dict.set_item(name, Bound::new(py, self.viewed(py, view)?)?)?;
        }
        Ok(dict)
    }

    /// The counters of reads by index, id or name, of the tiers and of the peers, by their names in
    /// docs/metrics.md, as `dlfs.metrics.values` has them for the process.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dataset = self.dataset(py)?;
        let mut snapshot = Snapshot::new();
        dataset.stats().measure("id", &mut snapshot);
        snapshot.durations(&READ_COMMAND_SECONDS, &["id"], &dataset.latency());
        if let Some(tiers) = dataset.tier_stats() {
            tiers.measure(&mut snapshot);
        }
        if let Some(peers) = dataset.peer_stats() {
            peers.measure(&mut snapshot);
        }
        metrics::to_dict(py, &snapshot)
    }

    /// Counters of reads by index, id or name: commands, bytes, repeated, corrupt, verified, and latency as in
    /// Loader.stats. With tiers, also theirs, and `places`: where the bytes came from, as in `dlfs read --json`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dataset = self.dataset(py)?;
        let dict = convert::dict(py, &dataset.stats())?;
        dict.set_item("latency", convert::dict(py, &dataset.latency())?)?;
        if let Some(tiers) = dataset.tier_stats() {
            dict.set_item("tier_hits", tiers.tiers.iter().map(|t| t.hits).collect::<Vec<_>>())?;
            let copied = tiers.tiers.iter().map(|tier| tier.fill_bytes).collect::<Vec<_>>();
            dict.set_item("tier_copied_bytes", copied)?;
            let each = tiers.tiers.iter().map(|tier| convert::dict(py, tier));
            dict.set_item("tiers", each.collect::<PyResult<Vec<_>>>()?)?;
            let origin = tiers.origin;
            dict.set_item("origin_bytes", origin.bytes + origin.copier_bytes)?;
        }
        if let Some(places) = dataset.places() {
            dict.set_item("places", json(py)?.call_method1("loads", (places.to_json(),))?)?;
        }
        Ok(dict)
    }

    /// Joins the other ranks of the job: from then on, this data set and its loaders read through the
    /// tiers of all their nodes, and serve their own. Waits until all ranks have joined; a second call
    /// does nothing. Returns (rank, world size).
    ///
    /// `peers` and the options round, peer_mode, peer_address, rendezvous_port, peer_timeout, job_key and peer_tls
    /// are those of dlfs.Loader, which joins by itself; rank and world_size: as the launcher says, if not given.
    ///
    /// Raises TimedOut if ranks are missing, and names them; InvalidArgument if a rank is there twice or
    /// differs, or if the data set has no tiers; Busy if a port is taken.
    #[pyo3(signature = (peers, **options))]
    fn join_peers(
        &self,
        peers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<(u32, u32)> {
        let py = peers.py();
        let options = options.map_or_else(|| PyDict::new(py), Clone::clone);
        for key in options.keys() {
            let key: String = key.extract()?;
            if !keywords().contains(&key) {
                return Err(PyTypeError::new_err(format!("join_peers() has no option '{key}'")));
            }
        }
        options.set_item("peers", peers)?;
        let join = Join::of(&options)?;
        let join = join.ok_or_else(|| raise_invalid(py, "peers is None: nobody joins".into()))?;
        self.through_peers(py, join, |_| Ok(None))
    }

    /// Reads through the peers that another process of this rank has joined; `text` is from its
    /// pickled data set.
    fn _attach_to_peers(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        let pass = Pass::from_json(text).or_raise(py)?;
        let dataset = self.dataset(py)?;
        let connect = &self.connect;
        let attached = detached(py, |_| dataset.attach_to_peers(pass, connect))?;
        self.replace(py, attached)
    }

    /// Closes the connections. Batches and views stay valid; loaders continue until closed.
    ///
    /// The process that has joined peers first goes on serving them, until all ranks have closed their
    /// data sets or are waiting for that, for peer_timeout seconds at most (None: as long as it would
    /// have waited to join; 0: not at all): whoever ends earlier takes its copies along. If ranks are
    /// missing then, a warning names them. Leaving a `with` block by an exception does not wait.
    #[pyo3(signature = (*, peer_timeout=None))]
    fn close(&self, py: Python<'_>, peer_timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let given =
            peer_timeout.map(|given| about("peer_timeout", given, seconds("peer_timeout", given)));
        self.close_within(py, given.transpose()?)
    }

    /// True once close was called.
    #[getter]
    fn closed(&self) -> bool {
        self.dataset.read().is_none()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let has_failed = exception.iter().any(|part| !part.is_none());
        self.close_within(py, has_failed.then_some(Duration::ZERO))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let open = py.import("dlfs")?.getattr("_reopen")?;
        let dataset = self.dataset(py).ok(); // a closed one can be opened again, too
        let peers = dataset.as_ref().and_then(|dataset| dataset.image().peers());
        let pass = peers.map(|peers| peers.pass().to_json());
        let snapshot = match &dataset {
            Some(dataset) if is_starting_a_process(py)? => share_snapshot(py, dataset),
            _ => None,
        };
        Ok((open, (&self.address, &self.options, pass, snapshot)).into_pyobject(py)?.into_any())
    }

    /// Distinguishes objects, too: fsspec caches file systems by the text of their arguments.
    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let py = slf.py();
        let this = slf.get();
        let at = slf.as_ptr();
        let address = this.address.bind(py).str().map_or_else(|_| "?".into(), |s| s.to_string());
        match this.dataset(py) {
            Ok(dataset) => format!("<dlfs.Dataset {address}: {} samples at {at:?}>", dataset.len()),
            Err(_) => format!("<dlfs.Dataset {address}, closed, at {at:?}>"),
        }
    }
}

/// Returns whether `multiprocessing` pickles for a process that it starts by spawn or forkserver. Other pickles may
/// be kept, or travel to other machines.
fn is_starting_a_process(py: Python<'_>) -> PyResult<bool> {
    let modules = py.import("sys")?.getattr("modules")?;
    let Ok(context) = modules.get_item("multiprocessing.context") else { return Ok(false) };
    Ok(!context.call_method0("get_spawning_popen")?.is_none())
}

/// The location where a new process finds the snapshot of `dataset`; `None` if it has to read it.
fn share_snapshot(py: Python<'_>, dataset: &dataset::Dataset) -> Option<(u32, u32, u64, u64)> {
    let shared = py.detach(|| dataset.image().share_snapshot());
    let location = shared.unwrap_or_else(|error| {
        tracing::warn!(
            "each worker holds a directory of its own, since it cannot be shared: {error}"
        );
        None
    });
    location.map(|at| (at.pid, at.fd, at.dev, at.ino))
}

impl Dataset {
    /// A Python object for `dataset`, a view of this data set. Its pickles contain the view.
    fn viewed(&self, py: Python<'_>, dataset: dataset::Dataset) -> PyResult<Dataset> {
        let options = self.options.bind(py).copy()?;
        let bytes = detached(py, |_| {
            let view =
                NamedView { name: "view".into(), made: String::new(), view: dataset.as_view()? };
            dlfs::view::ViewFile::new(vec![view])
                .map(|file| file.to_bytes())
                .map_err(|error| dlfs::Error::new(dlfs::ErrorKind::Internal, error.to_string()))
        })?;
        options.set_item("view", PyBytes::new(py, &bytes))?;
        Ok(Dataset {
            dataset: RwLock::new(Some(dataset)),
            fields: Arc::clone(&self.fields),
            address: self.address.clone_ref(py),
            options: options.unbind(),
            connect: self.connect.clone(),
            joining: Mutex::new(None),
        })
    }

    /// Reads samples by their ids, all of which exist.
    fn read_ids<'py>(
        &self,
        py: Python<'py>,
        dataset: &dataset::Dataset,
        ids: &[SampleId],
    ) -> PyResult<Bound<'py, Batch>> {
        let read = detached(py, |watch| dataset.read(Query::Ids(ids), OnError::Raise, watch))?;
        Batch::new(py, read.batch, Arc::clone(&self.fields), Vec::new())
    }

    /// The fields that samples show: those that the option `fields` chooses; without it, those that `dlfs.open` chose.
    pub(crate) fn fields_shown(&self, option: Option<&Bound<'_, PyAny>>) -> PyResult<Arc<Fields>> {
        Ok(self.fields.chosen(option)?.map_or_else(|| Arc::clone(&self.fields), Arc::new))
    }

    /// Joins peers, unless this data set has joined some before. Returns this process's rank and world size, which
    /// `run` also gets: it returns the options of the loader that will read, if they are known.
    pub(crate) fn through_peers(
        &self,
        py: Python<'_>,
        join: Join,
        run: impl FnOnce((u32, u32)) -> PyResult<Option<LoaderOptions>>,
    ) -> PyResult<(u32, u32)> {
        let Some(mut joining) = self.joining.try_lock() else {
            let text = "another thread joins the peers of this data set";
            return Err(raise(py, &dlfs::Error::new(dlfs::ErrorKind::Busy, text)));
        };
        let dataset = self.dataset(py)?;
        if let Some(peers) = dataset.image().peers() {
            return Ok(peers.place());
        }
        let meeting = join.meeting(py)?;
        let place = (meeting.rank, meeting.world_size);
        let run = run(place)?;
        let joined = join.meet(py, |object, watch| {
            dataset.with_peers(&meeting, run.as_ref(), &self.connect, object, watch)
        })?;
        self.replace(py, joined)?;
        *joining = Some((join, meeting));
        Ok(place)
    }

    /// Closes the data set; see `close`.
    fn close_within(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<()> {
        let dataset = self.dataset.write().take();
        let joined = self.joining.try_lock().and_then(|mut joined| joined.take());
        let left = match (&dataset, &joined) {
            (Some(dataset), Some((join, meeting))) => {
                let timeout = timeout.unwrap_or(join.options.timeout);
                if timeout.is_zero() {
                    Ok(())
                } else {
                    join.leave(py, dataset, meeting, timeout, &self.connect)
                }
            }
            _ => Ok(()),
        };
        py.detach(|| drop(dataset));
        left
    }

    /// Replaces the open data set, as after joining peers.
    fn replace(&self, py: Python<'_>, dataset: dataset::Dataset) -> PyResult<()> {
        self.dataset(py)?; // it may have been closed meanwhile
        let before = self.dataset.write().replace(dataset);
        py.detach(|| drop(before));
        Ok(())
    }

    /// The open data set.
    ///
    /// # Errors
    /// `InvalidArgument`: the data set was closed.
    pub(crate) fn dataset(&self, py: Python<'_>) -> PyResult<dataset::Dataset> {
        let dataset = self.dataset.read().clone();
        dataset.ok_or_else(|| {
            raise_invalid(py, "the data set is closed; open it again with dlfs.open".into())
        })
    }
}

/// Copies the samples into the caller's memory, one behind the other; returns the start of each, and the end of the
/// last.
fn fill<'py>(py: Python<'py>, mut out: Output, held: &Held) -> PyResult<Bound<'py, PyAny>> {
    let samples = (0..held.len()).map(|index| Ok(held.shown(index)?.unwrap_or_default()));
    let samples = samples.collect::<dlfs::Result<Vec<&[u8]>>>().or_raise(py)?;
    let need = samples.iter().map(|sample| sample.len()).sum::<usize>();
    if out.len() < need {
        let text = format!("the batch has {need} bytes, out has {}", out.len());
        return Err(raise_invalid(py, text));
    }
    let ends = samples.iter().scan(0, |at, sample| {
        out.write(*at, sample);
        *at += sample.len();
        Some(*at as i64)
    });
    let ends: Vec<i64> = ends.collect();
    numpy::int64(py, std::iter::once(0).chain(ends))
}

/// Parses addresses: text as `ADDRESS[,ADDRESS...]`, an os.PathLike, or a list of these. An os.PathLike is one path,
/// also with a comma in it.
pub(crate) fn addresses(given: &Bound<'_, PyAny>) -> PyResult<Vec<Address>> {
    let py = given.py();
    let one = |given: &Bound<'_, PyAny>| {
        let path = convert::to_bytes(&py.import("os")?.call_method1("fspath", (given,))?)?;
        let path = OsString::from_vec(path);
        if !convert::is_name(given) {
            return Ok(vec![Address::from_path(path)]);
        }
        Address::parse_list_os(&path).map_err(|error| raise_invalid(py, error.to_string()))
    };
    let is_list = given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>();
    if !is_list {
        return one(given);
    }
    let mut all = Vec::new();
    for address in given.try_iter()? {
        all.extend(one(&address?)?);
    }
    Ok(all)
}

/// The typed column called `name`, and its index.
fn column_at<'d>(directory: &'d Directory, name: &str) -> dlfs::Result<(usize, &'d Column)> {
    let columns = directory.columns();
    let found = columns.iter().enumerate().find(|(_, column)| column.name() == name);
    found.ok_or_else(|| {
        let known: Vec<&str> = columns.iter().map(Column::name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let text = format!("there is no typed column {name:?}: there are {known}");
        dlfs::Error::new(dlfs::ErrorKind::NotFound, text)
    })
}
