//! Batches for Python: views of the bytes in the memory that they were read into.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use dlfs::format::field_type::Element;
use dlfs::format::{FieldType, FieldTypes};
use dlfs::{Error, reader};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PyTuple};

use crate::convert::{self, position};
use crate::device::{Arrived, OnDevice};
use crate::dlpack::{self, DeviceId, Request, Spec};
use crate::error::{OrRaise as _, raise, raise_invalid, raise_no_array};
use crate::ffi::{Lent, Memory, Source, Views};
use crate::fields::Fields;
use crate::held::{Beside, Held};
use crate::keys::picked;
use crate::numpy;
use crate::sample::Sample;

/// Samples that were read together, in the order of the epoch or of the requested ids.
///
/// A sequence with one read-only memoryview per sample (None if it could not be read and on_error
/// is "none"), of verified bytes in the memory that they were read into: nothing is copied.
/// batch[i:j] is a list of views. The memory lives as long as any view of it, also after the data
/// set was closed. The batch itself supports the buffer protocol: all its bytes, samples
/// contiguous. Pickling copies it.
///
/// Samples of several fields are dlfs.Sample objects, mappings of names to fields, and batch["jpg"]
/// is that field of each; batch.select("jpg"), or fields="jpg" of dlfs.open or of a loader, makes
/// that field the sample.
///
/// >>> for image in batch: decode(image)
/// >>> numpy.frombuffer(batch[0], dtype="<f4")
#[pyclass(frozen, extends = Memory, sequence, module = "dlfs", name = "Batch")]
pub(crate) struct Batch {
    pub(crate) held: Arc<Held>,
    /// The arrays of the batch on a device; `None`: the loader has no device.
    arrived: Option<Arc<Arrived>>,
}

