//! A sample of several fields, the element of a batch if no field was chosen. And parts of samples: ranges in one call,
//! and a sample as a file that is read at offsets.

use std::sync::Arc;

use dlfs::Result;
use dlfs::dataset::{self, SampleRange};
use dlfs::units::SampleId;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::batch::{mapped_names, parts};
use crate::dataset::looked_up;
use crate::error::{OrRaise as _, detached, raise, raise_invalid, raise_lookup};
use crate::ffi::{Memory, Output, Source, Views};
use crate::held::{Fields, Held};
use crate::{convert, numpy};

/// A sample of several fields, all of them read: a read-only mapping of names to fields.
///
/// sample["jpg"] is one of them, as a read-only memoryview; None if this sample lacks the field. A field
/// with a type is a read-only array instead, or a number if its shape is (). A sample is not a buffer
/// itself: using it as one raises InvalidArgument, since the field is ambiguous.
///
/// >>> label = int(bytes(sample["cls"]))
#[pyclass(frozen, extends = Memory, mapping, module = "dlfs", name = "Sample")]
pub(crate) struct Sample {
    held: Arc<Held>,
    index: usize,
}

impl Sample {
    /// The sample at `index`, which must be less than the length.
    pub(crate) fn of<'py>(
        py: Python<'py>,
        held: &Arc<Held>,
        index: usize,
    ) -> PyResult<Bound<'py, Sample>> {
        // Exporting it raises the error that it is not a buffer.
        let memory = Memory::whole(Source::Batch(Arc::clone(held)));
        let sample = Sample { held: Arc::clone(held), index };
        Bound::new(py, PyClassInitializer::from(memory).add_subclass(sample))
    }

    fn shown<'py>(&self, py: Python<'py>, field: usize) -> PyResult<Bound<'py, PyAny>> {
        let views = Views::of(py, Source::Field(Arc::clone(&self.held), field))?;
        numpy::shown(&self.held, &views, self.index, field)
    }
}

#[pymethods]
impl Sample {
    /// The field of this name, or of this number in `fields`: a read-only memoryview, an array if the field has
    /// a type, or None if the sample does not have it.
    ///
    /// Raises NotFound if samples have no such field.
    fn field<'py>(&self, field: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.shown(field.py(), self.held.fields.numbered(field)?)
    }

    /// Names of the fields that the sample maps.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        mapped_names(py, &self.held.fields)
    }

    fn __len__(&self) -> usize {
        self.held.fields.mapped().len()
    }

    /// sample[name]: a read-only memoryview, an array if the field has a type, or None if the sample lacks it. Raises
    /// NameNotFound, a KeyError, which names the fields that there are.
    fn __getitem__<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = name.py();
        self.shown(py, self.held.fields.mapped_as(py, &convert::to_bytes(name)?)?)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.fields(py)?.try_iter()?.into_any())
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(convert::is_name(name)
            && self.held.fields.mapped_as(name.py(), &convert::to_bytes(name)?).is_ok())
    }

    /// Names of the fields, as `fields`.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.fields(py)
    }

    /// The fields in the order of their names.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let fields = self.held.fields.mapped();
        let values = fields.into_iter().map(|field| self.shown(py, field));
        PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)
    }

    /// Pairs of name and field.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        Ok(self.asdict(py)?.items())
    }

    /// sample[name], or `default` if samples have no such field.
    #[pyo3(signature = (name, default = None))]
    fn get<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.__contains__(name)? {
            self.__getitem__(name)
        } else {
            Ok(default.unwrap_or_else(|| name.py().None().into_bound(name.py())))
        }
    }

    /// The fields that have a type, of those that the sample maps: {name: dlfs.FieldType}.
    #[getter]
    fn field_types<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        numpy::mapped_types(py, &self.held.fields)
    }

    /// All fields by name: {name: memoryview, array or None}.
    fn asdict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        let fields = &self.held.fields;
        for field in fields.mapped() {
            all.set_item(convert::to_str(py, &fields.names[field])?, self.shown(py, field)?)?;
        }
        Ok(all)
    }

    /// Id of the sample.
    #[getter]
    fn id(&self) -> i64 {
        self.held.id(self.index)
    }

    /// Its label, or None.
    #[getter]
    fn label(&self) -> Option<i64> {
        self.held.label(self.index)
    }

    /// The total length of the fields.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.held.len_bytes(self.index).or_raise(py)
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let make = py.import("dlfs._dlfs")?.getattr("sample_of")?;
        Ok((make, parts(py, &self.held, self.index..self.index + 1)?))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<dlfs.Sample {} with fields {}>", self.id(), self.fields(py)?.repr()?))
    }
}

