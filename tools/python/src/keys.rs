//! The samples that a caller means: by ids, names, indices and slices; and [`Names`], the names by index.

use dlfs::dataset;
use dlfs::units::SampleId;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PySlice};

use crate::convert::{self, position};
use crate::error::{OrRaise as _, detached, try_detached};

/// Ids or names of samples, as `read_batch` takes them.
pub(crate) enum Keys {
    Ids(Vec<SampleId>),
    Names(Vec<Vec<u8>>),
}

impl Keys {
    /// The ids or names in any iterable, or in an array of integers.
    pub(crate) fn of(given: &Bound<'_, PyAny>) -> PyResult<Keys> {
        if convert::is_name(given) {
            let text =
                "a sequence of ids or names is expected, not one name; ds[name] reads one sample";
            return Err(PyTypeError::new_err(text));
        }
        // Arrays become lists of plain integers in one call.
        let given =
            if given.hasattr("tolist")? { given.call_method0("tolist")? } else { given.clone() };
        // Iterated once: a generator gives its elements only once.
        let keys: Vec<Bound<'_, PyAny>> = given.try_iter()?.collect::<PyResult<_>>()?;
        if keys.first().is_some_and(convert::is_name) {
            return Ok(Keys::Names(keys.iter().map(convert::to_bytes).collect::<PyResult<_>>()?));
        }
        let ids = keys.iter().map(|key| Ok(SampleId(convert::id(key)?)));
        Ok(Keys::Ids(ids.collect::<PyResult<_>>()?))
    }
}

/// Looks up the id of the sample called `name`. The outer error is an exception, the inner one of the library.
pub(crate) fn looked_up(
    dataset: &dataset::Dataset,
    name: &Bound<'_, PyAny>,
) -> PyResult<dlfs::Result<SampleId>> {
    let bytes = convert::to_bytes(name)?;
    try_detached(name.py(), |watch| dataset.lookup(&bytes, watch))
}

/// The indices that a slice selects from `len`.
pub(crate) fn picked(
    slice: &Bound<'_, PySlice>,
    len: u64,
) -> PyResult<impl ExactSizeIterator<Item = u64>> {
    let slice = slice.indices(len as isize)?;
    Ok((0..slice.slicelength).map(move |n| (slice.start + n as isize * slice.step) as u64))
}

/// The names of the samples of a data set, by index.
#[pyclass(frozen, module = "dlfs._dlfs", sequence)]
pub(crate) struct Names {
    dataset: dataset::Dataset,
}

#[pymethods]
impl Names {
    fn __len__(&self) -> usize {
        self.dataset.len() as usize
    }

    /// names[i]: a str; names[i:j]: a list of them.
    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = index.py();
        let len = self.dataset.len();
        if let Ok(slice) = index.cast::<PySlice>() {
            let names = picked(slice, len)?.map(|at| self.at(py, at));
            return Ok(PyList::new(py, names.collect::<PyResult<Vec<_>>>()?)?.into_any());
        }
        self.at(py, position(index, len, "data set")?)
    }

    fn __repr__(&self) -> String {
        format!("<names of {} samples>", self.dataset.len())
    }
}

impl Names {
    /// The names of a data set whose names are loaded.
    pub(crate) fn of(dataset: dataset::Dataset) -> Names {
        Names { dataset }
    }

    fn at<'py>(&self, py: Python<'py>, index: u64) -> PyResult<Bound<'py, PyAny>> {
        let id = self.dataset.id_at(index).or_raise(py)?;
        let name = detached(py, |watch| self.dataset.name(id, watch))?;
        convert::to_str(py, &name)
    }
}