impl Batch {
    pub(crate) fn new(
        py: Python<'_>,
        batch: reader::Batch,
        fields: Arc<Fields>,
        failures: Vec<(usize, Error)>,
    ) -> PyResult<Bound<'_, Batch>> {
        Batch::of(py, Arc::new(Held::read(batch, fields, failures)), None)
    }

    pub(crate) fn of(
        py: Python<'_>,
        held: Arc<Held>,
        arrived: Option<Arc<Arrived>>,
    ) -> PyResult<Bound<'_, Batch>> {
        let memory = Memory::whole(Source::Batch(Arc::clone(&held)));
        Bound::new(py, PyClassInitializer::from(memory).add_subclass(Batch { held, arrived }))
    }

    /// Length of each sample in bytes.
    fn lens(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let lens = (0..self.held.len()).map(|index| self.held.len_bytes(index));
        lens.collect::<dlfs::Result<_>>().or_raise(py)
    }

    /// Checks that each sample is one buffer.
    ///
    /// # Errors
    /// `NoArray`: samples have several fields, and none was chosen.
    fn check_buffers(&self, py: Python<'_>) -> PyResult<()> {
        if self.held.fields.are_several() {
            Err(raise_no_array(py, self.held.fields.unnamed().report()))
        } else {
            Ok(())
        }
    }

    /// The field that is shown in place of the sample, and its type; `None`: it has no type, or samples show several.
    fn typed_one(&self) -> Option<(usize, &FieldType)> {
        let field = self.held.fields.sole()?;
        Some((field, self.held.fields.kind(field)?))
    }

    fn views<'py>(&self, py: Python<'py>) -> PyResult<Views<'py>> {
        Views::of(py, Source::Batch(Arc::clone(&self.held)))
    }

    /// The sample at `index`, which must be less than the length.
    pub(crate) fn view<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        self.show(&self.views(py)?, index)
    }

    /// The sample at `index` for Python: a view, an array, a number or a [`Sample`]. None if it could not be read, or
    /// lacks the field that is shown in its place.
    fn show<'py>(&self, views: &Views<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        if self.held.lacks(index) {
            return Ok(views.none());
        }
        if self.held.fields.are_several() {
            return Ok(Sample::of(views.py(), &self.held, index)?.into_any());
        }
        match self.held.fields.sole() {
            Some(field) => numpy::shown(&self.held, views, index, field),
            None => views.view(index),
        }
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.held.len()
    }

    /// batch[i]: the bytes of sample i, as a read-only memoryview; batch[i:j]: a list of them;
    /// batch[name]: the field of this name, as `field` returns it. If the field's type has a fixed shape, it is
    /// one array [B, ...] instead, and NoArray is raised if a sample lacks the field.
    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = index.py();
        if convert::is_name(index) {
            let field = self.held.fields.numbered(index)?;
            return match self.held.fields.kind(field).filter(|kind| kind.len_bytes().is_some()) {
                Some(kind) => numpy::stacked(py, &self.held, field, kind),
                None => Ok(self.field(index)?.into_any()),
            };
        }
        let len = self.held.len() as u64;
        if let Ok(slice) = index.cast::<PySlice>() {
            let views = self.views(py)?;
            let picked = picked(slice, len)?.map(|at| self.show(&views, at as usize));
            return Ok(PyList::new(py, picked.collect::<PyResult<Vec<_>>>()?)?.into_any());
        }
        self.view(py, position(index, len, "batch")? as usize)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.tolist(py)?.try_iter()?.into_any())
    }

    /// All samples as a list of read-only memoryviews, in one call.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let views = self.views(py)?;
        let views = (0..self.held.len()).map(|index| self.show(&views, index));
        PyList::new(py, views.collect::<PyResult<Vec<_>>>()?)
    }

    /// The samples as bytes objects: copies, which may be kept and pickled. Empty if a sample could
    /// not be read.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let copies = (0..self.held.len()).map(|index| {
            let shown = self.held.shown(index).or_raise(py)?;
            Ok(PyBytes::new(py, shown.unwrap_or_default()))
        });
        PyList::new(py, copies.collect::<PyResult<Vec<_>>>()?)
    }

    /// Ids of the samples: int64[B].
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        numpy::int64(py, (0..self.held.len()).map(|index| self.held.id(index)))
    }

    /// The number of the data set that each sample is of, in a mixture: int64[B]; ids and labels are those of that
    /// data set. None otherwise.
    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let sources = self.held.sources();
        sources.map(|all| numpy::int64(py, all.iter().map(|&source| source.into()))).transpose()
    }

    /// Labels, from memory: int64[B], or None if no sample of the data set has one. dlfs.NO_LABEL
    /// if a sample has none.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if !self.held.has_labels() {
            return Ok(None);
        }
        let labels = (0..self.held.len()).map(|index| self.held.label(index).unwrap_or(NO_LABEL));
        numpy::int64(py, labels).map(Some)
    }

    /// Names of the typed columns: see `column`.
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.held.column_names())
    }

    /// Values of the samples in the typed column called `name`, from memory: int64[B] of type int, with
    /// dlfs.NO_LABEL where a sample has none; likewise of bool, 0 and 1, and of str, numbers of
    /// Dataset.texts(name); float64[B] of float and float32[B] of f32, with NaN for none.
    ///
    /// Raises NotFound if there is no such column.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let values = self.held.column(name, 0..self.held.len()).or_raise(py)?;
        let (element, bytes) = values.elements();
        numpy::of_bytes(py, bytes.into_iter(), element.numpy_name())
    }

    /// Lengths in bytes: int64[B]. If samples have several fields, the total length of these.
    #[getter]
    fn lengths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        numpy::int64(py, self.lens(py)?.into_iter().map(|len| len as i64))
    }

    /// The start of each sample in `data`, and the end of the last one: int64[B + 1].
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.check_buffers(py)?;
        let ends = self.lens(py)?.into_iter().scan(0, |at, len| {
            *at += len as i64;
            Some(*at)
        });
        numpy::int64(py, std::iter::once(0).chain(ends))
    }

    /// All bytes, samples contiguous: read-only uint8[sum of lengths]. Without a copy if the
    /// samples are contiguous in memory, otherwise copied once.
    #[getter]
    fn data<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().check_buffers(slf.py())?;
        numpy::view(slf.as_any(), slf.get().nbytes(slf.py())?, "u1")
    }

    /// The batch as one read-only array uint8[B, L], or [B, ...] of the type of the field that was chosen; copied in
    /// the same cases as `data`.
    ///
    /// Raises NoArray (a ValueError, and an AttributeError: hasattr is then False) if the lengths differ or samples
    /// have several fields.
    #[getter]
    fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        slf.get().check_buffers(py)?;
        if let Some((field, kind)) = slf.get().typed_one() {
            return numpy::stacked(py, &slf.get().held, field, kind);
        }
        let lens = slf.get().lens(py)?;
        let count = lens.len();
        let len = lens.first().copied().unwrap_or(0);
        if let Some(other) = lens.iter().find(|other| **other != len) {
            let text = format!(
                "samples of {len} and of {other} bytes make no array: use data and offsets"
            );
            return Err(raise_no_array(py, text));
        }
        Batch::data(slf)?.call_method1("reshape", (count, len))
    }

    /// Sum of the lengths.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lens(py)?.into_iter().sum())
    }

    /// Samples that could not be read, with on_error="none": a list of (position, exception).
    #[getter]
    fn failures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let failures = self.held.failures.iter();
        PyList::new(py, failures.map(|(at, error)| (*at, raise(py, error).into_value(py))))
    }

    /// Its epoch; 0 for samples read by ids.
    #[getter]
    fn epoch(&self) -> u64 {
        self.held.epoch()
    }

    /// True if it is the last of its epoch on this rank.
    #[getter]
    fn ends_epoch(&self) -> bool {
        self.held.ends_epoch()
    }

    /// One field of every sample, by its name or its number in `Dataset.fields`: a list of
    /// read-only memoryviews, or of arrays if the field has a type; None if a sample does not have it.
    ///
    /// Raises NotFound if samples have no such field.
    fn field<'py>(&self, field: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let py = field.py();
        let field = self.held.fields.numbered(field)?;
        let views = Views::of(py, Source::Field(Arc::clone(&self.held), field))?;
        let found =
            (0..self.held.len()).map(|index| numpy::shown(&self.held, &views, index, field));
        PyList::new(py, found.collect::<PyResult<Vec<_>>>()?)
    }

    /// One field of every sample, as the file that `dlfs export` and `dlfs mount` show: a list of bytes-like objects,
    /// None if a sample does not have it. None: the field that was chosen, or the only one. A field that came from an
    /// .npy file or from text is one again.
    #[pyo3(signature = (field = None))]
    fn files<'py>(
        &self,
        py: Python<'py>,
        field: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let fields = &self.held.fields;
        let field = match field {
            Some(field) => fields.numbered(field)?,
            None => {
                self.check_buffers(py)?;
                fields.sole().unwrap_or(0)
            }
        };
        let views = Views::of(py, Source::Field(Arc::clone(&self.held), field))?;
        let files = (0..self.held.len()).map(|index| {
            let bytes = self.held.field(index, field).or_raise(py)?;
            let Some(bytes) = bytes else { return Ok(views.none()) };
            match fields.kind(field).map(|kind| kind.to_file(bytes)) {
                Some(Cow::Owned(file)) => Ok(PyBytes::new(py, &file).into_any()),
                _ => views.view(index),
            }
        });
        PyList::new(py, files.collect::<PyResult<Vec<_>>>()?)
    }

    /// The fields that have a type, of those that a sample maps: {name: dlfs.FieldType}.
    #[getter]
    fn field_types<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.held.fields.are_several() {
            numpy::mapped_types(py, &self.held.fields)
        } else {
            Ok(PyDict::new(py))
        }
    }

    /// The dlfs.FieldType of the field that is the sample; None if that is bytes.
    #[getter]
    fn field_type<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.typed_one().map(|(_, kind)| numpy::described(py, kind)).transpose()
    }

    /// Names of the fields of each sample; empty if each sample is one buffer.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let fields = &self.held.fields;
        if fields.are_several() { mapped_names(py, fields) } else { Ok(PyTuple::empty(py)) }
    }

    /// The same samples, showing these fields only: with one name, that field is the sample, so that
    /// `data`, `offsets`, `array` and DLPack are of it; with a tuple of names, a sample is a mapping
    /// of them. Nothing is copied.
    ///
    /// Raises NotFound if samples have no such field.
    fn select<'py>(&self, fields: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Batch>> {
        let py = fields.py();
        let chosen = self.held.fields.chosen(Some(fields))?;
        let chosen = chosen.unwrap_or_else(|| Fields::clone(&self.held.fields));
        Batch::of(py, Arc::new(self.held.showing(chosen)), self.arrived.clone())
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let make = py.import("dlfs._dlfs")?.getattr("batch_of")?;
        Ok((make, pickled(py, &self.held, 0..self.held.len())?))
    }

    /// The arrays of the batch on the device that the loader was given as `device`: a dlfs.OnDevice. None without one.
    #[getter]
    fn on_device(&self) -> Option<OnDevice> {
        let arrived = self.arrived.as_ref()?;
        Some(OnDevice::new(Arc::clone(arrived), Fields::clone(&self.held.fields)))
    }

    /// The batch for another process: a view of each record, and the other argument of `batch_of`.
    fn _apart<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Bound<'py, PyBytes>)> {
        let views = Views::of(py, Source::Record(Arc::clone(&self.held)))?;
        let records = (0..self.held.len()).map(|index| views.view(index));
        Ok((records.collect::<PyResult<_>>()?, beside(py, &self.held, 0..self.held.len())?))
    }

    /// The bytes through DLPack: `array` if lengths are equal, else `data`. A copy for consumers of
    /// DLPack before 1.0, which cannot express that memory is read-only.
    ///
    /// Raises BufferError if the consumer refuses a copy that it needs, or wants the bytes on another device.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(i64, i64)>,
        dl_device: Option<DeviceId>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = Request::new(dlpack::CPU, max_version, dl_device, copy)?;
        if let Some(stream) = stream.filter(|stream| *stream != -1) {
            let text = format!(
                "stream is None for memory of the host, which has no streams, not {stream}"
            );
            return Err(raise_invalid(py, text));
        }
        self.check_buffers(py)?;
        let (held, spec) = self.whole(py)?;
        dlpack::of_host(py, held, &spec, &request)
    }

    /// The device of the bytes: CPU.
    fn __dlpack_device__(&self) -> DeviceId {
        dlpack::CPU
    }

    /// A copy as torch tensors in page-locked memory, or on the device that the batch is on already: a
    /// dlfs.torch.TensorBatch. DataLoader(pin_memory=True) calls it.
    #[pyo3(signature = (device = None))]
    fn pin_memory<'py>(
        slf: &Bound<'py, Self>,
        device: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Batch::tensors(slf)?.call_method1("pin_memory", (device,))
    }

    /// A copy as torch tensors on `device`: a dlfs.torch.TensorBatch.
    #[pyo3(signature = (device, non_blocking = false))]
    fn to<'py>(
        slf: &Bound<'py, Self>,
        device: &Bound<'py, PyAny>,
        non_blocking: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        Batch::tensors(slf)?.call_method1("to", (device, non_blocking))
    }

    fn __repr__(&self) -> String {
        let lens = (0..self.held.len()).map(|i| self.held.record(i).len());
        let bytes: usize = lens.map(|len| self.held.fields.len_of(len)).sum();
        format!("<dlfs.Batch of {} samples, {bytes} bytes>", self.held.len())
    }
}

