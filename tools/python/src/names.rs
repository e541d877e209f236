//! Names: any bytes on media; `str` with surrogate escapes in Python, like file names.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

/// Returns whether `given` is a name, a str or bytes, and not an id or a sequence of names.
pub(crate) fn is_name(given: &Bound<'_, PyAny>) -> bool {
    given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>()
}

/// The bytes of a `str`, `bytes` or path object.
pub(crate) fn to_bytes(name: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = name.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    Ok(name.extract::<OsString>()?.into_vec())
}

/// The `str` for a name.
pub(crate) fn to_str<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    Ok(std::ffi::OsStr::from_bytes(name).into_pyobject(py)?.into_any())
}

/// A tuple of names.
pub(crate) fn tuple<'py>(py: Python<'py>, names: &[Vec<u8>]) -> PyResult<Bound<'py, PyTuple>> {
    let names: Vec<_> = names.iter().map(|name| to_str(py, name)).collect::<PyResult<_>>()?;
    PyTuple::new(py, names)
}