/// A sample, or one field of it, as a file: reads at offsets, each byte verified (except parts of a large file of a
/// plain folder). `Dataset.open_sample` returns it.
///
/// It keeps the bytes that it read last: a sample up to 1 MiB whole, of a larger one at most 8 MiB. Reads that
/// follow one another read ahead. Threads may share it.
#[pyclass(frozen, module = "dlfs", name = "SampleFile")]
pub(crate) struct SampleFile {
    file: dataset::SampleFile,
}

#[pymethods]
impl SampleFile {
    /// The sample's id.
    #[getter]
    fn id(&self) -> u64 {
        self.file.id().0
    }

    /// Its length in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.file.len_bytes()
    }

    /// Up to `length` bytes at `offset`; fewer where the file ends.
    ///
    /// Raises Corrupt, Disconnected, TimedOut, Stale.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.bytes_at(py, offset, length)?))
    }

    /// Reads at `offset` into a writable buffer of bytes; returns how many there are, 0 at the end.
    fn readinto(&self, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = buffer.py();
        let mut out = Output::new(buffer)?;
        let bytes = self.bytes_at(py, offset, out.len() as u64)?;
        out.write(0, &bytes);
        Ok(bytes.len())
    }

    fn __len__(&self) -> usize {
        self.file.len_bytes() as usize
    }

    fn __repr__(&self) -> String {
        format!("<dlfs.SampleFile of sample {}: {} bytes>", self.file.id(), self.file.len_bytes())
    }
}

impl SampleFile {
    fn bytes_at(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<Vec<u8>> {
        let len = length.min(self.file.len_bytes().saturating_sub(offset));
        detached(py, |watch| {
            let mut bytes = dlfs::buf::zeroed_vec(len)?;
            let got = self.file.read_at(offset, &mut bytes, watch)?;
            bytes.truncate(got);
            Ok(bytes)
        })
    }
}

/// Opens the sample `key`, an id or a name.
pub(crate) fn open_sample(
    dataset: &dataset::Dataset,
    fields: &Fields,
    key: &Bound<'_, PyAny>,
    as_file: bool,
) -> PyResult<SampleFile> {
    let py = key.py();
    let field = one_field(py, fields)?;
    let id = id_of(dataset, key)?.map_err(|error| raise_lookup(py, &error))?;
    let file = detached(py, |watch| {
        if as_file {
            dataset.open_file(id, field, watch)
        } else {
            dataset.open_sample(id, field, watch)
        }
    })?;
    Ok(SampleFile { file })
}

/// The ranges (id or name, start, end) of samples, as `bytes`.
pub(crate) fn read_ranges<'py>(
    dataset: &dataset::Dataset,
    fields: &Fields,
    ranges: &Bound<'py, PyAny>,
    on_error: &str,
) -> PyResult<Bound<'py, PyList>> {
    let py = ranges.py();
    let raises = match on_error {
        "raise" => true,
        "return" => false,
        other => {
            let text = format!("on_error is \"raise\" or \"return\", not {other:?}");
            return Err(raise_invalid(py, text));
        }
    };
    let field = one_field(py, fields)?;
    let mut wanted = Vec::new();
    let mut failures = Vec::new();
    for (at, range) in ranges.try_iter()?.enumerate() {
        let (key, start, end): (Bound<'py, PyAny>, u64, Option<u64>) = range?.extract()?;
        let id = match id_of(dataset, &key)? {
            Ok(id) => id,
            Err(error) if raises => return Err(raise_lookup(py, &error)),
            Err(error) => {
                failures.push((at, raise_lookup(py, &error)));
                SampleId(u64::MAX)
            }
        };
        wanted.push(SampleRange { id, start, end: end.unwrap_or(u64::MAX) });
    }
    let (read, failed) = detached(py, |watch| match field {
        Some(field) => dataset.read_field_ranges(&wanted, field, watch),
        None => dataset.read_ranges(&wanted, watch),
    })?;
    for (at, error) in failed {
        if wanted[at].id == SampleId(u64::MAX) {
            continue; // a name that no sample has, which is known already
        }
        let error = raise(py, &error);
        if raises {
            return Err(error);
        }
        failures.push((at, error));
    }
    let list = PyList::empty(py);
    for at in 0..read.len() {
        list.append(PyBytes::new(py, read.bytes(at)))?;
    }
    for (at, error) in failures {
        list.set_item(at, error.value(py))?;
    }
    Ok(list)
}

/// The field that a range is a part of; an error if samples are mappings of several.
fn one_field(py: Python<'_>, fields: &Fields) -> PyResult<Option<usize>> {
    if fields.are_several() { Err(raise(py, &fields.unnamed())) } else { Ok(fields.one()) }
}

/// The id of `key`, an id or a name.
fn id_of(dataset: &dataset::Dataset, key: &Bound<'_, PyAny>) -> PyResult<Result<SampleId>> {
    if convert::is_name(key) {
        return looked_up(dataset, key);
    }
    Ok(Ok(SampleId(convert::id(key)?)))
}