impl Batch {
    /// Samples that show one buffer, and the shape of that buffer: that of `array` if lengths are equal, else of
    /// `data`.
    fn whole(&self, py: Python<'_>) -> PyResult<(Arc<Held>, Spec)> {
        let lens = self.lens(py)?;
        let equal = lens.iter().all(|len| *len == lens[0]);
        if let Some((field, kind)) = self.typed_one().filter(|_| equal) {
            let (one, shape) = numpy::stack(py, &self.held, field, kind)?;
            let shape = shape.into_iter().map(|len| len as i64).collect();
            return Ok((one, Spec::compact(kind.element(), shape, 0)));
        }
        let shape = if equal {
            vec![lens.len() as i64, lens.first().map_or(0, |len| *len as i64)]
        } else {
            vec![lens.iter().sum::<usize>() as i64]
        };
        Ok((Arc::clone(&self.held), Spec::compact(Element::U8, shape, 0)))
    }

    /// The batch as a dlfs.torch.TensorBatch.
    fn tensors<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("dlfs.torch")?;
        module.getattr("TensorBatch")?.call_method1("of", (slf,))
    }
}

/// The pickled form of some samples of a batch: the arguments of `batch_of` and `sample_of`.
pub(crate) fn pickled<'py>(
    py: Python<'py>,
    held: &Held,
    picked: Range<usize>,
) -> PyResult<Bound<'py, PyTuple>> {
    let records: Vec<&[u8]> = picked.clone().map(|index| held.record(index)).collect();
    PyTuple::new(py, [PyBytes::new(py, &records.concat()), beside(py, held, picked)?])
}

