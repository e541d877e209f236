//! Creates numpy arrays through numpy's Python interface: this package needs no C headers of it.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PySlice, PyString, PyTuple};

/// A new array int64[n].
pub(crate) fn int64(
    py: Python<'_>,
    values: impl Iterator<Item = i64>,
) -> PyResult<Bound<'_, PyAny>> {
    of_bytes(py, values.flat_map(i64::to_le_bytes), "<i8")
}

/// A new array of these bytes.
pub(crate) fn of_bytes<'py>(
    py: Python<'py>,
    bytes: impl Iterator<Item = u8>,
    dtype: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let bytes: Vec<u8> = bytes.collect();
    let len = bytes.len();
    view(PyBytes::new(py, &bytes).as_any(), len, dtype)
}

/// A read-only array over the `len` bytes of an object with the buffer protocol. The array keeps the object alive.
pub(crate) fn view<'py>(
    object: &Bound<'py, PyAny>,
    len: usize,
    dtype: &str,
) -> PyResult<Bound<'py, PyAny>> {
    view_as(object, len, PyString::new(object.py(), dtype).as_any())
}

/// As [`view`], of any dtype.
pub(crate) fn view_as<'py>(
    object: &Bound<'py, PyAny>,
    len: usize,
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if len == 0 {
        // frombuffer refuses empty buffers.
        return empty(PyTuple::new(py, [0])?, dtype);
    }
    let options = PyDict::new(py);
    options.set_item("dtype", dtype)?;
    numpy(py)?.call_method("frombuffer", (object,), Some(&options))
}

/// A new array of this shape, which has no elements.
pub(crate) fn empty<'py>(
    shape: Bound<'py, PyTuple>,
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    numpy(shape.py())?.call_method1("empty", (shape, dtype))
}

/// A new array of `len` zeros.
pub(crate) fn zeros<'py>(py: Python<'py>, len: usize, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
    numpy(py)?.call_method1("zeros", (len, dtype))
}

/// The first elements of an array of one dimension, in this shape: a view.
pub(crate) fn first_as<'py>(
    array: &Bound<'py, PyAny>,
    shape: (usize, usize, usize),
) -> PyResult<Bound<'py, PyAny>> {
    let len = (shape.0 * shape.1 * shape.2) as isize;
    array.get_item(PySlice::new(array.py(), 0, len, 1))?.call_method1("reshape", (shape,))
}

fn numpy(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = NUMPY.get_or_try_init(py, || py.import("numpy").map(Bound::unbind))?;
    Ok(module.bind(py))
}
