//! Parts of samples: `SampleFile`, which reads at offsets, and ranges of many samples in one call.

use dlfs::Result;
use dlfs::dataset::{self, SampleRange};
use dlfs::units::SampleId;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::convert;
use crate::error::{detached, raise, raise_invalid, raise_lookup};
use crate::ffi::Output;
use crate::fields::Fields;
use crate::keys::looked_up;

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
            continue; // its name could not be looked up: that error is in `failures` already
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

/// The field that a range is a part of: the one that was chosen, or the only one, which may have a type; an error if
/// samples are mappings of several.
fn one_field(py: Python<'_>, fields: &Fields) -> PyResult<Option<usize>> {
    if fields.are_several() { Err(raise(py, &fields.unnamed())) } else { Ok(fields.sole()) }
}

/// The id of `key`, an id or a name.
fn id_of(dataset: &dataset::Dataset, key: &Bound<'_, PyAny>) -> PyResult<Result<SampleId>> {
    if convert::is_name(key) {
        return looked_up(dataset, key);
    }
    Ok(Ok(SampleId(convert::id(key)?)))
}