/// The pickled form of some samples, except their records: [`Beside`] as JSON.
fn beside<'py>(
    py: Python<'py>,
    held: &Held,
    picked: Range<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let ends = picked.clone().scan(0, |at, index| {
        *at += held.record(index).len();
        Some(*at)
    });
    let labels = picked.clone().map(|index| held.label(index).unwrap_or(NO_LABEL));
    let columns = held.column_names().into_iter().map(|name| held.column(&name, picked.clone()));
    let types = (0..held.fields.names.len()).map(|field| held.fields.kind(field));
    let failures = held.failures.iter().filter(|(at, _)| picked.contains(at));
    let failures = failures.map(|(at, error)| (at - picked.start, error.kind(), error.to_string()));
    let beside = Beside {
        ends: ends.collect(),
        ids: picked.clone().map(|index| held.id(index)).collect(),
        labels: held.has_labels().then(|| labels.collect()),
        epoch: held.epoch(),
        ends_epoch: held.ends_epoch(),
        sources: held.sources().map(|sources| sources[picked.clone()].to_vec()),
        columns: columns.collect::<dlfs::Result<_>>().or_raise(py)?,
        names: held.fields.names.to_vec(),
        choice: held.fields.choice(),
        types: types.map(|kind| kind.map(FieldType::to_string)).collect(),
        failures: failures.collect(),
    };
    Ok(PyBytes::new(py, &serde_json::to_vec(&beside).expect("numbers and texts become JSON")))
}

/// Makes the batch from its pickled form: `records`, which the object lends, and [`Beside`] as JSON.
///
/// # Errors
/// `InvalidArgument`: the arguments do not fit together.
pub(crate) fn held_of(records: &Bound<'_, PyAny>, beside: &[u8]) -> PyResult<Arc<Held>> {
    let py = records.py();
    let records = Lent::new(records)?;
    let wrong = |why: String| raise_invalid(py, format!("this is not a pickled batch: {why}"));
    let beside = serde_json::from_slice(beside);
    let mut beside: Beside = beside.map_err(|error| wrong(error.to_string()))?;
    if !beside.fits(records.len()) {
        return Err(wrong("its parts do not fit together".into()));
    }
    let types = beside.types.iter().map(|kind| kind.as_ref().map(|text| text.parse()).transpose());
    let types = types.collect::<Result<Vec<_>, String>>().map_err(wrong)?;
    let mut fields = Fields::new(&beside.names, FieldTypes::new(types));
    if let Some(choice) = &beside.choice {
        fields = fields.choose(choice).or_raise(py)?;
    }
    let failures = std::mem::take(&mut beside.failures).into_iter();
    let failures = failures.map(|(at, kind, text)| (at, Error::new(kind, text))).collect();
    Ok(Arc::new(Held::copied(records, beside, fields, failures)))
}

/// The names of the fields that a sample maps.
pub(crate) fn mapped_names<'py>(py: Python<'py>, fields: &Fields) -> PyResult<Bound<'py, PyTuple>> {
    let mapped = fields.mapped().into_iter().map(|field| fields.names[field].clone());
    convert::tuple(py, &mapped.collect::<Vec<_>>())
}

/// The label of samples without one, in a column of labels.
pub(crate) const NO_LABEL: i64 = i64::MIN;
